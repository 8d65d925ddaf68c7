"""Public measurements of kernels and servers as cases with a prediction, for the fit of the estimate's constants and its errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.serving import table
from planner.calibrate.closed_loop import DEFAULT_BUDGET, ServerPoint
from planner.calibrate.files import read_measurements
from planner.calibrate.points import Points
from planner.calibrate.servers import faster_than_hardware, hardware_limit
from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.machine.hardware import GpuSpec, ModelSpec, Parallelism
from planner.machine.iteration import IterationModel

FloatArray = NDArray[np.float64]

OPEN_LOOP = ("v1", "v1-prefix-cache")
OPEN_LOOP_COLUMNS = ("input_tokens", "output_tokens", "completed_per_s", "tpot_mean_s")


@dataclass(frozen=True)
class Case:
    """One measured system and what the model says of it.

    Parameters
    ----------
    data
        ``"kernels"``, ``"servers"``, ``"mlperf"`` (Offline), ``"rates"`` (Server and Interactive), ``"mixtures"`` or ``"prompts"``.
    cell
        What it is scored as: rows of one cell are not independent.
    gpu, model, parallel, engine
        The system; `engine` is ``None`` for kernels.
    log_ratio
        From the iteration-time model to log(predicted/measured) of its points, shape (points,).
    steps
        Decode steps of a request, over which the host's work on it is spread; 0 = no requests.
    prompts
        Which of its points are prompts alone, shape (points,); ``None`` = none, or (data ``"prompts"``) all.
    alone
        Whether one GPU's share was measured without the group's all-reduces.
    system
        Cases of one system are ways of spreading the model that the source leaves open: the fastest counts.
    """

    data: str
    cell: str
    gpu: GpuSpec
    model: ModelSpec
    parallel: Parallelism
    engine: str | None
    log_ratio: Callable[[IterationModel], FloatArray]
    system: str = ""
    steps: float = 0.0
    alone: bool = False
    prompts: NDArray[np.bool_] | None = None


NO_ALLREDUCE: Mapping[str, float] = {"allreduce_s": 0.0, "link": math.inf}
"""Constants of a tensor-parallel share that was measured by itself."""


def kernel_cases(data: Path) -> Iterator[Case]:
    """Iterations composed from measured kernels; mixed batches of the interference set are another question."""
    paths = (data / "calibration" / "kernels.csv", data / "real" / "interference" / "iterations.csv")
    for number, path in enumerate(paths):
        groups = read_measurements([path]).iterations if path.is_file() else {}
        for (gpu_name, model_name, tp), points in groups.items():
            keep = ("decode", "prefill") if number else ("decode", "prefill", "mixed")
            kept = points.select(i for i, kind in enumerate(points.kinds) if kind in keep)
            if number:  # the same kernels again and again: one weight per kind of batch is enough
                kept = kept.select(range(0, len(kept), max(1, len(kept) // 60)))
            yield Case(
                "kernels", f"{gpu_name} {model_name} tp{tp}", find_gpu(gpu_name), find_model(model_name), Parallelism(int(tp)),
                None, _kernel_ratio(kept), alone=number == 1, prompts=np.array(kept.kinds) == "prefill",
            )  # fmt: skip


def _kernel_ratio(points: Points) -> Callable[[IterationModel], FloatArray]:
    columns = points.columns
    measured = np.log(points.time_s)
    # mixed batches there were added up from separate kernels
    return lambda model: np.log(model.additive.time(*columns)) - measured


def server_system(key: tuple[str, ...]) -> tuple[GpuSpec, ModelSpec, Parallelism, str]:
    """What the columns of a table of servers say: GPU, model as served, tensor parallelism, engine."""
    name, system, engine, _version, precision, tp = key
    spec = find_model(name)
    if precision and spec.weight_dtype == "bf16":
        spec = find_model(name, weight_dtype=precision)
        if engine == "trtllm" and precision in ("fp8", "fp4"):
            spec = replace(spec, kv_dtype="fp8")
    return find_gpu(system), spec, Parallelism(int(float(tp or 1))), engine


def possible(points: Sequence[ServerPoint], gpu: GpuSpec, model: ModelSpec, tp: int) -> list[ServerPoint]:
    """The points that the data sheet allows; a server that is faster did not do the work (see the planner's own check)."""
    needed = faster_than_hardware(points, hardware_limit(gpu, model, tp))
    return [p for p, share in zip(points, needed, strict=True) if share <= 1.0]


def server_cases(data: Path) -> Iterator[Case]:
    """Mean TPOT of closed-loop servers."""
    path = data / "calibration" / "servers.csv"
    for key, points in (read_measurements([path]).servers if path.is_file() else {}).items():
        device, spec, parallel, engine = server_system(key)
        points = possible(points, device, spec, parallel.tp)
        if not points:
            continue
        cell = f"{key[1]} {key[0]} {engine} {key[4] or 'bf16'} tp{parallel.tp}"
        steps = float(np.median([max(p.output_tokens - 1.0, 1.0) for p in points]))
        yield Case("servers", cell, device, spec, parallel, engine, _server_ratio(points), steps=steps)


def _server_ratio(points: list[ServerPoint]) -> Callable[[IterationModel], FloatArray]:
    measured = np.log(np.array([p.tpot_s for p in points]))
    return lambda model: np.log(closed_loop_tpots(model, points)) - measured


def open_loop_cases(data: Path) -> Iterator[Case]:
    """Mean TPOT of one vLLM server under open-loop load, its stages that are not overloaded; speculation and V0 left out."""
    found: dict[str, list[dict[str, str]]] = {}
    path = data / "real" / "openloop" / "constant_rate_stages.csv"
    for row in table(path):
        if row["overloaded"] == "0" and row["setting"] in OPEN_LOOP:
            found.setdefault(row["setting"], []).append(row)
    for setting, rows in found.items():
        column = {key: np.array([float(r[key]) for r in rows]) for key in OPEN_LOOP_COLUMNS}
        steps = column["output_tokens"] - 1.0
        # running sequences by Little's law, as measured
        n = column["completed_per_s"] * steps * column["tpot_mean_s"]
        cached = 192.0 if rows[0]["prefix_caching"] == "1" else 0.0
        yield Case(
            "servers", f"h100_sxm llama-3.1-8b vllm bf16 tp1 {setting}", find_gpu("h100"), find_model("llama-3.1-8b"),
            Parallelism(1), "vllm", _open_loop_ratio(column, n, steps, cached), steps=float(steps.mean()),
        )  # fmt: skip


def _open_loop_ratio(
    column: dict[str, FloatArray], n: FloatArray, steps: FloatArray, cached: float
) -> Callable[[IterationModel], FloatArray]:
    length = column["input_tokens"]
    new = length - cached
    pairs = new * (cached + 0.5 * (new + 1.0))
    measured = np.log(column["tpot_mean_s"])

    def ratio(m: IterationModel) -> FloatArray:
        started = n / steps
        share = np.minimum(1.0, started)
        kv = n * (length + 0.5 * steps)
        alone = m.time(np.maximum(n, 1.0), np.maximum(n, 1.0) * (length + 0.5 * steps))
        beside = m.time(n, kv, started * new / share, started * pairs / share)
        log: FloatArray = np.log((1.0 - share) * alone + share * beside) - measured
        return log

    return ratio


def closed_loop_tpots(m: IterationModel, points: list[ServerPoint]) -> FloatArray:
    """Mean TPOT of closed loops of equal requests, shape (points,) [s].

    Of C requests in flight C D/(D + TTFT) decode, D the time of their decode steps: the measured TTFT says how many.
    """
    isl = np.array([p.input_tokens for p in points])
    steps = np.maximum(np.array([p.output_tokens for p in points]) - 1.0, 1.0)
    tpot = np.array([p.tpot_s for p in points])
    ttft = np.array([p.ttft_s or 0.0 for p in points])
    decoding_s = steps * tpot
    n = np.maximum(np.array([p.concurrency for p in points]) * decoding_s / (decoding_s + ttft), 1.0)
    started = np.maximum(n - 1.0, 1e-9) / steps  # prompts of others that start per iteration
    share = np.minimum(1.0, started * np.ceil(isl / DEFAULT_BUDGET))
    kv = n * (isl + 0.5 * steps)
    pairs = 0.5 * isl * (isl + 1.0)
    alone = m.time(n, kv)
    with_prompt = m.time(n, kv, started * isl / share, started * pairs / share)
    mixed: FloatArray = (1.0 - share) * alone + share * with_prompt
    return mixed
