from __future__ import annotations

from planner.workload.formats.base import JSON, CsvColumns
from planner.workload.formats.rows import table_format

FORMAT = table_format(
    "mooncake",
    "Mooncake trace JSON lines",
    JSON,
    lambda head: {"input_length", "output_length"} <= head.keys and bool({"hash_ids", "timestamp"} & head.keys),
    CsvColumns(("input_length",), ("output_length",), ("timestamp",), time_unit="ms", blocks=("hash_ids",)),
)
