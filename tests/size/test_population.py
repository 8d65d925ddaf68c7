"""A fixed number of users: their rate and latencies beside a simulation that steps through iterations and clients."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque

import numpy as np
import pytest

import planner as fo
from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.predict.methods.mixed import PopulationPool
from planner.predict.records import Replicas
from planner.predict.traffic import FleetTraffic
from planner.question.compiled import Traffic
from planner.question.options import PlanInputs
from planner.workload.pools import FleetMoments, State
from planner.workload.sending import Population, Sending
from planner.workload.workload import Workload

pytestmark = pytest.mark.usefixtures("few_replayed", "without_chances", "without_words")

FIXED_S, PER_TOKEN_S, PER_SEQUENCE_S = 0.006, 2e-5, 2e-4
LENGTHS = [(50, 8), (200, 20), (600, 40), (1500, 12)]
SLOTS = 16


def stepped(users: int, replicas: int, think: str, mean_s: float, seed: int) -> tuple[float, float]:
    """Rate [1/s] and P99 TTFT [s]: clients with think times, engines that take whole prompts into the next iteration."""
    dice = random.Random(seed)

    def gap() -> float:
        if think == "fixed":
            return mean_s
        if think == "exponential":
            return dice.expovariate(1.0 / mean_s)
        return dice.lognormvariate(math.log(mean_s) - 0.5 * math.log(2.0), math.sqrt(math.log(2.0)))

    waiting: list[deque[tuple[float, int, int]]] = [deque() for _ in range(replicas)]
    # requests in slots, their last iterations, and when those of this one were sent
    running, steps = [0] * replicas, [0] * replicas
    ending: list[dict[int, int]] = [{} for _ in range(replicas)]
    new: list[list[float]] = [[] for _ in range(replicas)]
    events = [(dice.random() * mean_s, k, "ask", -1) for k in range(users)]
    heapq.heapify(events)
    busy = [False] * replicas
    first: list[float] = []
    horizon, warm = 20.0 * (mean_s + 1.0) * max(1.0, 400.0 / users), 5.0 * (mean_s + 1.0)
    while events:
        now, number, what, at = heapq.heappop(events)
        if now > horizon:
            break
        if what == "ask":
            at = dice.randrange(replicas)
            waiting[at].append((now, *dice.choice(LENGTHS)))
        else:
            # the iteration ends: everybody in it has one more token
            busy[at] = False
            if new[at]:
                first += [now - sent for sent in new[at] if sent > warm]
                new[at] = []
            done = ending[at].pop(steps[at], 0)
            running[at] -= done
            for _ in range(done):
                number += users
                heapq.heappush(events, (now + gap(), number, "ask", -1))
        if not busy[at] and (waiting[at] or running[at]):
            decoding = running[at]
            tokens = 0
            while waiting[at] and running[at] < SLOTS:
                sent, prompt, output = waiting[at].popleft()
                new[at].append(sent)
                running[at] += 1
                tokens += prompt
                last = steps[at] + output
                ending[at][last] = ending[at].get(last, 0) + 1
            steps[at] += 1
            busy[at] = True
            length = FIXED_S + PER_TOKEN_S * (tokens + decoding) + PER_SEQUENCE_S * decoding
            heapq.heappush(events, (now + length, users + at, "step", at))
    return len(first) / (horizon - warm), float(np.quantile(first, 0.99))


SOON = {(30, 1, 1.5, "lognormal"), (40, 2, 0.6, "fixed")}
"""Few users and many, of one replica and of two: what is looked at outside the long checks."""


@pytest.mark.parametrize(
    ("users", "replicas", "mean_s", "think"),
    [
        pytest.param(
            *of, think, marks=() if (*of, think) in SOON else pytest.mark.long("other populations; some in CI")
        )
        for of in ((6, 1, 0.5), (30, 1, 1.5), (40, 2, 0.6), (120, 2, 4.0))
        for think in ("exponential", "fixed", "lognormal")
    ],
)
def test_users_ask_as_often_and_wait_as_long_as_in_a_stepping_simulation(
    users: int, replicas: int, mean_s: float, think: str
) -> None:
    inputs, outputs = (np.array(column, dtype=float) for column in zip(*LENGTHS, strict=True))
    workload = Workload.from_arrays(inputs, outputs, arrival_rate_per_s=1.0)
    law = FleetMoments(workload, chunk=512).law(State(0.0), State(math.inf))
    assert law is not None
    sending = Sending(population=Population(users, mean_s, think, asked_per_s=1.0), drawn=True)
    iteration = IterationModel(t0=FIXED_S, w=0.0, b=PER_TOKEN_S, c=0.0, h=PER_SEQUENCE_S, g=0.0, a=0.0)
    engine = Replicas(1, iteration, SLOTS, 1e6, routing="random")
    pool = PopulationPool(FleetTraffic(Traffic(workload, 1.0, sending=sending)).of(law), engine)
    # users who think equally long move in step for long: P99 of one run strays by 5% from the next, of others by 2%, in both
    several = 12 if think == "fixed" else 6
    draws = [pool._at(1.0, replicas, (0.5, 0.99), 30_000, draw) for draw in range(several)]
    runs = [stepped(users, replicas, think, mean_s, seed) for seed in range(several)]
    rate = np.mean([d.load for d in draws]) * replicas * pool.capacity_per_s
    assert rate == pytest.approx(np.mean([r for r, _ in runs]), rel=0.03)
    waits = np.mean([d.value("ttft_s", 0.99) for d in draws])
    assert waits == pytest.approx(np.mean([t for _, t in runs]), rel=0.03)


def test_windows_of_users_are_those_in_which_they_asked() -> None:
    """A call that follows an answer has no arrival of its own: it belongs to the window in which it was sent."""
    workload = Workload.from_arrays(np.array([700.0, 2000.0]), np.array([30.0, 90.0]), arrival_rate_per_s=1.0)
    law = FleetMoments(workload, chunk=512).law(State(0.0), State(math.inf))
    assert law is not None
    sending = Sending(population=Population(30, 5.0, asked_per_s=1.0), drawn=True)
    iteration = IterationModel(t0=FIXED_S, w=0.0, b=PER_TOKEN_S, c=0.0, h=PER_SEQUENCE_S, g=0.0, a=0.0)
    engine = Replicas(1, iteration, SLOTS, 1e6, routing="random")
    pool = PopulationPool(FleetTraffic(Traffic(workload, 1.0, sending=sending)).of(law), engine).by_windows(20.0)
    played = pool._play(1.0, 1, 4000, 0, ())
    counted = played.requests.weight == 1.0
    sent, ttft = played.run.sent_s[counted], played.run.ttft_s[counted]
    each = sorted(np.median(ttft[sent // 20.0 == k]) for k in np.unique(sent // 20.0))
    told = pool._told(played, (0.5,)).value("ttft_s", 0.5)
    # 95% of the windows keep it; a median of an even number lies between two
    assert len(each) > 20 and told == pytest.approx(each[math.ceil(0.95 * len(each)) - 1], rel=0.02)
    assert told > 1.02 * np.median(ttft)


ASKED = {"isl": 1000, "osl": 200, "slo": 1.0, "tp": 1, "token_budget": 2048}


@pytest.mark.usefixtures("with_words")
def test_a_fleet_for_users_is_told_how_often_they_ask_it() -> None:
    plan = fo.plan(concurrency=64, **ASKED)  # type: ignore[arg-type]
    pool = plan.pools[0]
    # Little's law: who is always under way is in a slot or waits for one
    assert 55.0 < pool.slot_occupancy * pool.slots * pool.replicas <= 64.5
    line = next(line for line in plan.assumptions if "always under way" in line)
    assert f"ask {plan.arrival_rate_per_s:.3g} requests/s" in line
    # twice the rate is twice the users
    assert fo.evaluate(plan, [0.5 * plan.arrival_rate_per_s]).holds


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"users": 500}, "how often does each ask"),
        ({"users": 500, "rate": 3, "think_time": "60s"}, "users: not together with rate"),
        ({"users": 500, "concurrency": 3}, "not together with concurrency"),
        ({"think_time": "60s"}, "of how many users"),
        ({"users": 5, "think_time": "60s sometimes"}, "is no think time"),
        ({"users": 5, "think_time": "60s", "requests_per_hour": 20}, "two ways to say how often"),
        ({"users": 0, "think_time": "60s"}, "must be at least 1"),
    ],
)
def test_users_that_cannot_be_are_told(given: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        if given == {"users": 500}:
            fo.plan(slo=1, **given)  # type: ignore[arg-type]
        PlanInputs.from_dict({"slo": 1, **given})
