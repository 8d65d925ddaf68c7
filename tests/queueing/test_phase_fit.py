"""Mixtures of Erlang laws that stand in for a service law: what they keep, what they find again, and the queues they give."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from planner.queueing.mgc import wait_quantile
from planner.queueing.mgc_mixture import solve_mixture
from planner.queueing.phase_fit import fitted
from planner.queueing.service import ServiceLaw

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import service_laws as laws

sys.path.pop(0)

OTHERS = [
    laws.lognormal(0.8), laws.lognormal(7.5), laws.pareto(1.5, 300.0), ServiceLaw.gamma(0.3), ServiceLaw.gamma(4.0),
    ServiceLaw.from_samples([0.4, 0.5, 0.7, 1.1, 1.9, 2.1, 6.0], [3, 2, 5, 4, 2, 2, 1]),
]  # fmt: skip


@pytest.mark.parametrize("law", OTHERS, ids=lambda law: f"{law.name}-{law.scv:.2f}")
@pytest.mark.parametrize("phases", [3, 4, 6])
def test_a_mixture_has_the_mean_and_the_second_moment(law, phases):
    fit = fitted(law, phases)
    if fit is None:  # so few stages vary more than this law
        assert law.scv < 1.0 / (phases - 2)
        return
    assert sum(n for _, _, n in fit.classes) <= phases
    weight, mean, stages = (np.array(column) for column in zip(*fit.classes, strict=True))
    assert weight.min() > 0.0 and weight.sum() == pytest.approx(1.0, rel=1e-9)
    assert weight @ mean == pytest.approx(1.0, rel=1e-9)
    assert weight @ (mean**2 * (1.0 + 1.0 / stages)) == pytest.approx(1.0 + law.scv, rel=1e-9)


def test_more_stages_are_no_worse_and_a_mixture_is_found_again():
    off = [fit.off for fit in (fitted(laws.lognormal(2.0), n) for n in (2, 3, 4, 5, 6)) if fit is not None]
    assert len(off) == 5 and off == sorted(off, reverse=True)
    for weights, means, stages, phases in (([0.9, 0.1], [0.5, 5.5], 1, 2), ([0.7, 0.25, 0.05], [0.4, 1.6, 7.0], 1, 3),
                                           ([0.6, 0.4], [0.5, 2.0], 2, 4)):  # fmt: skip
        fit = fitted(laws.of_classes(weights, means, stages), phases)
        # the means are looked for on a grid of a few per cent; the distance is of probabilities
        assert fit is not None and fit.off < 0.004
        scale = np.dot(weights, means)
        assert [m for _, m, _ in fit.classes] == pytest.approx([m / scale for m in means], rel=0.25)


def test_constants_have_no_mixture_and_a_tail_that_it_lacks_is_said():
    assert fitted(ServiceLaw.deterministic(), 6) is None
    heavy, light = fitted(laws.pareto(2.4, 2500.0), 3), fitted(ServiceLaw.gamma(2.0), 3)
    assert heavy is not None and light is not None
    # two or three exponential tails follow a Pareto law for a few decades only, and a gamma law as far as one looks
    assert heavy.reach > 1e-5 > light.reach


def test_where_the_tail_is_lacking_the_mixture_says_nothing():
    # three servers at 0.9: one long request leaves the others overloaded, so the wait of one in a thousand is its length
    law = laws.pareto(2.4, 2500.0)
    mixed = solve_mixture(law, 3.0, 2.7, np.array([0.5, 0.999]))
    assert mixed is not None
    assert np.isfinite(mixed.solution[2][0]) and np.isinf(mixed.solution[2][1])
    assert np.isfinite(wait_quantile(2.7, 1.0, 3, quantile=0.999, law=law))


def test_what_a_mixture_may_hide_is_added():
    """A queue in stages that is known exactly, by a law of less stages: never below it by more than its table's half per cent."""
    law = laws.of_classes([0.75, 0.25], [0.5, 2.5], 3)
    hidden = ServiceLaw("hidden", 1.0, law.scv, law.third, law.partial_moments)
    levels = np.array([0.9, 0.99, 0.999])
    # make_mph_c.solve(4, 3.2, ...) of tests/golden with six phases, and .quantile
    exact = np.array([2.600525, 6.011262, 9.421403])
    mixed = solve_mixture(hidden, 4.0, 3.2, levels)
    assert mixed is not None
    assert (mixed.solution[2] > 0.995 * exact).all() and (mixed.solution[2] < 1.15 * exact).all()


def test_more_servers_wait_less_where_the_method_changes():
    # four stages to three, three to two and fewer servers, and the last that are solved themselves; at equal load
    law = laws.lognormal(4.0)
    for around in ((8, 9, 10), (15, 16, 17, 18), (63, 64, 65, 66)):
        waits = [float(wait_quantile(0.92 * around[0], 1.0, c, quantile=0.99, law=law)) for c in around]
        assert waits == sorted(waits, reverse=True)
