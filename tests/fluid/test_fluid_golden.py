"""Every closed form against values of 30 digits computed independently with mpmath (tests/golden/make_fluid_formulas.py).

Each value names the equation it comes from. Three times over: exact inputs (text), doubles, and arrays where taken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner.fluid as fluid

CASES = json.loads((Path(__file__).parents[1] / "golden" / "fluid_formulas.json").read_text())
BAR = 1e-12
# a double near the end of its range carries less than the text: 1 - theta, N at the printed slack
FROM_DOUBLE = {"rad_alpha": 1e-9, "N_crossover": 1e-9, "crossover_rhs_closed": 1e-9}


def age_aware(inputs: Mapping[str, Any]) -> Any:
    law, ratio = inputs["law"], inputs["alpha_ratio"]
    if law == "geometric":
        p, t = float(Fraction(inputs["p"])), np.arange(inputs["n"])
        return fluid.theta_age_aware(np.where(t > 0, np.exp(t * np.log1p(-p)), 1.0), ratio)
    if law == "sample":
        outputs = inputs["outputs"]
        return fluid.theta_age_aware(outputs=range(32, 97) if isinstance(outputs, str) else outputs, alpha_ratio=ratio)
    p0, eta = (float(Fraction(inputs[k])) for k in ("p0", "eta"))
    hazard = np.clip(p0 + eta * np.arange(1, inputs["n"]), 0.0, 1.0)
    return fluid.theta_age_aware(np.concatenate([[1.0], np.cumprod(1.0 - hazard)]), ratio)


def evaluate(case: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    if case["quantity"] == "theta_age_aware":
        return age_aware(inputs)
    return getattr(fluid, case["quantity"])(**inputs)


def worst(got: Any, expected: Any) -> float:
    """Largest relative error in a nested result; a wrong kind of answer counts as infinite."""
    if isinstance(expected, dict):
        return max(worst(getattr(got, key), value) for key, value in expected.items())
    if isinstance(expected, list):
        return max(map(worst, got, expected)) if len(got) == len(expected) else math.inf
    if expected is None:  # nothing sustains it: a defined limit
        return 0.0 if got in (0.0, math.inf) else math.inf
    if isinstance(expected, (bool, int)):
        return 0.0 if got == expected else math.inf
    value = float(expected)
    if math.isinf(value):
        return 0.0 if got == value else math.inf
    return abs(got - value) / abs(value) if value else abs(got)


def name(case: Mapping[str, Any]) -> str:
    return str(case["quantity"])


@pytest.mark.parametrize("quantity", sorted({c["quantity"] for c in CASES}))
def test_golden_from_exact_inputs(quantity: str) -> None:
    for case in CASES:
        if case["quantity"] != quantity:
            continue
        got = evaluate(case, case["inputs"])
        if case["expected"] is None:
            assert got.stable is False, case
        else:
            assert worst(got, case["expected"]) <= BAR, (case["inputs"], got, case["expected"])


def doubled(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: doubled(v) for k, v in value.items()}
    if isinstance(value, list):
        return [doubled(v) for v in value]
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


@pytest.mark.parametrize("quantity", sorted({c["quantity"] for c in CASES}))
def test_golden_from_doubles(quantity: str) -> None:
    for case in CASES:
        if case["quantity"] != quantity:
            continue
        got = evaluate(case, doubled(case["inputs"]))
        if case["expected"] is None:
            assert got.stable is False, case
        else:
            bar = FROM_DOUBLE.get(quantity, BAR)
            assert worst(got, case["expected"]) <= bar, (case["inputs"], got, case["expected"])


ARRAYS = {
    "T_D_SA": "i", "theta0": "g", "TP_EB": "k", "TP_EB_opt": "N", "dtheta_first_order": "eta",
    "N_bounds": "C", "fluid_peak_per_slot": "theta", "vbar": "p0", "TP_MB": "N",
    "crossover_rhs_closed": "N", "N_crossover": "beta_MB", "N_corr": "C", "slai_last_time": "e",
}  # fmt: skip


@pytest.mark.parametrize("quantity", sorted(ARRAYS))
def test_golden_from_arrays(quantity: str) -> None:
    for case in CASES:
        if case["quantity"] != quantity:
            continue
        inputs = doubled(case["inputs"])
        inputs[ARRAYS[quantity]] = np.array([inputs[ARRAYS[quantity]]] * 2)
        got = evaluate(case, inputs)
        expected = case["expected"]
        parts = [(getattr(got, k), v) for k, v in expected.items()] if isinstance(expected, dict) else [(got, expected)]
        for value, target in parts:
            value = np.asarray(value)
            assert value.shape in ((2,), ()), quantity
            single = value.ravel()[-1]
            # cancellation between terms of nearly equal size is all that a double loses
            assert worst(single, target) <= (1e-9 if quantity in FROM_DOUBLE else BAR), (case, single)


def test_every_golden_quantity_has_a_function_of_its_name() -> None:
    assert len(CASES) == 252
    assert all(callable(getattr(fluid, c["quantity"])) for c in CASES)


def test_package_lists_its_names() -> None:
    assert {"theta0", "N_corr", "wait_min_thresholds", "controller_update"} <= set(dir(fluid))
    with pytest.raises(AttributeError, match="no attribute"):
        _ = fluid.nothing_of_the_kind
