"""What the scheduling papers claim, on the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from planner.fluid.rad import rad_lambda_max
from planner.papers.machines import KvLinear, Staircase
from planner.papers.run import Run, run_policy
from planner.papers.statistics import Estimate, mean_of_batches, summarize
from planner.predict.engine import Request
from tests.papers.machines import Exclusive


def poisson(n: int, rate: float, lengths: tuple[int, int], seed: int = 1) -> list[Request]:
    times = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n)).tolist()
    return [Request(i, t, *lengths) for i, t in enumerate(times)]


EXAMPLE_2 = KvLinear(
    0.4, 0.05
)  # l = 1, l' = 1, C = 12: four at each of two stages fill the memory, one iteration takes 1


def test_example_2_greedy_loses_exactly_a_quarter() -> None:
    backlog = [Request(i, 0.0, 1, 2) for i in range(240)]
    greedy = run_policy(backlog, "fcfs_restart", EXAMPLE_2, capacity=12)
    done = sorted(r.done_s for r in greedy.requests)
    # six complete every two iterations of one second: 3 instead of 4 per second
    assert done[5::6][:-1] == pytest.approx(np.arange(2.0, 80.0, 2.0))
    # of the last dozen nobody has to be thrown out
    assert greedy.evictions == 6 * (240 // 6 - 1)
    fluid = run_policy([Request(i, 0.0, 1, 2) for i in range(240)], "wait", EXAMPLE_2, {"thresholds": {0: 4}})
    steady = sorted(r.done_s for r in fluid.requests if r.done_s == r.done_s)[:200]
    assert 199 / (steady[-1] - steady[0]) == pytest.approx(4.0, rel=0.02)
    assert fluid.peak_held == 12


@pytest.mark.parametrize("rate,thresholds", [(3.6, {0: 5}), (30.0, {0: 3})])
def test_wait_never_exceeds_its_memory_bound(rate: float, thresholds: dict) -> None:
    run = run_policy(poisson(2000, rate, (1, 2)), "wait", EXAMPLE_2, {"thresholds": thresholds})
    assert run.peak_held <= sum(n * (1 + 2) for n in thresholds.values())
    assert run.evictions == 0


def test_wait_memory_bound_with_two_classes() -> None:
    rng = np.random.default_rng(3)
    category = rng.integers(0, 2, 1500)
    times = np.cumsum(rng.exponential(0.05, 1500))
    sample = [
        Request(i, t, 10, 11 if c == 0 else 21, c)
        for i, (t, c) in enumerate(zip(times.tolist(), category.tolist(), strict=True))
    ]
    run = run_policy(sample, "wait", KvLinear(0.02, 1e-5), {"thresholds": {0: 4, 1: 2}})
    assert run.peak_held <= 4 * sum(range(10, 21)) + 2 * sum(range(10, 31))


STAIRS = Staircase(0.002, 1e-5, 32, 4096, 2e-9, 2e-9, 32, 16, 8, 32, 16)


RAD_SIZES = [(p, d, 1 / (8 * 48)) for p in range(32, 257, 32) for d in range(1, 49)]
RAD_MACHINE = {
    "inv_mu_lin": 0.002, "inv_mu_nlin": 1e-5, "N": 32, "d": 4096, "vrow": 32, "vcol": 16, "s": 1, "mu_gemv": 1 / 2e-9,
    "trow": 32, "tcol": 16, "tred": 8, "mu": 1 / 2e-9,
}  # fmt: skip
RAD_BOUND = rad_lambda_max(1, RAD_SIZES, RAD_MACHINE)


def rad_run(load: float, n: int, rng: np.random.Generator) -> Run:
    """Requests of those sizes at a share of the bound."""
    rows = zip(
        np.cumsum(rng.exponential(1 / (load * RAD_BOUND), n)).tolist(),
        (32 * rng.integers(1, 9, n)).tolist(),
        rng.integers(2, 50, n).tolist(),
        strict=True,
    )
    parameters = {"t_col": 16, "chunk": 32, "n": 10_000}
    return run_policy([Request(i, *row) for i, row in enumerate(rows)], "rad", STAIRS, parameters)


def test_rad_is_stable_below_its_bound_and_unstable_above() -> None:
    late = {}
    for load in (0.92, 1.08):
        run = rad_run(load, 3000, np.random.default_rng(5))
        late[load] = float(np.mean([r.first_token_s - r.arrival for r in run.requests[-300:]]))
    assert late[0.92] < 0.5
    # above: the backlog grows by (1 - 1/load) of the arrivals, so the last wait about that share of the run
    expected = 0.95 * 3000 / (1.08 * RAD_BOUND) * (1.08 - 1.0)
    assert late[1.08] == pytest.approx(expected, rel=0.25)


LINES = {"alpha_p": 0.02, "beta_p": 6e-5, "alpha_d": 0.012, "beta_d": 1.5e-4}
STRONG = Exclusive(**LINES, alpha_mb=0.02, c0=6e-5, c1=6e-4, c2=-4e-4)
NONE = Exclusive(**LINES, alpha_mb=0.012, c0=6e-5, c1=9e-5)


def throughput(policy: str, lines: Exclusive, parameters: dict, runs: int = 3, n: int = 1000) -> Estimate:
    """Requests/s of backlogs: all wait at time 0, prompts of 16 to 256 tokens, geometric outputs of mean 48."""
    found = []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        rows = zip(rng.integers(16, 257, n).tolist(), rng.geometric(1 / 48, n).tolist(), strict=True)
        run = run_policy([Request(i, 0.0, *row) for i, row in enumerate(rows)], policy, lines, parameters)
        found.append(summarize(run)["throughput_per_s"])
    return mean_of_batches(np.array(found))


@pytest.mark.slow
def test_exclusive_beats_mixed_under_interference_only() -> None:
    mixed, eb = {"slots": 64, "token_budget": 512}, {"slots": 64, "k": 8}
    plus = {"slots": 64, "variant": "mean"}
    strong, none = throughput("mixed", STRONG, mixed), throughput("eb", NONE, eb)
    assert throughput("eb", STRONG, eb).low > strong.high
    assert throughput("mixed", NONE, mixed).low > none.high
    # EB+ is with the winner both times
    assert throughput("eb_plus", STRONG, plus).low > strong.high
    assert throughput("eb_plus", NONE, plus).low > none.high


def test_evictions_cascade_under_greedy_admission() -> None:
    """Below the greedy capacity hardly anybody is evicted; a little above, everybody is, several times."""
    lines = KvLinear(0.02, 1e-5)
    per_1000 = [
        summarize(run_policy(poisson(1200, rate, (10, 41)), "fcfs_restart", lines, capacity=600))["evictions_per_1000"]
        for rate in (8.0, 18.0)
    ]
    assert per_1000[0] < 100 and per_1000[1] > 3000
