"""Plans of anybody's making: what they name outside their folder, addresses, and names that would move a terminal's cursor."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import planner as fo
from planner.catalog.load import FOLDER
from planner.cli.main import app
from planner.cli.output import emit
from planner.question.files import load_question

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances")

QUICK: dict[str, Any] = {"slo": 1.0, "method": "occupancy", "pools": 1, "tp": 1, "token_budget": 2048}


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace outside the folder of the plan, and outside that of whoever asks."""
    rng = np.random.Generator(np.random.PCG64(1))
    for name in ("traces", "plans", "here"):
        (tmp_path / name).mkdir()
    file = tmp_path / "traces" / "day.csv"
    times = np.cumsum(rng.exponential(0.125, 3000))
    lengths = zip(times, rng.integers(50, 1500, 3000), rng.integers(5, 300, 3000), strict=True)
    file.write_text("timestamp,input_tokens,output_tokens\n" + "".join(f"{t:.3f},{i},{o}\n" for t, i, o in lengths))
    monkeypatch.chdir(tmp_path / "here")
    return file


def written(folder: Path, plan: dict[str, Any]) -> Path:
    file = folder / "plan.json"
    file.write_text(json.dumps(plan))
    return file


@pytest.mark.parametrize("shape", [{}, {"osl_scale": 1.5, "drop_longer_than": 1400}])
def test_traffic_elsewhere_is_what_the_plan_was_made_of_or_nothing(trace: Path, shape: dict[str, Any]) -> None:
    made = fo.plan(str(trace), **QUICK, **shape).to_dict()
    plans = trace.parents[1] / "plans"
    file = written(plans, made)
    traffic = load_question(file).traffic(str(trace))
    assert traffic.mean_input > 0.0
    # another file in its place: refused without a word of it, and so is what is no traffic at all
    kept = trace.read_text()
    for text in (kept.replace("\n1", "\n2"), "PASSWORD=hunter2\n" * 20):
        trace.write_text(text)
        for name in (str(trace), "../traces/day.csv"):
            made["inputs"]["cdf"] = name
            with pytest.raises(fo.InputError, match="outside its folder, is not the traffic it was made of") as told:
                fo.evaluate(written(plans, copy.deepcopy(made)))
            assert "hunter2" not in str(told.value)
    # in its own folder, or where the user is, traffic may change: the plan is asked about it
    trace.write_text(kept.replace("\n1", "\n2"))
    for place in (plans, Path.cwd()):
        made["inputs"]["cdf"] = "mine.csv"
        (place / "mine.csv").write_text(trace.read_text())
        assert fo.evaluate(written(plans, made)).to_rows()
        (place / "mine.csv").unlink()


def test_no_address_is_asked_because_a_plan_names_it(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fo.plan("azure", rate=8, **QUICK).to_dict()
    asked: list[str] = []
    monkeypatch.setattr("planner.workload.resolve.fetched", lambda address: asked.append(address) or trace)
    for address in (
        "http://127.0.0.1:9/x.csv",
        "s3://logs/day.csv",
        "HTTPS://me:secret@host/x.csv?key=k",
        "file:///etc/passwd",
    ):
        made["inputs"]["cdf"] = address
        file = written(trace.parents[1] / "plans", made)
        with pytest.raises(fo.InputError, match="is not asked unless told") as told:
            fo.evaluate(file)
        assert not asked and "secret" not in str(told.value)
        # told: it is
        assert fo.evaluate(file, workload=address).to_rows() and asked.pop() == address


def test_a_plan_of_what_cannot_be_read_again_carries_its_traffic(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an address it was told, and of a pipe that a shell has opened: asked again without either."""
    monkeypatch.setattr("planner.workload.resolve.fetched", lambda address: trace)
    file = written(trace.parents[1] / "plans", fo.plan("s3://logs/day.csv", **QUICK).to_dict())
    opened, end = os.pipe()
    with os.fdopen(end, "w") as shell:
        shell.write("".join(trace.read_text().splitlines(True)[:1500]))
    piped = fo.plan(f"/dev/fd/{opened}", **QUICK, law=True)
    os.close(opened)
    trace.unlink()
    assert fo.evaluate(file).to_rows()
    assert fo.evaluate(written(trace.parents[1] / "plans", piped.to_dict())).to_rows()


ESC = "\x1b[31mred\x1b[0m\x07\u202e"


@cache
def azure() -> dict[str, Any]:
    return json.loads(json.dumps(fo.plan("azure", rate=8, **QUICK).to_dict()))


def texts(of: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where texts stand in a document, of lists in the first two."""
    if isinstance(of, str):
        yield path
    elif isinstance(of, (dict, list)):
        for key, inner in of.items() if isinstance(of, dict) else enumerate(of[:2]):
            yield from texts(inner, (*path, key))


def hostile(document: Any, path: tuple[Any, ...]) -> Any:
    """The document with a text there that would colour a terminal, ring its bell and turn its words."""
    found = copy.deepcopy(document)
    at = found
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] += ESC
    return found


def shown(*arguments: str) -> str:
    run = CliRunner().invoke(app, list(arguments))
    assert run.exception is None or isinstance(run.exception, (SystemExit, fo.InputError)), run.exception
    return run.output


def refused(text: str) -> bool:
    return any(not (c.isprintable() or c in "\n\t") for c in text)


def test_names_in_a_plan_do_not_reach_a_terminal_as_they_are(tmp_path: Path) -> None:
    for path in texts(azure()):
        if path[0] in ("inputs", "workload") or (path[:2] == ("pools", 0) and len(path) == 3):
            file = written(tmp_path, hostile(azure(), path))
            assert not refused(shown("evaluate", str(file))), path
    file = written(tmp_path, hostile(azure(), ("pools", 0, "name")))
    for command in (
        ["explain"],
        ["options"],
        ["deploy", "--to", "k8s"],
        ["evaluate", "--format", "csv"],
        ["evaluate", "--format", "markdown"],
    ):
        assert not refused(shown(command[0], str(file), *command[1:])), command


def test_names_in_profiles_workloads_and_prices_do_not_either(tmp_path: Path) -> None:
    profile = yaml.safe_load((FOLDER / "profiles" / "llama-3-8b-a100-80gb-tp1.yaml").read_text())
    for path in texts(profile):
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(hostile(profile, path)))
        assert not refused(shown("profile", "show", str(tmp_path / "p.yaml"))), path
    (tmp_path / "w.csv").write_text(
        f"# name: x{ESC}\n# source: a{ESC}\ninput_tokens,output_tokens,category\n100,20,c{ESC}\n200,30,d\n"
    )
    rows = [{"input_tokens": 100, "output_tokens": 20 + k, "category": f"c{ESC}"} for k in range(50)]
    (tmp_path / "w.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / f"{ESC}.csv").write_text("input_tokens,output_tokens\n100,20\n200,30\n")
    for name in ("w.csv", "w.jsonl", f"{ESC}.csv"):
        assert not refused(shown("workload", "show", str(tmp_path / name))), name
    (tmp_path / "prices.csv").write_text(
        f"gpu,vendor,region,term,usd_per_gpu_hour,day\nh100,e{ESC},us{ESC},on-demand,2.5,2026-01-01\n"
    )
    assert not refused(shown("prices", "import", str(tmp_path / "prices.csv")))


def test_nor_do_those_in_rules_answers_and_configurations(tmp_path: Path) -> None:
    plan, file = written(tmp_path, azure()), tmp_path / "f.json"
    metric = {"type": "Pods", "pods": {"metric": {"name": ESC}, "target": {"value": ESC}}}
    spec = {"maxReplicas": ESC, "metrics": [metric], "scaleTargetRef": {"name": ESC}}
    series = {"metric": {"__name__": f"a{ESC}", "pod": ESC}, "values": [[1, ESC]]}
    asked = {"slo": 1, "cdf": "azure", "rate": 5, "pools": 1, "method": "occupancy"}
    for document, command in (
        ({"kind": "HorizontalPodAutoscaler", "spec": spec}, ["autoscale", str(plan), "--policy"]),
        ({"status": ESC, "error": ESC, "data": 3}, ["check", str(plan), "-p"]),
        ({"data": {"result": [series]}}, ["check", str(plan), "-p"]),
        ({**asked, f"k{ESC}": 1}, ["plan", "--config"]),
        ({**asked, "scenarios": {f"s{ESC}": {"rate": 6}}}, ["what-if", "--scenario", "all"]),
        ({**asked, "classes": {f"s{ESC}": {"rate": 6}}}, ["plan", "--config"]),
        (
            {"model_type": ESC, "architectures": [ESC]},
            ["plan", "--cdf", "azure", "--rate", "5", "--slo", "1", "--model"],
        ),
    ):
        file.write_text(json.dumps(document))
        assert not refused(shown(*command, str(file))), command
    file.write_text(f"# name {ESC}\n" + "1\n" * 24)
    assert not refused(shown("schedule", str(plan), "--hours", str(file)))


@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_printed_is_escaped_but_for_our_own_bold(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    emit("\033[1mname\033[0m\tx\x9b2J\x1b[2J\x7f\u2066\r\n", None)
    bold = ("\033[1m", "\033[0m") if terminal else ("\\x1b[1m", "\\x1b[0m")
    assert capsys.readouterr().out == f"{bold[0]}name{bold[1]}\tx\\x9b2J\\x1b[2J\\x7f\\u2066\\r\n"
