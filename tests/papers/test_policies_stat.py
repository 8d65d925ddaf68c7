"""Random runs of every policy against the statistics of another program, within four standard errors."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("policy_cases.py")
RUNS = 1
# one case per policy; `python tests/papers/policy_cases.py FILE` runs all of them 16 times
CHOSEN = (
    "request_level-2",
    "prefill_first-3",
    "mixed-3",
    "eb-3",
    "eb_star-4",
    "eb_plus-1",
    "rad-2",
    "cycle_prefill_all-1",
    "slai-3",
    "wait-2",
    "nested_wait-1",
    "fcfs_restart-2",
    "distserve-1",
)


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("policy_cases", CASES)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN)
def test_statistics_agree(name: str, benchmark, shared_data: Path) -> None:
    cases = json.loads((shared_data / "policies" / "truth_stat.json").read_text())["cases"]
    case = next(c for c in cases if c["id"] == name)
    rows = benchmark.compare(case, benchmark.run_case(case, RUNS, first_seed=101))
    assert all(row[3] <= 1.0 for row in rows), rows


def test_a_statistic_that_was_not_computed_is_a_failure(benchmark) -> None:
    case = {"expected": {"mean_k": {"mean": 3.0, "sd_between_runs": 0.1}}, "runs": 16}
    assert benchmark.compare(case, [{}])[0][3] > 1.0
    assert benchmark.compare(case, [{"mean_k": float("nan")}, {"mean_k": 3.0}])[0][3] > 1.0
    assert benchmark.compare(case, [{"mean_k": 3.0}, {"mean_k": 3.01}])[0][3] < 1.0
