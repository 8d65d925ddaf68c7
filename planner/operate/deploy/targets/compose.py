"""Docker Compose: a service per replica with GPUs of its own, and an Envoy in front; a profile per host where one is too small."""

from __future__ import annotations

from collections.abc import Callable

from planner.operate.deploy import Rendered
from planner.operate.deploy import kubernetes as k
from planner.operate.deploy.router import Placed, length_notes, placed, router_files
from planner.operate.deploy.serving import VALUES, Serving, filler, note

_filled: Callable[..., k.Object] = filler(__file__)

FOLDER = "/etc/envoy"

_KEY = "${{{name}:?the key that requests must bear}}"


def render(serving: Serving) -> Rendered:
    """One file for all hosts: ``docker compose --profile host1 up``."""
    replicas, hosts = placed(serving, "compose")
    services: k.Object = {r.name: _service(serving, r, hosts) for r in replicas}
    backends: dict[str, list[tuple[str, int]]] = {}
    for r in replicas:
        # the router runs on the first host and reaches the others by their addresses
        place = (
            (r.name, serving.port) if r.host == 0 else (f"${{HOST{r.host + 1}:?address of host {r.host + 1}}}", r.port)
        )
        backends.setdefault(r.pool.object, []).append(place)
    # compose reads $ in a file as a variable of its own: what is not one is doubled
    files = {
        name: {"content": text.replace("$", "$$").replace("$${HOST", "${HOST")}
        for name, text in router_files(serving, backends, FOLDER).items()
    }
    services[serving.router] = _filled(
        "router",
        image=serving.options.router_image or VALUES.images["envoy"],
        configs=[{"source": name, "target": f"{FOLDER}/{name}"} for name in files],
        profiles=["host1"] if hosts > 1 else None,
    )
    document: k.Object = {"name": serving.options.name, "services": services, "configs": files}
    if not serving.options.cache:
        document["volumes"] = {"models": {}}
    first = replicas[0].name
    drained = note("drained", serving=serving, folder=FOLDER, first=first)
    notes = [*serving.notes, *length_notes(serving), drained]
    if hosts > 1:
        notes.append(note("profiles", gpus=sum(p.replicas * p.gpus for p in serving.pools), hosts=hosts))
    about = f"requests go to port {VALUES.ports['router']}; model {serving.repository}; needs docker compose 2.23.1 or newer"
    return Rendered({"compose.yaml": k.dump([document], [about, *notes])}, tuple(notes))


def _service(serving: Serving, replica: Placed, hosts: int) -> k.Object:
    """One replica: image, start line, its GPUs, probe and patience."""
    program, *words = replica.pool.command
    environment = {"HF_HOME": "/models", "HF_TOKEN": "${HF_TOKEN:-}"}
    if serving.options.api_key_secret and serving.engine.api_key.isidentifier():
        environment[serving.key_variable] = _KEY.format(name=serving.key_variable)
    # ROCm containers see devices of the host, chosen by number
    if amd := replica.pool.device.gpu_class == "amd":
        environment["HIP_VISIBLE_DEVICES"] = ",".join(map(str, replica.gpus))
    return _filled(
        "replica",
        serving=serving,
        replica=replica,
        program=[program],
        arguments=[w.replace("$(API_KEY)", _KEY.format(name="API_KEY")) for w in words],
        environment=environment,
        cache=serving.options.cache or "models",
        grace=f"{replica.pool.drain_s + VALUES.times['exit']}s",
        deploy=None if amd else _filled("nvidia", gpus=list(map(str, replica.gpus))),
        devices=["/dev/kfd", "/dev/dri"] if amd else None,
        profiles=[f"host{replica.host + 1}"] if hosts > 1 else None,
    )
