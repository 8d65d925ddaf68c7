"""Classes of requests with promises of their own: which of them share pools, and which get pools to themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Unpack

from planner.ask.options import OwnOptions
from planner.ask.plan import beside
from planner.errors import InfeasibleError, InputError, refuse
from planner.plans import Plan
from planner.promise import MEAN, Promise
from planner.question.compiled import rate_of, shaped
from planner.question.files import Question, load_question
from planner.question.options import WRITTEN_LIMITS, PlanInputs
from planner.shared.arguments import told_types
from planner.shared.record import Record
from planner.size.assemble import make_plan
from planner.workload.combine import mix
from planner.workload.pools import own_tokens
from planner.workload.workload import Workload

MAX_CLASSES = 5
"""Groupings are enumerated: 52 for five classes."""

BOUND = (
    "a pool shared by classes keeps each class's promise at the level 1 - (1-q) x the class's share of requests, which holds "
    "whatever the class's lengths (union bound)"
)


@dataclass(frozen=True, slots=True)
class RequestClass:
    """Requests with a rate and promises of their own.

    Parameters
    ----------
    name
        E.g. ``"paying"``.
    inputs
        The question as if the class were alone.
    workload
        Its traffic.
    rate
        Its rate [1/s].
    """

    name: str
    inputs: PlanInputs
    workload: Workload
    rate: float


@dataclass(frozen=True, slots=True)
class Grouping(Record):
    """One way to put classes on pools.

    Parameters
    ----------
    groups
        Names of the classes that share pools.
    cost_usd_per_hour
        Cost of all groups; ``None`` when one is infeasible [USD/hour].
    reason
        Why it is infeasible.
    """

    groups: tuple[tuple[str, ...], ...]
    cost_usd_per_hour: float | None
    reason: str | None = None

    written: ClassVar[tuple[str, ...]] = ("grouping=label", "cost_usd_per_hour", "reason")

    @property
    def label(self) -> str:
        """``"paying + free | batch"``."""
        return " | ".join(" + ".join(group) for group in self.groups)


@dataclass(frozen=True, slots=True)
class TieredPlan(Record):
    """The cheapest grouping of classes, a plan per group.

    Parameters
    ----------
    groups, plans
        Classes that share, and the plan that serves them.
    groupings
        Every grouping examined with its cost, cheapest first.
    assumptions
        How a shared pool is held to each class's promise.
    """

    groups: tuple[tuple[str, ...], ...]
    plans: tuple[Plan, ...]
    groupings: tuple[Grouping, ...]
    assumptions: tuple[str, ...]

    document: ClassVar[str] = "fleetopt-tiers"
    written: ClassVar[tuple[str, ...]] = ("gpus", "cost_usd_per_hour", "groups", "groupings", "assumptions")

    def __repr__(self) -> str:
        return f"<TieredPlan: {' | '.join(map(' + '.join, self.groups))}, ${self.cost_usd_per_hour:,.2f}/hour>"

    @property
    def cost_usd_per_hour(self) -> float:
        """Cost of all groups [USD/hour]."""
        return math.fsum(p.cost_usd_per_hour for p in self.plans)

    @property
    def gpus(self) -> int:
        """GPUs of all groups."""
        return sum(p.gpus for p in self.plans)

    def to_rows(self) -> list[dict[str, object]]:
        """One row per pool, the classes first."""
        return [
            {"classes": " + ".join(group), **row}
            for group, plan in zip(self.groups, self.plans, strict=True)
            for row in plan.to_rows()
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        pairs = zip(self.groups, self.plans, strict=True)
        groups = [{"classes": [*group], "plan": plan.to_dict()} for group, plan in pairs]
        return {**Record.to_dict(self), "groups": groups}


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """Every way to split `items` into groups.

    >>> len(list(partitions([0, 1, 2])))
    5
    """
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for smaller in partitions(rest):
        for k in range(len(smaller)):
            yield [*smaller[:k], [first, *smaller[k]], *smaller[k + 1 :]]
        yield [[first], *smaller]


@told_types
def plan_tiers(config: str | Path, **options: Unpack[OwnOptions]) -> TieredPlan:
    r"""Classes of requests with promises of their own, on shared or separate pools, whichever is cheapest.

    A pool shared by classes is held to each class's promise at the level :math:`1 - (1-q) s_c`, with :math:`s_c` the
    class's share of the requests: at most :math:`(1-q) s_c` of all requests beyond the limit means at most
    :math:`1-q` of the class's own, whatever its lengths. Classes are routed by length together, not by tier.

    Parameters
    ----------
    config
        A configuration file with ``classes:`` (name -> workload, rate, promises, prefix-cache share).
    **options
        Options that override the file's for every class.

    Returns
    -------
    TieredPlan

    Raises
    ------
    InputError
        Fewer than one or more than five classes, bad options (all at once), a class without a rate.
    InfeasibleError
        Some class cannot be served under its promise alone or with others.
    """
    saved = load_question(config)
    if not saved.classes:
        raise InputError(f"{config}: has no classes", "Add `classes:` with a name and options for each.")
    saved.refuse_untold(saved.options, options)
    for named in saved.classes.values():
        saved.refuse_untold(named, ())
    if not 1 <= len(saved.classes) <= MAX_CLASSES:
        raise InputError(f"{saved.source}: classes: 1 to {MAX_CLASSES}, got {len(saved.classes)}")
    members = _members({**saved.options, **options}, saved)

    @cache
    def solve(group: tuple[int, ...]) -> Plan | str:
        try:
            return make_plan(*_question([members[k] for k in group]))
        except InfeasibleError as error:
            return error.message

    found = []
    for split in partitions(range(len(members))):
        groups = [tuple(sorted(g)) for g in split]
        plans = [solve(g) for g in groups]
        names = tuple(tuple(members[k].name for k in g) for g in groups)
        bad = next((p for p in plans if isinstance(p, str)), None)
        good = [p for p in plans if isinstance(p, Plan)]
        cost = None if bad else math.fsum(p.cost_usd_per_hour for p in good)
        found.append((Grouping(names, cost, bad), good))
    # fewer groups win ties: one pool is simpler to run than two
    found.sort(key=lambda f: (math.inf if f[0].cost_usd_per_hour is None else f[0].cost_usd_per_hour, len(f[0].groups)))
    best, plans_of_best = found[0]
    if best.cost_usd_per_hour is None:
        reasons = [f"{g.label}: {g.reason}" for g, _ in found]
        raise InfeasibleError("no grouping of the classes keeps every promise", "What was tried:", reasons)
    assumed = dict.fromkeys(a for p in plans_of_best for a in p.assumptions)
    return TieredPlan(best.groups, tuple(plans_of_best), tuple(g for g, _ in found), (BOUND, *assumed))


def _members(base: Mapping[str, Any], saved: Question) -> list[RequestClass]:
    """The question and workload of every class, all problems at once."""
    problems: list[str] = []
    members = []
    for name, options in saved.classes.items():
        place = f"{saved.source}: classes.{name}."
        try:
            own = any(k in options for k in WRITTEN_LIMITS)
            common = {k: v for k, v in base.items() if not (own and k in WRITTEN_LIMITS)}
            inputs = PlanInputs.from_dict({**common, **options}, place)
            workload, _ = shaped(inputs, beside(inputs.cdf, saved.folder))
            inputs = replace(inputs, osl_scale=1.0, drop_longer_than=None)
            members.append(RequestClass(name, inputs, workload, rate_of(inputs, workload)))
        except InputError as error:
            problems.extend(error.problems or (f"{place.rstrip('.')}: {error.message}",))
    refuse(problems)
    return members


def _found_share(member: RequestClass) -> float:
    """Share of a class's prompt tokens that begin with what all of them share [1]."""
    prompts, weight = member.workload.input_tokens, member.workload.weight
    return 1.0 - float(weight @ own_tokens(prompts, member.inputs.shared_prefix)) / max(float(weight @ prompts), 1e-300)


def _question(members: Sequence[RequestClass]) -> tuple[PlanInputs, Workload]:
    """The question of a group: one workload, every class's promise at its stricter level."""
    if len(members) == 1:
        only = members[0]
        return only.inputs, only.workload
    total = math.fsum(c.rate for c in members)
    promises: dict[tuple[str, float, str], Promise] = {}
    parts, cached = [], {}
    # prefixes of several classes are found in the cache, but their memory is counted with every request
    prefixes = {c.inputs.shared_prefix for c in members}
    for c in members:
        share = c.rate / total
        names = tuple(f"{c.name}:{k}" if k else c.name for k in c.workload.categories)
        parts.append(replace(c.workload.with_rate(c.rate), name=c.name, categories=names))
        own = c.inputs.cached_share
        for old, new in zip(c.workload.categories, names, strict=True):
            cached[new] = own.get(old, 0.0) if isinstance(own, Mapping) else own
            if len(prefixes) > 1:
                cached[new] = max(cached[new], _found_share(c))
        for p in c.inputs.promises:
            if p.quantile == MEAN:
                raise InputError(
                    f"{c.name}: {p.told}: classes share pools by quantiles", "Promise a quantile: p50 or p99."
                )
            level = 1.0 - (1.0 - p.quantile) * share
            key = (p.metric, level, p.scope)
            if key not in promises or promises[key].limit_s > p.limit_s:
                promises[key] = Promise(p.metric, p.limit_s, level, p.scope)
    name = " + ".join(c.name for c in members)
    inputs = replace(
        members[0].inputs,
        cdf=name,
        rate=total,
        promises=tuple(promises.values()),
        cached_share=cached,
        shared_prefix=prefixes.pop() if len(prefixes) == 1 else 0,
        p_c=None,
    )
    return inputs, mix(parts, name=name)
