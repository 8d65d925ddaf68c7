"""MLPerf Inference results (`real/mlperf`) as systems: settings, ways to spread the model, request lengths, Offline runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.serving import skipping, table
from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.catalog.kv import kv_capacity
from planner.errors import InputError
from planner.machine.hardware import GpuSpec, ModelSpec, Parallelism
from planner.machine.iteration import IterationModel
from planner.machine.roofline import CONSTANTS, roofline
from planner.predict.records import Replicas, Requests
from planner.predict.run import replay

FloatArray = NDArray[np.float64]

MLPERF_MEMORY_SHARE = 0.95
"""Share of the device tuned submissions give the engine (their configs say 0.90 to 0.98)."""
MOSTLY_FP8 = ("mixtral-8x7b",)
"""Declared fp4, but quantized by layer to 7.25 bits a weight on average, four of five in fp8: ``effective_bits`` of the
submitters' configs (MLPerf Inference v6.0, closed/HPE/configs/*/Offline/mixtral-8x7b.py)."""
MLPERF_SEQUENCES = 1024
MLPERF_BUDGET = 8192
"""Engine settings of a result whose configuration is not published."""
OF_V60 = "0.14"
"""vLLM of MLPerf Inference v6.0 (AMD's build and Krai's)."""
ONE_SERVER = "-reference-"
"""Systems of MLCommons' reference implementation, which asks one vLLM server (``--api_server``): it has all GPUs of its system.
Neural Magic's README of round v4.1 starts it with ``--tensor-parallel-size=4`` on four H100."""
VLLM_SEQUENCES = 256
"""What vLLM takes at most where nobody says (its default, V0 and V1)."""


def public_gpu(name: str, mlperf: Path) -> GpuSpec:
    """A GPU of the catalog, else of the data's own list."""
    try:
        return find_gpu(name)
    except InputError:
        pass
    for row in table(mlperf / "gpus.csv"):
        if row["gpu"] == name:
            rates = {k: float(row[f"{k}_tflops"]) * 1e12 for k in ("bf16", "fp8", "int8", "fp4") if row[f"{k}_tflops"]}
            lowered = name.lower()
            family = "amd" if lowered.startswith("mi") else "pcie" if "nvl-" in lowered else ""
            if "pcie" in lowered:
                family = "pcie"
            return GpuSpec(
                name=name, memory_bytes=float(row["memory_gib"]) * 2**30,
                bandwidth_bytes_per_s=float(row["bandwidth_gb_per_s"]) * 1e9, flops_per_s=rates,
                link_bytes_per_s=float(row["link_gb_per_s"]) * 1e9, price_usd_per_hour=0.0, gpu_class=family,
            )  # fmt: skip
    raise InputError(f"unknown GPU {name!r}")


@dataclass(frozen=True)
class Lengths:
    """Sums over a data set's requests, as mixed batching needs them [tokens]."""

    prompt: float
    prompt2: float
    pairs: float
    steps: float
    kv: float
    context: float


@cache
def lengths(path: Path, mean_output: float) -> Lengths:
    """Request lengths of a data set, outputs scaled to the mean that was generated."""
    prompt, output = request_lengths(path, mean_output)
    steps = np.maximum(output - 1.0, 0.0)
    kv = steps * (prompt + 0.5 * (steps + 1.0))
    return Lengths(
        float(prompt.mean()), float((prompt**2).mean()), float((0.5 * prompt * (prompt + 1.0)).mean()), float(steps.mean()),
        float(kv.mean()), float((prompt + output).mean()),
    )  # fmt: skip


@cache
def published_lengths(path: Path) -> tuple[FloatArray, FloatArray]:
    """(input, output) tokens of every request; outputs that are not published are all one, shape (requests,)."""
    rows = list(table(path))
    prompt = np.array([float(row["input_length"]) for row in rows])
    out = np.array([float(row.get("output_length") or np.nan) for row in rows])
    if not np.isfinite(out).all() or out.mean() <= 0.0:
        out = np.ones(prompt.size)
    return prompt, out


@cache
def request_lengths(path: Path, mean_output: float) -> tuple[FloatArray, FloatArray]:
    """The same with outputs of that mean [tokens], shape (requests,)."""
    prompt, output = published_lengths(path)
    return prompt, output * (mean_output / output.mean())


def offline_rate(m: IterationModel, law: Lengths, budget: float, slots: float, kv_tokens: float) -> float:
    """Requests/s of a replica that always has work: token budget, slots or KV memory binds (see docs/model.md)."""
    per_budget = budget / (law.prompt + law.steps)
    per_slots = slots / (law.steps + 1.0 + law.prompt / budget)
    per_kv = (kv_tokens - law.prompt2 / (2.0 * law.prompt)) / (law.kv + 0.5 * law.prompt)
    requests = min(per_budget, per_slots, max(per_kv, 1e-9))
    n, new = requests * law.steps, requests * law.prompt
    return requests / m.time(n, requests * law.kv, new, requests * law.pairs)


MLPERF_RUN_S = 660.0
"""An Offline run sends its data set once, and where that takes less than so long so many requests more: LoadGen's 600 s at least,
a tenth more for safety [s]."""
LIVES = 6.0
"""A run lasts so many times its longest answer, unless its data set is done before: nobody lets the end of a run decide. Server
runs last 1.6 to 3.3% longer than their arrivals, which is what the answers under way at the end still take [1]."""
MOST_SIMULATED = 20_000
"""Requests of a copy that are simulated at most; more of them run at the steady rate."""
LIFE_LIMITS: dict[str, float] = {"deepseek-v3": 20_000.0}
"""Longest output MLPerf lets a model generate, where the reference outputs were cut later [tokens]."""


def run_s(
    model: IterationModel, prompts: FloatArray, outputs: FloatArray, budget: float, slots: float, kv_tokens: float
) -> float:
    """Time from the first token of the first to the last token of the last of requests that all wait at the start [s]."""
    lengths = (np.maximum(np.rint(x), 1.0) for x in (prompts, outputs))
    size = prompts.size
    requests = Requests(np.zeros(size), *lengths, np.zeros(size), np.zeros(size, dtype=np.uint64))
    return float(replay(requests, Replicas(1, model, slots, budget, kv_tokens)).done_s.max())


def run_share(
    model: IterationModel, prompts: FloatArray, outputs: FloatArray, requests: float, steady: float, *limits: float
) -> float:
    """Throughput of a run of so many requests on a copy over its steady one [1]: batches fill, and the longest finish alone.

    A run of thousands of long answers is all in flight at once: its end, not its middle, decides.
    """
    some = int(min(max(round(requests), 1), MOST_SIMULATED))
    # the order of requests is random, the same for every system
    rows = np.random.Generator(np.random.PCG64(1)).permutation(prompts.size)
    rows = np.resize(rows, some)
    beyond = max(requests - some, 0.0) / steady
    return requests / (run_s(model, prompts[rows], outputs[rows], *limits) + beyond) / steady


@dataclass(frozen=True)
class MlperfRow:
    """One result with what its system looked like."""

    row: dict[str, str]
    gpu: GpuSpec
    model: ModelSpec
    engine: str
    parallel: tuple[Parallelism, ...]

    @property
    def cell(self) -> str:
        return f"{self.row['gpu']} {self.row['model']} {self.row['precision']}"

    def replica(self, parallel: Parallelism) -> tuple[float, float, float]:
        """(token budget, slots, KV tokens) of one copy of a replica; published settings are those of one already."""
        budget = float(self.row["token_budget"] or MLPERF_BUDGET)
        unsaid = VLLM_SEQUENCES if "vllm" in self.row["engine"].lower() else MLPERF_SEQUENCES
        slots = float(self.row["max_seqs"] or unsaid)
        kv = kv_capacity(
            self.model, self.gpu, parallel, max_num_seqs=128, token_budget=int(min(budget, 16384)),
            memory_utilization=MLPERF_MEMORY_SHARE,
        )  # fmt: skip
        return budget, slots, float(kv.tokens)

    def requests(self, folder: Path) -> tuple[FloatArray, FloatArray]:
        """(input, output) tokens of the data set's requests as they were generated, shape (requests,)."""
        mean = float(self.row["mean_output_tokens"])
        prompts, outputs = request_lengths(folder / self.row["lengths"], mean)
        outputs = np.minimum(outputs, LIFE_LIMITS.get(self.model.name, np.inf))
        return prompts, outputs * (mean / outputs.mean())

    def run_share(
        self, parallel: Parallelism, folder: Path, samples_per_s: float, constants: Mapping[str, float] = CONSTANTS
    ) -> float:
        """Throughput of the Offline run over the steady one [1]."""
        path, mean = folder / self.row["lengths"], float(self.row["mean_output_tokens"])
        prompts, outputs = self.requests(folder)
        budget, slots, kv = self.replica(parallel)
        model = roofline(self.gpu, self.model, parallel, engine=self.engine, constants=constants)
        steady = offline_rate(model, lengths(path, mean), budget, slots, kv)
        if steady <= 0.0:
            return 1.0
        per_copy = samples_per_s * parallel.gpus / parallel.copies / float(self.row["n_gpus"])
        lasts = prompts.size / samples_per_s
        if lasts < MLPERF_RUN_S:
            # so long is a request in a full batch, by Little's law
            life = min(slots, kv / lengths(path, mean).context) / steady * outputs.max() / mean
            lasts = max(MLPERF_RUN_S, LIVES * life)
        return run_share(model, prompts, outputs, lasts * per_copy, steady, budget, slots, kv)


def mlperf_rows(folder: Path, file: str) -> Iterator[MlperfRow]:
    """Closed-division results whose GPU has a data sheet here."""
    for row in table(folder / file):
        with skipping(f"{file}: {row.get('entry')}"):
            if row["disaggregated"] == "1":
                continue
            try:
                device = public_gpu(row["gpu"], folder)
            except InputError:
                continue
            name = row["engine"].lower()
            # what names neither is a build of TensorRT-LLM on NVIDIA and of vLLM on AMD
            by_vllm = "vllm" in name or "sglang" in name or device.gpu_class == "amd"
            engine = _vllm_build(row) if by_vllm else "trtllm_offline"
            spec = find_model(row["model"])
            if spec.weight_dtype != "mxfp4":
                spec = replace(spec, weight_dtype="fp4" if row["precision"] == "mxfp4" else row["precision"])
                if spec.name in MOSTLY_FP8 and spec.weight_dtype == "fp4":
                    spec = replace(spec, weight_dtype="fp8")
                # published 4-bit checkpoints leave attention alone
                if spec.kv_lora_rank and spec.weight_dtype == "fp4":
                    spec = replace(spec, dense_dtype="fp8")
            spec = replace(spec, kv_dtype=row["kv_dtype"] if row["kv_dtype"] in ("fp8", "bf16", "fp16") else "fp8")
            yield MlperfRow(row, device, spec, engine, tuple(_spreads(row, spec, device)))


def _vllm_build(row: dict[str, str]) -> str:
    """vLLM with the version a result names; those of v6.0 that name none run as the others of that round."""
    named = re.search(r"vllm v?(\d+\.\d+)", row["engine"].lower())
    if not named and row["round"] < "v6.0":
        return "vllm_offline"
    return f"vllm_offline@{named[1] if named else OF_V60}"


def _spreads(row: dict[str, str], model: ModelSpec, gpu: GpuSpec) -> Iterator[Parallelism]:
    """How the replica may have been spread: as published, else every way that fits the memory."""
    gpus = int(float(row["n_gpus"]))
    if row["attention_dp"] == "1":
        yield Parallelism(1, 1, int(row["tp"]))
    elif row["tp"]:
        yield Parallelism(int(row["tp"]), int(row["pp"] or 1))
    elif ONE_SERVER in row["system"] and "vllm" in row["engine"].lower():
        yield Parallelism(gpus)
    else:
        found = False
        for tp in (1, 2, 4, 8):
            if tp <= max(gpus, 1) and model.q_heads % tp == 0:
                room = kv_capacity(model, gpu, tp, max_num_seqs=128, memory_utilization=MLPERF_MEMORY_SHARE)
                if room.kv_bytes > 0.1 * gpu.memory_bytes:
                    found = True
                    yield Parallelism(tp)
        if not found:
            yield Parallelism(8)


def mlperf_cases(data: Path, constants: Mapping[str, float] = CONSTANTS) -> Iterator[Case]:
    """MLPerf Offline, one case per system, model and settings; what the ends of a run cost is that with `constants`."""
    folder = data / "real" / "mlperf"
    seen: dict[tuple[object, ...], list[MlperfRow]] = {}
    for entry in mlperf_rows(folder, "offline.csv"):
        row = entry.row
        key = (entry.cell, entry.engine, *(row[k] for k in ("tp", "pp", "attention_dp", "max_seqs", "token_budget")))
        seen.setdefault(key, []).append(entry)
    for key, entries in seen.items():
        with skipping(entries[0].cell):
            first = entries[0]
            measured = np.array([float(e.row["samples_per_s"]) / float(e.row["n_gpus"]) for e in entries])
            path, mean = folder / first.row["lengths"], float(first.row["mean_output_tokens"])
            law = lengths(path, mean)
            for parallel in first.parallel:
                # what the ends of the run cost hardly moves with the constants
                share = first.run_share(parallel, folder, float(first.row["samples_per_s"]), constants)
                yield Case(
                    "mlperf", first.cell, first.gpu, first.model, parallel, first.engine,
                    _mlperf_ratio(first, parallel, law, measured, share), repr(key),
                )  # fmt: skip


def _mlperf_ratio(
    entry: MlperfRow, parallel: Parallelism, law: Lengths, measured: FloatArray, share: float
) -> Callable[[IterationModel], FloatArray]:
    budget, slots, kv = entry.replica(parallel)
    logs = np.log(measured) - math.log(share)
    return lambda m: np.log(offline_rate(m, law, budget, slots, kv) * parallel.copies / parallel.gpus) - logs


def rate_cases(data: Path) -> Iterator[Case]:
    """Mean TPOT of MLPerf Server and Interactive runs at the rates sent, with so many running as were measured; published
    spreads."""
    folder = data / "real" / "mlperf"
    seen: dict[tuple[object, ...], list[MlperfRow]] = {}
    for entry in mlperf_rows(folder, "server.csv"):
        row = entry.row
        if row["tp"] or row["attention_dp"] == "1":
            settings = (row[k] for k in ("scenario", "tp", "pp", "attention_dp", "max_seqs", "token_budget"))
            seen.setdefault((entry.cell, entry.engine, *settings), []).append(entry)
    for entries in seen.values():
        first = entries[0]
        parallel = first.parallel[0]
        path = folder / first.row["lengths"]
        for entry in entries[:4]:
            row = entry.row
            law = lengths(path, float(row["mean_output_tokens"]))
            # the logs of v6.0 have no mean TPOT, but those of the answer and of its first token
            tpot = float(row["tpot_mean_s"] or (float(row["latency_mean_s"]) - float(row["ttft_mean_s"])) / law.steps)
            per_copy = float(row["scheduled_per_s"]) / float(row["n_gpus"]) * parallel.gpus / parallel.copies
            yield Case(
                "rates", f"{first.cell} {row['scenario']}", first.gpu, first.model, parallel, first.engine,
                _rate_ratio(law, per_copy, tpot),
            )  # fmt: skip


def _rate_ratio(law: Lengths, per_s: float, tpot_s: float) -> Callable[[IterationModel], FloatArray]:
    n = max(per_s * law.steps * tpot_s, 1.0)
    context = law.kv / max(law.steps, 1e-9)
    started = per_s * tpot_s
    share = -math.expm1(-started)

    def ratio(m: IterationModel) -> FloatArray:
        alone = m.time(n, n * context)
        beside = m.time(n, n * context, started * law.prompt / share, started * law.pairs / share)
        return np.array([math.log((1.0 - share) * alone + share * beside) - math.log(tpot_s)])

    return ratio
