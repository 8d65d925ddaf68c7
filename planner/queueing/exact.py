"""Exact waiting times of the M/G/c queues that have them: two exponential phases (up to 256 servers), and constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from planner.queueing.service import Phases, TwoPhases

type_array = npt.NDArray[np.float64]

# The matrices have servers + 1 rows and there are as many levels: 64 servers take 20 ms, 128 0.15 s, 256 one second.
LIMIT_PHASE_SERVERS = 256
# With more phases there are as many rows as `phase_states`: 45 take some 8 ms, 91 25 ms, 153 70 ms.
LIMIT_STATES = 165
# Steps of the table of M/PH/c that are this much finer, for waits that are short beside the longest one wanted.
_FINE_STEPS, _FINER = 64, 16
# 1 - utilization below which M/PH/c is not solved: its wait is wrong by some 1e-11 there over the square of this.
LEAST_SLACK = 1e-5
# Points of the Fourier transform of M/D/c: some 80/(1 - rho); beyond, heavy-traffic formulas are as good.
LIMIT_DETERMINISTIC_POINTS = 1 << 17


def _levels(servers: int, phases: TwoPhases) -> tuple[list[type_array], list[type_array], list[type_array], type_array]:
    """Per level n <= c: up (probabilities), within (rates), down (rates); and the down matrix of levels above c.

    The state of level n is the number of servers in phase 2 (0..n), the others being in phase 1.
    """
    p, r1, r2, onward = phases.first, phases.rate_1, phases.rate_2, phases.onward
    up, within, down = [], [], []
    for n in range(servers + 1):
        two = np.arange(n + 1.0)
        one = n - two
        u = np.zeros((n + 1, n + 2))
        u[np.arange(n + 1), np.arange(n + 1)] = p
        u[np.arange(n + 1), np.arange(1, n + 2)] = 1.0 - p
        w = np.diag((one * r1 * onward)[:-1], 1) if n else np.zeros((1, 1))
        d = np.zeros((n + 1, max(n, 1)))
        if n:
            d[np.arange(n), np.arange(n)] = (one * r1 * (1.0 - onward))[:n]
            d[np.arange(1, n + 1), np.arange(n)] = (two * r2)[1:]
        up.append(u)
        within.append(w)
        down.append(d)
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


def phase_states(servers: int, phases: int) -> int:
    """States of so many busy servers in so many phases."""
    return math.comb(servers + phases - 1, phases - 1)


def _levels_of_row(
    servers: int, phases: Phases
) -> tuple[list[type_array], list[type_array], list[type_array], type_array]:
    """As `_levels` with a row of phases: the state of level n is the servers in each phase but the first, no more than n."""
    start, rates, onward = phases.start, phases.rates, phases.onward
    others = len(rates) - 1
    states = [s for total in range(servers + 2) for s in _splits(total, others)]
    place = {state: at for at, state in enumerate(states)}  # the same at every level
    sizes = np.cumsum([math.comb(total + others - 1, others - 1) for total in range(servers + 2)]).tolist()
    up, within, down = [], [], []
    for n in range(servers + 1):
        size = sizes[n]
        u, w = np.zeros((size, sizes[n + 1])), np.zeros((size, size))
        d = np.zeros((size, sizes[n - 1] if n else 1))
        for at, others_in in enumerate(states[:size]):
            for phase, busy in enumerate((n - sum(others_in), *others_in)):
                u[at, place[_moved(others_in, -1, phase)]] += start[phase]
                if not busy:
                    continue
                rate = busy * rates[phase]
                if onward[phase]:
                    w[at, place[_moved(others_in, phase, phase + 1)]] += rate * onward[phase]
                if onward[phase] < 1.0:
                    d[at, place[_moved(others_in, phase, -1)]] += rate * (1.0 - onward[phase])
        up.append(u)
        within.append(w)
        down.append(d)
    return up, within, down, down[servers] @ up[servers - 1]


def _splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to put `total` into `parts` places."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _splits(total - first, parts - 1):
            yield (first, *rest)


def _moved(others: tuple[int, ...], source: int, target: int) -> tuple[int, ...]:
    """The servers in each phase but the first when one goes from a phase to another; -1 stands for none."""
    found = list(others)
    if source > 0:
        found[source - 1] -= 1
    if target > 0:
        found[target - 1] += 1
    return tuple(found)


def phase_row_wait(
    arrival_rate: float,
    servers: int,
    phases: Phases,
    quantiles: npt.ArrayLike,
    horizon: float,
    *,
    of_waiting: bool = False,
) -> tuple[float, float, type_array] | None:
    r"""Probability of waiting, mean wait and wait quantiles of M/PH/c with a row of phases, exactly.

    Parameters
    ----------
    arrival_rate : float
        Poisson arrivals per mean service time, the offered load a [Erlang]; 0 < a < servers.
    servers : int
        Servers c [servers]; those of `phase_states` may be `LIMIT_STATES`.
    phases : Phases
        The service law, of unit mean.
    quantiles : array, shape (k,)
        Quantiles wanted [1]; each in [0, 1).
    horizon : float
        About the largest of them [mean service times]: its 256th part is the step of the table they are read off, and a
        16th of that at first.
    of_waiting : bool
        Quantiles of those who wait, not of all.

    Returns
    -------
    tuple of float, float, array of shape (k,), or None
        P(wait) [1], mean wait and wait quantiles [mean service times]. None where 1 - a/c < `LEAST_SLACK`.

    Raises
    ------
    ValueError
        If `servers`, the number of phases or `horizon` is outside its domain.

    References
    ----------
    As `phase_type_wait`.
    """
    if servers < 1 or not 1 < phase_states(servers, len(phases.rates)) <= LIMIT_STATES:
        raise ValueError(
            f"servers: {servers!r} busy in {len(phases.rates)} phases have 1 or more than {LIMIT_STATES} states"
        )
    if not horizon > 0.0:
        raise ValueError(f"horizon must be > 0, got {horizon!r}")
    from scipy.linalg import expm

    if servers - arrival_rate < LEAST_SLACK * servers:
        return None
    if len(phases.rates) == 2:
        (first, _), (rate_1, rate_2), (onward, _) = phases.start, phases.rates, phases.onward
        levels = _levels(servers, TwoPhases(first, rate_1, rate_2, onward))
    else:
        levels = _levels_of_row(servers, phases)
    vector, generator = _waiting(servers, arrival_rate, *levels)
    p_wait = min(float(vector.sum()), 1.0)
    mean = float(-vector @ np.linalg.solve(generator, np.ones(vector.size)))
    wanted = (1.0 - np.ravel(np.asarray(quantiles, dtype=np.float64))) * (p_wait if of_waiting else 1.0)
    fine = expm(generator * (horizon / (256 * _FINER)))
    coarse = np.linalg.matrix_power(fine, _FINER)
    tails: list[float] = []
    at: list[float] = []
    while len(tails) < 256 * 256:
        tails.append(max(float(vector.sum()), 1e-300))
        at.append(
            horizon
            / 256
            * (len(at) / _FINER if len(at) <= _FINE_STEPS else len(at) - _FINE_STEPS + _FINE_STEPS // _FINER)
        )
        if tails[-1] < wanted.min(initial=1.0):
            break
        vector = vector @ (fine if len(at) <= _FINE_STEPS else coarse)
    waits: type_array = np.interp(-np.log(wanted), -np.log(tails), at)
    return p_wait, mean, np.where(wanted < p_wait, waits, 0.0)


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
    if servers != int(servers) or not 1 <= servers <= LIMIT_PHASE_SERVERS:
        raise ValueError(f"servers must be a whole number from 1 to {LIMIT_PHASE_SERVERS}, got {servers!r}")
    if not 0.0 < arrival_rate < servers:
        raise ValueError(f"arrival_rate must lie between 0 and servers, got {arrival_rate!r}")
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
    if not 0.0 < load < 1.0:
        raise ValueError(f"load must lie between 0 and 1, got {load!r}")
    if servers != int(servers) or not 1 <= servers <= LIMIT_PHASE_SERVERS:
        raise ValueError(f"servers must be a whole number from 1 to {LIMIT_PHASE_SERVERS}, got {servers!r}")
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


def deterministic_wait(
    arrival_rate: float, servers: int, quantiles: npt.ArrayLike = ()
) -> tuple[float, float, type_array] | None:
    r"""Probability of waiting, mean wait and wait quantiles of M/D/c, exactly; None very close to saturation.

    The queue at multiples of the service time is a random walk, :math:`L' = (L + A - c)^+` with A Poisson, whose law is
    Spitzer's :math:`E[z^L] = \exp\sum_{k>0} \ell_k (z^k - 1)`, :math:`\ell_k` the coefficients of
    :math:`-\ln(1 - z^{-c} e^{a(z-1)})`, read off one Fourier transform on the circle :math:`|z| = c/a`. Then (Franx)

    .. math:: P(W \le x) = \sum_{j=0}^{kc-1} P(L \le kc - 1 - j)\, e^{-a(k-x)} \frac{[a(k-x)]^j}{j!},
        \qquad k - 1 \le x < k

    Parameters
    ----------
    arrival_rate : float
        Poisson arrivals per service time, the offered load a [Erlang]; 0 < a < servers.
    servers : int
        Servers c [servers]; >= 1.
    quantiles : array, shape (k,)
        Quantiles wanted [1]; each in [0, 1).

    Returns
    -------
    tuple of float, float, array of shape (k,), or None
        P(wait) [1], mean wait and wait quantiles [service times]. None where the transform would need more than
        `LIMIT_DETERMINISTIC_POINTS` points.

    Raises
    ------
    ValueError
        If `servers` or `arrival_rate` is outside its domain.

    References
    ----------
    G. J. Franx, Oper. Res. Lett. 29 (2001) 57 (doi:10.1016/S0167-6377(01)00108-0). C. D. Crommelin, Post Office Electr.
    Eng. J. 25 (1932) 41.

    Examples
    --------
    >>> p, mean, (median,) = deterministic_wait(0.5, 1, [0.5])
    >>> round(p, 9), round(mean, 9), round(float(median), 9)
    (0.5, 0.5, 0.0)
    """
    if servers != int(servers) or servers < 1:
        raise ValueError(f"servers must be a whole number >= 1, got {servers!r}")
    if not 0.0 < arrival_rate < servers:
        raise ValueError(f"arrival_rate must lie between 0 and servers, got {arrival_rate!r}")
    from scipy.special import gammaln

    c, a = int(servers), float(arrival_rate)
    log_radius = float(np.log(c) - np.log(a))
    need = max(80.0 / log_radius, 8.0 * c, 256.0)
    if need > LIMIT_DETERMINISTIC_POINTS:
        return None
    points = 1 << int(np.ceil(np.log2(need)))
    angle = 2.0 * np.pi / points * np.arange(points // 2 + 1)
    radius = np.exp(log_radius)
    with np.errstate(under="ignore"):
        phi = np.exp(-c * log_radius + a * (radius * np.cos(angle) - 1.0)) * np.exp(
            1j * (a * radius * np.sin(angle) - c * angle)
        )
        # the circle is symmetric, so the inverse real transform gives the coefficients times radius^k; k > half are k < 0
        scaled = np.fft.irfft(-np.log1p(-phi).conj(), points)
        k = np.arange(1, points // 2)
        coefficients = np.zeros(points)
        coefficients[1 : points // 2] = scaled[1 : points // 2] * np.exp(-k * log_radius)
        law = np.fft.irfft(np.exp(np.fft.rfft(coefficients) - coefficients.sum()), points)
    law = np.maximum(law, 0.0)
    mean_queue = max(float(k @ coefficients[1 : points // 2]), 0.0)
    below = np.minimum(np.cumsum(law), 1.0)

    def tail(x: float) -> float:
        """P(W > x)."""
        whole = int(np.floor(x)) + 1
        count = whole * c
        mean = a * (whole - x)
        spread = 12.0 * np.sqrt(mean) + 40.0
        first, last = int(max(0.0, np.floor(mean - spread))), int(min(count - 1.0, np.ceil(mean + spread)))
        j = np.arange(first, last + 1)
        index = count - 1 - j
        waits = np.where(index < points, 1.0 - below[np.minimum(index, points - 1)], 0.0)
        log_weight = j * np.log(mean) - mean - gammaln(j + 1.0)
        with np.errstate(under="ignore"):
            weight = np.exp(log_weight)
        # P(W > x) = sum weight (1 - Q) + P(A > count - 1), both positive
        from scipy.special import gammainc

        return float(weight @ waits) + float(gammainc(float(count), mean))

    p_wait = tail(0.0)
    levels = 1.0 - np.ravel(np.asarray(quantiles, dtype=np.float64))
    step = 2.0 / (c * log_radius) + 1e-3
    waits = np.array([_exceeded(tail, level, step) if level < p_wait else 0.0 for level in levels])
    # E[L] counts who waits at an epoch; by Little it is lambda E[W]
    return p_wait, mean_queue / a, waits


def _exceeded(tail: Callable[[float], float], level: float, step: float) -> float:
    """Time x with tail(x) = level, by the Illinois rule on its logarithm; looked for first within `step`."""
    bottom, top = 0.0, step
    while tail(top) > level:
        bottom, top = top, 2.0 * top
    at = top
    f_bottom, f_top = np.log(tail(bottom) / level), np.log(max(tail(top), 1e-300) / level)
    side = 0
    for _ in range(80):
        at = bottom + (top - bottom) * f_bottom / (f_bottom - f_top)
        if not bottom < at < top:
            at = 0.5 * (bottom + top)
        f = np.log(max(tail(at), 1e-300) / level)
        if abs(f) < 1e-11 or top - bottom < 1e-13 * top:
            break
        if f > 0.0:
            bottom, f_bottom = at, f
            f_top, side = (0.5 * f_top if side > 0 else f_top), 1
        else:
            top, f_top = at, f
            f_bottom, side = (0.5 * f_bottom if side < 0 else f_bottom), -1
    return at
