"""A plan as files that start it: one file per target in ``targets/``, found by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from planner.errors import refuse_unknown

__all__ = ["Rendered", "find_target", "target_names"]


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


@cache
def target_names() -> tuple[str, ...]:
    """The targets there are."""
    return tuple(sorted(p.stem.replace("_", "-") for p in Path(__file__).with_name("targets").glob("[!_]*.py")))


def find_target(name: str) -> Any:
    """The module of a target: ``render`` makes files of a fleet, ``address``, where there is a cluster, says where its requests go.

    Raises
    ------
    InputError
        There is none.
    """
    refuse_unknown("--to:", name, target_names())
    return import_module(f"planner.operate.deploy.targets.{name.replace('-', '_')}")
