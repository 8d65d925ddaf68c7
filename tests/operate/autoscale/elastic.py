"""A simulated pool whose replicas come and go: engines iteration by iteration, requests drawn along a path of rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.ask.simulate import pair_engines, pool_engines
from planner.operate.autoscale.windows import STEP_S, WINDOW_S, arrivals_along, drawn_requests
from planner.predict.records import Replicas, Requests
from planner.predict.reference_replica import Replica, Sending
from planner.size.fleet import Fleet
from planner.size.shapes.disaggregated import Disaggregated

Decide = Callable[[int, float, dict[str, float]], int]
"""(step, time [s], what the metrics add up to) -> replicas to pay for."""


WARM_UP_S = 600.0
"""Beginning of a path that fills the fleet and the windows of the metrics, and is not counted [s]."""


@dataclass
class Served:
    """What came out: share of the windows within every promise, paid replica-hours by pool, and each window."""

    within: float
    windows: int
    replica_hours: float
    kept: tuple[bool, ...] = ()
    by_pool: tuple[float, ...] = ()


@dataclass(frozen=True)
class Scaled:
    """One pool's scaler: who decides, replicas at first, and the window of its metrics [s]."""

    decide: Decide
    first: int
    window_s: float


class Serving:
    """One replica that comes and goes, of the replay in Python, advanced as far as is asked for.

    Parameters
    ----------
    given
        Its limits.
    requests
        What is sent to it, by row.
    decodes
        Whether requests come with prompt and first token in memory.
    """

    def __init__(self, given: Replicas, requests: Requests, decodes: bool = False) -> None:
        self.replica = Replica(given, False, False, decodes, None, lambda request, time: None, lambda request: None)
        self.requests, self.decodes, self.sent = requests, decodes, 0

    @property
    def now(self) -> float:
        """When something happens here next [s]."""
        return self.replica.soonest

    @property
    def asleep(self) -> bool:
        return math.isinf(self.now)

    @property
    def in_system(self) -> int:
        return self.replica.in_system

    @property
    def waiting(self) -> int:
        return self.in_system - len(self.replica.residents)

    @property
    def completed(self) -> int:
        return self.sent - self.in_system

    def enqueue(self, row: int, time: float) -> None:
        prompt, output, cached = (
            float(column[row])
            for column in (self.requests.input_tokens, self.requests.output_tokens, self.requests.cached_tokens)
        )
        where: dict[str, Any] = {"row": row, "cached": cached}
        if self.decodes:
            prompt, where = prompt + 1.0, {"row": row, "prefilled": -1}
        self.sent += 1
        self.replica.take(Sending(row, time, prompt, int(output) - self.decodes, **where), time, time)

    def run(self, until: float) -> None:
        """What happens until then, but for a decision that is due at that time."""
        replica = self.replica
        while True:
            if replica.end < math.inf and replica.end <= min(until, replica.due):
                replica.finish()
            elif replica.due < until:
                replica.decide(replica.due)
            else:
                return


def times_of(served: list[Serving], rows: int) -> tuple[Any, Any]:
    """First and last tokens of requests by row [s]."""
    first, last = np.full(rows, math.nan), np.full(rows, math.nan)
    for one in served:
        for request in one.replica.completed:
            first[request.index], last[request.index] = request.first_token_s, request.done_s
    return first, last


def simulate_elastic(
    fleet: Fleet, rates: Any, decide: Decide, first: int, startup_s: float, rate_window_s: float, seed: int
) -> Served:
    """Serve a path; replicas start `startup_s` after they are asked for, and one that leaves finishes what it has, paid."""
    (pool,) = fleet.pools
    rng = np.random.Generator(np.random.PCG64(seed))
    engines = pool_engines(fleet, pool)
    requests = _requests(fleet, rates, rng)
    own = Scaled(decide, first, rate_window_s)
    served: list[Serving] = []
    paid_s = _stage(lambda: Serving(engines.pool(1), requests), served, requests.arrival_s, len(rates), fleet, own,
                    startup_s, rng)  # fmt: skip
    times, steps = requests.arrival_s, np.maximum(requests.output_tokens - 1, 1)
    first_token, last = times_of(served, requests.size)
    values = {
        "ttft_s": first_token - times + engines.api_overhead_s,
        "tpot_s": (last - first_token) / steps,
        "e2e_s": last - times + engines.api_overhead_s,
    }
    return _served(fleet, values, times, len(rates), [paid_s])


def simulate_elastic_pair(
    fleet: Disaggregated, rates: Any, scaled: tuple[Scaled, Scaled], startup_s: float, seed: int
) -> Served:
    """The same of prefill and decode replicas, each scaled by its own rule: what the first have done goes on to the others."""
    rng = np.random.Generator(np.random.PCG64(seed))
    prefill, decode = pair_engines(fleet)
    requests = _requests(fleet, rates, rng)
    times, outputs = requests.arrival_s, requests.output_tokens
    first = replace(prefill.pool(1), engine="prefill", kv_tokens=math.inf)
    one_token = replace(requests, output_tokens=np.ones(requests.size))
    served: list[Serving] = []
    paid = [_stage(lambda: Serving(first, one_token), served, times, len(rates), fleet, scaled[0], startup_s, rng)]
    first_token, _ = times_of(served, requests.size)
    moving = np.flatnonzero(outputs > 1)
    arrives = first_token[moving] + fleet.transfer_s(requests.input_tokens[moving])
    order = moving[np.argsort(arrives, kind="stable")]
    after = replace(
        requests,
        input_tokens=requests.input_tokens[order],
        output_tokens=outputs[order],
        cached_tokens=np.zeros(order.size),
    )
    served = []
    paid.append(
        _stage(
            lambda: Serving(decode.pool(1), after, True),
            served,
            np.sort(arrives),
            len(rates),
            fleet,
            scaled[1],
            startup_s,
            rng,
        )
    )
    last = first_token.copy()
    last[order] = times_of(served, order.size)[1]
    values = {
        "ttft_s": first_token - times + prefill.api_overhead_s,
        "tpot_s": np.where(outputs > 1, (last - first_token) / np.maximum(outputs - 1, 1), 0.0),
        "e2e_s": last - times + prefill.api_overhead_s,
    }
    return _served(fleet, values, times, len(rates), paid)


def _requests(fleet: Fleet, rates: Any, rng: np.random.Generator) -> Requests:
    """The requests along a path."""
    times = arrivals_along(rates, fleet.question.traffic.arrivals, rng)
    return drawn_requests(fleet.pools[0].law, times, rng)


def _stage(
    build: Callable[[], Serving],
    built: list[Serving],
    times: Any,
    steps: int,
    fleet: Fleet,
    scaled: Scaled,
    startup_s: float,
    rng: np.random.Generator,
) -> float:
    """Serve arrivals in order with replicas that come and go, all `built`; what was paid for after the warm-up [s]."""
    routing = fleet.question.routing
    counts = np.histogram(times, np.arange(steps + 1) * STEP_S)[0]

    def fresh(ready: float) -> list[Any]:
        built.append(build())
        return [built[-1], ready]

    serving = [fresh(0.0) for _ in range(scaled.first)]
    leaving: list[list[Any]] = []
    paid_s, sent = 0.0, 0
    done: list[int] = []
    busy: list[float] = []

    def send(number: int, at: float, ready: list[Any]) -> None:
        if routing.least:
            few = (
                ready
                if routing.candidates is None or len(ready) <= routing.candidates
                else [ready[int(k)] for k in rng.choice(len(ready), routing.candidates, replace=False)]
            )
            for r in few:
                if r.now <= at and not r.asleep:
                    r.run(at)
            least = min(r.in_system for r in few)
            tied = [r for r in few if r.in_system == least]
            chosen = tied[int(rng.integers(len(tied)))]
        else:
            chosen = ready[int(rng.integers(len(ready)))]
            if chosen.now <= at and not chosen.asleep:
                chosen.run(at)
        chosen.enqueue(number, at)

    for step, count in enumerate(counts):
        begin = step * STEP_S
        lag, window = 1, round(scaled.window_s / STEP_S)
        seen = done[max(0, len(done) - lag - window) : max(0, len(done) - lag)]
        metrics = {}
        if seen and begin >= 0.5 * WARM_UP_S:
            metrics["requests"] = sum(seen) / (len(seen) * STEP_S)
            metrics["running"] = float(np.mean(busy[-window:]))
        wanted = scaled.decide(step, begin, metrics)
        while len(serving) < wanted:
            serving.append(fresh(begin + startup_s))
        while len(serving) > wanted:
            # the youngest goes first, as those that do not serve yet
            leaving.append(serving.pop())
        ready = [r for r, at in serving if at <= begin] or [serving[0][0]]
        before = sum(r.completed for r, _ in serving + leaving)
        for number, at in enumerate(times[sent : sent + count].tolist(), sent):
            send(number, at, ready)
        sent += count
        end = begin + STEP_S
        for r, _ in serving + leaving:
            if not r.asleep and r.now <= end:
                r.run(end)
        done.append(sum(r.completed for r, _ in serving + leaving) - before)
        busy.append(float(sum(r.in_system - r.waiting for r, _ in serving)))
        leaving = [pair for pair in leaving if pair[0].in_system > 0]
        if begin >= WARM_UP_S:
            paid_s += STEP_S * (len(serving) + len(leaving))
    # what comes after the path: the last of what was sent on
    for number, at in enumerate(times[sent:].tolist(), sent):
        send(number, at, [r for r, _ in serving])
    for r, _ in serving + leaving:
        r.run(math.inf)
    return paid_s


def _served(fleet: Fleet, values: Mapping[str, Any], times: Any, steps: int, paid_s: list[float]) -> Served:
    """The windows after the warm-up that kept every promise."""
    window = (times // WINDOW_S).astype(int)
    kept = []
    for k in range(int(WARM_UP_S // WINDOW_S), int(steps * STEP_S // WINDOW_S)):
        mine = window == k
        if mine.any():
            kept.append(all((values[p.metric][mine] <= p.limit_s).mean() >= p.quantile for p in fleet.promises.latency))
    hours = tuple(paid / 3600.0 for paid in paid_s)
    return Served(float(np.mean(kept)), len(kept), sum(hours), tuple(kept), hours)
