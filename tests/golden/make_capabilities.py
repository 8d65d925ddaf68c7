"""What fleetopt can do, by the registries: ``python tests/golden/make_capabilities.py`` adds what is new to capabilities.yaml.

Nothing is ever dropped from the list: what goes keeps its line, and its successor is named under ``successors``.
"""

from __future__ import annotations

import inspect
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

import planner
from planner.catalog.load import gpus, models, price_offers
from planner.catalog.profiles import profile_names
from planner.cli.main import app
from planner.machine.engines import engines
from planner.operate.deploy import target_names
from planner.operate.monitor.names import DIALECTS
from planner.papers.policy import policy_names
from planner.papers.printed import PAPERS, reproduce
from planner.promise import PROMISE_METRICS
from planner.question.options import OPTIONS
from planner.report import export_names
from planner.routing import ROUTINGS
from planner.workload.formats.registry import format_names
from planner.workload.resolve import shipped_names

FILE = Path(__file__).with_name("capabilities.yaml")
PRINTED = "numbers of papers"
Found = dict[str, list[str]]


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Words of a command, and the spellings of its options and the names of its arguments."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _commands(inner, (*path, name))
    else:
        yield " ".join(path), [o for p in command.params for o in (*p.opts, *p.secondary_opts)]


def _verbs() -> Iterator[tuple[str, list[str]]]:
    """Public functions of Python and their parameters."""
    for name in planner.__all__:
        one = getattr(planner, name)
        if inspect.isfunction(one):
            yield name, [*inspect.signature(one).parameters]


def registered() -> dict[str, list[str] | Found]:
    """Everything but the numbers of papers, which take a minute to compute."""
    extras = tomllib.loads((FILE.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "commands": dict(_commands(get_command(app))),
        "verbs": dict(_verbs()),
        "public names": list(planner.__all__),
        "options": {name: [*option.aliases, *option.choices] for name, option in OPTIONS.items()},
        "promises": list(PROMISE_METRICS),
        "formats of traces": list(format_names()),
        "shipped workloads": list(shipped_names()),
        "routings": {name: list(one.aliases) for name, one in ROUTINGS.items()},
        "policies": list(policy_names()),
        "engines": list(engines()),
        "targets of deploy": list(target_names()),
        "exports": {of: list(export_names(of)) for of in ("plan", "schedule")},
        "names of metrics": [d.name for d in DIALECTS],
        "gpus": list(gpus()),
        "models": list(models()),
        "priced": sorted({f"{o.gpu} at {o.vendor} {o.term}" for o in price_offers()}),
        "profiles": list(profile_names()),
        "extras": list(extras["optional-dependencies"]),
    }


def printed(paper: str) -> list[str]:
    """The numbers of a paper that are reproduced, by what they are."""
    return list(dict.fromkeys(f.quantity for f in reproduce(paper).findings))


def missing(known: Any, today: Any, where: str = "") -> Iterator[str]:
    """What was there and is not."""
    for one in known:
        path = f"{where}: {one}" if where else one
        if one not in today:
            yield path
        elif isinstance(known, dict):
            yield from missing(known[one], today[one], path)


def both(known: Any, today: Any) -> Any:
    """The old, in its order, and the new."""
    if isinstance(today, dict):
        known = known or {}
        return {name: both(known.get(name), today.get(name)) for name in {**known, **today}}
    return list(dict.fromkeys([*(known or ()), *(today or ())]))


def main() -> None:
    old = yaml.safe_load(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    successors = old.pop("successors", {})
    today = {**registered(), PRINTED: {paper: printed(paper) for paper in PAPERS}}
    listed = {"successors": successors, **both(old, today)}
    text = yaml.safe_dump(listed, sort_keys=False, width=120, allow_unicode=True, default_flow_style=None)
    FILE.write_text(f"# {__doc__.splitlines()[0]}\n{text}", encoding="utf-8")
    sys.stdout.write(f"wrote {FILE}\n")


if __name__ == "__main__":
    main()
