"""What every reader shares: options, the collector of requests, numbers and times as people write them."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from planner.errors import MOST_TOLD, InputError
from planner.shared.record import Record
from planner.units import SECONDS, TIME_UNITS
from planner.workload.calls import MOST_IMAGES, CallColumns, images_in, labelled, read_call

if TYPE_CHECKING:
    from planner.workload.source import Source
    from planner.workload.trace import Stretches
    from planner.workload.workload import Workload

JSON = ("json", "jsonl", "array")
"""Kinds of a JSON file."""

MAX_BAD_SHARE = 0.001
"""Share of unreadable records above which an import is refused."""

MAX_TOKENS = 10**9
"""Nothing longer can be a request [tokens]."""

MOST_CATEGORIES = 1000
"""More are no kinds of requests: every one of them is a law of its own."""

Layout = Mapping[str, Any]
"""A row of ``table.yaml``: names of columns or paths in a record by role, the first that is there, and what else it says."""

CALLS = frozenset({"session", "cached", "duration", "ended", "blocks", "images"})
"""Roles of what is known of sessions and images; all may be absent from a file."""

ROLES = ("input", "output", "time", "category", "total", *sorted(CALLS))
"""What a column may be; of the total only where there is no output."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a user may say about a file.

    Parameters
    ----------
    columns
        Own names of columns or JSON paths: keys ``input``, ``output``, ``time``, ``category``, ``total``, ``session``,
        ``cached``, ``duration``, ``images``.
    category
        One category for all requests of the file.
    allow_bad_rows
        Whether more than 0.1% unreadable records may be dropped.
    tokens_per_character
        For text without token counts [tokens/character].
    output_share
        For totals alone: share of the output [1].
    mean_output
        For totals alone: mean output [tokens].
    time_unit
        ``"s"``, ``"ms"``, ``"us"`` or ``"ns"`` for numeric times; ``None`` = from their size.
    baseline
        The first of two scrapes of counters.
    interval_s
        Time that a histogram covers [s].
    where
        Only the records whose columns (or JSON paths) have these values.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    category: str | None = None
    allow_bad_rows: bool = False
    tokens_per_character: float | None = None
    output_share: float | None = None
    mean_output: float | None = None
    time_unit: str | None = None
    baseline: Source | None = None
    interval_s: float | None = None
    where: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Format:
    """A file format: one file of this folder, found by its ``FORMAT``.

    Parameters
    ----------
    name
        What ``--input-format`` calls it.
    title
        One line for people.
    kinds
        Kinds of file it can be, as :class:`planner.workload.source.Source` names them.
    recognise
        Whether the beginning of a file looks like it.
    read
        (source, options) -> collector of requests, or a workload with its report when the file holds a distribution.
    last_resort
        Whether it also fits files of more particular formats and is asked after them.
    layout
        Its columns where every row is one request and nothing else needs looking at; ``None`` = only `read` can.
    """

    name: str
    title: str
    kinds: tuple[str, ...]
    recognise: Callable[[Source], bool]
    read: Callable[[Source, ReadOptions], TraceBuilder | tuple[Workload, ImportReport]]
    last_resort: bool = False
    layout: Layout | None = None


@dataclass(frozen=True, slots=True)
class ImportReport(Record):
    """Account of one import.

    Parameters
    ----------
    path, format
        What was read, and as which format.
    rows_read
        Records found, good and bad.
    requests
        Records in the workload.
    dropped
        Records left out on purpose, by reason (failed request, not a generation, ...).
    unreadable
        Records that could not be read (only with leave to drop them, or at most 0.1% of the file).
    unreadable_examples
        The first of them, with their lines.
    span_s
        Time from the first to the last request [s]; ``None`` without times.
    rate_per_s
        Requests over span [requests/s]; ``None`` without times.
    notes
        What was assumed or mended.
    """

    path: str
    format: str
    rows_read: int
    requests: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    unreadable: int = 0
    unreadable_examples: tuple[str, ...] = ()
    span_s: float | None = None
    rate_per_s: float | None = None
    notes: tuple[str, ...] = ()

    versioned: ClassVar[bool] = True

    def lines(self) -> list[str]:
        """The account in sentences, for people.

        >>> ImportReport("t.csv", "azure", 300, 299, {"no output": 1}).lines()
        ['t.csv: read as azure, 300 rows, 299 requests', 'dropped 1: no output']
        """
        text = [f"{self.path}: read as {self.format}, {self.rows_read:,} rows, {self.requests:,} requests"]
        text += [f"dropped {count:,}: {reason}" for reason, count in sorted(self.dropped.items())]
        if self.unreadable:
            text.append(f"dropped {self.unreadable:,}: unreadable")
            text += [f"  {example}" for example in self.unreadable_examples[:5]]
        if self.span_s is not None and self.rate_per_s is not None:
            text.append(f"time span {self.span_s:,.1f} s, rate {self.rate_per_s:.4g} requests/s")
        return [*text, *self.notes]


_GROUPED = re.compile(r"[1-9]\d{0,2}(,\d{3})+", re.ASCII)
"""Thousands apart by commas; no count has decimals that it could be."""


def parse_count(value: Any, what: str = "") -> int:
    """A number of tokens as traces write it: 374, "374", 374.0; as spreadsheets do, "1,204".

    Raises
    ------
    ValueError
        Negative, fractional, not finite, not a number; `what` names it.

    >>> parse_count("374"), parse_count(12.0), parse_count("1,204")
    (374, 12, 1204)
    """
    number = value
    try:
        if isinstance(value, str):
            text = value.strip()
            number = int(text) if text.isdigit() else float(text.replace(",", "") if _GROUPED.fullmatch(text) else text)
        if 0 <= number <= MAX_TOKENS and (type(number) is int or (type(number) is float and number == int(number))):
            return int(number)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"{what}{_shown(value)} is not a count")


_LATEST = 1e11  # the year 5138 [s]; larger numbers are no seconds
DATES_S = 5e8
"""From here on a number of seconds is a date, not a time since the start of a trace [s]."""
_SECONDS = re.compile(r":(\d{1,2}(?:\.\d*)?)\s*(?:Z|z|UTC|([+-])(\d\d):?(\d\d)?)?", re.ASCII)
"""What follows the minute of a date: seconds and a zone."""


@dataclass(slots=True)
class Clock:
    """Reads times: moments of their own, ISO 8601 (a zone or UTC), or numbers since 1970 or since the start of the trace.

    The unit of numbers is taken from the size of the first: seconds since 1970 have ten digits, milliseconds thirteen,
    microseconds sixteen, nanoseconds nineteen; smaller numbers are `unit` since the start.

    Parameters
    ----------
    unit
        Unit of numbers, ``None`` = as above with seconds for the small ones.
    """

    unit: str | None = None
    absolute: bool | None = None
    scale: float | None = field(default=None, init=False)
    _minutes: dict[str, float] = field(default_factory=dict)

    def named(self, column: str) -> None:
        """Take the unit that the name of a column of times ends with, where none is told.

        >>> clock = Clock()
        >>> clock.named("arrival_ms")
        >>> clock.unit
        'ms'
        """
        _, underscore, unit = column.strip().lower().rpartition("_")
        if self.unit is None and underscore and unit in TIME_UNITS:
            self.unit = unit

    def read(self, value: Any) -> float:
        """Seconds; ValueError when `value` is no time."""
        try:
            # what most files hold first
            if type(value) is str and len(value) > 16 and value[4] == "-":
                seconds = self._iso(value.strip())
            else:
                seconds = value * self.scale if type(value) is float and self.scale is not None else self._read(value)
            if abs(seconds) <= _LATEST:
                return seconds
        except (AttributeError, TypeError, ValueError, OverflowError, IndexError):
            pass
        raise ValueError(f"time {_shown(value)} is not a time")

    def _read(self, value: Any) -> float:
        """Seconds of a number in the clock's unit, or of a date."""
        if not isinstance(value, (str, int, float)):
            value = value.isoformat(sep=" ")
        number = value
        if isinstance(value, str):
            text = value.strip()
            try:
                number = int(text) if text.isdigit() else float(text)
            except ValueError:
                return self._iso(text)
        if isinstance(number, bool) or not math.isfinite(number):
            raise ValueError
        if self.scale is None:
            self._set_scale(number)
        if self.absolute and isinstance(number, int) and self.scale == 1e-9:
            return number // 1_000_000_000 + (number % 1_000_000_000) * 1e-9
        return float(number * (self.scale or 1.0))

    def _set_scale(self, number: float) -> None:
        size = abs(number)
        guess = next(
            (u for limit, u in ((1e17, "ns"), (1e14, "us"), (_LATEST, "ms"), (DATES_S, "s")) if size >= limit), None
        )
        unit = self.unit or guess or "s"
        if unit not in TIME_UNITS:
            raise InputError(f"time unit {unit!r} is none of {', '.join(TIME_UNITS)}")
        self.scale = SECONDS[unit]
        if self.absolute is None:
            self.absolute = size * self.scale >= DATES_S

    def _iso(self, text: str) -> float:
        """Seconds of a date and time; without a zone it is UTC."""
        if self.scale is not None and self.absolute is False:
            raise ValueError
        self.absolute = True
        # the minute is looked up, the seconds read on their own: fast, and all digits of the fraction count
        minute, rest = text[:16], text[16:]
        start = self._minutes.get(minute)
        if start is None:
            start = datetime.fromisoformat(minute).replace(tzinfo=UTC).timestamp()
            self._minutes[minute] = start
        if rest[:1] != ":":
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        found = _SECONDS.fullmatch(rest)
        if found is None or float(found[1]) >= 61.0:
            raise ValueError
        sign, hours, minutes = found.group(2, 3, 4)
        # what takes local time to UTC [s]
        shift = (int(hours) * 60 + int(minutes or 0)) * (-60.0 if sign == "+" else 60.0) if sign else 0.0
        return start + float(found[1]) + shift


@dataclass(slots=True)
class TraceBuilder:
    """Collects requests as a reader finds them; counts what it leaves out.

    Parameters
    ----------
    path, format
        For messages.
    layout
        Columns of the format.
    options
        What is said about the file.
    timed
        Whether no request may lack a time from the first on; where users made the times none may once others had one.
    runs, place
        Of what holds several runs or conversations: how many were begun, and where in it the reader is, for messages.
    name
        What the file calls its workload.
    calls
        What is said of sessions; ``None`` = nothing.
    stretches
        Where the requests are stretches of a longer trace.
    described
        What else the file says of its workload, where it is read alone.
    """

    path: str
    format: str
    layout: Layout = field(default_factory=dict)
    options: ReadOptions = field(default_factory=ReadOptions)
    timed: bool = False
    clock: Clock = field(init=False)
    inputs: array[float] = field(default_factory=lambda: array("d"))
    outputs: array[float] = field(default_factory=lambda: array("d"))
    times: array[float] = field(default_factory=lambda: array("d"))
    category: array[int] = field(default_factory=lambda: array("i"))
    categories: dict[str, int] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    examples: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    source: str = ""
    licence: str = ""
    runs: int = 0
    place: str = ""
    calls: CallColumns | None = None
    name: str = ""
    stretches: Stretches | None = None
    described: Callable[[Workload], Workload] | None = None

    def __post_init__(self) -> None:
        self.clock = Clock(self.options.time_unit or self.layout.get("time_unit"))

    def names(self, role: str) -> tuple[str, ...]:
        """What the column of a role may be called: the user's own name alone where there is one."""
        own = self.options.columns
        return (own[role],) if role in own else tuple(self.layout.get(role, ()))

    @property
    def rows_read(self) -> int:
        """Records seen, good and bad."""
        return len(self.inputs) + self.dropped.total() + self.unreadable

    def bad(self, line: int, problem: str) -> None:
        """Count one record that cannot be read."""
        self.unreadable += 1
        if len(self.examples) < MOST_TOLD:
            self.examples.append(f"{self.path}:{line}: {self.place}{problem}")

    def forget(self) -> None:
        """Let go of the columns; what was counted stays."""
        self.inputs, self.outputs, self.times, self.category = array("d"), array("d"), array("d"), array("i")

    def label(self, category: str) -> None:
        """Put all requests into one category, or one for each number of images."""
        seen = images_in(self.categories)
        names = [labelled(category, seen.get(name, 0)) for name in self.categories] or [category]
        self.categories = {name: k for k, name in enumerate(dict.fromkeys(names))}
        place = [self.categories[name] for name in names]
        found = self.category or array("i", [0]) * len(self.inputs)
        self.category = array("i", map(place.__getitem__, found))

    def checked(self) -> TraceBuilder:
        """Itself, when all is read: requests without a time are told of; a load generator's times are left out where they are of
        several runs, or of some requests only."""
        untimed = len(self.inputs) - len(self.times) if self.times else 0
        if what := self.layout.get("load_generator"):
            self.notes.append("times are those of a load generator, not of users")
            if self.times and (self.runs > 1 or untimed):
                self.times = self.times[:0]
                # runs at different rates, one after another, have no common rate
                several = f"{self.runs} {what} in the file: their times are left out"
                self.notes.append(several if self.runs > 1 else "some records have no time: all times are left out")
        elif untimed:
            self.notes.append(f"the first {untimed:,} records have no time; the rate is that of the others")
        return self

    def add(self, line: int, said: Mapping[str, Any]) -> None:
        """Add one request, or count it as unreadable.

        Parameters
        ----------
        line
            Its line, for messages.
        said
            What was found of it by role, ``input`` and ``output`` at least, and what is known of its session: see
            :func:`planner.workload.calls.read_call`.
        """
        time, category, call = said.get("time"), None, None
        try:
            sent, got = parse_count(said["input"], "input tokens "), parse_count(said["output"], "output tokens ")
            if time is None and (self.timed or (self.times and "load_generator" not in self.layout)):
                raise ValueError(self._lacks("time"))
            moment = math.nan if time is None else self.clock.read(time)
            if "category" in said:
                category = "" if said["category"] is None else str(said["category"]).strip()
            if not CALLS.isdisjoint(said):
                # a record that says nothing of them beside others that do has a category already, if an empty one
                if "images" in said and (said["images"] is not None or category is None):
                    category = labelled(category or "", _images(said["images"]))
                call = read_call(said, moment, self.clock.read)
        except ValueError as error:
            absent = [role for role in ("input", "output") if said[role] is None]
            self.bad(line, self._lacks(absent[0]) if absent else str(error))
            return
        if sent + got == 0:
            self.dropped["no tokens at all"] += 1
            return
        if time is not None:
            self.times.append(moment)
        self.inputs.append(sent)
        self.outputs.append(got)
        if category is not None:
            self.category.append(self.categories.setdefault(category, len(self.categories)))
        if call is not None:
            self.calls = self.calls or CallColumns()
            self.calls.add(len(self.inputs), call)

    def _lacks(self, role: str) -> str:
        return f"no {' or '.join(self.names(role)[:3])}"


def packed(kind: str, values: Any) -> array[Any]:
    """A column as :class:`TraceBuilder` keeps it."""
    column = array(kind)
    column.frombytes(np.ascontiguousarray(values, dtype=kind).view(np.uint8).data)
    return column


def _images(value: object) -> int:
    """Images of a prompt, blank = none."""
    if isinstance(value, (list, tuple)):
        return len(value)
    try:
        count = 0 if value is None or value != value or not str(value).strip() else parse_count(value)
    except ValueError:
        count = MOST_IMAGES + 1
    if count > MOST_IMAGES:
        raise ValueError(f"images {_shown(value)} is not a number of images")
    return count


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
