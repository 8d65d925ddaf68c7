"""A plan in the words of those who start it: which model from where, on what, with which command, behind which routing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from planner.catalog.kv import weight_bytes
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import model as find_model
from planner.catalog.load import repository
from planner.catalog.profiles import engine_of
from planner.catalog.profiles import profile as find_profile
from planner.errors import InputError, did_you_mean, refuse
from planner.machine.engines import Engine
from planner.machine.engines import engine as find_engine
from planner.machine.hardware import SIZES, GpuSpec, ModelSpec, Parallelism
from planner.plans import SavedPool
from planner.question.values import SHARES
from planner.routing import Routing, find_routing
from planner.shared.documents import printable, shipped
from planner.shared.templates import refusals, templates
from planner.size.shapes import find_shape, shape_names
from planner.units import DAY_S, format_duration


@dataclass(frozen=True, slots=True)
class Values:
    """What is deployed beside the engines, and numbers of it; values.yaml says why.

    Parameters
    ----------
    startup
        What a start takes, [s] and [bytes/s].
    images
        Of what stands beside the engines.
    ports, users, times, limits
        Ports, who programs run as, times of a replica's life [s], and the largest and the most of something.
    factors
        How many times as long [1].
    """

    startup: Mapping[str, float]
    images: Mapping[str, str]
    ports: Mapping[str, int]
    users: Mapping[str, int]
    times: Mapping[str, int]
    limits: Mapping[str, int]
    factors: Mapping[str, float]


VALUES = Values(**shipped(Path(__file__).with_name("values.yaml")))


@dataclass(frozen=True, slots=True)
class Startup:
    """Time from starting a replica until it serves.

    Parameters
    ----------
    seconds
        The time [s].
    parts
        What it is made of [s]; empty where it was given.
    """

    seconds: float
    parts: Mapping[str, float]

    @property
    def told(self) -> str:
        """In words."""
        parts = ", ".join(f"{name} {format_duration(s)}" for name, s in self.parts.items())
        return note("startup" if parts else "startup_given", seconds=format_duration(self.seconds), parts=parts)


def estimated_startup(model: ModelSpec, cached: bool) -> Startup:
    """The time of an image that is on the node already.

    Parameters
    ----------
    model
        What is loaded.
    cached
        Whether the weights lie on a disk of the node; else they are downloaded first.

    Examples
    --------
    >>> from planner.catalog.load import model
    >>> round(estimated_startup(model("llama-3.1-8b"), cached=True).seconds)
    86
    """
    stored = weight_bytes(model)
    parts = {"container": VALUES.startup["process_s"]}
    if not cached:
        parts["download"] = stored / VALUES.startup["download_bytes_per_s"]
    parts["weights"] = stored / VALUES.startup["disk_bytes_per_s"]
    parts["engine"] = VALUES.startup["engine_s"] + VALUES.startup["engine_s_per_layer"] * model.layers
    return Startup(sum(parts.values()), parts)


def filler(module: str) -> Callable[..., Any]:
    """What fills the objects of the YAML beside a module, which know ports, times and images; see :func:`templates`."""
    return templates(module, known=VALUES)


_NOTES = str(Path(__file__).with_name("notes.py"))
note: Callable[..., str] = templates(_NOTES, known=VALUES)
refusal = refusals(_NOTES)
"""What who deploys is told, and what is refused, by its name in notes.yaml."""

NATIVE = ("bf16", "fp16")
"""Dtypes of weights and KV cache that need no flag."""

NAME, PART_OF, COMPONENT = (f"app.kubernetes.io/{what}" for what in ("name", "part-of", "component"))


def is_pinned(image: str) -> bool:
    """Whether an image is named with its digest, or with a tag that a release keeps.

    >>> [is_pinned(x) for x in ("vllm/vllm-openai:v0.32.0", "host:5000/vllm", "vllm@sha256:" + 64 * "0", "a:v1-latest")]
    [True, False, True, False]
    """
    found = re.fullmatch(
        r"(?P<name>[\w.:/-]+?)(:(?P<tag>[\w][\w.-]{0,127}))?(@sha256:(?P<digest>[0-9a-f]{64}))?", image, re.ASCII
    )
    if found is None:
        return False
    tag = found["tag"] or ""
    return bool(found["digest"] or (tag and not tag.endswith("latest")))


def _text(default: str | None, wrong: str, fits: Callable[[str], object]) -> Any:
    """An option's text that must fit, and what is said of one that does not."""
    return field(default=default, metadata={"wrong": lambda value: "" if fits(value) else wrong})


def _choice(*known: str) -> Any:
    """An option of few values, the first unless told."""
    told = f"is none of {', '.join(known)}"
    wrong = {"wrong": lambda value: "" if value in known else told + did_you_mean(value, known)}
    return field(default=known[0], metadata=wrong)


_NAME = (
    "is no name of an object: lower-case letters, digits, -, at most 40",
    re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?").fullmatch,
)
_IMAGE = "names no release: write NAME:TAG, not latest, or NAME@sha256:DIGEST", is_pinned


@dataclass(frozen=True, slots=True)
class DeployOptions:
    """What a plan does not say and a deployment needs.

    Parameters
    ----------
    name
        Objects are called ``name-pool``.
    namespace
        Kubernetes namespace; ``None`` = not written.
    engine, image, model_id
        Instead of the plan's engine, the engine's image, the catalog's repository.
    startup_s
        From starting a replica until it serves [s]; ``None`` = estimated.
    cache
        Kubernetes claim or folder of the host that keeps the weights; ``None`` = downloaded at every start.
    revision
        Commit or tag of the weights' repository; ``None`` = its newest.
    api_key_secret
        Secret whose ``api-key`` requests must bear; ``None`` = they need none.
    router_image
        Instead of the image of what stands in front of the replicas.
    platform
        Whose node labels name the GPUs: ``generic``, ``gke``, ``eks``, ``aks``.
    replicas_by
        Whether the ``plan`` or a ``scaler`` says how many replicas there are.
    layout
        ``file``, or ``kustomize``: a base, and an overlay with what the plan and the options say.
    prometheus_namespace
        Where Prometheus runs, which network policies let in.
    """

    name: str = _text("fleetopt", *_NAME)
    namespace: str | None = _text(None, *_NAME)
    engine: str | None = None
    image: str | None = _text(None, *_IMAGE)
    model_id: str | None = None
    startup_s: float | None = None
    cache: str | None = None
    revision: str | None = _text(None, "is no commit, tag or branch", re.compile(r"[\w./-]{1,200}", re.ASCII).fullmatch)
    api_key_secret: str | None = _text(None, *_NAME)
    router_image: str | None = _text(None, *_IMAGE)
    platform: str = _choice("generic", "gke", "eks", "aks")
    replicas_by: str = _choice("plan", "scaler")
    layout: str = _choice("file", "kustomize")
    prometheus_namespace: str = _text("monitoring", *_NAME)

    def __post_init__(self) -> None:
        given = ((f, getattr(self, f.name)) for f in fields(self) if "wrong" in f.metadata)
        wrong = [
            f"--{f.name.replace('_', '-')}: {value!r} {told}"
            for f, value in given
            if value is not None and (told := f.metadata["wrong"](value))
        ]
        if self.startup_s is not None and not 0.0 < self.startup_s <= DAY_S:
            wrong.append(f"--startup: must lie between 0 and a day, got {self.startup_s!r} s")
        refuse(wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPool(SavedPool):
    """One pool of the plan, to be started.

    Parameters
    ----------
    fleet, object
        Name of the fleet; as the pool's objects are called.
    device, gpus, nodes
        GPU type, GPUs of one replica, and nodes it spans.
    counted
        How many replicas an object asks for; ``None`` where a scaler says it.
    command
        What starts a replica.
    drain_s
        How long a replica that ends may take to finish its requests [s].
    role
        ``both``, or what a replica of a split fleet does: ``prefill``, ``decode``.
    """

    fleet: str
    object: str
    device: GpuSpec
    gpus: int
    nodes: int
    counted: int | None
    command: tuple[str, ...]
    drain_s: int
    role: str

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a replica on one of its nodes."""
        return self.gpus // self.nodes

    @property
    def gpu_resource(self) -> str:
        """The name under which nodes offer the GPU."""
        return "amd.com/gpu" if self.device.gpu_class == "amd" else "nvidia.com/gpu"

    @property
    def gone(self) -> int:
        """Replicas that may be missing at once: the spare ones, one where none is."""
        return max(1, self.spares)

    @property
    def grace_s(self) -> int:
        """From the decision that a replica ends to its end, at most [s]."""
        return VALUES.times["leaves"] + self.drain_s + VALUES.times["exit"]

    @property
    def labels(self) -> dict[str, str]:
        """Labels of its objects."""
        return _labels(self.fleet, "engine", self.object)


@dataclass(frozen=True, slots=True)
class Serving:
    """A fleet to be started.

    Parameters
    ----------
    options
        What the user chose.
    model, repository
        The model, and where its weights come from.
    engine
        What serves it.
    pools
        The pools, shortest requests first.
    routing
        How a pool spreads requests over its replicas.
    sees_output
        Whether the plan cuts requests by input + output.
    cached_share
        Largest share of a prompt the plan expects from the prefix cache [1].
    mean_output_tokens
        Of all requests [tokens].
    startup
        Until a replica serves.
    notes
        What had to be assumed.
    """

    options: DeployOptions
    model: ModelSpec
    repository: str
    engine: Engine
    pools: tuple[ServingPool, ...]
    routing: Routing
    sees_output: bool
    cached_share: float
    mean_output_tokens: float
    startup: Startup
    notes: tuple[str, ...]

    port: ClassVar[int] = VALUES.ports["engine"]
    shared_gib: ClassVar[int] = 16
    """Shared memory of a pod, for the collectives of a group [GiB]."""

    @property
    def image(self) -> str:
        """Container image."""
        return self.options.image or self.engine.image

    @property
    def key_variable(self) -> str:
        """Environment variable with the key that requests must bear."""
        return self.engine.api_key if self.engine.api_key.isidentifier() else "API_KEY"

    @property
    def router(self) -> str:
        """Name of what stands in front of the replicas."""
        return f"{self.options.name}-router"

    @property
    def labels(self) -> dict[str, str]:
        """Labels of its objects."""
        return _labels(self.options.name, "router", self.router)

    @property
    def patience_s(self) -> int:
        """How long a replica may load [s]."""
        return math.ceil(max(VALUES.times["patience"], VALUES.factors["patience"] * self.startup.seconds))

    @property
    def suffix(self) -> str:
        """What follows a service's name in its address."""
        return f".{self.options.namespace}" if self.options.namespace else ""

    @property
    def split(self) -> bool:
        """Whether prefill and decode have pools of their own."""
        return any(p.role != "both" for p in self.pools)

    @property
    def boundaries(self) -> list[float]:
        """Where requests are cut by length [tokens]."""
        return [] if self.split else [p.high_tokens for p in self.pools[:-1]]

    def refuse_for(self, target: str, *kinds: str) -> None:
        """Refuse what a target has no way to do: prefill and decode apart (``split``), replicas that span nodes (``wide``), a key
        for requests (``no_key``), what only a cluster does (``on_hosts``)."""
        option = "--layout kustomize" if self.options.layout == "kustomize" else "--replicas-by scaler"
        asked = {
            "split": self.split,
            "wide": next((p for p in self.pools if p.nodes > 1), None),
            "no_key": self.options.api_key_secret,
            "on_hosts": self.options.replicas_by == "scaler" or self.options.layout == "kustomize",
        }
        for kind in kinds:
            if asked[kind]:
                raise refusal(kind, to=target, pool=asked["wide"], option=option)


def _labels(fleet: str, component: str, name: str) -> dict[str, str]:
    """Labels of the objects of a pool, or of the router."""
    return {PART_OF: fleet, "app.kubernetes.io/managed-by": "fleetopt", COMPONENT: component, NAME: name}


def without(words: Sequence[str], *flags: str) -> list[str]:
    """A start line without these flags and their values.

    >>> without(["--host", "0.0.0.0", "--tp-size", "2"], "--host", "--port")
    ['--tp-size', '2']
    """
    kept = list(words)
    for flag in flags:
        if flag in kept:
            at = kept.index(flag)
            del kept[at : at + 2]
    return kept


def object_name(pool: str, prefix: str = "fleetopt") -> str:
    """Name of a pool's objects.

    >>> object_name("pool 2")
    'fleetopt-pool-2'
    """
    return f"{prefix}-{pool.replace(' ', '-')}"


def serving_of(plan: Mapping[str, Any], saved: Sequence[SavedPool], options: DeployOptions) -> Serving:
    """The fleet of a plan file.

    Parameters
    ----------
    plan
        The file's content, checked.
    saved
        Its pools.
    options
        What the user chose.

    Raises
    ------
    InputError
        A setting the file lacks, weights nobody knows where to find, a setting the engine cannot be given.
    """
    inputs, entries = plan["inputs"], plan["pools"]
    notes: list[str] = []
    asked, planned = str(inputs["model"]), engine_of(inputs)
    if inputs.get("profile"):
        asked = find_profile(inputs["profile"]).model
    host = find_engine(options.engine) if options.engine else planned
    if host is not planned:
        notes.append(note("other_engine", planned=planned, host=host))
    model = find_model(asked, like=inputs.get("like"))
    if not inputs.get("profile"):
        model = model.served_as(inputs.get("weights"), inputs.get("kv_dtype"))
    weights, flags = _weights(asked, model, host, options)
    shape = next(s for s in map(find_shape, reversed(shape_names())) if s.stands(saved))
    pools = []
    for entry, one in zip(entries, saved, strict=True):
        settings = _settings(entry, one.name)
        drain_s = _drain_s(entry, one.name)
        command = start_command(host, weights, settings, one, (*_for_serving(host, options, drain_s), *flags))
        pools.append(_serving_pool(one, command, drain_s, shape.divides_roles, options))
        if settings.get("speculative") and "speculative" not in host.flags:
            notes.append(note("silent", host=host, how=settings["speculative"]))
        if settings["kv_cache_dtype"] not in NATIVE and settings["kv_cache_dtype"] not in host.kv_dtypes:
            notes.append(note("kv_dtype", host=host, dtype=settings["kv_cache_dtype"]))
    if inputs.get("prefill_queue") is not None and shape.divides_roles:
        notes.append(note("helps", queue=inputs["prefill_queue"]))
    # a plan written by hand may say 60%
    share = SHARES.read(inputs.get("cached_share") or 0.0, "cached_share")
    given = options.startup_s
    startup = Startup(given, {}) if given else estimated_startup(model, options.cache is not None)
    notes.append(startup.told)
    if not options.api_key_secret:
        notes.append(note("keyless"))
    if not options.revision and not Path(weights).exists():
        notes.append(note("newest", weights=weights))
    return Serving(
        options,
        model,
        weights,
        host,
        tuple(pools),
        find_routing(str(inputs.get("routing", "random"))),
        inputs.get("route_on", "total") != "input",
        float(max(share.values(), default=0.0) if isinstance(share, Mapping) else share),
        _stated(plan.get("workload") or {}, "mean_output_tokens", "workload"),
        startup,
        tuple(notes),
    )


def _for_serving(host: Engine, options: DeployOptions, drain_s: int) -> list[str]:
    """Flags of a server that others rely on: how it ends, of which commit its weights are, which key it asks for."""
    found = [word.format(seconds=drain_s) for word in host.drains]
    if options.revision:
        found += [host.flags["revision"], options.revision]
    if options.api_key_secret:
        if not host.api_key:
            raise refusal("engine_key", host=host)
        if not host.api_key.isidentifier():
            # the kubelet puts the variable's value in
            found += [host.api_key, "$(API_KEY)"]
    return found


def _drain_s(entry: Mapping[str, Any], name: str) -> int:
    """How long a replica takes to finish what it has begun, from the plan's P99 E2E; a prefill replica's part is the TTFT [s]."""
    at = f"pool {name}: latency"
    told = entry.get("latency") or ()
    if not isinstance(told, Sequence) or not all(isinstance(v, Mapping) for v in told):
        raise InputError(f"{at}: expected a list of latencies")
    tails = [
        [seconds for v in told if v.get("metric") == metric and (seconds := _stated(v, "value_s", at))]
        for metric in ("e2e_s", "ttft_s")
    ]
    longest = max(tails[0] or tails[1], default=None)
    times, longer = VALUES.times, VALUES.factors["drain"]
    return times["drain_unknown"] if longest is None else max(times["drain"], math.ceil(longer * longest))


def _serving_pool(
    one: SavedPool, command: tuple[str, ...], drain_s: int, divided: bool, options: DeployOptions
) -> ServingPool:
    """One pool of the plan, and the nodes that each of its replicas spans."""
    device = find_gpu(one.gpu)
    gpus = Parallelism(one.tp, one.pp, one.dp, one.ep).gpus
    nodes = device.nodes(gpus)
    if gpus % nodes:
        raise refusal("uneven", pool=one, gpus=gpus, device=device)
    return ServingPool(
        **{field.name: getattr(one, field.name) for field in fields(SavedPool)},
        fleet=options.name,
        object=object_name(one.name, options.name),
        device=device,
        gpus=gpus,
        nodes=nodes,
        counted=one.replicas if options.replicas_by == "plan" else None,
        command=command,
        drain_s=drain_s,
        role=one.name if divided else "both",
    )


def _stated(entry: Any, name: str, where: str) -> float:
    """A number that a plan file may state, 0 where it does not: nobody has read it before, and a hand may have changed it."""
    if not isinstance(entry, Mapping):
        raise InputError(f"{where}: expected names and values")
    value = entry.get(name)
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < math.inf:
        raise InputError(f"{where}: {name}: expected a number of 0 or more, got {value!r}")
    return float(value)


def _weights(asked: str, model: ModelSpec, host: Engine, options: DeployOptions) -> tuple[str, tuple[str, ...]]:
    """Where the weights are, and the flags that make the plan's dtype of them."""
    if options.model_id is not None:
        return options.model_id, ()
    if asked.endswith(".json") or Path(asked).is_dir():
        # a config.json lies beside its weights
        return str(Path(asked).parent if asked.endswith(".json") else Path(asked)), ()
    known = repository(asked)
    if known is not None:
        return known, ()
    base = repository(asked.lower().removesuffix(f"-{model.weight_dtype}"))
    if base is not None and model.weight_dtype in host.quantizes:
        return base, (host.flags["quantization"], model.weight_dtype)
    kind = "" if model.weight_dtype in NATIVE else f" in {model.weight_dtype}"
    raise refusal("no_weights", asked=asked, kind=kind, host=host)


def _settings(entry: Mapping[str, Any], pool: str) -> dict[str, Any]:
    """Settings of a pool, whole and of the right kind."""
    settings = entry.get("settings")
    found = dict(settings) if isinstance(settings, Mapping) else {}
    wrong = [
        f"pool {pool}: settings.{name}: expected a positive whole number, got {found.get(name)!r}"
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
        if type(found.get(name)) is not int or found[name] < 1
    ]
    share = found.setdefault("gpu_memory_utilization", 0.9)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0.0 < share <= 1.0:
        wrong.append(f"pool {pool}: settings.gpu_memory_utilization: must lie in (0, 1], got {share!r}")
    if not isinstance(found.setdefault("kv_cache_dtype", "bf16"), str):
        wrong.append(f"pool {pool}: settings.kv_cache_dtype: expected text")
    refuse(wrong)
    return found


def start_command(
    host: Engine, weights: str, settings: Mapping[str, Any], pool: SavedPool, flags: Sequence[str] = ()
) -> tuple[str, ...]:
    """The command that starts a replica.

    Parameters
    ----------
    host
        Engine.
    weights
        Repository or folder of the weights.
    settings
        Of the pool, as a plan file has them.
    pool
        GPUs of a replica.
    flags
        Further ones.
    """
    spread = {setting: getattr(pool, name) for name, setting in SIZES.items()}
    command = [*(word.replace("{model}", weights) for word in host.launch), *host.arguments({**settings, **spread})]
    # clusters, Compose and systemd put what they know in place of $; a new line would be one of theirs
    if wrong := next((word for word in command if "$" in word or not word.isprintable()), None):
        raise InputError(f"pool {pool.name}: {printable(wrong)!r} cannot stand in a start line")
    return (*command, "--host", "0.0.0.0", "--port", str(VALUES.ports["engine"]), *host.always, *flags)
