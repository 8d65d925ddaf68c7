"""Pools of replicas under their own requests, replayed: what every latency of a plan is read from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from planner.machine.iteration import IterationModel
from planner.predict.bounds import idle_latency, max_throughput
from planner.predict.contract import PoolModel, Prediction, unstable
from planner.predict.joint import Together
from planner.predict.records import METRICS, Floats, Limit, Replicas, Requests, Run, keys_of
from planner.predict.replica import MAX_NUM_SEQS_LIMIT
from planner.predict.run import replay
from planner.predict.traffic import APART_S, SAMPLE, WHOLE, Laid, PoolTraffic
from planner.promise import MEAN, Promise, joint_limits
from planner.question.compiled import JOINT_LEVELS
from planner.shared.kept import once
from planner.units import format_duration
from planner.workload.pools import Lengths, PoolLaw
from planner.workload.sending import Clients
from planner.workload.sessions import Sessions

FEWEST_BEYOND = 5
"""Requests beyond a quantile below which it is told as too few [1]: with five, one in fifty runs has none."""

IDLE_S = 1e3
"""Time between two requests of an idle replica [s]."""

ALONE = 4096
"""Requests asked of an idle replica."""

CALM, BUSY = 0.1, 0.9
"""Draws of the traffic between whose quantiles the printed band lies: eight hours in ten."""

BATCHES, BATCHES_T = 16, 2.131
"""Stretches of drawn requests by which their quantiles' errors are told, and Student's t of 95% of so many."""

OVERLOADED, OVERLOAD_WARM = 20_000, 256.0
"""Requests sent to a pool that may be overloaded, and those of each replica before it is measured, while its queue grows."""

SURGE_STEP_S = 2.0
"""How often is looked after a surge [s]."""

AFTER_SURGE = (2.0, 10.0, 50.0)
"""Lengths of a surge that are replayed after it until its queue is gone, the first of them before it too: a load of 0.98 takes the
last."""

KEPT = 0.95
"""Share of the windows that keep what is promised of windows [1]."""

ROOTS = 4.0
"""Late requests of a sample that lie so many square roots of what is allowed away from it decide for all: from draw to draw they
scatter by 1.1 roots, at most 1.9, as late requests come together (eight questions of four traces)."""

FAR_BELOW = (0.9, 0.6, 0.2)
"""Latencies over their limit from which on the one that is promised is looked for, the next where it is not among them [1]; below
the last it is not told how far it is from the limit."""

JOBS = 11
"""Kind of the keys of batch jobs."""

PARTED_BITS, PARTS = 44, 4096
"""Lower bits of a time that do not part it from others, which leaves 256 parts an octave, and the parts about any of them [1]."""

RUNNING = 64.0
"""Sequences of a replica that take part in warming up, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A replay and what it was of.

    Parameters
    ----------
    requests, run
        What was sent, and what became of it.
    span_s
        How long requests came [s].
    replicas
        Replicas that served.
    rate_per_s
        Rate of one replica of those it stands for [1/s].
    decodes
        Tokens of each request after the first; ``None`` = as sent.
    repeats
        How often the same requests came, one after the other, each time under another draw of the gateway.
    """

    requests: Requests
    run: Run
    span_s: float
    replicas: int
    rate_per_s: float
    decodes: Floats | None = None
    repeats: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """What becomes of requests where doors close and clients lose patience.

    Parameters
    ----------
    share
        Of the requests, those answered [1].
    rejected_share, given_up_share
        Of all attempts, those turned away and those given up [1].
    attempts
        Attempts per request.
    ttft_s
        Times to first token of those answered, ascending [s].
    """

    share: float
    rejected_share: float
    given_up_share: float
    attempts: float
    ttft_s: Floats


Late = dict[tuple[str, float], tuple[float, bool]]
"""Latency and limit -> share of the requests beyond it, of all that count [1]; False = at least so many."""

Capacity = Callable[[PoolLaw], float]
"""Largest stable rate of a replica that gets given requests, at `slow` = 1 [1/s]."""


class ReplayPool(PoolModel):
    """See the module and :class:`planner.predict.contract.PoolModel`.

    Parameters
    ----------
    traffic
        The pool's requests at any rate.
    engine
        One of its replicas and the gateway.
    overhead_s
        What is added to TTFT and E2E of every request before it reaches an engine [s].
    told_capacity
        Largest stable rate of a replica that gets given requests [1/s]; ``None`` = that of mixed batching in the fluid limit.

    Attributes
    ----------
    tokens_per_unit
        Tokens in what the engine counts lengths in.
    draw
        Draw of the traffic that is replayed; ``None`` = the one in the middle.
    slow
        How many times as long iterations take as those of the pool this one was made of [1].
    windows_s
        Length of the windows, 95% of which keep within what is told [s]; ``None`` = all requests are looked at together.
    """

    tokens_per_unit = 1.0

    one_by_one = True
    """Whether requests come to these replicas alone."""

    sessions: Sessions | None = None
    """The same requests session by session where prompts come back; they are drawn, as long as one draw stands for all."""

    def __init__(
        self, traffic: PoolTraffic, engine: Replicas, overhead_s: float = 0.0, told_capacity: Capacity | None = None
    ) -> None:
        self.traffic, self.engine, self.overhead_s = traffic, engine, overhead_s
        # looked for once for all speeds, of the engine as its profile has it: the same bits whichever speed is asked first
        self._capacity: list[float] = []
        self._as_told, self._told_capacity = engine, told_capacity
        self.draw: int | None = None
        self.slow = 1.0
        self.windows_s: float | None = None
        self._forget()

    def _forget(self) -> None:
        """Nothing has been replayed."""
        self._known: dict[tuple[object, ...], Prediction] = {}
        self._kept: dict[tuple[object, ...], bool] = {}
        self._over: dict[tuple[object, ...], float] = {}
        self._late: dict[tuple[object, ...], Late] = {}
        self._under_others: dict[tuple[float, int | None], PoolModel] = {}
        self._mark = object()

    @property
    def capacity_per_s(self) -> float:
        """See :class:`PoolModel`."""
        if not self._capacity:
            self._capacity.append(self.capacity_of(self.traffic.law))
        return self._capacity[0] / self.slow

    def capacity_of(self, law: PoolLaw) -> float:
        """Largest stable rate of a replica that gets given requests, in the fluid limit, at `slow` = 1 [1/s]."""
        if self._told_capacity is not None:
            return self._told_capacity(law)
        return max_throughput(law, self._as_told).per_s

    def grown(self, growth: str) -> PoolModel | None:
        """See :class:`PoolModel`."""
        return self._under(self.traffic.grown(growth))

    def without_bursts(self) -> PoolModel | None:
        """See :class:`PoolModel`."""
        return self._under(self.traffic.poisson()) if self.traffic.recorded else None

    def _under(self, traffic: PoolTraffic) -> Self:
        """The same replicas under other traffic, nothing of which has been replayed."""
        other = copy(self)
        other.traffic = traffic
        other._forget()
        return other

    def by_windows(self, windows_s: float) -> Self:
        """See :class:`PoolModel`."""
        other = self._under(self.traffic)
        other.windows_s = windows_s
        return other

    def _otherwise(self, slow: float, draw: int | None) -> Self:
        """See :meth:`PoolModel.under`."""
        other = self._under(self.traffic)
        other.engine, other.draw, other.slow = slowed(self.engine, slow), draw, self.slow * slow
        return other

    def draws(self, rate_per_s: float) -> NDArray[np.int64]:
        """See :class:`PoolModel`."""
        return np.zeros(1, dtype=np.int64) if self.sessions is not None else self.traffic.draws(rate_per_s)

    def is_short(self, rate_per_s: float, replicas: int) -> bool:
        """See :class:`PoolModel`."""
        return self.traffic.repeats(rate_per_s, replicas, self.engine.routing) > 1

    # --- what is asked ----------------------------------------------------------------------------------------------

    def keeps(self, rate_per_s: float, replicas: int, promises: Sequence[Promise], sure: bool = False) -> bool:
        """See :class:`PoolModel`: a replay that ends as soon as a promise is broken; of a sample unless it is to be `sure`."""
        most = WHOLE if sure or self.windows_s or self._is_whole(rate_per_s, replicas) else SAMPLE
        key = (rate_per_s, replicas, tuple(promises), most)
        if key not in self._kept:
            late = self._late.setdefault((rate_per_s, replicas, most), {})
            kept = self._by_late(late, promises)
            if kept is None and self._breaks_when_busiest(rate_per_s, replicas, promises):
                kept = False
            if kept is None and sure:
                kept = self._by_turns(rate_per_s, replicas, promises)
            if kept is None:
                played = self._play(rate_per_s, replicas, most, self.draw, promises)
                kept = played.run.ended_early < 0
                self._note_late(late, promises, played)
                kept = kept and (self._limits_say_all(promises) or self._keeps_all(played, promises))
                if kept:
                    # it went to its end: what is asked next is often what it tells
                    self.traffic.fleet.played[type(self)] = (self._mark, rate_per_s, replicas, most, self.draw), played
            # what is kept for as long as the trace lasts is not beyond the capacity
            self._kept[key] = kept and rate_per_s < replicas * self.capacity_at(replicas)
        return self._kept[key]

    def _breaks_when_busiest(self, rate_per_s: float, replicas: int, promises: Sequence[Promise]) -> bool:
        """Whether the busiest episodes, each begun with idle replicas, have :data:`ROOTS` more late requests than all together may.

        What replicas still have to do when an episode begins would make more of them late: such a refusal needs no other request.
        """
        laid = self._lay(rate_per_s, replicas, SAMPLE, self.draw)
        alone = self.one_by_one and self.sessions is None and self.traffic.fleet.sending.ordinary
        busiest = self.traffic.busiest(laid, (rate_per_s, self.draw)) if alone else None
        if busiest is None:
            return False
        limits = self._limits(promises, self._sent(self.traffic, laid)[0])
        limits = [replace(x, late=x.late + ROOTS * math.sqrt(x.late)) for x in limits]
        return self._replayed(self._sent(self.traffic, busiest)[0], laid.replicas, replicas, limits).ended_early >= 0

    def _by_turns(self, rate_per_s: float, replicas: int, promises: Sequence[Promise]) -> bool | None:
        """What several draws of the gateway say, one after the other until those so far leave no doubt; ``None`` where not so many
        are laid out, or late requests do not say all."""
        if self.sessions is not None or self.draw is not None or not self._limits_say_all(promises):
            return None
        laid, late = self._lay(rate_per_s, replicas, WHOLE, None), dict.fromkeys(METRICS, 0.0)
        size = laid.row.size // laid.repeats
        if laid.repeats == 1 or size > SAMPLE:
            return None
        for turn in range(1, laid.repeats + 1):
            part, doubt = slice((turn - 1) * size, turn * size), ROOTS * math.sqrt(1.0 - turn / laid.repeats)
            weight = None if laid.weight is None else laid.weight[:size]
            own = replace(laid, times_s=laid.times_s[:size], row=laid.row[:size], key=laid.key[part], weight=weight)
            requests, decodes = self._sent(self.traffic, own)
            limits = [(x, turn * x.late, doubt * math.sqrt(turn * x.late)) for x in self._limits(promises, requests)]
            left = [replace(x, late=allowed + more - late[x.metric]) for x, allowed, more in limits]
            if min(x.late for x in left) < 0.0:
                return False
            run = self._replayed(requests, laid.replicas, replicas, left)
            if run.ended_early >= 0:
                return False
            for x, _, _ in limits:
                late[x.metric] += _beyond(run, requests, decodes, x)
            if all(late[x.metric] <= allowed - more for x, allowed, more in limits):
                return True
        return False

    def _by_late(self, known: Late, promises: Sequence[Promise]) -> bool | None:
        """What replays of the same requests say, of which more or fewer were allowed to be late; ``None`` = not enough."""
        told = [(1.0 - p.quantile, *known.get((p.metric, p.limit_s), (0.0, False))) for p in promises]
        if any(late > allowed * (1.0 + 1e-12) for allowed, late, _ in told):
            return False
        return True if told and all(whole for *_, whole in told) and self._limits_say_all(promises) else None

    def _note_late(self, known: Late, promises: Sequence[Promise], played: Played) -> None:
        """Keep which share of the requests was late in a replay, or that it was more than is allowed where that ended it."""
        if {p.kind for p in promises} - {*METRICS} or not self._limits_say_all(promises):
            return
        requests, whole = played.requests, played.run.ended_early < 0
        for p, limit in zip(promises, self._limits(promises, requests), strict=True):
            late = _beyond(played.run, requests, requests.output_tokens - 1.0, limit) if whole else limit.late
            if whole or len(promises) == 1:
                known[p.metric, p.limit_s] = ((1.0 - p.quantile) * late / limit.late if limit.late else late, whole)

    def excess(self, rate_per_s: float, replicas: int, promises: Sequence[Promise]) -> float:
        """See :class:`PoolModel`; what is below all of :data:`FAR_BELOW` is told as that."""
        if not self._limits_say_all(promises):
            return math.nan
        if (key := (rate_per_s, replicas, tuple(promises))) in self._over:
            return self._over[key]
        most = WHOLE if self._is_whole(rate_per_s, replicas) else SAMPLE
        if (played := self._last_played(rate_per_s, replicas, most, self.draw)) is None:
            # other questions on the same thread may have answered it: what is asked next must not hang on them
            played = self._play(rate_per_s, replicas, most, self.draw, ())
            self.traffic.fleet.played[type(self)] = (self._mark, rate_per_s, replicas, most, self.draw), played
        worst, weights, decodes = min(FAR_BELOW), played.requests.weight, played.requests.output_tokens - 1.0
        for limit in self._limits(promises, played.requests):
            taken = played.run.taken_s(limit.metric, decodes)
            for part in FAR_BELOW:
                near = np.flatnonzero(taken > max(part, worst) * limit.limit_s)
                near = near[np.argsort(-taken[near], kind="stable")]
                below = np.cumsum(np.ones(near.size) if weights is None else weights[near])
                if (late := int(np.searchsorted(below, limit.late, side="right"))) < near.size:
                    worst = float(taken[near[late]]) / limit.limit_s
                    break
        return self._over.setdefault(key, math.log(worst))

    def look(self, rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`PoolModel`: of a sample, without a band."""
        return self._at(rate_per_s, replicas, quantiles, SAMPLE, self.draw)

    def predict(self, rate_per_s: float, replicas: int, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`PoolModel`: of all requests, with the band of other draws of the same traffic."""
        key = ("banded", rate_per_s, replicas, quantiles)
        if key not in self._known:
            found = self._at(rate_per_s, replicas, quantiles, WHOLE, self.draw)
            if found.load < 1.0 and not found.bands:
                others = [self._at(rate_per_s, replicas, quantiles, SAMPLE, draw) for draw in self._others(rate_per_s)]
                found = replace(found, bands=bands_of(found, others))
            self._known[key] = found
        return self._known[key]

    def unloaded(self, quantiles: tuple[float, ...]) -> Prediction:
        """See :class:`PoolModel`: every request alone on a replica that is awake."""
        key = ("idle", quantiles)
        if key not in self._known:
            own = self.traffic.own
            row = np.arange(own.requests)
            if row.size > ALONE:
                # evenly over the order of their prompts, the longest among them
                _, order = once(("alone", id(own)), lambda: (own, np.argsort(own.input_tokens, kind="stable")))
                picked = ((np.arange(ALONE) + 0.5) * order.size / ALONE).astype(np.int64)
                row = order[np.append(picked[:-1], order.size - 1)]
            apart, key_of = IDLE_S * np.arange(float(row.size)), keys_of(row, np.zeros_like(row), 7)
            span = IDLE_S * row.size
            requests, decodes = self._sent(self.traffic, Laid(apart, row, key_of, None, span, 1, False))
            self._known[key] = self._told(Played(requests, self._alone(requests), span, 1, 0.0, decodes), quantiles)
        return self._known[key]

    def breaks_alone(self, law: PoolLaw, promises: Sequence[Promise]) -> tuple[Promise, float] | None:
        """See :class:`PoolModel`: in closed form, but for :data:`ROOTS` roots of those of :data:`ALONE` that may be late."""
        if type(self) is not ReplayPool or self.engine.engine != "mixed" or not self._limits_say_all(promises):
            return None
        first, tpot = idle_latency(law, replace(self.engine, wake_s=0.0))
        first, several = first + self.overhead_s, law.decodes > 0.0
        found = {"ttft_s": first, "tpot_s": tpot, "e2e_s": first + np.where(several, law.decodes * tpot, 0.0)}
        told: list[tuple[Promise, float]] = []
        sure = False
        for p in promises if {p.kind for p in promises} <= {*METRICS} and several.any() else ():
            counted = several if p.metric == "tpot_s" else slice(None)
            least = p.quantile - min(ROOTS * math.sqrt((1.0 - p.quantile) / ALONE), 0.5 * p.quantile)
            low, value = weighted_quantiles(found[p.metric][counted], law.weight[counted], (least, p.quantile))
            told, sure = [*told, (p, value)], sure or low > p.limit_s
        return max(told, key=lambda row: row[1] / row[0].limit_s) if sure else None

    def answered(self, rate_per_s: float, replicas: int, clients: Clients) -> Answered:
        """What becomes of requests that come at random times at a rate of the pool [1/s], beyond its capacity too."""
        calm = self.traffic.poisson()
        laid = calm.lay(rate_per_s, replicas, self.engine.routing, warm=OVERLOAD_WARM, most=OVERLOADED)
        requests = self._sent(calm, laid)[0]
        run = replay(requests, replace(self.engine, count=laid.replicas), clients)
        counted = slice(None) if requests.weight is None else requests.weight > 0.0
        attempts = max(float(run.attempts[counted].sum()), 1.0)
        first = run.ttft_s[counted]
        given = np.isfinite(first)
        return Answered(
            float(given.mean()),
            float(run.rejected[counted].sum()) / attempts,
            float(run.given_up[counted].sum()) / attempts,
            attempts / given.size,
            np.sort(first[given]) + self.overhead_s,
        )

    def surged(self, rate_per_s: float, replicas: int, clients: Clients, surge_per_s: float, length_s: float) -> float:
        """How long after the end of a surge, at a rate of its own [1/s], requests wait longer than before it [s]; inf = for ever.

        Told from the median TTFT of the requests of every two seconds.
        """
        calm = self.traffic.poisson()
        laid = calm.lay(rate_per_s, replicas, self.engine.routing, warm=0.0, most=OVERLOADED)
        before, factor = AFTER_SURGE[0] * length_s, surge_per_s / rate_per_s
        for after_s in AFTER_SURGE:
            # the same sequence again and again, faster during the surge
            turns = np.arange(math.ceil((before + factor * length_s + after_s * length_s) / laid.span_s))
            steps = (laid.times_s + laid.span_s * turns[:, None]).ravel()
            row, key = np.tile(laid.row, turns.size), np.tile(laid.key, turns.size)
            during = (steps - before) / factor
            times = np.where(
                steps < before, steps, np.where(during < length_s, before + during, steps + length_s * (1.0 - factor))
            )
            requests, _ = self._sent(calm, replace(laid, times_s=times, row=row, key=key, weight=None))
            run = replay(requests, replace(self.engine, count=laid.replicas), clients)
            ttft = np.nan_to_num(run.ttft_s, nan=math.inf)
            usually = float(np.quantile(ttft[times < before], 0.9)) if np.any(times < before) else 0.0
            after = times - (before + length_s)
            for start in np.arange(0.0, float(after[-1]), SURGE_STEP_S).tolist():
                here = ttft[(after >= start) & (after < start + SURGE_STEP_S)]
                if here.size and float(np.median(here)) <= usually:
                    return float(start)
        return math.inf

    def jobs_alone_per_s(self, jobs: Lengths) -> float:
        """Batch jobs that a replica does where nobody else asks, in the fluid limit [1/s]."""
        return max_throughput(jobs, self.engine).per_s

    def with_jobs(
        self,
        rate_per_s: float,
        replicas: int,
        jobs: Lengths,
        jobs_per_s: float,
        levels: tuple[float, ...],
        sure: bool = False,
    ) -> tuple[Prediction, float]:
        """What requests at a rate of the pool [1/s] see beside batch jobs of a later class.

        Parameters
        ----------
        jobs, jobs_per_s
            Their lengths, and how many are sent, evenly [1/s]; the engine takes one where no request waits (vLLM
            ``--scheduling-policy priority``), and preempts jobs first.
        levels
            Of the quantiles, ascending.
        sure
            Whether all requests are replayed; otherwise a sample.

        Returns
        -------
        tuple
            The prediction, and the jobs' share, in tokens, that does not wait any more when the last one is sent [1]: where more
            are sent than can be done, their queue grows.
        """
        laid = self._lay(rate_per_s, replicas, WHOLE if sure else SAMPLE, self.draw)
        requests, decodes = self._sent(self.traffic, laid)
        # no job is sent between two stretches, where nobody else asks
        times, per_s = requests.arrival_s, jobs_per_s * laid.replicas / replicas
        cut = np.flatnonzero(np.diff(times) >= APART_S)
        begin, end = times[np.append(0, cut + 1)], times[np.append(cut, times.size - 1)]
        passed = np.cumsum(end - begin)
        count = math.floor(per_s * passed[-1])
        sent = (np.arange(count) + 0.5) / max(per_s, 1e-300)
        stretch = np.searchsorted(passed, sent).clip(max=passed.size - 1)
        sent = sent - passed[stretch] + end[stretch]
        # whatever their order in the file: a fixed sequence over their weights (golden section)
        place = np.mod((np.arange(count) + 0.5) * 0.6180339887498949, 1.0)
        row = np.searchsorted(np.cumsum(jobs.weight / jobs.weight.sum()), place).clip(max=jobs.input_tokens.size - 1)
        order = np.argsort(np.concatenate([times, sent]), kind="stable")
        weight = np.ones(requests.size) if requests.weight is None else requests.weight

        def both(asked: NDArray[Any], batch: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate([asked, batch.astype(asked.dtype)])[order]

        outputs = jobs.output_tokens[row]
        merged = Requests(
            both(times, sent),
            both(requests.input_tokens, jobs.input_tokens[row]),
            both(requests.output_tokens, outputs),
            both(requests.cached_tokens, np.zeros(count)),
            both(requests.key, keys_of(np.arange(count), np.zeros(count, np.int64), JOBS)),
            priority=both(np.zeros(requests.size, np.int32), np.ones(count)),
            weight=both(weight, np.zeros(count)),
            images=None if requests.images is None else both(requests.images, np.zeros(count)),
        )
        run = replay(merged, replace(self.engine, count=laid.replicas))
        played = Played(
            merged, run, laid.span_s, laid.replicas, rate_per_s / replicas, both(decodes, outputs - 1.0), laid.repeats
        )
        tokens = (merged.input_tokens + merged.output_tokens) * (merged.priority == 1)
        begun = run.admitted_s <= both(np.zeros(times.size), end[stretch])
        share = float(tokens[begun].sum()) / max(float(tokens.sum()), 1.0)
        return self._told(played, levels), share

    def with_leaving(
        self, rate_per_s: float, replicas: int, in_flight: int, levels: tuple[float, ...]
    ) -> tuple[Prediction, Requests]:
        """What requests at a rate of the pool [1/s] see that come while fewer than `in_flight` are under way; all others leave.

        Returns
        -------
        tuple
            The prediction, and the requests with the share of all that each of those that leave is for its weight [1].
        """
        laid = self._lay(rate_per_s, replicas, SAMPLE, self.draw)
        requests, decodes = self._sent(self.traffic, laid)
        at_most = max(math.floor(in_flight * laid.replicas / replicas), 1)
        run = replay(requests, replace(self.engine, count=laid.replicas), Clients(in_flight=at_most, leave=True))
        weight = np.ones(requests.size) if requests.weight is None else requests.weight
        leaves = run.rejected > 0
        stay = replace(requests, weight=np.where(leaves, 0.0, weight))
        played = Played(stay, run, laid.span_s, laid.replicas, rate_per_s / replicas, decodes, laid.repeats)
        return self._told(played, levels), replace(requests, weight=np.where(leaves, weight, 0.0) / weight.sum())

    # --- how it is answered -----------------------------------------------------------------------------------------

    def _alone(self, requests: Requests) -> Run:
        """Requests that come one at a time."""
        return replay(requests, replace(self.engine, count=1, wake_s=0.0))

    def _others(self, rate_per_s: float) -> list[int]:
        """A calm and a busy draw of the traffic at a rate [1/s], by number; of one draw, other draws of the gateway."""
        ranked = self.draws(rate_per_s)
        if ranked.size == 1:
            return [1, 2]
        return [int(ranked[int(share * (ranked.size - 1))]) for share in (CALM, BUSY)]

    def _is_whole(self, rate_per_s: float, replicas: int) -> bool:
        """Whether a sample is all requests there are."""
        return self.sessions is None and self._lay(rate_per_s, replicas, SAMPLE, self.draw).whole

    def _lay(self, rate_per_s: float, replicas: int, most: int, draw: int | None) -> Laid:
        """The requests of so many replicas."""
        warm = min(self.engine.slots, RUNNING)
        # how many requests are drawn hangs on the load
        load = 0.0 if self.traffic.recorded else rate_per_s / (replicas * self.capacity_per_s)
        return self.traffic.lay(rate_per_s, replicas, self.engine.routing, warm=warm, most=most, draw=draw, load=load)

    def _at(
        self, rate_per_s: float, replicas: int, quantiles: tuple[float, ...], most: int, draw: int | None
    ) -> Prediction:
        """The prediction from `most` requests of one draw."""
        load = rate_per_s / (replicas * self.capacity_per_s)
        if load >= 1.0:
            return unstable(quantiles, load)
        # stretches of a sample are shorter than windows
        if self.windows_s or (draw == self.draw and self._is_whole(rate_per_s, replicas)):
            most = WHOLE
        key = (rate_per_s, replicas, quantiles, most, draw)
        if key not in self._known:
            played = self._last_played(rate_per_s, replicas, most, draw) or self._play(
                rate_per_s, replicas, most, draw, ()
            )
            told = self._told(played, quantiles)
            self._known[key] = replace(told, bands=self._between(played, told)) if most == WHOLE else told
        return self._known[key]

    def _between(self, played: Played, told: Prediction) -> dict[str, tuple[tuple[float, float], ...]]:
        """What a replay says of its own errors, by latency and level: how far the draws of one of several lie from all of them, and
        of drawn requests the interval of 95% by stretches of it. Nothing of a trace that is replayed once."""
        if played.repeats == 1 and self.traffic.recorded:
            return {}
        weight = played.requests.weight
        counted = slice(None) if weight is None else np.flatnonzero(weight > 0.0)
        bands, parts = {}, played.repeats if played.repeats > 1 else BATCHES
        for metric, values in self._latencies(played, counted).items():
            rows = [part[~np.isnan(part)] for part in np.array_split(values, parts)]
            each = np.array([weighted_quantiles(row, np.ones(row.size), told.quantiles) for row in rows])
            with np.errstate(invalid="ignore"):
                if played.repeats > 1:
                    ends = np.quantile(each, (CALM, BUSY), axis=0) / told.latencies[metric] - 1.0
                else:
                    half = BATCHES_T * each.std(axis=0, ddof=1) / math.sqrt(parts) / told.latencies[metric]
                    ends = np.stack((-half, half))
            bands[metric] = tuple((float(low), float(high)) for low, high in np.nan_to_num(ends, nan=0.0).T)
        return bands

    def _last_played(self, *asked: object) -> Played | None:
        """What was replayed last of pools of this kind, where it was that; prefill and decode pools are asked by turns."""
        last, played = self.traffic.fleet.played.get(type(self), (None, None))
        return played if last == (self._mark, *asked) else None

    def _play(
        self, rate_per_s: float, replicas: int, most: int, draw: int | None, promises: Sequence[Promise]
    ) -> Played:
        """Replay `most` requests of a draw, until a promise is broken where there are any."""
        laid = self._lay(rate_per_s, replicas, most, draw)
        requests, decodes = self._sent(self.traffic, laid)
        run = self._replayed(requests, laid.replicas, replicas, self._limits(promises, requests))
        return Played(requests, run, laid.span_s, laid.replicas, rate_per_s / replicas, decodes, laid.repeats)

    def _replayed(self, requests: Requests, laid_for: int, replicas: int, limits: Sequence[Limit]) -> Run:
        """Requests for so many of the replicas, of whose clients so many hold requests back."""
        held = self.traffic.fleet.sending.in_flight * self.traffic.law.share * laid_for / replicas
        clients = None if math.isinf(held) else Clients(in_flight=max(math.floor(held), 1))
        return replay(requests, replace(self.engine, count=laid_for), clients, limits=limits)

    def _sent(self, traffic: PoolTraffic, laid: Laid) -> tuple[Requests, Floats]:
        """Requests that were laid out, as the engine counts them, and the tokens of each after the first."""
        requests = traffic.requests(laid)
        return requests, requests.output_tokens - 1.0

    def _limits(self, promises: Sequence[Promise], requests: Requests) -> list[Limit]:
        """What may be late of the first promise about each latency; :meth:`_keeps_all` sees to all others."""
        weight = requests.weight
        total = float(requests.size if weight is None else weight.sum())
        found: dict[str, Limit] = {}
        # no request alone breaks a mean, nor a promise about windows
        for promise in () if self.windows_s else promises:
            if promise.quantile == MEAN or not {*promise.limits} <= {*METRICS}:
                continue
            joint = joint_limits(promise.metric) is not None
            for metric, limit in promise.limits.items():
                counted = total
                if metric == "tpot_s" and not joint:
                    decodes = requests.output_tokens > 1.0
                    counted = float(np.count_nonzero(decodes) if weight is None else weight[decodes].sum())
                late = (1.0 - promise.quantile) * counted * (1.0 + 1e-12)
                known = limit if metric == "tpot_s" else max(limit - self.overhead_s, 0.0)
                found.setdefault(metric, Limit(metric, known, late))  # type: ignore[arg-type]
        return [*found.values()]

    def _limits_say_all(self, promises: Sequence[Promise]) -> bool:
        """Whether a replay that its limits did not end keeps the promises."""
        limited = {p.kind for p in promises if p.kind in METRICS and p.quantile != MEAN and not self.windows_s}
        return len(limited) == len(promises)

    def _keeps_all(self, played: Played, promises: Sequence[Promise]) -> bool:
        """Whether what a replay that went to its end tells keeps all promises."""
        found = self._told(played, tuple(sorted({*JOINT_LEVELS, *(p.quantile for p in promises)})))
        return all(found.value(p.metric, p.quantile) <= p.limit_s for p in promises)

    def _told(self, played: Played, quantiles: tuple[float, ...]) -> Prediction:
        """The prediction read off a replay."""
        requests, run = played.requests, played.run
        counted = slice(None) if requests.weight is None else np.flatnonzero(requests.weight > 0.0)
        weight = np.ones(requests.size) if requests.weight is None else requests.weight[counted]
        latencies = self._latencies(played, counted)
        with np.errstate(invalid="ignore"):
            waited = run.admitted_s[counted] - run.sent_s[counted]
        # what follows an answer comes when it is sent; what never was counts in no window
        sent = requests.arrival_s if requests.following is None else run.sent_s
        came = sent[counted]
        load = played.rate_per_s / self._capacity_of(played) if played.rate_per_s else 0.0
        # of replicas that prefill alone the other latencies are another pool's
        prefills, nobody = self.engine.engine == "prefill", (math.nan,) * len(quantiles)
        has = {name: ~np.isnan(values) for name, values in latencies.items()}
        found = {name: (values[has[name]], weight[has[name]]) for name, values in latencies.items()}
        running = load if prefills else float(run.resident_s.sum()) / (played.span_s * played.replicas)
        return Prediction(
            quantiles=quantiles,
            latencies={
                name: nobody if prefills and name != "ttft_s" else self._levels(*own, came[has[name]], quantiles)
                for name, own in found.items()
            },
            load=load,
            slot_occupancy=load if prefills else min(running / self.engine.slots, 1.0),
            mean_running=running,
            wait_probability=float(weight[waited > self.full_iteration_s].sum() / max(float(weight.sum()), 1e-300)),
            warnings=tuple(self._warnings(played, weight, quantiles)),
            together=Together.of(latencies, weight) if self.joint else None,
            means={
                name: float(np.average(values, weights=own)) if values.size else math.nan
                for name, (values, own) in (found | {"wait_s": (np.nan_to_num(waited, nan=math.inf), weight)}).items()
            },
        )

    def _latencies(self, played: Played, counted: Any = slice(None)) -> dict[str, Floats]:
        """Every latency that can be promised of the requests that count [s]; NaN where one has none, as TPOT of one token."""
        run, sent = played.run, played.requests.output_tokens - 1.0
        steps = (sent if played.decodes is None else played.decodes)[counted]
        # what is never answered is beyond every limit
        ttft = np.nan_to_num(run.ttft_s[counted], nan=math.inf) + self.overhead_s
        e2e = np.nan_to_num(run.e2e_s[counted], nan=math.inf) + self.overhead_s
        several = steps > 0.0
        tpot = np.full(ttft.size, math.nan)
        with np.errstate(invalid="ignore"):
            decoded = (e2e - ttft)[several] / steps[several]
        tpot[several] = np.where(np.isfinite(e2e[several]), decoded, math.inf)
        return {"ttft_s": ttft, "tpot_s": tpot, "e2e_s": e2e}

    def _levels(self, values: Floats, weight: Floats, came_s: Floats, levels: Sequence[float]) -> tuple[float, ...]:
        """Quantiles of all values, or what 95% of the windows in which they came keep their own quantiles within."""
        known = np.isfinite(came_s)
        if not self.windows_s or not known.any() or not len(levels):
            return weighted_quantiles(values, weight, levels)
        values, weight = values[known], weight[known]
        window = (came_s[known] // self.windows_s).astype(np.int64)
        order = np.argsort(window, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(window[order])) + 1)
        each = np.sort([weighted_quantiles(values[part], weight[part], levels) for part in parts], axis=0)
        return tuple(each[min(math.ceil(KEPT * len(each)), len(each)) - 1].tolist())

    def _capacity_of(self, played: Played) -> float:
        """Largest stable rate of a replica that gets such requests [1/s]."""
        return self.capacity_per_s

    @property
    def full_iteration_s(self) -> float:
        """A long iteration: a request that is admitted later waited for more than its end [s]."""
        it = self.engine.iteration
        assert isinstance(it, IterationModel)
        prompts = self.traffic.own.input_tokens / self.tokens_per_unit
        tokens = min(self.engine.token_budget, float(np.max(prompts)))
        slots = min(self.engine.slots, float(MAX_NUM_SEQS_LIMIT))
        context = min(slots * float(np.mean(prompts)), self.engine.kv_tokens)
        images = self.traffic.own.images
        seen = 0.0 if images is None else self.engine.image_s * float(np.max(images))
        return seen + float(it.time(slots, context, tokens, 0.5 * tokens * tokens))

    def _warnings(self, played: Played, weight: Floats, quantiles: Sequence[float]) -> Iterator[str]:
        """What is said where hardly any request lies beyond a quantile that was asked for, or clients hold requests back."""
        if self.traffic.recorded and weight.size * (1.0 - 0.99) < FEWEST_BEYOND and max(quantiles) >= 0.99:
            yield f"{weight.size:,} requests are few for P99: a longer trace would say more"
        if math.isfinite(self.traffic.fleet.sending.in_flight):
            waited = float(np.mean(played.run.sent_s - played.requests.arrival_s))
            if not waited < 1e-3:
                yield f"requests wait {format_duration(waited)} with their clients on average, which no latency here counts"


def _beyond(run: Run, requests: Requests, decodes: Floats, limit: Limit) -> float:
    """What requests of a whole replay weigh that are beyond a limit, `decodes` tokens of each after the first."""
    # what is never answered is nan
    late = ~(run.taken_s(limit.metric, decodes) <= limit.limit_s)
    return float(np.count_nonzero(late) if requests.weight is None else requests.weight[late].sum())


def slowed(engine: Replicas, slow: float) -> Replicas:
    """Replicas whose iterations take `slow` times as long [1]."""
    it = engine.iteration
    times = it.slowed(slow) if isinstance(it, IterationModel) else tuple(slow * t for t in it)
    return replace(engine, iteration=times, request_s=slow * engine.request_s, image_s=slow * engine.image_s)


def weighted_quantiles(values: Floats, weight: Floats, levels: Sequence[float]) -> tuple[float, ...]:
    """The smallest values up to which shares `levels` of the weight lie, and the mean where the level is 0; NaN of nothing.

    >>> weighted_quantiles(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), (0.25, 0.5, 0.76))
    (1.0, 2.0, 3.0)
    >>> weighted_quantiles(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), (MEAN, 0.5))
    (2.0, 2.0)
    """
    if not values.size:
        return (math.nan,) * len(levels)
    if MEAN in levels:
        at_mean = float(np.average(values, weights=weight))
        others = iter(weighted_quantiles(values, weight, [q for q in levels if q != MEAN]))
        return tuple(at_mean if q == MEAN else next(others) for q in levels)
    if not len(levels):
        return ()
    # bits of times that are not negative are in the same order: the upper ones part them, and few parts are put in order
    part = np.maximum(values, 0.0).view(np.int64) >> PARTED_BITS
    part = (part - part[part.size // 2]).clip(-PARTS // 2, PARTS // 2 - 1) + PARTS // 2
    each = np.bincount(part, weight)
    below, holds = np.cumsum(each), np.zeros(each.size, dtype=bool)
    wanted = np.asarray(levels) * below[-1] * (1.0 - 1e-12)
    holds[np.searchsorted(below, wanted).clip(max=below.size - 1)] = True
    inside = np.flatnonzero(holds[part])
    inside = inside[np.argsort(values[inside])]
    # what lies below the parts that were left out counts too
    up_to, own = np.cumsum(weight[inside]), part[inside]
    up_to += (below - np.cumsum(np.where(holds, each, 0.0)))[own]
    places = np.searchsorted(up_to, wanted).clip(max=inside.size - 1)
    return tuple(values[inside[places]].tolist())


def bands_of(found: Prediction, others: Sequence[Prediction]) -> dict[str, tuple[tuple[float, float], ...]]:
    """Of other draws over this one - 1, by latency and level."""
    bands = {}
    for metric, values in found.latencies.items():
        told = []
        for k, value in enumerate(values):
            ratios = [other.latencies[metric][k] / value - 1.0 for other in others] if 0.0 < value < math.inf else []
            known = [r for r in ratios if not math.isnan(r)]
            told.append((min([0.0, *known]), max([0.0, *known])))
        bands[metric] = tuple(told)
    return bands
