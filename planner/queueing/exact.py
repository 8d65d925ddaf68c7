"""Exact waiting times of M/G/c where service is of two exponential phases, up to 256 servers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.shared.mathematics import need

type_array = npt.NDArray[np.float64]

# The matrices have servers + 1 rows and there are as many levels: 64 servers take 20 ms, 128 0.15 s, 256 one second.
LIMIT_PHASE_SERVERS = 256
# 1 - utilization below which M/PH/c is not solved: its wait is wrong by some 1e-11 there over the square of this.
LEAST_SLACK = 1e-5


@dataclass(frozen=True, slots=True)
class TwoPhases:
    """Service as one or two exponential phases: start in phase 1 with probability `first`, else in phase 2.

    Parameters
    ----------
    first
        Probability of starting in phase 1 [1].
    rate_1, rate_2
        Rates of the phases [1/mean service time].
    onward
        Probability that phase 1 is followed by phase 2 instead of departure [1].
    """

    first: float
    rate_1: float
    rate_2: float
    onward: float = 0.0


def two_phases(scv: float, third: float) -> TwoPhases | None:
    """The H2 law of unit mean with a given scv [1] and E[S^3]/E[S]^3 [1]; None where no H2 law has them.

    The means x > y of the phases are the roots of z^2 - (x + y) z + x y, found from u2 = E[S^2]/2 and u3 = E[S^3]/6.
    An H2 law needs scv > 1 and E[S^3] > 3/2 (1 + scv)^2.
    """
    u2, u3 = 0.5 * (1.0 + scv), third / 6.0
    if not (1.0 < u2 < np.inf and u2 * u2 < u3 < np.inf):
        return None
    total = (u3 - u2) / (u2 - 1.0)
    product = total - u2
    x = 0.5 * (total + float(np.sqrt(max(total * total - 4.0 * product, 0.0))))
    y = product / x
    p = (1.0 - y) / (x - y)
    return TwoPhases(p, 1.0 / x, 1.0 / y) if 0.0 < p < 1.0 and y > 0.0 else None


def _levels(servers: int, phases: TwoPhases) -> tuple[list[type_array], list[type_array], list[type_array], type_array]:
    """Per level n <= c: up (probabilities), within (rates), down (rates); and the down matrix of levels above c.

    The state of level n is the number of servers in phase 2 (0..n), the others being in phase 1.
    """
    p, r1, r2, onward = phases.first, phases.rate_1, phases.rate_2, phases.onward
    up, within, down = [], [], []
    for n in range(servers + 1):
        two = np.arange(n + 1.0)
        one = n - two
        square, narrow = (n + 1, n + 1), (n + 1, max(n, 1))
        up.append(p * np.eye(n + 1, n + 2) + (1.0 - p) * np.eye(n + 1, n + 2, 1))
        within.append((one * r1 * onward)[:, None] * np.eye(*square, 1))
        leaving = one * r1 * (1.0 - onward), two * r2
        down.append(leaving[0][:, None] * np.eye(*narrow) + leaving[1][:, None] * np.eye(*narrow, -1))
    return up, within, down, down[servers] @ up[servers - 1]


def _waiting(
    c: int, lam: float, up: list[type_array], within: list[type_array], down: list[type_array], a2: type_array
) -> tuple[type_array, type_array]:
    """Law of the phases that an arrival which waits finds, and the generator of its wait."""
    size = within[c].shape[0]
    identity = np.eye(size)
    a1 = within[c] - np.diag(within[c].sum(1) + a2.sum(1) + lam)
    with np.errstate(under="ignore"):
        inverse = np.linalg.inv(-a1)
        low, high = inverse @ a2, lam * inverse
        g, t = low.copy(), high.copy()
        for _ in range(64):
            inverse = np.linalg.inv(identity - high @ low - low @ high)
            low, high = inverse @ low @ low, inverse @ high @ high
            g += t @ low
            t = t @ high
            if float(np.abs(t).max()) < 1e-17:
                break
        above = a1 + lam * g
        r = lam * np.linalg.inv(-above)
        # pi_{n+1} = pi_n ladder_n, from the top down; the blocks are diagonally dominant
        closing = a1 + r @ a2
        ladder = []
        for n in range(c - 1, -1, -1):
            step = lam * np.linalg.solve(-closing.T, up[n].T).T
            ladder.append(step)
            outflow = within[n].sum(1) + (down[n].sum(1) if n else 0.0) + lam
            closing = within[n] - np.diag(outflow) + step @ down[n + 1]
        level, total = np.ones(1), 0.0
        for step in reversed(ladder):
            total += float(level.sum())
            level = level @ step
        queue = np.linalg.solve(identity - r.T, level)
        start = queue / (total + float(queue.sum()))
    generator: type_array = above + lam * identity
    return np.asarray(start, dtype=np.float64), generator


def _check_servers(servers: float) -> None:
    known = servers == int(servers) and 1 <= servers <= LIMIT_PHASE_SERVERS
    need(known, f"servers must be a whole number from 1 to {LIMIT_PHASE_SERVERS}, got {servers!r}")


def phase_type_wait(
    arrival_rate: float, servers: int, phases: TwoPhases, quantiles: npt.ArrayLike = ()
) -> tuple[float, float, type_array] | None:
    r"""Probability of waiting, mean wait and wait quantiles of M/PH/c, two phases, exactly; None very close to saturation.

    .. math:: P(W > t) = \pi_c (I - R)^{-1} \exp[(A_1 + \lambda G + \lambda I)\, t]\, 1

    with the matrices of the quasi-birth-and-death process above level c, by the distributional form of Little's law.

    Parameters
    ----------
    arrival_rate : float
        Poisson arrivals per mean service time, the offered load a [Erlang]; 0 < a < servers.
    servers : int
        Servers c [servers]; 1 <= c <= 256.
    phases : TwoPhases
        The service law, of unit mean.
    quantiles : array, shape (k,)
        Quantiles wanted [1]; each in [0, 1).

    Returns
    -------
    tuple of float, float, array of shape (k,), or None
        P(wait) [1], mean wait and wait quantiles [mean service times]. None where 1 - a/c < `LEAST_SLACK`: rounding in
        the matrices is divided by its square.

    Raises
    ------
    ValueError
        If `servers` or `arrival_rate` is outside its domain.

    References
    ----------
    G. Latouche and V. Ramaswami, J. Appl. Prob. 30 (1993) 650 (logarithmic reduction). J. Keilson and L. D. Servi,
    Oper. Res. Lett. 7 (1988) 223 (distributional Little's law).

    Examples
    --------
    >>> p, mean, (median,) = phase_type_wait(1.5, 2, TwoPhases(1.0, 1.0, 1.0), [0.5])
    >>> round(p, 12), round(mean, 12), round(float(median), 6)
    (0.642857142857, 1.285714285714, 0.502629)
    """
    _check_servers(servers)
    need(0.0 < arrival_rate < servers, f"arrival_rate must lie between 0 and servers, got {arrival_rate!r}")
    from scipy.linalg import expm

    c, lam = int(servers), float(arrival_rate)
    if c - lam < LEAST_SLACK * c:
        return None
    start, generator = _waiting(c, lam, *_levels(c, phases))
    one = np.ones(c + 1)
    p_wait = min(float(start.sum()), 1.0)
    mean = float(-start @ np.linalg.solve(generator, one))
    out = np.zeros(np.size(quantiles))
    for i, q in enumerate(np.ravel(np.asarray(quantiles, dtype=np.float64))):
        target = 1.0 - q
        if p_wait <= target:
            continue
        # Newton on ln P(W > t), nearly a straight line, inside a bracket
        bottom, top, at = 0.0, np.inf, 0.0
        for _ in range(100):
            vector = start @ expm(generator * at)
            tail = max(float(vector.sum()), 1e-300)
            bottom, top = (at, top) if tail > target else (bottom, at)
            move = np.log(tail / target) * tail / max(-float(vector @ generator @ one), 1e-300)
            if abs(move) < 1e-11 * max(at, 1e-6):
                break
            new = at + move
            at = new if bottom < new < top else 0.5 * (bottom + min(top, 2.0 * bottom + 1.0))
        out[i] = at
    return p_wait, mean, out


def delayed_wait(load: float, servers: int, phases: TwoPhases, survival: npt.ArrayLike) -> type_array | None:
    r"""Wait in M/PH/c, two phases, of those who wait, at survival probabilities; None very close to saturation.

    Parameters
    ----------
    load : float
        Utilization of a server [1]; 0 < load < 1.
    servers : int
        Servers c [servers]; 1 <= c <= 256.
    phases : TwoPhases
        The service law, of unit mean.
    survival : array, shape (k,)
        P(W > t | W > 0) at which t is wanted [1]; each in (0, 1].

    Returns
    -------
    array of shape (k,), or None
        t [mean service times], interpolated between times a quarter of an octave apart: within 1%.
    """
    need(0.0 < load < 1.0, f"load must lie between 0 and 1, got {load!r}")
    _check_servers(servers)
    if 1.0 - load < LEAST_SLACK:
        return None
    from scipy.linalg import expm

    start, generator = _waiting(servers, load * servers, *_levels(servers, phases))
    wanted = np.asarray(survival, dtype=np.float64)
    start = start / start.sum()
    first = 0.01 / (servers * (1.0 - load))
    power = np.stack([expm(generator * (first * 2.0 ** (j / 4.0))) for j in range(4)])
    times, tails = [0.0], [1.0]
    for octave in range(60):
        times += [first * 2.0 ** (octave + j / 4.0) for j in range(4)]
        tails += (start @ power).sum(axis=1).tolist()
        if tails[-1] < wanted.min(initial=1.0):
            break
        power = power @ power
    waits: type_array = np.interp(-np.log(wanted), -np.log(np.maximum(tails, 1e-300)), times)
    return waits
