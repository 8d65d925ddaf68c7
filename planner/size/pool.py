"""The smallest pool that keeps its promises, with iterations as slow as the confidence asked for has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from planner.catalog.kv import kv_bytes_per_token, window_share
from planner.catalog.load import full_w
from planner.catalog.profiles import Profile
from planner.errors import InputError
from planner.machine.engines import DEFAULT_ENGINE
from planner.machine.engines import engine as find_engine
from planner.predict.contract import PoolModel, Prediction, Scaled, unstable
from planner.predict.methods import find_method
from planner.predict.records import PrefixCache
from planner.predict.replayed import FAR_BELOW, ReplayPool
from planner.predict.replica import EngineOption, ReplicaSetup, set_up
from planner.predict.sessions import SessionPool
from planner.predict.traffic import FleetTraffic, PoolTraffic
from planner.promise import Promise
from planner.question.compiled import CompiledQuestion, Promises, Traffic
from planner.question.values import MOST
from planner.shared.kept import once
from planner.shared.remarks import Remark
from planner.units import GIB
from planner.workload.pools import PoolLaw

MOST_IDLE = 1000
"""A pool of this many times the replicas that its load alone takes is taken for impossible: only replicas that do next to nothing
keep the promise."""

USUAL = 1.5
"""How fast the logarithm of a tail latency falls with that of the replicas near its limit, where nothing is known yet [1]."""


def below(z: float) -> float:
    """P(a standard normal variable <= z)."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


@cache
def normal_quantile(p: float) -> float:
    """The z below which a standard normal variable lies with probability `p`, in (0, 1).

    >>> round(normal_quantile(0.8), 6), round(normal_quantile(0.9), 6)
    (0.841621, 1.281552)
    """
    low, high = -9.0, 9.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if below(middle) < p else (low, middle)
    return 0.5 * (low + high)


def deviation(band: float, holds: float) -> float:
    """Standard deviation of the logarithm of iteration times whose printed band holds a share of the cases [1].

    >>> round(deviation(0.26, 0.9), 3), round(deviation(0.26, 0.8), 3)
    (0.141, 0.18)
    """
    return math.log1p(band) / normal_quantile(0.5 * (1.0 + holds))


def error_of(profile: Profile, promises: Sequence[Promise]) -> float:
    """Standard deviation of the logarithm of what promises hang on: where TTFT is promised, prompts too [1]."""
    return deviation(band_of(profile, promises), profile.holds)


def band_of(profile: Profile, promises: Sequence[Promise]) -> float:
    """Half-width of the band around what promises hang on: where TTFT is promised, prompts too [1]."""
    first = any("ttft_s" in p.limits for p in promises)
    return max(profile.band, profile.band_prefill or 0.0) if first else profile.band


@dataclass(frozen=True, slots=True)
class Margin:
    """Iteration times that a pool is sized for.

    Parameters
    ----------
    deviations
        By how many standard deviations of their error they are longer than the profile says [1].
    sd
        That standard deviation, of their logarithm [1].
    """

    deviations: float = 0.0
    sd: float = 0.0

    @classmethod
    def of(cls, confidence: float, profile: Profile, promises: Sequence[Promise], errors: int = 1) -> Margin:
        """What keeps promises with a chance of `confidence` where the fleet has so many independent `errors`."""
        deviations = 0.0 if confidence == 0.5 and errors == 1 else normal_quantile(confidence ** (1.0 / errors))
        return cls(deviations, error_of(profile, promises))

    @property
    def slow(self) -> float:
        """Iteration times over those of the profile [1]."""
        return math.exp(self.deviations * self.sd)

    def most_chance(self, slowest: float) -> float:
        """The chance that iterations take no more than `slowest` times as long as the profile says [1]."""
        if self.sd == 0.0:
            return float(slowest >= 1.0)
        return below(math.log(slowest) / self.sd) if slowest > 0.0 else 0.0


MEDIAN = Margin()
"""Times as the profile has them."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A promise no number of replicas keeps.

    Parameters
    ----------
    promise
        The promise that fails even at vanishing load.
    best_s
        The best value any number of replicas achieves [s].
    chance
        The chance that so many replicas keep it as nobody would buy: no number has more [1]; 0 where iteration times are taken as
        the profile has them.
    """

    promise: Promise
    best_s: float
    chance: float = 0.0

    @property
    def excess(self) -> float:
        """That value over the promise's limit [1]; of one that is kept, but not surely enough, just beyond it."""
        least = 1.0 + 1e-6 * (1.0 - self.chance) if self.chance > 0.0 else 0.0
        return max(self.best_s / self.promise.limit_s, least)

    @property
    def unsure(self) -> bool:
        """Whether times as the profile has them would keep the promise."""
        return self.chance > 0.0 and self.best_s <= self.promise.limit_s


Size = tuple[int, Prediction, Remark]
"""A number of replicas, what it achieves, and why one fewer would not do."""


def when_idle(model: PoolModel, promises: Sequence[Promise], levels: tuple[float, ...]) -> Shortfall | None:
    """The promise that an idle pool keeps least well, kept or not; ``None`` where there are no promises.

    No number of replicas is quicker than one that hardly anybody asks.
    """
    prediction = model.unloaded(levels)

    def worst_of(asked: Sequence[Promise]) -> Shortfall | None:
        values = [Shortfall(p, prediction.value(p.metric, p.quantile)) for p in asked]
        return max(values, key=lambda value: value.excess, default=None)

    worst = worst_of(promises)
    # of several latencies at once, the one that is broken alone says more
    part = None if worst is None else worst_of(worst.promise.parts)
    return part if part is not None and part.excess > 1.0 else worst


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool, from candidate to plan to standing fleet to schedule.

    Parameters
    ----------
    law, option, setup, model
        Requests, engine, replica, latency method.
    rate_per_s
        Rate it is sized for [1/s].
    replicas, bought
        Replicas that serve, and with spares; 0 = of no size yet.
    name
        As the plan calls it.
    prediction
        At that number; of one that stands as it is, nothing is known.
    binding
        Why one replica fewer would not do.
    """

    law: PoolLaw
    option: EngineOption
    setup: ReplicaSetup
    model: PoolModel
    rate_per_s: float
    replicas: int = 0
    bought: int = 0
    name: str = "all"
    prediction: Prediction = field(default_factory=Prediction.unknown)
    binding: Remark = field(default_factory=lambda: Remark("stands"))

    @property
    def cost_usd_per_hour(self) -> float:
        """Cost of the replicas bought [USD/hour]."""
        return self.option.price.cost_usd_per_hour(self.bought)

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of one of the replicas that serve [1/s]."""
        return self.model.capacity_at(self.replicas)

    @property
    def gpus(self) -> int:
        """GPUs of the replicas bought."""
        return self.bought * self.option.price.gpus_per_replica

    def sized(self, replicas: int, prediction: Prediction | None = None, binding: Remark | None = None) -> Pool:
        """The same of another size, as many bought as the price rules say; of what is not told of it, it keeps its own."""
        prediction, binding = prediction or self.prediction, binding or self.binding
        bought = self.option.price.bought(replicas)
        return replace(self, replicas=replicas, bought=bought, prediction=prediction, binding=binding)


def pool_for(question: CompiledQuestion, option: EngineOption, law: PoolLaw, high_tokens: float) -> Pool | None:
    """A pool of no size yet that admits requests up to `high_tokens`; ``None`` when no replica holds them."""
    traffic = question.traffic
    if not traffic.sees_output:
        # a prompt's length says nothing of its output: every pool admits the longest
        high_tokens = min(high_tokens + traffic.longest_output, option.max_model_len)
    setup = _set_up(question, option, law, high_tokens)
    if setup is None:
        return None
    model = pool_model(question, option, setup, traffic_of(traffic, law))
    return Pool(law, option, setup, model, traffic.rate_per_s * law.share)


def _set_up(question: CompiledQuestion, option: EngineOption, law: PoolLaw, high_tokens: float) -> ReplicaSetup | None:
    """What a replica holds, the same whatever the rate and the price: made once for questions about the same traffic."""
    method, inputs, parts = find_method(question.method), question.inputs, question.promises.parts
    of_engines = inputs.chunk, inputs.token_budget, inputs.tp, inputs.tp_options
    # a common budget keeps slots apart from what is promised
    asked = ("set up", id(law), high_tokens, question.method, *of_engines, () if method.shares_budget else parts)
    made: list[tuple[EngineOption, ReplicaSetup | None, PoolLaw]] = once(asked, list)
    for engine, setup, _ in made:
        if engine.does_as(option):
            return setup
    limits = () if method.shares_budget else method.iteration_limits(law, parts, inputs.chunk)
    setup = set_up(option, law, high_tokens, inputs, method.shares_budget, limits)
    made.append((option, setup, law))
    return setup


def traffic_of(traffic: Traffic, law: PoolLaw) -> PoolTraffic:
    """The requests of a pool at any rate; the same for every engine that is asked about them."""
    alike = (id(traffic.workload), traffic.bursts, traffic.growth, traffic.sending)
    return once(("fleet traffic", *alike), lambda: FleetTraffic(traffic)).of(law)


def pool_model(
    question: CompiledQuestion, option: EngineOption, setup: ReplicaSetup, arrivals: PoolTraffic
) -> PoolModel:
    """The latency model of a pool of such replicas."""
    model, sessions = _by_method(question, option, setup, arrivals), arrivals.law.sessions()
    # closed forms take what a cache without end would supply
    if sessions is not None and isinstance(model, ReplayPool) and option.speculation is None:
        model = SessionPool(arrivals, model.engine, model.overhead_s, sessions, prefix_cache(question, option))
        model.joint = bool(question.promises.joint)
    if question.promises.windows_s is not None:
        model = model.by_windows(question.promises.windows_s)
    return model if option.copies == 1 else Scaled(model, option.copies)


def _by_method(
    question: CompiledQuestion, option: EngineOption, setup: ReplicaSetup, arrivals: PoolTraffic
) -> PoolModel:
    """The model of a pool of single copies as the latency method has it, speculation included."""
    method, chunk, routing = find_method(question.method), question.inputs.chunk, question.routing
    if not (method.feels_bursts or question.traffic.sending.ordinary):
        raise InputError(
            f"burst, surge, in_flight: method {method.name} knows Poisson arrivals alone", "Take --method mixed."
        )
    joint = bool(question.promises.joint)
    alike = ("models", id(arrivals.law), id(arrivals), method.name, chunk, routing.name, joint)
    made: list[tuple[EngineOption, PoolModel, object]] = once((*alike, setup.slots, setup.kv_tokens), list)
    for engine, model, _ in made:
        if engine.does_as(option):
            return model
    model = method.pool(option, setup, chunk, routing, arrivals)
    model.joint = joint
    made.append((option, model, (arrivals.law, arrivals)))
    return model


def prefix_cache(question: CompiledQuestion, option: EngineOption) -> PrefixCache:
    """Where replicas keep prompts beside their KV memory."""
    inputs = question.inputs
    bytes_per_token = option.parallel.tp * kv_bytes_per_token(option.model, option.parallel.tp)

    def tokens_per_s(gbps: float) -> float:
        return gbps * 1e9 / 8.0 / bytes_per_token

    return PrefixCache(
        inputs.offload * GIB / bytes_per_token,
        tokens_per_s(option.parallel.tp * inputs.offload_gbps),
        math.inf if inputs.session_ttl is None else inputs.session_ttl,
        window_share(option.model) if find_engine(inputs.engine or DEFAULT_ENGINE).keeps_windows else 0.0,
        inputs.offload_disk * GIB / bytes_per_token,
        tokens_per_s(inputs.offload_disk_gbps),
        inputs.write_through,
    )


def broken(prediction: Prediction, promises: Sequence[Promise]) -> Promise | None:
    """The promise missed by the largest factor, or ``None`` when all hold."""
    worst, excess = None, 1.0
    for p in promises:
        ratio = prediction.value(p.metric, p.quantile) / p.limit_s
        if ratio > excess:
            worst, excess = p, ratio
    return worst


def smallest_pool(
    model: PoolModel,
    rate_per_s: float,
    promises: Promises,
    least: int = 1,
    levels: tuple[float, ...] | None = None,
    start: float | None = None,
    quick: bool = False,
    margin: Margin = MEDIAN,
) -> Size | Shortfall:
    """The smallest number of replicas that keeps the promises while one fewer does not: galloping steps, then bisection.

    Every step asks the model one question, which ends as soon as a promise is broken; a sample of the requests brackets the
    answer, and all of them decide it.

    Parameters
    ----------
    model
        Latency method of the pool.
    rate_per_s
        Rate of the pool [1/s].
    promises
        What the pool keeps: latencies, utilization cap, minimum.
    least
        Fewest replicas for another reason than the promises.
    levels
        Quantile levels of the prediction; default those reported and promised.
    start
        A number thought to be near the answer.
    quick
        The answer of the sample, without a prediction: for a search, whose winner alone is decided.
    margin
        Iteration times with which promises are kept; the utilization cap and the prediction are of those of the profile.
    """
    levels = promises.levels() if levels is None else levels
    least = max(least, promises.min_replicas)
    by_cap = _by_cap(model, rate_per_s, promises, max(1, math.ceil(start or least)))
    floor = max(by_cap, least)
    slow = model.under(margin.slow)
    keeps = _question(model, slow, rate_per_s, promises)
    number: int | Shortfall = floor
    if promises.latency:
        begin = max(floor, math.ceil(start or 0.0))
        number = _bracketed(slow, rate_per_s, promises.latency, levels, floor, begin, keeps)
        if isinstance(number, int) and not quick:
            number = _decided(number, floor, keeps)
    if isinstance(number, Shortfall):
        return unsure(number, model, slow, levels, margin)
    prediction = Prediction.unknown() if quick else model.predict(rate_per_s, number, levels)
    if number == floor:
        why = _why_cap(by_cap, floor, least, promises)
    else:
        why = Remark("promise", {"promise": _missed_by(slow, rate_per_s, number - 1, promises, levels, quick)})
    return number, prediction, why


def _question(model: PoolModel, slow: PoolModel, rate_per_s: float, promises: Promises) -> Callable[..., bool]:
    """Whether so many replicas keep the promises at iteration times of `slow`, and the cap at their own; told once."""
    asked: dict[tuple[int, bool], bool] = {}

    def keeps(n: int, sure: bool = False) -> bool:
        if (n, sure) not in asked:
            kept = slow.keeps(rate_per_s, n, promises.latency, sure)
            # what caches find, and so the capacity, is known once it was asked
            within = rate_per_s <= promises.utilization_cap * n * model.capacity_at(n) * (1.0 + 1e-12)
            asked[n, sure] = kept and within
        return asked[n, sure]

    return keeps


def without_luck(pool: Pool, promises: Promises, margin: Margin) -> Pool:
    """A pool that a search sized: of a short trace, whose sample is one draw of the gateway's choices, by several."""
    rate, slow = pool.rate_per_s, pool.model.under(margin.slow)
    if not promises.latency or not slow.is_short(rate, pool.replicas):
        return pool
    floor = max(_by_cap(pool.model, rate, promises, pool.replicas), promises.min_replicas)
    number = _decided(pool.replicas, floor, _question(pool.model, slow, rate, promises))
    return pool.sized(number)


def unsure(found: Shortfall, model: PoolModel, slow: PoolModel, levels: tuple[float, ...], margin: Margin) -> Shortfall:
    """A shortfall of engines as slow as the margin has them, with what the profile's own would do."""
    if model is slow:
        return found
    p = found.promise
    own, slowed = (m.unloaded(levels).value(p.metric, p.quantile) for m in (model, slow))
    # what idle replicas keep and no number at work does is longer at work whatever the iteration times
    own, slowed = (x * found.best_s / slowed for x in (own, slowed)) if found.best_s < math.inf else (own, slowed)
    # all of it but what comes before the engine grows with the iteration times
    rise = (slowed - own) / (margin.slow - 1.0)
    slowest = 1.0 + (p.limit_s - own) / rise if rise > 0.0 else math.inf
    return Shortfall(p, own, margin.most_chance(slowest))


def _bracketed(
    model: PoolModel,
    rate_per_s: float,
    latency: Sequence[Promise],
    levels: tuple[float, ...],
    floor: int,
    start: int,
    keeps: Callable[[int], bool],
) -> int | Shortfall:
    """The smallest number that keeps the promises by what `keeps` says, from `start` on; at least `floor`."""
    low, high, n, rise = floor - 1, 0, start, 0.1
    beyond = min(MOST_IDLE * floor, MOST)
    while not high:
        if keeps(n):
            high = n
            break
        idle = when_idle(model, latency, levels) if low < start else None
        if idle is not None and idle.excess > max(FAR_BELOW):
            if idle.excess > 1.0:
                return idle
            # what idle replicas nearly break is asked at the end of the range first: fewer break it where those do
            n = n if keeps(beyond) else beyond
        if n >= beyond:
            found = model.look(rate_per_s, n, levels)
            worst = max(latency, key=lambda p: found.value(p.metric, p.quantile) / p.limit_s)
            return Shortfall(worst, found.value(worst.metric, worst.quantile))
        low, n, rise = n, min(n + max(math.ceil(rise * n), 1), beyond), 2.0 * rise
    step, steep, over, halved = 1, USUAL, math.nan if high - low <= 1 else model.excess(rate_per_s, high, latency), True
    while high - low > 1:
        width, middle = high - low, (low + high) // 2
        if not math.isnan(over) and (halved or low < floor):
            # where a latency that falls as usual comes to its limit
            n = min(max(math.ceil(high * math.exp(over / steep)), low + 1), max(high - step, low + 1))
        else:
            # from a start that does, down in growing steps until one does not
            n = middle if low >= floor else max(high - step, middle)
        if keeps(n):
            now = math.nan if n - low <= 1 else model.excess(rate_per_s, n, latency)
            steep = (now - over) / math.log(high / n) if now > over else steep
            high, step, over = n, 2 * step, now
        else:
            low, step = n, 1
        halved = 2 * (high - low) <= width
    return high


def _decided(number: int, floor: int, keeps: Callable[[int, bool], bool]) -> int:
    """The same by all requests, near what a sample of them said."""
    step = 1
    if keeps(number, True):
        while number > floor and keeps(max(number - step, floor), True):
            number, step = max(number - step, floor), 2 * step
        low = max(number - step, floor - 1)
    else:
        low = number
        while not keeps(number + step, True):
            low, step = number + step, 2 * step
        number += step
    while number - low > 1:
        middle = (low + number) // 2
        low, number = (low, middle) if keeps(middle, True) else (middle, number)
    return number


def _missed_by(
    model: PoolModel, rate_per_s: float, replicas: int, promises: Promises, levels: tuple[float, ...], quick: bool
) -> str:
    """The promise that so many replicas miss by most."""
    if quick or len(promises.latency) == 1:
        return promises.latency[0].label
    found = model.look(rate_per_s, replicas, levels)
    return max(promises.latency, key=lambda p: found.value(p.metric, p.quantile) / p.limit_s).label


def _by_cap(model: PoolModel, rate_per_s: float, promises: Promises, about: int) -> int:
    """Fewest replicas within the utilization cap; `about` so many are thought of."""
    # one part in 1e12: a rate that is an exact multiple of the capacity must not cost a replica to rounding
    by_cap = max(1, math.ceil(rate_per_s / (promises.utilization_cap * model.capacity_at(about)) * (1.0 - 1e-12)))
    while by_cap > 1 and rate_per_s <= promises.utilization_cap * (by_cap - 1) * model.capacity_at(by_cap - 1):
        by_cap -= 1
    while rate_per_s > promises.utilization_cap * by_cap * model.capacity_at(by_cap) * (1.0 + 1e-12):
        # only caches make capacities differ, and more replicas find more: no step over those in between
        by_cap += 1
    return by_cap


def excess_of(prediction: Prediction, promises: Sequence[Promise]) -> float:
    """Logarithm of the worst promise's value over its limit: positive = broken."""
    worst = max((prediction.value(p.metric, p.quantile) / p.limit_s for p in promises), default=0.5)
    if prediction.load >= 1.0:
        worst = math.inf
    return math.log(worst) if 0.0 < worst < math.inf else math.copysign(700.0, worst - 1.0)


def _why_cap(by_cap: int, chosen: int, least: int, promises: Promises) -> Remark:
    if chosen > by_cap and least > promises.min_replicas:
        return Remark("hardware_floor")
    if chosen > by_cap:
        return Remark("minimum", {"replicas": least})
    return Remark("one_replica") if chosen == 1 else Remark("utilization_cap", {"cap": promises.utilization_cap})


def evaluate_pool(
    model: PoolModel, rate_per_s: float, replicas: int, levels: tuple[float, ...], quick: bool = False
) -> Prediction:
    """The prediction at a given size, unstable included; of a sample of the requests where it is to be `quick`."""
    load = rate_per_s / (replicas * model.capacity_at(replicas))
    if load >= 1.0:
        return unstable(levels, load)
    return (model.look if quick else model.predict)(rate_per_s, replicas, levels)


def gpus_by_type(pools: Sequence[Pool]) -> dict[str, int]:
    """GPUs of each type that pools take."""
    used: dict[str, int] = {}
    for pool in pools:
        used[pool.option.gpu.name] = used.get(pool.option.gpu.name, 0) + pool.gpus
    return used


def pool_keeps(pool: Pool, rate_per_s: float, promises: Promises, slow: float = 1.0, sure: bool = False) -> bool:
    """Whether a pool keeps promises and utilization cap at a rate of its own [1/s], its iterations `slow` times as long [1].

    All requests decide where it is to be `sure`.
    """
    n = pool.replicas
    if rate_per_s > promises.utilization_cap * n * pool.model.capacity_at(n) * (1.0 + 1e-12):
        return False
    return not promises.latency or pool.model.under(slow).keeps(rate_per_s, n, promises.latency, sure)


def power_w(pools: Sequence[Pool]) -> float:
    """What the GPUs of pools draw with every batch full, spares among them [W]."""
    return math.fsum(pool.gpus * full_w(pool.option.gpu.name) for pool in pools)


def fits(question: CompiledQuestion, pools: Sequence[Pool]) -> bool:
    """Whether the inventory holds the GPUs of these pools and the power suffices for them."""
    if question.max_w < math.inf and power_w(pools) > question.max_w * (1.0 + 1e-9):
        return False
    stock = question.stock
    return all(n <= stock.get(name, n) for name, n in gpus_by_type(pools).items())
