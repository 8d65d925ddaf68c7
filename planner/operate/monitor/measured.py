"""What the metrics of a pool say over a window: means and shares with intervals from stretches of it."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from planner.calibrate.http import Connection, Endpoint, HttpError, parse_json
from planner.errors import InputError
from planner.operate.monitor.names import DIALECTS, Dialect
from planner.papers.statistics import Estimate, student_t
from planner.shared.arguments import told_types
from planner.shared.documents import parse_json as parse_file
from planner.shared.documents import printable, read_text
from planner.units import MOST, SECONDS, WEEK_S, parse_duration

Floats = NDArray[np.float64]

GAUGE_STEPS = 240
"""Points of a gauge's series over the window; a counter's are two for each stretch of it."""

MOST_SERIES = 40_000
"""Series of one metric; a fleet beyond is looked at pool by pool with a selector."""

QUERY_S = 60.0
"""Longest wait for an answer [s]."""

_SELECTOR = re.compile(r"[^{}]*")
_SAMPLES = re.compile(r"\s*(# (HELP|TYPE) \w|[A-Za-z_:][\w:]*(\{[^\n]*\})? [-+.\dNI])")


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One series: labels without its name, moments [s] and values, ascending in time."""

    labels: Mapping[str, str]
    times: Floats
    values: Floats


Gathered = dict[str, list[Series]]
AllSeries = Mapping[str, Sequence[Series]]
"""The series by the name of their metric."""


def add_answer(found: Gathered, answer: Any, where: str) -> None:
    """Take the result of a range query into series by the name of their metric."""
    data = answer.get("data", answer) if isinstance(answer, dict) else None
    result = data.get("result") if isinstance(data, dict) else None
    if not isinstance(result, list):
        told = answer.get("error") if isinstance(answer, dict) else None
        said = f": the server said {printable(str(told)[:200])!r}" if told else ""
        raise InputError(f"{where}: not the answer of a Prometheus query{said}")
    if len(result) > MOST_SERIES:
        raise InputError(f"{where}: {len(result):,} series, at most {MOST_SERIES:,} are read", "Narrow it: --selector.")
    for number, one in enumerate(result, 1):
        metric, points = (one.get(key) if isinstance(one, dict) else None for key in ("metric", "values"))
        if not isinstance(metric, dict) or not isinstance(points, list):
            raise InputError(f"{where}: series {number} has no metric or no values; a range query is needed")
        labels = {str(k): str(v) for k, v in metric.items()}
        if not (name := labels.pop("__name__", "")):
            raise InputError(f"{where}: series {number} has no name", "Query the metrics themselves, without rate().")
        try:
            table = np.array([(float(t), float(v)) for t, v in points], dtype=np.float64).reshape(-1, 2)
        except (TypeError, ValueError):
            raise InputError(f"{where}: series {number} ({printable(name)}): a value is not a number") from None
        table = table[(np.abs(table) <= MOST).all(axis=1)]
        if table.size:
            found.setdefault(name, []).append(Series(labels, table[:, 0], table[:, 1]))


def read_answers(path: str) -> Gathered:
    """Series of a file: the JSON of one range query, or a list of several.

    Raises
    ------
    InputError
        Not such a file.
    """
    text = read_text(path)
    if _SAMPLES.match(text):
        raise InputError(
            f"{printable(path)}: counters of one moment, as a server shows them at /metrics; a fleet is checked over time",
            "Give a Prometheus server that scrapes it, or its answers to range queries (--save keeps them). "
            "Lengths alone: fleetopt workload import reads this page.",
        )
    document = parse_file(text if text.lstrip().startswith("{") else f'{{"answers": {text}}}', printable(path))
    found: Gathered = {}
    inner = document.get("answers", document) if isinstance(document, dict) else document
    for number, answer in enumerate(inner if isinstance(inner, list) else [inner], 1):
        add_answer(found, answer, f"{printable(path)}: answer {number}")
    return found


def read_server(
    url: str, metrics: Iterable[tuple[Sequence[str], bool]], window_s: float, selector: str = "", key: str | None = None
) -> Gathered:
    """Series of a Prometheus server over the last `window_s`.

    Parameters
    ----------
    url
        ``http(s)://[user:password@]host[:port][/path]``.
    metrics
        Names of one quantity, any of which may exist, and whether it is a gauge.
    window_s
        How far back [s].
    selector
        Label matchers every query gets: ``namespace="serving"``.
    key
        Bearer token.

    Raises
    ------
    InputError
        No such server, an answer that is none, too large a one.
    """
    if not SECONDS["m"] <= window_s <= 2 * WEEK_S:
        raise InputError(f"--window: must lie between a minute and 14 days, got {window_s:g} s")
    if not _SELECTOR.fullmatch(selector) or len(selector) > 500:
        raise InputError("--selector: label matchers without braces are expected", 'For example: namespace="serving".')
    endpoint = Endpoint.parse(url, key)
    connection = Connection(endpoint, QUERY_S)
    end = math.floor(time.time())
    found: Gathered = {}
    try:
        for names, gauge in metrics:
            step = max(1, math.ceil(window_s / (GAUGE_STEPS if gauge else 2 * STRETCHES)))
            pattern = "|".join(re.escape(n).replace("\\", "\\\\") for n in names)
            query = quote(f'{{__name__=~"{pattern}"{"," + selector if selector else ""}}}', safe="")
            path = f"/api/v1/query_range?query={query}&start={end - window_s:.0f}&end={end}&step={step}"
            answer = parse_json(connection.get(path, QUERY_S), "the answer")
            if not isinstance(answer, dict) or answer.get("status") != "success":
                told = answer.get("error", "no reason given") if isinstance(answer, dict) else "no mapping"
                raise InputError(f"{endpoint}: the query failed: {endpoint.safe(str(told))}")
            add_answer(found, answer, str(endpoint))
    except HttpError as error:
        hint = "It must answer GET /api/v1/query_range; check the address and the key."
        if "larger than" in str(error):
            hint = "Narrow it: --selector, or a shorter --window."
        raise InputError(f"{endpoint}: {endpoint.safe(str(error))}", hint) from None
    finally:
        connection.close()
    return found


@told_types
def metrics(
    prometheus: str | Path, *, window: float | str = "1h", selector: str = "", api_key: str | None = None
) -> dict[str, list[Series]]:
    """The series of a fleet, for :func:`check`.

    Parameters
    ----------
    prometheus
        Address of a Prometheus server, or a file of its answers to range queries (JSON).
    window
        How far back to look, 1min to 14 days [s].
    selector
        Label matchers of the fleet's series, without braces: 'namespace="serving"'.
    api_key
        Bearer token for the server.

    Returns
    -------
    dict
        Metric -> series.
    """
    place = str(prometheus)
    if not place.startswith(("http://", "https://")):
        if re.fullmatch(r"[\w.-]+:\d+(/.*)?", place) and not Path(place).exists():
            raise InputError(f"{place}: no such file", f"An address begins with its scheme: http://{place}.")
        return read_answers(place)
    return read_server(place, queries(), parse_duration(window, "--window"), selector, api_key)


def to_file(series: AllSeries) -> str:
    """Series as a file that :func:`read_answers` reads."""
    result = [
        {
            "metric": {"__name__": name} | dict(one.labels),
            "values": [[t, repr(v)] for t, v in zip(one.times.tolist(), one.values.tolist(), strict=True)],
        }
        for name, of_name in series.items()
        for one in of_name
    ]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


STRETCHES = 12
"""Stretches of the window that intervals are made of."""

LAST = STRETCHES // 6
"""Stretches at its end: a replica is there if it was heard of, and served, in them."""

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")

REPLICA_LABELS = ("pod", "instance")
"""Labels that tell replicas apart, the first that is there."""


@dataclass(frozen=True, slots=True)
class Promised:
    """How a promise was kept.

    Parameters
    ----------
    within
        Share of requests within the limit [1], with its interval; where the limit lies inside a bucket, its least.
    most_within
        The most it can be [1].
    value_s
        The quantile, linear inside its bucket [s]; inf beyond the last.
    ends_s
        What it may be: the quantiles as far below and above as the share within the limit is uncertain [s].
    """

    within: Estimate
    most_within: float
    value_s: float
    ends_s: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """One pool over the window.

    Parameters
    ----------
    seconds
        Length of the window [s].
    replicas
        Replicas that served at its end.
    seen
        Replicas that served at any time.
    mean_replicas
        Replicas that served on average over the window.
    rate_per_s
        Requests that came [1/s].
    rates_per_s
        Requests that came in every stretch [1/s].
    means
        Quantity -> its mean, where it is known: ``input_tokens`` and ``output_tokens`` [tokens]; ``cached_share``, tokens of
        prompts found in the prefix cache [1]; ``running``, ``waiting`` and ``kv_usage`` of one replica [requests, requests, share
        of its memory]; ``preemptions_per_1000`` requests; ``ttft_s``, ``tpot_s``, ``e2e_s``, and ``prefill_s`` from the start of a
        prompt to its first token, the wait before it left out [s]; ``imbalance``, the variance of the requests in flight between
        replicas at one moment, over their mean [1]: about 1 where a gateway does not look, far less where it does.
    share_spread
        Most requests of one replica over their mean, among those that served all the time [1].
    histograms
        Quantity -> (upper bounds, requests per bucket by stretch, shape (stretches, buckets)).
    """

    seconds: float
    replicas: int
    seen: int
    mean_replicas: float
    rate_per_s: Estimate
    rates_per_s: tuple[float, ...]
    means: Mapping[str, Estimate]
    share_spread: float
    histograms: Mapping[str, tuple[Floats, Floats]]

    @property
    def last_rate_per_s(self) -> float:
        """Requests that came in the last sixth of the window [1/s]."""
        return float(np.mean(self.rates_per_s[-LAST:]))

    def promised(self, quantity: str, quantile: float, limit_s: float) -> Promised | None:
        """How the `quantile` of a latency stood to its limit; ``None`` where no histogram says."""
        found = self.histograms.get(quantity)
        if found is None or not found[1].sum() > 0.0:
            return None
        bounds, counts = found
        inside = counts[:, bounds <= limit_s * (1.0 + 1e-9)].sum(axis=1)
        low = _ratio(inside, counts.sum(axis=1))
        edge = int(np.searchsorted(bounds, limit_s * (1.0 - 1e-9)))
        total = counts.sum(axis=0)
        most = float(total[: edge + 1].sum() / total.sum())
        ends = [min(max(quantile + d, 0.0), 1.0) for d in (-low.half_width, low.half_width)]
        value, *told = (_quantile(bounds, total, q) for q in (quantile, *ends))
        return Promised(low, most, value, (told[0], told[1]))


def _quantile(bounds: Floats, counts: Floats, quantile: float) -> float:
    """The quantile of a histogram, linear inside a bucket [s]."""
    below = np.cumsum(counts)
    wanted = float(quantile * below[-1])
    k = int(np.searchsorted(below, wanted))
    if k >= bounds.size or math.isinf(bounds[k]):
        return math.inf
    low = float(bounds[k - 1]) if k else 0.0
    before = float(below[k - 1]) if k else 0.0
    return float(low + (float(bounds[k]) - low) * (wanted - before) / max(float(counts[k]), 1e-300))


def dialect_of(series: AllSeries) -> tuple[Dialect, Mapping[str, str]]:
    """Whose metrics these are, and quantity -> name as it occurs there.

    Raises
    ------
    InputError
        Nobody's that is known.
    """
    present = {_folded(name): name for name in series}

    def counted(dialect: Dialect) -> Iterator[tuple[str, str]]:
        buckets = {quantity: [n + "_bucket" for n in names] for quantity, names in dialect.histograms.items()}
        for quantity, names in {**dialect.gauges, **dialect.counters, **buckets}.items():
            name = next((present[k] for n in names for k in present if k.endswith(_folded(n))), None)
            if name is not None:
                yield quantity, name.removesuffix("_bucket")

    dialect, found = max(((d, dict(counted(d))) for d in DIALECTS), key=lambda pair: len(pair[1]))
    if missing := [q for q in ("requests", "ttft_s") if q not in found]:
        known = ", ".join(d.name for d in DIALECTS)
        raise InputError(
            f"no metrics of {known}: nothing that counts {' or '.join('requests' if q == 'requests' else 'TTFT' for q in missing)}",
            "Does Prometheus scrape the servers? Their path is /metrics; SGLang needs --enable-metrics.",
        )
    return dialect, found


def _folded(name: str) -> str:
    return name.replace(":", "_")


def queries() -> Iterator[tuple[Sequence[str], bool]]:
    """What to ask a server for: the names of one quantity in all dialects, and whether it is a gauge."""
    for kind in ("gauges", "counters", "histograms"):
        for quantity in dict.fromkeys(q for d in DIALECTS for q in getattr(d, kind)):
            names = [n for d in DIALECTS for n in getattr(d, kind).get(quantity, ())]
            for suffix in ("_bucket", "_sum", "_count") if kind == "histograms" else ("",):
                yield [n + suffix for n in names], kind == "gauges"


def by_pool(series: AllSeries, names: Sequence[tuple[str, str]]) -> dict[str, Gathered]:
    """The series of every pool.

    Parameters
    ----------
    series
        Metric -> its series.
    names
        Pool -> how its objects are called; the one pool of a plan owns every series.

    Raises
    ------
    InputError
        Series that no label assigns to a pool.
    """
    if len(names) == 1:
        return {names[0][0]: {name: list(of_name) for name, of_name in series.items()}}
    found: dict[str, Gathered] = {pool: {} for pool, _ in names}
    for metric, of_metric in series.items():
        for one in of_metric:
            owners = [pool for pool, called in names if any(_names(v, pool, called) for v in one.labels.values())]
            if len(owners) == 1:
                found[owners[0]].setdefault(metric, []).append(one)
    if empty := [pool for pool, of_pool in found.items() if not of_pool]:
        raise InputError(
            f"no series of pool {', '.join(empty)}: a label must say the pool ({names[0][0]}) or its object ({names[0][1]}-...)",
            "The files of `fleetopt deploy` name pods so; else add a label `pool` when scraping.",
        )
    return found


def _names(value: str, pool: str, called: str) -> bool:
    """Whether a label's value names a pool or one of its objects."""
    return value in (pool, called) or value.startswith(f"{called}-")


def measured(series: AllSeries, names: Mapping[str, str]) -> Measured:
    """What one pool's series say.

    Parameters
    ----------
    series
        Of the pool.
    names
        Quantity -> metric.

    Raises
    ------
    InputError
        Too little to say anything.
    """
    counted = _by_replica(series.get(names["requests"], ()))
    moments = [t for one in counted.values() for s in one for t in (s.times[0], s.times[-1])]
    if not moments or max(moments) - min(moments) <= 0.0:
        raise InputError(f"{names['requests']}: too few points: a range over at least ten minutes is needed")
    window = _Window(series, names, np.linspace(min(moments), max(moments), STRETCHES + 1))
    edges = window.edges
    seconds = float(edges[-1] - edges[0])
    length = seconds / STRETCHES
    served = {who: np.sum([_gains(s, edges) for s in of_one], axis=0) for who, of_one in counted.items()}
    table = np.array([*served.values()])
    total = table.sum(axis=0)
    if total.sum() < 50.0:
        raise InputError(
            f"{names['requests']}: {total.sum():.0f} requests in the window: too few to compare", "A longer --window."
        )
    live = [
        who
        for who, gains in served.items()
        if gains[-LAST:].sum() > 0.0 and max(s.times[-1] for s in counted[who]) >= edges[-1] - LAST * length
    ]
    whole = table[(table > 0.0).all(axis=1)].sum(axis=1)
    # what came is what ended and what piled up
    rates = np.maximum(total + window.piled_up(), 0.0) / length
    # neighbouring stretches are taken as independent
    half = student_t(STRETCHES - 1) * float(rates.std(ddof=1)) / math.sqrt(STRETCHES)
    return Measured(
        seconds=seconds,
        replicas=len(live),
        seen=int((table.sum(axis=1) > 0.0).sum()),
        mean_replicas=float((table > 0.0).sum(axis=0).mean()),
        rate_per_s=Estimate(float(rates.mean()), half),
        rates_per_s=tuple(rates.tolist()),
        means={quantity: mean for quantity, mean in window.means(total) if mean is not None},
        share_spread=float(whole.max() / whole.mean()) if whole.size else 1.0,
        histograms={q: found for q in LATENCIES if (found := window.buckets(q)) is not None},
    )


def _by_replica(series: Iterable[Series]) -> Gathered:
    found: Gathered = {}
    for one in series:
        who = next((one.labels[name] for name in REPLICA_LABELS if name in one.labels), "one")
        found.setdefault(who, []).append(one)
    return found


@dataclass(frozen=True, slots=True)
class _Window:
    """Series of one pool by the names of their quantities, over stretches of time."""

    series: AllSeries
    names: Mapping[str, str]
    edges: Floats

    def of(self, quantity: str, suffix: str = "") -> Sequence[Series]:
        """The series of a quantity; none where nobody counts it."""
        return self.series.get(self.names.get(quantity, "") + suffix, ())

    def gained(self, quantity: str, suffix: str = "") -> Floats | None:
        """Increase of a counter in every stretch, all replicas together."""
        gains = [_gains(s, self.edges) for s in self.of(quantity, suffix)]
        return np.sum(gains, axis=0) if gains else None

    def held(self, *quantities: str) -> Floats:
        """Mean of gauges in every stretch, a row for each series."""
        return np.array([_per_stretch(s, self.edges) for q in quantities for s in self.of(q)])

    def means(self, requests: Floats) -> Iterator[tuple[str, Estimate | None]]:
        """Quantities and their means over the window; `requests` ended in every stretch."""
        for quantity in ("input_tokens", "output_tokens", "prefill_s", *LATENCIES):
            yield quantity, _share(self.gained(quantity, "_sum"), self.gained(quantity, "_count"))
        yield "cached_share", _share(self.gained("cache_hits"), self.gained("cache_queries"))
        preempted = self.gained("preemptions")
        yield "preemptions_per_1000", None if preempted is None else _ratio(1000.0 * preempted, requests)
        for quantity in ("running", "waiting", "kv_usage"):
            yield quantity, self.gauge(quantity)
        yield "imbalance", self.imbalance()

    def gauge(self, quantity: str) -> Estimate | None:
        """Mean over time and replicas."""
        table = self.held(quantity)
        if not table.size:
            return None
        counted = (~np.isnan(table)).sum(axis=0)
        there = counted > 0
        # as many replicas as there were: what all hold, over how many they were
        return _ratio(np.nansum(table, axis=0)[there], counted[there].astype(float)) if there.sum() > 1 else None

    def piled_up(self) -> Floats:
        """Growth of the requests in flight over every stretch, all replicas together; 0 where it is not measured."""
        table = self.held("running", "waiting")
        return np.asarray(np.gradient(np.nansum(table, axis=0))) if table.size else np.zeros(STRETCHES)

    def buckets(self, quantity: str) -> tuple[Floats, Floats] | None:
        """Upper bounds, and gains per stretch and bucket; ``None`` without buckets."""
        by_bound: dict[float, Floats] = {}
        for one in self.of(quantity, "_bucket"):
            try:
                bound = float(one.labels.get("le", "").replace("+Inf", "inf"))
            except ValueError:
                continue
            if bound > -math.inf:  # NaN is not
                by_bound[bound] = by_bound.get(bound, np.zeros(STRETCHES)) + _gains(one, self.edges)
        if not by_bound:
            return None
        bounds = np.array(sorted(by_bound))
        counts = np.diff(np.stack([by_bound[b] for b in bounds]), axis=0, prepend=0.0).T
        return bounds, np.maximum(counts, 0.0)

    def moments(self, quantity: str) -> Floats:
        """What every replica held at the moments that any was looked at, a row each; NaN where its own last look was long ago."""
        of_one = _by_replica(self.of(quantity)).values()
        times = np.unique(np.concatenate([s.times for one in of_one for s in one] or [np.zeros(0)]))
        rows = []
        for one in of_one:
            at, values = (np.concatenate([getattr(s, name) for s in one]) for name in ("times", "values"))
            order = np.argsort(at, kind="stable")
            place = np.clip(np.searchsorted(at[order], times, side="right") - 1, 0, at.size - 1)
            recent = np.abs(times - at[order][place]) <= 0.1 * (self.edges[-1] - self.edges[0])
            rows.append(np.where(recent, values[order][place], np.nan))
        return np.array(rows)

    def imbalance(self) -> Estimate | None:
        """Variance between replicas over their mean, at the moments that all were looked at."""
        held, waiting = self.moments("running"), self.moments("waiting")
        if len(held) < 2:
            return None
        if waiting.shape == held.shape:
            held = held + waiting
        held = held[:, ~np.isnan(held).any(axis=0)]
        if held.shape[1] < 2 * STRETCHES:
            return None
        parts = np.array_split(np.arange(held.shape[1]), STRETCHES)
        spread, mean = held.var(axis=0, ddof=1), held.mean(axis=0)
        return _ratio(np.array([spread[p].sum() for p in parts]), np.array([max(mean[p].sum(), 1e-9) for p in parts]))


def _gains(one: Series, edges: Floats) -> Floats:
    """Increase of a counter in every stretch; what falls has restarted from zero, what starts late starts from zero."""
    steps = np.diff(one.values, prepend=one.values[0])
    steps = np.where(steps < 0.0, one.values, steps)
    if one.times[0] > edges[0] + 0.5 * (edges[1] - edges[0]):
        steps[0] = one.values[0]
    grown = np.cumsum(steps)
    at = np.interp(edges, one.times, grown, left=0.0, right=float(grown[-1]))
    return np.asarray(np.diff(at))


def _share(part: Floats | None, whole: Floats | None) -> Estimate | None:
    """The ratio of two sums where both are known and there is something."""
    return None if part is None or whole is None or not whole.sum() > 0.0 else _ratio(part, whole)


def _ratio(part: Floats, whole: Floats) -> Estimate:
    """Ratio of two sums over the stretches, with the interval of a ratio estimator."""
    ratio = float(part.sum() / whole.sum())
    rest = part - ratio * whole
    n = part.size
    error = math.sqrt(float(rest @ rest) / (n * (n - 1))) / float(whole.mean())
    return Estimate(ratio, student_t(n - 1) * error)


def _per_stretch(one: Series, edges: Floats) -> Floats:
    """Mean of a gauge in every stretch; NaN where it has no point."""
    place = np.clip(np.searchsorted(edges, one.times, side="right") - 1, 0, STRETCHES - 1)
    inside = (one.times >= edges[0]) & (one.times <= edges[-1])
    counts = np.bincount(place[inside], minlength=STRETCHES)
    sums = np.bincount(place[inside], one.values[inside], STRETCHES)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
