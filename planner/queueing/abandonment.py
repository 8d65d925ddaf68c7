r"""Who is answered where everybody waits as long as patience allows.

First come, first served, the prompts of an overloaded engine are taken when their clients are about to give up. Let e be the
slack that the client at the head of the line has left. A prompt takes the engine s, or e where its client gives up before, and the
next in line has the slack

.. math:: e' = (e - s)^+ + A, \quad A \sim \text{Exp}(\lambda)

because clients come at rate :math:`\lambda` and give up in the order in which they came. That is the time a customer of a queue
GI/M/1 stays, served at rate :math:`\lambda` and arriving every s: e is exponential with the rate
:math:`\theta = \lambda(1 - E[e^{-\theta s}])`.

An engine with iterations takes several prompts at once and sees only at the end of an iteration who is gone. Counted in clients,
with F = S_Q the slack up to which all have been taken (S_q the time in which q clients come), an iteration that takes N prompts and
lasts tau leaves :math:`Q' = (Q + N - J)^+`, J the clients who come in tau; it answers :math:`E[\min(Q, J)]`. A prompt of k
exponential phases, of which Z are done in an iteration, makes this :math:`X' = (X + Z - kJ)^+` with
:math:`Q = \lfloor X/k \rfloor`: a prompt whose client is gone is dropped with the phases it has. The law of X follows from the
Wiener-Hopf factors of :math:`1 - E[z^{Z - kJ}]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GROUPS = 48
"""Kinds of requests that patience tells apart, by their prefill."""

MOST_PHASES = 16
"""A prompt time varies at least as much as a sum of so many exponential phases."""

PHASE_POINTS = 64
"""Equally likely values that stand for the law of a sum of phases."""

RATE_STEP = math.log(1.1)
"""Between rates that are computed, what is answered follows a power of the rate."""

LARGEST_LAW = 1 << 14
"""Most values of X that are told apart."""

ANOTHER_ENGINE = 0.1
"""Throughputs that differ by less are one engine, averaged in two ways [1]."""

HARDLY_ANY = 1e-6
"""Prefill of an iteration that takes what one without prompts does; one without decodes, too, takes a time [tokens]."""

_MOMENTS = ((np.arange(8) + 0.5) / 8.0)[:, None]


def slack_rate(rate: float, time_s: Floats, weight: Floats) -> float:
    """Rate theta of the exponential slack of who is taken next [1/s]; 0 where the engine keeps up.

    Parameters
    ----------
    rate
        Clients [1/s].
    time_s, weight
        Time of a prompt [s], and how frequent it is; shape (kinds,).
    """
    if rate * float(weight @ time_s) <= 1.0 + 1e-9:
        return 0.0
    theta = rate
    for _ in range(60):
        gone = weight * np.exp(-theta * time_s)
        step = (rate * (1.0 - float(gone.sum())) - theta) / (rate * float(gone @ time_s) - 1.0)
        theta -= step
        if abs(step) <= 1e-9 * rate:
            break
    return max(theta, 0.0)


def _time_taken(theta: float, time_s: Floats, iteration_s: float) -> Floats:
    """Mean time the engine spends on a prompt until it is done or the iteration ends in which its client gives up [s]."""
    ends = _MOMENTS * iteration_s
    taken = np.minimum(ends, time_s) - np.expm1(-theta * np.maximum(time_s - ends, 0.0)) / theta
    return np.asarray(taken.mean(axis=0))


def _reflected_walk(increment: NDArray[np.complex128], drift: float) -> Floats:
    """Law of X = (X + Y)^+ on 0, 1, ...: Y's generating function on the unit circle, its mean < 0; shape (size,)."""
    size = increment.size
    z = np.exp(2j * math.pi * np.arange(size) / size)
    ratio = np.empty(size, dtype=np.complex128)
    # 1 is a root of both; their ratio winds around zero not at all
    ratio[1:] = (1.0 - increment[1:]) / (1.0 - 1.0 / z[1:])
    ratio[0] = -drift
    logs = np.log(np.abs(ratio)) + 1j * np.unwrap(np.angle(ratio))
    part = np.fft.fft(logs) / size
    part[0] = 0.0
    part[size // 2 :] = 0.0
    upward = np.fft.ifft(part) * size
    return np.asarray(np.fft.fft(np.exp(upward[0] - upward)).real / size)


def _law_size(spread: float, decay: float) -> int:
    """Values of X to tell apart: increments of about `spread`, a tail that falls by exp(-`decay`) per value."""
    wanted = max(256.0, 4.0 * spread, 24.0 / max(decay, 1e-9))
    return min(1 << math.ceil(math.log2(wanted)), LARGEST_LAW)


def answered_per_iteration(prompts: float, clients: float, phases: int = 1) -> float:
    """Prompts answered in an iteration, where it takes `prompts` and `clients` come.

    Parameters
    ----------
    prompts
        Mean prompts that the engine can do in an iteration.
    clients
        Mean clients that come in it, Poisson.
    phases
        Exponential phases of a prompt's time.
    """
    from scipy.special import pdtrc

    if clients <= prompts * 1.0005:
        return min(prompts, clients)
    decay = 2.0 * (1.0 - prompts / clients) / phases
    size = _law_size(phases * (prompts + clients), decay)
    z = np.exp(2j * math.pi * np.arange(size) / size)
    increment = np.exp(phases * prompts * (z - 1.0) + clients * (z**-phases - 1.0))
    law = _reflected_walk(increment, phases * (prompts - clients))
    beyond = pdtrc(np.arange(size // phases + 1), clients)
    smaller = np.concatenate([[0.0], np.cumsum(beyond)])
    return max(float(law @ smaller[np.arange(size) // phases]), 0.0)


def answered_by_slots(prompts: float, rate: float, bare_s: float, prompt_s: float) -> float:
    """Prompts answered in an iteration that takes as many as slots are free, Poisson, and is the longer the more it takes.

    Parameters
    ----------
    prompts
        Mean prompts taken in an iteration.
    rate
        Clients [1/s].
    bare_s, prompt_s
        Iteration without prompts, and what each adds [s].
    """
    mean = rate * (bare_s + prompts * prompt_s)
    if mean <= prompts * 1.0005:
        return min(prompts, mean)
    spread = prompts + mean + rate * prompt_s * (3.0 * math.sqrt(prompts) + 3.0)
    size = _law_size(2.0 * spread, 1.0 - prompts / mean)
    z = np.exp(2j * math.pi * np.arange(size) / size)
    back = np.conj(z) - 1.0
    increment = np.exp(prompts * (z * np.exp(rate * prompt_s * back) - 1.0) + rate * bare_s * back)
    law = _reflected_walk(increment, prompts - mean)
    came = np.exp(prompts * (np.exp(rate * prompt_s * (z - 1.0)) - 1.0) + rate * bare_s * (z - 1.0))
    clients = np.fft.fft(came).real / size
    return max(float(((1.0 - np.cumsum(law)) * (1.0 - np.cumsum(clients))).sum()), 0.0)


def falling_root(f: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Where a decreasing function is zero, f(low) >= 0 >= f(high), by the Illinois rule."""
    at_low, at_high = f(low), f(high)
    if at_low <= 0.0:
        return low
    if at_high >= 0.0:
        return high
    side = 0
    middle = high
    for _ in range(60):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        value = f(middle)
        if value == 0.0 or high - low <= tolerance:
            break
        if value > 0.0:
            if abs(middle - low) <= 0.1 * tolerance:
                break
            low, at_low = middle, value
            at_high = at_high * 0.5 if side > 0 else at_high
            side = 1
        else:
            if abs(high - middle) <= 0.1 * tolerance:
                break
            high, at_high = middle, value
            at_low = at_low * 0.5 if side < 0 else at_low
            side = -1
    return middle


@dataclass(frozen=True)
class WholePrompts:
    """An engine whose iterations are one whole prompt, computed to its end whatever its client does.

    Parameters
    ----------
    time_s, weight
        Time of a prompt [s], and how frequent it is; shape (kinds,).
    """

    time_s: Floats
    weight: Floats

    def answered_per_s(self, rate: float) -> float:
        """Prompts answered at a rate of clients [1/s]: whose slack is longer than their prompt."""
        theta = slack_rate(rate, self.time_s, self.weight)
        if theta == 0.0:
            return rate
        return float(self.weight @ np.exp(-theta * self.time_s)) / float(self.weight @ self.time_s)

    def prompts_per_s(self, rate: float) -> float:
        """Prompts that the engine can do while some are there, at a rate of clients [1/s]."""
        return 1.0 / float(self.weight @ self.time_s)


@dataclass(frozen=True)
class PromptsInIterations:
    """An engine of mixed batching: iterations of all decodes and as much prefill as the token budget leaves.

    Parameters
    ----------
    iteration_s
        Time of an iteration [s] from its decodes, their contexts [tokens], its prefill [tokens] and the pairs of this.
    token_budget, most_resident
        Tokens of an iteration; requests that slots and memory allow.
    capacity_per_s, steps
        Largest throughput [1/s] and mean iterations a request is resident.
    new, decodes, contexts, pairs, weight
        Kinds of requests: prompt tokens to compute, decode iterations, the sum of their contexts over these [tokens], pairs of the
        prefill, and how frequent they are; shape (kinds,).
    """

    iteration_s: Callable[[float, float, float, float], float]
    token_budget: float
    most_resident: float
    capacity_per_s: float
    steps: float
    new: Floats
    decodes: Floats
    contexts: Floats
    pairs: Floats
    weight: Floats
    _known: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    def answered_per_s(self, rate: float) -> float:
        """Prompts answered at a rate of clients [1/s]; rates between those computed follow a power law."""
        place = math.log(rate / self.capacity_per_s) / RATE_STEP
        low = math.floor(place)
        logs = [math.log(max(self._at_step(low + k), 1e-300)) for k in (0, 1)]
        return math.exp(logs[0] + (place - low) * (logs[1] - logs[0]))

    def prompts_per_s(self, rate: float) -> float:
        """Prompts that the engine can do while some are there, at a rate of clients [1/s]: the token budget is full then.

        With n decodes a share u of the iterations is full, u (budget - n) = n prompt / decodes, and n = rate decodes E[iteration].
        """
        prompt, after = float(self.weight @ self.new), float(self.weight @ self.decodes)
        context, deep = (
            float(self.weight @ self.contexts) / max(after, 1e-300),
            float(self.weight @ self.pairs) / prompt,
        )

        def iterations(running: float) -> tuple[float, float, float]:
            """Share of them that are full, and how long one of these and one without prompts takes [s]."""
            room = self.token_budget - running
            full = self.iteration_s(running, running * context, room, room * deep)
            return (
                running / max(after, 1e-300) * prompt / room,
                full,
                self.iteration_s(running, running * context, 0.0, 0.0),
            )

        def missing(running: float) -> float:
            share, full, bare = iterations(running)
            return rate * after * (bare + share * (full - bare)) - running

        most = self.token_budget / (1.0 + prompt / max(after, 1e-300))
        running = falling_root(missing, 1e-3 * most, most, 1e-4 * most)
        return (self.token_budget - running) / prompt / iterations(running)[1]

    def at_its_capacity(self) -> PromptsInIterations:
        """The same, its iterations scaled to `capacity_per_s` where that knows more than these lengths: caches, drafted tokens."""
        prompt, after = float(self.weight @ self.new), max(float(self.weight @ self.decodes), 1e-300)
        full = self.token_budget / (1.0 + prompt / after)
        running = min(full, self.most_resident * after / (after + 1.0))
        chunk, room = running / after * prompt, self.token_budget - running
        context, pairs = (
            running / after * float(self.weight @ self.contexts),
            chunk / prompt * float(self.weight @ self.pairs),
        )
        bare, filled, deep = (
            self.iteration_s(running, context, c, p) for c, p in ((HARDLY_ANY, 0.0), (room, 0.0), (room, pairs))
        )
        lasts = bare + (filled - bare) * chunk / room + deep - filled
        slower = chunk / prompt / lasts / self.capacity_per_s
        if abs(slower - 1.0) < ANOTHER_ENGINE:
            return self
        iteration_s = self.iteration_s
        return replace(self, iteration_s=lambda *batch: slower * iteration_s(*batch), _known={})

    def _at_step(self, step: int) -> float:
        """Answers at a rate of the grid [1/s]."""
        if step not in self._known:
            rate = self.capacity_per_s * math.exp(step * RATE_STEP)
            # up to capacity nobody has to be lost
            self._known[step] = rate if step <= 0 else min(self._answers(rate), rate)
        return self._known[step]

    def _answers(self, rate: float) -> float:
        """Answers per second where the decodes of those answered and the prompts fill the iterations."""

        most, prompt = self.most_resident, float(self.weight @ self.new)

        def beside(running: float) -> float:
            # each prompt needs a slot of its own
            return min(self.token_budget - running, most * prompt)

        def missing(running: float) -> float:
            answers, lasts = self._with_chunk(rate, running, beside(running))
            return float(answers @ self.decodes) * lasts - running

        if missing(most) <= 0.0:
            running = falling_root(missing, 0.0, most, 2e-4 * most)
            return float(self._with_chunk(rate, running, beside(running))[0].sum())
        # all slots, or the memory, are taken: prompts have what completions leave of the budget
        room = self.token_budget - most

        def missing_beside(chunk: float) -> float:
            running = max(most - chunk / prompt, 1.0)
            answers, lasts = self._with_chunk(rate, running, chunk)
            return running - float(answers @ self.decodes) * lasts

        chunk = falling_root(missing_beside, min(0.2 * prompt * most / self.steps, 0.5 * room), room, 2e-4 * room)
        answers = self._with_chunk(rate, max(most - chunk / prompt, 1.0), chunk)[0]
        filled = min((chunk + prompt) / room, 1.0)
        if filled == 1.0:
            return float(answers.sum())
        # who is next is taken when a slot is free, whatever the prompts' lengths: the less of the budget an iteration with a
        # prompt fills, the more so
        return filled * float(answers.sum()) + (1.0 - filled) * self._paced_by_slots(rate)

    def _with_chunk(self, rate: float, running: float, chunk: float) -> tuple[Floats, float]:
        """Answers per second of each kind, and the length of an iteration [s], with so many decodes and prompt tokens in each."""
        room = self.token_budget - running
        weight, prompt = self.weight, float(self.weight @ self.new)
        pairs = chunk * float(weight @ self.pairs) / prompt
        context = running * float(weight @ self.contexts) / max(float(weight @ self.decodes), 1e-300)
        answers, lasts = rate * weight, 0.0
        theta, times = 0.0, weight
        for _ in range(2):
            # prompts come one or several at a time: iterations are on the line between an empty and a full one
            bare, full, deep = (
                self.iteration_s(running, context, c, p) for c, p in ((HARDLY_ANY, 0), (room, 0), (room, pairs))
            )
            flat = bare + (full - bare) * chunk / room
            attention = (deep - full) / max(pairs, 1e-300)
            times = self.new / chunk * flat + attention * self.pairs
            theta = slack_rate(rate, times, weight)
            if theta == 0.0:
                return rate * weight, flat + deep - full
            spent = weight * _time_taken(theta, times, flat + deep - full)
            lasts = float(spent.sum()) / float(spent @ (self.new / (chunk * times)))
            answers = weight * np.exp(-theta * times)
            context = running * float(answers @ self.contexts) / max(float(answers @ self.decodes), 1e-300)
        # of an iteration that prompts do not fill, a prompt sees one in which it is
        own = lasts + (lasts - bare) * prompt / chunk * (1.0 - chunk / room)
        late = -math.expm1(-theta * own) / (theta * own)
        alone = late * answers / float(weight @ _time_taken(theta, times, own))
        return alone * self._several_at_once(rate, theta, times, lasts), lasts

    def _several_at_once(self, rate: float, theta: float, times: Floats, lasts: float) -> float:
        """What remains of the answers where iterations take several prompts: exact for phases, as many as fit the law at theta."""
        # prompts of those who are answered, to which a sum of phases stays one
        tilted = self.weight * np.exp(-theta * times)
        tilted /= float(tilted.sum())
        mean = float(tilted @ times)
        variance = float(tilted @ (times - mean) ** 2)
        fitting = LARGEST_LAW / (8.0 * rate * lasts)
        phases = max(round(min(mean**2 / max(variance, mean**2 / MOST_PHASES), fitting)), 1)
        share = max(1.0 - theta / rate, 1e-9)
        phase_mean = phases / theta * (share ** (-1.0 / phases) - 1.0)
        late = -math.expm1(-theta * lasts) / (theta * lasts)
        alone = share * late * lasts / float(_time_taken(theta, phase_mean * _phase_law(phases), lasts).mean())
        return answered_per_iteration(lasts / phase_mean, rate * lasts, phases) / alone

    def _paced_by_slots(self, rate: float) -> float:
        """Answers per second where a prompt is taken as soon as a request leaves, several where several leave."""
        most, steps = self.most_resident, self.steps
        context = most * float(self.weight @ self.contexts) / max(float(self.weight @ self.decodes), 1e-300)
        at_capacity = most / steps
        mean = at_capacity / self.capacity_per_s
        room, prompt = self.token_budget - most, float(self.weight @ self.new)
        empty, full = (
            self.iteration_s(most, context, c, c * float(self.weight @ self.pairs) / prompt) for c in (0.0, room)
        )
        # iterations last what the throughput says, and grow with prompts as they do between an empty and a full one
        each = min((full - empty) * prompt / room, max(mean - empty, 0.05 * mean) / at_capacity)
        bare = mean - each * at_capacity

        def missing(prompts: float) -> float:
            # what is answered stays for its steps, what was given up for one iteration
            return most - answered_by_slots(prompts, rate, bare, each) * (steps - 1.0) - prompts

        high = 2.0 * at_capacity
        while missing(high) > 0.0 and high < most:
            high *= 2.0
        taken = falling_root(missing, 0.2 * at_capacity, high, 1e-4 * at_capacity)
        return answered_by_slots(taken, rate, bare, each) / (bare + taken * each)


def _phase_law(phases: int) -> Floats:
    """Equally likely values of a sum of exponential phases with mean 1; shape (PHASE_POINTS,)."""
    from scipy.special import gammaincinv

    values = gammaincinv(phases, (np.arange(PHASE_POINTS) + 0.5) / PHASE_POINTS) / phases
    return np.asarray(values / values.mean())


def grouped(prefill: Floats, weight: Floats, *columns: Floats) -> tuple[Floats, ...]:
    """Shares and means of `columns` of at most GROUPS kinds of requests, in the order of their prefill; shape (kinds,) each."""
    order = np.argsort(prefill, kind="stable")
    sorted_weight = weight[order]
    group = np.minimum((np.cumsum(sorted_weight) - 0.5 * sorted_weight) * GROUPS, GROUPS - 1).astype(np.int64)
    shares = np.bincount(group, sorted_weight)
    kept = shares > 0.0
    means = (np.bincount(group, sorted_weight * column[order])[kept] / shares[kept] for column in columns)
    return shares[kept] / shares.sum(), *means
