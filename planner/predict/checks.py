"""Whether the question of a replay makes sense: one clear line for each thing that does not."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, get_type_hints
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from planner.errors import refuse
from planner.machine.iteration import IterationModel
from planner.predict.records import Decoders, Limit, Outage, PrefixCache, Replicas, Requests
from planner.routing import find_routing
from planner.workload.sending import Clients

MOST_TOKENS = float(np.iinfo(np.int32).max) + 1.0
"""Tokens that no prompt and no answer has: the kernel counts them in 32 bits."""

ENGINES = ("mixed", "slots", "slots-shared", "prefill")
METRICS = ("ttft_s", "tpot_s", "e2e_s")
_MIXED_ALONE = ("clients", "a cache", "decode replicas", "outages", "priorities", "calls that follow others")

_SOUND: WeakSet[Requests] = WeakSet()
"""Requests that were looked at: many engines are asked about the same."""


def check(
    requests: Requests,
    replicas: Replicas,
    clients: Clients | None = None,
    cache: PrefixCache | None = None,
    decoders: Decoders | None = None,
    outages: Sequence[Outage] = (),
    limits: Sequence[Limit] = (),
) -> None:
    """Refuse what no replay can answer; the arguments are those of :func:`planner.predict.reference.replay`.

    Raises
    ------
    InputError
        With a line for each thing that is wrong.
    """
    problems = []
    if requests not in _SOUND:
        problems = [*_columns(requests)] or [*_rows(requests)] or [*_sessions(requests), *_pieces(requests)]
        if not problems:
            _SOUND.add(requests)
    problems += _replicas(replicas, "")
    if decoders is not None:
        problems += [*_decoders(decoders, requests.size)]
    problems += [*_rules(clients, cache), *_outages(outages, replicas.count), *_limits(limits)]
    if not problems:
        problems += _together(requests, replicas, clients, cache, decoders, outages)
    refuse(problems)


def sound_as(requests: Requests, other: Requests) -> Requests:
    """Requests that are as sound as `other`: the same lengths in the same order of time."""
    if other in _SOUND:
        _SOUND.add(requests)
    return requests


def _columns(r: Requests) -> Iterator[str]:
    """Columns of the right kind and size."""
    kinds: dict[str, tuple[type[np.generic], ...]] = {"key": (np.uint64,), "priority": (np.integer,)}
    kinds |= dict.fromkeys(("session", "following", "shared_offset", "shared_name"), (np.integer,))
    for name in Requests.__match_args__:
        column = getattr(r, name)
        needed = name in ("arrival_s", "input_tokens", "output_tokens", "cached_tokens", "key")
        if column is None and not needed:
            continue
        kind = kinds.get(name, (np.float64,))
        if not isinstance(column, np.ndarray) or column.ndim != 1 or not np.issubdtype(column.dtype, kind[0]):
            yield f"{name}: must be an array of {kind[0].__name__}, one value per request"
        elif not name.startswith("shared_") and column.size != r.arrival_s.size:
            yield f"{name}: {column.size} values for {r.arrival_s.size} requests"


def _rows(r: Requests) -> Iterator[str]:
    """Each row by itself, and the order of their arrivals."""
    if not r.size:
        yield "there are no requests to replay"
        return
    sent = r.arrival_s[np.isfinite(r.arrival_s)]
    tests: list[tuple[str, NDArray[np.bool_], str]] = [
        ("arrival_s", ~(r.arrival_s >= 0.0), "must be a time >= 0"),
        ("input_tokens", ~((r.input_tokens >= 1.0) & (r.input_tokens < MOST_TOKENS)), "must lie in 1..2^31 - 1"),
        ("output_tokens", ~((r.output_tokens >= 1.0) & (r.output_tokens < MOST_TOKENS)), "must lie in 1..2^31 - 1"),
        ("output_tokens", np.floor(r.output_tokens) < r.output_tokens, "must be whole"),
        ("cached_tokens", ~((r.cached_tokens >= 0.0) & (r.cached_tokens < r.input_tokens)), "must lie in [0, input)"),
    ]
    for name in ("gap_s", "repeated_tokens", "weight", "images"):
        if (c := getattr(r, name)) is not None:
            tests.append((name, ~(np.isfinite(c) & (c >= 0.0)), "must be finite and >= 0"))
    for name, bad, words in tests:
        if bad.any():
            row = int(np.argmax(bad))
            yield f"{name} {words}, request {row} has {getattr(r, name)[row]:g}"
    if np.any(np.diff(sent) < 0.0):
        yield "arrival_s: requests must stand in order of arrival"


def _sessions(r: Requests) -> Iterator[str]:
    """Sessions stand together; what follows is brought by one row before it, and has no arrival of its own."""
    rows, after = np.arange(r.size), r.following
    follows = np.zeros(0) if after is None else np.bincount(after[(after > -1) & (after < r.size)], minlength=r.size)
    if after is not None and np.any((after != -1) & ((after <= rows) | (after >= r.size))):
        yield "following: a row is followed by a later one, or by none (-1)"
    elif np.any(follows > 1):
        yield "following: two rows are followed by the same"
    elif not np.array_equal(np.flatnonzero(follows > 0), np.flatnonzero(np.isinf(r.arrival_s))):
        yield "arrival_s: rows that follow another have none (inf), all others have one"
    if r.following is not None and r.gap_s is None:
        yield "gap_s: rows that follow another need the gap before them"
    if r.session is not None:
        begins = r.session[np.flatnonzero(np.diff(r.session, prepend=-2) != 0)]
        if np.any(r.session < -1):
            yield "session: must be >= 0, or -1 = none"
        elif np.unique(begins[begins >= 0]).size < np.count_nonzero(begins >= 0):
            yield "session: the rows of a session must stand together"


def _pieces(r: Requests) -> Iterator[str]:
    """What prompts share: pieces row by row, each name of one length, no more than the prompt."""
    if r.shared_offset is None and r.shared_name is None and r.shared_tokens is None:
        return
    if r.shared_offset is None or r.shared_name is None or r.shared_tokens is None:
        yield "shared_offset, shared_name and shared_tokens belong together"
        return
    offset, size = r.shared_offset, r.shared_name.size
    if offset.size != r.size + 1 or offset[0] != 0 or offset[-1] != size or np.any(np.diff(offset) < 0):
        yield "shared_offset: needs one more value than requests, from 0 to the number of pieces, not decreasing"
        return
    if r.shared_tokens.size != size or np.any(r.shared_name < 0) or not np.all(r.shared_tokens > 0.0):
        yield "shared_name must be >= 0 and shared_tokens positive, one of each per piece"
        return
    _, place = np.unique(r.shared_name, return_inverse=True)
    longest = np.zeros(size)
    np.maximum.at(longest, place, r.shared_tokens)
    row = np.repeat(np.arange(r.size), np.diff(offset))
    if np.any(longest[place] != r.shared_tokens):
        yield "shared_tokens: a piece has the same tokens wherever it is named"
    elif np.unique(np.stack([row, place]), axis=1).shape[1] < size:
        yield "shared_name: a prompt names a piece once"
    elif np.any(np.bincount(row, r.shared_tokens, minlength=r.size) > r.input_tokens):
        yield "shared_tokens: a prompt has at most its own tokens to share"


_RULES: dict[str, Callable[[Any], bool]] = {
    "must be a whole number >= 1": lambda v: v >= 1 and v == int(v),
    "must be a whole number >= 0": lambda v: v >= 0 and v == int(v),
    "must be at least 1": lambda v: v >= 1,
    "must be positive": lambda v: v > 0,
    "must be >= 0": lambda v: v >= 0,
    "must be finite and >= 0": lambda v: 0 <= v < math.inf,
}
"""What an error says of a number -> whether it does not have to."""


@cache
def _rules_of(kind: Any) -> dict[str, str]:
    """Numbers of a kind of record -> what is said of those that are none."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


def _numbers(where: str, record: Replicas | Clients | PrefixCache) -> Iterator[str]:
    """Fields that are no numbers, or break their rules."""
    for name, words in _rules_of(type(record)).items():  # type: ignore[arg-type]
        value = getattr(record, name)
        if isinstance(value, bool) or not isinstance(value, (float, int, numbers.Real)) or not _RULES[words](value):
            yield f"{where}{name} {words}, got {value!r}"


def _replicas(replicas: Replicas, where: str) -> Iterator[str]:
    """Limits of replicas, their engine and iteration-time model."""
    yield from _numbers(where, replicas)
    model, engine = replicas.iteration, replicas.engine
    if (find_routing(replicas.routing).candidates or 1) > 2:
        yield f"{where}routing {replicas.routing}: at most two candidates can be drawn"
    if engine not in ENGINES:
        yield f"{where}engine {engine!r} is not known: take one of {', '.join(ENGINES)}"
    elif isinstance(model, IterationModel):
        if engine.startswith("slots") and (model.g or model.e or model.a or model.m):
            yield f"{where}engine {engine} knows no contexts: g, e, a and m of the iteration model must be 0"
    elif engine != "slots":
        yield f"{where}iteration: a table of durations is for the engine slots only"
    elif len(model) <= replicas.slots or not all(map(_RULES["must be finite and >= 0"], model[1:])):
        yield f"{where}iteration: a table of durations needs one per number of active slots, 0..slots, none negative"


def _decoders(decoders: Decoders, rows: int) -> Iterator[str]:
    """Decode replicas and the transfers to them."""
    yield from _replicas(decoders.replicas, "decode replicas: ")
    if decoders.replicas.engine != "mixed":
        yield "decode replicas: engine must be mixed"
    transfer = decoders.transfer_s
    if transfer.shape != (rows,) or not np.all(np.isfinite(transfer) & (transfer >= 0.0)):
        yield "transfer_s: needs one time per request, finite and >= 0"
    helps, model = decoders.helps_at < math.inf, decoders.replicas.iteration
    if not decoders.helps_at >= 0.0:
        yield "helps_at: must be >= 0, inf = never"
    if helps and isinstance(model, IterationModel) and model.apart:
        yield "helps_at: decode replicas take prompts beside their decodes: apart must be 0"


def _rules(clients: Clients | None, cache: PrefixCache | None) -> Iterator[str]:
    """What clients do and caches keep."""
    if clients is not None:
        yield from _numbers("clients: ", clients)
        if clients.leave and clients.retries:
            yield "clients: who is turned away beyond in_flight is answered elsewhere: retries must be 0"
    if cache is not None:
        yield from _numbers("cache: ", cache)


def _outages(outages: Sequence[Outage], count: int) -> Iterator[str]:
    """Outages of replicas there are, one after the other on each."""
    for outage in outages:
        if not 0 <= outage.replica < count:
            yield f"outage of replica {outage.replica}: there are {count}, from 0 on"
        if not 0.0 <= outage.start_s < outage.end_s or math.isinf(outage.start_s):
            yield f"outage of replica {outage.replica}: must start at a time >= 0 and end later"
    for first, second in pairwise(sorted(outages, key=lambda o: (o.replica, o.start_s))):
        if first.replica == second.replica and second.start_s < first.end_s:
            yield f"outages of replica {first.replica} overlap"


def _limits(limits: Sequence[Limit]) -> Iterator[str]:
    """Limits: each metric once."""
    for limit in limits:
        if limit.metric not in METRICS:
            yield f"limit: {limit.metric!r} is not known, take one of {', '.join(METRICS)}"
        if not (limit.limit_s >= 0.0 and limit.late >= 0.0):
            yield f"limit of {limit.metric}: limit_s and late must be >= 0"
    if len({limit.metric for limit in limits}) < len(limits):
        yield "limits: at most one for each metric"


def _together(
    requests: Requests,
    replicas: Replicas,
    clients: Clients | None,
    cache: PrefixCache | None,
    decoders: Decoders | None,
    outages: Sequence[Outage],
) -> Iterator[str]:
    """What cannot be had together."""
    if replicas.engine.startswith("slots"):
        given = clients, cache, decoders, outages or None, requests.priority, requests.following
        for name, value in zip(_MIXED_ALONE, given, strict=True):
            if value is not None:
                yield f"engine {replicas.engine}: {name} cannot be replayed with it, take mixed"
    if find_routing(replicas.routing).one_queue and (clients is not None or cache is not None):
        yield "one queue for all replicas has no doors and no caches: take another routing"
    if decoders is not None and replicas.engine != "prefill":
        yield "decode replicas stand behind replicas with the engine prefill"
    if cache is not None and (replicas.block != 1 or not replicas.reserve):
        yield "a prefix cache is counted in tokens and in whole prompts: block must be 1 and reserve true"
    if cache is not None and requests.session is not None and requests.repeated_tokens is None:
        yield "repeated_tokens: a prefix cache needs what each call repeats of its session's last"
    if replicas.shared_prefix > 0.0 and requests.shared_offset is not None:
        yield "shared_prefix: give it, or what each prompt shares, not both"
