"""Splitwise and Vidur CSV: ``arrived_at,num_prefill_tokens,num_decode_tokens`` or ``arrival_timestamp,prompt_size,token_size``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.workload.formats.base import Format, ReadOptions, TraceBuilder
from planner.workload.formats.rows import CsvColumns, read_csv

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

__all__ = ["FORMAT"]


def _recognise(head: Head) -> bool:
    columns = set(head.columns)
    return head.kind == "csv" and (
        {"numprefilltokens", "numdecodetokens"} <= columns or {"promptsize", "tokensize"} <= columns
    )


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    columns = CsvColumns(
        ("num_prefill_tokens", "prompt_size"), ("num_decode_tokens", "token_size"), ("arrived_at", "arrival_timestamp")
    )
    return read_csv(source, options, FORMAT.name, columns)


FORMAT = Format("splitwise", "Splitwise / Vidur CSV", _recognise, _read)
