"""What engines and gateways show of a replica at a load, from a replay of it: what a scaler can be told to watch."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from planner.autoscale.windows import MOST_REPLICAS, STEP_S, Floats, arrivals_along, drawn_requests, served
from planner.engines import DEFAULT_ENGINE
from planner.fleet.fleet import Fleet
from planner.fleet.pool import Pool
from planner.shared.record import Record

LOADS = (0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.85, 0.92)
"""Shares of the largest throughput that are replayed [1]."""

REPLAYED = 6000
"""Requests of each, about."""

LOOKS = 240
"""Moments at which replicas are looked at."""

SEEN = 0.99
"""Share of the looks in which no more is seen than is told [1]."""

GUARD = 1.2
"""A replica that shows this many times what it does where the rule aims needs help, whatever the rate says [1]."""

QUEUE_DEPTH, KV_SHARE = 5.0, 0.8
"""Requests waiting and share of the KV cache at which the endpoint picker's utilization detector calls a replica full, as it ships:
the saturation of a pool is the mean over its replicas of the larger of the two ratios (llm-d, flow control)."""


@dataclass(frozen=True, slots=True)
class PeakPrefill(Record):
    """Prompt tokens that one idle replica works off in a second: llm-d's ``peakPrefillThroughput``, and of what engine it holds.

    Parameters
    ----------
    tokens_per_s
        A full chunk over the time to first token of a prompt of that length on an idle replica [1/s].
    chunk_tokens
        The chunk: the token budget of an iteration.
    model, gpu, engine
        Of what; the engine with its parallelism and precision.
    fingerprint
        First 16 hexadecimal digits of the SHA-256 of all of these: another value is another engine.
    """

    tokens_per_s: float
    chunk_tokens: float
    model: str
    gpu: str
    engine: str
    fingerprint: str

    document: ClassVar[str] = "fleetopt-peak-prefill"


def peak_prefill(pool: Pool) -> PeakPrefill:
    """Of a pool's planned engine."""
    option, profile = pool.option, pool.option.profile
    longest = float(np.max(pool.law.input_tokens + pool.law.output_tokens))
    chunk = min(float(option.token_budget), longest)
    took = float(profile.iteration.time(0.0, 0.0, chunk, 0.5 * chunk * (chunk + 1.0))) + profile.api_overhead_s
    about = {
        "model": option.model.name,
        "gpu": option.gpu.name,
        "engine": f"{profile.engine or DEFAULT_ENGINE} {option.parallel} {profile.name}",
        "chunk_tokens": chunk,
        "tokens_per_s": float(f"{option.copies * chunk / took:.6g}"),
    }
    mark = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    return PeakPrefill(about["tokens_per_s"], chunk, about["model"], about["gpu"], about["engine"], mark)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """What is seen of one replica by its rate.

    Parameters
    ----------
    rates_per_s
        Rates of a replica that were replayed, ascending [1/s].
    seen
        Metric -> means of one replica at each: ``running`` (in the batch), ``waiting`` (in the engine's queue), ``in_flight``
        (both), ``kv_usage``, ``saturation`` (see :data:`QUEUE_DEPTH`), ``backlog_s`` (prompt tokens not yet worked off over the
        peak of :class:`PeakPrefill`).
    high
        Metric -> what the mean over replicas stays below in all but a hundredth of the looks, at each rate.
    top_per_s
        Largest throughput of a replica [1/s]: what comes beyond piles up.
    slots
        Sequences that run at once.
    """

    rates_per_s: Floats
    seen: Mapping[str, Floats]
    high: Mapping[str, Floats]
    top_per_s: float
    slots: float

    def at(self, metric: str, rate_per_s: float) -> float:
        """The mean of a metric of one replica at its rate [1/s]."""
        return float(np.interp(rate_per_s, self.rates_per_s, self.seen[metric]))

    def guard(self, metric: str, rate_per_s: float) -> float:
        """What one replica does not show at its rate [1/s] unless requests are longer or engines slower than planned."""
        high = float(np.interp(rate_per_s, self.rates_per_s, self.high[metric]))
        return max(GUARD * self.at(metric, rate_per_s), high)

    def totals(self, rate_per_s: float, serving: float, backlog: float) -> dict[str, float]:
        """Sums over replicas that serve a rate together [1/s] with `backlog` requests more than they can work on."""
        serving = max(serving, 1.0)
        each = rate_per_s / serving
        found = {name: serving * float(np.interp(each, self.rates_per_s, v)) for name, v in self.seen.items()}
        if each >= self.top_per_s:
            found["running"] = max(found["running"], serving * self.slots)
            found["in_flight"] = max(found["in_flight"], found["running"])
        # a gateway that holds requests back shows them; without one they wait in the engines
        return found | {
            "queued": backlog,
            "waiting": found["waiting"] + backlog,
            "in_flight": found["in_flight"] + backlog,
            "saturation": found["saturation"] + backlog / QUEUE_DEPTH,
        }


def signals_of(fleet: Fleet, k: int, peak: PeakPrefill) -> Signals:
    """What is seen of the replicas of the k-th pool, from replays of a few of them at several loads."""
    pool = fleet.pools[k]
    rng = np.random.Generator(np.random.PCG64([1, 400, k]))
    top, replicas = pool.model.capacity_per_s, min(max(pool.size.replicas, 1), MOST_REPLICAS)
    rates = top * np.array(LOADS)
    rows = [_looked_at(fleet, k, replicas, float(rate), peak, rng) for rate in rates]
    seen, high = ({name: np.append(0.0, [row[name][j] for row in rows]) for name in rows[0]} for j in (0, 1))
    return Signals(np.append(0.0, rates), seen, high, top, float(pool.setup.slots))


def _looked_at(
    fleet: Fleet, k: int, replicas: int, each_per_s: float, peak: PeakPrefill, rng: np.random.Generator
) -> dict[str, tuple[float, float]]:
    """Means over replicas and time at a rate of one replica [1/s], and what the mean over replicas stays below in all but a
    hundredth of the looks, after a third of the time for filling up."""
    pool, rate = fleet.pools[k], replicas * each_per_s
    steps = max(40, math.ceil(REPLAYED / rate / STEP_S))
    arrivals = fleet.question.traffic.arrivals
    share = pool.law.share * replicas / max(pool.size.replicas, 1)
    # a rule follows what is slower than a minute
    times = arrivals_along(np.full(steps, rate), arrivals, rng, share)
    copies = replicas * pool.option.copies
    work = served(fleet, k, copies, drawn_requests(pool.law, times, rng))
    requests, owner = work.requests, work.owner
    admitted = np.maximum(work.run.admitted_s, work.came_s)
    first, done = np.maximum(work.run.first_s, admitted), work.run.done_s
    prompt, span = requests.input_tokens - requests.cached_tokens, np.maximum(done - first, 1e-9)
    looks: dict[str, list[NDArray[Any]]] = {"running": [], "waiting": [], "kv": [], "prompt": []}
    for now in np.linspace(times[-1] / 3.0, times[-1], LOOKS):
        here = np.flatnonzero((work.came_s <= now) & (done > now))
        inside, outside, early = here[admitted[here] <= now], here[admitted[here] > now], here[first[here] > now]
        held = np.clip((now - first[inside]) / span[inside], 0.0, 1.0) * requests.output_tokens[inside]
        looks["running"].append(np.bincount(owner[inside], minlength=copies))
        looks["waiting"].append(np.bincount(owner[outside], minlength=copies))
        looks["kv"].append(np.bincount(owner[inside], requests.input_tokens[inside] + held, copies))
        looks["prompt"].append(np.bincount(owner[early], prompt[early], copies))
    table = {name: np.array(rows, dtype=float) for name, rows in looks.items()}
    kv = np.minimum(table["kv"] / max(work.engine.kv_tokens, 1.0), 1.0)
    each = float(pool.option.copies)
    shown = {
        "running": each * table["running"],
        "waiting": each * table["waiting"],
        "in_flight": each * (table["running"] + table["waiting"]),
        "kv_usage": kv,
        "saturation": np.maximum(table["waiting"] / QUEUE_DEPTH, kv / KV_SHARE),
        "backlog_s": each * table["prompt"] / peak.tokens_per_s,
    }
    return {k: (float(v.mean()), float(np.quantile(v.mean(axis=1), SEEN))) for k, v in shown.items()}
