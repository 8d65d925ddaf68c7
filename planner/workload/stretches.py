"""Stretches of a trace at another rate: few requests that stand for all the ways in which its copies may meet.

A rate above the trace's own is that many users: copies of the trace, each shifted by a time nobody knows. Whether their bursts
meet decides the tail of every latency, so many draws of the shifts are looked at, most of them in their busiest minutes: how much
work falls into a minute of a draw follows from the cumulated work of the trace alone, and only the minutes chosen are made into
requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.workload.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["MOST_DRAWS", "Stretches", "stretches"]

MOST_DRAWS = 32
"""Draws of the shifts looked at, where there are few copies."""

MOST_SHIFTS = 4096
"""Shifts in all of them together: many copies even out, so that few draws do."""

DRAWN_S = 32 * 3600.0
"""Time that all draws together last, at least four of them: a day has bursts of many kinds by itself [s]."""

CLASSES = np.array(
    [0.3, 0.5, 0.65, 0.75, 0.8, 0.85, 0.89, 0.92, 0.94, 0.955, 0.965, 0.975, 0.98, 0.985, 0.99, 0.9925, 0.995, 0.998]
)
"""Shares of the requests below which classes end that meet alike [1]."""

TOGETHER = 10
"""Minutes over which swings of the traffic go together."""

FEWEST = 30
"""Requests of a class that say what such requests go through."""

BLOCK_REQUESTS, BLOCKS_S = 240.0, (20.0, 120.0)
"""Requests of a stretch that is taken or left, and the lengths it has at least and at most [s]."""

WARM_UPS_S = (10.0, 30.0)
"""Time before a stretch that is run but not counted: a life, but at least and at most this [s]."""

LONGEST_WARM_UP_S = 300.0
"""The same where work waits before it [s]."""

EMPTY_S = 0.2
"""Backlog of a server that is as good as empty [s]."""

OVERHEAD = 1.3
"""Requests of a stretch and its warm-up over those of the stretch, about [1]."""

MOST_BINS = 400_000
"""Sums taken to see where the draws are busy."""

ROUNDED = 9
"""Decimals to which sums over copies are right."""

DENSE = 0.6
"""Share of requests kept from which every request is looked at [1]."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Requests of the stretches chosen.

    Attributes
    ----------
    times : ndarray, shape (requests,)
        Arrival times, not decreasing, draws one after another [s].
    rows : ndarray of int, shape (requests,)
        Which request of the trace each is.
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
        beyond = (self.counts * (self.met > met[min(int(np.searchsorted(below, level)), below.size - 1)]))[0]
        total = float(self.counts.sum())
        share = float(beyond.sum()) / total
        if share <= 0.0:
            return 0.0
        off = np.add.reduceat(beyond - share * self.counts[0], np.arange(0, beyond.size, self.block_bins))
        lags = range(1, min(TOGETHER, off.size - 1) + 1)
        variance = float(off @ off) + 2.0 * sum(float(off[j:] @ off[:-j]) for j in lags)
        return math.sqrt(max(variance, float(off @ off))) / (share * total)


def stretches(
    trace: Trace,
    work_s: Floats,
    servers: float,
    rate_per_s: float,
    *,
    growth: str = "users",
    keep: float = 1.0,
    even: bool = False,
    whole_s: Floats | None = None,
    life_s: float = 0.0,
    most: int,
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
    even
        Whether they are evenly spread over each copy, as a gateway that balances gives them to replicas; else chosen at random.
    whole_s
        The same once decodes have filled up beside it, where that is longer [s], shape (requests,).
    life_s
        How long a request stays, so that the past shows in what it leaves [s].
    most
        About how many requests, those of warm-ups included.
    """
    copies = trace.copies(rate_per_s)
    # a mean gap after the last request, where the copies go round
    span = float(trace.times_s[-1]) * (1.0 + 1.0 / max(trace.requests - 1, 1))
    rng = np.random.Generator(np.random.PCG64(20231117))
    number = max(int(np.ceil(copies - 1e-9)), 1)
    share = np.minimum(copies - np.arange(number), 1.0)
    expected = trace.requests * copies * keep
    draws = (
        1
        if number == 1 or growth == "use"
        else int(np.clip(MOST_SHIFTS // number, 2, np.clip(DRAWN_S / span, 4, MOST_DRAWS)))
    )
    length = float(np.clip(BLOCK_REQUESTS * span / expected, *BLOCKS_S))
    blocks = max(round(span / length), 1)
    fine = int(np.clip(MOST_BINS / (draws * number * blocks), 4, length))
    bins = blocks * fine
    step = span / bins
    reach = 0 if growth == "use" else int(trace.reach_s / step)
    moved = (rng.random((number, MOST_DRAWS))[:, :draws].T * reach).astype(np.int64)
    moved[:, 0] = 0
    place = np.minimum((trace.times_s / step).astype(np.int64), bins - 1)
    count, busy, slow = (
        _overlaid(np.bincount(place, x, bins).astype(np.float64), moved, share)
        for x in (np.ones(trace.requests), work_s / servers, (work_s if whole_s is None else whole_s) / servers)
    )
    wait = _backlog(busy, step)
    # a long backlog drains as slowly as its own decodes let it
    longer = np.maximum(_backlog(slow, step) - wait, 0.0)
    wait = wait + longer * -np.expm1(-(wait + longer) / max(life_s, 1e-9))
    met = _met(wait, busy, fine)
    weight = _chosen(count, met, fine, keep, most)
    run_draw, first, last = _runs(weight > 0.0)
    warm = float(np.clip(life_s, *WARM_UPS_S))
    low = _starts(wait, run_draw, first * fine, last * fine, warm, step) if weight.size > 1 else first * fine
    times, rows, run = _requests(
        trace.times_s, span, low * step, last * fine * step, moved[run_draw] * step, keep * share, even, rng
    )
    if growth == "use" and number > 1:
        times = np.clip(times + rng.random(times.size) - 0.5, (low * step)[run], (last * fine * step)[run])
    order = np.lexsort((times, run))
    times, rows, run = times[order], rows[order], run[order]
    block = np.clip((times / (span / blocks)).astype(np.int64), 0, blocks - 1)
    own = np.where(block >= first[run], weight[run_draw[run], block], 0.0)
    there = met[run_draw[run], np.clip((times / step).astype(np.int64), 0, bins - 1)]
    kind, shares = _classes(there, own > 0.0, met, count)
    if np.any(weight != 1.0):
        # requests that meet so much are then as frequent as in all draws together
        sums, mass = np.bincount(kind, own, shares.shape[1]), count.sum(axis=1) @ shares / count.sum()
        own = own * (mass * own.sum() / np.maximum(sums, 1e-300))[kind]
    past = min(max(int(30.0 / step), 1), bins)  # a trace shorter than that has no more of a past
    sums = np.cumsum(np.concatenate((count[:, -past:], count), axis=1), axis=1)
    level = (sums[run_draw, np.minimum(low + past, bins + past - 1)] - sums[run_draw, low]) / (past * count.mean())
    backlog = np.where(low > 0, wait[run_draw, np.maximum(low - 1, 0)], 0.0)
    return Stretches(
        times + run_draw[run] * span,
        rows,
        own,
        run,
        level,
        np.where(backlog > EMPTY_S, backlog, 0.0),
        kind,
        shares,
        count,
        met,
        max(int(np.ceil(60.0 / step)), 1),
    )


def _overlaid(amount: Floats, moved: Ints, share: Floats) -> Floats:
    """What the copies of every draw bring together in each bin, shape (draws, bins)."""
    if not moved.any():
        return np.zeros((moved.shape[0], amount.size)) + float(share.sum()) * amount
    # a circular convolution with where the copies begin
    begin = np.stack([np.bincount(shifts, share, amount.size) for shifts in moved])
    spectrum = np.fft.rfft(begin, axis=1) * np.fft.rfft(amount)
    found: Floats = np.fft.irfft(spectrum, amount.size, axis=1)
    # what is nothing, and what is alike, stays so
    return np.maximum(np.round(found, ROUNDED), 0.0)


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


def _classes(own: Floats, counted: NDArray[np.bool_], met: Floats, count: Floats) -> tuple[Ints, Floats]:
    """Class of requests that meet `own`, and the share of every class in every draw [1], shape (draws, classes)."""
    order = np.argsort(met, axis=None)
    below = np.cumsum(count.ravel()[order])
    edges = met.ravel()[order[np.searchsorted(below, CLASSES * below[-1])]]
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
    _, joined = np.unique(joined, return_inverse=True)
    draws = met.shape[0]
    cell = joined[np.searchsorted(edges, met, side="right")] + np.arange(draws)[:, None] * (joined.max() + 1)
    shares = np.bincount(cell.ravel(), count.ravel(), draws * (joined.max() + 1)).reshape(draws, -1)
    return joined[kind], shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)


def _chosen(count: Floats, met: Floats, fine: int, keep: float, most: int) -> Floats:
    """Weight of every block, 0 for those left out, shape (draws, blocks).

    A block is taken with a chance that grows with its requests, with those that meet one of the longest fifth of all backlogs and
    with those that meet one of the longest twenty-fifth, systematically in order of its backlog; it stands for the reciprocal.
    """
    shape = (count.shape[0], -1, fine)
    requests = count.reshape(shape).sum(axis=2).ravel()
    if keep * float(requests.sum()) <= most:
        return np.ones((count.shape[0], count.shape[1] // fine))
    order = np.argsort(met, axis=None)
    below = np.cumsum(count.ravel()[order])
    size = requests / requests.sum()
    for level, part in ((0.8, 0.5), (0.96, 1.0)):
        edge = met.ravel()[order[np.searchsorted(below, level * below[-1])]]
        there = (count * (met >= edge)).reshape(shape).sum(axis=2).ravel()
        size = size + part * there / max(float(there.sum()), 1e-300)
    worst = met.reshape(shape).max(axis=2).ravel()
    order = np.argsort(-worst, kind="stable")
    size, cost = size[order], keep * requests[order] * OVERHEAD
    wanted = size.size * most / float(cost.sum())
    for _ in range(4):
        chance = _chances(size, max(wanted, 2.0))
        wanted *= most / float(chance @ cost)
    turn = np.floor(np.cumsum(chance) + 0.5)
    taken = np.diff(turn, prepend=0.0) > 0.0
    weight = np.zeros(size.size)
    weight[order[taken]] = 1.0 / chance[taken]
    weight *= float(requests.sum()) / float(weight @ requests)
    found: Floats = weight.reshape(count.shape[0], -1)
    return found


def _chances(size: Floats, wanted: float) -> Floats:
    """Chances proportional to sizes that sum to `wanted`, none above 1."""
    chance: Floats = np.minimum(wanted * size / size.sum(), 1.0)
    for _ in range(20):
        sure = chance >= 1.0
        left = wanted - float(sure.sum())
        if sure.all() or left <= 0.0:
            break
        rest = np.minimum(left * size / max(float(size[~sure].sum()), 1e-300), 1.0)
        chance = np.asarray(np.where(sure, 1.0, rest), dtype=np.float64)
    return chance


def _starts(wait: Floats, draw: Ints, first: Ints, last: Ints, warm_s: float, step: float) -> Ints:
    """Bin at which each run begins: a warm-up before its first block, and earlier where something waits then."""
    low = np.empty(first.size, dtype=np.int64)
    warm, most = int(np.ceil(warm_s / step)), int(np.ceil(LONGEST_WARM_UP_S / step))
    end, owner = 0, -1
    for k, (d, begin) in enumerate(zip(draw.tolist(), first.tolist(), strict=True)):
        floor = max(begin - most, end if d == owner else 0, 0)
        at = max(begin - warm, floor)
        empty = np.flatnonzero(wait[d, floor : at + 1] <= EMPTY_S)
        low[k] = floor + int(empty[-1]) if empty.size else floor
        end, owner = int(last[k]), d
    return low


def _runs(taken: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Draw, first block and last block (exclusive) of every run of blocks taken."""
    padded = np.pad(taken.astype(np.int8), ((0, 0), (1, 1)))
    change = np.diff(padded, axis=1)
    draw, first = np.nonzero(change > 0)
    _, last = np.nonzero(change < 0)
    return draw, first, last


def _requests(
    times: Floats,
    span: float,
    low: NDArray[np.floating],
    high: NDArray[np.floating],
    shifts: NDArray[np.floating],
    keep: Floats,
    even: bool,
    rng: np.random.Generator,
) -> tuple[Floats, Ints, Ints]:
    """Times, rows and runs of the requests that copies bring between `low` and `high`, shifts of shape (runs, copies)."""
    twice = np.concatenate((times, times + span))
    start = (low[:, None] - shifts) % span
    begin = np.searchsorted(twice, start).ravel()
    end = np.searchsorted(twice, start + (high - low)[:, None]).ravel()
    # a request of the copy at t comes at t + offset
    offset = (low[:, None] - start).ravel()
    part = np.broadcast_to(keep, shifts.shape).ravel()
    run = np.repeat(np.arange(low.size), shifts.shape[1])
    size = end - begin
    if even and float(part.max()) < 1.0:
        phase = rng.random(size.size)
        from_, to = np.floor(begin * part + phase), np.floor(end * part + phase)
        slot, j = _ranges((to - from_).astype(np.int64))
        position = np.ceil((from_[slot] + j + 1 - phase[slot]) / part[slot]).astype(np.int64) - 1
        position = np.clip(position, begin[slot], end[slot] - 1)
    elif float(part.max()) >= DENSE:
        slot, j = _ranges(size)
        kept = rng.random(slot.size) < part[slot] if float(part.min()) < 1.0 else np.ones(slot.size, dtype=np.bool_)
        slot, position = slot[kept], (begin[slot] + j)[kept]
    else:
        # each place drawn once or more often with the chance wanted
        drawn = rng.poisson(-size * np.log1p(-part))
        slot = np.repeat(np.arange(size.size), drawn)
        place = (rng.random(slot.size) * size[slot]).astype(np.int64)
        once = np.sort(slot * (int(size.max(initial=0)) + 1) + place)
        once = once[np.diff(once, prepend=-1) > 0]
        slot, place = np.divmod(once, int(size.max(initial=0)) + 1)
        position = begin[slot] + place
    at: Floats = twice[position] + offset[slot]
    return at, position % times.size, run[slot]


def _ranges(sizes: Ints) -> tuple[Ints, Ints]:
    """0 .. size-1 for every size, and whose each is."""
    whose = np.repeat(np.arange(sizes.size), sizes)
    return whose, np.arange(whose.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
