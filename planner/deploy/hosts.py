"""Replicas on hosts without a cluster: which GPUs of which host each gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.deploy.serving import Serving, ServingPool
from planner.errors import InputError

FIRST_PORT = 8001
"""Port of the first replica on a host."""

MOST = 512
"""Replicas beyond which nobody starts them one by one."""


@dataclass(frozen=True, slots=True)
class Placed:
    """One replica: its pool, name, host and its GPUs there (counted from 0), and its port on the host."""

    pool: ServingPool
    name: str
    host: int
    gpus: Sequence[int]
    port: int


def placed(serving: Serving) -> list[Placed]:
    """Every replica; a host has GPUs of one type, as many as a node of the catalog, and none is left over needlessly.

    Raises
    ------
    InputError
        More replicas than can sensibly be started one by one.
    """
    total = sum(p.replicas for p in serving.pools)
    if total > MOST:
        raise InputError(f"{total:,} replicas are more than the {MOST} that are started one by one", "Use --to k8s.")
    found: list[Placed] = []
    open_host: dict[str, tuple[int, int, int]] = {}  # GPU -> host, GPUs taken, replicas there
    hosts = 0
    for pool in serving.pools:
        for number in range(pool.replicas):
            host, taken, there = open_host.get(pool.gpu.name, (-1, pool.gpu.gpus_per_node, 0))
            if taken + pool.gpus > pool.gpu.gpus_per_node:
                host, taken, there = hosts, 0, 0
                hosts += 1
            gpus = range(taken, taken + pool.gpus)
            found.append(Placed(pool, f"{pool.object}-{number + 1}", host, gpus, FIRST_PORT + there))
            open_host[pool.gpu.name] = (host, taken + pool.gpus, there + 1)
    return found
