"""The examples run and their answers make sense; so do the commands on the example configuration."""

from __future__ import annotations

import csv
import io
import json
import re
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli.main import app

pytestmark = pytest.mark.usefixtures("fewer_replayed")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CONFIG = EXAMPLES / "fleet.yaml"
SCENARIOS = ("launch", "cheaper gpus", "mixed gpus", "prefix cache", "strict", "one spare")


def _run(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def _command(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result.stdout


def test_every_example_is_listed_and_tested() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert not [p.name for p in EXAMPLES.iterdir() if p.suffix in (".py", ".yaml") and f"({p.name})" not in listed]
    tests = "".join(p.read_text(encoding="utf-8") for p in EXAMPLES.parent.glob("tests/**/test_*.py"))
    assert not [p.name for p in EXAMPLES.glob("*.py") if p.stem not in tests]


def test_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    text = _run("what_if", capsys)
    costs = {
        name: float(usd) for name, usd in re.findall(r"^  (\w[\w ]*?)  +.*?([\d.]+) USD/hour$", text, re.MULTILINE)
    }
    assert costs["launch"] > costs["one spare"] > costs["prefix cache"]
    assert re.search(r"400 requests/s: +\d+ x", text)


def test_deploy(capsys: pytest.CaptureFixture[str]) -> None:
    text = _run("deploy", capsys)
    names = ("base/kustomization.yaml", "base/kubernetes.yaml", "overlays/plan/kustomization.yaml", "acceptance.yaml")
    assert all(re.search(rf"^{name}: [1-9]\d* lines", text, re.MULTILINE) for name in names)
    assert re.search(r"- a rollout of all needs no spare GPU and takes up to", text) and re.search(
        r"- 1,\d{3} requests in 20 s, sent by vllm to http://fleetopt.serving$", text, re.MULTILINE
    )


def test_growth(capsys: pytest.CaptureFixture[str]) -> None:
    text = _run("growth", capsys)
    gpus = [int(n) for n in re.findall(r"^[\d-]{10} +\d+ +(\d+) ", text, re.MULTILINE)]
    assert len(gpus) == 12 and gpus == sorted(gpus) and gpus[-1] > gpus[0]
    phased, at_once = (float(v.replace(",", "")) for v in re.findall(r"([\d,]+) USD", text.splitlines()[-1]))
    assert phased < at_once


def test_compare_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    text = _run("compare_gpus", capsys)
    rows = re.findall(r"^(\S+) +(\d+)  \((\d+)-(\d+)\) +([\d.]+) ", text, re.MULTILINE)
    assert len(rows) == 4
    assert all(int(low) <= int(n) <= int(high) for _, n, low, high, _ in rows)
    cheapest = min(rows, key=lambda row: float(row[4]))[0]
    assert text.splitlines()[-1] == f"cheapest: {cheapest}"


def test_prefix_cache(capsys: pytest.CaptureFixture[str]) -> None:
    text = _run("prefix_cache", capsys)
    rows = re.findall(r"^ +\d+% +([\d.]+) s +(\d+) ", text, re.MULTILINE)
    latencies, gpus = [float(t) for t, _ in rows], [int(n) for _, n in rows]
    assert latencies == sorted(latencies, reverse=True) and gpus == sorted(gpus, reverse=True)
    assert gpus[-1] < gpus[0]


def test_availability(capsys: pytest.CaptureFixture[str]) -> None:
    text = _run("availability", capsys)
    found = re.search(r"promise: (\d+) replicas", text)
    assert found is not None
    needed = int(found.group(1))
    assert f"N + 1: {needed + 1} replicas" in text and f"N + 2: {needed + 2} replicas" in text
    spares = [int(n) for n in re.findall(r"(\d+) spare$", text, re.MULTILINE)]
    assert len(spares) == 3 and spares == sorted(spares) and spares[0] >= 1


@pytest.fixture
def calm(tmp_path: Path) -> str:
    """The configuration without the bursts of its trace, which take most of the time and change nothing of what is tested."""
    copy = tmp_path / "calm.yaml"
    copy.write_text(CONFIG.read_text(encoding="utf-8").replace("method:", "burst: poisson\nmethod:"), encoding="utf-8")
    return str(copy)


def test_the_configuration_and_its_scenarios() -> None:
    base = json.loads(_command("plan", "--config", str(CONFIG), "--format", "json"))
    spare = json.loads(_command("plan", "--config", str(CONFIG), "--scenario", "one spare", "--format", "json"))
    assert spare["replicas"] == base["replicas"] + len(base["pools"])
    assert all(p["spares"] == 1 for p in spare["pools"])
    # an option beats the file
    more = json.loads(_command("plan", "--config", str(CONFIG), "--rate", "400", "--format", "json"))
    assert more["arrival_rate_per_s"] == 400.0 and more["replicas"] > base["replicas"]


def test_all_scenarios_in_one_table(calm: str) -> None:
    rows = list(csv.DictReader(io.StringIO(_command("what-if", calm, "--scenario", "all", "--format", "csv"))))
    assert len(rows) == len(SCENARIOS)
    assert all(row["feasible"] == "True" or row["reason"] for row in rows)


def test_a_plan_is_kept_and_asked_again(tmp_path: Path, calm: str) -> None:
    plan = tmp_path / "plan.yaml"
    _command("plan", "--config", calm, "--format", "yaml", "-o", str(plan))
    rows = list(csv.DictReader(io.StringIO(_command("evaluate", str(plan), "--rate", "200,2000", "--format", "csv"))))
    assert {row["holds"] for row in rows if row["rate_per_s"] == "200.0"} == {"True"}
    assert "False" in {row["holds"] for row in rows if row["rate_per_s"] == "2000.0"}
    hours = json.loads(_command("schedule", str(plan), "--hours", "servegen-m-small", "--format", "json"))
    assert hours["cost_usd"] <= hours["static_cost_usd"]


def test_the_services() -> None:
    found = json.loads(_command("plan", "--services", str(EXAMPLES / "services.yaml"), "--format", "json"))
    assert not found["unserved"] and 0.0 < found["saving"] < 1.0
    assert found["gpus"] == sum(s["gpus"] for s in found["shared"]) <= 64
