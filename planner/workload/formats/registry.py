"""The known formats: every module of this folder that has a ``FORMAT``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from planner.workload.formats.base import Format

__all__ = ["format_names", "formats"]


@lru_cache(maxsize=1)
def _all() -> tuple[Format, ...]:
    """Formats by name, those that fit almost any file at the end."""
    modules = (import_module(f"{__package__}.{path.stem}") for path in sorted(Path(__file__).parent.glob("[a-z]*.py")))
    found: list[Format] = [module.FORMAT for module in modules if hasattr(module, "FORMAT")]
    return tuple(sorted(found, key=lambda f: (f.last_resort, f.name)))


def formats(kind: str | None = None) -> Iterator[Format]:
    """Formats that a file of this kind can have, the most particular first; all of them for ``None``.

    >>> "azure" in [f.name for f in formats("csv")]
    True
    """
    return (f for f in _all() if kind is None or kind in f.kinds)


def format_names() -> tuple[str, ...]:
    """What ``--input-format`` takes."""
    return tuple(f.name for f in formats())
