"""What a simulated pool did: the window that is measured, whether the pool kept up, and the result of several runs together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from planner.papers.presets import PoolEngines
from planner.papers.statistics import Estimate, enough_for, estimate_of, mean_of_batches, too_short
from planner.papers.traffic import Sent
from planner.predict.records import Floats, Run
from planner.promise import MEAN
from planner.routing import find_routing
from planner.shared.record import Record

WARM_UP = 0.1
"""Share of the requests, in order of arrival, that is not measured at the beginning."""
COOL_DOWN = 0.05
"""Share not measured at the end, where no later arrival disturbs anybody."""
TURNOVERS = 5
"""Mean residence times the warm-up lasts at least."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The measured requests of one seed, in order of arrival: times [s] (TPOT only of those with two tokens or more)."""

    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    e2e_s: NDArray[np.float64]

    def within(self, limits: Mapping[str, float]) -> NDArray[np.float64]:
        """1 for every request within all limits [s], 0 for the others; one without a TPOT keeps it. Shape (requests,)."""
        kept = self.ttft_s <= limits.get("ttft_s", math.inf)
        kept &= self.e2e_s <= limits.get("e2e_s", math.inf)
        # the first token of one token is its last
        several = self.e2e_s > self.ttft_s
        kept[several] &= self.tpot_s <= limits.get("tpot_s", math.inf)
        return kept.astype(float)


@dataclass(frozen=True, slots=True)
class SimulationResult(Record):
    """What a simulated pool did, with 95% intervals from batch means.

    Parameters
    ----------
    ttft_s, tpot_s, e2e_s
        Quantile -> estimate [s].
    ttft_mean_s, tpot_mean_s, e2e_mean_s
        Means [s].
    throughput_per_s
        Completions per second while requests arrived, over seeds [1/s].
    arrival_rate_per_s
        Realised rate [1/s].
    busy_fraction
        Share of time a replica was in an iteration.
    mean_running
        Requests resident in a replica, time average.
    slot_occupancy
        `mean_running` / slots; None without a slot limit.
    preemptions_per_request
        Evictions per request sent.
    stable
        False when the backlog grew all the time: then no quantile means anything.
    sent, completed, rejected, pending
        Requests over all seeds; `rejected` were turned away or given up for good, `pending` were never answered otherwise.
    preset, routing, replicas, seeds, requests
        How it was run; `requests` per seed.
    warnings
        What to know before believing it.
    whole
        Whether runs are other draws of a trace that is all there is: then intervals are the range of the runs.
    clients
        What clients met: goodput, shares of attempts turned away and given up, attempts per request, shares of the prompts found in
        caches and in host memory; ``None`` where nothing is limited and nothing comes back.
    samples
        The measured times by seed (not part of ``to_dict``).
    """

    ttft_s: Mapping[float, Estimate]
    tpot_s: Mapping[float, Estimate]
    e2e_s: Mapping[float, Estimate]
    ttft_mean_s: Estimate
    tpot_mean_s: Estimate
    e2e_mean_s: Estimate
    throughput_per_s: Estimate
    arrival_rate_per_s: float | None
    busy_fraction: Estimate
    mean_running: Estimate
    slot_occupancy: float | None
    preemptions_per_request: float
    stable: bool
    sent: int
    completed: int
    rejected: int
    pending: int
    preset: str
    routing: str
    replicas: int
    seeds: tuple[int, ...]
    requests: int
    warnings: tuple[str, ...] = ()
    whole: bool = False
    clients: Mapping[str, float] | None = None
    samples: tuple[Sample, ...] = field(default=(), repr=False, compare=False)

    def quantile(self, metric: str, share: float) -> Estimate:
        """Estimate of the `share` quantile of ``ttft_s``, ``tpot_s`` or ``e2e_s``, of their mean where it is
        :data:`planner.promise.MEAN`, from the measured times."""
        known: Mapping[float, Estimate] = getattr(self, metric)
        if share in known:
            return known[share]
        return estimate_of([getattr(s, metric) for s in self.samples], None if share == MEAN else share, self.whole)

    def share_within(self, limits: Mapping[str, float], share: float) -> Estimate:
        """Share of the requests within all limits [s], long enough a run where `share` of them is promised [1]."""
        found = estimate_of([s.within(limits) for s in self.samples], whole=self.whole)
        measured = sum(s.ttft_s.size for s in self.samples)
        return replace(found, enough=found.enough and enough_for(share, measured))


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """One run of a pool.

    Parameters
    ----------
    sent, run
        What was sent, in the units of the replicas, and what became of it.
    output_tokens
        Output lengths [tokens], shape (requests,).
    own
        The pool's replicas among those of the run.
    replicas
        How many those are.
    limited
        Whether clients or caches were followed, and are told of.
    decodes
        Whether it is the decode pool of a pair.
    """

    sent: Sent
    run: Run
    output_tokens: Floats
    own: slice
    replicas: int
    limited: bool = False
    decodes: bool = False


def result_of(
    played: Sequence[Played],
    engines: PoolEngines,
    seeds: tuple[int, ...],
    quantiles: Sequence[float],
) -> SimulationResult:
    """The runs of all seeds together, with intervals."""
    whole = played[0].sent.whole
    estimate = partial(estimate_of, whole=whole)
    seen = [_measured(p, engines) for p in played]
    samples = tuple(m.sample for m in seen)
    unstable = sum(m.unstable for m in seen)
    stable = unstable * 2 < len(played) or unstable == 0
    sent = sum(p.run.sent_s.size for p in played)
    completed = sum(int(np.isfinite(p.run.done_s).sum()) for p in played)
    lost = [np.isnan(p.run.done_s) & (p.run.rejected + p.run.given_up > 0) for p in played]
    rejected = sum(int(rows.sum()) for rows in lost)
    warnings = _warnings(stable, all(m.settled for m in seen), 0 if played[0].limited else rejected, sent)
    measured = sum(s.ttft_s.size for s in samples)
    times = {name: [getattr(s, name) for s in samples] for name in ("ttft_s", "tpot_s", "e2e_s")}
    for q in quantiles:
        if not estimate(times["ttft_s"], q).enough:
            warnings.append(too_short(q, measured))
    tables = {name: {float(q): estimate(found, q) for q in quantiles} for name, found in times.items()}
    mean_running = mean_of_batches(np.array([m.running for m in seen]))
    rates = [m.came_per_s for m in seen if math.isfinite(m.came_per_s)]
    accounts = [m.clients for m in seen if m.clients]
    return SimulationResult(
        **tables,
        ttft_mean_s=estimate(times["ttft_s"]),
        tpot_mean_s=estimate(times["tpot_s"]),
        e2e_mean_s=estimate(times["e2e_s"]),
        throughput_per_s=mean_of_batches(np.concatenate([m.rates for m in seen])),
        arrival_rate_per_s=float(np.mean(rates)) if rates else None,
        busy_fraction=mean_of_batches(np.array([m.busy for m in seen])),
        mean_running=mean_running,
        slot_occupancy=mean_running.value / engines.slots if math.isfinite(engines.slots) else None,
        preemptions_per_request=sum(m.preemptions for m in seen) / max(sent - rejected, 1),
        stable=stable,
        sent=sent,
        completed=completed,
        rejected=rejected,
        pending=sent - rejected - completed,
        preset=engines.preset,
        routing=find_routing(engines.routing).name,
        replicas=engines.count,
        seeds=seeds,
        requests=sent // len(played),
        warnings=tuple(dict.fromkeys(warnings)),
        whole=whole,
        clients={key: float(np.mean([c[key] for c in accounts])) for key in accounts[0]} if accounts else None,
        samples=samples,
    )


def _warnings(stable: bool, settled: bool, rejected: int, sent: int) -> list[str]:
    """What to know of the runs before believing them."""
    warnings = []
    if not stable:
        warnings.append(
            "unstable: the backlog grows as long as requests arrive, so the quantiles only tell how long the run was"
        )
    if rejected:
        warnings.append(f"{rejected:,} of {sent:,} requests can never fit into a replica's KV memory and were rejected")
    if stable and not settled:
        warnings.append("the run is short against the time requests stay: the beginning may still be felt")
    return warnings


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """What one run shows between its warm-up and its end."""

    sample: Sample
    came_per_s: float
    rates: Floats  # completions [1/s] in ten parts of that time; none in a window without length
    busy: float
    running: float
    preemptions: int
    unstable: bool
    settled: bool
    clients: Mapping[str, float] = field(default_factory=dict)


def _measured(played: Played, engines: PoolEngines) -> _Measured:
    """The requests of a run that count, and what the replicas did meanwhile."""
    sent, run = played.sent, played.run
    rows, settled = _counted(sent, run)
    rows = rows[np.isfinite(run.done_s[rows])]
    steps = played.output_tokens[rows] - 1.0
    several = steps > 0.0
    ttft, e2e = (values[rows] + engines.api_overhead_s for values in (run.ttft_s, run.e2e_s))
    sample = Sample(ttft, (e2e - ttft)[several] / steps[several], e2e)
    # a few replicas may stand for many
    scale = engines.count / played.replicas
    came = (run.sent_s.size - 1) / sent.span_s if sent.span_s > 0.0 else math.nan
    rates = np.empty(0)
    lasted = sent.span_s
    if not sent.apart and rows.size:
        done = np.sort(run.done_s[np.isfinite(run.done_s)])
        first = float(run.sent_s.min())
        lasted = max(float(done[-1]) - first, 1e-9)
        # sessions that began go on after the last has begun
        span = float(run.sent_s.max()) - first if sent.requests.following is None else sent.span_s
        came = (run.sent_s.size - 1) / span if span > 0.0 else math.nan
        edges = np.linspace(float(run.sent_s[rows].min()), float(run.sent_s[rows].max()), 11)
        if edges[-1] > edges[0]:
            rates = scale * np.diff(np.searchsorted(done, edges)) / np.diff(edges)
    busy, running = (
        float(total[played.own].sum()) / (played.replicas * lasted) for total in (run.busy_s, run.resident_s)
    )
    return _Measured(
        sample,
        scale * came,
        rates,
        min(busy, 1.0),
        running,
        0 if played.own.stop else int(run.preempted.sum()),
        not (sent.whole or sent.apart) and _backlog_grows(played),
        settled,
        account(sent, run) if played.limited else {},
    )


def _counted(sent: Sent, run: Run) -> tuple[NDArray[np.int64], bool]:
    """Rows that are measured, as often as they count, and whether the warm-up lasted :data:`TURNOVERS` mean residence times."""
    total, weight = run.sent_s.size, sent.requests.weight
    if weight is not None:
        rows = np.flatnonzero(weight > 0.0)
        own = weight[rows]
        if rows.size and float(own.min()) < float(own.max()):
            below = np.cumsum(own)
            rows = rows[np.searchsorted(below, (np.arange(rows.size) + 0.5) / rows.size * below[-1])]
        return rows, True
    if sent.whole:
        return np.arange(total), True
    low, high = math.floor(WARM_UP * total), math.floor((1.0 - COOL_DOWN) * total)
    times = run.sent_s
    stay = float(np.nanmean(run.e2e_s)) if np.isfinite(run.e2e_s).any() else math.inf
    if high > low and times[low] - times[0] < TURNOVERS * stay and math.isfinite(stay):
        low = min(int(np.searchsorted(times, times[0] + TURNOVERS * stay)), total // 2)
    settled = high > low and bool(times[low] - times[0] >= 0.999 * TURNOVERS * stay)
    return np.arange(low, max(high, low + 1)), settled


def _backlog_grows(played: Played) -> bool:
    """Whether the number waiting in the pool grows all the time: by more than 2% of the arrivals of the last half."""
    run = played.run
    comes, through = (run.moved_s, run.done_s) if played.decodes else (run.sent_s, run.first_s)
    answered = np.isfinite(comes) & np.isfinite(through)
    times, started = np.sort(comes[answered]), np.sort(through[answered])
    total = times.size
    if total < 1000:
        return False

    def waiting(u: float, v: float) -> float:
        positions = np.arange(math.floor(u * total), math.floor(v * total))
        return float(np.mean(positions + 1 - np.searchsorted(started, times[positions], side="right")))

    early, middle, late = waiting(0.3, 0.5), waiting(0.5, 0.75), waiting(0.8, 1.0)
    return late - early > 0.02 * 0.5 * total and late > middle > early and late > 1.4 * early


def account(sent: Sent, run: Run) -> dict[str, float]:
    """What clients met: rates and shares of what counts; of prompt tokens, what was found on the GPU and in host memory."""
    requests = sent.requests
    counts = np.arange(requests.size) >= WARM_UP * requests.size if requests.weight is None else requests.weight > 0.0
    attempts, wanted = max(float(run.attempts[counts].sum()), 1.0), float(counts.sum())
    lasted = max(sent.span_s * wanted / requests.size, 1e-9)
    start = float(run.sent_s[counts].min())
    served = counts & np.isfinite(run.done_s) if sent.apart else (run.done_s >= start) & (run.done_s <= start + lasted)
    answered = counts & np.isfinite(run.first_s)
    prompts = max(float(requests.input_tokens[answered].sum()), 1.0)
    return {
        "demand_per_s": wanted / lasted,
        "goodput_per_s": float(served.sum()) / lasted,
        "rejected_share": float(run.rejected[counts].sum()) / attempts,
        "given_up_share": float(run.given_up[counts].sum()) / attempts,
        "amplification": attempts / max(wanted, 1.0),
        "unanswered_per_s": float((counts & np.isnan(run.done_s)).sum()) / lasted,
        "cached_share": float((run.found_tokens - run.host_tokens)[answered].sum()) / prompts,
        "host_share": float(run.host_tokens[answered].sum()) / prompts,
        "end_s": sent.span_s,
    }
