"""The roofline prior against figures worked out by hand from data sheets and model cards."""

from __future__ import annotations

import pytest

from planner.errors import InputError
from planner.hardware import DTYPE_BYTES, GpuSpec, ModelSpec
from planner.iteration.roofline import prior_band, roofline, shard_shape

H100 = GpuSpec("h100-80gb", 85e9, 3.35e12, {"bf16": 989e12, "fp8": 1979e12}, 450e9, 2.99)
A100 = GpuSpec("a100-80gb", 85e9, 2.039e12, {"bf16": 312e12, "int8": 624e12}, 300e9, 1.5)
L40S = GpuSpec("l40s", 48e9, 0.864e12, {"bf16": 362e12, "fp8": 733e12}, None, 1.0)
LLAMA_8B = ModelSpec("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256, 131072, full_attention_layers=32)
LLAMA_70B = ModelSpec("llama-3.1-70b", 80, 8192, 28672, 64, 8, 128, 128256, 131072, full_attention_layers=80)
MIXTRAL = ModelSpec(
    "mixtral-8x7b", 32, 4096, 0, 32, 8, 128, 32000, 32768,
    experts=8, experts_per_token=2, moe_intermediate_size=14336, full_attention_layers=32,
)  # fmt: skip
DEEPSEEK = ModelSpec(
    "deepseek-v3", 61, 7168, 18432, 128, 128, 128, 129280, 163840, weight_dtype="fp8",
    experts=256, experts_per_token=8, moe_intermediate_size=2048, shared_experts=1, dense_layers=3,
    kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, q_lora_rank=1536, full_attention_layers=61,
)  # fmt: skip


def test_llama_8b_on_h100() -> None:
    p = roofline(H100, LLAMA_8B)
    # 50 us x 32 + 128,256 x 4,096 x 2 B / 3.35 TB/s; 6.979e9 weights; 131,072 B of KV per token
    assert p.t0 * 1e3 == pytest.approx(1.914, abs=5e-4)
    assert p.w * 1e3 == pytest.approx(5.081, abs=5e-4)
    assert p.b * 1e6 == pytest.approx(23.52, abs=5e-3)
    assert p.c * 1e6 == pytest.approx(4.705, abs=5e-4)
    assert p.h * 1e6 == pytest.approx(0.96)
    assert p.g * 1e9 == pytest.approx(50.16, abs=5e-3)
    assert p.a * 1e9 == pytest.approx(0.7068, abs=5e-5)
    assert (p.tau, p.e, p.x) == (128, p.g, 0.0)


def test_tensor_parallelism_divides_and_reduces() -> None:
    one, four = roofline(A100, LLAMA_70B, 1), roofline(A100, LLAMA_70B, 4)
    assert four.w == pytest.approx(one.w / 4, rel=1e-3)
    assert four.b == pytest.approx(one.b / 4, rel=1e-3)
    assert four.a == pytest.approx(one.a / 4)
    assert four.g == pytest.approx(one.g / 4)
    # two all-reduces a layer of 8,192 x 2 B, a ring moves 2 (tp - 1)/tp of it over 300 GB/s
    assert four.c - 0.2 * four.b == pytest.approx(2 * 80 * 8192 * 2 * 1.5 / 300e9)
    assert shard_shape(LLAMA_70B, 16).kv_bytes_per_token == 80 * 2 * 128 * 2  # fewer KV heads than GPUs: replicated


def test_mixture_of_experts() -> None:
    shape = shard_shape(MIXTRAL)
    assert shape.dense_parameters + shape.expert_parameters == pytest.approx(46.70e9 - 2 * 32000 * 4096, rel=1e-3)
    assert shape.active_parameters == pytest.approx(12.88e9 - 2 * 32000 * 4096, rel=1e-3)
    p = roofline(H100, MIXTRAL)
    assert p.expert_share == 0.25
    assert p.w_experts == pytest.approx(shape.expert_parameters * 2 / (0.82 * 3.35e12))
    assert p.tau == 1
    # one token touches its two experts: the time of active weights, not of all
    assert p.weight_time(1) == pytest.approx(shape.active_parameters * 2 / (0.82 * 3.35e12), rel=1e-9)
    assert prior_band(MIXTRAL) > prior_band(LLAMA_8B) == 0.30


def test_latent_attention() -> None:
    shape = shard_shape(DEEPSEEK, 8)
    assert shape.kv_bytes_per_token == 61 * 576 * 2  # not divided: every GPU keeps it
    total = shard_shape(DEEPSEEK)
    assert total.dense_parameters + total.expert_parameters == pytest.approx(671e9 - 2 * 129280 * 7168, rel=0.01)
    assert total.active_parameters == pytest.approx(37e9 - 2 * 129280 * 7168 / 1.0, rel=0.03)


def test_dtypes() -> None:
    from dataclasses import replace

    fp8 = replace(LLAMA_8B, weight_dtype="fp8", kv_dtype="fp8")
    on_h100, wide = roofline(H100, fp8), roofline(H100, LLAMA_8B)
    assert on_h100.w == pytest.approx(wide.w / 2)
    assert on_h100.b == pytest.approx(wide.b * 989 / 1979)
    assert on_h100.g == pytest.approx(wide.g / 2)
    assert on_h100.t0 == wide.t0  # the head stays 2 bytes
    # A100 has no fp8 matrix rate, and 4-bit integers are widened everywhere
    assert roofline(A100, fp8).b == pytest.approx(roofline(A100, LLAMA_8B).b)
    int4 = replace(LLAMA_8B, weight_dtype="int4")
    assert roofline(H100, int4).w == pytest.approx(wide.w * DTYPE_BYTES["int4"] / 2)
    assert roofline(H100, int4).b == pytest.approx(wide.b)


def test_sliding_window_reads_at_most_its_window() -> None:
    hybrid = ModelSpec(
        "hybrid", 36, 2880, 2880, 64, 8, 64, 201088, 131072, sliding_window=128, full_attention_layers=18
    )
    p = roofline(H100, hybrid)
    assert p.g == pytest.approx(18 * 2 * 8 * 64 * 2 / (0.78 * 3.35e12))
    assert p.h == pytest.approx(30e-9 * 36 + 128 * p.g)


def test_refusals() -> None:
    with pytest.raises(InputError, match="cannot be divided"):
        roofline(H100, LLAMA_8B, 3)
    with pytest.raises(InputError, match="exceeds the 8 GPUs"):
        roofline(H100, LLAMA_8B, 16)
    with pytest.raises(InputError, match="tp must be"):
        shard_shape(LLAMA_8B, 0)
    with pytest.raises(InputError, match="no matrix rate"):
        roofline(GpuSpec("x", 1e9, 1e12, {}, None, 1.0), LLAMA_8B)
    assert roofline(L40S, LLAMA_8B, 2).c > roofline(H100, LLAMA_8B, 2).c  # PCIe


def test_prior_alone_is_within_its_band_on_measured_kernels(shared_data) -> None:  # type: ignore[no-untyped-def]
    from planner.calibrate.points import read_iterations_csv
    from planner.catalog import gpu, model

    errors = []
    for (g, m, tp), points in read_iterations_csv(shared_data / "calibration" / "kernels.csv").items():
        p = roofline(gpu(g), model(m), tp)
        t = p.time(
            points.column("decodes"),
            points.context_sum,
            points.prefill_tokens,
            points.column("pairs"),
            points.context_max,
        )
        errors.append(abs(t / points.time_s - 1).mean())
    assert sum(errors) / len(errors) < 0.18
    assert max(errors) < prior_band(model("llama-3-8b"))
