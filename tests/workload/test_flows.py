"""Who gets which requests, against counting them one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.workload.flows import pool_flows
from planner.workload.pools import FEATURES, FleetMoments, State
from planner.workload.workload import Workload

Pool = dict[tuple[float, float], float]


def count(workload: Workload, boundaries: list[float], gammas: list[float], p_c: float | None) -> list[Pool]:
    """Mass by (input, output) in each pool, request by request: MODEL section 5 written as a loop."""
    pools: list[Pool] = [{} for _ in range(len(boundaries) + 1)]
    for i, o, w, c in zip(
        workload.input_tokens, workload.output_tokens, workload.weight, workload.category, strict=True
    ):
        native = sum(i + o > b for b in boundaries)
        chance = (workload.compressible[c] or 0.0) if p_c is None else p_c
        target = next((k for k in range(native) if i + o <= gammas[k] * boundaries[k] and o < boundaries[k]), None)
        left = w
        if target is not None and chance > 0.0:
            key = (boundaries[target] - o, o)
            pools[target][key] = pools[target].get(key, 0.0) + w * chance
            left = w * (1.0 - chance)
        if left > 0.0:
            pools[native][(i, o)] = pools[native].get((i, o), 0.0) + left
    return pools


requests = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 120), st.sampled_from(["conv", "code"])), min_size=1, max_size=40
)


@given(
    requests,
    st.sampled_from([None, 0.0, 0.4, 1.0]),
    st.lists(st.integers(5, 400), min_size=1, max_size=3, unique=True),
    st.data(),
)
@settings(max_examples=120, deadline=None)
def test_pools_are_what_counting_gives(
    rows: list[tuple[int, int, str]], p_c: float | None, cuts: list[int], data: st.DataObject
) -> None:
    inputs, outputs, names = zip(*rows, strict=True)
    w = Workload.from_arrays(inputs, outputs, category=list(names))
    w = w.with_compressible({n: {"conv": 0.7, "code": 0.0}[n] for n in w.categories})
    boundaries = [float(b) for b in sorted(cuts)]
    gammas = [data.draw(st.sampled_from([1.0, 1.3, 1.5, 2.0])) for _ in boundaries]
    found = pool_flows(w, boundaries, gammas, p_c)
    expected = count(w, boundaries, gammas, p_c)
    assert sum(p.share for p in found) == pytest.approx(1.0)
    for pool, truth in zip(found, expected, strict=True):
        assert pool.share == pytest.approx(sum(truth.values()), abs=1e-12)
        mass: Pool = {}
        for i, o, weight in zip(pool.input_tokens, pool.output_tokens, pool.weight, strict=True):
            mass[(i, o)] = mass.get((i, o), 0.0) + weight * pool.share
        assert mass == pytest.approx(truth, abs=1e-12)


@pytest.mark.parametrize("source", ["azure", "azure-conv", "long-context", "lmsys", "raw", "overlapping"])
@pytest.mark.parametrize("p_c", [None, 0.6])
def test_sums_of_a_sweep_equal_the_pools(source: str, p_c: float | None) -> None:
    if source == "raw":
        rng = np.random.default_rng(5)
        w = Workload.from_arrays(rng.integers(1, 9000, 3000), rng.integers(1, 900, 3000))
    elif source == "overlapping":
        w = Workload.from_arrays(
            [80.0, 3000.0, 150.0, 900.0], [20.0, 500.0, 30.0, 100.0],
            total_tokens=[120.0, 5000.0, 400.0, 1100.0], lower_tokens=[0.0, 900.0, 50.0, 1100.0],
        )  # fmt: skip
    else:
        w = Workload.from_file(source)
    boundaries = [100.0, 777.0, 1024.0, 1536.0, 4096.0, 9000.0]
    gammas = [1.0, 1.1, 1.5, 2.0]
    moments = FleetMoments(w, p_c)
    for boundary in boundaries:
        for gamma in gammas:
            edges = [State(0.0), State(boundary, gamma), State(max(float(w.max_total), boundary))]
            upper, lower = moments.states(edges)
            for k, pool in enumerate(pool_flows(w, (boundary,), (gamma,), p_c)):
                sums = upper[k + 1] - lower[k]
                mean = [pool.weight @ pool.input_tokens, pool.weight @ pool.output_tokens] if pool.share else [0.0, 0.0]
                truth = pool.share * np.array([1.0, *mean])
                found = sums[[FEATURES.index(name) for name in ("share", "input", "output")]]
                np.testing.assert_allclose(found, truth, rtol=1e-9, atol=1e-9 * max(1.0, float(truth.max())))


def test_without_compression_the_pools_are_the_ranges() -> None:
    w = Workload.from_file("azure")
    short, long = pool_flows(w, (4096,), (1.0,))
    part, share = w.between(0, 4096)
    assert short.share == pytest.approx(share)
    assert short.workload(w).iterations(512) == pytest.approx(part.iterations(512), rel=1e-9)
    assert long.compressed_share == 0.0
    assert short.workload(w).arrivals.rate_per_s == pytest.approx((w.arrivals.rate_per_s or 0.0) * share)


def test_code_is_not_compressed() -> None:
    w = Workload.from_file("azure")
    band = w.band_fractions(4096, 1.5)
    short, _ = pool_flows(w, (4096,), (1.5,))
    assert short.compressed_share == pytest.approx(band["conv"], rel=1e-3)
    everything, _ = pool_flows(w, (4096,), (1.5,), p_c=1.0)
    assert everything.compressed_share == pytest.approx(sum(band.values()), rel=1e-3)


def test_an_empty_pool_says_so() -> None:
    w = Workload.from_arrays([10], [5])
    short, long = pool_flows(w, (100,), (1.5,))
    assert (short.share, long.share) == (1.0, 0.0)
    with pytest.raises(InputError, match="no request goes to the pool"):
        long.workload(w)


@pytest.mark.parametrize(
    ("boundaries", "gammas", "p_c"),
    [((0,), (1.5,), None), ((200, 100), (1, 1), None), ((100,), (0.9,), None), ((100,), (), None), ((100,), (1,), 2.0)],
)
def test_nonsense_is_refused(boundaries: tuple[float, ...], gammas: tuple[float, ...], p_c: float | None) -> None:
    with pytest.raises(InputError):
        pool_flows(Workload.from_arrays([10], [5]), boundaries, gammas, p_c)
