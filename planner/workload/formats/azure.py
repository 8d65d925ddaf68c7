"""Azure LLM inference traces (2023 conversation and code, 2024 week): ``TIMESTAMP,ContextTokens,GeneratedTokens``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.workload.formats.base import Format, ReadOptions, TraceBuilder
from planner.workload.formats.rows import CsvColumns, read_csv

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

__all__ = ["FORMAT"]


def _recognise(head: Head) -> bool:
    return head.kind == "csv" and {"timestamp", "contexttokens", "generatedtokens"} <= set(head.columns)


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    columns = CsvColumns(input=("ContextTokens",), output=("GeneratedTokens",), time=("TIMESTAMP",))
    return read_csv(source, options, FORMAT.name, columns)


FORMAT = Format("azure", "Azure LLM inference trace CSV (2023 conv and code, 2024)", _recognise, _read)
