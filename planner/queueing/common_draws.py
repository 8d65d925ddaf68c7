"""Random choices that stay with the request: the same draws whatever the pool's size and engine settings.

Every request has a key of its own; what is drawn for it is a hash of the key, not the next number of a generator. One more
replica then moves only the requests that it gets, and two predictions differ by what they are asked and not by luck (common
random numbers).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]

KEPT, OVER, WITHIN, REPLICA, SECOND = 0, 1000, 1001, 2000, 3000
"""What a draw is for: which requests are kept, the second in which one comes, the place within an iteration, the replica and the
second choice of one; draws of one kind are numbered on from these."""

CHUNK = 32
"""Requests of a piece in which the few that are kept are drawn one after another."""

DENSE = 0.15
"""Share kept from which every request is looked at [1]."""


def numbered(size: int) -> Keys:
    """Keys of requests that are known by their place alone."""
    return np.arange(size, dtype=np.uint64)


def uniforms(keys: Keys, kind: int) -> Floats:
    """One number in (0, 1) for every key, independent between kinds: the output function of SplitMix64 (Steele et al. 2014)."""
    mixed = keys + np.uint64((kind + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return np.asarray(((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)


def replicas_drawn(keys: Keys, replicas: int, kind: int = REPLICA) -> Ints:
    """A replica at random for every key; of n + 1 replicas the last gets its share, and all others stay where they were.

    Jump consistent hashing (Lamping and Veach 2014): from b the next replica that takes a request over is the first beyond
    :math:`(b + 1) / U`.
    """
    found = np.zeros(keys.size, dtype=np.int64)
    moving, place = np.arange(keys.size), np.zeros(keys.size)
    while moving.size and replicas > 1:
        place = np.floor((place + 1.0) / uniforms(keys[moving], kind))
        goes_on = place < replicas
        moving, place = moving[goes_on], place[goes_on]
        found[moving] = place.astype(np.int64)
        kind += 1
    return found


def thinned(stream: Keys, begin: Ints, end: Ints, share: Floats) -> tuple[Ints, Ints]:
    """Requests of streams that are kept at random: a lower share keeps some of those that a higher one keeps.

    Parameters
    ----------
    stream
        Key of each stream, its low 28 bits zero, shape (streams,).
    begin, end
        First request of each and the one after the last, below 2**28, shape (streams,).
    share
        Share of them kept [1], shape (streams,).

    Returns
    -------
    tuple of ndarray of int
        Whose each is, and its number; by stream, then by number.
    """
    if float(share.max(initial=0.0)) >= DENSE:
        whose, number = _counted(end - begin)
        number += begin[whose]
        kept = uniforms(stream[whose] | number.astype(np.uint64), KEPT) < share[whose]
        return whose[kept], number[kept]
    # a Poisson process of marks in each piece, of rate -ln(1 - share) a request: one has none with the chance 1 - share
    first = begin // CHUNK
    whose, piece = _counted(np.where(end > begin, (end - 1) // CHUNK + 1 - first, 0))
    piece += first[whose]
    until, at = -CHUNK * np.log1p(-share), np.zeros(whose.size)
    found, kind = [], KEPT
    while whose.size:
        keys = stream[whose] | piece.astype(np.uint64)
        at = at - np.log(uniforms(keys, kind))
        on = at < until[whose]
        whose, piece, at = whose[on], piece[on], at[on]
        number = piece * CHUNK + (uniforms(keys[on], kind + 1) * CHUNK).astype(np.int64)
        found.append((whose << 28) | number)
        kind += 2
    # each turn's marks ascend: a sort that merges
    marked = np.sort(np.concatenate(found), kind="stable") if found else np.zeros(0, dtype=np.int64)
    marked = marked[np.diff(marked, prepend=-1) > 0]
    whose, number = marked >> 28, marked & ((1 << 28) - 1)
    inside = (number >= begin[whose]) & (number < end[whose])
    return whose[inside], number[inside]


def spread(stream: Keys, begin: Ints, end: Ints, share: Floats) -> tuple[Ints, Ints]:
    """As :func:`thinned`, but evenly: a request is kept by the reversed bits of its number from a start drawn for the stream."""
    stride = np.floor(-np.log2(np.maximum(share, 2.0**-BITS))).astype(np.int64)
    start = (uniforms(stream, KEPT) * 2.0**BITS).astype(np.int64)
    # of the numbers from the start on, those with so many zeros at the end come first
    step = np.int64(1) << stride
    first = begin + (-(begin + start)) % step
    whose, turn = _counted(np.maximum(-((first - end) // step), 0))
    number = first[whose] + turn * step[whose]
    kept = _reversed(number + start[whose]) < share[whose]
    return whose[kept], number[kept]


BITS = 24
"""Bits of a number that are reversed."""


def _reversed(numbers: Ints) -> Floats:
    """The last bits of numbers in reverse order, as a fraction [1]: van der Corput's sequence."""
    found = numbers.astype(np.uint64).astype(np.uint32) << np.uint32(32 - BITS)
    for shift, mask in ((16, 0x0000FFFF), (8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        high = np.uint32(mask)
        found = ((found >> np.uint32(shift)) & high) | ((found & high) << np.uint32(shift))
    return np.asarray(found.astype(np.float64) * 2.0**-BITS)


def _counted(sizes: Ints) -> tuple[Ints, Ints]:
    """Whose each is, and 0 .. size-1 for every size."""
    whose = np.repeat(np.arange(sizes.size), sizes)
    return whose, np.arange(whose.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
