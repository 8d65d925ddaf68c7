"""MLPerf Inference: Offline throughput, the largest Server and Interactive rate, and latencies of mixtures at stated rates.

Offline is predicted from the data sheet. A Server's rate is predicted from the same system's Offline result by one scale of all
times, in the settings each was run with. Runs at a stated rate (`real/mlperf61`) are predicted from the data sheet alone; their
settings are those of the same GPU, model and scenario of `real/mlperf` where it has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.mlperf_data import (
    LIVES,
    MlperfRow,
    lengths,
    mlperf_cases,
    mlperf_rows,
    offline_rate,
    public_gpu,
)
from benchmarks.accuracy.rows import Pair
from benchmarks.accuracy.serving import FloatArray, Load, quantile, random, skipping, table, through
from planner.machine.engines import engine as find_engine
from planner.machine.hardware import Parallelism
from planner.machine.iteration import IterationModel
from planner.machine.roofline import prior_band, roofline
from planner.predict.records import Replicas

RUN_S = 600.0
"""A run lasts so long at least, and takes its data set once [s]."""
WIDER = 1.25
"""How much longer than :data:`LIVES` of its longest answer a run is made, as answers take longer in a fuller batch; the first and
the last of these lives are not judged."""
MOST = 20_000
"""Requests of a replay at most."""
TIMES = ("t0", "w", "b", "c", "g", "h", "e", "a", "x", "w_experts", "h_m", "e_m")
STEPS = 9
GATHERS: Mapping[str, tuple[int, int]] = {"trtllm_offline": (2, 14)}
"""Iterations from one begin of prompts to the next, and with copies of the attention: TensorRT-LLM plans an iteration while the one
before runs, and in NVIDIA's harness copies wait for each other's prompts (``adp_balancing_enable``). TTFT P99 of its systems that
are not at a limit is 3.4 to 4.5 iterations, and 10.6 to 18.3 of DeepSeek-R1 on B200, B300, GB200 and GB300 (median 16.4)."""
MODELS_61 = {"deepseek-r1": "deepseek-v3", "llama2-70b-99.9": "llama-2-70b"}


def scaled(model: IterationModel, factor: float) -> IterationModel:
    """All times of an iteration longer by a factor."""
    return replace(model, **{name: getattr(model, name) * factor for name in TIMES})


def offline(data: Path) -> Iterator[Pair]:
    """Throughput; of the ways to spread a model that a source leaves open, the fastest predicted one."""
    best: dict[str, tuple[float, Case, FloatArray]] = {}
    for case in mlperf_cases(data):
        logs = np.atleast_1d(case.log_ratio(roofline(case.gpu, case.model, case.parallel, engine=case.engine)))
        if case.system not in best or logs.mean() > best[case.system][0]:
            best[case.system] = float(logs.mean()), case, logs
    for _, case, logs in best.values():
        band = prior_band(case.gpu, case.model, case.engine)
        for log in logs:
            yield Pair("mlperf_offline", "throughput", case.cell, math.exp(log), 1.0, band, case.cell)


@dataclass(frozen=True, slots=True)
class Served:
    """A system under Poisson arrivals.

    Parameters
    ----------
    replica
        One of its copies.
    copies
        Copies of the whole system, served in turn: each gets every so many-th request of a Poisson process.
    prompt, output
        Lengths of the data set's requests [tokens], shape (requests,).
    """

    replica: Replicas
    copies: float
    prompt: FloatArray
    output: FloatArray

    def at(self, rate_per_s: float) -> tuple[FloatArray, FloatArray]:
        """TTFT and TPOT in a long run at that rate of the whole system, of requests with a full batch about them [s]."""
        rate = rate_per_s / self.copies
        span = max(RUN_S, self.prompt.size / rate_per_s)
        while True:
            count = int(np.clip(span * rate, 200, MOST))
            rows = np.resize(random(1).permutation(self.prompt.size), count)
            arrivals = np.cumsum(random(2).gamma(self.copies, 1.0 / (self.copies * rate), count))
            run = through(Load(arrivals, self.prompt[rows], self.output[rows]), self.replica)
            life = float(np.nanmax(run.done_s - run.first_s))
            if span >= LIVES * life or count == MOST:
                break
            span = LIVES * life * WIDER
        edge = min(life, 0.4 * arrivals[-1])
        inside = (arrivals >= edge) & (arrivals <= arrivals[-1] - edge)
        steps = np.maximum(np.rint(self.output[rows]), 1.0) - 1.0
        several = inside & (steps > 0.0)
        return run.ttft_s[inside], ((run.done_s - run.first_s)[several] / steps[several])

    def largest_rate(self, guess_per_s: float, ttft_limit_s: float, tpot_limit_s: float) -> float:
        """Rate at which P99 of TTFT or TPOT reaches its limit, within an eighth and eight times the guess [1/s]."""
        low, high = math.log(guess_per_s / 8.0), math.log(guess_per_s * 2.0)
        for _ in range(STEPS):
            middle = 0.5 * (low + high)
            ttft, tpot = (quantile(times, 0.99) for times in self.at(math.exp(middle)))
            low, high = (middle, high) if ttft <= ttft_limit_s and tpot <= tpot_limit_s else (low, middle)
        return math.exp(0.5 * (low + high))


def served(entry: MlperfRow, folder: Path, parallel: Parallelism, scale: float = 1.0) -> Served:
    """A system of an entry's settings."""
    row = entry.row
    prompt, output = entry.requests(folder)
    budget, slots, kv = entry.replica(parallel)
    host = find_engine(entry.engine.replace("_offline", ""))
    model = scaled(roofline(entry.gpu, entry.model, parallel, engine=entry.engine), scale)
    copies = max(float(row["n_gpus"]) * parallel.copies / parallel.gpus, 1.0)
    gather = GATHERS.get(entry.engine, (1, 1))[parallel.dp > 1]
    return Served(
        Replicas(1, model, slots, budget, kv, request_s=host.request_s, gather=gather), copies, prompt, output
    )


def fastest(entry: MlperfRow, folder: Path) -> tuple[float, Parallelism]:
    """Offline rate per GPU in the entry's settings, of the spreads its source leaves open the fastest [1/s]."""
    law = lengths(folder / entry.row["lengths"], float(entry.row["mean_output_tokens"]))
    choices = []
    for parallel in entry.parallel:
        model = roofline(entry.gpu, entry.model, parallel, engine=entry.engine)
        rate = offline_rate(model, law, *entry.replica(parallel)) * parallel.copies / parallel.gpus
        choices.append((rate * entry.run_share(parallel, folder, float(entry.row["samples_per_s"])), parallel))
    return max(choices, key=lambda choice: choice[0])


def server(data: Path) -> Iterator[Pair]:
    """Server and Interactive rates; of equal systems one is replayed."""
    folder = data / "real" / "mlperf"
    paired = {entry.row["entry"]: entry for entry in mlperf_rows(folder, "offline.csv")}
    seen: dict[tuple[object, ...], float] = {}
    for entry in mlperf_rows(folder, "server.csv"):
        with skipping(entry.cell):
            row = entry.row
            if row["offline_entry"] not in paired:
                continue
            other = paired[row["offline_entry"]]
            measured = float(row["scheduled_per_s"]) / float(row["n_gpus"])
            offline_per_gpu = float(other.row["samples_per_s"]) / float(other.row["n_gpus"])
            settings = [
                e.row[k] for e in (entry, other) for k in ("tp", "pp", "attention_dp", "max_seqs", "token_budget")
            ]
            key = (entry.cell, row["scenario"], *settings, round(math.log(offline_per_gpu), 1))
            if key not in seen:
                scale = fastest(other, folder)[0] / offline_per_gpu
                _, parallel = fastest(entry, folder)
                limits = float(row["ttft_limit_s"]), float(row["tpot_limit_s"])
                system = served(entry, folder, parallel, scale)
                seen[key] = system.largest_rate(float(row["scheduled_per_s"]), *limits) / float(row["n_gpus"])
            family = f"mlperf_{row['scenario'].lower()}"
            yield Pair(family, "largest_rate", f"{entry.cell} {row['scenario']}", seen[key], measured, cell=entry.cell)


def stated(data: Path) -> Iterator[Pair]:
    """Mixtures at the rates of MLPerf v6.1: TPOT and TTFT there, and the largest rate."""
    known = list(mlperf_rows(data / "real" / "mlperf", "server.csv")) if (data / "real" / "mlperf").is_dir() else []
    for row in table(data / "real" / "mlperf61" / "server.csv"):
        with skipping(f"v6.1 {row.get('system')}"):
            name = MODELS_61.get(row["model"], row["model"])
            if not row["scheduled_per_s"]:
                continue
            entry = _like(row, name, known, data / "real" / "mlperf")
            if entry is None or not entry.model.experts:
                continue
            _, parallel = fastest(entry, data / "real" / "mlperf")
            system = served(entry, data / "real" / "mlperf", parallel)
            rate = float(row["scheduled_per_s"])
            ttft, tpot = system.at(rate)
            label = f"{row['gpu']} {name} {row['scenario']} {parallel}"
            band = prior_band(entry.gpu, entry.model, entry.engine)
            yield Pair("moe_rate", "tpot_mean", label, float(tpot.mean()), 1e-3 * float(row["tpot_mean_ms"]), band)
            yield Pair("moe_rate", "ttft_p99", label, quantile(ttft, 0.99), 1e-3 * float(row["ttft_p99_ms"]), band)
            limits = [1e-3 * float(row[f"limit_{m}_ms"]) for m in ("ttft", "tpot")]
            yield Pair("moe_rate", "largest_rate", label, system.largest_rate(rate, *limits), rate, band)


def _like(row: dict[str, str], name: str, known: Sequence[MlperfRow], folder: Path) -> MlperfRow | None:
    """A result of the same GPU, model and scenario, or of the same model on another, as the settings of one that tells none."""
    device = public_gpu(row["gpu"].replace(" ", "-"), folder)
    same = [e for e in known if e.model.name == name and e.row["scenario"] == row["scenario"]]
    same = [e for e in same if e.gpu.name == device.name] or same
    if not same:
        return None
    entry = max(same, key=lambda e: (e.row.get("round", ""), bool(e.row["tp"])))
    mean = float(row["out_tokens_per_s"]) / float(row["completed_per_s"])
    told = {"n_gpus": row["gpus"], "mean_output_tokens": f"{mean:.1f}", "samples_per_s": row["completed_per_s"]}
    return replace(entry, row=entry.row | told, gpu=device)
