"""What every latency method answers, whatever its physics: the contract between the methods and the pool sizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["PoolModel", "Prediction", "same_band", "unstable"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Latency and occupancy of a pool at one rate and number of replicas.

    Parameters
    ----------
    quantiles
        Levels of the latency tuples, ascending.
    ttft_s, tpot_s, e2e_s
        Quantiles [s]; inf when unstable.
    load
        Rate over capacity.
    slot_occupancy, mean_running
        Mean busy slots / slots; mean sequences per replica.
    wait_probability
        Probability that an arrival waits for a slot or memory.
    bands
        Metric -> one (low, high) per level: the truth lies within ``value * (1 + low) .. value * (1 + high)``, as
        measured for the region.
    margins
        Metric -> one factor >= 1 per level on the predicted value when it is held against a promise.
    warnings
        Region-specific caveats.
    """

    quantiles: tuple[float, ...]
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    e2e_s: tuple[float, ...]
    load: float
    slot_occupancy: float
    mean_running: float
    wait_probability: float
    bands: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    margins: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def _place(self, metric: str, quantile: float) -> int:
        for k, level in enumerate(self.quantiles):
            if abs(level - quantile) < 1e-12:
                return k
        raise KeyError(f"{metric} was not predicted at quantile {quantile}")

    def value(self, metric: str, quantile: float) -> float:
        """The value of `metric` at one of the levels [s]."""
        return float(getattr(self, metric)[self._place(metric, quantile)])

    def margin(self, metric: str, quantile: float) -> float:
        """Factor on that value when it is held against a promise [1]."""
        factors = self.margins.get(metric)
        return 1.0 if factors is None else factors[self._place(metric, quantile)]

    def held(self, metric: str, quantile: float) -> float:
        """The value that is held against a promise: prediction times margin [s]."""
        return self.value(metric, quantile) * self.margin(metric, quantile)


def same_band(quantiles: tuple[float, ...], low: float, high: float) -> tuple[tuple[float, float], ...]:
    """One band for every level."""
    return ((low, high),) * len(quantiles)


class PoolModel(Protocol):
    """One pool under one latency method: built once per law and engine, asked for many rates and sizes."""

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of one replica [1/s]."""

    def predict(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """Latency at a pool rate [1/s] spread over `replicas`, at the given levels (ascending)."""


def unstable(quantiles: tuple[float, ...], load: float) -> Prediction:
    """The prediction for a pool that cannot keep up: every latency grows without bound."""
    never = (math.inf,) * len(quantiles)
    return Prediction(quantiles, never, never, never, load, 1.0, math.inf, 1.0)
