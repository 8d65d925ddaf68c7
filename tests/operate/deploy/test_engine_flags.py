"""Every flag written for an engine is one it has: lists taken from the engines, with version and place."""

from __future__ import annotations

import re
import shlex

import pytest

import planner as fo
from planner.machine.engines import engines
from planner.operate.deploy.serving import DeployOptions, serving_of
from planner.question.files import question_of
from planner.report import export_names, formatter
from planner.report.text.why import engine_flags

# fmt: off
KNOWN = {
    # `vllm serve --help=all` of vLLM 0.32.0
    "vllm": {
        "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--enable-expert-parallel",
        "--max-num-batched-tokens", "--max-num-seqs", "--max-model-len", "--gpu-memory-utilization", "--kv-cache-dtype",
        "--quantization", "--speculative-config", "--served-model-name", "--kv-transfer-config", "--max-num-queued-tokens",
        "--host", "--port", "--shutdown-timeout", "--revision", "--nnodes", "--node-rank", "--master-addr", "--headless",
        # docs.vllm.ai, "Pooling Models" of 0.11 to 0.18
        "--runner",
        # docs.vllm.ai, "LoRA Adapters"
        "--enable-lora", "--max-loras", "--max-lora-rank",
    },
    # docs/advanced_features/server_arguments.md of SGLang at commit 004813e1dd46 (0.5)
    "sglang": {
        "--model-path", "--tp-size", "--pp-size", "--dp-size", "--ep-size", "--enable-dp-attention", "--chunked-prefill-size",
        "--max-running-requests", "--context-length", "--mem-fraction-static", "--kv-cache-dtype", "--quantization",
        "--served-model-name", "--enable-metrics", "--host", "--port", "--revision", "--api-key",
        "--nnodes", "--node-rank", "--dist-init-addr",
        # docs/advanced_features/lora.ipynb
        "--enable-lora", "--max-loras-per-batch", "--max-lora-rank",
    },
    # options of tensorrt_llm/commands/serve.py of TensorRT-LLM at commit 00209af149e7 (1.2)
    "trtllm": {
        "--tp_size", "--pp_size", "--ep_size", "--max_num_tokens", "--max_batch_size", "--max_seq_len",
        "--kv_cache_free_gpu_memory_fraction", "--free_gpu_memory_fraction", "--enable_chunked_prefill", "--host", "--port",
        "--revision",
    },
}
KV_DTYPES = {"vllm": {"fp8"}, "sglang": {"fp8_e4m3", "fp8_e5m2", "bf16"}, "trtllm": set()}
# fmt: on
"""Checked 2026-11-22."""


@pytest.mark.parametrize("name", sorted(engines()))
def test_an_engine_has_the_flags_written_for_it(name: str) -> None:
    engine = engines()[name]
    flags = (
        w
        for w in (*engine.launch, *engine.drains, *engine.joins, *engine.follows, engine.api_key)
        if w.startswith("--")
    )
    words = {*engine.flags.values(), *engine.always, *flags}
    assert words <= KNOWN[name]
    assert {*engine.switches} <= {*engine.flags}
    assert {*engine.kv_dtypes.values()} <= KV_DTYPES[name]


@pytest.mark.parametrize("name", sorted(engines()))
def test_a_plan_is_started_in_the_words_of_its_engine(name: str) -> None:
    """The page and the exported command say the same settings, in flags that the engine has."""
    plan = fo.plan("azure", method="mgc", kv="reserved", slo=4.0, rate=20.0, engine=name, pools=1, kv_dtype="fp8")  # type: ignore[arg-type]
    (line,) = engine_flags(plan)
    told = shlex.split(line.partition(": ")[2])
    assert {word for word in told if word.startswith("--")} <= KNOWN[name]
    serving = serving_of(plan.to_dict(), question_of(plan).pools, DeployOptions())
    command = shlex.join(serving.pools[0].command)
    assert serving.engine.name == name
    assert shlex.join(told) in command
    assert str(plan.pools[0].settings.max_num_seqs) in told
    assert ("fp8" in line) == bool(engines()[name].kv_dtypes)
    assert set(re.findall(r"(?<=\s)--[\w-]+", command)) <= KNOWN[name]
    assert "vllm" in export_names("plan")
    assert command in formatter("vllm", "plan")(plan)
