"""Sessions: read from logs, kept in files, selected, generated."""

import json

import numpy as np
import pytest

from planner.errors import InputError
from planner.workload.combine import scaled, without_longer
from planner.workload.importing import read_workload
from planner.workload.sessions import Sessions, joined
from planner.workload.synthetic import SyntheticSessions
from planner.workload.writer import carried_workload, csv_text, rows_to_carry


def _written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_log_with_a_session_column(tmp_path):
    text = "timestamp,session_id,input_tokens,output_tokens\n"
    text += "0,a,100,10\n5,b,50,5\n20,a,150,10\n30,b,40,5\n40,a,220,10\n"
    workload, _ = read_workload(_written(tmp_path, "log.csv", text))
    sessions = workload.sessions
    assert sessions.count == 2 and sessions.calls == 5
    assert sessions.cached_tokens.tolist() == [0.0, 110.0, 160.0, 0.0, 0.0]  # b's prompt shrank
    assert sorted(sessions.gaps_s.tolist()) == [20.0, 20.0, 25.0]
    assert workload.arrivals.rate_per_s == pytest.approx(5 / 40)
    assert any("has grown" in note for note in workload.provenance.notes)


def test_agent_trace_with_times_of_each_session(tmp_path):
    text = "session,t_s,input_tokens,output_tokens,cached_prefix_tokens,api_s\n"
    text += "x,0,1000,10,0,2\nx,12,1200,10,1000,3\ny,0,500,5,0,1\n"
    workload, _ = read_workload(_written(tmp_path, "agent.csv", text))
    assert workload.arrivals.rate_per_s is None and workload.trace() is None
    assert workload.sessions.gaps_s.tolist() == [10.0]  # from the end of a call
    assert workload.sessions.repeated_share == pytest.approx(1000 / 2700)


def test_block_hashes_tell_sessions_and_shared_prefixes(tmp_path):
    """Twelve users share a first block (a system prompt); each comes twice, the second time with its own blocks again."""
    rows = []
    for user in range(12):
        own = [1, 100 + user]
        rows.append({"timestamp": 1000 * user, "input_length": 1024, "output_length": 10, "hash_ids": own})
        later = [*own, 200 + user]
        rows.append({"timestamp": 1000 * user + 60_000, "input_length": 1500, "output_length": 10, "hash_ids": later})
    path = _written(tmp_path, "mooncake.jsonl", "\n".join(map(json.dumps, rows)))
    sessions = read_workload(path)[0].sessions
    assert sessions.count == 12 and sessions.turns == 2.0
    assert sessions.shared_tokens.tolist() == [512.0] * 24
    assert sessions.cached_tokens[1::2].tolist() == [1024.0] * 12
    assert set(sessions.gaps_s.round(6).tolist()) == {60.0}


def test_conversations_of_several_turns(tmp_path):
    turns = [{"from": who, "value": "x" * 400} for who in ("human", "gpt") * 3]
    path = _written(tmp_path, "chat.json", json.dumps([{"conversations": turns}, {"conversations": turns[:2]}]))
    sessions = read_workload(path)[0].sessions
    assert sessions.count == 2 and sessions.calls == 4
    assert sessions.cached_tokens.tolist() == [0.0, 200.0, 400.0, 0.0]
    assert np.all(sessions.gaps_s > 0.0)


def test_without_sessions_there_are_none(tmp_path):
    text = "timestamp,session_id,input_tokens,output_tokens\n0,a,100,10\n5,b,50,5\n20,c,150,10\n"
    assert read_workload(_written(tmp_path, "log.csv", text))[0].sessions is None


@pytest.fixture(scope="module")
def chats():
    return SyntheticSessions(turns=5.0, first=800.0, growth=200.0, osl=100.0, groups=4, prefix=600.0).workload()


def test_file_and_plan_carry_them(chats, tmp_path):
    again = read_workload(_written(tmp_path, "chats.csv", csv_text(chats)))[0].sessions
    for name, column in chats.sessions.columns().items():
        # a file keeps times to 1 ms; without durations NaN stays NaN
        np.testing.assert_allclose(again.columns()[name], column, atol=0.0006, err_msg=name)
    rows = json.loads(json.dumps(rows_to_carry(chats)))
    carried = carried_workload({"name": chats.name, "digest": chats.digest, "rows": rows})
    assert carried.digest == chats.digest and carried.sessions.to_dict() == chats.sessions.to_dict()


def test_a_call_left_out_passes_on_the_least_that_was_repeated():
    sessions = Sessions.of(
        np.array([0, 0, 0, 1]),
        np.array([0.0, 1.0, 2.0, 0.0]),
        np.array([10.0, 20.0, 30.0, 40.0]),
        np.ones(4),
        np.array([0.0, 4.0, 20.0, 0.0]),
    )
    kept = sessions.select(np.array([True, False, True, True]))
    assert kept.cached_tokens.tolist() == [0.0, 4.0, 0.0]
    assert kept.times_s.tolist() == [0.0, 2.0, 0.0]
    assert sessions.select(np.array([False, True, True, False])).cached_tokens.tolist() == [0.0, 20.0]
    assert sessions.select(np.zeros(4, dtype=bool)) is None


def test_scaling_dropping_and_joining(chats):
    grown = scaled(chats, input_factor=2.0).sessions
    assert grown.cached_tokens.sum() == pytest.approx(2.0 * chats.sessions.cached_tokens.sum())
    short, _ = without_longer(chats, 3000.0)
    assert short.sessions.calls < chats.sessions.calls
    assert float((short.sessions.input_tokens + short.sessions.output_tokens).max()) <= 3000.0
    both = joined([chats.sessions, chats.sessions])
    assert both.count == 2 * chats.sessions.count
    assert both.shared[0].group.max() == 7  # four prefixes of each


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("turns=0.5", "turns: must be at least 1"),
        ("groups=5,osl=100", "groups and prefix"),
        ("turns=3,prompts=5", "prompts: needs groups"),
    ],
)
def test_what_cannot_be_generated_is_said(text, said):
    with pytest.raises(InputError, match=said):
        SyntheticSessions.parse(text)


def test_a_name_is_read_again():
    made = SyntheticSessions.parse("groups=150,prefix=6000,prompts=5,question=1200,osl=1000")
    assert SyntheticSessions.parse(made.name) == made
    workload = made.workload()
    assert workload.rows == 750 and workload.mean_input == pytest.approx(7200.0)
    assert SyntheticSessions.parse("azure") is None and SyntheticSessions.parse("isl=10,osl=5") is None


def test_calls_that_say_less_are_told_not_dropped(tmp_path):
    """A row without a session is one of its own; one that does not say what was cached repeats the call before."""
    text = "timestamp,session_id,input_tokens,output_tokens,cached_prefix_tokens\n"
    text += "0,a,100,10,0\n20,a,150,10,\n30,,80,10,\n60,a,300,10,120\n"
    workload, _ = read_workload(_written(tmp_path, "log.csv", text))
    assert sorted(np.bincount(workload.sessions.session).tolist()) == [1, 3]
    assert workload.sessions.cached_tokens[:3].tolist() == [0.0, 110.0, 120.0]
    assert "1 of 4 requests name no session: each is taken for a session of its own" in workload.provenance.notes
    assert any(
        note.startswith("of 2 calls that do not say it, each is taken to repeat") for note in workload.provenance.notes
    )


def test_a_span_lasts_until_it_ends(tmp_path):
    spans = [
        {"traceId": "t", "startTimeUnixNano": at * 10**9, "endTimeUnixNano": (at + 4) * 10**9,
         "attributes": {"gen_ai.usage.input_tokens": n, "gen_ai.usage.output_tokens": 10}}
        for at, n in ((1_700_000_000, 100), (1_700_000_030, 200))
    ]  # fmt: skip
    path = _written(tmp_path, "spans.jsonl", "\n".join(map(json.dumps, spans)))
    assert read_workload(path)[0].sessions.gaps_s.tolist() == pytest.approx([26.0])
    spans[1]["endTimeUnixNano"] = 1_700_000_000 * 10**9
    with pytest.raises(InputError, match=r"spans.jsonl:2: ends 30 s before it starts"):
        read_workload(_written(tmp_path, "spans.jsonl", "\n".join(map(json.dumps, spans))))


@pytest.mark.parametrize(
    "row, message",
    [
        ("20,a,150,10,-4,,", "cached tokens '-4' is not a number"),
        ("20,a,150,10,4,soon,", "duration 'soon' is not a number"),
        ("20,a,150,10,4,1,abc", "block hashes 'abc' are no list"),
        ('20,a,150,10,4,1,"[1, [2]]"', "are no list of hashes"),
    ],
)
def test_what_a_call_cannot_say_is_an_error_of_its_line(tmp_path, row, message):
    text = f"timestamp,session_id,input_tokens,output_tokens,cached_prefix_tokens,duration_s,hash_ids\n0,a,100,10,0,1,[1]\n{row}\n"
    with pytest.raises(InputError, match=r"log.csv:3") as caught:
        read_workload(_written(tmp_path, "log.csv", text))
    assert message in str(caught.value)
