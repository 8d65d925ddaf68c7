"""systemd: a unit per pool with an instance per replica, its GPUs and port in a file, and an Envoy in front."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from planner.operate.deploy import Rendered
from planner.operate.deploy.router import Placed, length_notes, placed, router_files
from planner.operate.deploy.serving import VALUES, Serving, ServingPool, note
from planner.shared.templates import templates

FOLDER = "/etc/fleetopt"

_filled: Callable[..., str] = templates(__file__)


def render(serving: Serving) -> Rendered:
    """A folder: units, a file of settings per replica and host, Envoy."""
    replicas, hosts = placed(serving, "systemd")
    files = {f"{p.object}@.service": _unit(serving, p) for p in serving.pools}
    backends: dict[str, list[tuple[str, int]]] = {}
    for r in replicas:
        address = "127.0.0.1" if r.host == 0 else f"host{r.host + 1}"
        files[f"host{r.host + 1}/{r.name}.env"] = _settings(serving, r, address)
        backends.setdefault(r.pool.object, []).append((address, r.port))
    files |= {f"host1/{name}": text for name, text in router_files(serving, backends, FOLDER).items()}
    router = serving.router
    files[f"{router}.service"] = _filled("router", folder=FOLDER)
    enabled = "; ".join(f"systemctl enable --now {p.object}@{{1..{p.replicas}}}" for p in serving.pools)
    notes = [
        *serving.notes,
        *length_notes(serving),
        note("units", serving=serving, folder=FOLDER, enabled=enabled),
        note("front"),
    ]
    if serving.options.api_key_secret:
        notes.append(note("key_file", serving=serving, folder=FOLDER))
    if hosts > 1:
        notes.append(note("ssh", hosts=hosts))
    return Rendered(files, tuple(notes))


def _unit(serving: Serving, pool: ServingPool) -> str:
    """The unit of a pool; %i is the number of the replica."""
    words = ["${API_KEY}" if w == "$(API_KEY)" else shlex.quote(w).replace("%", "%%") for w in pool.command]
    words[pool.command.index("--port") + 1] = "${PORT}"
    return _filled(
        "unit",
        serving=serving,
        pool=pool,
        folder=FOLDER,
        key=f"EnvironmentFile={FOLDER}/key.env\n" if serving.options.api_key_secret else "",
        line=" ".join(words),
        patience=serving.patience_s + 60,
        grace=pool.drain_s + VALUES.times["exit"],
    )


def _settings(serving: Serving, replica: Placed, address: str) -> str:
    """GPUs and port of one replica, its address for the router, and how the router's host is reached."""
    variable = "HIP_VISIBLE_DEVICES" if replica.pool.device.gpu_class == "amd" else "CUDA_VISIBLE_DEVICES"
    lines = [f"{variable}={','.join(map(str, replica.gpus))}", f"PORT={replica.port}", f"ADDRESS={address}"]
    lines.append("ROUTER=sh" if replica.host == 0 else "ROUTER=ssh host1 sh")
    if serving.options.cache:
        lines.append(f"HF_HOME={serving.options.cache}")
    return "\n".join(lines) + "\n"
