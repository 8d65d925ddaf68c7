"""Deaths that spares are for: what a plan says of them against a replay made here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import planner as fo
from planner.predict.records import Outage
from planner.predict.replayed import ReplayPool
from planner.predict.run import replay
from planner.question.compiled import compile_question
from planner.question.files import question_of
from planner.size.shapes import standing_fleet

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances")


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty minutes at 20/s with five twice as busy from the tenth minute on."""
    rng = np.random.default_rng(3)
    times = np.concatenate((rng.uniform(0.0, 1200.0, 24_000), rng.uniform(600.0, 900.0, 6000)))
    rows = zip(np.sort(times), rng.integers(200, 1200, times.size), rng.integers(20, 120, times.size), strict=True)
    file = tmp_path_factory.mktemp("crowd") / "crowd.csv"
    file.write_text("t_s,input_tokens,output_tokens\n" + "\n".join(f"{t:.3f},{i},{o}" for t, i, o in rows))
    return file


def test_spares_that_are_called_on_keep_the_promise(crowd: Path) -> None:
    plan = fo.plan(crowd, slo=0.5, tp=1, pools=1, token_budget=2048, redundancy=2)
    told = [r.values for r in plan.remarks["notes"] if r.code.startswith("deaths_") and r.values["dead"] == 2]
    (pool,) = plan.pools
    assert told and told[0]["bought"] == pool.replicas and told[0]["value_s"] <= 0.5
    question = compile_question(question_of(plan).inputs(), fo.load_workload(crowd))
    (built,) = standing_fleet(question, question_of(plan).pools).pools
    assert isinstance(built.model, ReplayPool)
    laid = built.model.traffic.lay(built.rate_per_s, pool.replicas, built.model.engine.routing)
    requests = built.model.traffic.requests(laid)
    down = [Outage(k, 600.0, 2400.0) for k in range(2)]
    run = replay(requests, replace(built.model.engine, count=pool.replicas), outages=down)
    ttft = np.sort(run.ttft_s + built.model.overhead_s)
    assert told[0]["value_s"] == pytest.approx(ttft[int(np.ceil(0.99 * ttft.size)) - 1])


@pytest.mark.parametrize(
    "asked",
    [{"scope": "fleet"}, {"shape": "disaggregated"}, {"method": "occupancy"}, {"cached_share": 0.5}],
    ids=["promise of the fleet", "prefill apart", "closed form", "shared prompts"],
)
def test_what_was_not_replayed_is_not_passed_over(asked: dict[str, object], crowd: Path) -> None:
    plan = fo.plan(crowd, slo=0.5, tp=1, pools=1, token_budget=2048, redundancy=1, **asked)  # type: ignore[arg-type]
    told = [r for r in plan.remarks["notes"] if r.code.startswith("deaths_")]
    untold = [] if "cached_share" in asked else [(p.name, p.spares) for p in plan.pools]
    assert told and [(r.values["pool"], r.values["spares"]) for r in told if r.code == "deaths_unknown"] == untold


def test_without_spares_nothing_is_told(crowd: Path) -> None:
    plan = fo.plan(crowd, slo=0.5, tp=1, pools=1, token_budget=2048)
    assert not [r for r in plan.remarks["notes"] if r.code.startswith("deaths_")]
