"""Every comparison with measured systems in one program: ``python -m benchmarks.accuracy FOLDER --json OUT``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.accuracy.calibrated import kernels, kv_memory, mixed_batches, servers
from benchmarks.accuracy.fleets import disaggregated, offload
from benchmarks.accuracy.mixtures import decode, spread
from benchmarks.accuracy.mlperf import offline, server, stated
from benchmarks.accuracy.openloop import open_loop
from benchmarks.accuracy.rows import Pair
from benchmarks.accuracy.speculation import acceptance
from planner.errors import FleetOptError

PARTS: Mapping[Callable[[Path], Iterator[Pair]], tuple[str, ...]] = {
    open_loop: ("openloop",),
    offline: ("mlperf_offline",),
    server: ("mlperf_server", "mlperf_interactive"),
    stated: ("moe_rate",),
    decode: ("moe_decode",),
    spread: ("experts_spread",),
    disaggregated: ("pd_knee", "pd_e2e", "pd_ratio"),
    offload: ("offload_knee", "offload_ttft"),
    acceptance: ("speculation",),
    kernels: ("kernels_none", "kernels_fit"),
    servers: ("servers_loso",),
    mixed_batches: ("mixed_batches",),
    kv_memory: ("kv_capacity",),
}
"""What judges which families."""

FAMILIES = tuple(family for families in PARTS.values() for family in families)


def judged(folder: Path, families: Sequence[str] = FAMILIES) -> list[Pair]:
    """Every prediction beside its measurement, of the parts that the folder has.

    What cannot be judged - a model or GPU that the catalog does not have, a broken file - is named on standard error; a part
    ends there, what it had judged before counts.
    """
    found: list[Pair] = []
    for part, own in PARTS.items():
        if not set(own) & set(families):
            continue
        try:
            # one by one: what came before an error stays
            for pair in part(folder):
                if pair.family in families:
                    found.append(pair)
        except (FleetOptError, KeyError, ValueError) as error:
            print(f"{', '.join(own)}: ended at {type(error).__name__}: {error}", file=sys.stderr)
    return found
