"""Requests drawn from a workload's lengths, and the options that ask for them."""

from __future__ import annotations

import math

import numpy as np
import pytest

import planner as fo
from planner.errors import InputError
from planner.predict.traffic import FleetTraffic
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.workload.pools import State
from planner.workload.sending import paced_clients
from planner.workload.workload import Workload

LENGTHS = Workload.from_arrays([100.0, 2000.0], [50.0, 5.0], weight=[0.75, 0.25])


@pytest.mark.parametrize("paced", [None, 2000])
def test_drawn_requests_have_the_lengths_and_the_arrivals_asked_for(paced: int | None) -> None:
    burst = "poisson" if paced is None else f"paced:{paced}"
    inputs = PlanInputs.from_dict({"cdf": "lengths", "slo": 1.0, "rate": 8.0, "burst": burst})
    question = compile_question(inputs, LENGTHS)
    moments = question.traffic.moments(512)
    law = moments.law(State(0.0), State(moments.top))
    assert law is not None
    traffic = FleetTraffic(question.traffic).of(law)
    laid = traffic.lay(8.0, 1, "random")
    requests = traffic.requests(laid)
    assert requests.size / laid.span_s == pytest.approx(8.0, rel=0.02)
    assert np.mean(requests.input_tokens == 100.0) == pytest.approx(0.75, abs=1e-3)
    late = requests.input_tokens[laid.times_s > 0.5 * laid.times_s[-1]]
    assert np.mean(late == 100.0) == pytest.approx(0.75, abs=0.01)
    for window in (0.5, 250.0):
        # paced: even over gaps of 250 s, Poisson within them, whose 500 windows come again and again; four standard errors
        counts = np.bincount((laid.times_s / window).astype(int))[:-1]
        dispersion = counts.var() / counts.mean()
        if paced and window == 250.0:
            assert dispersion < 0.01
        else:
            assert dispersion == pytest.approx(1.0, abs=4.0 * math.sqrt(2.0 / min(counts.size, 500)))


@pytest.mark.long("a plan for each way to send")
def test_what_clients_do_moves_a_prediction_the_way_it_should() -> None:
    """At given replicas: a crowd makes the first token later, even arrivals and a limit in flight sooner; the limit is told."""
    asked = {"slo": "50s", "rate": 12.0, "min_replicas": 2, "pools": 1, "tp": 1, "token_budget": 2048}
    plans = {
        name: fo.plan("azure-conv", **asked, **more)  # type: ignore[arg-type]
        for name, more in (
            ("trace", {}), ("crowd", {"surge": "3x/30s"}), ("paced", {"burst": "paced:8"}), ("limit", {"in_flight": 20}),
        )
    }  # fmt: skip
    p99 = {name: plan.pools[0].quantile("ttft_s", 0.99) or 0.0 for name, plan in plans.items()}
    assert all(plan.pools[0].replicas == 2 for plan in plans.values())
    assert p99["paced"] < p99["trace"] < p99["crowd"]
    assert p99["limit"] < p99["trace"]
    assert any("with their clients on average" in w for w in plans["limit"].warnings)
    assert any("flash crowds of 3 times the rate for 30" in a for a in plans["crowd"].assumptions)
    assert any("8 clients that send at constant gaps" in a for a in plans["paced"].assumptions)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"surge": "3x"}, "surge: '3x' is not understood: write 3x/60s"),
        ({"surge": "1.2.3x/60s"}, "surge: '1.2.3x/60s' is not understood: write 3x/60s"),
        ({"surge": "./60s"}, "surge: './60s' is not understood"),
        ({"surge": "9" * 400 + "x/60s"}, "needs a positive factor"),
        ({"burst": "paced:" + "9" * 5000}, "none of auto, poisson, paced:N"),
        ({"burst": "paced:0"}, "none of auto, poisson, paced:N"),
        ({"in_flight": 0}, "in_flight: must be at least 1"),
        ({"surge": "3x/60s", "method": "mgc"}, "method mgc knows Poisson arrivals alone"),
        ({"in_flight": 10, "shape": "disaggregated"}, "limit in flight are not modelled"),
    ],
)
def test_what_cannot_be_asked_is_refused(more: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        fo.plan("azure-conv", slo=1.0, rate=5.0, **more)  # type: ignore[arg-type]


def test_paced_clients_are_read() -> None:
    assert (paced_clients("paced:12"), paced_clients("paced:x"), paced_clients("poisson")) == (12, None, None)
