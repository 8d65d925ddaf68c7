"""TensorRT-LLM."""

from __future__ import annotations

from planner.engines import Engine, Version

ENGINE = Engine(
    name="trtllm",
    title="TensorRT-LLM",
    # nobody has published them: taken from vLLM, whose front end is built alike
    api_overhead_s=0.014,
    request_s=0.0003,
    wake_s=0.0075,
    token_budget=8192,
    max_num_seqs=2048,
    memory_utilization=0.9,
    flags={
        "tp": "--tp_size",
        "pp": "--pp_size",
        "ep": "--ep_size",
        "token_budget": "--max_num_tokens",
        "slots": "--max_batch_size",
        "max_model_len": "--max_seq_len",
        "memory_utilization": "--kv_cache_free_gpu_memory_fraction",
        "revision": "--revision",
    },
    source="assumed as vLLM's",
    image="nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
    launch=("trtllm-serve", "{model}"),
    # without it a prompt longer than the token budget is refused
    always=("--enable_chunked_prefill",),
    # told to end its web server finishes the requests it has, for as long as it is let
    metrics_path="/prometheus/metrics",
    versions=(Version("1.0", "2025-09", {}, "AIConfigurator's servers (1.0.0rc3 to 1.3.0rc5)"),),
)
