"""The joint distribution: moments, conditioning, quantiles, identity."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.workload.arrivals import Arrivals
from planner.workload.workload import Workload

lengths = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 900)), min_size=2, max_size=60)


@pytest.fixture
def sample() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.integers(1, 9000, 800), rng.integers(1, 700, 800)


def test_moments_are_those_of_numpy(sample: tuple[np.ndarray, np.ndarray]) -> None:
    inputs, outputs = sample
    w = Workload.from_arrays(inputs, outputs)
    assert w.mean_input == pytest.approx(inputs.mean(), rel=1e-13)
    assert w.mean_output == pytest.approx(outputs.mean(), rel=1e-13)
    assert w.std("total") == pytest.approx((inputs + outputs).std(), rel=1e-12)
    assert w.moment("output", 3) == pytest.approx((outputs.astype(float) ** 3).mean(), rel=1e-12)
    assert w.correlation == pytest.approx(np.corrcoef(inputs, outputs)[0, 1], rel=1e-9)
    steps = np.ceil(inputs / 512) + outputs
    assert w.iterations(512) == pytest.approx((steps.mean(), steps.var() / steps.mean() ** 2), rel=1e-12)


@pytest.mark.parametrize("of", ["input", "output", "total"])
@pytest.mark.parametrize("q", [0.0, 0.01, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0])
def test_quantiles_of_recorded_requests_are_those_of_numpy(
    sample: tuple[np.ndarray, np.ndarray], of: str, q: float
) -> None:
    inputs, outputs = sample
    values = {"input": inputs, "output": outputs, "total": inputs + outputs}[of]
    assert Workload.from_arrays(inputs, outputs).quantile(q, of) == pytest.approx(np.quantile(values, q), rel=1e-12)


def test_cdf_is_the_empirical_one(sample: tuple[np.ndarray, np.ndarray]) -> None:
    inputs, outputs = sample
    w = Workload.from_arrays(inputs, outputs)
    at = np.array([0, 1, 500, 1536, 4096, 9000, 10_000])
    expected = [(inputs + outputs <= b).mean() for b in at]
    np.testing.assert_allclose(w.cdf(at), expected, atol=1e-12)
    assert w.cdf(float(w.total_tokens[0]) - 0.5) == 0.0


@given(lengths, st.integers(0, 6000), st.integers(1, 6000))
@settings(max_examples=60, deadline=None)
def test_conditioning_is_exact_on_recorded_requests(rows: list[tuple[int, int]], low: int, width: int) -> None:
    inputs, outputs = np.array(rows).T
    total = inputs + outputs
    inside = (total > low) & (total <= low + width)
    w = Workload.from_arrays(inputs, outputs)
    if not inside.any():
        with pytest.raises(InputError, match="no request"):
            w.between(low, low + width)
        return
    part, share = w.between(low, low + width)
    assert share == pytest.approx(inside.mean())
    assert part.mean_input == pytest.approx(inputs[inside].mean())
    assert part.mean_output == pytest.approx(outputs[inside].mean())
    assert part.weight.sum() == pytest.approx(1.0)


def test_a_cut_inside_a_bin_takes_the_linear_part_of_its_weight() -> None:
    w = Workload.from_arrays([80.0, 300.0], [10.0, 50.0], weight=[1, 3], total_tokens=[100, 400], lower_tokens=[0, 200])
    assert w.cdf([50, 100, 150, 200, 300, 400]) == pytest.approx([0.125, 0.25, 0.25, 0.25, 0.625, 1.0])
    short, share = w.between(0, 300)
    assert share == pytest.approx(0.625)
    assert short.max_total == 300
    rest, remaining = w.between(300, math.inf)
    assert share + remaining == pytest.approx(1.0)
    assert rest.lower_tokens.tolist() == [300.0]
    assert w.quantile(0.625) == pytest.approx(300.0)


def test_shares_of_all_ranges_sum_to_one() -> None:
    w = Workload.from_file("azure")
    edges = [0, 1000, 1777, 4096, 9000, math.inf]
    parts = [w.between(a, b) for a, b in pairwise(edges)]
    assert sum(share for _, share in parts) == pytest.approx(1.0, abs=1e-12)
    assert sum(share * part.mean_output for part, share in parts) == pytest.approx(w.mean_output, rel=1e-12)
    assert sum((part.arrivals.rate_per_s or 0.0) for part, _ in parts) == pytest.approx(w.arrivals.rate_per_s)


def test_band_fractions_by_category_add_up() -> None:
    w = Workload.from_file("azure")
    band = w.band_fractions(4096, 1.5)
    assert set(band) == {"conv", "code"}
    assert sum(band.values()) == pytest.approx(w.cdf(6144) - w.cdf(4096), abs=1e-12)


def test_equality_hash_and_immutability() -> None:
    a = Workload.from_arrays([10, 20], [1, 2], arrival_rate_per_s=3.0)
    b = Workload.from_arrays([20, 10], [2, 1], arrival_rate_per_s=3.0)
    assert a == b and hash(a) == hash(b)
    assert a != a.with_rate(4.0)
    assert a != Workload.from_arrays([10, 20], [1, 3], arrival_rate_per_s=3.0)
    assert a != "workload"
    with pytest.raises(ValueError, match="read-only"):
        a.weight[0] = 0.5
    with pytest.raises(AttributeError):
        a.name = "other"  # type: ignore[misc]


def test_thinning_keeps_the_law_and_thins_the_arrivals() -> None:
    w = Workload.from_arrays([10], [1], arrivals=Arrivals(8.0, 5.0, 60.0, ((1.0, 3.0),), assumed=None))
    half = w.thinned(0.5)
    assert half.arrivals.rate_per_s == 4.0
    assert half.arrivals.scv == 3.0
    assert half.arrivals.dispersion == ((1.0, 2.0),)
    with pytest.raises(InputError):
        w.thinned(0.0)


def test_categories_by_name_and_by_index() -> None:
    w = Workload.from_arrays([10, 20, 30], [1, 1, 1], category=["b", "a", "b"], compressible={"a": 1.0})
    assert w.categories == ("a", "b")
    assert w.compressible == (1.0, None)
    part, share = w.of_category("b")
    assert share == pytest.approx(2 / 3)
    assert sorted(part.input_tokens.tolist()) == [10.0, 30.0]
    with pytest.raises(InputError, match="did you mean 'b'"):
        Workload.from_arrays([1], [1], category=["b"]).of_category("bb")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_tokens": [], "output_tokens": []}, "at least one request"),
        ({"input_tokens": [-1], "output_tokens": [1]}, "input_tokens must be finite"),
        ({"input_tokens": [1], "output_tokens": [math.nan]}, "output_tokens must be finite"),
        ({"input_tokens": [1, 2], "output_tokens": [1]}, "output_tokens has 1 values"),
        ({"input_tokens": [1], "output_tokens": [1], "weight": [0.0]}, "sum to zero"),
        ({"input_tokens": [1], "output_tokens": [1], "lower_tokens": [5]}, "lower_tokens"),
        ({"input_tokens": [1], "output_tokens": [1], "arrival_rate_per_s": -2.0}, "arrival_rate_per_s"),
        ({"input_tokens": [1], "output_tokens": [1], "category": ["a"], "compressible": {"b": 1.0}}, "no category 'b'"),
        (
            {"input_tokens": [1], "output_tokens": [1], "category": ["a"], "compressible": {"a": 1.5}},
            "not a probability",
        ),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Workload.from_arrays(**arguments)  # type: ignore[arg-type]


def test_to_dict_is_json_ready() -> None:
    import json

    text = json.dumps(Workload.from_file("azure").to_dict(rows=True), allow_nan=False)
    assert json.loads(text)["provenance"]["licence"] == "CC-BY-4.0"
