"""Random valid questions, and what every answer must keep.

``python tests/fuzz/questions.py --cases 3000 --seed 7``; ``--only 12`` repeats one. Of each plan: every promise is kept by the
prediction it was sized with; each pool says why one replica fewer would not do; the cost is the sum of the pools; ``evaluate``
answers the same at the plan's rate; more traffic, tighter promises or fewer choices never cost less; a question takes less than
five seconds of processor time.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import planner as fo
from planner.errors import InfeasibleError, InputError

LIMIT_S = 5.0
WORKLOADS = ("azure", "azure-conv", "azure-code", "lmsys")
GPUS = ("h100", "a100", "l40s", "h200", "l4", "mi300x")
MODELS = ("llama-3.1-8b", "qwen3-8b", "llama-3.1-70b")
ROUTINGS = ("random", "p2c", "least", "rr")


def question(seed: int, number: int) -> dict[str, Any]:
    """The options of a question."""
    dice = random.Random(seed * 1_000_003 + number)
    asked: dict[str, Any] = {
        "rate": round(math.exp(dice.uniform(math.log(0.5), math.log(800.0))), 2),
        "gpu": dice.sample(GPUS, dice.choice((1, 1, 1, 2))),
        "model": dice.choice((*MODELS, MODELS[0], MODELS[0])),
        "pools": dice.choice((1, 1, 2)),
        "method": dice.choice(("mixed", "mixed", "mixed", "occupancy", "mgc")),
        "burst": dice.choice(("auto", "poisson")),
    }
    if dice.random() < 0.3:
        asked |= {"isl": dice.randrange(50, 8000), "osl": dice.randrange(5, 800)}
    else:
        asked["workload"] = dice.choice(WORKLOADS)
    promised = dice.choice(("ttft", "ttft", "both", "e2e"))
    if promised != "e2e":
        asked["ttft"] = round(math.exp(dice.uniform(math.log(0.2), math.log(10.0))), 3)
    if promised == "both":
        asked["tpot"] = round(dice.uniform(0.03, 0.2), 3)
    if promised == "e2e":
        asked["e2e"] = round(dice.uniform(10.0, 120.0), 1)
    for name, value, share in (
        ("routing", dice.choice(ROUTINGS), 0.4),
        ("quantile", dice.choice((0.9, 0.95, 0.99)), 0.3),
        ("redundancy", dice.randrange(3), 0.2),
        ("utilization_cap", round(dice.uniform(0.5, 0.95), 2), 0.2),
        ("cached_share", round(dice.uniform(0.0, 0.8), 2), 0.2),
        ("min_replicas", dice.randrange(1, 4), 0.1),
    ):
        if dice.random() < share:
            asked[name] = value
    return asked


def answer(asked: dict[str, Any]) -> fo.Plan | None:
    """The plan; ``None`` where no fleet keeps the promises."""
    try:
        return fo.plan(**asked)
    except InfeasibleError:
        return None


def faults(asked: dict[str, Any], seed: int) -> list[str]:
    """What an answer does not keep."""
    found: list[str] = []

    def must(holds: bool, told: str) -> None:
        if not holds:
            found.append(told)

    begun = time.process_time()
    try:
        plan = answer(asked)
    except InputError as error:
        # a valid question in form; a model that fits no GPU named is said so
        return [] if "fit" in str(error) or "long" in str(error) else [f"refused: {str(error).splitlines()[0]}"]
    spent = time.process_time() - begun
    must(spent < LIMIT_S, f"took {spent:.1f} s")
    if plan is None:
        return found
    for pool in plan.pools:
        for p in plan.slo.promises:
            value = pool.quantile(p.metric, p.quantile)
            must(value is None or value <= p.limit_s * (1 + 1e-9), f"{pool.name}: {p.label} {value} over {p.limit_s}")
        must(bool(pool.binding), f"{pool.name}: does not say why one fewer would not do")
    cost = math.fsum(p.cost_usd_per_hour for p in plan.pools)
    must(
        math.isclose(cost, plan.cost_usd_per_hour, rel_tol=1e-9), f"cost {plan.cost_usd_per_hour} is not the sum {cost}"
    )
    again = fo.evaluate(plan, [plan.arrival_rate_per_s])
    must(again.holds, "evaluate does not hold at the plan's rate")
    for pool, verdict in zip(plan.pools, again.verdicts[0], strict=True):
        for p in plan.slo.promises:
            told, now = pool.quantile(p.metric, p.quantile), verdict.prediction.value(p.metric, p.quantile)
            must(
                told is None or math.isclose(told, now, rel_tol=1e-6),
                f"{pool.name}: {p.label} {told} planned, {now} evaluated",
            )
    dice = random.Random(seed)
    other: dict[str, Callable[[], dict[str, Any]]] = {
        "a higher rate": lambda: {"rate": 1.5 * asked["rate"]},
        "tighter promises": lambda: {k: 0.7 * asked[k] for k in ("ttft", "tpot", "e2e") if k in asked},
        "fewer choices": lambda: {"gpu": asked["gpu"][:1], "pools": 1},
    }
    name = dice.choice(list(other))
    harder = answer({**asked, **other[name]()})
    # searches stop within a part in a hundred of the best
    least = plan.cost_usd_per_hour * 0.985
    must(
        harder is None or harder.cost_usd_per_hour >= least,
        f"{name} costs less: {harder and harder.cost_usd_per_hour} < {least}",
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--only", type=int, help="repeat one")
    given = parser.parse_args()
    begun, asked, wrong = time.monotonic(), 0, 0
    for number in range(given.cases) if given.only is None else (given.only,):
        if time.monotonic() - begun > given.seconds:
            break
        options = question(given.seed, number)
        asked += 1
        try:
            bad = faults(options, number)
        except Exception as error:
            bad = [f"{type(error).__name__}: {error}"]
        if bad:
            wrong += 1
            sys.stdout.write(f"{given.seed}/{number} {options}: {'; '.join(bad)}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{asked:,} questions, {wrong} that keep not everything\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
