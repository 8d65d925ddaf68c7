"""Constants of the estimate, and the bands around it: fitted by ``python -m benchmarks.accuracy fit``; see constants.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planner.shared.documents import shipped

_FITTED = shipped(Path(__file__).with_suffix(".yaml"))

CONSTANTS: Mapping[str, float] = {name: float(value) for name, value in _FITTED["constants"].items()}
"""Shares of the data sheet [1] and times [s]."""

BANDS: Mapping[str, float] = _FITTED["bands"]
"""Half-widths by kind of estimate [1]."""
