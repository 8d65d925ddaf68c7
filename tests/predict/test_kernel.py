"""The compiled kernel: against the reference in Python, on every feature and every pair of them, to a billionth of a second."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.predict import kernel, reference
from planner.predict.records import Decoders, Limit, Outage, Replicas, Requests, keys_of
from planner.predict.run import overlaid
from planner.workload.sending import Clients
from tests.fuzz.kernel_cases import question
from tests.predict.cases import FEATURES, INEXACT, PAIRS, cases, differences

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = 300 if os.environ.get("FLEETOPT_LONG") else 10
EVERYTHING_GOES = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def hold(case):
    question = (case.requests, case.replicas)
    found = differences(kernel.replay(*question, **case.rest), reference.replay(*question, **case.rest))
    assert not found, (found[:3], case)


@pytest.mark.parametrize("feature", sorted(FEATURES))
@settings(max_examples=EXAMPLES, **EVERYTHING_GOES)
@given(data=st.data())
def test_a_feature(feature, data):
    exact = feature not in INEXACT and data.draw(st.booleans())
    hold(data.draw(cases((feature,), exact)))


@settings(max_examples=30 * EXAMPLES, **EVERYTHING_GOES)
@given(data=st.data())
def test_pairs_of_features(data):
    pair = data.draw(st.sampled_from(PAIRS))
    exact = not set(pair) & set(INEXACT) and data.draw(st.booleans())
    hold(data.draw(cases(pair, exact)))


FEW, CROWDS = (1, 3, 8, 25), (150,)
SLOW = {41, 59, 95, 150, 155, 197, 211}
"""Of the few those that play longest and take no branch of the C code that others do not."""


@pytest.mark.parametrize("starts", [FEW, CROWDS], ids=["few", "crowds"])
def test_mixtures_of_features(starts):
    """What a few rows do not fill: heaps, tables and lists that grow, classes by the hundred, ghosts beside each other."""
    # of crowds those that take every branch of the C code that a dozen take beside the few, and play soonest
    for seed in sorted({*range(250)} - SLOW) if starts is FEW else (0, 8, 10, 25):
        asked = question(seed, starts)
        if starts is CROWDS:
            asked["limits"] = []
        found = differences(kernel.replay(**asked), reference.replay(**asked))
        assert not found, (seed, found[:3])


def rows(n, rate=100.0, prompt=300, answer=100):
    rng = np.random.default_rng(5)
    times = np.cumsum(rng.exponential(1 / rate, n))
    lengths = (rng.integers(1, most, n).astype(float) for most in (prompt, answer))
    return Requests(times, *lengths, np.zeros(n), rng.integers(0, 2**63, n, dtype=np.uint64))


FLEET = Replicas(4, IterationModel(t0=0.005, c=1e-5, h=1e-5, g=1e-8, a=1e-10), 64, 512, 20_000.0, "least")


@pytest.mark.parametrize("routing", ["random", "p2c", "least", "rr", "least-kv"])
def test_replicas_that_run_when_somebody_looks_do_as_those_that_go_by_the_clock(routing):
    fleet, asked = replace(FLEET, routing=routing), rows(5000)
    # an outage long after the end changes nothing but the driver
    lazy, clocked = (kernel.replay(asked, fleet, outages=o) for o in ((), [Outage(0, 1e6)]))
    assert np.array_equal(lazy.replica, clocked.replica)
    assert np.abs(lazy.done_s - clocked.done_s).max() < 1e-9


@pytest.mark.parametrize("routing", ["random", "p2c", "rr", "least-kv"])
def test_decode_replicas_that_follow_do_as_those_that_go_by_the_clock(routing):
    """Half of the prompts end together with another one, on a replica that was looked at sooner or later; memory is short."""
    asked = rows(4000, rate=40.0)
    alike = asked.input_tokens.repeat(2)[:4000]
    asked = replace(asked, arrival_s=np.sort(asked.arrival_s.repeat(2)[:4000]), input_tokens=alike)
    first = replace(FLEET, count=5, routing=routing, engine="prefill", slots=1.0)
    behind = Decoders(replace(FLEET, count=3, routing=routing, kv_tokens=3000.0), 1e-4 * alike)
    # a limit in flight that nobody meets changes nothing but the driver
    follows, clocked = (kernel.replay(asked, first, c, decoders=behind) for c in (None, Clients(in_flight=1e9)))
    assert clocked.preempted.sum() > 0 and np.count_nonzero(np.diff(np.sort(clocked.first_s)) == 0.0) > 300
    assert not differences(follows, clocked)
    for metric, limit_s in (("ttft_s", 0.02), ("e2e_s", 3.0), ("tpot_s", 0.02)):
        late = np.count_nonzero(~(follows.taken_s(metric, asked.output_tokens - 1.0) <= limit_s))
        for less in (0, 1):
            run = kernel.replay(asked, first, decoders=behind, limits=[Limit(metric, limit_s, late - less)])
            assert (run.ended_early >= 0) == (less > 0), metric


def test_a_broken_promise_ends_a_replay_as_soon_as_it_is_certain():
    asked = rows(20_000, rate=400.0)
    slow = replace(FLEET, count=1)
    for metric, limit_s in (("ttft_s", 0.5), ("e2e_s", 5.0), ("tpot_s", 0.006)):
        whole = kernel.replay(asked, slow, limits=[Limit(metric, limit_s, 1e9)])
        assert whole.ended_early == -1 and not np.isnan(whole.done_s).any()
        run = kernel.replay(asked, slow, limits=[Limit(metric, limit_s, 200.0)])
        assert 0 <= run.ended_early < 4000, metric
    # a whole number of requests beyond the limit is allowed, one fewer is not
    beyond = int((whole.ttft_s > 100.0).sum())
    verdicts = [
        kernel.replay(asked, slow, limits=[Limit("ttft_s", 100.0, beyond - less)]).ended_early for less in (0, 1)
    ]
    assert verdicts[0] == -1 and verdicts[1] >= 0


@pytest.mark.parametrize("play", [kernel.replay, reference.replay], ids=["kernel", "reference"])
def test_who_waits_behind_one_that_gives_up_is_admitted_with_the_next_iteration(play):
    """Sixteen iterations a second; the second never fits beside the first, gives up at 3.1, and the third comes in at 3.125."""
    lengths = np.array([5.0, 68.0, 1.0]), np.array([60.0, 1.0, 1.0])
    asked = Requests(np.array([0.0, 0.1, 0.2]), *lengths, np.zeros(3), np.arange(3, dtype=np.uint64))
    run = play(asked, Replicas(1, IterationModel(t0=0.0625), kv_tokens=70.0), clients=Clients(timeout_s=3.0))
    assert run.admitted_s.tolist()[::2] == [0.0, 3.125] and np.isnan(run.admitted_s[1])
    assert run.done_s.tolist()[::2] == [3.75, 3.1875] and run.given_up.tolist() == [0, 1, 0]


@pytest.mark.parametrize("play", [kernel.replay, reference.replay], ids=["kernel", "reference"])
def test_a_decode_replica_computes_the_prompt_that_would_wait_behind_another(play):
    """Iterations of a second: the third finds one waiting, and takes two of them at the decode replica, where the others come
    after its first chunk and third iteration; a fourth of one token waits all the same."""
    ones = np.ones(4)
    asked = Requests(
        np.array([0.0, 0.1, 0.2, 0.3]), 6 * ones, np.array([3.0, 3, 3, 1]), 0 * ones, np.arange(4).astype(np.uint64)
    )
    second = Replicas(1, IterationModel(t0=1.0), token_budget=4)
    run = play(asked, Replicas(1, IterationModel(t0=1.0), engine="prefill"), decoders=Decoders(second, 0 * ones, 1.0))
    assert run.replica.tolist() == [0, 0, -1, 0] and run.decode_replica.tolist() == [0, 0, 0, -1]
    assert run.admitted_s.tolist() == [0.0, 1.0, 0.2, 2.0]
    assert run.first_s == pytest.approx([1.0, 2.0, 2.2, 3.0]) and run.done_s == pytest.approx([3.2, 4.2, 4.2, 3.0])


@pytest.mark.skipif(not hasattr(signal, "SIGPROF"), reason="no timer of the processor's time")
def test_a_replay_that_is_interrupted_ends_at_once():
    """Also where nobody comes any more and a queue of hours is left: by the processor's time, which others do not take."""

    def interrupt(*_):
        raise KeyboardInterrupt

    asked, two = rows(400_000, rate=1e4), replace(FLEET, count=2)
    begin = time.process_time()
    kernel.replay(asked, two)
    whole, before = time.process_time() - begin, signal.signal(signal.SIGPROF, interrupt)
    try:
        begin = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, 0.2 * whole)
        with pytest.raises(KeyboardInterrupt):
            kernel.replay(asked, two)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
    assert time.process_time() - begin < 0.8 * whole


def test_replays_run_beside_each_other():
    """The library holds nothing of its own: threads get what they get alone."""
    asked = rows(20_000)
    alone = kernel.replay(asked, FLEET).done_s
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(kernel.replay(asked, FLEET).done_s)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(np.array_equal(done, alone) for done in found)


@settings(max_examples=50, **EVERYTHING_GOES)
@given(st.data())
def test_copies_are_laid_over_each_other(data):
    n, copies = data.draw(st.integers(0, 12)), data.draw(st.integers(1, 6))
    moment = st.integers(0, 15).map(float)
    times = np.sort(np.array(data.draw(st.lists(moment, min_size=n, max_size=n))))
    shifts = np.array(data.draw(st.lists(moment, min_size=copies, max_size=copies)))
    # every other row, all of them: which of the two each copy holds
    lists = [np.arange(0, n, 2), np.arange(n)]
    which = np.array(data.draw(st.lists(st.integers(0, 1), min_size=copies, max_size=copies)))
    edges = sorted(data.draw(st.sets(st.integers(0, 16), min_size=2, max_size=6)))
    windows = data.draw(st.permutations(list(zip(edges[::2], edges[1::2], strict=False))))
    asked = (times, lists, which, shifts, 16.0, np.array(windows, dtype=np.float64), 3)
    at, row, key, counts = overlaid(*asked)
    wanted = []
    for low, high in windows:
        moved = [
            ((times[r] + s) % 16.0, c, r)
            for c, (k, s) in enumerate(zip(which.tolist(), shifts.tolist(), strict=True))
            for r in lists[k].tolist()
        ]
        # of equal times of one copy its rows as they come
        wanted.append(sorted((t, c, r) for t, c, r in moved if low <= t < high))
    assert counts.tolist() == [len(own) for own in wanted]
    found = [one for own in wanted for one in own]
    assert at.tolist() == [t for t, _, _ in found] and row.tolist() == [r for _, _, r in found]
    numbers = np.array([c for _, c, _ in found], dtype=np.int64)
    assert np.array_equal(key, keys_of(row, numbers, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEETOPT_KERNEL", "python")
        assert all(np.array_equal(*pair) for pair in zip(overlaid(*asked), (at, row, key, counts), strict=True))


def test_copies_must_lie_in_the_span():
    for times, shifts in (([0.0, 5.0], [0.0]), ([0.0], [4.0]), ([1.0, 0.5], [0.0]), ([np.nan], [0.0])):
        all_of_it = [np.arange(len(times))], np.zeros(len(shifts), dtype=np.int64)
        with pytest.raises(InputError):
            overlaid(np.array(times), *all_of_it, np.array(shifts), 4.0, np.array([[0.0, 4.0]]), 0)


def test_identities_differ_by_row_copy_and_seed():
    row, copy = (x.ravel() for x in np.meshgrid(np.arange(200), np.arange(50)))
    made = np.concatenate([keys_of(row, copy, seed) for seed in (0, 1, 2)])
    assert np.unique(made).size == made.size


@pytest.mark.long("2,000 replays by a kernel that stops at what C forbids")
def test_random_questions_under_sanitizers():
    """Nothing is read or written where it must not be, whatever memory is refused."""
    subprocess.run([sys.executable, ROOT / "tests/fuzz/kernel.py", "--cases", "2000"], check=True)
