"""Mixed batching under a token budget (vLLM V1, Sarathi): one replica, and pools of them, in closed form."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.queueing.mixed_lengths import BatchCost, LengthLaw, PromptSums
from planner.queueing.mixed_throughput import MaxThroughput, max_throughput

__all__ = ["MixedReplica"]

Array = NDArray[np.float64]


class MixedReplica:
    r"""One engine that mixes decodes and prefill chunks under a token budget.

    An iteration holds one token of every running decode and fills the rest of the budget B with prompt tokens, first
    come first served. It lasts

    .. math:: t = t_0 + \max(w, b\tau\lceil T/\tau\rceil) + cT + hn + gK + aA + xnC/T

    with ``n`` decodes of total context ``K``, ``C`` prefill tokens of ``A`` query-key pairs, ``T = n + C``.

    Parameters
    ----------
    t0, w : float
        Fixed cost, weight-streaming floor [s].
    b, c : float
        Per token of the batch, compute-bound and not [s/token].
    h, g, a : float
        Per decode [s], per context token of a decode [s/token], per query-key pair of prefill [s/pair].
    tau : int
        Tile of the matrix multiplications [tokens]; taken at its mean.
    x : float
        Interference of prefill and decode in one batch [s/token].
    e : float
        Longest-sequence term of decode attention [s/token]; ignored, with a warning in every prediction, when > 0.
    input_tokens, output_tokens : array_like, shape (rows,)
        Lengths of the requests [tokens].
    weight : array_like or None
        Relative weights of the rows; None is equal weights.
    token_budget : float
        B [tokens].
    max_num_seqs : int
        Most running sequences.
    kv_tokens : float
        KV memory [tokens]; ``inf`` for no limit.
    cached_share : float
        Share of every prompt found in the prefix cache, in [0, 1): prefill computes the rest with the cached part as
        its past; memory and decode reads hold all of it.
    api_overhead_s : float
        Constant added to TTFT and E2E [s].

    Raises
    ------
    ValueError
        Naming the argument that cannot be.

    Examples
    --------
    >>> engine = MixedReplica(t0=0.002, w=0.005, b=24e-6, c=5e-6, h=1e-6, g=5e-8, a=7e-10,
    ...                       input_tokens=[1000.0], output_tokens=[201.0], token_budget=400, max_num_seqs=256)
    >>> limit = engine.max_throughput()
    >>> limit.binding, round(limit.per_s, 1)
    ('budget', 19.1)
    """

    def __init__(
        self,
        *,
        t0: float,
        w: float,
        b: float,
        c: float,
        h: float,
        g: float,
        a: float,
        tau: int = 1,
        x: float = 0.0,
        e: float = 0.0,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        weight: ArrayLike | None = None,
        token_budget: float,
        max_num_seqs: float,
        kv_tokens: float = math.inf,
        cached_share: float = 0.0,
        api_overhead_s: float = 0.0,
    ) -> None:
        terms = {"t0": t0, "w": w, "b": b, "c": c, "h": h, "g": g, "a": a, "x": x, "e": e}
        for name, value in (*terms.items(), ("api_overhead_s", api_overhead_s)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: {value!r} is not a finite number >= 0")
        if not t0 + w + b + c + h > 0:
            raise ValueError("t0: an iteration must take time; all of t0, w, b, c, h are 0")
        if not tau >= 1:
            raise ValueError(f"tau: {tau!r} is not >= 1")
        if not (math.isfinite(token_budget) and token_budget >= 1):
            raise ValueError(f"token_budget: {token_budget!r} is not a finite number >= 1")
        if not max_num_seqs >= 1 or not math.isfinite(max_num_seqs):
            raise ValueError(f"max_num_seqs: {max_num_seqs!r} is not a finite number >= 1")
        if not kv_tokens > 0:
            raise ValueError(f"kv_tokens: {kv_tokens!r} is not > 0")
        self.token_budget = float(token_budget)
        self.max_num_seqs = float(max_num_seqs)
        self.kv_tokens = float(kv_tokens)
        self.api_overhead_s = float(api_overhead_s)
        self._law = LengthLaw(input_tokens, output_tokens, weight, cached_share)
        self._sums = PromptSums(self._law, self.token_budget)
        self._a = float(a)
        self._cost = BatchCost(
            t0=float(t0),
            w=float(w),
            b=float(b),
            c=float(c),
            per_decode=float(h + g * self._law.context),
            alpha=float(a * self._law.mean_pairs / self._law.mean_prefill),
            tau=float(tau),
            x=float(x),
        )
        self._ignores_longest = e > 0
        self._limit: MaxThroughput | None = None

    def max_throughput(self) -> MaxThroughput:
        """Largest sustainable arrival rate of one replica [1/s] and what binds it.

        Returns
        -------
        MaxThroughput
        """
        if self._limit is None:
            self._limit = max_throughput(
                self._sums,
                self._cost,
                a=self._a,
                budget=self.token_budget,
                slots=self.max_num_seqs,
                kv_tokens=self.kv_tokens,
            )
        return self._limit
