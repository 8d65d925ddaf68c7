"""Whether the table of choices is right and complete: ``python benchmarks/choices.py [FIRST [LAST [FILE]]]``.

For each question, every single choice of routing, pools, compression, precision, engine, measured profile, shape and GPU type of
``--gpu any`` is planned by itself, whatever the table proposes, unless the throughput of its engines alone says that it cannot be
cheaper; one that is cheaper than the plan by more than 2% must stand in the table, at the price that choosing it gives; of profiles
of one engine and dtype the cheapest. FIRST and LAST pick some of the twenty questions; those that stand in FILE are passed over, so
that a run can be taken up again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from default_is_best import least_cost

import planner as fo
from planner.advice.choices import cost_with
from planner.catalog.load import model as find_model
from planner.catalog.profiles import measured_profiles
from planner.choices import Choices
from planner.engines import engines
from planner.errors import InfeasibleError, InputError
from planner.fleet.types import cheapest_types
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.routing import ROUTINGS
from planner.workload.workload import Workload

QUESTIONS: tuple[dict[str, Any], ...] = tuple(
    {"model": model, "rate": rate, **promise}
    for model, rates in (("llama-3.1-8b", (5.0, 50.0, 500.0)), ("qwen3-32b", (2.0, 20.0)))
    for rate in rates
    for promise in ({"slo": 0.5}, {"slo": 2.0}, {"slo": 1.0, "tpot": "50ms"}, {"tpot": "30ms"})
)
"""Twenty: two models, several rates, TTFT alone, loose, with TPOT, and TPOT alone."""

CHEAPER = 0.98
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
    cheaper, enough = {}, CHEAPER * base
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


def main(first: int = 1, last: int = len(QUESTIONS), done: Path | None = None) -> None:
    told = done.read_text(encoding="utf-8") if done is not None and done.exists() else ""
    for number, question in enumerate(QUESTIONS, start=1):
        asked = f"{number:2d} {' '.join(f'{k}={v}' for k, v in question.items())}: "
        if not first <= number <= last or asked in told:
            continue
        line = asked + ("; ".join(wrong(question)) or "ok")
        print(line, flush=True)
        told += line + "\n"
        if done is not None:
            done.write_text(told, encoding="utf-8")
    failed = [line for line in told.splitlines() if not line.endswith(": ok")]
    print(f"{len(failed)} of {len(told.splitlines())} questions fail")
    sys.exit(min(len(failed), 1))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *map(Path, sys.argv[3:4]))
