"""Replays against the papers' policy engine, which is held to two other programs: the same times, iteration by iteration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.machine.iteration import IterationModel
from planner.papers.run import run_policy
from planner.predict.engine import Canonical, Request
from planner.predict.records import Decoders, Replicas
from planner.predict.run import replay
from tests.papers.asked import asked

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
    return times, inputs, outputs


def of_policy(rows, *arguments, **keywords):
    """A policy's run of the same requests."""
    columns = zip(*(x.tolist() for x in rows), strict=True)
    return run_policy([Request(i, *row) for i, row in enumerate(columns)], *arguments, **keywords)


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("seed", range(12))
def test_same_times_as_mixed_batching(seed: int, replicas: int) -> None:
    rows = sample(seed)
    model = (MODEL, LONGEST)[seed % 2]
    slots, budget, memory = (8, 64)[seed % 2], (24, 64, 300)[seed % 3], (math.inf, 200, 400)[seed % 3]
    rules = {"slots": slots, "token_budget": budget}
    run = of_policy(rows, "mixed", Canonical(model), rules, capacity=memory, replicas=replicas, routing="rr")
    found = replay(asked(*rows), Replicas(replicas, model, slots, budget, memory, "rr"))
    assert found.first_s == pytest.approx([r.first_token_s for r in run.requests], abs=1e-9)
    assert found.done_s == pytest.approx([r.done_s for r in run.requests], abs=1e-9)
    assert found.iterations.sum() == run.iterations and found.preempted.sum() == run.evictions


@pytest.mark.parametrize("seed", range(6))
def test_prompts_with_iterations_of_their_own_are_prefill_first(seed: int) -> None:
    rows = sample(seed)
    model = IterationModel(**{**(MODEL, LONGEST)[seed % 2].to_dict(), "apart": 1.0})
    rules = {"slots": (8, 64)[seed % 2], "token_budget": 10**6}
    run = of_policy(rows, "prefill_first", Canonical(model), rules)
    found = replay(asked(*rows), Replicas(1, model, rules["slots"], rules["token_budget"]))
    assert found.first_s == pytest.approx([r.first_token_s for r in run.requests], abs=1e-9)
    assert found.done_s == pytest.approx([r.done_s for r in run.requests], abs=1e-9)
    assert found.iterations.sum() == run.iterations


@pytest.mark.parametrize("slots,memory", [(40, math.inf), (6, math.inf), (40, 1000)])
def test_one_prefill_and_one_decode_replica_are_the_policy_of_two_nodes(slots: float, memory: float) -> None:
    model = IterationModel(t0=4e-3, w=2e-3, b=3e-5, g=2e-7, h=2e-5, a=2e-9)
    rng = np.random.default_rng(2)
    rows = np.sort(rng.random(800)) * 60.0, rng.integers(5, 900, 800), rng.integers(1, 60, 800)
    parameters = {"decode_slots": slots, "transfer_base": 0.01, "transfer_per_token": 2e-5}
    run = of_policy(rows, "distserve", Canonical(model), parameters, memory)
    decoders = Decoders(Replicas(1, model, slots, kv_tokens=memory), 0.01 + 2e-5 * rows[1])
    found = replay(asked(*rows), Replicas(1, model, engine="prefill"), decoders=decoders)
    assert found.first_s == pytest.approx([r.first_token_s for r in run.requests], abs=1e-9)
    assert found.done_s == pytest.approx([r.done_s for r in run.requests], abs=1e-9)
    assert found.preempted.sum() == run.evictions and (run.evictions > 0) == (memory < math.inf)


def test_enough_memory_is_the_same_in_tokens_and_in_blocks() -> None:
    runs = [
        replay(asked(*sample(4, 200)), Replicas(1, MODEL, 16, 64, memory, block=block, reserve=reserve))
        for block, memory, reserve in ((1, math.inf, True), (16, 1e6, True), (16, 1e6, False))
    ]
    assert runs[0].done_s.tolist() == runs[1].done_s.tolist() == runs[2].done_s.tolist()


def test_prefix_cache_saves_prefill_only() -> None:
    found = replay(asked([0.0], 10, 3, 4), Replicas(1, IterationModel(t0=1.0, a=0.5), 1, 100, 12.0))
    # one iteration of 6 new tokens after 4 past ones, then two decodes
    assert found.first_s[0] == pytest.approx(1.0 + 0.5 * 6 * (4 + 7 / 2))
    assert found.done_s[0] == pytest.approx(found.first_s[0] + 2.0)


def test_a_request_after_a_pause_comes_through_the_front_end_later() -> None:
    found = replay(asked([0.0, 0.01, 3.0], 10, 2), Replicas(1, IterationModel(t0=0.25), 8, 100, wake_s=0.02))
    # the second overtakes nobody: both share the first iteration
    assert found.first_s == pytest.approx([0.27, 0.27, 3.27])
