"""Plans within a bound of power: against enumeration of every fleet of a small grid, every GPU with a full batch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import planner as fo
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.report.text.plan import one_line
from planner.size.problem import FleetProblem

pytestmark = pytest.mark.usefixtures("fewer_replayed", "short_traces", "without_chances", "without_words")

FULL_W = {"h100-80gb": 600.0, "a100-80gb": 0.86 * 400.0, "l40s-48gb": 0.86 * 350.0, "l4-24gb": 0.86 * 72.0}
"""With a full batch: measured of the H100 (ML.ENERGY 3.0), of others its share of the TDP on their data sheets."""


def enumerated(inputs: PlanInputs, workload: fo.Workload, max_kw: float) -> float:
    """Cost of the cheapest fleet of the grid that the power suffices for, every pool sized on every engine."""
    problem = FleetProblem(compile_question(inputs, workload))
    problem.open_grid()
    top, best = len(problem.states) - 1, math.inf
    for count in range(1, inputs.pools + 1):
        for inner in itertools.combinations(range(1, top), count - 1):
            edges = [*itertools.pairwise((0, *inner, top))]
            for options in itertools.product(range(len(problem.options)), repeat=count):
                found = [problem.candidate(i, j, k) for (i, j), k in zip(edges, options, strict=True)]
                pools = [p for p in found if p is not None]
                if len(pools) < count:
                    continue
                watts = sum(p.gpus * FULL_W[p.option.gpu.name] for p in pools)
                if watts <= 1e3 * max_kw:
                    best = min(best, sum(p.cost_usd_per_hour for p in pools))
    return best


# both methods, and either pair of types
@pytest.mark.parametrize("seed", range(4))
def test_the_cheapest_fleet_within_a_power(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = np.maximum(np.rint(rng.lognormal(6.5, 1.0, 60)), 16.0)
    outputs = np.maximum(np.rint(rng.lognormal(4.5, 0.8, 60)), 4.0)
    workload = fo.Workload.from_arrays(inputs, outputs, arrival_rate_per_s=50.0)
    low, high = np.quantile(workload.total_tokens, [0.4, 0.8])
    asked: dict[str, Any] = {
        "e2e": 200.0,
        "method": "mgc" if seed % 3 == 0 else "occupancy",
        "gpu": ["h100", "l40s"] if seed % 2 else ["a100", "l4"],
        "pools": 2,
        "boundaries": [float(low), float(high)],
        "gammas": [1.0],
        "tp": 1,
        "burst": "poisson",
        "max_evaluations": 0,
        "confidence": 0.5,
        "rate": float(np.exp(rng.uniform(4.0, 5.5))),
    }
    free = fo.plan(workload, **asked)
    drawn = sum(p.gpus * FULL_W[p.gpu] for p in free.pools) / 1e3
    question = PlanInputs.from_dict({**asked, "cdf": "own"})
    for share in (1.001, 0.9, 0.7):
        best = enumerated(question, workload, share * drawn)
        if math.isinf(best):
            with pytest.raises(fo.InfeasibleError, match=r"no fleet within .* kW serves"):
                fo.plan(workload, **asked, max_kw=share * drawn)
            continue
        within = fo.plan(workload, **asked, max_kw=share * drawn)
        # power is counted in 2,000 parts, rounded up
        assert best - 1e-9 <= within.cost_usd_per_hour <= enumerated(question, workload, 0.998 * share * drawn) + 1e-9
        assert sum(p.gpus * FULL_W[p.gpu] for p in within.pools) <= 1e3 * share * drawn


def test_a_bound_that_suffices_changes_nothing_but_the_page() -> None:
    asked: dict[str, Any] = {
        "slo": 0.5,
        "rate": 20.0,
        "pools": 1,
        "tp": 1,
        "token_budget": 2048,
        "burst": "poisson",
        "choices": False,
    }
    free, within = fo.plan("azure", **asked), fo.plan("azure", **asked, max_kw=120)
    assert within.pools == free.pools
    from planner.report.output import table as render

    page = " ".join(render(within, 120).split())
    # Hassan et al. 2025, equation 2
    running = within.pools[0].slot_occupancy * within.pools[0].slots
    empty = math.exp(-running)
    busy = 300.0 + 300.0 / (1.0 + math.exp(4.2 - math.log2(running / (1.0 - empty))))
    here = within.gpus * (empty * 0.25 * 700.0 + (1.0 - empty) * busy)
    assert f"{within.gpus * 0.6:.3g} of 120 kW with every batch full, {here / 1e3:.3g} kW at this rate" in page
    assert "kW" not in render(free, 120) and one_line(free) == one_line(within)


@pytest.mark.usefixtures("whole_traces")
def test_the_rest_is_told_in_a_line() -> None:
    asked: dict[str, Any] = {
        "slo": 0.5,
        "rate": 20.0,
        "pools": 1,
        "tp": 1,
        "token_budget": 2048,
        "burst": "poisson",
        "choices": False,
    }
    with pytest.raises(fo.InfeasibleError, match="no fleet within 1 kW serves 20 requests/s") as caught:
        fo.plan("azure", **asked, max_kw=1)
    kept = float(caught.value.relaxations[0].split("--max-kw ")[1].split(":")[0])
    assert fo.plan("azure", **asked, max_kw=kept).gpus == fo.plan("azure", **asked).gpus
    with pytest.raises(fo.InfeasibleError, match="no fleet within the inventory"):
        # a sample of the requests fits into four, all of them do not
        fo.plan("azure", slo=0.5, rate=20.0, pools=1, tp=1, token_budget=2048, choices=False, inventory={"h100": 4})
    with pytest.raises(fo.InputError, match="max_kw: must be positive"):
        fo.plan("azure", **asked, max_kw=-3)
    with pytest.raises(fo.InputError, match="max_kw: stands beside inventory, and the search keeps to one of them"):
        fo.plan("azure", **asked, max_kw=120, inventory={"h100": 8})
    with pytest.raises(fo.InfeasibleError, match=r"no fleet within 0\.5 kW"):
        fo.plan("azure", slo=1.0, rate=20.0, shape="disaggregated", tp=1, token_budget=2048, max_kw=0.5, choices=False)
