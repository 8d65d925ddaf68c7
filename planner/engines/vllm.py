"""vLLM (V1)."""

from __future__ import annotations

from planner.engines import Engine, Version

ENGINE = Engine(
    name="vllm",
    title="vLLM",
    api_overhead_s=0.014,
    request_s=0.0003,
    wake_s=0.0075,
    token_budget=8192,
    max_num_seqs=1024,
    memory_utilization=0.9,
    flags={
        "tp": "--tensor-parallel-size",
        "pp": "--pipeline-parallel-size",
        "dp": "--data-parallel-size",
        "ep": "--enable-expert-parallel",
        "token_budget": "--max-num-batched-tokens",
        "slots": "--max-num-seqs",
        "max_model_len": "--max-model-len",
        "memory_utilization": "--gpu-memory-utilization",
        "kv_dtype": "--kv-cache-dtype",
        "quantization": "--quantization",
        "speculative": "--speculative-config",
        "served_name": "--served-model-name",
        "revision": "--revision",
    },
    logged={
        "token_budget": r"max_num_batched_tokens=(\d+)",
        "kv_tokens": r"KV cache size: ([\d,]+) tokens",
    },
    source="kubernetes-sigs/inference-perf kubecon-na-2025, one H100: 12.6-16 ms under load, "
    "20-23 ms at one request a second; a request takes no more than 0.3 ms from the iterations (TPOT of the "
    "prefix-cached server at 1 to 170 requests/s)",
    image="vllm/vllm-openai:v0.32.0",
    launch=("vllm", "serve", "{model}"),
    switches=("ep",),
    kv_dtypes={"fp8": "fp8"},
    quantizes=("fp8",),
    # read in vLLM 0.32: copies of the attention and pipeline stages are laid over the nodes in order
    joins=("--nnodes", "{nodes}", "--node-rank", "{rank}", "--master-addr", "{leader}"),
    follows=("--headless",),
    # without it requests under way are aborted at SIGTERM (pull request 34730, from 0.18 on)
    drains=("--shutdown-timeout", "{seconds}"),
    api_key="VLLM_API_KEY",
    versions=(
        Version(
            "0.9",
            "2025-11",
            {},
            "inference-perf's server (0.9), AIConfigurator's (2025), a nightly of 2026-02 (MiniMax-M2.5)",
        ),
        # its host makes the next batch while the GPU runs this one
        Version(
            "0.27",
            "2026-11",
            {"vllm_iteration_s": 0.0, "moe_launch_s": 43e-6},
            "llm-d's guide of disaggregation, 0.27.1: 6.5 ms a token of gpt-oss-120b with 35 running on TP4 H200, one number",
        ),
    ),
)
