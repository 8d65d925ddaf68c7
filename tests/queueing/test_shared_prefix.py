"""A prefix that all prompts begin with: held once in memory, found in the cache, still read by every decode.

Where attention of prompts is free, such traffic is the same as that of the prompts' rests in a memory smaller by the prefix, on
an engine whose decodes take g P longer each: closed form and simulator must not tell the two apart.
"""

import math

import numpy as np
import pytest
from planner.queueing.mixed.replica import MixedReplica

from planner.iteration.model import IterationModel
from planner.predict.records import Replicas
from planner.predict.run import replay
from planner.simulate.pool import simulate_pool
from tests.simulate.asked import asked

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
    row = np.random.default_rng(1).choice(PROMPTS.size, 4000, p=WEIGHT)
    run = replay(
        asked(np.zeros(4000), PROMPTS[row], OUTPUTS[row], PREFIX),
        Replicas(1, IterationModel(**{**TERMS, "a": 3e-10}), 256, 1024, MEMORY, shared_prefix=PREFIX),
    )
    done = np.sort(run.done_s)
    assert 3200.0 / (done[3600] - done[400]) == pytest.approx(limit.per_s, rel=0.05)


@pytest.mark.parametrize("prefix", [-1.0, MEMORY, math.nan])
def test_a_prefix_that_cannot_be_is_named(prefix):
    with pytest.raises(ValueError, match="shared_prefix"):
        MixedReplica(
            **TERMS, input_tokens=PROMPTS, output_tokens=OUTPUTS, kv_tokens=MEMORY, shared_prefix=prefix, **SETTINGS
        )
