"""What a fleet that stands is and serves: how the pages of `evaluate` and `capacity` begin, and what they rest on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from planner.fleet.fleet import Fleet
from planner.shared.record import Record


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
    traffic, gpus, trust = fleet.question.traffic, dict[str, int](), dict[str, str]()
    for pool in fleet.pools:
        name = pool.option.gpu.name
        gpus[name] = gpus.get(name, 0) + pool.gpus
        trust.setdefault(name, pool.option.profile.trust)
    population = traffic.sending.population
    return Served(
        model=fleet.pools[0].option.model.name,
        workload=traffic.workload.name,
        mean_input_tokens=traffic.workload.mean_input,
        mean_output_tokens=traffic.workload.mean_output,
        promises=tuple(p.told for p in fleet.promises.latency),
        gpus=gpus,
        cost_usd_per_hour=math.fsum(p.cost_usd_per_hour for p in fleet.pools),
        trust=trust,
        users_per_rate=None if population is None else population.users / population.asked_per_s,
    )
