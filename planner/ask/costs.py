"""A fleet's costs as finance sees them: how to pay for its hours, what a token costs, an API's price beside it, energy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from planner.ask.asked import saved_of
from planner.ask.growth import MOST_MONTHS
from planner.ask.hourly import Elasticity, Hourly
from planner.ask.peaks import Peak, peaks_of, risks
from planner.ask.schedule import Schedule, ScheduledPool, make_schedule
from planner.catalog.load import PowerCurve, normalized, power_curve, price_offers
from planner.catalog.load import gpu as find_gpu
from planner.catalog.price_files import ApiPrice, read_api_prices
from planner.catalog.prices import reference_offer
from planner.errors import InputError, refuse
from planner.plans import HOURS_PER_YEAR, Plan
from planner.predict.price import replicas_for_availability
from planner.predict.records import Floats
from planner.question.compiled import rate_of_hours
from planner.shared.arguments import told_types
from planner.shared.notebook import InNotebooks
from planner.shared.record import Record
from planner.size.fleet import Fleet
from planner.size.pool import Pool, pool_model, traffic_of
from planner.units import HOUR_S, parse_duration, parse_fraction, parse_number
from planner.workload.hours import hourly_rates
from planner.workload.pools import features

STEP = 0.05
"""Relative change of lengths by which the share of a request's time is told apart [1]."""


MOST_OF_ENERGY = 1e9
"""Largest PUE, price [USD/kWh] and carbon intensity [g/kWh] that are taken for what they say."""


@dataclass(frozen=True, slots=True)
class Spot:
    """How much may run on capacity that can be taken away.

    Parameters
    ----------
    share
        Largest share of every hour's GPUs [1].
    preemptions_per_hour
        Of one replica [1/h].
    shortfall
        Largest probability that fewer replicas than bought for are up; the reserve is made for it.
    """

    share: float = 0.0
    preemptions_per_hour: float = 0.05
    shortfall: float = 0.01

    def __post_init__(self) -> None:
        wrong = {
            f"spot_share: must lie in 0 to 1, got {self.share:.10g}": 0.0 <= self.share <= 1.0,
            f"preemptions_per_hour: must not be negative, got {self.preemptions_per_hour:.10g}": (
                0.0 <= self.preemptions_per_hour < math.inf
            ),
            f"shortfall: must lie between 0 and 1, got {self.shortfall:.10g}": 0.0 < self.shortfall < 1.0,
        }
        refuse([line for line, right in wrong.items() if not right])


@dataclass(frozen=True, slots=True)
class Commitment(Record):
    """Reserving GPUs of one type for a term.

    Parameters
    ----------
    gpu, term
        Type; length of the term: ``1y``, ``6m``.
    usd_per_gpu_hour, on_demand_usd_per_gpu_hour
        Prices [USD/hour].
    break_even_utilization
        Share of the hours a GPU must be wanted so that reserving it pays [1].
    break_even_months
        Months of use on demand that cost as much as the whole term.
    reserved_gpus
        How many of this fleet's to reserve.
    committed_usd
        What that commits to over the term [USD].
    saving_usd_per_hour
        Against on demand over the same hours [USD/hour].
    source
        Where the price is from.
    """

    gpu: str
    term: str
    usd_per_gpu_hour: float
    on_demand_usd_per_gpu_hour: float
    break_even_utilization: float
    break_even_months: float
    reserved_gpus: int
    committed_usd: float
    saving_usd_per_hour: float
    source: str


@dataclass(frozen=True, slots=True)
class WayToPay(Record):
    """One way to pay for the fleet's hours.

    Parameters
    ----------
    name
        Which.
    reserved_gpus, on_demand_gpus, spot_gpus
        Paid on average over the hours.
    cost_usd_per_hour
        Mean over the hours [USD/hour].
    """

    name: str
    reserved_gpus: float
    on_demand_gpus: float
    spot_gpus: float
    cost_usd_per_hour: float


@dataclass(frozen=True, slots=True)
class TokenPrices(Record):
    """What a million tokens costs, by the time each kind takes of the GPUs.

    Parameters
    ----------
    usd_per_mtok
        Input and output together [USD per million tokens].
    input_usd_per_mtok, output_usd_per_mtok
        Of each kind [USD per million tokens]; with the tokens they add up to the cost.
    input_share
        Share of the cost that inputs cause [1].
    """

    usd_per_mtok: float
    input_usd_per_mtok: float
    output_usd_per_mtok: float
    input_share: float


@dataclass(frozen=True, slots=True)
class ApiComparison(Record):
    """The same traffic at an API.

    Parameters
    ----------
    name
        ``provider/model``.
    cost_usd_per_hour
        Mean over the hours [USD/hour].
    ratio
        That over the cheapest way's cost; above 1 the fleet is cheaper.
    break_even_rate_per_s
        Mean rate from which this fleet, paid as it is, is cheaper [1/s].
    break_even_utilization
        The same over the rate planned [1].
    """

    name: str
    cost_usd_per_hour: float
    ratio: float
    break_even_rate_per_s: float
    break_even_utilization: float


@dataclass(frozen=True, slots=True)
class Energy(Record):
    """Electricity of the GPUs.

    Parameters
    ----------
    mean_w, peak_w
        Power over the hours, servers and cooling by `pue` included [W].
    kwh_per_mtok
        Energy of a million tokens, in and out together [kWh].
    pue
        Power at the meter over that of the GPUs [1].
    cost_usd_per_hour, co2_kg_per_hour
        At the price and intensity stated; ``None`` where none is [USD/hour], [kg/hour].
    estimated
        GPU -> which points of its curve are shares of its TDP.
    sources
        GPU -> where its curve is from.
    """

    mean_w: float
    peak_w: float
    kwh_per_mtok: float
    pue: float
    cost_usd_per_hour: float | None
    co2_kg_per_hour: float | None
    estimated: Mapping[str, tuple[str, ...]]
    sources: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Costs(InNotebooks):
    """What a fleet costs.

    Parameters
    ----------
    inputs
        The question, in the options' own names.
    source, hours, mean_rate_per_s, peak_rate_per_s, startup_s
        Where the hours are from, how many; mean rate and that of the busiest hour [1/s]; start-up time of a replica [s].
    ways
        To pay, the cheapest last.
    commitments
        A row per GPU type and term.
    tokens
        Prices of tokens under the cheapest way.
    apis
        The same traffic at APIs, the cheapest first.
    energy
        ``None`` where no TDP is known.
    notes
        Worth knowing.
    peaks
        What to own where the peak is rented, the cheapest first; empty = not asked.
    """

    inputs: Mapping[str, object]
    source: str
    hours: int
    mean_rate_per_s: float
    peak_rate_per_s: float
    startup_s: float
    ways: tuple[WayToPay, ...]
    commitments: tuple[Commitment, ...]
    tokens: TokenPrices
    apis: tuple[ApiComparison, ...]
    energy: Energy | None
    notes: tuple[str, ...]
    peaks: tuple[Peak, ...] = ()

    document: ClassVar[str] = "fleetopt-costs"
    shown = ("way", "reserved_gpus", "on_demand_gpus", "spot_gpus", "cost_usd_per_hour")

    def __repr__(self) -> str:
        per_token = f"${self.tokens.usd_per_mtok:.3g} per million tokens"
        return f"<Costs: ${self.cheapest.cost_usd_per_hour:,.2f}/hour {self.cheapest.name}, {per_token}>"

    @property
    def cheapest(self) -> WayToPay:
        """The way that costs least."""
        return self.ways[-1]

    def to_rows(self) -> list[dict[str, object]]:
        """One row per way to pay."""
        return [{"way": way.name, **{k: v for k, v in way.to_dict().items() if k != "name"}} for way in self.ways]


def months_of(term: str) -> int:
    """Months of a term.

    >>> months_of("1y"), months_of("6m")
    (12, 6)
    """
    number, unit = term[:-1], term[-1:]
    if not (number.isdigit() and 1 <= int(number) <= MOST_MONTHS and unit in ("y", "m")):
        raise InputError(f"term: {term!r} is no length of a reservation", "Write it as 1y or 6m.")
    return int(number) * (12 if unit == "y" else 1)


@told_types
def cost(
    fleet: Plan | str | Path,
    *,
    hours: str | Path | None = None,
    startup: float | str = "4min",
    dwell: float | str = 0.0,
    reserved: Sequence[str] | None = None,
    spot_share: float | str = 0.0,
    preemptions_per_hour: float = 0.05,
    shortfall: float | str = 0.01,
    api_prices: str | Path | None = None,
    api_models: Sequence[str] | None = None,
    rent_peak: bool = False,
    pue: float = 1.0,
    kwh_price: float | None = None,
    co2: float | None = None,
    **options: Any,
) -> Costs:
    """What a fleet costs as finance sees it: how to pay for its hours, tokens in and out, an API's price, energy.

    Parameters
    ----------
    fleet
        A plan, or a plan or configuration file.
    hours
        File with 24 or 168 rates, or a shipped service. Default: the workload's own, else every hour is the plan's.
    startup
        From starting a replica until it serves [s].
    dwell
        Least time a pool keeps its number of replicas, in whole hours [s].
    reserved
        Offers of reserved GPUs, GPU=USD@TERM: h100=1.79@1y. Default: for types without one the price lists.
    spot_share
        Largest share of every hour's GPUs on spot capacity: 30%.
    preemptions_per_hour
        Times an hour that a spot replica is taken away [1/h].
    shortfall
        Chance allowed that fewer spot replicas are up than needed; spares are bought for it.
    api_prices
        Prices of model APIs, a file in genai-prices' format (YAML or JSON).
    api_models
        Which of them, MODEL or PROVIDER/MODEL. Default: those named as the plan's model.
    rent_peak
        Also how many GPUs to own where others by the hour, or each API, take the rest.
    pue
        Power at the meter over that of the GPUs: servers, cooling.
    kwh_price
        Price of electricity, USD/kWh.
    co2
        Carbon intensity of electricity, g/kWh.
    **options
        Options of :func:`plan`. ``rate_is`` (the plan's rate is the ``mean`` of the hours or their ``peak``) is by default as it
        was planned.

    Returns
    -------
    Costs

    Raises
    ------
    InputError
        An offer, a share or a price that cannot be; a PUE below 1; any beyond :data:`MOST_OF_ENERGY`.

    Examples
    --------
    >>> import planner as fo
    >>> p = fo.plan("azure", slo=2.0, rate=100, method="occupancy", burst="poisson", pools=1)
    >>> found = fo.cost(p, hours="servegen-m-small", reserved=["h100=1.0@1y"])
    >>> found.cheapest.cost_usd_per_hour < p.cost_usd_per_hour
    True
    """
    offers = _offered(reserved or ())
    spot = Spot(parse_fraction(spot_share, "spot_share"), preemptions_per_hour, parse_fraction(shortfall, "shortfall"))
    saved = saved_of(fleet)
    inputs = saved.inputs()
    apis = [] if api_prices is None else read_api_prices(api_prices, api_models or ())
    if apis and not api_models:
        apis = _apis_of(inputs.model, apis, str(api_prices))
    traffic = saved.traffic(inputs.cdf)
    over = options.pop("rate_is", None) or rate_of_hours(inputs, traffic)
    elasticity = Elasticity(parse_duration(startup, "startup"), parse_duration(dwell, "dwell"), rate_is=over)
    if even := hours is None and not traffic.arrivals.hourly_profile:
        hourly = Hourly(fleet, None, None, options)
        day, rate = hourly_rates(None, flat="the same every hour"), hourly.peak
    else:
        hourly = Hourly(fleet, None, None, options, hours, elasticity)
        day, rate, elasticity = hourly.rates, hourly.rate, hourly.elasticity
    built = hourly.fleet()
    found = make_schedule(built, day, rate, elasticity)
    _refuse_energy({"pue": (pue, 1.0), "kwh_price": (kwh_price, 0.0), "co2": (co2, 0.0)})
    types = [_Type(built, found, gpu, offers.get(gpu), spot) for gpu in _types(built)]
    ways = _ways(types)
    best, mean_rate = ways[-1].cost_usd_per_hour, float(np.array(found.rates_per_s).mean())
    mtok = [3600e-6 * mean_rate * tokens for tokens in _mean_lengths(built)]
    energy = _energy(built, found, pue, kwh_price, co2, 3600e-6 * mean_rate * sum(_mean_lengths(built)))
    unknown = ", ".join(gpu for gpu in _types(built) if power_curve(gpu) is None)
    by_category = apis and isinstance(built.question.traffic.cached_share, Mapping)
    notes = [
        *(["no rates by hour: every hour is the plan's (--hours gives them)"] if even else ()),
        *(["shares cached by category are not in the API's price"] if by_category else ()),
        *([f"energy: the catalog has no power limit of {unknown}"] if energy is None else ()),
        *(note for kind in types for note in kind.notes),
    ]
    costs = Costs(
        dict(built.question.asked), found.source, found.hours, mean_rate, found.peak_rate_per_s, elasticity.startup_s, ways,
        tuple(c for kind in types for c in kind.commitments), _token_prices(built, found, best, *mtok),
        _compared(apis, built, mean_rate, best), energy, tuple(notes),
    )  # fmt: skip
    return _with_peaks(costs, built, found, apis) if rent_peak else costs


def _offered(reserved: Sequence[str]) -> dict[str, list[tuple[str, float]]]:
    """GPU -> term and price [USD/hour] of the offers that the user has."""
    offers: dict[str, list[tuple[str, float]]] = {}
    for offer in reserved:
        name, _, rest = str(offer).partition("=")
        price, at, term = rest.partition("@")
        if not (name and price and at):
            raise InputError(f"reserved: {offer!r} is not GPU=USD@TERM", "Write it as h100=1.79@1y.")
        usd = parse_number(price, f"reserved {offer}")
        if not usd > 0.0 or not months_of(term):
            raise InputError(f"reserved: {offer!r}: the price must be positive")
        offers.setdefault(find_gpu(name).name, []).append((term, usd))
    return offers


def _apis_of(model: str, apis: Sequence[ApiPrice], source: str) -> list[ApiPrice]:
    """The prices of what is the plan's model by its name."""

    def words(name: str) -> set[str]:
        return {w for w in normalized(name).split("-") if w not in ("instruct", "turbo", "meta", "chat", "it", "hf")}

    found = [a for a in apis if words(model) <= words(a.model)]
    if not found:
        raise InputError(f"{source}: no model named as {model}", "Name some: --api-model PROVIDER/MODEL.")
    return found


def _refuse_energy(given: Mapping[str, tuple[float | None, float]]) -> None:
    """Refuse what lies below its least or beyond what is taken for what it says."""
    problems = []
    for name, (value, least) in given.items():
        if value is not None and not least <= value <= MOST_OF_ENERGY:
            between = f"must lie between {least:g} and {MOST_OF_ENERGY:g}"
            wrong = "must not be negative" if value < 0.0 == least else between
            problems.append(f"{name}: {wrong}, got {value:.10g}")
    refuse(problems)


def _mean_lengths(fleet: Fleet) -> tuple[float, float]:
    """Of a request [tokens]."""
    workload = fleet.question.traffic.workload
    weight = workload.weight / workload.weight.sum()
    return float(workload.input_tokens @ weight), float(workload.output_tokens @ weight)


def _token_prices(fleet: Fleet, schedule: Schedule, usd: float, inputs: float, outputs: float) -> TokenPrices:
    """What so many million tokens an hour cost each, of a cost [USD/hour]."""
    paid = np.array([math.fsum(p.cost_usd) for p in schedule.pools])
    parts = (paid / paid.sum()).tolist()
    share = math.fsum(part * _input_share(fleet, k) for k, part in enumerate(parts))
    return TokenPrices(usd / (inputs + outputs), share * usd / inputs, (1.0 - share) * usd / outputs, share)


def _compared(apis: Sequence[ApiPrice], fleet: Fleet, rate_per_s: float, usd: float) -> tuple[ApiComparison, ...]:
    """The traffic at APIs beside a cost [USD/hour], the cheapest first."""
    workload, cached = fleet.question.traffic.workload, fleet.question.traffic.cached_share
    weight = workload.weight / workload.weight.sum()
    shares_cached = np.full(weight.size, 0.0 if isinstance(cached, Mapping) else cached)
    compared = []
    for api in apis:
        each = api.usd_per_request(workload.input_tokens, workload.output_tokens, shares_cached, weight)
        cost = HOUR_S * rate_per_s * each
        even = usd / (HOUR_S * each) if each > 0.0 else math.inf
        compared.append(ApiComparison(api.name, cost, cost / usd, even, even / rate_per_s))
    return tuple(sorted(compared, key=lambda a: a.cost_usd_per_hour))


def _with_peaks(costs: Costs, fleet: Fleet, schedule: Schedule, apis: Sequence[ApiPrice]) -> Costs:
    """The same with what to own where the peak is rented, at the cheapest reserved price of each GPU."""
    prices = {c.gpu: c.usd_per_gpu_hour for c in sorted(costs.commitments, key=lambda c: -c.usd_per_gpu_hour)}
    peaks = peaks_of(fleet, schedule, prices, apis)
    return replace(costs, peaks=peaks, notes=(*costs.notes, *risks(schedule, apis)))


def _types(fleet: Fleet) -> list[str]:
    return list(dict.fromkeys(pool.option.gpu.name for pool in fleet.pools))


class _Type:
    """GPUs of one type over the hours, reserved and spot prices beside each other.

    Of G(h) GPUs in hour h, R are reserved and paid always; of the rest up to a share is spot where it is cheaper with its
    reserve, the others on demand. With d = max(G - R, 0) the cost is convex but for whole spot replicas, and least at R = 0 or at
    some G(h); all of them are tried. Without spot, R is the number wanted in more than reserved/on-demand of the hours.
    """

    def __init__(
        self, fleet: Fleet, schedule: Schedule, gpu: str, own: Sequence[tuple[str, float]] | None, spot: Spot
    ) -> None:
        pools = [(p, s) for p, s in zip(fleet.pools, schedule.pools, strict=True) if p.option.gpu.name == gpu]
        rule = pools[0][0].option.price
        self.gpu, self.rule, self.spot, self.startup_h = gpu, rule, spot, schedule.elasticity.startup_hours
        self.hours: Floats = np.sum([s.gpu_hours for _, s in pools], axis=0)
        self.peak = max(sum(s.replicas[h] * s.gpus_per_replica for _, s in pools) for h in range(schedule.hours))
        self.unit = max(s.gpus_per_replica for _, s in pools)
        self.on_demand = rule.usd_per_gpu_hour
        self.notes: list[str] = []
        self.spot_price = self._spot_price()
        self.commitments = self._commitments(own)

    def _spot_price(self) -> float | None:
        """The plan's, else the price lists'."""
        if self.spot.share == 0.0:
            return None
        if self.rule.spot_usd_per_gpu_hour is not None:
            return self.rule.spot_usd_per_gpu_hour
        offer = reference_offer(price_offers(), self.gpu, "spot")
        if offer is None:
            self.notes.append(f"no spot price of {self.gpu} is known: give --spot-price {self.gpu}=USD")
            return None
        self.notes.append(f"spot {self.gpu}: ${offer.usd_per_gpu_hour:.4g}/hour, {offer.describe()}")
        return offer.usd_per_gpu_hour

    def _commitments(self, own: Sequence[tuple[str, float]] | None) -> list[Commitment]:
        """Every term, with as many reserved as pay."""
        known = [(term, price, "as given") for term, price in own or ()]
        offers = price_offers() if own is None else ()
        for term in sorted({o.term for o in offers if o.gpu == self.gpu and o.term.startswith("reserved-")}):
            if (offer := reference_offer(offers, self.gpu, term)) is not None:
                known.append((term.removeprefix("reserved-"), offer.usd_per_gpu_hour, offer.describe()))
        if not known:
            self.notes.append(f"no reserved price of {self.gpu} is known: give --reserved {self.gpu}=USD@1y")
        rows = []
        without = self.cost(0, 0.0)
        # where the cost may be least
        counts = {0, *(math.ceil(g - 1e-9) for g in self.hours), *(math.floor(g + 1e-9) for g in self.hours)}
        for term, price, source in known:
            count = min(counts, key=lambda r: (self.cost(r, price), r))
            ratio, months = price / self.on_demand, months_of(term)
            rows.append(
                Commitment(
                    self.gpu, term, price, self.on_demand, ratio, months * ratio, count,
                    count * price * HOURS_PER_YEAR * months / 12.0, without - self.cost(count, price), source,
                )
            )  # fmt: skip
        return rows

    def split(self, reserved: int) -> tuple[float, float]:
        """Mean GPUs on demand and on spot, its reserve included."""
        parts = np.array([self._flexible(float(g), reserved) for g in self.hours])
        return float(parts[:, 0].mean()), float(parts[:, 1].mean())

    def _flexible(self, gpus: float, reserved: int) -> tuple[float, float]:
        """GPUs on demand and on spot of one hour."""
        rest = max(gpus - reserved, 0.0)
        whole = math.floor(min(self.spot.share * gpus, rest) / self.unit + 1e-9)
        if self.spot_price is None or whole < 1:
            return rest, 0.0
        # so that enough are up while those taken away are replaced, each within a start-up time
        bought = self.unit * _reserve(whole, self.spot.shortfall, self.spot.preemptions_per_hour, self.startup_h)
        if bought * self.spot_price >= whole * self.unit * self.on_demand:
            return rest, 0.0
        return rest - whole * self.unit, float(bought)

    def cost(self, reserved: int, price: float) -> float:
        """Mean cost with so many reserved at a price [USD/hour]."""
        on_demand, spot = self.split(reserved)
        return reserved * price + on_demand * self.on_demand + spot * (self.spot_price or 0.0)


@cache
def _reserve(replicas: int, shortfall: float, per_hour: float, startup_h: float) -> int:
    return replicas_for_availability(replicas, shortfall, per_hour, startup_h)


def _ways(types: Sequence[_Type]) -> tuple[WayToPay, ...]:
    """From the dearest to the cheapest."""
    static = sum(k.peak for k in types)
    found = [WayToPay("on demand, busiest hour always", 0.0, static, 0.0, sum(k.peak * k.on_demand for k in types))]
    for term in dict.fromkeys(c.term for k in types for c in k.commitments):
        prices = [next((c.usd_per_gpu_hour for c in k.commitments if c.term == term), math.nan) for k in types]
        cost = sum(k.peak * p for k, p in zip(types, prices, strict=True))
        if not math.isnan(cost):
            found.append(WayToPay(f"reserved {term}, busiest hour always", static, 0.0, 0.0, cost))
    scheduled = [float(k.hours.mean()) for k in types]
    cost = sum(n * k.on_demand for n, k in zip(scheduled, types, strict=True))
    found.append(WayToPay("on demand, by the hour", 0.0, sum(scheduled), 0.0, cost))
    parts, total, names = np.zeros(3), 0.0, list[str]()
    for k in types:
        best = min(k.commitments, key=lambda c: -c.saving_usd_per_hour, default=None)
        count, price = (best.reserved_gpus, best.usd_per_gpu_hour) if best else (0, 0.0)
        parts += (count, *k.split(count))
        total += k.cost(count, price)
        names += [f"reserved {best.term}"] if best and count else []
    names = [
        *dict.fromkeys(names),
        *(n for n, gpus in zip(("on demand", "spot"), parts[1:], strict=True) if gpus > 0.0),
    ]
    if len(names) > 1:
        reserved, on_demand, spot = parts.tolist()
        found.append(WayToPay("mixed: " + " + ".join(names), reserved, on_demand, spot, total))
    return tuple(sorted(found, key=lambda w: -w.cost_usd_per_hour))


def _input_share(fleet: Fleet, k: int) -> float:
    """How much of a request's time in a pool grows with its input, against what grows with its output [1].

    The time is the inverse of the capacity; its logarithm's slopes along the logarithms of all inputs and of all outputs, scaled
    to add up to one (what both cause together is shared as they cause it: prices of Aumann and Shapley to first order).
    """
    if fleet.linked:
        return 0.0 if "ttft_s" not in fleet.metrics(k) else 1.0

    def slope(inputs: float, outputs: float) -> float:
        up, down = (_capacity(fleet, fleet.pools[k], 1.0 + s * inputs, 1.0 + s * outputs) for s in (STEP, -STEP))
        return max(math.log(down / up), 0.0)

    of_inputs, of_outputs = slope(1.0, 0.0), slope(0.0, 1.0)
    return of_inputs / (of_inputs + of_outputs) if of_inputs + of_outputs > 0.0 else 0.5


def _capacity(fleet: Fleet, pool: Pool, inputs: float, outputs: float) -> float:
    """Capacity of one replica for the pool's requests with all lengths scaled [1/s]."""
    law = pool.law
    lengths = law.input_tokens * inputs, np.maximum(law.output_tokens * outputs, 1.0)
    rows = features(*lengths, law.cached_share, fleet.question.inputs.chunk)
    changed = replace(
        law, input_tokens=lengths[0], output_tokens=lengths[1], moments=law.share * (law.weight @ rows),
        requests=lambda: None, sessions=lambda: None,
    )  # fmt: skip
    arrivals = traffic_of(fleet.question.traffic, changed).poisson()
    return pool_model(fleet.question, pool.option, pool.setup, arrivals).capacity_per_s


def _energy(
    fleet: Fleet, schedule: Schedule, pue: float, usd_per_kwh: float | None, co2_g: float | None, mtok_per_hour: float
) -> Energy | None:
    """Power of every hour: what serves by what runs on it, what starts as idle."""
    known = {gpu: power_curve(gpu) for gpu in _types(fleet)}
    curves = {gpu: curve for gpu, curve in known.items() if curve is not None}
    if len(curves) < len(known):
        return None
    serving = cache(partial(_serving_watts, fleet, tuple(schedule.pools), curves))
    counts = zip(*(p.replicas for p in schedule.pools), strict=True)
    watts = np.array([serving(rate, each) for rate, each in zip(schedule.rates_per_s, counts, strict=True)])
    for p in schedule.pools:
        watts += curves[p.gpu].idle_w * (np.array(p.gpu_hours) - p.gpus_per_replica * np.array(p.replicas))
    watts *= pue
    mean_kw = float(watts.mean()) / 1000.0
    return Energy(
        1000.0 * mean_kw, float(watts.max()), mean_kw / mtok_per_hour, pue,
        None if usd_per_kwh is None else usd_per_kwh * mean_kw,
        None if co2_g is None else 1e-3 * co2_g * mean_kw,
        {gpu: c.estimated for gpu, c in curves.items() if c.estimated}, {gpu: c.source for gpu, c in curves.items()},
    )  # fmt: skip


def _serving_watts(
    fleet: Fleet, pools: Sequence[ScheduledPool], curves: Mapping[str, PowerCurve], rate: float, counts: tuple[int, ...]
) -> float:
    """Power of the replicas that serve [W]."""
    rate = max(rate, 1e-9)
    if fleet.linked:
        found = fleet.predict(rate, counts)
    else:
        found = [
            (p.model.without_bursts() or p.model).look(rate * p.law.share, max(n, 1), fleet.levels)
            for p, n in zip(fleet.pools, counts, strict=True)
        ]
    total = 0.0
    for pool, p, n, prediction in zip(fleet.pools, pools, counts, found, strict=True):
        running = prediction.mean_running / pool.option.copies
        busy = running if math.isfinite(running) else float(pool.setup.slots)
        total += n * p.gpus_per_replica * curves[p.gpu].watts(busy)
    return total
