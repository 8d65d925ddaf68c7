"""Compaction keeps what plans depend on, on traces of very different shapes."""

from __future__ import annotations

import numpy as np
import pytest

from planner.errors import InputError
from planner.workload.compact import compact, compact_within, compaction_error, gauss_nodes
from planner.workload.workload import Workload


def chat(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.lognormal(6.5, 1.2, n), rng.lognormal(5.0, 0.9, n)


def reasoning(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.lognormal(5.5, 0.8, n), np.minimum(rng.lognormal(8.0, 1.0, n), 60_000)


def long_context(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    short = rng.random(n) < 0.6
    inputs = np.where(short, rng.lognormal(6.0, 1.0, n), rng.uniform(20_000, 130_000, n))
    return np.minimum(inputs, 131_072), rng.lognormal(4.5, 1.3, n)


def lumpy(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.choice([100, 512, 1024, 4000], n), rng.choice([16, 128, 1000], n)


SHAPES = {f.__name__: f for f in (chat, reasoning, long_context, lumpy)}


def make(shape: str, n: int = 12_000, seed: int = 11) -> Workload:
    rng = np.random.default_rng(seed)
    inputs, outputs = (np.maximum(np.round(x), 1.0) for x in SHAPES[shape](rng, n))
    category = np.where(rng.random(n) < 0.3, "code", "conv")
    return Workload.from_arrays(inputs, outputs, category=category, compressible={"conv": 1.0, "code": 0.0})


@pytest.mark.parametrize("seed", range(5))
def test_gauss_nodes_share_the_moments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, weight = rng.lognormal(5, 1.5, 300), rng.random(300)
    for nodes in (1, 2, 3, 5):
        x, w = gauss_nodes(values, weight, nodes)
        assert np.all((x >= values.min()) & (x <= values.max())) and np.all(w > 0.0)
        for order in range(2 * nodes):
            assert w @ x**order == pytest.approx(weight @ values**order, rel=1e-8)


def test_gauss_nodes_of_few_points_are_the_points() -> None:
    x, w = gauss_nodes(np.array([3.0, 9.0, 9.0]), np.array([1.0, 2.0, 1.0]), 5)
    assert x == pytest.approx([3.0, 9.0])
    assert w == pytest.approx([1.0, 3.0])
    assert gauss_nodes(np.array([4.0, 4.0]), np.ones(2), 3)[0].tolist() == [4.0]


@pytest.mark.parametrize("shape", SHAPES)
def test_errors_are_small_and_measured_right(shape: str) -> None:
    trace = make(shape)
    small = compact(trace, 200, 3)
    error = compaction_error(trace, small)
    assert error.mean_iterations < 0.002
    assert error.scv_iterations < 0.005
    assert error.cdf < 0.005
    assert error.band < 0.002
    assert small.rows < 1700
    assert small.compressible == trace.compressible
    assert small.category_shares() == pytest.approx(trace.category_shares(), abs=1e-9)
    assert small.mean_output == pytest.approx(trace.mean_output, rel=1e-9)
    assert small.moment("output", 2) == pytest.approx(trace.moment("output", 2), rel=1e-9)
    # exact at round boundaries
    at = [b for b in (128.0, 1536.0, 4096.0, 32_768.0, 131_072.0) if b < trace.max_total]
    np.testing.assert_allclose(small.cdf(at), trace.cdf(at), atol=1e-9)
    for of in ("input", "output", "total"):
        for q in (0.0, 0.5, 0.99, 1.0):
            assert small.quantile(q, of) == trace.quantile(q, of)
    # measured here in its own words: one pool, one chunk
    a, b = trace.between(0, 4096)[0], small.between(0, 4096)[0]
    assert b.iterations(512)[0] == pytest.approx(a.iterations(512)[0], rel=error.mean_iterations + 1e-12)


@pytest.mark.parametrize("shape", ["reasoning", "long_context"])
def test_the_size_follows_the_error(shape: str) -> None:
    trace = make(shape)
    rows = []
    for bound in (0.02, 0.005):
        small, error = compact_within(trace, bound)
        assert error.worst <= bound
        assert error.rows == small.rows
        rows.append(small.rows)
    assert rows[0] <= rows[1] < trace.rows


def test_a_bound_that_only_the_trace_keeps_gives_the_trace() -> None:
    trace = make("chat", 400)
    small, error = compact_within(trace, 1e-9)
    assert small is trace and error.worst == 0.0
    assert compact(trace, 4000) is trace


def test_compacting_bins_again_keeps_f() -> None:
    once = compact(make("chat"), 300, 3)
    twice = compact(once, 60, 3)
    assert twice.rows < once.rows
    assert twice.mean_input == pytest.approx(once.mean_input, rel=1e-6)
    np.testing.assert_allclose(twice.cdf([1024.0, 4096.0]), once.cdf([1024.0, 4096.0]), atol=1e-9)


@pytest.mark.parametrize("once", [False, True])
def test_a_stretch_of_bins_at_a_time_is_the_same(once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # rows that are cut (of a workload compacted before) are passed together, whole ones in stretches of bins
    trace = compact(make("chat"), 300, 3) if once else make("long_context")
    whole = compact_within(trace, 0.005)
    monkeypatch.setattr("planner.workload.compact._AT_ONCE", 300)
    monkeypatch.setattr(
        "planner.workload.compact.MANY_ROWS", 500
    )  # beside a thread, and with the ladder of large traces
    in_parts = compact(trace, 200, 8)
    assert compact_within(trace, 0.005)[1].worst <= 0.005
    monkeypatch.undo()
    assert in_parts == compact(trace, 200, 8)
    assert compaction_error(trace, in_parts) == compaction_error(trace, compact(trace, 200, 8))
    assert whole == compact_within(trace, 0.005)


@pytest.mark.parametrize("arguments", [(0, 3), (10, 0)])
def test_nonsense_is_refused(arguments: tuple[int, int]) -> None:
    with pytest.raises(InputError):
        compact(make("lumpy", 100), *arguments)
    with pytest.raises(InputError):
        compact_within(make("lumpy", 100), 0.0)
