"""Scheduling policies side by side: a row per policy and rate, with 95% intervals."""

from __future__ import annotations

from planner.report.blocks import Block, rows_table
from planner.simulate.compare import Comparison

FIRST = (
    "policy", "rate_per_s", "stable", "goodput_per_s", "attainment", "ttft_p99_s", "tpot_p99_s", "throughput_per_s",
    "tbt_p99_s", "ttft_p50_s", "tpot_p50_s",
)  # fmt: skip


def blocks(comparison: Comparison) -> list[Block]:
    """What decides between policies in front."""
    return [rows_table(comparison.to_rows(), FIRST)]
