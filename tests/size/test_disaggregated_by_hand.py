"""Prefill and decode pools, reckoned by hand from four requests, by enumeration and from one question to another."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import planner as fo
from planner.plans import SearchReport
from planner.predict.contract import Prediction
from planner.predict.price import PriceRule
from planner.question.compiled import CompiledQuestion, compile_question
from planner.question.files import saved_pools
from planner.question.options import PlanInputs
from planner.routing import find_routing
from planner.shared.remarks import Remark
from planner.size.pool import Pool, Shortfall, smallest_pool
from planner.size.shapes import find_shape
from planner.size.shapes.disaggregated import SHAPE, Disaggregated, _decode_steps, pool_options

pytestmark = pytest.mark.usefixtures("few_replayed", "without_chances")

INPUTS, OUTPUTS = np.array([100.0, 300.0, 1000.0, 4000.0]), np.array([10.0, 200.0, 50.0, 1.0])
FOUR = fo.Workload.from_arrays(INPUTS, OUTPUTS, name="four")
"""Of which the longest has its one token from the prefill pool."""

ASKED: dict[str, Any] = {
    "ttft": 1.0, "tp": 1, "burst": "poisson", "confidence": 0.5, "rate": 60.0, "shape": "disaggregated", "cdf": "four",
    "routing": "random",
}  # fmt: skip
KV_BYTES = 131072.0
"""Of a token of Llama 3.1 8B in 16 bits: 2 x 32 layers x 8 heads x 128 x 2 bytes."""


def asked(workload: fo.Workload = FOUR, **options: Any) -> CompiledQuestion:
    return compile_question(PlanInputs.from_dict({**ASKED, **options}), workload)


def fleet(workload: fo.Workload = FOUR, counts: tuple[int, ...] | None = None, **options: Any) -> Disaggregated:
    question = asked(workload, **options)
    engines = pool_options(question)
    found = Disaggregated(question, engines[0], engines[-1])
    if counts is None:
        return found
    return found.resized(counts[: len(found.pools)])


def test_what_a_prefill_and_a_decode_replica_do_at_most() -> None:
    for cached in (0.0, 0.5):
        model = fleet(cached_share=cached)
        times = model.prefill_option.profile.iteration
        new = (1.0 - cached) * INPUTS
        # each new token looks at those before it, cached ones too
        pairs = [sum(c + k for k in range(1, int(n) + 1)) for n, c in zip(new, cached * INPUTS, strict=True)]
        alone = [times.time(0.0, 0.0, n, p) for n, p in zip(new.tolist(), pairs, strict=True)]
        assert model.prefill.capacity_per_s == pytest.approx(1.0 / np.mean(alone))
    model = fleet()
    assert model.decode is not None and model.decode_share == 0.75
    # the first token is the prefill pool's: 9, 199 and 49 iterations, each with its prompt and the tokens so far
    contexts = [np.mean([p + k for k in range(1, int(o))]) for p, o in zip(INPUTS[:3], OUTPUTS[:3], strict=True)]
    mean = float(np.average(contexts, weights=OUTPUTS[:3] - 1.0))
    n = min(model.slots.count, model.decode_option.kv_tokens(model.slots.count) / mean)
    step = model.decode_option.profile.iteration.at_batch(float(n)).time(n, n * mean, context_max=mean)
    assert model.decode.capacity_per_s == pytest.approx(n / (np.mean(OUTPUTS[:3] - 1.0) * step), rel=0.01)
    decodes, context = _decode_steps(np.array([100.0, 100.0, 100.0]), np.array([11.0, 2.0, 1.2]))
    assert decodes.tolist() == [10.0, 1.0, 1.0] and context.tolist() == [105.5, 101.0, 101.0]


def test_the_link_is_that_of_the_smaller_group() -> None:
    question = asked(tp="1,2,4", kv_transfer_gbps=50.0, kv_transfer_base=0.01)
    engines = {o.tp: o for o in pool_options(question)}
    for (first, second), links in {(1, 1): 1, (1, 4): 1, (2, 4): 2, (4, 2): 2, (4, 4): 4}.items():
        model = Disaggregated(question, engines[first], engines[second])
        assert float(model.transfer_s(3000.0)) == pytest.approx(0.01 + 3000.0 * 8.0 * KV_BYTES / (50e9 * links))


@pytest.mark.parametrize("gbps", [1.0, 100.0])
def test_layers_that_travel_while_later_ones_are_computed(gbps: float) -> None:
    """Of 32 layers the last leaves when the prompt is done: a fast link has sent all others, a slow one not what it took longer
    than 31 of them were computed."""
    model = fleet(counts=(3, 2), kv_transfer_gbps=gbps, kv_transfer_layerwise=True)
    wire = 3000.0 * 8.0 * KV_BYTES / (gbps * 1e9)
    prompt = model.prefill_option.profile.iteration.time(0.0, 0.0, 3000.0, 3000.0 * 3001.0 / 2.0)
    assert (wire > prompt) == (gbps == 1.0)
    left = wire - prompt * 31.0 / 32.0 if gbps == 1.0 else wire / 32.0
    assert float(model.transfer_s(3000.0)) == pytest.approx(0.002 + left)


def test_tokens_are_counted_where_they_are_made_or_read() -> None:
    model = fleet(counts=(3, 2))
    assert model.work_tokens(0) == (1350.0, 0.0)
    # of those that decode
    assert model.work_tokens(1) == (0.0, pytest.approx((10.0 + 200.0 + 50.0 + 1.0) / 4.0 / 0.75))
    assert [p.rate_per_s for p in model.pools] == [60.0, 45.0]
    assert [p.name for p in model.pools] == ["prefill", "decode"] and [p.bought for p in model.pools] == [3, 2]
    single = fleet(fo.Workload.from_arrays(INPUTS, np.ones(4), name="one token"), counts=(3,))
    assert single.work_tokens(0) == (1350.0, 1.0) and [p.name for p in single.pools] == ["prefill"]


def test_each_pool_answers_for_its_part() -> None:
    model = fleet(counts=(3, 2), tpot="50ms", e2e="20s")
    assert (model.metrics(0), model.metrics(1)) == (("ttft_s",), ("tpot_s", "e2e_s"))
    assert (model.seen_in(0), model.seen_in(1)) == (("ttft_s",), ("tpot_s",))
    assert [p.metric for p in model.promises_on(0)] == ["ttft_s", "e2e_s"]
    assert [p.metric for p in model.promises_on(1)] == ["tpot_s", "e2e_s"]
    assert model.own_promises == model.promises.latency and model.shared_promises == ()
    assert [p.name for p in model.doors] == ["prefill"] and model.linked
    joint = fleet(counts=(3, 2), ttft=None, goodput="90%:ttft=1s,tpot=50ms")
    assert joint.metrics(1) == ("ttft_s", "tpot_s", "e2e_s")
    first, second = joint.pair(60.0, 3, 2)
    assert second is not None and second.value("ttft_s", 0.9) == pytest.approx(first.value("ttft_s", 0.9), rel=0.2)
    apart = model.pair(60.0, 3, 2)[1]
    assert apart is not None and math.isnan(apart.latencies["ttft_s"][0])
    single = fleet(fo.Workload.from_arrays(INPUTS, np.ones(4), name="one token"), counts=(3,))
    assert single.metrics(0) == single.seen_in(0) == ("ttft_s", "e2e_s")
    (alone,) = single.predict(60.0, [3])
    assert (
        alone.latencies["e2e_s"] == alone.latencies["ttft_s"]
        and single.look(60.0)[0].latencies["e2e_s"] == single.look(60.0)[0].latencies["ttft_s"]
    )


def test_settings_say_why() -> None:
    model = fleet(counts=(3, 2))
    first, second = (p.setup.settings for p in model.pools)
    # 4,000 and an output of 200 at most, in blocks of 16
    assert first.reasons["max_model_len"] == "requests of up to 4,208 tokens, in whole KV blocks"
    assert (first.reasons["max_num_seqs"], first.reasons["max_num_batched_tokens"]) == (
        "one whole prompt at a time", "a whole prompt per iteration"
    )  # fmt: skip
    assert second.reasons["max_num_batched_tokens"] == "a token of every sequence"
    assert first.reasons["tensor_parallel_size"] == second.reasons["tensor_parallel_size"] == "as given"
    assert first.reasons["gpu_memory_utilization"] == "as given"
    assert first.max_model_len == second.max_model_len == 16 * math.ceil(4200 / 16)
    assert second.reasons["max_num_seqs"] in (
        "memory would allow more", "the largest number whose KV cache seldom overflows"
    )  # fmt: skip
    setups = [p.setup for p in model.pools]
    assert setups[0].slots == 1 and setups[1].slots == model.slots.count
    for setup, option in zip(setups, (model.prefill_option, model.decode_option), strict=True):
        assert setup.kv_tokens == option.kv_tokens(setup.slots)
    assert (setups[1].overflow_probability, setups[1].preemptions_per_1000) == (
        model.slots.overflow_probability, model.slots.preemptions_per_1000
    )  # fmt: skip
    few = fleet(counts=(3, 2), gpu="l4", max_num_seqs=9).pools[1].setup
    assert few.slots == few.settings.max_num_seqs == 9 and few.settings.reasons["max_num_seqs"] == "as given"
    tight = fleet(counts=(3, 2), gpu="l4").pools[1].setup.settings
    assert tight.reasons["max_num_seqs"] == "the largest number whose KV cache seldom overflows"
    # the engine's setting is that of both stages together
    staged = fleet(counts=(3, 2), model="llama-3.1-70b", tp=8, pp=2).pools[1].setup
    assert staged.settings.max_num_seqs == 2 * staged.slots and staged.settings.pipeline_parallel_size == 2
    reserved = fleet(counts=(3, 2), kv="reserved").pools[1].setup
    assert reserved.slots == reserved.kv_tokens // 4001


def test_more_than_the_prefill_pool_bears_is_late_behind_it_too() -> None:
    model = fleet()
    assert model.decode is not None
    rate = 1.5 * model.prefill.capacity_per_s
    first, second = model.pair(rate, 1, 2)
    assert second is not None and first.load == pytest.approx(1.5)
    assert second.load == pytest.approx(rate * 0.75 / (2 * model.decode.capacity_per_s))
    assert set(second.latencies["e2e_s"]) == set(first.latencies["ttft_s"]) == {math.inf}


def test_a_fleet_as_engines_see_it_has_no_link() -> None:
    model = fleet(counts=(3, 2), kv_transfer_gbps=2.0)
    seen = model.as_engines_see()
    assert float(seen.transfer_s(4000.0)) == 0.0
    assert [(p.replicas, p.bought) for p in seen.pools] == [(3, 3), (2, 2)]
    (_, slow), (_, quick) = model.look(60.0), seen.look(60.0)
    # the median of E2E is of a prompt of 300 or 1,000
    assert quick.value("e2e_s", 0.5) < slow.value("e2e_s", 0.5) - 0.1
    assert seen.pools[0].law.share == 1.0 and seen.pools[1].law.share == 0.75


def test_another_rate_of_one_pool_keeps_the_proportions_of_the_other() -> None:
    model = fleet(counts=(4, 2), tpot="50ms")
    for k in (0, 1):
        own = model.pools[k].model.predict(30.0, 3, (0.5, 0.9))
        assert model.pool_at(k, 30.0, 3, (0.5, 0.9)) == own
    both = fleet(counts=(4, 2), e2e="20s")
    # 30/s of decoding are 40 of all: two thirds of the plan's 60, so 2.67 prefill replicas are 3
    found, pair = both.pool_at(1, 30.0, 5, (0.5, 0.9)), both.pair(40.0, 3, 5, (0.5, 0.9))
    assert found == pair[1]
    # and 40/s of prompts stand beside 1.33 decode replicas
    first, second = both.pair(40.0, 5, 2, (0.5, 0.9))
    found = both.pool_at(0, 40.0, 5, (0.5, 0.9))
    assert second is not None
    assert (found.latencies["ttft_s"], found.latencies["tpot_s"], found.latencies["e2e_s"], found.load) == (
        first.latencies["ttft_s"],
        second.latencies["tpot_s"],
        second.latencies["e2e_s"],
        first.load,
    )
    assert found.bands["ttft_s"] == first.bands["ttft_s"] and found.bands["e2e_s"] == second.bands["e2e_s"]
    full = both.pool_at(0, 1000.0, 1, (0.5, 0.9))
    assert full.load > 1.0 and full.latencies["e2e_s"] == (math.inf, math.inf)
    single = fleet(fo.Workload.from_arrays(INPUTS, np.ones(4), name="one token"), counts=(3,))
    assert single.pool_at(0, 60.0, 4, (0.5, 0.9)) == single.pair(60.0, 4, 0, (0.5, 0.9))[0]


def test_iterations_that_are_longer_are_so_in_both_pools() -> None:
    model = fleet(counts=(3, 2))
    assert model.decode is not None
    sd = model.margins(0.5)[0].sd
    slow = model.slowed(1.0)
    assert slow.decode is not None and slow is not model and slow.counts == [3, 2]
    for longer, own in ((slow.prefill, model.prefill), (slow.decode, model.decode)):
        assert longer.capacity_per_s == pytest.approx(own.capacity_per_s / math.exp(sd))
    before = model.look(20.0)[1].value("tpot_s", 0.5)
    # a little more: batches are larger where each iteration takes longer
    assert slow.look(20.0)[1].value("tpot_s", 0.5) == pytest.approx(math.exp(sd) * before, rel=0.1)
    assert model.slowed(0.0).look(20.0)[1].value("tpot_s", 0.5) == before


@cache
def looked(counts: tuple[int, ...], rate: float) -> tuple[Prediction, ...]:
    """What is seen of the pools, whatever is promised."""
    return tuple(fleet(counts=counts).look(rate))


@pytest.mark.parametrize(
    "promises",
    [
        {},
        {"tpot": "12ms"},
        {"e2e": "2.2s"},
        {"ttft": None, "tpot": "9.4ms"},
        {"ttft": 0.3, "tpot": "12ms", "e2e": "3s"},
    ],
)
def test_a_fleet_keeps_what_its_pools_are_seen_to_keep(promises: dict[str, Any]) -> None:
    seen = set()
    for counts in itertools.product((1, 2, 4), (1, 2)):
        model = fleet(counts=counts, **promises)
        for rate in (15.0, 45.0, 100.0):
            found = looked(counts, rate)
            values = [
                (found[p.metric != "ttft_s"].value(p.metric, p.quantile) / p.limit_s) for p in model.promises.latency
            ]
            alone = {p.metric for p in model.promises.latency} == {"tpot_s"}
            # within a few percent of the limit the two may differ: one ends as soon as the promise is broken; and what is behind
            # prefill replicas that do not keep up decodes none the slower
            if all(abs(v - 1.0) > 0.05 for v in values) and not (alone and found[0].load >= 1.0):
                kept = max(values) <= 1.0
                assert model.keeps(rate) == kept, (counts, rate, values)
                seen.add(kept)
    assert seen == {True, False}


def test_the_less_known_engine_says_how_sure_both_have_to_be() -> None:
    question = asked(gpu=["h100", "l40s"], confidence=0.81)
    first, second = pool_options(question)
    wide = replace(second, profile=replace(second.profile, band=2.0 * first.profile.band))
    one, two, other = (
        Disaggregated(question, *pair).margins(0.81)[0] for pair in ((first, first), (first, wide), (wide, first))
    )
    assert two == other and two.sd > one.sd
    # two independent errors: 0.9 each
    from statistics import NormalDist

    assert one.deviations == pytest.approx(NormalDist().inv_cdf(0.81))
    assert two.deviations == pytest.approx(NormalDist().inv_cdf(0.9))


def test_sizes_are_those_of_the_pools_alone_where_no_promise_spans_both() -> None:
    model = fleet(ttft=0.4, tpot="12ms", rate=200.0)
    sizes = model.sizes(200.0, model.promises)
    assert isinstance(sizes, list)
    limits = {p.metric: p for p in model.promises.latency}
    one = smallest_pool(model.prefills, 200.0, model.promises.only((limits["ttft_s"],)))
    other = smallest_pool(model.decodes, 150.0, model.promises.only((limits["tpot_s"],)))
    assert isinstance(one, tuple) and isinstance(other, tuple)
    assert [s.replicas for s in sizes] == [one[0], other[0]]
    assert sizes[0].prediction.value("ttft_s", 0.99) <= 0.4 and sizes[1].prediction.value("tpot_s", 0.99) <= 0.0121
    quick = model.sizes(200.0, model.promises, quick=True)
    assert isinstance(quick, list) and [abs(a.replicas - b.replicas) <= 1 for a, b in zip(quick, sizes, strict=True)]
    assert all(math.isnan(s.prediction.load) for s in quick)
    # the same of one pool, at a rate of its own
    planned = fleet(ttft=0.4, tpot="12ms", rate=200.0, counts=tuple(s.replicas for s in sizes))
    own = [planned.size_of(k, rate, planned.promises, 1) for k, rate in ((0, 200.0), (1, 150.0))]
    assert [s.replicas for s in own if isinstance(s, Pool)] == [s.replicas for s in sizes]
    again = model.sized(quick).size(200.0)
    assert isinstance(again, list) and [s.replicas for s in again] == [s.replicas for s in sizes]
    # a cost that nothing undercuts: as many for the first tokens, and decode replicas full to the cap
    price = model.prefill_option.price.least_usd_per_replica_hour
    full = 150.0 / (0.85 * model.decodes.capacity_per_s)
    assert model.least_cost() == pytest.approx(price * (quick[0].replicas + math.ceil(full)))
    assert math.isinf(fleet(ttft=0.001).least_cost())


def test_a_promise_about_both_is_kept_by_the_cheapest_pair() -> None:
    """Every pair about it, each replayed."""
    model = fleet(ttft=2.0, e2e="p90=1.65s", rate=90.0)
    sizes = model.sizes(90.0, model.promises, quick=True)
    assert isinstance(sizes, list)
    found = [s.replicas for s in sizes]
    assert any(s.binding == Remark("promise", {"promise": "P90 E2E"}) for s in sizes)

    def kept(prefills: int, decodes: int) -> bool:
        if (
            0.85 * prefills * model.prefill.capacity_per_s < 90.0
            or 0.85 * decodes * model.decodes.capacity_per_s < 67.5
        ):
            return False
        first, second = model.pair(90.0, prefills, decodes, quick=True)
        assert second is not None
        return first.value("ttft_s", 0.99) <= 2.0 and second.value("e2e_s", 0.9) <= 1.65

    assert kept(*found)
    total = sum(found)
    assert not any(kept(n, total - 1 - n) for n in range(1, total - 1))


def test_where_no_pair_keeps_a_promise_about_both_the_least_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disaggregated, "_cheapest_pair", lambda *given: None)
    model, alone = fleet(ttft=2.0, e2e="p90=1.65s", rate=90.0), fleet(ttft=2.0, rate=90.0)
    least = alone.sizes(90.0, alone.promises, quick=True)
    found = model.sizes(90.0, model.promises, quick=True)
    assert isinstance(least, list) and isinstance(found, Shortfall) and found.promise.label == "P90 E2E"
    second = model.pair(90.0, *(s.replicas for s in least), quick=True)[1]
    assert second is not None and found.best_s == second.value("e2e_s", 0.9) > 1.65


@pytest.mark.parametrize("promises", [{"tpot": "1ms"}, {"e2e": "20ms", "ttft": 5.0}, {"ttft": "1ms"}])
def test_what_idle_pools_break_no_pair_keeps(promises: dict[str, Any]) -> None:
    model = fleet(**promises)
    found = model.sizes(60.0, model.promises, quick=True)
    metric = next(iter(promises)) + "_s"
    assert isinstance(found, Shortfall) and found.promise.metric == metric
    pool = model.prefills if metric == "ttft_s" else model.decodes
    assert found.best_s == pytest.approx(pool.unloaded(model.levels).value(metric, 0.99))


@pytest.mark.parametrize(("p_usd", "d_usd"), [(1.0, 1.0), (1.0, 5.0), (7.0, 2.0)])
@pytest.mark.parametrize("work", [(3.0, 3.0), (2.0, 40.0), (31.0, 4.0), (0.4, 0.4)])
def test_the_cheapest_pair_is_that_of_enumeration(p_usd: float, d_usd: float, work: tuple[float, float]) -> None:
    """A latency that both shorten: a / prefills + b / decodes within 1."""
    model = Disaggregated.__new__(Disaggregated)
    model.prefill_option, model.decode_option = (  # type: ignore[assignment]
        SimpleNamespace(price=PriceRule(1, usd)) for usd in (p_usd, d_usd)
    )
    least = max(1, math.ceil(work[0] / 3)), max(1, math.ceil(work[1] / 3))

    def keeps(prefills: int, decodes: int) -> bool:
        return work[0] / prefills + work[1] / decodes <= 1.0

    best = min(
        p_usd * n + d_usd * k for n, k in itertools.product(range(least[0], 400), range(least[1], 400)) if keeps(n, k)
    )
    found = model._cheapest_pair(*least, keeps)
    assert found is not None and keeps(*found) and found[0] >= least[0] and found[1] >= least[1]
    assert p_usd * found[0] + d_usd * found[1] == pytest.approx(best)
    assert model._cheapest_pair(1, 1, lambda n, k: False) is None


def test_where_nobody_decodes_the_first_token_is_the_last() -> None:
    ones = fo.Workload.from_arrays(INPUTS, np.ones(4), name="one token")

    def sized(**options: Any) -> Pool:
        model = fleet(ones, rate=200.0, **options)
        found = model.sizes(200.0, model.promises)
        assert isinstance(found, list) and len(found) == 1
        assert found[0].prediction.latencies["e2e_s"] == found[0].prediction.latencies["ttft_s"]
        return found[0]

    alone, both, loose = sized(ttft=0.3), sized(ttft=5.0, e2e=0.3), sized(ttft=0.3, e2e=9.0)
    assert alone.replicas == both.replicas == loose.replicas > 1
    assert alone.binding.values == loose.binding.values == {"promise": "P99 TTFT"}
    assert both.binding.code == "promise"
    late = fleet(ones, rate=200.0, ttft=5.0, e2e=0.001)
    assert isinstance(late.sizes(200.0, late.promises), Shortfall)
    standing = fleet(ones, counts=(alone.replicas,), rate=200.0, ttft=0.3, e2e=9.0)
    assert standing.keeps(200.0) and not standing.keeps(400.0)
    assert standing.least_cost() == standing.cost_usd_per_hour


def test_another_gateway_has_the_same_replicas() -> None:
    model = fleet(counts=(3, 2))
    routed = model.routed(replace(model.question, routing=find_routing("least")))
    assert (
        routed.counts == [3, 2]
        and routed.question.routing.name == "least"
        and [p.bought for p in routed.pools] == [3, 2]
    )
    # one queue waits less than a split
    assert routed.look(60.0)[0].value("ttft_s", 0.99) < model.look(60.0)[0].value("ttft_s", 0.99)


def test_a_plan_is_rebuilt_as_it_was() -> None:
    plan = fo.plan(FOUR, **{k: v for k, v in ASKED.items() if k != "cdf"}, redundancy=1)
    question, saved = asked(redundancy=1), saved_pools(plan)
    assert SHAPE.stands(saved) and SHAPE.stands(saved[:1]) and not SHAPE.stands(saved[1:])
    assert not SHAPE.stands([replace(saved[0], name="all")]) and find_shape("disaggregated") is SHAPE
    model = SHAPE.rebuild(question, saved[::-1])
    assert [(p.name, p.bought, p.replicas) for p in model.pools] == [
        (p.name, p.replicas, p.replicas - 1) for p in plan.pools
    ]
    assert [p.binding.code for p in model.pools] == ["stands", "stands"]
    with pytest.raises(fo.InputError, match=r"pool decode: has no replicas that serve \(2 of 2 are spares\)"):
        SHAPE.rebuild(question, [saved[0], replace(saved[1], replicas=2, spares=2)])


def test_engines_of_either_pool_are_of_any_type() -> None:
    solved = SHAPE.solve(asked(gpu=["h100", "l40s"], tpot="30ms", rate=100.0))
    found, question = solved.fleet, asked(gpu=["h100", "l40s"], tpot="30ms", rate=100.0)
    costs = {}
    for first, second in itertools.product(pool_options(question), repeat=2):
        model = Disaggregated(question, first, second)
        sizes = model.sizes(100.0, model.promises)
        if isinstance(sizes, list):
            costs[first.gpu.name, second.gpu.name] = model.sized(sizes).cost_usd_per_hour
    assert found.cost_usd_per_hour == pytest.approx(min(costs.values())) and len(costs) > 1
    names = tuple(p.option.gpu.name for p in found.pools)
    assert costs[names] == pytest.approx(found.cost_usd_per_hour)  # type: ignore[index]
    cost = found.cost_usd_per_hour
    assert solved.search == SearchReport(4, 4, cost, 0.0, "4 pairs of engines, all P:D")
    assert SHAPE.solve(asked()).search.description == "1 pair of engines, all P:D"
    # without the type it takes another pair is the cheapest, within what there is
    short = SHAPE.solve(asked(gpu=["h100", "l40s"], tpot="30ms", rate=100.0, inventory={names[0]: 1}))
    used = sum(p.gpus for p in short.fleet.pools if p.option.gpu.name == names[0])
    assert used <= 1 and short.fleet.cost_usd_per_hour >= found.cost_usd_per_hour


def test_what_cannot_be_is_told() -> None:
    def told(error: type[fo.InputError | fo.InfeasibleError], **options: Any) -> Any:
        with pytest.raises(error) as caught:
            SHAPE.solve(asked(**options))
        return caught.value

    need = SHAPE.solve(asked(rate=400.0)).fleet
    # of a sample of the requests, which an error goes by
    gpus = sum(p.gpus for p in SHAPE.solve(replace(asked(rate=400.0), quick=True)).fleet.pools)
    assert abs(gpus - sum(p.gpus for p in need.pools)) <= 1
    short = told(fo.InfeasibleError, rate=400.0, inventory={"h100": 3})
    assert "(h100-80gb: 3) serves 400 requests/s" in str(short)
    assert short.relaxations[0].startswith(f"an inventory of h100-80gb: {gpus}: the cheapest fleet without one")
    # 600 W of an H100 with a full batch
    power = told(fo.InfeasibleError, rate=400.0, max_kw=1.0)
    assert power.relaxations[0].startswith(f"--max-kw {0.6 * gpus:g}: ")
    assert SHAPE.solve(asked(rate=400.0, max_kw=0.6 * gpus + 0.6)).fleet.counts == need.counts
    first = told(fo.InfeasibleError, ttft="1ms")
    assert str(first).startswith("disaggregated: ") and "idle pools need" in str(first)
    assert first.relaxations[-1].startswith("a faster prefill: more GPUs per replica")
    token = told(fo.InfeasibleError, tpot="1ms")
    assert token.relaxations[-1].startswith("a faster link") and token.promise.metric == "tpot_s"
    limited = told(fo.InputError, in_flight=40)
    assert str(limited) == (
        "in_flight: prefill and decode pools with a limit in flight are not modelled\nTake --shape colocated."
    )


def test_how_the_pools_stand_to_each_other_and_what_was_assumed() -> None:
    model = fleet(counts=(3, 2))
    assert list(model.summary()) == ["P:D is 3:2 (1.50); 75% of the requests decode."]
    transfer, replica = model.assumptions()
    assert transfer.values == {
        "gbps": 100.0, "base_s": 0.002, "kib_per_token": 128.0, "mean_s": pytest.approx(0.002 + 1350.0 * 8.0 * KV_BYTES / 1e11)
    }  # fmt: skip
    assert (replica.code, replica.values) == ("prefill_replica", {"spread": "requests are split at random"})
    pooled = list(fleet(routing="jsq").assumptions())
    assert pooled[1].values == {"spread": "idle replicas pull prompts from one queue"}


def test_sessions_come_back_to_their_prefix_after_an_answer() -> None:
    chats = fo.load_workload("turns=4,first=1000,growth=300,osl=100,gap=20s")
    model = fleet(chats, counts=(2, 2), routing="sticky", cdf="turns=4,first=1000,growth=300,osl=100,gap=20s")
    assert model.decode is not None
    step, idle = model._answer_step_s(model.decode), model.decode.unloaded((0.5,)).value("tpot_s", 0.5)
    assert step == pytest.approx(idle, rel=0.025) and fleet()._answer_step_s(model.decode) == 0.0
    codes = [r.code for r in model.assumptions()]
    assert codes == ["kv_transfer", "prefill_replica", "prefill_caches"]
    assert list(model.assumptions())[1].values == {"spread": "prompts go where their prefix is"}
    assert any("prefix caches supply" in line for line in model.summary()) and list(model.caches() or ()) == ["prefill"]
    assert model.grown("use") is None


def test_decode_replicas_that_compute_late_prompts_are_counted_with_both_pools() -> None:
    """Every pair, each replayed: prefill replicas need not be in time by themselves, but keep up with their load."""
    model = fleet(ttft=0.35, tpot="40ms", rate=90.0, prefill_queue=2)
    least = math.ceil(90.0 / (0.85 * model.prefill.capacity_per_s))
    first, second = model.pair(90.0, least, 5, quick=True)
    alone = model.prefill.look(90.0, least, model.levels)
    assert second is not None and math.isnan(second.latencies["ttft_s"][0])
    assert first.value("ttft_s", 0.99) < 0.8 * alone.value("ttft_s", 0.99)
    others = fleet(ttft=0.35, tpot="40ms", rate=90.0).pair(90.0, least, 5, quick=True)[1]
    assert others is not None and second.value("tpot_s", 0.99) > others.value("tpot_s", 0.99)

    def kept(prefills: int, decodes: int) -> bool:
        if prefills < least or 0.85 * decodes * model.decodes.capacity_per_s < 67.5:
            return False
        first, second = model.pair(90.0, prefills, decodes, quick=True)
        assert second is not None
        return first.value("ttft_s", 0.99) <= 0.35 and second.value("tpot_s", 0.99) <= 0.04

    sizes = model.sizes(90.0, model.promises, quick=True)
    assert isinstance(sizes, list)
    found = [s.replicas for s in sizes]
    assert kept(*found) and not any(kept(n, sum(found) - 1 - n) for n in range(1, sum(found) - 1))
    settled = model.sized(sizes)
    assert settled.keeps(90.0) and settled.pools[1].setup.settings.max_num_batched_tokens == settled.decode_budget
    assert "2 prompts waiting" in " ".join(map(str, settled.assumptions()))
    assert settled.pool_at(0, 90.0, found[0], model.levels).value("ttft_s", 0.5) == pytest.approx(
        model.pair(90.0, *found)[0].value("ttft_s", 0.5)
    )


def test_an_engine_without_mixed_batches_computes_no_late_prompts() -> None:
    question = asked(prefill_queue=2)
    engine = pool_options(question)[0]
    other = replace(engine.profile, iteration=replace(engine.profile.iteration, apart=1.0))
    with pytest.raises(fo.InputError, match="prefill_queue 2: the engine does not compute chunks"):
        Disaggregated(question, engine, replace(engine, profile=other))
