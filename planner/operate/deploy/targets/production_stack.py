"""vLLM production stack: a VLLMRuntime per pool and a VLLMRouter."""

from __future__ import annotations

from collections.abc import Callable

from planner.operate.deploy import Rendered
from planner.operate.deploy import kubernetes as k
from planner.operate.deploy.kubernetes import node_terms, resources
from planner.operate.deploy.serving import VALUES, Serving, ServingPool, filler, note, refusal, without

_filled: Callable[..., k.Object] = filler(__file__)


def render(serving: Serving) -> Rendered:
    """All objects as one file."""
    serving.refuse_for("production-stack", "split", "wide")
    if "{model}" not in serving.engine.launch[2:3]:
        raise refusal("vllm_only", to="production-stack", why="runs", engine=serving.engine)
    serving.refuse_for("production-stack", "no_key")
    router = serving.router
    objects: list[k.Object] = [*(_runtime(serving, p) for p in serving.pools), _router(serving)]
    for pool in serving.pools:
        own = {"app": pool.object}
        policy = k.network_policy(serving, pool.object, own, [k.from_pods({"app": router})], serving.port, leaves=False)
        objects += [k.pool_budget(serving, pool, own), policy]
    notes = [note("stack_pods")]
    if not serving.routing.in_turn:
        notes.append(note("stack_routing", serving=serving))
    if serving.boundaries:
        notes.append(note("stack_length"))
    return k.manifests(serving, "production-stack", objects, f"requests go to service {router}, port 80", notes)


def _image(name: str) -> k.Object:
    registry, _, rest = name.partition("/")
    if "." in registry or ":" in registry:
        return {"registry": registry, "name": rest}
    return {"registry": "docker.io", "name": name}


def _runtime(serving: Serving, pool: ServingPool) -> k.Object:
    """One pool as an entry of the chart's `modelSpec`, which sets some flags by keys of its own."""
    flags, words = serving.engine.flags, pool.command

    def value(name: str) -> str:
        return words[words.index(flags[name]) + 1]

    own = ("tp", "slots", "max_model_len", "memory_utilization")
    extra = without(words[len(serving.engine.launch) :], *(flags[name] for name in own), "--host", "--port")
    terms = node_terms(serving, pool)
    return _filled(
        "runtime",
        serving=serving,
        pool=pool,
        longest=int(value("max_model_len")),
        slots=int(value("slots")),
        tensor=int(value("tp")),
        memory_utilization=value("memory_utilization"),
        extra=extra,
        image=_image(serving.image),
        gpus=str(pool.gpus),
        nodes=[{"matchExpressions": terms}] if terms else None,
        **{key: resources(serving, pool)["requests"][key] for key in ("cpu", "memory")},
    )


def _router(serving: Serving) -> k.Object:
    """The stack's own router."""
    logic = "prefixaware" if serving.cached_share > 0.0 else "roundrobin"
    image = _image(serving.options.router_image or VALUES.images["stack"])
    return _filled("router", serving=serving, logic=logic, image=image)


def address(serving: Serving) -> str:
    """Where requests go inside the cluster."""
    return f"http://{serving.options.name}-router{serving.suffix}"
