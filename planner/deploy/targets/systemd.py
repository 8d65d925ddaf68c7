"""systemd: a unit per pool with an instance per replica, its GPUs and port in a file, and an Envoy in front."""

from __future__ import annotations

import shlex

from planner.deploy import Rendered, Target
from planner.deploy.hosts import Placed, placed, router_files
from planner.deploy.pods import EXIT_S, patience_s
from planner.deploy.router import ROUTER_PORT, length_notes
from planner.deploy.serving import Serving, ServingPool

FOLDER = "/etc/fleetopt"

_ROUTER = f"""\
[Unit]
Description=Envoy before the replicas
Wants=network-online.target
After=network-online.target

[Service]
ExecStart=/usr/bin/env envoy --config-path {FOLDER}/envoy.yaml
DynamicUser=yes
Restart=always
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""


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
    router = f"{serving.options.name}-router"
    files[f"{router}.service"] = _ROUTER
    notes = [
        *serving.notes,
        *length_notes(serving),
        f"units go to /etc/systemd/system, the files of a host to {FOLDER}; then systemctl enable --now {router} on host1; "
        + "; ".join(f"systemctl enable --now {p.object}@{{1..{p.replicas}}}" for p in serving.pools),
        f"requests go to port {ROUTER_PORT} of host1, which needs envoy; units take their replica out of it before they end",
    ]
    if serving.options.api_key_secret:
        notes.append(f"{FOLDER}/key.env of every host holds {serving.key_variable}=KEY, readable by root alone")
    if hosts > 1:
        notes.append(
            f"{hosts} hosts: names host1, host2, ... must resolve, and root of the others may ssh to host1, to leave the router; "
            "start on each host the numbers it has files of"
        )
    return Rendered(files, tuple(notes))


def _unit(serving: Serving, pool: ServingPool) -> str:
    """The unit of a pool; %i is the number of the replica."""
    words = ["${API_KEY}" if w == "$(API_KEY)" else shlex.quote(w).replace("%", "%%") for w in pool.command]
    words[pool.command.index("--port") + 1] = "${PORT}"
    lines = [
        "[Unit]",
        f"Description={serving.engine.title}: {serving.repository}, pool {pool.name}, replica %i",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        f"EnvironmentFile={FOLDER}/{pool.object}-%i.env",
        *([f"EnvironmentFile={FOLDER}/key.env"] if serving.options.api_key_secret else []),
        f"ExecStart=/usr/bin/env {' '.join(words)}",
        # started means: it answers, and is sent requests; it gets no new ones before it is told to end
        "ExecStartPost=/bin/sh -c 'until curl -sf http://127.0.0.1:${PORT}/health; do sleep 5; done'",
        f"ExecStartPost=-/bin/sh -c '${{ROUTER}} {FOLDER}/drain in ${{ADDRESS}} ${{PORT}}'",
        f"ExecStop=-/bin/sh -c '${{ROUTER}} {FOLDER}/drain out ${{ADDRESS}} ${{PORT}}'",
        f"TimeoutStartSec={patience_s(serving) + 60}",
        f"TimeoutStopSec={pool.drain_s + EXIT_S}",
        # the server is told to end, and not its engines beside it: it ends them when the last request is done
        "KillMode=mixed",
        "NoNewPrivileges=yes",
        "PrivateTmp=yes",
        "Restart=always",
        "RestartSec=5",
        "LimitNOFILE=65536",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _settings(serving: Serving, replica: Placed, address: str) -> str:
    """GPUs and port of one replica, its address for the router, and how the router's host is reached."""
    variable = "HIP_VISIBLE_DEVICES" if replica.pool.gpu.gpu_class == "amd" else "CUDA_VISIBLE_DEVICES"
    lines = [f"{variable}={','.join(map(str, replica.gpus))}", f"PORT={replica.port}", f"ADDRESS={address}"]
    lines.append("ROUTER=sh" if replica.host == 0 else "ROUTER=ssh host1 sh")
    if serving.options.cache:
        lines.append(f"HF_HOME={serving.options.cache}")
    return "\n".join(lines) + "\n"


TARGET = Target("systemd: a unit per pool with an instance per replica, Envoy with the plan's routing", render)
