"""What one replica with mixed batching can do at best, in closed form: its maximum throughput and what binds it, how many
sequences run at a rate, and the latency of a lone request.

They bound and rank in microseconds; what a fleet really does is replayed (:mod:`planner.predict`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.predict.backlog import PromptSums, fixed_count_backlog
from planner.predict.batch import Engine, engine_of, mixed_model
from planner.predict.records import Replicas
from planner.workload.pools import Lengths

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MaxThroughput:
    """Stability limit of one replica.

    Attributes
    ----------
    per_s
        Largest sustainable arrival rate of one replica [requests/s].
    binding
        What limits the requests completed per iteration: the token budget, the sequence slots or the KV memory; ``prompt``
        when the longest prompt does not fit into the memory at all (the rate is 0).
    per_iteration
        Requests completed per iteration at saturation.
    decodes
        Mean number of decodes per iteration at saturation.
    iteration_s
        Mean duration of an iteration at saturation [s].
    """

    per_s: float
    binding: Literal["budget", "slots", "kv", "prompt"]
    per_iteration: float
    decodes: float
    iteration_s: float


def max_throughput(lengths: Lengths, replicas: Replicas) -> MaxThroughput:
    r"""Maximum throughput :math:`X = m/\bar t` of one replica.

    Three limits of the requests completed per iteration:

    .. math::

        m_B = \frac{B}{E[L]+E[D]},\quad
        m_S = \frac{S-\mathrm{back}}{E[D]+1+E[L]/(2(B-n))},\quad
        m_K = \frac{M-E[L^2]/2E[L]}{E[KV]+E[L\lceil L/(B-n)\rceil]}

    ``back``: slots that stand empty because the budget is spent, from the backlog chain with Poisson(m) arrivals per
    iteration. The mean duration uses :math:`E\max(w,bT)` from the same chain unless the budget binds. Within 0.7% of
    simulation, given the iteration times.

    Parameters
    ----------
    lengths
        The requests.
    replicas
        The engine; slots and memory may be unlimited, the token budget may not.

    Raises
    ------
    InputError
        If the engine is not mixed batching under a finite budget.
    """
    return saturation(engine_of(lengths, replicas))


def saturation(engine: Engine) -> MaxThroughput:
    """:func:`max_throughput` of an engine that is built already."""
    law, budget = engine.moments, engine.budget
    prefill, steps = law.mean_prefill, law.mean_steps
    if float(law.own[law.probability > 0.0].max()) > engine.kv_tokens:
        return MaxThroughput(0.0, "prompt", 0.0, 0.0, math.inf)
    by_budget, by_kv = budget / (prefill + steps), _by_memory(engine)
    by_slots = engine.slots / (steps + 1.0 + prefill / budget)
    chain = _Chain(engine, by_budget)
    if by_slots < min(by_budget, by_kv):
        for _ in range(3):
            # slots that stand empty as their prompts wait for budget
            chain.solve(by_slots)
            back = float(chain.law @ np.maximum(chain.grid - chain.room, 0.0)) / prefill
            before, by_slots = by_slots, max(engine.slots - back, 0.5) / (steps + 1.0 + 0.5 * prefill / chain.room)
            if abs(by_slots - before) < 1e-4 * before or by_slots >= min(by_budget, by_kv):
                break
    m = min(by_budget, by_slots, by_kv)
    if m >= by_budget * (1.0 - 1e-12):
        n = m * steps
        linear = float(engine.linear(np.array(budget)) + engine.twice(n, budget - n))
        return _at(engine, "budget", m, linear, budget, 1.0, 0.0)
    binding: Literal["kv", "slots"] = "kv" if by_kv <= by_slots else "slots"
    return chain.filled(m, binding)


def _by_memory(engine: Engine) -> float:
    """Requests per iteration that fill the memory; a prompt holds all of its own from its first iteration on."""
    law = engine.moments
    if math.isinf(engine.kv_tokens):
        return math.inf
    room = engine.kv_tokens - law.mean_own2 / (2.0 * law.mean_own)
    by_kv, by_budget = room / (law.mean_kv + law.mean_own), engine.budget / (law.mean_prefill + law.mean_steps)
    for _ in range(2):
        passes = np.ceil(law.tokens / max(engine.budget - min(by_kv, by_budget) * law.mean_steps, 1.0))
        by_kv = max(room / (law.mean_kv + float(law.probability @ (law.own * passes))), 1e-9)
    return by_kv


class _Chain:
    """The backlog of a replica that is full of decodes, where slots or memory bind."""

    def __init__(self, engine: Engine, by_budget: float) -> None:
        self.engine, self.by_budget = engine, by_budget
        self.sums: PromptSums | None = None

    def solve(self, m: float, waste: float = 0.0, clump: float = 1.0) -> None:
        """Law of the backlog where so many requests come in an iteration."""
        engine = self.engine
        self.sums = self.sums or PromptSums(engine.moments, engine.budget)
        n = m * engine.moments.mean_steps
        self.room = max(engine.budget - n, 1.0)
        self.grid, self.law = fixed_count_backlog(self.sums, self.room, engine.knee - n, m * (1.0 + waste), clump)

    def filled(self, m: float, binding: Literal["kv", "slots"]) -> MaxThroughput:
        r"""The throughput with so many requests completed per iteration.

        Where memory binds, requests are admitted as memory falls free: along a line of tokens freed, one leaves every L + D
        and one is let in every L. As many as the one lets in come at once; of two renewal processes of one rate these have
        variance :math:`c_{L+D}^2+c_L^2`, and a geometric number, half of them 0, the like: clumps of mean
        :math:`1+(c_{L+D}^2+c_L^2)/2`. Prompts of a clump share no iteration's floor with the decodes of others.
        """
        engine, law = self.engine, self.engine.moments
        waste, clump, n = 0.0, 1.0, m * law.mean_steps
        if binding == "kv":
            # prefill of preempted requests computed again, as in planner.queueing.memory
            idle = math.exp(-m) * max(1.0 - m / self.by_budget, 0.0)
            waste = law.mean_steps / law.mean_prefill * idle
            freed = law.own + law.steps
            of_freed = float(law.probability @ freed**2) / float(law.probability @ freed) ** 2
            clump = 0.5 * (of_freed + law.mean_own2 / law.mean_own**2)
        self.solve(m, waste, clump)
        tokens = n + np.minimum(self.grid, self.room)
        linear = float(self.law @ (engine.linear(tokens) + engine.twice(n, tokens - n)))
        mean_tokens = n + m * law.mean_prefill * (1.0 + waste)
        return _at(engine, binding, m, linear, mean_tokens, float(self.law @ (self.grid > 0.0)), waste)


def _at(
    engine: Engine, binding: Literal["budget", "slots", "kv"], m: float, linear_s: float, tokens: float, beside: float, waste: float
) -> MaxThroughput:  # fmt: skip
    """The throughput with m requests per iteration of so many tokens, a share `beside` of iterations with prompts."""
    law = engine.moments
    n = m * law.mean_steps
    attention = m * engine.a * law.mean_pairs * (1.0 + waste)
    decoding = engine.per_decode * n
    if engine.joined > 0.0:
        joined = max(engine.joined * n, engine.walk - attention, engine.read * n - attention)
        decoding += beside * (joined - decoding)
    mean = engine.t0 + linear_s + engine.c * tokens + decoding + attention
    mean += engine.x * n * (tokens - n) / tokens
    return MaxThroughput(m / mean, binding, m, n, mean)


def mean_running(lengths: Lengths, replicas: Replicas, rate_per_s: ArrayLike) -> tuple[Array, Array]:
    """Sequences that decode on one replica at arrival rates, and the iteration that goes with it, by the fluid balance.

    As many tokens come in an iteration as it serves: :math:`t = t(\\lambda E[D] t, \\lambda E[L] t)`, the smallest such t.
    Arrivals come evenly here; bursts of prefill make both more. At saturation and beyond: those of :func:`max_throughput`.

    Parameters
    ----------
    lengths, replicas
        The requests and the engine.
    rate_per_s
        Arrival rates of one replica [1/s], any shape.

    Returns
    -------
    running, iteration_s
        Decodes [1] and mean iteration [s], of the shape of the rates.
    """
    engine = engine_of(lengths, replicas)
    return fluid(engine, saturation(engine), np.asarray(rate_per_s, dtype=np.float64))


def fluid(engine: Engine, limit: MaxThroughput, rate_per_s: Array) -> tuple[Array, Array]:
    """:func:`mean_running` of an engine whose limit is known already."""
    law = engine.moments
    low = np.full(rate_per_s.shape, engine.t0)
    high = np.full(rate_per_s.shape, limit.iteration_s if limit.per_s > 0.0 else 1.0)
    for _ in range(48):
        middle = 0.5 * (low + high)
        longer = engine(rate_per_s * law.mean_steps * middle, rate_per_s * law.mean_prefill * middle) > middle
        low, high = np.where(longer, middle, low), np.where(longer, high, middle)
    beyond = rate_per_s >= limit.per_s
    running = np.where(beyond, limit.decodes, np.minimum(rate_per_s * law.mean_steps * high, limit.decodes))
    return running, np.where(beyond, limit.iteration_s, high)


def idle_latency(lengths: Lengths, replicas: Replicas) -> tuple[Array, Array]:
    """TTFT and TPOT of requests that find a replica empty and stay alone.

    The prompt's chunks one after the other, each a full budget but the last; then decodes of one sequence. Exact for the
    iteration model. A sleeping replica's wake-up counts, what a server needs outside the engine does not.

    Parameters
    ----------
    lengths, replicas
        The requests and the engine.

    Returns
    -------
    ttft_s, tpot_s
        Per row [s], shape (rows,); TPOT is NaN where an output is one token.

    Raises
    ------
    InputError
        If the engine is not mixed batching.

    Examples
    --------
    >>> from planner.machine.iteration import IterationModel
    >>> engine = Replicas(1, IterationModel(t0=2e-3, b=1e-5), token_budget=512.0)
    >>> ttft, tpot = idle_latency(Lengths(*np.array([[1024.0], [11.0], [1.0], [0.0]])), engine)
    >>> round(float(ttft[0]), 6), round(float(tpot[0]), 6)
    (0.01424, 0.00201)
    """
    model = mixed_model(replicas)
    new, past = lengths.new_tokens, lengths.cached_share * lengths.input_tokens
    chunk = np.minimum(new, replicas.token_budget)
    full = np.maximum(np.ceil(new / np.maximum(chunk, 1e-300)) - 1.0, 0.0)
    rest = new - full * chunk
    seen = np.zeros_like(new) if lengths.images is None else replicas.image_s * lengths.images
    ttft = replicas.request_s + replicas.wake_s + seen
    for j in range(int(full.max()) + 1):
        begun, size = past + j * chunk, np.where(full > j, chunk, rest)
        lasts = model.time(0.0, 0.0, size, size * (begun + 0.5 * (size + 1.0)), 0.0, begun + size)
        ttft += np.where(full >= j, lasts, 0.0)
    decodes = lengths.decodes
    context = lengths.input_tokens + 0.5 * (decodes + 1.0)
    return ttft, np.where(decodes > 0.0, decode_s(replicas, 1.0, context), np.nan)


def decode_s(replicas: Replicas, sequences: ArrayLike, context: ArrayLike) -> Array:
    """Iteration of decodes alone: the TPOT of so many sequences of a context on average [s], which broadcast.

    Examples
    --------
    >>> from planner.machine.iteration import IterationModel
    >>> float(decode_s(Replicas(1, IterationModel(t0=8e-3, h=0.65e-3)), 16.0, 0.0))
    0.0184
    """
    n, k = np.asarray(sequences, dtype=np.float64), np.asarray(context, dtype=np.float64)
    return np.asarray(mixed_model(replicas).time(n, n * k, context_max=k), dtype=np.float64)
