"""A prefix that all prompts begin with: held once in memory, found in the cache, still read by every decode.

Where attention of prompts is free, such traffic is the same as that of the prompts' rests in a memory smaller by the prefix, on
an engine whose decodes take g P longer each: closed form and simulator must not tell the two apart.
"""

import math

import numpy as np
import pytest
from planner.queueing.path import PathRequests, follow_path

from planner.iteration.model import IterationModel
from planner.queueing.mixed.replica import MixedReplica
from planner.simulate.arrivals import Arrival
from planner.simulate.pool import simulate_pool

PREFIX = 2048
PROMPTS = np.array([2500.0, 3000.0, 3600.0, 5200.0])
OUTPUTS = np.array([150.0, 400.0, 250.0, 600.0])
WEIGHT = np.array([0.3, 0.3, 0.3, 0.1])
TERMS = {"t0": 2e-3, "w": 6e-3, "b": 20e-6, "c": 4e-6, "h": 2e-6, "g": 50e-9, "a": 0.0, "tau": 1.0}
REST = {**TERMS, "h": TERMS["h"] + TERMS["g"] * PREFIX}
MEMORY = 40_000.0
SHARE = PREFIX / PROMPTS
SETTINGS = {"weight": WEIGHT, "token_budget": 1024, "max_num_seqs": 256}


def shared(**change: float) -> MixedReplica:
    return MixedReplica(
        **{**TERMS, **change}, input_tokens=PROMPTS, output_tokens=OUTPUTS, kv_tokens=MEMORY, cached_share=SHARE,
        shared_prefix=PREFIX, **SETTINGS,
    )  # fmt: skip


def test_the_closed_form_sees_the_rests_of_the_prompts():
    rests = MixedReplica(
        **REST, input_tokens=PROMPTS - PREFIX, output_tokens=OUTPUTS, kv_tokens=MEMORY - PREFIX, **SETTINGS
    )
    assert shared().max_throughput().binding == "kv"
    assert shared().max_throughput().per_s == pytest.approx(rests.max_throughput().per_s, rel=1e-9)
    rate = 0.8 * rests.max_throughput().per_s
    ours, theirs = shared().predict(rate), rests.predict(rate)
    assert ours.tpot_s == pytest.approx(theirs.tpot_s, rel=1e-6)
    assert ours.ttft_s == pytest.approx(theirs.ttft_s, rel=1e-6)


@pytest.mark.parametrize("preset", ["mixed", "paged"])
def test_the_simulator_sees_the_rests_of_the_prompts(preset):
    engine = {"replicas": 1, "slots": 256, "token_budget": 1024, "preset": preset}
    ours = simulate_pool(
        PROMPTS, OUTPUTS, WEIGHT, 6.5, requests=1500, cached_share=SHARE, iteration=IterationModel(**TERMS),
        kv_tokens=MEMORY, shared_prefix=PREFIX, **engine,
    )  # fmt: skip
    rests = simulate_pool(
        PROMPTS - PREFIX, OUTPUTS, WEIGHT, 6.5, requests=1500, iteration=IterationModel(**REST),
        kv_tokens=MEMORY - PREFIX, **engine,
    )  # fmt: skip
    assert ours.preemptions_per_request == rests.preemptions_per_request > 0.0
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        assert ours.quantile(metric, 0.99).value == pytest.approx(rests.quantile(metric, 0.99).value, rel=1e-9)


def test_capacity_agrees_with_the_simulator_where_attention_costs():
    limit = shared(a=3e-10).max_throughput()
    alone = MixedReplica(
        **{**TERMS, "a": 3e-10}, input_tokens=PROMPTS, output_tokens=OUTPUTS, kv_tokens=MEMORY, cached_share=SHARE,
        **SETTINGS,
    )  # fmt: skip
    # each on its own would hold 2,048 tokens more
    assert limit.per_s > 1.5 * alone.max_throughput().per_s
    result = simulate_pool(
        PROMPTS, OUTPUTS, WEIGHT, Arrival(process="saturated"), requests=4000, cached_share=SHARE, replicas=1, slots=256,
        token_budget=1024, iteration=IterationModel(**{**TERMS, "a": 3e-10}), kv_tokens=MEMORY, shared_prefix=PREFIX,
    )  # fmt: skip
    # the last requests empty the replica: a few per cent of the run
    assert result.throughput_per_s.value == pytest.approx(limit.per_s, rel=0.05)


def test_a_path_waits_for_the_memory_that_is_left():
    times = np.arange(400) * 0.2
    requests = PathRequests.of(times, np.full(400, 4000.0), np.full(400, 300.0), PREFIX / 4000.0, PREFIX)
    rests = PathRequests.of(times, np.full(400, 4000.0 - PREFIX), np.full(400, 300.0))
    model, rest = IterationModel(**TERMS), IterationModel(**REST)
    ours = follow_path(requests, model.time, budget=1024, slots=256, kv_tokens=10_000.0 - PREFIX)
    theirs = follow_path(rests, rest.time, budget=1024, slots=256, kv_tokens=10_000.0 - PREFIX)
    assert ours.wait_probability > 0.2
    # rounds of substitution end a little apart
    assert ours.quantiles("e2e_s", np.array([0.5, 0.99])) == pytest.approx(
        theirs.quantiles("e2e_s", np.array([0.5, 0.99])), rel=1e-3
    )


@pytest.mark.parametrize("prefix", [-1.0, MEMORY, math.nan])
def test_a_prefix_that_cannot_be_is_named(prefix):
    with pytest.raises(ValueError, match="shared_prefix"):
        MixedReplica(
            **TERMS, input_tokens=PROMPTS, output_tokens=OUTPUTS, kv_tokens=MEMORY, shared_prefix=prefix, **SETTINGS
        )
