"""Files as they arrive: broken ones get one clear error or a counted drop, never a traceback and never silence."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.workload.importing import read_workload
from planner.workload.resolve import resolve_workload, shipped_names

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = [f"2023-11-16 18:{15 + i // 60:02d}:{i % 60:02d}.1234567,{100 + i},{10 + i % 7}\n" for i in range(1500)]
GOOD = HEADER + "".join(ROWS)
ZIPPED = gzip.compress(GOOD.encode(), mtime=0)


def put(folder: Path, data: bytes | str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


ERRORS: dict[str, tuple[bytes | str, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\n", "is empty"),
    "empty gzip": (gzip.compress(b""), "is empty"),
    "header only": (HEADER, "no rows after the header"),
    "truncated gzip": (ZIPPED[: len(ZIPPED) // 2], r"t\.csv:\d+: the packed file is truncated"),
    "gzip with a bad checksum": (ZIPPED[:-6] + b"xxxxxx", "not a readable packed file|damaged"),
    "not gzip after all": (b"\x1f\x8b" + bytes(range(200)), "not a readable packed file"),
    "binary": (b"\x89PNG\r\n\x1a\n\x00\x01" + bytes(200), "a binary file"),
    "nul": (b"input_tokens,output_tokens\n1,2\n\x00,4\n", "a binary file"),
    "duplicate columns": ("input_tokens,output_tokens,Output Tokens\n1,2,3\n", "is there 2 times"),
    "unknown columns": ("a,b\n1,2\n", r"not a format known here \(found: a, b\)"),
    "negative": ("input_tokens,output_tokens\n-5,2\n", r"t\.csv:2: input tokens '-5' is not a count"),
    "fraction": ("input_tokens,output_tokens\n1.5,2\n", r"t\.csv:2: input tokens '1.5'"),
    "not a number": ("input_tokens,output_tokens\n3,nan\n", r"t\.csv:2: output tokens 'nan'"),
    "infinite": ("input_tokens,output_tokens\n3,inf\n", "output tokens 'inf'"),
    "too long to be true": ("input_tokens,output_tokens\n3,1e300\n", "output tokens '1e300'"),
    "ragged": ("input_tokens,output_tokens\n1,2,3\n", r"t\.csv:2: 3 columns instead of 2"),
    "open quote": ('input_tokens,output_tokens\n"1,2\n3,4\n', "columns instead of 2"),
    "bad time": ("timestamp,input_tokens,output_tokens\nyesterday,5,6\n", r"t\.csv:2: time 'yesterday'"),
    "nothing asked for": ("input_tokens,output_tokens\n0,0\n", "1 no tokens at all"),
    "broken line": ('{"input_tokens":1,"output_tokens":2}\n{"input_tokens":1,\n', r"t\.csv:2: not valid JSON"),
    "array without end": ('[{"input_tokens":1,"output_tokens":2},', "does not end"),
    "broken array": ('[{"input_tokens":1,"output_tokens":2},\n{"input_tokens":x}]', r"t\.csv:2: not valid JSON"),
    "nested too deeply": ('{"input_tokens":1,"output_tokens":2}\n' + '{"a":' * 50_000, r"t\.csv:2: not valid JSON"),
    "other JSON": ('{"hello": "world"}', "not a format known here"),
    "list of words": ('["a", "b"]', "not a format known here"),
    "counts that are words": ('{"input_tokens":"x","output_tokens":5}\n', "input tokens 'x'"),
    "no counts": ('{"input_tokens":5,"output_tokens":null}\n', "no output_tokens"),
    "truth is no count": ('{"input_tokens":true,"output_tokens":5}\n', "input tokens True"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_one_clear_error(tmp_path: Path, case: str) -> None:
    data, message = ERRORS[case]
    with pytest.raises(InputError, match=message):
        read_workload(put(tmp_path, data))


def test_missing_file_lists_what_is_shipped(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="azure-conv") as caught:
        read_workload(tmp_path / "nowhere.csv")
    assert "no such file" in caught.value.message
    with pytest.raises(InputError, match="did you mean 'azure'"):
        read_workload("azur")
    with pytest.raises(InputError, match="is a folder"):
        read_workload(tmp_path)


def test_an_existing_path_comes_before_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_workload("azure.csv").parent.name in ("workloads", "_workloads")
    put(tmp_path, "input_tokens,output_tokens\n1,2\n", "azure.csv")
    assert read_workload("azure.csv")[0].mean_input == 1.0
    assert resolve_workload("azure").name == "azure.csv"
    assert {"azure", "azure-conv", "azure-code", "sharegpt4", "lmsys", "agent-heavy", "long-context"} <= set(
        shipped_names()
    )


@pytest.mark.parametrize("bad", [1, 2])
def test_up_to_one_in_a_thousand_is_dropped_and_counted(tmp_path: Path, bad: int) -> None:
    path = put(tmp_path, GOOD + "2023-11-16 18:50:00,-5,5\n" * bad)
    if bad == 1:
        workload, report = read_workload(path)
        assert report.unreadable == 1
        assert report.unreadable_examples == (f"{path}:1502: input tokens '-5' is not a count",)
        assert any("dropped 1 of 1,501: unreadable" in note for note in workload.provenance.notes)
        return
    with pytest.raises(InputError, match="--allow-bad-rows") as caught:
        read_workload(path)
    assert len(caught.value.problems) == 2
    _, report = read_workload(path, allow_bad_rows=True)
    assert report.unreadable == 2 and report.requests == 1500 and report.rows_read == 1502


def test_times_out_of_order_are_sorted_and_said(tmp_path: Path) -> None:
    straight, _ = read_workload(put(tmp_path, GOOD))
    workload, report = read_workload(put(tmp_path, HEADER + "".join(reversed(ROWS))))
    assert report.notes == ("1,499 times out of order; sorted",)
    assert workload.arrivals == straight.arrivals


def test_bytes_that_are_not_text_are_counted(tmp_path: Path) -> None:
    data = b"model,input_tokens,output_tokens\n" + "caf\u00e9,5,6\n".encode("latin-1") + b"tea,5,6\n"
    workload, report = read_workload(put(tmp_path, data))
    assert workload.provenance.requests == 2
    assert report.notes == ("1 lines hold bytes that are not UTF-8; only names can suffer",)


def test_quoted_prompts_over_several_lines(tmp_path: Path) -> None:
    text = 'prompt,input_tokens,output_tokens\n"two\nlines, and a comma",5,6\n"",7,8\n'
    assert read_workload(put(tmp_path, text))[0].provenance.requests == 2


def test_progress_is_reported(tmp_path: Path) -> None:
    path = put(tmp_path, HEADER + "".join(ROWS * 20))
    seen: list[tuple[int, int]] = []
    read_workload(path, progress=lambda done, total: seen.append((done, total)))
    size = path.stat().st_size
    assert len(seen) >= 3 and seen[-1] == (size, size)
    assert all(0 < done <= total for done, total in seen)


def test_memory_and_time_stay_bounded_on_a_document_of_one_line(tmp_path: Path) -> None:
    record = json.dumps({"input_tokens": 5, "output_tokens": 6, "prompt": "word " * 200})
    path = put(tmp_path, "[" + ",".join([record] * 3000) + "]", "one.json")
    assert read_workload(path)[0].provenance.requests == 3000


SEEDS = [
    GOOD[:600],
    '{"timestamp": 0, "input_length": 374, "output_length": 44, "hash_ids": []}\n' * 5,
    '[{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}]',
    '{"benchmarks": [{"requests": {"successful": [{"prompt_tokens": 5, "output_tokens": 6, "request_start_time": 1.5}]}}]}',
    '{"input_lens": [1, 2], "output_lens": [3, 4], "start_times": [0.0, 1.0]}',
    '# TYPE a histogram\nvllm:request_prompt_tokens_bucket{le="5"} 1\nvllm:request_prompt_tokens_count 1\n',
    "# rate_per_s: 3\n# dispersion: 1=2\ntokens,cdf,input_tokens,output_tokens\n64,0.5,20,30\n128,1,60,50\n",
    '{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "1", "attributes": [{"key": "a", "value": {}}]}]}]}]}',
    '{"data": {"resultType": "matrix", "result": ['
    '{"metric": {"__name__": "vllm:request_prompt_tokens_count"}, "values": [[1, "2"]]}]}}',
    "[[64, 0.5], [128, 1.0]]",
    '{"type": "GENERATION", "startTime": "2024-01-01T00:00:00Z", "usageDetails": {"input": 3, "output": 4}}\n',
    '{"metadata": {"request_start_ns": 5}, "metrics": {"input_sequence_length": {"value": 3}, "output_sequence_length": 4}}\n',
    "request_id,call_type,prompt_tokens,completion_tokens,startTime\nx,acompletion,3,4,2024-01-01T00:00:00Z\n",
    '{"created": 1, "usage": {"prompt_tokens": 3, "completion_tokens": 4}}\n',
]
JUNK = [
    "",
    "-1",
    "1e999",
    "nan",
    "null",
    "true",
    "{}",
    "[]",
    '"',
    ",",
    "\n",
    "\r",
    "\x00",
    "\ufeff",
    "é",
    "[" * 60,
    "0" * 400,
    "#",
    "=",
    ":",
    "{",
    "]",
]


@given(st.integers(0, len(SEEDS) - 1), st.integers(0, 2**32), st.integers(1, 6), st.booleans())
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_comes_the_answer_is_a_workload_or_a_clear_error(
    tmp_path: Path, seed: int, number: int, cuts: int, zipped: bool
) -> None:
    rng = random.Random(number)
    text = SEEDS[seed]
    for _ in range(cuts):
        a = rng.randrange(len(text) + 1)
        b = min(len(text), a + rng.choice([0, 0, 1, 2, 5, 20]))
        text = text[:a] + rng.choice([*JUNK, text[a : a + 30]]) + text[b:]
    data = text.encode()
    if zipped:
        data = gzip.compress(data)
        if rng.random() < 0.3:
            data = data[: rng.randrange(len(data))]
    path = put(tmp_path, data)
    try:
        workload, report = read_workload(path, output_share=0.2, allow_bad_rows=rng.random() < 0.5)
    except InputError as error:
        assert str(error)
        return
    assert workload.weight.sum() == pytest.approx(1.0)
    assert report.rows_read >= report.requests
    assert 0.0 <= workload.cdf(100.0) <= 1.0


@given(st.binary(max_size=300))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    path = put(tmp_path, data)
    try:
        read_workload(path, output_share=0.2)
    except InputError as error:
        assert str(error)


def test_names_of_requests_are_no_categories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "t.csv"
    file.write_text("timestamp,input_tokens,output_tokens,category\n" + "".join(f"{k},5,6,r{k}\n" for k in range(3000)))
    for large in (1 << 40, 0):
        monkeypatch.setattr("planner.workload.importing.LARGE_BYTES", large)
        with pytest.raises(InputError, match="3,000 different categories"):
            read_workload(file)
        assert read_workload(file, category="chat")[0].categories == ("chat",)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="a file whose first byte cannot be read")
def test_a_disk_that_fails_is_told_with_the_file() -> None:
    with pytest.raises(InputError, match="/proc/self/mem: cannot be read: Input/output error"):
        read_workload("/proc/self/mem")
