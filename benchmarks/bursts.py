"""Latency predicted along the path of real traffic against the simulator's replay of the same requests.

Run by hand: ``python benchmarks/bursts.py ../shared/data/workloads/raw [days]``; the table goes to docs/accuracy/bursts.md. Every
request is replayed with its own time and lengths; above the trace's own rate as shifted copies, whose shifts the prediction does
not know. With ``days`` the traces of ``benchmarks/make_days.py`` are replayed as well.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from make_days import days

from planner.catalog import gpu, model, profile
from planner.methods.burst import PoolArrivals
from planner.methods.mixed import MixedPool
from planner.routing import find_routing
from planner.simulate.pool import simulate
from planner.simulate.presets import PoolEngines
from planner.simulate.replay import ReplayedTraffic
from planner.workload.compact import compact
from planner.workload.formats.base import ReadOptions
from planner.workload.importing import import_files
from planner.workload.pools import FleetMoments, State
from planner.workload.workload import Workload

LEVELS = (0.5, 0.9, 0.99)
SLOTS, KV_TOKENS = 320, 430_000
# GPU type, replicas, load: each trace goes through all of them, token budgets and routings in turn
CASES = (
    ("h100", 1, 0.3), ("h100", 2, 0.5), ("h100", 3, 0.3), ("h100", 4, 0.6), ("h100", 8, 0.7), ("l40s", 2, 0.3),
    ("l40s", 4, 0.4), ("l40s", 8, 0.6), ("l40s", 16, 0.75),
)  # fmt: skip
ROUTINGS = ("random", "jsq")
SEEDS = {"copies": 2, "own": 2}


def traces(raw: Path) -> dict[str, Workload]:
    """Conversation, code, and both on their common clock."""
    files = [("conv", raw / "azure_conv_2023.csv"), ("code", raw / "azure_code_2023.csv")]
    both = {"both": files, "conversation": files[:1], "code": files[1:]}
    return {name: import_files(parts, ReadOptions())[0] for name, parts in both.items()}


def compare(name: str, workload: Workload, cases: tuple[tuple[str, int, float], ...]) -> list[dict[str, object]]:
    """Prediction and replay of one trace."""
    recorded = workload.trace()
    assert recorded is not None
    # what is predicted from is what a file keeps
    kept = compact(workload, 200)
    law = FleetMoments(kept).law(State(0.0), State(kept.max_total))
    assert law is not None
    rows = []
    for number, (gpu_name, replicas, load) in enumerate(cases):
        iteration = profile(gpu=gpu(gpu_name), model=model("llama-3.1-8b")).iteration
        budget = (512, 2048, 8192)[number % 3]
        for routing in ROUTINGS[: 1 if replicas == 1 else None]:
            pool = MixedPool(
                law,
                iteration,
                SLOTS,
                KV_TOKENS,
                budget,
                find_routing(routing),
                PoolArrivals(kept.arrivals, 1.0, law.requests),
            )
            rate = load * replicas * pool.capacity_per_s
            scale = max(round(rate / recorded.rate_per_s), 1)
            rate = scale * recorded.rate_per_s
            if not 0.1 < rate / replicas / pool.capacity_per_s < 0.9:
                continue
            at = pool.predict(rate, replicas, LEVELS)
            traffic = ReplayedTraffic(
                recorded.times_s, recorded.input_tokens, recorded.output_tokens, float(recorded.times_s[-1]), float(scale),
                requests=120_000,
            )  # fmt: skip
            seen = simulate(
                traffic,
                PoolEngines(replicas, iteration, SLOTS, budget, KV_TOKENS, routing),
                seeds=SEEDS["copies" if scale > 1 else "own"],
                quantiles=LEVELS,
            )
            rows.append(
                {
                    "trace": name, "gpu": gpu_name, "budget": budget, "routing": routing, "replicas": replicas,
                    "copies": scale, "load": at.load, "true": [seen.quantile("ttft_s", q).value for q in LEVELS],
                    "ttft": [p / seen.quantile("ttft_s", q).value - 1.0 for p, q in zip(at.ttft_s, LEVELS, strict=True)],
                    "tpot": at.tpot_s[2] / seen.quantile("tpot_s", 0.99).value - 1.0,
                    "inside": at.ttft_s[2] * (1.0 + at.bands["ttft_s"][2][0])
                    <= seen.quantile("ttft_s", 0.99).value
                    <= at.ttft_s[2] * (1.0 + at.bands["ttft_s"][2][1]),
                }
            )  # fmt: skip
            print(line(rows[-1]), flush=True)
    return rows


def line(row: dict) -> str:  # type: ignore[type-arg]
    """One row of the table."""
    errors = " | ".join(f"{e:+.0%}" for e in row["ttft"])
    return (
        f"| {row['trace']} | {row['gpu']} | {row['budget']} | {row['routing']} | {row['replicas']} | {row['copies']} "
        f"| {row['load']:.2f} | {errors} | {row['true'][2]:.2f} s | {row['tpot']:+.0%} |"
    )


def main() -> None:
    """Print and write the table."""
    rows = []
    raw = Path(sys.argv[1])
    for name, workload in traces(raw).items():
        rows += compare(name, workload, CASES)
    if "days" in sys.argv[2:]:
        for name, workload in days(raw).items():
            rows += compare(name, workload, (("h100", 2, 0.3), ("h100", 3, 0.5), ("h100", 4, 0.65)))
    ttft, tpot = (
        np.array([abs(x) for x in column]) for column in ([r["ttft"][2] for r in rows], [r["tpot"] for r in rows])
    )
    Path("docs/accuracy/bursts.md").write_text(
        "\n".join(
            [
                "# Bursts: prediction along the path against a replay of the same requests",
                "",
                "The Azure conversation and code traces (28,185 requests in an hour, 8.02/s together), each request with its own",
                "time and lengths, on replicas of Llama-3.1-8B (roofline estimate). Predicted from the compacted file: requests",
                "and tokens per second and the law of lengths. At higher rates both lay shifted copies over each other.",
                "Prediction over simulation - 1, negative = optimistic. Made by `python benchmarks/bursts.py RAW_FOLDER [days]`.",
                "",
                f"{len(rows)} cases: TTFT P99 median {np.median(ttft):.1%}, nine in ten within {np.quantile(ttft, 0.9):.0%}, worst "
                f"{ttft.max():.0%}; TPOT P99 median {np.median(tpot):.1%}, nine in ten within {np.quantile(tpot, 0.9):.0%}, worst "
                f"{tpot.max():.0%}. The simulated TTFT P99 lies inside the printed band in "
                f"{np.mean([r['inside'] for r in rows]):.0%}.",
                "",
                "| trace | GPU | token budget | routing | replicas | copies | load | TTFT P50 | TTFT P90 | TTFT P99 "
                "| simulated P99 | TPOT P99 |",
                "|---|---|---|---|---|---|---|---|---|---|---|---|",
                *(line(r) for r in rows),
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
