"""Full-load throughput that NVIDIA documents (`documented.csv` beside this file): nothing was fitted to it, and it needs no folder.

Most runs are all prefill, then one wave of decodes that ends together, and are replayed as such, with the constants of tuned
TensorRT-LLM as for MLPerf Offline. Sequences at once and token budget are those that the documented tool makes of the memory.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.accuracy.mlperf_data import run_s
from benchmarks.accuracy.rows import Pair, band_of
from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.catalog.kv import kv_capacity
from planner.iteration.roofline import roofline
from planner.machine.hardware import DTYPE_BYTES, GpuSpec, ModelSpec, Parallelism, shard

FIGURES = Path(__file__).with_name("documented.csv")


def bench_settings(network: ModelSpec, device: GpuSpec, gpus: int, prompt: float, output: float) -> tuple[float, float]:
    """(token budget, sequences) of a rank where nobody gives them: what the documented tool makes of the memory.

    TensorRT-LLM, ``tensorrt_llm/bench/build/tuning.py`` (commit 04cba88), and without chunks a budget holds every prompt. It
    counts the cache of latent attention as if every head had its own keys, a packed 4-bit checkpoint's stored bytes as its
    weights, and leaves dtypes it does not know (MXFP4) at the engine's defaults.
    """
    if network.weight_dtype == "mxfp4":
        return 8192.0, 2048.0
    whole = shard(network)
    parameters = whole.mixer_parameters + whole.mlp_parameters + whole.expert_parameters
    stored = 0.5 * DTYPE_BYTES["fp4"] if network.weight_dtype == "fp4" else 1.0
    latent = bool(network.kv_lora_rank)
    heads = network.q_heads if latent else max(gpus, network.kv_heads)
    head_dim = network.hidden_size // network.q_heads if latent else network.head_dim
    a_token = 2.0 * network.layers * heads * head_dim * DTYPE_BYTES[network.kv_dtype]
    room = 0.95 * (gpus * device.memory_bytes - stored * (parameters + 2.0 * whole.vocabulary_parameters))
    most = min(room / (a_token * (prompt + output)), 4096.0)
    step = 32.0 if most < 256.0 else 128.0 if most < 1024.0 else 256.0
    slots = max(64.0, step * math.ceil(most / step))
    tokens = min(most * (1.0 + prompt / output), 32768.0)
    step = 256.0 if tokens < 4096.0 else 512.0 if tokens < 8192.0 else 1024.0
    return max(2048.0, step * math.ceil(tokens / step), prompt + slots), slots


def documented() -> Iterator[Pair]:
    """Output tokens/s per GPU of every system and length; a cell is a system."""
    lines = [line for line in FIGURES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    for row in csv.DictReader(lines):
        network = find_model(row["model"])
        if network.weight_dtype != "mxfp4":
            network = replace(network, weight_dtype=row["precision"])
            if network.kv_lora_rank and row["precision"] == "fp4":
                network = replace(network, dense_dtype="fp8")
        device = find_gpu(row["gpu"])
        # documented: fp8, but for this model on Hopper
        wide = row["model"].startswith("gpt-oss") and not device.flops_per_s.get("fp4")
        network = replace(network, kv_dtype="bf16" if wide else "fp8")
        count = int(row["spread"].lstrip("DETP"))
        spread = Parallelism(dp=count) if row["spread"].startswith("DEP") else Parallelism(count)
        prompt, output = int(row["input_tokens"]), int(row["output_tokens"])
        memory = kv_capacity(network, device, spread, max_num_seqs=512, token_budget=8192, memory_utilization=0.95)
        room = float(memory.tokens)
        model = roofline(device, network, spread, engine="trtllm_offline")
        mine = np.full(math.ceil(int(row["requests"]) / spread.copies), 1.0)
        budget, slots = bench_settings(network, device, count, prompt, output)
        # the engine starts no request whose end might not fit
        slots = min(slots, max(room // (prompt + output), 1.0))
        seconds = run_s(model, prompt * mine, output * mine, budget, slots, room)
        rate = mine.size * output * spread.copies / spread.gpus / seconds
        cell = f"{row['model']} {row['gpu']} {spread} {row['precision']}"
        band = band_of(device, network, "trtllm_offline")
        measured = float(row["tokens_per_s_per_gpu"])
        yield Pair("documented", "tokens_per_s", f"{cell} {prompt}/{output}", rate, measured, band, cell)
