"""What a public function was given, held against the types it states.

Types are looked at only after something went wrong, so that a call pays nothing for them and none of Python's own freedoms (a NumPy
number for a float) is refused where it works.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, ParamSpec, TypeVar

from planner.errors import FleetOptError, InputError
from planner.shared.documents import is_text

P = ParamSpec("P")
R = TypeVar("R")


def told_types(function: Callable[P, R]) -> Callable[P, R]:
    """Make a wrong type of an argument an :class:`~planner.errors.InputError` that names it.

    Parameters
    ----------
    function
        A function whose parameters are annotated, under ``from __future__ import annotations``.

    Returns
    -------
    callable
        The same function. Where it fails though every argument is of its type, the error is its own, unchanged.

    Examples
    --------
    >>> @told_types
    ... def half(rate: float) -> float:
    ...     return rate / 2.0
    >>> try:
    ...     half("ten")
    ... except InputError as error:
    ...     print(error.message)
    rate: expected float, got 'ten'
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except FleetOptError:
            raise
        except Exception as error:
            for name, wanted, value in _wrong(function, args, kwargs):
                raise InputError(f"{name}: expected {wanted}, got {_shown(value)}") from error
            raise

    return called


def spelled_out(function: Callable[P, R]) -> Callable[P, R]:
    """Show a function's ``**options: Unpack[...]`` one by one to whoever looks its signature up."""
    function.__signature__ = _signature(function)  # type: ignore[attr-defined]
    return function


def docstring_of(function: Callable[..., Any]) -> str:
    """What a function says of itself, also where ``python -OO`` leaves it out of the program: options stand in it."""
    if function.__doc__ is None:
        (written,) = ast.parse(inspect.getsource(function)).body
        return ast.get_docstring(written) or ""  # type: ignore[arg-type]
    return function.__doc__


def told_sections(text: str) -> tuple[str, dict[str, dict[str, str]]]:
    """What a docstring says first, and its sections: title -> entry -> what is said of it.

    >>> told_sections("A thing.\\n\\nSize\\n----\\nwidth\\n    From left\\n    to right.")
    ('A thing.', {'Size': {'width': 'From left to right.'}})
    """
    head, *sections = re.split(r"\n\n(?=[^\n]+\n---)", inspect.cleandoc(text).strip())
    found: dict[str, dict[str, str]] = {}
    for section in sections:
        title, _, entries = section.split("\n", 2)
        lines = [entry.split("\n") for entry in re.split(r"\n(?=\S)", entries)]
        found[title] = {name: " ".join(map(str.strip, more)) for name, *more in lines}
    return head, found


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Its signature, with the keys of the typed dictionary that its further arguments are."""
    signature = inspect.signature(function)
    *own, last = signature.parameters.values()
    found = re.fullmatch(r"Unpack\[(\w+)\]", str(last.annotation))
    if found is None:
        return signature
    kinds = inspect.unwrap(function).__globals__[found[1]].__annotations__
    keys = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind.__forward_arg__)
        for name, kind in kinds.items()
    ]
    return signature.replace(parameters=[*own, *keys])


def _wrong(function: Callable[..., Any], args: Any, kwargs: Any) -> list[tuple[str, str, Any]]:
    """(name, stated type, value) of the arguments that are not of their types; none where they do not fit the signature at all."""
    signature = _signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return []
    stated = {
        name: str(p.annotation)
        for name, p in signature.parameters.items()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.annotation is not p.empty
    }
    types = {name: ast.parse(wanted, mode="eval").body for name, wanted in stated.items()}
    return [(n, stated[n], v) for n, v in given.items() if n in stated and not _is(v, types[n])]


def _shown(value: Any) -> str:
    """A value as it is written, or its type where it cannot be."""
    try:
        return repr(value)
    except Exception:  # somebody else's code
        return f"a {type(value).__name__}"


def _is(value: Any, wanted: ast.expr) -> bool:
    """Whether a value is of a type written as in an annotation."""
    if isinstance(wanted, ast.BinOp):
        return _is(value, wanted.left) or _is(value, wanted.right)
    kind, inside = (wanted.value, wanted.slice) if isinstance(wanted, ast.Subscript) else (wanted, wanted)
    name, inner = ast.unparse(kind), inside.elts if isinstance(inside, ast.Tuple) else [inside]
    if name in _SIMPLE:
        return _SIMPLE[name](value)
    if name == "Literal":
        return isinstance(value, str) and value in map(ast.literal_eval, inner)
    if name in ("Sequence", "Collection", "list", "tuple"):
        listed = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        return (listed or getattr(value, "ndim", 0) == 1) and all(_is(v, inner[0]) for v in value)
    if name == "Mapping":
        return isinstance(value, Mapping) and all(_is(k, inner[0]) and _is(v, inner[1]) for k, v in value.items())
    # a class, known here by its name alone: what is loaded for types only is not there to be asked
    return name in {c.__name__ for c in type(value).__mro__} or type(value).__module__ not in ("builtins", "numpy")


def _is_number(value: Any) -> bool:
    """Whether a value is one number that a float can hold."""
    if isinstance(value, int):
        return abs(value) <= _LARGEST
    return isinstance(value, float) or _is_numpy(value, "iuf")


def _is_numpy(value: Any, kinds: str) -> bool:
    """Whether a value is one number of NumPy, of these kinds."""
    return getattr(getattr(value, "dtype", None), "kind", "O") in kinds and getattr(value, "ndim", 1) == 0


_LARGEST = int(math.ldexp(1.0, 1023))
_SIMPLE: dict[str, Callable[[Any], bool]] = {
    "None": lambda v: v is None,
    "Any": lambda v: True,
    "object": lambda v: True,
    # half a character cannot be written anywhere
    "str": lambda v: isinstance(v, str) and is_text(v),
    "bool": lambda v: isinstance(v, bool) or _is_numpy(v, "b"),
    "int": lambda v: (isinstance(v, int) and abs(v) <= _LARGEST) or _is_numpy(v, "iu"),
    "float": _is_number,
    "Path": lambda v: isinstance(v, PathLike),
    "Callable": callable,
}
"""Types known by name."""
