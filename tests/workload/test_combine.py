"""Mixing, scaling, drift, archetypes."""

from __future__ import annotations

import numpy as np
import pytest

from planner.errors import InputError
from planner.workload.arrivals import Arrivals
from planner.workload.combine import WorkloadSummary, archetype, drift, mix, scaled
from planner.workload.hours import load_profile, profile_names
from planner.workload.workload import Workload


def test_a_mix_has_the_weighted_moments_and_the_summed_rate() -> None:
    conv, code = Workload.from_file("azure-conv"), Workload.from_file("azure-code")
    both = mix([conv, code])
    share = (conv.arrivals.rate_per_s or 0.0) / (both.arrivals.rate_per_s or 1.0)
    assert both.mean_output == pytest.approx(share * conv.mean_output + (1 - share) * code.mean_output)
    assert both.moment("input", 2) == pytest.approx(
        share * conv.moment("input", 2) + (1 - share) * code.moment("input", 2)
    )
    assert set(both.categories) == {"conv", "code"}
    assert dict(zip(both.categories, both.compressible, strict=True)) == {"conv": 1.0, "code": 0.0}
    # variances of independent counts add
    by_window = dict(both.arrivals.dispersion)
    assert by_window[60.0] == pytest.approx(
        share * dict(conv.arrivals.dispersion)[60.0] + (1 - share) * dict(code.arrivals.dispersion)[60.0]
    )
    # nearly the trace of both, recorded together
    assert both.iterations(512)[0] == pytest.approx(Workload.from_file("azure").iterations(512)[0], rel=0.01)


def test_weights_override_rates_and_unknown_rates_ask_for_weights() -> None:
    a = Workload.from_arrays([100], [10], name="a", arrival_rate_per_s=1.0)
    b = Workload.from_arrays([300], [30], name="b")
    with pytest.raises(InputError, match="no arrival rate known for b"):
        mix([a, b])
    m = mix([a, b], [1, 3])
    assert m.mean_input == pytest.approx(250.0)
    assert m.arrivals.rate_per_s is None
    for weights in ([1.0], [-1.0, 2.0], [0.0, 0.0]):
        with pytest.raises(InputError):
            mix([a, b], weights)


def test_categories_of_one_name_and_different_promise_stay_apart() -> None:
    a = Workload.from_arrays([1], [1], category=["chat"], compressible={"chat": 1.0}, name="a", arrival_rate_per_s=1.0)
    b = Workload.from_arrays([2], [1], category=["chat"], compressible={"chat": 0.0}, name="b", arrival_rate_per_s=1.0)
    assert mix([a, b]).categories == ("chat", "b:chat")


@pytest.mark.parametrize("name", ["azure", "lmsys"])
def test_outputs_grow_by_thirty_percent(name: str) -> None:
    w = Workload.from_file(name)
    grown = scaled(w, output_factor=1.3)
    assert grown.mean_output == pytest.approx(1.3 * w.mean_output)
    assert grown.mean_input == pytest.approx(w.mean_input)
    assert grown.cdf(grown.max_total) == pytest.approx(1.0, abs=1e-12)
    assert np.all(grown.lower_tokens <= grown.total_tokens)
    assert scaled(w).cdf([500.0, 4096.0]) == pytest.approx(w.cdf([500.0, 4096.0]))
    with pytest.raises(InputError):
        scaled(w, input_factor=0.0)


def test_drift_is_zero_only_for_the_same_and_grows() -> None:
    w = Workload.from_file("azure")
    none, little, much = drift(w, w), drift(w, scaled(w, 1.2, 1.0)), drift(w, scaled(w, 4.0, 4.0))
    assert (none.joint, none.ks_input, none.ks_output, none.ks_total, none.rate) == (0.0, 0.0, 0.0, 0.0, 1.0)
    assert 0.0 < little.joint < much.joint <= 1.0
    assert little.factor_input == pytest.approx(1.2, rel=0.02)
    assert much.mean_iterations > 3.0
    apart = drift(Workload.from_arrays([4], [4]), Workload.from_arrays([4000], [4000]))
    assert apart.joint == pytest.approx(1.0) and apart.ks_total == 1.0 and apart.rate is None


def test_archetypes_are_those_of_the_paper() -> None:
    # FleetOpt, Table 2
    assert archetype(Workload.from_file("azure"), 4096) == "I/II"
    assert archetype(Workload.from_file("lmsys"), 1536) == "I/II"
    assert archetype(Workload.from_file("agent-heavy"), 8192) == "II"
    assert archetype(Workload.from_file("long-context"), 4096) == "III"


def test_summary_states_the_papers_azure_figures() -> None:
    facts = WorkloadSummary(Workload.from_file("azure"), 4096, 1.5).to_dict()
    assert facts["split"]["share_below"] == pytest.approx(0.898, abs=5e-4)
    assert facts["split"]["band_share"] == pytest.approx(0.078, abs=5e-4)
    assert facts["lengths"]["total"]["mean"] == pytest.approx(1588, abs=0.5)
    assert facts["lengths"]["total"]["p90"] == pytest.approx(4242, rel=0.04)
    agent = Workload.from_file("agent-heavy")
    assert agent.mean_total == pytest.approx(6511, rel=1e-3)
    assert agent.cdf(8192) == pytest.approx(0.740, abs=5e-4)


def test_profiles_of_real_services() -> None:
    assert len(profile_names()) == 4
    for name in profile_names():
        arrivals = load_profile(name)
        assert isinstance(arrivals, Arrivals)
        assert np.mean(arrivals.hourly_profile) == pytest.approx(1.0, abs=1e-3)
        assert (arrivals.peak_over_mean or 0.0) >= max(arrivals.hourly_profile)
    with pytest.raises(InputError, match="did you mean 'servegen-m-mid'"):
        load_profile("servegen-m-mod")
