"""The project's own CSV after ``# key: value`` lines: requests one by one, or a law, read by columns."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.units import as_number
from planner.workload.arrivals import Arrivals
from planner.workload.bulk import LARGE_BYTES
from planner.workload.calls import MOST_IMAGES, CallColumns, images_in, labelled
from planner.workload.formats.base import (
    DATES_S,
    MAX_TOKENS,
    Format,
    ImportReport,
    ReadOptions,
    TraceBuilder,
    packed,
)
from planner.workload.formats.metadata import Metadata
from planner.workload.formats.rows import read_table
from planner.workload.formats.totals import by_cdf, law
from planner.workload.sessions import SharedPrefix
from planner.workload.source import normal_name
from planner.workload.trace import Floats, Intervals, Stretches
from planner.workload.workload import Workload

if TYPE_CHECKING:
    from planner.workload.source import Source


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
_OF_WEIGHTS = {*LENGTHS, "weight", "lower_tokens", "total_tokens", "images", *TEXTS}


def _recognise(source: Source) -> bool:
    """By its columns: of a law, or lengths beside a time named ``t_s`` or below the project's own first line."""
    if source.kind != "csv" or not source.columns:
        return False
    own = source.columns[0] == "ts" or source.text.lstrip("\ufeff").startswith("# fleetopt-workload:")
    return source.columns[:2] == ("tokens", "cdf") or (own and {"inputtokens", "outputtokens"} <= set(source.columns))


def _read(source: Source, options: ReadOptions) -> TraceBuilder | tuple[Workload, ImportReport]:
    """The requests of the file, or its law."""
    columns = source.columns
    law = columns[:2] == ("tokens", "cdf") or "weight" in columns
    return _read_law(source, options) if law else _read_requests(source, options)


# --- the table -----------------------------------------------------------------------------------------------------------


def _table(source: Source, meta: Metadata) -> dict[str, list[str]] | None:
    """Cells by column, and the metadata above into `meta`; ``None`` where they are not as plain as the project writes them."""
    text = source.read_all().lstrip("\ufeff").replace("\r\n", "\n")
    start = number = 0
    while text.startswith(("#", "\n"), start):
        number, end = number + 1, text.find("\n", start)
        meta.line(number, text[start:] if end < 0 else text[start:end])
        start = len(text) if end < 0 else end + 1
    delimiter = source.delimiter
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
    return {name: cells[k::width] for k, name in enumerate(names)}


def _numbers(cells: Sequence[str], most: float = MAX_TOKENS, empty: float | None = None) -> Floats:
    """A column as numbers from 0 on, blank cells as `empty`; a ValueError where a cell is no number."""
    if empty is not None:
        cells = [cell.strip() or str(empty) for cell in cells]
    found = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
    blank = np.isnan(found) if empty is not None else False
    if not bool(np.all(blank | ((found >= 0.0) & (found <= most)))):
        raise ValueError("out of range")
    return found


def _labels(table: Mapping[str, list[str]]) -> list[str] | None:
    """Categories, the numbers of images in them; ``None`` where neither is there, a ValueError where one is no number."""
    names = [cell.strip() for cell in table["category"]] if "category" in table else None
    if "images" not in table:
        return names
    images = _numbers(table["images"], MOST_IMAGES, 0.0)
    if not np.array_equal(images, np.rint(images)):
        raise ValueError("not whole")
    return [labelled(name, round(n)) for name, n in zip(names or [""] * images.size, images.tolist(), strict=True)]


def _cells(source: Source, meta: Metadata) -> tuple[dict[str, list[str]], list[int], list[str]]:
    """Cells of a law by column, the line of each row, and what is wrong with them; the metadata above them into `meta`."""
    bad: list[str] = []
    names: list[str] = []
    lines: list[int] = []
    rows: list[list[str]] = []
    with source.open_text() as text:
        for number, line in enumerate(text, 1):
            line, where = line.lstrip("\ufeff").strip(), f"{source.name}:{number}"
            if line[:1] == "#" and not names:
                meta.line(number, line)
            if not line or line[0] == "#":
                continue
            cells = [cell.strip() for cell in line.split(source.delimiter)]
            if not names:
                names = [_KNOWN.get(normal_name(cell), cell.lower()) for cell in cells]
                if "cdf" in names and tuple(names) not in (LAW[:2], LAW[:4], LAW):
                    what = f"{len(names)} columns" if len(names) not in (2, 4, 5) else f"header {line!r}"
                    bad.append(f"{where}: {what}; a law has the columns {','.join(LAW[:2])} or {','.join(LAW)}")
                continue
            lines.append(number)
            rows.append(cells)
            if len(cells) != len(names):
                bad.append(f"{where}: {len(cells)} columns instead of {len(names)}")
                continue
            for name, cell in zip(names, cells, strict=True):
                if name in NUMBERS and not 0.0 <= as_number(cell) <= MAX_TOKENS:
                    bad.append(f"{where}: {name} {cell!r} is not a number >= 0")
    if not (bad or rows):
        bad = [f"{source.name}: no rows (only {'a header' if names else 'comments'})"]
    if not bad and not (len(set(names)) == len(names) and {*LENGTHS, "weight"} <= set(names) <= _OF_WEIGHTS):
        bad = [] if "cdf" in names else [f"{source.name}: not a table of numbers"]
    return {name: [row[k] for row in rows] for k, name in enumerate(names)} if not bad else {}, lines, bad


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


def _read_law(source: Source, options: ReadOptions) -> tuple[Workload, ImportReport]:
    """The law of the rows, or all that is wrong with the file at once."""
    meta = Metadata(source.name)
    cells, lines, problems = _cells(source, meta)
    meta.refuse(problems)
    found = {name: np.array(column, dtype=np.float64) for name, column in cells.items() if name in NUMBERS}
    found.pop("images", None)
    try:
        labels = _labels(cells)
    except ValueError:
        labels, problems = [], [f"{source.name}: images: not whole numbers of images"]
    arrivals, compressible, requests = meta.arrivals(), meta.compressible(labels), meta.number("requests")
    intervals, stated = meta.intervals(), meta.stated_quantiles()
    rows, split = found, None
    if "tokens" in found:
        rows, split, more = by_cdf(source.name, meta, options, lines, found)
        problems += more
    meta.refuse(problems)
    split = meta.text("length_split") or split
    category, chances, assumed = _categories(labels, meta, options, compressible, rows["weight"].size)
    notes = (*meta.notes, *assumed)
    bins = "lower_tokens" in rows and not np.array_equal(rows["lower_tokens"], rows["total_tokens"])
    name, origin, licence = meta.origin()
    known = {
        "source": origin,
        "licence": licence,
        "requests": None if requests is None else round(requests),
        "notes": notes,
        "length_split": split,
        "exact": not bins and not split,
    }
    of_rows = {
        "name": name,
        "category": category,
        "compressible": chances,
        "arrivals": arrivals,
        "intervals": intervals,
    }
    read, told = (len(lines), len(lines)), (split, arrivals.assumed, *notes)
    workload, report = law(source, FORMAT.name, read, rows | of_rows, known, told)
    return replace(workload, stated=stated), report


# --- requests ------------------------------------------------------------------------------------------------------------


def _read_requests(source: Source, options: ReadOptions) -> TraceBuilder:
    """The requests of a file.

    What is out of the ordinary (dates, counts with commas, other columns, a damaged row) is left to the reader of any CSV, which
    says what is wrong and where.
    """
    meta = Metadata(source.name)
    plain = source.size <= LARGE_BYTES and not (options.columns or options.where or options.time_unit)
    table, builder = _table(source, meta) if plain else None, None
    if table is not None:
        with suppress(ValueError):
            builder = _collected(TraceBuilder(source.name, FORMAT.name, {"time_unit": "s"}), table)
    if builder is None:
        from planner.workload.formats.registry import common_layout

        builder = read_table(source, options, FORMAT.name, common_layout())
    builder.name, builder.source, builder.licence = meta.origin()
    builder.notes += meta.notes
    parts = builder.stretches = meta.stretches()
    intervals, stated, arrivals = meta.intervals(), meta.stated_quantiles(), meta.arrivals()
    compressible, requests = meta.compressible(builder.categories), meta.number("requests")
    first = min(builder.times, default=0.0)
    meta.refuse()

    def described(workload: Workload) -> Workload:
        if compressible:
            workload = workload.with_compressible(compressible)
        told = replace(workload, arrivals=_stated_arrivals(workload.arrivals, arrivals, meta, parts is not None))
        if parts is None:
            return told
        return replace(_of_stretches(told, parts, first, intervals, requests), stated=stated)

    builder.described = described
    return builder


def _collected(builder: TraceBuilder, table: dict[str, list[str]]) -> TraceBuilder | None:
    """The columns of a plain table as requests; ``None`` or a ValueError where a row is no request as this reader knows them."""
    inputs, outputs = (_numbers(table.get(name, [])) for name in LENGTHS)
    if not (inputs.size == outputs.size and np.all(inputs + outputs > 0.0)):
        return None
    builder.inputs, builder.outputs = packed("d", inputs), packed("d", outputs)
    builder.clock.absolute = False
    if "t_s" in table:
        builder.times = packed("d", _numbers(table["t_s"], DATES_S))
    if (labels := _labels(table)) is not None:
        builder.categories = {label: k for k, label in enumerate(dict.fromkeys(labels))}
        builder.category = array("i", map(builder.categories.__getitem__, labels))
    if "session" in table:
        blank = ["nan"] * inputs.size
        cached, lasted = (
            _numbers(table.get(name, blank), empty=np.nan) for name in ("cached_prefix_tokens", "duration_s")
        )
        levels: list[SharedPrefix] = []
        while (name := f"prefix_{len(levels) + 1}") in table:
            group = _numbers(table[name], empty=np.nan)
            tokens = _numbers(table.get(f"{name}_tokens", []), empty=0.0)
            if tokens.size != group.size:
                return None
            levels.append(SharedPrefix(np.where(np.isnan(group), -1.0, group).astype(np.int64), tokens))
        names = [cell.strip() for cell in table["session"]]
        builder.calls = CallColumns.of(names, cached.tolist(), lasted.tolist(), tuple(levels))
    return builder


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
    columns = {name: getattr(kept, name) for name in (*LENGTHS, "weight", "category")}
    made = workload.rebuilt(columns, exact=False, recorded=kept, intervals=intervals, sessions=sessions)
    whole = round(float(kept.weight.sum()) if requests is None else requests)
    return replace(made, provenance=replace(made.provenance, requests=whole))


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
