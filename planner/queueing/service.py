"""Laws of a service time, of unit mean: what the approximations that use more than two moments are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
        The same law as one or two exponential phases, where it is one: exact results exist then.

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
