"""Mixed batches as measured: what 36 points of a GPU and a model say of all its other batches.

Run by hand: ``python benchmarks/accuracy_interference.py [data folder]``; writes docs/accuracy/interference.md. The folder holds
``real/interference/iterations.csv``.
"""

from __future__ import annotations

import csv
import os
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from public_data import NO_ALLREDUCE

from planner.calibrate.fit import fit_points
from planner.calibrate.points import read_iterations_csv
from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.iteration.constants import CONSTANTS
from planner.iteration.model import IterationModel
from planner.iteration.roofline import roofline

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = Path(os.environ.get("FLEETOPT_SHARED_DATA", ROOT.parent / "shared" / "data"))
POINTS = 36
TOKENS = 256
"""Tokens of the batches compared: the most decodes measured."""
CONTEXTS = (16, 256, 1024)
VERDICT = (
    "The sign holds: on this GPU a mixed batch costs more than its parts, the more so the longer the contexts, and at short",
    "contexts more than decodes alone from a few per cent of decodes on (printed: 20%). The size does not show: -11.6 makes a",
    "batch of half decodes cost its parts and 1.45 times the decodes alone besides. 4,096 tokens were not measured, so the",
    "printed number is not refuted.",
)


def table(path: Path) -> list[str]:
    """One line per configuration; the means below."""
    lines = [
        "| GPU | model | TP | mixed, joined | p95 | signed | mixed, added up | pure batches | estimated, joined | added up |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    rows = []
    for (device, network, tp), points in read_iterations_csv(path).items():
        prior = roofline(find_gpu(device), find_model(network), tp, constants=dict(CONSTANTS) | NO_ALLREDUCE)
        columns = (
            points.column("decodes"), points.context_sum, points.prefill_tokens, points.column("pairs"), points.context_max,
            points.prefill_end,
        )  # fmt: skip
        mixed = np.array(points.kinds) == "mixed"

        def errors(
            model: IterationModel, columns: tuple[np.ndarray, ...] = columns, measured: np.ndarray = points.time_s
        ) -> np.ndarray:
            return model.time(*columns) / measured - 1.0

        used = points.select(range(POINTS))
        joined = errors(fit_points(used, prior, resamples=5).iteration)
        added = errors(fit_points(used, prior.additive, resamples=5).iteration)
        alone, summed = errors(prior), errors(prior.additive)
        rows.append(
            [np.abs(e).mean() for e in (joined[mixed], added[mixed], joined[~mixed], alone[mixed], summed[mixed])]
        )
        lines.append(
            f"| {device} | {network} | {tp} | {rows[-1][0]:.1%} | {np.quantile(np.abs(joined[mixed]), 0.95):.1%} "
            f"| {joined[mixed].mean():+.1%} | {rows[-1][1]:.1%} | {rows[-1][2]:.1%} | {rows[-1][3]:.1%} | {rows[-1][4]:.1%} |"
        )
    mean = np.mean(rows, axis=0)
    lines.append(
        f"| **mean** | | | {mean[0]:.1%} | | | {mean[1]:.1%} | {mean[2]:.1%} | {mean[3]:.1%} | {mean[4]:.1%} |"
    )
    return lines


def convexity(path: Path) -> list[str]:
    """The exclusive-batching paper's kappa (eq. 11) and its crossover from measured batches of one number of tokens.

    Whole iterations, straight from the measurements: between measured prompts the time is read linearly, no model in between.
    """
    times: dict[tuple[str, str, str], dict[tuple[int, int], list[tuple[int, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["kind"] != "chunk" and int(row["prefill_past_tokens"]) == 0:
                key = int(row["n_decode"]), int(row["decode_ctx"])
                measured = int(row["prefill_new_tokens_per_seq"]), float(row["measured_ms"])
                times[row["gpu"], row["model"], row["tp"]][key].append(measured)
    lines = [
        "| GPU | model | TP | context | mixed batches | kappa | half decodes against decodes | costs more than those from |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|",
    ]
    for (device, network, tp), batches in times.items():
        for context in CONTEXTS:
            found = {}
            for n, own in batches:
                points = sorted(batches[n, own])
                new = [tokens for tokens, _ in points]
                # a pure prefill has no context; nothing is read beyond what was measured
                if own == (context if n else 0) and min(new) <= TOKENS - n <= max(new):
                    found[n / TOKENS] = float(np.interp(TOKENS - n, new, [ms for _, ms in points]))
            share, ms = (np.array(values) for values in zip(*sorted(found.items()), strict=True))
            if not {0.0, 0.5, 1.0} <= set(found):
                continue
            c2, c1, c0 = np.polyfit(share, ms, 2)
            above = share[ms > ms[-1] * 1.01]
            lines.append(
                f"| {device} | {network} | {tp} | {context:,} | {share.size - 2} | {2.0 * c2 / (c0 + c1 + c2):+.2f} "
                f"| {found[0.5] / ms[-1] - 1.0:+.0%} | {f'{above.min():.0%} decodes' if above.size else 'nowhere'} |"
            )
    return lines


def main(data: Path) -> None:
    """Write the page."""
    text = [
        "# Accuracy of mixed batches",
        "",
        "Written by `python benchmarks/accuracy_interference.py`. Mean |predicted/measured - 1| over all batches of a",
        f"configuration, the {POINTS} fitted ones included. *joined*: one attention kernel takes decodes and prompts (m = 66 rows,",
        "nothing more fitted); *added up*: the kernels apart, interference x fitted. *estimated*: mixed batches by the estimate",
        "from the data sheet, no point fitted.",
        "Measured: vLLM 0.19 with FlashAttention 2 (LLMServingSim's profiles, MIT). Hopper and data-centre Blackwell have other",
        "kernels, of which no mixed batches are at hand: there the kernels are added up.",
        "",
        *table(data / "real" / "interference" / "iterations.csv"),
        "",
        "## The exclusive-batching paper's kappa on its own kind of GPU",
        "",
        "The paper prints kappa = -11.6 (eq. 11, Qwen3-4B, 4,096 tokens, context 16) for the RTX PRO 6000: a mixed batch",
        "would cost several times what its parts cost. Measured here: batches of 256 tokens, the most decodes that were",
        'measured, from 0 to 100% decodes, whole iterations, no model in between; "costs more" by 1% or more.',
        "",
        *convexity(data / "real" / "interference" / "iterations.csv"),
        "",
        *VERDICT,
        "",
    ]
    (ROOT / "docs" / "accuracy" / "interference.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT)
