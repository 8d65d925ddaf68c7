"""How sure it is that a fleet keeps its promises: by the critical speed of its replicas at several draws of the traffic.

Iterations that take s times as long are one replay. Of a draw of the traffic and a number of replicas one number says all, the
largest error of iteration times at which every promise is kept; here it is counted in standard deviations, z. The chance is the
mean over draws of P(error <= z). The middle draw is followed at every number of replicas; how far other draws lie from it is
looked for at the answer and taken along.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.catalog.profiles import HOLDS
from planner.plans import Narrowing, Sized, Sureness
from planner.size.fleet import Fleet
from planner.size.pool import Margin, Shortfall, below, deviation, error_of, normal_quantile

TOLERANCE = 0.1
"""Width to which a critical speed is bracketed, in standard deviations; within it the latencies at its ends say where it lies."""

FAR = 4.0
"""No critical speed is looked for beyond so many standard deviations: tails of the errors are not known."""

CHANCES = (0.1, 0.5, 0.9)
"""Chances of which the range of replicas is told."""

DRAWS, MORE_DRAWS, WELL_KNOWN = 4, 8, 0.1
"""Draws of the traffic, at even quantiles of how busy their busiest seconds are; more where iteration times are this well known."""

MOST_STEPS = 6
"""Numbers of replicas whose chances are told."""

CALIBRATED = 0.07
"""Band of iteration times measured on the GPU itself, the widest of the shipped ones [1]."""

GROWTH = 0.83
"""How fast the logarithm of the critical speed grows with that of the replicas, where nothing is known yet: .8 to .87 measured."""


At = Callable[[float, bool], float]
"""Deviations -> logarithm of the worst latency over its limit, and whether a broken promise need be told as infinite only."""


def critical(at: At, slope: float, guess: float) -> tuple[float, float]:
    """The deviations at which the worst promise of a fleet at one draw is just kept; at most :data:`FAR` either way.

    Parameters
    ----------
    at
        The fleet at that draw.
    slope
        How fast that grows with the deviations, as far as it is known.
    guess
        From where on it is looked for.

    Returns
    -------
    tuple
        The deviations, and the slope by then.
    """
    low, high, value, x = -math.inf, math.inf, 0.0, guess
    for _ in range(16):
        over = at(x, True)
        if over <= 0.0:
            if math.isfinite(low) and x > low and math.isfinite(value) and over > value:
                slope = _slope((over - value) / (x - low), slope)
            low, value = x, over
        else:
            high = x
        step = -value / slope
        if low >= FAR or high <= -FAR:
            return math.copysign(FAR, low if low >= FAR else high), slope
        if math.isfinite(low) and step < 0.3 * TOLERANCE:
            return min(low + step, high), slope
        if high - low < TOLERANCE:
            return 0.5 * (low + high), slope
        if math.isinf(high):
            x = min(low + max(step, TOLERANCE), FAR)
        elif math.isinf(low):
            x = max(high - max(4.0 * TOLERANCE, guess - high), -FAR)
        else:
            x = min(low + max(step, 0.5 * TOLERANCE), high - 0.25 * (high - low))
    return low if math.isfinite(low) else high, slope


def critical_near(at: At, slope: float, guess: float) -> float:
    """The same near a guess, from latencies there whether kept or not."""
    over = at(guess, False)
    if not abs(over) / slope < 1.5:
        return critical(at, slope, guess)[0]
    x = guess - over / slope
    if abs(x - guess) > 3.0 * TOLERANCE:
        again = at(x, False)
        if math.isfinite(again) and again != over:
            x -= again / _slope((again - over) / (x - guess), slope)
    return min(max(x, -FAR), FAR)


def _slope(seen: float, known: float) -> float:
    """A slope between two answers, not too far from the one that was known."""
    return min(max(seen, 0.3 * known), 3.0 * known)


class Errors:
    """What the errors of iteration times and the draws of the traffic make of a fleet.

    Parameters
    ----------
    fleet
        The fleet with its sizes.
    rate_per_s
        Rate of the fleet [1/s].
    """

    def __init__(self, fleet: Fleet, rate_per_s: float) -> None:
        self.fleet, self.rate, self.count = fleet, rate_per_s, fleet.errors
        self.sd = max(error_of(p.option.profile, fleet.promises.latency) for p in fleet.pools)
        pool = fleet.pools[0]
        ranked = pool.model.draws(rate_per_s * pool.law.share)
        wanted = MORE_DRAWS if self.sd < WELL_KNOWN else DRAWS
        self.draws: list[int | None] = [None]
        if ranked.size > 1:
            self.draws = [int(ranked[int((k + 0.5) / wanted * ranked.size)]) for k in range(wanted)]
        self.slope = 5.0 * self.sd
        self.shifts = [0.0]

    def critical(self, counts: Sequence[int], guess: float) -> float:
        """Deviations up to which so many replicas keep every promise at the middle draw."""
        found, self.slope = critical(self._at(counts, None), self.slope, guess)
        return found

    def spread(self, guess: float) -> float:
        """Follow the other draws with the fleet as it stands: how far they lie from the middle one, which is returned."""
        own = self.fleet.counts
        middle = self.critical(own, guess)
        if len(self.draws) > 1:
            self.shifts = [critical_near(self._at(own, d), self.slope, middle) - middle for d in self.draws]
        return middle

    def borne(self) -> float:
        """What :meth:`spread` says of a sample, or where that is short of the confidence asked for, of all requests: they decided
        how many replicas keep it."""
        margins = self.fleet.margins(self.fleet.promises.confidence)
        middle = self.spread(margins[0].deviations)
        needed = self.deviations_for(self.fleet.promises.confidence)
        margins = [replace(margin, deviations=needed) for margin in margins]
        return needed if middle < needed and self.fleet.stands(self.rate, margins) else middle

    def chance(self, middle: float) -> float:
        """The chance where the middle draw bears so many deviations."""
        return math.fsum(below(middle + shift) ** self.count for shift in self.shifts) / len(self.shifts)

    def deviations_for(self, confidence: float) -> float:
        """The deviations that the middle draw has to bear for a chance."""
        low, high = -2.0 * FAR, 2.0 * FAR
        for _ in range(50):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.chance(middle) < confidence else (low, middle)
        return high

    def _at(self, counts: Sequence[int], draw: int | None) -> At:
        fleet = self.fleet.resized(counts)
        return lambda z, quick: fleet.slowed(z, draw).excess(self.rate, quick)


def chance_at(fleet: Fleet, rate_per_s: float) -> float | None:
    """The chance that a fleet as it stands keeps its promises at a rate [1/s]; ``None`` where nothing is promised or the errors
    are not known."""
    if not fleet.promises.latency or not all(p.prediction.reliable for p in fleet.pools):
        return None
    errors = Errors(fleet, rate_per_s)
    return errors.chance(errors.borne()) if errors.sd > 0.0 else None


def sureness_of(fleet: Fleet) -> Sureness | None:
    """How sure a fleet is; ``None`` where nothing is promised or the errors are not known."""
    if not fleet.promises.latency or not all(p.prediction.reliable for p in fleet.pools):
        return None
    errors, asked = Errors(fleet, fleet.rate), fleet.promises.confidence
    if errors.sd == 0.0:
        return None
    own = fleet.counts
    middle = errors.borne()

    def near(confidence: float, sd: float | None = None) -> list[int] | None:
        """Sizes with another chance, or at another deviation; ``None`` where no number has it."""
        deviations = errors.deviations_for(confidence)
        margins = [Margin(deviations, m.sd if sd is None else min(sd, m.sd)) for m in fleet.margins(confidence)]
        moved = math.exp((math.log(margins[0].slow) - middle * errors.sd) / GROWTH)
        found = fleet.sizes_for(fleet.rate, margins, [max(round(n * moved), 1) for n in own], quick=True)
        return None if isinstance(found, Shortfall) else [size.replicas for size in found]

    # what one pool takes of a promise of the fleet hangs on the others: none is sized but what was asked
    sizes: dict[float, list[int] | None] = {}
    for level in CHANCES:
        sizes[level] = own if level == asked or fleet.promises.of_fleet else near(level)
    steps = {}
    for told in _steps(own, [s for s in sizes.values() if s is not None]):
        # how far the logarithm of the critical speed moves from one fleet to another, roughly
        moved = GROWTH * min(math.log(n / m) for n, m in zip(told, own, strict=True))
        z = middle if told == own else errors.critical(told, middle + moved / errors.sd)
        other = fleet.resized(told)
        gpus, cost = sum(p.gpus for p in other.pools), other.cost_usd_per_hour
        steps[tuple(told)] = Sized(errors.chance(z), tuple(told), gpus, cost)
    low, median, high = (
        Sized(level, None) if (counts := sizes[level]) is None else steps[tuple(counts)] for level in CHANCES
    )
    return Sureness(
        confidence=asked,
        chance=errors.chance(middle),
        sd=errors.sd,
        draws=len(errors.draws),
        deviations=errors.deviations_for(asked),
        median=median,
        low=low,
        high=high,
        steps=tuple(steps.values()),
        most=most_chance(fleet, errors),
        narrowing=_narrowing(fleet, errors, near),
    )


def _steps(own: list[int], others: list[list[int]]) -> list[list[int]]:
    """Sizes whose chances are told, fewest first: all in between of one pool, as far as they are few."""
    if len(own) > 1:
        return sorted([list(c) for c in {tuple(c) for c in [own, *others]}], key=sum)
    ends = [n for (n,) in others] or own
    low, high = min(*ends, own[0]), max(*ends, own[0])
    count = min(MOST_STEPS, high - low + 1)
    between = {low + round(k * (high - low) / max(count - 1, 1)) for k in range(count)}
    return [[n] for n in sorted({*between, *ends, own[0]})]


def most_chance(fleet: Fleet, errors: Errors) -> float:
    """The chance that no number of replicas of these pools passes: that of idle engines [1]."""
    found = []
    for pool in fleet.pools:
        slow = math.exp(errors.sd)
        for p in fleet.own_promises:
            own, slowed = (
                m.unloaded(fleet.levels).value(p.metric, p.quantile) for m in (pool.model, pool.model.under(slow))
            )
            if not slowed > own:
                continue
            slowest = 1.0 + (p.limit_s - own) * (slow - 1.0) / (slowed - own)
            found.append(below(math.log(slowest) / errors.sd) if slowest > 0.0 else 0.0)
    return min(found, default=1.0) ** errors.count


def _narrowing(
    fleet: Fleet, errors: Errors, near: Callable[[float, float | None], list[int] | None]
) -> tuple[Narrowing, ...]:
    """What knowing more would save at the same confidence, the most first."""
    asked, gpus, cost = fleet.promises.confidence, sum(p.gpus for p in fleet.pools), fleet.cost_usd_per_hour
    found = []
    measured = deviation(CALIBRATED, HOLDS["measured"])
    if errors.sd > measured and not fleet.promises.of_fleet and (counts := near(asked, measured)) is not None:
        then = fleet.resized(counts)
        fewer = max(gpus - sum(p.gpus for p in then.pools), 0)
        found.append(Narrowing("calibration", measured, fewer, max(cost - then.cost_usd_per_hour, 0.0)))
    if len(errors.shifts) > 1:
        mean = math.fsum(errors.shifts) / len(errors.shifts)
        hours = math.sqrt(math.fsum((s - mean) ** 2 for s in errors.shifts) / (len(errors.shifts) - 1))
        # both errors together widen the one that was sized for
        wider = max(normal_quantile(asked), 0.0) * (math.hypot(1.0, hours) - 1.0) * errors.sd / GROWTH
        fewer = max(math.floor(gpus * (1.0 - math.exp(-wider))), 0)
        found.append(Narrowing("trace", hours * errors.sd, fewer, fewer * cost / max(gpus, 1)))
    return tuple(sorted(found, key=lambda n: -n.cost_usd_per_hour))
