"""`calibrate --launch`: an engine is started with the plan's flags, measured, and gone afterwards whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from pace import at_its_pace

from planner.calibrate.launch import Launch, launched, plan_settings
from planner.calibrate.loads import OperatingRange
from planner.calibrate.run import calibrate
from planner.errors import CalibrationError, InputError
from planner.machine.engines import engine

PROGRAM = str(Path(__file__).parent / "fake_engine_program.py")


@pytest.fixture(autouse=True)
def _logs_in_a_folder_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys.modules["planner.calibrate.launch"], "EVERY_S", 0.05)


def launch(tmp_path: Path, *arguments: str, **options: object) -> Launch:
    """The fake program under the name of an engine's."""
    script = tmp_path / "vllm"
    folders = os.pathsep.join([str(Path(PROGRAM).parent), str(Path(__file__).parents[2])])
    script.write_text(f'#!/bin/sh\nPYTHONPATH={folders} exec {sys.executable} {PROGRAM} "$@"\n')
    script.chmod(0o755)
    given = {"settings": {"max_num_seqs": 48}, "wait_s": 120.0, **options}
    return Launch(engine("vllm"), "folder", "fake", command=(str(script),), arguments=arguments, **given)  # type: ignore[arg-type]


def gone(pid: int) -> bool:
    """Whether a process has ended, soon."""
    for _ in range(1200):
        try:
            if (Path("/proc") / str(pid) / "stat").read_text().split(") ")[1][0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_an_engine_is_started_measured_and_stopped(tmp_path: Path) -> None:
    child = tmp_path / "child"
    made = []

    def check(pace: float) -> None:
        made.append(calibrate(
            launch=launch(tmp_path, "--child", str(child), "--pace", str(pace)), max_seconds=1.0 * pace, force=True,
            reach=OperatingRange(max_input=256, max_output=24, max_concurrency=4),
        ).only)  # fmt: skip

    at_its_pace(check)
    one = made[-1]
    assert one.profile.engine == "vllm" and one.profile.kv_tokens == 70_000
    assert one.raw is not None and one.raw.header["token_budget"] == 2048 and one.raw.header["slots"] == 48
    assert any("was started here" in note for note in one.notes)
    assert gone(int(child.read_text()))


def test_flags_come_from_the_plan(tmp_path: Path) -> None:
    settings = {
        "max_model_len": 4096, "max_num_seqs": 64, "max_num_batched_tokens": 1024, "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.9, "kv_cache_dtype": "fp8", "batching": "mixed",
    }  # fmt: skip
    plan = tmp_path / "plan.yaml"
    pools = [
        {"name": "short", "settings": settings},
        {"name": "long", "settings": {**settings, "max_model_len": 32768}},
    ]
    plan.write_text(yaml.safe_dump({"kind": "fleetopt-plan", "pools": pools}))
    line = Launch(engine("sglang"), "m", "name", plan_settings(plan, "long")).line(9000)
    for flag, value in (
        ("--context-length", "32768"), ("--max-running-requests", "64"), ("--chunked-prefill-size", "1024"),
        ("--tp-size", "2"), ("--kv-cache-dtype", "fp8_e4m3"), ("--served-model-name", "name"), ("--model-path", "m"),
    ):  # fmt: skip
        assert line[line.index(flag) + 1] == value, flag
    with pytest.raises(InputError, match="the plan has 2 pools"):
        plan_settings(plan)
    with pytest.raises(InputError, match="no pool 'x'"):
        plan_settings(plan, "x")
    plan.write_text("kind: something")
    with pytest.raises(InputError, match="holds no plan"):
        plan_settings(plan)
    with pytest.raises(InputError, match="cannot be started from here"):
        Launch(replace(engine("vllm"), launch=()), "m").line(1)


def test_what_goes_wrong_at_the_start_is_said(tmp_path: Path) -> None:
    with (
        pytest.raises(CalibrationError, match="not installed here") as told,
        launched(Launch(engine("vllm"), "m", command=("no-such-engine",))),
    ):
        pass
    assert "--engine-command" in str(told.value)
    with (
        pytest.raises(CalibrationError, match=r"ended with exit code 1.*no room for the weights") as told,
        launched(launch(tmp_path, "--fault", "broken")),
    ):
        pass
    assert "secret" not in str(told.value)
    started = time.monotonic()
    with (
        pytest.raises(CalibrationError, match=r"did not answer within 0.3 s"),
        launched(launch(tmp_path, "--fault", "never", wait_s=0.3)),
    ):
        pass
    assert time.monotonic() - started < 55.0  # the program itself sleeps for a minute


def test_an_error_inside_stops_the_engine_and_a_deaf_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["planner.calibrate.launch"], "STOPPING_S", 0.2)
    child = tmp_path / "child"
    with pytest.raises(ZeroDivisionError), launched(launch(tmp_path, "--fault", "deaf", "--child", str(child))):
        raise ZeroDivisionError
    assert gone(int(child.read_text()))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped_stops_the_engine(tmp_path: Path, how: signal.Signals) -> None:
    """Interrupted: what was measured is fitted; terminated: nothing is written. The engine is gone both times."""
    child, busy, profile = (tmp_path / name for name in ("child", "busy", "p.yaml"))
    command = [
        sys.executable, "-m", "planner.cli.main", "calibrate", "--launch", "--engine", "vllm", "--model", "llama-3.1-8b",
        "--gpu", "l40s", "--engine-command", launch(tmp_path).command[0], "--engine-args", f"--child {child} --busy {busy}",
        "--max-seconds", "300", "--max-input", "128", "--max-output", "16", "--max-concurrency", "4", "--force", "-o", str(profile),
    ]  # fmt: skip
    # tests run in the background may have SIGINT ignored, which a child would inherit
    listening = signal.signal(signal.SIGINT, signal.default_int_handler)
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, listening)
    # a machine with other work may take long to start the two programs, and to fit; a signal before the first load is another test
    until = time.monotonic() + 240.0
    while not busy.exists() and time.monotonic() < until and run.poll() is None:
        time.sleep(0.05)
    assert busy.exists(), (
        run.communicate(timeout=120.0) if run.poll() is not None else "not one request in four minutes"
    )
    run.send_signal(how)
    _, told = run.communicate(timeout=120.0)
    assert gone(int(child.read_text())), told
    if how == signal.SIGINT:
        assert run.returncode == 0 and profile.exists() and "interrupted" in told, told
    else:
        assert run.returncode == 143 and not profile.exists(), told
