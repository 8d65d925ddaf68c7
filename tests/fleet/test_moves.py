"""From one fleet to another, counted by hand; the chance that promises hold, against draws of its errors."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import planner as fo
from planner.fleet.chance import chance_of
from planner.fleet.fleet import Fleet
from planner.fleet.moves import moves
from planner.fleet.pool import with_trials
from planner.fleet.shapes import standing_fleet
from planner.question.compiled import compile_question
from planner.question.files import question_of, saved_pools
from planner.workload.workload import Workload

BASE = {"slo": 0.5, "rate": 100.0, "method": "occupancy", "tp": 1, "pools": 1, "burst": "poisson"}


@pytest.fixture(scope="module")
def plan() -> fo.Plan:
    return fo.plan("azure", **BASE)  # type: ignore[arg-type]


def test_what_stays_moves_comes_and_goes(plan: fo.Plan) -> None:
    (now,) = saved_pools(plan)
    (pool,) = plan.pools
    n = pool.replicas
    assert [r.to_dict()["values"] for r in moves([now], [pool])] == [
        {"pool": "all", "what": "TP1 of h100-80gb", "keep": n, "move": 0, "add": 0}
    ]
    # two fewer of the same, three with other settings, one of another kind
    there = [
        replace(now, replicas=n - 2),
        replace(now, name="b", slots=now.slots + 1, replicas=3),
        replace(now, name="c", tp=2, replicas=1),
    ]
    first, second, third = moves(there, [pool])
    assert first.values == {"pool": "all", "what": "TP1 of h100-80gb", "keep": n - 2, "move": 2, "add": 0}
    assert second.values == {"pool": "b", "retire": 1, "gpu": "h100-80gb", "tp": 1}
    assert third.values == {"pool": "c", "retire": 1, "gpu": "h100-80gb", "tp": 2}


def test_a_plan_from_a_fleet_says_what_to_do(plan: fo.Plan, tmp_path: Path) -> None:
    more = fo.plan("azure", current=plan, **{**BASE, "rate": 200.0})  # type: ignore[arg-type]
    (note,) = [n for n in more.notes if n.startswith("from the fleet there is")]
    added = more.replicas - plan.replicas
    assert f"keeps {plan.replicas}, takes 0 restarted with its settings and adds {added} x TP1 of h100-80gb" in note
    assert more.remarks["notes"][0].code == "moves"


def _fleet(plan: fo.Plan) -> Fleet:
    workload = Workload.from_file("azure")
    saved = question_of(plan)
    fleet = standing_fleet(compile_question(saved.inputs(), workload), saved.pools)
    sizes = fleet.size(fleet.rate)
    assert isinstance(sizes, list)
    (pool,) = fleet.pools
    # as a search leaves it
    size = with_trials(pool.model, pool.arrival_rate_per_s, sizes[0], fleet.promises, fleet.levels)
    fleet.pools[0] = replace(pool, size=size)
    return fleet


def test_the_chance_is_that_of_drawn_errors(plan: fo.Plan) -> None:
    """Profile and method errors drawn, the pool predicted anew; for the power law and 200 draws: 8 points."""
    fleet = _fleet(plan)
    (pool,) = fleet.pools
    promises = fleet.own_promises
    found = chance_of(pool, promises, 0.0, fleet.levels)
    assert found is not None
    assert plan.chance == pytest.approx(found.share, abs=0.02)
    (p,) = promises
    rng = np.random.Generator(np.random.PCG64(7))
    low, high = pool.size.prediction.bands[p.metric][pool.size.prediction.quantiles.index(p.quantile)]
    edges = math.log1p(low), math.log1p(high)
    draws = 200
    method = np.exp(rng.normal(0.5 * sum(edges), (edges[1] - edges[0]) / 2.0 / 1.6449, draws))
    slower = np.exp(rng.normal(0.0, math.log1p(pool.option.profile.band) / 1.6449, draws))
    held = 0
    for s, m in zip(slower.tolist(), method.tolist(), strict=True):
        # s times as long is the same pool at s times the rate with s times the result
        rate = pool.arrival_rate_per_s * s
        if rate < pool.size.replicas * pool.model.capacity_per_s:
            held += (
                s * m * pool.model.predict(rate, pool.size.replicas, fleet.levels).value(p.metric, p.quantile)
                <= p.limit_s
            )
    assert found.share == pytest.approx(held / draws, abs=0.08)


def test_a_tighter_band_makes_a_kept_promise_surer(plan: fo.Plan) -> None:
    fleet = _fleet(plan)
    (pool,) = fleet.pools
    sure = replace(pool, option=replace(pool.option, profile=replace(pool.option.profile, band=0.02)))
    loose = tuple(replace(p, limit_s=3.0 * p.limit_s) for p in fleet.own_promises)
    wide, narrow = chance_of(pool, loose, 0.0, fleet.levels), chance_of(sure, loose, 0.0, fleet.levels)
    assert wide is not None
    assert narrow is not None
    assert narrow.share >= wide.share > 0.5
    assert wide.widest == "profile"


def test_no_chance_is_told_where_the_prediction_is_not_reliable() -> None:
    """Where requests wait for slots the closed form is off by more than a plan can be sized with: it says so, and who decides."""
    asked = {"ttft": 20.0, "max_num_seqs": 4, "burst": "poisson", "tp": 1, "token_budget": 2048, "pools": 1}
    doubtful = fo.plan("azure", rate=40.0, method="closed", **asked)  # type: ignore[arg-type]
    assert doubtful.chance is None
    told = [str(w) for w in doubtful.warnings]
    assert any("no promise" in w and "--verify decides" in w for w in told)
