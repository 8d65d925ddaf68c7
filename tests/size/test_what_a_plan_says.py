"""What a plan says of its traffic, its pools and what becomes of requests beyond them, reckoned by hand from four requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import planner as fo

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances", "without_words")

INPUTS, OUTPUTS = np.array([100.0, 300.0, 1000.0, 4000.0]), np.array([10.0, 200.0, 50.0, 400.0])
ASKED: dict[str, Any] = {
    "slo": 1.0, "tpot": "40ms", "tp": 1, "token_budget": 2048, "burst": "poisson", "confidence": 0.5, "gpu": "h100"
}  # fmt: skip
PATIENCE_S = 5.0


@pytest.fixture(scope="module")
def four() -> fo.Workload:
    return fo.Workload.from_arrays(INPUTS, OUTPUTS, name="four")


@pytest.fixture(scope="module")
def plan(four: fo.Workload, few_replayed: None) -> fo.Plan:
    """Two pools with a spare each, and clients that wait so long."""
    return fo.plan(four, rate=400.0, pools=2, redundancy=1, client_timeout=f"{PATIENCE_S:g}s", **ASKED)


def test_the_traffic(plan: fo.Plan) -> None:
    told = plan.to_dict()["workload"]
    assert isinstance(told, dict)
    assert {k: told[k] for k in ("name", "requests", "mean_input_tokens", "mean_output_tokens", "longest_tokens")} == {
        "name": "four", "requests": 4, "mean_input_tokens": 1350.0, "mean_output_tokens": 165.0, "longest_tokens": 4400.0
    }  # fmt: skip
    assert told["length_split"] is None and told["source"] == told["licence"] == ""
    assert (told["rows"]["input_tokens"], told["rows"]["output_tokens"]) == (INPUTS.tolist(), OUTPUTS.tolist())


def test_assumed_lengths_say_that_they_are() -> None:
    told = fo.plan(isl=500, osl=100, rate=5.0, pools=1, **ASKED).to_dict()["workload"]
    assert isinstance(told, dict) and "assumed" in told["length_split"] + told["source"]
    assert told["mean_input_tokens"] == pytest.approx(500.0, rel=0.02)


def test_each_pool_has_the_requests_between_its_bounds(plan: fo.Plan) -> None:
    assert len(plan.pools) == 2
    for pool in plan.pools:
        own = (pool.low_tokens < INPUTS) & (pool.high_tokens >= INPUTS)
        assert pool.share == own.mean() and pool.arrival_rate_per_s == 400.0 * own.mean()
        assert pool.mean_input_tokens == pytest.approx(INPUTS[own].mean(), rel=1e-12)
        assert pool.mean_output_tokens == pytest.approx(OUTPUTS[own].mean(), rel=1e-12)
        # a prompt may come with any of the outputs that were seen: in whole blocks of 16
        longest = INPUTS[own].max() + OUTPUTS.max()
        assert pool.settings is not None and pool.settings.max_model_len == 16 * np.ceil(longest / 16)
        assert (pool.compressed_share, pool.gamma, pool.tp, pool.pp, pool.dp, pool.ep) == (0.0, 1.0, 1, 1, 1, 1)
        assert pool.settings.max_num_seqs == pool.slots and pool.settings.max_num_batched_tokens == 2048
    assert (plan.pools[0].low_tokens, plan.pools[-1].high_tokens) == (0.0, 4000.0)


def test_each_pool_has_a_spare_that_costs_and_does_nothing(plan: fo.Plan) -> None:
    price = plan.cost_usd_per_hour / sum(p.replicas for p in plan.pools)
    for pool in plan.pools:
        assert pool.spares == 1 and pool.gpus == pool.replicas and pool.replicas > 1
        assert pool.load == pytest.approx(pool.arrival_rate_per_s / ((pool.replicas - 1) * pool.capacity_per_s))
        assert pool.cost_usd_per_hour == pytest.approx(price * pool.replicas)
        assert pool.replicas_low is not None and pool.replicas_low <= pool.replicas
    assert plan.gpus == plan.replicas == sum(p.replicas for p in plan.pools)


def test_latencies_lie_in_their_bands_and_promised_ones_have_their_limit(plan: fo.Plan) -> None:
    limits = {("ttft_s", 0.99): 1.0, ("tpot_s", 0.99): 0.04}
    for pool in plan.pools:
        found = {(v.metric, v.quantile): v for v in pool.latency}
        assert set(found) == {(m, q) for m in ("ttft_s", "tpot_s", "e2e_s") for q in (0.5, 0.9, 0.99)}
        for key, value in found.items():
            assert value.low_s < value.value_s < value.high_s and value.limit_s == limits.get(key)
            assert value.share is None and (value.limit_s is None or value.value_s <= value.limit_s)
        for metric in ("ttft_s", "tpot_s", "e2e_s"):
            levels = [found[metric, q].value_s for q in (0.5, 0.9, 0.99)]
            assert levels == sorted(levels)
        # the band is the engine's, a quarter of estimated times, on top of the method's
        value = found["tpot_s", 0.99]
        assert value.high_s >= 1.2 * value.value_s and value.low_s <= 0.8 * value.value_s


def test_who_is_answered_at_any_rate(plan: fo.Plan, four: fo.Workload) -> None:
    calm, crowded = np.array(fo.evaluate(plan, [50.0, 4000.0], workload=four).to_rows()).reshape(2, 2)
    for row, pool in zip(calm, plan.pools, strict=True):
        assert row["pool_rate_per_s"] == row["goodput_per_s"] == 50.0 * pool.share
        assert (row["answered_share"], row["rejected_share"], row["given_up_share"]) == (1.0, 0.0, 0.0)
        assert row["amplification"] == 1.0 and row["holds"] and 0.0 < row["ttft_mean_s"] <= row["ttft_p90_s"]
    for row, pool in zip(crowded, plan.pools, strict=True):
        # nobody is answered after the patience; more than the capacity nobody can answer
        assert not row["holds"] and row["ttft_mean_s"] <= PATIENCE_S
        assert row["goodput_per_s"] == pytest.approx(4000.0 * pool.share * row["answered_share"])
        assert row["goodput_per_s"] <= 1.05 * pool.capacity_per_s * (pool.replicas - 1)
        assert row["answered_share"] + row["rejected_share"] + row["given_up_share"] == pytest.approx(1.0)
        assert row["given_up_share"] > 0.5 and row["rejected_share"] == 0.0


@pytest.mark.usefixtures("with_words")
def test_a_door_turns_away_what_is_beyond_the_capacity(four: fo.Workload) -> None:
    plan = fo.plan(four, rate=100.0, pools=1, max_queue=4, **ASKED)
    assert plan.overload is not None
    facts = plan.overload[plan.pools[0].name]
    capacity = plan.replicas * plan.pools[0].capacity_per_s
    for row in facts["loads"]:
        assert row["demand_per_s"] == pytest.approx(row["load"] * capacity) and row["given_up_share"] == 0.0
        assert row["answered_share"] + row["rejected_share"] == pytest.approx(1.0)
        # replicas that always have work answer as many as they can; a run of a few thousand ends with what is left
        if row["load"] >= 2.0:
            assert row["answered_share"] == pytest.approx(1.0 / row["load"], rel=0.08)
    assert [row["load"] for row in facts["loads"]] == [0.8, 1.0, 1.2, 1.5, 2.0, 3.0]
    (limit,) = facts["limits"]
    assert limit["limit_s"] == 1.0 and limit["max_queued_tokens"] == round(1350.0 * limit["max_queue"])
    # four wait at each replica when it ends
    assert facts["surge"] == {"load": 2.0, "duration_s": 60.0, "recovery_s": pytest.approx(2.0, abs=4.0)}
    assert fo.plan(four, rate=100.0, pools=1, **ASKED).overload is None


@pytest.mark.usefixtures("with_words")
@pytest.mark.parametrize("rate", [20.0, 100.0])
def test_the_queue_of_a_surge_drains_with_what_the_load_leaves(four: fo.Workload, rate: float) -> None:
    """A minute at twice the capacity leaves a minute of work, done at 1 - load: a pool that closes no door."""
    plan = fo.plan(four, rate=rate, pools=1, max_queue=1_000_000, **ASKED)
    assert plan.overload is not None
    # it is over once the median is within what nine of ten wait before: not after the last bit
    expected = 60.0 / (1.0 - plan.pools[0].load)
    assert plan.overload["all"]["surge"]["recovery_s"] == pytest.approx(expected, rel=0.12)


def test_settings_of_prefill_and_decode_pools(four: fo.Workload) -> None:
    found = fo.plan(four, rate=100.0, shape="disaggregated", **ASKED)
    prefill, decode = (p.settings for p in found.pools)
    assert prefill is not None and decode is not None
    assert prefill.max_model_len == prefill.max_num_batched_tokens == decode.max_model_len == 4400
    assert prefill.max_num_seqs == 1 and decode.max_num_seqs == found.pools[1].slots > 1
    assert decode.max_num_batched_tokens == max(2048, decode.max_num_seqs)
    assert (prefill.batching, decode.batching) == ("prefill", "decode")
    assert found.pools[0].share == found.pools[1].share == 1.0


def test_no_engine_is_told_to_take_more_than_its_model_does() -> None:
    """131,072 tokens of Llama 3.1, less than whole blocks of the longest request."""
    lengths = fo.Workload.from_arrays(
        np.array([200.0, 131_000.0]), np.array([20.0, 65.0]), weight=[0.99, 0.01], name="longest"
    )
    asked = {**ASKED, "slo": "60s", "tpot": None}
    for shape in ("colocated", "disaggregated"):
        for pool in fo.plan(lengths, rate=1.0, shape=shape, pools=1, **asked).pools:
            assert pool.settings is not None and pool.settings.max_model_len <= 131_072


@pytest.mark.parametrize("shape", ["both", "colocated", "disaggregated"])
def test_what_no_shape_keeps_is_told_as_one_shape_tells_it(four: fo.Workload, shape: str) -> None:
    with pytest.raises(fo.InfeasibleError, match="P99 TTFT"):
        fo.plan(four, rate=100.0, shape=shape, pools=1, **{**ASKED, "slo": "1ms"})


def test_of_both_shapes_the_cheaper_is_taken(four: fo.Workload) -> None:
    each = [fo.plan(four, rate=100.0, shape=s, pools=1, **ASKED) for s in ("colocated", "disaggregated")]
    both = fo.plan(four, rate=100.0, shape="both", pools=1, **ASKED)
    assert both.cost_usd_per_hour == min(p.cost_usd_per_hour for p in each)
    assert both.shape in {p.shape for p in each if p.cost_usd_per_hour == both.cost_usd_per_hour}
