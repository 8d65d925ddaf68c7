"""Goodput, rejection and lost patience beyond capacity: closed form against the simulator; real servers under closed-loop clients.

``python benchmarks/overload.py`` prints the tables of docs/overload.md. The second needs the third-party data beside the repository
(FLEETOPT_SHARED_DATA): overloaded stages of real open-loop runs, whose generator keeps at most 440 requests in flight.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from planner.methods.overload import overloaded_replica
from planner.queueing.overload import Door
from planner.simulate.answered import simulate_clients
from planner.simulate.clients import Calls, ClientRules, run_clients

from planner.catalog.load import gpu, model
from planner.catalog.profiles import profile
from planner.iteration.model import IterationModel
from planner.queueing.mixed.replica import MixedReplica
from planner.simulate.presets import PoolEngines
from planner.simulate.traffic import SampledTraffic
from planner.workload.pools import PoolLaw, State, features

Floats = NDArray[np.float64]

LOADS = (0.8, 1.0, 1.2, 1.5, 2.0, 3.0)
FURTHER_CASES = ((1500, 150, 1.0), (6000, 80, 0.6), (300, 300, 0.8))
OTHER_CASES = ((2000, 300, 1.0), (8000, 50, 0.5), (500, 100, 0.3))
CASES = ((1000, 200, 1.0), (4000, 100, 0.7), (200, 400, 1.0))
DOORS = (Door(30), Door(30, retries=2), Door(timeout_s=10.0), Door(timeout_s=10.0, retries=1))
SLOTS, BUDGET, KV_TOKENS = 256, 2048, 430_000
REQUESTS = 12_000
STAGE_S = 60.0


def lengths(prompt: float, output: float, spread: float) -> PoolLaw:
    """Log-normal requests."""
    rng = np.random.Generator(np.random.PCG64(0))
    sigma = math.sqrt(math.log1p(spread * spread))
    inputs, outputs = (
        np.maximum(np.round(mean * np.exp(sigma * rng.standard_normal(3000) - sigma * sigma / 2)), 1.0)
        for mean in (prompt, output)
    )
    nothing, weight = np.zeros(3000), np.full(3000, 1 / 3000)
    moments = weight @ features(inputs, outputs, nothing, 512)
    return PoolLaw(State(0.0), State(1e6), 1.0, 0.0, inputs, outputs, nothing, weight, moments)


def capacity(law: PoolLaw, iteration: IterationModel, slots: int, budget: int, kv_tokens: float) -> float:
    """Largest throughput of a replica [1/s]."""
    replica = MixedReplica(
        **iteration.to_dict(),
        input_tokens=law.input_tokens,
        output_tokens=law.output_tokens,
        weight=law.weight,
        token_budget=budget,
        max_num_seqs=slots,
        kv_tokens=kv_tokens,
        cached_share=law.cached_share,
        api_overhead_s=0.0,
    )
    return replica.max_throughput().per_s


def against_simulation() -> None:
    """Every case, door and load."""
    iteration = profile(gpu=gpu("h100"), model=model("llama-3.1-8b"), tp=1).iteration
    print("| prompt, output | door | load | answered: simulated | closed form | turned away: simulated | closed form |")
    print("|:--|:--|--:|--:|--:|--:|--:|")
    goodput, turned = [], []
    for prompt, output, spread in CASES:
        law = lengths(prompt, output, spread)
        x = capacity(law, iteration, SLOTS, BUDGET, KV_TOKENS)
        replica = overloaded_replica(law, iteration, SLOTS, BUDGET, KV_TOKENS, x)
        for door in DOORS:
            for load in LOADS:
                # where few are answered, enough of them to be counted
                requests = REQUESTS * (5 if door.timeout_s < math.inf and load >= 2.0 else 1)
                traffic = SampledTraffic(law.input_tokens, law.output_tokens, None, load * x, requests)
                engines = PoolEngines(1, iteration, SLOTS, BUDGET, KV_TOKENS)
                rules = ClientRules(door.max_queue, math.inf, door.timeout_s, door.retries, 1.0)
                met = simulate_clients(traffic, engines, rules, None, load * x, requests=requests).clients
                assert met is not None
                found = replica.at(met["demand_per_s"], door)
                share = min(met["goodput_per_s"] / met["demand_per_s"], 1.0)
                goodput.append((load, door, found.answered_share / share - 1.0))
                turned.append(found.rejected_share - met["rejected_share"])
                words = f"queue {door.max_queue:g}, patience {door.timeout_s:g} s, retries {door.retries}"
                print(
                    f"| {prompt}, {output} | {words} | {load:g} | {share:.3f} | {found.answered_share:.3f} | "
                    f"{met['rejected_share']:.3f} | {found.rejected_share:.3f} |"
                )
    for name, limited in (("a queue limit", True), ("patience alone", False)):
        errors = np.array([abs(e) for _, d, e in goodput if (d.max_queue < math.inf) == limited])
        print(
            f"\ngoodput, {name}: mean error {errors.mean():.1%}, within 10% in {(errors < 0.1).mean():.0%} of {errors.size}"
        )
    print(f"share turned away: largest error {max(map(abs, turned)):.3f}")


def elsewhere() -> None:
    """Patience alone on laws that no rule was looked at with."""
    iteration = profile(gpu=gpu("h100"), model=model("llama-3.1-8b"), tp=1).iteration
    errors, distances = [], []
    for prompt, output, spread in OTHER_CASES:
        law = lengths(prompt, output, spread)
        x = capacity(law, iteration, SLOTS, BUDGET, KV_TOKENS)
        replica = overloaded_replica(law, iteration, SLOTS, BUDGET, KV_TOKENS, x)
        for patience in (10.0, 4.0):
            for load in (1.1, 1.2, 1.5, 2.0, 3.0):
                requests = REQUESTS * (5 if load >= 2.0 else 2)
                traffic = SampledTraffic(law.input_tokens, law.output_tokens, None, load * x, requests)
                engines, rules = PoolEngines(1, iteration, SLOTS, BUDGET, KV_TOKENS), ClientRules(timeout_s=patience)
                met = simulate_clients(traffic, engines, rules, None, load * x, requests=requests).clients
                assert met is not None
                share = min(met["goodput_per_s"] / met["demand_per_s"], 1.0)
                found = replica.at(met["demand_per_s"], Door(timeout_s=patience)).answered_share
                errors.append(abs(found / share - 1.0))
                distances.append(abs(found - share))
    inside = sum(e < 0.1 for e in errors)
    print(f"\nother laws: within 10% in {inside} of {len(errors)}, farthest {max(distances):.3f} of the demand")


def limits_and_surges() -> None:
    """The limit for a TTFT promise, and the time until a surge to twice the capacity for a minute is over, on further laws."""
    iteration = profile(gpu=gpu("h100"), model=model("llama-3.1-8b"), tp=1).iteration
    for prompt, output, spread in FURTHER_CASES:
        law = lengths(prompt, output, spread)
        x = capacity(law, iteration, SLOTS, BUDGET, KV_TOKENS)
        replica = overloaded_replica(law, iteration, SLOTS, BUDGET, KV_TOKENS, x)
        for promise in (1.0, 3.0):
            limit = replica.queue_for(promise)
            met = []
            for load in (1.3, 2.0):
                sent, first = run(law, iteration, ((load * x, 9000 / (load * x)),), Door(limit), 1)
                met.append(f"{np.nanquantile((first - sent)[sent.size // 5 :], 0.99):.2f} s at {load:g} times")
            print(f"\n{prompt}, {output}: P99 TTFT {promise:g} s, at most {limit} waiting: {', '.join(met)}")
        for usual, door in ((0.6, Door()), (0.8, Door()), (0.8, Door(40)), (0.8, Door(timeout_s=5.0))):
            found, met = replica.recovery_s(usual * x, 2.0 * x, STAGE_S, door), []
            parts = (usual * x, STAGE_S), (2.0 * x, STAGE_S), (usual * x, max(3.0 * found, STAGE_S))
            for seed in range(3):
                sent, first = run(law, iteration, parts, door, seed)
                waited = first - sent
                # over when a newcomer's first token comes as soon as 95% did before
                easy = waited <= np.nanquantile(waited[sent < STAGE_S], 0.95)
                met.append(float(np.min(sent[easy & (sent > 2.0 * STAGE_S)])) - 2.0 * STAGE_S)
            told = ", ".join(f"{s:.0f}" for s in met)
            print(
                f"usual load {usual:g}, queue {door.max_queue:g}, patience {door.timeout_s:g} s: {found:.0f} s, {told} s"
            )


def run(
    law: PoolLaw, iteration: IterationModel, parts: Sequence[tuple[float, float]], door: Door, seed: int
) -> tuple[Floats, Floats]:
    """Poisson arrivals at (rate [1/s], seconds) one after another: when each was sent, and its first token [s], NaN = never."""
    rng = np.random.default_rng(seed)
    times: list[float] = []
    start = 0.0
    for rate, lasts in parts:
        times += np.sort(start + rng.random(rng.poisson(rate * lasts)) * lasts).tolist()
        start += lasts
    rows, count = rng.integers(law.input_tokens.size, size=len(times)), len(times)
    lengths_of = (column[rows].astype(int).tolist() for column in (law.input_tokens, law.output_tokens))
    nothing = [-1] * count
    calls = Calls(
        list(zip(times, range(count), strict=True)), *lengths_of, nothing, [0] * count, nothing, [0.0] * count
    )
    rules = ClientRules(door.max_queue, math.inf, door.timeout_s)
    engine = {"slots": SLOTS, "token_budget": BUDGET, "kv_tokens": KV_TOKENS}
    found = run_clients(calls, rules, iteration, **engine, cache=None, seed=seed)
    order = np.argsort(found.sent_s)
    return np.array(found.sent_s)[order], np.array(found.first_s)[order]


def closed_loop() -> None:
    """Overloaded stages of real servers, one scale of all iteration times from the stages that are not overloaded."""
    path = Path(os.environ["FLEETOPT_SHARED_DATA"]) / "real" / "openloop" / "constant_rate_stages.csv"
    rows = [r for r in csv.DictReader(path.open()) if "eagle" not in r["setting"]]
    chosen = profile(gpu=gpu("h100"), model=model("llama-3.1-8b"), tp=1)
    print("\n| setting | scale | stage | completed/s | predicted | TTFT mean | predicted | E2E mean | predicted |")
    print("|:--|--:|--:|--:|--:|--:|--:|--:|--:|")
    errors: dict[str, list[float]] = {"throughput": [], "ttft": [], "e2e": []}
    for setting in dict.fromkeys(r["setting"] for r in rows):
        own = [r for r in rows if r["setting"] == setting]
        cached = 192.0 if own[0]["prefix_caching"] == "1" else 0.0
        prompt, slots, budget = float(own[1]["input_tokens"]), int(own[0]["max_num_seqs"]), int(own[0]["token_budget"])

        # V0 gives prompts iterations of their own
        iteration = replace(chosen.iteration, apart=float(setting.startswith("v0")))

        def server(
            scale: float,
            prompt: float = prompt,
            cached: float = cached,
            slots: int = slots,
            budget: int = budget,
            iteration: IterationModel = iteration,
        ):  # type: ignore[no-untyped-def]
            return MixedReplica(
                **scaled(iteration, scale).to_dict(),
                input_tokens=np.array([prompt]),
                output_tokens=np.array([64.0]),
                weight=np.ones(1),
                token_budget=budget,
                max_num_seqs=slots,
                kv_tokens=430_000.0,
                cached_share=np.array([cached / prompt]),
                api_overhead_s=chosen.api_overhead_s,
            )

        calm = [r for r in own if r["overloaded"] == "0"]
        low, high = 0.3, 6.0
        for _ in range(24):  # the scale whose E2E agree on average, in the logarithm
            middle = math.sqrt(low * high)
            made = server(middle)
            off = [
                math.log(
                    float(made.predict(float(r["sent_per_s"]), 1, quantiles=(0.5,)).e2e_mean_s) / float(r["e2e_mean_s"])
                )
                for r in calm
                if float(r["sent_per_s"]) < made.max_throughput().per_s
            ]
            too_slow = len(off) < len(calm) or float(np.mean(off)) > 0.0
            low, high = (low, middle) if too_slow else (middle, high)
        made = server(low)
        limit = made.max_throughput()
        for r in (r for r in own if r["overloaded"] == "1"):
            in_flight = float(r["client_in_flight_limit"])
            resident = min(slots, limit.per_s * 64.0 * limit.iteration_s)
            # the stage begins empty: until the limit in flight is reached the queue grows by what is more than served
            grows = max(float(r["requested_per_s"]) - limit.per_s, 1e-9)
            fill = (in_flight - resident) / grows
            full = min(fill, STAGE_S)
            mean = (in_flight - resident) * ((full / fill) * 0.5 * full + (STAGE_S - full)) / STAGE_S
            e2e = (mean + resident) / limit.per_s + chosen.api_overhead_s
            ttft = mean / limit.per_s + limit.iteration_s + chosen.api_overhead_s
            truth = [float(r[c]) for c in ("completed_per_s", "ttft_mean_s", "e2e_mean_s")]
            for key, found, real in zip(errors, (limit.per_s, ttft, e2e), truth, strict=True):
                errors[key].append(found / real - 1.0)
            cells = f"{truth[0]:.1f} | {limit.per_s:.1f} | {truth[1]:.2f} | {ttft:.2f} | {truth[2]:.2f} | {e2e:.2f}"
            print(f"| {setting} | {low:.2f} | {r['stage']} | {cells} |")
    for key, of_key in errors.items():
        worst = max(of_key, key=abs)
        print(
            f"{key}: mean {np.mean(np.abs(of_key)):.1%}, worst {worst:+.1%}, within 10% in {np.mean(np.abs(of_key) < 0.1):.0%}"
        )


def scaled(iteration: IterationModel, scale: float) -> IterationModel:
    """All times of an iteration times a factor."""
    times = {
        k: v * scale
        for k, v in iteration.to_dict().items()
        if k in ("t0", "w", "b", "c", "h", "g", "a", "x", "e", "h_m", "e_m")
    }
    return replace(iteration, **times)


if __name__ == "__main__":
    against_simulation()
    elsewhere()
    limits_and_surges()
    if "FLEETOPT_SHARED_DATA" in os.environ:
        closed_loop()
