"""What is seen of replicas at a load, against Little's law and the replay's own account; thresholds recomputed from them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import planner as fo
from planner.ask.simulate import pool_engines
from planner.operate.autoscale.derive import aimed_at, guard_values, most_in_stock
from planner.operate.autoscale.windows import GUARD, PeakPrefill, Signals, peak_prefill, signals_of
from planner.operate.monitor.policy import Policy
from planner.papers.traffic import SampledTraffic
from planner.predict.run import replay
from planner.size.fleet import Fleet
from tests.operate.monitor.exporter import fleet_of

pytestmark = pytest.mark.usefixtures("few_replayed", "few_paths")


@cache
def fleet() -> Fleet:
    return fleet_of(fo.plan(workload="azure", rate=60, slo=0.5, pools=1, burst="poisson", routing="p2c"))


@cache
def signals() -> tuple[PeakPrefill, Signals]:
    (pool,) = fleet().pools
    peak = peak_prefill(pool)
    return peak, signals_of(fleet(), 0, peak)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.85])
def test_what_runs_and_waits_is_what_another_replay_counts(load: float) -> None:
    """Four replicas, other draws of the requests: residents by the engines' own account, in flight by Little's law."""
    (pool,), (_, found) = fleet().pools, signals()
    rate = load * pool.model.capacity_per_s
    law, engines = pool.law, pool_engines(fleet(), pool)
    sent = SampledTraffic(law.input_tokens, law.output_tokens, law.weight, 4.0 * rate, 30_000, law.cached_share)(77)
    run = replay(sent.requests, engines.pool(4))
    span = float(sent.requests.arrival_s[-1])
    running = float(run.resident_s.sum()) / span / 4.0
    in_flight = rate * float(np.mean(run.done_s - sent.requests.arrival_s))
    # six thousand requests of a replay against thirty thousand: a few percent, more where queues come and go
    assert found.at("running", rate) == pytest.approx(running, rel=0.08 if load < 0.8 else 0.2)
    assert found.at("in_flight", rate) == pytest.approx(in_flight, rel=0.08 if load < 0.8 else 0.25)
    assert found.at("waiting", rate) == pytest.approx(found.at("in_flight", rate) - found.at("running", rate), abs=1e-6)
    # what the decodes hold: prompts and on average half of the outputs, of what memory there is
    held = found.at("running", rate) * (law.input_tokens @ law.weight + 0.5 * law.output_tokens @ law.weight)
    assert found.at("kv_usage", rate) == pytest.approx(held / law.weight.sum() / engines.kv_tokens, rel=0.5)
    assert found.at("saturation", rate) >= found.at("kv_usage", rate) / 0.8 - 1e-9


def test_the_peak_of_prefill_is_a_chunk_over_its_first_token() -> None:
    (pool,), (peak, _) = fleet().pools, signals()
    engines = pool_engines(fleet(), pool)
    traffic = SampledTraffic(np.array([peak.chunk_tokens]), np.array([2.0]), np.array([1.0]), 1e-3, 3, np.array([0.0]))
    requests = traffic(1).requests
    run = replay(requests, replace(engines.pool(1), request_s=0.0, wake_s=0.0))
    ttft = float(run.ttft_s[1]) + engines.api_overhead_s
    assert peak.tokens_per_s == pytest.approx(peak.chunk_tokens / ttft, rel=2e-3)
    assert peak.chunk_tokens == pool.option.token_budget and (peak.model, peak.gpu) == ("llama-3.1-8b", "h100-80gb")
    # another engine, GPU or model is another value, and says so; the same one says the same
    other = fleet_of(fo.plan(workload="azure", rate=60, slo=0.5, pools=1, burst="poisson", gpu="a100"))
    assert peak_prefill(other.pools[0]).fingerprint != peak.fingerprint == peak_prefill(pool).fingerprint
    assert len(peak.fingerprint) == 16 and peak.to_dict()["kind"] == "fleetopt-peak-prefill"


def test_guards_stay_quiet_as_planned() -> None:
    """A fifth above what a replica shows where the rule aims, and above what is seen in all but a hundredth of the looks."""
    _, found = signals()
    policy = Policy({"requests": 12.0}, 1, 6, offset_per_s=6.0)
    assert aimed_at(policy) == 11.0
    guards = guard_values(policy, found)
    for name in ("running", "in_flight", "kv_usage", "saturation", "backlog_s"):
        high = float(np.interp(11.0, found.rates_per_s, found.high[name]))
        wanted = max(GUARD * float(np.interp(11.0, found.rates_per_s, found.seen[name])), high)
        assert wanted - 1e-3 <= guards[name] <= wanted + 1e-9
    assert guards["queued"] >= 1.0


def test_beyond_the_capacity_slots_are_full_and_the_rest_waits() -> None:
    (pool,), (_, found) = fleet().pools, signals()
    totals = found.totals(3.0 * found.top_per_s, 2.0, 500.0)
    assert totals["running"] == 2.0 * pool.setup.slots
    assert totals["queued"] == 500.0 and totals["in_flight"] == 2.0 * pool.setup.slots + 500.0


def test_maxima_respect_the_inventory() -> None:
    """Seven GPUs of a type, where the busiest hour has nearly twice the mean's traffic: thirteen replicas without a limit."""
    options = {"workload": "azure", "rate": 60, "slo": 0.5, "pools": 1, "method": "occupancy", "tp": 1}
    plan = fo.plan(**options, inventory={"h100": 7})
    (pool,) = fleet_of(plan).pools
    assert most_in_stock(fleet_of(plan), pool) == 7
    assert most_in_stock(fleet(), fleet().pools[0]) == math.inf
    (scaler,) = fo.autoscale(plan, hours="servegen-m-small", rate_is="mean", startup=60).pools
    assert scaler.policy.most == 7 and scaler.planned == plan.pools[0].replicas
