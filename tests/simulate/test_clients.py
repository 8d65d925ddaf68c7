"""Clients in the simulator: sessions and caches, doors, patience, retries; nothing is lost on the way."""

import math
from dataclasses import replace

import numpy as np
import pytest

import planner as fo
from planner.errors import InputError
from planner.iteration.model import IterationModel
from planner.methods.sessions import PrefixCache
from planner.simulate.clients import Calls, ClientRules, run_clients, session_calls
from planner.workload.synthetic_sessions import SyntheticSessions

ITERATION = IterationModel(t0=0.01, c=1e-5, h=1e-5)


def _apart(times, prompt=1000, output=10):
    count = len(times)
    nothing = [-1] * count
    return Calls([(t, k) for k, t in enumerate(times)], [prompt] * count, [output] * count, nothing, [0] * count, nothing,
                 [0.0] * count)  # fmt: skip


def test_one_request_alone():
    run = run_clients(_apart([0.0]), ClientRules(), ITERATION, slots=4, token_budget=2048, kv_tokens=10_000)
    assert run.first_s == [pytest.approx(0.01 + 1000e-5)]
    assert run.done_s[0] == pytest.approx(run.first_s[0] + 9 * (0.01 + 2e-5))


def test_a_full_queue_turns_away_and_retries_come_back():
    rules = ClientRules(max_queue=1, retries=1, retry_after_s=100.0)
    run = run_clients(_apart([0.0, 0.001, 0.002]), rules, ITERATION, slots=1, token_budget=2048, kv_tokens=10_000)
    assert run.rejected == [2]
    assert run.sent_s[3] == pytest.approx(100.002) and run.tried == [0, 0, 0, 1]
    assert not np.isnan(run.done_s[3]) and run.failed == []


def test_prompt_tokens_that_wait_are_limited_too():
    rules = ClientRules(max_queued_tokens=1500)
    run = run_clients(_apart([0.0, 0.001, 0.002]), rules, ITERATION, slots=1, token_budget=2048, kv_tokens=10_000)
    assert run.rejected == [2] and [c for _, c in run.failed] == [2]


def test_lost_patience_frees_the_engine():
    """Waiting, in prefill, and too late: each is dropped, and what it held is given back."""
    rules = ClientRules(timeout_s=0.05)
    run = run_clients(
        _apart([0.0, 0.001, 0.002], 1000, 40), rules, ITERATION, slots=1, token_budget=2048, kv_tokens=10_000
    )
    assert run.given_up == [1, 2] and not np.isnan(run.done_s[0])
    long = run_clients(_apart([0.0, 0.2], 9000), rules, ITERATION, slots=1, token_budget=100, kv_tokens=9_500)
    assert long.given_up == [0, 1] and np.isnan(long.first_s).all()


def _session(gaps=(5.0, 5.0), prompt=1000, growth=200, sessions=1):
    calls = len(gaps) + 1
    inputs = [prompt + growth * k for k in range(calls)] * sessions
    numbers = [s for s in range(sessions) for _ in range(calls)]
    following = [s * calls + k + 1 if k + 1 < calls else -1 for s in range(sessions) for k in range(calls)]
    repeated = [0 if k == 0 else prompt + growth * (k - 1) for k in range(calls)] * sessions
    first = [(0.5 * s, s * calls) for s in range(sessions)]
    return Calls(first, inputs, [10] * len(inputs), numbers, repeated, following, [0.0, *gaps] * sessions)


def test_a_session_finds_its_prefix_in_whole_blocks():
    run = run_clients(_session(), ClientRules(), ITERATION, slots=4, token_budget=2048, kv_tokens=10_000)
    assert run.found == [0, 992, 1200]  # 1,000 and 1,200 tokens in blocks of 16
    assert run.sent_s[1] == pytest.approx(run.done_s[0] + 5.0)


def test_memory_that_others_take_drops_the_least_recent():
    """Three sessions of 1,010 tokens, a cache of 2,100: the one longest away has lost the end of its prefix."""
    calls = _session(gaps=(5.0,), sessions=3)
    run = run_clients(calls, ClientRules(), ITERATION, slots=4, token_budget=2048, kv_tokens=2_300)
    second = [run.found[k] for k in range(6) if run.tried[k] == 0 and calls.repeated_tokens[run.call[k]] > 0]
    assert min(second) < 992


def test_what_sessions_share_is_found_by_others_and_held_once():
    """Two sessions at the same time share 960 tokens: the second finds them, and memory that holds 2,100 holds both."""
    calls = replace(_session(gaps=(5.0,), sessions=2), shared=[((-2, 960),)] * 4)
    calls.repeated_tokens[:] = [max(r - 960, 0) for r in calls.repeated_tokens]
    slow = IterationModel(t0=0.5)
    run = run_clients(calls, ClientRules(), slow, slots=4, token_budget=4096, kv_tokens=1_300)
    assert run.found == [0, 960, 992, 992]  # 1,000 tokens of the call before, in blocks of 16
    both = [(run.sent_s[k], run.done_s[k]) for k in (0, 1)]
    assert both[1][0] < both[0][1] and run.preemptions == 0  # side by side, 960 + 2 x 49 tokens at most
    gone = run_clients(calls, ClientRules(), slow, slots=4, token_budget=4096, kv_tokens=1_300,
                       cache=PrefixCache(math.inf, ttl_s=1.0))  # fmt: skip
    assert gone.found[1] == 960 and gone.found[2] == 0  # held by the first call as long as it runs, gone 5 s after


@pytest.mark.parametrize("routing", [pytest.param("sticky", marks=pytest.mark.long), "random"])
def test_shared_prefixes_in_the_simulation_are_those_of_the_plan(routing):
    """The share planned, of a workload that nothing was looked at with, within the error of a run of 12,000 calls."""
    text = "turns=4,first=500,growth=200,osl=100,gap=15s,groups=30,prefix=4000"
    plan = fo.plan(text, rate=30, slo="8s", pools=1, tp=1, token_budget=2048, routing=routing, burst="poisson")
    found = fo.simulate(plan, requests=12_000, max_requests=12_000, seeds=1).results["all"]
    facts = plan.caches["all"]
    assert 0.3 < facts["cached_share"] < facts["repeated_share"]
    assert found.clients["cached_share"] == pytest.approx(facts["cached_share"], abs=0.015)


def test_what_the_gpu_drops_comes_back_from_the_host():
    """The same three sessions: everything is found, and a first token waits for what is copied, one prefix at a time."""
    host = PrefixCache(math.inf, host_tokens=10_000.0, host_tokens_per_s=500.0)
    calls = _session(gaps=(5.0,), sessions=3)
    run = run_clients(calls, ClientRules(), ITERATION, slots=4, token_budget=2048, kv_tokens=2_300, cache=host)
    again = [k for k in range(6) if calls.repeated_tokens[run.call[k]] > 0]
    assert all(run.found[k] == 992 for k in again) and max(run.host) > 0
    for k in again:
        assert run.first_s[k] - run.sent_s[k] >= run.host[k] / 500.0
    fast = PrefixCache(math.inf, host_tokens=10_000.0)
    quick = run_clients(calls, ClientRules(), ITERATION, slots=4, token_budget=2048, kv_tokens=2_300, cache=fast)
    assert sum(quick.first_s) < sum(run.first_s)


def test_what_is_not_used_for_long_is_not_found():
    for ttl, found in ((4.0, [0, 0, 0]), (6.0, [0, 992, 1200])):
        kept = PrefixCache(math.inf, ttl_s=ttl)
        run = run_clients(
            _session(), ClientRules(), ITERATION, slots=4, token_budget=2048, kv_tokens=10_000, cache=kept
        )
        assert run.found == found


@pytest.mark.parametrize("routing", ["sticky", "prefix", "random", "least", "rr"])
def test_nothing_is_lost_under_any_routing(routing):
    sessions = SyntheticSessions(turns=6.0, first=800.0, growth=300.0, osl=60.0, gap=10.0).workload().sessions
    calls, span = session_calls(sessions, 12.0, 3_000, seed=1)
    rules = ClientRules(max_queue=20, timeout_s=4.0, retries=2, retry_after_s=0.5)
    run = run_clients(
        calls,
        rules,
        ITERATION,
        replicas=3,
        slots=16,
        token_budget=1024,
        kv_tokens=40_000,
        routing=routing,
        until_s=span,
    )
    columns = run.columns()
    ended = np.isfinite(columns["done_s"])
    ended[run.rejected] = ended[run.given_up] = True
    # only what was under way at the end has no end
    assert np.all(columns["sent_s"][~ended] > span - 60.0)
    assert not set(run.rejected) & set(run.given_up)
    assert np.all(
        columns["first_s"][np.isfinite(columns["done_s"])] <= columns["sent_s"][np.isfinite(columns["done_s"])] + 4.1
    )


def test_sticky_finds_more_than_random():
    sessions = SyntheticSessions(turns=8.0, first=800.0, growth=300.0, osl=60.0, gap=10.0).workload().sessions
    calls, span = session_calls(sessions, 10.0, 6_000, seed=1)
    share = {}
    for routing in ("sticky", "random"):
        run = run_clients(
            calls, ClientRules(), ITERATION, replicas=4, slots=32, token_budget=2048, kv_tokens=60_000, routing=routing,
            until_s=span,
        )  # fmt: skip
        prompts = np.array(calls.input_tokens)[np.array(run.call)]
        share[routing] = sum(run.found) / prompts.sum()
    assert share["sticky"] > 1.4 * share["random"] > 0.0


def test_a_plan_of_sessions_holds_in_the_simulation():
    """The share planned and the share simulated, within the closed form's error and a run of 15,000 calls."""
    plan = fo.plan("turns=12,first=2500,growth=600,osl=200,gap=40s", rate=15, slo="8s", pools=1, token_budget=2048)
    found = fo.simulate(plan, requests=15_000, seeds=1).results["all"]
    assert found.clients["cached_share"] == pytest.approx(plan.caches["all"]["cached_share"], abs=0.05)
    assert found.quantile("ttft_s", 0.9).value < plan.pools[0].quantile("ttft_s", 0.99)


def test_limits_of_a_plan_reach_evaluation_and_simulation():
    plan = fo.plan("azure", rate=20, slo="1s", max_queue=40, client_timeout="20s", retries=1, burst="poisson", pools=1)
    facts = plan.to_dict()["overload"]["all"]
    assert facts["limits"][0]["max_queue"] >= 1
    assert [row["load"] for row in facts["loads"]] == [0.8, 1.0, 1.2, 1.5, 2.0, 3.0]
    assert any("--max-queue" in line for line in plan.explanation)
    beyond = 2.0 * plan.replicas * plan.pools[0].capacity_per_s
    row = fo.evaluate(plan, beyond).to_rows()[0]
    met = fo.simulate(plan, rate=beyond, requests=12_000, seeds=1, arrivals="poisson").results["all"].clients
    assert row["goodput_per_s"] == pytest.approx(met["goodput_per_s"], rel=0.1)
    assert row["rejected_share"] == pytest.approx(met["rejected_share"], abs=0.05)


def test_what_cannot_be_is_said():
    with pytest.raises(InputError, match="timeout must be positive"):
        ClientRules(timeout_s=0.0)
    with pytest.raises(InputError, match="one queue"):
        run_clients(_apart([0.0]), ClientRules(), ITERATION, routing="central", kv_tokens=math.inf)
