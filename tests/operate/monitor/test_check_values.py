"""Numbers of a check and of its files, worked out by hand from series that stand still, and what a server is asked for."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

import planner as fo
from planner.operate.monitor import measured as prometheus
from planner.operate.monitor.check import (
    FleetCheck,
    Kept,
    Moved,
    PoolCheck,
    _cached_share,
    _predict,
    _routing,
    _stood,
)
from planner.operate.monitor.measured import Promised, Series, _quantile, add_answer, measured, read_server
from planner.operate.monitor.names import DIALECTS, Names
from planner.operate.monitor.policy import Policy
from planner.papers.statistics import Estimate
from planner.predict.contract import MEAN_LEVELS
from planner.promise import MEAN, Promise
from planner.question.options import PlanInputs
from planner.routing import find_routing
from planner.shared.version import __version__
from tests.operate.monitor.exporter import fleet_of
from tests.operate.monitor.fluid import STEP_S, Course, scraped
from tests.operate.monitor.promql import Query, Store

pytestmark = pytest.mark.usefixtures("few_replayed")

OPTIONS = {
    "workload": "azure",
    "rate": 60,
    "slo": 0.5,
    "tpot": 0.05,
    "pools": 1,
    "tp": 1,
    "token_budget": 2048,
    "burst": "poisson",
    "cached_share": 0.5,
}
TTFT, TPOT = "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds"


@cache
def plan() -> fo.Plan:
    return fo.plan(**OPTIONS)


def still(cached: float = 0.5, **changes: Any) -> dict[str, list[Series]]:
    """Series of the planned fleet, an hour as planned but for `changes`, so many of the prompts' tokens found."""
    inputs, outputs = fleet_of(plan()).work_tokens(0)
    usual = {"rate": 60.0, "replicas": plan().replicas, "late": {}, "prompt": inputs, "output": outputs}
    found = scraped(1.0, Course(**{**usual, **changes}))
    asked = found["vllm:request_prompt_tokens_sum"]
    found["vllm:prefix_cache_queries_total"] = asked
    for name in ("prompt", "generation"):
        counts = found[f"vllm:request_{name}_tokens_count"]
        found[f"vllm:request_{name}_tokens_bucket"] = [replace(s, labels={**s.labels, "le": "+Inf"}) for s in counts]
    found["vllm:prefix_cache_hits_total"] = [Series(s.labels, s.times, cached * s.values) for s in asked]
    return found


def checked(cached: float = 0.5, **changes: Any) -> FleetCheck:
    return fo.check(plan(), still(cached, **changes))


def test_what_moves_by_less_than_the_tolerance_is_not_told() -> None:
    """A tenth of the traffic, a twentieth of the lengths and of the cached share: a hair less either way is nothing."""
    inputs, outputs = fleet_of(plan()).work_tokens(0)
    for way in (1.0, -1.0):
        found = checked(
            0.5 + way * 0.049,
            rate=60.0 * (1 + way * 0.099),
            prompt=inputs * (1 + way * 0.049),
            output=outputs * (1 + way * 0.049),
        )
        assert not found.moved


def test_what_moves_by_more_is_told_in_numbers() -> None:
    inputs, outputs = fleet_of(plan()).work_tokens(0)
    found = checked(0.449, rate=60.0 * 0.89, prompt=inputs * 0.94, output=outputs * 1.06)
    moved = {x.component: x for _, x in found.moved}
    assert list(moved) == ["traffic", "input lengths", "output lengths", "cache"]
    wanted = {
        "traffic": (60.0, 53.4),
        "input lengths": (inputs, 0.94 * inputs),
        "output lengths": (outputs, 1.06 * outputs),
        "cache": (0.5, 0.449),
    }
    for component, (planned, real) in wanted.items():
        one = moved[component]
        assert one.planned == pytest.approx(planned) and one.measured.value == pytest.approx(real, rel=1e-6)
        # series that stand still are known exactly
        assert one.measured.half_width == pytest.approx(0.0, abs=1e-6 * real)
    assert moved["traffic"].told == "traffic -11% (-11% to -11%): 53.4 requests/s, planned 60 requests/s"
    assert moved["cache"].told == "cache: 45% of the prompts' tokens are found (45% to 45%), planned 50%"
    rows = {r["quantity"]: r for r in found.to_rows()}
    for quantity, component in (
        ("requests/s", "traffic"),
        ("input tokens", "input lengths"),
        ("cached share", "cache"),
    ):
        row = rows[quantity]
        assert row["moved"] == component and row["planned"] == pytest.approx(wanted[component][0])
        for end in ("measured", "low", "high"):
            assert row[end] == pytest.approx(wanted[component][1], rel=1e-6)
    more = checked(0.551, rate=60.0 * 1.11)
    assert [x.component for _, x in more.moved] == ["traffic", "cache"]
    assert more.moved[0][1].told.startswith("traffic +11% (+11% to +11%)")


def test_rows_of_a_fleet_that_stands_still() -> None:
    """Little's law and the share of memory from the prediction's own parts; what no engine shows is empty."""
    found = checked()
    (pool,), rows = found.pools, {r["quantity"]: r for r in found.to_rows()}
    n, fleet = plan().replicas, fleet_of(plan())
    assert (rows["replicas"]["measured"], rows["replicas"]["planned"]) == (n, n)
    assert rows["replicas"]["low"] is rows["replicas"]["high"] is None is rows["replicas"]["predicted"]
    assert (rows["running"]["measured"], rows["waiting"]["measured"]) == (pytest.approx(10.0), pytest.approx(0.0))
    (at,) = fleet.predict(60.0, [n])
    # another draw of the trace's requests: a few percent of a mean of one hour
    assert rows["running"]["predicted"] == pytest.approx(at.mean_running, rel=0.08)
    assert rows["waiting"]["predicted"] == pytest.approx(60.0 / n * at.means["wait_s"], rel=0.2, abs=0.02)
    assert rows["kv usage"]["measured"] == pytest.approx(0.2)
    assert rows["imbalance"]["measured"] == pytest.approx(0.0, abs=1e-9)
    assert rows["mean tpot_s"]["measured"] is None and rows["mean tpot_s"]["predicted"] > 0.0
    assert rows["P99 TTFT (s)"]["planned"] == 0.5 and rows["P99 TTFT (s)"]["moved"] is None
    assert found.state == "kept" and [*found.lines()] == ["nothing has moved beyond its interval"]
    assert (pool.planned_replicas, pool.scaled) == (n, False)


def test_a_promise_is_broken_at_risk_or_kept() -> None:
    """Broken: 2% late where one is allowed. Beyond the capacity: 0.4% late is clearly kept, 0.6%, more than half of it, at risk."""
    broken = checked(late={TTFT: (0.5, 0.02), TPOT: (0.05, 0.009)})
    assert broken.state == "broken" and [k.state for k in broken.pools[0].kept] == ["broken", "kept"]
    (ttft, tpot) = broken.pools[0].kept
    assert ttft.measured is not None and tpot.measured is not None
    assert (ttft.measured.within.value, tpot.measured.within.value) == (pytest.approx(0.98), pytest.approx(0.991))
    over = checked(rate=600.0, late={TTFT: (0.5, 0.004), TPOT: (0.05, 0.006)})
    assert [k.state for k in over.pools[0].kept] == ["kept", "at risk"] and over.state == "at risk"
    assert all(math.isinf(k.predicted_s) for k in over.pools[0].kept)
    assert "P99 TPOT <= 50 ms is at risk" in "\n".join(over.lines())


def test_traffic_that_rises_at_the_end_is_predicted_for() -> None:
    """The last two of twelve stretches are half as busy again: 1.5 / (13 / 12) of the mean."""
    times = np.arange(0.0, 3601.0, STEP_S)
    found = checked(rate=np.where(times > 3000.0, 75.0, 50.0))
    (pool,) = found.pools
    assert pool.measured.rate_per_s.value == pytest.approx(50.0 * 13.0 / 12.0, rel=0.01)
    assert pool.measured.last_rate_per_s == pytest.approx(75.0, rel=0.01)
    assert pool.measured.rates_per_s == pytest.approx([50.0] * 10 + [75.0] * 2, rel=0.03)
    (at,) = fleet_of(plan()).predict(75.0, [plan().replicas])
    for kept in pool.kept:
        assert kept.predicted_s == pytest.approx(at.value(kept.promise.metric, 0.99), rel=0.05)


@pytest.mark.usefixtures("as_many_replayed")
@pytest.mark.parametrize("factor", [1.25, 0.8])
def test_times_longer_by_a_factor_are_those_of_such_an_engine(factor: float) -> None:
    """An engine built with its iterations that much longer, replayed, its answers' way out longer too; infinite of one that gets
    more than it can do."""
    fleet = fleet_of(plan())
    (pool,), n = fleet.pools, plan().replicas
    rate, levels = 0.6 * n * pool.model.capacity_per_s, tuple(sorted({0.99, *MEAN_LEVELS}))
    found, built = _predict(fleet, 0, rate, n, levels, factor), pool.model.under(factor).look(rate, n, levels)
    out = (factor - 1.0) * pool.option.profile.api_overhead_s
    for metric, more in (("ttft_s", out), ("tpot_s", 0.0), ("e2e_s", out)):
        assert found.value(metric, 0.99) == pytest.approx(built.value(metric, 0.99) + more, rel=0.03)
        assert found.mean(metric) == pytest.approx(built.mean(metric) + more, rel=0.02)
    assert found.mean_running == pytest.approx(built.mean_running, rel=0.02)
    full = _predict(fleet, 0, n * pool.model.capacity_per_s / factor, n, levels, factor)
    assert math.isinf(full.value("ttft_s", 0.99)) and full.load == pytest.approx(1.0)


def test_intervals_are_those_of_twelve_stretches() -> None:
    """Gains of 100, 130, ... in stretches of five minutes; Student's t of 11 degrees, 2.200985 (tables, two-sided 95%)."""
    gains = np.array([100.0, 130.0, 90.0, 110.0, 120.0, 80.0, 100.0, 140.0, 95.0, 105.0, 115.0, 85.0])
    times = np.linspace(0.0, 3600.0, 13)
    counts = Series({"pod": "a"}, times, np.append(0.0, np.cumsum(gains)))
    tokens = gains * np.array([10.0, 12.0, 9.0, 11.0, 10.0, 13.0, 8.0, 10.0, 12.0, 9.0, 10.0, 11.0])
    sums = Series({"pod": "a"}, times, np.append(0.0, np.cumsum(tokens)))
    names = {"requests": "r", "input_tokens": "i", "preemptions": "p"}
    series = {"r": [counts], "i_sum": [sums], "i_count": [counts], "p": [counts]}
    found = measured(series, names)
    mean, half = gains.sum() / 3600.0, 2.200985 * np.std(gains, ddof=1) / math.sqrt(12.0) / 300.0
    assert found.rate_per_s.value == pytest.approx(mean) and found.rate_per_s.half_width == pytest.approx(
        half, rel=1e-4
    )
    assert found.rates_per_s == pytest.approx((gains / 300.0).tolist())
    assert found.last_rate_per_s == pytest.approx((115.0 + 85.0) / 600.0)
    ratio = tokens.sum() / gains.sum()
    rest = tokens - ratio * gains
    wide = 2.200985 * math.sqrt((rest**2).sum() / (12.0 * 11.0)) / gains.mean()
    assert found.means["input_tokens"].value == pytest.approx(ratio)
    assert found.means["input_tokens"].half_width == pytest.approx(wide, rel=1e-4)
    assert found.means["preemptions_per_1000"].value == pytest.approx(1000.0)
    assert found.seconds == 3600.0 and not {"output_tokens", "cached_share"} & {*found.means}
    # a request that is still inside has come: 12 more of them in every stretch of a fleet that fills
    looks = np.linspace(0.0, 3600.0, 121)
    filling = Series({"pod": "a"}, looks, 12.0 * looks / 300.0)
    filled = measured({**series, "w": [filling]}, {**names, "waiting": "w"})
    assert filled.rate_per_s.value == pytest.approx(mean + 12.0 / 300.0, rel=1e-3)


def test_replicas_are_told_apart_by_their_pods_then_by_their_addresses() -> None:
    """Requests of a pod with two ports are one replica's; without either label all are."""
    times = np.linspace(0.0, 3600.0, 25)
    one = np.linspace(0.0, 1000.0, 25)

    def replicas(*labels: dict[str, str]) -> tuple[int, int, float]:
        found = measured(
            {"r": [Series(given, times, (k + 1.0) * one) for k, given in enumerate(labels)]}, {"requests": "r"}
        )
        return found.replicas, found.seen, found.share_spread

    assert replicas({"pod": "a", "instance": "1"}, {"pod": "a", "instance": "2"}) == (1, 1, 1.0)
    assert replicas({"instance": "1"}, {"instance": "2"}) == (2, 2, pytest.approx(2.0 / 1.5))
    assert replicas({"job": "x"}, {"job": "y"}) == (1, 1, 1.0)


def test_a_replica_without_requests_was_not_there() -> None:
    """One that never gets any is not seen; one that gets none in the second half was seen, and serves no more."""
    times = np.linspace(0.0, 3600.0, 121)
    grows = np.linspace(0.0, 1000.0, 121)
    series = {"always": grows, "never": 0.0 * grows, "half": np.minimum(grows, 500.0)}
    found = measured({"r": [Series({"pod": who}, times, values) for who, values in series.items()]}, {"requests": "r"})
    assert (found.replicas, found.seen) == (1, 2) and found.mean_replicas == pytest.approx(1.5, abs=0.05)
    assert found.rate_per_s.value == pytest.approx(1500.0 / 3600.0)


def test_a_check_as_json_is_what_it_found() -> None:
    """Every field by hand, of a pool with one drift and a promise at risk."""
    promise = Promise("ttft_s", 0.5)
    how = Promised(Estimate(0.97, 0.01), 0.99, 0.75, (0.6, math.inf))
    moved = Moved("traffic", 10.0, Estimate(15.0, 1.0), "traffic +50%")
    seen: Any = SimpleNamespace(replicas=3)
    none: Any = None
    pool = PoolCheck(
        "all", seen, none, 3, (moved,), (Kept(promise, how, math.inf, "at risk"),), 5, ({"quantity": "q"},)
    )
    found = FleetCheck("vLLM", (pool,))
    told = found.to_dict()
    assert told["rows"] == [{"quantity": "q"}] and told["findings"] == [*found.lines()]
    assert {k: v for k, v in told.items() if k not in ("rows", "findings")} == {
        "schema_version": 1,
        "kind": "fleetopt-check",
        "version": __version__,
        "server": "vLLM",
        "state": "at risk",
        "pools": [
            {
                "name": "all",
                "moved": [
                    {
                        "component": "traffic",
                        "planned": 10.0,
                        "measured": 15.0,
                        "low": 14.0,
                        "high": 16.0,
                        "told": "traffic +50%",
                    }
                ],
                "promises": [
                    {
                        **promise.to_dict(),
                        "state": "at risk",
                        "within": 0.97,
                        "measured_s": 0.75,
                        "measured_ends_s": [0.6, None],
                        "predicted_s": None,
                    }
                ],
                "planned_replicas": 3,
                "scaled": False,
                "replicas_now": 5,
            }
        ],
    }
    first, second, third = found.lines()
    assert first == "traffic +50%" and third == "the plan would be 5 replicas now, it was 3"
    assert second.startswith("P99 TTFT <= 500 ms is at risk: 97% of requests were within it, ")
    assert repr(found) == "<FleetCheck: at risk, traffic>"
    json.dumps(told)
    # what a scaler follows is told only where a promise is in danger, and by how many serve
    scaled = replace(pool, scaled=True)
    assert [*FleetCheck("vLLM", (scaled,)).lines()][-1] == "the plan would be 5 replicas for this traffic, 3 serve"
    fine = replace(scaled, kept=(Kept(promise, None, 0.2, "kept"),))
    assert [*FleetCheck("vLLM", (fine,)).lines()] == ["traffic +50%"] and FleetCheck("vLLM", (fine,)).state == "kept"
    never = replace(pool, kept=(Kept(promise, None, 0.7, "broken"),), replicas_now=None)
    assert [*FleetCheck("vLLM", (never, replace(fine, name="b"))).lines()][1:3] == [
        "all: P99 TTFT <= 500 ms is broken: 700 ms predicted at this traffic",
        "all: the plan would be no number of replicas keeps the promises now, it was 3",
    ]


class _Asked:
    """A connection that answers every query with one series, and says what it was asked."""

    made: ClassVar[list[_Asked]] = []

    def __init__(self, endpoint: Any, silence_s: float) -> None:
        self.endpoint, self.silence_s, self.closed = endpoint, silence_s, 0
        self.paths: list[tuple[str, float]] = []
        self.made.append(self)

    def get(self, path: str, seconds: float) -> bytes:
        self.paths.append((path, seconds))
        result = {"metric": {"__name__": "a", "pod": "x"}, "values": [[1, "2"], [16, "NaN"], [31, "3"]]}
        return json.dumps({"status": "success", "data": {"result": [result]}}).encode()

    def close(self) -> None:
        self.closed += 1


def test_a_server_is_asked_for_a_range_with_so_many_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour: 24 points of a counter, every 150 s, 240 of a gauge, every 15 s, up to the second that is over."""
    monkeypatch.setattr(prometheus, "Connection", _Asked)
    monkeypatch.setattr(prometheus.time, "time", lambda: 1_700_000_000.9)
    _Asked.made.clear()
    found = read_server("http://p:9090/sub", [(["a:b", "c.d"], False), (["e"], True)], 3600.0, 'namespace="x"', "key")
    (one,) = _Asked.made
    assert one.closed == 1 and one.silence_s == 60.0 and [s for _, s in one.paths] == [60.0, 60.0]
    asked = [parse_qs(urlsplit(path).query) for path, _ in one.paths]
    assert [urlsplit(path).path for path, _ in one.paths] == ["/api/v1/query_range"] * 2
    assert [(q["start"], q["end"], q["step"]) for q in asked] == [
        (["1699996400"], ["1700000000"], ["150"]),
        (["1699996400"], ["1700000000"], ["15"]),
    ]
    assert asked[0]["query"] == ['{__name__=~"a:b|c\\\\.d",namespace="x"}']
    (first, second) = found["a"]
    assert (
        first.labels == second.labels == {"pod": "x"}
        and first.times.tolist() == [1.0, 31.0]
        and first.values.tolist() == [2.0, 3.0]
    )
    # short windows are looked at every second, long ones as often as there are points
    for window, step in ((60.0, "3"), (14 * 86_400.0, "50400")):
        read_server("http://p", [(["a"], False)], window)
        path = _Asked.made[-1].paths[0][0]
        assert parse_qs(urlsplit(path).query)["step"] == [step] and "namespace" not in path
    for window in (59.9, 14 * 86_400.0 + 1.0):
        with pytest.raises(fo.InputError, match="between a minute and 14 days"):
            read_server("http://p", [(["a"], False)], window)
    assert _Asked.made[-1].closed == 1


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ([], "a: not the answer of a Prometheus query$"),
        ({"data": 3}, "a: not the answer of a Prometheus query$"),
        ({"error": "no\x1b[2Jsuch"}, "the server said 'no.*such'"),
        ({"result": [{"metric": {"__name__": "m"}}]}, "series 1 has no metric or no values"),
        ({"result": [{"metric": {}, "values": []}]}, "series 1 has no name"),
        (
            {"result": [{"metric": {"__name__": "m"}, "values": [[1, "2"], [3]]}]},
            r"series 1 \(m\): a value is not a number",
        ),
        ({"result": [{}] * 40_001}, "40,001 series, at most 40,000 are read"),
    ],
)
def test_what_is_no_answer_is_told(answer: Any, told: str) -> None:
    with pytest.raises(fo.InputError, match=told) as caught:
        add_answer({}, answer, "a")
    assert "\x1b" not in str(caught.value)


def test_expressions_tell_means_and_shares_of_what_came() -> None:
    """Two pods of 3 and 1 requests/s, 0.3 s and 0.5 s each: 0.35 s on average; a fifth of the first's beyond half a second."""
    times = np.arange(0.0, 1801.0, STEP_S)

    def grows(per_s: float, pod: str, **labels: str) -> Series:
        return Series({"pod": pod, "namespace": "n", **labels}, times, per_s * (times + STEP_S))

    series: dict[str, list[Series]] = {
        f"{TTFT}_count": [grows(3.0, "a"), grows(1.0, "b")],
        f"{TTFT}_sum": [grows(0.9, "a"), grows(0.5, "b")],
        "vllm:request_success_total": [grows(3.0, "a"), grows(1.0, "b")],
    }
    for le, share in (("0.5", 0.8), ("0.75", 0.9), ("+Inf", 1.0)):
        series.setdefault(f"{TTFT}_bucket", []).extend([grows(3.0 * share, "a", le=le), grows(1.0, "b", le=le)])
    store, names = Store(series), Names(DIALECTS[0], {})
    both = Names(DIALECTS[0], {"namespace": '="n"'}, 'pod=~"a|b"', by="namespace")

    def value(expression: str | None) -> float:
        assert expression is not None
        ((_, found),) = Query(expression)(store, 1500.0)
        return float(found)

    for one in (names, both):
        assert value(one.mean("ttft_s", "5m")) == pytest.approx(0.35)
        assert one.quantile("ttft_s", MEAN, "5m") == one.mean("ttft_s", "5m")
        assert value(one.late("ttft_s", 0.5, "5m")) == pytest.approx(0.6 / 4.0)
        # 0.6 s: two fifths of the way from half a second to three quarters
        assert value(one.late("ttft_s", 0.6, "5m")) == pytest.approx((0.6 * 0.6 + 0.4 * 0.3) / 4.0)
        assert value(one.rate("requests", "5m")) == pytest.approx(4.0)
        # 85% lie below: three of five hundredths beyond the 3.4 of 4 within half a second
        assert value(one.quantile("ttft_s", 0.88, "5m")) == pytest.approx(0.5 + 0.25 * (3.52 - 3.4) / 0.3)
    assert names.late("ttft_s", 1e-6, "5m") is None is names.late("ttft_s", 1e9, "5m")
    only = Names(DIALECTS[0], {"pod": '="b"'})
    assert value(only.mean("ttft_s", "5m")) == pytest.approx(0.5) and value(
        only.late("ttft_s", 0.5, "5m")
    ) == pytest.approx(0.0)


def test_of_a_scaled_fleet_what_its_scaler_wants_is_told() -> None:
    """60 requests/s and 7 more over 10 each: seven replicas; 10 running on each of n over 4: 2.5 n."""
    n = plan().replicas
    for policy, wanted in (
        (Policy({"requests": 10.0}, 1, 40, offset_per_s=7.0), 7),
        (Policy({"in_flight": 4.0}, 1, 40), math.ceil(2.5 * n)),
        (Policy({"requests": 1.0}, 1, 9), 9),
    ):
        with patch("planner.operate.monitor.check.scalers_of", return_value={"all": policy}):
            found = fo.check(plan(), still())
        (pool,) = found.pools
        assert pool.planned_replicas == wanted and pool.scaled
        missing = [x.told for _, x in found.moved]
        assert missing == (
            [f"replicas: {n} serve, its scaler wants {wanted}: {wanted - n} missing"] if wanted > n else []
        )


@pytest.mark.parametrize(
    ("routing", "seen", "running", "spread", "expected"),
    [
        ("p2c", 0.61, 3.1, 1.0, 0.0),
        ("p2c", 0.59, 3.1, 1.0, None),
        ("p2c", 0.61, 2.9, 1.0, None),
        ("random", 0.61, 3.1, 1.0, None),
        # of 2,500 requests at each of four replicas chance makes 8%, at four standard deviations
        ("random", None, 1.0, 1.29, 1.0),
        ("p2c", None, 1.0, 1.27, None),
    ],
)
def test_routing_is_named_from_its_thresholds_on(
    routing: str, seen: float | None, running: float, spread: float, expected: float | None
) -> None:
    imbalance = None if seen is None else Estimate(seen, 0.0)
    means = {"running": Estimate(running, 0.0), **({} if imbalance is None else {"imbalance": imbalance})}
    found: Any = SimpleNamespace(
        means=means, rate_per_s=Estimate(10.0, 0.0), seconds=1000.0, replicas=4, share_spread=spread
    )
    moved = _routing(fleet_of(plan()).pools[0], found, find_routing(routing))
    assert (moved and moved.planned) == expected
    if moved is not None:
        said = "0.61 (0.61 to 0.61), p2c keeps it below 0.6" if seen else "one replica gets 1.29 times the mean"
        assert said in moved.told
        assert moved.measured == (imbalance or Estimate(1.29, pytest.approx(0.08)))


def test_quantiles_of_a_histogram_lie_on_lines_between_its_bounds() -> None:
    """Ten requests in each of three buckets, the last without an end: of what lies there no quantile is known."""
    bounds, counts = np.array([0.1, 0.2, math.inf]), np.array([10.0, 10.0, 10.0])
    found = [_quantile(bounds, counts, q) for q in (0.1, 1.0 / 3.0, 0.5, 2.0 / 3.0, 0.7, 1.0)]
    assert found == [pytest.approx(x) for x in (0.03, 0.1, 0.15, 0.2)] + [math.inf] * 2


def test_what_is_planned_to_be_found_is_a_share_of_the_tokens() -> None:
    """One prompt of 1,000 tokens, of which 80% are found, and three of 100, of which 20%: 860 of 1,300."""
    law = SimpleNamespace(
        weight=np.array([1.0, 3.0]), input_tokens=np.array([1000.0, 100.0]), cached_share=np.array([0.8, 0.2])
    )
    assert _cached_share(SimpleNamespace(law=law)) == pytest.approx(860.0 / 1300.0, rel=1e-12)  # type: ignore[arg-type]


def test_a_promise_of_both_stands_as_its_worse_part_does() -> None:
    """P95 TTFT is 5/8 of the way from 250 to 500 ms, P95 TPOT 9/10 of that from 10 to 20: 81% and 95% of their limits; all requests
    keep the one limit, 98 in 100 the other, so 98 keep both at least and at most."""

    def buckets(counts: dict[str, float]) -> list[Series]:
        times = np.array([0.0, 3600.0])
        return [Series({"pod": "a", "le": le}, times, np.array([0.0, 10.0 * n])) for le, n in counts.items()]

    series = {
        "ttft_bucket": buckets({"0.25": 90.0, "0.5": 98.0, "1.0": 100.0, "+Inf": 100.0}),
        "tpot_bucket": buckets({"0.01": 50.0, "0.02": 100.0, "+Inf": 100.0}),
        "done": [Series({"pod": "a"}, np.array([0.0, 3600.0]), np.array([0.0, 1000.0]))],
    }
    (asked,) = PlanInputs.from_dict({"goodput": "95%:ttft=0.5s,tpot=20ms", "rate": 1.0}).promises
    stood = _stood(asked, measured(series, {"requests": "done", "ttft_s": "ttft", "tpot_s": "tpot"}))
    assert stood is not None
    assert stood.value_s / asked.limit_s == pytest.approx(0.95) == stood.ends_s[1] / asked.limit_s
    assert stood.within.value == pytest.approx(0.98) == stood.most_within
