"""The result of ``fleetopt workload sql``: cells of lengths and seconds, each with its counts and sums, as CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.shared.documents import Rows
from planner.workload.arrivals import POISSON_ASSUMED, Arrivals, arrivals_from_counts
from planner.workload.formats.base import MAX_PROBLEMS, MAX_TOKENS, Format, ImportReport, ReadOptions
from planner.workload.formats.totals import law, one_category
from planner.workload.query import RESULT
from planner.workload.source import normal_name
from planner.workload.trace import Intervals
from planner.workload.workload import Workload

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

_NAMES = tuple(normal_name(name) for name in RESULT)
_MOST = 10.0**15
"""No query counts or sums up more: beyond it whole numbers are not exact."""


def _recognise(head: Head) -> bool:
    """All columns of the result, in any order."""
    return set(_NAMES) <= set(head.columns)


_Rows = list[tuple[float, ...]]


def _rows(source: Source) -> tuple[_Rows, list[str], _Rows]:
    """Cells of lengths, their labels, and seconds; or all problems at once."""
    found: dict[str, _Rows] = {"law": [], "second": []}
    labels: list[str] = []
    problems: list[str] = []
    with source.open_text() as text:
        reader = Rows(text, source.name, source.head().delimiter)
        header = [normal_name(cell) for cell in next(reader, [])]
        at = [header.index(name) for name in _NAMES]
        for row in filter(any, reader):
            where = f"{source.name}:{reader.line_num}"
            try:
                part, second, label, *counts = (row[k].strip() for k in at)
                numbers = tuple(float(cell or "0") for cell in (second, *counts))
            except (IndexError, ValueError):
                problems.append(f"{where}: not a row of {','.join(RESULT)}")
                continue
            if not all(0.0 <= n <= _MOST for n in numbers) or numbers[1] < 1.0 or part not in found:
                problems.append(f"{where}: part {part!r} with numbers that a count of requests cannot have")
                continue
            found[part].append(numbers)
            labels += [label] if part == "law" else []
    if not found["law"] and not problems:
        problems.append(f"{source.name}: no row of part 'law': was the query cut short?")
    if problems:
        shown = problems if len(problems) <= MAX_PROBLEMS else [*problems[:MAX_PROBLEMS], "... and more"]
        raise InputError.from_problems(shown)
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
