"""Safe slots of hundreds of pools at once: the saddle point of :mod:`planner.queueing.memory` on a shared grid of block counts.

A search over pool boundaries asks for the safe slots of many subsets of one workload. Their sums over requests are matrix products
(or cumulative sums) of per-request features, and their saddle points are found together. The grid has cells of 8% width, so that a
pool of short prompts and one of 128K prompts are both resolved; N agrees with the scalar search within one slot (two where N < 16,
on the safe side). Decide with :func:`planner.queueing.memory.safe_slots`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.queueing.memory import (
    BLOCK_TOKENS,
    FIXED_INPUT_CV,
    FIXED_INPUT_FACTOR,
    FIXED_OUTPUT_CV,
    OVERFLOW_LIMIT,
    PREEMPTION_LIMIT,
    share_of_promise,
)

__all__ = ["SafeSlotsBatch", "SlotGrid", "SlotLaws", "safe_slots_batch"]

FloatArray = NDArray[np.float64]

GROWTH = 1.08
"""Ratio of neighbouring cells beyond the first 16 [1]."""

SECANT_STEPS = 9

LARGEST_TILT = 400.0
"""Largest t times the largest cell: beyond, the tail is that of every slot at its greatest [1]."""

# columns after the cells: weight, I, I^2, O, O^2, input blocks, their square, total blocks
_EXTRA = 7


@dataclass(frozen=True, slots=True, eq=False)
class SlotGrid:
    """Cells of held blocks, the same for every subset of a workload.

    Parameters
    ----------
    edges
        Cell j holds the block counts edges[j]+1..edges[j+1], shape (cells + 1,) [blocks].
    token_budget
        B [tokens].
    block
        b [tokens].

    Examples
    --------
    >>> grid = SlotGrid.up_to(131072)
    >>> grid.nodes.size, grid.nodes[:3].tolist()
    (104, [1.0, 2.0, 3.0])
    """

    edges: FloatArray
    token_budget: float
    block: int

    @classmethod
    def up_to(cls, longest_tokens: float, *, token_budget: float = 8192, block: int = BLOCK_TOKENS) -> SlotGrid:
        """Grid for requests of up to `longest_tokens` [tokens] under a `token_budget` [tokens] in blocks of `block` [tokens]."""
        if not (longest_tokens >= 1 and math.isfinite(longest_tokens)):
            raise ValueError(f"longest_tokens must be finite and >= 1, got {longest_tokens}")
        if not (token_budget >= 1 and math.isfinite(token_budget)):
            raise ValueError(f"token_budget must be finite and >= 1, got {token_budget}")
        last = math.ceil(longest_tokens / block) + 1
        edges = [0.0]
        while edges[-1] < last:
            edges.append(float(max(edges[-1] + 1.0, math.floor(edges[-1] * GROWTH))))
        return cls(np.array(edges), float(token_budget), int(block))

    @property
    def nodes(self) -> FloatArray:
        """Mean block count of each cell, shape (cells,) [blocks]."""
        return 0.5 * (self.edges[:-1] + 1.0 + self.edges[1:])

    def features(self, input_tokens: ArrayLike, output_tokens: ArrayLike) -> FloatArray:
        """What each request adds to its pool's sums; multiply by weights and add over requests.

        Parameters
        ----------
        input_tokens, output_tokens
            I and O, shape (requests,) [tokens].

        Returns
        -------
        ndarray
            Shape (requests, features): iterations spent in each cell, then moments of the lengths.

        Raises
        ------
        ValueError
            A request longer than the grid, or lengths that are negative or not finite.
        """
        inputs = np.maximum(np.asarray(input_tokens, dtype=np.float64), 1.0)
        outputs = np.maximum(np.asarray(output_tokens, dtype=np.float64), 1.0)
        end = inputs + outputs - 1.0
        edges = self.edges * self.block
        if not (inputs.size and math.isfinite(float(end.max())) and float(end.max()) <= edges[-1]):
            raise ValueError("input_tokens + output_tokens must be finite and within the grid, and not empty")
        width = np.diff(edges)
        low = edges[:-1]
        spent = np.clip(end[:, None] - low, 0.0, width) - np.clip((inputs - 1.0)[:, None] - low, 0.0, width)
        longest = float(inputs.max())
        if longest > self.token_budget:
            held = np.ceil(np.arange(1, math.ceil(longest / self.token_budget)) * self.token_budget / self.block)
            cell = np.searchsorted(self.edges, held) - 1
            extra = np.ceil(inputs / self.token_budget) - 1.0
            for k, at in enumerate(cell, start=1):
                spent[:, at] += extra >= k
        blocks = np.ceil(inputs / self.block)
        moments = np.column_stack(
            [np.ones_like(inputs), inputs, inputs * inputs, outputs, outputs * outputs, blocks, blocks * blocks]
        )
        return np.hstack([spent, moments])


@dataclass(frozen=True, slots=True, eq=False)
class SlotLaws:
    """Laws of one busy slot in each of several pools, on one grid.

    Parameters
    ----------
    grid
        The grid.
    sums
        Weighted sums of the features, shape (pools, features).
    longest_blocks
        Blocks of each pool's longest request, shape (pools,) [blocks].
    """

    grid: SlotGrid
    sums: FloatArray
    longest_blocks: FloatArray

    @classmethod
    def from_sums(cls, grid: SlotGrid, sums: ArrayLike, longest_tokens: ArrayLike) -> SlotLaws:
        """Laws from weighted sums of :meth:`SlotGrid.features` and each pool's longest request [tokens].

        Examples
        --------
        >>> grid = SlotGrid.up_to(4096)
        >>> features = grid.features([100.0, 1000.0], [200.0, 20.0])
        >>> laws = SlotLaws.from_sums(grid, [[1.0, 0.0], [0.5, 0.5]] @ features, [300.0, 1020.0])
        >>> [round(float(m), 1) for m in laws.means]
        [12.9, 17.6]
        """
        table = np.atleast_2d(np.asarray(sums, dtype=np.float64))
        if table.shape[1] != grid.edges.size - 1 + _EXTRA:
            raise ValueError(f"sums has {table.shape[1]} columns, the grid makes {grid.edges.size - 1 + _EXTRA}")
        longest = np.broadcast_to(np.ceil(np.asarray(longest_tokens, dtype=np.float64) / grid.block), table.shape[:1])
        if not np.all(table[:, -_EXTRA] > 0.0):
            raise ValueError("sums has a pool without requests")
        return cls(grid, table, np.array(longest))

    @property
    def probability(self) -> FloatArray:
        """Share of slot time in each cell, shape (pools, cells) [1]."""
        time = np.maximum(self.sums[:, :-_EXTRA], 0.0)
        shares: FloatArray = time / time.sum(axis=1, keepdims=True)
        return shares

    @property
    def means(self) -> FloatArray:
        """Mean held blocks of a slot, shape (pools,) [blocks]."""
        found: FloatArray = self.probability @ self.grid.nodes
        return found

    def moment(self, column: int) -> FloatArray:
        """Mean of an extra column over each pool's requests."""
        found: FloatArray = self.sums[:, column - _EXTRA] / self.sums[:, -_EXTRA]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class SafeSlotsBatch:
    """The largest safe N of each pool, shape (pools,) each.

    Parameters
    ----------
    slots
        N_safe, 0 where the longest request does not fit. Where the token budget keeps fewer busy: `max_slots` if the memory
        set aside for them allows it, else n_B + 4 sqrt(n_B), else ceil(n_B) [sequences].
    overflow
        P(K_N > C) at N_safe [1].
    preemptions_per_request
        At N_safe [1].
    capacity_blocks
        C at N_safe [blocks].
    """

    slots: NDArray[np.int64]
    overflow: FloatArray
    preemptions_per_request: FloatArray
    capacity_blocks: FloatArray


_erfc = np.frompyfunc(math.erfc, 1, 1)


def _upper_tail(w: FloatArray) -> FloatArray:
    """1 - Phi(w)."""
    tail: FloatArray = 0.5 * np.asarray(_erfc(w / math.sqrt(2.0)), dtype=np.float64)
    return tail


def _normal_quantile(tail: FloatArray) -> FloatArray:
    """w with 1 - Phi(w) = tail <= 1/2, to 4.5e-4 (Abramowitz and Stegun 26.2.23)."""
    t = np.sqrt(-2.0 * np.log(np.clip(tail, 1e-300, 0.5)))
    top = 2.515517 + t * (0.802853 + t * 0.010328)
    bottom = 1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))
    return t - top / bottom


class _Cumulants:
    """K, K', K'' of every pool at its own t."""

    def __init__(self, laws: SlotLaws) -> None:
        self.probability = laws.probability
        self.nodes = laws.grid.nodes
        self.powers = np.column_stack([np.ones_like(self.nodes), self.nodes, self.nodes**2])
        self.first = self.probability @ self.nodes
        self.variance = np.maximum(self.probability @ self.nodes**2 - self.first**2, 1e-9)
        held = self.probability > 0.0
        self.top = self.nodes[self.nodes.size - 1 - np.argmax(held[:, ::-1], axis=1)]
        self.bottom = self.nodes[np.argmax(held, axis=1)]

    def __call__(self, t: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        shift = np.maximum(t * self.top, t * self.bottom)
        # cells beyond a pool's support may overflow before their zero weight is applied
        tilted = np.exp(np.minimum(t[:, None] * self.nodes - shift[:, None], 0.0)) * self.probability
        moments = tilted @ self.powers
        first = moments[:, 1] / moments[:, 0]
        second = np.maximum(moments[:, 2] / moments[:, 0] - first * first, 1e-12)
        return shift + np.log(moments[:, 0]), first, second


def _tail(cumulants: _Cumulants, slots: FloatArray, x: FloatArray, start: FloatArray) -> FloatArray:
    """P(K_N > x) by the saddle point, each pool at its own N and x."""
    target = np.clip(x / slots, cumulants.bottom * (1 + 1e-9), cumulants.top * (1 - 1e-9))
    t = start.copy()
    reach = 4.0 / cumulants.top
    for _ in range(12):
        k, k1, k2 = cumulants(t)
        step = np.log(target / k1) * k1 / k2
        limit = 2.0 * np.abs(t) + reach
        t = np.clip(t + np.clip(step, -limit, limit), -LARGEST_TILT / cumulants.top, LARGEST_TILT / cumulants.top)
        if np.all(np.abs(step) <= 1e-9 * np.abs(t) + 1e-15):
            break
    k, k1, k2 = cumulants(t)
    t = np.where(np.abs(t) * cumulants.top < 1e-5, 1e-5 / cumulants.top, t)  # the mean itself is 0/0
    w = np.sign(t) * np.sqrt(np.maximum(2.0 * slots * (t * target - k), 1e-12))
    u = 2.0 * np.sinh(0.5 * t) * np.sqrt(slots * k2)
    density = np.exp(-0.5 * w * w) / math.sqrt(2.0 * math.pi)
    tail = np.clip(_upper_tail(w) + density * (1.0 / u - 1.0 / w), 0.0, 1.0)
    return np.where(x >= slots * cumulants.top, 0.0, np.where(x <= slots * cumulants.bottom, 1.0, tail))


def safe_slots_batch(
    laws: SlotLaws,
    capacity_blocks: ArrayLike | Callable[[FloatArray], ArrayLike],
    *,
    max_slots: int = 1024,
    overflow_limit: float = OVERFLOW_LIMIT,
    preemption_limit: float = PREEMPTION_LIMIT,
) -> SafeSlotsBatch:
    r"""The largest N of every pool that keeps the memory promise; see :func:`planner.queueing.memory.safe_slots`.

    Along the curve N K'(t) = C + 1/2 the tail is a function of t alone; its root in

    .. math:: w^* = w + \ln(u/w)/w = \Phi^{-1}(1 - \epsilon)

    (Barndorff-Nielsen's form of the same approximation) is nearly straight in t: six secant steps for all pools together.

    Parameters
    ----------
    laws
        One law per pool.
    capacity_blocks
        C, a number, an array (pools,), or a function of an array of N [blocks].
    max_slots
        Largest N considered [sequences].
    overflow_limit, preemption_limit
        As the scalar function [1].

    Returns
    -------
    SafeSlotsBatch

    Raises
    ------
    ValueError
        A limit out of its range.

    References
    ----------
    Barndorff-Nielsen, Biometrika 73, 1986, doi:10.1093/biomet/73.2.307.

    Examples
    --------
    >>> grid = SlotGrid.up_to(4096)
    >>> features = grid.features([100.0, 1000.0], [200.0, 20.0])
    >>> laws = SlotLaws.from_sums(grid, [[1.0, 0.0], [0.5, 0.5]] @ features, [300.0, 1020.0])
    >>> safe_slots_batch(laws, 1300.0).slots.tolist()
    [68, 57]
    """
    if max_slots < 1:
        raise ValueError(f"max_slots must be at least 1, got {max_slots}")
    if not 0.0 < overflow_limit <= 0.5:
        raise ValueError(f"overflow_limit must lie in (0, 0.5], got {overflow_limit}")
    if not preemption_limit > 0.0:
        raise ValueError(f"preemption_limit must be positive, got {preemption_limit}")

    def capacity(slots: FloatArray) -> FloatArray:
        found = capacity_blocks(slots) if callable(capacity_blocks) else capacity_blocks
        return np.maximum(np.broadcast_to(np.asarray(found, dtype=np.float64), slots.shape), 0.0)

    pools = laws.sums.shape[0]
    cumulants = _Cumulants(laws)
    mean, variance, longest = cumulants.first, cumulants.variance, laws.longest_blocks
    e_i, e_o = laws.moment(1), laws.moment(3)
    cv_i = np.sqrt(np.maximum(laws.moment(2) / e_i**2 - 1.0, 0.0))
    cv_o = np.sqrt(np.maximum(laws.moment(4) / e_o**2 - 1.0, 0.0))
    strictness = np.where(cv_i < FIXED_INPUT_CV, FIXED_INPUT_FACTOR, 1.0)
    # p = E[O]/E[I] e^{-n/E[O]} P <= limit, as a limit on P
    per_preemption = preemption_limit * e_i / (e_o * strictness)

    def limit(slots: FloatArray, blocks: FloatArray) -> FloatArray:
        stationary = overflow_limit * share_of_promise(blocks / longest)
        return np.minimum(stationary, per_preemption * np.exp(np.minimum(slots / e_o, 50.0)))

    def kept(tail: FloatArray, slots: FloatArray, blocks: FloatArray) -> NDArray[np.bool_]:
        return (tail <= limit(slots, blocks)) & (blocks >= longest)

    ones = np.ones(pools)
    slots = np.minimum(capacity(ones) / mean, float(max_slots))
    t = previous_t = previous_gap = np.zeros(pools)
    low, high = np.zeros(pools), LARGEST_TILT / cumulants.top
    for step in range(SECANT_STEPS):
        blocks = capacity(slots)
        x = np.floor(blocks) + 0.5
        z = np.maximum(_normal_quantile(limit(slots, blocks)), 0.05)
        if step == 0:
            root = (np.sqrt(z * z * variance + 4.0 * mean * x) - z * np.sqrt(variance)) / (2.0 * mean)
            t = np.minimum(z / (np.maximum(root, 1e-3) * np.sqrt(variance)), 0.5 * high)
        k, k1, k2 = cumulants(t)
        slots = x / k1
        w = np.sqrt(np.maximum(2.0 * slots * (t * k1 - k), 1e-12))
        u = 2.0 * np.sinh(0.5 * t) * np.sqrt(slots * k2)
        gap = w + np.log(u / w) / w - z
        low, high = np.where(gap < 0.0, t, low), np.where(gap < 0.0, high, t)
        moved = (gap != previous_gap) & (step > 0)
        slope = np.where(moved, (gap - previous_gap) / np.where(moved, t - previous_t, 1.0), w / t)
        proposal = t - gap / np.where(slope > 0.0, slope, np.inf)
        inside = (proposal > low) & (proposal < high) & (slope > 0.0)
        previous_t, previous_gap = t, gap
        t = np.where(inside, proposal, np.where(low > 0.0, np.sqrt(np.maximum(low, 1e-12) * high), 0.5 * high))
    found = np.clip(np.floor(slots + 1e-9), 1.0, float(max_slots))

    # the token budget keeps at most n_B slots busy: beyond, N costs nothing but the memory set aside for it
    busiest = np.ceil(laws.grid.token_budget * e_o / (e_i + e_o) + 0.5)
    capped = (found >= busiest) & (found < max_slots)
    if np.any(capped):
        # room for the swings of what runs around n_B, then as much as was asked for
        roomy = np.minimum(np.ceil(busiest + 4.0 * np.sqrt(busiest)), float(max_slots))
        chosen = busiest
        for wider in (roomy, ones * max_slots):
            blocks = capacity(wider)
            tail = _tail(cumulants, busiest, np.floor(blocks) + 0.5, previous_t)
            chosen = np.where(kept(tail, busiest, blocks), wider, chosen)
        found = np.where(capped, chosen, found)

    for _ in range(3):
        blocks = capacity(found)
        busy = np.minimum(found, busiest)
        overflow = _tail(cumulants, busy, np.floor(blocks) + 0.5, previous_t)
        broken = ~kept(overflow, busy, blocks) & (found > 1.0)
        if not np.any(broken):
            break
        found = np.where(broken, found - 1.0, found)

    fixed = cv_o < FIXED_OUTPUT_CV
    if np.any(fixed):
        worst, above = np.zeros(pools), np.full(pools, max_slots + 1.0)
        while np.any(above - worst > 1.0):
            middle = np.floor(0.5 * (worst + above))
            fits = middle * longest <= capacity(np.maximum(middle, 1.0))
            worst, above = np.where(fits, middle, worst), np.where(fits, above, middle)
        found, overflow = np.where(fixed, worst, found), np.where(fixed, 0.0, overflow)
    no_room = (capacity(ones) < longest) | ((found <= 1.0) & ~fixed & ~kept(overflow, ones, capacity(ones)))
    found = np.where(no_room, 0.0, found)
    overflow = np.where(no_room, 0.0, overflow)
    preempted = e_o / e_i * np.exp(-np.minimum(found, busiest) / e_o) * overflow
    return SafeSlotsBatch(found.astype(np.int64), overflow, preempted, capacity(np.maximum(found, 1.0)))
