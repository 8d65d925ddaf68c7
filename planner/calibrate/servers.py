"""From the TTFT and TPOT of a running server, by prompt length, output length and concurrency, to an iteration-time model."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import CalibrationError, InputError, did_you_mean
from planner.iteration.model import IterationModel
from planner.iteration.roofline import PRIOR_LOG_SD

__all__ = ["MIN_SHAPES", "ServerFit", "ServerPoint", "closed_loop_tpot", "fit_server", "read_servers_csv"]

FloatArray = NDArray[np.float64]

MIN_SHAPES = 6
"""Different (input, output) lengths below which a fit is refused: W, H, g and beta_p cannot be told apart."""

DEFAULT_BUDGET = 8192
"""Prompt tokens an engine takes into one iteration where it is not told [tokens]."""

SCHEDULING = ("mixed", "exclusive")

NAMES = ("t0", "w", "b", "c", "g", "h", "a", "request", "overhead")
REQUEST_PRIOR_S = 1e-3
OVERHEAD_PRIOR_S = 5e-3
PRIOR_WIDTH = 5.0
"""Servers differ more from the roofline than kernels do (host time, scheduler): standard deviations are multiplied by this."""

SCALE = 0.02
STARTS = 3
RESAMPLES = 60


@dataclass(frozen=True, slots=True)
class ServerPoint:
    """One load on a server: closed loop, `concurrency` requests in flight.

    Parameters
    ----------
    input_tokens, output_tokens
        Mean lengths [tokens].
    concurrency
        Requests in flight [requests].
    tpot_s
        Mean time per output token after the first [s].
    ttft_s
        Mean time to first token; used at concurrency 1 only [s].
    """

    input_tokens: float
    output_tokens: float
    concurrency: float
    tpot_s: float
    ttft_s: float | None = None

    @property
    def shape(self) -> tuple[float, float]:
        """(input, output)."""
        return (self.input_tokens, self.output_tokens)

    def problems(self) -> list[str]:
        """What cannot be; empty when usable."""
        found = [
            f"{name} must be positive, got {getattr(self, name)!r}"
            for name in ("input_tokens", "output_tokens", "concurrency", "tpot_s")
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0.0)
        ]
        if self.ttft_s is not None and not (math.isfinite(self.ttft_s) and self.ttft_s > 0.0):
            found.append(f"ttft_s must be positive, got {self.ttft_s!r}")
        return found


@dataclass(frozen=True, slots=True, eq=False)
class ServerFit:
    """A model fitted to a server.

    Parameters
    ----------
    iteration
        The iteration-time model.
    request_s
        Time the engine loses per request (admission, sampling set-up, detokenization) [s].
    api_overhead_s
        What TTFT has beyond the engine's iterations; ``None`` when TTFT at concurrency 1 was not measured [s].
    intervals
        90% intervals by resampling the points, of ``W``, ``beta_p`` and every parameter [SI].
    tpot_error, tpot_error_p95
        Leave-one-shape-out relative error of TPOT, mean and 95th percentile [1].
    tpot_error_by_shape
        Mean of it per (input, output).
    ttft_error
        Leave-one-shape-out error of TTFT at concurrency 1, mean; ``None`` when not measured [1].
    scheduling
        ``mixed`` or ``exclusive``, as assumed.
    shapes, points
        How many.
    covered
        Smallest and largest of each quantity.
    warnings
        Sentences for people.
    """

    iteration: IterationModel
    request_s: float
    api_overhead_s: float | None
    intervals: Mapping[str, tuple[float, float]]
    tpot_error: float
    tpot_error_p95: float
    tpot_error_by_shape: Mapping[tuple[float, float], float]
    ttft_error: float | None
    scheduling: str
    shapes: int
    points: int
    covered: Mapping[str, tuple[float, float]]
    warnings: tuple[str, ...]

    @property
    def error_band(self) -> float:
        """Half-width to print around a predicted iteration time [1]."""
        return max(0.05, self.tpot_error_p95)

    def predict_tpot(self, point: ServerPoint) -> float:
        """TPOT of another load [s]."""
        theta = _theta_of(self.iteration, self.request_s, self.api_overhead_s or OVERHEAD_PRIOR_S)
        return float(_tpot(theta, _Loads([point]), self.scheduling, DEFAULT_BUDGET)[0])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "iteration": self.iteration.to_dict(),
            "request_s": self.request_s,
            "api_overhead_s": self.api_overhead_s,
            "intervals_90": {k: list(v) for k, v in self.intervals.items()},
            "leave_one_shape_out_tpot_error": self.tpot_error,
            "leave_one_shape_out_ttft_error": self.ttft_error,
            "error_band": self.error_band,
            "scheduling": self.scheduling,
            "shapes": self.shapes,
            "points": self.points,
            "covered": {k: list(v) for k, v in self.covered.items()},
            "warnings": list(self.warnings),
        }


class _Loads:
    """Arrays of a list of points."""

    def __init__(self, points: Sequence[ServerPoint]) -> None:
        self.isl = np.array([p.input_tokens for p in points])
        self.osl = np.array([p.output_tokens for p in points])
        self.concurrency = np.array([p.concurrency for p in points])
        self.tpot = np.array([p.tpot_s for p in points])
        self.ttft = np.array([p.ttft_s if p.ttft_s is not None else math.nan for p in points])
        self.alone = (self.concurrency == 1.0) & np.isfinite(self.ttft)


def closed_loop_tpot(
    model: IterationModel,
    input_tokens: float,
    output_tokens: float,
    concurrency: float,
    *,
    scheduling: str = "mixed",
    token_budget: float = DEFAULT_BUDGET,
    request_s: float = 0.0,
) -> float:
    r"""Mean TPOT of a closed loop of equal requests.

    With C requests in flight each decode step sees m = (C - 1)/osl prompts of the others start. ``exclusive``: a prompt
    stalls all decodes, TPOT = t(C) + m t_p(isl). ``mixed``: prompts ride along in chunks of at most the token budget B,
    TPOT = (1 - phi) t(C) + phi t(C, chunk) with phi = min(1, m ceil(isl/B)). Where prompts lie above the knee and decodes
    below it this is W + H C + g C (isl + osl/2) + beta_p (C - 1) isl/osl and a little less per prompt.

    Parameters
    ----------
    model
        Iteration-time model.
    input_tokens, output_tokens
        isl, osl [tokens].
    concurrency
        C, requests in flight [requests].
    scheduling
        ``mixed`` or ``exclusive``.
    token_budget
        B [tokens].
    request_s
        Time lost per request [s].

    Returns
    -------
    float
        [s].

    Examples
    --------
    >>> m = IterationModel(t0=5e-3, c=10e-6, g=50e-9)
    >>> round(closed_loop_tpot(m, 1000, 100, 10), 9)                 # 5 ms + 0.1 ms + 0.525 ms + 0.9 ms
    0.006525
    """
    theta = _theta_of(model, request_s, 0.0)
    loads = _Loads([ServerPoint(input_tokens, output_tokens, concurrency, 1.0)])
    return float(_tpot(theta, loads, scheduling, token_budget)[0])


def _theta_of(model: IterationModel, request_s: float, overhead_s: float) -> FloatArray:
    full = model.at_batch()
    values = [full.t0, full.w, full.b, full.c, full.g, full.h, full.a, request_s, overhead_s]
    with np.errstate(divide="ignore"):
        logs: FloatArray = np.log(np.array(values))
    return logs


def _tpot(theta: FloatArray, x: _Loads, scheduling: str, budget: float) -> FloatArray:
    t0, w, b, c, g, h, a, request = (float(v) for v in np.exp(theta[:8]))
    n = x.concurrency
    # a request's own prompt is its TTFT, not its TPOT
    started = np.maximum(n - 1.0, 1e-9) / x.osl
    pairs = 0.5 * x.isl * (x.isl + 1.0)
    decode_only = t0 + np.maximum(w, b * n) + (c + h + g * (x.isl + 0.5 * x.osl)) * n
    if scheduling == "exclusive":
        prefill = t0 + np.maximum(w, b * x.isl) + c * x.isl + a * pairs
        stalled: FloatArray = decode_only + started * (prefill + request)
        return stalled
    with_prefill = np.minimum(1.0, started * np.ceil(x.isl / budget))
    chunk = started * x.isl / with_prefill
    tokens = n + chunk
    both = t0 + np.maximum(w, b * tokens) + c * tokens + (h + g * (x.isl + 0.5 * x.osl)) * n
    both += a * pairs * started / with_prefill
    mean: FloatArray = (1.0 - with_prefill) * decode_only + with_prefill * both + started * request
    return mean


def _ttft(theta: FloatArray, x: _Loads, budget: float) -> FloatArray:
    """Of a request alone: its chunks one after another, and the host's share."""
    t0, w, b, c, _, _, a, request, overhead = (float(v) for v in np.exp(theta))
    chunks = np.ceil(x.isl / budget)
    full = np.minimum(x.isl, budget)
    last = x.isl - (chunks - 1.0) * full
    linear = (chunks - 1.0) * np.maximum(w, b * full) + np.maximum(w, b * last)
    total: FloatArray = chunks * t0 + linear + c * x.isl + a * 0.5 * x.isl * (x.isl + 1.0) + request + overhead
    return total


def _generic_prior(x: _Loads) -> FloatArray:
    """Where GPU or model are not known: orders of magnitude from the data themselves, to be trusted little."""
    base = 0.8 * float(x.tpot.min())
    extra = np.maximum(x.tpot - base, 0.1 * x.tpot)
    per_token = float(np.median(extra / (x.concurrency * (1.0 + x.isl / x.osl))))
    per_kv = 0.3 * float(np.median(extra / (x.concurrency * (x.isl + 0.5 * x.osl))))
    values = [
        0.3 * base, 0.7 * base, 0.6 * per_token, 0.2 * per_token, per_kv, 0.2 * per_token,
        0.1 * per_token / 1000.0, REQUEST_PRIOR_S, OVERHEAD_PRIOR_S,
    ]  # fmt: skip
    logs: FloatArray = np.log(np.array(values))
    return logs


def _solve(
    x: _Loads,
    weights: FloatArray,
    prior: FloatArray,
    sd: FloatArray,
    starts: Sequence[FloatArray],
    scheduling: str,
    budget: float,
) -> FloatArray:
    """Levenberg-Marquardt on soft-L1 relative residuals of TPOT and of TTFT alone, with a Gaussian prior on the logs."""
    alone = x.alone
    target = np.concatenate([np.log(x.tpot), np.log(np.where(alone, x.ttft, 1.0))[alone]])
    weight = np.concatenate([weights, weights[alone]])

    def modelled(theta: FloatArray) -> FloatArray:
        return np.concatenate([np.log(_tpot(theta, x, scheduling, budget)), np.log(_ttft(theta, x, budget)[alone])])

    def linearised(theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        base = modelled(theta)
        jacobian = np.empty((target.size, theta.size))
        for k in range(theta.size):
            moved = theta.copy()
            moved[k] += 1e-5
            jacobian[:, k] = (modelled(moved) - base) / 1e-5
        return (base - target) / SCALE, jacobian / SCALE

    def loss(gap: FloatArray, theta: FloatArray) -> float:
        return float((weight * 2.0 * (np.sqrt(1.0 + gap**2) - 1.0)).sum() + (((theta - prior) / sd) ** 2).sum())

    best: tuple[float, FloatArray] | None = None
    for start in starts:
        theta, damping = start.copy(), 1e-2
        gap, jacobian = linearised(theta)
        cost = loss(gap, theta)
        for _ in range(50):
            curvature = weight / np.sqrt(1.0 + gap**2)
            hessian = (jacobian * curvature[:, None]).T @ jacobian + np.diag(1.0 / sd**2)
            gradient = (jacobian * curvature[:, None]).T @ gap + (theta - prior) / sd**2
            step = -np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
            trial = theta + np.clip(step, -2.0, 2.0)
            trial_cost = loss((modelled(trial) - target) / SCALE, trial)
            if trial_cost <= cost:
                gain, theta, cost = cost - trial_cost, trial, trial_cost
                gap, jacobian = linearised(theta)
                damping = max(0.3 * damping, 1e-9)
                if gain <= 1e-8 * (1.0 + cost):
                    break
            else:
                damping *= 6.0
                if damping > 1e8:
                    break
        if best is None or cost < best[0]:
            best = (cost, theta)
    assert best is not None
    return best[1]


def fit_server(
    points: Sequence[ServerPoint],
    prior: IterationModel | None = None,
    *,
    scheduling: str = "mixed",
    token_budget: float = DEFAULT_BUDGET,
    force: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> ServerFit:
    """Fit the canonical model to a server's TPOT over (input, output, concurrency) and its TTFT at concurrency 1.

    Parameters
    ----------
    points
        Loads and what was measured under them.
    prior
        Roofline estimate of the GPU and model; ``None`` = not known, orders of magnitude are taken from the data.
    scheduling
        How the engine runs prompts: ``mixed`` with decodes (vLLM V1, TensorRT-LLM, Sarathi) or ``exclusive`` (SGLang without
        mixed chunks, vLLM V0).
    token_budget
        Prompt tokens of one iteration at most [tokens].
    force
        Fit with fewer than six shapes, warning instead of refusing.
    resamples
        Fits behind the intervals, at least 2.
    seed
        Of starts and resampling.

    Returns
    -------
    ServerFit

    Raises
    ------
    CalibrationError
        With fewer than six shapes (three with `force`): TTFT and TPOT do not tell W, H, g and beta_p apart.
    InputError
        For points that cannot be.
    """
    if scheduling not in SCHEDULING:
        raise InputError(f"scheduling {scheduling!r} is none of {', '.join(SCHEDULING)}")
    problems = [f"server point {i}: {text}" for i, p in enumerate(points, 1) for text in p.problems()]
    if problems:
        raise InputError.from_problems(problems)
    shapes = sorted({p.shape for p in points})
    needed = 3 if force else MIN_SHAPES
    if len(shapes) < needed:
        raise CalibrationError(
            f"{len(points)} server points with {len(shapes)} different (input, output) lengths: at least {needed} are needed",
            "Vary both lengths, e.g. 256/1024/4096 in by 64/512 out, at two or three concurrencies.",
        )
    x = _Loads(points)
    rng = np.random.default_rng(seed)
    if prior is None:
        centre = _generic_prior(x)
        sd = np.array([1.0, 1.0, 1.5, 1.5, 1.5, 1.5, 1.5, 2.0, 1.0])
    else:
        centre = _theta_of(prior, REQUEST_PRIOR_S, OVERHEAD_PRIOR_S)
        centre = np.maximum(centre, -45.0)
        sd = PRIOR_WIDTH * np.array([PRIOR_LOG_SD[n] for n in NAMES[:7]] + [0.7, 0.4])
    starts = [centre, *(centre + 0.5 * np.minimum(sd, 1.5) * rng.standard_normal((STARTS - 1, len(NAMES))))]
    ones = np.ones(len(points))
    theta = _solve(x, ones, centre, sd, starts, scheduling, token_budget)

    shape_of = [p.shape for p in points]
    error = np.empty(len(points))
    ttft_errors = []
    for shape in shapes:
        out = np.array([s == shape for s in shape_of])
        kept = _solve(x, (~out).astype(float), centre, sd, [theta, starts[1]], scheduling, token_budget)
        error[out] = np.abs(_tpot(kept, x, scheduling, token_budget) / x.tpot - 1.0)[out]
        alone = out & x.alone
        ttft_errors += list(np.abs(_ttft(kept, x, token_budget)[alone] / x.ttft[alone] - 1.0))
    draws = []
    for _ in range(resamples):
        weights = rng.dirichlet(ones) * len(points)
        mean = centre + 0.85 * sd * rng.standard_normal(len(NAMES))
        draws.append(_solve(x, weights, mean, sd, [theta], scheduling, token_budget))
    sampled = np.exp(np.array(draws))
    values = dict(zip(NAMES, np.exp(theta).tolist(), strict=True))
    intervals = {}
    columns = {name: sampled[:, k] for k, name in enumerate(NAMES)}
    columns["W"] = columns["t0"] + columns["w"]
    columns["beta_p"] = columns["b"] + columns["c"]
    for name, column in columns.items():
        low, high = np.percentile(column, [5.0, 95.0])
        intervals[name] = (float(low), float(high))
    has_ttft = bool(x.alone.any())
    tau = 1
    e = values["g"]
    iteration = IterationModel(**{k: values[k] for k in ("t0", "w", "b", "c", "g", "h", "a")}, tau=tau, e=e)
    concurrency = sorted(set(x.concurrency.tolist()))
    warnings = []
    if len(shapes) < MIN_SHAPES:
        warnings.append(f"Only {len(shapes)} shapes: parameters lean on the prior; at least {MIN_SHAPES} are advised.")
    if len(concurrency) < 2:
        warnings.append(
            f"Only concurrency {concurrency[0]:g} was measured: W and H are told apart by the lengths alone."
        )
    if not has_ttft:
        warnings.append(
            "TTFT at concurrency 1 was not measured: prefill and API overhead come from TPOT and the prior."
        )
    if prior is None:
        warnings.append("GPU or model are not known: no roofline prior held the fit.")
    loo = float(error.mean())
    if loo > 0.10:
        warnings.append(
            f"Left-out shapes are missed by {100 * loo:.0f}% on average: the server does something else too."
        )
    tail = max(x.ttft[np.isfinite(x.ttft)].tolist(), default=0.0)
    if tail and float(np.nanmax(x.ttft / (x.osl * x.tpot))) > 1.0:
        warnings.append("At some loads requests waited longer than they decoded: slots or KV memory were full there.")
    return ServerFit(
        iteration=iteration,
        request_s=values["request"],
        api_overhead_s=values["overhead"] if has_ttft else None,
        intervals=intervals,
        tpot_error=loo,
        tpot_error_p95=float(np.quantile(error, 0.95)),
        tpot_error_by_shape={s: float(error[[q == s for q in shape_of]].mean()) for s in shapes},
        ttft_error=float(np.mean(ttft_errors)) if ttft_errors else None,
        scheduling=scheduling,
        shapes=len(shapes),
        points=len(points),
        covered={
            "input_tokens": (float(x.isl.min()), float(x.isl.max())),
            "output_tokens": (float(x.osl.min()), float(x.osl.max())),
            "decodes": (concurrency[0], concurrency[-1]),
        },
        warnings=tuple(warnings),
    )


_ALIASES: Mapping[str, tuple[str, ...]] = {
    "input_tokens": ("isl", "input_tokens", "input_len", "prompt_tokens"),
    "output_tokens": ("osl", "output_tokens", "output_len"),
    "concurrency": ("concurrency", "max_concurrency"),
    "tpot": ("silicon_tpot_ms", "tpot_ms", "mean_tpot_ms"),
    "ttft": ("silicon_ttft_ms", "ttft_ms", "mean_ttft_ms"),
}
GROUP_COLUMNS = ("model_path", "system", "backend", "backend_version", "precision", "tp_size")


def read_servers_csv(path: Path, *, text: str | None = None) -> dict[tuple[str, ...], list[ServerPoint]]:
    """Read a CSV of server points: ``isl, osl, concurrency, tpot_ms`` and, if measured, ``ttft_ms``.

    Parameters
    ----------
    path
        The file.
    text
        Its content, when already read.

    Returns
    -------
    dict
        Points by (model_path, system, backend, backend_version, precision, tp_size), empty where there is no such column.

    Raises
    ------
    InputError
        With every problem of the file.
    """
    if text is None:
        text = path.read_text(encoding="utf-8-sig")
    reader = csv.DictReader(text.splitlines())
    header = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = header
    found = {key: next((n for n in names if n in header), None) for key, names in _ALIASES.items()}
    missing = [names[0] for key, names in _ALIASES.items() if found[key] is None and key != "ttft"]
    if missing:
        told = [f"{path.name}: column {m!r} is missing{did_you_mean(m, header)}" for m in missing]
        raise InputError.from_problems(told, "A CSV of server points has isl, osl, concurrency, tpot_ms and ttft_ms.")
    groups: dict[tuple[str, ...], list[ServerPoint]] = {}
    problems = []
    for line, row in enumerate(reader, 2):
        try:
            point = ServerPoint(
                float(row[found["input_tokens"] or ""]),
                float(row[found["output_tokens"] or ""]),
                float(row[found["concurrency"] or ""]),
                float(row[found["tpot"] or ""]) * 1e-3,
                float(row[found["ttft"]]) * 1e-3 if found["ttft"] and row.get(found["ttft"]) else None,
            )
        except (TypeError, ValueError):
            problems.append(f"{path.name}:{line}: not numbers: {dict(row)!r}"[:200])
            continue
        problems += [f"{path.name}:{line}: {p}" for p in point.problems()]
        groups.setdefault(tuple((row.get(c) or "").strip() for c in GROUP_COLUMNS), []).append(point)
    if problems:
        shown = problems[:20] + ([f"... and {len(problems) - 20} more"] if len(problems) > 20 else [])
        raise InputError.from_problems(shown, heading=f"{path.name}: {len(problems)} problems")
    if not groups:
        raise InputError(f"{path.name}: no server points in it")
    return groups
