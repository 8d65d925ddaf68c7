"""Calls of sessions as a replay takes them: each session's next call is sent after the answer before it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from planner.predict.records import Floats, Requests, keys_of, uniforms
from planner.workload.sessions import Sessions

MOST_SPANS = 20.0
"""How far back sessions begin that may still be going on, in lengths of the replay."""

WARM = 0.3
"""Part of the replay in which caches fill, which does not count."""


def session_calls(sessions: Sessions, calls_per_s: float, calls: int, draw: int = 0) -> tuple[Requests, float]:
    """About so many calls of sessions at a rate of calls [1/s].

    Sessions begin at random times, drawn from those recorded; some are in the middle of their calls at the start.

    Parameters
    ----------
    sessions
        Those recorded.
    calls_per_s, calls
        Rate of calls [1/s], and how many of them.
    draw
        Which draw of sessions and of their beginnings.

    Returns
    -------
    requests, span_s
        Their calls, and how long sessions begin [s]; calls that would be sent later are left out.
    """
    span = calls / calls_per_s
    begin = np.flatnonzero(sessions.first)
    end = np.append(begin[1:], sessions.calls)
    longest = min(float(sessions.times_s.max()), MOST_SPANS * span)
    number = max(round(calls_per_s / sessions.turns * (span + longest)), 1)
    key = keys_of(np.arange(number), np.full(number, draw), 21)
    # one session in each piece of the time, at a random place in it
    start = (np.arange(number) + uniforms(key, 0)) / number * (span + longest) - longest
    picked = (uniforms(key, 1) * begin.size).astype(np.int64)
    low, high = begin[picked], end[picked]
    row, which = _ranges(low, high)
    nominal = sessions.times_s[row] + start[which]
    kept = (nominal >= 0.0) & (nominal < span)
    row, which, nominal = row[kept], which[kept], nominal[kept]
    if not row.size:
        row, which, nominal = begin[:1], np.zeros(1, dtype=np.int64), np.zeros(1)
    # sessions in order of their first call that is sent here
    first = np.r_[True, which[1:] != which[:-1]]
    session = np.cumsum(first) - 1
    order = np.argsort(nominal[first], kind="stable")
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    order = np.argsort(place[session], kind="stable")
    row, nominal, session, first = row[order], nominal[order], place[session][order], first[order]
    following = np.where(np.r_[~first[1:], False], np.arange(row.size) + 1, -1)
    offset, name, tokens = _shared_pieces(sessions)
    counts = offset[row + 1] - offset[row]
    pieces, _ = _ranges(offset[row], offset[row + 1])
    inputs = np.maximum(np.rint(sessions.input_tokens), 1.0)
    outputs = np.maximum(np.rint(sessions.output_tokens), 1.0)
    repeated = np.rint(np.maximum(sessions.cached_tokens - sessions.shared_tokens, 0.0))
    requests = Requests(
        np.where(first, nominal, math.inf),
        inputs[row],
        outputs[row],
        np.zeros(row.size),
        keys_of(session, row, 22 + draw),
        session=session,
        following=following,
        gap_s=sessions.gaps_between_s[row],
        repeated_tokens=repeated[row],
        shared_offset=np.concatenate([[0], np.cumsum(counts)]) if name.size else None,
        shared_name=name[pieces] if name.size else None,
        shared_tokens=tokens[pieces] if name.size else None,
        weight=(nominal >= WARM * span).astype(np.float64),
    )
    return requests, span


def _ranges(low: NDArray[np.int64], high: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All whole numbers of the ranges low[k]..high[k] - 1 one after the other, and k of each."""
    size = high - low
    which = np.repeat(np.arange(size.size), size)
    start = np.cumsum(size) - size
    return np.arange(int(size.sum())) - start[which] + low[which], which


def _shared_pieces(sessions: Sessions) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """What each call shares with others: first piece of each call, names and tokens; every item with its mean length."""
    calls = sessions.calls
    levels = []
    left = sessions.input_tokens.copy()
    named = 0
    for level in sessions.shared:
        used = np.flatnonzero(level.group >= 0)
        _, place = np.unique(level.group[used], return_inverse=True)
        tokens = np.rint(np.bincount(place, level.tokens[used]) / np.bincount(place))
        own = tokens[place]
        # an item is of one length: a prompt that ends before does not have it whole
        fits = (own > 0.0) & (own <= left[used])
        levels.append((used[fits], named + place[fits], own[fits]))
        left[used[fits]] -= own[fits]
        named += tokens.size
    if not levels:
        return np.zeros(calls + 1, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    call, name, tokens = (np.concatenate(part) for part in zip(*levels, strict=True))
    order = np.argsort(call, kind="stable")
    count = np.bincount(call, minlength=calls)
    return np.concatenate([[0], np.cumsum(count)]), name[order].astype(np.int64), tokens[order]
