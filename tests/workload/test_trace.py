"""Requests one by one, as a replay needs them."""

from __future__ import annotations

from pathlib import Path

from planner.workload.combine import without_longer
from planner.workload.formats.base import ReadOptions
from planner.workload.importing import import_files, read_workload

ROWS = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def _write(path: Path, rows: list[str]) -> Path:
    path.write_text(ROWS + "\n".join(rows) + "\n")
    return path


def test_a_trace_keeps_every_request_with_its_own_lengths(tmp_path: Path) -> None:
    one = _write(
        tmp_path / "one.csv", ["2023-11-16 18:00:04,300,5", "2023-11-16 18:00:00,100,9", "2023-11-16 18:00:09,100,9"]
    )
    w, _ = read_workload(one)
    trace = w.trace()
    assert trace is not None and trace.requests == 3
    assert trace.times_s.tolist() == [0.0, 4.0, 9.0]
    assert trace.input_tokens.tolist() == [100.0, 300.0, 100.0] and trace.output_tokens.tolist() == [9.0, 5.0, 9.0]
    assert w.with_rate(7.0).trace() is trace
    part = without_longer(w, 200)[0].trace()
    assert part is not None and part.times_s.tolist() == [0.0, 9.0]


def test_traces_together_lie_on_one_clock(tmp_path: Path) -> None:
    a = _write(tmp_path / "a.csv", ["2023-11-16 18:00:00,100,1", "2023-11-16 18:00:10,101,1"])
    b = _write(tmp_path / "b.csv", ["2023-11-16 18:00:05,200,1", "2023-11-16 18:00:20,201,1"])
    w, _ = import_files([("x", a), ("y", b)], ReadOptions())
    trace = w.trace()
    assert trace is not None
    assert trace.times_s.tolist() == [0.0, 5.0, 10.0, 20.0]
    assert trace.input_tokens.tolist() == [100.0, 200.0, 101.0, 201.0]
    assert trace.category.tolist() == [w.categories.index(name) for name in "xyxy"]


def test_lengths_without_times_have_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("prompt_tokens,output_tokens\n10,5\n20,6\n")
    assert read_workload(path)[0].trace() is None
