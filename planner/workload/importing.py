"""From a file to a workload and an account of what was read: the one way in."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from planner.errors import InputError, refuse, unknown
from planner.shared.arguments import told_types
from planner.shared.documents import printable
from planner.units import DAY_S
from planner.workload.arrivals import POISSON_ASSUMED, Arrivals, arrivals_from_times, spread_ticks
from planner.workload.bulk import LARGE_BYTES, read_bulk
from planner.workload.formats.base import MAX_BAD_SHARE, MOST_CATEGORIES, ImportReport, ReadOptions, TraceBuilder
from planner.workload.formats.rows import read_rows
from planner.workload.resolve import expand, resolve_workload
from planner.workload.sessions import Sessions, joined
from planner.workload.source import Progress, Source, normal_name
from planner.workload.synthetic import SyntheticLengths, SyntheticSessions
from planner.workload.trace import Floats, Intervals, Ints, Trace
from planner.workload.workload import Provenance, Workload

if TYPE_CHECKING:
    from planner.workload.formats.base import Format


def read_workload(
    path: str | Path, *, input_format: str | None = None, progress: Progress | None = None, **options: Any
) -> tuple[Workload, ImportReport]:
    """Read one file in any known format.

    Parameters
    ----------
    path
        An existing path, the name of a shipped workload, ``-`` for standard input, lengths (``isl=2000,osl=300``) or sessions
        (``turns=10,first=2000,growth=400,osl=300,gap=30s``).
    input_format
        Name of the format; ``None`` = recognised by content.
    progress
        Called with (bytes read, bytes in all).
    **options
        What is said about the file: fields of :class:`planner.workload.formats.base.ReadOptions`.

    Returns
    -------
    tuple
        The workload and the account of the import.

    Raises
    ------
    InputError
        A file that cannot be read, with every problem found and its line.

    >>> workload, report = read_workload("azure")
    >>> report.format
    'fleetopt'
    """
    if (lengths := SyntheticLengths.parse(str(path)) or SyntheticSessions.parse(str(path))) is not None:
        made = lengths.workload()
        return made, ImportReport(lengths.name, "synthetic", made.rows, made.rows)
    workload, reports = import_files(
        [(None, path)], ReadOptions(**options), input_format=input_format, progress=progress
    )
    return workload, reports[0]


def import_files(
    files: Sequence[tuple[str | None, str | Path]],
    options: ReadOptions,
    *,
    input_format: str | None = None,
    name: str | None = None,
    progress: Progress | None = None,
    most: int | None = None,
) -> tuple[Workload, list[ImportReport]]:
    """One workload of one or more files, the traces among them superposed in time.

    Parameters
    ----------
    files
        (category or ``None``, path, pattern such as ``logs/*.csv``, address or shipped name).
    options
        What is said about the files; each category overrides the one in it.
    input_format, progress
        As in :func:`read_workload`.
    name
        Name of the workload; ``None`` = of the first file.
    most
        Requests kept one by one; of more, whole stretches (:meth:`planner.workload.trace.Intervals.stretches`). ``None`` =
        all.

    Raises
    ------
    InputError
        A file that cannot be read; several files of which one is a distribution (mix those).
    """
    if len(files) == 2 and options.baseline is None:
        sources = (Source(resolve_workload(path)) for _, path in files)
        if all(source.kind == "metrics" for source in sources):
            # two scrapes: the first is the earlier one
            options = replace(options, baseline=Source(resolve_workload(files[0][1])))
            files = files[1:]
    files = [(category, one) for category, path in files for one in expand(path)]
    traces: list[TraceBuilder] = []
    for category, path in files:
        found = read_trace(
            path, input_format, options if category is None else replace(options, category=category), progress
        )
        if isinstance(found, TraceBuilder):
            traces.append(found)
        elif len(files) > 1:
            raise InputError(
                f"{path}: a distribution, not a trace: it cannot be merged request by request",
                "Use: fleetopt workload mix.",
            )
        else:
            workload, report = found
            return (workload if name is None else workload.renamed(name)), [report]
    return workload_from_traces(traces, options, name=name, most=most)


def read_trace(
    path: str | Path, input_format: str | None, options: ReadOptions, progress: Progress | None = None
) -> TraceBuilder | tuple[Workload, ImportReport]:
    """The requests of a file as collected, or a workload when the file holds a distribution."""
    source = Source(resolve_workload(path), progress)
    form = _choose(source, input_format, options.columns)
    found = (read_bulk(source, form, options) if source.size >= LARGE_BYTES else None) or form.read(source, options)
    if options.where and not isinstance(found, TraceBuilder):
        raise InputError(
            f"{source.name}: this format has no columns to select requests by", "Import it without --where."
        )
    if isinstance(found, TraceBuilder) and options.category is not None:
        found.label(options.category)
    return found


def _choose(source: Source, input_format: str | None, columns: Mapping[str, str]) -> Format:
    """The format asked for, or the first that recognises the head of the file."""
    from planner.workload.formats.registry import format_names, formats

    if input_format is not None:
        known = {f.name: f for f in formats()}
        if input_format not in known:
            raise unknown(f"unknown input format {input_format!r}", input_format, format_names())
        return known[input_format]
    for candidate in formats(source.kind):
        if candidate.recognise(source) or (columns and candidate.last_resort and candidate.layout is not None):
            return candidate
    if "fleetopt-plan" in source.text[:1000]:
        raise InputError(
            f"{source.name}: a plan, not a workload",
            "Plan again from it: plan --config FILE. Its fleet at other rates: evaluate FILE.",
        )
    raise _unknown(source.name, source.columns or tuple(sorted(source.keys)))


LIKE = {
    "input": ("input", "prompt", "in"),
    "output": ("output", "completion", "response", "generat", "answer", "gen", "out"),
    "time": ("time", "date", "ts"),
}
"""Parts of names by which a column is taken for one of a kind when another name is asked for."""


def _unknown(name: str, columns: Sequence[str]) -> InputError:
    """What to say of columns that no format knows: which is missing, and the command that names them, guessed where it can be."""
    from planner.workload.formats.registry import common_layout

    if not columns:
        return InputError(f"{name}: not a format known here", "Force one: fleetopt workload import --help lists them.")
    shown = ", ".join(printable(column, 40) for column in columns[:12])
    known = {side: {*map(normal_name, common_layout()[side])} for side in LIKE}
    named = {side: next((c for c in columns if normal_name(c) in known[side]), "") for side in LIKE}
    missing = [side for side in ("input", "output") if not named[side]]
    for side, words in LIKE.items():
        rest = [c for c in columns if c not in named.values()]
        named[side] = named[side] or next((c for w in words for c in rest if w in normal_name(c)), "")
    mapped = " ".join(
        f"--map {shlex.quote(f'{s}={c}' if c else f'{s}=COLUMN')}" for s, c in named.items() if c or s != "time"
    )
    hint = f"Name its columns: fleetopt workload import {shlex.quote(name)} {mapped} -o traffic.csv."
    if len(missing) != 1:
        return InputError(f"{name}: not a format known here (found: {shown})", hint)
    such = common_layout()[missing[0]][0]
    return InputError(f"{name}: no column of {missing[0]} tokens, such as {such} (found: {shown})", hint)


def _usable(traces: Sequence[TraceBuilder], options: ReadOptions, most: int | None) -> None:
    """Every trace holds a request and hardly any row that cannot be read, or an InputError with all that is wrong."""
    problems: list[str] = []
    hint = None
    for trace in traces:
        if trace.unreadable > MAX_BAD_SHARE * trace.rows_read and not options.allow_bad_rows:
            shown = list(trace.examples)
            if trace.unreadable > len(shown):
                shown.append(f"{trace.path}: ... and {trace.unreadable - len(shown):,} more")
            problems += shown
            hint = (
                f"{trace.unreadable:,} of {trace.rows_read:,} rows of {trace.path} cannot be read (limit 0.1%); "
                "--allow-bad-rows drops them."
            )
            if "is not a time" in problems[0]:
                hint += " A time is a number, or like 2026-11-01T08:00:00."
        elif not trace.inputs:
            why = ", ".join(f"{n:,} {reason}" for reason, n in trace.dropped.items())
            why = why or (f"{trace.unreadable:,} unreadable" if trace.unreadable else "no rows after the header")
            problems.append(f"{trace.path}: no usable request ({why})")
        elif trace.stretches is not None and (len(traces) > 1 or (most is not None and len(trace.inputs) > most)):
            problems.append(
                f"{trace.path}: stretches of a longer trace, which cannot be merged or cut: import that trace again"
            )
    kinds = {name for trace in traces for name in trace.categories}
    if len(kinds) > MOST_CATEGORIES:
        problems.append(
            f"{traces[0].path}: {len(kinds):,} different categories (at most {MOST_CATEGORIES:,}): they name requests"
        )
        hint = "Name another column: --map category=COLUMN; or one category for all of a file: NAME=FILE."
    refuse(problems, hint, of=traces[0].path)


def workload_from_traces(
    traces: Sequence[TraceBuilder], options: ReadOptions, *, name: str | None = None, most: int | None = None
) -> tuple[Workload, list[ImportReport]]:
    """One workload of the requests of one or more traces (superposed in time where all have absolute times).

    Parameters
    ----------
    traces
        As readers collected them; category names are kept.
    options
        Leave to drop bad rows.
    name
        Name of the workload; ``None`` = of the first file.
    most
        As in :func:`import_files`; the traces are used up.

    Raises
    ------
    InputError
        More than 0.1% unreadable rows, or no request at all; every file's problems at once.
    """
    _usable(traces, options, most)
    alone = traces[0] if len(traces) == 1 else None
    title = name or (alone and alone.name) or Path(traces[0].path).name.split(".")[0]
    names = sorted({c for trace in traces for c in trace.categories} - {""})
    if names and any(len(t.category) != len(t.inputs) or "" in t.categories for t in traces):
        names = ["", *names]
    requests = sum(len(t.inputs) for t in traces)
    category = _joined([_category(t, names) for t in traces])
    inputs = _joined([np.asarray(t.inputs) for t in traces])
    outputs = _joined([np.asarray(t.outputs) for t in traces])
    sessions, assumed, relative = _sessions(traces, inputs, outputs, category)
    accounts = [_account(trace, relative) for trace in traces]
    notes = [note for told, _ in accounts for note in told] + assumed
    reports = [report for _, report in accounts]
    arrivals, recorded, intervals = _stamps(traces, inputs, outputs, category, relative, most)
    rows = _merge_equal(inputs, outputs, category)
    del inputs, outputs, category
    # of millions of requests every column counts
    for trace in traces:
        trace.forget()
    if most is not None and sessions is not None and sessions.calls > most:
        sessions = sessions.kept(most, None if recorded is None else recorded.stretches)
    workload = Workload.from_arrays(
        *rows[:2],
        category=rows[2],
        weight=rows[3],
        categories=names or [""],
        arrivals=arrivals,
        name=title,
        provenance=Provenance(
            source="; ".join(dict.fromkeys(t.source or Path(t.path).name for t in traces)),
            licence="; ".join(dict.fromkeys(t.licence for t in traces if t.licence)),
            requests=requests,
            notes=tuple(dict.fromkeys(notes)),
        ),
        recorded=recorded,
        intervals=intervals,
        sessions=sessions,
    )
    if alone is not None and alone.described is not None:
        workload = alone.described(workload)
        reports = [replace(reports[0], rate_per_s=workload.arrivals.rate_per_s)]
    return workload, reports


def _stamps(
    traces: Sequence[TraceBuilder], inputs: Floats, outputs: Floats, category: Ints, relative: bool, most: int | None
) -> tuple[Arrivals, Trace | None, Intervals | None]:
    """What the times say: the arrival process, the requests one by one, and where those are stretches all of them by the minute."""
    if relative:
        return Arrivals(assumed=SINCE_SESSION), None, None
    arrivals, times = _arrivals(traces)
    if times is None or not float(np.ptp(times)) > 0.0:
        return arrivals, None, None
    times = times - times.min()
    counted = None if most is None or times.size <= most else Intervals.of(times)
    parts = None if counted is None or most is None else counted.stretches(most)
    if counted is None or parts is None:
        return arrivals, _recorded(times, inputs, outputs, category), None
    keep = parts.holding(times) >= 0
    whole = _recorded(times[keep], inputs[keep], outputs[keep], category[keep])
    return arrivals, whole.within(parts), counted.coarser(60.0)


def _category(trace: TraceBuilder, names: Sequence[str]) -> Ints:
    """Of each request the place of its category among the names, as small whole numbers as hold them."""
    if not names or len(trace.category) != len(trace.inputs):
        return np.zeros(len(trace.inputs), dtype=np.uint8)
    known = {name: k for k, name in enumerate(names)}
    place = np.array([known[c] for c in trace.categories])
    return place.astype(np.min_scalar_type(len(names)))[np.frombuffer(trace.category, dtype=np.intc)]


def _merge_equal(
    inputs: Floats, outputs: Floats, category: Ints
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Equal requests become one row; the law is the same and everything after it is faster."""
    wide, narrow = (int(column.max()) + 1 for column in (inputs, category))
    counts_alone = all(
        np.array_equal(column, np.rint(column)) for column in (inputs, outputs) if column.dtype.kind == "f"
    )
    if not counts_alone or (wide + int(outputs.max())) * wide * narrow >= 1 << 63:
        (inputs, outputs, kind), counts = np.unique([inputs, outputs, category], axis=1, return_counts=True)
        return inputs, outputs, kind.astype(np.int64), counts
    # counts are whole numbers: one key sorts faster than three columns, the total first as a workload keeps its rows
    keys = np.add(inputs, outputs, dtype=np.int64, casting="unsafe")
    for column, most in ((inputs, wide), (category, narrow)):
        keys *= most
        np.add(keys, column, out=keys, casting="unsafe")
    keys, counts = np.unique(keys, return_counts=True)
    lengths, category = np.divmod(keys, narrow)
    total, inputs = np.divmod(lengths, wide)
    return inputs, total - inputs, category, counts


def _joined(columns: Sequence[np.ndarray]) -> np.ndarray:
    """One column of all; of millions of requests it is not copied where there is one."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _recorded(times: Floats, inputs: Floats, outputs: Floats, category: Ints) -> Trace:
    """The requests in order of arrival."""
    order = np.argsort(times, kind="stable")
    columns = inputs[order].astype(float), outputs[order].astype(float), category[order].astype(np.int64)
    return Trace(times[order], *columns)


SINCE_SESSION = "times count from the start of each session: rate not known, sessions start as a Poisson process"
"""What is told of the arrivals of a file whose times are those of each session by itself."""


def _sessions(
    traces: Sequence[TraceBuilder], inputs: Floats, outputs: Floats, category: Ints
) -> tuple[Sessions | None, list[str], bool]:
    """The calls session by session, ``None`` where a file names none; what was assumed; whether times are those of each session."""
    found, notes, start = [], list[str](), 0
    said = [t.calls for t in traces if t.calls is not None]
    if len(said) < len(traces):
        return None, [], False
    of_files = [np.frombuffer(t.times) for t in traces]
    relative = any(calls.relative(times) for calls, times in zip(said, of_files, strict=True))
    complete = all(len(t.times) == len(t.inputs) for t in traces)
    alike = len(traces) == 1 or all(t.clock.absolute for t in traces)
    first = min((float(times.min()) for times in of_files if times.size), default=0.0)
    for trace, calls, clock in zip(traces, said, of_files, strict=True):
        rows = slice(start, start + len(trace.inputs))
        start = rows.stop
        times = clock - (first if alike else clock.min()) if clock.size == len(trace.inputs) else None
        made = calls.sessions(inputs[rows], outputs[rows], category[rows], times)
        if made is None:
            return None, [], False
        found.append(made[0] if complete and not relative else replace(made[0], start_s=None))
        notes += made[1]
    return joined(found), notes, relative


_YEAR_S = 365.25 * DAY_S  # of the calendar, leap years too
_LONGEST_S = 5.0 * _YEAR_S  # nobody has kept requests for longer


def _arrivals(traces: Sequence[TraceBuilder]) -> tuple[Arrivals, Floats | None]:
    """The process, and the times of all requests [s]; ``None`` where some requests have none.

    Coarse clocks are spread; times are on one clock where all are absolute, else each file's from its own start.
    """
    timed = [t for t in traces if t.times]
    if not timed:
        return Arrivals(assumed=POISSON_ASSUMED), None
    if len(timed) < len(traces):
        return Arrivals(assumed="some of the files have no times: rate not known, Poisson assumed"), None
    absolute = all(t.clock.absolute for t in traces)
    of_files = [spread_ticks(np.frombuffer(t.times))[0] for t in traces]
    if len(traces) > 1 and not absolute:
        of_files = [moments - moments.min() for moments in of_files]
    times = _joined(of_files)
    if (span := float(np.ptp(times))) > _LONGEST_S:
        raise InputError(
            f"{timed[0].path}: its times span {span / _YEAR_S:,.0f} years, from {times.min():.10g} s to {times.max():.10g} s",
            "One of them is no time of a request, or its unit is another one (--time-unit): correct it, or leave the row out.",
        )
    complete = all(len(t.times) == len(t.inputs) for t in traces)
    return arrivals_from_times(times, absolute=bool(absolute)), times if complete else None


def _account(trace: TraceBuilder, relative: bool) -> tuple[list[str], ImportReport]:
    """What was done to a trace (ticks, order, rows dropped), and the account of it."""
    notes, dropped = list(trace.notes), sorted(trace.dropped.items())
    times = np.frombuffer(trace.times) if trace.times and not relative else np.zeros(0)
    late = int(np.count_nonzero(times[1:] < times[:-1]))
    tick = spread_ticks(times)[1]
    if tick is not None:
        notes.append(f"the clock ticks every {tick:g} s: requests of a tick are spread over it")
    if late:
        notes.append(f"{late:,} times out of order; sorted")
    span = float(np.ptp(times)) if times.size else None
    report = ImportReport(
        path=trace.path,
        format=trace.format,
        rows_read=trace.rows_read,
        requests=len(trace.inputs),
        dropped=dict(trace.dropped),
        unreadable=trace.unreadable,
        unreadable_examples=tuple(trace.examples),
        span_s=span,
        rate_per_s=len(trace.times) / span if span else None,
        notes=tuple(notes),
    )
    notes += [f"dropped {count:,} of {trace.rows_read:,}: {reason}" for reason, count in dropped]
    if trace.unreadable:
        notes.append(f"dropped {trace.unreadable:,} of {trace.rows_read:,}: unreadable")
    return notes, report


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
        read_rows(builder, "DataFrame", [str(c) for c in frame.columns], enumerate(frame.itertuples(index=False), 1))
        workload, _ = workload_from_traces([builder], builder.options)
    except InputError as error:
        # hints of files name options of the command line
        hint = "Name its columns input_tokens, output_tokens and, where known, timestamp and category; drop rows without them."
        raise InputError.from_problems(error.problems or (error.message,), hint) from None
    return workload


def taken(given: Any) -> Any:
    """A data frame as the workload it holds; anything else as it is."""
    return workload_from_frame(given) if hasattr(given, "itertuples") else given


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
    given = taken(source)
    if isinstance(given, Workload):
        return given if arrival_rate_per_s is None else given.with_rate(arrival_rate_per_s)
    return Workload.from_file(given, arrival_rate_per_s, input_format)
