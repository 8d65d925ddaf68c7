"""The host's time per request and before the engine, in plans and in the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from planner import plan
from planner.catalog import gpu, model
from planner.catalog.profiles import estimated_profile, profile, served_by
from planner.queueing.mixed.replica import MixedReplica
from planner.simulate.arrivals import Arrival
from planner.simulate.pool import simulate
from planner.simulate.presets import PoolEngines
from planner.simulate.traffic import SampledTraffic

ITERATION = estimated_profile(gpu("h100"), model("llama-3.1-8b")).iteration


@pytest.mark.parametrize("request_s", [0.0, 4e-3])
def test_a_request_takes_its_host_time_from_the_iterations(request_s: float) -> None:
    """Capacity: a request's time grows by the host's. Latency: the simulator charges the iteration that admits it."""
    lengths = dict(input_tokens=[400.0], output_tokens=[60.0])  # noqa: C408
    plain = MixedReplica(**ITERATION.to_dict(), **lengths, token_budget=2048, max_num_seqs=256)
    carried = ITERATION.with_requests(request_s, 59.0, 400.0)
    own = MixedReplica(**carried.to_dict(), **lengths, token_budget=2048, max_num_seqs=256, api_overhead_s=request_s)
    gained = 1.0 / own.max_throughput().per_s - 1.0 / plain.max_throughput().per_s
    assert gained == pytest.approx(request_s, rel=0.02)
    rate = 0.6 * own.max_throughput().per_s
    traffic = SampledTraffic(np.array([400.0]), np.array([60.0]), None, Arrival(rate), 8000)
    engines = PoolEngines(1, ITERATION, 256, 2048, request_s=request_s)
    found = simulate(traffic, engines, seeds=1, quantiles=(0.5,))
    at = own.predict(rate, quantiles=(0.5,))
    # the closed form's own error at this load
    assert at.ttft_s[0] == pytest.approx(found.quantile("ttft_s", 0.5).value, rel=0.1)
    assert at.tpot_s[0] == pytest.approx(found.quantile("tpot_s", 0.5).value, rel=0.05)


def test_engines_have_defaults_and_options_override_them() -> None:
    kernels = profile("llama-3-8b-a100-80gb-tp1")
    assert served_by(kernels).request_s > 0.0
    asked = {"slo": 5.0, "burst": "poisson", "pools": 1, "rate": 2.0}
    usual = plan("azure", **asked).pools[0]
    without = plan("azure", **asked, api_overhead=0.0, request_time=0.0).pools[0]
    assert usual.quantile("ttft_s", 0.5) - without.quantile("ttft_s", 0.5) > 0.014
    slow = plan("azure", **asked, api_overhead="200ms").pools[0]
    assert slow.quantile("ttft_s", 0.5) - usual.quantile("ttft_s", 0.5) == pytest.approx(0.2 - 0.014, rel=1e-6)
    other = plan("azure", **asked, engine="sglang").pools[0]
    assert other.quantile("tpot_s", 0.5) != usual.quantile("tpot_s", 0.5)
