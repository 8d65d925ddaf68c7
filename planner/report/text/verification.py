"""A plan's promises against a simulation: a row per pool and promise."""

from __future__ import annotations

from planner.report.blocks import Block, rows_table
from planner.simulate.plan import Verification

FIRST = (
    "pool", "promise", "limit_s", "predicted_s", "simulated_s", "low_s", "high_s", "predicted_share", "simulated_share",
    "low_share", "high_share", "verdict", "reason",
)  # fmt: skip
UNSAID = ("metric", "quantile")
"""Said by the promise already."""


def blocks(verification: Verification) -> list[Block]:
    """Prediction and simulation side by side, then the verdict."""
    rows = [{k: v for k, v in row.items() if k not in UNSAID} for row in verification.to_rows()]
    return [rows_table(rows, FIRST)]
