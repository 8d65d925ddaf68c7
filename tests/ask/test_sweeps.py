"""Sweeps on several processes and in pieces: the same rows, however they were made."""

from __future__ import annotations

import csv
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import planner as fo
from planner.cli.main import app
from planner.errors import InputError

pytestmark = pytest.mark.usefixtures("fewer_replayed")

CHANGES: dict[str, Any] = {"rate": [20.0, 60.0, 200.0, 600.0], "slo": ["20s", "1ms"]}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    rng = np.random.default_rng(2)
    lines = ["timestamp,input_tokens,output_tokens"]
    lines += [f"{k * 0.1:.1f},{n},{o}" for k, (n, o) in enumerate(rng.integers(50, 900, (1200, 2)))]
    (folder / "mine.csv").write_text("\n".join(lines) + "\n")
    file = folder / "base.yaml"
    file.write_text(
        f"method: mgc\ncdf: {folder / 'mine.csv'}\npools: 1\ntp: 1\ntoken_budget: 2048\nslo: 20\nconfidence: 0.5\n"
    )
    return file


@pytest.fixture(scope="module")
def standing(base: Path, fewer_replayed: None) -> fo.Plan:
    return fo.plan(config=base, method="mixed", rate=20.0)


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


def test_rows_stream_to_a_file(base: Path, tmp_path: Path) -> None:
    """What is in the file are the rows of the result, whatever order they were found in; an infeasible point is one."""
    changes = {"rate": [10.0, 20.0, 30.0], "slo": [4.0, 1e-4]}
    found = fo.what_if(base, stream=tmp_path / "rows.csv", resume=tmp_path / "points.jsonl", **changes)
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        streamed = list(csv.DictReader(file))
    expected = [{k: "" if v is None else str(v) for k, v in row.items()} for row in found.to_rows()]
    assert len(streamed) == 6 and sum(row["feasible"] == "False" for row in streamed) == 3
    for row, told in zip(streamed, expected, strict=True):
        assert {k: v for k, v in row.items() if v} == {k: v for k, v in told.items() if v}
    # a resumed sweep has all rows again
    again = fo.what_if(base, stream=tmp_path / "again.csv", resume=tmp_path / "points.jsonl", **changes)
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "rows.csv").read_text() and len(again.points) == 6
    parquet = pytest.importorskip("pyarrow.parquet")
    fo.what_if(base, stream=tmp_path / "rows.parquet", **changes)
    table = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [r["cost_usd_per_hour"] for r in table] == [r.get("cost_usd_per_hour") for r in found.to_rows()]
    assert not list(tmp_path.glob(".*"))


def test_rows_go_to_known_kinds_of_files(base: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="parquet"):
        fo.what_if(base, stream=tmp_path / "rows.xlsx", rate=[10.0])


@pytest.mark.long("a cluster of Dask is started")
def test_a_dask_cluster_is_an_executor(base: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert rows(fo.what_if(base, executor=client.get_executor(), **CHANGES)) == rows(fo.what_if(base, **CHANGES))


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
    from planner.ask import what_if

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


@pytest.mark.parametrize(
    "changes",
    [
        {"rate": [60.0], "slo": ["20s", "1ms"]},
        {
            "method": ["mixed"],
            "rate": [30.0],
            "boundaries": [[300]],
            "pools": [2],
            "goodput": ["90%:ttft=2s,tpot=60ms"],
        },
        {"method": ["occupancy"], "shape": ["both"], "rate": [20.0]},
    ],
)
def test_rows_without_plans_are_those_of_the_plans(
    base: Path, standing: fo.Plan, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Of a search and of a plan's own pools; rows that were kept do for rows, and are planned where plans are asked for."""
    file = tmp_path / "points.jsonl"
    for asked in (base, standing):
        whole = fo.what_if(asked, **changes)
        bare = fo.what_if(asked, plans=False, resume=file, **changes)
        assert rows(bare) == rows(whole) and bare.feasible() == []
        assert rows(fo.what_if(asked, plans=False, resume=file, **changes)) == json.loads(json.dumps(rows(whole)))
        again = fo.what_if(asked, resume=file, **changes)
        assert len(again.feasible()) == len(whole.feasible()) > 0
        assert again.to_dict()["points"] == whole.to_dict()["points"]


@pytest.mark.parametrize("method", ["mixed", "occupancy"])
def test_neighbours_change_no_answer(method: str, base: Path) -> None:
    """What a sweep knows of one rate only says where to look at the next: every point is what it is alone."""
    plan = fo.plan(config=base, method=method, slo=2.0, rate=25.0, confidence=0.8)
    changes: dict[str, Any] = {"rate": [50.0, 12.0, 90.0], "slo": [1.2]}
    together = rows(fo.what_if(plan, plans=False, **changes))
    assert [(row["rate"], row["slo"]) for row in together] == [(r, s) for r in changes["rate"] for s in changes["slo"]]
    assert len({row["replicas"] for row in together}) > 2
    for row in together:
        assert rows(fo.what_if(plan, plans=False, rate=row["rate"], slo=row["slo"])) == [row]


def test_a_file_of_something_else_is_refused(base: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("one line without an end")
    (tmp_path / "other.jsonl").write_text('{"kind": "else"}\n')
    files = (base.parent / "mine.csv", base, tmp_path / "note.txt", tmp_path / "other.jsonl")
    for file in files:
        before = file.read_text()
        with pytest.raises(fo.InputError, match=f"{file.name}:1"):
            fo.what_if(base, resume=file, rate=[1.0])
        assert file.read_text() == before


def test_the_command(base: Path, tmp_path: Path) -> None:
    asked = ["what-if", str(base), "--set", "rate=20,60", "--format", "csv"]
    plain = CliRunner().invoke(app, asked)
    assert plain.exit_code == 0
    for _ in range(2):
        found = CliRunner().invoke(app, [*asked, "--jobs", "2", "--resume", str(tmp_path / "p.jsonl")])
        assert found.stdout == plain.stdout
    assert CliRunner().invoke(app, [*asked, "--jobs", "-1"]).exit_code != 0
