"""What a fleet that stands is and serves: how the pages of `evaluate` and `capacity` begin, and what they rest on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planner.errors import InputError
from planner.fleet.fleet import Fleet
from planner.fleet.pool import gpus_by_type
from planner.methods.base import PoolModel, Prediction
from planner.methods.replayed import ReplayPool
from planner.promise import GOODPUT, Promise
from planner.shared.record import Record, json_number


@dataclass(frozen=True, slots=True)
class Served(Record):
    """A standing fleet and its traffic.

    Parameters
    ----------
    model, workload
        Their names.
    mean_input_tokens, mean_output_tokens
        Of a request [tokens].
    promises
        As people read them.
    gpus
        GPU type -> how many.
    cost_usd_per_hour
        Cost of the fleet [USD/hour].
    trust
        GPU type -> how far its iteration times are to be trusted.
    users_per_rate
        Users for each request per second of a closed population [s]; ``None`` of open traffic.
    """

    model: str
    workload: str
    mean_input_tokens: float
    mean_output_tokens: float
    promises: tuple[str, ...]
    gpus: Mapping[str, int]
    cost_usd_per_hour: float
    trust: Mapping[str, str]
    users_per_rate: float | None = None


def served_of(fleet: Fleet) -> Served:
    """Of a fleet with its sizes."""
    traffic, trust = fleet.question.traffic, dict[str, str]()
    for pool in fleet.pools:
        trust.setdefault(pool.option.gpu.name, pool.option.profile.trust)
    population = traffic.sending.population
    return Served(
        model=fleet.pools[0].option.model.name,
        workload=traffic.workload.name,
        mean_input_tokens=traffic.workload.mean_input,
        mean_output_tokens=traffic.workload.mean_output,
        promises=tuple(p.told for p in fleet.promises.latency),
        gpus=gpus_by_type(fleet.pools),
        cost_usd_per_hour=math.fsum(p.cost_usd_per_hour for p in fleet.pools),
        trust=trust,
        users_per_rate=None if population is None else population.users / population.asked_per_s,
    )


def latencies(promises: Iterable[Promise], found: Prediction) -> dict[str, float | None]:
    """Promise, as tables call it -> its predicted value [s], of one about several latencies the share that keeps it [1]."""
    return {
        p.column: json_number(found.share(p) if p.kind == GOODPUT else found.value(p.metric, p.quantile))
        for p in promises
    }


def refuse_linked(fleet: Fleet, what: str, limits: bool = False) -> None:
    """Refuse fleets whose pools do not keep their promises by themselves, or, where asked, whose clients have limits.

    Raises
    ------
    InputError
        It is such a fleet.
    """
    together = fleet.linked or (fleet.shared_promises and len(fleet.pools) > 1)
    limited = fleet.question.traffic.sending.in_flight < math.inf or (limits and fleet.question.clients.stated)
    if together or limited:
        more = ", doors, patience and limits in flight" if limits else " and limits in flight"
        hint = f"Plan without prefill and decode apart, promises over the whole fleet{more}."
        raise InputError(f"{what} by itself" if limits else f"{what} by themselves", hint)


def replayed(model: PoolModel, what: str) -> ReplayPool:
    """A pool that is replayed by itself.

    Raises
    ------
    InputError
        It is not.
    """
    if type(model) is not ReplayPool:
        raise InputError(
            f"{what}: knows plans of method mixed without sessions, users who wait, speculation and copies of the attention",
            "Ask about one without them: --set prefix_cache=off leaves sessions out.",
        )
    return model
