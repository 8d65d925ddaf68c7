"""What a question becomes before it is answered."""

from __future__ import annotations

import numpy as np
import pytest

from planner import Workload
from planner.question.compiled import FEWER_ROWS, compile_question
from planner.question.options import PlanInputs


def test_many_sampled_requests_become_few_rows_of_the_same_law() -> None:
    dice = np.random.default_rng(5)
    inputs, outputs = (np.ceil(dice.lognormal(mean, 1.0, 250_000)) for mean in (6.5, 5.0))
    drawn = Workload.from_arrays(inputs, outputs, arrival_rate_per_s=100.0)
    traffic = compile_question(PlanInputs.from_dict({"slo": 0.5}), drawn).traffic
    few = traffic.workload
    assert few.rows <= FEWER_ROWS
    assert any("250,000 different requests" in str(remark) for remark in traffic.changes)
    assert traffic.rate_per_s == 100.0
    # sums are kept but for points of next to no weight, and the distribution of the total at the ends of every bin
    assert few.mean_total == pytest.approx(drawn.mean_total, rel=1e-6)
    for q in (0.5, 0.9, 0.99):
        assert few.quantile(q, "input") == pytest.approx(np.quantile(inputs, q), rel=1e-3)
    ends = np.unique(few.total_tokens)
    assert few.cdf(ends) == pytest.approx(np.asarray(drawn.cdf(ends)), abs=1e-9)
