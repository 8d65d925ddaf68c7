"""How long the simulator takes: 100,000 requests on 8 replicas, plain, and with prefix caches, lost patience and retries.

``python benchmarks/simulator_speed.py`` prints the table of docs/simulator.md (about a minute). CPU seconds of one core.
"""

from __future__ import annotations

import math
import time

import numpy as np
from planner.simulate.answered import simulate_clients
from planner.simulate.clients import ON_GPU, ClientRules
from planner.simulate.pair import ComingBack, simulate_pair

from planner.catalog.load import gpu, model
from planner.catalog.profiles import profile
from planner.simulate.arrivals import Arrival
from planner.simulate.pool import simulate
from planner.simulate.presets import PoolEngines
from planner.simulate.traffic import SampledTraffic
from planner.workload.importing import read_workload
from planner.workload.workload import Workload

REQUESTS, REPLICAS = 100_000, 8
SESSIONS = "turns=12,first=1500,growth=300,osl=150,gap=5s"
SHARING = SESSIONS + ",groups=20,prefix=2000"
PATIENT, IMPATIENT = ClientRules(), ClientRules(max_queue=40, timeout_s=20.0, retries=2, retry_after_s=2.0)


def main() -> None:
    """One row per kind of run."""
    iteration = profile(gpu=gpu("h100"), model=model("llama-3.1-8b"), tp=1).iteration
    print("| requests | routing | load | CPU time | requests/s of it | found in caches | attempts per request |")
    print("|:--|:--|:--|--:|--:|--:|--:|")
    azure, chats = Workload.from_file("azure"), read_workload(SESSIONS)[0]
    assert chats.sessions is not None
    for routing in ("random", "p2c", "least"):
        traffic = SampledTraffic(azure.input_tokens, azure.output_tokens, azure.weight, Arrival(120.0), REQUESTS)
        engines = PoolEngines(REPLICAS, iteration, 256, 2048, 430_000.0, routing)
        start = time.process_time()
        simulate(traffic, engines, seeds=1)
        told(f"Azure, {REQUESTS:,}", routing, "120/s", time.process_time() - start, math.nan, math.nan)
    for routing in ("random", "sticky", "prefix"):
        for load, rate, rules in (("light", 60.0, PATIENT), ("overloaded", 300.0, IMPATIENT)):
            engines = PoolEngines(REPLICAS, iteration, 256, 2048, 430_000.0, routing)
            traffic = SampledTraffic(chats.input_tokens, chats.output_tokens, chats.weight, Arrival(rate), REQUESTS)
            start = time.process_time()
            result = simulate_clients(traffic, engines, rules, chats.sessions, rate, requests=REQUESTS)
            seconds = time.process_time() - start
            met = result.clients
            assert met is not None
            told(
                f"sessions, {REQUESTS:,} calls",
                routing,
                f"{rate:g}/s, {load}",
                seconds,
                met["cached_share"],
                met["amplification"],
            )
    sharing = read_workload(SHARING)[0]
    assert sharing.sessions is not None
    traffic = SampledTraffic(sharing.input_tokens, sharing.output_tokens, sharing.weight, Arrival(60.0), REQUESTS)
    for routing in ("sticky", "prefix"):
        engines = PoolEngines(REPLICAS, iteration, 256, 2048, 430_000.0, routing)
        start = time.process_time()
        met = simulate_clients(traffic, engines, IMPATIENT, sharing.sessions, 60.0, requests=REQUESTS).clients
        seconds = time.process_time() - start
        assert met is not None
        told(
            f"sessions, {REQUESTS:,} calls, shared prefixes",
            routing,
            "60/s",
            seconds,
            met["cached_share"],
            met["amplification"],
        )
    for load, rate, rules in (("light", 25.0, PATIENT), ("overloaded", 80.0, IMPATIENT)):
        first = PoolEngines(REPLICAS // 2, iteration, 1, kv_tokens=430_000.0, routing="sticky")
        second = PoolEngines(REPLICAS // 2, iteration, 256, kv_tokens=430_000.0, routing="p2c")
        traffic = SampledTraffic(chats.input_tokens, chats.output_tokens, chats.weight, Arrival(rate), REQUESTS)
        start = time.process_time()
        back = ComingBack(chats.sessions, rate, ON_GPU)
        met = simulate_pair(traffic, first, second, lambda p: 2e-3 + 1e-5 * p, rules=rules, coming_back=back)[0].clients
        seconds = time.process_time() - start
        assert met is not None
        what = f"sessions, {REQUESTS:,} calls, prefill and decode pools"
        told(what, "sticky", f"{rate:g}/s, {load}", seconds, met["cached_share"], met["amplification"])


def told(what: str, routing: str, load: str, seconds: float, cached: float, attempts: float) -> None:
    """A row of the table."""
    shown = ["-" if np.isnan(v) else f"{v:.2f}" for v in (cached, attempts)]
    print(
        f"| {what} | {routing} | {load} | {seconds:.1f} s | {REQUESTS / seconds:,.0f} | {shown[0]} | {shown[1]} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
