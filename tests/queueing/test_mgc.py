"""M/G/c waits: against exact queues and simulations, in their limits, in order, and the smallest pool."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from effort import calls
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.queueing.erlang import erlang_c
from planner.queueing.mgc import (
    ServiceLaw,
    mean_wait_cosmetatos,
    mean_wait_fleetopt,
    mean_wait_kimura,
    min_replicas,
    wait_probability,
    wait_quantile,
    wait_quantile_fleetopt,
)

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import service_laws as laws  # noqa: E402

sys.path.pop(0)
GOLDEN = ROOT / "tests" / "golden"
METHODS = list(laws.QUANTILES)
mean_wait = laws.MEANS["conservative"]
wait_quantile_exact, wait_quantile_tijms = laws.exact_quantile, laws.QUANTILES["tijms"]


@pytest.fixture(scope="module")
def accuracy():
    """The accuracy benchmark: its readers of the truth files are used here too."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import accuracy_mgc

        return accuracy_mgc
    finally:
        sys.path.pop(0)


def golden_cases():
    rows = json.loads((GOLDEN / "mph_c.json").read_text(encoding="utf-8"))
    return [row for row in rows if abs(row["mean"] - 1) < 1e-9]


# Against exact queues --------------------------------------------------


def test_two_phase_queues_are_exact(accuracy):
    seen = 0
    for row in golden_cases():
        kind = row["service"]["kind"]
        if kind == "h2" or (kind == "erlang" and row["service"]["phases"] == 2):
            law, c = accuracy.law_of_phases(row["service"]), row["servers"]
            if c == 1:
                continue
            load, quantiles = c * row["utilization"], np.array([float(q) for q in row["quantiles"]])
            found = wait_quantile(load, 1.0, c, quantile=quantiles, law=law)
            assert found == pytest.approx(list(row["quantiles"].values()), rel=1e-7, abs=1e-9)
            assert mean_wait(load, 1.0, c, law=law) == pytest.approx(row["mean_wait"], rel=1e-9)
            assert wait_probability(load, 1.0, c, law=law) == pytest.approx(row["p_wait"], rel=1e-9)
            seen += 1
    assert seen > 150


def errors(accuracy, data, keep, hide):
    """predicted/true - 1 of the default for the cases kept, the law without its exact routes if `hide`."""
    out, slack = [], []
    for kind, _, law, load, c, q, value, half in accuracy.cases(data):
        if keep(kind, law, c, q):
            if hide:
                law = ServiceLaw("hidden", 1.0, law.scv, law.third, law.partial_moments)
            out.append(wait_quantile(load, 1.0, c, quantile=q, law=law) / value - 1)
            slack.append(half / value)
    return np.array(out), np.array(slack)


def test_the_maximum_is_never_one_per_cent_optimistic_on_exact_queues(accuracy):
    # the law as people have it, without the knowledge that it is made of phases: servers and loads not in the data
    error, _ = errors(accuracy, Path("absent"), lambda kind, law, c, q: kind == "exact" and q == 0.99, hide=True)
    assert error.size > 200 and error.min() > -0.01
    assert np.median(np.abs(error)) < 0.015


def test_default_on_the_shared_exact_queues(accuracy, shared_data):
    error, _ = errors(accuracy, shared_data, lambda kind, law, c, q: kind == "exact" and law.scv > 1 and c <= 64, False)
    assert error.size > 800
    assert error.min() > -0.005 and np.median(np.abs(error)) < 0.001


def test_the_maximum_on_the_shared_exact_queues(accuracy, shared_data):
    error, _ = errors(accuracy, shared_data, lambda kind, law, c, q: kind == "exact" and q in (0.99, 0.9), hide=True)
    assert error.min() > -0.01 and np.median(np.abs(error)) < 0.01


def test_never_ten_per_cent_below_the_shared_simulations(accuracy, shared_data):
    error, _ = errors(accuracy, shared_data, lambda kind, law, c, q: kind == "simulated", hide=False)
    assert error.size > 300 and error.min() > -0.10


def test_never_ten_per_cent_below_simulations_of_other_laws(accuracy):
    error, half = errors(accuracy, Path("absent"), lambda kind, law, c, q: kind == "simulated", hide=True)
    assert error.size > 200
    assert error.min() > -0.10
    assert (error + half > 0).mean() > 0.95  # and hardly ever below by more than the simulation's own interval


def test_exact_constant_service_against_simulation():
    rows = [r for r in json.loads((GOLDEN / "mgc_simulated.json").read_text()) if r["law"] == "deterministic"]
    assert len(rows) >= 4
    for row in rows:
        c, load = row["servers"], row["servers"] * row["utilization"]
        for q, (value, half) in row["quantiles"].items():
            assert wait_quantile_exact(load, 1.0, c, 0.0, float(q)) == pytest.approx(value, abs=2 * half + 1e-5)
        assert mean_wait(load, 1.0, c, 0.0) == pytest.approx(row["mean_wait"], abs=2 * row["mean_wait_half"])
        assert wait_probability(load, 1.0, c, 0.0) == pytest.approx(row["p_wait"], rel=0.01)


def test_one_constant_server_is_the_erlang_series():
    # P(W <= t) = (1 - rho) sum_{k <= t} (-rho (t - k))^k / k! e^(rho (t - k))
    from math import exp, factorial

    for rho in (0.2, 0.6, 0.8):
        for q in (0.9, 0.99, 0.9999):
            t = wait_quantile_exact(rho, 1.0, 1, 0.0, q)
            below = (1 - rho) * sum(
                (-rho * (t - k)) ** k / factorial(k) * exp(rho * (t - k)) for k in range(int(t) + 1)
            )
            # one server goes through the lattice of the general law
            assert 1 - below == pytest.approx(1 - q, rel=2e-3)


def test_one_hyperexponential_server_in_closed_form():
    # W* = (1 - rho) / (1 - rho R*): two exponentials whose rates are the roots of a quadratic
    p, m = np.array([0.9, 0.1]), np.array([0.5, 5.5])
    load = 0.8
    law = ServiceLaw.hyperexponential(p, m)
    weights = p * m
    a, b = 1 / m
    roots = np.roots([1.0, a + b - load * (weights @ [a, b]), (1 - load) * a * b])
    x, y = -roots
    # partial fractions of (1 - rho)(s + a)(s + b)/((s + x)(s + y))
    cx = (1 - load) * (a - x) * (b - x) / (y - x) / x
    cy = (1 - load) * (a - y) * (b - y) / (x - y) / y
    for q in (0.5, 0.9, 0.99, 0.999):
        t = wait_quantile_tijms(load, 1.0, 1, quantile=q, law=law)
        assert cx * np.exp(-x * t) + cy * np.exp(-y * t) == pytest.approx(1 - q, rel=5e-4)


# As printed -------------------------------------------------------------


@pytest.mark.parametrize("servers", [2, 5, 40])
@pytest.mark.parametrize("scv", [0.0, 0.4, 1.0, 3.0])
@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_two_moment_means_as_printed(servers, scv, rho):
    from math import sqrt

    m, load = servers, servers * rho
    erlang = 1.0
    for n in range(1, m + 1):
        erlang = load * erlang / (n + load * erlang)
    delay = erlang / (1 - rho * (1 - erlang))
    markovian = delay / (m - load)
    gamma = (1 - rho) * (m - 1) * (sqrt(4 + 5 * m) - 2) / (16 * m * rho)
    constant = 0.5 * (1 + gamma) * markovian
    assert mean_wait_fleetopt(load, 1.0, m, scv) == pytest.approx((1 + scv) / 2 * markovian, rel=1e-12)
    assert mean_wait_kimura(load, 1.0, m, scv) == pytest.approx(
        (1 + scv) / ((1 - scv) / constant + 2 * scv / markovian), rel=1e-12
    )
    cosmetatos = scv * markovian + (1 - scv) * constant
    assert mean_wait_cosmetatos(load, 1.0, m, scv) == pytest.approx(cosmetatos, rel=1e-12)


# Limits ----------------------------------------------------------------


@pytest.mark.parametrize("mean", laws.MEANS.values(), ids=list(laws.MEANS))
@pytest.mark.parametrize("scv", [0.0, 0.3, 1.0, 4.0, 20.0])
def test_one_server_is_pollaczek_khinchine(mean, scv):
    load = np.array([0.05, 0.5, 0.9, 0.999])
    assert mean(load / 3.0, 3.0, 1, scv) == pytest.approx(3.0 * load / (1 - load) * (1 + scv) / 2, rel=1e-9)


@pytest.mark.parametrize("mean", laws.MEANS.values(), ids=list(laws.MEANS))
@pytest.mark.parametrize("servers", [2, 7.5, 100, 10_000])
def test_scv_one_is_the_markovian_mean(mean, servers):
    load = servers * np.array([0.3, 0.9, 0.999])
    expected = erlang_c(servers, load) / (servers - load)
    assert mean(load, 1.0, servers, 1.0) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_scv_one_is_the_markovian_tail(method):
    servers, load, q = 12, np.array([6.0, 10.0, 11.9]), np.array([[0.5], [0.9], [0.999]])
    expected = np.maximum(np.log(erlang_c(servers, load) / (1 - q)), 0.0) / (servers - load) * 0.2
    found = laws.QUANTILES[method](load / 0.2, 0.2, servers, 1.0, q, law=ServiceLaw.exponential())
    assert found == pytest.approx(expected, rel=5e-4, abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scv", [0.0, 0.5, 3.0])
def test_without_load_nobody_waits(method, scv):
    assert laws.MEANS[method](0.0, 1.0, 4, scv) == 0.0
    assert laws.QUANTILES[method](0.0, 1.0, 4, scv) == 0.0
    assert laws.QUANTILES[method](1e-6, 1.0, 4, scv) == 0.0
    assert 0.0 <= laws.MEANS[method](1e-6, 1.0, 4, scv) < 1e-20


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scv", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("servers", [1, 2, 10])
def test_heavy_traffic_is_exponential_with_kingmans_mean(method, scv, servers):
    slack = 1e-4
    load = servers * (1 - slack)
    kingman = (1 + scv) / (2 * servers * slack)
    assert laws.MEANS[method](load, 1.0, servers, scv) == pytest.approx(kingman, rel=5e-3)
    assert laws.QUANTILES[method](load, 1.0, servers, scv, 0.99) == pytest.approx(kingman * np.log(100), rel=1e-2)


H2 = ServiceLaw.hyperexponential([0.9, 0.1], [0.5, 5.5])


@pytest.mark.parametrize(
    "method, law",
    [
        ("tijms", ServiceLaw.gamma(0.3)),
        ("tijms", laws.lognormal(3.0)),
        ("tijms", ServiceLaw.from_samples([1.0, 2.0, 10.0], [5.0, 3.0, 1.0])),
        ("tijms", H2),
        ("conservative", H2),
        ("conservative", ServiceLaw.deterministic()),
    ],
)
def test_the_mean_is_the_area_of_the_quantiles(method, law):
    # E[W] = int_0^1 W_q dq; with Little's law lambda E[W] is the mean queue
    servers, load = 3, 2.4
    edges = 1 - np.geomspace(1.0, 1e-9, 61)
    nodes, weights = np.polynomial.legendre.leggauss(6)
    width = np.diff(edges)
    q = edges[:-1, None] + width[:, None] * (nodes + 1) / 2
    waits = laws.QUANTILES[method](load, 1.0, servers, quantile=q, law=law)
    area = float((waits @ weights / 2) @ width)
    assert laws.MEANS[method](load, 1.0, servers, law=law) == pytest.approx(area, rel=3e-3)


@pytest.mark.parametrize("method", METHODS)
def test_instability_is_infinite_and_nothing_is_nan(method):
    load, scv = (
        np.array([[0.0], [1e-9], [3.9999999], [4.0], [4.1], [1e9]]),
        np.array([0.0, 1e-6, 0.999, 1.0, 1.001, 40.0]),
    )
    for servers in (4, 4.5):
        for result in (
            laws.MEANS[method](load, 1.0, servers, scv),
            laws.QUANTILES[method](load, 1.0, servers, scv, 0.9),
            wait_probability(load, 1.0, servers, scv),
        ):
            assert not np.isnan(result).any() and (result >= 0).all()
        unstable = np.broadcast_to(load >= servers, (6, 6))
        assert np.isinf(laws.MEANS[method](load, 1.0, servers, scv)[unstable]).all()
        assert np.isinf(laws.QUANTILES[method](load, 1.0, servers, scv, 0.0)[unstable]).all()
        assert (wait_probability(load, 1.0, servers, scv)[unstable] == 1.0).all()


# Order -----------------------------------------------------------------


@pytest.mark.parametrize("method", ["conservative", "tijms", "cosmetatos", "fleetopt"])
@settings(max_examples=25, deadline=None)
@given(
    servers=st.integers(1, 80), utilization=st.floats(0.3, 0.98), scv=st.sampled_from([0.0, 0.2, 0.7, 1.0, 2.0, 9.0]),
    quantile=st.sampled_from([0.5, 0.9, 0.99]), closer=st.floats(0.05, 0.9),
)  # fmt: skip
def test_monotone_in_load_servers_and_quantile(method, servers, utilization, scv, quantile, closer):
    load = servers * utilization
    here = laws.QUANTILES[method](load, 1.0, servers, scv, quantile)
    bound = here * (1 + 2e-3) + 1e-9
    assert laws.QUANTILES[method](load * closer, 1.0, servers, scv, quantile) <= bound
    assert laws.QUANTILES[method](load, 1.0, servers + 1, scv, quantile) <= bound
    assert laws.QUANTILES[method](load, 1.0, servers, scv, quantile * closer) <= bound
    assert laws.MEANS[method](load, 1.0, servers + 1, scv) <= laws.MEANS[method](load, 1.0, servers, scv)


def test_explicit_phases_stay_monotone_where_the_exact_route_ends(monkeypatch):
    monkeypatch.setattr("planner.queueing.mgc_law.LIMIT_PHASE_SERVERS", 20)
    law = ServiceLaw.hyperexponential([0.9, 0.1], [0.5, 5.5])
    for load in (12.0, 17.0, 19.5, 20.5):
        waits = [wait_quantile(load, 1.0, c, quantile=0.9, law=law) for c in (18, 19, 20, 21, 22, 25)]
        assert waits == sorted(waits, reverse=True)


def test_of_two_moments_the_largest_approximation_is_taken():
    for servers, load in ((2, 1.2), (8, 7.0), (30, 25.0), (200, 190.0)):
        top = wait_quantile(load, 1.0, servers, 5.0, [0.9, 0.99])
        for method in ("tijms", "cosmetatos", "fleetopt"):
            member = laws.QUANTILES[method](load, 1.0, servers, 5.0, [0.9, 0.99])
            assert (top >= member * (1 - 1e-12)).all()  # but for rounding


def test_units_and_shapes():
    law = ServiceLaw.from_samples([2.0, 3.0, 40.0], [6, 3, 1])
    assert law.mean == pytest.approx(6.1)
    seconds = wait_quantile(3.0 / law.mean, law.mean, 4, quantile=[0.9, 0.99], law=law)
    assert seconds == pytest.approx(law.mean * wait_quantile(3.0, 1.0, 4, quantile=[0.9, 0.99], law=law), rel=1e-9)
    assert isinstance(wait_quantile(3.0, 1.0, 4), float) and isinstance(mean_wait(3.0, 1.0, 4, law=law), float)
    assert wait_quantile([[1.0], [3.0]], 1.0, 4, 2.0, [0.5, 0.9, 0.99]).shape == (2, 3)


def test_many_servers_and_extreme_laws_stay_finite():
    for servers in (1e3, 1e5, 1e7):
        for scv in (0.0, 0.4, 6.0):
            wait = wait_quantile(servers - 0.5 * np.sqrt(servers), 1.0, servers, scv, 0.99)
            assert 0.0 < wait * np.sqrt(servers) < 60.0
    for law in (
        laws.pareto(1.2, 1e5),
        laws.lognormal(200.0),
        ServiceLaw.from_samples([0.0, 1.0], [0.999, 0.001]),
    ):
        waits = wait_quantile(6.0, 1.0, 8, quantile=[0.5, 0.9, 0.99, 0.999], law=law)
        assert np.isfinite(waits).all() and (np.diff(waits) >= 0).all()


@pytest.mark.parametrize("name, arguments, keywords", [
    ("arrival_rate", (-1.0, 1.0, 2), {}), ("arrival_rate", (np.nan, 1.0, 2), {}), ("service_time", (1.0, 0.0, 2), {}),
    ("servers", (1.0, 1.0, 0.5), {}), ("servers", (1.0, 1.0, np.nan), {}), ("service_scv", (1.0, 1.0, 2, -0.1), {}),
    ("quantile", (1.0, 1.0, 2, 1.0, 1.0), {}), ("quantile", (1.0, 1.0, 2, 1.0, -0.1), {}),
])  # fmt: skip
def test_nonsense_names_the_argument(name, arguments, keywords):
    with pytest.raises(ValueError, match=name):
        wait_quantile(*arguments, **keywords)


def test_exact_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="no exact solution"):
        wait_quantile_exact(3.0, 1.0, 4, law=laws.lognormal(2.0))


# The smallest pool -----------------------------------------------------


def brute_replicas(rate, service, slots, limit, scv, quantile, cap):
    if limit < 0:
        return np.inf
    n = max(1, int(np.ceil(rate * service / (cap * slots) - 1e-12)))
    while not (n * slots > rate * service and wait_quantile_fleetopt(rate, service, n * slots, scv, quantile) <= limit):
        n += 1
    return n


def test_min_replicas_is_brute_force():
    rng = np.random.default_rng(11)
    n = 150
    rate, service = 10 ** rng.uniform(-1, 3, n), 10 ** rng.uniform(-2, 1.3, n)
    slots, limit = rng.integers(1, 300, n).astype(float), rng.choice([-1.0, 0.0, 1e-3, 0.05, 0.5], n)
    scv, quantile = rng.choice([0.0, 1.0, 7.0], n), rng.choice([0.5, 0.99, 0.999], n)
    cap = rng.choice([0.5, 0.85, 1.0], n)
    found = min_replicas(rate, service, slots, limit, service_scv=scv, quantile=quantile, max_utilization=cap)
    expected = [brute_replicas(*x) for x in zip(rate, service, slots, limit, scv, quantile, cap, strict=True)]
    assert found.tolist() == expected


def test_min_replicas_does_not_slow_down_with_the_rate():
    share, service, slots = np.linspace(0.01, 1, 110), np.linspace(0.5, 30, 110), np.linspace(16, 256, 110).round()
    work = {}
    for rate in (10.0, 1e4, 1e6):
        found = min_replicas(rate * share, service, slots, 0.2, service_scv=2.0)
        work[rate] = calls(lambda r=rate: min_replicas(r * share, service, slots, 0.2, service_scv=2.0))
        assert (found * slots * 0.85 >= rate * share * service * (1 - 1e-12)).all()
    assert max(work[1e4], work[1e6]) < 2 * work[10.0]


@pytest.mark.parametrize("name, keywords", [
    ("arrival_rate", {"arrival_rate": -1.0}), ("service_time", {"service_time": 0.0}), ("slots", {"slots": 0.0}),
    ("wait_limit", {"wait_limit": np.nan}), ("service_scv", {"service_scv": -1.0}), ("quantile", {"quantile": 1.0}),
    ("max_utilization", {"max_utilization": 1.1}), ("max_utilization", {"max_utilization": 0.0}),
])  # fmt: skip
def test_min_replicas_nonsense_names_the_argument(name, keywords):
    with pytest.raises(ValueError, match=name):
        min_replicas(**{"arrival_rate": 1.0, "service_time": 1.0, "slots": 8, "wait_limit": 0.1, **keywords})


@pytest.mark.parametrize(
    ("servers", "load", "weights", "means", "stages"),
    [
        # a fifth of the jobs twenty times longer: 18 % optimistic before the two lengths were told apart
        (8, 0.4, [0.8, 0.2], [1.0, 20.0], 0),
        (8, 0.4, [0.9, 0.1], [1.0, 50.0], 0),
        (12, 0.6, [0.65, 0.35], [1.0, 10.0], 0),
        (24, 0.7, [0.65, 0.35], [1.0, 20.0], 0),
        (6, 0.5, [0.3, 0.5, 0.2], [0.2, 1.0, 8.0], 1),
    ],
)
def test_lengths_of_few_kinds_are_not_optimistic(servers, load, weights, means, stages) -> None:
    waits = laws.simulated_waits(servers, load, weights, means, stages, steps=3000, seed=4)
    law = laws.of_classes(weights, means, stages)
    levels = np.array([0.9, 0.99, 0.999])
    levels = levels[(waits > 0.0).mean() > 1.16 * (1.0 - levels)]
    true = np.quantile(waits, levels)
    # 16 groups of streams: the 99% interval of the simulation, which is a few per cent
    half = 2.95 * np.quantile(waits.reshape(16, -1), levels, axis=1).std(axis=1, ddof=1) / 4.0
    value = wait_quantile(load * servers, 1.0, servers, quantile=levels, law=law)
    assert np.all(value > 0.98 * true - half)
    assert np.all(value < 1.6 * true + half)


def test_three_phases_are_two_and_their_own_sum() -> None:
    from planner.queueing.exact import phase_row_wait, phase_type_wait
    from planner.queueing.service import Phases, TwoPhases

    levels = [0.5, 0.9, 0.999]
    two = phase_type_wait(4.0, 5, TwoPhases(0.9, 1.25, 1.0 / 2.8), levels)
    as_three = phase_row_wait(4.0, 5, Phases((0.9, 0.0, 0.1), (1.25, 1.0, 1.0 / 2.8), (0.0, 0.0, 0.0)), levels, 20.0)
    assert two is not None and as_three is not None
    assert as_three[0] == pytest.approx(two[0], rel=1e-12) and as_three[1] == pytest.approx(two[1], rel=1e-12)
    # read off a table of 256 steps
    assert as_three[2] == pytest.approx(two[2], rel=2e-3)
    # one server, phase 2 leads to phase 3: Pollaczek-Khinchine with the scv of an Erlang law of order two
    erlang = phase_row_wait(0.7, 1, Phases((0.0, 1.0, 0.0), (1.0, 2.0, 2.0), (0.0, 1.0, 0.0)), [0.9], 5.0)
    assert erlang is not None and erlang[1] == pytest.approx(0.7 * 1.5 / 2.0 / 0.3, rel=1e-9)
    with pytest.raises(ValueError, match="servers"):
        phase_row_wait(0.7, 17, Phases((0.0, 1.0, 0.0), (1.0, 2.0, 2.0), (0.0, 0.0, 0.0)), [0.9], 5.0)
    with pytest.raises(ValueError, match="horizon"):
        phase_row_wait(0.7, 2, Phases((0.0, 1.0, 0.0), (1.0, 2.0, 2.0), (0.0, 0.0, 0.0)), [0.9], 0.0)


@pytest.mark.parametrize(
    ("servers", "load", "weights", "means", "stages", "exact"),
    [
        # exact quantiles by make_mph_c.solve and .quantile, as benchmarks/accuracy_mgc.py uses them for drawn laws
        (
            24,
            0.8,
            (0.6462365, 0.3395036, 0.0142599),
            (0.1035047, 0.5177577, 5.8100667),
            1,
            {0.9: 0.327828, 0.99: 2.182902},
        ),
        (3, 0.3, (0.8116122, 0.1883878), (0.4550940, 7.2645032), 5, {0.99: 2.017478, 0.999: 4.136871}),
        # classes that overlap, so that no gap tells them apart: 65 % pessimistic at the median by the maximum alone
        (
            6,
            0.9,
            (0.976014, 0.023986),
            (0.8966962, 11.417843),
            2,
            {0.5: 0.882254, 0.9: 7.27211, 0.99: 17.07758, 0.999: 26.879166},
        ),
    ],
)
def test_phases_beyond_the_exact_solutions_are_bounded_from_both_sides(
    servers, load, weights, means, stages, exact
) -> None:
    """At most 2 % optimistic; three phases before 24 servers were 170 % pessimistic by the maximum alone."""
    law = laws.of_classes(weights, means, stages)
    law = ServiceLaw("hidden", 1.0, law.scv, law.third, law.partial_moments)
    waits = wait_quantile(load * servers, 1.0, servers, quantile=list(exact), law=law)
    error = waits / np.array(list(exact.values())) - 1.0
    assert error.min() > -0.02 and error.max() < 0.25
