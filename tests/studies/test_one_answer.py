"""One answer: the same fleet at the same rate has the same prediction, whichever command asks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner as fo
from planner.promise import GOODPUT
from planner.report import formatter
from planner.routing import ROUTINGS
from planner.workload.arrivals import Arrivals

RATES = (3.0, 20.0, 200.0)
"""Below, at and above the rate of the trace."""

ALL_RATES = (2.0, 8.0, 37.5, 120.0, 400.0)

BURSTY = Arrivals(8.0, dispersion=((1.0, 5.0), (10.0, 25.0), (60.0, 60.0)), assumed=None)

ROUTED = tuple(routing.name for routing in ROUTINGS.values() if routing.law)
"""Every routing that every method knows."""

COLOCATED = [
    {"method": method, "burst": burst, "routing": routing}
    for method, burst, routing in itertools.product(("mixed", "occupancy", "mgc"), ("auto", "poisson"), ROUTED)
]
DISAGGREGATED = [
    {"shape": "disaggregated", "burst": burst, "routing": routing, "e2e": e2e}
    for burst, routing, e2e in itertools.product(("auto", "poisson"), ROUTED, (None, 6.0))
]
FEW = [*COLOCATED[::5], *DISAGGREGATED[::5]]
"""Every method, shape, routing and kind of arrivals among them; all of them are asked in .ci/long."""

SENT: list[dict[str, Any]] = [
    {"burst": "paced:50"},
    {"surge": "3x/60s"},
    {"surge": "3x/60s/30s", "burst": "poisson"},
    {"in_flight": 60},
]
"""How else requests may be sent: `mgc` knows Poisson arrivals alone."""

ASKED: list[dict[str, Any]] = [
    {"goodput": "95%:ttft=20s,tpot=80ms"},
    {"cached_share": 0.5},
    {"shared_prefix": 96},
    {"client_timeout": 30.0, "retries": 2, "max_queue": 40},
    {"pools": 2, "boundaries": [600.0]},
    {"pools": 2, "boundaries": [600.0], "scope": "fleet"},
    {"inventory": {"h100": 500}},
    {"redundancy": 2, "headroom": "20%"},
]
"""What else may be asked of a fleet."""

WHOLE: list[dict[str, Any]] = [
    {**by, **way, "routing": routing}
    for by, ways in (
        ({"method": "mixed"}, [*SENT, *ASKED, {"speculate": "ngram:k=3,accept=0.6"}]),
        ({"method": "occupancy"}, [*SENT, *ASKED]),
        ({"method": "mgc"}, ASKED),
        ({"shape": "disaggregated"}, ASKED),
    )
    for way in ways
    for routing in (("random", "p2c") if way in SENT else ROUTED)
]
QUICK: list[dict[str, Any]] = [
    {**by, **way, "routing": routing}
    for by in ({"method": "mgc"}, {"method": "occupancy", "burst": "poisson"})
    for way, routing in itertools.product(ASKED, ("random", "rr", "p2c", "least"))
]


@pytest.fixture(scope="module")
def traffic() -> fo.Workload:
    """A handful of lengths, so that many fleets are sized in little time."""
    rng = np.random.default_rng(4)
    inputs = np.round(np.exp(rng.normal(6.2, 0.9, 24))) + 20.0
    outputs = np.round(np.exp(rng.normal(4.6, 0.7, 24))) + 2.0
    return fo.Workload.from_arrays(inputs, outputs, arrivals=BURSTY, name="handful")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> fo.Workload:
    """Requests with times: calm and busy minutes in turn, longer prompts in the busy ones."""
    rng = np.random.default_rng(9)
    lines = ["timestamp,input_tokens,output_tokens"]
    for minute, count in enumerate(rng.choice([60, 400], size=10)):
        prompts = rng.integers(100, 900 if count > 100 else 300, size=count)
        times = np.sort(rng.uniform(60.0 * minute, 60.0 * (minute + 1), size=count))
        lines += [
            f"{at:.3f},{n},{o}" for at, n, o in zip(times, prompts, rng.integers(5, 200, size=count), strict=True)
        ]
    file = tmp_path_factory.mktemp("recorded") / "busy.csv"
    file.write_text("\n".join(lines))
    workload = fo.load_workload(file)
    assert workload.trace() is not None
    return workload


def question(options: dict[str, Any]) -> dict[str, Any]:
    slo = 20.0 if options.get("method") == "mgc" else 0.6
    # one engine: what is compared is who asks, not what is searched
    engine = {} if options.get("method") == "mgc" else {"tp": 1, "token_budget": 2048}
    return {"slo": slo, "pools": 1, "rate": 50.0, **engine, **options}


def latencies(pools: Any) -> list[list[float]]:
    """Latencies of every pool, and shares that keep several limits."""
    return [[v.value_s if v.share is None else v.share for v in p.latency] for p in pools]


def evaluated(plan: fo.Plan, rate: float) -> list[list[float]]:
    """What `evaluate` says, in the order the plan says it."""
    rows = fo.evaluate(plan, rate).to_rows()
    shares = {p.metric: p.column for p in plan.slo.promises if p.kind == GOODPUT}
    names = [
        [shares.get(v.metric) or f"{v.metric.removesuffix('_s')}_p{100 * v.quantile:.10g}_s" for v in p.latency]
        for p in plan.pools
    ]
    return [[row[name] for name in of_pool] for row, of_pool in zip(rows, names, strict=True)]


@pytest.mark.parametrize("options", FEW, ids=lambda o: "-".join(map(str, o.values())))
def test_every_command_gives_the_same_answer(options: dict[str, Any], traffic: fo.Workload, tmp_path: Path) -> None:
    agree(traffic, question(options), tmp_path)


@pytest.mark.parametrize("options", QUICK, ids=lambda o: "-".join(map(str, o.values())))
def test_so_they_do_whatever_else_is_asked(options: dict[str, Any], traffic: fo.Workload, tmp_path: Path) -> None:
    agree(traffic, question(options), tmp_path, (8.0, 20.0))


@pytest.mark.long
@pytest.mark.parametrize("options", [*COLOCATED, *DISAGGREGATED, *WHOLE], ids=lambda o: "-".join(map(str, o.values())))
def test_so_they_do_at_five_rates(options: dict[str, Any], traffic: fo.Workload, tmp_path: Path) -> None:
    agree(traffic, question(options), tmp_path, ALL_RATES)


@pytest.mark.long
@pytest.mark.parametrize("routing", ROUTED)
@pytest.mark.parametrize("method", ["mixed", "occupancy"])
def test_so_they_do_of_sessions(method: str, routing: str, tmp_path: Path) -> None:
    chats: Any = "turns=12,first=4000,growth=900,osl=250,gap=40s"
    asked = {"method": method, "routing": routing, "burst": "poisson", "slo": 8.0}
    agree(chats, question(asked), tmp_path, (5.0, 30.0))


@pytest.mark.parametrize(
    "options",
    [
        {"method": "mixed", "routing": "p2c"},
        {"method": "occupancy", "routing": "least"},
        {"shape": "disaggregated", "routing": "random"},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_so_they_do_along_the_path_of_a_trace(options: dict[str, Any], recorded: fo.Workload, tmp_path: Path) -> None:
    agree(recorded, question(options), tmp_path, (8.0, 60.0))


def agree(traffic: fo.Workload, asked: dict[str, Any], tmp_path: Path, rates: Sequence[float] = RATES) -> None:
    """What-if at every rate, then each fleet evaluated and scheduled at that rate from a plan made for another."""
    plans = [point.plan for point in fo.what_if(fo.plan(traffic, **asked), rate=list(rates)).points]
    for plan in plans:
        assert plan is not None
        # a plan for another rate, with this one's fleet: only the rate asked about may count
        elsewhere = replace(plan, inputs={**plan.inputs, "rate": 37.0})
        for found, stated in zip(evaluated(elsewhere, plan.arrival_rate_per_s), latencies(plan.pools), strict=True):
            assert found == pytest.approx(stated, rel=1e-9)
    (tmp_path / "hours.csv").write_text("\n".join(str(rates[h % len(rates)]) for h in range(24)))
    hours = fo.schedule(elsewhere, hours=tmp_path / "hours.csv", rate_is="peak", rate=max(rates))
    for k, plan in enumerate(plans):
        assert plan is not None
        # what a perfect scaler needs has no headroom, what is held has
        if "headroom" not in asked:
            assert [p.needed[k] for p in hours.pools] == [p.replicas for p in plan.pools]
        assert all(p.replicas[k] >= q.replicas for p, q in zip(hours.pools, plan.pools, strict=True))


@pytest.mark.parametrize("method", ["mixed", "occupancy", "mgc"])
@pytest.mark.parametrize("routing", ["random", "jsq"])
def test_simulate_prints_the_plans_prediction_beside_its_own(method: str, routing: str, traffic: fo.Workload) -> None:
    plan = fo.plan(traffic, **question({"method": method, "routing": routing, "rate": 20.0}))
    for rate in RATES:
        asked_anew = fo.what_if(plan, rate=[rate]).points[0].plan
        assert asked_anew is not None
        found = fo.simulate(replace(asked_anew, inputs=plan.inputs), rate=rate, requests=300, seeds=1, max_requests=300)
        stated = {p.name: p.quantile("ttft_s", 0.99) for p in asked_anew.pools}
        assert {c.where: c.predicted for c in found.checks} == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize("written", ["yaml", "json"])
@pytest.mark.parametrize("shape", ["colocated", "disaggregated"])
def test_a_plan_of_a_workload_in_memory_is_asked_again(
    written: str, shape: str, traffic: fo.Workload, tmp_path: Path
) -> None:
    plan = fo.plan(traffic, **question({"shape": shape}))
    file = tmp_path / f"plan.{written}"
    file.write_text(formatter(written)(plan))
    for fleet in (plan, file):
        rows = fo.evaluate(fleet).to_rows()
        assert [row["ttft_p99_s"] for row in rows if row["ttft_p99_s"]] == pytest.approx(
            [v for p in plan.pools if (v := p.quantile("ttft_s", 0.99))], rel=1e-12
        )
    again = fo.what_if(file, rate=[50.0]).points[0].plan
    assert again is not None
    assert latencies(again.pools) == latencies(plan.pools)
    assert fo.evaluate(again).holds


def test_a_plan_of_a_file_does_not_carry_rows() -> None:
    by_name = fo.plan("azure", slo=2.0, method="occupancy", pools=1)
    loaded = fo.plan(fo.Workload.from_file("azure"), slo=2.0, method="occupancy", pools=1)
    assert by_name.to_dict() == loaded.to_dict()
    assert "rows" not in by_name.workload


def test_rows_that_were_edited_are_refused(traffic: fo.Workload, tmp_path: Path) -> None:
    plan = fo.plan(traffic, **question({"method": "mgc"}))
    file = tmp_path / "plan.yaml"
    text = formatter("yaml")(plan)
    file.write_text(text.replace("output_tokens:\n    - ", "output_tokens:\n    - 9", 1))
    with pytest.raises(fo.InputError, match="digest"):
        fo.evaluate(file)
