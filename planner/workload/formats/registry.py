"""The known formats: every module of this folder that has a ``FORMAT``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from planner.workload.formats.base import Format

_OWN = "project_csv"


def formats(kind: str | None = None) -> Iterator[Format]:
    """Formats that a file of this kind can have, those that fit almost any file last; all of them for ``None``.

    Modules are imported as they are asked for, the project's own format first: most runs need no other.

    >>> [f.name for f in formats("csv")][0]
    'fleetopt'
    """
    stems = sorted((path.stem for path in Path(__file__).parent.glob("[a-z]*.py")), key=lambda s: (s != _OWN, s))
    last: list[Format] = []
    for stem in stems:
        found: Format | None = getattr(import_module(f"{__package__}.{stem}"), "FORMAT", None)
        if found is not None and (kind is None or kind in found.kinds):
            if found.last_resort:
                last.append(found)
            else:
                yield found
    yield from last


def format_names() -> tuple[str, ...]:
    """What ``--input-format`` takes."""
    return tuple(f.name for f in formats())
