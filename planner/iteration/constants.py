"""Shares of a data sheet that kernels reach, launch times, engine costs: fitted, not measured one by one.

Written by ``benchmarks/fit_estimate.py`` on 2026-11-22 from public measurements: kernels of Vidur,
AIConfigurator and LLMServingSim, servers of AIConfigurator, MLPerf Inference v4.1, v5.1 and v6.0. Behind each constant:
how many measured cells (GPU, model, precision, parallelism) speak of it, on how many GPU types.
"""

from __future__ import annotations

from collections.abc import Mapping

CONSTANTS: Mapping[str, float] = {
    # share of the peak bandwidth when streaming weights; 57 cells, 11 GPUs
    "weights": 0.8494,
    # share of the peak bandwidth when reading KV; 94 cells, 19 GPUs
    "kv": 0.8072,
    # share of the peak matrix rate, 16 and 8 bits; 71 cells, 17 GPUs
    "matmul": 0.7203,
    # share of the peak matrix rate, 4 bits; 28 cells, 7 GPUs
    "matmul_fp4": 0.7745,
    # exponent of the matrix rate in the power limit of boards with less power for it than an H100 SXM; 48 cells, 8 GPUs
    "power": 0.545,
    # share of the matrix products' time that streaming the weights does not hide; 25 cells, 9 GPUs
    "exposed": 0.1893,
    # share of the peak 16-bit matrix rate in prefill attention; 44 cells, 11 GPUs
    "attention": 1,
    # times the values between matrix products pass through memory; 98 cells, 19 GPUs
    "activations": 2.549,
    # matrix rate of routed experts over that of dense layers; 14 cells, 12 GPUs
    "experts": 0.712,
    # speed of mixtures of 32 and more experts on GPUs without 4-bit matrix units over that on others; 1 cells, 1 GPUs
    "fine_experts": 0.5127,
    # tokens of the busiest GPU over the mean where whole experts are spread; 5 cells, 5 GPUs
    "imbalance": 1,
    # share of a link's bandwidth in collectives; 41 cells, 9 GPUs
    "link": 0.4075,
    # latency of an all-reduce, or of one way to the experts [s]; 29 cells, 4 GPUs
    "allreduce_s": 5.676e-06,
    # small kernels and gaps of a layer [s]; 50 cells, 9 GPUs
    "launch_s_per_layer": 4.705e-05,
    # share of it left where an engine replays recorded launches (CUDA graphs); 35 cells, 3 GPUs
    "graph_launch": 0.2817,
    # bringing a layer's activations into 8 or 4 bits, in an engine [s]; 25 cells, 3 GPUs
    "quantize_s_per_layer": 2.129e-05,
    # decode attention per sequence and layer besides its KV [s]; 76 cells, 17 GPUs
    "sequence_s_per_layer": 9.499e-08,
    # bandwidth share of cards with GDDR memory over that of NVIDIA's modules; 15 cells, 5 GPUs
    "bandwidth_workstation": 1.102,
    # bandwidth share of AMD Instinct over that of NVIDIA's modules; 9 cells, 4 GPUs
    "bandwidth_amd": 1.048,
    # matrix share of cards with GDDR memory over that of NVIDIA's modules; 15 cells, 5 GPUs
    "compute_workstation": 1.014,
    # matrix share of AMD Instinct over that of NVIDIA's modules; 9 cells, 4 GPUs
    "compute_amd": 0.7309,
    # vLLM: host time of an iteration [s]; 10 cells, 2 GPUs
    "vllm_iteration_s": 0.001488,
    # vLLM: host time of an iteration per running sequence [s]; 10 cells, 2 GPUs
    "vllm_sequence_s": 8.794e-06,
    # SGLang: host time of an iteration [s]; 4 cells, 1 GPUs
    "sglang_iteration_s": 0.0005898,
    # SGLang: host time of an iteration per running sequence [s]; 3 cells, 1 GPUs
    "sglang_sequence_s": 7.624e-06,
    # TensorRT-LLM: host time of an iteration [s]; 21 cells, 3 GPUs
    "trtllm_iteration_s": 0.0007243,
    # TensorRT-LLM: host time of an iteration per running sequence [s]; 21 cells, 3 GPUs
    "trtllm_sequence_s": 3.052e-05,
    # vLLM with thousands of sequences, as submitted to MLPerf: per iteration [s]; 13 cells, 7 GPUs
    "vllm_offline_iteration_s": 0.04859,
    # TensorRT-LLM with thousands of sequences, as submitted to MLPerf: per iteration [s]; 37 cells, 12 GPUs
    "trtllm_offline_iteration_s": 0.00934,
    # either, per iteration and layer [s]; 39 cells, 15 GPUs
    "offline_launch_s_per_layer": 0.0001005,
}
"""Shares are of 1, times in seconds. NVIDIA's data-centre modules are the class the others are told against."""

BANDS: Mapping[str, float] = {
    "kernels modules dense": 0.19,  # 7 cells
    "kernels others dense": 0.13,  # 8 cells
    "offline modules dense": 0.13,  # 16 cells
    "offline modules experts": 0.23,  # 13 cells
    "offline others dense": 0.24,  # 14 cells
    "offline others experts": 0.28,  # 6 cells
    "servers modules dense": 0.26,  # 35 cells
}
"""Half-width around an estimate that holds 88% of the measurements of its kind, each predicted once by a fit without its
GPU type and once by one without its pair of GPU and model; see :func:`planner.iteration.roofline.band_kind` [1]."""
