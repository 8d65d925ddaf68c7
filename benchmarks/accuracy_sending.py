"""Flash crowds, paced clients and limits in flight: predicted against simulated. ``python benchmarks/accuracy_sending.py``.

Fleets of one pool on given replicas, the lengths of the conversation trace without times, and the trace along its path,
where the simulator deals other requests to the same seconds than the prediction has seen. Writes docs/accuracy/sending.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import planner as fo

CASES = [
    *(
        ({"surge": s}, load)
        for s, load in (("3x/60s", 0.25), ("2x/30s", 0.35), ("4x/20s/20s", 0.2), ("1.5x/5min", 0.4))
    ),
    *(({"in_flight": n}, load) for n, load in ((0.6, 0.6), (1.0, 0.6), (1.5, 0.75))),
    *(({"burst": f"paced:{n}"}, load) for n, load in ((4, 0.5), (50, 0.7), (1000, 0.8))),
]
"""What is asked, a limit in flight in parts of the mean number under way without one; and the load."""

CROWDED = 6
"""Runs of crowds along a trace, whose quantiles are averaged."""

TRACES = ("lengths", "azure-conv")
METRICS = ("ttft_s", "tpot_s")
BY_HAND = "<!-- by hand -->"


def main() -> None:
    """Predict, simulate and write the page."""
    rows: list[str] = []
    errors: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for name in TRACES:
        for number, (asked, load) in enumerate(CASES):
            replicas = (2, 5)[number % 2]
            found = case(name, dict(asked), load, replicas, ("p2c", "random")[(number + TRACES.index(name)) % 2])
            if found is None:
                continue
            told, at = found
            rows.append(told)
            for metric in METRICS:
                errors[metric].append(at[metric])
            print(told, flush=True)
    summary = "; ".join(
        f"{metric.removesuffix('_s').upper()} P99 median {np.median(np.abs(e)):.1%}, nine in ten within "
        f"{np.quantile(np.abs(e), 0.9):.0%}, worst {max(e, key=abs):+.0%}"
        for metric, e in errors.items()
    )
    head = (
        "# What clients do: predicted against simulated\n\nFlash crowds (`--surge`), limits in flight (`--in-flight`) and paced "
        "clients (`--burst paced:N`) on pools of\nLlama-3.1-8B on H100 (estimate), prediction over simulation - 1. Along a trace "
        "the simulator deals other requests to the same\nseconds. Made by `python benchmarks/accuracy_sending.py`.\n\n"
        f"{len(rows)} cases: {summary}.\n\n"
        "| workload | asked | routing | replicas | load | TTFT P50 | TTFT P99 | simulated P99 | TPOT P99 |\n|"
        + "---|" * 9
        + "\n"
    )
    page = Path("docs/accuracy/sending.md")
    rest = page.read_text(encoding="utf-8").partition(BY_HAND)[2] if page.exists() else "\n"
    page.write_text(head + "\n".join(rows) + "\n\n" + BY_HAND + rest, encoding="utf-8")
    print(summary)


def case(
    name: str, asked: dict[str, Any], load: float, replicas: int, routing: str
) -> tuple[str, dict[str, float]] | None:
    """One row of the table and the errors at P99."""
    workload = fo.load_workload("azure-conv" if name == "lengths" else name)
    if name == "lengths":
        workload = fo.Workload.from_arrays(workload.input_tokens, workload.output_tokens, weight=workload.weight)
    settings: dict[str, Any] = {"pools": 1, "routing": routing, "token_budget": 2048, "tp": 1, "method": "mixed"}
    base = fo.plan(workload, slo="50s", rate=1.0, min_replicas=replicas, **settings)
    rate = load * replicas * base.pools[0].capacity_per_s
    if "in_flight" in asked:
        open_ = fo.plan(workload, slo="50s", rate=rate, min_replicas=replicas, **settings).pools[0]
        asked["in_flight"] = max(round(asked["in_flight"] * open_.slot_occupancy * open_.slots * replicas), 2)
    plan = fo.plan(workload, slo="50s", rate=rate, min_replicas=replicas, **settings, **asked)
    pool = plan.pools[0]
    if pool.replicas != replicas:
        return None
    # a run along a trace holds ten to forty crowds, of which a few meet its bursts
    seeds = CROWDED if "surge" in asked and name != "lengths" else 1
    seen = fo.simulate(plan, workload=workload, requests=60_000, max_requests=150_000, seeds=seeds)
    run = next(iter(seen.results.values()))

    def predicted(metric: str, level: float) -> float:
        value = pool.quantile(metric, level)
        assert value is not None
        return value

    errors = {}
    for metric in METRICS:
        errors[metric] = predicted(metric, 0.99) / run.quantile(metric, 0.99).value - 1.0
    middle = predicted("ttft_s", 0.5) / run.quantile("ttft_s", 0.5).value - 1.0
    words = " ".join(f"{k} {v}" for k, v in asked.items())
    return (
        f"| {name} | {words} | {routing} | {replicas} | {load:.2f} | {middle:+.0%} | {errors['ttft_s']:+.0%} "
        f"| {run.quantile('ttft_s', 0.99).value:.2f} s | {errors['tpot_s']:+.0%} |",
        errors,
    )


if __name__ == "__main__":
    main()
