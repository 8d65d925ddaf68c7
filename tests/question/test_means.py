"""Promises about means and about throughput, and several quantiles of one latency: as written, kept, and checked."""

from __future__ import annotations

from typing import Any

import pytest

import planner as fo
from planner.errors import InfeasibleError, InputError
from planner.promise import MEAN, Promise
from planner.question.options import PlanInputs

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances", "without_words")

SMALL = {"rate": 30.0, "pools": 1, "tp": 1, "token_budget": 2048, "isl": 800, "osl": 150, "confidence": 0.5}


def promises(**written: Any) -> tuple[Promise, ...]:
    return PlanInputs.from_dict(written).promises


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"ttft": "mean=500ms"}, ["mean TTFT <= 500 ms"]),
        ({"tpot": "avg<=8ms"}, ["mean TPOT <= 8 ms"]),
        ({"e2e": "average: 20s"}, ["mean E2E <= 20 s"]),
        ({"slo": "tpot:mean=8ms"}, ["mean TPOT <= 8 ms"]),
        ({"ttft": "p50=200ms,p99=1s"}, ["P50 TTFT <= 200 ms", "P99 TTFT <= 1 s"]),
        (
            {"ttft": ["p50=200ms", "p95=1s,mean=300ms"]},
            ["P50 TTFT <= 200 ms", "P95 TTFT <= 1 s", "mean TTFT <= 300 ms"],
        ),
        ({"tpot": "25 tok/s"}, ["P99 TPOT <= 40 ms"]),
        ({"slo": "itl:p95=40ms"}, ["P95 TPOT <= 40 ms"]),
        ({"throughput": "2k tok/s"}, ["P99 E2E <= 24 h"]),
        ({"throughput": "2k tok/s", "tpot": "50ms"}, ["P99 TPOT <= 50 ms"]),
    ],
)
def test_promises_are_read_as_people_write_them(written: dict[str, Any], told: list[str]) -> None:
    assert [p.told for p in promises(**written)] == told


def test_a_mean_is_spelled_and_read_back() -> None:
    mean = Promise("ttft_s", 0.5, MEAN)
    assert (mean.spelled, mean.column) == ("mean=500ms", "ttft_mean_s")
    assert promises(ttft=mean.spelled) == (mean,)
    assert promises(promises=[mean.to_dict()]) == (mean,)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"ttft": "mean=500ms", "method": "mgc"}, "means are read off replays"),
        ({"ttft": "mean=500ms", "scope": "fleet"}, "a mean is promised of one latency of every pool"),
        ({"throughput": 0}, "must be positive"),
    ],
)
def test_what_cannot_be_promised_is_told(written: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        PlanInputs.from_dict({"slo": 1, **written} if "ttft" not in written else written)


@pytest.mark.parametrize(("metric", "limit"), [("ttft", 0.09), ("tpot", 0.0105), ("e2e", 1.8)])
def test_a_mean_that_is_promised_is_kept_by_other_draws_and_by_no_replica_fewer(metric: str, limit: float) -> None:
    plan = fo.plan(**{metric: f"mean={limit}"}, **SMALL)  # type: ignore[arg-type]
    pool = plan.pools[0]
    kept = pool.quantile(f"{metric}_s", MEAN)
    assert kept is not None
    assert kept <= limit
    # the replay of other draws, which knows nothing of the search, finds the same mean
    check = fo.simulate(plan).checks[0]
    assert check.verdict == "holds"
    assert check.simulated.value == pytest.approx(kept, rel=0.1)
    # the load of one replica fewer breaks it, or is beyond the cap
    if pool.replicas > 1:
        fewer = fo.evaluate(plan, [SMALL["rate"] * pool.replicas / (pool.replicas - 1)])
        assert not fewer.holds or pool.load * pool.replicas / (pool.replicas - 1) > 0.85


def test_a_mean_below_that_of_an_idle_replica_is_told_with_it() -> None:
    with pytest.raises(InfeasibleError, match="mean TPOT <= 1 ms cannot be kept") as refused:
        fo.plan(tpot="mean=1ms", **SMALL)  # type: ignore[arg-type]
    assert refused.value.best_s is not None
    assert refused.value.best_s > 0.001


def test_a_throughput_is_the_rate_that_makes_it() -> None:
    given = {k: v for k, v in SMALL.items() if k != "rate"}
    plan = fo.plan(throughput=3000, **given)  # type: ignore[arg-type]
    # lengths are told by their mean: 150 tokens of output, as discrete as its bins
    assert plan.arrival_rate_per_s == pytest.approx(3000 / 150, rel=0.01)
    larger = fo.plan(throughput=3000, slo=2, **SMALL)  # type: ignore[arg-type]
    assert larger.arrival_rate_per_s == SMALL["rate"]
