"""Bounds of one replica: the formulas by hand, and a replica full of requests."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.predict.backlog import MESH_POINTS, PromptSums, fixed_count_backlog, solve_backlog
from planner.predict.batch import engine_of
from planner.predict.bounds import decode_s, idle_latency, max_throughput, mean_running
from planner.predict.records import Replicas
from planner.workload.pools import Lengths

MODEL = IterationModel(t0=0.0019, w=0.0051, b=23.5e-6, c=4.7e-6, h=1e-6, g=5e-8, a=7e-10)
RNG = np.random.default_rng(7)
PROMPTS = np.ceil(RNG.lognormal(6.6, 0.9, 400))
OUTPUTS = np.ceil(RNG.lognormal(4.9, 0.8, 400))
LAW = Lengths(PROMPTS, OUTPUTS, np.ones(400), np.zeros(1))
ONE = Replicas(1, MODEL, slots=128.0, token_budget=2048.0)


def fixed(prompt: float, output: float) -> Lengths:
    return Lengths(np.array([prompt]), np.array([output]), np.ones(1), np.zeros(1))


# ------------------------------------------------------------------------------------------------- maximum throughput


def test_where_the_budget_binds_it_is_the_closed_form() -> None:
    m = 400 / 1200  # requests per iteration
    iteration = (
        MODEL.t0
        + max(MODEL.w, 400 * MODEL.b)
        + 400 * MODEL.c
        + m * (200 * MODEL.h + MODEL.g * 200 * (1000 + 201 / 2) + MODEL.a * 1000 * 1001 / 2)
    )
    limit = max_throughput(fixed(1000.0, 201.0), replace(ONE, token_budget=400.0, slots=256.0))
    assert limit.binding == "budget"
    assert limit.per_s == pytest.approx(m / iteration, rel=1e-12)


def test_full_iterations_of_a_budget_that_is_no_whole_number_of_tiles_are_timed_as_they_are() -> None:
    tiles = replace(MODEL, tau=128)
    limit = max_throughput(fixed(1000.0, 201.0), replace(ONE, iteration=tiles, token_budget=400.0, slots=256.0))
    m = 1 / 3
    held, pairs = 200 * m * (1000 + 201 / 2), m * 1000 * 1001 / 2
    assert limit.iteration_s == pytest.approx(tiles.time(200 * m, held, 400 - 200 * m, pairs), rel=1e-12)


def test_full_slots_turn_over_as_little_says() -> None:
    """Prompts that cost nothing beside the floor: slots / (iterations of a request x iteration)."""
    light = IterationModel(t0=0.01)
    limit = max_throughput(fixed(100.0, 101.0), Replicas(1, light, slots=16.0, token_budget=1e5))
    assert limit.binding == "slots"
    # one iteration of prefill and 100 of decode
    assert limit.per_s == pytest.approx(16 / (101 * 0.01), rel=2e-3)


def test_full_memory_is_what_binds() -> None:
    limit = max_throughput(LAW, replace(ONE, kv_tokens=2e4))
    assert limit.binding == "kv"
    held = limit.per_iteration * float(((OUTPUTS - 1) * (PROMPTS + OUTPUTS / 2) + PROMPTS).mean())
    assert 0.8 * 2e4 < held < 2e4


def test_a_block_takes_half_of_one_more_token_each() -> None:
    some = replace(ONE, kv_tokens=3e4)
    plain, blocks = (max_throughput(LAW, replace(some, block=b)).per_iteration for b in (1, 16))
    # 7.5 tokens a sequence in contexts of 1,200
    assert 0.985 < blocks / plain < 0.998


def test_a_prompt_that_does_not_fit_leaves_nothing() -> None:
    limit = max_throughput(LAW, replace(ONE, kv_tokens=float(PROMPTS.max()) - 1))
    assert (limit.per_s, limit.binding) == (0.0, "prompt")


@pytest.mark.parametrize(
    ("field", "values"), [("slots", (8.0, 32.0, 128.0)), ("token_budget", (512.0, 2048.0, 8192.0)), ("kv_tokens", (2e4, 5e4, 1e6))]
)  # fmt: skip
def test_more_of_anything_is_not_less_throughput(field: str, values: tuple[float, ...]) -> None:
    rates = [max_throughput(LAW, replace(ONE, **{field: v})).per_s for v in values]
    assert all(b >= a * 0.99 for a, b in pairwise(rates))


@given(s=st.floats(0.01, 100.0))
def test_times_scale(s: float) -> None:
    slow = replace(ONE, iteration=IterationModel.from_dict(
        {k: v * s if k in ("t0", "w", "b", "c", "g", "h", "a") else v for k, v in MODEL.to_dict().items()}
    ))  # fmt: skip
    assert max_throughput(LAW, slow).per_s * s == pytest.approx(max_throughput(LAW, ONE).per_s, rel=1e-9)


# ------------------------------------------------------------------------------------------------------- mean running


def test_constant_iterations_run_by_littles_law() -> None:
    running, step = mean_running(LAW, Replicas(1, IterationModel(t0=0.01), slots=1e5, token_budget=65_536.0), 20.0)
    assert float(running) == pytest.approx(20.0 * float((OUTPUTS - 1).mean()) * 0.01, rel=1e-9)
    assert float(step) == pytest.approx(0.01, rel=1e-9)


def test_running_grows_to_saturation() -> None:
    limit = max_throughput(LAW, ONE)
    running, step = mean_running(LAW, ONE, np.array([0.1, 0.5, 0.9, 1.0, 2.0]) * limit.per_s)
    assert np.all(np.diff(running) >= 0.0) and np.all(np.diff(step) >= 0.0)
    assert running[-1] == running[-2] == limit.decodes


# ------------------------------------------------------------------------------------------------------- idle latency


def test_alone_a_request_sees_its_own_work() -> None:
    tiles = replace(MODEL, tau=128)
    engine = replace(ONE, iteration=tiles, token_budget=512.0, wake_s=0.01, request_s=0.002)
    ttft, tpot = idle_latency(
        Lengths(np.array([1000.0, 1000.0]), np.array([101.0, 1.0]), np.ones(2), np.array([0.0, 0.3])), engine
    )
    chunks = tiles.time(0, 0, 512, 512 * 513 / 2) + tiles.time(0, 0, 488, 488 * (512 + 489 / 2))
    assert ttft[0] == pytest.approx(chunks + 0.012, rel=1e-12)
    cached = tiles.time(0, 0, 512, 512 * (300 + 513 / 2)) + tiles.time(0, 0, 188, 188 * (812 + 189 / 2))
    assert ttft[1] == pytest.approx(cached + 0.012, rel=1e-12)
    assert tpot[0] == pytest.approx(np.mean([tiles.time(1, 1000 + j) for j in range(1, 101)]), rel=1e-12)
    assert math.isnan(tpot[1])


def test_decodes_alone_are_an_iteration() -> None:
    assert decode_s(ONE, [1.0, 32.0], 500.0).tolist() == MODEL.time([1.0, 32.0], [500.0, 16_000.0]).tolist()


# ---------------------------------------------------------------------------------------------------------- the parts


def test_bulk_queue_with_unit_batches_is_m_d_1() -> None:
    """Equal prompts and room for one of them per iteration: the number left is M/D/1's, m + m^2/(2(1-m))."""
    engine = engine_of(fixed(500.0, 2.0), ONE)
    sums = PromptSums(engine.moments, 2000.0)
    for m in (0.3, 0.6, 0.8, 0.9):
        grid, pi = fixed_count_backlog(sums, 500.0, 0.0, m)
        assert pi @ grid / 500 == pytest.approx(m + m * m / (2 * (1 - m)), rel=0.02)


def test_chains_keep_probability_and_mean() -> None:
    engine = engine_of(LAW, ONE)
    chains = solve_backlog(PromptSums(engine.moments, 2048.0), engine, np.array([10.0, 40.0]), 8.0)
    assert np.allclose(chains.step.sum(axis=2), 1)
    # what comes in goes out: E[C] = lambda E[L] E[s]
    flow = 8.0 * engine.moments.mean_prefill * chains.mean(chains.duration)
    assert np.allclose(chains.mean(chains.prefill), flow, rtol=2e-3)


def test_stop_loss_starts_at_the_mean() -> None:
    engine = engine_of(LAW, ONE)
    counts = np.array([0.1, 1.0, 3.0])
    loss = PromptSums(engine.moments, 4096.0).stop_loss(counts)
    assert loss.shape == (3, MESH_POINTS)
    assert np.allclose(loss[:, 0], counts * engine.moments.mean_prefill, rtol=1e-6)


def test_prompts_of_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="input_tokens: their mean must be positive"):
        max_throughput(replace(LAW, input_tokens=0.0 * PROMPTS), ONE)


@pytest.mark.parametrize(
    "change", [{"engine": "slots"}, {"token_budget": math.inf}, {"slots": 0.0}, {"kv_tokens": 0.0}]
)
def test_engines_that_are_not_this_one_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError):
        max_throughput(LAW, replace(ONE, **change))  # type: ignore[arg-type]
