"""From one fleet to another, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import planner as fo
from planner.question.files import saved_pools
from planner.size.moves import moves

pytestmark = pytest.mark.usefixtures("fewer_replayed", "short_traces", "without_chances")

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
