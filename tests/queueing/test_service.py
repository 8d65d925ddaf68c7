"""Service laws: every one against its own moments by quadrature, and against each other."""

from __future__ import annotations

import numpy as np
import pytest

from planner.queueing.service import ServiceLaw, two_phases

LAWS = [
    ServiceLaw.exponential(), ServiceLaw.gamma(0.1), ServiceLaw.gamma(0.4), ServiceLaw.gamma(2.5),
    ServiceLaw.hyperexponential([0.7, 0.2, 0.1], [1.0, 2.0, 9.0]), ServiceLaw.from_scv(0.3), ServiceLaw.from_scv(6.0),
]  # fmt: skip


def integral(function, low=0.0, high=1e4):
    edges = low + (high - low) * np.concatenate([[0.0], np.geomspace(1e-10, 1.0, 800)])
    nodes, weights = np.polynomial.legendre.leggauss(8)
    half = np.diff(edges) / 2
    return float(half @ (function(edges[:-1, None] + half[:, None] * (nodes + 1)) @ weights))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.name}-{law.scv:.3g}")
def test_moments_and_residuals_belong_to_the_survival(law):
    assert integral(law.survival) == pytest.approx(1.0, rel=1e-6)
    assert 2 * integral(lambda x: x * law.survival(x)) == pytest.approx(1 + law.scv, rel=1e-5)
    assert 3 * integral(lambda x: x * x * law.survival(x)) == pytest.approx(law.third, rel=1e-4)
    for x in (0.0, 0.3, 1.0, 4.0):
        assert law.residual_survival(x) == pytest.approx(integral(law.survival, x), rel=1e-6, abs=1e-12)
        assert law.residual_excess(x) == pytest.approx(integral(law.residual_survival, x), rel=1e-5, abs=1e-11)


def test_samples_are_scaled_sorted_and_weighted():
    law = ServiceLaw.from_samples([30.0, 10.0, 10.0], [1.0, 1.0, 2.0])
    assert (
        law.mean == 15.0
        and law.scv == pytest.approx(1 / 3)
        and law.third == pytest.approx((0.75 * 8 + 0.25 * 216) / 27)
    )
    assert law.survival([0.5, 0.7, 2.0]).tolist() == [1.0, 0.25, 0.0]
    assert law.residual_excess(0.0) == pytest.approx((1 + law.scv) / 2)


def test_three_moments_make_a_two_phase_law():
    for scv, third in ((1.5, 10.0), (4.0, 40.0), (4.0, 400.0), (30.0, 2000.0)):
        two = two_phases(scv, third)
        law = ServiceLaw.hyperexponential([two.first, 1.0 - two.first], [1.0 / two.rate_1, 1.0 / two.rate_2])
        assert (law.mean, law.scv, law.third) == pytest.approx((1.0, scv, third), rel=1e-9)
        assert law.phases is not None
    assert two_phases(4.0, 37.0) is two_phases(1.0, 6.0) is None


def test_phases_are_told_where_the_law_has_them():
    assert ServiceLaw.exponential().phases is not None
    assert ServiceLaw.hyperexponential([1, 1], [1.0, 2.0]).phases is not None
    assert ServiceLaw.hyperexponential([1, 1, 1], [1.0, 2.0, 3.0]).phases is None
    assert ServiceLaw.gamma(0.5).phases is None


NONSENSE = [
    ("scv", lambda: ServiceLaw.gamma(0.0)),
    ("weights", lambda: ServiceLaw.hyperexponential([-1.0, 2.0], [1.0, 1.0])),
    ("means", lambda: ServiceLaw.hyperexponential([1.0], [0.0])),
    ("values", lambda: ServiceLaw.from_samples([])),
    ("values", lambda: ServiceLaw.from_samples([-1.0, 2.0])),
    ("values", lambda: ServiceLaw.from_samples([0.0])),
    ("weights", lambda: ServiceLaw.from_samples([1.0, 2.0], [1.0])),
    ("weights", lambda: ServiceLaw.from_samples([1.0], [0.0])),
    ("service_scv", lambda: ServiceLaw.from_scv(-1.0)),
]


@pytest.mark.parametrize("name, build", NONSENSE)
def test_nonsense_names_the_argument(name, build):
    with pytest.raises(ValueError, match=name):
        build()
