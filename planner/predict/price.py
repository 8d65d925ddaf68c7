"""From the replicas a pool needs to the replicas bought and what they cost: redundancy, availability, spot prices."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np


def replicas_for_availability(needed: int, target: float, failures_per_hour: float, repair_hours: float) -> int:
    r"""Replicas so that the probability of having fewer than `needed` up is at most `target`.

    Replicas fail independently at a constant rate and are repaired in parallel, so each is up with probability
    :math:`A = 1/(1 + \lambda_f t_r)` and the number up is binomial.

    Parameters
    ----------
    needed
        Replicas that keep the promises, >= 1.
    target
        Largest acceptable P(up < needed), in (0, 1).
    failures_per_hour
        Failure rate of one replica [1/h].
    repair_hours
        Mean time to repair [h].

    Returns
    -------
    int
        At least `needed`.

    Examples
    --------
    >>> replicas_for_availability(10, 1e-3, failures_per_hour=0.01, repair_hours=1.0)
    12
    """
    up = 1.0 / (1.0 + failures_per_hour * repair_hours)
    if up >= 1.0:
        return needed
    total = needed
    while _binomial_below(total, needed, up) > target:
        total += max(1, int(0.1 * (total - needed)))
    # the step may have overshot
    while total > needed and _binomial_below(total - 1, needed, up) <= target:
        total -= 1
    return total


def _binomial_below(n: int, k: int, p: float) -> float:
    """P(Binomial(n, p) < k), 0 < p < 1: more than n - k of n are down."""
    down = np.arange(1, n + 1)
    logs = np.append(0.0, np.cumsum(np.log((n - down + 1) / down * ((1.0 - p) / p))))
    return float(np.exp(n * math.log(p) + logs[n - k + 1 :]).sum())


@dataclass(frozen=True, slots=True)
class PriceRule:
    """What a pool of one engine option costs.

    Parameters
    ----------
    gpus_per_replica
        GPUs of one replica.
    usd_per_gpu_hour
        On-demand or reserved price [USD/hour].
    spot_usd_per_gpu_hour
        Spot price [USD/hour]; ``None`` = no spot.
    spot_share
        Largest share of the pool's replicas on spot, in [0, 1].
    redundancy
        Replicas beyond the need (N + k).
    availability_target, failures_per_hour, repair_hours
        See :func:`replicas_for_availability`; ``None`` = no target.
    """

    gpus_per_replica: int
    usd_per_gpu_hour: float
    spot_usd_per_gpu_hour: float | None = None
    spot_share: float = 0.0
    redundancy: int = 0
    availability_target: float | None = None
    failures_per_hour: float = 0.0
    repair_hours: float = 0.0

    def bought(self, needed: int) -> int:
        """Replicas bought so that `needed` of them serve, redundancy and availability included."""
        spare = needed + self.redundancy
        if self.availability_target is None:
            return spare
        return max(
            spare,
            replicas_for_availability(needed, self.availability_target, self.failures_per_hour, self.repair_hours),
        )

    def spot_replicas(self, bought: int) -> int:
        """Replicas on spot: as many as the cap allows where spot is cheaper."""
        if self.spot_usd_per_gpu_hour is None or self.spot_usd_per_gpu_hour >= self.usd_per_gpu_hour:
            return 0
        return math.floor(self.spot_share * bought + 1e-9)

    def cost_usd_per_hour(self, bought: int) -> float:
        """Cost of that many replicas [USD/hour]."""
        spot = self.spot_replicas(bought)
        spot_price = self.spot_usd_per_gpu_hour or 0.0
        return self.gpus_per_replica * ((bought - spot) * self.usd_per_gpu_hour + spot * spot_price)

    def cost_of_need(self, needed: int) -> float:
        """Cost when `needed` replicas must serve, spares included [USD/hour]."""
        return self.cost_usd_per_hour(self.bought(needed))

    def most_below(self, cost_usd_per_hour: float) -> int:
        """The largest need that costs less; 0 where even one replica does not.

        >>> PriceRule(gpus_per_replica=2, usd_per_gpu_hour=3.0).most_below(12.0)
        1
        """
        below = cost_usd_per_hour * (1.0 - 1e-9)
        most = math.floor(below / max(self.least_usd_per_replica_hour, 1e-300))
        return bisect_left(range(1, most + 1), True, key=lambda need: not self.cost_of_need(need) < below)

    def most_within(self, gpus: int) -> int:
        """The largest need that so many GPUs hold, spares included; 0 where they hold none.

        >>> PriceRule(gpus_per_replica=2, usd_per_gpu_hour=3.0, redundancy=1).most_within(9)
        3
        """
        held = gpus // self.gpus_per_replica
        return bisect_right(range(1, held + 1), held, key=self.bought)

    @property
    def least_usd_per_replica_hour(self) -> float:
        """Price of a replica with as much spot as the cap allows, a lower bound of any replica's share [USD/hour]."""
        spot_price = self.spot_usd_per_gpu_hour
        if spot_price is None or spot_price >= self.usd_per_gpu_hour:
            return self.gpus_per_replica * self.usd_per_gpu_hour
        mixed = self.spot_share * spot_price + (1.0 - self.spot_share) * self.usd_per_gpu_hour
        return self.gpus_per_replica * mixed

    def least_cost_usd_per_hour(self, needed: float) -> float:
        """A lower bound of the cost for a need that may be fractional or itself a bound [USD/hour]."""
        if math.isinf(needed):
            return math.inf
        return self.least_usd_per_replica_hour * (math.ceil(needed - 1e-9) + self.redundancy)
