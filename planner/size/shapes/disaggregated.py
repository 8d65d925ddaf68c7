"""Shape ``disaggregated``: prefill and decode on pools of their own, sized together where a promise spans both."""

from __future__ import annotations

import itertools
import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from planner.catalog.kv import kv_bytes_per_token
from planner.errors import InfeasibleError, InputError
from planner.plans import SavedPool, SearchReport
from planner.predict.contract import PoolModel, Prediction, Scaled, unstable
from planner.predict.disaggregated import DecodePool
from planner.predict.records import Replicas
from planner.predict.replayed import ReplayPool
from planner.predict.replica import (
    MAX_NUM_SEQS_LIMIT,
    UNLIMITED_BUDGET,
    USUAL_TOKEN_BUDGET,
    EngineOption,
    Slots,
    group_why,
    in_blocks,
    memory_safe_slots,
    replica_with,
    reserved_slots,
)
from planner.predict.sessions import SessionPool
from planner.promise import Promise
from planner.question.compiled import CompiledQuestion, Promises
from planner.queueing.memory import slot_law
from planner.shared.remarks import Remark
from planner.size.explain import beyond, unkept
from planner.size.fleet import Fleet, Shape, Solved, serving
from planner.size.grid import engine_choices
from planner.size.pool import (
    Margin,
    Pool,
    Shortfall,
    Size,
    evaluate_pool,
    fits,
    prefix_cache,
    smallest_pool,
    traffic_of,
    unsure,
    when_idle,
)
from planner.size.search import FloatArray
from planner.size.shapes.colocated import standing_engines
from planner.units import format_percent
from planner.workload.pools import PoolLaw, State, own_tokens

PREFILL, DECODE = "prefill", "decode"
"""Names of the pools of such a fleet, by which a plan file is recognized."""

MAX_STEPS = 4000
"""Pairs of pool sizes tried for an end-to-end promise before the cheapest found is taken."""

_SLOT_REASONS = {
    "overflow": "the largest number whose KV cache seldom overflows",
    "preemptions": "the largest number whose KV cache seldom overflows",
    "max_slots": "memory would allow more",
}


class Disaggregated(Fleet):
    """A workload on one prefill engine and one decode engine; answers what any numbers of replicas achieve.

    Parameters
    ----------
    question
        What is asked.
    prefill_option, decode_option
        Engines of the two pools, of one model.
    prefills
        Prefill pools of the same question that are known already, by their engine and what an answer's token takes [s].

    Raises
    ------
    InputError
        A profile without prefill times; memory that holds no request.
    """

    linked = True
    headroom_step = 1.02

    def __init__(
        self,
        question: CompiledQuestion,
        prefill_option: EngineOption,
        decode_option: EngineOption,
        prefills: dict[tuple[str, float], ReplayPool] | None = None,
    ) -> None:
        super().__init__(question, (), question.promises.levels())
        self.prefill_option, self.decode_option = prefill_option, decode_option
        asked = replace(question.traffic, p_c=0.0, route_on="total")
        rows = replace(asked, cache=False).moments(question.inputs.chunk)
        # what prefill replicas find of prompts that come back, where they keep all
        cached = asked.moments(question.inputs.chunk).cached
        law = rows.law(State(0.0), State(rows.top))
        assert law is not None
        length, output, weight = rows.input, np.maximum(rows.output, 1.0), rows.weight / rows.weight.sum()
        self.law = replace(law, upper=State(float(prefill_option.max_model_len)))
        self.mean_input, self.mean_output = float(weight @ length), float(weight @ output)
        self.longest = float(np.max(length + output))
        self.moving = output > 1.0
        self.decode_share = float(weight[self.moving].sum())
        sending = question.traffic.sending
        if sending.in_flight < math.inf:
            raise InputError(
                "in_flight: prefill and decode pools with a limit in flight are not modelled", "Take --shape colocated."
            )
        self.bytes_per_token = kv_bytes_per_token(decode_option.model)
        # every GPU of a group sends its part over its own link; the smaller group is the narrower path
        links = min(prefill_option.tp, decode_option.tp)
        self.seconds_per_token = 8.0 * self.bytes_per_token / (1e9 * question.inputs.kv_transfer_gbps * links)
        self._cached_share = float(weight @ np.broadcast_to(cached, weight.shape))
        self.slots = Slots(0, "")
        self._traffic = traffic_of(question.traffic, replace(self.law, cached_share=cached))
        first = Replicas(
            1,
            prefill_option.profile.iteration,
            kv_tokens=math.inf if question.traffic.sessions is None else float(prefill_option.kv_tokens(1)),
            routing=question.routing.name,
            engine="prefill",
        )
        capacity = self._prompts_per_s(replace(self.law, cached_share=cached))
        decode = None
        if self.decode_share > 0.0:
            moving = self.moving
            decode = self._decode_pool(length[moving], output[moving], weight[moving], first, capacity)
        key = prefill_option.label, self._answer_step_s(decode)
        prefills = {} if prefills is None else prefills
        if key not in prefills:
            prefills[key] = self._prefill_pool(first, key[1])
        self.pools = [self._pool(PREFILL, self.law, prefill_option, prefills[key])]
        if decode is not None:
            law = replace(self.law, share=self.decode_share, upper=State(float(decode_option.max_model_len)))
            self.pools.append(self._pool(DECODE, law, decode_option, decode))

    @property
    def helps_at(self) -> float:
        """Prompts waiting for prefill replicas from which on decode replicas compute new ones; inf = never."""
        asked = self.question.inputs.prefill_queue
        return math.inf if asked is None or not self.decode_share else float(asked)

    @property
    def decode_budget(self) -> float:
        """Tokens of an iteration of a decode replica; of no effect where it computes no prompts."""
        helps = self.helps_at < math.inf
        return float(max(self.decode_option.token_budget, self.slots.count)) if helps else math.inf

    def _answer_step_s(self, decode: PoolModel | None) -> float:
        """About what each token of an answer takes, to a twentieth [s]: sessions come back to their prefix after it; 0 without."""
        if self.question.traffic.sessions is None or decode is None:
            return 0.0
        step = decode.unloaded((0.5,)).value("tpot_s", 0.5)
        return float(1.05 ** round(math.log(step) / math.log(1.05)))

    def _prompts_per_s(self, law: PoolLaw) -> float:
        """Prompts a prefill replica computes at most [1/s]."""
        times = _prefill_times(self.prefill_option, law.input_tokens, law.cached_share)
        return 1.0 / float(law.weight @ times / law.weight.sum())

    def _prefill_pool(self, first: Replicas, answer_step_s: float) -> ReplayPool:
        """Prefill nodes, each with a cache of the prompts that come back where the workload has sessions."""
        question, overhead = self.question, self._overhead_s
        sessions = question.traffic.sessions
        if sessions is None:
            return ReplayPool(self._traffic, first, overhead, self._prompts_per_s)
        prefilled = sessions.prefilled(self.transfer_s(sessions.input_tokens) + answer_step_s * sessions.output_tokens)
        cache = prefix_cache(question, self.prefill_option)
        return SessionPool(self._traffic, first, overhead, prefilled, cache, self._prompts_per_s)

    def _decode_pool(
        self, length: FloatArray, output: FloatArray, weight: FloatArray, first: Replicas, prompts_per_s: float
    ) -> DecodePool:
        """Decode nodes for requests that decode at all."""
        option, question, weight = self.decode_option, self.question, weight / weight.sum()
        decodes, context = _decode_steps(length, output)
        self.slots = self._decode_slots(length, decodes, weight)
        kv_tokens = float(option.kv_tokens(self.slots.count))
        # as many as slots and memory hold, each at the mean context: what a full node completes
        mean = float(weight @ (decodes * context)) / float(weight @ decodes)
        full = min(float(self.slots.count), kv_tokens / mean)
        iteration = option.profile.iteration.at_batch(full)
        capacity = full / (float(weight @ decodes) * float(iteration.time(full, full * mean, context_max=mean)))
        second = Replicas(
            1,
            option.profile.iteration,
            self.slots.count,
            kv_tokens=kv_tokens,
            routing=question.routing.name,
            shared_prefix=option.shared_prefix,
            token_budget=self.decode_budget,
        )
        if self.helps_at < math.inf and iteration.apart:
            raise InputError(
                f"prefill_queue {self.helps_at:.0f}: the engine does not compute chunks of prompts beside its decodes",
                "Take an engine that does: --engine vllm.",
            )
        sessions = question.traffic.sessions
        return DecodePool(
            self._traffic,
            first,
            second,
            (prompts_per_s, capacity),
            self.decode_share,
            self.transfer_s,
            self._overhead_s,
            sessions,
            None if sessions is None else prefix_cache(question, self.prefill_option),
            self.helps_at,
        )

    def _decode_slots(self, length: FloatArray, decodes: FloatArray, weight: FloatArray) -> Slots:
        """Sequences a decode node may run: the memory-safe number, as an engine that cannot evict cheaply wants it."""
        option = self.decode_option
        if option.kv == "reserved":
            slots = reserved_slots(option, self.longest)
        else:
            # a node holds prompt and tokens so far, from the second token's iteration on
            own = own_tokens(length, option.shared_prefix)
            blocks = slot_law(own + 1.0, decodes, weight, token_budget=UNLIMITED_BUDGET)
            slots = memory_safe_slots(option, blocks, MAX_NUM_SEQS_LIMIT, _SLOT_REASONS, tell_all=True)
        # slots as given: what the sampler keeps for so many leaves no cache for one long request
        if slots.count < 1 or option.kv_tokens(slots.count) < self.longest:
            raise InputError(
                f"{option.model.name} on {option.gpu.name} x {option.parallel}: a request of {self.longest:,.0f} tokens does "
                "not fit in a decode replica's memory"
            )
        return slots

    def transfer_s(self, prompt_tokens: FloatArray | float) -> FloatArray:
        """Time from a prompt's end to its KV cache being at its decode node [s]: of layers that are sent while later ones are
        computed what the prompt does not hide, the last layer at least."""
        inputs, tokens = self.question.inputs, np.asarray(prompt_tokens, dtype=float)
        moved = self.seconds_per_token * tokens
        if inputs.kv_transfer_layerwise:
            layers = self.decode_option.model.layers
            computed = _prefill_times(self.prefill_option, tokens, np.full_like(tokens, self._cached_share))
            moved = np.maximum(moved / layers, moved - computed * (layers - 1) / layers)
        return np.asarray(inputs.kv_transfer_base + moved)

    # --- predictions ----------------------------------------------------------------------------------------------

    @property
    def prefills(self) -> PoolModel:
        """The prefill pool in whole replicas."""
        return self.pools[0].model

    @property
    def prefill(self) -> PoolModel:
        """The same of single copies."""
        return self.prefills.single

    @property
    def decodes(self) -> PoolModel:
        """The decode pool in whole replicas, where anybody decodes."""
        return self.pools[1].model

    @property
    def decode(self) -> DecodePool | None:
        """The same of single copies; ``None`` where nobody decodes."""
        found = self.decodes.single if len(self.pools) > 1 else None
        assert found is None or isinstance(found, DecodePool)
        return found

    def _behind(self, prefills: int) -> PoolModel:
        """The decode pool in whole replicas behind so many prefill replicas."""
        assert self.decode is not None
        pool = self.decode.beside(prefills * self.prefill_option.copies)
        pool.joint = bool(self.promises.joint)
        return _in_replicas(pool, self.decode_option)

    def predict(self, rate_per_s: float, counts: Sequence[int], quick: bool = False) -> list[Prediction]:
        """See :meth:`planner.size.fleet.Fleet.predict`; E2E of whole requests stands with the decode pool."""
        first, second = self.pair(rate_per_s, counts[0], counts[-1], quick=quick)
        return [first] if second is None else [first, second]

    def pair(
        self,
        rate_per_s: float,
        prefills: int,
        decodes: int,
        levels: tuple[float, ...] | None = None,
        quick: bool = False,
    ) -> tuple[Prediction, Prediction | None]:
        """Both pools at a rate of the fleet; E2E of whole requests stands with the decode pool (the prefill's without one)."""
        levels = self.levels if levels is None else levels
        first = evaluate_pool(self.prefills, rate_per_s, prefills, levels, quick)
        if self.decode is None:
            return first.telling(e2e_s=first.latencies["ttft_s"]), None
        behind = self._behind(prefills)
        if first.load >= 1.0:
            load = rate_per_s * self.decode_share / (decodes * behind.capacity_per_s)
            return first, replace(unstable(levels, load), load=load)
        second = evaluate_pool(behind, rate_per_s * self.decode_share, decodes, levels, quick)
        if self.helps_at < math.inf:
            # a first token comes from either pool
            bands = {**first.bands, **{name: second.bands[name] for name in second.bands if name == "ttft_s"}}
            means = {**first.means, **{name: second.means[name] for name in second.means if name == "ttft_s"}}
            first = replace(first, bands=bands, means=means).telling(ttft_s=second.latencies["ttft_s"])
        if not self.promises.joint:
            # TTFT is told of the prefill pool, by all requests
            second = second.telling(ttft_s=(math.nan,) * len(levels))
        return first, second

    def size_of(
        self, k: int, rate_per_s: float, promises: Promises, start: int, quick: bool = False
    ) -> Pool | Shortfall:
        """See :meth:`planner.size.fleet.Fleet.size_of`; both pools are sized where a promise is about both."""
        found = self.sizes(rate_per_s / self.pools[k].law.share, promises, quick)
        return found if isinstance(found, Shortfall) else found[k]

    def as_engines_see(self) -> Disaggregated:
        """See :meth:`planner.size.fleet.Fleet.as_engines_see`: an engine's clock stands while KV caches travel."""
        inputs = replace(self.question.inputs, kv_transfer_base=0.0, kv_transfer_gbps=sys.float_info.max)
        return self.routed(replace(self.question, inputs=inputs))

    def seen_in(self, k: int) -> tuple[str, ...]:
        """See :meth:`planner.size.fleet.Fleet.seen_in`: no engine sees a request from first to last."""
        if self.decode is None:
            return "ttft_s", "e2e_s"
        return ("tpot_s",) if k > 0 else ("ttft_s",)

    def promises_on(self, k: int) -> tuple[Promise, ...]:
        """See :meth:`planner.size.fleet.Fleet.promises_on`: TTFT is the prefill pool's and TPOT the decode pool's."""
        others = "ttft_s" if k > 0 else "tpot_s"
        return tuple(p for p in self.promises.latency if p.metric != others)

    def pool_at(self, k: int, rate_per_s: float, replicas: int, levels: tuple[float, ...]) -> Prediction:
        """See :meth:`planner.size.fleet.Fleet.pool_at`: the other pool matters to promises about both."""
        if self.decode is None:
            return self.pair(rate_per_s, replicas, 0, levels)[0]
        if math.isinf(self.helps_at) and all(p.metric in ("ttft_s", "tpot_s") for p in self.promises.latency):
            return super().pool_at(k, rate_per_s, replicas, levels)
        rate = rate_per_s / self.pools[k].law.share
        others = max(1, math.ceil(self.counts[1 - k] * rate / self.rate - 1e-9))
        prefills, decodes = (replicas, others) if k == 0 else (others, replicas)
        first, second = self.pair(rate, prefills, decodes, levels)
        assert second is not None
        if max(first.load, second.load) >= 1.0:
            return unstable(levels, max(first.load, second.load))
        if k > 0:
            return second
        bands = {**second.bands, "ttft_s": first.bands["ttft_s"]}
        latencies = {**second.latencies, "ttft_s": first.latencies["ttft_s"]}
        return replace(first, latencies=latencies, bands=bands, together=second.together)

    @property
    def _overhead_s(self) -> float:
        """What comes before the engine [s]."""
        return self.prefill_option.profile.api_overhead_s

    @property
    def own_promises(self) -> tuple[Promise, ...]:
        """Every request passes both pools: what one promises holds for all."""
        return self.promises.latency

    @property
    def shared_promises(self) -> tuple[Promise, ...]:
        """None beyond those."""
        return ()

    # --- sizes ----------------------------------------------------------------------------------------------------

    def sizes_for(
        self, rate_per_s: float, margins: Sequence[Margin], near: Sequence[int] | None = None, quick: bool = False
    ) -> list[Pool] | Shortfall:
        """See :meth:`planner.size.fleet.Fleet.sizes_for`."""
        return self.sizes(rate_per_s, self.promises, quick, margins[0])

    def sizes(
        self, rate_per_s: float, promises: Promises, quick: bool = False, margin: Margin | None = None
    ) -> list[Pool] | Shortfall:
        """Both pools with the fewest replicas that keep other promises; by a sample of the requests where it is to be `quick`."""
        margin = self.margins(promises.confidence)[0] if margin is None else margin
        found = self._sizes(rate_per_s, promises, quick, margin)
        if isinstance(found, Shortfall):
            return found
        return [pool.sized(*size) for pool, size in zip(self.pools, found, strict=True)]

    def _sizes(self, rate_per_s: float, promises: Promises, quick: bool, margin: Margin) -> list[Size] | Shortfall:
        """See :meth:`sizes`."""
        ttft, tpot, e2e = (
            tuple(p for p in promises.parts if p.metric == metric) for metric in ("ttft_s", "tpot_s", "e2e_s")
        )
        quick = quick and self.decode is not None
        both, of_first, of_second = (*e2e, *promises.joint), ttft, tpot
        if self.helps_at < math.inf:
            # what prefill replicas are late for the others do
            both, of_first, of_second = (*ttft, *both), (), ()
        first = smallest_pool(self.prefills, rate_per_s, promises.only(of_first), 1, self.levels, None, quick, margin)
        if isinstance(first, Shortfall):
            return first
        if self.decode is None:
            return self._without_decode(rate_per_s, first, promises, (*ttft, *e2e), margin)
        rate = rate_per_s * self.decode_share
        behind = self._behind(first[0])
        second = smallest_pool(behind, rate, promises.only(of_second), 1, self.levels, None, quick, margin)
        if isinstance(second, Shortfall):
            return second
        if quick and not both and self.helps_at == math.inf:
            return [first, second]
        return self._for_end_to_end(rate_per_s, first, second, (*tpot, *both), quick, margin)

    def least_cost(self) -> float:
        """A cost no numbers of replicas stay below: prefill sized for its TTFT, decode by its capacity [USD/hour]."""
        ttft = tuple(p for p in self.promises.latency if p.metric == "ttft_s" and math.isinf(self.helps_at))
        margin = self.margins(self.promises.confidence)[0]
        first = smallest_pool(self.prefills, self.rate, self.promises.only(ttft), 1, self.levels, None, True, margin)
        if isinstance(first, Shortfall):
            return math.inf
        cost = self.prefill_option.price.least_cost_usd_per_hour(first[0])
        if self.decode is None:
            return cost
        needed = self.rate * self.decode_share / (self.promises.utilization_cap * self.decodes.capacity_per_s)
        return cost + self.decode_option.price.least_cost_usd_per_hour(
            max(needed * (1.0 - 1e-9), self.promises.min_replicas)
        )

    def _without_decode(
        self, rate: float, first: Size, promises: Promises, latency: Sequence[Promise], margin: Margin
    ) -> list[Size] | Shortfall:
        """The prefill pool alone, where nobody decodes: the first token is the last."""
        both = promises.only(self._as_first_tokens(latency))
        size = smallest_pool(self.prefills, rate, both, first[0], self.levels, None, False, margin)
        if isinstance(size, Shortfall):
            return size
        n, found, why = size
        return [(n, found.telling(e2e_s=found.latencies["ttft_s"]), why if n > first[0] else first[2])]

    @staticmethod
    def _as_first_tokens(latency: Sequence[Promise]) -> tuple[Promise, ...]:
        """Promises where an answer has one token."""
        return tuple(
            replace(p, metric="ttft_s") if p.metric == "e2e_s" else p
            for p in latency
            if p.metric in ("ttft_s", "e2e_s")
        )

    def _for_end_to_end(
        self,
        rate: float,
        first: Size,
        second: Size,
        promises: Sequence[Promise],
        quick: bool,
        margin: Margin,
    ) -> list[Size] | Shortfall:
        """From the sizes that keep TTFT and TPOT to the cheapest that also keep what both make: every pair on the frontier."""

        def keeps(prefills: int, decodes: int) -> bool:
            behind = self._behind(prefills).under(margin.slow)
            return behind.keeps(rate * self.decode_share, decodes, promises, sure=not quick)

        n, decodes, why = first[0], second[0], None
        if promises and not keeps(n, decodes):
            slow = self.decodes.under(margin.slow)
            idle = when_idle(slow, promises, self.levels)
            if idle is not None and idle.excess > 1.0:
                return unsure(idle, self.decodes, slow, self.levels, margin)
            base = self._behind(n).under(margin.slow).look(rate * self.decode_share, decodes, self.levels)
            missed = max(promises, key=lambda p: base.value(p.metric, p.quantile) / p.limit_s)
            cheapest = self._cheapest_pair(n, decodes, keeps)
            if cheapest is None:
                return Shortfall(missed, base.value(missed.metric, missed.quantile))
            n, decodes = cheapest
            why = Remark("promise", {"promise": missed.label})
        predictions = [Prediction.unknown()] * 2 if quick else self.predict(rate, (n, decodes))
        return [
            (count, found, own if why is None or count == alone else why)
            for (alone, _, own), count, found in zip((first, second), (n, decodes), predictions, strict=True)
        ]

    def _cheapest_pair(self, least_p: int, least_d: int, keeps: Callable[[int, int], bool]) -> tuple[int, int] | None:
        """The cheapest numbers of prefill and decode replicas that keep a promise which both can help to keep; ``None`` where
        none do, as where sessions are found less often by more replicas."""
        price_p, price_d = self.prefill_option.price, self.decode_option.price

        def cost(prefills: int, decodes: int) -> float:
            return price_p.cost_of_need(prefills) + price_d.cost_of_need(decodes)

        # some pair that keeps the promises: both pools grow until one does
        prefills, decodes = least_p, least_d
        while not keeps(prefills, decodes):
            if prefills > MAX_STEPS * least_p:
                return None
            prefills, decodes = 2 * prefills, 2 * decodes
        best = (cost(prefills, decodes), prefills, decodes)
        for n in range(least_p, least_p + MAX_STEPS):
            # the most decode replicas that still make it cheaper, then the fewest that keep the promise
            most = price_d.most_below(best[0] - price_p.cost_of_need(n))
            if most < least_d:
                break
            if keeps(n, most):
                fewest = least_d + bisect_left(range(least_d, most), True, key=partial(keeps, n))
                best = (cost(n, fewest), n, fewest)
        return best[1], best[2]

    def keeps(self, rate_per_s: float) -> bool:
        """See :meth:`planner.size.fleet.Fleet.keeps`."""
        prefills, decodes = self.counts[0], self.counts[-1]
        if self.decode is None:
            return self.prefills.keeps(rate_per_s, prefills, self._as_first_tokens(self.promises.latency))
        first = tuple(p for p in self.promises.latency if p.metric == "ttft_s" and math.isinf(self.helps_at))
        both = tuple(p for p in self.promises.latency if p not in first)
        if first and not self.prefills.keeps(rate_per_s, prefills, first):
            return False
        return not both or self._behind(prefills).keeps(rate_per_s * self.decode_share, decodes, both)

    def margins(self, confidence: float) -> list[Margin]:
        """See :meth:`planner.size.fleet.Fleet.margins`: those of the less known of its engines for both."""
        return [max(super().margins(confidence), key=lambda margin: margin.sd)] * len(self.pools)

    def routed(self, question: CompiledQuestion) -> Disaggregated:
        """See :meth:`planner.size.fleet.Fleet.routed`."""
        fleet = Disaggregated(question, self.prefill_option, self.decode_option)
        return fleet.sized([replace(p, model=own.model) for p, own in zip(self.pools, fleet.pools, strict=True)])

    # --- pools ----------------------------------------------------------------------------------------------------

    def _pool(self, name: str, law: PoolLaw, option: EngineOption, single: PoolModel) -> Pool:
        """Either pool, of no size yet, with the slots, memory and settings of its replicas."""
        first = name == PREFILL
        slots = Slots(1, "one whole prompt at a time") if first else self.slots
        longest = in_blocks(option.max_model_len)
        reasons = {
            "max_model_len": f"requests of up to {option.max_model_len:,} tokens, in whole KV blocks",
            "max_num_seqs": slots.why,
            "max_num_batched_tokens": "a whole prompt per iteration" if first else "a token of every sequence",
            "tensor_parallel_size": group_why(self.question.inputs, option.parallel, "weights and a request"),
            "gpu_memory_utilization": "as given",
        }
        budget = longest if first else max(option.token_budget, slots.count)
        setup = replica_with(option, slots, longest, budget, name, reasons)
        return Pool(law, option, setup, _in_replicas(single, option), self.rate * law.share, name=name)

    def work_tokens(self, k: int) -> tuple[float, float]:
        """See :meth:`planner.size.fleet.Fleet.work_tokens`: each token is counted where it is made or read."""
        if self.decode is None:
            return self.mean_input, self.mean_output
        return (self.mean_input, 0.0) if k == 0 else (0.0, self.mean_output / self.decode_share)

    def metrics(self, k: int) -> tuple[str, ...]:
        """See :meth:`planner.size.fleet.Fleet.metrics`."""
        if k > 0:
            # a joint promise is of requests that have passed both
            return ("ttft_s", "tpot_s", "e2e_s") if self.promises.joint else ("tpot_s", "e2e_s")
        return ("ttft_s",) if self.decode is not None else ("ttft_s", "e2e_s")

    # --- what is said of it ---------------------------------------------------------------------------------------

    @property
    def doors(self) -> Sequence[Pool]:
        """See :meth:`planner.size.fleet.Fleet.doors`: requests wait, and are given up, before their first token."""
        return self.pools[:1]

    def summary(self) -> Iterator[str]:
        """How the pools stand to each other."""
        if self.decode is not None:
            prefills, decodes = self.counts
            yield (
                f"P:D is {prefills}:{decodes} ({prefills / decodes:.2f}); "
                f"{format_percent(self.decode_share)} of the requests decode."
            )
        yield from super().summary()

    def assumptions(self) -> Iterator[Remark]:
        """Transfers, and what a replica takes at a time."""
        inputs = self.question.inputs
        yield Remark(
            "kv_transfer",
            {
                "gbps": inputs.kv_transfer_gbps,
                "base_s": inputs.kv_transfer_base,
                "kib_per_token": self.bytes_per_token / 1024,
                "mean_s": float(self.transfer_s(self.mean_input)),
            },
        )
        routing = self.question.routing
        spread = "idle replicas pull prompts from one queue" if routing.pooled else "requests are split at random"
        if routing.affinity and isinstance(self.prefill, SessionPool):
            spread = "prompts go where their prefix is"
        yield Remark("prefill_replica", {"spread": spread})
        if self.helps_at < math.inf:
            yield Remark("decode_helps", {"waiting": self.helps_at})
        if isinstance(self.prefill, SessionPool):
            yield Remark("prefill_caches")


def _in_replicas(pool: PoolModel, option: EngineOption) -> PoolModel:
    """A pool of single copies as one of replicas."""
    return pool if option.copies == 1 else Scaled(pool, option.copies)


def _prefill_times(option: EngineOption, length: FloatArray, cached: FloatArray) -> FloatArray:
    """Time of an iteration with one whole prompt, its cached part left out [s]."""
    iteration = option.profile.iteration
    if iteration.b == iteration.c == iteration.a == 0.0:
        raise InputError(
            f"profile {option.profile.name} charges nothing for prefill: a prefill pool cannot be sized with it",
            "Take a measured, fitted or estimated profile, or --shape colocated.",
        )
    new = np.maximum((1.0 - cached) * length, 1.0)
    return np.asarray(iteration.time(0.0, 0.0, new, new * (np.maximum(length - new, 0.0) + 0.5 * (new + 1.0))))


def _decode_steps(length: FloatArray, output: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Iterations of requests at a decode node, and what they read in the mean of them [tokens]."""
    # rows of compact files may be fractional; a request that decodes at all decodes once at least
    decodes = np.maximum(output - 1.0, 1.0)
    return decodes, length + 0.5 * (decodes + 1.0)


def pool_options(question: CompiledQuestion) -> list[EngineOption]:
    """One engine per GPU type and group: token budgets play no part here."""
    budget = question.inputs.token_budget[:1] or (USUAL_TOKEN_BUDGET,)
    if question.inputs.speculate is not None:
        raise InputError(
            "speculate: prefill and decode pools that speculate are not modelled", "Take --shape colocated."
        )
    found = engine_choices(replace(question, inputs=replace(question.inputs, token_budget=budget)))
    # copies are compared where nothing else holds the model or they were asked for
    return [option for option in found if option.copies == 1] or list(found)


class _DisaggregatedShape(Shape):
    """See the module."""

    divides_roles = True

    def solve(self, question: CompiledQuestion) -> Solved:
        """See :meth:`planner.size.fleet.Shape.solve`: every pair of engines."""
        best: Disaggregated | None = None
        too_large: Disaggregated | None = None
        shortfalls: list[Shortfall] = []
        refused: list[InputError] = []
        options = pool_options(question)
        pairs = [(p, d) for p, d in itertools.product(options, options) if p.model.name == d.model.name]
        known: dict[tuple[str, float], ReplayPool] = {}
        fleets: list[tuple[float, Disaggregated]] = []
        for first, second in pairs:
            try:
                fleet = Disaggregated(question, first, second, known)
            except InputError as error:
                refused.append(error)
                continue
            fleets.append((fleet.least_cost(), fleet))
        for least, fleet in sorted(fleets, key=lambda pair: pair[0]):
            if best is not None and least >= best.cost_usd_per_hour:
                break
            sizes = fleet.sizes(question.traffic.rate_per_s, fleet.promises, quick=True)
            if isinstance(sizes, Shortfall):
                shortfalls.append(sizes)
                continue
            fleet = fleet.sized(sizes)
            within = fits(question, fleet.pools)
            rival = best if within else too_large
            if rival is None or fleet.cost_usd_per_hour < rival.cost_usd_per_hour:
                best, too_large = (fleet, too_large) if within else (best, fleet)
        if best is None:
            raise _infeasible(question, shortfalls, refused, too_large)
        if not question.quick:
            sizes = best.size(question.traffic.rate_per_s)
            if isinstance(sizes, Shortfall):
                raise unkept(sizes, "disaggregated: ", "idle pools need", [])
            best = best.sized(sizes)
        cost, count = best.cost_usd_per_hour, len(pairs)
        return Solved(
            best, SearchReport(count, count, cost, 0.0, f"{count} pair{'s' if count != 1 else ''} of engines, all P:D")
        )

    def stands(self, pools: Sequence[SavedPool]) -> bool:
        """A prefill and a decode pool, by name."""
        return {PREFILL} <= {p.name for p in pools} <= {PREFILL, DECODE}

    def rebuild(self, question: CompiledQuestion, pools: Sequence[SavedPool]) -> Disaggregated:
        """See :meth:`planner.size.fleet.Shape.rebuild`."""
        by_name = {p.name: p for p in pools}
        ordered = [by_name[name] for name in (PREFILL, DECODE) if name in by_name]
        budget = question.inputs.token_budget
        engines = []
        for saved in ordered:
            own = standing_engines(question, saved)
            engines.append(pool_options(replace(own, inputs=replace(own.inputs, token_budget=budget)))[0])
        fleet = Disaggregated(question, engines[0], engines[-1])
        # a pool that nobody needs any more stands aside
        there = zip(fleet.pools, ordered, strict=False)
        return fleet.sized([replace(p, replicas=serving(saved), bought=saved.replicas) for p, saved in there])


def _infeasible(
    question: CompiledQuestion,
    shortfalls: Sequence[Shortfall],
    refused: Sequence[InputError],
    too_large: Disaggregated | None,
) -> InfeasibleError | InputError:
    """Why there is no fleet, and what would help."""
    if too_large is not None:
        return beyond(question, too_large.pools)
    if not shortfalls:
        return refused[0]
    helps = {
        "ttft_s": "a faster prefill: more GPUs per replica (--tp), a faster GPU (--gpu), a prefix cache",
    }
    usual = "a faster link (kv_transfer_gbps), memory with more bandwidth (--gpu), more GPUs per replica"
    worst = min(shortfalls, key=lambda s: s.excess)
    return unkept(worst, "disaggregated: ", "idle pools need", [helps.get(worst.promise.metric, usual)])


SHAPE = _DisaggregatedShape()
