"""The cache law against simulated caches, and against what must hold exactly."""

import csv
import gzip
import math

import numpy as np
import pytest

from planner.queueing.reuse import SessionTable, SharedItems


@pytest.fixture(scope="module")
def recorded(shared_data):
    """The recorded sessions as columns: session, start, input + output, cached prefix, input."""
    with gzip.open(shared_data / "real" / "sessions" / "calls.csv.gz", "rt") as text:
        rows = list(csv.DictReader(text))
    session = np.unique([r["session"] for r in rows], return_inverse=True)[1]
    start, sent, got, cached = (
        np.array([float(r[c]) for r in rows]) for c in ("t_s", "input_tokens", "output_tokens", "cached_prefix_tokens")
    )
    order = np.lexsort((start, session))
    return session[order], start[order], (sent + got)[order], cached[order], sent


def test_against_simulated_caches_of_recorded_sessions(recorded, shared_data):
    """Reference: token-wise LRU over sessions, three simulations of 150,000 calls each (its README)."""
    session, start, size, cached, sent = recorded
    table = SessionTable(session, start, start, size, cached)
    errors = []
    with (shared_data / "real" / "sessions" / "lru_reference.csv").open() as text:
        for row in csv.DictReader(text):
            replicas = int(row["replicas"])
            spread = float(replicas if row["routing"] == "random" else 1)
            rate = float(row["session_starts_per_s"]) * table.calls / table.sessions / replicas
            law = table.at(rate, float(row["cache_tokens_per_replica"]), spread)
            share = table.found_by_sessions(law, spread) * table.calls / sent.sum()
            errors.append(abs(share - float(row["cached_share"])))
            # the bar: what REAL.md's prototype reached, and the simulation's own error
            assert errors[-1] <= 0.012 + 2.0 * float(row["standard_error"]), row
    assert np.mean(errors) <= 0.004


def _one_session(calls=6, gap=10.0, tokens=100.0):
    start = gap * np.arange(calls)
    cached = np.r_[0.0, np.full(calls - 1, tokens)]
    return SessionTable(np.zeros(calls), start, start, np.full(calls, tokens), cached)


def test_alone_everything_is_found():
    """Hardly anybody else: all that can be found is; five of six calls find 100 tokens."""
    table = _one_session()
    law = table.at(1e-9, 1e6)
    assert table.found_by_sessions(law) == pytest.approx(500.0 / 6.0, rel=1e-3)


def test_poisson_probability_of_room():
    """Sessions of one call of 100 tokens: V(tau) / 100 is Poisson(rate tau), so a cache of n sessions is exact."""
    sessions = 50
    calls = np.repeat(np.arange(sessions), 2)
    start = np.tile([0.0, 20.0], sessions)
    # the second call leaves nothing, so that only first calls count
    table = SessionTable(calls, start, start, np.tile([100.0, 0.0], sessions), np.tile([0.0, 100.0], sessions))
    rate, room = 0.4, 512.0  # calls/s; a cache of 5.12 sessions, in whole parts of the grid
    law = table.at(rate, room)
    mean = 0.5 * rate * 20.0  # min(gap, 20) = 20 s of every session touched
    expected = sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(5))
    # all of 100 is found where at most 4.12 others were touched
    assert law.whole(20.0, 100.0) == pytest.approx(expected, abs=2e-2)


def test_more_cache_finds_more_and_more_traffic_less():
    table = _one_session(40)
    shares = [table.found_by_sessions(table.at(0.5, m)) for m in (150.0, 400.0, 1000.0, 5000.0)]
    assert shares == sorted(shares)
    busy = [table.found_by_sessions(table.at(r, 400.0)) for r in (0.01, 0.1, 1.0)]
    assert busy == sorted(busy, reverse=True)


def test_random_routing_finds_less_the_more_replicas():
    table = _one_session(40)
    shares = [table.found_by_sessions(table.at(0.05 / g, 400.0, g), g) for g in (1.0, 2.0, 4.0, 16.0)]
    assert shares == sorted(shares, reverse=True)


def test_retention_and_running_requests_take_from_it():
    table = _one_session(40)
    everything = table.found_by_sessions(table.at(0.01, 1e4))
    assert table.found_by_sessions(table.at(0.01, 1e4, ttl_s=5.0)) == 0.0  # gaps are 10 s
    assert table.found_by_sessions(table.at(0.01, 1e4, ttl_s=15.0)) == pytest.approx(everything)
    assert table.found_by_sessions(table.at(0.5, 400.0, busy_s=6.0)) < table.found_by_sessions(table.at(0.5, 400.0))


@pytest.mark.parametrize("cache", [3_000.0, 6_000.0, 9_000.0])
def test_shared_prefixes_against_a_simulated_list(cache):
    """Ten prefixes of 1,000 tokens at equal rates: LRU of 10 equal items hits with probability n/10 for n whole items kept."""
    items = [SharedItems(np.full(10, 0.1), np.full(10, 1000.0))]
    table = SessionTable(np.arange(4), np.zeros(4), np.zeros(4), np.zeros(4), np.zeros(4), items)
    found = table.found_of_items(1.0, cache)
    rng = np.random.Generator(np.random.PCG64(1))
    order, hit, total = [], 0.0, 20_000
    for key in rng.integers(10, size=total).tolist():
        depth = order.index(key) if key in order else 99
        hit += max(min(1000.0, cache - 1000.0 * depth), 0.0)
        if key in order:
            order.remove(key)
        order.insert(0, key)
    # the simulation's standard error is 3 tokens, the grid of the cache has parts of 1/512
    assert found == pytest.approx(hit / total, abs=15.0)
