"""KV memory against what vLLM servers reported at their start, and paged memory against simulations that recompute the preempted.

Needs the shared data. About half a minute.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.accuracy.rows import SHARED, Pair
from benchmarks.accuracy.serving import skipping
from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.catalog.kv import kv_capacity
from planner.queueing.memory import overflow_probability, preemption, running_sequences, safe_slots, slot_law
from planner.units import GIB
from tools.tables import Page, markdown

ACCOUNTED = ("0.11.0", "0.15.1")
"""vLLM versions whose accounting of memory is implemented."""

LEAST_OVERFLOW = 5e-4
"""Shares below it are too rare for a simulation to tell [1]."""

KEPT = 0.0105
"""Up to which share, less its half-width, the promise of 1% counts as kept [1]."""


def kv_memory(data: Path) -> Iterator[Pair]:
    """KV memory of a replica against what vLLM printed at its start [GiB]."""
    path = data / "memory" / "kv_capacity.json"
    for row in json.loads(path.read_text(encoding="utf-8")) if path.is_file() else ():
        with skipping("kv_capacity.json"):
            spec = find_model(row["m"])
            if row.get("ver") not in ACCOUNTED or spec.multimodal:
                continue
            device = replace(find_gpu(row["gpu"]), memory_bytes=row["gpu_total_gib"] * GIB)
            found = kv_capacity(
                spec, device, row["tp"], max_num_seqs=row["seqs"], token_budget=row["bt"], memory_utilization=row["util"],
            )  # fmt: skip
            name = f"{row['m']} {row['gpu']} TP{row['tp']} vLLM {row['ver']}"
            yield Pair("kv_capacity", "bytes", name, found.kv_bytes / GIB, row["rep_kv_gib"])


def spread(ratios: Sequence[float]) -> str:
    """Median (smallest, largest)."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"


class Simulated:
    """Full slots of paged memory, predicted over simulated: running sequences, overflow and preemptions by workload, the overflow
    of few and many slots, and which numbers of slots kept a promise of 1%."""

    def __init__(self) -> None:
        # a test module: pytest's, which only this needs
        from tests.queueing.test_memory import lengths

        self.groups: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
        self.tails: dict[str, list[float]] = defaultdict(list)
        self.runs: dict[tuple[str, int, int], list[tuple[int, float, float]]] = defaultdict(list)
        self.laws: dict[tuple[str, int], Any] = {}
        for case in json.loads((SHARED / "memory" / "truth.json").read_text(encoding="utf-8")):
            key = (case["workload"], case["B"])
            if key not in self.laws:
                pair = lengths(SHARED / "workloads" / "raw", key[0])
                self.laws[key] = None if pair is None else slot_law(*pair, token_budget=key[1])
            if self.laws[key] is not None:
                self.add(case, self.laws[key])

    def add(self, case: dict[str, Any], law: Any) -> None:
        """Judge a case."""
        sim, slots, blocks = case["sim"], case["N"], case["C_blocks"]
        if case["id"].startswith("tail-"):
            group = "16 slots and more" if slots >= 16 else "fewer than 16 slots"
            pairs = zip(blocks, sim["overflow"], strict=True)
            self.tails[group] += [
                overflow_probability(law, slots, b) / true for b, true in pairs if true > LEAST_OVERFLOW
            ]
            return
        overflow, per_request = preemption(law, slots, blocks)
        name = case["workload"].replace(".csv", "").replace(".jsonl", "").replace(" (rows concatenated)", "")
        self.groups[name].append(
            (
                running_sequences(law, slots, blocks) / sim["running"][0],
                overflow / max(sim["memory_bound_fraction"][0], 1e-9),
                per_request / max(sim["preemptions_per_request"][0], 1e-9),
            )
        )
        self.runs[case["workload"], case["B"], blocks].append((slots, *sim["memory_bound_fraction"]))

    def promise(self) -> tuple[int, int]:
        """Of the settings with no more slots than the planner chooses: in how many 1% was kept, and their number."""
        kept = []
        for (workload, budget, blocks), found in self.runs.items():
            chosen = safe_slots(self.laws[workload, budget], blocks, max_slots=4096).slots
            kept += [share - half <= KEPT for slots, share, half in found if slots <= chosen]
        return sum(kept), len(kept)


def page() -> Page:
    """The page."""
    pairs, simulated = list(kv_memory(SHARED)), Simulated()
    sizes, over = sorted(abs(p.error) for p in pairs), max(pairs, key=lambda p: p.error)
    rows = [(p.system, f"{p.measured:.2f}", f"{p.predicted:.2f}", f"{p.error:+.2%}") for p in pairs]
    servers = f"{len(pairs)} servers: median {statistics.median(sizes):.2%}, largest {sizes[-1]:.2%}."
    groups = {name: [*zip(*found, strict=True)] for name, found in sorted(simulated.groups.items())}
    kept, judged = simulated.promise()
    blocks = {
        "capacity": f"{servers}\n\n" + markdown(("server", "reported GiB", "computed GiB", "error"), rows),
        "simulated": markdown(
            ("workload", "cases", "running", "share of iterations short of memory", "preemptions"),
            [(name, len(columns[0]), *map(spread, columns)) for name, columns in groups.items()],
        ),
        "overflow": markdown(
            ("slots", "points", "predicted/simulated"),
            [(group, len(ratios), spread(ratios)) for group, ratios in simulated.tails.items()],
        )
        + f"\n\nSlots at or below the chosen number keep the promise of 1% in {kept} of {judged} simulated settings.",
    }
    # of outputs of one length the worst case is reserved instead
    overflow = {name: columns[1] for name, columns in groups.items() if not name.startswith("input ")}
    least, middle = min(overflow, key=lambda name: min(overflow[name])), [*map(statistics.median, overflow.values())]
    return Page(
        blocks,
        [
            ("KV capacity of a replica", "what vLLM servers reported", str(len(pairs)), f"median {statistics.median(sizes):.2%}",
             f"{over.error:+.2%}", f"{over.system}; largest either side {sizes[-1]:.2%}"),
            ("memory overflow of full slots", "paged simulation", str(sum(map(len, overflow.values()))),
             f"medians x{min(middle):.2f} to x{max(middle):.2f}", f"x{min(overflow[least]):.2f}",
             f"{least}; the promise of 1% was kept in {kept} of {judged}"),
        ],
    )  # fmt: skip
