"""What the closed forms of mixed batching need of requests and engine: moments of the lengths, time of a mean batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.predict.records import Replicas
from planner.workload.pools import Lengths, own_tokens

Array = NDArray[np.float64]


class Moments:
    r"""Moments of requests on one engine.

    Prompt tokens are counted in units of what a decode brings into a batch, so that a decode is one.

    Parameters
    ----------
    lengths
        The requests.
    iteration
        Time of an iteration.
    shared_prefix, block
        As in :class:`planner.predict.records.Replicas`.

    Attributes
    ----------
    tokens, prefill
        Prompt tokens to compute, and the same with attention weighed in: :math:`L'+rA` scaled to the same mean. A queue of
        prompts takes time by ``prefill``; attention grows as the square of a prompt, so long ones weigh more.
    own
        Prompt tokens that a request holds for itself, with the unused half of its last block [tokens].
    mean_kv
        Token-iterations of memory a request asks for in its decodes.
    context, own_context
        What a decode reads, and what it holds for itself, on average over decode steps; context2, own_context2: squares.
    """

    def __init__(self, lengths: Lengths, iteration: IterationModel, shared_prefix: float, block: int) -> None:
        rows, prompt, new = iteration.rows, lengths.input_tokens, lengths.new_tokens
        self.probability = p = lengths.weight / lengths.weight.sum()
        self.prompt, self.steps, self.pairs, self.tokens = prompt, lengths.decodes, lengths.pairs, new / rows
        self.mean_prefill, self.mean_pairs = float(p @ self.tokens), float(p @ self.pairs)
        linear = iteration.b + iteration.c
        work = new + (iteration.a / linear if linear > 0.0 else 0.0) * self.pairs
        self.prefill = work * (self.mean_prefill / float(p @ work))
        self.mean_prefill2 = float(p @ self.prefill**2)
        self.max_prefill = float(self.prefill[p > 0.0].max())
        self.own = own_tokens(prompt, shared_prefix // block * block) + 0.5 * (block - 1)
        self.mean_own, self.mean_own2 = float(p @ self.own), float(p @ self.own**2)
        self.mean_steps = float(p @ self.steps)
        self.mean_kv = float(p @ (self.steps * (self.own + 0.5 * (self.steps + 1.0))))
        self.context, self.context2 = self._contexts(prompt)
        self.own_context, self.own_context2 = self._contexts(self.own)

    def _contexts(self, begin: Array) -> tuple[float, float]:
        """Mean and mean square of begin + 1 .. begin + D over all decode steps [tokens], [tokens^2]."""
        if not self.mean_steps > 0.0:
            return 0.0, 0.0
        p, steps = self.probability, self.steps
        first, second = 0.5 * (steps + 1.0), (steps + 1.0) * (2.0 * steps + 1.0) / 6.0
        powers = begin + first, begin**2 + 2.0 * begin * first + second
        mean, square = (float(p @ (steps * each)) / self.mean_steps for each in powers)
        return mean, square


class Engine:
    r"""A replica with mixed batching and its requests, as the closed forms see them.

    Called with ``n`` decodes of mean context and ``C`` prefill tokens of mean attention it is the time of an iteration:

    .. math:: t(n, C) = t_0 + \max(w, b\,\tau\lceil T/\tau\rceil) + cT + (h + gk)\,n + \alpha C + xnC/T, \qquad T=n+C

    as :class:`planner.machine.iteration.IterationModel` has it, for real ``n`` and ``C``: the staircase is taken at its mean,
    ``T + (tau-1)/2`` tokens, above half a tile, and as it is where the budget is spent.

    Parameters
    ----------
    iteration
        The engine's.
    moments
        The requests'.
    budget
        Tokens of a full batch, in units of what a decode brings.
    slots, kv_tokens
        Sequences at once; memory that requests have between them [tokens].

    Attributes
    ----------
    per_decode, alpha
        Of a decode beside decodes alone, and of the attention of a prefill token [s].
    joined, walk, read
        Where one kernel takes decodes and prompts: per decode, least of a batch, least of a decode [s]; joined 0 = kernels apart.
    """

    def __init__(
        self, iteration: IterationModel, moments: Moments, budget: float, slots: float, kv_tokens: float
    ) -> None:
        self.moments, self.slots, self.kv_tokens = moments, slots, kv_tokens
        # the longest context costs more than its share of all contexts only where e exceeds g: one decode, then
        self.iteration = iteration
        self.t0, self.w, self.w_experts = iteration.t0, iteration.w, iteration.w_experts
        self.b, self.c = iteration.b * iteration.rows, iteration.c * iteration.rows
        self.tau = max(iteration.tau / iteration.rows, 1.0)
        self.expert_share = 1.0 - (1.0 - iteration.expert_share) ** iteration.rows
        self.a, self.g, self.x, self.apart = iteration.a, iteration.g, iteration.x, bool(iteration.apart)
        self.read = iteration.g * moments.context
        self.per_decode = iteration.h + self.read
        self.alpha = iteration.a * moments.mean_pairs / moments.mean_prefill
        self.budget = budget
        self.most = self.tau * math.ceil(budget / self.tau) if math.isfinite(budget) else math.inf
        self.joined = self.walk = 0.0
        if iteration.m > 0.0:
            self.joined = iteration.a * iteration.m * moments.context + iteration.h_m
            # the contexts of a batch as its tokens see them stand for the longest one
            self.walk = iteration.e_m * moments.context2 / moments.context if moments.context > 0.0 else 0.0

    def floor(self, tokens: Array | float) -> Array | float:
        """Time to stream the weights that a batch of ``tokens`` touches [s]."""
        if self.w_experts == 0.0:
            return self.w
        return self.iteration.weight_time(np.asarray(tokens, dtype=float) * self.iteration.rows)

    @property
    def knee(self) -> float:
        """Tokens at which computing takes as long as streaming the weights; 0 where nothing is computed."""
        if self.b == 0.0:
            return 0.0
        knee = (self.w + self.w_experts) / self.b
        for _ in range(50 if self.w_experts else 0):
            knee = float(self.floor(knee)) / self.b
        return knee

    def linear(self, tokens: Array) -> Array:
        """``max(w, b tau ceil(T/tau))`` with the mean staircase [s]."""
        padded = tokens
        if self.tau > 1.0:
            padded = np.where(tokens > 0.5 * self.tau, np.minimum(tokens + 0.5 * (self.tau - 1.0), self.most), tokens)
            padded = np.where(tokens >= self.budget * (1.0 - 1e-9), self.most, padded)
        return np.maximum(self.floor(tokens), self.b * padded)

    def slope(self, tokens: Array) -> Array:
        """What one more token adds to it: computing beyond the knee, more experts touched before [s/token]."""
        touched: Array | float = 0.0
        if self.w_experts > 0.0:
            left = (1.0 - self.expert_share) ** tokens
            touched = -math.log1p(-min(self.expert_share, 1.0 - 1e-12)) * self.w_experts * left
            if self.iteration.uneven > 0.0:
                spread = np.sqrt(np.maximum(left * (1.0 - left), 1e-300))
                # until the busiest GPU reads all it has
                within = left > self.iteration.uneven * spread
                touched = np.where(within, touched * (1.0 + self.iteration.uneven * (left - 0.5) / spread), 0.0)
        return np.where(self.b * tokens > self.floor(tokens), self.b, touched)

    def __call__(self, decodes: Any, prefill: Any) -> Array:
        """Duration of an iteration with ``decodes`` and ``prefill`` tokens, which broadcast [s]."""
        tokens = np.asarray(decodes + prefill, dtype=float)
        t: Array = self.t0 + self.linear(tokens) + self.c * tokens + self.attention(decodes, prefill)
        if self.iteration.grown > 0.0:
            t = t + self.iteration.grown * decodes / (decodes + self.iteration.half)
        if self.x > 0.0:
            t = t + self.x * decodes * prefill / np.maximum(tokens, 1e-300)
        return t + self.twice(decodes, prefill)

    def twice(self, decodes: Any, prefill: Any) -> Array:
        """What two iterations take longer than one with all their tokens, where prompts have their own; else 0 [s]."""
        if not self.apart:
            return np.zeros(())
        n, new = np.asarray(decodes, dtype=float), np.asarray(prefill, dtype=float)
        more = self.t0 + self.linear(n) + self.linear(new) - self.linear(n + new)
        # less than one of either stands for a share of iterations that have some
        both: Array = np.clip(n, 0.0, 1.0) * np.clip(new, 0.0, 1.0) * more
        return both

    def attention(self, decodes: Any, prefill: Any) -> Array:
        """Attention of a batch [s]."""
        alone: Array = self.per_decode * decodes + self.alpha * prefill
        if self.joined == 0.0:
            return alone
        together = np.maximum(self.joined * decodes + self.alpha * prefill, np.maximum(self.walk, self.read * decodes))
        # less than a token of prefill stands for a share of iterations that have some
        both: Array = alone + np.clip(prefill, 0.0, 1.0) * (together - alone)
        return both

    def busy_per_decode(self, with_prompts: float) -> float:
        """Attention of one more decode where a share `with_prompts` of the iterations has prompts [s]."""
        if self.joined == 0.0:
            return self.per_decode
        return self.per_decode + with_prompts * (max(self.joined, self.read) - self.per_decode)


def mixed_model(replicas: Replicas) -> IterationModel:
    """The iteration model of replicas with mixed batching.

    Raises
    ------
    InputError
        If they are others.
    """
    if replicas.engine != "mixed" or not isinstance(replicas.iteration, IterationModel):
        raise InputError(f"engine {replicas.engine}: these closed forms know mixed batching alone")
    return replicas.iteration


def engine_of(lengths: Lengths, replicas: Replicas) -> Engine:
    """The closed forms' view of one of the replicas; the host's time per request and its images' are spread over its decodes.

    Raises
    ------
    InputError
        If the engine is not mixed batching under a finite token budget, or neither an iteration nor a prompt takes any time.
    """
    iteration = mixed_model(replicas)
    if not (1.0 <= replicas.token_budget < math.inf and replicas.slots >= 1.0 and replicas.kv_tokens > 0.0):
        raise InputError("token_budget must be finite and >= 1, slots >= 1 and kv_tokens > 0")
    if not iteration.t0 + iteration.w + iteration.b + iteration.c > 0.0:
        raise InputError("iteration: it must take time, but t0, w, b and c are all 0")
    p = lengths.weight / lengths.weight.sum()
    new = float(p @ lengths.new_tokens)
    if not new > 0.0:
        raise InputError("input_tokens: their mean must be positive")
    seen = 0.0 if lengths.images is None else float((p * lengths.images).sum())
    own_s = replicas.request_s + replicas.image_s * seen
    iteration = iteration.with_requests(own_s, float(p @ lengths.decodes), new)
    moments = Moments(lengths, iteration, replicas.shared_prefix, replicas.block)
    budget = replicas.token_budget / iteration.rows
    free = replicas.kv_tokens - replicas.shared_prefix // replicas.block * replicas.block
    return Engine(iteration, moments, budget, replicas.slots, free)
