"""The reference against origins outside it: cases by hand, exact recursions, and what holds of any replay."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.predict import run as runs
from planner.predict.records import Decoders, Limit, Outage, PrefixCache, Replicas, Requests, uniform
from planner.predict.reference import replay
from planner.workload.sending import Clients
from tests.predict.cases import FEATURES, Case, cases

SECOND = IterationModel(t0=1.0)
NEVER = np.nan


def rows(arrival, inputs, outputs, **columns) -> Requests:
    n = len(arrival)
    given = {
        k: np.array(v, dtype=float)
        for k, v in (("arrival_s", arrival), ("input_tokens", inputs), ("output_tokens", outputs))
    }
    columns = {"cached_tokens": np.zeros(n), "key": np.arange(1, n + 1, dtype=np.uint64), **columns}
    return Requests(**given, **columns)


def times(values) -> list:
    return [None if np.isnan(v) else float(v) for v in values]


def test_a_budget_cuts_prompts_and_decodes_come_first():
    # 4 prompt tokens in chunks of 2; then beside its decode one token is left for the second prompt of 2
    run = replay(rows([0, 0], [4, 2], [3, 1]), Replicas(1, SECOND, token_budget=2))
    assert times(run.admitted_s) == [0, 2] and times(run.first_s) == [2, 4] and times(run.done_s) == [4, 4]
    assert run.iterations[0] == 4 and run.busy_s[0] == 4 and run.resident_s[0] == 6 and run.decode_s[0] == 2


def test_the_newest_is_preempted_and_computes_its_prompt_and_output_again():
    # both hold 2, then 3; the third token of the first takes the memory of the second, whose 2 + 2 tokens come again at 4
    run = replay(rows([0, 0], [2, 2], [4, 4]), Replicas(1, SECOND, kv_tokens=6), gaps=True)
    assert times(run.first_s) == [1, 1] and times(run.done_s) == [4, 6]
    assert run.preempted.tolist() == [0, 1] and run.recomputed_tokens == 4
    assert run.gaps[run.gaps > 0].tolist() == [5, 1]  # one second, but for the three from 2 to 5


def test_prompts_apart_stop_the_decodes():
    model = IterationModel(t0=1.0, apart=1.0)
    run = replay(rows([0, 0.5], [2, 2], [3, 1]), Replicas(1, model))
    assert times(run.done_s) == [4, 2]


def test_blocks_without_reservation_come_with_the_chunks():
    # two blocks of 4: the first prompt has one of them, grown to 5 it needs both, and the second goes
    run = replay(rows([0, 0], [4, 4], [3, 1]), Replicas(1, SECOND, token_budget=5, kv_tokens=8, block=4, reserve=False))
    assert times(run.first_s)[0] == 1 and times(run.done_s)[0] == 3
    assert run.preempted.tolist() == [0, 1] and times(run.done_s)[1] == 4


def test_priorities_order_the_queue_and_choose_the_victim():
    run = replay(rows([0, 0.1, 0.2], [1] * 3, [2] * 3, priority=np.array([1, 1, 0])), Replicas(1, SECOND, slots=1))
    assert times(run.admitted_s) == [0, 4, 2]
    # the one of the later class is older, and is preempted all the same
    run = replay(rows([0, 0.5], [2, 2], [4, 4], priority=np.array([1, 0])), Replicas(1, SECOND, kv_tokens=6))
    assert run.preempted.tolist() == [1, 0]


def test_a_handover_to_decode_replicas():
    requests = rows([0, 0], [4, 4], [3, 1])
    decoders = Decoders(Replicas(1, SECOND), np.array([0.5, 9.0]))
    run = replay(requests, Replicas(1, SECOND, engine="prefill"), decoders=decoders, gaps=True)
    assert times(run.first_s) == [1, 2] and times(run.moved_s) == [1.5, None] and times(run.done_s) == [3.5, 2]
    assert run.gaps.sum() == 2 and run.decode_replica.tolist() == [0, -1]


def test_a_first_token_at_the_very_end_of_patience_counts():
    # the second gives up at 2, comes again at 3, is admitted at 4 and has its token at 5, when patience ends
    clients = Clients(timeout_s=2.0, retries=1, retry_after_s=1.0)
    run = replay(rows([0, 0], [1, 1], [4, 1]), Replicas(1, SECOND, slots=1), clients)
    assert times(run.sent_s) == [0, 3] and times(run.done_s) == [4, 5]
    assert run.given_up.tolist() == [0, 1] and run.attempts.tolist() == [1, 2]


def test_who_gave_up_leaves_with_the_running_iteration():
    run = replay(rows([0, 0.25], [1, 1], [1, 1]), Replicas(1, IterationModel(t0=4.0), slots=1), Clients(timeout_s=3.0))
    assert times(run.done_s) == [None, None] and times(run.admitted_s) == [0, None]
    assert run.iterations[0] == 1 and run.rejected.sum() == 0 and run.given_up.tolist() == [1, 1]


def test_doors_and_what_can_never_be_held():
    run = replay(rows([0, 0.1, 0.2], [1] * 3, [1] * 3), Replicas(1, SECOND, slots=1), Clients(max_queue=1))
    assert (
        times(run.done_s) == [1, 2, None] and run.rejected.tolist() == [0, 0, 1] and run.replica.tolist() == [0, 0, -1]
    )
    run = replay(rows([0, 0], [8, 8], [1, 2]), Replicas(1, SECOND, kv_tokens=8))
    assert times(run.done_s) == [1, None] and run.rejected.tolist() == [0, 1]


def test_clients_hold_back_what_is_too_much_in_flight():
    run = replay(rows([0, 0, 0], [1] * 3, [2, 1, 1]), Replicas(1, SECOND), Clients(in_flight=1))
    assert times(run.sent_s) == [0, 2, 3] and times(run.done_s) == [2, 3, 4]


def test_what_is_too_much_in_flight_may_leave():
    run = replay(rows([0, 0, 2, 2.5], [1] * 4, [2, 1, 1, 1]), Replicas(1, SECOND), Clients(in_flight=1, leave=True))
    # the third comes as the first is complete, the fourth while the third runs
    assert times(run.done_s) == [2, None, 3, None] and run.rejected.tolist() == [0, 1, 0, 1]
    assert run.replica.tolist() == [0, -1, 0, -1] and times(run.sent_s) == [0, 0, 2, 2.5]


def test_a_session_finds_what_it_left_in_whole_blocks():
    requests = rows(
        [0, np.inf],
        [32, 70],
        [20, 1],
        session=np.array([5, 5]),
        following=np.array([1, -1]),
        gap_s=np.array([0.0, 2.0]),
        repeated_tokens=np.array([0.0, 51.0]),
    )
    run = replay(requests, Replicas(1, SECOND, kv_tokens=100), cache=PrefixCache())
    assert run.found_tokens.tolist() == [0, 48] and times(run.sent_s) == [0, 22] and times(run.done_s) == [20, 23]
    gone = replay(requests, Replicas(1, SECOND, kv_tokens=100), cache=PrefixCache(ttl_s=1.0))
    assert gone.found_tokens.tolist() == [0, 0]
    # memory for the second prompt leaves 80 - 70 tokens, host memory has the rest: 48 tokens at 24 a second
    slow = Replicas(1, SECOND, kv_tokens=90)
    host = PrefixCache(host_tokens=100.0, host_tokens_per_s=24.0)
    between = rows(
        [0, np.inf, 20.5],
        [32, 70, 80],
        [20, 1, 1],
        session=np.array([5, 5, 6]),
        following=np.array([1, -1, -1]),
        gap_s=np.array([0.0, 2.0, 0.0]),
        repeated_tokens=np.array([0.0, 51.0, 0.0]),
    )
    run = replay(between, slow, cache=host)
    # the other prompt's 80 tokens are kept on the GPU, the 48 have 10 there: none is a whole block
    assert run.host_tokens.tolist() == [0, 48, 0] and times(run.admitted_s)[1] == 24
    # of the 128 tokens kept the GPU and 32 tokens of host memory hold 122: a block is read from the disk at 12 a second, all 48 are
    # copied at 24
    tiers = PrefixCache(host_tokens=32.0, host_tokens_per_s=24.0, disk_tokens=100.0, disk_tokens_per_s=12.0)
    run = replay(between, slow, cache=tiers)
    assert run.host_tokens.tolist() == [0, 48, 0] and times(run.admitted_s)[1] == pytest.approx(22 + 2 + 16 / 12)
    # copies of all: the GPU's 90 and the host's 32 are the same tokens, and the disk alone has the 48
    through = replay(between, slow, cache=replace(tiers, disk_tokens=128.0, copies=True))
    assert through.host_tokens.tolist() == [0, 48, 0] and times(through.admitted_s)[1] == 22 + 2 + 4
    # so that a disk of 100 tokens keeps 20 of the 48, a whole block
    assert replay(between, slow, cache=replace(tiers, copies=True)).found_tokens.tolist() == [0, 16, 0]


def test_pieces_are_held_once_and_preempted_ones_do_not_hold_each_other_up():
    none = np.zeros(2)
    shared = {
        "shared_offset": np.array([0, 1, 2]),
        "shared_name": np.array([0, 0]),
        "shared_tokens": np.array([16.0, 16.0]),
    }
    columns = {"session": np.array([1, 2]), "repeated_tokens": none, **shared}
    run = replay(rows([0, 0], [20, 20], [1, 1], **columns), Replicas(1, SECOND, kv_tokens=24), cache=PrefixCache())
    assert run.found_tokens.tolist() == [0, 16] and times(run.done_s) == [1, 1]
    apart = columns | {
        "shared_offset": np.array([0, 0, 1]),
        "shared_name": np.array([0]),
        "shared_tokens": np.array([28.0]),
    }
    run = replay(rows([0, 0], [39, 28], [5, 3], **apart), Replicas(1, SECOND, kv_tokens=70), cache=PrefixCache())
    assert run.preempted.tolist() == [0, 1] and not np.isnan(run.done_s).any()


def documents(arrivals: list[float], names: list[int], **columns: np.ndarray) -> Requests:
    """Prompts of 40 tokens, 32 of them a document's."""
    n = len(names)
    shared = {"shared_offset": np.arange(n + 1), "shared_name": np.array(names), "shared_tokens": np.full(n, 32.0)}
    shared |= {"session": np.arange(n), "repeated_tokens": np.zeros(n)}
    return rows(arrivals, [40] * n, [1] * n, **shared, **columns)


def test_blocks_behind_the_window_push_out_what_could_be_found_again():
    # 32 tokens of each of two documents are kept, and of the 40 computed 40 again that nobody finds: of 100 the first keeps 16
    for windows, found in ((0.0, 32), (1.0, 16)):
        run = replay(
            documents([0, 2, 4], [0, 1, 0]), Replicas(1, SECOND, kv_tokens=100), cache=PrefixCache(windows=windows)
        )
        assert run.found_tokens.tolist() == [0, 0, found]


def test_a_gateway_remembers_where_it_sent_what_still_waits():
    keys = np.arange(1, 40, dtype=np.uint64)
    there = [int(uniform(int(key), 0) * 2) for key in keys]
    mine, other = keys[there.index(0)], keys[there.index(1)]
    # the second document waits behind the first one, when another prompt of it comes that would go elsewhere
    requests = documents([0, 0.25, 0.5], [0, 1, 1], key=np.array([mine, mine, other]))
    run = replay(requests, Replicas(2, SECOND, slots=1, routing="prefix"), cache=PrefixCache())
    assert run.replica.tolist() == [0, 0, 0] and times(run.done_s) == [1, 2, 3]


def test_a_replica_dies_and_what_it_held_is_sent_again():
    requests = rows([0], [1], [2], key=np.array([3], dtype=np.uint64))
    one = int(uniform(3, 0) * 2)
    run = replay(requests, Replicas(2, SECOND), outages=[Outage(one, 1.5)], gaps=True)
    assert times(run.sent_s) == [0] and times(run.first_s) == [2.5] and times(run.done_s) == [3.5]
    assert run.attempts.tolist() == [2] and run.replica.tolist() == [1 - one] and run.gaps.sum() == 1
    assert run.iterations[one] == 1 and run.busy_s[one] == 1
    alone = replay(requests, Replicas(1, SECOND), outages=[Outage(0, 0.5, 4.0)])
    assert times(alone.admitted_s) == [4] and times(alone.done_s) == [6]


def test_the_front_end_is_slow_after_a_pause():
    run = replay(
        rows([1, 1.05, 9], [1] * 3, [1] * 3), Replicas(1, IterationModel(t0=0.5), wake_s=0.25, request_s=0.125)
    )
    assert times(run.admitted_s) == [1.25, 1.25, 9.25] and times(run.done_s) == [2, 2, 9.875]


def test_slots():
    own = replay(rows([0, 0], [5, 1], [2, 1]), Replicas(1, SECOND, slots=1, token_budget=2, engine="slots"))
    assert times(own.first_s) == [4, 7] and times(own.done_s) == [5, 7]
    shared = replay(rows([0, 0], [5, 1], [2, 1]), Replicas(1, SECOND, slots=2, token_budget=6, engine="slots-shared"))
    assert times(shared.first_s) == [1, 1] and times(shared.done_s) == [2, 1]
    table = replay(rows([0, 0], [1, 1], [1, 1]), Replicas(1, (9.0, 1.0, 4.0), slots=2, engine="slots"))
    assert times(table.done_s) == [8, 8]


def test_two_choices_take_the_shorter_queue_by_draws_of_the_key():
    n, count = 40, 5
    requests = rows(np.arange(n) * 0.01, [1] * n, [1000] * n)
    run = replay(requests, Replicas(count, SECOND, routing="p2c"))
    held = [0] * count
    for row, key in enumerate(range(1, n + 1)):
        i, j = int(uniform(key, 0) * count), int(uniform(key, 1) * (count - 1))
        j += j >= i
        taken = i if held[i] <= held[j] else j
        held[taken] += 1
        assert run.replica[row] == taken
    in_turn = replay(requests, Replicas(count, SECOND, routing="rr"))
    assert in_turn.replica.tolist() == [k % count for k in range(n)]


@pytest.mark.parametrize("engine", ["prefill", "mixed"])
def test_one_slot_is_a_queue_of_lindley(engine: str):
    draws = np.random.default_rng(3)
    n = 400
    arrival, inputs = np.cumsum(draws.exponential(1.0, n)), draws.integers(1, 1000, n).astype(float)
    model = IterationModel(t0=0.3, b=1e-3, a=1e-7)
    run = replay(rows(arrival, inputs, np.ones(n)), Replicas(1, model, slots=1, engine=engine))
    service = model.time(np.zeros(n), 0.0, inputs, inputs * (inputs + 1) / 2)
    end = 0.0
    for at, needs, done in zip(arrival, service, run.done_s, strict=True):
        end = max(at, end) + needs
        assert done == pytest.approx(end, abs=1e-9)


def test_one_queue_is_the_queue_of_kiefer_and_wolfowitz():
    draws = np.random.default_rng(4)
    n, count = 300, 3
    arrival, outputs = np.cumsum(draws.exponential(0.3, n)), draws.integers(1, 3, n).astype(float)
    run = replay(
        rows(arrival, np.ones(n), outputs), Replicas(count, IterationModel(t0=0.5), slots=1, routing="central")
    )
    free = np.zeros(count)
    for at, output, done in zip(arrival, outputs, run.done_s, strict=True):
        k = int(np.argmin(free))
        free[k] = max(at, free[k]) + 0.5 * output
        assert done == pytest.approx(free[k], abs=1e-9)


LOSE = ("doors", "time_outs", "retries", "outages")


@pytest.mark.parametrize("feature", sorted(set(FEATURES) - {"limits"}))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_what_holds_of_any_replay(feature: str, data: st.DataObject) -> None:
    case: Case = data.draw(cases((feature,)))
    run = replay(case.requests, case.replicas, **case.rest)
    answered = ~np.isnan(run.done_s)
    if feature not in LOSE:
        assert np.array_equal(answered, run.rejected == 0)
    assert np.all(run.first_s[answered] >= run.admitted_s[answered]) and np.all(
        run.admitted_s >= run.sent_s, where=answered
    )
    assert np.all(run.done_s[answered] >= run.first_s[answered])
    assert np.all(run.attempts >= 1 + 0 * run.attempts, where=answered)
    assert np.all(run.decode_s <= run.resident_s + 1e-9) and np.all(run.busy_s <= run.resident_s + 1e-9)
    if run.gaps is not None and case.requests.weight is not None:
        assert run.gaps.sum() == pytest.approx(
            np.sum(case.requests.weight * (case.requests.output_tokens - 1), where=answered)
        )
    unranked = feature not in ("priority", "host", "sessions") and case.requests.following is None
    if unranked and feature not in LOSE and case.replicas.count == 1 and case.rest.get("decoders") is None:
        admitted = run.admitted_s[answered]
        assert np.all(np.diff(admitted) >= 0)  # first come, first served


def test_limits_say_whether_they_are_broken():
    requests, one = rows([0, 0], [1, 1], [2, 1], weight=np.array([3.0, 1.0])), Replicas(1, SECOND, slots=1)
    for limit, broken in (
        (Limit("ttft_s", 2.0, 0.9), True),
        (Limit("ttft_s", 2.0, 1.0), False),
        (Limit("tpot_s", 0.5, 2.0), True),
    ):
        assert (replay(requests, one, limits=[limit]).ended_early >= 0) == broken


GOOD = rows([0, 1], [4, 4], [2, 2])
WRONG = [
    (lambda: replay(rows([0], [np.nan], [1]), Replicas(1, SECOND)), "input_tokens must lie in 1"),
    (lambda: replay(rows([0], [1], [2.0**31]), Replicas(1, SECOND)), "output_tokens must lie in 1"),
    (lambda: replay(rows([0], [1], [1.5]), Replicas(1, SECOND)), "output_tokens must be whole"),
    (lambda: replay(rows([-1], [1], [1]), Replicas(1, SECOND)), "arrival_s must be a time"),
    (lambda: replay(rows([2, 1], [1, 1], [1, 1]), Replicas(1, SECOND)), "order of arrival"),
    (lambda: replay(rows([np.inf], [1], [1]), Replicas(1, SECOND)), "rows that follow another have none"),
    (lambda: replay(rows([], [], []), Replicas(1, SECOND)), "no requests"),
    (lambda: replay(replace(GOOD, cached_tokens=np.array([4.0, 0.0])), Replicas(1, SECOND)), "cached_tokens must lie"),
    (lambda: replay(replace(GOOD, key=np.arange(2)), Replicas(1, SECOND)), "key: must be an array of uint64"),
    (lambda: replay(replace(GOOD, weight=np.ones(3)), Replicas(1, SECOND)), "weight: 3 values for 2"),
    (lambda: replay(GOOD, Replicas(0, SECOND)), "count must be a whole number"),
    (lambda: replay(GOOD, Replicas(1, SECOND, slots=0)), "slots must be at least 1"),
    (lambda: replay(GOOD, Replicas(1, SECOND, token_budget=np.nan)), "token_budget must be at least 1"),
    (lambda: replay(GOOD, Replicas(1, SECOND, kv_tokens=0.0)), "kv_tokens must be positive"),
    (lambda: replay(GOOD, Replicas(1, (1.0, 1.0))), "a table of durations is for the engine slots"),
    (lambda: replay(GOOD, Replicas(1, SECOND, engine="other")), "engine 'other' is not known"),
    (lambda: replay(GOOD, Replicas(2, SECOND, routing="central"), Clients()), "take another routing"),
    (lambda: replay(GOOD, Replicas(1, SECOND, engine="slots", slots=1), Clients()), "clients cannot be replayed"),
    (lambda: replay(GOOD, Replicas(1, SECOND), Clients(timeout_s=0.0)), "timeout_s must be positive"),
    (lambda: replay(GOOD, Replicas(1, SECOND, block=4), cache=PrefixCache()), "block must be 1"),
    (lambda: replay(GOOD, Replicas(1, SECOND), decoders=Decoders(Replicas(1, SECOND), np.zeros(2))), "engine prefill"),
    (lambda: replay(GOOD, Replicas(1, SECOND), outages=[Outage(1, 0.0)]), "outage of replica 1"),
    (lambda: replay(GOOD, Replicas(1, SECOND), outages=[Outage(0, 0.0), Outage(0, 1.0)]), "overlap"),
    (lambda: replay(GOOD, Replicas(1, SECOND), limits=[Limit("ttft_s", 1, 1)] * 2), "at most one for each metric"),
]


@pytest.mark.parametrize(("ask", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_makes_no_sense_is_said_in_a_line(ask, words: str):
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        ask()


def test_python_replays_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLEETOPT_KERNEL", "python")
    assert "FLEETOPT_KERNEL" in runs.kernel_in_use()
    assert times(runs.replay(GOOD, Replicas(1, SECOND)).done_s) == [2, 3]
    with pytest.raises(InputError):
        runs.replay(GOOD, Replicas(0, SECOND))
