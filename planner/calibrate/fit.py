"""From measured iterations to an iteration-time model that says how well each of its parameters is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from planner.calibrate.closed_loop import FloatArray, with_experts_of
from planner.calibrate.points import Batch, Points
from planner.calibrate.solver import (
    PARAMETERS,
    POINT_SD,
    PRIOR_REDRAW,
    TAILS,
    B,
    C,
    Design,
    E,
    G,
    X,
    ends,
    minimise,
    predict,
)
from planner.errors import CalibrationError
from planner.machine.iteration import IterationModel
from planner.machine.roofline import PRIOR_LOG_SD
from planner.shared.record import Record
from planner.shared.remarks import those_that_hold
from planner.units import LEAST

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
INTERFERENCE_MARGIN = 9.0
"""Interference is kept only when it lowers the robust loss by so many times the loss per point (at least 1), three standard
deviations, as misfit elsewhere easily looks like it; a tile other than the prior's by one."""

MOST_POINTS = 600
"""A fit takes at most so many points; of more it takes them evenly, by batch (:func:`_thinned`), and tells all of its errors."""

LEFT_OUT_ALONE = 400
LEFT_OUT_GROUPS = 100
"""Up to so many points are left out one by one; more in so many groups, repeats of a batch always together."""

MOST_NAMED = 20
"""Outliers named one by one."""

STARTS = 6
RESAMPLES = 200
CONCENTRATION = 0.5
"""Of the Dirichlet weights; below 1 makes up for the parameters the points have already paid for (about 8 of 28)."""

IDENTIFIED_HALF_WIDTH = 0.35
"""A parameter whose 90% interval is wider than +-35% is reported as not identified [1]."""

OUTLIER_FACTOR = 6.0
REJECT_FACTOR = 8.0
"""Points further off than 10% and this many robust standard deviations do not count at all."""

BAND_FACTOR = 1.8
USUAL_MISS, USUAL_POINTS = 0.045, 8
"""The band is this many root mean squares of the left-out errors, together with that many points of the usual miss: chosen so
that on eleven measured configurations bands of 24, 12 and 6 points hold 93, 87 and 90% of all other batches [1]."""

DRIFT_SD = 0.15
"""Prior standard deviation of the slowdown over a run [1]."""
FAR_OFF = 0.10
"""Error from which on it is told, of a point or of those left out: three times what 24 designed batches are missed by [1]."""

_OFF = -60.0  # log of a parameter that is switched off


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
        Models of the resampled fits, shape (R, 9) in the order of ``solver.PARAMETERS`` (natural units, `e` absolute).
    intervals
        90% interval of every parameter [SI].
    identified
        Whether the points determine the parameter by themselves.
    fit_error, leave_one_out_error, leave_one_out_p95, leave_one_out_rms
        Mean relative error on the points; mean, 95th percentile and root mean square on each point when it is left out, beyond
        ``LEFT_OUT_ALONE`` points with the others of its group [1].
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
        known = self.points * self.leave_one_out_rms**2 + USUAL_POINTS * USUAL_MISS**2
        return max(POINT_SD, BAND_FACTOR * math.sqrt(known / (self.points + USUAL_POINTS)))


@dataclass(frozen=True, slots=True)
class _At:
    """Where a fit stands."""

    tile: int
    design: Design
    theta: FloatArray
    drift: float
    free: NDArray[np.bool_]
    counted: FloatArray  # 0 for points far off, 1 else
    scale: float


@dataclass(frozen=True, slots=True)
class _Search:
    """Finds the parameters that fit measured points beside their prior."""

    points: Points
    prior: IterationModel
    prior_theta: FloatArray
    sd: FloatArray
    position: FloatArray | None

    def mean(self, free: NDArray[np.bool_]) -> FloatArray:
        """The prior's mean; interference is off where it is not free."""
        mean = self.prior_theta.copy()
        mean[X] = self.prior_theta[X] if free[X] else _OFF
        return mean

    def best_start(self, has_mixed: bool, rng: np.random.Generator) -> _At:
        """The best of several starts for every tile, with interference only where it pays."""
        count, width = len(self.points), len(PARAMETERS)
        found: list[tuple[float, _At]] = []
        dispersion = 1.0
        tiles = dict.fromkeys([self.prior.tau, *TILES])
        for tile, with_x in itertools.product(tiles, (False, True) if has_mixed else (False,)):
            free = np.ones(width, dtype=bool)
            free[X] = with_x
            start = np.tile(self.prior_theta, (STARTS, 1))
            start[1:] += 0.7 * self.sd * rng.standard_normal((STARTS - 1, width))
            if not with_x:
                start[:, X] = _OFF
            design = Design(self.points, self.prior, tile, self.position)
            at = _At(tile, design, start[0], 0.0, free, np.ones(count), RESIDUAL_SCALE[1])
            theta, drift, costs = self.solve(at, start, np.ones((STARTS, count)), self.mean(free))
            i = int(np.argmin(costs))
            if not found:
                dispersion = max(1.0, float(costs[i]) / count)
            margin = float(tile != self.prior.tau) + (INTERFERENCE_MARGIN if with_x else 0.0)
            at = replace(at, theta=theta[i], drift=float(drift[i]))
            found.append((float(costs[i]) + margin * dispersion, at))
        return min(found, key=lambda one: one[0])[1]

    def solve(
        self, at: _At, start: FloatArray, weights: FloatArray, mean: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """R problems of the same iterations, with a linear drift over the run where their order is known.

        Parameters
        ----------
        at
            Whose design, free parameters and precision count.
        start
            [log SI], shape (R, 9).
        weights
            Of the points [1], shape (R, P).
        mean
            Of the prior [log SI], shape (9,) or (R, 9).

        Returns
        -------
        theta, drift, cost
            Log-parameters [log SI], shape (R, 9); relative slowdown from the first to the last point and robust loss, the prior's
            included [1], shape (R,).
        """
        problems, size = start.shape
        mean, sd, free = np.broadcast_to(mean, start.shape), self.sd, at.free
        drifts = self.position is not None
        if drifts:
            nothing = np.zeros((problems, 1))
            start, mean = np.concatenate([start, nothing], axis=1), np.concatenate([mean, nothing], axis=1)
            sd, free = np.append(sd, DRIFT_SD), np.append(free, True)

        def model(values: FloatArray) -> tuple[FloatArray, FloatArray]:
            time, slope = predict(at.design, values[:, :size])
            logs, jacobian = np.log(time), slope / time[..., None]
            if drifts:
                logs = logs + values[:, size:] * at.design.position
                place = np.broadcast_to(at.design.position, time.shape)
                jacobian = np.concatenate([jacobian, place[..., None]], axis=-1)
            return logs, jacobian

        theta, cost = minimise(
            model, np.log(self.points.time_s), weights, start, mean, np.diag(1.0 / sd**2), scale=at.scale, free=free
        )
        return theta[:, :size], theta[:, size] if drifts else np.zeros(problems), cost

    def again(self, at: _At, weights: FloatArray, mean: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Solved anew from where the fit stands, for every row of weights."""
        return self.solve(at, np.tile(at.theta, (weights.shape[0], 1)), weights * at.counted, mean)

    def settled(self, at: _At, has_mixed: bool) -> _At:
        """Without points far off, at the precision of the others, and with interference where it shows only then."""
        count = len(self.points)
        once = np.ones((1, count))
        for _ in range(2):
            fitted = predict(at.design, at.theta[None])[0][0] * np.exp(at.drift * at.design.position)
            gaps = self.points.time_s / fitted - 1.0
            counted = np.ones(count)
            counted[list(_far(gaps, REJECT_FACTOR))] = 0.0
            scale = float(np.clip(1.5 * _spread(gaps), *RESIDUAL_SCALE)) if count >= ENOUGH_POINTS else at.scale
            at = replace(at, counted=counted, scale=scale)
            found, drift, _ = self.again(at, once, self.mean(at.free)[None])
            at = replace(at, theta=found[0], drift=float(drift[0]))
        if not has_mixed or at.free[X]:
            return at
        # looked for again at the points' own precision: a few per cent of a mixed batch may be all there is
        plain = self.again(at, once, self.mean(at.free)[None])[2]
        theta = at.theta.copy()
        theta[X] = self.prior_theta[X] - 2.0
        freed = replace(at, theta=theta, free=np.ones(len(PARAMETERS), dtype=bool))
        found, drift, cost = self.again(freed, once, self.mean(freed.free)[None])
        if cost[0] + INTERFERENCE_MARGIN * max(1.0, plain[0] / count) < plain[0]:
            return replace(freed, theta=found[0], drift=float(drift[0]))
        return at


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


def _left_out(search: _Search, at: _At) -> tuple[FloatArray, int]:
    """Errors at points fitted without their group, those far off aside [1]; and how many groups there are."""
    points = search.points
    group = _groups(points)
    groups = int(group.max()) + 1
    theta, drift, _ = search.again(at, 1.0 * (group != np.arange(groups)[:, None]), search.mean(at.free))
    found, _ = predict(at.design, theta)
    own = found[group, np.arange(len(points))] * np.exp(drift[group] * at.design.position)
    return np.abs(own / points.time_s - 1.0)[at.counted > 0.0], groups


def fit_points(
    points: Points, prior: IterationModel, *, prior_width: float = PRIOR_WIDTH, resamples: int = RESAMPLES
) -> Fit:
    r"""Fit the canonical model to measured iterations.

    Minimises :math:`\sum_i \rho(\ln t_i - \ln \hat t_i) + \sum_k (\ln p_k - \ln p_k^{prior})^2/s_k^2` with soft-L1
    :math:`\rho`, from several starts, for each tile; interference `x` is added only when mixed points call for it. When
    the order of measuring is known a linear drift is fitted with it and removed: the parameters are those at the start
    of the run. Intervals come from Bayesian resampling of the points (Dirichlet weights) with the prior's mean redrawn
    each time. Of more than ``MOST_POINTS`` points so many are fitted, spread evenly over the batches, and the residuals are
    those of all; more than ``LEFT_OUT_ALONE`` are left out in groups. A warning says so.

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

    References
    ----------
    Rubin, "The Bayesian bootstrap", Ann. Statist. 9(1), 1981, doi:10.1214/aos/1176345338.
    """
    given, points = points, _thinned(points)
    count = len(points)
    _enough(points)
    rng = np.random.default_rng(0)
    sd = prior_width * np.array([PRIOR_LOG_SD[name] for name in PARAMETERS])
    has_mixed = not points.composed and any(kind == "mixed" for kind in points.kinds)
    search = _Search(points, prior, _theta(prior), sd, _position(points, points))
    begin = search.best_start(has_mixed, rng)
    at = search.settled(begin, has_mixed)
    tile, design, theta, drift, free = at.tile, at.design, at.theta, at.drift, at.free
    mean = search.mean(free)
    weights = rng.dirichlet(np.full(count, CONCENTRATION), size=resamples) * count
    means = mean + PRIOR_REDRAW * np.where(free, sd, 0.0) * rng.standard_normal((resamples, len(PARAMETERS)))
    sample_theta = search.again(at, weights, means)[0]

    loo_error, groups = _left_out(search, at)
    everything = design if given is points else Design(given, prior, tile, _position(given, points))
    fitted = predict(everything, theta[None])[0][0] * np.exp(drift * everything.position)
    residuals = given.time_s / fitted - 1.0
    outliers = _far(residuals, OUTLIER_FACTOR)
    iteration = _model(_absolute(theta), tile, prior)
    samples = np.array([_absolute(values) for values in sample_theta])
    intervals = {name: ends(samples[:, k]) for k, name in enumerate(PARAMETERS)} | {"tau": (float(tile), float(tile))}
    if not free[X]:
        intervals["x"] = (0.0, _interference_bound(given, everything, residuals))
    identified = _identified(design, theta, intervals, sample_theta, sd, bool(free[X]))
    loo_mean, loo_p95 = float(loo_error.mean()), float(np.percentile(loo_error, TAILS[1]))
    drifted = None if search.position is None else drift
    warnings = _warnings(given, identified, has_mixed, outliers, residuals, drifted, loo_mean)
    if count > LEFT_OUT_ALONE:
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
        left_out_groups=groups if count > LEFT_OUT_ALONE else 0,
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
    if len(points) <= LEFT_OUT_ALONE:
        return np.arange(len(points))
    dealt = {batch: k % LEFT_OUT_GROUPS for k, batch in enumerate(_along(points))}
    return np.array([dealt[batch] for batch in points.batches])


def log_slopes(points: Points, prior: IterationModel) -> tuple[FloatArray, FloatArray]:
    """How the logarithm of each point's time depends on the log-parameters at the prior, and how far they are trusted.

    Returns
    -------
    slope, sd
        Shapes (P, 9) and (9,) [1].
    """
    time, slope = predict(Design(points, prior, prior.tau, None), _theta(prior)[None])
    return slope[0] / time[0][:, None], np.array([PRIOR_LOG_SD[name] for name in PARAMETERS])


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
    full = prior.at_batch()
    theta = np.log([max(float(getattr(full, name)), LEAST) for name in PARAMETERS])
    theta[E] = 0.0 if prior.e <= prior.g else math.log(prior.e / max(prior.g, LEAST))
    theta[X] = theta[B] if prior.x == 0.0 else math.log(prior.x)
    return theta


def _absolute(theta: FloatArray) -> FloatArray:
    values = np.exp(theta)
    # e below g never binds (l_max <= K): then the points say nothing about it and it is g
    values[E] = values[G] * max(1.0, values[E])
    values[X] = 0.0 if theta[X] <= _OFF + 1.0 else values[X]
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
    sd: FloatArray,
    with_x: bool,
) -> dict[str, bool]:
    """Which parameters the points tell: those they touch, whose interval is narrow, and far narrower than the prior had it."""
    found = {}
    slope = predict(design, theta[None])[1][0]
    for k, name in enumerate(PARAMETERS):
        touched = bool((slope[:, k] > 0.0).any())
        narrow = float(np.ptp(ends(sample_theta[:, k]))) <= 2.0 * IDENTIFIED_HALF_WIDTH
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


def _far(residuals: FloatArray, factor: float) -> tuple[int, ...]:
    limit = max(FAR_OFF, factor * _spread(residuals))
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
    farthest = sorted(outliers, key=lambda i: -abs(residuals[i]))[:MOST_NAMED]
    found: list[tuple[object, str, dict[str, object]]] = [
        (batches < ENOUGH_POINTS, "few_batches", {"batches": batches, "enough": ENOUGH_POINTS}),
        (points.composed, "mixed_composed", {}),
        (not points.composed and not has_mixed, "no_mixed", {}),
        (kinds.isdisjoint(("prefill", "chunk", "mixed")), "no_prefill", {}),
        (kinds.isdisjoint(("decode", "mixed")), "no_decode", {}),
        (has_mixed and "chunk" not in kinds, "no_chunk", {}),
        (vague, "not_identified", {"names": ", ".join(vague)}),
        *((True, "outlier", {"batch": points.batches[i], "residual": residuals[i]}) for i in sorted(farthest)),
        (len(outliers) > MOST_NAMED, "more_outliers", {"more": len(outliers) - MOST_NAMED}),
        (drift is not None and abs(drift) > POINT_SD, "drifted", {"drift": math.expm1(drift or 0.0)}),
        (leave_one_out > FAR_OFF, "left_out_batches", {"error": leave_one_out}),
    ]
    return list(those_that_hold(found))
