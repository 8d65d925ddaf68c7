"""A workload as it is given: by the name of a file or of a shipped one, or as a data frame of requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from planner.errors import InputError
from planner.shared.arguments import told_types
from planner.workload.formats.base import TraceBuilder
from planner.workload.formats.rows import read_rows
from planner.workload.importing import workload_from_traces
from planner.workload.workload import Workload


@told_types
def load_workload(
    source: Workload | Frame | str | Path, arrival_rate_per_s: float | None = None, *, input_format: str | None = None
) -> Workload:
    """A workload from a file in any known format, a pandas data frame, or a shipped one by name.

    Parameters
    ----------
    source
        Path, a shipped name (``fleetopt workload list``), or a data frame of requests, its columns named as in a CSV.
    arrival_rate_per_s
        Rate instead of the file's own [1/s].
    input_format
        Name of the format; default recognised by content.

    Returns
    -------
    Workload
    """
    taken = as_given(source)
    if isinstance(taken, Workload):
        return taken if arrival_rate_per_s is None else taken.with_rate(arrival_rate_per_s)
    return Workload.from_file(taken, arrival_rate_per_s, input_format)


def as_given(given: Any) -> Any:
    """A data frame as the workload it holds; anything else as it is."""
    if not hasattr(given, "itertuples"):
        return given
    return workload_from_frame(given)


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
    from planner.workload.formats.registry import common_layout

    builder = TraceBuilder("DataFrame", "frame", common_layout())
    try:
        read_rows(builder, "DataFrame", [str(c) for c in frame.columns], _rows(frame))
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
