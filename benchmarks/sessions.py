"""The cached share of sessions: closed form against a simulated LRU cache, on recorded and on generated sessions.

``python benchmarks/sessions.py`` prints the table of docs/sessions.md. The recorded sessions and the reference made from them are
third-party data beside the repository (FLEETOPT_SHARED_DATA); the simulation here is independent of the closed form: caches that
keep sessions in a list by last use, and drop the end of the least recent.
"""

from __future__ import annotations

import csv
import heapq
import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import planner as fo
from planner.fleet.problem import FleetProblem
from planner.methods.sessions import SessionPool
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.workload.importing import read_workload
from planner.workload.sessions import Sessions
from planner.workload.workload import Workload

GENERATED = "turns=12,first=3000,growth=700,osl=300,gap=40s"
RATES = ((1, 0.02), (8, 0.16), (8, 0.5))
CACHES = (50_000, 150_000, 400_000, 1_000_000, 3_000_000)
FURTHER = (
    ("turns=4,first=800,growth=2500,osl=900,gap=300s", ((1, 0.02), (6, 0.2)), (60_000, 300_000, 1_500_000)),
    ("turns=40,first=10000,growth=300,osl=100,gap=5s", ((1, 0.01), (5, 0.08)), (60_000, 200_000, 800_000)),
)
PLANS: tuple[tuple[str, dict[str, object]], ...] = tuple(
    ("turns=12,first=4000,growth=900,osl=250,gap=40s", {"rate": 15, **options})
    for options in (
        {"routing": "sticky"},
        {"routing": "sticky", "session_ttl": "30s"},
        {"routing": "sticky", "session_ttl": "90s"},
        {"routing": "random", "tp": 2},
        {"routing": "random", "tp": 2, "offload": 64},
        {"routing": "random", "tp": 2, "offload": 256},
        {"routing": "random", "tp": 2, "offload": 256, "offload_gbps": 40},
        *(
            {"routing": routing, "tp": 1, "shape": "disaggregated", "slo": "p90=2s", "tpot": "p90=40ms", **more}
            for routing, more in (("sticky", {}), ("random", {}), ("random", {"offload": 256}))
        ),
    )
)
PLANS += tuple(
    ("turns=6,first=800,growth=300,osl=150,gap=20s,groups=20,prefix=3000", {"rate": 40, "routing": routing})
    for routing in ("random", "sticky", "prefix")
)
PLANS += tuple(
    (
        "groups=150,prefix=6000,prompts=5,question=1200,osl=300",
        {"rate": 20, "routing": routing, "model": "qwen3-32b", "tp": 2},
    )
    for routing in ("random", "prefix")
)
WARM_UP = 0.4
CALLS = 150_000


def at_instants(sessions: Sessions) -> Sessions:
    """The same calls, each over at the moment it is made, as the reference has them: service time is left out there."""
    return replace(sessions, duration_s=np.zeros(sessions.calls))


def reference() -> Iterator[tuple[int, float, str, float, float, float]]:
    """Replicas, session starts/s, routing, cache [tokens], share and its standard error, as recorded."""
    folder = Path(os.environ["FLEETOPT_SHARED_DATA"]) / "real" / "sessions"
    for row in csv.DictReader((folder / "lru_reference.csv").open()):
        yield (
            int(row["replicas"]),
            float(row["session_starts_per_s"]),
            row["routing"],
            float(row["cache_tokens_per_replica"]),
            float(row["cached_share"]),
            float(row["standard_error"]),
        )


def simulated(
    sessions: Sessions, starts_per_s: float, replicas: int, routing: str, cache: float, seed: int, calls: int = CALLS
) -> float:
    """Share of all prompt tokens found in the caches of `replicas` replicas."""
    rng = np.random.Generator(np.random.PCG64(seed))
    begin = np.flatnonzero(sessions.first)
    end = np.append(begin[1:], sessions.calls)
    span = calls / sessions.turns / starts_per_s
    longest = float(sessions.times_s.max())
    starts = np.sort(rng.random(rng.poisson(starts_per_s * (span + longest))) * (span + longest)) - longest
    picked = rng.integers(begin.size, size=starts.size)
    home = rng.integers(replicas, size=starts.size)
    events: list[tuple[float, int, int]] = [(float(t), k, int(begin[picked[k]])) for k, t in enumerate(starts)]
    heapq.heapify(events)
    caches: list[OrderedDict[int, tuple[float, int]]] = [OrderedDict() for _ in range(replicas)]
    held = [0.0] * replicas
    found = sent = 0.0
    size = (sessions.input_tokens + sessions.output_tokens).tolist()
    prompt, repeated, at = sessions.input_tokens.tolist(), sessions.cached_tokens.tolist(), sessions.times_s.tolist()
    while events:
        now, k, call = heapq.heappop(events)
        if now > span:
            break
        if call + 1 < end[picked[k]]:
            heapq.heappush(events, (float(starts[k]) + at[call + 1], k, call + 1))
        where = int(home[k]) if routing == "sticky" else int(rng.integers(replicas))
        mine = caches[where]
        kept, last = mine.pop(k, (0.0, -1))
        # what all calls since the last one here repeated of it is still the beginning of the prompt
        common = min(repeated[last + 1 : call + 1], default=0.0) if last >= 0 else 0.0
        if now > WARM_UP * span:
            found += min(kept, common)
            sent += prompt[call]
        held[where] += min(size[call], cache) - kept
        mine[k] = (min(size[call], cache), call)
        while held[where] > cache + 1e-6:
            oldest, (tokens, of) = next(iter(mine.items()))
            drop = min(held[where] - cache, tokens)
            held[where] -= drop
            if drop < tokens:
                mine[oldest] = (tokens - drop, of)
                mine.move_to_end(oldest, last=False)
            else:
                del mine[oldest]
    return found / sent


def closed_form(sessions: Sessions, starts_per_s: float, replicas: int, routing: str, cache: float) -> float:
    """The same from the table."""
    table, spread = sessions.table, float(replicas if routing == "random" else 1)
    law = table.at(starts_per_s * sessions.turns / replicas, cache, spread)
    return table.found_by_sessions(law, spread) / float(sessions.input_tokens.mean())


def report(title: str, rows: list[tuple[int, float, str, float, float, float]], sessions: Sessions) -> None:
    """Closed form against rows of a reference, as a Markdown table."""
    began = time.perf_counter()
    table = sessions.table
    print(f"\n{title}: table of {table.calls:,} calls in {time.perf_counter() - began:.2f} s\n")
    print("| replicas | starts/s | routing | cache | simulated | closed form | error |\n|--:|--:|:--|--:|--:|--:|--:|")
    errors, within, took = [], True, []
    for replicas, starts, routing, cache, share, error in rows:
        began = time.process_time()
        found = closed_form(sessions, starts, replicas, routing, cache)
        took.append(time.process_time() - began)
        errors.append(abs(found - share))
        within &= errors[-1] <= 0.012 + 2.0 * error
        cells = f"{share:.4f} +- {error:.4f} | {found:.4f} | {found - share:+.4f}"
        print(f"| {replicas} | {starts:g} | {routing} | {cache:,.0f} | {cells} |")
    print(
        f"\nmean error {np.mean(errors):.4f}, largest {max(errors):.4f}, each within .012 + 2 s.e.: {within}; "
        f"{1e3 * float(np.median(took)):.0f} ms a point (largest {1e3 * max(took):.0f})"
    )


def generated(
    text: str = GENERATED,
    rates: Sequence[tuple[int, float]] = RATES,
    caches: Sequence[float] = CACHES,
    seeds: Sequence[int] = (1, 2, 3),
    calls: int = CALLS,
) -> tuple[Workload, list[tuple[int, float, str, float, float, float]]]:
    """Sessions of a few numbers, and what three simulations of each case find."""
    workload, _ = read_workload(text)
    assert workload.sessions is not None
    rows = []
    for replicas, starts in rates:
        for routing in ("sticky",) if replicas == 1 else ("sticky", "random"):
            for cache in caches:
                shares = [simulated(workload.sessions, starts, replicas, routing, cache, seed, calls) for seed in seeds]
                rows.append((replicas, starts, routing, cache, float(np.mean(shares)), float(np.std(shares) / 2**0.5)))
    return workload, rows


def ladders() -> None:
    """Real fleets of 8 replicas behind round robin and behind a prefix-aware router, beyond their capacity."""
    path = Path(os.environ["FLEETOPT_SHARED_DATA"]) / "real" / "openloop" / "fleet_ladders.csv"
    rows = list(csv.DictReader(path.open()))
    one = rows[0]
    text = (
        f"groups={one['prefix_groups']},prefix={one['prefix_tokens']},prompts={one['prompts_per_group']},"
        f"question={one['question_tokens']},osl={one['output_tokens']}"
    )
    replicas, output = int(one["replicas"]), float(one["output_tokens"])
    print(f"\nOutput tokens/s of {replicas} replicas of {one['model']} at 35 to 60 requests/s\n")
    print("| routing | measured, mean of the rows | predicted | error | cached share |\n|:--|--:|--:|--:|--:|")
    for routing, column in (("random", "k8s_rr_out_tps"), ("prefix", "llmd_out_tps")):
        asked = {
            "cdf": text, "rate": 40, "slo": "60s", "model": "qwen3-32b", "gpu": "h100", "tp": int(one["tp"]), "pools": 1,
            "routing": routing, "token_budget": 8192, "max_num_seqs": 256, "burst": "poisson",
        }  # fmt: skip
        question = compile_question(PlanInputs.from_dict(asked), read_workload(text)[0])
        built = FleetProblem(question).build(0, 1, 0)
        assert built is not None
        pool = built[2]
        assert isinstance(pool, SessionPool)
        capacity = pool.capacity_at(replicas) * replicas
        busy = [r for r in rows if 35.0 <= float(r["rate"]) <= 60.0]
        found = float(np.mean([min(float(r["rate"]), capacity) * output for r in busy]))
        truth = float(np.mean([float(r[column]) for r in busy]))
        share = pool.found(capacity / replicas, replicas, 0.0)[1].share
        print(f"| {routing} | {truth:,.0f} | {found:,.0f} | {found / truth - 1.0:+.1%} | {share:.2f} |")


def in_the_simulator() -> None:
    """Plans of sessions with retention and host memory, against the simulator with clients that come back."""
    print(
        "\n| sessions | options | replicas | cached | simulated | host | simulated | TTFT p90 [s] | simulated ", end=""
    )
    print("| TPOT p99 [ms] | simulated |\n|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    one = {"slo": "8s", "model": "llama-3.1-8b", "pools": 1, "token_budget": 2048, "burst": "poisson"}
    for text, options in PLANS:
        plan = fo.plan(text, **{**one, **options})
        results = fo.simulate(plan, requests=20_000, max_requests=20_000, seeds=1).results
        first, last = plan.pools[0], plan.pools[-1]
        met, clients, facts = results[last.name], results[first.name].clients, plan.caches[first.name]
        cells = [
            f"{facts['cached_share']:.3f} | {clients['cached_share']:.3f}",
            f"{facts['host_share']:.3f} | {clients['host_share']:.3f}",
            f"{first.quantile('ttft_s', 0.9):.2f} | {met.quantile('ttft_s', 0.9).value:.2f}",
            f"{1e3 * last.quantile('tpot_s', 0.99):.1f} | {1e3 * met.quantile('tpot_s', 0.99).value:.1f}",
        ]
        told = ", ".join(f"{k} {v}" for k, v in options.items())
        print(f"| `{text}` | {told} | {plan.replicas} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Both sets."""
    folder = Path(os.environ["FLEETOPT_SHARED_DATA"]) / "real" / "sessions"
    recorded, _ = read_workload(folder / "calls.csv.gz")
    assert recorded.sessions is not None
    report("Recorded sessions of a coding agent", list(reference()), at_instants(recorded.sessions))
    workload, rows = generated()
    assert workload.sessions is not None
    report(f"Generated sessions, `{GENERATED}`", rows, workload.sessions)
    for text, rates, caches in FURTHER:
        workload, rows = generated(text, rates, caches, (11, 12, 13), 80_000)
        assert workload.sessions is not None
        report(f"Generated sessions, `{text}`", rows, workload.sessions)
    ladders()
    in_the_simulator()


if __name__ == "__main__":
    main()
