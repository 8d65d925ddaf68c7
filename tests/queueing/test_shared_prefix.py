"""A prefix that all prompts begin with: held once in memory, found in the cache, still read by every decode.

Where attention of prompts is free, such traffic is the same as that of the prompts' rests in a memory smaller by the prefix, on
an engine whose decodes take g P longer each: neither the closed form nor a replay may tell the two apart.
"""

from dataclasses import replace

import numpy as np
import pytest

from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.predict.bounds import max_throughput
from planner.predict.closed import ClosedReplica
from planner.predict.records import Replicas, Requests, keys_of
from planner.predict.run import replay
from planner.workload.pools import Lengths
from tests.papers.asked import simulate_pool

PREFIX = 2048
PROMPTS = np.array([2500.0, 3000.0, 3600.0, 5200.0])
OUTPUTS = np.array([150.0, 400.0, 250.0, 600.0])
WEIGHT = np.array([0.3, 0.3, 0.3, 0.1])
TERMS = {"t0": 2e-3, "w": 6e-3, "b": 20e-6, "c": 4e-6, "h": 2e-6, "g": 50e-9, "a": 0.0, "tau": 1.0}
REST = {**TERMS, "h": TERMS["h"] + TERMS["g"] * PREFIX}
MEMORY = 40_000.0
SHARE = PREFIX / PROMPTS
WHOLE = Lengths(PROMPTS, OUTPUTS, WEIGHT, SHARE)
RESTS = Lengths(PROMPTS - PREFIX, OUTPUTS, WEIGHT, np.zeros(1))
ONE = Replicas(1, IterationModel(**TERMS), slots=256.0, token_budget=1024.0, kv_tokens=MEMORY, shared_prefix=PREFIX)
OTHER = replace(ONE, iteration=IterationModel(**REST), kv_tokens=MEMORY - PREFIX, shared_prefix=0.0)


def test_the_closed_form_sees_the_rests_of_the_prompts() -> None:
    ours, theirs = ClosedReplica(WHOLE, ONE), ClosedReplica(RESTS, OTHER)
    assert ours.limit.binding == "kv"
    assert ours.limit.per_s == pytest.approx(theirs.limit.per_s, rel=1e-9)
    found, expected = (replica.at(0.8 * theirs.limit.per_s) for replica in (ours, theirs))
    for metric in ("ttft_s", "tpot_s"):
        assert found.quantiles(metric, (0.5, 0.99)) == pytest.approx(expected.quantiles(metric, (0.5, 0.99)), rel=1e-6)


@pytest.mark.parametrize("preset", ["mixed", "paged"])
def test_a_replay_sees_the_rests_of_the_prompts(preset: str) -> None:
    engine = {"count": 1, "slots": 256, "token_budget": 1024, "preset": preset}
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


def test_capacity_is_that_of_a_replica_full_of_requests_where_attention_costs() -> None:
    costly = replace(ONE, iteration=IterationModel(**{**TERMS, "a": 3e-10}))
    limit = max_throughput(WHOLE, costly)
    # each on its own would hold 2,048 tokens more
    assert limit.per_s > 1.5 * max_throughput(WHOLE, replace(costly, shared_prefix=0.0)).per_s
    row = np.random.default_rng(1).choice(4, 4000, p=WEIGHT)
    number = np.arange(row.size)
    cached = np.full(row.size, float(PREFIX))
    key = keys_of(number, np.zeros_like(number), 1)
    done = np.sort(replay(Requests(np.zeros(row.size), PROMPTS[row], OUTPUTS[row], cached, key), costly).done_s)
    # from when it is full until the last requests empty it
    first, last = 400, 3600
    assert (last - first) / (done[last] - done[first]) == pytest.approx(limit.per_s, rel=0.03)


def test_a_prefix_that_fills_the_memory_leaves_nothing() -> None:
    for tokens in (MEMORY, 2.0 * MEMORY):
        limit = max_throughput(WHOLE, replace(ONE, shared_prefix=tokens))
        assert (limit.per_s, limit.binding) == (0.0, "prompt")


def test_a_prefix_that_cannot_be_is_named() -> None:
    pool = {"count": 1, "iteration": ONE.iteration, "token_budget": 1024}
    with pytest.raises(InputError, match="shared_prefix must be finite"):
        simulate_pool(PROMPTS, OUTPUTS, WEIGHT, 1.0, **pool, shared_prefix=-1)
