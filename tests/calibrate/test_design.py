"""What is chosen to be measured, and in which order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.calibrate.microbench import designed_batches, measuring_order, most_telling
from planner.calibrate.points import Batch, Points
from planner.catalog import gpu, model
from planner.errors import CalibrationError
from planner.machine.hardware import ModelSpec
from planner.machine.roofline import roofline

LLAMA = model("llama-3.1-8b")


def test_the_design_covers_every_term() -> None:
    batches = designed_batches(LLAMA, kv_bytes=60e9)
    assert len(set(batches)) == 24
    kinds = [b.kind for b in batches]
    assert {k: kinds.count(k) for k in set(kinds)} == {"decode": 10, "prefill": 9, "chunk": 1, "mixed": 4}
    assert max(b.tokens for b in batches) == 8192
    # the first six tell t0 + w, b, g, a and the slope of a batch
    assert {b.kind for b in batches[:6]} == {"decode", "prefill"}


@pytest.mark.parametrize("kv_bytes", [1e9, 4e9, 20e9])
def test_everything_fits(kv_bytes: float) -> None:
    for b in designed_batches(LLAMA, kv_bytes=kv_bytes):
        cached = b.decodes * b.context + b.prefills * (b.new_tokens + b.past_tokens)
        assert cached * 131072 <= kv_bytes
        assert b.context <= LLAMA.max_context and b.decodes * b.context + b.tokens > 0


def test_short_models_stay_within_their_context() -> None:
    short = ModelSpec("short", 4, 256, 512, 8, 2, 32, 1000, 2048, full_attention_layers=4)
    batches = designed_batches(short, kv_bytes=1e9)
    assert max(max(b.context, b.past_tokens + b.new_tokens) for b in batches) <= 2048


def test_no_room_is_an_error() -> None:
    with pytest.raises(CalibrationError, match="fit beside"):
        designed_batches(LLAMA, kv_bytes=1e6)


def test_order_is_random_with_sentinels_at_both_ends() -> None:
    batches = designed_batches(LLAMA, kv_bytes=60e9)
    plan = measuring_order(batches, seed=1)
    assert [r.batch.kind for r in plan if r.sentinel] == ["decode"] * 4 and len(
        {r.batch for r in plan if r.sentinel}
    ) == 1
    assert plan[0].sentinel and plan[-1].sentinel
    assert sorted(map(str, (r.batch for r in plan if not r.sentinel))) == sorted(map(str, batches))
    assert [r.batch for r in plan if not r.sentinel] != list(batches)
    assert measuring_order(batches, seed=1) == plan
    gaps = [i for i, r in enumerate(plan) if r.sentinel]
    assert max(b - a for a, b in itertools.pairwise(gaps)) <= 10


def test_the_points_that_tell_most_are_taken_not_the_first() -> None:
    """Twenty decodes of one kind come first; a design of six takes prompts and long contexts too."""
    prior = roofline(gpu("h100"), LLAMA)
    batches = [Batch(decodes=n, context=64) for n in range(1, 21)] + list(designed_batches(LLAMA, kv_bytes=60e9))
    points = Points(tuple(batches), np.full(len(batches), 0.01))
    chosen = most_telling(points, prior, 6)
    assert len(set(chosen)) == 6 == len(chosen)
    kinds = {batches[i].kind for i in chosen}
    assert {"decode", "prefill"} <= kinds
    assert max(batches[i].context for i in chosen) >= 4096
    assert most_telling(points, prior, 500) == list(range(len(batches)))
