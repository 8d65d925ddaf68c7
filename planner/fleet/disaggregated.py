"""Prefill and decode on nodes of their own: both pools sized together, and the fleet beside the colocated one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

import planner
from planner.catalog.kv import kv_bytes_per_token
from planner.errors import InfeasibleError, InputError
from planner.fleet.pool import FEW_PER_REPLICA, PoolSize, Shortfall, broken, prediction_levels, smallest_pool
from planner.methods.base import Prediction, same_band, unstable
from planner.methods.burst import IDLE_LOAD, Burst, PoolArrivals
from planner.plans import Alternative, EngineSettings, LatencyValue, Plan, PoolPlan, SearchReport
from planner.promise import Promise, Slo
from planner.question.files import SavedPool
from planner.question.inputs import PlanInputs
from planner.queueing.bursts import BurstSequence, rising
from planner.queueing.disaggregated import DecodeNodes, DecodeState, Pieces, PrefillNodes, end_to_end
from planner.queueing.memory import BLOCK_TOKENS, overflow_probability, preemption, safe_slots, slot_law
from planner.queueing.slots.chain import replica_dispersion
from planner.replica.engine import (
    DEFAULT_TOKEN_BUDGETS,
    MAX_NUM_SEQS_LIMIT,
    MODEL_LEN_STEP,
    UNLIMITED_BUDGET,
    EngineOption,
    engine_options,
)
from planner.units import format_count, format_duration, format_percent, format_usd
from planner.workload.pools import FleetMoments
from planner.workload.workload import Workload

__all__ = [
    "DECODE",
    "PREFILL",
    "Disaggregated",
    "is_disaggregated",
    "make_disaggregated",
    "plan_shapes",
    "pool_options",
]

PREFILL, DECODE = "prefill", "decode"
"""Names of the pools of such a fleet, by which a plan file is recognized."""

BANDS = {"ttft_s": (-0.05, 0.05), "tpot_s": (-0.05, 0.05), "e2e_s": (-0.05, 0.05)}
"""Errors against simulation with Poisson arrivals: docs/accuracy/disaggregated.md."""

WAIT_LEVELS = np.concatenate(
    (np.linspace(0.0, 0.9, 19), [0.93, 0.95, 0.965, 0.98, 0.985, 0.99, 0.993, 0.996, 0.998, 0.999, 0.9995])
)
"""Levels at which the wait behind bursts is known [1]."""

BURST_LOADS = 1.0 - np.geomspace(0.9, 0.004, 28)
"""Loads of a replica at which it is found."""

BURST_BAND = (-0.45, 2.0)
"""Truth over prediction - 1 of a TTFT that is all burst: the real Azure time stamps, where bursts bring long prompts, gave
-20% to +190% on 1 to 4 prefill replicas of three GPU types, and +320% once: a band that holds most of them, not all."""

MAX_STEPS = 4000
"""Pairs of pool sizes tried for an end-to-end promise before the cheapest found is taken."""


def is_disaggregated(pools: Sequence[SavedPool]) -> bool:
    """Whether the pools of a plan file are a prefill and a decode pool."""
    return {p.name for p in pools} == {PREFILL, DECODE}


def _burst_bands(usual: tuple[float, float], part: np.ndarray) -> tuple[tuple[float, float], ...]:
    """Bands of latencies of which `part` is the work of bursts, by level."""
    shares = np.clip(part, 0.0, 1.0).tolist()
    return tuple((usual[0] + p * (BURST_BAND[0] - usual[0]), usual[1] + p * (BURST_BAND[1] - usual[1])) for p in shares)


class PrefillPool:
    """The prefill pool as the pool sizer sees it: its latency is TTFT, the others are nan (not this pool's)."""

    def __init__(self, nodes: PrefillNodes, one_queue: bool, arrivals: PoolArrivals, overhead_s: float) -> None:
        self.nodes, self.one_queue, self.arrivals, self.overhead_s = nodes, one_queue, arrivals, overhead_s
        self._tables: dict[float, np.ndarray] = {}
        self._sequences: dict[tuple[tuple[float, float], ...], BurstSequence] = {}

    @property
    def capacity_per_s(self) -> float:
        """Prompts per second of one replica."""
        return self.nodes.capacity_per_s

    def wait(self, arrival_rate_per_s: float, replicas: int) -> Pieces:
        """Law of the wait for a replica: exact for Poisson arrivals, and what bursts add at every level."""
        calm = self.nodes.wait(arrival_rate_per_s, replicas, self.one_queue)
        burst = self._bursts(arrival_rate_per_s, replicas)
        if burst is None:
            return calm
        # the pieces follow each other: their left ends are the quantiles at the mass before them
        knots = np.interp(WAIT_LEVELS, np.cumsum(calm.mass) - calm.mass, calm.start)
        knots = knots + self._burst_wait(arrival_rate_per_s, replicas, burst)
        knots = np.maximum.accumulate(np.maximum(knots, 0.0))
        return Pieces(knots, np.append(np.diff(knots), 0.0), np.diff(WAIT_LEVELS, append=1.0))

    def _bursts(self, rate: float, replicas: int) -> Burst | None:
        """The bursts of the pool at a rate; ``None`` where there are none or nothing feels them."""
        burst = self.arrivals.at(rate)
        return burst if burst.present and rate > IDLE_LOAD * replicas * self.capacity_per_s else None

    def _burst_wait(self, rate: float, replicas: int, burst: Burst) -> np.ndarray:
        """Bursty minus Poisson quantiles at WAIT_LEVELS [s]."""
        if self.one_queue:
            return self._added(rate, self.nodes.law.mean / replicas, burst)
        # requests split at random: the load of a replica says it all, so a table over loads is made once a fleet rate
        table = self._tables.get(burst.fleet_rate)
        if table is None:
            found = [self._added(x * self.capacity_per_s, self.nodes.law.mean, burst) for x in BURST_LOADS]
            # one finite sequence of arrivals: its noise must not let a busier replica wait less
            table = np.stack([rising(column) for column in np.array(found).T], axis=1)
            self._tables[burst.fleet_rate] = table
        load = rate / (replicas * self.capacity_per_s)
        place = np.interp(-math.log1p(-load), -np.log1p(-BURST_LOADS), np.arange(len(BURST_LOADS)))
        low = min(int(place), len(BURST_LOADS) - 2)
        added: np.ndarray = table[low] + (place - low) * (table[low + 1] - table[low])
        # an idle replica meets no burst
        added *= min(1.0, load / BURST_LOADS[0])
        return added

    def _added(self, rate: float, service: float, burst: Burst) -> np.ndarray:
        bursty, poisson = self._sequence(burst.scales()), self._sequence(())
        added = bursty.waits(rate, service, WAIT_LEVELS) - poisson.waits(rate, service, WAIT_LEVELS)
        return np.asarray(np.maximum(added, 0.0))

    def _sequence(self, scales: tuple[tuple[float, float], ...]) -> BurstSequence:
        if scales not in self._sequences:
            self._sequences[scales] = BurstSequence(scales, self.nodes.service_s, self.nodes.weight)
        return self._sequences[scales]

    def predict(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`planner.methods.base.PoolModel`."""
        load = arrival_rate_per_s / (replicas * self.capacity_per_s)
        if load >= 1.0:
            return unstable(quantiles, load)
        ttft = self.nodes.first_token(self.wait(arrival_rate_per_s, replicas)).quantiles(quantiles) + self.overhead_s
        bands = {metric: same_band(quantiles, *band) for metric, band in BANDS.items()}
        if self._bursts(arrival_rate_per_s, replicas) is not None:
            calm = self.nodes.first_token(self.nodes.wait(arrival_rate_per_s, replicas, self.one_queue))
            part = 1.0 - (calm.quantiles(quantiles) + self.overhead_s) / ttft
            bands["ttft_s"] = _burst_bands(BANDS["ttft_s"], part)
        other = (math.nan,) * len(quantiles)
        return Prediction(
            quantiles=quantiles,
            ttft_s=tuple(ttft.tolist()),
            tpot_s=other,
            e2e_s=other,
            load=load,
            slot_occupancy=load,
            mean_running=load,
            wait_probability=self.nodes.wait_probability(arrival_rate_per_s, replicas, self.one_queue),
            bands=bands,
        )


class DecodePool:
    """The decode pool: its latency is TPOT, of requests with more than one output token; rates are of those requests."""

    def __init__(self, nodes: DecodeNodes, arrivals: PoolArrivals) -> None:
        self.nodes, self.arrivals = nodes, arrivals

    @property
    def capacity_per_s(self) -> float:
        """Requests per second of one replica."""
        return self.nodes.capacity_per_s

    def state(self, arrival_rate_per_s: float, replicas: int) -> DecodeState:
        """Occupancy of a node below capacity."""
        load = arrival_rate_per_s / (replicas * self.capacity_per_s)
        dispersion = self.arrivals.at(arrival_rate_per_s).pool_dispersion(self.nodes.relaxation_s(load))
        return self.nodes.solve(arrival_rate_per_s / replicas, replica_dispersion(dispersion, replicas, "random"))

    def predict(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`planner.methods.base.PoolModel`."""
        load = arrival_rate_per_s / (replicas * self.capacity_per_s)
        if load >= 1.0:
            return unstable(quantiles, load)
        state = self.state(arrival_rate_per_s, replicas)
        other = (math.nan,) * len(quantiles)
        return Prediction(
            quantiles=quantiles,
            ttft_s=other,
            tpot_s=tuple(self.nodes.tpot(state).quantiles(quantiles).tolist()),
            e2e_s=other,
            load=load,
            slot_occupancy=state.slot_occupancy,
            mean_running=state.mean_running,
            wait_probability=state.wait_probability,
            bands={metric: same_band(quantiles, *band) for metric, band in BANDS.items()},
        )


@dataclass(frozen=True, slots=True)
class Sizes:
    """Replicas of both pools and what they achieve.

    Parameters
    ----------
    prefill, decode
        Replicas that serve, predictions (the decode pool's holds E2E of whole requests), and what binds.
    """

    prefill: PoolSize
    decode: PoolSize


class Disaggregated:
    """A workload on one prefill engine and one decode engine; answers what any numbers of replicas achieve.

    Parameters
    ----------
    inputs
        The question.
    workload
        The traffic.
    prefill_option, decode_option
        Engines of the two pools, of one model.
    prefill
        The prefill pool of the same question and prefill engine, where it is known already.

    Raises
    ------
    InputError
        A profile without prefill times; memory that holds no request.
    """

    def __init__(
        self,
        inputs: PlanInputs,
        workload: Workload,
        prefill_option: EngineOption,
        decode_option: EngineOption,
        prefill: PrefillPool | None = None,
    ) -> None:
        self.inputs = inputs
        self.prefill_option, self.decode_option = prefill_option, decode_option
        rows = FleetMoments(workload, 0.0, inputs.chunk, inputs.cached_share)
        length, output, weight = rows.input, np.maximum(rows.output, 1.0), rows.weight / rows.weight.sum()
        self.mean_input, self.mean_output = float(weight @ length), float(weight @ output)
        self.longest = float(np.max(length + output))
        self.moving = output > 1.0
        self.decode_share = float(weight[self.moving].sum())
        self.levels = prediction_levels(inputs.promises)
        arrivals = workload.arrivals if inputs.burst == "auto" else None
        self.prefill = prefill or PrefillPool(
            PrefillNodes(_prefill_times(prefill_option, length, rows.cached), weight),
            inputs.routing == "jsq",
            PoolArrivals(arrivals),
            prefill_option.profile.api_overhead_s,
        )
        self.bytes_per_token = kv_bytes_per_token(decode_option.model)
        # every GPU of a group sends its part over its own link; the smaller group is the narrower path
        links = min(prefill_option.tp, decode_option.tp)
        self.seconds_per_token = 8.0 * self.bytes_per_token / (1e9 * inputs.kv_transfer_gbps * links)
        self.slots = 0
        self.kv_tokens = 0.0
        self.overflow = self.preemptions_per_1000 = 0.0
        self.slots_reason = ""
        self.warnings: list[str] = []
        self.decode: DecodePool | None = None
        if self.decode_share > 0.0:
            self._build_decode(
                length[self.moving],
                output[self.moving],
                weight[self.moving],
                PoolArrivals(arrivals, self.decode_share),
            )

    def _build_decode(self, length: np.ndarray, output: np.ndarray, weight: np.ndarray, arrivals: PoolArrivals) -> None:
        option = self.decode_option
        weight = weight / weight.sum()
        # rows of compact files may be fractional; a request that decodes at all decodes once at least
        decodes = np.maximum(output - 1.0, 1.0)
        context = length + 0.5 * (decodes + 1.0)
        time_share = weight * decodes / float(weight @ decodes)
        mean_context = float(time_share @ context)
        deviation = math.sqrt(max(float(time_share @ (context - mean_context) ** 2), 0.0))
        self._set_slots(length, output, weight)
        n = np.arange(self.slots + 1, dtype=np.float64)
        iteration = option.profile.iteration
        times = np.asarray(iteration.at_batch(float(self.slots)).time(n, n * mean_context))
        nodes = DecodeNodes(
            decodes,
            self.transfer_s(length),
            iteration.g * (context - mean_context),
            weight,
            times,
            iteration.g * deviation,
        )
        self.decode = DecodePool(nodes, arrivals)

    def _set_slots(self, length: np.ndarray, output: np.ndarray, weight: np.ndarray) -> None:
        """Sequences a decode node may run: the memory-safe number, as an engine that cannot evict cheaply wants it."""
        option, given = self.decode_option, self.inputs.max_num_seqs
        if option.kv == "reserved":
            slots, why = option.reserved_slots(self.longest), f"every slot reserves {self.longest:,.0f} tokens"
            if given is not None and given < slots:
                slots, why = given, "as given"
        else:
            # a node holds prompt and tokens so far, from the second token's iteration on
            law = slot_law(length + 1.0, np.maximum(output - 1.0, 1.0), weight, token_budget=UNLIMITED_BUDGET)
            safe = safe_slots(law, lambda n: option.kv_tokens(n) // BLOCK_TOKENS, max_slots=MAX_NUM_SEQS_LIMIT)
            slots, why = safe.slots, "the largest number whose KV cache seldom overflows"
            self.overflow, self.preemptions_per_1000 = safe.overflow, 1000.0 * safe.preemptions_per_request
            if slots == MAX_NUM_SEQS_LIMIT:
                why = "memory would allow more"
            if given is not None:
                if given > slots:
                    capacity = option.kv_tokens(given) / BLOCK_TOKENS
                    self.overflow = overflow_probability(law, given, capacity)
                    self.preemptions_per_1000 = 1000.0 * preemption(law, given, capacity).per_request
                    self.warnings.append(
                        f"max_num_seqs {given} is beyond the memory-safe {slots}: {self.overflow:.1%} of full iterations "
                        "would not fit"
                    )
                else:
                    self.overflow = self.preemptions_per_1000 = 0.0
                slots, why = given, "as given"
        if slots < 1:
            raise InputError(
                f"{option.model.name} on {option.gpu.name} x TP{option.tp}: a request of {self.longest:,.0f} tokens does "
                "not fit in a decode replica's memory"
            )
        self.slots, self.slots_reason, self.kv_tokens = slots, why, float(option.kv_tokens(slots))

    def transfer_s(self, prompt_tokens: np.ndarray | float) -> np.ndarray:
        """Time to move the KV cache of a prompt from its prefill to its decode node [s]."""
        return np.asarray(self.inputs.kv_transfer_base + self.seconds_per_token * np.asarray(prompt_tokens))

    # --- predictions ----------------------------------------------------------------------------------------------

    def predict(
        self, rate_per_s: float, prefills: int, decodes: int, levels: tuple[float, ...] | None = None
    ) -> tuple[Prediction, Prediction | None]:
        """Both pools at a rate of the fleet; E2E of whole requests stands with the decode pool (the prefill's without one)."""
        levels = self.levels if levels is None else levels
        first = self.prefill.predict(rate_per_s, prefills, levels)
        if self.decode is None:
            return replace(first, e2e_s=first.ttft_s), None
        second = self.decode.predict(rate_per_s * self.decode_share, decodes, levels)
        if first.load >= 1.0 or second.load >= 1.0:
            return first, replace(second, e2e_s=(math.inf,) * len(levels))
        wait = self.prefill.wait(rate_per_s, prefills)
        state = self.decode.state(rate_per_s * self.decode_share, decodes)
        law = end_to_end(self.prefill.nodes, wait, self.decode.nodes, state, self.moving)
        e2e = law.quantiles(levels) + self.prefill.overhead_s
        # as much of the TTFT as bursts make is as uncertain here
        part = np.array(
            [(high - BANDS["ttft_s"][1]) / (BURST_BAND[1] - BANDS["ttft_s"][1]) for _, high in first.bands["ttft_s"]]
        )
        bands = dict(second.bands) | {"e2e_s": _burst_bands(BANDS["e2e_s"], part * np.array(first.ttft_s) / e2e)}
        return first, replace(second, e2e_s=tuple(e2e.tolist()), bands=bands)

    # --- sizes ----------------------------------------------------------------------------------------------------

    def size(self, rate_per_s: float, promises: Sequence[Promise]) -> Sizes | Shortfall:
        """The cheapest numbers of replicas that keep the promises and the utilization cap."""
        inputs = self.inputs
        own = {m: [p for p in promises if p.metric == m] for m in ("ttft_s", "tpot_s", "e2e_s")}
        first = self._smallest(self.prefill, rate_per_s, own["ttft_s"])
        if isinstance(first, Shortfall):
            return first
        if self.decode is None:
            prediction = replace(first.prediction, e2e_s=first.prediction.ttft_s)
            nothing = PoolSize(0, prediction, "nobody decodes")
            if missed := broken(prediction, own["e2e_s"]):
                again = smallest_pool(
                    self.prefill, rate_per_s,
                    [*own["ttft_s"], *(Promise("ttft_s", p.limit_s, p.quantile) for p in own["e2e_s"])],
                    inputs.utilization_cap, inputs.min_replicas, self.levels,
                )  # fmt: skip
                if isinstance(again, Shortfall):
                    return Shortfall(missed, again.best_s)
                held = replace(again.prediction, e2e_s=again.prediction.ttft_s)
                return Sizes(PoolSize(again.replicas, held, f"{missed.label} (one replica fewer breaks it)"), nothing)
            return Sizes(replace(first, prediction=prediction), nothing)
        second = self._smallest(self.decode, rate_per_s * self.decode_share, own["tpot_s"])
        if isinstance(second, Shortfall):
            return second
        return self._for_end_to_end(rate_per_s, first, second, own["e2e_s"])

    def _smallest(
        self, pool: PrefillPool | DecodePool, rate: float, promises: Sequence[Promise]
    ) -> PoolSize | Shortfall:
        inputs = self.inputs
        return smallest_pool(pool, rate, promises, inputs.utilization_cap, inputs.min_replicas, self.levels)

    def _for_end_to_end(
        self, rate: float, first: PoolSize, second: PoolSize, promises: Sequence[Promise]
    ) -> Sizes | Shortfall:
        """From the sizes that keep TTFT and TPOT to the cheapest that also keep E2E: every pair on the frontier."""

        def at(prefills: int, decodes: int) -> Prediction:
            found = self.predict(rate, prefills, decodes)[1]
            assert found is not None
            return found

        def sizes(prefills: int, decodes: int, prediction: Prediction, why: str) -> Sizes:
            one, two = first, second
            if prefills != first.replicas:
                one = PoolSize(prefills, self.prefill.predict(rate, prefills, self.levels), why)
            two = PoolSize(decodes, prediction, why if decodes != second.replicas else second.binding)
            return Sizes(one, two)

        base = at(first.replicas, second.replicas)
        missed = broken(base, promises)
        if missed is None:
            return sizes(first.replicas, second.replicas, base, "")
        idle = self.predict(FEW_PER_REPLICA, 1, 1)[1]
        assert idle is not None
        if (hopeless := broken(idle, promises)) is not None:
            return Shortfall(hopeless, idle.held(hopeless.metric, hopeless.quantile))
        price_p, price_d = self.prefill_option.price, self.decode_option.price

        def keeps(prefills: int, decodes: int) -> bool:
            return broken(at(prefills, decodes), promises) is None

        def cost(prefills: int, decodes: int) -> float:
            return price_p.cost_of_need(prefills) + price_d.cost_of_need(decodes)

        # some pair that keeps the promises: both pools grow until one does
        prefills, decodes = first.replicas, second.replicas
        while not keeps(prefills, decodes):
            prefills, decodes = 2 * prefills, 2 * decodes
        best = (cost(prefills, decodes), prefills, decodes)
        for n in range(first.replicas, first.replicas + MAX_STEPS):
            if cost(n, second.replicas) >= best[0]:
                break
            # the most decode replicas that still make it cheaper, then the fewest that keep the promise
            most, step = second.replicas, 1
            while cost(n, most + step) < best[0]:
                most, step = most + step, 2 * step
            while step > 1:
                step //= 2
                if cost(n, most + step) < best[0]:
                    most += step
            if not keeps(n, most):
                continue
            low = second.replicas
            while low < most:
                middle = (low + most) // 2
                if keeps(n, middle):
                    most = middle
                else:
                    low = middle + 1
            best = (cost(n, most), n, most)
        _, n, decodes = best
        return sizes(n, decodes, at(n, decodes), f"{missed.label} (one replica fewer breaks it)")

    def cost_usd_per_hour(self, sizes: Sizes) -> float:
        """Cost of both pools [USD/hour]."""
        total = 0.0
        for option, size in ((self.prefill_option, sizes.prefill), (self.decode_option, sizes.decode)):
            if size.replicas:
                total += option.price.cost_usd_per_hour(option.price.bought(size.replicas))
        return total


def _prefill_times(option: EngineOption, length: np.ndarray, cached: np.ndarray) -> np.ndarray:
    """Time of an iteration with one whole prompt, its cached part left out [s]."""
    iteration = option.profile.iteration
    if iteration.b == iteration.c == iteration.a == 0.0:
        raise InputError(
            f"profile {option.profile.name} charges nothing for prefill: a prefill pool cannot be sized with it",
            "Take a measured, fitted or estimated profile, or --shape colocated.",
        )
    new = np.maximum((1.0 - cached) * length, 1.0)
    return np.asarray(iteration.time(0.0, 0.0, new, new * (np.maximum(length - new, 0.0) + 0.5 * (new + 1.0))))


# --- from the question to a plan ------------------------------------------------------------------------------------


def pool_options(inputs: PlanInputs, longest: float) -> list[EngineOption]:
    """One engine per GPU type and group: token budgets play no part here."""
    return engine_options(replace(inputs, token_budget=inputs.token_budget or DEFAULT_TOKEN_BUDGETS[0]), longest)


def plan_shapes(inputs: PlanInputs, workload: Workload) -> Plan:
    """The disaggregated fleet, or with ``shape: both`` the cheaper of the two shapes with the other beside it.

    Raises
    ------
    InputError, InfeasibleError
        As :func:`planner.fleet.assemble.make_plan`; with ``both`` only when neither shape keeps the promises.
    """
    from planner.fleet.assemble import make_plan

    if inputs.shape == "disaggregated":
        return make_disaggregated(inputs, workload)
    plans: dict[str, Plan] = {}
    reasons: dict[str, InfeasibleError | InputError] = {}
    for shape in ("colocated", "disaggregated"):
        try:
            plans[shape] = make_plan(replace(inputs, shape=shape), workload)
        except (InfeasibleError, InputError) as error:
            reasons[shape] = error
    if not plans:
        raise reasons["colocated"]
    shape = min(plans, key=lambda name: plans[name].cost_usd_per_hour)
    other = "disaggregated" if shape == "colocated" else "colocated"
    chosen = plans[shape]
    if other in plans:
        cost = plans[other].cost_usd_per_hour
        saved = 1.0 - chosen.cost_usd_per_hour / cost if cost > 0.0 else 0.0
        note = (
            f"{shape}: {format_usd(chosen.cost_usd_per_hour)}/hour; {other} would cost {format_usd(cost)}/hour "
            f"({format_percent(saved)} saved)"
        )
        alternative = Alternative(other, plans[other].pools)
    else:
        reason = str(reasons[other]).splitlines()[0]
        note = f"{other} does not keep the promises: {reason}"
        alternative = Alternative(other, (), reason)
    return replace(
        chosen, inputs=inputs.to_dict(), shape=shape, alternatives=(alternative,), notes=(*chosen.notes, note)
    )


def make_disaggregated(inputs: PlanInputs, workload: Workload) -> Plan:
    """The cheapest prefill and decode pools.

    Raises
    ------
    InputError
        Something in the question cannot be.
    InfeasibleError
        No pair of engines keeps the promises at any size.
    """
    from planner.fleet.assemble import arrival_rate_of

    rate = arrival_rate_of(inputs, workload)
    best: tuple[float, Disaggregated, Sizes] | None = None
    shortfalls: list[Shortfall] = []
    refused: list[InputError] = []
    options = pool_options(inputs, workload.max_total)
    pairs = [(p, d) for p in options for d in options if p.model.name == d.model.name]
    short = False
    known: dict[str, PrefillPool] = {}
    for prefill_option, decode_option in pairs:
        try:
            fleet = Disaggregated(inputs, workload, prefill_option, decode_option, known.get(prefill_option.label))
        except InputError as error:
            refused.append(error)
            continue
        known[prefill_option.label] = fleet.prefill
        sizes = fleet.size(rate, inputs.promises)
        if isinstance(sizes, Shortfall):
            shortfalls.append(sizes)
            continue
        if not _in_stock(fleet, sizes):
            short = True
            continue
        cost = fleet.cost_usd_per_hour(sizes)
        if best is None or cost < best[0]:
            best = (cost, fleet, sizes)
    if best is None:
        raise _infeasible(shortfalls, refused, short, inputs)
    return _assemble(best[1], best[2], rate, workload, len(pairs))


def _in_stock(fleet: Disaggregated, sizes: Sizes) -> bool:
    if not fleet.inputs.inventory:
        return True
    from planner.catalog.load import gpu as find_gpu

    used: dict[str, int] = {}
    for option, size in ((fleet.prefill_option, sizes.prefill), (fleet.decode_option, sizes.decode)):
        bought = option.price.bought(size.replicas) if size.replicas else 0
        used[option.gpu.name] = used.get(option.gpu.name, 0) + bought * option.profile.gpus
    stock = {find_gpu(name).name: count for name, count in fleet.inputs.inventory.items()}
    return all(count <= stock.get(name, count) for name, count in used.items())


def _infeasible(
    shortfalls: Sequence[Shortfall], refused: Sequence[InputError], short: bool, inputs: PlanInputs
) -> InfeasibleError | InputError:
    if shortfalls:
        worst = min(shortfalls, key=lambda s: s.best_s / s.promise.limit_s)
        p = worst.promise
        lines = [f"relax {p.label} to {format_duration(1.05 * worst.best_s)} or more"]
        if p.metric == "ttft_s":
            lines.append("a faster prefill: more GPUs per replica (--tp), a faster GPU (--gpu), a prefix cache")
        else:
            lines.append(
                "a faster link (--kv-transfer-gbps), memory with more bandwidth (--gpu), more GPUs per replica"
            )
        return InfeasibleError(
            f"disaggregated: {p.label} <= {format_duration(p.limit_s)} cannot be kept by any number of replicas: "
            f"idle pools need {format_duration(worst.best_s)}",
            "What would help:",
            lines,
        )
    if short:
        limits = ", ".join(f"{k}: {v}" for k, v in inputs.inventory.items())
        return InfeasibleError(f"no prefill and decode pools within the inventory ({limits}) keep the promises")
    return refused[0]


def _assemble(fleet: Disaggregated, sizes: Sizes, rate: float, workload: Workload, pairs: int) -> Plan:
    from planner.fleet.assemble import workload_summary

    inputs = fleet.inputs
    bands = [_band(fleet, rate, sizes, scale) for scale in (-1.0, 1.0)]
    pools = [_pool(fleet, PREFILL, sizes.prefill, rate, [b[0] for b in bands])]
    if fleet.decode is not None:
        decode_rate = rate * fleet.decode_share
        pools.append(_pool(fleet, DECODE, sizes.decode, decode_rate, [b[1] for b in bands]))
    cost = fleet.cost_usd_per_hour(sizes)
    return Plan(
        pools=tuple(pools),
        baseline=None,
        inputs=inputs.to_dict(),
        workload=workload_summary(workload),
        slo=Slo(promises=inputs.promises),
        arrival_rate_per_s=rate,
        method=inputs.method,
        search=SearchReport(pairs, pairs, cost, 0.0, f"{pairs} pair{'s' if pairs != 1 else ''} of engines, all P:D"),
        assumptions=tuple(_assumptions(fleet, workload)),
        warnings=tuple(fleet.warnings),
        explanation=tuple(_explanation(fleet, sizes, rate)),
        version=planner.__version__,
        shape="disaggregated",
    )


def _band(fleet: Disaggregated, rate: float, sizes: Sizes, sign: float) -> tuple[int, int]:
    """Replicas if every iteration took ``1 -+ band`` times as long: the same pools, faster traffic, tighter promises."""
    band = max(fleet.prefill_option.profile.band, fleet.decode_option.profile.band)
    scale = max(1.0 + sign * band, 0.05)
    found = fleet.size(
        rate * scale, [Promise(p.metric, p.limit_s / scale, p.quantile, p.scope) for p in fleet.inputs.promises]
    )
    if isinstance(found, Shortfall):
        return sizes.prefill.replicas, sizes.decode.replicas
    return found.prefill.replicas, found.decode.replicas


def _pool(fleet: Disaggregated, name: str, size: PoolSize, rate: float, band: list[int]) -> PoolPlan:
    inputs, first = fleet.inputs, name == PREFILL
    option = fleet.prefill_option if first else fleet.decode_option
    profile, prediction = option.profile, size.prediction
    limits = {(p.metric, p.quantile): p.limit_s for p in inputs.promises}
    latency = []
    metrics = ("ttft_s", "e2e_s") if first and fleet.decode is None else ("ttft_s",) if first else ("tpot_s", "e2e_s")
    for metric in metrics:
        bands = prediction.bands.get(metric, same_band(prediction.quantiles, -0.1, 0.1))
        for q, value, (below, above) in zip(prediction.quantiles, getattr(prediction, metric), bands, strict=True):
            low, high = value * (1.0 + below) * (1.0 - profile.band), value * (1.0 + above) * (1.0 + profile.band)
            latency.append(LatencyValue(metric, q, value, low, high, limits.get((metric, q))))
    bought = option.price.bought(size.replicas)
    pool = fleet.prefill if first else fleet.decode
    assert pool is not None
    slots = 1 if first else fleet.slots
    return PoolPlan(
        name=name,
        low_tokens=0.0,
        high_tokens=float(option.max_model_len),
        gamma=1.0,
        share=1.0 if first else fleet.decode_share,
        compressed_share=0.0,
        arrival_rate_per_s=rate,
        mean_input_tokens=fleet.mean_input if first else 0.0,
        mean_output_tokens=0.0
        if first and fleet.decode
        else fleet.mean_output / (1.0 if first else fleet.decode_share),
        gpu=option.gpu.name,
        tp=option.tp,
        profile=profile.name,
        provenance=profile.provenance,
        replicas=bought,
        spares=bought - size.replicas,
        slots=slots,
        kv_tokens=float(option.kv_tokens(1)) if first else fleet.kv_tokens,
        capacity_per_s=pool.capacity_per_s,
        load=prediction.load,
        slot_occupancy=prediction.slot_occupancy,
        wait_probability=prediction.wait_probability,
        overflow_probability=0.0 if first else fleet.overflow,
        preemptions_per_1000=0.0 if first else fleet.preemptions_per_1000,
        latency=tuple(latency),
        binding=size.binding,
        cost_usd_per_hour=option.price.cost_usd_per_hour(bought),
        settings=_settings(fleet, option, first, slots),
        replicas_low=min(option.price.bought(min(band)), bought),
        replicas_high=max(option.price.bought(max(band)), bought),
        warnings=() if first else tuple(fleet.warnings),
    )


def _settings(fleet: Disaggregated, option: EngineOption, first: bool, slots: int) -> EngineSettings:
    longest = int(MODEL_LEN_STEP * math.ceil(option.max_model_len / MODEL_LEN_STEP))
    budget = longest if first else max(option.token_budget, slots)
    reasons = {
        "max_model_len": f"requests of up to {option.max_model_len:,} tokens, in whole KV blocks",
        "max_num_seqs": "one whole prompt at a time" if first else fleet.slots_reason,
        "max_num_batched_tokens": "a whole prompt per iteration" if first else "a token of every sequence",
        "tensor_parallel_size": "as given"
        if fleet.inputs.tp
        else "the smallest group that holds weights and a request",
        "gpu_memory_utilization": "as given",
    }
    return EngineSettings(
        max_model_len=min(longest, option.model.max_context),
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        tensor_parallel_size=option.tp,
        gpu_memory_utilization=option.memory_utilization,
        kv_cache_dtype=option.model.kv_dtype,
        batching=PREFILL if first else DECODE,
        reasons=reasons,
    )


def _assumptions(fleet: Disaggregated, workload: Workload) -> list[str]:
    inputs = fleet.inputs
    lines = []
    for option in {
        fleet.prefill_option.label: fleet.prefill_option,
        fleet.decode_option.label: fleet.decode_option,
    }.values():
        lines.append(
            f"{option.model.name} ({option.model.weight_dtype}) on {option.gpu.name} x TP{option.tp}: "
            f"iteration times {option.profile.trust}, ${option.price.usd_per_gpu_hour:g} per GPU and hour"
        )
    typical = float(fleet.transfer_s(fleet.mean_input))
    lines.append(
        f"KV cache over {inputs.kv_transfer_gbps:g} Gbit/s per GPU plus {format_duration(inputs.kv_transfer_base)}: "
        f"{fleet.bytes_per_token / 1024:,.0f} KiB per token, {format_duration(typical)} for a prompt of mean length "
        "(--kv-transfer-gbps, --kv-transfer-base); transfers do not delay each other"
    )
    spread = "idle replicas pull prompts from one queue" if fleet.prefill.one_queue else "requests are split at random"
    lines.append(f"a prefill replica takes one whole prompt at a time; {spread}; decode replicas are chosen at random")
    if inputs.burst == "poisson" or not workload.arrivals.dispersion:
        lines.append(
            "Poisson arrivals assumed" if inputs.burst == "poisson" else workload.arrivals.assumed or "Poisson assumed"
        )
    else:
        lines.append("bursts as in the trace, by its dispersion of counts (--burst poisson ignores them)")
    if workload.provenance.length_split:
        lines.append(f"lengths: {workload.provenance.length_split}")
    return lines


def _explanation(fleet: Disaggregated, sizes: Sizes, rate: float) -> list[str]:
    inputs, lines = fleet.inputs, []
    counts = {PREFILL: sizes.prefill.replicas, DECODE: sizes.decode.replicas}
    for name, size in ((PREFILL, sizes.prefill), (DECODE, sizes.decode)):
        if not size.replicas:
            continue
        line = f"{name}: {size.replicas:,} replica{'s' if size.replicas != 1 else ''}, fixed by {size.binding}."
        if size.replicas > inputs.min_replicas:
            fewer = {**counts, name: size.replicas - 1}
            first, second = fleet.predict(rate, fewer[PREFILL], max(fewer[DECODE], 1))
            pool = first if name == PREFILL or second is None else second
            missed = [
                (p, value)
                for p in inputs.promises
                for part in (first, second)
                if part is not None and (value := part.held(p.metric, p.quantile)) > p.limit_s
            ]
            if pool.load >= 1.0:
                line += f" With {size.replicas - 1:,} the pool could not keep up."
            elif missed:
                worst, value = max(missed, key=lambda pair: pair[1] / pair[0].limit_s)
                line += f" With {size.replicas - 1:,}: {worst.label} {format_duration(value)}."
            else:
                line += f" With {size.replicas - 1:,}: load {pool.load:.2f}."
        lines.append(line)
    if counts[DECODE]:
        lines.append(
            f"P:D is {counts[PREFILL]}:{counts[DECODE]} ({counts[PREFILL] / counts[DECODE]:.2f}); "
            f"{format_percent(fleet.decode_share)} of the requests decode."
        )
    spare = _headroom(fleet, rate, counts[PREFILL], counts[DECODE])
    lines.append(f"The fleet keeps its promises up to {format_count(spare * rate)} requests/s ({spare:.2f}x).")
    return lines


def _headroom(fleet: Disaggregated, rate: float, prefills: int, decodes: int) -> float:
    """Largest factor on the traffic within all promises and the utilization cap, to 2%, rounded down."""
    inputs = fleet.inputs

    def holds(factor: float) -> bool:
        first, second = fleet.predict(rate * factor, prefills, max(decodes, 1))
        parts = [first] if second is None else [first, second]
        if max(p.load for p in parts) > inputs.utilization_cap * (1.0 + 1e-9):
            return False
        return not any(p.held(o.metric, o.quantile) > o.limit_s for p in parts for o in inputs.promises)

    loads = [p.load for p in fleet.predict(rate, prefills, max(decodes, 1)) if p is not None]
    low, high = 1.0, max(inputs.utilization_cap / max(loads), 1.0)
    if holds(high):
        return high
    while high / low > 1.02:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
