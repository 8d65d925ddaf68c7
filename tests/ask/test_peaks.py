"""Own the trough, rent the peak: against an enumeration of its own, and what must follow from prices."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import planner as fo
from planner.ask.asked import MORE
from planner.ask.peaks import ON_DEMAND, Peak
from planner.errors import InputError
from planner.predict.records import Requests, keys_of
from planner.predict.replayed import ReplayPool
from planner.predict.run import replay
from planner.question.compiled import compile_question
from planner.question.files import question_of
from planner.size.shapes import standing_fleet
from planner.workload.sending import Clients

PROMPT, ANSWER, LIMIT_S, OWNED = 1500, 150, 0.4, 1.5
SCATTER = 1.04
"""What the P99 of 30,000 requests may lie above that of others: by seed it scatters by 4%."""
DAY = [6.0] * 10 + [18.0] * 11 + [30.0] * 3
LIMITS = 16.0 * 1.1 ** np.arange(24)
"""A replica's, in steps of a tenth."""
PRICES = (0.0, 0.08, 0.3, 1000.0)


def planned() -> fo.Plan:
    return fo.plan(
        isl=PROMPT,
        osl=ANSWER,
        slo=LIMIT_S,
        rate=max(DAY),
        rate_is="peak",
        pools=1,
        tp=1,
        token_budget=2048,
        price={"h100": 3.0},
    )


@pytest.fixture(scope="module")
def plan() -> fo.Plan:
    return planned()


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("day")
    (folder / "hours.csv").write_text("\n".join(map(str, DAY)))
    models = "".join(
        f"\n  - {{id: at-{p}, match: {{equals: x}}, prices: {{input_mtok: {p}, output_mtok: {p}}}}}" for p in PRICES
    )
    (folder / "acme.yml").write_text("id: acme\nname: Acme\napi_pattern: x\nmodels:" + models)
    return folder


@pytest.fixture(scope="module")
def found(plan: fo.Plan, day: Path) -> fo.Costs:
    return fo.cost(
        plan, hours=day / "hours.csv", reserved=[f"h100={OWNED}@1y"], api_prices=day / "acme.yml",
        api_models=[f"at-{p}" for p in PRICES], rent_peak=True,
    )  # fmt: skip


def by_price(costs: fo.Costs) -> list[Peak]:
    return [next(p for p in costs.peaks if p.rent == f"acme/at-{price}") for price in PRICES]


RATES = (*sorted(set(DAY)), (1.0 + MORE) * max(DAY))


def by_hand(plan: fo.Plan, replicas: int) -> tuple[int, Callable[[float, int], tuple[float, float]]]:
    """The largest limit, to a tenth, of requests drawn here, and what gives P99 TTFT and the share that leaves."""
    question = question_of(plan)
    fleet = standing_fleet(
        compile_question(question.inputs(), question.traffic(question.inputs().cdf), max(DAY)), question.pools
    )
    slow = fleet.margins_at(max(DAY))[0].slow
    model = fleet.pools[0].model.under(slow)
    assert isinstance(model, ReplayPool)
    rng, n = np.random.default_rng(5), 30_000
    gaps = rng.exponential(size=n)
    of = model.traffic.own
    row = rng.integers(of.requests, size=n)
    lengths = np.rint(of.input_tokens[row]), np.maximum(np.rint(of.output_tokens[row]), 1.0)
    keys = keys_of(np.arange(n), np.zeros(n, np.int64), 99)

    @cache
    def tried(rate: float, limit: int) -> tuple[float, float]:
        requests = Requests(np.cumsum(gaps) / rate, *lengths, np.zeros(n), keys)
        engine = dataclasses.replace(model.engine, count=replicas)
        run = replay(requests, engine, Clients(in_flight=limit, leave=True))
        gone = run.rejected[n // 20 :] > 0
        stays = run.ttft_s[n // 20 :][~gone] + model.overhead_s
        return float(np.quantile(stays, 0.99)), float(gone.mean())

    limits = (LIMITS * replicas).astype(int).tolist()
    # of more at once the same requests wait longer
    late = bisect_left(
        limits, True, key=lambda n: any(tried(rate, n)[0] > SCATTER * LIMIT_S for rate in reversed(RATES))
    )
    return limits[late - 1] if late else 0, tried


def test_the_best_mix_is_that_of_an_enumeration(plan: fo.Plan, found: fo.Costs) -> None:
    peak = found.peaks[0].pools[0].peak_replicas
    assert peak == plan.gpus >= 4
    drawn = {n: by_hand(plan, n) for n in range(1, peak)}
    parts = {n: sum(r * tried(r, kept)[1] for r in DAY) / sum(DAY) for n, (kept, tried) in drawn.items()}
    for price, told in zip(PRICES, by_price(found), strict=True):
        each = 1e-6 * price * (PROMPT + ANSWER)
        costs = {0: 3600.0 * each * float(np.mean(DAY)), peak: OWNED * peak}
        costs |= {n: OWNED * n + part * costs[0] for n, part in parts.items()}
        (pool,) = told.pools
        best = min(costs, key=lambda n: costs[n])
        # limits lie a tenth apart here, and other requests are drawn
        assert told.cost_usd_per_hour == pytest.approx(costs[best], rel=0.04)
        assert costs[pool.replicas] <= 1.05 * costs[best]
        if pool.in_flight:
            kept, tried = drawn[pool.replicas]
            assert pool.in_flight == pytest.approx(kept, rel=0.2)
            leaving = sum(rate * tried(rate, pool.in_flight)[1] for rate in DAY) / sum(DAY)
            assert pool.rented_share == pytest.approx(leaving, abs=0.005)
            assert max(tried(rate, pool.in_flight)[0] for rate in RATES) <= SCATTER * LIMIT_S
            assert all(value is not None and value <= LIMIT_S for value in pool.latency.values())


def test_a_dearer_api_answers_less(found: fo.Costs) -> None:
    free, *priced = by_price(found)
    assert free.pools[0].replicas == 0 and free.cost_usd_per_hour == 0.0 and free.pools[0].rented_share == 1.0
    owned = [p.pools[0].replicas for p in (free, *priced)]
    assert owned == sorted(owned) and len(set(owned)) >= 3
    assert [p.cost_usd_per_hour for p in priced] == sorted(p.cost_usd_per_hour for p in priced)
    # at any price an API is dearer than GPUs in all hours
    assert owned[-1] == free.pools[0].peak_replicas and priced[-1].saving == pytest.approx(0.0)
    assert all(p.cost_usd_per_hour <= min(p.all_owned_usd_per_hour, p.all_rented_usd_per_hour) + 1e-9 for p in priced)
    assert all(p.more_usd_per_hour >= p.cost_usd_per_hour for p in priced)
    assert [p.cost_usd_per_hour for p in found.peaks] == sorted(p.cost_usd_per_hour for p in found.peaks)


@pytest.mark.usefixtures("few_replayed_once")
def test_gpus_by_the_hour_are_those_of_the_schedule(day: Path) -> None:
    plan, hours = planned(), day / "hours.csv"
    found = fo.cost(plan, hours=hours, reserved=[f"h100={OWNED}@1y"], rent_peak=True)
    scheduled = fo.schedule(plan, hours=hours, rate_is="peak")
    mixed = next(p for p in found.peaks if p.rent == ON_DEMAND)
    (row,) = found.commitments
    assert mixed.pools[0].gpus == row.reserved_gpus
    assert mixed.cost_usd_per_hour == pytest.approx(scheduled.cost_usd / 24 - row.saving_usd_per_hour)
    # owned and rented at one price: what the schedule itself saves
    (alike,) = fo.cost(plan, hours=hours, reserved=["h100=3.0@1y"], rent_peak=True).peaks
    assert alike.saving == pytest.approx(scheduled.saving)
    assert alike.cost_usd_per_hour == pytest.approx(alike.all_rented_usd_per_hour)
    assert alike.pools[0].rate_per_s <= min(DAY) or alike.pools[0].replicas


@pytest.mark.usefixtures("few_replayed_once")
def test_what_cannot_be_cut_in_two_is_refused(plan: fo.Plan, day: Path) -> None:
    asked = {"hours": day / "hours.csv", "api_prices": day / "acme.yml", "api_models": ["at-0.3"], "rent_peak": True}
    doors = dataclasses.replace(plan, inputs={**plan.inputs, "max_queue": 40})
    with pytest.raises(InputError, match=r"^rent_peak: each pool rents for itself"):
        fo.cost(doors, **asked)  # type: ignore[arg-type]
    closed = fo.plan(isl=PROMPT, osl=ANSWER, slo=4.0, rate=8.0, pools=1, tp=1, method="mgc", kv="reserved")
    with pytest.raises(InputError, match=r"^rent_peak: knows plans of method mixed"):
        fo.cost(closed, **asked)  # type: ignore[arg-type]
