"""Robust nonlinear least squares in the logarithms of the iteration-time parameters, many problems at once.

The problems of one calibration differ only in the weights of their points (resampling, leave-one-out) and in where
they start, so one batched Levenberg-Marquardt in numpy solves them together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from planner.calibrate.closed_loop import FloatArray
from planner.calibrate.points import Points
from planner.machine.iteration import IterationModel

LogModel = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""From log-parameters, shape (R, K), to logarithms of what they predict, shape (R, P), and their derivatives, (R, P, K)."""

PARAMETERS = ("t0", "w", "b", "c", "g", "h", "e", "a", "x")
"""Order of the parameters in every array of this module. The tile is chosen outside; `e` is held as e/g, so that a
kernel nobody measured at its worst keeps e = g."""

T0, W, B, C, G, H, E, A, X = range(9)
POINT_SD = 0.02
"""What one measurement is off by, two runs of a machine differing by 2 to 4%; up to it a residual counts quadratically [1]."""

TAILS = (5.0, 95.0)
"""Ends of the intervals that are told, in percent."""

PRIOR_REDRAW = 0.85
"""Share of the prior's standard deviation by which its mean is redrawn in each resampled fit [1]."""

DAMPING = (1e-9, 1e8)
"""Of the steps: the least, and the most, at which nothing is found any more; a gain of the least of the loss is none [1]."""

LOG_LIMIT = 12.0
"""Parameters stay within e^+-12 of the prior: beyond that a term is nil or the data are of something else."""


class Design:
    """Regressors of P measured iterations, arrays of shape (P,).

    ``tokens`` T = n + C and ``stairs``, T rounded up to the tile [tokens]; ``decodes`` n [sequences]; ``context_sum`` K and
    ``context_max`` [tokens]; ``pairs`` A [pairs]; ``overlap`` n C/T [tokens]; ``weight_share`` that a batch touches, 1 for
    dense models [1]; ``position`` in the order of measuring [1]; ``joined``: whether one attention kernel takes decodes and
    prompts together, then ``joined_pairs`` A + m K and ``walked_pairs``, e_m/a times the longest context or prompt [pairs], and
    ``joined_s`` h_m n [s].

    Parameters
    ----------
    points
        The iterations.
    prior
        Says which experts a batch touches, and whether one kernel takes decodes and prompts.
    tile
        tau [tokens].
    position
        0 at the first of those fitted and 1 at the last, shape (P,); ``None`` = not known.
    """

    def __init__(self, points: Points, prior: IterationModel, tile: int, position: FloatArray | None) -> None:
        self.decodes, self.context_sum, new, self.pairs, self.context_max, end = points.columns
        n = self.decodes
        self.tokens = tokens = n + new
        self.stairs = tokens if tile == 1 else np.where(tokens <= 0.5 * tile, tokens, tile * np.ceil(tokens / tile))
        self.overlap = n * new / tokens
        total = prior.w + prior.w_experts
        self.weight_share = prior.weight_time(tokens) / total if total > 0.0 else np.ones(len(points))
        self.position = np.zeros(len(points)) if position is None else position
        self.joined = (new > 0.0) & (prior.m > 0.0) & (not points.composed)
        self.joined_pairs = self.pairs + prior.m * self.context_sum
        walk = prior.e_m / prior.a if prior.a > 0.0 else 0.0
        self.walked_pairs = walk * np.maximum(self.context_max, end)
        self.joined_s = prior.h_m * n


def predict(design: Design, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Times of all points and their derivatives with respect to the log-parameters.

    Parameters
    ----------
    design
        P points.
    theta
        Log-parameters [log SI], shape (R, 9).

    Returns
    -------
    time
        [s], shape (R, P).
    slope
        d time / d theta [s], shape (R, P, 9).
    """
    p = np.exp(theta)[:, None, :]
    compute = p[..., B] * design.stairs
    weights = p[..., W] * design.weight_share
    bound_by_weights = weights >= compute
    kv = p[..., G] * design.context_sum
    longest = p[..., G] * p[..., E] * design.context_max
    bound_by_longest = longest > kv
    apart = ~design.joined
    slope = np.zeros((theta.shape[0], design.tokens.size, len(PARAMETERS)))
    slope[..., T0] = p[..., T0]
    slope[..., W] = np.where(bound_by_weights, weights, 0.0)
    slope[..., B] = np.where(bound_by_weights, 0.0, compute)
    slope[..., C] = p[..., C] * design.tokens
    summed = p[..., A] * design.joined_pairs + design.joined_s
    walked = p[..., A] * design.walked_pairs
    read = design.joined & (kv > np.maximum(summed, walked))
    slope[..., G] = np.where(apart, np.maximum(kv, longest), np.where(read, kv, 0.0))
    slope[..., H] = np.where(apart, p[..., H] * design.decodes, 0.0)
    slope[..., E] = np.where(apart & bound_by_longest, longest, 0.0)
    known = np.where(design.joined & ~read & (summed >= walked), design.joined_s, 0.0)
    together = np.where(read, 0.0, np.maximum(summed, walked) - known)
    slope[..., A] = np.where(apart, p[..., A] * design.pairs, together)
    slope[..., X] = p[..., X] * design.overlap
    # every term is proportional to its own parameter, so the time is the sum of its log-derivatives (e/g rides on g) and h_m n
    return slope.sum(axis=-1) - slope[..., E] + known, slope


def ends(values: FloatArray) -> tuple[float, float]:
    """Ends of the interval that samples span."""
    low, high = np.percentile(values, TAILS)
    return float(low), float(high)


def minimise(
    model: LogModel,
    target: FloatArray,
    weights: FloatArray,
    start: FloatArray,
    mean: FloatArray,
    precision: FloatArray,
    *,
    scale: float = POINT_SD,
    free: NDArray[np.bool_] | None = None,
    iterations: int = 60,
) -> tuple[FloatArray, FloatArray]:
    r"""Minimise sum_i weight_i rho((target_i - model_i)/scale) + (theta - mean)' precision (theta - mean), rho soft-L1.

    rho(z) = 2 (sqrt(1 + z^2) - 1): quadratic within `scale`, linear beyond.

    Parameters
    ----------
    model
        What is fitted, in logarithms.
    target
        Measured [log], shape (P,) or (R, P).
    weights
        Of the points [1], shape (R, P).
    start
        Log-parameters to start from, shape (R, K).
    mean
        Of the prior, shape (K,) or (R, K).
    precision
        Inverse covariance of the prior, shape (K, K).
    scale
        Relative error up to which a residual counts quadratically [1].
    free
        Parameters to fit, shape (K,); the others stay at `start`. ``None`` = all.
    iterations
        At most so many steps.

    Returns
    -------
    theta
        Log-parameters, shape (R, K).
    cost
        Robust loss including the prior's [1], shape (R,).
    """
    problems, size = start.shape
    held = np.zeros(size, dtype=bool) if free is None else ~free
    mean = np.broadcast_to(mean, (problems, size))
    low, high = mean - LOG_LIMIT, mean + LOG_LIMIT
    current = start.copy()

    def judged(values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Residuals, their derivatives, and the loss."""
        predicted, slope = model(values)
        gap, away = (predicted - target) / scale, values - mean
        data = 2.0 * (np.sqrt(1.0 + gap**2) - 1.0)
        total: FloatArray = (weights * data).sum(axis=1) + np.einsum("ri,ij,rj->r", away, precision, away)
        return gap, slope / scale, total

    least, most = DAMPING
    damping = np.full(problems, 1e-2)
    gap, jacobian, cost = judged(current)
    running = np.ones(problems, dtype=bool)
    diagonal = np.arange(size)
    for _ in range(iterations):
        curvature = weights / np.sqrt(1.0 + gap**2)
        weighted = jacobian * curvature[..., None]
        hessian = np.einsum("rpi,rpj->rij", weighted, jacobian) + precision
        gradient = np.einsum("rpi,rp->ri", weighted, gap) + (current - mean) @ precision
        hessian[:, diagonal, diagonal] *= 1.0 + damping[:, None]
        hessian[:, held, :] = 0.0
        hessian[:, :, held] = 0.0
        hessian[:, diagonal[held], diagonal[held]] = 1.0
        gradient[:, held] = 0.0
        step = np.linalg.solve(hessian, -gradient[..., None])[..., 0]
        np.clip(step, -2.0, 2.0, out=step)
        trial = np.clip(current + step, low, high)
        trial[:, held] = current[:, held]
        trial_gap, trial_jacobian, trial_cost = judged(trial)
        better = running & (trial_cost <= cost)
        gain = np.where(better, cost - trial_cost, 0.0)
        current[better] = trial[better]
        gap[better] = trial_gap[better]
        jacobian[better] = trial_jacobian[better]
        cost = np.where(better, trial_cost, cost)
        damping = np.where(better, np.maximum(damping * 0.3, least), np.minimum(damping * 5.0, most))
        finished = (better & (gain <= least * (1.0 + cost))) | (~better & (damping >= most))
        running &= ~finished
        if not running.any():
            break
    return current, cost
