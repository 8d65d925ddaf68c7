"""Power of two choices (`p2c`): predictions beside the shipped simulator, as docs/accuracy/routing.md.

    python benchmarks/accuracy_routing.py                   # some three minutes; writes docs/accuracy/routing.md
    python benchmarks/accuracy_routing.py --requests 20000  # a quick look, noisier

Forty pools of 4 to 64 replicas at loads of 0.3 to 0.85 under Poisson arrivals, settings and workloads of
`accuracy_mixed.py` drawn by a fixed seed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from accuracy_mixed import HOLD_OUT, LEVELS, lengths

from planner.catalog.load import gpu, model
from planner.iteration.model import IterationModel
from planner.iteration.roofline import roofline
from planner.queueing.mixed.replica import MixedReplica
from planner.simulate.pool import simulate_pool

ROOT = Path(__file__).resolve().parents[1]
CASES, SEED = 40, 2026
REPLICAS, LOADS = (4, 8, 16, 32, 64), (0.3, 0.5, 0.7, 0.8, 0.85)
TERMS = ("t0", "w", "b", "c", "h", "g", "a")
METRICS = tuple(f"{m} p{round(100 * q)}" for m in ("TTFT", "TPOT", "E2E") for q in LEVELS)

HEAD = """# Accuracy of power-of-two-choices routing

Made by `python benchmarks/accuracy_routing.py`: {cases} pools of mixed-batching replicas under Poisson arrivals, 4 to 64
replicas, load 0.3 to 0.85, against the shipped simulator (60,000 requests or 2,500 a replica; its own TTFT p99 is known to
2-5%). Each cell: median absolute error / worst optimistic / worst pessimistic error, in percent of the simulated value.

"""
TAIL = """
Every replica's number of requests is a birth-death process about the mean of its pool (the mean-field fixed point of two
choices, narrowed for a pool of g); the rest is the closed form of join-shortest-queue with two constants fitted on 60 other
simulations: the share of its control (0.7), and of arrivals that find a backlog as it is after a departure (0.05).

Not covered: bursts; outputs of some 30 tokens, where a request sees
few iterations, are up to 45% pessimistic at the median of TPOT and up to 25% optimistic at its 99th percentile near load 0.85.
"""


def case(rng: np.random.Generator, requests: int) -> tuple[str, int, float, np.ndarray]:
    """A drawn setting: its name, replicas, load, and predicted / simulated - 1 of METRICS."""
    chip, name, tp, work, budget, slots, kv = [s for s in HOLD_OUT if s[3] != "mooncake"][rng.integers(15)]
    # a different engine every time: budget and slots drawn anew
    budget, slots = int(rng.choice([512, 1024, 2048, 4096, 8192])), int(max(slots, rng.choice([64, 128, 256])))
    replicas, load = int(rng.choice(REPLICAS)), float(rng.choice(LOADS))
    prior = roofline(gpu(chip), model(name), tp)
    terms = {k: float(getattr(prior, k)) for k in TERMS}
    prompts, outputs = lengths(work)
    engine = MixedReplica(
        **terms, input_tokens=prompts, output_tokens=outputs, token_budget=budget, max_num_seqs=slots, kv_tokens=kv
    )
    rate = load * engine.max_throughput().per_s * replicas
    run = simulate_pool(
        prompts, outputs, None, rate, requests=max(requests, 2500 * replicas), seeds=(int(rng.integers(1 << 30)),),
        quantiles=LEVELS, replicas=replicas, iteration=IterationModel(**terms), slots=slots, token_budget=budget,
        kv_tokens=kv, routing="p2c",
    )  # fmt: skip
    at = engine.predict(rate, replicas, "p2c", LEVELS)
    predicted = np.concatenate((at.ttft_s, at.tpot_s, at.e2e_s))
    simulated = np.array([run.quantile(f"{m}_s", q).value for m in ("ttft", "tpot", "e2e") for q in LEVELS])
    return f"{chip} {name} {work} B{budget} S{slots}", replicas, load, predicted / simulated - 1


def cells(errors: np.ndarray) -> str:
    """Median of the absolute error / worst optimistic / worst pessimistic of each metric [%]."""
    e = 100 * errors
    return " | ".join(f"{np.median(np.abs(c)):.1f} / {min(c.min(), 0):.0f} / +{max(c.max(), 0):.0f}" for c in e.T)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    rows = []
    for _ in range(CASES):
        rows.append(case(rng, options.requests))
        print(rows[-1][0], rows[-1][1], rows[-1][2], (100 * rows[-1][3]).round(1), flush=True)
    errors = np.array([r[3] for r in rows])
    short = np.array(["azure_code" in r[0] for r in rows])
    table = ["| pools | cases | " + " | ".join(METRICS) + " |", "|---|---|" + "---|" * len(METRICS)]
    groups = (
        ("all", short | ~short), ("outputs of 100 tokens and more", ~short), ("short outputs (28 tokens)", short),
    )  # fmt: skip
    table += [f"| {name} | {inside.sum()} | {cells(errors[inside])} |" for name, inside in groups]
    text = HEAD.format(cases=CASES) + "\n".join(table) + "\n" + TAIL
    (ROOT / "docs" / "accuracy" / "routing.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
