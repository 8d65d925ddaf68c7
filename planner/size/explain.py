"""Why there is no fleet, what would help, and how promises of the whole fleet are kept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from planner.errors import InfeasibleError, InputError
from planner.promise import GOODPUT, Promise
from planner.question.compiled import CompiledQuestion
from planner.size.pool import MOST_IDLE, Pool, Shortfall, gpus_by_type, power_w
from planner.size.problem import FleetProblem, Found
from planner.size.unknowns import ANY
from planner.units import format_count, format_duration, format_percent, round_up

NOT_NEAR = 2.0
"""Promise proposed over the least possible: at 1.05 times, fleets were nine times as dear as at twice."""


TRIED, TOLD = 4, 8
"""Boundaries of which idle fleets of two pools are looked at, and below which pools are sized to say what they break."""

NEAREST = 2
"""Engines of which idle pools are looked at where promises cannot be kept."""

NEAR_GROUPS = 4
"""Groups of GPUs of which every engine is looked at idle, nearest first by one of each: an idle replica hardly tells token budgets
apart, by 3 to 16% among 73 engines of six GPU types, where groups differ by factors."""

IDLE = 1e-3
"""Load at which a replica is as good as idle [1]."""

_EXCESS = attrgetter("excess")


def check_limit(problem: FleetProblem) -> None:
    """Whether clients with a limit in flight can send the rate at all: by Little's law it takes the rate times the stay.

    Raises
    ------
    InputError
        Where even what decodes on idle replicas of the fastest engine is more than the limit.
    """
    limit, fastest = problem.question.traffic.sending.in_flight, math.inf
    if limit == math.inf:
        return
    for k in range(len(problem.options)):
        if (built := problem.build(0, len(problem.states) - 1, k)) is not None:
            rate = IDLE * built.model.capacity_at(1)
            fastest = min(fastest, built.model.look(rate, 1, problem.levels).mean_running / rate)
            if fastest * problem.rate <= limit:
                return
    if fastest < math.inf:
        raise InputError(
            f"in_flight: {limit:,.0f} requests under way are at most {limit / fastest:,.1f} requests/s, not "
            f"{problem.rate:,.10g}: even on idle replicas one is decoded for {format_duration(fastest)}",
            "Take a lower --rate, or leave in_flight out: what clients hold back is no load.",
        )


def infeasible(problem: FleetProblem, found: Found) -> InfeasibleError:
    """The error that says which promise binds, the best that is achievable, and what would help."""
    if found.beyond:
        return beyond(problem.question, found.beyond, found.proven)
    shortfalls = problem.shortfalls
    if not problem.question.explained:
        broken = dict.fromkeys(s.promise.label for s in shortfalls)
        return InfeasibleError(f"no fleet keeps {' and '.join(broken)}" if broken else "no fleet keeps the promises")
    best, idle, at_work = _nearest_fleet(problem), "even idle, the best fleet needs", False
    if shortfalls and best is not None and best.excess <= 1.0:
        # what idle replicas keep and no number at work does
        best, at_work, idle = (
            None,
            True,
            f"with {MOST_IDLE:,} times the replicas that the load takes, the best pool needs",
        )
    if not shortfalls:
        return InfeasibleError(
            "no pool can hold its longest request in memory with one slot",
            "Take more memory per replica (--tp), a shorter --max-model-len, quantized weights, or fewer --max-num-seqs.",
        )
    told = [] if best is not None else problem.told_exactly()
    # pools of several are held to less than was promised, of which nobody has heard
    worst = best or min([s for s in told if s.promise in problem.promises] or told, key=_EXCESS)
    error = unkept(worst, "", idle, list(_helps(problem, worst.promise)), at_work)
    error.idle = best is not None
    return error


def _helps(problem: FleetProblem, broken: Promise) -> Iterator[str]:
    """What would help, of what the question leaves to be had."""
    inputs, limited, asked = problem.inputs, broken.limits, problem.question.asked
    groups = ["larger groups (--tp left open)"] if inputs.tp or inputs.tp_options else []
    named = asked.get("gpu")
    faster = [] if isinstance(named, (list, tuple)) and ANY in named else ["(--gpu any)"]
    if "ttft_s" in limited:
        cache = [] if asked.get("cached_share") else ["a prefix cache (--cached-share)"]
        yield from _either("a faster prefill: ", [*groups, *(f"a faster GPU {flag}" for flag in faster), *cache])
        yield "promise long prompts less: cut the workload, or promise a lower quantile (--slo ttft:p95=...)"
    if "tpot_s" in limited:
        budget = ["a smaller --token-budget"] if inputs.token_budget else []
        yield from _either("", [*budget, *groups, *(f"memory with more bandwidth {flag}" for flag in faster)])
    if "e2e_s" in limited:
        yield from _either("", ["shorter outputs", *(f"a GPU with more memory bandwidth {flag}" for flag in faster)])
    if problem.method.free_prefill:
        slots = max((pool.setup.slots for pool in problem.built().values()), default=0)
        yield (
            f"the method: {problem.method.name} times every iteration with all {format_count(slots)} slots busy; "
            "--method mixed or occupancy uses the slots that are"
        )


def _either(what: str, ways: Sequence[str]) -> Iterator[str]:
    """One line of alternatives; none where there are none."""
    if ways:
        yield what + " or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)


def unkept(worst: Shortfall, where: str, idle: str, helps: Sequence[str], at_work: bool = False) -> InfeasibleError:
    """The error about a promise that no number of replicas keeps, or keeps with the confidence asked for; not even idle, or none
    that is `at_work`."""
    p, chance = worst.promise, math.floor(100.0 * worst.chance) / 100.0
    told = f"{where}{p.told} cannot be kept by any number of replicas: {idle} {p.tell(worst.best_s)}"
    ways = [relaxed(p, round_up(NOT_NEAR * worst.best_s))] if math.isfinite(worst.best_s) else []
    if worst.unsure:
        told = (
            f"{where}{p.told} cannot be kept with a chance of more than {format_percent(chance)} by any number of replicas "
            f"(--confidence asks for more): {idle} {p.tell(worst.best_s)} by iteration times that are not better known"
        )
        ways.append("iteration times measured on the GPU (fleetopt calibrate), which are better known")
        # what bursts take at work does not grow as iterations do: how much lower is known of idle replicas alone
        than = "below " if at_work else ""
        ways += [f"a lower confidence (--confidence {than}{format_percent(chance)})"] if chance >= 0.05 else []
    return InfeasibleError(told, "What would help:", [*ways, *helps], p, worst.best_s)


def relaxed(promise: Promise, limit_s: float) -> str:
    """The line that proposes another limit [s] of a promise."""
    looser = promise.scaled(limit_s / promise.limit_s)
    told = f"the goodput to {looser.told}" if promise.kind == GOODPUT else f"{promise.label} to {promise.tell(limit_s)}"
    return f"relax {told} or more: what is near the least possible is dear"


def beyond(question: CompiledQuestion, pools: Sequence[Pool], proven: bool = True) -> InfeasibleError:
    """The error that says how many GPUs, or how much power, the cheapest fleet without a limit takes: these pools.

    Without `proven` a longer search may find one within the inventory.
    """
    if question.inputs.max_kw is not None:
        within = f"{question.inputs.max_kw:g} kW"
        told = f"--max-kw {math.ceil(power_w(pools) / 10.0) / 100.0:g}: the cheapest fleet without a bound"
    else:
        have, takes = (
            ", ".join(f"{name}: {count:,}" for name, count in gpus.items())
            for gpus in (question.stock, gpus_by_type(pools))
        )
        within, told = f"the inventory ({have})", f"an inventory of {takes}: the cheapest fleet without one"
    lines = [told, "another GPU type beside these (--gpu)"]
    if not proven and question.inputs.max_kw is None:
        lines.append("a longer search (--set max_evaluations=500): this one stopped before every fleet was ruled out")
    rate = format_count(question.traffic.rate_per_s)
    return InfeasibleError(f"no fleet within {within} serves {rate} requests/s", "What would help:", lines)


def name_shortfalls(problem: FleetProblem) -> None:
    """Size some of the pools whose bounds say "no number of replicas", so that the promise they break is known."""
    if not problem.question.explained:
        return
    top, every = len(problem.states) - 1, range(len(problem.options))
    if math.isinf(float(problem.bounds[0, top])):
        for k in every if problem.exact_bounds else _nearest_engines(problem):
            problem.candidate(0, top, problem.whole(k))
    inner = _uncompressed(problem)
    hopeless = [s for s in inner if math.isinf(float(problem.bounds[0, s]))]
    # the engines that come nearest with everything come nearest with a part of it
    engines = every if problem.exact_bounds or not hopeless else _nearest_engines(problem)
    for s, k in itertools.product(hopeless[:: max(1, len(inner) // TOLD)], engines):
        problem.candidate(0, s, problem.whole(k))


def _uncompressed(problem: FleetProblem) -> list[int]:
    """The states between the ends at which nothing is compressed."""
    return [s for s in range(1, len(problem.states) - 1) if problem.states[s].gamma == 1.0]


def _nearest_engines(problem: FleetProblem) -> Sequence[int]:
    """Options whose idle replicas come nearest to the promises with all requests, nearest first."""
    every, top = range(len(problem.options)), len(problem.states) - 1
    groups: dict[tuple[str, str], list[int]] = {}
    for k in every:
        groups.setdefault((problem.options[k].gpu.name, str(problem.options[k].parallel)), []).append(k)

    def idle_of(engines: Iterable[int]) -> dict[int, float]:
        """By how much the idle pool of each engine that holds everything misses or keeps its promises."""
        return {k: idle.excess for k in engines if (idle := problem.idle(0, top, k)) is not None}

    # the largest token budget stands for its group
    first = idle_of(max(group, key=lambda k: problem.options[k].token_budget) for group in groups.values())
    near = [
        (problem.options[k].gpu.name, str(problem.options[k].parallel)) for k in sorted(first, key=lambda k: first[k])
    ]
    found = idle_of(k for name in near[:NEAR_GROUPS] for k in groups[name])
    # where none holds everything, the first options stand for all
    return sorted(found, key=lambda k: found[k])[:NEAREST] or every[:NEAREST]


def _nearest_fleet(problem: FleetProblem) -> Shortfall | None:
    """What breaks first in the idle fleet of one or two pools that comes nearest to its promises; ``None`` if unknown.

    A single pool may come nearer, but a fleet serves every request: the worst of its pools is what it achieves.
    """
    if problem.fleet_promises:
        return None
    top = len(problem.states) - 1

    def nearest(i: int, j: int, engines: Sequence[int]) -> Shortfall | None:
        """What the best of these engines keeps least well."""
        found = [part for k in engines if (part := problem.idle(i, j, k)) is not None]
        return min(found, key=_EXCESS, default=None)

    engines = _nearest_engines(problem)
    fleets = [nearest(0, top, engines)]
    inner = _uncompressed(problem) if problem.inputs.pools > 1 else []
    for s in inner[:: max(1, len(inner) // TRIED)]:
        parts = [nearest(0, s, engines), nearest(s, top, engines)]
        known = [part for part in parts if part is not None]
        fleets.append(max(known, key=_EXCESS) if len(known) == 2 else None)
    return min((f for f in fleets if f is not None), key=_EXCESS, default=None)


def of_fleet_wide(promise: Promise, tail: float) -> str:
    """How a promise of the whole fleet is kept: the share of all requests beyond its limit."""
    each = [f"{format_duration(limit)} {name.removesuffix('_s').upper()}" for name, limit in promise.limits.items()]
    return (
        f"{format_percent(tail)} of all requests exceed {' or '.join(each)} "
        f"(promised: at most {format_percent(1.0 - promise.quantile)})."
    )
