"""Exact waits of M/PH/c with two phases: against another solution of the same queues, and against closed forms."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from planner.queueing.erlang import erlang_c
from planner.queueing.exact import TwoPhases, delayed_wait, phase_type_wait, two_phases

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "mph_c.json"


def test_two_phases_against_the_independent_solution():
    """Also Erlang's and Coxian laws, whose first phase leads to the second."""
    seen = 0
    rows = [row for row in json.loads(GOLDEN.read_text(encoding="utf-8")) if len(row["service"]["rates"]) == 2]
    # of the loads and numbers of servers of each law every other one
    for row in rows[::2]:
        service, c, mean = row["service"], row["servers"], row["mean"]
        (first, _), (rate_1, rate_2), onward = service["start"], service["rates"], service["routes"][0][1]
        phases = TwoPhases(first, rate_1 * mean, rate_2 * mean, onward)
        level, waits = np.array([float(q) for q in row["quantiles"]]), np.array(list(row["quantiles"].values()))
        p_wait, mean_wait, found = phase_type_wait(row["utilization"] * c, c, phases, level)
        assert p_wait == pytest.approx(row["p_wait"], rel=1e-9)
        assert mean * mean_wait == pytest.approx(row["mean_wait"], rel=1e-9)
        assert mean * found == pytest.approx(waits, rel=1e-7, abs=1e-9)
        delayed = waits > 0.0
        interpolated = delayed_wait(row["utilization"], c, phases, (1.0 - level[delayed]) / p_wait)
        assert mean * interpolated == pytest.approx(waits[delayed], rel=0.01)
        seen += 1
    assert seen > 100


def test_two_phases_on_the_shared_exact_queues(shared_data):
    queues: dict[tuple[float, ...], list[dict]] = {}
    for row in json.loads((shared_data / "queueing" / "truth.json").read_text(encoding="utf-8"))["exact_mh2c"]:
        if row["c"] <= 64:
            queues.setdefault((row["c"], row["rho"], *(row["service"][n] for n in ("p", "mean1", "mean2"))), []).append(
                row
            )
    assert len(queues) > 50
    for (c, rho, p, *means), rows in queues.items():
        mean = p * means[0] + (1.0 - p) * means[1]
        phases = TwoPhases(p, mean / means[0], mean / means[1])
        p_wait, mean_wait, waits = phase_type_wait(rho * c, c, phases, [row["percentile"] for row in rows])
        for row, wait in zip(rows, waits, strict=True):
            assert p_wait == pytest.approx(row["p_wait"], rel=1e-8)
            assert mean * mean_wait == pytest.approx(row["mean_wait"], rel=1e-8)
            # read off a grid of times
            assert mean * wait == pytest.approx(row["value"], rel=3e-3)


def test_next_to_saturation_there_is_no_solution():
    almost = 1.0 - 1e-7
    assert phase_type_wait(4 * almost, 4, TwoPhases(1.0, 1.0, 1.0)) is None
    assert delayed_wait(almost, 4, TwoPhases(1.0, 1.0, 1.0), [0.5]) is None


@pytest.mark.parametrize("servers", [1, 2, 9, 60])
def test_equal_phases_are_the_markovian_queue(servers):
    load, q = 0.85 * servers, np.array([0.5, 0.99])
    p_wait, mean, waits = phase_type_wait(load, servers, TwoPhases(0.3, 1.0, 1.0), q)
    expected = erlang_c(servers, load)
    assert p_wait == pytest.approx(expected, rel=1e-10)
    assert mean == pytest.approx(expected / (servers - load), rel=1e-10)
    tail = np.maximum(np.log(expected / (1 - q)), 0) / (servers - load)
    assert waits == pytest.approx(tail, rel=1e-8, abs=1e-12)


def test_one_server_of_two_phases_is_pollaczek_khinchine():
    p, m = np.array([0.8, 0.2]), np.array([0.5, 3.0])
    for load in (0.2, 0.7, 0.97):
        p_wait, mean, _ = phase_type_wait(load, 1, TwoPhases(0.8, 1 / 0.5, 1 / 3.0))
        second = 2 * p @ m**2
        assert p_wait == pytest.approx(load, rel=1e-10)
        assert mean == pytest.approx(load * second / (2 * (1 - load)), rel=1e-10)


@pytest.mark.parametrize("function, name, arguments", [
    (delayed_wait, "load", (1.0, 2, TwoPhases(1.0, 1.0, 1.0), [0.5])),
    (delayed_wait, "servers", (0.5, 1000, TwoPhases(1.0, 1.0, 1.0), [0.5])),
    (phase_type_wait, "servers", (0.5, 1000, TwoPhases(1.0, 1.0, 1.0))),
    (phase_type_wait, "arrival_rate", (0.0, 2, TwoPhases(1.0, 1.0, 1.0))),
])  # fmt: skip
def test_nonsense_names_the_argument(function, name, arguments):
    with pytest.raises(ValueError, match=name):
        function(*arguments)


def test_three_moments_make_a_two_phase_law():
    for scv, third in ((1.5, 10.0), (4.0, 40.0), (4.0, 400.0), (30.0, 2000.0)):
        two = two_phases(scv, third)
        share, rates = np.array([two.first, 1.0 - two.first]), np.array([two.rate_1, two.rate_2])
        moments = [float(share @ (math.factorial(k) / rates**k)) for k in (1, 2, 3)]
        assert moments == pytest.approx([1.0, 1.0 + scv, third], rel=1e-9)
    assert two_phases(4.0, 37.0) is two_phases(1.0, 6.0) is None
