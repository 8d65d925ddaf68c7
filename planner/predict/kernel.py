"""The compiled replay: :func:`replay` hands requests and replicas to `kernel.c` by ctypes, which lets other threads run meanwhile.

A call of the library does a bounded amount of work, so that Ctrl-C ends a replay at once.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import FleetOptError
from planner.machine.iteration import IterationModel
from planner.predict.build import SOURCE
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

_SOURCE = SOURCE.read_text(encoding="utf-8")
_ENGINES, _LOOKS, _AFFINITY = ("mixed", "slots", "slots-shared"), ("", "requests", "tokens"), ("", "session", "prefix")
"""Kinds of engine, what a gateway counts and what it keeps together, by their codes in kernel.c."""
_METRICS = ("ttft_s", "tpot_s", "e2e_s")
_COLUMNS: dict[str, Any] = {
    **dict.fromkeys(("sent_s", "admitted_s", "first_s", "done_s", "moved_s"), np.float64(math.nan)),
    **dict.fromkeys(("found_tokens", "host_tokens"), np.float64(0.0)),
    **dict.fromkeys(("replica", "decode_replica"), np.int32(-1)),
    **dict.fromkeys(("preempted", "attempts", "rejected", "given_up"), np.int32(0)),
}
"""Every column as it is where nothing happens."""
_OF_OPEN = ("admitted_s", "first_s", "done_s", "replica", "preempted", "rejected")
_OF_MOVED = ("moved_s", "decode_replica")
_OF_REPLICAS = ("iterations", "busy_s", "resident_s", "decode_s")

_Arrays = dict[str, NDArray[Any]]


def _fields(struct: str) -> list[tuple[str, Any]]:
    """Fields of a struct as the source of the kernel has them: numbers, one for each metric, or addresses."""
    body = re.sub(r"/\*.*?\*/", "", _SOURCE[: _SOURCE.index(f"}} {struct};")].rpartition("typedef struct {")[2])
    kinds: dict[str, Any] = {"double": ctypes.c_double, "int64_t": ctypes.c_int64}
    found = []
    for kind, names in re.findall(r"(?:const )?(\w+) ([^;]+);", body):
        for star, name, several in re.findall(r"(\*?)(\w+)(\[METRICS\])?", names.replace(", ", ",")):
            found.append((name, ctypes.c_void_p if star else kinds[kind] * len(_METRICS) if several else kinds[kind]))
    return found


class _Pool(ctypes.Structure):
    """`Pool` of kernel.c."""

    _fields_ = _fields("Pool")


class _Ask(ctypes.Structure):
    """`Ask` of kernel.c."""

    _fields_ = _fields("Ask")


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
    answers = {f.name: arrays[f.name] for f in fields(Run) if f.name in arrays}
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
    library.fleetopt_order.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    library.fleetopt_open.restype = ctypes.c_void_p
    # the last, by which other threads see that all are
    library.fleetopt_open.argtypes = [ctypes.POINTER(_Ask), ctypes.POINTER(_Pool), ctypes.c_int]
    return library


def _pool(replicas: Replicas, floored: bool, supplied: bool) -> tuple[_Pool, Floats | None]:
    """Replicas as kernel.c has them, and the array it points to."""
    model, rule, durations = replicas.iteration, find_routing(replicas.routing), None
    prefill, block, held = replicas.engine == "prefill", replicas.block, replicas.kv_tokens
    given: dict[str, Any] = {f.name: getattr(record, f.name) for record in (replicas, rule) for f in fields(record)}
    given |= {
        "blocks": held // block if block > 1 and held < math.inf else held,
        "shared_blocks": replicas.shared_prefix // block,
        "engine": 0 if prefill else _ENGINES.index(replicas.engine),
        "one_token": prefill,
        "supplied": supplied,
        "floored": floored,
        "candidates": rule.candidates or 0,
        "looks": _LOOKS.index(rule.least),
        # what comes back to a prefix does so where prompts are computed
        "affinity": 0 if supplied else _AFFINITY.index(rule.affinity),
    }
    if prefill:
        given |= {"slots": 1.0, "token_budget": math.inf}
    if isinstance(model, IterationModel):
        # no prompts, nothing apart
        given |= {f.name: getattr(model, f.name) for f in fields(model)} | {"apart": int(model.apart and not supplied)}
        if model.m == 0.0:  # without one kernel for both there is no walk through it
            given |= {"h_m": 0.0, "e_m": 0.0}
    else:
        durations = np.array(model, dtype=np.float64)
        given |= {"durations": durations.ctypes.data, "rows": 1.0}
    return _Pool(**{name: given[name] for name, *_ in _Pool._fields_ if name in given}), durations


def _answers(requests: Requests, replicas: int, by_clock: bool, gaps: bool, moves: bool) -> _Arrays:
    """The columns that kernel.c fills; what open arrivals leave the same for all rows takes no memory."""
    n, made = requests.size, {}
    for name, fill in _COLUMNS.items():
        if by_clock or (moves and name in _OF_MOVED):
            made[name] = np.full(n, fill)
        elif name in _OF_OPEN:
            # memory that nobody has written yet is no work; open arrivals write a row when it comes
            made[name] = np.zeros(n, fill.dtype)
        else:
            made[name] = np.broadcast_to(fill, n)
    if not by_clock:
        made["sent_s"] = np.ascontiguousarray(requests.arrival_s)
        made["attempts"] = np.broadcast_to(np.int32(1), n)
    made |= {name: np.zeros(replicas) for name in _OF_REPLICAS}
    made["totals"] = np.zeros(2)
    return made | ({"gaps": np.zeros(GAP_BINS)} if gaps else {})


def _questions(r: Requests, transfer_s: Floats | None, outages: Sequence[Outage]) -> _Arrays:
    """The columns that kernel.c reads."""
    made: dict[str, NDArray[Any] | None] = {f.name: getattr(r, f.name) for f in fields(r)}
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
    given: dict[str, Any] = {f.name: getattr(clients, f.name) for f in fields(clients)}
    given |= {f"cache_{f.name}": getattr(cache, f.name) for f in fields(PrefixCache) if cache is not None}
    given |= {"outages": arrays["outage_time"].size, "caches": cache is not None}
    for name, many in (("session", "sessions"), ("priority", "classes")):
        given[many] = int(arrays[name].max()) + 1 if name in arrays else 0
    for name, column in arrays.items():
        if column.strides != (0,):
            given[name] = column.__array_interface__["data"][0]
    ask = _Ask(**given)
    ask.limit_s[:] = ask.late[:] = [math.inf] * len(_METRICS)
    for limit in limits:
        number = _METRICS.index(limit.metric)
        ask.limit_s[number], ask.late[number] = limit.limit_s, limit.late
    return ask
