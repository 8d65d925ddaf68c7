"""What adapters (LoRA) cost a replica that keeps them all: memory by their rank, and time of every iteration."""

from __future__ import annotations

import math

from planner.errors import InputError
from planner.machine.hardware import ModelSpec, Parallelism

ADAPTED_S = 2e-3
"""Of every iteration, "while only adding 2ms latency per token": Chen and others, Punica: Multi-Tenant LoRA Serving, MLSys 2024,
abstract; Llama-2 7B to 70B on A100s, however many adapters. No other engine's was published with what it hangs on [s]."""


def adapter_bytes(model: ModelSpec, spread: Parallelism, rank: int) -> float:
    """What one adapter takes of each GPU [bytes], in 16 bits, for all linear layers: attention and MLP.

    A layer of n inputs and m outputs has rank x (n + m) numbers. Engines cut one of both over a tensor-parallel group, as the layer
    itself, and copy the other: the input side of what is cut by outputs (queries, keys, values, gate, up), the output side of what
    is cut by inputs.

    Parameters
    ----------
    model
        A dense model with ordinary attention.
    spread
        How a replica spreads it.
    rank
        Of the adapter [1].

    Raises
    ------
    InputError
        What adapters of such a model take is not known here.

    Examples
    --------
    >>> from planner.catalog import model
    >>> adapter_bytes(model("llama-3.1-8b"), Parallelism(1), 16) / 2
    41943040.0
    """
    other = (
        "a mixture of experts" if model.experts
        else "a model that writes nothing" if model.pooling
        else "with attention of another kind" if model.kv_lora_rank or model.attention_free_layers or model.sliding_kv_heads
        else ""
    )  # fmt: skip
    if other:
        raise InputError(
            f"lora: {model.name} is {other}; adapters are known of dense models alone", "Leave --lora out."
        )
    hidden, tp = model.hidden_size, spread.tp
    queries, values = model.q_heads * model.head_dim, model.q_heads * model.value_dim
    kept = max(1, math.ceil(model.kv_heads / tp))
    by_outputs = [queries / tp, kept * model.head_dim, kept * model.value_dim]
    by_outputs += [model.intermediate_size / tp] * (model.mlp_matrices - 1)
    by_inputs = [values / tp, model.intermediate_size / tp]
    numbers = sum(hidden + width for width in by_outputs + by_inputs)
    return 2.0 * rank * numbers * model.layers / spread.pp
