"""The small changes that tests/mutate.py plants: what people and programs get wrong in one place of a file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARED = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
            ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
            ast.NotIn: ("not in", "in")}  # fmt: skip
REVERSED = {ast.Lt: ("<", ">="), ast.LtE: ("<=", ">"), ast.Gt: (">", "<="), ast.GtE: (">=", "<")}
RECKONED = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
            ast.Mod: ("%", "*"), ast.Pow: ("**", "*")}  # fmt: skip
NAMED = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}
IN_C = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",), "+": ("-",),
        "-": ("+",), "*": ("/",), "/": ("*",), "&&": ("||",), "||": ("&&",), "+=": ("-=",), "-=": ("+=",)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change: bytes `start` to `stop` of a file, on lines `line` to `end`, become `text`."""

    file: str
    line: int
    end: int
    start: int
    stop: int
    text: str
    key: tuple[str, str, str]

    def applied(self, sound: bytes) -> bytes:
        """The file with the change."""
        return sound[: self.start] + self.text.encode() + sound[self.stop :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}\n    - {self.key[1]}\n    + {self.key[2]}"


def mutants_of(file: str, sound: bytes) -> list[Mutant]:
    """Every change of a file of Python or C."""
    begins = [0]
    for line in sound.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    found = []
    for start, stop, text in _in_c(sound.decode()) if file.endswith(".c") else _in_python(sound, begins):
        line, end = (next(k for k, b in enumerate(begins) if b > at) for at in (start, max(stop - 1, start)))
        old = sound[begins[line - 1] : begins[end]]
        new = old[: start - begins[line - 1]] + text.encode() + old[stop - begins[line - 1] :]
        told = tuple(" ".join(x.decode().split()) for x in (old, new))
        found.append(Mutant(file, line, end, start, stop, text, (file, *told)))
    return found


def _in_c(text: str) -> Iterator[tuple[int, int, str]]:
    """Operators between blanks and whole numbers, outside comments and lines of the preprocessor."""
    bare = re.sub(
        r'/\*.*?\*/|//[^\n]*|"[^"\n]*"|^#[^\n]*', lambda m: re.sub(r"[^\n]", "\0", m[0]), text, flags=re.S | re.M
    )
    for m in re.finditer(
        r"(?<= )(<=?|>=?|[=!]=|[-+]=?|[*/]|&&|\|\|)(?= )|(?<![\w.])\d+(?![\w.])|!(?=\w)|\b(continue|break);", bare
    ):
        at = len(text[: m.start()].encode()), len(text[: m.end()].encode())
        if m[0].isdigit():
            yield *at, str(int(m[0]) + 1)
        elif m[0] == "!" or m[2]:
            yield *at, "" if m[0] == "!" else ";"
        else:
            for other in IN_C[m[0]]:
                yield *at, other


def _in_python(sound: bytes, begins: list[int]) -> Iterator[tuple[int, int, str]]:
    """Changes of a Python file: byte from, byte to, new text."""
    tree = ast.parse(sound)
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        # types are no computation, text that stands alone is none, and what only type checkers import neither
        notes = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            notes.append(node)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            notes.append(node)
        # how a record lies in memory, and that rows are as long as each other, nobody sees
        if isinstance(node, ast.keyword) and node.arg in ("slots", "strict"):
            notes.append(node.value)
        if isinstance(node, ast.JoinedStr):  # before Python 3.12 it is not known where its parts stand
            notes += node.values
        skipped.update(inner for note in notes if note for inner in ast.walk(note))

    def at(node: ast.expr | ast.stmt) -> tuple[int, int]:
        return begins[node.lineno - 1] + node.col_offset, begins[(node.end_lineno or 0) - 1] + (
            node.end_col_offset or 0
        )

    def between(
        left: ast.expr | ast.stmt, right: ast.expr | ast.stmt, old: str, new: str
    ) -> Iterator[tuple[int, int, str]]:
        start, stop = at(left)[1], at(right)[0]
        gap = sound[start:stop].decode()
        if "#" not in gap and (m := re.search(rf"(?<![\w]){re.escape(old)}(?![\w=])", gap)):
            yield start + m.start(), start + m.end(), new

    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            for table in (COMPARED, REVERSED):
                if type(node.ops[0]) in table:
                    yield from between(node.left, node.comparators[0], *table[type(node.ops[0])])
        elif isinstance(node, ast.BinOp) and type(node.op) in RECKONED:
            texts = any(isinstance(x, (ast.JoinedStr, ast.List)) or (isinstance(x, ast.Constant) and isinstance(x.value, str))
                        for x in (node.left, node.right))  # fmt: skip
            if not texts:
                yield from between(node.left, node.right, *RECKONED[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield from between(node.values[0], node.values[1], old, new)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            start = at(node)[0]
            yield start, start + (4 if isinstance(node.op, ast.Not) else 1), ""
        elif isinstance(node, ast.Constant) and not isinstance(node.value, (str, bytes)):
            yield from ((*at(node), text) for text in _other(node.value))
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
        ):
            yield *at(node.slice), repr(node.slice.value + "_")
        elif isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield *at(key), repr(key.value + "_")
        elif isinstance(node, (ast.If, ast.IfExp)):
            yield *at(node.test), f"not ({sound[slice(*at(node.test))].decode()})"
        elif isinstance(node, ast.Return) and node.value and not isinstance(node.value, ast.Constant):
            yield *at(node.value), "None"
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in NAMED:
                end = at(node.func)[1]
                yield end - len(name), end, NAMED[name]
        elif isinstance(node, (ast.Raise, ast.AugAssign, ast.Continue, ast.Break)) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ):
            yield *at(node), "pass"
            if isinstance(node, ast.AugAssign) and type(node.op) in RECKONED:
                old, new = RECKONED[type(node.op)]
                yield from between(node.target, node.value, old + "=", new + "=")


def _other(value: object) -> Iterator[str]:
    """Constants in place of one."""
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, int):
        yield from (str(value + 1), str(value - 1))
    elif isinstance(value, float):
        yield repr(value * 2.0 if value else 1.0)
