"""From a question to a plan: solve, explain, write down; once for every shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from planner.errors import InfeasibleError, InputError
from planner.plans import Alternative, LatencyValue, Plan, PoolPlan, SavedPool, SearchReport, Sized, Sureness
from planner.predict.methods import find_method
from planner.promise import Slo
from planner.question.compiled import CompiledQuestion, Words, compile_question
from planner.question.options import PlanInputs
from planner.routing import find_routing
from planner.shared.remarks import Remark
from planner.shared.version import __version__
from planner.size.alone import speculation_remark
from planner.size.explain import unkept
from planner.size.fleet import Fleet, Solved
from planner.size.notes import assumptions_of, cliffs_of, notes_of, options_without_effect, warnings_of
from planner.size.pool import Pool, Shortfall, broken
from planner.size.shapes import find_shape, shape_names, standing_fleet
from planner.size.sure import sureness_of
from planner.size.unknowns import at_rest, with_types
from planner.units import format_chance, format_count, format_gpus, format_percent, format_usd
from planner.workload.resolve import is_passing
from planner.workload.workload import Workload
from planner.workload.writer import is_filed, rows_to_carry


def make_plan(
    inputs: PlanInputs,
    workload: Workload,
    in_memory: bool = False,
    standing: Sequence[SavedPool] = (),
    words: Words = "all",
) -> Plan:
    """The cheapest fleet for a workload; a plan of one that is `in_memory` carries its rows.

    With the pools of a plan that are `standing`, the numbers of their replicas alone are open. What is said of it, and without
    `words` its bands of replicas and its chance, is left out as :class:`planner.question.compiled.CompiledQuestion` has it.

    Raises
    ------
    InputError
        Something in the question cannot be.
    InfeasibleError
        No fleet of the searched grid keeps the promises.
    """
    question = compile_question(inputs, workload)
    question = replace(question, words=words)
    plan = resized(question, standing) if standing else plan_of(question)
    if in_memory and words != "none" and (is_passing(inputs.cdf) or not is_filed(workload)):
        # rows are carried as they were planned for: read back, nothing is left to change of them
        rows = rows_to_carry(question.traffic.workload)
        plain = {"osl_scale": 1.0, "drop_longer_than": None}
        plan = replace(plan, inputs={**plan.inputs, **plain}, workload={**plan.workload, "rows": rows})
    return plan


def fleet_of(question: CompiledQuestion) -> Fleet:
    """The fleet that :func:`plan_of` takes under the routing that stands, without the words of a plan.

    Raises
    ------
    InputError, InfeasibleError
        As :func:`make_plan`.
    """
    return _solved(replace(question, open_routing=False)).fleet


def may_cost_less(question: CompiledQuestion, usd_per_hour: float) -> bool:
    """Whether :func:`fleet_of` may find a fleet for less than so much, as its shape says."""
    if question.traffic.sending.population is not None or _without_host_memory(question) is not None:
        return True
    names = [question.shape] if question.shape in shape_names() else shape_names()
    typed = with_types(question)
    return any(find_shape(name).may_cost_less(typed, usd_per_hour) for name in names)


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
        raise unkept(sizes, "", "even idle, the plan's own pools need", ["search anew: without --keep"])
    fleet = fleet.sized(sizes)
    cost = fleet.cost_usd_per_hour
    report = SearchReport(1, len(sizes), cost, 0.0, "the plan's own pools")
    return assemble(question, Solved(fleet, report), "disaggregated" if fleet.linked else "colocated")


def plan_of(question: CompiledQuestion) -> Plan:
    """The cheapest fleet of the shape asked for; of all shapes, with the dearer one beside it, where that is asked for."""
    return _written(_solved(question))


def _written(found: Solved) -> Plan:
    """The plan of what a search found, with what was found beside it."""
    question = found.fleet.question
    plan = assemble(question, found, question.shape)
    others = [
        Alternative(name, (), other) if isinstance(other, str) else Alternative(name, _written(other).pools)
        for name, other in found.others.items()
    ]
    return replace(plan.saying(notes=found.beside), alternatives=tuple(others))


def _solved(question: CompiledQuestion) -> Solved:
    """What is found of the shape asked for, or of the one of all that costs least."""
    question = _of_users(with_types(question))
    names = shape_names()
    if question.shape in names:
        bare = _without_host_memory(question)
        return _of_shape(question) if bare is None else _cheaper_of(question, bare)
    found = {name: _attempted(_solved, replace(question, shape=name), (InfeasibleError, InputError)) for name in names}
    solved = {name: one for name, one in found.items() if isinstance(one, Solved)}
    if not solved:
        raise next(one for one in found.values() if not isinstance(one, Solved))
    costs = {name: one.fleet.cost_usd_per_hour for name, one in solved.items()}
    best = min(costs, key=costs.__getitem__)
    chosen, others = solved[best], dict[str, Solved | str]()
    for name, one in found.items():
        if not isinstance(one, Solved):
            others[name] = reason = str(one).splitlines()[0]
            chosen = chosen.noted(Remark("other_shape_fails", {"shape": name, "reason": reason}))
        elif name != best:
            others[name], cost = one, costs[name]
            saved = 1.0 - costs[best] / cost if cost > 0.0 else 0.0
            values = {"best": best, "best_usd_per_hour": costs[best], "shape": name, "usd_per_hour": cost}
            chosen = chosen.noted(Remark("other_shape", {**values, "saved": saved}))
    return replace(chosen, others=others)


Refused = InfeasibleError | InputError


def _attempted(
    solve: Callable[[CompiledQuestion], Solved],
    question: CompiledQuestion,
    but: tuple[type[Refused], ...] = (InfeasibleError,),
) -> Solved | Refused:
    """What is found, or why there is no fleet."""
    try:
        return solve(question)
    except but as error:
        return error


def _of_users(question: CompiledQuestion) -> CompiledQuestion:
    """The question at the rate its users come to, where it names users whose rate is not known yet."""
    known = any(remark.code == "users" for remark in question.traffic.changes)
    if question.traffic.sending.population is None or known:
        return question

    def solve(at: CompiledQuestion) -> Fleet:
        return find_shape(at.shape).solve(at).fleet

    def about(at: CompiledQuestion) -> Fleet:
        return solve(replace(at, explained=False, quick=True))

    return at_rest(question, solve, None if question.quick else about)


def _without_host_memory(question: CompiledQuestion) -> CompiledQuestion | None:
    """The question without the host memory and disk that were given for caches; ``None`` where they change nothing."""
    inputs = question.inputs
    if inputs.offload + inputs.offload_disk <= 0.0 or question.traffic.sessions is None:
        return None
    without = {"offload": 0.0, "offload_disk": 0.0}
    return replace(question, inputs=replace(inputs, offload=0.0, offload_disk=0.0), asked={**question.asked, **without})


def _of_shape(question: CompiledQuestion) -> Solved:
    """What is found of one shape, of a routing that is left open the cheapest."""
    return _cheapest_routing(question) if question.open_routing else find_shape(question.shape).solve(question)


def _cheaper_of(question: CompiledQuestion, bare: CompiledQuestion) -> Solved:
    """The fleet with host memory for what GPUs drop, or the one without where fetching prompts back takes longer than it saves."""
    without, chosen = _attempted(_of_shape, bare), _attempted(_of_shape, question)
    if not isinstance(without, Solved):
        if isinstance(chosen, Solved):
            return chosen
        raise chosen
    gib = {"gib": question.inputs.offload + question.inputs.offload_disk}
    if not isinstance(chosen, Solved):
        return without.noted(Remark("host_memory_fails", gib))
    own, bare_usd = (found.fleet.cost_usd_per_hour for found in (chosen, without))
    if bare_usd >= own * (1.0 - 1e-9):
        return chosen
    return without.noted(Remark("host_memory_loses", {**gib, "with_usd_per_hour": own, "usd_per_hour": bare_usd}))


def _cheapest_routing(question: CompiledQuestion) -> Solved:
    """What is found under the routing with which sessions cost least; the others are searched only if they hold at its size."""
    solved: dict[str, Solved] = {}
    costs: dict[str, float] = {}
    errors: list[Refused] = []
    failing: list[str] = []
    sessions = question.traffic.sessions
    for name in ("sticky", *(("prefix",) if sessions and sessions.shared else ()), "random", "least"):
        routed = replace(
            question, asked={**question.asked, "routing": name}, routing=find_routing(name), open_routing=False
        )
        fleet = solved[min(costs, key=costs.__getitem__)].fleet if solved else None
        if fleet is not None and not routed.routing.affinity and not fleet.routed(routed).holds(fleet.rate):
            failing.append(name)
            continue
        found = _attempted(_of_shape, routed)
        if isinstance(found, Solved):
            solved[name], costs[name] = found, found.fleet.cost_usd_per_hour
            continue
        errors.append(found)
        if isinstance(found, InfeasibleError) and found.idle:
            break
    if not solved:
        raise errors[0]
    best = min(costs, key=costs.__getitem__)
    others = [f"{name} costs {format_usd(cost)}/hour" for name, cost in costs.items() if name != best]
    others += [f"{name} breaks the promises at this size" for name in failing]
    told = "; ".join(others) or "no other keeps the promises"
    return solved[best].noted(Remark("routing_chosen", {"routing": best, "others": told, "costs": costs}))


def assemble(question: CompiledQuestion, solved: Solved, shape: str) -> Plan:
    """The plan of a solved question, in numbers alone where it is to be `bare`."""
    fleet, traffic = solved.fleet, question.traffic
    sure = None if question.words == "none" else sureness_of(fleet)
    plan = Plan(
        pools=pool_plans(fleet, sure),
        baseline=None if solved.baseline is None else pool_plans(solved.baseline),
        inputs=question.asked,
        workload=workload_summary(traffic.workload),
        slo=Slo(promises=question.promises.latency),
        arrival_rate_per_s=traffic.rate_per_s,
        method=question.method,
        search=solved.search,
        version=__version__,
        shape=shape,
        remarks={"assumptions": (), "warnings": (), "notes": ()},
        sureness=sure,
    )
    return plan if question.words == "none" else _in_words(plan, question, solved)


def _in_words(plan: Plan, question: CompiledQuestion, solved: Solved) -> Plan:
    """The plan with what is said of it."""
    fleet, sure, asked = solved.fleet, plan.sureness, dict(question.asked)
    if question.inputs.profile is not None:
        # a profile by name is of its own GPU and model, whatever the defaults of the others are
        option = fleet.pools[0].option
        asked |= {"gpu": [option.gpu.name], "model": option.model.name}
    method = find_method(question.method)
    explanation: list[str] = []
    notes: list[Remark | None] = [speculation_remark(question, pool) for pool in fleet.pools]
    if question.words != "page":
        explanation = [line for k in range(len(plan.pools)) for line in (explained_size(fleet, k), *fleet.tightness(k))]
        spare = fleet.headroom()
        told_spare = f"{format_count(spare * fleet.rate)} requests/s ({spare:.2f}x)"
        explanation += [*fleet.summary(), f"The fleet keeps its promises at least up to {told_spare}."]
        notes = [
            None if method.caveat is None else Remark("caveat", {"text": method.caveat}),
            *solved.notes,
            *notes_of(fleet),
            *fleet.notes(),
            None if sure is None else sure_remark(sure),
            *cliffs_of(fleet),
            solved.unproven,
        ]
    told = replace(plan, inputs=asked, explanation=tuple(explanation), caches=fleet.caches(), overload=fleet.overload())
    return told.saying(
        assumptions=_once(assumptions_of(fleet, method.feels_bursts)),
        warnings=_once([*warnings_of(fleet, plan.pools), *options_without_effect(question, fleet)]),
        notes=_once(note for note in notes if note is not None),
    )


def _once(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    """Each remark once, by what it says."""
    return tuple({str(remark): remark for remark in remarks}.values())


# --- the public records of a fleet ---------------------------------------------------------------------------------------


def pool_plans(fleet: Fleet, sure: Sureness | None = None) -> tuple[PoolPlan, ...]:
    """The public records of a fleet's pools, with the range of replicas where it is known how `sure` they are."""
    return tuple(_pool_plan(fleet, k, sure) for k in range(len(fleet.pools)))


def sure_remark(sure: Sureness) -> Remark:
    """How sure a fleet is, in words."""
    saves = [n for n in sure.narrowing if n.gpus > 0]
    told = f"; {MEASUREMENTS[saves[0].by]} would take {format_gpus(saves[0].gpus)} less" if saves else ""
    values = {"share": sure.chance, "sizes": _sizes(sure.low, sure.high), "narrow": told, "draws": sure.draws}
    return Remark("chance", values)


def _sizes(low: Sized, high: Sized) -> str:
    """The numbers of GPUs that come nearest to a chance of 10 and of 90%, with the chance they have; without one, no number does.

    >>> _sizes(Sized(0.12, (4,), 4), Sized(0.91, (1200,), 1200))
    '4 GPUs hold them with a chance of 12%, 1,200 with 91%'
    """
    if low.gpus is None:
        return f"no number of GPUs holds them with a chance of {format_chance(low.chance)}"
    told = (
        f"{format_gpus(low.gpus)} hold{'s' if low.gpus == 1 else ''} them with a chance of {format_chance(low.chance)}"
    )
    if low.gpus == high.gpus:
        return told
    return f"{told}, {'no number' if high.gpus is None else format_count(high.gpus)} with {format_chance(high.chance)}"


MEASUREMENTS = {
    "calibration": "iteration times measured on this GPU (fleetopt calibrate)",
    "trace": "a trace of more hours",
}
"""What is not known -> the measurement that would say."""


def _pool_plan(fleet: Fleet, k: int, sure: Sureness | None) -> PoolPlan:
    """The public record of one pool."""
    pool = fleet.pools[k]
    prediction, law, profile, price = pool.prediction, pool.law, pool.option.profile, pool.option.price
    low, high = (
        (pool.replicas,) * 2
        if sure is None
        else (None if s.replicas is None else s.replicas[k] for s in (sure.low, sure.high))
    )
    mean_input, mean_output = fleet.work_tokens(k)
    return PoolPlan(
        name=pool.name,
        low_tokens=law.lower.boundary,
        high_tokens=law.upper.boundary,
        gamma=law.upper.gamma,
        share=law.share,
        compressed_share=law.compressed_share,
        arrival_rate_per_s=pool.rate_per_s,
        mean_input_tokens=mean_input,
        mean_output_tokens=mean_output,
        gpu=pool.option.gpu.name,
        tp=pool.option.tp,
        profile=profile.name,
        provenance=profile.provenance,
        replicas=pool.bought,
        spares=pool.bought - pool.replicas,
        slots=pool.setup.slots * pool.option.copies,
        kv_tokens=pool.setup.kv_tokens * pool.option.copies,
        capacity_per_s=pool.capacity_per_s,
        load=prediction.load,
        slot_occupancy=prediction.slot_occupancy,
        wait_probability=prediction.wait_probability,
        overflow_probability=pool.setup.overflow_probability,
        preemptions_per_1000=pool.setup.preemptions_per_1000,
        latency=tuple(_latency(fleet, pool, fleet.metrics(k))),
        binding=str(pool.binding),
        cost_usd_per_hour=pool.cost_usd_per_hour,
        settings=pool.setup.settings,
        replicas_low=price.bought(low or 0),
        replicas_high=None if high is None else price.bought(high),
        warnings=tuple(pool.setup.warnings),
        reason=pool.binding,
        pp=pool.option.parallel.pp,
        dp=pool.option.parallel.dp,
        ep=pool.option.parallel.ep,
        iteration=profile.iteration.to_dict(),
    )


def _latency(fleet: Fleet, pool: Pool, metrics: tuple[str, ...]) -> Iterator[LatencyValue]:
    """Predicted quantiles with the band of the method's error and the profile's."""
    prediction, band, levels = pool.prediction, pool.option.profile.band, fleet.told_levels
    limits = {(p.metric, p.quantile): p.limit_s for p in fleet.promises.latency}
    wanted: list[tuple[str, float, float | None, tuple[float, ...]]] = [
        (m, q, limits.get((m, q)), ()) for m in metrics for q in prediction.quantiles if q in levels
    ]
    wanted += [
        (p.metric, p.quantile, p.limit_s, (prediction.share(p), *prediction.share_band(p, band)))
        for p in fleet.promises.joint
        if set(p.limits) <= set(metrics)
    ]
    for metric, q, limit_s, shares in wanted:
        value, (below, above) = prediction.value(metric, q), prediction.band(metric, q)
        # no answer has a second token: there is no time per token
        if shares or not math.isnan(value):
            low, high = value * (1.0 + below) * (1.0 - band), value * (1.0 + above) * (1.0 + band)
            yield LatencyValue(metric, q, value, low, high, limit_s, *shares)


def explained_size(fleet: Fleet, k: int) -> str:
    """What fixes the size of a pool, and what one replica fewer would break."""
    pool = fleet.pools[k]
    n = pool.replicas
    line = f"{pool.name}: {n:,} replica{'s' if n != 1 else ''}, fixed by {pool.binding}."
    if n <= fleet.promises.min_replicas:
        return line
    load = pool.rate_per_s / ((n - 1) * pool.model.capacity_at(n - 1))
    if pool.binding.code == "utilization_cap" and load < 1.0:
        # whatever its latencies would be
        return line + f" With {n - 1:,}: load {load:.2f}."
    slow = fleet.margins(fleet.promises.confidence)[k].slow
    longer = f", iterations {format_percent(slow - 1.0)} longer than the profile's" if slow > 1.0005 else ""
    told = f" With {n - 1:,}{longer}: "
    fewer, promises = fleet.with_one_fewer(k), fleet.promises.latency
    missed = [(p, found) for found in fewer if (p := broken(found, promises)) is not None]
    if fewer[0].load >= 1.0 or math.isinf(fewer[0].latencies["ttft_s"][-1]):
        bursts = "" if fewer[0].load >= 1.0 else " with its bursts"
        return line + told + f"the pool could not keep up{bursts}."
    if missed:
        worst, found = max(missed, key=lambda pair: pair[1].value(pair[0].metric, pair[0].quantile) / pair[0].limit_s)
        return line + told + f"{worst.label} {worst.tell(found.value(worst.metric, worst.quantile))}."
    # the size is decided by all requests, the prediction is a sample's
    why = ", where all requests break it and a sample of them does not" if pool.binding.code == "promise" else ""
    return line + told + f"load {fewer[0].load:.2f}{why}."


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
