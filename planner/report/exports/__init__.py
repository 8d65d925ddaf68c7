"""Results as files to deploy: a folder per result, a file per format, each with an ``EXPORT``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["Export", "export", "export_names"]


@dataclass(frozen=True, slots=True)
class Export:
    """One format to deploy.

    Parameters
    ----------
    about
        What is written, in one line.
    render
        The result as text.
    """

    about: str
    render: Callable[[Any], str]


@cache
def export_names(of: str) -> tuple[str, ...]:
    """Formats of one kind of result (``plan``, ``schedule``): the files of its folder."""
    if not of:
        return ()
    folder = Path(__file__).with_name(of)
    return tuple(sorted(path.stem.replace("_", "-") for path in folder.glob("[!_]*.py")))


def export(of: str, name: str) -> Export:
    """The format `name` of a result of the kind `of`."""
    found: Export = import_module(f"planner.report.exports.{of}.{name.replace('-', '_')}").EXPORT
    return found
