"""One vLLM server under open-loop load (`real/openloop`): latencies at stated rates, and the largest rate.

Its generator is Poisson within a second and constant beyond. V0 gives prompts iterations of their own and launches them
kernel by kernel, as
it records decodes alone: they cost what kernels measured one by one cost besides, once a request, before its first token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.accuracy.rows import Pair
from benchmarks.accuracy.serving import Load, completed_per_s, paced, quantile, table, through
from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.catalog.profiles import Profile, estimated_profile
from planner.iteration.constants import CONSTANTS
from planner.predict.records import Replicas

STAGE_S = 60.0
CACHED = 192.0
"""Tokens of a prompt of the prefix-cached server that its blocks of 16 supply."""
BUSY = 0.92
"""Load up to which the P99 of TTFT is judged: at 98% of the largest rate two equal runs differ twofold."""


def open_loop(data: Path) -> Iterator[Pair]:
    """E2E mean and TTFT P99 of the stages that kept up; the largest rate of each setting."""
    largest: dict[str, tuple[float, ...]] = {}
    rows = [r for r in table(data / "real" / "openloop" / "constant_rate_stages.csv") if "eagle" not in r["setting"]]
    for setting in sorted({r["setting"] for r in rows}):
        own = [r for r in rows if r["setting"] == setting]
        profile, server, cached = _server(own[0])
        prompt, output = float(own[0]["input_tokens"]), float(own[0]["output_tokens"])
        limit = float(own[0]["client_in_flight_limit"])
        for row in sorted(own, key=lambda r: -float(r["requested_per_s"])):
            name = f"{setting} {float(row['sent_per_s']):.0f}/s"
            if row["overloaded"] == "1":
                crowd = Load(paced(float(row["requested_per_s"]), STAGE_S), prompt, output, cached)
                found = completed_per_s(through(crowd, server, in_flight=limit)), float(row["completed_per_s"])
                largest[setting] = tuple(map(max, found, largest.get(setting, found)))
                continue
            rate = float(row["sent_per_s"])
            stages = [Load(paced(rate, STAGE_S, seed), prompt, output, cached) for seed in range(5)]
            runs = [through(stage, server) for stage in stages]
            e2e = float(np.mean([run.e2e_s.mean() for run in runs])) + profile.api_overhead_s
            ttft = float(np.mean([quantile(run.ttft_s, 0.99) for run in runs])) + profile.api_overhead_s
            yield Pair("openloop", "e2e_mean", name, e2e, float(row["e2e_mean_s"]), profile.band)
            if rate < BUSY * largest.get(setting, (0.0, math.inf))[1]:
                yield Pair("openloop", "ttft_p99", name, ttft, float(row["ttft_p99_s"]), profile.band)
    for setting, (predicted, measured) in largest.items():
        yield Pair("openloop", "largest_rate", setting, predicted, measured, profile.band)


def _server(row: dict[str, str]) -> tuple[Profile, Replicas, float]:
    """A server as estimated, and what its cache supplies of every prompt [tokens]."""
    device, network = find_gpu(row["gpu"]), find_model(row["model"])
    profile = estimated_profile(device, network, int(row["tp"]))
    v0 = row["setting"].startswith("v0")
    launches_s = CONSTANTS["launch_s_per_layer"] * (1.0 - CONSTANTS["graph_launch"]) * network.layers if v0 else 0.0
    profile = replace(
        profile,
        iteration=replace(profile.iteration, apart=float(v0)),
        api_overhead_s=profile.api_overhead_s + launches_s,
    )
    server = Replicas(
        1, profile.iteration, float(row["max_num_seqs"]), float(row["token_budget"]),
        request_s=profile.request_s + launches_s, wake_s=profile.wake_s,
    )  # fmt: skip
    return profile, server, CACHED if row["prefix_caching"] == "1" else 0.0
