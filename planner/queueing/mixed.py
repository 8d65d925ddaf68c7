"""Mixed batching under a token budget (vLLM V1, Sarathi): one replica, and pools of them, in closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.queueing.mixed_backlog import MOST_LOAD, Backlog, solve_backlog
from planner.queueing.mixed_draws import PromptDraws, bounded_quantile, lattice, stratified_rows
from planner.queueing.mixed_fluctuations import Fluctuations, LifeSpectra
from planner.queueing.mixed_latency import LAGS, Memory, chain_memory, prefill_memory
from planner.queueing.mixed_lengths import BatchCost, LengthLaw, PromptSums
from planner.queueing.mixed_occupancy import Capacity, Occupancy, hermite, occupancy_law
from planner.queueing.mixed_throughput import MaxThroughput, max_throughput

__all__ = ["MixedPrediction", "MixedReplica", "Routing"]

Array = NDArray[np.float64]
Routing = Literal["random", "jsq", "rr"]

# Points of the quadrature, and its coordinates (see _Draws).
POINTS = 4096
DIMENSIONS = 14
# Requests sent round robin or to the shortest queue avoid replicas with a fresh backlog, kappa = exp(-theta V/E[L]):
# theta fitted on simulations of 4 and 16 replicas.
JSQ_AVOIDANCE = 0.075
RR_AVOIDANCE = (0.10, 0.35)
# Half width of the spread of decodes between the replicas of a join-shortest-queue pool.
JSQ_SPREAD = 0.6
# Abscissae of the chains, in standard deviations of the decodes about their mean.
NODE_SCORES = np.array([-2.4, -1.3, -0.45, 0.35, 1.3, 2.6, 4.4])


@dataclass(frozen=True, slots=True)
class MixedPrediction:
    """Latency of a pool of mixed-batching replicas.

    Attributes
    ----------
    quantiles : tuple of float
        Levels of the arrays below, in (0, 1).
    ttft_s, tpot_s, e2e_s : ndarray, shape (quantiles,)
        Time to first token, time per output token after the first (over requests with more than one), arrival to last
        token [s]. ``inf`` where the pool is not stable.
    ttft_mean_s, tpot_mean_s, e2e_mean_s : float
        Means [s].
    running_mean : float
        Mean number of decoding sequences per replica.
    running : ndarray, shape (quantiles,)
        Quantiles over time of the decoding sequences per replica.
    load : float
        Arrival rate over maximum throughput.
    wait_probability : float
        Share of requests that wait for a slot or for memory.
    iteration_mean_s : float
        Mean duration of an iteration [s].
    stable : bool
        Whether ``load`` < 1.
    binding : str
        What limits the maximum throughput.
    """

    quantiles: tuple[float, ...]
    ttft_s: Array
    tpot_s: Array
    e2e_s: Array
    ttft_mean_s: float
    tpot_mean_s: float
    e2e_mean_s: float
    running_mean: float
    running: Array
    load: float
    wait_probability: float
    iteration_mean_s: float
    stable: bool
    binding: str


class _Draws:
    """Coordinates and requests of the quadrature: they depend on the workload only."""

    def __init__(self, law: LengthLaw, points: int) -> None:
        u = lattice(points, DIMENSIONS)
        rows = stratified_rows(law, u[3])
        self.u = u
        self.prompt = law.prompt[rows]
        self.prefill = law.prefill[rows]
        self.steps = law.steps[rows]
        self.pairs = law.pairs(self.prompt)
        self.sums = PromptDraws(law)
        self.spectra = LifeSpectra(law, rows[:: max(points // 512, 1)])


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
        self._a, self._g = float(a), float(g)
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
        self._points: _Draws | None = None
        longest = int(min(self._law.steps.max(), 2000))
        self._survival = self._law.survival(np.arange(1, longest + 1))

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

    def predict(
        self,
        arrival_rate: float,
        replicas: int = 1,
        routing: Routing = "random",
        quantiles: Sequence[float] = (0.5, 0.9, 0.99),
        dispersion: float = 1.0,
    ) -> MixedPrediction:
        """Latency and occupancy of a pool of equal replicas.

        Parameters
        ----------
        arrival_rate : float
            Rate of the whole POOL [requests/s]; one replica gets ``arrival_rate / replicas``.
        replicas : int
            Replicas in the pool.
        routing : {"random", "jsq", "rr"}
            Independent choice, fewest requests present, or in turn.
        quantiles : sequence of float
            Levels in (0, 1).
        dispersion : float
            Index of dispersion of arrival counts at the relaxation time of a replica; 1 is Poisson.

        Returns
        -------
        MixedPrediction

        Raises
        ------
        ValueError
            Naming the argument that cannot be.
        """
        if not (math.isfinite(arrival_rate) and arrival_rate >= 0):
            raise ValueError(f"arrival_rate: {arrival_rate!r} is not a finite number >= 0")
        if not (replicas >= 1 and int(replicas) == replicas):
            raise ValueError(f"replicas: {replicas!r} is not a whole number >= 1")
        if routing not in ("random", "jsq", "rr"):
            raise ValueError(f"routing: {routing!r} is not one of 'random', 'jsq', 'rr'")
        levels = tuple(float(q) for q in quantiles)
        if not levels or not all(0 < q < 1 for q in levels):
            raise ValueError(f"quantiles: {quantiles!r} are not all in (0, 1)")
        if not (math.isfinite(dispersion) and dispersion >= 0):
            raise ValueError(f"dispersion: {dispersion!r} is not a finite number >= 0")
        limit = self.max_throughput()
        rate = arrival_rate / replicas
        load = rate / limit.per_s if limit.per_s > 0 else math.inf
        if load >= 1:
            never = np.full(len(levels), math.inf)
            return MixedPrediction(
                levels, never, never, never, math.inf, math.inf, math.inf, limit.decodes,
                np.full(len(levels), limit.decodes), load, 1.0, limit.iteration_s, False, limit.binding,
            )  # fmt: skip
        if replicas == 1:
            routing = "random"
        return self._solve(max(rate, 1e-9 * limit.per_s), load, int(replicas), routing, levels, dispersion)

    # ---------------------------------------------------------------------------------------------------- internals

    def _draws_once(self) -> _Draws:
        if self._points is None:
            self._points = _Draws(self._law, POINTS)
        return self._points

    def _capacity(self, in_prefill: float) -> Capacity:
        """Sequences that can be decoded at once, ``in_prefill`` slots being held by prompts."""
        law = self._law
        slots = max(self.max_num_seqs - min(in_prefill, self.max_num_seqs / 2), 1.0)
        if not math.isfinite(self.kv_tokens) or law.context <= 0:
            return Capacity(slots, math.inf, 0.0)
        mean = max((self.kv_tokens - law.mean_prompt2 / (2 * law.mean_prompt)) / law.context, 1.0)
        # the context held beside a prompt of the head's length: its own spread is in the occupancy
        scatter = law.mean_prompt2 - law.mean_prompt**2
        spread = math.sqrt(scatter / law.context**2 + 0.25)
        if mean - 6 * spread > 1.5 * slots:
            return Capacity(slots, math.inf, 0.0)
        return Capacity(slots, mean, spread)

    def _fluid(self, rate: float) -> float:
        """Iteration time [s] at the mean flow, a starting point."""
        law, cost = self._law, self._cost
        t = cost.t0 + cost.w + 1e-12
        most = self._limit.iteration_s if self._limit is not None else math.inf
        for _ in range(40):
            n, prefill = rate * law.mean_steps * t, rate * law.mean_prefill * t
            new = min(float(cost(n, prefill)), most)
            if abs(new - t) < 1e-4 * t:
                return new
            t = new
        return t

    def _solve(
        self, rate: float, load: float, replicas: int, routing: str, levels: tuple[float, ...], dispersion: float
    ) -> MixedPrediction:
        law, cost, sums = self._law, self._cost, self._sums
        budget = self.token_budget
        limit = self.max_throughput()
        steps = law.mean_steps
        avoidance = 0.0
        if routing == "jsq":
            avoidance = JSQ_AVOIDANCE * math.log2(replicas)
        elif routing == "rr":
            avoidance = RR_AVOIDANCE[0] + RR_AVOIDANCE[1] * (1 - load)

        # 1. how the decodes answer to bursts of prefill (slope), at the mean number of decodes
        t = self._fluid(rate)
        slope, scale, variance, settle = 0.0, 1.0, 0.0, 1.0
        most = min(limit.decodes * 1.02, 0.98 * budget)
        survival = self._survival
        rates = np.array([rate])
        n0 = min(rate * steps * t, most)
        for _ in range(3 if avoidance else 2):
            base = solve_backlog(
                sums, cost, budget, np.array([n0]), rates, slope=slope, mean_prefill=rate * law.mean_prefill * t,
                avoidance=avoidance, scale=scale,
            )  # fmt: skip
            t = float(base.mean(base.duration)[0])
            n0 = min(rate * steps * t, most)
            if avoidance:
                kappa = np.exp(-avoidance * base.grid / law.mean_prefill)
                scale = scale * (t / (scale * float(base.mean(base.duration * kappa)[0])))
            if steps > 0:
                slope, variance, settle = prefill_memory(base, law, survival)
        mean_prefill = rate * law.mean_prefill * t

        # 2. chains over the range of decodes
        busy_slope = (
            cost.c
            + cost.per_decode
            + cost.b * float(base.law[0] @ (base.prefill[0] + n0 > (cost.w / cost.b if cost.b > 0 else math.inf)))
        )
        feedback = min(n0 * busy_slope / t, 0.9)
        # a stay at many decodes ends before a backlog close to instability builds up: its time scale, which grows as
        # 1/(1 - load)^2, may not exceed that of the decodes
        base_load = min(rate * float(base.full[0]) * law.mean_prefill / float(base.room[0]), MOST_LOAD)
        stay = max(steps / (1 - feedback), 1.0)
        most_load = min(1 - (1 - base_load) * math.sqrt(min(settle / stay, 1.0)), MOST_LOAD)
        deviation = math.sqrt(max(n0, 0.05) / (1 - feedback) * max(dispersion, 1.0))
        if routing == "jsq":
            deviation = deviation / math.sqrt(replicas) + JSQ_SPREAD / 2
        capacity = self._capacity(rate * t * (1 + law.mean_prefill / (2 * budget)))
        roof = min(capacity.most, 0.98 * budget)
        if steps > 0:
            ends = np.clip(n0 + deviation * NODE_SCORES[[0, -1]], 0.2, max(roof, 0.4))
            ends[0] = min(ends[0], 0.5 * ends[1])
            inner = (NODE_SCORES - NODE_SCORES[0]) / (NODE_SCORES[-1] - NODE_SCORES[0])
            nodes = ends[0] + (ends[1] - ends[0]) * inner
            nodes = np.concatenate(([0.0], nodes))
        else:
            nodes = np.array([0.0])
        chains = solve_backlog(
            sums, cost, budget, nodes, np.full(nodes.size, rate), slope=slope, mean_prefill=mean_prefill,
            avoidance=avoidance, scale=scale, idle_rate=rate, most_load=most_load,
        )  # fmt: skip
        if avoidance:
            # the arrivals of every chain are normalized at its own backlog
            kappa = np.exp(-avoidance * chains.grid / law.mean_prefill)
            scales = chains.mean(chains.duration) / chains.mean(chains.duration * kappa)
            chains = solve_backlog(
                sums, cost, budget, nodes, np.full(nodes.size, rate), slope=slope, mean_prefill=mean_prefill,
                avoidance=avoidance, scale=scales, idle_rate=rate, most_load=most_load,
            )  # fmt: skip
        memory = chain_memory(chains)
        swing = self._fluctuations(rate, n0, nodes, chains, memory, 1 / replicas if routing == "rr" else dispersion)
        occupancy = self._occupancy(
            rate, load, replicas, routing, n0, nodes, memory, capacity, swing, slope**2 * variance, dispersion
        )
        return self._integrate(
            rate, load, replicas, routing, levels, nodes, chains, memory, occupancy, capacity, swing, slope,
            mean_prefill, avoidance,
        )  # fmt: skip

    def _fluctuations(
        self, rate: float, centre: float, nodes: Array, chains: Backlog, memory: Memory, dispersion: float
    ) -> Fluctuations:
        """Slow fluctuations about ``centre`` decodes, linearized there."""
        law = self._law
        if law.mean_steps <= 0:
            return Fluctuations(0.0, 0.0, 0.0, 1.0, 0.0)
        at = max(int(np.argmin(np.abs(nodes - centre))), 1)
        time = float(hermite(np.array([centre]), nodes[1:], memory.mean[1:])[0])
        flow = float(chains.mean(chains.prefill)[at])
        # mean cost of a prefill token beside the decodes
        alone = float(self._cost(nodes[at], np.array(0.0)))
        per_prefill = max((float(memory.mean[at]) - alone) / flow, 0.0)
        knee = self._cost.w / self._cost.b if self._cost.b > 0 else math.inf
        beyond = float(chains.law[at] @ (chains.prefill[at] + nodes[at] > knee))
        per_decode = self._cost.c + self._cost.per_decode + self._cost.b * beyond
        delay = float(chains.mean(np.maximum(chains.grid - chains.room[:, None], 0.0))[at]) / flow
        return self._draws_once().spectra.at(
            count=rate * time, time=time, per_decode=max(per_decode - self._g * law.context, 0.0),
            g=self._g, per_prefill=max(per_prefill - self._cost.alpha, 0.0), a=self._a,
            delay=delay, context=law.context, dispersion=dispersion,
        )  # fmt: skip

    def _occupancy(
        self, rate: float, load: float, replicas: int, routing: str, centre: float, nodes: Array, memory: Memory,
        capacity: Capacity, swing: Fluctuations, fast: float, dispersion: float,
    ) -> Occupancy:  # fmt: skip
        """Law of the sequences present: product form, with the spread of the slow fluctuations."""
        steps = self._law.mean_steps
        if steps <= 0:
            return Occupancy(np.zeros(1), np.ones(1))
        pooled = replicas if routing == "jsq" else 1
        free = Capacity(math.inf, math.inf, 0.0)
        plain = occupancy_law(rate * steps, nodes[1:], memory.mean[1:], free, load, pooled)
        variance = plain.variance * pooled
        slow = swing.context if math.isfinite(capacity.kv_mean) else swing.decodes
        spread = max((slow - fast) / max(variance, 1e-9), 0.03)
        # requests in line are delayed by the scatter of what those ahead hold: steps of a slot, or memory for as long
        law = self._law
        scv = law.mean_kv2 / law.mean_kv**2 - 1 if math.isfinite(capacity.kv_mean) else law.mean_steps2 / steps**2 - 1
        queue_spread = max((dispersion + scv) / 2, 0.05)
        return occupancy_law(rate * steps, nodes[1:], memory.mean[1:], capacity, load, pooled, spread, queue_spread)

    def _integrate(
        self, rate: float, load: float, replicas: int, routing: str, levels: tuple[float, ...], nodes: Array,
        chains: Backlog, memory: Memory, occupancy: Occupancy, capacity: Capacity, swing: Fluctuations, slope: float,
        mean_prefill: float, avoidance: float,
    ) -> MixedPrediction:  # fmt: skip
        budget = self.token_budget
        points = self._draws_once()
        u, steps = points.u, self._law.mean_steps
        limit = self.max_throughput()

        # number present and served
        present = occupancy.quantile(u[0])
        if routing == "jsq":
            present = np.maximum(present + JSQ_SPREAD * (2 * u[10] - 1), 0.0)
        if math.isfinite(capacity.kv_mean):
            from scipy.special import ndtri

            room_for = capacity.draw(ndtri(u[11]))
        else:
            room_for = np.full(present.shape, capacity.slots)
        served = np.minimum(present, room_for)
        waits = present >= room_for
        slot_wait = np.where(waits, (present - room_for + u[12]) / limit.per_s, 0.0)
        centre = float(served.mean())
        at = int(np.argmin(np.abs(nodes - centre)))
        if nodes.size > 1:
            at = max(at, 1)
        shift = 0.0
        relax = max(swing.relaxation, 1.0)
        seen = swing.context if math.isfinite(capacity.kv_mean) else swing.decodes
        stretch = math.sqrt(swing.effective / seen) if seen > 0 else 1.0
        decay = float(memory.decay[at])
        backlog_relax = 1 / max(1 - decay, 1e-3)
        follow = relax / (relax + backlog_relax)
        # the request's own decode, in decodes of mean context
        own = np.full(served.shape, 0.5 if routing == "jsq" else 1.0)
        if swing.per_decode > 0:
            own *= 1 + self._g * (points.prompt + (points.steps + 1) / 2 - self._law.context) / swing.per_decode
        for _ in range(2 if steps > 0 else 1):
            if steps > 0:
                n = np.where(present == 0, 0.0, centre + shift + (served - centre) * stretch)
                n = np.clip(n, 0.0, 0.98 * budget)
            else:
                n = np.zeros_like(served)
            ttft, tpot = self._times(n, centre + shift, follow, relax, own, rate, nodes, chains, memory, slope, mean_prefill,
                                 avoidance)  # fmt: skip
            mean_n = rate * float(np.mean(points.steps * tpot)) if steps > 0 else 0.0
            now = float(n.mean())
            shift += 0.8 * (mean_n - now)
        ttft = ttft + slot_wait + self.api_overhead_s
        e2e = ttft + points.steps * tpot
        several = points.steps > 0
        per_token = tpot[several] if several.any() else np.zeros(1)
        q = np.array(levels)
        return MixedPrediction(
            quantiles=levels,
            ttft_s=np.quantile(ttft, q),
            tpot_s=np.quantile(per_token, q),
            e2e_s=np.quantile(e2e, q),
            ttft_mean_s=float(ttft.mean()),
            tpot_mean_s=float(per_token.mean()),
            e2e_mean_s=float(e2e.mean()),
            running_mean=mean_n,
            running=np.quantile(n, q),
            load=load,
            wait_probability=float(waits.mean()),
            iteration_mean_s=float(memory.mean[at]),
            stable=True,
            binding=limit.binding,
        )

    def _times(
        self, n: Array, centre: float, follow: float, relax: float, own: Array, rate: float, nodes: Array,
        chains: Backlog, memory: Memory, slope: float, mean_prefill: float, avoidance: float,
    ) -> tuple[Array, Array]:  # fmt: skip
        law, cost, budget = self._law, self._cost, self.token_budget
        points = self._draws_once()
        u = points.u
        # chain of each draw: one of the two nodes beside n, by chance, so that means interpolate linearly
        felt = np.where(n == 0, 0.0, np.maximum(centre + (n - centre) * follow, 0.0))
        if nodes.size > 1:
            left = np.clip(np.searchsorted(nodes, felt, side="right") - 1, 0, nodes.size - 2)
            share = np.clip((felt - nodes[left]) / (nodes[left + 1] - nodes[left]), 0.0, 1.0)
            chain = left + (u[9] < share)
        else:
            chain = np.zeros(n.size, dtype=np.int64)
        backlog = np.empty_like(n)
        for k in range(nodes.size):
            mine = np.flatnonzero(chain == k)
            if mine.size:
                weight = chains.law[k] * chains.duration[k]
                if avoidance:
                    weight = weight * np.exp(-avoidance * chains.grid[k] / law.mean_prefill)
                backlog[mine] = _draw_on_grid(chains.grid[k], weight, u[1, mine])
        room = np.maximum((budget - n + slope * mean_prefill) / (1 + slope), 1.0)
        full = cost(np.maximum(n + slope * (room - mean_prefill), 0.0), room)
        now = np.minimum(backlog, room)
        duration = cost(np.maximum(n + slope * (now - mean_prefill), 0.0), now)
        idle = (nodes[chain] == 0) & (backlog <= 0)
        duration = np.where(idle, 0.0, duration)
        ahead = np.maximum(backlog - room, 0.0) + points.sums(rate * u[2] * duration, u[4], u[5])
        total = ahead + points.prefill
        passes = np.maximum(np.ceil(total / room), 1.0)
        rest = total - (passes - 1) * room
        waiting = (1 - u[2]) * duration + (passes - 1) * full
        first = np.minimum(waiting, full)
        second = np.minimum(waiting - first, full)
        later = points.sums(rate * first, u[6], u[7]) + points.sums(rate * second, u[8], u[13])
        later += rate * (waiting - first - second) * law.mean_prefill
        last_prefill = np.minimum(rest + later, room)
        last = cost(np.maximum(n + slope * (last_prefill - mean_prefill), 0.0), last_prefill)
        ttft = waiting + last + self._a * points.pairs - cost.alpha * points.prefill
        if law.mean_steps <= 0:
            return ttft, np.zeros_like(ttft)
        # decode steps
        steps = points.steps
        x = np.maximum(steps, 1e-9) / relax
        averaged = np.sqrt(np.where(x < 1e-4, 1 - x / 3, 2 * (x - 1 + np.exp(-x)) / np.maximum(x * x, 1e-12)))
        life = np.maximum(centre + (n - centre) * averaged, 0.0) + own
        mean = hermite(life, nodes[1:], memory.mean[1:])
        left = np.clip(np.searchsorted(nodes, life, side="right") - 1, 1, nodes.size - 2)
        share = np.clip((life - nodes[left]) / (nodes[left + 1] - nodes[left]), 0.0, 1.0)
        chain = left + (u[9] < share)
        start = np.maximum(rest + later - room, 0.0) + points.sums(rate * last, u[10], u[11])
        d = np.maximum(np.rint(steps), 1.0)
        whole = np.minimum(d, LAGS).astype(np.int64)
        decay = np.minimum(memory.decay[chain], 0.999)
        beyond = np.maximum(d - LAGS, 0.0)
        geometric = decay / (1 - decay) * (1 - decay**beyond) + (beyond > 0)
        lengths = np.array([0.0, 1, 2, 4, 8, 16, 32, 64]) * LAGS
        growth = memory.growth(lengths)
        deviation, variance, full = np.empty_like(n), np.empty_like(n), np.empty_like(n)
        for k in range(nodes.size):
            mine = np.flatnonzero(chain == k)
            if not mine.size:
                continue
            grid = chains.grid[k]
            right = np.clip(np.searchsorted(grid, start[mine], side="right"), 1, grid.size - 1)
            part = np.clip((start[mine] - grid[right - 1]) / (grid[right] - grid[right - 1]), 0.0, 1.0)
            w, rest_part = whole[mine], 1 - part
            ahead, scatter, busy, far = memory.ahead[k], memory.scatter[k], memory.full[k], memory.last[k]
            deviation[mine] = ahead[w, right - 1] * rest_part + ahead[w, right] * part
            deviation[mine] += (far[right - 1] * rest_part + far[right] * part) * geometric[mine]
            variance[mine] = scatter[w, right - 1] * rest_part + scatter[w, right] * part
            variance[mine] += np.interp(d[mine], lengths, growth[k])
            full[mine] = busy[w, right - 1] * rest_part + busy[w, right] * part
        deviation /= d
        variance /= d * d
        full = np.where(d > LAGS, full ** (d / LAGS), full)
        still = np.where(start <= 0, memory.still[chain] ** (d - 1), 0.0)
        # the mean over D iterations: all empty, all full, or a bounded law with what is left of mean and variance
        low = cost(np.maximum(life - slope * mean_prefill, 0.0), np.zeros(1))
        life_room = np.maximum((budget - life + slope * mean_prefill) / (1 + slope), 1.0)
        high = cost(np.maximum(life + slope * (life_room - mean_prefill), 0.0), life_room)
        expected = np.clip(mean + deviation, low, high)
        middle = np.maximum(1 - still - full, 1e-6)
        inner = np.clip((expected - still * low - full * high) / middle, low, high)
        second = variance + expected**2 - still * low**2 - full * high**2
        inner_variance = np.maximum(second / middle - inner**2, 0.0)
        at = u[12]
        tpot = bounded_quantile(inner, inner_variance, low, high, np.clip((at - still) / middle, 0.0, 1.0))
        tpot = np.where(at < still, low, np.where(at > 1 - full, high, tpot))
        return ttft, np.where(steps > 0, tpot, 0.0)


def _draw_on_grid(grid: Array, weight: Array, u: Array) -> Array:
    """Quantiles of a law on grid points: an atom at the first, spread evenly between the others."""
    weight = np.maximum(weight, 0.0)
    law = weight / weight.sum()
    middle = np.cumsum(law) - law / 2
    middle[0] = law[0]
    drawn: Array = np.interp(u, middle, grid)
    return drawn
