"""The project's own CSV after ``# key: value`` lines: requests, or ``tokens,cdf[,input_tokens,output_tokens[,category]]``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.workload.formats.base import MAX_PROBLEMS, MAX_TOKENS, Format, ReadOptions, TraceBuilder
from planner.workload.formats.metadata import Metadata, as_number
from planner.workload.formats.requests_csv import is_requests, read_requests
from planner.workload.formats.totals import Split, check_cdf, lower_edges, split_totals
from planner.workload.report import ImportReport
from planner.workload.workload import Provenance, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planner.workload.source import Head, Source

    Floats = NDArray[np.float64]

_NOTHING = 1e-12  # of a request in a million millions no one can tell

COLUMNS = ("tokens", "cdf", "input_tokens", "output_tokens", "category")


def _recognise(head: Head) -> bool:
    """By its columns."""
    return head.kind == "csv" and (head.columns[:2] == ("tokens", "cdf") or is_requests(head))


@dataclass(slots=True)
class _Rows:
    """The rows of a file: their lines, columns of numbers and category names; every problem with its line."""

    path: str
    lines: list[int] = field(default_factory=list)
    columns: list[list[float]] = field(default_factory=lambda: [[], [], [], []])
    names: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    width: int = 0

    def header(self, number: int, cells: list[str]) -> bool:
        """Take the width from the first row; whether that row is a header and holds no numbers."""
        width = self.width = len(cells)
        where = f"{self.path}:{number}"
        if width not in (2, 4, 5):
            raise InputError(f"{where}: {width} columns", f"The format has 2, 4 or 5 columns: {','.join(COLUMNS)}.")
        if tuple(cell.strip().strip('"').lower() for cell in cells) == COLUMNS[:width]:
            return True
        if not np.all(np.isfinite([as_number(cell) for cell in cells[:4]])):
            raise InputError(
                f"{where}: header {','.join(cells)!r}", f"The format's header is {','.join(COLUMNS[:width])}."
            )
        return False

    def add(self, number: int, cells: list[str]) -> None:
        """Add one row, or note what is wrong with it."""
        if len(cells) != self.width:
            self.problems.append(f"{self.path}:{number}: {len(cells)} columns instead of {self.width}")
            return
        values = [as_number(cell) for cell in cells[:4]]
        if not all(0.0 <= value <= MAX_TOKENS for value in values):
            for label, cell, value in zip(COLUMNS, cells, values, strict=False):
                if not 0.0 <= value <= MAX_TOKENS:
                    self.problems.append(f"{self.path}:{number}: {label} {cell.strip()!r} is not a number >= 0")
            return
        for column, value in zip(self.columns, values, strict=False):
            column.append(value)
        self.lines.append(number)
        self.names += [cell.strip() for cell in cells[4:]]


def _read_rows(source: Source, meta: Metadata) -> _Rows:
    """All rows, and the metadata above them into `meta`; reading stops where nothing but problems come."""
    rows = _Rows(source.name)
    delimiter = source.head().delimiter
    with source.open_text() as text:
        for number, raw in enumerate(text, 1):
            line = raw.strip().lstrip("\ufeff")
            if line[:1] == "#":
                meta.line(number, line)
            elif line:
                cells = line.split(delimiter)
                if not rows.width and rows.header(number, cells):
                    continue
                if len(rows.problems) > MAX_PROBLEMS:
                    break
                rows.add(number, cells)
    if not rows.lines and not rows.problems:
        raise InputError(
            f"{source.name}: no rows (only {'a header' if rows.width else 'comments'})",
            f"Rows are {','.join(COLUMNS)}.",
        )
    return rows


_Shares = dict[str, float | None] | list[float | None]


def _categories(
    rows: _Rows, meta: Metadata, options: ReadOptions, compressible: dict[str, float | None], count: int
) -> tuple[list[str] | None, _Shares | None, list[str]]:
    """Categories of the rows, what is compressible of each, and what was assumed for it."""
    if options.category is not None:
        return [options.category] * count, {k: v for k, v in compressible.items() if k == options.category}, []
    if rows.names:
        return rows.names, compressible, []
    if abs(sum(meta.shares.values()) - 1.0) >= 0.01:
        return None, None, []
    # no column says which request is of which category: the share of the whole has to do for every band
    share = sum(part * (meta.categories[label] or 0.0) for label, part in meta.shares.items())
    return None, [share], [f"rows carry no category: a compressible share of {share:.3g} is assumed at every length"]


def _weights(cdf: Floats) -> Floats:
    """Share of every row; what is next to nothing is nothing."""
    weight: Floats = np.diff(cdf / cdf[-1], prepend=0.0)
    weight[weight < _NOTHING] = 0.0
    return weight


def _split(meta: Metadata, options: ReadOptions) -> Split:
    """How totals are divided into prompt and answer, by the options or by the file."""
    return Split.of(
        options,
        meta.number("output_share"),
        meta.number("mean_input", "mean_input_tokens"),
        meta.number("mean_output", "mean_output_tokens"),
        meta.text("split"),
    )


def _apart(rows: _Rows) -> list[str]:
    """Rows whose input and output are far more than their tokens: points keep moments and lie a little beyond a bin at most."""
    if rows.width == 2:
        return []
    return [
        f"{rows.path}:{line}: {sent:g} input and {got:g} output tokens of {total:g}"
        for line, total, sent, got in zip(rows.lines, rows.columns[0], *rows.columns[2:], strict=True)
        if sent + got > 2.0 * total + 64.0
    ]


OLDER = (
    "an older, compact file: its requests are drawn from its lengths and from how many came in every second; import the trace "
    "again (fleetopt workload import) to plan on the requests themselves"
)
"""What is said of files until 0.1 that keep encoded sums by the second."""


def _read(source: Source, options: ReadOptions) -> TraceBuilder | tuple[Workload, ImportReport]:
    """The requests of the file, or the law it holds."""
    return read_requests(source, options) if is_requests(source.head()) else _read_law(source, options)


def _read_law(source: Source, options: ReadOptions) -> tuple[Workload, ImportReport]:
    """The whole file, or all its problems at once."""
    path = source.name
    meta = Metadata(path)
    rows = _read_rows(source, meta)
    tokens, cdf = np.array(rows.columns[0]), np.array(rows.columns[1])
    if rows.lines:
        rows.problems += [*check_cdf(path, rows.lines, tokens, cdf), *_apart(rows)]
    arrivals, compressible, requests = meta.arrivals(), meta.compressible(), meta.number("requests")
    intervals, sessions = meta.intervals(), meta.sessions()
    given = _split(meta, options)
    stated = {of: meta.levels(f"{of}_quantiles", "a share") for of in ("input", "output", "total")}
    for label in sorted(set(compressible) - set(rows.names)) if rows.names else ():
        meta.problem("compressible", f"no row has category {label!r}")
    meta.refuse(rows.problems)

    name = meta.text("name") or source.path.name.split(".")[0]
    weight = _weights(cdf)
    lower = lower_edges(tokens)
    split: str | None = meta.text("length_split") or None
    if rows.width == 2:
        (inputs, outputs, tokens, lower, weight), split = split_totals(path, tokens, lower, weight, given)
    else:
        inputs, outputs = np.array(rows.columns[2]), np.array(rows.columns[3])
        if np.allclose(inputs + outputs, tokens, rtol=0.0, atol=1e-9):
            lower = tokens.copy()
    category, known, assumed = _categories(rows, meta, options, compressible, weight.size)
    notes = [*meta.notes, *assumed, *([OLDER] if intervals is not None else [])]
    workload = Workload.from_arrays(
        inputs,
        outputs,
        weight=weight,
        total_tokens=tokens,
        lower_tokens=lower,
        category=category,
        compressible=known,
        arrivals=arrivals,
        name=name,
        provenance=Provenance(
            name=name,
            source=meta.text("source"),
            licence=meta.text("licence", "license"),
            requests=None if requests is None else round(requests),
            notes=tuple(notes),
            length_split=split,
            exact=rows.width != 2 and bool(np.array_equal(lower, tokens)),
        ),
        intervals=intervals,
        sessions=sessions,
    )
    if any(stated.values()):
        workload = workload.with_stated_quantiles(stated)
    return workload, ImportReport(
        path=path,
        format=FORMAT.name,
        rows_read=len(rows.lines),
        requests=len(rows.lines),
        rate_per_s=arrivals.rate_per_s,
        span_s=meta.number("span_s"),
        notes=tuple(filter(None, [split, arrivals.assumed, *notes])),
    )


FORMAT = Format(
    "fleetopt",
    "this project's CSV: t_s,input_tokens,output_tokens[,category], or tokens,cdf",
    ("csv",),
    _recognise,
    _read,
)
