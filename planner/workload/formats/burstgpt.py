"""BurstGPT CSV: ``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``; a response of 0 tokens is a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from planner.workload.formats.base import Format, ReadOptions, TraceBuilder
from planner.workload.formats.rows import CsvColumns, Filter, read_csv

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

__all__ = ["FORMAT"]


def _recognise(head: Head) -> bool:
    return head.kind == "csv" and {"requesttokens", "responsetokens"} <= set(head.columns)


def _failed(place: Callable[[str], int | None]) -> Filter:
    at = place("Response tokens")

    def reason(row: Sequence[str]) -> str | None:
        return "failed request (response of 0 tokens)" if at is not None and row[at].strip() in ("0", "0.0") else None

    return reason


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    columns = CsvColumns(("Request tokens",), ("Response tokens",), ("Timestamp",), time_unit="s")
    return read_csv(source, options, FORMAT.name, columns, _failed)


FORMAT = Format("burstgpt", "BurstGPT CSV", _recognise, _read)
