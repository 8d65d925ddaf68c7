"""Whose traffic by the hour, on which pools, and how replicas come and go: what questions about a day begin with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.ask.asked import saved_of
from planner.ask.plan import options_of
from planner.errors import InputError, refuse
from planner.plans import Plan, SavedPool
from planner.question.compiled import compile_question, rate_of, stated_rate
from planner.question.options import PlanInputs
from planner.size.assemble import fleet_of
from planner.size.fleet import Fleet
from planner.size.shapes import standing_fleet
from planner.units import HOUR_S
from planner.workload.hours import hourly_rates
from planner.workload.importing import Frame, load_workload, taken
from planner.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class Elasticity:
    """How replicas come and go.

    Parameters
    ----------
    startup_s
        From starting a replica until it serves [s]; it is paid for from the start.
    dwell_s
        A pool keeps its number of replicas at least this long, in whole hours [s].
    buffer
        Added to the traffic of every hour, e.g. 0.1 [1].
    rate_is
        ``mean``: the rate is the mean over the hours; ``peak``: that of the busiest hour.
    """

    startup_s: float = 240.0
    dwell_s: float = 0.0
    buffer: float = 0.0
    rate_is: str = "mean"

    def __post_init__(self) -> None:
        problems = [
            f"{name}: must not be negative or infinite, got {getattr(self, name)!r}"
            for name in ("startup_s", "dwell_s", "buffer")
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0.0)
        ]
        if self.rate_is not in ("mean", "peak"):
            problems.append(f"rate_is: {self.rate_is!r} is none of mean, peak")
        refuse(problems)

    @property
    def startup_hours(self) -> float:
        """Start-up time [h]."""
        return self.startup_s / HOUR_S

    @property
    def dwell_hours(self) -> int:
        """Whole hours a count is kept [h]."""
        return max(1, math.ceil(self.dwell_s / HOUR_S - 1e-9))


class Hourly:
    """Whose traffic by the hour, on which pools: what questions about hours and months ask about.

    Without an `elasticity`, whose ``rate_is`` holds where no option says another, the hours do not matter: the rate is the one that
    a plan is sized for, where one need be `stated`. Where nothing says what they are, `flat` ones are alike.
    """

    def __init__(
        self,
        fleet: Plan | Workload | str | Path | None,
        workload: Workload | Frame | str | Path | None,
        scenario: str | None,
        options: Mapping[str, Any],
        hours: str | Path | None = None,
        elasticity: Elasticity | None = None,
        stated: bool = True,
        flat: str | None = None,
    ) -> None:
        workload = taken(workload)
        data = options_of(workload, options)
        if elasticity is not None:
            if data.get("headroom") is not None and elasticity.buffer:
                raise InputError("headroom and buffer are two names of one thing", "Give one of them.")
            elasticity = replace(elasticity, rate_is=str(data.pop("rate_is", elasticity.rate_is)))
        if isinstance(fleet, Workload):
            data["cdf"] = fleet.name
            fleet, workload = None, fleet
        self.standing: tuple[SavedPool, ...] = ()
        folder: Path | None = None
        if fleet is None:
            self.question = PlanInputs.from_dict(data)
        else:
            saved = saved_of(fleet)
            self.question = saved.inputs(None if isinstance(fleet, Plan) else scenario, data)
            self.standing, folder = saved.pools, saved.folder
        if isinstance(workload, Workload):
            self.loaded = workload
        else:
            self.loaded = load_workload(self.question.cdf) if fleet is None else saved.traffic(self.question.cdf)
        if elasticity is None:
            self.peak = rate_of(self.question, self.loaded) if stated else math.nan
            return
        self.rates = hourly_rates(hours, self.loaded, folder, flat)
        if self.rates.mean_rate_per_s is not None and self.question.rate is None:
            # rates in the file are the fleet's own
            self.rate, self.elasticity = self.rates.mean_rate_per_s, replace(elasticity, rate_is="mean")
        else:
            self.rate, self.elasticity = stated_rate(self.question, self.loaded), elasticity
        if not self.elasticity.buffer:
            # of this call, else of the plan
            self.elasticity = replace(self.elasticity, buffer=self.question.headroom)
        self.question = replace(self.question, rate_is=None, headroom=0.0)
        self.peak = max(self.rates.rates_per_s(self.rate, self.elasticity.rate_is)) * (1.0 + self.elasticity.buffer)

    def fleet(self) -> Fleet:
        """The pools that stand, else those of the cheapest fleet, at the rate of the busiest hour."""
        question = compile_question(self.question, self.loaded, self.peak)
        return standing_fleet(question, self.standing) if self.standing else fleet_of(question)
