"""KServe: one LLMInferenceService per pool, or one with a prefill part for a split fleet, and budgets for disruptions."""

from __future__ import annotations

from collections.abc import Callable

from planner.operate.deploy import Rendered
from planner.operate.deploy import kubernetes as k
from planner.operate.deploy.kubernetes import environment, placement, probes, resources
from planner.operate.deploy.router import POOL_HEADER, length_notes, picker, picker_notes
from planner.operate.deploy.serving import COMPONENT, NAME, VALUES, Serving, ServingPool, filler, note, refusal, without


def render(serving: Serving) -> Rendered:
    """All objects as one file."""
    pools = serving.pools
    if "{model}" not in serving.engine.launch[2:3]:
        raise refusal("vllm_only", to="kserve", why="KServe's template starts", engine=serving.engine)
    serving.refuse_for("kserve", "wide")
    if serving.split:
        prefill = next(p for p in pools if p.role.startswith("prefill"))
        decode = next((p for p in pools if p is not prefill), prefill)
        documents = [_service(serving, decode, serving.options.name)]
        if decode is not prefill:
            documents[0]["spec"]["prefill"] = _workload(serving, prefill)
    else:
        documents = [_service(serving, p, p.object) for p in pools]
    notes = [*picker_notes(serving)]
    for pool in pools:
        labels = _labels(serving, pool)
        policy = k.network_policy(
            serving,
            pool.object,
            labels,
            [_filled("callers"), k.from_pods({NAME: labels[NAME]})],
            serving.port,
            leaves=False,
        )
        documents += [k.pool_budget(serving, pool, labels), policy]
    if serving.boundaries:
        notes += [*length_notes(serving), note("kserve_length", header=POOL_HEADER)]
        documents.append(_route(serving))
    about = f"requests go to KServe's gateway, path /{serving.options.namespace or 'NAMESPACE'}/NAME"
    return k.manifests(serving, "kserve", documents, about, notes)


_filled: Callable[..., k.Object] = filler(__file__)


def _labels(serving: Serving, pool: ServingPool) -> dict[str, str]:
    """Labels that KServe gives the pods of a pool."""
    part = "prefill" if pool.role.startswith("prefill") else "workload"
    return {NAME: serving.options.name if serving.split else pool.object, COMPONENT: f"llminferenceservice-{part}"}


def _workload(serving: Serving, pool: ServingPool) -> k.Object:
    """A pool as KServe's own template completes it: it mounts the weights, starts vLLM, confines it, and lets it drain."""
    group, engine = serving.engine.flags["tp"], serving.engine
    words = pool.command[len(engine.launch) :]
    tensor = int(words[words.index(group) + 1])
    extra = without(words, group, "--host", "--port", *engine.drains[:1])
    variables = [{"name": "VLLM_ADDITIONAL_ARGS", "value": " ".join(extra)}]
    probe = probes(serving)["startupProbe"]
    return _filled(
        "workload",
        serving=serving,
        pool=pool,
        tensor=tensor,
        grace=VALUES.times["template_leaves"] + pool.drain_s + VALUES.times["template_exit"],
        env=[*variables, *(e for e in environment(serving) if e["name"] == serving.key_variable)],
        resources=resources(serving, pool),
        every=probe["periodSeconds"],
        looks=probe["failureThreshold"],
        placement=placement(serving, pool),
    )


def _service(serving: Serving, pool: ServingPool, name: str) -> k.Object:
    """The service of a pool."""
    cache, labels = serving.options.cache, pool.labels
    revision = f":{serving.options.revision}" if serving.options.revision else ""
    return _filled(
        "service",
        serving=serving,
        name=name,
        labels=labels,
        uri=f"pvc://{cache}/{serving.repository}" if cache else f"hf://{serving.repository}{revision}",
        workload=_workload(serving, pool),
        scorers=_scorers(serving),
    )


def _scorers(serving: Serving) -> k.Object:
    """The picker's configuration of one pool: a service serves one class of lengths, so none filters by length."""
    found = picker(serving)
    by_length = "context-length-aware"
    found["plugins"] = [p for p in found["plugins"] if p["type"] != by_length]
    for profile in found["schedulingProfiles"]:
        profile["plugins"] = [p for p in profile["plugins"] if p["pluginRef"] != by_length]
    return found


def _route(serving: Serving) -> k.Object:
    """Requests by the header that names their pool, the rest to the pool of the longest."""
    *short, longest = serving.pools
    rules = [_filled("rule", matches=_filled("named", header=POOL_HEADER, pool=p), pool=p) for p in short]
    rules.append(_filled("rule", matches=None, pool=longest))
    return _filled("route", serving=serving, rules=rules)


def address(serving: Serving) -> str:
    """Where requests go inside the cluster."""
    options = serving.options
    name = options.name if serving.split else serving.pools[-1].object
    # the gateway's own address: each service has a path of its own there
    return f"http://kserve-ingress-gateway-istio.kserve/{options.namespace or 'default'}/{name}"
