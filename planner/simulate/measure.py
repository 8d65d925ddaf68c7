"""What a run measured: its window, whether it was stable, and the result of several runs together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from planner.routing import find_routing
from planner.simulate.presets import PoolEngines
from planner.simulate.result import Sample, SimulationResult
from planner.simulate.statistics import batch_means, mean_of_batches, range_of_runs, too_short
from planner.simulate.traffic import RequestBatch, Traffic

if TYPE_CHECKING:
    from numpy.typing import NDArray

WARM_UP = 0.1
"""Share of the requests, in order of arrival, that is not measured at the beginning."""
COOL_DOWN = 0.05
"""Share not measured at the end, where no later arrival disturbs anybody."""
TURNOVERS = 5
"""Mean residence times the warm-up lasts at least."""


def _empty() -> NDArray[np.float64]:
    return np.empty(0)


@dataclass(slots=True)
class Run:
    """One seed: what was sent and when it was served, and totals at checkpoints.

    Parameters
    ----------
    times, first, done
        Arrival, first and last token of every request [s], NaN = not yet, shape (requests,).
    outputs
        Their output lengths [tokens].
    counted
        Which of them are measured.
    marks
        (time, busy time, resident time) summed over the replicas [s].
    preemptions, rejected
        Evictions; requests that can never fit.
    memory_bound
        Share of iterations in which memory kept a request out or evicted one.
    stopped
        Whether the run was ended early as unstable.
    started
        Times at which requests reach the pool and at which they are through, each in the order of the first [s], where that is
        not their arrival and their first token.
    """

    times: NDArray[np.float64] = field(default_factory=_empty)
    first: NDArray[np.float64] = field(default_factory=_empty)
    done: NDArray[np.float64] = field(default_factory=_empty)
    outputs: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    counted: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    marks: list[tuple[float, float, float]] = field(default_factory=list)
    preemptions: int = 0
    rejected: int = 0
    memory_bound: float = 0.0
    stopped: bool = False
    started: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    @property
    def sent(self) -> int:
        """Requests sent."""
        return self.times.size

    @property
    def span_s(self) -> float:
        """Time from the first to the last arrival [s]."""
        return float(self.times[-1] - self.times[0]) if self.sent else 0.0

    @property
    def mean_stay_s(self) -> float:
        """Mean time between arrival and last token of those that are complete [s]; inf = nobody is."""
        stays = (self.done - self.times)[~np.isnan(self.done)]
        return float(stays.mean()) if stays.size else math.inf

    def extend(self, batch: RequestBatch) -> None:
        """A batch is sent."""
        unknown = np.full(batch.times_s.size, math.nan)
        self.times = np.concatenate([self.times, batch.times_s])
        self.first = np.concatenate([self.first, unknown])
        self.done = np.concatenate([self.done, unknown])
        self.outputs = np.concatenate([self.outputs, batch.output_tokens], dtype=np.int32, casting="same_kind")
        counted = np.ones(unknown.size, dtype=np.bool_) if batch.counted is None else batch.counted
        self.counted = np.concatenate([self.counted, counted])

    def send(self, number: int, time: float) -> None:
        """A request that its client held back is sent."""
        self.times[number] = time

    def record(self, numbers: Sequence[int], first: Sequence[float], done: Sequence[float]) -> None:
        """Requests were completed."""
        self.first[numbers], self.done[numbers] = first, done

    def cut(self, sent: int) -> None:
        """Forget what was not sent any more."""
        self.times, self.first, self.done = self.times[:sent], self.first[:sent], self.done[:sent]
        self.outputs, self.counted = self.outputs[:sent], self.counted[:sent]


def result_of(
    runs: Sequence[Run],
    engines: PoolEngines,
    seeds: tuple[int, ...],
    traffic: Traffic,
    quantiles: Sequence[float],
) -> SimulationResult:
    """The runs of all seeds together, with intervals."""
    estimate = range_of_runs if traffic.whole else batch_means
    seen = [_measured(run, engines, traffic) for run in runs]
    samples = [m.sample for m in seen]
    unstable = sum(m.unstable for m in seen)
    stable = unstable * 2 < len(runs) or unstable == 0
    sent = sum(r.times.size + r.rejected for r in runs)
    rejected = sum(r.rejected for r in runs)
    completed = sum(int(np.sum(~np.isnan(r.done))) for r in runs)
    warnings = _warnings(stable, all(m.settled for m in seen), rejected, sent)
    measured = sum(s.ttft_s.size for s in samples)
    for q in quantiles:
        if not estimate([s.ttft_s for s in samples], q).enough:
            warnings.append(too_short(q, measured))
    tables = {
        name: {float(q): estimate([getattr(s, name) for s in samples], q) for q in quantiles}
        for name in ("ttft_s", "tpot_s", "e2e_s")
    }
    mean_running = mean_of_batches(np.concatenate([m.running for m in seen]))
    total_span = sum(float(r.times[-1] - r.times[0]) for r in runs if r.times.size > 1)
    return SimulationResult(
        ttft_s=tables["ttft_s"],
        tpot_s=tables["tpot_s"],
        e2e_s=tables["e2e_s"],
        ttft_mean_s=estimate([s.ttft_s for s in samples]),
        tpot_mean_s=estimate([s.tpot_s for s in samples]),
        e2e_mean_s=estimate([s.e2e_s for s in samples]),
        throughput_per_s=mean_of_batches(np.concatenate([m.rates for m in seen])),
        arrival_rate_per_s=sum(r.times.size - 1 for r in runs) / total_span if total_span > 0.0 else None,
        busy_fraction=mean_of_batches(np.minimum(np.concatenate([m.busy for m in seen]), 1.0)),
        mean_running=mean_running,
        slot_occupancy=mean_running.value / engines.slots if math.isfinite(engines.slots) else None,
        preemptions_per_request=sum(r.preemptions for r in runs) / max(sent - rejected, 1),
        memory_bound_fraction=sum(r.memory_bound for r in runs) / len(runs),
        stable=stable,
        sent=sent,
        completed=completed,
        rejected=rejected,
        pending=sent - rejected - completed,
        preset=engines.preset,
        routing=find_routing(engines.routing).name,
        replicas=engines.replicas,
        seeds=seeds,
        requests=traffic.requests,
        warnings=tuple(dict.fromkeys(warnings)),
        whole=traffic.whole,
        samples=tuple(samples),
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


@dataclass(frozen=True, slots=True)
class _Measured:
    """What one run shows between its warm-up and its end; rates and shares in ten parts of that time."""

    sample: Sample
    rates: NDArray[np.float64]  # completions [1/s]; none in a window without length
    busy: NDArray[np.float64]
    running: NDArray[np.float64]
    unstable: bool
    settled: bool


def _measured(run: Run, engines: PoolEngines, traffic: Traffic) -> _Measured:
    """The requests of a run that count, and what the replicas did meanwhile."""
    saturated, whole = traffic.saturated, traffic.whole
    low, high, settled = _window(run, saturated, whole)
    window = slice(low, high)
    finished = ~np.isnan(run.done[window]) & run.counted[window]
    arrived, first, done = (x[window][finished] for x in (run.times, run.first, run.done))
    outputs = run.outputs[window][finished]
    several = outputs > 1
    start, end = (run.times[low], run.times[high - 1]) if high > low else (0.0, 0.0)
    if saturated:
        start, end = _middle_of_completions(run.done)
    rates = np.empty(0)
    if end > start:
        edges = np.linspace(start, end, 11)
        counts = np.diff(np.searchsorted(np.sort(run.done[~np.isnan(run.done)]), edges))
        rates = counts / np.diff(edges)
    busy, running = (_rates_between_marks(run.marks, k, start, end) / engines.replicas for k in (1, 2))
    return _Measured(
        Sample(
            first - arrived + engines.api_overhead_s,
            ((done - first)[several]) / (outputs[several] - 1),
            done - arrived + engines.api_overhead_s,
        ),
        rates,
        busy,
        running,
        bool(run.stopped or (not whole and _backlog_grows(run, saturated))),
        settled,
    )


def _window(run: Run, saturated: bool, whole: bool) -> tuple[int, int, bool]:
    """Positions measured, and whether the warm-up lasted :data:`TURNOVERS` mean residence times."""
    total = run.times.size
    low, high = math.floor(WARM_UP * total), math.floor((1.0 - COOL_DOWN) * total)
    if whole:
        return 0, total, True
    finished = run.done - run.times
    stay = float(np.nanmean(finished)) if np.any(~np.isnan(finished)) else math.inf
    if saturated:
        return low, high, True
    if high > low and run.times[low] - run.times[0] < TURNOVERS * stay and math.isfinite(stay):
        low = min(int(np.searchsorted(run.times, run.times[0] + TURNOVERS * stay)), total // 2)
    settled = high > low and bool(run.times[low] - run.times[0] >= 0.999 * TURNOVERS * stay)
    return low, max(high, low + 1), settled


def _backlog_grows(run: Run, saturated: bool) -> bool:
    """Whether the number without a first token grows all the time: by more than 2% of the arrivals of the last half."""
    times, started = (run.times, run.first) if run.started is None else run.started
    total = times.size
    if saturated or total < 1000:
        return False
    started = np.sort(started[~np.isnan(started)])

    def waiting(u: float, v: float) -> float:
        at = times[math.floor(u * total) : math.floor(v * total)]
        positions = np.arange(math.floor(u * total), math.floor(v * total)) + 1
        return float(np.mean(positions - np.searchsorted(started, at, side="right")))

    early, middle, late = waiting(0.3, 0.5), waiting(0.5, 0.75), waiting(0.8, 1.0)
    return late - early > 0.02 * 0.5 * total and late > middle > early and late > 1.4 * early


def _middle_of_completions(done: NDArray[np.float64]) -> tuple[float, float]:
    ordered = np.sort(done[~np.isnan(done)])
    return (
        (float(ordered[int(0.1 * ordered.size)]), float(ordered[int(0.9 * ordered.size)]))
        if ordered.size
        else (0.0, 0.0)
    )


def _rates_between_marks(
    marks: list[tuple[float, float, float]], column: int, start: float, end: float
) -> NDArray[np.float64]:
    """Increase per second of a total in ten parts of [start, end]; the totals are known at the marks."""
    if len(marks) < 2:
        return np.empty(0)
    table = np.array(marks)
    inside = table[(table[:, 0] >= start) & (table[:, 0] <= end)]
    if len(inside) < 2:  # all at once
        inside = table
    inside = inside[np.unique(np.linspace(0, len(inside) - 1, 11).astype(int))]
    spans = np.diff(inside[:, 0])
    good = spans > 0.0
    return np.asarray(np.diff(inside[:, column])[good] / spans[good])
