r"""Paged KV memory of one replica: how many sequences it can hold, and what it costs to hold more.

An engine with a paged cache gives every running sequence blocks of 16 tokens as it grows. N always-busy slots hold a
random number of blocks; when they ask for more than there are, the youngest is preempted and recomputed. This module has
the law of one slot, the tail of the sum of N, the largest N that keeps a promise about that tail, and closed forms for
preemptions, recomputation, running sequences and throughput beyond it. Engine rules assumed: running sequences first,
first come first served, last in first preempted by recomputation, whole prompts must fit to be admitted, prefill in
chunks under a token budget; no prefix sharing, beam search, swapping or speculation.

Probabilities are shares of ITERATIONS; the share of time is larger (median 1.3 times: heavy iterations take longer).

Symbols: a request has I input and O output tokens (O >= 1) and a weight; b = 16 tokens per block; B token budget of an
iteration; C blocks of the cache; S iterations in a slot; n mean running sequences; P = P(N slots want more than C).
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.shared.mathematics import (
    EXACT_BELOW,
    FEW_LONGEST,
    FEW_SHARE,
    FIXED_CV,
    LATTICE,
    need,
    saddle_point,
    tail_of_sum,
)

FloatArray = NDArray[np.float64]

BLOCK_TOKENS = 16
"""Tokens of one block, the default of the engines [tokens]."""

OVERFLOW_LIMIT = 0.01
"""Default promise: share of iterations in which N busy slots want more than the cache has [1]."""

PREEMPTION_LIMIT = 0.01
"""Default promise: preemptions per request, 10 per 1,000 [1]."""

FIXED_INPUT_FACTOR = 8.0
"""What preemptions are multiplied with where prompts are alike [1]."""

CRAMPED_RATIO = 1.5
"""Room for little more than one of the longest: measured overflow is up to 5.5 times the formula ..."""

CRAMPED_SHARE = 0.15
"""... and this share of the promise is used."""

ROOMY_RATIO = 6.0
"""From room for this many of the longest on, the whole promise is used; between, a share rising from ROOMY_SHARE."""

ROOMY_SHARE = 0.7
"""Measured overflow is up to 1.44 times the formula with room for just over three of the longest."""


# --- the law of one slot ---------------------------------------------------------------------------------


def _lengths(values: ArrayLike, name: str) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    need(array.ndim == 1 and array.size, f"{name} must be a non-empty one-dimensional array")
    need(array.min() >= 0.0 and np.isfinite(array.max()), f"{name} must be finite and >= 0")
    return array


@dataclass(frozen=True, slots=True, eq=False)
class SlotLaw:
    """What one always-busy slot holds, seen at a random iteration.

    Parameters
    ----------
    blocks, probability
        Support and pmf of the held blocks, shape (support,) [blocks], [1].
    mean, variance
        m and v of the held blocks [blocks], [blocks^2].
    iterations
        E[S] = E[O] + E[ceil(I/B) - 1] [iterations].
    input_mean, output_mean, input_cv, output_cv
        E[I], E[O] [tokens] and coefficients of variation [1], over requests.
    idle_blocks
        F = E[Lb^2]/(2 E[Lb]), blocks idle behind a blocked prompt of Lb blocks [blocks].
    longest_blocks
        Blocks of the longest request [blocks].
    token_budget, block
        B and b [tokens].
    """

    blocks: FloatArray
    probability: FloatArray
    mean: float
    variance: float
    iterations: float
    input_mean: float
    output_mean: float
    input_cv: float
    output_cv: float
    idle_blocks: float
    longest_blocks: int
    token_budget: float
    block: int

    @property
    def budget_slots(self) -> float:
        """n_B = B E[O]/(E[I] + E[O]) + 1/2, the sequences the token budget can keep running [sequences]."""
        return self.token_budget * self.output_mean / (self.input_mean + self.output_mean) + 0.5


def slot_law(
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    token_budget: float = 8192,
    block: int = BLOCK_TOKENS,
) -> SlotLaw:
    r"""The law of the blocks one always-busy slot holds, weighted by the iterations spent with them: O(requests + blocks).

    .. math:: m_p = \left[E(F_p(I+O-1) - F_p(I-1)) + E\sum_{k<\lceil I/B\rceil}\lceil kB/b\rceil^p\right]/E[S],
              \quad F_p(n) = \sum_{k\le n}\lceil k/b\rceil^p

    Not E[I+O] nor E[I] + E[O]/2: long outputs occupy a slot longer, so the weighting by O matters. A request holds
    :math:`\lceil (I+i)/b \rceil` blocks in its iterations i = 0..O-1, and :math:`\lceil kB/b \rceil` in the
    :math:`\lceil I/B \rceil - 1` chunk iterations before. Fractional lengths interpolate linearly.

    Parameters
    ----------
    input_tokens, output_tokens
        I and O, shape (requests,), I >= 0, O >= 0 (a request with O < 1 still takes one iteration) [tokens].
    weight
        Weights >= 0, shape (requests,); ``None`` = equal [1].
    token_budget
        B, prefill tokens of one iteration [tokens].
    block
        b [tokens].

    Returns
    -------
    SlotLaw

    Raises
    ------
    ValueError
        Empty, negative, not finite or mismatched arrays; all weights zero; B or b below 1.

    Examples
    --------
    >>> law = slot_law([100.0, 1000.0], [200.0, 20.0])
    >>> round(law.mean, 2), law.longest_blocks, round(law.budget_slots, 1)
    (17.54, 64, 1365.8)
    """
    inputs = np.maximum(_lengths(input_tokens, "input_tokens"), 1.0)  # an empty prompt still has its first token
    outputs = np.maximum(_lengths(output_tokens, "output_tokens"), 1.0)
    need(
        inputs.shape == outputs.shape, f"input_tokens and output_tokens have shapes {inputs.shape} and {outputs.shape}"
    )
    w = np.full(inputs.shape, 1.0 / inputs.size) if weight is None else _lengths(weight, "weight")
    need(w.shape == inputs.shape, f"weight has shape {w.shape}, input_tokens {inputs.shape}")
    need(w.sum() > 0.0, "weight must not be zero everywhere")
    need(1 <= token_budget < math.inf, f"token_budget must be finite and >= 1, got {token_budget}")
    need(block >= 1 and block == int(block), f"block must be a whole number >= 1, got {block}")

    # time spent with k blocks = overlap of (I-1, I+O-1] with ((k-1)b, kb]:
    # an end point x = qb + r adds b to the cells up to q and r to cell q+1
    end = inputs + outputs - 1.0
    size = int(end.max() // block) + 2
    histogram = np.zeros(size + 1)
    for points, signed in ((end, w), (inputs - 1.0, -w)):
        cell = (points // block).astype(np.intp)
        whole = np.bincount(cell, signed, minlength=size)
        histogram[1 : size + 1] += np.bincount(cell, signed * (points - cell * block), minlength=size)[:size]
        histogram[1:size] += block * (whole[::-1].cumsum()[::-1])[1:size]
    chunks = np.ceil(inputs / token_budget) - 1.0
    if float(inputs.max()) > token_budget:
        count = np.bincount(chunks.astype(np.intp), w)
        with_more = count[::-1].cumsum()[::-1][1:]  # weight of requests with at least k = 1, 2, ... extra iterations
        held = np.ceil(np.arange(1, with_more.size + 1) * token_budget / block).astype(np.intp)
        np.add.at(histogram, held, with_more)
    histogram[histogram < 1e-13 * histogram.sum()] = 0.0  # what differences of sums leave behind
    blocks = np.flatnonzero(histogram).astype(np.float64)
    probability = histogram[histogram > 0.0] / histogram.sum()
    mean = float(probability @ blocks)
    centred = blocks - mean
    w = w / w.sum()
    e_i, e_o, prompt_blocks = float(w @ inputs), float(w @ outputs), np.ceil(inputs / block)
    return SlotLaw(
        blocks=blocks,
        probability=probability,
        mean=mean,
        variance=float(probability @ (centred * centred)),
        iterations=e_o + float(w @ chunks),
        input_mean=e_i,
        output_mean=e_o,
        input_cv=math.sqrt(max(0.0, float(w @ (inputs * inputs)) - e_i * e_i)) / e_i,
        output_cv=math.sqrt(max(0.0, float(w @ (outputs * outputs)) - e_o * e_o)) / e_o,
        idle_blocks=float(w @ (prompt_blocks * prompt_blocks)) / (2.0 * float(w @ prompt_blocks)),
        longest_blocks=math.ceil(float((inputs + outputs).max()) / block),
        token_budget=float(token_budget),
        block=int(block),
    )


# --- the tail of N slots ---------------------------------------------------------------------------------


def _exact_tail(law: SlotLaw, slots: int, capacity: int) -> float:
    """P(K_N > C) by the transform of an exponentially weighted pmf.

    Weights e^{tk} with the saddle point's t keep the relative error small however small the tail is; the period covers
    the whole support, so nothing wraps around. Supports beyond 2,048 blocks are laid on a coarser lattice that keeps the
    mean (relative error below 1e-3 at 1%).
    """
    lowest = float(law.blocks[0])
    support = float(law.blocks[-1]) - lowest
    step = max(1, math.ceil(support / LATTICE))
    place = (law.blocks - lowest) / step
    below = np.floor(place)
    upper = law.probability * (place - below)
    cells = math.ceil(support / step) + 2
    pmf = np.bincount(below.astype(np.intp), law.probability - upper, cells)
    pmf += np.bincount(below.astype(np.intp) + 1, upper, cells)
    reach = slots * (cells - 1)
    level = min(capacity + 0.5, slots * float(law.blocks[-1]) - 0.5)
    t = saddle_point(law.blocks, law.probability, level / slots)[0]
    tilt = max(t, 0.0) * step
    # counted from the top: what underflows there weighs nothing beside it
    weights = np.exp(tilt * (np.arange(cells) - (cells - 1.0)))
    norm = float(pmf @ weights)
    # a product of small primes: 2^a, 3 2^a or 5 2^a
    size = min(f << max(0, math.ceil(math.log2((reach + 1) / f))) for f in (1, 3, 5))
    transform = np.fft.rfft(pmf * (weights / norm), size)
    # multiplied out: ten times faster than the general power
    total = np.fft.irfft(functools.reduce(np.multiply, [transform] * slots), size)
    # sums from lattice point j on lie above (j - 1/2) steps; the capacity is half a block above itself
    at = (capacity + 0.5 - slots * lowest) / step + 0.5
    first = math.floor(at)
    beyond = total[first : reach + 1]
    useful = beyond[: beyond.size if tilt <= 0.0 else min(beyond.size, math.ceil(745.0 / tilt))]
    terms = useful * np.exp(-tilt * np.arange(useful.size))
    tail = float(terms.sum()) - (at - first) * float(terms[0]) if terms.size else 0.0
    if tail <= 0.0:
        return 0.0
    return min(1.0, math.exp(math.log(tail) + slots * math.log(norm) - tilt * (first - reach)))


def _check(slots: float, capacity_blocks: float) -> None:
    need(1 <= slots < math.inf, f"slots must be finite and >= 1, got {slots}")
    need(0 <= capacity_blocks < math.inf, f"capacity_blocks must be finite and >= 0, got {capacity_blocks}")


def overflow_probability(law: SlotLaw, slots: float, capacity_blocks: float, *, method: str = "auto") -> float:
    r"""Share of iterations in which `slots` busy slots want more blocks than there are, P(K_N > C).

    .. math:: P = 1 - \Phi(w) + \phi(w)(1/u - 1/w),\quad N K'(t) = x = C + \tfrac12,\quad
              w = \mathrm{sgn}(t)\sqrt{2(tx - NK(t))},\quad u = 2\sinh(t/2)\sqrt{N K''(t)}

    (Lugannani-Rice with the lattice correction). Below 16 slots the distribution itself. The token budget keeps at most
    ceil(n_B) of the slots busy.

    Parameters
    ----------
    law
        Law of one slot.
    slots
        N >= 1 [sequences].
    capacity_blocks
        C >= 0 [blocks].
    method
        ``"auto"``; ``"saddlepoint"`` or ``"exact"`` force one (and do not apply the token budget's cap).

    Returns
    -------
    float
        In [0, 1]. Against simulation at 1%: 0.95-1.1 (median 1.04) for N >= 16, 0.98-1.04 below; conservative where the
        token budget binds. Wrong when outputs have nearly one length (see :func:`safe_slots`).

    Raises
    ------
    ValueError
        An argument out of its range.

    References
    ----------
    Lugannani and Rice, Adv. Appl. Prob. 12, 1980, doi:10.2307/1426607. Daniels, Int. Stat. Rev. 55, 1987, doi:10.2307/1403269.

    Examples
    --------
    >>> law = slot_law([100.0, 1000.0], [200.0, 20.0])
    >>> round(overflow_probability(law, 64, 1300), 4)
    0.0762
    """
    _check(slots, capacity_blocks)
    need(method in ("auto", "saddlepoint", "exact"), f"method must be auto, saddlepoint or exact, got {method!r}")
    busy = min(slots, max(1.0, math.ceil(law.budget_slots))) if method == "auto" else slots
    capacity = math.floor(capacity_blocks)
    inside = busy * float(law.blocks[0]) <= capacity < busy * float(law.blocks[-1])
    if inside and (method == "exact" or (method == "auto" and busy < EXACT_BELOW and busy == int(busy))):
        return _exact_tail(law, int(busy), capacity)
    return tail_of_sum(law.blocks, law.probability, busy, capacity + 0.5)


def _soft_minimum(value: float, bound: float, spread: float) -> float:
    """E[min(value, Normal(bound, spread))]."""
    if spread <= 0.0:
        return min(value, bound)
    z = (value - bound) / spread
    cdf = 0.5 * math.erfc(-z / math.sqrt(2.0))
    return value - spread * (z * cdf + math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi))


def running_sequences(law: SlotLaw, slots: float, capacity_blocks: float) -> float:
    r"""Mean number of running sequences when requests always wait.

    .. math:: n = N - s[z\Phi(z) + \phi(z)],\quad z = (N-M)/s,\quad M = (C-F)/m,\quad s = \sqrt{Mv}/m

    then the same smooth minimum with n_B and its standard deviation sqrt(n_B).

    Parameters
    ----------
    law
        Law of one slot.
    slots
        N >= 1 [sequences].
    capacity_blocks
        C >= 0 [blocks].

    Returns
    -------
    float
        [sequences]. Within 2% of simulation on traces of ordinary lengths, up to 10% high with 128K prompts.

    Raises
    ------
    ValueError
        An argument out of its range.

    Examples
    --------
    >>> law = slot_law([100.0, 1000.0], [200.0, 20.0])
    >>> [round(running_sequences(law, n, 1300), 1) for n in (32, 64, 1000)]
    [32.0, 63.6, 72.5]
    """
    _check(slots, capacity_blocks)
    bound = max(0.0, (capacity_blocks - law.idle_blocks) / law.mean)
    n = _soft_minimum(float(slots), bound, math.sqrt(bound * law.variance) / law.mean)
    n = _soft_minimum(n, law.budget_slots, math.sqrt(law.budget_slots))
    return max(n, min(1.0, slots))


def preemption(law: SlotLaw, slots: float, capacity_blocks: float) -> tuple[float, float]:
    r"""What running `slots` always-busy slots costs in preemption.

    .. math:: p = \frac{E[O]}{E[I]} e^{-n/E[O]} P

    Each recomputes E[I] tokens on average.

    Parameters
    ----------
    law
        Law of one slot.
    slots
        N >= 1 [sequences].
    capacity_blocks
        C >= 0 [blocks].

    Returns
    -------
    tuple
        P, the share of iterations that block or preempt, and p, preemptions per request [1]. p against simulation: 0.96 median on
        traces (0.65-2.2), 2 with 128K prompts, 3.6 with long outputs (both on the safe side); fails for one fixed output length.

    Raises
    ------
    ValueError
        An argument out of its range.

    Examples
    --------
    >>> law = slot_law([100.0, 1000.0], [200.0, 20.0])
    >>> round(preemption(law, 1000, 1300)[1], 4)
    0.1035
    """
    overflow = overflow_probability(law, slots, capacity_blocks)
    running = running_sequences(law, slots, capacity_blocks)
    return overflow, law.output_mean * math.exp(-running / law.output_mean) * overflow / law.input_mean


# --- the largest safe N ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SafeSlots:
    """The largest number of slots that keeps the memory promise, what it costs, and what decided it.

    Parameters
    ----------
    slots
        N_safe; 0 when not even one request of the greatest length fits [sequences].
    capacity_blocks
        C at that N [blocks].
    overflow, preemptions
        At N_safe, as :func:`preemption` tells them [1].
    overflow_limit
        Promise that was applied after the guards [1].
    limit
        What decided: ``"overflow"``, ``"preemptions"``, ``"max_slots"``, ``"fixed output"`` (worst case) or
        ``"no room"``.
    guards
        Any of ``"fixed output"`` (CV of outputs < 0.1: worst case), ``"fixed input"`` (preemptions counted eight times),
        ``"long requests"`` (room for fewer than three of the longest: a quarter of the promise), ``"token budget"`` (the
        budget keeps fewer slots busy than N).
    """

    slots: int
    capacity_blocks: float
    overflow: float
    preemptions: float
    overflow_limit: float
    limit: str
    guards: tuple[str, ...]


def safe_slots(
    law: SlotLaw,
    capacity_blocks: float | Callable[[int], float],
    *,
    max_slots: int = 1024,
    overflow_limit: float = OVERFLOW_LIMIT,
    preemption_limit: float = PREEMPTION_LIMIT,
) -> SafeSlots:
    r"""The largest N with P(K_N > C) <= `overflow_limit` and preemptions per request <= `preemption_limit`.

    Setting an engine's ``max_num_seqs`` to it keeps the promise at any load, as a server that is not full holds less.

    Parameters
    ----------
    law
        Law of one slot.
    capacity_blocks
        C >= 0, or a function of N that does not increase (engines set memory aside per slot) [blocks].
    max_slots
        Largest N considered [sequences].
    overflow_limit
        Stationary share of iterations, in (0, 1] [1].
    preemption_limit
        Preemptions per request, > 0 [1].

    Returns
    -------
    SafeSlots
        Kept in simulation in 22 of 25 settings; the others are what the guards are for. Guards: outputs of nearly one
        length -> the worst case C/longest; room for fewer than three of the longest request -> a quarter of
        `overflow_limit` (0.15 below one and a half), rising from 0.7 to all of it between three and six; C below the
        longest request -> 0.

    Raises
    ------
    ValueError
        An argument out of its range.

    Examples
    --------
    >>> law = slot_law([100.0, 1000.0], [200.0, 20.0])
    >>> best = safe_slots(law, 1300)
    >>> best.slots, best.limit, best.overflow <= 0.01
    (57, 'overflow', True)
    """
    need(max_slots >= 1, f"max_slots must be at least 1, got {max_slots}")
    need(0.0 < overflow_limit <= 1.0, f"overflow_limit must lie in (0, 1], got {overflow_limit}")
    need(preemption_limit > 0.0, f"preemption_limit must be positive, got {preemption_limit}")
    fixed, alike = law.output_cv < FIXED_CV, law.input_cv < FIXED_CV

    @functools.cache
    def room(slots: int) -> float:
        value = capacity_blocks(slots) if callable(capacity_blocks) else capacity_blocks
        need(math.isfinite(value), f"capacity_blocks must be finite, got {value}")
        return max(0.0, value)

    @functools.cache
    def cost_of(slots: int) -> tuple[float, float]:
        return preemption(law, slots, room(slots))

    @functools.cache
    def over_limits(slots: int) -> dict[str, float]:
        """Each quantity over its limit."""
        if room(slots) < law.longest_blocks:
            return {"overflow": math.inf}
        overflow, preempted = cost_of(slots)
        allowed = overflow_limit * share_of_promise(room(slots) / law.longest_blocks)
        preempted *= FIXED_INPUT_FACTOR if alike else 1.0
        return {"overflow": overflow / allowed, "preemptions": preempted / preemption_limit}

    def breaks(slots: int) -> bool:
        if fixed:
            return slots * law.longest_blocks > room(slots)
        return max(over_limits(slots).values()) > 1.0

    # most often nothing breaks at all
    n = bisect_left(range(1, max_slots + 1), True, key=breaks) if breaks(max_slots) else max_slots
    blocks = room(max(n, 1))
    guards: tuple[str, ...] = ()
    if room(1) < law.longest_blocks:
        limit = "no room"
    elif fixed:
        limit, guards = "fixed output", ("fixed output",)
    else:
        # one more slot is what did not fit: it says which promise decides
        limit = "max_slots" if n == max_slots else max((v, k) for k, v in over_limits(n + 1).items())[1]
        tight, cut = blocks < FEW_LONGEST * law.longest_blocks, n > law.budget_slots
        found = {"fixed input": alike, "long requests": tight, "token budget": cut}
        guards = tuple(guard for guard, holds in found.items() if holds)
    # within the worst case nothing overflows
    overflow, preemptions = (0.0, 0.0) if fixed or n == 0 else cost_of(n)
    allowed = overflow_limit * share_of_promise(blocks / law.longest_blocks)
    return SafeSlots(n, blocks, overflow, preemptions, allowed, limit, guards)


def share_of_promise(room: float) -> float:
    """Share of the overflow promise that is used with room for `room` requests of the greatest length."""
    if room < FEW_LONGEST:
        return CRAMPED_SHARE if room < CRAMPED_RATIO else FEW_SHARE
    return min(1.0, ROOMY_SHARE + (1.0 - ROOMY_SHARE) * (room - FEW_LONGEST) / (ROOMY_RATIO - FEW_LONGEST))
