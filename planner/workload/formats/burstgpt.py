"""BurstGPT CSV: ``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``; a response of 0 tokens is a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.workload.formats.base import CsvColumns
from planner.workload.formats.rows import table_format


def _failed(cell: Callable[[str], Any]) -> str | None:
    """Requests without a response failed."""
    return "failed request (response of 0 tokens)" if cell("Response tokens") in ("0", "0.0") else None


FORMAT = table_format(
    "burstgpt",
    "BurstGPT CSV",
    ("csv",),
    lambda head: {"requesttokens", "responsetokens"} <= set(head.columns),
    CsvColumns(("Request tokens",), ("Response tokens",), ("Timestamp",), time_unit="s", session=("Session ID",)),
    drop=_failed,
)
