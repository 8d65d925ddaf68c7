"""How far two workloads are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.report.blocks import Block, Table

if TYPE_CHECKING:
    from planner.workload.combine import Drift


class DriftReport:
    """Distances with the names of the two.

    Parameters
    ----------
    drift
        The distances.
    names
        From which workload to which.
    """

    def __init__(self, drift: Drift, names: tuple[str, str]) -> None:
        self.drift = drift
        self.names = names

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dict(self.drift.to_dict())

    def to_rows(self) -> list[dict[str, Any]]:
        """One row."""
        return [dict(row) for row in self.drift.to_rows()]


def blocks(report: DriftReport) -> list[Block]:
    """What changed from the first to the second."""
    found, title = report.drift, f"{report.names[0]} -> {report.names[1]}"
    rows = [
        ["mean input", f"x {found.mean_input:.3f}", "ratio of the means"],
        ["mean output", f"x {found.mean_output:.3f}", "ratio of the means"],
        ["mean iterations", f"x {found.mean_iterations:.3f}", "at a chunk of 512 tokens"],
        ["rate", "-" if found.rate is None else f"x {found.rate:.3f}", "requests/s"],
        ["input law", f"{found.ks_input:.3f}", f"largest difference of F; typical factor {found.factor_input:.2f}"],
        ["output law", f"{found.ks_output:.3f}", f"largest difference of F; typical factor {found.factor_output:.2f}"],
        ["total law", f"{found.ks_total:.3f}", "largest difference of F"],
        ["joint law", f"{found.joint:.3f}", "total variation on octaves: 0 same, 1 nothing in common"],
    ]
    return [Table([title, "value", "meaning"], rows, {title, "meaning"})]
