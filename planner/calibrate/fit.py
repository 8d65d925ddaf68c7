"""From measured iterations to an iteration-time model that says how well each of its parameters is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from planner.calibrate.closed_loop import LOWEST_LOG, FloatArray, with_experts_of
from planner.calibrate.points import Batch, Points
from planner.calibrate.solver import CLEARLY, LEVEL_SD, MISFIT, POINT_SD, RESAMPLES, TAILS, Problem, ends
from planner.errors import MOST_TOLD, CalibrationError
from planner.machine.iteration import IterationModel
from planner.machine.roofline import PRIOR_LOG_SD
from planner.shared.record import Record
from planner.shared.remarks import those_that_hold
from planner.units import LEAST

PARAMETERS = ("t0", "w", "b", "c", "g", "h", "e", "a", "x")
"""Order of the parameters in every array of this module, the drift after them. The tile is chosen outside; `e` is held as e/g, so
that a kernel nobody measured at its worst keeps e = g."""

T0, W, B, C, G, H, E, A, X, DRIFT = range(10)

RESIDUAL_SCALE = (0.005, POINT_SD)
"""Relative error up to which a point counts quadratically: what the points themselves show, within these bounds. The
upper one is what the canonical form misses real kernels by, and what few points start from [1]."""

MIN_POINTS = 3
ENOUGH_POINTS = 20
PRIOR_WIDTH = 2.0
"""The prior's standard deviations are multiplied by this: how it misses the GPUs it was fitted to says too little of others. On
eleven measured configurations 24, 12 and 6 points then miss the rest by 3.3, 3.9 and 4.6% on average (as it stands by 3.4, 4.1
and 4.6%) [1]."""

TILES = (1, 64, 128, 256)
MOST_POINTS = 600
"""A fit takes at most so many points; of more it takes them evenly, by batch (:func:`_thinned`), and tells all of its errors."""

LEFT_OUT_GROUPS = 100
"""Up to so many points are left out one by one; more in so many groups, repeats of a batch always together."""


WIDEST = 0.40
"""Half-width of a 90% interval beyond which nothing is known: a parameter is not identified, and a profile says less than the
estimate that nobody measured for [1]."""

OUTLIER_FACTOR = 8.0
"""Points further off than 10% and this many robust standard deviations are named, and do not count."""

USUAL_POINTS = 8
"""Points of the usual misfit that stand beside those left out in the band: few say little about their own spread."""

DRIFT_SD = 0.15
"""Prior standard deviation of the slowdown over a run [1]."""
FAR_OFF = 0.10
"""Error from which on it is told, of a point or of those left out: three times what 24 designed batches are missed by [1]."""


@dataclass(frozen=True, slots=True)
class KindError(Record):
    """Residuals of one kind of batch: count, mean, median and largest relative error, and the mean signed one [1]."""

    kind: str
    points: int
    mean: float
    median: float
    largest: float
    signed: float = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Fit(Record):
    """A fitted iteration-time model and what is known about it.

    Parameters
    ----------
    iteration
        The model.
    prior
        What it was pulled towards.
    samples
        Models of the resampled fits, shape (R, 9) in the order of :data:`PARAMETERS` (natural units, `e` absolute).
    intervals
        90% interval of every parameter [SI].
    identified
        Whether the points determine the parameter by themselves.
    fit_error, leave_one_out_error, leave_one_out_p95, leave_one_out_rms
        Mean relative error on the points; mean, 95th percentile and root mean square on each point when it is left out, beyond
        ``LEFT_OUT_GROUPS`` points with the others of its group [1].
    left_out_groups
        Groups in which points were left out; 0 = one by one.
    residuals
        Measured time over fitted time minus 1, drift removed, shape (P,) [1].
    kinds
        Residual table.
    drift
        Relative slowdown over the run; ``None`` when the order is not known [1].
    outliers
        Places of the points far off the model.
    covered
        What was measured.
    warnings
        Sentences for people.
    points
        Number of points fitted, at most ``MOST_POINTS``; residuals are those of all points given.
    prior_error
        Mean relative error of the prior alone on the points [1].
    """

    iteration: IterationModel
    prior: IterationModel
    samples: FloatArray
    intervals: Mapping[str, tuple[float, float]]
    identified: Mapping[str, bool]
    fit_error: float
    leave_one_out_error: float
    leave_one_out_p95: float
    leave_one_out_rms: float
    residuals: FloatArray
    kinds: tuple[KindError, ...]
    drift: float | None
    outliers: tuple[int, ...]
    covered: Mapping[str, tuple[float, float]]
    warnings: tuple[str, ...]
    points: int
    prior_error: float
    left_out_groups: int = 0

    written: ClassVar[tuple[str, ...]] = (
        "iteration", "intervals_90=intervals", "identified", "points", "fit_error",
        "leave_one_out_error", "left_out_groups", "error_band",
        "by_kind=kinds", "drift", "outliers", "covered", "warnings",
    )  # fmt: skip

    def interval(self, quantity: Callable[[IterationModel], float]) -> tuple[float, float]:
        """90% interval of any function of the model by resampling, in its unit."""
        return ends(np.array([quantity(_model(one, self.iteration.tau, self.prior)) for one in self.samples]))

    @property
    def error_band(self) -> float:
        """Half-width to print around a predicted iteration time, covering about 90% of batches [1].

        The root mean square of the left-out errors, held by what fits of other machines were missed by: the errors of a few
        points say little about their own spread.
        """
        known = self.points * self.leave_one_out_rms**2 + USUAL_POINTS * MISFIT**2
        return max(POINT_SD, LEVEL_SD * math.sqrt(known / (self.points + USUAL_POINTS)))


class Design:
    """Regressors of P measured iterations, arrays of shape (P,), and from log-parameters to the logarithms of their times.

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
        self.tile, n = tile, self.decodes
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

    def __call__(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Logarithms of the times of all points, and their derivatives.

        Parameters
        ----------
        theta
            Log-parameters [log SI] and the drift from the first to the last point [1], shape (R, 10).

        Returns
        -------
        logs, slope
            Shapes (R, P) and (R, P, 10).
        """
        p = np.exp(theta)[:, None, :]
        compute = p[..., B] * self.stairs
        weights = p[..., W] * self.weight_share
        bound_by_weights = weights >= compute
        kv = p[..., G] * self.context_sum
        longest = p[..., G] * p[..., E] * self.context_max
        apart = ~self.joined
        slope = np.zeros((theta.shape[0], self.tokens.size, theta.shape[1]))
        slope[..., T0] = p[..., T0]
        slope[..., W] = np.where(bound_by_weights, weights, 0.0)
        slope[..., B] = np.where(bound_by_weights, 0.0, compute)
        slope[..., C] = p[..., C] * self.tokens
        summed = p[..., A] * self.joined_pairs + self.joined_s
        walked = p[..., A] * self.walked_pairs
        read = self.joined & (kv > np.maximum(summed, walked))
        slope[..., G] = np.where(apart, np.maximum(kv, longest), np.where(read, kv, 0.0))
        slope[..., H] = np.where(apart, p[..., H] * self.decodes, 0.0)
        slope[..., E] = np.where(apart & (longest > kv), longest, 0.0)
        known = np.where(self.joined & ~read & (summed >= walked), self.joined_s, 0.0)
        together = np.where(read, 0.0, np.maximum(summed, walked) - known)
        slope[..., A] = np.where(apart, p[..., A] * self.pairs, together)
        slope[..., X] = p[..., X] * self.overlap
        # every term is proportional to its own parameter, so the time is the sum of its log-derivatives (e/g rides on g) and h_m n
        time = slope.sum(axis=-1) - slope[..., E] + known
        slope[..., DRIFT] = time * self.position
        return np.log(time) + theta[:, DRIFT, None] * self.position, slope / time[..., None]


def _prior_sd() -> FloatArray:
    """Standard deviations of the logarithms of the parameters, and of the drift, shape (10,) [1]."""
    return np.array([*(PRIOR_LOG_SD[name] for name in PARAMETERS), DRIFT_SD])


def _problem(points: Points, prior: IterationModel, width: float, tile: int, with_x: bool) -> Problem:
    """The points with their prior, `width` times as wide; interference is off where it is not looked for."""
    mean, count = _theta(prior), len(points)
    mean[X] = mean[X] if with_x else LOWEST_LOG
    sd = _prior_sd()
    sd[:DRIFT] *= width
    design = Design(points, prior, tile, _position(points, points))
    return Problem(
        design, np.log(points.time_s), np.arange(count), np.ones(count), mean, sd, RESIDUAL_SCALE[1]
    )  # fmt: skip


def _started(points: Points, prior: IterationModel, width: float, has_mixed: bool) -> tuple[Problem, FloatArray]:
    """The best of several starts for every tile, with interference only where it pays."""
    found: list[tuple[float, Problem, FloatArray]] = []
    dispersion = 1.0
    tiles = dict.fromkeys([prior.tau, *TILES])
    for tile, with_x in itertools.product(tiles, (False, True) if has_mixed else (False,)):
        problem = _problem(points, prior, width, tile, with_x)
        theta, cost = problem.solve(problem.starts())
        if not found:
            dispersion = max(1.0, float(cost[0]) / len(points))
        margin = float(tile != prior.tau) + (CLEARLY if with_x else 0.0)
        found.append((float(cost[0]) + margin * dispersion, problem, theta[0]))
    return min(found, key=lambda one: one[0])[1:]


def _settled(problem: Problem, theta: FloatArray, points: Points, prior_x: float | None) -> tuple[Problem, FloatArray]:
    """Without points far off, at the precision of the others, and with interference where it shows only then.

    `prior_x`: the prior's logarithm of it; ``None`` = no mixed batch could show any.
    """
    count = len(points)
    for _ in range(2):
        gaps = np.expm1(problem.target - problem.model(theta[None])[0][0])
        counted = np.ones(count)
        counted[list(_far(gaps))] = 0.0
        scale = float(np.clip(1.5 * _spread(gaps), *RESIDUAL_SCALE)) if count >= ENOUGH_POINTS else problem.scale
        problem = replace(problem, counted=counted, scale=scale)
        (theta,), (plain,) = problem.solve(theta[None])
    if prior_x is None or problem.mean[X] == prior_x:
        return problem, theta
    # looked for again at the points' own precision: a few per cent of a mixed batch may be all there is
    freed = replace(problem, mean=np.where(np.arange(theta.size) == X, prior_x, problem.mean))
    start = theta.copy()
    start[X] = prior_x - 2.0
    (found,), (cost,) = freed.solve(start[None])
    pays = cost + CLEARLY * max(1.0, plain / count) < plain
    return (freed, found) if pays else (problem, theta)


def _enough(points: Points) -> None:
    """Enough different batches to fit anything to."""
    count = len(points)
    distinct = len(set(points.batches))
    if count < MIN_POINTS or distinct < MIN_POINTS:
        same = " (all the same batch)" if distinct == 1 and count > 1 else ""
        raise CalibrationError(
            f"{points.source}: {count} points, {distinct} different batches{same}: nothing can be fitted to that",
            f"At least {MIN_POINTS} different batches are needed, {ENOUGH_POINTS}-24 designed ones are enough.",
        )


def fit_points(
    points: Points, prior: IterationModel, *, prior_width: float = PRIOR_WIDTH, resamples: int = RESAMPLES
) -> Fit:
    r"""Fit the canonical model to measured iterations.

    Minimises :math:`\sum_i \rho(\ln t_i - \ln \hat t_i) + \sum_k (\ln p_k - \ln p_k^{prior})^2/s_k^2` with soft-L1
    :math:`\rho`, from several starts, for each tile; interference `x` is added only when mixed points call for it. When
    the order of measuring is known a linear drift is fitted with it and removed: the parameters are those at the start
    of the run. Intervals come from Bayesian resampling of the points (Dirichlet weights) with the prior's mean redrawn
    each time. Of more than ``MOST_POINTS`` points so many are fitted, spread evenly over the batches, and the residuals are
    those of all; more than ``LEFT_OUT_GROUPS`` are left out in groups. A warning says so.

    Parameters
    ----------
    points
        Measured iterations, at least three different ones. Repeats of one batch ("sentinels") show the drift.
    prior
        Roofline estimate of the same GPU, model and parallelism.
    prior_width
        How far it is trusted: its standard deviations are multiplied by this [1].
    resamples
        Fits behind the intervals.

    Returns
    -------
    Fit

    Raises
    ------
    CalibrationError
        With fewer than three points, or when all are the same batch.
    """
    given, points = points, _thinned(points)
    count = len(points)
    _enough(points)
    has_mixed = not points.composed and any(kind == "mixed" for kind in points.kinds)
    begun = _started(points, prior, prior_width, has_mixed)
    problem, theta = _settled(*begun, points, float(_theta(prior)[X]) if has_mixed else None)
    design, with_x = cast(Design, problem.model), bool(problem.mean[X] > LOWEST_LOG)
    # weights below 1 make up for the parameters the points have already paid for, about 8 of 28
    sample_theta = problem.resampled(theta, resamples, 0.5)
    group = _groups(points)
    groups = int(group.max()) + 1
    loo_error = problem.left_out(theta[None], group)[problem.counted > 0.0]
    everything = design if given is points else Design(given, prior, design.tile, _position(given, points))
    residuals = given.time_s / np.exp(everything(theta[None])[0][0]) - 1.0
    outliers = _far(residuals)
    iteration = _model(_absolute(theta), design.tile, prior)
    samples = np.array([_absolute(values) for values in sample_theta])
    intervals = {name: ends(samples[:, k]) for k, name in enumerate(PARAMETERS)}
    intervals["tau"] = (float(design.tile), float(design.tile))
    if not with_x:
        intervals["x"] = (0.0, _interference_bound(given, everything, residuals))
    identified = _identified(design, theta, intervals, sample_theta, prior_width, with_x)
    loo_mean, loo_p95 = float(loo_error.mean()), float(np.percentile(loo_error, TAILS[1]))
    drifted = float(theta[DRIFT]) if design.position.any() else None
    warnings = _warnings(given, identified, has_mixed, outliers, residuals, drifted, loo_mean)
    in_groups = groups if count > groups or given is not points else 0
    if in_groups:
        by = f"Fitted to {count:,} of {len(given):,} points, spread evenly over the batches; errors by kind are those of all. "
        told = f"Points were left out in {groups} groups of batches, not one by one."
        warnings.append(told if given is points else by + told)
    return Fit(
        iteration=iteration,
        prior=prior,
        samples=samples,
        intervals=intervals,
        identified=identified,
        fit_error=float(np.abs(residuals).mean()),
        leave_one_out_error=loo_mean,
        leave_one_out_p95=loo_p95,
        leave_one_out_rms=float(np.sqrt(np.mean(loo_error**2))),
        residuals=residuals,
        kinds=_by_kind(given, residuals),
        drift=None if drifted is None else math.expm1(drifted),
        outliers=outliers,
        covered=_covered(points),
        warnings=tuple(warnings),
        points=count,
        prior_error=float(np.abs(times(prior, given) / given.time_s - 1.0).mean()),
        left_out_groups=in_groups,
    )


def _along(points: Points) -> list[Batch]:
    """The different batches in order of kind and size, so that neighbours are alike."""
    return sorted(
        set(points.batches),
        key=lambda b: (b.kind, b.tokens, b.decodes * b.context, b.pairs, b.decodes, b.prefills, b.new_tokens),
    )


def _thinned(points: Points) -> Points:
    """The points, or ``MOST_POINTS`` of them at most: of every batch equally many where it has them, evenly over its repeats;
    of too many different batches one point each, evenly along kind and size."""
    if len(points) <= MOST_POINTS:
        return points
    places: dict[Batch, list[int]] = {}
    for i, batch in enumerate(points.batches):
        places.setdefault(batch, []).append(i)
    batches = _along(points)
    batches = [batches[k] for k in _evenly(len(batches), MOST_POINTS)]
    repeats = np.array([len(places[batch]) for batch in batches])
    each = next(n for n in range(MOST_POINTS, 0, -1) if np.minimum(repeats, n).sum() <= MOST_POINTS)
    return points.select(sorted(places[b][k] for b in batches for k in _evenly(len(places[b]), each)))


def _evenly(count: int, wanted: int) -> list[int]:
    """At most so many of the places 0 to count - 1, evenly, first and last among them where there are two."""
    if wanted == 1:
        return [count // 2]
    return list(range(count)) if count <= wanted else np.linspace(0, count - 1, wanted).round().astype(int).tolist()


def _groups(points: Points) -> NDArray[np.int64]:
    """Group in which each point is left out, shape (P,): its own, or that of its batch among ``LEFT_OUT_GROUPS``, to which
    the batches are dealt along kind and size."""
    if len(points) <= LEFT_OUT_GROUPS:
        return np.arange(len(points))
    dealt = {batch: k % LEFT_OUT_GROUPS for k, batch in enumerate(_along(points))}
    return np.array([dealt[batch] for batch in points.batches])


def log_slopes(points: Points, prior: IterationModel) -> tuple[FloatArray, FloatArray]:
    """How the logarithm of each point's time depends on the log-parameters at the prior, and how far they are trusted.

    Returns
    -------
    slope, sd
        Shapes (P, 10) and (10,) [1].
    """
    return Design(points, prior, prior.tau, None)(_theta(prior)[None])[1][0], _prior_sd()


def scaled_prior(points: Points, reference: IterationModel) -> IterationModel:
    """A prior for a model or GPU nobody described: another one's roofline, all times scaled to what was measured.

    Parameters
    ----------
    points
        Measured iterations.
    reference
        Roofline of a model and GPU that are known.

    Returns
    -------
    IterationModel
        On eleven measured configurations it does as well as their own roofline with 24 points and with 6.
    """
    factor = float(np.median(points.time_s / times(reference, points)))
    scaled = ("t0", "w", "b", "c", "g", "h", "e", "a", "h_m", "e_m")
    return replace(reference, **{k: getattr(reference, k) * factor for k in scaled})


def times(model: IterationModel, points: Points) -> FloatArray:
    """What a model says of the points, composed ones added up from their parts [s], shape (P,)."""
    return (model.additive if points.composed else model).time(*points.columns)


def _theta(prior: IterationModel) -> FloatArray:
    """Log-parameters of a model that does not drift, shape (10,)."""
    full = prior.at_batch()
    theta = np.log([max(float(getattr(full, name)), LEAST) for name in PARAMETERS])
    theta[E] = 0.0 if prior.e <= prior.g else math.log(prior.e / max(prior.g, LEAST))
    theta[X] = theta[B] if prior.x == 0.0 else math.log(prior.x)
    return np.append(theta, 0.0)


def _absolute(theta: FloatArray) -> FloatArray:
    """Parameters in natural units, shape (9,)."""
    values = np.exp(theta[:DRIFT])
    # e below g never binds (l_max <= K): then the points say nothing about it and it is g
    values[E] = values[G] * max(1.0, values[E])
    values[X] = values[X] if values[X] > LEAST else 0.0
    return values


def _model(values: FloatArray, tile: int, prior: IterationModel) -> IterationModel:
    made = with_experts_of(prior, tau=tile, **dict(zip(PARAMETERS, values.tolist(), strict=True)))
    if prior.m == 0.0:
        return made
    # the joined kernel is the prefill kernel: what it costs follows a
    return replace(made, m=prior.m, h_m=prior.h_m, e_m=prior.e_m / prior.a * made.a if prior.a > 0.0 else 0.0)


def _position(points: Points, fitted: Points) -> FloatArray | None:
    """Place of points in the order of measuring: 0 at the first of the fitted ones, 1 at the last of them."""
    if points.order is None or fitted.order is None or float(np.ptp(fitted.order)) == 0.0:
        return None
    return np.asarray((points.order - fitted.order.min()) / np.ptp(fitted.order))


def _identified(
    design: Design,
    theta: FloatArray,
    intervals: Mapping[str, tuple[float, float]],
    sample_theta: FloatArray,
    prior_width: float,
    with_x: bool,
) -> dict[str, bool]:
    """Which parameters the points tell: those they touch, whose interval is narrow, and far narrower than the prior had it."""
    found = {}
    slope, sd = design(theta[None])[1][0], prior_width * _prior_sd()
    for k, name in enumerate(PARAMETERS):
        touched = bool((slope[:, k] > 0.0).any())
        narrow = float(np.ptp(ends(sample_theta[:, k]))) <= 2.0 * WIDEST
        learned = float(np.std(sample_theta[:, k])) <= 0.6 * float(sd[k])
        found[name] = touched and narrow and learned
    # e at or below g never binds
    found["e"] = found["e"] and bool(theta[E] > 0.0)
    # mixed points without a visible interference leave it below a bound; without them nothing is known
    upper = intervals["x"][1]
    found["x"] = found["x"] if with_x else 0.0 < upper <= float(np.exp(theta[B]) + np.exp(theta[C]))
    return found


def _interference_bound(points: Points, design: Design, residuals: FloatArray) -> float:
    """Largest interference that two standard deviations of the mixed points would hide [s/token]; 0 = none measured."""
    mixed = design.overlap > 0.0
    if points.composed or not mixed.any():
        return 0.0
    hidden = 2.0 * max(_spread(residuals), 1e-3) / math.sqrt(mixed.sum())
    return float(hidden * np.median(points.time_s[mixed] / design.overlap[mixed]))


def _far(residuals: FloatArray) -> tuple[int, ...]:
    """Places of points far off."""
    limit = max(FAR_OFF, OUTLIER_FACTOR * _spread(residuals))
    return tuple(int(i) for i in np.flatnonzero(np.abs(residuals) > limit))


def _spread(residuals: FloatArray) -> float:
    """Standard deviation as the median absolute deviation tells it: outliers do not count."""
    return 1.4826 * float(np.median(np.abs(residuals - np.median(residuals))))


def _covered(points: Points) -> dict[str, tuple[float, float]]:
    n, _, new, _, longest, _ = points.columns
    columns = {"decodes": n, "context": longest, "prefill_tokens": new, "tokens": n + new}
    used = {name: column[column > 0.0] for name, column in columns.items()}
    return {name: (float(c.min()), float(c.max())) if c.size else (0.0, 0.0) for name, c in used.items()}


def _by_kind(points: Points, residuals: FloatArray) -> tuple[KindError, ...]:
    kinds = np.array(points.kinds)
    table = []
    for kind in ("decode", "prefill", "chunk", "mixed"):
        if (own := residuals[kinds == kind]).size:
            size = np.abs(own)
            told = size.mean(), np.median(size), size.max(), own.mean()
            table.append(KindError(kind, own.size, *map(float, told)))
    return tuple(table)


def _warnings(
    points: Points,
    identified: Mapping[str, bool],
    has_mixed: bool,
    outliers: Sequence[int],
    residuals: FloatArray,
    drift: float | None,
    leave_one_out: float,
) -> list[str]:
    """What is wrong with the points or with the fit, a sentence each."""
    kinds, batches = set(points.kinds), len(set(points.batches))
    vague = [name for name, known in identified.items() if not known and name not in ("x", "e")]
    farthest = sorted(outliers, key=lambda i: -abs(residuals[i]))[:MOST_TOLD]
    found: list[tuple[object, str, dict[str, object]]] = [
        (batches < ENOUGH_POINTS, "few_batches", {"batches": batches, "enough": ENOUGH_POINTS}),
        (points.composed, "mixed_composed", {}),
        (not points.composed and not has_mixed, "no_mixed", {}),
        (kinds.isdisjoint(("prefill", "chunk", "mixed")), "no_prefill", {}),
        (kinds.isdisjoint(("decode", "mixed")), "no_decode", {}),
        (has_mixed and "chunk" not in kinds, "no_chunk", {}),
        (vague, "not_identified", {"names": ", ".join(vague)}),
        *((True, "outlier", {"batch": points.batches[i], "residual": residuals[i]}) for i in sorted(farthest)),
        (len(outliers) > MOST_TOLD, "more_outliers", {"more": len(outliers) - MOST_TOLD}),
        (drift is not None and abs(drift) > POINT_SD, "drifted", {"drift": math.expm1(drift or 0.0)}),
        (leave_one_out > FAR_OFF, "left_out_batches", {"error": leave_one_out}),
    ]
    return list(those_that_hold(found))
