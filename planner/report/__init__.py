"""Results to text: one file per output format; every formatter takes a result and returns a string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from planner.errors import InputError, did_you_mean

__all__ = ["formatter"]

_GENERIC = ("json", "yaml", "csv")


def formatter(name: str, extra: Sequence[str] = ("table", "markdown")) -> Callable[[Any], str]:
    """The function that renders a result in one format.

    Parameters
    ----------
    name
        ``json``, ``yaml``, ``csv`` or one of `extra`.
    extra
        Further formats the command offers, each a module of this package with ``render``.
    """
    known = (*extra, *_GENERIC)
    if name not in known:
        raise InputError(f"--format: {name!r} is none of {', '.join(known)}{did_you_mean(name, known)}")
    module = import_module(f"planner.report.{name if name in _GENERIC else name.replace('-', '_')}")
    render: Callable[[Any], str] = module.render
    return render
