"""The rows of the project's own CSV: requests one by one, or of a law with their weights, read by columns."""

from __future__ import annotations

import re
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.workload.arrivals import Arrivals
from planner.workload.formats.base import MAX_PROBLEMS, MAX_TOKENS, Clock, ReadOptions, TraceBuilder
from planner.workload.formats.generic import FIELDS
from planner.workload.formats.metadata import Metadata, as_number
from planner.workload.formats.rows import read_csv
from planner.workload.intervals import Intervals
from planner.workload.report import ImportReport
from planner.workload.sessions import SharedPrefix
from planner.workload.source import normal_name
from planner.workload.trace import Stretches
from planner.workload.workload import Provenance, Workload

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

LENGTHS = ("input_tokens", "output_tokens")
OF_A_LAW = ("weight", "lower_tokens", "total_tokens")
NUMBERS = ("t_s", *LENGTHS, *OF_A_LAW, "cached_prefix_tokens", "duration_s")
"""Columns of numbers; ``weight`` makes the rows a law, ``lower_tokens`` and ``total_tokens`` bins of it."""

TEXTS = ("category", "session")

_PREFIX = re.compile(r"prefix_\d+(_tokens)?")
_KNOWN = {normal_name(name): name for name in (*NUMBERS, *TEXTS)}
_LATEST_S = 5e8  # from here on a number is a date, which the clock of other formats reads [s]
_LARGE = 1 << 28  # a text that is not held at once [bytes]


def is_requests(head: Head) -> bool:
    """By its columns: lengths, beside a time named ``t_s`` or below the project's own first line."""
    return head.columns[:2] != ("tokens", "cdf") and {"inputtokens", "outputtokens"} <= set(head.columns) and (
        head.columns[0] == "ts" or head.text.lstrip("\ufeff").startswith("# fleetopt-workload:")
    )


def read_requests(source: Source, options: ReadOptions) -> TraceBuilder | tuple[Workload, ImportReport]:
    """The requests of a file, or its law.

    What is out of the ordinary (dates, counts with commas, other columns, a damaged row) is left to the reader of any CSV, which
    says what is wrong and where.
    """
    meta = Metadata(source.name)
    columns = None
    if source.size <= _LARGE and not (options.columns or options.where or options.time_unit):
        columns = _columns(source.read_all(), source.head().delimiter, meta)
    if "weight" in source.head().columns:
        return _law(source, meta, columns)
    if columns is None or (builder := _requests(source, columns, meta)) is None:
        builder = read_csv(source, options, "fleetopt", FIELDS)
    builder.name, builder.source = meta.text("name"), meta.text("source")
    builder.licence = meta.text("licence", "license")
    builder.notes += meta.notes
    builder.stretches, intervals, stated = meta.stretches(), meta.intervals(), _stated(meta)
    arrivals, compressible, requests = meta.arrivals(), meta.compressible(), meta.number("requests")
    for label in sorted(set(compressible) - set(builder.categories)) if builder.categories else ():
        meta.problem("compressible", f"no row has category {label!r}")
    meta.refuse()
    parts, first = builder.stretches, min(builder.times, default=0.0)

    def described(workload: Workload) -> Workload:
        if compressible:
            workload = workload.with_compressible(compressible)
        told = replace(workload, arrivals=_stated_arrivals(workload.arrivals, arrivals, meta, parts is not None))
        if parts is None:
            return told
        return _of_stretches(told, parts, first, intervals, requests).with_stated_quantiles(stated)

    builder.described = described
    return builder


def _damaged(source: Source) -> list[str]:
    """The first rows below the header that are not as wide, or hold no number >= 0 where one belongs."""
    bad: list[str] = []
    places: list[int] = []
    width, delimiter = 0, source.head().delimiter
    with source.open_text() as lines:
        for number, line in enumerate(lines, 1):
            cells = [cell.strip() for cell in line.split(delimiter)]
            if line.startswith("#") or not line.strip() or len(bad) >= MAX_PROBLEMS:
                continue
            if not width:
                width = len(cells)
                places = [k for k, cell in enumerate(cells) if _KNOWN.get(normal_name(cell)) in NUMBERS]
            elif len(cells) != width:
                bad.append(f"{source.name}:{number}: {len(cells)} columns instead of {width}")
            elif wrong := [cells[k] for k in places if not 0.0 <= as_number(cells[k]) <= MAX_TOKENS]:
                bad.append(f"{source.name}:{number}: {wrong[0]!r} is not a number >= 0")
    return bad


def _columns(text: str, delimiter: str, meta: Metadata) -> dict[str, list[str]] | None:
    """Cells by column, metadata into `meta`; ``None`` where the table is not as plain as the project writes it."""
    text = text.lstrip("\ufeff").replace("\r\n", "\n")
    start = number = 0
    while text.startswith(("#", "\n"), start):
        number, end = number + 1, text.find("\n", start)
        if end < 0:
            return None
        if text[start] == "#":
            meta.line(number, text[start:end])
        start = end + 1
    header, _, body = text[start:].partition("\n")
    body = body.rstrip("\n")
    names = [cell.strip().lower() for cell in header.split(delimiter)]
    names = [_KNOWN.get(normal_name(name), name) for name in names]
    known = all(name in NUMBERS + TEXTS or _PREFIX.fullmatch(name) for name in names)
    if not (body and known) or '"' in body or len(set(names)) < len(names):
        return None
    width = len(names)
    cells = body.replace("\n", delimiter + "\n").split(delimiter)
    # a row that is short beside one that is long would shift what lies between them
    if (
        len(cells) % width
        or body.count("\n") != len(cells) // width - 1
        or not all(c[:1] == "\n" for c in cells[width::width])
    ):
        return None
    return {name: cells[k::width] for k, name in enumerate(names)}


def _numbers(cells: list[str] | None, most: float, empty: float | None = None) -> np.ndarray | None:
    """A column as numbers from 0 on, blank cells as `empty`; ``None`` where one is none."""
    if cells is None:
        return None
    try:
        if empty is not None:
            cells = [cell.strip() or str(empty) for cell in cells]
        found = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
    except ValueError:
        return None
    blank = np.isnan(found) if empty is not None else np.zeros(found.size, dtype=bool)
    return found if bool(np.all(blank | ((found >= 0.0) & (found <= most)))) else None


def _requests(source: Source, columns: dict[str, list[str]], meta: Metadata) -> TraceBuilder | None:
    """The requests; ``None`` where a row is no request as this reader knows them."""
    inputs, outputs = (_numbers(columns[name], MAX_TOKENS) for name in ("input_tokens", "output_tokens"))
    if inputs is None or outputs is None or not np.all(inputs + outputs > 0.0):
        return None
    builder = TraceBuilder(source.name, "fleetopt", Clock("s", absolute=False))
    builder.inputs, builder.outputs = _packed(inputs), _packed(outputs)
    builder.selects = True
    if "t_s" in columns:
        times = _numbers(columns["t_s"], _LATEST_S)
        if times is None:
            return None
        builder.times = _packed(times)
    if "category" in columns:
        labels = [label.strip() for label in columns["category"]]
        builder.categories = {label: k for k, label in enumerate(dict.fromkeys(labels))}
        builder.category = array("i", map(builder.categories.__getitem__, labels))
    if "session" in columns:
        blank = ["nan"] * inputs.size
        cached = _numbers(columns.get("cached_prefix_tokens", blank), MAX_TOKENS, np.nan)
        lasted = _numbers(columns.get("duration_s", blank), _LATEST_S, np.nan)
        levels: list[SharedPrefix] = []
        while (name := f"prefix_{len(levels) + 1}") in columns:
            group = _numbers(columns[name], MAX_TOKENS, np.nan)
            tokens = _numbers(columns.get(f"{name}_tokens"), MAX_TOKENS, 0.0)
            if group is None or tokens is None:
                return None
            levels.append(SharedPrefix(np.where(np.isnan(group), -1.0, group).astype(np.int64), tokens))
        if cached is None or lasted is None:
            return None
        names = [name.strip() for name in columns["session"]]
        builder.calls.take(names, cached.tolist(), lasted.tolist(), tuple(levels))
    return builder


def _packed(values: np.ndarray) -> array[float]:
    packed = array("d")
    packed.frombytes(values.tobytes())
    return packed


def _stated(meta: Metadata) -> dict[str, dict[float, float]]:
    """Quantiles of the whole that the file states, by column."""
    found = {of: meta.levels(f"{of}_quantiles", "a share") for of in ("input", "output", "total")}
    return {of: table for of, table in found.items() if table}


def _law(source: Source, meta: Metadata, columns: dict[str, list[str]] | None) -> tuple[Workload, ImportReport]:
    """The law of the rows."""
    known = (
        {name: _numbers(columns[name], MAX_TOKENS) for name in LENGTHS + OF_A_LAW if name in columns} if columns else {}
    )
    found = {name: column for name, column in known.items() if column is not None}
    if columns is None or len(found) < len(known):
        raise InputError.from_problems(_damaged(source) or [f"{source.name}: not a table of numbers"])
    arrivals, compressible, requests = meta.arrivals(), meta.compressible(), meta.number("requests")
    intervals, stated = meta.intervals(), _stated(meta)
    meta.refuse()
    title = meta.text("name") or source.path.name.split(".")[0]
    split = meta.text("length_split") or None
    workload = Workload.from_arrays(
        *(found[name] for name in LENGTHS),
        weight=found["weight"],
        lower_tokens=found.get("lower_tokens"),
        total_tokens=found.get("total_tokens"),
        category=[label.strip() for label in columns["category"]] if "category" in columns else None,
        compressible=compressible or None,
        arrivals=arrivals,
        name=title,
        intervals=intervals,
        provenance=Provenance(
            name=title,
            source=meta.text("source"),
            licence=meta.text("licence", "license"),
            requests=None if requests is None else round(requests),
            notes=tuple(meta.notes),
            length_split=split,
            exact="lower_tokens" not in columns and not stated,
        ),
    ).with_stated_quantiles(stated)
    notes = tuple(filter(None, [split, arrivals.assumed, *meta.notes]))
    return workload, ImportReport(
        source.name, "fleetopt", workload.rows, workload.rows, rate_per_s=arrivals.rate_per_s, notes=notes
    )


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
    if stretched or (own.rate_per_s is None and own.assumed is not None and stated.rate_per_s is not None):
        return stated
    return replace(
        own,
        rate_per_s=stated.rate_per_s or own.rate_per_s,
        hourly_profile=stated.hourly_profile or own.hourly_profile,
        peak_over_mean=own.peak_over_mean if stated.peak_over_mean is None else stated.peak_over_mean,
        assumed=meta.text("arrivals") or own.assumed,
    )
