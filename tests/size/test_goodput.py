"""The share of requests that keep several limits: against laws whose joint distribution is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import planner as fo
from planner.errors import InputError
from planner.papers.measure import Sample
from planner.predict.contract import Prediction, unstable
from planner.predict.joint import Joint, Together, apart, frechet
from planner.promise import PROMISE_METRICS, Promise
from planner.question.values import parse_goodput

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances", "without_words")

LEVELS = (0.05, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
BOTH = Promise.joint({"ttft_s": 0.5, "tpot_s": 0.05}, 0.9)
TIGHT = Promise.joint({"ttft_s": 0.2, "tpot_s": 0.05}, 0.9)


def exponential(mean: float) -> tuple[float, ...]:
    return tuple(-mean * math.log1p(-q) for q in LEVELS)


def of(*latencies: Any) -> Together:
    """TTFT, TPOT and E2E of the same requests."""
    return Together.of(dict(zip(PROMISE_METRICS, latencies, strict=True)))


def predicted(together: Together | None, **more: Any) -> Prediction:
    """TTFT of mean 0.1 s, TPOT of mean 10 ms, E2E of mean 2 s, all exponential."""
    laws = {"ttft_s": exponential(0.1), "tpot_s": exponential(0.01), "e2e_s": exponential(2.0)}
    return Prediction(LEVELS, laws, 0.5, 0.5, 1.0, 0.0, together=together, **more)


def test_independent_latencies_multiply() -> None:
    """P = (1 - exp(-5))^2; 4,096 quasi-random points, so to a tenth of a point."""
    found = predicted(None)
    assert found.share(BOTH) == pytest.approx((1.0 - math.exp(-5.0)) ** 2, abs=1e-3)
    # the factor on both limits at which nine in ten keep them: (1 - exp(-5 f))^2 = 0.9
    factor = -math.log(1.0 - math.sqrt(0.9)) / 5.0
    assert found.value(BOTH.metric, 0.9) == pytest.approx(0.5 * factor, rel=0.01)
    # nothing is known of how they go together: Frechet's bounds, here without errors of the latencies
    exact = predicted(None, bands={m: ((0.0, 0.0),) * len(LEVELS) for m in ("ttft_s", "tpot_s")})
    assert exact.share_band(BOTH) == pytest.approx(frechet([1.0 - math.exp(-5.0)] * 2), abs=1e-3)


def test_latencies_that_rise_together_are_as_good_as_the_worse() -> None:
    rank = (np.arange(4000) + 0.5) / 4000
    found = predicted(of(rank, rank, rank))
    assert found.share(TIGHT) == pytest.approx(1.0 - math.exp(-2.0), abs=2e-3)
    assert found.value(TIGHT.metric, 0.9) == pytest.approx(found.value("ttft_s", 0.9), rel=5e-3)
    opposed = predicted(of(rank, rank[::-1], rank))
    assert opposed.share(TIGHT) == pytest.approx(1.0 - math.exp(-2.0) - math.exp(-5.0), abs=2e-3)


def test_marginals_stay_what_was_predicted_whatever_the_sample() -> None:
    """Only ranks are taken: a sample ten times as slow says the same, and one limit alone is its own law."""
    rng = np.random.default_rng(3)
    shared = rng.exponential(size=5000)
    ttft, tpot = shared + rng.exponential(size=5000), shared + rng.exponential(size=5000)
    one, other = (predicted(of(f * ttft, tpot**f, ttft)) for f in (1.0, 10.0))
    assert one.share(BOTH) == pytest.approx(other.share(BOTH), abs=1e-9)
    loose = Promise.joint({"ttft_s": 0.1, "tpot_s": 1e3}, 0.9)
    assert one.share(loose) == pytest.approx(1.0 - math.exp(-1.0), abs=5e-3)


def test_one_token_keeps_any_tpot() -> None:
    rank = (np.arange(1000) + 0.5) / 1000
    half = np.where(np.arange(1000) % 2 == 0, rank, np.nan)
    strict = Promise.joint({"ttft_s": 1e3, "tpot_s": 1e-9}, 0.9)
    assert predicted(of(rank, half, rank)).share(strict) == pytest.approx(0.5, abs=2e-3)
    simulated = Sample(np.array([0.1, 0.2, 0.3]), np.array([0.02]), np.array([0.1, 9.0, 0.3]))
    assert simulated.within({"ttft_s": 0.25, "tpot_s": 0.01}).tolist() == [1.0, 0.0, 0.0]


def test_bands_are_those_of_the_latencies() -> None:
    rank = (np.arange(2000) + 0.5) / 2000
    wide = ((-0.2, 0.5),) * len(LEVELS)
    found = predicted(of(rank, rank, rank), bands={"ttft_s": wide, "tpot_s": wide})
    assert found.band(TIGHT.metric, 0.9) == pytest.approx((-0.2, 0.5), abs=1e-6)
    low, high = found.share_band(TIGHT)
    assert low < found.share(TIGHT) < high


def test_a_pool_that_does_not_keep_up_keeps_nothing() -> None:
    found = unstable(LEVELS, 1.2)
    assert found.share(BOTH) == 0.0 and found.value(BOTH.metric, 0.9) > 1e20
    unknown = Joint.of(apart(), LEVELS, {"ttft_s": (math.nan,) * len(LEVELS)}, {"ttft_s": 1.0})
    assert math.isnan(unknown.share()) and math.isnan(unknown.quantile(0.9))


def test_plan_keeps_the_share() -> None:
    """A joint promise takes at least what its parts take, and is told of with its share; a plan file says the same."""
    asked: dict[str, Any] = {
        "isl": 800, "osl": 150, "rate": 12.0, "pools": 1, "tp": 1, "token_budget": 2048, "max_num_seqs": 128,
    }  # fmt: skip
    plan = fo.plan(goodput="99%:ttft=300ms,tpot=25ms", **asked)
    parts = fo.plan(ttft="300ms", tpot="25ms", **asked)
    assert plan.pools[0].replicas >= parts.pools[0].replicas
    (kept,) = [v for v in plan.pools[0].latency if v.share is not None]
    assert kept.share is not None and kept.share_low is not None and kept.share_high is not None
    assert kept.share >= 0.99 and kept.label == "goodput 99%" and kept.share_low <= kept.share <= kept.share_high
    (row,) = fo.evaluate(plan, rate=12.0).to_rows()
    assert row["goodput_ttft_0.3s_tpot_0.025s"] == pytest.approx(kept.share, abs=1e-9)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("99%:ttft=500ms", "limits only ttft"),
        ("99:ttft=500ms,tpot=50ms", "not between 0 and 1"),
        ("99%:ttft=500ms,ttft=50ms", "limited twice"),
        ("99%:ttft=500,tpot=50", "write 500ms"),
        ("99%:ttft=500ms,tpo=50ms", "did you mean 'tpot'"),
        ("ttft:500", "no limit on"),
        ("99%:ttft=,tpot=50ms", "no limit on"),
        ("", "no limit on"),
    ],
)
def test_what_is_misspelled_is_said(written: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_goodput(written)


def test_a_share_that_is_not_given_is_the_quantile() -> None:
    assert parse_goodput("ttft=0.5,e2e=20s", 0.95).told == "95% within TTFT 500 ms and E2E 20 s"
    three = parse_goodput({"share": "90%", "tpot": "40ms", "ttft": 1, "e2el": "30s"})
    assert three.told == "90% within TTFT 1 s, TPOT 40 ms and E2E 30 s"
    assert [p.label for p in three.parts] == ["P90 TTFT", "P90 TPOT", "P90 E2E"]
    half = three.scaled(0.5)
    assert half.limits == {"ttft_s": 0.5, "tpot_s": 0.02, "e2e_s": 15.0} and parse_goodput(half.spelled) == half
