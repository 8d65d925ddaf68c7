"""Measure iterations on this machine's GPU with torch: real shapes, random weights, a few layers stand for all.

No model is downloaded. The layers of one GPU's share are built with random weights; attention runs over KV buffers that
are different for every repeat (a KV cache of gigabytes never sits in the L2 cache either); the time of a few layers is
multiplied to the model's depth and the head with its argmax added. The host's share (scheduler, detokenizer, HTTP) is not
in it: an engine adds it to every iteration, which `--server` measures. Between the matrix products a layer has what engines have:
RMSNorm with the residual's sum, rotary positions, SiLU times its gate, each one kernel where torch can compile it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.calibrate.design import designed_batches, expected_duration, measuring_order
from planner.calibrate.points import Batch, Points
from planner.errors import CalibrationError, InputError
from planner.extras import installing
from planner.hardware import GpuSpec, ModelSpec
from planner.iteration.model import IterationModel
from planner.iteration.roofline import PCIE_BYTES_PER_S, shard_shape

__all__ = ["CPU", "TINY_MODEL", "Measured", "load_torch", "measure"]

TINY_MODEL = ModelSpec(
    name="tiny",
    layers=4,
    hidden_size=256,
    intermediate_size=704,
    q_heads=8,
    kv_heads=2,
    head_dim=32,
    vocab_size=4096,
    max_context=4096,
    full_attention_layers=4,
    source="made up, to try the whole path on a machine without a GPU",
)

CPU = GpuSpec(
    name="cpu",
    memory_bytes=8e9,
    bandwidth_bytes_per_s=20e9,
    flops_per_s={"bf16": 0.1e12, "fp32": 0.1e12},
    link_bytes_per_s=None,
    price_usd_per_hour=0.0,
    sources={"bandwidth_bytes_per_s": "order of magnitude of one or two cores"},
)
"""Stands for the processor in a trial run; not a GPU anybody plans with."""

CPU_TOKENS, CPU_CONTEXT, CPU_ROOM = 256, 512, 16_384
"""A trial run on a processor keeps to batches that take milliseconds [tokens]."""

LAYERS_BUILT = 3
POINT_SECONDS = 0.6
ALLREDUCE_LATENCY_S = {True: 12e-6, False: 30e-6}
"""Of one all-reduce over NVLink or PCIe, where one GPU stands for the group: what custom kernels reach [s]."""

Progress = Callable[[int, int, str], None]
"""Called with (points done, points in all, what is measured)."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What a run gave.

    Parameters
    ----------
    points
        Times with the order of measuring; sentinels repeat.
    device
        As torch names it.
    versions
        Of torch and CUDA.
    seconds
        Time spent measuring [s].
    notes
        What the reader must know.
    """

    points: Points
    device: str
    versions: str
    seconds: float
    notes: tuple[str, ...]


def load_torch() -> Any:
    """Import torch, or say how to get it."""
    try:
        import torch
    except ImportError:
        raise CalibrationError(
            "measuring on this machine needs PyTorch, which is not installed",
            f"Install the extra: {installing('gpu')}. Or measure a running server: --server URL.",
        ) from None
    return torch


def _unsupported(model: ModelSpec) -> None:
    problem = None
    if model.experts:
        problem = "mixtures of experts"
    elif model.kv_lora_rank:
        problem = "latent attention"
    elif model.sliding_window and model.full_attention_layers < model.layers:
        problem = "sliding-window layers"
    elif model.weight_dtype not in ("bf16", "fp16", "fp8"):
        problem = f"{model.weight_dtype} weights"
    elif model.kv_dtype not in ("bf16", "fp16"):
        problem = f"a {model.kv_dtype} KV cache"
    if problem:
        raise CalibrationError(
            f"the microbenchmark has no kernels for {problem} ({model.name})",
            "Measure a running server instead: fleetopt calibrate --server URL --model NAME.",
        )


class _Device:
    """Timing and memory of the device measured on."""

    def __init__(self, torch: Any, kind: str) -> None:
        self.torch = torch
        self.kind = kind
        self.cuda = kind == "cuda"
        if self.cuda and not torch.cuda.is_available():
            raise CalibrationError(
                "torch sees no GPU on this machine", "Check nvidia-smi and the torch build; or try --device cpu."
            )
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.name = torch.cuda.get_device_name(0) if self.cuda else "cpu"
        self.l2_bytes = 0
        self.launched = 0
        """Batches timed with their launches, because they could not be captured."""
        if self.cuda:
            properties = torch.cuda.get_device_properties(0)
            self.l2_bytes = int(getattr(properties, "L2_cache_size", 0) or 64 * 2**20)

    def free_bytes(self) -> float:
        if self.cuda:
            return float(self.torch.cuda.mem_get_info()[0])
        return 1e9

    def seconds(self, body: Callable[[int], None], copies: int, budget_s: float) -> float:
        """Median time of one call of `body` (given the number of the copy to work on) [s]."""
        return self._cuda_seconds(body, copies, budget_s) if self.cuda else self._cpu_seconds(body, copies, budget_s)

    def _cpu_seconds(self, body: Callable[[int], None], copies: int, budget_s: float) -> float:
        body(0)
        times: list[float] = []
        started = time.perf_counter()
        while len(times) < 3 or (time.perf_counter() - started < budget_s and len(times) < 30):
            begin = time.perf_counter()
            body(len(times) % copies)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    def _cuda_seconds(self, body: Callable[[int], None], copies: int, budget_s: float) -> float:
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # warm-up on a side stream, as capturing asks for
            for copy in range(copies):
                body(copy)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()

        def all_copies() -> None:
            for copy in range(copies):
                body(copy)

        replay: Callable[[], None] = all_copies
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                all_copies()
            replay = graph.replay
        except RuntimeError:
            # a kernel that cannot be captured is timed with its launches
            torch.cuda.synchronize()
            self.launched += 1

        def once() -> float:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            replay()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e-3 / copies

        first = once()
        repeats = int(min(30, max(3, budget_s / max(first * copies, 1e-6))))
        return statistics.median(once() for _ in range(repeats))


class _Shard:
    """A few layers and the head of one GPU's share of a model, with random weights."""

    def __init__(self, device: _Device, model: ModelSpec, tp: int, seed: int) -> None:
        torch = device.torch
        self.torch, self.device, self.model = torch, device, model
        if model.q_heads % tp:
            raise InputError(f"{model.name}: {model.q_heads} attention heads cannot be divided over tp={tp}")
        self.q_heads = model.q_heads // tp
        self.kv_heads = max(1, math.ceil(model.kv_heads / tp))
        if self.q_heads % self.kv_heads:
            raise InputError(f"{model.name}: tp={tp} leaves {self.q_heads} query and {self.kv_heads} KV heads")
        self.inner = -(-model.intermediate_size // tp)
        self.vocab = -(-model.vocab_size // tp)
        self.layers = min(model.layers, LAYERS_BUILT)
        self.fp8 = model.weight_dtype == "fp8"
        if self.fp8 and not (device.cuda and torch.cuda.get_device_capability(0) >= (8, 9)):
            raise CalibrationError(
                f"{device.name} has no fp8 matrix kernels", "Measure the bf16 model, or another GPU."
            )
        generator = torch.Generator(device=device.kind).manual_seed(seed)

        def weight(rows: int, columns: int) -> Any:
            made = torch.randn(rows, columns, generator=generator, device=device.kind, dtype=torch.float32)
            made = (made / math.sqrt(columns)).to(device.dtype)
            return made.to(torch.float8_e4m3fn) if self.fp8 else made

        h, d = model.hidden_size, model.head_dim
        self.weights = [
            {
                "qkv": weight((self.q_heads + 2 * self.kv_heads) * d, h),
                "out": weight(h, self.q_heads * d),
                "up": weight(2 * self.inner, h),
                "down": weight(h, self.inner),
                "norm": torch.ones(h, device=device.kind, dtype=device.dtype),
            }
            for _ in range(self.layers)
        ]
        # the head stays wide under fp8, as engines keep it
        head = torch.randn(self.vocab, h, generator=generator, device=device.kind, dtype=torch.float32)
        self.head = (head / math.sqrt(h)).to(device.dtype)
        self.one = torch.ones((), device=device.kind, dtype=torch.float32)
        # positions turn pairs of a head's values; one row of angles per place in a context
        angles = torch.outer(torch.arange(model.max_context), 1e4 ** (-torch.arange(0, d, 2) / d))
        self.turns = [f(angles).to(device.dtype).to(device.kind) for f in (torch.cos, torch.sin)]
        self.norm, self.rotary, self.gated, self.fused = _between(torch, device, h, d, self.inner)
        self.pool: list[Any] = []
        self.varlen = self._find_varlen()

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` of KV cache in every layer built."""
        torch = self.torch
        size = 2 * tokens * self.kv_heads * self.model.head_dim
        self.pool = [
            torch.empty(size, device=self.device.kind, dtype=self.device.dtype).normal_(std=0.5)
            for _ in range(self.layers)
        ]
        self.room = tokens

    def _find_varlen(self) -> Any:
        """torch's variable-length attention where it is there and agrees with the dense one, else ``None``."""
        if not self.device.cuda:
            return None
        torch = self.torch
        try:
            from torch.nn.attention.varlen import varlen_attn

            d, q, kv = self.model.head_dim, self.q_heads, self.kv_heads
            make = {"device": "cuda", "dtype": self.device.dtype}
            query, key, value = (
                torch.randn(8, q, d, **make),
                torch.randn(32, kv, d, **make),
                torch.randn(32, kv, d, **make),
            )
            ends_q = torch.tensor([0, 8], device="cuda", dtype=torch.int32)
            ends_k = torch.tensor([0, 32], device="cuda", dtype=torch.int32)

            def call(q_: Any, k_: Any, v_: Any, eq: Any, ek: Any, mq: int, mk: int) -> Any:
                return varlen_attn(q_, k_, v_, eq, ek, mq, mk, window_size=(-1, 0), enable_gqa=q != kv)

            got = call(query, key, value, ends_q, ends_k, 8, 32).transpose(0, 1)
            wanted = self._causal(query.transpose(0, 1)[None], key.transpose(0, 1)[None], value.transpose(0, 1)[None])[
                0
            ]
            if torch.allclose(got.float(), wanted.float(), atol=3e-2, rtol=3e-2):
                return call
        except (ImportError, RuntimeError, TypeError, NotImplementedError, AttributeError):
            return None
        return None

    def _linear(self, x: Any, weight: Any) -> Any:
        if not self.fp8:
            return x @ weight.t()
        torch = self.torch
        rows = x.shape[0]
        narrow = x.to(torch.float8_e4m3fn)
        if rows % 16:  # the kernel wants multiples of 16 rows
            narrow = torch.nn.functional.pad(narrow.view(torch.uint8), (0, 0, 0, 16 - rows % 16)).view(narrow.dtype)
        out = torch._scaled_mm(
            narrow, weight.t(), scale_a=self.one, scale_b=self.one, out_dtype=self.device.dtype, use_fast_accum=True
        )
        return out[:rows]

    def _causal(self, q: Any, k: Any, v: Any) -> Any:
        """Attention of new tokens over past and new ones, causal from the lower right corner."""
        functional = self.torch.nn.functional
        new, total = q.shape[2], k.shape[2]
        group = q.shape[1] // k.shape[1]
        if new == total and group > 1 and self.device.cuda:
            try:
                return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            except TypeError:  # torch 2.4 does not know grouped heads
                pass
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if new == total:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        from torch.nn.attention.bias import causal_lower_right

        return functional.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(new, total))

    def prepare(self, batch: Batch) -> tuple[Callable[[int], None], Callable[[int], None], int]:
        """Layers and head of a batch as two functions of the copy of the KV cache, and how many copies there are."""
        torch, model = self.torch, self.model
        d, kv_heads, q_heads = model.head_dim, self.kv_heads, self.q_heads
        n, m, new = batch.decodes, batch.prefills, batch.new_tokens
        total = batch.past_tokens + new
        tokens_kv = n * batch.context + m * total
        cached = 2 * tokens_kv * kv_heads * d * self.pool[0].element_size() * self.layers
        wanted = 1 if not self.device.l2_bytes else min(8, math.ceil(3 * self.device.l2_bytes / max(cached, 1)))
        copies = max(1, min(wanted, self.room // max(tokens_kv, 1)))
        hidden = torch.randn(batch.tokens, model.hidden_size, device=self.device.kind).to(self.device.dtype)
        kept = n + m
        places = np.concatenate([np.full(n, batch.context - 1), np.tile(np.arange(batch.past_tokens, total), m)])
        rows = torch.tensor(places % model.max_context, device=self.device.kind, dtype=torch.int64)
        cosine, sine = (turn[rows][:, None, :] for turn in self.turns)
        varlen = self.varlen if m else None
        if varlen is not None:
            lengths_q = [1] * n + [new] * m
            lengths_k = [batch.context] * n + [total] * m
            ends_q = torch.tensor(
                np.concatenate([[0], np.cumsum(lengths_q)]), device=self.device.kind, dtype=torch.int32
            )
            ends_k = torch.tensor(
                np.concatenate([[0], np.cumsum(lengths_k)]), device=self.device.kind, dtype=torch.int32
            )

        def views(layer: int, copy: int) -> tuple[Any, Any]:
            size = tokens_kv * kv_heads * d
            start = copy * 2 * size
            return self.pool[layer][start : start + size], self.pool[layer][start + size : start + 2 * size]

        def attend(layer: int, copy: int, q: Any, k_new: Any, v_new: Any) -> Any:
            keys, values = views(layer, copy)
            if varlen is not None:
                k, v = keys.view(tokens_kv, kv_heads, d), values.view(tokens_kv, kv_heads, d)
                k[:: max(1, tokens_kv // k_new.shape[0])][: k_new.shape[0]].copy_(k_new)
                v[:: max(1, tokens_kv // v_new.shape[0])][: v_new.shape[0]].copy_(v_new)
                longest = max(batch.context if n else 0, total)
                return varlen(q, k, v, ends_q, ends_k, new, longest).reshape(batch.tokens, q_heads * d)
            parts = []
            if n:
                k = keys[: n * batch.context * kv_heads * d].view(n, kv_heads, batch.context, d)
                v = values[: n * batch.context * kv_heads * d].view(n, kv_heads, batch.context, d)
                k[:, :, -1].copy_(k_new[:n])
                v[:, :, -1].copy_(v_new[:n])
                # the query heads of a group share their KV head: they are rows of one small matrix
                grouped = q[:n].view(n, kv_heads, q_heads // kv_heads, d)
                out = torch.nn.functional.scaled_dot_product_attention(grouped, k, v)
                parts.append(out.reshape(n, q_heads * d))
            if m:
                k = keys[n * batch.context * kv_heads * d :].view(m, kv_heads, total, d)
                v = values[n * batch.context * kv_heads * d :].view(m, kv_heads, total, d)
                k[:, :, batch.past_tokens :].copy_(k_new[n:].view(m, new, kv_heads, d).transpose(1, 2))
                v[:, :, batch.past_tokens :].copy_(v_new[n:].view(m, new, kv_heads, d).transpose(1, 2))
                query = q[n:].view(m, new, q_heads, d).transpose(1, 2)
                out = self._causal(query, k, v)
                parts.append(out.transpose(1, 2).reshape(m * new, q_heads * d))
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        def body(copy: int) -> None:
            with torch.no_grad():
                x, residual = hidden, torch.zeros_like(hidden)
                for layer, weights in enumerate(self.weights):
                    x, residual = self.norm(x, residual, weights["norm"])
                    qkv = self._linear(x, weights["qkv"]).view(batch.tokens, q_heads + 2 * kv_heads, d)
                    turned = self.rotary(qkv[:, : q_heads + kv_heads], cosine, sine)
                    q, k_new = turned.split([q_heads, kv_heads], dim=1)
                    out = attend(layer, copy, q.contiguous(), k_new, qkv[:, q_heads + kv_heads :])
                    x, residual = self.norm(self._linear(out, weights["out"]), residual, weights["norm"])
                    x = self._linear(self.gated(self._linear(x, weights["up"])), weights["down"])

        def head(_: int) -> None:
            with torch.no_grad():
                (hidden[:kept] @ self.head.t()).argmax(-1)

        return body, head, copies


def _between(
    torch: Any, device: _Device, hidden: int, head: int, inner: int
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any], bool]:
    """RMSNorm with residual, rotary positions and gated SiLU; and whether each is one kernel.

    Compiled on a GPU where torch can (Triton is there); as torch has them otherwise.
    """

    def norm(x: Any, residual: Any, weight: Any) -> Any:
        total = x + residual
        wide = total.float()
        return (wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()).to(x.dtype) * weight, total

    def rotary(x: Any, cosine: Any, sine: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)

    def gated(x: Any) -> Any:
        gate, value = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * value

    plain: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]] = (norm, rotary, gated)
    if not device.cuda:
        return *plain, False
    try:
        compiled: list[Callable[..., Any]] = [torch.compile(f, dynamic=True) for f in plain]
        make = {"device": "cuda", "dtype": device.dtype}
        for rows in (16, 48):
            x = torch.randn(rows, hidden, **make)
            heads, turn = torch.randn(rows, 4, head, **make), torch.randn(rows, 1, head // 2, **make)
            up = torch.randn(rows, 2 * inner, **make)
            weight = torch.ones(hidden, **make)
            for fast, slow, given in zip(compiled, plain, ((x, x, weight), (heads, turn, turn), (up,)), strict=True):
                got, wanted = fast(*given), slow(*given)
                pairs = zip(got, wanted, strict=True) if isinstance(got, tuple) else ((got, wanted),)
                if not all(torch.allclose(a.float(), b.float(), atol=3e-2, rtol=3e-2) for a, b in pairs):
                    return *plain, False
    except Exception:  # whatever a compiler that does not work here raises: the plain ones do
        return *plain, False
    return compiled[0], compiled[1], compiled[2], True


def _allreduce(
    torch: Any, device: _Device, gpu: GpuSpec, model: ModelSpec, tp: int
) -> tuple[Callable[[int], float], str]:
    """Time of one iteration's all-reduces by tokens [s], measured where the GPUs are there, else estimated."""
    if tp == 1:
        return (lambda tokens: 0.0), ""
    calls = 2 * model.layers
    if device.cuda and torch.cuda.device_count() >= tp:
        try:
            sizes = (1, 16, 128, 1024, 8192)
            times = []
            for tokens in sizes:
                parts = [
                    torch.zeros(tokens, model.hidden_size, device=f"cuda:{i}", dtype=device.dtype) for i in range(tp)
                ]
                for _ in range(3):
                    torch.cuda.nccl.all_reduce(parts)
                for i in range(tp):
                    torch.cuda.synchronize(i)
                begin = time.perf_counter()
                for _ in range(20):
                    torch.cuda.nccl.all_reduce(parts)
                for i in range(tp):
                    torch.cuda.synchronize(i)
                times.append((time.perf_counter() - begin) / 20)
            log_sizes, log_times = np.log(sizes), np.log(times)
            return (
                lambda tokens: calls * math.exp(float(np.interp(math.log(max(1, tokens)), log_sizes, log_times))),
                f"all-reduce measured over {tp} GPUs with NCCL",
            )
        except (RuntimeError, AttributeError):
            pass
    link = gpu.link_bytes_per_s or PCIE_BYTES_PER_S
    per_token = shard_shape(model, tp).allreduce_bytes_per_token / link
    latency = calls * ALLREDUCE_LATENCY_S[(gpu.link_bytes_per_s or 0.0) > 1e11]
    return (
        lambda tokens: latency + per_token * tokens,
        f"one GPU stands for a group of {tp}: all-reduce estimated from latency and link bandwidth, not measured",
    )


def measure(
    gpu: GpuSpec,
    model: ModelSpec,
    prior: IterationModel,
    *,
    tp: int = 1,
    device: str = "cuda",
    points: int = 24,
    sentinels: int = 4,
    max_seconds: float = 60.0,
    max_tokens: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Measured:
    """Measure the designed batches on this machine.

    Parameters
    ----------
    gpu
        What the machine is said to be; its link bandwidth stands in where all-reduce cannot be measured.
    model
        The model whose layers are built.
    prior
        Roofline estimate, to skip batches that would take the whole time.
    tp
        GPUs of the group; on fewer, one GPU measures its share of the model [GPUs].
    device
        ``cuda`` or ``cpu``.
    points
        Different batches [1].
    sentinels
        Repeats of the sentinel batch [1].
    max_seconds
        Stop measuring after this time [s].
    max_tokens
        Most tokens of an iteration; 8192, or 1024 on a CPU, when ``None`` [tokens].
    seed
        Of weights and order.
    progress
        Called before each point.

    Returns
    -------
    Measured

    Raises
    ------
    CalibrationError
        Without torch, GPU or enough memory, or for a model without kernels here.
    """
    if device not in ("cuda", "cpu"):
        raise InputError(f"device {device!r} is neither cuda nor cpu")
    _unsupported(model)
    torch = load_torch()
    machine = _Device(torch, device)
    try:
        shard = _Shard(machine, model, tp, seed)
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        raise CalibrationError(f"{LAYERS_BUILT} layers of {model.name} do not fit on {machine.name}: {error}") from None
    limit = max_tokens or (8192 if machine.cuda else CPU_TOKENS)
    per_token_layer = 2 * shard.kv_heads * model.head_dim * shard.head.element_size()
    room = int(0.5 * machine.free_bytes() / (per_token_layer * shard.layers))
    room = min(room, 2_000_000 if machine.cuda else CPU_ROOM)
    shape = shard_shape(model, tp)
    batches = designed_batches(
        model,
        tp=tp,
        kv_bytes=room * shape.kv_bytes_per_token,
        points=points,
        max_context=None if machine.cuda else CPU_CONTEXT,
        max_tokens=limit,
    )
    plan = measuring_order(batches, sentinels=sentinels, seed=seed)
    shard.reserve(
        max(2 * max(b.decodes * b.context + b.prefills * (b.past_tokens + b.new_tokens) for b in batches), 4096)
    )
    reduce_time, reduce_note = _allreduce(torch, machine, gpu, model, tp)
    budget = min(POINT_SECONDS, 0.6 * max_seconds / len(plan))
    # clocks rise and caches fill before anything counts
    warm_body, warm_head, _ = shard.prepare(plan[0].batch)
    for _ in range(3):
        machine.seconds(warm_body, 1, 0.1 if machine.cuda else 0.01)
        machine.seconds(warm_head, 1, 0.01)
    begun = time.monotonic()
    measured: list[Batch] = []
    times: list[float] = []
    skipped = too_large = 0
    for number, run in enumerate(plan):
        if progress is not None:
            progress(number, len(plan), str(run.batch))
        left = max_seconds - (time.monotonic() - begun)
        if left < expected_duration(prior, [run.batch], 3) or left <= 0.0:
            skipped += 1
            continue
        try:
            body, head, copies = shard.prepare(run.batch)
            layers_s = machine.seconds(body, copies, budget)
            head_s = machine.seconds(head, 1, 0.2 * budget)
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            too_large += 1
            torch.cuda.empty_cache()
            continue
        total = layers_s * model.layers / shard.layers + head_s + reduce_time(run.batch.tokens)
        measured.append(run.batch)
        times.append(total)
    if progress is not None:
        progress(len(plan), len(plan), "done")
    seconds = time.monotonic() - begun
    notes = [f"{shard.layers} of {model.layers} layers were built and extrapolated, head and argmax added"]
    notes += [reduce_note] if reduce_note else []
    notes += [f"{skipped} points were not measured: time was up"] if skipped else []
    notes += [f"{too_large} points did not fit in memory"] if too_large else []
    notes.append("the engine's host time is not in it; measure a running server to see it")
    if machine.cuda:
        notes.append("attention: " + ("torch varlen_attn" if shard.varlen else "scaled_dot_product_attention"))
        notes.append(
            "norms, positions and activations: " + ("a kernel each" if shard.fused else "torch's, not fused: too slow")
        )
        if machine.launched:
            notes.append(f"{machine.launched} timings could not be captured as CUDA graphs: launches are in them")
    cuda = f", CUDA {torch.version.cuda}" if machine.cuda else ""
    del shard
    if machine.cuda:
        torch.cuda.empty_cache()
    return Measured(
        points=Points(tuple(measured), np.array(times), np.arange(len(times), dtype=float), f"{machine.name}"),
        device=machine.name,
        versions=f"torch {torch.__version__}{cuda}",
        seconds=seconds,
        notes=tuple(notes),
    )
