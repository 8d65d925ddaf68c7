"""Metrics by the names that servers give them, newest first: vLLM, SGLang, TensorRT-LLM and Dynamo.

Sources, read 2026-11: vLLM 0.32 metrics page and its deprecations (``gpu_cache_usage_perc`` became ``kv_cache_usage_perc``,
``time_per_output_token_seconds`` became ``inter_token_latency_seconds``, ``gpu_prefix_cache_*`` became ``prefix_cache_*``); SGLang
production metrics and its collector; TensorRT-LLM's collector; Dynamo's metrics catalog 1.5. A metric may carry a prefix of the
platform (``kserve_``), and ``:`` may have become ``_``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one server names its metrics.

    Parameters
    ----------
    name
        Of the server.
    gauges, counters, histograms
        Quantity -> names, newest first; of histograms without ``_bucket``, ``_sum``, ``_count``.
    """

    name: str
    gauges: Mapping[str, tuple[str, ...]]
    counters: Mapping[str, tuple[str, ...]]
    histograms: Mapping[str, tuple[str, ...]]


DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        "vLLM",
        gauges={
            "running": ("vllm:num_requests_running",),
            "waiting": ("vllm:num_requests_waiting",),
            "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        },
        counters={
            "requests": ("vllm:request_success_total", "vllm:request_success"),
            "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
            "cache_queries": (
                "vllm:prefix_cache_queries_total",
                "vllm:gpu_prefix_cache_queries_total",
                "vllm:gpu_prefix_cache_queries",
            ),
            "cache_hits": (
                "vllm:prefix_cache_hits_total",
                "vllm:gpu_prefix_cache_hits_total",
                "vllm:gpu_prefix_cache_hits",
            ),
        },
        histograms={
            "ttft_s": ("vllm:time_to_first_token_seconds",),
            "tpot_s": (
                "vllm:request_time_per_output_token_seconds",
                "vllm:inter_token_latency_seconds",
                "vllm:time_per_output_token_seconds",
            ),
            "e2e_s": ("vllm:e2e_request_latency_seconds",),
            "input_tokens": ("vllm:request_prompt_tokens",),
            "output_tokens": ("vllm:request_generation_tokens",),
        },
    ),
    Dialect(
        "SGLang",
        gauges={
            "running": ("sglang:num_running_reqs",),
            "waiting": ("sglang:num_queue_reqs",),
            "kv_usage": ("sglang:token_usage",),
        },
        counters={
            "requests": ("sglang:num_requests_total", "sglang:num_requests"),
            # num_retracted_reqs is a gauge of the last batch, not this
            "preemptions": ("sglang:num_retracted_requests_total",),
            "cache_queries": ("sglang:prompt_tokens_total",),
            "cache_hits": ("sglang:cached_tokens_total",),
        },
        histograms={
            "ttft_s": ("sglang:time_to_first_token_seconds",),
            "tpot_s": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
            "e2e_s": ("sglang:e2e_request_latency_seconds",),
            "input_tokens": ("sglang:prompt_tokens_histogram",),
            "output_tokens": ("sglang:generation_tokens_histogram",),
        },
    ),
    Dialect(
        "TensorRT-LLM",
        gauges={
            "running": ("trtllm_num_requests_running", "trtllm_num_active_requests"),
            "waiting": ("trtllm_num_requests_waiting", "trtllm_num_queued_requests"),
            "kv_usage": ("trtllm_kv_cache_utilization", "kv_cache_utilization"),
        },
        counters={
            "requests": ("trtllm_request_success_total", "trtllm:request_success_total", "request_success_total"),
            "cache_queries": ("trtllm_prompt_tokens_total",),
            "cache_hits": ("trtllm_prompt_cached_tokens_total", "trtllm_prompt_tokens_cached_total"),
        },
        histograms={
            "ttft_s": (
                "trtllm_time_to_first_token_seconds",
                "trtllm:time_to_first_token_seconds",
                "time_to_first_token_seconds",
            ),
            "tpot_s": (
                "trtllm_time_per_output_token_seconds",
                "trtllm:time_per_output_token_seconds",
                "time_per_output_token_seconds",
            ),
            "e2e_s": (
                "trtllm_e2e_request_latency_seconds",
                "trtllm:e2e_request_latency_seconds",
                "e2e_request_latency_seconds",
            ),
            "input_tokens": ("trtllm_request_prompt_tokens",),
            "output_tokens": ("trtllm_request_generation_tokens",),
        },
    ),
    Dialect(
        "Dynamo",
        gauges={
            "running": ("dynamo_frontend_active_requests", "dynamo_frontend_inflight_requests"),
            "waiting": ("dynamo_frontend_queued_requests",),
            "kv_usage": (
                "dynamo_component_gpu_cache_usage_percent",
                "dynamo_component_kvstats_gpu_cache_usage_percent",
            ),
        },
        counters={
            "requests": ("dynamo_frontend_requests_total",),
            "cache_hits": ("dynamo_frontend_cached_tokens_sum",),
            "cache_queries": ("dynamo_frontend_input_sequence_tokens_sum",),
        },
        histograms={
            "ttft_s": ("dynamo_frontend_time_to_first_token_seconds",),
            "tpot_s": ("dynamo_frontend_inter_token_latency_seconds",),
            "e2e_s": ("dynamo_frontend_request_duration_seconds",),
            "input_tokens": ("dynamo_frontend_input_sequence_tokens",),
            "output_tokens": ("dynamo_frontend_output_sequence_tokens",),
        },
    ),
)
"""The dialects, tried in this order: engines before what stands in front of them."""
