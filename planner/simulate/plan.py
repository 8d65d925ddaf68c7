"""Simulates the pools of a standing fleet and holds its promises against them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np

from planner.errors import InputError
from planner.fleet.caches import sessions_of
from planner.fleet.fleet import Fleet
from planner.fleet.pool import Pool
from planner.fleet.shapes.disaggregated import Disaggregated
from planner.iteration.model import IterationModel
from planner.methods import find_method
from planner.methods.occupancy import iteration_times
from planner.methods.sessions import SessionPool
from planner.promise import GOODPUT
from planner.queueing.prefix import found_share
from planner.record import Record
from planner.simulate.answered import simulate_clients
from planner.simulate.arrivals import Arrival
from planner.simulate.clients import ClientRules
from planner.simulate.pair import ComingBack, simulate_pair
from planner.simulate.pool import simulate
from planner.simulate.presets import PoolEngines
from planner.simulate.replay import ReplayedTraffic
from planner.simulate.result import SimulationResult
from planner.simulate.surge import SurgingTraffic
from planner.simulate.traffic import SampledTraffic, Traffic
from planner.simulate.verify import (
    CANNOT_TELL,
    FAILS,
    HOLDS,
    MAX_REQUESTS,
    Asked,
    Check,
    fleet_estimate,
    judge,
    judge_share,
    verify_pools,
)
from planner.units import RATE_RULE, is_rate
from planner.workload.pools import DECODE, KV, chances
from planner.workload.sending import Sending, Surge, paced_clients
from planner.workload.sessions import Sessions
from planner.workload.trace import Trace
from planner.workload.workload import Workload

ERROR = 0.02
"""Relative standard error of the offered rate that a run's length is to leave [1]."""

CROWDS = 20
"""Flash crowds of a run."""


@dataclass(frozen=True, slots=True)
class Verification(Record):
    """Every promise of a fleet against its simulation.

    Parameters
    ----------
    checks
        One per pool and promise; promises about the whole fleet come last.
    results
        Pool name -> its simulation.
    arrival_rate_per_s
        Rate of the fleet [1/s].
    warnings
        What to know before believing it.
    """

    checks: tuple[Check, ...]
    results: Mapping[str, SimulationResult]
    arrival_rate_per_s: float
    warnings: tuple[str, ...] = field(default=())

    document: ClassVar[str] = "fleetopt-verification"
    written: ClassVar[tuple[str, ...]] = ("verdict", "arrival_rate_per_s", "checks", "results", "warnings")
    renamed: ClassVar[Mapping[str, str]] = {"results": "pools"}

    def __repr__(self) -> str:
        return f"<Verification: {self.verdict}, {len(self.checks)} promises at {self.arrival_rate_per_s:g} requests/s>"

    @property
    def verdict(self) -> str:
        """``fails`` if any promise fails, ``cannot tell`` if any is open, else ``holds``."""
        verdicts = {c.verdict for c in self.checks}
        return FAILS if FAILS in verdicts else CANNOT_TELL if CANNOT_TELL in verdicts else HOLDS

    def to_rows(self) -> list[dict[str, object]]:
        """One row per promise."""
        return [c.to_dict() for c in self.checks]


@dataclass(frozen=True, slots=True)
class Load:
    """What a fleet is sent.

    Parameters
    ----------
    arrivals
        ``"auto"`` (a trace's own time stamps and lengths where it has them, else the dispersion it measured, else Poisson),
        ``"dispersion"``, ``"poisson"``, or ``"paced:N"`` (N clients that send at constant gaps); ``None`` = the plan's ``burst``.
    trace
        A workload with time stamps that is replayed in place of the plan's own traffic.
    growth
        What a rate above a trace's own stands for: ``users`` (copies shifted in time) or ``use`` (the same path, higher);
        ``None`` = as the plan.
    surge
        Flash crowds; only their requests are measured.
    in_flight
        Requests of all clients under way at most.
    """

    arrivals: str | None = None
    trace: Workload | None = None
    growth: str | None = None
    surge: Surge | None = None
    in_flight: float = math.inf

    def beside(self, sending: Sending) -> Load:
        """What is not stated as a plan has it."""
        return replace(self, surge=self.surge or sending.surge, in_flight=min(self.in_flight, sending.in_flight))

    def workers(self) -> int | None:
        """Number of paced clients, or an InputError where `arrivals` is not understood."""
        if (paced := paced_clients(self.arrivals or "")) is not None:
            return paced
        if self.arrivals not in (None, "auto", "dispersion", "poisson"):
            known = "auto, dispersion, poisson or paced:N, N clients at constant gaps"
            raise InputError(f"arrivals: {self.arrivals!r} is not known", f"Use {known}.")
        return None


class FleetTraffic:
    """The requests of every pool of a fleet.

    Parameters
    ----------
    fleet, workload
        The fleet and its traffic.
    rate_per_s
        Rate of the fleet [1/s].
    load
        What it is sent.
    """

    def __init__(self, fleet: Fleet, workload: Workload, rate_per_s: float, load: Load) -> None:
        self.fleet, self.workload, self.rate_per_s, self.load = fleet, workload, rate_per_s, load
        # every request passes both pools of a pair
        self.laws = [fleet.law] if isinstance(fleet, Disaggregated) else [pool.law for pool in fleet.pools]
        sending = fleet.question.traffic.sending
        self.mode = load.arrivals or ("auto" if fleet.question.traffic.bursts else "poisson")
        self.workers = load.workers()
        if load.arrivals is None and load.trace is None and sending.paced is not None:
            self.mode, self.workers = "paced", sending.paced
        source = load.trace or (workload if self.mode == "auto" else None)
        # from a compact file, other requests for the same seconds than the prediction has seen
        self.trace = None if source is None else source.trace(deal=1)
        if load.trace is not None and self.trace is None:
            raise InputError(f"{load.trace.name}: holds no time stamps to replay")
        if self.trace is not None:
            assert source is not None
            self._divide(self.trace, source)

    def _divide(self, trace: Trace, source: Workload) -> None:
        """Which pool each request of the trace goes to, with which prompt, and how much of it the cache supplies."""
        asked = self.fleet.question.traffic
        share = asked.cached_share
        cached = [share.get(c, 0.0) if isinstance(share, Mapping) else share for c in source.categories]
        on_input = not asked.sees_output
        total = trace.input_tokens + (0.0 if on_input else trace.output_tokens)
        chance = np.zeros(total.size) if on_input else chances(source, asked.p_c)[trace.category]
        luck = np.random.Generator(np.random.PCG64([0, 2])).random(total.size)
        edges = [law.upper.boundary for law in self.laws[:-1]]
        self._pool = np.searchsorted(edges, total)
        self._prompts = trace.input_tokens.copy()
        self._cached = np.asarray(cached, dtype=np.float64)[trace.category]
        for k, law in enumerate(self.laws[:-1]):
            edge, gamma = law.upper.boundary, law.upper.gamma
            band = (total > edge) & (total <= gamma * edge) & (trace.output_tokens < edge) & (luck < chance)
            self._pool[band] = k
            self._prompts[band] = edge - trace.output_tokens[band]
        self._cached = found_share(self._prompts, self._cached, asked.shared_prefix)

    def of(self, k: int, requests: int, most: int) -> Traffic:
        """Traffic of the k-th pool: `requests`, or as many as its bursts and crowds need, at most `most`."""
        traffic: Traffic
        if self.trace is not None:
            traffic = self._replay(self.trace, k, requests, most)
        else:
            law, rate = self.laws[k], self.rate_per_s * self.laws[k].share
            arrival = self._arrival(law.share, rate)
            requests = min(max(requests, arrival.requests_for(ERROR)), most)
            if self.load.surge is not None:
                requests = min(max(requests, math.ceil(CROWDS * rate * self.load.surge.ordinary_s)), most)
            traffic = SampledTraffic(
                law.input_tokens, law.output_tokens, law.weight, arrival, requests, law.cached_share
            )
        return traffic if self.load.surge is None else SurgingTraffic(traffic, self.load.surge)

    def drawn(self, k: int, requests: int) -> SampledTraffic:
        """Requests of the k-th pool drawn from its law, Poisson."""
        law = self.laws[k]
        rate = Arrival(self.rate_per_s * law.share)
        return SampledTraffic(law.input_tokens, law.output_tokens, law.weight, rate, requests, law.cached_share)

    def _arrival(self, share: float, rate: float) -> Arrival:
        """Arrivals of a pool: Poisson, paced, or with the dispersion of the workload, thinned to the pool's share."""
        if self.workers is not None:
            return Arrival(rate, "paced", workers=max(round(self.workers * share), 1))
        arrivals = self.workload.arrivals
        known = arrivals.dispersion if self.mode in ("auto", "dispersion") and arrivals is not None else ()
        pairs = tuple((w, max(1.0, 1.0 + share * (i - 1.0))) for w, i in known)
        return Arrival(rate, "modulated", dispersion=pairs) if any(i > 1.0 for _, i in pairs) else Arrival(rate)

    def _replay(self, trace: Trace, k: int, requests: int, most: int) -> ReplayedTraffic:
        """The requests of the trace that belong to the k-th pool."""
        rows = np.flatnonzero(self._pool == k)
        if rows.size < 2:
            raise InputError(f"replay: no request of the trace belongs to pool {self.fleet.pools[k].name}")
        last = float(trace.times_s[-1])
        period = last + last / max(trace.requests - 1, 1)  # a mean gap after the last
        if not last > 0.0:
            raise InputError("replay: all time stamps of the trace are the same")

        def replayed(requests: int) -> ReplayedTraffic:
            return ReplayedTraffic(
                trace.times_s[rows],
                self._prompts[rows],
                trace.output_tokens[rows],
                period,
                self.rate_per_s * period / trace.requests,
                cached_share=self._cached[rows],
                growth=self.load.growth or self.fleet.question.traffic.growth,
                requests=requests,
            )

        found = replayed(requests)
        return found if found.whole else replayed(min(max(requests, found.requests_for(ERROR)), most))


def pool_engines(fleet: Fleet, pool: Pool, preset: str | None = None) -> PoolEngines:
    """The replicas of one pool of a fleet, under the rules of the plan's method unless told otherwise."""
    question, law, option = fleet.question, pool.law, pool.option
    method, engines = find_method(question.method), question.engines
    rules = ("mixed" if method.shares_budget else "slots") if preset is None else preset
    slots = pool.setup.slots
    iteration: IterationModel | list[float] = option.profile.iteration
    chunk: float = option.token_budget
    if rules == "slots":
        # the picture of these methods: durations by active slots at the mean context
        if method.free_prefill:  # where prefill takes iterations and nothing else
            frozen, context = option.profile.iteration.at_batch(slots), law.mean(KV) / max(law.mean(DECODE), 1e-9)
            iteration = [frozen.time(n, n * context) for n in range(slots + 1)]
        else:
            iteration = iteration_times(law, option.profile.iteration, slots, engines.chunk).tolist()
        chunk = engines.chunk
    return PoolEngines(
        pool.size.replicas * option.copies,
        iteration,
        slots,
        chunk,
        float(option.kv_tokens(slots)),
        question.routing.name,
        rules,
        0.0 if method.free_prefill else option.profile.api_overhead_s,
        option.speculation,
        option.profile.request_s if method.shares_budget else 0.0,
        int(option.shared_prefix),
        option.profile.wake_s if method.shares_budget else 0.0,
    )


def pair_engines(fleet: Disaggregated) -> tuple[PoolEngines, PoolEngines]:
    """The replicas of a prefill and of a decode pool; what comes before the engine is before the first."""
    pools = (fleet.pools[0], fleet.pools[-1])  # one where nobody decodes
    overhead, routing = pools[0].option.profile.api_overhead_s, fleet.question.routing.name
    first, second = (
        PoolEngines(
            pool.size.replicas * pool.option.copies,
            pool.option.profile.iteration,
            pool.setup.slots,
            kv_tokens=float(pool.setup.kv_tokens),
            routing=routing,
            api_overhead_s=overhead,
            shared_prefix=int(pool.option.shared_prefix),
        )
        for pool in pools
    )
    return first, second


def verify_fleet(
    fleet: Fleet,
    workload: Workload,
    arrival_rate_per_s: float,
    *,
    preset: str | None = None,
    requests: int = 50_000,
    seeds: int | Sequence[int] = 2,
    max_requests: int = MAX_REQUESTS,
    load: Load | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Verification:
    """Simulate every pool of a fleet and judge every promise.

    Parameters
    ----------
    fleet, workload
        The fleet and its traffic.
    arrival_rate_per_s
        Rate of the fleet [1/s].
    preset
        Engine rules; default those of the plan's method.
    requests, seeds, max_requests
        Requests per run at least, runs per pool, and how far a run may grow: for bursts and long stays, and while a verdict is
        open. A trace that is replayed whole is as long as it is.
    load
        What the fleet is sent; default what the plan assumed.
    progress
        Called with (pool name, share of the current run).

    Returns
    -------
    Verification
    """
    question, load = fleet.question, (load or Load()).beside(fleet.question.traffic.sending)
    if not is_rate(arrival_rate_per_s):
        raise InputError(f"rate: {RATE_RULE}, got {arrival_rate_per_s!r}")
    warnings: list[str] = []
    if find_method(question.method).free_prefill and preset is None:
        warnings.append(
            "simulated as the mgc method pictures the engine, with prefill at no cost in tokens; --preset mixed is a real one"
        )
    source = FleetTraffic(fleet, workload, arrival_rate_per_s, load)
    runs = _Runs(fleet, source, preset, seeds, max_requests, progress)
    asked = _asked(fleet, arrival_rate_per_s)
    together = (
        [(asked, partial(runs.pair, fleet, [pool.name for pool in asked]))]
        if isinstance(fleet, Disaggregated)
        else [([asked[k]], partial(runs.single, k)) for k in range(len(asked))]
    )
    checks: list[Check] = []
    results: dict[str, SimulationResult] = {}
    for pools, simulated in together:
        found, verdicts = verify_pools(pools, simulated, requests, max_requests)
        checks += verdicts
        results |= {pool.name: result for pool, result in zip(pools, found, strict=True)}
    for name, result in results.items():
        warnings += [f"pool {name}: {w}" for w in result.warnings]
    return Verification((*checks, *_fleet_wide(fleet, results)), results, arrival_rate_per_s, tuple(warnings))


def _asked(fleet: Fleet, rate_per_s: float) -> list[Asked]:
    """The promises of every pool beside what the closed form predicts of it."""
    return [
        Asked(
            pool.name,
            [p for p in fleet.own_promises if set(p.limits) <= set(fleet.metrics(k))],
            {
                (p.metric, p.quantile): found.prediction.share(p)
                if p.kind == GOODPUT
                else found.prediction.value(p.metric, p.quantile)
                for p in fleet.question.promises.latency
            },
        )
        for k, (pool, found) in enumerate(zip(fleet.pools, fleet.at(rate_per_s), strict=True))
    ]


def _fleet_wide(fleet: Fleet, results: Mapping[str, SimulationResult]) -> Iterator[Check]:
    """Promises about all requests of the fleet, from the runs of its pools."""
    shares = [pool.law.share for pool in fleet.pools]
    stable = all(r.stable for r in results.values())
    for promise in fleet.shared_promises:
        estimate = fleet_estimate(list(results.values()), shares, promise)
        if promise.kind == GOODPUT:
            outcome, reason = judge_share(estimate, promise.quantile, stable)
        else:
            outcome, reason = judge(estimate, promise.limit_s, stable)
        yield Check("fleet", promise, None, estimate, outcome, reason)


@dataclass(frozen=True, slots=True)
class _Runs:
    """Simulates pools of a fleet with as many requests as it is asked for."""

    fleet: Fleet
    source: FleetTraffic
    preset: str | None
    seeds: int | Sequence[int]
    max_requests: int
    progress: Callable[[str, float], None] | None

    def _tell(self, name: str) -> Callable[[float], None] | None:
        return None if self.progress is None else partial(self.progress, name)

    def _rules(self) -> ClientRules:
        c = self.fleet.question.clients
        return ClientRules(c.max_queue, c.max_queued_tokens, c.timeout_s, c.retries, c.retry_after_s)

    def pair(
        self, fleet: Disaggregated, names: Sequence[str], requests: int, quantiles: Sequence[float]
    ) -> Sequence[SimulationResult]:
        """The prefill and the decode pool, between which every request moves."""
        load, question = self.source.load, fleet.question
        if self.preset is not None or load.in_flight < math.inf:
            raise InputError(
                "preset, in_flight: a prefill and a decode pool have rules of their own and no limit in flight"
            )
        first, second = pair_engines(fleet)
        # a trace that is replayed has requests of its own
        coming_back = None
        if load.trace is None and question.traffic.sessions is not None and isinstance(fleet.prefill, SessionPool):
            coming_back = ComingBack(question.traffic.sessions, self.source.rate_per_s, fleet.prefill.cache)
        if coming_back is not None and load.surge is not None:
            raise InputError("surge: not together with sessions")
        found = simulate_pair(
            self.source.of(0, requests, self.max_requests) if coming_back is None else self.source.drawn(0, requests),
            first,
            second,
            fleet.transfer_s,
            seeds=self.seeds,
            quantiles=quantiles,
            max_requests=self.max_requests,
            rules=self._rules() if question.clients.stated else None,
            coming_back=coming_back,
            progress=self._tell(names[-1]),
        )
        return found[: len(names)]

    def single(self, k: int, requests: int, quantiles: Sequence[float]) -> Sequence[SimulationResult]:
        """The k-th pool of a colocated fleet."""
        source, pool = self.source, self.fleet.pools[k]
        # a trace that is replayed has requests of its own
        sessions = source.laws[k].sessions() if source.load.trace is None else None
        if sessions is not None or self.fleet.question.clients.stated:
            return [self._with_clients(k, sessions, requests, quantiles)]
        result = simulate(
            source.of(k, requests, self.max_requests),
            pool_engines(self.fleet, pool, self.preset),
            seeds=self.seeds,
            quantiles=quantiles,
            max_requests=self.max_requests,
            in_flight=max(source.load.in_flight * source.laws[k].share, 1.0),
            progress=self._tell(pool.name),
        )
        return [result]

    def _with_clients(
        self, k: int, sessions: Sessions | None, requests: int, quantiles: Sequence[float]
    ) -> SimulationResult:
        """The k-th pool where clients give up, retry, or come back with the answer they got."""
        source, pool = self.source, self.fleet.pools[k]
        if source.load.in_flight < math.inf or source.load.surge is not None:
            raise InputError("in_flight, surge: not together with sessions or limited queues")
        cached = sessions_of(pool)
        # a session is followed from call to call: the trace's own times are those of its calls
        traffic = source.drawn(k, requests) if sessions is not None else source.of(k, requests, self.max_requests)
        return simulate_clients(
            traffic,
            pool_engines(self.fleet, pool, self.preset),
            self._rules(),
            sessions,
            source.rate_per_s * source.laws[k].share,
            requests=requests,
            cache=cached.cache if cached else None,
            seeds=self.seeds,
            quantiles=quantiles,
            progress=self._tell(pool.name),
        )
