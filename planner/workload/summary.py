"""What `show` and `list` tell about a workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.workload.workload import Workload

QUANTILES = (0.5, 0.9, 0.95, 0.99)
"""Shown of every length."""

_CONCENTRATED = 0.895  # FleetOpt section 2.4 says F(B) >= 0.90, and counts its Azure trace with 0.898 among them
_DISPERSED = 100.0  # "spreads across two or more decades"


def archetype(workload: Workload, boundary: float) -> str:
    """Archetype of the FleetOpt paper at a boundary: I concentrated below, II dispersed, III concentrated above.

    Parameters
    ----------
    workload
        The requests.
    boundary
        Total [tokens].

    Returns
    -------
    str
        ``"I"``, ``"I/II"`` (most below the boundary, yet over two decades of lengths: the paper's Azure and LMSYS), ``"II"``
        or ``"III"`` (most above the boundary).

    References
    ----------
    FleetOpt, section 2.4 and Table 2.

    >>> archetype(Workload.from_file("azure"), 4096)
    'I/II'
    """
    below = workload.cdf(boundary)
    if below < 0.5:
        return "III"
    if below < _CONCENTRATED:
        return "II"
    low = max(workload.quantile(0.01), 1.0)
    return "I/II" if workload.quantile(0.99) / low >= _DISPERSED else "I"


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """Facts of a workload for people and machines.

    Parameters
    ----------
    workload
        The workload.
    boundary
        Total at which the split is described [tokens].
    gamma
        Compression band above it [1].
    chunk
        Prefill chunk of the iterations [tokens].
    """

    workload: Workload
    boundary: float = 4096.0
    gamma: float = 1.5
    chunk: int = 512

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        w = self.workload
        mean, scv = w.iterations(self.chunk)
        band = w.band_fractions(self.boundary, self.gamma)
        return {
            **w.to_dict(),
            "lengths": {
                of: {
                    "mean": w.moment(of),
                    "std": w.std(of),
                    "min": w.quantile(0.0, of),
                    **{f"p{100 * q:g}": w.quantile(q, of) for q in QUANTILES},
                    "max": w.quantile(1.0, of),
                }
                for of in ("input", "output", "total")
            },
            "input_output_correlation": w.correlation,
            "iterations": {"chunk_tokens": self.chunk, "mean": mean, "scv": scv},
            "split": {
                "boundary_tokens": self.boundary,
                "gamma": self.gamma,
                "share_below": w.cdf(self.boundary),
                "band_share": sum(band.values()),
                "band_share_by_category": band,
                "archetype": archetype(w, self.boundary),
            },
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """Input, output and total, one row each."""
        return [{"length": of, **facts} for of, facts in self.to_dict()["lengths"].items()]
