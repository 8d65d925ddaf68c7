"""A fleet against its plan: planted drifts are named, quiet fleets are left alone, bad answers are told."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import planner as fo
from planner.cli.main import app
from planner.operate.monitor.measured import Series, by_pool, dialect_of, measured, read_answers, to_file
from planner.operate.monitor.names import DIALECTS
from tests.conftest import FEW
from tests.operate.monitor.exporter import exported, exported_pair, fleet_of
from tests.test_schemas import wrong

# drifts are far beyond what fewer requests do to a prediction
pytestmark = pytest.mark.usefixtures("fewer_replayed")

OPTIONS = {
    "workload": "azure",
    "rate": 60,
    "slo": 0.5,
    "tpot": 0.05,
    "pools": 1,
    "burst": "poisson",
    "routing": "p2c",
}


@cache
def plan() -> fo.Plan:
    return fo.plan(**OPTIONS, cached_share=0.5)


@cache
def series(**drift: Any) -> dict[str, list[Series]]:
    return exported(plan(), 11, 6000, **drift)


@cache
def checked(**drift: Any) -> fo.FleetCheck:
    return fo.check(plan(), series(**drift))


@pytest.mark.parametrize(
    ("component", "drift"),
    [
        ("traffic", {"rate": 2.0}),
        ("output lengths", {"outputs": 1.3}),
        ("iteration time", {"slower": 1.2}),
        ("cache", {"cached": 0.5}),
        ("replicas", {"lost": 1}),
        ("routing", {"routing": "random"}),
    ],
)
def test_a_planted_drift_is_named_alone(component: str, drift: dict[str, Any]) -> None:
    """The other 12 of 18 cases: benchmarks/accuracy/drifts.py."""
    found = checked(**drift)
    assert [x.component for _, x in found.moved] == [component]
    (moved,) = (x for _, x in found.moved)
    if component in ("traffic", "output lengths", "iteration time"):
        wanted = next(iter(drift.values()))
        # lengths of 6,000 draws and bins of a whole second; the interval is that of twelve stretches
        assert moved.measured.value / moved.planned == pytest.approx(wanted, rel=0.12)
        assert moved.measured.low < wanted * moved.planned < moved.measured.high * 1.05


def test_nothing_is_named_where_nothing_moved() -> None:
    found = checked()
    assert not found.moved and found.state == "kept"
    rows = {r["quantity"]: r for r in found.to_rows()}
    # within the methods' stated errors, see docs/accuracy
    for quantity, room in (("running", 0.1), ("mean tpot_s", 0.1), ("mean e2e_s", 0.1)):
        assert rows[quantity]["measured"] == pytest.approx(rows[quantity]["predicted"], rel=room)
    assert json.loads(json.dumps(found.to_dict()))["findings"] == ["nothing has moved beyond its interval"]


def test_numbers_of_one_page_obey_littles_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs and waits on all replicas is the rate times the time requests spend there, measured and predicted."""
    # a fiftieth is told apart by three times the requests
    for where, number in FEW.items():
        monkeypatch.setattr(f"planner.{where}", number)
    found = fo.check(plan(), series())
    rows = {r["quantity"]: r for r in found.to_rows()}
    fleet = fleet_of(plan())
    overhead = fleet.pools[0].option.profile.api_overhead_s
    rate, replicas = rows["requests/s"]["measured"], rows["replicas, mean"]["measured"]
    for told in ("measured", "predicted"):
        inside = replicas * (rows["running"][told] + rows["waiting"][told])
        # a hundred seconds of sixty requests/s, each some seconds long: what is inside at both ends is not told apart
        assert inside == pytest.approx(
            rate * (rows["mean e2e_s"][told] - overhead), rel=0.06 if told == "measured" else 0.02
        )
    assert replicas == plan().pools[0].replicas
    for name in ("requests/s", "running", "mean ttft_s", "mean tpot_s", "mean e2e_s"):
        assert rows[name]["low"] < rows[name]["measured"] < rows[name]["high"]
    # where no request of any stretch is beyond the limit the quantile is not uncertain either
    for name in ("P99 TTFT (s)", "P99 TPOT (s)"):
        assert rows[name]["low"] <= rows[name]["measured"] <= rows[name]["high"]
    (pool,) = found.pools
    for kept in pool.kept:
        assert kept.measured is not None
        low, high = kept.measured.ends_s
        assert low <= kept.measured.value_s <= high


def scaler(tmp_path: Path, threshold: float, most: int = 40) -> Path:
    trigger = {
        "type": "prometheus",
        "metadata": {"query": "sum(rate(vllm:request_success_total[1m]))", "threshold": f"{threshold}"},
    }
    spec = {"minReplicaCount": 1, "maxReplicaCount": most, "triggers": [trigger]}
    file = tmp_path / "keda.yaml"
    file.write_text(yaml.safe_dump({"kind": "ScaledObject", "spec": spec}))
    return file


def test_a_scaled_fleet_is_held_to_what_its_scaler_wants(tmp_path: Path) -> None:
    """Some 60 requests/s by one replica less than planned: right for a target that it meets, two short of a tighter one."""
    there = plan().pools[0].replicas - 1
    found = fo.check(plan(), series(lost=1), policy=[scaler(tmp_path, 60.0 / (there - 0.5))])
    assert not [x for _, x in found.moved if x.component == "replicas"] and found.pools[0].scaled
    assert [x.component for _, x in checked(lost=1).moved] == ["replicas"]
    (pool,) = fo.check(plan(), series(lost=1), policy=[scaler(tmp_path, 60.0 / (there + 2.5))]).pools
    (moved,) = [x for x in pool.moved if x.component == "replicas"]
    lately = min(pool.measured.rates_per_s[-4:])
    assert moved.planned == math.ceil(lately * (there + 2.5) / 60.0) > there == moved.measured.value
    assert moved.told == f"replicas: {there} serve, its scaler wants {moved.planned}: {moved.planned - there} missing"
    # less traffic than planned is no news where replicas follow it, more is
    less, more = (fo.check(plan(), series(rate=r), policy=[scaler(tmp_path, 20.0)]) for r in (0.5, 2.0))
    assert "traffic" not in [x.component for _, x in less.moved]
    assert "traffic" in [x.component for _, x in more.moved]


def test_the_plan_of_today_has_more_replicas_for_more_traffic() -> None:
    found = checked(rate=2.0)
    (pool,) = found.pools
    again = fo.plan(**OPTIONS | {"rate": pool.measured.rate_per_s.value}, cached_share=0.5)
    assert pool.replicas_now is not None
    assert abs(pool.replicas_now - again.pools[0].replicas) <= 1


def test_files_servers_and_exit_codes(tmp_path: Path) -> None:
    written, answers = tmp_path / "plan.yaml", tmp_path / "answers.json"
    written.write_text(yaml.safe_dump(plan().to_dict()))
    answers.write_text(to_file(series()))
    run = CliRunner().invoke(app, ["check", str(written), "-p", str(answers), "--format", "json"])
    assert run.exit_code == 0, run.output
    assert not wrong("check", json.loads(run.stdout))
    answers.write_text(to_file(series(rate=2.0)))
    run = CliRunner().invoke(app, ["check", str(written), "-p", str(answers)])
    assert run.exit_code == 1 and isinstance(run.exception, fo.CheckFailedError)  # `run` of the command makes it 6
    assert run.exception.exit_code == 6


class _Prometheus(BaseHTTPRequestHandler):
    """Answers range queries from the series of the test; the real one is asked in .ci/long."""

    asked: ClassVar[list[str]] = []
    broken = ""

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        self.asked.append(query["query"][0])
        body = to_file(
            {n: s for n, s in series().items() if f"{n}|" in f"{query['query'][0].replace(chr(34), '|')}"}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(self.broken.encode() or body)

    def log_message(self, *_: Any) -> None:
        """Silence."""


@pytest.fixture
def server() -> Iterator[str]:
    http = HTTPServer(("127.0.0.1", 0), _Prometheus)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()
    thread.join(5)
    _Prometheus.broken = ""
    _Prometheus.asked.clear()


def test_a_server_is_asked_for_few_things(server: str) -> None:
    found = fo.metrics(server, window="30min", selector='namespace="serving"')
    assert len(found["vllm:request_success_total"]) == plan().pools[0].replicas
    assert len(_Prometheus.asked) < 30
    assert all('namespace="serving"' in q for q in _Prometheus.asked)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("{}", "the query failed"),
        ('{"status": "error", "error": "bad_data"}', "bad_data"),
        ("not json", "not JSON"),
        ('{"status": "success", "data": {"result": 3}}', "not the answer"),
        (
            '{"status": "success", "data": {"result": [{"metric": {"__name__": "a"}, "values": [[1, "x"]]}]}}',
            "not a number",
        ),
        ("[" * 1000, "nested"),
    ],
)
def test_answers_that_are_none(server: str, answer: str, told: str) -> None:
    _Prometheus.broken = answer
    with pytest.raises(fo.InputError, match=told):
        fo.metrics(server)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"window": "5s"}, "--window"),
        ({"selector": 'a="b"} or vector(1)'}, "--selector"),
        ({"window": "90d"}, "--window"),
    ],
)
def test_questions_that_are_none(given: dict[str, str], told: str) -> None:
    with pytest.raises(fo.InputError, match=told):
        fo.metrics("http://127.0.0.1:9", **given)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(fo.InputError, match=r"127\.0\.0\.1:9"):
        fo.metrics("http://me:secret@127.0.0.1:9")


@pytest.mark.parametrize("text", ["", "[]", '{"data": {"result": [{"metric": {}, "values": [[1, "2"]]}]}}', "{"])
def test_files_that_hold_no_answers(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    if text == "[]":
        assert not read_answers(str(file))
        with pytest.raises(fo.InputError, match="no metrics of"):
            fo.check(plan(), file)
        return
    with pytest.raises(fo.InputError):
        read_answers(str(file))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_every_dialect_is_known_by_its_names_and_their_older_ones(dialect: Any) -> None:
    """Renamed, with a platform's prefix, and with colons turned into underscores."""
    for newest in (0, -1):
        names = [of[newest] for kind in (dialect.gauges, dialect.counters) for of in kind.values()]
        names += [f"{of[newest]}_bucket" for of in dialect.histograms.values()]
        for change in (str, lambda n: f"kserve_{n}", lambda n: n.replace(":", "_")):
            found, known = dialect_of({change(n): [] for n in names})
            assert found.name == dialect.name
            assert {"requests", "ttft_s", "running"} <= set(known)


def counter(values: list[float], **labels: str) -> Series:
    return Series(labels, np.linspace(0.0, 3600.0, len(values)), np.array(values))


def test_restarts_late_starts_and_losses_are_counted_right() -> None:
    names = {"requests": "r"}
    steady = counter([100.0 * k for k in range(25)], pod="a")
    # restarted half way: what falls starts from zero
    fallen = counter([100.0 * k for k in range(13)] + [100.0 * k for k in range(1, 13)], pod="b")
    found = measured({"r": [steady, fallen]}, names)
    assert found.rate_per_s.value == pytest.approx(4800 / 3600)
    assert (found.replicas, found.seen) == (2, 2)
    late = Series({"pod": "c"}, np.linspace(1800.0, 3600.0, 13), np.array([100.0 * k for k in range(13)]))
    gone = Series({"pod": "d"}, np.linspace(0.0, 1800.0, 13), np.array([100.0 * k for k in range(13)]))
    found = measured({"r": [steady, late, gone]}, names)
    assert found.rate_per_s.value == pytest.approx(4800 / 3600, rel=0.01)
    assert (found.replicas, found.seen) == (2, 3)


def test_too_little_to_say_anything() -> None:
    with pytest.raises(fo.InputError, match="too few to compare"):
        measured({"r": [counter([0.0, 1.0, 2.0], pod="a")]}, {"requests": "r"})
    with pytest.raises(fo.InputError, match="too few points"):
        measured({}, {"requests": "r"})


def test_quantiles_and_limits_inside_buckets() -> None:
    # what is no bound at all is no bucket
    counts = {"0.25": 90.0, "0.5": 98.0, "1.0": 100.0, "+Inf": 100.0, "nan": 7.0, "-Inf": 7.0}
    buckets = [counter([0.0, 10.0 * n], pod="a", le=le) for le, n in counts.items()]
    given = {"r": [counter([0.0, 1000.0], pod="a")], "t_bucket": buckets}
    found = measured(given, {"requests": "r", "ttft_s": "t"})
    at_edge = found.promised("ttft_s", 0.99, 0.5)
    inside = found.promised("ttft_s", 0.99, 0.7)
    assert at_edge is not None and inside is not None
    assert (at_edge.within.value, at_edge.most_within) == (0.98, 0.98)
    assert (inside.within.value, inside.most_within) == (0.98, 1.0)
    assert at_edge.value_s == pytest.approx(0.75)
    assert found.promised("e2e_s", 0.99, 0.5) is None


def test_series_of_several_pools_are_told_apart() -> None:
    names = [("short", "fleetopt-short"), ("long", "fleetopt-long")]
    one, two = counter([0.0, 1.0], pod="fleetopt-short-7d9-x"), counter([0.0, 1.0], pool="long")
    found = by_pool({"r": [one, two]}, names)
    assert found["short"]["r"] == [one] and found["long"]["r"] == [two]
    with pytest.raises(fo.InputError, match="no series of pool long"):
        by_pool({"r": [one]}, names)


@cache
def apart(rate: float = 60.0) -> fo.Plan:
    return fo.plan(
        workload="azure",
        rate=rate,
        slo=0.5,
        tpot=0.05,
        shape="disaggregated",
        burst="poisson",
        cached_share=0.5,
        tp=1,
        token_budget=2048,
    )


@pytest.mark.parametrize(
    ("pool", "component", "drift"),
    [
        ("", "", {}),
        ("decode", "output lengths", {"outputs": 1.3}),
        ("prefill", "iteration time", {"slower_prefill": 1.2}),
        ("decode", "iteration time", {"slower_decode": 1.2}),
        ("prefill", "cache", {"cached": 0.5}),
        ("decode", "replicas", {"lost_decode": 1}),
    ],
)
def test_a_drift_of_prefill_and_decode_pools_is_named_where_it_is(
    pool: str, component: str, drift: dict[str, Any]
) -> None:
    """The simulated engines see their part of every request; the decode pool's clock stands while KV caches travel."""
    found = fo.check(apart(), exported_pair(apart(), 31, 6000, **drift))
    assert [(p, x.component) for p, x in found.moved] == ([(pool, component)] if component else [])
    prefill, decode = found.pools
    assert [k.promise.metric for k in prefill.kept] == ["ttft_s"] and [k.promise.metric for k in decode.kept] == [
        "tpot_s"
    ]
    if not component:
        assert found.state == "kept" and [p.replicas_now for p in found.pools] == [p.replicas for p in apart().pools]


def test_twice_the_traffic_of_prefill_and_decode_pools_is_told() -> None:
    """Beyond the prefill pool's capacity the decode pool gets what comes through."""
    found = fo.check(apart(), exported_pair(apart(), 32, 6000, rate=2.0))
    assert ("prefill", "traffic") in [(p, x.component) for p, x in found.moved]
    rate = found.pools[0].measured.rate_per_s.value
    planned = apart(rate)
    assert found.state == "broken" and found.pools[0].replicas_now == planned.pools[0].replicas


def test_an_address_without_its_scheme() -> None:
    with pytest.raises(fo.InputError, match="no such file") as caught:
        fo.metrics("prometheus.internal:9090")
    assert caught.value.hint == "An address begins with its scheme: http://prometheus.internal:9090."


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"status": "error", "error": "parse error at 3"}', "the server said 'parse error at 3'"),
        ("# HELP vllm:prompt_tokens_total x\nvllm:prompt_tokens_total 3\n", "counters of one moment"),
        ('vllm:prompt_tokens_total{a="b"} 3\n', "counters of one moment"),
    ],
)
def test_files_of_something_else(content: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(fo.InputError, match=told):
        fo.metrics(tmp_path / "a.txt")
