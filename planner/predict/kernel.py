"""The compiled replay: :func:`replay` hands requests and replicas to `kernel.c` by ctypes, which lets other threads run meanwhile.

A call of the library does a bounded amount of work, so that Ctrl-C ends a replay at once.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import FleetOptError
from planner.machine.iteration import IterationModel
from planner.predict.library import load
from planner.predict.records import (
    GAP_BINS,
    Decoders,
    Floats,
    Limit,
    Outage,
    PrefixCache,
    Replicas,
    Requests,
    Run,
)
from planner.routing import find_routing
from planner.workload.sending import Clients

WORK = 20_000
"""Arrivals and decisions of one call, some 5 ms: how long a replay goes on after it was told to stop."""

_DOUBLE, _WHOLE, _ARRAY = ctypes.c_double, ctypes.c_int64, ctypes.c_void_p
_MODEL = [f.name for f in fields(IterationModel) if f.name != "apart"]
_ENGINES = {"mixed": 0, "prefill": 0, "slots": 1, "slots-shared": 2}
_LOOKS = {"": 0, "requests": 1, "tokens": 2}
_AFFINITY = {"": 0, "session": 1, "prefix": 2}
"""Kind of engine, what a gateway counts, and what it keeps together -> its code in kernel.c."""
_METRICS = ("ttft_s", "tpot_s", "e2e_s")
_TIMES = {
    **dict.fromkeys(("sent_s", "admitted_s", "first_s", "done_s", "moved_s"), math.nan),
    **dict.fromkeys(("found_tokens", "host_tokens"), 0.0),
}
_COUNTS = {"replica": -1, "decode_replica": -1, **dict.fromkeys(("preempted", "attempts", "rejected", "given_up"), 0)}
_SAME = {
    name: np.broadcast_to((np.float64 if name in _TIMES else np.int32)(fill), 2**31)
    for name, fill in {**_TIMES, **_COUNTS}.items()
}
"""Every column as it is where nothing happens."""
_OF_CLIENTS = ("sent_s", "moved_s", "found_tokens", "host_tokens", "attempts", "given_up", "decode_replica")
_OF_MOVED = ("moved_s", "decode_replica")
_OF_ALL = ("admitted_s", "first_s", "done_s", "replica")
_OF_REPLICAS = ("iterations", "busy_s", "resident_s", "decode_s")
_NUMBERS = {"session": "sessions", "priority": "classes"}
_ANSWERED = Run.__match_args__

_Arrays = dict[str, NDArray[Any]]


class _Pool(ctypes.Structure):
    """`Pool` of kernel.c."""

    _fields_ = [
        *((name, _DOUBLE) for name in _MODEL),
        ("durations", _ARRAY),
        *((n, _DOUBLE) for n in ("slots", "budget", "blocks", "request_s", "image_s", "wake_s")),
        *((n, _DOUBLE) for n in ("shared_prefix", "shared_blocks")),
        *((n, _WHOLE) for n in ("block", "count", "engine", "one_token", "supplied", "reserve", "floored", "apart")),
        *((n, _WHOLE) for n in ("candidates", "looks", "in_turn", "one_queue", "affinity", "gather")),
    ]


class _Ask(ctypes.Structure):
    """`Ask` of kernel.c; columns are called as those of :class:`Requests` and of :class:`Run`."""

    _fields_ = [
        *((n, _WHOLE) for n in ("rows", "pools", "sessions", "classes", "retries", "caches", "outages", "leaves")),
        *(
            (n, _DOUBLE)
            for n in ("max_queue", "max_queued_tokens", "timeout_s", "retry_after_s", "in_flight", "helps_at")
        ),
        *((f"cache_{n}", _DOUBLE) for n in PrefixCache.__match_args__),
        ("limit_s", _DOUBLE * 3),
        ("late", _DOUBLE * 3),
        *(
            (n, _ARRAY)
            for n in ("arrival_s", "input_tokens", "output_tokens", "cached_tokens", "key", "weight", "images", "gap_s")
        ),
        *((n, _ARRAY) for n in ("repeated_tokens", "shared_tokens", "transfer_s", "priority", "session", "following")),
        *((n, _ARRAY) for n in ("shared_offset", "shared_name", "outage_replica", "outage_ends", "outage_time")),
        *((n, _ARRAY) for n in ("sent_s", "admitted_s", "first_s", "done_s", "replica", "preempted", "attempts")),
        *((n, _ARRAY) for n in ("rejected", "given_up", "decode_replica", "found_tokens", "host_tokens", "moved_s")),
        *((n, _ARRAY) for n in (*_OF_REPLICAS, "gaps", "totals")),
    ]


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
    """Requests taken one by one through replicas: what became of each. Arguments are not checked, see :mod:`planner.predict.run`.

    Parameters
    ----------
    requests, replicas, clients, cache, decoders, outages, limits
        See :mod:`planner.predict.records`; a limit that is broken ends the replay.
    gaps
        Whether the gaps between tokens are counted.

    Raises
    ------
    FleetOptError
        There is not enough memory.
    """
    pools = [replicas] if decoders is None else [replicas, decoders.replicas]
    rules = [find_routing(p.routing) for p in pools]
    by_clock = bool(clients or cache or outages or requests.following is not None or rules[0].one_queue)
    # a gateway that looks at all replicas has them all run up to an arrival, of one pool alone
    by_clock = by_clock or (
        decoders is not None and (any(rule.pooled for rule in rules) or decoders.helps_at < math.inf)
    )
    arrays = _answers(requests, sum(p.count for p in pools), by_clock, gaps, decoders is not None)
    arrays |= _questions(requests, None if decoders is None else decoders.transfer_s, outages)
    ask = _ask(arrays, clients or Clients(), cache, limits)
    # decodes that bring several tokens leave whole ones of the budget, where prompts are whole
    rows = [p.iteration.rows if isinstance(p.iteration, IterationModel) else 1.0 for p in pools]
    floored = [own != 1.0 and not np.any(requests.input_tokens % 1.0) for own in rows]
    given = [_pool(p, cuts, p is not replicas) for p, cuts in zip(pools, floored, strict=True)]
    ask.rows, ask.pools = requests.size, len(pools)
    ask.helps_at = math.inf if decoders is None else decoders.helps_at
    library = _library()
    state = library.fleetopt_open(ask, (_Pool * len(pools))(*(pool for pool, _ in given)), by_clock)
    more = 1 if state else -1
    try:
        while more > 0:
            more = library.fleetopt_advance(state, WORK)
    finally:
        library.fleetopt_close(state)
    if more < 0:
        raise FleetOptError(f"a replay of {requests.size:,} requests does not fit into this machine's memory")
    recomputed, ended = arrays.pop("totals")
    answers = {name: arrays[name] for name in _ANSWERED if name in arrays}
    return Run(**answers, recomputed_tokens=float(recomputed), ended_early=int(ended))


def order(times_s: Floats) -> NDArray[np.int64]:
    """Places of times >= 0 [s] in ascending order, equal ones as they stand, shape (times,).

    Raises
    ------
    FleetOptError
        There is not enough memory.

    Examples
    --------
    >>> order(np.array([2.0, 0.5, 2.0, 1.0])).tolist()
    [1, 3, 0, 2]
    """
    times, found = np.ascontiguousarray(times_s), np.empty(times_s.size, dtype=np.int64)
    if _library().fleetopt_order(times.ctypes.data, times.size, found.ctypes.data):
        raise FleetOptError(f"{times.size:,} requests do not fit into this machine's memory")
    return found


def _library() -> ctypes.CDLL:
    """The library, its functions declared."""
    library = load()
    if library.fleetopt_open.argtypes:
        return library
    library.fleetopt_advance.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.fleetopt_close.argtypes = [ctypes.c_void_p]
    library.fleetopt_close.restype = None
    library.fleetopt_order.argtypes = [_ARRAY, _WHOLE, _ARRAY]
    library.fleetopt_open.restype = ctypes.c_void_p
    # the last, by which other threads see that all are
    library.fleetopt_open.argtypes = [ctypes.POINTER(_Ask), ctypes.POINTER(_Pool), ctypes.c_int]
    return library


def _pool(replicas: Replicas, floored: bool, supplied: bool) -> tuple[_Pool, Floats | None]:
    """Replicas as kernel.c has them, and the array it points to."""
    model, rule = replicas.iteration, find_routing(replicas.routing)
    pool = _Pool()
    durations = None
    if isinstance(model, IterationModel):
        for name in _MODEL:
            setattr(pool, name, getattr(model, name))
        if model.m == 0.0:  # without one kernel for both there is no walk through it
            pool.h_m = pool.e_m = 0.0
        pool.apart = int(model.apart) if not supplied else 0  # no prompts, nothing apart
    else:
        durations = np.array(model, dtype=np.float64)
        pool.durations, pool.rows = durations.ctypes.data, 1.0
    prefill, pool.gather = replicas.engine == "prefill", replicas.gather
    pool.slots, pool.budget = (1.0, math.inf) if prefill else (replicas.slots, replicas.token_budget)
    pool.blocks = replicas.kv_tokens
    if replicas.block > 1 and replicas.kv_tokens < math.inf:
        pool.blocks = replicas.kv_tokens // replicas.block
    pool.request_s, pool.image_s, pool.wake_s = replicas.request_s, replicas.image_s, replicas.wake_s
    pool.shared_prefix = replicas.shared_prefix
    pool.shared_blocks = replicas.shared_prefix // replicas.block
    pool.block, pool.count, pool.engine = replicas.block, replicas.count, _ENGINES[replicas.engine]
    pool.one_token, pool.supplied, pool.reserve, pool.floored = prefill, supplied, replicas.reserve, floored
    pool.candidates, pool.looks, pool.in_turn = rule.candidates or 0, _LOOKS[rule.least], rule.in_turn
    # what comes back to a prefix does so where prompts are computed
    pool.one_queue, pool.affinity = rule.one_queue, 0 if supplied else _AFFINITY[rule.affinity]
    return pool, durations


def _answers(requests: Requests, replicas: int, by_clock: bool, gaps: bool, moves: bool) -> _Arrays:
    """The columns that kernel.c fills; what open arrivals leave the same for all rows takes no memory."""
    n, made = requests.size, {}
    for name, same in _SAME.items():
        if name in _OF_CLIENTS and not by_clock and not (moves and name in _OF_MOVED):
            made[name] = same[:n]
        elif same[0] == 0 or (name in _OF_ALL and not by_clock):
            # memory that nobody has written yet is no work; open arrivals write a row when it comes
            made[name] = np.zeros(n, dtype=same.dtype)
        else:
            made[name] = np.empty(n, dtype=same.dtype)
            made[name].fill(same[0])
    if not by_clock:
        made["sent_s"] = np.ascontiguousarray(requests.arrival_s)
        made["attempts"] = np.broadcast_to(np.int32(1), n)
    made |= {name: np.zeros(replicas) for name in _OF_REPLICAS}
    made["totals"] = np.zeros(2)
    return made | ({"gaps": np.zeros(GAP_BINS)} if gaps else {})


def _questions(r: Requests, transfer_s: Floats | None, outages: Sequence[Outage]) -> _Arrays:
    """The columns that kernel.c reads."""
    made: dict[str, NDArray[Any] | None] = {name: getattr(r, name) for name in Requests.__match_args__}
    made |= {"transfer_s": transfer_s, "priority": None}
    for name, kind in (("following", np.int32), ("shared_offset", np.int64), ("shared_name", np.int64)):
        if (column := made[name]) is not None:
            made[name] = column.astype(kind)
    if r.priority is not None and np.any(r.priority != r.priority[0]):
        made["priority"] = np.unique(r.priority, return_inverse=True)[1].astype(np.int32)
    if r.session is not None:
        names, number = np.unique(r.session, return_inverse=True)
        made["session"] = (number - int(names[0] < 0)).astype(np.int32)
    ends = [(o.end_s, 0, i, o.replica) for i, o in enumerate(outages) if o.end_s < math.inf]
    moments = sorted(ends + [(o.start_s, 1, i, o.replica) for i, o in enumerate(outages)])
    made["outage_time"] = np.array([time for time, *_ in moments], dtype=np.float64)
    made["outage_ends"] = np.array([1 - starts for _, starts, *_ in moments], dtype=np.int64)
    made["outage_replica"] = np.array([replica for *_, replica in moments], dtype=np.int64)
    return {name: np.ascontiguousarray(column) for name, column in made.items() if column is not None}


def _ask(arrays: _Arrays, clients: Clients, cache: PrefixCache | None, limits: Sequence[Limit]) -> _Ask:
    """The question as kernel.c has it; it points into the arrays."""
    ask = _Ask(outages=arrays["outage_time"].size, retries=clients.retries, caches=cache is not None)
    ask.leaves = clients.leave
    for name, column in arrays.items():
        if column.strides != (0,):
            setattr(ask, name, column.__array_interface__["data"][0])
    for name in ("session", "priority"):
        setattr(ask, _NUMBERS[name], int(arrays[name].max()) + 1 if name in arrays else 0)
    for name in ("max_queue", "max_queued_tokens", "timeout_s", "retry_after_s", "in_flight"):
        setattr(ask, name, getattr(clients, name))
    for name in PrefixCache.__match_args__ if cache is not None else ():
        setattr(ask, f"cache_{name}", getattr(cache, name))
    ask.limit_s[:] = ask.late[:] = [math.inf] * len(_METRICS)
    for limit in limits:
        number = _METRICS.index(limit.metric)
        ask.limit_s[number], ask.late[number] = limit.limit_s, limit.late
    return ask
