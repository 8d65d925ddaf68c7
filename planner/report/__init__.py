"""Results to text: one file per output format; every formatter takes a result and returns a string."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from planner.errors import InputError, did_you_mean
from planner.report.exports import export, export_names

__all__ = ["PICTURES", "formats", "formatter"]

PICTURES = (".svg", ".png", ".pdf")
"""Kinds of files that a result is drawn to."""


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
    known = formats(of)
    if name not in known:
        raise InputError(f"--format: {name!r} is none of {', '.join(known)}{did_you_mean(name, known)}")
    if name in export_names(of):
        return export(of, name).render
    render: Callable[[Any], str] = import_module(f"planner.report.{name}").render
    return render
