"""What users are told beside the files, and objects whose every field is a decision: value by value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import planner as fo
from planner.operate.deploy import find_target, target_names
from planner.operate.deploy.acceptance import LARGEST_RESULT, read_results
from planner.operate.deploy.router import placed
from planner.operate.deploy.serving import VALUES, DeployOptions, Serving, serving_of
from planner.question.files import saved_pools
from tests.operate.deploy.conftest import documents, plan_of

KINDS = ("one pool", "spare", "cut", "cut by prompt", "groups", "quantized here", "cached", "two nodes", "split")
CLUSTER = {"k8s", "kserve", "llm-d", "production-stack", "dynamo"}
ROUTED = {  # each plan's routing
    "one pool": "random", "spare": "p2c", "cut": "p2c", "cut by prompt": "p2c", "groups": "least", "quantized here": "rr",
    "cached": "least", "two nodes": "p2c", "split": "p2c",
}  # fmt: skip
CUTS = {"cut", "cut by prompt"}

TOLD: dict[str, Any] = {
    "network policies let in Prometheus from namespace monitoring": lambda to, kind: to in CLUSTER,
    # what counts requests in flight counts those it sent itself
    "2 Envoys route, and each counts its own requests": lambda to, kind: to == "k8s" and ROUTED[kind] in ("p2c", "least"),
    "does not cut by length: all pools get all lengths": lambda to, kind: to == "production-stack" and kind in CUTS,
    "knows round robin, sessions and prefixes, not": lambda to, kind: to == "production-stack" and ROUTED[kind] != "rr",
    "kv mode weighs cached prefixes and load; the plan was made for least": lambda to, kind: to == "dynamo" and kind == "cached",
    "its operator must serve nvidia.com/v1beta1": lambda to, kind: to == "dynamo",
    "the gateway class is yours to set": lambda to, kind: to == "llm-d",
    "ask for no token": lambda to, kind: to == "llm-d",
    "ask for a token": lambda to, kind: False,
    "an endpoint picker has no": lambda to, kind: to in ("llm-d", "kserve") and ROUTED[kind] in ("p2c", "rr"),
    "a router counts 4 bytes of the body as a token": lambda to, kind: to in ("k8s", "llm-d", "kserve", "compose", "systemd")
    and kind in CUTS,
    "which only max_tokens tells (else the mean output of": lambda to, kind: to in ("k8s", "llm-d", "kserve", "compose", "systemd")
    and kind == "cut",
    "KServe routes by model name, not by length": lambda to, kind: to == "kserve" and kind in CUTS,
    # those of the plan that have spares
    "no spare replica in": lambda to, kind: to in CLUSTER and kind not in ("spare", "two nodes"),
    "needs no spare GPU and takes up to": lambda to, kind: to in CLUSTER,
    "its own configuration file only": lambda to, kind: False,
    "apply the scaler with it": lambda to, kind: False,
    "units take their replica out of it before they end": lambda to, kind: to == "systemd",
    "before a replica is stopped: docker compose exec -u root": lambda to, kind: to == "compose",
    "docker compose --profile host1 up on the first": lambda to, kind: to == "compose" and kind in CUTS,
    "requests need no key": lambda to, kind: True,
    "the newest weights are loaded, --revision COMMIT keeps them": lambda to, kind: True,
    "start-up estimated at": lambda to, kind: True,
}  # fmt: skip
"""Words -> whether a target says them of a plan."""


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_told_where(kind: str) -> None:
    """Every remark is made where what it says is so, and nowhere else."""
    for to in target_names():
        try:
            notes = fo.deploy(plan_of(kind), to).notes
        except fo.InputError:
            continue
        told = {words for words in TOLD if any(words in note for note in notes)}
        assert told == {words for words, where in TOLD.items() if where(to, kind)}, to
        assert len(notes) == len(set(notes))


def test_options_change_what_is_told() -> None:
    plan = plan_of("one pool")
    notes = " ".join(fo.deploy(plan, "llm-d", namespace="serving").notes)
    assert "one of its own account fleetopt-epp" in notes and "ask for no token" not in notes
    assert "apply the scaler with it" in " ".join(fo.deploy(plan, "k8s", replicas_by="scaler").notes)
    (other,) = (n for n in fo.deploy(plan, "k8s", engine="sglang").notes if "the plan was made for" in n)
    assert other == "the plan was made for vLLM; latencies of SGLang were not predicted"
    assert not any("the plan was made for" in n for n in fo.deploy(plan, "k8s", engine="vllm").notes)
    notes = " ".join(fo.deploy(plan, "k8s", startup="60s", api_key_secret="key", revision="a1b2c3d").notes)
    assert not [words for words in ("start-up estimated", "requests need no key", "newest weights") if words in notes]


@pytest.mark.parametrize(
    ("to", "kind", "options", "told"),
    [
        ("kserve", "one pool", {"engine": "sglang"}, "KServe's template starts vLLM, not SGLang"),
        ("production-stack", "one pool", {"engine": "sglang"}, "runs vLLM, not SGLang"),
        ("production-stack", "one pool", {"api_key_secret": "key"}, "has nothing that asks for a key"),
        ("dynamo", "cut", {}, "a graph of workers has no cut by length"),
        ("compose", "two nodes", {}, "pool all: a replica of 16 GPUs spans 2 nodes"),
        ("systemd", "split", {}, "has nothing that passes KV caches from a prefill to a decode pool"),
    ],
)
def test_what_a_target_cannot_do_it_refuses(to: str, kind: str, options: dict[str, Any], told: str) -> None:
    """And says of itself that it does not, and what does."""
    with pytest.raises(fo.InputError) as raised:
        fo.deploy(plan_of(kind), to, **options)
    assert told in raised.value.message and f"--to {to}" in raised.value.message and raised.value.hint


def changed(kind: str, **fields: Any) -> Serving:
    """A plan's fleet with other fields of its first pool."""
    plan = plan_of(kind)
    first, *rest = saved_pools(plan)
    return serving_of(plan.to_dict(), [replace(first, **fields), *rest], DeployOptions())


def test_nobody_starts_a_thousand_replicas_one_by_one() -> None:
    assert (
        len(placed(changed("one pool", replicas=VALUES.limits["replicas"]), "compose")[0]) == VALUES.limits["replicas"]
    )
    for to in ("compose", "systemd"):
        with pytest.raises(fo.InputError, match="513 replicas are more than the 512 that are started one by one"):
            find_target(to).render(changed("one pool", replicas=VALUES.limits["replicas"] + 1))


def test_replicas_fill_hosts_of_eight() -> None:
    """Two replicas of three GPUs each; the last two GPUs of a host stay idle."""
    found, hosts = placed(changed("one pool", replicas=5, tp=3), "compose")
    assert hosts == 3
    assert [(p.host, list(p.gpus), p.port) for p in found] == [
        (0, [0, 1, 2], 8001), (0, [3, 4, 5], 8002), (1, [0, 1, 2], 8001), (1, [3, 4, 5], 8002), (2, [0, 1, 2], 8001)
    ]  # fmt: skip
    assert [p.name for p in found] == [f"fleetopt-all-{k}" for k in range(1, 6)]


def test_a_service_of_compose_field_by_field() -> None:
    (compose,) = documents(fo.deploy(plan_of("one pool"), "compose", api_key_secret="key", startup="100s").text)
    service = dict(compose["services"]["fleetopt-all-2"])
    command = service.pop("command")
    assert service.pop("entrypoint") == ["vllm"] and command[:2] == ["serve", "meta-llama/Llama-3.1-8B-Instruct"]
    assert command[command.index("--port") + 1] == "8000"
    assert service.pop("image").startswith("vllm/vllm-openai:")
    check = service["healthcheck"].pop("test")
    assert check[0] == "CMD-SHELL" and "urlopen('http://127.0.0.1:8000/health', timeout=5)" in check[1]
    assert service == {
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "environment": {
            "HF_HOME": "/models",
            "HF_TOKEN": "${HF_TOKEN:-}",
            "VLLM_API_KEY": "${VLLM_API_KEY:?the key that requests must bear}",
        },
        "shm_size": "16gb",
        "volumes": ["models:/models"],
        "ports": ["8002:8000"],
        "stop_grace_period": "40s",
        "restart": "unless-stopped",
        "healthcheck": {"interval": "10s", "timeout": "6s", "retries": 3, "start_period": "600s"},
        "deploy": {
            "resources": {
                "reservations": {"devices": [{"driver": "nvidia", "device_ids": ["1"], "capabilities": ["gpu"]}]}
            }
        },
    }


def test_a_runtime_of_the_stack_field_by_field() -> None:
    found = {d["kind"]: d for d in documents(fo.deploy(plan_of("cached"), "production-stack").text)}
    pool = plan_of("cached").pools[0]
    spec = found["VLLMRuntime"]["spec"]
    labels = {
        "app.kubernetes.io/part-of": "fleetopt", "app.kubernetes.io/managed-by": "fleetopt",
        "app.kubernetes.io/component": "engine", "app.kubernetes.io/name": "fleetopt-all",
    }  # fmt: skip
    assert found["VLLMRuntime"]["apiVersion"] == "production-stack.vllm.ai/v1alpha1"
    assert found["VLLMRuntime"]["metadata"] == {"name": "fleetopt-all", "labels": labels}
    longest = spec["model"].pop("maxModelLen")
    assert longest == max(pool.settings.max_model_len or 0, longest)
    assert spec["model"] == {
        "modelURL": "meta-llama/Llama-3.1-8B-Instruct",
        "maxNumSeqs": pool.slots,
        "hfTokenSecret": {"hfTokenSecretName": "hf-token", "hfTokenKeyName": "token"},
    }
    extra = spec["vllmConfig"].pop("extraArgs")
    budget = str(pool.settings.max_num_batched_tokens)
    assert extra == ["--max-num-batched-tokens", budget, "--shutdown-timeout", "30"]
    assert spec["vllmConfig"] == {
        "v1": True, "port": 8000, "tensorParallelSize": 1, "gpuMemoryUtilization": "0.9", "enablePrefixCaching": True,
        "enableChunkedPrefill": True,
    }  # fmt: skip
    image = spec["deploymentConfig"].pop("image")
    assert image["registry"] == "docker.io" and image["name"].startswith("vllm/vllm-openai:v")
    assert spec["deploymentConfig"] == {
        "replicas": pool.replicas,
        "deploymentStrategy": "RollingUpdate",
        "resources": {"cpu": "5", "memory": "20Gi", "gpu": "1", "gpuType": "nvidia.com/gpu"},
        "shmSize": "16Gi",
        "nodeSelectorTerms": [
            {
                "matchExpressions": [
                    {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-H100-80GB-HBM3"]}
                ]
            }
        ],
    }
    router = found["VLLMRouter"]["spec"]
    router.pop("image")
    assert router == {
        "enableRouter": True, "replicas": 1, "port": 80, "serviceDiscovery": "k8s",
        "k8sLabelSelector": "app.kubernetes.io/part-of=fleetopt", "routingLogic": "prefixaware", "engineScrapeInterval": 5,
        "requestStatsWindow": 60, "resources": {"cpu": "1", "memory": "1Gi"},
    }  # fmt: skip


LEAST = [("active-request-scorer", 2), ("queue-scorer", 1)]


@pytest.mark.parametrize(
    ("kind", "scored", "last"),
    [
        ("one pool", [], "random-picker"),
        ("groups", LEAST, "max-score-picker"),
        ("cut", [("context-length-aware", 1), *LEAST], "max-score-picker"),
        ("cached", [*LEAST, ("prefix-cache-scorer", 2)], "max-score-picker"),
        ("split", LEAST, "max-score-picker"),
    ],
)
def test_a_pickers_plugins_and_weights(kind: str, scored: list[tuple[str, int]], last: str) -> None:
    """Every plugin that a profile names is set up once; fewest in flight count twice what waits does."""
    found = [d for d in documents(fo.deploy(plan_of(kind), "llm-d").text) if d["kind"] == "ConfigMap"]
    config = yaml.safe_load(found[0]["data"]["config.yaml"])
    assert (config["apiVersion"], config["kind"]) == ("llm-d.ai/v1alpha1", "EndpointPickerConfig")
    expected: list[dict[str, Any]] = [{"pluginRef": name, "weight": weight} for name, weight in scored]
    expected.append({"pluginRef": last})
    settings: dict[str, Any] = {"context-length-aware": {"enableFiltering": True}}
    plugins = [name for name, _ in scored] + [last]
    if kind == "split":
        plugins += ["prefill-filter", "decode-filter", "always-disagg-pd-decider", "disagg-profile-handler"]
        settings["disagg-profile-handler"] = {"deciders": {"prefill": "always-disagg-pd-decider"}}
        profiles = [{"name": r, "plugins": [{"pluginRef": f"{r}-filter"}, *expected]} for r in ("prefill", "decode")]
    else:
        plugins.append("single-profile-handler")
        profiles = [{"name": "default", "plugins": expected}]
    assert config["schedulingProfiles"] == profiles
    assert config["plugins"] == [
        {"type": name, "parameters": settings[name]} if name in settings else {"type": name} for name in plugins
    ]


def test_a_result_beyond_reason_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with path.open("wb") as file:
        file.truncate(LARGEST_RESULT + 1)
    with pytest.raises(fo.InputError, match=rf"result.json: more than {LARGEST_RESULT >> 20} MiB"):
        read_results(path)
