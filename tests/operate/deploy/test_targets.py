"""Files that start a plan: valid for their readers, and what the plan says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import planner as fo
from planner.machine.engines import engine as find_engine
from planner.operate.deploy import find_target, target_names
from planner.operate.deploy.serving import DeployOptions, serving_of
from planner.question.files import saved_pools
from tests.operate.deploy.conftest import PLANS, documents, plan_of
from tests.operate.deploy.schemas import problems

CUSTOM = {
    "LLMInferenceService",
    "InferencePool",
    "Gateway",
    "HTTPRoute",
    "VLLMRuntime",
    "VLLMRouter",
    "DynamoGraphDeployment",
    "LeaderWorkerSet",
    "DestinationRule",
}


def rendered(kind: str, to: str, **options: Any) -> fo.Rendered:
    return fo.deploy(plan_of(kind), to, **options)


@pytest.mark.parametrize("kind", PLANS)
def test_every_object_is_valid(kind: str) -> None:
    """Against published schemas; a custom resource whose schema is not at hand is one of those known to be custom."""
    seen = 0
    for to in ("k8s", "kserve", "llm-d", "production-stack", "dynamo"):
        try:
            found = rendered(kind, to, namespace="serving")
        except fo.InputError as error:
            assert "--to" in str(error)
            continue
        for document in documents(found.text):
            wrong = problems(document)
            assert not wrong, f"{to} {document['kind']}: {wrong}"
            assert wrong is not None or document["kind"] in CUSTOM
            seen += 1
    assert seen >= 5


def test_a_wrong_object_is_noticed() -> None:
    document = documents(rendered("one pool", "k8s").text)[0]
    document["spec"]["template"]["spec"]["containers"][0]["prots"] = []
    assert problems(document)


@pytest.mark.parametrize(("to", "engine"), [("k8s", "vllm"), ("k8s", "sglang"), ("llm-d", "vllm")])
def test_a_replica_on_two_nodes_is_a_group_of_pods(to: str, engine: str) -> None:
    """One leader that answers and is found by the router; its follower has the other half of the GPUs and no probes."""
    pool = plan_of("two nodes").pools[0]
    found = {d["kind"]: d for d in documents(rendered("two nodes", to, engine=engine).text)}
    spec = found["LeaderWorkerSet"]["spec"]
    group = spec["leaderWorkerTemplate"]
    assert (spec["replicas"], group["size"]) == (pool.replicas, 2)
    leader, follower = (group[f"{role}Template"]["spec"]["containers"][0] for role in ("leader", "worker"))
    for one in (leader, follower):
        line = " ".join(one["args"])
        assert one["resources"]["limits"]["nvidia.com/gpu"] == str(pool.gpus // pool.replicas // 2) == "8"
        assert "--nnodes 2 --node-rank $(LWS_WORKER_INDEX)" in line and "$(LWS_LEADER_ADDRESS)" in line
    assert ("--headless" in follower["args"]) == (engine == "vllm") and "--headless" not in leader["args"]
    assert "startupProbe" in leader and not [name for name in follower if name.endswith("Probe") or name == "ports"]
    marks = [group[f"{role}Template"]["metadata"]["labels"] for role in ("leader", "worker")]
    seen = (
        found["InferencePool"]["spec"]["selector"]["matchLabels"]
        if to == "llm-d"
        else {"app.kubernetes.io/name": "fleetopt-all"}
    )
    assert [seen.items() <= labels.items() for labels in marks] == [True, False]
    budget = found["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == pool.spares == 1
    if to == "k8s":
        services = [d for d in documents(rendered("two nodes", to).text) if d["kind"] == "Service"]
        names = {d["metadata"]["name"] for d in services}
        # the controller makes one called as the set
        assert "fleetopt-all-leaders" in names and "fleetopt-all" not in names
        assert "fleetopt-all-leaders" in rendered("two nodes", to).text.partition("envoy.yaml")[2]


def test_where_groups_of_nodes_cannot_be_started_is_told() -> None:
    for to in ("kserve", "compose", "systemd", "production-stack"):
        with pytest.raises(fo.InputError, match=rf"--to {to}: pool all: a replica of 16 GPUs spans 2 nodes"):
            rendered("two nodes", to)
    with pytest.raises(fo.InputError, match="a launcher of its own"):
        rendered("two nodes", "k8s", engine="trtllm")
    (graph, *_) = documents(rendered("two nodes", "dynamo").text)
    worker = graph["spec"]["components"][1]
    assert worker["multinode"] == {"nodeCount": 2}
    assert worker["podTemplate"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"


@pytest.mark.parametrize("kind", ["one pool", "spare", "groups", "cached"])
def test_replicas_gpus_and_settings_are_the_plans(kind: str) -> None:
    plan = plan_of(kind)
    pool = plan.pools[0]
    found = {d["kind"] + d["metadata"]["name"]: d for d in documents(rendered(kind, "k8s").text)}
    deployment = found["Deploymentfleetopt-all"]["spec"]
    container = deployment["template"]["spec"]["containers"][0]
    line = container["command"] + container["args"]
    assert deployment["replicas"] == pool.replicas
    assert container["resources"]["limits"]["nvidia.com/gpu"] == str(pool.tp)
    assert line[line.index("--max-num-seqs") + 1] == str(pool.slots)
    assert line[line.index("--max-num-batched-tokens") + 1] == str(pool.settings.max_num_batched_tokens)
    budget = found["PodDisruptionBudgetfleetopt-all"]["spec"]
    assert budget["maxUnavailable"] == max(1, pool.spares)
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 600


def test_the_start_up_time_reaches_the_probe() -> None:
    text = rendered("one pool", "k8s", startup="20min").text
    probe = documents(text)[0]["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 3600


@pytest.mark.parametrize(
    ("kind", "model", "flag"),
    [
        ("one pool", "meta-llama/Llama-3.1-8B-Instruct", None),
        ("quantized here", "meta-llama/Llama-3.1-70B-Instruct", ["--quantization", "fp8"]),
        ("quantized there", "RedHatAI/Qwen3-32B-FP8-dynamic", None),
    ],
)
def test_weights_and_quantisation(kind: str, model: str, flag: list[str] | None) -> None:
    arguments = documents(rendered(kind, "k8s").text)[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[1] == model
    assert ("--quantization" in arguments) == (flag is not None)
    if flag:
        at = arguments.index(flag[0])
        assert arguments[at : at + 2] == flag


def test_weights_nobody_publishes_must_be_named() -> None:
    with pytest.raises(fo.InputError, match="--model-id"):
        rendered("quantized here", "k8s", engine="trtllm")
    assert "my/weights" in rendered("quantized here", "k8s", engine="trtllm", model_id="my/weights").text


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("one pool", "random"),
        ("spare", "least_request"),
        ("quantized here", "round_robin"),
        ("groups", "least_request"),
    ],
)
def test_envoy_routes_as_planned(kind: str, policy: str) -> None:
    config = next(d for d in documents(rendered(kind, "k8s").text) if d["kind"] == "ConfigMap")
    bootstrap = yaml.safe_load(config["data"]["envoy.yaml"])
    cluster, _ = bootstrap["static_resources"]["clusters"]
    (chosen,) = cluster["load_balancing_policy"]["policies"]
    assert chosen["typed_extension_config"]["name"].endswith(policy)
    limits = cluster["circuit_breakers"]["thresholds"][0]
    assert min(limits[f"max_{of}"] for of in ("connections", "pending_requests", "requests", "retries")) > 1024


@pytest.mark.parametrize("kind", ["cut", "cut by prompt"])
def test_a_cut_by_length_reaches_the_routers(kind: str) -> None:
    plan = plan_of(kind)
    assert len(plan.pools) == 2, "this plan is meant to be cut"
    edge = f"{plan.pools[0].high_tokens:.0f}"
    script = rendered(kind, "k8s").text
    assert f"tokens <= {edge}" in script
    assert ("max_tokens" in script.split("kind: ConfigMap")[1]) == (kind == "cut")
    pods = [d for d in documents(rendered(kind, "llm-d").text) if d["kind"] == "Deployment"][:2]
    ranges = [d["spec"]["template"]["metadata"]["labels"]["llm-d.ai/context-length-range"] for d in pods]
    assert ranges[0].endswith(f"-{edge}") and ranges[1].startswith(f"{edge}-")


def test_a_split_fleet_goes_where_caches_are_passed_on() -> None:
    for to in ("k8s", "compose", "systemd", "production-stack"):
        with pytest.raises(fo.InputError, match="KV caches"):
            rendered("split", to)
    roles = {
        d["spec"]["template"]["metadata"]["labels"].get("llm-d.ai/role")
        for d in documents(rendered("split", "llm-d").text)
        if d["kind"] == "Deployment"
    }
    assert {"prefill", "decode"} <= roles
    assert "prefill" in documents(rendered("split", "kserve").text)[0]["spec"]
    graph = documents(rendered("split", "dynamo").text)[0]["spec"]["components"]
    assert [(c["name"], c["type"]) for c in graph][1:] == [("PrefillWorker", "prefill"), ("DecodeWorker", "decode")]


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("one pool", "random"), ("quantized here", "round-robin"), ("groups", "least-loaded"), ("cached", "kv")],
)
def test_dynamo_routes_as_planned(kind: str, mode: str) -> None:
    frontend, worker = documents(rendered(kind, "dynamo").text)[0]["spec"]["components"]
    (main,) = frontend["podTemplate"]["spec"]["containers"]
    assert {e["name"]: e["value"] for e in main["env"]}["DYN_ROUTER_MODE"] == mode
    arguments = worker["podTemplate"]["spec"]["containers"][0]["args"]
    assert ("--kv-events-config" in arguments) == (mode == "kv")


def test_dynamo_takes_the_flags_of_its_own_workers() -> None:
    """TensorRT-LLM's workers have other flags than its server; an engine that Dynamo has no workers of is refused."""
    graph = documents(rendered("split", "dynamo", engine="trtllm").text)[0]["spec"]["components"]
    arguments = graph[1]["podTemplate"]["spec"]["containers"][0]["args"]
    assert not [w for w in arguments if w.startswith("--") and "_" in w]
    overrides = json.loads(arguments[arguments.index("--override-engine-args") + 1])
    assert overrides["disable_overlap_scheduler"]
    with pytest.raises(fo.InputError, match="images are for NVIDIA"):
        rendered("amd", "dynamo")
    other = replace(find_engine("vllm"), name="other", title="Other")
    fleet = plan_of("one pool")
    serving = serving_of(fleet.to_dict(), saved_pools(fleet), DeployOptions())
    with pytest.raises(fo.InputError, match="no workers of Other"):
        find_target("dynamo").render(replace(serving, engine=other))


def test_groups_of_copies_are_one_group_each() -> None:
    """A replica of eight copies on a node is no tensor-parallel group of eight."""
    fleet = plan_of("one pool")
    (pool,) = saved_pools(fleet)
    serving = serving_of(fleet.to_dict(), [replace(pool, dp=8, ep=8)], DeployOptions())
    kserve = documents(find_target("kserve").render(serving).text)[0]["spec"]
    assert kserve["parallelism"] == {"tensor": 1}
    runtime = documents(find_target("production-stack").render(serving).text)[0]["spec"]
    assert runtime["vllmConfig"]["tensorParallelSize"] == 1
    assert "--data-parallel-size" in runtime["vllmConfig"]["extraArgs"]


def test_the_picker_scores_what_the_plan_relies_on() -> None:
    def scorers(kind: str) -> set[str]:
        config = next(d for d in documents(rendered(kind, "llm-d").text) if d["kind"] == "ConfigMap")
        return {
            p["pluginRef"] for p in yaml.safe_load(config["data"]["config.yaml"])["schedulingProfiles"][0]["plugins"]
        }

    assert scorers("one pool") == {"random-picker"}
    assert "prefix-cache-scorer" in scorers("cached")
    assert "context-length-aware" in scorers("cut")
    assert {"active-request-scorer", "max-score-picker"} <= scorers("groups")


@pytest.mark.parametrize("kind", [k for k in PLANS if k not in ("split", "two nodes")])
def test_compose_gives_every_replica_gpus_of_its_own(kind: str) -> None:
    (document,) = documents(rendered(kind, "compose").text)
    plan = plan_of(kind)
    taken = []
    for name, service in document["services"].items():
        if name == "fleetopt-router":
            continue
        host = service.get("profiles", ["host1"])[0]
        if "deploy" in service:
            devices = service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        else:
            devices = service["environment"]["HIP_VISIBLE_DEVICES"].split(",")
        taken += [(host, d) for d in devices]
    assert len(taken) == len(set(taken)) == plan.gpus
    content = re.sub(r"\$\{[^}]*\}", "10.0.0.2", document["configs"]["replicas.yaml"]["content"]).replace("$$", "$")
    clusters = yaml.safe_load(content)["resources"]
    endpoints = [e for c in clusters for e in c["load_assignment"]["endpoints"][0]["lb_endpoints"]]
    assert len(endpoints) == plan.replicas


def test_systemd_has_a_unit_per_pool_and_settings_per_replica() -> None:
    plan = plan_of("cut")
    found = rendered("cut", "systemd").files
    assert sum(name.endswith(".env") for name in found) == plan.replicas
    assert sum(name.endswith(".service") for name in found) == len(plan.pools) + 1
    assert "ExecStart=/usr/bin/env vllm serve" in found["fleetopt-short@.service"]


def test_bad_input_is_told(tmp_path: Path) -> None:
    with pytest.raises(fo.InputError, match="did you mean 'kserve'"):
        fo.deploy(plan_of("one pool"), "kserv")
    with pytest.raises(fo.InputError, match="no name of an object"):
        rendered("one pool", "k8s", name="Fleet_1")
    data = plan_of("one pool").to_dict()
    data["pools"][0]["settings"] |= {"max_num_seqs": 0, "gpu_memory_utilization": 3.0}
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(fo.InputError, match="max_num_seqs"):
        fo.deploy(file)
    assert target_names() == ("compose", "dynamo", "k8s", "kserve", "llm-d", "production-stack", "systemd")
