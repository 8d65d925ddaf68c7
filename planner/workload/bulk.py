"""Files too large to read row by row: DuckDB reads their columns on all cores, to the same requests in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.shared.cores import cores
from planner.workload.formats.base import (
    CALLS,
    MAX_TOKENS,
    MOST_CATEGORIES,
    Clock,
    ReadOptions,
    TraceBuilder,
    packed,
)
from planner.workload.formats.rows import found_at, quoted
from planner.workload.source import normal_name
from planner.workload.trace import MOST_REQUESTS

if TYPE_CHECKING:
    from planner.workload.formats.base import Format
    from planner.workload.source import Source

LARGE_BYTES = 32 << 20
"""Files from this size on are read by columns where DuckDB is installed [bytes]."""


def read_bulk(source: Source, form: Format, options: ReadOptions) -> TraceBuilder | None:
    """The requests of a table, read by columns.

    Parameters
    ----------
    source
        A CSV, JSON lines or Parquet file.
    form
        Its format.
    options
        What is said about the file.

    Returns
    -------
    TraceBuilder or None
        What the format's own reader collects, to the last count; ``None`` where only that reader can do it or say what is
        wrong: DuckDB is not installed, the format is no plain table, or a row cannot be read.
    """
    try:
        import duckdb
    except ImportError:
        return None
    plain = {
        "csv": not source.text.lstrip("\ufeff").startswith("#"),
        "jsonl": isinstance(source.record, dict),
        "parquet": True,
    }
    if form.layout is None or not plain.get(source.kind, False):
        return None
    with duckdb.connect(config={"threads": cores(), "memory_limit": "300MB"}) as engine:
        try:
            engine.execute("SET TimeZone = 'UTC'")
            return _collect(engine, _Table(engine, source), source, form, options)
        except duckdb.Error:
            # the row reader says what is wrong with it, and where
            return None


_Field = tuple[str, str, str]
"""Expression, type and name of a column."""


class _Table:
    """A file as DuckDB sees it: where it is read from, and an SQL expression for each of its fields."""

    def __init__(self, engine: Any, source: Source) -> None:
        self._scan = quoted(str(source.path), "'")
        self.first = source.record if source.kind == "jsonl" else None
        self._read: dict[str, str] = {}  # of JSON lines: columns of the relation, with the type they are read as
        described = []
        if self.first is None:
            options = (
                f", header=true, all_varchar=true, delim={quoted(source.delimiter, chr(39))}, quote='\"', escape='\"', "
                "null_padding=false, strict_mode=true, sample_size=1"
            )
            self._scan = f"read_{source.kind}({self._scan}{options if source.kind == 'csv' else ''})"
            described = engine.execute(f"DESCRIBE SELECT * FROM {self._scan}").fetchall()
        self._columns = {normal_name(row[0]): (row[0], row[1]) for row in described}
        self.twice = len(self._columns) != len(described)

    @property
    def relation(self) -> str:
        """What to select from, with all fields asked for until now."""
        if self.first is None:
            return self._scan
        types = ", ".join(f"{quoted(name, chr(39))}: '{kind}'" for name, kind in self._read.items())
        return f"read_ndjson({self._scan}, columns={{{types}}})"

    def field(self, candidates: Sequence[str], *, later: bool = False) -> _Field | None:
        """Expression, type and name of the first of these fields in a file; of JSON lines in its first record, or `later`."""
        if self.first is not None:
            path, _ = found_at(self.first, tuple(candidates))
            if path:
                return self._asked_for(path), "VARCHAR", path
            found = [self._asked_for(c) for c in candidates] if later else []
            return (f"coalesce({', '.join(found)}, NULL)", "VARCHAR", "") if found else None
        for name in candidates:
            if (column := self._columns.get(normal_name(name))) is not None:
                return quoted(column[0], '"'), column[1], column[0]
        return None

    def as_number(self, column: _Field) -> _Field:
        """A field of JSON lines read as a number at once, where the first record has one: as text first takes twice as long."""
        expression, _, path = column
        value = None if self.first is None else self.first.get(path)
        # whole numbers are read to 53 bits, and booleans become 0 and 1: those are left to who can tell them apart
        if not isinstance(value, (int, float)) or value in (0, 1) or not abs(value) < 1 << 53:
            return column
        self._read[path] = "DOUBLE"
        return f"CASE WHEN {expression} NOT IN (0, 1) THEN {expression} END", "DOUBLE", path

    def _asked_for(self, path: str) -> str:
        """A field of JSON lines, at a path inside a column of the relation."""
        top, *below = [path] if path in (self.first or {}) else path.split(".")
        self._read.setdefault(top, "VARCHAR")
        name = quoted(top, '"')
        steps = quoted("$" + "".join(f'."{part}"' for part in below), "'")
        return f"json_extract_string({name}, {steps})" if below else name


def _collect(engine: Any, table: _Table, source: Source, form: Format, options: ReadOptions) -> TraceBuilder | None:
    """All requests of a table; ``None`` where a row cannot be read."""
    own, builder = options.columns, TraceBuilder(source.name, form.name, form.layout or {}, options)

    def of(role: str, later: bool = False) -> _Field | None:
        return table.field(builder.names(role), later=later)

    sent, got, total = of("input"), of("output"), of("total")
    time, label = of("time", True), of("category", True)
    if any(of(role) is not None for role in CALLS):
        return None  # requests that come back are more than a table
    wanted = [(name, table.field((name,), later=True), value) for name, value in options.where.items()]
    missing = any(role in own and found is None for role, found in (("time", time), ("category", label)))
    if (
        sent is None
        or (got is None and total is None)
        or table.twice
        or missing
        or any(f is None for _, f, _ in wanted)
    ):
        return None
    if time is not None and time not in (label, *(found for _, found, _ in wanted)):
        time = table.as_number(time)
    relation = table.relation + _where(engine, table, wanted, builder)
    columns = [_count(sent), _count(got if got is not None else _difference(total, sent))]  # type: ignore[arg-type]
    if time is not None:
        builder.clock.named(time[2])
        first = engine.execute(f"SELECT {time[0]} FROM {relation} LIMIT 1").fetchone()
        seconds = None if first is None else _seconds(builder.clock, time[0], time[1], first[0])
        if seconds is None:
            return None
        columns.append(seconds)
    names: list[str] = []
    if label is not None:
        names, arrays = _with_labels(engine, columns, label, relation)
    else:
        arrays = _arrays(engine, columns, relation)
    if not arrays:
        return None
    some = int(np.count_nonzero(arrays[0] | arrays[1]))
    if some < arrays[0].size:
        builder.dropped["no tokens at all"] += arrays[0].size - some
        kept = (arrays[0] | arrays[1]) > 0
        arrays = [a[kept] for a in arrays]
    if time is not None and arrays[2].size and not (arrays[2].min() >= -1e11 and arrays[2].max() <= 1e11):
        return None
    if label is not None:
        builder.category = packed("i", arrays.pop())
        builder.categories = {name: k for k, name in enumerate(names)}
    if time is not None:
        builder.times = packed("d", arrays.pop())
    # half the room of the numbers that readers of rows collect
    builder.outputs = packed("i", arrays.pop())
    builder.inputs = packed("i", arrays.pop())
    return builder


def _where(engine: Any, table: _Table, wanted: Sequence[tuple[str, _Field | None, str]], builder: TraceBuilder) -> str:
    """The clause that keeps the rows asked for; how many each condition drops is counted."""
    keep: list[str] = []
    for name, found, value in wanted:
        assert found is not None
        here = f"trim(coalesce(CAST({found[0]} AS VARCHAR), '')) = {quoted(value, chr(39))}"
        others = engine.execute(
            f"SELECT count(*) FROM {table.relation} WHERE NOT ({here})" + "".join(f" AND {k}" for k in keep)
        ).fetchone()[0]
        if others:
            builder.dropped[f"not {name}={value}"] += others
        keep.append(here)
    return f" WHERE {' AND '.join(keep)}" if keep else ""


def _with_labels(
    engine: Any, columns: Sequence[str], label: _Field, relation: str
) -> tuple[list[str], list[np.ndarray]]:
    """Categories, and the columns with the number of each row's category behind them; none where there are too many."""
    names: list[str] = []
    arrays: list[np.ndarray] = []
    text = f"trim(coalesce(CAST({label[0]} AS VARCHAR), ''))"
    rows = f"SELECT {text} AS label FROM {relation} LIMIT"
    # reading all of a file only for its labels costs as much as its lengths: those of its beginning are most often all
    for limit in (MOST_REQUESTS, "ALL"):
        found = engine.execute(f"SELECT DISTINCT label FROM ({rows} {limit}) LIMIT {MOST_CATEGORIES + 1}").fetchall()
        if len(found) > MOST_CATEGORIES:
            return [], []
        names = [r[0] for r in found]
        # of each row the place of its label among these, -1 where it is none of them
        among = ", ".join(quoted(name, "'") for name in names)
        place = f"CAST(coalesce(list_position([{among}], {text}), 0) - 1 AS INTEGER)" if names else "-1"
        arrays = _arrays(engine, [*columns, place], relation)
        if not arrays or not arrays[-1].size or arrays[-1].min() >= 0:
            break
    return names, arrays


def _arrays(engine: Any, columns: Sequence[str], relation: str) -> list[np.ndarray]:
    """The columns of a relation; none where a value is missing."""
    query = ", ".join(f"{expression} AS c{k}" for k, expression in enumerate(columns))
    found = engine.execute(f"SELECT {query} FROM {relation}").fetchnumpy()
    arrays = [found.pop(f"c{k}") for k in range(len(columns))]
    # millions of rows: nothing is held twice for longer than a column takes to copy
    return [] if any(np.ma.is_masked(a) for a in arrays) else [np.ma.getdata(a) for a in arrays]


def _count(column: _Field) -> str:
    """A whole number of tokens, NULL where it is none."""
    number = _number(column)
    return f"CASE WHEN {number} BETWEEN 0 AND {MAX_TOKENS} AND {number} = floor({number}) THEN CAST({number} AS INTEGER) END"


def _number(column: _Field) -> str:
    return f"try_cast({column[0]} AS DOUBLE)"


def _difference(total: _Field, part: _Field) -> _Field:
    """The rest of a total as a column."""
    return f"({_number(total)} - {_number(part)})", "DOUBLE", total[2]


def _seconds(clock: Clock, expression: str, kind: str, first: Any) -> str | None:
    """A time in seconds as :class:`Clock` reads it, NULL where it is none; ``None`` where only that can read it."""
    moment, shift = "", ""
    if kind.startswith("TIMESTAMP"):
        moment, clock.absolute = f"{expression} AT TIME ZONE 'UTC'" if "ZONE" in kind else expression, True
    else:
        try:
            clock.read(first)
        except ValueError:
            return None
        if isinstance(first, str) and clock.scale is None:
            # of dates as DuckDB knows them those that the clock reads too
            text = f"trim({expression})"
            moment = f"CASE WHEN {text} LIKE '____-__-_____:__%' THEN {text} END"
            # nanoseconds are read of the local time alone, its zone with microseconds
            zoned, local = (f"epoch_us(try_cast({moment} AS {kind}))" for kind in ("TIMESTAMPTZ", "TIMESTAMP"))
            shift = f" + ({zoned} - {local}) // 1000000"
    if moment:
        whole = f"epoch_ns(try_cast({moment} AS TIMESTAMP_NS))"
        return f"({whole} // 60000000000) * 60::DOUBLE + ({whole} % 60000000000) / 1e9::DOUBLE{shift}"
    scale = clock.scale
    if scale is None:
        return None
    if scale == 1e-9 and clock.absolute:
        whole = f"try_cast({expression} AS BIGINT)"
        return f"({whole} // 1000000000) + ({whole} % 1000000000) * 1e-9::DOUBLE"
    return f"try_cast({expression} AS DOUBLE) * {scale!r}::DOUBLE"
