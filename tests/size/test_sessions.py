"""Plans of sessions: replicas, routing and cache together."""

from types import SimpleNamespace

import pytest

import planner as fo
from planner.catalog import model
from planner.machine.hardware import Parallelism
from planner.question.options import PlanInputs
from planner.routing import DEFAULT_ROUTING
from planner.size.pool import prefix_cache

CHATS = "turns=12,first=4000,growth=900,osl=250,gap=40s"
BIG = {
    "rate": 6,
    "slo": "8s",
    "model": "llama-3.1-8b",
    "tp": [1, 2],
    "pools": 1,
    "token_budget": 2048,
    "burst": "poisson",
    "confidence": 0.5,
}
APART = {**BIG, "rate": 15, "slo": "p90=2s", "tpot": "p90=40ms", "shape": "disaggregated", "tp": 1}

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances")


@pytest.fixture(scope="module")
def plan(few_replayed):
    return fo.plan(CHATS, **BIG)


def test_a_session_that_stays_needs_fewer_gpus(plan):
    assert plan.inputs["routing"] in ("sticky", "prefix")
    blind = fo.plan(CHATS, **BIG, routing="random")
    without = fo.plan(CHATS, **BIG, routing="random", prefix_cache="off")
    assert plan.gpus < blind.gpus <= without.gpus  # on engines of different sizes
    assert without.caches is None


def test_the_plan_shows_the_curve(plan):
    facts = plan.to_dict()["caches"]["all"]
    assert 0.5 < facts["cached_share"] <= facts["repeated_share"]
    by_routing = {}
    for point in facts["curve"]:
        by_routing.setdefault(point["routing"], []).append((point["replicas"], point["cached_share"]))
    random, sticky = (sorted(by_routing[name]) for name in ("random", "sticky"))
    # of the eleven calls before a last one some must have come to the same replica, and memory must have kept them
    assert all(share <= facts["repeated_share"] * (1.0 - (1.0 - 1.0 / n) ** 11) for n, share in random)
    assert [s for _, s in sticky] == sorted(s for _, s in sticky)
    assert all(a <= b for (_, a), (_, b) in zip(random, sticky, strict=True))
    assert any("prefix caches supply" in line for line in plan.explanation)
    assert any("routing sticky is the cheapest" in note for note in plan.notes)


def test_the_plan_is_evaluated_as_it_was_planned(plan):
    found = fo.evaluate(plan, 6.0).verdicts[0][0].prediction
    for value in plan.pools[0].latency:
        assert found.value(value.metric, value.quantile) == pytest.approx(value.value_s, rel=1e-9)
    assert found.load == pytest.approx(plan.pools[0].load)


def test_a_constant_share_rules_out_the_caches():
    given = fo.plan(CHATS, **BIG, cached_share=0.5)
    assert given.caches is None and given.inputs["routing"] == DEFAULT_ROUTING


def test_host_memory_and_retention(plan):
    one = {**BIG, "tp": 2, "routing": "random"}
    with_host = fo.plan(CHATS, **one, offload=512)
    facts = with_host.caches["all"]
    assert facts["host_share"] > 0.05
    assert with_host.replicas <= fo.plan(CHATS, **one).replicas
    short = fo.plan(CHATS, **BIG, routing="sticky", session_ttl="5s")
    assert short.caches["all"]["cached_share"] < plan.caches["all"]["cached_share"]


@pytest.mark.long("two plans of sessions that keep host memory")
def test_host_memory_that_is_slower_than_computing_is_left_alone():
    one = {**BIG, "tp": 2, "routing": "random"}
    slow, bare = fo.plan(CHATS, **one, offload=512, offload_gbps=2), fo.plan(CHATS, **one)
    assert slow.cost_usd_per_hour == bare.cost_usd_per_hour and slow.inputs["offload"] == 0.0
    assert any("host memory or disk for prompts (512 GiB) is not used" in note for note in slow.notes)


def test_shared_prefixes_want_a_gateway_that_knows_them():
    """150 prefixes of 6,000 tokens do not fit on every replica; each on its own they do."""
    text = "groups=150,prefix=6000,prompts=5,question=1200,osl=100"
    asked = {
        "rate": 15,
        "slo": "2s",
        "model": "qwen3-32b",
        "tp": 2,
        "pools": 1,
        "token_budget": 2048,
        "burst": "poisson",
    }
    plan = fo.plan(text, **asked)
    assert plan.inputs["routing"] == "prefix"
    shares = {p["routing"]: p["cached_share"] for p in plan.caches["all"]["curve"] if p["replicas"] == plan.replicas}
    # a prefix is five sixths of its prompts
    assert shares["prefix"] > 0.95 * 5.0 / 6.0 > 2.0 * shares["random"]


def test_prefill_replicas_of_a_disaggregated_fleet_keep_prompts():
    """Planned and simulated share; answers are not there."""
    plan = fo.plan(CHATS, **APART, routing="sticky")
    assert list(plan.caches) == ["prefill"]
    facts = plan.caches["prefill"]
    assert facts["cached_share"] < facts["repeated_share"]
    curve = {p["replicas"]: p["cached_share"] for p in facts["curve"] if p["routing"] == "random"}
    assert max(curve.values()) < 0.5 * facts["cached_share"]
    found = fo.simulate(plan, requests=12_000, max_requests=12_000, seeds=1).results
    # other sessions: draws of 10,000 to 40,000 calls stray by 0.03 from each other
    assert found["prefill"].clients["cached_share"] == pytest.approx(facts["cached_share"], abs=0.07)
    for pool, metric in ((plan.pools[1], "tpot_s"), (plan.pools[1], "e2e_s")):
        assert found["decode"].quantile(metric, 0.9).value == pytest.approx(pool.quantile(metric, 0.9), rel=0.12)


@pytest.mark.long("sessions at disaggregated pools")
def test_of_the_routings_to_prefill_replicas_the_cheapest_is_taken():
    """Of one pool: above, quick."""
    sticky = fo.plan(CHATS, **APART, routing="sticky")
    assert fo.plan(CHATS, **APART).cost_usd_per_hour <= sticky.cost_usd_per_hour


@pytest.mark.long("sessions at disaggregated pools")
def test_host_memory_and_doors_at_prefill_replicas():
    plan = fo.plan(CHATS, **APART, routing="random", offload=256, max_queue=20)
    facts = plan.caches["prefill"]
    assert facts["host_share"] > 0.05
    assert plan.overload["prefill"]["limits"][0]["max_queue"] >= 1
    assert fo.evaluate(plan, 15.0).verdicts[0][0].prediction.load == pytest.approx(plan.pools[0].load)


@pytest.mark.long("a run of 15,000 calls")
def test_copies_of_a_replica_have_caches_of_their_own():
    """Attention data parallelism: the curve, the doors, and what a run of 15,000 calls finds."""
    plan = fo.plan(
        "turns=8,first=3000,growth=700,osl=250,gap=40s", rate=15, slo="5s", model="qwen3-30b-a3b", gpu="h200", dp=2,
        drop_longer_than=40_960, client_timeout="20s",
    )  # fmt: skip
    facts = plan.caches["all"]
    assert {point["routing"] for point in facts["curve"]} == {"random", "sticky"}
    answered = [row["answered_share"] for row in plan.overload["all"]["loads"]]
    assert answered == sorted(answered, reverse=True)
    assert 0.2 < answered[-1] < 0.36
    met = fo.simulate(plan, requests=15_000, max_requests=15_000, seeds=1).results["all"].clients
    assert met["cached_share"] == pytest.approx(facts["cached_share"], abs=0.02)


@pytest.mark.parametrize("engine, windows", [("vllm@0.27", 1.0), ("vllm", 0.0), ("sglang", 0.0)])
def test_old_engines_keep_the_blocks_of_windows(engine, windows):
    # half of gpt-oss's layers have windows
    inputs = PlanInputs.from_dict({"slo": 1, "engine": engine})
    option = SimpleNamespace(model=model("gpt-oss-120b"), parallel=Parallelism(2))
    assert prefix_cache(SimpleNamespace(inputs=inputs), option).windows == windows
