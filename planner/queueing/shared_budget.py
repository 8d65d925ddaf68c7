"""Latency where prefill shares one token budget per iteration with decode: prefill steals time and has its own queue."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.queueing.mixture import PoolLatency, groups, mixture_quantiles, persistence, strata
from planner.queueing.prefill import PrefillLaw
from planner.queueing.slots.chain import OccupancyChain, pooled, replica_dispersion
from planner.queueing.slots.wait import WAIT_SURVIVAL, SlotWait

__all__ = ["SharedBudget"]

FloatArray = NDArray[np.float64]

_NODES = np.array([0.0, 0.15, 0.5, 0.85, 1.0])  # occupancies at which the prefill queue is solved, as probabilities
_NO_WAIT = 1e-8
# join-shortest-queue evens out a replica's arrivals this much as round robin does (simulations of 8 and 64 replicas)
_SHORTEST_QUEUE = 0.2
# strata of a standard normal: edges of probability and mean z of each, for the prefill time stolen from one request
_Z = np.array([-1.75, -0.95, -0.4, 0.07, 0.55, 1.1, 1.7, 2.4])
_Z_MASS = np.array([0.1, 0.17, 0.19, 0.19, 0.165, 0.115, 0.055, 0.015])
_Z_MASS = _Z_MASS / _Z_MASS.sum()


def _spared(load: float, stages: int) -> float:
    """Share of the arrivals that find a GI/M/1 prefill queue busy under Poisson but not under Erlang arrivals."""
    load = min(max(load, 1e-6), 0.985)
    sigma = load
    for _ in range(40):
        sigma = (1.0 + (1.0 - sigma) / (load * stages)) ** -stages
    return max(1.0 - sigma / load, 0.0)


class SharedBudget:
    """A replica whose iterations take decodes and up to `budget` prompt tokens, first come first served.

    Parameters
    ----------
    input_tokens, output_tokens, weight : ndarray, shape (rows,)
        The requests' law; weights sum to 1 [tokens, tokens, -].
    iteration_time : ndarray, shape (slots + 1,)
        t(0..slots) at n decoding slots, without prefill [s].
    budget : float
        B, prompt tokens per iteration [tokens].
    per_token : float
        P, time a prompt token adds [s/token].

    References
    ----------
    H. C. Tijms, "A First Course in Stochastic Models", 2003, section 9.3 (chains of M/G/1 type by the roots of the
    generating function's denominator).

    Examples
    --------
    >>> from planner.queueing.slots.chain import iteration_times
    >>> one = np.array([1.0])
    >>> replica = SharedBudget(512.0 * one, 200.0 * one, one, iteration_times(64, 0.008, 0.00065), 512.0, 2e-5)
    >>> round(replica.max_throughput(), 2)
    6.07
    """

    def __init__(
        self,
        input_tokens: FloatArray,
        output_tokens: FloatArray,
        weight: FloatArray,
        iteration_time: FloatArray,
        budget: float,
        per_token: float,
    ) -> None:
        self.slots = len(iteration_time) - 1
        self.budget = budget
        self.per_token = per_token
        times = np.array(iteration_time, dtype=float)
        if not times[0] > 0:  # an iteration of prefill only
            times[0] = max(2.0 * times[1] - times[2], 0.5 * times[1]) if self.slots > 1 else times[1]
        self._times_table = times
        prompts = np.maximum(input_tokens, 1.0)
        decodes = np.maximum(output_tokens, 1.0) - 1.0
        self.mean_input = float(weight @ prompts)
        self.mean_decodes = float(weight @ decodes)
        second = float(weight @ decodes**2)
        self._scv = max(second / self.mean_decodes**2 - 1.0, 0.0) if self.mean_decodes > 0 else 0.0
        self._prefill = PrefillLaw(*groups(prompts, weight, 400), budget)
        chunks = np.ceil(prompts / budget - 1e-12)
        self._mean_chunks = float(weight @ chunks)
        self._alone, self._alone_mass = groups(prompts, weight, 40)
        some = decodes >= 1.0
        self._has_gaps = bool(weight[some].sum() > 0)
        rows = some if self._has_gaps else np.ones_like(some)
        self._gaps, self._gap_mass = groups(np.maximum(decodes[rows], 1.0), weight[rows] / weight[rows].sum(), 9)
        self._lives, self._life_mass = groups(decodes, weight, 14)
        self._wait = SlotWait(np.maximum(decodes, 0.5) + chunks, weight)

    def _times(self, active: FloatArray) -> FloatArray:
        times: FloatArray = np.interp(active, np.arange(self.slots + 1.0), self._times_table)
        return times

    def _held(self, completions: float) -> float:
        """Iterations a request holds a slot, at so many completions per iteration [iterations]."""
        full = completions * self.mean_input / self.budget
        queue = full / max(1.0 - full, 1e-9) * self._prefill.second / (2.0 * self.mean_input * self.budget)
        return self.mean_decodes + self._mean_chunks + queue

    def max_throughput(self) -> float:
        r"""Largest arrival rate one replica sustains [1/s].

        .. math:: X = \frac{m}{t(m E[D]) + P m E[L]}, \qquad m = \min\Big(\frac{B}{E[L]}, \frac{N}{E[D] + \ldots}\Big)

        m completions per iteration: the token budget or the slots, held through decode and prefill, bind.
        """
        most = self.budget / self.mean_input
        low, high = 0.0, most
        for _ in range(60):
            middle = 0.5 * (low + high)
            if middle * self._held(middle) < self.slots:
                low = middle
            else:
                high = middle
        completions = most if high >= most * (1.0 - 1e-12) else low
        decoding = min(completions * self.mean_decodes, float(self.slots))
        duration = float(self._times(np.array([decoding]))[0]) + self.per_token * completions * self.mean_input
        return completions / duration

    def predict(
        self,
        arrival_rate: float,
        replicas: int,
        routing: str,
        names: tuple[float, ...],
        dispersion: float,
    ) -> PoolLatency:
        """See `planner.queueing.slots.latency.ReplicaLatency.predict`; arguments are checked there."""
        levels = np.array(names)
        most = self.max_throughput() * replicas
        load = arrival_rate / most
        if load >= 1.0:
            return self._overloaded(names, load, most)
        rate = arrival_rate / replicas
        g = replicas if pooled(routing) else 1
        stolen = rate * self.per_token * self.mean_input
        seen = replica_dispersion(dispersion, replicas, routing)
        share = self._wait.overlap
        peakedness = max(1.0 + (seen - 1.0) * share, 0.05)

        # --- busy slots: decodes at t(n) / (1 - stolen); a fraction `waiting` of the busy slots is in prefill
        decodes = max(self.mean_decodes, 1e-9)
        waiting = min(self._mean_chunks / (self._mean_chunks + decodes), 0.9)
        for _ in range(2):
            effective = self._times((1.0 - waiting) * np.arange(self.slots + 1.0)) / (1.0 - stolen)
            chain = OccupancyChain(effective, self.slots, g)
            work = rate * g * decodes / (1.0 - waiting)
            occupied = chain.solve(min(work, 0.995 * chain.max_work), peakedness)
            decoding = (1.0 - waiting) * occupied.mean_active
            hold = self._hold(rate, decoding)
            waiting = min(rate * hold / (rate * hold + decoding), 0.95) if rate > 0 else waiting
        probability = occupied.probability
        states = np.arange(occupied.first, occupied.first + len(probability), dtype=float)
        c = self.slots * g
        mean = float(probability @ states)
        variance = float(probability @ states**2) - mean**2
        delayed = occupied.all_busy
        if routing == "jsq":
            delayed *= occupied.load ** (0.5 * (g - 1.0) * (1.0 - occupied.load))
        ratio = max(variance / mean, 0.05) if mean > 0 else 1.0
        memory = max(decodes / (1.0 - waiting) * 0.5 * (1.0 + self._scv) * ratio, 1.0)

        free = probability[:-1] if states[-1] == c else probability
        found, spread, mass, idle = strata(states[: len(free)], free, g)
        factor = 1.0 - waiting
        others = factor * np.maximum((found + 1.0) / g - 1.0, 0.0) if g > 1 else factor * found
        centre = float(mass @ others)
        base = self._times(others)

        # --- prefill queue at a few occupancies
        cumulative = np.cumsum(mass)
        node_of = np.minimum(np.searchsorted(_NODES[1:-1], cumulative - 0.5 * mass), len(_NODES) - 2)
        node_mass = np.bincount(node_of, mass, minlength=len(_NODES) - 1)
        node_sum = np.bincount(node_of, mass * others, minlength=len(_NODES) - 1)
        node_at = np.where(node_mass > 0, node_sum / np.maximum(node_mass, 1e-300), centre)
        state = self._prefill.solve(rate, self._times(node_at), self.per_token)
        full = base + self.per_token * self.budget
        law, weights = state.iterations, node_mass / node_mass.sum()
        steps = (law * state.before).sum(axis=(1, 2, 3))
        tail = (law * state.last_tokens).sum(axis=(1, 2, 3))
        at_nodes = self._times(node_at)
        holds = steps * (at_nodes + self.per_token * self.budget) + at_nodes + self.per_token * tail

        # under round robin and the shortest queue the previous prompt of the replica is rarely just before this one:
        # more arrivals than under Poisson find no prompt ahead
        clear = np.zeros(len(weights))
        if replicas > 1 and routing != "random":
            # the more of what the shortest queue counts is prefill, the more it evens prefill out
            part = 1.0 if routing == "rr" else _SHORTEST_QUEUE + (1.0 - _SHORTEST_QUEUE) * waiting
            clear = part * np.array([_spared(float(load), replicas) for load in state.load])

        active = mass * ~idle * (1.0 - clear[node_of])
        start, width, weight = [], [], []
        for kind in range(3):
            met = state.duration[node_of, kind] + base - self._times(node_at)[node_of]
            for half in (0, 1):
                # first half of the running iteration: between half and all of it is still to come
                # an arrival in its first half waits for more of it
                tokens = state.last_tokens[node_of, kind, half]
                whole = state.before[node_of, kind, half] * full[:, None]
                room = np.maximum(self.budget - tokens, 0.0)
                arrivals = rate * (whole + 0.5 * met[:, None]) * np.minimum(self.mean_input, room)
                filled = room * -np.expm1(-arrivals / np.maximum(room, 1e-9))
                last = base[:, None] + self.per_token * (tokens + filled)
                start.append((whole + last + (0.5 * met[:, None] if half == 0 else 0.0)).ravel())
                width.append(np.broadcast_to(0.5 * met[:, None], whole.shape).ravel())
                weight.append((active[:, None] * state.iterations[node_of, kind, half]).ravel())
        alone_steps = np.ceil(self._alone / self.budget - 1e-12) - 1.0
        rest = self._alone - alone_steps * self.budget
        full_nodes = at_nodes + self.per_token * self.budget
        lone_hold = float(self._alone_mass @ alone_steps) * full_nodes + at_nodes
        lone_hold = lone_hold + self.per_token * float(self._alone_mass @ rest)
        held = decoding + rate * float(weights @ (holds + clear * (lone_hold - holds)))
        if np.any(clear > 0):
            lone = alone_steps[None, :] * full[:, None] + base[:, None] + self.per_token * rest[None, :]
            met = state.duration[node_of, 0] + base - at_nodes[node_of]
            start.append(lone.ravel())
            width.append(np.broadcast_to(met[:, None], lone.shape).ravel())
            weight.append(((mass * ~idle * clear[node_of])[:, None] * self._alone_mass).ravel())
        if np.any(idle):
            t0 = float(self._times_table[0])
            alone = alone_steps * (t0 + self.per_token * self.budget) + t0 + self.per_token * rest
            start.append(alone)
            width.append(np.zeros(len(alone)))
            weight.append(self._alone_mass * float(mass[idle].sum()))
        first_start, first_width, first_mass = (np.concatenate(part) for part in (start, width, weight))
        first_mass = first_mass / first_mass.sum()
        kept = first_mass > 1e-9
        first_start, first_width, first_mass = first_start[kept], first_width[kept], first_mass[kept]

        # --- those who wait for a slot first: then the prefill queue of a full replica
        mean_delay = 0.0
        last_active = factor * (self.slots - 1.0)
        t_last = float(self._times(np.array([last_active]))[0]) / (1.0 - stolen)
        if delayed > _NO_WAIT:
            one = (
                self._wait.edges(self.slots, occupied.load**g)
                if routing == "jsq"
                else self._wait.edges(c, occupied.load)
            )
            edges = one * t_last * (seen + self._scv) / (1.0 + self._scv)
            wait_mass = -np.diff(WAIT_SURVIVAL)
            wait_mass = wait_mass / wait_mass.sum()
            mean_delay = float(wait_mass @ (edges[1:] + edges[:-1])) * 0.5
            busy_steps = state.iterations[-1].sum(axis=(0, 1))
            top_full = t_last * (1.0 - stolen) + self.per_token * self.budget
            after = (state.iterations[-1] * state.before[-1]).sum(axis=(0, 1)) / np.maximum(busy_steps, 1e-300)
            prefill = (after + 0.5) * top_full
            seen_steps = busy_steps > 1e-6
            delayed_start = (edges[:-1][:, None] + prefill[seen_steps][None, :]).ravel()
            delayed_width = np.broadcast_to(np.diff(edges)[:, None], (len(wait_mass), int(seen_steps.sum()))).ravel()
            delayed_mass = np.outer(wait_mass, busy_steps[seen_steps] / busy_steps[seen_steps].sum()).ravel() * delayed
            first_start = np.concatenate((first_start, delayed_start))
            first_width = np.concatenate((first_width, delayed_width))
            first_mass = np.concatenate((first_mass * (1.0 - delayed), delayed_mass))
        ttft = mixture_quantiles(first_start, first_width, first_mass, levels)
        mean_ttft = float(first_mass @ (first_start + 0.5 * first_width) / first_mass.sum())

        # --- decode
        everyone = np.concatenate((others, [last_active]))
        everyone_mass = np.concatenate((mass * (1.0 - delayed), [delayed]))
        everyone_node = np.concatenate((node_of, [len(_NODES) - 2]))
        everyone_width = np.concatenate((factor * spread / g, [0.0]))
        cells = np.arange(state.share.shape[1]) * self.budget / (state.share.shape[1] - 1)
        gap_base = self._times(1.0 + everyone - 0.5 * everyone_width)
        gap_width = self._times(1.0 + everyone + 0.5 * everyone_width) - gap_base
        itl_start = gap_base[:, None] + self.per_token * cells[None, :]
        itl_mass = everyone_mass[:, None] * state.share[everyone_node]
        itl = mixture_quantiles(itl_start, np.broadcast_to(gap_width[:, None], itl_start.shape), itl_mass, levels)
        mean_itl = float(np.sum(itl_mass * (itl_start + 0.5 * gap_width[:, None])) / itl_mass.sum())

        spent = np.sqrt(np.maximum(state.tokens_variance, 0.0))
        keep = persistence(self._gaps, memory)[:, None]
        at = 1.0 + centre + (everyone - centre)[None, :] * keep
        wide = 0.5 * everyone_width[None, :] * keep
        low, high = self._times(at - wide), self._times(at + wide)
        quiet = 0.5 * (low + high)
        extra = quiet * stolen / (1.0 - stolen)
        long_run = rate * quiet / (1.0 - stolen) * self._prefill.second / (1.0 - stolen) ** 2
        # decoding starts when one's own prompt ends, and the prompts that came meanwhile are still to be done: they leave
        # rho E[L] (1 - rho (1 + C_L^2) / 2) tokens more than usual (work left behind by an M/G/1 departure)
        busy = np.minimum(state.load[everyone_node], 0.985)
        behind = busy * (self.mean_input - 0.5 * busy * self._prefill.second / self.mean_input)
        noise = spent[everyone_node][None, :] ** 2
        follow = np.maximum(long_run / (2.0 * np.maximum(noise, 1e-12)), 0.5)
        forgotten = -np.expm1(-self._gaps[:, None] / follow) / self._gaps[:, None]
        extra = extra + self.per_token * np.maximum(behind, 0.0)[None, :] * forgotten
        spread_tokens = noise * persistence(self._gaps[:, None] / follow, 1.0) ** 2
        deviation = self.per_token * np.sqrt(spread_tokens)
        shape = np.maximum((extra / np.maximum(deviation, 1e-12)) ** 2, 0.05) if self.per_token > 0 else None
        tpot_start, tpot_width, tpot_mass = low, high - low, np.outer(self._gap_mass, everyone_mass)
        if shape is not None:
            # Wilson-Hilferty: the prefill time stolen from one request is about gamma distributed
            third = (1.0 / (9.0 * shape))[..., None]
            cube = np.maximum(1.0 - third + _Z * np.sqrt(third), 0.0) ** 3
            cube /= (cube * _Z_MASS).sum(axis=-1, keepdims=True)
            taken = np.minimum(extra[..., None] * cube, self.per_token * self.budget)
            tpot_start = low[..., None] + taken
            tpot_width = np.broadcast_to((high - low)[..., None], tpot_start.shape)
            tpot_mass = tpot_mass[..., None] * _Z_MASS
        if self._has_gaps:
            tpot = mixture_quantiles(tpot_start, tpot_width, tpot_mass, levels)
            mean_tpot = float(np.sum(tpot_mass * (tpot_start + 0.5 * tpot_width)) / tpot_mass.sum())
        else:
            tpot, mean_tpot = np.zeros(len(levels)), 0.0

        # --- end to end: first token (its own law, in strata) and the decodes at the occupancy found
        cuts = np.array([0.0, 0.1, 0.35, 0.65, 0.88, 0.97, 0.995, 0.9999])
        first = mixture_quantiles(first_start, first_width, first_mass, cuts)
        keep = persistence(np.maximum(self._lives, 1.0), memory)[:, None]
        decode = self._lives[:, None] * self._times(1.0 + centre + (everyone - centre)[None, :] * keep) / (1.0 - stolen)
        total = decode[:, :, None] + first[None, None, :-1]
        total_mass = (self._life_mass[:, None] * everyone_mass[None, :])[:, :, None] * np.diff(cuts)
        total_width = np.broadcast_to(np.diff(first), total.shape)
        e2e = mixture_quantiles(total, total_width, total_mass, levels)
        mean_e2e = mean_ttft + float(np.sum(np.outer(self._life_mass, everyone_mass) * decode)) / float(
            everyone_mass.sum()
        )
        return PoolLatency(
            quantiles=names, ttft_s=ttft, tpot_s=tpot, itl_s=itl, e2e_s=e2e,
            mean_ttft_s=mean_ttft, mean_tpot_s=mean_tpot, mean_itl_s=mean_itl, mean_e2e_s=mean_e2e,
            slot_occupancy=min(held / self.slots, 1.0), mean_active=min(held, float(self.slots)), load=load,
            margin=1.0 - load,
            max_throughput=most, throughput=arrival_rate, wait_probability=delayed, mean_delayed_wait_s=mean_delay,
            prefill_load=float(weights @ state.load), stable=True,
        )  # fmt: skip

    def _hold(self, rate: float, decoding: float) -> float:
        """Mean time from getting a slot to the first token, as an M/G/1 queue of whole iterations [s]."""
        base = float(self._times(np.array([decoding]))[0])
        full = base + self.per_token * self.budget
        busy = min(rate * self.mean_input * full / self.budget, 0.985)
        queue = busy / (1.0 - busy) * self._prefill.second / (2.0 * self.mean_input * self.budget)
        return (self._mean_chunks - 1.0 + queue) * full + base + 0.5 * self.per_token * self.budget

    def _overloaded(self, names: tuple[float, ...], load: float, most: float) -> PoolLatency:
        infinite = np.full(len(names), np.inf)
        slowest = float(self._times_table[-1]) + self.per_token * self.budget
        slow = np.full(len(names), slowest)
        return PoolLatency(
            quantiles=names, ttft_s=infinite, tpot_s=slow, itl_s=slow, e2e_s=infinite,
            mean_ttft_s=float("inf"), mean_tpot_s=slowest, mean_itl_s=slowest, mean_e2e_s=float("inf"),
            slot_occupancy=1.0, mean_active=float(self.slots), load=load, margin=1.0 - load, max_throughput=most,
            throughput=most, wait_probability=1.0, mean_delayed_wait_s=float("inf"), prefill_load=load, stable=False,
        )  # fmt: skip
