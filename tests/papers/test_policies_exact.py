"""Every policy against small deterministic cases computed by two other programs: iteration by iteration."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest

from planner.papers.run import Run, run_policy
from planner.predict.engine import Request
from tests.papers.machines import iteration_time


def number(value):
    """Fractions are strings in the file."""
    if isinstance(value, dict):
        return {k: number(v) for k, v in value.items()}
    if isinstance(value, list):
        return [number(v) for v in value]
    try:
        return float(Fraction(value)) if isinstance(value, str) else value
    except ValueError:
        return value


def run_case(case: dict, defaults: dict) -> Run:
    parameters = number(case.get("iteration_params", defaults[case["iteration_time"]]))
    requests = [
        Request(i, number(r[0]), r[1], r[2], r[3] if len(r) > 3 else 0, number(r[4]) if len(r) > 4 else math.inf)
        for i, r in enumerate(case["requests"])
    ]
    return run_policy(
        requests,
        case["policy"],
        iteration_time(case["iteration_time"], parameters),
        number(case["params"]),
        capacity=case["kv_capacity"] or math.inf,
    )


def test_every_case_of_the_exact_file(shared_data: Path, log) -> None:
    truth = json.loads((shared_data / "policies" / "truth_exact.json").read_text())
    assert len(truth["cases"]) >= 35
    for case in truth["cases"]:
        log.clear()
        check(case, run_case(case, truth["iteration_params_default"]), log)


def check(case: dict, run: Run, log: list) -> None:
    name, expected = case["id"], case["expected"]
    # of two nodes one after the other
    for theirs, ours in zip(
        expected["log"], sorted(log, key=lambda entry: entry.scheduler == "DecodeNode"), strict=True
    ):
        assert (theirs["start"], theirs["duration"]) == pytest.approx((ours.start, ours.duration), abs=1e-9), name
        assert tuple(theirs.get("decode", ())) == ours.decode, (name, ours)
        assert tuple(map(tuple, theirs.get("prefill", ()))) == ours.prefill, (name, ours)
        assert tuple(theirs.get("evicted", ())) == ours.evicted, (name, ours)
        assert theirs.get("kv_held", ours.held) == ours.held, (name, ours)
    for theirs in expected["requests"]:
        ours = run.requests[theirs["request"]]
        for key, value in (("first_token_s", ours.first_token_s), ("done_s", ours.done_s)):
            assert (theirs[key] is None) == math.isnan(value), (name, ours, key)
            assert theirs[key] is None or theirs[key] == pytest.approx(value, abs=1e-9), (name, ours, key)
        assert theirs["token_gaps_s"] == pytest.approx(ours.gaps, abs=1e-9), (name, ours)
        assert theirs["evictions"] == ours.evictions, (name, ours)
    totals = (run.iterations, run.evictions, run.peak_held, run.unfinished, run.end_s)
    keys = ("iterations", "evictions", "peak_kv_tokens", "unfinished", "end_s")
    assert totals == tuple(expected[k] for k in keys), name
    if "controller" not in expected:
        return
    policy = run.policies[0]
    updates = policy.exclusive.updates if case["policy"] == "eb_plus" else policy.updates
    for theirs, ours in zip(expected["controller"], updates, strict=True):
        for key, value in theirs.items():
            assert value == pytest.approx(getattr(ours, key), abs=1e-9), (name, key)
    if "mode_switches" in expected:
        modes = (policy.iterations["mixed"], policy.iterations["exclusive"], policy.mode_switches)
        assert modes == tuple(expected[k] for k in ("mixed_iterations", "exclusive_iterations", "mode_switches")), name
