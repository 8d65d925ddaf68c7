"""A plan against what its fleet does: what moved, by how much, whether the promises hold, and what the plan would be now."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from planner.ask.asked import standing_of
from planner.errors import InfeasibleError
from planner.operate.deploy.serving import object_name
from planner.operate.monitor.measured import (
    Measured,
    Promised,
    Series,
    by_pool,
    dialect_of,
    measured,
    metrics,
)
from planner.operate.monitor.names import scalers_of
from planner.operate.monitor.policy import Policy
from planner.papers.statistics import Estimate
from planner.plans import Plan, SavedPool
from planner.predict.contract import MEAN_LEVELS, Prediction, unstable
from planner.predict.joint import frechet
from planner.promise import MEAN, Promise
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.routing import ROUTINGS, Routing
from planner.shared.arguments import told_types
from planner.shared.documents import shipped
from planner.shared.notebook import InNotebooks
from planner.shared.record import Record, json_number, plain
from planner.shared.remarks import said
from planner.size.alone import sessions_of
from planner.size.fleet import Fleet
from planner.size.pool import Pool, Shortfall
from planner.size.shapes import standing_fleet
from planner.units import format_count, format_percent
from planner.workload import pools as m
from planner.workload.combine import scaled
from planner.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class Moved(Record):
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

    written: ClassVar[tuple[str, ...]] = (
        *("component", "planned", "measured=measured.value", "low=measured.low", "high=measured.high", "told"),
    )


@dataclass(frozen=True, slots=True)
class Kept(Record):
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

    written: ClassVar[tuple[str, ...]] = (
        *("state", "within=measured.within.value", "measured_s=measured.value_s", "measured_ends_s=measured.ends_s"),
        "predicted_s",
    )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, after what its promise writes."""
        return self.promise.to_dict() | Record.to_dict(self)


@dataclass(frozen=True, slots=True)
class PoolCheck(Record):
    """One pool.

    Parameters
    ----------
    name
        As in the plan.
    measured
        What its metrics say.
    predicted
        What the plan predicts at the traffic measured.
    planned_replicas
        As planned, with spares; of a scaled fleet those that its scaler wants for the traffic measured.
    scaled
        Whether a scaler sets its replicas.
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
    planned_replicas: int
    moved: tuple[Moved, ...]
    kept: tuple[Kept, ...]
    replicas_now: int | None
    rows: tuple[Mapping[str, object], ...]
    scaled: bool = False

    written: ClassVar[tuple[str, ...]] = (
        *("name", "moved", "promises=kept", "planned_replicas", "scaled", "replicas_now"),
    )


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

    document: ClassVar[str] = "fleetopt-check"
    written: ClassVar[tuple[str, ...]] = ("server", "state", "pools", "rows=to_rows", "findings=lines")

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
            wanted = pool.replicas_now
            now = "no number of replicas keeps the promises" if wanted is None else f"{wanted} replicas"
            if pool.scaled and wanted != pool.measured.replicas:
                if any(k.state != "kept" for k in pool.kept):
                    yield f"{where}the plan would be {now} for this traffic, {pool.measured.replicas} serve"
            elif not pool.scaled and wanted != pool.planned_replicas:
                yield f"{where}the plan would be {now} now, it was {pool.planned_replicas}"
        if not self.moved:
            yield "nothing has moved beyond its interval"

    def to_rows(self) -> list[dict[str, object]]:
        """One row per pool and quantity."""
        return [dict(row) for p in self.pools for row in p.rows]


def _how(kept: Kept) -> str:
    predicted = f"{kept.promise.tell(kept.predicted_s)} predicted at this traffic"
    if kept.measured is None:
        return predicted
    low = kept.measured.within.value
    return f"{format_percent(low)} of requests were within it, {predicted}"


LIMITS: Mapping[str, Any] = shipped(Path(__file__).with_name("limits.yaml"))
"""From where on something counts, and why."""

LATELY = 4
"""Stretches at the end of the window, the least busy of which says what a scaler must want by then."""


@told_types
def check(
    fleet: Plan | str | Path,
    prometheus: str | Path | Mapping[str, Sequence[Series]],
    *,
    name: str = "fleetopt",
    policy: Sequence[str | Path] | None = None,
    **options: Any,
) -> FleetCheck:
    """Metrics of a running fleet against its plan at the traffic measured.

    Parameters
    ----------
    fleet
        A plan or a plan file.
    prometheus
        As for :func:`metrics`, or what it returned.
    name
        Objects of the fleet are called ``name-pool``.
    policy
        Files of the scalers that set its replicas: then as many are expected as these want for the traffic measured.
    options
        As for :func:`metrics`.

    Returns
    -------
    FleetCheck
        What moved, how the promises stand, what the plan would be now.

    Raises
    ------
    InputError
        Metrics of no known server, too few requests.
    """
    series = prometheus if isinstance(prometheus, Mapping) else metrics(prometheus, **options)
    saved = standing_of(fleet)
    inputs, by_name = saved.inputs(), {p.name: p for p in saved.pools}
    traffic, scalers = saved.traffic(inputs.cdf), scalers_of(policy, name, [*by_name])
    planned = standing_fleet(compile_question(inputs, traffic), saved.pools)
    server, names = dialect_of(series)
    owned = by_pool(series, [(p.name, object_name(p.name, name)) for p in planned.pools])
    pools = [
        _Pool(planned, k, measured(owned[p.name], names), by_name[p.name], scalers.get(p.name))
        for k, p in enumerate(planned.pools)
    ]
    real = _at_measured(inputs, traffic, saved.pools, pools)
    seen = real.as_engines_see()
    return FleetCheck(server.name, tuple(pool.checked(real, seen) for pool in pools))


def _at_measured(inputs: PlanInputs, workload: Workload, saved: Sequence[SavedPool], pools: Sequence[_Pool]) -> Fleet:
    """The same engines under the traffic measured: lengths, cached share, and a gateway that does not look where none does."""
    longer = (_longer(pools, "inputs", "input_tokens"), _longer(pools, "outputs", "output_tokens"))
    doors = [one.found for one in pools if one.pool.name in {door.name for door in one.planned.doors}]
    changes: dict[str, Any] = {}
    shares = [(s.value, one.rate_per_s.value) for one in doors if (s := one.means.get("cached_share")) is not None]
    if shares:
        changes["cached_share"] = min(0.99, math.fsum(s * r for s, r in shares) / math.fsum(r for _, r in shares))
    if any(one.blind is not None for one in pools):
        changes["routing"] = next(name for name, r in ROUTINGS.items() if r.by_rate_per_replica)
    asked = inputs.override(changes) if changes else inputs
    rate = math.fsum(one.rate_per_s.value for one in doors)
    return standing_fleet(compile_question(asked, scaled(workload, *longer), rate), saved)


def _longer(pools: Sequence[_Pool], part: str, quantity: str) -> float:
    """Measured over planned mean length of the inputs or outputs, all pools that work on them together."""
    rates = [
        (one.found.rate_per_s.value, getattr(one, part), one.found.means[quantity].value)
        for one in pools
        if getattr(one, part) > 0.0 and quantity in one.found.means
    ]
    expected = sum(rate * planned for rate, planned, _ in rates)
    return sum(rate * real for rate, _, real in rates) / expected if expected > 0.0 else 1.0


def _beyond(component: str, ratio: Estimate, planned: float, unit: str = "") -> Moved | None:
    """A component whose interval lies wholly outside its tolerance; `ratio` is measured over planned."""
    room = LIMITS["moved"][component]
    if ratio.low <= 1.0 + room and ratio.high >= 1.0 - room:
        return None
    change = ratio.value - 1.0
    about = f"{component} {'+' if change > 0 else ''}{format_percent(change)} ({ratio.low - 1.0:+.0%} to {ratio.high - 1.0:+.0%})"
    real = Estimate(planned * ratio.value, abs(planned) * ratio.half_width)
    told = f"{about}: {format_count(real.value)}{unit}, planned {format_count(planned)}{unit}" if unit else about
    return Moved(component, planned, real, told)


def _cached_share(pool: Pool) -> float:
    """Share of the prompts' tokens that are planned to be found [1]."""
    tokens = pool.law.weight * pool.law.input_tokens
    return float((tokens * pool.law.cached_share).sum() / tokens.sum())


def _routing(pool: Pool, found: Measured, routing: Routing) -> Moved | None:
    """A gateway that was to look at the replicas and does not, or that favours one."""
    seen = found.means.get("imbalance")
    in_flight = math.fsum(found.means[name].value for name in ("running", "waiting") if name in found.means)
    if routing.least and seen is not None and seen.low > LIMITS["blind"] and in_flight > LIMITS["few_in_flight"]:
        return Moved("routing", 0.0, seen, said("moved_routing", seen=seen, name=routing.name, most=LIMITS["blind"]))
    counted = found.rate_per_s.value * found.seconds / max(found.replicas, 1)
    chance = 4.0 / math.sqrt(max(counted, 1.0))
    if found.share_spread > LIMITS["favoured"] + chance:
        favoured = said("moved_to_one", times=found.share_spread)
        return Moved("routing", 1.0, Estimate(found.share_spread, chance), favoured)
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
    longer = {name: tuple(factor * v for v in values) for name, values in found.latencies.items()}
    means = {name: factor * value for name, value in found.means.items()}
    return replace(found, latencies=longer, means=means)


class _Pool:
    """One pool of a plan, and what its metrics say."""

    def __init__(self, planned: Fleet, k: int, found: Measured, saved: SavedPool, scaler: Policy | None) -> None:
        self.planned, self.k, self.found, self.saved, self.scaler = planned, k, found, saved, scaler
        self.pool = planned.pools[k]
        self.inputs, self.outputs = planned.work_tokens(k)
        self.blind = _routing(self.pool, found, planned.question.routing)
        # a rate and a whole number of replicas that have as much to do each as those had that were there on average
        self.replicas = max(round(found.mean_replicas), 1)
        self.rate_per_s = found.rate_per_s.value * self.replicas / max(found.mean_replicas, 1e-9)

    def checked(self, real: Fleet, seen: Fleet) -> PoolCheck:
        """What moved, how the promises stand and what would do now, at the traffic measured: the fleet under it, and as its engines
        see it."""
        k, found, factor = self.k, self.found, 1.0
        moved = [*self.moved(), *self.lost(), *([self.blind] if self.blind is not None else [])]
        times = self.iteration_factor(seen)
        if times is not None and (slower := _beyond("iteration time", times, 1.0)) is not None:
            moved.append(slower)
            factor = times.value
        levels = tuple(sorted({*real.levels, *MEAN_LEVELS}))
        usual = _predict(seen, k, self.rate_per_s, self.replicas, levels)
        rising, serving = self.rate_per_s, self.replicas
        if found.last_rate_per_s > LIMITS["rising"] * found.rate_per_s.high:
            rising, serving = found.last_rate_per_s, max(found.replicas, 1)
        lately = _predict(real, k, rising, serving, real.levels, factor)
        kept = tuple(_kept(p, found, lately, real.seen_in(k)) for p in real.promises_on(k))
        expected = self.expected(found.rate_per_s.value)
        return PoolCheck(
            self.pool.name,
            found,
            usual,
            expected,
            tuple(moved),
            kept,
            self.size_now(real, factor),
            tuple(self.rows(real, usual, kept, expected, {x.component for x in moved})),
            self.scaler is not None,
        )

    def moved(self) -> Iterator[Moved]:
        """Traffic, lengths and cache."""
        means = self.found.means
        planned: list[tuple[str, float, Estimate | None, str]] = [
            ("traffic", self.pool.rate_per_s, self.found.rate_per_s, " requests/s"),
            ("input lengths", self.inputs, means.get("input_tokens"), " tokens"),
            ("output lengths", self.outputs, means.get("output_tokens"), " tokens"),
        ]
        for component, expected, real, unit in planned:
            if real is None or expected <= 0.0:
                continue
            # replicas follow traffic up to the plan's: less is no news
            if component == "traffic" and self.scaler and real.value < expected:
                continue
            ratio = Estimate(real.value / expected, real.half_width / expected)
            if (moved := _beyond(component, ratio, expected, unit)) is not None:
                yield moved
        share, real = _cached_share(self.pool), means.get("cached_share")
        if real is None or self.inputs <= 0.0:
            return
        room = LIMITS["moved"]["cache"]
        if real.high < share - room or real.low > share + room:
            yield Moved("cache", share, real, said("moved_cache", real=real, share=share))

    def expected(self, rate_per_s: float) -> int:
        """Replicas that should serve: the plan's, or those that a scaler wants at a rate [1/s]."""
        if self.scaler is None:
            return self.saved.replicas
        each = ((name, self.found.means.get(name)) for name in ("running", "waiting", "kv_usage"))
        totals = {name: self.found.mean_replicas * x.low for name, x in each if x is not None}
        totals["in_flight"] = totals.get("running", 0.0) + totals.get("waiting", 0.0)
        return self.scaler.wanted({**totals, "requests": max(0.0, rate_per_s + self.scaler.offset_per_s)})

    def lost(self) -> Iterator[Moved]:
        """Replicas that are not there, or more than were planned; of a scaled fleet fewer than it wants for what came lately."""
        serving = self.found.replicas
        expected = self.expected(min(self.found.rates_per_s[-LATELY:]))
        missing = expected - serving
        if missing > 0 or (missing and self.scaler is None):
            kind = "missing" if missing > 0 else "more than planned"
            wants = "planned" if self.scaler is None else "its scaler wants"
            told = {"serving": serving, "wants": wants, "expected": expected, "by": abs(missing), "kind": kind}
            yield Moved("replicas", expected, Estimate(float(serving), 0.0), said("moved_replicas", **told))

    def iteration_factor(self, seen: Fleet) -> Estimate | None:
        """The factor on all times that gives the mean TPOT measured, or of replicas that only prefill the mean time of a prompt,
        with its interval; ``None`` where it cannot be told."""
        pool, means = seen.pools[self.k], self.found.means
        if "tpot_s" not in seen.seen_in(self.k):
            alone = means.get("prefill_s")
            if alone is None or sessions_of(pool) is not None:
                return None
            usual = pool.option.copies / pool.model.capacity_per_s
            return Estimate(alone.value / usual, alone.half_width / usual)
        tpot = means.get("tpot_s")
        # what an engine with a full queue takes says how full it is
        most = LIMITS["overloaded"] * self.replicas * pool.model.capacity_per_s
        if tpot is None or self.found.replicas < 1 or self.rate_per_s > most:
            return None

        def factor_of(wanted: float) -> float:
            """The factor that gives a mean TPOT."""

            def too_fast(factor: float) -> bool:
                at = _predict(seen, self.k, self.rate_per_s, self.replicas, MEAN_LEVELS, factor)
                return at.mean("tpot_s") < wanted

            high = float(LIMITS["slowest"])
            low = 1.0 / high
            if not too_fast(low):
                return low
            for _ in range(12):
                middle = math.sqrt(low * high)
                low, high = (middle, high) if too_fast(middle) else (low, middle)
            return math.sqrt(low * high)

        value = factor_of(tpot.value)
        ends = [factor_of(max(v, 1e-9)) for v in (tpot.low, tpot.high)]
        return Estimate(value, max(abs(value - end) for end in ends))

    def size_now(self, real: Fleet, factor: float) -> int | None:
        """Replicas with spares for what was measured; a slower engine is a higher rate under tighter promises."""
        rate, promises = factor * self.found.rate_per_s.value, real.promises.tightened(factor)
        size = real.size_of(self.k, rate, promises, start=self.saved.replicas)
        if isinstance(size, Shortfall):
            return None
        try:
            return real.pools[self.k].option.price.bought(size.replicas)
        except InfeasibleError:
            return None

    def rows(
        self, real: Fleet, predicted: Prediction, kept: Sequence[Kept], expected: int, named: set[str]
    ) -> Iterator[dict[str, object]]:
        """Measured beside predicted and planned, a row for each quantity, with its ends, and what moved of those `named`."""
        found, means, now, seen = self.found, self.found.means, real.pools[self.k], real.seen_in(self.k)
        row = partial(_row, self.pool.name, named)
        yield row("requests/s", found.rate_per_s, None, self.pool.rate_per_s, "traffic")
        if self.inputs > 0.0:
            yield row("input tokens", means.get("input_tokens"), None, self.inputs, "input lengths")
        if self.outputs > 0.0:
            yield row("output tokens", means.get("output_tokens"), None, self.outputs, "output lengths")
        if self.inputs > 0.0:
            yield row("cached share", means.get("cached_share"), None, _cached_share(self.pool), "cache")
        yield row("replicas", float(found.replicas), None, float(expected), "replicas")
        yield row("replicas, mean", found.mean_replicas)
        yield row("imbalance", means.get("imbalance"), component="routing")
        decodes = self.outputs > 0.0 and now.law.mean(m.DECODE) > 0.0
        context = now.law.mean(m.KV) / now.law.mean(m.DECODE) if decodes else now.law.mean(m.INPUT)
        each = found.rate_per_s.value / max(found.mean_replicas, 1e-9)
        # Little's law: what waits and what runs on a replica is its rate times the time that takes
        waiting = each * predicted.means["wait_s"] if "wait_s" in predicted.means else None
        yield row("running", means.get("running"), predicted.mean_running)
        yield row("waiting", means.get("waiting"), waiting)
        yield row("kv usage", means.get("kv_usage"), predicted.mean_running * context / max(now.setup.kv_tokens, 1.0))
        yield row("preemptions/1000", means.get("preemptions_per_1000"), now.setup.preemptions_per_1000)
        for metric in seen:
            component = "iteration time" if metric == "tpot_s" else ""
            yield row(f"mean {metric}", means.get(metric), predicted.mean(metric), component=component)
        if "tpot_s" not in seen:
            usual = now.option.copies / now.model.capacity_per_s
            yield row("mean prefill_s", means.get("prefill_s"), usual, component="iteration time")
        for one in kept:
            stood = one.measured
            value, ends = (None, (math.nan, math.nan)) if stood is None else (stood.value_s, stood.ends_s)
            yield row(f"{one.promise.label} (s)", value, one.predicted_s, one.promise.limit_s, ends=ends) | {
                "moved": None if one.state == "kept" else one.state
            }


def _kept(promise: Promise, found: Measured, lately: Prediction, seen: Sequence[str]) -> Kept:
    """Broken where even the most that can have been within the limit is too few, beyond the interval."""
    # of a mean no histogram says which requests break it
    told = promise.quantile != MEAN and all(p.metric in seen for p in promise.parts)
    stood = _stood(promise, found) if told else None
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
    stood = [found.promised(p.metric, p.quantile, p.limit_s) for p in promise.parts]
    known = [p for p in stood if p is not None]
    if len(known) < len(stood):
        return None
    if len(known) == 1:
        return known[0]
    least, _ = frechet([p.within.value for p in known])
    spread = math.fsum(p.within.half_width for p in known)
    parts = [*zip(known, promise.parts, strict=True)]
    times = [[v / part.limit_s for v in (p.value_s, *p.ends_s)] for p, part in parts]
    value, low, high = (max(of_all) * promise.limit_s for of_all in zip(*times, strict=True))
    return Promised(Estimate(least, spread), min(p.most_within for p in known), value, (low, high))


def _row(
    pool: str,
    named: set[str],
    quantity: str,
    real: Estimate | float | None,
    told: float | None = None,
    plan: float | None = None,
    component: str = "",
    ends: tuple[float, float] = (math.nan, math.nan),
) -> dict[str, object]:
    """One quantity: measured with its ends, predicted, planned, and whether it moved."""
    value, low, high = (real.value, real.low, real.high) if isinstance(real, Estimate) else (real, *ends)
    return {
        "pool": pool,
        "quantity": quantity,
        "measured": plain(value),
        "low": json_number(low),
        "high": json_number(high),
        "predicted": plain(told),
        "planned": plan,
        "moved": component if component in named else None,
    }
