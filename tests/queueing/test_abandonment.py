"""Who is answered where all wait as long as patience allows: the walks behind it, step by step, and its limits."""

import numpy as np
import pytest

from planner.queueing.abandonment import (
    PromptsInIterations,
    WholePrompts,
    answered_by_slots,
    answered_per_iteration,
    falling_root,
    grouped,
    slack_rate,
)

STEPS = 60_000


@pytest.mark.parametrize(
    ("prompts", "clients", "phases"), [(1.8, 2.5, 1), (0.5, 0.6, 3), (2.0, 2.3, 2), (9.0, 14.0, 1), (0.2, 0.7, 8)]
)
def test_prompts_in_phases_step_by_step(prompts, clients, phases):
    """The slack itself: prompts of exponential phases taken in order, clients who are gone skipped at the end of an iteration."""
    rng = np.random.Generator(np.random.PCG64(5))
    taken_to, partial, done, answered = 0.0, None, 0, 0
    gaps = iter(rng.exponential(1.0 / clients, 40 * STEPS).tolist())
    for phase_count in rng.poisson(phases * prompts, STEPS).tolist():
        finished = []
        for _ in range(phase_count):
            if partial is None:
                taken_to += next(gaps)
                partial, done = taken_to, 0
            done += 1
            if done == phases:
                finished.append(partial)
                partial = None
        answered += sum(slack > 1.0 for slack in finished)
        taken_to = max(taken_to - 1.0, 0.0)
        partial = partial - 1.0 if partial is not None and partial > 1.0 else None
    # a standard error is 1 to 2%
    assert answered_per_iteration(prompts, clients, phases) == pytest.approx(answered / STEPS, rel=0.05)


@pytest.mark.parametrize(("prompts", "rate", "bare", "each"), [(0.3, 60.0, 0.01, 0.02), (1.2, 120.0, 0.01, 0.005)])
def test_iterations_that_grow_step_by_step(prompts, rate, bare, each):
    rng = np.random.Generator(np.random.PCG64(6))
    ahead = answered = 0
    for taken in rng.poisson(prompts, STEPS).tolist():
        came = rng.poisson(rate * (bare + each * taken))
        answered += min(taken, max(ahead + taken - came, 0))
        ahead = max(ahead + taken - came, 0)
    assert answered_by_slots(prompts, rate, bare, each) == pytest.approx(answered / STEPS, rel=0.05)


def test_who_keeps_up_answers_everybody():
    assert answered_per_iteration(3.0, 2.0) == 2.0
    assert answered_by_slots(1.0, 10.0, 0.01, 0.01) == pytest.approx(0.2)
    time_s, weight = np.array([0.1, 0.3]), np.array([0.5, 0.5])
    assert slack_rate(4.9, time_s, weight) == 0.0
    assert WholePrompts(time_s, weight).answered_per_s(4.9) == 4.9


def test_prompts_of_one_length_one_by_one():
    """With prompts of one length s, theta = lambda (1 - exp(-theta s)): Lambert's W."""
    from scipy.special import lambertw

    load = 1.7
    theta = slack_rate(load, np.ones(1), np.ones(1))
    assert theta == pytest.approx(load + float(lambertw(-load * np.exp(-load)).real), rel=1e-9)
    assert WholePrompts(np.ones(1), np.ones(1)).answered_per_s(load) == pytest.approx(np.exp(-theta), rel=1e-9)


def test_many_prompts_at_once_leave_nobody():
    """Iterations of very many prompts vary little: at 1.2 times what they can do nearly all are gone at their end."""
    answered = [answered_per_iteration(n, 1.2 * n, 8) / n for n in (1.0, 10.0, 100.0, 400.0)]
    assert answered == sorted(answered, reverse=True)
    assert answered[0] > 0.5
    assert answered[-1] < 0.05


def test_roots_of_falling_functions():
    assert falling_root(lambda x: 2.0 - x**3, 0.0, 4.0, 1e-10) == pytest.approx(2.0 ** (1 / 3), abs=1e-8)
    assert falling_root(lambda x: -1.0 - x, 0.5, 4.0, 1e-6) == 0.5
    assert falling_root(lambda x: 9.0 - x, 0.0, 4.0, 1e-6) == 4.0


def test_kinds_keep_the_means():
    rng = np.random.Generator(np.random.PCG64(2))
    prefill, other, weight = rng.exponential(1.0, 700), rng.exponential(1.0, 700), rng.random(700)
    weight /= weight.sum()
    share, mean_prefill, mean_other = grouped(prefill, weight, prefill, other)
    assert share.size <= 48
    assert share.sum() == pytest.approx(1.0)
    assert share @ mean_prefill == pytest.approx(weight @ prefill)
    assert share @ mean_other == pytest.approx(weight @ other)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_an_engine_that_knows_less_is_scaled_to_its_capacity(scale):
    """Iterations of 10 ms and 20 us a token, 2,048 tokens: 1.86 prompts of 1,000 and their 100 decodes, 36.6/s."""
    one = np.ones(1)

    def engine(per_s):
        return PromptsInIterations(
            lambda n, context, chunk, pairs: 0.01 + 2e-5 * (n + chunk), 2048.0, 1e4, per_s, 102.0,
            1000.0 * one, 100.0 * one, 105_000.0 * one, 5e5 * one, one,
        )  # fmt: skip

    plain = engine(36.6)
    assert plain.at_its_capacity() is plain
    assert plain.prompts_per_s(80.0) == pytest.approx(36.6, rel=0.01)
    scaled = engine(scale * 36.6).at_its_capacity()
    assert scaled.prompts_per_s(scale * 80.0) == pytest.approx(scale * 36.6, rel=0.01)
    # the same in another unit of time
    for rate in (45.0, 70.0):
        assert scaled.answered_per_s(scale * rate) == pytest.approx(scale * plain.answered_per_s(rate), rel=0.02)
