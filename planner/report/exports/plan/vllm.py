"""The ``vllm serve`` line of every pool, reasons as comments."""

from __future__ import annotations

import shlex

from planner.plans import Plan
from planner.report.exports import Export

__all__ = ["EXPORT"]


def render(plan: Plan) -> str:
    """One command per pool; `replicas` copies of it serve the pool."""
    model = str(plan.inputs.get("model", "MODEL"))
    lines = []
    for pool in plan.pools:
        s = pool.settings
        lines.append(
            f"# {pool.name}: {pool.replicas} replicas on {pool.gpu}, "
            f"requests of {pool.low_tokens:,.0f}..{pool.high_tokens:,.0f} tokens"
        )
        lines.extend(f"#   {name}: {reason}" for name, reason in s.reasons.items())
        arguments = [
            "vllm", "serve", model,
            "--max-model-len", str(s.max_model_len),
            "--max-num-seqs", str(s.max_num_seqs),
            "--max-num-batched-tokens", str(s.max_num_batched_tokens),
            "--tensor-parallel-size", str(s.tensor_parallel_size), *s.parallel_flags(),
            "--gpu-memory-utilization", f"{s.gpu_memory_utilization:g}",
        ]  # fmt: skip
        if s.kv_cache_dtype not in ("bf16", "fp16"):
            arguments += ["--kv-cache-dtype", s.kv_cache_dtype]
        lines.append(shlex.join(arguments))
    return "\n".join(lines)


EXPORT = Export("the `vllm serve` line of every pool, reasons as comments", render)
