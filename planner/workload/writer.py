"""A workload written: as the text of the project's CSV, or inside a plan; read again it has the same requests, or the same law."""

from __future__ import annotations

import hashlib
import math
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from planner.errors import InputError, refuse
from planner.workload.arrivals import Arrivals
from planner.workload.sessions import Sessions
from planner.workload.trace import MOST_REQUESTS, SHIFT_S, Floats, Intervals, Ints, Stretches, Trace
from planner.workload.workload import COLUMNS, Provenance, Workload

STATED_QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
"""Quantiles of the whole that a file of some stretches carries along [1]."""

_LINE = 120  # characters of a line of counts
_UNSAFE = str.maketrans(dict.fromkeys('",\n\r;\t|', " "))


def _number(value: float, digits: int = 3) -> str:
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _numbers(values: Floats | Ints, digits: int = 3) -> list[str]:
    """Numbers as text, blank where there is none."""
    if not np.any(np.isnan(values)) and np.array_equal(values, np.rint(values)):
        return list(map(str, values.astype(np.int64).tolist()))
    return ["" if x != x else _number(x, digits) for x in values.tolist()]


def _arrival_lines(arrivals: Arrivals, trace: Trace | None) -> list[str]:
    """How requests came, as far as the rows do not say it themselves."""
    whole = trace is not None and trace.stretches is None
    rate, known = arrivals.rate_per_s, trace.rate_per_s if trace is not None and whole else math.nan
    scv = None if whole else arrivals.scv

    def number(value: float | None, digits: int = 6) -> str | None:
        return None if value is None else f"{value:.{digits}g}"

    return _lines(
        {
            "arrival_rate_per_s": None if rate is None or math.isclose(rate, known, rel_tol=1e-6) else number(rate, 10),
            "arrival_scv": number(scv),
            "arrival_scv_window_s": None if scv is None else number(arrivals.scv_window_s, 10),
            "dispersion": None if whole else " ".join(f"{w:g}={v:.6g}" for w, v in arrivals.dispersion),
            "peak_over_mean": None if whole and not arrivals.hourly_profile else number(arrivals.peak_over_mean),
            "peak_hour_over_mean": number(arrivals.peak_hour_over_mean),
            "hourly_profile": " ".join(f"{x:g}" for x in arrivals.hourly_profile),
            "arrivals": arrivals.assumed,
        }
    )


def _lines(told: Mapping[str, object]) -> list[str]:
    """``key: value`` of what is known."""
    return [f"{key}: {value}" for key, value in told.items() if value not in (None, "")]


def _metadata_lines(workload: Workload) -> list[str]:
    """The ``# key: value`` lines, in one form whatever alias they were read from."""
    from_source, trace = workload.provenance, workload.recorded
    parts = None if trace is None else trace.stretches
    lines = ["fleetopt-workload: 2", f"name: {workload.name}"]
    lines += _lines({name: getattr(from_source, name) for name in ("source", "licence", "requests", "length_split")})
    lines += _arrival_lines(workload.arrivals, trace)
    known = {n: p for n, p in zip(workload.categories, workload.compressible, strict=True) if p is not None and n}
    if known:
        lines.append("compressible: " + " ".join(f"{name}={p:g}" for name, p in known.items()))
    for of in ("input", "output", "total"):
        stated = workload.stated.get(of, {})
        if parts is not None and not stated:
            stated = {q: workload.quantile(q, of) for q in STATED_QUANTILES}
        if stated:
            lines.append(f"{of}_quantiles: " + " ".join(f"{q:g}={_number(v)}" for q, v in stated.items()))
    if parts is not None:
        columns = (_numbers(column, 9) for column in (parts.start_s, parts.seconds, parts.weight))
        lines.append(
            "stretches: of the whole trace; start [s], length [s], seconds of the trace that each second stands for"
        )
        lines += [f"stretch: {' '.join(row)}" for row in zip(*columns, strict=True)]
    if workload.intervals is not None:
        known_as = workload.intervals.coarser()
        lines.append(f"counts_interval_s: {known_as.width_s:g}")
        lines += [f"counts: {line}" for line in textwrap.wrap(" ".join(_numbers(known_as.counts)), _LINE)]
    lines += [f"note: {note}" for note in from_source.notes]
    return ["# " + " ".join(line.split()) for line in lines]


def csv_text(workload: Workload, keep_ids: bool = False) -> str:
    """Text of the project's CSV.

    Parameters
    ----------
    workload
        What to write.
    keep_ids
        Whether sessions keep their names; else a hash stands for each, which without all the names tells nothing of one.

    Returns
    -------
    str
        Metadata, header and rows: requests one by one where they are known, their times to a millisecond from the first on; else
        the rows of the law with their weights.
    """
    columns = _columns(workload, keep_ids)
    rows = map(",".join, zip(*columns.values(), strict=True))
    return "\n".join([*_metadata_lines(workload), ",".join(columns), *rows, ""])


def _columns(workload: Workload, keep_ids: bool) -> dict[str, list[str]]:
    """Cells by column."""
    trace, calls = workload.recorded, workload.sessions
    if calls is not None:
        return _of_calls(workload, calls, keep_ids)
    if trace is not None:
        columns = {"t_s": _numbers(trace.whole_times_s)}
        return columns | _lengths(workload, trace.input_tokens, trace.output_tokens, trace.category)
    known = workload.provenance
    rows, requests = np.arange(workload.rows), known.requests or 0
    each = np.rint(workload.weight * requests).astype(np.int64)
    law: dict[str, list[str]] = {}
    if not np.array_equal(workload.lower_tokens, workload.input_tokens + workload.output_tokens):
        law = {"lower_tokens": _numbers(workload.lower_tokens), "total_tokens": _numbers(workload.total_tokens)}
    alone = known.exact and not law and workload.intervals is None and bool(np.all(each > 0))
    if alone and int(each.sum()) == requests <= MOST_REQUESTS:
        rows = np.repeat(rows, each)
    else:
        law["weight"] = [f"{x:.10g}" for x in workload.weight.tolist()]
    return _lengths(workload, workload.input_tokens[rows], workload.output_tokens[rows], workload.category[rows]) | law


def _lengths(workload: Workload, inputs: Floats, outputs: Floats, category: Ints) -> dict[str, list[str]]:
    """Columns that all files have."""
    columns = {"input_tokens": _numbers(inputs), "output_tokens": _numbers(outputs)}
    if workload.categories != ("",):
        names = [name.translate(_UNSAFE) for name in workload.categories]
        columns["category"] = [names[k] for k in category.tolist()]
    return columns


def _of_calls(workload: Workload, calls: Sessions, keep_ids: bool) -> dict[str, list[str]]:
    """Columns of calls, in order of time where there is a clock."""
    clock = calls.clock_s
    order = np.arange(calls.calls) if clock is None else np.argsort(clock, kind="stable")
    names = list(calls.names) or list(map(str, range(calls.count)))
    if calls.names and not keep_ids:
        key = hashlib.blake2b("\n".join(sorted(names)).encode()).digest()
        names = [hashlib.blake2b(name.encode(), digest_size=6, key=key).hexdigest() for name in names]
    columns = {"t_s": _numbers((calls.times_s if clock is None else clock)[order])}
    columns |= _lengths(workload, calls.input_tokens[order], calls.output_tokens[order], calls.category[order])
    columns["session"] = [names[k].translate(_UNSAFE) for k in calls.session[order].tolist()]
    columns["cached_prefix_tokens"] = _numbers(calls.cached_tokens[order])
    if not np.all(np.isnan(calls.duration_s)):
        columns["duration_s"] = _numbers(calls.duration_s[order])
    for k, level in enumerate(calls.shared, 1):
        columns[f"prefix_{k}"] = ["" if g < 0 else str(g) for g in level.group[order].tolist()]
        columns[f"prefix_{k}_tokens"] = _numbers(level.tokens[order])
    return columns


TRACE = ("times_s", "input_tokens", "output_tokens", "category")
"""Columns of the requests one by one, where they are known."""

STRETCHES = ("start_s", "seconds", "weight")
"""Columns of the stretches they are of, where they are not all."""

DIGESTS = 2
"""What the digest of a workload is taken of: plans of other numbers carry one of less."""


def rows_to_carry(workload: Workload) -> dict[str, object]:
    """The distribution of a workload, JSON-ready: columns, categories and how compressible each is."""
    rows: dict[str, object] = {name: getattr(workload, name).tolist() for name in COLUMNS}
    rows |= {"categories": list(workload.categories), "compressible": list(workload.compressible)}
    rows["digest_of"] = DIGESTS
    if (trace := workload.recorded) is not None:
        parts = trace.stretches
        columns = {name: getattr(trace, name).tolist() for name in TRACE}
        rows["trace"] = columns | {"near_s": None if parts is None else SHIFT_S}
        if parts is not None:
            rows["stretches"] = {name: getattr(parts, name).tolist() for name in STRETCHES}
    if (known := workload.intervals) is not None:
        rows["intervals"] = {"counts": known.counts.tolist(), "width_s": known.width_s}
    if workload.sessions is not None:
        rows["sessions"] = {
            name: [None if x != x else x for x in column.tolist()]  # NaN is no JSON
            for name, column in workload.sessions.columns().items()
        }
    return rows


def _array(rows: Mapping[str, Any], name: str) -> Any:
    """A column; categories are indices, all else are numbers."""
    return np.array(rows[name], dtype=np.int64 if name == "category" else np.float64)


def carried_workload(summary: Mapping[str, Any], where: str = "workload") -> Workload:
    """The workload a plan carries, from what the plan says of it; predictions are those of the workload planned for.

    Parameters
    ----------
    summary
        A plan's ``workload``: name, arrivals, digest and ``rows`` as :func:`rows_to_carry` wrote them.
    where
        Key path for messages.

    Raises
    ------
    InputError
        Rows that are incomplete, or not those the digest was taken of.
    """
    rows = summary.get("rows")
    if not isinstance(rows, Mapping):
        raise InputError(f"{where}.rows: expected columns, got {type(rows).__name__}")
    refuse([f"{where}.rows.{key}: missing" for key in (*COLUMNS, "categories", "compressible") if key not in rows])
    try:
        columns = {name: _array(rows, name) for name in COLUMNS}
        arrivals, name = dict(summary.get("arrivals") or {}), str(summary.get("name", "workload"))
        arrivals["dispersion"] = tuple((float(w), float(i)) for w, i in arrivals.get("dispersion") or ())
        arrivals["hourly_profile"] = tuple(float(x) for x in arrivals.get("hourly_profile") or ())
        trace, stretches, sessions = (rows.get(key) for key in ("trace", "stretches", "sessions"))
        parts = None if stretches is None else Stretches(*(_array(stretches, name) for name in STRETCHES))
        # plans until 0.1 carry sums by the second under another name
        known = rows.get("intervals") or rows.get("path")
        found = Workload(
            name=name,
            categories=tuple(str(c) for c in rows["categories"]),
            compressible=tuple(None if c is None else float(c) for c in rows["compressible"]),
            arrivals=Arrivals(**arrivals),
            provenance=Provenance(
                source=str(summary.get("source", "")),
                licence=str(summary.get("licence", "")),
                requests=summary.get("requests"),
                length_split=summary.get("length_split"),
            ),
            recorded=None if trace is None else Trace(**{name: _array(trace, name) for name in TRACE}, stretches=parts),
            intervals=None if known is None else Intervals(_array(known, "counts"), float(known.get("width_s", 1.0))),
            sessions=None if sessions is None else Sessions.from_columns(sessions),
            **columns,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}.rows: cannot be read as a workload ({error})") from None
    if any(c.size != found.weight.size for c in columns.values()):
        raise InputError(f"{where}.rows: the columns are not equally long")
    if rows.get("digest_of") == DIGESTS and summary.get("digest") not in (None, found.digest):
        raise InputError(
            f"{where}.rows: are not the rows the digest was taken of",
            "A plan's rows are not for editing: plan again with the other traffic.",
        )
    return found


def is_filed(workload: Workload) -> bool:
    """Whether the workload's name stands for a file (or a shipped workload) with the very same content."""
    try:
        return Workload.from_file(workload.name).digest == workload.digest
    except InputError:
        return False
