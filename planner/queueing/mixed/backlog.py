r"""The backlog of prompt tokens in front of a mixed-batching engine, as a Markov chain over iterations.

``V`` is the number of prompt tokens waiting when an iteration starts. It prefills :math:`C=\min(V, B_n)` of them beside
the ``n`` decodes, lasts ``s(V)``, and leaves

.. math:: V' = (V-B_n)^+ + \mathrm{CP}(\lambda s(V)),

CP a compound Poisson sum of prompt lengths. Several chains (one per ``n``) are built and solved at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.queueing.mixed.lengths import BatchCost, PromptSums

Array = NDArray[np.float64]

UNIFORM_NODES = 28
OUTER_NODES = 74
# Largest share of the capacity of full iterations that a chain is given: beyond, it has no stationary law.
MOST_LOAD = 0.985


@dataclass(frozen=True, slots=True)
class Backlog:
    """Stationary backlog chains, one per row; J grid points each.

    Attributes
    ----------
    grid, law, duration, prefill : ndarray, shape (chains, J)
        Backlog ``V`` [tokens], its stationary probability at an iteration's start, the iteration's duration [s] and its
        prefill ``C`` [tokens].
    step : ndarray, shape (chains, J, J)
        Transition probabilities.
    room : ndarray, shape (chains,)
        Largest prefill of an iteration ``B_n`` [tokens].
    full : ndarray, shape (chains,)
        Duration of a full iteration [s].
    """

    grid: Array
    law: Array
    duration: Array
    prefill: Array
    step: Array
    room: Array
    full: Array

    def mean(self, values: Array) -> Array:
        """Stationary mean over iterations of ``values``, shape (chains, J) -> (chains,)."""
        total: Array = np.einsum("kj,kj->k", self.law, values)
        return total


def backlog_grid(room: Array, knee: Array, top: Array) -> Array:
    """Grid of each chain: uniform on [0, room] with the knee put in, widening to ``top`` [tokens]."""
    inside = np.linspace(0.0, 1.0, UNIFORM_NODES)[None, :] * room[:, None]
    # the nearest inner node moves to the knee: a node beside another would spoil the second differences
    cells = np.clip(np.rint(knee / room * (UNIFORM_NODES - 1)), 1, UNIFORM_NODES - 2)
    usable = (knee > 0.5 * room / (UNIFORM_NODES - 1)) & (knee < room * (1 - 0.5 / (UNIFORM_NODES - 1)))
    chosen = np.flatnonzero(usable)
    inside[chosen, cells[chosen].astype(np.int64)] = knee[chosen]
    # beyond, steps grow linearly with the index: a point between two nodes is split between them, which over many
    # iterations acts as a diffusion, so nodes must not be further apart than a few iterations carry the backlog
    j = np.arange(1, OUTER_NODES + 1)
    first = room / (UNIFORM_NODES - 1)
    bend = np.maximum((top - room) / OUTER_NODES - first, 0.0) / (OUTER_NODES - 1)
    outside = room[:, None] + first[:, None] * j + bend[:, None] * (j * (j - 1))
    return np.concatenate((inside, outside), axis=1)


def transitions(
    sums: PromptSums, grid: Array, left_over: Array, counts: Array, table: Array | None = None, one_more: bool = False,
    clump: float = 1.0,
) -> Array:  # fmt: skip
    r"""Transition matrices, shape (chains, J, J), keeping the mean of the next backlog.

    Mass goes to the grid by differences of the stop-loss function:
    :math:`p_j=(SL_{j-1}-SL_j)/(g_j-g_{j-1})-(SL_j-SL_{j+1})/(g_{j+1}-g_j)`.

    Parameters
    ----------
    sums : PromptSums
    grid : ndarray, shape (chains, J)
    left_over : ndarray, shape (chains, J)
        What the iteration leaves of the backlog, 0 for the first points.
    counts : ndarray, shape (chains, J)
        Mean number of prompts arriving in an iteration that starts with ``grid`` tokens.
    table : ndarray or None, shape (1, mesh)
        Stop-loss of a single common count, where all counts are one number.
    one_more : bool
        One prompt comes beside those that come by chance.
    clump : float
        Mean of the geometric clumps that prompts come in, as in ``table``.
    """
    chains, points = grid.shape
    many = sums.table_of_one_more if one_more else sums.table
    loss = np.empty((chains, points, points))
    for k in range(chains):
        g, kept = grid[k], left_over[k]
        inside = int(np.count_nonzero(kept <= 0))
        mean = (counts[k] + one_more) * sums.law.mean_prefill
        flat = (many if table is None else table).ravel()
        if table is None:
            left, share = sums.between(counts[k])
        else:
            left, share = np.zeros(points, dtype=np.int64), np.zeros(points)
        width = flat.size if table is not None else many.shape[1]
        # rows that leave nothing behind share their abscissae: interpolate the nodes' curves, then blend them
        place = np.minimum(g / sums.step, width - 1.001)
        at = place.astype(np.int64)
        part = place - at
        curves = (flat.reshape(-1, width)[:, at] * (1 - part)) + flat.reshape(-1, width)[:, at + 1] * part
        if table is None:
            loss[k, :inside] = curves[left[:inside]] * (1 - share[:inside, None])
            loss[k, :inside] += curves[left[:inside] + 1] * share[:inside, None]
        else:
            loss[k, :inside] = curves[0]
        # the other rows are shifted by what was left
        x = g[None, :] - kept[inside:, None]
        place = np.clip(x / sums.step, 0.0, width - 1.001)
        at = place.astype(np.int64)
        part = place - at
        base = at + (left[inside:] * width)[:, None]
        low = flat[base]
        low += (flat[base + 1] - low) * part
        if table is None:
            base += width
            high = flat[base]
            high += (flat[base + 1] - high) * part
            low += (high - low) * share[inside:, None]
        loss[k, inside:] = np.where(x >= 0, low, mean[inside:, None] - x)
    slope = (loss[:, :, :-1] - loss[:, :, 1:]) / np.diff(grid, axis=1)[:, None, :]
    step = np.empty_like(loss)
    step[:, :, 0] = 1 - slope[:, :, 0]
    step[:, :, 1:-1] = slope[:, :, :-1] - slope[:, :, 1:]
    step[:, :, -1] = slope[:, :, -1]
    # convex but for rounding
    np.maximum(step, 0.0, out=step)
    step /= step.sum(axis=2, keepdims=True)
    law = sums.law
    mean = left_over + (counts + one_more) * law.mean_prefill
    square = mean**2 + counts * (law.mean_prefill2 + 2 * (clump - 1) * law.mean_prefill**2)
    square += one_more * (law.mean_prefill2 - law.mean_prefill**2)
    as_wide_as(step, grid, mean, np.where(left_over > 0.0, square, np.inf))
    return step


def as_wide_as(step: Array, grid: Array, mean: Array, square: Array) -> None:
    """Take out of ``step``, in place, what splitting between nodes adds to its second moment: it would act as a diffusion.

    A second difference about the node nearest to the mean keeps the mean; no probability becomes negative.

    Parameters
    ----------
    step : ndarray, shape (chains, J, J)
        Transition probabilities, or parts of them.
    grid : ndarray, shape (chains, J)
        [tokens].
    mean, square : ndarray, shape (chains, J)
        Where a step leads on average [tokens], and the second moment it should have [tokens^2], inf to leave it as it is.
    """
    chains, points = grid.shape
    k, i = np.ogrid[:chains, :points]
    halfway = grid[:, :-1] + np.diff(grid) / 2
    middle = np.stack([np.searchsorted(between, of) for between, of in zip(halfway, mean, strict=True)])
    middle = np.clip(middle, 1, points - 2)
    low, high = grid[k, middle] - grid[k, middle - 1], grid[k, middle + 1] - grid[k, middle]
    excess = (step @ (grid**2)[:, :, None])[:, :, 0] - square
    left, right = low * (low + high), high * (low + high)
    excess = np.clip(excess, 0.0, np.minimum(step[k, i, middle - 1] * left, step[k, i, middle + 1] * right))
    step[k, i, middle - 1] -= excess / left
    step[k, i, middle + 1] -= excess / right
    step[k, i, middle] += excess / (low * high)


def stationary(step: Array) -> Array:
    """Stationary laws of stacked transition matrices, shape (chains, J, J) -> (chains, J)."""
    points = step.shape[-1]
    system = np.swapaxes(step, -1, -2) - np.eye(points)
    system[:, -1, :] = 1.0
    right = np.zeros((step.shape[0], points, 1))
    right[:, -1] = 1.0
    law = np.linalg.solve(system, right)[..., 0]
    positive = np.maximum(law, 0.0)
    normal: Array = positive / positive.sum(axis=1, keepdims=True)
    return normal


def backlog_top(sums: PromptSums, room: Array, load: Array) -> Array:
    """Where the grid ends [tokens]: seven times the mean of the M/G/1 backlog beyond the longest prompts."""
    law = sums.law
    mean = load / (1 - load) * law.mean_prefill2 / (2 * law.mean_prefill)
    return room + 1.5 * law.max_prefill + 7 * (mean + room / 2)


def fixed_count_backlog(
    sums: PromptSums, room: float, knee: float, count: float, clump: float = 1.0
) -> tuple[Array, Array]:
    """Grid and law of the backlog when ``count`` prompts arrive per iteration whatever its duration (saturation), in clumps.

    Returns
    -------
    grid, law : ndarray, shape (J,)
        [tokens], probability.
    """
    rooms = np.array([room])
    load = np.array([min(count * sums.law.mean_prefill / room, MOST_LOAD)])
    count = float(load[0]) * room / sums.law.mean_prefill
    grid = backlog_grid(rooms, np.array([knee]), backlog_top(sums, rooms, load))
    table = sums.stop_loss(np.array([count]), clump=clump)
    counts = np.full(grid.shape, count)
    step = transitions(sums, grid, np.maximum(grid - rooms[:, None], 0.0), counts, table, clump=clump)
    return grid[0], stationary(step)[0]


def solve_backlog(
    sums: PromptSums,
    cost: BatchCost,
    budget: float,
    decodes: Array,
    rate: Array,
    *,
    slope: float = 0.0,
    mean_prefill: Array | float = 0.0,
    idle_rate: float | None = None,
    most_load: float = MOST_LOAD,
) -> Backlog:
    r"""Stationary backlog chains at given numbers of decodes.

    Parameters
    ----------
    sums : PromptSums
    cost : BatchCost
    budget : float
        Token budget B [tokens].
    decodes : ndarray, shape (chains,)
        Slow number of decodes ``n`` of each chain.
    rate : ndarray, shape (chains,)
        Arrival rate of one replica [1/s].
    slope : float
        ``beta``: decodes per prefill token, :math:`n(C)=\max(0, n+\beta(C-\bar C))`.
    mean_prefill : ndarray or float
        :math:`\bar C` [tokens].
    idle_rate : float or None
        Rate [1/s] of the exponential wait of an idle replica; used by chains whose ``decodes`` is exactly 0.
    most_load : float
        Share of the full iterations' capacity that arrivals may take; rates beyond are cut to it.

    Returns
    -------
    Backlog
    """
    law = sums.law
    room = np.maximum((budget - decodes + slope * mean_prefill) / (1 + slope), 1.0)
    full = cost(np.maximum(decodes + slope * (room - mean_prefill), 0.0), room)
    load = np.minimum(rate * full * law.mean_prefill / room, most_load)
    rate = load * room / (full * law.mean_prefill)
    knee = cost.knee - decodes
    grid = backlog_grid(room, knee, backlog_top(sums, room, load))
    prefill = np.minimum(grid, room[:, None])
    n = np.maximum(decodes[:, None] + slope * (prefill - np.reshape(mean_prefill, (-1, 1))), 0.0)
    duration = cost(n, prefill)
    open_s = duration  # as long as those who come in it wait for the next
    if cost.apart:
        alone = (grid > 0.0) & (grid <= room[:, None])
        open_s = np.where(alone, cost.decoding(n), duration)
        duration = duration + alone * cost.prompts_since(rate[:, None], law.mean_prefill, duration - open_s)[0]
        # who comes while prompts are served is served before the decodes
        prefill = prefill + rate[:, None] * (duration - open_s) * law.mean_prefill
    counts = rate[:, None] * open_s
    step = transitions(sums, grid, np.maximum(grid - room[:, None], 0.0), counts)
    if idle_rate is not None:
        for k in np.flatnonzero(decodes == 0):
            duration[k, 0] = 1 / idle_rate
            step[k, 0] = single_prompt(law.prefill, law.probability, grid[k])
    return Backlog(grid, stationary(step), duration, prefill, step, room, full)


def solve_shared(
    sums: PromptSums,
    cost: BatchCost,
    budget: float,
    present: Array,
    rate: float,
    share: float,
    tagged: float = 0.0,
    refill: Array | float = 1.0,
) -> Backlog:
    r"""Backlog chains of a replica that a router keeps at a number of requests (join-shortest-queue).

    With many replicas the one that loses a request gets the next arrival: the replica is a closed system of ``N``
    requests, of which about :math:`V/E[L]` are in prefill and the others decode. Prompts then come at

    .. math:: (1-\sigma)\,\lambda s(V) + \sigma\,\frac{(N-V/E[L])^+}{E[D]}

    an iteration, with :math:`\sigma=1-1/g` the share of the control.

    Parameters
    ----------
    sums, cost, budget
        As in :func:`solve_backlog`.
    present : ndarray, shape (chains,)
        Requests present ``N``.
    rate : float
        Arrival rate of one replica [1/s].
    share : float
        :math:`\sigma`.
    tagged : float
        Decodes beside those ``N`` that stay for the whole time (the request whose decodes are followed).
    refill : ndarray or float
        Arrivals at the pool per departure from it: 1 where its total stands still.

    Returns
    -------
    Backlog
    """
    law = sums.law
    # decodes n = N - V/E[L] beside a backlog that just fills the iteration
    alone = max(1 - 1 / law.mean_prefill, 0.1)
    room = np.maximum((budget - tagged - present) / alone, 1.0)
    top = room + 2 * law.max_prefill + 2 * (present + 1) * law.mean_prefill
    knee = cost.knee - tagged - present
    grid = backlog_grid(room, knee, top)
    others = np.maximum(present[:, None] - grid / law.mean_prefill, 0.0)
    prefill = np.minimum(grid, np.maximum(budget - tagged - others, 1.0))
    duration = cost(tagged + others, prefill)
    full = cost(tagged + np.maximum(present - room / law.mean_prefill, 0.0), room)
    # what comes from outside may not by itself be more than the budget can do
    outside = np.minimum((1 - share) * rate * duration, MOST_LOAD * room[:, None] / law.mean_prefill)
    counts = outside + share * np.reshape(refill, (-1, 1)) * others / max(law.mean_steps, 1.0)
    step = transitions(sums, grid, grid - prefill, counts)
    return Backlog(grid, stationary(step), duration, prefill, step, room, full)


def single_prompt(prompt: Array, probability: Array, grid: Array) -> Array:
    """Law of one prompt on ``grid``, keeping the mean."""
    right = np.clip(np.searchsorted(grid, prompt, side="right"), 1, grid.size - 1)
    share = np.clip((prompt - grid[right - 1]) / (grid[right] - grid[right - 1]), 0.0, 1.0)
    mass: Array = np.bincount(right, probability * share, grid.size).astype(float)
    mass += np.bincount(right - 1, probability * (1 - share), grid.size)
    return mass
