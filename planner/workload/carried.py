"""A workload that travels inside a plan: its rows as they are, so that the plan can be asked again where no file is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from planner.errors import InputError
from planner.workload.arrivals import Arrivals
from planner.workload.intervals import Intervals
from planner.workload.sessions import Sessions
from planner.workload.trace import Stretches, Trace
from planner.workload.workload import COLUMNS, Provenance, Workload

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
        rows["trace"] = {name: getattr(trace, name).tolist() for name in TRACE} | {"near_s": trace.near_s}
        if (parts := trace.stretches) is not None:
            rows["stretches"] = {name: getattr(parts, name).tolist() for name in STRETCHES}
    if (known := workload.intervals) is not None:
        rows["intervals"] = {"counts": known.counts.tolist(), "width_s": known.width_s}
    if workload.sessions is not None:
        rows["sessions"] = {
            name: [None if x != x else x for x in column.tolist()]  # NaN is no JSON
            for name, column in workload.sessions.columns().items()
        }
    return rows


def _trace(columns: Mapping[str, Any], stretches: Mapping[str, Any] | None) -> Trace:
    """The requests one by one."""
    found: list[Any] = [np.array(columns[name], dtype=_dtype(name)) for name in TRACE]
    near = columns.get("near_s")
    parts = None if stretches is None else Stretches(*(np.array(stretches[name], dtype=float) for name in STRETCHES))
    return Trace(found[0], found[1], found[2], found[3], None if near is None else float(near), parts)


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
    if missing := [k for k in (*COLUMNS, "categories", "compressible") if k not in rows]:
        raise InputError.from_problems([f"{where}.rows.{key}: missing" for key in missing])
    arrivals = dict(summary.get("arrivals") or {})
    try:
        columns: dict[str, Any] = {name: np.array(rows[name], dtype=_dtype(name)) for name in COLUMNS}
        trace, sessions = rows.get("trace"), rows.get("sessions")
        # plans until 0.1 carry sums by the second under another name
        known = rows.get("intervals") or rows.get("path")
        found = Workload(
            name=str(summary.get("name", "workload")),
            categories=tuple(str(c) for c in rows["categories"]),
            compressible=tuple(None if c is None else float(c) for c in rows["compressible"]),
            arrivals=Arrivals(
                **{
                    **arrivals,
                    "dispersion": tuple((float(w), float(i)) for w, i in arrivals.get("dispersion") or ()),
                    "hourly_profile": tuple(float(x) for x in arrivals.get("hourly_profile") or ()),
                }
            ),
            provenance=Provenance(
                name=str(summary.get("name", "workload")),
                source=str(summary.get("source", "")),
                licence=str(summary.get("licence", "")),
                requests=summary.get("requests"),
                length_split=summary.get("length_split"),
            ),
            recorded=None if trace is None else _trace(trace, rows.get("stretches")),
            intervals=None
            if known is None
            else Intervals(np.array(known["counts"], dtype=float), float(known.get("width_s", 1.0))),
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


def _dtype(column: str) -> type:
    """Categories are indices, all else are numbers."""
    return np.int64 if column == "category" else np.float64


def is_filed(workload: Workload) -> bool:
    """Whether the workload's name stands for a file (or a shipped workload) with the very same content."""
    try:
        return Workload.from_file(workload.name).digest == workload.digest
    except InputError:
        return False
