"""TPOT and TTFT of a server under a closed loop of equal requests, from the time of its iterations."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.catalog.kv import DEFAULT_TOKEN_BUDGET
from planner.machine.iteration import IterationModel
from planner.units import LEAST, MOST, MOST_SECONDS

FloatArray = NDArray[np.float64]

PARAMETERS = ("t0", "w", "b", "c", "g", "h", "a", "more", "request", "overhead")
"""Order of the parameters in every array of this module. `more`: prompt tokens that a decode's token costs in the linear layers
beyond its own (it passes the head, and products of few rows are slow ones); `request`: time the engine loses per request;
`overhead`: what the first token waits for outside the engine."""

SCHEDULING = ("mixed", "exclusive")
DEFAULT_BUDGET = float(DEFAULT_TOKEN_BUDGET)
"""Prompt tokens an engine takes into one iteration where nothing says otherwise [tokens]."""

SMALLEST_CHUNK = 16.0
"""Tokens left for prompts when decodes fill the budget: the engine makes room somehow [tokens]."""

LOWEST_LOG = 2.0 * math.log(LEAST)
"""Logarithm that stands for nothing [log SI]."""
ROUNDS = 4
"""Fixed-point steps from the load to the running sequences [1]."""
STEP = float(np.finfo(np.float64).eps) ** (1.0 / 3.0)
"""Finite difference of a logarithm, between rounding (larger when it is smaller) and curvature [1]."""

SHORTEST = (16, 8)
"""Shortest prompt and answer that anything is said of [tokens]."""


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
    model
        A mixture of experts like the one that is served, whose weight traffic depends on the batch.
    measured
        Whether the measured TTFT may tell how many are decoding; otherwise the model has to say.
    """

    def __init__(
        self, points: Sequence[ServerPoint], model: IterationModel | None = None, measured: bool = True
    ) -> None:
        self.input, self.output, self.concurrency, self.tpot, self.ttft = (
            np.array([getattr(p, f.name) for p in points], dtype=np.float64) for f in fields(ServerPoint)
        )
        self.alone = (self.concurrency == 1.0) & np.isfinite(self.ttft)
        decode_s = (self.output - 1.0) * self.tpot
        known = np.isfinite(self.ttft) if measured else np.zeros(len(points), dtype=bool)
        with np.errstate(invalid="ignore"):
            self.share = np.where(known, decode_s / (decode_s + self.ttft), math.nan)
        """Share of its life a request decodes, as measured; NaN where it is not known."""
        # whose experts a batch touches; `None` = a dense model
        self.experts = model if model is not None and model.w_experts > 0.0 else None

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
    t0, w, b, c, g, h, a, more, *_ = np.exp(theta).tolist()
    # where nothing called for more, a decode's token is one like any other
    rows = 1.0 + more if math.log(more) > 0.5 * LOWEST_LOG else 1.0
    return with_experts_of(like, t0=t0, w=w, b=b, c=c, g=g, h=h, a=a, e=g, rows=rows)


def with_experts_of(like: IterationModel | None, **parameters: Any) -> IterationModel:
    """The model of these parameters, its weights split into experts and others as in another one."""
    made = IterationModel(**parameters)
    if like is None or like.w_experts == 0.0:
        return made
    share = like.w_experts / (like.w + like.w_experts)
    experts: dict[str, Any] = {"w_experts": made.w * share, "expert_share": like.expert_share, "uneven": like.uneven}
    return replace(made, w=made.w * (1.0 - share), **experts)


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
    for _ in range(ROUNDS):
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
    return np.asarray(floor + scale * np.logaddexp(0.0, (mean - floor) / scale))


def log_times(theta: FloatArray, loads: Loads, rules: Rules) -> tuple[FloatArray, FloatArray]:
    """Logarithms of TPOT and, after them, of TTFT of the loads alone, with their derivatives: (R, P + A), (R, P + A, 10)."""

    problems, size = theta.shape
    # all finite differences in one evaluation
    moved = np.concatenate([theta[None], theta[None] + STEP * np.eye(size)[:, None, :]]).reshape(-1, size)
    tpot, ttft = loop_times(moved, loads, rules)
    logs = np.log(np.concatenate([tpot, ttft[:, loads.alone]], axis=1)).reshape(1 + size, problems, -1)
    return logs[0], np.moveaxis((logs[1:] - logs[0]) / STEP, 0, -1)


STALLED = 5.0
"""A request this many times slower than the median one hung in the network: it is not the engine's doing [1]."""
FEWEST_GAPS = 8
"""Gaps between tokens below which a mean says nothing."""
JITTER = 0.3
"""Share of an iteration within which its tokens reach all readers [1]."""
STARTS = 4
"""Requests of a loop that are to begin while it is watched; half of them must, as between two first tokens lies a whole stretch,
and a quarter of those in flight that begin in half a life."""
ITERATIONS = 64.0
"""Iterations to watch at least: the mean of so many is known to an eighth of what one of them scatters."""


@dataclass(slots=True, eq=False)
class Stream:
    """One request: when it was sent, when its events came.

    Parameters
    ----------
    worker
        Who sent it.
    asked_input, asked_output
        Lengths that were asked for [tokens].
    sent_s
        When it was sent, on any clock [s].
    opening
        Whether it is the first of its worker, which begins in the middle of a life.
    events_s
        When its events came, same clock [s].
    input_tokens, output_tokens
        What the server counted; 0 where it did not say, or the stream was not at its end [tokens].
    """

    worker: int
    asked_input: int
    asked_output: int
    sent_s: float
    opening: bool = False
    events_s: list[float] = field(default_factory=list)
    input_tokens: float = 0.0
    output_tokens: float = 0.0

    @property
    def ttft_s(self) -> float:
        """Time to first token [s]."""
        return self.events_s[0] - self.sent_s

    @property
    def tpot_s(self) -> float:
        """Time per token after the first; the first of several events brought as many tokens as each other [s]."""
        if len(self.events_s) < 2:
            return 0.0
        count = self.output_tokens
        return (self.events_s[-1] - self.events_s[0]) / (count - count / len(self.events_s))


def first_lengths(worker: int, workers: int, input_tokens: int, output_tokens: int) -> tuple[int, int]:
    """Prompt and answer of a worker's first request, as if it were met in the middle of its life.

    The workers' first requests are as far through their answers as requests met at random are; what would have been
    generated by then stands in the prompt. Once all prompts are through, the loop is in its steady state.

    >>> [first_lengths(w, 4, 100, 40) for w in range(4)]
    [(130, 10), (120, 20), (110, 30), (100, 40)]
    """
    if workers == 1:
        return input_tokens, output_tokens
    left = max(2, round(output_tokens * (worker + 1) / workers))
    return input_tokens + max(0, output_tokens - left), left


def window_s(workers: int, output_tokens: float, tpot_s: float, life_s: float) -> float:
    """How long to watch a loop after its last prompt went in: half a life, four starts, 64 iterations [s].

    Parameters
    ----------
    workers
        Requests in flight [requests].
    output_tokens
        Of an answer [tokens].
    tpot_s, life_s
        About what a token and a request take [s].

    Examples
    --------
    >>> window_s(32, 100, 0.05, 6.0), window_s(2, 100, 0.05, 6.0)
    (3.2, 12.0)
    """
    # workers start evenly spread over a life, so that any part of it shows all ages
    return max(0.5 * life_s, STARTS / workers * life_s, min(ITERATIONS, output_tokens) * tpot_s)


def steady_state(streams: Sequence[Stream], workers: int) -> tuple[ServerPoint, int, float] | str:
    """Means between the end of the ramp and the last first token; a sentence why not, where there is too little.

    With the point, its lengths as the server counts them, go the requests whose first token came in that window, and the tokens of
    an event, more than one where the server sends several at once.

    The window begins when the last worker's first token came, and ends with the last first token in it, so that it holds
    whole stretches between prompts: their share of the time is that of the steady state, however short the window.

    Parameters
    ----------
    streams
        Of all workers.
    workers
        Requests in flight [requests].

    Examples
    --------
    >>> one = Stream(0, 10, 3, 0.0, True, [1.0, 2.0, 3.0], 10, 3)
    >>> two = [Stream(0, 10, 3, s, False, [s + 1 + 0.5 * k for k in range(9)], 10, 9) for s in (3.0, 8.0, 13.0)]
    >>> found = steady_state([one, *two], 1)
    >>> found[0].tpot_s, found[0].ttft_s, found[1]
    (0.5, 1.0, 3)
    """
    opened = [s.events_s[0] for s in streams if s.opening and s.events_s]
    if len(opened) < workers:
        return "cut: time was up before every worker had its first token"
    begin = max(opened)
    starts = [s for s in streams if not s.opening and s.events_s and s.events_s[0] > begin]
    if len(starts) < max(STARTS // 2, workers // (2 * STARTS)):
        return "cut: time was up before enough requests began"
    if workers == 1:
        # alone there is no other's prompt to meet
        counted = [s for s in streams if not s.opening] or streams
        begin, end = -math.inf, math.inf
    else:
        counted = list(streams)
        end = max(s.events_s[0] for s in starts)
        # tokens of one iteration reach their readers one after another
        gaps = [b - a for s in counted for a, b in itertools.pairwise(s.events_s) if begin <= a and b <= end]
        apart = JITTER * statistics.median(gaps) if gaps else 0.0
        begin, end = begin - apart, end + apart
    spans = [_inside(s.events_s, begin, end) for s in counted]
    spans = [(seconds, gaps) for seconds, gaps in spans if gaps]
    if sum(gaps for _, gaps in spans) < FEWEST_GAPS:
        return "cut: time was up before enough tokens came"
    usual = statistics.median(seconds / gaps for seconds, gaps in spans)
    spans = [(seconds, gaps) for seconds, gaps in spans if seconds / gaps <= STALLED * usual or gaps < FEWEST_GAPS]
    ended = [s for s in streams if s.output_tokens > 0.0]
    events = sum(len(s.events_s) for s in ended)
    per_event = math.fsum(s.output_tokens for s in ended) / events if ended else 1.0
    waits = [s.ttft_s for s in starts]
    middle = statistics.median(waits)
    own = [s for s in ended if not s.opening] or ended
    point = ServerPoint(
        _as_asked([(s.input_tokens, s.asked_input) for s in own], starts[0].asked_input),
        _as_asked([(s.output_tokens, s.asked_output) for s in own], starts[0].asked_output),
        float(workers),
        math.fsum(seconds for seconds, _ in spans) / sum(gaps for _, gaps in spans) / per_event,
        statistics.fmean(w for w in waits if w <= STALLED * middle),
    )
    return point, len(starts), per_event


def _inside(events_s: Sequence[float], begin: float, end: float) -> tuple[float, int]:
    """Time and number of the gaps between events that lie in the window."""
    inside = [t for t in events_s if begin <= t <= end]
    return (inside[-1] - inside[0], len(inside) - 1) if len(inside) > 1 else (0.0, 0)


def _as_asked(counted: Sequence[tuple[float, int]], asked: int) -> float:
    """The length asked for, times what the server made of lengths asked for; itself where it did not say [tokens]."""
    said = [(got, wanted) for got, wanted in counted if got > 0.0]
    if not said:
        return float(asked)
    return asked * math.fsum(got for got, _ in said) / sum(wanted for _, wanted in said)
