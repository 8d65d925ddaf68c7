"""The result of putting a standing fleet under load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

from planner.fleet.fleet import Fleet, Verdict
from planner.fleet.sure import chance_at
from planner.promise import PROMISE_METRICS
from planner.shared.notebook import InNotebooks
from planner.shared.record import json_number
from planner.studies.served import Served, served_of


@dataclass(frozen=True, slots=True)
class Evaluation(InNotebooks):
    """A fixed fleet at one or more rates.

    Parameters
    ----------
    inputs
        The question, in the options' own names.
    capacity_per_s
        Largest stable rate of the fleet [1/s].
    rates_per_s
        Rates tried [1/s].
    verdicts
        For each rate, every pool.
    levels
        Quantile levels told of.
    served
        The fleet and its traffic.
    chances
        For each rate, the chance that every promise is kept [1]; ``None`` where the errors of iteration times are not known.
    """

    inputs: Mapping[str, object]
    capacity_per_s: float
    rates_per_s: tuple[float, ...]
    verdicts: tuple[tuple[Verdict, ...], ...]
    levels: tuple[float, ...]
    served: Served
    chances: tuple[float | None, ...]

    document: ClassVar[str] = "fleetopt-evaluation"
    written: ClassVar[tuple[str, ...]] = ("inputs", "served", "capacity_per_s", "holds", "chances", "rows=to_rows")

    def __repr__(self) -> str:
        rates = ", ".join(f"{r:g}" for r in self.rates_per_s)
        return f"<Evaluation: {rates} requests/s, {'every promise holds' if self.holds else 'some promise is broken'}>"

    @property
    def holds(self) -> bool:
        """Whether every promise holds at every rate."""
        return all(not v.broken for row in self.verdicts for v in row)

    def beside(self, other: Evaluation) -> Evaluation:
        """Both at all their rates, ascending."""
        columns = [zip(e.rates_per_s, e.verdicts, e.chances, strict=True) for e in (self, other)]
        rates, verdicts, chances = zip(*sorted(chain(*columns), key=lambda row: row[0]), strict=True)
        return replace(self, rates_per_s=rates, verdicts=verdicts, chances=chances)

    def to_rows(self) -> list[dict[str, object]]:
        """One row per rate and pool."""
        rows = []
        for fleet_rate, row in zip(self.rates_per_s, self.verdicts, strict=True):
            for v in row:
                p = v.prediction
                out: dict[str, object] = {
                    "rate_per_s": fleet_rate,
                    "pool": v.pool,
                    "pool_rate_per_s": v.arrival_rate_per_s,
                    "load": p.load,
                    "slot_occupancy": p.slot_occupancy,
                    "running": json_number(p.mean_running),
                }
                for metric in PROMISE_METRICS:
                    for q, value in zip(p.quantiles, getattr(p, metric), strict=True):
                        if q in self.levels:
                            out[f"{metric.removesuffix('_s')}_p{100 * q:.10g}_s"] = json_number(float(value))
                for promise, share in v.shares:
                    out[promise.column] = json_number(share)
                if v.overload is not None:
                    out |= {k: json_number(x) for k, x in v.overload.items() if k != "demand_per_s"}
                out["holds"] = not v.broken
                out["broken"] = "; ".join(b.label for b in v.broken) or None
                rows.append(out)
        return rows


def evaluation_of(fleet: Fleet, rates: Sequence[float]) -> Evaluation:
    """Evaluate a standing fleet at every rate [1/s]."""
    verdicts = tuple(tuple(fleet.at(rate)) for rate in rates)
    capacity = fleet.capacity_per_s if fleet.pools else math.inf
    chances = tuple(chance_at(fleet, rate) for rate in rates)
    return Evaluation(
        fleet.question.asked, capacity, tuple(rates), verdicts, fleet.told_levels, served_of(fleet), chances
    )
