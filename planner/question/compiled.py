"""The question taken apart: who sends what, what is promised, on which engines, at what price, searched how.

Every room below the front door gets the one record it is about; the rate of the fleet stands in :class:`Traffic` alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from planner.catalog.kv import BLOCK_TOKENS
from planner.catalog.load import gpu as find_gpu
from planner.errors import InputError, refuse
from planner.machine.engines import DEFAULT_ENGINE
from planner.machine.engines import engine as find_engine
from planner.promise import GOODPUT, Promise
from planner.question.options import AT_RANDOM, PlanInputs
from planner.question.prompts import images_by_category, read_only, with_images
from planner.question.values import category_shares
from planner.routing import DEFAULT_ROUTING, Routing, find_routing
from planner.shared.kept import once
from planner.shared.remarks import Remark
from planner.units import HOUR_S, RATE_RULE, is_rate
from planner.workload.arrivals import Arrivals
from planner.workload.combine import scaled, without_longer
from planner.workload.pools import FleetMoments
from planner.workload.sending import ORDINARY, PATIENT, Clients, Population, Sending, Surge, paced_clients
from planner.workload.sessions import Sessions
from planner.workload.workload import Workload

LAW_ROWS = 3000
"""Rows of a workload's law as closed forms take it: their quantiles are then within a few parts in ten thousand."""

MANY_ROWS, FEWER_ROWS = 200_000, 50_000
"""Different lengths above which a law is thinned, and how many are left: as many more help nobody."""

REPORTED_LEVELS = (0.5, 0.9, 0.99)
"""Quantiles every prediction states, promised or not."""

JOINT_LEVELS = (
    0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.965, 0.98, 0.985, 0.99, 0.993, 0.996, 0.998,
    0.999, 0.9995,
)  # fmt: skip
"""Quantiles that give the law of a latency as finely as a promise about several of them needs."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is sent to the fleet.

    Parameters
    ----------
    workload
        Lengths and arrivals.
    rate_per_s
        Rate of the fleet [1/s]: the only place it stands.
    own_rate
        Whether that is the workload's own rate, none having been given.
    cached_share
        Share of a prompt served from the prefix cache [1]: one number, or by category.
    bursts
        Whether arrivals are as bursty as measured; Poisson otherwise.
    growth
        What more than the workload's own rate stands for: ``users`` or ``use``.
    p_c
        Probability that a compression succeeds [1]: one number, or by category as measured; ``None`` = as categories are marked.
    route_on
        What the gateway cuts requests by: ``total`` (an oracle for the output length) or ``input``.
    changes
        What options changed of the workload as it was read, for the reader.
    max_output
        Longest output that pools keep room for [tokens]; ``None`` = the workload's longest.
    shared_prefix
        Tokens that begin every longer prompt, in whole blocks of the KV cache [tokens].
    images
        Images of each request by its category, others 0; their tokens are in the prompts of `workload`.
    cache
        Whether prefix caches are computed from the workload's sessions, where it has some and no cached share is given.
    """

    workload: Workload
    rate_per_s: float
    own_rate: bool = False
    cached_share: float | Mapping[str, float] = 0.0
    bursts: bool = True
    growth: str = "users"
    p_c: float | Mapping[str, float] | None = None
    route_on: str = "total"
    changes: tuple[Remark, ...] = ()
    max_output: int | None = None
    cache: bool = True
    shared_prefix: float = 0.0
    sending: Sending = ORDINARY
    images: Mapping[str, int] = field(default_factory=dict)

    @property
    def longest_output(self) -> float:
        """Longest output that pools keep room for [tokens]."""
        return float(self.max_output or self.workload.quantile(1.0, "output"))

    @property
    def longest(self) -> float:
        """Longest request that pools keep room for: by input alone nobody knows which prompt has the longest output [tokens]."""
        if self.sees_output:
            return self.workload.max_total
        shown = 0.0 if self.max_output else self.workload.max_total
        return max(self.workload.quantile(1.0, "input") + self.longest_output, shown)

    @property
    def arrivals(self) -> Arrivals | None:
        """The measured arrival process; ``None`` where Poisson arrivals are asked for."""
        return self.workload.arrivals if self.bursts else None

    @property
    def sees_output(self) -> bool:
        """Whether the gateway knows a request's output length."""
        return self.route_on == "total"

    @property
    def sessions(self) -> Sessions | None:
        """Calls session by session, where prefix caches are computed from them."""
        given = any(self.cached_share.values()) if isinstance(self.cached_share, Mapping) else self.cached_share > 0.0
        return self.workload.sessions if self.cache and not given else None

    def at(self, rate_per_s: float) -> Traffic:
        """The same requests at another rate of the fleet [1/s]."""
        return replace(self, rate_per_s=rate_per_s)

    def moments(self, chunk: int) -> FleetMoments:
        """Feature sums of its pools, for prefill chunks of that many tokens."""
        asked = (self.p_c, chunk, self.cached_share, self.route_on)
        kept = self.sessions, self.shared_prefix, self.images
        key = (
            "moments",
            id(self.workload),
            repr(asked),
            self.sessions is None,
            repr(kept[1:]),
            self.sending.of_any_rate,
        )

        # a replay takes the requests themselves; formulas need no more than their law
        return once(key, lambda: FleetMoments(self.workload.fewer_rows(LAW_ROWS), *asked, *kept))


@dataclass(frozen=True, slots=True)
class Promises:
    """What the fleet keeps.

    Parameters
    ----------
    latency
        Latency promises.
    utilization_cap
        Largest share of the maximum throughput in use [1].
    min_replicas
        Least replicas of a pool.
    windows_s
        Length of the windows, 95% of which are to keep them [s]; ``None`` = the whole period is.
    confidence
        Chance with which the latency promises are kept, as far as the errors of iteration times are known [1].
    """

    latency: tuple[Promise, ...]
    utilization_cap: float = 0.85
    min_replicas: int = 1
    windows_s: float | None = None
    confidence: float = 0.5

    @property
    def of_pools(self) -> tuple[Promise, ...]:
        """Promises every pool keeps by itself."""
        return tuple(p for p in self.latency if p.scope == "pool")

    @property
    def of_fleet(self) -> tuple[Promise, ...]:
        """Promises all requests keep together."""
        return tuple(p for p in self.latency if p.scope == "fleet")

    @property
    def joint(self) -> tuple[Promise, ...]:
        """Promises about several latencies of the same request."""
        return tuple(p for p in self.latency if p.kind == GOODPUT)

    @property
    def parts(self) -> tuple[Promise, ...]:
        """Promises about one latency: those made, and those without which the joint ones cannot be kept."""
        return tuple(dict.fromkeys(part for p in self.latency for part in p.parts))

    def levels(self, reported: tuple[float, ...] = REPORTED_LEVELS) -> tuple[float, ...]:
        """Quantile levels a prediction needs, ascending: those reported, those promised, and of joint ones the whole law."""
        return tuple(sorted({*self.told_levels(reported), *(JOINT_LEVELS if self.joint else ())}))

    def told_levels(self, reported: tuple[float, ...] = REPORTED_LEVELS) -> tuple[float, ...]:
        """Quantile levels that are told of: those reported always and those promised."""
        return tuple(sorted({*reported, *(p.quantile for p in self.latency)}))

    def only(self, latency: tuple[Promise, ...]) -> Promises:
        """The same cap and minimum with other latency promises."""
        return replace(self, latency=latency)

    def tightened(self, factor: float) -> Promises:
        """Every limit divided by `factor`: what is left when every time is that many times as long."""
        return self.only(tuple(replace(p, limit_s=p.limit_s / factor) for p in self.latency))


Words = Literal["all", "brief", "page", "none"]
"""What is said of a plan, see :class:`CompiledQuestion`."""


@dataclass(frozen=True, slots=True)
class CompiledQuestion:
    """A question ready to be answered.

    Parameters
    ----------
    asked
        The options it was made from, in their own names, for the plan that carries them.
    traffic, promises
        What is sent, and what is kept.
    inputs
        The options, for what may serve, which fleets are compared, what GPUs cost, how many there are, and what is bought beyond
        the need; GPU types that were left open are named in it.
    method
        Name of the latency method.
    routing
        How a pool spreads requests over its replicas.
    open_routing
        Whether another routing may be taken where it is cheaper: nothing was said of it, and sessions come back.
    clients
        Limits of queues and patience of clients, for what happens beyond capacity.
    shape
        ``colocated``, ``disaggregated`` or ``both``.
    explained
        Whether a question without an answer is told why, which takes longer than finding that there is none.
    words
        What is said of the plan: ``all``; in ``brief``, without remarks that take a prediction of their own, for one of many plans;
        only what its ``page`` shows; ``none``, where a row tells its pools, their latencies and what it costs.
    quick
        Whether a sample of the requests decides: one of the rows beside a plan.
    deviations
        Standard deviations by which iterations are taken longer, where a plan beside it has found them for its confidence.
    near_per_s
        What the replicas of a plan beside it could complete, from where on sizes are looked for [1/s]; 0 = from the least.
    likely
        Label of the engine that it has most of: one pool of it is sized first, and all others are asked whether they cost less.
    """

    asked: Mapping[str, object]
    traffic: Traffic
    promises: Promises
    inputs: PlanInputs
    method: str
    routing: Routing
    open_routing: bool = False
    clients: Clients = PATIENT
    shape: str = "colocated"
    explained: bool = True
    words: Words = "all"
    quick: bool = False
    deviations: float | None = None
    near_per_s: float = 0.0
    likely: str = ""

    @property
    def stock(self) -> dict[str, int]:
        """GPUs there are, by their own names; of others as many as wanted."""
        return {find_gpu(name).name: count for name, count in self.inputs.inventory.items()}

    @property
    def max_w(self) -> float:
        """What all GPUs may draw together [W]."""
        return math.inf if self.inputs.max_kw is None else 1e3 * self.inputs.max_kw

    def at(self, rate_per_s: float) -> CompiledQuestion:
        """The same question at another rate of the fleet [1/s]."""
        return replace(self, traffic=self.traffic.at(rate_per_s))


def shaped(inputs: PlanInputs, workload: Workload) -> tuple[Workload, tuple[Remark, ...]]:
    """The traffic asked about: images in the prompts, outputs scaled, the longest left out, then outputs of a model that has none.

    Raises
    ------
    InputError
        No request is left.
    """
    workload, seen = with_images(inputs, workload)
    changes = [*seen]
    if inputs.lora and "lora" not in (engine := find_engine(inputs.engine or DEFAULT_ENGINE)).flags:
        raise InputError(f"engine {engine.name}: how it starts adapters is not known here; take --engine vllm")
    if inputs.osl_scale != 1.0:
        workload = scaled(workload, output_factor=inputs.osl_scale)
        changes.append(Remark("osl_scale", {"factor": inputs.osl_scale}))
    if inputs.drop_longer_than is not None:
        workload, dropped = without_longer(workload, inputs.drop_longer_than)
        changes.append(Remark("dropped_longer", {"share": dropped, "tokens": inputs.drop_longer_than}))
    workload, read = read_only(inputs, workload)
    return workload, (*changes, *read)


def stated_rate(inputs: PlanInputs, workload: Workload) -> float:
    """The option's rate, else the workload's own mean [1/s].

    Raises
    ------
    InputError
        Neither is known.
    """
    shape = shaped(inputs, workload)[0] if inputs.rate is None or inputs.throughput is not None else workload
    rate = inputs.rate if inputs.rate is not None else shape.arrivals.rate_per_s
    if (population := population_of(inputs)) is not None:
        return _rate_of_users(population, workload)
    if inputs.throughput is not None:
        rate = max(inputs.rate or 0.0, inputs.throughput / shape.mean_output)
    if rate is None:
        raise InputError(f"{workload.name} states no arrival rate of its own", "Give one: --rate REQUESTS_PER_SECOND.")
    return rate


def population_of(inputs: PlanInputs) -> Population | None:
    """The users of a question, ``None`` where it names a rate.

    Raises
    ------
    InputError
        Nobody knows how often they ask.
    """
    if inputs.concurrency is not None:
        return Population(inputs.concurrency)
    if inputs.users is None:
        return None
    if inputs.requests_per_hour is not None:
        return Population(inputs.users, HOUR_S / inputs.requests_per_hour)
    return Population.parse(inputs.users, inputs.think_time or "0")


def _rate_of_users(population: Population, workload: Workload) -> float:
    """About how often users ask, before a fleet is known, as if it took a second [1/s]; of sessions, as if answers came at once."""
    sessions = workload.sessions
    if sessions is None:
        return population.users / (population.think_s + 1.0)
    between = float(np.sum(sessions.gaps_between_s[~sessions.first])) / sessions.count
    return population.users * sessions.turns / max(between + population.think_s, 1.0)


def rate_of(inputs: PlanInputs, workload: Workload) -> float:
    """The rate to size for [1/s]: as stated, or the busiest hour of a day with that mean, and the headroom.

    A rate given is taken as it is unless it is said to be a mean; the workload's own, a mean, is that of the busiest hour
    where the trace holds a day.

    Raises
    ------
    InputError
        No rate is known; a mean of a day that nobody knows.
    """
    rate = stated_rate(inputs, workload) * (1.0 + inputs.headroom)
    given = not {inputs.rate, inputs.throughput, inputs.users, inputs.concurrency} <= {None}
    if inputs.rate_is == "peak" or (given and inputs.rate_is is None):
        return rate
    if not workload.arrivals.hourly_profile:
        if inputs.rate_is == "mean":
            raise InputError(
                f"rate_is mean: {workload.name} holds no day, so that its busiest hour is not known",
                "Give the rate to size for, or hours: fleetopt schedule --hours FILE.",
            )
        return rate
    return rate * workload.arrivals.busiest_hour


def rate_of_hours(inputs: PlanInputs, workload: Workload) -> Literal["mean", "peak"]:
    """Whether the stated rate is the mean of the hours or the busiest hour's, as :func:`rate_of` took it."""
    own = {inputs.rate, inputs.throughput, inputs.rate_is} <= {None} and workload.arrivals.hourly_profile
    return "mean" if inputs.rate_is == "mean" or own else "peak"


def _rate_remarks(inputs: PlanInputs, workload: Workload, rate: float) -> Iterator[Remark]:
    """How the rate to size for came about, where it is not simply the one given."""
    stated = stated_rate(inputs, workload)
    before = rate / (1.0 + inputs.headroom)
    day = workload.arrivals.hourly_profile
    if before > stated * (1.0 + 1e-9):
        yield Remark("busiest_hour", {"rate": before, "mean": stated, "ratio": before / stated})
    elif inputs.throughput is not None and before > (inputs.rate or 0.0):
        yield Remark("by_throughput", {"rate": before, "throughput": inputs.throughput})
    elif population_of(inputs) is not None:
        # who asks how often is told with the fleet that answers
        return
    elif inputs.rate is None:
        span = workload.arrivals.rate_per_s and (workload.provenance.requests or 0) / workload.arrivals.rate_per_s
        if span and not day:
            yield Remark("short_trace", {"rate": stated, "span_s": span})
        else:
            yield Remark("own_rate", {"rate": stated})
    if inputs.headroom:
        yield Remark("headroom", {"rate": rate, "headroom": inputs.headroom, "before": before})


def _shared_prefix(inputs: PlanInputs, workload: Workload) -> tuple[float, tuple[Remark, ...]]:
    """What every longer prompt begins with, in whole blocks of the KV cache [tokens]; and what that assumes."""
    # what of a prefix fills no block is not shared
    tokens = BLOCK_TOKENS * (inputs.shared_prefix // BLOCK_TOKENS)
    if not inputs.shared_prefix:
        return 0.0, ()
    problems = []
    if inputs.prefix_cache == "off":
        problems.append("shared_prefix: prefix_cache is off, so that every prompt is computed whole")
    if workload.sessions is not None:
        problems.append(f"shared_prefix: {workload.name} has sessions, which say what prompts share")
    longest = workload.quantile(1.0, "input")
    if not 0 < tokens < longest:
        problems.append(
            f"shared_prefix: {inputs.shared_prefix:,} tokens are no whole block of {BLOCK_TOKENS} that a prompt begins with; "
            f"the longest prompt has {longest:,.0f}"
        )
    refuse(problems)
    shorter = float(workload.weight[workload.input_tokens <= tokens].sum() / workload.weight.sum())
    return float(tokens), (Remark("shared_prefix", {"tokens": tokens, "share": shorter}),)


def _chance(inputs: PlanInputs, workload: Workload) -> float | Mapping[str, float] | None:
    """Probability that a compression succeeds: as given, else as measured, else as the categories are marked."""
    if inputs.p_c is not None or isinstance(inputs.compress, bool):
        return inputs.p_c
    return category_shares(inputs.compress, workload.categories)


FEWEST_BEYOND, ENOUGH_BEYOND = 10, 100
"""Requests of a trace beyond a promised quantile, below which it does not bear the promise, and from which on it does well."""


def _few_requests(inputs: PlanInputs, workload: Workload) -> Iterator[Remark]:
    """That a trace has few requests for its promises.

    Raises
    ------
    InputError
        It has too few.
    """
    if workload.recorded is None or inputs.law:
        return
    number = workload.recorded.requests
    promise = max(inputs.promises, key=lambda p: p.quantile)
    beyond = number * (1.0 - promise.quantile) * (1.0 + 1e-9)
    if beyond < FEWEST_BEYOND:
        bears = math.floor(100.0 * (1.0 - FEWEST_BEYOND / number)) if number else 0
        best = f"its requests bear P{bears} at most" if bears >= 50 else "its requests bear no quantile"
        raise InputError(
            f"{workload.name}: {number:,} request{'s' if number != 1 else ''} are too few for {promise.label}: it takes "
            f"{math.ceil(FEWEST_BEYOND / (1.0 - promise.quantile) - 1e-6):,}; {best}",
            "Give a longer trace, promise a lower quantile (--quantile 0.9), or take its lengths as a law with arrivals at random: "
            "--law.",
        )
    if beyond < ENOUGH_BEYOND:
        wanted = math.ceil(ENOUGH_BEYOND / (1.0 - promise.quantile) - 1e-6)
        yield Remark("few_requests", {"requests": number, "promise": promise.label, "wanted": wanted})


def _sending(inputs: PlanInputs, workload: Workload) -> Sending:
    """What clients do beyond what the workload shows; its requests are drawn where it has none one by one."""
    surge = None if inputs.surge is None else Surge.parse(inputs.surge)
    limit = float(_or_any(inputs.in_flight))
    population = population_of(inputs)
    if workload.sessions is not None and inputs.prefix_cache == "on":
        # each session waits for its answers already
        population = None
    elif population is not None and inputs.users is not None and not (inputs.think_time or inputs.requests_per_hour):
        raise InputError("users: how often does each ask?", "Say it: --think-time 60s, or --requests-per-hour 20.")
    asked = Sending(paced_clients(inputs.burst), limit, surge, population=population)
    if asked.ordinary:
        return asked
    if workload.sessions is not None and inputs.prefix_cache == "on":
        raise InputError(
            "burst, surge, in_flight: not together with prefix caches that sessions fill",
            "Give --set prefix_cache=off.",
        )
    recorded = inputs.burst == "auto" and (workload.recorded is not None or workload.intervals is not None)
    return replace(asked, drawn=not recorded)


def compile_question(inputs: PlanInputs, workload: Workload, rate_per_s: float | None = None) -> CompiledQuestion:
    """Options and a workload as the records the rooms work on.

    Parameters
    ----------
    inputs
        Options under their own names.
    workload
        The traffic they speak of.
    rate_per_s
        Rate asked about [1/s] instead of the option's.

    Raises
    ------
    InputError
        No rate is known; a cached share of a category the workload does not have.
    """
    traffic = _traffic(inputs, workload, rate_per_s)
    at_random = inputs.method in AT_RANDOM
    if at_random and traffic.sessions is not None:
        raise InputError(
            f"method {inputs.method}: knows no sessions that fill prefix caches", "Give --set prefix_cache=off."
        )
    open_routing = inputs.routing == "auto" and traffic.sessions is not None
    usual = "random" if at_random else "sticky" if open_routing else DEFAULT_ROUTING
    routing = usual if inputs.routing == "auto" else inputs.routing
    return CompiledQuestion(
        asked={**inputs.to_dict(), "routing": routing},
        traffic=traffic,
        promises=Promises(
            inputs.promises, inputs.utilization_cap, inputs.min_replicas, inputs.windows, inputs.confidence
        ),
        # a user's next request may belong to another pool, which the first one's answers would have to wait for
        inputs=replace(inputs, pools=1) if traffic.sending.population else inputs,
        method=inputs.method,
        routing=find_routing(routing),
        open_routing=open_routing,
        clients=Clients(
            _or_any(inputs.max_queue),
            _or_any(inputs.max_queued_tokens),
            _or_any(inputs.client_timeout),
            inputs.retries,
            inputs.retry_after,
        ),
        shape=inputs.shape,
    )


def _or_any(limit: float | None) -> float:
    """A limit that may be left out."""
    return math.inf if limit is None else limit


def _traffic(inputs: PlanInputs, workload: Workload, rate_per_s: float | None) -> Traffic:
    """What is sent: the workload as the options shape it, at the rate asked about or the option's."""
    asked_rate = rate_per_s is None and (
        inputs.rate is None or inputs.rate_is is not None or inputs.headroom > 0.0 or inputs.throughput is not None
    )
    told = tuple(_rate_remarks(inputs, workload, rate_of(inputs, workload))) if asked_rate else ()
    images = images_by_category(inputs, workload)
    workload, changes = shaped(inputs, workload)
    rows = workload.rows
    # where every request has its own place in time, what follows the path needs them all
    if rows > MANY_ROWS and workload.recorded is None and workload.sessions is None:
        workload = once(("few rows", id(workload)), lambda: (workload, workload.fewer_rows(FEWER_ROWS)))[1]
        changes = (*changes, Remark("compacted", {"requests": rows, "rows": workload.rows}))
    if isinstance(inputs.cached_share, Mapping) and (unknown := set(inputs.cached_share) - set(workload.categories)):
        raise InputError(
            f"cached_share: {workload.name} has no category {', '.join(sorted(unknown))}",
            f"Categories: {', '.join(c for c in workload.categories if c) or 'none'}.",
        )
    if rate_per_s is not None:
        rate = rate_per_s
    else:
        rate = rate_of(replace(inputs, osl_scale=1.0, drop_longer_than=None, images=None, image_size=None), workload)
    if not is_rate(rate):
        raise InputError(f"rate: {RATE_RULE}, got {rate!r}")
    prefix, assumed = _shared_prefix(inputs, workload)
    return Traffic(
        workload,
        rate,
        {inputs.rate, inputs.throughput, inputs.users, inputs.concurrency} <= {None} and rate_per_s is None,
        inputs.cached_share,
        inputs.burst != "poisson" and not inputs.law,
        inputs.growth,
        _chance(inputs, workload),
        "total" if inputs.compress else inputs.route_on,
        (*told, *changes, *assumed, *_few_requests(inputs, workload)),
        inputs.max_output,
        inputs.prefix_cache == "on",
        shared_prefix=prefix,
        sending=_sending(inputs, workload),
        images=images,
    )
