"""Four requests, and questions, fleets and plans about them, for tests whose values are reckoned by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

import planner as fo
from planner.question.compiled import CompiledQuestion, compile_question
from planner.question.options import PlanInputs
from planner.size.shapes.colocated import SHAPE, Colocated

INPUTS, OUTPUTS = np.array([100.0, 300.0, 1000.0, 4000.0]), np.array([10.0, 200.0, 50.0, 400.0])
FOUR = fo.Workload.from_arrays(INPUTS, OUTPUTS, name="four", arrival_rate_per_s=8.0)
ASKED: dict[str, Any] = {
    "ttft": 1.0, "tp": 1, "token_budget": 2048, "burst": "poisson", "confidence": 0.5, "rate": 60.0, "pools": 1, "cdf": "four",
}  # fmt: skip


def asked(workload: fo.Workload = FOUR, **options: Any) -> CompiledQuestion:
    """A question about them."""
    return compile_question(PlanInputs.from_dict({**ASKED, **options}), workload)


def fleet(workload: fo.Workload = FOUR, **options: Any) -> Colocated:
    """The fleet of one, of pools by length."""
    found = SHAPE.solve(asked(workload, **options)).fleet
    assert isinstance(found, Colocated)
    return found


def plan(**options: Any) -> fo.Plan:
    """The plan of one."""
    return fo.plan(FOUR, **{k: v for k, v in {**ASKED, **options}.items() if k != "cdf"})
