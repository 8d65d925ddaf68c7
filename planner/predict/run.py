"""Replays by the compiled kernel, or where there is none by the same rules in Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
    """Copies of arrivals laid over each other: see :func:`planner.predict.kernel.overlay`."""
    if not kernel_in_use():
        from planner.predict.kernel import overlay

        return overlay(times_s, lists, which, shifts_s, span_s, windows_s, kind)
    found, counts = [], []
    for begin, end in windows_s.tolist():
        pieces = [(np.zeros(0), np.zeros(0, dtype=np.int64), 0)]
        for copy, (k, shift) in enumerate(zip(which.tolist(), shifts_s.tolist(), strict=True)):
            own = times_s[lists[k]]
            for offset in (shift - span_s, shift):
                low, high = np.searchsorted(own, [begin - offset, end - offset]).tolist()
                pieces.append((own[low:high] + offset, lists[k][low:high], copy))
        times, rows, copies = zip(*pieces, strict=True)
        order = np.argsort(np.concatenate(times), kind="stable")
        counts.append(order.size)
        row, copy_of = np.concatenate(rows)[order], np.repeat(copies, [piece.size for piece in times])[order]
        found.append((np.concatenate(times)[order], row, keys_of(row, copy_of, kind)))
    at, row, key = (np.concatenate(column) for column in zip(*found, strict=True))
    return at, row, key, np.array(counts)
