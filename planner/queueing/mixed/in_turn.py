r"""The backlog of a replica that gets every ``m``-th of its pool's requests: round robin.

Between two of its arrivals ``m`` of the pool's come: Erlang's law, more even than the exponential. So the chain of
:mod:`planner.queueing.mixed.backlog` also keeps how many of them have come since the replica's last, its **stage**
``i < m``. If N of the pool's come while an iteration lasts, :math:`\lfloor (i+N)/m \rfloor` are the replica's and the next
stage is :math:`j = (i+N) \bmod m`. As :math:`N = cm + j - i`, the law of the tokens that arrive depends on the two stages by their
difference only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.queueing.mixed.backlog import (
    MOST_LOAD,
    Backlog,
    as_wide_as,
    backlog_grid,
    backlog_top,
    single_prompt,
    stationary,
)
from planner.queueing.mixed.lengths import BatchCost, PromptSums, stop_loss

Array = NDArray[np.float64]

# Stages that are followed: the waits of more are extrapolated, being linear in the variance of the time between arrivals.
MOST_STAGES = 4


class TurnSums:
    """Sums of the prompts that arrive at one of ``stages`` replicas, by how far the stage moves on.

    Parameters
    ----------
    sums : PromptSums
    stages : int
        m >= 2.

    Attributes
    ----------
    share, count, square : ndarray, shape (2 m - 1, nodes)
        Probability that the stage moves by ``j - i = 1 - m .. m - 1``, the arrivals expected with it and their square, at the
        means ``sums.counts`` of arrivals.
    loss : ndarray, shape (2 m - 1, nodes, mesh)
        Stop-loss of their tokens, with it [tokens].
    """

    def __init__(self, sums: PromptSums, stages: int) -> None:
        self.sums, self.stages = sums, stages
        arrivals = np.arange(np.ceil(sums.most + 9.0 * np.sqrt(sums.most) + 9.0))
        powers = sums.transform ** arrivals[:, None]
        moves = np.arange(1 - stages, stages)
        pooled = (arrivals * stages + moves[:, None]).astype(np.int64)
        factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1.0, pooled.max() + 1.0)))))
        mean = np.maximum(stages * sums.counts, 1e-9)[None, :, None]
        at = pooled[:, None, :]
        chance = np.where(at >= 0, np.exp(at * np.log(mean) - mean - factorial[np.maximum(at, 0)]), 0.0)
        self.share, self.count, self.square = chance.sum(axis=2), chance @ arrivals, chance @ arrivals**2
        self.loss = stop_loss(np.fft.irfft(chance @ powers, sums.mesh), sums.step)

    def moves(self, grid: Array, left_over: Array, counts: Array) -> tuple[Array, Array]:
        """Transition matrices of one chain by how far the stage moves, and the arrivals expected with it.

        Shapes (2 m - 1, J, J) and (2 m - 1, J), of ``grid``, ``left_over`` and ``counts`` of shape (J,) as
        :func:`planner.queueing.mixed.backlog.transitions` takes them.
        """
        left, part = self.sums.between(counts)

        def between(table: Array) -> Array:
            low, high = table[:, left], table[:, left + 1]
            found: Array = low + (high - low) * part
            return found

        share, count, square = between(self.share), between(self.count), between(self.square)
        x = grid - left_over[:, None]
        place = np.clip(x / self.sums.step, 0.0, self.sums.mesh - 1.001)
        at = place.astype(np.int64)
        weight = place - at

        def at_mesh(node: NDArray[np.int64]) -> Array:
            low, high = self.loss[:, node[:, None], at], self.loss[:, node[:, None], at + 1]
            found: Array = low + (high - low) * weight
            return found

        loss = at_mesh(left)
        loss += (at_mesh(left + 1) - loss) * part[:, None]
        below = (count * self.sums.law.mean_prefill)[:, :, None] - x * share[:, :, None]
        loss = np.where(x >= 0.0, loss, below)
        slope = (loss[:, :, :-1] - loss[:, :, 1:]) / np.diff(grid)
        step = np.empty_like(loss)
        step[:, :, 0] = share - slope[:, :, 0]
        step[:, :, 1:-1] = slope[:, :, :-1] - slope[:, :, 1:]
        step[:, :, -1] = slope[:, :, -1]
        step = np.maximum(step, 0.0)
        law = self.sums.law
        own = law.mean_prefill2 - law.mean_prefill**2
        wide = share * left_over**2 + (2 * left_over * law.mean_prefill + own) * count + square * law.mean_prefill**2
        lands = left_over + count * law.mean_prefill / np.maximum(share, 1e-300)
        as_wide_as(step, np.broadcast_to(grid, lands.shape), lands, np.where(left_over > 0.0, wide, np.inf))
        return step, count


def solve_in_turn(
    turns: TurnSums,
    cost: BatchCost,
    budget: float,
    decodes: Array,
    rate: float,
    *,
    slope: float = 0.0,
    mean_prefill: float = 0.0,
    most_load: float = MOST_LOAD,
) -> tuple[Backlog, Array]:
    """Backlog chains of a replica that is sent requests in turn, at given numbers of decodes.

    Parameters
    ----------
    turns : TurnSums
    cost, budget, decodes, slope, mean_prefill, most_load
        As in :func:`planner.queueing.mixed.backlog.solve_backlog`.
    rate : float
        Arrival rate of one replica [1/s].

    Returns
    -------
    Backlog, ndarray
        Laws of the backlog over all stages (without transitions), and the arrivals expected in an iteration, shape (chains, J).
    """
    sums, m = turns.sums, turns.stages
    law = sums.law
    room = np.maximum((budget - decodes + slope * mean_prefill) / (1 + slope), 1.0)
    full = cost(np.maximum(decodes + slope * (room - mean_prefill), 0.0), room)
    load = np.minimum(rate * full * law.mean_prefill / room, most_load)
    rates = load * room / (full * law.mean_prefill)
    grid = backlog_grid(room, cost.knee - decodes, backlog_top(sums, room, load))
    prefill = np.minimum(grid, room[:, None])
    duration = cost(np.maximum(decodes[:, None] + slope * (prefill - mean_prefill), 0.0), prefill)
    size = grid.shape[1]
    step = np.empty((decodes.size, m, size, m, size))
    arrivals = np.empty((decodes.size, m, size))
    lasts = np.repeat(duration[:, None, :], m, axis=1)
    # blocks by difference of the stages, j - i
    apart = np.arange(m)[None, :] - np.arange(m)[:, None] + m - 1
    for k in range(decodes.size):
        blocks, count = turns.moves(grid[k], grid[k] - prefill[k], rates[k] * duration[k])
        step[k] = np.moveaxis(blocks[apart], 1, 2)
        arrivals[k] = count[apart].sum(axis=1)
        if decodes[k] == 0:
            # nothing at all until the stages left have passed
            step[k, :, 0] = 0.0
            step[k, :, 0, 0] = single_prompt(law.prefill, law.probability, grid[k])
            lasts[k, :, 0], arrivals[k, :, 0] = (m - np.arange(m)) / (m * rate), 1.0
    flat = step.reshape(decodes.size, m * size, m * size)
    flat /= flat.sum(axis=2, keepdims=True)
    joint = stationary(flat).reshape(decodes.size, m, size)
    total = np.maximum(joint.sum(axis=1), 1e-300)
    found = Backlog(grid, total, (joint * lasts).sum(axis=1) / total, prefill, np.empty((0, 0, 0)), room, full)
    return found, (joint * arrivals).sum(axis=1) / total
