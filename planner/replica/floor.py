"""The physics no plan may break: arithmetic and memory traffic at 100% of the data sheet."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.machine.hardware import GpuSpec, ModelSpec, shard


def hardware_floor(
    gpu: GpuSpec,
    model: ModelSpec,
    arrival_rate_per_s: float,
    new_input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    kv_token_iterations: ArrayLike,
) -> NDArray[np.float64]:
    r"""Lower bound of the GPUs for a rate if nothing were ever lost: FLOPs and bytes of the traffic over the data sheet's peaks.

    .. math:: n \ge \lambda \max\left( \frac{2 P_{active} (L_{new} + O)}{FLOPS},\; \frac{E[KV]\, b_{kv}}{BW} \right)

    Parameters
    ----------
    gpu, model
        Hardware and model.
    arrival_rate_per_s
        Rate [1/s].
    new_input_tokens, output_tokens
        Means per request [tokens]; scalars or arrays of one shape.
    kv_token_iterations
        Mean of sum over decode steps of the context [tokens x iterations].

    Returns
    -------
    ndarray
        The larger of what matrix arithmetic (2 FLOP per active parameter and token, attention left out) and reading the KV cache
        (weights shared by any batch) take [GPUs].
    """
    dtype = model.weight_dtype if model.weight_dtype in gpu.flops_per_s else "bf16"
    peak = max(gpu.flops_per_s.get(dtype, 0.0), gpu.flops_per_s.get("bf16", 0.0))
    flops = 2.0 * model.parameters_active * (np.asarray(new_input_tokens) + np.asarray(output_tokens))
    # sparse attention must read its index of every token, not the tokens
    index = model.index_layers * model.index_bytes
    kv_bytes = np.asarray(kv_token_iterations) * (index or shard(model).full_bytes_per_token)
    compute = arrival_rate_per_s * flops / peak if peak > 0.0 else 0.0 * flops
    return np.asarray(np.maximum(compute, arrival_rate_per_s * kv_bytes / gpu.bandwidth_bytes_per_s))
