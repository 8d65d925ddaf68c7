"""The fast engine against the rule-exact one, and the closed forms inside it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.iteration.model import IterationModel
from planner.predict.durations import Canonical
from planner.predict.engine import Request
from planner.simulate.drive import drive
from planner.simulate.fast import MixedReplica
from planner.simulate.run import run_policy
from planner.simulate.tables import RequestTable, sum_of_larger

UNIT = 2.0**-10  # all times are multiples of powers of two: both engines compute without rounding
MODEL = IterationModel(
    t0=8 * UNIT, w=5 * UNIT, b=UNIT / 8, c=UNIT / 64, tau=16, g=UNIT / 1024, h=UNIT / 256, a=UNIT / 65536
)
LONGEST = IterationModel(**{**MODEL.to_dict(), "e": UNIT / 256})


def sample(seed: int, n: int = 250):
    rng = np.random.default_rng(seed)
    inputs, outputs = rng.integers(1, 80, n), rng.integers(1, 60, n)
    rate = (0.3, 1.0, 3.0)[seed % 3] / UNIT / 100
    times = np.floor(np.cumsum(rng.exponential(1 / rate, n)) / UNIT * 4) * UNIT / 4
    return times.tolist(), inputs.tolist(), outputs.tolist()


@pytest.mark.parametrize("routing", ["rr", "p2c", "least", "least-kv", "central", "random"])
@pytest.mark.parametrize("seed", range(12))
def test_same_times_as_the_rule_exact_engine(seed: int, routing: str) -> None:
    times, inputs, outputs = sample(seed)
    model = (MODEL, LONGEST)[seed % 2]
    slots, budget, memory = (8, 64)[seed % 2], (24, 64, 300)[seed % 3], (math.inf, 200, 400)[seed % 3]
    replicas = (1, 3)[seed // 2 % 2]
    run = run_policy(
        [Request(i, *row) for i, row in enumerate(zip(times, inputs, outputs, strict=True))],
        "mixed",
        Canonical(model),
        {"slots": slots, "token_budget": budget},
        capacity=memory,
        replicas=replicas,
        routing=routing,
        rng=np.random.default_rng(seed),
    )
    table = RequestTable(inputs, outputs, [0] * len(inputs))
    pool = [MixedReplica(table, model, slots, budget, memory) for _ in range(replicas)]
    assert drive(pool, times, routing, np.random.default_rng(seed), slots) == len(times)
    assert table.first == pytest.approx([r.first_token_s for r in run.requests], abs=1e-9)
    assert table.done == pytest.approx([r.done_s for r in run.requests], abs=1e-9)
    assert sum(r.iterations for r in pool) == run.iterations
    assert sum(r.preemptions for r in pool) == run.evictions
    assert sum(r.busy_s for r in pool) == pytest.approx(run.busy_s, abs=1e-9)


@pytest.mark.parametrize("block,reserve", [(1, True), (1, False), (16, False), (16, True)])
def test_memory_is_given_back(block: int, reserve: bool) -> None:
    times, inputs, outputs = sample(2, 400)
    table = RequestTable(inputs, outputs, [0] * len(inputs))
    blocks = 400 // block
    replica = MixedReplica(table, MODEL, 32, 64, blocks, block, reserve)
    assert drive([replica], times, "rr") == len(times)
    assert replica.completed == len(times) and replica.in_system == 0
    assert replica.free == blocks and replica.context == 0 and not any(replica.residues)
    assert replica.preemptions > 0
    assert all(f > t and d >= f for t, f, d in zip(times, table.first, table.done, strict=True))


def test_blocks_of_one_token_are_tokens() -> None:
    times, inputs, outputs = sample(4, 200)
    done = []
    for block, memory in ((1, 300), (16, 10**6)):
        table = RequestTable(inputs, outputs, [0] * len(inputs))
        drive([MixedReplica(table, MODEL, 16, 64, memory if block > 1 else math.inf, block)], times, "rr")
        done.append(table.done)
    assert done[0] == done[1]  # enough memory: the unit does not matter


def test_prefix_cache_saves_prefill_only() -> None:
    model = IterationModel(t0=1.0, a=0.5)
    table = RequestTable([10], [3], [4])
    drive([MixedReplica(table, model, 1, 100, 12)], [0.0], "rr")
    # one iteration of 6 new tokens after 4 past ones, then two decodes
    assert table.first[0] == pytest.approx(1.0 + 0.5 * 6 * (4 + 7 / 2))
    assert table.done[0] == pytest.approx(table.first[0] + 2.0)


def testsum_of_larger_line() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        u, v = tuple(rng.uniform(0, 5, 2)), tuple(rng.uniform(0, 5, 2))
        j = int(rng.integers(1, 40))
        direct = sum(max(u[0] + u[1] * i, v[0] + v[1] * i) for i in range(1, j + 1))
        assert sum_of_larger(u, v, j) == pytest.approx(direct, rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_prompts_with_iterations_of_their_own_are_prefill_first(seed: int) -> None:
    times, inputs, outputs = sample(seed)
    model = IterationModel(**{**(MODEL, LONGEST)[seed % 2].to_dict(), "apart": 1.0})
    rules = {"slots": (8, 64)[seed % 2], "token_budget": 10**6}
    requests = [Request(i, *row) for i, row in enumerate(zip(times, inputs, outputs, strict=True))]
    run = run_policy(requests, "prefill_first", Canonical(model), rules)
    table = RequestTable(inputs, outputs, [0] * len(inputs))
    replica = MixedReplica(table, model, rules["slots"], rules["token_budget"])
    drive([replica], times, "rr")
    assert table.first == pytest.approx([r.first_token_s for r in run.requests], abs=1e-9)
    assert table.done == pytest.approx([r.done_s for r in run.requests], abs=1e-9)
    assert replica.iterations == run.iterations


def test_a_request_after_a_pause_comes_through_the_front_end_later() -> None:
    table = RequestTable([10, 10, 10], [2, 2, 2], [0, 0, 0])
    drive([MixedReplica(table, IterationModel(t0=0.25), 8, 100, wake_s=0.02)], [0.0, 0.01, 3.0], "rr")
    # the second overtakes nobody: both share the first iteration
    assert table.first == pytest.approx([0.27, 0.27, 3.27])
