"""A plan as files that start it: one file per target in ``targets/``, each with a ``TARGET``, found by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from planner.deploy.serving import Serving
from planner.errors import refuse_unknown

__all__ = ["Rendered", "Target", "find_target", "target_names"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """Files that start a fleet.

    Parameters
    ----------
    files
        Name of a file -> its text, in the order of reading.
    notes
        What the reader must know or do, one line each.
    """

    files: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All files one after the other; where there are several, each under its name."""
        if len(self.files) == 1:
            return next(iter(self.files.values()))
        return "\n".join(f"# ===== {name}\n{text.rstrip()}\n" for name, text in self.files.items())


@dataclass(frozen=True, slots=True)
class Target:
    """One way to run a fleet.

    Parameters
    ----------
    about
        What is written, in one line.
    render
        A fleet as files.
    address
        Where requests go inside a cluster; nothing where there is no cluster.
    """

    about: str
    render: Callable[[Serving], Rendered]
    address: Callable[[Serving], str] = lambda serving: ""


@cache
def target_names() -> tuple[str, ...]:
    """The targets there are."""
    return tuple(sorted(p.stem.replace("_", "-") for p in Path(__file__).with_name("targets").glob("[!_]*.py")))


def find_target(name: str) -> Target:
    """The target of that name.

    Raises
    ------
    InputError
        There is none.
    """
    refuse_unknown("--to:", name, target_names())
    found: Target = import_module(f"planner.deploy.targets.{name.replace('-', '_')}").TARGET
    return found
