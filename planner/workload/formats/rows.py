"""Engines for files of records: CSV with named columns, JSON lines or arrays with paths, both streamed."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.shared.extras import installing
from planner.workload.formats.base import CALLS, ROLES, Layout, ReadOptions, TraceBuilder
from planner.workload.source import PIECE, normal_name

if TYPE_CHECKING:
    from planner.workload.source import Source

csv.field_size_limit(1 << 27)  # prompts are sometimes logged whole


_BLANK = re.compile(r"[ \t\r\n,\ufeff]*")

Unpack = Callable[[Any, int, TraceBuilder], Iterator[Any]]
"""Records of one request inside a record of the file with its line (an export's envelope)."""


def read_table(
    source: Source,
    options: ReadOptions,
    format_name: str,
    layout: Layout,
    unpack: Unpack | None = None,
) -> TraceBuilder:
    """Read the requests of a CSV or JSON file, one a row or record.

    Parameters
    ----------
    source, options, format_name
        What to read and how messages call it.
    layout
        The columns, or dotted paths in a record, what is left out, and whose times they are.
    unpack
        Records inside a JSON record.

    Raises
    ------
    InputError
        No header, a column missing or there twice, a JSON document that is broken.
    """
    builder = TraceBuilder(source.name, format_name, layout, options)
    if source.kind == "csv":
        with source.open_text() as text:
            reader = csv.reader(_without_comments(text), delimiter=source.delimiter)
            header = next((row for row in reader if any(cell.strip() for cell in row)), [])
            where = f"{source.name}:{reader.line_num}"
            read_rows(builder, where, header, _csv_rows(reader, builder, len(header)))
    else:
        _read_records(source, builder, unpack)
    if source.undecodable:
        builder.notes.append(f"{source.undecodable:,} lines hold bytes that are not UTF-8; only names can suffer")
    return builder.checked()


def _csv_rows(reader: Any, builder: TraceBuilder, width: int) -> Iterator[tuple[int, list[str]]]:
    """Rows of the right width with their lines; the others are counted."""
    while True:
        try:
            for row in reader:
                if len(row) == width:
                    yield reader.line_num, row
                elif len(row) > 1 or (row and row[0].strip()):
                    builder.bad(reader.line_num, f"{len(row)} columns instead of {width}")
            return
        except csv.Error as error:
            builder.bad(reader.line_num, str(error))


def read_rows(
    builder: TraceBuilder,
    where: str,
    header: Sequence[str],
    rows: Iterator[tuple[int, Sequence[Any]]],
    there: Sequence[str] = (),
) -> None:
    """Add rows of equal columns to `builder`; `where` names the header in messages, `there` all columns where some are not read.

    Raises
    ------
    InputError
        A column that is missing or there twice.
    """
    place, options = _finder(where, header), builder.options
    among = ", ".join(h.strip() for h in there or header)
    at = {role: k for role in ROLES if (k := place(*builder.names(role))) is not None}
    for role in ("input", "total" if "total" in at else "output", *options.columns):
        if role not in at:
            wanted = " or ".join(builder.names(role)[:3])
            raise InputError(f"{where}: no column {wanted!r} ({role}) among {among}", f"Name it: --map {role}=COLUMN.")
    if missing := [name for name in options.where if place(name) is None]:
        raise InputError(f"{where}: no column {missing[0]!r} (--where) among {among}")
    if "time" in at:
        builder.clock.named(header[at["time"]])

    def cell(row: Sequence[Any], name: str) -> Any:
        k = place(name)
        value = None if k is None else row[k]
        return value.strip() if isinstance(value, str) else value

    builder.timed, of_row = "time" in at, itemgetter(*at.values())
    _collect(builder, rows, lambda row: dict(zip(at, of_row(row), strict=False)), cell)


def _collect(
    builder: TraceBuilder,
    records: Iterator[tuple[int, Any]],
    found_in: Callable[[Any], dict[str, Any]],
    value: Callable[[Any, str], Any],
) -> None:
    """Add the requests of records, given what finds all roles in one, and the value at a name."""
    asked = "drop" in builder.layout or bool(builder.options.where)
    for line, record in records:
        if asked and _left_out(builder, partial(value, record)):
            continue
        said = found_in(record)
        if "total" in said and said.get("output") is None:
            said["output"] = _difference(said["total"], said["input"])
        builder.add(line, said)


def _left_out(builder: TraceBuilder, value: Callable[[str], Any]) -> bool:
    """Whether a record is none of those asked for, given a reader of its fields (``None`` where absent); it is counted."""
    why: str | None
    for name, wanted in builder.options.where.items():
        found = value(name)
        if str("" if found is None else found).strip() != wanted:
            why = f"not {name}={wanted}"
            break
    else:
        why = _why(builder.layout, value)
    builder.dropped.update(() if why is None else (why,))
    return why is not None


def _why(layout: Layout, value: Callable[[str], Any]) -> str | None:
    """The first rule of a format that leaves a record out, as words; ``None`` where none does."""
    for rule in layout.get("drop", ()):
        if rule.get("uncounted") and any(value(name) is not None for name in (*layout["input"], *layout["output"])):
            continue
        found = value(rule["field"]) if "field" in rule else True
        text = str(found or "")
        if "among" in rule:
            out = text.lower() in rule["among"]
        elif "beyond" in rule:
            out = bool(text) and text.lower() not in rule["beyond"]
        elif "with" in rule:
            out = any(word in text for word in rule["with"])
        elif "without" in rule:
            out = bool(text) and not any(word in text for word in rule["without"])
        else:
            out = bool(found)
        if out:
            return str(rule["why"]).format(text.lower() if "beyond" in rule else text)
    return None


def read_parquet(source: Source, options: ReadOptions, layout: Layout) -> TraceBuilder:
    """Parquet with one request per row (needs the extra ``parquet``); columns as in the generic CSV, in groups of rows."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise InputError(f"{source.name}: reading Parquet needs pyarrow", installing("parquet")) from error
    try:
        file = parquet.ParquetFile(source.path)
    except Exception as error:
        raise InputError(f"{source.name}: not a readable Parquet file: {error}") from error
    roles = ("input", "output", "time", "category", "images")
    sides = (*(layout[role] for role in roles), options.columns.values(), options.where)
    known = {normal_name(name) for side in sides for name in side}
    # prompts and answers are often stored beside their lengths: only the columns that may be needed are read
    there = [str(c) for c in file.schema_arrow.names]
    header = [c for c in there if normal_name(c) in known]
    builder = TraceBuilder(source.name, "parquet", layout, options)
    read_rows(builder, source.name, header, _batches(source, file, header), there)
    return builder


def _batches(source: Source, file: Any, names: list[str]) -> Iterator[tuple[int, Sequence[Any]]]:
    """Rows with their numbers, a batch of columns at a time."""
    row = 0
    for batch in file.iter_batches(columns=names):
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            row += 1
            yield row, values
        if source.progress is not None:
            source.progress(row, file.metadata.num_rows)


def _difference(total: Any, inputs: Any) -> Any:
    try:
        return float(total) - float(inputs)
    except (TypeError, ValueError):
        return total


def _without_comments(lines: Iterator[str]) -> Iterator[str]:
    """Leave out ``#`` lines at the top (their numbers are kept by handing on an empty line)."""
    top = True
    for line in lines:
        if top:
            if line.startswith("#"):
                yield "\n"
                continue
            top = not line.strip()
        yield line


def _finder(where: str, header: Sequence[str]) -> Callable[..., int | None]:
    """Place of the first of some columns that is there, by their names, however they are spelt."""
    folded: dict[str, list[int]] = {}
    for k, cell in enumerate(header):
        folded.setdefault(normal_name(cell), []).append(k)

    def place(*names: str) -> int | None:
        for name in names:
            found = folded.get(normal_name(name), [])
            if len(found) > 1:
                raise InputError(f"{where}: column {name!r} is there {len(found)} times", "Keep one of them.")
            if found:
                return found[0]
        return None

    return place


def dig(record: Any, path: str) -> Any:
    """Value at a dotted path of nested objects; ``None`` when absent. A key that itself holds dots wins.

    >>> dig({"usage": {"prompt_tokens": 5}}, "usage.prompt_tokens"), dig({"a.b": 1}, "a.b")
    (5, 1)
    """
    if not isinstance(record, dict):
        return None
    if path in record:
        return record[path]
    head, dot, rest = path.partition(".")
    while dot:
        if head in record:
            found = dig(record[head], rest)
            if found is not None:
                return found
        more, dot, rest = rest.partition(".")
        head = f"{head}.{more}"
    return None


def iterate_json(source: Source, builder: TraceBuilder) -> Iterator[tuple[int, Any]]:
    """Records of a JSON file with their lines, one at a time: JSON lines, an array, or objects one after another.

    Lines of a JSON-lines file that do not parse are counted as unreadable; a broken document is an error.
    """
    if source.kind == "jsonl":
        with source.open_text() as lines:
            for number, line in enumerate(lines, 1):
                if text := line.strip(" \t\r\n\ufeff\x1e"):
                    try:
                        record = json.loads(text)
                    except (ValueError, RecursionError) as error:
                        builder.bad(number, f"not valid JSON: {getattr(error, 'msg', 'nested too deeply')}")
                        continue
                    yield number, record
    else:
        yield from _iterate_document(source)


def _iterate_document(source: Source) -> Iterator[tuple[int, Any]]:
    """Elements of one array, or one or more objects, with the lines they begin on, decoded in a growing window of the text."""
    decoder, window, at, line = json.JSONDecoder(), "", 0, 1
    in_array: bool | None = None
    with source.open_text(pieces=True) as pieces:
        ended = False
        while True:
            blank = _BLANK.match(window, at)
            assert blank is not None
            line, at, wrong = line + blank[0].count("\n"), blank.end(), None
            mark = window[at : at + 1]
            if mark and in_array is None:
                in_array = mark == "["
                at += in_array
                continue
            if mark and not (in_array and mark == "]"):
                try:
                    record, end = decoder.raw_decode(window, at)
                    # a number or word may go on in the next part
                    if end < len(window) or ended:
                        yield line, record
                        line, at = line + window.count("\n", at, end), end
                        continue
                except (ValueError, RecursionError) as error:
                    wrong = error
            if (mark == "]" and in_array) or (ended and not in_array and wrong is None):
                return
            if ended:
                line += window.count("\n", at, getattr(wrong, "pos", at))
                told = "the JSON array does not end: a truncated file?"
                if wrong is not None:
                    told = f"not valid JSON: {getattr(wrong, 'msg', 'nested too deeply')}"
                raise InputError(f"{source.name}:{line}: {told}") from wrong
            rest = window[at:]
            # doubling keeps the work of decoding a long element again linear
            more = list(islice(pieces, 1 + len(rest) // PIECE))
            window, at, ended = "".join([rest, *more]), 0, not more


def _read_records(source: Source, builder: TraceBuilder, unpack: Unpack | None) -> None:
    """Add the requests of a JSON file to `builder`."""

    def records() -> Iterator[tuple[int, Any]]:
        for line, outer in iterate_json(source, builder):
            for record in unpack(outer, line, builder) if unpack is not None else (outer,):
                if isinstance(record, dict):
                    yield line, record
                else:
                    builder.bad(line, "not a JSON object")

    find: dict[str, Callable[[Any], Any]] = {}
    for role in ROLES:
        if paths := builder.names(role):
            told = builder.clock.named if role == "time" else None
            find[role] = partial(_at, paths) if role in CALLS else _finding(paths, told)
    _collect(builder, records(), lambda record: {role: of(record) for role, of in find.items()}, dig)


def _finding(paths: Sequence[str], told: Callable[[str], None] | None) -> Callable[[Any], Any]:
    """A reader of what is at the first of some paths, tried first where the record before had it; `told` is told where."""
    key = ""

    def find(record: Any) -> Any:
        nonlocal key
        value = record.get(key)
        if value is None:
            key, value = found_at(record, paths)
            if key and told is not None:
                told(key)
        return value

    return find


def _at(paths: Sequence[str], record: Any) -> Any:
    return found_at(record, paths)[1]


def quoted(text: str, mark: str) -> str:
    """A name or a text as SQL has it, between marks."""
    return mark + text.replace(mark, mark * 2) + mark


def found_at(record: Any, paths: Sequence[str]) -> tuple[str, Any]:
    """The first path that leads to something, and what; ``("", None)`` when none does."""
    for path in paths:
        found = dig(record, path)
        if found is not None:
            return path, found
    return "", None
