"""Latency predicted along the path of real traffic against the simulator's replay of the same requests.

Run by hand, in pieces: ``python benchmarks/bursts.py RAW_FOLDER RESULTS.json [chosen|others|days|fresh]`` replays what is not
yet in the results and writes docs/accuracy/bursts.md from all of them; without a set it only writes. Every request is replayed with
its own time and lengths; above the trace's own rate as shifted copies, whose shifts the prediction does not know.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from make_days import SERVICES, days
from planner.methods.burst import PoolArrivals
from planner.simulate.replay import ReplayedTraffic

from planner.catalog import gpu, model, profile
from planner.iteration.model import IterationModel
from planner.methods.mixed import MixedPool
from planner.routing import find_routing
from planner.simulate.pool import simulate
from planner.simulate.presets import PoolEngines
from planner.workload.formats.base import ReadOptions
from planner.workload.importing import import_files
from planner.workload.pools import FleetMoments, State
from planner.workload.workload import Workload

LEVELS = (0.5, 0.9, 0.99)
SLOTS, KV_TOKENS = 320, 430_000
BUDGETS = (512, 2048, 8192)
# GPU type, replicas, load: each trace goes through all of them, token budgets in turn, and the routings
CHOSEN = (
    ("h100", 1, 0.3), ("h100", 2, 0.5), ("h100", 3, 0.3), ("h100", 4, 0.6), ("h100", 8, 0.7), ("l40s", 2, 0.3),
    ("l40s", 4, 0.4), ("l40s", 8, 0.6), ("l40s", 16, 0.75),
)  # fmt: skip
OTHERS = (
    ("h100", 1, 0.5), ("h100", 2, 0.7), ("h100", 3, 0.6), ("h100", 6, 0.45), ("l40s", 3, 0.5), ("l40s", 5, 0.75),
    ("l40s", 12, 0.6), ("a100-80gb", 4, 0.55), ("a100-80gb", 10, 0.8),
)  # fmt: skip
DAYS = (("h100", 2, 0.4), ("l40s", 4, 0.5))
FRESH = (("h100", 2, 0.5), ("h100", 3, 0.6))
SETS = {
    "chosen": (CHOSEN, 0, 2, 4),
    "others": (OTHERS, 1, 102, 4),
    "days": (DAYS, 0, 2, 3),
    "fresh": (FRESH, 2, 502, 2),
}
"""Cases, the first token budget's turn, the first seed, and replays of each case at least."""
FRESH_SEED = 100
"""First seed of the days of set ``fresh``."""
MOST_REPLAYED, KNOWN = 600_000, 0.07
"""More replays are added, up to so many requests in all and ten replays, or as many as that is, while the standard error of their
mean P99 TTFT is above this share of it."""
ROUTINGS = ("random", "p2c", "jsq")
DAY_RATE = 4.0


def traces(raw: Path) -> dict[str, Workload]:
    """Conversation, code, and both on their common clock."""
    files = [("conv", raw / "azure_conv_2023.csv"), ("code", raw / "azure_code_2023.csv")]
    both = {"both": files, "conversation": files[:1], "code": files[1:]}
    return {name: import_files(parts, ReadOptions())[0] for name, parts in both.items()}


class Law:
    """What is predicted from: what a file keeps of a trace."""

    def __init__(self, workload: Workload) -> None:
        recorded = workload.trace()
        assert recorded is not None
        self.recorded, self.kept = recorded, workload
        law = FleetMoments(self.kept).law(State(0.0), State(self.kept.max_total))
        assert law is not None
        self.law = law

    def pool(self, gpu_name: str, budget: int, routing: str, iteration: IterationModel | None = None) -> MixedPool:
        """The pool under the path of the traffic, on today's estimate of the iteration times unless others are given."""
        iteration = iteration or profile(gpu=gpu(gpu_name), model=model("llama-3.1-8b")).iteration
        arrivals = PoolArrivals(self.kept.arrivals, 1.0, self.law.requests)
        return MixedPool(self.law, iteration, SLOTS, KV_TOKENS, budget, find_routing(routing), arrivals)


def replays(which: str, name: str, law: Law, results: dict[str, Any], save: Path) -> None:
    """Replay the cases of a set as often as the results do not hold yet."""
    cases, turn, first_seed, fewest = SETS[which]
    for number, (gpu_name, replicas, load) in enumerate(cases):
        budget = BUDGETS[(number + turn) % 3]
        for routing in ROUTINGS[: 1 if replicas == 1 else None]:
            key = f"{which} {name} {gpu_name} {budget} {routing} {replicas} {load}"
            pool, recorded = law.pool(gpu_name, budget, routing), law.recorded
            capacity = replicas * pool.capacity_per_s
            copies = max(round(load * capacity / recorded.rate_per_s), 1)
            if not 0.1 < copies * recorded.rate_per_s / capacity < 0.9:
                continue
            engines = PoolEngines(replicas, profile(gpu=gpu(gpu_name), model=model("llama-3.1-8b")).iteration, SLOTS, budget,
                                  KV_TOKENS, routing)  # fmt: skip
            span, columns = (
                float(recorded.times_s[-1]),
                (recorded.times_s, recorded.input_tokens, recorded.output_tokens),
            )
            # a case keeps the iteration times of its first replay, whatever the estimate becomes
            case = results.setdefault(key, {"copies": copies, "runs": [], "iteration": pool._iteration.to_dict()})
            copies, runs = case["copies"], case["runs"]
            engines = replace(engines, iteration=IterationModel(**case["iteration"]))
            # one pass: a part of the hour has another P99, and so have several hours laid one after another
            requests = copies * recorded.requests
            most = max(MOST_REPLAYED // requests, 10)
            while len(runs) < (fewest if copies > 1 else 1) or (len(runs) < most and standard_error(runs) > KNOWN):
                traffic = ReplayedTraffic(*columns, span, float(copies), requests=requests)
                seen = simulate(traffic, engines, seeds=(first_seed + len(runs),), quantiles=LEVELS)
                runs.append([[seen.quantile(m, q).value for q in LEVELS] for m in ("ttft_s", "tpot_s")])
                save.write_text(json.dumps(results, indent=1), encoding="utf-8")
            print(key, [r[0][2] for r in runs], flush=True)


def standard_error(runs: list[Any]) -> float:
    """Relative standard error of the mean P99 TTFT over replays; 0 of one."""
    values = np.array([r[0][2] for r in runs])
    return float(values.std(ddof=1) / np.sqrt(values.size) / values.mean()) if values.size > 1 else 0.0


def rows_of(which: str, laws: dict[str, Law], results: dict[str, Any]) -> list[dict[str, Any]]:
    """Predictions of a set beside what its replays gave."""
    found = []
    for key, seen in results.items():
        kind, name, gpu_name, budget, routing, replicas, _ = key.split()
        if kind != which:
            continue
        law = laws[name]
        at = law.pool(gpu_name, int(budget), routing, IterationModel(**seen["iteration"])).predict(
            seen["copies"] * law.recorded.rate_per_s, int(replicas), LEVELS
        )
        runs = np.array(seen["runs"])
        ttft, tpot = runs.mean(axis=0)
        low, high = at.bands["ttft_s"][2]
        inside = (at.ttft_s[2] * (1.0 + low) <= runs[:, 0, 2]) & (runs[:, 0, 2] <= at.ttft_s[2] * (1.0 + high))
        error, spread = np.array(at.ttft_s) / ttft - 1.0, runs[:, 0, 2] / ttft[2] - 1.0
        found.append(
            {
                "error": error, "tpot": at.tpot_s[2] / tpot[2] - 1.0, "inside": float(inside.mean()),
                "known": standard_error(seen["runs"]), "replays": len(seen["runs"]), "copies": seen["copies"],
                "line": f"| {name} | {gpu_name} | {budget} | {routing} | {replicas} | {seen['copies']} | {at.load:.2f} | "
                + " | ".join(f"{e:+.0%}" for e in error)
                + f" | {ttft[2]:.2f} s | {spread.min():+.0%}..{spread.max():+.0%} | {at.tpot_s[2] / tpot[2] - 1.0:+.0%} |",
            }
        )  # fmt: skip
    return found


def told(rows: list[dict[str, Any]]) -> str:
    """The errors of a set in a sentence."""
    ttft, tpot = (np.abs(np.array(x)) for x in ([r["error"][2] for r in rows], [r["tpot"] for r in rows]))
    low = np.quantile([r["error"][2] for r in rows], 0.05)
    # of one replay of several copies nothing says how well it knows the mean; one copy has one replay
    known = [r["known"] for r in rows if r["replays"] > 1 or r["copies"] == 1]
    alone = f" ({len(rows) - len(known)} cases of one replay left out)" if len(known) < len(rows) else ""
    return (
        f"{len(rows)} cases: TTFT P99 median {np.median(ttft):.1%}, nine in ten within {np.quantile(ttft, 0.9):.0%}, worst "
        f"{ttft.max():.0%} (one in twenty is more optimistic than {low:+.0%}); TPOT P99 median {np.median(tpot):.1%}, nine in ten "
        f"within {np.quantile(tpot, 0.9):.0%}, worst {tpot.max():.0%}. The P99 of a single replay lies inside the printed band in "
        f"{np.mean([r['inside'] for r in rows]):.0%}; the standard error of the replays' own mean P99 TTFT is "
        f"{np.median(known):.1%} in the median case, {np.max(known):.0%} in the worst{alone}."
    )


TITLES = {
    "chosen": "Replays the method was chosen on",
    "others": "Replays with other seeds, loads, GPU types and numbers of replicas, partly in view when the method was chosen",
    "days": "Days: ServeGen's rates by ten minutes, filled with Azure's minutes (`benchmarks/make_days.py`)",
    "fresh": "The same with other seeds, sizes and budgets, made after everything was chosen",
}

HEAD = """# Bursts: prediction along the path against a replay of the same requests

The Azure conversation and code traces (28,185 requests in an hour, 8.02/s together), each request with its own
time and lengths, on replicas of Llama-3.1-8B (roofline estimate). Predicted from the compacted file: requests
and tokens per second and the law of lengths. At higher rates both lay shifted copies over each other; the prediction is for the
mean over draws of the shifts, the truth the mean of several replays, each with shifts of its own, whose spread stands beside it: a
single hour's P99 is no better known than that. Prediction over simulation - 1, negative = optimistic.
Made by `python benchmarks/bursts.py RAW_FOLDER RESULTS.json [chosen|others|days|fresh]`.
"""


def main() -> None:
    """Replay what is open, write the document from all results."""
    raw, save = Path(sys.argv[1]), Path(sys.argv[2])
    results = json.loads(save.read_text(encoding="utf-8")) if save.exists() else {}
    wanted = sys.argv[3:]
    laws = {name: Law(w) for name, w in traces(raw).items()}
    if "days" in wanted or any(k.startswith("days") for k in results):
        laws |= {name: Law(w) for name, w in days(raw, DAY_RATE).items()}
    if "fresh" in wanted or any(k.startswith("fresh") for k in results):
        laws |= {f"{name}-fresh": Law(w) for name, w in days(raw, DAY_RATE, FRESH_SEED).items()}
    for which in wanted:
        for name, law in laws.items():
            made = "fresh" if name.endswith("-fresh") else "days" if name in SERVICES else None
            if made == (which if which in ("days", "fresh") else None):
                replays(which, name, law, results, save)
    text = [HEAD]
    for which, title in TITLES.items():
        if rows := rows_of(which, laws, results):
            text += [
                f"## {title}", "", told(rows), "",
                "| trace | GPU | token budget | routing | replicas | copies | load | TTFT P50 | TTFT P90 | TTFT P99 "
                "| replayed P99 | replays | TPOT P99 |", "|" + "---|" * 13, *(r["line"] for r in rows), "",
            ]  # fmt: skip
            print(title, told(rows), sep=": ")
    page = Path("docs/accuracy/bursts.md")
    rest = page.read_text(encoding="utf-8").partition("<!-- by hand -->")[2] if page.exists() else ""
    page.write_text("\n".join(text) + "\n<!-- by hand -->" + rest, encoding="utf-8")


if __name__ == "__main__":
    main()
