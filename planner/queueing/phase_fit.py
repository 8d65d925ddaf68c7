r"""A service law as a mixture of a few Erlang laws, so that its queue can be solved exactly.

What waits before a server see of a service law is its residual law :math:`F_e` (before one server nothing else). So the
mixture keeps of it what can be kept exactly, the density at zero (the mean of the service time) and the mean (its second
moment), of four classes the second moment too, and is the nearest otherwise.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.queueing.service import Phases, ServiceLaw

type_array = npt.NDArray[np.float64]

# Points at which the two residual laws are compared, evenly in the logarithm, and the survival probabilities from and to.
_POINTS, _FROM, _TO = 40, 0.95, 1e-3
# Means tried of each class, by the number of classes, and how far around the points they reach (factor).
_TRIED, _AROUND = {2: 80, 3: 18}, 2.7
# Each further look is this much finer, with so many means on either side of the best.
_FINER, _LOOKS, _BESIDE = {2: 10.0, 3: 3.0}, {2: 3, 3: 4}, {2: 12, 3: 3}
# Neighbouring classes are at least this factor apart: nearer ones are one class.
_APART = 1.15
# A mixture's tail of less than this share of the law's is lighter; looked at so many places, down to that probability.
_LIGHTER, _TAIL_POINTS, _DEEPEST = 0.65, 60, 1e-8
# A fit this near is not improved on.
_NEAR = 0.003


class Fit(NamedTuple):
    """Classes of an Erlang law each, and how far their residual law is off.

    Parameters
    ----------
    classes
        Probability [1], mean [mean service times] and stages of each.
    off
        Root mean square of the distance over the points, of P(S_e > x) and of its integral over the mean [1].
    reach
        P(S_e > x) down to which the mixture's tail is nowhere lighter than `_LIGHTER` times the law's [1].
    """

    classes: tuple[tuple[float, float, int], ...]
    off: float
    reach: float

    @property
    def phases(self) -> Phases:
        """The classes as one row of phases."""
        return Phases.erlangs(self.classes)


class _Target(NamedTuple):
    """The residual law: points x, its mean, and P(S_e > x) beside E[(S_e - x)^+] over the mean (shape (2 points,))."""

    points: type_array
    mean: float
    curves: type_array


def _residual(law: ServiceLaw, points: type_array) -> _Target:
    mean = 0.5 * (1.0 + law.scv)
    return _Target(points, mean, np.concatenate((law.residual_survival(points), law.residual_excess(points) / mean)))


@lru_cache(maxsize=8)
def _targets(law: ServiceLaw) -> tuple[_Target, _Target]:
    """The residual law where mixtures are compared with it, and in its tail."""
    wide = np.geomspace(1e-3, 1e4 * max(1.0, law.third), 800)
    places = np.searchsorted(-law.residual_survival(wide), [-_FROM, -_TO, -_DEEPEST])
    at = wide[np.minimum(places, wide.size - 1)].tolist()
    return _residual(law, np.geomspace(at[0], at[1], _POINTS)), _residual(law, np.geomspace(at[0], at[2], _TAIL_POINTS))


def _curves(means: type_array, stages: int, target: _Target) -> type_array:
    """What `_Target.curves` is, of Erlang laws of these means: shape (means, 2 points)."""
    x = target.points
    z = stages * x / means[:, None]
    with np.errstate(under="ignore"):
        term = np.exp(-z)
    # P(Erlang of j stages > x), j = 1 .. n + 1
    tails = [term]
    for j in range(1, stages + 1):
        term = term * z / j
        tails.append(tails[-1] + term)
    # the residual of an Erlang law is Erlang of 1 .. n stages, each as likely
    survival = sum(tails[:stages]) / stages
    excess = sum(j * means[:, None] / stages * tails[j] - x * tails[j - 1] for j in range(1, stages + 1)) / stages
    return np.concatenate((survival, excess / target.mean), axis=1)


def _pairs(stages: tuple[int, ...], means: type_array, target: _Target) -> tuple[type_array, type_array]:
    """Means of two classes, the second found from the first, and their shares of the residual law: shapes (cases, 2)."""
    s1, s2 = (0.5 * (1.0 + 1.0 / n) for n in stages)
    u = 1.0 / means
    square, linear, constant = target.mean - means * s1, means * s1 - target.mean * u, (u - 1.0) * s2
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(linear * linear - 4.0 * square * constant)
        v = np.concatenate([(-linear + sign * root) / (2.0 * square) for sign in (1.0, -1.0)])
        first = np.concatenate((means, means))
        of_first = (1.0 - v) / (1.0 / first - v)
    found = np.isfinite(of_first) & (v > 0.0)
    return np.stack((first, 1.0 / np.where(found, v, 1.0)), 1)[found], np.stack((of_first, 1.0 - of_first), 1)[found]


def _triples(stages: tuple[int, ...], logs: list[type_array], target: _Target) -> tuple[type_array, type_array]:
    """Ascending means of three classes, and the shares of the residual law that keep its density at 0 and its mean."""
    means = np.exp(np.stack([a.ravel() for a in np.meshgrid(*logs, indexing="ij")], 1))
    means = means[np.all(means[:, :-1] * _APART < means[:, 1:], axis=1)]
    n = np.array(stages, dtype=np.float64)
    # shares y of sum 1, sum of y / m = 1, and sum of y m s = the mean: their differences from class 1, by Cramer
    inverse, mean = 1.0 / means, means * 0.5 * (1.0 + 1.0 / n) / target.mean
    d2, d3 = inverse[:, 1] - inverse[:, 0], inverse[:, 2] - inverse[:, 0]
    e2, e3 = mean[:, 1] - mean[:, 0], mean[:, 2] - mean[:, 0]
    left, right = 1.0 - inverse[:, 0], 1.0 - mean[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = d2 * e3 - d3 * e2
        y2, y3 = (left * e3 - d3 * right) / whole, (d2 * right - left * e2) / whole
    shares = np.stack((1.0 - y2 - y3, y2, y3), 1)
    found = np.isfinite(shares).all(axis=1)
    return means[found], shares[found]


def _nearest(stages: tuple[int, ...], law: ServiceLaw) -> Fit | None:
    """The nearest mixture of two or three classes of so many stages; None where none keeps the moments."""
    target, tail = _targets(law)
    k = len(stages)
    low, high = np.log(target.points[0] / _AROUND), np.log(target.points[-1] * _AROUND)
    logs = [np.linspace(low, high, _TRIED[k])] * k
    step = (high - low) / (_TRIED[k] - 1)
    best: tuple[float, type_array, type_array] | None = None
    for _ in range(_LOOKS[k]):
        means, shares = _pairs(stages, np.exp(logs[0]), target) if k == 2 else _triples(stages, logs, target)
        held = np.all(shares >= -1e-12, axis=1)
        means, shares = means[held], shares[held]
        if not len(means):
            break
        curves = np.zeros((len(means), 2 * _POINTS))
        for j in range(k):
            each, place = np.unique(means[:, j], return_inverse=True)
            curves += shares[:, j, None] * _curves(each, stages[j], target)[place]
        off = np.mean((curves - target.curves) ** 2, axis=1)
        at = int(off.argmin())
        if best is None or off[at] < best[0]:
            best = float(off[at]), means[at], shares[at]
        step /= _FINER[k]
        logs = [np.log(best[1][j]) + step * np.arange(-_BESIDE[k], _BESIDE[k] + 1) for j in range(k)]
    if best is None:
        return None
    weight = best[2] / best[1]
    classes = [(float(w), float(m), n) for w, m, n in zip(weight, best[1], stages, strict=True) if w > 0.0]
    # the excess, because a law's survival has steps where its lengths are points
    own = sum(share * _curves(mean[None], n, tail)[0] for share, mean, n in zip(best[2], best[1], stages, strict=True))
    lighter = np.flatnonzero(own[_TAIL_POINTS:] < _LIGHTER * tail.curves[_TAIL_POINTS:])
    reach = float(tail.curves[lighter[0]]) if lighter.size else 0.0
    return Fit(tuple(classes), float(np.sqrt(2.0 * best[0])), reach)


def _better(fits: list[Fit | None]) -> Fit | None:
    """The nearest of those that there are."""
    return min((f for f in fits if f is not None), key=lambda f: f.off, default=None)


@lru_cache(maxsize=256)
def _three_classes(law: ServiceLaw, phases: int) -> Fit | None:
    """The nearest of three classes: one stage more than the nearest with one phase less, or all there are."""
    fewer = _three_classes(law, phases - 1) if phases > 3 else None
    if fewer is not None and len(fewer.classes) == 3:
        old = [n for _, _, n in fewer.classes]
        tried = [tuple(n + (j == k) for j, n in enumerate(old)) for k in range(3)]
    else:
        tried = [(a, b, phases - a - b) for a in range(1, phases - 1) for b in range(1, phases - a)]
    return _better([_nearest(stages, law) for stages in tried])


@lru_cache(maxsize=256)
def fitted(law: ServiceLaw, most_phases: int) -> Fit | None:
    """The nearest mixture of two or three Erlang laws with the law's first two moments; None where there is none.

    Parameters
    ----------
    law
        The service law, of unit mean, with a finite third moment.
    most_phases
        Stages of all classes together; >= 2.

    Returns
    -------
    Fit or None
        Kept per law: a search asks for the same law with many numbers of servers.
    """
    fewer = fitted(law, most_phases - 1) if most_phases > 2 else None
    if fewer is not None and fewer.off < _NEAR:
        return fewer
    pairs = [_nearest((n, most_phases - n), law) for n in range(1, most_phases)]
    three = _three_classes(law, most_phases) if most_phases > 2 else None
    return _better([fewer, three, *pairs])
