"""The joint distribution: moments, conditioning, quantiles, identity."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from planner.errors import InputError
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


def test_a_cut_inside_a_bin_takes_the_linear_part_of_its_weight() -> None:
    w = Workload.from_arrays([80.0, 300.0], [10.0, 50.0], weight=[1, 3], total_tokens=[100, 400], lower_tokens=[0, 200])
    assert w.cdf([50, 100, 150, 200, 300, 400]) == pytest.approx([0.125, 0.25, 0.25, 0.25, 0.625, 1.0])
    assert w.quantile(0.625) == pytest.approx(300.0)


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


def test_categories_by_name_and_by_index() -> None:
    w = Workload.from_arrays([10, 20, 30], [1, 1, 1], category=["b", "a", "b"], compressible={"a": 1.0})
    assert w.categories == ("a", "b")
    assert w.compressible == (1.0, None)
    assert w.category_shares() == pytest.approx([1 / 3, 2 / 3])
    assert w.input_tokens[w.category == 1].tolist() == [10.0, 30.0]


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
