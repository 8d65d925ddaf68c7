"""Power of two choices: the law of a replica about its pool's mean against the known fixed point and a simulation."""

from __future__ import annotations

import numpy as np
import pytest

from planner.queueing.mixed.two_choices import Apart, balance_of_two


@pytest.mark.parametrize("load", [0.3, 0.7, 0.95])
def test_single_servers_have_doubly_exponential_tails(load: float) -> None:
    # Mitzenmacher 2001, Vvedenskaya et al. 1996: P(N >= k) = load^(2^k - 1)
    tails = load ** (2.0 ** np.arange(12) - 1.0)
    mean = float(tails[1:].sum())
    found = balance_of_two(mean, 1e-12, 1e9)
    got = np.cumsum(found.law[::-1])[::-1]
    assert found.deviation[0] == pytest.approx(-mean, rel=1e-6)
    assert got[:6] == pytest.approx(tails[:6], abs=2e-5)


@pytest.mark.parametrize(("replicas", "each"), [(4, 3.0), (8, 20.0), (32, 8.0)])
def test_deviation_in_a_pool_against_simulation(replicas: int, each: float) -> None:
    # every request leaves at rate 1: completions proportional to the number present
    rng = np.random.default_rng(5)
    counts, total, area, square = [0] * replicas, 0, 0.0, 0.0
    events = 400_000
    uniform, exponential = rng.random((events, 3)), rng.exponential(size=events)
    rate = each * replicas
    for i in range(events):
        u, v, tie = uniform[i]
        if i > 20_000:
            hold = exponential[i] / (rate + total)
            area += hold
            square += hold * sum((c - total / replicas) ** 2 for c in counts)
        if u * (rate + total) < rate:
            a = int(v * replicas)
            b = (a + 1 + int((v * replicas - a) * (replicas - 1))) % replicas
            if counts[b] < counts[a] or (counts[b] == counts[a] and tie < 0.5):
                a = b
            counts[a] += 1
            total += 1
        else:
            left = v * total
            for k, c in enumerate(counts):
                left -= c
                if left < 0:
                    counts[k] -= 1
                    break
            total -= 1
    simulated = square / area / replicas
    # the correction for a finite pool is to first order: 5% is seen at four replicas; 3% is the simulation's
    assert balance_of_two(each, 1.0, replicas).variance == pytest.approx(simulated, rel=0.08 if replicas > 4 else 0.13)


def test_arrivals_go_to_the_less_loaded_and_are_as_many_as_come() -> None:
    for mean, elasticity, replicas in ((0.05, 1.0, 4), (3.0, 0.5, 16), (400.0, 0.05, 128)):
        b = balance_of_two(mean, elasticity, replicas)
        assert float(b.law @ b.gate) == pytest.approx(1.0, rel=1e-9)
        assert float(b.law @ b.deviation) == pytest.approx(0.0, abs=1e-6 * max(mean, 1.0))
        assert np.all(np.diff(b.gate) <= 1e-12) and b.gate[0] <= 2.2
        at = Apart(b, mean, np.linspace(0.0005, 0.9995, 1000))
        assert at.found.mean() <= 0.0 and np.all(at.gate_after <= b.at(at.found))
