"""What speculative decoding costs a replica: passes of the proposer, verification, memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from planner.catalog.kv import kv_bytes_per_token, weight_bytes
from planner.machine.hardware import DTYPE_BYTES, GpuSpec, ModelSpec, Parallelism, shard
from planner.machine.iteration import IterationModel
from planner.machine.roofline import CONSTANTS, matmul_rate, roofline, shard_shape
from planner.machine.speculation import Speculation

PASS_S = 0.55e-3
"""Host time of one pass of a proposer [s]: with EAGLE-3 and four drafts a step of one vLLM server took 3.6 ms longer on text where
nothing is accepted (kubernetes-sigs/inference-perf, kubecon-na-2025, one H100), of which the roofline explains 1.4."""

EAGLE_VOCABULARY = 32_000
"""Tokens an EAGLE-3 head may propose: those trained heads have."""

TOUCHED = 1.0 - math.exp(-1.0)
"""Share of a proposer's experts a batch of some tens of tokens touches; the model's own are counted by the batch."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What proposing costs beside the model itself.

    Parameters
    ----------
    iteration
        Iteration-time model of one pass over the proposer [s].
    weight_bytes
        Its weights on each GPU [bytes].
    kv_share
        Its KV cache over the model's, per token [1].
    """

    iteration: IterationModel
    weight_bytes: float
    kv_share: float


def draft_of(
    speculation: Speculation, gpu: GpuSpec, model: ModelSpec, parallel: Parallelism, small: ModelSpec | None = None
) -> Draft:
    """The proposer as the roofline sees it.

    ``mtp`` is one more layer of the model with the model's head and a projection of 2 hidden to hidden; ``eagle`` and
    ``eagle3`` one dense layer of the model's widths in 16 bits, a projection of 2 or 3 hidden to hidden, and for EAGLE-3 a
    head of 32,000 tokens; ``draft`` a whole small model on the model's tensor-parallel group; ``ngram`` nothing.

    Parameters
    ----------
    speculation, gpu, model, parallel
        What runs on what.
    small
        The small model; method ``draft`` only.
    """
    method = speculation.method
    if method == "ngram":
        return Draft(IterationModel(t0=0.0), 0.0, 0.0)
    if method == "draft":
        assert small is not None
        tp = parallel.tp if small.q_heads % parallel.tp == 0 else 1
        share = kv_bytes_per_token(small, tp) / kv_bytes_per_token(model, parallel)
        return Draft(roofline(gpu, small, tp), weight_bytes(small, tp), share)
    layer = replace(
        model,
        layers=1,
        dense_layers=0,
        full_attention_layers=1 if model.sliding_window else 0,
        attention_free_layers=0,
        mlp_free_layers=0,
        state_layers=0,
        index_layers=min(model.index_layers, 1),
    )
    inputs = 3 if method == "eagle3" else 2
    if method != "mtp":
        vocabulary = min(EAGLE_VOCABULARY, model.vocab_size) if method == "eagle3" else model.vocab_size
        wide = model.intermediate_size or model.moe_intermediate_size * max(model.experts_per_token, 1)
        layer = replace(
            layer,
            experts=0, experts_per_token=0, shared_experts=0, shared_intermediate_size=0, intermediate_size=wide,
            weight_dtype="bf16", dense_dtype="", vocab_size=vocabulary,
        )  # fmt: skip
    times = roofline(gpu, layer, parallel)
    part = shard(layer, parallel.tp, parallel.stage_gpus)
    projection = inputs * model.hidden_size**2 / parallel.tp
    element = DTYPE_BYTES[layer.weight_dtype]
    weights = (part.mixer_parameters + part.mlp_parameters) * DTYPE_BYTES[layer.dense_weight_dtype]
    weights += part.expert_parameters * element + 2.0 * projection
    # the model's own head serves an MTP layer and EAGLE; EAGLE-3 brings a small one
    weights += 2.0 * part.vocabulary_parameters if method == "eagle3" else 0.0
    per_parameter = times.w / max(shard_shape(layer, parallel.tp, parallel.stage_gpus).dense_parameters, 1.0)
    times = replace(times, w=times.w + projection * per_parameter * 2.0 / DTYPE_BYTES[layer.dense_weight_dtype])
    cached = shard(model, parallel.tp)
    share = part.full_bytes_per_token / max(cached.full_bytes_per_token + cached.window_bytes_per_token, 1e-300)
    return Draft(times, weights, share)


def speculating(
    iteration: IterationModel, speculation: Speculation, draft: Draft, model: ModelSpec, gpu: GpuSpec
) -> IterationModel:
    r"""The iteration of a server that speculates: k passes of the proposer, then 1 + k tokens of every decode verified at once.

    .. math::

        t_0 + k(t_0^d + w^d + host),\quad b + b^d,\ c + c^d,\quad h + k h^d + (k-1)(b^d + c^d),\quad
        \max(g, (1+k) g_{compute}) + k g^d

    A prompt passes the proposer once. Verifying reads the cache once for all of a sequence's tokens; only where attention
    computes on a compressed cache may the tokens cost more than the reading.

    Parameters
    ----------
    iteration
        Of the server without speculation, in tokens.
    speculation, draft, model, gpu
        How it speculates, what proposing costs, what runs on what.
    """
    k, d = speculation.draft_tokens, draft.iteration
    g = iteration.g
    if model.kv_lora_rank:
        shape = shard_shape(model)
        flops = shape.decode_kv_flops / (CONSTANTS["attention"] * matmul_rate(gpu, "bf16")[0])
        read = shape.kv_bytes_per_token / (CONSTANTS["kv"] * gpu.bandwidth_bytes_per_s)
        g *= max(1.0, (1.0 + k) * flops / max(read, flops))
    return replace(
        iteration,
        t0=iteration.t0 + (k * (PASS_S + d.t0 + d.w + TOUCHED * d.w_experts) if d.t0 else 0.0),
        b=iteration.b + d.b,
        c=iteration.c + d.c,
        h=iteration.h + k * d.h + (k - 1.0) * (d.b + d.c),
        g=g + k * d.g,
        e=iteration.e + (g + k * d.g - iteration.g if iteration.e else 0.0),
        a=iteration.a + d.a,
        h_m=iteration.h_m + (k * d.h + (k - 1.0) * (d.b + d.c) if iteration.m else 0.0),
        rows=(1.0 + k) * iteration.rows,
    )
