"""The smallest pool that keeps its promises."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.catalog.kv import kv_bytes_per_token
from planner.errors import InputError
from planner.kept import once
from planner.methods import find_method
from planner.methods.base import InCopies, PoolModel, Prediction, unstable
from planner.methods.burst import PoolArrivals
from planner.methods.sessions import PrefixCache, SessionPool
from planner.methods.speculation import InSteps, engine_in_steps, law_in_steps, steps_per_token
from planner.promise import Promise
from planner.question.compiled import CompiledQuestion, Promises
from planner.remarks import Remark
from planner.replica.engine import EngineOption, ReplicaSetup, set_up
from planner.workload.pools import PoolLaw
from planner.workload.sessions import Sessions

MAX_REPLICAS = 10**10
"""A pool beyond this is taken for impossible: no order of magnitude of hardware remains."""

SMALL_POOL = 8
"""Replicas up to which fewer requests of the path are looked at before all of them: one more or less is a large step."""

MOST_IDLE = 1000
"""So is one of this many times the replicas that its load alone takes: only replicas that do next to nothing keep the promise."""

ROUGH = 250
"""Numbers of replicas are told apart to one in so many."""

GUIDED = 0.04
"""Share of a number of replicas to which a guide is asked for it [1]."""

READ_BETWEEN = 4.0
"""How many times as far apart two numbers may be between which one is read to that share: log latency over log replicas bends
little, and the chord lies on the safe side."""

CLEAR = math.log(1.6)
"""Logarithm of a guide's latency over its limit from which it is believed: quantiles of 4,096 requests are seldom further above
those of many more."""

JAMMED = 2.0 * CLEAR
"""The same where a number of replicas is not looked at again."""

USUAL_SLOPE, LEAST_SLOPE = 1.5, 0.5
"""Fall of the logarithm of a latency with that of the replicas where nothing better is known, and a cautious one."""

BROKEN_SLOPE = 2.5
"""The same where a promise is broken under bursts: eleven pools of six questions fell by 2 to 4."""

NEAR = 6
"""Steps from a guessed number of replicas before the general search takes over."""

FEW_PER_REPLICA = 1e-9
"""Rate [1/s] at which a replica is as good as idle; what is broken here is broken at any size."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """A number of replicas and what it achieves.

    Parameters
    ----------
    replicas
        Smallest number that keeps every promise and the utilization cap.
    prediction
        At that number.
    binding
        Why one fewer would not do.
    trials
        What was tried on the way: (replicas, value held against each promise), ascending.
    needed
        The same number before it was rounded up to a whole one [1].
    """

    replicas: int
    prediction: Prediction
    binding: Remark
    trials: tuple[tuple[float, tuple[float, ...]], ...] = ()
    needed: float = math.nan

    def steepness(self, promises: Sequence[Promise]) -> float:
        """How fast the logarithm of the worst value over its limit falls with the logarithm of the replicas, near the answer."""
        if not promises:
            return 1.0
        points = [
            (math.log(n), math.log(worst))
            for n, values in self.trials
            if 0.0
            < (worst := max((v / p.limit_s for v, p in zip(values, promises, strict=True)), default=0.0))
            < math.inf
        ]
        near = sorted(points, key=lambda point: abs(point[1]))[:2]
        if len(near) < 2:
            return 1.0
        return max(-(near[0][1] - near[1][1]) / (near[0][0] - near[1][0]), 0.3)

    def held_at(self, replicas: float) -> tuple[float, ...] | None:
        """Values against the promises at a fractional number of replicas, from the trials: log-log interpolation.

        Beyond the most replicas tried the values there are an upper bound, which is returned; ``None`` below the fewest.
        Where only the rate per replica matters, n replicas at f times the rate are n/f at the rate itself.
        """
        if not self.trials or replicas < self.trials[0][0]:
            return None
        for (low, a), (high, b) in itertools.pairwise(self.trials):
            if low <= replicas <= high:
                part = math.log(replicas / low) / math.log(high / low)
                return tuple(_between(x, y, part) for x, y in zip(a, b, strict=True))
        return self.trials[-1][1]


def _between(x: float, y: float, part: float) -> float:
    if math.isinf(x) or not (x > 0.0 and y > 0.0):
        return x if part < 1.0 else y
    return math.exp((1.0 - part) * math.log(x) + part * math.log(y))


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A promise no number of replicas keeps.

    Parameters
    ----------
    promise
        The promise that fails even at vanishing load.
    best_s
        The best value any number of replicas achieves [s].
    """

    promise: Promise
    best_s: float

    @property
    def excess(self) -> float:
        """That value over the promise's limit [1]."""
        return self.best_s / self.promise.limit_s


def when_idle(model: PoolModel, promises: Sequence[Promise], levels: tuple[float, ...]) -> Shortfall | None:
    """The promise that an idle pool keeps least well, kept or not; ``None`` where there are no promises.

    No number of replicas is quicker than one that hardly anybody asks.
    """
    prediction = model.predict(FEW_PER_REPLICA, 1, levels)

    def worst_of(asked: Sequence[Promise]) -> Shortfall | None:
        values = [Shortfall(p, prediction.held(p.metric, p.quantile)) for p in asked]
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
    arrival_rate_per_s
        Rate it was sized for [1/s].
    size
        Replicas that serve, and what they achieve.
    bought
        Replicas bought, spares included.
    name
        As the plan calls it.
    """

    law: PoolLaw
    option: EngineOption
    setup: ReplicaSetup
    model: PoolModel
    arrival_rate_per_s: float
    size: PoolSize
    bought: int
    name: str = "all"

    @property
    def cost_usd_per_hour(self) -> float:
        """Cost of the replicas bought [USD/hour]."""
        return self.option.price.cost_usd_per_hour(self.bought)

    @property
    def capacity_per_s(self) -> float:
        """Largest stable rate of one of the replicas that serve [1/s]."""
        return self.model.capacity_at(self.size.replicas)

    @property
    def gpus(self) -> int:
        """GPUs of the replicas bought."""
        return self.bought * self.option.price.gpus_per_replica


def replica_for(
    question: CompiledQuestion, option: EngineOption, law: PoolLaw, high_tokens: float
) -> tuple[ReplicaSetup, PoolModel] | None:
    """The replica of a pool that admits requests up to `high_tokens`, and its latency model; ``None`` when none fits."""
    if not question.traffic.sees_output:
        # a prompt's length says nothing of its output: every pool admits the longest
        high_tokens = min(high_tokens + question.traffic.longest_output, option.max_model_len)
    method, engines = find_method(question.method), question.engines
    setup = set_up(option, law, high_tokens, engines, question.promises.parts, method)
    if setup is None:
        return None
    traffic = question.traffic
    known, growth, sending = traffic.arrivals, traffic.growth, traffic.sending
    arrivals = once(
        ("arrivals", id(law), id(known), growth, sending),
        lambda: (law, PoolArrivals(known, law.share, law.requests, growth, sending=sending)),
    )[1]
    return setup, pool_model(question, option, setup, law, arrivals)


def pool_model(
    question: CompiledQuestion, option: EngineOption, setup: ReplicaSetup, law: PoolLaw, arrivals: PoolArrivals
) -> PoolModel:
    """The latency model of a pool of such replicas."""
    sessions = law.sessions()
    if sessions is None:
        model = _by_method(question, option, setup, law, arrivals)
    else:
        model = _with_caches(question, option, setup, law, sessions, arrivals)
    return model if option.copies == 1 else InCopies(model, option.copies)


def _by_method(
    question: CompiledQuestion, option: EngineOption, setup: ReplicaSetup, law: PoolLaw, arrivals: PoolArrivals
) -> PoolModel:
    """The model of a pool of single copies as the latency method has it, speculation included."""
    method, chunk, speculation = find_method(question.method), question.engines.chunk, option.speculation
    if not (method.feels_bursts or arrivals.sending.ordinary):
        raise InputError(
            f"burst, surge, in_flight: method {method.name} knows Poisson arrivals alone", "Take --method mixed."
        )
    if speculation is None:
        joint = bool(question.promises.joint)
        made: list[tuple[EngineOption, PoolModel, object]] = once(
            (
                "models",
                id(law),
                id(arrivals),
                method.name,
                chunk,
                question.routing.name,
                joint,
                setup.slots,
                setup.kv_tokens,
            ),
            list,
        )
        for engine, model, _ in made:
            # what it costs changes nothing of what it does
            if replace(engine, price=option.price) == option:
                return model
        model = method.pool(law, option, setup, chunk, question.routing, arrivals)
        model.joint = joint
        made.append((option, model, (law, arrivals)))
        return model
    in_steps = law_in_steps(law, speculation)
    arrivals = replace(arrivals, requests=in_steps.requests, _found={})
    inner = method.pool(in_steps, *engine_in_steps(option, setup, speculation), chunk, question.routing, arrivals)
    inner.joint = bool(question.promises.joint)
    return InSteps(inner, steps_per_token(law, speculation))


def _with_caches(
    question: CompiledQuestion,
    option: EngineOption,
    setup: ReplicaSetup,
    law: PoolLaw,
    sessions: Sessions,
    arrivals: PoolArrivals,
) -> SessionPool:
    """The model of a pool whose prompts come back: the method's own, of what the prefix caches leave to compute."""
    # the order the requests came in says nothing of what each finds in a cache
    unordered = replace(arrivals, requests=lambda: None, _found={})

    def build(left: PoolLaw, kv_tokens: float) -> PoolModel:
        return _by_method(question, option, replace(setup, kv_tokens=kv_tokens), left, unordered)

    cache = prefix_cache(question, option, setup.kv_tokens)
    return SessionPool(law, sessions, build, cache, question.routing, question.engines.chunk, setup.slots)


def prefix_cache(question: CompiledQuestion, option: EngineOption, kv_tokens: float) -> PrefixCache:
    """Where replicas of so much KV memory [tokens] keep prompts."""
    engines = question.engines
    bytes_per_token = option.parallel.tp * kv_bytes_per_token(option.model, option.parallel.tp)
    return PrefixCache(
        kv_tokens,
        engines.offload_gib * 2.0**30 / bytes_per_token,
        option.parallel.tp * engines.offload_gbps * 1e9 / 8.0 / bytes_per_token,
        math.inf if engines.session_ttl_s is None else engines.session_ttl_s,
    )


def broken(prediction: Prediction, promises: Sequence[Promise]) -> Promise | None:
    """The promise missed by the largest factor, or ``None`` when all hold."""
    worst, excess = None, 1.0
    for p in promises:
        ratio = prediction.held(p.metric, p.quantile) / p.limit_s
        if ratio > excess:
            worst, excess = p, ratio
    return worst


def smallest_pool(  # noqa: C901 - one search whose steps share all they have looked at
    model: PoolModel,
    arrival_rate_per_s: float,
    promises: Promises,
    least: int = 1,
    levels: tuple[float, ...] | None = None,
    start: float | None = None,
    slope: float | None = None,
    rough: float = 0.0,
) -> PoolSize | Shortfall:
    """Find the smallest number of replicas: secant steps on whole numbers, from the answer of the model's guide.

    Latency does not rise with the number of replicas at a fixed pool rate, so the smallest number is well defined, and
    predictions at it and at one fewer decide. Where bursts are followed, of more than 250 a number within one in 250 is
    taken: a path has too few requests to tell them apart.

    Parameters
    ----------
    model
        Latency method of the pool.
    arrival_rate_per_s
        Rate of the pool [1/s].
    promises
        What the pool keeps: latencies, utilization cap, minimum.
    least
        Fewest replicas for another reason than the promises.
    levels
        Quantile levels of the prediction; default those reported and promised.
    start
        A number thought to be enough: saves predictions when it is near the answer.
    slope
        How fast the logarithm of a latency is thought to fall with that of the replicas.
    rough
        Share of a number to which it is wanted; 0 = as above. The number is then interpolated, and the prediction is that of the
        next higher one tried.
    """
    levels = promises.levels() if levels is None else levels
    latency, least = promises.latency, max(least, promises.min_replicas)
    by_cap, fewest = _by_cap(model, arrival_rate_per_s, promises, max(1, math.ceil(start or least)))
    floor = max(by_cap, least)
    beyond = min(MOST_IDLE * floor, MAX_REPLICAS)
    trials: dict[int, tuple[Prediction, float]] = {}

    def excess(n: int) -> float:
        """Logarithm of the worst promise's value over its limit: positive = broken."""
        if n not in trials:
            prediction = looked_at(model, arrival_rate_per_s, n, latency, levels)
            trials[n] = (prediction, excess_of(prediction, latency))
        return trials[n][1]

    calm = model.without_bursts()
    guide = model.guide() if calm is None else calm
    n = floor
    if start is not None:
        n = max(math.ceil(start), floor)
        fewer = _roughly(model, arrival_rate_per_s, promises, least, levels, n, slope) if rough == 0.0 else None
        n = n if fewer is None else fewer.replicas
    elif guide is not None and (calm is None or rough == 0.0):
        quick = smallest_pool(guide, arrival_rate_per_s, promises, least, levels, rough=GUIDED)
        if isinstance(quick, PoolSize):
            n = max(quick.replicas, floor)
            if slope is None and len(quick.trials) > 1:
                slope = quick.steepness(latency)
        elif calm is not None:
            return quick
    # so near a limit the number is read from one prediction where a rough one is wanted
    n = max(model.near(n), floor)
    near = rough * (LEAST_SLOPE if slope is None else slope)
    slope = USUAL_SLOPE if slope is None else slope
    width = max(rough, 0.0 if guide is None else 1.0 / ROUGH)
    # what is read between two numbers errs by far less than they are apart
    apart = READ_BETWEEN * rough if rough else width
    low, high, climbed, sunk, stale = 0, 0, n, n, 0
    checked_idle = False
    while True:
        if excess(n) <= 0.0:
            sunk, high, stale = high or n, n, max(stale, 0) + 1
            if n == floor:
                why = _why_cap(by_cap, floor, least, promises)
                return PoolSize(floor, trials[floor][0], why, _tried(trials, latency), min(fewest, floor))
        else:
            # hardly any progress by more replicas: perhaps no number helps
            if not checked_idle and (n >= 4 * floor or (low and excess(n) > 0.7 * excess(low))):
                checked_idle = True
                if (idle := when_idle(model, latency, levels)) is not None and idle.excess > 1.0:
                    return idle
            if n >= beyond:
                return _shortfall(trials[n][0], latency)
            low, stale = n, min(stale, 0) - 1
        if abs(excess(n)) <= near:
            needed = n * math.exp(excess(n) / slope)
            why = Remark("promise", {"promise": _nearest(trials[n][0], latency).label})
            return PoolSize(max(math.ceil(needed), floor), trials[n][0], why, _tried(trials, latency), needed)
        if low and high and high - low <= max(1, int(high * apart)):
            break
        rise = slope
        if low and not high:
            # where a promise is broken latencies fall faster, along a path above all
            rise = _fall(excess, sorted(trials)[-2:]) or max(slope, 0.0 if calm is None else BROKEN_SLOPE)
        n = _next(excess, low, high, rise, floor, stale, width)
        if not high:
            # ever larger steps upwards, however flat the latency is
            n, climbed = min(max(n, low + 2 * (low - climbed)), beyond), low
        elif not low:
            # and downwards
            n = max(floor, min(n, high - 2 * (sunk - high)))
        if max(low, floor - 1) < (quicker := model.near(n)) < (high or beyond):
            n = quicker
    needed = _between_sizes(low, high, trials[low][1], trials[high][1])
    number = high if rough == 0.0 else min(max(math.ceil(needed), low + 1), high)
    label = _missed(trials[low][0], latency).label
    # of many replicas the next fewer is not looked at
    why = Remark("promise", {"promise": label})
    if number - low > 1:
        why = Remark("promise_about", {"promise": label, "fewer": number - low})
    return PoolSize(number, trials[high][0], why, _tried(trials, latency), needed)


def never_kept(
    model: PoolModel, rate: float, promises: Promises, least: int, levels: tuple[float, ...]
) -> Shortfall | None:
    """How far a pool is from a promise that even the most replicas that would be tried break; ``None`` where they keep all."""
    by_cap, _ = _by_cap(model, rate, promises, least)
    most = min(MOST_IDLE * max(by_cap, least, promises.min_replicas), MAX_REPLICAS)
    found = looked_at(model, rate, most, promises.latency, levels)
    return _shortfall(found, promises.latency) if excess_of(found, promises.latency) > 0.0 else None


def _missed(prediction: Prediction, promises: Sequence[Promise]) -> Promise:
    """The promise missed by the largest factor, where one is."""
    missed = broken(prediction, promises)
    assert missed is not None
    return missed


def _shortfall(prediction: Prediction, promises: Sequence[Promise]) -> Shortfall:
    """How far the most replicas tried are from their promises."""
    missed = _missed(prediction, promises)
    return Shortfall(missed, prediction.held(missed.metric, missed.quantile))


def _by_cap(model: PoolModel, rate: float, promises: Promises, about: int) -> tuple[int, float]:
    """Fewest replicas within the utilization cap, and how many of them the load alone takes; `about` so many are thought of."""
    by_cap = _enough(rate, promises, model.capacity_at(about))
    while by_cap > 1 and rate <= promises.utilization_cap * (by_cap - 1) * model.capacity_at(by_cap - 1):
        by_cap -= 1
    while rate > promises.utilization_cap * by_cap * model.capacity_at(by_cap) * (1.0 + 1e-12):
        by_cap = max(by_cap + 1, _enough(rate, promises, model.capacity_at(by_cap)))
    capacity = model.capacity_at(by_cap)
    return by_cap, 1.0 if math.isinf(capacity) else rate / (promises.utilization_cap * capacity)


def _fall(excess: Callable[[int], float], tried: Sequence[int]) -> float | None:
    """How fast the excess fell between two numbers of replicas; ``None`` where that is not known or tells nothing."""
    if len(tried) < 2 or not 0.0 < (first := excess(tried[0])) < 5.0:
        return None
    return min(max((first - excess(tried[1])) / math.log(tried[1] / tried[0]), 0.3), 2.0 * BROKEN_SLOPE)


def _roughly(
    model: PoolModel,
    rate: float,
    promises: Promises,
    least: int,
    levels: tuple[float, ...],
    start: int,
    slope: float | None,
) -> PoolSize | None:
    """The size of a small pool by fewer requests of its path, where it has one; a wrong step costs more than all of these looks."""
    if start > SMALL_POOL or model.without_bursts() is None or (rougher := model.guide()) is None:
        return None
    found = smallest_pool(rougher, rate, promises, least, levels, start, slope, GUIDED)
    return found if isinstance(found, PoolSize) else None


def _between_sizes(low: int, high: int, above: float, below: float) -> float:
    """Where the excess is zero, between a number that breaks a promise and one that keeps it: log-linear."""
    above, below = min(max(above, 1e-9), 700.0), max(-below, 1e-9)
    return low * math.exp(math.log(high / low) * above / (above + below))


def _next(
    excess: Callable[[int], float], low: int, high: int, slope: float, floor: int, stale: int, width: float
) -> int:
    """The number to try next: `low` breaks and `high` keeps (0 = not known yet), `slope` = fall of the excess by log n.

    `stale` counts how often in a row `high` (negative: `low`) was what moved; ends within `width` of each other are enough.
    """
    if not high:
        # aim beyond the root, so that the bracket closes
        step = 1.2 * min(excess(low), 3.0) / max(slope, 0.3)
        return min(max(low + 1, round(low * math.exp(min(step, 0.7)))), MAX_REPLICAS)
    if not low:
        step = 1.2 * max(excess(high), -3.0) / max(slope, 0.3)
        return max(floor, min(high - 1, round(high * math.exp(max(step, -0.7)))))
    # an end that stays while the other one moves counts for less and less (the Illinois rule)
    a, b = min(excess(low), 5.0), max(excess(high), -5.0)
    a, b = a * 0.5 ** max(stale - 1, 0), b * 0.5 ** max(-stale - 1, 0)
    part = a / (a - b) if a > b else 0.5
    n = low * math.exp(math.log(high / low) * part)
    # an end next to where the excess is thought to vanish is what the other one must come close to
    if high <= n * (1.0 + width) + 1.0 and stale >= 0:
        n = high - max(1, int(high * width))
    elif low >= n * (1.0 - width) - 1.0 and stale <= 0:
        n = low + max(1, int(low * width))
    return max(low + 1, min(high - 1, round(n)))


def _enough(rate: float, promises: Promises, capacity_per_s: float) -> int:
    """Replicas of that capacity within the utilization cap."""
    fewest = 1.0 if math.isinf(capacity_per_s) else rate / (promises.utilization_cap * capacity_per_s)
    # one part in 1e12: a rate that is an exact multiple of the capacity must not cost a replica to rounding
    return max(1, math.ceil(fewest * (1.0 - 1e-12)))


def smallest_near(
    model: PoolModel, rate: float, promises: Promises, guess: int, least: int, levels: tuple[float, ...]
) -> PoolSize | None:
    """Smallest number that keeps the promises when it is within a few of a guess, else ``None``."""
    by_cap = _enough(rate, promises, model.capacity_at(max(guess, 1)))
    floor = max(by_cap, least, 1)
    n = max(guess, floor)
    known: dict[int, tuple[Prediction, Promise | None]] = {}

    def missed(n: int) -> Promise | None:
        if n not in known:
            prediction = looked_at(model, rate, n, promises.latency, levels)
            known[n] = prediction, broken(prediction, promises.latency)
        return known[n][1]

    for _ in range(NEAR):
        if missed(n) is not None:
            n += 1
        elif n == floor:
            return PoolSize(n, known[n][0], _why_cap(by_cap, n, least, promises))
        elif (promise := missed(n - 1)) is not None:
            return PoolSize(n, known[n][0], Remark("promise", {"promise": promise.label}))
        else:
            n -= 1
    return None


def _tried(
    trials: Mapping[int, tuple[Prediction, float]], promises: Sequence[Promise]
) -> tuple[tuple[int, tuple[float, ...]], ...]:
    return tuple((n, tuple(p.held(q.metric, q.quantile) for q in promises)) for n, (p, _) in sorted(trials.items()))


def clearly_broken(
    model: PoolModel, arrival_rate_per_s: float, replicas: int, promises: Sequence[Promise], levels: tuple[float, ...]
) -> bool:
    """Whether the model's guide is so far beyond a promise at a given size that the model need not be asked."""
    guide = model.guide()
    if guide is None or not promises:
        return False
    return excess_of(evaluate_pool(guide, arrival_rate_per_s, replicas, levels), promises) > CLEAR


def _nearest(prediction: Prediction, promises: Sequence[Promise]) -> Promise:
    """The promise that is kept least well."""
    return max(promises, key=lambda p: prediction.held(p.metric, p.quantile) / p.limit_s)


def excess_of(prediction: Prediction, promises: Sequence[Promise]) -> float:
    """Logarithm of the worst promise's value over its limit: positive = broken."""
    worst = max((prediction.held(p.metric, p.quantile) / p.limit_s for p in promises), default=0.5)
    if prediction.load >= 1.0:
        worst = math.inf
    return math.log(worst) if 0.0 < worst < math.inf else math.copysign(700.0, worst - 1.0)


def _why_cap(by_cap: int, chosen: int, least: int, promises: Promises) -> Remark:
    if chosen > by_cap and least > promises.min_replicas:
        return Remark("hardware_floor")
    if chosen > by_cap:
        return Remark("minimum", {"replicas": least})
    return Remark("one_replica") if chosen == 1 else Remark("utilization_cap", {"cap": promises.utilization_cap})


def evaluate_pool(model: PoolModel, arrival_rate_per_s: float, replicas: int, levels: tuple[float, ...]) -> Prediction:
    """The prediction at a given size, unstable included."""
    load = arrival_rate_per_s / (replicas * model.capacity_at(replicas))
    return unstable(levels, load) if load >= 1.0 else model.predict(arrival_rate_per_s, replicas, levels)


def looked_at(
    model: PoolModel, arrival_rate_per_s: float, replicas: int, promises: Sequence[Promise], levels: tuple[float, ...]
) -> Prediction:
    """The prediction at a given size; its guide's where it takes long and that is far beyond a promise."""
    found = jammed(model, arrival_rate_per_s, replicas, promises, levels)
    return evaluate_pool(model, arrival_rate_per_s, replicas, levels) if found is None else found


def jammed(
    model: PoolModel,
    arrival_rate_per_s: float,
    replicas: int,
    promises: Sequence[Promise],
    levels: tuple[float, ...],
    beyond: float = JAMMED,
) -> Prediction | None:
    """What the guide predicts where that is far beyond a promise, as queues outlast the bursts that make them; ``None`` else.

    `beyond` is the logarithm of the latency over its limit from which on it is far.
    """
    if not promises or not model.takes_long(arrival_rate_per_s, replicas) or (guide := model.guide()) is None:
        return None
    found = evaluate_pool(guide, arrival_rate_per_s, replicas, levels)
    return found if excess_of(found, promises) > beyond else None


def gpus_by_type(pools: Sequence[Pool]) -> dict[str, int]:
    """GPUs of each type that pools take."""
    used: dict[str, int] = {}
    for pool in pools:
        used[pool.option.gpu.name] = used.get(pool.option.gpu.name, 0) + pool.gpus
    return used
