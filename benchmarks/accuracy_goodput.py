"""Shares of requests that keep a TTFT and a TPOT both: predictions beside the shipped simulator, as docs/accuracy/goodput.md.

    python benchmarks/accuracy_goodput.py RESULTS.json [FIRST [LAST]]   # some minutes each; goes on where it was stopped

Twelve pools of 1 to 16 replicas under Poisson arrivals and eight along the path of the Azure trace (every request with its own time
and lengths, above the trace's own rate as shifted copies), loads of 0.4 to 0.9, chosen before anything was predicted. Of each,
limits that 50%, 90%, 95% and 99% of the requests are predicted to keep both, each about as hard as the other; the simulator counts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from accuracy_mixed import HOLD_OUT
from accuracy_routing import OTHERS, TERMS, law
from bursts import BUDGETS, KV_TOKENS, SLOTS, Law, traces
from planner.methods.burst import PoolArrivals
from planner.simulate.replay import ReplayedTraffic

from planner.catalog import gpu, model, profile
from planner.iteration.model import IterationModel
from planner.iteration.roofline import roofline
from planner.methods.base import Prediction
from planner.methods.mixed import MixedPool
from planner.promise import Promise
from planner.question.compiled import JOINT_LEVELS
from planner.routing import find_routing
from planner.simulate.pool import simulate
from planner.simulate.presets import PoolEngines
from planner.simulate.result import SimulationResult
from planner.simulate.traffic import SampledTraffic
from planner.workload.pools import FleetMoments, State
from planner.workload.workload import Workload

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("FLEETOPT_SHARED_DATA", ROOT.parent / "shared" / "data"))
SHARES = (0.5, 0.9, 0.95, 0.99)
REQUESTS = 60_000
# setting (of the two lists), replicas, routing, load
POISSON = (
    (0, 1, "random", 0.6), (6, 1, "random", 0.9), (3, 2, "random", 0.7), (10, 2, "p2c", 0.5), (15, 3, "p2c", 0.8),
    (8, 4, "random", 0.4), (16, 4, "p2c", 0.6), (12, 6, "random", 0.8), (19, 8, "p2c", 0.7), (2, 8, "random", 0.5),
    (22, 12, "p2c", 0.9), (26, 16, "p2c", 0.8),
)  # fmt: skip
# trace, GPU type, replicas, routing, load
PATHS = (
    ("conversation", "h100", 1, "random", 0.4), ("both", "l40s", 2, "p2c", 0.5), ("code", "h100", 2, "random", 0.4),
    ("conversation", "l40s", 4, "random", 0.6), ("both", "h100", 4, "p2c", 0.6), ("code", "l40s", 6, "p2c", 0.5),
    ("both", "h100", 8, "random", 0.7), ("conversation", "h100", 12, "p2c", 0.8),
)  # fmt: skip

HEAD = """# Accuracy of goodput: the share of requests that keep a TTFT and a TPOT both

Made by `python benchmarks/accuracy_goodput.py RESULTS.json`: pools of mixed-batching replicas, Poisson arrivals and the Azure
trace's own requests, against the shipped simulator. Of every pool, limits that a share of the requests is predicted to keep both,
about as hard each as the other; the table has the share simulated minus the share predicted, in points (per cent of the requests).
"TTFT", "TPOT": the same of each limit alone, the larger error over the shares. "as they go together": the error left where each
limit is put at the quantile simulated, so that only the dependence is predicted; "as if independent" and "as the worse alone" are
the product and the smaller of the two simulated shares in its place; each the largest over the shares.

"""

TAIL = """
What is predicted beyond the quantiles, how TTFT and TPOT go together, is good to a point or two where independence is off by up to
sixteen and the worse of the two alone by twenty. What is left is the error of the quantiles themselves: where TPOT hardly varies
(short spreads at low load, many replicas), one per cent of it is several per cent of the requests, so that promises about half of
the requests miss the point that those about 99% mostly keep. The band of a printed share is made of the bands of both quantiles.

A case of twelve replicas at load 0.8 was 26 points too optimistic at 50%, for three reasons: half of it was the truth, which was
taken from the first 44% of an hour whose rate the shifted copies had made higher there (now every replay is of the whole hour, and
of four draws of the shifts); the rest that stretches of the path began with the decodes of the mean flow (50 where 73 run, since
prompts come in iterations of their own), let them fade at the pace of iterations without prompts, and ran empty behind their end.
Correlation of the replicas had no part in it: under Poisson arrivals the same pool is within a per cent.
"""


def limits_of(at: Prediction, share: float) -> dict[str, float]:
    """Limits that a share of the requests is predicted to keep both, each a like factor beyond its own quantile."""
    alone = {m: at.value(m, share) for m in ("ttft_s", "tpot_s")}
    factor = at.value(Promise.joint(alone, share).metric, share) / alone["ttft_s"]
    return {m: factor * v for m, v in alone.items()}


def measured(name: str, at: Prediction, runs: list[SimulationResult]) -> dict[str, Any]:
    """What was simulated beside what was predicted, by share."""
    samples = [s for run in runs for s in run.samples]

    def counted(limits: dict[str, float]) -> float:
        return float(np.mean(np.concatenate([s.within(limits) for s in samples])))

    rows = []
    for share in SHARES:
        limits = limits_of(at, share)
        alone = {m: counted({m: v}) for m, v in limits.items()}
        own = {m: float(np.quantile(np.concatenate([getattr(s, m) for s in samples]), share)) for m in limits}
        both = counted(own)
        # the same ranks with every latency at its predicted quantile: only how they go together is predicted
        ranks = Promise.joint({m: at.value(m, share) for m in limits}, share)
        apart = [counted({m: v}) for m, v in own.items()]
        rows.append(
            {
                "share": share, "simulated": counted(limits), "alone": alone, "predicted_alone": {
                    m: at.share(Promise(m, v)) for m, v in limits.items()
                }, "together": both - at.share(ranks), "independent": both - apart[0] * apart[1], "worse": both - min(apart),
            }
        )  # fmt: skip
    return {"name": name, "load": at.load, "rows": rows}


def poisson(number: int) -> dict[str, Any]:
    """A pool under Poisson arrivals."""
    which, replicas, routing, load = POISSON[number]
    chip, name, tp, work, budget, slots, kv = [s for s in (*HOLD_OUT, *OTHERS) if s[3] != "mooncake"][which]
    terms = {k: float(getattr(roofline(gpu(chip), model(name), tp), k)) for k in TERMS}
    prompts, outputs = law(work)
    requests = Workload.from_arrays(prompts, outputs)
    pool_law = FleetMoments(requests).law(State(0.0), State(requests.max_total))
    assert pool_law is not None
    iteration = IterationModel(**terms)
    arrivals = PoolArrivals(None, 1.0, lambda: None)
    pool = MixedPool(pool_law, iteration, slots, kv, budget, find_routing(routing), arrivals)
    pool.joint = True
    rate = load * pool.capacity_per_s * replicas
    traffic = SampledTraffic(prompts, outputs, None, rate, max(REQUESTS, 5000 * replicas))
    run = simulate(traffic, PoolEngines(replicas, iteration, slots, budget, kv, routing), seeds=(31 + number,))
    at = pool.predict(rate, replicas, JOINT_LEVELS)
    return measured(f"{work.partition(':')[0]} | {chip} {name} | {routing} | {replicas}", at, [run])


def along_path(number: int, laws: dict[str, Law]) -> dict[str, Any]:
    """A pool along the path of a trace."""
    name, chip, replicas, routing, load = PATHS[number]
    budget = BUDGETS[number % 3]
    pool, recorded = laws[name].pool(chip, budget, routing), laws[name].recorded
    pool.joint = True
    copies = max(round(load * replicas * pool.capacity_per_s / recorded.rate_per_s), 1)
    engines = PoolEngines(
        replicas, profile(gpu=gpu(chip), model=model("llama-3.1-8b")).iteration, SLOTS, budget, KV_TOKENS, routing
    )
    columns = recorded.times_s, recorded.input_tokens, recorded.output_tokens
    # one pass: a part of the hour has another rate
    requests = copies * recorded.requests
    runs = []
    for seed in (61, 62, 63, 64) if copies > 1 else (61,):
        traffic = ReplayedTraffic(*columns, float(recorded.times_s[-1]), float(copies), requests=requests)
        runs.append(simulate(traffic, engines, seeds=(seed,)))
    at = pool.predict(copies * recorded.rate_per_s, replicas, JOINT_LEVELS)
    return measured(f"Azure {name} (path) | {chip} llama-3.1-8b | {routing} | {replicas}", at, runs)


def write(results: dict[str, Any]) -> str:
    """The page."""
    table = [
        "| lengths | engine | routing | replicas | load | " + " | ".join(f"{100 * s:.0f}%" for s in SHARES)
        + " | TTFT | TPOT | as they go together | as if independent | as the worse alone |",
        "|---|---|---|--:|--:|" + "--:|" * (len(SHARES) + 5),
    ]  # fmt: skip
    off: dict[str, list[float]] = {"poisson": [], "path": []}
    for key in sorted(results, key=int):
        found, cells = results[key], []
        for row in found["rows"]:
            cells.append(100.0 * (row["simulated"] - row["share"]))
            off["path" if "(path)" in found["name"] else "poisson"].append(abs(cells[-1]))
        for m in ("ttft_s", "tpot_s"):
            cells.append(max((100.0 * (r["alone"][m] - r["predicted_alone"][m]) for r in found["rows"]), key=abs))
        cells += [max((100.0 * r[k] for r in found["rows"]), key=abs) for k in ("together", "independent", "worse")]
        table.append(f"| {found['name']} | {found['load']:.2f} | " + " | ".join(f"{c:+.1f}" for c in cells) + " |")
    lines = []
    for kind, told in (("poisson", "Poisson arrivals"), ("path", "Along the path")):
        errors = np.array(off[kind])
        if errors.size:
            by_share = errors.reshape(-1, len(SHARES))
            within = ", ".join(
                f"{np.count_nonzero(c <= 1.0)} of {c.size} at {100 * s:.0f}%"
                for s, c in zip(SHARES, by_share.T, strict=True)
            )
            lines.append(
                f"{told}: median {np.median(errors):.1f} points, worst {errors.max():.1f}; within one point {within}."
            )
    return HEAD + "\n".join(table) + "\n\n" + "\n".join(lines) + "\n" + TAIL


def main(save: Path, first: int = 1, last: int = len(POISSON) + len(PATHS)) -> None:
    """Run what is not in the results yet, then write the page."""
    results: dict[str, Any] = json.loads(save.read_text()) if save.exists() else {}
    laws: dict[str, Law] = {}
    for number in range(first - 1, last):
        if str(number) in results:
            continue
        if number >= len(POISSON) and not laws:
            laws = {name: Law(w) for name, w in traces(DATA / "workloads" / "raw").items()}
        found = poisson(number) if number < len(POISSON) else along_path(number - len(POISSON), laws)
        results[str(number)] = found
        save.write_text(json.dumps(results, indent=1), encoding="utf-8")
        print(found["name"], [round(100 * (r["simulated"] - r["share"]), 2) for r in found["rows"]], flush=True)
    text = write(results)
    (ROOT / "docs" / "accuracy" / "goodput.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:4]))
