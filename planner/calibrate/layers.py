"""A few layers of one GPU's share of a model, with random weights: what a batch asks of them, as functions to be timed.

Dense layers and layers with a mixture of experts, ordinary and latent attention; every matrix has the shape the model's has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from planner.calibrate import kernels
from planner.calibrate.device import NOT_THERE, Device, DeviceFull, refuse_full, why_not
from planner.calibrate.points import Batch
from planner.errors import CalibrationError, InputError
from planner.machine.hardware import DTYPE_BYTES, ModelSpec, Parallelism, shard

LAYERS_BUILT = 3
"""So many stand for all of a kind, fewer where they do not fit."""

CHECKED_ENDS = (16, 16, 48)
"""Where the tokens of each expert end in the check of their product; the second gets none."""

WINDOW = ", window"
"""Ends the name of a kind of layers that attend to a sliding window."""


def refuse_unsupported(model: ModelSpec) -> None:
    """Raise for what has no kernels here.

    Raises
    ------
    CalibrationError
        Naming what.
    """
    wide, kv_wide = ("bf16", "fp16"), model.kv_dtype in ("bf16", "fp16")
    own_heads = model.sliding_kv_heads or model.sliding_head_dim or model.kv_lora_rank
    other = model.attention_gate or model.tied_values or model.expert_hidden_size or model.mlp_matrices != 3
    free = model.attention_free_layers or model.mlp_free_layers or model.state_layers
    known = model.weight_dtype in (*wide, "fp8", "fp4", "int4")
    problems = {
        "sliding-window layers with heads of their own": model.sliding_layers and own_heads,
        "layers without attention or MLP, or with a recurrent state": free,
        "sparse attention": model.index_layers,
        "this layer's projections": other,
        "values of another size than keys": not model.kv_lora_rank and model.value_dim != model.head_dim,
        f"{model.weight_dtype} weights": not known,
        f"experts in {model.weight_dtype}": model.experts and model.weight_dtype in ("int4", "fp4"),
        f"a {model.kv_dtype} KV cache": not kv_wide,
    }
    problem = next((what for what, holds in problems.items() if holds), None)
    if problem:
        raise CalibrationError(
            f"the microbenchmark has no kernels for {problem} ({model.name})",
            "Measure a running server instead: fleetopt calibrate --server URL --model NAME.",
        )


Work = tuple[Callable[[int], None], int, int]
"""What a batch asks of the layers of one kind: what runs those built, on one of the copies of the KV cache; how many run, and how
many of the model's they stand for."""


class Layers:
    """A few layers of each kind and the head of one GPU's share of a model.

    Parameters
    ----------
    machine
        What they run on.
    model, tp
        The model, and the size of the group one GPU stands for, or how a replica spreads the model [GPUs]: whole experts see the
        tokens of all copies of the attention, and the GPU is the one that most go to. fp8 weights have a scale a block where the
        model's family ships it and torch has the kernel.

    Raises
    ------
    CalibrationError
        For kernels that torch does not have on this device, or when one layer does not fit.
    InputError
        When the heads cannot be divided.
    """

    def __init__(self, machine: Device, model: ModelSpec, tp: int | Parallelism) -> None:
        torch, self.machine, self.model = machine.torch, machine, model
        self.spread = Parallelism.of(tp)
        tp, expert_gpus = self.spread.tp, self.spread.ep
        if expert_gpus > 1 and (not model.experts or model.experts % expert_gpus):
            raise InputError(f"{model.name}: {model.experts or 'no'} experts cannot be spread over {expert_gpus} GPUs")
        self.torch, self.device, self.dtype = torch, machine.kind, machine.dtype
        if model.q_heads % tp:
            raise InputError(f"{model.name}: {model.q_heads} attention heads cannot be divided over tp={tp}")
        self.q_heads = model.q_heads // tp
        self.latent = model.kv_lora_rank > 0
        self.kv_heads = 1 if self.latent else max(1, math.ceil(model.kv_heads / tp))
        if self.q_heads % self.kv_heads:
            raise InputError(f"{model.name}: tp={tp} leaves {self.q_heads} query and {self.kv_heads} KV heads")
        self.notes: list[str] = []
        self.generator = torch.Generator(device=self.device).manual_seed(0)
        self.grouped = _Grouped(machine, model) if model.experts else None
        size = model.qk_rope_head_dim if self.latent else model.head_dim
        self.inner = -(-model.intermediate_size // tp)
        self.experts = model.experts // expert_gpus
        self.expert_inner = -(-model.moe_intermediate_size // (tp if expert_gpus == 1 else 1))
        self.shared_inner = -(-model.shared_width // tp)
        self.between = kernels.Between(machine, model.hidden_size, size, max(16, self.inner or self.expert_inner))
        self.turns = kernels.rotations(machine, model.max_context, size)
        heads = (self.q_heads, self.kv_heads, model.head_dim)
        self.joined: kernels.Joined | None = None
        self.decode: Any = None
        attention = "two batched products with the compressed cache, which is read twice; engines' kernels read it once"
        if not self.latent:
            self.joined, self.decode, attention = kernels.joined_attention(machine, heads)
        self.attention_note = f"attention: {attention}"
        if machine.cuda and not self.latent:
            self.attention_note += kernels.other_attention(torch.cuda.get_device_capability(0)[0], attention)
        if self.joined is None and not self.latent:
            self.attention_note += "; decodes and prompts of a mixed batch as two kernels"
        self.counts = _kinds(model)
        part = shard(model, tp, expert_gpus if expert_gpus > 1 else None)
        element = DTYPE_BYTES[model.weight_dtype]
        mixer, rest = part.mixer_parameters / model.layers, part.expert_parameters + part.mlp_parameters
        free_bytes = machine.free_bytes()
        # half of the free memory is for the weights that are built
        fits = max(0, int(0.5 * free_bytes / (element * (mixer + rest / max(1, *self.counts.values())))))
        if fits < 1:
            raise CalibrationError(
                f"one layer of {model.name} does not fit into {free_bytes / 1e9:.0f} GB", "Give a larger --tp."
            )
        self.weights = self._weights(min(LAYERS_BUILT, fits))
        # the head stays wide, as engines keep it
        self.head = self._random(-(-model.vocab_size // tp), model.hidden_size).to(self.dtype)
        self.pools: dict[str, list[Any]] = {}
        self.room = 0

    def _weights(self, most: int) -> dict[str, list[dict[str, Any]]]:
        """Layers of each kind, so many at most, with the kernels that the model's weights want."""
        kinds = [self.model.weight_dtype]
        if kinds == ["fp8"] and (self.model.kv_lora_rank or "qwen3" in self.model.name.lower()):
            kinds = ["fp8 blocks", "fp8"]
        for kind in kinds:
            try:
                self.make_product, called = kernels.matrix_kernel(self.machine, kind)
                made = {
                    name: [self._layer(name) for _ in range(min(count, most))] for name, count in self.counts.items()
                }
                self.notes += [f"matrix products: {called}"] if called != "bf16" else []
                return made
            except CalibrationError as error:
                if isinstance(error, DeviceFull) or kind == kinds[-1]:
                    raise
                self.notes.append(
                    f"{error.message}: what was timed has one scale a matrix where the model has one a block"
                )
        raise AssertionError

    @property
    def built(self) -> str:
        """How many layers stand for how many, in words."""
        parts = [
            f"{len(self.weights[k])} of {n}" + (f" {k}" if len(self.counts) > 1 else "") for k, n in self.counts.items()
        ]
        return " and ".join(parts) + " layers"

    @property
    def kv_values(self) -> int:
        """Values a layer caches of a token."""
        m = self.model
        return m.kv_lora_rank + m.qk_rope_head_dim if self.latent else 2 * self.kv_heads * m.head_dim

    def _random(self, rows: int, columns: int) -> Any:
        made = self.torch.randn(rows, columns, generator=self.generator, device=self.device, dtype=self.torch.float32)
        return made / math.sqrt(columns)

    def _whole(self, values: Any, dtype: Any = None) -> Any:
        """Whole numbers on the device, of 64 bits where nothing is said."""
        return self.torch.tensor(values, device=self.device, dtype=dtype or self.torch.int64)

    def _product(self, rows: int, columns: int) -> Callable[[Any], Any]:
        return self.make_product(self._random(rows, columns))

    def _layer(self, kind: str) -> dict[str, Any]:
        """Products and weights of one layer."""
        m, h, heads = self.model, self.model.hidden_size, self.q_heads
        made: dict[str, Any] = {"norm": self.torch.ones(h, device=self.device, dtype=self.dtype)}
        if self.latent:
            query = heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)
            made["down"] = self._product((m.q_lora_rank or query) + m.kv_lora_rank + m.qk_rope_head_dim, h)
            if m.q_lora_rank:
                made["query"] = self._product(query, m.q_lora_rank)
                made["norm_q"] = self.torch.ones(m.q_lora_rank, device=self.device, dtype=self.dtype)
            made["norm_kv"] = self.torch.ones(m.kv_lora_rank, device=self.device, dtype=self.dtype)
            up = self._random(heads * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank).to(self.dtype)
            made["up"] = up.view(heads, -1, m.kv_lora_rank)
            made["out"] = self._product(h, heads * m.v_head_dim)
        else:
            made["qkv"] = self._product((heads + 2 * self.kv_heads) * m.head_dim, h)
            made["out"] = self._product(h, heads * m.head_dim)
        if kind.startswith("dense"):
            made["mlp"] = (self._product(2 * self.inner, h), self._product(h, self.inner))
            return made
        if self.shared_inner:
            made["mlp"] = (self._product(2 * self.shared_inner, h), self._product(h, self.shared_inner))
        made["router"] = self._random(m.experts, h).to(self.dtype)
        assert self.grouped is not None
        made["experts"] = tuple(
            self.grouped.weights(partial(self._random, rows, columns), self.experts)
            for rows, columns in ((2 * self.expert_inner, h), (h, self.expert_inner))
        )
        return made

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` of KV cache in every layer built."""
        empty = partial(self.torch.empty, tokens * self.kv_values, device=self.device, dtype=self.dtype)
        self.pools = {kind: [empty().normal_(std=0.5) for _ in layers] for kind, layers in self.weights.items()}
        self.room = tokens

    def prepare(self, batch: Batch) -> tuple[list[Work], Callable[[int], None], int]:
        """Layers and head of a batch as functions of the copy of the KV cache, and how many copies there are."""
        torch, model = self.torch, self.model
        n, m, new = batch.decodes, batch.prefills, batch.new_tokens
        total = batch.past_tokens + new
        tokens_kv = n * batch.context + m * total
        # what the layers of each kind see, and how much of the cache that is
        seen = {kind: self._seen(batch, kind) for kind in self.weights}
        sizes = {kind: (n * b.context + m * (b.past_tokens + new)) * self.kv_values for kind, b in seen.items()}
        layers = max(len(kept) for kept in self.weights.values())
        cached = min(sizes.values()) * self.dtype.itemsize * layers
        l2_bytes = self.machine.l2_bytes
        wanted = 1 if not l2_bytes else min(8, math.ceil(3 * l2_bytes / max(cached, 1)))
        copies = max(1, min(wanted, self.room // max(tokens_kv, 1)))
        hidden = torch.randn(batch.tokens, model.hidden_size, device=self.device).to(self.dtype)
        places = np.concatenate([np.full(n, batch.context - 1), np.tile(np.arange(batch.past_tokens, total), m)])
        rows = self._whole(places % model.max_context)
        turns = tuple(turn[rows][:, None, :] for turn in self.turns)
        route = self._route(batch.tokens) if model.experts else None

        def cache(kind: str, layer: int, copy: int) -> Any:
            begin = copy * tokens_kv * self.kv_values
            return self.pools[kind][layer][begin : begin + sizes[kind]]

        def body_of(kind: str) -> Callable[[int], None]:
            """All layers of one kind as one piece of work on one copy of their cache."""
            window = model.sliding_window if kind.endswith(WINDOW) else 0
            attend = self._latent_attention(batch) if self.latent else self._attention(seen[kind], window)

            def body(copy: int) -> None:
                with torch.no_grad():
                    x, residual = hidden, torch.zeros_like(hidden)
                    for layer, weights in enumerate(self.weights[kind]):
                        x, residual = self.between.norm(x, residual, weights["norm"])
                        x = weights["out"](attend(weights, x, turns, cache(kind, layer, copy)))
                        x, residual = self.between.norm(x, residual, weights["norm"])
                        x = self._feed_forward(weights, x, route)

            return body

        def head(_: int) -> None:
            with torch.no_grad():
                (hidden[: n + m] @ self.head.t()).argmax(-1)

        works = [(body_of(kind), len(self.weights[kind]), count) for kind, count in self.counts.items()]
        return works, head, copies

    def _seen(self, batch: Batch, kind: str) -> Batch:
        """The batch as layers of a kind see it: a window hides what lies before it."""
        if not kind.endswith(WINDOW):
            return batch
        most = self.model.sliding_window
        return replace(batch, context=min(batch.context, most), past_tokens=min(batch.past_tokens, most - 1))

    def _feed_forward(self, weights: Mapping[str, Any], x: Any, route: _Route | None) -> Any:
        """The MLP, or the experts with what all tokens pass beside them."""
        own = None
        if "mlp" in weights:
            up, down = weights["mlp"]
            own = down(self.between.gated(up(x)))
        if "experts" not in weights:
            return own
        assert route is not None and self.grouped is not None
        # the router's product and choice are made; where tokens go was drawn before, so that a graph can be captured
        (x @ weights["router"].t()).softmax(-1).topk(self.model.experts_per_token)
        up, down = weights["experts"]
        token_of, back, ends = route
        # tokens of other copies come as they would from them
        seen = x if self.spread.dp == 1 else x.repeat(self.spread.dp, 1)
        done = self.grouped(self.between.gated(self.grouped(seen.index_select(0, token_of), up, ends)), down, ends)
        # with random weights the mean of their answers stands for the router's
        if self.spread.ep == 1:
            found = done.index_select(0, back).view(x.shape[0], -1, x.shape[1]).mean(1)
        else:
            # what other GPUs add comes with the sums over the group
            every = self.torch.zeros_like(seen).index_add_(0, token_of, done)
            found = every[: x.shape[0]] / self.model.experts_per_token
        return found if own is None else found + own

    def _route(self, tokens: int) -> _Route:
        """Which experts the tokens of a batch go to: drawn evenly, without one twice for a token; of several GPUs' those of the
        GPU that most go to."""
        torch, k, own = self.torch, self.model.experts_per_token, self.experts
        rng = np.random.default_rng(0)
        every = tokens * self.spread.dp
        drawn = np.argpartition(rng.random((every, self.model.experts)), k - 1, axis=1)[:, :k].ravel()
        busiest = int(np.bincount(drawn // own).argmax())
        here = np.flatnonzero(drawn // own == busiest)
        order = here[np.argsort(drawn[here], kind="stable")]
        ends = np.cumsum(np.bincount(drawn[here] - busiest * own, minlength=own))
        return self._whole(order // k), self._whole(np.argsort(order)), self._whole(ends, torch.int32)

    def _attention(self, batch: Batch, window: int = 0) -> Callable[..., Any]:
        """Projection of queries, keys and values, positions, and attention with a cache of keys and values, or a window of it."""
        torch, d, kv_heads, q_heads = self.torch, self.model.head_dim, self.kv_heads, self.q_heads
        n, m, new, context = batch.decodes, batch.prefills, batch.new_tokens, batch.context
        total = batch.past_tokens + new
        tokens_kv = n * context + m * total
        joined = self.joined if m else None
        decode = self.decode if not m else None
        added, held_by = np.repeat((1, new), (n, m)), np.repeat((context, total), (n, m))
        ends = np.cumsum(held_by)
        ends_q, ends_k = (self._whole(np.cumsum([0, *each]), torch.int32) for each in (added, held_by))
        lengths = self._whole(held_by[:n], torch.int32)
        # where the new tokens' keys and values are written: the last places of every sequence
        written = self._whole(np.concatenate([np.arange(end - k, end) for end, k in zip(ends, added, strict=True)]))

        def attend(weights: Mapping[str, Any], x: Any, turns: Any, cache: Any) -> Any:
            """Write the new keys and values, then attend by one kernel or by one per kind of request."""
            qkv = weights["qkv"](x).view(batch.tokens, q_heads + 2 * kv_heads, d)
            turned = self.between.rotary(qkv[:, : q_heads + kv_heads], *turns)
            q, k_new = turned.split([q_heads, kv_heads], dim=1)
            v_new = qkv[:, q_heads + kv_heads :]
            k, v = cache.view(2, tokens_kv, kv_heads, d)
            k.index_copy_(0, written, k_new)
            v.index_copy_(0, written, v_new)
            if joined is not None:
                longest = max(context if n else 0, total)
                return joined(q.contiguous(), k, v, ends_q, ends_k, new, longest, window).reshape(batch.tokens, -1)
            parts = []
            if n:
                held = [t[: n * context].view(n, context, kv_heads, d) for t in (k, v)]
                if decode is not None:
                    out = decode(q[:n, None], *held, lengths)
                else:
                    # the query heads of a group share their KV head: they are rows of one small matrix
                    grouped = q[:n].view(n, kv_heads, q_heads // kv_heads, d)
                    out = torch.nn.functional.scaled_dot_product_attention(grouped, *(t.transpose(1, 2) for t in held))
                parts.append(out.reshape(n, q_heads * d))
            if m:
                keys, values = (t[n * context :].view(m, total, kv_heads, d).transpose(1, 2) for t in (k, v))
                out = kernels.plain_attention(
                    torch, q[n:].view(m, new, q_heads, d).transpose(1, 2), keys, values, window
                )
                parts.append(out.transpose(1, 2).reshape(m * new, q_heads * d))
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        return attend

    def _latent_attention(self, batch: Batch) -> Callable[..., Any]:
        """Latent attention: decodes in the compressed space (weights absorbed), prompts with keys and values made anew."""
        torch, spec, heads = self.torch, self.model, self.q_heads
        n, m, new, context = batch.decodes, batch.prefills, batch.new_tokens, batch.context
        total = batch.past_tokens + new
        rank, rope, nope, width = spec.kv_lora_rank, spec.qk_rope_head_dim, spec.qk_nope_head_dim, spec.v_head_dim
        scale = 1.0 / math.sqrt(nope + rope)
        no_residual: dict[str, Any] = {}

        def normed(x: Any, weight: Any) -> Any:
            key = str(tuple(x.shape))
            if key not in no_residual:
                no_residual[key] = torch.zeros(x.shape, device=x.device, dtype=x.dtype)
            return self.between.norm(x, no_residual[key], weight)[0]

        def attend(weights: Mapping[str, Any], x: Any, turns: Any, cache: Any) -> Any:
            """The same on a compressed cache, which decodes read as it is and prompts expand."""
            down = weights["down"](x)
            first, latent, k_rope = down.split([down.shape[1] - rank - rope, rank, rope], dim=1)
            q = weights["query"](normed(first, weights["norm_q"])) if "query" in weights else first
            q = q.view(batch.tokens, heads, nope + rope)
            q_nope, q_rope = q[..., :nope], self.between.rotary(q[..., nope:], *turns)
            kept = torch.cat(
                (normed(latent, weights["norm_kv"]), self.between.rotary(k_rope[:, None], *turns)[:, 0]), dim=1
            )
            up_key, up_value = weights["up"].split([nope, width], dim=1)
            parts = []
            if n:
                held = cache[: n * context * (rank + rope)].view(n, context, rank + rope)
                held[:, -1].copy_(kept[:n])
                inside = torch.bmm(q_nope[:n].transpose(0, 1), up_key).transpose(0, 1)
                scores = torch.bmm(torch.cat((inside, q_rope[:n]), dim=-1), held.transpose(1, 2))
                mixed = torch.bmm((scores * scale).softmax(-1), held[..., :rank])
                out = torch.bmm(mixed.transpose(0, 1), up_value.transpose(1, 2))
                parts.append(out.transpose(0, 1).reshape(n, heads * width))
            if m:
                held = cache[n * context * (rank + rope) :].view(m, total, rank + rope)
                held[:, batch.past_tokens :].copy_(kept[n:].view(m, new, rank + rope))
                made = (held[..., :rank] @ weights["up"].reshape(-1, rank).t()).view(m, total, heads, nope + width)
                key = torch.cat((made[..., :nope], held[:, :, None, rank:].expand(-1, -1, heads, -1)), dim=-1)
                # engines widen the values to the keys' size where their kernel wants one size
                value = torch.nn.functional.pad(made[..., nope:], (0, nope + rope - width))
                query = torch.cat((q_nope[n:], q_rope[n:]), dim=-1).view(m, new, heads, nope + rope)
                out = kernels.plain_attention(torch, *(t.transpose(1, 2) for t in (query, key, value)))[..., :width]
                parts.append(out.transpose(1, 2).reshape(m * new, heads * width))
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        return attend


def _kinds(model: ModelSpec) -> dict[str, int]:
    """Layers of each kind: with experts and dense ones, and of both those that attend to a window."""
    found: dict[str, int] = {}
    windowed = model.sliding_layers
    for name, count in (("experts", model.expert_layers), ("dense", model.layers - model.expert_layers)):
        # where a model has both, its few dense layers are taken to come last
        within = min(windowed, count)
        windowed -= within
        found |= {name: count - within, name + WINDOW: within}
    return {name: count for name, count in found.items() if count}


_Route = tuple[Any, Any, Any]
"""Token of every row sent to an expert, row of every token's experts, and where each expert's rows end."""


class _Grouped:
    """One product for all experts, checked against one by one: bf16, or fp8 with a scale a row where the weights are fp8.

    Raises
    ------
    CalibrationError
        When torch has none here, or no memory to try it.
    """

    def __init__(self, machine: Device, model: ModelSpec) -> None:
        self.torch = torch = machine.torch
        self.fp8, self.dtype = model.weight_dtype == "fp8", machine.dtype
        told = " (it does not compute the product)"
        _, rows, columns = kernels.CHECKED_PRODUCT
        try:
            self.function = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
            weights = self.weights(
                lambda: torch.randn(rows, columns, device=machine.kind) / math.sqrt(columns),
                len(CHECKED_ENDS),
            )
            x = torch.randn(CHECKED_ENDS[-1], columns, device=machine.kind).to(self.dtype)
            got = self(x, weights, torch.tensor(CHECKED_ENDS, device=machine.kind, dtype=torch.int32))
            begins = (0, *CHECKED_ENDS[:-1])
            parts = zip(begins, CHECKED_ENDS, weights[0].float(), strict=True)
            wanted = torch.cat([x[begin:end].float() @ wide.t() for begin, end, wide in parts])
            if kernels.moved(got, wanted) < kernels.ROUNDING["fp8"]:
                return
        except NOT_THERE as error:
            refuse_full(torch, error, f"a grouped product of {model.weight_dtype} experts")
            told = why_not(error)
        raise CalibrationError(
            f"torch {torch.__version__} has no grouped product of {model.weight_dtype} experts on this device{told}",
            "Measure a running server instead: fleetopt calibrate --server URL --model NAME.",
        )

    def weights(self, make: Callable[[], Any], experts: int) -> tuple[Any, Any]:
        """Matrices of all experts, shape (experts, rows, columns), and their scales."""
        first = make()
        kind = self.torch.float8_e4m3fn if self.fp8 else self.dtype
        kept = self.torch.empty((experts, *first.shape), device=first.device, dtype=kind)
        for number in range(experts):
            kept[number].copy_(make() if number else first)
        return kept, self.torch.ones(experts, first.shape[0], device=first.device, dtype=self.torch.float32)

    def __call__(self, x: Any, weights: tuple[Any, Any], ends: Any) -> Any:
        kept, scales = weights
        if not self.fp8:
            return self.function(x, kept.transpose(1, 2), offs=ends)
        narrow = x.to(self.torch.float8_e4m3fn)
        ones = self.torch.ones(x.shape[0], device=x.device, dtype=self.torch.float32)
        return self.torch._scaled_grouped_mm(
            narrow, kept.transpose(1, 2), ones, scales, offs=ends, out_dtype=self.dtype, use_fast_accum=True
        )  # fmt: skip
