"""Small questions of a replay, for every feature and every pair of features."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from hypothesis import strategies as st

from planner.machine.iteration import IterationModel
from planner.predict.records import Decoders, Limit, Outage, PrefixCache, Replicas, Requests, Run
from planner.workload.sending import Clients


@dataclass
class Draft:
    """A question being made; `exact`: what is drawn are multiples of powers of two, so that things happen at one time."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    exact: bool
    rows: int
    columns: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    replicas: dict[str, Any] = field(default_factory=dict)
    decode: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    clients: dict[str, Any] = field(default_factory=dict)
    cache: dict[str, Any] | None = None
    transfer: Any = None
    helps_at: float = math.inf
    mantissas: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def whole(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def one_of(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def amount(self, low: int, high: int, unit: float) -> float:
        """So many units, in random cases with a mantissa of its own."""
        value = self.whole(low, high)
        return (value if self.exact else value * (1.0 + 0.3 * float(self.mantissas.random()))) * unit

    def list_of(self, low: int, high: int) -> list[int]:
        return list(self.draw(st.lists(st.integers(low, high), min_size=self.rows, max_size=self.rows)))

    def lengths(self, most: int) -> None:
        """Other lengths of prompts and answers, up to `most`."""
        self.columns["input_tokens"] = np.array(self.list_of(1, most), dtype=float)

    def memory(self) -> None:
        """Memory so short that it is felt."""
        if "kv_tokens" not in self.replicas:
            self.replicas["kv_tokens"] = float(self.whole(20, 90))

    def sessions(self) -> None:
        """Some rows follow the one before them."""
        if "following" in self.columns:
            return
        following, session, name = [-1] * self.rows, [], 0
        for row, joins in enumerate(self.list_of(0, 2)):
            if row and joins:
                following[row - 1] = row
                self.columns["arrival_s"][row] = math.inf
            else:
                name += 1
            session.append(name)
        self.columns["session"] = np.array(session, dtype=np.int64)
        self.columns["following"] = np.array(following, dtype=np.int64)
        self.columns["gap_s"] = np.array([self.amount(0, 6, 0.5) for _ in range(self.rows)])

    def keeps(self) -> None:
        """Prefix caches."""
        self.sessions()
        if self.cache is None:
            self.cache = {}
            self.columns["input_tokens"] = np.array(self.list_of(1, 80), dtype=float)
            self.replicas["kv_tokens"] = float(self.whole(70, 200))
            before = np.append(1.0, self.columns["input_tokens"][:-1] + self.columns["output_tokens"][:-1])
            self.columns["repeated_tokens"] = np.minimum(before, self.columns["input_tokens"])

    def waits(self) -> None:
        """Several replicas behind a gateway."""
        if "count" not in self.replicas:
            self.replicas["count"] = self.whole(2, 4)


def _budget(d: Draft) -> None:
    d.replicas["token_budget"] = float(d.whole(1, 24))


def _slots(d: Draft) -> None:
    d.replicas["slots"] = d.whole(1, 3)


def _memory(d: Draft) -> None:
    d.memory()


def _blocks(d: Draft) -> None:
    d.replicas["block"] = d.one_of(2, 3, 4, 16)
    d.memory()


def _no_reserve(d: Draft) -> None:
    d.replicas["reserve"] = False
    d.memory()
    d.replicas.setdefault("token_budget", float(d.whole(2, 12)))


def _staircase(d: Draft) -> None:
    d.model.update(tau=d.one_of(4, 8), b=d.amount(1, 4, 2.0**-6), w=d.amount(0, 4, 2.0**-4))


def _together(d: Draft) -> None:
    d.model.update(
        m=float(d.whole(1, 8)), h_m=d.amount(0, 4, 2.0**-6), e_m=d.amount(0, 8, 2.0**-8), a=d.amount(1, 4, 2.0**-10)
    )


def _longest(d: Draft) -> None:
    d.model.update(e=d.amount(1, 16, 2.0**-8))


def _interference(d: Draft) -> None:
    d.model.update(x=d.amount(1, 8, 2.0**-6))


def _apart(d: Draft) -> None:
    d.model.update(apart=1.0)


def _gather(d: Draft) -> None:
    d.replicas["gather"] = d.one_of(2, 3, 7)


def _rows(d: Draft) -> None:
    d.model.update(rows=d.one_of(2.0, 1.5, 3.25))
    d.replicas.setdefault("token_budget", float(d.whole(4, 24)))


def _experts(d: Draft) -> None:
    d.model.update(w_experts=d.amount(1, 8, 2.0**-4), expert_share=d.one_of(0.5, 0.1, 1.0))


def _request_s(d: Draft) -> None:
    d.replicas["request_s"] = d.amount(1, 4, 2.0**-4)


def _images(d: Draft) -> None:
    d.replicas["image_s"] = d.amount(1, 4, 2.0**-3)
    d.columns["images"] = np.array(d.list_of(0, 3), dtype=np.float64)


def _wake_s(d: Draft) -> None:
    d.replicas["wake_s"] = d.amount(1, 8, 2.0**-3)


def _cached(d: Draft) -> None:
    d.columns["cached_tokens"] = np.minimum(
        np.array(d.list_of(0, 20), dtype=float), np.ceil(d.columns["input_tokens"]) - 1.0
    )


def _shared_prefix(d: Draft) -> None:
    d.replicas["shared_prefix"] = float(d.whole(1, 12))
    d.memory()


def _fractional(d: Draft) -> None:
    d.columns["input_tokens"] = d.columns["input_tokens"] + np.array(d.list_of(0, 7)) / 8.0


def _routing(d: Draft) -> None:
    d.waits()
    d.replicas["routing"] = d.one_of("p2c", "least", "rr", "least-kv")


def _central(d: Draft) -> None:
    d.waits()
    d.replicas.update(routing="central", slots=d.whole(1, 3))


def _in_flight(d: Draft) -> None:
    d.clients["in_flight"] = d.whole(1, 4)


def _leave(d: Draft) -> None:
    _in_flight(d)
    d.clients["leave"] = True


def _doors(d: Draft) -> None:
    d.replicas.setdefault("slots", d.whole(1, 3))
    if d.whole(0, 1):
        d.clients["max_queue"] = d.whole(0, 3)
    else:
        d.clients["max_queued_tokens"] = d.whole(0, 60)


def _time_outs(d: Draft) -> None:
    d.replicas.setdefault("slots", d.whole(1, 3))
    d.clients["timeout_s"] = d.amount(1, 12, 0.25)


def _retries(d: Draft) -> None:
    if not d.clients.keys() & {"max_queue", "max_queued_tokens", "timeout_s"}:
        d.one_of(_doors, _time_outs)(d)
    d.clients.update(retries=d.whole(1, 3), retry_after_s=d.amount(0, 4, 0.25))


def _sessions(d: Draft) -> None:
    d.sessions()


def _cache(d: Draft) -> None:
    d.keeps()


def _host(d: Draft) -> None:
    d.keeps()
    assert d.cache is not None
    d.cache.update(host_tokens=float(d.whole(16, 200)), host_tokens_per_s=float(d.one_of(16, 64, 1024)))


def _disk(d: Draft) -> None:
    d.keeps()
    assert d.cache is not None
    d.cache.update(
        disk_tokens=float(d.whole(16, 400)), disk_tokens_per_s=float(d.one_of(8, 32)), copies=d.one_of(False, True)
    )


def _ttl(d: Draft) -> None:
    d.keeps()
    assert d.cache is not None
    d.cache.update(ttl_s=d.amount(0, 8, 0.5))


def _windows(d: Draft) -> None:
    d.keeps()
    assert d.cache is not None
    d.cache.update(windows=d.one_of(0.5, 1.0, 5.0))


def _pieces(d: Draft) -> None:
    d.keeps()
    tokens = [float(t) for t in d.draw(st.lists(st.integers(1, 40), min_size=3, max_size=3))]
    offset, names = [0], []
    for row, chosen in enumerate(d.draw(st.lists(st.permutations(range(3)), min_size=d.rows, max_size=d.rows))):
        left = float(d.columns["input_tokens"][row])
        for name in chosen[: d.whole(0, 3)]:
            if tokens[name] > left:
                break
            left -= tokens[name]
            names.append(name)
        offset.append(len(names))
        d.columns["repeated_tokens"][row] = min(d.columns["repeated_tokens"][row], left)
    d.columns.update(shared_offset=np.array(offset, dtype=np.int64), shared_name=np.array(names, dtype=np.int64))
    d.columns["shared_tokens"] = np.array([tokens[n] for n in names], dtype=np.float64)


def _sticky(d: Draft) -> None:
    d.waits()
    d.sessions()
    d.replicas["routing"] = "sticky"


def _prefix(d: Draft) -> None:
    d.waits()
    d.keeps()
    d.replicas["routing"] = "prefix"


def _decoders(d: Draft) -> None:
    d.replicas["engine"] = "prefill"
    d.decode.update(
        count=d.whole(1, 3),
        slots=d.one_of(1, 2, 4, math.inf),
        routing=d.one_of("random", "p2c", "least", "rr", "central"),
    )
    d.decode["kv_tokens"] = float(d.one_of(40, 90, math.inf))
    d.transfer = True


def _helps(d: Draft) -> None:
    """Decode replicas that compute prompts where prefill replicas are late."""
    d.waits()
    _decoders(d)
    d.helps_at = float(d.whole(0, 2))
    d.decode.update(token_budget=d.one_of(4.0, 16.0, math.inf), request_s=d.one_of(0.0, 0.125))


def _prefill(d: Draft) -> None:
    d.replicas["engine"] = "prefill"


def _priority(d: Draft) -> None:
    d.columns["priority"] = np.array(d.list_of(-1, 1), dtype=np.int32)


def _outages(d: Draft) -> None:
    d.waits()
    outages = []
    for replica in range(d.replicas["count"]):
        start = 0.0
        for _ in range(d.whole(0, 2)):
            begin = start + d.amount(1, 24, 0.25)
            start = begin + d.amount(1, 16, 0.25)
            outages.append(Outage(replica, begin, start if d.whole(0, 4) else math.inf))
            if outages[-1].end_s == math.inf:
                break
    d.asked["outages"] = outages


def _limits(d: Draft) -> None:
    metrics = d.draw(st.lists(st.sampled_from(["ttft_s", "tpot_s", "e2e_s"]), min_size=1, max_size=3, unique=True))
    d.asked["limits"] = [
        Limit(m, (d.whole(1, 40) + 0.3) / (16 if m == "tpot_s" else 4), d.whole(0, d.rows) + 0.5) for m in metrics
    ]


def _weights(d: Draft) -> None:
    d.columns["weight"] = np.array(d.list_of(0, 3), dtype=np.float64)
    d.asked["gaps"] = True


def _slots_engine(d: Draft) -> None:
    d.replicas.update(engine="slots", slots=d.whole(1, 4), token_budget=float(d.one_of(4, 16, math.inf)))


def _slots_shared(d: Draft) -> None:
    d.replicas.update(engine="slots-shared", slots=d.whole(1, 4), token_budget=float(d.one_of(4, 16, math.inf)))


FEATURES: dict[str, Callable[[Draft], None]] = {
    name.strip("_"): value
    for name, value in list(globals().items())
    if name.startswith("_")
    and not name.startswith("__")
    and callable(value)
    and getattr(value, "__module__", "") == __name__
}
"""Features by name; each changes a draft."""

_CONTEXT = ("longest", "together")
_WITHOUT_SLOTS = (
    "in_flight",
    "leave",
    "doors",
    "time_outs",
    "retries",
    "sessions",
    "cache",
    "host",
    "disk",
    "ttl",
    "windows",
    "gather",
    "pieces",
    "sticky",
    "prefix",
)
_WITHOUT_SLOTS += (
    "decoders",
    "helps",
    "prefill",
    "priority",
    "outages",
    "memory",
    "blocks",
    "no_reserve",
    "shared_prefix",
    "fractional",
)
_WITHOUT_SLOTS += (*_CONTEXT, "budget", "slots", "apart", "rows", "central", "wake_s", "request_s", "images")
_CACHES = ("cache", "host", "disk", "ttl", "windows", "pieces", "prefix")
_CLIENTS = ("in_flight", "leave", "doors", "time_outs", "retries", "sessions")
APART: set[frozenset[str]] = {
    *(frozenset((a, b)) for a in ("slots_engine", "slots_shared") for b in _WITHOUT_SLOTS),
    *(frozenset((a, b)) for a in _CACHES for b in ("blocks", "no_reserve", "central", "fractional")),
    *(frozenset(("central", b)) for b in (*_CLIENTS, "sticky", "routing")),
    *(frozenset(pair) for pair in combinations(("sticky", "prefix", "routing"), 2)),
    *(
        frozenset(pair)
        for pair in (
            *(("slots_engine", "slots_shared"), ("decoders", "prefill"), ("pieces", "shared_prefix")),
            *(("helps", "prefill"), ("helps", "decoders"), ("helps", "apart")),
            *(("leave", "retries"), ("leave", "in_flight")),
        )
    ),
}
"""Pairs that cannot be had together."""

PAIRS = [pair for pair in combinations(sorted(FEATURES), 2) if frozenset(pair) not in APART]
"""All pairs of features that can be had together."""

ORDER = list(FEATURES)

INEXACT = ("interference", "experts")
"""Features whose durations are no sums of powers of two."""


@dataclass(frozen=True)
class Case:
    """A question: arguments of ``replay``."""

    features: tuple[str, ...]
    requests: Requests
    replicas: Replicas
    rest: dict[str, Any]

    def __repr__(self) -> str:
        columns = {k: getattr(self.requests, k) for k in Requests.__slots__ if getattr(self.requests, k) is not None}
        text = ", ".join(f"{k}={v.tolist()!r}" for k, v in columns.items())
        return f"Case({self.features}\n  {text}\n  {self.replicas}\n  {self.rest})"


@st.composite
def cases(draw: Callable[[st.SearchStrategy[Any]], Any], features: tuple[str, ...], exact: bool = False) -> Case:
    """A question with all of `features`; `exact`: all durations are small multiples of powers of two."""
    rows = draw(st.integers(1, 10))
    d = Draft(draw, exact, rows, mantissas=np.random.default_rng(draw(st.integers(0, 1 << 30))))
    every = 0.25 if exact else draw(st.sampled_from([0.02, 0.2, 1.0]))
    gaps = np.array(d.list_of(0, 6)) * 1.0
    if not exact:
        gaps = (gaps + 1e-3) * d.mantissas.uniform(0.5, 1.5, rows)
    d.columns.update(
        arrival_s=np.cumsum(gaps) * every,
        input_tokens=np.array(d.list_of(1, 30), dtype=float),
        output_tokens=np.array(d.list_of(1, 12), dtype=float),
        cached_tokens=np.zeros(rows),
        key=d.mantissas.integers(0, 1 << 63, rows).astype(np.uint64),
    )
    d.model.update(
        t0=d.one_of(0.25, 0.5) if exact else d.amount(1, 4, 0.11), h=d.amount(0, 2, 2.0**-7), c=d.amount(0, 2, 2.0**-6)
    )
    if not {"slots_engine", "slots_shared"} & set(features):
        d.model.update(g=d.amount(0, 2, 2.0**-10), a=d.amount(0, 2, 2.0**-11))
    for name in sorted(features, key=ORDER.index):
        FEATURES[name](d)
    d.columns["cached_tokens"] = np.minimum(d.columns["cached_tokens"], np.ceil(d.columns["input_tokens"]) - 1.0)
    model = IterationModel(**d.model)
    d.replicas.setdefault("count", d.whole(1, 3))
    replicas = Replicas(iteration=model, **d.replicas)
    rest = dict(d.asked)
    if d.clients:
        rest["clients"] = Clients(**d.clients)
    if d.cache is not None:
        rest["cache"] = PrefixCache(**d.cache)
    if d.transfer:
        # of another speed: in random cases the two pools do not end their iterations together
        slower = replace(model, t0=d.one_of(0.25, 0.5) if exact else d.amount(1, 4, 0.13))
        kept = {k: v for k, v in d.replicas.items() if k in ("block", "reserve", "shared_prefix")}
        decode = Replicas(iteration=slower, **kept | d.decode)
        rest["decoders"] = Decoders(decode, np.array([d.amount(0, 4, 0.25) for _ in range(rows)]), d.helps_at)
    return Case(tuple(features), Requests(**d.columns), replicas, rest)


TIMES = ("sent_s", "admitted_s", "first_s", "done_s", "moved_s", "found_tokens", "host_tokens")
COUNTS = ("replica", "preempted", "attempts", "rejected", "given_up", "decode_replica")
TOTALS = ("iterations", "busy_s", "resident_s", "decode_s")


def differences(one: Run, two: Run) -> list[str]:
    """What two replays disagree on beyond a billionth of a second."""
    if (one.ended_early >= 0) != (two.ended_early >= 0):
        return [f"ended_early: {one.ended_early} {two.ended_early}"]
    if one.ended_early >= 0:
        return []
    found = []
    for name in (*TIMES, *COUNTS, *TOTALS):
        a, b = np.asarray(getattr(one, name), dtype=float), np.asarray(getattr(two, name), dtype=float)
        if a.shape != b.shape or not np.allclose(a, b, rtol=1e-12, atol=1e-9, equal_nan=True):
            found.append(f"{name}: {a.tolist()} {b.tolist()}")
    if abs(one.recomputed_tokens - two.recomputed_tokens) > 1e-9:
        found.append(f"recomputed_tokens: {one.recomputed_tokens} {two.recomputed_tokens}")
    if (one.gaps is None) != (two.gaps is None) or (
        one.gaps is not None and two.gaps is not None and not np.array_equal(one.gaps, two.gaps)
    ):
        a, b = (np.flatnonzero(g).tolist() if g is not None else None for g in (one.gaps, two.gaps))
        found.append(f"gaps: {a} {b}")
    return found
