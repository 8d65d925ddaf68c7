"""Replays by the compiled kernel, or where there is none by the same rules in Python."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from planner.predict.checks import check
from planner.predict.records import Clients, Decoders, Limit, Outage, PrefixCache, Replicas, Requests, Run


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
