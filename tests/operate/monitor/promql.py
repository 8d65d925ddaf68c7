"""A small evaluator of Prometheus queries and rules over series in memory, written from Prometheus' documentation.

It knows what our rules and scalers use: selectors with ``=`` and ``=~``, ranges, ``rate`` (resets counted, extrapolated to the ends
of the window as Prometheus does), means and minima over time, aggregations with ``by``, ``histogram_quantile``, arithmetic,
comparisons that filter, ``and`` and ``ignoring``. A range holds what is younger than its window, an instant the last five minutes.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from planner.operate.monitor.measured import Series

Vector = list[tuple[dict[str, str], float]]

LOOKBACK_S = 300.0
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
TOKENS = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|(?P<name>[A-Za-z_:][\w:]*)|(?P<text>\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<sign>=~|!=|>=|<=|==|[-+*/(){}\[\],=<>]))"
)
AGGREGATES: Mapping[str, Callable[[list[float]], float]] = {
    "sum": math.fsum,
    "avg": lambda v: math.fsum(v) / len(v),
    "count": lambda v: float(len(v)),
    "max": max,
    "min": min,
    "stdvar": lambda v: float(np.var(v)),
}


class Store:
    """Series by the name of their metric, appended to by recording rules."""

    def __init__(self, series: Mapping[str, Sequence[Series]]) -> None:
        self.series: dict[str, list[tuple[dict[str, str], Any, Any]]] = {
            name: [(dict(s.labels), s.times, s.values) for s in of_one] for name, of_one in series.items()
        }
        self.recorded: dict[str, dict[tuple[tuple[str, str], ...], tuple[list[float], list[float]]]] = {}
        self._known: dict[Any, tuple[int, list[tuple[dict[str, str], Any, Any]]]] = {}

    def record(self, name: str, labels: Mapping[str, str], at: float, value: float) -> None:
        times, values = self.recorded.setdefault(name, {}).setdefault(tuple(sorted(labels.items())), ([], []))
        times.append(at)
        values.append(value)

    def matching(self, name: str, matchers: tuple[tuple[str, str, str], ...]) -> list[tuple[dict[str, str], Any, Any]]:
        recorded = self.recorded.get(name, {})
        # what is recorded grows in its lists: only another series is news
        count, found = self._known.get((name, matchers), (-1, []))
        if count != len(recorded):
            every = [*self.series.get(name, ()), *((dict(k), *v) for k, v in recorded.items())]
            found = [s for s in every if _matches(s[0], matchers)]
            self._known[name, matchers] = len(recorded), found
        return found


def _matches(labels: Mapping[str, str], matchers: Sequence[tuple[str, str, str]]) -> bool:
    return all(
        labels.get(label, "") == text if sign == "=" else re.fullmatch(text, labels.get(label, ""))
        for label, sign, text in matchers
    )


def window(times: Any, values: Any, at: float, length: float) -> tuple[Any, Any]:
    if times[0] > at or times[-1] <= at - length:
        return times[:0], values[:0]
    low, high = bisect_right(times, at - length), bisect_right(times, at)
    return np.asarray(times[low:high]), np.asarray(values[low:high])


def rate(times: Any, values: Any, at: float, length: float) -> float | None:
    """As Prometheus extrapolates: to the ends of the window, but no further than half a step, nor below zero."""
    if len(times) < 2:
        return None
    steps = values[1:] - values[:-1]
    gained = float((np.where(steps < 0.0, values[1:], steps) if steps.min() < 0.0 else steps).sum())
    span, step = float(times[-1] - times[0]), float(times[-1] - times[0]) / (len(times) - 1)
    before, after = float(times[0] - (at - length)), float(at - times[-1])
    if gained > 0.0 and values[0] >= 0.0:
        before = min(before, span * float(values[0]) / gained)
    reach = span + sum(x if x < 1.1 * step else 0.5 * step for x in (before, after))
    return gained * reach / span / length


class Query:
    """A query that was read, to be evaluated at many times."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [next((k, v) for k, v in m.groupdict().items() if v) for m in TOKENS.finditer(text)]
        assert "".join(v for _, v in self.tokens) == re.sub(r"\s+", "", text), f"not read: {text}"
        self.place = 0
        self.run = self._and()
        assert self.place == len(self.tokens), f"left over in {text}: {self.tokens[self.place :]}"

    def __call__(self, store: Store, at: float) -> Any:
        return self.run(store, at)

    # --- reading --------------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self.tokens[self.place][1] if self.place < len(self.tokens) else ""

    def _take(self, wanted: str = "") -> str:
        found = self._peek()
        assert not wanted or found == wanted, f"{wanted!r} expected, {found!r} found in {self.text}"
        self.place += 1
        return found

    def _and(self) -> Any:
        left = self._binary(0)
        while self._peek() == "and":
            self._take()
            ignored = self._ignoring()
            left = _both(left, self._binary(0), ignored)
        return left

    def _ignoring(self) -> set[str]:
        if self._peek() != "ignoring":
            return set()
        self._take()
        return set(self._labels())

    def _labels(self) -> list[str]:
        self._take("(")
        found = []
        while self._peek() != ")":
            found.append(self._take())
            if self._peek() == ",":
                self._take()
        self._take(")")
        return found

    LEVELS = (("<", ">", "<=", ">="), ("+", "-"), ("*", "/"))

    def _binary(self, level: int) -> Any:
        if level == len(self.LEVELS):
            return self._one()
        left = self._binary(level + 1)
        while self._peek() in self.LEVELS[level]:
            sign = self._take()
            left = _arithmetic(sign, left, self._binary(level + 1))
        return left

    def _one(self) -> Any:
        kind, text = self.tokens[self.place]
        if text == "(":
            self._take()
            inner = self._and()
            self._take(")")
            return inner
        self._take()
        if kind == "number":
            return lambda store, at: float(text)
        if text in AGGREGATES:
            by = self._by()
            self._take("(")
            inner = self._and()
            self._take(")")
            return _aggregate(AGGREGATES[text], inner, by or self._by())
        if self._peek() == "(":
            self._take()
            given = [self._and()]
            while self._peek() == ",":
                self._take()
                given.append(self._and())
            self._take(")")
            return getattr(Functions, text)(*given)
        return self._selector(text)

    def _by(self) -> list[str]:
        if self._peek() != "by":
            return []
        self._take()
        return self._labels()

    def _selector(self, name: str) -> Any:
        given = []
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                label, sign, text = self._take(), self._take(), self._take()
                given.append((label, sign, text[1:-1].replace('\\"', '"')))
                if self._peek() == ",":
                    self._take()
            self._take("}")
        matchers = tuple(given)
        if self._peek() == "[":
            self._take()
            length = float(self._take()) * UNITS[self._take()]
            self._take("]")
            return lambda store, at: [
                (labels, at, length, *window(t, v, at, length)) for labels, t, v in store.matching(name, matchers)
            ]

        def instant(store: Store, at: float) -> Vector:
            found = []
            for labels, times, values in store.matching(name, matchers):
                _, recent = window(times, values, at, LOOKBACK_S)
                if len(recent):
                    found.append((labels, float(recent[-1])))
            return found

        return instant


class Functions:
    """Functions by their names there."""

    @staticmethod
    def rate(inner: Any) -> Any:
        return lambda store, at: [
            (labels, value)
            for labels, now, length, t, v in inner(store, at)
            if (value := rate(t, v, now, length)) is not None
        ]

    @staticmethod
    def avg_over_time(inner: Any) -> Any:
        return lambda store, at: [(labels, float(np.mean(v))) for labels, _, _, _, v in inner(store, at) if len(v)]

    @staticmethod
    def min_over_time(inner: Any) -> Any:
        return lambda store, at: [(labels, float(np.min(v))) for labels, _, _, _, v in inner(store, at) if len(v)]

    @staticmethod
    def ceil(inner: Any) -> Any:
        return lambda store, at: [(labels, math.ceil(v)) for labels, v in inner(store, at)]

    @staticmethod
    def clamp_min(inner: Any, least: Any) -> Any:
        return lambda store, at: [(labels, max(v, least(store, at))) for labels, v in inner(store, at)]

    @staticmethod
    def clamp_max(inner: Any, most: Any) -> Any:
        return lambda store, at: [(labels, min(v, most(store, at))) for labels, v in inner(store, at)]

    @staticmethod
    def histogram_quantile(level: Any, inner: Any) -> Any:
        def run(store: Store, at: float) -> Vector:
            groups: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
            for labels, value in inner(store, at):
                key = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
                groups.setdefault(key, []).append((float(labels["le"].replace("+Inf", "inf")), value))
            return [(dict(key), _quantile(level(store, at), sorted(rows))) for key, rows in groups.items()]

        return run


def _quantile(level: float, rows: Sequence[tuple[float, float]]) -> float:
    total = rows[-1][1]
    if not total > 0.0:
        return math.nan
    rank, low, below = level * total, 0.0, 0.0
    for bound, count in rows:
        if count >= rank:
            return low if math.isinf(bound) else low + (bound - low) * (rank - below) / max(count - below, 1e-300)
        low, below = bound, count
    return low


def _aggregate(function: Callable[[list[float]], float], inner: Any, by: Sequence[str]) -> Any:
    def run(store: Store, at: float) -> Vector:
        groups: dict[tuple[tuple[str, str], ...], list[float]] = {}
        for labels, value in inner(store, at):
            groups.setdefault(tuple((k, labels[k]) for k in by if labels.get(k)), []).append(value)
        return [(dict(key), function(values)) for key, values in groups.items()]

    return run


def _key(labels: Mapping[str, str], ignored: set[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, v) for k, v in labels.items() if k not in ignored))


def _both(left: Any, right: Any, ignored: set[str]) -> Any:
    def run(store: Store, at: float) -> Vector:
        known = {_key(labels, ignored) for labels, _ in right(store, at)}
        return [(labels, value) for labels, value in left(store, at) if _key(labels, ignored) in known]

    return run


def _arithmetic(sign: str, left: Any, right: Any) -> Any:
    compare = {"<": float.__lt__, ">": float.__gt__, "<=": float.__le__, ">=": float.__ge__}.get(sign)
    compute = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "/": lambda a, b: a / b if b else math.nan,
    }.get(sign)

    def run(store: Store, at: float) -> Any:
        a, b = left(store, at), right(store, at)
        if not isinstance(a, list) and not isinstance(b, list):
            return compute(a, b)  # type: ignore[misc]
        if isinstance(a, list) and isinstance(b, list):
            known = {_key(labels, set()): value for labels, value in b}
            pairs = [(labels, v, known[_key(labels, set())]) for labels, v in a if _key(labels, set()) in known]
        else:
            pairs = [(labels, v, b) for labels, v in a] if isinstance(a, list) else [(labels, a, v) for labels, v in b]
        if compare is not None:
            return [(labels, x) for labels, x, y in pairs if compare(float(x), float(y))]
        return [(labels, compute(x, y)) for labels, x, y in pairs]  # type: ignore[misc]

    return run


def fired(groups: Sequence[Mapping[str, Any]], store: Store, times: Sequence[float]) -> dict[str, list[float]]:
    """Alert (and its severity) -> the times at which it fires; groups are evaluated as Prometheus does, rule by rule."""
    rules = [(rule, Query(rule["expr"])) for group in groups for rule in group["rules"]]
    since: dict[tuple[int, tuple[tuple[str, str], ...]], float] = {}
    found: dict[str, list[float]] = {}
    for at in times:
        for number, (rule, query) in enumerate(rules):
            values = [(labels, v) for labels, v in query(store, at) if not math.isnan(v)]
            if "record" in rule:
                for labels, value in values:
                    store.record(rule["record"], {**labels, **rule["labels"]}, at, value)
                continue
            active = {(number, _key(labels, set())) for labels, _ in values}
            for key in [k for k in since if k[0] == number and k not in active]:
                del since[key]
            wait = float(rule["for"][:-1]) * UNITS[rule["for"][-1]]
            for key in active:
                if at - since.setdefault(key, at) >= wait:
                    found.setdefault(f"{rule['alert']} {rule['labels']['severity']}", []).append(at)
    return found
