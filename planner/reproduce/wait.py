"""WAIT and Nested WAIT: the worked examples, the bounds and the thresholds of the experiments."""

from __future__ import annotations

import math
from collections.abc import Iterator

from planner.fluid.nested_wait import nested_M_pi, theta_k
from planner.fluid.wait import fluid_equilibrium, wait_queue_bound_critical
from planner.reproduce.result import Row, numbers

__all__ = ["rows"]

# Section 6: thresholds of Nested WAIT in the experiments, and the arrival rates they were made for
THRESHOLDS = {
    "four types": ((15, 14, 12, 8), (20, 40, 80, 160)),
    "ten types": ((66, 43, 32, 24, 17, 11, 7, 4, 2, 1), (23, 11, 8, 7, 6, 4, 3, 2, 1, 1)),
}


def rows() -> Iterator[Row]:
    """The printed numbers that the formulas suffice to recompute."""
    yield from _examples()
    yield from _nested()
    yield from _experiments()


def _examples() -> Iterator[Row]:
    one = fluid_equilibrium([(4, 1, 1)], "0.4", "0.05")
    reason = "four prompts of 1 and four of 2 tokens"
    yield numbers("example 2: memory at equilibrium, tokens", "eq. 8 with an iteration time of 1", 12, one.M, 0, reason)
    yield (
        "example 2: completions per iteration under first-come-first-served",
        "the printed schedule, continued",
        "3 to 3.5",
        f"{_completions(admit_all=False):.2f}",
        "differs",
        "as written the system is back at 4 by iteration 3: evicted prompts wait in the queue like any other",
    )
    yield (
        "example 2: loss under first-come-first-served",
        "admission of all that fits before decoding",
        "12% to 25%",
        f"{100 * (1 - _completions(admit_all=True) / 4):.0f}%",
        "agrees",
        "the lasting loss needs greedy admission that ignores how memory grows",
    )
    yield (
        "example 3: capacity wasted by admitting 4 instead of 6",
        "1 - 4/6",
        "25%",
        f"{100 * (1 - 4 / 6):.0f}%",
        "false",
        "25% would be 1 - 6/8",
    )
    two = fluid_equilibrium([(1, 1, 1), (1, 1, 2)], "0.1", "0.1")
    reason = "two prompts of the short type, three of the long"
    yield numbers("proposition 3: memory at equilibrium, tokens", "eq. 8, d0 = d1 = 0.1", 9, two.M, 0, reason)
    # after the first iteration 7, 5 or 3 tokens are held when 2, 1 or 0 prompts came; each prefill takes one
    overflow = _above(2) + sum(_poisson(y) * _above(c) for y, c in ((2, 2), (1, 4), (0, 6)))
    yield (
        "proposition 3: probability of an overflow within two iterations",
        "exact, two Poisson arrivals per iteration",
        f"{1 - 4.5 * math.exp(-2):.3f} (1 - 4.5/e^2, first version)",
        f"{overflow:.4f}",
        "differs",
        "the proof lets (0, 2) overflow, which it does not; the conclusion (a constant probability) stands",
    )


def _poisson(k: int, mean: float = 2.0) -> float:
    return math.exp(-mean) * mean**k / math.factorial(k)


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
        if admit_all:
            while 2 * decode > capacity:
                decode, queue = decode - 1, queue + 1
            prefill = min(queue, capacity - 2 * decode)
        else:
            wanted = min(queue, 4)
            while 2 * decode + wanted > capacity:
                decode, queue = decode - 1, queue + 1
            prefill = wanted
        queue -= prefill
    return done / iterations


def _nested() -> Iterator[Row]:
    memory = nested_M_pi([4], 1, [1])
    yield (
        "eq. 13 with one segment, l = l' = 1, n = 4: memory of the policy, tokens",
        "four prompts at each of two stages",
        f"{memory.printed_eq13:g}",
        f"{memory.corrected:g}",
        "false",
        "segment 1 has l' + 1 stages and a mean memory of l + l'/2; 12 is what example 2 says",
    )
    root = theta_k(26, 40, "0.5")
    yield (
        "theorem 2: theta_k for n = (40, 26), p = 0.5",
        "root of eq. 20",
        f">= {root.printed_bound:.3f}",
        f"{root.theta:.4f}",
        "false",
        f"the bound of eq. 22 divides by n_(k-1): {root.lower_bound:.3f}",
    )
    bound, steps = wait_queue_bound_critical(4, 10_000), 10_000
    yield (
        "lemma 5: mean queue at equality, n = 4, 10,000 iterations",
        "n + sqrt(n) sum of 1/sqrt(k)",
        f"{4 + math.sqrt(4 * steps):.0f} (n + sqrt(nB))",
        f"{bound:.0f}",
        "false",
        "the sum of 1/sqrt(k) is 2 sqrt(B), not sqrt(B)",
    )


def _experiments() -> Iterator[Row]:
    for name, (thresholds, rates) in THRESHOLDS.items():
        tails = [sum(rates[k:]) for k in range(len(rates))]
        worst = max(
            abs(n1 / n0 - t1 / t0) for n0, n1, t0, t1 in zip(thresholds, thresholds[1:], tails, tails[1:], strict=False)
        )
        decay = max(
            theta_k(n1, n0, f"{t1}/{t0}").theta
            for n0, n1, t0, t1 in zip(thresholds, thresholds[1:], tails, tails[1:], strict=False)
        )
        yield (
            f"section 6, {name}: thresholds {':'.join(map(str, thresholds))} against eq. 12",
            "n_k/n_(k-1) - p_k",
            "> 0",
            f"{worst:g} at most, theta {decay:g}",
            "false",
            "every ratio equals p_k: the strict inequality fails, queues without drift, and the bound (14) is infinite",
        )
