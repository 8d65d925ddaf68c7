"""Prompts with images: what reaches the replay, what it costs against computations of its own, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import planner
from planner.catalog import gpu, model
from planner.catalog.images import image_s
from planner.catalog.kv import weight_bytes
from planner.errors import InputError
from planner.machine.roofline import roofline
from planner.predict import kernel, reference
from planner.predict.records import Replicas, Requests
from planner.workload.trace import Trace
from planner.workload.workload import Workload
from tests.predict.cases import differences

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances", "without_words")

FLAT = "isl=500,isl-spread=0,osl=2,osl-spread=0"
SEEN = {"model": "qwen3-vl-8b", "gpu": "h100"}


def prompt(tokens: int) -> float:
    """Time of a prompt alone [s]."""
    return roofline(gpu("h100"), model("qwen3-vl-8b"), engine="vllm").time(0, 0, tokens, tokens * (tokens + 1) / 2)


def trace(images: list[int], rate: float = 2.0) -> Workload:
    """Requests of 500 and 10 tokens, with so many images in turn."""
    count = 1200
    category = [f"{images[k % len(images)]}-images" for k in range(count)]
    names = sorted(set(category))
    index = np.array([names.index(c) for c in category])
    times, inputs, outputs = np.arange(count) / rate, np.full(count, 500.0), np.full(count, 10.0)
    return Workload.from_arrays(
        inputs, outputs, category=index, categories=names, arrival_rate_per_s=rate,
        recorded=Trace(times, inputs, outputs, index),
    )  # fmt: skip


def test_an_encoder_takes_its_operations_and_its_launches() -> None:
    # 1024 x 1024: 64 x 64 patches of Qwen3-VL, each with all others, in 27 layers of 1,152 values
    patches, layers, hidden, width = 64 * 64, 27, 1152, 4304
    products = 2 * patches * layers * (4 * hidden**2 + 2 * hidden * width)
    attention = 4 * layers * patches**2 * hidden
    least = (products + attention) / 989e12
    found = image_s(gpu("h100"), model("qwen3-vl-8b"), 1, (1024, 1024))
    # kernels reach half to three quarters of the data sheet's rate, and eager launches take a millisecond or two
    assert least / 0.75 < found < least / 0.45 + 2e-3
    assert image_s(gpu("h100"), model("qwen3-vl-8b"), 2, (1024, 1024)) < found


def test_tiles_see_only_themselves() -> None:
    llama, h100 = model("llama-4-scout"), gpu("h100")
    one, seventeen = (image_s(h100, llama, 1, size) for size in ((336, 336), (1344, 1344)))
    fixed = roofline(h100, llama.vision).t0
    # 17 pieces of 577 patches; a batch of one is not yet full, so that each of it takes longer
    assert 8.0 < (seventeen - fixed) / (one - fixed) < 17.5


def test_a_public_measurement() -> None:
    """Qwen2.5-VL-7B on an H100, vLLM 0.19.1, a picture of 1920x1080 and 2,718 tokens in all: 126 ms from scheduling to the first
    token (vllm-project/vllm issue 41267, 2026-04); weights of 15.63 GiB (QwenLM/Qwen3-VL issue 1057)."""
    seen, h100 = model("qwen2.5-vl-7b"), gpu("h100")
    prefill = roofline(h100, seen, engine="vllm").time(0, 0, 2718, 2718 * 2719 / 2)
    # the estimate's band is 25%; without the encoder it would be 48% short
    assert prefill + image_s(h100, seen, 1, (1920, 1080)) == pytest.approx(0.126, rel=0.25)
    assert weight_bytes(seen) / 2**30 == pytest.approx(15.63, rel=0.02)


def test_kernel_and_reference_charge_images_where_a_prompt_is_admitted() -> None:
    rng = np.random.default_rng(5)
    rows = 300
    asked = Requests(
        np.cumsum(rng.exponential(0.1, rows)), rng.integers(100, 4000, rows) * 1.0, rng.integers(1, 60, rows) * 1.0,
        np.zeros(rows), rng.integers(0, 1 << 60, rows).astype(np.uint64), images=rng.integers(0, 4, rows) * 1.0,
    )  # fmt: skip
    iteration = roofline(gpu("h100"), model("qwen3-vl-8b"), engine="vllm")
    replicas = Replicas(2, iteration, 64, 2048.0, 60_000.0, "p2c", request_s=3e-4, image_s=0.02)
    fast, slow = kernel.replay(asked, replicas), reference.replay(asked, replicas)
    assert not differences(fast, slow)
    # all that it takes is time of iterations: as much as there are images, where no prompt is preempted
    without = kernel.replay(replace(asked, images=None), replace(replicas, count=1))
    seen = kernel.replay(asked, replace(replicas, count=1))
    assert seen.preempted.sum() == without.preempted.sum() == 0
    assert seen.busy_s.sum() > without.busy_s.sum()
    alone = replace(asked, arrival_s=np.arange(rows) * 1e3)
    before, after = (kernel.replay(r, replace(replicas, count=1)) for r in (replace(alone, images=None), alone))
    np.testing.assert_allclose(after.ttft_s - before.ttft_s, 0.02 * alone.images, rtol=0, atol=1e-9)


def test_a_prompt_is_longer_by_its_images_and_waits_for_them() -> None:
    rate = 0.05  # far apart: every latency is a request's own
    plain = planner.plan(FLAT, rate=rate, slo=5.0, **SEEN)
    seen = planner.plan(FLAT, rate=rate, slo=5.0, images=2, image_size="1024x1024", **SEEN)
    assert seen.workload["mean_input_tokens"] == plain.workload["mean_input_tokens"] + 2 * 1026
    expected = prompt(500 + 2 * 1026) - prompt(500) + 2 * image_s(gpu("h100"), model("qwen3-vl-8b"), 1, (1024, 1024))
    found, before = (
        next(v.value_s for v in p.pools[0].latency if v.metric == "ttft_s" and v.quantile == 0.5) for p in (seen, plain)
    )
    # the confidence plans for longer iterations, the pools' latencies are those of the estimate
    assert found - before == pytest.approx(expected, rel=0.02)


@pytest.mark.usefixtures("with_words")
def test_an_images_column_is_each_request_s_own() -> None:
    mixed = planner.plan(trace([0, 4]), slo=2.0, **SEEN)
    assert mixed.workload["mean_input_tokens"] == pytest.approx(500 + 2 * 1026, rel=1e-12)
    told = [line for line in mixed.assumptions if "images a prompt" in str(line)]
    assert len(told) == 1 and "2 images a prompt of 1024x1024, 1,026 tokens each" in str(told[0])
    # far apart and never cut: half of the requests see 500 tokens, the others four images more, and nothing between them
    calm = planner.plan(trace([0, 4], rate=0.1), slo=5.0, token_budget=8192, **SEEN)
    ttft = {v.quantile: v.value_s for v in calm.pools[0].latency if v.metric == "ttft_s"}
    more = prompt(500 + 4 * 1026) - prompt(500) + 4 * image_s(gpu("h100"), model("qwen3-vl-8b"), 1, (1024, 1024))
    assert ttft[0.9] == ttft[0.99] and ttft[0.9] - ttft[0.5] == pytest.approx(more, rel=1e-6)
    alone = planner.plan(trace([0]), slo=2.0, **SEEN)
    assert alone.workload["mean_input_tokens"] == pytest.approx(500, rel=1e-12)
    assert not any("images a prompt" in str(line) for line in alone.assumptions)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"model": "llama-3.1-8b"}, "no image encoder of llama-3.1-8b is known"),
        ({"method": "closed"}, "method closed: not together with images"),
        ({"shape": "both"}, "shape both: not together with images"),
        ({"scheduler": "sarathi"}, "scheduler sarathi: not together with images"),
        ({"shape": "epd"}, "an image encoder on GPUs of its own, is not modelled"),
        ({"compress": True, "method": "mgc"}, "prompts with images are not rewritten"),
        ({"images": 9999}, "qwen3-vl-8b admits 262,144"),
        ({"images": -1}, "must not be negative"),
        ({"image_size": "7"}, "is no size of an image"),
    ],
)
def test_refused(options: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match=line):
        planner.plan(FLAT, rate=1.0, slo=5.0, **{"images": 1, **SEEN, **options})


def test_sessions_find_their_images_again() -> None:
    with pytest.raises(InputError, match="prefix_cache=off"):
        planner.plan("turns=10,first=2000,growth=400,osl=300,gap=30s", rate=5.0, slo=5.0, images=1, **SEEN)
