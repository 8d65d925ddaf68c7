"""systemd: a unit per pool with an instance per replica, its GPUs and port in a file, and an nginx in front."""

from __future__ import annotations

import shlex

from planner.deploy import Rendered, Target
from planner.deploy.hosts import Placed, placed
from planner.deploy.pods import EXIT_S, patience_s
from planner.deploy.router import ROUTER_PORT, length_notes, nginx
from planner.deploy.serving import PORT, Serving, ServingPool


def render(serving: Serving) -> Rendered:
    """A folder: units, a file of settings per replica and host, nginx."""
    serving.colocated("systemd")
    serving.on_one_node("systemd")
    serving.by_hand("systemd")
    replicas = placed(serving)
    hosts = 1 + max(r.host for r in replicas)
    files = {f"{p.object}@.service": _unit(serving, p) for p in serving.pools}
    backends: dict[str, list[tuple[str, int]]] = {}
    for r in replicas:
        files[f"host{r.host + 1}/{r.name}.env"] = _settings(serving, r)
        backends.setdefault(r.pool.object, []).append(("127.0.0.1" if r.host == 0 else f"host{r.host + 1}", r.port))
    files["nginx.conf"] = nginx(serving, backends)
    notes = [
        *serving.notes,
        *length_notes(serving),
        "units go to /etc/systemd/system, the .env files of a host to /etc/fleetopt, nginx.conf to /etc/nginx/conf.d; then "
        + "; ".join(f"systemctl enable --now {p.object}@{{1..{p.replicas}}}" for p in serving.pools),
        f"requests go to port {ROUTER_PORT}; nginx counts per worker process: worker_processes 1 keeps the plan's routing",
    ]
    if serving.options.api_key_secret:
        notes.append(f"/etc/fleetopt/key.env of every host holds {serving.key_variable}=KEY, readable by root alone")
    if hosts > 1:
        notes.append(
            f"{hosts} hosts: names host2, ... in nginx.conf must resolve; start on each host the numbers it has files of"
        )
    if len(serving.pools) > 1 and serving.sees_output:
        notes.append("nginx sees the length of the body only: the mean output is taken for every request")
    return Rendered(files, tuple(notes))


def _unit(serving: Serving, pool: ServingPool) -> str:
    """The unit of a pool; %i is the number of the replica."""
    words = [{str(PORT): "${PORT}", "$(API_KEY)": "${API_KEY}"}.get(w, w) for w in pool.command]
    lines = [
        "[Unit]",
        f"Description={serving.engine.title}: {serving.repository}, pool {pool.name}, replica %i",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        f"EnvironmentFile=/etc/fleetopt/{pool.object}-%i.env",
        *(["EnvironmentFile=/etc/fleetopt/key.env"] if serving.options.api_key_secret else []),
        f"ExecStart=/usr/bin/env {' '.join(w if w.startswith('${') else shlex.quote(w).replace('%', '%%') for w in words)}",
        # started means: it answers
        "ExecStartPost=/bin/sh -c 'until curl -sf http://127.0.0.1:${PORT}/health; do sleep 5; done'",
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


def _settings(serving: Serving, replica: Placed) -> str:
    """GPUs and port of one replica."""
    variable = "HIP_VISIBLE_DEVICES" if replica.pool.gpu.gpu_class == "amd" else "CUDA_VISIBLE_DEVICES"
    lines = [f"{variable}={','.join(map(str, replica.gpus))}", f"PORT={replica.port}"]
    if serving.options.cache:
        lines.append(f"HF_HOME={serving.options.cache}")
    return "\n".join(lines) + "\n"


TARGET = Target("systemd: a unit per pool with an instance per replica, nginx with the plan's routing", render)
