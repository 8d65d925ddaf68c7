"""What shells are told: words to complete, without the start of a command; the man page."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planner.catalog.load import gpus, models
from planner.catalog.profiles import profile_names
from planner.cli.commands import COMMANDS
from planner.cli.completion import TABLE
from planner.question.options import OPTIONS
from planner.workload.resolve import shipped_names
from tests.test_docs import _script

START = "import sys; from planner.cli.completion import run; run()"
MOST_CPU_S = 0.15


def asked(shell: str, line: str, action: str = "get-args") -> subprocess.CompletedProcess[str]:
    """What `fleetopt` says to a shell that wants the last word of a line completed."""
    words = line.split(" ")
    given = (
        {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        if shell == "bash"
        else {"_TYPER_COMPLETE_ARGS": line} | ({"_TYPER_COMPLETE_FISH_ACTION": action} if shell == "fish" else {})
    )
    environment = {"PATH": "", "HOME": "/nowhere", "_FLEETOPT_COMPLETE": f"complete_{shell}", **given}
    return subprocess.run(
        [sys.executable, "-c", START], capture_output=True, text=True, env=environment, cwd=TABLE.parents[2]
    )


def told(shell: str, line: str) -> list[str]:
    """The words offered."""
    done = asked(shell, line)
    assert done.returncode == 0 and not done.stderr, done.stderr
    if shell == "zsh":
        return re.findall(r'"([^"]+)"(?::"(?:[^"]|"")*")?(?:\n|\))', done.stdout)
    return [row.partition("\t")[0] for row in done.stdout.splitlines() if row]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_is_asked_and_answered_as_it_is_used_to(shell: str) -> None:
    assert told(shell, "fleetopt ") == [*COMMANDS]
    assert told(shell, "fleetopt plan -m qwen3-3") == [name for name in sorted(models()) if name.startswith("qwen3-3")]


def test_commands_options_and_values() -> None:
    assert told("bash", "fleetopt gp") == ["gpu"] and told("bash", "fleetopt gpu ") == ["list", "show"]
    assert told("bash", "fleetopt plan --rou") == ["--routing"]
    assert told("bash", "fleetopt plan --gpu ") == [*gpus()]
    assert told("bash", "fleetopt plan --gpu h100 --model ") == sorted(models())
    assert told("bash", "fleetopt plan --cdf ") == [*shipped_names()]
    assert told("bash", "fleetopt workload show az") == [name for name in shipped_names() if name.startswith("az")]
    assert {*told("bash", "fleetopt profile show ")} <= {*profile_names()}
    assert told("bash", "fleetopt plan --routing ") == [*OPTIONS["routing"].choices]
    assert told("bash", "fleetopt plan --set max_q") == ["max_queue=", "max_queued_tokens="]
    assert told("bash", "fleetopt deploy plan.yaml --to ks") == ["kserve"]
    assert told("bash", "fleetopt schedule plan.yaml --format ke") == ["keda"]
    # a flag takes no value, and one whose value may be left out is followed by options
    assert "--rate" in told("bash", "fleetopt plan --law --ra")


def test_where_nothing_is_known_files_are_offered() -> None:
    assert asked("bash", "fleetopt evaluate ").stdout.strip() == ""
    assert asked("zsh", "fleetopt evaluate ").stdout.strip() == "_files"
    assert [asked("fish", f"fleetopt {line}", "is-args").returncode for line in ("evaluate ", "plan --gpu ")] == [1, 0]


def test_a_number_is_not_completed_with_words_of_options() -> None:
    assert told("bash", "fleetopt plan --rate ") == []


def test_it_takes_little_time_and_loads_nothing_heavy() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = ("fleetopt plan --gpu ", "fleetopt plan --model ", "fleetopt plan --cdf ", "fleetopt plan --", "fleetopt ")
    for line in lines:
        asked("bash", line)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / len(lines) < MOST_CPU_S
    code = (
        "import os, sys\n"
        "os.environ |= dict(_FLEETOPT_COMPLETE='complete_bash', COMP_WORDS='fleetopt plan --gpu ', COMP_CWORD='3')\n"
        "from planner.cli.completion import run; run(); print('MODULES', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.rpartition("MODULES")[2].split()
    assert not {"typer", "numpy", "yaml", "planner.question.options"} & {*loaded}


def test_bash_completes_with_the_framework_s_own_script(tmp_path: Path) -> None:
    """The script that ``--install-completion`` installs, run by bash itself."""
    from typer._completion_shared import get_completion_script

    program = tmp_path / "fleetopt"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{START}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    script = get_completion_script(prog_name="fleetopt", complete_var="_FLEETOPT_COMPLETE", shell="bash")
    words = "COMP_WORDS=(fleetopt plan --gpu h100-80gb-); COMP_CWORD=3"
    code = f'{script}\n{words}\n_fleetopt_completion {program}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, cwd=TABLE.parents[2], check=True)
    assert done.stdout.split() == ["h100-80gb-pcie"]


def test_every_option_of_every_command_is_in_the_table() -> None:
    table, made = json.loads(TABLE.read_text(encoding="utf-8")), _script("cli_docs")
    for path, command in made.commands(made.get_command(made.app), ()):
        entry = table
        for word in path:
            entry = entry["commands"][word]
        shown = {
            o
            for p in command.params
            if p.param_type_name == "option" and not p.hidden
            for o in (*p.opts, *p.secondary_opts)
        }
        assert shown <= {*entry["options"]}, path


def test_the_man_page_has_every_command_and_is_set_without_a_complaint() -> None:
    page = _script("cli_docs").MAN
    text = page.read_text(encoding="utf-8")
    assert text.startswith(".TH FLEETOPT 1 ") and all(
        f".SS fleetopt {name.replace('-', chr(92) + '-')}" in text for name in COMMANDS
    )
    known = {".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".I"}
    assert {line.split()[0] for line in text.splitlines() if line.startswith((".", "'"))} == known
    if groff := shutil.which("groff"):
        done = subprocess.run(
            [groff, "-man", "-ww", "-z", "-K", "utf8", str(page)], capture_output=True, text=True, check=True
        )
        assert not done.stderr
