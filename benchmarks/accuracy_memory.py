"""KV memory against real servers and paged simulations: ``python benchmarks/accuracy_memory.py``; writes docs/accuracy/memory.md.

Needs the shared data (``FLEETOPT_SHARED_DATA``, default ../shared/data): sizes that vLLM servers reported at start, and
simulations of paged memory with preemption by recomputation. About half a minute.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "queueing"))
from test_memory import lengths

from planner.catalog import gpu, model
from planner.catalog.kv import kv_capacity
from planner.queueing.memory import (
    overflow_probability,
    preemption,
    running_sequences,
    safe_slots,
    slot_law,
)

DATA = Path(os.environ.get("FLEETOPT_SHARED_DATA", ROOT.parent / "shared" / "data"))
TARGET = ROOT / "docs" / "accuracy" / "memory.md"
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


def main() -> None:
    text = [
        "# Accuracy of KV memory",
        "",
        "Made by `python benchmarks/accuracy_memory.py`.",
        "",
        *capacity(),
        *simulated(),
        "",
        "Not covered: other engine versions (each accounts for memory in its own way), prefix sharing, swapping, speculation, and",
        "fixed output lengths, where slots run in step: there the worst case is reserved instead.",
    ]
    TARGET.write_text("\n".join(text) + "\n", encoding="utf-8")
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
