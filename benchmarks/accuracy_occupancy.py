"""Error of queueing.occupancy and queueing.latency against iteration-level servers, as docs/accuracy/occupancy.md.

    python benchmarks/accuracy_occupancy.py [truth.json] > docs/accuracy/occupancy.md

Two sources: `tests/golden/iteration_server.json` (made by the server in this folder) and, where given, a file with the
key `iteration_server` (times in ms).
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))
from iteration_server import draw

from planner.queueing.exact import phase_type_wait, two_phases
from planner.queueing.slots.latency import ReplicaLatency
from planner.queueing.slots.wait import WAIT_SURVIVAL, SlotWait

COLUMNS = ("occupancy", "TTFT p50", "TTFT p90", "TTFT p99", "TPOT p50", "TPOT p90", "TPOT p99")
NAMES = {"geom": "geometric", "const": "constant", "bimodal": "two", "lognormal": "lognormal"}


@dataclass(frozen=True)
class Row:
    """One case: prediction / truth - 1 in the order of COLUMNS."""

    routing: str
    load: float
    occupancy: float
    wait: float
    errors: tuple[float, ...]


def _row(case: dict[str, Any], inputs: np.ndarray, outputs: np.ndarray, rate: float, unit: float) -> Row:
    replica = ReplicaLatency(
        inputs,
        outputs,
        iteration_time=unit * (case["W"] + case["H"] * np.arange(case["slots"] + 1.0)),
        chunk=case["chunk"],
    )
    at = replica.predict(rate, case["g"], case["routing"])
    got = [at.slot_occupancy, *at.ttft_s, *at.tpot_s]
    truth = [case["occupancy"], *(x * unit for x in case["ttft"]), *(x * unit for x in case["tpot"])]
    errors = tuple(float(a / b - 1.0) for a, b in zip(got, truth, strict=True))
    return Row(case["routing"], at.load, case["occupancy"], at.wait_probability, errors)


def truth_errors(cases: Iterable[dict[str, Any]]) -> list[Row]:
    """Errors on cases in the truth file's form.

    A run's own mean of the iterations differs from its law's by sampling (up to 1%); the rate is scaled by the ratio, so
    that both see the same work per second.
    """
    rows = []
    for case in cases:
        if case["prefill_ms_per_token"] > 0:  # prefill that shares a budget is method `mixed`
            continue
        rng = np.random.default_rng(7)
        laws = [(NAMES[spec[0]], *spec[1:]) for spec in (case["length_spec"]["input"], case["length_spec"]["output"])]
        inputs, outputs = (draw(law, 20_000, rng) for law in laws)
        mean = float(np.mean(np.ceil(inputs / case["chunk"]) + outputs))
        flat = {
            "W": case["W"], "H": case["H"], "slots": case["n_max"],
            "chunk": case["chunk"], "g": case["n_gpus"], "routing": case["routing"], "occupancy": case["slot_utilization"],
            "ttft": [case["ttft"][p]["value"] for p in ("p50", "p90", "p99")],
            "tpot": [case["tpot"][p]["value"] for p in ("p50", "p90", "p99")],
        }  # fmt: skip
        rows.append(_row(flat, inputs, outputs, case["lambda_per_ms"] * 1e3 * case["mean_iters"] / mean, 1e-3))
    return rows


def golden_errors() -> list[Row]:
    """Errors on the cases of tests/golden/iteration_server.json."""
    path = HERE.parent / "tests" / "golden" / "iteration_server.json"
    rows = []
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]:
        rng = np.random.default_rng(case["law_seed"])
        inputs, outputs = (draw(tuple(case[k]), case["population"], rng) for k in ("input_law", "output_law"))
        flat = {
            "W": case["fixed_time"], "H": case["time_per_slot"], "slots": case["slots"],
            "chunk": case["chunk"], "g": case["replicas"], "routing": case["routing"],
            "occupancy": case["slot_occupancy"], "ttft": case["ttft"], "tpot": case["tpot"],
        }  # fmt: skip
        rows.append(_row(flat, inputs, outputs, case["arrival_rate"], 1.0))
    return rows


def table(rows: list[Row]) -> str:
    """Median / worst optimistic / worst pessimistic error [%] per region."""
    regions: list[tuple[str, Callable[[Row], bool]]] = []
    for routing in (("random",), ("jsq", "central"), ("rr",)):
        for low, high in ((0.0, 0.72), (0.72, 0.9), (0.9, 1.0)):
            regions.append(
                (
                    f"{'/'.join(routing)}, load {low:g}-{high:g}",
                    lambda r, k=routing, a=low, b=high: r.routing in k and a <= r.load < b,
                )
            )
    lines = ["| region | cases | " + " | ".join(COLUMNS) + " |", "|---|---|" + "---|" * len(COLUMNS)]
    for name, inside in regions:
        errors = np.array([r.errors for r in rows if inside(r)]) * 100
        if len(errors) == 0:
            continue
        cells = [f"{np.median(np.abs(e)):.1f} / {min(e.min(), 0.0):.0f} / +{max(e.max(), 0.0):.0f}" for e in errors.T]
        lines.append(f"| {name} | {len(errors)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def slot_waits() -> list[str]:
    """Table of `SlotWait` beside exact waits of M/H2/c, found by another route (Newton on the matrix exponential)."""
    groups = ((1,), (2, 4), (8, 32), (64, 128))
    lines = [
        "| scv | "
        + " | ".join(" and ".join(map(str, g)) + (" slot" if g == (1,) else " slots") for g in groups)
        + " |",
        "|---|" + "---|" * len(groups),
    ]
    shown = WAIT_SURVIVAL[[3, 8, 11, 12]]
    for scv in (2.0, 4.0, 10.0, 20.0):
        cells = []
        for slots in groups:
            errors = []
            for heavy, load, c in itertools.product((3.0, 6.0), (0.5, 0.7, 0.85, 0.95), slots):
                phases = two_phases(scv, heavy * (1.0 + scv) ** 2)
                assert phases is not None
                p, r = np.array([phases.first, 1.0 - phases.first]), np.array([phases.rate_1, phases.rate_2])
                x = np.concatenate(([0.0], np.geomspace(1e-3, 60.0 / r.min(), 4000)))
                alive = np.exp(-np.outer(x, r))
                mass, time = -np.diff(alive @ p), -np.diff((alive * (x[:, None] + 1.0 / r)) @ p)
                kept = mass > 1e-14
                got = SlotWait(300.0 * time[kept] / mass[kept], mass[kept]).edges(c, load)[[3, 8, 11, 12]]
                waiting = phase_type_wait(load * c, c, phases)[0]
                exact = phase_type_wait(load * c, c, phases, 1.0 - waiting * shown)[2]
                errors += (got / (300.0 * exact) - 1.0).tolist()
            cells.append(f"{100 * min(errors):+.0f} / {100 * max(errors):+.0f}")
        lines.append(f"| {scv:g} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    sources = [("Our own iteration-level server (`tests/golden/iteration_server.json`)", golden_errors())]
    if len(sys.argv) > 1:
        cases = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["iteration_server"]
        sources.append(("A second, independent iteration-level server", truth_errors(cases)))
    print("# Accuracy of the occupancy method\n")
    print("Made by `benchmarks/accuracy_occupancy.py`. Each cell: median absolute error / worst optimistic / worst")
    print("pessimistic error, in percent of the simulated value. Load = arrival rate / maximum throughput.\n")
    for title, rows in sources:
        print(f"## {title}\n\n{len(rows)} cases.\n\n{table(rows)}\n")
        bars = [r for r in rows if r.occupancy <= 0.85]
        errors = np.abs(np.array([r.errors for r in bars]))
        kept = [np.mean(errors[:, i] <= bar) for i, bar in ((0, 0.05), (1, 0.10), (3, 0.10), (6, 0.10))]
        print(
            f"Slot occupancy <= 0.85 ({len(bars)} cases): occupancy within 5% in {kept[0]:.0%}, TTFT p50 "
            f"within 10% in {kept[1]:.0%}, TTFT p99 within 10% in {kept[2]:.0%}, TPOT p99 within 10% in {kept[3]:.0%}.\n"
        )
    print(
        "Beyond these (a compiled server of the same rules, not rerun here), settings drawn at random: W 3-40 ms, H up to\n"
        "0.12 W, 8-256 slots, chunks 128-2048, 1-32 replicas, every routing, loads 0.2-0.85, seven input and eight output\n"
        "laws, 300,000 requests each. 60 settings drawn after the formulas were final: median error 0.4%\n"
        "of the occupancy, 0.2% of TTFT p50, 0.5% of TTFT p99, 0.4% of TPOT p99; 58 of 60 within 5% / 10% / 10% / 10%, the\n"
        "other two (TTFT p99 12% and 19% optimistic) where 1.2-1.5% of the requests wait.\n"
    )
    print("## The wait for a slot, of those who wait\n")
    print(
        "Predicted / exact - 1 of the wait at survival probabilities of 0.5, 0.09, 0.01 and 0.003, two-phase lives (third moment\n"
        "3 and 6 (1 + scv)^2), loads of 0.5 to 0.95, before an exact M/H2/c: worst optimistic / worst pessimistic [%].\n"
    )
    print("\n".join(slot_waits()) + "\n")
    print("## What is not covered\n")
    print(
        "- Where about 1% of the requests wait for a slot, TTFT p99 is a step: simulations of 200,000 requests themselves\n"
        "  move by 10% and more from seed to seed, and prediction and truth can fall on different sides of it. The same holds\n"
        "  for a quantile at a jump of the length law (p90 of a law with 10% long requests).\n"
        "- The wait for a slot, of those who wait, is that before the exact queue of two exponential phases where lives vary\n"
        "  more than exponential ones and have its three moments, scaled from 32 slots where there are more; else the\n"
        "  Tijms-van Hoorn-Federgruen law. Lives that are no two phases have their moments, not their wait.\n"
        "- Join-shortest-queue with 8 slots or fewer per replica: TTFT p99 from 20% optimistic to 40% pessimistic where\n"
        "  some wait. Round robin with 4 slots or fewer: TTFT p50 up to 30% pessimistic, far more where H exceeds W.\n"
        "- No memory limits, no preemption, no prefill budget shared by the slots (that is method `mixed`)."
    )


if __name__ == "__main__":
    main()
