"""``fleetopt plan`` as a user meets it: answers, formats, files, and one clear line for every mistake."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.ask import choices
from planner.cli.main import run

pytestmark = pytest.mark.usefixtures("few_replayed")


def fleetopt(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command as the shell runs it, without the price of a new interpreter."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run(list(arguments))
        except SystemExit as end:
            code = end.code
    return subprocess.CompletedProcess(
        arguments, int(code or 0) if not isinstance(code, str) else 1, out.getvalue(), err.getvalue()
    )


def test_the_installed_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "planner.cli.main", "plan", "--cdf", "azure.csv", "--slo", "10ms"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (4, "")


def test_the_main_job_needs_no_other_flag(tmp_path: Path) -> None:
    done = fleetopt("plan", "--cdf", "azure.csv", "--slo", "0.5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "P99 TTFT <= 500 ms" in done.stdout
    assert "are estimated" in done.stdout
    assert done.stderr == ""
    assert not list(tmp_path.iterdir())


def test_the_answer_stands_before_other_choices_are_sized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sized, before = choices.choices_of, list[str]()

    def watched(*asked: Any, **more: Any) -> Any:
        assert isinstance(sys.stdout, io.StringIO)
        before.append(sys.stdout.getvalue())
        return sized(*asked, **more)

    monkeypatch.delenv("FLEETOPT_NO_OPTIONS", raising=False)

    monkeypatch.setattr(choices, "choices_of", watched)
    base = ("plan", "--slo", "4", "--method", "mgc", "--kv", "reserved", "--rate", "50", "--pools", "1", "--tp", "1")
    page = fleetopt(*base, cwd=tmp_path).stdout
    (first,) = before
    assert "BUY  " in first and page.startswith(first) and page.count("BUY  ") == 1
    assert page.removeprefix(first).startswith("\n") and "\n\n\n" not in page
    # what is written elsewhere, or at once, is written whole
    assert fleetopt(*base, "-o", "plan.yaml", cwd=tmp_path).stdout.splitlines() == page.splitlines()
    assert before[1:] == [""]


def test_formats_and_output_files(tmp_path: Path) -> None:
    base = ("plan", "--slo", "0.5", "--method", "occupancy", "--burst", "poisson", "--rate", "50", "--pools", "1")
    data = json.loads(fleetopt(*base, "--format", "json", cwd=tmp_path).stdout)
    assert data["kind"] == "fleetopt-plan"
    assert yaml.safe_load(fleetopt(*base, "--format", "yaml", cwd=tmp_path).stdout)["pools"] == data["pools"]
    assert fleetopt(*base, "--format", "csv", cwd=tmp_path).stdout.startswith("pool,low_tokens,high_tokens")
    assert "**BUY  " in fleetopt(*base, "--format", "markdown", cwd=tmp_path).stdout
    started = fleetopt(*base, "--format", "vllm", cwd=tmp_path).stdout
    assert "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 1" in started
    done = fleetopt(*base, "--format", "json", "-o", "plan.json", cwd=tmp_path)
    assert "BUY" in done.stdout
    assert json.loads((tmp_path / "plan.json").read_text()) == data
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


BAD_FILES = {
    "empty.csv": ("", "empty"),
    "header.csv": ("tokens,cdf\n", "header.csv"),
    "decreasing.csv": ("tokens,cdf\n100,0.5\n200,0.4\n300,1\n", "decreasing.csv:3"),
    "short.csv": ("tokens,cdf\n100,0.5\n200,0.9\n", "short.csv"),
    "negative.csv": ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,-5,10\n", "negative.csv:2"),
    "fraction.csv": ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,5.5x,10\n", "fraction.csv:2"),
    "nan.csv": ("tokens,cdf\n100,nan\n200,1\n", "nan.csv:2"),
    "columns.csv": ("tokens,cdf\n100,0.5,7\n200,1\n", "columns.csv:2"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, name: str) -> None:
    content, expected = BAD_FILES[name]
    (tmp_path / name).write_text(content)
    done = fleetopt("plan", "--cdf", name, "--slo", "0.5", "--rate", "1", "-o", "plan.json", cwd=tmp_path)
    assert done.returncode == 3, (done.returncode, done.stdout, done.stderr)
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_an_impossible_promise_says_what_binds_and_what_would_help(tmp_path: Path) -> None:
    done = fleetopt("plan", "--slo", "10ms", cwd=tmp_path)
    assert done.returncode == 4
    assert "P99 TTFT <= 10 ms" in done.stderr
    assert "relax P99 TTFT to" in done.stderr


def test_wrong_usage_exits_with_two(tmp_path: Path) -> None:
    assert fleetopt("plan", "--no-such-option", cwd=tmp_path).returncode == 2


def test_a_request_longer_than_the_model_s_context(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("tokens,cdf,input_tokens,output_tokens\n200000,1,190000,10000\n")
    done = fleetopt("plan", "--cdf", "long.csv", "--slo", "9", "--rate", "1", "--model", "llama-3.1-8b", cwd=tmp_path)
    assert done.returncode == 3
    assert "131,072" in done.stderr
