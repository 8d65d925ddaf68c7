"""From a question to a plan: solve, explain, write down; once for every shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import planner
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import model as find_model
from planner.errors import InfeasibleError, InputError
from planner.fleet.fleet import Fleet, Solved
from planner.fleet.pool import Pool, broken
from planner.fleet.shapes import find_shape, shape_names
from planner.methods import find_method
from planner.methods.base import same_band
from planner.plans import Alternative, LatencyValue, Plan, PoolPlan
from planner.question.compiled import CompiledQuestion, Engines, compile_question
from planner.question.options import PlanInputs
from planner.replica.floor import hardware_floor
from planner.units import format_count, format_duration, format_percent, format_usd
from planner.workload import pools as m
from planner.workload.carried import is_filed, rows_to_carry
from planner.workload.workload import Workload

__all__ = ["make_plan", "plan_of"]

FEW_REPLICAS = 6
"""A fleet up to this size at the trace's own rate is worth a remark."""


def make_plan(inputs: PlanInputs, workload: Workload, in_memory: bool = False) -> Plan:
    """The cheapest fleet for a workload; a plan of one that is `in_memory` carries its rows.

    Raises
    ------
    InputError
        Something in the question cannot be.
    InfeasibleError
        No fleet of the searched grid keeps the promises.
    """
    plan = plan_of(compile_question(inputs, workload))
    if in_memory and not is_filed(workload):
        plan = replace(plan, workload={**plan.workload, "rows": rows_to_carry(workload)})
    return plan


def plan_of(question: CompiledQuestion) -> Plan:
    """The cheapest fleet of the shape asked for; of all shapes, with the dearer one beside it, where that is asked for."""
    names = list(shape_names())
    shape = question.search.shape
    if shape in names:
        return assemble(question, find_shape(shape).solve(question), shape)
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
            notes.append(f"{name} does not keep the promises: {reason}")
            others.append(Alternative(name, (), reason))
        elif name != best:
            cost = plans[name].cost_usd_per_hour
            saved = 1.0 - chosen.cost_usd_per_hour / cost if cost > 0.0 else 0.0
            notes.append(
                f"{best}: {format_usd(chosen.cost_usd_per_hour)}/hour; {name} would cost {format_usd(cost)}/hour "
                f"({format_percent(saved)} saved)"
            )
            others.append(Alternative(name, plans[name].pools))
    return replace(chosen, alternatives=tuple(others), notes=(*chosen.notes, *notes))


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
    method = find_method(question.method)
    notes = [method.caveat, *solved.notes, *_notes(fleet), *fleet.notes(), solved.unproven]
    return Plan(
        pools=pools,
        baseline=None if solved.baseline is None else pool_plans(solved.baseline),
        inputs=asked,
        workload=workload_summary(traffic.workload),
        slo=question.promises.slo,
        arrival_rate_per_s=traffic.rate_per_s,
        method=question.method,
        search=solved.search,
        assumptions=tuple(dict.fromkeys(_assumptions(fleet, method.feels_bursts))),
        warnings=tuple(dict.fromkeys([*_warnings(fleet, pools), *_without_effect(question, fleet)])),
        notes=tuple(note for note in notes if note is not None),
        explanation=tuple(explanation),
        version=planner.__version__,
        shape=shape,
    )


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
        slots=pool.setup.slots,
        kv_tokens=pool.setup.kv_tokens,
        capacity_per_s=pool.model.capacity_per_s,
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
    )


def _latency(fleet: Fleet, pool: Pool, metrics: tuple[str, ...]) -> Iterator[LatencyValue]:
    """Predicted quantiles with the band of the method's error and the profile's."""
    prediction, band = pool.size.prediction, pool.option.profile.band
    limits = {(p.metric, p.quantile): p.limit_s for p in fleet.promises.latency}
    for metric in metrics:
        bands = prediction.bands.get(metric, same_band(prediction.quantiles, -0.1, 0.1))
        for q, value, (below, above) in zip(prediction.quantiles, getattr(prediction, metric), bands, strict=True):
            low, high = value * (1.0 + below) * (1.0 - band), value * (1.0 + above) * (1.0 + band)
            yield LatencyValue(metric, q, value, low, high, limits.get((metric, q)))


def _why(fleet: Fleet, k: int) -> str:
    """What fixes the size of a pool, and what one replica fewer would break."""
    pool = fleet.pools[k]
    n = pool.size.replicas
    line = f"{pool.name}: {n:,} replica{'s' if n != 1 else ''}, fixed by {pool.size.binding}."
    if n <= fleet.promises.min_replicas:
        return line
    fewer, promises = fleet.with_one_fewer(k), fleet.promises.latency
    missed = [(p, found.held(p.metric, p.quantile)) for found in fewer if (p := broken(found, promises)) is not None]
    if fewer[0].load >= 1.0 or math.isinf(fewer[0].ttft_s[-1]):
        return line + f" With {n - 1:,} the pool could not keep up."
    if missed:
        worst, value = max(missed, key=lambda pair: pair[1] / pair[0].limit_s)
        return line + f" With {n - 1:,}: {worst.label} {format_duration(value)}."
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


def _assumptions(fleet: Fleet, feels_bursts: bool) -> Iterator[str]:
    """What was assumed on the user's behalf."""
    traffic, purchase = fleet.question.traffic, fleet.question.purchase
    for option in {id(p.option.profile): p.option for p in fleet.pools}.values():
        profile = option.profile
        named = f", known only by its likeness to {option.model.like}" if option.model.like else ""
        named += f" (profile {profile.name})" if profile.provenance != "estimated" else ""
        yield (
            f"{option.model.name} ({option.model.weight_dtype}) on {option.gpu.name} x TP{option.tp}: "
            f"iteration times {profile.trust}{named}"
        )
        if any(find_gpu(name).name == option.gpu.name for name in purchase.price):
            source = ""
        elif profile.replica_usd_per_hour is not None:
            source = f" (of profile {profile.name}; --price overrides)"
        else:
            source = f" ({option.gpu.sources.get('price_usd_per_hour', 'catalog')}; --price overrides)"
        yield f"{option.gpu.name} at ${option.price.usd_per_gpu_hour:g} per GPU and hour{source}"
    if traffic.own_rate:
        yield f"rate {format_count(traffic.rate_per_s)} requests/s, the workload's own mean"
    yield _arrivals_assumed(fleet, feels_bursts)
    if purchase.availability_target is not None:
        yield (
            f"a replica fails {purchase.failures_per_hour:g} times an hour and is back after {purchase.repair_hours:g} h "
            "(failures_per_hour, repair_hours in a configuration file)"
        )
    if traffic.workload.provenance.length_split:
        yield f"lengths: {traffic.workload.provenance.length_split}"
    yield from fleet.assumptions()


def _arrivals_assumed(fleet: Fleet, feels_bursts: bool) -> str:
    """How requests are taken to arrive."""
    traffic = fleet.question.traffic
    arrivals = traffic.workload.arrivals
    if not feels_bursts or not traffic.bursts:
        return "Poisson arrivals assumed"
    if not arrivals.dispersion:
        return arrivals.assumed or "Poisson assumed"
    windows = ", ".join(f"{format_count(i)} over {w:g} s" for w, i in arrivals.dispersion if w in (1.0, 10.0, 60.0))
    scaled = ""
    if not traffic.own_rate and arrivals.rate_per_s is not None:
        more = traffic.rate_per_s > arrivals.rate_per_s
        scaled = (
            f"; the trace has {format_count(arrivals.rate_per_s)} requests/s, {format_count(traffic.rate_per_s)} are taken "
            + ("as more independent users" if more else "as a random part of them")
        )
    return f"bursts as in the trace: index of dispersion of counts {windows}{scaled} (--burst poisson ignores them)"


def _notes(fleet: Fleet) -> Iterator[str]:
    """Findings worth knowing, of any shape."""
    if fleet.question.traffic.own_rate and sum(p.bought for p in fleet.pools) <= FEW_REPLICAS:
        yield (
            f"a fleet of this size is what the trace's own {format_count(fleet.rate)} requests/s need; try --rate 1000"
        )
    for pool in fleet.pools:
        if spot := pool.option.price.spot_replicas(pool.bought):
            price = format_usd(pool.option.price.spot_usd_per_gpu_hour or 0.0)
            yield f"{pool.name}: {spot:,} of the {pool.bought:,} replicas on spot at {price} per GPU and hour"


def _warnings(fleet: Fleet, plans: tuple[PoolPlan, ...]) -> Iterator[str]:
    """What the reader must know before trusting the numbers, by pool."""
    for pool, plan in zip(fleet.pools, plans, strict=True):
        law, profile = pool.law, pool.option.profile
        if plan.replicas_high is None:
            yield (
                f"{pool.name}: if iterations take {format_percent(profile.band)} longer than the {profile.provenance} "
                "profile says, a promise breaks at any number of replicas; calibrate before buying (fleetopt calibrate)"
            )
        for warning in (*pool.setup.warnings, *pool.size.prediction.warnings):
            yield f"{pool.name}: {warning}"
        decode = law.mean(m.DECODE)
        context = law.mean(m.KV) / decode if decode > 0.0 else 0.0
        outside = profile.outside(decodes=max(pool.size.prediction.mean_running, 1.0), context_tokens=context)
        if outside and not fleet.linked:
            yield f"{pool.name}: {'; '.join(outside)}"
    if not fleet.linked:
        for pool in fleet.pools:
            yield from _impossible(pool)


def _impossible(pool: Pool) -> Iterator[str]:
    """A pool below what the arithmetic alone takes, as a profile that charges nothing for prefill allows."""
    law, option = pool.law, pool.option
    new, output, kv = law.mean(m.NEW_INPUT), law.mean(m.OUTPUT), law.mean(m.KV)
    floor = hardware_floor(option.gpu, option.model, pool.arrival_rate_per_s, new, output, kv)
    gpus = pool.size.replicas * option.profile.gpus
    if gpus < floor.gpus:
        yield (
            f"impossible on this hardware: {gpus:,} GPUs, but the arithmetic alone takes {float(floor.gpus):,.0f} "
            f"{option.gpu.name} at 100% of peak; profile {option.profile.name} does not charge for prefill or reads"
        )


def _without_effect(question: CompiledQuestion, fleet: Fleet) -> Iterator[str]:
    """Options given that change nothing."""
    engines, purchase = question.engines, question.purchase
    own = fleet.pools[0].option
    searched = {own.gpu.name} if engines.profile is not None else {find_gpu(g).name for g in engines.gpu}
    prices: Mapping[str, Mapping[str, object]] = {
        "--price": purchase.price,
        "--spot-price": purchase.spot_price,
        "--inventory": purchase.inventory,
    }
    for option, given in prices.items():
        if idle := [name for name in given if find_gpu(name).name not in searched]:
            yield f"{option} of {', '.join(idle)} changes nothing: not among the GPU types searched (--gpu)"
    if engines.profile is not None:
        usual = Engines()
        for name, named, default, taken in (
            ("model", find_model(engines.model, like=engines.like).name, find_model(usual.model).name, own.model.name),
            ("gpu", [find_gpu(g).name for g in engines.gpu], [find_gpu(g).name for g in usual.gpu], [own.gpu.name]),
        ):
            if named not in (default, taken):
                yield f"--{name} changes nothing: profile {own.profile.name} is of {own.model.name} on {own.gpu.name}"
    if purchase.spot_share > 0.0 and not purchase.spot_price:
        yield "--spot-share changes nothing without a spot price (--spot-price GPU=USD)"
    if purchase.spot_price and purchase.spot_share == 0.0:
        yield "--spot-price changes nothing without --spot-share: all replicas are on demand"
