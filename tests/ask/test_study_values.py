"""What studies say beside a plan, number by number: reckoned here from the plan and the question."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import planner as fo
from planner.ask.batch import window_of
from planner.ask.difference import difference_of
from planner.ask.overview import Sensitivity, cuts_of, doubts_of, rates_of, sensitivities
from planner.catalog.load import FOLDER
from planner.question.files import question_of
from planner.question.options import PlanInputs
from planner.report import formatter

pytestmark = pytest.mark.usefixtures("few_replayed")

QUICK: dict[str, Any] = {"method": "occupancy", "pools": 1, "burst": "poisson"}


@pytest.fixture(scope="module")
def plan() -> fo.Plan:
    return fo.plan("azure", slo=1.0, rate=20, headroom=0.25, cached_share=0.6, osl_scale=1.5, **QUICK)


@pytest.fixture(scope="module")
def cut() -> fo.Plan:
    return fo.plan(
        "azure",
        slo=2.0,
        rate=300,
        gpu="a100",
        kv="reserved",
        method="occupancy",
        pools=2,
        boundaries=[4096],
        gammas=1.0,
    )


def test_what_might_be_otherwise(plan: fo.Plan) -> None:
    """A fifth less and more of the rate that was asked, of the outputs, of the limits; half as much again and half of the cache."""
    inputs = question_of(plan).inputs()
    assert plan.arrival_rate_per_s == pytest.approx(25.0)

    def numbers(change: Mapping[str, Any] | None) -> dict[str, Any]:
        return {k: v if isinstance(v, (str, list)) else pytest.approx(v) for k, v in (change or {}).items()}

    found = {name: (numbers(low), numbers(high)) for name, low, high in doubts_of(plan, inputs, bursts=True)}
    limits = found.pop("limits 20% looser, 20% tighter")
    assert [PlanInputs.from_dict(dict(x)).promises[0].limit_s for x in limits] == [
        pytest.approx(1.2),
        pytest.approx(0.8),
    ]
    assert found == {
        "traffic 20% less, 20% more": ({"rate": 16.0}, {"rate": 24.0}),
        "outputs 20% shorter, 20% longer": ({"osl_scale": 1.2}, {"osl_scale": 1.8}),
        "no bursts (Poisson)": ({"burst": "poisson"}, {}),
        "cached share half as much again, half": ({"cached_share": 0.9}, {"cached_share": 0.3}),
    }
    # a share of requests stays below all; the busiest hour's rate stays that; no bursts cannot be fewer
    other = replace(inputs, cached_share=0.7, rate_is="mean")
    names = {name: low for name, low, _ in doubts_of(plan, other, bursts=False)}
    assert names["cached share half as much again, half"] == {"cached_share": 0.95}
    assert names["traffic 20% less, 20% more"] == {"rate": pytest.approx(16.0), "rate_is": "peak"}
    assert "no bursts (Poisson)" not in names
    assert len(doubts_of(plan, replace(inputs, cached_share=0.0), bursts=False)) == 3


def test_rates_that_are_shown_leave_out_what_is_nearly_full(plan: fo.Plan) -> None:
    """Of 25 requests/s, between 85% of the capacity and all of it, its own rate aside."""
    assert rates_of(plan, 40.0) == pytest.approx([6.25, 12.5, 18.75, 22.5, 25.0, 27.5, 31.25, 34.0, 43.75, 50.0])
    assert rates_of(plan, 26.0) == pytest.approx([6.25, 12.5, 18.75, 22.1, 25.0, 27.5, 31.25, 37.5, 43.75, 50.0])


def test_where_else_requests_might_be_cut(plan: fo.Plan, cut: fo.Plan) -> None:
    inputs = question_of(cut).inputs()
    assert cut.pools[0].high_tokens == 4096.0
    assert cuts_of(cut, inputs) == [(b, 1.0) for b in (1434.0, 2048.0, 2867.0, 4096.0, 5734.0, 8192.0, 11469.0)]
    bands = cuts_of(cut, replace(inputs, compress=True))
    assert bands[:3] == [(1434.0, 1.0), (1434.0, 1.5), (1434.0, 2.0)] and len(bands) == 21
    assert cuts_of(plan, question_of(plan).inputs()) == []


def test_doubts_by_what_they_are_worth(plan: fo.Plan) -> None:
    own = plan.cost_usd_per_hour
    (pool,) = plan.pools
    each = pool.cost_usd_per_hour / pool.replicas
    wide = replace(plan, pools=(replace(pool, replicas_low=1, replicas_high=pool.replicas + 3),))
    doubts: list[Any] = [("little", {"rate": 1}, {"rate": 2}), ("one way", {"rate": 1}, None), ("never", {}, {})]
    found = sensitivities(wide, doubts, [own - 0.5, own + 0.25, own - 1.0, 77.0, None, None])
    band = Sensitivity("iteration times, their band", pytest.approx(each), pytest.approx(own + 3.0 * each))
    assert found == (Sensitivity("never", None, None), band, Sensitivity("one way", own - 1.0, own),
                     Sensitivity("little", own - 0.5, own + 0.25))  # fmt: skip


def test_a_fleet_at_its_own_rate_is_the_plan(cut: fo.Plan) -> None:
    found = fo.evaluate(cut, [300.0, 150.0])
    assert found.capacity_per_s == pytest.approx(
        min(p.replicas * p.capacity_per_s / p.share for p in cut.pools), rel=1e-6
    )
    for row, pool in zip(found.to_rows()[:2], cut.pools, strict=True):
        assert (row["rate_per_s"], row["pool"], row["holds"]) == (300.0, pool.name, True)
        told = [row[k] for k in ("pool_rate_per_s", "load", "slot_occupancy", "ttft_p99_s")]
        assert told == pytest.approx(
            [pool.arrival_rate_per_s, pool.load, pool.slot_occupancy, pool.quantile("ttft_s", 0.99)]
        )
        # the share of slots that are taken, of those of a replica
        assert row["running"] == pytest.approx(pool.slot_occupancy * pool.slots)
    half = found.to_rows()[2:]
    assert [row["load"] for row in half] == pytest.approx([p.load / 2.0 for p in cut.pools])


def test_a_what_if_row_is_its_plan(plan: fo.Plan) -> None:
    (row,) = fo.what_if(plan, rate=[40.0]).to_rows()
    again = fo.plan("azure", slo=1.0, rate=40, headroom=0.25, cached_share=0.6, osl_scale=1.5, **QUICK)
    (pool,) = again.pools
    told = {"rate": 40.0, "gpus": again.gpus, "cost_usd_per_hour": again.cost_usd_per_hour, "replicas": pool.replicas}
    assert {name: row[name] for name in told} == pytest.approx(told)


def test_what_differs_is_priced_alone(tmp_path: Path) -> None:
    asked = {"slo": 1.0, "rate": 8.0}
    plans = [
        fo.plan("azure", **changes, **QUICK) for changes in (asked, {**asked, "rate": 80.0, "price": {"h100": 9.0}})
    ]
    files = [tmp_path / name for name in ("old.json", "new.json")]
    for file, found in zip(files, plans, strict=True):
        file.write_text(formatter("json")(found))
    rows = {row["option"]: row for row in difference_of(*files).to_rows()}
    alone = {"rate": plans[1].gpus, "price": plans[0].gpus}
    assert {name: row["gpus"] for name, row in rows.items()} == alone
    assert rows["rate"]["cost_usd_per_hour"] == pytest.approx(
        plans[1].gpus * plans[0].cost_usd_per_hour / plans[0].gpus
    )
    assert rows["price"]["cost_usd_per_hour"] == pytest.approx(9.0 * plans[0].gpus)


def test_a_scaler_that_reacts_holds_the_fastest_growth_of_a_start_up(tmp_path: Path) -> None:
    """From 10 to 30 requests/s within an hour, a tenth of it to start: a fifth of what there is."""
    (tmp_path / "hours.csv").write_text("rate_per_s\n" + "10\n" * 12 + "30\n" * 12)
    found = fo.schedule(workload="azure", slo=1.0, hours=tmp_path / "hours.csv", startup="6min", **QUICK)
    assert found.reactive_buffer == pytest.approx(0.2)
    assert any("needs 20% in reserve to bridge the start-up time" in note for note in found.notes)
    row = found.to_rows()[13]
    assert 1 <= row["perfect_replicas"] <= row["replicas"] and row["rate_per_s"] == 30.0  # type: ignore[operator]


def test_hours_without_a_day_are_told_without_one() -> None:
    now = datetime.datetime(2027, 1, 4, 12, 0)
    assert (window_of("06:30", "22:00", now).start, window_of("06:30", "22:00", now).deadline) == ("22:00", "06:30")
    assert window_of("2027-01-05T01:00", None, now).start == "Mon 2027-01-04 12:00"


def test_spares_are_owned_beside_what_serves(tmp_path: Path) -> None:
    (tmp_path / "hours.csv").write_text("1\n" * 12 + "2\n" * 12)
    spare = fo.plan(
        isl=1500, osl=150, slo=0.4, rate=40.0, rate_is="peak", pools=1, tp=1, redundancy=1, price={"h100": 3.0}
    )
    prices = ["h100=2.5@1y", "h100=2.0@3y"]
    (mixed,) = fo.cost(spare, hours=tmp_path / "hours.csv", reserved=prices, rent_peak=True).peaks
    assert spare.pools[0].spares == 1
    assert mixed.pools[0].peak_replicas == spare.pools[0].replicas - 1
    # at the cheaper of two terms
    assert mixed.all_owned_usd_per_hour == pytest.approx(2.0 * spare.gpus)


def test_no_more_are_under_way_than_the_engines_run(tmp_path: Path) -> None:
    """Where the promise is so loose that it never says no; the largest number is looked for to a 32nd."""
    model = "{id: a, match: {equals: x}, prices: {input_mtok: 0.05, output_mtok: 0.05}}"
    (tmp_path / "acme.yml").write_text(f"id: acme\nname: Acme\napi_pattern: x\nmodels: [{model}]\n")
    (tmp_path / "hours.csv").write_text("1\n" * 12 + "2\n" * 12)
    loose = fo.plan(isl=1500, osl=150, slo=30.0, rate=40.0, rate_is="peak", pools=1, tp=1, max_num_seqs=16)
    found = fo.cost(
        loose, hours=tmp_path / "hours.csv", reserved=["h100=1.5@1y"], api_prices=tmp_path / "acme.yml",
        api_models=["a"], rent_peak=True,
    )  # fmt: skip
    (pool,) = next(p for p in found.peaks if p.rent == "acme/a").pools
    assert pool.replicas > 0 and pool.in_flight is not None
    assert 31.0 / 32.0 - 1.0 / 48.0 <= pool.in_flight / (16 * pool.replicas) <= 1.0


def test_energy_that_nobody_pays_is_refused_at_once(plan: fo.Plan) -> None:
    with pytest.raises(fo.InputError) as told:
        fo.cost(plan, hours="servegen-m-small", pue=1.5e9, kwh_price=1.5e9, co2=-1.0)
    assert told.value.problems == (
        "pue: must lie between 1 and 1e+09, got 1500000000",
        "kwh_price: must lie between 0 and 1e+09, got 1500000000",
        "co2: must not be negative, got -1",
    )
    assert fo.cost(plan, hours="servegen-m-small", pue=1.0, kwh_price=0.0, co2=1e9).energy


def test_prices_are_the_cheapest_of_the_lists_where_none_is_given(plan: fo.Plan) -> None:
    texts = [file.read_text(encoding="utf-8") for file in (FOLDER / "prices").glob("*.csv")]
    rows = [row for text in texts for row in csv.DictReader(text.splitlines()) if row["gpu"] == plan.pools[0].gpu]
    terms = {row["term"] for row in rows if row["term"].startswith("reserved-")}
    least = {
        term.removeprefix("reserved-"): min(float(row["usd_per_gpu_hour"]) for row in rows if row["term"] == term)
        for term in terms
    }
    found = fo.cost(plan, hours="servegen-m-small", spot_share=0.5)
    spot = min(float(row["usd_per_gpu_hour"]) for row in rows if row["term"] == "spot")
    assert any(note.startswith(f"spot {plan.pools[0].gpu}: ${spot:.4g}/hour") for note in found.notes)
    assert terms and {row.term: row.usd_per_gpu_hour for row in found.commitments} == least


def test_a_month_of_growth_in_a_row(plan: fo.Plan) -> None:
    """Three times as much traffic by the next month."""
    then = fo.plan("azure", slo=1.0, rate=75.0, cached_share=0.6, osl_scale=1.5, **QUICK)
    (row,) = fo.growth(plan, 2.0, lead_time="10d", months=1, start="2027-03-01").to_rows()
    assert row == {
        "month": "2027-03-01", "rate_per_s": pytest.approx(75.0), "gpus": then.gpus,
        "order": f"{then.gpus - plan.gpus} h100-80gb", "order_by": "2027-02-19", "late": True,
        "replicas": f"{then.replicas}", "cost_usd_per_hour": pytest.approx(then.cost_usd_per_hour),
    }  # fmt: skip
