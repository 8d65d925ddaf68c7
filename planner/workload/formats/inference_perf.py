"""inference-perf ``per_request_lifecycle_metrics.json``."""

from __future__ import annotations

from planner.workload.formats.base import JSON, CsvColumns
from planner.workload.formats.rows import table_format

FORMAT = table_format(
    "inference-perf",
    "inference-perf per-request metrics (JSON)",
    JSON,
    lambda head: {"info", "input_tokens", "start_time"} <= head.keys,
    CsvColumns(("info.input_tokens",), ("info.output_tokens",), ("start_time",)),
    drop=lambda value: "failed request" if value("error") else None,
    load_generator=True,
)
