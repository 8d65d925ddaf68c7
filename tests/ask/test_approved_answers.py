"""Answers to tiny questions are those approved (tests/golden/make_advice.py), and follow from their formulas worked out anew."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.ask import choices as of_choices
from planner.ask.replica import SchedulerReplica, mixed_cost_known, scheduler_replica
from planner.choices import Choice
from planner.errors import InfeasibleError, InputError
from planner.promise import Promise
from planner.question.options import PlanInputs
from tests.ask.of_replica import batching, stability, wait
from tests.golden.make_advice import ANSWERS, KINDS, QUICK, answers, replicas, work

pytestmark = pytest.mark.usefixtures("without_chances", "without_words")

APPROVED = json.loads(ANSWERS.read_text(encoding="utf-8"))


def alike(found: Any, wanted: Any, where: str = "") -> None:
    """The same words and whole numbers, and others to five digits."""
    assert type(found) is type(wanted) or {type(found), type(wanted)} == {int, float}, where
    if isinstance(wanted, dict):
        assert list(found) == list(wanted), where
        for key, value in wanted.items():
            alike(found[key], value, f"{where} {key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for k, value in enumerate(wanted):
            alike(found[k], value, f"{where} {k}")
    else:
        assert found == (pytest.approx(wanted, rel=1e-5) if isinstance(wanted, float) else wanted), where


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_as_approved(kind: str) -> None:
    alike(answers(kind), APPROVED[kind], kind)


@pytest.fixture(scope="module")
def dear() -> SchedulerReplica:
    return replicas()["dear"]


def test_limits_follow_from_their_formulas(dear: SchedulerReplica) -> None:
    """Separate batches and the work that no scheduler can avoid, request by request."""
    load, m = dear.workload, dear.profile.iteration
    separate: dict[int, float] = {}
    for chunk in (128, 256, 512, 1024, 2048, 4096, 8192):
        total = 0.0
        for inputs, weight in zip(load.input_tokens, load.weight, strict=True):
            at = 0.0
            while at < inputs:
                new = min(float(chunk), inputs - at)
                total += weight * float(m.time(0.0, 0.0, new, sum(at + k + 1 for k in range(int(new)))))
                at += new
        n = float(dear.slots)
        separate[chunk] = total + dear.mean_decodes * float(m.time(n, n * dear.context, context_max=dear.context)) / n
    best = min(separate, key=lambda c: separate[c])
    found = stability(dear)
    by_name = {b.name: b for b in found.bounds}
    assert by_name[f"separate batches, chunks of {best:,}"].replica_per_s == pytest.approx(1.0 / separate[best])
    D = np.maximum(load.output_tokens - 1.0, 0.0)
    kv = float(
        load.weight
        @ np.array([sum(l + j for j in range(1, int(d) + 1)) for l, d in zip(load.input_tokens, D, strict=True)])
    )
    pairs, tokens = (
        float(load.weight @ (load.input_tokens * (load.input_tokens + 1) / 2)),
        float(load.weight @ (load.input_tokens + D)),
    )
    share = kv / dear.kv_tokens
    least = (
        share * m.t0
        + max(share * m.w, m.b * tokens)
        + m.c * tokens
        + m.h * float(load.weight @ D)
        + m.g * kv
        + m.a * pairs
    )
    assert by_name["any scheduler on this memory"].replica_per_s == pytest.approx(1.0 / least)
    for bound in found.bounds:
        assert bound.fleet_per_s == pytest.approx(found.replicas * bound.replica_per_s)
        assert bound.load == pytest.approx(dear.rate_per_s / bound.fleet_per_s)
    engine = found.bounds[0]
    assert found.replicas == math.ceil(dear.rate_per_s / (0.85 * engine.replica_per_s))
    assert found.slack == pytest.approx(1.0 - engine.load)


def test_batching_follows_from_its_costs(dear: SchedulerReplica) -> None:
    found = batching(dear)
    e, m, c, p = found.exclusive, found.mixed, found.crossover, found.parameters
    mean_input, mean_output = dear.workload.mean_input, dear.workload.mean_output
    per_request = (p["alpha_p_per_phase_s"] + p["alpha_d_s"] * e["phase_iterations"]) / max(1.0, e["theta"] * e["N"])
    per_request += p["beta_d_s_per_sequence"] * mean_output + p["beta_p_s_per_token"] * mean_input
    assert e["throughput_linear_form_per_s"] == pytest.approx(1.0 / per_request)
    assert m["decode_share"] == pytest.approx(mean_output / (mean_input + mean_output))
    assert m["N"] == min(dear.slots, math.floor(dear.token_budget * (1 + mean_output) / (mean_input + mean_output)))
    even = (1.0 / e["throughput_per_s"] - m["alpha_MB_s"] * (1.0 + mean_output) / m["N"]) / (mean_input + mean_output)
    assert c["break_even_beta_MB_s_per_token"] == pytest.approx(even)
    assert c["gap_s_per_token"] == pytest.approx(m["beta_MB_s_per_token"] - c["beta_EB_s_per_token"])
    faster = "mixed" if m["throughput_per_s"] > e["throughput_per_s"] else "exclusive"
    margin = abs(math.log(m["throughput_per_s"] / e["throughput_per_s"]))
    assert found.verdict == faster
    assert found.certainty == f"{'beyond' if margin > 0.03 + 0.03 else 'within'} the profile's error"
    assert mixed_cost_known(dear.profile) and not mixed_cost_known(replicas()["plain"].profile)


def test_wait_keeps_the_work_of_the_traffic(dear: SchedulerReplica) -> None:
    found = wait(dear)
    load, D = dear.workload, np.maximum(dear.workload.output_tokens - 1.0, 0.0)
    work = float(load.weight @ ((D + 1.0) * (load.input_tokens + 0.5 * D)))
    rate = dear.rate_per_s / found.replicas
    assert found.equilibrium["slack"] == pytest.approx(1.0 - found.d1_s_per_token * rate * work, rel=1e-6)
    assert found.equilibrium["iteration_s"] == pytest.approx(found.d0_s / found.equilibrium["slack"], rel=1e-6)
    assert found.equilibrium["memory_tokens"] == pytest.approx(rate * found.equilibrium["iteration_s"] * work, rel=1e-6)
    assert found.equilibrium["output_tokens_per_s"] == pytest.approx(rate * float(load.weight @ D))
    assert sum(t["rate_per_s"] for t in found.types) == pytest.approx(rate, rel=1e-6)


def test_limits_dearer_than_three_times_the_knees_are_no_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {1.1: 30.5, 1.3: 29.5, 1.5: 10.0, 2.0: 9.5, 3.0: 9.0, 4.0: 8.5}

    def sized(choice: Choice, *asked: object) -> Choice:
        return replace(choice, cost_usd_per_hour=None if choice.limit_s is None else costs[choice.limit_s])

    monkeypatch.setattr(of_choices, "_size", sized)
    error = InfeasibleError("never", relaxations=("a", "b"), promise=Promise("ttft_s", 0.5), best_s=1.0)
    found = of_choices.ways_out(error, PlanInputs.from_dict({**QUICK, "slo": 0.5}), work())
    assert found.knee_s == 1.5
    assert [(row.kind, row.limit_s) for row in found.rows] == [("promise", s) for s in (1.3, 1.5, 2.0, 3.0, 4.0)]
    assert "1.5 s" in error.relaxations[0] and error.relaxations[1:] == ("b",)


def test_one_kind_of_replica_whose_prompts_fit() -> None:
    with pytest.raises(InputError, match="token_budget: several values: this command looks at one kind of replica"):
        scheduler_replica(work(), {"gpu": "h100", "token_budget": [512, 1024]})
    small = replace(replicas()["plain"], kv_tokens=500.0)
    told = [b.because for b in stability(small, replicas=1).bounds if b.kind == "engine"]
    assert len(told) == 1 and told[0].startswith("bound by the longest prompt does not fit;")
    with pytest.raises(InputError, match="no number of replicas sustains"):
        stability(small)
