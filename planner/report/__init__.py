"""Results to text: every format takes a result and returns a string."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from planner.errors import refuse_unknown
from planner.shared.paths import modules_in

__all__ = ["PICTURES", "export_names", "formats", "formatter"]

PICTURES = (".svg", ".png", ".pdf")
"""Kinds of files that a result is drawn to."""


@cache
def export_names(of: str) -> tuple[str, ...]:
    """Formats to deploy one kind of result (``plan``, ``schedule``; empty = none): the files of its folder."""
    return modules_in(Path(__file__).with_name("exports") / of)


def formats(of: str = "") -> tuple[str, ...]:
    """Names of the formats of a result; a plan and a schedule can also be exported."""
    return ("table", "markdown", *export_names(of), "json", "yaml", "csv")


def formatter(name: str, of: str = "") -> Callable[[Any], str]:
    """The function that renders a result in one format.

    Parameters
    ----------
    name
        One of :func:`formats`.
    of
        ``plan`` or ``schedule``, which have formats of their own.
    """
    refuse_unknown("--format:", name, formats(of))
    exported = name in export_names(of)
    place = import_module(f"planner.report.exports.{of}.{name.replace('-', '_')}" if exported else f"{__name__}.output")
    found: Callable[[Any], str] = place.render if exported else place.FORMATS[name]
    return found
