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
    Region("random, load <= 0.7", 96,
           _band(-1, 2, -2, 2, -4, 8, -2, 1, -3, 1, -6, 3, -3, 2, -2, 1, -5, 2),
           _lean(-0.1, -0.4, -1.3, -0.8, -1.3, -2.3, -1.6, -0.7, -2)),
    Region("random, load <= 0.87", 31,
           _band(-2, 7, -3, 3, -5, 5, -2, 5, -4, 2, -9, 5, -4, 3, -2, 4, -4, 2),
           _lean(-0.4, -0.7, -2, -0.5, -2.2, -5.3, -0.8, -1, -2.3)),
    Region("random, load > 0.87", 8,
           _band(-4, 7, -9, 3, -15, 5, -2, 5, -10, 2, -12, 5, -4, 3, -3, 4, -8, 2),
           _lean(-1.7, -6.9, -12.4, -0.2, -6.4, -9.8, -1.5, -1.2, -3.1),
           warning="near saturation every percent of the rate moves the tail of TTFT: expect -5..+20% at the 99th percentile"),
    Region("random, short outputs", 46,
           _band(-1, 6, -2, 4, -3, 6, -3, 9, -5, 1, -6, 5, -3, 4, -2, 4, -6, 5),
           _lean(0.3, -0.6, -0.8, -0.6, -0.8, -1.5, -1, -0.5, -3.8)),
    Region("random, waiting for slots or memory", 52,
           _band(-15, 3, -32, 15, -39, 40, -5, 1, -6, 19, -6, 20, -5, 5, -4, 3, -8, 8),
           _lean(-4.9, -9.4, -16, -1.6, -2.5, -1, -2.5, -1.6, -4.1),
           reliable=False,
           warning="requests wait for slots or KV memory: TTFT p99 is off by up to -30..+65%; leave room or simulate"),
    Region("jsq, load <= 0.7", 74,
           _band(-7, 4, -5, 9, -5, 11, -2, 2, -2, 5, -3, 17, -2, 2, -3, 1, -4, 2),
           _lean(-0.3, 0.3, -0.2, -0.3, -0.5, 0.3, -1, -0.7, -2.4)),
    Region("jsq, load <= 0.87", 51,
           _band(-12, 4, -11, 8, -13, 12, -1, 5, -3, 5, -7, 14, -3, 4, -3, 2, -4, 2),
           _lean(-4.2, -1.1, -5, -0.2, -1.2, -1.8, -0.7, -0.8, -2.7)),
    Region("jsq, load > 0.87", 13,
           _band(-22, 4, -15, 11, -21, 13, -3, 5, -5, 7, -7, 20, -5, 4, -5, 2, -4, 2),
           _lean(-8.4, -6.9, -6.9, -0.6, -2.3, -4.6, -2.4, -1.7, -3.4),
           warning="near saturation every percent of the rate moves the tail of TTFT: expect -15..+25% at the 99th percentile"),
    Region("jsq, short outputs", 39,
           _band(-20, 13, -22, 6, -29, 5, -2, 25, -6, 27, -13, 28, -5, 12, -6, 10, -6, 4),
           _lean(-9.2, -12.2, -17.9, 2.5, 0.2, -1, -0, -1.6, -3.9),
           warning="few, short requests per replica: TTFT is off by up to -10..+40%, TPOT by up to -20..+15%"),
    Region("jsq, waiting for slots or memory", 17,
           _band(-35, 82, -40, 62, -35, 80, -4, 5, -3, 5, -17, 14, -3, 11, -4, 3, -6, 2),
           _lean(0.8, 0.8, -1.9, -1.2, -1.7, -2.1, -0.8, -0.9, -4.1),
           reliable=False,
           warning="requests wait for slots or KV memory: TTFT p99 is off by up to -45..+55%; leave room or simulate"),
    Region("p2c, load <= 0.7", 39,
           _band(-1, 8, -2, 8, -5, 11, -1, 2, -3, 3, -11, 6, -3, 3, -2, 2, -4, 2),
           _lean(-0.2, -0.5, -1.4, -0.2, -0.6, -1.5, -0.5, -0.3, -1.5)),
    Region("p2c, load <= 0.87", 18,
           _band(-2, 9, -1, 7, -2, 10, -2, 4, -5, 4, -13, 1, -3, 3, -2, 2, -3, 3),
           _lean(0.1, 1, 1.7, -0, -1, -7.6, -1.4, -0.6, -1.9)),
    Region("p2c, load > 0.87", 5,
           _band(-5, 14, -1, 10, -2, 14, -2, 4, -5, 4, -13, 1, -3, 3, -2, 2, -3, 4),
           _lean(0.7, 2.3, 2.8, 0.7, 0.5, -8.9, 1, -0.5, -1.4),
           warning="near saturation every percent of the rate moves the tail of TTFT: expect -15..+5% at the 99th percentile"),
    Region("p2c, short outputs", 7,
           _band(-11, 9, -12, 7, -14, 10, -9, 15, -5, 8, -13, 13, -7, 9, -5, 10, -4, 10),
           _lean(-2.1, -1.6, -0.1, 0.2, -0.4, -1.2, -1, 1.9, 1.9),
           warning="few, short requests per replica: TTFT is off by up to 15%, TPOT by up to -15..+10%"),
    Region("p2c, waiting for slots or memory", 8,
           _band(-3, 9, -2, 7, -13, 48, -2, 4, -5, 4, -13, 3, -3, 3, -2, 2, -4, 3),
           _lean(-1.5, -1.1, -2.6, -0.7, -3, -3.5, -0.2, -1.2, -2.4),
           reliable=False,
           warning="requests wait for slots or KV memory: TTFT p99 is off by up to -35..+15%; leave room or simulate"),
    Region("rr", 119,
           _band(-2, 15, -1, 16, -2, 24, -8, 13, -11, 5, -10, 12, -3, 6, -7, 6, -5, 5),
           _lean(0.7, 1.1, 1, 0.3, -2, -2, -0.3, 0.2, -1.6)),
    Region("rr, waiting for slots or memory", 30,
           _band(-10, 10, -37, 40, -35, 31, -1, 4, -3, 6, -6, 11, -4, 4, -3, 4, -6, 3),
           _lean(-1.7, -5.7, -9.8, 0.3, -0.4, -2.1, -0.9, -0.8, -2.1),
           reliable=False,
           warning="requests wait for slots or KV memory: TTFT p99 is off by up to -25..+55%; leave room or simulate"),
    Region("long prompts", 41,
           _band(-10, 27, -21, 29, -19, 60, -8, 31, -1, 98, -6, 18, -6, 18, -10, 18, -19, 25),
           _lean(0.4, 1.1, -1.1, 1.1, 2.6, -3.7, -0.3, 0.2, -2.1),
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
