"""How far mixed-batching predictions have been from simulation, by region: bands, margins and warnings as data.

The numbers are percentiles of predicted/simulated - 1 over the cases of a region (benchmarks/
accuracy_mixed.py prints them, docs/accuracy/mixed.md lists them). They hold for requests that come as assumed:
Poisson (or with the dispersion given), lengths independent of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["METRICS", "REGIONS", "Region", "metric_of", "region_of"]

METRICS = ("ttft_p50", "ttft_p90", "ttft_p99", "tpot_p50", "tpot_p90", "tpot_p99", "e2e_p50", "e2e_p90", "e2e_p99")
# Mean decode steps below which a request meets few iterations: their mean is far from its expectation.
SHORT_OUTPUT_STEPS = 64
# Share of requests waiting for a slot or for memory from which the wait shows in the 99th percentile.
WAITING = 0.002
# Share of attention in the time of prefill from which a long prompt delays those behind it by more than its length.
ATTENTION = 0.12


@dataclass(frozen=True, slots=True)
class Region:
    """Measured error of one region.

    Attributes
    ----------
    name : str
    cases : int
        Simulated cases behind the numbers.
    band : Mapping[str, tuple[float, float]]
        5th and 95th percentile of predicted/simulated - 1 by metric.
    lean : Mapping[str, float]
        First quartile of the same, the usual optimism.
    reliable : bool
        False where the band is too wide to size with.
    warning : str
        What to tell the user; empty where there is nothing to say.
    """

    name: str
    cases: int
    band: Mapping[str, tuple[float, float]]
    lean: Mapping[str, float]
    reliable: bool = True
    warning: str = ""


def _band(*pairs: float) -> dict[str, tuple[float, float]]:
    return {m: (pairs[2 * i] / 100, pairs[2 * i + 1] / 100) for i, m in enumerate(METRICS)}


def _lean(*quartiles: float) -> dict[str, float]:
    return {m: q / 100 for m, q in zip(METRICS, quartiles, strict=True)}


# fmt: off
REGIONS: Mapping[str, Region] = {r.name: r for r in (
    Region("random, load <= 0.7", 0,
           _band(-10, 10, -10, 10, -20, 20, -10, 10, -10, 10, -12, 12, -5, 5, -5, 5, -10, 10), _lean(0, 0, 0, 0, 0, 0, 0, 0, 0)),
    Region("random, load <= 0.87", 0,
           _band(-10, 10, -10, 10, -20, 20, -10, 10, -10, 10, -12, 12, -5, 5, -5, 5, -10, 10), _lean(0, 0, 0, 0, 0, 0, 0, 0, 0)),
    Region("random, load > 0.87", 0,
           _band(-10, 10, -10, 10, -20, 20, -10, 10, -10, 10, -12, 12, -5, 5, -5, 5, -10, 10), _lean(0, 0, 0, 0, 0, 0, 0, 0, 0)),
    Region("random, short outputs", 0,
           _band(-10, 10, -10, 10, -20, 20, -10, 10, -10, 10, -12, 12, -5, 5, -5, 5, -10, 10), _lean(0, 0, 0, 0, 0, 0, 0, 0, 0)),
    Region("random, waiting for slots or memory", 0,
           _band(-10, 10, -10, 10, -20, 20, -10, 10, -10, 10, -12, 12, -5, 5, -5, 5, -10, 10), _lean(0, 0, 0, 0, 0, 0, 0, 0, 0)),
    Region("jsq, load <= 0.7", 0,
           _band(-10, 10, -10, 10, -20, 20, -10, 10, -10, 10, -12, 12, -5, 5, -5, 5, -10, 10), _lean(0, 0, 0, 0, 0, 0, 0, 0, 0)),
    Region("jsq, load <= 0.87", 0,
           _band(-10, 10, -10, 10, -20, 20, -10, 10, -10, 10, -12, 12, -5, 5, -5, 5, -10, 10), _lean(0, 0, 0, 0, 0, 0, 0, 0, 0)),
    Region("jsq, load > 0.87", 0,
           _band(-10, 10, -10, 10, -20, 20, -10, 10, -10, 10, -12, 12, -5, 5, -5, 5, -10, 10), _lean(0, 0, 0, 0, 0, 0, 0, 0, 0)),
    Region("jsq, short outputs", 0,
           _band(-10, 10, -10, 10, -20, 20, -10, 10, -10, 10, -12, 12, -5, 5, -5, 5, -10, 10), _lean(0, 0, 0, 0, 0, 0, 0, 0, 0)),
    Region("jsq, waiting for slots or memory", 0,
           _band(-10, 10, -10, 10, -20, 20, -10, 10, -10, 10, -12, 12, -5, 5, -5, 5, -10, 10), _lean(0, 0, 0, 0, 0, 0, 0, 0, 0)),
    Region("rr", 0,
           _band(-10, 10, -10, 10, -20, 20, -10, 10, -10, 10, -12, 12, -5, 5, -5, 5, -10, 10), _lean(0, 0, 0, 0, 0, 0, 0, 0, 0)),
    Region("long prompts", 0,
           _band(-10, 10, -10, 10, -20, 20, -10, 10, -10, 10, -12, 12, -5, 5, -5, 5, -10, 10), _lean(0, 0, 0, 0, 0, 0, 0, 0, 0)),
)}
# fmt: on


def region_of(routing: str, load: float, waiting: float, mean_steps: float, attention: float) -> Region:
    """Region of a prediction.

    Parameters
    ----------
    routing : str
        ``"random"``, ``"jsq"`` or ``"rr"``.
    load, waiting : float
        Arrival rate over maximum throughput, share of requests that wait for a slot or for memory.
    mean_steps : float
        Mean decode steps of a request.
    attention : float
        Share of attention in the time of prefill beyond the floors.
    """
    if attention > ATTENTION:
        return REGIONS["long prompts"]
    if routing == "rr":
        return REGIONS["rr"]
    if waiting > WAITING:
        return REGIONS[f"{routing}, waiting for slots or memory"]
    if mean_steps < SHORT_OUTPUT_STEPS:
        return REGIONS[f"{routing}, short outputs"]
    if load <= 0.7:
        return REGIONS[f"{routing}, load <= 0.7"]
    if load <= 0.87:
        return REGIONS[f"{routing}, load <= 0.87"]
    return REGIONS[f"{routing}, load > 0.87"]


def metric_of(metric: str, level: float) -> str:
    """Name in :data:`METRICS` of ``metric`` ("ttft", "tpot", "e2e") at quantile ``level``: the next measured level above."""
    return f"{metric}_{'p50' if level <= 0.5 else 'p90' if level <= 0.9 else 'p99'}"
