"""For tests and benchmarks of M/G/c: more service laws, and the approximations one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from planner.queueing.mgc_law import over_queues, solve_conservative, solve_exact, solve_tijms

from planner.queueing.erlang import as_result
from planner.queueing.mgc import (
    mean_wait_cosmetatos,
    mean_wait_fleetopt,
    mean_wait_kimura,
    wait_quantile,
    wait_quantile_cosmetatos,
    wait_quantile_fleetopt,
    wait_quantile_kimura,
)
from planner.queueing.mgc_moments import leading_arguments
from planner.queueing.service import ServiceLaw, TwoPhases

type_array = npt.NDArray[np.float64]


def erlang(phases: int) -> ServiceLaw:
    """E_k: the sum of k exponentials (scv 1/k)."""
    if phases < 1 or phases != int(phases):
        raise ValueError(f"phases must be a whole number >= 1, got {phases!r}")
    law = ServiceLaw.gamma(1.0 / phases)
    two = {1: TwoPhases(1.0, 1.0, 1.0), 2: TwoPhases(1.0, 2.0, 2.0, 1.0)}.get(int(phases))
    return ServiceLaw(f"erlang-{int(phases)}", 1.0, law.scv, law.third, law.partial_moments, two)


def lognormal(scv: float) -> ServiceLaw:
    """Lognormal law with the given squared coefficient of variation [1]; > 0."""
    if not 0.0 < scv < np.inf:
        raise ValueError(f"scv must be finite and > 0, got {scv!r}")
    sigma = float(np.sqrt(np.log1p(scv)))

    def partial(x: type_array) -> tuple[type_array, type_array, type_array]:
        from scipy.special import ndtr

        with np.errstate(divide="ignore"):
            z = np.log(np.maximum(x, 0.0)) / sigma + 0.5 * sigma
        return ndtr(-z), ndtr(sigma - z), (1.0 + scv) * ndtr(2.0 * sigma - z)

    return ServiceLaw("lognormal", 1.0, scv, (1.0 + scv) ** 3, partial)


def pareto(alpha: float, ratio: float) -> ServiceLaw:
    """Pareto law truncated at `ratio` times its smallest value, density ~ x^-(alpha + 1) [1]; alpha > 0, ratio > 1."""
    if not 0.0 < alpha < np.inf:
        raise ValueError(f"alpha must be finite and > 0, got {alpha!r}")
    if not 1.0 < ratio < np.inf:
        raise ValueError(f"ratio must be finite and > 1, got {ratio!r}")
    norm = alpha / (1.0 - ratio**-alpha)

    def upper(low: type_array, j: int) -> type_array:
        """Integral of x^j over the density from low to ratio, smallest value 1."""
        power = j - alpha
        if abs(power) < 1e-9:
            logarithmic: type_array = norm * np.log(ratio / low)
            return logarithmic
        value: type_array = norm * (ratio**power - low**power) / power
        return value

    mean, second, third = (float(upper(np.ones(1), j)[0]) for j in (1, 2, 3))

    def partial(x: type_array) -> tuple[type_array, type_array, type_array]:
        low = np.clip(x * mean, 1.0, ratio)
        return upper(low, 0), upper(low, 1) / mean, upper(low, 2) / mean**2

    return ServiceLaw("pareto", 1.0, second / mean**2 - 1.0, third / mean**3, partial)


def from_survival(
    survival: Callable[[type_array], npt.ArrayLike], mean: float, breakpoints: Sequence[float] = ()
) -> ServiceLaw:
    """A law given by its survival function P(S > x), tabulated by quadrature over 14 decades around the mean.

    Parameters
    ----------
    survival : callable
        x [s] -> P(S > x) [1], elementwise, non-increasing from at most 1 to 0.
    mean : float
        Mean of the law [s]; > 0. Checked against the integral of `survival`.
    breakpoints : sequence of float
        Places where `survival` jumps [s].
    """
    if not 0.0 < mean < np.inf:
        raise ValueError(f"mean must be finite and > 0, got {mean!r}")
    jumps = np.asarray(breakpoints, dtype=np.float64) / mean
    edges = np.unique(np.concatenate([[0.0], np.geomspace(1e-6, 1e8, 2241), jumps[jumps > 0.0]]))
    nodes, node_weights = np.polynomial.legendre.leggauss(8)
    half = 0.5 * np.diff(edges)
    x = edges[:-1, None] + half[:, None] * (nodes + 1.0)
    s = np.clip(np.asarray(survival(x * mean), dtype=np.float64), 0.0, 1.0)
    # E[(S - x)^+ ^j / j!] at the edges: the repeated integrals of the survival function, from the right
    once = np.append(np.cumsum((half * (s @ node_weights))[::-1])[::-1], 0.0)
    within = half[:, None] * (nodes + 1.0) * s
    first = (half * (within @ node_weights)) + np.diff(edges) * once[1:]
    twice = np.append(np.cumsum(first[::-1])[::-1], 0.0)
    if abs(once[0] - 1.0) > 1e-3:
        raise ValueError(f"mean must be the integral of survival ({once[0] * mean:.6g}), got {mean!r}")
    # E[S^3] = 3 int x^2 P(S > x) dx
    third = 3.0 * float(np.sum(half * ((x * x * s) @ node_weights)))
    edge_survival = np.clip(np.asarray(survival(edges * mean), dtype=np.float64), 0.0, 1.0)

    def partial(at: type_array) -> tuple[type_array, type_array, type_array]:
        # cubic between edges for the integrals: value and slope are known at both ends
        i = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, edges.size - 2)
        width = edges[i + 1] - edges[i]
        t = np.clip((at - edges[i]) / width, 0.0, 1.0)
        m0 = np.clip(np.asarray(survival(at * mean), dtype=np.float64), 0.0, 1.0)

        def hermite(value: type_array, slope: type_array) -> type_array:
            y0, y1, d0, d1 = value[i], value[i + 1], slope[i] * width, slope[i + 1] * width
            out: type_array = (
                y0 * (1 + 2 * t) * (1 - t) ** 2
                + d0 * t * (1 - t) ** 2
                + y1 * t * t * (3 - 2 * t)
                - d1 * t * t * (1 - t)
            )
            return out

        e1 = hermite(once, -edge_survival)
        e2 = hermite(twice, -once)
        m1 = e1 + at * m0
        return m0, m1, 2.0 * e2 + 2.0 * at * m1 - at * at * m0

    return ServiceLaw("survival", float(mean), 2.0 * float(twice[0]) - 1.0, third, partial)


def _mean(solve: Callable[..., Any]) -> Callable[..., Any]:
    def mean(rate: Any, service: Any, servers: Any, scv: Any = 1.0, *, law: ServiceLaw | None = None) -> Any:
        lam, s, c, v, _ = leading_arguments(rate, service, servers, scv, law=law)
        return as_result(over_queues(solve, lam, s, c, v, np.zeros(lam.shape), law)[0])

    return mean


def _quantile(solve: Callable[..., Any]) -> Callable[..., Any]:
    def quantile(
        rate: Any, service: Any, servers: Any, scv: Any = 1.0, quantile: Any = 0.99, *, law: ServiceLaw | None = None
    ) -> Any:
        lam, s, c, v, q = leading_arguments(rate, service, servers, scv, quantile, law=law)
        return as_result(over_queues(solve, lam, s, c, v, q, law)[1])

    return quantile


QUANTILES: dict[str, Callable[..., Any]] = {
    "conservative": wait_quantile,
    "tijms": _quantile(solve_tijms),
    "cosmetatos": wait_quantile_cosmetatos,
    "kimura": wait_quantile_kimura,
    "fleetopt": wait_quantile_fleetopt,
}
MEANS: dict[str, Callable[..., Any]] = {
    "conservative": _mean(solve_conservative),
    "tijms": _mean(solve_tijms),
    "cosmetatos": mean_wait_cosmetatos,
    "kimura": mean_wait_kimura,
    "fleetopt": mean_wait_fleetopt,
}
exact_quantile = _quantile(solve_exact)


def simulated_waits(
    servers: int,
    load: float,
    weights: Sequence[float],
    means: Sequence[float],
    stages: int,
    *,
    streams: int = 512,
    steps: int = 4000,
    seed: int = 1,
) -> np.ndarray:
    """Waits of M/G/c in mean service times, shape (streams, steps): Kiefer and Wolfowitz's recursion on streams side by side.

    A request is of class k with probability ``weights[k]`` and takes ``means[k]``, as a constant (``stages`` 0) or an Erlang
    law of ``stages``. Each stream starts empty; its first fifth is left out.
    """
    rng = np.random.default_rng(seed)
    p, m = np.asarray(weights, dtype=float), np.asarray(means, dtype=float)
    p = p / p.sum()
    m = m / float(p @ m)
    busy = np.zeros((streams, servers))
    waits = np.empty((streams, steps))
    warm = steps // 4
    for step in range(-warm, steps):
        if step >= 0:
            waits[:, step] = busy[:, 0]
        service = m[rng.choice(p.size, streams, p=p)]
        if stages:
            service = service * rng.gamma(stages, 1.0 / stages, streams)
        busy[:, 0] += service
        busy -= rng.exponential(1.0 / (load * servers), streams)[:, None]
        np.maximum(busy, 0.0, out=busy)
        busy.sort(axis=1)
    return waits


def of_classes(weights: Sequence[float], means: Sequence[float], stages: int) -> ServiceLaw:
    """The law that :func:`simulated_waits` draws from."""
    p, m = np.asarray(weights, dtype=float), np.asarray(means, dtype=float)
    if stages == 0:
        return ServiceLaw.from_samples(m, p)
    if stages == 1:
        return ServiceLaw.hyperexponential(p, m)
    from scipy.special import gammaincc

    p = p / p.sum()
    m = m / float(p @ m)
    k = stages

    def partial(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        at = k * np.maximum(np.asarray(x)[..., None], 0.0) / m
        return (
            gammaincc(k, at) @ p,
            (gammaincc(k + 1, at) * m) @ p,
            (gammaincc(k + 2, at) * m * m * (k + 1) / k) @ p,
        )

    third = float(p @ m**3) * (k + 1) * (k + 2) / k**2
    return ServiceLaw("classes", 1.0, float(p @ m**2) * (k + 1) / k - 1.0, third, partial)
