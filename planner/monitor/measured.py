"""What the metrics of a pool say over a window: means and shares with intervals from stretches of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.monitor.dialects import DIALECTS, Dialect
from planner.monitor.prometheus import Series
from planner.simulate.statistics import Estimate, student_t

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

STRETCHES = 12
"""Stretches of the window that intervals are made of."""

LIVE_SHARE = 0.2
"""A replica is there if it was heard of, and served, in this last share of the window [1]."""

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
    rate_per_s, last_rate_per_s
        Requests that came [1/s], over the window and in its last sixth.
    rates_per_s
        Requests that came in every stretch [1/s].
    input_tokens, output_tokens
        Mean lengths [tokens].
    cached_share
        Tokens of prompts found in the prefix cache [1].
    running, waiting, kv_usage
        Means of one replica: requests, requests, share of its memory [1].
    preemptions_per_1000
        Preemptions per 1,000 requests.
    ttft_s, tpot_s, e2e_s
        Mean latencies [s].
    prefill_s
        Mean time from the start of a prompt to its first token, the wait before it left out [s].
    imbalance
        Variance of the requests in flight between replicas at one moment, over their mean [1]: about 1 where a gateway does
        not look, far less where it does.
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
    last_rate_per_s: float
    rates_per_s: tuple[float, ...]
    input_tokens: Estimate | None
    output_tokens: Estimate | None
    cached_share: Estimate | None
    running: Estimate | None
    waiting: Estimate | None
    kv_usage: Estimate | None
    preemptions_per_1000: Estimate | None
    ttft_s: Estimate | None
    tpot_s: Estimate | None
    e2e_s: Estimate | None
    prefill_s: Estimate | None
    imbalance: Estimate | None
    share_spread: float
    histograms: Mapping[str, tuple[Floats, Floats]]

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


def dialect_of(series: Mapping[str, Sequence[Series]]) -> tuple[Dialect, Mapping[str, str]]:
    """Whose metrics these are, and quantity -> name as it occurs there.

    Raises
    ------
    InputError
        Nobody's that is known.
    """
    present = {_folded(name): name for name in series}
    best: tuple[int, Dialect, dict[str, str]] | None = None
    for dialect in DIALECTS:
        found = {}
        for quantity, names, suffix in _wanted(dialect):
            name = next((present[k] for n in names for k in present if k.endswith(_folded(n + suffix))), None)
            if name is not None:
                found[quantity] = name.removesuffix(suffix)
        if best is None or len(found) > best[0]:
            best = (len(found), dialect, found)
    assert best is not None
    _, dialect, found = best
    if missing := [q for q in ("requests", "ttft_s") if q not in found]:
        known = ", ".join(d.name for d in DIALECTS)
        raise InputError(
            f"no metrics of {known}: nothing that counts {' or '.join('requests' if q == 'requests' else 'TTFT' for q in missing)}",
            "Does Prometheus scrape the servers? Their path is /metrics; SGLang needs --enable-metrics.",
        )
    return dialect, found


def _folded(name: str) -> str:
    return name.replace(":", "_")


def _wanted(dialect: Dialect) -> Iterator[tuple[str, tuple[str, ...], str]]:
    for kind in (dialect.gauges, dialect.counters):
        for quantity, names in kind.items():
            yield quantity, names, ""
    for quantity, names in dialect.histograms.items():
        yield quantity, names, "_bucket"


def queries() -> Iterator[tuple[Sequence[str], bool]]:
    """What to ask a server for: the names of one quantity in all dialects, and whether it is a gauge."""
    for kind, gauge in (("gauges", True), ("counters", False)):
        for quantity in dict.fromkeys(q for d in DIALECTS for q in getattr(d, kind)):
            yield [n for d in DIALECTS for n in getattr(d, kind).get(quantity, ())], gauge
    for quantity in DIALECTS[0].histograms:
        names = [n for d in DIALECTS for n in d.histograms.get(quantity, ())]
        for suffix in ("_bucket", "_sum", "_count"):
            yield [n + suffix for n in names], False


def by_pool(
    series: Mapping[str, Sequence[Series]], names: Sequence[tuple[str, str]]
) -> dict[str, dict[str, list[Series]]]:
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
    found: dict[str, dict[str, list[Series]]] = {pool: {} for pool, _ in names}
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


def measured(series: Mapping[str, Sequence[Series]], names: Mapping[str, str]) -> Measured:
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
    edges = np.linspace(min(moments), max(moments), STRETCHES + 1)
    seconds = float(edges[-1] - edges[0])
    length = seconds / STRETCHES
    served = {who: np.sum([_gains(s, edges) for s in of_one], axis=0) for who, of_one in counted.items()}
    total = np.sum([*served.values()], axis=0)
    if total.sum() < 50.0:
        raise InputError(
            f"{names['requests']}: {total.sum():.0f} requests in the window: too few to compare", "A longer --window."
        )
    ending = max(1, round(STRETCHES * LIVE_SHARE))
    live = [
        who
        for who, gains in served.items()
        if gains[-ending:].sum() > 0.0 and max(s.times[-1] for s in counted[who]) >= edges[-1] - ending * length
    ]
    shares = np.array([gains.sum() for gains in served.values()])
    whole = np.array([gains.sum() for gains in served.values() if (gains > 0.0).all()])
    # what came is what ended and what piled up
    arrived = np.maximum(total + _piled_up(series, names, edges), 0.0)
    means = {
        q: _mean_of(series, names[q], edges)
        for q in ("input_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s", "prefill_s")
        if q in names
    }
    hits, asked = (_total(series.get(names.get(q, ""), ()), edges) for q in ("cache_hits", "cache_queries"))
    preempted = _total(series.get(names["preemptions"], ()), edges) if "preemptions" in names else None
    gauges = {q: _gauge(series.get(names.get(q, ""), ()), edges) for q in ("running", "waiting", "kv_usage")}
    return Measured(
        seconds=seconds,
        replicas=len(live),
        seen=int((shares > 0.0).sum()),
        mean_replicas=float(np.mean(np.sum([gains > 0.0 for gains in served.values()], axis=0))),
        rate_per_s=_of_stretches(arrived / length),
        last_rate_per_s=float(arrived[-2:].mean() / length),
        rates_per_s=tuple((arrived / length).tolist()),
        input_tokens=means.get("input_tokens"),
        output_tokens=means.get("output_tokens"),
        cached_share=_ratio(hits, asked) if asked is not None and hits is not None and asked.sum() > 0.0 else None,
        running=gauges["running"],
        waiting=gauges["waiting"],
        kv_usage=gauges["kv_usage"],
        preemptions_per_1000=None if preempted is None else _ratio(1000.0 * preempted, total),
        ttft_s=means.get("ttft_s"),
        tpot_s=means.get("tpot_s"),
        e2e_s=means.get("e2e_s"),
        prefill_s=means.get("prefill_s"),
        imbalance=_imbalance(series, names, edges),
        share_spread=float(whole.max() / whole.mean()) if whole.size else 1.0,
        histograms={
            q: buckets
            for q in ("ttft_s", "tpot_s", "e2e_s")
            if q in names and (buckets := _buckets(series.get(f"{names[q]}_bucket", ()), edges)) is not None
        },
    )


def _by_replica(series: Iterable[Series]) -> dict[str, list[Series]]:
    found: dict[str, list[Series]] = {}
    for one in series:
        who = next((one.labels[name] for name in REPLICA_LABELS if name in one.labels), "one")
        found.setdefault(who, []).append(one)
    return found


def _gains(one: Series, edges: Floats) -> Floats:
    """Increase of a counter in every stretch; what falls has restarted from zero, what starts late starts from zero."""
    steps = np.diff(one.values, prepend=one.values[0])
    steps = np.where(steps < 0.0, one.values, steps)
    if one.times[0] > edges[0] + 0.5 * (edges[1] - edges[0]):
        steps[0] = one.values[0]
    grown = np.cumsum(steps)
    at = np.interp(edges, one.times, grown, left=0.0, right=float(grown[-1]))
    return np.asarray(np.diff(at))


def _total(series: Iterable[Series], edges: Floats) -> Floats | None:
    gains = [_gains(s, edges) for s in series]
    return np.sum(gains, axis=0) if gains else None


def _of_stretches(values: Floats) -> Estimate:
    """Mean of the stretches' values; neighbours are taken as independent."""
    half = student_t(values.size - 1) * float(values.std(ddof=1)) / math.sqrt(values.size)
    return Estimate(float(values.mean()), half)


def _ratio(part: Floats, whole: Floats) -> Estimate:
    """Ratio of two sums over the stretches, with the interval of a ratio estimator."""
    ratio = float(part.sum() / whole.sum())
    rest = part - ratio * whole
    n = part.size
    error = math.sqrt(float(rest @ rest) / (n * (n - 1))) / float(whole.mean())
    return Estimate(ratio, student_t(n - 1) * error)


def _mean_of(series: Mapping[str, Sequence[Series]], name: str, edges: Floats) -> Estimate | None:
    sums, counts = (_total(series.get(f"{name}{suffix}", ()), edges) for suffix in ("_sum", "_count"))
    if sums is None or counts is None or not counts.sum() > 0.0:
        return None
    return _ratio(sums, counts)


def _buckets(series: Sequence[Series], edges: Floats) -> tuple[Floats, Floats] | None:
    """Upper bounds, and gains per stretch and bucket; ``None`` without buckets."""
    by_bound: dict[float, Floats] = {}
    for one in series:
        try:
            bound = float(one.labels.get("le", "").replace("+Inf", "inf"))
        except ValueError:
            continue
        if not bound > -math.inf:  # NaN as well
            continue
        by_bound[bound] = by_bound.get(bound, np.zeros(STRETCHES)) + _gains(one, edges)
    if not by_bound:
        return None
    bounds = np.array(sorted(by_bound))
    counts = np.diff(np.stack([by_bound[b] for b in bounds]), axis=0, prepend=0.0).T
    return bounds, np.maximum(counts, 0.0)


def _gauge(series: Sequence[Series], edges: Floats) -> Estimate | None:
    """Mean over time and replicas."""
    rows = [_per_stretch(s, edges) for s in series]
    if not rows:
        return None
    table = np.array(rows)
    counted = (~np.isnan(table)).sum(axis=0)
    if (counted > 0).sum() < 2:
        return None
    # as many replicas as there were: what all hold, over how many they were
    return _ratio(np.nansum(table, axis=0)[counted > 0], counted[counted > 0].astype(float))


def _piled_up(series: Mapping[str, Sequence[Series]], names: Mapping[str, str], edges: Floats) -> Floats:
    """Growth of the requests in flight over every stretch, all replicas together; 0 where it is not measured."""
    rows = [_per_stretch(s, edges) for q in ("running", "waiting") for s in series.get(names.get(q, ""), ())]
    if not rows:
        return np.zeros(STRETCHES)
    inside = np.nansum(np.array(rows), axis=0)
    return np.asarray(np.gradient(inside))


def _per_stretch(one: Series, edges: Floats) -> Floats:
    """Mean of a gauge in every stretch; NaN where it has no point."""
    place = np.clip(np.searchsorted(edges, one.times, side="right") - 1, 0, STRETCHES - 1)
    inside = (one.times >= edges[0]) & (one.times <= edges[-1])
    counts = np.bincount(place[inside], minlength=STRETCHES)
    sums = np.bincount(place[inside], one.values[inside], STRETCHES)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _imbalance(series: Mapping[str, Sequence[Series]], names: Mapping[str, str], edges: Floats) -> Estimate | None:
    """Variance between replicas over their mean, at the moments that all were looked at."""
    if "running" not in names:
        return None
    tables = []
    for quantity in ("running", "waiting"):
        of_one = _by_replica(series.get(names.get(quantity, ""), ()))
        if not of_one:
            continue
        times = np.unique(np.concatenate([s.times for one in of_one.values() for s in one]))
        rows = []
        for one in of_one.values():
            at = np.concatenate([s.times for s in one])
            values = np.concatenate([s.values for s in one])
            order = np.argsort(at, kind="stable")
            place = np.clip(np.searchsorted(at[order], times, side="right") - 1, 0, at.size - 1)
            recent = np.abs(times - at[order][place]) <= 0.1 * (edges[-1] - edges[0])
            rows.append(np.where(recent, values[order][place], np.nan))
        tables.append((times, np.array(rows)))
    if not tables or len(tables[0][1]) < 2:
        return None
    times, held = tables[0]
    if len(tables) > 1 and tables[1][1].shape == held.shape:
        held = held + tables[1][1]
    whole = ~np.isnan(held).any(axis=0)
    if whole.sum() < 2 * STRETCHES:
        return None
    spread, mean = held[:, whole].var(axis=0, ddof=1), held[:, whole].mean(axis=0)
    parts = np.array_split(np.arange(int(whole.sum())), STRETCHES)
    return _ratio(np.array([spread[p].sum() for p in parts]), np.array([max(mean[p].sum(), 1e-9) for p in parts]))
