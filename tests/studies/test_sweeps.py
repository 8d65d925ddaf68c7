"""Sweeps on several processes and in pieces: the same rows, however they were made."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import planner as fo
from planner.cli.main import app

CHANGES: dict[str, Any] = {"rate": [20.0, 60.0, 200.0, 600.0], "slo": ["20s", "1ms"]}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    rng = np.random.default_rng(2)
    lines = ["timestamp,input_tokens,output_tokens"]
    lines += [f"{k * 0.1:.1f},{n},{o}" for k, (n, o) in enumerate(rng.integers(50, 900, (300, 2)))]
    (tmp_path / "mine.csv").write_text("\n".join(lines) + "\n")
    file = tmp_path / "base.yaml"
    file.write_text(f"method: mgc\ncdf: {tmp_path / 'mine.csv'}\npools: 1\nslo: 20\n")
    return file


def rows(sweep: fo.Sweep) -> list[dict[str, object]]:
    return sweep.to_rows()


def test_processes_and_executors_give_the_same_rows(base: Path) -> None:
    alone = fo.what_if(base, **CHANGES)
    assert {r["feasible"] for r in rows(alone)} == {True, False}
    assert rows(fo.what_if(base, jobs=2, **CHANGES)) == rows(alone)
    with ThreadPoolExecutor(3) as threads:
        assert rows(fo.what_if(base, executor=threads, **CHANGES)) == rows(alone)
    with pytest.raises(fo.InputError, match="jobs"):
        fo.what_if(base, jobs=0, **CHANGES)


def test_an_interrupted_sweep_goes_on(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "points.jsonl"
    whole = fo.what_if(base, **CHANGES)

    class InterruptedError_(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise InterruptedError_

    with pytest.raises(InterruptedError_):
        fo.what_if(base, resume=file, progress=stop, **CHANGES)
    assert len(file.read_text().splitlines()) == 3
    # a run killed while it wrote leaves a line cut off
    with file.open("a") as torn:
        torn.write('{"kind": "fleetopt-what-if-po')
    planned: list[Any] = []
    from planner.studies import what_if

    point = what_if._point
    monkeypatch.setattr(what_if, "_point", lambda asked: planned.append(asked) or point(asked))
    again = fo.what_if(base, resume=file, **CHANGES)
    assert len(planned) == len(whole.points) - 3
    assert rows(again) == json.loads(json.dumps(rows(whole)))
    assert [p["plan"] is None for p in again.to_dict()["points"]] == [p.plan is None for p in whole.points]  # type: ignore[index]
    assert len(file.read_text().splitlines()) == len(whole.points)
    # another question is another point
    planned.clear()
    fo.what_if(base, resume=file, rate=[20.0], slo=["21s"])
    assert len(planned) == 1


def test_a_file_of_something_else_is_refused(base: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("one line without an end")
    (tmp_path / "other.jsonl").write_text('{"kind": "else"}\n')
    for name in ("mine.csv", "base.yaml", "note.txt", "other.jsonl"):
        before = (tmp_path / name).read_text()
        with pytest.raises(fo.InputError, match=f"{name}:1"):
            fo.what_if(base, resume=tmp_path / name, rate=[1.0])
        assert (tmp_path / name).read_text() == before


def test_the_command(base: Path, tmp_path: Path) -> None:
    asked = ["what-if", str(base), "--set", "rate=20,60", "--format", "csv"]
    plain = CliRunner().invoke(app, asked)
    assert plain.exit_code == 0
    for _ in range(2):
        found = CliRunner().invoke(app, [*asked, "--jobs", "2", "--resume", str(tmp_path / "p.jsonl")])
        assert found.stdout == plain.stdout
    assert CliRunner().invoke(app, [*asked, "--jobs", "-1"]).exit_code != 0
