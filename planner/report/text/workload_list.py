"""Shipped workloads, one line each, and the hourly profiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from planner.record import Record
from planner.report.blocks import Block, Table, Text
from planner.report.text.workload_summary import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from planner.workload.arrivals import Arrivals
    from planner.workload.workload import Workload

README_HEAD = """\
# Shipped workloads

Every file holds requests, a row each, with their times where those are known, or a law of lengths with weights; its origin and
licence stand in its first lines. All were made by `fleetopt workload import` (plain CDFs: a stated split of the totals; azure:
Microsoft's Azure LLM inference traces of 2023, CC-BY-4.0). `fleetopt plan --cdf NAME` takes any of them;
`fleetopt workload show NAME` describes it. This file is written by
`fleetopt workload list --format markdown -o workloads/README.md`."""

LIST_COLUMNS = (
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
class WorkloadList(Record):
    """Shipped workloads as rows.

    Parameters
    ----------
    workloads, profiles
        What to list.
    """

    workloads: Sequence[Workload]
    profiles: Mapping[str, Arrivals]

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("workloads", "profiles")

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per workload."""
        return [
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
            for w in self.workloads
        ]


def blocks(listed: WorkloadList) -> list[Block]:
    """One line per workload."""
    rows = []
    for w in listed.workloads:
        notes = [w.provenance.length_split.split(":")[0]] if w.provenance.length_split else []
        notes += ["hourly profile"] if w.arrivals.hourly_profile else []
        notes += [w.arrivals.assumed] if w.arrivals.assumed and w.arrivals.rate_per_s is not None else []
        values = (w.mean_input, w.mean_output, w.quantile(0.5), w.quantile(0.99))
        rate = w.arrivals.rate_per_s
        rows.append(
            [
                w.name,
                count(w.provenance.requests),
                "-" if rate is None else f"{rate:.4g}",
                *(count(v) for v in values),
                " ".join(c for c in w.categories if c) or "-",
                w.provenance.licence or "-",
                "; ".join(notes) or "-",
            ]
        )
    found: list[Block] = [
        Text([README_HEAD], only="document"),
        Table(LIST_COLUMNS, rows, {"name", "categories", "licence", "note"}),
    ]
    if listed.profiles:
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
            for name, arrivals in listed.profiles.items()
        ]
        heading = "Hourly profiles of real services (`profiles/`, alibaba/ServeGen, Apache-2.0):"
        found += [Text([heading], only="document"), Table(columns, rows, {"profile"})]
    return found
