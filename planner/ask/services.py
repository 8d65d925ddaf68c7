"""Several services over one stock of GPUs: which fleet each takes, what they share, who is not served where it does not suffice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Unpack

import numpy as np

from planner.ask.options import OwnOptions
from planner.ask.split import Need, bought, counted, split
from planner.catalog.load import gpu as find_gpu
from planner.errors import InfeasibleError, InputError, refuse
from planner.plans import HOURS_PER_YEAR, Plan
from planner.question.compiled import compile_question, population_of, rate_of_hours, stated_rate
from planner.question.files import Question, question_of, saved_pools
from planner.question.options import PlanInputs
from planner.question.services import ServiceAsked, ServicesAsked, read_services
from planner.shared.arguments import told_types
from planner.shared.kept import keeping
from planner.shared.notebook import InNotebooks
from planner.shared.record import Record
from planner.size.assemble import make_plan
from planner.size.shapes import standing_fleet
from planner.size.unknowns import ANY
from planner.units import LEAST_RATE, format_usd
from planner.workload.hours import HourlyRates, hourly_rates
from planner.workload.workload import Workload

LEVELS = 8
"""Rates at which a service's hours are sized: every hour is taken for the next of them, from its least to its busiest."""


@dataclass(frozen=True, slots=True)
class ServicePlan(Record):
    """One service in a purchase.

    Parameters
    ----------
    name, priority
        As in the file.
    plan
        Its fleet at its busiest hour, without the spares that are shared; ``None`` = it is not served.
    gpus_by_hour
        GPU -> GPUs that serve or start in every hour; one value where it is the same all day.
    cost_usd_per_hour
        Its part of the purchase: of the cost of each GPU type as of what all would take alone [USD/hour].
    alone_usd_per_hour
        Cost of its fleet where nothing is shared [USD/hour].
    reason
        Why it is not served.
    short_gpus, short_usd_per_hour
        What the stock lacks of the fleet that lacks least beside those served, and what the budget lacks [USD/hour].
    """

    name: str
    priority: int
    plan: Plan | None
    gpus_by_hour: Mapping[str, tuple[int, ...]]
    cost_usd_per_hour: float
    alone_usd_per_hour: float
    reason: str | None = None
    short_gpus: Mapping[str, int] | None = None
    short_usd_per_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class SharedGpus(Record):
    """GPUs of one type that the services share.

    Parameters
    ----------
    gpu
        The type.
    usd_per_gpu_hour
        Its price [USD/hour].
    have
        How many there are; ``None`` = as many as wanted.
    apart
        GPUs where nothing is shared: the sum of the services' own peaks and spares.
    by_hour
        GPUs that serve or start in every hour, of all services.
    spares
        GPUs that stand by for whichever service needs them.
    """

    gpu: str
    usd_per_gpu_hour: float
    have: int | None
    apart: int
    by_hour: tuple[int, ...]
    spares: int

    written: ClassVar[tuple[str, ...]] = (
        "gpu", "usd_per_gpu_hour", "have", "apart", "gpus", "spares", "busiest_hour", "cost_usd_per_hour", "by_hour",
    )  # fmt: skip

    @property
    def gpus(self) -> int:
        """GPUs bought: the peak of the sum, and the spares."""
        return max(self.by_hour) + self.spares

    @property
    def busiest_hour(self) -> int | None:
        """The hour of that peak; ``None`` where all are alike."""
        return None if min(self.by_hour) == max(self.by_hour) else self.by_hour.index(max(self.by_hour))

    @property
    def cost_usd_per_hour(self) -> float:
        """Cost of those bought [USD/hour]."""
        return self.usd_per_gpu_hour * self.gpus


@dataclass(frozen=True, slots=True)
class ServicesPlan(InNotebooks):
    """Services planned over one purchase.

    Parameters
    ----------
    services
        In the order of the file.
    shared
        What is bought, by GPU type.
    budget_usd_per_hour
        The most that all may cost [USD/hour].
    assumptions
        What sharing takes for granted.
    """

    services: tuple[ServicePlan, ...]
    shared: tuple[SharedGpus, ...]
    budget_usd_per_hour: float | None
    assumptions: tuple[str, ...]

    document: ClassVar[str] = "fleetopt-services"
    written: ClassVar[tuple[str, ...]] = (
        "gpus", "cost_usd_per_hour", "cost_usd_per_year", "apart_usd_per_hour", "saving", "budget_usd_per_hour", "unserved",
        "shared", "services", "assumptions",
    )  # fmt: skip

    def __repr__(self) -> str:
        return f"<ServicesPlan: {len(self.services)} services, {self.gpus} GPUs, ${self.cost_usd_per_hour:,.2f}/hour>"

    @property
    def gpus(self) -> int:
        """GPUs bought."""
        return sum(s.gpus for s in self.shared)

    @property
    def cost_usd_per_hour(self) -> float:
        """Cost of the purchase [USD/hour]."""
        return math.fsum(s.cost_usd_per_hour for s in self.shared)

    @property
    def cost_usd_per_year(self) -> float:
        """Cost of the purchase, 8,760 hours [USD/year]."""
        return HOURS_PER_YEAR * self.cost_usd_per_hour

    @property
    def apart_usd_per_hour(self) -> float:
        """Cost of the same fleets where nothing is shared [USD/hour]."""
        return math.fsum(s.alone_usd_per_hour for s in self.services)

    @property
    def saving(self) -> float:
        """Share of that cost saved by sharing, in [0, 1)."""
        apart = self.apart_usd_per_hour
        return 1.0 - self.cost_usd_per_hour / apart if apart else 0.0

    @property
    def unserved(self) -> tuple[str, ...]:
        """Names of the services that are not served, the first by priority first."""
        return tuple(s.name for s in sorted(self.services, key=lambda s: s.priority) if s.plan is None)

    def to_rows(self) -> list[dict[str, object]]:
        """One row per pool, the service first; one of a service that is not served."""
        rows: list[dict[str, object]] = []
        for s in self.services:
            first = {"service": s.name, "priority": s.priority, "served": s.plan is not None}
            rows += [{**first, **row} for row in s.plan.to_rows()] if s.plan else [{**first, "reason": s.reason}]
        return rows


class _Service:
    """A service while it is planned: its traffic, its hours, and the fleets it may take."""

    def __init__(self, asked: ServiceAsked, file: ServicesAsked) -> None:
        place = Question({}, {}, {}, (), file.source, file.folder)
        self.asked, self.workload = asked, place.traffic(asked.inputs.cdf)
        types = tuple(name if name == ANY else find_gpu(name).name for name in asked.inputs.gpu)
        self.inputs = replace(asked.inputs, gpu=types)
        self.rates: HourlyRates | None = None
        if asked.hours is not None or self.workload.arrivals.hourly_profile:
            self._over(hourly_rates(asked.hours, self.workload, file.folder))
        # what cannot be is told before anything is searched
        compile_question(self.inputs, self.workload)
        self.plans: list[Plan] = []
        self.needs: list[Need] = []
        self.failed: InfeasibleError | InputError | None = None

    def _over(self, hours: HourlyRates) -> None:
        """Plan for the busiest of some hours."""
        inputs = self.inputs
        if population_of(inputs) is not None:
            if self.asked.hours is not None:
                raise InputError("hours: users ask at no rate of their own", "Give the service a rate.")
            return
        own = hours.mean_rate_per_s is not None and inputs.rate is None
        mean = self.asked.hours is not None and inputs.rate_is is None
        over = "mean" if own or mean else rate_of_hours(inputs, self.workload)
        rate = hours.mean_rate_per_s if own and hours.mean_rate_per_s else stated_rate(inputs, self.workload)
        rates = [r * (1.0 + inputs.headroom) for r in hours.rates_per_s(rate, over)]
        self.inputs = replace(inputs, rate=max(rates), throughput=None, rate_is=None, headroom=0.0)
        levels = np.linspace(min(rates), max(rates), LEVELS)
        at = np.minimum(np.searchsorted(levels, np.array(rates) * (1.0 - 1e-9)), LEVELS - 1)
        self.rates = HourlyRates(tuple(levels[at].tolist()), None, hours.source)

    @property
    def several(self) -> bool:
        """Whether it may take one of several GPU types."""
        return len(self.inputs.gpu) > 1 or ANY in self.inputs.gpu

    def alone(self, stock: Mapping[str, int]) -> None:
        """Find its fleet as it is planned alone: of several GPU types within a stock, so that the fleet may mix them."""
        self.search([replace(self.inputs, inventory=stock) if self.several else self.inputs])
        if not self.plans and not self.several and isinstance(self.failed, InputError):
            raise self.failed

    def others(self) -> None:
        """Find its fleet on each of several GPU types."""
        if self.several:
            self.search([replace(self.inputs, gpu=(gpu,)) for gpu in self.inputs.gpu if gpu != ANY])

    def search(self, questions: Sequence[PlanInputs]) -> None:
        """Add the fleets that answer questions, each once."""
        for inputs in questions:
            try:
                plan = make_plan(inputs, self.workload, words="none")
            except (InfeasibleError, InputError) as error:
                self.failed = error
                continue
            if saved_pools(plan) not in map(saved_pools, self.plans):
                self.plans.append(plan)

    def over_hours(self, hours: int) -> list[Need]:
        """The needs of its fleets over the hours of a day or a week, or at its rate where that is one hour."""
        for plan in self.plans[len(self.needs) :]:
            need = _need(plan, self.workload, self.rates if hours > 1 else None)
            tiled = {gpu: tuple(each) * (hours // len(each)) for gpu, each in need.gpus.items()}
            self.needs.append(replace(need, gpus=tiled))
        return self.needs

    def whole(self, k: int) -> Plan:
        """The plan of a fleet found, with its words and without the spares that are shared."""
        inputs = _asked(self.plans[k])
        alone = replace(inputs, inventory={}, redundancy=inputs.redundancy - _spares(inputs))
        return make_plan(alone, self.workload, standing=saved_pools(self.plans[k]))


def _asked(plan: Plan) -> PlanInputs:
    """The question of a plan about the GPU types that it took."""
    return replace(question_of(plan).inputs(), gpu=tuple(dict.fromkeys(p.gpu for p in plan.pools)))


def _spares(inputs: PlanInputs) -> int:
    """Spare replicas of a pool that may be shared: a target of availability is of one pool's own number."""
    return inputs.redundancy if inputs.availability_target is None else 0


def _need(plan: Plan, workload: Workload, rates: HourlyRates | None) -> Need:
    """What a fleet takes, at its rate or by the hour."""
    inputs = _asked(plan)
    k = _spares(inputs)
    gpus: dict[str, np.ndarray] = {}
    for pool, serving in zip(plan.pools, _serving(plan, inputs, workload, rates), strict=True):
        held = serving + (pool.spares - k)
        # what starts for the next hour is there before it begins
        row = np.maximum(held, np.roll(held, -1)) * pool.parallel.gpus
        gpus[pool.gpu] = gpus.get(pool.gpu, 0) + row
    spares = [(p.gpu, k * p.parallel.gpus) for p in plan.pools]
    return Need(
        {gpu: tuple(row.tolist()) for gpu, row in gpus.items()},
        {gpu: max(n for g, n in spares if g == gpu) for gpu in gpus},
        {gpu: sum(n for g, n in spares if g == gpu) for gpu in gpus},
    )


def _serving(plan: Plan, inputs: PlanInputs, workload: Workload, rates: HourlyRates | None) -> list[np.ndarray]:
    """Replicas of each pool that serve in every hour: in the busiest as planned, in others as many in proportion as a sample of the
    requests says."""
    peak = [p.replicas - p.spares for p in plan.pools]
    if rates is None:
        return [np.array([n]) for n in peak]
    fleet = standing_fleet(compile_question(inputs, workload), saved_pools(plan))
    margins = fleet.margins(fleet.promises.confidence)
    about: dict[float, list[int]] = {}
    for rate in sorted({*rates.relative}, reverse=True):
        sizes = fleet.sizes_for(rate, margins, peak, quick=True) if rate >= LEAST_RATE else None
        known = sizes if isinstance(sizes, list) else ()
        about[rate] = [s.replicas for s in known] or (
            [fleet.promises.min_replicas] * len(peak) if sizes is None else peak
        )
    top = about[max(about)]
    return [np.array([min(n, -(-about[rate][k] * n // top[k])) for rate in rates.relative]) for k, n in enumerate(peak)]


@told_types
@keeping()
def plan_services(
    config: str | Path, *, progress: Callable[[int, int], None] | None = None, **options: Unpack[OwnOptions]
) -> ServicesPlan:
    """Several services planned together over one stock of GPUs or one budget: what to buy, and what each costs.

    Parameters
    ----------
    config
        A file with ``services:`` (name -> model, traffic, promises, ``priority``, ``hours``, any other option of a plan); beside
        it ``inventory``, ``price``, ``budget`` [USD/hour] and options of all of them.
    progress
        Told (done, all) after every search.
    **options
        Options that override the file's for every service.

    Returns
    -------
    ServicesPlan
        Where stock or budget do not suffice, services are served by priority, the lowest number first.

    Raises
    ------
    InputError
        Something in the file cannot be; all problems at once.
    """
    file = read_services(config, options)
    tell = progress or (lambda done, total: None)
    services = _each(file, [*file.services], lambda asked: _Service(asked, file))
    for k, service in enumerate(services):
        _each(file, [service.asked], lambda _, s=service: s.alone(file.stock))  # type: ignore[misc]
        tell(k + 1, 2 * len(services))
    hourly = [len(s.rates.relative) for s in services if s.rates is not None]
    hours = max(hourly) if len(hourly) > 1 else 1
    taken, price = _split(services, file, hours)
    if None in taken or hours > 1 or sum(_spares(s.inputs) > 0 for s in services) > 1:
        # a fleet that is dearer alone may share more, or leave others room
        for service in services:
            service.others()
        taken, price = _split(services, file, hours)
        if _widened(services, taken, file.stock):
            taken, price = _split(services, file, hours)
    needs = [s.needs[k] for s, k in zip(services, taken, strict=True) if k is not None]
    shared = tuple(
        SharedGpus(gpu, price[gpu], file.stock.get(gpu), sum(need.alone(gpu) for need in needs), *row)
        for gpu, row in sorted(bought(needs).items())
    )
    rows = []
    for at, (service, choice) in enumerate(zip(services, taken, strict=True)):
        rows.append(_unserved(service, needs, price, file) if choice is None else _served(service, choice, shared))
        tell(len(services) + at + 1, 2 * len(services))
    return ServicesPlan(tuple(rows), shared, file.budget_usd_per_hour, tuple(_assumptions(services)))


def _each(
    file: ServicesAsked, asked: Sequence[ServiceAsked], make: Callable[[ServiceAsked], _Service]
) -> list[_Service]:
    """What is made of every service; all problems at once, with its place."""
    problems: list[str] = []
    found = []
    for one in asked:
        try:
            found.append(make(one))
        except InputError as error:
            lines = error.problems or (error.message,)
            problems += [f"{file.source}: services.{one.name}: {line}" for line in lines]
    refuse(problems)
    return found


def _split(services: Sequence[_Service], file: ServicesAsked, hours: int) -> tuple[list[int | None], dict[str, float]]:
    """The split of what was found so far, and the price of each GPU type."""
    price = {p.gpu: p.cost_usd_per_hour / p.gpus for s in services for plan in s.plans for p in plan.pools}
    priorities = [s.asked.priority for s in services]
    needs = [s.over_hours(hours) for s in services]
    return split(needs, priorities, price, file.stock, file.budget_usd_per_hour), price


def _widened(services: Sequence[_Service], taken: Sequence[int | None], stock: Mapping[str, int]) -> bool:
    """Whether services that found no room have fleets of several types in what the others leave."""
    left = dict(stock)
    for gpu, n in counted([s.needs[k] for s, k in zip(services, taken, strict=True) if k is not None]).items():
        left[gpu] = left.get(gpu, 0) - n
    there = {gpu: n for gpu, n in left.items() if n > 0 and gpu in stock}
    before = sum(len(s.plans) for s in services)
    for service, k in zip(services, taken, strict=True):
        types = tuple(gpu for gpu in service.inputs.gpu if gpu not in stock or gpu in there)
        if k is None and service.plans and len(service.inputs.gpu) > 1 and types:
            held = {gpu: n for gpu, n in there.items() if gpu in types}
            service.search([replace(service.inputs, gpu=types, inventory=held)])
    return sum(len(s.plans) for s in services) > before


def _served(service: _Service, k: int, shared: Sequence[SharedGpus]) -> ServicePlan:
    """The row of a service that is served, with its part of each type's cost."""
    need = service.needs[k]
    own = [s for s in shared if s.gpu in need.gpus]
    part = math.fsum(s.cost_usd_per_hour * need.alone(s.gpu) / s.apart for s in own)
    alone = math.fsum(s.usd_per_gpu_hour * need.alone(s.gpu) for s in own)
    by_hour = {gpu: tuple(hours) for gpu, hours in need.gpus.items()}
    return ServicePlan(service.asked.name, service.asked.priority, service.whole(k), by_hour, part, alone)


def _unserved(service: _Service, needs: list[Need], price: Mapping[str, float], file: ServicesAsked) -> ServicePlan:
    """The row of a service that is not served, by how much it is short."""
    asked = service.asked
    if not service.needs:
        return ServicePlan(asked.name, asked.priority, None, {}, 0.0, 0.0, str(service.failed).split("\n")[0])
    lacks = []
    for need in service.needs:
        total = counted([*needs, need])
        short = {gpu: n - file.stock[gpu] for gpu, n in total.items() if gpu in file.stock and n > file.stock[gpu]}
        over = math.fsum(price[gpu] * n for gpu, n in total.items()) - (file.budget_usd_per_hour or math.inf)
        lacks.append((math.fsum(price[gpu] * n for gpu, n in short.items()) + max(over, 0.0), short, max(over, 0.0)))
    _, short, over = min(lacks, key=lambda row: row[0])
    parts = [f"{n:,} {gpu} short of the stock of {file.stock[gpu]:,}" for gpu, n in short.items()]
    if file.budget_usd_per_hour is not None and over > 0.0:
        parts.append(f"{format_usd(over)}/hour short of the budget of {format_usd(file.budget_usd_per_hour)}")
    return ServicePlan(asked.name, asked.priority, None, {}, 0.0, 0.0, " and ".join(parts), short, over)


def _assumptions(services: Sequence[_Service]) -> Iterator[str]:
    """What sharing takes for granted."""
    yield (
        "GPUs of one type are alike and on nodes of one kind; a service's part of a type's cost is its part of what all would "
        "take alone"
    )
    if any(_spares(s.inputs) for s in services):
        yield (
            "spares stand by for one pool at a time: N + k of the largest, per GPU type; one that is called loads the model of "
            "the pool that lost a replica, which takes its start-up time"
        )
    if sum(s.rates is not None for s in services) > 1:
        yield (
            f"hours of all services are by one clock; each is taken for the next of {LEVELS} rates between its least and its "
            "busiest, sized by a sample of the requests; a GPU counts for the service it starts for through the hour before"
        )
