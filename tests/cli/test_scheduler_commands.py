"""The commands `stability`, `batching`, `wait`: options shared with `plan`, formats, what goes where."""

from __future__ import annotations

import csv
import io
import json

import pytest
import yaml
from typer.testing import CliRunner

from planner.cli.main import app
from planner.errors import InputError

pytestmark = pytest.mark.usefixtures("fewer_replayed")

COMMANDS = ("stability", "batching", "wait")
QUESTION = ("--cdf", "azure", "--rate", "20", "--gpu", "h100", "--model", "llama-3.1-8b")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_format(command: str) -> None:
    runner = CliRunner()
    texts = {}
    for form in ("table", "json", "yaml", "csv", "markdown"):
        done = runner.invoke(app, [command, *QUESTION, "--format", form])
        assert done.exit_code == 0, done.output
        texts[form] = done.stdout
        assert "assumed: " in done.stderr
    data = json.loads(texts["json"])
    assert data["schema_version"] == 1
    assert data["about"]["workload"] == "azure"
    assert data == yaml.safe_load(texts["yaml"])
    assert len(list(csv.DictReader(io.StringIO(texts["csv"])))) >= 1
    assert "| :-- |" in texts["markdown"]
    assert "requests/s" in texts["table"]


@pytest.mark.parametrize("command", COMMANDS)
def test_options_and_help(command: str) -> None:
    runner = CliRunner()
    shown = runner.invoke(app, [command, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    for name in ("--cdf", "--gpu", "--model", "--profile", "--rate", "--tp", "--format", "--output"):
        assert name in shown
    done = runner.invoke(app, [command, "--profile", "fleetopt-paper", "--rate", "20"])
    assert done.exit_code == 0
    assert "a100-80gb x TP8" in done.output


def test_batching_says_what_was_not_measured() -> None:
    done = CliRunner().invoke(app, ["batching", *QUESTION])
    assert "NOT MEASURED" in done.stdout
    assert "run: fleetopt calibrate --gpu h100-80gb" in done.stdout


def test_file_output_and_bad_input(tmp_path: object) -> None:
    runner = CliRunner()
    target = f"{tmp_path}/out.json"
    done = runner.invoke(app, ["stability", *QUESTION, "-f", "json", "-o", target])
    assert done.stdout == ""
    with open(target, encoding="utf-8") as file:
        assert json.load(file)["verdict"] == "stable"
    wrong = runner.invoke(app, ["wait", *QUESTION, "-f", "tabel"])
    assert isinstance(wrong.exception, InputError)
    assert "did you mean" in str(wrong.exception)
    wrong = runner.invoke(app, ["stability", "--gpu", "h10"])
    assert isinstance(wrong.exception, InputError)
