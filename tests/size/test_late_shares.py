"""What one replay says of several shares of late requests is what a replay of its own says of each."""

from __future__ import annotations

import itertools

import pytest

from planner.promise import Promise
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.size.problem import FleetProblem
from planner.workload.workload import Workload

pytestmark = pytest.mark.usefixtures("fewer_replayed", "short_traces", "without_chances", "without_words")

LEVELS = (0.5, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)


OTHER = pytest.mark.long("the other rate of each metric; one in CI")


@pytest.mark.parametrize(
    ("metric", "rate"),
    [
        ("ttft_s", 20.0),
        ("e2e_s", 60.0),
        ("tpot_s", 20.0),
        *(pytest.param(*asked, marks=OTHER) for asked in (("ttft_s", 60.0), ("e2e_s", 20.0), ("tpot_s", 60.0))),
    ],
)
def test_other_shares_are_answered_as_a_new_replay_answers_them(metric: str, rate: float) -> None:
    """Of a trace by turns, and of a sample; from the loosest share on, from the tightest on, each of them alone."""
    inputs = PlanInputs.layered([({"cdf": "azure", "slo": 0.5, "rate": rate, "pools": 1, "tp": 1}, "")])
    built = FleetProblem(compile_question(inputs, Workload.from_file("azure"))).build(0, 1, 0)
    assert built is not None
    limit = {"ttft_s": 0.3, "e2e_s": 3.0, "tpot_s": 0.015}[metric]
    asked = [(Promise(metric, limit, q),) for q in LEVELS]
    seen = set()
    for n in (max(round(rate / per), 1) for per in (9.0, 7.0, 5.0, 3.0)):
        alone = []
        for promise in asked:
            fresh = built.model.grown("users")
            assert fresh is not None
            alone.append(fresh.keeps(rate, n, promise))
        for order in (range(len(LEVELS)), range(len(LEVELS))[::-1]):
            fresh = built.model.grown("users")
            assert fresh is not None
            told = {k: fresh.keeps(rate, n, asked[k]) for k in order}
            assert [told[k] for k in range(len(LEVELS))] == alone
        # a tighter share is never kept where a looser one is broken
        assert all(looser >= tighter for looser, tighter in itertools.pairwise(alone))
        seen |= set(alone)
    assert seen == {True, False}
