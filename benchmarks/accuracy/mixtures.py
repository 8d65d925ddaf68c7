"""Mixtures of experts at moderate batches: decode pools of `real/pd`, spread experts of `real/moe_closed_loop`.

How many sequences were running is taken from what was measured, so that these are errors of an iteration's time alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.accuracy.cases import Case, closed_loop_tpots
from benchmarks.accuracy.rows import Pair
from benchmarks.accuracy.serving import FloatArray, Load, completed_per_s, quantile, skipping, table, through, tpot_s
from planner.calibrate.closed_loop import DEFAULT_BUDGET, ServerPoint
from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.catalog.kv import kv_capacity
from planner.catalog.profiles import estimated_profile
from planner.machine.engines import engine as find_engine
from planner.machine.hardware import GpuSpec, ModelSpec, Parallelism
from planner.machine.iteration import IterationModel
from planner.machine.roofline import prior_band
from planner.predict.records import Replicas

QUEUED = 0.5
"""Share of a request's life before its first token from which on its server was out of room, and says nothing of iterations."""


@dataclass(frozen=True, slots=True)
class Workers:
    """A row of the P:D runs: closed loop of `concurrency` requests over prefill and decode workers.

    Parameters
    ----------
    prefills, decodes, tp
        Workers of each kind and GPUs of one.
    concurrency, requests
        In flight; of the run.
    input_tokens, output_tokens
        Means [tokens]; the output longest possible is `most_output`, the median of the means at that shape `usual_output`.
    row
        As published.
    """

    prefills: int
    decodes: int
    tp: int
    concurrency: int
    requests: int
    input_tokens: float
    output_tokens: float
    most_output: float
    usual_output: float
    row: dict[str, str]

    @property
    def cell(self) -> str:
        """Shape and load."""
        return f"{self.row['isl']}/{self.row['osl']} x{self.concurrency}"

    @property
    def broken(self) -> bool:
        """Whether many of its requests failed."""
        return self.output_tokens < SHORTEST * self.usual_output

    @property
    def answers(self) -> FloatArray:
        """Lengths of its answers, rising, shape (requests,) [tokens].

        They end where they end, and at the longest allowed at the latest: of what has that mean the law of the largest entropy, an
        exponential cut at the longest.
        """
        level, low, high = (np.arange(self.requests) + 0.5) / self.requests, -100.0, 700.0
        for _ in range(60):
            fall = 0.5 * (low + high) or 1e-9
            share = -np.log1p(level * np.expm1(-fall)) / fall
            low, high = (fall, high) if share.mean() * self.most_output > self.output_tokens else (low, fall)
        return np.maximum(np.rint(share * self.most_output), 1.0)

    @property
    def context(self) -> float:
        """Mean context of a sequence that decodes: long answers are met more often [tokens]."""
        lengths = self.answers
        return self.input_tokens + 0.5 * float((lengths**2).sum() / lengths.sum())

    @property
    def decoding(self) -> float:
        """Sequences a decode worker had running as its tokens saw it: between those of a full loop and the run's mean."""
        steps_s = (self.output_tokens - 1.0) * 1e-3 * float(self.row["mean_tpot_ms"])
        full = self.concurrency * steps_s / (steps_s + 1e-3 * float(self.row["mean_ttft_ms"]))
        over_all = self.requests * steps_s / float(self.row["duration"])
        return max(0.5 * (full + over_all) / self.decodes, 1.0)


def ratio_runs(data: Path) -> Iterator[Workers]:
    """The runs at several P:D ratios; eight GPUs, so that a worker has all that its ratio leaves it."""
    rows = list(table(data / "real" / "pd" / "ratio.csv"))
    means: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        with skipping("ratio.csv"):
            means.setdefault((row["model_id"], row["isl"], row["osl"]), []).append(
                int(row["total_output_tokens"]) / int(row["completed"])
            )
    for row in rows:
        with skipping("ratio.csv"):
            prefills, decodes, done = int(row["prefill"]), int(row["decode"]), int(row["completed"])
            yield Workers(
                prefills, decodes, 8 // (prefills + decodes), int(row["conc"]), done,
                int(row["total_input_tokens"]) / done, int(row["total_output_tokens"]) / done, float(row["osl"]),
                float(np.median(means[row["model_id"], row["isl"], row["osl"]])), row,
            )  # fmt: skip


SHORTEST = 0.75
"""Mean answer of a P:D run, over the median of those to the same prompts, below which many of its requests must have failed: three
of 33, with 36, 6,728 and 7,275 tokens where five others have 11,035 to 12,136. All others are within .91 and 1.24."""
PREFILL_TOKENS_PER_S = 33_821.0
"""Prompt tokens/s of a TP1 H200 of the fleet of rate45.csv (README of `real/pd`)."""
RATIO = ("h200", "sglang")
LADDER = ("h200", "vllm@0.27.1")


def served(gpu: str, model: str, tp: int | Parallelism) -> tuple[GpuSpec, ModelSpec, Parallelism]:
    """What runs on what; gpt-oss keeps its cache in 16 bits."""
    return find_gpu(gpu), find_model(model), tp if isinstance(tp, Parallelism) else Parallelism(tp)


def _ratio(n: float, context: float, measured_s: float) -> Callable[[IterationModel], FloatArray]:
    return lambda m: np.log(np.atleast_1d(m.time(np.array([n]), np.array([n * context])))) - np.log(measured_s)


def _prompt_ratio(prompt: float, tokens_per_s: float) -> Callable[[IterationModel], FloatArray]:
    """Prompts of one length, one after the other in chunks of a budget."""
    chunks = max(round(prompt / DEFAULT_BUDGET), 1)
    begins = prompt / chunks * np.arange(chunks)
    new = np.full(chunks, prompt / chunks)
    pairs = new * (begins + 0.5 * (new + 1.0))
    return lambda m: np.log(np.atleast_1d(prompt / m.time(0.0, 0.0, new, pairs).sum() / tokens_per_s))


def prompt_cases(data: Path) -> Iterator[Case]:
    """Prompt tokens a prefill worker computes where decode workers wait for it, log(predicted/measured) of the rate."""
    for run in ratio_runs(data):
        with skipping(run.cell):
            steps_s = (run.output_tokens - 1.0) * float(run.row["mean_tpot_ms"])
            waits = float(run.row["mean_ttft_ms"]) > QUEUED * (steps_s + float(run.row["mean_ttft_ms"]))
            if run.prefills >= run.decodes or not waits:
                continue
            device, network, parallel = served(RATIO[0], run.row["model_id"].split("/")[-1], run.tp)
            rate = run.requests * run.input_tokens / float(run.row["duration"]) / run.prefills
            name = f"{network.name} {device.name} TP{run.tp} {run.prefills}P{run.decodes}D {run.cell}"
            yield Case("prompts", name, device, network, parallel, RATIO[1], _prompt_ratio(run.input_tokens, rate))
    for row in table(data / "real" / "pd" / "rate45.csv"):
        with skipping("rate45.csv"):
            device, network, parallel = served(LADDER[0], "gpt-oss-120b", 1)
            ratio = _prompt_ratio(float(row["input_tokens"]), PREFILL_TOKENS_PER_S)
            name = f"{network.name} {device.name} TP1 prompts"
            yield Case("prompts", name, device, network, parallel, LADDER[1], ratio)


def mixture_cases(data: Path) -> Iterator[Case]:
    """Decode steps of mixtures at known batches, a cell per system and shape."""
    yield from prompt_cases(data)
    for run in ratio_runs(data):
        with skipping(run.cell):
            if run.broken:
                continue
            device, network, parallel = served(RATIO[0], run.row["model_id"].split("/")[-1], run.tp)
            ratio = _ratio(run.decoding, run.context, 1e-3 * float(run.row["mean_tpot_ms"]))
            name = f"{network.name} {device.name} TP{run.tp} {run.prefills}P{run.decodes}D {run.cell}"
            yield Case("mixtures", name, device, network, parallel, RATIO[1], ratio)
    for row in table(data / "real" / "pd" / "rate45.csv"):
        with skipping("rate45.csv"):
            device, network, parallel = served(LADDER[0], "gpt-oss-120b", 4)
            output, prompt = float(row["output_tokens"]), float(row["input_tokens"])
            tpot = (float(row["e2e_mean_s"]) - float(row["ttft_mean_s"])) / (output - 1.0)
            running = float(row["achieved_per_s"]) * (output - 1.0) * tpot / 2.0
            ratio = _ratio(running, prompt + 0.5 * output, tpot)
            name = f"{network.name} {device.name} 2xTP4 {row['rate']}/s"
            yield Case("mixtures", name, device, network, parallel, LADDER[1], ratio)
    for file, row in closed_loops(data):
        with skipping(file):
            device, network, parallel = spread_system(row)
            shape = f"{row['input_tokens']}/{row['output_tokens']} x{row['concurrency']}"
            name = f"{network.name} {device.name} {parallel} {shape}"
            if float(row["ttft_median_s"]) > QUEUED * float(row["e2e_median_s"]):
                yield Case("prompts", name, device, network, parallel, "vllm", _loop_ratio(row))
                continue
            prompt, output, size = (float(row[k]) for k in ("input_tokens", "output_tokens", "concurrency"))
            point = ServerPoint(prompt, output, size, _mean_tpot_s(row), float(row["ttft_median_s"]))
            yield Case("mixtures", name, device, network, parallel, "vllm", _spread_ratio(point), steps=output - 1.0)


def closed_loops(data: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The closed loops on spread experts, by file; the first week's engine was not warm."""
    for file in sorted((data / "real" / "moe_closed_loop").glob("*.csv")):
        yield from ((file.name, row) for row in table(file) if file.stem != "first_week")


def _mean_tpot_s(row: dict[str, str]) -> float:
    """Mean TPOT of a closed loop by Little's law, half of whose last requests in flight find their place empty [s].

    The medians are no iterations: TPOT of these loops lies in two heaps, so that it falls by a third from 32 to 48 in flight while
    answers take as long.
    """
    size, count = float(row["concurrency"]), float(row["prompts"])
    e2e = size * float(row["duration_s"]) / (count + 0.5 * size)
    return (e2e - float(row["ttft_median_s"])) / (float(row["output_tokens"]) - 1.0)


def _spread_ratio(point: ServerPoint) -> Callable[[IterationModel], FloatArray]:
    return lambda m: np.log(closed_loop_tpots(m, [point])) - np.log(point.tpot_s)


def _loop_ratio(row: dict[str, str]) -> Callable[[IterationModel], FloatArray]:
    """Throughput of a closed loop that prompts fill: iterations of whole budgets."""
    prompt, steps = float(row["input_tokens"]), float(row["output_tokens"]) - 1.0
    size, measured = float(row["concurrency"]), math.log(float(row["requests_per_s"]))
    begun = min(DEFAULT_BUDGET / (prompt + steps), size / (steps + 1.0 + prompt / DEFAULT_BUDGET))
    n, context, pairs = begun * steps, prompt + 0.5 * steps, 0.5 * prompt * (prompt + 1.0)
    return lambda m: np.array([math.log(begun / m.time(n, n * context, begun * prompt, begun * pairs)) - measured])


def spread_system(row: dict[str, str]) -> tuple[GpuSpec, ModelSpec, Parallelism]:
    """A system of the closed loops on eight H200: ``tp8`` cuts the experts, ``tep8`` spreads them, ``dep8`` copies attention."""
    how, count = row["parallel"].rstrip("0123456789"), int(row["parallel"].lstrip("adeprtx"))
    parallel = {"tep": Parallelism(count, ep=count), "dep": Parallelism(dp=count)}.get(how, Parallelism(count))
    return find_gpu(row.get("gpu") or "h200"), find_model(row["model"]), parallel


def decode(data: Path) -> Iterator[Pair]:
    """TPOT of decode pools, and of spread experts, at the batches that were measured."""
    for case in mixture_cases(data):
        if case.data != "mixtures":
            continue
        profile = estimated_profile(case.gpu, case.model, case.parallel, case.engine or "vllm")
        model = profile.iteration
        if case.steps:
            model = model.with_requests(find_engine(case.engine or "vllm").request_s, case.steps, 1.0)
        band = prior_band(case.gpu, case.model, case.engine)
        yield Pair("moe_decode", "tpot", case.cell, float(np.exp(case.log_ratio(model)[0])), 1.0, band)


def spread(data: Path) -> Iterator[Pair]:
    """Closed loops on whole experts spread over GPUs: TPOT, TTFT and throughput of the whole loop."""
    for file, row in closed_loops(data):
        with skipping(file):
            device, network, parallel = spread_system(row)
            profile = estimated_profile(device, network, parallel)
            kv = kv_capacity(network, device, parallel, max_num_seqs=1024, token_budget=8192)
            server = Replicas(1, profile.iteration, 1024.0, 8192.0, float(kv.tokens), request_s=profile.request_s)
            size, output = int(row["prompts"]), float(row["output_tokens"])
            load = Load(np.zeros(size), float(row["input_tokens"]), output)
            run = through(load, server, in_flight=float(row["concurrency"]))
            name = f"{network.name} {parallel} {row['input_tokens']}/{row['output_tokens']} x{row['concurrency']}"
            rates = completed_per_s(run), float(row["requests_per_s"])
            yield Pair("experts_spread", "requests_per_s", name, *rates, profile.band)
            e2e = quantile(run.e2e_s, 0.5) + profile.api_overhead_s
            yield Pair("experts_spread", "e2e_median", name, e2e, float(row["e2e_median_s"]), profile.band)
            if float(row["ttft_median_s"]) <= QUEUED * float(row["e2e_median_s"]):
                tpot = quantile(tpot_s(run, output), 0.5)
                yield Pair("experts_spread", "tpot_median", name, tpot, float(row["tpot_median_s"]), profile.band)
