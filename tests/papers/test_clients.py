"""Clients in a replay, by hand: sessions and caches, doors, patience, retries; and in the simulation of plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import planner as fo
from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.predict.calls import session_calls
from planner.predict.records import PrefixCache, Replicas, Requests, Run
from planner.predict.run import replay
from planner.workload.sending import Clients
from planner.workload.synthetic import SyntheticSessions
from tests.papers.asked import asked

pytestmark = pytest.mark.usefixtures("few_replayed")

ITERATION = IterationModel(t0=0.01, c=1e-5, h=1e-5)


def one(requests: Requests, clients: Clients | None = None, cache: PrefixCache | None = None, **engine: Any) -> Run:
    """One replica."""
    given = {"slots": 4, "token_budget": 2048, "kv_tokens": 10_000.0, **engine}
    return replay(requests, Replicas(1, given.pop("iteration", ITERATION), **given), clients, cache)


def test_one_request_alone() -> None:
    run = one(asked([0.0], 1000, 10), Clients())
    assert run.first_s[0] == pytest.approx(0.01 + 1000e-5)
    assert run.done_s[0] == pytest.approx(run.first_s[0] + 9 * (0.01 + 2e-5))


def test_a_full_queue_turns_away_and_retries_come_back() -> None:
    clients = Clients(max_queue=1, retries=1, retry_after_s=100.0)
    run = one(asked([0.0, 0.001, 0.002], 1000, 10), clients, slots=1)
    assert run.rejected.tolist() == [0, 0, 1] and run.attempts.tolist() == [1, 1, 2]
    assert run.sent_s[2] == pytest.approx(100.002) and np.isfinite(run.done_s).all()


def test_prompt_tokens_that_wait_are_limited_too() -> None:
    run = one(asked([0.0, 0.001, 0.002], 1000, 10), Clients(max_queued_tokens=1500), slots=1)
    assert run.rejected.tolist() == [0, 0, 1] and np.isnan(run.done_s).tolist() == [False, False, True]


def test_lost_patience_frees_the_engine() -> None:
    """Waiting, in prefill, and too late: each is dropped, and what it held is given back."""
    clients = Clients(timeout_s=0.05)
    run = one(asked([0.0, 0.001, 0.002], 1000, 40), clients, slots=1)
    assert run.given_up.tolist() == [0, 1, 1] and np.isfinite(run.done_s[0])
    long = one(asked([0.0, 0.2], 9000, 10), clients, slots=1, token_budget=100, kv_tokens=9_500.0)
    assert long.given_up.tolist() == [1, 1] and np.isnan(long.first_s).all()


def sessions(gap_s: float = 5.0, calls: int = 3, count: int = 1, shared: int = 0) -> Requests:
    """Sessions half a second apart whose prompts grow by 200 tokens from 1,000 on, the first `shared` alike."""
    size = calls * count
    call, session = np.tile(np.arange(calls), count), np.repeat(np.arange(count), calls)
    first = call == 0
    repeated = np.where(first, 0.0, np.maximum(1000.0 + 200.0 * (call - 1) - shared, 0.0))
    more: dict[str, Any] = {}
    if shared:
        more = {
            "shared_offset": np.arange(size + 1),
            "shared_name": np.zeros(size, dtype=np.int64),
            "shared_tokens": np.full(size, float(shared)),
        }
    return asked(
        np.where(first, 0.5 * session, np.inf),
        1000.0 + 200.0 * call,
        10,
        session=session,
        following=np.where(call < calls - 1, np.arange(size) + 1, -1),
        gap_s=np.where(first, 0.0, gap_s),
        repeated_tokens=repeated,
        **more,
    )


def test_a_session_finds_its_prefix_in_whole_blocks() -> None:
    run = one(sessions(), cache=PrefixCache())
    assert run.found_tokens.tolist() == [0, 992, 1200]  # 1,000 and 1,200 tokens in blocks of 16
    assert run.sent_s[1] == pytest.approx(run.done_s[0] + 5.0)


def test_memory_that_others_take_drops_the_least_recent() -> None:
    """Three sessions of 1,010 tokens, a cache of 2,100: the one longest away has lost the end of its prefix."""
    run = one(sessions(calls=2, count=3), cache=PrefixCache(), kv_tokens=2_300.0)
    assert run.found_tokens[1::2].min() < 992


def test_what_sessions_share_is_found_by_others_and_held_once() -> None:
    """Two sessions at the same time share 960 tokens: the second finds them, and memory that holds 1,300 holds both."""
    slow: dict[str, Any] = {"iteration": IterationModel(t0=0.5), "token_budget": 4096, "kv_tokens": 1_300.0}
    run = one(sessions(calls=2, count=2, shared=960), cache=PrefixCache(), **slow)
    assert run.found_tokens.tolist() == [0, 992, 960, 992]  # 1,000 tokens of the call before, in blocks of 16
    assert run.sent_s[2] < run.done_s[0] and not run.preempted.any()  # side by side, 960 + 2 x 49 tokens at most
    gone = one(sessions(calls=2, count=2, shared=960), cache=PrefixCache(ttl_s=1.0), **slow)
    assert (
        gone.found_tokens[2] == 960 and gone.found_tokens[1] == 0
    )  # held as long as the first call runs, gone 5 s after


def test_what_the_gpu_drops_comes_back_from_the_host() -> None:
    """The same three sessions: everything is found, and a first token waits for what is copied, one prefix at a time."""
    calls = sessions(calls=2, count=3)
    run = one(calls, cache=PrefixCache(10_000.0, 500.0), kv_tokens=2_300.0)
    assert run.found_tokens[1::2].tolist() == [992] * 3 and run.host_tokens.max() > 0
    assert np.all(run.ttft_s[1::2] >= run.host_tokens[1::2] / 500.0)
    quick = one(calls, cache=PrefixCache(10_000.0), kv_tokens=2_300.0)
    assert quick.first_s.sum() < run.first_s.sum()


@pytest.mark.parametrize("ttl,found", [(4.0, [0, 0, 0]), (6.0, [0, 992, 1200])])
def test_what_is_not_used_for_long_is_not_found(ttl: float, found: list[int]) -> None:
    assert one(sessions(), cache=PrefixCache(ttl_s=ttl)).found_tokens.tolist() == found


SYNTHETIC = SyntheticSessions(turns=8.0, first=800.0, growth=300.0, osl=60.0, gap=10.0)


@pytest.mark.parametrize("routing", ["sticky", "prefix", "random", "least", "rr"])
def test_nothing_is_lost_under_any_routing(routing: str) -> None:
    recorded = SYNTHETIC.workload().sessions
    assert recorded is not None
    calls, _ = session_calls(recorded, 12.0, 3_000)
    clients = Clients(max_queue=20, timeout_s=4.0, retries=2, retry_after_s=0.5)
    replicas = Replicas(3, ITERATION, 16, 1024, 40_000.0, routing)
    run = replay(calls, replicas, clients, PrefixCache())
    ended = np.isfinite(run.done_s)
    assert np.all(run.attempts >= 1) and np.all(run.rejected + run.given_up + ended == run.attempts)
    assert np.all(run.ttft_s[ended] <= 4.1)


def test_sticky_finds_more_than_random() -> None:
    recorded = SYNTHETIC.workload().sessions
    assert recorded is not None
    calls, _ = session_calls(recorded, 10.0, 6_000)
    share = {}
    for routing in ("sticky", "random"):
        run = replay(calls, Replicas(4, ITERATION, 32, 2048, 60_000.0, routing), cache=PrefixCache())
        share[routing] = run.found_tokens.sum() / calls.input_tokens.sum()
    assert share["sticky"] > 1.4 * share["random"] > 0.0


@pytest.mark.parametrize(
    "routing", [pytest.param("sticky", marks=pytest.mark.long("the other routing; one in CI")), "random"]
)
def test_shared_prefixes_in_the_simulation_are_those_of_the_plan(routing: str) -> None:
    """The share planned within the error of a run of 12,000 other calls."""
    text = "turns=4,first=500,growth=200,osl=100,gap=15s,groups=30,prefix=4000"
    plan = fo.plan(text, rate=30, slo="8s", pools=1, tp=1, token_budget=2048, routing=routing, burst="poisson")
    found = fo.simulate(plan, requests=12_000, max_requests=12_000, seeds=1).results["all"]
    assert plan.caches is not None and found.clients is not None
    facts: Any = plan.caches["all"]
    assert 0.3 < facts["cached_share"] < facts["repeated_share"]
    assert found.clients["cached_share"] == pytest.approx(facts["cached_share"], abs=0.015)


def test_a_plan_of_sessions_holds_in_the_simulation() -> None:
    """The share planned and the share of other sessions, within the error of a run of 15,000 calls.

    With as many replicas as their memory takes: with half of them the share hangs on which sessions a replica happens to have.
    """
    asked: dict[str, Any] = {"slo": "8s", "pools": 1, "tp": 1, "token_budget": 2048, "min_replicas": 14}
    plan = fo.plan("turns=12,first=2500,growth=600,osl=200,gap=40s", rate=15, **asked)
    found = fo.simulate(plan, requests=15_000, seeds=1).results["all"]
    assert plan.caches is not None and found.clients is not None
    facts: Any = plan.caches["all"]
    assert found.clients["cached_share"] == pytest.approx(facts["cached_share"], abs=0.05)
    assert found.clients["demand_per_s"] == pytest.approx(15.0, rel=0.08)
    assert found.quantile("ttft_s", 0.9).value < plan.pools[0].quantile("ttft_s", 0.99)


def test_limits_of_a_plan_reach_evaluation_and_simulation() -> None:
    plan = fo.plan(
        "azure",
        rate=20,
        slo="1s",
        max_queue=40,
        client_timeout="20s",
        retries=1,
        burst="poisson",
        pools=1,
        tp=1,
        token_budget=2048,
    )
    facts = plan.to_dict()["overload"]["all"]
    assert facts["limits"][0]["max_queue"] >= 1
    assert [row["load"] for row in facts["loads"]] == [0.8, 1.0, 1.2, 1.5, 2.0, 3.0]
    assert any("max_queue" in line for line in plan.explanation)
    beyond = 2.0 * plan.replicas * plan.pools[0].capacity_per_s
    row = fo.evaluate(plan, beyond).to_rows()[0]
    met = fo.simulate(plan, rate=beyond, requests=12_000, seeds=1, arrivals="poisson").results["all"].clients
    assert met is not None
    assert row["goodput_per_s"] == pytest.approx(met["goodput_per_s"], rel=0.1)
    assert row["rejected_share"] == pytest.approx(met["rejected_share"], abs=0.05)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(InputError, match="timeout"):
        one(asked([0.0], 10, 10), Clients(timeout_s=0.0))
    with pytest.raises(InputError, match="one queue"):
        replay(asked([0.0], 10, 10), Replicas(2, ITERATION, routing="central"), Clients(max_queue=1))
