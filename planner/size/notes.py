"""What a plan tells beside its numbers: assumptions, warnings, notes, and options that change nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace

import numpy as np

from planner.catalog.kv import adapter_bytes
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import model as find_model
from planner.catalog.profiles import Profile
from planner.machine.engines import DEFAULT_ENGINE, Engine
from planner.machine.engines import engine as find_engine
from planner.plans import PoolPlan
from planner.predict.methods import find_method
from planner.predict.records import Outage, Requests, Run
from planner.predict.replayed import ReplayPool, weighted_quantiles
from planner.predict.run import kernel_in_use, replay
from planner.predict.traffic import WHOLE
from planner.promise import MEAN, Promise
from planner.question.compiled import CompiledQuestion, Traffic
from planner.question.options import PlanInputs
from planner.shared.remarks import Remark
from planner.size.fleet import Fleet
from planner.size.grid import hardware_floor
from planner.size.pool import Pool, Shortfall, band_of
from planner.units import GIB, HOUR_S, format_count, format_duration
from planner.workload import pools as m
from planner.workload.arrivals import POISSON_ASSUMED
from planner.workload.trace import Intervals

WIDE_BAND = 0.3
"""Half-width beyond which an estimate is not fit to buy on [1]."""
ONE_FLEET = {"prefill and decode apart": 0.36, "prompts kept in host memory": 0.4}
"""Kind of fleet of which one was measured -> the band: that holds seven of nine figures below its knee (pd_knee, pd_e2e of
docs/data/public.csv), and all its first tokens (offload_ttft) [1]."""
SMALL_FLEET = 6
"""A fleet up to this size at the trace's own rate is worth a remark."""


def assumptions_of(fleet: Fleet, feels_bursts: bool) -> Iterator[Remark]:
    """What was assumed on the user's behalf."""
    traffic, inputs = fleet.question.traffic, fleet.question.inputs
    for option in {id(p.option.profile): p.option for p in fleet.pools}.values():
        profile, model, gpu = option.profile, option.model, option.gpu
        yield Remark(
            "iteration_times",
            {
                "model": model.name,
                "dtype": model.weight_dtype,
                "gpu": gpu.name,
                "parallel": str(option.parallel),
                "trust": profile.trust,
                "likeness": f", known only by its likeness to {model.like}" if model.like else "",
                "profile": f" (profile {profile.name})" if profile.provenance != "estimated" else "",
                "host": f", {_host(profile).age}" if profile.provenance == "estimated" else "",
            },
        )
        if any(find_gpu(name).name == gpu.name for name in inputs.price):
            source = ""
        elif profile.replica_usd_per_hour is not None:
            source = f" (of profile {profile.name}; --price overrides)"
        else:
            source = f" ({gpu.sources.get('price_usd_per_hour', 'catalog')}; --price overrides)"
        yield Remark("gpu_price", {"gpu": gpu.name, "price": option.price.usd_per_gpu_hour, "source": source})
        if option.lora:
            size = option.lora * adapter_bytes(model, option.parallel, option.lora_rank) / GIB
            told = {"adapters": option.lora, "rank": option.lora_rank, "most": option.most_loras, "gib": size}
            yield Remark("lora", {**told, "gpu": gpu.name, "parallel": str(option.parallel)})
    yield from (change for change in traffic.changes if change.code != FEW)
    yield _arrivals_assumed(fleet, feels_bursts)
    yield from _sending_assumed(traffic)
    if inputs.availability_target is not None:
        repair = {"failures_per_hour": inputs.failures_per_hour, "repair_hours": inputs.repair_hours}
        yield Remark("failures", repair)
    if traffic.workload.provenance.length_split:
        yield Remark("length_split", {"split": traffic.workload.provenance.length_split})
    yield from fleet.assumptions()


def _host(profile: Profile) -> Engine:
    """Whose host times an estimate has."""
    return find_engine("@".join(filter(None, (profile.engine or DEFAULT_ENGINE, profile.engine_version))))


def _arrivals_assumed(fleet: Fleet, feels_bursts: bool) -> Remark:
    """How requests are taken to arrive."""
    traffic = fleet.question.traffic
    arrivals = traffic.workload.arrivals
    if traffic.sending.paced is not None:
        return Remark("paced", {"clients": traffic.sending.paced})
    if traffic.sending.population is not None:
        return Remark("by_users")
    if not feels_bursts or not traffic.bursts:
        return Remark("poisson")
    if not arrivals.dispersion:
        known = arrivals.assumed not in (None, POISSON_ASSUMED)
        return Remark("arrivals", {"assumed": arrivals.assumed}) if known else Remark("poisson")
    windows = ", ".join(f"{format_count(i)} over {w:g} s" for w, i in arrivals.dispersion if w in (1.0, 10.0, 60.0))
    scaled = ""
    if not traffic.own_rate and arrivals.rate_per_s is not None:
        more = traffic.rate_per_s > arrivals.rate_per_s
        scaled = (
            f"; the trace has {format_count(arrivals.rate_per_s)} requests/s, {format_count(traffic.rate_per_s)} are taken "
            + (_GROWN[traffic.growth] if more else "as a random part of them")
        )
    return Remark("bursts", {"windows": windows, "scaled": scaled})


def _sending_assumed(traffic: Traffic) -> Iterator[Remark]:
    """What clients are taken to do beside that."""
    sending = traffic.sending
    if (surge := sending.surge) is not None:
        ramp = f" after a ramp of {format_duration(surge.ramp_s)}" if surge.ramp_s else ""
        told = {"factor": surge.factor, "length_s": surge.length_s, "ramp": ramp, "rate": traffic.rate_per_s}
        yield Remark("surge", told)
    if sending.in_flight < math.inf:
        yield Remark("in_flight", {"limit": round(sending.in_flight)})


FEW = "few_requests"
"""What is changed of a traffic is assumed; that it has few requests is to be read first."""

_GROWN = {"users": "as more independent users", "use": "as more use by the same users (--set growth=use)"}


def notes_of(fleet: Fleet) -> Iterator[Remark]:
    """Findings worth knowing, of any shape."""
    if fleet.question.traffic.own_rate and sum(p.bought for p in fleet.pools) <= SMALL_FLEET:
        yield Remark("small_fleet", {"rate": fleet.rate})
    if fleet.question.words != "brief" and (other := fleet.other_growth()) is not None:
        yield other
    if fleet.question.words != "brief" and (hours := hours_told(fleet)) is not None:
        yield hours
    yield from deaths_of(fleet)
    for pool in fleet.pools:
        if spot := pool.option.price.spot_replicas(pool.bought):
            price = pool.option.price.spot_usd_per_gpu_hour or 0.0
            yield Remark("spot", {"pool": pool.name, "spot": spot, "replicas": pool.bought, "price": price})


def warnings_of(fleet: Fleet, plans: tuple[PoolPlan, ...]) -> Iterator[Remark]:
    """What the reader must know before trusting the numbers, by pool."""
    if find_method(fleet.question.method).replays and (why := kernel_in_use()):
        yield Remark("kernel_in_python", {"why": why})
    yield from (change for change in fleet.question.traffic.changes if change.code == FEW)
    if {p.kind for p in fleet.promises.latency} == {"tpot_s"}:
        pace = fleet.promises.latency[0]
        waits = [first for plan in plans if (first := plan.quantile("ttft_s", pace.quantile)) is not None]
        if waits:
            yield Remark("only_pace", {"first": replace(pace, metric="ttft_s").label, "first_s": max(waits)})
    for pool, plan in zip(fleet.pools, plans, strict=True):
        law, profile = pool.law, pool.option.profile
        if (less := _admits_less(fleet, pool)) is not None:
            yield less
        if profile.provenance == "estimated" and (how := _host(profile).unmeasured):
            yield Remark(
                "engine_version",
                {"version": profile.engine_version, "how": how, "host": _host(profile).age, "gpu": profile.gpu},
            )
        if plan.replicas_high is None:
            yield Remark("profile_band", {"pool": pool.name, "band": profile.band, "provenance": profile.provenance})
        else:
            yield from _wide_band(fleet, pool)
        decode = law.mean(m.DECODE)
        context = law.mean(m.KV) / decode if decode > 0.0 else 0.0
        running = max(pool.prediction.mean_running, 1.0)
        outside = () if fleet.linked else profile.outside(decodes=running, context_tokens=context)
        told = [*pool.setup.warnings, *pool.prediction.warnings, *(["; ".join(outside)] if outside else [])]
        yield from (Remark("pool", {"pool": pool.name, "warning": warning}) for warning in told)
        if not pool.prediction.reliable:
            yield Remark("no_promise", {"pool": pool.name})
    if not fleet.linked:
        for pool in fleet.pools:
            yield from _impossible(pool)


def _wide_band(fleet: Fleet, pool: Pool) -> Iterator[Remark]:
    """Iteration times that nobody measured and that such pools have been seen to miss by more than a purchase should bear."""
    profile, inputs = pool.option.profile, fleet.question.inputs
    band, what = band_of(profile, fleet.promises.latency), "models of this kind"
    offloads = fleet.question.traffic.sessions is not None and inputs.offload + inputs.offload_disk > 0.0
    for holds, (kind, width) in zip((fleet.linked, offloads), ONE_FLEET.items(), strict=True):
        if holds:
            band, what = max(band, width), f"{kind} (one fleet measured)"
    if profile.provenance == "estimated" and band > WIDE_BAND:
        yield Remark("wide_band", {"gpu": pool.option.gpu.name, "band": band, "what": what})


def _admits_less(fleet: Fleet, pool: Pool) -> Remark | None:
    """A pool without room for its longest prompt and the longest output together, and whom of those seen that cuts."""
    traffic, law, admitted = fleet.question.traffic, pool.law, pool.setup.settings.max_model_len
    room = float(np.max(law.input_tokens)) + traffic.workload.quantile(1.0, "output")
    if fleet.linked or traffic.sees_output or admitted >= room:
        return None
    cut = float(np.sum(law.weight[law.input_tokens + law.output_tokens > admitted]))
    return Remark("admits_less", {"pool": pool.name, "admitted": admitted, "room": round(room), "cut": cut})


def _impossible(pool: Pool) -> Iterator[Remark]:
    """A pool below what the arithmetic alone takes, as a profile that charges nothing for prefill allows."""
    law, option = pool.law, pool.option
    new, output, kv = law.mean(m.NEW_INPUT), law.mean(m.OUTPUT), law.mean(m.KV)
    floor = hardware_floor(option.gpu, option.model, pool.rate_per_s, new, output, kv)
    gpus, least = pool.replicas * option.profile.gpus, float(floor)
    if gpus < least:
        names = {"gpu": option.gpu.name, "profile": option.profile.name}
        yield Remark("below_hardware", {"gpus": gpus, "least": least, **names})


def options_without_effect(question: CompiledQuestion, fleet: Fleet) -> Iterator[Remark]:
    """Options given that change nothing."""
    inputs = question.inputs
    if question.traffic.sessions is None:
        of_caches = {
            "session_ttl": inputs.session_ttl is not None,
            "offload": inputs.offload > 0.0,
            "offload_disk": inputs.offload_disk > 0.0,
        }
        yield from (Remark("no_sessions", {"option": option}) for option, given in of_caches.items() if given)
    own = fleet.pools[0].option
    searched = {own.gpu.name} if inputs.profile is not None else {find_gpu(g).name for g in inputs.gpu}
    prices: Mapping[str, Mapping[str, object]] = {
        "--price": inputs.price,
        "--spot-price": inputs.spot_price,
        "--inventory": inputs.inventory,
    }
    for option, given in prices.items():
        if idle := [name for name in given if find_gpu(name).name not in searched]:
            yield Remark("not_searched", {"option": option, "names": ", ".join(idle)})
    if inputs.profile is not None:
        usual = PlanInputs(promises=inputs.promises)
        for name, named, default, taken in (
            ("model", find_model(inputs.model, like=inputs.like).name, find_model(usual.model).name, own.model.name),
            ("gpu", [find_gpu(g).name for g in inputs.gpu], [find_gpu(g).name for g in usual.gpu], [own.gpu.name]),
        ):
            if named not in (default, taken):
                taken_by = {"profile": own.profile.name, "model": own.model.name, "gpu": own.gpu.name}
                yield Remark("other_profile", {"option": name, **taken_by})
    if inputs.spot_share > 0.0 and not inputs.spot_price:
        yield Remark("spot_without_price")
    if inputs.spot_price and inputs.spot_share == 0.0:
        yield Remark("spot_without_share")


# --- findings that take predictions of other fleets ---------------------------------------------------------------

LOOSER, WORTH_TELLING = 1.5, 0.2
"""A promise this many times as loose that saves more than this share of the cost stands on a cliff [1]."""

NEAR_IDLE = 0.1
"""So does one that lies within this share of what an idle engine does [1]."""


def cliffs_of(fleet: Fleet) -> Iterator[Remark]:
    """What is said of latency promises that stand on a cliff; engines stay, and a sample of the requests says what is saved."""
    margins, own = fleet.margins(fleet.promises.confidence), fleet.cost_usd_per_hour
    for k, p in enumerate(fleet.promises.latency):
        idle = [pool.model.unloaded(fleet.levels).value(p.metric, p.quantile) for pool in fleet.pools]
        # a pool that does not decode has no TPOT
        if any(value <= p.limit_s < (1.0 + NEAR_IDLE) * value for value in idle):
            least = max(value for value in idle if value <= p.limit_s)
            yield Remark("near_idle", {"promise": p.told, "idle": p.tell(least)})
        looser = p.scaled(LOOSER)
        latency = tuple(looser if j == k else q for j, q in enumerate(fleet.promises.latency))
        other = copy(fleet)
        other.question = replace(fleet.question, promises=fleet.promises.only(latency))
        sizes = other.sizes_for(fleet.rate, margins, fleet.counts, quick=True)
        if isinstance(sizes, Shortfall):
            continue
        then = math.fsum(pool.cost_usd_per_hour for pool in sizes)
        saved = 1.0 - then / own if own > 0.0 else 0.0
        if saved > WORTH_TELLING:
            gpus, now = (sum(pool.gpus for pool in pools) for pools in (sizes, fleet.pools))
            yield Remark("cliff", {"looser": looser.told, "gpus": gpus, "promise": p.told, "now": now, "saved": saved})


MOST_HOURS = 0.95
"""Share of the hours that a smaller fleet is told for."""


def hours_told(fleet: Fleet) -> Remark | None:
    """The hour and the fleets of the others; ``None`` of a shorter trace, or where another rate was asked for."""
    traffic = fleet.question.traffic
    workload, trace = traffic.workload, traffic.workload.recorded
    known = workload.intervals
    if not traffic.own_rate:
        return None
    if known is None and trace is not None and trace.stretches is None:
        known = Intervals.of(trace.times_s)
    if known is None or known.width_s > HOUR_S or HOUR_S % known.width_s:
        return None
    each = round(HOUR_S / known.width_s)
    whole = known.counts.size // each
    counts = known.counts[: whole * each].reshape(whole, each).sum(axis=1)
    weeks = whole // (7 * 24)
    # of one week there is no other busiest hour to compare
    if weeks < 2:
        return None
    # by the busiest hour of all, which the fleet's rate stands for
    rates = counts / counts.max() * fleet.rate
    by_week = rates[: weeks * 7 * 24].reshape(weeks, -1).max(axis=1)
    asked = {"week": float(np.median(by_week)), "hours": float(np.quantile(rates, MOST_HOURS))}
    gpus = {name: _gpus(fleet, rate) for name, rate in asked.items()}
    if None in gpus.values():
        return None
    at = int(np.argmax(counts))
    values = {"day": at // 24 + 1, "hour": at % 24 + 1, "of": whole, "rate": fleet.rate, "share": MOST_HOURS}
    told = {**{f"{k}_rate": v for k, v in asked.items()}, **{f"{k}_gpus": v for k, v in gpus.items()}}
    return Remark("hours", {**values, **told, "gpus": sum(p.gpus for p in fleet.pools)})


def _gpus(fleet: Fleet, rate_per_s: float) -> int | None:
    """GPUs that the same pools take at a rate [1/s]; ``None`` where no number of replicas does."""
    sizes = fleet.size(rate_per_s)
    return None if isinstance(sizes, Shortfall) else sum(pool.gpus for pool in sizes)


BUSIEST_S = 300.0
"""Time whose prompt tokens say when a pool is busiest, and whose requests are told of by themselves [s]."""


def deaths_of(fleet: Fleet) -> Iterator[Remark]:
    """For every pool with spares what its promises are when as many replicas as it has spares die together, or a node's.

    They die where the busiest five minutes begin, and are back after the time of a repair; what they held is sent again to those
    that are left. Of pools whose requests are no replay of single replicas, as with caches of sessions or prefill apart, and of
    more requests than are replayed whole, it is told that nobody knows.
    """
    for pool in fleet.pools:
        spares = pool.bought - pool.replicas
        if not spares:
            continue
        option = pool.option
        if fleet.linked or fleet.shared_promises:
            yield Remark("deaths_unknown", {"pool": pool.name, "spares": spares})
            continue
        on_a_node = min(max(option.gpu.gpus_per_node // option.price.gpus_per_replica, 1), pool.bought - 1)
        for dead in sorted({spares, on_a_node} if on_a_node > spares else {spares}):
            yield from _after(
                pool, fleet.own_promises, dead, HOUR_S * fleet.question.inputs.repair_hours, dead > spares
            )


def _after(pool: Pool, promises: tuple[Promise, ...], dead: int, repair_s: float, node: bool) -> Iterator[Remark]:
    """What so many deaths do to each promise."""
    copies, model = pool.model.copies, pool.model.single
    if not 0 < dead < pool.bought:
        return
    count = pool.bought * copies
    unknown = Remark("deaths_unknown", {"pool": pool.name, "spares": pool.bought - pool.replicas})
    # pools with caches and speculation have requests of their own
    if type(model) is not ReplayPool:
        yield unknown
        return
    laid = model.traffic.lay(pool.rate_per_s, count, model.engine.routing, most=WHOLE)
    if laid.replicas != count:
        yield unknown
        return
    requests = model.traffic.requests(laid)
    begin = _busiest(requests)
    # the replicas of one node are neighbours: the first are as good as any
    down = [Outage(k, begin, begin + max(repair_s, 1.0)) for k in range(dead * copies)]
    run = replay(requests, replace(model.engine, count=count), outages=down)
    then = (requests.arrival_s >= begin) & (requests.arrival_s < begin + BUSIEST_S)
    for promise in promises:
        if promise.limits.keys() != {promise.metric}:
            continue
        whole = _quantile(promise, requests, run, model.overhead_s, np.ones(requests.size, dtype=bool))
        told = {
            "pool": pool.name, "dead": dead, "bought": pool.bought, "label": promise.label, "limit_s": promise.limit_s,
            "value_s": whole, "then_s": _quantile(promise, requests, run, model.overhead_s, then), "repair_s": repair_s,
            "who": "a node" if node else "as many as there are spares",
        }  # fmt: skip
        yield Remark("deaths_kept" if whole <= promise.limit_s else "deaths_broken", told)


def _busiest(requests: Requests) -> float:
    """When the busiest minutes begin, by prompt tokens [s]."""
    minute = (requests.arrival_s / 60.0).astype(np.int64)
    tokens = np.bincount(minute, requests.input_tokens)
    width = min(round(BUSIEST_S / 60.0), tokens.size)
    sums = np.convolve(tokens, np.ones(width), "valid")
    return 60.0 * float(np.argmax(sums))


def _quantile(promise: Promise, requests: Requests, run: Run, overhead_s: float, rows: np.ndarray) -> float:
    """A promise's quantile of some requests [s]; what is never answered is beyond every limit."""
    ttft, e2e = (np.nan_to_num(x, nan=math.inf) + overhead_s for x in (run.ttft_s, run.e2e_s))
    steps = requests.output_tokens - 1.0
    values = {"ttft_s": ttft, "e2e_s": e2e}.get(promise.metric)
    if values is None:
        rows = rows & (steps > 0.0) & np.isfinite(e2e)
        # what comes before the engine is in both; of what is never answered neither is known
        values = (run.e2e_s - run.ttft_s) / np.maximum(steps, 1.0)
    weight = np.ones(requests.size) if requests.weight is None else requests.weight
    rows = rows & (weight > 0.0)
    if not rows.any():
        return math.nan
    if promise.quantile == MEAN:
        return float(np.average(values[rows], weights=weight[rows]))
    return weighted_quantiles(values[rows], weight[rows], (promise.quantile,))[0]
