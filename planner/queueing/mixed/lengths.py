"""What mixed batching needs to know of a workload: moments, the law of a prompt, and sums of Poisson many prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.queueing.reuse import own_tokens

Array = NDArray[np.float64]

# Points of the mesh on which laws of prompt sums are held (a power of two: they are made by FFT).
MESH_POINTS = 4096
# Means of the Poisson count between which the laws are interpolated; spaced as a square, so that the step is about
# proportional to the standard deviation of the count.
POISSON_NODES = 28
# Prompts that may share an iteration of theirs, and rates between which what follows it is interpolated.
MOST_TOGETHER = 40
RATE_NODES = 12
_LOG_FACTORIAL = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1.0, MOST_TOGETHER + 1)))))


@dataclass(frozen=True, slots=True)
class BatchCost:
    r"""Time of one iteration of a mixed batch.

    .. math:: t(n, C) = t_0 + \max(w, b\,\tau\lceil T/\tau\rceil) + cT + (h + gk)\,n + \alpha C + xnC/T, \qquad T=n+C

    ``n`` decodes of mean context ``k``, ``C`` prefill tokens. The staircase is taken at its mean, ``T + (tau-1)/2``
    tokens, above half a tile: closed forms treat ``n`` and ``C`` as real.

    Parameters
    ----------
    t0, w : float
        Fixed cost and weight-streaming floor [s].
    b, c, alpha : float
        Per token of the batch, per token of the batch, per prefill token [s].
    per_decode : float
        ``h + g k`` [s].
    tau : float
        Tile of the matrix multiplication [tokens].
    x : float
        Interference of prefill and decode [s].
    most : float
        Tokens of a full batch, padded to the tile: a full iteration pays no more.
    joined_per_decode : float
        ``a m k + h_m``, what a decode costs in place of ``per_decode`` where one attention kernel takes decodes and prompts
        together and the batch has prompts [s]; 0 = kernels of their own.
    walk : float
        Least attention of such a batch: its longest context, walked by one thread block [s].
    read : float
        Least attention of a decode in it: ``g k``, its part of the KV cache [s].
    w_experts, expert_share : float
        Streaming all routed experts [s], and the share of them that one token uses: the floor is that of the experts a
        batch touches, ``w + w_experts (1 - (1 - share)^T)``.
    apart : bool
        Prompts have iterations of their own: a batch with both is one of its decodes, then one of its prompts.
    """

    t0: float
    w: float
    b: float
    c: float
    per_decode: float
    alpha: float
    tau: float
    x: float
    most: float = np.inf
    joined_per_decode: float = 0.0
    walk: float = 0.0
    read: float = 0.0
    w_experts: float = 0.0
    expert_share: float = 0.0
    apart: bool = False

    def floor(self, tokens: Array | float) -> Array | float:
        """Time to stream the weights that a batch of ``tokens`` touches [s]."""
        if self.w_experts == 0.0:
            return self.w
        return self.w + self.w_experts * (1.0 - (1.0 - self.expert_share) ** tokens)

    @property
    def knee(self) -> float:
        """Tokens at which computing takes as long as streaming the weights [tokens]; 0 where nothing is computed."""
        if self.b == 0.0:
            return 0.0
        knee = (self.w + self.w_experts) / self.b
        for _ in range(50 if self.w_experts else 0):
            knee = float(self.floor(knee)) / self.b
        return knee

    def linear(self, tokens: Array) -> Array:
        """``max(w, b tau ceil(T/tau))`` with the mean staircase [s]."""
        padded = tokens
        if self.tau > 1:
            padded = np.where(tokens > self.tau / 2, np.minimum(tokens + (self.tau - 1) / 2, self.most), tokens)
        return np.maximum(self.floor(tokens), self.b * padded)

    def linear_slope(self, decodes: Any, prefill: Array) -> Array:
        """What one more decode adds to it: computing beyond the knee, more experts touched before it [s/token]."""
        tokens = decodes + (0.0 if self.apart else 1.0) * prefill
        beyond = self.b * tokens > self.floor(tokens)
        if self.w_experts == 0.0:
            return np.where(beyond, self.b, 0.0)
        left = (1.0 - self.expert_share) ** tokens
        more = -np.log1p(-min(self.expert_share, 1.0 - 1e-12)) * self.w_experts * left
        return np.where(beyond, self.b, more)

    def __call__(self, decodes: Any, prefill: Any) -> Array:
        """Duration [s] of an iteration with ``decodes`` and ``prefill`` tokens (arrays broadcast)."""
        tokens = np.asarray(decodes + prefill, dtype=float)
        t: Array = self.t0 + self.linear(tokens) + self.c * tokens + self.attention(decodes, prefill)
        if self.x > 0:
            t = t + self.x * decodes * prefill / np.maximum(tokens, 1e-300)
        return t + self.twice(decodes, prefill) if self.apart else t

    def twice(self, decodes: Any, prefill: Any) -> Array:
        """What two iterations take longer than one with all their tokens, where prompts have their own [s]."""
        if not self.apart:
            return np.zeros(())
        n, new = np.asarray(decodes, dtype=float), np.asarray(prefill, dtype=float)
        more = self.t0 + self.linear(n) + self.linear(new) - self.linear(n + new)
        # less than one of either stands for a share of iterations that have some
        both: Array = np.clip(n, 0.0, 1.0) * np.clip(new, 0.0, 1.0) * more
        return both

    def decoding(self, decodes: Any) -> Array:
        """Duration [s] of the iteration of the decodes alone."""
        n = np.asarray(decodes, dtype=float)
        alone: Array = np.clip(n, 0.0, 1.0) * (self.t0 + self.linear(n)) + (self.c + self.per_decode) * n
        return alone

    def prompts_since(self, rate: Any, prompt: float, first_s: Any) -> tuple[Array, float]:
        """Iterations of prompts that come while those before them are served, and go before decodes: their time, and of one [s].

        An iteration of k prompts takes P(k), during which Poisson many come; they are the next one, until none came. With
        equal prompts the time v that is to come after k of them solves v_k = sum over j of Pr(j come in P(k)) (P(j) + v_j).

        Parameters
        ----------
        rate : float or ndarray
            Arrival rate of the replica [1/s].
        prompt : float
            Mean prompt [tokens].
        first_s : float or ndarray
            Time of the first iteration of prompts, broadcasts against `rate` [s].
        """
        lam, first = np.broadcast_arrays(np.asarray(rate, dtype=float), np.asarray(first_s, dtype=float))
        own = float(self.prompts_alone(prompt))
        nodes = np.unique(lam)
        if nodes.size > RATE_NODES:
            nodes = np.linspace(nodes[0], nodes[-1], RATE_NODES)
        more = np.empty((nodes.size, *first.shape))
        for k, one in enumerate(nodes):
            time, visits = self._rounds_of_prompts(float(one), prompt)
            more[k] = np.interp(first, time, visits @ time)
        if nodes.size == 1:
            return more[0], own
        place = np.clip(np.searchsorted(nodes, lam, side="right") - 1, 0, nodes.size - 2)
        share = (lam - nodes[place]) / (nodes[place + 1] - nodes[place])
        low, high = (np.take_along_axis(more, at[None], axis=0)[0] for at in (place, place + 1))
        return low + share * (high - low), own

    def _rounds_of_prompts(self, rate: float, prompt: float) -> tuple[Array, Array]:
        """Time of an iteration of 1, 2, ... prompts [s], and how many of each follow one of so many, shapes (K,), (K, K)."""
        come = np.arange(MOST_TOGETHER + 1)
        # where many come to an iteration they are counted in parcels
        parcel = max(rate * float(self.prompts_alone(prompt)) / 4.0, 1.0)
        time: Array = self.prompts_alone(parcel * prompt * come[1:])
        mean = np.maximum(rate / parcel * time[:, None], 1e-12)
        law = np.exp(come * np.log(mean) - mean - _LOG_FACTORIAL)
        law[:, -1] += np.maximum(1.0 - law.sum(axis=1), 0.0)
        visits = np.linalg.solve(np.eye(MOST_TOGETHER) - law[:, 1:], law[:, 1:]).astype(np.float64)
        return time, visits

    def round_met(self, rate: Any, prompt: float, first_s: Any, place: Any) -> tuple[Array, Array]:
        """What has passed and what is left of the iteration of prompts that one meets who comes in :meth:`prompts_since` [s].

        Long ones are met more often than they are: of those that follow, each for as long as it lasts.

        Parameters
        ----------
        rate : float or ndarray
            Arrival rate of the replica [1/s].
        prompt : float
            Mean prompt [tokens].
        first_s : float or ndarray
            Time of the first iteration of prompts [s].
        place : ndarray
            Share of the time that follows it at which one comes, in [0, 1).
        """
        time, visits = self._rounds_of_prompts(float(np.mean(rate)), prompt)
        lasting: Array = visits * time
        until = np.cumsum(lasting, axis=1) / np.maximum(lasting.sum(axis=1, keepdims=True), 1e-300)
        row = np.broadcast_to(np.searchsorted(time, first_s).clip(0, time.size - 1), np.shape(place))
        met = (until[row] <= np.asarray(place)[..., None]).sum(axis=-1).clip(0, time.size - 1)
        begun = np.where(met > 0, until[row, met - 1], 0.0)
        inside = np.clip((place - begun) / np.maximum(until[row, met] - begun, 1e-300), 0.0, 1.0)
        return inside * time[met], (1.0 - inside) * time[met]

    def prompts_alone(self, tokens: Any) -> Array:
        """Duration [s] of an iteration of prompts alone."""
        new = np.asarray(tokens, dtype=float)
        alone: Array = self.t0 + self.linear(new) + (self.c + self.alpha) * new
        return alone

    def attention(self, decodes: Any, prefill: Any) -> Array:
        """Attention of a batch [s]."""
        apart: Array = self.per_decode * decodes + self.alpha * prefill
        if self.joined_per_decode == 0.0:
            return apart
        together = np.maximum(self.joined_per_decode * decodes + self.alpha * prefill, self.walk)
        together = np.maximum(together, self.read * decodes)
        # less than a token of prefill stands for a share of iterations that have some
        both: Array = apart + np.clip(prefill, 0.0, 1.0) * (together - apart)
        return both

    def busy_per_decode(self, with_prompts: float) -> float:
        """Attention of one more decode where a share `with_prompts` of the iterations has prompts [s]."""
        if self.joined_per_decode == 0.0:
            return self.per_decode
        return self.per_decode + with_prompts * (max(self.joined_per_decode, self.read) - self.per_decode)


class LengthLaw:
    r"""Moments of a request under mixed batching, computed once from any number of rows.

    A request with ``L`` input and ``O`` output tokens prefills :math:`L'=(1-s)L` tokens (``s`` is its share found in
    the prefix cache), then makes :math:`D=O-1` decode steps; each decode reads a context of ``L`` and what it wrote.

    Parameters
    ----------
    input_tokens, output_tokens : array_like, shape (rows,)
        [tokens], may be fractional.
    weight : array_like or None
        Relative weight of each row; None is equal weights.
    cached_share : float or array_like, shape (rows,)
        Share of the prompt found in the prefix cache, in [0, 1): one for all rows, or one per row.
    attention : float
        Cost of a query-key pair over that of a prefill token, ``a/(b + c)`` [tokens/pair].
    rows : float
        Tokens a decode brings into a batch: prompt tokens to compute are counted in units of so many.
    shared_prefix : float
        Tokens that begin every longer prompt and are kept once, not by each request [tokens].

    Attributes
    ----------
    tokens, prefill : ndarray, shape (rows,)
        Tokens to compute, and the same with attention weighed in: :math:`L'+rA` scaled to the same mean. A queue of
        prompts takes time by ``prefill``; attention grows as the square of a prompt, so long ones weigh more.
    pairs : ndarray, shape (rows,)
        Query-key pairs of the prefill, the cached part as its past.
    own : ndarray, shape (rows,)
        Prompt tokens a request keeps in memory for itself.
    mean_kv, mean_kv2 : float
        Token-iterations of memory a request asks for, and their square.
    context, own_context : float
        What a decode reads, and what it holds, its shared prefix left out [tokens]; their mean squares, and the mean cube of
        the second, are context2, own_context2 and own_context3.
    """

    def __init__(
        self,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        weight: ArrayLike | None,
        cached_share: ArrayLike,
        attention: float = 0.0,
        rows: float = 1.0,
        shared_prefix: float = 0.0,
    ) -> None:
        prompt = _row_vector("input_tokens", input_tokens)
        output = _row_vector("output_tokens", output_tokens)
        if prompt.size != output.size:
            raise ValueError(f"output_tokens: {output.size} rows, but input_tokens has {prompt.size}")
        if weight is None:
            p = np.full(prompt.size, 1.0 / prompt.size)
        else:
            p = _row_vector("weight", weight)
            if p.size != prompt.size:
                raise ValueError(f"weight: {p.size} rows, but input_tokens has {prompt.size}")
            total = float(p.sum())
            if not total > 0:
                raise ValueError("weight: must have a positive sum")
            p = p / total
        cached = _row_vector("cached_share", cached_share)
        if cached.size not in (1, prompt.size):
            raise ValueError(f"cached_share: {cached.size} rows, but input_tokens has {prompt.size}")
        if not cached.max() < 1:
            raise ValueError(f"cached_share: {float(cached.max())!r} is not in [0, 1)")
        new = (1 - cached) * prompt
        steps = np.maximum(output - 1, 0.0)
        self.prompt, self.tokens, self.steps, self.probability = prompt, new / rows, steps, p
        self.mean_prefill = float(p @ new) / rows
        if not self.mean_prefill > 0:
            raise ValueError("input_tokens: the mean must be positive")
        # sum over chunks of c_j (p_j + (c_j + 1)/2) telescopes: the chunking does not matter
        self.pairs = cached * prompt * new + new * (new + 1) / 2
        self.mean_pairs = float(p @ self.pairs)
        work = new + attention * self.pairs
        self.prefill = work * (self.mean_prefill / float(p @ work))
        self.mean_prefill2 = float(p @ self.prefill**2)
        self.max_prefill = float(self.prefill[p > 0].max())
        self.own = own = own_tokens(prompt, shared_prefix)
        self.mean_own = float(p @ own)
        self.mean_own2 = float(p @ own**2)
        self.mean_steps = float(p @ steps)
        self.mean_steps2 = float(p @ steps**2)
        self.mean_kv = float(p @ (steps * (own + (steps + 1) / 2)))
        self.mean_kv2 = float(p @ (steps * (own + (steps + 1) / 2)) ** 2)
        self.context, self.context2, third = self._contexts(prompt)
        same = (self.context, self.context2, third)
        self.own_context, self.own_context2, self.own_context3 = same if own is prompt else self._contexts(own)

    def _contexts(self, begin: Array) -> tuple[float, float, float]:
        """Mean, mean square and mean cube of begin + 1 .. begin + D over all decode steps [tokens], [tokens^2], [tokens^3]."""
        if not self.mean_steps > 0:
            return 0.0, 0.0, 0.0
        p, steps = self.probability, self.steps
        first = (steps + 1) / 2
        second = (steps + 1) * (2 * steps + 1) / 6
        third = steps * first**2
        powers = (
            begin + first,
            begin**2 + 2 * begin * first + second,
            begin**3 + 3 * begin**2 * first + 3 * begin * second + third,
        )
        mean, square, cube = (float(p @ (steps * each)) / self.mean_steps for each in powers)
        return mean, square, cube

    def survival(self, lags: Array) -> Array:
        """P(D >= j) at the given ``lags`` j."""
        order = np.argsort(self.steps)
        below = np.concatenate(([0.0], np.cumsum(self.probability[order])))
        at: Array = 1.0 - below[np.searchsorted(self.steps[order], lags, side="left")]
        return at


class PromptSums:
    r"""Stop-loss :math:`E(A-x)^+` of a compound Poisson sum ``A`` of prompt lengths, on a uniform mesh.

    The law of one prompt is put on the mesh keeping its mean; the sum's law is ``ifft exp(mu (fft - 1))``. Nothing here
    depends on the arrival rate: one table serves all rates up to the mean count that fills a budget.

    Parameters
    ----------
    law : LengthLaw
    budget : float
        Token budget B [tokens]: sums per iteration of up to about ``B/E[L]`` prompts are covered.
    """

    def __init__(self, law: LengthLaw, budget: float) -> None:
        self.law = law
        self.most = max(budget / law.mean_prefill, 1e-6)
        reach = budget + 8 * np.sqrt(self.most * law.mean_prefill2) + 2.5 * law.max_prefill
        self.step = float(reach / (MESH_POINTS - 2))
        place = law.prefill / self.step
        left = np.minimum(place.astype(np.int64), MESH_POINTS - 2)
        right_share = place - left
        mass = np.bincount(left, law.probability * (1 - right_share), MESH_POINTS)
        mass += np.bincount(left + 1, law.probability * right_share, MESH_POINTS)
        self.mesh, self.transform = MESH_POINTS, np.fft.rfft(mass)
        self.counts = self.most * np.linspace(0, 1, POISSON_NODES) ** 2
        self._table: Array | None = None
        self._one_more: Array | None = None

    def stop_loss(self, counts: Array, one_more: bool = False, clump: float = 1.0) -> Array:
        """Stop-loss on the mesh [tokens], shape (counts, mesh), for means ``counts``, and one prompt more.

        The counts are Poisson, or of Poisson many clumps whose sizes are geometric with mean ``clump``.
        """
        together = self.transform / (clump - (clump - 1.0) * self.transform)
        transform = np.exp(counts[:, None] / clump * (together - 1))
        if one_more:
            transform *= self.transform
        return stop_loss(np.fft.irfft(transform, MESH_POINTS, axis=1), self.step)

    @property
    def table(self) -> Array:
        """Stop-loss at the nodes ``counts``, made at first use."""
        if self._table is None:
            self._table = self.stop_loss(self.counts)
        return self._table

    @property
    def table_of_one_more(self) -> Array:
        """The same with one prompt more for sure."""
        if self._one_more is None:
            self._one_more = self.stop_loss(self.counts, one_more=True)
        return self._one_more

    def between(self, counts: Array) -> tuple[NDArray[np.int64], Array]:
        """Left node and share of the right one for each Poisson mean."""
        place = np.sqrt(np.clip(counts / self.most, 0.0, 1.0)) * (POISSON_NODES - 1)
        left = np.minimum(place.astype(np.int64), POISSON_NODES - 2)
        low, high = self.counts[left], self.counts[left + 1]
        return left, np.clip((counts - low) / (high - low), 0.0, 1.0)


def _row_vector(name: str, values: ArrayLike) -> Array:
    a = np.atleast_1d(np.asarray(values, dtype=float))
    if a.ndim != 1 or a.size == 0:
        raise ValueError(f"{name}: expected a non-empty row of numbers")
    if not np.all(np.isfinite(a)) or a.min() < 0:
        raise ValueError(f"{name}: must be finite and not negative")
    return a


def stop_loss(mass: Array, step: float) -> Array:
    """E(A-x)^+ at the points of a mesh [tokens], of laws ``mass`` along the last axis: the tail summed from the right, twice."""
    above = np.cumsum(mass[..., ::-1], axis=-1)[..., ::-1]
    loss = np.zeros_like(above)
    loss[..., :-1] = step * np.cumsum(above[..., :0:-1], axis=-1)[..., ::-1]
    return np.maximum(loss, 0.0)
