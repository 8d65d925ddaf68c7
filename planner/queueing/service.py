"""Laws of a service time, of unit mean: what the approximations that use more than two moments are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["ServiceLaw", "TwoPhases", "two_phases"]

type_array = npt.NDArray[np.float64]
type_partial_moments = Callable[[type_array], tuple[type_array, type_array, type_array]]


@dataclass(frozen=True, slots=True)
class TwoPhases:
    """Service as one or two exponential phases: start in phase 1 with probability `first`, else in phase 2.

    Parameters
    ----------
    first
        Probability of starting in phase 1 [1].
    rate_1, rate_2
        Rates of the phases [1/mean service time].
    onward
        Probability that phase 1 is followed by phase 2 instead of departure [1].
    """

    first: float
    rate_1: float
    rate_2: float
    onward: float = 0.0


def two_phases(scv: float, third: float) -> TwoPhases | None:
    """The H2 law of unit mean with a given scv [1] and E[S^3]/E[S]^3 [1]; None where no H2 law has them.

    The means x > y of the phases are the roots of z^2 - (x + y) z + x y, found from u2 = E[S^2]/2 and u3 = E[S^3]/6.
    An H2 law needs scv > 1 and E[S^3] > 3/2 (1 + scv)^2.
    """
    u2, u3 = 0.5 * (1.0 + scv), third / 6.0
    if not (1.0 < u2 < np.inf and u2 * u2 < u3 < np.inf):
        return None
    total = (u3 - u2) / (u2 - 1.0)
    product = total - u2
    x = 0.5 * (total + float(np.sqrt(max(total * total - 4.0 * product, 0.0))))
    y = product / x
    p = (1.0 - y) / (x - y)
    return TwoPhases(p, 1.0 / x, 1.0 / y) if 0.0 < p < 1.0 and y > 0.0 else None


@dataclass(frozen=True, slots=True, eq=False)
class ServiceLaw:
    r"""The distribution of a service time S divided by its mean.

    Everything is derived from the partial moments :math:`E[S^j; S > x],\ j = 0, 1, 2`. Build one with a class method.

    Parameters
    ----------
    name
        For people.
    mean
        Mean of the law before it was scaled to 1 [s, or the unit of what it was built from].
    scv
        Squared coefficient of variation :math:`C_s^2` [1].
    third
        :math:`E[S^3]/E[S]^3` [1].
    partial_moments
        x [mean service times] -> (P(S > x), E[S; S > x], E[S^2; S > x]), elementwise.
    phases
        The same law as exponential phases, where it is one: exact results exist then.

    Examples
    --------
    >>> law = ServiceLaw.from_samples([1.0, 3.0], [3.0, 1.0])
    >>> law.mean, round(law.scv, 6), round(law.third, 6)
    (1.5, 0.333333, 2.222222)
    >>> law.residual_survival([0.0, 1.0, 2.0]).round(4)
    array([1.  , 0.25, 0.  ])
    """

    name: str
    mean: float
    scv: float
    third: float
    partial_moments: type_partial_moments
    phases: TwoPhases | None = None

    def survival(self, x: npt.ArrayLike) -> type_array:
        """P(S/E[S] > x) for x in mean service times [1]."""
        return self.partial_moments(np.asarray(x, dtype=np.float64))[0]

    def residual_survival(self, x: npt.ArrayLike) -> type_array:
        """P(residual service time of a busy server > x), the equilibrium law, for x in mean service times [1]."""
        at = np.asarray(x, dtype=np.float64)
        m0, m1, _ = self.partial_moments(at)
        return np.clip(m1 - at * m0, 0.0, 1.0)

    def residual_excess(self, x: npt.ArrayLike) -> type_array:
        """Integral of `residual_survival` from x to infinity, E[(S - x)^+^2]/2 [mean service times]."""
        at = np.asarray(x, dtype=np.float64)
        m0, m1, m2 = self.partial_moments(at)
        return np.maximum(0.5 * (m2 - 2.0 * at * m1 + at * at * m0), 0.0)

    @classmethod
    def exponential(cls) -> ServiceLaw:
        """M: the exponential law (scv 1)."""
        return cls.hyperexponential([1.0], [1.0])

    @classmethod
    def deterministic(cls) -> ServiceLaw:
        """D: a constant (scv 0)."""
        law = cls.from_samples([1.0])
        return cls("deterministic", 1.0, 0.0, 1.0, law.partial_moments)

    @classmethod
    def erlang(cls, phases: int) -> ServiceLaw:
        """E_k: the sum of k exponentials (scv 1/k)."""
        if phases < 1 or phases != int(phases):
            raise ValueError(f"phases must be a whole number >= 1, got {phases!r}")
        law = cls.gamma(1.0 / phases)
        two = {1: TwoPhases(1.0, 1.0, 1.0), 2: TwoPhases(1.0, 2.0, 2.0, 1.0)}.get(int(phases))
        return cls(f"erlang-{int(phases)}", 1.0, law.scv, law.third, law.partial_moments, two)

    @classmethod
    def gamma(cls, scv: float) -> ServiceLaw:
        """Gamma law with the given squared coefficient of variation [1]; > 0."""
        if not 0.0 < scv < np.inf:
            raise ValueError(f"scv must be finite and > 0, got {scv!r}")
        k = 1.0 / scv

        def partial(x: type_array) -> tuple[type_array, type_array, type_array]:
            from scipy.special import gammaincc

            z = k * np.maximum(x, 0.0)
            upper: list[type_array] = [np.asarray(gammaincc(k + j, z), dtype=np.float64) for j in range(3)]
            return upper[0], upper[1], (1.0 + scv) * upper[2]

        return cls("gamma", 1.0, scv, (1.0 + scv) * (1.0 + 2.0 * scv), partial)

    @classmethod
    def lognormal(cls, scv: float) -> ServiceLaw:
        """Lognormal law with the given squared coefficient of variation [1]; > 0."""
        if not 0.0 < scv < np.inf:
            raise ValueError(f"scv must be finite and > 0, got {scv!r}")
        sigma = float(np.sqrt(np.log1p(scv)))

        def partial(x: type_array) -> tuple[type_array, type_array, type_array]:
            from scipy.special import ndtr

            with np.errstate(divide="ignore"):
                z = np.log(np.maximum(x, 0.0)) / sigma + 0.5 * sigma
            return ndtr(-z), ndtr(sigma - z), (1.0 + scv) * ndtr(2.0 * sigma - z)

        return cls("lognormal", 1.0, scv, (1.0 + scv) ** 3, partial)

    @classmethod
    def pareto(cls, alpha: float, ratio: float) -> ServiceLaw:
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

        return cls("pareto", 1.0, second / mean**2 - 1.0, third / mean**3, partial)

    @classmethod
    def hyperexponential(cls, weights: npt.ArrayLike, means: npt.ArrayLike) -> ServiceLaw:
        """H_k: a mixture of exponentials.

        Parameters
        ----------
        weights : array, shape (k,)
            Probability of each phase [1]; scaled to sum to 1.
        means : array, shape (k,)
            Mean of each phase [s]; > 0.
        """
        p, m = np.broadcast_arrays(np.atleast_1d(np.asarray(weights, float)), np.atleast_1d(np.asarray(means, float)))
        if not (np.all(p >= 0.0) and np.isfinite(p).all() and p.sum() > 0.0):
            raise ValueError(f"weights must be >= 0 with a positive sum, got {weights!r}")
        if not np.all((m > 0.0) & np.isfinite(m)):
            raise ValueError(f"means must be finite and > 0, got {means!r}")
        p = p / p.sum()
        mean = float(p @ m)
        m = m / mean

        def partial(x: type_array) -> tuple[type_array, type_array, type_array]:
            at = np.asarray(x)[..., None]
            with np.errstate(under="ignore"):
                tail = p * np.exp(-np.maximum(at, 0.0) / m)
            return tail.sum(-1), (tail * (at + m)).sum(-1), (tail * (at * at + 2.0 * m * at + 2.0 * m * m)).sum(-1)

        two = None
        if p.size == 1:
            two = TwoPhases(1.0, 1.0, 1.0)
        elif p.size == 2:
            two = TwoPhases(float(p[0]), float(1.0 / m[0]), float(1.0 / m[1]))
        name = "exponential" if p.size == 1 else "hyperexponential"
        scv, third = float(2.0 * p @ m**2 - 1.0), float(6.0 * p @ m**3)
        return cls(name, mean, scv, third, partial, two)

    @classmethod
    def from_samples(cls, values: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> ServiceLaw:
        """A discrete law: measured service times, or the rows of a workload with their weights.

        Parameters
        ----------
        values : array, shape (n,)
            Service times [s]; >= 0, not all 0.
        weights : array, shape (n,), optional
            Weight of each value [1]; >= 0, scaled to sum to 1. Equal when absent.
        """
        v = np.atleast_1d(np.asarray(values, dtype=np.float64))
        w = np.ones_like(v) if weights is None else np.atleast_1d(np.asarray(weights, dtype=np.float64))
        if v.ndim != 1 or v.size == 0 or not np.all((v >= 0.0) & np.isfinite(v)):
            raise ValueError("values must be a non-empty row of finite numbers >= 0")
        if w.shape != v.shape or not np.all((w >= 0.0) & np.isfinite(w)) or not w.sum() > 0.0:
            raise ValueError("weights must be finite, >= 0, of the shape of values, with a positive sum")
        order = np.argsort(v, kind="stable")
        v, w = v[order], w[order] / w.sum()
        mean = float(w @ v)
        if not mean > 0.0:
            raise ValueError("values must not all be 0")
        v = v / mean
        upper = [np.append(np.cumsum((w * v**j)[::-1])[::-1], 0.0) for j in range(3)]

        def partial(x: type_array) -> tuple[type_array, type_array, type_array]:
            i = np.searchsorted(v, x, side="right")
            return upper[0][i], upper[1][i], upper[2][i]

        return cls("samples", mean, max(float(w @ (v - 1.0) ** 2), 0.0), float(w @ v**3), partial)

    @classmethod
    def from_survival(
        cls, survival: Callable[[type_array], npt.ArrayLike], mean: float, breakpoints: Sequence[float] = ()
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

        return cls("survival", float(mean), 2.0 * float(twice[0]) - 1.0, third, partial)

    @classmethod
    def from_moments(cls, scv: float, third: float) -> ServiceLaw:
        """The H2 law with three given moments; what to take when those are all that is known and scv > 1.

        Parameters
        ----------
        scv : float
            Squared coefficient of variation [1]; > 1.
        third : float
            E[S^3]/E[S]^3 [1]; > 3/2 (1 + scv)^2.
        """
        phases = two_phases(scv, third)
        if phases is None:
            raise ValueError(f"third must exceed 1.5 (1 + scv)^2 with scv > 1, got scv {scv!r} and third {third!r}")
        return cls.hyperexponential([1.0 - phases.first, phases.first], [1.0 / phases.rate_2, 1.0 / phases.rate_1])

    @classmethod
    def from_scv(cls, scv: float) -> ServiceLaw:
        """The law assumed when only two moments are known: D at 0, gamma below 1, M at 1, balanced-mean H2 above.

        Parameters
        ----------
        scv : float
            Squared coefficient of variation [1]; >= 0.
        """
        if not 0.0 <= scv < np.inf:
            raise ValueError(f"service_scv must be finite and >= 0, got {scv!r}")
        if scv < 1e-9:
            return cls.deterministic()
        if scv < 1.0:
            return cls.gamma(scv)
        if scv == 1.0:
            return cls.exponential()
        p = 0.5 * (1.0 + np.sqrt((scv - 1.0) / (scv + 1.0)))
        return cls.hyperexponential([p, 1.0 - p], [0.5 / p, 0.5 / (1.0 - p)])
