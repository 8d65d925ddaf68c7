"""One engine at a time: a vLLM server under open-loop load (`real/openloop`), full-load throughput that NVIDIA documents
(`documented.csv` beside this file), tokens that a step of speculative decoding yields (`real/spec_decode`)."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.accuracy.mlperf_data import run_s
from benchmarks.accuracy.rows import Pair
from benchmarks.accuracy.serving import Load, completed_per_s, each, paced, quantile, skipping, table, through
from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.catalog.kv import kv_capacity
from planner.catalog.profiles import Profile, estimated_profile
from planner.machine.hardware import DTYPE_BYTES, GpuSpec, ModelSpec, Parallelism, shard
from planner.machine.roofline import CONSTANTS, prior_band, roofline
from planner.machine.speculation import METHODS, Speculation
from planner.predict.records import Replicas

STAGE_S = 60.0
CACHED = 192.0
"""Tokens of a prompt of the prefix-cached server that its blocks of 16 supply."""
BUSY = 0.92
"""Load up to which the P99 of TTFT is judged: at 98% of the largest rate two equal runs differ twofold."""


def open_loop(data: Path) -> Iterator[Pair]:
    """E2E mean and TTFT P99 of the stages that kept up; the largest rate of each setting.

    Its generator is Poisson within a second and constant beyond.
    """
    largest: dict[str, tuple[float, ...]] = {}
    rows = [r for r in table(data / "real" / "openloop" / "constant_rate_stages.csv") if "eagle" not in r["setting"]]
    told = ("setting", "engine", "gpu", "model", "tp", "max_num_seqs", "token_budget", "prefix_caching")
    for setting, own in sorted(each(rows, *told).items()):
        with skipping(f"openloop {setting}"):
            profile, server, cached = _server(own[0])
            prompt, output = float(own[0]["input_tokens"]), float(own[0]["output_tokens"])
            limit = float(own[0]["client_in_flight_limit"])
            for row in sorted(own, key=lambda r: -float(r["requested_per_s"])):
                name = f"{setting} {float(row['sent_per_s']):.0f}/s"
                if row["overloaded"] == "1":
                    crowd = Load(paced(float(row["requested_per_s"]), STAGE_S), prompt, output, cached)
                    told_per_s = completed_per_s(through(crowd, server, in_flight=limit))
                    found = told_per_s, float(row["completed_per_s"]), profile.band
                    largest[setting] = tuple(map(max, found, largest.get(setting, found)))
                    continue
                rate = float(row["sent_per_s"])
                stages = [Load(paced(rate, STAGE_S, seed), prompt, output, cached) for seed in range(5)]
                runs = [through(stage, server) for stage in stages]
                e2e = float(np.mean([run.e2e_s.mean() for run in runs])) + profile.api_overhead_s
                ttft = float(np.mean([quantile(run.ttft_s, 0.99) for run in runs])) + profile.api_overhead_s
                yield Pair("openloop", "e2e_mean", name, e2e, float(row["e2e_mean_s"]), profile.band)
                if rate < BUSY * largest.get(setting, (0.0, math.inf))[1]:
                    yield Pair("openloop", "ttft_p99", name, ttft, float(row["ttft_p99_s"]), profile.band)
    for setting, found in largest.items():
        yield Pair("openloop", "largest_rate", setting, *found)


def _server(row: dict[str, str]) -> tuple[Profile, Replicas, float]:
    """A server as estimated, and what its cache supplies of every prompt [tokens].

    V0 gives prompts iterations of their own and launches them kernel by kernel, as it records decodes alone: they cost what kernels
    measured one by one cost besides, once a request, before its first token.
    """
    device, network = find_gpu(row["gpu"]), find_model(row["model"])
    profile = estimated_profile(device, network, int(row["tp"]))
    v0 = row["setting"].startswith("v0")
    launches_s = CONSTANTS["launch_s_per_layer"] * (1.0 - CONSTANTS["graph_launch"]) * network.layers if v0 else 0.0
    profile = replace(
        profile, iteration=replace(profile.iteration, apart=float(v0)), api_overhead_s=profile.api_overhead_s + launches_s,
    )  # fmt: skip
    server = Replicas(
        1, profile.iteration, float(row["max_num_seqs"]), float(row["token_budget"]),
        request_s=profile.request_s + launches_s, wake_s=profile.wake_s,
    )  # fmt: skip
    return profile, server, CACHED if row["prefix_caching"] == "1" else 0.0


ONE = 3
"""Draft tokens of the one measured length."""


def acceptance(data: Path) -> Iterator[Pair]:
    """Mean acceptance lengths of every curve at every number of drafts."""
    curves: dict[tuple[str, ...], dict[int, float]] = {}
    for row in table(data / "real" / "spec_decode" / "acceptance_length.csv"):
        with skipping("acceptance_length.csv"):
            key = (row["model"], row["method"], row["variant"], row["mode"])
            curves.setdefault(key, {})[int(row["draft_tokens"])] = float(row["acceptance_length"])
    for key, lengths in curves.items():
        with skipping(" ".join(key)):
            # a block of drafts at once (dspark) is a trained layer's, as EAGLE-3's are
            method = key[1] if key[1] in METHODS else "eagle3"
            for k, measured in lengths.items():
                name = f"{' '.join(filter(None, key))} k={k}"
                found = Speculation.parse(f"{method}:k={k}")
                low, high = found.tokens_range
                inside = max(high / found.tokens_per_step - 1.0, 1.0 - low / found.tokens_per_step)
                yield Pair("speculation", f"default_k{k}", name, found.tokens_per_step, measured, inside)
                if ONE in lengths and k > ONE:
                    known = Speculation.parse(f"{method}:k={ONE},length={lengths[ONE]}")
                    beyond = Speculation.parse(f"{method}:k={k},accept={known.acceptance[0]}")
                    yield Pair("speculation", f"from_k{ONE}_k{k}", name, beyond.tokens_per_step, measured)


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
    """Output tokens/s per GPU of every system and length; a cell is a system. Nothing was fitted to it, and it needs no folder.

    Most runs are all prefill, then one wave of decodes that ends together, and are replayed as such, with the constants of tuned
    TensorRT-LLM as for MLPerf Offline. Sequences at once and token budget are those that the documented tool makes of the memory.
    """
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
        band = prior_band(device, network, "trtllm_offline")
        measured = float(row["tokens_per_s_per_gpu"])
        yield Pair("documented", "tokens_per_s", f"{cell} {prompt}/{output}", rate, measured, band, cell)
