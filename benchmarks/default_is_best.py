"""Does fixing what the default leaves open ever give a cheaper fleet? ``python benchmarks/default_is_best.py [FIRST [LAST]]``.

Forty questions over models of 8B to 70B and a mixture of experts, rates of 1 to 10,000 requests/s, promises on TTFT, TPOT and
both. For each the default is planned, then once with every value of ``--tp``, ``--token-budget``, ``--max-num-seqs``, ``--kv`` and
``--pools`` fixed. A line per question, with the fixed value that is cheaper by the most; FIRST and LAST pick some of them.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import planner as fo

MODELS = ("llama-3.1-8b", "qwen3-14b", "qwen3-32b", "llama-3.1-70b", "qwen3-30b-a3b")
RATES = (1.0, 20.0, 100.0, 1000.0, 10_000.0)
WORKLOADS = ("azure", "azure-conv", "azure-code")
PROMISES: tuple[dict[str, Any], ...] = (
    {"slo": 0.5},
    {"slo": 2.0},
    {"tpot": "40ms"},
    {"slo": 1.0, "tpot": "50ms"},
)
FIXED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("tp", (1, 2, 4, 8)),
    ("token_budget", (512, 1024, 2048, 4096, 8192, 16384)),
    ("max_num_seqs", (32, 64, 128, 256, 512)),
    ("kv", ("reserved",)),
    ("pools", (1, 3, 4)),
)
QUESTIONS = [
    {
        "workload": WORKLOADS[k % 3],
        "model": MODELS[k % 5],
        "rate": RATES[(k // 5 + k) % 5],
        **PROMISES[(k // 2 + k // 10) % 4],
    }
    for k in range(40)
]
TOLERANCE = 0.02


def cost(question: dict[str, Any], **fixed: Any) -> float | None:
    """Cost of the fleet [USD/hour]; ``None`` where nothing keeps the promises. A fleet beyond safe memory does not count."""
    try:
        plan = fo.plan(**question, **fixed)
    except (fo.InfeasibleError, fo.InputError):
        return None
    return None if any("beyond the memory-safe" in w for w in plan.warnings) else plan.cost_usd_per_hour


def main(first: int = 1, last: int = 40) -> None:
    """Plan the questions and print what beats the default."""
    beaten = 0
    for number, question in list(enumerate(QUESTIONS, start=1))[first - 1 : last]:
        start = time.perf_counter()
        own = cost(question)
        took = time.perf_counter() - start
        best, by = own, "nothing"
        for name, values in FIXED:
            for value in values:
                other = cost(question, **{name: value})
                if other is not None and (best is None or other < best * (1.0 - 1e-9)):
                    best, by = other, f"{name}={value}"
        loss = 0.0 if own == best else (1.0 if own is None or best is None else 1.0 - best / own)
        beaten += loss > TOLERANCE
        told = " ".join(f"{k}={v}" for k, v in question.items())
        price = "infeasible" if own is None else f"${own:,.2f}/hour"
        print(f"{number:2d} {told}: {price} in {took:.1f} s; cheaper: {by} ({loss:.1%})", flush=True)
    print(f"{beaten} of {last - first + 1} questions have a cheaper fixed value by more than {TOLERANCE:.0%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
