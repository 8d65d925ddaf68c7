"""TPOT and TTFT of a server under a closed loop of equal requests, from the time of its iterations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from planner.iteration.model import IterationModel
from planner.units import LEAST, MOST, MOST_SECONDS

FloatArray = NDArray[np.float64]

PARAMETERS = ("t0", "w", "b", "c", "g", "h", "a", "more", "request", "overhead")
"""Order of the parameters in every array of this module. `more`: prompt tokens that a decode's token costs in the linear layers
beyond its own (it passes the head, and products of few rows are slow ones); `request`: time the engine loses per request;
`overhead`: what the first token waits for outside the engine."""

SCHEDULING = ("mixed", "exclusive")
DEFAULT_BUDGET = 8192.0
"""Prompt tokens an engine takes into one iteration where nothing says otherwise [tokens]."""

SMALLEST_CHUNK = 16.0
"""Tokens left for prompts when decodes fill the budget: the engine makes room somehow [tokens]."""

LOWEST_LOG = -45.0
"""Logarithm that stands for nothing [log SI]."""
LEAST_MORE = 1e-6
"""Below it a decode's token is one like any other [1]."""
ROUNDS, SHORT_ROUNDS = 6, 3
"""Fixed-point steps from the load to the running sequences where TTFT was not measured [1]."""
STEP = 1e-5
"""Finite difference of a logarithm, between rounding (larger when it is smaller) and curvature [1]."""


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
        Mean time to first token; tells how many of the requests in flight are decoding [s].
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

    @property
    def running(self) -> float:
        """Decoding requests by Little's law, C D/(D + TTFT) with D = (O - 1) TPOT; C where TTFT was not measured.

        >>> round(ServerPoint(1000, 101, 10, 0.010, 0.25).running, 3)
        8.0
        """
        decode_s = (self.output_tokens - 1.0) * self.tpot_s
        return self.concurrency * decode_s / (decode_s + (self.ttft_s or 0.0))

    def problems(self) -> list[str]:
        """What cannot be; empty when usable."""
        found = []
        for name, value in ((f.name, getattr(self, f.name)) for f in fields(self)):
            most = MOST_SECONDS if name.endswith("_s") else MOST
            if value is not None and not LEAST <= value <= most:
                bounds = f"lie in [{LEAST:g}, {most:g}]" if value > 0.0 else "be positive"
                found.append(f"{name} must {bounds}, got {value!r}")
        if not found and self.output_tokens <= 1.0:
            found.append(f"output_tokens must exceed 1 (there is no TPOT of one token), got {self.output_tokens!r}")
        if not found and self.concurrency < 1.0:
            found.append(f"concurrency must be at least 1, got {self.concurrency!r}")
        if not found and (in_flight := self.concurrency * sum(self.shape)) > MOST:
            found.append(f"tokens of all requests in flight must be at most {MOST:g}, got {in_flight!r}")
        return found

    @classmethod
    def from_throughput(
        cls, input_tokens: float, output_tokens: float, concurrency: float, tokens_per_s: float, budget: float
    ) -> ServerPoint:
        """A point from one throughput number of a server that is kept full.

        A request stays C O/X (Little's law); its time goes into O - 1 decode iterations and one per chunk of its prompt.

        Parameters
        ----------
        input_tokens, output_tokens
            Mean lengths [tokens].
        concurrency
            C, sequences the server runs at once [requests].
        tokens_per_s
            X, output tokens per second [tokens/s].
        budget
            Tokens of one iteration [tokens].

        Examples
        --------
        >>> p = ServerPoint.from_throughput(512, 128, 64, 6400.0, 8192)
        >>> round(p.tpot_s * 1e3, 3), round(p.running, 2)
        (10.0, 63.5)
        """
        stay_s = concurrency * output_tokens / tokens_per_s
        chunks = math.ceil(input_tokens / budget)
        iteration_s = stay_s / (output_tokens - 1.0 + chunks)
        return cls(input_tokens, output_tokens, concurrency, iteration_s, chunks * iteration_s)


@dataclass(frozen=True, slots=True)
class Rules:
    """How an engine runs prompts.

    Parameters
    ----------
    scheduling
        ``mixed``: prompts ride along with decodes; ``exclusive``: they stall them.
    budget
        Tokens of one iteration at most [tokens].
    slots
        Sequences running at once at most [sequences].
    bunched
        Whether the loop's requests move together: what a measured TTFT is longer than a prompt takes alone was spent on other
        prompts, one after another, and those are not met while decoding.
    requests_per_s
        Requests that the front end, or the client, lets through at most [1/s].
    """

    scheduling: str = "mixed"
    budget: float = DEFAULT_BUDGET
    slots: float = math.inf
    bunched: bool = False
    requests_per_s: float = math.inf


class Loads:
    """Arrays of a list of points, shape (P,) each.

    Parameters
    ----------
    points
        Loads and what was measured under them.
    measured
        Whether the measured TTFT may tell how many are decoding; otherwise the model has to say.
    """

    def __init__(self, points: Sequence[ServerPoint], *, measured: bool = True) -> None:
        self.input = np.array([p.input_tokens for p in points])
        self.output = np.array([p.output_tokens for p in points])
        self.concurrency = np.array([p.concurrency for p in points])
        self.tpot = np.array([p.tpot_s for p in points])
        self.ttft = np.array([p.ttft_s if p.ttft_s is not None else math.nan for p in points])
        self.alone = (self.concurrency == 1.0) & np.isfinite(self.ttft)
        decode_s = (self.output - 1.0) * self.tpot
        known = np.isfinite(self.ttft) if measured else np.zeros(len(points), dtype=bool)
        with np.errstate(invalid="ignore"):
            self.share = np.where(known, decode_s / (decode_s + self.ttft), math.nan)
        """Share of its life a request decodes, as measured; NaN where it is not known."""
        # whose experts a batch touches; `None` = a dense model, see `with_experts`
        self.experts: IterationModel | None = None

    def with_experts(self, model: IterationModel | None) -> Loads:
        """The same loads for a mixture of experts like `model`, whose weight traffic depends on the batch."""
        self.experts = model if model is not None and model.w_experts > 0.0 else None
        return self

    def weight_share(self, tokens: FloatArray) -> FloatArray | float:
        """Share of the weights a batch of `tokens` reads [1]."""
        if self.experts is None:
            return 1.0
        return self.experts.weight_time(tokens) / (self.experts.w + self.experts.w_experts)


def log_parameters(model: IterationModel, request_s: float, overhead_s: float) -> FloatArray:
    """Logarithms of :data:`PARAMETERS` [log SI], shape (10,); terms that are nil become very small."""
    full = model.at_batch()
    values = np.array([full.t0, full.w, full.b, full.c, full.g, full.h, full.a, full.rows - 1.0, request_s, overhead_s])
    return np.asarray(np.log(np.maximum(values, math.exp(LOWEST_LOG))), dtype=np.float64)


def iteration_of(theta: FloatArray, like: IterationModel | None) -> IterationModel:
    """The iteration-time model of log-parameters, its expert part split as in `like`."""
    t0, w, b, c, g, h, a, more = np.exp(theta[:8]).tolist()
    rows = 1.0 + more if more > LEAST_MORE else 1.0
    if like is not None and like.w_experts > 0.0:
        part = like.w_experts / (like.w + like.w_experts)
        return IterationModel(
            t0=t0, w=w * (1.0 - part), b=b, c=c, g=g, h=h, a=a, e=g, w_experts=w * part, expert_share=like.expert_share,
            uneven=like.uneven, rows=rows,
        )  # fmt: skip
    return IterationModel(t0=t0, w=w, b=b, c=c, g=g, h=h, a=a, e=g, rows=rows)


def loop_times(theta: FloatArray, loads: Loads, rules: Rules) -> tuple[FloatArray, FloatArray]:
    r"""TPOT and TTFT of every load.

    A request that decodes sees q others decoding. Of the C - 1 others each decodes for the share f = D/(D + TTFT) of its
    life, q = (C - 1) f (the arrival theorem of closed networks with Little's law; f is counted in iterations, where one
    with a prompt in it is one, however long), and m = q/(O - 1) of their prompts start per iteration. ``exclusive``: every
    prompt stalls it, TPOT = t(1 + q) + m (t_p(I) + request). ``mixed``: prompts ride along in chunks of what the budget B
    leaves beside the decodes, TPOT = (1 - phi) t(1 + q) + phi t(1 + q, chunk) + m request with phi = 1 - exp(-m I/piece),
    piece = min(I, B - 1 - q): Poisson starts, the larger of weights and compute averaged over how many come at once. Where requests
    move together (``rules.bunched``) the part of a measured TTFT that a prompt does not take alone went into other prompts, one
    after another at the full rate; of the C - 1 that a request meets in its life those are not met by its decode.

    Parameters
    ----------
    theta
        Log-parameters, shape (R, 10).
    loads
        P loads.
    rules
        Of the engine.

    Returns
    -------
    tpot, ttft
        [s], shape (R, P).

    References
    ----------
    Reiser, Lavenberg, "Mean-value analysis of closed multichain queuing networks", J. ACM 27(2), 1980,
    doi:10.1145/322186.322195.
    """
    t0, w, b, c, g, h, a, more, request, overhead = np.moveaxis(np.exp(theta)[..., None], -2, 0)
    rows = 1.0 + more
    context = loads.input + 0.5 * loads.output
    pairs = 0.5 * loads.input * (loads.input + 1.0)
    steps = loads.output - 1.0
    others_at_most = np.minimum(loads.concurrency, rules.slots) - 1.0
    full = np.minimum(loads.input, rules.budget)
    prefill_alone: FloatArray = t0 * np.ceil(loads.input / rules.budget) + c * loads.input + a * pairs
    prefill_alone = prefill_alone + np.maximum(w * loads.weight_share(full), b * full) * (loads.input / full)

    def times(share: FloatArray, met: FloatArray | float = 0.0) -> tuple[FloatArray, FloatArray, FloatArray]:
        """TPOT, TTFT, and by how much a prompt's iterations are longer than the mean [s]; others decode for a share of the time."""
        others = np.minimum((loads.concurrency - 1.0) * share, others_at_most)
        n = 1.0 + others
        started = np.maximum(others - met, 1e-9) / steps
        attention = (h + g * context) * n
        decode = t0 + np.maximum(w * loads.weight_share(rows * n), b * rows * n) + c * rows * n + attention
        if rules.scheduling == "exclusive":
            own = prefill_alone + request
            # prompts that come together wait for each other
            stalled = decode + started * own
            ttft = overhead + own * (1.0 + 0.5 * started) + 0.5 * decode * (others > 0.0)
            return stalled, ttft, prefill_alone - np.ceil(loads.input / rules.budget) * stalled
        room = np.maximum(rules.budget - rows * n, SMALLEST_CHUNK)
        chunks = np.ceil(loads.input / room)
        piece = np.minimum(loads.input, room)
        pieces = started * loads.input / piece
        # prompts start as they come: Poisson in an iteration, several at once where requests are short
        with_prefill = -np.expm1(-pieces)
        several = pieces / with_prefill
        chunk = np.minimum(several * piece, room)
        spread = piece * np.sqrt(np.maximum(several * (1.0 + pieces - several), 0.0))
        tokens = rows * n + chunk
        weights = w * loads.weight_share(tokens)
        linear = _mean_larger(weights, b * tokens, b * np.minimum(spread, room - chunk + 1.0))
        both = t0 + linear + c * tokens + attention
        both = both + a * pairs * started / with_prefill
        tpot = (1.0 - with_prefill) * decode + with_prefill * both + started * request
        busy = 0.5 * tpot + chunks * both
        ttft = overhead + request + np.where(others > 0.0, np.maximum(busy, prefill_alone), prefill_alone)
        return tpot, ttft, chunks * (both - tpot)

    known = np.isfinite(loads.share)
    share = np.broadcast_to(np.where(known, loads.share, 1.0), (theta.shape[0], known.size))
    waiting = np.maximum(0.0, loads.concurrency - rules.slots) / np.maximum(loads.concurrency, 1.0)
    tpot, ttft, longer = times(share)
    for _ in range(SHORT_ROUNDS if known.all() else ROUNDS):
        # what a decode sees is counted in iterations, and one with a prompt in it is one, however long
        idle = np.where(known, loads.ttft, ttft)
        idle = np.maximum(idle - np.maximum(longer, 0.0), tpot)
        decode_s = steps * np.where(known, loads.tpot, tpot)
        modelled = decode_s / (decode_s + idle) * np.where(known, 1.0, 1.0 - waiting)
        share = np.where(known, modelled, 0.5 * (share + modelled))
        tpot, ttft, longer = times(share)
    if rules.bunched and known.any():
        others = np.minimum((loads.concurrency - 1.0) * share, others_at_most)
        n = 1.0 + others
        per_prompt = prefill_alone + request
        if rules.scheduling != "exclusive":
            room = np.maximum(rules.budget - rows * n, SMALLEST_CHUNK)
            tokens = rows * n + room
            full = t0 + np.maximum(w * loads.weight_share(tokens), b * tokens) + c * tokens + (h + g * context) * n
            per_prompt = full * loads.input / room + a * pairs + request
        own = prefill_alone + request + overhead
        ttft_known = np.where(known, loads.ttft, 0.0)
        waited = np.maximum(ttft_known - own, 0.0) / per_prompt
        all_others = loads.concurrency - 1.0
        # a wait longer than all the others' prompts take was for a slot or for memory
        prompts_only = known & (waited < all_others)
        life = steps * loads.tpot + ttft_known
        extra = waited + np.minimum(own, ttft_known) / life * all_others - all_others * (1.0 - share)
        tpot, ttft, longer = times(share, np.where(prompts_only, np.clip(extra, 0.0, others), 0.0))
    if math.isfinite(rules.requests_per_s):
        # what answers so many requests per second and no more keeps them longer than the engine does
        life = loads.concurrency / rules.requests_per_s
        tpot = np.maximum(tpot, (life - np.where(known, loads.ttft, ttft)) / steps)
    return tpot, ttft


def _mean_larger(floor: FloatArray, mean: FloatArray, sd: FloatArray) -> FloatArray:
    """E max(floor, X) for X logistic of that mean and standard deviation: floor + s ln(1 + exp((mean - floor)/s))."""
    scale = np.maximum(sd * (math.sqrt(3.0) / math.pi), 1e-9 * mean + 1e-30)
    larger: FloatArray = floor + scale * np.logaddexp(0.0, (mean - floor) / scale)
    return larger


def log_times(theta: FloatArray, loads: Loads, rules: Rules) -> tuple[FloatArray, FloatArray]:
    """Logarithms of TPOT and, after them, of TTFT of the loads alone, with their derivatives: (R, P + A), (R, P + A, 10)."""

    problems, size = theta.shape
    # all finite differences in one evaluation
    moved = np.concatenate([theta[None], theta[None] + STEP * np.eye(size)[:, None, :]]).reshape(-1, size)
    tpot, ttft = loop_times(moved, loads, rules)
    logs = np.log(np.concatenate([tpot, ttft[:, loads.alone]], axis=1)).reshape(1 + size, problems, -1)
    return logs[0], np.moveaxis((logs[1:] - logs[0]) / STEP, 0, -1)
