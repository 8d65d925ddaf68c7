"""Engines for files of records: CSV with named columns, JSON lines or arrays with paths, both streamed."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.shared.extras import installing
from planner.workload.formats.base import CALLS, Clock, Layout, ReadOptions, TraceBuilder
from planner.workload.source import normal_name

if TYPE_CHECKING:
    from planner.workload.source import Source

csv.field_size_limit(1 << 27)  # prompts are sometimes logged whole


_BLANK = re.compile(r"[ \t\r\n,\ufeff]*")
_PATIENCE = 1000  # records without a time after which a file is taken to have none

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
    builder = TraceBuilder(source.name, format_name, Clock(options.time_unit or layout.get("time_unit")), options)
    load_generator = layout.get("load_generator", "")
    if source.head.kind == "csv":
        with source.open_text() as text:
            reader = csv.reader(_without_comments(text), delimiter=source.head.delimiter)
            header = next((row for row in reader if any(cell.strip() for cell in row)), [])
            where = f"{source.name}:{reader.line_num}"
            read_rows(builder, where, header, _csv_rows(reader, builder, len(header)), layout)
    else:
        _read_records(source, builder, layout, unpack)
    if source.undecodable:
        builder.notes.append(f"{source.undecodable:,} lines hold bytes that are not UTF-8; only names can suffer")
    return builder.without_users(load_generator) if load_generator else builder


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
    rows: Iterator[tuple[int, list[Any]]],
    layout: Layout,
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

    def index(role: str, needed: bool = False) -> int | None:
        names = options.names(layout, role)
        found = next((k for name in names if (k := place(name)) is not None), None)
        if found is None and (needed or role in options.columns):
            wanted = " or ".join(names[:3])
            raise InputError(f"{where}: no column {wanted!r} ({role}) among {among}", f"Name it: --map {role}=COLUMN.")
        return found

    at_input, at_total = index("input", True) or 0, index("total")
    at_output, at_time, at_category = index("output", at_total is None), index("time"), index("category")
    calls = {role: at for role in CALLS if (at := index(role)) is not None}
    if at_time is not None and builder.clock.unit is None:
        builder.clock.unit = unit_of(header[at_time])
    row: list[Any] = []

    def cell(name: str) -> Any:
        at = place(name)
        value = None if at is None else row[at]
        return value.strip() if isinstance(value, str) else value

    if missing := [name for name in options.where if place(name) is None]:
        raise InputError(f"{where}: no column {missing[0]!r} (--where) among {among}")
    asked = "drop" in layout or bool(options.where)
    for line, row in rows:
        if asked and _left_out(builder, layout, cell):
            continue
        if at_time is not None and row[at_time] is None:
            builder.bad(line, "no time")
            continue
        output = row[at_output] if at_output is not None else _difference(row[at_total or 0], row[at_input])
        category = None if at_category is None else str(row[at_category] or "").strip()
        call = {role: row[at] for role, at in calls.items()} if calls else None
        builder.add(line, row[at_input], output, None if at_time is None else row[at_time], category, call)


def _left_out(builder: TraceBuilder, layout: Layout, value: Callable[[str], Any]) -> bool:
    """Whether a record is none of those asked for, given a reader of its fields (``None`` where absent); it is counted."""
    why: str | None
    for name, wanted in builder.options.where.items():
        found = value(name)
        if str("" if found is None else found).strip() != wanted:
            why = f"not {name}={wanted}"
            break
    else:
        why = _why(layout, value)
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
    builder = TraceBuilder(source.name, "parquet", Clock(options.time_unit), options)
    read_rows(builder, source.name, header, _batches(source, file, header), layout, there)
    return builder


def _batches(source: Source, file: Any, names: list[str]) -> Iterator[tuple[int, list[Any]]]:
    """Rows with their numbers, a batch of columns at a time."""
    row = 0
    for batch in file.iter_batches(batch_size=65_536, columns=names):
        for values in zip(*([_plain(v) for v in column.to_pylist()] for column in batch.columns), strict=True):
            row += 1
            yield row, list(values)
        if source.progress is not None:
            source.progress(row, file.metadata.num_rows)


def _plain(value: Any) -> Any:
    """Times as text, which the clock reads; the rest as it is."""
    return value.isoformat(sep=" ", timespec="microseconds") if hasattr(value, "isoformat") else value


def unit_of(column: str) -> str | None:
    """Unit that the name of a time column ends with.

    >>> unit_of("arrival_ms"), unit_of("timestamp")
    ('ms', None)
    """
    _, underscore, unit = column.strip().lower().rpartition("_")
    return unit if underscore and unit in ("s", "ms", "us", "ns") else None


def _difference(total: str, inputs: str) -> float | str:
    try:
        return float(total) - float(inputs)
    except ValueError:
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


def _finder(where: str, header: Sequence[str]) -> Callable[[str], int | None]:
    """Place of a column by its name, however it is spelt."""
    folded: dict[str, list[int]] = {}
    for k, cell in enumerate(header):
        folded.setdefault(normal_name(cell), []).append(k)

    def place(name: str) -> int | None:
        found = folded.get(normal_name(name), [])
        if len(found) > 1:
            raise InputError(f"{where}: column {name!r} is there {len(found)} times", "Keep one of them.")
        return found[0] if found else None

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
    head = source.head
    if head.kind == "jsonl":
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


class _Window:
    """A growing window of a text, in which JSON elements are decoded one after the other."""

    def __init__(self, name: str, chunks: Iterator[str]) -> None:
        self.name, self.chunks = name, chunks
        self.decoder = json.JSONDecoder()
        self.buffer, self.position, self.line, self.ended = "", 0, 1, False

    def more(self) -> bool:
        """Read on; whether there was anything."""
        parts = [self.buffer[self.position :]]
        size = 0
        # doubling keeps the work of decoding a long element again linear
        target = max(1 << 16, len(parts[0]))
        for text in self.chunks:
            parts.append(text)
            size += len(text)
            if size >= target:
                break
        else:
            self.ended = True
        self.buffer, self.position = "".join(parts), 0
        return size > 0

    def mark(self) -> str:
        """The first character that is neither blank nor a comma; empty at the end of the text."""
        while True:
            blank = _BLANK.match(self.buffer, self.position)
            assert blank is not None
            self.line += blank[0].count("\n")
            self.position = blank.end()
            if self.position < len(self.buffer):
                return self.buffer[self.position]
            if not self.more():
                return ""

    def element(self) -> Any:
        """The element that begins here."""

        while True:
            try:
                record, end = self.decoder.raw_decode(self.buffer, self.position)
                if end == len(self.buffer) and not self.ended and self.more():
                    continue  # a number or word may go on in the next part
                break
            except (ValueError, RecursionError) as error:
                if self.ended or not self.more():
                    at = self.line + self.buffer.count("\n", self.position, getattr(error, "pos", self.position))
                    message = getattr(error, "msg", "nested too deeply")
                    raise InputError(f"{self.name}:{at}: not valid JSON: {message}") from error
        self.line += self.buffer.count("\n", self.position, end)
        self.position = end
        return record


def _iterate_document(source: Source) -> Iterator[tuple[int, Any]]:
    """Elements of one array, or one or more objects, with the lines they begin on."""
    with source.open_text(pieces=True) as chunks:
        window = _Window(source.name, chunks)
        in_array = window.mark() == "["
        window.position += in_array
        while (mark := window.mark()) and not (in_array and mark == "]"):
            yield window.line, window.element()
        if in_array and not mark:
            raise InputError(f"{source.name}:{window.line}: the JSON array does not end: a truncated file?")


def _read_records(source: Source, builder: TraceBuilder, layout: Layout, unpack: Unpack | None) -> None:
    """Add the requests of a JSON file to `builder`; where users made the times none may lack one once others had one."""
    options, all_timed = builder.options, "load_generator" not in layout
    inputs, outputs, times, categories = (
        options.names(layout, role) for role in ("input", "output", "time", "category")
    )
    of_calls = {role: names for role in CALLS if (names := options.names(layout, role))}
    timed, look_for_time, untimed, asked = False, bool(times), 0, "drop" in layout or bool(options.where)
    input_key = output_key = time_key = ""
    for line, outer in iterate_json(source, builder):
        for record in unpack(outer, line, builder) if unpack is not None else (outer,):
            if not isinstance(record, dict):
                builder.bad(line, "not a JSON object")
                continue
            if asked and _left_out(builder, layout, partial(dig, record)):
                continue
            # the path that the first record had is tried first
            sent, got = record.get(input_key), record.get(output_key)
            if sent is None or got is None:
                input_key, sent = found_at(record, inputs)
                output_key, got = found_at(record, outputs)
                if sent is None or got is None:
                    builder.bad(line, f"no {' or '.join((inputs if sent is None else outputs)[:3])}")
                    continue
            time = record.get(time_key) if look_for_time else None
            if time is None and look_for_time:
                time_key, time = found_at(record, times)
                if time is None and timed and all_timed:
                    builder.bad(line, f"no {' or '.join(times[:3])}")
                    continue
                if time is None:
                    untimed += 1
                    look_for_time = timed or untimed < _PATIENCE
                elif not timed:
                    timed = True
                    if builder.clock.unit is None:
                        builder.clock.unit = unit_of(time_key)
            category = None
            if categories:
                _, category = found_at(record, categories)
                category = "" if category is None else str(category).strip()
            call = {role: found_at(record, known)[1] for role, known in of_calls.items()} if of_calls else None
            builder.add(line, sent, got, time, category, call)
    if timed and untimed and all_timed:
        builder.notes.append(f"the first {untimed:,} records have no time; the rate is that of the others")


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
