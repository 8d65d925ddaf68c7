"""Why this fleet: what binds each pool, what one step would change, and what would make the impossible possible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.errors import InfeasibleError
from planner.fleet.pool import FEW_PER_REPLICA, PoolSize, Shortfall, broken, evaluate_pool, smallest_pool
from planner.fleet.problem import Fleet, FleetProblem, PoolCandidate
from planner.fleet.scope import tail_at
from planner.promise import Promise
from planner.units import format_count, format_duration, format_percent
from planner.workload import pools as m

__all__ = ["explain_pool", "fleet_tails", "headroom", "infeasible", "marginal_replicas", "replica_band"]


def explain_pool(problem: FleetProblem, pool: PoolCandidate, name: str) -> list[str]:
    """One or two lines: what binds, and what one replica fewer would break."""
    n = pool.size.replicas
    lines = [f"{name}: {n:,} replica{'s' if n != 1 else ''}, fixed by {pool.size.binding}."]
    if n > problem.inputs.min_replicas:
        fewer = evaluate_pool(pool.model, pool.arrival_rate_per_s, n - 1, problem.levels)
        missed = broken(fewer, problem.promises)
        if math.isinf(fewer.ttft_s[-1]):
            lines[0] += f" With {n - 1:,} the pool could not keep up."
        elif missed is not None:
            value = fewer.held(missed.metric, missed.quantile)
            lines[0] += f" With {n - 1:,}: {missed.label} {format_duration(value)}."
        else:
            lines[0] += f" With {n - 1:,}: load {fewer.load:.2f}."
    prediction = pool.size.prediction
    for p in problem.promises:
        if p.scope == "fleet":
            continue
        value = prediction.held(p.metric, p.quantile)
        if value > 0.9 * p.limit_s:
            margin = prediction.margin(p.metric, p.quantile)
            kept = f", with {format_percent(margin - 1.0)} margin for the method's error" if margin > 1.0005 else ""
            lines.append(f"{name}: {p.label} uses {format_percent(value / p.limit_s)} of its promise{kept}.")
    if problem.inputs.routing == "random" and not problem.fleet_promises:
        line = f"{name}: about {marginal_replicas(problem, pool, traffic=1.1):,} replicas for 10% more traffic"
        if any(p.metric == "ttft_s" for p in problem.promises):
            line += f", {marginal_replicas(problem, pool, ttft_slack_s=0.01):,} if TTFT may take 10 ms longer"
        lines.append(line + ".")
    return lines


def marginal_replicas(
    problem: FleetProblem, pool: PoolCandidate, traffic: float = 1.0, ttft_slack_s: float = 0.0
) -> int:
    """Replicas the pool needs at `traffic` (>= 1) times its rate with TTFT limits longer by `ttft_slack_s` [s].

    Read from the trials of its sizing: under random routing only the rate per replica matters, so k replicas at f times
    the rate are k/f at the rate itself. Interpolated between the trials, so to about one replica; a number below the
    fewest tried is predicted. Engine settings stay as they are.
    """
    limits = [p.limit_s + (ttft_slack_s if p.metric == "ttft_s" else 0.0) for p in problem.promises]
    n = pool.size.replicas
    low = int(problem.least_replicas(pool.option, pool.law.moments, traffic))
    high = max(math.ceil(n * traffic - 1e-9), low)  # as many per unit of traffic as now always suffice
    while low < high:
        middle = (low + high) // 2
        size = pool.size
        if middle / traffic < size.trials[0][0] and traffic > 1.0:
            more = pool.model.predict(pool.arrival_rate_per_s * traffic, middle, problem.levels)
            values = tuple(more.held(p.metric, p.quantile) for p in problem.promises)
            size = replace(size, trials=((middle / traffic, values),))
        if _within(problem, pool, size, middle / traffic, limits):
            high = middle
        else:
            low = middle + 1
    return high


def replica_band(problem: FleetProblem, pool: PoolCandidate) -> tuple[int, int | None]:
    """Replicas needed if iterations took ``1 -+ band`` times as long; ``None`` where no number would do at the slow end.

    The band is the profile's and twice the standard error of the mean work per request (the sampling error of the
    workload), added as independent errors.

    Scaling all times by s at rate lambda is the same as the unscaled pool at rate s lambda with limits divided by s.
    """
    band = math.hypot(pool.option.profile.band, 2.0 * sampling_error(problem, pool))
    least, n = problem.inputs.min_replicas, pool.size.replicas
    if problem.fleet_promises:
        # what one pool needs depends on the others: the load alone scales with the iteration time
        return max(least, math.ceil(n * (1.0 - band))), math.ceil(n * (1.0 + band))
    low = _fewest(problem, pool, max(1.0 - band, 0.05), least, n)
    slow = 1.0 + band
    size = pool.size
    if not _keeps(problem, pool, size, n, slow):
        # one more trial, far enough for the slow end in most cases
        far = math.ceil(n * slow * slow) + 1
        more = pool.model.predict(pool.arrival_rate_per_s, far, problem.levels)
        values = tuple(more.held(p.metric, p.quantile) for p in problem.promises)
        size = replace(size, trials=(*size.trials, (far, values)) if far > size.trials[-1][0] else size.trials)
    top = size.trials[-1][0] * slow
    if _keeps(problem, pool, size, math.ceil(top), slow):
        high: int | Shortfall = _fewest(problem, pool, slow, n, math.ceil(top), size)
    else:
        high = _at_scale(problem, pool, slow)
    return low, None if isinstance(high, Shortfall) else max(high, n)


def _keeps(problem: FleetProblem, pool: PoolCandidate, size: PoolSize, n: int, scale: float) -> bool:
    """Whether n replicas would do if every time were `scale` times as long, judged from the trials of `size`."""
    return _within(problem, pool, size, n / scale, [p.limit_s / scale for p in problem.promises])


def _within(
    problem: FleetProblem, pool: PoolCandidate, size: PoolSize, replicas: float, limits_s: Sequence[float]
) -> bool:
    """Whether a fractional number of replicas keeps the utilization cap and these limits, judged from the trials."""
    load = pool.arrival_rate_per_s / (replicas * pool.model.capacity_per_s)
    values = size.held_at(replicas)
    if load > problem.inputs.utilization_cap * (1.0 + 1e-12) or values is None:
        return False
    return all(v <= limit for v, limit in zip(values, limits_s, strict=True))


def _fewest(
    problem: FleetProblem, pool: PoolCandidate, scale: float, low: int, high: int, size: PoolSize | None = None
) -> int:
    """Smallest number in low..high that :func:`_keeps` accepts; `high` when none below does."""
    size = size or pool.size
    while low < high:
        middle = (low + high) // 2
        if _keeps(problem, pool, size, middle, scale):
            high = middle
        else:
            low = middle + 1
    return high


def sampling_error(problem: FleetProblem, pool: PoolCandidate) -> float:
    """Relative standard error of the pool's work per request, from the number of requests behind the workload.

    Delta method: the coefficient of variation of prefill work over the root of the pool's share of the requests.
    """
    requests = problem.workload.provenance.requests
    mean = pool.law.mean(m.NEW_INPUT)
    if not requests or mean <= 0.0:
        return 0.0
    scv = max(pool.law.mean(m.NEW_INPUT2) / (mean * mean) - 1.0, 0.0)
    return math.sqrt(scv / max(requests * pool.law.share, 1.0))


def _at_scale(problem: FleetProblem, pool: PoolCandidate, scale: float) -> int | Shortfall:
    promises = [Promise(p.metric, p.limit_s / scale, p.quantile, p.scope) for p in problem.promises]
    size = smallest_pool(
        pool.model,
        pool.arrival_rate_per_s * scale,
        promises,
        problem.inputs.utilization_cap,
        max(problem.inputs.min_replicas, pool.size.replicas),
        problem.levels,
        start=math.ceil(pool.size.replicas * scale * scale),
    )
    return size if isinstance(size, Shortfall) else size.replicas


def infeasible(problem: FleetProblem, fleet: Fleet) -> InfeasibleError:
    """The error that says which promise binds, the best that is achievable, and what would help."""
    shortfalls = fleet.shortfalls
    best = _nearest_fleet(problem)
    if fleet.beyond_stock is not None:
        return beyond_stock(problem, fleet.beyond_stock, fleet.outcome.proven)
    if not shortfalls or (best is not None and best.best_s <= best.promise.limit_s):
        return InfeasibleError(
            "no pool can hold its longest request in memory with one slot",
            "Take more memory per replica (--tp), a shorter --max-model-len, quantized weights, or fewer --max-num-seqs.",
        )
    worst = best or _best_shortfall(shortfalls)
    p = worst.promise
    message = (
        f"{p.label} <= {format_duration(p.limit_s)} cannot be kept by any number of replicas: "
        f"even idle, the best fleet needs {format_duration(worst.best_s)}"
    )
    lines = [f"relax {p.label} to {format_duration(1.05 * worst.best_s)} or more"]
    if p.metric == "ttft_s":
        lines.append(
            "a faster prefill: more GPUs per replica (--tp all), a faster GPU (--gpu), or a prefix cache (--cached-share)"
        )
        if p.quantile >= 0.99 and problem.inputs.pools == 1:
            lines.append("serve the longest prompts in a pool of their own (--pools 2)")
        lines.append("promise long prompts less: cut the workload, or promise a lower quantile (--slo ttft:p95=...)")
    elif p.metric == "tpot_s":
        lines.append(
            "a smaller --token-budget, more GPUs per replica (--tp all), or memory with more bandwidth (--gpu)"
        )
    else:
        lines.append("shorter outputs, or a GPU with more memory bandwidth (--gpu)")
    if problem.inputs.method == "mgc":
        lines.append(
            f"the method: mgc times every iteration with all {format_count(max(_slots(problem)))} slots busy; "
            "--method mixed or occupancy uses the slots that are"
        )
    return InfeasibleError(message, "What would help:", lines)


def beyond_stock(problem: FleetProblem, needed: Mapping[str, int], proven: bool) -> InfeasibleError:
    """The error that says how many GPUs are missing."""
    have = ", ".join(f"{name}: {count:,}" for name, count in problem.stock.items())
    takes = ", ".join(f"{name}: {count:,}" for name, count in needed.items())
    lines = [f"an inventory of {takes}: the cheapest fleet without one", "another GPU type beside these (--gpu)"]
    if not proven:
        lines.append("a search until proven (--max-evaluations 0): this one stopped before every fleet was ruled out")
    return InfeasibleError(
        f"no fleet within the inventory ({have}) serves {format_count(problem.rate)} requests/s",
        "What would help:",
        lines,
    )


def _slots(problem: FleetProblem) -> list[int]:
    return [setup.slots for _, setup, _ in problem.built().values()] or [0]


def _nearest_fleet(problem: FleetProblem) -> Shortfall | None:
    """What breaks first in the idle fleet of one or two pools that comes nearest to its promises; ``None`` if unknown.

    A single pool may come nearer, but a fleet serves every request: the worst of its pools is what it achieves.
    """
    if problem.fleet_promises:
        return None
    top = len(problem.states) - 1

    def idle(i: int, j: int) -> Shortfall | None:
        found = []
        for k in range(len(problem.options)):
            if (built := problem._build(i, j, k)) is not None:
                prediction = built[2].predict(FEW_PER_REPLICA, 1, problem.levels)
                values = [Shortfall(p, prediction.held(p.metric, p.quantile)) for p in problem.promises]
                found.append(max(values, key=_miss))
        return min(found, key=_miss, default=None)

    fleets = [idle(0, top)]
    inner = [s for s in range(1, top) if problem.states[s].gamma == 1.0] if problem.inputs.pools > 1 else []
    # every option costs the same again: fewer boundaries then
    tried = max(2, 8 // len(problem.options))
    for s in inner[:: max(1, len(inner) // tried)]:
        parts = [idle(0, s), idle(s, top)]
        known = [part for part in parts if part is not None]
        fleets.append(max(known, key=_miss) if len(known) == 2 else None)
    return min((f for f in fleets if f is not None), key=_miss, default=None)


def _miss(shortfall: Shortfall) -> float:
    return shortfall.best_s / shortfall.promise.limit_s


def _best_shortfall(shortfalls: Sequence[Shortfall]) -> Shortfall:
    """The one nearest to its promise: what the best fleet of the grid fails on."""
    return min(shortfalls, key=_miss)


def headroom(problem: FleetProblem, pools: Sequence[PoolCandidate]) -> float:
    """Largest factor on the traffic that the fleet as it stands still serves within all promises, to 8%, rounded down."""
    if problem.inputs.routing == "random" and not problem.fleet_promises:
        known = [_known_headroom(problem, pool) for pool in pools]
        found = [f for f in known if f is not None]
        if len(found) == len(known):
            return min(found)
    high = math.inf
    for pool in pools:
        n = pool.size.replicas
        high = min(high, problem.inputs.utilization_cap * n * pool.model.capacity_per_s / pool.arrival_rate_per_s)
    low = 1.0
    if high <= 1.08:
        return low
    if _holds(problem, pools, high * (1.0 - 1e-9)):
        return high
    while high / low > 1.08:
        middle = math.sqrt(low * high)
        if _holds(problem, pools, middle):
            low = middle
        else:
            high = middle
    return low


def _known_headroom(problem: FleetProblem, pool: PoolCandidate) -> float | None:
    """The factor on one pool's traffic that its trials allow; ``None`` when none with fewer replicas was tried."""
    n = pool.size.replicas
    cap = problem.inputs.utilization_cap * n * pool.model.capacity_per_s / pool.arrival_rate_per_s
    if cap <= 1.02:
        return max(cap, 1.0)
    if pool.size.trials[0][0] >= n:
        return None
    low, high = 1.0, min(cap, n / pool.size.trials[0][0])
    for _ in range(30):
        middle = 0.5 * (low + high)
        values = pool.size.held_at(n / middle)
        if values is not None and all(v <= p.limit_s for v, p in zip(values, problem.promises, strict=True)):
            low = middle
        else:
            high = middle
    return low


def _holds(problem: FleetProblem, pools: Sequence[PoolCandidate], factor: float) -> bool:
    promises = [p for p in problem.promises if p.scope == "pool"]
    tails = [0.0] * len(problem.fleet_promises)
    for pool in pools:
        rate = pool.arrival_rate_per_s * factor
        if rate > problem.inputs.utilization_cap * pool.size.replicas * pool.model.capacity_per_s:
            return False
        prediction = pool.model.predict(rate, pool.size.replicas, problem.levels)
        if broken(prediction, promises) is not None:
            return False
        for k, p in enumerate(problem.fleet_promises):
            tails[k] += pool.law.share * tail_at(prediction, p.metric, p.limit_s)
    return all(tail <= 1.0 - p.quantile + 1e-12 for tail, p in zip(tails, problem.fleet_promises, strict=True))


def fleet_tails(problem: FleetProblem, pools: Sequence[PoolCandidate]) -> list[str]:
    """How the fleet-wide promises are kept: the share of all requests beyond each limit."""
    lines = []
    for p in problem.fleet_promises:
        tails = [pool.law.share * tail_at(pool.size.prediction, p.metric, p.limit_s) for pool in pools]
        lines.append(
            f"{format_percent(math.fsum(tails))} of all requests exceed {format_duration(p.limit_s)} "
            f"{p.metric.removesuffix('_s').upper()} (promised: at most {format_percent(1.0 - p.quantile)})."
        )
    return lines
