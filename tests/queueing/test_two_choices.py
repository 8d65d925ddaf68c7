"""Power of two choices: replicas about their pool's mean, and pools of them, against simulation."""

from __future__ import annotations

import numpy as np
import pytest

from planner.iteration.model import IterationModel
from planner.predict.records import Replicas
from planner.predict.run import replay
from planner.queueing.mixed.lengths import BatchCost, LengthLaw, PromptSums
from planner.queueing.mixed.replica import MixedReplica
from planner.queueing.mixed.two_choices import Steered, steered_backlog
from planner.simulate.pool import simulate_pool
from tests.simulate.asked import asked


def steady(each: float, replicas: int, prompt: float = 1.0, outputs: np.ndarray | None = None) -> Steered:
    """A pool whose replicas hold `each` requests, iterations of 10 ms and lives of about a second, at that mean."""
    if outputs is None:
        outputs = 1.0 + np.random.default_rng(1).exponential(100.0, 4000)
    law = LengthLaw(np.full(outputs.size, prompt), outputs, None, 0.0)
    cost = BatchCost(t0=0.01, w=0.0, b=0.0, c=1e-9, per_decode=0.0, alpha=0.0, tau=1, x=0.0)
    rate = each / (0.01 * law.mean_steps)
    return steered_backlog(PromptSums(law, 2048.0), cost, 2048.0, rate, replicas, each)[0]


@pytest.mark.parametrize(("replicas", "each"), [(4, 3.0), (8, 20.0), (32, 8.0)])
def test_deviation_in_a_pool_against_simulation(replicas: int, each: float) -> None:
    # every request leaves at rate 1: completions proportional to the number present
    rng = np.random.default_rng(5)
    counts, total, area, square = [0] * replicas, 0, 0.0, 0.0
    events = 400_000
    uniform, exponential = rng.random((events, 3)), rng.exponential(size=events)
    rate = each * replicas
    for i in range(events):
        u, v, tie = uniform[i]
        if i > 20_000:
            hold = exponential[i] / (rate + total)
            area += hold
            square += hold * sum((c - total / replicas) ** 2 for c in counts)
        if u * (rate + total) < rate:
            a = int(v * replicas)
            b = (a + 1 + int((v * replicas - a) * (replicas - 1))) % replicas
            if counts[b] < counts[a] or (counts[b] == counts[a] and tie < 0.5):
                a = b
            counts[a] += 1
            total += 1
        else:
            left = v * total
            for k, c in enumerate(counts):
                left -= c
                if left < 0:
                    counts[k] -= 1
                    break
            total -= 1
    simulated = square / area / replicas
    # without stalls the law given the backlog is all there is; it is taken as normal, and small pools are less so
    found = steady(each, replicas)
    middle = found.present.size // 2
    assert found.present[middle] == pytest.approx(each, rel=0.1)
    assert found.spread[middle] == pytest.approx(simulated, rel=0.12 if replicas > 4 else 0.2)


def test_arrivals_go_to_the_less_loaded_and_are_as_many_as_come() -> None:
    for each, replicas in ((0.5, 4), (3.0, 16), (200.0, 128)):
        found = steady(each, replicas, prompt=600.0)
        law = found.chains.law
        rate = each / (0.01 * np.random.default_rng(1).exponential(100.0, 4000).mean())
        came = (law * found.arrivals).sum(axis=1) / (law * found.chains.duration).sum(axis=1)
        # the fixed point is stopped after a few rounds, later where a replica is often empty
        assert came[2] == pytest.approx(rate, rel=0.05 if each > 1 else 0.1)
        assert np.all((law * found.arrivals * found.found_apart).sum(axis=1) < 0.0)
        # as many leave as come at the usual mean of the pool, fewer below it
        assert found.left_per_s[2] == pytest.approx(rate, rel=0.03 if each > 1 else 0.1)
        assert np.all(np.diff(found.left_per_s) > 0.0)


@pytest.mark.parametrize(("budget", "replicas", "load"), [(1024, 8, 0.8), (4096, 32, 0.5)])
def test_a_pool_against_the_simulator(budget: int, replicas: int, load: float) -> None:
    rng = np.random.default_rng(8)
    prompts = np.rint(900.0 * np.exp(0.9 * rng.standard_normal(4000) - 0.4)) + 1.0
    outputs = np.rint(160.0 * np.exp(0.7 * rng.standard_normal(4000) - 0.25)) + 1.0
    terms = {"t0": 0.003, "w": 0.008, "b": 3e-5, "c": 2e-6, "h": 5e-6, "g": 6e-8, "a": 4e-10}
    engine = MixedReplica(**terms, input_tokens=prompts, output_tokens=outputs, token_budget=budget, max_num_seqs=256)
    rate = load * engine.max_throughput().per_s * replicas
    run = simulate_pool(
        prompts, outputs, None, rate, requests=30_000, seeds=(3,), quantiles=(0.5, 0.99), replicas=replicas,
        iteration=IterationModel(**terms), slots=256, token_budget=budget, routing="p2c",
    )  # fmt: skip
    at = engine.predict(rate, replicas, "p2c", (0.5, 0.99))
    for metric, values in (("ttft_s", at.ttft_s), ("tpot_s", at.tpot_s)):
        for level, value in zip((0.5, 0.99), values, strict=True):
            # 4% is the usual error of the closed form, 5% that of 30,000 simulated requests at the 99th percentile
            assert value == pytest.approx(run.quantile(metric, level).value, rel=0.1), (metric, level)


def test_prompts_that_come_while_prompts_are_served() -> None:
    """Iterations of prompts before the next decode, against playing them: those who came in one make the next."""
    cost = BatchCost(t0=1e-3, w=5e-3, b=2e-5, c=4e-6, per_decode=1e-6, alpha=1e-6, tau=1, x=0.0, apart=True)
    rng = np.random.default_rng(2)
    for rate, prompt, begin in ((60.0, 200.0, 3), (20.0, 1000.0, 1), (150.0, 50.0, 8)):
        first = float(cost.prompts_alone(begin * prompt))
        played, squares = np.zeros(40_000), np.zeros(40_000)
        last = np.full(played.size, first)
        while last.any():
            came = rng.poisson(rate * last)
            last = np.where(came > 0, cost.prompts_alone(prompt * came), 0.0)
            played += last
            squares += last**2
        more, own = cost.prompts_since(rate, prompt, first)
        assert own == pytest.approx(float(cost.prompts_alone(prompt)))
        assert float(more) == pytest.approx(played.mean(), abs=4 * played.std() / played.size**0.5)
        # who comes in them meets each for as long as it lasts, and half of it is over on average
        passed, left = cost.round_met(rate, prompt, first, (np.arange(4000) + 0.5) / 4000)
        half = 0.5 * squares.sum() / played.sum()
        assert passed.mean() == pytest.approx(left.mean(), rel=0.01)
        assert left.mean() == pytest.approx(half, rel=0.02)  # of 40,000 played ones: 0.5%, of the nearest first one: 1%


@pytest.mark.parametrize("routing", ["random", "p2c"])
def test_short_prompts_with_iterations_of_their_own(routing: str) -> None:
    """A server at 0.8 of its capacity that runs 200-token prompts first: each iteration of theirs streams the weights anew.

    Before every iteration of prompts was counted, the median was 15% low at this load and 41% at 0.92.
    """
    engine = IterationModel(t0=1.1e-3, w=5e-3, b=1.9e-5, c=4e-6, h=1.3e-5, g=5e-8, a=5e-10, apart=1.0)
    replica = MixedReplica(
        **engine.to_dict(), input_tokens=[200.0], output_tokens=[200.0], token_budget=8192, max_num_seqs=1024
    )
    rate = 0.8 * replica.max_throughput().per_s * 4
    told = replica.predict(rate, 4, routing=routing, quantiles=(0.5,))
    times = np.cumsum(np.random.default_rng(1).exponential(1 / rate, 12_000))
    run = replay(asked(times, 200, 200), Replicas(4, engine, 1024, 8192, routing=routing))
    tpot = (run.done_s - run.first_s)[3000:] / 199
    # runs of this length stray by 4% of their median
    assert told.tpot_s[0] == pytest.approx(np.median(tpot), rel=0.12)
