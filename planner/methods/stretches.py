"""Stretches of a trace at another rate: few requests that stand for all the ways in which its copies may meet.

A rate above the trace's own is that many users: copies of the trace, each shifted by a time nobody knows. Whether their bursts
meet decides the tail of every latency, so many draws of the shifts are looked at, most of them in their busiest minutes: how much
work falls into a minute of a draw follows from the cumulated work of the trace alone, and only the minutes chosen are made into
requests. What is drawn for a copy, a minute or a request stays with it, whatever the size and the settings of the pool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from planner.queueing.common_draws import OVER, spread, thinned, uniforms
from planner.queueing.order import by_size, ranked
from planner.workload.sending import Surge
from planner.workload.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Keys = NDArray[np.uint64]

__all__ = ["MOST_DRAWS", "Stretches", "stretches"]

MOST_DRAWS = 31
"""Draws of the shifts looked at, where there are few copies; see :func:`_shifts`."""

PRIMITIVE = {2: 1, 3: 2, 5: 2, 7: 3, 11: 2, 13: 2, 17: 3, 19: 2, 23: 5, 29: 10, 31: 12}
"""Numbers of draws that are primes, and of each a root whose powers go through all remainders but 0."""

MOST_SHIFTS = 4096
"""Shifts in all of them together: many copies even out, so that few draws do."""

DRAWN_S = 13 * 24 * 3600.0
"""Time that all draws together last [s]: P99 of a day is its busiest quarter of an hour, which of few draws is one way to meet.
Of five draws a day's P99 TTFT strays by a fifth to a third from one lattice to another, of thirteen by a tenth."""

CLASSES = np.array(
    [0.3, 0.5, 0.65, 0.75, 0.8, 0.85, 0.89, 0.92, 0.94, 0.955, 0.965, 0.975, 0.98, 0.985, 0.99, 0.9925, 0.995, 0.998]
)
"""Shares of the requests below which classes end that meet alike [1]."""

TOGETHER = 10
"""Minutes over which swings of the traffic go together."""

BUSIEST = ((0.8, 0.3), (0.965, 0.5))
"""Classes from which on requests count more where stretches are chosen, and how much more than all together [1]."""

FEWEST = 30
"""Requests of a class that say what such requests go through."""

BLOCK_REQUESTS, BLOCKS_S = 240.0, (10.0, 20.0, 40.0, 80.0)
"""Requests of a stretch that is taken or left, about, and the lengths it may have [s]. Stretches of 80 stray as much, but
P99 TTFT is 3% and P99 TPOT 2% optimistic with them: more of the requests stand near an end."""

WARM_UPS_S = (5.0, 15.0)
"""Time before a stretch that is run but not counted: a life, but at least and at most this [s]. As much is run after it, or its
last requests would decode alone."""

LONGEST_WARM_UP_S = 300.0
"""The same where work waits before it [s]."""

EMPTY_S = 0.2
"""Backlog of a server that is as good as empty [s]."""

WHOLE = 1.5
"""Requests over those wanted up to which all are taken [1]: a part of them would be found with luck, and is hardly cheaper."""

OVERHEAD = 1.2
"""Requests before and after a stretch over those of its warm-up twice, about [1]: where work waits it begins earlier."""

MOST_COPIES = 1 << 17
"""Copies of a trace laid over each other; of more, each stands for several: where nothing is left of bursts but what they make."""

MOST_BLOCKS = 400_000
"""Stretches of a draw: months of them; those of a trace of years are longer."""

MOST_BINS = 400_000
"""Sums taken to see where the draws are busy."""

SEEN_BINS = 40_000
"""Of them, those that say where a share of the requests lies."""

NOTHING = 1e-9
"""Part of the largest sum over copies below which it is none [1]."""

USUAL_LOAD = 0.7
"""Load at which minutes are ordered by how busy they are, the same order for every pool [1]."""

GOLDEN = 0.6180339887498949
"""Multiples of it fall evenly over (0, 1)."""

CROWDS = (16.0, 64.0)
"""Flash crowds followed at least and at most."""

FEWEST_CROWDS, OF_A_CROWD, LARGE_CROWDS = 4.0, 2048.0, 4.0
"""Of a rough look at least; requests wanted in all from which on each crowd more counts; and how many times what is wanted in all
is followed at most for the sake of more crowds [1]."""

MOMENTS = 512
"""Moments at which a crowd may come, of which those followed are chosen."""

PARTS = 16
"""Parts of the time around a crowd by which its requests are counted."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Requests of the stretches chosen.

    Attributes
    ----------
    times : ndarray, shape (requests,)
        Arrival times, not decreasing, draws one after another [s].
    rows : ndarray of int, shape (requests,)
        Which request of the trace each is.
    keys : ndarray of uint64, shape (requests,)
        What its random choices hang on, the same at every size of the pool.
    weight : ndarray, shape (requests,)
        How many it stands for; 0 in a warm-up.
    run : ndarray of int, shape (requests,)
        Stretches without a gap, ascending.
    level, backlog : ndarray, shape (runs,)
        Requests in the half minute before each run over their mean there [1], and what waits when it begins [s].
    kind : ndarray of int, shape (requests,)
        Class of what each request meets, as far as fluids tell: those of a class go through alike whichever draw they are from.
    shares : ndarray, shape (draws, classes)
        Share of the requests of each draw that are of each class [1].
    counts, met : ndarray, shape (draws, bins)
        Requests of all the traffic in every bin of time of every draw, and what they meet as far as fluids tell [s].
    block_bins : int
        Bins of a minute.
    """

    times: Floats
    rows: Ints
    keys: Keys
    weight: Floats
    run: Ints
    level: Floats
    backlog: Floats
    kind: Ints
    shares: Floats
    counts: Floats
    met: Floats
    block_bins: int

    def deviations(self, levels: Floats) -> Floats:
        r"""Relative standard deviation of the share of requests beyond quantiles [1], shape of `levels`, of a trace as it is.

        It follows from its minutes, which is the bootstrap over minutes in its linear limit: with :math:`n_b` requests of
        minute b, :math:`e_b` of them beyond, it is :math:`\sqrt{\sum_{b,c} (e_b - p n_b)(e_c - p n_c)} / (p \sum_b n_b)` over
        minutes b and c no further than :data:`TOGETHER` apart.
        """
        order = np.argsort(self.met[0])
        below = np.cumsum(self.counts[0, order])
        return np.array([self._deviation(float(x), self.met[0, order], below / below[-1]) for x in levels])

    def _deviation(self, level: float, met: Floats, below: Floats) -> float:
        """Relative standard deviation of the share of requests beyond a quantile, from the minutes of one draw."""
        edge = met[min(int(np.searchsorted(below, level)), below.size - 1)]
        # where few bins hold the tail, that of the quantile is of it
        beyond = (self.counts * (self.met > edge if np.any(self.met > edge) else self.met >= edge))[0]
        total = float(self.counts.sum())
        share = float(beyond.sum()) / total
        if share <= 0.0:
            return 0.0
        off = np.add.reduceat(beyond - share * self.counts[0], np.arange(0, beyond.size, self.block_bins))
        lags = range(1, min(TOGETHER, off.size - 1) + 1)
        variance = float(off @ off) + 2.0 * sum(float(off[j:] @ off[:-j]) for j in lags)
        return math.sqrt(max(variance, float(off @ off))) / (share * total)


class _Laid:
    """A trace at another rate: its copies laid over each other in every draw, before anything is known of the pool.

    Parameters
    ----------
    trace, rate_per_s, growth
        As :func:`stretches` takes them.
    block_s
        Length of a stretch that is taken or left, about [s].

    Attributes
    ----------
    share : ndarray, shape (copies,)
        Share of the requests that each copy brings [1]: the last may be a part.
    moved : ndarray of int, shape (draws, copies)
        Shifts of the copies [bins].
    blocks, fine : int
        Stretches that may be taken or left, and bins of each.
    step : float
        Length of a bin [s].
    counts : ndarray, shape (draws, bins)
        Requests.
    luck : ndarray, shape (draws * blocks,)
        Chance from which each block is taken [1]: even over blocks that are as busy as each other.
    """

    def __init__(self, trace: Trace, rate_per_s: float, growth: str, block_s: float) -> None:
        copies = trace.copies(rate_per_s)
        # a mean gap after the last request, where the copies go round
        self.span = float(trace.times_s[-1]) * (1.0 + 1.0 / max(trace.requests - 1, 1))
        number = int(np.clip(np.ceil(copies - 1e-9), 1, MOST_COPIES))
        self.share = np.minimum(copies - np.arange(number), 1.0)
        if copies > MOST_COPIES:
            self.share *= copies / number
        draws = (
            1
            if number == 1 or growth == "use"
            else max(
                p
                for p in PRIMITIVE
                if p <= np.clip(MOST_SHIFTS // number, 2, np.clip(DRAWN_S / self.span, 5, MOST_DRAWS))
            )
        )
        self.blocks = max(min(round(self.span / block_s), MOST_BLOCKS), 1)
        self.fine = int(np.clip(MOST_BINS / (draws * number * self.blocks), 4, block_s))
        bins = self.bins = self.blocks * self.fine
        self.step = self.span / bins
        reach = 0 if growth == "use" else int(trace.reach_s / self.step)
        self.moved = (_shifts(number, draws) * reach).astype(np.int64)
        self.moved[:, 0] = 0
        self._place = np.minimum((trace.times_s / self.step).astype(np.int64), bins - 1)
        self._begin = None
        if self.moved.any():
            # a circular convolution with where the copies begin
            begin = np.stack([np.bincount(shifts, self.share, bins) for shifts in self.moved])
            self._begin = np.fft.rfft(begin, axis=1)
        self.counts = self.overlaid(np.ones(trace.requests))
        self.requests = self.counts.reshape(draws, self.blocks, self.fine).sum(axis=2).ravel()
        self.summed = np.cumsum(self.counts, axis=1)
        usual = self.overlaid(trace.input_tokens + trace.output_tokens)
        usual *= USUAL_LOAD * self.step / max(float(usual.mean()), 1e-300)
        met = _met(_backlog(usual, self.step), usual, self.fine).reshape(draws, self.blocks, self.fine)
        rank = np.argsort(np.argsort(-met.max(axis=2).ravel(), kind="stable"), kind="stable")
        self.luck = ((rank + 0.5) * GOLDEN) % 1.0

    def overlaid(self, amount: Floats) -> Floats:
        """What the copies of every draw bring together in each bin, of an amount of every request, shape (draws, bins)."""
        own = np.bincount(self._place, amount, self.bins)
        if self._begin is None:
            return np.zeros((self.moved.shape[0], self.bins)) + float(self.share.sum()) * own
        found: Floats = np.fft.irfft(self._begin * np.fft.rfft(own), self.bins, axis=1)
        # what is nothing stays so
        found[found < NOTHING * float(found.max())] = 0.0
        return found

    def level(self, draw: Ints, low: Ints) -> Floats:
        """Requests in the half minute before bins of draws over their mean there [1]."""
        past = min(max(int(30.0 / self.step), 1), self.bins)  # a trace shorter than that has no more of a past
        before, total = low - past, self.summed[draw, -1]
        upto, since = (
            np.where(at > 0, self.summed[draw, np.maximum(at, 1) - 1], 0.0) for at in (low, before % self.bins)
        )
        inside = upto - since + np.where(before < 0, total, 0.0)
        return np.asarray(inside / (past * self.counts.mean()))


def _shifts(copies: int, draws: int) -> Floats:
    r"""Shifts of copies in every draw [1], shape (draws, copies): each goes evenly through all there are, and so do differences.

    Whether bursts of two copies meet hangs on the difference of their shifts. In a rank-1 lattice of a prime number of draws,
    :math:`\{d g^k / D + u_k\}` with a primitive root g, that of any two copies takes D values evenly apart (Korobov 1959);
    copies beyond the D - 1 powers go through their values in an order drawn.
    """
    own = np.random.Generator(np.random.PCG64(1)).random((copies, MOST_DRAWS))
    if draws == 1:
        return own[:, :1].T
    powers = [pow(PRIMITIVE[draws], k, draws) for k in range(min(copies, draws - 1))]
    place = np.argsort(own[:, :draws], axis=1)
    place[: len(powers)] = np.arange(draws) * np.array(powers)[:, None] % draws
    found: Floats = ((place / draws + own[:, :1]) % 1.0).T
    return found


_laid = lru_cache(maxsize=4)(_Laid)
"""Pools of one fleet share it, and every size and setting tried."""


def stretches(
    trace: Trace,
    work_s: Floats,
    servers: float,
    rate_per_s: float,
    *,
    growth: str = "users",
    keep: float = 1.0,
    usual_keep: float | None = None,
    even: bool = False,
    whole_s: Floats | None = None,
    life_s: float = 0.0,
    most: int,
    surge: Surge | None = None,
) -> Stretches:
    """About `most` requests of the traffic at a rate.

    Parameters
    ----------
    trace
        The trace.
    work_s
        How long each of its requests keeps a server busy [s], shape (requests,).
    servers
        Servers that work on all the traffic.
    rate_per_s
        Rate of all traffic [1/s].
    growth
        As :meth:`planner.workload.trace.Trace.at_rate` takes it.
    keep
        Share of the requests wanted [1]: the stream of some of the replicas of a pool.
    usual_keep
        The same at the size that the pool usually has, `keep` unless given: it says how long stretches are, so that all sizes take
        or leave the same ones.
    even
        Whether they are evenly spread over each copy, as a gateway that balances gives them to replicas; else chosen at random.
    whole_s
        The same once decodes have filled up beside it, where that is longer [s], shape (requests,).
    life_s
        How long a request stays, so that the past shows in what it leaves [s].
    most
        About how many requests, those of warm-ups included.
    surge
        Flash crowds: the stretches are then those around crowds, whose requests alone count.
    """
    wanted = BLOCK_REQUESTS / ((usual_keep or keep) * rate_per_s)
    laid = _laid(trace, rate_per_s, growth, min(BLOCKS_S, key=lambda length: abs(math.log(length / wanted))))
    warm = float(np.clip(life_s, *WARM_UPS_S))
    if surge is not None:
        return _crowds(trace, laid, surge, work_s / servers, keep, even, min(warm, surge.quiet_s), most)
    count, step, fine, span = laid.counts, laid.step, laid.fine, laid.span
    busy = laid.overlaid(work_s / servers)
    wait = _backlog(busy, step)
    if whole_s is not None:
        # a long backlog drains as slowly as its own decodes let it
        longer = np.maximum(_backlog(laid.overlaid(whole_s / servers), step) - wait, 0.0)
        wait = wait + longer * -np.expm1(-(wait + longer) / max(life_s, 1e-9))
    met = _met(wait, busy, fine)
    edges = _edges(met, count)
    weight = _chosen(laid, met, keep, most, edges, 1.0 + OVERHEAD * 2.0 * warm * laid.blocks / span)
    run_draw, first, last = _runs(weight > 0.0)
    low = _starts(wait, run_draw, first * fine, last * fine, warm, step) if weight.size > 1 else first * fine
    high = _ends(run_draw, first * fine, last * fine, math.ceil(warm / step), laid.bins)
    times, rows, run, keys = _requests(trace.times_s, laid, run_draw, low, high, keep, even)
    if growth == "use" and laid.share.size > 1:
        times = np.clip(times + uniforms(keys, OVER) - 0.5, (low * step)[run], (high * step)[run])
    # the requests of each copy ascend: a sort that merges
    order = np.argsort(times + run * (2.0 * span), kind="stable")
    times, rows, run, keys = times[order], rows[order], run[order], keys[order]
    block = np.clip((times / (span / laid.blocks)).astype(np.int64), 0, laid.blocks - 1)
    own = np.where(block >= first[run], weight[run_draw[run], block], 0.0)
    there = met[run_draw[run], np.clip((times / step).astype(np.int64), 0, laid.bins - 1)]
    kind, shares = _classes(there, own > 0.0, met, count, edges)
    if np.any(weight != 1.0):
        # requests that meet so much are then as frequent as in all draws together
        sums, mass = np.bincount(kind, own, shares.shape[1]), laid.summed[:, -1] @ shares / laid.summed[:, -1].sum()
        own = own * (mass * own.sum() / np.maximum(sums, 1e-300))[kind]
    backlog = np.where(low > 0, wait[run_draw, np.maximum(low - 1, 0)], 0.0)
    return Stretches(
        times + run_draw[run] * span,
        rows,
        keys,
        own,
        run,
        laid.level(run_draw, low),
        np.where(backlog > EMPTY_S, backlog, 0.0),
        kind,
        shares,
        count,
        met,
        max(int(np.ceil(60.0 / step)), 1),
    )


def _backlog(busy: Floats, step: float) -> Floats:
    """Work that waits at the end of each bin as if it were a fluid [s], shape (draws, bins)."""
    sums = np.cumsum(busy - step, axis=1)
    found: Floats = sums - np.minimum(np.minimum.accumulate(sums, axis=1), 0.0)
    return found


def _met(wait: Floats, busy: Floats, fine: int) -> Floats:
    """What a request meets in each bin, as far as fluids tell: the backlog; where nothing waits, how busy it has been [s]."""
    width = max(fine // 4, 1)
    sums = np.cumsum(np.pad(busy, ((0, 0), (width, 0))), axis=1)
    found: Floats = wait + 1e-3 * (sums[:, width:] - sums[:, :-width])
    return found


def _edges(met: Floats, count: Floats) -> Floats:
    """What no more than the shares :data:`CLASSES` of the requests meet less than [s]: of some bins where there are many."""
    every = slice(None, None, met.size // SEEN_BINS | 1)
    values, weight = met.ravel()[every], count.ravel()[every]
    order = by_size(values)
    below = np.cumsum(weight[order])
    found: Floats = values[order[np.minimum(np.searchsorted(below, CLASSES * below[-1]), order.size - 1)]]
    return found


def _classes(own: Floats, counted: NDArray[np.bool_], met: Floats, count: Floats, edges: Floats) -> tuple[Ints, Floats]:
    """Class of requests that meet `own`, and the share of every class in every draw [1], shape (draws, classes)."""
    kind, number = np.searchsorted(edges, own, side="right"), CLASSES.size + 1
    size = np.bincount(kind[counted], minlength=number)
    # a class with few requests is joined to the one below, the lowest to the one above
    joined = np.arange(number)
    for k in range(number - 1, 0, -1):
        if size[k] < FEWEST:
            joined[joined == k] = k - 1
            size[k - 1] += size[k]
    if size[0] < FEWEST:
        joined[joined == 0] = int(joined[joined > 0].min(initial=number))
    _, joined = ranked(joined)
    draws = met.shape[0]
    cell = joined[np.searchsorted(edges, met, side="right")] + np.arange(draws)[:, None] * (joined.max() + 1)
    shares = np.bincount(cell.ravel(), count.ravel(), draws * (joined.max() + 1)).reshape(draws, -1)
    return joined[kind], shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)


def _chosen(laid: _Laid, met: Floats, keep: float, most: int, edges: Floats, overhead: float) -> Floats:
    """Weight of every block, 0 for those left out, shape (draws, blocks).

    A block is taken with a chance that grows with its requests and more with those that meet the longest backlogs
    (:data:`BUSIEST`), and stands for the reciprocal. It is taken where the chance is above its
    luck, which is its own: another size or setting takes nearly the same blocks.
    """
    requests, draws = laid.requests, met.shape[0]
    if keep * float(requests.sum()) <= WHOLE * most:
        return np.ones((draws, laid.blocks))
    size = requests / requests.sum()
    for share, part in BUSIEST:
        edge = edges[np.searchsorted(CLASSES, share)]
        there = (laid.counts * (met >= edge)).reshape(draws, laid.blocks, laid.fine).sum(axis=2).ravel()
        size = size + part * there / max(float(there.sum()), 1e-300)
    cost = keep * requests * overhead
    wanted = size.size * most / float(cost.sum())
    for _ in range(4):
        chance = _chances(size, max(wanted, 2.0))
        wanted *= most / float(chance @ cost)
    taken = laid.luck < chance
    if not taken.any():
        taken = chance >= chance.max()
    weight = np.zeros(size.size)
    weight[taken] = 1.0 / chance[taken]
    weight *= float(requests.sum()) / float(weight @ requests)
    found: Floats = weight.reshape(draws, -1)
    return found


def _chances(size: Floats, wanted: float) -> Floats:
    """Chances proportional to sizes that sum to `wanted`, none above 1."""
    chance: Floats = np.minimum(wanted * size / size.sum(), 1.0)
    certain = -1
    for _ in range(20):
        sure = chance >= 1.0
        number = int(np.count_nonzero(sure))
        left = wanted - number
        if number in (certain, sure.size) or left <= 0.0:
            break
        certain = number
        rest = np.minimum(left * size / max(float(size[~sure].sum()), 1e-300), 1.0)
        chance = np.asarray(np.where(sure, 1.0, rest), dtype=np.float64)
    return chance


def _starts(wait: Floats, draw: Ints, first: Ints, last: Ints, warm_s: float, step: float) -> Ints:
    """Bin at which each run begins: a warm-up before its first block, and earlier where something waits then."""
    warm, most = int(np.ceil(warm_s / step)), int(np.ceil(LONGEST_WARM_UP_S / step))
    ended = np.where(np.diff(draw, prepend=-1) == 0, np.concatenate(([0], last[:-1])), 0)
    floor = np.maximum(np.maximum(first - most, ended), 0)
    empty = np.flatnonzero(wait <= EMPTY_S)
    row = draw * wait.shape[1]
    place = np.searchsorted(empty, row + np.maximum(first - warm, floor), side="right") - 1
    there = empty[np.maximum(place, 0)] if empty.size else np.zeros(draw.size, dtype=np.int64)
    found: Ints = np.where((place >= 0) & (there >= row + floor), there - row, floor)
    return found


def _ends(draw: Ints, first: Ints, last: Ints, cool: int, bins: int) -> Ints:
    """Bin at which each run ends: what comes after its last block is run as well, so that its requests do not decode alone."""
    following = np.where(np.diff(draw, append=-1) == 0, np.append(first[1:], bins), bins)
    found: Ints = np.minimum(last + cool, following)
    return found


def _runs(taken: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Draw, first block and last block (exclusive) of every run of blocks taken."""
    padded = np.pad(taken.astype(np.int8), ((0, 0), (1, 1)))
    change = np.diff(padded, axis=1)
    draw, first = np.nonzero(change > 0)
    _, last = np.nonzero(change < 0)
    return draw, first, last


def _requests(
    times: Floats, laid: _Laid, draw: Ints, low: Ints, high: Ints, keep: float, even: bool
) -> tuple[Floats, Ints, Ints, Keys]:
    """Times, rows, runs and keys of the requests that copies bring in the bins from `low` to `high` of draws."""
    span, copies = laid.span, laid.share.size
    twice = np.concatenate((times, times + span))
    from_s = (low * laid.step)[:, None]
    start = (from_s - laid.moved[draw] * laid.step) % span
    begin = np.searchsorted(twice, start).ravel()
    end = np.searchsorted(twice, start + (high * laid.step)[:, None] - from_s).ravel()
    # a request of the copy at t comes at t + offset
    offset = (from_s - start).ravel()
    stream = (((draw[:, None] << 16) + np.arange(copies)) << 28).ravel().astype(np.uint64)
    part = np.tile(keep * laid.share, draw.size)
    chosen = spread if even and keep < 1.0 else thinned
    slot, position = chosen(stream, begin, end, part)
    at: Floats = twice[position] + offset[slot]
    row = position % times.size
    return at, row, slot // copies, stream[slot] | row.astype(np.uint64)


def _stratified(brings: Floats, wanted: float) -> tuple[Ints, Floats]:
    """About so many moments at which a crowd may come, more of those at which most work comes, and what each stands for."""
    rank = np.argsort(np.argsort(-brings, kind="stable"), kind="stable")
    size: Floats = np.full(brings.size, 1.0 / brings.size)
    for part in (0.2, 0.04):
        size = size + (rank < part * brings.size) / (part * brings.size)
    chance = _chances(size, wanted)
    taken = np.flatnonzero(((rank + 0.5) * GOLDEN) % 1.0 < chance)
    return taken, 1.0 / chance[taken]


def _crowds(
    trace: Trace, laid: _Laid, surge: Surge, work_s: Floats, keep: float, even: bool, before_s: float, most: int
) -> Stretches:
    """Stretches around flash crowds, which come at any time: a crowd is as many seconds of the traffic in fewer."""
    draws, step = laid.moved.shape[0], laid.step
    width = min(math.ceil(surge.window_s(before_s) / step), laid.bins)
    kept = keep * float(laid.share.sum()) * trace.requests / laid.bins * width
    crowd = np.arange(MOMENTS)
    draw = crowd % draws
    low = ((crowd + 0.5) * GOLDEN % 1.0 * (laid.bins - width)).astype(np.int64)
    brings = np.cumsum(laid.overlaid(work_s), axis=1)
    # of crowds that are large in themselves fewer, each of which tells more
    fewest = min(max(min(most / OF_A_CROWD, LARGE_CROWDS * most / kept), FEWEST_CROWDS), CROWDS[0])
    number = float(np.clip(most / kept, fewest, CROWDS[1]))
    crowd, weight = _stratified(brings[draw, low + width - 1] - brings[draw, low], number)
    draw, low = draw[crowd], low[crowd]
    times, rows, run, keys = _requests(trace.times_s, laid, draw, low, low + width, keep, even)
    times, inside = surge.around(times - (low * step)[run], before_s)
    order = np.lexsort((times, run))
    times, rows, run, keys = times[order], rows[order], run[order], keys[order]
    counted = inside[order] * weight[run]
    length = float(times.max(initial=0.0)) + step
    part = run * PARTS + np.minimum(times / length * PARTS, PARTS - 1).astype(np.int64)
    size = crowd.size * PARTS
    brought: Floats = np.bincount(part, work_s[rows] / keep, size).reshape(-1, PARTS).astype(np.float64)
    return Stretches(
        times + length * run,
        rows,
        keys,
        counted,
        run,
        laid.level(draw, low),
        np.zeros(crowd.size),
        np.zeros(rows.size, dtype=np.int64),
        np.ones((1, 1)),
        np.bincount(part, counted, size)[None].astype(np.float64),
        _backlog(brought, length / PARTS).reshape(1, -1),
        PARTS,
    )
