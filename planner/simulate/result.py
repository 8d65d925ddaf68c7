"""What a simulated pool did."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from planner.promise import MEAN
from planner.shared.record import Record
from planner.simulate.statistics import Estimate, batch_means, enough_for, range_of_runs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Sample:
    """The measured requests of one seed, in order of arrival: times [s] (TPOT only of those with two tokens or more)."""

    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    e2e_s: NDArray[np.float64]

    def within(self, limits: Mapping[str, float]) -> NDArray[np.float64]:
        """1 for every request within all limits [s], 0 for the others; one without a TPOT keeps it. Shape (requests,)."""
        kept = self.ttft_s <= limits.get("ttft_s", math.inf)
        kept &= self.e2e_s <= limits.get("e2e_s", math.inf)
        # the first token of one token is its last
        several = self.e2e_s > self.ttft_s
        kept[several] &= self.tpot_s <= limits.get("tpot_s", math.inf)
        return kept.astype(float)


@dataclass(frozen=True, slots=True)
class SimulationResult(Record):
    """What a simulated pool did, with 95% intervals from batch means.

    Parameters
    ----------
    ttft_s, tpot_s, e2e_s
        Quantile -> estimate [s].
    ttft_mean_s, tpot_mean_s, e2e_mean_s
        Means [s].
    throughput_per_s
        Completions per second while requests arrived, over seeds [1/s].
    arrival_rate_per_s
        Realised rate [1/s].
    busy_fraction
        Share of time a replica was in an iteration.
    mean_running
        Requests resident in a replica, time average.
    slot_occupancy
        `mean_running` / slots; None without a slot limit.
    preemptions_per_request
        Evictions per request sent.
    stable
        False when the backlog grew all the time: then no quantile means anything.
    sent, completed, rejected, pending
        Requests over all seeds; `rejected` were turned away or given up for good, `pending` were never answered otherwise.
    preset, routing, replicas, seeds, requests
        How it was run; `requests` per seed.
    warnings
        What to know before believing it.
    whole
        Whether runs are other draws of a trace that is all there is: then intervals are the range of the runs.
    clients
        What clients met: goodput, shares of attempts turned away and given up, attempts per request, shares of the prompts found in
        caches and in host memory; ``None`` where nothing is limited and nothing comes back.
    samples
        The measured times by seed (not part of ``to_dict``).
    """

    ttft_s: Mapping[float, Estimate]
    tpot_s: Mapping[float, Estimate]
    e2e_s: Mapping[float, Estimate]
    ttft_mean_s: Estimate
    tpot_mean_s: Estimate
    e2e_mean_s: Estimate
    throughput_per_s: Estimate
    arrival_rate_per_s: float | None
    busy_fraction: Estimate
    mean_running: Estimate
    slot_occupancy: float | None
    preemptions_per_request: float
    stable: bool
    sent: int
    completed: int
    rejected: int
    pending: int
    preset: str
    routing: str
    replicas: int
    seeds: tuple[int, ...]
    requests: int
    warnings: tuple[str, ...] = ()
    whole: bool = False
    clients: Mapping[str, float] | None = None
    samples: tuple[Sample, ...] = field(default=(), repr=False, compare=False)

    def quantile(self, metric: str, share: float) -> Estimate:
        """Estimate of the `share` quantile of ``ttft_s``, ``tpot_s`` or ``e2e_s``, of their mean where it is
        :data:`planner.promise.MEAN`, from the measured times."""
        known: Mapping[float, Estimate] = getattr(self, metric)
        if share in known:
            return known[share]
        estimate = range_of_runs if self.whole else batch_means
        return estimate([getattr(s, metric) for s in self.samples], None if share == MEAN else share)

    def share_within(self, limits: Mapping[str, float], share: float) -> Estimate:
        """Share of the requests within all limits [s], long enough a run where `share` of them is promised [1]."""
        estimate = range_of_runs if self.whole else batch_means
        found = estimate([s.within(limits) for s in self.samples])
        measured = sum(s.ttft_s.size for s in self.samples)
        return replace(found, enough=found.enough and enough_for(share, measured))
