"""What the estimate says of public measurements of real GPUs and servers, with nothing measured of the system itself.

Run by hand: ``python benchmarks/accuracy_public.py [data folder]``; writes docs/accuracy/public.md. The folder has the layout of
the project's shared data (``calibration``, ``real/mlperf``, ``real/openloop``); other data of the same form can be judged with it.
"""

from __future__ import annotations

import csv
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from fit_estimate import Scored, all_cases, by_cell, cell_errors, scored
from public_data import MlperfRow, lengths, mlperf_rows, offline_rate, request_lengths

from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.catalog.profiles import estimated_profile
from planner.iteration.constants import CONSTANTS
from planner.iteration.model import IterationModel
from planner.iteration.roofline import prior_band, roofline
from planner.queueing.mixed.replica import MixedReplica

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = Path(os.environ.get("FLEETOPT_SHARED_DATA", ROOT.parent / "shared" / "data"))
TIMES = ("t0", "w", "b", "c", "g", "h", "e", "a", "x", "w_experts", "h_m", "e_m")


def scaled(model: IterationModel, factor: float) -> IterationModel:
    """All times of an iteration longer by a factor."""
    return replace(model, **{name: getattr(model, name) * factor for name in TIMES})


def cells(scores: Sequence[Scored], data: str) -> list[str]:
    """One line per cell: signed median, mean error, the band printed, share of points inside."""
    lines = [
        "| system | parallelism | engine | signed median | mean error | band | inside |",
        "|:--|:--|:--|--:|--:|--:|--:|",
    ]
    first = {s.case.cell: s.case for s in reversed(scores) if s.case.data == data}
    for cell, values in by_cell(scores, data).items():
        case = first[cell]
        band = prior_band(case.gpu, case.model, case.engine)
        inside = np.mean(np.abs(np.expm1(-values)) <= band)
        lines.append(
            f"| {cell} | {case.parallel} | {case.engine or 'kernels'} | {np.expm1(np.median(values)):+.1%} "
            f"| {np.abs(np.expm1(values)).mean():.1%} | ±{band:.0%} | {inside:.0%} |"
        )
    return lines


def summary(scores: Sequence[Scored]) -> list[str]:
    """Per data set: errors over cells and what the bands hold."""
    lines = [
        "| data | cells | mean | median | p90 | points in the band | median half-width |",
        "|:--|--:|--:|--:|--:|--:|--:|",
    ]
    for data in ("kernels", "servers", "mlperf"):
        errors = cell_errors(scores, data)
        own = [s for s in scores if s.case.data == data]
        if not own:
            continue
        bands = np.concatenate(
            [np.full(s.log_ratio.size, prior_band(s.case.gpu, s.case.model, s.case.engine)) for s in own]
        )
        inside = np.abs(np.expm1(-np.concatenate([s.log_ratio for s in own]))) <= bands
        lines.append(
            f"| {data} | {errors.size} | {errors.mean():.1%} | {np.median(errors):.1%} | {np.quantile(errors, 0.9):.1%} "
            f"| {inside.mean():.0%} | ±{np.median(bands):.0%} |"
        )
    return lines


def largest_rate(replica: MixedReplica, ttft_limit_s: float, tpot_limit_s: float) -> float:
    """Rate at which the P99 of TTFT or TPOT reaches its limit [1/s]."""
    top = replica.max_throughput().per_s
    low, high = 0.0, 0.995
    for _ in range(8):
        middle = 0.5 * (low + high)
        at = replica.predict(middle * top, 1, quantiles=(0.99,))
        kept = at.stable and at.ttft_s[0] <= ttft_limit_s and at.tpot_s[0] <= tpot_limit_s
        low, high = (middle, high) if kept else (low, middle)
    return low * top


def server_rates(data: Path) -> list[str]:
    """MLPerf Server and Interactive from the same system's Offline result by one scale of all times."""
    folder = data / "real" / "mlperf"
    found: dict[tuple[str, str], list[float]] = {}
    seen: dict[tuple[object, ...], float] = {}
    for entry in mlperf_rows(folder, "server.csv"):
        row = entry.row
        if not row["offline_samples_per_s"]:
            continue
        offline = float(row["offline_samples_per_s"]) / float(row["n_gpus"])
        key = (
            entry.cell,
            row["scenario"],
            row["tp"],
            row["pp"],
            row["max_seqs"],
            row["token_budget"],
            round(math.log(offline), 1),
        )
        if key not in seen:
            seen[key] = server_rate(entry, folder, offline) / offline
        measured = float(row["scheduled_per_s"]) / float(row["n_gpus"])
        found.setdefault((entry.cell, row["scenario"]), []).append(
            math.log(max(seen[key], 1e-2) * offline / max(measured, 1e-12))
        )
    errors = np.array([abs(np.median(v)) for v in found.values()])
    lines = ["| system | scenario | signed median |", "|:--|:--|--:|"]
    lines += [f"| {cell} | {scenario} | {math.expm1(np.median(v)):+.1%} |" for (cell, scenario), v in found.items()]
    told = [f"{errors.size} cells: median |log ratio| {np.median(errors):.1%}, p90 {np.quantile(errors, 0.9):.1%}."]
    for scenario in ("Server", "Interactive"):
        own = np.array([abs(np.median(v)) for (_, s), v in found.items() if s == scenario])
        told.append(f"{scenario}: {own.size} cells, median {np.median(own):.1%}." if own.size else "")
    return [" ".join(told).strip(), "", *lines]


def server_rate(entry: MlperfRow, folder: Path, offline: float) -> float:
    """Predicted largest rate per GPU once the Offline rate per GPU is known [1/s]."""
    row = entry.row
    law = lengths(folder / row["lengths"], float(row["mean_output_tokens"]))
    best = 0.0
    prompt, output = request_lengths(folder / row["lengths"], float(row["mean_output_tokens"]))
    rows = np.linspace(0, prompt.size - 1, min(prompt.size, 1500)).astype(int)
    order = np.argsort(prompt + output, kind="stable")[rows]
    choices = []
    for parallel in entry.parallel:
        budget, slots, kv = entry.replica(parallel)
        # with latency limits the host works as a server's; what Offline costs beyond it is in the scale
        model = roofline(entry.gpu, entry.model, parallel, engine=entry.engine.removesuffix("_offline"))
        choices.append(
            (
                offline_rate(model, law, budget, slots, kv) * parallel.copies / parallel.gpus,
                parallel,
                model,
                budget,
                slots,
                kv,
            )
        )
    rate, parallel, model, budget, slots, kv = max(choices, key=lambda c: c[0])
    replica = MixedReplica(
        **scaled(model, rate / offline).to_dict(), input_tokens=prompt[order], output_tokens=output[order],
        token_budget=budget, max_num_seqs=slots, kv_tokens=kv,
    )  # fmt: skip
    best = largest_rate(replica, float(row["ttft_limit_s"]), float(row["tpot_limit_s"]))
    return best * parallel.copies / parallel.gpus


def open_loop(data: Path) -> list[str]:
    """One vLLM server on one H100 under open-loop load."""
    lines = [
        "| setting | rate/s | E2E mean | measured | error | TTFT p99 | measured | error |",
        "|:--|--:|--:|--:|--:|--:|--:|--:|",
    ]
    e2e, ttft = [], []
    profile = estimated_profile(find_gpu("h100"), find_model("llama-3.1-8b"))
    for row in csv.DictReader((data / "real" / "openloop" / "constant_rate_stages.csv").open(encoding="utf-8")):
        if row["overloaded"] == "1" or "eagle" in row["setting"]:
            continue
        cached = 192.0 / float(row["input_tokens"]) if row["prefix_caching"] == "1" else 0.0
        replica = MixedReplica(
            **profile.iteration.with_requests(profile.request_s, float(row["output_tokens"]) - 1.0, 1.0).to_dict(),
            input_tokens=[float(row["input_tokens"])], output_tokens=[float(row["output_tokens"])],
            token_budget=float(row["token_budget"]), max_num_seqs=float(row["max_num_seqs"]),
            cached_share=min(cached, 0.97), api_overhead_s=profile.api_overhead_s,
        )  # fmt: skip
        at = replica.predict(float(row["sent_per_s"]), 1, quantiles=(0.99,))
        if not at.stable:
            lines.append(
                f"| {row['setting']} | {float(row['sent_per_s']):.0f} | unstable | {row['e2e_mean_s']} s | | | | |"
            )
            continue
        errors = (at.e2e_mean_s / float(row["e2e_mean_s"]) - 1.0, at.ttft_s[0] / float(row["ttft_p99_s"]) - 1.0)
        e2e.append(abs(errors[0]))
        if at.load < 0.92:
            ttft.append(abs(errors[1]))
        lines.append(
            f"| {row['setting']} | {float(row['sent_per_s']):.0f} | {at.e2e_mean_s:.2f} s | {float(row['e2e_mean_s']):.2f} s "
            f"| {errors[0]:+.0%} | {at.ttft_s[0] * 1e3:.0f} ms | {float(row['ttft_p99_s']) * 1e3:.0f} ms | {errors[1]:+.0%} |"
        )
    told = f"{len(e2e)} stages: E2E mean {np.mean(e2e):.1%}, TTFT p99 below 92% of capacity {np.mean(ttft):.1%} mean error."
    return [told, "", *lines]


def main(data: Path) -> None:
    """Write the page."""
    scores = scored(all_cases(data), CONSTANTS)
    text = [
        "# Accuracy of the estimate on public measurements",
        "",
        "Written by `python benchmarks/accuracy_public.py`. Nothing of a system was measured: data sheet, model, engine and the",
        "constants of `planner/iteration/constants.py`, which were fitted to kernels, servers and MLPerf Offline together. So",
        "these errors are of data the fit has seen; with a GPU type or a model left out of the fit",
        "(`benchmarks/fit_estimate.py DATA --check`) the mean errors over cells are 10.0% and 9.2% for kernels, 18.8% and 18.9%",
        "for servers, and the median |log ratio| of MLPerf Offline is 10.5% and 13.6%. MLPerf entries: results verified by",
        "MLCommons Association, rounds v4.1, v5.1 and v6.0, closed division; each cell is the median of its entries.",
        "",
        *summary(scores),
        "",
        "## Kernels",
        "",
        *cells(scores, "kernels"),
        "",
        "## Servers (TPOT of closed loops)",
        "",
        *cells(scores, "servers"),
        "",
        "## MLPerf Offline (throughput; signed: predicted over measured)",
        "",
        *cells(scores, "mlperf"),
        "",
        "## MLPerf Server and Interactive, from Offline by one scale",
        "",
        "Largest Poisson rate within the limits on P99 TTFT and TPOT by the `mixed` method, all times scaled so that Offline is",
        "right.",
        "Submitted rates are at or below what the limits allow. -99% stands for limits that cannot be kept at any rate.",
        "",
        *server_rates(data),
        "",
        "## One vLLM server on one H100, open loop",
        "",
        "Llama-3.1-8B, 64 output tokens; kubernetes-sigs/inference-perf, kubecon-na-2025. Overloaded stages and EAGLE left out.",
        "",
        *open_loop(data),
        "",
    ]
    (ROOT / "docs" / "accuracy" / "public.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT)
