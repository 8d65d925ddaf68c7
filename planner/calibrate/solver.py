"""Robust nonlinear least squares in logarithms, many problems at once, and what every calibration asks of it.

The problems of one calibration differ only in the weights of their points (resampling, leaving out) and in where they start, so
one batched Levenberg-Marquardt in numpy solves them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from planner.calibrate.closed_loop import STEP, FloatArray

LogModel = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""From log-parameters, shape (R, K), to logarithms of what they predict, shape (R, M), and their derivatives, (R, M, K)."""

POINT_SD = 0.02
"""What one measurement is off by, two runs of a machine differing by 2 to 4%; up to it a residual counts quadratically [1]."""

SLIGHT = 0.05
"""A difference so small is no finding: two runs of a server that does nothing else, clocks and data sheets have it [1]."""

MISFIT = 0.05
"""What the forms themselves miss machines by, where too few points show it [1]: bands of eleven measured configurations of kernels
then hold 92, 86 and 89% of all other batches from 24, 12 and 6 points, and from two or three points of 27 measured servers, four
times drawn, the 90% intervals hold 86% of their other loads and are 2.45 median errors wide to each side."""

TAILS = (5.0, 95.0)
"""Ends of the intervals that are told, in percent."""
LEVEL_SD = NormalDist().inv_cdf(TAILS[1] / 100.0)
"""Half-width of such an interval in standard deviations [1]."""

CLEARLY = 9.0
"""What a fit has beyond the usual is believed where it lowers the robust loss by so many times the loss per point, three standard
deviations: misfit elsewhere easily looks like it."""

STARTS, STEPS = 6, 40
"""Places a fit starts from, the prior's mean and others around it, and steps from each at most."""

RESAMPLES = 100
"""Fits behind the intervals."""


def ends(values: FloatArray) -> tuple[float, float]:
    """Ends of the interval that samples span."""
    low, high = np.percentile(values, TAILS)
    return float(low), float(high)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    r"""M measurements of P points, what predicts them, and the prior of its K parameters.

    Minimised is sum_i weight_i rho((target_i - model_i)/scale) + sum_k ((theta_k - mean_k)/sd_k)^2 with soft-L1
    rho(z) = 2 (sqrt(1 + z^2) - 1): quadratic within `scale`, linear beyond.

    Parameters
    ----------
    model
        What is fitted.
    target
        Measured [log], shape (M,).
    of
        The point that each measurement is of, shape (M,).
    counted
        Weights of the points [1], shape (P,).
    mean, sd
        Of the prior, shape (K,).
    scale
        Relative error up to which a residual counts quadratically [1].
    """

    model: LogModel
    target: FloatArray
    of: NDArray[np.int_]
    counted: FloatArray
    mean: FloatArray
    sd: FloatArray
    scale: float = POINT_SD

    def drawn(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Departures from the prior's mean as likely as it has them, shape (count, K)."""
        return np.asarray(self.sd * rng.standard_normal((count, self.sd.size)))

    def starts(self) -> FloatArray:
        """The prior's mean, and places around it, shape (STARTS, K)."""
        around = 0.5 * self.drawn(STARTS, np.random.default_rng(0))
        around[0] = 0.0
        return self.mean + around

    def _judged(
        self, theta: FloatArray, weights: FloatArray, mean: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Residuals, their derivatives, and the loss."""
        predicted, slope = self.model(theta)
        gap, away = (predicted - self.target) / self.scale, (theta - mean) / self.sd
        data = 2.0 * (np.sqrt(1.0 + gap**2) - 1.0)
        return gap, slope / self.scale, (weights * data).sum(axis=1) + (away**2).sum(axis=1)

    def solve(
        self, starts: FloatArray, weights: FloatArray | None = None, mean: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Best parameters for each of R weightings of the points, and their loss.

        Parameters
        ----------
        starts
            Log-parameters that every weighting is started from, shape (S, K).
        weights
            Beside `counted` [1], shape (R, P); ``None`` = one weighting, all alike.
        mean
            Of the prior, where each weighting has its own, shape (R, K).

        Returns
        -------
        theta
            Log-parameters, shape (R, K).
        cost
            Robust loss including the prior's [1], shape (R,).
        """
        weights = self.counted * (np.ones((1, self.counted.size)) if weights is None else weights)
        problems, count = len(weights), len(starts)
        current = np.tile(starts, (problems, 1))
        weights = np.repeat(weights[:, self.of], count, axis=0)
        mean = np.repeat(
            np.broadcast_to(self.mean if mean is None else mean, (problems, self.mean.size)), count, axis=0
        )
        damping = np.full(len(current), 1e-2)
        gap, slope, cost = self._judged(current, weights, mean)
        diagonal, going = np.arange(self.mean.size), np.arange(len(current))
        for _ in range(STEPS):
            if not going.size:
                break
            bent = slope[going] * (weights[going] / np.sqrt(1.0 + gap[going] ** 2))[..., None]
            hessian = np.swapaxes(bent, 1, 2) @ slope[going] + np.diag(self.sd**-2.0)
            hessian[:, diagonal, diagonal] *= 1.0 + damping[going, None]
            gradient = (np.swapaxes(bent, 1, 2) @ gap[going, :, None])[..., 0]
            gradient += (current[going] - mean[going]) / self.sd**2
            step = np.linalg.solve(hessian, -gradient[..., None])[..., 0]
            trial = current[going] + np.clip(step, -2.0, 2.0)
            judged = self._judged(trial, weights[going], mean[going])
            better = judged[2] <= cost[going]
            gain, took = (cost[going] - judged[2])[better], going[better]
            current[took], gap[took], slope[took], cost[took] = (each[better] for each in (trial, *judged))
            damping[going] = np.where(better, np.maximum(damping[going] / 10.0, STEP), damping[going] * 10.0)
            ended = damping[going] > 1.0 / STEP
            ended[better] = gain <= STEP * (1.0 + cost[took])
            going = going[~ended]
        best = np.arange(problems), cost.reshape(problems, count).argmin(axis=1)
        return current.reshape(problems, count, -1)[best], cost.reshape(problems, count)[best]

    def left_out(self, starts: FloatArray, group: NDArray[np.int_]) -> FloatArray:
        """Relative errors of measurements fitted without the points of their group [1], shape (M,).

        Parameters
        ----------
        starts
            As :meth:`solve`.
        group
            Of each point, from 0, shape (P,).
        """
        theta, _ = self.solve(starts, 1.0 * (group != np.arange(group.max() + 1)[:, None]))
        own = self.model(theta)[0][group[self.of], np.arange(self.of.size)]
        return np.abs(np.expm1(own - self.target))

    def resampled(self, theta: FloatArray, count: int, concentration: float) -> FloatArray:
        """Fits of the points weighted anew, the prior's mean redrawn with them, shape (count, K).

        Parameters
        ----------
        theta
            Where they start, shape (K,).
        count
            How many.
        concentration
            Of the Dirichlet weights [1].

        References
        ----------
        Rubin, "The Bayesian bootstrap", Ann. Statist. 9(1), 1981, doi:10.1214/aos/1176345338.
        """
        rng, size = np.random.default_rng(1), self.counted.size
        weights = rng.dirichlet(np.full(size, concentration), size=count) * size
        return self.solve(theta[None], weights, self.mean + self.drawn(count, rng))[0]
