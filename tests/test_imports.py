"""What starting costs: the modules each command may load. The arrows between packages are held by import-linter."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli.commands import BESIDE, COMMANDS, Built
from planner.cli.sign import SLOW
from tests.conftest import FEW

ROOT = Path(__file__).resolve().parents[1]

HEAVY = ("numpy", "scipy", "pandas", "torch", "matplotlib", "mpmath", "yaml", "rich.table")


def _loaded(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES")[2].split())


def test_help_loads_no_numerics() -> None:
    modules = _loaded("from planner.cli.main import app\ntry:\n    app(['--help'])\nexcept SystemExit:\n    pass")
    assert not [m for m in HEAVY if m != "rich.table" and m in modules]


def test_importing_the_package_loads_no_numerics() -> None:
    modules = _loaded("import planner")
    assert not [m for m in HEAVY if m in modules]


@pytest.mark.parametrize(
    "extra",
    [
        [],
        ["--rate", "6", "--pools", "1", "--tp", "1", "--token-budget", "2048"],
        ["--tpot", "50ms", "--pools", "1"],
        ["--method", "mgc", "--confidence", "50%"],
    ],
)
def test_plan_loads_only_what_it_needs(extra: list[str]) -> None:
    # of a tenth of the requests: what is loaded does not depend on their number
    few = "".join(
        f"import planner.{where.rpartition('.')[0]}\nplanner.{where} = {number}\n" for where, number in FEW.items()
    )
    code = (
        f"{few}from planner.cli.main import app\n"
        f"try:\n    app({['plan', '--cdf', 'azure.csv', '--slo', '0.5', *extra]!r})\nexcept SystemExit as e:\n    assert not e.code"
    )
    modules = _loaded(code)
    banned = ("scipy.stats", "scipy.optimize", "pandas", "torch", "matplotlib", "mpmath")
    assert not [m for m in banned if m in modules]


STARTED = """
import os, sys
os.environ["TERM"], os.environ["COLUMNS"] = {term!r}, "100"
here = set(sys.modules)

class Screen:
    def __init__(self):
        self.said, self.loaded = "", None
    def isatty(self):
        return {terminal}
    def write(self, text):
        if self.loaded is None:
            self.loaded = set(sys.modules) - here
        self.said += text
    def flush(self):
        pass

sys.stderr, sys.argv = screen, _ = Screen(), ["fleetopt", {words}]
from planner.cli.completion import run
try:
    run()
except SystemExit:
    pass
sys.stderr = sys.__stderr__
print("SAID", repr([screen.said, sorted(screen.loaded or ())]))
"""


def _started(words: str, term: str = "xterm", terminal: bool = True) -> tuple[str, list[str]]:
    """What a command says on a terminal, and what had been loaded when it said the first of it."""
    script = STARTED.format(term=term, terminal=terminal, words=", ".join(map(repr, words.split())))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    said, loaded = ast.literal_eval(done.stdout.rpartition("SAID ")[2])
    return said, loaded


def test_the_first_sign_of_life_comes_before_anything_heavy_is_loaded() -> None:
    said, loaded = _started("plan --slo 0.5 --method mgc --confidence 50% --no-options -q")
    assert said.startswith("\rstarting\033[K")
    assert said.endswith("\r\033[K"), "nothing is left on the line"
    ours = [m for m in loaded if m.startswith("planner")]
    assert ours == ["planner", "planner.cli", "planner.cli.completion", "planner.cli.sign"]
    assert not [
        m for m in loaded if m.split(".")[0] in (*HEAVY, "typer", "rich", "multiprocessing", "asyncio", "inspect")
    ]
    assert len(loaded) <= 50, loaded


def test_a_mistake_and_help_stand_alone_and_other_ends_of_stderr_see_no_sign() -> None:
    said, _ = _started("plan --slo -1")
    # on a busy machine it takes until the seconds are counted
    assert re.match(r"\rstarting\033\[K(\rplanning: [\d.]+ s\033\[K)*\r\033\[Kerror: ", said)
    assert _started("plan --help")[0] == ""
    assert _started("plan --slo -1", terminal=False)[0].startswith("error: ")
    assert _started("plan --slo -1", term="dumb")[0].startswith("working\nerror: ")


def test_commands_that_show_what_is_under_way_begin_with_a_sign() -> None:
    def source(name: str) -> str:
        if name in BESIDE and hasattr(Built()[name], "commands"):
            return ""
        if name in BESIDE:
            return inspect.getsource(inspect.unwrap(Built()[name].callback))
        return (ROOT / "planner" / "cli" / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")

    shown = re.compile(r'with progress_bar\(|opt\.Verb\(\s*"\w+",\s*"\w+"')
    shows = {name for name in COMMANDS if shown.search(source(name))}
    # explain and options plan in a function of their own; what calibrate measures and workload reads takes long, not their start
    assert (shows - {"calibrate", "workload"}) | {"explain", "options"} == SLOW


def test_commands_have_their_options_where_docstrings_are_left_out() -> None:
    """Of every command, by ``python -OO``, what can be typed, and what it is called on the list."""
    told = (
        "from planner.cli.commands import COMMANDS, Built; found = Built(); "
        "print([(n, sorted(o for p in found[n].params for o in p.opts)) for n in COMMANDS])"
    )
    printed = [
        subprocess.run([sys.executable, *how, "-c", told], capture_output=True, text=True, check=True).stdout
        for how in ((), ("-OO",))
    ]
    assert printed[0] == printed[1] and "'--pue'" in printed[1]
