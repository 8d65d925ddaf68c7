"""A plan against what its fleet does: what moved, by how much, whether the promises hold, and what the plan would be now."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from planner.deploy.serving import object_name
from planner.errors import InfeasibleError
from planner.fleet.caches import sessions_of
from planner.fleet.fleet import Fleet
from planner.fleet.pool import Pool, Shortfall
from planner.fleet.shapes import standing_fleet
from planner.methods.base import MEAN_LEVELS, Prediction, unstable
from planner.methods.joint import frechet
from planner.monitor.measured import Measured, Promised, by_pool, dialect_of, measured
from planner.monitor.policy import Policy
from planner.monitor.prometheus import Series
from planner.monitor.result import FleetCheck, Kept, Moved, PoolCheck
from planner.promise import MEAN, Promise
from planner.question.compiled import compile_question
from planner.question.files import SavedPool
from planner.question.options import PlanInputs
from planner.routing import ROUTINGS, Routing
from planner.shared.record import json_number
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

LATELY = 4
"""Stretches at the end of the window, the least busy of which says what a scaler must want by then."""

SLOWEST, FASTEST = 4.0, 0.25
"""Factors on iteration times that are looked for [1]."""


def check_fleet(
    inputs: PlanInputs,
    workload: Workload,
    saved: Sequence[SavedPool],
    series: Mapping[str, Sequence[Series]],
    prefix: str = "fleetopt",
    scalers: Mapping[str, Policy] | None = None,
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
    scalers
        Pool -> the rule that sets its replicas.

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
        of_pool, scaler = found[pool.name], (scalers or {}).get(pool.name)
        moved = [
            x
            for x in _moved(planned, k, of_pool)
            # replicas follow traffic up to the plan's: less is no news
            if not (scaler and x.component == "traffic" and x.measured.value < x.planned)
        ]
        moved += _lost(of_pool, one, scaler)
        if (turned := blind[pool.name]) is not None:
            moved.append(turned)
        factor = _iteration_factor(seen, k, of_pool)
        if factor is not None and (slower := _beyond("iteration time", factor, 1.0)) is not None:
            moved.append(slower)
        taken = factor.value if factor is not None and slower is not None else 1.0
        checks.append(_checked((planned, real, seen), k, of_pool, one, tuple(moved), taken, scaler))
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


def _expected(found: Measured, saved: SavedPool, scaler: Policy | None, rate_per_s: float) -> int:
    """Replicas that should serve: the plan's, or those that a scaler wants at a rate [1/s]."""
    if scaler is None:
        return saved.replicas
    each = {"running": found.running, "waiting": found.waiting, "kv_usage": found.kv_usage}
    totals = {name: found.mean_replicas * x.low for name, x in each.items() if x is not None}
    totals["in_flight"] = totals.get("running", 0.0) + totals.get("waiting", 0.0)
    return scaler.wanted({**totals, "requests": max(0.0, rate_per_s + scaler.offset_per_s)})


def _lost(found: Measured, saved: SavedPool, scaler: Policy | None) -> Iterator[Moved]:
    """Replicas that are not there, or more than were planned; of a scaled fleet fewer than it wants for what came lately."""
    expected = _expected(found, saved, scaler, min(found.rates_per_s[-LATELY:]))
    missing = expected - found.replicas
    if missing > 0 or (missing and scaler is None):
        kind = "missing" if missing > 0 else "more than planned"
        told = "planned" if scaler is None else "its scaler wants"
        yield Moved(
            "replicas",
            expected,
            Estimate(float(found.replicas), 0.0),
            f"replicas: {found.replicas} serve, {told} {expected}: {abs(missing)} {kind}",
        )


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
    means = {name: factor * value for name, value in found.means.items()}
    return replace(found, ttft_s=ttft, tpot_s=tpot, e2e_s=e2e, means=means)


def _served(found: Measured) -> tuple[float, int]:
    """A rate [1/s] and a whole number of replicas that have as much to do each as those had that were there on average."""
    replicas = max(round(found.mean_replicas), 1)
    return found.rate_per_s.value * replicas / max(found.mean_replicas, 1e-9), replicas


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
    rate, replicas = _served(found)

    def mean_tpot(factor: float) -> float:
        return _predict(fleet, k, rate, replicas, MEAN_LEVELS, factor).mean("tpot_s")

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
    fleets: tuple[Fleet, Fleet, Fleet],
    k: int,
    found: Measured,
    saved: SavedPool,
    moved: tuple[Moved, ...],
    factor: float,
    scaler: Policy | None,
) -> PoolCheck:
    """The k-th pool at the traffic measured, with times `factor` times the planned; the fleets are as planned, as measured, and as
    their engines see it."""
    planned, real, seen = fleets
    pool = planned.pools[k]
    rate, replicas = _served(found)
    plain = _predict(seen, k, rate, replicas, tuple(sorted({*real.levels, *MEAN_LEVELS})))
    rising, serving = rate, replicas
    if found.last_rate_per_s > RISING * found.rate_per_s.high:
        rising, serving = found.last_rate_per_s, max(found.replicas, 1)
    lately = _predict(real, k, rising, serving, real.levels, factor)
    kept = tuple(_kept(p, found, lately, real.seen_in(k)) for p in real.promises_on(k))
    size = _size_now(real, k, saved, found, factor)
    expected = _expected(found, saved, scaler, found.rate_per_s.value)
    rows = tuple(_rows((planned, real), k, found, plain, kept, expected, {x.component for x in moved}))
    return PoolCheck(
        pool.name, found, plain, pool.arrival_rate_per_s, expected, moved, kept, size, rows, scaler is not None
    )


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
    over, *ends = (max(of(p) / part.limit_s for p, part in parts) for of in _VALUES)
    limit = promise.limit_s
    most = min(p.most_within for p in known)
    return Promised(Estimate(least, spread), most, over * limit, (ends[0] * limit, ends[1] * limit))


_VALUES: tuple[Callable[[Promised], float], ...] = (lambda p: p.value_s, lambda p: p.ends_s[0], lambda p: p.ends_s[1])


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


def _row(
    pool: str,
    named: set[str],
    quantity: str,
    real: Estimate | float | None,
    told: float | None,
    plan: float | None,
    component: str = "",
    ends: tuple[float, float] = (math.nan, math.nan),
) -> dict[str, object]:
    """One quantity: measured with its ends, predicted, planned, and whether it moved."""
    value = real.value if isinstance(real, Estimate) else real
    low, high = (real.low, real.high) if isinstance(real, Estimate) else ends
    return {
        "pool": pool,
        "quantity": quantity,
        "measured": None if value is None else json_number(float(value)),
        "low": json_number(low),
        "high": json_number(high),
        "predicted": None if told is None else json_number(float(told)),
        "planned": plan,
        "moved": component if component in named else None,
    }


def _rows(
    fleets: tuple[Fleet, Fleet],
    k: int,
    found: Measured,
    predicted: Prediction,
    kept: Sequence[Kept],
    expected: int,
    named: set[str],
) -> Iterator[dict[str, object]]:
    """Measured beside predicted and planned."""
    planned, fleet = fleets
    pool, now, seen = planned.pools[k], fleet.pools[k], fleet.seen_in(k)
    inputs, outputs = planned.work_tokens(k)
    law = now.law
    context = law.mean(m.KV) / law.mean(m.DECODE) if outputs > 0.0 and law.mean(m.DECODE) > 0.0 else law.mean(m.INPUT)

    row = partial(_row, pool.name, named)
    yield row("requests/s", found.rate_per_s, None, pool.arrival_rate_per_s, "traffic")
    if inputs > 0.0:
        yield row("input tokens", found.input_tokens, None, inputs, "input lengths")
    if outputs > 0.0:
        yield row("output tokens", found.output_tokens, None, outputs, "output lengths")
    if inputs > 0.0:
        yield row("cached share", found.cached_share, None, _cached_share(pool), "cache")
    yield row("replicas", float(found.replicas), None, float(expected), "replicas")
    yield row("replicas, mean", found.mean_replicas, None, None)
    yield row("imbalance", found.imbalance, None, None, "routing")
    each = found.rate_per_s.value / max(found.mean_replicas, 1e-9)
    # Little's law: what waits and what runs on a replica is its rate times the time that takes
    waiting = each * predicted.means["wait_s"] if "wait_s" in predicted.means else None
    yield row("running", found.running, predicted.mean_running, None)
    yield row("waiting", found.waiting, waiting, None)
    yield row("kv usage", found.kv_usage, predicted.mean_running * context / max(now.setup.kv_tokens, 1.0), None)
    yield row("preemptions/1000", found.preemptions_per_1000, now.setup.preemptions_per_1000, None)
    for metric in seen:
        component = "iteration time" if metric == "tpot_s" else ""
        yield row(f"mean {metric}", getattr(found, metric), predicted.mean(metric), None, component)
    if "tpot_s" not in seen:
        usual = now.option.copies / now.model.capacity_per_s
        yield row("mean prefill_s", found.prefill_s, usual, None, "iteration time")
    for one in kept:
        stood = one.measured
        value, ends = (None, (math.nan, math.nan)) if stood is None else (stood.value_s, stood.ends_s)
        yield row(f"{one.promise.label} (s)", value, one.predicted_s, one.promise.limit_s, ends=ends) | {
            "moved": None if one.state == "kept" else one.state
        }
