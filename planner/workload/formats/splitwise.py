"""Splitwise and Vidur CSV: ``arrived_at,num_prefill_tokens,num_decode_tokens`` or ``arrival_timestamp,prompt_size,token_size``."""

from __future__ import annotations

from planner.workload.formats.base import CsvColumns
from planner.workload.formats.rows import table_format
from planner.workload.source import Head


def _recognise(head: Head) -> bool:
    """Either pair of length columns."""
    columns = set(head.columns)
    return {"numprefilltokens", "numdecodetokens"} <= columns or {"promptsize", "tokensize"} <= columns


FORMAT = table_format(
    "splitwise",
    "Splitwise / Vidur CSV",
    ("csv",),
    _recognise,
    CsvColumns(
        ("num_prefill_tokens", "prompt_size"), ("num_decode_tokens", "token_size"), ("arrived_at", "arrival_timestamp")
    ),
)
