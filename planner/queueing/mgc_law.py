r"""Waiting times of M/G/c from the whole service law: Tijms-van Hoorn-Federgruen, the exact cases, the safe maximum.

Read them through `planner.queueing.mgc`. Each solution is of one queue, in mean service times; `over_queues` spreads it
over arrays, one solution per distinct queue with all its quantiles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.queueing.erlang import erlang_c, log_erlang_c
from planner.queueing.exact import (
    LIMIT_PHASE_SERVERS,
    LIMIT_STATES,
    deterministic_wait,
    phase_row_wait,
    phase_states,
    phase_type_wait,
)
from planner.queueing.mgc_mixture import WAIT_PER_OFF, solve_mixture, type_solution
from planner.queueing.mgc_moments import (
    deterministic_excess,
    mean_wait_cosmetatos,
    mean_wait_fleetopt,
    wait_quantile_cosmetatos,
    wait_quantile_fleetopt,
)
from planner.queueing.service import Phases, ServiceLaw, TwoPhases, two_phases

type_array = npt.NDArray[np.float64]

# Name of a law of which two moments are all that is known.
_TWO_MOMENTS = "two moments"
# Distance of a mixture (`Fit.off`) below which it is the answer, and nothing else is looked at.
_NEAR = 0.012
# Servers up to which the conservative maximum also solves the two-phase queue with the law's first three moments:
# the approximations that take Erlang C for P(wait) are up to 1.8 % optimistic there, elsewhere only where P(wait) is
# so near 1 - q that the wait is next to nothing. It takes some 4 ms at this number, and grows as its cube.
_MATCHED_SERVERS = 32
# Two lengths are taken for such where the long ones spread by no more than this (squared coefficient of variation), carry the
# second moment (short over long; up to the second number, where the maximum of the approximations is no larger), are so much
# longer, and the servers are so few that exact queues of the two can be had. Lengths about two that spread by up to the next
# three numbers: few servers keep the bound, two exponential phases would be the better stand-in, no stand-in at all.
_LONG_SCV = 0.02
_SHORT_SHARE, _MOST_SHORT_SHARE = 0.3, 0.5
_BOUND_LONG_SCV, _BOUND_SERVERS = 0.15, 12
# Requests beyond half of what parts the lengths, over those beyond it, where the parting cuts no class in two.
_MOST_CUT = 1.75
_MOST_LONG_SCV = 0.6
_LEAST_RATIO = 1.5
_MOST_SERVERS_OF_TWO = 64
# Share of Erlang long lengths in what is taken for constant ones: the extrapolation from exponential and Erlang lengths is up
# to 19 % optimistic by itself over 741 simulated quantiles, and nowhere with a share of 0.15.
_KEPT_SPREAD = 0.2
# The same of lengths that spread, where fewer than this share of those who wait wait longer, and where more do.
_KEPT_OF_SPREAD, _FAR_TAIL = (0.25, 0.6), 0.05
# Share of the maximum that is kept where two classes are solved with fewer servers: 5 % optimistic at most without it.
_KEPT_OF_MAXIMUM = 0.1
# Servers up to which three phases have no more than `LIMIT_STATES` states.
_THREE_SERVERS = 16
# Places looked at for a gap between two classes of lengths, how far it reaches either way, and the share of the smaller class
# that may lie in it.
_GAPS, _GAP, _MOST_BETWEEN = 60, 1.3, 0.25
# Share of the second moment by which a class may vary more than exponentially.
_MOST_BEYOND = 0.01
# Share of what the stages that are missing add to the wait that is kept.
_KEPT_OF_STAGES = 0.15
# Points at which a class is compared with a gamma law.
_CLASS_POINTS = 48
# Powers of a class's mean by which its stages are worth more: to waits about as long as the short lengths, and to the tail.
_WORTH = (0.5, 2.5)
# Power of the squared coefficient of variation by which P(wait) lies between those of constants and of exponential
# lengths: over 150 simulated laws the true share was above that by no more than what makes half a per cent of P(wait).
_SPREAD_OF_WAITING = 1.0 / 3.0
# Largest number of servers at which M/D/c is solved itself; above, it is scaled at equal (1 - rho) sqrt(c).
_DETERMINISTIC_SERVERS = 2048
# Points of the lattice of the compound geometric law: 1e-4 of the quantile or better.
_LATTICE = 1 << 12


@lru_cache(maxsize=256)
def assumed_law(scv: float) -> ServiceLaw:
    """The law taken when only two moments are known; not passed off as exactly solvable where it is an assumption."""
    law = ServiceLaw.from_scv(scv)
    if law.name == "deterministic" or scv == 1.0:
        return law
    return ServiceLaw(_TWO_MOMENTS, law.mean, law.scv, law.third, law.partial_moments)


def _tijms_conditional(law: ServiceLaw, c: float, rho: float, tails: type_array) -> type_array:
    r"""Quantiles of the wait of those who wait, in mean service times: W | W > 0 = M + R_1 + ... + R_N.

    M is the least of c residual service times, R a residual service time divided by c, N geometric with ratio rho: the
    transform of Tijms, van Hoorn and Federgruen read as a sum. M and R are put on a lattice (R so that its mean is
    kept, M at the midpoints) and the sum is taken by a Fourier transform, damped against wrap-around (Gruebel and
    Hermesmeier). The lattice is refined until it has a few hundred points below the quantile.
    """
    out = np.zeros(tails.shape)
    todo = tails < 1.0
    n = _LATTICE
    damping = np.exp(-20.0 / (2 * n) * np.arange(n))
    residual = 0.5 * (1.0 + law.scv)
    span = max(1.0 - float(np.log(tails.min(initial=1.0))), 1.5) * residual / (c * (1.0 - rho))
    steps = np.arange(n + 1.0)
    for _ in range(60):
        if not todo.any():
            break
        h = span / n
        excess = law.residual_excess(c * h * steps) / c
        mass = np.empty(n)
        mass[0] = 1.0 - (excess[0] - excess[1]) / h
        mass[1:] = np.maximum((excess[:-2] - 2.0 * excess[1:-1] + excess[2:]) / h, 0.0)
        with np.errstate(under="ignore", divide="ignore"):
            least = np.exp(c * np.log(law.residual_survival((steps[:-1] + 0.5) * h)))
            first = -np.diff(least, prepend=1.0)
            ratio = rho * np.fft.rfft(mass * damping, 2 * n)
            total = (1.0 - rho) * np.fft.rfft(first * damping, 2 * n) / (1.0 - ratio)
            law_of_wait = np.fft.irfft(total, 2 * n)[:n] / damping
        survival = np.minimum.accumulate(np.maximum(1.0 - np.cumsum(law_of_wait), 1e-300))
        reached = todo & (tails >= survival[-1])
        if reached.any():
            at = np.concatenate([[0.0], (steps[:-1] + 0.5) * h])
            line = np.log(np.concatenate([[1.0], survival]))
            found = np.interp(-np.log(tails), -line, at)
            fine = reached & (found > span / 16.0)
            out[fine] = found[fine]
            todo &= ~fine
            if not (todo & ~reached).any():
                span = float(found[todo].max(initial=0.0)) * 2.0 or span
                continue
        span *= 4.0
    return out


def _least_residual_mean(law: ServiceLaw, c: float) -> float:
    """E[min of c residual service times] = integral of P(residual > x)^c [mean service times]."""
    if c == 1.0:
        return 0.5 * (1.0 + law.scv)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    edges = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 161)]) / c
    half = 0.5 * np.diff(edges)
    x = edges[:-1, None] + half[:, None] * (nodes + 1.0)
    with np.errstate(under="ignore", divide="ignore"):
        return float(half @ (np.exp(c * np.log(law.residual_survival(x))) @ weights))


def solve_tijms(law: ServiceLaw, c: float, a: float, q: type_array) -> type_solution:
    """P(wait), mean wait and quantiles by Tijms' interpolation between deterministic and exponential service."""
    rho = a / c
    p_wait = float(erlang_c(c, a))
    mean = p_wait * (_least_residual_mean(law, c) + rho / (1.0 - rho) * 0.5 * (1.0 + law.scv) / c)
    return p_wait, mean, _tijms_quantiles(law, c, rho, p_wait, q)


def _tijms_quantiles(law: ServiceLaw, c: float, rho: float, p_wait: float, q: type_array) -> type_array:
    out = np.zeros(q.shape)
    waits = 1.0 - q < p_wait
    if waits.any():
        out[waits] = _tijms_conditional(law, c, rho, (1.0 - q[waits]) / p_wait)
    return out


def exact_method(law: ServiceLaw, c: float) -> str | None:
    """Name of the exact solution of M/law/c; None where there is none."""
    if c == 1.0:
        return "one server"
    if law.phases is not None and law.phases == TwoPhases(1.0, 1.0, 1.0):
        return "exponential"
    if c != int(c):
        return None
    if law.name == "deterministic":
        return "deterministic" if c <= _DETERMINISTIC_SERVERS else None
    if law.three is not None and c <= _THREE_SERVERS:
        return "three phases"
    return "phases" if law.phases is not None and c <= LIMIT_PHASE_SERVERS else None


def _solve_markovian(c: float, a: float, q: type_array) -> type_solution:
    log_wait = float(log_erlang_c(c, a))
    with np.errstate(under="ignore"):
        p_wait = float(np.exp(log_wait))
    return p_wait, p_wait / (c - a), np.maximum(log_wait - np.log1p(-q), 0.0) / (c - a)


def solve_exact(law: ServiceLaw, c: float, a: float, q: type_array) -> type_solution | None:
    """P(wait), mean and quantiles where they are known exactly, else None."""
    kind = exact_method(law, c)
    if kind == "one server":
        return solve_tijms(law, 1.0, a, q)
    if kind == "exponential":
        return _solve_markovian(c, a, q)
    solved: type_solution | None = None
    if kind == "deterministic":
        solved = deterministic_wait(a, int(c), q)
    elif kind == "phases" and law.phases is not None:
        solved = phase_type_wait(a, int(c), law.phases, q)
    elif kind == "three phases" and law.three is not None:
        about = solve_tijms(law, c, a, q)[2].max(initial=0.0)
        solved = phase_row_wait(a, int(c), law.three, q, max(float(about), 0.1 / c))
    if kind is not None and solved is None:
        # within 1e-3 (constants) or 1e-5 (phases) of saturation, where this is right to about that
        solved = solve_tijms(law, c, a, q)
    return solved


def _matched_phases(law: ServiceLaw) -> TwoPhases | None:
    """The H2 law with the first three moments of `law`, or as light a third moment as H2 can have; None below scv 1."""
    if law.scv < 1.001:
        return None
    return two_phases(law.scv, max(law.third, 1.005 * 1.5 * (1.0 + law.scv) ** 2))


def _heavy_tail_ratio(phases: TwoPhases, c: float, a: float) -> float:
    """P(wait) of a two-phase law over Erlang C, at most 1.4, from the queue of at most 32 servers.

    At equal (1 - rho) sqrt(c) the excess over 1 grows slowly with c: by half from 32 servers to 100, and no further.
    """
    servers = int(min(np.floor(c), _MATCHED_SERVERS))
    slack = (1.0 - a / c) * float(np.sqrt(c / servers))
    if slack >= 0.9:
        return 1.0
    load = servers * (1.0 - slack)
    solved = phase_type_wait(load, servers, phases)
    if solved is None:
        return 1.0
    growth = min(1.0 + 0.45 * max(float(np.log2(c / _MATCHED_SERVERS)), 0.0), 1.5)
    return min(1.0 + growth * max(solved[0] / float(erlang_c(servers, load)) - 1.0, 0.0), 1.4)


def _deterministic_ratios(c: float, a: float, q: type_array) -> tuple[float, float, type_array]:
    """P(wait), mean and quantiles of M/D/c over those of M/M/c; a quantile that is 0 in both counts as 1."""
    servers = int(min(max(round(c), 1), _DETERMINISTIC_SERVERS))
    # above the limit the same (1 - rho) sqrt(c), which is what the many-server limit keeps; never less than a tenth busy
    slack = min((1.0 - a / c) * max(float(np.sqrt(c / servers)), 1.0), 0.9)
    load = servers * (1.0 - slack)
    logs = np.log1p(-q) + log_erlang_c(servers, load) - log_erlang_c(c, a)
    tails = np.exp(np.clip(logs, -27.0, 0.0))
    waiting, mean, waits = _solve_markovian(float(servers), load, 1.0 - tails)
    solved = deterministic_wait(load, servers, 1.0 - tails)
    if solved is None:  # so near saturation that the mean tells it all
        ratio = 0.5 * (1.0 + float(deterministic_excess(np.asarray(c), np.asarray(a))))
        return 1.0, ratio, np.full(q.shape, ratio)
    ratios = np.where(waits > 0.0, solved[2] / np.where(waits > 0.0, waits, 1.0), 1.0)
    if mean <= 1e-100:
        return 1.0, 1.0, ratios
    return min(solved[0] / waiting, 1.0), solved[1] / mean, ratios


def _solve_regular(law: ServiceLaw, c: float, a: float, q: type_array) -> type_solution:
    """The larger of Tijms-van Hoorn-Federgruen and the interpolation between M/D/c and M/M/c, for scv < 1.

    With many servers a short wait sees few departures, whose spacing is nearly Poisson whatever the law: there the
    two-moment forms and the first of these are 10 % optimistic, and the second, with exact quantiles at both ends, is not.
    With few servers and a heavy third moment it is the other way round.
    """
    markovian_p, mean_markovian, markovian = _solve_markovian(c, a, q)
    p_ratio, mean_ratio, ratios = _deterministic_ratios(c, a, q)
    p_wait = markovian_p * (p_ratio + (1.0 - p_ratio) * law.scv**_SPREAD_OF_WAITING)
    _, mean, _ = solve_tijms(law, c, a, np.zeros(0))
    mean = max(mean, mean_markovian * (law.scv + (1.0 - law.scv) * mean_ratio))
    between = markovian * (law.scv + (1.0 - law.scv) * ratios)
    return (
        p_wait,
        mean,
        np.maximum(_tijms_quantiles(law, c, a / c, p_wait, q), np.where(1.0 - q < p_wait, between, 0.0)),
    )


def _solve_irregular(law: ServiceLaw, c: float, a: float, q: type_array) -> type_solution:
    """The largest of Tijms-van Hoorn-Federgruen, Cosmetatos, FleetOpt and the matched two-phase queue, for scv >= 1."""
    p_wait, mean, waits = solve_tijms(law, c, a, q)
    mean = max(mean, float(mean_wait_fleetopt(a, 1.0, c, law.scv)), float(mean_wait_cosmetatos(a, 1.0, c, law.scv)))
    waits = np.maximum(waits, wait_quantile_fleetopt(a, 1.0, c, law.scv, q))
    waits = np.maximum(waits, wait_quantile_cosmetatos(a, 1.0, c, law.scv, q))
    matched = _matched_phases(law)
    if matched is not None:
        # P(wait) exceeds Erlang C under a heavy tail
        if c <= _MATCHED_SERVERS and c == int(c):
            like = phase_type_wait(a, int(c), matched, q)
            if like is not None:
                p_wait, mean = max(p_wait, like[0]), max(mean, like[1])
                waits = np.maximum(waits, like[2])
        else:
            more = _heavy_tail_ratio(matched, c, a)
            p_wait, mean = min(p_wait * more, 1.0), mean * more
        waits = np.maximum(waits, _tijms_quantiles(law, c, a / c, p_wait, q))
    return p_wait, mean, waits


class _Class(NamedTuple):
    """Requests of about one length: their share, mean length and its squared coefficient of variation.

    `unlike` is how far their residual law is from that of a gamma law of this mean and variation (root mean square).
    """

    share: float
    mean: float
    scv: float
    unlike: float = 0.0


def _two_classes(law: ServiceLaw) -> tuple[_Class, _Class] | None:
    """Short and long requests, parted where there are fewest between the two points that have the law's three moments.

    None where there is no such gap.
    """
    second = 1.0 + law.scv
    if law.scv < 1e-3 or not np.isfinite(law.third):
        return None
    halfway, apart = 0.5 * (law.third - second) / law.scv, float(np.sqrt(law.scv))
    half = float(np.sqrt((halfway - 1.0) ** 2 + apart**2))
    gaps = np.geomspace(max(halfway - half, 1e-4 * (halfway + half)), halfway + half, _GAPS)
    within = law.survival(gaps / _GAP) - law.survival(gaps * _GAP)
    place = np.asarray(gaps[np.flatnonzero(within <= within.min() + 1e-12)].mean())
    above, time_above, square_above = (float(m) for m in law.partial_moments(place))
    if not 0.0 < above < 1.0 or not 0.0 < time_above < 1.0 or within.min() > _MOST_BETWEEN * min(above, 1.0 - above):
        return None
    short, long = (1.0 - time_above) / (1.0 - above), time_above / above
    scv_short = max((second - square_above) / ((1.0 - above) * short**2) - 1.0, 0.0)
    scv_long = max(square_above / (above * long**2) - 1.0, 0.0)

    def excess(x: type_array, of_long: bool) -> type_array:
        """E[(S - x)^+] of a class."""
        at = np.maximum(x, place) if of_long else np.minimum(x, place)
        m0, m1, _ = law.partial_moments(at)
        if of_long:
            return (m1 - x * m0) / above
        return (m1 - time_above - x * (m0 - above)) / (1.0 - above)

    return (
        _Class(1.0 - above, short, scv_short, _unlike_gamma(short, scv_short, lambda x: excess(x, False))),
        _Class(above, long, scv_long, _unlike_gamma(long, scv_long, lambda x: excess(x, True))),
    )


def _unlike_gamma(mean: float, scv: float, excess: Callable[[type_array], type_array]) -> float:
    """Root mean square by which the residual law of a class is not that of a gamma law; 0 of one length, which stages near."""
    if scv < _LONG_SCV:
        return 0.0
    from scipy.special import gammaincc

    x = np.linspace(0.0, mean * (1.0 + 3.0 * float(np.sqrt(scv))), _CLASS_POINTS)
    z = x / (scv * mean)
    like = gammaincc(1.0 / scv + 1.0, z) - x / mean * gammaincc(1.0 / scv, z)
    return float(np.sqrt(np.mean((excess(x) / mean - like) ** 2)))


def _staged(law: ServiceLaw, c: float, a: float, q: type_array) -> type_solution | None:
    r"""The queue of a law of two classes, each of as many Erlang stages as its spread and the states allow; None where it is none.

    With fewer stages than a class has, lengths vary more and requests wait longer. Waits are nearly linear in the second moment of
    the lengths: what the stages that are missing add is told by one stage less. The states are shared out once for the median and
    once for the tail; of two waits that are both too long, the shorter.
    """
    found = _two_classes(law)
    if found is None or not 1.0 < c <= _THREE_SERVERS or c != int(c):
        return None
    # lengths that vary more than exponential ones may not, but for a few of a class that hardly counts
    if max(k.share * k.mean**2 * (k.scv - 1.0) for k in found) > _MOST_BEYOND * (1.0 + law.scv):
        return None
    horizon = max(float(solve_tijms(law, c, a, q)[2].max(initial=0.0)), 0.1 / c)

    def solved(stages: tuple[int, int]) -> type_solution | None:
        row = Phases.erlangs([(k.share, k.mean, n) for k, n in zip(found, stages, strict=True)])
        return phase_row_wait(a, int(c), row, q, horizon)

    best: type_solution | None = None
    for stages in {_shared_out(found, c, power) for power in _WORTH}:
        most = solved(stages)
        if most is None:
            return None
        waits = most[2]
        for k in range(2):
            fewer = (stages[0] - (k == 0), stages[1] - (k == 1))
            left = _missing(found[k], stages[k])
            if stages[k] == 1 or left < 1e-3:
                continue
            more, part = solved(fewer), (1.0 - _KEPT_OF_STAGES) * left / (_missing(found[k], fewer[k]) - left)
            if more is not None:
                waits = waits - part * np.maximum(more[2] - most[2], 0.0)
        waits = np.maximum(waits, 0.0)
        best = (
            (most[0], most[1], waits)
            if best is None
            else (min(best[0], most[0]), min(best[1], most[1]), np.minimum(best[2], waits))
        )
    if best is None:
        return None
    return best[0], best[1], best[2] * (1.0 + WAIT_PER_OFF * sum(k.share * k.mean * k.unlike for k in found))


def _missing(of: _Class, stages: int) -> float:
    """What the second moment of a class of so many stages has beyond its own."""
    return of.share * of.mean**2 * max(1.0 / stages - of.scv, 0.0)


def _shared_out(found: tuple[_Class, _Class], c: float, power: float) -> tuple[int, int]:
    """Stages of the two classes, one after the other where it is worth most, a class's by ``power`` of its mean."""
    stages = [1, 1]

    def gain(k: int) -> float:
        if (stages[k] + 1) * found[k].scv > 1.0 + 1e-6:
            return 0.0
        return float(found[k].share * found[k].mean ** power / (stages[k] * (stages[k] + 1)))

    while phase_states(int(c), sum(stages) + 1) <= LIMIT_STATES:
        best = 0 if gain(0) > gain(1) else 1
        if gain(best) == 0.0:
            break
        stages[best] += 1
    return stages[0], stages[1]


class _Two(NamedTuple):
    """A queue of two lengths: P(wait), quantiles above and about the true ones, scv of the long, short over long share.

    `bounded` is whether the long ones are set apart well enough for the bound to be one.
    """

    p_wait: float
    bound: type_array
    value: type_array
    spread: float
    short_share: float
    bounded: bool


def _two_lengths(law: ServiceLaw, c: float, a: float, q: type_array) -> _Two | None:
    r"""The queue of a law of two lengths; None where it is none.

    The lengths are parted halfway between the two points that have the law's three moments. Exponential lengths about the
    means of the two classes give an exact queue that keeps every long request in its server for as long on average, and
    waits longer; with the long ones Erlang of order two it waits less. Waits are nearly linear in the second moment of
    the lengths, so the two tell the wait at the law's own.
    """
    second = 1.0 + law.scv
    if law.scv < 1e-3 or not c <= _MOST_SERVERS_OF_TWO or c != int(c) or not np.isfinite(law.third):
        return None
    halfway = 0.5 * (law.third - second) / law.scv
    above, time_above, square_above = (float(m) for m in law.partial_moments(np.asarray(halfway)))
    if not 0.0 < above < 1.0 or not 0.0 < time_above < 1.0:
        return None
    short, long = (1.0 - time_above) / (1.0 - above), time_above / above
    spread = square_above / (above * long**2) - 1.0
    # where two exponential phases have the law's three moments, they are the better stand-in for lengths that spread
    matched = law.third > 1.5 * second**2
    if long < _LEAST_RATIO * short or spread > (_BOUND_LONG_SCV if matched else _MOST_LONG_SCV):
        return None
    cut = spread > _LONG_SCV and float(law.survival(0.5 * halfway)) > _MOST_CUT * above
    if matched and cut:
        return None
    phases = TwoPhases(1.0 - above, 1.0 / short, 1.0 / long)
    bound = phase_type_wait(a, int(c), phases, q)
    if bound is None:
        return None
    of_short, of_long = (1.0 - above) * short**2, above * long**2
    share = of_short / of_long
    apart = spread <= _BOUND_LONG_SCV and c <= _BOUND_SERVERS and not cut
    if share > (_SHORT_SHARE if spread > _LONG_SCV else _MOST_SHORT_SHARE):
        return _Two(bound[0], bound[2], np.zeros(q.shape), spread, share, False)
    # too many servers for the stages: as much less than the bound as fewer servers with as much slack over their root
    servers = int(min(c, _THREE_SERVERS - 4 if c > _THREE_SERVERS else c))
    load = servers * (1.0 - min((1.0 - a / c) * float(np.sqrt(c / servers)), 0.9))
    like, levels = bound, q
    if servers < c:
        p_wait = phase_type_wait(load, servers, phases)
        if p_wait is None:
            return None
        levels = 1.0 - np.minimum((1.0 - q) * p_wait[0] / bound[0], 1.0)
        solved = phase_type_wait(load, servers, phases, levels)
        if solved is None:
            return None
        like = solved
    horizon = float(like[2].max(initial=0.0))
    stages = Phases.erlangs([(1.0 - above, short, 1), (above, long, 2)])
    staged = phase_row_wait(load, servers, stages, levels, horizon) if horizon > 0.0 else None
    if staged is None:
        return _Two(bound[0], bound[2], np.zeros(q.shape), spread, share, False)
    kept: float | type_array = _KEPT_SPREAD
    if spread > _LONG_SCV:
        kept = np.where((1.0 - q) < _FAR_TAIL * bound[0], *_KEPT_OF_SPREAD)
    per_second = (like[2] - staged[2]) / (0.5 * of_long)
    value = staged[2] - (1.0 - kept) * per_second * (2.0 * of_short + 1.5 * of_long - second)
    part = np.where(like[2] > 0.0, np.clip(value, 0.0, like[2]) / np.where(like[2] > 0.0, like[2], 1.0), 1.0)
    return _Two(staged[0] if servers == c else bound[0], bound[2], bound[2] * part, spread, share, apart)


def _from_fewer_servers(
    law: ServiceLaw, c: float, a: float, q: type_array, p_wait: float, waits: type_array
) -> type_array:
    """As much less than the maximum as the wait is, where known, with fewer servers and as much slack over their root."""
    servers = float(_THREE_SERVERS)
    load = servers * (1.0 - min((1.0 - a / c) * float(np.sqrt(c / servers)), 0.9))
    about = _solve_irregular if law.scv >= 1.0 else _solve_regular
    p_fewer, _, _ = about(law, servers, load, q)
    levels = 1.0 - np.minimum((1.0 - q) * p_fewer / p_wait, 1.0)
    most = about(law, servers, load, levels)[2]
    unknown = np.full(q.shape, np.inf)
    solved = _staged(law, servers, load, levels) if float(most.max(initial=0.0)) > 0.0 else None
    if solved is None:
        return unknown
    share = np.where(most > 0.0, np.minimum(solved[2] / np.where(most > 0.0, most, 1.0), 1.0), 1.0)
    less: type_array = waits * (share + _KEPT_OF_MAXIMUM * (1.0 - share))
    # where the maximum is no upper bound with fewer servers, nothing is known of it
    return np.where(share < 1.0, less, unknown)


def solve_conservative(law: ServiceLaw, c: float, a: float, q: type_array) -> type_solution:
    """Exact where that is known, else the queue of the nearest mixture of Erlang laws or what needs none, whichever waits less."""
    exact = solve_exact(law, c, a, q)
    if exact is not None:
        return exact
    # two moments leave the law open: the largest of the approximations is the answer then
    mixed = None if law.name == _TWO_MOMENTS else solve_mixture(law, c, a, q)
    if mixed is not None and mixed.off < _NEAR and np.isfinite(mixed.solution[2]).all():
        return mixed.solution
    p_wait, mean, waits = _without_mixture(law, c, a, q)
    if mixed is None:
        return p_wait, mean, waits
    return min(p_wait, mixed.solution[0]), min(mean, mixed.solution[1]), np.minimum(waits, mixed.solution[2])


def _without_mixture(law: ServiceLaw, c: float, a: float, q: type_array) -> type_solution:
    """Two classes in stages, else the largest of the approximations, bounded by the exact wait of fewer servers."""
    staged = _staged(law, c, a, q)
    if staged is not None:
        return staged
    p_wait, mean, waits = _solve_regular(law, c, a, q) if law.scv < 1.0 else _solve_irregular(law, c, a, q)
    fewer_servers = np.full(q.shape, np.inf)
    if _THREE_SERVERS < c <= _MOST_SERVERS_OF_TWO and law.phases is None:
        fewer_servers = _from_fewer_servers(law, c, a, q, p_wait, waits)
    two = _two_lengths(law, c, a, q)
    if two is not None:
        p_wait = min(max(p_wait, two.p_wait), 1.0)
        if two.spread > _LONG_SCV:
            # long lengths that are not one length: the classes are not as neat as their exponential stand-ins
            waits = np.maximum(waits, two.value)
            if two.bounded:
                waits = np.minimum(waits, np.maximum(two.bound, two.value))
        elif two.short_share > _SHORT_SHARE:
            waits = np.maximum(np.minimum(waits, two.bound), two.value)
        else:
            waits = np.where(two.value > 0.0, two.value, np.minimum(waits, two.bound))
    waits = np.minimum(waits, fewer_servers)
    if law.phases is not None and c > LIMIT_PHASE_SERVERS > a:
        fewer = phase_type_wait(a, LIMIT_PHASE_SERVERS, law.phases, q)
        if fewer is None:
            return p_wait, mean, waits
        p_wait, mean, waits = min(p_wait, fewer[0]), min(mean, fewer[1]), np.minimum(waits, fewer[2])
    return p_wait, mean, waits


def over_queues(
    solve: Callable[[ServiceLaw, float, float, type_array], type_solution | None],
    lam: type_array,
    s: type_array,
    c: type_array,
    scv: type_array,
    q: type_array,
    law: ServiceLaw | None,
) -> tuple[type_array, type_array, type_array]:
    """Mean wait [s], quantile [s] and P(wait) of every element: one solution per queue, all its quantiles at once."""
    mean, waits, p_wait = np.zeros(lam.size), np.zeros(lam.size), np.zeros(lam.size)
    queues: dict[tuple[float, float, float], list[int]] = {}
    for i, key in enumerate(zip(c.flat, (lam * s).flat, scv.flat, strict=True)):
        queues.setdefault(key, []).append(i)
    levels = q.ravel()
    for (servers, load, variation), members in queues.items():
        if load >= servers:
            mean[members], waits[members], p_wait[members] = np.inf, np.inf, 1.0
        elif load > 0.0:
            # a load so small that nobody waits in double precision is no load
            solution = solve(
                law or assumed_law(float(variation)), float(servers), max(float(load), 1e-12), levels[members]
            )
            if solution is None:
                raise ValueError("servers: no exact solution for this law and number of servers")
            p_wait[members], mean[members], waits[members] = solution
    shape = lam.shape
    with np.errstate(over="ignore"):
        return (mean * s.ravel()).reshape(shape), (waits * s.ravel()).reshape(shape), p_wait.reshape(shape)
