"""A guess of the rate one mixed-batching replica keeps its promises at, for every pool of a search at once.

It decides only in which order pools are evaluated with the reporting method; no reported number comes from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.iteration.model import IterationModel
from planner.promise import Promise
from planner.workload import pools as m

FloatArray = NDArray[np.float64]


def guess_rate(
    moments: FloatArray,
    long_prompt: FloatArray,
    iteration: IterationModel,
    token_budget: float,
    capacity: FloatArray,
    promises: Sequence[Promise],
) -> FloatArray:
    r"""Rate per replica at which the first promise is about to break.

    The prompts of a replica queue for one prefill server whose service is
    :math:`s(L) = L (b + c + (t_0 + (h + g k) n)/B) + a L^2/2`; its P99 wait is taken from the mean by an exponential
    tail, :math:`\ln(100 \rho) E[s^2]/(2 E[s](1-\rho))`, and combined with a long prompt's own service.

    Parameters
    ----------
    moments
        Feature sums of the pools, shape (pools, features).
    long_prompt
        A high quantile of the new prompt tokens of each pool [tokens], shape (pools,).
    iteration, token_budget
        Engine.
    capacity
        Upper bound of the stable rate [1/s], shape (pools,).
    promises
        Latency promises.

    Returns
    -------
    ndarray
        Rate [1/s], at most `capacity`, shape (pools,).
    """
    share = np.maximum(moments[:, m.SHARE], 1e-300)
    mean = moments / share[:, None]
    new, new2, decode = mean[:, m.NEW_INPUT], mean[:, m.NEW_INPUT2], mean[:, m.DECODE]
    context = np.where(decode > 0.0, mean[:, m.KV] / np.maximum(decode, 1e-9), 0.0)
    it = iteration
    ttft = [p.limit_s for p in promises if p.metric == "ttft_s"]
    tpot = [p.limit_s for p in promises if p.metric == "tpot_s"]
    # empty pools take any rate; a finite stand-in keeps the arithmetic quiet
    capacity = np.where(np.isfinite(capacity), capacity, 1.0)
    low, high = np.zeros_like(capacity), np.array(capacity)
    per_decode = it.h + it.g * context
    for _ in range(18):
        rate = 0.5 * (low + high)
        # decodes present at this rate: Little's law with the mean iteration of a replica that is busy rate/capacity
        half = rate / capacity * token_budget * 0.5
        duration = it.t0 + it.weight_time(half) + (it.b + it.c) * half
        n = rate * decode * duration
        full = it.t0 + np.maximum(it.w + it.w_experts, it.b * token_budget) + it.c * token_budget + per_decode * n
        per_token = full / token_budget + 0.5 * it.a * long_prompt
        # rates far beyond any replica overflow, and are broken
        with np.errstate(over="ignore", invalid="ignore"):
            service = np.maximum(_never(new * per_token), 1e-12)
            service2 = _never(new2 * per_token**2)
        load = np.minimum(rate * service, 0.999)
        with np.errstate(over="ignore", invalid="ignore"):
            wait = np.maximum(np.log(np.maximum(100.0 * load, 1.0)), 0.0) * service2 / (2.0 * service * (1.0 - load))
            # a long wait and a long prompt seldom meet
            total = np.hypot(wait, long_prompt * per_token) + 0.5 * duration
            step = duration + 0.5 * (full - duration) * np.sqrt(load)
        broken = ~np.isfinite(total) | ~np.isfinite(step)
        if ttft:
            broken |= total > min(ttft)
        if tpot:
            broken |= step > min(tpot)
        high = np.where(broken, rate, high)
        low = np.where(broken, low, rate)
    return np.maximum(low, 1e-3 * capacity)


def _never(times: FloatArray) -> FloatArray:
    """Times that are no numbers (nothing, infinitely often) as infinite ones."""
    return np.where(np.isnan(times), np.inf, times)
