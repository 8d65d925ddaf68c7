"""What a question becomes before it is answered."""

from __future__ import annotations

import math

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
    # at even levels every row is within its level of those it stands for; the longest of all and the longest prompt are kept
    level = 1.0 / few.rows
    assert few.mean_total == pytest.approx(drawn.mean_total, abs=2.0 * level * drawn.max_total)
    ends = np.unique(few.total_tokens)
    assert few.cdf(ends) == pytest.approx(np.asarray(drawn.cdf(ends)), abs=2.5 * level)
    # prompts lie side by side only where totals are the same: these are a sample of so many
    for q in (0.5, 0.9, 0.99):
        assert np.mean(inputs <= few.quantile(q, "input")) == pytest.approx(
            q, abs=3.0 * math.sqrt(q * (1.0 - q) * level)
        )
