"""What runs where others work: the steps of the GitHub Action as its shell runs them, the pre-commit hook, the image's recipe."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
QUESTION = """
cdf: azure
slo: 0.5
rate: {}
burst: poisson
pools: 1
method: occupancy
gpu: h100
tp: 1
token_budget: 8192
max_num_seqs: 256
"""


def shell(code: str, folder: Path, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A step as the runner starts it: bash that ends at the first failure."""
    given = os.environ | {"PATH": f"{path}:{os.environ['PATH']}", "RUNNER_TEMP": str(path)} | environment
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", code],
        cwd=folder,
        env=given,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def action() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """A folder for temporary files with a `fleetopt`, and a `gh` that keeps what it is asked."""
    folder = tmp_path / "runner"
    folder.mkdir()
    for name, does in {
        "fleetopt": f'exec "{sys.executable}" -m planner.cli.main "$@"',
        "gh": f'printf "%s\\n" "$@" > "{folder}/asked"; cp "${{@: -1}}" "{folder}/comment.md"',
    }.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{does}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def steps(action: dict[str, Any]) -> dict[str, Any]:
    return {step["name"]: step for step in action["runs"]["steps"]}


def values(step: dict[str, Any], action: dict[str, Any], **known: str) -> dict[str, str]:
    """The environment of a step: inputs at their defaults."""
    inputs = {name: str(told["default"]) for name, told in action["inputs"].items()} | known
    return {
        key: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: inputs[m[1]], value)
        for key, value in step["env"].items()
    }


def test_no_step_takes_text_from_outside_into_its_code(action: dict[str, Any]) -> None:
    assert all("${{" not in step["run"] and step["shell"] == "bash" for step in action["runs"]["steps"])


def test_it_comments_what_a_pull_request_changes(tmp_path: Path, runner: Path, action: dict[str, Any]) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    known = steps(action)

    def planned(rate: int) -> str:
        (repository / "fleet.yaml").write_text(QUESTION.format(rate), encoding="utf-8")
        files = {name: runner / name.lower() for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
        for file in files.values():
            file.write_text("", encoding="utf-8")
        step = known["Plan"]
        done = shell(
            step["run"], repository, runner, **values(step, action), **{name: str(file) for name, file in files.items()},
            PYTHONPATH=str(ROOT),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        text = (runner / "fleetopt.md").read_text(encoding="utf-8")
        assert text == files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")
        return files["GITHUB_OUTPUT"].read_text(encoding="utf-8") + text

    first = planned(20)
    assert (
        first.startswith("changed=true\n### fleetopt: `fleet.yaml`\n")
        and "**BUY" in first
        and " -> " not in first.partition("BUY")[0]
    )
    (runner / "plan.yaml").replace(repository / "plan.yaml")
    assert planned(20).startswith("changed=false\n")
    more = planned(400)
    assert more.startswith("changed=true\n")
    assert re.search(r"\*\*\d GPUs -> \d+ .*\(\+\d+%\)\*\*", more) and "| rate | 20.0 | 400.0 |" in more
    assert re.search(r"note: from the fleet there is: all keeps \d", more)

    step = known["Comment"]
    assert "pull_request" in step["if"]
    done = shell(step["run"], repository, runner, GH_TOKEN="none", REQUEST="https://example.org/pull/7")
    assert done.returncode == 0, done.stderr
    assert (runner / "asked").read_text(encoding="utf-8").split()[:3] == ["pr", "comment", "https://example.org/pull/7"]
    assert (runner / "comment.md").read_text(encoding="utf-8") in more


def test_a_question_that_is_wrong_fails_the_step(tmp_path: Path, runner: Path, action: dict[str, Any]) -> None:
    (tmp_path / "fleet.yaml").write_text("slo: 0.5\nrat: 3\n", encoding="utf-8")
    step = steps(action)["Plan"]
    nothing = {name: str(runner / name) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    done = shell(step["run"], tmp_path, runner, **values(step, action), **nothing, PYTHONPATH=str(ROOT))
    assert done.returncode == 3 and "rat: unknown option; did you mean 'rate'?" in done.stderr


def test_the_hook_keeps_the_plan_of_a_question(tmp_path: Path, runner: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert (
        re.search(hook["files"], "fleet.yaml")
        and not re.search(hook["files"], "other/fleet.yaml")
        and not hook["pass_filenames"]
    )
    (tmp_path / "fleet.yaml").write_text(QUESTION.format(20), encoding="utf-8")
    for _ in range(2):
        done = shell(shlex.join(shlex.split(hook["entry"])), tmp_path, runner, PYTHONPATH=str(ROOT))
        assert done.returncode == 0, done.stderr
        plan = (tmp_path / "plan.yaml").read_bytes()
    assert plan == (tmp_path / "plan.yaml").read_bytes() and b"kind: fleetopt-plan" in plan


def test_the_image_is_not_root_and_copies_what_is_there() -> None:
    text = re.sub(r"^#.*\n", "", (ROOT / "Containerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    bases = re.findall(r"^ARG PYTHON=(\S+)", text, re.MULTILINE)
    assert len(bases) == 1 and re.search(r":\d+\.\d+-", bases[0]) and "latest" not in text
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE) == ["10001"]
    assert text.index("\nUSER ") > text.rindex("\nRUN ") and text.index("\nUSER ") < text.index("\nENTRYPOINT ")
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line]
    assert not [name for names in copied for name in names if not (ROOT / name).exists()]
    # what the build reads is there: the hook, the readme and licence of the metadata, what is packed beside the package
    wanted = {
        "pyproject.toml",
        "hatch_build.py",
        "README.md",
        "LICENSE",
        "fleetopt.py",
        "planner",
        "workloads",
        "docs/fleetopt.1",
    }
    assert {name for names in copied for name in names} == wanted
