"""All papers, by the names users write."""

from __future__ import annotations

from importlib import import_module

from planner.errors import InputError, did_you_mean
from planner.reproduce.result import Finding, Reproduction

__all__ = ["PAPERS", "reproduce"]

PAPERS = {
    "fleetopt": "fleetopt",
    "rad-slai": "rad_slai",
    "exclusive-batching": "exclusive_batching",
    "wait": "wait",
}
"""Name of a paper -> module of this package, whose ``rows()`` are its findings."""


def reproduce(paper: str = "all") -> Reproduction:
    """The numbers a paper prints beside ours, and why they differ.

    Parameters
    ----------
    paper
        ``fleetopt``, ``rad-slai``, ``exclusive-batching``, ``wait`` or ``all``.

    Returns
    -------
    Reproduction

    Raises
    ------
    InputError
        No such paper.

    Examples
    --------
    >>> reproduce("wait").findings[0].ours
    '12'
    """
    names = (*PAPERS, "all")
    if paper not in names:
        raise InputError(f"paper: {paper!r} is none of {', '.join(names)}{did_you_mean(paper, names)}")
    chosen = tuple(PAPERS) if paper == "all" else (paper,)
    modules = {name: import_module(f"planner.reproduce.{PAPERS[name]}") for name in chosen}
    return Reproduction(chosen, tuple(Finding(name, *row) for name, module in modules.items() for row in module.rows()))
