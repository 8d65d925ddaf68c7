"""From a question to a plan: solve, explain, write down; once for every shape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np

from planner._version import __version__
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import model as find_model
from planner.errors import InfeasibleError, InputError
from planner.fleet.chance import MEASUREMENTS
from planner.fleet.explain import unkept
from planner.fleet.fleet import Fleet, Solved
from planner.fleet.pool import Pool, Shortfall, broken
from planner.fleet.shapes import find_shape, shape_names, standing_fleet
from planner.fleet.types import with_types
from planner.methods import find_method
from planner.methods.base import same_band
from planner.plans import Alternative, LatencyValue, Oracle, Plan, PoolPlan, SearchReport
from planner.question.compiled import CompiledQuestion, Engines, Traffic, compile_question
from planner.question.files import SavedPool
from planner.question.options import PlanInputs
from planner.remarks import Remark
from planner.replica.floor import hardware_floor
from planner.routing import find_routing
from planner.units import format_count, format_duration, format_usd
from planner.workload import pools as m
from planner.workload.arrivals import POISSON_ASSUMED
from planner.workload.carried import is_filed, rows_to_carry
from planner.workload.workload import Workload

FEW_REPLICAS = 6
"""A fleet up to this size at the trace's own rate is worth a remark."""


def make_plan(
    inputs: PlanInputs,
    workload: Workload,
    in_memory: bool = False,
    standing: Sequence[SavedPool] = (),
    brief: bool = False,
) -> Plan:
    """The cheapest fleet for a workload; a plan of one that is `in_memory` carries its rows.

    With the pools of a plan that are `standing`, the numbers of their replicas alone are open. A `brief` plan leaves out the
    remark about growth of the other kind, which takes a prediction.

    Raises
    ------
    InputError
        Something in the question cannot be.
    InfeasibleError
        No fleet of the searched grid keeps the promises.
    """
    question = compile_question(inputs, workload)
    question = replace(question, search=replace(question.search, brief=brief))
    plan = resized(question, standing) if standing else plan_of(question)
    if in_memory and (inputs.cdf == "-" or not is_filed(workload)):
        # rows are carried as they were planned for: read back, nothing is left to change of them
        rows = rows_to_carry(question.traffic.workload)
        plain = {"osl_scale": 1.0, "drop_longer_than": None}
        plan = replace(plan, inputs={**plan.inputs, **plain}, workload={**plan.workload, "rows": rows})
    return plan


def fleet_of(question: CompiledQuestion) -> Fleet:
    """The fleet that :func:`plan_of` takes, without the words of a plan.

    Raises
    ------
    InputError, InfeasibleError
        As :func:`make_plan`.
    """
    question = with_types(question)
    shape = question.search.shape
    names = list(shape_names())
    if shape in names:
        fleet = find_shape(shape).solve(question).fleet
        bare = _without_host_memory(question)
        try:
            return fleet if bare is None else min(fleet, fleet_of(bare), key=lambda f: f.cost_usd_per_hour)
        except InfeasibleError:
            return fleet
    fleets: list[Fleet] = []
    failed: list[InfeasibleError | InputError] = []
    for name in names:
        try:
            fleets.append(fleet_of(replace(question, search=replace(question.search, shape=name))))
        except (InfeasibleError, InputError) as error:
            failed.append(error)
    if not fleets:
        raise failed[0]
    return min(fleets, key=lambda fleet: fleet.cost_usd_per_hour)


def resized(question: CompiledQuestion, standing: Sequence[SavedPool]) -> Plan:
    """The plan of pools that stand, with the replicas that keep the promises now.

    Raises
    ------
    InfeasibleError
        No number of these replicas does.
    """
    fleet = standing_fleet(question, standing)
    sizes = fleet.size(question.traffic.rate_per_s)
    if isinstance(sizes, Shortfall):
        raise unkept(sizes, "", "even idle, the plan's own pools need", ["plan again: --research"])
    for k, (pool, size) in enumerate(zip(fleet.pools, sizes, strict=True)):
        fleet.pools[k] = replace(pool, size=size, bought=pool.option.price.bought(size.replicas))
    cost = fleet.cost_usd_per_hour
    report = SearchReport(1, len(sizes), cost, 0.0, "the plan's own pools")
    return assemble(question, Solved(fleet, report), "disaggregated" if fleet.linked else "colocated")


def plan_of(question: CompiledQuestion) -> Plan:
    """The cheapest fleet of the shape asked for; of all shapes, with the dearer one beside it, where that is asked for."""
    question = with_types(question)
    names = list(shape_names())
    shape = question.search.shape
    if shape in names:
        if (bare := _without_host_memory(question)) is not None:
            return _cheaper_of(question, bare)
        if question.open_routing:
            return _cheapest_routing(question)
        return _as_asked(question)
    plans: dict[str, Plan] = {}
    reasons: dict[str, InfeasibleError | InputError] = {}
    for name in names:
        try:
            plans[name] = plan_of(replace(question, search=replace(question.search, shape=name)))
        except (InfeasibleError, InputError) as error:
            reasons[name] = error
    if not plans:
        raise next(iter(reasons.values()))
    best = min(plans, key=lambda name: plans[name].cost_usd_per_hour)
    chosen = plans[best]
    notes, others = [], []
    for name in names:
        if name in reasons:
            reason = str(reasons[name]).splitlines()[0]
            notes.append(Remark("other_shape_fails", {"shape": name, "reason": reason}))
            others.append(Alternative(name, (), reason))
        elif name != best:
            cost = plans[name].cost_usd_per_hour
            saved = 1.0 - chosen.cost_usd_per_hour / cost if cost > 0.0 else 0.0
            values = {"best": best, "best_usd_per_hour": chosen.cost_usd_per_hour, "shape": name, "usd_per_hour": cost}
            notes.append(Remark("other_shape", {**values, "saved": saved}))
            others.append(Alternative(name, plans[name].pools))
    return replace(
        chosen,
        alternatives=tuple(others),
        notes=(*chosen.notes, *map(str, notes)),
        remarks={**chosen.remarks, "notes": (*chosen.remarks["notes"], *notes)},
    )


def _without_host_memory(question: CompiledQuestion) -> CompiledQuestion | None:
    """The question without the host memory that was given for caches; ``None`` where it changes nothing."""
    engines = question.engines
    if engines.offload_gib <= 0.0 or question.traffic.sessions is None:
        return None
    return replace(question, engines=replace(engines, offload_gib=0.0), asked={**question.asked, "offload": 0.0})


def _cheaper_of(question: CompiledQuestion, bare: CompiledQuestion) -> Plan:
    """The plan with host memory for what GPUs drop, or the one without where fetching prompts back takes longer than it saves."""
    without: Plan | InfeasibleError
    try:
        without = plan_of(bare)
    except InfeasibleError as error:
        without = error
    find_plan = _cheapest_routing if question.open_routing else _as_asked
    try:
        chosen = find_plan(question)
    except InfeasibleError:
        if isinstance(without, InfeasibleError):
            raise
        return _noted(without, Remark("host_memory_fails", {"gib": question.engines.offload_gib}))
    if isinstance(without, InfeasibleError) or without.cost_usd_per_hour >= chosen.cost_usd_per_hour * (1.0 - 1e-9):
        return chosen
    costs = {"with_usd_per_hour": chosen.cost_usd_per_hour, "usd_per_hour": without.cost_usd_per_hour}
    return _noted(without, Remark("host_memory_loses", {"gib": question.engines.offload_gib, **costs}))


def _as_asked(question: CompiledQuestion) -> Plan:
    """The plan of one shape and one routing."""
    shape = question.search.shape
    return assemble(question, find_shape(shape).solve(question), shape)


def _noted(plan: Plan, note: Remark) -> Plan:
    """The plan with one note more."""
    notes = (*plan.remarks["notes"], note)
    return replace(plan, notes=(*plan.notes, str(note)), remarks={**plan.remarks, "notes": notes})


def _cheapest_routing(question: CompiledQuestion) -> Plan:
    """The plan under the routing with which sessions cost least; the others are searched only if they hold at its size."""
    plans: dict[str, Plan] = {}
    errors: list[InfeasibleError] = []
    failing: list[str] = []
    sessions = question.traffic.sessions
    fleet: Fleet | None = None
    for name in ("sticky", *(("prefix",) if sessions and sessions.shared else ()), "random", "least"):
        routed = replace(
            question, asked={**question.asked, "routing": name}, routing=find_routing(name), open_routing=False
        )
        if fleet is not None and not routed.routing.affinity and not fleet.routed(routed).holds(fleet.rate):
            failing.append(name)
            continue
        try:
            solved = find_shape(question.search.shape).solve(routed)
        except InfeasibleError as error:
            errors.append(error)
            continue
        plans[name] = assemble(routed, solved, question.search.shape)
        if fleet is None or solved.fleet.cost_usd_per_hour < fleet.cost_usd_per_hour:
            fleet = solved.fleet
    if not plans:
        raise errors[0]
    best = min(plans, key=lambda name: plans[name].cost_usd_per_hour)
    costs = {name: plan.cost_usd_per_hour for name, plan in plans.items()}
    others = [f"{name} costs {format_usd(cost)}/hour" for name, cost in costs.items() if name != best]
    others += [f"{name} breaks the promises at this size" for name in failing]
    chosen = plans[best]
    note = Remark(
        "routing_chosen",
        {"routing": best, "others": "; ".join(others) or "no other keeps the promises", "costs": costs},
    )
    return _noted(chosen, note)


def assemble(question: CompiledQuestion, solved: Solved, shape: str) -> Plan:
    """The plan of a solved question."""
    fleet, traffic = solved.fleet, question.traffic
    asked = dict(question.asked)
    if question.engines.profile is not None:
        # a profile by name is of its own GPU and model, whatever the defaults of the others are
        option = fleet.pools[0].option
        asked |= {"gpu": [option.gpu.name], "model": option.model.name}
    pools = pool_plans(fleet)
    explanation = [line for k in range(len(pools)) for line in (_why(fleet, k), *fleet.tightness(k))]
    explanation += fleet.summary()
    spare = fleet.headroom()
    explanation.append(
        f"The fleet keeps its promises at least up to {format_count(spare * fleet.rate)} requests/s ({spare:.2f}x)."
    )
    method, sure = find_method(question.method), fleet.chance()
    remarks = {
        "assumptions": _once(_assumptions(fleet, method.feels_bursts)),
        "warnings": _once([*_warnings(fleet, pools), *_without_effect(question, fleet)]),
        "notes": _once(
            note
            for note in (
                None if method.caveat is None else Remark("caveat", {"text": method.caveat}),
                *solved.notes,
                *_notes(fleet),
                *fleet.notes(),
                None if sure is None else Remark("chance", {**asdict(sure), "measure": MEASUREMENTS[sure.widest]}),
                _oracle_note(question, solved),
                solved.unproven,
            )
            if note is not None
        ),
    }
    said = {kind: tuple(map(str, of_kind)) for kind, of_kind in remarks.items()}
    return Plan(
        pools=pools,
        baseline=None if solved.baseline is None else pool_plans(solved.baseline),
        inputs=asked,
        workload=workload_summary(traffic.workload),
        slo=question.promises.slo,
        arrival_rate_per_s=traffic.rate_per_s,
        method=question.method,
        search=solved.search,
        assumptions=said["assumptions"],
        warnings=said["warnings"],
        notes=said["notes"],
        explanation=tuple(explanation),
        version=__version__,
        shape=shape,
        remarks=remarks,
        oracle=_oracle(question, solved),
        chance=None if sure is None else sure.share,
        caches=fleet.caches(),
        overload=fleet.overload(),
    )


def _oracle(question: CompiledQuestion, solved: Solved) -> Oracle | None:
    """The public record of what a gateway that knows outputs would take."""
    if solved.oracle is None:
        return None
    fleet, cost, boundary, gamma, compressed = solved.oracle
    saving = 1.0 - cost / solved.fleet.cost_usd_per_hour
    pools, p_c = () if fleet is None else pool_plans(fleet), question.traffic.p_c
    return Oracle(cost, saving, boundary, gamma, compressed, p_c if isinstance(p_c, float) else None, pools)


def _oracle_note(question: CompiledQuestion, solved: Solved) -> Remark | None:
    """What it would take and save, in words."""
    if solved.oracle is None:
        return None
    fleet, cost, boundary, gamma, compressed = solved.oracle
    if fleet is None:
        return Remark("oracle_saves_nothing", {"boundary": boundary, "gamma": gamma})
    saving = 1.0 - cost / solved.fleet.cost_usd_per_hour
    values = {"boundary": boundary, "gamma": gamma, "usd_per_hour": cost, "saving": saving}
    if gamma > 1.0:
        p_c = question.traffic.p_c
        sure = f"{p_c:g}" if isinstance(p_c, float) else "by category"
        return Remark("oracle_compresses", {**values, "compressed": compressed, "p_c": sure})
    return Remark("oracle_saves", values)


def _once(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    """Each remark once, by what it says."""
    return tuple({str(remark): remark for remark in remarks}.values())


def pool_plans(fleet: Fleet) -> tuple[PoolPlan, ...]:
    """The public records of a fleet's pools."""
    return tuple(pool_plan(fleet, k) for k in range(len(fleet.pools)))


def pool_plan(fleet: Fleet, k: int) -> PoolPlan:
    """The public record of one pool."""
    pool = fleet.pools[k]
    prediction, law, profile, price = pool.size.prediction, pool.law, pool.option.profile, pool.option.price
    low, high = fleet.band(k)
    mean_input, mean_output = fleet.work_tokens(k)
    return PoolPlan(
        name=pool.name,
        low_tokens=law.lower.boundary,
        high_tokens=law.upper.boundary,
        gamma=law.upper.gamma,
        share=law.share,
        compressed_share=law.compressed_share,
        arrival_rate_per_s=pool.arrival_rate_per_s,
        mean_input_tokens=mean_input,
        mean_output_tokens=mean_output,
        gpu=pool.option.gpu.name,
        tp=pool.option.tp,
        profile=profile.name,
        provenance=profile.provenance,
        replicas=pool.bought,
        spares=pool.bought - pool.size.replicas,
        slots=pool.setup.slots * pool.option.copies,
        kv_tokens=pool.setup.kv_tokens * pool.option.copies,
        capacity_per_s=pool.capacity_per_s,
        load=prediction.load,
        slot_occupancy=prediction.slot_occupancy,
        wait_probability=prediction.wait_probability,
        overflow_probability=pool.setup.overflow_probability,
        preemptions_per_1000=pool.setup.preemptions_per_1000,
        latency=tuple(_latency(fleet, pool, fleet.metrics(k))),
        binding=str(pool.size.binding),
        cost_usd_per_hour=pool.cost_usd_per_hour,
        settings=pool.setup.settings,
        replicas_low=price.bought(low),
        replicas_high=None if high is None else price.bought(high),
        warnings=tuple(pool.setup.warnings),
        reason=pool.size.binding,
        pp=pool.option.parallel.pp,
        dp=pool.option.parallel.dp,
        ep=pool.option.parallel.ep,
    )


def _latency(fleet: Fleet, pool: Pool, metrics: tuple[str, ...]) -> Iterator[LatencyValue]:
    """Predicted quantiles with the band of the method's error and the profile's."""
    prediction, band = pool.size.prediction, pool.option.profile.band
    limits = {(p.metric, p.quantile): p.limit_s for p in fleet.promises.latency}
    for metric in metrics:
        bands = prediction.bands.get(metric, same_band(prediction.quantiles, -0.1, 0.1))
        for q, value, (below, above) in zip(prediction.quantiles, getattr(prediction, metric), bands, strict=True):
            if q not in fleet.told_levels:
                continue
            low, high = value * (1.0 + below) * (1.0 - band), value * (1.0 + above) * (1.0 + band)
            yield LatencyValue(metric, q, value, low, high, limits.get((metric, q)))
    for p in fleet.promises.joint:
        if set(p.limits) <= set(metrics):
            value, (below, above) = prediction.value(p.metric, p.quantile), prediction.band(p.metric, p.quantile)
            low, high = value * (1.0 + below) * (1.0 - band), value * (1.0 + above) * (1.0 + band)
            shares = (prediction.share(p), *prediction.share_band(p, band))
            yield LatencyValue(p.metric, p.quantile, value, low, high, p.limit_s, *shares)


def _why(fleet: Fleet, k: int) -> str:
    """What fixes the size of a pool, and what one replica fewer would break."""
    pool = fleet.pools[k]
    n = pool.size.replicas
    line = f"{pool.name}: {n:,} replica{'s' if n != 1 else ''}, fixed by {pool.size.binding}."
    if n <= fleet.promises.min_replicas:
        return line
    fewer, promises = fleet.with_one_fewer(k), fleet.promises.latency
    missed = [(p, found) for found in fewer if (p := broken(found, promises)) is not None]
    if fewer[0].load >= 1.0 or math.isinf(fewer[0].ttft_s[-1]):
        return line + f" With {n - 1:,} the pool could not keep up."
    if missed:
        worst, found = max(missed, key=lambda pair: pair[1].held(pair[0].metric, pair[0].quantile) / pair[0].limit_s)
        value, held = found.value(worst.metric, worst.quantile), found.held(worst.metric, worst.quantile)
        margin = f", {worst.tell(held)} with the method's margin" if held > 1.005 * value else ""
        return line + f" With {n - 1:,}: {worst.label} {worst.tell(value)}{margin}."
    return line + f" With {n - 1:,}: load {fewer[0].load:.2f}."


def workload_summary(workload: Workload) -> dict[str, object]:
    """What the plan says about its traffic."""
    provenance = workload.provenance
    return {
        "name": workload.name,
        "digest": workload.digest,
        "source": provenance.source,
        "licence": provenance.licence,
        "requests": provenance.requests,
        "mean_input_tokens": workload.mean_input,
        "mean_output_tokens": workload.mean_output,
        "longest_tokens": workload.max_total,
        "length_split": provenance.length_split,
        "arrivals": workload.arrivals.to_dict(),
    }


def _assumptions(fleet: Fleet, feels_bursts: bool) -> Iterator[Remark]:
    """What was assumed on the user's behalf."""
    traffic, purchase = fleet.question.traffic, fleet.question.purchase
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
            },
        )
        if any(find_gpu(name).name == gpu.name for name in purchase.price):
            source = ""
        elif profile.replica_usd_per_hour is not None:
            source = f" (of profile {profile.name}; --price overrides)"
        else:
            source = f" ({gpu.sources.get('price_usd_per_hour', 'catalog')}; --price overrides)"
        yield Remark("gpu_price", {"gpu": gpu.name, "price": option.price.usd_per_gpu_hour, "source": source})
    yield from traffic.changes
    yield _arrivals_assumed(fleet, feels_bursts)
    yield from _sending_assumed(traffic)
    if purchase.availability_target is not None:
        repair = {"failures_per_hour": purchase.failures_per_hour, "repair_hours": purchase.repair_hours}
        yield Remark("failures", repair)
    if traffic.workload.provenance.length_split:
        yield Remark("length_split", {"split": traffic.workload.provenance.length_split})
    yield from fleet.assumptions()


def _arrivals_assumed(fleet: Fleet, feels_bursts: bool) -> Remark:
    """How requests are taken to arrive."""
    traffic = fleet.question.traffic
    arrivals = traffic.workload.arrivals
    if traffic.sending.paced is not None:
        return Remark("paced", {"clients": traffic.sending.paced})
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


_GROWN = {"users": "as more independent users", "use": "as more use by the same users (--growth use)"}


def _notes(fleet: Fleet) -> Iterator[Remark]:
    """Findings worth knowing, of any shape."""
    if fleet.question.traffic.own_rate and sum(p.bought for p in fleet.pools) <= FEW_REPLICAS:
        yield Remark("small_fleet", {"rate": fleet.rate})
    if not fleet.question.search.brief and (other := fleet.other_growth()) is not None:
        yield other
    for pool in fleet.pools:
        if spot := pool.option.price.spot_replicas(pool.bought):
            price = pool.option.price.spot_usd_per_gpu_hour or 0.0
            yield Remark("spot", {"pool": pool.name, "spot": spot, "replicas": pool.bought, "price": price})


def _warnings(fleet: Fleet, plans: tuple[PoolPlan, ...]) -> Iterator[Remark]:
    """What the reader must know before trusting the numbers, by pool."""
    for pool, plan in zip(fleet.pools, plans, strict=True):
        law, profile = pool.law, pool.option.profile
        if (less := _admits_less(fleet, pool)) is not None:
            yield less
        if plan.replicas_high is None:
            yield Remark("profile_band", {"pool": pool.name, "band": profile.band, "provenance": profile.provenance})
        decode = law.mean(m.DECODE)
        context = law.mean(m.KV) / decode if decode > 0.0 else 0.0
        running = max(pool.size.prediction.mean_running, 1.0)
        outside = () if fleet.linked else profile.outside(decodes=running, context_tokens=context)
        told = [*pool.setup.warnings, *pool.size.prediction.warnings, *(["; ".join(outside)] if outside else [])]
        yield from (Remark("pool", {"pool": pool.name, "warning": warning}) for warning in told)
        if not pool.size.prediction.reliable:
            yield Remark("no_promise", {"pool": pool.name})
    if not fleet.linked:
        for pool in fleet.pools:
            yield from _impossible(pool)


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
    floor = hardware_floor(option.gpu, option.model, pool.arrival_rate_per_s, new, output, kv)
    gpus, least = pool.size.replicas * option.profile.gpus, float(floor.gpus)
    if gpus < least:
        names = {"gpu": option.gpu.name, "profile": option.profile.name}
        yield Remark("below_hardware", {"gpus": gpus, "least": least, **names})


def _without_effect(question: CompiledQuestion, fleet: Fleet) -> Iterator[Remark]:
    """Options given that change nothing."""
    engines, purchase = question.engines, question.purchase
    if question.traffic.sessions is None:
        of_caches = {"--session-ttl": engines.session_ttl_s is not None, "--offload": engines.offload_gib > 0.0}
        yield from (Remark("no_sessions", {"option": option}) for option, given in of_caches.items() if given)
    own = fleet.pools[0].option
    searched = {own.gpu.name} if engines.profile is not None else {find_gpu(g).name for g in engines.gpu}
    prices: Mapping[str, Mapping[str, object]] = {
        "--price": purchase.price,
        "--spot-price": purchase.spot_price,
        "--inventory": purchase.inventory,
    }
    for option, given in prices.items():
        if idle := [name for name in given if find_gpu(name).name not in searched]:
            yield Remark("not_searched", {"option": option, "names": ", ".join(idle)})
    if engines.profile is not None:
        usual = Engines()
        for name, named, default, taken in (
            ("model", find_model(engines.model, like=engines.like).name, find_model(usual.model).name, own.model.name),
            ("gpu", [find_gpu(g).name for g in engines.gpu], [find_gpu(g).name for g in usual.gpu], [own.gpu.name]),
        ):
            if named not in (default, taken):
                taken_by = {"profile": own.profile.name, "model": own.model.name, "gpu": own.gpu.name}
                yield Remark("other_profile", {"option": name, **taken_by})
    if purchase.spot_share > 0.0 and not purchase.spot_price:
        yield Remark("spot_without_price")
    if purchase.spot_price and purchase.spot_share == 0.0:
        yield Remark("spot_without_share")
