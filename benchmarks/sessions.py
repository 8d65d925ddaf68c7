"""What prefix caches find of sessions, beside simulated caches and real fleets: ``python benchmarks/sessions.py``.

Writes docs/data/sessions.csv, whose summary docs/sessions.md prints: shares of recorded sessions found by replay, against a
token-wise LRU cache simulated by another program; and output tokens/s of eight replicas beyond their capacity. Both references
are third-party data beside the repository (FLEETOPT_SHARED_DATA).
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import planner as fo
from planner.iteration.model import IterationModel
from planner.predict.calls import session_calls
from planner.predict.records import PrefixCache, Replicas
from planner.predict.run import replay
from planner.workload.importing import read_workload

REAL = Path(os.environ.get("FLEETOPT_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")) / "real"
TABLE = Path(__file__).resolve().parents[1] / "docs" / "data" / "sessions.csv"
CALLS, WARM_UP = 150_000, 0.4
"""As the reference has them."""

SMALL = 500_000
"""Caches that do not hold the longest prompts are not compared: the reference cuts a prompt that a server would refuse [tokens]."""


def shares() -> Iterator[dict[str, object]]:
    """Share of all prompt tokens found, by replicas, routing and cache."""
    workload, _ = read_workload(REAL / "sessions" / "calls.csv.gz")
    assert workload.sessions is not None
    # calls come at their recorded times, each over at once
    sessions = replace(workload.sessions, duration_s=np.zeros(workload.sessions.calls))
    for row in csv.DictReader((REAL / "sessions" / "lru_reference.csv").open()):
        replicas, cache = int(row["replicas"]), float(row["cache_tokens_per_replica"])
        if cache < SMALL:
            continue
        rate = float(row["session_starts_per_s"]) * sessions.turns
        calls = session_calls(sessions, rate, CALLS)
        # as good as no service time, which the reference leaves out
        engine = Replicas(replicas, IterationModel(t0=1e-6), kv_tokens=cache, routing=row["routing"])
        run, sent = replay(calls.requests, engine, cache=PrefixCache()), calls.requests.input_tokens
        late = calls.requests.arrival_s > WARM_UP * calls.span_s
        found = float(run.found_tokens[late].sum() / sent[late].sum())
        yield {**row, "found": f"{found:.4f}", "error": f"{found - float(row['cached_share']):+.4f}"}


def ladders() -> None:
    """Real fleets behind round robin and behind a prefix-aware router."""
    rows = list(csv.DictReader((REAL / "openloop" / "fleet_ladders.csv").open()))
    one = rows[0]
    text = (
        f"groups={one['prefix_groups']},prefix={one['prefix_tokens']},prompts={one['prompts_per_group']},"
        f"question={one['question_tokens']},osl={one['output_tokens']}"
    )
    busy = [r for r in rows if 35.0 <= float(r["rate"]) <= 60.0]
    print("\n| routing | measured output tokens/s, mean of the rows at 35 to 60/s | predicted | error | cached share |")
    print("|:--|--:|--:|--:|--:|")
    for routing, column in (("random", "k8s_rr_out_tps"), ("prefix", "llmd_out_tps")):
        low, high, share = 0.0, 60.0, 0.0
        while high - low > 0.5:
            # the most that so many replicas bear, whatever requests wait
            rate = 0.5 * (low + high)
            plan = fo.plan(
                text, rate=rate, slo="3600s", model="qwen3-32b", gpu="h100", tp=int(one["tp"]), pools=1, routing=routing,
                token_budget=8192, max_num_seqs=256, burst="poisson", utilization_cap=0.99,
            )  # fmt: skip
            if plan.replicas > int(one["replicas"]):
                high = rate
            else:
                low, share = rate, plan.caches[plan.pools[0].name]["cached_share"]
        found = float(np.mean([min(float(r["rate"]), low) * float(one["output_tokens"]) for r in busy]))
        truth = float(np.mean([float(r[column]) for r in busy]))
        print(f"| {routing} | {truth:,.0f} | {found:,.0f} | {found / truth - 1.0:+.1%} | {share:.2f} |", flush=True)


def main() -> None:
    """Both."""
    rows = list(shares())
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    off = [abs(float(str(row["error"]))) for row in rows]
    print(f"{len(rows)} caches of recorded sessions: mean error {np.mean(off):.4f}, largest {max(off):.4f}")
    ladders()


if __name__ == "__main__":
    main()
