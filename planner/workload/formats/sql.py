"""The query instead of the data: SQL that sums up a log where it lies, and what its result is called.

Its result has one row per cell of (category, input, output) and one per second; both keep their sums, so that means are
exact, and every cell its longest request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError, unknown
from planner.shared.documents import rows_by_column
from planner.units import MOST, SECONDS, TIME_UNITS
from planner.workload.arrivals import POISSON_ASSUMED, Arrivals, arrivals_from_counts
from planner.workload.formats.base import MAX_TOKENS, Format, ImportReport, ReadOptions
from planner.workload.formats.metadata import Metadata
from planner.workload.formats.rows import quoted
from planner.workload.formats.totals import law, one_category
from planner.workload.source import normal_name
from planner.workload.trace import Intervals
from planner.workload.workload import Workload

if TYPE_CHECKING:
    from planner.workload.source import Source

RESULT = ("part", "second_utc", "category", "requests", "input_sum", "output_sum", "longest_input", "longest_total")
"""Columns of the result. ``part`` is ``law`` (a cell of lengths) or ``second`` (what came in one)."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an engine spells what the query needs.

    Parameters
    ----------
    name
        What ``--dialect`` calls it.
    epoch
        Whole seconds since 1970 of a time ``{0}``.
    integer, text
        Its names of 64-bit integers and text.
    mark
        What goes around names that are not plain.
    escapes
        Whether a backslash escapes in its texts.
    """

    name: str
    epoch: str
    integer: str = "BIGINT"
    text: str = "VARCHAR"
    mark: str = '"'
    escapes: bool = False


DIALECTS: Mapping[str, Dialect] = {
    d.name: d
    for d in (
        Dialect("bigquery", "UNIX_SECONDS(CAST({0} AS TIMESTAMP))", "INT64", "STRING", "`", True),
        Dialect("snowflake", "DATE_PART(EPOCH_SECOND, {0})", escapes=True),
        Dialect("athena", "CAST(FLOOR(TO_UNIXTIME({0})) AS BIGINT)"),
        Dialect("spark", "UNIX_TIMESTAMP({0})", "BIGINT", "STRING", "`", True),
        Dialect("clickhouse", "toInt64(toUnixTimestamp({0}))", "Int64", "String", "`", True),
        Dialect("duckdb", "CAST(FLOOR(EPOCH({0})) AS BIGINT)"),
        Dialect("postgres", "CAST(FLOOR(EXTRACT(EPOCH FROM {0})) AS BIGINT)", "BIGINT", "TEXT"),
    )
}
"""The dialects by name."""


def find_dialect(name: str) -> Dialect:
    """The dialect called `name`, or an InputError."""
    if name not in DIALECTS:
        raise unknown(f"unknown dialect {name!r}", name, DIALECTS)
    return DIALECTS[name]


def query(
    dialect: Dialect,
    table: str,
    *,
    input_tokens: str,
    output_tokens: str,
    time: str | None = None,
    time_unit: str | None = None,
    category: str | None = None,
    where: Mapping[str, str] | None = None,
    resolution: float = 0.03,
) -> str:
    """The SQL.

    Parameters
    ----------
    dialect
        Of the engine it is for.
    table
        Where the requests are, one per row: a name, with dots between its parts.
    input_tokens, output_tokens, time, category
        Names of the columns; without `time` the result has no rate.
    time_unit
        ``s``, ``ms``, ``us`` or ``ns`` where times are numbers; ``None`` = a time of the engine's own.
    where
        Values that columns must have.
    resolution
        Width of a cell relative to its length [1], within (0, 1).

    Returns
    -------
    str
        One statement without a semicolon.

    Raises
    ------
    InputError
        A resolution out of its range, an unknown unit, an empty name.

    >>> print(query(DIALECTS["duckdb"], "logs", input_tokens="i", output_tokens="o").splitlines()[0])
    WITH each AS (
    """
    if not 0.0 < resolution < 1.0:
        raise InputError(f"--resolution: must be within 0 and 100%, got {resolution:g}")
    if time_unit is not None and time_unit not in TIME_UNITS:
        raise InputError(f"--time-unit: {time_unit!r} is none of {', '.join(TIME_UNITS)}")
    sent, got = (_name(dialect, c) for c in (input_tokens, output_tokens))
    second = "0"
    if time is not None:
        moment = _name(dialect, time)
        second = dialect.epoch.format(moment)
        if time_unit is not None:
            second = f"CAST(FLOOR({moment} / {round(1.0 / SECONDS[time_unit])}) AS {dialect.integer})"
    label = "''" if category is None else f"COALESCE(CAST({_name(dialect, category)} AS {dialect.text}), '')"
    kept = [f"{sent} >= 0", f"{got} >= 0", f"{sent} + {got} > 0"]
    kept += [f"CAST({_name(dialect, c)} AS {dialect.text}) = {_literal(dialect, v)}" for c, v in (where or {}).items()]
    if time is not None:
        kept.append(f"{_name(dialect, time)} IS NOT NULL")
    step = repr(round(math.log1p(resolution), 9))

    def cell(column: str) -> str:
        # 0 has a cell of its own
        return f"CASE WHEN {column} < 1 THEN -1 ELSE CAST(FLOOR(LN({column}) / {step}) AS {dialect.integer}) END"

    names = RESULT
    law = ("'law'", "0", "k", "COUNT(*)", "SUM(i)", "SUM(o)", "MAX(i)", "MAX(i + o)")
    lines = [
        "WITH each AS (",
        f"  SELECT {sent} AS i, {got} AS o, {label} AS k, {second} AS s",
        f"  FROM {'.'.join(_name(dialect, part) for part in table.split('.'))}",
        f"  WHERE {' AND '.join(kept)}",
        "), cells AS (",
        f"  SELECT i, o, k, {cell('i')} AS ci,",
        f"    {cell('o')} AS co",
        "  FROM each",
        ")",
        "SELECT " + ", ".join(f"{what} AS {name}" for what, name in zip(law, names, strict=True)),
        "FROM cells GROUP BY k, ci, co",
    ]
    if time is not None:
        lines += ["UNION ALL", "SELECT 'second', s, '', COUNT(*), SUM(i), SUM(o), 0, 0", "FROM each GROUP BY s"]
    return "\n".join(lines) + "\n"


def _name(dialect: Dialect, name: str) -> str:
    """A name of the table's; plain ones stay bare, for some engines change the case of those."""
    if not name or "\x00" in name:
        raise InputError("a table or column has an empty name")
    return name if _PLAIN.fullmatch(name) else quoted(name, dialect.mark)


def _literal(dialect: Dialect, value: str) -> str:
    """A text value."""
    if dialect.escapes:
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return quoted(value, "'")


_NAMES = tuple(normal_name(name) for name in RESULT)


def _recognise(source: Source) -> bool:
    """All columns of the result, in any order."""
    return set(_NAMES) <= set(source.columns)


_Rows = list[tuple[float, ...]]


def _rows(source: Source) -> tuple[_Rows, list[str], _Rows]:
    """Cells of lengths, their labels, and seconds; or all problems at once."""
    found: dict[str, _Rows] = {"law": [], "second": []}
    labels: list[str] = []
    problems: list[str] = []
    with source.open_text() as text:
        reader = rows_by_column(text, source.name, source.delimiter)
        reader.fieldnames = [normal_name(name) for name in reader.fieldnames or ()]
        for row in reader:
            where = f"{source.name}:{reader.line_num}"
            try:
                part, second, label, *counts = (row[name].strip() for name in _NAMES)
                numbers = tuple(float(cell or "0") for cell in (second, *counts))
            except (AttributeError, ValueError):
                problems.append(f"{where}: not a row of {','.join(RESULT)}")
                continue
            if not all(0.0 <= n <= MOST for n in numbers) or numbers[1] < 1.0 or part not in found:
                problems.append(f"{where}: part {part!r} with numbers that a count of requests cannot have")
                continue
            found[part].append(numbers)
            labels += [label] if part == "law" else []
    if not found["law"] and not problems:
        problems.append(f"{source.name}: no row of part 'law': was the query cut short?")
    Metadata(source.name).refuse(problems)
    return found["law"], labels, found["second"]


def _read(source: Source, options: ReadOptions) -> tuple[Workload, ImportReport]:
    """The workload, its lengths and its seconds held against each other."""
    laws, labels, seconds = _rows(source)
    cells_of = np.array(laws)
    requests = float(cells_of[:, 1].sum())
    came = np.array(seconds).reshape(-1, 6)
    if seconds and float(came[:, 1].sum()) != requests:
        raise InputError(
            f"{source.name}: {requests:,.0f} requests by length and {came[:, 1].sum():,.0f} by second",
            "Export the whole result: consoles often keep the first rows only.",
        )
    inputs, outputs, weight, origin = _points(cells_of)
    if max(inputs.max(), outputs.max()) > MAX_TOKENS:
        raise InputError(f"{source.name}: requests of more than {MAX_TOKENS:,} tokens")
    arrivals, intervals = _arrivals(came)
    names = one_category(options, len(labels)) or labels
    rows = {
        "input_tokens": inputs,
        "output_tokens": outputs,
        "weight": weight,
        "category": [names[k] for k in origin] if any(names) else None,
        "arrivals": arrivals,
        "intervals": intervals,
    }
    note = f"summed up by a query: {len(laws):,} cells of lengths" + (f", {len(seconds):,} seconds" if seconds else "")
    span = float(np.ptp(came[:, 0])) + 1.0 if seconds else None
    known, read = {"source": source.path.name, "requests": round(requests)}, (len(laws) + len(seconds), round(requests))
    return law(source, FORMAT.name, read, rows, known, (note, arrivals.assumed), span)


def _points(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Lengths and weights of every cell: its longest request, and the mean of the others; and each point's cell."""
    _, count, sent, got, longest_input, longest_total = cells.T
    alone = count < 2.0
    # of the longest prompt and the longest total one request is made: both bounds of the cell are met
    top_output = np.where(alone, got, np.maximum(longest_total - longest_input, 0.0))
    top_input = np.where(alone, sent, longest_input)
    rest = np.maximum(count - 1.0, 1.0)
    others = ~alone
    cell = np.arange(count.size)
    return (
        np.concatenate([top_input, np.maximum(sent - top_input, 0.0)[others] / rest[others]]),
        np.concatenate([top_output, np.maximum(got - top_output, 0.0)[others] / rest[others]]),
        np.concatenate([np.ones(count.size), rest[others]]),
        np.concatenate([cell, cell[others]]),
    )


def _arrivals(came: np.ndarray) -> tuple[Arrivals, Intervals | None]:
    """The process by seconds, and the requests in each."""
    if came.shape[0] < 2:
        return Arrivals(assumed=POISSON_ASSUMED), None
    came = came[np.argsort(came[:, 0], kind="stable")]
    elapsed = came[:, 0] - came[0, 0]
    if np.any(np.diff(elapsed) <= 0.0):
        raise InputError("a second comes twice in the result", "Export the result of one run of the query.")
    counts = came[:, 1]
    return arrivals_from_counts(came[:, 0], counts), Intervals.of(elapsed, counts).coarser()


FORMAT = Format("sql", "result of `fleetopt workload sql`", ("csv",), _recognise, _read)
