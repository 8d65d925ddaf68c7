"""Robust nonlinear least squares in the logarithms of the iteration-time parameters, many problems at once.

The problems of one calibration differ only in the weights of their points (resampling, leave-one-out) and in where
they start, so one batched Levenberg-Marquardt in numpy solves them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

LogModel = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""From log-parameters, shape (R, K), to logarithms of what they predict, shape (R, P), and their derivatives, (R, P, K)."""

PARAMETERS = ("t0", "w", "b", "c", "g", "h", "e", "a", "x")
"""Order of the parameters in every array of this module. The tile is chosen outside; `e` is held as e/g, so that a
kernel nobody measured at its worst keeps e = g."""

T0, W, B, C, G, H, E, A, X = range(9)
LOG_LIMIT = 12.0
"""Parameters stay within e^+-12 of the prior: beyond that a term is nil or the data are of something else."""


@dataclass(frozen=True, slots=True)
class Design:
    """Regressors of P measured iterations.

    Parameters
    ----------
    tokens
        T = n + C [tokens], shape (P,).
    stairs
        T rounded up to the tile [tokens], shape (P,).
    decodes
        n [sequences], shape (P,).
    context_sum
        K [tokens], shape (P,).
    context_max
        Longest context [tokens], shape (P,).
    pairs
        A [pairs], shape (P,).
    overlap
        n C/T [tokens], shape (P,).
    weight_share
        Share of the weights the batch touches: 1 for dense models [1], shape (P,).
    position
        Place in the order of measuring, 0 at the start and 1 at the end [1], shape (P,).
    joined
        Whether one attention kernel takes decodes and prompts of the point together, shape (P,).
    joined_pairs
        Then, A + m K [pairs], shape (P,).
    walked_pairs
        Then, e_m/a times the longest context or prompt [pairs], shape (P,).
    joined_s
        Then, h_m n [s], shape (P,).
    """

    tokens: FloatArray
    stairs: FloatArray
    decodes: FloatArray
    context_sum: FloatArray
    context_max: FloatArray
    pairs: FloatArray
    overlap: FloatArray
    weight_share: FloatArray
    position: FloatArray
    joined: NDArray[np.bool_]
    joined_pairs: FloatArray
    walked_pairs: FloatArray
    joined_s: FloatArray


@dataclass(frozen=True, slots=True)
class Solution:
    """Result of R problems.

    Parameters
    ----------
    theta
        Natural logarithms of the parameters [log SI], shape (R, 9).
    drift
        Relative slowdown from the first to the last point [1], shape (R,).
    cost
        Robust loss including the prior's [1], shape (R,).
    """

    theta: FloatArray
    drift: FloatArray
    cost: FloatArray


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


def minimise(
    model: LogModel,
    target: FloatArray,
    weights: FloatArray,
    start: FloatArray,
    mean: FloatArray,
    precision: FloatArray,
    *,
    scale: float,
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

    def residuals(values: FloatArray) -> tuple[FloatArray, FloatArray]:
        predicted, slope = model(values)
        return (predicted - target) / scale, slope / scale

    def loss(gap: FloatArray, values: FloatArray) -> FloatArray:
        data = 2.0 * (np.sqrt(1.0 + gap**2) - 1.0)
        away = values - mean
        total: FloatArray = (weights * data).sum(axis=1) + np.einsum("ri,ij,rj->r", away, precision, away)
        return total

    damping = np.full(problems, 1e-2)
    gap, jacobian = residuals(current)
    cost = loss(gap, current)
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
        trial_gap, trial_jacobian = residuals(trial)
        trial_cost = loss(trial_gap, trial)
        better = running & (trial_cost <= cost)
        gain = np.where(better, cost - trial_cost, 0.0)
        current[better] = trial[better]
        gap[better] = trial_gap[better]
        jacobian[better] = trial_jacobian[better]
        cost = np.where(better, trial_cost, cost)
        damping = np.where(better, np.maximum(damping * 0.3, 1e-9), np.minimum(damping * 5.0, 1e8))
        finished = (better & (gain <= 1e-9 * (1.0 + cost))) | (~better & (damping >= 1e8))
        running &= ~finished
        if not running.any():
            break
    return current, cost


def solve(
    design: Design,
    log_times: FloatArray,
    weights: FloatArray,
    start: FloatArray,
    prior: FloatArray,
    prior_sd: FloatArray,
    *,
    scale: float,
    free: NDArray[np.bool_],
    drift_sd: float = 0.0,
) -> Solution:
    """Fit R problems of the same measured iterations, with a linear drift over the run where `drift_sd` allows one.

    Parameters
    ----------
    design
        P points.
    log_times
        Measured [log s], shape (P,) or (R, P).
    weights
        Of the points [1], shape (R, P).
    start
        [log SI], shape (R, 9).
    prior, prior_sd
        Mean and standard deviation of the log-parameters [log SI], shapes (9,) or (R, 9), and (9,).
    scale
        Relative error up to which a residual counts quadratically [1].
    free
        Parameters to fit, shape (9,); the others stay at `start`.
    drift_sd
        Prior standard deviation of the drift; 0 = no drift [1].

    Returns
    -------
    Solution
    """
    size = len(PARAMETERS)
    problems = start.shape[0]
    mean = np.broadcast_to(prior, (problems, size))
    if drift_sd > 0.0:
        nothing = np.zeros((problems, 1))
        start, mean = np.concatenate([start, nothing], axis=1), np.concatenate([mean, nothing], axis=1)
        prior_sd, free = np.append(prior_sd, drift_sd), np.append(free, True)

    def model(values: FloatArray) -> tuple[FloatArray, FloatArray]:
        time, slope = predict(design, values[:, :size])
        logs, jacobian = np.log(time), slope / time[..., None]
        if drift_sd > 0.0:
            logs = logs + values[:, size:] * design.position
            place = np.broadcast_to(design.position, time.shape)
            jacobian = np.concatenate([jacobian, place[..., None]], axis=-1)
        return logs, jacobian

    theta, cost = minimise(
        model, log_times, weights, start, mean, np.diag(1.0 / prior_sd**2),
        scale=scale, free=free,
    )  # fmt: skip
    drift = theta[:, size] if drift_sd > 0.0 else np.zeros(problems)
    return Solution(theta=theta[:, :size], drift=drift, cost=cost)
