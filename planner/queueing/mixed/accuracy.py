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
    Region("random, load <= 0.7", 97,
           _band(-2, 2, -2, 3, -5, 7, -2, 1, -3, 1, -8, 3, -3, 2, -2, 2, -6, 3),
           _lean(-0.1, -0.4, -1.4, -0.8, -1.4, -2.4, -1.9, -0.9, -2.1)),
    Region("random, load <= 0.87", 30,
           _band(-4, 10, -5, 8, -15, 19, -3, 4, -6, 4, -10, 5, -4, 4, -2, 6, -10, 6),
           _lean(-0.6, -1.3, -2.2, -0.5, -2.9, -6, -2.4, -0.8, -2.9)),
    Region("random, load > 0.87", 8,
           _band(-7, 10, -13, 22, -15, 47, -3, 4, -10, 4, -12, 5, -4, 6, -3, 6, -10, 6),
           _lean(-2.9, -5.8, -9.2, -0.5, -7.8, -9.2, -2.8, -1.6, -4.6),
           warning="near saturation every percent of the rate moves the tail of TTFT: expect -30..+20% at the 99th percentile"),
    Region("random, short outputs", 46,
           _band(-2, 10, -5, 19, -9, 31, -3, 9, -5, 2, -5, 5, -3, 6, -5, 12, -7, 5),
           _lean(0.4, -0.4, -0.5, -0.7, -0.8, -1.5, -0.5, 0.2, -3.2)),
    Region("random, waiting for slots or memory", 52,
           _band(-12, 5, -33, 28, -39, 81, -5, 3, -5, 20, -5, 20, -6, 5, -4, 8, -8, 17),
           _lean(-3.7, -4.5, -11.4, -1.7, -2.2, -0.9, -2.3, -1.7, -3.5),
           reliable=False,
           warning="requests wait for slots or KV memory: TTFT p99 is off by up to -45..+65%; leave room or simulate"),
    Region("jsq, load <= 0.7", 76,
           _band(-7, 4, -4, 12, -5, 10, -2, 2, -2, 5, -3, 17, -2, 3, -2, 2, -4, 2),
           _lean(-0.2, 0.3, -1.1, -0.3, -0.5, 0.5, -1, -0.7, -2)),
    Region("jsq, load <= 0.87", 49,
           _band(-13, 5, -11, 6, -14, 13, -2, 4, -4, 5, -5, 11, -3, 3, -2, 2, -4, 2),
           _lean(-4.3, -1.3, -4.6, -0.2, -1.2, -2.1, -1.3, -0.8, -2.2)),
    Region("jsq, load > 0.87", 13,
           _band(-22, 5, -13, 11, -18, 14, -3, 5, -5, 7, -8, 17, -6, 5, -5, 3, -6, 5),
           _lean(-7.1, -4.2, -6.1, -0.1, -2, -4.5, -1.1, -0.8, -3.4),
           warning="near saturation every percent of the rate moves the tail of TTFT: expect -15..+25% at the 99th percentile"),
    Region("jsq, short outputs", 39,
           _band(-15, 13, -19, 6, -25, 6, -1, 25, -6, 27, -13, 28, -4, 12, -6, 10, -5, 6),
           _lean(-8.1, -12, -18.3, 3.4, 0.6, -0.8, 1.4, -1, -2.2),
           warning="few, short requests per replica: TTFT is off by up to -15..+35%, TPOT by up to -20..+15%"),
    Region("jsq, waiting for slots or memory", 17,
           _band(-35, 83, -40, 63, -35, 73, -4, 4, -4, 5, -17, 11, -3, 11, -3, 3, -5, 2),
           _lean(0.7, 1.8, -2.5, -1.2, -1.5, -2, -0.8, -1.2, -3.8),
           reliable=False,
           warning="requests wait for slots or KV memory: TTFT p99 is off by up to -40..+55%; leave room or simulate"),
    Region("p2c, load <= 0.7", 40,
           _band(-1, 8, -2, 8, -5, 11, -1, 2, -3, 3, -11, 6, -3, 3, -2, 2, -4, 3),
           _lean(-0.2, -0.5, -1.4, -0.2, -0.6, -1.5, -0.5, -0.4, -1.4)),
    Region("p2c, load <= 0.87", 17,
           _band(-2, 9, -1, 7, -1, 10, -2, 4, -5, 4, -13, 1, -3, 3, -2, 2, -3, 3),
           _lean(0.3, 1, 2.3, 0, -1.2, -7.9, -1.3, -0.5, -2)),
    Region("p2c, load > 0.87", 5,
           _band(-5, 13, -1, 10, -1, 15, -2, 4, -5, 4, -13, 1, -3, 3, -2, 2, -3, 4),
           _lean(0.7, 2.3, 3.9, 0.7, 0.5, -9, 1.1, -0.5, -1.4),
           warning="near saturation every percent of the rate moves the tail of TTFT: expect -15..+15% at the 99th percentile"),
    Region("p2c, short outputs", 7,
           _band(-11, 9, -12, 7, -13, 10, -9, 15, -5, 8, -13, 13, -7, 9, -5, 10, -4, 10),
           _lean(-2.1, -1.5, -0.1, 0.2, -0.4, -1.2, -1, 1.9, 1.9),
           warning="few, short requests per replica: TTFT is off by up to 15%, TPOT by up to -15..+10%"),
    Region("p2c, waiting for slots or memory", 8,
           _band(-3, 9, -2, 7, -13, 49, -2, 4, -5, 4, -13, 3, -3, 3, -2, 2, -4, 3),
           _lean(-1.5, -1.1, -1.7, -0.7, -3, -3.4, -0.2, -1.2, -2.4),
           reliable=False,
           warning="requests wait for slots or KV memory: TTFT p99 is off by up to -35..+15%; leave room or simulate"),
    Region("rr", 118,
           _band(-2, 18, -1, 16, -2, 26, -6, 13, -11, 5, -10, 12, -2, 10, -5, 6, -4, 6),
           _lean(0.7, 1.2, 1, 0.3, -2, -2.1, 0.1, 0.2, -1.5)),
    Region("rr, waiting for slots or memory", 31,
           _band(-1, 104, -2, 301, -6, 299, -1, 5, -3, 6, -5, 11, -1, 25, -1, 33, -3, 35),
           _lean(1, 2.6, 34.9, 0.4, -0.4, -1.9, 0.4, 1, -0.2),
           reliable=False,
           warning="requests wait for slots or KV memory: TTFT is up to four times too long; leave room or simulate"),
    Region("long prompts", 41,
           _band(-9, 29, -21, 41, -14, 71, -8, 46, -4, 107, -6, 18, -8, 27, -3, 22, -8, 47),
           _lean(0.1, 0.8, -0.6, 1.1, 2.6, -2.8, 0, 2, -1.4),
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
