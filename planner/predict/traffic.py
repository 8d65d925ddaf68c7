"""The requests a pool is sent at any rate, as a replay takes them: the user's own, copies of them, or drawn ones.

At the trace's own rate they are the trace's. At a lower rate they are a fixed part of its requests, at a higher one copies
of the trace, each shifted by a time of its own (more users), or the same requests pressed together (more use). Which copy is
shifted by how much is a fixed draw; of many draws the one in the middle by how busy its busiest seconds are is taken, and
others say how far hours of the same traffic differ.

Where a trace is short, what its requests see hangs on which replica each happens to be sent to: to decide it is laid out several
times, one after the other, under other draws of the gateway, and a quantile is that of all of them together.

Where all requests are more than a question needs, a sample stands for them: fewer replicas get as much smaller a part of every
copy (copies are never dropped, which would make the traffic burstier), during the busiest stretches and some of the others,
each begun early enough that it is warm when its requests count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from planner.predict.checks import sound_as
from planner.predict.records import Floats, Requests, keys_of, supplied, uniforms
from planner.predict.run import overlaid
from planner.question.compiled import Traffic
from planner.queueing.order import rising
from planner.routing import find_routing
from planner.shared.kept import once
from planner.units import HOUR_S
from planner.workload.pools import PoolLaw
from planner.workload.sending import ORDINARY
from planner.workload.trace import LONG_S, SAME, Trace

K = TypeVar("K")
T = TypeVar("T")

WHOLE = 4_000_000
"""Requests replayed to decide, at most; a sample stands for more."""

POOLED, MOST_POOLED = 300_000, 32
"""Requests that a short trace is repeated to under other draws of the gateway, to decide, and times it is repeated at most: the
P99 of one draw of 9,000 requests scatters by 3 to 6%, of 28,000 by 1 to 4%, of 200,000 by less than 1%."""

SAMPLE = 130_000
"""Requests replayed to rank and to bracket."""

DRAWN, DRAWN_EACH = 120_000, 3_000
"""Requests drawn where none are known one by one, and for each replica at least: 1,200 of them beyond a P99."""

BUSIER, MOST_BUSIER = 0.4, 16.0
"""Where every replica meets a queue of its own alone, the queue's memory grows with 1/(1 - load)^2: at this distance from a load of
one so many requests tell a P99 to 3%, closer to it as many more, up to so many times as many."""

DRAWS = 64
"""Draws of the shifts among which the middle is looked for."""

UNALIGNED = 0.8
"""Least that a full hour of the clock has of what the busiest sixty minutes about it have [1]."""

BUSY_S = 2.0
"""Time whose prompt tokens say how busy a draw is at its busiest [s]: of 2 to 8 s the one that goes best with P99 TTFT."""

BINS = 4096
"""Pieces of the traffic's time by which stretches are chosen."""

BURST_LOAD, BURST_SHARE = 0.35, 0.05
"""Load at which a fluid tells the busiest episodes of a trace that is replayed whole, and share of the requests whose waits make
them: of loads from .2 to .9 that at which refused questions took the fewest requests, a sixth of those that the whole took."""

STRETCH = 12_000
"""Requests of a stretch: few long stretches err less than many short ones."""

EPISODES = 0.4
"""Share of a sample that the busiest episodes may take; the rest stands for the rest of the time."""

FLUIDS = (0.8, 0.87, 0.93, 0.97)
"""Loads at which a fluid tells busy episodes: late requests come together, and which do hangs on the load."""

TOPS = (0.06, 0.045, 0.03, 0.02, 0.013, 0.008, 0.004)
"""Shares of the requests, those that wait longest, that episodes hold: as many as the sample has room for."""

OUTPUT_WEIGHT = 5.0
"""Work of an output token over that of a prompt token, roughly, to tell busy time from calm."""

LEAST_REPLICAS = {"random": 6, "rr": 6, "p2c": 9}
"""Replicas that stand for many at least, by routing: fewer meet too little of what the others do."""

LEAST_OTHERS = 16
"""The same where all replicas are looked at."""

LEAST_DRAWN = 64
"""The same of any gateway that compares replicas, where drawn requests decide."""

APART_S = 1e4
"""Time between two stretches, in which every queue empties [s]."""

MOST_PARTS = 4096
"""Shares of a trace that are sent one after the other, where each is that small."""

KEYS = 100
"""Kind of draw that gateways' choices hang on, and those of other draws of the same traffic beyond it."""

CROWDS = 20
"""Flash crowds that are followed."""


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """Requests of a pool in order of time.

    Parameters
    ----------
    times_s, row
        When each comes [s], and which of the pool's own requests it is; shape (requests,).
    key
        What its draws hang on, uint64.
    weight
        What each stands for; 0 = there to warm up. ``None`` = each for itself.
    span_s
        Time during which requests come, warm-ups included [s].
    replicas
        Replicas they are for.
    whole
        Whether these are all requests there are.
    repeats
        How often they are laid out, one after the other, each time under another draw of the gateway.
    """

    times_s: Floats
    row: NDArray[np.int64]
    key: NDArray[np.uint64]
    weight: Floats | None
    span_s: float
    replicas: int
    whole: bool
    repeats: int = 1

    def pressed(self, factor: float) -> Laid:
        """The same requests, so many times as fast [1]."""
        return self if factor == 1.0 else replace(self, times_s=self.times_s / factor, span_s=self.span_s / factor)


class FleetTraffic:
    """Traffic of a fleet: which hour of a trace is looked at, and how its copies are shifted.

    Parameters
    ----------
    traffic
        What the question says of it.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.growth, self.sending = traffic.growth, traffic.sending
        bursts = traffic.bursts or not self.sending.ordinary
        self.trace: Trace | None = traffic.workload.trace() if bursts and not self.sending.drawn else None
        # held by whoever asks about them: no circle that would keep their requests until it is looked for
        self._pools: WeakValueDictionary[int, PoolTraffic] = WeakValueDictionary()
        # what was laid out last of all pools, its columns by the place of their rows in memory, what became of it by kind of pool
        self.laid: dict[tuple[object, ...], Laid] = {}
        self.columns: dict[int, tuple[NDArray[np.int64], Requests]] = {}
        self.played: dict[type, tuple[tuple[object, ...], Any]] = {}
        self.lock = Lock()
        self._ranks: dict[int, NDArray[np.int64]] = {}

    def of(self, law: PoolLaw) -> PoolTraffic:
        """The traffic of a pool, the same object for the same law."""
        found = self._pools.get(id(law))
        if found is None:
            self._pools[id(law)] = found = PoolTraffic(self, law)
        return found

    @cached_property
    def window(self) -> tuple[float, float]:
        """The part of the trace that is looked at [s]: all of it, or the busiest hour of a day or of what is kept of one."""
        assert self.trace is not None
        times = self.trace.times_s
        if float(times[-1]) <= LONG_S and self.trace.stretches is None:
            return 0.0, float(times[-1]) * (1.0 + 1.0 / max(times.size - 1, 1))
        count = np.searchsorted(times, times + HOUR_S) - np.arange(times.size)
        start = float(times[int(np.argmax(count))])
        return start, start + HOUR_S

    @cached_property
    def rate_per_s(self) -> float:
        """Mean rate of the trace in that part [1/s]."""
        assert self.trace is not None
        low, high = self.window
        times = self.trace.times_s
        return float(np.searchsorted(times, high) - np.searchsorted(times, low)) / (high - low)

    @cached_property
    def hour_per_s(self) -> float:
        """What the busiest hour of a trace of days has by the hours of the clock [1/s]; 0 of a shorter one."""
        arrivals = self.traffic.workload.arrivals
        known = (arrivals.rate_per_s or 0.0) * arrivals.busiest_hour
        # any sixty minutes may be a little busier than those from one full hour to the next
        return known if arrivals.busiest_hour > 1.0 and UNALIGNED <= known / self.rate_per_s <= 1.0 else 0.0

    @cached_property
    def reach_s(self) -> float:
        """How far copies are shifted at most [s]."""
        assert self.trace is not None
        return min(self.trace.reach_s, self.window[1] - self.window[0])

    def shifts(self, copies: int, draw: int) -> Floats:
        """By how much each copy is later than the trace [s], the first not at all; shape (copies,)."""
        found = self.reach_s * uniforms(keys_of(np.zeros(copies, np.int64), np.arange(copies), 1 + draw), 0)
        found[:1] = 0.0
        return found

    def ranked(self, copies: int) -> NDArray[np.int64]:
        """The draws in order of how busy their busiest 1% of seconds are, shape (DRAWS,)."""
        if copies <= 1:
            return np.zeros(1, dtype=np.int64)
        if copies not in self._ranks:
            assert self.trace is not None
            low, high = self.window
            inside = (self.trace.times_s >= low) & (self.trace.times_s < high)
            bins = max(round((high - low) / BUSY_S), 1)
            place = ((self.trace.times_s[inside] - low) / (high - low) * bins).astype(np.int64)
            tokens = np.bincount(np.minimum(place, bins - 1), self.trace.input_tokens[inside], bins)
            busiest = max(bins // 100, 1)
            shifts = np.stack([self.shifts(copies, draw) for draw in range(DRAWS)])
            total = rolled(tokens, np.rint(shifts / (high - low) * bins).astype(np.int64))
            scores = np.partition(total, bins - busiest, axis=-1)[:, -busiest:].sum(axis=-1)
            self._ranks[copies] = np.argsort(scores, kind="stable")
        return self._ranks[copies]

    def keep(self, kept: dict[K, T], key: K, found: T, of: Callable[[T], NDArray[Any]]) -> T:
        """Put what was found among what is kept, where what was asked for longest ago makes room for it: a column of each says how
        many requests it has, and what others have too takes its memory once."""
        with self.lock:
            kept.pop(key, None)
            while sum({id(own): own.size for own in map(of, kept.values())}.values()) > WHOLE // 2:
                kept.pop(next(iter(kept)))
            kept[key] = found
        return found


def rolled(values: NDArray[Any], moves: NDArray[np.int64]) -> Floats:
    """Sum of circular copies of `values`, the k-th moved by ``moves[..., k]`` places; by convolution of counts, shape
    (..., values)."""
    each = moves.reshape(-1, moves.shape[-1]) % values.size
    places = each + values.size * np.arange(len(each))[:, None]
    counts = np.bincount(places.ravel(), minlength=len(each) * values.size).astype(np.float64)
    counts = counts.reshape(*moves.shape[:-1], values.size)
    return np.asarray(np.fft.irfft(np.fft.rfft(values) * np.fft.rfft(counts), values.size))


class PoolTraffic:
    """The requests that a pool gets of a fleet's.

    Parameters
    ----------
    fleet
        The fleet's traffic.
    law
        The pool's requests by their law, and one by one where those are known.
    """

    def __init__(self, fleet: FleetTraffic, law: PoolLaw) -> None:
        self.fleet, self.law = fleet, law
        self._mark = object()

    def poisson(self) -> PoolTraffic:
        """The same requests at random times."""
        calm = replace(self.fleet.traffic, bursts=False, sending=ORDINARY)
        return PoolTraffic(FleetTraffic(calm), self.law)

    def dispersion(self, rate_per_s: float, window_s: float) -> float:
        """Index of dispersion of the pool's counts over a window at a rate of the pool [1/s]; 1 of Poisson arrivals [1].

        Above the trace's own rate counts keep the index measured there, as if the traffic were that many more independent
        users; below it they are thinned. Thinning by length keeps ``1 + share (I - 1)``.
        """
        arrivals, share = self.fleet.traffic.arrivals, self.law.share
        if arrivals is None or not any(i > 1.0 for _, i in arrivals.dispersion):
            return 1.0
        part = rate_per_s / share / arrivals.rate_per_s if arrivals.rate_per_s else 1.0
        if 0.0 < part < 1.0:
            arrivals = arrivals.thinned(part)
        elif part > 1.0 and self.fleet.growth == "use":
            arrivals = arrivals.busier(part)
        return max(1.0, 1.0 + share * (arrivals.dispersion_at(window_s) - 1.0))

    def grown(self, growth: str) -> PoolTraffic:
        """The same requests where more than their own rate stands for more ``users`` or for more ``use``."""
        return PoolTraffic(FleetTraffic(replace(self.fleet.traffic, growth=growth)), self.law)

    @property
    def recorded(self) -> bool:
        """Whether requests are known one by one."""
        return self.fleet.trace is not None and self.law.requests() is not None

    @cached_property
    def own(self) -> Trace:
        """The pool's own requests within the part of the trace that is looked at, or as many drawn from its law."""
        found = self.law.requests() if self.fleet.trace is not None else None
        if found is not None:
            return self._cut(found)
        # other traffic of the same law, as without its bursts, draws the same
        return once(("drawn", id(self.law)), lambda: (self.law, drawn_requests(self.law)))[1]

    @cached_property
    def _lengths(self) -> tuple[Floats, Floats, Floats]:
        """Whole tokens of prompts, of outputs, and of what a cache supplies, of the pool's own requests."""
        inputs = np.maximum(np.rint(self.own.input_tokens), 1.0)
        outputs = np.maximum(np.rint(self.own.output_tokens), 1.0)
        return inputs, outputs, supplied(inputs, self.own.cached_share)

    def _cut(self, found: Trace) -> Trace:
        """The requests within the window, from its beginning on."""
        low, high = self.fleet.window
        times = found.times_s
        rows = (times >= low) & (times < high)
        if rows.all() and low == 0.0:
            return found
        own = found.select(rows)
        return replace(own, times_s=own.times_s - low)

    def copies(self, rate_per_s: float) -> float:
        """How many times the trace a rate of the pool [1/s] is [1]; whole where it is to a fifth of a percent."""
        whole = rate_per_s / self.law.share
        if abs(whole - self.fleet.hour_per_s) <= SAME * whole:
            # what hours of the clock call the busiest is that hour as it was
            return 1.0
        exact = whole / self.fleet.rate_per_s
        near = max(round(exact), 1)
        return float(near) if abs(exact - near) < SAME * near else exact

    def draws(self, rate_per_s: float) -> NDArray[np.int64]:
        """Draws of the shifts at a rate [1/s], the calmest first; one where there is nothing to shift."""
        if not self.recorded or self.fleet.growth == "use":
            return np.zeros(1, dtype=np.int64)
        return self.fleet.ranked(math.ceil(self.copies(rate_per_s)))

    def lay(
        self,
        rate_per_s: float,
        replicas: int,
        routing: str,
        *,
        warm: float = 64.0,
        most: int = WHOLE,
        draw: int | None = None,
        load: float = 0.0,
    ) -> Laid:
        """The requests of so many replicas at a rate.

        Parameters
        ----------
        rate_per_s
            Rate of the pool [1/s].
        replicas, routing
            Replicas of the pool, and how its gateway spreads requests.
        warm
            Sequences that run in a replica: a stretch is warm after twice as many requests a replica.
        most
            Requests in all, about; where there are more a sample stands for them.
        draw
            Draw of the shifts; ``None`` = the one in the middle.
        load
            Load of the replicas [1]: the more, the more requests are drawn where each replica is a queue of its own.
        """
        # a sample is not repeated
        repeats = self.repeats(rate_per_s, replicas, routing)
        told = repeats if most >= WHOLE and draw is None else 1
        total = self.copies(rate_per_s) * self.own.requests if self.recorded else float(most)
        fewer = self._fewer(total, replicas, routing, most)
        laid_for = max(round(replicas / fewer), 1)
        each = rate_per_s / replicas
        drawn = 0 if self.recorded else self._number(each, laid_for, routing, most, load)
        # pools of a few replicas are all begun as early
        rows = int(2.0 * warm * max(laid_for, LEAST_OTHERS))
        # as many requests a replica as before; where requests are of all replicas they are the same for any number
        pressed = laid_for / replicas * fewer if self.recorded else float(replicas)
        own = (self._mark, rate_per_s, fewer, rows, most, draw)

        def made() -> Laid:
            if self.recorded:
                found = self._kept(own, lambda: self._of_trace(rate_per_s, fewer, rows, most, draw)).pressed(pressed)
            else:
                of = min(replicas, LEAST_DRAWN) if find_routing(routing).in_turn else laid_for
                found = self._drawn(each, laid_for, max(of, laid_for), drawn, rows, draw or 0)
            found = found if self.fleet.sending.surge is None else self._crowds(found, rows)
            return found if told == 1 else self._repeated(found, told)

        found = self._kept((*own, pressed, told, drawn), made)
        return replace(found, replicas=laid_for, whole=found.whole and told == repeats)

    def _kept(self, key: tuple[object, ...], make: Callable[[], Laid]) -> Laid:
        """What was laid out lately, made anew where it was not."""
        found = self.fleet.laid.get(key) or make()
        return self.fleet.keep(self.fleet.laid, key, found, lambda own: own.times_s)

    def busiest(self, laid: Laid, of: tuple[object, ...]) -> Laid | None:
        """The busiest episodes of requests that were laid out for a rate and a draw `of` the traffic, one after the other; ``None``
        where they are drawn or nobody comes together, and of stretches, the busiest of which come first."""
        if not self.recorded or laid.weight is not None:
            return None

        def made() -> Laid:
            """The episodes, the busiest first, each begun long after the one before."""
            times = laid.times_s
            place = (times / (times[-1] or 1.0) * (BINS - 1)).astype(np.int64)
            count, work = (np.bincount(place, x, BINS).astype(np.float64) for x in (None, self._work[laid.row]))
            wait = fluid(work, BURST_LOAD)
            order, below = by_wait(wait, count)
            busy = episodes(wait, order[: int(np.searchsorted(below, BURST_SHARE * times.size)) + 1])
            runs = sorted(_runs(busy), key=lambda run: -float(wait[run[0] : run[1]].max()))
            parts = [slice(*np.searchsorted(place, run).tolist()) for run in runs] or [slice(0)]
            apart = float(times[-1]) + APART_S
            at = np.concatenate([times[own] - times[own][:1] + k * apart for k, own in enumerate(parts)])
            row, key = (np.concatenate([column[own] for own in parts]) for column in (laid.row, laid.key))
            return Laid(at, row, key, None, len(parts) * apart, 1, False)

        found = self._kept((self._mark, *of, laid.row.size, laid.span_s, "busiest"), made)
        return found if found.row.size else None

    def repeats(self, rate_per_s: float, replicas: int, routing: str) -> int:
        """How often the trace at a rate is repeated to decide, under other draws of the gateway [1]."""
        if not self.recorded or replicas == 1 or find_routing(routing).in_turn:
            return 1
        return min(max(round(POOLED / (max(self.copies(rate_per_s), 1.0) * self.own.requests)), 1), MOST_POOLED)

    def _repeated(self, laid: Laid, times: int) -> Laid:
        """The same requests several times, one after the other, with other choices of the gateway."""
        again, own = np.arange(times)[:, None], laid.key.view(np.int64)
        at = laid.times_s + again * (float(laid.times_s[-1]) + APART_S)
        weight = None if laid.weight is None else np.tile(laid.weight, times)
        return replace(
            laid,
            times_s=at.ravel(),
            row=np.tile(laid.row, times),
            key=np.concatenate([laid.key, *(keys_of(own, np.full_like(own, k), KEYS) for k in range(1, times))]),
            weight=weight,
            span_s=times * laid.span_s,
            repeats=times,
        )

    def requests(self, laid: Laid) -> Requests:
        """The columns of requests that were laid out by :meth:`lay`, the same for every engine that is asked about them."""
        kept = self.fleet.columns
        if (known := kept.get(id(laid.row))) is None:
            inputs, outputs, cached = (column[laid.row] for column in self._lengths)
            images = None if self.own.images is None else self.own.images[laid.row]
            columns = laid.times_s, inputs, outputs, cached, laid.key
            made = laid.row, Requests(*columns, weight=laid.weight, images=images)
            known = self.fleet.keep(kept, id(laid.row), made, lambda one: one[0])
        first = known[1]
        if first.arrival_s is laid.times_s and first.key is laid.key:
            return first
        return sound_as(replace(first, arrival_s=laid.times_s, key=laid.key), first)

    # --- requests that are known ------------------------------------------------------------------------------------

    def _of_trace(self, rate_per_s: float, fewer: int, warm: int, most: int, draw: int | None) -> Laid:
        """Copies of the trace, or a part of it, one request of so many; `warm` come before a stretch."""
        low, high = self.fleet.window
        span, times = high - low, self.own.times_s
        copies = self.copies(rate_per_s)
        if draw is None:
            ranked = self.draws(rate_per_s)
            draw = int(ranked[ranked.size // 2])
        if self.fleet.growth == "use" and copies > 1.0:
            # the same requests, faster
            times, span, copies = times / copies, span / copies, 1.0
        count = max(math.ceil(copies), 1)
        shifts = self.fleet.shifts(count, draw)
        part = copies - (count - 1)
        kept = None
        if part < 1.0:
            kept = uniforms(keys_of(np.arange(times.size), np.full(times.size, count - 1), 0), 1) < part
        stretches = None
        if copies * times.size / fewer > 1.35 * most:
            stretches = self._stretches(span, shifts, warm, most, fewer)
        if copies < 0.5:
            return self._parts(times, span, copies, draw)
        weight, covered, kind = None, span, KEYS + draw
        if copies == 1.0 and stretches is None:
            at, row = times, np.arange(times.size)
            key = keys_of(row, np.zeros_like(row), kind)
        else:
            lists, which = _lists(times.size, fewer, count, kept)
            windows = np.array([[0.0, span]]) if stretches is None else stretches.windows_s
            at, row, key, counts = overlaid(times, lists, which, shifts, span, windows, kind)
            if stretches is not None:
                at, weight, covered = stretches.in_turn(at, counts)
        return Laid(at, row, key, weight, covered, 1, fewer == 1 and stretches is None)

    def _parts(self, times: Floats, span: float, share: float, draw: int) -> Laid:
        """A small share of the trace's requests, and other such shares one after the other until all are sent."""
        parts = min(math.floor(1.0 / share), MOST_PARTS)
        drawn = uniforms(keys_of(np.arange(times.size), np.full(times.size, draw), 6), 0)
        part = np.floor(drawn / share).astype(np.int64)
        row = np.flatnonzero(part < parts)
        row = row[np.argsort(part[row], kind="stable")]
        at = times[row] + part[row] * (span + APART_S)
        return Laid(at, row, keys_of(row, part[row], KEYS + draw), None, parts * span, 1, parts == 1)

    def _fewer(self, total: float, replicas: int, routing: str, most: int) -> int:
        """Of how many requests one is kept, and replicas that one stands for."""
        least = LEAST_REPLICAS.get(routing, LEAST_OTHERS)
        if not self.recorded:
            rule = find_routing(routing)
            compared = rule.candidates != 1
            return max(replicas // (LEAST_DRAWN if compared and most >= WHOLE else least), 1)
        return max(min(math.ceil(total / most), replicas // least), 1)

    def _stretches(self, span: float, shifts: Floats, warm: int, most: int, fewer: int) -> Stretches:
        """Which stretches of time stand for all, at about `most` requests."""
        trace = self.own
        place = np.minimum((trace.times_s / trace.times_s[-1] * BINS).astype(np.int64), BINS - 1)
        moves = np.rint(shifts / span * BINS).astype(np.int64)
        count = np.maximum(rolled(np.bincount(place, minlength=BINS).astype(np.float64), moves), 0.0) / fewer
        return Stretches.chosen(count, rolled(np.bincount(place, self._work, BINS), moves), span, warm, most)

    @property
    def _work(self) -> Floats:
        """Work of each of the pool's own requests, roughly [prompt tokens]."""
        own = self.own
        return np.asarray((1.0 - own.cached_share) * own.input_tokens + OUTPUT_WEIGHT * own.output_tokens)

    # --- requests that are drawn ------------------------------------------------------------------------------------

    def _number(self, each: float, replicas: int, routing: str, most: int, load: float) -> int:
        """How many requests are drawn for so many replicas at a rate of `each` [1/s]."""
        if (surge := self.fleet.sending.surge) is not None:
            return min(math.ceil(CROWDS * each * replicas * surge.ordinary_s), most)
        number = float(max(DRAWN if most >= WHOLE else DRAWN // 2, DRAWN_EACH * replicas))
        rule = find_routing(routing)
        if replicas == 1 or (rule.candidates == 1 and not rule.in_turn):
            # in steps, so that neighbours share them
            busier = (BUSIER / max(1.0 - load, 1e-3)) ** 2
            number *= 2.0 ** math.floor(math.log2(min(max(busier, 1.0), MOST_BUSIER)))
        return int(min(number, most))

    def _drawn(self, each: float, replicas: int, of: int, number: int, warm: int, draw: int) -> Laid:
        """Requests of the law one after the other at random or at constant gaps: `number` of them after those that warm up.

        They are for so many replicas at a rate of `each` [1/s], the first `of` so many that get one in turn.
        """
        own, rate_per_s = self.own, each * replicas
        surge, paced = self.fleet.sending.surge, self.fleet.sending.paced
        number += warm if surge is None else 0
        index = np.arange(number)
        key = keys_of(index, np.full(number, draw), KEYS + draw)
        row = np.asarray((uniforms(key, 8) * own.requests).astype(np.int64))
        if draw == 0:
            # the sequence itself, as far as it goes
            row[: own.requests] = index[: own.requests]
        if paced is None:
            gaps = -np.log1p(-uniforms(key, 9))
            if of > replicas:
                # those of the other replicas lie between the last and the next first
                first = np.flatnonzero(index % replicas == 0)
                others = keys_of(
                    np.arange(first.size * (of - replicas)), np.full(first.size * (of - replicas), draw), 10
                )
                gaps[first] += -np.log1p(-uniforms(others, 9)).reshape(first.size, -1).sum(axis=1)
            times = np.cumsum(gaps) / (each * of)
        else:
            turn, client = np.divmod(index, paced)
            phases = np.sort(uniforms(keys_of(np.arange(paced), np.full(paced, draw), 3), 9))
            times = (turn + phases[client]) * paced / rate_per_s
        weight = None if surge is not None else (index >= warm).astype(np.float64)
        return Laid(times, row, key, weight, float(times[-1]), replicas, False)

    def _crowds(self, laid: Laid, warm: int) -> Laid:
        """The same requests in flash crowds, of which and of a while before them the others are left out."""
        surge = self.fleet.sending.surge
        assert surge is not None
        times = surge.warp(laid.times_s)
        counts = surge.counts(times)
        rate_per_s = times.size / max(laid.span_s, 1e-9)
        before = warm / rate_per_s + surge.length_s
        phase = times % surge.cycle_s
        keep = counts | (phase >= surge.quiet_s - before)
        keep &= times >= surge.quiet_s - before
        span = float(np.count_nonzero(keep)) / rate_per_s
        return replace(
            laid,
            times_s=times[keep],
            row=laid.row[keep],
            key=laid.key[keep],
            weight=counts[keep].astype(np.float64),
            span_s=span,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Parts of a span of time that stand for all of it.

    Parameters
    ----------
    begin_s, end_s
        When requests of each are sent from and until, warm-up included [s], shape (stretches,).
    turn
        In which order they come: the busiest first, which end a replay soonest that breaks a promise.
    edge_s, weight
        Pieces of the whole span: their edges [s], shape (pieces + 1,), and what a request of each counts, 0 = not measured.
    """

    begin_s: Floats
    end_s: Floats
    turn: NDArray[np.int64]
    edge_s: Floats
    weight: Floats

    @classmethod
    def chosen(cls, count: Floats, work: Floats, span: float, warm: int, most: int) -> Stretches:
        """The busiest episodes whole, and stretches of the rest, evenly by how busy they are.

        Parameters
        ----------
        count, work
            Requests and work by bins of the span, shape (bins,).
        span
            The span [s].
        warm
            Requests before a stretch that warm it up.
        most
            Requests in all, about.
        """
        bins, width = count.size, span / count.size
        mean = float(count.mean())
        before = math.ceil(warm / mean)
        fluids = [fluid(work, load) * width for load in FLUIDS]
        total, longest = float(count.sum()), [by_wait(wait, count) for wait in fluids]
        tops = [(top, len(fluids)) for top in TOPS] + [(TOPS[-1], k) for k in range(len(fluids) - 1, -1, -1)]
        for top, kinds in tops:
            busy = np.zeros(bins, dtype=bool)
            for wait, (order, below) in zip(fluids[:kinds], longest, strict=False):
                busy |= episodes(wait, order[: int(np.searchsorted(below, top * total)) + 1])
            runs = _runs(busy)
            if float(sum((b - a + before) * mean for a, b in runs)) <= EPISODES * most:
                break
        left = most - sum((b - a + before) * mean for a, b in runs)
        # the others cut into stretches of about as many requests, in order of how busy they are
        edges, sure = [0], []
        for a, b in [*runs, (bins, bins)]:
            if a > edges[-1]:
                pieces = max(round((a - edges[-1]) * mean / STRETCH), 1)
                edges += np.rint(np.linspace(edges[-1], a, pieces + 1)).astype(int).tolist()[1:]
                sure += [False] * pieces
            if b > a:
                edges.append(b)
                sure.append(True)
        edge, certain = np.array(edges), np.array(sure)
        own = np.add.reduceat(count, edge[:-1])
        heat = np.add.reduceat(np.maximum.reduce([f / max(float(f.max()), 1e-12) for f in fluids]) * count, edge[:-1])
        free = np.flatnonzero(~certain)
        free = free[np.argsort(-heat[free] / np.maximum(own[free], 1e-9), kind="stable")]
        wanted = min(max(int(left / (STRETCH + warm)), 2), free.size)
        taken = free[((np.arange(wanted) + 0.5) * free.size / max(wanted, 1)).astype(np.int64)]
        weight = np.where(certain, 1.0, 0.0)
        if wanted:
            weight[taken] = float(own[free].sum()) / max(float(own[taken].sum()), 1e-9)
        spans: list[list[float]] = []
        for k in np.flatnonzero(weight > 0.0).tolist():
            a, b, hot = max(int(edge[k]) - before, 0), int(edge[k + 1]), float(heat[k] / max(own[k], 1e-9))
            if spans and a <= spans[-1][1]:
                spans[-1][1:] = [b, max(spans[-1][2], hot)]
            else:
                spans.append([a, b, hot])
        low, high, hot = np.array(spans).T
        return cls(low * width, high * width, np.argsort(-hot, kind="stable"), edge * width, weight)

    @property
    def windows_s(self) -> Floats:
        """Begin and end of each stretch, in turn [s], shape (stretches, 2)."""
        return np.stack((self.begin_s, self.end_s), 1)[self.turn]

    def in_turn(self, times: Floats, counts: NDArray[np.int64]) -> tuple[Floats, Floats, float]:
        """Times, so many of every stretch in turn, as the stretches come one after the other; what each counts, and how long they
        last in all [s]."""
        begin, end = self.windows_s.T
        start = np.cumsum(end - begin + APART_S) - (end - begin + APART_S)
        piece = np.clip(np.searchsorted(self.edge_s, times, side="right") - 1, 0, self.weight.size - 1)
        at = times - np.repeat(begin, counts) + np.repeat(start, counts)
        return at, self.weight[piece], float((self.end_s - self.begin_s).sum())


def fluid(work: Floats, load: float) -> Floats:
    """Backlog of a server at a load that gets `work` bin after bin, in bins of its service; circular, shape as `work`."""
    served = float(work.mean()) / load
    level = np.cumsum(np.concatenate([work, work]) - served)
    level = level - np.minimum.accumulate(np.minimum(level, 0.0))
    return np.asarray(level[work.size :] / served)


def by_wait(wait: Floats, count: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Bins in which somebody waits, the longest waits first, and the requests of all up to each; shape (bins,)."""
    waits = np.flatnonzero(wait > 0.3)
    order = waits[rising(-wait[waits])]
    return order, np.cumsum(count[order])


def episodes(wait: Floats, longest: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The bins with the longest waits, taken back to where nobody waits; shape as `wait`."""
    busy = np.zeros(wait.size, dtype=bool)
    busy[longest] = True
    place = np.arange(wait.size)
    # a bin before a busy one belongs to its episode as long as anybody waits
    busiest, calm = (
        np.minimum.accumulate(np.where(marked, place, wait.size)[::-1])[::-1] for marked in (busy, wait <= 0.2)
    )
    return busy | (busiest < calm)


def _runs(marked: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(first, end) of every run of marks."""
    edge = np.diff(np.concatenate([[0], marked.astype(np.int8), [0]]))
    return list(zip(np.flatnonzero(edge == 1).tolist(), np.flatnonzero(edge == -1).tolist(), strict=True))


def _lists(
    size: int, fewer: int, copies: int, kept: NDArray[np.bool_] | None
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Rows that copies of a trace hold, and which of these lists each copy is: one of so many copies of a request, in turn from a
    random one on; `kept` are the rows of the last copy, where it is a part of one."""
    turn = (uniforms(keys_of(np.arange(size), np.zeros(size, np.int64), 4), 0) * fewer).astype(np.int64)
    lists = [np.flatnonzero(turn == k) for k in range(fewer)] if fewer > 1 else [np.arange(size)]
    which = np.arange(copies) % fewer
    if kept is not None:
        rows = lists[which[-1]]
        which[-1] = len(lists)
        lists.append(rows[kept[rows]])
    return lists, which


@cache
def _drawn_order(number: int) -> NDArray[np.int64]:
    """An order drawn of so many, shape (number,)."""
    return np.argsort(uniforms(keys_of(np.arange(number), np.zeros(number, np.int64), 5), 0), kind="stable")


def drawn_requests(law: PoolLaw, number: int = DRAWN) -> Trace:
    """Requests of a law by a fixed low-discrepancy sequence, in an order drawn: every length as often as its weight says."""
    below = np.cumsum(law.weight)
    # levels in their order are found in a quarter of the time
    levels = (np.arange(number) + 0.5) / number
    row = np.searchsorted(below, levels * below[-1]).clip(0, law.weight.size - 1)[_drawn_order(number)]
    return Trace(
        np.arange(number, dtype=np.float64),
        law.input_tokens[row],
        law.output_tokens[row],
        np.zeros(number, np.int64),
        cached_share=law.cached_share[row],
        images=None if law.images is None else law.images[row],
    )
