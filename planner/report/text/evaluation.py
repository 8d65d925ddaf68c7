"""A standing fleet under load: a row per rate and pool."""

from __future__ import annotations

from planner.report.blocks import Block, rows_table
from planner.studies.evaluation import Evaluation

FIRST = (
    "rate_per_s", "pool", "holds", "load", "ttft_p99_s", "tpot_p99_s", "broken", "e2e_p99_s", "running", "ttft_p50_s",
    "tpot_p50_s",
)  # fmt: skip


def blocks(evaluation: Evaluation) -> list[Block]:
    """The verdict in front."""
    return [rows_table(evaluation.to_rows(), FIRST)]
