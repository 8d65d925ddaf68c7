"""KV memory against what vLLM servers reported at their start, and paged memory against simulations that recompute the preempted.

Needs the shared data. About half a minute.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections import defaultdict
from typing import Any

from benchmarks.accuracy.rows import ROOT
from benchmarks.accuracy.rows import SHARED as DATA
from planner.catalog import gpu, model
from planner.catalog.kv import kv_capacity
from planner.queueing.memory import (
    overflow_probability,
    preemption,
    running_sequences,
    safe_slots,
    slot_law,
)

sys.path.insert(0, str(ROOT / "tests" / "queueing"))
from test_memory import lengths

GIB = 2.0**30


def capacity() -> list[str]:
    """KV cache of the versions whose accounting is implemented, against what the server printed."""
    rows = []
    for r in json.loads((DATA / "memory" / "kv_capacity.json").read_text()):
        if r.get("ver") not in ("0.11.0", "0.15.1") or model(r["m"]).multimodal:
            continue
        device = dataclasses.replace(gpu("h100"), memory_bytes=r["gpu_total_gib"] * GIB)
        found = kv_capacity(
            model(r["m"]), device, r["tp"], max_num_seqs=r["seqs"], token_budget=r["bt"], memory_utilization=r["util"]
        )
        ours = found.kv_bytes / GIB
        error = 100.0 * (ours / r["rep_kv_gib"] - 1.0)
        rows.append(f"| {r['m']} | {r['tp']} | vLLM {r['ver']} | {r['rep_kv_gib']:.2f} | {ours:.2f} | {error:+.2f}% |")
    errors = [abs(float(row.split("|")[-2].strip().rstrip("%"))) for row in rows]
    return [
        "## Capacity of a replica",
        "",
        f"{len(rows)} servers: median {statistics.median(errors):.2f}%, largest {max(errors):.2f}%.",
        "",
        "| model | TP | engine | reported GiB | computed GiB | error |",
        "|:--|--:|:--|--:|--:|--:|",
        *rows,
    ]


def simulated() -> list[str]:
    """Running sequences, overflow and preemptions of full slots."""
    laws: dict[tuple[str, int], Any] = {}
    groups: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    tails: dict[str, list[float]] = defaultdict(list)
    promise: dict[tuple[str, int], list[tuple[int, float, float]]] = defaultdict(list)
    for case in json.loads((DATA / "memory" / "truth.json").read_text()):
        key = (case["workload"], case["B"])
        if key not in laws:
            pair = lengths(DATA / "workloads" / "raw", key[0])
            laws[key] = None if pair is None else slot_law(*pair, token_budget=key[1])
        law = laws[key]
        if law is None:
            continue
        sim, n = case["sim"], case["N"]
        if case["id"].startswith("tail-"):
            for blocks, truth in zip(case["C_blocks"], sim["overflow"], strict=True):
                if truth > 5e-4:
                    group = "16 slots and more" if n >= 16 else "fewer than 16 slots"
                    tails[group].append(overflow_probability(law, n, blocks) / truth)
            continue
        blocks = case["C_blocks"]
        cost = preemption(law, n, blocks)
        name = case["workload"].replace(".csv", "").replace(".jsonl", "").replace(" (rows concatenated)", "")
        groups[name].append(
            (
                running_sequences(law, n, blocks) / sim["running"][0],
                cost.overflow / max(sim["memory_bound_fraction"][0], 1e-9),
                cost.per_request / max(sim["preemptions_per_request"][0], 1e-9),
            )
        )
        promise[key[0], blocks].append((n, *sim["memory_bound_fraction"]))
    lines = [
        "",
        "## Full slots against paged simulation",
        "",
        "16-token blocks, whole-prompt admission, newest preempted by recomputation. Cells: median (smallest, largest) of",
        "predicted/simulated; below 1 is optimistic for overflow and preemptions.",
        "",
        "| workload | cases | running | share of iterations short of memory | preemptions |",
        "|:--|--:|--:|--:|--:|",
    ]
    for name, values in sorted(groups.items()):
        cells = [f"{statistics.median(c):.2f} ({min(c):.2f}, {max(c):.2f})" for c in zip(*values, strict=True)]
        lines.append(f"| {name} | {len(values)} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "## Overflow probability of N busy slots",
        "",
        "| slots | points | predicted/simulated |",
        "|:--|--:|--:|",
    ]
    for group, ratios in tails.items():
        lines.append(
            f"| {group} | {len(ratios)} | {statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f}) |"
        )
    kept, judged = 0, 0
    for (workload, blocks), runs in promise.items():
        law = next(v for (w, _), v in laws.items() if w == workload)
        chosen = safe_slots(law, blocks, max_slots=4096).slots
        inside = [share - half <= 0.0105 for n, share, half in runs if n <= chosen]
        judged += len(inside)
        kept += sum(inside)
    lines += [
        "",
        f"Slots at or below the chosen number keep the promise of 1% in {kept} of {judged} simulated settings.",
    ]
    return lines


def page() -> str:
    """The page."""
    lines = [
        "# Accuracy of KV memory",
        "",
        "Made by `python -m benchmarks.accuracy memory`.",
        "",
        *capacity(),
        *simulated(),
        "",
        "Not covered: other engine versions (each accounts for memory in its own way), prefix sharing, swapping, speculation, and",
        "fixed output lengths, where slots run in step: there the worst case is reserved instead.",
    ]
    return "\n".join(lines)
