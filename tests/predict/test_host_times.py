"""The host's time per request and before the engine, in closed forms, replays and plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner import plan
from planner.catalog import gpu, model
from planner.catalog.profiles import estimated_profile, profile, served_by
from planner.predict.bounds import max_throughput
from planner.predict.closed import ClosedReplica
from planner.predict.records import Replicas, Requests, keys_of
from planner.predict.run import replay
from planner.workload.pools import Lengths
from tests.papers.asked import simulate_pool

pytestmark = pytest.mark.usefixtures("fewer_replayed", "short_traces", "without_chances", "without_words")

ITERATION = estimated_profile(gpu("h100"), model("llama-3.1-8b")).iteration
ONE = Replicas(1, ITERATION, slots=256.0, token_budget=2048.0)


def alike(input_tokens: float, output_tokens: float) -> Lengths:
    return Lengths(np.array([input_tokens]), np.array([output_tokens]), np.ones(1), np.zeros(1))


@pytest.mark.parametrize("request_s", [0.0, 4e-3])
def test_a_request_takes_its_host_time_from_the_iterations(request_s: float) -> None:
    """Capacity: a request's time grows by the host's. Latency: a replay charges the iteration that admits it."""
    lengths, engine = alike(400.0, 60.0), replace(ONE, request_s=request_s)
    plain, own = max_throughput(lengths, ONE), max_throughput(lengths, engine)
    assert 1.0 / own.per_s - 1.0 / plain.per_s == pytest.approx(request_s, rel=0.02)
    rate = 0.6 * own.per_s
    found = simulate_pool(
        [400.0], [60.0], None, rate, requests=8000, quantiles=(0.5,), count=1, iteration=ITERATION, slots=256,
        token_budget=2048, request_s=request_s,
    )  # fmt: skip
    at = ClosedReplica(lengths, engine).at(rate)
    # the closed form's own error at this load
    assert at.quantiles("ttft_s", (0.5,))[0] == pytest.approx(found.quantile("ttft_s", 0.5).value, rel=0.1)
    assert at.quantiles("tpot_s", (0.5,))[0] == pytest.approx(found.quantile("tpot_s", 0.5).value, rel=0.05)


def test_engines_have_defaults_and_options_override_them() -> None:
    kernels = profile("llama-3-8b-a100-80gb-tp1")
    assert served_by(kernels).request_s > 0.0
    asked = {"slo": 5.0, "burst": "poisson", "pools": 1, "rate": 2.0, "gpu": "h100", "tp": 1, "token_budget": 2048}
    usual = plan("azure", **asked).pools[0]
    without = plan("azure", **asked, api_overhead=0.0, request_time=0.0).pools[0]
    assert usual.quantile("ttft_s", 0.5) - without.quantile("ttft_s", 0.5) > 0.014
    slow = plan("azure", **asked, api_overhead="200ms").pools[0]
    assert slow.quantile("ttft_s", 0.5) - usual.quantile("ttft_s", 0.5) == pytest.approx(0.2 - 0.014, rel=1e-6)
    other = plan("azure", **asked, engine="sglang").pools[0]
    assert other.quantile("tpot_s", 0.5) != usual.quantile("tpot_s", 0.5)


def test_prompts_with_iterations_of_their_own() -> None:
    """What SGLang runs: fewer requests fit into an hour, and decodes stand still while a prompt is computed."""
    lengths, shared = alike(2000.0, 200.0), replace(ONE, token_budget=8192.0)
    own = replace(shared, iteration=replace(ITERATION, apart=1.0))
    limit = max_throughput(lengths, own)
    assert limit.per_s < max_throughput(lengths, shared).per_s
    number = np.arange(3000)
    key = keys_of(number, np.zeros_like(number), 1)
    columns = np.full(3000, 2000.0), np.full(3000, 200.0), np.zeros(3000), key
    done = np.sort(replay(Requests(np.zeros(3000), *columns), own).done_s)
    # from when it is full until the last requests empty it
    assert 2000 / (done[2500] - done[500]) == pytest.approx(limit.per_s, rel=0.05)
    sent = Requests(number / (0.6 * limit.per_s), *columns)
    apart, together = (replay(sent, engine) for engine in (own, shared))
    assert np.mean(apart.e2e_s - apart.ttft_s) > np.mean(together.e2e_s - together.ttft_s)


@pytest.mark.parametrize("rate", [1.0, 40.0])
def test_a_request_after_a_pause_finds_the_front_end_cold(rate: float) -> None:
    """Of Poisson arrivals a share exp(-rate x 0.1 s) comes after a tenth of a second without any."""
    lengths, wake_s = alike(400.0, 60.0), 0.01
    warm, cold = (ClosedReplica(lengths, replace(ONE, wake_s=w)).at(rate).mean("ttft_s") for w in (0.0, wake_s))
    assert cold - warm == pytest.approx(wake_s * np.exp(-0.1 * rate), abs=1e-4)
