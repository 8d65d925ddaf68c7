"""What-if on traffic: mix workloads, scale lengths, measure how far two workloads are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from planner.errors import InputError
from planner.shared.record import Record
from planner.workload.arrivals import POISSON_ASSUMED, Arrivals
from planner.workload.sessions import Sessions
from planner.workload.trace import Bools, Ints, Trace
from planner.workload.workload import COLUMNS, Provenance, Workload


def mix(workloads: Sequence[Workload], weights: Sequence[float] | None = None, *, name: str = "mix") -> Workload:
    r"""Superposition of independent workloads.

    Rates add; the index of dispersion of the sum is :math:`I(w) = \sum_i p_i I_i(w)` with :math:`p_i` the shares of the rate
    (variances of independent counts add). A workload without categories becomes a category of its own name.

    Parameters
    ----------
    workloads
        At least one.
    weights
        Shares of the requests by workload [1], any positive scale; ``None`` = by their rates. With `weights` the rate of the mix
        is the sum of the rates, when all are known.
    name
        Name of the mix.

    Returns
    -------
    Workload
        The mix.

    >>> a = Workload.from_arrays([10], [5], arrival_rate_per_s=1.0, name="a")
    >>> b = Workload.from_arrays([30], [5], arrival_rate_per_s=3.0, name="b")
    >>> m = mix([a, b])
    >>> m.mean_input, m.arrivals.rate_per_s, m.categories
    (25.0, 4.0, ('a', 'b'))
    """
    if not workloads:
        raise InputError("a mix needs at least one workload")
    rates = [w.arrivals.rate_per_s for w in workloads]
    if weights is None:
        unknown = [w.name for w, rate in zip(workloads, rates, strict=True) if rate is None]
        if unknown:
            raise InputError(f"no arrival rate known for {', '.join(unknown)}", "Give weights: NAME=WEIGHT.")
        weights = [rate for rate in rates if rate is not None]
    if len(weights) != len(workloads):
        raise InputError(f"{len(workloads)} workloads, {len(weights)} weights")
    if any(not (math.isfinite(w) and w >= 0.0) for w in weights) or not sum(weights) > 0.0:
        raise InputError(f"weights must not be negative and not all zero, got {tuple(weights)!r}")
    share = [w / sum(weights) for w in weights]
    used = [(w, p) for w, p in zip(workloads, share, strict=True) if p > 0.0]
    names: list[str] = []
    compressible: dict[str, float | None] = {}
    category: list[Ints] = []
    for workload, _ in used:
        own = (workload.name,) if workload.categories == ("",) else workload.categories
        place = []
        for label, probability in zip(own, workload.compressible, strict=True):
            if label in compressible and compressible[label] != probability:
                label = f"{workload.name}:{label}"
            if label not in names:
                names.append(label)
            compressible[label] = probability
            place.append(names.index(label))
        category.append(np.array(place, dtype=np.int64)[workload.category])
    known = [w.provenance.requests for w, _ in used]
    assumed = [f"{w.name}: {w.arrivals.assumed}" for w, _ in used if w.arrivals.assumed]
    columns: dict[str, Any] = {name: np.concatenate([getattr(w, name) for w, _ in used]) for name in COLUMNS}
    columns |= {"weight": np.concatenate([p * w.weight for w, p in used]), "category": np.concatenate(category)}
    return Workload.from_arrays(
        **columns,
        categories=names,
        compressible=compressible,
        arrivals=_superposed([(w.arrivals, p) for w, p in used], rates),
        name=name,
        provenance=Provenance(
            source="mix of " + ", ".join(f"{w.name} {100 * p:.4g}%" for w, p in used),
            licence="; ".join(dict.fromkeys(w.provenance.licence for w, _ in used if w.provenance.licence)),
            requests=None if any(n is None for n in known) else sum(n for n in known if n is not None),
            notes=(*assumed, "streams assumed independent of each other"),
            length_split="; ".join(dict.fromkeys(s for w, _ in used if (s := w.provenance.length_split))) or None,
            exact=False,
        ),
    )


def _superposed(parts: Sequence[tuple[Arrivals, float]], rates: Sequence[float | None]) -> Arrivals:
    """Arrivals of independent streams together: what all of them know, added up."""
    rate = None if any(r is None for r in rates) else sum(r for r in rates if r is not None)
    windows = sorted(set.intersection(*({w for w, _ in a.dispersion} for a, _ in parts)))
    dispersion = tuple((w, sum(p * dict(a.dispersion)[w] for a, p in parts)) for w in windows)
    sizes = {len(a.hourly_profile) for a, _ in parts}
    # profiles of as many hours; of none they add up to none
    added = np.sum([p * np.array(a.hourly_profile) for a, p in parts], axis=0) if len(sizes) == 1 else np.zeros(0)
    profile = tuple(added.tolist())
    return Arrivals(
        rate_per_s=rate,
        # in the long run the scv of a superposition tends to the same mean as the dispersion
        scv=sum(p * a.scv for a, p in parts if a.scv is not None) if all(a.scv is not None for a, _ in parts) else None,
        scv_window_s=max((a.scv_window_s for a, _ in parts if a.scv_window_s is not None), default=None),
        dispersion=dispersion,
        hourly_profile=profile,
        assumed=None if dispersion else POISSON_ASSUMED,
    )


def scaled(workload: Workload, input_factor: float = 1.0, output_factor: float = 1.0) -> Workload:
    """The same requests with longer or shorter prompts and outputs ("outputs grow 30%": ``output_factor=1.3``).

    Parameters
    ----------
    workload
        The requests.
    input_factor, output_factor
        Factors > 0 [1].

    Returns
    -------
    Workload
        Lengths are fractional where the factors are; totals and bins move along.

    >>> w = Workload.from_arrays([100], [10])
    >>> scaled(w, output_factor=1.3).mean_output
    13.0
    """
    if not (input_factor > 0.0 and output_factor > 0.0 and math.isfinite(input_factor * output_factor)):
        raise InputError(f"factors must be positive and finite, got {input_factor!r} and {output_factor!r}")
    inputs, outputs = input_factor * workload.input_tokens, output_factor * workload.output_tokens
    before = workload.input_tokens + workload.output_tokens
    ratio = (inputs + outputs) / np.where(before > 0.0, before, 1.0)
    exact = workload.lower_tokens == workload.total_tokens
    totals = np.where(exact & (workload.total_tokens == before), inputs + outputs, workload.total_tokens * ratio)
    columns = workload.columns() | {"input_tokens": inputs, "output_tokens": outputs, "total_tokens": totals}
    columns["lower_tokens"] = np.where(exact, totals, workload.lower_tokens * ratio)
    own, calls = workload.recorded, workload.sessions
    if own is not None:
        longer = input_factor * own.input_tokens, output_factor * own.output_tokens
        own = replace(own, input_tokens=longer[0], output_tokens=longer[1])
    return workload.rebuilt(
        columns,
        f"lengths scaled: input x {input_factor:g}, output x {output_factor:g}",
        recorded=own,
        intervals=workload.intervals,
        sessions=calls and calls.scaled(input_factor, output_factor),
    )


def without_longer(workload: Workload, longest_tokens: float) -> tuple[Workload, float]:
    """The requests whose input and output together have at most `longest_tokens` tokens, and the share that is dropped.

    Parameters
    ----------
    workload
        The requests. A bin of a compact file that reaches beyond the limit is dropped whole.
    longest_tokens
        Longest request kept [tokens].

    Returns
    -------
    tuple
        What is left, its arrivals thinned by as much, and the share of requests dropped [1].

    Raises
    ------
    InputError
        Nothing would be left.

    >>> w = Workload.from_arrays([100, 100, 9000], [10, 10, 10], arrival_rate_per_s=3.0)
    >>> kept, dropped = without_longer(w, 8192)
    >>> kept.max_total, kept.arrivals.rate_per_s, round(dropped, 3)
    (110.0, 2.0, 0.333)
    """
    keep = workload.total_tokens <= longest_tokens
    if keep.all():
        return workload, 0.0
    if not keep.any():
        shortest = float(workload.total_tokens[0])
        raise InputError(
            f"no request of {workload.name} has at most {longest_tokens:,.0f} tokens; the shortest has {shortest:,.0f}"
        )
    kept, own, calls = float(workload.weight[keep].sum()), workload.recorded, workload.sessions

    def short(one: Trace | Sessions) -> Bools:
        return one.input_tokens + one.output_tokens <= longest_tokens

    left = workload.rebuilt(
        workload.columns(keep),
        f"requests of more than {longest_tokens:,.0f} tokens dropped: {1.0 - kept:.3g} of all",
        kept,
        recorded=own and own.select(short(own)),
        sessions=calls and calls.select(short(calls)),
        intervals=workload.intervals and workload.intervals.times(kept),
    )
    return left, 1.0 - kept


@dataclass(frozen=True, slots=True)
class Drift(Record):
    """How far one workload is from another.

    Parameters
    ----------
    ks_input, ks_output, ks_total
        Largest difference of the distribution functions (Kolmogorov-Smirnov) [1].
    factor_input, factor_output
        Typical factor between equal quantiles, exp of the mean absolute difference of the logarithms [1]; 1 = none.
    joint
        Total variation distance of the joint laws on a grid of octaves [1]; 0 = same, 1 = nothing in common.
    mean_input, mean_output, mean_iterations
        Ratio of the means, second over first [1]; iterations at a chunk of 512 tokens.
    rate
        Ratio of the rates [1]; ``None`` when one is not known.
    """

    ks_input: float
    ks_output: float
    ks_total: float
    factor_input: float
    factor_output: float
    joint: float
    mean_input: float
    mean_output: float
    mean_iterations: float
    rate: float | None

    versioned: ClassVar[bool] = True

    def to_rows(self) -> list[dict[str, float | None]]:
        """One row."""
        return [self.to_dict()]


def drift(first: Workload, second: Workload) -> Drift:
    """Distances between two workloads; see :class:`Drift`.

    >>> w = Workload.from_arrays([100, 200], [10, 20])
    >>> d = drift(w, w)
    >>> d.joint, d.ks_total, d.factor_output
    (0.0, 0.0, 1.0)
    """
    totals = np.unique(np.concatenate([first.breakpoints(), second.breakpoints()]))
    ks_total = float(np.max(np.abs(first.cdf(totals) - second.cdf(totals))))
    ks_input, factor_input = _marginal(first, second, "input")
    ks_output, factor_output = _marginal(first, second, "output")
    a, b = _grid(first), _grid(second)
    joint = 0.5 * sum(abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in a.keys() | b.keys())
    before, after = (
        (w.mean_input, w.mean_output, w.iterations(512)[0], w.arrivals.rate_per_s) for w in (first, second)
    )
    mean_input, mean_output, mean_iterations = (_ratio(y, x) for x, y in zip(before[:3], after[:3], strict=True))
    rate = None if before[3] is None or after[3] is None else after[3] / before[3]
    return Drift(
        ks_input, ks_output, ks_total, factor_input, factor_output, min(joint, 1.0),
        mean_input, mean_output, mean_iterations, rate,
    )  # fmt: skip


def _ratio(above: float, below: float) -> float:
    if below == 0.0:
        return 1.0 if above == 0.0 else math.inf
    return above / below


def _marginal(first: Workload, second: Workload, of: str) -> tuple[float, float]:
    (x, fx), (y, fy) = first.sorted_column(of), second.sorted_column(of)
    grid = np.unique(np.concatenate([x, y]))
    below = [
        np.concatenate([[0.0], cumulative])[np.searchsorted(values, grid, side="right")]
        for values, cumulative in ((x, fx), (y, fy))
    ]
    shares = (np.arange(200) + 0.5) / 200
    quantiles = [
        np.log(np.maximum(v[np.minimum(np.searchsorted(f, shares), v.size - 1)], 1.0)) for v, f in ((x, fx), (y, fy))
    ]
    return float(np.max(np.abs(below[0] - below[1]))), float(np.exp(np.mean(np.abs(quantiles[0] - quantiles[1]))))


def _grid(workload: Workload) -> Mapping[tuple[int, int], float]:
    """Mass on a grid of octaves of input and output; a point is shared by its four neighbours, so that small shifts stay small."""
    places = [np.log2(np.maximum(c, 1.0)) for c in (workload.input_tokens, workload.output_tokens)]
    floors = [np.floor(x).astype(np.int64) for x in places]
    inner = [x - f for x, f in zip(places, floors, strict=True)]
    mass = np.zeros((64, 64))
    for right in (0, 1):
        for up in (0, 1):
            share = np.abs(1 - right - inner[0]) * np.abs(1 - up - inner[1])
            place = np.minimum(floors[0] + right, 63), np.minimum(floors[1] + up, 63)
            np.add.at(mass, place, workload.weight * share)
    return {(int(i), int(j)): float(mass[i, j]) for i, j in zip(*np.nonzero(mass), strict=True)}


QUANTILES = (0.5, 0.9, 0.95, 0.99)
"""Shown of every length."""

_CONCENTRATED = 0.895  # FleetOpt section 2.4 says F(B) >= 0.90, and counts its Azure trace with 0.898 among them
_DISPERSED = 100.0  # "spreads across two or more decades"


def archetype(workload: Workload, boundary: float) -> str:
    """Archetype of the FleetOpt paper at a boundary: I concentrated below, II dispersed, III concentrated above.

    Parameters
    ----------
    workload
        The requests.
    boundary
        Total [tokens].

    Returns
    -------
    str
        ``"I"``, ``"I/II"`` (most below the boundary, yet over two decades of lengths: the paper's Azure and LMSYS), ``"II"``
        or ``"III"`` (most above the boundary).

    References
    ----------
    FleetOpt, section 2.4 and Table 2.

    >>> archetype(Workload.from_file("azure"), 4096)
    'I/II'
    """
    below = workload.cdf(boundary)
    if below < 0.5:
        return "III"
    if below < _CONCENTRATED:
        return "II"
    low = max(workload.quantile(0.01), 1.0)
    return "I/II" if workload.quantile(0.99) / low >= _DISPERSED else "I"


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """Facts of a workload for people and machines.

    Parameters
    ----------
    workload
        The workload.
    boundary
        Total at which the split is described [tokens].
    gamma
        Compression band above it [1].
    chunk
        Prefill chunk of the iterations [tokens].
    """

    workload: Workload
    boundary: float = 4096.0
    gamma: float = 1.5
    chunk: int = 512

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        w = self.workload
        mean, scv = w.iterations(self.chunk)
        band = w.band_fractions(self.boundary, self.gamma)
        return {
            **w.to_dict(),
            "lengths": {
                of: {
                    "mean": w.moment(of),
                    "std": w.std(of),
                    "min": w.quantile(0.0, of),
                    **{f"p{100 * q:g}": w.quantile(q, of) for q in QUANTILES},
                    "max": w.quantile(1.0, of),
                }
                for of in ("input", "output", "total")
            },
            "input_output_correlation": w.correlation,
            "iterations": {"chunk_tokens": self.chunk, "mean": mean, "scv": scv},
            "split": {
                "boundary_tokens": self.boundary,
                "gamma": self.gamma,
                "share_below": w.cdf(self.boundary),
                "band_share": sum(band.values()),
                "band_share_by_category": band,
                "archetype": archetype(w, self.boundary),
            },
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """Input, output and total, one row each."""
        return [{"length": of, **facts} for of, facts in self.to_dict()["lengths"].items()]
