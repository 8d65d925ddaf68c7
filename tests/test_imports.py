"""What starting costs: the modules each command may load. The arrows between packages are held by import-linter."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("extra", [[], ["--rate", "1000"], ["--tpot", "50ms"], ["--method", "mgc"]])
def test_plan_loads_only_what_it_needs(extra: list[str]) -> None:
    code = (
        "from planner.cli.main import app\n"
        f"try:\n    app({['plan', '--cdf', 'azure.csv', '--slo', '0.5', *extra]!r})\nexcept SystemExit as e:\n    assert not e.code"
    )
    modules = _loaded(code)
    banned = ("scipy.stats", "scipy.optimize", "pandas", "torch", "matplotlib", "mpmath")
    assert not [m for m in banned if m in modules]
