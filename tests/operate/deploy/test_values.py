"""Manifests field by field against the plan they were made of, in every target."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import planner as fo
from tests.operate.deploy.conftest import PLANS, documents, plan_of
from tests.operate.deploy.schemas import unconfined

KUBERNETES = ("k8s", "llm-d", "kserve", "dynamo", "production-stack")
OF_GRAPH = "nvidia.com/dynamo-graph-deployment-name"
REFUSED = {
    "kserve": ("two nodes",),
    "production-stack": ("split", "two nodes"),
    "k8s": ("split",),
    "dynamo": ("cut", "cut by prompt", "amd"),
    "llm-d": (),
}
PAIRS = [(to, kind) for to in KUBERNETES for kind in PLANS if kind not in REFUSED[to]]
NAME = "app.kubernetes.io/name"
Object = dict[str, Any]


@cache
def rendered(to: str, kind: str, **options: Any) -> tuple[Object, ...]:
    return tuple(documents(fo.deploy(plan_of(kind), to, **options).text))


def of(objects: tuple[Object, ...], kind: str) -> dict[str, Object]:
    return {d["metadata"]["name"]: d for d in objects if d["kind"] == kind}


def workloads(to: str, kind: str, **options: Any) -> Iterator[tuple[Any, int | None, Object, Object]]:
    """(pool of the plan, replicas, labels of its pods, pod) of every pool, wherever the target puts them."""
    objects, plan = rendered(to, kind, **options), plan_of(kind)
    for pool in plan.pools:
        name = f"fleetopt-{pool.name.replace(' ', '-')}"
        if to == "dynamo":
            role = pool.name if kind == "split" else "worker"
            (found,) = (c for c in objects[0]["spec"]["components"] if c["type"] == role)
            yield (
                pool,
                found.get("replicas"),
                {OF_GRAPH: "fleetopt", "nvidia.com/dynamo-component-type": role},
                found["podTemplate"]["spec"],
            )
        elif to == "kserve":
            service = of(objects, "LLMInferenceService")["fleetopt" if kind == "split" else name]["spec"]
            found = service["prefill"] if pool.name == "prefill" else service
            part = "prefill" if pool.name == "prefill" else "workload"
            own = {
                NAME: "fleetopt" if kind == "split" else name,
                "app.kubernetes.io/component": f"llminferenceservice-{part}",
            }
            yield pool, found.get("replicas"), own, found["template"]
        elif kind == "two nodes":
            found = of(objects, "LeaderWorkerSet")[name]["spec"]
            leader = found["leaderWorkerTemplate"]["leaderTemplate"]
            # the controller's label
            own = {**leader["metadata"]["labels"], "leaderworkerset.sigs.k8s.io/name": name}
            yield pool, found.get("replicas"), own, leader["spec"]
        else:
            found = of(objects, "Deployment")[name]["spec"]
            yield pool, found.get("replicas"), found["template"]["metadata"]["labels"], found["template"]["spec"]


def p99_s(pool: Any) -> float:
    """The plan's P99 E2E, of a prefill pool the TTFT [s]."""
    told = {v["metric"]: v["value_s"] for v in plan_entry(pool)["latency"] if v["quantile"] == 0.99}
    return float(told["e2e_s"] if "e2e_s" in told else told["ttft_s"])


@cache
def entries() -> dict[int, Mapping[str, Any]]:
    return {
        id(pool): entry
        for kind in PLANS
        for pool, entry in zip(plan_of(kind).pools, plan_of(kind).to_dict()["pools"], strict=True)  # type: ignore[call-overload]
    }


def plan_entry(pool: Any) -> Mapping[str, Any]:
    return entries()[id(pool)]


def line(container: Object) -> list[str]:
    """A start line, wherever a target keeps it."""
    if "args" in container:
        return [*container["args"]]
    return next(e["value"] for e in container["env"] if e["name"] == "VLLM_ADDITIONAL_ARGS").split()


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.parametrize(("to", "kind"), [p for p in PAIRS if p[0] != "production-stack"])
def test_replicas_gpus_memory_and_settings(to: str, kind: str) -> None:
    for pool, replicas, _, pod in workloads(to, kind):
        asked, container = plan_entry(pool)["settings"], pod["containers"][0]
        gpu = "amd.com/gpu" if kind == "amd" else "nvidia.com/gpu"
        count = pool.gpus // pool.replicas // (2 if kind == "two nodes" else 1)
        assert replicas == pool.replicas
        assert container["resources"]["requests"][gpu] == container["resources"]["limits"][gpu] == str(count)
        assert container["resources"]["requests"]["cpu"] == str(4 + count)
        low, high = (int(container["resources"][k]["memory"].removesuffix("Gi")) for k in ("requests", "limits"))
        # weights pass through memory once, beside 16 GiB of shared memory
        assert low == 16 + 4 * count and high > low + 16
        words = line(container)
        assert after(words, "--max-num-seqs") == str(asked["max_num_seqs"]) == str(pool.slots)
        assert after(words, "--max-model-len") == str(asked["max_model_len"])
        assert after(words, "--max-num-batched-tokens") == str(asked["max_num_batched_tokens"])
        assert float(after(words, "--gpu-memory-utilization")) == asked["gpu_memory_utilization"]
        if to != "kserve":
            assert after(words, "--tensor-parallel-size") == str(pool.tp)
        shared = [v["emptyDir"]["sizeLimit"] for v in pod["volumes"] if v.get("emptyDir", {}).get("medium") == "Memory"]
        assert shared == ([] if to == "dynamo" else ["16Gi"])


@pytest.mark.parametrize("kind", [kind for to, kind in PAIRS if to == "production-stack"])
def test_a_runtime_of_the_production_stack(kind: str) -> None:
    objects = rendered("production-stack", kind)
    for pool in plan_of(kind).pools:
        spec = of(objects, "VLLMRuntime")[f"fleetopt-{pool.name.replace(' ', '-')}"]["spec"]
        asked, deployed = plan_entry(pool)["settings"], spec["deploymentConfig"]
        assert deployed["replicas"] == pool.replicas
        assert deployed["resources"]["gpu"] == str(pool.gpus // pool.replicas)
        assert (
            spec["model"]["maxNumSeqs"] == asked["max_num_seqs"]
            and spec["model"]["maxModelLen"] == asked["max_model_len"]
        )
        assert spec["vllmConfig"]["tensorParallelSize"] == pool.tp
        assert after(spec["vllmConfig"]["extraArgs"], "--max-num-batched-tokens") == str(
            asked["max_num_batched_tokens"]
        )
        assert "--host" not in spec["vllmConfig"]["extraArgs"]


@pytest.mark.parametrize(("to", "kind"), [p for p in PAIRS if p[0] != "production-stack"])
def test_a_replica_that_ends_has_time_to_finish(to: str, kind: str) -> None:
    """The grace covers the way out of the router, the plan's P99 E2E and half as much, and the end of the process."""
    for pool, _, _, pod in workloads(to, kind):
        container, grace = pod["containers"][0], pod["terminationGracePeriodSeconds"]
        drain = max(30, math.ceil(1.5 * p99_s(pool)))
        assert drain > p99_s(pool)
        if to == "kserve":
            # its template sleeps 15 s, keeps 5 s, and gives the rest to --shutdown-timeout
            assert grace == 15 + drain + 5 and "--shutdown-timeout" not in line(container)
        elif to == "dynamo":
            assert grace >= drain and "--shutdown-timeout" not in line(container)
        else:
            leaves = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
            timeout = int(after(line(container), "--shutdown-timeout"))
            assert timeout == drain
            # DNS of a cluster is up to 30 s old, Envoy's answer 5 s more
            assert leaves >= 35 and grace >= leaves + timeout + 5


@pytest.mark.parametrize(("engine", "flag"), [("vllm", True), ("sglang", False), ("trtllm", False)])
def test_engines_end_by_their_own_means(engine: str, flag: bool) -> None:
    """SGLang and TensorRT-LLM finish what they have by themselves, for as long as the grace lasts."""
    ((_, _, _, pod),) = workloads("k8s", "one pool", engine=engine)
    assert ("--shutdown-timeout" in pod["containers"][0]["args"]) == flag
    assert pod["terminationGracePeriodSeconds"] >= 40 + 30


@pytest.mark.parametrize(("to", "kind"), PAIRS)
def test_selectors_select_their_pods_and_ports_are_open(to: str, kind: str) -> None:
    """Every service, budget, policy and pool of pods selects pods that are there, by labels and port."""
    objects = rendered(to, kind, namespace="serving")
    pods: list[tuple[Object, Object]] = []
    if to != "production-stack":
        pods += [(labels, pod) for _, _, labels, pod in workloads(to, kind, namespace="serving")]
    else:
        pods += [
            ({"app": name}, {"containers": [{"ports": [{"containerPort": 8000}]}]})
            for name in of(objects, "VLLMRuntime")
        ]
    for found in of(objects, "Deployment").values():
        template = found["spec"]["template"]
        assert found["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        pods.append((template["metadata"]["labels"], template["spec"]))

    def ports(chosen: Object) -> set[Any]:
        selected = [pod for labels, pod in pods if chosen.items() <= labels.items()]
        assert selected, f"nothing is selected by {chosen}"
        opened = [
            p
            for pod in selected
            for c in (*pod.get("initContainers", ()), *pod["containers"])
            for p in c.get("ports", ())
        ]
        return {p["containerPort"] for p in opened} | {p.get("name") for p in opened}

    for found in of(objects, "Service").values():
        assert {p["targetPort"] for p in found["spec"]["ports"]} <= ports(found["spec"]["selector"])
    for found in of(objects, "PodDisruptionBudget").values():
        ports(found["spec"]["selector"]["matchLabels"])
        assert found["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    for found in of(objects, "InferencePool").values():
        assert found["spec"]["targetPorts"][0]["number"] in ports(found["spec"]["selector"]["matchLabels"])
        picker = of(objects, "Service")[found["spec"]["endpointPickerRef"]["name"]]
        assert found["spec"]["endpointPickerRef"]["port"]["number"] in {p["port"] for p in picker["spec"]["ports"]}
    for found in of(objects, "NetworkPolicy").values():
        opened = ports(found["spec"]["podSelector"]["matchLabels"])
        if to not in ("dynamo", "kserve"):
            assert {p["port"] for rule in found["spec"]["ingress"] for p in rule.get("ports", ())} <= opened
    for found in objects:
        assert found["metadata"].get("namespace", "serving") == "serving"


@pytest.mark.parametrize(("to", "kind"), PAIRS)
def test_disruptions_spare_what_the_plan_needs(to: str, kind: str) -> None:
    budgets = of(rendered(to, kind), "PodDisruptionBudget")
    for pool in plan_of(kind).pools:
        assert budgets[f"fleetopt-{pool.name.replace(' ', '-')}"]["spec"]["maxUnavailable"] == max(1, pool.spares)


@pytest.mark.parametrize(("to", "kind"), [p for p in PAIRS if p[0] in ("k8s", "llm-d", "dynamo")])
def test_pods_are_confined(to: str, kind: str) -> None:
    pods = [(pod, "engine") for *_, pod in workloads(to, kind)]
    pods += [(d["spec"]["template"]["spec"], n) for n, d in of(rendered(to, kind), "Deployment").items()]
    if kind == "two nodes" and to != "dynamo":
        (group,) = of(rendered(to, kind), "LeaderWorkerSet").values()
        pods.append((group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"], "follower"))
    for pod, name in pods:
        assert unconfined(pod) == [], name
        assert not pod.get("automountServiceAccountToken", to != "dynamo") or name == "fleetopt-epp"
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            mounted = {m["name"]: m["mountPath"] for m in container.get("volumeMounts", ())}
            assert mounted.keys() <= {v["name"] for v in pod["volumes"]}
            assert "/tmp" in mounted.values() or container["name"] == "routing-proxy"


def test_a_pod_that_is_not_confined_is_noticed() -> None:
    ((*_, pod),) = workloads("k8s", "one pool")
    loose = json.loads(json.dumps(pod))
    loose["securityContext"]["runAsNonRoot"] = False
    loose["containers"][0]["securityContext"]["capabilities"] = {"drop": ["NET_RAW"]}
    loose["volumes"].append({"name": "host", "hostPath": {"path": "/"}})
    assert unconfined(loose) == ["volume host", "engine: runAsNonRoot", "engine: capabilities"]


@pytest.mark.parametrize(("to", "kind"), PAIRS)
def test_every_image_is_a_release(to: str, kind: str) -> None:
    text = fo.deploy(plan_of(kind), to).text
    images = re.findall(r"^\s*(?:- )?image: (\S+)$", text, re.MULTILINE)
    named = [f"{d}:{i}" for d, i in re.findall(r"name: ([\w./-]+):(v?[\d.]+)$", text, re.MULTILINE)]
    assert images or named or to == "kserve"
    for image in images:
        assert re.fullmatch(r"[\w./-]+:v?\d+(\.\d+)+[\w.-]*", image) and "latest" not in image


def test_images_by_digest() -> None:
    digest = "vllm/vllm-openai@sha256:" + "ab" * 32
    router = "envoyproxy/envoy:v1.39.3@sha256:" + "cd" * 32
    objects = rendered("k8s", "one pool", image=digest, router_image=router)
    images = [d["spec"]["template"]["spec"]["containers"][0]["image"] for d in of(objects, "Deployment").values()]
    assert images == [digest, router]
    for bad in ("vllm/vllm-openai", "vllm/vllm-openai:latest", "host:5000/vllm", "envoy:v1.34-latest", "a b:v1"):
        with pytest.raises(fo.InputError, match=r"--image: .* names no release"):
            fo.deploy(plan_of("one pool"), "k8s", image=bad)


def test_a_rollout_takes_no_spare_gpu_and_says_how_long() -> None:
    for kind, at_once in (("one pool", 1), ("spare", 1)):
        objects, plan = rendered("k8s", kind, startup="100s"), plan_of(kind)
        strategy = of(objects, "Deployment")["fleetopt-all"]["spec"]["strategy"]["rollingUpdate"]
        assert strategy == {"maxUnavailable": at_once, "maxSurge": 0}
        ((pool, _, _, pod),) = workloads("k8s", kind, startup="100s")
        rounds = math.ceil(pool.replicas / at_once)
        minutes = rounds * (pod["terminationGracePeriodSeconds"] + 100) / 60
        (told,) = [n for n in fo.deploy(plan, "k8s", startup="100s").notes if n.startswith("a rollout")]
        number, unit = re.search(r"up to ([\d.]+) (\w+)", told).groups()  # type: ignore[union-attr]
        assert float(number) * {"min": 1, "h": 60, "s": 1 / 60}[unit] == pytest.approx(minutes, rel=0.02)


@pytest.mark.parametrize(
    ("platform", "kind", "key", "value"),
    [
        ("generic", "one pool", "nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
        ("gke", "one pool", "cloud.google.com/gke-accelerator", "nvidia-h100-80gb"),
        ("eks", "one pool", "node.kubernetes.io/instance-type", "p5.48xlarge"),
        ("aks", "one pool", "node.kubernetes.io/instance-type", "Standard_ND96isr_H100_v5"),
        ("aks", "amd", "node.kubernetes.io/instance-type", "Standard_ND96isr_MI300X_v5"),
        ("gke", "amd", None, None),
    ],
)
def test_nodes_of_a_platform(platform: str, kind: str, key: str | None, value: str | None) -> None:
    ((*_, pod),) = workloads("k8s", kind, platform=platform)
    affinity = pod.get("affinity", {}).get("nodeAffinity", {})
    if key is None:
        assert not affinity
        assert any(
            "no node label of mi300x-192gb is known (gke)" in n
            for n in fo.deploy(plan_of(kind), platform=platform).notes
        )
        return
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchExpressions"]
    assert (term["key"], term["operator"]) == (key, "In") and value in term["values"]
    assert ({"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"} in pod["tolerations"]) == (
        platform == "aks"
    )


def test_redundancy_is_spread_over_zones() -> None:
    for kind, spread in (("one pool", False), ("spare", True)):
        ((*_, labels, pod),) = workloads("k8s", kind)
        found = pod.get("topologySpreadConstraints", [])
        assert bool(found) == spread
        for one in found:
            assert (one["topologyKey"], one["maxSkew"]) == ("topology.kubernetes.io/zone", 1)
            assert one["labelSelector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(("to", "kind"), [(to, kind) for to, kind in PAIRS if kind in ("spare", "two nodes", "split")])
def test_a_scaler_says_how_many(to: str, kind: str) -> None:
    found = fo.deploy(plan_of(kind), to, replicas_by="scaler")
    if to == "production-stack":
        runtimes = of(tuple(documents(found.text)), "VLLMRuntime").values()
        assert not any("replicas" in r["spec"]["deploymentConfig"] for r in runtimes)
    else:
        assert [replicas for _, replicas, *_ in workloads(to, kind, replicas_by="scaler")] == [None] * len(
            plan_of(kind).pools
        )
    assert any("apply the scaler" in n for n in found.notes)


def test_keys_tokens_and_revisions() -> None:
    options = {"api_key_secret": "llm-key", "revision": "abc123"}
    for engine, expected in (("vllm", "VLLM_API_KEY"), ("sglang", "API_KEY")):
        ((*_, pod),) = workloads("k8s", "one pool", engine=engine, **options)
        container = pod["containers"][0]
        secrets = {e["name"]: e["valueFrom"]["secretKeyRef"] for e in container["env"] if "valueFrom" in e}
        assert secrets[expected] == {"name": "llm-key", "key": "api-key"}
        assert secrets["HF_TOKEN"] == {"name": "hf-token", "key": "token", "optional": True}
        assert after(container["args"], "--revision") == "abc123"
        assert ("$(API_KEY)" in container["args"]) == (engine == "sglang")
    service = of(rendered("kserve", "one pool", **options), "LLMInferenceService")["fleetopt-all"]["spec"]
    assert service["model"]["uri"] == "hf://meta-llama/Llama-3.1-8B-Instruct:abc123"
    (compose,) = rendered("compose", "one pool", **options)
    assert compose["services"]["fleetopt-all-1"]["environment"]["VLLM_API_KEY"].startswith("${VLLM_API_KEY:?")
    unit = fo.deploy(plan_of("one pool"), "systemd", engine="sglang", **options).files["fleetopt-all@.service"]
    assert "EnvironmentFile=/etc/fleetopt/key.env" in unit and "--api-key ${API_KEY}" in unit
    for to, more, match in (
        ("k8s", {"engine": "trtllm"}, "TensorRT-LLM's server asks for no key"),
        ("dynamo", {}, "--to dynamo has nothing that asks for a key"),
        ("production-stack", {}, "--to production-stack has nothing"),
    ):
        with pytest.raises(fo.InputError, match=match):
            fo.deploy(plan_of("one pool"), to, **options, **more)


def test_network_policies_let_in_the_router_and_prometheus() -> None:
    for to in ("k8s", "llm-d"):
        policies = of(rendered(to, "spare", prometheus_namespace="watch"), "NetworkPolicy")
        rules = policies["fleetopt-engines"]["spec"]
        assert rules["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "engine"
        callers = [
            p["podSelector"]["matchLabels"] for rule in rules["ingress"] for p in rule["from"] if "podSelector" in p
        ]
        assert {"app.kubernetes.io/part-of": "fleetopt"} in callers
        watching = [rule for rule in rules["ingress"] if any("namespaceSelector" in p for p in rule["from"])]
        assert watching == [
            {
                "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "watch"}}}],
                "ports": [{"port": 8000, "protocol": "TCP"}],
            }
        ]
        # names, and the hub of the weights
        assert {p["port"] for rule in rules["egress"] for p in rule.get("ports", ())} == {53, 443}


@pytest.mark.parametrize("to", KUBERNETES)
def test_only_engines_may_not_call_where_they_like(to: str) -> None:
    """A router that may call nobody routes nothing; of the pods that an operator completes we do not know whom they call."""
    policies = of(rendered(to, "spare"), "NetworkPolicy")
    assert policies
    for name, policy in policies.items():
        confined = name == "fleetopt-engines"
        assert policy["spec"]["policyTypes"] == (["Ingress", "Egress"] if confined else ["Ingress"])
        assert ("egress" in policy["spec"]) == confined


@pytest.mark.parametrize("to", KUBERNETES)
def test_kustomize_says_the_same_as_one_file(to: str, tmp_path: Path) -> None:
    kind = "spare"
    files = fo.deploy(plan_of(kind), to, layout="kustomize", namespace="serving").files
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    base = documents(files[next(n for n in files if n.startswith("base/") and "kustom" not in n)])
    assert not any("namespace" in d["metadata"] or "replicas" in d.get("spec", {}) for d in base)
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not here")
    # a server that nobody is: no cluster of anybody is asked which version it has
    command = ["kubectl", "--server=http://127.0.0.1:9", "kustomize", str(tmp_path / "overlays/plan")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "unknown command" in built.stderr:
        pytest.skip("kubectl without kustomize")
    assert built.returncode == 0, built.stderr

    def by_name(documents: Iterator[Object]) -> dict[tuple[str, str], Object]:
        return {(d["kind"], d["metadata"]["name"]): d for d in documents if d}

    expected = by_name(iter(documents(fo.deploy(plan_of(kind), to, namespace="serving").text)))
    found = by_name(iter(documents(built.stdout)))
    assert found.keys() == expected.keys()
    for key, document in expected.items():
        # kustomize writes the namespace into what has none, roles of the cluster aside
        assert found[key] == document, key


@pytest.mark.parametrize(("to", "kind"), [p for p in PAIRS if p[0] in ("k8s", "llm-d")])
def test_probes_wait_for_the_weights_and_then_look(to: str, kind: str) -> None:
    """Three times the start-up time, ten minutes at least; the rollout is given up later than that and the drain of the old one."""
    for startup_s in (100, 1000):
        options = {"startup": f"{startup_s}s"}
        for _, _, _, pod in workloads(to, kind, **options):
            container = pod["containers"][0]
            names = {p["name"]: p["containerPort"] for p in container["ports"]}
            port = int(after(container["args"], "--port"))
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                look = container[probe]["httpGet"]
                assert look["path"] == "/health" and names[look["port"]] == port
            patience = container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"]
            assert patience == max(600, 3 * startup_s)
            ready, alive = container["readinessProbe"], container["livenessProbe"]
            # out of the router in a quarter of a minute, restarted not before a minute
            assert ready["periodSeconds"] * ready["failureThreshold"] == 15
            assert alive["periodSeconds"] * alive["failureThreshold"] == 60
            assert alive["timeoutSeconds"] < alive["periodSeconds"]
        for name, found in of(rendered(to, kind, **options), "Deployment").items():
            if name.startswith("fleetopt-") and name not in ("fleetopt-router", "fleetopt-epp"):
                pod = found["spec"]["template"]["spec"]
                least = max(600, 3 * startup_s) + pod["terminationGracePeriodSeconds"]
                assert found["spec"]["progressDeadlineSeconds"] > least


def test_a_group_outlives_the_drain_of_its_first_pod() -> None:
    group = of(rendered("k8s", "two nodes"), "LeaderWorkerSet")["fleetopt-all"]["spec"]
    assert group["rolloutStrategy"]["rollingUpdateConfiguration"] == {"maxUnavailable": 1, "maxSurge": 0}
    leader, follower = (group["leaderWorkerTemplate"][f"{role}Template"]["spec"] for role in ("leader", "worker"))
    sleeps = [int(p["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1]) for p in (leader, follower)]
    drain = int(after(leader["containers"][0]["args"], "--shutdown-timeout"))
    assert sleeps[1] == sleeps[0] + drain
    assert follower["terminationGracePeriodSeconds"] == leader["terminationGracePeriodSeconds"] > sleeps[1]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_metrics_are_where_prometheus_is_told(engine: str) -> None:
    objects = rendered("k8s", "one pool", engine=engine)
    template = of(objects, "Deployment")["fleetopt-all"]["spec"]["template"]
    told = template["metadata"]["annotations"]
    path = {"trtllm": "/prometheus/metrics"}.get(engine, "/metrics")
    assert told == {"prometheus.io/scrape": "true", "prometheus.io/port": "8000", "prometheus.io/path": path}
    assert ("--enable-metrics" in template["spec"]["containers"][0]["args"]) == (engine == "sglang")
