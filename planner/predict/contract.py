"""What every latency method answers, whatever its physics: the contract between the methods and the pool sizer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.predict.joint import Joint, Together, apart, frechet
from planner.predict.records import Replicas
from planner.predict.replica import EngineOption, ReplicaSetup
from planner.predict.traffic import PoolTraffic
from planner.promise import PROMISE_METRICS, Promise, joint_limits
from planner.question.compiled import JOINT_LEVELS
from planner.routing import Routing
from planner.workload import pools as m
from planner.workload.pools import PoolLaw, capacity_upper_bound

MEAN_LEVELS = tuple((k + 0.5) / 10.0 for k in range(10))
"""Levels whose quantiles are averaged for a mean that is not told."""

FEW_PER_REPLICA = 1e-9
"""Rate [1/s] at which a replica is as good as idle."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Latency and occupancy of a pool at one rate and number of replicas.

    Parameters
    ----------
    quantiles
        Levels of the latency tuples, ascending.
    latencies
        Metric -> its quantiles [s]; inf when unstable, NaN where no request of the pool has it.
    load
        Rate over capacity.
    slot_occupancy, mean_running
        Mean busy slots / slots; mean sequences per replica.
    wait_probability
        Probability that an arrival waits for a slot or memory.
    bands
        Metric -> one (low, high) per level: the truth lies within ``value * (1 + low) .. value * (1 + high)``, as
        measured for the region.
    warnings
        Region-specific caveats.
    reliable
        False where the method has been too far off for a promise to rest on it.
    together
        How the latencies of a request go together, where that was asked for and is known.
    means
        Metric -> its mean [s], the wait before admission (``wait_s``) too, where a method tells them.
    """

    quantiles: tuple[float, ...]
    latencies: Mapping[str, tuple[float, ...]]
    load: float
    slot_occupancy: float
    mean_running: float
    wait_probability: float
    bands: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    reliable: bool = True
    together: Together | None = None
    means: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def unknown(cls) -> Prediction:
        """Of a pool that nobody has asked about yet."""
        return cls((), {}, math.nan, math.nan, math.nan, math.nan)

    def telling(self, **latencies: tuple[float, ...]) -> Prediction:
        """The same with other quantiles of some latencies [s]."""
        return replace(self, latencies={**self.latencies, **latencies})

    def _place(self, metric: str, quantile: float) -> int:
        for k, level in enumerate(self.quantiles):
            if abs(level - quantile) < 1e-12:
                return k
        raise KeyError(f"{metric} was not predicted at quantile {quantile}")

    def value(self, metric: str, quantile: float) -> float:
        """The value of `metric` at one of the levels [s]; of a joint latency see :class:`planner.promise.Promise`."""
        if (limits := joint_limits(metric)) is not None:
            return next(iter(limits.values())) * self._joint(limits).quantile(quantile)
        if metric not in self.latencies:
            raise InputError(f"{metric}: this latency method does not tell it", "Leave --method out.")
        return float(self.latencies[metric][self._place(metric, quantile)])

    def mean(self, metric: str) -> float:
        """The mean of `metric` [s]; of :data:`MEAN_LEVELS`, which were asked for, where the method tells none."""
        if metric in self.means:
            return self.means[metric]
        return math.fsum(self.value(metric, level) for level in MEAN_LEVELS) / len(MEAN_LEVELS)

    def band(self, metric: str, quantile: float) -> tuple[float, float]:
        """Truth over the value - 1, at least and at most [1]; a tenth either way where nothing was measured."""
        if (limits := joint_limits(metric)) is None:
            bands = self.bands.get(metric)
            return (-0.1, 0.1) if bands is None else bands[self._place(metric, quantile)]
        value = self._joint(limits).quantile(quantile)
        if not 0.0 < value < math.inf:
            return -0.1, 0.1
        low, high = (self._joint(limits, ends).quantile(quantile) / value - 1.0 for ends in self._ends(limits))
        return low, high

    def share(self, promise: Promise) -> float:
        """Share of the requests within all limits of a promise [1]."""
        return self._joint(promise.limits).share()

    def share_band(self, promise: Promise, more: float = 0.0) -> tuple[float, float]:
        """The least and the most that share may be, by the errors of the latencies and `more` error of all times [1].

        Where it is not known how the latencies go together, Frechet's bounds.
        """
        found = []
        for k, ends in enumerate(self._ends(promise.limits)):
            scale = 1.0 / (1.0 - more if k == 0 else 1.0 + more)
            if self.together is None or not self.together.known:
                alone = [self._joint({name: limit}, ends).share(scale) for name, limit in promise.limits.items()]
                found.append(frechet(alone)[1 - k])
            else:
                found.append(self._joint(promise.limits, ends).share(scale))
        return found[1], found[0]

    def _ends(self, limits: Mapping[str, float]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Factors on the quantiles at the quick and at the slow end of the bands."""
        bands = {name: self.bands.get(name, same_band(self.quantiles, -0.1, 0.1)) for name in limits}
        quick, slow = ({name: [1.0 + pair[k] for pair in found] for name, found in bands.items()} for k in (0, 1))
        return quick, slow

    def _joint(self, limits: Mapping[str, float], factors: Mapping[str, Sequence[float]] | None = None) -> Joint:
        """Several latencies over their limits, each quantile times a factor."""
        quantiles: dict[str, Sequence[float]] = {name: self.latencies[name] for name in limits}
        for name in factors or {}:
            if name in quantiles:
                quantiles[name] = [v * f for v, f in zip(quantiles[name], (factors or {})[name], strict=True)]
        return Joint.of(self.together or apart(), self.quantiles, quantiles, limits)


def same_band(quantiles: tuple[float, ...], low: float, high: float) -> tuple[tuple[float, float], ...]:
    """One band for every level."""
    return ((low, high),) * len(quantiles)


class PoolModel:
    """One pool under one latency method: built once per law and engine, asked for many rates and sizes.

    Attributes
    ----------
    joint
        Whether a prediction also says how the latencies of a request go together.
    copies
        Batches that a replica runs side by side.
    """

    joint = False
    copies = 1

    @property
    def single(self) -> PoolModel:
        """The model of a pool of single copies."""
        return self

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of one replica [1/s]."""
        raise NotImplementedError

    def capacity_at(self, replicas: int) -> float:
        """Largest stable rate of one of so many replicas [1/s]; the number matters where prompts come back to caches."""
        return self.capacity_per_s

    def without_bursts(self) -> PoolModel | None:
        """The same pool under Poisson arrivals; ``None`` where the difference is not asked about."""
        return None

    def grown(self, growth: str) -> PoolModel | None:
        """The same pool where traffic beyond the trace's own is more ``users`` or more ``use``; ``None`` where that is alike."""
        return None

    def by_windows(self, windows_s: float) -> PoolModel:
        """The same pool, each latency of which is what 95% of windows of so many seconds keep within.

        Raises
        ------
        InputError
            The method looks at no requests one by one.
        """
        raise InputError("windows: only replays tell windows apart", "Take --method mixed.")

    def under(self, slow: float = 1.0, draw: int | None = None) -> PoolModel:
        """The same pool with iterations `slow` times as long [1], at another draw of its traffic (see :meth:`draws`)."""
        if slow == 1.0 and draw is None:
            return self
        known: dict[tuple[float, int | None], PoolModel] = self.__dict__.setdefault("_under_others", {})
        if (slow, draw) not in known:
            known[slow, draw] = self._otherwise(slow, draw)
        return known[slow, draw]

    def _otherwise(self, slow: float, draw: int | None) -> PoolModel:
        """See :meth:`under`: one made anew."""
        return Scaled(self, slow=slow)

    def is_short(self, rate_per_s: float, replicas: int) -> bool:
        """Whether all requests at a rate of the pool [1/s] are so few that a decision takes several draws of its gateway."""
        return False

    def draws(self, rate_per_s: float) -> NDArray[np.int64]:
        """Draws of the traffic at a rate of the pool [1/s], the calmest first; one where there is nothing to draw."""
        return np.zeros(1, dtype=np.int64)

    def predict(self, rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """Latency at a pool rate [1/s], the only place the rate stands, spread over `replicas`, at the given levels (ascending)."""
        raise NotImplementedError

    def look(self, rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """The same to a few percent, and without bands, where that takes less time."""
        return self.predict(rate_per_s, replicas, quantiles)

    def excess(self, rate_per_s: float, replicas: int, promises: Sequence[Promise]) -> float:
        """Logarithm of the worst latency over its limit, as engines count both, in the replay by which :meth:`keeps` decides [1].

        nan where there is none.
        """
        return math.nan

    def unloaded(self, quantiles: tuple[float, ...]) -> Prediction:
        """Latency on a replica that hardly anybody asks: no number of replicas is quicker."""
        return self.predict(FEW_PER_REPLICA, 1, quantiles)

    def breaks_alone(self, law: PoolLaw, promises: Sequence[Promise]) -> tuple[Promise, float] | None:
        """The promise that requests of a law miss by most where each has a replica for itself, with its value [s]; ``None`` where
        none is missed beyond doubt."""
        return None

    def keeps(self, rate_per_s: float, replicas: int, promises: Sequence[Promise], sure: bool = False) -> bool:
        """Whether so many replicas keep the promises; nearly, unless it is to be `sure`."""
        if rate_per_s >= replicas * self.capacity_at(replicas):
            return False
        levels = tuple(sorted({*(p.quantile for p in promises), *(JOINT_LEVELS if self.joint else ())}))
        found = (self.predict if sure else self.look)(rate_per_s, replicas, levels)
        return found.load < 1.0 and all(found.value(p.metric, p.quantile) <= p.limit_s for p in promises)


class Scaled(PoolModel):
    """A pool asked as another: of replicas that run several batches side by side, each with slots, memory and a budget of its own,
    or in closed form with every time longer, which is the same pool at as many times the rate.

    Parameters
    ----------
    one
        The model of a pool of single copies, as its profile has it.
    copies
        Copies of a replica.
    slow
        How many times as long it takes [1].
    """

    def __init__(self, one: PoolModel, copies: int = 1, slow: float = 1.0) -> None:
        self.one, self.copies, self.slow, self.joint = one, copies, slow, one.joint

    @property
    def single(self) -> PoolModel:
        """See :class:`PoolModel`."""
        return self.one if self.slow == 1.0 else self

    @property
    def capacity_per_s(self) -> float:
        """See :class:`PoolModel`."""
        return self.copies * self.one.capacity_per_s / self.slow

    def capacity_at(self, replicas: int) -> float:
        """See :class:`PoolModel`."""
        return self.copies * self.one.capacity_at(replicas * self.copies) / self.slow

    def without_bursts(self) -> PoolModel | None:
        """See :class:`PoolModel`."""
        calm = self.one.without_bursts()
        return None if calm is None else Scaled(calm, self.copies, self.slow)

    def grown(self, growth: str) -> PoolModel | None:
        """See :class:`PoolModel`."""
        other = self.one.grown(growth)
        return None if other is None else Scaled(other, self.copies, self.slow)

    def by_windows(self, windows_s: float) -> PoolModel:
        """See :class:`PoolModel`."""
        return Scaled(self.one.by_windows(windows_s), self.copies, self.slow)

    def _otherwise(self, slow: float, draw: int | None) -> PoolModel:
        """See :meth:`PoolModel.under`."""
        return Scaled(self.one.under(slow * self.slow, draw), self.copies)

    def draws(self, rate_per_s: float) -> NDArray[np.int64]:
        """See :class:`PoolModel`."""
        return self.one.draws(rate_per_s)

    def predict(self, rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`PoolModel`."""
        return self._told(self.one.predict(self.slow * rate_per_s, replicas * self.copies, quantiles))

    def look(self, rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`PoolModel`."""
        return self._told(self.one.look(self.slow * rate_per_s, replicas * self.copies, quantiles))

    def unloaded(self, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`PoolModel`."""
        return self._told(self.one.unloaded(quantiles))

    def keeps(self, rate_per_s: float, replicas: int, promises: Sequence[Promise], sure: bool = False) -> bool:
        """See :class:`PoolModel`."""
        if self.slow != 1.0:
            return super().keeps(rate_per_s, replicas, promises, sure)
        return self.one.keeps(rate_per_s, replicas * self.copies, promises, sure)

    def _told(self, found: Prediction) -> Prediction:
        """What the other pool does as what this one does."""
        if self.slow == 1.0:
            return replace(found, mean_running=self.copies * found.mean_running)
        longer = {k: tuple(self.slow * v for v in values) for k, values in found.latencies.items()}
        return replace(found, mean_running=self.copies * found.mean_running, latencies=longer)


class Method:
    """A latency method, ``METHOD`` of its file: how it makes the model of a pool, and what a search may rely on.

    Attributes
    ----------
    name, summary
        Name on the command line, and the engine it pictures.
    shares_budget
        Whether prefill and decode share iterations under a token budget.
    free_prefill
        Whether its prefill takes no compute, so that the hardware's own limits must be kept beside it.
    feels_bursts
        Whether measured bursts of the arrivals change its predictions.
    replays
        Whether its predictions replay requests.
    caveat
        What a plan made with it must say.
    """

    name: str
    summary: str
    shares_budget = False
    free_prefill = False
    feels_bursts = True
    replays = False
    caveat: str | None = None

    def pool(
        self, engine: EngineOption, setup: ReplicaSetup, chunk: int, routing: Routing, arrivals: PoolTraffic
    ) -> PoolModel:
        """The model of a pool: the engine of its replicas, what the gateway does, the requests it gets."""
        raise NotImplementedError

    def iteration_limits(self, law: PoolLaw, promises: Sequence[Promise], chunk: int) -> list[float]:
        """What a full iteration may take so that each promise can be kept at all [s]; TPOT is one full iteration."""
        return [p.limit_s for p in promises if p.metric == "tpot_s"]

    def capacity_bound(
        self, moments: NDArray[np.float64], engine: EngineOption, slots: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """A rate no copy of a replica of pools with these feature sums exceeds [1/s], shape (pools,)."""
        budget = engine.token_budget if self.shares_budget else math.inf
        memory = engine.kv_tokens(1) if engine.kv == "paged" else math.inf
        if engine.shared_prefix and memory < math.inf:
            # at most all of it in every context is kept once
            moments = moments.copy()
            moments[..., m.KV] = np.maximum(moments[..., m.KV] - engine.shared_prefix * moments[..., m.DECODE], 0.0)
        if engine.speculation is not None:
            # as many steps as the tokens take at least
            moments = moments.copy()
            moments[..., [m.DECODE, m.KV]] /= engine.speculation.tokens_per_step
        return capacity_upper_bound(moments, engine.profile.iteration, budget, slots, memory)

    def sizes_exactly(self, engines: Sequence[EngineOption], promises: Sequence[Promise]) -> bool:
        """Whether :meth:`replicas` gives the sizes of pools themselves."""
        return False

    def replicas(
        self,
        moments: NDArray[np.float64],
        chunks: NDArray[np.float64],
        engine: EngineOption,
        slots: NDArray[np.float64],
        rate_per_s: float,
        promises: Sequence[Promise],
        utilization_cap: float,
    ) -> NDArray[np.float64]:
        """Replicas of many pools at once where :meth:`sizes_exactly` says so."""
        raise NotImplementedError


def unstable(quantiles: tuple[float, ...], load: float) -> Prediction:
    """The prediction for a pool that cannot keep up: every latency grows without bound."""
    never = dict.fromkeys(PROMISE_METRICS, (math.inf,) * len(quantiles))
    return Prediction(quantiles, never, load, 1.0, math.inf, 1.0)


def replica_of(engine: EngineOption, setup: ReplicaSetup, **more: Any) -> Replicas:
    """One replica of an engine as replays and closed forms take it; `more` of its fields."""
    profile = engine.profile
    return Replicas(
        1, profile.iteration, setup.slots, engine.token_budget, setup.kv_tokens, request_s=profile.request_s,
        wake_s=profile.wake_s, shared_prefix=engine.shared_prefix, **more,
    )  # fmt: skip
