"""Azure LLM inference traces (2023 conversation and code, 2024 week): ``TIMESTAMP,ContextTokens,GeneratedTokens``."""

from __future__ import annotations

from planner.workload.formats.base import CsvColumns
from planner.workload.formats.rows import table_format

FORMAT = table_format(
    "azure",
    "Azure LLM inference trace CSV (2023 conv and code, 2024)",
    ("csv",),
    lambda head: {"timestamp", "contexttokens", "generatedtokens"} <= set(head.columns),
    CsvColumns(("ContextTokens",), ("GeneratedTokens",), ("TIMESTAMP",)),
)
