"""Latency methods: one file per method, found by its name; the contract is :mod:`planner.predict.contract`."""

from __future__ import annotations

from importlib import import_module

from planner.predict.contract import Method

__all__ = ["find_method"]


def find_method(name: str) -> Method:
    """The method of that name; its file is loaded when it is asked for, as a plan pays for the start of one of them.

    >>> find_method("mgc").name
    'mgc'
    """
    found: Method = import_module(f"{__name__}.{name}").METHOD
    return found
