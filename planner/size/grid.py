"""The splits a search looks at, and what every pool between two of them costs at least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.machine.hardware import GpuSpec, ModelSpec, shard
from planner.predict.contract import Method
from planner.predict.methods import find_method
from planner.predict.replica import EngineOption, engine_options
from planner.promise import Promise
from planner.question.compiled import CompiledQuestion
from planner.queueing.order import distinct
from planner.size.pool import Margin
from planner.workload import pools as m
from planner.workload.pools import State

FloatArray = NDArray[np.float64]

PROMPT_BINS = 40
"""Log-spaced bins of prompt lengths for the promised quantile."""

WORTH_CUTTING = 0.01
"""Share of the requests, prompt tokens, decodes or contexts below a boundary from which on it is searched: a pool of less frees no
more of the others than that, and what a split there would save is how the path happens to fall."""

TAIL_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.993, 0.996, 0.998, 0.999, 0.9995)
"""Levels a pool is predicted at when the fleet's tail is mixed from the pools'."""

MAX_BOUNDARIES = 20
"""Boundaries searched when the user names none: the workload's breakpoints, thinned evenly in probability."""


FEW_SEQS = (128, 64, 32, 16)
"""Sequences at once tried beside the memory-safe ones where requests may wait for a slot: powers of two below vLLM's usual 256."""


def with_few_slots(question: CompiledQuestion, options: Sequence[EngineOption]) -> list[EngineOption]:
    """The same engines with fewer sequences at once too, where nothing but the pace of tokens is promised and none are named."""
    kinds = {p.kind for p in question.promises.latency}
    if kinds != {"tpot_s"} or question.inputs.max_num_seqs or not find_method(question.method).shares_budget:
        return [*options]
    paged = [o for o in options if o.kv == "paged" and o.max_num_seqs is None]
    return [*options, *(replace(o, max_num_seqs=max(n // o.parallel.pp, 1)) for o in paged for n in FEW_SEQS)]


def engine_choices(question: CompiledQuestion) -> list[EngineOption]:
    """Every engine that the question leaves open."""
    return engine_options(question, find_method(question.method).shares_budget)


def hardware_floor(
    gpu: GpuSpec,
    model: ModelSpec,
    rate_per_s: float,
    new_input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    kv_token_iterations: ArrayLike,
) -> NDArray[np.float64]:
    r"""Lower bound of the GPUs for a rate if nothing were ever lost: FLOPs and bytes of the traffic over the data sheet's peaks.

    .. math:: n \ge \lambda \max\left( \frac{2 P_{active} (L_{new} + O)}{FLOPS},\; \frac{E[KV]\, b_{kv}}{BW} \right)

    Parameters
    ----------
    gpu, model
        Hardware and model.
    rate_per_s
        Rate [1/s].
    new_input_tokens, output_tokens
        Means per request [tokens]; scalars or arrays of one shape.
    kv_token_iterations
        Mean of sum over decode steps of the context [tokens x iterations].

    Returns
    -------
    ndarray
        The larger of what matrix arithmetic (2 FLOP per active parameter and token, attention left out) and reading the KV cache
        (weights shared by any batch) take [GPUs].
    """
    dtype = model.weight_dtype if model.weight_dtype in gpu.flops_per_s else "bf16"
    peak = max(gpu.flops_per_s.get(dtype, 0.0), gpu.flops_per_s.get("bf16", 0.0))
    flops = 2.0 * model.parameters_active * (np.asarray(new_input_tokens) + np.asarray(output_tokens))
    # sparse attention must read its index of every token, not the tokens
    index = model.index_layers * model.index_bytes
    kv_bytes = np.asarray(kv_token_iterations) * (index or shard(model).full_bytes_per_token)
    compute = rate_per_s * flops / peak if peak > 0.0 else 0.0 * flops
    return np.asarray(np.maximum(compute, rate_per_s * kv_bytes / gpu.bandwidth_bytes_per_s))


def least_by_hardware(method: Method, option: EngineOption, sums: FloatArray, rate_per_s: float) -> FloatArray:
    """Replicas that the arithmetic alone takes, for a method that takes prefill for free; 1 for the others.

    A profile that is only used by name (the paper's) is left as printed; the plan then warns.
    """
    if not (method.free_prefill and option.profile.automatic):
        return np.ones(sums.shape[:-1])
    floor = hardware_floor(
        option.gpu, option.model, rate_per_s, sums[..., m.NEW_INPUT], sums[..., m.OUTPUT], sums[..., m.KV]
    )
    found: FloatArray = np.ceil(floor / option.profile.gpus)
    return found


class SearchGrid:
    """States between which pools lie, and lower bounds and guesses of what every pool costs, by option.

    Parameters
    ----------
    question
        What is asked.
    options
        Engine options of every pool; default all that the question leaves open.
    """

    def __init__(self, question: CompiledQuestion, options: Sequence[EngineOption] | None = None) -> None:
        self.question = question
        self.inputs, self.kept = question.inputs, question.promises
        self.rate = question.traffic.rate_per_s
        self.method = find_method(question.method)
        self.moments = question.traffic.moments(self.inputs.chunk)
        self.fleet_promises = self.kept.of_fleet
        # what every pool keeps by itself
        self.promises = self.kept.of_pools
        self.levels = self.kept.levels(TAIL_LEVELS) if self.fleet_promises else self.kept.levels()
        self.states = [State(0.0), State(self.moments.top)]
        choices = with_few_slots(question, engine_choices(question)) if options is None else list(options)
        self.options = self._likely_first(choices)
        self.set_bounds()

    @cached_property
    def all_states(self) -> list[State]:
        """Every state of the grid, bottom first: boundaries with and without a band of prompts to compress."""
        top = self.moments.top
        boundaries = [b for b in self.boundary_grid if b < top] if self.inputs.pools > 1 else []
        gammas = self.inputs.gammas if self.moments.compressible else (1.0,)
        inner = []
        for gamma in sorted({1.0, *gammas}) if 1.0 in gammas or not self.moments.compressible else sorted(gammas):
            for b in boundaries:
                # a band without anything to compress is the same pool as no band
                if gamma > 1.0 and not np.any(self.moments.band_weights(b, gamma)[1] > 0.0):
                    continue
                inner.append(State(b, gamma))
        return [State(0.0), *inner, State(top)]

    @cached_property
    def boundary_grid(self) -> tuple[float, ...]:
        """Boundaries searched [tokens]."""
        if self.inputs.boundaries is not None:
            return self.inputs.boundaries
        points = distinct(self.moments.total)
        below = np.array([self.moments.cumulative(b) for b in points.tolist()])
        parts = below[:, [m.SHARE, m.NEW_INPUT, m.DECODE, m.KV]]
        worth = np.max(parts / np.maximum(parts[-1], 1e-300), axis=1) >= WORTH_CUTTING
        points, share = points[worth], below[worth, m.SHARE]
        if len(points) <= MAX_BOUNDARIES:
            return tuple(points.tolist())
        # even steps in probability and in log length: bulk and tail both get boundaries
        place = share / share[-1] + np.log(points / points[0]) / math.log(points[-1] / points[0])
        wanted = np.linspace(place[0], place[-1], MAX_BOUNDARIES)
        return tuple(distinct(points[np.searchsorted(place, wanted).clip(0, len(points) - 1)]).tolist())

    def margin(self, option: EngineOption) -> Margin:
        """Iteration times of an engine with which a pool of it keeps its promises."""
        found = Margin.of(self.kept.confidence, option.profile, self.kept.latency)
        deviations = self.question.deviations
        return found if deviations is None else Margin(deviations, found.sd)

    def set_bounds(self) -> None:
        """Lower bounds of the cost of every pool, by option: shape (options, states, states)."""
        upper, lower = self.moments.states(self.states)
        boundary = np.array([s.boundary for s in self.states])
        reach = np.array([s.boundary * s.gamma for s in self.states])
        top = len(self.states) - 1
        # a band must end below the next boundary, so that every request has one neighbour to be compressed into
        allowed = reach[:, None] <= np.where(np.arange(top + 1) == top, np.inf, boundary)[None, :]
        allowed &= boundary[:, None] < boundary[None, :]
        if self.inputs.pools <= 2:
            # every pool of such a fleet touches the bottom or the top
            inner = np.ones_like(allowed)
            inner[0, :] = inner[:, top] = False
            allowed &= ~inner
        i, j = np.nonzero(allowed)
        pools = upper[j] - lower[i]
        share = np.maximum(pools[:, m.SHARE], 0.0)
        pools[:, m.SHARE] = share
        self.option_bounds = np.full((len(self.options), top + 1, top + 1), np.inf)
        slow = self.method.shares_budget
        if slow:
            edges = np.geomspace(1.0, self.moments.longest_prompt, PROMPT_BINS)
            long_prompt = self._prompt_quantile(i, j, share, edges)
            # the lower end of the bin: nothing shorter is the promised quantile
            shortest = np.where(long_prompt > edges[0], long_prompt * edges[0] / edges[1], 0.0)
        # the paper's method is a closed form of the moments: its exact sizes take the place of bounds
        self.exact_bounds = self.method.sizes_exactly(self.options, self.promises)
        if self.exact_bounds:
            chunk = float(self.inputs.chunk)
            edges = chunk * np.arange(1.0, math.ceil(self.moments.longest_prompt / chunk) + 1.0)
            chunks = self._prompt_quantile(i, j, share, edges) / chunk
        cap = self.kept.utilization_cap
        for k, option in enumerate(self.options):
            room = 0.0 if self.question.traffic.sees_output else self.question.traffic.longest_output
            high = np.where(np.arange(top + 1) == top, option.max_model_len, boundary + room)
            high = np.minimum(np.where(boundary > 0.0, high, 0.0), option.max_model_len)
            if option.kv == "paged":
                slots = np.full(high.shape, max(option.slots_upper_bound(option.max_model_len), 1e-9))
            else:
                slots = np.array([max(option.slots_upper_bound(float(h)), 1e-9) if h > 0 else 1.0 for h in high])
            if self.exact_bounds:
                longer = self.margin(option).slow
                # times that are longer by a factor are the same pool at so much more traffic and less time
                tighter, more = self.kept.only(self.promises).tightened(longer).latency, self.rate * longer
                needed = self.method.replicas(pools, chunks, option, slots[j], more, tighter, min(cap * longer, 1.0))
                needed = np.maximum(np.ceil(needed / option.copies), self.least_replicas(option, pools))
                self.option_bounds[k, i, j] = [
                    option.price.cost_usd_per_hour(option.price.bought(int(n))) if 0 < n < math.inf else n
                    for n in np.where(share <= 1e-12, 0.0, np.where(slots[j] < 1.0, math.inf, needed)).tolist()
                ]
                continue
            x = option.copies * self.method.capacity_bound(pools, option, slots[j])
            self.option_bounds[k, i, j] = self._cost_at(option, share, min(cap, 1.0 / self.margin(option).slow) * x)
            if self.method.free_prefill:
                floor = np.where(share <= 1e-12, 0.0, self.least_replicas(option, pools))
                by_floor = floor * option.price.least_usd_per_replica_hour
                self.option_bounds[k, i, j] = np.maximum(self.option_bounds[k, i, j], by_floor)
            if slow:
                hopeless = (share > 1e-12) & self._too_slow(option, shortest)
                self.option_bounds[k, i[hopeless], j[hopeless]] = np.inf
        self.bounds = np.min(self.option_bounds, axis=0)

    def least_replicas(self, option: EngineOption, sums: FloatArray) -> FloatArray:
        """Replicas below which no pool goes: the user's minimum, and what the hardware takes."""
        return np.maximum(least_by_hardware(self.method, option, sums, self.rate), float(self.kept.min_replicas))

    def _likely_first(self, options: list[EngineOption]) -> list[EngineOption]:
        """Engines in their order, of those that differ in settings alone the likeliest first.

        The sooner a good one is known the less is asked of the others; which one is taken does not hang on it.
        """
        if not self.method.shares_budget or len({option.token_budget for option in options}) == 1:
            return options
        ends, share = np.array([0]), np.ones(1)
        edges = np.geomspace(1.0, self.moments.longest_prompt, PROMPT_BINS)
        prompt = self._prompt_quantile(ends, ends + 1, share, edges)

        def worst(option: EngineOption) -> float:
            full = option.profile.iteration.at_batch(1.0)
            found = {
                "tpot_s": full.time(1.0, 0.0, float(option.token_budget), 0.0),
                "ttft_s": self._alone_s(option, prompt)[0],
            }
            return max((float(found[p.metric]) / p.limit_s for p in self.parts if p.metric in found), default=0.0)

        place: dict[tuple[object, ...], int] = {}
        keyed = []
        for k, option in enumerate(options):
            alike = (option.gpu.name, option.profile.name, option.parallel, option.kv)
            keyed.append((place.setdefault(alike, k), worst(option), k))
        return [options[k] for *_, k in sorted(keyed)]

    def _alone_s(self, option: EngineOption, prompt: FloatArray) -> FloatArray:
        """How long prompts take that are alone on a replica [s]."""
        it = option.profile.iteration.at_batch(1.0)
        steps = np.ceil(prompt / option.token_budget)
        alone = it.t0 * steps + np.maximum(it.w * steps, it.b * prompt) + it.c * prompt + 0.5 * it.a * prompt * prompt
        return self.margin(option).slow * alone + option.profile.api_overhead_s

    def _too_slow(self, option: EngineOption, prompt: FloatArray) -> NDArray[np.bool_]:
        """Pools whose promised quantile of prompts cannot be prefilled in time even alone on a replica."""
        limits = [p.limit_s for p in self.parts if p.metric == "ttft_s"]
        slow: NDArray[np.bool_] = self._alone_s(option, prompt) > min(limits, default=math.inf)
        return slow

    def _prompt_quantile(
        self, i: NDArray[np.intp], j: NDArray[np.intp], share: FloatArray, bins: FloatArray
    ) -> FloatArray:
        """Upper edge of the bin that holds the promised quantile of a pool's prompts [tokens], shape (edges,)."""
        upper, lower = self.moments.prompt_counts(self.states, bins)
        level = max((p.quantile for p in self.parts if p.metric == "ttft_s"), default=0.99)
        counts = upper[j] - lower[i]
        place = np.sum(counts < (level * np.maximum(share, 1e-300) - 5e-13)[:, None], axis=1)
        found: FloatArray = bins[np.minimum(place, len(bins) - 1)]
        return found

    def _cost_at(self, option: EngineOption, share: FloatArray, rate_per_replica: FloatArray) -> FloatArray:
        """Least cost of pools with these shares when a replica takes that rate [USD/hour]; 0 for empty pools."""
        needed = np.maximum(np.ceil(self.rate * share / rate_per_replica * (1.0 - 1e-9)), self.kept.min_replicas)
        needed = np.where(share <= 1e-12, 0.0, needed + option.price.redundancy)
        return needed * option.price.least_usd_per_replica_hour

    @property
    def parts(self) -> tuple[Promise, ...]:
        """The promises about one latency each that every pool has to keep."""
        return self.kept.only(self.promises).parts

    def is_empty(self, i: int, j: int) -> bool:
        """Whether nobody is served between two states."""
        return float(self.bounds[i, j]) == 0.0

    def fleets(self) -> int:
        """Fleets in the grid: paths of at most K edges, times the options of every pool."""
        top = len(self.states) - 1
        edges = np.isfinite(self.bounds).astype(np.float64) * len(self.options)
        paths = edges[:, top].copy()
        total = paths[0]
        for _ in range(1, self.inputs.pools):
            paths = edges @ np.where(np.arange(top + 1) == top, 0.0, paths)
            total += paths[0]
        return int(total)
