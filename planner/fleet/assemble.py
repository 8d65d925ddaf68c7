"""From a question to a plan: read, search, explain, assemble."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import planner
from planner.catalog.kv import tensor_parallel_sizes
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import model as find_model
from planner.errors import InputError
from planner.fleet.explain import explain_pool, fleet_tails, headroom, infeasible, replica_band
from planner.fleet.pool import Shortfall, smallest_pool
from planner.fleet.problem import Fleet, FleetProblem, PoolCandidate
from planner.methods.base import same_band
from planner.plans import LatencyValue, Plan, PoolPlan, SearchReport
from planner.promise import Slo
from planner.question.inputs import PlanInputs
from planner.replica.engine import engine_options
from planner.replica.floor import hardware_floor
from planner.units import format_count, format_duration, format_percent, format_usd
from planner.workload import pools as m
from planner.workload.carried import is_filed, rows_to_carry
from planner.workload.workload import Workload

__all__ = ["arrival_rate_of", "make_plan"]


def arrival_rate_of(inputs: PlanInputs, workload: Workload) -> float:
    """The option's rate, else the workload's own [1/s]."""
    rate = inputs.rate if inputs.rate is not None else workload.arrivals.rate_per_s
    if rate is None:
        raise InputError(f"{workload.name} states no arrival rate of its own", "Give one: --rate REQUESTS_PER_SECOND.")
    return rate


def make_plan(inputs: PlanInputs, workload: Workload, in_memory: bool = False) -> Plan:
    """The cheapest fleet for a workload; a plan of one that is `in_memory` carries its rows.

    Raises
    ------
    InputError
        Something in the question cannot be.
    InfeasibleError
        No fleet of the searched grid keeps the promises.
    """
    rate = arrival_rate_of(inputs, workload)
    if isinstance(inputs.cached_share, Mapping) and (unknown := set(inputs.cached_share) - set(workload.categories)):
        raise InputError(
            f"cached_share: {workload.name} has no category {', '.join(sorted(unknown))}",
            f"Categories: {', '.join(c for c in workload.categories if c) or 'none'}.",
        )
    if in_memory and not is_filed(workload):
        plan = make_plan(inputs, workload)
        return replace(plan, workload={**plan.workload, "rows": rows_to_carry(workload)})
    if inputs.shape != "colocated":
        from planner.fleet.disaggregated import plan_shapes

        return plan_shapes(inputs, workload)
    options = engine_options(inputs, workload.max_total)
    problem = FleetProblem(inputs, workload, rate, options)
    fleet = problem.solve()
    if not fleet.pools:
        raise infeasible(problem, fleet)
    return assemble(problem, fleet)


def assemble(problem: FleetProblem, fleet: Fleet) -> Plan:
    """The plan of a solved problem."""
    inputs, workload = problem.inputs, problem.workload
    question = inputs.to_dict()
    if inputs.profile is not None:
        # a profile by name is of its own GPU and model, whatever the defaults of the others are
        question |= {"gpu": [problem.options[0].gpu.name], "model": problem.options[0].model.name}
    names = pool_names(len(fleet.pools))
    explanation: list[str] = []
    warnings: list[str] = []
    pools = []
    for name, candidate in zip(names, fleet.pools, strict=True):
        low, high = replica_band(problem, candidate)
        pools.append(pool_plan(problem, candidate, name, low, high))
        explanation.extend(explain_pool(problem, candidate, name))
        if high is None:
            band = format_percent(candidate.option.profile.band)
            warnings.append(
                f"{name}: if iterations take {band} longer than the {candidate.option.profile.provenance} profile says, "
                "a promise breaks at any number of replicas; calibrate before buying (fleetopt calibrate)"
            )
        warnings.extend(f"{name}: {w}" for w in (*candidate.setup.warnings, *candidate.size.prediction.warnings))
        if outside := _outside(candidate):
            warnings.append(f"{name}: {outside}")
    explanation.extend(fleet_tails(problem, fleet.pools))
    spare = headroom(problem, fleet.pools)
    explanation.append(
        f"The fleet keeps its promises at least up to {format_count(spare * problem.rate)} requests/s ({spare:.2f}x)."
    )
    one = fleet.one_pool
    baseline = None
    if len(fleet.pools) > 1 and one is not None:
        low, high = replica_band(problem, one)
        baseline = (pool_plan(problem, one, "all", low, high),)
    warnings.extend(_floor_warnings(problem, fleet))
    warnings.extend(_without_effect(problem))
    return Plan(
        pools=tuple(pools),
        baseline=baseline,
        inputs=question,
        workload=workload_summary(workload),
        slo=Slo(promises=inputs.promises),
        arrival_rate_per_s=problem.rate,
        method=inputs.method,
        search=search_report(problem, fleet),
        assumptions=tuple(dict.fromkeys(_assumptions(problem, fleet))),
        warnings=tuple(dict.fromkeys(warnings)),
        notes=tuple(_notes(problem, fleet)),
        explanation=tuple(explanation),
        version=planner.__version__,
    )


def pool_names(count: int) -> tuple[str, ...]:
    """``all``; ``short``, ``long``; or numbered.

    >>> pool_names(2), pool_names(3)
    (('short', 'long'), ('pool 1', 'pool 2', 'pool 3'))
    """
    if count == 1:
        return ("all",)
    return ("short", "long") if count == 2 else tuple(f"pool {k + 1}" for k in range(count))


def pool_plan(problem: FleetProblem, c: PoolCandidate, name: str, low: int, high: int | None) -> PoolPlan:
    """The public record of one chosen pool."""
    prediction, law, profile = c.size.prediction, c.law, c.option.profile
    limits = {(p.metric, p.quantile): p.limit_s for p in problem.promises}
    latency = []
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        bands = prediction.bands.get(metric, same_band(prediction.quantiles, -0.1, 0.1))
        values = getattr(prediction, metric)
        for q, value, (below, above) in zip(prediction.quantiles, values, bands, strict=True):
            latency.append(
                LatencyValue(
                    metric,
                    q,
                    value,
                    value * (1.0 + below) * (1.0 - profile.band),
                    value * (1.0 + above) * (1.0 + profile.band),
                    limits.get((metric, q)),
                )
            )
    return PoolPlan(
        name=name,
        low_tokens=law.lower.boundary,
        high_tokens=law.upper.boundary,
        gamma=law.upper.gamma,
        share=law.share,
        compressed_share=law.compressed_share,
        arrival_rate_per_s=c.arrival_rate_per_s,
        mean_input_tokens=law.mean(m.INPUT),
        mean_output_tokens=law.mean(m.OUTPUT),
        gpu=c.option.gpu.name,
        tp=c.option.tp,
        profile=profile.name,
        provenance=profile.provenance,
        replicas=c.bought,
        spares=c.bought - c.size.replicas,
        slots=c.setup.slots,
        kv_tokens=c.setup.kv_tokens,
        capacity_per_s=c.model.capacity_per_s,
        load=prediction.load,
        slot_occupancy=prediction.slot_occupancy,
        wait_probability=prediction.wait_probability,
        overflow_probability=c.setup.overflow_probability,
        preemptions_per_1000=c.setup.preemptions_per_1000,
        latency=tuple(latency),
        binding=c.size.binding,
        cost_usd_per_hour=c.cost_usd_per_hour,
        settings=c.setup.settings,
        replicas_low=c.option.price.bought(low),
        replicas_high=None if high is None else c.option.price.bought(high),
        warnings=tuple(c.setup.warnings),
    )


def workload_summary(workload: Workload) -> dict[str, object]:
    """What the plan says about its traffic."""
    summary = workload.to_dict()
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
        "arrivals": summary["arrivals"],
    }


def search_report(problem: FleetProblem, fleet: Fleet) -> SearchReport:
    """What was searched and the gap that is left."""
    inputs = problem.inputs
    cost = math.fsum(p.cost_usd_per_hour for p in fleet.pools)
    boundaries = len(problem.boundary_grid())
    gammas = len(inputs.gammas) if problem.moments.compressible else 1
    kinds = f"{len(problem.options)} engine option{'s' if len(problem.options) != 1 else ''}"
    grid = f"{boundaries} boundar{'y' if boundaries == 1 else 'ies'} x {gammas} gamma{'s' if gammas != 1 else ''}"
    words = "1 pool" if inputs.pools == 1 else f"1 to {inputs.pools} pools, {grid}"
    bound = min(fleet.outcome.lower_bound, cost)
    return SearchReport(
        candidates=fleet.candidates,
        examined=problem.evaluations,
        lower_bound_usd_per_hour=cost if fleet.outcome.proven else bound,
        gap_usd_per_hour=0.0 if fleet.outcome.proven else cost - bound,
        description=f"{words}, {kinds}",
    )


def _assumptions(problem: FleetProblem, fleet: Fleet) -> list[str]:
    inputs, workload = problem.inputs, problem.workload
    lines = []
    for option in {id(p.option.profile): p.option for p in fleet.pools}.values():
        profile = option.profile
        lines.append(
            f"{option.model.name} ({option.model.weight_dtype}) on {option.gpu.name} x TP{option.tp}: "
            f"iteration times {profile.trust}"
            + (f", known only by its likeness to {option.model.like}" if option.model.like else "")
            + (f" (profile {profile.name})" if profile.provenance != "estimated" else "")
        )
        lines.append(
            f"{option.gpu.name} at ${option.price.usd_per_gpu_hour:g} per GPU and hour"
            + (
                ""
                if any(find_gpu(name).name == option.gpu.name for name in inputs.price)
                else f" (of profile {profile.name}; --price overrides)"
                if profile.replica_usd_per_hour is not None
                else f" ({option.gpu.sources.get('price_usd_per_hour', 'catalog')}; --price overrides)"
            )
        )
    if inputs.rate is None:
        lines.append(f"rate {format_count(problem.rate)} requests/s, the workload's own mean")
    arrivals = workload.arrivals
    if inputs.method == "mgc" or inputs.burst == "poisson":
        lines.append("Poisson arrivals assumed")
    elif arrivals.dispersion:
        windows = ", ".join(f"{format_count(i)} over {w:g} s" for w, i in arrivals.dispersion if w in (1.0, 10.0, 60.0))
        scaled = ""
        if inputs.rate is not None and arrivals.rate_per_s is not None:
            own = f"; the trace has {format_count(arrivals.rate_per_s)} requests/s, {format_count(problem.rate)} are taken "
            more = problem.rate > arrivals.rate_per_s
            scaled = own + ("as more independent users" if more else "as a random part of them")
        lines.append(
            f"bursts as in the trace: index of dispersion of counts {windows}{scaled} (--burst poisson ignores them)"
        )
    else:
        lines.append(arrivals.assumed or "Poisson assumed")
    if inputs.availability_target is not None:
        lines.append(
            f"a replica fails {inputs.failures_per_hour:g} times an hour and is back after {inputs.repair_hours:g} h "
            "(failures_per_hour, repair_hours in a configuration file)"
        )
    if workload.provenance.length_split:
        lines.append(f"lengths: {workload.provenance.length_split}")
    if inputs.pools > 1 and inputs.p_c is None and not problem.moments.compressible:
        lines.append(
            "compression not proposed: no category of the workload is known to be compressible (--p-c gives a share)"
        )
    if len(fleet.pools) > 1 and inputs.route_on == "total":
        lines.append(
            "routing on input + output tokens: an oracle for the output length (--route-on input is what a gateway sees)"
        )
    return lines


def _notes(problem: FleetProblem, fleet: Fleet) -> list[str]:
    notes = []
    inputs = problem.inputs
    if inputs.method == "mgc":
        notes.append(
            "method mgc is the paper's: all slots busy at all times, prefill without compute, TTFT as a sum of percentiles; "
            "its errors are in docs/accuracy.md"
        )
    if fleet.shortfalls and len(fleet.pools):
        worst = min(fleet.shortfalls, key=lambda s: s.best_s / s.promise.limit_s)
        limit = format_duration(worst.promise.limit_s)
        notes.append(
            f"{len(fleet.shortfalls)} of the pools examined keep {worst.promise.label} <= {limit} at no size "
            f"(the nearest, idle, needs {format_duration(worst.best_s)})"
        )
    if inputs.rate is None and sum(p.bought for p in fleet.pools) <= 6:
        notes.append(
            f"a fleet of this size is what the trace's own {format_count(problem.rate)} requests/s need; try --rate 1000"
        )
    for name, pool in zip(pool_names(len(fleet.pools)), fleet.pools, strict=True):
        if spot := pool.option.price.spot_replicas(pool.bought):
            price = format_usd(pool.option.price.spot_usd_per_gpu_hour or 0.0)
            notes.append(f"{name}: {spot:,} of the {pool.bought:,} replicas on spot at {price} per GPU and hour")
    if inputs.tp is None and not inputs.tp_options and inputs.profile is None and inputs.method != "mgc":
        by_latency = [p for p in fleet.pools if "one replica fewer" in p.size.binding]
        if by_latency and any(
            max(tensor_parallel_sizes(p.option.model, p.option.gpu)) > p.option.tp for p in by_latency
        ):
            notes.append(
                "a latency promise, not throughput, fixes the replicas: larger tensor-parallel groups may be cheaper (--tp all)"
            )
    if tight := _full_occupancy(problem):
        notes.append(tight)
    if smooth := _without_bursts(problem, fleet):
        notes.append(smooth)
    if not fleet.outcome.proven:
        gap = math.fsum(p.cost_usd_per_hour for p in fleet.pools) - fleet.outcome.lower_bound
        notes.append(
            f"{problem.evaluations} pool{'s' if problem.evaluations != 1 else ''} sized of a grid of "
            f"{format_count(fleet.candidates)} fleets; no other is expected to be cheaper, but proven "
            f"is only that none is cheaper by more than {format_usd(gap)}/hour (--max-evaluations 0 proves)"
        )
    return notes


def _full_occupancy(problem: FleetProblem) -> str | None:
    """Why the paper's own pools break the promise: the method times every iteration with all slots busy."""
    if problem.inputs.method != "mgc" or problem.inputs.kv != "reserved":
        return None
    from planner.methods.mgc import MgcPool

    broken = [
        (built[0].upper.boundary, built[2])
        for key, built in problem.built().items()
        if isinstance(built[2], MgcPool) and problem.is_hopeless(*key)
    ]
    if not broken:
        return None
    boundary, pool = min(broken, key=lambda b: abs(b[0] - 4096.0))
    level = max((p.quantile for p in problem.promises if p.metric == "ttft_s"), default=0.99)
    need = pool.prefill_s(level) + pool.iteration_s
    return (
        f"a pool up to {format_count(boundary)} tokens has {pool.slots} slots, its iterations take "
        f"{format_duration(pool.iteration_s)} when all are busy, and a long prompt's prefill and first token "
        f"{format_duration(need)}: eq. 8 leaves nothing below that"
    )


def _without_bursts(problem: FleetProblem, fleet: Fleet) -> str | None:
    """What the bursts of the trace cost: the same pools under Poisson arrivals, when that is fewer replicas."""
    if problem.inputs.method != "mixed" or problem.inputs.burst != "auto" or problem.fleet_promises:
        return None
    if not problem.workload.arrivals.dispersion:
        return None
    from planner.methods.mixed import MixedPool

    total = 0
    for pool in fleet.pools:
        assert isinstance(pool.model, MixedPool)
        size = smallest_pool(
            pool.model.without_bursts(),
            pool.arrival_rate_per_s,
            problem.promises,
            problem.inputs.utilization_cap,
            problem.inputs.min_replicas,
            problem.levels,
        )
        if isinstance(size, Shortfall):
            return None
        total += size.replicas
    needed = sum(p.size.replicas for p in fleet.pools)
    if total >= needed:
        return None
    return (
        f"bursts cost {needed - total:,} of the {needed:,} replicas: Poisson arrivals would need {total:,} (--burst poisson); "
        "--routing jsq shares them better"
    )


def _without_effect(problem: FleetProblem) -> list[str]:
    """Options given that change nothing."""
    inputs, lines = problem.inputs, []
    searched = {option.gpu.name for option in problem.options}
    for key in ("price", "spot_price", "inventory"):
        if idle := [name for name in getattr(inputs, key) if find_gpu(name).name not in searched]:
            option = f"--{key.replace('_', '-')}"
            lines.append(f"{option} of {', '.join(idle)} changes nothing: not among the GPU types searched (--gpu)")
    if inputs.profile is not None:
        own, usual = problem.options[0], PlanInputs(promises=inputs.promises)
        for name, given, default, taken in (
            ("model", find_model(inputs.model, like=inputs.like).name, find_model(usual.model).name, own.model.name),
            ("gpu", [find_gpu(g).name for g in inputs.gpu], [find_gpu(g).name for g in usual.gpu], [own.gpu.name]),
        ):
            if given not in (default, taken):
                lines.append(
                    f"--{name} changes nothing: profile {own.profile.name} is of {own.model.name} on {own.gpu.name}"
                )
    if inputs.spot_share > 0.0 and not inputs.spot_price:
        lines.append("--spot-share changes nothing without a spot price (--spot-price GPU=USD)")
    if inputs.spot_price and inputs.spot_share == 0.0:
        lines.append("--spot-price changes nothing without --spot-share: all replicas are on demand")
    return lines


def _floor_warnings(problem: FleetProblem, fleet: Fleet) -> list[str]:
    lines = []
    for pool in fleet.pools:
        law, option = pool.law, pool.option
        floor = hardware_floor(
            option.gpu,
            option.model,
            pool.arrival_rate_per_s,
            law.mean(m.NEW_INPUT),
            law.mean(m.OUTPUT),
            law.mean(m.KV),
        )
        gpus = pool.size.replicas * option.profile.gpus
        if gpus < floor.gpus:
            lines.append(
                f"impossible on this hardware: {gpus:,} GPUs, but the arithmetic alone takes {float(floor.gpus):,.0f} "
                f"{option.gpu.name} at 100% of peak; profile {option.profile.name} does not charge for prefill or reads"
            )
    return lines


def _outside(c: PoolCandidate) -> str:
    decode = c.law.mean(m.DECODE)
    context = c.law.mean(m.KV) / decode if decode > 0.0 else 0.0
    running = c.size.prediction.mean_running
    lines = c.option.profile.outside(decodes=max(running, 1.0), context_tokens=context)
    return "; ".join(lines)
