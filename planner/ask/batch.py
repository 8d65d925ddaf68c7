"""Batch jobs beside requests: how many a fleet takes hour by hour without breaking a promise, and what the rest needs."""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Unpack

import numpy as np

from planner.ask.capacity import COARSE, largest
from planner.ask.evaluation import Served, latencies, refuse_linked, replayed, served_of
from planner.ask.hourly import Elasticity, Hourly
from planner.ask.options import OwnOptions
from planner.ask.schedule import DAYS
from planner.errors import InputError
from planner.machine.engines import DEFAULT_ENGINE
from planner.machine.engines import engine as find_engine
from planner.plans import Plan
from planner.predict.contract import Prediction
from planner.predict.records import Floats
from planner.promise import Promise
from planner.question.compiled import JOINT_LEVELS
from planner.shared.arguments import told_types
from planner.shared.notebook import InNotebooks
from planner.shared.record import Record
from planner.size.fleet import Fleet
from planner.size.pool import Pool
from planner.units import HOUR_S, HOURS_PER_DAY, format_count, parse_tokens
from planner.workload.hours import HourlyRates
from planner.workload.importing import Frame, load_workload
from planner.workload.pools import Lengths
from planner.workload.workload import Workload

LEVELS = 5
"""Rates between the calmest hour and the busiest at which batch is tried: every hour counts as the next busier of them."""

DONE = 0.95
"""Share of the jobs that do not wait any more when the last one is sent: where less are, their queue grows [1]."""

STEP_DOWN = 0.97
"""What is taken back of a rate that a sample of the requests allows and all of them do not [1]."""

MOST_REPLICAS = 64
"""Times the replicas there are, at most, that jobs are given."""

LEAST = 0.01
"""Share of what engines do of jobs alone below which they take none [1]."""

STEP = 1.1
"""Factor of the first step to the largest number of jobs [1]."""


@dataclass(frozen=True, slots=True)
class BatchHour(Record):
    """One pool in one hour.

    Parameters
    ----------
    time
        ``"22:00"``, in a week ``"Tue 22:00"``.
    pool
        Its name.
    hours
        How much of the hour lies before the deadline [h].
    rate_per_s
        Requests of the pool that somebody waits for [1/s].
    jobs_per_s
        Jobs to send, at most, evenly [1/s].
    tokens
        Prompt and output tokens of those jobs [tokens].
    latency
        Promise, as tables call it -> its value beside so many jobs [s].
    """

    time: str
    pool: str
    hours: float
    rate_per_s: float
    jobs_per_s: float
    tokens: float
    latency: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class BatchRoom(InNotebooks):
    """What a fleet takes beside its requests.

    Parameters
    ----------
    inputs
        The question, in the options' own names.
    jobs
        Name of the jobs.
    start, deadline
        When the first may be sent and the last must be done.
    mean_tokens
        Prompt and output of a job on average [tokens].
    asked_jobs
        How many there are; ``None`` = not said.
    room_jobs
        How many are done by the deadline at most.
    more
        GPU -> how many more do the rest; empty where nothing is left over.
    more_usd_per_hour
        What those cost [USD/hour].
    priority
        Which every job is sent with; requests are sent with 0, and the lowest comes first.
    flags
        What the engine is started with.
    rows
        One per hour and pool.
    served
        The fleet and its traffic.
    """

    inputs: Mapping[str, object]
    jobs: str
    start: str
    deadline: str
    mean_tokens: float
    asked_jobs: int | None
    room_jobs: int
    more: Mapping[str, int]
    more_usd_per_hour: float
    priority: int
    flags: tuple[str, ...]
    rows: tuple[BatchHour, ...]
    served: Served

    document: ClassVar[str] = "fleetopt-batch"
    written: ClassVar[tuple[str, ...]] = (
        "inputs", "jobs", "start", "deadline", "mean_tokens", "asked_jobs", "asked_tokens", "room_jobs", "room_tokens", "fits",
        "more", "more_usd_per_hour", "priority", "flags", "served", "hours=rows",
    )  # fmt: skip

    def __repr__(self) -> str:
        return f"<BatchRoom: {format_count(self.room_tokens)} tokens by {self.deadline}>"

    @property
    def asked_tokens(self) -> float | None:
        """Prompt and output tokens of the jobs there are [tokens]."""
        return None if self.asked_jobs is None else self.asked_jobs * self.mean_tokens

    @property
    def room_tokens(self) -> float:
        """Prompt and output tokens that are done by the deadline at most [tokens]."""
        return self.room_jobs * self.mean_tokens

    @property
    def fits(self) -> bool:
        """Whether the fleet does all jobs there are."""
        return self.asked_jobs is None or self.asked_jobs <= self.room_jobs

    def to_rows(self) -> list[dict[str, object]]:
        """One row per hour and pool."""
        return [{**{k: v for k, v in r.to_dict().items() if k != "latency"}, **r.latency} for r in self.rows]


@dataclass(frozen=True, slots=True)
class Window:
    """From when to when jobs are done.

    Parameters
    ----------
    start, deadline
        In words.
    hours
        Index of every hour in a week (Monday 0:00 first), or in a day, and how much of it there is [h].
    dated
        Whether the days of the week are known.
    """

    start: str
    deadline: str
    hours: tuple[tuple[int, float], ...]
    dated: bool


def _moment(text: str, name: str) -> datetime.datetime:
    """A time of day, on 1900-01-01, or a day with a time."""
    whole = f"1900-01-01T{text:0>5}" if re.fullmatch(r"\d{1,2}:\d\d", text) else text
    try:
        return datetime.datetime.fromisoformat(whole).replace(tzinfo=None)
    except ValueError:
        hint = "Write 06:00, or a day with it: 2027-01-31T06:00."
        raise InputError(f"{name}: {text!r} is no time", hint) from None


def window_of(deadline: str, start: str | None, now: datetime.datetime) -> Window:
    """The hours until a deadline.

    Parameters
    ----------
    deadline, start
        ``"06:00"`` (every day) or ``"2027-01-31T06:00"``; without a start a day before the one, `now` before the other.
    now
        The time it is.

    Raises
    ------
    InputError
        One is no time, or the deadline is past.

    >>> window_of("06:30", "22:00", datetime.datetime(2027, 1, 1)).hours[-2:]
    ((5, 1.0), (6, 0.5))
    """
    end = _moment(deadline, "by")
    begin = (now if end.year != 1900 else end) if start is None else _moment(start, "from")
    if (end.year == 1900) != (begin.year == 1900):
        raise InputError("from, by: one has a day and the other has none", "Give both a day, or neither.")
    dated = end.year != 1900
    if not dated and end <= begin:
        end += datetime.timedelta(days=1)
    if end <= begin:
        since = f"{begin:%Y-%m-%dT%H:%M}" + (", when the jobs begin" if start is not None else " now")
        raise InputError(
            f"by: {deadline} is past: it is {since}" if start is None else f"by: {deadline} is before {since}"
        )
    if end - begin > datetime.timedelta(days=7):
        raise InputError(f"by: {deadline} is more than a week ahead", "Ask about a week at a time.")
    hours, at = [], begin
    while at < end:
        until = min(at.replace(minute=0, second=0, microsecond=0) + datetime.timedelta(hours=1), end)
        of_week = at.weekday() * HOURS_PER_DAY + at.hour
        hours.append((of_week if dated else at.hour, (until - at).total_seconds() / HOUR_S))
        at = until
    told = "%a %Y-%m-%d %H:%M" if dated else "%H:%M"
    return Window(begin.strftime(told), end.strftime(told), tuple(hours), dated)


class _Room:
    """A pool that takes jobs."""

    def __init__(self, pool: Pool, slow: float, jobs: Lengths, promises: tuple[Promise, ...]) -> None:
        model = replayed(pool.model.under(slow), "batch")
        longest = float((jobs.input_tokens + jobs.output_tokens).max()) if jobs.input_tokens.size else 0.0
        if longest > pool.option.max_model_len:
            raise InputError(
                f"jobs: the longest has {longest:,.0f} tokens, {pool.name} admits {pool.option.max_model_len:,}",
                f"Plan with --max-model-len {math.ceil(longest)}.",
            )
        self.pool, self.model, self.jobs, self.promises, self._start = pool, model, jobs, promises, 0.0
        self.levels = tuple(sorted({*JOINT_LEVELS, *(p.quantile for p in promises)}))
        self._known: dict[tuple[float, int, bool], tuple[float, Prediction | None]] = {}

    def at(self, rate: float, replicas: int, sure: bool = True) -> tuple[float, Prediction | None]:
        """Jobs a second beside requests at a rate of the pool [1/s], and what these then see, ``None`` where none is taken.

        Of a sample of the requests unless it is to be `sure`.
        """
        key = rate, replicas, sure
        if key not in self._known:
            self._known[key] = self._surely(rate, replicas) if sure else (self._about(rate, replicas), None)
        return self._known[key]

    def _surely(self, rate: float, replicas: int) -> tuple[float, Prediction | None]:
        """By all requests, from what a sample of them allows on."""
        jobs_per_s = self.at(rate, replicas, sure=False)[0]
        while jobs_per_s > LEAST * replicas * self.model.jobs_alone_per_s(self.jobs):
            if (found := self._kept(rate, replicas, jobs_per_s, sure=True)) is not None:
                return jobs_per_s, found
            jobs_per_s *= STEP_DOWN
        return 0.0, None

    def _about(self, rate: float, replicas: int) -> float:
        """By a sample, looked for from the share found last."""
        alone = replicas * self.model.jobs_alone_per_s(self.jobs)
        start = self._start or max(1.0 - rate / (replicas * self.model.capacity_per_s), LEAST)
        kept = partial(self._kept, rate, replicas)
        low, _ = largest(lambda n: kept(n) is not None, start * alone, step=STEP, precision=COARSE)
        self._start = low / alone
        return low

    def _kept(self, rate: float, replicas: int, jobs_per_s: float, sure: bool = False) -> Prediction | None:
        """What requests see beside so many jobs a second; ``None`` where a promise is broken or the queue of jobs grows."""
        found, done = self.model.with_jobs(rate, replicas, self.jobs, jobs_per_s, self.levels, sure)
        kept = done >= DONE and all(found.value(p.metric, p.quantile) <= p.limit_s for p in self.promises)
        return found if kept else None

    def by_deadline(self, rates: list[float], window: Window, replicas: int, sure: bool = True) -> float:
        """Jobs of the pool done in all hours."""
        each = [hours * self.at(rate, replicas, sure)[0] for rate, (_, hours) in zip(rates, window.hours, strict=True)]
        return DONE * HOUR_S * math.fsum(each)

    def more_for(self, rates: list[float], window: Window, wanted: float) -> int:
        """Replicas beyond those there are that so many jobs take, looked for from where they are thought."""
        n = self.pool.replicas
        room, low, high = self.by_deadline(rates, window, n), n, 0
        full = DONE * HOUR_S * sum(h for _, h in window.hours) * self.model.jobs_alone_per_s(self.jobs)
        at = n + max(math.ceil((wanted - room) / full), 1)
        while high - low != 1:
            if at > MOST_REPLICAS * n:
                raise InputError(f"jobs: they take more than {at:,} replicas", "Ask for less, or for later.")
            found = self.by_deadline(rates, window, at, sure=False)
            if found >= wanted:
                high = at
            else:
                low = at
            # nearly a line from what was found
            at += math.ceil((wanted - found) / full) or -1
            at = max(at, low + 1) if not high else min(max(at, low + 1), high - 1)
        return high - n

    def rows(self, rates: list[float], window: Window) -> list[BatchHour]:
        """One per hour."""
        each = float(self.jobs.weight @ (self.jobs.input_tokens + self.jobs.output_tokens) / self.jobs.weight.sum())
        found = []
        for rate, (hour, hours) in zip(rates, window.hours, strict=True):
            jobs, seen = self.at(rate, self.pool.replicas)
            latency = {} if seen is None else latencies(self.promises, seen)
            time = f"{DAYS[hour // HOURS_PER_DAY]} " * window.dated + f"{hour % HOURS_PER_DAY:02d}:00"
            found.append(BatchHour(time, self.pool.name, hours, rate, jobs, HOUR_S * hours * jobs * each, latency))
        return found


def _jobs_of(fleet: Fleet, pool: Pool, jobs: Workload) -> Lengths | None:
    """The jobs that the gateway sends to a pool, their weights as shares of all; ``None`` = none."""
    by = jobs.total_tokens if fleet.question.traffic.sees_output else jobs.input_tokens
    high = math.inf if pool is fleet.pools[-1] else pool.law.upper.boundary
    here = (by > pool.law.lower.boundary) & (by <= high) & (jobs.weight > 0.0)
    if not here.any():
        return None
    inputs, outputs = (np.maximum(np.rint(tokens[here]), 1.0) for tokens in (jobs.input_tokens, jobs.output_tokens))
    return Lengths(inputs, outputs, jobs.weight[here] / jobs.weight.sum(), np.zeros(1))


def _levels(rates: HourlyRates, peak_per_s: float, window: Window) -> Floats:
    """The rate with which every hour of the window counts [1/s]."""
    week = len(rates.relative) > HOURS_PER_DAY
    if week and not window.dated:
        raise InputError(f"by: the rates of {rates.source} are a week's: which day?", "Write 2027-01-31T06:00.")
    hours = [h if week else h % HOURS_PER_DAY for h, _ in window.hours]
    own = np.array(rates.relative)[hours] / max(rates.relative) * peak_per_s
    levels = np.linspace(max(own.min(), LEAST * peak_per_s), own.max(), LEVELS)
    found: Floats = levels[np.minimum(np.searchsorted(levels, own * (1.0 - 1e-9)), LEVELS - 1)]
    return found


@told_types
def batch(
    fleet: Plan | Workload | str | Path | None = None,
    *,
    jobs: Workload | Frame | str | Path | None = None,
    tokens: float | str | None = None,
    by: str = "06:00",
    start: str | None = None,
    priority: int = 1,
    hours: str | Path | None = None,
    workload: Workload | Frame | str | Path | None = None,
    scenario: str | None = None,
    **options: Unpack[OwnOptions],
) -> BatchRoom:
    """How many batch jobs a fleet takes beside its requests, hour by hour, with every promise kept, and what the rest needs.

    Parameters
    ----------
    fleet
        A plan or a plan file, whose fleet stands; a configuration file or ``None``: it is planned for the busiest hour.
    jobs
        Lengths of the jobs: a file as --cdf takes it, or a shipped workload. Default: the requests' own.
    tokens
        How much: prompt and output tokens of all jobs, 60M. Default: the file's jobs.
    by
        When the last must be done: 06:00, or 2027-01-31T06:00.
    start
        When the first may be sent. Default: a day before; where `by` has a day, now.
    priority
        Which jobs are sent with, at least 1; requests have 0, the lowest comes first.
    hours
        Traffic by the hour, as of `schedule`. Default: the workload's own hours, else the same rate in all.
    workload, scenario
        As for :func:`schedule`; without hours the traffic is the same in all.
    **options
        Options of :func:`plan`.

    Returns
    -------
    BatchRoom
        Hour by hour the most jobs beside which every promise is kept, with iterations that take as long as the plan's
        confidence asks for, and the GPUs that the rest takes.

    Raises
    ------
    InputError
        A deadline that is past, jobs without output tokens, a priority below 1, a fleet of which nothing is known.

    Examples
    --------
    >>> import planner as fo
    >>> room = fo.batch(slo=0.5, isl=900, osl=200, rate=8, tokens="1M", by="06:00", start="05:00", tp=1, token_budget=2048)
    >>> room.fits, room.more
    (True, {})
    """
    if priority < 1:
        raise InputError(
            f"priority: {priority} is not after the requests', which have 0",
            "Jobs have 1 or more: the lowest comes first.",
        )
    window = window_of(by, start, datetime.datetime.now())
    # a fleet is sized for its busiest hour
    options["rate_is"] = options.get("rate_is") or "peak"
    hourly = Hourly(fleet, workload, scenario, options, hours, Elasticity(), flat="one rate in every hour")
    sent = hourly.loaded if jobs is None else load_workload(jobs)
    each = float(sent.weight @ sent.total_tokens / sent.weight.sum())
    asked_jobs = None if jobs is None else sent.provenance.requests
    if tokens is not None:
        amount = parse_tokens(tokens, "tokens")
        if not amount > 0.0:
            raise InputError(f"tokens: must be positive, got {tokens!r}")
        asked_jobs = math.ceil(amount / each)
    built = hourly.fleet()
    refuse_linked(built, "batch: jobs go to pools that keep their promises")
    levels = _levels(hourly.rates, hourly.peak, window)
    rooms, rows, more, usd = [], list[BatchHour](), Counter[str](), 0.0
    for pool, margin in zip(built.pools, built.margins_at(hourly.peak), strict=True):
        lengths = _jobs_of(built, pool, sent)
        if lengths is not None:
            rooms.append((_Room(pool, margin.slow, lengths, built.own_promises), (pool.law.share * levels).tolist()))
    shares = [float(room.jobs.weight.sum()) for room, _ in rooms]
    done = [room.by_deadline(own, window, room.pool.replicas) for room, own in rooms]
    for (room, own), share, alone in zip(rooms, shares, done, strict=True):
        rows += room.rows(own, window)
        if asked_jobs is not None and alone < share * asked_jobs:
            pool, price = room.pool, room.pool.option.price
            taller = price.bought(pool.replicas + room.more_for(own, window, share * asked_jobs))
            more[pool.option.gpu.name] += (taller - pool.bought) * price.gpus_per_replica
            usd += price.cost_usd_per_hour(taller) - pool.cost_usd_per_hour
    engine = find_engine(built.pools[0].option.profile.engine or DEFAULT_ENGINE)
    least = math.floor(min(n / share for n, share in zip(done, shares, strict=True)))
    return BatchRoom(
        built.question.asked, sent.name, window.start, window.deadline, each, asked_jobs, least, dict(more), usd, priority,
        engine.by_priority, tuple(sorted(rows, key=lambda row: row.pool)), served_of(built),
    )  # fmt: skip
