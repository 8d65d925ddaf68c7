"""A data frame of requests as a workload: columns are recognised as in a CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

from planner.errors import InputError
from planner.workload.formats.base import TraceBuilder
from planner.workload.formats.registry import common_fields
from planner.workload.formats.rows import read_rows
from planner.workload.importing import workload_from_traces
from planner.workload.workload import Workload


@runtime_checkable
class Frame(Protocol):
    """What is needed of a pandas data frame."""

    columns: Any

    def itertuples(self, index: bool = True) -> Iterable[Any]:
        """Its rows."""
        ...


def workload_from_frame(frame: Frame) -> Workload:
    """One request per row: lengths, and times and categories where there are columns for them.

    Parameters
    ----------
    frame
        Columns named as in a CSV that ``fleetopt workload import`` recognises: ``input_tokens``, ``output_tokens``,
        ``timestamp``, ``category``, or another name in use for them. Times are date-times, or numbers.

    Raises
    ------
    InputError
        A column is missing or there twice; more than 0.1% of the rows cannot be read; no row at all.
    """
    builder = TraceBuilder("DataFrame", "frame")
    try:
        read_rows(builder, "DataFrame", [str(c) for c in frame.columns], _rows(frame), common_fields())
        workload, _ = workload_from_traces([builder], builder.options)
    except InputError as error:
        # hints of files name options of the command line
        hint = "Name its columns input_tokens, output_tokens and, where known, timestamp and category; drop rows without them."
        raise InputError.from_problems(error.problems or (error.message,), hint) from None
    return workload


def _rows(frame: Frame) -> Iterator[tuple[int, list[Any]]]:
    """Rows with their numbers, from 1; times as text, which the clock reads."""
    for row, values in enumerate(frame.itertuples(index=False), 1):
        yield row, [v.isoformat(sep=" ") if hasattr(v, "isoformat") else v for v in values]
