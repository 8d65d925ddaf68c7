"""The known formats: rows of ``table.yaml``, and every module of this folder that has a ``FORMAT``."""

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
    last: list[Format] = []
    for found in _all():
        if kind is None or kind in found.kinds:
            if found.last_resort:
                last.append(found)
            else:
                yield found
    yield from last


def format_names() -> tuple[str, ...]:
    """What ``--input-format`` takes."""
    own, *others, last = (f.name for f in formats())
    return (own, *sorted(others), last)


def _all() -> Iterator[Format]:
    """The project's own, those of the table, and those with code of their own."""
    own: Format = import_module(f"{__package__}.{_OWN}").FORMAT
    yield own
    from planner.workload.formats.table import table

    yield from table().values()
    for stem in sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if path.stem != _OWN):
        if (found := getattr(import_module(f"{__package__}.{stem}"), "FORMAT", None)) is not None:
            yield found
