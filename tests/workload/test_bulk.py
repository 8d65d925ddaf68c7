"""Large files are read by columns: the same requests as row by row, to the last count, or the row reader is asked."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.errors import InputError
from planner.workload.bulk import read_bulk
from planner.workload.formats.base import ReadOptions, TraceBuilder
from planner.workload.formats.registry import formats
from planner.workload.importing import import_files
from planner.workload.source import Source

duckdb = pytest.importorskip("duckdb")

ROWS = 500


def columns() -> dict[str, list[Any]]:
    rng = np.random.default_rng(7)
    return {
        "time": np.sort(rng.uniform(0.0, 300.0, ROWS)).round(6).tolist(),
        "input": rng.integers(0, 3, ROWS).tolist() + rng.integers(1, 5000, ROWS).tolist()[ROWS:],
        "output": rng.integers(0, 400, ROWS).tolist(),
        "category": rng.choice(["chat", " code", ""], ROWS).tolist(),
    }


def iso(seconds: float, zone: str = "") -> str:
    return f"2024-05-10 00:{int(seconds // 60):02d}:{seconds % 60:010.7f}{zone}"


def csv(header: str, times: list[Any], categories: bool = True, delimiter: str = ",") -> str:
    c = columns()
    rows = zip(times, c["input"], c["output"], c["category"], strict=True)
    lines = [delimiter.join(map(str, row if categories else row[:3])) for row in rows]
    return "\n".join([header, *lines]) + "\n"


SECONDS = columns()["time"]
NANOSECONDS = [1715300000123456789 + int(x * 1e9) for x in SECONDS]
FILES = {
    "seconds.csv": csv("timestamp,input_tokens,output_tokens,category", SECONDS),
    "milliseconds.csv": csv("arrival_ms,input_tokens,output_tokens,category", [x * 1e3 for x in SECONDS]),
    "nanoseconds.csv": csv("timestamp,prompt_tokens,completion_tokens,category", NANOSECONDS),
    "azure.csv": csv("TIMESTAMP,ContextTokens,GeneratedTokens", [iso(x) for x in SECONDS], False),
    "zones.csv": csv("TIMESTAMP,ContextTokens,GeneratedTokens", [iso(x, "+02:00") for x in SECONDS], False),
    "utc.csv": csv("TIMESTAMP,ContextTokens,GeneratedTokens", [iso(x, "Z") for x in SECONDS], False),
    "semicolons.csv": csv("ts;isl;osl;category", SECONDS, delimiter=";"),
    "quoted.csv": csv("timestamp,input_tokens,output_tokens,category", SECONDS).replace(" code", '"a ""b"", c"'),
    "mooncake.jsonl": "".join(
        json.dumps({"timestamp": round(t * 1e3), "input_length": i, "output_length": o}) + "\n"
        for t, i, o in zip(SECONDS, columns()["input"], columns()["output"], strict=True)
    ),
}  # fmt: skip


def both(path: Path, options: ReadOptions = ReadOptions()) -> tuple[TraceBuilder | None, TraceBuilder]:  # noqa: B008
    """What is read by columns and what row by row."""
    head = Source(path)
    form = next(f for f in formats(head.kind) if f.recognise(head))
    rows = form.read(Source(path), options)
    assert isinstance(rows, TraceBuilder)
    return read_bulk(Source(path), form, options), rows


def labels(trace: TraceBuilder) -> list[str]:
    names = list(trace.categories)
    return [names[k] for k in trace.category]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("packed", [False, True])
def test_the_same_requests_to_the_last_count(name: str, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(FILES[name].encode()) if packed else FILES[name].encode())
    found, rows = both(path)
    assert found is not None
    assert found.inputs == rows.inputs
    assert found.outputs == rows.outputs
    assert found.times == rows.times
    assert labels(found) == labels(rows)
    assert found.dropped == rows.dropped
    assert found.rows_read == rows.rows_read == ROWS
    assert found.clock.absolute == rows.clock.absolute


@pytest.mark.parametrize("typed", ["seconds", "moments", "nanoseconds"])
def test_parquet(typed: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    c = columns()
    whole = NANOSECONDS
    time = {
        "seconds": c["time"],
        "moments": pyarrow.array([n // 1000 for n in whole], pyarrow.timestamp("us")),
        "nanoseconds": whole,
    }[typed]
    path = tmp_path / "log.parquet"
    table = {"timestamp": time, "prompt_tokens": c["input"], "output_tokens": c["output"], "category": c["category"]}
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(table), path)
    found, rows = both(path)
    assert found is not None
    assert (found.inputs, found.outputs, found.times) == (rows.inputs, rows.outputs, rows.times)
    assert labels(found) == labels(rows)


def test_paths_in_records(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    c = columns()
    rows = zip(SECONDS, c["input"], c["output"], c["category"], strict=True)
    path.write_text(
        "".join(
            json.dumps({"ts": iso(t, "Z"), "n": {"in": i, "out": f"{o}.0"}, "kind": k}) + "\n" for t, i, o, k in rows
        )
    )
    options = ReadOptions(columns={"input": "n.in", "output": "n.out", "category": "kind"})
    form = next(f for f in formats("jsonl") if f.name == "generic")
    found, rows_read = read_bulk(Source(path), form, options), form.read(Source(path), options)
    assert found is not None
    assert isinstance(rows_read, TraceBuilder)
    assert (found.inputs, found.outputs, found.times) == (rows_read.inputs, rows_read.outputs, rows_read.times)
    assert labels(found) == labels(rows_read)


def test_selected_requests(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(FILES["seconds.csv"])
    found, rows = both(path, ReadOptions(where={"category": "code"}))
    assert found is not None
    assert found.inputs == rows.inputs
    assert found.dropped == rows.dropped


def test_requests_that_come_back_are_more_than_a_table(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    record = {"timestamp": 5, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]}
    path.write_text((json.dumps(record) + "\n") * 3)
    form = next(f for f in formats("jsonl") if f.name == "mooncake")
    assert read_bulk(Source(path), form, ReadOptions()) is None


def test_own_names(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(csv("timestamp,input_tokens,answer,category", SECONDS))
    options = ReadOptions(columns={"output": "answer"})
    form = next(f for f in formats("csv") if f.name == "generic")
    found, rows = read_bulk(Source(path), form, options), form.read(Source(path), options)
    assert isinstance(rows, TraceBuilder)
    assert found is not None
    assert found.outputs == rows.outputs


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [*lines, "12,five,6,chat"],
        lambda lines: [*lines, "12,-5,6,chat"],
        lambda lines: [*lines, "12,5.5,6,chat"],
        lambda lines: [*lines, "noon,5,6,chat"],
        lambda lines: [*lines, "12,5,6"],
        lambda lines: ["timestamp,input_tokens,output_tokens,Input tokens", *lines[1:]],
        lambda lines: ["# from our gateway", *lines],
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_the_row_reader(damage: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("\n".join(damage(FILES["seconds.csv"].splitlines())) + "\n")
    head = Source(path)
    form = next(f for f in formats(head.kind) if f.name == "generic")
    assert read_bulk(Source(path), form, ReadOptions()) is None


def test_large_files_are_read_by_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.csv"
    path.write_text(FILES["zones.csv"])
    by_rows, report = import_files([(None, path)], ReadOptions())
    monkeypatch.setattr("planner.workload.importing.LARGE_BYTES", 1)
    by_columns, again = import_files([(None, path)], ReadOptions())
    assert by_columns.to_dict() == by_rows.to_dict()
    assert by_columns.digest == by_rows.digest and by_columns.trace() is not None
    assert [r.to_dict() for r in report] == [r.to_dict() for r in again]
    path.write_text(FILES["zones.csv"] + "soon,1,2\n")
    with pytest.raises(InputError, match="502"):
        import_files([(None, path)], ReadOptions())


def test_labels_that_come_late_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.workload.bulk.MOST_REQUESTS", 3)
    file = tmp_path / "late.csv"
    rows = [f"{k},100,{10 + k},{'chat' if k < 5 else 'code'}" for k in range(9)]
    file.write_text("\n".join(["timestamp,input_tokens,output_tokens,category", *rows]) + "\n")
    bulk, by_row = both(file)
    assert bulk is not None and labels(bulk) == labels(by_row)


LINES = [
    {"timestamp": 1715300000.25 + k, "input_tokens": 5 + k, "output_tokens": k % 3, "kind": "chat"} for k in range(40)
]


@pytest.mark.parametrize(
    ("odd", "read"),
    [
        ({"timestamp": "1715300040.5", "input_tokens": "7", "output_tokens": 1.0, "kind": 3}, True),
        ({"timestamp": 1715300041, "input_tokens": 7, "output_tokens": "1", "kind": None}, True),
        ({"timestamp": 1715300041, "input_tokens": 7, "output_tokens": 1, "Kind": "other", "more": [1, {"a": 2}]}, True),
        # a number to an engine, none to a reader of requests
        ({"timestamp": True, "input_tokens": 7, "output_tokens": 1, "kind": "chat"}, False),
        ({"timestamp": 1715300041, "input_tokens": False, "output_tokens": 1, "kind": "chat"}, False),
        ({"timestamp": 1715300041, "input_tokens": 7, "output_tokens": True, "kind": "chat"}, False),
        ({"timestamp": "soon", "input_tokens": 7, "output_tokens": 1, "kind": "chat"}, False),
        ({"timestamp": [1], "input_tokens": 7, "output_tokens": 1, "kind": "chat"}, False),
        ({"timestamp": None, "input_tokens": 7, "output_tokens": 1, "kind": "chat"}, False),
        ({"input_tokens": 7, "output_tokens": 1, "kind": "chat"}, False),
        ([1, 2], False),
    ],
)  # fmt: skip
def test_lines_of_other_types_than_the_first(odd: Any, read: bool, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*LINES, odd]))
    options = ReadOptions(columns={"category": "kind"})
    form = next(f for f in formats("jsonl") if f.name == "generic")
    found, rows = read_bulk(Source(path), form, options), form.read(Source(path), options)
    assert isinstance(rows, TraceBuilder)
    assert (found is not None) is read
    assert read or rows.unreadable == 1
    if found is not None:
        assert (found.inputs, found.outputs, found.times) == (rows.inputs, rows.outputs, rows.times)
        assert labels(found) == labels(rows)


def test_times_asked_for_twice_are_text(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    options = ReadOptions(columns={"category": "timestamp"}, where={"timestamp": "1715300003.25"})
    form = next(f for f in formats("jsonl") if f.name == "generic")
    found, rows = read_bulk(Source(path), form, options), form.read(Source(path), options)
    assert found is not None and isinstance(rows, TraceBuilder)
    assert (found.inputs, found.times, labels(found)) == (rows.inputs, rows.times, labels(rows))


@pytest.mark.parametrize("date", ["2024-5-1 00:00:01", "2024-05-10", "2024-05-10 00:00:46 BC", "epoch"])
def test_dates_in_other_forms_are_left_to_the_row_reader(date: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(FILES["azure.csv"] + f"{date},5,6\n")
    found, _ = both(path)
    assert found is None
