"""Workloads: the shipped ones with the hourly profiles, one line each, and how far two are apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from planner.report.blocks import Table
from planner.report.pages import Alone, Listing, pages, rows_of, told_beside, written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from planner.workload.arrivals import Arrivals
    from planner.workload.combine import Drift
    from planner.workload.workload import Workload

_page = pages(__file__)


@dataclass(frozen=True, slots=True)
class WorkloadList(Listing):
    """Shipped workloads as rows.

    Parameters
    ----------
    workloads, profiles
        What to list.
    """

    workloads: Sequence[Workload]
    profiles: Mapping[str, Arrivals]

    versioned: ClassVar[bool] = True


def workload_list(workloads: Sequence[Workload], profiles: Mapping[str, Arrivals]) -> WorkloadList:
    """Workloads and hourly profiles as rows."""
    told: dict[str, Callable[[Workload], object]] = {
        "categories": lambda w: " ".join(c for c in w.categories if c),
        "median": lambda w: w.quantile(0.5),
        "longest": lambda w: w.quantile(0.99),
        "note": _note,
    }
    page = _page("workloads", None, workloads=workloads, **told)
    if profiles:
        page += _page("profiles", None, items=[_hours(name, arrivals) for name, arrivals in profiles.items()])
    return WorkloadList(rows_of(told_beside(__file__)["row"], workloads, **told), page, workloads, profiles)


def _note(w: Workload) -> str:
    notes = [w.provenance.length_split.split(":")[0]] if w.provenance.length_split else []
    notes += ["hourly profile"] if w.arrivals.hourly_profile else []
    notes += [w.arrivals.assumed] if w.arrivals.assumed and w.arrivals.rate_per_s is not None else []
    return "; ".join(notes)


def _hours(name: str, arrivals: Arrivals) -> dict[str, object]:
    """The rate of a service, and its busiest and quietest hour."""
    hours = arrivals.hourly_profile
    ends = (f"{of:.2f} at {hours.index(of)}h" for of in (max(hours), min(hours)))
    rate, peak = arrivals.rate_per_s or 0.0, arrivals.peak_over_mean or 0.0
    return {"name": name, "rate": rate, "peak": peak, **dict(zip(("busiest", "quietest"), ends, strict=True))}


def drift_listing(found: Drift, names: tuple[str, str]) -> Alone:
    """What changed from the first workload to the second."""
    title = f"{names[0]} -> {names[1]}"
    rows = [[written(text, found, {}) or "-" for text in told] for told in told_beside(__file__)["drift"]]
    return Alone(found.to_rows(), [Table([title, "value", "meaning"], rows, {title, "meaning"})], found)
