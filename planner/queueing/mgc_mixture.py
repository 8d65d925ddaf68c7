r"""Waiting times of M/G/c from the exact queue of the nearest mixture of Erlang laws, and what its distance may hide."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.queueing.erlang import erlang_c
from planner.queueing.exact import phase_row_wait, phase_states
from planner.queueing.mgc_moments import wait_quantile_fleetopt
from planner.queueing.phase_fit import Fit, fitted
from planner.queueing.service import ServiceLaw

type_array = npt.NDArray[np.float64]
# What a method with the full law computes for one queue, in mean service times: P(wait), mean wait, quantiles
type_solution = tuple[float, float, type_array]

# Stages of a mixture at most: more than these help two servers only, where the other methods are near already.
_MOST_STAGES = 6
# States of the queue at most: those of three phases before 16 servers.
_MOST_STATES = 153
# Servers up to which a third phase has no more states than that; and up to which two phases are solved themselves.
_THREE_SERVERS, _TWO_SERVERS = 16, 64
# What waits are longer, and P(wait) and the tail larger, by the distance of the residual laws, and waits by its square: over 160
# drawn laws the exact wait of the mixture was nowhere below a simulation's interval by more than 2.4 times the distance (3.6 where
# that is 0.05: a few requests of one length twenty times the others'), P(wait) by no more than a third.
WAIT_PER_OFF, _WAIT_PER_SQUARE, _TAIL_PER_OFF = 3.0, 30.0, 0.5
# Of what two phases are further off than three, the share that is left once fewer servers have told what the third does.
_LEFT_OF_TWO = 0.3
# Beyond this distance a mixture tells nothing.
_TOO_FAR = 0.12
# Servers by which the others are short when so many are busy with long lengths that waits come of it.
_OVERLOAD = 0.25
# Utilization from which fewer servers with as much slack over their root are any guide.
_LEAST_LOAD = 0.1


class Mixed(NamedTuple):
    """The queue of a mixture, waits with what its distance may hide, and that distance (see `Fit.off`)."""

    solution: type_solution
    off: float


def solve_mixture(law: ServiceLaw, c: float, a: float, q: type_array) -> Mixed | None:
    """The queue of the mixture of Erlang laws nearest to `law`; None where none is near.

    Up to `_THREE_SERVERS` servers as many stages as the states allow. Beyond, two phases, and what the third changes is told by
    fewer servers with as much slack over their root; beyond `_TWO_SERVERS` those too, at equal slack over the root, under
    which waits go as one over the root.
    """
    if c != int(c) or c < 2.0 or not np.isfinite(law.third):
        return None
    servers = int(c)
    stages = 2
    while stages < _MOST_STAGES and phase_states(servers, stages + 1) <= _MOST_STATES:
        stages += 1
    fit = fitted(law, stages)
    if fit is None:
        return None
    off, reach = fit.off, fit.reach
    third = fitted(law, 3) if c > _THREE_SERVERS else None
    if third is not None and third.off < fit.off:
        off, reach = third.off + _LEFT_OF_TWO * (fit.off - third.off), third.reach
    if off > _TOO_FAR:
        return None
    tails = np.minimum((1.0 - q) / (1.0 + _TAIL_PER_OFF * off), 1.0)
    solved = _solved(law, fit, servers, a, 1.0 - tails)
    if solved is not None and off != fit.off:
        solved = _with_third(law, servers, a, 1.0 - tails, solved)
    if solved is None:
        return None
    p_wait, mean, waits = solved
    more = 1.0 + (WAIT_PER_OFF + _WAIT_PER_SQUARE * off) * off
    reached = _met(c, a, np.minimum(tails / p_wait, 1.0)) >= reach
    waits = np.where((waits == 0.0) | reached, waits * more, np.inf)
    return Mixed((min(p_wait * (1.0 + _TAIL_PER_OFF * off), 1.0), mean * more, waits), off)


def _met(c: float, a: float, tails: type_array) -> type_array:
    r"""P(S_e > x) of the lengths that make the waits which a share `tails` of those who wait exceeds.

    So long a wait comes of :math:`k = \lceil c - a + 1/4 \rceil` servers busy with longer lengths, without which the others are
    overloaded, and not hardly; each of the a busy ones is with probability :math:`P(S_e > x)`, and what waits meanwhile is
    :math:`1 / (1 - \rho)` as many.
    """
    together = max(int(np.ceil(c - a + _OVERLOAD)), 1)
    met: type_array = (tails * (1.0 - a / c) * math.factorial(together)) ** (1.0 / together) / a
    return met


def _horizon(law: ServiceLaw, c: int, a: float, q: type_array) -> float:
    """About the longest wait wanted, for the step of a table of waits."""
    return max(float(np.max(wait_quantile_fleetopt(a, 1.0, c, law.scv, q), initial=0.0)), 0.1 / c)


def _solved(law: ServiceLaw, fit: Fit, c: int, a: float, q: type_array) -> type_solution | None:
    """The exact queue of a mixture, of at most `_TWO_SERVERS` servers, more of them from those."""
    if c <= _TWO_SERVERS:
        return phase_row_wait(a, c, fit.phases, q, _horizon(law, c, a, q))
    fewer = _with_fewer(law, fit, c, a, q, _TWO_SERVERS, None)
    if fewer is None:
        return None
    p_wait, mean, waits, scale = fewer
    return p_wait, mean * scale, waits * scale


def _with_fewer(
    law: ServiceLaw, fit: Fit, c: int, a: float, q: type_array, servers: int, p_wait: float | None
) -> tuple[float, float, type_array, float] | None:
    """P(wait) of c servers; mean and quantiles of fewer, where as many of those who wait wait longer; and what scales them.

    `p_wait` of c servers is Erlang's, as much larger as the mixture's is with fewer, where it is not given.
    """
    slack = (1.0 - a / c) * float(np.sqrt(c / servers))
    if slack > 1.0 - _LEAST_LOAD:
        return None
    load = servers * (1.0 - slack)
    if p_wait is None:
        first = phase_row_wait(load, servers, fit.phases, np.zeros(0), 1.0)
        if first is None:
            return None
        p_wait = min(float(erlang_c(c, a)) * first[0] / float(erlang_c(servers, load)), 1.0)
    levels = 1.0 - np.minimum((1.0 - q) / p_wait, 1.0)
    solved = phase_row_wait(load, servers, fit.phases, levels, _horizon(law, servers, load, levels), of_waiting=True)
    if solved is None:
        return None
    waits = np.where(1.0 - q < p_wait, solved[2], 0.0)
    return p_wait, solved[1] * p_wait / solved[0], waits, float(np.sqrt(servers / c))


def _with_third(law: ServiceLaw, c: int, a: float, q: type_array, solved: type_solution) -> type_solution | None:
    """A queue of two phases, changed by as much as the third phase changes it with fewer servers."""
    two, three = fitted(law, 2), fitted(law, 3)
    if two is None or three is None:
        return None
    of_two, of_three = (_with_fewer(law, f, c, a, q, _THREE_SERVERS, solved[0]) for f in (two, three))
    if of_two is None or of_three is None:
        return None
    ratio = np.where(of_two[2] > 0.0, of_three[2] / np.where(of_two[2] > 0.0, of_two[2], 1.0), 1.0)
    return solved[0], solved[1] * of_three[1] / of_two[1], solved[2] * ratio
