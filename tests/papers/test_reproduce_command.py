"""``fleetopt reproduce`` and ``fo.reproduce``: every format, and no paper that does not exist."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import planner as fo
from planner.cli.main import app
from planner.errors import InputError
from planner.papers import printed as papers

KEYS = ["paper", "quantity", "reading", "printed", "ours", "verdict", "reason"]


@pytest.fixture(scope="module", autouse=True)
def computed_once() -> Iterator[None]:
    """What is tested here is how the numbers are shown."""
    kept = cache(papers.reproduce)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(papers, "reproduce", lambda paper, progress=None: kept(paper))
        yield


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_machine_formats_agree() -> None:
    rows = fo.reproduce("wait").to_rows()
    as_json = json.loads(_run("wait", "--format", "json"))
    assert as_json["rows"] == rows and as_json["kind"] == "fleetopt-reproduction" and as_json["papers"] == ["wait"]
    assert sum(as_json["counts"].values()) == as_json["numbers"] == len({r["quantity"] for r in rows})
    assert as_json["by_paper"] == {"wait": as_json["counts"]}
    assert yaml.safe_load(_run("wait", "--format", "yaml")) == as_json
    table = list(csv.DictReader(io.StringIO(_run("wait", "--format", "csv"))))
    assert list(table[0]) == KEYS and table == rows


def test_tables_for_people() -> None:
    short = CliRunner().invoke(app, ["reproduce", "wait"])
    counts, told = short.stdout, short.stderr.strip()
    assert "printed numbers" in counts and "needs a GPU" in counts
    assert told.startswith("39 printed numbers: ") and told.endswith("each: --all")
    text = _run("wait", "--all")
    summary, table = text.split("\n\n")[:2]
    assert summary.strip() == counts.strip() and table.startswith("quantity")
    assert "0.4257" in text and "[1] the capacity" in text
    assert _run("wait", "--format", "markdown").startswith("| paper | printed numbers |")


def test_a_file_is_written(tmp_path: Path) -> None:
    target = tmp_path / "wait.csv"
    assert _run("wait", "--format", "csv", "-o", str(target)) == ""
    assert target.read_text().startswith("paper,quantity")


def test_unknown_paper() -> None:
    with pytest.raises(InputError, match="did you mean 'fleetopt'"):
        fo.reproduce("fleetop")
