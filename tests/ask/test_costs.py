"""Costs: how to pay, tokens, APIs, energy, each against arithmetic done otherwise."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import planner as fo
from planner.catalog.load import gpus, power_curve
from planner.catalog.price_files import read_api_prices
from planner.errors import InputError
from planner.plans import HOURS_PER_YEAR

pytestmark = pytest.mark.usefixtures("few_replayed")

DAY = "servegen-m-small"


@pytest.fixture(scope="module")
def plan() -> fo.Plan:
    return fo.plan("azure", slo=4.0, rate=200.0, method="mgc", kv="reserved", pools=1, tp=1, price={"h100": 3.0})


@pytest.fixture(scope="module")
def paid(plan: fo.Plan) -> fo.Costs:
    return fo.cost(
        plan, hours=DAY, rate_is="peak", reserved=["h100=1.5@1y", "h100=1.2@3y"], pue=1.25, kwh_price=0.1, co2=400.0
    )


def test_as_many_are_reserved_as_pay(plan: fo.Plan, paid: fo.Costs) -> None:
    day = fo.schedule(plan, hours=DAY, rate_is="peak")
    hours = np.array(day.pools[0].gpu_hours)
    for row in paid.commitments:
        price = row.usd_per_gpu_hour
        by_count = {r: r * price + 3.0 * np.maximum(hours - r, 0.0).mean() for r in range(plan.gpus + 2)}
        assert by_count[row.reserved_gpus] == pytest.approx(min(by_count.values()))
        # the last one reserved is wanted in at least the break-even share of the hours
        wanted = np.clip(hours - (row.reserved_gpus - 1), 0.0, 1.0).mean()
        assert row.break_even_utilization == pytest.approx(price / 3.0) and wanted >= row.break_even_utilization - 1e-9
        assert row.saving_usd_per_hour == pytest.approx(3.0 * hours.mean() - min(by_count.values()))
        years = {"1y": 1, "3y": 3}[row.term]
        assert row.committed_usd == pytest.approx(row.reserved_gpus * price * HOURS_PER_YEAR * years)
        assert row.break_even_months == pytest.approx(12 * years * price / 3.0)
    by_name = {w.name: w for w in paid.ways}
    assert by_name["on demand, by the hour"].cost_usd_per_hour == pytest.approx(day.cost_usd / day.hours)
    assert by_name["on demand, busiest hour always"].cost_usd_per_hour == pytest.approx(day.static_cost_usd / day.hours)
    costs = [w.cost_usd_per_hour for w in paid.ways]
    assert costs == sorted(costs, reverse=True) and paid.cheapest.name == "mixed: reserved 3y + on demand"


def test_spot_is_taken_with_its_reserve(plan: fo.Plan) -> None:
    def mixed(spot: float, **given: float | str) -> fo.Costs:
        standing = dataclasses.replace(plan, inputs={**plan.inputs, "spot_price": {"h100": spot}, "spot_share": 0.5})
        return fo.cost(standing, hours=DAY, rate_is="peak", reserved=["h100=9@1y"], spot_share="50%", **given)  # type: ignore[arg-type]

    calm = mixed(1.0, preemptions_per_hour=0.0)
    assert calm.cheapest.spot_gpus > 0.0 and "spot" in calm.cheapest.name
    # without preemptions no reserve: half of the GPUs, in whole replicas, at a third of the price
    assert calm.cheapest.on_demand_gpus + calm.cheapest.spot_gpus == pytest.approx(calm.ways[-2].on_demand_gpus)
    rough = mixed(1.0, preemptions_per_hour=2.0)
    assert rough.cheapest.spot_gpus > calm.cheapest.spot_gpus
    assert rough.cheapest.cost_usd_per_hour > calm.cheapest.cost_usd_per_hour
    assert mixed(2.99, preemptions_per_hour=2.0).cheapest.spot_gpus == 0.0


def test_tokens_add_up_and_follow_what_they_cause(paid: fo.Costs) -> None:
    traffic = fo.load_workload("azure")
    weight = traffic.weight / traffic.weight.sum()
    per_hour = 3600e-6 * paid.mean_rate_per_s
    tokens = [per_hour * float(column @ weight) for column in (traffic.input_tokens, traffic.output_tokens)]
    t = paid.tokens
    assert t.input_usd_per_mtok * tokens[0] + t.output_usd_per_mtok * tokens[1] == pytest.approx(
        paid.cheapest.cost_usd_per_hour
    )
    assert t.usd_per_mtok == pytest.approx(paid.cheapest.cost_usd_per_hour / sum(tokens))
    assert 0.0 < t.input_share < 1.0 and t.output_usd_per_mtok > t.input_usd_per_mtok
    prompts, answers = (
        fo.cost(fo.plan(isl=i, osl=o, slo=4.0, rate=20.0, method="mgc", kv="reserved", pools=1, tp=1))
        for i, o in ((4000, 10), (100, 1000))
    )
    assert prompts.tokens.input_share > 0.4 > 0.05 > answers.tokens.input_share
    assert any("every hour is the plan's" in note for note in prompts.notes)


def test_energy_follows_the_load(plan: fo.Plan, paid: fo.Costs) -> None:
    e = paid.energy
    assert e is not None and e.cost_usd_per_hour is not None and e.co2_kg_per_hour is not None
    assert e.cost_usd_per_hour == pytest.approx(0.1 * e.mean_w / 1000.0)
    assert e.co2_kg_per_hour == pytest.approx(0.4 * e.mean_w / 1000.0)
    curve = power_curve("h100-80gb")
    assert curve is not None and e.estimated == {"h100-80gb": ("idle",)}
    # every GPU-hour draws between idle and full
    paid_gpus = next(w.on_demand_gpus for w in paid.ways if w.name == "on demand, by the hour")
    assert curve.idle_w * paid_gpus < e.mean_w / 1.25 < curve.full_w * paid_gpus and e.mean_w < e.peak_w


def test_measured_power_of_an_h100() -> None:
    """Readings of figure 2 of Hassan et al. 2025 by number of sequences; the curve was fitted to them within 3%."""
    curve = power_curve("h100-80gb")
    assert curve is not None
    for running, watts in {4: 330, 16: 435, 32: 507, 64: 557, 128: 583}.items():
        assert curve.watts(running) == pytest.approx(watts, rel=0.03)
    assert curve.watts(0.0) == curve.idle_w < curve.watts(0.5) < curve.watts(1.0)


@pytest.mark.parametrize("gpu", gpus())
def test_every_gpu_has_a_curve(gpu: str) -> None:
    curve = power_curve(gpu)
    assert curve is not None and 0.0 < curve.idle_w < curve.one_w < curve.full_w and curve.source


PROVIDER = """
id: acme
name: Acme
api_pattern: x
models:
  - id: meta/Llama-3.1-8B-Instruct
    match: {equals: x}
    prices: {input_mtok: 0.2, output_mtok: 0.4, requests_kcount: 0.5}
  - id: tiered
    match: {equals: y}
    prices:
      - prices: {input_mtok: {base: 1, tiers: [{start: 1000, price: 2}]}, output_mtok: 3, cache_read_mtok: 0.1}
      - {constraint: {start_date: 2025-01-01}, prices: {input_mtok: {base: 1, tiers: [{start: 1000, price: 4}]}, output_mtok: 3}}
      - {constraint: {start_date: 2999-01-01}, prices: {input_mtok: 9, output_mtok: 9}}
      - {constraint: {start_time: "00:30:00Z", end_time: "16:30:00Z"}, prices: {input_mtok: 9, output_mtok: 9}}
  - {id: embedder, match: {equals: z}, prices: {input_mtok: 0.1}}
"""


def test_an_api_beside_it(plan: fo.Plan, tmp_path: Path) -> None:
    file = tmp_path / "acme.yml"
    file.write_text(PROVIDER)
    found = fo.cost(plan, hours=DAY, rate_is="peak", api_prices=file)
    (api,) = found.apis
    assert api.name == "acme/meta/Llama-3.1-8B-Instruct"
    traffic = fo.load_workload("azure")
    w = traffic.weight / traffic.weight.sum()
    each = 0.0005 + 1e-6 * (0.2 * float(traffic.input_tokens @ w) + 0.4 * float(traffic.output_tokens @ w))
    assert api.cost_usd_per_hour == pytest.approx(3600.0 * found.mean_rate_per_s * each)
    assert api.break_even_rate_per_s * 3600.0 * each == pytest.approx(found.cheapest.cost_usd_per_hour)
    assert api.ratio * api.break_even_utilization == pytest.approx(1.0)
    # a JSON list of providers, tiers by the prompt, the price that has begun
    data = tmp_path / "data.json"
    models = [{"id": "m", "prices": {"input_mtok": 1.0, "output_mtok": 2.0, "cache_read_mtok": 0.1}}]
    data.write_text(json.dumps([{"id": "one", "models": models}, {"id": "two", "models": models}]))
    assert [a.name for a in read_api_prices(data)] == ["one/m", "two/m"]
    price = read_api_prices(data, ["two/m"])[0]
    one = np.array([1000.0]), np.array([10.0]), np.array([0.25]), np.array([1.0])
    assert price.usd_per_request(*one) == pytest.approx(1e-6 * (750 * 1.0 + 250 * 0.1 + 20.0))
    tiered = read_api_prices(file, ["tiered"])[0]
    lengths, none = np.array([1000.0, 1001.0]), np.zeros(2)
    assert tiered.usd_per_request(lengths, none, none, np.array([0.5, 0.5])) == pytest.approx(
        1e-6 * 0.5 * (1000 * 1.0 + 1001 * 4.0)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id: a\nmodels: 3", "provider with id and models"),
        ("id: a\nmodels: [{id: b}]", "models[0]"),
        ("id: a\nmodels: [{id: b, prices: {input_mtok: x, output_mtok: 1}}]", "expected a price"),
        ("id: a\nmodels: [{id: b, prices: []}]", "no price that holds"),
        ("id: a\nmodels: [{id: b, prices: [{constraint: {start_date: x}, prices: {}}]}]", "is not a day"),
    ],
)
def test_files_that_are_no_prices(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"x\.yml") as error:
        read_api_prices(file)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        {"reserved": ["h100"]},
        {"reserved": ["h100=1@1q"]},
        {"pue": 0.5},
        {"co2": -1.0},
        {"spot_share": 2.0},
        {"shortfall": 0.0},
    ],
)
def test_what_cannot_be(given: dict[str, object], plan: fo.Plan) -> None:
    with pytest.raises(InputError):
        fo.cost(plan, hours=DAY, **given)  # type: ignore[arg-type]


@pytest.mark.long("a disaggregated plan of a whole trace")
def test_disaggregated_pools_cause_what_they_do() -> None:
    plan = fo.plan("azure", slo=2.0, tpot=0.05, rate=50.0, shape="disaggregated", routing="least")
    found = fo.cost(plan, hours=DAY, rate_is="peak")
    by_pool = {p.name: p.cost_usd_per_hour for p in plan.pools}
    assert 0.0 < found.tokens.input_share < 1.0 and len(by_pool) == 2
    assert all(math.isfinite(w.cost_usd_per_hour) for w in found.ways)
    assert all(a.cost_usd_per_hour >= b.cost_usd_per_hour for a, b in itertools.pairwise(found.ways))


@pytest.mark.parametrize(("rate", "rate_is"), [(20.0, "mean"), (20.0, "peak"), (20.0, None), (None, None)])
def test_the_busiest_hour_is_the_plans(
    rate: float | None, rate_is: Literal["mean", "peak"] | None, tmp_path: Path
) -> None:
    """A rate stays what the plan took it for: the fleet of every hour is the plan's own."""
    file = tmp_path / "day.csv"
    profile = " ".join(["0.5"] * 8 + ["2.0"] * 4 + ["1.0"] * 12)
    head = f"# arrival_rate_per_s: 20\n# hourly_profile: {profile}\ntokens,cdf,input_tokens,output_tokens\n"
    file.write_text(head + "500,0.5,400,100\n1500,1,1300,200\n")
    found = fo.plan(file, slo=4.0, rate=rate, rate_is=rate_is, method="mgc", kv="reserved", pools=1, tp=1)
    paid = fo.cost(found)
    by_name = {w.name: w.cost_usd_per_hour for w in paid.ways}
    assert by_name["on demand, busiest hour always"] == pytest.approx(found.cost_usd_per_hour)
