"""Erlang C against mpmath by other routes, its limits and order, and the inverse against brute force."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from effort import calls
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.queueing.erlang import erlang_c, log_erlang_c
from planner.queueing.mgc import min_replicas

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "erlang.json"


@pytest.fixture(scope="module")
def golden() -> tuple[np.ndarray, ...]:
    rows = json.loads(GOLDEN.read_text(encoding="utf-8"))["rows"]
    return tuple(np.array([[float(x) for x in row] for row in rows]).T)


def test_golden_covers_both_sides_of_every_switch(golden):
    servers, load, _, _ = golden
    beta = (servers - load) / np.sqrt(servers)
    assert {15.99, 16.01} <= set(servers)
    assert ((beta > 3) & (beta < 4)).any() and ((beta > 4) & (beta < 5)).any()
    assert servers.max() == 1e7 and (1 - load / servers).min() < 1.1e-9


def test_erlang_c_is_within_1e_11_of_mpmath(golden):
    servers, load, _, log_c = golden
    seen = log_c > -600
    assert np.abs(erlang_c(servers, load)[seen] / np.exp(log_c[seen]) - 1).max() < 1e-11


def test_log_erlang_c_is_within_1e_12_of_mpmath_also_where_c_underflows(golden):
    servers, load, _, log_c = golden
    assert log_c.min() < -1e5
    assert np.abs(log_erlang_c(servers, load) / log_c - 1).max() < 1e-12


def test_one_and_two_servers_in_closed_form():
    load = np.array([0.0, 1e-300, 1e-9, 0.3, 0.999999])
    assert erlang_c(1, load) == pytest.approx(load, rel=1e-13, abs=0)
    assert erlang_c(2, 2 * load) == pytest.approx(2 * load**2 / (1 + load), rel=1e-13, abs=0)


def test_few_servers_are_the_recursion():
    servers, rho = np.meshgrid([1.0, 2.0, 7.0, 64.0, 200.0], [1e-3, 0.3, 0.9, 0.999, 1.0])
    load = (rho * servers).ravel()
    for c, a, found in zip(servers.ravel(), load, erlang_c(servers.ravel(), load), strict=True):
        blocked = 1.0
        for n in range(1, int(c) + 1):
            blocked = a * blocked / (n + a * blocked)
        assert found == pytest.approx(1.0 if a >= c else blocked / (1.0 - a / c * (1.0 - blocked)), rel=1e-11)


def test_instability_and_no_load_are_limits_not_nan():
    assert erlang_c(4, [4.0, 4.0000001, 1e12]).tolist() == [1.0, 1.0, 1.0]
    assert log_erlang_c(4, [4.0, 9.0]).tolist() == [0.0, 0.0]
    assert erlang_c(4, 0.0) == 0.0 and log_erlang_c(40, 0.0) == -np.inf
    assert 0 < erlang_c(10.0, 10.0 * (1 - 1e-15)) <= 1.0


def test_halfin_whitt_limit():
    from math import erfc, exp, pi, sqrt

    beta = 0.8
    mills = sqrt(2 * pi) * exp(beta**2 / 2) * 0.5 * erfc(-beta / sqrt(2))
    load = 1e10
    assert erlang_c(load + beta * sqrt(load), load) == pytest.approx(1 / (1 + beta * mills), rel=1e-4)


def test_shapes_broadcast_and_scalars_are_floats():
    assert isinstance(erlang_c(2, 1), float)
    assert erlang_c([[2], [3]], [0.5, 1.0, 1.5]).shape == (2, 3)
    assert erlang_c(np.ones((0, 3)), 0.5).shape == (0, 3)


@given(
    servers=st.floats(1, 1e6),
    utilization=st.floats(1e-9, 0.999999),
    more=st.floats(1e-3, 1.0),
)
@example(servers=262144.0, utilization=1.0000000000000003e-09, more=0.001)
def test_monotone_in_load_and_servers(servers, utilization, more):
    load = servers * utilization
    here = log_erlang_c(servers, load)
    assert here <= 1e-13
    assert log_erlang_c(servers + more, load) <= here + 1e-12 * abs(here) + 1e-15
    assert log_erlang_c(servers, load + more * (servers - load)) >= here - 1e-12 * min(abs(here), 1e300)


@pytest.mark.parametrize("name, arguments", [
    ("servers", (0.5, 0.1)), ("servers", (np.nan, 0.1)), ("servers", (np.inf, 1.0)), ("servers", ([2, 0], 1.0)),
    ("offered_load", (2, -1.0)), ("offered_load", (2, np.nan)), ("offered_load", (2, np.inf)),
])  # fmt: skip
@pytest.mark.parametrize("function", [erlang_c, log_erlang_c])
def test_nonsense_names_the_argument(function, name, arguments):
    with pytest.raises(ValueError, match=name):
        function(*arguments)


def min_servers(load, limit=0.0, service_scv=1.0, quantile=0.99):
    """Fewest servers, each a replica of one slot, of a service that takes a second."""
    return min_replicas(load, 1.0, 1.0, limit, service_scv=service_scv, quantile=quantile, max_utilization=1.0)


def brute_force(load, limit, scv, quantile):
    """Smallest integer by trying them all, with the formula written out."""
    servers = np.arange(max(np.floor(load), 0) + 1, load + 60 + 30 * np.sqrt(load) + 40)
    tail = log_erlang_c(servers, load) - 2 * (servers - load) * limit / (1 + scv)
    return int(servers[np.argmax(tail <= np.log1p(-quantile))])


def test_min_servers_is_brute_force():
    rng = np.random.default_rng(7)
    n = 400
    load = 10 ** rng.uniform(-6, 6.3, n)
    limit = np.where(rng.random(n) < 0.3, 0.0, 10 ** rng.uniform(-6, 2, n))
    scv = rng.choice([0.0, 0.5, 1.0, 4.0, 50.0], n)
    quantile = rng.choice([0.001, 0.5, 0.9, 0.99, 0.999, 1 - 1e-9], n)
    found = min_servers(load, limit, service_scv=scv, quantile=quantile)
    assert found.tolist() == [brute_force(*case) for case in zip(load, limit, scv, quantile, strict=True)]


def test_min_servers_at_integers_and_at_ten_million():
    for load in (1e6, 3e6, 1e7, 12_345_678.0):
        found = min_servers(load, 1e-3)
        limit = np.log(0.01)
        assert log_erlang_c(found, load) - (found - load) * 1e-3 <= limit
        assert log_erlang_c(found - 1, load) - (found - 1 - load) * 1e-3 > limit
    assert [min_servers(float(k), np.inf) for k in range(4)] == [1, 2, 3, 4]
    assert min_servers(0.0) == 1 and min_servers(1e-9) == 1


def test_a_thousand_inversions_are_little_more_work_than_ten():
    rng = np.random.default_rng(3)
    load, limit = 10 ** rng.uniform(-1, 6.5, 1000), 10 ** rng.uniform(-3, 0, 1000)
    few, many = (calls(lambda n=n: min_servers(load[:n], limit[:n])) for n in (10, 1000))
    assert many < 3 * few


@settings(max_examples=60)
@given(load=st.floats(0, 1e5), more=st.floats(0, 10), limit=st.floats(0, 3), later=st.floats(0, 3))
def test_min_servers_is_monotone(load, more, limit, later):
    here = min_servers(load, limit)
    assert here > load
    assert min_servers(load + more, limit) >= here
    assert min_servers(load, limit + later) <= here
