"""Plans of prefill and decode replicas: their costs, their files, their hours, and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import planner as fo
from planner.errors import InfeasibleError, InputError
from planner.report import formatter
from planner.report.blocks import to_markdown, to_terminal
from planner.report.text.why import why
from planner.workload.workload import Workload
from tests.size.test_disaggregated import WORKLOAD

pytestmark = pytest.mark.usefixtures("fewer_replayed", "short_traces", "without_chances", "without_words")


def test_looser_promises_never_cost_more() -> None:
    costs = [
        fo.plan(WORKLOAD, **options(slo=s, tpot=t, tp=1, rate=60.0, confidence=0.5)).cost_usd_per_hour
        for s, t in ((0.2, 0.012), (0.4, 0.012), (0.4, 0.03))
    ]
    assert costs == sorted(costs, reverse=True)


def options(**changes: Any) -> dict[str, Any]:
    return {"rate": 300.0, "slo": 0.5, "tpot": 0.02, "shape": "disaggregated", "burst": "poisson", **changes}


def test_the_plan_round_trips_through_evaluate(tmp_path: Path) -> None:
    plan = fo.plan("azure", slo=0.8, e2e=9, rate=50, shape="disaggregated", tp=1, burst="poisson", confidence=0.5)
    assert [p.name for p in plan.pools] == ["prefill", "decode"]
    (tmp_path / "plan.yaml").write_text(formatter("yaml")(plan))
    (tmp_path / "plan.json").write_text(formatter("json")(plan))
    for name in ("plan.yaml", "plan.json"):
        found = fo.evaluate(tmp_path / name)
        assert found.holds
        rows = found.to_rows()
        assert rows[0]["ttft_p99_s"] == pytest.approx(plan.pools[0].quantile("ttft_s", 0.99))
        assert rows[1]["tpot_p99_s"] == pytest.approx(plan.pools[1].quantile("tpot_s", 0.99))
        assert rows[1]["e2e_p99_s"] == pytest.approx(plan.pools[1].quantile("e2e_s", 0.99))
    assert not fo.evaluate(plan, 1000).holds
    for k in range(2):
        fewer = tuple(replace(p, replicas=p.replicas - (j == k)) for j, p in enumerate(plan.pools))
        small = fo.evaluate(replace(plan, pools=fewer))
        assert not small.holds or max(v.prediction.load for v in small.verdicts[0]) > 0.85


def test_the_plan_is_scheduled(tmp_path: Path) -> None:
    (tmp_path / "hours.csv").write_text("\n".join(["3"] * 8 + ["9"] * 4 + ["6"] * 12))
    base: dict[str, Any] = {
        "slo": 0.8,
        "rate": 100,
        "shape": "disaggregated",
        "burst": "poisson",
        "tp": 1,
        "confidence": 0.5,
    }
    day = fo.schedule(workload="azure", hours=tmp_path / "hours.csv", **base)
    plan = fo.plan("azure", **{**base, "rate": max(day.rates_per_s)})
    assert [p.peak for p in day.pools] == [p.replicas for p in plan.pools]
    assert day.perfect_cost_usd <= day.cost_usd <= day.static_cost_usd
    again = fo.schedule(plan, hours=tmp_path / "hours.csv", rate_is="peak")
    assert [p.replicas for p in again.pools] == [p.replicas for p in day.pools]


def test_both_takes_the_cheaper_and_shows_the_other() -> None:
    engine = {"slo": 2.0, "pools": 1, "burst": "poisson", "token_budget": 2048, "confidence": 0.5}
    for base in ({"rate": 200, "tp": 1, **engine}, {"tpot": "16ms", "rate": 40, "tp": 2, **engine}):
        both = fo.plan("azure", shape="both", method="occupancy", **base)
        costs = {
            shape: fo.plan("azure", shape=shape, method="occupancy", **base).cost_usd_per_hour
            for shape in ("colocated", "disaggregated")
        }
        assert both.cost_usd_per_hour == min(costs.values())
        assert costs[both.shape] == both.cost_usd_per_hour
        (other,) = both.alternatives
        assert other.cost_usd_per_hour == costs[other.shape]
        rows = both.to_rows()
        assert {r["shape"] for r in rows} == {"colocated", "disaggregated"}
        assert any("would cost" in note for note in both.notes)
        for text in (to_terminal(why(both), 100), to_markdown(why(both))):
            assert "disaggregated: prefill" in text
        assert f"OTHERWISE  {other.shape}: {sum(p.gpus for p in other.pools)} GPUs (" in formatter("table")(both)
        data = yaml.safe_load(formatter("yaml")(both))
        assert data["alternatives"][0]["shape"] == other.shape
        assert data["inputs"]["shape"] == "both"


def test_two_gpus_may_share_the_work() -> None:
    asked = options(slo=1.0, tpot=0.03, rate=50, tp=1, token_budget=2048, confidence=0.5)
    one = fo.plan("azure", gpu=["h100"], **asked)
    two = fo.plan("azure", gpu=["h100", "l40s"], **asked)
    assert two.cost_usd_per_hour <= one.cost_usd_per_hour


def test_nobody_decodes() -> None:
    rows = Workload.from_arrays(np.array([100.0, 2000.0]), np.ones(2), name="embeddings")
    plan = fo.plan(rows, **options(slo=0.3, tpot=None, e2e=0.2, rate=50.0))
    assert [p.name for p in plan.pools] == ["prefill"]
    e2e = plan.pools[0].quantile("e2e_s", 0.99)
    assert e2e is not None
    assert e2e <= 0.2


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"slo": 0.001}, InfeasibleError, "P99 TTFT"),
        ({"tpot": 0.001}, InfeasibleError, "P99 TPOT"),
        ({"e2e": 0.05, "slo": 5.0, "rate": 20.0}, InfeasibleError, "P99 E2E"),
        ({"inventory": {"h100": 1}, "rate": 60.0}, InfeasibleError, "inventory"),
        ({"shape": "both-ways"}, InputError, "shape"),
        ({"kv_transfer_gbps": 0.0}, InputError, "kv_transfer_gbps"),
        ({"profile": "fleetopt-paper"}, InputError, "charges nothing for prefill"),
    ],
)
def test_refuses(changes: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        fo.plan("azure", **options(tp=1, token_budget=2048, **changes))


@pytest.mark.long("a disaggregated plan of a whole trace")
def test_a_promise_about_decoding_alone_says_nothing_of_pools_that_do_not_decode() -> None:
    """A prefill pool has no TPOT: no number of it stands in a note, and none breaks a promise."""
    plan = fo.plan("azure", rate=50.0, tpot="30ms", shape="disaggregated")
    assert not any(value != value for note in plan.remarks["notes"] for value in note.values.values())


@pytest.mark.parametrize("promise", [{"tpot": "20ms"}, {"e2e": "4s"}], ids=["TPOT", "E2E"])
def test_a_published_fleet_of_sixteen_is_found(promise: dict[str, str]) -> None:
    """llm-d's guide: gpt-oss-120b on 16 H200 (8 x TP1 prefill, 2 x TP4 decode, vLLM 0.27.1) answers 45 requests/s of 5,000 in and
    250 out with P99 TTFT 2.0 s, P99 E2E 3.7 s and 6.5 ms a token; from the data sheet no more than 18 are bought."""
    plan = fo.plan(
        model="gpt-oss-120b", gpu="h200", engine="vllm@0.27.1", shape="disaggregated", rate=45, isl=5000, osl=250, isl_spread=0,
        osl_spread=0, burst="poisson", slo="2s", **promise,
    )  # fmt: skip
    assert plan.shape == "disaggregated" and plan.gpus <= 18
