"""Docker Compose: a service per replica with GPUs of its own, and an Envoy in front; a profile per host where one is too small."""

from __future__ import annotations

from planner.deploy import Rendered, Target
from planner.deploy import kubernetes as k
from planner.deploy.hosts import Placed, placed
from planner.deploy.pods import EXIT_S, SHARED_MEMORY_GIB, patience_s
from planner.deploy.router import ENVOY_IMAGE, ROUTER_PORT, envoy, length_notes
from planner.deploy.serving import PORT, Serving

_CONFINED: k.Object = {"cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}


_KEY = "${{{name}:?the key that requests must bear}}"


def render(serving: Serving) -> Rendered:
    """One file for all hosts: ``docker compose --profile host1 up``."""
    serving.colocated("compose")
    serving.on_one_node("compose")
    serving.by_hand("compose")
    replicas = placed(serving)
    hosts = 1 + max(r.host for r in replicas)
    services: k.Object = {r.name: _service(serving, r, hosts) for r in replicas}
    backends: dict[str, list[tuple[str, int]]] = {}
    for r in replicas:
        # the router runs on the first host and reaches the others by their addresses
        place = (r.name, PORT) if r.host == 0 else (f"${{HOST{r.host + 1}:?address of host {r.host + 1}}}", r.port)
        backends.setdefault(r.pool.object, []).append(place)
    router = f"{serving.options.name}-router"
    services[router] = {
        **_CONFINED,
        "image": serving.options.router_image or ENVOY_IMAGE,
        "command": ["--config-path", "/etc/envoy/envoy.yaml"],
        "ports": [f"{ROUTER_PORT}:{ROUTER_PORT}"],
        "configs": [{"source": "envoy", "target": "/etc/envoy/envoy.yaml"}],
        "restart": "unless-stopped",
    }
    if hosts > 1:
        services[router]["profiles"] = ["host1"]
    # compose reads $ in a file as a variable of its own: what is not one is doubled
    text = k.to_yaml(envoy(serving, backends)).replace("$", "$$").replace("$${HOST", "${HOST")
    document: k.Object = {
        "name": serving.options.name,
        "services": services,
        "configs": {"envoy": {"content": text}},
    }
    cache = serving.options.cache
    if not cache:
        document["volumes"] = {"models": {}}
    notes = [*serving.notes, *length_notes(serving)]
    if hosts > 1:
        notes.append(
            f"{sum(p.replicas * p.gpus for p in serving.pools)} GPUs are {hosts} hosts: "
            "docker compose --profile host1 up on the first, and so on; HOST2, HOST3, ... are the others' addresses"
        )
    about = f"requests go to port {ROUTER_PORT}; model {serving.repository}; needs docker compose 2.23.1 or newer"
    return Rendered({"compose.yaml": k.dump([document], [about, *notes])}, tuple(notes))


def _service(serving: Serving, replica: Placed, hosts: int) -> k.Object:
    """One replica: image, start line, its GPUs, probe and patience."""
    device: k.Object = {"driver": "nvidia", "device_ids": [str(g) for g in replica.gpus], "capabilities": ["gpu"]}
    check = f"python3 -c \"import urllib.request as u; u.urlopen('http://127.0.0.1:{PORT}/health', timeout=5)\""
    service: k.Object = {
        **_CONFINED,
        "image": serving.image,
        "entrypoint": [replica.pool.command[0]],
        "command": [w.replace("$(API_KEY)", _KEY.format(name="API_KEY")) for w in replica.pool.command[1:]],
        "environment": {"HF_HOME": "/models", "HF_TOKEN": "${HF_TOKEN:-}"},
        "shm_size": f"{SHARED_MEMORY_GIB}gb",
        "volumes": [f"{serving.options.cache or 'models'}:/models"],
        "ports": [f"{replica.port}:{PORT}"],
        "stop_grace_period": f"{replica.pool.drain_s + EXIT_S}s",
        "restart": "unless-stopped",
        "healthcheck": {
            "test": ["CMD-SHELL", check],
            "interval": "10s",
            "timeout": "6s",
            "retries": 3,
            "start_period": f"{patience_s(serving)}s",
        },
        "deploy": {"resources": {"reservations": {"devices": [device]}}},
    }
    if serving.options.api_key_secret and serving.engine.api_key.isidentifier():
        service["environment"][serving.key_variable] = _KEY.format(name=serving.key_variable)
    if replica.pool.gpu.gpu_class == "amd":
        # ROCm containers see devices of the host, chosen by number
        del service["deploy"]
        service["devices"] = ["/dev/kfd", "/dev/dri"]
        service["environment"]["HIP_VISIBLE_DEVICES"] = ",".join(map(str, replica.gpus))
    if hosts > 1:
        service["profiles"] = [f"host{replica.host + 1}"]
    return service


TARGET = Target("Docker Compose: a service per replica on GPUs of its own, Envoy with the plan's routing", render)
