"""Prefill and decode on nodes of their own: the two pools as the pool sizer sees them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from planner.methods.base import PoolModel, Prediction, same_band, unstable
from planner.methods.burst import IDLE_LOAD, Burst, PoolArrivals, PoolPath, path_band
from planner.queueing.bursts import BurstSequence, rising
from planner.queueing.common_clock import follow_slots
from planner.queueing.disaggregated import DecodeNodes, DecodeState, Pieces, PrefillNodes
from planner.queueing.path import Followed, PathRequests, follow_queue
from planner.queueing.slots.chain import replica_dispersion

BANDS = {"ttft_s": (-0.05, 0.05), "tpot_s": (-0.05, 0.05), "e2e_s": (-0.05, 0.05)}
"""Errors against simulation with Poisson arrivals: docs/accuracy/disaggregated.md."""

PATH_BAND = (-0.1, 0.1)
"""Truth over prediction - 1 of a TTFT along the path of the same traffic, whose stretches are a sample."""

MOST_SERVERS = 24
"""Servers of one queue that are followed: more of them share it a little better."""

WAIT_LEVELS = np.concatenate(
    (np.linspace(0.0, 0.9, 19), [0.93, 0.95, 0.965, 0.98, 0.985, 0.99, 0.993, 0.996, 0.998, 0.999, 0.9995])
)
"""Levels at which the wait behind bursts is known [1]."""

BURST_LOADS = 1.0 - np.geomspace(0.9, 0.004, 28)
"""Loads of a replica at which it is found."""

BURST_BAND = (-0.45, 2.0)
"""Truth over prediction - 1 of a TTFT that is all burst: the real Azure time stamps, where bursts bring long prompts, gave
-20% to +190% on 1 to 4 prefill replicas of three GPU types, and +320% once: a band that holds most of them, not all."""


def burst_bands(usual: tuple[float, float], part: np.ndarray) -> tuple[tuple[float, float], ...]:
    """Bands of latencies of which `part` is the work of bursts, by level."""
    shares = np.clip(part, 0.0, 1.0).tolist()
    return tuple((usual[0] + p * (BURST_BAND[0] - usual[0]), usual[1] + p * (BURST_BAND[1] - usual[1])) for p in shares)


class PrefillPool(PoolModel):
    """The prefill pool as the pool sizer sees it: its latency is TTFT, the others are nan (not this pool's)."""

    def __init__(
        self,
        nodes: PrefillNodes,
        one_queue: bool,
        arrivals: PoolArrivals,
        overhead_s: float,
        service: Callable[[PathRequests], np.ndarray],
    ) -> None:
        self.nodes, self.one_queue, self.arrivals, self.overhead_s = nodes, one_queue, arrivals, overhead_s
        self._service = service
        self._runs: dict[tuple[float, int], tuple[Followed, PoolPath] | None] = {}
        self._tables: dict[float, np.ndarray] = {}
        self._calm: dict[tuple[float, float], np.ndarray] = {}
        self._sequences: dict[tuple[tuple[float, float], ...], BurstSequence] = {}

    @property
    def capacity_per_s(self) -> float:
        """Prompts per second of one replica."""
        return self.nodes.capacity_per_s

    def wait(self, arrival_rate_per_s: float, replicas: int) -> Pieces:
        """Law of the wait for a replica: along the path of the requests where it is known; else exact for Poisson arrivals, and
        what bursts add at every level."""
        along = self._along_path(arrival_rate_per_s, replicas)
        if along is not None:
            run = along[0]
            order = np.argsort(run.waited, kind="stable")
            mass = np.cumsum(run.weight[order]) / float(run.weight.sum())
            found = np.interp(WAIT_LEVELS, mass, run.waited[order])
            return Pieces(found, np.append(np.diff(found), 0.0), np.diff(WAIT_LEVELS, append=1.0))
        calm = self.nodes.wait(arrival_rate_per_s, replicas, self.one_queue)
        burst = self._bursts(arrival_rate_per_s, replicas)
        if burst is None:
            return calm
        # the pieces follow each other: their left ends are the quantiles at the mass before them
        knots = np.interp(WAIT_LEVELS, np.cumsum(calm.mass) - calm.mass, calm.start)
        knots = knots + self._burst_wait(arrival_rate_per_s, replicas, burst)
        knots = np.maximum.accumulate(np.maximum(knots, 0.0))
        return Pieces(knots, np.append(np.diff(knots), 0.0), np.diff(WAIT_LEVELS, append=1.0))

    def _along_path(self, rate: float, replicas: int) -> tuple[Followed, PoolPath] | None:
        """The prefill replicas run along the path of the requests; ``None`` where there is none."""
        key = (rate, replicas)
        if key not in self._runs:
            self._runs[key] = None
            busy = IDLE_LOAD * replicas * self.capacity_per_s < rate < replicas * self.capacity_per_s
            path = (
                self.arrivals.path(rate, replicas, not self.one_queue, self._service, balanced=MOST_SERVERS)
                if busy
                else None
            )
            if path is not None:
                service = self._service(path.requests)
                run = follow_queue(path.requests, service, servers=path.followed, one_queue=self.one_queue)
                self._runs[key] = run, path
        return self._runs[key]

    def guide(self) -> PrefillPool | None:
        """See :class:`planner.methods.base.PoolModel`: Poisson arrivals, in closed form."""
        if self.arrivals.arrivals is None and self.arrivals.sending.ordinary:
            return None
        return PrefillPool(self.nodes, self.one_queue, PoolArrivals(None), self.overhead_s, self._service)

    def grown(self, growth: str) -> PrefillPool:
        """See :class:`planner.methods.base.PoolModel`."""
        return PrefillPool(self.nodes, self.one_queue, self.arrivals.grown(growth), self.overhead_s, self._service)

    def _bursts(self, rate: float, replicas: int) -> Burst | None:
        """The bursts of the pool at a rate; ``None`` where there are none or nothing feels them."""
        burst = self.arrivals.at(rate)
        return burst if burst.present and rate > IDLE_LOAD * replicas * self.capacity_per_s else None

    def _burst_wait(self, rate: float, replicas: int, burst: Burst) -> np.ndarray:
        """Bursty minus Poisson quantiles at WAIT_LEVELS [s]."""
        if self.one_queue:
            return self._added(rate, self.nodes.law.mean / replicas, burst)
        # requests split at random: the load of a replica says it all, so a table over loads is made once a fleet rate
        table = self._tables.get(burst.fleet_rate)
        if table is None:
            found = [self._added(x * self.capacity_per_s, self.nodes.law.mean, burst) for x in BURST_LOADS]
            # one finite sequence of arrivals: its noise must not let a busier replica wait less
            table = np.stack([rising(column) for column in np.array(found).T], axis=1)
            self._tables[burst.fleet_rate] = table
        load = rate / (replicas * self.capacity_per_s)
        place = np.interp(-math.log1p(-load), -np.log1p(-BURST_LOADS), np.arange(len(BURST_LOADS)))
        low = min(int(place), len(BURST_LOADS) - 2)
        added: np.ndarray = table[low] + (place - low) * (table[low + 1] - table[low])
        # an idle replica meets no burst
        added *= min(1.0, load / BURST_LOADS[0])
        return added

    def _added(self, rate: float, service: float, burst: Burst) -> np.ndarray:
        if (rate, service) not in self._calm:
            # Poisson arrivals wait alike whatever the rate of the fleet: the loads of the table come again
            self._calm[rate, service] = self._sequence(()).waits(rate, service, WAIT_LEVELS)
        added = self._sequence(burst.scales()).waits(rate, service, WAIT_LEVELS) - self._calm[rate, service]
        return np.asarray(np.maximum(added, 0.0))

    def _sequence(self, scales: tuple[tuple[float, float], ...]) -> BurstSequence:
        if scales not in self._sequences:
            self._sequences[scales] = BurstSequence(scales, self.nodes.service_s, self.nodes.weight)
        return self._sequences[scales]

    def predict(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`planner.methods.base.PoolModel`."""
        load = arrival_rate_per_s / (replicas * self.capacity_per_s)
        if load >= 1.0:
            return unstable(quantiles, load)
        bands = {metric: same_band(quantiles, *band) for metric, band in BANDS.items()}
        along = self._along_path(arrival_rate_per_s, replicas)
        if along is not None:
            run, path = along
            # prompts that come together are long together: wait and service are those of the same request
            ttft = path.typical(run, quantiles) + self.overhead_s
            bands["ttft_s"] = path_band(run, path, "ttft_s", quantiles, PATH_BAND)
        else:
            ttft = (
                self.nodes.first_token(self.wait(arrival_rate_per_s, replicas)).quantiles(quantiles) + self.overhead_s
            )
        if along is None and self._bursts(arrival_rate_per_s, replicas) is not None:
            calm = self.nodes.first_token(self.nodes.wait(arrival_rate_per_s, replicas, self.one_queue))
            part = 1.0 - (calm.quantiles(quantiles) + self.overhead_s) / ttft
            bands["ttft_s"] = burst_bands(BANDS["ttft_s"], part)
        other = (math.nan,) * len(quantiles)
        return Prediction(
            quantiles=quantiles,
            ttft_s=tuple(ttft.tolist()),
            tpot_s=other,
            e2e_s=other,
            load=load,
            slot_occupancy=load,
            mean_running=load,
            wait_probability=self.nodes.wait_probability(arrival_rate_per_s, replicas, self.one_queue),
            bands=bands,
        )


class DecodePool(PoolModel):
    """The decode pool: its latency is TPOT, of requests with more than one output token; rates are of those requests."""

    def __init__(
        self,
        nodes: DecodeNodes,
        arrivals: PoolArrivals,
        duration: Callable[[np.ndarray, np.ndarray], np.ndarray],
        transfer_s: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        self.nodes, self.arrivals, self._duration, self._transfer_s = nodes, arrivals, duration, transfer_s
        self._known: dict[tuple[float, int, tuple[float, ...]], Prediction] = {}
        self._guide: DecodePool | None = None

    @property
    def capacity_per_s(self) -> float:
        """Requests per second of one replica."""
        return self.nodes.capacity_per_s

    def guide(self) -> DecodePool | None:
        """See :class:`planner.methods.base.PoolModel`: along fewer requests, and of that, Poisson arrivals in closed form."""
        if self._guide is None and (fewer := self.arrivals.sampled()) is not None:
            self._guide = DecodePool(self.nodes, fewer, self._duration, self._transfer_s)
        return self._guide

    def grown(self, growth: str) -> DecodePool:
        """See :class:`planner.methods.base.PoolModel`."""
        return DecodePool(self.nodes, self.arrivals.grown(growth), self._duration, self._transfer_s)

    def state(self, arrival_rate_per_s: float, replicas: int) -> DecodeState:
        """Occupancy of a node below capacity."""
        load = arrival_rate_per_s / (replicas * self.capacity_per_s)
        dispersion = self.arrivals.at(arrival_rate_per_s).pool_dispersion(self.nodes.relaxation_s(load))
        return self.nodes.solve(arrival_rate_per_s / replicas, replica_dispersion(dispersion, replicas, "random"))

    def _along_path(self, rate: float, replicas: int) -> tuple[Followed, PoolPath] | None:
        """The decode replicas run along the path of the requests as they arrive at the fleet; ``None`` where there is none."""
        usual = float(self.nodes.times(np.array([0.5 * self.nodes.slots]))[0])
        path = self.arrivals.path(
            rate,
            replicas,
            True,
            lambda own: own.steps * usual / self.nodes.slots,
            life_s=self.nodes.mean_decodes * usual,
        )
        if path is None:
            return None
        requests = path.requests
        run = follow_slots(
            requests,
            self._duration,
            requests.steps,
            np.zeros(requests.size),
            slots=self.nodes.slots,
            before_s=self._transfer_s(requests.context - 0.5 * (requests.steps + 1.0)),
            replicas=path.followed,
        )
        return run, path

    def predict(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`planner.methods.base.PoolModel`."""
        key = (arrival_rate_per_s, replicas, quantiles)
        if key not in self._known:
            self._known[key] = self._predict(*key)
        return self._known[key]

    def _predict(self, arrival_rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """The same, worked out."""
        load = arrival_rate_per_s / (replicas * self.capacity_per_s)
        if load >= 1.0:
            return unstable(quantiles, load)
        other = (math.nan,) * len(quantiles)
        along = self._along_path(arrival_rate_per_s, replicas) if load > IDLE_LOAD else None
        if along is not None:
            run, path = along
            return Prediction(
                quantiles=quantiles,
                ttft_s=other,
                tpot_s=tuple(run.quantiles("tpot_s", np.array(quantiles)).tolist()),
                e2e_s=other,
                load=load,
                slot_occupancy=min(run.running_mean / self.nodes.slots, 1.0),
                mean_running=run.running_mean,
                wait_probability=run.wait_probability,
                bands={metric: same_band(quantiles, *band) for metric, band in BANDS.items()}
                | {"tpot_s": path_band(run, path, "tpot_s", quantiles, PATH_BAND)},
            )
        state = self.state(arrival_rate_per_s, replicas)
        return Prediction(
            quantiles=quantiles,
            ttft_s=other,
            tpot_s=tuple(self.nodes.tpot(state).quantiles(quantiles).tolist()),
            e2e_s=other,
            load=load,
            slot_occupancy=state.slot_occupancy,
            mean_running=state.mean_running,
            wait_probability=state.wait_probability,
            bands={metric: same_band(quantiles, *band) for metric, band in BANDS.items()},
        )
