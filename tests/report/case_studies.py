"""Results of studies made up by hand, on both sides of every branch of their pages; the plan they hold is one of closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from planner.ask.capacity import Capacity, CapacityPool
from planner.ask.classes import TieredPlan
from planner.ask.costs import ApiComparison, Commitment, Costs, Energy, TokenPrices, WayToPay
from planner.ask.difference import Changed, Difference
from planner.ask.evaluation import Evaluation, Served
from planner.ask.growth import Growth, Month
from planner.ask.hourly import Elasticity
from planner.ask.overview import Cut, Overview, Sensitivity
from planner.ask.schedule import Schedule, ScheduledPool
from planner.ask.services import ServicePlan, ServicesPlan, SharedGpus
from planner.ask.simulate import Verification
from planner.ask.verify import Check
from planner.ask.what_if import Asked, Sweep, SweepPoint
from planner.compress.measure import CategoryResult, CompressionMeasurement
from planner.papers.compare import Comparison
from planner.papers.printed import DIFFERS, SAME, Finding, Reproduction
from planner.papers.statistics import Estimate
from planner.plans import Alternative, LatencyValue, Narrowing, Sized, Sureness
from planner.predict.contract import Prediction
from planner.promise import Promise, Slo
from planner.question.options import PlanInputs
from planner.report.listings import drift_listing, workload_list
from planner.shared.remarks import Remark
from planner.size.fleet import Verdict
from planner.workload.arrivals import Arrivals
from planner.workload.combine import Drift, WorkloadSummary
from planner.workload.workload import Provenance, Workload
from tests.report.report_cases import CHOICES, GOODPUT, ROWS, TTFT, choice, plan

TPOT = Promise("tpot_s", 0.05, 0.95)
SERVED = Served(
    "m-8b",
    "chat",
    1154.7,
    211.2,
    (TTFT.label, TPOT.label),
    {"h100": 12, "l4": 3},
    40.5,
    {"h100": "estimated", "l4": "measured"},
)
PAYS = (
    WayToPay("on demand", 0.0, 12.0, 0.0, 40.0),
    WayToPay("reserved", 9.0, 2.5, 0.0, 30.0),
    WayToPay("spot", 8.0, 0.0, 4.0, 31.0),
)
COSTS = Costs(
    {},
    "azure",
    24,
    87.65,
    131.0,
    240.0,
    PAYS,
    (Commitment("h100", "1 year", 1.99, 2.99, 0.6656, 7.9, 9, 156789.0, 8.0, "their list"),),
    TokenPrices(0.123, 0.0987, 0.456, 0.62),
    (ApiComparison("api", 90.0, 2.25, 38.9, 0.444),),
    Energy(8400.0, 9800.0, 0.0345, 1.2, 1.5, 3.4, {"h100": ("1", "2")}, {}),
    ("a note",),
)


def costs() -> dict[str, Any]:
    """Ways to pay, with and without what need not be there."""
    bare = replace(COSTS, ways=(PAYS[0],), commitments=(), apis=(), energy=None, notes=())
    plain = Energy(500.0, 600.0, 0.01, 1.0, None, None, {}, {})
    return {"costs": COSTS, "costs-bare": bare, "costs-energy": replace(COSTS, energy=plain, ways=PAYS[:2][::-1])}


def prediction(load: float, ttft: float) -> Prediction:
    """Latencies of a pool."""
    return Prediction(
        quantiles=(0.5, 0.95, 0.99),
        latencies={"ttft_s": (0.1, 0.2, ttft), "tpot_s": (0.01, 0.02, 0.03), "e2e_s": (1.0, 2.0, math.inf)},
        load=load,
        slot_occupancy=0.5,
        mean_running=12.5,
        wait_probability=0.1,
    )


def evaluations() -> dict[str, Any]:
    """Rates that keep the promises and rates that do not."""
    good, bad = (
        Verdict("short", 50.0, prediction(0.5, 0.3), ()),
        Verdict("long", 90.0, prediction(0.9, 0.7), (TTFT, TPOT)),
    )
    two = Served("m", "chat", 10.0, 20.0, (TTFT.label,), {"h100": 1}, 4.05, {"h100": "measured"})
    whole = Evaluation(
        {}, 123.4, (50.0, 100.0), ((good, replace(good, pool="long")), (good, bad)), (0.5, 0.99), SERVED, (0.995, 0.123)
    )
    alone = replace(whole, verdicts=((good,), (bad,)), chances=(None, None), served=two)
    many = replace(
        alone,
        rates_per_s=tuple(float(k) for k in range(1, 11)),
        verdicts=((good,),) * 10,
        chances=(0.876,) * 10,
        levels=(0.95,),
    )
    eight = replace(many, rates_per_s=many.rates_per_s[:8], verdicts=((good,),) * 8, chances=(None,) * 8)
    return {
        "evaluation": whole,
        "evaluation-alone": alone,
        "evaluation-many": many,
        "evaluation-eight": eight,
        "evaluation-nothing": replace(alone, served=replace(two, promises=())),
    }


def capacities() -> dict[str, Any]:
    """What a fleet bears."""
    one = CapacityPool(
        "short", "h100", "TP1", 4, 1, 4, 0.0, 4096.0, 0.75, 30.0, 0.8, 8192, 256, 12.0, {"ttft_p99_s": 0.45}
    )
    long = replace(
        one, name="long", gpu="l4", low_tokens=4096.0, high_tokens=16384.0, share=0.25, gpus=2, rate_per_s=10.0
    )
    whole = Capacity({"confidence": 0.9}, {"h100": 6, "l4": 2}, 40.0, 40.8, "P99 TTFT of long", (one, long), SERVED)
    served = replace(SERVED, promises=(TTFT.label,), trust={}, users_per_rate=25.0)
    return {"capacity": whole, "capacity-one": replace(whole, inputs={}, have={"h100": 4}, pools=(one,), served=served)}


def schedules() -> dict[str, Any]:
    """A day and a week."""
    pool = ScheduledPool(
        "short",
        "h100",
        2,
        0.6,
        12.5,
        (1, 2, 3, *[2] * 21),
        (2, 2, 4, *[3] * 21),
        (1,) * 24,
        (0, 1, 0, *[0] * 21),
        (10.0, 10.5, 20.0, *[15.0] * 21),
        (4.0, 4.0, 8.0, *[6.0] * 21),
        20.0,
        180.0,
    )
    long = replace(pool, name="long", share=0.4, gpus_per_replica=1, spares=(0,) * 24, starting=(0,) * 24)
    day = Schedule(
        {}, tuple(10.0 + h for h in range(24)), Elasticity(300.0, 7200.0, 0.15), "azure", (pool, long), ("n",)
    )
    single = replace(
        pool,
        gpus_per_replica=1,
        **dict.fromkeys(("needed", "replicas"), (1,) * 168),
        spares=(0,) * 168,
        starting=(0,) * 168,
        cost_usd=(2.5,) * 168,
        gpu_hours=(1.0,) * 168,
        static_usd_per_hour=2.5,
        least_usd=400.0,
    )
    return {
        "schedule": day,
        "schedule-week": replace(
            day, rates_per_s=(5.0, *[6.0] * 167), pools=(single,), elasticity=Elasticity(0.0, 0.0, 0.0)
        ),
    }


def growths() -> dict[str, Any]:
    """Orders and none."""
    months = (
        Month("2026-01-01", 110.0, {"h100": 4}, (3, 1), {}, None, False, 12.0),
        Month("2026-02-01", 121.0, {"h100": 6, "l4": 1}, (4, 2), {"h100": 2, "l4": 1}, "2025-12-01", True, 18.0),
        Month("2026-03-01", 133.0, {"h100": 8, "l4": 1}, (5, 3), {"h100": 2}, "2026-01-15", False, 24.0),
    )
    whole = Growth({}, 0.1, 30 * 86400.0, {"h100": 4}, 100.0, months)
    return {
        "growth": whole,
        "growth-none": replace(whole, months=months[:1]),
        "growth-late": replace(whole, months=months[2:]),
    }


def differences() -> dict[str, Any]:
    """Two plans."""
    old, new = (
        {"gpus": 4.0, "cost_usd_per_hour": 10.0, "arrival_rate_per_s": 50.0},
        {"gpus": 6.0, "cost_usd_per_hour": 15.0, "arrival_rate_per_s": 75.5},
    )
    promise = {"metric": "ttft_s", "limit_s": 0.5, "quantile": 0.99}
    changed = (
        Changed("rate", 50.0, 75.5, 6, 15.0),
        Changed("gpu", ["h100"], [], None, None, "no fleet"),
        Changed("promises", [promise], [{**promise, "limits_s": [1, 2]}, None], 4, 10.0),
        Changed("x", {}, {"a": 1}, 2, 2.5),
    )
    whole = Difference(old, new, ("1.0", "2.0"), changed, {**old, "gpus": 5.0, "cost_usd_per_hour": 12.0})
    return {"difference": whole, "difference-none": Difference(old, old, ("1", "1"), (), old)}


def sweeps() -> dict[str, Any]:
    """Points with and without a fleet."""
    one, two = plan(), plan(2)
    base, work = PlanInputs.from_dict({"slo": 4.0}), Workload.from_arrays([1.0], [1.0], name="any")

    def point(
        changes: dict[str, Any], found: Any, why: str | None, usd: float | None, pinned: str | None
    ) -> SweepPoint:
        return Asked(changes, base, work, False, (), True, usd, pinned).answered(found, why)

    asked: list[tuple[dict[str, Any], Any, str | None]] = [
        ({"rate": 50.0, "gpu": "h100"}, one, None),
        ({"rate": 100.0, "gpu": "h100"}, two, None),
        ({"rate": 200.0, "gpu": "l4"}, None, "too slow\nmore"),
        ({"rate": 400.0}, None, "too slow"),
    ]
    points = tuple(point(*one, 30.0, None) for one in asked)
    named = tuple(point({"gpu": n}, p, None, None, None) for n, p in (("h100", one), ("l4", two)))
    crossed = tuple(
        point({"slo": s, "rate": r}, p, None, None, None) for s in (4.0, 2.0) for r, p in ((200.0, two), (100.0, one))
    )
    pins = ("pools", "engines", None, "pools")
    kept = tuple(point(*one, 30.0, pinned) for one, pinned in zip(asked, pins, strict=True))
    return {
        "sweep": Sweep(base, points, 30.0),
        "sweep-none": Sweep(base, points[2:]),
        "sweep-named": Sweep(base, named),
        "sweep-crossed": Sweep(base, crossed),
        "sweep-pinned": Sweep(base, kept, 1234.5),
    }


def services() -> dict[str, Any]:
    """Services that share, and one alone."""
    few = Remark("few_requests", {"requests": 2, "promise": "P99 TTFT", "wanted": 500})
    doubtful = replace(plan(2), remarks={"warnings": (few,)})
    found = (
        ServicePlan("chat", 1, plan(), {"h100": tuple(range(24))}, 30.0, 35.0),
        ServicePlan("batch", 2, doubtful, {"h100": (3,) * 24}, 10.0, 12.0),
        ServicePlan("late", 3, None, {}, 0.0, 0.0, "no GPUs left"),
    )
    shared = (
        SharedGpus("h100", 2.5, 40, 26, tuple(3 + h for h in range(24)), 1),
        SharedGpus("l4", 0.5, None, 0, (0,), 0),
        SharedGpus("l40s", 1.5, None, 2, (2,) * 30, 0),
    )
    whole = ServicesPlan(found, shared, 100.0, ("something",))
    week = SharedGpus("h100", 2.5, None, 26, tuple(1 + h for h in range(30)), 0)
    chat = replace(found[0], gpus_by_hour={"h100": tuple(range(30))}, alone_usd_per_hour=1.0)
    nothing = ServicesPlan((found[2],), (shared[1],), None, ())
    return {"services": whole, "services-week": ServicesPlan((chat,), (week,), None, ()), "services-none": nothing}


def measured() -> dict[str, Any]:
    """Compressions, reproductions, comparisons of policies and of workloads."""
    some = CategoryResult(
        40,
        30,
        {"gate": 6, "kept": 3, "odd": 1},
        {"mean": 0.31, "p50": 0.3},
        {"mean": 0.87},
        {"mean": 0.91},
        {"p50": 0.012, "p95": 0.034, "p99": 0.056},
    )
    none = CategoryResult(0, 0)
    found = CompressionMeasurement(4096, 1.5, 1200, some, {"chat": some, "code": none}, "words")
    said = (
        Finding("A", "q1", "as is", "1.0", "1.01", SAME, "round"),
        Finding("A", "q2", "as is", "2", "3", DIFFERS, "other"),
        Finding("B", "q3", "else", "5", "5", SAME, "round"),
    )
    rows = [
        {
            "policy": "eb",
            "rate_per_s": 4.0,
            "stable": True,
            "ttft_p99_s": 0.5,
            "ttft_p99_s_ci95": 0.02,
            "tpot_p99_s": 0.03,
            "tpot_p99_s_ci95": 0.0,
            "attainment": 0.9,
            "goodput_per_s": 3.9,
            "extra_tokens": 12.0,
            "extra_per_1000": 4,
            "kv_gpus": 3,
            "e2e_mean_s": 9.0,
            "p90_tbt_s": 0.1,
        },
        {"policy": "wait", "rate_per_s": 8.0, "stable": False, "ttft_p99_s": None, "note": None},
    ]
    apart = Drift(0.12, 0.23, 0.34, 1.45, 1.56, 0.67, 1.78, 0.89, 1.11, 2.22)
    return {
        "compression": found,
        "compression-none": replace(found, total=none, categories={"": none}),
        "reproduction": Reproduction(("A", "B"), said),
        "reproduction-one": Reproduction(("A",), said[:2]),
        "verification": Verification(
            (
                Check("short", TTFT, 0.25, Estimate(0.26, 0.01), "holds", "inside"),
                Check("fleet", GOODPUT, 0.995, Estimate(0.99, 0.001), "open", "few"),
                Check("long", TPOT, None, Estimate(math.inf, math.nan), "broken", "overload"),
            ),
            {},
            50.0,
            ("w",),
        ),
        "policies": Comparison(rows, 300, (1,)),
        "drift": drift_listing(apart, ("a", "b")),
        "drift-rateless": drift_listing(replace(apart, rate=None), ("a", "b")),
    }


def workloads() -> dict[str, Any]:
    """Workloads of which much or little is known."""
    lengths = np.array([100.0, 2000.0, 5000.0, 7000.0]), np.array([10.0, 20.0, 300.0, 40.0])
    day = tuple(1.0 + 0.5 * math.sin(h) for h in range(24))
    told = Arrivals(12.5, 1.5, 60.0, ((1.0, 1.2), (60.0, 3.4)), day, 2.25, "assumed so", 1.4)
    known = Provenance("their site", "MIT", 123456, ("a note",), "0.8 of the total: guessed")
    full = Workload.from_arrays(
        *lengths,
        category=["chat", "code", "", "chat"],
        compressible={"chat": 0.5, "code": None},
        arrivals=told,
        name="full",
        provenance=known,
    )
    week = replace(told, hourly_profile=day * 7, scv_window_s=None, assumed=None, dispersion=())
    weekly = Workload.from_arrays(
        *lengths, arrivals=week, name="weekly", provenance=Provenance("s"), category=["", "", "x", ""]
    )
    bare = Workload.from_arrays(*lengths, name="bare", arrivals=Arrivals(assumed=None))
    return {
        "workload": WorkloadSummary(full, 4096.0, 1.5, 512),
        "workload-week": WorkloadSummary(weekly, 1000.0, 1.0, 256),
        "workload-bare": WorkloadSummary(bare, 4096.0, 2.0, 512),
        "workloads": workload_list([full, weekly, bare], {"p": told}),
        "workload-sessions": WorkloadSummary(
            Workload.from_file("turns=3,first=2000,growth=400,osl=300,gap=30s"), 4096.0, 1.5, 512
        ),
        "workloads-alone": workload_list([bare], {}),
    }


def plans() -> dict[str, Any]:
    """Plans with everything that can stand on a page, and with nothing."""
    one, two = plan(), plan(2)
    base = one.cost_usd_per_hour / 10.0
    rows = [
        replace(c, cost_usd_per_hour=None if c.cost_usd_per_hour is None else base * c.cost_usd_per_hour) for c in ROWS
    ]
    rows += [
        replace(choice("promise", "P99 TTFT 700 ms", 7.0 * base, 0.7), gpus=9),
        replace(choice("redundancy", "a node", 300.0 * base), gpus=77),
    ]
    rows += [choice("traffic", "none", None, None, "no"), choice("promise", "P99 TTFT 400 ms", None, 0.4, "never")]
    at = [Sized(c, (n,), n, 2.69 * n) for c, n in ((0.5, 63), (0.1, 46), (0.9, 99))]
    sure = Sureness(
        0.8, 0.7, 0.13, 8, 0.84, *at, (Sized(0.85, (80,), 80, 200.0),), 1.0, (Narrowing("calibration", 0.07, 1, 32.0),)
    )
    own = {r.code: r for r in one.remarks["assumptions"]}
    few = Remark("few_requests", {"requests": 2, "promise": "P99 TTFT", "wanted": 500})
    choices = replace(CHOICES, rows=tuple(rows), cost_usd_per_hour=one.cost_usd_per_hour, gpus=one.gpus)
    told = {**one.remarks, "warnings": (few, *one.remarks["warnings"])}
    wider = replace(
        one.pools[0], replicas_low=3, replicas_high=None, spares=2, gamma=1.5, compressed_share=0.12, low_tokens=100.0
    )
    shared = LatencyValue(GOODPUT.metric, 0.99, math.nan, math.nan, math.nan, GOODPUT.limit_s, 0.9934, 0.98, None)
    joint = replace(wider, latency=(*wider.latency, shared), replicas_high=11 * wider.replicas, name="joint")
    none = Sureness(0.8, 0.5, 0.1, 8, 0.84, *(Sized(c, None) for c in (0.5, 0.1, 0.9)), (), 1.0, ())
    exact = Sureness(
        0.8,
        0.995,
        0.1,
        8,
        0.84,
        *(Sized(c, (one.gpus,), one.gpus, 1.0) for c in (0.5, 0.1, 0.9)),
        (),
        1.0,
        (Narrowing("calibration", 0.07, 0, 1.0),),
    )
    whole = replace(
        one,
        choices=choices,
        sureness=sure,
        remarks=told,
        pools=(replace(joint, replicas_high=joint.replicas + 3),),
        explanation=("because",),
        notes=("noted",),
    )
    return {
        "plan": whole,
        "plan-two": replace(
            two,
            sureness=exact,
            remarks={
                "assumptions": (
                    *own.values(),
                    replace(own["gpu_price"], values={**own["gpu_price"].values, "gpu": "l4", "source": ""}),
                    Remark("users", {"population": "50 users"}),
                )
            },
        ),
        "plan-apart": replace(
            two,
            shape="disaggregated",
            sureness=none,
            pools=(replace(joint, mean_output_tokens=1.0), *two.pools[1:]),
            warnings=("careful",),
            alternatives=(Alternative("colocated", one.pools), Alternative("other", (), "never")),
            slo=Slo(promises=(TTFT, TPOT, GOODPUT)),
            workload={"name": "own"},
            remarks={"assumptions": (Remark("short_trace", {}),)},
            baseline=None,
        ),
        "plan-bare": replace(
            one,
            pools=(wider,),
            sureness=None,
            remarks={},
            inputs={**one.inputs, "pools": 2, "compress": True},
            workload={},
            baseline=one.pools,
            slo=Slo(promises=(GOODPUT,)),
        ),
        "plan-split": replace(
            two,
            inputs={**two.inputs, "pools": 2},
            baseline=(*one.pools, *one.pools),
            choices=replace(choices, promise=None),
            sureness=exact,
        ),
        "plan-bands": replace(
            one,
            pools=tuple(
                replace(p, replicas_low=n, replicas_high=high, latency=latency)
                for p, n, high, latency in (
                    (wider, 7, 7, wider.latency),
                    (wider, 3, 9, joint.latency),
                    (joint, 2, None, ()),
                    (joint, 0, 5, wider.latency[:1]),
                )
            ),
            baseline=one.pools[:1],
            inputs={**one.inputs, "pools": 2, "route_on": "total"},
        ),
        "tiers": TieredPlan((("a", "b"), ("c",)), (one, two), (), ()),
    }


def overviews() -> dict[str, Any]:
    """What a report holds, and what only pictures show."""
    told = plans()
    one, apart = told["plan"], told["plan-split"]
    rates = evaluations()["evaluation"]
    doubts = (Sensitivity("output lengths", 9.0, 14.5), Sensitivity("bursts", None, 20.0))
    cuts = tuple(
        Cut(b, g, c) for b, g, c in ((2048.0, 1.0, 9.0), (4096.0, 1.5, 8.0), (8192.0, 1.0, None), (4096.0, 1.0, 8.5))
    )
    joint = replace(one, slo=Slo(promises=(TTFT, GOODPUT, Promise("e2e_s", 5.0, 0.9))))
    kept = {v.pool: replace(v, shares=((GOODPUT, 0.9934),)) for v in rates.verdicts[1]}
    shared = replace(rates, verdicts=(tuple(kept.values()), rates.verdicts[0]), rates_per_s=(50.0, 150.0))
    scaler = type("Autoscaling", (), {})()
    outcome = SimpleNamespace(name="hpa", attained=0.75, replica_hours=123.4)
    scaler.pools = [
        SimpleNamespace(
            pool="short", outcomes=[outcome, SimpleNamespace(name="keda", attained=0.0, replica_hours=99.0)]
        )
    ]
    return {
        "overview": Overview(joint, shared, doubts, schedules()["schedule"], COSTS, "fleetopt report <plan>", cuts),
        "overview-bare": Overview(
            replace(apart, sureness=None),
            evaluations()["evaluation-alone"],
            doubts[:1],
            None,
            costs()["costs-bare"],
            "x",
            cuts[:1],
        ),
        "autoscaling": scaler,
    }
