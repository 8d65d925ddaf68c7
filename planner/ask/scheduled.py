"""Fleets that run another scheduler than the engine's own: sized by the theory's capacity, then by simulation of the policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.ask.replica import NEVER_S, PooledReplica, capacity, pooled_replicas
from planner.errors import InfeasibleError, InputError
from planner.papers.policy import Situation, find_policy
from planner.papers.run import Run, as_requests, run_policy
from planner.papers.statistics import latencies, mean_of_batches
from planner.papers.traffic import sample_rows, whole_tokens
from planner.plans import LatencyValue, Plan, PoolPlan
from planner.predict.engine import Canonical, Request
from planner.promise import GOODPUT, MEAN, Promise
from planner.question.compiled import compile_question
from planner.question.files import question_of
from planner.question.options import PlanInputs
from planner.shared.remarks import Remark
from planner.size.shapes import find_shape, standing_fleet
from planner.workload.workload import Workload

REQUESTS, FEWEST, TOKENS, RUNS = 2500, 600, 500_000, 3
"""Requests of a run at most and at least, output tokens between them, and runs: the interval of a P99 rests on the runs."""
GROWTH_LIMIT = 16
"""No fleet more than so many times what the capacity asks for is tried."""
RELAXED_TBT_S = 0.5
"""Time between tokens that SLAI keeps where no TPOT is promised: the paper's for its free tier [s]."""
POLICIES = {"sarathi": "mixed", "eb": "eb", "slai": "slai", "wait": "wait", "rad": "rad"}
"""Name of a scheduler -> policy of the simulator."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """A number of replicas as simulated: half-widths are of 95% intervals over the runs."""

    values: Mapping[Promise, Any]
    evictions: float
    holds: bool


def with_scheduler(
    plan: Plan,
    inputs: PlanInputs,
    workload: Workload,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """The plan with its pools run by another scheduler.

    Parameters
    ----------
    plan, inputs, workload
        The plan for the engine's own scheduler, the question, whose ``scheduler`` says which other, and the traffic.
    progress
        Called with (pools done, all pools).

    Returns
    -------
    Plan
        Boundaries, GPUs and engine settings as before; replicas the least number at which the simulated policy keeps every
        promise, no fewer than its capacity and the utilization cap ask for; latencies simulated, bands their 95% intervals.
        `scheduler`: by pool the capacity by theory and as simulated with a backlog [1/s], settings, replicas before and after.

    Raises
    ------
    InputError
        The question has what the theory of the scheduler and the simulator know nothing of.
    InfeasibleError
        No number of replicas keeps the promises under this scheduler.
    """
    name = inputs.scheduler
    fleet = standing_fleet(compile_question(inputs, workload), question_of(plan).pools)
    others = {
        "prefill and decode on pools of their own (--shape)": find_shape(plan.shape).divides_roles,
        "sessions and prefix caches (--cached-share 0, --set prefix_cache=off)": any(
            p.law.cached_share.any() for p in fleet.pools
        ),
        "speculation (--speculate)": inputs.speculate is not None,
    }
    if without := [other for other, asked in others.items() if asked]:
        raise InputError(f"scheduler: the theory of {name} knows nothing of {without[0]}", "Leave one of them out.")
    pools = pooled_replicas(fleet)
    if any(p.kind == GOODPUT for p in inputs.promises):
        raise InputError(
            f"scheduler: {name} is sized for single promises, not for goodput", "Promise TTFT, TPOT or E2E."
        )
    rows, found = [], []
    for done, (pool, replica) in enumerate(zip(plan.pools, pools, strict=True), start=1):
        sized, row = _pool(pool, replica, inputs)
        found.append(sized)
        rows.append(row)
        if progress is not None:
            progress(done, len(pools))
    before, after = plan.cost_usd_per_hour, math.fsum(p.cost_usd_per_hour for p in found)
    told = [Remark("scheduler", {**row, "scheduler": name}) for row in rows]
    told.append(Remark("scheduler_costs", {"scheduler": name, "usd_per_hour": after, "own_usd_per_hour": before}))
    assumed = Remark("scheduler_poisson", {"scheduler": name, "runs": RUNS, "requests": min(map(_size, pools))})
    return replace(
        plan,
        pools=tuple(found),
        scheduler={"name": name, "cost_usd_per_hour": after, "own_cost_usd_per_hour": before, "pools": rows},
        explanation=tuple(map(str, told)),
        sureness=None,
        assumptions=(*plan.assumptions, str(assumed)),
        remarks={**plan.remarks, "assumptions": (*plan.remarks.get("assumptions", ()), assumed)},
    )


def _pool(pool: PoolPlan, replica: PooledReplica, inputs: PlanInputs) -> tuple[PoolPlan, dict[str, object]]:
    """One pool under the scheduler, and what is told of it."""
    name = inputs.scheduler
    per_replica, source = capacity(replica, name)
    backlogged = _with_backlog(replica, inputs, per_replica)
    # the theory knows neither evictions nor what whole requests do to a column or a threshold
    sustained = min(per_replica, backlogged)
    least = max(math.ceil(pool.arrival_rate_per_s / (sustained * inputs.utilization_cap) - 1e-9), inputs.min_replicas)
    if name == "sarathi":  # which the closed forms of the plan are of
        count = pool.replicas - pool.spares
        trial = _try(replica, pool.arrival_rate_per_s / count, inputs)
    else:
        count, trial = _least(least, pool.arrival_rate_per_s, replica, inputs)
    rate = pool.arrival_rate_per_s / count
    settings = find_policy(POLICIES[name]).defaults(_situation(replica, rate))
    bought = count + pool.spares
    latency = tuple(
        LatencyValue(p.metric, p.quantile, e.value, e.low, e.high, p.limit_s if p in inputs.promises else None)
        for p, e in trial.values.items()
    )
    sized = replace(
        pool,
        replicas=bought,
        replicas_low=bought,
        replicas_high=bought,
        capacity_per_s=sustained,
        load=rate / sustained,
        latency=latency,
        preemptions_per_1000=trial.evictions,
        binding=f"simulated {name}" if count > least else f"capacity of {name} and the utilization cap",
        reason=None,
        cost_usd_per_hour=pool.cost_usd_per_hour * bought / pool.replicas,
    )
    row: dict[str, object] = {
        "pool": pool.name,
        "capacity_per_s": per_replica,
        "source": source,
        "simulated_per_s": backlogged,
        "settings": {k: v for k, v in settings.items() if isinstance(v, (int, float, str, dict))},
        "replicas": bought,
        "own_replicas": pool.replicas,
        "least_replicas": least + pool.spares,
    }
    return sized, row


def _with_backlog(replica: PooledReplica, inputs: PlanInputs, per_replica: float) -> float:
    """Completions per second while everything waits from the start: the middle half, when slots lost step and before they drain."""
    count = max(_size(replica), 6 * replica.slots)
    rate = inputs.utilization_cap * per_replica
    run = _run(replica, inputs.scheduler, _requests(replica, None, 0, inputs, count), rate)
    done = np.sort([r.done_s for r in run.requests if math.isfinite(r.done_s)])
    first, last = done.size // 4, 3 * done.size // 4
    return float((last - first) / (done[last] - done[first]))


def _least(least: int, rate_per_s: float, replica: PooledReplica, inputs: PlanInputs) -> tuple[int, _Trial]:
    """The smallest number of replicas that keeps the promises in simulation, from `least` up: doubled, then halved."""
    trials: dict[int, _Trial] = {}

    def holds(count: int) -> bool:
        if count not in trials:
            trials[count] = _try(replica, rate_per_s / count, inputs)
        return trials[count].holds

    high = least
    while not holds(high):
        if high >= GROWTH_LIMIT * least:
            value = max(trials[high].values.items(), key=lambda item: item[1].value / item[0].limit_s)
            raise InfeasibleError(
                f"scheduler {inputs.scheduler}: {high:,} replicas, {GROWTH_LIMIT} times what its capacity asks for, leave "
                f"{value[0].label} at {value[1].value:.3g} s, above the {value[0].limit_s:g} s promised",
                "Promise more time, or leave the engine its own scheduler.",
            )
        high *= 2
    low = max(high // 2, least - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high, trials[high]


def _try(replica: PooledReplica, rate_per_s: float, inputs: PlanInputs) -> _Trial:
    """One replica at its rate, simulated."""
    promises = [*inputs.promises, *_also(inputs)]
    samples: dict[Promise, list[float]] = {p: [] for p in promises}
    count, evictions, peak, unfinished = _size(replica), [], 0.0, 0
    for seed in range(RUNS):
        run = _run(replica, inputs.scheduler, _requests(replica, rate_per_s, seed, inputs, count), rate_per_s)
        counted = [r for r in run.requests[count // 10 :] if math.isfinite(r.done_s)]
        # the last threshold's worth waits for arrivals that never come
        unfinished = max(unfinished, len(run.requests) - count // 10 - len(counted))
        times = latencies(counted)
        for p in promises:
            values = times[p.metric] + (0.0 if p.metric == "tpot_s" else replica.overhead_s)
            told = (
                (np.mean(values) if p.quantile == MEAN else np.quantile(values, p.quantile))
                if values.size
                else math.inf
            )
            samples[p].append(float(told))
        evictions.append(1000.0 * run.evictions / len(run.requests))
        peak = max(peak, float(run.peak_held))
    found = {p: mean_of_batches(np.array(v)) for p, v in samples.items()}
    kept = all(found[p].value <= p.limit_s for p in inputs.promises)
    fits = peak <= replica.kv_tokens and unfinished < count // 10
    return _Trial(found, float(np.mean(evictions)), kept and fits)


def _size(replica: PooledReplica) -> int:
    """Requests of a run: fewer where outputs are long."""
    return int(min(max(TOKENS / replica.mean_output, FEWEST), REQUESTS))


def _also(inputs: PlanInputs) -> Iterator[Promise]:
    """Quantiles that are shown without a promise."""
    have = {(p.metric, p.quantile) for p in inputs.promises}
    for metric in ("ttft_s", "tpot_s"):
        if (metric, 0.99) not in have:
            yield Promise(metric, NEVER_S, 0.99)


def _requests(
    replica: PooledReplica, rate_per_s: float | None, seed: int, inputs: PlanInputs, count: int
) -> list[Request]:
    """Requests of the pool's law at Poisson times; all at time 0 without a rate."""
    rng = np.random.Generator(np.random.PCG64([7, seed]))
    law = replica.law
    rows = sample_rows(law.weight, law.weight.size, count, rng)
    times = np.zeros(count) if rate_per_s is None else np.cumsum(rng.exponential(1.0 / rate_per_s, count))
    tpot = min((p.limit_s for p in inputs.promises if p.metric == "tpot_s"), default=RELAXED_TBT_S)
    lengths = whole_tokens(law.input_tokens, "input")[rows], whole_tokens(law.output_tokens, "output")[rows]
    return as_requests(times, *lengths, np.zeros(count, dtype=int), np.full(count, tpot))


def _situation(replica: PooledReplica, rate_per_s: float) -> Situation:
    """What the policy's settings are chosen for, at a rate of this replica [1/s]."""
    r = replica
    return Situation(r.slots, r.token_budget, r.iteration, r.mean_input, r.mean_output, rate_per_s)


def _run(replica: PooledReplica, scheduler: str, requests: Sequence[Request], rate_per_s: float) -> Run:
    """One replica under the policy, with the settings its theory chooses at this rate."""
    entry = find_policy(POLICIES[scheduler])
    settings = entry.defaults(_situation(replica, rate_per_s))
    return run_policy(requests, POLICIES[scheduler], Canonical(replica.iteration), settings, replica.kv_tokens)
