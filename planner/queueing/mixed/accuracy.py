"""How far mixed-batching predictions have been from simulation, by region: bands, margins and warnings as data.

The numbers are percentiles of predicted/simulated - 1 over the cases of a region (benchmarks/accuracy_bands.py). They hold for
requests that come as assumed: Poisson, lengths independent of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
        5th and 95th percentile, from the 4th and 96th of the cases, of predicted/simulated - 1 by metric.
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


# Percentiles of pools drawn at random and of the cases of docs/accuracy/mixed.md, as `benchmarks/accuracy_bands.py --set` prints
# them; docs/accuracy/bands.md tells how they hold on others. By hand: the lower ends of TTFT of join-shortest-queue with waiting,
# since at load 0.96 slot-bound pools of four came out 20-45% optimistic.
# fmt: off
REGIONS: Mapping[str, Region] = {r.name: r for r in (
    Region("random, load <= 0.7", 107,
           _band(-1, 2, -2, 3, -4, 8, -2, 1, -3, 1, -6, 3, -3, 2, -2, 1, -6, 2),
           _lean(-0.1, -0.4, -1.4, -1, -1.6, -2.6, -1.4, -0.9, -2.2)),
    Region("random, load <= 0.87", 32,
           _band(-2, 5, -3, 4, -6, 7, -2, 4, -4, 1, -9, 4, -4, 2, -2, 3, -4, 2),
           _lean(-0.4, -0.9, -2, -0.8, -2.4, -5.3, -0.9, -1.1, -2.3)),
    Region("random, load > 0.87", 11,
           _band(-6, 5, -9, 4, -20, 7, -2, 5, -9, 4, -13, 7, -4, 2, -3, 3, -8, 2),
           _lean(-2, -7.2, -13.2, -0.4, -5.3, -8.1, -1.6, -2, -4),
           warning="near saturation every percent of the rate moves the tail of TTFT: expect -5..+25% at the 99th percentile"),
    Region("random, short outputs", 50,
           _band(-1, 5, -2, 4, -3, 5, -3, 8, -5, 2, -5, 4, -3, 3, -2, 4, -6, 5),
           _lean(0.1, -0.5, -0.8, -0.7, -0.8, -1.7, -1.1, -0.5, -3.4)),
    Region("random, waiting for slots or memory", 59,
           _band(-9, 6, -16, 14, -38, 32, -6, 1, -5, 17, -6, 20, -4, 6, -4, 4, -8, 7),
           _lean(-1.9, -5.5, -13.8, -1.8, -2.5, -0.6, -2.4, -1.5, -4),
           reliable=False,
           warning="requests wait for slots or KV memory: TTFT p99 is off by up to -25..+60%; leave room or simulate"),
    Region("jsq, load <= 0.7", 89,
           _band(-7, 7, -4, 9, -5, 9, -2, 3, -2, 4, -4, 17, -3, 2, -2, 1, -4, 2),
           _lean(-0.4, 0.3, -0.4, -0.6, -0.9, -0.7, -1, -0.7, -2.3)),
    Region("jsq, load <= 0.87", 55,
           _band(-12, 6, -11, 7, -13, 11, -2, 3, -6, 2, -10, 5, -4, 3, -3, 1, -4, 1),
           _lean(-3.8, -1, -4.8, -0.5, -1.8, -2.8, -0.7, -0.8, -2.7)),
    Region("jsq, load > 0.87", 14,
           _band(-22, 6, -15, 11, -21, 12, -4, 4, -7, 3, -11, 9, -6, 3, -5, 2, -5, 1),
           _lean(-8.1, -6.4, -6.7, -0.8, -3.1, -4.4, -2.3, -1.7, -3.4),
           warning="near saturation every percent of the rate moves the tail of TTFT: expect -10..+25% at the 99th percentile"),
    Region("jsq, short outputs", 47,
           _band(-20, 12, -20, 5, -26, 4, -5, 10, -17, 13, -26, 9, -8, 7, -8, 5, -6, 3),
           _lean(-9.7, -12.5, -17.9, 0.5, -2.4, -3.8, -2.2, -2.5, -4),
           warning="few, short requests per replica: TTFT is off by up to -10..+40%, TPOT by up to -10..+45%"),
    Region("jsq, waiting for slots or memory", 21,
           _band(-35, 100, -40, 100, -35, 81, -4, 1, -4, 2, -18, 2, -2, 11, -3, 5, -5, 3),
           _lean(0.7, 0.5, -2, -1.5, -1.7, -4.2, -0.8, -1.1, -2.3),
           reliable=False,
           warning="requests wait for slots or KV memory: TTFT p99 is off by up to -45..+55%; leave room or simulate"),
    Region("p2c, load <= 0.7", 50,
           _band(-1, 7, -2, 8, -5, 11, -2, 2, -4, 4, -12, 6, -3, 3, -2, 3, -4, 2),
           _lean(-0.2, -0.4, -1.3, -0.2, -0.5, -1.5, -0.7, -0.3, -1.7)),
    Region("p2c, load <= 0.87", 24,
           _band(-2, 12, -1, 9, -1, 12, -2, 3, -7, 3, -16, 1, -4, 3, -2, 2, -4, 3),
           _lean(0.3, 0.9, 2, -0, -1.2, -8.3, -1.3, -0.7, -2)),
    Region("p2c, load > 0.87", 7,
           _band(-5, 13, -1, 10, -1, 14, -2, 3, -7, 4, -16, 1, -4, 3, -2, 2, -4, 4),
           _lean(-0.6, 1.7, 3.3, 0.5, 0, -8.5, 0.1, -0.4, -1.2),
           warning="near saturation every percent of the rate moves the tail of TTFT: expect -15..+5% at the 99th percentile"),
    Region("p2c, short outputs", 10,
           _band(-10, 12, -11, 9, -12, 13, -8, 15, -7, 17, -16, 18, -6, 9, -5, 13, -4, 10),
           _lean(-2.2, -1.4, 0.4, 1.2, -0.8, -1, -0.8, 1.5, 1.2),
           warning="few, short requests per replica: TTFT is off by up to 15%, TPOT by up to -15..+10%"),
    Region("p2c, waiting for slots or memory", 11,
           _band(-4, 12, -3, 9, -19, 36, -2, 3, -7, 3, -16, 3, -4, 3, -2, 2, -4, 3),
           _lean(-1.2, -1.7, -9.9, -1, -2.6, -3.5, -0.6, -1.4, -2),
           reliable=False,
           warning="requests wait for slots or KV memory: TTFT p99 is off by up to -25..+25%; leave room or simulate"),
    Region("rr", 139,
           _band(-2, 15, -1, 18, -3, 25, -10, 11, -10, 5, -9, 13, -4, 6, -6, 5, -6, 4),
           _lean(0.6, 1, 1, -0.8, -2, -2.3, -1.2, -0.5, -2.3)),
    Region("rr, waiting for slots or memory", 39,
           _band(-3, 30, -19, 32, -49, 48, -2, 2, -3, 10, -8, 19, -4, 10, -4, 4, -6, 5),
           _lean(0.2, -0.5, -5.4, -0.5, -0.5, -0.7, -1.5, -0.5, -2.2),
           reliable=False,
           warning="requests wait for slots or KV memory: TTFT p99 is off by up to -35..+95%; leave room or simulate"),
    Region("long prompts", 49,
           _band(-8, 27, -18, 26, -20, 48, -7, 30, -1, 50, -7, 16, -5, 20, -11, 16, -19, 25),
           _lean(0.5, 1, -1.3, -0.1, 2.3, -4.1, -0.5, 0.5, -1.5),
           reliable=False,
           warning="attention takes much of prefill: a long prompt stretches everybody's iterations, which is not followed"),
)}
# fmt: on


def region_of(routing: str, load: float, waiting: float, mean_steps: float, attention: float) -> Region:
    """Region of a prediction.

    Parameters
    ----------
    routing : str
        ``"random"``, ``"p2c"``, ``"jsq"`` or ``"rr"``.
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
        return REGIONS["rr" if waiting <= WAITING else "rr, waiting for slots or memory"]
    if waiting > WAITING:
        where = "waiting for slots or memory"
    elif mean_steps < SHORT_OUTPUT_STEPS:
        where = "short outputs"
    else:
        where = "load <= 0.7" if load <= 0.7 else "load <= 0.87" if load <= 0.87 else "load > 0.87"
    return REGIONS[f"{routing}, {where}"]


def metric_of(metric: str, level: float) -> str:
    """Name in :data:`METRICS` of ``metric`` ("ttft", "tpot", "e2e") at quantile ``level``: the next measured level above."""
    return f"{metric}_{'p50' if level <= 0.5 else 'p90' if level <= 0.9 else 'p99'}"
