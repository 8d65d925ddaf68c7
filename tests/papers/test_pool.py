"""A simulated pool: stable or not, the same for a seed, honest about what it cannot say."""

from __future__ import annotations

import json

import numpy as np
import pytest

from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.papers.presets import PoolEngines
from planner.papers.traffic import SampledTraffic, Sent, arrival_times
from tests.papers.asked import asked, simulate, simulate_pool

MODEL = IterationModel(t0=1.9e-3, w=5.1e-3, b=2.35e-5, c=4.7e-6, h=9.6e-7, g=5e-8, a=7e-10)
INPUTS, OUTPUTS, WEIGHT = [300.0, 1500.5, 4000.0], [100.0, 250.0, 60.0], [0.5, 0.3, 0.2]


def run(rate: float = 40.0, **changes: object):
    keywords: dict = dict(  # noqa: C408
        count=4, iteration=MODEL, slots=128, token_budget=2048, kv_tokens=400_000, requests=8000, seeds=2
    )
    keywords.update(changes)
    return simulate_pool(INPUTS, OUTPUTS, WEIGHT, rate, **keywords)


def test_same_seed_same_numbers_and_other_seed_others() -> None:
    assert run(routing="jsq").to_dict() == run(routing="jsq").to_dict()
    assert run(seeds=[1]).ttft_mean_s.value != run(seeds=[2]).ttft_mean_s.value


def test_numbers_of_a_seed_are_pinned() -> None:
    """From the first run: a change of the draws or of the order in which they are made shows here."""
    rng = np.random.Generator(np.random.PCG64(7))
    times = arrival_times(2.0, 3, rng)
    expected = np.cumsum(np.random.default_rng(7).exponential(0.5, 3))
    assert times == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("routing", ["random", "jsq", "central"])
@pytest.mark.parametrize("preset", ["mixed", "paged", "slots"])
def test_everybody_is_accounted_for(preset: str, routing: str) -> None:
    model = IterationModel(t0=8e-3, h=6.5e-4) if preset == "slots" else MODEL
    result = run(20.0, preset=preset, routing=routing, iteration=model, requests=2000)
    assert result.completed + result.rejected + result.pending == result.sent == 4000
    assert result.stable and result.pending == 0
    assert json.loads(json.dumps(result.to_dict()))["preset"] == preset


def test_overload_ends_and_says_unstable() -> None:
    result = run(4000.0, requests=60_000, seeds=1)
    assert not result.stable and result.completed == 60_000
    assert any("unstable" in w for w in result.warnings)
    assert not run(rate=150.0, requests=20_000, seeds=1).stable  # gently


def test_policies_preset_agrees_with_mixed() -> None:
    fast, exact = run(requests=1500, seeds=1), run(requests=1500, seeds=1, preset="policies")
    assert fast.ttft_mean_s.value == pytest.approx(exact.ttft_mean_s.value, rel=1e-6)
    assert fast.e2e_s[0.9].value == pytest.approx(exact.e2e_s[0.9].value, rel=1e-6)


def test_too_short_for_a_percentile_is_said() -> None:
    result = run(requests=1000, seeds=1, quantiles=(0.5, 0.99))
    assert result.ttft_s[0.5].enough and not result.ttft_s[0.99].enough
    assert any("too short for P99" in w for w in result.warnings)


def test_requests_that_never_fit_are_rejected_and_a_replica_too_small_is_refused() -> None:
    result = run(kv_tokens=2000, requests=2000, seeds=1)
    assert 0 < result.rejected < 2000 and any("never fit" in w for w in result.warnings)
    with pytest.raises(InputError, match="no request fits"):
        run(kv_tokens=200)


def test_burstiness_and_overhead_and_cache_move_ttft_the_right_way() -> None:
    plain = run().ttft_s[0.9].value
    bursts = SampledTraffic(INPUTS, OUTPUTS, WEIGHT, 40.0, 8000, dispersion=((1.0, 8.0), (10.0, 30.0)))
    engines = PoolEngines(4, MODEL, slots=128, token_budget=2048, kv_tokens=400_000)
    assert simulate(bursts, engines, seeds=2).ttft_s[0.9].value > 1.1 * plain
    assert run(api_overhead_s=0.02).ttft_s[0.9].value == pytest.approx(plain + 0.02, rel=1e-9)
    assert run(cached_share=0.5).ttft_s[0.9].value < 0.8 * plain


@pytest.mark.parametrize(
    "changes,words",
    [
        ({"preset": "pagd"}, "did you mean 'paged'"),
        ({"routing": "jqs"}, "did you mean 'jsq'"),
        ({"slots": 0}, "slots"),
        ({"quantiles": (1.0,)}, "quantiles"),
        ({"rate": -1.0}, "rate_per_s"),
        ({"rate": 3.0, "cached_share": 1.0}, "cached_share"),
        ({"preset": "slots"}, "no contexts"),
    ],
)
def test_bad_input_names_the_parameter(changes: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        run(**changes)


def test_a_run_that_ends_before_its_first_crowd_is_refused() -> None:
    with pytest.raises(InputError, match="before the first of the flash crowds"):
        simulate(lambda seed: Sent(asked([], 1, 1), 0.0), PoolEngines(1, MODEL))


def test_a_hundred_thousand_requests_on_eight_replicas() -> None:
    result = run(100.0, count=8, requests=100_000, seeds=1, routing="jsq")
    assert result.completed == 100_000
