"""The rate of a fleet over time, as a backtest walks it: hours joined by lines, with the swings that were measured. And what short
windows of it keep of the promises at which rate: a few replicas replayed over windows that get busier and busier."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from planner.ask.simulate import pair_engines, pool_engines
from planner.machine.engines import DEFAULT_ENGINE
from planner.machine.iteration import IterationModel
from planner.papers.traffic import Dispersion, arrival_times, cached_tokens, requests_of, whole_tokens
from planner.predict.records import Decoders, Replicas, Requests, Run, keys_of
from planner.predict.replayed import slowed
from planner.predict.run import replay
from planner.promise import MEAN
from planner.shared.documents import shipped
from planner.shared.record import Record
from planner.size.fleet import Fleet
from planner.size.pool import Pool
from planner.size.shapes.disaggregated import Disaggregated
from planner.units import HOUR_S
from planner.workload.arrivals import Arrivals
from planner.workload.pools import PoolLaw

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

VALUES: Mapping[str, Any] = shipped(Path(__file__).with_name("values.yaml"))
FULL: Mapping[str, float] = VALUES["full"]
"""What rules are derived from and held against, and what llm-d calls a full replica."""

STEP_S = 15.0
"""Step of a path [s]."""

WINDOW_S = 300.0
"""Windows whose requests are replayed, unless the promises name theirs [s]."""

FAST_S, SLOW_S = 60.0, 600.0
"""Correlation times of the swings [s]."""

MOST_REPLICAS = 4
"""Replicas that are simulated: a larger pool's share of bursts is sent to so many."""

MOST_IN_WINDOW = 8000.0
"""Requests of a window that are simulated, where one replica does not get more."""

LADDER = (0.5, 2.4)
"""From how much less to how much more than sizes hold the windows' rates go at first [1]."""

NEIGHBOURS, BEYOND = 5, 0.3
"""Windows next to each other in rate whose late requests are averaged, and how far beyond the busiest window, in the logarithm of
the rate, every request is taken to be late."""

ROUNDS = ((16, 16), (36, 60))
"""Windows simulated first over the whole ladder, then about where they break: fewest and most."""

REQUESTS = 60_000
"""Requests that windows beyond the fewest of a round may take."""

ABOUT = 2.0
"""The second round goes so many standard deviations to either side of where the first says that windows break."""

SPREADS = (0.02, 0.3)
"""Least and most standard deviation of the logarithm of the rate at which a window breaks that is thought possible [1]."""

WINDOWS = 51
"""Kind of draw that gateways' choices hang on."""

LAW_LEVELS = (*((k + 0.5) / 20.0 for k in range(19)), 0.96, 0.98, 0.99, 0.995, 0.999)
"""Levels between which a law that is drawn from is taken as linear."""


def hourly_path(rates_per_s: Sequence[float]) -> Floats:
    """Mean rate of every step of the period, hours joined by lines through their middles [1/s], shape (steps,)."""
    hours = len(rates_per_s)
    at = (np.arange(round(hours * HOUR_S / STEP_S)) + 0.5) * STEP_S / HOUR_S
    middles = np.arange(-1, hours + 1) + 0.5
    return np.asarray(np.interp(at, middles, np.concatenate(([rates_per_s[-1]], rates_per_s, [rates_per_s[0]]))))


def variances(arrivals: Arrivals) -> tuple[float, float]:
    """Variance of the fast and of the slow swings over the squared rate, at the rate of the arrivals [1]."""
    rate = arrivals.rate_per_s or math.inf
    whole, slow = (max(0.0, arrivals.dispersion_at(w) - 1.0) / (rate * w) for w in (FAST_S, SLOW_S))
    return max(0.0, whole - slow), slow


def swings(mean_per_s: Floats, arrivals: Arrivals | None, rng: np.random.Generator) -> Floats:
    """A path with the swings of an arrival process about its mean [1/s].

    The variance of the rate over a window of w seconds beyond chance is (I(w) - 1) rate / w, with I the index of dispersion of
    counts. Two log-normal processes carry it, one with a correlation time of a minute, one with ten: the slow one what is left
    over ten minutes, the fast one the rest of what there is over one. The dispersion is that of the arrivals' own rate, taken
    as more independent users above it and as a part of them below; without arrivals the path is returned as it is.
    """
    if arrivals is None or not arrivals.dispersion or not arrivals.rate_per_s:
        return mean_per_s
    # more independent users: relative swings shrink with the root of their number
    scale = min(1.0, arrivals.rate_per_s / float(mean_per_s.mean()))
    fast, slow = (scale * v for v in variances(arrivals))
    noise = np.zeros(mean_per_s.size)
    for variance, time in ((fast, FAST_S), (slow, SLOW_S)):
        spread = math.sqrt(math.log1p(variance))
        keep = math.exp(-STEP_S / time)
        steps = rng.standard_normal(mean_per_s.size) * spread * math.sqrt(1.0 - keep * keep)
        value = rng.standard_normal() * spread
        walk = np.empty(mean_per_s.size)
        for k in range(mean_per_s.size):
            value = keep * value + steps[k]
            walk[k] = value
        noise += walk - 0.5 * spread * spread
    return np.asarray(mean_per_s * np.exp(noise))


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """What windows keep by their rate.

    Parameters
    ----------
    factor
        Over the rate that a plan sizes for, the rate at which every second window keeps its promises [1].
    spread
        Standard deviation of the logarithm of the rate at which a window breaks [1].
    log_rates, late
        Logarithms of rates over the one that a plan sizes for, ascending, and the share of a window's requests beyond the limits
        of each promise there, shapes (points,) and (promises, points) [1].
    """

    factor: float
    spread: float
    log_rates: Floats
    late: Floats

    def kept(self, came: Floats, held: Floats) -> Floats:
        """Chance that windows of a rate keep the promises whose replicas are sized for another, shape as theirs [1]."""
        from scipy.special import ndtr

        with np.errstate(divide="ignore"):
            room = np.log(np.maximum(held, 1e-300) * self.factor) - np.log(np.maximum(came, 1e-300))
        return np.where(came > 0.0, ndtr(room / self.spread), 1.0)

    def late_share(self, came: Floats, held: Floats) -> Floats:
        """Share of the requests of such windows beyond the limits of each promise, shape (promises, windows) [1]."""
        more = np.log(np.maximum(came, 1e-300)) - np.log(np.maximum(held, 1e-300))
        return np.stack([np.interp(more, self.log_rates, row) for row in self.late])


def as_sized(quantiles: Sequence[float]) -> Windows:
    """Where nothing was replayed: windows break, and as many requests are late as promised, at what sizes hold."""
    late = np.array([[0.0, 1.0 - q, 1.0] for q in quantiles] or [[0.0, 0.0, 1.0]])
    return Windows(1.0, SPREADS[0], np.array([-1.0, 0.0, BEYOND]), late)


def between_swings(arrivals: Arrivals) -> Arrivals | None:
    """What is left of the bursts once a path carries the swings: those shorter than its fast ones; ``None`` = Poisson arrivals.

    The mean over w of a process with correlation time t keeps the share 2 (u - 1 + exp(-u)) / u^2, u = w / t, of its variance.
    """
    rate = arrivals.rate_per_s or 0.0

    def carried(window: float) -> float:
        parts = ((v, window / t) for v, t in zip(variances(arrivals), (FAST_S, SLOW_S), strict=True))
        return rate * window * sum(v * 2.0 * (u + math.expm1(-u)) / (u * u) for v, u in parts)

    left = tuple((w, 1.0 + max(0.0, i - 1.0 - carried(w))) for w, i in arrivals.dispersion if w < FAST_S)
    return replace(arrivals, dispersion=left) if any(i > 1.0 for _, i in left) else None


def arrivals_along(rates: Floats, arrivals: Arrivals | None, rng: np.random.Generator, share: float = 1.0) -> Floats:
    """Arrival times on a path that carries the slow swings: as bursty below a minute as the arrivals are, else Poisson [s].

    Parameters
    ----------
    rates
        The path [1/s], shape (steps,).
    arrivals
        As measured of all requests; ``None`` = Poisson.
    rng
        Draws them.
    share
        Part of all requests, taken at random, that come here [1].
    """
    mean, length = float(np.mean(rates)), len(rates) * STEP_S
    left = between_swings(arrivals) if arrivals and arrivals.dispersion and arrivals.rate_per_s else None
    bursts: Dispersion = ()
    if left is not None and left.rate_per_s:
        bursts = left.thinned(min(1.0, mean / share / left.rate_per_s)).thinned(share).dispersion
    times = arrival_times(mean, int(1.1 * mean * length) + 1000, rng, bursts)
    # a clock that runs as fast as the path is busy
    come = np.concatenate(([0.0], np.cumsum(rates))) * STEP_S
    times = np.interp(times * mean, come, np.arange(len(rates) + 1) * STEP_S, right=np.inf)
    return np.asarray(times[np.isfinite(times)])


def kept_windows(
    fleet: Fleet, k: int, replicas: int, sized_per_s: float, top_per_s: float, slow: float = 1.0
) -> Windows:
    """Replay windows of rates about what a replica is sized for, and find where they break and how many requests are late.

    A promise about all requests is broken by a few busy minutes in many; a promise about windows loses those windows alone,
    and a scaler has followed what is slower. Both are the same requests on the same engines: here the windows are counted.

    Parameters
    ----------
    fleet, k
        The fleet and which of its pools. What the other of a prefill and a decode pool adds to a latency is drawn from what is
        predicted of it at the plan's rate.
    replicas
        Replicas of it: the fewer, the more bursts each gets.
    sized_per_s
        Rate that a replica of this pool is sized for [1/s].
    top_per_s
        Largest throughput of a replica [1/s].
    slow
        How many times as long as in their profile iterations take [1].
    """
    rng = np.random.Generator(np.random.PCG64([1, 300]))
    window_s = fleet.promises.windows_s or WINDOW_S
    few = int(np.clip(MOST_IN_WINDOW / (window_s * sized_per_s), 1, MOST_REPLICAS))
    some = min(replicas, few)
    top = top_per_s / sized_per_s
    low, high = LADDER[0], max(min(LADDER[1], 1.1 * top), 1.1)
    seen: list[tuple[Floats, NDArray[np.bool_], Floats]] = []
    for fewest, most in ROUNDS:
        count = int(np.clip(REQUESTS / (window_s * some * sized_per_s * math.sqrt(low * high)), fewest, most))
        seen.append(_walk(fleet, k, (some, replicas), sized_per_s * np.geomspace(low, high, count), rng, slow))
        log_rates = np.log(np.concatenate([rates for rates, _, _ in seen]) / sized_per_s)
        kept = np.concatenate([good for _, good, _ in seen])
        crossing, spread = _fit(log_rates, kept)
        room = math.exp(ABOUT * spread)
        low, high = crossing / room, crossing * room
    return Windows(crossing, spread, *_late(log_rates, np.concatenate([late for _, _, late in seen], axis=1)))


def _late(log_rates: Floats, late: Floats) -> tuple[Floats, Floats]:
    """Late shares that do not fall with the rate, from those of single windows, shape (promises, windows)."""
    order = np.argsort(log_rates)
    few = min(NEIGHBOURS, order.size)
    points = np.convolve(log_rates[order], np.full(few, 1.0 / few), "valid")
    means = [np.maximum.accumulate(np.convolve(row[order], np.full(few, 1.0 / few), "valid")) for row in late]
    return np.append(points, points[-1] + BEYOND), np.array([np.append(row, 1.0) for row in means])


def _walk(
    fleet: Fleet, k: int, some: tuple[int, int], means: Floats, rng: np.random.Generator, slow: float
) -> tuple[Floats, NDArray[np.bool_], Floats]:
    """Windows of these mean rates per replica, one after the other, with swings, to some replicas of so many: the rates that came
    [1/s], which were kept, and the share of the requests beyond the limits of each promise [1]."""
    pool, steps = fleet.pools[k], round((fleet.promises.windows_s or WINDOW_S) / STEP_S)
    replicas, of = some
    # the first one fills the replicas, and is not counted
    mean = replicas * np.repeat(np.concatenate((means[:1], means)), steps)
    # as the swings of the whole fleet are at its rate
    whole, arrivals = fleet.question.traffic.rate_per_s, fleet.question.traffic.arrivals
    rates = mean * swings(np.full(mean.size, whole), arrivals, rng) / whole
    times = arrivals_along(rates, arrivals, rng, pool.law.share * replicas / of)
    requests = drawn_requests(pool.law, times, rng)
    work = served(fleet, k, replicas * pool.option.copies, requests, slow)
    values = _apart(fleet, k, work, requests, rng) if isinstance(fleet, Disaggregated) else latencies(work)
    good, late = np.ones(means.size, dtype=bool), []
    window = (times // (steps * STEP_S)).astype(int) - 1
    came = np.bincount(window[window >= 0], minlength=means.size)[: means.size]
    for promise in fleet.promises_on(k):
        if promise.quantile == MEAN:
            total = np.bincount(window[window >= 0], values[promise.metric][window >= 0], minlength=means.size)
            good &= total[: means.size] <= promise.limit_s * came
            continue
        inside = np.all([values[metric] <= limit for metric, limit in promise.limits.items()], axis=0)
        hits = np.bincount(window[window >= 0], inside[window >= 0], minlength=means.size)[: means.size]
        good &= hits >= promise.quantile * came
        late.append(1.0 - hits / np.maximum(came, 1))
    return rates.reshape(-1, steps).mean(axis=1)[1:] / replicas, good, np.array(late or [np.zeros(means.size)])


def drawn_requests(law: PoolLaw, times: Floats, rng: np.random.Generator) -> Requests:
    """Requests of a pool's law, each drawn by itself, at given times [s]."""
    rows = rng.choice(law.weight.size, size=times.size, p=law.weight / law.weight.sum())
    inputs = whole_tokens(law.input_tokens, "input_tokens")
    lengths = inputs, whole_tokens(law.output_tokens, "output_tokens"), cached_tokens(inputs, law.cached_share)
    draw = int(rng.integers(2**31))
    return requests_of(times, lengths, rows, keys_of(np.arange(times.size), np.full(times.size, draw), WINDOWS))


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Requests as the engines of one pool see them, and what became of them.

    Parameters
    ----------
    requests, run
        Of the pool; to a decode engine a request comes with its first token.
    engine
        One of the engines.
    came_s
        When each came to it [s].
    owner
        Which engine took it.
    overhead_s
        What is added to TTFT and E2E before it reaches an engine [s].
    """

    requests: Requests
    run: Run
    engine: Replicas
    came_s: Floats
    owner: NDArray[np.int32]
    overhead_s: float


def served(fleet: Fleet, k: int, copies: int, requests: Requests, slow: float = 1.0) -> Work:
    """Replay requests by so many engines of the k-th pool, whose iterations take `slow` times as long [1]."""
    if not isinstance(fleet, Disaggregated):
        engines = pool_engines(fleet, fleet.pools[k])
        run = replay(requests, slowed(engines.pool(copies), slow))
        return Work(requests, run, engines.pool(1), requests.arrival_s, run.replica, engines.api_overhead_s)
    prefill, decode = pair_engines(fleet)
    if k == 0:
        run = replay(requests, replace(slowed(prefill.pool(copies), slow), engine="prefill", kv_tokens=math.inf))
        return Work(requests, run, prefill.pool(1), requests.arrival_s, run.replica, prefill.api_overhead_s)
    # first tokens come as requests do
    at_once = Replicas(1, IterationModel(t0=0.0), engine="prefill")
    requests = replace(requests, output_tokens=np.maximum(requests.output_tokens - 1.0, 1.0) + 1.0)
    moves = np.asarray(fleet.transfer_s(requests.input_tokens))
    run = replay(requests, at_once, decoders=Decoders(slowed(decode.pool(copies), slow), moves))
    return Work(requests, run, decode.pool(1), run.moved_s, run.decode_replica - run.decode_replica.min(), 0.0)


def latencies(work: Work) -> dict[str, Floats]:
    """Latencies of requests that one engine serves from first to last [s]."""
    run = work.run
    return {
        "ttft_s": run.ttft_s + work.overhead_s,
        "tpot_s": (run.done_s - run.first_s) / np.maximum(work.requests.output_tokens - 1.0, 1.0),
        "e2e_s": run.e2e_s + work.overhead_s,
    }


def _apart(fleet: Disaggregated, k: int, work: Work, requests: Requests, rng: np.random.Generator) -> dict[str, Floats]:
    """Latencies of requests of which the prefill (0) or the decode pool (1) is simulated [s]."""
    found, size = latencies(work), requests.size
    if k == 0:
        ttft = found["ttft_s"]
        tpot = _drawn(fleet, 1, "tpot_s", size, rng) if len(fleet.pools) > 1 else np.zeros(size)
    else:
        ttft, tpot = _drawn(fleet, 0, "ttft_s", size, rng), found["tpot_s"]
    return {"ttft_s": ttft, "tpot_s": tpot, "e2e_s": ttft + np.maximum(requests.output_tokens - 1.0, 0.0) * tpot}


def _drawn(fleet: Disaggregated, k: int, metric: str, size: int, rng: np.random.Generator) -> Floats:
    """What the k-th pool adds at the plan's rate, drawn from the law predicted of it, shape (size,) [s]."""
    pool = fleet.pools[k]
    found = pool.model.predict(pool.rate_per_s, pool.replicas, LAW_LEVELS)
    return np.asarray(np.interp(rng.random(size), LAW_LEVELS, found.latencies[metric]))


def _fit(log_rate: Floats, kept: NDArray[np.bool_]) -> tuple[float, float]:
    """The rate at which every second window breaks, and how far windows scatter about it.

    Probit regression of what was seen: the mean of all crossings and spreads by their likelihood, each crossing within what was
    tried and each logarithm of a spread thought as likely as another before. What is not known of the crossing widens the spread.
    """
    from scipy.special import log_ndtr

    crossings = np.linspace(float(log_rate.min()) - SPREADS[1], float(log_rate.max()), 121)[:, None, None]
    spreads = np.geomspace(*SPREADS, 13)[None, :, None]
    sign = np.where(kept, 1.0, -1.0)
    likelihood = log_ndtr(sign * (crossings - log_rate) / spreads).sum(axis=2)
    weight = np.exp(likelihood - likelihood.max())
    weight /= weight.sum()
    crossing, spread = crossings[:, :, 0], spreads[:, :, 0]
    mean = float((weight * crossing).sum())
    beyond = float((weight * ((crossing - mean) ** 2 + spread**2)).sum())
    return math.exp(mean), math.sqrt(beyond)


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
        (both), ``kv_usage``, ``saturation`` (see values.yaml), ``backlog_s`` (prompt tokens not yet worked off over the
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
            "saturation": found["saturation"] + backlog / FULL["queue_depth"],
        }


def signals_of(fleet: Fleet, k: int, peak: PeakPrefill) -> Signals:
    """What is seen of the replicas of the k-th pool, from replays of a few of them at several loads."""
    pool = fleet.pools[k]
    rng = np.random.Generator(np.random.PCG64([1, 400, k]))
    top, replicas = pool.model.capacity_per_s, min(max(pool.replicas, 1), MOST_REPLICAS)
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
    share = pool.law.share * replicas / max(pool.replicas, 1)
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
        "saturation": np.maximum(table["waiting"] / FULL["queue_depth"], kv / FULL["kv_share"]),
        "backlog_s": each * table["prompt"] / peak.tokens_per_s,
    }
    return {k: (float(v.mean()), float(np.quantile(v.mean(axis=1), SEEN))) for k, v in shown.items()}
