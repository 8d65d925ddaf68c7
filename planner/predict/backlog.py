r"""The backlog of prompt tokens in front of an engine with mixed batching, as a Markov chain over iterations.

``V`` is the number of prompt tokens waiting when an iteration starts. It prefills :math:`C=\min(V, B_n)` of them beside
the ``n`` decodes, lasts ``s(V)``, and leaves

.. math:: V' = (V-B_n)^+ + \mathrm{CP}(\lambda s(V)),

CP a compound Poisson sum of prompt lengths. Several chains (one per ``n``) are built and solved at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.predict.batch import Engine, Moments

Array = NDArray[np.float64]

MESH_POINTS = 4096
"""Points of the mesh on which laws of prompt sums are held: a power of two, as they are made by FFT."""

POISSON_NODES = 28
"""Means of the Poisson count between which the laws are interpolated; spaced as a square, so that the step is about
proportional to the standard deviation of the count."""

UNIFORM_NODES, OUTER_NODES = 28, (74, 150)
"""Grid points of a chain within an iteration's room, and beyond: the more, the further it goes."""

MOST_LOAD = 0.985
"""Largest share of the capacity of full iterations that a chain is given: beyond, it has no stationary law."""


class PromptSums:
    r"""Stop-loss :math:`E(A-x)^+` of a compound Poisson sum ``A`` of prompt lengths, on a uniform mesh.

    The law of one prompt is put on the mesh keeping its mean; the sum's law is ``ifft exp(mu (fft - 1))``. Nothing here
    depends on the arrival rate: one table serves all rates up to the mean count that fills a budget.

    Parameters
    ----------
    moments
        The requests'.
    budget
        Tokens of an iteration: sums of up to about ``B/E[L]`` prompts are covered.
    """

    def __init__(self, moments: Moments, budget: float) -> None:
        self.moments = moments
        self.most = max(budget / moments.mean_prefill, 1e-6)
        reach = budget + 8.0 * np.sqrt(self.most * moments.mean_prefill2) + 2.5 * moments.max_prefill
        self.step = float(reach / (MESH_POINTS - 2))
        place = moments.prefill / self.step
        left = np.minimum(place.astype(np.int64), MESH_POINTS - 2)
        right = place - left
        mass = np.bincount(left, moments.probability * (1.0 - right), MESH_POINTS)
        mass += np.bincount(left + 1, moments.probability * right, MESH_POINTS)
        self.transform = np.fft.rfft(mass)
        self.counts = self.most * np.linspace(0.0, 1.0, POISSON_NODES) ** 2
        self._table: Array | None = None

    def stop_loss(self, counts: Array, clump: float = 1.0) -> Array:
        """Stop-loss on the mesh [tokens], shape (counts, mesh), for means ``counts``.

        The counts are Poisson, or of Poisson many clumps whose sizes are geometric with mean ``clump``.
        """
        together = self.transform / (clump - (clump - 1.0) * self.transform)
        mass = np.fft.irfft(np.exp(counts[:, None] / clump * (together - 1.0)), MESH_POINTS, axis=1)
        # the tail summed from the right, twice
        above = np.cumsum(mass[:, ::-1], axis=1)[:, ::-1]
        loss = np.zeros_like(above)
        loss[:, :-1] = self.step * np.cumsum(above[:, :0:-1], axis=1)[:, ::-1]
        return np.maximum(loss, 0.0)

    @property
    def table(self) -> Array:
        """Stop-loss at the nodes ``counts``, made at first use."""
        if self._table is None:
            self._table = self.stop_loss(self.counts)
        return self._table

    def between(self, counts: Array) -> tuple[NDArray[np.int64], Array]:
        """Left node and share of the right one for each Poisson mean."""
        place = np.sqrt(np.clip(counts / self.most, 0.0, 1.0)) * (POISSON_NODES - 1)
        left = np.minimum(place.astype(np.int64), POISSON_NODES - 2)
        low, high = self.counts[left], self.counts[left + 1]
        return left, np.clip((counts - low) / (high - low), 0.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Backlog:
    """Stationary backlog chains, one per row; J grid points each.

    Attributes
    ----------
    grid, law, duration, prefill
        Backlog ``V`` [tokens], its stationary probability at an iteration's start, the iteration's duration [s] and its
        prefill ``C`` [tokens], shape (chains, J).
    step
        Transition probabilities, shape (chains, J, J).
    room, full
        Largest prefill of an iteration ``B_n`` [tokens] and the duration of a full iteration [s], shape (chains,).
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
    outer = int(np.clip(9.0 * np.sqrt(np.max(top / room)), *OUTER_NODES))
    j = np.arange(1, outer + 1)
    first = room / (UNIFORM_NODES - 1)
    bend = np.maximum((top - room) / outer - first, 0.0) / (outer - 1)
    outside = room[:, None] + first[:, None] * j + bend[:, None] * (j * (j - 1))
    return np.concatenate((inside, outside), axis=1)


def backlog_top(moments: Moments, room: Array, load: Array) -> Array:
    """Where the grid ends [tokens]: ten times the mean of the M/G/1 backlog beyond the longest prompts."""
    mean = load / (1.0 - load) * moments.mean_prefill2 / (2.0 * moments.mean_prefill)
    return room + 1.5 * moments.max_prefill + 10.0 * (mean + 0.5 * room)


def transitions(sums: PromptSums, grid: Array, left_over: Array, counts: Array, clump: float | None = None) -> Array:
    r"""Transition matrices, shape (chains, J, J), keeping mean and second moment of the next backlog.

    Mass goes to the grid by differences of the stop-loss function:
    :math:`p_j=(SL_{j-1}-SL_j)/(g_j-g_{j-1})-(SL_j-SL_{j+1})/(g_{j+1}-g_j)`.

    Parameters
    ----------
    sums
        Sums of prompts.
    grid, left_over
        Backlogs, and what the iteration leaves of each, 0 for the first points [tokens], shape (chains, J).
    counts
        Mean number of prompts arriving in an iteration that starts with ``grid`` tokens, shape (chains, J).
    clump
        Mean of the geometric clumps that prompts come in, >= 1, where all counts are one number; ``None`` = they come one by one.
    """
    loss = np.empty((*grid.shape, grid.shape[1]))
    table = sums.table if clump is None else sums.stop_loss(counts[0, :1], clump)
    flat = np.ascontiguousarray(table).ravel()
    for k, (g, kept) in enumerate(zip(grid, left_over, strict=True)):
        left, share = sums.between(counts[k])
        if clump is not None:
            left, share = np.zeros_like(left), np.zeros_like(share)
        # a row's curve lies between those of two nodes, at the backlogs beyond what was left
        x = g[None, :] - kept[:, None]
        place = np.clip(x / sums.step, 0.0, MESH_POINTS - 1.001)
        at = place.astype(np.int64)
        part = place - at
        at += left[:, None] * MESH_POINTS
        low = flat[at] + (flat[at + 1] - flat[at]) * part
        if clump is None:
            at += MESH_POINTS
            high = flat[at] + (flat[at + 1] - flat[at]) * part
            low += (high - low) * share[:, None]
        loss[k] = np.where(x >= 0.0, low, counts[k][:, None] * sums.moments.mean_prefill - x)
    slope = (loss[:, :, :-1] - loss[:, :, 1:]) / np.diff(grid, axis=1)[:, None, :]
    step = np.empty_like(loss)
    step[:, :, 0] = 1.0 - slope[:, :, 0]
    step[:, :, 1:-1] = slope[:, :, :-1] - slope[:, :, 1:]
    step[:, :, -1] = slope[:, :, -1]
    # convex but for rounding
    np.maximum(step, 0.0, out=step)
    step /= step.sum(axis=2, keepdims=True)
    one = sums.moments.mean_prefill
    mean = left_over + counts * one
    square = mean**2 + counts * (sums.moments.mean_prefill2 + 2.0 * ((clump or 1.0) - 1.0) * one**2)
    _as_wide_as(step, grid, mean, np.where(left_over > 0.0, square, np.inf))
    return step


def _as_wide_as(step: Array, grid: Array, mean: Array, square: Array) -> None:
    """Take out of ``step``, in place, what splitting between nodes adds to its second moment: it would act as a diffusion.

    A second difference about the node nearest to the mean keeps the mean; no probability becomes negative. `mean` and `square`:
    where a step leads on average, and the second moment it should have, inf to leave it as it is, shape (chains, J).
    """
    chains, points = grid.shape
    k, i = np.ogrid[:chains, :points]
    halfway = grid[:, :-1] + 0.5 * np.diff(grid)
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
    positive = np.maximum(np.linalg.solve(system, right)[..., 0], 0.0)
    normal: Array = positive / positive.sum(axis=1, keepdims=True)
    return normal


def fixed_count_backlog(
    sums: PromptSums, room: float, knee: float, count: float, clump: float = 1.0
) -> tuple[Array, Array]:
    """Grid [tokens] and law of the backlog when ``count`` prompts arrive per iteration whatever its duration (saturation), in
    clumps; both of shape (J,)."""
    rooms = np.array([room])
    load = np.array([min(count * sums.moments.mean_prefill / room, MOST_LOAD)])
    grid = backlog_grid(rooms, np.array([knee]), backlog_top(sums.moments, rooms, load))
    counts = np.full(grid.shape, float(load[0]) * room / sums.moments.mean_prefill)
    step = transitions(sums, grid, np.maximum(grid - room, 0.0), counts, clump)
    return grid[0], stationary(step)[0]


def solve_backlog(
    sums: PromptSums, engine: Engine, decodes: Array, rate_per_s: float, *,
    slope: float = 0.0, mean_prefill: float = 0.0, most_load: float = MOST_LOAD,
) -> Backlog:  # fmt: skip
    r"""Stationary backlog chains at given numbers of decodes.

    Parameters
    ----------
    sums, engine
        Of the engine.
    decodes
        Slow number of decodes ``n`` of each chain, shape (chains,); one that is exactly 0 with an empty backlog is an idle
        replica, which waits for its next request.
    rate
        Arrival rate of the replica [1/s].
    slope, mean_prefill
        ``beta``, decodes per prefill token, and the mean prefill of an iteration [tokens]: :math:`n(C)=\max(0, n+\beta(C-\bar C))`.
    most_load
        Share of the full iterations' capacity that arrivals may take; rates beyond are cut to it.
    """
    one = sums.moments.mean_prefill
    room = np.maximum((engine.budget - decodes + slope * mean_prefill) / (1.0 + slope), 1.0)
    full = engine(np.maximum(decodes + slope * (room - mean_prefill), 0.0), room)
    load = np.minimum(rate_per_s * full * one / room, most_load)
    grid = backlog_grid(room, engine.knee - decodes, backlog_top(sums.moments, room, load))
    prefill = np.minimum(grid, room[:, None])
    duration = engine(np.maximum(decodes[:, None] + slope * (prefill - mean_prefill), 0.0), prefill)
    counts = (load * room / (full * one))[:, None] * duration
    step = transitions(sums, grid, np.maximum(grid - room[:, None], 0.0), counts)
    for k in np.flatnonzero(decodes == 0.0):
        duration[k, 0] = 1.0 / rate_per_s
        step[k, 0] = _single_prompt(sums.moments, grid[k])
    return Backlog(grid, stationary(step), duration, prefill, step, room, full)


def _single_prompt(moments: Moments, grid: Array) -> Array:
    """Law of one prompt on ``grid``, keeping the mean."""
    right = np.clip(np.searchsorted(grid, moments.prefill, side="right"), 1, grid.size - 1)
    share = np.clip((moments.prefill - grid[right - 1]) / (grid[right] - grid[right - 1]), 0.0, 1.0)
    mass: Array = np.bincount(right, moments.probability * share, grid.size).astype(float)
    mass += np.bincount(right - 1, moments.probability * (1.0 - share), grid.size)
    return mass
