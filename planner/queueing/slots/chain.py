"""How many slots of a replica are busy: state-dependent product form, and its closed form for t(n) = W + H n.

An iteration with n active slots takes t(n). A request needs K iterations, so while a slot is free the replica is a
processor-sharing station with n / (E[K] t(n)) completions per second: its stationary law depends on K only through the
mean. Beyond the last slot the iteration time stays at t(slots) and the law is continued geometrically.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "ROUTINGS",
    "Occupancy",
    "OccupancyChain",
    "iteration_times",
    "linear_all_busy",
    "negative_binomial",
    "occupancy",
    "pooled",
]

FloatArray = NDArray[np.float64]

#: Routing policies: who gets the next request of a pool.
ROUTINGS = ("random", "rr", "jsq", "central")

_NEGLIGIBLE = 45.0  # states whose weight is below exp(-45) of the largest are not carried


def pooled(routing: str) -> bool:
    """Whether the routing lets a request use any free slot of the pool (one chain of all slots).

    Parameters
    ----------
    routing : str
        ``"random"``, ``"rr"`` (round robin), ``"jsq"`` (join the shortest queue) or ``"central"`` (one queue) [-].

    Returns
    -------
    bool
        True for ``"jsq"`` and ``"central"`` [-].

    Examples
    --------
    >>> pooled("jsq"), pooled("random")
    (True, False)
    """
    if routing not in ROUTINGS:
        raise ValueError(f"routing must be one of {', '.join(ROUTINGS)}, not {routing!r}")
    return routing in ("jsq", "central")


def _positive(value: float, name: str, *, zero: bool = False) -> float:
    value = float(value)
    if not np.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} must be {'>= 0' if zero else '> 0'} and finite, not {value!r}")
    return value


def _count(value: int, name: str) -> int:
    whole = int(value)
    if whole != value or whole < 1:
        raise ValueError(f"{name} must be a whole number >= 1, not {value!r}")
    return whole


def iteration_times(slots: int, fixed_time: float, time_per_slot: float) -> FloatArray:
    r"""Iteration times of the linear model, :math:`t(n) = W + H n` for n = 0..slots.

    Parameters
    ----------
    slots : int
        Sequences a replica decodes at once [slots].
    fixed_time : float
        W, time of an iteration however many slots are active [s].
    time_per_slot : float
        H, time per active slot and iteration [s].

    Returns
    -------
    ndarray, shape (slots + 1,)
        t(0..slots) [s]; t(0) is not used by the chain.

    Examples
    --------
    >>> iteration_times(2, 0.008, 0.001).tolist()
    [0.008, 0.009000000000000001, 0.01]
    """
    slots = _count(slots, "slots")
    fixed_time = _positive(fixed_time, "fixed_time", zero=True)
    time_per_slot = _positive(time_per_slot, "time_per_slot", zero=True)
    if fixed_time + time_per_slot <= 0:
        raise ValueError("fixed_time and time_per_slot must not both be 0")
    return np.asarray(fixed_time + time_per_slot * np.arange(slots + 1.0), dtype=np.float64)


def negative_binomial(
    arrival_rate: float, mean_iterations: float, fixed_time: float, time_per_slot: float, replicas: int = 1
) -> tuple[float, float]:
    r"""Parameters of the busy-slot law for t(n) = W + H n with slots to spare.

    .. math:: r = 1 + g W / H, \qquad p = H \lambda E[K] / g, \qquad
              P(n) = \binom{n + r - 1}{n} (1 - p)^r p^n

    (MODEL.md section 4): mean r p / (1 - p), variance r p / (1 - p)^2.

    Parameters
    ----------
    arrival_rate : float
        lambda of the chain [1/s].
    mean_iterations : float
        E[K], iterations a request takes [iterations].
    fixed_time, time_per_slot : float
        W and H of the iteration time [s].
    replicas : int
        g, replicas that share one queue (1 for a replica by itself) [replicas].

    Returns
    -------
    tuple of float
        r and p [-]; r is ``inf`` for H = 0 (the law is Poisson).

    Examples
    --------
    >>> r, p = negative_binomial(2.0, 220.0, 0.008, 0.00065)
    >>> round(r, 3), round(p, 3), round(r * p / (1 - p), 2)
    (13.308, 0.286, 5.33)
    """
    arrival_rate = _positive(arrival_rate, "arrival_rate", zero=True)
    mean_iterations = _positive(mean_iterations, "mean_iterations")
    fixed_time = _positive(fixed_time, "fixed_time", zero=True)
    time_per_slot = _positive(time_per_slot, "time_per_slot", zero=True)
    replicas = _count(replicas, "replicas")
    r = 1.0 + replicas * fixed_time / time_per_slot if time_per_slot > 0 else float("inf")
    return r, time_per_slot * arrival_rate * mean_iterations / replicas


def linear_all_busy(
    arrival_rate: ArrayLike,
    mean_iterations: ArrayLike,
    slots: ArrayLike,
    fixed_time: ArrayLike,
    time_per_slot: ArrayLike,
    replicas: ArrayLike = 1,
    routing: str = "random",
) -> Any:
    r"""Probability that an arrival finds all slots busy, for t(n) = W + H n, in O(1).

    .. math:: C = \frac{x}{1 + x}, \qquad x = \frac{P_{NB}(c)}{(1 - \rho) I_{1-p}(r, c)}

    with P_NB the negative-binomial mass, :math:`I` the regularized incomplete beta function (P(n < c)),
    :math:`\rho = p (r - 1 + c) / c`. For H = 0 the law is Poisson, :math:`I` becomes the incomplete gamma function,
    and C is Erlang C.

    Parameters
    ----------
    arrival_rate : array_like
        lambda of the whole pool [1/s].
    mean_iterations : array_like
        E[K], iterations a request takes [iterations].
    slots : array_like
        Slots per replica, real values >= 1 allowed [slots].
    fixed_time, time_per_slot : array_like
        W, H [s].
    replicas : array_like
        Replicas in the pool [replicas].
    routing : str
        ``"random"`` (one replica at lambda / g), ``"jsq"`` or ``"central"`` (pooled chain). Round robin has no closed
        form: use `occupancy`.

    Returns
    -------
    float or ndarray
        Probability [-], the shape the arguments broadcast to; 1.0 where rho >= 1.

    References
    ----------
    W. Whitt, "The Erlang B and C formulas", 2002; insensitivity: J. W. Cohen, "The multiple phase service network with
    generalized processor sharing", Acta Informatica 12 (1979), doi:10.1007/BF00264581.

    Examples
    --------
    H = 0 is Erlang C; two servers at one Erlang wait with probability 1/3:

    >>> round(linear_all_busy(1.0, 100, 2, 0.01, 0.0), 12)
    0.333333333333
    >>> linear_all_busy(10.0, 100, 2, 0.01, 0.0)
    1.0
    """
    from scipy.special import betainc, betaln, gammaincc, gammaln, xlog1py, xlogy

    if routing == "rr":
        raise ValueError("routing 'rr' has no closed form; use occupancy(..., routing='rr')")
    one_chain = pooled(routing)
    named = {
        "arrival_rate": arrival_rate,
        "mean_iterations": mean_iterations,
        "slots": slots,
        "fixed_time": fixed_time,
        "time_per_slot": time_per_slot,
        "replicas": replicas,
    }
    arrays = {name: np.asarray(value, dtype=float) for name, value in named.items()}
    least = {"mean_iterations": 0.0, "slots": 1.0, "replicas": 1.0}
    for name, array in arrays.items():
        bound = least.get(name, 0.0)
        if (
            not np.all(np.isfinite(array))
            or np.any(array < bound)
            or (name == "mean_iterations" and np.any(array == 0))
        ):
            raise ValueError(f"{name} must be finite and {'>' if name == 'mean_iterations' else '>='} {bound:g}")
    lam, k, c, w, h, g = np.broadcast_arrays(*arrays.values())
    if np.any(w + h <= 0):
        raise ValueError("fixed_time and time_per_slot must not both be 0")
    lam_replica = lam / g
    chain_c = c * g if one_chain else c
    chain_g = g if one_chain else np.ones_like(g)
    rho = lam_replica * k * (w + h * c) / c
    # the chain of g replicas: p = H lambda E[K] / g and offered load a = W lambda E[K] (g times one replica's)
    p = h * lam_replica * k
    offered = w * lam_replica * k * chain_g
    stable = rho < 1
    p = np.where(stable, p, 0.0)
    rho = np.where(stable, rho, 0.0)
    offered = np.where(stable, offered, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        r = 1.0 + chain_g * w / np.where(h > 0, h, np.inf)
        # below p r ~ 1e-9 the Poisson limit is exact to double precision and the beta function is not
        negative = (h > 0) & (r < 1e9)
        r_safe = np.where(negative, r, 1.0)
        p_safe = np.where(negative, p, 0.5)
        log_mass_nb = xlogy(chain_c, p_safe) + xlog1py(r_safe, -p_safe) - np.log(chain_c) - betaln(chain_c, r_safe)
        below_nb = betainc(r_safe, chain_c, 1.0 - p_safe)
        load = np.where(negative, 0.0, offered)
        log_mass_poisson = xlogy(chain_c, load) - load - gammaln(chain_c + 1.0)
        below_poisson = gammaincc(chain_c, load)
        log_mass = np.where(negative, log_mass_nb, log_mass_poisson)
        below = np.where(negative, below_nb, below_poisson)
        odds = np.exp(log_mass) / ((1.0 - rho) * below)
    result = np.where(stable, odds / (1.0 + odds), 1.0)
    return float(result) if result.ndim == 0 else result


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """Stationary law of the busy slots of a pool.

    Attributes
    ----------
    first : int
        Number of requests that `probability[0]` belongs to [requests].
    probability : ndarray
        P(first), P(first + 1), ... of the chain; the last entry is P(all slots busy) when `first + len - 1` is the
        chain's number of slots [-].
    chain_slots : int
        Slots of the chain (of one replica, or of the pool under pooled routing) [slots].
    replicas : int
        Replicas of the chain (1 unless the routing pools them) [replicas].
    all_busy : float
        Probability that an arrival finds every slot of its chain busy [-].
    load : float
        lambda / X: arrival rate over maximum throughput [-].
    margin : float
        1 - load; <= 0 means no steady state [-].
    stable : bool
        Whether load < 1 [-].
    max_throughput : float
        X of the whole pool [1/s].
    throughput : float
        min(lambda, X) of the whole pool [1/s].
    mean_active : float
        Mean busy slots of one replica [slots].
    slot_occupancy : float
        Mean busy slots / slots [-].
    """

    first: int
    probability: FloatArray
    chain_slots: int
    replicas: int
    all_busy: float
    load: float
    margin: float
    stable: bool
    max_throughput: float
    throughput: float
    mean_active: float
    slot_occupancy: float

    def quantile(self, q: ArrayLike) -> Any:
        """Quantile of the busy slots of a replica (of the pool over its replicas, under pooled routing).

        Parameters
        ----------
        q : array_like
            Probability in [0, 1] [-].

        Returns
        -------
        float or ndarray
            Smallest n with P(busy <= n) >= q, over the replicas of the chain [slots].

        Examples
        --------
        >>> occupancy(2.0, 220.0, iteration_times(16, 0.008, 0.00065), 16).quantile([0.5, 0.99]).tolist()
        [5.0, 13.0]
        """
        levels = np.asarray(q, dtype=float)
        if np.any(~((levels >= 0) & (levels <= 1))):
            raise ValueError(f"q must be in [0, 1], not {q!r}")
        cumulative = np.cumsum(self.probability)
        index = np.minimum(np.searchsorted(cumulative, levels - 1e-15), len(cumulative) - 1)
        result = (self.first + index) / self.replicas
        return float(result) if levels.ndim == 0 else result


@dataclass(frozen=True, slots=True, eq=False)
class OccupancyChain:
    """The part of the occupancy model that does not depend on the arrival rate; build once, solve for many rates.

    Attributes
    ----------
    iteration_time : ndarray, shape (slots + 1,)
        t(0..slots); t(0) is ignored [s].
    slots : int
        Slots of a replica [slots].
    replicas : int
        Replicas that share one queue [replicas].

    Examples
    --------
    >>> chain = OccupancyChain(iteration_times(16, 0.008, 0.00065), 16)
    >>> round(chain.solve(2.0 * 220.0).mean_active, 3)
    5.33
    """

    iteration_time: FloatArray
    slots: int
    replicas: int = 1
    log_weight: FloatArray = field(init=False, repr=False)
    states: FloatArray = field(init=False, repr=False)
    rates: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        slots = _count(self.slots, "slots")
        replicas = _count(self.replicas, "replicas")
        times = np.asarray(self.iteration_time, dtype=float)
        if times.ndim != 1 or len(times) != slots + 1:
            raise ValueError(f"iteration_time must have slots + 1 = {slots + 1} entries, not shape {times.shape}")
        if not np.all(np.isfinite(times[1:])) or np.any(times[1:] <= 0):
            raise ValueError("iteration_time must be > 0 and finite for n >= 1")
        states = np.arange(slots * replicas + 1, dtype=float)
        log_weight = np.zeros(slots * replicas + 1)
        # with fewer requests than replicas each runs alone: t(1)
        spread = np.maximum(states[1:] / replicas, 1.0)
        pooled_time = times[1:] if replicas == 1 else np.interp(spread, np.arange(slots + 1.0), times)
        np.cumsum(np.log(pooled_time / states[1:]), out=log_weight[1:])
        rates = np.zeros(len(states))
        rates[1:] = states[1:] / pooled_time
        fields = (("iteration_time", times), ("log_weight", log_weight), ("states", states), ("rates", rates))
        for name, value in fields:
            object.__setattr__(self, name, value)
        object.__setattr__(self, "slots", slots)
        object.__setattr__(self, "replicas", replicas)

    @property
    def max_work(self) -> float:
        """Largest rate of iterations the chain can do, c / t(slots) [iterations/s]."""
        return float(self.slots * self.replicas / self.iteration_time[-1])

    def _law(self, log_work: float, power: float) -> tuple[int, FloatArray, float]:
        """First state carried, the law from there on, and P(all busy)."""
        log_p = self.states * log_work + self.log_weight
        tail_ratio = float(np.exp(power * (log_work - np.log(self.max_work))))
        if power != 1.0:
            log_p *= power
        log_p -= log_p.max()
        kept = np.flatnonzero(log_p > -_NEGLIGIBLE)
        low, high = int(kept[0]), int(kept[-1])
        probability = np.exp(log_p[low : high + 1])
        last = len(log_p) - 1
        if high == last:
            probability[-1] /= 1.0 - tail_ratio
        total = float(probability.sum())
        probability /= total
        if high == last:
            return low, probability, float(probability[-1])
        return low, probability, float(np.exp(log_p[-1])) / (1.0 - tail_ratio) / total

    def solve(self, work: float, peakedness: float = 1.0) -> Occupancy:
        r"""Stationary law at an offered work lambda E[K].

        .. math:: \pi(n) \propto \Big[\prod_{i \le n} \lambda E[K]\, t(i/g) / i \Big]^{1/z}, \quad n \le c,
                  \qquad \text{geometric beyond with ratio } \rho^{1/z}

        z = 1 is the exact product form; z != 1 scales the spread as Hayward's approximation scales Erlang's formulas.

        Parameters
        ----------
        work : float
            lambda E[K] of the whole chain; throughputs of the result are in the same unit [iterations/s].
        peakedness : float
            z, variance of the busy slots over what Poisson arrivals give, > 0 [-].

        Returns
        -------
        Occupancy
            Law, load and throughput; all slots busy with probability 1 when the load is >= 1.
        """
        work = _positive(work, "work", zero=True)
        peakedness = _positive(peakedness, "peakedness")
        c = self.slots * self.replicas
        most = self.max_work
        load = work / most
        if load >= 1.0 - 1e-12:  # within rounding of its limit there is no steady state to tell
            return Occupancy(
                c,
                np.ones(1),
                c,
                self.replicas,
                1.0,
                max(load, 1.0),
                min(1.0 - load, 0.0),
                False,
                most,
                most,
                float(self.slots),
                1.0,
            )
        if work == 0.0:
            return Occupancy(0, np.ones(1), c, self.replicas, 0.0, 0.0, 1.0, True, most, 0.0, 0.0, 0.0)
        low, probability, all_busy = self._law(np.log(work), 1.0 / peakedness)
        if peakedness != 1.0:
            # scaling the spread moves the mean: shift the law until it does the iterations it is brought
            shift, least, most_shift = 0.0, -20.0, float(-np.log(load)) * (1.0 - 1e-9)
            for _ in range(30):
                n = self.states[low : low + len(probability)].copy()
                rates = self.rates[low : low + len(probability)]
                done = float(probability @ rates)
                gap = float(np.log(work / done)) if done > 0 else 1.0
                if abs(gap) < 1e-7:
                    break
                least, most_shift = (shift, most_shift) if gap > 0 else (least, shift)
                if n[-1] == c:  # the states beyond the last slot shift too
                    tail = (load * np.exp(shift)) ** (1.0 / peakedness)
                    n[-1] += tail / (1.0 - tail)
                slope = (float(probability @ (rates * n)) / max(done, 1e-300) - float(probability @ n)) / peakedness
                newton = shift + gap / slope if slope > 1e-9 else np.inf
                shift = newton if least < newton < most_shift else 0.5 * (least + most_shift)
                low, probability, all_busy = self._law(np.log(work) + shift, 1.0 / peakedness)
        mean = float(probability @ self.states[low : low + len(probability)])
        return Occupancy(
            first=low,
            probability=probability,
            chain_slots=c,
            replicas=self.replicas,
            all_busy=all_busy,
            load=load,
            margin=1.0 - load,
            stable=True,
            max_throughput=most,
            throughput=work,
            mean_active=mean / self.replicas,
            slot_occupancy=mean / c,
        )


def occupancy(
    arrival_rate: float,
    mean_iterations: float,
    iteration_time: ArrayLike,
    slots: int,
    replicas: int = 1,
    routing: str = "random",
    dispersion: float = 1.0,
    arrival_weight: float = 0.5,
) -> Occupancy:
    r"""Busy slots of a pool whose iterations take any t(n).

    The product form of `OccupancyChain.solve` for one replica at lambda / g (``random``, ``rr``) or for all g replicas
    as one chain of g x slots (``jsq``, ``central``). Arrivals that are not Poisson enter through the peakedness
    :math:`z = 1 + (I - 1) \zeta`; round robin thins the stream to I / g.

    Parameters
    ----------
    arrival_rate : float
        lambda of the whole pool [1/s].
    mean_iterations : float
        E[K], iterations a request takes [iterations].
    iteration_time : array_like, shape (slots + 1,)
        t(0..slots); t(0) is ignored [s].
    slots : int
        Slots per replica [slots].
    replicas : int
        g [replicas].
    routing : str
        One of `ROUTINGS` [-].
    dispersion : float
        I, index of dispersion of the pool's arrival counts at the relaxation time; 1 for Poisson [-].
    arrival_weight : float
        zeta in (0, 1]: the share of the arrivals' variance that reaches the busy slots, 1/2 for a geometric K [-].

    Returns
    -------
    Occupancy
        Law of the busy slots; `max_throughput` and `throughput` in requests per second for the pool.

    Examples
    --------
    >>> pool = occupancy(16.0, 220.0, iteration_times(16, 0.008, 0.00065), 16, replicas=8, routing="jsq")
    >>> round(pool.load, 3), round(pool.slot_occupancy, 3), pool.all_busy < 1e-6
    (0.506, 0.311, True)
    """
    arrival_rate = _positive(arrival_rate, "arrival_rate", zero=True)
    mean_iterations = _positive(mean_iterations, "mean_iterations")
    replicas = _count(replicas, "replicas")
    dispersion = _positive(dispersion, "dispersion", zero=True)
    if not 0 < arrival_weight <= 1:
        raise ValueError(f"arrival_weight must be in (0, 1], not {arrival_weight!r}")
    one_chain = pooled(routing)
    chain = OccupancyChain(np.asarray(iteration_time, dtype=float), slots, replicas if one_chain else 1)
    share = arrival_rate if one_chain else arrival_rate / replicas
    z = max(1.0 + (replica_dispersion(dispersion, replicas, routing) - 1.0) * arrival_weight, 0.05)
    result = chain.solve(share * mean_iterations, z)
    scale = (1 if one_chain else replicas) / mean_iterations
    return Occupancy(
        first=result.first,
        probability=result.probability,
        chain_slots=result.chain_slots,
        replicas=result.replicas,
        all_busy=result.all_busy,
        load=result.load,
        margin=result.margin,
        stable=result.stable,
        max_throughput=result.max_throughput * scale,
        throughput=result.throughput * scale,
        mean_active=result.mean_active,
        slot_occupancy=result.slot_occupancy,
    )


def replica_dispersion(dispersion: float, replicas: int, routing: str) -> float:
    """Dispersion of the arrivals the chain sees, from that of the pool.

    Random routing thins: 1 + (I - 1) / g. Round robin deals: I / g. Pooled chains see the pool's own stream.

    Parameters
    ----------
    dispersion : float
        I of the pool [-].
    replicas : int
        g [replicas].
    routing : str
        One of `ROUTINGS` [-].

    Returns
    -------
    float
        Dispersion seen by the chain [-].

    Examples
    --------
    >>> replica_dispersion(1.0, 8, "random"), replica_dispersion(1.0, 8, "rr"), replica_dispersion(3.0, 8, "jsq")
    (1.0, 0.125, 3.0)
    """
    if pooled(routing):
        return dispersion
    return dispersion / replicas if routing == "rr" else 1.0 + (dispersion - 1.0) / replicas
