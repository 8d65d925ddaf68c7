"""All papers, by the names users write."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from planner.errors import InputError, did_you_mean
from planner.reproduce.result import Finding, Reproduction

PAPERS = {"fleetopt": "fleetopt", "rad-slai": "rad_slai", "exclusive-batching": "exclusive_batching", "wait": "wait"}
"""Name of a paper -> module of this package; its ``SECTIONS`` yield the findings, one part of the paper each."""


def reproduce(paper: str = "all", progress: Callable[[int, int], None] | None = None) -> Reproduction:
    """The numbers a paper prints beside ours, and why they differ.

    Parameters
    ----------
    paper
        ``fleetopt``, ``rad-slai``, ``exclusive-batching``, ``wait`` or ``all``.
    progress
        Called with the parts done and all parts.

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
    sections = [(n, part) for n in chosen for part in import_module(f"planner.reproduce.{PAPERS[n]}").SECTIONS]
    findings: list[Finding] = []
    for done, (name, section) in enumerate(sections, start=1):
        findings += [Finding(name, *row) for row in section()]
        if progress is not None:
            progress(done, len(sections))
    return Reproduction(chosen, tuple(findings))
