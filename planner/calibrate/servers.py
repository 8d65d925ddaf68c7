"""From the TTFT and TPOT of a running server, by prompt length, output length and concurrency, to an iteration-time model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from planner.calibrate.closed_loop import (
    DEFAULT_BUDGET,
    LOWEST_LOG,
    PARAMETERS,
    SCHEDULING,
    SHORTEST,
    FloatArray,
    Loads,
    Rules,
    ServerPoint,
    iteration_of,
    log_parameters,
    log_times,
    loop_times,
)
from planner.calibrate.fit import FAR_OFF, MIN_POINTS
from planner.calibrate.solver import CLEARLY, LEVEL_SD, MISFIT, POINT_SD, RESAMPLES, SLIGHT, TAILS, Problem, ends
from planner.errors import CalibrationError, refuse, refuse_unknown
from planner.machine.engines import DEFAULT_ENGINE, engine
from planner.machine.hardware import DTYPE_BYTES, GpuSpec, ModelSpec, shard
from planner.machine.iteration import IterationModel
from planner.machine.roofline import PRIOR_LOG_SD
from planner.shared.record import Record
from planner.shared.remarks import those_that_hold

ENOUGH_SHAPES = 6
"""Different (input, output) lengths from which W, H, g and beta_p can be told apart; with fewer the prior is rescaled."""

HOST_LOG_SD = {"request": 2.5, "overhead": 0.6, "h": 1.5, "more": 1.5}
"""Standard deviations of the logarithms of what the host adds, engines differing by orders of magnitude, and of `more` [1]."""

PRIOR_WIDTH = 3.0
"""With enough shapes the standard deviations of the kernels' prior are multiplied by this [1]."""

AROUND = (0.25, 1.0, 4.0)
"""Lengths and numbers in flight, over those measured, for which the band of few shapes holds; token budgets tried where none was
given, over the usual one [1]."""

FULL_SHARE = 0.75


REQUEST_S = 1.4e-3
"""Host time of a request where nothing else is known [s]: the middle of what closed loops of fifteen public servers fit (0.4 to
22 ms; whatever a request costs besides its tokens is in it). An estimate takes less, see planner/machine/engines/vllm.yaml."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What kept requests from running together.

    Parameters
    ----------
    slots
        Sequences at once, ``None`` where no limit was met [sequences].
    kv_tokens
        KV cache, ``None`` where it was not full [tokens].
    requests_per_s
        Answers of several lengths, ``None`` where more work always meant fewer requests: the front end or the client [1/s].
    """

    slots: float | None = None
    kv_tokens: float | None = None
    requests_per_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ServerFit(Record):
    """A model fitted to a server.

    Parameters
    ----------
    iteration
        The iteration-time model.
    request_s
        Time the engine loses per request (admission, sampling set-up, detokenization) [s].
    api_overhead_s, api_overhead_idle_s
        What the first token waits for outside the engine under load, and when the server is idle; ``None`` where not
        measured [s].
    intervals
        90% intervals by resampling the points, of ``W``, ``beta_p`` and every parameter [SI].
    tpot_error, tpot_error_p95
        Leave-one-shape-out relative error of TPOT, mean and 95th percentile; ``None`` with fewer than three shapes [1].
    tpot_error_by_shape
        Mean of it per (input, output).
    prior_error
        Mean relative error of the prior alone on the same points; ``None`` without a prior [1].
    ttft_error
        Leave-one-shape-out error of TTFT at concurrency 1, mean; ``None`` when not measured [1].
    error_band
        Half-width to print around a predicted iteration time, covering about 90% [1].
    rules, rules_chosen
        How the engine runs prompts, and whether that was chosen by the left-out error.
    limits
        Slots and KV cache the loads ran into.
    shapes, points
        How many.
    covered
        Smallest and largest of each quantity.
    warnings
        Sentences for people.
    theta, covariance
        Log-parameters and their posterior covariance, shapes (10,) and (10, 10).
    """

    iteration: IterationModel
    request_s: float
    api_overhead_s: float | None
    api_overhead_idle_s: float | None
    intervals: Mapping[str, tuple[float, float]]
    tpot_error: float | None
    tpot_error_p95: float | None
    tpot_error_by_shape: Mapping[tuple[float, float], float]
    prior_error: float | None
    ttft_error: float | None
    error_band: float
    rules: Rules
    rules_chosen: bool
    limits: Limits
    shapes: int
    points: int
    covered: Mapping[str, tuple[float, float]]
    warnings: tuple[str, ...]
    theta: FloatArray
    covariance: FloatArray

    written: ClassVar[tuple[str, ...]] = (
        *("iteration", "request_s", "api_overhead_s", "api_overhead_idle_s", "intervals_90=intervals"),
        *("leave_one_shape_out_tpot_error=tpot_error", "leave_one_shape_out_ttft_error=ttft_error"),
        *("prior_tpot_error=prior_error", "error_band", "scheduling=rules.scheduling", "token_budget=rules.budget"),
        *("bunched=rules.bunched", "rules_chosen", "slots=limits.slots", "kv_tokens=limits.kv_tokens"),
        *("requests_per_s=limits.requests_per_s", "shapes", "points", "covered", "warnings"),
    )

    @property
    def enough_shapes(self) -> bool:
        """Whether W, H, g and beta_p can be told apart by these shapes."""
        return self.shapes >= ENOUGH_SHAPES

    def predict(self, point: ServerPoint, *, from_load: bool = True) -> tuple[float, float, float]:
        """TPOT of another load, and the ends of its 90% interval [s].

        Parameters
        ----------
        point
            The load; its TPOT is not looked at.
        from_load
            Work out the number decoding from the load alone; otherwise from the point's own TTFT and TPOT.
        """
        loads = Loads([point], self.iteration, not from_load)
        logs, slope = log_times(self.theta[None], loads, self.rules)
        half = self._half_width(slope[0, :1])[0]
        middle = float(np.exp(logs[0, 0]))
        return middle, middle * math.exp(-half), middle * math.exp(half)

    def _half_width(self, slope: FloatArray) -> FloatArray:
        variance = np.einsum("pi,ij,pj->p", slope, self.covariance, slope)
        # a standard deviation is larger than a mean size; but three shapes left out in turn are themselves predicted from two, and
        # their error is as much as is known of the form's
        least, share = (POINT_SD, math.sqrt(0.5 * math.pi)) if self.enough_shapes else (MISFIT, 1.0)
        misfit = max(share * (self.tpot_error or 0.0), least)
        return np.asarray(LEVEL_SD * np.sqrt(variance + misfit**2))


def _intervals(
    problem: Problem, theta: FloatArray, covariance: FloatArray, resamples: int
) -> dict[str, tuple[float, float]]:
    """90% intervals: resampled points where there are enough, draws from the posterior otherwise."""
    if problem.counted.size >= 2 * len(PARAMETERS):
        draws = problem.resampled(theta, resamples, 1.0)
    else:
        rng = np.random.default_rng(1)
        draws = rng.multivariate_normal(theta, covariance, size=max(resamples, RESAMPLES), check_valid="ignore")
    columns = dict(zip(PARAMETERS, np.exp(draws).T, strict=True))
    columns |= {"W": columns["t0"] + columns["w"], "beta_p": columns["b"] + columns["c"]}
    return {name: ends(column) for name, column in columns.items()}


def _covariance(problem: Problem, theta: FloatArray) -> FloatArray:
    """Posterior covariance of the log-parameters, Laplace's, with the residuals' own size as their scale."""
    logs, slope = problem.model(theta[None])
    scale = max(POINT_SD, float(np.sqrt(np.mean((logs[0] - problem.target) ** 2))))
    inverse: FloatArray = np.linalg.inv(slope[0].T @ slope[0] / scale**2 + np.diag(problem.sd**-2.0))
    return 0.5 * (inverse + inverse.T)


def _loaded_overhead(x: Loads, theta: FloatArray, rules: Rules) -> float | None:
    """What TTFT under load has beyond the engine's own time, median over loads whose requests hardly queue [s]."""
    use = (x.concurrency > 1.0) & np.isfinite(x.ttft) & (x.share > FULL_SHARE)
    if not use.any():
        return None
    nothing = theta.copy()
    nothing[PARAMETERS.index("overhead")] = LOWEST_LOG
    engine = loop_times(nothing[None], x, rules)[1][0]
    return max(0.0, float(np.median((x.ttft - engine)[use])))


def _problem(
    x: Loads, shapes: int, prior: IterationModel | None, rules: Rules, more: bool = False, held: bool = True
) -> Problem:
    """The points with the prior of their parameters.

    `more`: decodes may cost more in the linear layers than prompt tokens do; `held`: few points are not explained by their host
    alone, though what they leave open is as wide as estimates are off.
    """
    width = PRIOR_WIDTH if shapes >= ENOUGH_SHAPES else 1.0
    sd = np.array([HOST_LOG_SD[n] if n in HOST_LOG_SD else width * PRIOR_LOG_SD[n] for n in PARAMETERS])
    if prior is None:
        sd = np.full(len(PARAMETERS), 2.0)
    if held and shapes < ENOUGH_SHAPES:
        sd *= np.where([n in HOST_LOG_SD for n in PARAMETERS], math.sqrt(0.5), 1.0)
    overhead_s = engine(DEFAULT_ENGINE).api_overhead_s
    mean = _unknown_prior(x) if prior is None else log_parameters(prior, REQUEST_S, overhead_s)
    mean[PARAMETERS.index("more")] = math.log(0.5) if more else LOWEST_LOG
    places = np.arange(x.tpot.size)
    target = np.log(np.concatenate([x.tpot, x.ttft[x.alone]]))
    model, of = partial(log_times, loads=x, rules=rules), np.concatenate([places, places[x.alone]])
    return Problem(model, target, of, np.ones(places.size), mean, sd)


def _unknown_prior(x: Loads) -> FloatArray:
    """Where GPU or model are not known: orders of magnitude from the data themselves, to be trusted little."""
    base = 0.8 * float(x.tpot.min())
    extra = np.maximum(x.tpot - base, 0.1 * x.tpot)
    per_token = float(np.median(extra / (x.concurrency * (1.0 + x.input / x.output))))
    per_kv = 0.3 * float(np.median(extra / (x.concurrency * (x.input + 0.5 * x.output))))
    values = [
        0.3 * base, 0.7 * base, 0.6 * per_token, 0.2 * per_token, per_kv, 0.2 * per_token, 0.1 * per_token / 1000.0,
        math.exp(LOWEST_LOG), REQUEST_S, engine(DEFAULT_ENGINE).api_overhead_s,
    ]  # fmt: skip
    return np.asarray(np.log(values))


def _chosen_rules(
    ruled: Callable[[Rules], Problem],
    shape_of: NDArray[np.int_],
    usual: Rules,
    scheduling: str | None,
    budget: float | None,
    bunched: bool,
) -> Rules:
    """Scheduling and budget: as given, else those that predict left-out shapes best; and whether requests moved together."""
    kinds = (scheduling,) if scheduling else SCHEDULING
    candidates = [usual]
    for kind in kinds:
        budgets = (budget,) if budget else [DEFAULT_BUDGET * of for of in (AROUND if kind == "mixed" else (1.0,))]
        others = (replace(usual, scheduling=kind, budget=b) for b in budgets)
        candidates += [rules for rules in others if rules != usual]
    if (len(candidates) == 1 and not bunched) or shape_of.max() + 1 < MIN_POINTS:
        return usual

    def missed(rules: Rules) -> float:
        problem = ruled(rules)
        return float(problem.left_out(problem.mean[None], shape_of)[: shape_of.size].mean())

    errors = {rules: missed(rules) for rules in candidates}
    for kind in kinds if bunched else ():
        apart = min((r for r in candidates if r.scheduling == kind), key=errors.__getitem__)
        together = replace(apart, bunched=True)
        errors[together] = missed(together)
    return min(errors, key=errors.__getitem__)


def fit_server(
    points: Sequence[ServerPoint],
    prior: IterationModel | None = None,
    *,
    scheduling: str | None = None,
    token_budget: float | None = None,
    slots: float | None = None,
    steady: bool = False,
    resamples: int = RESAMPLES,
) -> ServerFit:
    """Fit the canonical model to a server's TPOT over (input, output, concurrency) and its TTFT at concurrency 1.

    With six shapes or more the points decide; with fewer the prior is rescaled and bent as far as the points call for, and
    the band says how little that is.

    Parameters
    ----------
    points
        Loads and what was measured under them; one given twice counts once.
    prior
        Estimate of the GPU and model; ``None`` = not known, orders of magnitude are taken from the data.
    scheduling
        How the engine runs prompts: ``mixed`` with decodes (vLLM V1, TensorRT-LLM, Sarathi) or ``exclusive`` (SGLang without
        mixed chunks, vLLM V0); ``None`` = chosen by the error of left-out shapes.
    token_budget
        Tokens of one iteration at most; ``None`` = chosen the same way [tokens].
    slots
        Sequences at once at most, where known [sequences].
    steady
        Whether TTFT was taken with the loop in its steady state; load generators start all requests at once, and their
        mean TTFT is the queue of the start.
    resamples
        Fits behind the intervals, at least 2.

    Returns
    -------
    ServerFit

    Raises
    ------
    CalibrationError
        Without a prior and with fewer than six shapes: there is nothing to rescale, and TTFT and TPOT do not tell W, H, g
        and beta_p apart.
    InputError
        For points that cannot be.
    """
    if scheduling is not None:
        refuse_unknown("scheduling", scheduling, SCHEDULING)
    refuse([f"server point {i}: {text}" for i, p in enumerate(points, 1) for text in p.problems()])
    # no clock says the same twice to the last digit: a line copied is one measurement, and two thousand of it would take minutes
    points = list(dict.fromkeys(points))
    shapes = sorted({p.shape for p in points})
    if not shapes or (prior is None and len(shapes) < ENOUGH_SHAPES):
        raise CalibrationError(
            f"{len(points)} server points with {len(shapes)} different (input, output) lengths, and no prior to rescale",
            f"Name GPU and model, or vary both lengths ({ENOUGH_SHAPES} shapes, e.g. 256/1024/4096 in by 64/512 out).",
        )
    x = Loads(points, prior)
    limits = server_limits(points)
    shape_of = np.array([shapes.index(p.shape) for p in points])
    # load generators start all requests at once
    herd = not steady and bool(np.isfinite(x.ttft).any())
    most = limits.requests_per_s or math.inf
    usual = Rules(scheduling or SCHEDULING[0], token_budget or DEFAULT_BUDGET, slots or math.inf, requests_per_s=most)
    held_by = partial(_problem, x, len(shapes), prior)
    rules = _chosen_rules(held_by, shape_of, usual, scheduling, token_budget, herd)
    held = held_by(rules)
    (theta,), (loss,) = held.solve(held.starts())
    missed = np.empty(0)
    if len(shapes) >= MIN_POINTS:
        missed = held.left_out(np.stack([theta, held.mean]), shape_of)
    if len(shapes) >= ENOUGH_SHAPES:
        freed = held_by(rules, more=True)
        (found_more,), (least,) = freed.solve(freed.starts())
        missed_more = freed.left_out(np.stack([found_more, freed.mean]), shape_of)
        better = missed_more[: len(points)].mean() / missed[: len(points)].mean()
        clearly = loss - least > CLEARLY * max(1.0, least / x.tpot.size)
        # left-out shapes see little of what depends on the number in flight alone
        if better < 1.0 - SLIGHT or (better <= 1.0 and clearly):
            held, theta, missed = freed, found_more, missed_more
    missed, missed_alone = missed[: len(points)], missed[len(points) :]
    covariance = _covariance(held_by(rules, held=False), theta)
    prior_error = None
    if prior is not None:
        prior_error = float(np.abs(loop_times(held.mean[None], x, rules)[0][0] / x.tpot - 1.0).mean())
    by_shape = {s: float(missed[shape_of == i].mean()) for i, s in enumerate(shapes)} if missed.size else {}
    idle = float(np.exp(theta[PARAMETERS.index("overhead")])) if x.alone.any() else None
    quantities = {"input_tokens": x.input, "output_tokens": x.output, "decodes": np.array([p.running for p in points])}
    found = ServerFit(
        iteration=iteration_of(theta, prior),
        request_s=float(np.exp(theta[PARAMETERS.index("request")])),
        api_overhead_s=_loaded_overhead(x, theta, rules) if steady else None,
        api_overhead_idle_s=idle,
        intervals=_intervals(held, theta, covariance, resamples),
        tpot_error=float(missed.mean()) if missed.size else None,
        tpot_error_p95=float(np.percentile(missed, TAILS[1])) if missed.size else None,
        tpot_error_by_shape=by_shape,
        prior_error=prior_error,
        ttft_error=float(missed_alone.mean()) if missed_alone.size else None,
        error_band=0.0,
        rules=rules,
        rules_chosen=rules != usual,
        limits=limits,
        shapes=len(shapes),
        points=len(points),
        covered={name: (float(of.min()), float(of.max())) for name, of in quantities.items()},
        warnings=_warnings(x, len(shapes), prior is not None, missed, limits),
        theta=theta,
        covariance=covariance,
    )
    return _with_band(found, x, missed)


def _with_band(fit: ServerFit, x: Loads, missed: FloatArray) -> ServerFit:
    """The fit with its band: what left-out shapes were missed by, or, with few shapes, what the posterior leaves open."""
    if fit.shapes >= ENOUGH_SHAPES:
        # one more is as likely to be anywhere among them
        level = (TAILS[1] - TAILS[0]) / 100.0 * (1.0 + 1.0 / missed.size)
        return replace(fit, error_band=max(POINT_SD, float(np.quantile(missed, min(level, 1.0)))))
    # loads like the ones measured: a factor of four in each length, all numbers in flight up to four times the largest
    isl, osl = float(np.median(x.input)), float(np.median(x.output))
    reference = [
        ServerPoint(max(SHORTEST[0], isl * i), max(SHORTEST[1], osl * o), c, 1.0)
        for i, o in itertools.product(AROUND, AROUND)
        for c in (1.0, float(np.median(x.concurrency)), AROUND[-1] * float(x.concurrency.max()))
    ]
    slope = log_times(fit.theta[None], Loads(reference, fit.iteration, False), fit.rules)[1]
    half = fit._half_width(slope[0, : len(reference)])
    return replace(fit, error_band=max(POINT_SD, float(np.sqrt(np.mean(half**2)))))


def server_limits(points: Sequence[ServerPoint]) -> Limits:
    """Slots or KV cache that the loads ran into: requests in flight grew, those decoding did not.

    Parameters
    ----------
    points
        Loads with TTFT measured.

    Examples
    --------
    >>> server_limits([ServerPoint(256, 101, c, 0.01, 1.0 * (c / 32 - 1) + 0.01) for c in (16, 64, 128)]).slots
    32
    """
    rate = _most_requests(points)
    x, running = Loads(points), np.array([p.running for p in points])
    # of what was not measured neither holds
    waiting = (running < FULL_SHARE * x.concurrency) & (x.ttft > 20.0 * x.tpot)
    if np.unique(x.concurrency[waiting]).size < 2:
        return Limits(requests_per_s=rate)
    running, held = running[waiting], (running * (x.input + 0.5 * x.output))[waiting]
    steady = [float(np.std(v) / np.mean(v)) < SLIGHT for v in (running, held)]
    slots, tokens = (round(float(np.median(v))) for v in (running, held))
    return Limits(slots if steady[0] else None, tokens if steady[1] and not steady[0] else None, rate)


def _most_requests(points: Sequence[ServerPoint]) -> float | None:
    """Requests per second that loads of three lengths come to and none exceeds: a limit of the host, not of the GPU [1/s]."""
    timed = [p for p in points if p.ttft_s is not None]
    x = Loads(timed)
    rates = [*zip(x.concurrency / (x.ttft + (x.output - 1.0) * x.tpot), (p.shape for p in timed), strict=True)]
    most = max((rate for rate, _ in rates), default=0.0)
    at_limit = [(rate, shape) for rate, shape in rates if rate > (1.0 - SLIGHT) * most]
    unlike: list[tuple[float, float]] = []
    for _, shape in at_limit:
        # one of both lengths twice as long: the same rate then means something
        if all(max(a / b for a, b in zip((*shape, *one), (*one, *shape), strict=True)) >= 2.0 for one in unlike):
            unlike.append(shape)
    return float(np.mean([rate for rate, _ in at_limit])) if len(unlike) >= MIN_POINTS else None


def _warnings(x: Loads, shapes: int, estimated: bool, missed: FloatArray, limits: Limits) -> tuple[str, ...]:
    """What the points cannot tell apart, and where the fit is no better than its prior."""
    levels = set(x.concurrency.tolist())
    error = missed.mean() if missed.size else 0.0
    waited = limits.slots is not None
    told = "1 shape" if shapes == 1 else f"{shapes} shapes"
    found = [
        (shapes < ENOUGH_SHAPES, "few_shapes", {"shapes": told, "enough": ENOUGH_SHAPES}),
        (len(levels) < 2, "one_concurrency", {"concurrency": min(levels)}),
        (not x.alone.any(), "no_alone", {}),
        (not np.isfinite(x.ttft).all(), "no_ttft", {}),
        (not estimated, "no_prior", {}),
        (error > FAR_OFF, "left_out_shapes", {"error": error}),
        (waited, "slots_full", {"slots": limits.slots}),
        (not waited and limits.kv_tokens is not None, "kv_full", {"tokens": limits.kv_tokens}),
        (limits.requests_per_s is not None, "front_end_limit", {"rate": limits.requests_per_s}),
    ]
    return those_that_hold(found)


def hardware_limit(gpu: GpuSpec, model: ModelSpec, tp: int = 1) -> IterationModel:
    """The iteration time that bytes over bandwidth and operations over peak rate allow at best.

    A server that is faster does not do the work: its prompts come from a prefix cache, several tokens come per iteration,
    or GPU, model or dtype are not the ones named.

    Parameters
    ----------
    gpu, model
        What is said to run.
    tp
        GPUs of the group [GPUs].

    Examples
    --------
    >>> from planner.catalog import gpu, model
    >>> round(hardware_limit(gpu("h100"), model("llama-3.1-8b")).w * 1e3, 2)
    4.17
    """
    part = shard(model, tp)
    dense = part.mixer_parameters + part.mlp_parameters
    element = DTYPE_BYTES[model.weight_dtype]
    peak = max(gpu.flops_per_s.get(model.weight_dtype, 0.0), *gpu.flops_per_s.values())
    experts = part.expert_parameters
    return IterationModel(
        t0=0.0,
        w=dense * min(element, 2.0) / gpu.bandwidth_bytes_per_s,
        b=2.0 * (dense + part.active_expert_parameters) / peak,
        w_experts=experts * element / gpu.bandwidth_bytes_per_s,
        expert_share=model.experts_per_token / model.experts if experts else 0.0,
    )


def faster_than_hardware(points: Sequence[ServerPoint], limit: IterationModel) -> FloatArray:
    """Share of its GPUs' time that a load would have needed at 100% of the data sheet, shape (points,) [1].

    Beyond 1 the server did not do the work that the table says: prompts came from a prefix cache, several tokens came with a
    step, or model, dtype or number of GPUs are others. Loads without a measured TTFT are judged by their TPOT alone.

    Parameters
    ----------
    points
        Loads in closed loops.
    limit
        :func:`hardware_limit` of what is said to run.

    Examples
    --------
    >>> from planner.catalog import gpu, model
    >>> best = hardware_limit(gpu("h100"), model("llama-3.1-8b"))
    >>> told = [ServerPoint(4000.0, 100.0, 64.0, 0.012, ttft) for ttft in (1.5, 0.05)]
    >>> faster_than_hardware(told, best).round(2).tolist()
    [0.69, 1.49]
    """
    x = Loads(points)
    per_s = x.concurrency / (x.ttft + (x.output - 1.0) * x.tpot)
    return np.fmax(limit.weight_time(1.0) / x.tpot, per_s * limit.b * (x.input + x.output))
