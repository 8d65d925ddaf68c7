"""Shares of a data sheet that kernels reach, launch times, engine costs: fitted, not measured one by one.

Written by ``python -m benchmarks.fit_estimate`` on 2026-11-24 from public measurements: kernels
of Vidur, AIConfigurator and LLMServingSim, servers of AIConfigurator, MLPerf Inference v4.1, v5.1 and v6.0, decode
pools of dstack and llm-d, spread experts of InferenceX. Behind each constant: how many measured cells (GPU, model,
precision, parallelism) speak of it, on how many GPU types.
"""

from __future__ import annotations

from collections.abc import Mapping

CONSTANTS: Mapping[str, float] = {
    # share of the peak bandwidth when streaming weights; 123 cells, 15 GPUs
    "weights": 0.8494,
    # share of the peak bandwidth when reading KV; 154 cells, 19 GPUs
    "kv": 0.8072,
    # share of the peak matrix rate, 16 and 8 bits; 129 cells, 17 GPUs
    "matmul": 0.7203,
    # share of the peak matrix rate, 4 bits; 38 cells, 7 GPUs
    "matmul_fp4": 0.7745,
    # exponent of the matrix rate in the power limit of boards with less power for it than an H100 SXM; 58 cells, 8 GPUs
    "power": 0.545,
    # share of the matrix products' time that streaming the weights does not hide; 29 cells, 12 GPUs
    "exposed": 0.1893,
    # share of the peak 16-bit matrix rate in prefill attention; 52 cells, 12 GPUs
    "attention": 1,
    # times the values between matrix products pass through memory; 163 cells, 19 GPUs
    "activations": 2.549,
    # matrix rate of routed experts over that of dense layers; 53 cells, 12 GPUs
    "experts": 0.7033,
    # speed of products of 32 and more experts on GPUs without 4-bit matrix units over that on others; 34 cells, 1 GPUs
    "fine_products": 0.5146,
    # tokens of the busiest GPU over the mean where an engine spreads whole experts as they come; 30 cells, 1 GPUs
    "imbalance": 3.561,
    # fixed time of a mixture's layer in an engine: router, sorting, grouped products at their floor [s]; 64 cells, 1 GPUs
    "moe_launch_s": 0.0001,
    # one way to the experts of other GPUs [s]; 4 cells, 3 GPUs
    "dispatch_s": 1.311e-05,
    # share of a link's bandwidth on this way; 6 cells, 5 GPUs
    "dispatch_link": 0.3591,
    # times longer the cache of heads of 64 values is read; 28 cells, 7 GPUs
    "narrow": 1.601,
    # share of a link's bandwidth in collectives; 74 cells, 8 GPUs
    "link": 0.4075,
    # latency of an all-reduce [s]; 81 cells, 5 GPUs
    "allreduce_s": 5.676e-06,
    # small kernels and gaps of a layer [s]; 112 cells, 13 GPUs
    "launch_s_per_layer": 4.705e-05,
    # share of it left where an engine replays recorded launches (CUDA graphs); 97 cells, 8 GPUs
    "graph_launch": 0.2817,
    # bringing a layer's activations into 8 or 4 bits, in an engine [s]; 70 cells, 9 GPUs
    "quantize_s_per_layer": 2.129e-05,
    # decode attention per sequence and layer besides its KV [s]; 97 cells, 17 GPUs
    "sequence_s_per_layer": 9.499e-08,
    # bandwidth share of cards with GDDR memory over that of NVIDIA's modules; 19 cells, 5 GPUs
    "bandwidth_workstation": 1.102,
    # bandwidth share of AMD Instinct over that of NVIDIA's modules; 15 cells, 4 GPUs
    "bandwidth_amd": 1.048,
    # matrix share of cards with GDDR memory over that of NVIDIA's modules; 19 cells, 5 GPUs
    "compute_workstation": 1.014,
    # matrix share of AMD Instinct over that of NVIDIA's modules; 15 cells, 4 GPUs
    "compute_amd": 0.7309,
    # vLLM: host time of an iteration [s]; 35 cells, 3 GPUs
    "vllm_iteration_s": 0.001488,
    # vLLM: host time of an iteration per running sequence [s]; 11 cells, 3 GPUs
    "vllm_sequence_s": 8.794e-06,
    # SGLang: host time of an iteration [s]; 36 cells, 2 GPUs
    "sglang_iteration_s": 0.0005898,
    # SGLang: host time of an iteration per running sequence [s]; 18 cells, 2 GPUs
    "sglang_sequence_s": 7.624e-06,
    # TensorRT-LLM: host time of an iteration [s]; 21 cells, 3 GPUs
    "trtllm_iteration_s": 0.0007243,
    # TensorRT-LLM: host time of an iteration per running sequence [s]; 21 cells, 3 GPUs
    "trtllm_sequence_s": 3.052e-05,
    # vLLM with thousands of sequences, as submitted to MLPerf: per iteration [s]; 19 cells, 7 GPUs
    "vllm_offline_iteration_s": 0.03282,
    # TensorRT-LLM with thousands of sequences, as submitted to MLPerf: per iteration [s]; 40 cells, 11 GPUs
    "trtllm_offline_iteration_s": 0.003584,
    # either, per iteration and layer [s]; 78 cells, 16 GPUs
    "offline_launch_s_per_layer": 0.0001999,
    # running sequences at which either spends half of that; 42 cells, 12 GPUs
    "offline_half": 133.2,
}
"""Shares are of 1, times in seconds. NVIDIA's data-centre modules are the class the others are told against."""

BANDS: Mapping[str, float] = {
    "kernels modules dense": 0.16,  # 7 cells
    "kernels others dense": 0.12,  # 8 cells
    "offline modules dense": 0.18,  # 30 cells
    "offline modules experts": 0.25,  # 17 cells
    "offline others dense": 0.24,  # 25 cells
    "offline others experts": 0.18,  # 9 cells
    "prompts modules dense": 0.15,  # 7 cells
    "prompts modules experts": 0.42,  # 14 cells
    "prompts others dense": 0.14,  # 8 cells
    "servers modules dense": 0.24,  # 35 cells
    "servers modules experts": 0.34,  # 53 cells
}
"""Half-width around an estimate that holds 85% of the measurements of its kind, each predicted once by a fit without its
GPU type and once by one without its model, and 75 to 87% of those of GPU types that did not make it; see
:func:`planner.iteration.roofline.band_kind` [1]."""
