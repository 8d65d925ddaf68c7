"""The path of a workload: its requests, prompt and output tokens second by second, small enough to travel in its file."""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.queueing.order import ranked
from planner.workload.trace import SHIFT_S, Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["TOKEN_STEP", "Path"]

MOMENT_S = 0.01
"""Requests this near to each other come at one moment [s]: in some traffic clients send several together."""

_BY_CHANCE = 2.0 * MOMENT_S - MOMENT_S**2
"""Share of the pairs of a second that are so near by chance [1]."""

FEW_TOGETHER = 2e-3
"""Share of pairs that come at one moment below which it is chance [1]."""

TOKEN_STEP = 0.02
"""Tokens of a second are kept to a factor of half this [1]."""

LONGEST_S = 24 * 3600
"""Seconds kept; of a longer trace hours that stand for it [s]."""

HOUR_S = 3600
FEWEST_HOURS, MOST_REQUESTS = 4, 2_000_000
"""Hours kept at least, and requests in them above which no more are [1]: dealt to their seconds they are held in memory."""

_EFFORT = 7  # of zlib: 9 saves 1% of the room and takes five times as long
_BYTES = 4
_SWAP_ROUNDS = (120, 400)
"""Rounds of swaps at least and at most: as many seconds to settle as in an hour. After 120 the output tokens of ten minutes of a
day are off by 1%, after 60 by 2% (standard deviations), and more in its busiest hours: P90 TTFT there was a half too high."""
_ALIKE = 50
"""Parts of the requests whose prompts are taken as about as long when they are first dealt."""
_LINE = 120  # characters of a metadata line


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """What arrived in each second.

    Parameters
    ----------
    counts
        Requests, shape (seconds,).
    input_tokens, output_tokens
        Their tokens together [tokens], shape (seconds,).
    together
        Share of the pairs of requests of one second that come at one moment, beyond those that chance brings together [1]: in
        calm seconds and in busy ones, which hold half of the pairs each. Where kinds of requests are mixed of which one comes
        in crowds, it is in the busy ones that they meet.
    """

    counts: Ints
    input_tokens: Floats
    output_tokens: Floats
    together: tuple[float, float] = (0.0, 0.0)

    @property
    def seconds(self) -> int:
        """Length of the path [s]."""
        return int(self.counts.size)

    @property
    def requests(self) -> int:
        """Requests on it."""
        return int(self.counts.sum())

    @classmethod
    def of(cls, trace: Trace) -> Path:
        """The path of a trace; of one longer than a day, or of too many requests, hours evenly by the tokens that came in them.

        >>> t = Trace(np.array([0.0, 0.5, 2.0]), np.array([10.0, 20.0, 5.0]), np.ones(3), np.zeros(3, dtype=np.int64))
        >>> Path.of(t).counts.tolist(), Path.of(t).input_tokens.round().tolist()
        ([2, 0, 1], [30.0, 0.0, 5.0])
        """
        return cls.of_columns(trace.times_s, trace.input_tokens, trace.output_tokens)

    @classmethod
    def of_columns(
        cls, times_s: Floats, input_tokens: Floats, output_tokens: Floats, requests: Floats | None = None
    ) -> Path:
        """As :meth:`of`, of times from the first request on [s] in any order and lengths [tokens], shape (requests,).

        With `requests` every entry stands for so many that came in one second, their tokens summed.
        """
        length = int(times_s.max()) + 1
        counts, *sums = (np.zeros(length) for _ in range(3))
        for k in range(0, times_s.size, _MANY_AT_ONCE):
            part = slice(k, k + _MANY_AT_ONCE)
            second = times_s[part].astype(np.int64)
            low, high = int(second.min()), int(second.max()) + 1
            second -= low
            weights = (None if requests is None else requests[part], input_tokens[part], output_tokens[part])
            for of_second, weight in zip((counts, *sums), weights, strict=True):
                of_second[low:high] += np.bincount(second, weight)
        together = 0.0, 0.0
        if requests is None:
            busy = _busy(counts.astype(np.int64))
            together = _together(times_s if np.all(times_s[1:] >= times_s[:-1]) else np.sort(times_s), busy)
        there = length // HOUR_S
        wanted = min(max(int(MOST_REQUESTS * length / (HOUR_S * counts.sum())), FEWEST_HOURS), LONGEST_S // HOUR_S)
        if length > max(wanted * HOUR_S, FEWEST_HOURS * HOUR_S + HOUR_S):
            wanted = min(wanted, there)
            work = (sums[0] + sums[1])[: there * HOUR_S].reshape(there, HOUR_S).sum(axis=1)
            order = np.argsort(work, kind="stable")
            chosen = np.sort(order[((np.arange(wanted) + 0.5) * there / wanted).astype(np.int64)])
            rows = (chosen[:, None] * HOUR_S + np.arange(HOUR_S)).ravel()
            counts, sums = counts[rows], [x[rows] for x in sums]
        return cls(counts.astype(np.int64), _rounded(sums[0]), _rounded(sums[1]), together)

    def to_lines(self) -> list[str]:
        """The path as lines of text, about 14 kB an hour."""
        columns = np.stack([self.counts, *(_level(x) for x in (self.input_tokens, self.output_tokens))]).astype("<u4")
        # bytes of equal weight together: most are zero and take no room
        packed = zlib.compress(columns.view(np.uint8).reshape(-1, _BYTES).T.tobytes(), _EFFORT)
        text = base64.b64encode(packed).decode("ascii")
        return [text[k : k + _LINE] for k in range(0, len(text), _LINE)]

    @classmethod
    def from_text(cls, text: str, seconds: int, together: tuple[float, ...] = ()) -> Path:
        """Read what :meth:`to_lines` wrote; `together` stands beside it: one share where an older file has no other.

        Raises
        ------
        ValueError
            Damaged text, or not of that many seconds.
        """
        size = 3 * seconds * _BYTES
        if not 0 < seconds <= LONGEST_S:
            raise ValueError(f"{seconds} seconds")
        if len(together) > 2:
            raise ValueError(f"{len(together)} shares of pairs that come together, not one or two")
        if wrong := [share for share in together if not 0.0 <= share <= 1.0]:
            raise ValueError(f"a share of {wrong[0]:g} of the pairs comes together")
        reader = zlib.decompressobj()
        try:
            raw = reader.decompress(base64.b64decode(text, validate=True), size + 1)
        except (ValueError, zlib.error) as error:
            raise ValueError(f"damaged: {error}") from error
        if len(raw) != size:
            raise ValueError(f"does not hold {seconds} seconds")
        columns = np.frombuffer(raw, dtype=np.uint8).reshape(_BYTES, -1).T.copy().view("<u4").reshape(3, seconds)
        levels = columns[1:].astype(np.float64)
        if levels.max(initial=0.0) * TOKEN_STEP > 40.0 or not columns[0].any():
            raise ValueError("no counts of requests and tokens")
        inputs, outputs = np.expm1(levels * TOKEN_STEP)
        calm, busy = (together[0], together[-1]) if together else (0.0, 0.0)
        return cls(columns[0].astype(np.int64), inputs, outputs, (calm, busy))

    def requests_like(
        self,
        input_tokens: Floats,
        output_tokens: Floats,
        weight: Floats,
        category: Ints,
        deal: int = 0,
        output_quantiles: Mapping[float, float] | None = None,
    ) -> Trace:
        """Requests of a law dealt to the seconds so that each gets the tokens it had.

        Every row comes as often as its weight says, and the joint law of input and output stays what it is. Swapping requests
        between seconds that have too much and too little of the input, and of the output, settles the sums. Within a second
        each request takes one of so many moments, evenly apart, that as many pairs as measured have one in common.

        Parameters
        ----------
        input_tokens, output_tokens, weight, category
            The law's rows, shape (rows,).
        deal
            Which of the ways to deal them: who comes in which of the seconds alike, and when within a second, is drawn.
        output_quantiles
            Quantiles of the outputs [tokens], where the rows are a compact law: its points keep moments, for which the shortest
            outputs count little, but a time per token is longest where there are few.

        Returns
        -------
        Trace
            As many requests as the path has.
        """
        total = self.requests
        rng = np.random.Generator(np.random.PCG64(20231116 + deal))
        # in an order of their own: neither how a file lists them nor a factor on all lengths changes who comes when
        sort = np.lexsort((category, output_tokens, input_tokens))
        input_tokens, output_tokens, weight = input_tokens[sort], output_tokens[sort], weight[sort]
        category = category[sort]
        below = np.cumsum(weight)
        rows = np.searchsorted(below, (np.arange(total) + 0.5) / total * below[-1])
        second = np.repeat(np.arange(self.seconds), self.counts)
        # seconds with long prompts get long prompts to begin with
        wish = (self.input_tokens / np.maximum(self.counts, 1))[second] * np.exp(0.7 * rng.standard_normal(total))
        dealt = np.empty(total, dtype=np.int64)
        # and of those with prompts about as long, long outputs where there are
        more = (self.output_tokens / np.maximum(self.counts, 1))[second] * np.exp(0.7 * rng.standard_normal(total))
        about = np.arange(total) * _ALIKE // total
        wished, sorted_ = np.argsort(wish, kind="stable"), rows[np.argsort(input_tokens[rows], kind="stable")]
        wished = wished[np.lexsort((more[wished], about))]
        dealt[wished] = sorted_[np.lexsort((output_tokens[sorted_], about))]
        output = output_tokens[dealt]
        if output_quantiles:
            output = _as_stated(output, output_quantiles, rng)
        lengths = np.stack([input_tokens[dealt], output])
        wanted = np.stack([self.input_tokens, self.output_tokens])
        # the law's mean need not be this stretch's
        wanted = wanted * (lengths.sum(axis=1) / np.maximum(wanted.sum(axis=1), 1.0))[:, None]
        lack = wanted - np.stack([np.bincount(second, x, self.seconds) for x in lengths])
        scale = 1.0 / np.maximum(np.var(lengths, axis=1), 1e-9)
        busy = np.flatnonzero(self.counts)
        start, counts = np.concatenate(([0], np.cumsum(self.counts)))[busy], self.counts[busy]
        # a row an array, of the busy seconds alone: hundreds of rounds are most of what a first answer waits for
        (inputs, outputs), (short_in, short_out) = lengths, (np.array(row[busy]) for row in lack)
        half = busy.size // 2
        rounds = int(np.clip(_SWAP_ROUNDS[1] * HOUR_S / self.seconds, *_SWAP_ROUNDS))
        for turn in range(rounds if busy.size > 1 else 0):
            order = np.argsort(short_out if turn % 2 else short_in)
            one, two = order[:half], order[::-1][:half]
            if turn % 3 == 2:
                two = rng.permutation(two)
            a, b = (start[at] + (rng.random(half) * counts[at]).astype(np.int64) for at in (one, two))
            more_in, more_out = inputs[b] - inputs[a], outputs[b] - outputs[a]
            # squared lack after the swap less that before it
            change = scale[0] * (2.0 * more_in * (more_in - short_in[one] + short_in[two]))
            change += scale[1] * (2.0 * more_out * (more_out - short_out[one] + short_out[two]))
            use = np.flatnonzero(change < 0.0)
            a, b, one, two = a[use], b[use], one[use], two[use]
            for short, more in ((short_in, more_in[use]), (short_out, more_out[use])):
                short[one] -= more
                short[two] += more
            for column in (dealt, inputs, outputs):
                column[a], column[b] = column[b], column[a]
        times = second + self._within(second, rng)
        order = np.argsort(times, kind="stable")
        kept = dealt[order]
        # hours picked from many have a clock of their own each, however few they are
        near = SHIFT_S if self.seconds >= FEWEST_HOURS * HOUR_S else None
        return Trace(times[order] - times[order[0]], input_tokens[kept], lengths[1, order], category[kept], near)

    def _within(self, second: Ints, rng: np.random.Generator) -> Floats:
        """When within their seconds requests come [s]."""
        own: Floats = rng.random(second.size)
        if max(self.together) < FEW_TOGETHER:
            return own
        each = np.array([_moments(share) for share in self.together])[_busy(self.counts).astype(np.int64)][second]
        part = (own * each).astype(np.int64)
        _, moment = ranked(second * max(int(each.max()), 1) + part)
        # crowds keep apart from each other, or a tenth of a second would hold more of them than it does
        chosen = (part + rng.random(int(moment.max()) + 1)[moment]) / np.maximum(each, 1)
        chosen = np.minimum(chosen + MOMENT_S * rng.random(second.size), np.nextafter(1.0, 0.0))
        return np.asarray(np.where(each > 0, chosen, own))


def _moments(together: float) -> int:
    r"""Moments of a second, one anywhere in each of as many equal parts of it, of which so many pairs share one; 0: no such.

    With :math:`M` parts longer than a moment :math:`m`, the pairs within it are more than by chance by
    :math:`(1/\sqrt M - m \sqrt M)^2`: those of one part, less what chance would bring together in it.
    """
    if together < FEW_TOGETHER:
        return 0
    beyond = together * (1.0 - _BY_CHANCE)
    root = (math.sqrt(beyond + 4.0 * MOMENT_S) - math.sqrt(beyond)) / (2.0 * MOMENT_S)
    return max(round(root * root), 1)


def _busy(counts: Ints) -> NDArray[np.bool_]:
    """Which seconds have more requests than those that hold the first half of all pairs do, shape (seconds,)."""
    pairs = (
        np.bincount(counts)
        * 0.5
        * np.arange(counts.max(initial=0) + 1.0)
        * (np.arange(counts.max(initial=0) + 1.0) - 1.0)
    )
    below = np.cumsum(pairs)
    return np.asarray(counts > np.searchsorted(below, 0.5 * below[-1]))


_MANY_AT_ONCE = 1_000_000
"""Requests that are added up at a time: columns of all of them would be larger than the trace."""

_AT_ONCE = 250_000
"""Requests of a trace whose pairs are counted at a time."""


def _as_stated(output_tokens: Floats, quantiles: Mapping[float, float], rng: np.random.Generator) -> Floats:
    """Outputs whose law has these quantiles up to the median, and as many tokens in all as before, shape (requests,).

    Between the quantiles they rise halfway between evenly and by equal factors; those above the median make up for what is more
    or less.
    """
    place = np.empty(output_tokens.size)
    # those alike in an order drawn, or the short ones would be some of their inputs
    order = np.lexsort((rng.random(output_tokens.size), output_tokens))
    place[order] = (np.arange(output_tokens.size) + 0.5) / output_tokens.size
    levels = np.array([level for level in quantiles if level <= 0.5])
    stated = np.array([quantiles[level] for level in levels.tolist()])
    short = place <= levels[-1]
    between = np.interp(place, levels, stated) + np.exp(np.interp(place, levels, np.log(np.maximum(stated, 1e-9))))
    found: Floats = np.where(short, 0.5 * between, output_tokens)
    long = float(found[~short].sum())
    found[~short] *= max(float(output_tokens.sum()) - float(found[short].sum()), 0.5 * long) / max(long, 1e-300)
    return found


def _together(times_s: Floats, busy: NDArray[np.bool_]) -> tuple[float, float]:
    """See :attr:`Path.together`; none for a clock too coarse to tell. Times in order; `busy` says which seconds are."""
    pairs, near = np.zeros(2), np.zeros(2)
    coarse, start = times_s.size > 1, 0
    while start < times_s.size:
        # whole seconds, a part of a long trace at a time: the columns of all of it would be larger than the trace
        stop = times_s.size
        if start + _AT_ONCE < stop:
            second = np.floor(times_s[start + _AT_ONCE])
            cut = int(np.searchsorted(times_s, second))
            stop = cut if cut > start else int(np.searchsorted(times_s, second + 1.0))
        part = times_s[start:stop]
        if coarse:
            clock = part / MOMENT_S
            coarse = bool(np.all(np.abs(clock - np.rint(clock)) < 1e-3))
        crowded = busy[part.astype(np.int64)]
        for kind, chosen in enumerate((part[~crowded], part[crowded])):
            second = np.floor(chosen)
            of_second = np.diff(np.flatnonzero(np.diff(second, prepend=-1.0, append=np.inf)))
            pairs[kind] += float(np.sum(of_second * (of_second - 1) // 2))
            near[kind] += _near(chosen, second) if chosen.size > 1 else 0
        start = stop
    if coarse:
        return 0.0, 0.0
    beyond = np.maximum((near / np.maximum(pairs, 1.0) - _BY_CHANCE) / (1.0 - _BY_CHANCE), 0.0)
    return float(beyond[0]), float(beyond[1])


def _near(times_s: Floats, second: Floats) -> int:
    """Pairs of times of one second at most :data:`MOMENT_S` apart; times in order, `second` what they are rounded down to."""
    first = np.flatnonzero((times_s[1:] <= times_s[:-1] + MOMENT_S) & (second[1:] == second[:-1]))
    pairs = int(first.size)
    for step in range(2, 9):
        first = first[: np.searchsorted(first, times_s.size - step)]
        if not first.size:
            return pairs
        later = first + step
        first = first[(times_s[later] <= times_s[first] + MOMENT_S) & (second[later] == second[first])]
        pairs += int(first.size)
    first = first[: np.searchsorted(first, times_s.size - 9)]
    # a crowd: where it ends is found at once
    end = np.minimum(
        np.searchsorted(times_s, times_s[first] + MOMENT_S, side="right"),
        np.searchsorted(second, second[first], side="right"),
    )
    return int(pairs + np.sum(end - first - 1 - 8))


def _level(tokens: Floats) -> Ints:
    """Tokens on a logarithmic scale of :data:`TOKEN_STEP`."""
    return np.rint(np.log1p(tokens) / TOKEN_STEP).astype(np.int64)


def _rounded(tokens: Floats) -> Floats:
    """Tokens as a file keeps them."""
    kept: Floats = np.expm1(_level(tokens) * TOKEN_STEP)
    return kept
