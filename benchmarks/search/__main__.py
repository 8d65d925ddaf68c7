"""Whether a plan is the cheapest that was open to it: ``python -m benchmarks.search choices|default [FIRST [LAST]]``.

choices: for each of twenty questions, every single choice of routing, pools, compression, precision, engine, measured profile,
shape and GPU type of ``--gpu any`` is planned by itself, whatever the table proposes; one that is cheaper than the plan by more
than 2% must stand in the table, at the price that choosing it gives; of profiles of one engine and dtype the cheapest.

default: forty questions over models of 8B to 70B and a mixture of experts, rates of 1 to 10,000 requests/s, promises on TTFT,
TPOT and both. For each the default is planned, then once with every value of ``--tp``, ``--token-budget``, ``--max-num-seqs``,
``--kv`` and ``--pools`` fixed; a line per question, with the fixed value that is cheaper by the most and how many were planned.

What cannot be cheaper by the throughput of its engines alone is not planned. FIRST and LAST pick some of the questions.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import planner as fo
from planner.ask.choices import cost_with
from planner.catalog.load import model as find_model
from planner.catalog.profiles import measured_profiles
from planner.choices import Choices
from planner.errors import InfeasibleError, InputError
from planner.machine.engines import engines
from planner.question.compiled import CompiledQuestion, compile_question
from planner.question.options import PlanInputs
from planner.routing import ROUTINGS
from planner.shared import kept
from planner.size.problem import FleetProblem
from planner.size.search import cheapest_path
from planner.size.unknowns import cheapest_types, with_types
from planner.workload.workload import Workload

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
DEFAULTS = [
    {
        "workload": WORKLOADS[k % 3],
        "model": MODELS[k % 5],
        "rate": RATES[(k // 5 + k) % 5],
        **PROMISES[(k // 2 + k // 10) % 4],
    }
    for k in range(40)
]
TOLERANCE = 0.02


def compiled(question: dict[str, Any]) -> CompiledQuestion:
    """The question as the search takes it."""
    options = {name: value for name, value in question.items() if name != "workload"}
    workload = question["workload"]
    return with_types(
        compile_question(
            PlanInputs.from_dict(options), Workload.from_file(workload) if isinstance(workload, str) else workload
        )
    )


def least_cost(question: dict[str, Any], enough: float) -> float:
    """A lower bound of what any fleet costs, from the most its engines complete [USD/hour]; `enough` where there is none."""
    try:
        problem = FleetProblem(compiled(question))
    except InputError:
        return math.inf
    problem.open_grid()
    found = cheapest_path(problem.option_bounds, problem.inputs.pools)
    return enough if found is None else found[0]


def cost(question: dict[str, Any]) -> float | None:
    """Cost of the fleet [USD/hour]; ``None`` where nothing keeps the promises. A fleet beyond safe memory does not count."""
    try:
        plan = fo.plan(**question)
    except (InfeasibleError, InputError):
        return None
    return None if any("beyond the memory-safe" in w for w in plan.warnings) else plan.cost_usd_per_hour


def line(question: dict[str, Any]) -> tuple[float, str]:
    """What is lost by not fixing anything, and the question told with it."""
    # what one plan has predicted the next ones need not
    kept.MOST = 1_000_000
    question = {**question, "workload": Workload.from_file(question["workload"])}
    start = time.process_time()
    own = cost(question)
    took = time.process_time() - start
    best, by, planned = math.inf if own is None else own, "nothing", 0
    for name, value in ((name, value) for name, values in FIXED for value in values):
        fixed = {**question, name: value}
        enough = (1.0 - TOLERANCE) * best
        if least_cost(fixed, enough) >= enough:
            continue
        planned += 1
        other = cost(fixed)
        if other is not None and other < best * (1.0 - 1e-9):
            best, by = other, f"{name}={value}"
    loss = 0.0 if own == best or math.isinf(best) else 1.0 if own is None else 1.0 - best / own
    told = " ".join(f"{k}={v.name if isinstance(v, Workload) else v}" for k, v in question.items())
    price = "infeasible" if own is None else f"${own:,.2f}/hour"
    return loss, f"{told}: {price} in {took:.1f} s (CPU); cheaper of {planned} planned: {by} ({loss:.1%})"


CHOICES: tuple[dict[str, Any], ...] = tuple(
    {"model": model, "rate": rate, **promise}
    for model, rates in (("llama-3.1-8b", (5.0, 50.0, 500.0)), ("qwen3-32b", (2.0, 20.0)))
    for rate in rates
    for promise in ({"slo": 0.5}, {"slo": 2.0}, {"slo": 1.0, "tpot": "50ms"}, {"tpot": "30ms"})
)
"""Twenty: two models, several rates, TTFT alone, loose, with TPOT, and TPOT alone."""

NO_TIME = 1e-9


def singles(question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every choice, whether it looks promising or not."""
    yield from ({"routing": r.name} for r in ROUTINGS.values() if r.law is not None and not r.affinity)
    yield from ({"engine": name} for name in engines())
    yield from ({"weights": "fp8"}, {"kv_dtype": "fp8"}, {"compress": True})
    yield from ({"pools": pools} for pools in (1, 3))
    yield {"shape": "disaggregated"}
    yield from (
        {"profile": p.name} for p in measured_profiles(find_model(question["model"])) if p.gpu.startswith("h100-80gb")
    )
    asked = PlanInputs.from_dict({**question, "gpu": "any"})
    yield from ({"gpu": [name]} for name in cheapest_types(compile_question(asked, Workload.from_file("azure"))))


def planned(question: dict[str, Any], **more: Any) -> tuple[float, Choices | None]:
    """The price and the table of choices; infinite where there is no fleet."""
    try:
        plan = fo.plan("azure", **question, **more)
    except InfeasibleError as error:
        return float("inf"), error.choices
    except InputError:
        return float("inf"), None
    return plan.cost_usd_per_hour, plan.choices


def alike(changes: str, other: str) -> bool:
    """Whether both take times measured with one engine and one dtype, on other groups of GPUs."""
    return "profile" in changes and re.sub(r"-tp\d+", "", changes) == re.sub(r"-tp\d+", "", other)


def wrong(question: dict[str, Any]) -> Iterator[str]:
    """Cheaper choices that are missing from the table or stand there at another price."""
    base, table = planned(question, choices=NO_TIME)
    cheaper, enough = {}, (1.0 - TOLERANCE) * base
    for changes in singles(question):
        other = {**question, **changes}
        colocated = "shape" not in changes
        if colocated and least_cost({"workload": "azure", **other}, enough) >= enough:
            continue
        cost, _ = planned(other)
        if cost < enough:
            cheaper[str(changes)] = cost
    # the rows are sized as the table sizes them, those that matter
    asked, workload = PlanInputs.from_dict(question), Workload.from_file("azure")
    proposed = {} if table is None else {str(dict(row.changes)): row.changes for row in table.rows}
    rows = {name: cost_with(proposed[name], asked, workload) for name in proposed if name in cheaper}
    print(f"  ${base:,.2f}/hour; {len(proposed)} rows; cheaper by more than 2%: {cheaper}", flush=True)
    for changes, cost in cheaper.items():
        if changes not in rows:
            if any(cheaper.get(other, cost + 1.0) <= cost for other in rows if alike(changes, other)):
                continue
            yield f"{changes}: ${cost:,.2f}/hour, not in the table"
        elif rows[changes] != cost:
            yield f"{changes}: {rows[changes]} in the table, {cost} chosen"


def of_choices(question: dict[str, Any]) -> tuple[bool, str]:
    """Whether the table is right, and the question told with what is wrong."""
    told = " ".join(f"{k}={v}" for k, v in question.items())
    found = "; ".join(wrong(question))
    return bool(found), f"{told}: {found or 'ok'}"


def of_default(question: dict[str, Any]) -> tuple[bool, str]:
    """Whether a fixed value is cheaper by more than 2%, and the question told with it."""
    with kept.keeping():
        loss, text = line(question)
    return loss > TOLERANCE, text


def main(what: str, first: int = 1, last: int = 40) -> None:
    """Plan the questions and print a line each."""
    kinds = {"choices": (CHOICES, of_choices), "default": (DEFAULTS, of_default)}
    questions, look = kinds[what]
    failed = 0
    for number, question in enumerate(questions, start=1):
        if first <= number <= last:
            bad, text = look(question)
            failed += bad
            print(f"{number:2d} {text}", flush=True)
    print(f"{failed} questions have a cheaper choice ({TOLERANCE:.0%}) that is not told")
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]))
