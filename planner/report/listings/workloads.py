"""Workloads: the shipped ones with the hourly profiles, one line each, and how far two are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from planner.report.blocks import Block, Table, Text
from planner.report.listing import Alone, Listing
from planner.report.text.workload_summary import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from planner.workload.arrivals import Arrivals
    from planner.workload.combine import Drift
    from planner.workload.workload import Workload

README_HEAD = """\
# Shipped workloads

Every file holds requests, a row each, with their times where those are known, or a law of lengths with weights; its origin and
licence stand in its first lines. All were made by `fleetopt workload import` (plain CDFs: a stated split of the totals; azure:
Microsoft's Azure LLM inference traces of 2023, CC-BY-4.0). `fleetopt plan --cdf NAME` takes any of them;
`fleetopt workload show NAME` describes it. This file is written by
`fleetopt workload list --format markdown -o workloads/README.md`."""

COLUMNS = (
    "name",
    "requests",
    "rate/s",
    "mean input",
    "mean output",
    "p50 total",
    "p99 total",
    "categories",
    "licence",
    "note",
)


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
    rows = [
        {
            "name": w.name,
            "requests": w.provenance.requests,
            "arrival_rate_per_s": w.arrivals.rate_per_s,
            "mean_input_tokens": w.mean_input,
            "mean_output_tokens": w.mean_output,
            "p50_total_tokens": w.quantile(0.5),
            "p99_total_tokens": w.quantile(0.99),
            "categories": " ".join(c for c in w.categories if c),
            "licence": w.provenance.licence,
            "source": w.provenance.source,
            "length_split": w.provenance.length_split,
        }
        for w in workloads
    ]
    page: list[Block] = [
        Text([README_HEAD], only="document"),
        Table(COLUMNS, [_shown(w) for w in workloads], {"name", "categories", "licence", "note"}),
    ]
    if profiles:
        heading = "Hourly profiles of real services (`profiles/`, alibaba/ServeGen, Apache-2.0):"
        page += [Text([heading], only="document"), _hours(profiles)]
    return WorkloadList(rows, page, workloads, profiles)


def _shown(w: Workload) -> list[str]:
    notes = [w.provenance.length_split.split(":")[0]] if w.provenance.length_split else []
    notes += ["hourly profile"] if w.arrivals.hourly_profile else []
    notes += [w.arrivals.assumed] if w.arrivals.assumed and w.arrivals.rate_per_s is not None else []
    rate = w.arrivals.rate_per_s
    return [
        w.name,
        count(w.provenance.requests),
        "-" if rate is None else f"{rate:.4g}",
        *(count(v) for v in (w.mean_input, w.mean_output, w.quantile(0.5), w.quantile(0.99))),
        " ".join(c for c in w.categories if c) or "-",
        w.provenance.licence or "-",
        "; ".join(notes) or "-",
    ]


def _hours(profiles: Mapping[str, Arrivals]) -> Table:
    columns = ["profile", "rate/s", "peak/mean", "busiest hour", "quietest hour"]
    rows = [
        [
            name,
            f"{arrivals.rate_per_s or 0.0:.4g}",
            f"{arrivals.peak_over_mean or 0.0:.2f}",
            *(
                f"{at(arrivals.hourly_profile):.2f} at {arrivals.hourly_profile.index(at(arrivals.hourly_profile))}h"
                for at in (max, min)
            ),
        ]
        for name, arrivals in profiles.items()
    ]
    return Table(columns, rows, {"profile"})


def drift_listing(found: Drift, names: tuple[str, str]) -> Alone:
    """What changed from the first workload to the second."""
    title = f"{names[0]} -> {names[1]}"
    rows = [
        ["mean input", f"x {found.mean_input:.3f}", "ratio of the means"],
        ["mean output", f"x {found.mean_output:.3f}", "ratio of the means"],
        ["mean iterations", f"x {found.mean_iterations:.3f}", "at a chunk of 512 tokens"],
        ["rate", "-" if found.rate is None else f"x {found.rate:.3f}", "requests/s"],
        ["input law", f"{found.ks_input:.3f}", f"largest difference of F; typical factor {found.factor_input:.2f}"],
        ["output law", f"{found.ks_output:.3f}", f"largest difference of F; typical factor {found.factor_output:.2f}"],
        ["total law", f"{found.ks_total:.3f}", "largest difference of F"],
        ["joint law", f"{found.joint:.3f}", "total variation on octaves: 0 same, 1 nothing in common"],
    ]
    return Alone(found.to_rows(), [Table([title, "value", "meaning"], rows, {title, "meaning"})], found)
