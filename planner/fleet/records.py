"""The public records of a fleet: what a plan says of its pools, their latencies and its traffic."""

from __future__ import annotations

import math
from collections.abc import Iterator

from planner.fleet.fleet import Fleet
from planner.fleet.pool import Pool, broken
from planner.methods.base import same_band
from planner.plans import LatencyValue, PoolPlan, Sized, Sureness
from planner.shared.remarks import Remark
from planner.units import format_count, format_gpus, format_percent
from planner.workload.workload import Workload


def pool_plans(fleet: Fleet, sure: Sureness | None = None) -> tuple[PoolPlan, ...]:
    """The public records of a fleet's pools, with the range of replicas where it is known how `sure` they are."""
    return tuple(_pool_plan(fleet, k, sure) for k in range(len(fleet.pools)))


def sure_remark(sure: Sureness) -> Remark:
    """How sure a fleet is, in words."""
    saves = [n for n in sure.narrowing if n.gpus > 0]
    told = f"; {MEASUREMENTS[saves[0].by]} would take {format_gpus(saves[0].gpus)} less" if saves else ""
    values = {"share": sure.chance, "sizes": _sizes(sure.low.gpus, sure.high.gpus), "narrow": told, "draws": sure.draws}
    return Remark("chance", values)


def _sizes(least: int | None, most: int | None) -> str:
    """The numbers of GPUs that hold the promises with a chance of 10 and of 90%, in words; ``None`` = no number does.

    >>> _sizes(4, 1200)
    '4 GPUs hold them with a chance of 10%, 1,200 with 90%'
    """
    if least is None:
        return "no number of GPUs holds them with a chance of 10%"
    if most is None or most > least:
        more = "no number" if most is None else format_count(most)
        return f"{format_gpus(least)} hold{'s' if least == 1 else ''} them with a chance of 10%, {more} with 90%"
    if most == 1:
        return "1 GPU holds them with a chance of 90%"
    return f"{format_gpus(most)} hold them with a chance of 90%, fewer with less than 10%"


MEASUREMENTS = {
    "calibration": "iteration times measured on this GPU (fleetopt calibrate)",
    "trace": "a trace of more hours",
}
"""What is not known -> the measurement that would say."""


def _pool_plan(fleet: Fleet, k: int, sure: Sureness | None) -> PoolPlan:
    """The public record of one pool."""
    pool = fleet.pools[k]
    prediction, law, profile, price = pool.size.prediction, pool.law, pool.option.profile, pool.option.price
    low, high = (pool.size.replicas,) * 2 if sure is None else (_of_pool(s, k) for s in (sure.low, sure.high))
    mean_input, mean_output = fleet.work_tokens(k)
    return PoolPlan(
        name=pool.name,
        low_tokens=law.lower.boundary,
        high_tokens=law.upper.boundary,
        gamma=law.upper.gamma,
        share=law.share,
        compressed_share=law.compressed_share,
        arrival_rate_per_s=pool.rate_per_s,
        mean_input_tokens=mean_input,
        mean_output_tokens=mean_output,
        gpu=pool.option.gpu.name,
        tp=pool.option.tp,
        profile=profile.name,
        provenance=profile.provenance,
        replicas=pool.bought,
        spares=pool.bought - pool.size.replicas,
        slots=pool.setup.slots * pool.option.copies,
        kv_tokens=pool.setup.kv_tokens * pool.option.copies,
        capacity_per_s=pool.capacity_per_s,
        load=prediction.load,
        slot_occupancy=prediction.slot_occupancy,
        wait_probability=prediction.wait_probability,
        overflow_probability=pool.setup.overflow_probability,
        preemptions_per_1000=pool.setup.preemptions_per_1000,
        latency=tuple(_latency(fleet, pool, fleet.metrics(k))),
        binding=str(pool.size.binding),
        cost_usd_per_hour=pool.cost_usd_per_hour,
        settings=pool.setup.settings,
        replicas_low=price.bought(low or 0),
        replicas_high=None if high is None else price.bought(high),
        warnings=tuple(pool.setup.warnings),
        reason=pool.size.binding,
        pp=pool.option.parallel.pp,
        dp=pool.option.parallel.dp,
        ep=pool.option.parallel.ep,
        iteration=profile.iteration.to_dict(),
    )


def _of_pool(size: Sized, k: int) -> int | None:
    """Replicas of one pool; ``None`` where no number has the chance."""
    return None if size.replicas is None else size.replicas[k]


def _latency(fleet: Fleet, pool: Pool, metrics: tuple[str, ...]) -> Iterator[LatencyValue]:
    """Predicted quantiles with the band of the method's error and the profile's."""
    prediction, band = pool.size.prediction, pool.option.profile.band
    limits = {(p.metric, p.quantile): p.limit_s for p in fleet.promises.latency}
    for metric in metrics:
        bands = prediction.bands.get(metric, same_band(prediction.quantiles, -0.1, 0.1))
        for q, value, (below, above) in zip(prediction.quantiles, getattr(prediction, metric), bands, strict=True):
            # no answer has a second token: there is no time per token
            if q not in fleet.told_levels or math.isnan(value):
                continue
            low, high = value * (1.0 + below) * (1.0 - band), value * (1.0 + above) * (1.0 + band)
            yield LatencyValue(metric, q, value, low, high, limits.get((metric, q)))
    for p in fleet.promises.joint:
        if set(p.limits) <= set(metrics):
            value, (below, above) = prediction.value(p.metric, p.quantile), prediction.band(p.metric, p.quantile)
            low, high = value * (1.0 + below) * (1.0 - band), value * (1.0 + above) * (1.0 + band)
            shares = (prediction.share(p), *prediction.share_band(p, band))
            yield LatencyValue(p.metric, p.quantile, value, low, high, p.limit_s, *shares)


def explained_size(fleet: Fleet, k: int) -> str:
    """What fixes the size of a pool, and what one replica fewer would break."""
    pool = fleet.pools[k]
    n = pool.size.replicas
    line = f"{pool.name}: {n:,} replica{'s' if n != 1 else ''}, fixed by {pool.size.binding}."
    if n <= fleet.promises.min_replicas:
        return line
    load = pool.rate_per_s / ((n - 1) * pool.model.capacity_at(n - 1))
    if pool.size.binding.code == "utilization_cap" and load < 1.0:
        # whatever its latencies would be
        return line + f" With {n - 1:,}: load {load:.2f}."
    slow = fleet.margins(fleet.promises.confidence)[k].slow
    longer = f", iterations {format_percent(slow - 1.0)} longer than the profile's" if slow > 1.0005 else ""
    told = f" With {n - 1:,}{longer}: "
    fewer, promises = fleet.with_one_fewer(k), fleet.promises.latency
    missed = [(p, found) for found in fewer if (p := broken(found, promises)) is not None]
    if fewer[0].load >= 1.0 or math.isinf(fewer[0].ttft_s[-1]):
        bursts = "" if fewer[0].load >= 1.0 else " with its bursts"
        return line + told + f"the pool could not keep up{bursts}."
    if missed:
        worst, found = max(missed, key=lambda pair: pair[1].value(pair[0].metric, pair[0].quantile) / pair[0].limit_s)
        return line + told + f"{worst.label} {worst.tell(found.value(worst.metric, worst.quantile))}."
    return line + told + f"load {fewer[0].load:.2f}."


def workload_summary(workload: Workload) -> dict[str, object]:
    """What the plan says about its traffic."""
    provenance = workload.provenance
    return {
        "name": workload.name,
        "digest": workload.digest,
        "source": provenance.source,
        "licence": provenance.licence,
        "requests": provenance.requests,
        "mean_input_tokens": workload.mean_input,
        "mean_output_tokens": workload.mean_output,
        "longest_tokens": workload.max_total,
        "length_split": provenance.length_split,
        "arrivals": workload.arrivals.to_dict(),
    }
