"""Histograms of vLLM, SGLang and TGI from Prometheus: a scrape (two: their difference) or the JSON of a range query.

Each marginal keeps the mass of every bucket and is reshaped inside the buckets so that its mean is sum/count; input and output
are taken as independent, which the workload says.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.errors import InputError
from planner.units import DAY_S, HOUR_S, HOURS_PER_DAY, MOST, as_number, is_measurable
from planner.workload.arrivals import POISSON_ASSUMED, UNSEEN_S, Arrivals
from planner.workload.formats.base import JSON, MAX_TOKENS, Format, ImportReport, ReadOptions
from planner.workload.formats.totals import law, one_category
from planner.workload.trace import Floats, Intervals
from planner.workload.workload import Workload

if TYPE_CHECKING:
    from planner.workload.source import Source


INPUT = ("vllm:request_prompt_tokens", "sglang:prompt_tokens_histogram", "tgi_request_input_length")
OUTPUT = ("vllm:request_generation_tokens", "sglang:generation_tokens_histogram", "tgi_request_generated_tokens")
_FAMILIES = {name: family for family in (*INPUT, *OUTPUT) for name in (family, family.replace(":", "_"))}

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d+))?\s*$")
_LABEL = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')
_FEW_BUCKETS = 12  # up to so many get four points each, more get three
# Gauss-Lobatto rules: the ends are among the points, so that every mean the buckets allow can be reached
_LOBATTO_4 = (np.array([-1.0, -np.sqrt(0.2), np.sqrt(0.2), 1.0]), np.array([1.0, 5.0, 5.0, 1.0]) / 6.0)
_LOBATTO_3 = (np.array([-1.0, 0.0, 1.0]), np.array([1.0, 4.0, 1.0]) / 3.0)


_Histogram = dict[float | str, float]
"""Cumulative counts by upper bound, their ``sum`` and ``count``, added up over all series."""


def _minus(later: _Histogram, earlier: _Histogram, path: str) -> _Histogram:
    """What was counted between two scrapes."""
    result = {key: value - earlier.get(key, 0.0) for key, value in later.items()}
    if any(value < 0.0 for key, value in result.items() if key != "sum"):
        raise InputError(
            f"{path}: counters are lower than in the earlier scrape",
            "The server restarted between them, or they are swapped.",
        )
    return result


@dataclass(slots=True)
class _Scrape:
    """Histograms of lengths, and how counts grew, in one text or answer."""

    histograms: dict[str, _Histogram] = field(default_factory=dict)
    span_s: float | None = None
    steps: list[float] = field(default_factory=list)
    step_s: float = 0.0
    start_s: float = 0.0
    models: set[str] = field(default_factory=set)
    lines: int = 0

    def add(self, name: str, labels: dict[str, str], value: float, where: str) -> None:
        """Count a sample where it belongs to a histogram of lengths."""
        base, _, kind = name.rpartition("_")
        family = _FAMILIES.get(base)
        if family is None or kind not in ("bucket", "sum", "count"):
            return
        if not 0.0 <= value <= MOST:
            raise InputError(f"{where}: {name} {value!r} is not a count")
        if model := labels.get("model_name"):
            self.models.add(model)
        key: float | str = kind
        if kind == "bucket":
            bound = labels.get("le", "")
            key = as_number(bound.replace("+Inf", "inf"))
            if not (is_measurable(key) or key == math.inf):
                raise InputError(f"{where}: {name} has no upper bound le, got {bound!r}")
        histogram = self.histograms.setdefault(family, {})
        histogram[key] = histogram.get(key, 0.0) + value


def _recognise(source: Source) -> bool:
    series = "metric" in source.keys and not source.keys.isdisjoint(("values", "value"))
    return source.kind == "metrics" or "resultType" in source.keys or series


def _scrape_text(source: Source) -> _Scrape:
    """Samples in the text format that servers expose."""
    scrape = _Scrape()
    with source.open_text() as lines:
        for number, raw in enumerate(lines, 1):
            line = raw.strip()
            if not line or line.startswith("#"):
                continue
            found = _LINE.match(line.split(" # ", 1)[0])  # an exemplar may follow
            if found is None:
                raise InputError(f"{source.name}:{number}: {line[:60]!r} is not a Prometheus sample")
            scrape.lines += 1
            value = as_number(found[3].replace("Inf", "inf"))
            if math.isnan(value) and found[3] != "NaN":
                raise InputError(f"{source.name}:{number}: {found[3]!r} is not a number")
            scrape.add(found[1], dict(_LABEL.findall(found[2] or "")), value, f"{source.name}:{number}")
    return scrape


def _scrape_json(source: Source) -> _Scrape:
    """Series of an answer of Prometheus: values at one time, or over a range."""
    document = source.read_json()
    results: list[Any] = []
    for answer in document if isinstance(document, list) else [document]:
        data = answer.get("data", answer) if isinstance(answer, dict) else None
        inner = data.get("result") if isinstance(data, dict) else None
        if isinstance(inner, list):
            results += inner
        elif isinstance(answer, dict) and "metric" in answer:
            results.append(answer)
        else:
            raise InputError(f"{source.name}: not the answer of a Prometheus query")
    scrape = _Scrape()
    by_time: dict[float, float] = defaultdict(float)
    first, last = math.inf, -math.inf
    for number, series in enumerate(results, 1):
        where = f"{source.name}: series {number}"
        metric = series.get("metric", {}) if isinstance(series, dict) else {}
        name = metric.get("__name__", "")
        try:
            points = [(float(t), float(v)) for t, v in series.get("values") or [series["value"]]]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{where}: no values") from error
        points = [(t, v) for t, v in points if is_measurable(t) and is_measurable(v)]
        scrape.lines += 1
        if not points or not name:
            continue
        if len(points) == 1:
            increase = points[0][1]
        else:
            # a counter that falls has restarted from zero
            gains = [b - a if b >= a else b for (_, a), (_, b) in pairwise(points)]
            increase = sum(gains)
            first, last = min(first, points[0][0]), max(last, points[-1][0])
            if any(name == f"{family}_count" for family in INPUT):
                for (t, _), gain in zip(points[1:], gains, strict=True):
                    by_time[t] += gain
        scrape.add(name, metric, increase, where)
    if last > first:
        scrape.span_s, scrape.start_s = last - first, first
        times = sorted(by_time)
        if len(times) >= 2:
            scrape.step_s = float(np.median(np.diff(times)))
            scrape.steps = [by_time[t] for t in times]
    if scrape.lines and not scrape.histograms and not any("__name__" in s.get("metric", {}) for s in results):
        raise InputError(
            f"{source.name}: the series have no metric names",
            'Query the counters without rate(): {__name__=~"vllm:request_(prompt|generation)_tokens_(bucket|sum|count)"}.',
        )
    return scrape


def _scrape(source: Source) -> _Scrape:
    return _scrape_text(source) if source.kind == "metrics" else _scrape_json(source)


def _read(source: Source, options: ReadOptions) -> tuple[Workload, ImportReport]:
    """A joint law of two histograms, prompt and answer taken as independent."""
    scrape = _scrape(source)
    earlier = _scrape(options.baseline) if options.baseline is not None else None
    chosen = []
    for side, families in (("input", INPUT), ("output", OUTPUT)):
        family = next((f for f in families if f in scrape.histograms), None)
        if family is None:
            raise InputError(f"{source.name}: no histogram of {side} lengths", f"Known: {', '.join(families)}.")
        histogram = scrape.histograms[family]
        if earlier is not None and family in earlier.histograms:
            histogram = _minus(histogram, earlier.histograms[family], source.name)
        chosen.append((family, histogram))
    notes = ["input and output assumed independent: each histogram is known, their joint law is not"]
    points = [_points(source.name, family, histogram, notes) for family, histogram in chosen]
    count, finished = (histogram["count"] for _, histogram in chosen)
    if abs(finished - count) > 0.001 * count:
        notes.append(f"{count:g} prompts and {finished:g} outputs counted: some requests were not finished")
    if len(scrape.models) > 1:
        notes.append(f"several models added up: {', '.join(sorted(scrape.models))}")
    inputs, outputs = (np.maximum(p[0], 0.0) for p in points)
    grid_in, grid_out = np.meshgrid(inputs, outputs, indexing="ij")
    weight = np.outer(points[0][1], points[1][1])
    span = options.interval_s or scrape.span_s
    if earlier is not None and scrape.span_s is not None and options.interval_s is None:
        span = None
    arrivals = _arrivals(scrape, count, span)
    if arrivals.rate_per_s is None:
        notes.append("the scrapes carry no times: rate not known (--interval gives it)")
    rows = {
        "input_tokens": grid_in.ravel(),
        "output_tokens": grid_out.ravel(),
        "weight": weight.ravel(),
        "category": one_category(options, weight.size),
        "arrivals": arrivals,
        "intervals": Intervals(np.array(scrape.steps), scrape.step_s) if arrivals.dispersion else None,
    }
    origin = f"{chosen[0][0]} and {chosen[1][0]} from Prometheus"
    known = {"source": origin, "requests": round(count), "notes": tuple(notes), "exact": False}
    return law(source, FORMAT.name, (scrape.lines, round(count)), rows, known, notes, span)


def _arrivals(scrape: _Scrape, count: float, span: float | None) -> Arrivals:
    """Rate, dispersion and profile of the counts over time."""
    if not span:
        return Arrivals()
    rate = count / span
    steps = np.array(scrape.steps)
    if steps.size < 8 or steps.sum() <= 0.0:
        return Arrivals(rate_per_s=rate)
    dispersion = ((scrape.step_s, float(steps.var() / steps.mean())),)
    peak = float(steps.max() / steps.mean()) if scrape.step_s <= 60.0 else None
    profile: tuple[float, ...] = ()
    if span >= DAY_S - UNSEEN_S and scrape.step_s <= HOUR_S:
        hours = (
            np.floor((scrape.start_s + scrape.step_s * (np.arange(steps.size) + 0.5)) / HOUR_S) % HOURS_PER_DAY
        ).astype(int)
        seen = np.bincount(hours, minlength=HOURS_PER_DAY)
        if np.all(seen > 0):
            rates = np.bincount(hours, steps, minlength=HOURS_PER_DAY) / seen
            profile = tuple(float(x) for x in np.round(rates / rates.mean(), 4))
    return Arrivals(rate, None, None, dispersion, profile, peak, f"{POISSON_ASSUMED} below {scrape.step_s:g} s")


def _points(path: str, family: str, histogram: _Histogram, notes: list[str]) -> tuple[Floats, Floats]:
    """Lengths and weights of a histogram whose buckets keep its mean."""
    bounds, count = sorted(key for key in histogram if isinstance(key, float)), histogram.get("count", 0.0)
    if not bounds or count <= 0.0:
        raise InputError(f"{path}: {family} has counted no request", "Scrape a server that has served some.")
    if math.isinf(bounds[0]):
        raise InputError(
            f"{path}: {family} has no bucket but +Inf, which says nothing of lengths", "Scrape all buckets."
        )
    cumulative = np.array([histogram[b] for b in bounds])
    mass = np.diff(cumulative, prepend=0.0)
    if np.any(mass < 0.0):
        raise InputError(f"{path}: {family}: bucket counts fall with growing le; they must be cumulative")
    if math.isinf(bounds[-1]) and mass[-1] > 0.0:
        notes.append(
            f"{mass[-1]:g} requests of {family} lie above the last bound {bounds[-2]:g}; their lengths are estimated"
        )
    elif not math.isinf(bounds[-1]) and count > cumulative[-1]:
        bounds.append(math.inf)
        mass = np.append(mass, count - cumulative[-1])
    mean = histogram.get("sum", 0.0) / count
    edges = np.array([0.0, *bounds])
    try:
        return reshape(edges, mass / mass.sum(), mean)
    except ValueError as error:
        raise InputError(f"{path}: {family}: {error}") from error


def reshape(edges: Floats, mass: Floats, mean: float) -> tuple[Floats, Floats]:
    r"""Points and weights of a bucketed law with a known mean.

    Inside the buckets the density is :math:`\propto e^{\theta x}` with one :math:`\theta` for all: of all laws with these bucket
    masses and this mean it assumes least (maximum entropy). Four Gauss-Lobatto points per bucket carry it
    (three where there are more than a dozen buckets); their mean is exact.

    Parameters
    ----------
    edges
        Bounds of the buckets (edges[k], edges[k+1]] [tokens]; the last may be inf.
    mass
        Share of each bucket [1], sums to 1.
    mean
        Mean [tokens].

    Returns
    -------
    tuple of ndarray
        Points [tokens] and weights [1].

    Raises
    ------
    ValueError
        No law with these buckets has this mean.

    >>> x, w = reshape(np.array([0.0, 10.0, 100.0]), np.array([0.5, 0.5]), 20.0)
    >>> round(float(w @ x), 9), round(float(w[x <= 10.5].sum()), 9)
    (20.0, 0.5)
    """
    use = mass > 0.0
    low, high, share = edges[:-1][use], edges[1:][use].copy(), mass[use]
    first = np.minimum(low + 1.0, high)
    if math.isinf(high[-1]):
        # the end of an open bucket: twice its start, or as far as the mean asks for
        high[-1] = max(2.0 * low[-1], 2.0)
        while float(share @ (0.5 * (first + high))) < mean and high[-1] < MAX_TOKENS:
            high[-1] *= 2.0
    # counts are whole numbers: a bucket (2, 5] holds 3, 4 and 5
    half = 0.5 * (high - first)
    middle = 0.5 * (first + high)
    least, most = float(share @ (middle - half)), float(share @ (middle + half))
    if not least - 1e-9 <= mean <= most + 1e-9:
        raise ValueError(f"sum/count = {mean:g} does not fit the buckets, which allow {least:g} to {most:g}")
    nodes, weights = _LOBATTO_4 if share.size <= _FEW_BUCKETS else _LOBATTO_3
    place = middle[:, None] + half[:, None] * nodes
    reach = float(half.max())

    def tilted(theta: float) -> Floats:
        power = theta * half[:, None] * nodes
        raw = weights * np.exp(power - power.max(axis=1, keepdims=True))
        return np.asarray(share[:, None] * raw / raw.sum(axis=1, keepdims=True))

    if reach == 0.0:
        return place[:, 0], share
    # beyond this the mass of the widest bucket is at its end to the last digit
    low_end, high_end = -1e4 / reach, 1e4 / reach
    for _ in range(100):
        theta = 0.5 * (low_end + high_end)
        if float(np.sum(tilted(theta) * place)) < mean:
            low_end = theta
        else:
            high_end = theta
    result = tilted(0.5 * (low_end + high_end))
    points, weight = place.ravel(), result.ravel()
    keep = weight > 1e-12
    points, weight = points[keep], weight[keep] / weight[keep].sum()
    # what the bisection and the pruning left over
    return points * (mean / float(weight @ points)), weight


FORMAT = Format(
    "prometheus", "vLLM, SGLang or TGI histograms: Prometheus text or query JSON", ("metrics", *JSON), _recognise, _read
)
