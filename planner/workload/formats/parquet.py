"""Parquet with one request per row (needs the extra ``parquet``); columns as in the generic CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.workload.formats.base import Clock, Format, ReadOptions, TraceBuilder
from planner.workload.formats.generic import FIELDS
from planner.workload.source import normal_name

if TYPE_CHECKING:
    from planner.workload.source import Head, Source

__all__ = ["FORMAT"]


def _recognise(head: Head) -> bool:
    return head.kind == "parquet"


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise InputError(f"{source.name}: reading Parquet needs pyarrow", "pip install 'fleetopt[parquet]'") from error
    try:
        file = parquet.ParquetFile(source.path)
    except Exception as error:
        raise InputError(f"{source.name}: not a readable Parquet file: {error}") from error
    names: dict[str, str] = {normal_name(name): str(name) for name in file.schema_arrow.names}

    def column(role: str, candidates: tuple[str, ...], needed: bool) -> str | None:
        own = options.columns.get(role)
        for name in (own,) if own else candidates:
            if normal_name(name) in names:
                return names[normal_name(name)]
        if own or needed:
            raise InputError(
                f"{source.name}: no column {own or ' or '.join(candidates)!r} ({role}) among {', '.join(file.schema_arrow.names)}",
                f"Name it: --map {role}=COLUMN.",
            )
        return None

    chosen = {
        "input": column("input", tuple(FIELDS.input), True),
        "output": column("output", tuple(FIELDS.output), True),
        "time": column("time", tuple(FIELDS.time), False),
        "category": column("category", tuple(FIELDS.category), False),
    }
    builder = TraceBuilder(source.name, FORMAT.name, Clock(options.time_unit))
    total = file.metadata.num_rows
    row = 0
    for batch in file.iter_batches(batch_size=65_536, columns=[c for c in chosen.values() if c is not None]):
        columns: dict[str, list[Any]] = {
            role: batch.column(name).to_pylist() for role, name in chosen.items() if name is not None
        }
        count = batch.num_rows
        times = [_moment(t) for t in columns["time"]] if "time" in columns else [None] * count
        categories = [str(c or "") for c in columns["category"]] if "category" in columns else [None] * count
        for sent, got, time, category in zip(columns["input"], columns["output"], times, categories, strict=True):
            row += 1
            if "time" in columns and time is None:
                builder.bad(row, "no time")
                continue
            builder.add(row, sent, got, time, category)
        if source.progress is not None:
            source.progress(row, total)
    return builder


def _moment(value: Any) -> Any:
    return value.isoformat(sep=" ", timespec="microseconds") if hasattr(value, "isoformat") else value


FORMAT = Format("parquet", "Parquet with one request per row (extra: parquet)", _recognise, _read)
