"""Mixed batching under a token budget (vLLM V1, Sarathi): one replica, and pools of them, in closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.queueing.mixed.accuracy import metric_of, region_of
from planner.queueing.mixed.backlog import MOST_LOAD, Backlog, solve_backlog, solve_shared
from planner.queueing.mixed.fluctuations import WINDOWS, Fluctuations
from planner.queueing.mixed.in_turn import MOST_STAGES, TurnSums, solve_in_turn
from planner.queueing.mixed.latency import (
    Draws,
    Engine,
    Memory,
    chain_memory,
    draw_backlog,
    first_token,
    per_token,
    prefill_memory,
    time_average,
)
from planner.queueing.mixed.lengths import BatchCost, LengthLaw, PromptSums
from planner.queueing.mixed.occupancy import Capacity, Occupancy, hermite, occupancy_law
from planner.queueing.mixed.throughput import MaxThroughput, max_throughput
from planner.queueing.mixed.two_choices import common_backlog, steered_backlog
from planner.queueing.normal import normal_cdf
from planner.queueing.order import quantiles_of
from planner.queueing.slots.wait import HORIZON

Array = NDArray[np.float64]
Routing = Literal["random", "p2c", "jsq", "rr"]

# Points of the quadrature.
POINTS = 4096
# Share of the arrivals under join-shortest-queue that find the backlog as it is after a departure rather than at a
# random time: fitted on simulations of 4 and 16 replicas.
JSQ_AFTER_DEPARTURE = 0.33
# Replicas of a pool that are followed together: the answer has converged there, and each replica of a larger pool is treated
# as one of this many.
MOST_POOLED = 128
# Largest skewness of the room for sequences that is drawn: beyond, the law of gamma's quantiles in use is none.
MOST_SKEW = 4.0
# Requests in flight at a replica below which two choices are taken for one: most replicas are empty, and the waits few.
FEW_PRESENT = 0.25
# A request that comes so long after the one before finds the front end of its server cold [s]. One vLLM server: at 1 request/s
# nearly all did, at 18 to 43 none (kubernetes-sigs/inference-perf, kubecon-na-2025); anything from 0.05 to 0.3 s says the same.
COLD_AFTER_S = 0.1
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
    relaxation_s : float
        Time in which the number of decodes forgets its past [s]: the window at which bursts matter.
    stable : bool
        Whether ``load`` < 1.
    binding : str
        What limits the maximum throughput.
    region : str
        Region of :data:`planner.queueing.mixed.accuracy.REGIONS` whose measured errors apply.
    error_band : Mapping[str, tuple[tuple[float, float], ...]]
        For ``"ttft_s"``, ``"tpot_s"`` and ``"e2e_s"`` and each level: 5th and 95th percentile of predicted/simulated - 1
        in the region. A value ``v`` with band ``(low, high)`` stands for a truth in ``[v/(1+high), v/(1+low)]``.
    margin : Mapping[str, tuple[float, ...]]
        For the same metrics and levels: factor >= 1 to put on the value before it is held against a promise, so that a
        plan is not optimistic: the reciprocal of the first quartile of predicted/simulated in the region.
    reliable : bool
        False where the band is too wide to size with, or the pool is not stable.
    warnings : tuple of str
        What is not modelled, or known to be off, here.
    requests : tuple of ndarray
        TTFT, TPOT (NaN where there is none) and E2E of the same requests [s], each of shape (points,); empty where not stable.
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
    relaxation_s: float
    stable: bool
    binding: str
    region: str
    error_band: Mapping[str, tuple[tuple[float, float], ...]]
    margin: Mapping[str, tuple[float, ...]]
    reliable: bool
    warnings: tuple[str, ...]
    requests: tuple[Array, ...] = ()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Samples of one rate: TTFT (points,), TPOT (repeats, points), decodes (points,) and what goes with them."""

    ttft: Array
    tpot: Array
    running: Array
    running_mean: float
    waits: float
    iteration_s: float
    relaxation_s: float


@dataclass(frozen=True, slots=True)
class _Turn:
    """What arrivals find where replicas are taken in turn: backlogs, arrivals in an iteration of each, stages between arrivals, and
    how much further than those the waits are taken for the other replicas.
    """

    chains: Backlog
    arrivals: Array
    stages: int
    beyond: float


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
    tau : float
        Tile of the matrix multiplications [tokens]; taken at its mean.
    x : float
        Interference of prefill and decode in one batch [s/token].
    e : float
        Longest-sequence term of decode attention [s/token]; ignored, with a warning in every prediction, when > g.
    m, h_m, e_m : float
        Where one attention kernel takes decodes and prompts together: query rows of a decode [rows], per decode
        [s/sequence], longest context [s/token], see :class:`planner.iteration.model.IterationModel`; m = 0 = kernels apart.
    w_experts, expert_share : float
        Streaming all routed experts [s], share of them that one token uses: the floor is that of the experts touched.
    rows : float
        Tokens a decode brings into the batch, more than one where it speculates [tokens].
    apart : float
        1 = prompts have iterations of their own: those there are come before the next one of decodes.
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
    cached_share : float or array_like, shape (rows,)
        Share of a prompt found in the prefix cache, in [0, 1), one for all or one per row: prefill computes the rest with
        the cached part as its past; decodes read all of it.
    shared_prefix : float
        Tokens that begin every longer prompt: memory keeps them once, every decode reads them [tokens].
    api_overhead_s : float
        Constant added to TTFT and E2E [s].
    wake_s : float
        What a first token waits longer for where the replica got no request for :data:`COLD_AFTER_S` before [s].

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
        tau: float = 1,
        x: float = 0.0,
        e: float = 0.0,
        m: float = 0.0,
        h_m: float = 0.0,
        e_m: float = 0.0,
        w_experts: float = 0.0,
        expert_share: float = 0.0,
        rows: float = 1.0,
        apart: float = 0.0,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        weight: ArrayLike | None = None,
        token_budget: float,
        max_num_seqs: float,
        kv_tokens: float = math.inf,
        cached_share: ArrayLike = 0.0,
        shared_prefix: float = 0.0,
        api_overhead_s: float = 0.0,
        wake_s: float = 0.0,
    ) -> None:
        terms = {
            "t0": t0,
            "w": w,
            "b": b,
            "c": c,
            "h": h,
            "g": g,
            "a": a,
            "x": x,
            "e": e,
            "m": m,
            "h_m": h_m,
            "e_m": e_m,
        }
        for name, value in (*terms.items(), ("api_overhead_s", api_overhead_s), ("wake_s", wake_s)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: {value!r} is not a finite number >= 0")
        if not t0 + w + b + c > 0:
            raise ValueError("t0: an iteration must take time; all of t0, w, b, c are 0")
        if not (math.isfinite(rows) and rows > 0.0):
            raise ValueError(f"rows: {rows!r} is not a finite number > 0")
        if not tau >= 1:
            raise ValueError(f"tau: {tau!r} is not >= 1")
        if not (math.isfinite(token_budget) and token_budget >= 1):
            raise ValueError(f"token_budget: {token_budget!r} is not a finite number >= 1")
        if not max_num_seqs >= 1 or not math.isfinite(max_num_seqs):
            raise ValueError(f"max_num_seqs: {max_num_seqs!r} is not a finite number >= 1")
        if not kv_tokens > 0:
            raise ValueError(f"kv_tokens: {kv_tokens!r} is not > 0")
        if not (math.isfinite(shared_prefix) and 0 <= shared_prefix < kv_tokens):
            raise ValueError(f"shared_prefix: {shared_prefix!r} is not in [0, kv_tokens)")
        # a batch is counted in units of what a decode brings into it, so that a decode is one
        b, c, tau, expert_share = b * rows, c * rows, max(tau / rows, 1.0), 1.0 - (1.0 - expert_share) ** rows
        self.token_budget = float(token_budget) / rows
        self.max_num_seqs = float(max_num_seqs)
        self.kv_tokens = float(kv_tokens) - float(shared_prefix)
        self.api_overhead_s, self.wake_s = float(api_overhead_s), float(wake_s)
        self._law = LengthLaw(
            input_tokens,
            output_tokens,
            weight,
            cached_share,
            a * rows / (b + c) if b + c > 0 else 0.0,
            rows,
            float(shared_prefix),
        )
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
            most=float(tau * math.ceil(self.token_budget / tau)),
            joined_per_decode=float(a * m * self._law.context + h_m) if m > 0.0 else 0.0,
            read=float(g * self._law.context),
            w_experts=float(w_experts),
            expert_share=float(expert_share),
            apart=bool(apart),
            # the contexts of a batch as its tokens see them stand for the longest one
            walk=float(e_m * self._law.context2 / self._law.context) if m > 0.0 and self._law.context > 0.0 else 0.0,
        )
        self._notes = (
            # the longest context only costs more than its share of all contexts when e exceeds g
            ("e > g is ignored: iterations with one very long context take longer than predicted",) if e > g else ()
        )
        linear = self._cost.b + self._cost.c + self._cost.alpha
        self._attention = self._cost.alpha / linear if linear > 0 else 0.0
        self._engine = Engine(self._law, self._cost, self._a, self.token_budget)
        self._limit: MaxThroughput | None = None
        self._points: Draws | None = None
        self._turns: dict[int, TurnSums] = {}
        longest = int(min(self._law.steps.max(), 2000))
        self._survival = self._law.survival(np.arange(1.0, longest + 1))

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
    ) -> MixedPrediction:
        """Latency and occupancy of a pool of equal replicas.

        Parameters
        ----------
        arrival_rate : float
            Rate of the whole POOL [requests/s]; one replica gets ``arrival_rate / replicas``.
        replicas : int
            Replicas in the pool.
        routing : {"random", "p2c", "jsq", "rr"}
            Independent choice, the one of two drawn at random with fewer requests present, fewest requests present of
            all, or in turn.
        quantiles : sequence of float
            Levels in (0, 1).

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
        if routing not in get_args(Routing):
            raise ValueError(f"routing: {routing!r} is not one of {', '.join(get_args(Routing))}")
        levels = tuple(float(q) for q in quantiles)
        if not levels or not all(0 < q < 1 for q in levels):
            raise ValueError(f"quantiles: {quantiles!r} are not all in (0, 1)")
        limit = self.max_throughput()
        rate = arrival_rate / replicas
        load = rate / limit.per_s if limit.per_s > 0 else math.inf
        if load >= 1:
            return self._unstable(load, levels)
        if replicas == 1:
            routing = "random"
        elif replicas == 2 and routing == "p2c":
            # the two drawn are all there are
            routing = "jsq"
        rate = max(rate, 1e-9 * limit.per_s)
        return self._result(self._solve(rate, load, int(replicas), routing), rate, load, routing, levels)

    # ---------------------------------------------------------------------------------------------------- internals

    def _draws_once(self) -> Draws:
        if self._points is None:
            self._points = Draws(self._law, POINTS)
        return self._points

    def _capacity(self, in_prefill: float, prompts: tuple[float, float] = (0.0, 0.0)) -> Capacity:
        """Sequences that can be decoded at once, ``in_prefill`` slots being held by prompts.

        ``prompts``: mean and variance of the tokens of the prompts that come first [tokens], [tokens^2].
        """
        law = self._law
        slots = max(self.max_num_seqs - min(in_prefill, self.max_num_seqs / 2), 1.0)
        if not math.isfinite(self.kv_tokens) or law.context <= 0:
            return Capacity(slots, math.inf, 0.0)
        mean = max((self.kv_tokens - law.mean_own - prompts[0]) / law.own_context, 1.0)
        # the context held beside a prompt of the head's length: its own spread is in the occupancy
        scatter = law.mean_own2 - law.mean_own**2
        spread = math.sqrt((scatter + prompts[1]) / law.own_context**2 + 0.25)
        if mean - 6 * spread > 1.5 * slots:
            return Capacity(slots, math.inf, 0.0)
        return Capacity(slots, mean, spread)

    def _uneven(self, capacity: Capacity, decodes: float, swing: Fluctuations) -> Capacity:
        """``capacity`` with what contexts that differ take from it, of so many ``decodes``, and how skewed that is.

        Contexts held are a sum over a Poisson number of requests: cumulants of order k are that number times the mean k-th
        power, more where long iterations hold requests up. What of them the number of decodes does not say is the capacity's.
        """
        law = self._law
        if not math.isfinite(capacity.kv_mean) or decodes <= 0:
            return capacity
        variance = capacity.kv_spread**2 + max(swing.context - swing.decodes, 0.0)
        usual = decodes * law.own_context2 / law.own_context**2
        of_contexts = decodes * law.own_context3 / law.own_context**3 * (swing.context / usual) ** 1.5
        of_prompt = float(law.probability @ (law.own - law.mean_own) ** 3) / law.own_context**3
        third = of_contexts - swing.decodes**2 / decodes + of_prompt
        skew = min(max(third / variance**1.5, 0.0), MOST_SKEW)
        return Capacity(capacity.slots, capacity.kv_mean, math.sqrt(variance), skew)

    def _drain_scv(self, capacity: Capacity, load: float, pooled: int = 1) -> float:
        """Squared coefficient of variation of what requests take of a full replica's time.

        A queue for slots or memory is over as the requests ahead are served: of a full replica's time each takes iterations, its
        steps or what it holds over what a replica holds at once, and what its prompt makes iterations longer. Of decodes that vary
        more than exponential ones what such a queue meets before it is over, as in :class:`planner.queueing.slots.wait.SlotWait`.
        """
        law, limit = self._law, self.max_throughput()
        if law.mean_steps <= 0:
            return 0.0
        p, attention = law.probability, self._a * law.pairs
        by_slots = 1.0
        if math.isfinite(capacity.kv_mean):
            by_slots = float(normal_cdf((capacity.kv_mean - capacity.slots) / capacity.kv_spread))
        kv = law.steps * (law.own + (law.steps + 1) / 2)
        held = by_slots * law.steps / law.mean_steps + (1 - by_slots) * kv / law.mean_kv
        full, prompts = limit.iteration_s, limit.per_iteration * law.mean_prefill
        alone = float(self._cost(limit.decodes, np.array(0.0)))
        if limit.binding == "budget":
            # every token takes its place
            places = full - self._cost.per_decode * limit.decodes - limit.per_iteration * float(p @ attention)
            alone = places * limit.decodes / (limit.decodes + prompts) + self._cost.per_decode * limit.decodes
        # the contexts of a replica that holds as many sequences as it may differ
        contexts = by_slots * self._g * (law.prompt + (law.steps + 1) / 2 - law.context)
        decoding = held * min(alone / full, 1.0) + law.steps * contexts * limit.per_iteration / full
        rest = max(full - alone - limit.per_iteration * float(p @ attention), 0.0)
        reading = (rest * law.tokens / law.mean_prefill + limit.per_iteration * attention) / full
        of_decodes, of_prompts = float(p @ decoding), float(p @ reading)
        together = float(p @ (decoding * reading)) - of_decodes * of_prompts
        variance = self._met(decoding, pooled * capacity.slots, load) + 2 * together
        variance += float(p @ reading**2) - of_prompts**2
        return variance / (of_decodes + of_prompts) ** 2

    def _met(self, decoding: Array, slots: float, load: float) -> float:
        """What a queue before ``slots`` meets of the variance of what ``decoding`` takes, row by row, before it is over."""
        law = self._law
        mean, second = float(law.probability @ decoding), float(law.probability @ decoding**2)
        scv = second / mean**2 - 1 if mean > 0 else 0.0
        if scv <= 1.0:
            return second - mean**2
        horizon = HORIZON * (1 + scv) / 2 / ((1 - load) * math.sqrt(max(slots - 1.0, 1.0)))
        beyond = np.maximum(1.0 - horizon * law.mean_steps / np.maximum(law.steps, 1e-9), 0.0)
        met = float(law.probability @ (decoding**2 * (1.0 - beyond**2))) / -math.expm1(-horizon) - mean**2
        return min(max(met, mean**2), second - mean**2)

    def _prompts_ahead(self, base: Backlog, rate: float) -> tuple[float, float]:
        """Mean and variance over time of the tokens of prompts that are computed or wait for it [tokens], [tokens^2]."""
        law = self._law
        weight = base.law[0] * base.duration[0]
        length = float(weight.sum())
        mean = float(weight @ base.grid[0]) / length
        variance = float(weight @ (base.grid[0] - mean) ** 2) / length
        # on average half of those who come in an iteration, and what is computed of those that take several
        come = rate * law.mean_prefill * float(weight @ base.duration[0]) / (2 * length)
        passes = np.ceil(law.tokens / base.room[0])
        begun = rate * length * float(law.probability @ (law.own * (passes - 1))) / 2
        kept = law.mean_own / law.mean_prefill
        return (mean + come) * kept + begun, variance * kept**2

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

    def _solve(self, rate: float, load: float, replicas: int, routing: str) -> _Outcome:
        """Occupancy, backlog and their interplay at a rate, for the routing asked."""
        law, cost, sums = self._law, self._cost, self._sums
        budget = self.token_budget
        limit = self.max_throughput()
        steps = law.mean_steps
        # where replicas are nearly always empty the second one drawn hardly matters
        if routing == "p2c" and steps >= 1 and rate * self._fluid(rate) * (steps + 1) >= FEW_PRESENT:
            return self._solve_steered(rate, load, min(replicas, MOST_POOLED))
        if routing == "jsq" and steps >= 1:
            return self._solve_shared(rate, load, min(replicas, MOST_POOLED))

        # 1. how the decodes answer to bursts of prefill (slope), at the mean number of decodes
        t = self._fluid(rate)
        slope, variance, settle = 0.0, 0.0, 1.0
        most = min(limit.decodes * 1.02, 0.98 * budget)
        survival = self._survival
        rates = np.array([rate])
        n0 = min(rate * steps * t, most)
        for _ in range(2):
            base = solve_backlog(
                sums, cost, budget, np.array([n0]), rates, slope=slope, mean_prefill=rate * law.mean_prefill * t
            )
            t = float(base.mean(base.duration)[0])
            n0 = min(rate * steps * t, most)
            if steps > 0:
                slope, variance, settle = prefill_memory(base, law, survival)
        mean_prefill = rate * law.mean_prefill * t

        # 2. chains over the range of decodes
        busy_slope = (
            cost.c
            + cost.busy_per_decode(float(base.law[0] @ (base.grid[0] > 0.0)) if cost.joined_per_decode else 0.0)
            + float(base.law[0] @ cost.linear_slope(n0, base.prefill[0]))
        )
        feedback = min(n0 * busy_slope / t, 0.9)
        # a stay at many decodes ends before a backlog close to instability builds up: its time scale, which grows as
        # 1/(1 - load)^2, may not exceed that of the decodes
        base_load = min(rate * float(base.full[0]) * law.mean_prefill / float(base.room[0]), MOST_LOAD)
        stay = max(steps / (1 - feedback), 1.0)
        most_load = min(1 - (1 - base_load) * math.sqrt(min(settle / stay, 0.5)), MOST_LOAD)
        deviation = math.sqrt(max(n0, 0.05) / (1 - feedback))
        capacity = self._capacity(rate * t * (1 + law.mean_prefill / (2 * budget)), self._prompts_ahead(base, rate))
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
            idle_rate=rate, most_load=most_load,
        )  # fmt: skip
        memory = chain_memory(chains)
        turn = None
        if routing == "rr":
            stages = min(replicas, MOST_STAGES)
            if stages not in self._turns:
                self._turns[stages] = TurnSums(sums, stages)
            found, arrivals = solve_in_turn(
                self._turns[stages],
                cost,
                budget,
                nodes,
                rate,
                slope=slope,
                mean_prefill=mean_prefill,
                most_load=most_load,
            )
            turn = _Turn(found, arrivals, stages, (1 / stages - 1 / replicas) / (1 - 1 / stages))
            # prompts that come evenly share fewer iterations beyond the floor
            evener = (1 + turn.beyond) * (found.mean(found.duration) - memory.mean)
            evener[0] = 0.0
            memory = replace(memory, mean=memory.mean + np.maximum(evener, -0.5 * memory.mean))
        dispersion = 1 / replicas if routing == "rr" else 1.0
        swing = self._fluctuations(rate, n0, nodes, chains, memory.mean, dispersion, slope)
        capacity = self._uneven(capacity, n0, swing)
        occupancy = self._occupancy(rate, load, nodes, memory, capacity, swing, slope**2 * variance, dispersion)
        return self._integrate(
            rate, nodes, chains, memory, occupancy, capacity, swing, slope,
            mean_prefill, turn,
        )  # fmt: skip

    def _fluctuations(
        self,
        rate: float,
        centre: float,
        nodes: Array,
        chains: Backlog,
        means: Array,
        dispersion: float,
        slope: float = 0.0,
    ) -> Fluctuations:
        """Slow fluctuations about ``centre`` decodes, linearized there."""
        law = self._law
        if law.mean_steps <= 0:
            return Fluctuations(0.0, 0.0, 0.0, 1.0, 0.0, np.zeros(WINDOWS))
        at = max(int(np.argmin(np.abs(nodes - centre))), 1)
        time = float(hermite(np.array([centre]), nodes[1:], means[1:])[0])
        flow = float(chains.mean(chains.prefill)[at])
        # mean cost of a prefill token beside the decodes
        alone = float(self._cost(nodes[at], np.array(0.0)))
        per_prefill = max((float(means[at]) - alone) / flow, 0.0)
        linear = float(chains.law[at] @ self._cost.linear_slope(nodes[at], chains.prefill[at]))
        with_prompts = float(chains.law[at] @ (chains.prefill[at] > 0.0)) if self._cost.joined_per_decode else 0.0
        per_decode = self._cost.c + self._cost.busy_per_decode(with_prompts) + linear
        delay = float(chains.mean(np.maximum(chains.grid - chains.room[:, None], 0.0))[at]) / flow
        return self._draws_once().spectra.at(
            count=rate * time, time=time, per_decode=max(per_decode - self._g * law.context, 0.0),
            g=self._g, per_prefill=max(per_prefill - self._cost.alpha, 0.0), a=self._a,
            delay=delay, context=law.context, own=law.own_context, dispersion=dispersion, slope=slope,
        )  # fmt: skip

    def _occupancy(
        self, rate: float, load: float, nodes: Array, memory: Memory, capacity: Capacity, swing: Fluctuations, fast: float,
        dispersion: float,
    ) -> Occupancy:  # fmt: skip
        """Law of the sequences present: product form, with the spread of the slow fluctuations."""
        steps = self._law.mean_steps
        if steps <= 0:
            return Occupancy(np.zeros(1), np.ones(1))
        free = Capacity(math.inf, math.inf, 0.0)
        plain = occupancy_law(rate * steps, nodes[1:], memory.mean[1:], free, load)
        variance = plain.variance
        spread = max((swing.decodes - fast) / max(variance, 1e-9), 0.03)
        # requests in line are delayed by the scatter of arrivals and of what those ahead take
        scv = self._drain_scv(capacity, load)
        queue_spread = max((dispersion + scv) / 2, 0.05)
        return occupancy_law(rate * steps, nodes[1:], memory.mean[1:], capacity, load, 1, spread, queue_spread)

    def _integrate(
        self, rate: float, nodes: Array,
        chains: Backlog, memory: Memory, occupancy: Occupancy, capacity: Capacity, swing: Fluctuations, slope: float,
        mean_prefill: float, turn: _Turn | None,
    ) -> _Outcome:  # fmt: skip
        """Latencies over draws of the number present, the backlog, the phase and the request's own lengths."""
        budget = self.token_budget
        engine, points = self._engine, self._draws_once()
        u, steps = points.u, self._law.mean_steps
        limit = self.max_throughput()

        # number present and served
        present = occupancy.quantile(u[0])
        if math.isfinite(capacity.kv_mean):
            from planner.queueing.normal import normal_quantile as ndtri

            room_for = capacity.draw(ndtri(u[14]))
        else:
            room_for = np.full(present.shape, capacity.slots)
        served = np.minimum(present, room_for)
        waits = present >= room_for
        # as many departures as there are ahead, and the next one
        slot_wait = np.where(waits, _in_line(present - room_for, u[15], rate, limit.per_s), 0.0)
        centre = float(served.mean())
        at = int(np.argmin(np.abs(nodes - centre)))
        if nodes.size > 1:
            at = max(at, 1)
        shift = 0.0
        relax = max(swing.relaxation, 1.0)
        stretch = math.sqrt(swing.effective / swing.decodes) if swing.decodes > 0 else 1.0
        decay = float(memory.decay[at])
        backlog_relax = 1 / max(1 - decay, 1e-3)
        follow = relax / (relax + backlog_relax)
        covariance = points.spectra.over(swing.covariance, points.steps)
        # the request's own decode, in decodes of mean context
        own = np.ones_like(served)
        if swing.per_decode > 0:
            own *= 1 + self._g * (points.prompt + (points.steps + 1) / 2 - self._law.context) / swing.per_decode
        # the mean is Little's: one correction on expectations, then the draws
        for final in (False, True) if steps > 0 else (True,):
            if steps > 0:
                n = np.where(present == 0, 0.0, centre + shift + (served - centre) * stretch)
                n = np.clip(n, 0.0, 0.98 * budget)
            else:
                n = np.zeros_like(served)
            middle = centre + shift
            felt = np.where(n == 0, 0.0, np.maximum(middle + (n - middle) * follow, 0.0))
            chain, backlog = draw_backlog(points, nodes, chains, felt)
            idle = (nodes[chain] == 0) & (backlog <= 0)
            ttft, start = first_token(engine, points, n, backlog, idle, rate, rate, slope, mean_prefill)
            if turn is not None:
                _, backlog = draw_backlog(points, nodes, turn.chains, felt, weights=turn.arrivals)
                idle = (nodes[chain] == 0) & (backlog <= 0)
                even, behind = first_token(
                    engine, points, n, backlog, idle, rate, rate, slope, mean_prefill, stages=turn.stages
                )
                # more replicas take the wait as much further, in proportion
                ttft = even * (even / ttft) ** turn.beyond
                start = np.maximum(behind + turn.beyond * (behind - start), 0.0)
            if steps > 0:
                life = np.maximum(middle + (n - middle) * time_average(points.steps / relax), 0.0) + own
                tpot = per_token(
                    engine,
                    points,
                    life,
                    start,
                    nodes,
                    chains,
                    memory,
                    slope,
                    mean_prefill,
                    means_only=not final,
                    covariance=covariance,
                )
            else:
                tpot = np.zeros((1, ttft.size))
            mean_n = rate * float(np.mean(points.steps * tpot)) if steps > 0 else 0.0
            now = float(n.mean())
            shift += 0.8 * (mean_n - now)
        iteration = float(memory.mean[at])
        return _Outcome(ttft + slot_wait, tpot, n, mean_n, float(waits.mean()), iteration, relax * iteration)

    def _unstable(self, load: float, levels: tuple[float, ...]) -> MixedPrediction:
        limit = self.max_throughput()
        never = np.full(len(levels), math.inf)
        if limit.binding == "prompt":
            reason = "the longest prompt does not fit in the KV memory"
        else:
            reason = f"load {load:.3g} of the maximum throughput {limit.per_s:.4g}/s ({limit.binding}): queues grow without end"
        metrics = ("ttft_s", "tpot_s", "e2e_s")
        return MixedPrediction(
            quantiles=levels, ttft_s=never, tpot_s=never, e2e_s=never, ttft_mean_s=math.inf, tpot_mean_s=math.inf,
            e2e_mean_s=math.inf, running_mean=limit.decodes, running=np.full(len(levels), limit.decodes), load=load,
            wait_probability=1.0, iteration_mean_s=limit.iteration_s, relaxation_s=math.inf, stable=False, binding=limit.binding,
            region="unstable", error_band=dict.fromkeys(metrics, ((0.0, 0.0),) * len(levels)),
            margin=dict.fromkeys(metrics, (1.0,) * len(levels)), reliable=False, warnings=(reason, *self._notes),
        )  # fmt: skip

    def _result(
        self, run: _Outcome, rate: float, load: float, routing: str, levels: tuple[float, ...]
    ) -> MixedPrediction:
        """Quantiles of the samples of a rate, with the errors measured in their region."""
        steps, law = self._draws_once().steps, self._law
        several = steps > 0
        each = run.tpot[:, several].ravel() if several.any() else np.zeros(1)
        ttft = run.ttft + self.api_overhead_s
        if self.wake_s > 0.0:
            ttft += self.wake_s * (self._draws_once().u[13] < math.exp(-rate * COLD_AFTER_S))
        e2e = (ttft + steps * run.tpot).ravel()
        region = region_of(routing, load, run.waits, law.mean_steps, self._attention)
        names = {m: tuple(metric_of(m[:-2], level) for level in levels) for m in ("ttft_s", "tpot_s", "e2e_s")}
        return MixedPrediction(
            quantiles=levels,
            ttft_s=quantiles_of(ttft, levels),
            tpot_s=quantiles_of(each, levels),
            e2e_s=quantiles_of(e2e, levels),
            ttft_mean_s=float(ttft.mean()),
            tpot_mean_s=float(each.mean()),
            e2e_mean_s=float(e2e.mean()),
            running_mean=run.running_mean,
            running=quantiles_of(run.running, levels),
            load=load,
            wait_probability=run.waits,
            iteration_mean_s=run.iteration_s,
            relaxation_s=run.relaxation_s,
            stable=True,
            binding=self.max_throughput().binding,
            region=region.name,
            error_band={m: tuple(region.band[k] for k in keys) for m, keys in names.items()},
            margin={m: tuple(1 / (1 + min(region.lean[k], 0.0)) for k in keys) for m, keys in names.items()},
            reliable=region.reliable,
            warnings=(*((region.warning,) if region.warning else ()), *self._notes),
            requests=(np.tile(ttft, run.tpot.shape[0]), np.where(several, run.tpot, np.nan).ravel(), e2e),
        )

    def _solve_steered(self, rate: float, load: float, replicas: int) -> _Outcome:
        """Power of two choices: replicas held loosely about the pool's mean, which is a product form."""
        law, cost, budget = self._law, self._cost, self.token_budget
        engine, points, limit = self._engine, self._draws_once(), self.max_throughput()
        u, steps = points.u, law.mean_steps
        most = 0.98 * budget
        guess = min(max(rate * self._fluid(rate) * (steps + 1), 0.05), 0.6 * most)
        held, followed = steered_backlog(self._sums, cost, budget, rate, replicas, guess)
        nodes = held.present
        chains = held.chains
        residence = nodes / np.maximum(held.left_per_s, 1e-300)
        at, residence = self._up_to_full(nodes, residence)
        capacity, spread, queue_spread, swing = self._pool_spread(
            rate, load, float(nodes[2]), nodes, held.busy, at, residence, replicas
        )
        occupancy = occupancy_law(rate, at, residence, capacity, load, replicas, spread, queue_spread)
        total = occupancy.quantile(u[0])
        # what the pool has in common is spread over its replicas
        covariance = points.spectra.over(swing.covariance, points.steps) / replicas
        room_for = (
            capacity.draw(_normal(u[14])) if math.isfinite(capacity.kv_mean) else np.full(total.shape, capacity.slots)
        )
        memory = chain_memory(followed)
        own = np.ones_like(total)
        busy = cost.c + cost.per_decode
        if busy > 0:
            own += self._g * (points.prompt + (points.steps + 1) / 2 - law.context) / busy
        shift, mean_n = 0.0, 0.0
        for final in (False, True):
            pool = np.clip(total + shift, 0.0, most)
            chain, backlog = draw_backlog(points, nodes, chains, pool, weights=held.arrivals)

            def at_backlog(values: Array, chain: NDArray[np.int64] = chain, backlog: Array = backlog) -> Array:
                found = np.empty_like(backlog)
                for k in range(nodes.size):
                    mine = chain == k
                    found[mine] = np.interp(backlog[mine], chains.grid[k], values[k])
                return found

            # the emptiest first: at an empty backlog some find nothing at all
            asleep = np.where(backlog <= 0, held.idle[chain], 0.0)
            idle = u[8] < asleep
            place = np.clip((u[8] - asleep) / (1 - asleep), 1e-6, 1 - 1e-6)
            apart = at_backlog(held.found_apart) + np.sqrt(at_backlog(held.found_variance)) * _normal(place)
            waiting = np.where(backlog > 0, at_backlog(held.waiting), 0.0)
            found = np.where(idle, 0.0, np.maximum(pool + apart, np.maximum(waiting, 1.0)))
            waits = ~idle & (np.maximum(pool + apart, 1.0) >= room_for)
            decodes = np.maximum(np.minimum(found, room_for) - waiting, 0.0)
            beside = rate * at_backlog(held.beside)
            # one that was sent a request is sent fewer from then on, until it is as full as the others
            spread_here = np.interp(pool, nodes, held.spread)
            forget = np.maximum(np.sqrt(np.pi * spread_here) * (1 - 1 / replicas), 0.1)
            ttft, start = first_token(engine, points, decodes, backlog, idle, beside, beside, settling=rate / forget)
            # whom it finds is forgotten on the way to whom a long life meets, by size bias
            usual = pool - 1 + spread_here / np.maximum(pool, 0.1)
            time = np.interp(pool, nodes, chains.mean(chains.duration))
            settled = time_average(points.steps * time * rate / forget) ** 2
            others = np.maximum(usual + (found - usual) * np.sqrt(settled), 0.0)
            life = others + own
            tpot = per_token(
                engine, points, life, start, nodes, followed, memory,
                at_mean=np.maximum(others + own - 1, 0.0), means_only=not final, covariance=covariance,
            )  # fmt: skip
            mean_n = rate * float(np.mean(points.steps * tpot))
            little = rate * float(np.mean(ttft + points.steps * tpot))
            shift += 0.8 * (little - float(pool.mean()))
        slot_wait = np.where(waits, np.maximum(_in_line(pool - room_for, u[15], rate, limit.per_s), 0.0), 0.0)
        iteration = float(np.interp(float(pool.mean()), nodes, chains.mean(chains.duration)))
        return _Outcome(
            ttft + slot_wait, tpot, decodes, mean_n, float(waits.mean()), iteration, (steps + 1) * iteration
        )

    def _up_to_full(self, nodes: Array, residence: Array) -> tuple[Array, Array]:
        """Residence of a request among ``nodes`` [s], and beyond them, where a replica completes its maximum."""
        limit, last = self.max_throughput(), float(nodes[-1])
        full = self._capacity(0.0).typical
        if limit.binding in ("slots", "kv") and full > 1.05 * last and full / limit.per_s > residence[-1]:
            # it does from where its slots or its memory are taken
            far = full * np.array([1.0, 40.0])
            beyond = far / limit.per_s
        else:
            far = last * np.array([1.5, 40.0])
            beyond = residence[-1] + (far - last) / limit.per_s
        return np.concatenate((nodes, far)), np.concatenate((residence, beyond))

    def _pool_spread(
        self, rate: float, load: float, centre: float, nodes: Array, chains: Backlog, at: Array, residence: Array,
        replicas: int,
    ) -> tuple[Capacity, float, float, Fluctuations]:  # fmt: skip
        """Room of a replica in a pool, and how far the pool's total strays beyond its product form."""
        law, capacity = self._law, self._capacity(0.0)
        if math.isfinite(capacity.kv_mean):
            # equal numbers of requests still hold unequal contexts
            scatter = max(law.own_context2 / law.own_context**2 - 1, 0.0)
            uneven = math.hypot(capacity.kv_spread, math.sqrt(capacity.kv_mean * scatter))
            capacity = Capacity(capacity.slots, capacity.kv_mean, uneven)
        # the pool's total strays as far as those of independent replicas do together
        free = Capacity(math.inf, math.inf, 0.0)
        swing = self._fluctuations(rate, centre, nodes, chains, chains.mean(chains.duration), 1.0)
        variance = occupancy_law(rate, at, residence, free, load, replicas).variance * replicas
        spread = max(swing.decodes / max(variance, 1e-9), 0.3)
        scv = self._drain_scv(capacity, load, replicas)
        return capacity, spread, max((1 + scv) / 2, 0.05), swing

    def _solve_shared(self, rate: float, load: float, replicas: int) -> _Outcome:
        """Join-shortest-queue: replicas held at the pool's mean, its total a product form."""
        law, cost, budget = self._law, self._cost, self.token_budget
        engine, points = self._engine, self._draws_once()
        limit, steps = self.max_throughput(), max(law.mean_steps, 1e-9)
        # residence of a request among N, by Little's law, at nodes about the fluid point
        t = self._fluid(rate)
        guess = max(rate * t * (steps + 1), 0.05)
        most = 0.98 * budget
        # what all have is not steered away from any
        usual = min(guess, most)
        share = (1 - 1 / replicas) * (1 - common_backlog(cost, budget, usual, rate * law.mean_prefill, replicas))
        if guess < 5:
            nodes = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0])
        else:
            nodes = np.concatenate(([0.0], guess * np.array([0.4, 0.65, 0.82, 1.0, 1.2, 1.5, 2.2])))
        nodes = nodes * min(1.0, most / nodes[-1])
        refill = np.ones(nodes.size)
        for _ in range(2):
            chains = solve_shared(self._sums, cost, budget, nodes, rate, share, refill=refill)
            decoding = chains.mean(np.maximum(nodes[:, None] - chains.grid / law.mean_prefill, 0.0))
            speed = decoding[1:] / (steps * chains.mean(chains.duration)[1:])
            # away from its mean the pool's total moves: arrivals stay as many as they are
            refill[1:] = np.clip(rate / speed, 0.3, 3.0)
        residence = nodes[1:] / np.maximum(speed, 1e-300)
        at, residence = self._up_to_full(nodes[1:], residence)
        capacity, spread, queue_spread, swing = self._pool_spread(
            rate, load, guess, nodes, chains, at, residence, replicas
        )
        occupancy = occupancy_law(rate, at, residence, capacity, load, replicas, spread, queue_spread)
        u = points.u
        total = occupancy.quantile(u[0])
        # what the pool has in common is spread over its replicas
        covariance = points.spectra.over(swing.covariance, points.steps) / replicas
        room_for = (
            capacity.draw(_normal(u[14])) if math.isfinite(capacity.kv_mean) else np.full(total.shape, capacity.slots)
        )
        with_it = np.interp(nodes + 1.0, nodes, refill)
        followed = solve_shared(self._sums, cost, budget, nodes, rate, share, tagged=1.0, refill=with_it)
        memory = chain_memory(followed)
        own = np.ones_like(total)
        busy = cost.c + cost.per_decode
        if busy > 0:
            own += self._g * (points.prompt + (points.steps + 1) / 2 - law.context) / busy
        # a replica is the least loaded after a departure, which long prefills hold up
        held_up = JSQ_AFTER_DEPARTURE * share**2
        seen = (1 - held_up) * chains.duration / chains.mean(chains.duration)[:, None]
        leaving = np.maximum(nodes[:, None] - chains.grid / law.mean_prefill, 0.0)
        seen += held_up * leaving / np.maximum(chains.mean(leaving)[:, None], 1e-300)
        seen[0] = chains.duration[0]
        shift, mean_n = 0.0, 0.0
        for final in (False, True):
            mean_present = np.clip(total + shift, 0.0, most)
            waits = mean_present >= room_for
            held = np.minimum(mean_present, room_for)
            # the least loaded replica has the floor of the mean
            found = np.floor(held)
            _, backlog = draw_backlog(points, nodes, chains, found, weights=seen)
            idle = found <= 0
            decodes = np.maximum(found - backlog / law.mean_prefill, 0.0)
            # while it waits, those who leave are made up for at the mean pace; in its own iteration, as long as its prompt, no more
            # leave than in another, and besides the replica is sent one more where its number is still the floor of the mean, as
            # in half of all cases by chance, and no other after that one
            time = np.maximum(np.interp(found, nodes, chains.mean(chains.duration)), 1e-300)
            full = cost(decodes, np.maximum(budget - decodes, 1.0))
            before = (1 - share) * rate
            after = before + share * (decodes / (steps * full) + 0.5 * rate)
            ttft, start = first_token(
                engine, points, decodes, np.where(idle, 0.0, backlog), idle, before, after,
                settling=np.full(full.shape, rate), common=before, early=before + share * decodes / (steps * time),
            )  # fmt: skip
            # the others beside a request that shares a replica holding the floor or the ceiling of the mean
            others = found * np.maximum(found - 1 + 2 * (held - found), 0.0) / np.maximum(held, 1.0)
            life = np.maximum(others + own, 0.0)
            tpot = per_token(
                engine,
                points,
                life,
                start,
                nodes,
                followed,
                memory,
                at_mean=np.maximum(others + own - 1, 0.0),
                means_only=not final,
                covariance=covariance,
            )
            mean_n = rate * float(np.mean(points.steps * tpot))
            little = rate * float(np.mean(ttft + points.steps * tpot))
            shift += 0.8 * (little - float(held.mean()))
        slot_wait = np.where(waits, _in_line(mean_present - room_for, u[15], rate, limit.per_s), 0.0)
        iteration = float(np.interp(float(held.mean()), nodes, chains.mean(chains.duration)))
        return _Outcome(
            ttft + slot_wait, tpot, decodes, mean_n, float(waits.mean()), iteration, (steps + 1) * iteration
        )


def _normal(u: Array) -> Array:
    from planner.queueing.normal import normal_quantile as ndtri

    z: Array = ndtri(u)
    return z


def _in_line(ahead: Array, u: Array, rate: float, most: float) -> Array:
    r"""Wait for as many departures as there are ``ahead``, and the next one [s].

    Whose wait is long waits for slow departures: the tail of the wait is as much longer as it is before one exponential server,
    where the number falls by :math:`-\ln\rho` from one to the next and the wait by :math:`1-\rho` in a service.
    """
    load = min(rate / most, 0.9999)
    wait: Array = (-math.log(load) / (1 - load) * ahead - np.log1p(-u)) / most
    return wait
