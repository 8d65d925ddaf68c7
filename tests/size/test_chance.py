"""How sure a fleet is, where the answer is known: fleets whose critical speed is a power of their replicas.

A fleet of n replicas keeps its promise up to iterations (n / N)^G times as long as the profile says, at each draw of the traffic a
little more or less. All chances, sizes and savings then follow from the normal distribution of the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from planner.promise import Promise
from planner.size.pool import MEDIAN, Margin, Shortfall, below, deviation, normal_quantile
from planner.size.sure import Errors, chance_at, critical, critical_near, most_chance, sureness_of

NORMAL = NormalDist()
BAND = 0.26
SD = math.log(1.26) / NORMAL.inv_cdf(0.95)
"""Nine in ten lie within the band: one in twenty above it."""


def test_quantiles_and_chances_of_the_normal_distribution() -> None:
    for p in (1e-6, 0.01, 0.2, 0.5, 0.7, 0.95, 1 - 1e-6):
        assert normal_quantile(p) == pytest.approx(NORMAL.inv_cdf(p), abs=1e-8)
        assert below(NORMAL.inv_cdf(p)) == pytest.approx(p, rel=1e-9)
    # nine in ten, and eight in ten, lie within the band: a twentieth and a tenth above it
    assert deviation(BAND, 0.9) == pytest.approx(SD, rel=1e-12) and deviation(0.0, 0.9) == 0.0
    assert deviation(BAND, 0.8) == pytest.approx(math.log(1.26) / NORMAL.inv_cdf(0.9), rel=1e-12)


def test_a_margin_is_so_many_deviations_of_the_band() -> None:
    profile = profile_of(BAND)
    for confidence, errors in ((0.8, 1), (0.8, 2), (0.3, 1), (0.95, 3)):
        margin = Margin.of(confidence, profile, PROMISED, errors)
        # all of the independent errors have to be small enough at once
        assert NORMAL.cdf(margin.deviations) ** errors == pytest.approx(confidence, abs=1e-9)
        assert margin.sd == pytest.approx(SD, rel=1e-12)
        assert margin.slow == pytest.approx(math.exp(margin.deviations * SD), rel=1e-12)
    # half is what the profile says where nothing else may err, to the bit, and one error is what is meant unless told otherwise
    assert Margin.of(0.5, profile, PROMISED) == Margin(0.0, deviation(BAND, 0.9))
    assert Margin.of(0.8, profile, PROMISED).deviations == pytest.approx(NORMAL.inv_cdf(0.8), abs=1e-9)
    # prompts err too where first tokens are promised, no matter what else is
    prompts = profile_of(BAND, prefill=0.5)
    for promised, band in ((["ttft_s"], 0.5), (["tpot_s"], BAND), (["tpot_s", "ttft_s"], 0.5), ([], BAND)):
        sd = Margin.of(0.8, prompts, [Promise(metric, 1.0) for metric in promised]).sd
        assert sd == pytest.approx(math.log1p(band) / NORMAL.inv_cdf(0.95), rel=1e-12)
    assert (MEDIAN.deviations, MEDIAN.sd, MEDIAN.slow) == (Margin().deviations, Margin().sd, 1.0) == (0.0, 0.0, 1.0)
    assert Margin(1.0).slow == 1.0 and Margin(sd=0.3).slow == 1.0


def test_the_most_chance_is_that_of_an_error_small_enough() -> None:
    margin = Margin(0.0, 0.2)
    for slowest in (0.7, 1.0, 1.25, 3.0):
        assert margin.most_chance(slowest) == pytest.approx(NORMAL.cdf(math.log(slowest) / 0.2), abs=1e-12)
    assert margin.most_chance(0.0) == margin.most_chance(-1.0) == 0.0
    assert Margin(0.0, 1.0).most_chance(math.e) == pytest.approx(NORMAL.cdf(1.0))
    assert [MEDIAN.most_chance(s) for s in (0.999, 1.0, 1.001)] == [0.0, 1.0, 1.0]


PROMISED = (Promise("ttft_s", 0.5),)


def profile_of(band: float, prefill: float | None = None) -> Any:
    """Measured: nine in ten within the band."""
    return SimpleNamespace(band=band, band_prefill=prefill, holds=0.9)


@dataclass
class Counted:
    """The worst latency over its limit, as a logarithm, and how often it was asked for."""

    root: float
    steep: float
    bend: float = 0.0
    asked: list[tuple[float, bool]] = field(default_factory=list)

    def __call__(self, z: float, quick: bool) -> float:
        self.asked.append((z, quick))
        over = self.steep * (z - self.root)
        if self.bend:
            over += self.bend * over * abs(over)
        return math.inf if quick and over > 0.0 else over


@pytest.mark.parametrize("bend", [0.0, 0.4])
@pytest.mark.parametrize("believed", [0.4, 1.0, 2.5])
def test_a_critical_speed_is_found_from_any_guess(believed: float, bend: float) -> None:
    """Bracketed to a tenth of a standard deviation, by what quick answers tell alone, in few replays."""
    steep, furthest, most = 0.7, 0.0, 0
    for root in (-3.7, -1.0, 0.0, 0.84, 2.0, 3.8):
        for guess in (-1.5, 0.0, 0.8, 2.5):
            at = Counted(root, steep, bend)
            found = critical(at, believed * steep, guess)[0]
            furthest, most = max(furthest, abs(found - root)), max(most, len(at.asked))
            assert all(quick for _, quick in at.asked)
            assert all(-4.0 <= z <= 4.0 for z, _ in at.asked)
            steps = [b - a for (a, _), (b, _) in pairwise(at.asked)]
            assert 0.0 not in steps
    assert furthest <= 0.05  # half of what it is bracketed to
    assert most <= 14


def test_a_right_guess_is_told_at_once() -> None:
    at = Counted(0.84, 0.7)
    assert critical(at, 0.7, 0.83)[0] == pytest.approx(0.84, abs=1e-9) and len(at.asked) == 1
    # a limit that is met to the bit is kept
    at = Counted(0.5, 0.7)
    assert critical(at, 0.7, 0.5)[0] == 0.5 and len(at.asked) == 1
    # two answers tell how fast latencies grow
    at = Counted(1.0, 0.7)
    found, slope = critical(at, 0.5, 0.0)
    assert found == pytest.approx(1.0, abs=0.05)
    assert slope == pytest.approx(0.7, rel=0.2)


def test_no_critical_speed_is_looked_for_beyond_four_deviations() -> None:
    for root, found in ((9.0, 4.0), (-9.0, -4.0), (math.inf, 4.0)):
        at = Counted(root, 0.7)
        assert critical(at, 0.7, 0.5)[0] == found
        assert critical_near(Counted(root, 0.7), 0.7, 0.5) == found


def test_another_draw_lies_near_the_middle_one() -> None:
    """Near the guess one answer is enough, further off a second tells the slope; either is asked for whether it is kept or not."""
    near = Counted(0.9, 0.7)
    assert critical_near(near, 0.7, 0.8) == pytest.approx(0.9, abs=1e-9)
    assert near.asked == [(0.8, False)]
    for root, believed in ((1.5, 0.5), (0.1, 0.9), (1.4, 1.0)):
        far = Counted(root, 0.7)
        assert critical_near(far, believed, 0.8) == pytest.approx(root, abs=1e-6)
        assert [quick for _, quick in far.asked] == [False, False]
    beyond = Counted(3.5, 0.7)
    assert critical_near(beyond, 0.7, 0.8) == pytest.approx(3.5, abs=0.1)
    assert [quick for _, quick in beyond.asked][:2] == [False, True]


GROWTH, ALONE, STEEP = 0.83, 40.0, 5.0
SHIFTS = {8: -0.4, 24: -0.1, 40: 0.1, 56: 0.6}
"""Draw, of those at even quantiles of 64 -> by how many deviations more than the middle one it bears."""

EVERY = tuple(SHIFTS.values())


@dataclass
class Known:
    """A fleet of one pool whose critical speed is known; of GPUs two a replica, at 3 USD an hour each."""

    counts: list[int]
    confidence: float = 0.8
    band: float = BAND
    errors: int = 1
    shifts: dict[int | None, float] = field(default_factory=lambda: {None: 0.0, **SHIFTS})
    draws: int = 64
    of_fleet: bool = False
    reliable: bool = True
    rate: float = 30.0
    levels: tuple[float, ...] = (0.99,)
    asked_of_draws: list[float] = field(default_factory=list)
    z: float = 0.0
    draw: int | None = None

    @property
    def sd(self) -> float:
        return math.log1p(self.band) / NORMAL.inv_cdf(0.95)

    @property
    def promises(self) -> Any:
        return SimpleNamespace(latency=PROMISED, confidence=self.confidence, of_fleet=self.of_fleet)

    @property
    def own_promises(self) -> list[Any]:
        return [SimpleNamespace(metric="ttft_s", quantile=0.99, limit_s=0.5)]

    @property
    def cost_usd_per_hour(self) -> float:
        return 6.0 * sum(self.counts)

    @property
    def pools(self) -> list[Any]:
        def ranked(rate: float) -> Any:
            self.asked_of_draws.append(rate)
            return np.arange(self.draws)

        def idle(slow: float) -> Any:  # 0.1 s that no engine shortens, and 0.2 s of iterations
            return SimpleNamespace(
                unloaded=lambda levels: SimpleNamespace(value=lambda metric, quantile: 0.1 + 0.2 * slow)
            )

        model = SimpleNamespace(draws=ranked, under=idle, unloaded=idle(1.0).unloaded)
        return [
            SimpleNamespace(
                option=SimpleNamespace(profile=profile_of(self.band)),
                model=model,
                law=SimpleNamespace(share=0.5),
                gpus=2 * n,
                prediction=SimpleNamespace(reliable=self.reliable),
            )
            for n in self.counts
        ]

    def margins(self, confidence: float) -> list[Margin]:
        return [Margin(NORMAL.inv_cdf(confidence), self.sd) for _ in self.counts]

    def resized(self, counts: Any) -> Known:
        return replace(self, counts=list(counts))

    def slowed(self, z: float, draw: int | None) -> Known:
        return replace(self, z=z, draw=draw)

    def excess(self, rate: float, quick: bool) -> float:
        assert rate == self.rate
        over = STEEP * (self.sd * (self.z - self.shifts[self.draw]) - GROWTH * math.log(min(self.counts) / ALONE))
        return math.inf if quick and over > 0.0 else over

    def sizes_for(self, rate: float, margins: list[Margin], guesses: list[int], quick: bool) -> Any:
        assert rate == self.rate and quick
        wanted = [least(m.deviations, m.sd) for m in margins]
        # a guess saves replays only where it is near
        assert all(abs(g - w) <= len(guesses) for g, w in zip(guesses, wanted, strict=True))
        if max(wanted) > 1000:
            return Shortfall.__new__(Shortfall)
        return [SimpleNamespace(replicas=n) for n in wanted]


def least(deviations: float, sd: float = SD) -> int:
    """Fewest replicas that bear so many deviations at the middle draw."""
    return math.ceil(ALONE * math.exp(deviations * sd / GROWTH))


def chance(n: int, shifts: Sequence[float] = EVERY, errors: int = 1, sd: float = SD) -> float:
    """Of n replicas: the mean over draws."""
    middle = GROWTH * math.log(n / ALONE) / sd
    return sum(NORMAL.cdf(min(max(middle + s, -4.0), 4.0)) ** errors for s in shifts) / len(shifts)


def bears(confidence: float, errors: int = 1, shifts: Sequence[float] = EVERY) -> float:
    """Deviations that the middle draw has to bear for a chance, by bisection."""
    low, high = -5.0, 5.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        found = sum(NORMAL.cdf(middle + s) ** errors for s in shifts) / len(shifts)
        low, high = (middle, high) if found < confidence else (low, middle)
    return high


def test_draws_lie_at_even_quantiles_and_are_more_where_engines_are_well_known() -> None:
    fleet = Known([50])
    errors = Errors(fleet, 30.0)  # type: ignore[arg-type]
    assert errors.draws == [8, 24, 40, 56] and fleet.asked_of_draws == [15.0]
    assert errors.sd == pytest.approx(SD) and errors.shifts == [0.0] and errors.count == 1
    assert errors.slope == pytest.approx(5.0 * SD)
    known = Errors(Known([50], band=0.1), 30.0)  # type: ignore[arg-type]
    assert known.draws == [4, 12, 20, 28, 36, 44, 52, 60]
    assert Errors(Known([50], draws=1), 30.0).draws == [None]  # type: ignore[arg-type]
    assert Errors(Known([50], draws=2), 30.0).draws == [0, 0, 1, 1]  # type: ignore[arg-type]


def test_the_widest_band_of_the_pools_counts() -> None:
    fleet = Known([50, 50])
    narrow, wide = fleet.pools
    narrow.option.profile.band = 0.01
    one = SimpleNamespace(pools=[wide, narrow], errors=2, promises=fleet.promises)
    other = SimpleNamespace(pools=[narrow, wide], errors=2, promises=fleet.promises)
    for pools in (one, other):
        assert Errors(pools, 30.0).sd == pytest.approx(SD)  # type: ignore[arg-type]


@pytest.mark.parametrize("errors", [1, 2])
def test_the_chance_is_the_mean_over_draws(errors: int) -> None:
    found = Errors(Known([47], errors=errors), 30.0)  # type: ignore[arg-type]
    middle = found.spread(0.5)
    assert middle == pytest.approx(GROWTH * math.log(47 / ALONE) / SD, abs=0.02)
    assert found.shifts == pytest.approx(list(SHIFTS.values()), abs=0.02)
    assert found.chance(middle) == pytest.approx(chance(47, errors=errors), abs=0.005)
    for wanted in (0.1, 0.5, 0.8, 0.99):
        assert found.deviations_for(wanted) == pytest.approx(bears(wanted, errors), abs=0.02)
    assert found.critical([60], 2.0) == pytest.approx(GROWTH * math.log(1.5) / SD, abs=0.03)


def test_all_that_is_told_of_a_fleet() -> None:
    own = least(bears(0.8))
    told = sureness_of(Known([own]))  # type: ignore[arg-type]
    assert told is not None
    assert (told.confidence, told.draws) == (0.8, 4) and told.sd == pytest.approx(SD)
    assert told.chance == pytest.approx(chance(own), abs=0.005)
    assert told.deviations == pytest.approx(bears(0.8), abs=0.02)
    for sized, level in ((told.low, 0.1), (told.median, 0.5), (told.high, 0.9)):
        n = least(bears(level))
        assert sized.replicas is not None and abs(sized.replicas[0] - n) <= 1
        assert sized.chance == pytest.approx(chance(sized.replicas[0]), abs=0.021)
        assert (sized.gpus, sized.cost_usd_per_hour) == (2 * sized.replicas[0], 6.0 * sized.replicas[0])
    counts = [s.replicas[0] for s in told.steps if s.replicas]
    assert counts == sorted(set(counts)) and {own, told.low.replicas[0], told.high.replicas[0]} <= set(counts)  # type: ignore[index]
    assert counts[0] == told.low.replicas[0] and counts[-1] == told.high.replicas[0]  # type: ignore[index]
    between = {counts[0] + round(k * (counts[-1] - counts[0]) / 5) for k in range(6)}
    assert set(counts) == between | {own, told.median.replicas[0]}  # type: ignore[index]
    for step in told.steps:  # half a bracket of a tenth, where the density is 0.4 at most
        assert step.chance == pytest.approx(chance(step.replicas[0]), abs=0.021)  # type: ignore[index]
    # idle, 0.3 s of 0.5: iterations twice as long break it
    assert told.most == pytest.approx(NORMAL.cdf(math.log(2.0) / SD), abs=1e-9)


def test_what_knowing_more_would_save() -> None:
    own = least(bears(0.8))
    told = sureness_of(Known([own]))  # type: ignore[arg-type]
    assert told is not None
    saved = {n.by: n for n in told.narrowing}
    measured = math.log(1.07) / NORMAL.inv_cdf(0.95)
    fewer = 2 * (own - least(bears(0.8), measured))
    assert abs(saved["calibration"].gpus - fewer) <= 2
    assert saved["calibration"].cost_usd_per_hour == 3.0 * saved["calibration"].gpus
    assert saved["calibration"].sd == pytest.approx(measured, rel=1e-9)
    mean = sum(SHIFTS.values()) / 4
    hours = math.sqrt(sum((s - mean) ** 2 for s in SHIFTS.values()) / 3)
    wider = NORMAL.inv_cdf(0.8) * (math.hypot(1.0, hours) - 1.0) * SD / GROWTH
    assert saved["trace"].sd == pytest.approx(hours * SD, abs=0.003)
    assert abs(saved["trace"].gpus - math.floor(2 * own * (1.0 - math.exp(-wider)))) <= 1
    assert saved["trace"].cost_usd_per_hour == pytest.approx(3.0 * saved["trace"].gpus)
    # what saves most comes first
    assert [n.by for n in told.narrowing] == ["calibration", "trace"]
    assert saved["calibration"].cost_usd_per_hour > saved["trace"].cost_usd_per_hour > 0.0
    # of hours that differ by three deviations, with engines known almost as well as can be
    wide = {4 + 8 * k: (-1.5, 1.5)[k % 2] for k in range(8)}
    of_sd = math.log(1.08) / NORMAL.inv_cdf(0.95)
    enough = least(bears(0.8, shifts=list(wide.values())), of_sd)
    wild = sureness_of(Known([enough], band=0.08, shifts={None: 0.0, **wide}))  # type: ignore[arg-type]
    assert wild is not None and [n.by for n in wild.narrowing] == ["trace", "calibration"] and wild.draws == 8
    assert wild.narrowing[0].sd == pytest.approx(math.sqrt(8 * 1.5**2 / 7) * of_sd, abs=0.003)


def test_the_chance_of_a_standing_fleet_is_told_at_any_rate() -> None:
    """At another rate than the plan's too; none where nothing is promised, nothing is known to err, or no prediction is trusted."""
    for own, rate in ((47, 30.0), (60, 12.0)):
        assert chance_at(Known([own], rate=rate), rate) == pytest.approx(chance(own), abs=0.005)  # type: ignore[arg-type]
    assert chance_at(Known([47], band=0.0), 30.0) is None  # type: ignore[arg-type]
    assert chance_at(Known([47], reliable=False), 30.0) is None  # type: ignore[arg-type]

    class Free(Known):
        promises = SimpleNamespace(latency=(), confidence=0.8, of_fleet=False)

    assert chance_at(Free([47]), 30.0) is None and sureness_of(Free([47])) is None  # type: ignore[arg-type]


def test_what_is_measured_already_or_sized_fleet_wide_saves_nothing() -> None:
    alone = sureness_of(Known([47], band=0.07, draws=1))  # type: ignore[arg-type]
    assert alone is not None and alone.narrowing == () and alone.draws == 1
    assert alone.chance == pytest.approx(chance(47, [0.0], sd=math.log(1.07) / NORMAL.inv_cdf(0.95)), abs=0.01)
    wide = sureness_of(Known([47], of_fleet=True))  # type: ignore[arg-type]
    assert wide is not None and [n.by for n in wide.narrowing] == ["trace"]
    assert wide.median.replicas == wide.low.replicas == wide.high.replicas == (47,)


def test_nothing_is_told_where_nothing_is_known_of_errors() -> None:
    assert sureness_of(Known([47], reliable=False)) is None  # type: ignore[arg-type]
    assert sureness_of(Known([47], band=0.0)) is None  # type: ignore[arg-type]


def test_of_two_pools_only_what_was_sized_is_told() -> None:
    own = [least(bears(0.8)), least(bears(0.8)) + 2]
    told = sureness_of(Known(own))  # type: ignore[arg-type]
    assert told is not None
    sizes = [s.replicas for s in told.steps]
    assert tuple(own) in sizes and told.median.replicas in sizes and len(sizes) == len(set(sizes)) <= 4
    assert [sum(s) for s in sizes if s] == sorted(sum(s) for s in sizes if s)
    assert told.chance == pytest.approx(chance(own[0]), abs=0.01)
    assert told.median.gpus == 2 * sum(told.median.replicas or ())


def test_the_most_chance_is_of_the_promise_that_breaks_first() -> None:
    fleet = Known([50], errors=2)
    errors = Errors(fleet, 30.0)  # type: ignore[arg-type]
    assert most_chance(fleet, errors) == pytest.approx(NORMAL.cdf(math.log(2.0) / SD) ** 2)  # type: ignore[arg-type]

    class Tight(Known):
        own_promises = [  # noqa: RUF012
            SimpleNamespace(metric="ttft_s", quantile=0.99, limit_s=limit) for limit in (0.5, 0.34, 0.9)
        ]

    tight = Tight([50])
    # 0.04 s more of 0.2: a fifth longer
    assert most_chance(tight, Errors(tight, 30.0)) == pytest.approx(NORMAL.cdf(math.log(1.2) / SD))  # type: ignore[arg-type]
    Tight.own_promises = [SimpleNamespace(metric="ttft_s", quantile=0.99, limit_s=0.05)]
    assert most_chance(tight, Errors(tight, 30.0)) == 0.0  # type: ignore[arg-type]
