"""Simulates the pools of a standing fleet and holds its promises against them.

A check asks something else than the prediction did: of other draws of the traffic, which shift copies of a trace otherwise and
let gateways choose otherwise, and of all requests where the prediction looked at a sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from planner.ask import verify
from planner.ask.asked import standing
from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.papers.measure import SimulationResult
from planner.papers.pool import Transfer
from planner.papers.pool import simulate as simulate_pool
from planner.papers.presets import PoolEngines
from planner.papers.traffic import MOST_RUNS, SampledTraffic, Sent, Traffic, seeds_of
from planner.plans import Plan
from planner.predict.calls import session_calls
from planner.predict.methods import find_method
from planner.predict.methods.occupancy import iteration_times
from planner.predict.replayed import RUNNING
from planner.predict.sessions import SessionPool
from planner.predict.traffic import PoolTraffic
from planner.promise import GOODPUT
from planner.question.options import GROWTH
from planner.shared.arguments import told_types
from planner.shared.record import Record
from planner.size.alone import sessions_of
from planner.size.fleet import Fleet
from planner.size.pool import Pool, traffic_of
from planner.size.shapes.disaggregated import Disaggregated
from planner.units import RATE_RULE, is_rate
from planner.workload.importing import Frame, load_workload
from planner.workload.pools import DECODE, FEWEST_REQUESTS, KV, PoolLaw
from planner.workload.sending import Sending, Surge, paced_clients
from planner.workload.sessions import Sessions
from planner.workload.workload import Workload

ERROR = 0.02
"""Relative standard error of the offered rate that the length of a run with measured bursts is to leave [1]."""

OTHER = 10
"""Number of the first draw that no prediction takes."""

BY_PYTHON, RUNS_BY_PYTHON = 20_000, 2
"""Requests of a pool that the reference in Python replays, about, and in how many runs: it takes half a millisecond for each."""


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

    checks: tuple[verify.Check, ...]
    results: Mapping[str, SimulationResult]
    arrival_rate_per_s: float
    warnings: tuple[str, ...] = field(default=())

    document: ClassVar[str] = "fleetopt-verification"
    written: ClassVar[tuple[str, ...]] = ("verdict", "arrival_rate_per_s", "checks", "pools=results", "warnings")

    def __repr__(self) -> str:
        return f"<Verification: {self.verdict}, {len(self.checks)} promises at {self.arrival_rate_per_s:g} requests/s>"

    @property
    def verdict(self) -> str:
        """``fails`` if any promise fails, ``cannot tell`` if any is open, else ``holds``."""
        verdicts = {c.verdict for c in self.checks}
        return next((v for v in (verify.FAILS, verify.CANNOT_TELL) if v in verdicts), verify.HOLDS)

    def to_rows(self) -> list[dict[str, object]]:
        """One row per promise."""
        return [c.to_dict() for c in self.checks]


class FleetSource:
    """The requests of every pool of a fleet, and what becomes of them.

    Parameters
    ----------
    fleet
        The fleet, and its traffic as planned.
    arrivals, trace, growth, surge, in_flight
        What is sent otherwise, as of :func:`simulate`; ``None`` = as planned.
    requests, most
        Requests of a run that are drawn, and of one that is all there is.
    """

    def __init__(
        self,
        fleet: Fleet,
        arrivals: str | None,
        trace: Workload | None = None,
        growth: str | None = None,
        surge: Surge | None = None,
        in_flight: float = math.inf,
        requests: int = verify.MAX_REQUESTS,
        most: int = verify.MAX_REQUESTS,
    ) -> None:
        paced = paced_clients(arrivals or "")
        if growth not in (None, *GROWTH):
            raise InputError(f"growth must be one of {', '.join(GROWTH)}, got {growth!r}")
        if paced is None and arrivals not in (None, "auto", "dispersion", "poisson"):
            known = "auto, dispersion, poisson or paced:N, N clients at constant gaps"
            raise InputError(f"arrivals: {arrivals!r} is not known", f"Use {known}.")
        if not in_flight >= 1.0:
            raise InputError(f"in_flight must be at least 1, got {in_flight!r}")
        self.fleet, self.arrivals, self.trace, self.requests, self.most = fleet, arrivals, trace, requests, most
        asked = fleet.question.traffic
        planned, bursts = arrivals is None and trace is None, arrivals in (None, "auto")
        if planned:
            paced, bursts = asked.sending.paced, asked.bursts
        sending = Sending(paced, min(in_flight, asked.sending.in_flight), surge or asked.sending.surge)
        if not sending.ordinary:
            sending = replace(sending, drawn=not bursts or paced is not None)
        self.traffic = replace(
            asked,
            workload=_other_deal(trace or asked.workload),
            bursts=bursts and paced is None,
            growth=growth or asked.growth,
            sending=sending,
            cache=asked.cache and trace is None,
        )
        # every request passes both pools of a pair
        self.laws = [fleet.law] if isinstance(fleet, Disaggregated) else [pool.law for pool in fleet.pools]
        if self.traffic.workload is not asked.workload:
            self.laws = [self._of_other(k) for k in range(len(self.laws))]

    def _of_other(self, k: int) -> PoolLaw:
        """What of other traffic than the plan's belongs to the k-th pool, the longest to the last."""
        own, last = self.laws[k], k == len(self.laws) - 1
        moments = self.traffic.moments(self.fleet.question.inputs.chunk)
        upper = replace(own.upper, boundary=max(moments.top, own.upper.boundary)) if last else own.upper
        found = moments.law(own.lower, upper)
        if found is None:
            raise InputError(f"replay: no request of the trace belongs to pool {self.fleet.pools[k].name}")
        return found

    def of(self, k: int, engines: PoolEngines, seeds: Sequence[int], spread: bool = True) -> Traffic:
        """Traffic of the k-th pool, a draw for each seed.

        Parameters
        ----------
        k
            Which pool.
        engines
            Its replicas.
        seeds
            Of the runs.
        spread
            Whether a part of the replicas may stand for all.
        """
        law = self.laws[k]
        rate = self.fleet.rate * law.share
        if self.arrivals == "dispersion":
            return self._dispersed(law, rate)
        traffic = traffic_of(self.traffic, law)
        if self.trace is not None and self.traffic.bursts and not traffic.recorded:
            self._refuse(k)
        return laid_traffic(traffic, rate, engines, seeds, self.most if traffic.recorded else self.requests, spread)

    def simulated(
        self,
        preset: str | None,
        program: str,
        progress: Callable[[str, float], None] | None,
        k: int,
        seeds: Sequence[int],
        quantiles: Sequence[float],
    ) -> Sequence[SimulationResult]:
        """The k-th pool, a run for each seed; of a disaggregated fleet both, between which every request moves."""
        fleet, sending = self.fleet, self.traffic.sending
        behind: tuple[PoolEngines, Transfer] | None = None
        if isinstance(fleet, Disaggregated):
            if preset is not None or sending.in_flight < math.inf:
                raise InputError(
                    "preset, in_flight: a prefill and a decode pool have rules of their own and no limit in flight"
                )
            engines, sent_to = pair_engines(fleet)
            behind, pools = (sent_to, fleet.transfer_s), fleet.pools
            model = fleet.prefill if isinstance(fleet.prefill, SessionPool) else None
            sessions, share = fleet.question.traffic.sessions, 1.0
        else:
            pools = fleet.pools[k : k + 1]
            engines = sent_to = pool_engines(fleet, pools[0], preset)
            model, share = sessions_of(pools[0]), self.laws[k].share
            sessions = None if model is None else self.laws[k].sessions()
        traffic: Traffic
        # a trace that is replayed has requests of its own
        if model is None or sessions is None or self.trace is not None:
            model, traffic = None, self.of(k, sent_to, seeds, spread=behind is None)
        elif sending.in_flight < math.inf or sending.surge is not None:
            raise InputError("in_flight, surge: not together with sessions")
        else:
            # a session is followed from call to call, whenever the trace had them
            traffic = session_traffic(sessions, self.fleet.rate * share, self.requests)
        # what clients of that part of the traffic do, where they do anything but wait
        rules = fleet.question.clients
        waits = not rules.stated and math.isinf(sending.in_flight)
        clients = None if waits else replace(rules, in_flight=max(sending.in_flight * share, 1.0))
        found = simulate_pool(
            traffic,
            engines,
            behind,
            seeds=seeds,
            quantiles=quantiles,
            clients=clients,
            cache=None if model is None else model.cache,
            program=program,
            helps_at=fleet.helps_at if isinstance(fleet, Disaggregated) else math.inf,
            progress=None if progress is None else partial(progress, pools[-1].name),
        )
        return found[: len(pools)]

    def _dispersed(self, law: PoolLaw, rate: float) -> SampledTraffic:
        """Drawn with the dispersion of the workload, thinned to the pool's share."""
        arrivals = self.traffic.workload.arrivals
        pairs = tuple((w, max(1.0, 1.0 + law.share * (i - 1.0))) for w, i in arrivals.dispersion)
        # a count with index of dispersion I has the relative variance I / count
        needed = math.ceil(max((i for _, i in pairs), default=1.0) / ERROR**2)
        requests = max(self.requests, min(needed, self.most))
        lengths = law.input_tokens, law.output_tokens, law.weight
        return SampledTraffic(*lengths, rate, requests, law.cached_share, pairs, surge=self.traffic.sending.surge)

    def _refuse(self, k: int) -> None:
        """Say why a trace cannot be replayed."""
        trace = self.traffic.workload.trace()
        if trace is None:
            raise InputError(f"{self.traffic.workload.name}: holds no time stamps to replay")
        if not float(trace.times_s[-1]) > 0.0:
            raise InputError("replay: all time stamps of the trace are the same")
        raise InputError(
            f"replay: fewer than {FEWEST_REQUESTS} requests of the trace belong to pool {self.fleet.pools[k].name}",
            "Take a longer trace, or --arrivals poisson.",
        )


def _other_deal(workload: Workload) -> Workload:
    """The same traffic; where its requests are dealt to what is known of them, otherwise than for a prediction."""
    dealt = workload.trace(deal=1) if workload.recorded is None else None
    return workload if dealt is None else replace(workload, recorded=dealt)


def laid_traffic(
    traffic: PoolTraffic, rate_per_s: float, engines: PoolEngines, seeds: Sequence[int], most: int, spread: bool = True
) -> Traffic:
    """Requests of a pool as predictions take them, of other draws.

    Parameters
    ----------
    traffic, rate_per_s
        The pool's requests, and its rate [1/s].
    engines
        Its replicas.
    seeds
        Of the runs: each has a draw of its own, of those of a trace's copies evenly from the calmest to the busiest.
    most
        Requests of a run, about.
    spread
        Whether a part of the replicas may stand for all.
    """
    replicas, warm = engines.count, min(engines.slots, RUNNING)

    def sent(seed: int) -> Sent:
        """Those of one run."""
        draw = draw_of(traffic.draws(rate_per_s), seeds, seed)
        count, warmed = (replicas, warm) if spread else (1, warm * replicas)
        laid = traffic.lay(rate_per_s, count, engines.routing, warm=warmed, most=most, draw=draw)
        apart = laid.weight is not None and (traffic.recorded or traffic.fleet.sending.surge is not None)
        served = laid.replicas if spread else replicas
        return Sent(traffic.requests(laid), laid.span_s, served, apart, traffic.recorded)

    return sent


def draw_of(ranked: NDArray[np.int64], seeds: Sequence[int], seed: int) -> int:
    """Which of the ranked draws a run has; the prediction's own is the one in the middle."""
    others = np.delete(ranked, ranked.size // 2)
    place = (seeds.index(seed) + 0.5) / len(seeds)
    return int(others[int(place * others.size)]) if others.size else OTHER + seed


def session_traffic(sessions: Sessions, rate_per_s: float, calls: int) -> Traffic:
    """Calls of sessions at a rate of calls [1/s], see :func:`planner.predict.calls.session_calls`."""

    def sent(seed: int) -> Sent:
        """Those of one run."""
        return Sent(*session_calls(sessions, rate_per_s, calls, OTHER + seed))

    return sent


def pool_engines(fleet: Fleet, pool: Pool, preset: str | None = None) -> PoolEngines:
    """The replicas of one pool of a fleet, under the rules of the plan's method unless told otherwise."""
    question, law, option = fleet.question, pool.law, pool.option
    method = find_method(question.method)
    rules = ("mixed" if method.shares_budget else "slots") if preset is None else preset
    slots = pool.setup.slots
    iteration: IterationModel | tuple[float, ...] = option.profile.iteration
    chunk: float = option.token_budget
    if rules == "slots":
        # the picture of these methods: durations by active slots at the mean context
        if method.free_prefill:  # where prefill takes iterations and nothing else
            frozen, context = option.profile.iteration.at_batch(slots), law.mean(KV) / max(law.mean(DECODE), 1e-9)
            iteration = tuple(frozen.time(n, n * context) for n in range(slots + 1))
        else:
            iteration = tuple(iteration_times(law, option.profile.iteration, slots, question.inputs.chunk).tolist())
        chunk = question.inputs.chunk
    return PoolEngines(
        pool.replicas * option.copies,
        iteration,
        slots,
        chunk,
        float(option.kv_tokens(slots)),
        question.routing.name,
        request_s=option.profile.request_s if method.shares_budget else 0.0,
        wake_s=option.profile.wake_s if method.shares_budget else 0.0,
        shared_prefix=int(option.shared_prefix),
        image_s=option.image_s,
        preset=rules,
        api_overhead_s=0.0 if method.free_prefill else option.profile.api_overhead_s,
        speculation=option.speculation,
    )


def pair_engines(fleet: Disaggregated) -> tuple[PoolEngines, PoolEngines]:
    """The replicas of a prefill and of a decode pool; what comes before the engine is before the first."""
    pools = (fleet.pools[0], fleet.pools[-1])  # one where nobody decodes
    overhead, routing = pools[0].option.profile.api_overhead_s, fleet.question.routing.name
    first, second = (
        PoolEngines(
            pool.replicas * pool.option.copies,
            pool.option.profile.iteration,
            pool.setup.slots,
            kv_tokens=float(pool.setup.kv_tokens),
            routing=routing,
            api_overhead_s=overhead,
            shared_prefix=int(pool.option.shared_prefix),
            token_budget=fleet.decode_budget,
        )
        for pool in pools
    )
    return first, second


@told_types
def simulate(
    fleet: Plan | str | Path,
    *,
    workload: Workload | Frame | str | Path | None = None,
    rate: float | None = None,
    requests: int = 50_000,
    seeds: int | Sequence[int] = verify.RUNS,
    max_requests: int | None = None,
    preset: str | None = None,
    arrivals: str | None = None,
    replay: Workload | str | Path | None = None,
    growth: Literal["users", "use"] | None = None,
    surge: str | None = None,
    in_flight: int | None = None,
    verify_with: str = "kernel",
    progress: Callable[[str, float], None] | None = None,
) -> Verification:
    """Simulate a fleet and judge every promise: holds, fails, or cannot tell.

    Parameters
    ----------
    fleet
        A plan, or a file that holds one.
    workload, rate
        Other traffic, another rate [1/s].
    requests
        Requests of a run that are drawn.
    seeds
        Runs per pool, each another draw of the traffic.
    max_requests
        Requests of a pool at most: of a trace in each run, of those drawn in all, of which there are more runs while a verdict is
        open. Default: 4 million.
    preset
        Engine rules: mixed, paged, slots, policies. Default: those of the plan's method.
    arrivals
        auto (the workload's own requests, else drawn at random), dispersion (drawn with the bursts it measured), poisson, or
        paced:N clients at constant gaps. Default: as the plan assumed.
    replay
        Trace to replay, its time stamps with their lengths; at another rate as that many more users.
    growth
        A replay reaches more than its rate by more users (copies of it, shifted in time) or more use (the same requests, faster).
        Default: as the plan.
    surge
        Flash crowds, judged alone: 3x/60s, or 3x/60s/30s with a ramp.
    in_flight
        Requests of all clients under way at most (closed loop).
    verify_with
        What replays: kernel, or python, its reference (some 20000 requests).
    progress
        Told (pool, share of its current run done).

    Returns
    -------
    Verification

    Raises
    ------
    InputError
        Traffic, an engine's rules or a number of requests that cannot be.
    """
    crowd, trace = None if surge is None else Surge.parse(surge), None if replay is None else load_workload(replay)
    built = standing(fleet, workload, rate)
    most = max_requests or verify.MAX_REQUESTS
    if not is_rate(built.rate):
        raise InputError(f"rate: {RATE_RULE}, got {built.rate!r}")
    if min(requests, most) < 1:
        raise InputError(f"requests: at least 1, got {min(requests, most)}")
    warnings: list[str] = []
    if find_method(built.question.method).free_prefill and preset is None:
        warnings.append(
            "simulated as the mgc method pictures the engine, with prefill at no cost in tokens; --preset mixed is a real one"
        )
    numbers = seeds_of(seeds)
    if verify_with == "python" or preset == "policies":
        numbers = numbers[:RUNS_BY_PYTHON]
        most = min(most, BY_PYTHON // len(numbers))
    requests = min(requests, most)
    source = FleetSource(built, arrivals, trace, growth, crowd, in_flight or math.inf, requests, most)
    asked = _asked(built)
    # both pools of a pair together
    groups = [asked] if isinstance(built, Disaggregated) else [[pool] for pool in asked]
    checks: list[verify.Check] = []
    results: dict[str, SimulationResult] = {}
    for k, pools in enumerate(groups):
        runs = partial(source.simulated, preset, verify_with, progress, k)
        found, verdicts = verify.verify_pools(pools, runs, numbers, min(most // requests, MOST_RUNS))
        checks += verdicts
        results |= {pool.name: result for pool, result in zip(pools, found, strict=True)}
    for name, result in results.items():
        warnings += [f"pool {name}: {w}" for w in result.warnings]
    return Verification((*checks, *_fleet_wide(built, results)), results, built.rate, tuple(warnings))


def _asked(fleet: Fleet) -> list[verify.Asked]:
    """The promises of every pool beside what the closed form predicts of it."""
    return [
        verify.Asked(
            pool.name,
            [p for p in fleet.own_promises if set(p.limits) <= set(fleet.metrics(k))],
            {
                (p.metric, p.quantile): found.prediction.share(p)
                if p.kind == GOODPUT
                else found.prediction.value(p.metric, p.quantile)
                for p in fleet.question.promises.latency
            },
        )
        for k, (pool, found) in enumerate(zip(fleet.pools, fleet.at(fleet.rate), strict=True))
    ]


def _fleet_wide(fleet: Fleet, results: Mapping[str, SimulationResult]) -> Iterator[verify.Check]:
    """Promises about all requests of the fleet, from the runs of its pools."""
    shares = [pool.law.share for pool in fleet.pools]
    stable = all(r.stable for r in results.values())
    for promise in fleet.shared_promises:
        estimate = verify.fleet_estimate(list(results.values()), shares, promise)
        outcome, reason = verify.verdict_on(promise, estimate, stable)
        yield verify.Check("fleet", promise, None, estimate, outcome, reason)
