"""SGLang."""

from __future__ import annotations

from planner.engines import Engine, Version

ENGINE = Engine(
    name="sglang",
    title="SGLang",
    # nobody has published them: taken from vLLM, whose front end is built alike
    api_overhead_s=0.014,
    request_s=0.0003,
    wake_s=0.0075,
    token_budget=8192,
    max_num_seqs=1024,
    memory_utilization=0.88,
    apart=True,  # without --enable-mixed-chunk
    flags={
        "tp": "--tp-size",
        "pp": "--pp-size",
        "dp": "--dp-size",
        "ep": "--ep-size",
        "attention_dp": "--enable-dp-attention",
        "token_budget": "--chunked-prefill-size",
        "slots": "--max-running-requests",
        "max_model_len": "--context-length",
        "memory_utilization": "--mem-fraction-static",
        "kv_dtype": "--kv-cache-dtype",
        "quantization": "--quantization",
        "served_name": "--served-model-name",
        "revision": "--revision",
    },
    logged={
        "token_budget": r"chunked_prefill_size=(\d+)",
        "slots": r"max_running_requests=(\d+)",
        "kv_tokens": r"max_total_num_tokens=(\d+)",
    },
    source="assumed as vLLM's",
    image="lmsysorg/sglang:v0.5.23",
    launch=("python3", "-m", "sglang.launch_server", "--model-path", "{model}"),
    switches=("attention_dp",),
    dp_inside_tp=True,
    always=("--enable-metrics",),
    kv_dtypes={"fp8": "fp8_e4m3"},
    quantizes=("fp8",),
    # told to end it finishes its requests first, for as long as it is let (pull request 1838)
    api_key="--api-key",
    joins=("--nnodes", "{nodes}", "--node-rank", "{rank}", "--dist-init-addr", "{leader}:20000"),
    versions=(Version("0.5", "2025-09", {}, "dstack's P:D runs (2025-09), AIConfigurator's servers (0.5.1, 0.5.8)"),),
)
