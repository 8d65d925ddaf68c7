"""The query instead of the data: DuckDB runs it, other dialects parse, and its result is the trace it sums up."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from planner.cli.main import app
from planner.errors import InputError
from planner.workload.formats.sql import DIALECTS, RESULT, query
from planner.workload.importing import read_workload
from planner.workload.workload import Workload
from planner.workload.writer import csv_text

NAMES = {"input_tokens": "prompt", "output_tokens": "answer"}
SQLGLOT = {"bigquery": "bigquery", "snowflake": "snowflake", "athena": "athena", "spark": "spark"} | {
    n: n for n in ("clickhouse", "duckdb", "postgres")
}


def trace(path: Path, requests: int = 4000) -> Path:
    """A log with bursts, a category and a model."""
    rng = np.random.default_rng(3)
    busy = np.repeat(rng.gamma(1.5, 1.0, 60), 10)
    second = np.sort(rng.choice(600, size=requests, p=busy / busy.sum()))
    path.write_text(
        "timestamp,prompt,answer,category,model\n"
        + "".join(
            f"{1_715_300_000 + s + rng.random():.6f},{max(int(np.exp(rng.normal(6, 1.4))), 0)},{rng.integers(0, 900)},"
            f"{rng.choice(['chat', 'code'])},{rng.choice(['a', 'b'])}\n"
            for s in second
        )
    )
    return path


def summed(log: Path, out: Path, **options: Any) -> Path:
    """The query's result over a log, by DuckDB."""
    duckdb = pytest.importorskip("duckdb")
    text = query(DIALECTS["duckdb"], "logs", **NAMES, **options)
    with duckdb.connect() as engine:
        engine.execute(f"CREATE TABLE logs AS SELECT * FROM read_csv('{log}')")
        engine.execute(f"COPY ({text}) TO '{out}' (HEADER)")
    return out


def test_the_result_is_the_trace(tmp_path: Path) -> None:
    log = trace(tmp_path / "log.csv")
    result = summed(log, tmp_path / "sums.csv", time="timestamp", time_unit="s", category="category")
    columns = {"input": "prompt", "output": "answer"}
    whole, _ = read_workload(log, columns=columns, input_format="generic")
    found, report = read_workload(result)
    assert report.format == "sql"
    assert found.provenance.requests == report.requests == whole.provenance.requests
    assert found.mean_input == pytest.approx(whole.mean_input, rel=1e-12)
    assert found.mean_output == pytest.approx(whole.mean_output, rel=1e-12)
    assert found.max_total == whole.max_total
    assert found.input_tokens.max() == whole.input_tokens.max()
    assert found.categories == whole.categories
    # a cell is 3% wide in both lengths
    for q in (0.1, 0.5, 0.9, 0.99):
        assert found.quantile(q) == pytest.approx(whole.quantile(q), rel=0.03)
    # the same seconds, whether their stamps are there or only their counts: their start differs by less than one second
    assert found.intervals is not None and found.intervals.requests == whole.provenance.requests
    drawn = found.trace()
    assert drawn is not None and drawn.requests == found.intervals.requests
    (tmp_path / "kept.csv").write_text(csv_text(found))
    again = Workload.from_file(tmp_path / "kept.csv")
    assert again.intervals is not None and again.intervals.counts.tolist() == found.intervals.counts.tolist()
    assert again.mean_output == pytest.approx(found.mean_output, rel=1e-5)
    assert found.arrivals.rate_per_s == pytest.approx(whole.arrivals.rate_per_s, rel=2.0 / 600.0)
    for window, index in whole.arrivals.dispersion:
        if window <= 10.0:  # of a minute there are nine or ten windows, as the first second starts or the first request
            assert found.arrivals.dispersion_at(window) == pytest.approx(index, rel=0.1)


def test_selected_requests_without_times(tmp_path: Path) -> None:
    log = trace(tmp_path / "log.csv", 500)
    result = summed(log, tmp_path / "sums.csv", where={"model": "a"})
    found, report = read_workload(result)
    with log.open() as file:
        wanted = [r for r in csv.DictReader(file) if r["model"] == "a" and int(r["prompt"]) + int(r["answer"]) > 0]
    assert report.requests == len(wanted)
    assert found.arrivals.rate_per_s is None
    assert found.mean_input == pytest.approx(np.mean([int(r["prompt"]) for r in wanted]), rel=1e-12)


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_parses(name: str) -> None:
    sqlglot = pytest.importorskip("sqlglot")
    text = query(
        DIALECTS[name],
        "project.logs-2026.requests",
        input_tokens="usage tokens",
        output_tokens="completion_tokens",
        time="created_at",
        category="tier",
        where={"model": "o'brien\\"},
    )
    parsed = sqlglot.parse_one(text, read=SQLGLOT[name])
    assert [e.alias_or_name for e in parsed.selects] == list(RESULT)
    literals = {e.this for e in parsed.find_all(sqlglot.exp.Literal) if e.is_string}
    assert "o'brien\\" in literals


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda t: t.replace("law,0", "sum,0", 1), "part 'sum'"),
        (lambda t: "\n".join(line for line in t.splitlines() if not line.startswith("law")), "cut short"),
        (lambda t: "\n".join(t.splitlines()[:-3]), "whole result"),
        (lambda t: t + "law,0,chat,x,1,1,1,1\n", "not a row"),
        (lambda t: t + "law,0,chat,nan,1,1,1,1\n", "cannot have"),
        (lambda t: t + t.splitlines()[-1] + "\n", "by second"),
    ],
)
def test_a_result_cut_or_edited_is_refused(damage: Any, says: str, tmp_path: Path) -> None:
    result = summed(trace(tmp_path / "log.csv", 300), tmp_path / "sums.csv", time="timestamp", time_unit="s")
    result.write_text(damage(result.read_text()))
    with pytest.raises(InputError, match=says):
        read_workload(result)


def test_the_command() -> None:
    run = CliRunner().invoke(app, ["workload", "sql", "--dialect", "postgres", "--table", "logs", "--time", "at"])
    assert run.exit_code == 0
    assert "EXTRACT(EPOCH FROM at)" in run.stdout
    for bad in (["--dialect", "oracle"], ["--dialect", "duckdb", "--resolution", "0"]):
        assert CliRunner().invoke(app, ["workload", "sql", "--table", "logs", *bad]).exit_code != 0
