"""A fleet that stands: what it is and serves, how the pages about it begin, and the result of putting it under load."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Unpack

from planner.ask.asked import refuse_bought, standing_of
from planner.ask.options import OwnOptions
from planner.errors import InputError
from planner.plans import Plan
from planner.predict.contract import PoolModel, Prediction
from planner.predict.replayed import ReplayPool
from planner.promise import GOODPUT, Promise
from planner.question.compiled import compile_question, population_of, rate_of
from planner.shared.arguments import told_types
from planner.shared.notebook import InNotebooks
from planner.shared.record import Record, json_number
from planner.size.fleet import Fleet, Verdict
from planner.size.pool import gpus_by_type
from planner.size.shapes import standing_fleet
from planner.size.sure import chance_at
from planner.units import RATE_RULE, is_rate
from planner.workload.importing import Frame, load_workload
from planner.workload.workload import Workload


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


@dataclass(frozen=True, slots=True)
class Evaluation(InNotebooks):
    """A fixed fleet at one or more rates.

    Parameters
    ----------
    inputs
        The question, in the options' own names.
    capacity_per_s
        Largest stable rate of the fleet [1/s].
    rates_per_s
        Rates tried [1/s].
    verdicts
        For each rate, every pool.
    levels
        Quantile levels told of.
    served
        The fleet and its traffic.
    chances
        For each rate, the chance that every promise is kept [1]; ``None`` where the errors of iteration times are not known.
    """

    inputs: Mapping[str, object]
    capacity_per_s: float
    rates_per_s: tuple[float, ...]
    verdicts: tuple[tuple[Verdict, ...], ...]
    levels: tuple[float, ...]
    served: Served
    chances: tuple[float | None, ...]

    document: ClassVar[str] = "fleetopt-evaluation"
    written: ClassVar[tuple[str, ...]] = ("inputs", "served", "capacity_per_s", "holds", "chances", "rows=to_rows")

    def __repr__(self) -> str:
        rates = ", ".join(f"{r:g}" for r in self.rates_per_s)
        return f"<Evaluation: {rates} requests/s, {'every promise holds' if self.holds else 'some promise is broken'}>"

    @property
    def holds(self) -> bool:
        """Whether every promise holds at every rate."""
        return all(not v.broken for row in self.verdicts for v in row)

    def to_rows(self) -> list[dict[str, object]]:
        """One row per rate and pool."""
        rows = []
        for fleet_rate, row in zip(self.rates_per_s, self.verdicts, strict=True):
            for v in row:
                p = v.prediction
                out: dict[str, object] = {
                    "rate_per_s": fleet_rate,
                    "pool": v.pool,
                    "pool_rate_per_s": v.rate_per_s,
                    "load": p.load,
                    "slot_occupancy": p.slot_occupancy,
                    "running": json_number(p.mean_running),
                }
                for metric, values in p.latencies.items():
                    for q, value in zip(p.quantiles, values, strict=True):
                        if q in self.levels:
                            out[f"{metric.removesuffix('_s')}_p{100 * q:.10g}_s"] = json_number(float(value))
                for promise, share in v.shares:
                    out[promise.column] = json_number(share)
                if v.overload is not None:
                    out |= {k: json_number(x) for k, x in v.overload.items() if k != "demand_per_s"}
                out["holds"] = not v.broken
                out["broken"] = "; ".join(b.label for b in v.broken) or None
                rows.append(out)
        return rows


@told_types
def evaluate(
    fleet: Plan | str | Path,
    arrival_rate_per_s: float | Sequence[float] | None = None,
    *,
    workload: Workload | Frame | str | Path | None = None,
    **changes: Unpack[OwnOptions],
) -> Evaluation:
    """A fixed fleet under another load: latencies, and which promises still hold.

    Parameters
    ----------
    fleet
        A plan, or a file that holds one.
    arrival_rate_per_s
        Rates to try [1/s]; default that of `workload` where it is given and states one, else the plan's own.
    workload
        Other traffic than the plan's.
    **changes
        Options to change, e.g. ``cached_share=0.6``, ``burst="poisson"``, ``ttft=1.0``.

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> import planner as fo
    >>> p = fo.plan("azure", slo=2.0, rate=100, method="occupancy", pools=1)
    >>> [row["holds"] for row in fo.evaluate(p, [50, 10_000]).to_rows()]
    [True, False]
    """
    saved = standing_of(fleet)
    question = saved.inputs(told=changes)
    refuse_bought(changes)
    inputs = question.override(changes) if changes else question
    loaded = saved.traffic(inputs.cdf) if workload is None else load_workload(workload)
    rates = [arrival_rate_per_s] if isinstance(arrival_rate_per_s, (int, float)) else arrival_rate_per_s
    if rates is None:
        new = workload is not None and loaded.arrivals.rate_per_s is not None
        own = replace(inputs, rate=None) if new and "rate" not in changes else inputs
        # how often users ask hangs on the fleet that stands
        waits = population_of(own) is not None
        rates = [standing_fleet(compile_question(own, loaded), saved.pools).rate if waits else rate_of(own, loaded)]
    rates = [*map(float, rates)]
    if not rates:
        raise InputError("rate: give one at least, or none for the plan's own")
    if bad := [r for r in rates if not is_rate(r)]:
        raise InputError(f"rate: {RATE_RULE}, got {bad[0]!r}")
    return evaluation_of(standing_fleet(compile_question(inputs, loaded, rates[0]), saved.pools), rates)


def evaluation_of(fleet: Fleet, rates: Sequence[float]) -> Evaluation:
    """Evaluate a standing fleet at every rate [1/s]."""
    verdicts = tuple(tuple(fleet.at(rate)) for rate in rates)
    capacity = fleet.capacity_per_s if fleet.pools else math.inf
    chances = tuple(chance_at(fleet, rate) for rate in rates)
    return Evaluation(
        fleet.question.asked, capacity, tuple(rates), verdicts, fleet.told_levels, served_of(fleet), chances
    )
