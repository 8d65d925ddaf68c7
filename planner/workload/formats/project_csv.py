"""The project's own CSV after ``# key: value`` lines: requests one by one, or a law, read by columns."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.errors import InputError
from planner.workload.arrivals import Arrivals
from planner.workload.formats.base import (
    MAX_PROBLEMS,
    MAX_TOKENS,
    Clock,
    Format,
    ImportReport,
    ReadOptions,
    TraceBuilder,
)
from planner.workload.formats.metadata import Metadata, as_number
from planner.workload.formats.rows import read_table
from planner.workload.formats.totals import Split, check_cdf, lower_edges, split_totals
from planner.workload.images import MOST_IMAGES, images_in, labelled
from planner.workload.intervals import Intervals
from planner.workload.sessions import SharedPrefix
from planner.workload.source import normal_name
from planner.workload.trace import Stretches
from planner.workload.workload import Provenance, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planner.workload.source import Head, Source

    Floats = NDArray[np.float64]

LENGTHS = ("input_tokens", "output_tokens")
LAW = ("tokens", "cdf", *LENGTHS, "category")
"""Columns of a law by its distribution function: the first two, four or five."""

NUMBERS = (
    "t_s",
    "tokens",
    "cdf",
    *LENGTHS,
    "weight",
    "lower_tokens",
    "total_tokens",
    "cached_prefix_tokens",
    "duration_s",
    "images",
)
"""Columns of numbers; ``weight`` makes the rows a law, ``lower_tokens`` and ``total_tokens`` bins of it."""

TEXTS = ("category", "session")

_PREFIX = re.compile(r"prefix_\d+(_tokens)?")
_KNOWN = {normal_name(name): name for name in (*NUMBERS, *TEXTS)}
_NOTHING = 1e-12  # of a request in a million millions no one can tell
_LATEST_S = 5e8  # from here on a number is a date, which the clock of other formats reads [s]
_LARGE = 1 << 28  # a text that is not held at once [bytes]


def _is_law(head: Head) -> bool:
    return head.columns[:2] == ("tokens", "cdf") or "weight" in head.columns


def _recognise(head: Head) -> bool:
    """By its columns: of a law, or lengths beside a time named ``t_s`` or below the project's own first line."""
    if head.kind != "csv" or not head.columns:
        return False
    own = head.columns[0] == "ts" or head.text.lstrip("\ufeff").startswith("# fleetopt-workload:")
    return head.columns[:2] == ("tokens", "cdf") or (own and {"inputtokens", "outputtokens"} <= set(head.columns))


def _read(source: Source, options: ReadOptions) -> TraceBuilder | tuple[Workload, ImportReport]:
    """The requests of the file, or its law."""
    return _read_law(source, options) if _is_law(source.head()) else _read_requests(source, options)


# --- the table -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Table:
    """Cells by column, and the line of the first row."""

    columns: dict[str, list[str]]
    line: int

    def numbers(self, name: str, most: float = MAX_TOKENS, empty: float | None = None) -> Floats | None:
        """A column as numbers from 0 on, blank cells as `empty`; ``None`` where there is none, or a cell is no number."""
        cells = self.columns.get(name)
        if cells is None:
            return None
        try:
            if empty is not None:
                cells = [cell.strip() or str(empty) for cell in cells]
            found = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
        except ValueError:
            return None
        blank = np.isnan(found) if empty is not None else False
        return found if bool(np.all(blank | ((found >= 0.0) & (found <= most)))) else None

    def texts(self, name: str) -> list[str] | None:
        """A column of text; ``None`` where there is none."""
        return [cell.strip() for cell in self.columns[name]] if name in self.columns else None

    @property
    def images(self) -> Floats | None:
        """Images by row, 0 where none is said; ``None`` where there is no such column, or a cell is no number of them."""
        found = self.numbers("images", MOST_IMAGES, 0.0)
        return found if found is not None and np.array_equal(found, np.rint(found)) else None

    def labels(self) -> list[str] | None:
        """Categories, the numbers of images in them; ``None`` where neither is there."""
        names, images = self.texts("category"), self.images
        if images is None:
            return names
        names = [""] * images.size if names is None else names
        return [labelled(name, round(count)) for name, count in zip(names, images.tolist(), strict=True)]


def _table(source: Source, meta: Metadata) -> _Table | None:
    """The table, and the metadata above it into `meta`; ``None`` where it is not as plain as the project writes it."""
    text = source.read_all().lstrip("\ufeff").replace("\r\n", "\n")
    start = number = 0
    while text.startswith(("#", "\n"), start):
        number, end = number + 1, text.find("\n", start)
        meta.line(number, text[start:] if end < 0 else text[start:end])
        start = len(text) if end < 0 else end + 1
    delimiter = source.head().delimiter
    header, _, body = text[start:].partition("\n")
    body = body.rstrip()
    if "\n\n" in body or "\n#" in body:
        body = "\n".join(line for line in body.split("\n") if line.strip() and line[0] != "#")
    names = [cell.strip().lower() for cell in header.split(delimiter)]
    names = [_KNOWN.get(normal_name(name), name) for name in names]
    known = all(name in NUMBERS + TEXTS or _PREFIX.fullmatch(name) for name in names)
    if not (body and known) or '"' in body or len(set(names)) < len(names):
        return None
    width = len(names)
    cells = body.replace("\n", delimiter + "\n").split(delimiter)
    # a row that is short beside one that is long would shift what lies between them
    whole = len(cells) % width == 0 and body.count("\n") == len(cells) // width - 1
    if not whole or not all(cell[:1] == "\n" for cell in cells[width::width]):
        return None
    return _Table({name: cells[k::width] for k, name in enumerate(names)}, number + 2)


def _damaged(source: Source) -> list[str]:
    """What is wrong with a table of numbers, row by row with its line; where nothing but problems come, the first ones."""
    bad: list[str] = []
    names: list[str] = []
    rows = False
    with source.open_text() as lines:
        for number, line in enumerate(lines, 1):
            line = line.lstrip("\ufeff").strip()
            where = f"{source.name}:{number}"
            cells = [cell.strip() for cell in line.split(source.head().delimiter)]
            if not line or line[0] == "#" or len(bad) > MAX_PROBLEMS:
                continue
            if not names:
                names = [_KNOWN.get(normal_name(cell), "") for cell in cells]
                if "cdf" in names and tuple(names) not in (LAW[:2], LAW[:4], LAW):
                    what = f"{len(names)} columns" if len(names) not in (2, 4, 5) else f"header {line!r}"
                    bad.append(f"{where}: {what}; a law has the columns {','.join(LAW[:2])} or {','.join(LAW)}")
                continue
            rows = True
            if len(cells) != len(names):
                bad.append(f"{where}: {len(cells)} columns instead of {len(names)}")
                continue
            for name, cell in zip(names, cells, strict=True):
                if name in NUMBERS and not 0.0 <= as_number(cell) <= MAX_TOKENS:
                    bad.append(f"{where}: {name} {cell!r} is not a number >= 0")
    return bad or ([] if rows else [f"{source.name}: no rows (only {'a header' if names else 'comments'})"])


# --- laws ----------------------------------------------------------------------------------------------------------------

_Shares = dict[str, float | None] | list[float | None]


def _categories(
    labels: list[str] | None, meta: Metadata, options: ReadOptions, compressible: dict[str, float | None], count: int
) -> tuple[list[str] | None, _Shares | None, list[str]]:
    """Categories of the rows, what is compressible of each, and what was assumed for it."""
    if options.category is not None:
        seen = images_in(labels or ())
        named = [labelled(options.category, seen.get(label, 0)) for label in labels or [""] * count]
        return named, {k: v for k, v in compressible.items() if k == options.category}, []
    if labels is not None:
        return labels, compressible, []
    if abs(sum(meta.shares.values()) - 1.0) >= 0.01:
        return None, None, []
    # no column says which request is of which category: the share of the whole has to do for every band
    share = sum(part * (meta.categories[label] or 0.0) for label, part in meta.shares.items())
    return None, [share], [f"rows carry no category: a compressible share of {share:.3g} is assumed at every length"]


def _by_cdf(
    source: Source, meta: Metadata, options: ReadOptions, table: _Table, found: dict[str, Floats]
) -> tuple[dict[str, Floats], str | None, list[str]]:
    """Rows of a distribution function: their columns, how totals were split, and what is wrong with them."""
    tokens, cdf = found["tokens"], found["cdf"]
    lines = list(range(table.line, table.line + tokens.size))
    problems = check_cdf(source.name, lines, tokens, cdf)
    weight, lower = np.diff(cdf / max(cdf[-1], _NOTHING), prepend=0.0), lower_edges(tokens)
    weight[weight < _NOTHING] = 0.0
    if LENGTHS[0] not in found:
        given = Split.of(
            options,
            meta.number("output_share"),
            meta.number("mean_input", "mean_input_tokens"),
            meta.number("mean_output", "mean_output_tokens"),
            meta.text("split"),
        )
        meta.refuse(problems)
        columns, split = split_totals(source.name, tokens, lower, weight, given)
        return dict(zip((*LENGTHS, "total_tokens", "lower_tokens", "weight"), columns, strict=True)), split, []
    inputs, outputs = (found[name] for name in LENGTHS)
    # points keep moments and lie a little beyond a bin at most
    for k in np.flatnonzero(inputs + outputs > 2.0 * tokens + 64.0).tolist():
        what = f"{inputs[k]:g} input and {outputs[k]:g} output tokens of {tokens[k]:g}"
        problems.append(f"{source.name}:{lines[k]}: {what}")
    if np.allclose(inputs + outputs, tokens, rtol=0.0, atol=1e-9):
        lower = tokens
    rows = {LENGTHS[0]: inputs, LENGTHS[1]: outputs, "total_tokens": tokens, "lower_tokens": lower, "weight": weight}
    return rows, None, problems


def _read_law(source: Source, options: ReadOptions) -> tuple[Workload, ImportReport]:
    """The law of the rows, or all that is wrong with the file at once."""
    meta = Metadata(source.name)
    table = _table(source, meta)
    there = [] if table is None else [name for name in NUMBERS if name in table.columns]
    known = {} if table is None else {name: table.numbers(name) for name in there}
    found = {name: column for name, column in known.items() if column is not None}
    by_cdf = "tokens" in found
    whole = table is not None and len(found) == len(known)
    if table is None or not whole or (by_cdf and tuple(table.columns) not in (LAW[:2], LAW[:4], LAW)):
        meta.refuse(_damaged(source) or [f"{source.name}: not a table of numbers"])
    assert table is not None
    arrivals, compressible, requests = meta.arrivals(), meta.compressible(), meta.number("requests")
    intervals, stated = meta.intervals(), meta.stated_quantiles()
    labels = table.labels()
    for label in sorted(set(compressible) - set(labels)) if labels is not None else ():
        meta.problem("compressible", f"no row has category {label!r}")
    rows: dict[str, Any] = {name: column for name, column in found.items() if name != "images"}
    wrong = "images" in table.columns and table.images is None
    split, problems = None, [f"{source.name}: images: not whole numbers of images"] if wrong else []
    if by_cdf:
        rows, split, problems = _by_cdf(source, meta, options, table, found)
    meta.refuse(problems)
    split = meta.text("length_split") or split
    category, chances, assumed = _categories(labels, meta, options, compressible, rows["weight"].size)
    notes = (*meta.notes, *assumed)
    bins = "lower_tokens" in rows and not np.array_equal(rows["lower_tokens"], rows["total_tokens"])
    title = meta.text("name") or source.path.name.split(".")[0]
    workload = Workload.from_arrays(
        **rows,
        category=category,
        compressible=chances,
        arrivals=arrivals,
        name=title,
        intervals=intervals,
        provenance=Provenance(
            name=title,
            source=meta.text("source"),
            licence=meta.text("licence", "license"),
            requests=None if requests is None else round(requests),
            notes=notes,
            length_split=split,
            exact=not bins and not split,
        ),
    )
    count = len(next(iter(table.columns.values())))
    told = tuple(filter(None, [split, arrivals.assumed, *notes]))
    report = ImportReport(source.name, FORMAT.name, count, count, rate_per_s=arrivals.rate_per_s, notes=told)
    return workload.with_stated_quantiles(stated) if stated else workload, report


# --- requests ------------------------------------------------------------------------------------------------------------


def _read_requests(source: Source, options: ReadOptions) -> TraceBuilder:
    """The requests of a file.

    What is out of the ordinary (dates, counts with commas, other columns, a damaged row) is left to the reader of any CSV, which
    says what is wrong and where.
    """
    meta = Metadata(source.name)
    plain = source.size <= _LARGE and not (options.columns or options.where or options.time_unit)
    table = _table(source, meta) if plain else None
    builder = None if table is None else _requests(source, table)
    if builder is None:
        from planner.workload.formats.registry import common_fields

        builder = read_table(source, options, FORMAT.name, common_fields())
    builder.name, builder.source = meta.text("name"), meta.text("source")
    builder.licence = meta.text("licence", "license")
    builder.notes += meta.notes
    parts = builder.stretches = meta.stretches()
    intervals, stated, arrivals = meta.intervals(), meta.stated_quantiles(), meta.arrivals()
    compressible, requests, first = meta.compressible(), meta.number("requests"), min(builder.times, default=0.0)
    for label in sorted(set(compressible) - set(builder.categories)) if builder.categories else ():
        meta.problem("compressible", f"no row has category {label!r}")
    meta.refuse()

    def described(workload: Workload) -> Workload:
        if compressible:
            workload = workload.with_compressible(compressible)
        told = replace(workload, arrivals=_stated_arrivals(workload.arrivals, arrivals, meta, parts is not None))
        if parts is None:
            return told
        return _of_stretches(told, parts, first, intervals, requests).with_stated_quantiles(stated)

    builder.described = described
    return builder


def _requests(source: Source, table: _Table) -> TraceBuilder | None:
    """The requests of a plain table; ``None`` where a row is no request as this reader knows them."""
    inputs, outputs = (table.numbers(name) for name in LENGTHS)
    if inputs is None or outputs is None or not np.all(inputs + outputs > 0.0):
        return None
    builder = TraceBuilder(source.name, FORMAT.name, Clock("s", absolute=False))
    builder.inputs, builder.outputs = _packed(inputs), _packed(outputs)
    if "t_s" in table.columns:
        if (times := table.numbers("t_s", _LATEST_S)) is None:
            return None
        builder.times = _packed(times)
    if "images" in table.columns and table.images is None:
        return None
    if (labels := table.labels()) is not None:
        builder.categories = {label: k for k, label in enumerate(dict.fromkeys(labels))}
        builder.category = array("i", map(builder.categories.__getitem__, labels))
    if (names := table.texts("session")) is not None:
        blank = ["nan"] * inputs.size
        for name in ("cached_prefix_tokens", "duration_s"):
            table.columns.setdefault(name, blank)
        cached, lasted = (table.numbers(name, MAX_TOKENS, np.nan) for name in ("cached_prefix_tokens", "duration_s"))
        levels: list[SharedPrefix] = []
        while (name := f"prefix_{len(levels) + 1}") in table.columns:
            group, tokens = table.numbers(name, MAX_TOKENS, np.nan), table.numbers(f"{name}_tokens", MAX_TOKENS, 0.0)
            if group is None or tokens is None:
                return None
            levels.append(SharedPrefix(np.where(np.isnan(group), -1.0, group).astype(np.int64), tokens))
        if cached is None or lasted is None:
            return None
        builder.calls.take(names, cached.tolist(), lasted.tolist(), tuple(levels))
    return builder


def _packed(values: Floats) -> array[float]:
    """A column as the builder keeps it."""
    packed = array("d")
    packed.frombytes(values.tobytes())
    return packed


def _of_stretches(
    workload: Workload, parts: Stretches, first_s: float, intervals: Intervals | None, requests: float | None
) -> Workload:
    """The workload of a trace of which these requests are some stretches."""
    trace = workload.recorded
    # the first request need not be that of the trace
    moved = None if trace is None else replace(trace, times_s=trace.times_s + first_s)
    if moved is None or np.any(parts.holding(moved.times_s) < 0):
        raise InputError(f"{workload.name}: requests outside of the stretches it names", "Import the trace again.")
    kept, sessions = moved.within(parts), workload.sessions
    if sessions is not None and sessions.start_s is not None:
        sessions = replace(sessions, start_s=sessions.start_s + first_s)
    whole = round(requests) if requests is not None else round(float(kept.weight.sum()))
    return Workload.from_arrays(
        kept.input_tokens,
        kept.output_tokens,
        weight=kept.weight,
        category=kept.category,
        categories=workload.categories,
        compressible=workload.compressible,
        arrivals=workload.arrivals,
        name=workload.name,
        provenance=replace(workload.provenance, requests=whole, exact=False),
        recorded=kept,
        intervals=intervals,
        sessions=sessions,
    )


def _stated_arrivals(own: Arrivals, stated: Arrivals, meta: Metadata, stretched: bool) -> Arrivals:
    """What the requests say of how they came, or the file where it says more: of stretches it says all."""
    if stretched or (own.rate_per_s is None and stated.rate_per_s is not None):
        return stated
    return replace(
        own,
        rate_per_s=stated.rate_per_s or own.rate_per_s,
        hourly_profile=stated.hourly_profile or own.hourly_profile,
        peak_over_mean=own.peak_over_mean if stated.peak_over_mean is None else stated.peak_over_mean,
        peak_hour_over_mean=stated.peak_hour_over_mean or own.peak_hour_over_mean,
        assumed=meta.text("arrivals") or own.assumed,
    )


FORMAT = Format(
    "fleetopt",
    "this project's CSV: t_s,input_tokens,output_tokens[,category], or tokens,cdf",
    ("csv",),
    _recognise,
    _read,
)
