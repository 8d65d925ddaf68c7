"""Processor time of random questions of several GPU types and pools: ``python benchmarks/random_fleets.py``.

Each is drawn from its own number alone; ``--only 34`` repeats one, ``--seed 7`` draws others, ``--most-rate 1000`` slower ones.
Questions that no GPU named can hold are left out. The first question of all, answered before, between and after them, says how
busy the machine is.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import planner as fo
from planner.errors import InfeasibleError, InputError

GPUS = ("h100", "a100", "l40s", "h200", "l4", "mi300x", "b200", "a10g")
MODELS = ("llama-3.1-8b", "qwen3-8b", "llama-3.1-70b", "qwen3-30b-a3b", "llama-3.1-8b", "llama-3.1-8b")
WORKLOADS = ("azure", "azure-conv", "azure-code", "lmsys")
ALLOWED_S = 3.0
BETWEEN = 20


def question(number: int, seed: int = 0, most_rate: float = 10_000.0) -> dict[str, Any]:
    """The options of a question at 1 to `most_rate` requests/s."""
    dice = random.Random(770_077 + seed * 1_000_003 + number)
    types = dice.choice((1, 2, 3, 4, 4, 5, 6, 8))
    asked: dict[str, Any] = {
        "workload": dice.choice(WORKLOADS),
        "rate": round(math.exp(dice.uniform(0.0, math.log(most_rate))), 2),
        "gpu": dice.sample(GPUS, types),
        "pools": dice.choice((1, 2, 2, 3, 4)),
        "model": dice.choice(MODELS),
    }
    if dice.random() < 0.3:
        asked["burst"] = "poisson"
    promised = dice.choice(("ttft", "ttft", "both", "e2e"))
    if promised != "e2e":
        asked["ttft"] = round(math.exp(dice.uniform(math.log(0.2), math.log(5.0))), 3)
    if promised == "both":
        asked["tpot"] = round(dice.uniform(0.03, 0.2), 3)
    if promised == "e2e":
        asked["e2e"] = round(dice.uniform(10.0, 120.0), 1)
    return asked


def answered(asked: dict[str, Any]) -> tuple[float, str]:
    """Processor time of a question [s], and its fleet or why there is none."""
    begun = time.process_time()
    try:
        plan = fo.plan(**asked)
        pools = " + ".join(f"{pool.replicas} x {pool.gpu} {pool.parallel}" for pool in plan.pools)
        told = f"${plan.cost_usd_per_hour:,.2f}: {pools}"
    except InfeasibleError:
        told = "none"
    except InputError:
        told = ""
    return time.process_time() - begun, told


def main() -> None:
    """Print a row for each, and the share that takes longer than it may."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cases", type=int, default=80)
    options.add_argument("--only", type=int, help="repeat one")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--most-rate", type=float, default=10_000.0, help="requests/s")
    given = options.parse_args()
    numbers = range(given.cases) if given.only is None else range(given.only, given.only + 1)
    first: dict[str, Any] = {"workload": "azure", "slo": 0.5}
    answered(first)
    usual, spent = [], []
    for number in numbers:
        if number % BETWEEN == 0 or given.only is not None:
            usual.append(answered(first)[0])
        asked = question(number, given.seed, given.most_rate)
        seconds, told = answered(asked)
        if not told:
            continue
        spent.append(seconds)
        print(f"{number} {seconds:.2f} s, {told}; {asked}", flush=True)
    usual.append(answered(first)[0])
    long = sum(seconds > ALLOWED_S for seconds in spent)
    middle, high = statistics.median(spent), sorted(spent)[math.ceil(0.9 * len(spent)) - 1]
    print(f"{len(spent)} questions, {sum(spent):.1f} s, {long} over {ALLOWED_S:g} s")
    print(f"The median took {middle:.2f} s, nine in ten {high:.2f} s at most, the worst {max(spent):.2f} s.")
    print(f"The first question took {min(usual):.2f} to {max(usual):.2f} s.")


if __name__ == "__main__":
    main()
