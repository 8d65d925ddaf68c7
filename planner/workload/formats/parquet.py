"""Parquet with one request per row (needs the extra ``parquet``); columns as in the generic CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.shared.extras import installing
from planner.workload.formats.base import Clock, Format, ReadOptions, TraceBuilder
from planner.workload.formats.registry import common_fields
from planner.workload.formats.rows import read_rows
from planner.workload.source import normal_name

if TYPE_CHECKING:
    from planner.workload.source import Source


def _read(source: Source, options: ReadOptions) -> TraceBuilder:
    """Columns by their names, in groups of rows."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise InputError(f"{source.name}: reading Parquet needs pyarrow", installing("parquet")) from error
    try:
        file = parquet.ParquetFile(source.path)
    except Exception as error:
        raise InputError(f"{source.name}: not a readable Parquet file: {error}") from error
    builder = TraceBuilder(source.name, FORMAT.name, Clock(options.time_unit), options)
    fields = common_fields()
    sides = (
        fields.input,
        fields.output,
        fields.time,
        fields.category,
        fields.images,
        options.columns.values(),
        options.where,
    )
    known = {normal_name(name) for side in sides for name in side}
    # prompts and answers are often stored beside their lengths: only the columns that may be needed are read
    there = [str(c) for c in file.schema_arrow.names]
    names = [c for c in there if normal_name(c) in known]
    read_rows(builder, source.name, names, _rows(source, file, names), fields, there=there)
    return builder


def _rows(source: Source, file: Any, names: list[str]) -> Iterator[tuple[int, list[Any]]]:
    """Rows with their numbers, a batch of columns at a time."""
    row = 0
    for batch in file.iter_batches(batch_size=65_536, columns=names):
        for values in zip(*([_plain(v) for v in column.to_pylist()] for column in batch.columns), strict=True):
            row += 1
            yield row, list(values)
        if source.progress is not None:
            source.progress(row, file.metadata.num_rows)


def _plain(value: Any) -> Any:
    """Times as text, which the clock reads; the rest as it is."""
    return value.isoformat(sep=" ", timespec="microseconds") if hasattr(value, "isoformat") else value


FORMAT = Format(
    "parquet",
    "Parquet with one request per row (extra: parquet)",
    ("parquet",),
    lambda head: True,
    _read,
    fields=common_fields(),
)
