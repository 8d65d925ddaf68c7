"""Quadrature of TTFT, TPOT and E2E over the backlog chains of a mixed-batching replica."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.queueing.mixed.backlog import Backlog
from planner.queueing.mixed.draws import PromptDraws, bounded_quantile, lattice, poisson_quantile, stratified_rows
from planner.queueing.mixed.fluctuations import LifeSpectra
from planner.queueing.mixed.lengths import BatchCost, LengthLaw
from planner.queueing.mixed.occupancy import hermite

Array = NDArray[np.float64]

# Lags of the chain followed one by one; beyond them autocovariances fall geometrically.
LAGS = 64
# Coordinates of the quadrature: 0 sequences present, 1 backlog, 2 moment within the iteration, 3 request, 4-5 prompts
# that came just before, 6-7 prompts that come while it waits, 8 unused, 9 chain, 10-11 prompts during its last prefill,
# 12 place in the law of its mean iteration, 13 whether it finds the front end cold, 14 capacity, 15 place between two arrivals
# or replicas.
DIMENSIONS = 16
# Requests of at most this many decode steps are followed along the chain: the law of so short a mean has no usual shape.
PATH_STEPS = 28


@dataclass(frozen=True, slots=True)
class Engine:
    """What an iteration costs and how much it may hold.

    Attributes
    ----------
    law : LengthLaw
    cost : BatchCost
    a : float
        Prefill attention [s/pair].
    budget : float
        Token budget [tokens].
    """

    law: LengthLaw
    cost: BatchCost
    a: float
    budget: float


class Draws:
    """Coordinates and requests of the quadrature: they depend on the workload only.

    Parameters
    ----------
    law : LengthLaw
    points : int
        Number of points.
    """

    def __init__(self, law: LengthLaw, points: int) -> None:
        u = lattice(points, DIMENSIONS)
        rows = stratified_rows(law, u[3])
        self.u = u
        self.prompt = law.prompt[rows]
        self.prefill = law.tokens[rows]
        self.steps = law.steps[rows]
        self.pairs = law.pairs[rows]
        self.sums = PromptDraws(law)
        self.spectra = LifeSpectra(law, rows[:: max(points // 512, 1)])
        # requests with few steps, shortest last, and a fixed table of uniforms to follow them with
        whole = np.rint(self.steps).astype(np.int64)
        brief = np.flatnonzero((whole >= 2) & (whole <= PATH_STEPS))
        self.brief = brief[np.argsort(-whole[brief], kind="stable")]
        self.brief_steps = whole[self.brief]
        # few of them are followed several times: they alone make the tail of TPOT
        self.repeats = int(np.clip(round(points / max(self.brief.size, 1)), 1, 4)) if self.brief.size else 1
        self.uniforms = np.random.default_rng(20231).random((PATH_STEPS, self.repeats * self.brief.size))
        self.brief_steps = np.repeat(self.brief_steps, self.repeats)


@dataclass(frozen=True, slots=True)
class Memory:
    """What the chains remember of the backlog from one iteration to the next.

    Attributes
    ----------
    mean : ndarray, shape (chains,)
        Mean iteration E[s] [s].
    covariance : ndarray, shape (chains, LAGS + 1)
        Autocovariance of the iteration time [s^2].
    decay : ndarray, shape (chains,)
        Ratio of successive autocovariances beyond the followed lags.
    ahead, second : ndarray, shape (LAGS + 1, chains, J)
        Mean [s] and second moment [s^2] of the sum of :math:`s-E s` over the next ``D`` iterations, by ``D`` and starting
        backlog.
    full : ndarray, shape (LAGS + 1, chains, J)
        Probability that the next ``D`` iterations are all full.
    still : ndarray, shape (chains,)
        Probability that an empty backlog stays empty.
    last : ndarray, shape (chains, J)
        :math:`P^{64}(s-E s)` [s].
    """

    mean: Array
    covariance: Array
    decay: Array
    ahead: Array
    second: Array
    full: Array
    still: Array
    last: Array

    def growth(self, steps: Array) -> Array:
        """Variance [s^2] of the stationary sum over ``steps`` iterations beyond that over LAGS, shape (chains, steps)."""
        beyond = np.maximum(steps - LAGS, 0.0)[None, :]
        rate = self.covariance[:, 0] + 2 * self.covariance[:, 1:].sum(axis=1)
        far = np.maximum(self.covariance[:, -1], 0.0)[:, None]
        r = np.clip(self.decay, 0.0, 0.999)[:, None]
        # the sum over d iterations has variance d cs_0 + 2 sum (d - j) cs_j; lags past LAGS fall geometrically
        tail = r / (1 - r) * (beyond - (1 - r**beyond) / (1 - r))
        total: Array = np.maximum(beyond * rate[:, None] + 2 * far * tail, 0.0)
        return total


def _follow(backlog: Backlog, values: Array) -> tuple[Array, Array]:
    """Deviations P^j (f - E f), j = 0..LAGS, shape (chains, LAGS + 1, J), and the mean of f."""
    mean = np.einsum("kj,kj->k", backlog.law, values)
    f = values - mean[:, None]
    out = np.empty((f.shape[0], LAGS + 1, f.shape[1]))
    out[:, 0] = f
    column = f[:, :, None]
    for j in range(1, LAGS + 1):
        column = backlog.step @ column
        out[:, j] = column[:, :, 0]
    return out, mean


def chain_memory(backlog: Backlog) -> Memory:
    r"""What the iteration time of the next iterations is, given the backlog now.

    With :math:`f=s-E s`, sums over the next D iterations have mean :math:`A_D=f+PA_{D-1}` and second moment
    :math:`Q_D=f^2+2f\,PA_{D-1}+PQ_{D-1}`.
    """
    mean = np.einsum("kj,kj->k", backlog.law, backlog.duration)
    f = backlog.duration - mean[:, None]
    saturated = (backlog.grid >= backlog.room[:, None]).astype(float)
    square = f * f
    # by lag: P^j f, A_j, Q_j, full_j
    state = np.empty((LAGS + 1, *f.shape, 4))
    state[0] = np.stack((f, np.zeros_like(f), np.zeros_like(f), np.ones_like(f)), axis=2)
    for j in range(1, LAGS + 1):
        now = state[j]
        np.matmul(backlog.step, state[j - 1], out=now)
        now[:, :, 2] += square + 2 * f * now[:, :, 1]
        now[:, :, 1] += f
        now[:, :, 3] *= saturated
    path, ahead, second, full = (state[..., i] for i in range(4))
    covariance = np.einsum("dkj,kj->kd", path, backlog.law * f)
    decay = np.clip(covariance[:, -1] / np.where(covariance[:, -2] > 0, covariance[:, -2], np.inf), 0.0, 0.999)
    still = np.clip(backlog.step[:, 0, 0], 0.0, 1.0)
    return Memory(mean, covariance, decay, ahead, second, full, still, path[-1])


def prefill_memory(backlog: Backlog, law: LengthLaw, survival: Array) -> tuple[float, float, float]:
    r"""Response of the decodes to prefill and variance of the prefill, of a single chain.

    .. math:: \beta = \frac{\sum_{j\ge1} P(D\ge j)\,cc_j}{E[L]\,cc_0} \in [0, E[D]/E[L]]

    Parameters
    ----------
    backlog : Backlog
        One chain.
    law : LengthLaw
    survival : ndarray, shape (lags,)
        P(D >= j) for j = 1..

    Returns
    -------
    beta, variance, relaxation : float
        [decodes per token], [tokens^2], time scale of the backlog [iterations].
    """
    path, _ = _follow(backlog, backlog.prefill)
    covariance = np.einsum("dj,j->d", path[0], backlog.law[0] * path[0, 0])
    if covariance[0] <= 0:
        return 0.0, 0.0, 1.0
    reach = min(survival.size, LAGS)
    total = float(survival[:reach] @ covariance[1 : reach + 1])
    r = float(np.clip(covariance[-1] / covariance[-2], 0.0, 0.999)) if covariance[-2] > 0 else 0.0
    if survival.size > LAGS and r > 0:
        beyond = np.arange(1, survival.size - LAGS + 1)
        total += float(covariance[-1] * (survival[LAGS:] @ r**beyond))
    slope = total / (law.mean_prefill * covariance[0])
    return float(np.clip(slope, 0.0, law.mean_steps / law.mean_prefill)), float(covariance[0]), 1 / (1 - r)


def time_average(life: Array) -> Array:
    r"""Standard deviation of the mean over a ``life`` [relaxation times] of an exponentially correlated quantity.

    :math:`\sqrt{2(x-1+e^{-x})}/x`.
    """
    x = np.maximum(life, 1e-12)
    square = np.where(x < 1e-3, 1 - x / 3, 2 * (x - 1 + np.exp(-x)) / np.maximum(x * x, 1e-9))
    return np.sqrt(square)


def draw_backlog(
    points: Draws, nodes: Array, chains: Backlog, felt: Array, weights: Array | None = None
) -> tuple[NDArray[np.int64], Array]:
    """Chain of each draw and the backlog its request finds [tokens].

    A draw takes one of the two nodes beside ``felt``, by chance, so that means interpolate linearly.
    """
    if nodes.size > 1:
        left = np.clip(np.searchsorted(nodes, felt, side="right") - 1, 0, nodes.size - 2)
        share = np.clip((felt - nodes[left]) / (nodes[left + 1] - nodes[left]), 0.0, 1.0)
        chain = left + (points.u[9] < share)
    else:
        chain = np.zeros(felt.size, dtype=np.int64)
    backlog = np.empty_like(felt)
    for k in range(nodes.size):
        mine = np.flatnonzero(chain == k)
        if mine.size:
            # arrivals see time averages: an iteration counts by its duration
            weight = chains.law[k] * (chains.duration[k] if weights is None else weights[k])
            backlog[mine] = _draw_on_grid(chains.grid[k], weight, points.u[1, mine])
    return chain, backlog


def first_token(
    engine: Engine,
    points: Draws,
    decodes: Array,
    backlog: Array,
    idle: NDArray[np.bool_],
    rate_before: Array | float,
    rate_after: Array | float,
    slope: float = 0.0,
    mean_prefill: float = 0.0,
    settling: Array | None = None,
    common: float = 0.0,
    early: Array | None = None,
    stages: int = 1,
) -> tuple[Array, Array]:
    r"""TTFT [s] without waiting for a slot, and the backlog at the first decode step [tokens].

    What is ahead, :math:`(V-B_n)^+` and the prompts that came earlier in the running iteration, and the prompt itself
    take :math:`\lceil\cdot/B_n\rceil` iterations after the residual one; prompts that come meanwhile fill the last.

    Parameters
    ----------
    engine : Engine
    points : Draws
    decodes, backlog : ndarray, shape (points,)
    idle : ndarray of bool
        Draws that find no iteration running.
    rate_before, rate_after : ndarray or float
        Arrival rates at the replica before and after the request joined [1/s].
    slope, mean_prefill : float
        As in :func:`planner.queueing.mixed.backlog.solve_backlog`.
    settling : ndarray or None
        Where a router looks at the replicas: rate at which ``rate_after`` falls to that of the departures [1/s].
    common : float
        With it, the part of ``rate_after`` that comes whatever the replicas have [1/s].
    early : ndarray or None
        Arrival rate while the request waits for its last iteration, where that is not what settles [1/s].
    stages : int
        Every so-many-th of a stream of Poisson arrivals comes here: 1 is each.
    """
    cost, budget, u, sums = engine.cost, engine.budget, points.u, points.sums
    room = np.maximum((budget - decodes + slope * mean_prefill) / (1 + slope), 1.0)

    def batch(prefill: Array) -> Array:
        return cost(np.maximum(decodes + slope * (prefill - mean_prefill), 0.0), prefill)

    # prompts with iterations of their own come before the decodes, who are served first in a batch of both
    first = cost.decoding(decodes) if cost.apart else 0.0
    full = batch(room)
    duration = np.where(idle, 0.0, batch(np.minimum(backlog, room)))
    left = (1 - u[2]) * duration
    before = u[2] * duration
    ahead = np.maximum(backlog - room, 0.0)
    if cost.apart:
        there = (backlog > 0) & (backlog <= room)
        more, _ = cost.prompts_since(rate_before, engine.law.mean_prefill, np.maximum(duration - first, 0.0))
        into = u[2] * (duration + np.where(there, more, 0.0))
        joins = there & (into < first)
        alone_s = np.maximum(duration - first, 0.0)
        later_on = np.clip((into - duration) / np.maximum(more, 1e-300), 0.0, 1.0)
        passed, to_come = cost.round_met(rate_before, engine.law.mean_prefill, alone_s, later_on)
        rest_of = np.where(into < duration, duration - into, to_come)
        left = np.where(joins, first - into, np.where(there, rest_of, left))
        ahead = np.where(joins, backlog, ahead)
        # beside it are those who came in the same iteration before it
        since = np.where(joins, into, np.where(into < duration, into - first, passed))
        before = np.where(there, np.maximum(since, 0.0), before)
    total = ahead + sums(rate_before * before, u[4], u[5], stages) + points.prefill
    passes = np.maximum(np.ceil(total / room), 1.0)
    rest = total - (passes - 1) * room
    waiting = left + (passes - 1) * (full - first)

    def joining(since: Array | float, span: Array) -> Array:
        if settling is None:
            return rate_after * span
        # where the replica is kept even with others: as many as leave, once its lead is made up
        kept = common + np.minimum(decodes / (max(engine.law.mean_steps, 1.0) * full), rate_after - common)
        fading = np.exp(-settling * since) * -np.expm1(-settling * span) / settling
        counts: Array = kept * span + (rate_after - kept) * fading
        return counts

    later = sums(joining(0.0, waiting) if early is None else early * waiting, u[6], u[7], stages)
    last = batch(np.minimum(rest + later, room)) - first
    ttft = waiting + last + engine.a * points.pairs - cost.alpha * points.prefill
    begun = poisson_quantile(stages * joining(0.0, waiting), u[6]) % stages if stages > 1 else 0
    start = np.maximum(rest + later - room, 0.0) + sums(joining(waiting, last), u[10], u[11], stages, begun)
    return ttft, start


def per_token(
    engine: Engine,
    points: Draws,
    life: Array,
    start: Array,
    nodes: Array,
    chains: Backlog,
    memory: Memory,
    slope: float = 0.0,
    mean_prefill: float = 0.0,
    at_mean: Array | None = None,
    means_only: bool = False,
    covariance: Array | float = 0.0,
) -> Array:
    """TPOT [s] of requests whose decodes begin at backlog ``start`` [tokens] beside ``life`` decodes on average.

    Shape (repeats, points): every request several times, with different futures where it is followed. Chains of
    ``nodes`` > 0 are used; ``at_mean`` overrides the abscissa at which their means are taken;
    ``means_only`` gives each request its expectation. ``covariance`` [s^2] is what the variance of a mean over a life has beyond
    those of the chain and of ``life``: prompts and the decodes they become come together.
    """
    cost, budget, steps = engine.cost, engine.budget, points.steps
    first = 1 if nodes[0] == 0 and nodes.size > 2 and at_mean is None else 0
    where = life if at_mean is None else at_mean
    mean = hermite(where, nodes[first:], memory.mean[first:])
    left = np.clip(np.searchsorted(nodes, where, side="right") - 1, first, nodes.size - 2)
    share = np.clip((where - nodes[left]) / (nodes[left + 1] - nodes[left]), 0.0, 1.0)
    chain = left + (points.u[9] < share)
    d = np.maximum(np.rint(steps), 1.0)
    whole = np.minimum(d, LAGS).astype(np.int64)
    decay = np.minimum(memory.decay[chain], 0.999)
    beyond = np.maximum(d - LAGS, 0.0)
    geometric = decay / (1 - decay) * (1 - decay**beyond) + (beyond > 0)
    lengths = np.array([0.0, 1, 2, 4, 8, 16, 32, 64]) * LAGS
    growth = memory.growth(lengths)
    deviation, variance, full = np.empty_like(life), np.empty_like(life), np.empty_like(life)
    for k in range(nodes.size):
        mine = np.flatnonzero(chain == k)
        if not mine.size:
            continue
        grid = chains.grid[k]
        right = np.clip(np.searchsorted(grid, start[mine], side="right"), 1, grid.size - 1)
        part = np.clip((start[mine] - grid[right - 1]) / (grid[right] - grid[right - 1]), 0.0, 1.0)
        w, other = whole[mine], 1 - part
        far = memory.last[k]
        near = memory.ahead[w, k, right - 1] * other + memory.ahead[w, k, right] * part
        deviation[mine] = near + (far[right - 1] * other + far[right] * part) * geometric[mine]
        if means_only:
            continue
        square = memory.second[w, k, right - 1] * other + memory.second[w, k, right] * part
        variance[mine] = np.maximum(square - near * near, 0.0) + np.interp(d[mine], lengths, growth[k])
        full[mine] = memory.full[w, k, right - 1] * other + memory.full[w, k, right] * part
    deviation /= d
    if means_only:
        return np.where(steps > 0, np.maximum(mean + deviation, 0.0), 0.0)[None]
    of_chain = variance / (d * d)
    variance = np.maximum(of_chain + covariance, 0.0)
    full = np.clip(full, 0.0, 1.0)
    full = np.where(d > LAGS, full ** (d / LAGS), full)
    still = np.where(start <= 0, memory.still[chain] ** (d - 1), 0.0)
    # the mean over D iterations: all empty, all full, or a bounded law with what is left of mean and variance
    low = cost(np.maximum(life - slope * mean_prefill, 0.0), np.zeros(1))
    room = np.maximum((budget - life + slope * mean_prefill) / (1 + slope), 1.0)
    high = cost(np.maximum(life + slope * (room - mean_prefill), 0.0), room)
    expected = np.clip(mean + deviation, low, high)
    middle = np.maximum(1 - still - full, 1e-6)
    inner = np.clip((expected - still * low - full * high) / middle, low, high)
    second = variance + expected**2 - still * low**2 - full * high**2
    inner_variance = np.maximum(second / middle - inner**2, 0.0)
    at = points.u[12]
    tpot = bounded_quantile(inner, inner_variance, low, high, np.clip((at - still) / middle, 0.0, 1.0))
    tpot = np.where(at < still, low, np.where(at > 1 - full, high, tpot))
    samples = np.tile(np.where(steps > 0, tpot, 0.0), (points.repeats, 1))
    if points.brief.size:
        mine = np.repeat(points.brief, points.repeats)
        followed = _followed_mean(points, chains, chain[mine], start[mine])
        followed += mean[mine] - memory.mean[chain[mine]]
        # where prompts are spread more evenly than by chance; a wider law would have to reach below the least
        narrower = np.minimum(np.sqrt(variance / np.maximum(of_chain, 1e-300)), 1.0)[mine]
        followed = np.maximum(expected[mine] + narrower * (followed - expected[mine]), low[mine])
        samples[:, points.brief] = followed.reshape(-1, points.repeats).T
    return samples


def _followed_mean(points: Draws, chains: Backlog, chain: NDArray[np.int64], start: Array) -> Array:
    """Mean iteration [s] of the brief requests, following each along its chain from backlog ``start``."""
    size = chains.grid.shape[1]
    below = np.cumsum(np.maximum(chains.step, 0.0), axis=2)
    below /= below[:, :, -1:]
    # one increasing table of all rows: row r covers (r, r + 1]
    table = (below.reshape(-1, size) + np.arange(below.shape[0] * size)[:, None]).ravel()
    duration = chains.duration.ravel()
    row = np.empty(chain.size, dtype=np.int64)
    first = points.uniforms[0]
    for k in range(chains.grid.shape[0]):
        mine = np.flatnonzero(chain == k)
        if mine.size:
            grid = chains.grid[k]
            right = np.clip(np.searchsorted(grid, start[mine], side="right"), 1, size - 1)
            part = (start[mine] - grid[right - 1]) / (grid[right] - grid[right - 1])
            row[mine] = k * size + right - 1 + (first[mine] < part)
    total = duration[row]
    steps = points.brief_steps
    for j in range(1, int(steps[0])):
        # shortest last: those still decoding come first
        live = int(np.searchsorted(-steps, -j))
        if not live:
            break
        at = np.searchsorted(table, row[:live] + points.uniforms[j, :live])
        row[:live] = (row[:live] // size) * size + np.minimum(at - row[:live] * size, size - 1)
        total[:live] += duration[row[:live]]
    return total / steps


def _draw_on_grid(grid: Array, weight: Array, u: Array) -> Array:
    """Quantiles of a law on grid points: an atom at the first, spread evenly between the others."""
    weight = np.maximum(weight, 0.0)
    law = weight / weight.sum()
    middle = np.cumsum(law) - law / 2
    middle[0] = law[0]
    drawn: Array = np.interp(u, middle, grid)
    return drawn
