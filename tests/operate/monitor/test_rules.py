"""Rules evaluated over series with planted drifts, by an evaluator of the tests' own; objects against what `deploy` writes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import planner as fo
from planner.operate.monitor.measured import Series
from tests.operate.deploy.schemas import problems
from tests.operate.monitor.exporter import fleet_of
from tests.operate.monitor.fluid import STEP_S, Course, scraped
from tests.operate.monitor.promql import Query, Store, fired

pytestmark = pytest.mark.usefixtures("fewer_replayed", "short_traces")

OPTIONS = {
    "workload": "azure",
    "rate": 60,
    "slo": 0.5,
    "tpot": 0.05,
    "pools": 1,
    "burst": "poisson",
    "routing": "p2c",
    "tp": 1,
    "token_budget": 2048,
}
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
TTFT, TPOT = "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds"


@cache
def plan() -> fo.Plan:
    return fo.plan(**OPTIONS)


def groups(files: dict[str, str]) -> list[dict[str, Any]]:
    return yaml.safe_load(files["fleetopt-rules.yaml"])["groups"]


@cache
def rules() -> list[dict[str, Any]]:
    return groups(fo.monitoring_rules(plan()))


def alerts(of: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for group in of:
        for rule in group["rules"]:
            if "alert" in rule:
                found.setdefault(rule["alert"], []).append(rule)
    return found


def course(**changes: Any) -> Course:
    """A fleet as planned unless told otherwise."""
    inputs, outputs = fleet_of(plan()).work_tokens(0)
    usual = {"rate": 55.0, "replicas": plan().pools[0].replicas, "late": {}, "prompt": inputs, "output": outputs}
    return Course(**{**usual, **changes})


def seen(
    hours: float, of: list[dict[str, Any]] | None = None, step: float = 60.0, since: float = 0.0, **changes: Any
) -> dict[str, list[float]]:
    """When which alerts fire, looked at from an hour on."""
    times = np.arange(3600.0 * since, 3600.0 * hours, step).tolist()
    return fired(of or rules(), Store(scraped(hours, course(**changes), model=MODEL)), times)


def later(hours: float, begin: float, before: float, after: float) -> np.ndarray:
    """A value that changes [h]."""
    times = np.arange(0.0, 3600.0 * hours + 1.0, STEP_S)
    return np.where(times >= 3600.0 * begin, after, before)


def test_nothing_fires_over_a_fleet_as_planned() -> None:
    """Nine late in a thousand are fewer than one in a hundred."""
    assert not seen(7.0, late={TTFT: (0.5, 0.009), TPOT: (0.05, 0.009)}, step=300.0, since=5.0)


def test_a_promise_that_burns_is_told_within_minutes() -> None:
    """Half of all requests late from the first hour on: 14.4% of the last hour's are after 17.3 minutes, and two minutes pass; a
    scrape and an evaluation more or less."""
    found = seen(2.0, late={TTFT: (0.5, later(2.0, 1.0, 0.0, 0.5))}, step=30.0, since=1.0)
    first = found["FleetoptPromiseBurning critical"][0] / 60.0 - 60.0
    assert first == pytest.approx(17.3 + 2.0, abs=1.0)
    assert set(found) == {"FleetoptPromiseBurning critical", "FleetoptPromiseBurning warning"}


def test_a_slow_burn_is_a_warning_and_stops_with_its_cause() -> None:
    """8% late for six hours are more than 6%; once it is over the short window is quiet at once."""
    late = later(9.0, 1.0, 0.0, 0.08) * (1.0 - later(9.0, 8.0, 0.0, 1.0))
    found = seen(9.0, late={TTFT: (0.5, late)}, step=240.0, since=1.0)
    assert set(found) == {"FleetoptPromiseBurning warning"}
    times = np.array(found["FleetoptPromiseBurning warning"]) / 3600.0
    # a window shorter than the series so far holds less: the share is over what came
    assert times.min() == pytest.approx(1.0 + 0.06 / 0.08 * 4.0, abs=0.6) or times.min() < 6.0
    # half an hour of 8% falls below 6% a quarter of it after the end
    assert 8.0 < times.max() <= 8.0 + 0.25 * 0.5 + 0.1


def test_few_requests_alarm_nobody() -> None:
    assert not seen(3.0, rate=0.1, late={TTFT: (0.5, 1.0)}, step=300.0)


@pytest.mark.parametrize(
    ("changes", "alert"),
    [
        ({"rate": 150.0}, "FleetoptTrafficBeyondPlan"),
        ({"replicas": 2}, "FleetoptReplicaMissing"),
        ({"running": 250.0}, "FleetoptReplicasBusierThanPlanned"),
        ({"output": 10_000.0}, "FleetoptRequestsLonger"),
    ],
)
def test_a_planted_drift_fires_its_own_alert(changes: dict[str, float], alert: str) -> None:
    assert set(seen(2.0, step=120.0, **changes)) == {f"{alert} warning"}


def test_blind_routing_is_told_from_what_replicas_run() -> None:
    """Two replicas with 4 and 28 in flight: variance 144 over mean 16."""
    replicas = plan().pools[0].replicas
    series = scraped(2.0, course())
    running = series["vllm:num_requests_running"]
    series["vllm:num_requests_running"] = [
        Series(s.labels, s.times, np.full(s.times.size, 28.0 if k % 2 else 4.0)) for k, s in enumerate(running)
    ]
    assert len(running) == replicas
    found = fired(rules(), Store(series), np.arange(0.0, 7200.0, 120.0).tolist())
    assert set(found) == {"FleetoptRoutingBlind warning"}


def test_limits_are_where_the_plan_stops_holding() -> None:
    fleet, found = fleet_of(plan()), alerts(rules())
    (pool,) = fleet.pools
    beyond = float(found["FleetoptTrafficBeyondPlan"][0]["expr"].rpartition("> ")[2])
    assert fleet.holds(0.999 * beyond) and not fleet.holds(1.09 * beyond)
    busy = float(found["FleetoptReplicasBusierThanPlanned"][0]["expr"].rpartition("> ")[2])
    assert busy == pytest.approx(pool.model.predict(beyond, pool.replicas, fleet.levels).mean_running, rel=1e-3)
    assert found["FleetoptReplicaMissing"][0]["expr"].endswith(f" < {pool.bought}")
    longer = {r["labels"]["quantity"]: float(r["expr"].rpartition("> ")[2]) for r in found["FleetoptRequestsLonger"]}
    inputs, outputs = fleet.work_tokens(0)
    assert longer == {
        "input_tokens": pytest.approx(1.1 * inputs, rel=1e-5),
        "output_tokens": pytest.approx(1.1 * outputs, rel=1e-5),
    }
    assert {r["labels"]["promise"] for r in found["FleetoptPromiseBurning"]} == {"P99 TTFT", "P99 TPOT"}
    assert all(r["labels"]["fleet"] == "fleetopt" and r["labels"]["pool"] == "all" for rs in found.values() for r in rs)
    # every rule names its time and its pool's own series
    assert {r["for"] for rs in found.values() for r in rs} <= {"2m", "5m", "10m", "15m", "30m"}


def test_the_share_of_late_requests_is_linear_between_bounds() -> None:
    """TTFT within 0.7 s, between the bounds 0.5 and 0.75: 90% within the lower, all within the upper; 1 - (0.2 x 0.9 + 0.8)."""
    found = groups(fo.monitoring_rules(fo.plan(**OPTIONS | {"slo": 0.7})))
    rule = next(r for g in found for r in g["rules"] if r.get("record") == "fleetopt:ttft_late:ratio5m")
    store = Store(scraped(1.0, Course(50.0, 3, {TTFT: (0.4, 0.1)}), model=MODEL))
    ((labels, value),) = Query(rule["expr"])(store, 3000.0)
    assert labels == {"namespace": "chat"} and rule["labels"] == {"fleet": "fleetopt", "pool": "all", "limit": "0.7"}
    assert value == pytest.approx(0.2 * 0.1, rel=1e-6)


def test_servers_whose_bounds_are_not_known_are_held_to_the_quantile() -> None:
    found = alerts(groups(fo.monitoring_rules(fo.plan(**OPTIONS | {"engine": "trtllm"}))))
    (critical,) = [r for r in found["FleetoptPromiseBurning"] if "TTFT" in r["labels"]["promise"] and r["for"] == "2m"]
    assert (
        critical["expr"].startswith("min_over_time(fleetopt:ttft_seconds:quantile5m{")
        and "> 0.5 and" in critical["expr"]
    )


SCALER = {
    "kind": "ScaledObject",
    "spec": {
        "scaleTargetRef": {"name": "fleetopt-all"},
        "minReplicaCount": 2,
        "maxReplicaCount": 9,
        "triggers": [
            {
                "type": "prometheus",
                "metadata": {"query": "sum(rate(vllm:request_success_total[120s])) + 5", "threshold": "10"},
            }
        ],
    },
}


@pytest.fixture(scope="module")
def scaled_rules(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Those of traffic and replicas."""
    file = tmp_path_factory.mktemp("scaler") / "keda.yaml"
    file.write_text(yaml.safe_dump(SCALER))
    found = groups(fo.monitoring_rules(plan(), policy=[file]))
    about = ("requests:", "replicas:", "Replica", "Scaler", "Traffic")
    return [
        {"rules": [r for g in found for r in g["rules"] if any(a in r.get("record", r.get("alert")) for a in about)]}
    ]


def test_rules_of_a_scaled_fleet_follow_its_scaler(scaled_rules: list[dict[str, Any]]) -> None:
    """ceil((rate + 5) / 10) within 2 to 9, three minutes later: nothing is missing, night and day."""
    times = np.arange(0.0, 3600.0 * 24 + 1.0, STEP_S)
    rate = 35.0 + 30.0 * np.sin(2.0 * np.pi * times / 86_400.0) + 4.0 * np.sin(2.0 * np.pi * times / 1800.0)
    wanted = np.clip(np.ceil((rate + 5.0) / 10.0), 2, 9)
    there = np.concatenate((wanted[:6], wanted[:-6]))
    assert not seen(24.0, scaled_rules, rate=rate, replicas=there, step=300.0)
    # two that do not start for an hour in the morning
    lost = np.where((times > 3600.0 * 5) & (times < 3600.0 * 6), np.minimum(there, 4), there)
    assert wanted[(times > 3600.0 * 5) & (times < 3600.0 * 6)].min() >= 6
    found = seen(8.0, scaled_rules, rate=rate[:961], replicas=lost[:961], step=60.0)
    assert set(found) == {"FleetoptReplicaMissing warning"}
    assert 5.0 < min(found["FleetoptReplicaMissing warning"]) / 3600.0 < 5.4
    assert max(found["FleetoptReplicaMissing warning"]) / 3600.0 < 6.1


def test_a_scaler_at_its_most_is_told(scaled_rules: list[dict[str, Any]]) -> None:
    assert set(seen(2.0, scaled_rules, rate=95.0, replicas=9, step=120.0)) == {"FleetoptScalerAtItsMost warning"}


def test_two_fleets_in_one_prometheus_do_not_alarm_for_each_other() -> None:
    """The same names in another namespace, twice the traffic and half the replicas."""
    mine = scraped(2.0, course(), model=MODEL)
    other = scraped(2.0, course(rate=150.0, replicas=2), namespace="other", model=MODEL)
    near = scraped(2.0, course(rate=150.0), "fleetopt-all-2", model=MODEL)
    both = {name: [*mine[name], *other[name], *near[name]] for name in mine}
    for namespace, expected in (("chat", set()), ("other", {"FleetoptTrafficBeyondPlan", "FleetoptReplicaMissing"})):
        files = fo.monitoring_rules(plan(), to="kubernetes", namespace=namespace)
        (document,) = yaml.safe_load_all(files["fleetopt-prometheusrule.yaml"])
        found = fired(document["spec"]["groups"], Store(both), np.arange(0.0, 7200.0, 120.0).tolist())
        assert {name.split()[0] for name in found} == expected


def test_objects_of_a_cluster_select_what_deploy_writes(tmp_path: Path) -> None:
    files = fo.monitoring_rules(plan(), to="kubernetes", namespace="chat")
    assert set(files) == {f"fleetopt-{n}.yaml" for n in ("prometheusrule", "dashboard", "podmonitor", "gke")}
    found = {d["kind"]: d for text in files.values() for d in yaml.safe_load_all(text)}
    for document in found.values():
        assert document["metadata"]["namespace"] == "chat" and not problems(document)
    monitor, google = found["PodMonitor"]["spec"], found["PodMonitoring"]["spec"]
    deployed = [d for text in fo.deploy(plan(), to="k8s").files.values() for d in yaml.safe_load_all(text)]
    (engines,) = [d for d in deployed if d["kind"] == "Deployment" and d["metadata"]["name"] == "fleetopt-all"]
    template = engines["spec"]["template"]
    for spec, ends in ((monitor, monitor["podMetricsEndpoints"]), (google, google["endpoints"])):
        assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        ports = {p["name"] for c in template["spec"]["containers"] for p in c["ports"]}
        assert [(e["port"], e["path"], e["interval"]) for e in ends] == [("http", "/metrics", "15s")]
        assert ends[0]["port"] in ports
    assert found["PrometheusRule"]["spec"] == found["Rules"]["spec"]
    board = json.loads(found["ConfigMap"]["data"]["fleetopt.json"])
    assert found["ConfigMap"]["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert board == json.loads(fo.monitoring_rules(plan(), deployed="k8s", namespace="chat")["fleetopt-dashboard.json"])
    # what has monitors of its own gets none of ours
    assert "fleetopt-podmonitor.yaml" not in fo.monitoring_rules(plan(), to="kubernetes", deployed="kserve")
    llm_d = yaml.safe_load(fo.monitoring_rules(plan(), to="kubernetes", deployed="llm-d")["fleetopt-podmonitor.yaml"])
    assert [e["port"] for e in llm_d["spec"]["podMetricsEndpoints"]] == ["http", "metrics"]


def test_the_dashboard_shows_what_is_recorded_with_the_limits_of_plan_and_scaler() -> None:
    board = json.loads(fo.monitoring_rules(plan())["fleetopt-dashboard.json"])
    recorded = {r["record"] for g in rules() for r in g["rules"] if "record" in r}
    limits = {}
    for panel in board["panels"]:
        for target in panel["targets"]:
            assert target["expr"].partition("{")[0] in recorded and 'namespace=~"$namespace"' in target["expr"]
        limits[panel["title"]] = [s["value"] for s in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]][1:]
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"]) == 9
    assert limits["all: P99 TTFT"] == [0.5] and limits["all: P99 TPOT"] == [0.05]
    fleet = fleet_of(plan())
    assert limits["all: requests/s"] == [pytest.approx(fleet.headroom() * 60.0, rel=1e-6)]
    assert limits["all: mean input tokens"] == [pytest.approx(1.1 * fleet.work_tokens(0)[0], rel=1e-6)]
    assert limits["all: replicas"] == [] and limits["all: KV cache in use"] == [0.95]
    names = {v["name"]: v for v in board["templating"]["list"]}
    assert names["namespace"]["query"] == 'label_values(fleetopt:replicas:count{fleet="fleetopt"}, namespace)'
    assert [p["gridPos"] for p in board["panels"][:4]] == [
        {"h": 8, "w": 8, "x": x, "y": y} for x, y in ((0, 0), (8, 0), (16, 0), (0, 8))
    ]


def test_the_dashboard_of_a_scaled_fleet_shows_its_load_as_the_scaler_counts(tmp_path: Path) -> None:
    """45 requests/s and 5 more over five replicas: ten each, where the scaler aims at ten; at most nine replicas."""
    file = tmp_path / "keda.yaml"
    file.write_text(yaml.safe_dump(SCALER))
    files = fo.monitoring_rules(plan(), policy=[file])
    board = json.loads(files["fleetopt-dashboard.json"])
    shown = {p["title"]: p for p in board["panels"]}

    def limits(title: str) -> list[float]:
        return [s["value"] for s in shown[f"all: {title}"]["fieldConfig"]["defaults"]["thresholds"]["steps"]][1:]

    assert limits("requests/s") == [] and limits("replicas") == [9.0]
    title = "requests/s per replica, as its scaler counts"
    assert limits(title) == [10.0]
    targets = [t["expr"] for t in shown["all: replicas"]["targets"]]
    assert [t.partition("{")[0] for t in targets] == ["fleetopt:replicas:count", "fleetopt:replicas:wanted"]
    assert [t["refId"] for t in shown["all: replicas"]["targets"]] == ["A", "B"]
    store = Store({})
    own = {"fleet": "fleetopt", "pool": "all", "namespace": "chat"}
    store.record("fleetopt:requests:rate5m", own, 60.0, 45.0)
    store.record("fleetopt:replicas:count", own, 60.0, 5.0)
    ((_, each),) = Query(shown[f"all: {title}"]["targets"][0]["expr"].replace("$namespace", "chat"))(store, 60.0)
    assert each == pytest.approx(10.0)
    assert board["time"] == {"from": "now-6h", "to": "now"}
    # what a gateway counts no engine tells: rules as of a fleet that stands, and no line of the scaler's
    scaler = yaml.safe_load(yaml.safe_dump(SCALER))
    scaler["spec"]["triggers"][0]["metadata"] = {"query": "sum(llm_d_epp_flow_control_queue_size)", "threshold": "1"}
    file.write_text(yaml.safe_dump(scaler))
    found = alerts(groups(fo.monitoring_rules(plan(), policy=[file])))
    assert "FleetoptTrafficBeyondPlan" in found and "FleetoptScalerAtItsMost" not in found


@pytest.mark.parametrize(
    ("query", "target", "wanted"),
    [
        ("sum(vllm:num_requests_running)", "12", 5),
        ("sum(llm_d_epp_request_running)", "12", 6),
        ("sum(rate(requests[1m]))", "11", 6),
    ],
)
def test_what_a_scaler_wants_is_evaluated_in_its_own_metric(
    query: str, target: str, wanted: int, tmp_path: Path
) -> None:
    """Five replicas run 10 each and let 2 wait: 50 over 12, 60 and a bit over 12; 55 requests/s and 5 more over 11."""
    scaler = yaml.safe_load(yaml.safe_dump(SCALER))
    plus = " + 5" if "rate" in query else ""
    scaler["spec"]["triggers"][0]["metadata"] = {"query": query + plus, "threshold": target}
    file = tmp_path / "keda.yaml"
    file.write_text(yaml.safe_dump(scaler))
    found = groups(fo.monitoring_rules(plan(), policy=[file]))
    rule = next(r for g in found for r in g["rules"] if r.get("record") == "fleetopt:replicas:wanted")
    waiting = 2.1 if "epp" in query else 2.0
    store = Store(scraped(1.0, course(rate=55.0, replicas=5, waiting=waiting), model=MODEL))
    ((_, value),) = Query(rule["expr"])(store, 3000.0)
    assert value == wanted


@pytest.mark.parametrize(
    ("deployed", "pods"),
    [("k8s", "fleetopt-all-[a-z0-9]+-[a-z0-9]{5}"), ("kserve", "fleetopt-all-kserve-[a-z0-9]+-[a-z0-9]{5}"),
     ("dynamo", "fleetopt-([0-9]+-)?worker-.+")],
)  # fmt: skip
def test_pods_are_called_as_what_deployed_them_calls_them(deployed: str, pods: str) -> None:
    found = groups(fo.monitoring_rules(plan(), deployed=deployed))
    counts = next(r["expr"] for g in found for r in g["rules"] if r.get("record") == "fleetopt:replicas:count")
    assert f'pod=~"{pods}"' in counts


def test_rules_of_prefill_and_decode_pools_ask_each_for_what_it_sees() -> None:
    plan = fo.plan(workload="azure", rate=60, slo=0.5, tpot=0.05, e2e=30, shape="disaggregated", burst="poisson", tp=1)
    text = fo.monitoring_rules(plan)["fleetopt-rules.yaml"]
    assert "P99 E2E: no engine of this fleet sees" in text
    prefill, decode = yaml.safe_load(text)["groups"]
    promised = [
        {r["labels"]["promise"] for r in group["rules"] if r.get("alert") == "FleetoptPromiseBurning"}
        for group in (prefill, decode)
    ]
    assert promised == [{"P99 TTFT"}, {"P99 TPOT"}]
    assert not [r for r in prefill["rules"] if "output_tokens" in r["expr"]]
    assert not [r for r in decode["rules"] if "input_tokens" in r["expr"]]
    # each counts the pods of its own deployment
    for group, pool in ((prefill, "prefill"), (decode, "decode")):
        counts = next(r["expr"] for r in group["rules"] if r.get("record") == "fleetopt:replicas:count")
        assert f'pod=~"fleetopt-{pool}-[a-z0-9]+-[a-z0-9]{{5}}"' in counts


def test_a_selector_reaches_every_series_and_wrong_words_are_told() -> None:
    found = groups(fo.monitoring_rules(plan(), selector='cluster="eu"'))
    assert all('cluster="eu"' in r["expr"] for g in found for r in g["rules"] if "record" in r)
    with pytest.raises(fo.InputError, match="--to: 'kubernets' is none of files, kubernetes"):
        fo.monitoring_rules(plan(), to="kubernets")
    with pytest.raises(fo.InputError, match="--deployed: 'k9s' is none of k8s"):
        fo.monitoring_rules(plan(), deployed="k9s")
