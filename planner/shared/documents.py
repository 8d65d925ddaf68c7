"""Files of settings a person can be sent: read with limits, parsed whole, every fault one line with its place.

YAML and JSON that are too large, nested too deeply, blown up by aliases, that give a key twice or hold what no setting can
be (NaN, numbers of hundreds of digits, broken text) are refused before anything is done with them. Tables of cells name
the line that is none. Traces, which may be of any size, are read line by line elsewhere (:mod:`planner.workload`).
"""

from __future__ import annotations

import csv
import difflib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import InputError, refuse
from planner.shared.paths import at_home, is_unfed_pipe

LARGEST_FILE = 64 * 1024 * 1024
"""Largest file of settings, plans that carry their traffic included [bytes]."""

DEEPEST = 64
"""Nesting of any file."""

MOST_VALUES = 2_000_000
"""Values of a file, each alias counted as what it stands for."""

MOST_KEYS = 10_000
"""Keys of one mapping of settings; no file of ours has a hundred."""

_JSON_NESTING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{\]}]', re.DOTALL)
"""Strings, so that brackets in them do not count, and brackets."""

LONGEST_NUMBER = 40
"""Digits of a number."""

LARGEST_NUMBER = 1e18
"""Beyond it nothing can be counted, paid or measured."""


def printable(text: str, longest: int = 120) -> str:
    """Text from outside, fit for a terminal: control characters escaped, cut when very long.

    >>> printable("rate\\x1b[2J")
    'rate\\\\x1b[2J'
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[:longest])
    return shown if len(text) <= longest else f"{shown}..."


MOST_NAMES = 1000
"""Names of a folder compared with one that is not there."""


def missing(path: str | Path) -> str:
    """What to say of a file that is not there: what in its folder is called nearly so, or that there is no such folder.

    >>> missing("plan.yml")
    'plan.yml: no such file'
    """
    file = at_home(path)
    try:
        names = [entry.name for entry in itertools.islice(file.parent.iterdir(), MOST_NAMES)]
    except OSError:
        return f"{printable(str(path))}: no such file, nor a folder {printable(str(file.parent))}"
    stems = {
        Path(name).stem: name for name in names if file.suffix == Path(name).suffix or file.stem == Path(name).stem
    }
    close = difflib.get_close_matches(file.stem, stems, n=1)
    meant = f"; did you mean {printable(stems[close[0]])!r}?" if close else ""
    return f"{printable(str(path))}: no such file{meant}"


def refuse_unfed(file: Path, where: str) -> None:
    """Refuse a named pipe, which would be waited for until somebody writes to it; one that a shell has opened is read."""
    if is_unfed_pipe(file):
        raise InputError(
            f"{where}: is a named pipe, which nobody may ever write to", "Give a file, or <(...) in a shell."
        )


def read_text(path: str | Path, largest: int = LARGEST_FILE, hint: str | None = None) -> str:
    """The text of a file, a byte-order mark left out.

    Parameters
    ----------
    path
        The file.
    largest
        Its most [bytes].
    hint
        What to do where there is none.

    Raises
    ------
    InputError
        Missing, a folder, unreadable, larger than `largest` bytes, or not UTF-8.
    """
    file = at_home(path)
    where = printable(str(path))
    try:
        if file.is_dir():
            raise InputError(f"{where}: is a folder", "Name a file in it.")
        refuse_unfed(file, where)
        with file.open("rb") as stream:
            data = stream.read(largest + 1)
    except FileNotFoundError:
        raise InputError(missing(path), hint) from None
    # a name with a zero byte is a ValueError
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(data) > largest:
        raise InputError(f"{where}: more than {largest >> 20} MiB, too large for this kind of file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: cannot be read as text (byte {error.start} is not UTF-8)") from None


class Rows:
    """The rows of a table of cells, as :func:`csv.reader` reads them; what is none is an error with its line.

    Parameters
    ----------
    lines
        Of the file.
    source
        How messages name it.
    delimiter
        Between cells.

    Raises
    ------
    InputError
        While reading: a cell beyond what a cell may hold (131,072 letters), as after a quotation mark that nothing closes.

    Examples
    --------
    >>> list(Rows(["a,b", '1,"2"'], "mine.csv"))
    [['a', 'b'], ['1', '2']]
    """

    def __init__(self, lines: Iterable[str], source: str, delimiter: str = ",") -> None:
        self._rows = csv.reader(lines, delimiter=delimiter)
        self._source = source

    @property
    def line_num(self) -> int:
        """Lines read so far."""
        return self._rows.line_num

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        try:
            return next(self._rows)
        except csv.Error as error:
            raise InputError(f"{self._source}:{self._rows.line_num}: not a row of cells ({error})") from None


def rows_by_column(lines: Iterable[str], source: str, delimiter: str = ",") -> csv.DictReader[str]:
    """Rows of a table with a header, each by the names of its columns; see :class:`Rows`.

    >>> [row["b"] for row in rows_by_column(["a,b", "1,2"], "mine.csv")]
    ['2']
    """
    found: csv.DictReader[str] = csv.DictReader(())
    found.reader = Rows(lines, source, delimiter)  # type: ignore[assignment]
    return found


def load_document(path: str | Path, hint: str | None = None) -> Any:
    """A YAML or JSON file as plain data; see :func:`read_text`, :func:`parse_document`."""
    return parse_document(read_text(path, hint=hint), printable(str(path)))


def shipped(path: Path) -> Any:
    """A YAML file of this package as plain data, read at once; a test reads them all with the checks of :func:`load_document`."""
    import yaml

    return yaml.load(path.read_bytes(), yaml_loader())


def parse_document(text: str, source: str) -> Any:
    """Parse YAML or JSON (text that begins with a brace) as plain data.

    Parameters
    ----------
    text
        The file's text.
    source
        How messages name it.

    Raises
    ------
    InputError
        Empty, malformed (with its line), or beyond the limits of this module (with the key path).
    """
    if not text.strip():
        raise InputError(f"{source}: the file is empty")
    if not text.lstrip().startswith("{"):
        return parse_yaml(text, source)
    data = parse_json(text, source)
    if len(data) > MOST_KEYS:
        raise InputError(f"{source}: {len(data):,} keys, which no file of settings has")
    return data


def parse_json(text: str, source: str, infinite: bool = False) -> Any:
    """Parse JSON; keys given twice are errors, and so are NaN and infinities unless `infinite`. See :func:`parse_document`."""
    check_depth(text, source)

    def refused(what: str) -> Any:
        raise InputError(f"{source}: {what}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        twice = Counter(key for key, _ in pairs).most_common(1) if len(found) < len(pairs) else ()
        return refused(f"{printable(twice[0][0])!r} is given twice") if twice else found

    def whole(digits: str) -> int:
        return int(digits) if len(digits) <= LONGEST_NUMBER else refused(f"a number of {len(digits)} digits")

    def real(digits: str) -> float:
        return (
            refused(f"the number {printable(digits, 30)} is too large") if math.isinf(float(digits)) else float(digits)
        )

    constant = float if infinite else lambda name: refused(f"{name} is not a number JSON has")
    try:
        data = json.loads(text, object_pairs_hook=unique, parse_constant=constant, parse_int=whole, parse_float=real)
    except json.JSONDecodeError as error:
        raise InputError(f"{source}:{error.lineno}: not JSON: {error.msg}") from None
    _check_values(data, source, infinite)
    return data


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML with libyaml where it is compiled in (ten times faster), else in Python. See :func:`parse_document`."""
    return _yaml_documents(text, source, single=True)[0]


def parse_yaml_all(text: str, source: str) -> list[Any]:
    """The documents of a YAML file with lines of dashes between them. See :func:`parse_yaml`."""
    return _yaml_documents(text, source, single=False)


def yaml_loader() -> Any:
    """The reader of YAML everywhere: the two do not agree on every character."""
    import yaml

    return yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def _yaml_documents(text: str, source: str, single: bool) -> list[Any]:
    """All documents of a text, checked for depth, size and repeated keys before they are built."""
    import yaml

    # safe: both loaders build plain data only
    kind = yaml_loader()
    try:
        _check_events(text, source, kind)
        data = [yaml.load(text, kind)] if single else [*yaml.load_all(text, kind)]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{source}:{mark.line + 1}" if mark is not None else source
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        raise InputError(f"{place}: not YAML: {printable(str(problem))}") from None
    # numbers and dates that look right and are not: 2026-13-45, sexagesimal overflow
    except (ValueError, OverflowError) as error:
        raise InputError(f"{source}: {printable(str(error))}") from None
    for document in data:
        _check_values(document, source)
    return data


def counted(digits: str) -> int | float:
    """A whole number of JSON; of so many digits that nothing can be counted so it is infinite, as 1e999 is.

    >>> counted("12"), counted("9" * 400)
    (12, inf)
    """
    return int(digits) if len(digits) <= LONGEST_NUMBER else math.inf if digits[0] != "-" else -math.inf


def check_depth(text: str, source: str) -> None:
    """Refuse deep nesting before the parser recurses into it; brackets inside strings do not count."""
    depth = 0
    for token in _JSON_NESTING.finditer(text):
        c = token[0]
        if c in "[{":
            depth += 1
            if depth > DEEPEST:
                raise InputError(f"{source}: nested more than {DEEPEST} levels deep")
        elif c in "]}":
            depth -= 1


@dataclass(slots=True)
class _Open:
    """A mapping or list of a YAML file that has begun: where, its anchor, the keys of a mapping, and what it holds so far."""

    line: int
    anchor: str | None
    keys: set[str] | None
    children: int = 0
    size: int = 1


def _check_events(text: str, source: str, loader_class: Any) -> None:
    """Refuse what no file of settings has, from the stream of events, which no parser recurses for: deep nesting, too many keys,
    a key given twice (the last would win silently), an alias inside what it names, and what aliases blow up."""
    import yaml

    held: list[_Open] = []
    named: dict[
        str | None, tuple[int, str | None]
    ] = {}  # anchor -> values that stand there, and their text where it is one
    for count, event in enumerate(yaml.parse(text, Loader=loader_class)):
        if count > 4 * MOST_VALUES:
            raise InputError(f"{source}: more than {MOST_VALUES:,} values")
        line = event.start_mark.line + 1 if event.start_mark else 0
        size, word = 0, None
        if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            ended = held.pop()
            size = ended.size
            if size > MOST_VALUES:
                raise InputError(f"{source}:{ended.line}: aliases make this more than {MOST_VALUES:,} values")
            named[ended.anchor] = size, None
        elif isinstance(event, yaml.NodeEvent):
            if isinstance(event, yaml.AliasEvent):
                if around := next((one for one in held if one.anchor == event.anchor), None):
                    raise InputError(f"{source}:{around.line}: an alias stands inside what it names")
                size, word = named.get(event.anchor, (0, None))
            elif isinstance(event, yaml.ScalarEvent):
                named[event.anchor] = size, word = 1, event.value
            if held:
                _count_child(held[-1], word, event.start_mark, f"{source}:{line}")
            if isinstance(event, yaml.CollectionStartEvent):
                held.append(_Open(line, event.anchor, set() if isinstance(event, yaml.MappingStartEvent) else None))
                if len(held) > DEEPEST:
                    raise InputError(f"{source}:{line}: nested more than {DEEPEST} levels deep")
        if held:
            held[-1].size += size


def _count_child(inside: _Open, word: str | None, mark: Any, place: str) -> None:
    """One more node of an open one: a key of a mapping, its value, or an item."""
    import yaml

    inside.children += 1
    if inside.keys is None:
        return
    if inside.children > 2 * MOST_KEYS:
        raise InputError(f"{place}: more than {MOST_KEYS:,} keys, which no file of settings has")
    if inside.children % 2 and word is not None and word != "<<":
        if word in inside.keys:
            raise yaml.MarkedYAMLError(problem=f"{word!r} is given twice", problem_mark=mark)
        inside.keys.add(word)


def _check_values(data: Any, source: str, infinite: bool = False) -> None:
    """Refuse what no setting can be: NaN, infinities, huge numbers, half characters, keys that are not text."""
    problems: list[str] = []
    stack: list[tuple[str, Any]] = [("", data)]
    seen: set[int] = set()
    while stack and len(problems) < 20:
        path, value = stack.pop()
        place = f"{source}: {path}: " if path else f"{source}: "
        if isinstance(value, str):
            if not is_text(value):
                problems.append(f"{place}text with half a character (a lone surrogate)")
        elif isinstance(value, bool) or value is None:
            continue
        elif isinstance(value, (int, float)):
            if not abs(value) <= LARGEST_NUMBER and not (infinite and value in (math.inf, -math.inf)):
                shown = f"a number beyond {LARGEST_NUMBER:g}" if isinstance(value, int) else f"{value}"
                problems.append(f"{place}{shown} is not a number that can be used")
        elif isinstance(value, (Mapping, list)):
            if id(value) in seen:
                continue
            seen.add(id(value))
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, inner in items:
                if isinstance(key, str) and not is_text(key):
                    problems.append(f"{place}a key with half a character (a lone surrogate)")
                    continue
                # nearly all of a plan that carries its traffic, and of no interest where it stands
                if (type(inner) in (int, float) and abs(inner) <= LARGEST_NUMBER) or (
                    type(inner) is str and inner.isascii()
                ):
                    continue
                shown = printable(str(key), 60)
                stack.append((f"{path}[{key}]" if isinstance(value, list) else f"{path}.{shown}".lstrip("."), inner))
    refuse(sorted(problems))


def whole(text: str) -> str:
    """A text with a question mark for every half character (a lone surrogate), as long as it was; the libraries refuse them.

    >>> whole("a\\ud800b")
    'a?b'
    """
    return text if is_text(text) else text.encode("utf-8", "replace").decode("utf-8")


def is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8."""
    if value.isascii():
        return True
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
