from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import planner as fo
from planner.ask.evaluation import Evaluation
from planner.ask.schedule import Schedule
from planner.errors import InfeasibleError, InputError
from planner.report import formatter

pytestmark = pytest.mark.usefixtures("few_replayed")

BASE: dict[str, Any] = {
    "slo": 2.0,
    "rate": 300.0,
    "method": "occupancy",
    "gammas": [1.0],
    "boundaries": [2048, 4096],
    "burst": "poisson",
    "tp": 1,
    "token_budget": 2048,
}


def shortest_stretch(replicas: tuple[int, ...]) -> int:
    """Length of the shortest run of one value on the circle."""
    changes = [k for k in range(len(replicas)) if replicas[k] != replicas[k - 1]]
    gaps = [(b - a - 1) % len(replicas) + 1 for a, b in zip(changes, [*changes[1:], *changes[:1]], strict=True)]
    return min(gaps, default=len(replicas))


FLEET_WIDE = fo.Slo(promises=(fo.Promise("ttft_s", 0.8, scope="fleet"),))


def schedule(**changes: Any) -> Schedule:
    return fo.schedule(workload="azure", **{**BASE, "hours": "servegen-m-small", **changes})


@cache
def usual() -> Schedule:
    """The day of the base options."""
    return schedule()


@cache
def busiest() -> fo.Plan:
    """The plan of that day's busiest hour."""
    return fo.plan("azure", **{**BASE, "rate": max(usual().rates_per_s)})


@pytest.fixture(scope="module")
def day() -> Schedule:
    return schedule(dwell="3h", startup="10min")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "mgc", "slo": 8.0},
        {"redundancy": 1},
        {"rate_is": "peak"},
        {"slo": FLEET_WIDE, "rate": 60.0, "boundaries": [4096]},
    ],
)
def test_peak_is_the_static_plan_of_the_busiest_hour(changes: dict[str, Any]) -> None:
    found = schedule(**changes) if changes else usual()
    options = {k: v for k, v in {**BASE, **changes}.items() if k != "rate_is"}
    static = fo.plan("azure", **{**options, "rate": max(found.rates_per_s)})
    assert [p.peak for p in found.pools] == [p.replicas for p in static.pools]
    assert found.peak_replicas == static.replicas
    assert found.static_cost_usd == pytest.approx(24 * static.cost_usd_per_hour)


@pytest.mark.parametrize(
    ("startup", "dwell"),
    [("0", "0"), ("0", "24h"), ("4min", "2h"), ("90min", "5h"), ("30h", "0"), ("30h", "24h")],
)
def test_costs_are_ordered_and_dwell_is_kept(startup: str, dwell: str) -> None:
    found = schedule(startup=startup, dwell=dwell, buffer="5%", method="mgc", slo=8.0)
    assert found.perfect_cost_usd <= found.cost_usd + 1e-9
    assert found.cost_usd <= found.static_cost_usd + 1e-9
    assert found.perfect_gpu_hours <= found.gpu_hours + 1e-9 <= found.static_gpu_hours + 2e-9
    for pool in found.pools:
        assert shortest_stretch(pool.replicas) >= found.elasticity.dwell_hours
        assert all(n >= m for n, m in zip(pool.replicas, pool.needed, strict=True))


def at_hour(plan: fo.Plan, counts: list[int], rate: float) -> Evaluation:
    """The plan's pools with other numbers of replicas."""
    pools = tuple(replace(p, replicas=n) for p, n in zip(plan.pools, counts, strict=True))
    return fo.evaluate(replace(plan, pools=pools), rate)


def test_every_hour_keeps_its_promises(day: Schedule) -> None:
    for hour in range(0, 24, 3):
        assert at_hour(busiest(), [p.replicas[hour] for p in day.pools], day.rates_per_s[hour]).holds


def test_one_replica_fewer_breaks_the_perfect_autoscaler(day: Schedule) -> None:
    for hour in (4, 11):
        for k in range(len(busiest().pools)):
            counts = [p.needed[hour] - (j == k) for j, p in enumerate(day.pools)]
            tried = at_hour(busiest(), counts, day.rates_per_s[hour])
            # hours are sized for the plan's confidence, not for even odds
            sure = tried.chances[0] is None or tried.chances[0] >= 0.8
            assert not (tried.holds and sure) or max(v.prediction.load for v in tried.verdicts[0]) > 0.85


def test_constant_traffic_scales_nothing(tmp_path: Path) -> None:
    (tmp_path / "flat.csv").write_text("\n".join(["7"] * 24))
    found = schedule(hours=tmp_path / "flat.csv")
    assert found.cost_usd == found.static_cost_usd == found.perfect_cost_usd
    assert found.saving == 0.0
    assert found.reactive_buffer == 0.0


def test_a_silent_hour_keeps_the_minimum(tmp_path: Path) -> None:
    (tmp_path / "night.csv").write_text("\n".join(["0"] * 6 + ["1"] * 18))
    found = schedule(hours=tmp_path / "night.csv", startup="0", min_replicas=2)
    assert {p.replicas[3] for p in found.pools} == {2}
    assert all(row["load"] == 0.0 for row in found.to_rows() if row["hour"] == 3)


def test_a_file_of_rates_is_the_fleets_own(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("hour,rate_per_s\n" + "".join(f"{h},{100 + 10 * h}\n" for h in range(24)))
    found = schedule(hours=tmp_path / "rates.csv", rate=None)
    assert found.rates_per_s[3] == pytest.approx(130.0)


def test_a_week_of_a_plan_file(tmp_path: Path) -> None:
    plan = fo.plan("azure", **BASE)
    (tmp_path / "plan.yaml").write_text(formatter("yaml")(plan))
    (tmp_path / "week.csv").write_text("\n".join(str(1 + (h % 24) / 24 + (h // 24 < 5)) for h in range(168)))
    week = fo.schedule(tmp_path / "plan.yaml", hours=tmp_path / "week.csv", rate_is="peak")
    assert week.hours == 168
    assert week.label(30) == "Tue 06:00"
    assert [p.peak for p in week.pools] == [p.replicas for p in plan.pools]
    same = fo.schedule(plan, hours=tmp_path / "week.csv", rate_is="peak")
    assert same.to_dict() == week.to_dict()


def test_options_and_plan_file_give_the_same_day() -> None:
    by_plan = fo.schedule(busiest(), hours="servegen-m-small", rate_is="peak")
    assert [p.replicas for p in by_plan.pools] == [p.replicas for p in usual().pools]


def test_buffer_covers_traffic_that_much_higher() -> None:
    # one pool and its engine: another peak may be served cheapest by others
    same: dict[str, Any] = {"startup": "0", "pools": 1}
    plain, buffered = schedule(**same), schedule(**same, buffer="20%")
    assert buffered.perfect_cost_usd == plain.perfect_cost_usd
    more = schedule(**same, rate=360.0)
    assert [p.replicas for p in buffered.pools] == [p.replicas for p in more.pools]


def test_spot_and_spares_are_in_the_cost() -> None:
    found = schedule(spot_price={"h100": 1.0}, spot_share=0.5, redundancy=1, startup="30min")
    assert found.perfect_cost_usd < found.cost_usd < found.static_cost_usd
    assert all(s == 1 for p in found.pools for s in p.spares)


def test_a_promise_that_breaks_at_the_peak_is_told() -> None:
    with pytest.raises(InfeasibleError):
        schedule(slo=0.001)
    plan = fo.plan("azure", **BASE)
    with pytest.raises(InfeasibleError, match="cannot be kept"):
        fo.schedule(plan, hours="servegen-m-small", slo=0.001)


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"buffer": -0.1}, "buffer"), ({"rate_is": "most"}, "rate_is"), ({"hours": None}, "no rates by hour")],
)
def test_refuses(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        schedule(**changes)
