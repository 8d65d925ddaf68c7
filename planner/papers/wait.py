"""WAIT and Nested WAIT: the worked examples, the bounds and the thresholds of the experiments."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from planner.fluid.nested_wait import nested_M_pi, theta_k
from planner.fluid.wait import fluid_equilibrium, wait_queue_bound_critical
from planner.papers.machines import KvLinear, late_over_early
from planner.papers.printed import DIFFERS, SAME_UNDER, Row, printed_by
from planner.papers.run import as_requests, run_policy
from planner.papers.statistics import mean_of_batches, summarize
from planner.predict.engine import Request

PRINTED, _row = printed_by(__file__)
RUNS, REQUESTS = PRINTED["simulated"].values()


def _examples() -> Iterator[Row]:
    """Examples 1 to 3 and propositions 1 and 3 by arithmetic."""
    yield from _steps()
    yield _row("memory", fluid_equilibrium([(4, 1, 1)], "0.4", "0.05").M)
    yield _row("completions", f"{_completions(admit_all=False):.2f}")
    yield _row("loss", f"{100 * (1 - _completions(admit_all=True) / 4):.0f}%")
    yield _row("wasted", f"{100 * (1 - 4 / 6):.0f}%")
    yield _row("memory of two", fluid_equilibrium([(1, 1, 1), (1, 1, 2)], "0.1", "0.1").M)
    # after the first iteration 7, 5 or 3 tokens are held when 2, 1 or 0 prompts came; each prefill takes one
    overflow = _above(2) + sum(_poisson(y) * _above(c) for y, c in ((2, 2), (1, 4), (0, 6)))
    yield _row("overflow", f"{overflow:.4f}", printed=1 - 4.5 * math.exp(-2))


def _poisson(k: int) -> float:
    return math.exp(-2.0) * 2.0**k / math.factorial(k)


def _above(k: int) -> float:
    return 1.0 - sum(_poisson(i) for i in range(k + 1))


def _completions(admit_all: bool, capacity: int = 12, iterations: int = 4000) -> float:
    """Completions per iteration of example 2: four arrivals each, 6 in prefill and 3 in decode at first.

    A prompt holds 1 token while it prefills and 2 while it decodes. Last in, first out is evicted and starts again.
    `admit_all`: prompts are admitted while their prefill fits beside the decodes; otherwise only while their decode
    will fit beside those admitted with them, as the printed schedule does.
    """
    prefill, decode, queue, done = 6, 3, 0, 0
    for _ in range(iterations):
        done += decode
        decode, prefill, queue = prefill, 0, queue + 4
        wanted = 0 if admit_all else min(queue, 4)
        while 2 * decode + wanted > capacity:
            decode, queue = decode - 1, queue + 1
        prefill = min(queue, capacity - 2 * decode) if admit_all else wanted
        queue -= prefill
    return done / iterations


def _nested() -> Iterator[Row]:
    """Eq. 13, theorem 2 and lemma 5 at small points."""
    memory, root, steps = nested_M_pi([4], 1, [1]), theta_k(26, 40, "0.5"), 10_000
    yield _row("eq. 13", f"{memory.corrected:g}", printed=memory.printed_eq13)
    yield _row("theta", f"{root.theta:.4f}", printed=root.printed_bound, bound=root.lower_bound)
    yield _row("queue", f"{wait_queue_bound_critical(4, steps):.0f}", printed=4 + math.sqrt(4 * steps))


def _experiments() -> Iterator[Row]:
    """Section 6: thresholds against the tails of the rates, and what eq. 12 asks of them."""
    for name, (thresholds, rates) in PRINTED["thresholds"].items():
        tails = [sum(rates[k:]) for k in range(len(rates))]
        scale = thresholds[0] / tails[0]
        for k, (printed, tail) in enumerate(zip(thresholds, tails, strict=True), start=1):
            yield _row("threshold", scale * tail, name=name, k=k, printed=printed)
        steps = list(zip(thresholds, thresholds[1:], tails, tails[1:], strict=False))
        worst = max(abs(n1 / n0 - t1 / t0) for n0, n1, t0, t1 in steps)
        decay = max(theta_k(n1, n0, f"{t1}/{t0}").theta for n0, n1, t0, t1 in steps)
        yield _row(
            "strict", f"{worst:g} at most, theta {decay:g}", name=name, thresholds=":".join(map(str, thresholds))
        )
    for of, printed in PRINTED["data"].items():
        yield _row("data", "-", of=of, printed=printed)


def _steps() -> Iterator[Row]:
    """Examples 1 and 2 step by step: prompts hold 1 token while they prefill and 2 while they decode."""
    start, decoding, capacity, arriving = 6, 3, 12, 4
    yield _row("example 1", 4 * 1 + 4 * 2)
    yield _row("done 1", decoding)
    yield _row("tokens 1", 2 * start)
    evicted = math.ceil((2 * start + arriving - capacity) / 2)
    yield _row("evicted", evicted)
    yield _row("tokens 2", 2 * (start - evicted) + arriving)
    yield _row("done 3", start - evicted)


def _sample(rate: float, seed: int, requests: int = REQUESTS) -> list[Request]:
    """Poisson arrivals of one prompt token and two output tokens each."""
    times = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, requests))
    return as_requests(times, np.full(requests, 1), np.full(requests, 2))


def _simulated() -> Iterator[Row]:
    """Example 2 and propositions 1 and 3 on the simulator, and that WAIT never evicts."""
    lines = KvLinear(0.4, 0.05)
    greedy = [run_policy(_sample(4.0, s), "fcfs_restart", lines, capacity=12) for s in range(RUNS)]
    e = mean_of_batches(np.array([100.0 * (1.0 - float(summarize(run)["throughput_per_s"]) / 4.0) for run in greedy]))
    inside = e.value + e.half_width >= 12.0 and e.value - e.half_width <= 25.0
    yield _row("greedy", f"{e.value:.1f} +- {e.half_width:.1f}%", SAME_UNDER if inside else DIFFERS)
    held = [run_policy(_sample(3.9, s), "wait", lines, {"thresholds": {0: 4}}) for s in range(RUNS)]
    yield _row("peak", max(run.peak_held for run in held))
    yield _row("evictions", sum(r.evictions for run in held for r in run.requests))
    for load, printed in ((0.97, "bounded"), (1.03, "grows")):
        yield _proposition1(load, printed)


def _proposition1(load: float, printed: str) -> Row:
    """The queue late against early in the run, at a load of lambda d1 W just below and above 1."""
    d0, d1, work = 0.05, 0.05, 3.0  # l = l' = 1: 1 token at prefill, 2 at decode
    rate = load / (d1 * work)
    threshold = math.floor(rate * d0 / max(1.0 - load, 0.02)) + 1
    runs = []
    for seed in range(RUNS):
        sample = _sample(rate, seed, 4 * REQUESTS)
        run = run_policy(sample, "wait", KvLinear(d0, d1), {"thresholds": {0: threshold}})
        done = [(r.arrival, r.done_s - r.arrival) for r in run.requests if math.isfinite(r.done_s)]
        runs.append((done[-1][0], np.array([stay for _, stay in done])))
    expected = max(0.0, rate * (d0 / threshold + d1 * work) - 1.0)
    ours, verdict = late_over_early(runs, expected)
    return _row("growth", ours, verdict, load=load, threshold=threshold, printed=printed, expected=expected)


SECTIONS = (_examples, _nested, _experiments, _simulated)
"""The printed numbers that formulas or simulations give."""
