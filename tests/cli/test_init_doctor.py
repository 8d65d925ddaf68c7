"""`init` writes files that `plan` reads, `doctor` says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import planner as fo
from planner.cli import doctor
from planner.cli.init import QUESTIONS, answers, as_command, starter_file
from planner.cli.main import app
from planner.question.files import load_question


def test_a_file_from_flags_is_a_question(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    flags = ["--cdf", "lmsys", "--rate", "50", "--gpu", "h200", "--gpu", "h100", "--slo", "400ms", "--tpot", "40ms"]
    run = CliRunner().invoke(app, ["init", *flags, "-o", str(file)])
    assert run.exit_code == 0, run.output
    inputs = load_question(file).inputs()
    assert (inputs.cdf, inputs.rate, inputs.gpu) == ("lmsys", 50.0, ("h200", "h100"))
    assert [p.limit_s for p in inputs.promises] == [0.4, 0.04]
    assert "twice: {rate: 100}" in file.read_text()


def test_a_file_that_exists_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("mine")
    run = CliRunner().invoke(app, ["init", "--slo", "1", "-o", str(file)])
    assert isinstance(run.exception, fo.InputError)
    assert file.read_text() == "mine"


def test_without_a_terminal_the_defaults_answer(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    assert CliRunner().invoke(app, ["init", "-o", str(file)]).exit_code == 0
    assert load_question(file).inputs().cdf == "azure"


@pytest.mark.parametrize("traffic", ["lmsys", "1024/256", "traces/mine.csv"])
def test_every_answer_makes_a_file(traffic: str, tmp_path: Path) -> None:
    told = (
        answers("cdf", traffic) | answers("model", "qwen3-32b") | answers("gpu", "h200, h100") | answers("slo", "300ms")
    )
    file = tmp_path / "a.yaml"
    file.write_text(starter_file(told))
    assert load_question(file).inputs().model == "qwen3-32b"
    assert {q for q, _, _ in QUESTIONS} == {"cdf", "model", "gpu", "slo"}
    assert as_command(told).endswith("--model qwen3-32b --gpu h200 --gpu h100 --slo 300ms")


def test_what_is_commented_out_can_be_commented_in() -> None:
    lines = starter_file({"slo": "1s"}).splitlines()
    entries = [
        line.removeprefix("# ") for line in lines if line.startswith("# ") and line.split(":")[0][2:].isidentifier()
    ]
    valued = [e for e in entries if not e.endswith(":") and not e.startswith(("scenarios", "auto", "colocated"))]
    assert len(valued) >= 5
    options = {k: v for e in valued for k, v in yaml.safe_load(e).items()}
    fo.plan(
        workload="azure",
        slo=1.0,
        rate=5,
        method="occupancy",
        **{k: v for k, v in options.items() if k not in ("pools", "shape")},
    )


def test_wrong_answers_are_told() -> None:
    with pytest.raises(fo.InputError, match="slo"):
        starter_file({"slo": "soon"})


def test_the_doctor_finds_this_installation_well() -> None:
    run = CliRunner().invoke(app, ["doctor", "--format", "json"])
    assert run.exit_code == 0, run.output
    found = doctor.checkup()
    assert found.well
    assert {"python", "numpy", "prices", "plan"} <= {f.what for f in found.findings}


def test_the_doctor_names_a_broken_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("gpu: 3")
    monkeypatch.setattr("planner.catalog.profiles.user_directory", lambda: tmp_path)
    monkeypatch.setattr(doctor, "_plan", lambda: iter(()))
    found = doctor.checkup()
    assert not found.well
    assert any("mine.yaml" in f.told for f in found.findings if f.state == "bad")


def test_the_doctor_names_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda p: None if p in ("scipy", "torch") else version(p))
    states = {f.what: f.state for look in (doctor._packages, doctor._extras) for f in look()}
    assert states["scipy"] == "bad" and states["extra gpu"] == "worth knowing"
