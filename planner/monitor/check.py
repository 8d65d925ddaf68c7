"""A plan against what its fleet does: what moved, by how much, whether the promises hold, and what the plan would be now."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner._version import __version__
from planner.deploy.serving import object_name
from planner.errors import InfeasibleError
from planner.fleet.caches import sessions_of
from planner.fleet.fleet import Fleet
from planner.fleet.pool import Pool, Shortfall
from planner.fleet.shapes import standing_fleet
from planner.methods.base import Prediction, unstable
from planner.methods.joint import frechet
from planner.monitor.measured import Measured, Promised, by_pool, dialect_of, measured
from planner.monitor.prometheus import Series
from planner.notebook import InNotebooks
from planner.promise import Promise
from planner.question.compiled import compile_question
from planner.question.files import SavedPool
from planner.question.options import PlanInputs
from planner.record import json_number
from planner.routing import ROUTINGS, Routing
from planner.simulate.statistics import Estimate
from planner.units import format_count, format_percent
from planner.workload import pools as m
from planner.workload.combine import scaled
from planner.workload.workload import Workload

TOLERANCE = {"traffic": 0.10, "input lengths": 0.05, "output lengths": 0.05, "iteration time": 0.10}
"""Relative change that counts, beyond the interval of what was measured [1]."""

CACHE_TOLERANCE = 0.05
"""Change of the cached share that counts [1]."""

BLIND_IMBALANCE = 0.6
"""Imbalance beyond which a gateway does not look at its replicas: blind routing gives 1 or more, looking 1 / requests in flight."""

FEW_IN_FLIGHT = 3.0
"""Mean requests in flight at a replica below which a gateway that looks finds nothing to choose between."""

SPREAD = 1.2
"""A replica with this many times the mean requests, beyond chance, is favoured [1]."""

OVERLOADED = 0.92
"""Share of the capacity beyond which iteration times are not told from the load [1]."""

RISING = 1.05
"""The last sixth of the window counts where its rate is this many times the upper end of the mean's interval [1]."""

MEAN_LEVELS = tuple((k + 0.5) / 10.0 for k in range(10))
"""Levels whose quantiles are averaged for a mean."""

SLOWEST, FASTEST = 4.0, 0.25
"""Factors on iteration times that are looked for [1]."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One component of a pool that is not what was planned.

    Parameters
    ----------
    component
        ``traffic``, ``input lengths``, ``output lengths``, ``cache``, ``iteration time``, ``replicas`` or ``routing``.
    planned, measured
        What it was to be, what it is with its interval; a factor on the planned times for the iteration time.
    told
        In words.
    """

    component: str
    planned: float
    measured: Estimate
    told: str


@dataclass(frozen=True, slots=True)
class Kept:
    """One promise in one pool.

    Parameters
    ----------
    promise
        The promise.
    measured
        How it was kept; ``None`` where no histogram says.
    predicted_s
        What is predicted at the traffic and the times measured [s].
    state
        ``kept``, ``at risk`` (predicted to break, and not clearly kept) or ``broken`` (measured).
    """

    promise: Promise
    measured: Promised | None
    predicted_s: float
    state: str


@dataclass(frozen=True, slots=True)
class PoolCheck:
    """One pool.

    Parameters
    ----------
    name
        As in the plan.
    measured
        What its metrics say.
    predicted
        What the plan predicts at the traffic measured.
    planned_rate_per_s, planned_replicas
        As planned, replicas with spares.
    moved
        What moved.
    kept
        Its promises.
    replicas_now
        Replicas, spares included, that the traffic measured needs at the times measured; ``None`` = no number would do.
    rows
        Measured beside predicted, one row per quantity.
    """

    name: str
    measured: Measured
    predicted: Prediction
    planned_rate_per_s: float
    planned_replicas: int
    moved: tuple[Moved, ...]
    kept: tuple[Kept, ...]
    replicas_now: int | None
    rows: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class FleetCheck(InNotebooks):
    """A plan against what its fleet does.

    Parameters
    ----------
    server
        Whose metrics they are.
    pools
        The pools.
    """

    server: str
    pools: tuple[PoolCheck, ...]

    def __repr__(self) -> str:
        moved = ", ".join(dict.fromkeys(x.component for p in self.pools for x in p.moved)) or "nothing moved"
        return f"<FleetCheck: {self.state}, {moved}>"

    @property
    def state(self) -> str:
        """``broken`` if any promise is, else ``at risk`` if any is, else ``kept``."""
        states = {k.state for p in self.pools for k in p.kept}
        return next((s for s in ("broken", "at risk") if s in states), "kept")

    @property
    def moved(self) -> tuple[tuple[str, Moved], ...]:
        """Pool and component of everything that moved."""
        return tuple((p.name, x) for p in self.pools for x in p.moved)

    def lines(self) -> Iterator[str]:
        """The findings in words."""
        for pool in self.pools:
            where = f"{pool.name}: " if len(self.pools) > 1 else ""
            for x in pool.moved:
                yield f"{where}{x.told}"
            for k in pool.kept:
                if k.state != "kept":
                    yield f"{where}{k.promise.told} is {k.state}: {_how(k)}"
            now = (
                "no number of replicas keeps the promises"
                if pool.replicas_now is None
                else f"{pool.replicas_now} replicas"
            )
            if pool.replicas_now != pool.planned_replicas:
                yield f"{where}the plan would be {now} now, it was {pool.planned_replicas}"
        if not self.moved:
            yield "nothing has moved beyond its interval"

    def to_rows(self) -> list[dict[str, object]]:
        """One row per pool and quantity."""
        return [dict(row) for p in self.pools for row in p.rows]

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "schema_version": 1,
            "kind": "fleetopt-check",
            "version": __version__,
            "server": self.server,
            "state": self.state,
            "pools": [
                {
                    "name": p.name,
                    "moved": [
                        {"component": x.component, "planned": x.planned, **_interval(x.measured), "told": x.told}
                        for x in p.moved
                    ],
                    "promises": [
                        {
                            **k.promise.to_dict(),
                            "state": k.state,
                            "within": None if k.measured is None else k.measured.within.value,
                            "measured_s": None if k.measured is None else json_number(k.measured.value_s),
                            "predicted_s": json_number(k.predicted_s),
                        }
                        for k in p.kept
                    ],
                    "planned_replicas": p.planned_replicas,
                    "replicas_now": p.replicas_now,
                }
                for p in self.pools
            ],
            "rows": self.to_rows(),
            "findings": list(self.lines()),
        }


def _how(kept: Kept) -> str:
    predicted = f"{kept.promise.tell(kept.predicted_s)} predicted at this traffic"
    if kept.measured is None:
        return predicted
    low = kept.measured.within.value
    return f"{format_percent(low)} of requests were within it, {predicted}"


def _interval(found: Estimate) -> dict[str, object]:
    return {"measured": found.value, "low": json_number(found.low), "high": json_number(found.high)}


def check_fleet(
    inputs: PlanInputs,
    workload: Workload,
    saved: Sequence[SavedPool],
    series: Mapping[str, Sequence[Series]],
    prefix: str = "fleetopt",
) -> FleetCheck:
    """Hold a plan against the series of its fleet.

    Parameters
    ----------
    inputs, workload, saved
        The plan: options, traffic, pools.
    series
        Metric -> series.
    prefix
        Objects of the fleet are called ``prefix-pool``.

    Raises
    ------
    InputError
        Metrics of no known server, too few requests.
    """
    planned = standing_fleet(compile_question(inputs, workload), saved)
    server, names = dialect_of(series)
    owned = by_pool(series, [(p.name, object_name(p.name, prefix)) for p in planned.pools])
    found = {pool.name: measured(owned[pool.name], names) for pool in planned.pools}
    blind = {p.name: _routing(p, found[p.name], planned.question.routing) for p in planned.pools}
    real = _at_measured(inputs, workload, saved, planned, found, any(b is not None for b in blind.values()))
    seen = real.as_engines_see()
    checks = []
    for k, (pool, one) in enumerate(zip(planned.pools, saved_of(planned, saved), strict=True)):
        of_pool = found[pool.name]
        moved = [*_moved(planned, k, of_pool), *_lost(of_pool, one)]
        if (turned := blind[pool.name]) is not None:
            moved.append(turned)
        factor = _iteration_factor(seen, k, of_pool)
        if factor is not None and (slower := _beyond("iteration time", factor, 1.0)) is not None:
            moved.append(slower)
        taken = factor.value if factor is not None and slower is not None else 1.0
        checks.append(_checked(planned, real, seen, k, of_pool, one, tuple(moved), taken))
    return FleetCheck(server.name, tuple(checks))


def saved_of(fleet: Fleet, saved: Sequence[SavedPool]) -> list[SavedPool]:
    """The file's pools in the fleet's order."""
    by_name = {p.name: p for p in saved}
    return [by_name[p.name] for p in fleet.pools]


def _at_measured(
    inputs: PlanInputs,
    workload: Workload,
    saved: Sequence[SavedPool],
    planned: Fleet,
    found: Mapping[str, Measured],
    blind: bool,
) -> Fleet:
    """The same engines under the traffic measured: lengths, cached share, and a gateway that does not look where none does."""
    longer = (_fleet_ratio(planned, found, 0, "input_tokens"), _fleet_ratio(planned, found, 1, "output_tokens"))
    doors = [found[pool.name] for pool in planned.doors]
    rate = math.fsum(one.rate_per_s.value for one in doors)
    changes: dict[str, Any] = {}
    shares = [(one.cached_share.value, one.rate_per_s.value) for one in doors if one.cached_share is not None]
    if shares:
        changes["cached_share"] = min(0.99, math.fsum(s * r for s, r in shares) / math.fsum(r for _, r in shares))
    if blind:
        changes["routing"] = next(name for name, r in ROUTINGS.items() if r.by_rate_per_replica)
    asked = inputs.override(changes) if changes else inputs
    return standing_fleet(compile_question(asked, scaled(workload, *longer), rate), saved)


def _fleet_ratio(planned: Fleet, found: Mapping[str, Measured], part: int, field: str) -> float:
    """Measured over planned mean length of inputs (0) or outputs (1), all pools that work on them together."""
    expected = real = 0.0
    for k, pool in enumerate(planned.pools):
        mean, own = planned.work_tokens(k)[part], getattr(found[pool.name], field)
        if mean > 0.0 and own is not None:
            expected += found[pool.name].rate_per_s.value * mean
            real += found[pool.name].rate_per_s.value * own.value
    return real / expected if expected > 0.0 else 1.0


def _beyond(component: str, ratio: Estimate, planned: float, unit: str = "") -> Moved | None:
    """A component whose interval lies wholly outside its tolerance; `ratio` is measured over planned."""
    room = TOLERANCE[component]
    if ratio.low <= 1.0 + room and ratio.high >= 1.0 - room:
        return None
    change = ratio.value - 1.0
    about = f"{component} {'+' if change > 0 else ''}{format_percent(change)} ({ratio.low - 1.0:+.0%} to {ratio.high - 1.0:+.0%})"
    real = Estimate(planned * ratio.value, abs(planned) * ratio.half_width)
    told = f"{about}: {format_count(real.value)}{unit}, planned {format_count(planned)}{unit}" if unit else about
    return Moved(component, planned, real, told)


def _moved(fleet: Fleet, k: int, found: Measured) -> Iterator[Moved]:
    """Traffic, lengths and cache."""
    pool, (inputs, outputs) = fleet.pools[k], fleet.work_tokens(k)
    planned: list[tuple[str, float, Estimate | None, str]] = [
        ("traffic", pool.arrival_rate_per_s, found.rate_per_s, " requests/s"),
        ("input lengths", inputs, found.input_tokens, " tokens"),
        ("output lengths", outputs, found.output_tokens, " tokens"),
    ]
    for component, expected, real, unit in planned:
        if real is not None and expected > 0.0:
            ratio = Estimate(real.value / expected, real.half_width / expected)
            if (moved := _beyond(component, ratio, expected, unit)) is not None:
                yield moved
    share, real = _cached_share(pool), found.cached_share
    if (
        real is not None
        and inputs > 0.0
        and (real.high < share - CACHE_TOLERANCE or real.low > share + CACHE_TOLERANCE)
    ):
        told = (
            f"cache: {format_percent(real.value)} of the prompts' tokens are found ({real.low:.0%} to {real.high:.0%}), "
            f"planned {format_percent(share)}"
        )
        yield Moved("cache", share, real, told)


def _cached_share(pool: Pool) -> float:
    """Share of the prompts' tokens that are planned to be found [1]."""
    tokens = pool.law.weight * pool.law.input_tokens
    return float((tokens * pool.law.cached_share).sum() / tokens.sum())


def _lost(found: Measured, saved: SavedPool) -> Iterator[Moved]:
    """Replicas that are not there, or more than were planned."""
    if found.replicas != saved.replicas:
        kind = "missing" if found.replicas < saved.replicas else "more than planned"
        told = (
            f"replicas: {found.replicas} serve, planned {saved.replicas}: {abs(saved.replicas - found.replicas)} {kind}"
        )
        yield Moved("replicas", saved.replicas, Estimate(float(found.replicas), 0.0), told)


def _routing(pool: Pool, found: Measured, routing: Routing) -> Moved | None:
    """A gateway that was to look at the replicas and does not, or that favours one."""
    seen = found.imbalance
    in_flight = math.fsum(x.value for x in (found.running, found.waiting) if x is not None)
    if routing.least and seen is not None and seen.low > BLIND_IMBALANCE and in_flight > FEW_IN_FLIGHT:
        told = (
            f"routing: requests in flight differ between replicas as if nobody looked: variance over mean "
            f"{seen.value:.2f} ({seen.low:.2f} to {seen.high:.2f}), {routing.name} keeps it below {BLIND_IMBALANCE:g}"
        )
        return Moved("routing", 0.0, seen, told)
    counted = found.rate_per_s.value * found.seconds / max(found.replicas, 1)
    chance = 4.0 / math.sqrt(max(counted, 1.0))
    if found.share_spread > SPREAD + chance:
        told = f"routing: one replica gets {found.share_spread:.2f} times the mean number of requests"
        return Moved("routing", 1.0, Estimate(found.share_spread, chance), told)
    return None


def _predict(
    fleet: Fleet, k: int, rate_per_s: float, replicas: int, levels: tuple[float, ...], factor: float = 1.0
) -> Prediction:
    """The k-th pool when all times are `factor` times as long: that many times the values at that many times the rate."""
    load = factor * rate_per_s / (replicas * fleet.pools[k].model.capacity_per_s)
    if load >= 1.0:
        return unstable(levels, load)
    found = fleet.pool_at(k, factor * rate_per_s, replicas, levels)
    if factor == 1.0:
        return found
    ttft, tpot, e2e = (tuple(factor * v for v in of_one) for of_one in (found.ttft_s, found.tpot_s, found.e2e_s))
    return replace(found, ttft_s=ttft, tpot_s=tpot, e2e_s=e2e)


def _iteration_factor(fleet: Fleet, k: int, found: Measured) -> Estimate | None:
    """The factor on all times that gives the mean TPOT measured, or of replicas that only prefill the mean time of a prompt, with
    its interval; ``None`` where it cannot be told."""
    pool = fleet.pools[k]
    if "tpot_s" not in fleet.seen_in(k):
        alone = found.prefill_s
        if alone is None or sessions_of(pool) is not None:
            return None
        usual = pool.option.copies / pool.model.capacity_per_s
        return Estimate(alone.value / usual, alone.half_width / usual)
    if found.tpot_s is None or found.replicas < 1:
        return None
    rate, replicas = found.rate_per_s.value, found.replicas

    def mean_tpot(factor: float) -> float:
        return math.fsum(_predict(fleet, k, rate, replicas, MEAN_LEVELS, factor).tpot_s) / len(MEAN_LEVELS)

    if rate > OVERLOADED * replicas * pool.model.capacity_per_s:
        # what an engine with a full queue takes says how full it is
        return None

    def factor_of(wanted: float) -> float:
        low, high = FASTEST, SLOWEST
        if mean_tpot(low) > wanted:
            return low
        for _ in range(12):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if mean_tpot(middle) < wanted else (low, middle)
        return math.sqrt(low * high)

    value = factor_of(found.tpot_s.value)
    ends = [factor_of(max(v, 1e-9)) for v in (found.tpot_s.low, found.tpot_s.high)]
    return Estimate(value, max(abs(value - end) for end in ends))


def _checked(
    planned: Fleet,
    real: Fleet,
    seen: Fleet,
    k: int,
    found: Measured,
    saved: SavedPool,
    moved: tuple[Moved, ...],
    factor: float,
) -> PoolCheck:
    """The k-th pool at the traffic measured, with times `factor` times the planned; `seen` is the fleet as its engines see it."""
    pool = planned.pools[k]
    replicas = max(found.replicas, 1)
    levels = tuple(sorted({*real.levels, *MEAN_LEVELS}))
    plain = _predict(seen, k, found.rate_per_s.value, replicas, levels)
    rising = found.rate_per_s.value
    if found.last_rate_per_s > RISING * found.rate_per_s.high:
        rising = found.last_rate_per_s
    lately = _predict(real, k, rising, replicas, real.levels, factor)
    kept = tuple(_kept(p, found, lately, real.seen_in(k)) for p in real.promises_on(k))
    size = _size_now(real, k, saved, found, factor)
    rows = tuple(_rows(planned, real, k, found, plain, kept, saved, moved))
    return PoolCheck(pool.name, found, plain, pool.arrival_rate_per_s, saved.replicas, moved, kept, size, rows)


def _kept(promise: Promise, found: Measured, lately: Prediction, seen: Sequence[str]) -> Kept:
    """Broken where even the most that can have been within the limit is too few, beyond the interval."""
    stood = _stood(promise, found) if all(p.metric in seen for p in promise.parts) else None
    value = lately.value(promise.metric, promise.quantile)
    state = "kept"
    if stood is not None and stood.most_within + stood.within.half_width < promise.quantile:
        state = "broken"
    elif not value <= promise.limit_s:
        clearly = stood is not None and stood.within.low > 0.5 * (1.0 + promise.quantile)
        state = "kept" if clearly else "at risk"
    return Kept(promise, stood, value, state)


def _stood(promise: Promise, found: Measured) -> Promised | None:
    """How what was promised stood to its limits; histograms say nothing of both at once, so Frechet's bounds of a joint promise."""
    parts = [found.promised(p.metric, p.quantile, p.limit_s) for p in promise.parts]
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return None
    if len(known) == 1:
        return known[0]
    least, _ = frechet([p.within.value for p in known])
    spread = math.fsum(p.within.half_width for p in known)
    over = max(p.value_s / part.limit_s for p, part in zip(known, promise.parts, strict=True))
    return Promised(Estimate(least, spread), min(p.most_within for p in known), over * promise.limit_s)


def _size_now(real: Fleet, k: int, saved: SavedPool, found: Measured, factor: float) -> int | None:
    """Replicas with spares for what was measured; a slower engine is a higher rate under tighter promises."""
    pool, promises = real.pools[k], real.promises.tightened(factor)
    size = real.size_of(k, factor * found.rate_per_s.value, promises, start=saved.replicas)
    if isinstance(size, Shortfall):
        return None
    try:
        return pool.option.price.bought(size.replicas)
    except InfeasibleError:
        return None


def _rows(
    planned: Fleet,
    real: Fleet,
    k: int,
    found: Measured,
    predicted: Prediction,
    kept: Sequence[Kept],
    saved: SavedPool,
    moved: Sequence[Moved],
) -> Iterator[dict[str, object]]:
    """Measured beside predicted and planned."""
    named = {x.component for x in moved}
    pool, now, seen = planned.pools[k], real.pools[k], real.seen_in(k)
    inputs, outputs = planned.work_tokens(k)
    law = now.law
    context = law.mean(m.KV) / law.mean(m.DECODE) if outputs > 0.0 and law.mean(m.DECODE) > 0.0 else law.mean(m.INPUT)

    def mean(metric: str) -> float:
        return math.fsum(predicted.value(metric, level) for level in MEAN_LEVELS) / len(MEAN_LEVELS)

    def row(
        quantity: str, real: Estimate | float | None, expected: float | None, plan: float | None, component: str = ""
    ) -> dict[str, object]:
        value = real.value if isinstance(real, Estimate) else real
        return {
            "pool": pool.name,
            "quantity": quantity,
            "measured": None if value is None else json_number(float(value)),
            "low": json_number(real.low) if isinstance(real, Estimate) else None,
            "high": json_number(real.high) if isinstance(real, Estimate) else None,
            "predicted": None if expected is None else json_number(float(expected)),
            "planned": plan,
            "moved": component if component in named else None,
        }

    yield row("requests/s", found.rate_per_s, None, pool.arrival_rate_per_s, "traffic")
    if inputs > 0.0:
        yield row("input tokens", found.input_tokens, None, inputs, "input lengths")
    if outputs > 0.0:
        yield row("output tokens", found.output_tokens, None, outputs, "output lengths")
    if inputs > 0.0:
        yield row("cached share", found.cached_share, None, _cached_share(pool), "cache")
    yield row("replicas", float(found.replicas), None, float(saved.replicas), "replicas")
    yield row("imbalance", found.imbalance, None, None, "routing")
    yield row("running", found.running, predicted.mean_running, None)
    yield row("waiting", found.waiting, None, None)
    yield row("kv usage", found.kv_usage, predicted.mean_running * context / max(now.setup.kv_tokens, 1.0), None)
    yield row("preemptions/1000", found.preemptions_per_1000, now.setup.preemptions_per_1000, None)
    for metric in seen:
        yield row(
            f"mean {metric}", getattr(found, metric), mean(metric), None, "iteration time" if metric == "tpot_s" else ""
        )
    if "tpot_s" not in seen:
        usual = now.option.copies / now.model.capacity_per_s
        yield row("mean prefill_s", found.prefill_s, usual, None, "iteration time")
    for one in kept:
        value = None if one.measured is None else one.measured.value_s
        yield row(f"{one.promise.label} (s)", value, one.predicted_s, one.promise.limit_s) | {
            "moved": None if one.state == "kept" else one.state
        }
