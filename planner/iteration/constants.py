"""Shares of a data sheet that kernels reach, launch times, engine costs: fitted, not measured one by one.

Written by ``benchmarks/fit_estimate.py`` on 2026-11-22 from public measurements: kernels of Vidur,
AIConfigurator and LLMServingSim, servers of AIConfigurator, MLPerf Inference v4.1, v5.1 and v6.0. Behind each constant:
how many measured cells (GPU, model, precision, parallelism) speak of it, on how many GPU types.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BANDS", "CONSTANTS"]

CONSTANTS: Mapping[str, float] = {
    # share of the peak bandwidth when streaming weights; 51 cells, 9 GPUs
    "weights": 0.8288,
    # share of the peak bandwidth when reading KV; 94 cells, 19 GPUs
    "kv": 0.82,
    # share of the peak matrix rate, 16 and 8 bits; 67 cells, 17 GPUs
    "matmul": 0.7332,
    # share of the peak matrix rate, 4 bits; 33 cells, 8 GPUs
    "matmul_fp4": 0.6484,
    # share of the peak 16-bit matrix rate in prefill attention; 44 cells, 11 GPUs
    "attention": 0.9835,
    # times the values between matrix products pass through memory; 98 cells, 19 GPUs
    "activations": 2.635,
    # matrix rate of routed experts over that of dense layers; 17 cells, 12 GPUs
    "experts": 0.6888,
    # speed of mixtures of 32 and more experts on GPUs without 4-bit matrix units over that on others; 1 cells, 1 GPUs
    "fine_experts": 0.4723,
    # tokens of the busiest GPU over the mean where whole experts are spread; 5 cells, 5 GPUs
    "imbalance": 1.056,
    # share of a link's bandwidth in collectives; 42 cells, 10 GPUs
    "link": 0.3705,
    # latency of an all-reduce, or of one way to the experts [s]; 28 cells, 5 GPUs
    "allreduce_s": 4.412e-06,
    # small kernels and gaps of a layer [s]; 72 cells, 13 GPUs
    "launch_s_per_layer": 4.32e-05,
    # decode attention per sequence and layer besides its KV [s]; 65 cells, 16 GPUs
    "sequence_s_per_layer": 7.396e-08,
    # bandwidth share of cards with GDDR memory over that of NVIDIA's modules; 15 cells, 5 GPUs
    "bandwidth_workstation": 1.109,
    # bandwidth share of AMD Instinct over that of NVIDIA's modules; 9 cells, 4 GPUs
    "bandwidth_amd": 1.061,
    # matrix share of cards with GDDR memory over that of NVIDIA's modules; 14 cells, 5 GPUs
    "compute_workstation": 1.05,
    # matrix share of AMD Instinct over that of NVIDIA's modules; 9 cells, 4 GPUs
    "compute_amd": 0.7193,
    # vLLM: host time of an iteration [s]; 10 cells, 2 GPUs
    "vllm_iteration_s": 0.000944,
    # vLLM: host time of an iteration per running sequence [s]; 10 cells, 2 GPUs
    "vllm_sequence_s": 9.158e-06,
    # SGLang: host time of an iteration [s]; 3 cells, 1 GPUs
    "sglang_iteration_s": 0.0004974,
    # SGLang: host time of an iteration per running sequence [s]; 3 cells, 1 GPUs
    "sglang_sequence_s": 7.302e-06,
    # TensorRT-LLM: host time of an iteration [s]; 18 cells, 3 GPUs
    "trtllm_iteration_s": 0.0003675,
    # TensorRT-LLM: host time of an iteration per running sequence [s]; 21 cells, 3 GPUs
    "trtllm_sequence_s": 2.443e-05,
    # vLLM with thousands of sequences, as submitted to MLPerf: per iteration [s]; 13 cells, 7 GPUs
    "vllm_offline_iteration_s": 0.05338,
    # the same per running sequence [s]; 7 cells, 5 GPUs
    "vllm_offline_sequence_s": 4.622e-06,
    # TensorRT-LLM with thousands of sequences, as submitted to MLPerf: per iteration [s]; 37 cells, 12 GPUs
    "trtllm_offline_iteration_s": 0.01145,
    # the same per running sequence [s]; 30 cells, 11 GPUs
    "trtllm_offline_sequence_s": 9.064e-06,
}
"""Shares are of 1, times in seconds. NVIDIA's data-centre modules are the class the others are told against."""

BANDS: Mapping[str, float] = {
    "kernels modules dense": 0.25,  # 7 cells
    "kernels others dense": 0.21,  # 8 cells
    "offline modules dense": 0.26,  # 16 cells
    "offline modules experts": 0.29,  # 13 cells
    "offline others dense": 0.39,  # 14 cells
    "offline others experts": 0.36,  # 6 cells
    "servers modules dense": 0.28,  # 35 cells
}
"""Half-width around an estimate that holds 90% of the measurements of its kind, each predicted once by a fit without its
GPU type and once by one without its model; see :func:`planner.iteration.roofline.band_kind` [1]."""
