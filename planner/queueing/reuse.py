"""What an LRU cache of prompt prefixes finds again when sessions come back to it.

Sessions arrive as a Poisson process and make calls at their own times; a call finds the prefix that an earlier call of its
session left unless others have touched too much since. The tokens V(tau) that others touch within a gap tau are compound
Poisson: a session counts once, with the size of its last call in the gap, so that its intensity is the sum over calls of
min(time until the session's next call here, tau). A cache of M tokens that drops the end of the least recent prefix first then
supplies E[min(c, (M - V(gap))+)] of a call that could find c tokens again. Running requests keep what they hold: they add their
service time to the intensity, whatever the gap, for the part of their size that they hold on average while they run. Prefixes
that many sessions share are items of their own, touched as often as their sessions call; each is in V or not, so they enter as
Bernoulli terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.queueing.prefix import own_tokens as own_tokens

Floats = NDArray[np.float64]

GAPS = 60
"""Gaps at which the law of V is computed, log-spaced."""

BINS = 96
"""Bins of sizes, and of cached prefixes, of the table; each keeps its mean."""

DAY_S = 86_400.0
"""Gaps go at least so far where sessions share prefixes, which are used at gaps of their own [s]."""

STEPS = 512
"""Parts the cache is cut into."""

SINGLE = 12
"""Calls back that are tabulated one by one; beyond, in groups that grow by a sixth."""

FEW_CLASSES = 4
"""Up to so many classes of shared prefixes the one asked about is left out of what lies between its uses."""

TILT = 20.0
"""Exponential tilt over the length of the transform: what is aliased weighs exp(-TILT) (Grubel and Hermesmeier 1999)."""


@dataclass(frozen=True, slots=True)
class SharedItems:
    """Prefixes that many sessions share, of one kind.

    Parameters
    ----------
    per_call
        Probability that a call uses each of them [1], shape (items,).
    tokens
        Length of each [tokens], shape (items,).
    """

    per_call: Floats
    tokens: Floats

    def classes(self, most: int = 24) -> tuple[Floats, Floats, Floats]:
        """Items that are about alike together: how many, their mean rate per call, their mean tokens; shape (classes,)."""
        key = np.round(np.log(np.maximum(self.per_call, 1e-12)) * 2.0) * 1e4 + np.round(
            np.log(np.maximum(self.tokens, 1.0)) * 4.0
        )
        _, place = np.unique(key, return_inverse=True)
        if place.max(initial=0) >= most:
            place = np.argsort(np.argsort(self.per_call)) * most // self.per_call.size
        count = np.bincount(place).astype(np.float64)
        used = count > 0
        mean = [np.bincount(place, column)[used] / count[used] for column in (self.per_call, self.tokens)]
        return count[used], mean[0], mean[1]


@dataclass(frozen=True, slots=True)
class CacheLaw:
    """The cache of a replica as a call finds it.

    Parameters
    ----------
    cache_tokens
        Size M [tokens].
    gaps_s
        Gaps tau [s], ascending, shape (gaps,).
    room
        Integral of P(V(tau) <= y) over y from 0 to k M / steps [tokens], shape (gaps, steps + 1).
    below
        P(V(tau) <= k M / steps), shape (gaps, steps + 1).
    ttl_s
        What has not been touched for so long is dropped [s].
    """

    cache_tokens: float
    gaps_s: Floats
    room: Floats
    below: Floats
    ttl_s: float = math.inf

    def _place(self, gap_s: Floats) -> tuple[NDArray[np.intp], Floats]:
        """Tabulated gap below, and the part of the way to the next."""
        logs = np.log(self.gaps_s)
        at = np.interp(np.log(np.maximum(gap_s, self.gaps_s[0])), logs, np.arange(logs.size))
        low = np.minimum(at.astype(np.intp), logs.size - 2)
        return low, at - low

    def _read(self, table: Floats, gap_s: Floats, tokens: Floats) -> Floats:
        """The table at gaps and tokens, linear between its points."""
        steps = table.shape[1] - 1
        at = np.clip(tokens / max(self.cache_tokens, 1e-300), 0.0, 1.0) * steps
        left = np.minimum(at.astype(np.intp), steps - 1)
        b = at - left
        low, a = self._place(gap_s)
        first = table[low, left] * (1.0 - b) + table[low, left + 1] * b
        second = table[low + 1, left] * (1.0 - b) + table[low + 1, left + 1] * b
        read: Floats = first * (1.0 - a) + second * a
        return read

    def found(self, gap_s: ArrayLike, cached_tokens: ArrayLike) -> Floats:
        """Mean tokens found of a prefix left `gap_s` ago [tokens]; arrays of one shape."""
        gap, cached = np.broadcast_arrays(np.asarray(gap_s, dtype=np.float64), np.asarray(cached_tokens, np.float64))
        whole = np.full(gap.shape, self.cache_tokens)
        mean = self._read(self.room, gap, whole) - self._read(self.room, gap, self.cache_tokens - cached)
        return np.where(gap <= self.ttl_s, np.clip(mean, 0.0, cached), 0.0)

    def whole(self, gap_s: ArrayLike, cached_tokens: ArrayLike) -> Floats:
        """Probability that all of it is found [1]; arrays of one shape."""
        gap, cached = np.broadcast_arrays(np.asarray(gap_s, dtype=np.float64), np.asarray(cached_tokens, np.float64))
        left = self.cache_tokens - cached
        found = np.where(left >= 0.0, self._read(self.below, gap, np.maximum(left, 0.0)), 0.0)
        return np.where(gap <= self.ttl_s, found, 0.0)


class SessionTable:
    """Calls of sessions, tabulated once; :meth:`at` answers for any rate, cache and number of replicas.

    Parameters
    ----------
    session
        Number of the session of each call, ascending, calls of a session in order of time; shape (calls,).
    start_s, end_s
        When a call begins and when it leaves its prefix behind, since the start of its session [s]; shape (calls,).
    kept_tokens
        What it leaves of its own: input and output without what sessions share [tokens]; shape (calls,).
    cached_tokens
        What it could find again of the call before, without what sessions share [tokens]; shape (calls,).
    items
        What sessions share, by kind.
    grown_tokens
        What of `kept_tokens` comes while the call runs, its output, half of which is there on average [tokens]; shape (calls,).
    """

    def __init__(
        self,
        session: ArrayLike,
        start_s: ArrayLike,
        end_s: ArrayLike,
        kept_tokens: ArrayLike,
        cached_tokens: ArrayLike,
        items: Sequence[SharedItems] = (),
        grown_tokens: ArrayLike = 0.0,
    ) -> None:
        self.session = np.asarray(session, dtype=np.int64)
        self.start, self.end = np.asarray(start_s, dtype=np.float64), np.asarray(end_s, dtype=np.float64)
        self.kept = np.asarray(kept_tokens, dtype=np.float64)
        self.cached = np.asarray(cached_tokens, dtype=np.float64)
        self.items = [kind.classes() for kind in items]
        first = np.r_[True, np.diff(self.session) != 0]
        self.sessions = int(first.sum())
        self.calls = self.session.size
        place = np.arange(self.calls)
        self.turn = place - np.maximum.accumulate(np.where(first, place, 0))
        self.backs = _backs(int(self.turn.max(initial=0)))
        self.gaps_s = self._gaps()
        self._size, self.size_tokens = _bins(self.kept)
        self.calls_of_size = np.bincount(self._size, minlength=self.size_tokens.size) / self.calls
        self.running_tokens = self.kept - 0.5 * np.asarray(grown_tokens, dtype=np.float64)
        held = np.bincount(self._size, self.running_tokens, self.size_tokens.size) / self.calls
        # mean calls that run, by size, as if each held all of it
        self._running = held / np.maximum(self.size_tokens, 1e-300)
        self.reach: list[tuple[NDArray[np.intp], Floats, Floats]] = []  # call, gap, cached: by calls back
        self._tabulate()

    def _gaps(self) -> Floats:
        """Gaps at which V is computed [s]: from the shortest to the longest there are."""
        gap = (self.start[1:] - self.end[:-1])[self.turn[1:] > 0]
        positive = gap[gap > 0.0]
        low = max(float(positive.min(initial=1.0)), 1e-3) if positive.size else 0.1
        high = max(float(self.start.max(initial=1.0)), 10.0 * low, DAY_S if self.items else 10.0)
        return np.geomspace(low, high, GAPS)

    def _gaps_at(self, calls_per_s: float) -> Floats:
        """The same; where no session comes back only shared prefixes do, and their gaps follow the rate [s]."""
        if self.backs or not self.items:
            return self.gaps_s
        used = np.concatenate([per_call for _, per_call, _ in self.items])
        return np.geomspace(1e-3 / float(used.max()), 20.0 / float(used.min()), GAPS) / max(calls_per_s, 1e-12)

    def _tabulate(self) -> None:
        """Sums over calls by calls back: min(gap, tau) by size, and what could be found by gap and cached prefix."""
        shape = (len(self.backs), GAPS, self.size_tokens.size)
        self.touched = np.zeros(shape)  # mean over calls of min(gap to the j-th next call, tau), by size of the call
        found: list[tuple[NDArray[np.intp], Floats, Floats]] = []
        least = self.cached.copy()
        wanted = {back: k for k, (back, _, _) in enumerate(self.backs)}
        for back in range(1, self.backs[-1][0] + 1 if self.backs else 0):
            if back > 1:
                least[back - 1 :] = np.minimum(least[back - 1 :], self.cached[: self.calls - back + 1])
            if back not in wanted:
                continue
            k = wanted[back]
            rows = np.flatnonzero(self.turn >= back)
            gap = np.maximum(self.start[rows] - self.end[rows - back], self.gaps_s[0])
            self.touched[k] = self._capped(rows - back, gap)
            found.append((rows, gap, least[rows].copy()))
        self.reach = found
        every = [cached for _, _, cached in found] or [np.zeros(1)]
        edges = np.unique(np.quantile(np.concatenate(every[:SINGLE]), np.linspace(0.0, 1.0, BINS)))
        self.found_tokens = np.zeros((len(found), GAPS, edges.size + 1))
        self.found_count = np.zeros((len(found), GAPS, edges.size + 1))
        logs = np.log(self.gaps_s)
        for k, (_, gap, cached) in enumerate(found):
            at = np.interp(np.log(gap), logs, np.arange(GAPS))
            low = np.minimum(at.astype(np.intp), GAPS - 2)
            column = np.searchsorted(edges, cached)
            for node, part in ((low, 1.0 - (at - low)), (low + 1, at - low)):
                np.add.at(self.found_count[k], (node, column), part / self.calls)
                np.add.at(self.found_tokens[k], (node, column), part * cached / self.calls)

    def _capped(self, calls: NDArray[np.intp], gap: Floats) -> Floats:
        """Sum over all calls of min(gap, tau) by tau and size, per call; calls not named have no next one."""
        size = self.size_tokens.size
        place = np.searchsorted(self.gaps_s, gap)  # tau below this place are shorter than the gap
        flat = place * size + self._size[calls]
        shorter = np.bincount(flat, gap, (GAPS + 1) * size).reshape(GAPS + 1, size).cumsum(axis=0)[:GAPS]
        ended = np.bincount(flat, minlength=(GAPS + 1) * size).reshape(GAPS + 1, size).cumsum(axis=0)[:GAPS]
        every = np.bincount(self._size, minlength=size)
        capped: Floats = (shorter + self.gaps_s[:, None] * (every[None, :] - ended)) / self.calls
        return capped

    def weights(self, replicas: float) -> Floats:
        """Probability that the call before on the same replica is that many calls back, by group [1]; sticky for one replica."""
        if replicas <= 1.0:
            return np.array([1.0] + [0.0] * (len(self.backs) - 1)) if self.backs else np.zeros(0)
        stay = 1.0 - 1.0 / replicas
        return np.array([stay ** (low - 1) - stay ** (high - 1) for _, low, high in self.backs])

    def at(
        self,
        calls_per_s: float,
        cache_tokens: float,
        spread: float = 1.0,
        *,
        busy_s: ArrayLike = 0.0,
        ttl_s: float = math.inf,
        item_spread: float = 1.0,
        without: int | None = None,
    ) -> CacheLaw:
        """The cache of one replica.

        Parameters
        ----------
        calls_per_s
            Calls the replica serves [1/s].
        cache_tokens
            KV memory of the replica, running requests included [tokens].
        spread
            Replicas that a session's calls are dealt to at random; 1 = a session stays.
        busy_s
            How long a call holds its memory [s]: one number, or by size, shape (len(size_tokens),).
        ttl_s
            Retention: what was not touched for so long is dropped [s].
        item_spread
            Part of the shared prefixes that come to this replica is one over it; their calls come here only. A prefix that more
            calls use than a replica serves stays on more of them.
        without
            A class of shared prefixes one of which is left out: what lies between two uses of that one.

        Returns
        -------
        CacheLaw
        """
        size = self.size_tokens
        gaps = self._gaps_at(calls_per_s * item_spread)
        weight = self.weights(spread)
        rest = max(1.0 - float(weight.sum()), 0.0)
        mass = np.tensordot(weight, self.touched, axes=1) if weight.size else np.zeros((GAPS, size.size))
        mass = mass + rest * gaps[:, None] * self.calls_of_size
        mass = calls_per_s * (mass + self._running * np.asarray(busy_s))
        step = max(cache_tokens, 1.0) / STEPS
        length = 2 * STEPS + 2
        tilt = TILT / length
        place = size / step
        low = np.minimum(place.astype(np.intp), STEPS + 1)
        part = np.where(low <= STEPS, place - low, 0.0)
        binned = np.zeros((STEPS + 2, GAPS))
        for node, share in ((low, 1.0 - part), (np.minimum(low + 1, STEPS + 1), part)):
            np.add.at(binned, node, (mass * share).T)
        # what alone exceeds the cache fills it whenever it is touched: it counts in the total only
        binned = binned[: STEPS + 1].T * np.exp(-tilt * np.arange(STEPS + 1))
        exponent = np.fft.rfft(binned, length, axis=1) - mass.sum(axis=1)[:, None]
        left_out = 0
        for count, per_call, tokens in self.items:
            keep = _kept_apart(per_call, item_spread)
            here = count / keep
            if without is not None and 0 <= without - left_out < here.size:
                here[without - left_out] = max(here[without - left_out] - 1.0, 0.0)
            left_out += here.size
            rate = calls_per_s * keep * per_call
            exponent += _bernoulli(here, rate, tokens / step, gaps, length, tilt)
        law = np.fft.irfft(np.exp(exponent), length, axis=1)[:, : STEPS + 1] * np.exp(tilt * np.arange(STEPS + 1))
        below = np.clip(np.cumsum(law, axis=1), 0.0, 1.0)
        room = np.zeros((GAPS, STEPS + 1))
        np.cumsum(below[:, :-1] * step, axis=1, out=room[:, 1:])
        return CacheLaw(cache_tokens, gaps, room, below, ttl_s)

    def found_by_sessions(self, law: CacheLaw, spread: float = 1.0) -> float:
        """Mean tokens a call finds again of its own session [tokens]."""
        weight = self.weights(spread)
        if not weight.size:
            return 0.0
        count = np.tensordot(weight, self.found_count, axes=1)
        tokens = np.tensordot(weight, self.found_tokens, axes=1)
        used = count > 0.0
        node, _ = np.nonzero(used)
        mean = tokens[used] / count[used]
        return float(count[used] @ law.found(self.gaps_s[node], mean))

    def found_of_items(
        self, calls_per_s: float, cache_tokens: float, spread: float = 1.0, *, item_spread: float = 1.0, **held: Any
    ) -> float:
        """Mean tokens a call finds of what sessions share [tokens]; parameters as for :meth:`at`."""
        total, place = 0.0, 0
        classes = sum(count.size for count, _, _ in self.items)
        law = None
        for count, per_call, tokens in self.items:
            for many, share, length in zip(count, per_call, tokens, strict=True):
                keep = float(_kept_apart(np.array(share), item_spread))
                if law is None or classes <= FEW_CLASSES:
                    # of few classes each may have few items: then it matters that the one asked about is none of the others
                    own = place if classes <= FEW_CLASSES else None
                    law = self.at(calls_per_s, cache_tokens, spread, item_spread=item_spread, without=own, **held)
                total += many * share * self._item(law, calls_per_s * keep * share, length)
                place += 1
        return total

    def _item(self, law: CacheLaw, rate_per_s: float, tokens: float) -> float:
        """Mean tokens found of an item touched at Poisson times of that rate [tokens]."""
        level = (np.arange(64) + 0.5) / 64.0
        return float(law.found(-np.log1p(-level) / rate_per_s, np.full(64, tokens)).mean())


def _kept_apart(per_call: Floats, item_spread: float) -> Floats:
    """Over how many fewer replicas each item is found: no more than leave a replica its fair share of the calls."""
    return np.clip(1.0 / np.maximum(per_call, 1e-300), 1.0, max(item_spread, 1.0))


def _bernoulli(
    count: Floats, rate_per_s: Floats, steps: Floats, gaps_s: Floats, length: int, tilt: float
) -> NDArray[np.complex128]:
    """Logarithm of the transform of items that are each touched within a gap or not, shape (gaps, frequencies)."""
    frequency = 2.0 * math.pi * np.arange(length // 2 + 1) / length
    total = np.zeros((gaps_s.size, frequency.size), dtype=np.complex128)
    for many, rate, place in zip(count, rate_per_s, steps, strict=True):
        touched = -np.expm1(-rate * gaps_s)[:, None]
        low = math.floor(place)
        jump = np.zeros(frequency.size, dtype=np.complex128)
        if low <= length // 2 - 1:  # longer than the cache: it fills it
            for node, share in ((low, 1.0 - (place - low)), (low + 1, place - low)):
                jump += share * np.exp(-(tilt + 1j * frequency) * node)
        total += many * np.log1p(touched * (jump - 1.0) * (1.0 - 1e-12))
    return total


def _backs(most: int) -> list[tuple[int, int, int]]:
    """Groups of calls back up to `most`: (the one that stands for them, first, one past the last)."""
    groups, low = [], 1
    while low <= most:
        high = low + 1 if low <= SINGLE else low + max(low // 6, 1)
        high = min(high, most + 1)
        groups.append(((low + high - 1) // 2, low, high))
        low = high
    return groups


def _bins(values: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Bin of each value, and the mean of each bin; bins hold about equally much of the sum."""
    edges = np.unique(np.quantile(values, np.linspace(0.0, 1.0, BINS)))
    place = np.searchsorted(edges, values)
    count = np.bincount(place, minlength=edges.size + 1)
    used = np.flatnonzero(count)
    renumbered = np.zeros(edges.size + 1, dtype=np.intp)
    renumbered[used] = np.arange(used.size)
    mean: Floats = np.bincount(place, values, edges.size + 1)[used] / count[used]
    return renumbered[place], mean
