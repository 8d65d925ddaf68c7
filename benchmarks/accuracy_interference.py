"""Mixed batches as measured: what 36 points of a GPU and a model say of all its other batches.

Run by hand: ``python benchmarks/accuracy_interference.py [data folder]``; writes docs/accuracy/interference.md. The folder holds
``real/interference/iterations.csv``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from planner.calibrate.fit import fit_points
from planner.calibrate.points import read_iterations_csv
from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.iteration.model import IterationModel
from planner.iteration.roofline import roofline

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = Path(os.environ.get("FLEETOPT_SHARED_DATA", ROOT.parent / "shared" / "data"))
POINTS = 36


def table(path: Path) -> list[str]:
    """One line per configuration; the means below."""
    lines = [
        "| GPU | model | TP | mixed, joined | p95 | signed | mixed, added up | pure batches | estimated, joined | added up |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    rows = []
    for (device, network, tp), points in read_iterations_csv(path).items():
        prior = roofline(find_gpu(device), find_model(network), tp)
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
        "kernels, which nobody has published: there the kernels are added up.",
        "",
        *table(data / "real" / "interference" / "iterations.csv"),
        "",
    ]
    (ROOT / "docs" / "accuracy" / "interference.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT)
