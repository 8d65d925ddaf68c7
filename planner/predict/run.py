"""Replays by the compiled kernel, or where there is none by the same rules in Python."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.predict.checks import check
from planner.predict.records import Clients, Decoders, Floats, Limit, Outage, PrefixCache, Replicas, Requests, Run


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
    stop: threading.Event | None = None,
) -> Run:
    """Requests taken one by one through replicas: what became of each.

    Parameters
    ----------
    requests, replicas, clients, cache, decoders, outages, limits
        See :mod:`planner.predict.records`.
    gaps
        Whether the gaps between tokens are counted.
    stop
        Set by another thread it ends the replay with a KeyboardInterrupt.

    Raises
    ------
    InputError
        The question makes no sense.
    KeyboardInterrupt
        `stop` was set.
    """
    if kernel_in_use():
        from planner.predict.reference import replay as by_python

        return by_python(requests, replicas, clients, cache, decoders, outages, limits, gaps, stop)
    from planner.predict.kernel import replay as by_kernel

    check(requests, replicas, clients, cache, decoders, outages, limits)
    return by_kernel(requests, replicas, clients, cache, decoders, outages, limits, gaps, stop)


def merged(times_s: Floats, shifts_s: Floats, span_s: float) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Copies of arrivals in order, each later by its shift and wrapped around at the end of the span.

    Parameters
    ----------
    times_s, shifts_s
        Arrivals in order, and how far each copy is moved, both in [0, `span_s`) [s]; shape (rows,) and (copies,).
    span_s
        The span [s].

    Returns
    -------
    tuple
        Times in order [s], their rows and their copies, shape (rows * copies,).
    """
    if not kernel_in_use():
        from planner.predict.kernel import merge

        at, row, copy = merge(times_s, shifts_s, span_s)
        return at, row.astype(np.int64), copy.astype(np.int64)
    found = (times_s + shifts_s[:, None]).ravel()
    found = np.where(found >= span_s, found - span_s, found)
    order = np.argsort(found, kind="stable")
    copies, rows = np.divmod(order, times_s.size)
    return found[order], rows, copies
