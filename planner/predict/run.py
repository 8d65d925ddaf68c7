"""Replays by the compiled kernel, or where there is none by the same rules in Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.predict.checks import check
from planner.predict.records import (
    Decoders,
    Floats,
    Limit,
    Outage,
    PrefixCache,
    Replicas,
    Requests,
    Run,
    keys_of,
)
from planner.workload.sending import Clients


def kernel_in_use() -> str:
    """Why replays are done in Python, in words for a note; empty = the compiled kernel does them."""
    from planner.predict.library import in_use  # the library is looked for when it is needed first

    library, why = in_use()
    return why if library is None else ""


def replay(
    requests: Requests,
    replicas: Replicas,
    clients: Clients | None = None,
    cache: PrefixCache | None = None,
    decoders: Decoders | None = None,
    outages: Sequence[Outage] = (),
    limits: Sequence[Limit] = (),
    gaps: bool = False,
) -> Run:
    """Requests taken one by one through replicas: what became of each.

    Parameters
    ----------
    requests, replicas, clients, cache, decoders, outages, limits
        See :mod:`planner.predict.records`.
    gaps
        Whether the gaps between tokens are counted.

    Raises
    ------
    InputError
        The question makes no sense.
    """
    if kernel_in_use():
        from planner.predict.reference import replay as by_python

        return by_python(requests, replicas, clients, cache, decoders, outages, limits, gaps)
    from planner.predict.kernel import replay as by_kernel

    check(requests, replicas, clients, cache, decoders, outages, limits)
    return by_kernel(requests, replicas, clients, cache, decoders, outages, limits, gaps)


def overlaid(
    times_s: Floats,
    lists: Sequence[NDArray[np.int64]],
    which: NDArray[np.int64],
    shifts_s: Floats,
    span_s: float,
    windows_s: Floats,
    kind: int,
) -> tuple[Floats, NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
    """Shifted copies of arrivals laid over each other, each turned over at the end of the span, as far as they lie in windows.

    Parameters
    ----------
    times_s
        Arrivals in order, in [0, `span_s`) [s], shape (rows,).
    lists
        Rows that copies hold, each in order.
    which
        The list of each copy, shape (copies,).
    shifts_s
        How far each copy is moved, in [0, `span_s`) [s], shape (copies,).
    span_s
        The span [s].
    windows_s
        Begin and end of each window, which do not overlap, in the order in which they are wanted [s], shape (windows, 2).
    kind
        What is drawn by the keys, see :func:`planner.predict.records.keys_of`.

    Returns
    -------
    tuple
        Times, window by window in order, of equal times the first copy's first [s]; their rows; keys of row, copy and kind, all of
        that shape; how many are in each window.

    Raises
    ------
    InputError
        Times or shifts lie outside the span, or times are not in order.

    Examples
    --------
    >>> times, both, shifts = np.array([0.0, 1.0, 3.0]), np.array([0, 0]), np.array([0.0, 2.5])
    >>> at, row, key, count = overlaid(times, [np.arange(3)], both, shifts, 4.0, np.array([[0.0, 4.0]]), 1)
    >>> at.tolist(), row.tolist(), count.tolist()
    ([0.0, 1.0, 1.5, 2.5, 3.0, 3.5], [0, 1, 2, 0, 2, 1], [6])
    """
    inside = [bool(np.all((x >= 0.0) & (x < span_s))) for x in (times_s, shifts_s)]
    if not all(inside) or np.any(np.diff(times_s) < 0.0):
        raise InputError("times and shifts must lie in [0, span), and times in order")
    if not kernel_in_use():
        from planner.predict.kernel import order as in_order
    found, counts = [], []
    for begin, end in windows_s.tolist():
        pieces = [(np.zeros(0), np.zeros(0, dtype=np.int64), 0)]
        for copy, (k, shift) in enumerate(zip(which.tolist(), shifts_s.tolist(), strict=True)):
            own = times_s[lists[k]]
            for offset in (shift - span_s, shift):
                low, high = np.searchsorted(own, [begin - offset, end - offset]).tolist()
                pieces.append((own[low:high] + offset, lists[k][low:high], copy))
        times, rows, copies = zip(*pieces, strict=True)
        at = np.concatenate(times)
        order = np.argsort(at, kind="stable") if kernel_in_use() else in_order(at)
        counts.append(order.size)
        row, copy_of = np.concatenate(rows)[order], np.repeat(copies, [piece.size for piece in times])[order]
        found.append((at[order], row, keys_of(row, copy_of, kind)))
    at, row, key = (np.concatenate(column) for column in zip(*found, strict=True))
    return at, row, key, np.array(counts)
