"""Which loads to send to a server next: those that tell most, per second, about the range a plan will use."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.calibrate.closed_loop import SHORTEST, FloatArray, Loads, Rules, ServerPoint, log_times, window_s
from planner.calibrate.fit import ENOUGH_POINTS, MIN_POINTS
from planner.calibrate.launch import plan_pools
from planner.calibrate.live import LiveServer, Load, LoadResult
from planner.calibrate.servers import AROUND, ENOUGH_SHAPES, ServerFit, fit_server
from planner.calibrate.solver import MISFIT, POINT_SD
from planner.errors import CalibrationError, InputError
from planner.machine.iteration import IterationModel
from planner.units import LEAST

Progress = Callable[[int, int, str], None]
"""Called with (seconds used, seconds in all, what is running)."""

LOAD_SHARE = 0.08
"""Share of the whole time one load may take; the first ones are shorter [1]."""
ALONE = 3
"""Requests measured where one is in flight; otherwise two of each worker."""
MOST_LOADS = 60
"""Loads sent at most, whatever time is left."""
FULL_LOAD, FEWEST_RUNNING = 0.85, 4.0
"""A plan's replicas may run up to this share of their capacity [1], and a batch of this many is looked at in any case."""
FORM_REACH = math.log(AROUND[-1])
"""How far apart loads are that the form itself misses alike, in logarithms of lengths and requests in flight: without it the
cheapest loads would be believed to tell about the dearest."""
ENOUGH_FAILED = 3
"""Loads in a row without an answer after which nothing answers any more."""


@dataclass(frozen=True, slots=True)
class OperatingRange:
    """Where a plan will run: what the measuring is for.

    Parameters
    ----------
    max_input, max_output
        Longest lengths [tokens].
    max_concurrency
        Most requests in flight [requests].
    max_requests
        Bound of all requests together [requests].
    typical
        (input, output, running) of the pools a plan has; the range as a whole when empty [tokens, tokens, sequences].
    """

    max_input: int = 4096
    max_output: int = 256
    max_concurrency: int = 32
    max_requests: int = 1000
    typical: tuple[tuple[float, float, float], ...] = ()

    def __post_init__(self) -> None:
        if self.max_input < 2 * SHORTEST[0] or self.max_output < 2 * SHORTEST[1]:
            lengths = f"max_input={self.max_input}, max_output={self.max_output}"
            raise InputError(f"{lengths}: too short to tell six shapes apart")
        if self.max_concurrency < 2:
            raise InputError(f"max_concurrency={self.max_concurrency}: at least 2 are needed to see a batch")
        if self.max_requests < 20:
            raise InputError(f"max_requests={self.max_requests} is too few: 20 are the least for a fit")

    @classmethod
    def for_plan(cls, path: str | Path, max_requests: int = 1000, pool: str | None = None) -> OperatingRange:
        """The range in which a plan will run: lengths around the means of its pools, up to the sequences of a full replica.

        Parameters
        ----------
        path
            Plan file.
        max_requests
            Bound of all requests together [requests].
        pool
            Only this pool of it.

        Raises
        ------
        InputError
            When the file is no plan, or states no lengths, or has no such pool.
        """
        typical = []
        keys = ("mean_input_tokens", "mean_output_tokens", "slots", "load", "slot_occupancy")
        for number, one in enumerate(plan_pools(path, pool)):
            try:
                isl, osl, slots, load, occupancy = (float(one[key]) for key in keys)
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{path}: pools[{number}] does not say what runs in it ({error})") from None
            running = slots * occupancy / max(load, LEAST) * FULL_LOAD
            if not (isl >= 1.0 and osl >= 1.0 and slots >= 1.0 and math.isfinite(isl + osl + running)):
                raise InputError(f"{path}: pools[{number}]: lengths or slots that cannot be")
            typical.append((isl, osl, min(slots, max(FEWEST_RUNNING, running))))
        isl, osl, running = (max(column) for column in zip(*typical, strict=True))
        prompt, answer = (max(2 * least, round(2.0 * mean)) for least, mean in zip(SHORTEST, (isl, osl), strict=True))
        return cls(prompt, answer, max(2, round(running)), max_requests, tuple(typical))

    @property
    def inputs(self) -> tuple[int, ...]:
        """Prompt lengths to send, about a factor of four apart [tokens]."""
        return _ladder(max(SHORTEST[0], self.max_input // 16), self.max_input)

    @property
    def outputs(self) -> tuple[int, ...]:
        """Output lengths to send [tokens]."""
        return _ladder(max(SHORTEST[1], self.max_output // 8), self.max_output)

    @property
    def levels(self) -> tuple[int, ...]:
        """Requests in flight, 1 and up in steps of about two [requests]."""
        return _ladder(1, self.max_concurrency, round(math.log2(self.max_concurrency)) + 1)

    def reference(self) -> list[ServerPoint]:
        """Loads whose prediction is to be good."""
        if self.typical:
            return [
                ServerPoint(max(1.0, isl * i), max(2.0, osl * o), max(1.0, n * c), 1.0)
                for isl, osl, n in self.typical
                for i in (0.5, 1.0, 2.0)
                for o in (0.5, 1.0, 2.0)
                for c in AROUND[:2]
            ]
        return [ServerPoint(i, o, c, 1.0) for i in self.inputs for o in self.outputs for c in self.levels]


def _ladder(low: int, high: int, steps: int = 0) -> tuple[int, ...]:
    """So many lengths or levels, evenly apart in logarithms, but no fewer than a fit needs."""
    return tuple(sorted({round(v) for v in np.geomspace(low, high, max(MIN_POINTS, steps))}))


def describe_range(reach: OperatingRange, max_seconds: float) -> list[str]:
    """What would be sent, for a dry run; which of it, and how often, depends on how fast the server is.

    >>> describe_range(OperatingRange(), 60.0)[-1]
    'at most 1,000 requests, 4,352,000 tokens, 60 s'
    """
    tokens = reach.max_requests * (reach.max_input + reach.max_output)
    return [
        f"prompts of {', '.join(map(str, reach.inputs))} tokens, answers of {', '.join(map(str, reach.outputs))}",
        f"{', '.join(map(str, reach.levels))} requests in flight, chosen as the fit needs them",
        f"at most {reach.max_requests:,} requests, {tokens:,} tokens, {max_seconds:g} s",
    ]


def measure_range(
    live: LiveServer,
    reach: OperatingRange,
    prior: IterationModel | None,
    rules: Rules,
    *,
    progress: Progress | None = None,
) -> tuple[LoadResult, ...]:
    """Measure until the time, the requests or the need is over; what was measured until then is returned.

    After every load the model is fitted again, and the next load is the one that lowers the variance of the predicted TPOT
    over the reference loads most for the time and the number of loads it takes of what is left (V-optimal design, greedily).

    Parameters
    ----------
    live
        The server.
    reach
        What the measuring is for.
    prior
        Estimate of GPU and model; ``None`` = not known.
    rules
        Assumed until the points choose.
    progress
        Called before each load.

    Raises
    ------
    CalibrationError
        When three loads in a row fail.

    References
    ----------
    Fedorov, "Theory of Optimal Experiments", 1972, section 2.7 (criteria linear in the covariance).
    """
    run = _Measuring(live, reach, prior, rules)
    try:
        run.go(progress or (lambda done, total, what: None))
    except KeyboardInterrupt:
        # what is measured is there, and is fitted by whoever asked
        if not run.results:
            raise
        live.interrupted = True
    return tuple(run.results)


def _load(input_tokens: int, output_tokens: int, level: int) -> Load:
    return Load(input_tokens, output_tokens, level, ALONE if level == 1 else 2 * level)


@dataclass(frozen=True, slots=True)
class _Speed:
    """Rough times of a server, to keep loads within their time: per output token and per prompt token [s]."""

    tpot_s: float
    prompt_s: float
    per_sequence_s: float = 0.0

    def after(self, point: ServerPoint) -> _Speed:
        if point.concurrency == 1.0:
            return _Speed(point.tpot_s, (point.ttft_s or 0.0) / point.input_tokens, self.per_sequence_s)
        extra = max(0.0, point.tpot_s - self.tpot_s) / (point.concurrency - 1.0)
        return _Speed(self.tpot_s, self.prompt_s, max(extra, 0.5 * self.per_sequence_s))

    def _token_s(self, load: Load) -> float:
        return self.tpot_s + self.per_sequence_s * (load.concurrency - 1)

    def life_s(self, load: Load) -> float:
        """How long one of its requests takes: every other one's prompt holds it up once [s]."""
        return load.output_tokens * self._token_s(load) + load.input_tokens * self.prompt_s * load.concurrency

    def window_s(self, load: Load) -> float:
        """How long to watch a load once it runs [s]."""
        return window_s(load.concurrency, load.output_tokens, self._token_s(load), self.life_s(load))

    def seconds(self, load: Load) -> float:
        """How long a load takes: its prompts go in one after another, then it is watched [s]."""
        life = self.life_s(load)
        if load.concurrency == 1:
            return life * (1.0 + load.requests)
        ramp = load.concurrency * (load.input_tokens + 0.5 * load.output_tokens) * self.prompt_s
        return ramp + min(self.window_s(load), life * load.requests / load.concurrency)

    def shortened(self, input_tokens: int, output_tokens: int, level: int, limit: float) -> tuple[int, int, int]:
        """The shape made shorter, then sparser, until it fits the time."""
        while self.seconds(_load(input_tokens, output_tokens, level)) > limit:
            if input_tokens > 2 * SHORTEST[0] and input_tokens * self.prompt_s * level > output_tokens * self.tpot_s:
                input_tokens //= 2
            elif output_tokens > 2 * SHORTEST[1]:
                output_tokens //= 2
            elif level > 2:
                level //= 2
            else:
                break
        return input_tokens, output_tokens, level


class _Measuring:
    """Loads sent one after the other, and what is known after each."""

    def __init__(self, live: LiveServer, reach: OperatingRange, prior: IterationModel | None, rules: Rules) -> None:
        self.live, self.reach, self.prior, self.rules = live, reach, prior, rules
        self.results: list[LoadResult] = []
        self.fit: ServerFit | None = None
        self.speed = _Speed(live.first.tpot_s, live.first.ttft_s / live.first.input_tokens)

    @property
    def points(self) -> list[ServerPoint]:
        """What was measured."""
        return [r.point for r in self.results if r.point is not None]

    def go(self, progress: Progress) -> None:
        """Load after load, until nothing is left to do or to do it in."""
        live, results, total, sent = self.live, self.results, self.live.left_s, 0
        for number in range(MOST_LOADS):
            left = live.left_s
            limit = min(left, LOAD_SHARE * total)
            load = self._next(limit, left / (MOST_LOADS - number)) if left > 0.0 else None
            if load is not None and len(results) > 2 and left < 0.5 * total:
                # one load is sent again half-way, to see whether the machine still does what it did
                again = results[2].load
                load = load if again in (r.load for r in results[3:]) else again
            error = None if self.fit is None else self.fit.tpot_error
            # left-out loads are met as well as the same load is twice
            settled = number > ENOUGH_POINTS and error is not None and error < POINT_SD
            if load is None or sent + load.requests + load.concurrency > self.reach.max_requests or settled:
                break
            told = f"{len(self.points)} loads measured"
            if self.fit is not None and error is not None:
                told = f"left-out error {100 * error:.1f}% after {self.fit.points} loads"
            progress(round(total - live.left_s), round(total), f"{load}, {told}")
            result = live.run(load, 2.0 * limit, self.speed.window_s(load))
            results.append(result)
            sent += result.measured + result.failed + load.concurrency
            if live.interrupted:
                return
            if result.point is not None:
                self.speed = self.speed.after(result.point)
                self._fit()
            failed = results[-ENOUGH_FAILED:]
            # the rest would only wait for its timeouts
            if len(failed) == ENOUGH_FAILED and all(r.point is None and r.failed for r in failed):
                raise CalibrationError(
                    f"{live.endpoint}: three loads in a row failed, the last with: {result.reason}",
                    "Nothing was written.",
                )
        progress(round(total), round(total), "done")

    def _fit(self) -> None:
        """The fit so far, quick; none while there is nothing to fit."""
        points = self.points
        self.fit = None
        if self.prior is not None or len({p.shape for p in points}) >= ENOUGH_SHAPES:
            self.fit = fit_server(
                points, self.prior, scheduling=self.rules.scheduling, token_budget=self.rules.budget, resamples=2
            )

    def _next(self, limit: float, share_s: float) -> Load | None:
        """The first four show how fast the server is, alone and full; then whichever tells most."""
        inputs, outputs, levels = self.reach.inputs, self.reach.outputs, self.reach.levels
        opening = (
            (inputs[0], outputs[0], 1),
            (inputs[-1], outputs[0], 1),
            (inputs[0], outputs[-1], levels[len(levels) // 2]),
            (inputs[len(inputs) // 2], outputs[-1], levels[-1]),
        )
        if len(self.results) < len(opening):
            return _load(*self.speed.shortened(*opening[len(self.results)], limit))
        return self._most_telling(limit, share_s)

    def _most_telling(self, limit: float, share_s: float) -> Load | None:
        """The load that lowers the variance of the reference loads most for what it takes; without a fit, a shape not sent yet.

        It takes its seconds, and one of the loads left, which is worth `share_s`: where there is more time than loads, long ones
        cost no more than short ones.
        """
        reach, speed, tried = self.reach, self.speed, Counter(r.load for r in self.results)
        shapes = {(r.load.input_tokens, r.load.output_tokens) for r in self.results if r.point is not None}
        lengths = itertools.product(reach.inputs, reach.outputs, reach.levels)
        candidates = {_load(*speed.shortened(*one, limit)) for one in lengths}
        # with more in flight than half the answer's length prompts come in clumps, which no mean describes
        candidates = {c for c in candidates if c.concurrency == 1 or 2 * c.concurrency <= c.output_tokens}
        fitting = [c for c in candidates if speed.seconds(c) <= 2.0 * limit and tried[c] < 2]
        ordered = sorted(fitting, key=lambda c: (c.input_tokens, c.output_tokens, c.concurrency))
        if not ordered:
            return None
        new = np.array([(c.input_tokens, c.output_tokens) not in shapes for c in ordered])
        if self.fit is None:
            middle = [i for i, c in enumerate(ordered) if new[i] and c.concurrency > 1] or list(range(len(ordered)))
            return min((ordered[i] for i in middle), key=lambda c: (tried[c], speed.seconds(c)))
        seconds = np.array([speed.seconds(c) for c in ordered])
        again = np.array([0.5 ** tried[c] for c in ordered])
        worth = _gain(self.fit, ordered, reach.reference(), self.points) / (seconds + share_s) * again
        if len(shapes) < ENOUGH_SHAPES and new.any():
            worth = np.where(new, worth, 0.0)
        return ordered[int(np.argmax(worth))]


def _gain(
    fit: ServerFit, candidates: Sequence[Load], reference: Sequence[ServerPoint], measured: Sequence[ServerPoint]
) -> FloatArray:
    """By how much each load would lower the mean variance of log TPOT over the reference loads, shape (candidates,).

    The variance has two parts: that of the parameters, and what the form misses, a Gaussian field over the logarithms of
    lengths and requests in flight that the measured loads pin down around them.
    """
    points = [ServerPoint(c.input_tokens, c.output_tokens, c.concurrency, 1.0) for c in candidates]
    loads = Loads([*points, *reference], fit.iteration, False)
    slope = log_times(fit.theta[None], loads, fit.rules)[1][0][: len(points) + len(reference)]
    place, known = _places([*points, *reference]), _places(measured)
    pinned = _alike(place, known)
    inner = np.linalg.inv(_alike(known, known) + POINT_SD**2 * np.eye(len(measured)))
    mine, wanted = slice(0, len(points)), slice(len(points), None)
    common = slope[wanted] @ fit.covariance @ slope[mine].T
    common += _alike(place[wanted], place[mine]) - pinned[wanted] @ inner @ pinned[mine].T
    own = np.einsum("pi,ij,pj->p", slope[mine], fit.covariance, slope[mine])
    own += MISFIT**2 - np.einsum("pi,ij,pj->p", pinned[mine], inner, pinned[mine])
    return np.asarray((common**2).mean(axis=0) / (own + POINT_SD**2))


def _places(points: Sequence[ServerPoint]) -> FloatArray:
    return np.log([[p.input_tokens, p.output_tokens, p.concurrency] for p in points]) / FORM_REACH


def _alike(one: FloatArray, other: FloatArray) -> FloatArray:
    """Covariance of what the form misses two sets of loads by."""
    apart: FloatArray = ((one[:, None] - other[None]) ** 2).sum(axis=-1)
    return np.asarray(MISFIT**2 * np.exp(-0.5 * apart))
