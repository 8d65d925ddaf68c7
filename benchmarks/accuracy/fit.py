"""Fit the constants of the estimate (shares of the data sheet, launch times, engine costs) to public measurements.

Run by hand, in some six minutes: ``python -m benchmarks.accuracy fit DATA_FOLDER`` writes ``planner/machine/constants.yaml``;
``--check`` prints the fit without writing. The folder has the layout of the project's shared data.

One joint fit: kernels have no engine cost, servers (closed loops, and one vLLM server under open-loop load), MLPerf and mixtures of
experts at moderate batches have both.
Every cell (GPU, model, precision, ...) weighs the same within its data set; residuals are soft-L1 in log(predicted/measured); a
constant is held towards its starting value by a weak prior (a factor of two is one standard deviation), so that one the data do
not speak of stays where it was.
"""

from __future__ import annotations

import argparse
import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.cases import NO_ALLREDUCE, Case, kernel_cases, open_loop_cases, server_cases
from benchmarks.accuracy.mixtures import mixture_cases
from benchmarks.accuracy.mlperf_data import mlperf_cases, rate_cases
from planner.machine.engines import engine as find_engine
from planner.machine.roofline import CONSTANTS, band_kind, known_band, roofline
from tools.tables import ROOT

FloatArray = NDArray[np.float64]

START: Mapping[str, tuple[float, str]] = {
    "weights": (0.86, "share of the peak bandwidth when streaming weights"),
    "kv": (0.92, "share of the peak bandwidth when reading KV"),
    "matmul": (0.74, "share of the peak matrix rate, 16 and 8 bits"),
    "matmul_fp4": (0.70, "share of the peak matrix rate, 4 bits"),
    "power": (0.5, "exponent of the matrix rate in the power limit of boards with less power for it than an H100 SXM"),
    "exposed": (0.15, "share of the matrix products' time that streaming the weights does not hide"),
    "attention": (0.65, "share of the peak 16-bit matrix rate in prefill attention"),
    "activations": (2.4, "times the values between matrix products pass through memory"),
    "experts": (0.84, "matrix rate of routed experts over that of dense layers"),
    "fine_products": (
        0.6,
        "speed of products of 32 and more experts on GPUs without 4-bit matrix units over that on others",
    ),
    "imbalance": (2.0, "tokens of the busiest GPU over the mean where an engine spreads whole experts as they come"),
    "moe_launch_s": (
        70e-6,
        "fixed time of a mixture's layer in an engine: router, sorting, grouped products at their floor [s]",
    ),
    "dispatch_s": (13e-6, "one way to the experts of other GPUs [s]"),
    "dispatch_link": (0.33, "share of a link's bandwidth on this way"),
    "narrow": (1.3, "times longer the cache of heads of 64 values is read"),
    "link": (0.40, "share of a link's bandwidth in collectives"),
    "allreduce_s": (8e-6, "latency of an all-reduce [s]"),
    "launch_s_per_layer": (46e-6, "small kernels and gaps of a layer [s]"),
    "graph_launch": (0.5, "share of it left where an engine replays recorded launches (CUDA graphs)"),
    "quantize_s_per_layer": (1e-5, "bringing a layer's activations into 8 or 4 bits, in an engine [s]"),
    "sequence_s_per_layer": (98e-9, "decode attention per sequence and layer besides its KV [s]"),
    "bandwidth_workstation": (1.0, "bandwidth share of cards with GDDR memory over that of NVIDIA's modules"),
    "bandwidth_amd": (1.0, "bandwidth share of AMD Instinct over that of NVIDIA's modules"),
    "compute_workstation": (1.0, "matrix share of cards with GDDR memory over that of NVIDIA's modules"),
    "compute_amd": (0.8, "matrix share of AMD Instinct over that of NVIDIA's modules"),
    "vllm_iteration_s": (1e-3, "vLLM: host time of an iteration [s]"),
    "vllm_sequence_s": (1e-5, "vLLM: host time of an iteration per running sequence [s]"),
    "sglang_iteration_s": (1e-3, "SGLang: host time of an iteration [s]"),
    "sglang_sequence_s": (1e-5, "SGLang: host time of an iteration per running sequence [s]"),
    "trtllm_iteration_s": (1e-3, "TensorRT-LLM: host time of an iteration [s]"),
    "trtllm_sequence_s": (1e-5, "TensorRT-LLM: host time of an iteration per running sequence [s]"),
    "vllm_offline_sequence_s": (1e-5, "vLLM as submitted to MLPerf: per iteration and running sequence [s]"),
    "trtllm_offline_sequence_s": (1e-5, "TensorRT-LLM as submitted to MLPerf: per iteration and running sequence [s]"),
    "vllm_offline_iteration_s": (5e-3, "vLLM with thousands of sequences, as submitted to MLPerf: per iteration [s]"),
    "trtllm_offline_iteration_s": (
        5e-3,
        "TensorRT-LLM with thousands of sequences, as submitted to MLPerf: per iteration [s]",
    ),
    "offline_launch_s_per_layer": (1e-4, "either, per iteration and layer [s]"),
    "offline_half": (100.0, "running sequences at which either spends half of that"),
}
"""Where the fit starts: shares people quote for good kernels; and what each constant is."""

MIXTURES = (
    "experts", "fine_products", "imbalance", "moe_launch_s", "dispatch_s", "dispatch_link", "narrow",
    "vllm_offline_sequence_s", "trtllm_offline_sequence_s",
    "vllm_offline_iteration_s", "trtllm_offline_iteration_s", "offline_launch_s_per_layer", "offline_half",
)  # fmt: skip
"""Constants of mixtures and of tuned engines. The others stay as they were fitted to kernels, servers and MLPerf Offline: what
mixtures do at moderate batches says nothing new of dense models, whose plans need not move with it."""

WEIGHT: Mapping[str, float] = {
    "kernels": 1.0,
    "servers": 1.0,
    "mlperf": 1.0,
    "rates": 1.0,
    "mixtures": 0.5,
    "prompts": 0.25,
}
"""Of the data sets: of MLPerf's systems Offline and the rates speak alike."""

ROUNDS = 3
"""Times the ends of MLPerf's runs are followed anew with the constants fitted to them."""

HELD = 0.85
"""Share of the left-out points that a band holds, so that of systems nobody has fitted it holds 80%."""

CLASS_SD, SD, SCALE = 0.15, 0.7, 0.05
SURE = (
    "bandwidth_",
    "compute_",
    "imbalance",
    "fine_",
    "dispatch_",
    "power",
    "launch_",
    "sequence_s_per_layer",
    "activations",
)
"""Constants held more tightly: factors between classes, and what kernels say well enough by themselves, lest a fit without the
largest models of MLPerf takes it for something else."""


@dataclass(frozen=True)
class Scored:
    """log(predicted/measured) of one case, and the cell it counts in."""

    case: Case
    log_ratio: FloatArray


def all_cases(data: Path, constants: Mapping[str, float]) -> list[Case]:
    """Every case of the folder; the ends of MLPerf's runs cost what they do with `constants`."""
    return [
        *kernel_cases(data),
        *server_cases(data),
        *open_loop_cases(data),
        *mlperf_cases(data, constants),
        *rate_cases(data),
        *mixture_cases(data),
    ]


def estimated(case: Case, constants: Mapping[str, float]) -> FloatArray:
    """log(predicted/measured) of a case's points, shape (points,)."""
    known = dict(constants) | NO_ALLREDUCE if case.alone else constants
    model = roofline(case.gpu, case.model, case.parallel, engine=case.engine, constants=known)
    if case.steps:
        model = model.with_requests(find_engine(case.engine or "vllm").request_s, case.steps, 1.0)
    return np.atleast_1d(case.log_ratio(model))


def scored(cases: Iterable[Case], constants: Mapping[str, float]) -> list[Scored]:
    """Every system once: of the ways to spread a model that a source leaves open, the fastest predicted one."""
    best: dict[object, Scored] = {}
    for number, case in enumerate(cases):
        found = Scored(case, estimated(case, constants))
        key = case.system or number
        if key not in best or found.log_ratio.mean() > best[key].log_ratio.mean():
            best[key] = found
    return list(best.values())


def by_cell(scores: Iterable[Scored], data: str) -> dict[str, FloatArray]:
    """log(predicted/measured) of the points of each cell."""
    cells: dict[str, list[FloatArray]] = {}
    for s in scores:
        if s.case.data == data:
            cells.setdefault(s.case.cell, []).append(s.log_ratio)
    return {cell: np.concatenate(parts) for cell, parts in cells.items()}


def cell_errors(scores: Iterable[Scored], data: str) -> FloatArray:
    """Of each cell: the mean |predicted/measured - 1| of its points, or (MLPerf) the |log ratio| of its median."""
    cells = by_cell(scores, data).values()
    if data == "mlperf":
        return np.array([abs(np.median(v)) for v in cells])
    return np.array([np.abs(np.expm1(v)).mean() for v in cells])


def weights(scores: Sequence[Scored]) -> FloatArray:
    """Weight of every point: cells alike within a data set, data sets by :data:`WEIGHT`, shape (points,)."""
    points: dict[tuple[str, str], int] = {}
    for s in scores:
        key = (s.case.data, s.case.cell)
        points[key] = points.get(key, 0) + s.log_ratio.size
    cells = {data: sum(1 for d, _ in points if d == data) for data in WEIGHT}
    sets = sum(1 for n in cells.values() if n)
    share = [len(points) / sets * WEIGHT[s.case.data] / cells[s.case.data] for s in scores]
    return np.concatenate(
        [np.full(s.log_ratio.size, w / points[s.case.data, s.case.cell]) for s, w in zip(scores, share, strict=True)]
    )


def fit(
    cases: Sequence[Case], start: Mapping[str, float] | None = None, names: Sequence[str] = tuple(START)
) -> dict[str, float]:
    """Constants that fit the cases: those of `names`, beside the others as they are in `start`."""
    from scipy.optimize import least_squares

    begin = np.log([START[n][0] for n in names])
    sd = np.array([CLASS_SD if n.startswith(SURE) else SD for n in names])
    at = start or {n: v for n, (v, _) in START.items()}
    # which of several ways to spread a model is the fastest does not move during a fit
    first = scored(cases, at)
    chosen = [s.case for s in first]
    root = np.sqrt(weights(first))

    def residuals(theta: FloatArray) -> FloatArray:
        k = dict(at) | dict(zip(names, np.exp(theta).tolist(), strict=True))
        z = np.concatenate([estimated(case, k) for case in chosen]) / SCALE
        # soft-L1 as a residual, so that the prior stays quadratic
        robust = np.sign(z) * np.sqrt(2.0 * (np.sqrt(1.0 + z**2) - 1.0))
        return np.concatenate([root * robust, (theta - begin) / sd])

    # a share of a data sheet cannot exceed one
    shares = ("weights", "kv", "matmul", "matmul_fp4", "attention", "experts", "link", "exposed")
    upper = np.where([n in shares for n in names], 0.0, np.inf)
    # nor the busiest have fewer tokens than the mean
    lower = np.where([n == "imbalance" for n in names], 0.0, -np.inf)
    from_here = np.clip(np.log([at[n] for n in names]), lower + 1e-6, upper - 1e-6)
    found = least_squares(residuals, from_here, bounds=(lower, upper), x_scale=sd, xtol=1e-5, ftol=1e-5, max_nfev=40)
    return dict(at) | dict(zip(names, np.exp(found.x).tolist(), strict=True))


def left_out(cases: Sequence[Case], constants: Mapping[str, float], group: Callable[[Case], object]) -> list[Scored]:
    """Every case predicted by a fit to the cases of other groups."""
    found: list[Scored] = []
    for name in sorted({group(c) for c in cases}, key=str):
        k = fit([c for c in cases if group(c) != name], constants)
        found += scored([c for c in cases if group(c) == name], k)
    return found


def _miss(scores: Iterable[Scored]) -> FloatArray:
    """How far the truth is off the prediction, as a fraction of it: what a band around a prediction has to hold."""
    return np.concatenate([np.abs(np.expm1(-s.log_ratio)) for s in scores])


def kinds_of(scored_case: Scored) -> dict[str, FloatArray]:
    """The case's errors by the bands that are printed around such: of an iteration, and of prompts alone."""
    case, missed = scored_case.case, _miss([scored_case])
    family, sort = band_kind(case.gpu, case.model, case.engine).split()[1:]
    if case.data == "prompts":
        return {f"prompts {family} {sort}": missed}
    found = {band_kind(case.gpu, case.model, case.engine): missed}
    if case.prompts is not None and case.prompts.any():
        found[f"prompts {family} {sort}"] = missed[case.prompts]
    return found


def bands(held_out: Sequence[Scored]) -> dict[str, tuple[float, int]]:
    """Half-width that holds :data:`HELD` of the left-out points of each kind of case, and from how many cells."""
    kinds: dict[str, list[FloatArray]] = {}
    cells: dict[str, set[str]] = {}
    for s in held_out:
        for kind, missed in kinds_of(s).items():
            kinds.setdefault(kind, []).append(missed)
            cells.setdefault(kind, set()).add(s.case.cell)
    return {kind: (float(np.quantile(np.concatenate(v), HELD)), len(cells[kind])) for kind, v in kinds.items()}


def coverage(held_out: Sequence[Scored]) -> None:
    """What bands hold that know nothing of the GPU type they are for, left-out predictions too."""
    for data in WEIGHT:
        own = [s for s in held_out if s.case.data == data and data != "prompts"]
        inside, widths = [], []
        if not own:
            continue
        for name in sorted({s.case.gpu.name for s in own}):
            others = bands([s for s in held_out if s.case.gpu.name != name])
            known = {kind: width for kind, (width, _) in others.items()}
            for s in (s for s in own if s.case.gpu.name == name):
                width = known_band(band_kind(s.case.gpu, s.case.model, s.case.engine), known)
                widths.append(np.full(s.log_ratio.size, width))
                inside.append(_miss([s]) <= width)
        half, error = float(np.median(np.concatenate(widths))), float(np.median(_miss(own)))
        print(
            f"  {data:8s} bands of other GPU types hold {np.concatenate(inside).mean():.0%}, median half-width {half:.1%}, "
            f"{half / error:.1f} x the median error"
        )


def evidence(cases: Sequence[Case], constants: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    """Of each constant: cells whose prediction moves by more than 0.2% when it moves by 10%, and their GPU types."""
    base = scored(cases, constants)
    found = {}
    for name in constants:
        moved = dict(constants) | {name: constants[name] * 1.1}
        touched = [s.case for s in base if np.abs(estimated(s.case, moved) - s.log_ratio).max() > 2e-3]
        found[name] = (len({c.cell for c in touched}), len({c.gpu.name for c in touched}))
    return found


def report(scores: Sequence[Scored], title: str) -> None:
    print(title)
    for data in WEIGHT:
        for sort in (False, True):
            own = [s for s in scores if bool(s.case.model.experts) == sort]
            e = cell_errors(own, data)
            if e.size:
                print(
                    f"  {data:8s} {'mixtures' if sort else 'dense':8s} {e.size:3d} cells: mean {e.mean():.1%} "
                    f"median {np.median(e):.1%} p90 {np.quantile(e, 0.9):.1%} max {e.max():.1%}"
                )


def write(cases: Sequence[Case], constants: Mapping[str, float], widths: Mapping[str, tuple[float, int]]) -> None:
    """The constants' file: what its comments say stays but for the day."""
    told, target = evidence(cases, constants), ROOT / "planner" / "iteration" / "constants.yaml"
    rows = {
        "constants": [
            f"{n}: {v:.4g}  # {START[n][1]}; {told[n][0]} cells, {told[n][1]} GPUs" for n, v in constants.items()
        ],
        "bands": [f"{kind}: {width:.2f}  # {cells} cells" for kind, (width, cells) in sorted(widths.items())],
    }
    text = re.sub(r"on \d{4}-\d\d-\d\d", f"on {datetime.date.today()}", target.read_text(encoding="utf-8"), count=1)
    for name, lines in rows.items():
        block = f"{name}:\n" + "".join(f"  {line}\n" for line in lines)
        text = re.sub(rf"^{name}:\n(  .*\n)+", lambda _, block=block: block, text, flags=re.MULTILINE)  # type: ignore[misc]
    target.write_text(text, encoding="utf-8")


def main(words: Sequence[str]) -> None:
    """The command."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", type=Path, help="folder of the measurements")
    options.add_argument("--check", action="store_true", help="print, do not write")
    options.add_argument("--everything", action="store_true", help="move the constants of dense models too")
    options.add_argument("--quick", action="store_true", help="without leaving anything out")
    given = options.parse_args(words)
    # a constant that is new begins where it is thought to be
    constants = {name: CONSTANTS.get(name, begin) for name, (begin, _) in START.items()}
    for _ in range(ROUNDS):
        cases = all_cases(given.data, constants)
        constants = fit(cases, constants, tuple(START) if given.everything else MIXTURES)
    report(scored(cases, constants), "fitted to all")
    print({n: float(f"{v:.4g}") for n, v in constants.items()})
    if given.quick:
        return
    by_gpu = left_out(cases, constants, lambda c: c.gpu.name)
    report(by_gpu, "GPU type left out")
    by_model = left_out(cases, constants, lambda c: c.model.name)
    report(by_model, "model left out")
    widths = bands([*by_gpu, *by_model])
    coverage([*by_gpu, *by_model])
    print({kind: (round(w, 3), n) for kind, (w, n) in sorted(widths.items())})
    if not given.check:
        write(cases, constants, widths)
