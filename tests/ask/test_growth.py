"""Growing traffic: every month's fleet is the one that its rate takes, ordered its lead time ahead."""

from __future__ import annotations

import datetime

import pytest

import planner as fo
from planner.errors import InputError

pytestmark = pytest.mark.usefixtures("few_replayed")

START = "2027-01-31"


@pytest.fixture(scope="module")
def plan() -> fo.Plan:
    return fo.plan("azure", slo=4.0, rate=100.0, method="mgc", kv="reserved", pools=1, tp=1)


def test_every_month_has_the_replicas_that_its_rate_takes(plan: fo.Plan) -> None:
    grown = fo.growth(plan, 0.08, lead_time="45d", months=13, start=START)
    held = plan.gpus
    for k, month in enumerate(grown.months):
        assert month.rate_per_s == pytest.approx(100.0 * 1.08 ** (k + 1))
        boundaries = {"pools": 1, "method": "mgc", "kv": "reserved", "slo": 4.0, "tp": 1}
        needed = fo.plan("azure", rate=month.rate_per_s, **boundaries).gpus  # type: ignore[arg-type]
        assert sum(month.gpus.values()) == max(held, needed)
        assert sum(month.new_gpus.values()) == max(needed - held, 0)
        assert (month.order_by is None) == (needed <= held)
        if month.order_by is not None:
            first = datetime.date.fromisoformat(month.starts)
            assert first - datetime.date.fromisoformat(month.order_by) == datetime.timedelta(days=45)
            assert month.late == (month.order_by < START)
        held = max(held, needed)
    assert [m.starts for m in grown.months][:3] == ["2027-01-31", "2027-02-28", "2027-03-31"]
    assert grown.months[-1].starts == "2028-01-31"


def test_the_busiest_hour_is_what_grows(plan: fo.Plan) -> None:
    flat = fo.growth(plan, "8%", months=1, start=START)
    by_hour = fo.growth(plan, "8%", months=1, start=START, hours="servegen-m-small", headroom="10%")
    peak = max(fo.schedule(plan, hours="servegen-m-small").rates_per_s)
    assert flat.rate_per_s == 100.0
    assert by_hour.rate_per_s == pytest.approx(1.1 * peak)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"monthly_growth": 0.0}, "monthly_growth: must be positive"),
        ({"monthly_growth": "8%", "months": 0}, "months: must lie between 1 and 120"),
        ({"monthly_growth": "8%", "start": "January"}, "start: 'January' is not a day"),
        ({"monthly_growth": "8%", "lead_time": "soon"}, "lead_time: 'soon' is not a duration"),
        ({"monthly_growth": "8%", "lead_time": -1.0}, "lead_time: must not be negative"),
    ],
)
def test_what_cannot_be_is_told(plan: fo.Plan, asked: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match=line):
        fo.growth(plan, **asked)  # type: ignore[arg-type]
