"""The layers that the microbenchmark times, on a CPU build of torch: what they compute, how many kernels, how many bytes."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from planner.calibrate.device import Device, DeviceFull
from planner.calibrate.kernels import matrix_kernel, other_attention, plain_attention
from planner.calibrate.layers import Layers
from planner.calibrate.microbench import TINY_MODEL
from planner.calibrate.points import Batch
from planner.errors import CalibrationError, InputError
from planner.machine.hardware import ModelSpec, Parallelism, shard

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

EXPERTS = replace(
    TINY_MODEL, name="tiny-experts", experts=8, experts_per_token=2, moe_intermediate_size=96, shared_experts=1, dense_layers=1
)  # fmt: skip
LATENT = replace(
    TINY_MODEL, name="tiny-latent", kv_heads=8, head_dim=48, kv_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=32,
    v_head_dim=32, q_lora_rank=96,
)  # fmt: skip
WINDOWED = replace(TINY_MODEL, name="tiny-windowed", sliding_window=12, full_attention_layers=1)
DECODES, PROMPT, CHUNK, MIXED = Batch(3, 32), Batch(0, 0, 2, 16), Batch(0, 0, 1, 16, 32), Batch(3, 32, 1, 16)


def layers_of(model: ModelSpec, tp: int | Parallelism = 1, dtype: Any = None) -> Layers:
    machine = Device(torch, "cpu")
    machine.dtype = dtype or torch.float32
    made = Layers(machine, model, tp)
    made.reserve(2048)
    return made


class Asked(torch.utils._python_dispatch.TorchDispatchMode):
    """Products and attention that were asked for, and the bytes of what each has for its right side."""

    RIGHT: ClassVar[dict[str, tuple[int, ...]]] = {
        "mm": (1,),
        "bmm": (1,),
        "_grouped_mm": (1,),
        "_scaled_dot_product_flash_attention_for_cpu": (1, 2),
    }

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__.split(".")[0]
        if name in self.RIGHT:
            self.kernels[name] += 1
            self.bytes[name] += sum(args[i].numel() * args[i].element_size() for i in self.RIGHT[name])
        return function(*args, **(kwargs or {}))


def asked(layers: Layers, batch: Batch) -> Asked:
    works, _, _ = layers.prepare(batch)
    with Asked() as found:
        for body, *_ in works:
            body(0)
    return found


def test_a_dense_decode_reads_every_weight_and_every_key_once() -> None:
    """Four products and one attention a layer; the bytes are those the estimate counts for the model, in 4-byte values."""
    layers = layers_of(TINY_MODEL)
    found = asked(layers, DECODES)
    part = shard(TINY_MODEL)
    assert found.kernels == {"mm": 4 * 3, "_scaled_dot_product_flash_attention_for_cpu": 3}
    weights = (part.mixer_parameters + part.mlp_parameters) / TINY_MODEL.layers
    assert found.bytes["mm"] == 3 * 4 * weights
    kept = part.full_bytes_per_token / TINY_MODEL.layers * 2  # it counts 2 bytes a value
    assert found.bytes["_scaled_dot_product_flash_attention_for_cpu"] == 3 * kept * 3 * 32
    halved = asked(layers_of(TINY_MODEL, tp=2), DECODES)
    assert halved.bytes["mm"] == found.bytes["mm"] / 2


def test_layers_with_a_window_read_no_more_than_it() -> None:
    """One layer of four sees all 32 tokens of a decode, three see 12: as many bytes as the estimate counts."""
    layers = layers_of(WINDOWED)
    assert layers.counts == {"dense": 1, "dense, window": 3}
    found = asked(layers, DECODES)
    part = shard(WINDOWED)
    assert found.kernels == {"mm": 4 * 4, "_scaled_dot_product_flash_attention_for_cpu": 4}
    wanted = 3 * (part.full_bytes_per_token * 32 + part.window_bytes_per_token * 12)
    assert found.bytes["_scaled_dot_product_flash_attention_for_cpu"] == 2 * wanted  # it counts 2 bytes a value
    half = replace(EXPERTS, sliding_window=12, full_attention_layers=2)
    assert layers_of(half).counts == {"experts": 1, "experts, window": 2, "dense": 1}


def test_experts_are_two_grouped_products_of_the_tokens_sent() -> None:
    """A layer with experts: attention's two products, the shared expert's two, the router's, and two grouped ones; the dense
    layer four."""
    layers = layers_of(EXPERTS)
    assert [(len(layers.weights[k]), layers.counts[k]) for k in ("experts", "dense")] == [(3, 3), (1, 1)]
    found = asked(layers, DECODES)
    part = shard(EXPERTS)
    assert found.kernels["_grouped_mm"] == 2 * 3 and found.kernels["mm"] == 5 * 3 + 4
    assert found.bytes["_grouped_mm"] == 4 * part.expert_parameters
    assert found.bytes["mm"] == 4 * (part.mixer_parameters + part.mlp_parameters + part.router_parameters)
    token_of, _, ends = layers._route(200)
    sizes = np.diff(ends.numpy(), prepend=0)
    assert sizes.sum() == 400 and sizes.min() > 30, "tokens go to all experts alike"
    pairs = {(int(t), int(e)) for t, e in zip(token_of, np.repeat(np.arange(8), sizes), strict=True)}
    assert len(pairs) == 400, "no token goes to an expert twice"


def test_experts_compute_what_one_by_one_would() -> None:
    layers = layers_of(EXPERTS)
    weights, x = layers.weights["experts"][0], torch.randn(10, 256)
    token_of, back, last = layers._route(10)
    got = layers._feed_forward(weights, x, (token_of, back, last))
    up, down = (kept for kept, _ in weights["experts"])
    ends = [0, *last.tolist()]
    wanted = torch.zeros_like(x)
    for expert in range(8):
        for row in range(ends[expert], ends[expert + 1]):
            token = int(token_of[row])
            wanted[token] += layers.between.gated(x[token] @ up[expert].t()) @ down[expert].t() / 2
    first, second = weights["mlp"]
    assert torch.allclose(got, wanted + second(layers.between.gated(first(x))), atol=1e-4)


def test_whole_experts_see_the_tokens_of_all_copies_on_the_gpu_that_most_go_to() -> None:
    """Of 8 experts on 4 GPUs two are here, uncut; a token's answers are what those of its experts that are here add."""
    layers = layers_of(EXPERTS, Parallelism(dp=4))
    assert layers.q_heads == EXPERTS.q_heads and layers.expert_inner == EXPERTS.moe_intermediate_size
    weights, x = layers.weights["experts"][0], torch.randn(10, 256)
    token_of, back, last = layers._route(10)
    (up, _), (down, _) = weights["experts"]
    assert up.shape[0] == down.shape[0] == 2 and len(last) == 2
    # 40 tokens go to two experts each, 80 in all, 20 a GPU on average
    assert 20 <= int(last[-1]) == len(token_of) <= 40 and int(token_of.max()) >= 10
    got, seen = layers._feed_forward(weights, x, (token_of, back, last)), x.repeat(4, 1)
    wanted = torch.zeros(40, 256)
    for row, token in enumerate(token_of.tolist()):
        expert = int(row >= int(last[0]))
        wanted[token] += layers.between.gated(seen[token] @ up[expert].t()) @ down[expert].t() / 2
    first, second = weights["mlp"]
    assert torch.allclose(got, wanted[:10] + second(layers.between.gated(first(x))), atol=1e-4)
    with pytest.raises(InputError, match="8 experts cannot be spread over 3"):
        layers_of(EXPERTS, Parallelism(dp=3))


def test_a_latent_decode_reads_its_weights_once_and_the_latents_twice() -> None:
    """Down and query projection, the output's, the MLP's two; four batched products: into the latent space, scores, mix, out
    of it. Their right sides are the weights of the estimate, and the cache of 64 + 16 and again 64 values a token."""
    layers = layers_of(LATENT)
    found = asked(layers, DECODES)
    part = shard(LATENT)
    assert found.kernels == {"mm": 5 * 3, "bmm": 4 * 3}
    up = 3 * 4 * 8 * 64 * (32 + 32)
    cache = 3 * 4 * 3 * 32 * (80 + 64)
    assert found.bytes["bmm"] == up + cache
    assert found.bytes["mm"] + up == 3 * (part.mixer_parameters + part.mlp_parameters)  # 3 of 4 layers, 4 bytes


def test_latent_attention_is_the_same_absorbed_and_made_anew() -> None:
    """One new token after 31: as a decode in the compressed space, and as a prompt whose keys and values are made."""
    layers = layers_of(LATENT)
    weights, x, cache = layers.weights["dense"][0], torch.randn(1, 256), torch.randn(32 * 80)
    turns = [turn[31:32][:, None, :] for turn in layers.turns]
    absorbed = layers._latent_attention(Batch(1, 32))(weights, x, turns, cache.clone())
    anew = layers._latent_attention(Batch(0, 0, 1, 1, 31))(weights, x, turns, cache.clone())
    assert absorbed.shape == (1, 8 * 32) and torch.allclose(absorbed, anew, atol=1e-4)


@pytest.mark.parametrize("model", [TINY_MODEL, EXPERTS, LATENT, WINDOWED], ids=lambda m: m.name)
def test_every_kind_of_batch_runs(model: ModelSpec) -> None:
    layers = layers_of(model)
    for batch in (DECODES, PROMPT, CHUNK, MIXED):
        works, head, copies = layers.prepare(batch)
        assert sum(stand_for for *_, stand_for in works) == model.layers and copies >= 1
        for body, *_ in works:
            body(0)
        head(0)


def written_out(q: Any, k: Any, v: Any, window: int = 0) -> Any:
    """Attention of the last tokens of a sequence, of the last `window` ones where given; shapes (tokens, heads, size)."""
    (new, heads, size), total = q.shape, k.shape[0]
    keys, values = (t.repeat_interleave(heads // k.shape[1], 1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, keys) / size**0.5
    ahead = torch.arange(total)[None, :] - torch.arange(new)[:, None] - total + new
    hidden = (ahead > 0) | (ahead <= -(window or total))
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), values)


def test_attention_is_as_defined() -> None:
    q, k, v = torch.randn(5, 8, 32), torch.randn(12, 2, 32), torch.randn(12, 2, 32)
    for window in (0, 3, 7, 12):
        got = plain_attention(torch, *(t.transpose(0, 1)[None] for t in (q, k, v)), window)
        assert torch.allclose(got[0].transpose(0, 1), written_out(q, k, v, window), atol=1e-5)


def flash(calls: Counter[str]) -> SimpleNamespace:
    """FlashAttention 3's two functions, written out, sequence by sequence."""

    def varlen(
        q: Any,
        k: Any,
        v: Any,
        ends_q: Any,
        ends_k: Any,
        *longest: int,
        causal: bool,
        window_size: tuple[int, int] = (-1, 0),
    ) -> Any:
        assert causal and longest == (int(ends_q.diff().max()), int(ends_k.diff().max()))
        calls["varlen"] += 1
        cuts = [zip(e.tolist(), e.tolist()[1:], strict=False) for e in (ends_q, ends_k)]
        window = window_size[0] + 1
        return torch.cat([written_out(q[a:b], k[c:d], v[c:d], window) for (a, b), (c, d) in zip(*cuts, strict=True)])

    def with_cache(q: Any, k: Any, v: Any, *, cache_seqlens: Any, causal: bool) -> Any:
        assert causal and q.shape[1] == 1 and cache_seqlens.shape == (q.shape[0],)
        calls["decode"] += 1
        return torch.stack([written_out(q[i], k[i, :n], v[i, :n]) for i, n in enumerate(cache_seqlens.tolist())])

    return SimpleNamespace(flash_attn_varlen_func=varlen, flash_attn_with_kvcache=with_cache)


def test_flash_attention_3_takes_decodes_alone_and_mixed_batches_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    monkeypatch.setitem(sys.modules, "flash_attn_interface", flash(calls))
    layers = layers_of(TINY_MODEL)
    assert layers.attention_note == "attention: FlashAttention 3"
    plain = layers_of(TINY_MODEL)
    plain.joined = plain.decode = None
    for batch, kind in ((DECODES, "decode"), (MIXED, "varlen"), (CHUNK, "varlen")):
        calls.clear()
        found = asked(layers, batch)
        assert calls == {kind: 3} and found.kernels["mm"] == 4 * 3
        x, cache = torch.randn(batch.tokens, 256), torch.randn((3 * 32 + 48) * 128)
        size = (batch.decodes * batch.context + batch.prefills * (batch.past_tokens + batch.new_tokens)) * 128
        turns = [turn[: batch.tokens][:, None, :] for turn in layers.turns]
        both = [
            made._attention(batch)(layers.weights["dense"][0], x, turns, cache[:size].clone())
            for made in (layers, plain)
        ]
        assert torch.allclose(*both, atol=1e-4)


def test_what_engines_have_instead_is_said() -> None:
    assert "FlashInfer" in other_attention(10, "torch varlen_attn") and "server" in other_attention(
        10, "torch varlen_attn"
    )
    assert not other_attention(9, "FlashAttention 3") and not other_attention(12, "FlashAttention 2")


def test_what_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = SimpleNamespace(
        flash_attn_varlen_func=lambda q, *rest, **options: q, flash_attn_with_kvcache=lambda q, *rest, **options: q
    )
    monkeypatch.setitem(sys.modules, "flash_attn_interface", wrong)
    monkeypatch.setitem(sys.modules, "flash_attn", wrong)
    made = layers_of(TINY_MODEL)
    assert made.joined is None and "two kernels" in made.attention_note


def test_block_scales_reach_the_kernel_as_it_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale for each 128 values of a row, rows running fastest; one for each 128 x 128 weights, columns padded to four."""
    seen = []

    def scaled(a: Any, b: Any, *, scale_a: Any, scale_b: Any, out_dtype: Any, **options: Any) -> Any:
        (rows, k), n = a.shape, b.shape[1]
        assert rows % 16 == 0 and a.is_contiguous() and b.t().is_contiguous() and not options
        assert scale_a.shape == (rows, k // 128) and scale_a.stride(0) == 1
        assert scale_b.shape == (-(-k // 512) * 4, -(-n // 128)) and scale_b.stride(0) == 1
        seen.append((rows, k, n))
        left = a.float() * scale_a.repeat_interleave(128, 1)
        right = b.float() * scale_b[: k // 128].repeat_interleave(128, 0).repeat_interleave(128, 1)[:, :n]
        return (left @ right).to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", scaled)
    spec = replace(TINY_MODEL, name="tiny-qwen3", weight_dtype="fp8", intermediate_size=768)
    layers = layers_of(spec)
    assert layers.notes == ["matrix products: fp8 with a scale for every 128 x 128 weights"]
    seen.clear()
    layers.prepare(DECODES)[0][0][0](0)
    assert seen == 3 * [(16, 256, 384), (16, 256, 256), (16, 256, 1536), (16, 768, 256)]


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def fp4_values(packed: Any) -> Any:
    """The values of packed rows: a sign bit and a place among the eight sizes, the lower half byte first."""
    codes = packed.contiguous().view(torch.uint8)
    halves = torch.stack((codes & 15, codes >> 4), -1).view(codes.shape[0], -1).long()
    return E2M1[halves & 7] * (1 - 2 * (halves >> 3))


def test_fp4_products_have_half_a_byte_a_weight_and_scales_as_cublas_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scale of a row and block lies where cuBLAS' documentation of its 128 x 4 tiles puts it; the product comes out within
    what 4 bits round."""
    seen = []

    def scales(flat: Any, rows: int, blocks: int) -> Any:
        r, k = torch.arange(rows)[:, None], torch.arange(blocks)[None, :]
        tile = r // 128 * -(-blocks // 4) + k // 4
        return flat.float()[tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + k % 4].repeat_interleave(16, 1)

    def scaled(a: Any, b: Any, *, scale_a: Any, scale_b: Any, out_dtype: Any) -> Any:
        assert a.dtype == b.dtype == torch.float4_e2m1fn_x2 and a.shape[0] % 16 == 0
        assert a.is_contiguous() and b.t().is_contiguous()
        seen.append(b.numel())
        left, right = fp4_values(a), fp4_values(b.t())
        left, right = left * scales(scale_a, *left[:, ::16].shape), right * scales(scale_b, *right[:, ::16].shape)
        return (left @ right.t()).to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", scaled)
    layers = layers_of(replace(TINY_MODEL, weight_dtype="fp4"))
    assert layers.notes == ["matrix products: fp4 with a scale for every 16 values (NVFP4)"]
    seen.clear()
    layers.prepare(DECODES)[0][0][0](0)
    assert seen == 3 * [384 * 256 // 2, 256 * 256 // 2, 2 * 704 * 256 // 2, 704 * 256 // 2]
    product, _ = matrix_kernel(Device(torch, "cpu"), "fp4")
    weight, x = torch.randn(272, 4096) / 64.0, torch.randn(5, 4096)
    wanted = x @ weight.t()
    assert float((product(weight)(x) - wanted).norm() / wanted.norm()) < 0.15
    with pytest.raises(CalibrationError, match="takes no matrix of 272 x 72"):
        product(weight[:, :72])


def test_without_memory_a_kernel_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the message of torch, of cuBLAS or of Triton, and no other kernel is taken in its place."""
    for told in (
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate",
    ):

        def full(*arguments: Any, told: str = told, **options: Any) -> Any:
            raise torch.cuda.OutOfMemoryError(told) if told.startswith("CUDA out") else RuntimeError(told)

        with monkeypatch.context() as patch:
            patch.setattr(torch, "_scaled_mm", full)
            with pytest.raises(DeviceFull, match="ran out of memory while a matrix product of fp8 weights was tried"):
                layers_of(replace(TINY_MODEL, weight_dtype="fp8"))
            # a family with a scale a block is not measured with one a matrix instead
            blocks = replace(TINY_MODEL, name="tiny-qwen3", weight_dtype="fp8")
            with pytest.raises(DeviceFull):
                layers_of(blocks)
        with monkeypatch.context() as patch:
            patch.setattr(torch.nn.functional, "grouped_mm", full, raising=False)
            patch.setattr(torch, "_grouped_mm", full, raising=False)
            with pytest.raises(DeviceFull, match="grouped product"):
                layers_of(EXPERTS)
        with monkeypatch.context() as patch:
            patch.setitem(
                sys.modules, "flash_attn", SimpleNamespace(flash_attn_varlen_func=full, flash_attn_with_kvcache=full)
            )
            with pytest.raises(DeviceFull, match="FlashAttention 2"):
                layers_of(TINY_MODEL)


def test_kernels_that_are_not_there_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("no such kernel on CPU")

    monkeypatch.setattr(torch, "_scaled_mm", missing)
    with pytest.raises(CalibrationError, match="has no matrix product of fp8 weights") as caught:
        layers_of(replace(TINY_MODEL, weight_dtype="fp8"))
    assert "no such kernel on CPU" in caught.value.message and "--server" in (caught.value.hint or "")
    monkeypatch.setattr(torch.nn.functional, "grouped_mm", missing, raising=False)
    monkeypatch.setattr(torch, "_grouped_mm", missing, raising=False)
    with pytest.raises(CalibrationError, match="no grouped product of bf16 experts"):
        layers_of(EXPERTS)
    monkeypatch.setattr(Device, "free_bytes", lambda machine: 1e5)
    with pytest.raises(CalibrationError, match="does not fit"):
        layers_of(TINY_MODEL)


def test_a_product_that_is_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_scaled_mm", lambda a, b, **options: torch.zeros(a.shape[0], b.shape[1]))
    with pytest.raises(CalibrationError, match="100% off the plain one"):
        matrix_kernel(Device(torch, "cpu"), "fp8")


def test_int4_products_have_a_quarter_of_the_bytes() -> None:
    """torch's own kernel; it is held against the plain product when it is made."""
    layers = layers_of(replace(TINY_MODEL, weight_dtype="int4", intermediate_size=768), dtype=torch.bfloat16)
    assert "int4" in layers.notes[0]
    names: Counter[str] = Counter()

    class Int4(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "int4pack_mm" in function.__name__:
                names["products"] += 1
                names["bytes"] += args[1].numel() * args[1].element_size()
            return function(*args, **(kwargs or {}))

    with Int4():
        layers.prepare(DECODES)[0][0][0](0)
    assert names["products"] == 4 * 3
    assert names["bytes"] == 3 * (384 * 256 + 256 * 256 + 3 * 256 * 768) / 2


def test_a_layer_has_two_norms_a_turn_and_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """And each is what it is called: turned values meet by how far apart they stand, whatever their places."""
    layers = layers_of(TINY_MODEL)
    counts: Counter[str] = Counter()

    def counting(name: str, inner: Any) -> Any:
        def call(*given: Any) -> Any:
            counts[name] += 1
            return inner(*given)

        return call

    for name in ("norm", "rotary", "gated"):
        monkeypatch.setattr(layers.between, name, counting(name, getattr(layers.between, name)))
    layers.prepare(MIXED)[0][0][0](0)
    assert counts == {"norm": 2 * 3, "rotary": 3, "gated": 3}
    x, residual = torch.randn(5, 256), torch.randn(5, 256)
    normed, total = layers.between.norm(x, residual, torch.ones(256))
    assert torch.equal(total, x + residual)
    assert torch.allclose(normed.pow(2).mean(-1), torch.ones(5), atol=1e-3)
    up = torch.randn(5, 2 * 704)
    assert torch.allclose(layers.between.gated(up), torch.nn.functional.silu(up[:, :704]) * up[:, 704:])
    q, k = torch.randn(1, 1, 32), torch.randn(1, 1, 32)

    def met(here: int, there: int) -> float:
        turned = [
            layers.between.rotary(v, *(t[place : place + 1][:, None, :] for t in layers.turns))
            for v, place in ((q, here), (k, there))
        ]
        return float((turned[0] * turned[1]).sum())

    assert met(70, 11) == pytest.approx(met(259, 200), abs=1e-4)
    assert abs(met(70, 11) - met(70, 60)) > 1e-3


@pytest.mark.long("two processes with PyTorch")
@pytest.mark.parametrize("what", ["an all-reduce", "gathers"])
def test_collectives_over_two_processes(what: str) -> None:
    """Each process checks that the sum of ones is two before anything is timed."""
    from planner.calibrate.device import collective_seconds

    times = collective_seconds(what, 2, 64, device="cpu", sizes=(1, 64))
    assert set(times) == {1, 64} and all(0.0 < t < 10.0 for t in times.values())
    with pytest.raises(CalibrationError, match=f"{what} over 2 processes"):
        collective_seconds(what, 2, 64, device="cuda", sizes=(1,), wait_s=60.0)
