"""The line on a terminal that says what is under way; its first comes before numbers are loaded: nothing heavy is imported here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

SLOW = frozenset(
    (
        "plan", "explain", "options", "evaluate", "what-if", "capacity", "diff", "schedule", "cost", "report", "autoscale",
        "simulate", "reproduce", "batch",
    )
)  # fmt: skip
"""Commands that may take longer than a moment."""

_shown = False


def watched() -> bool:
    """Whether somebody looks at stderr on a terminal whose lines can be written over."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def begin(words: Sequence[str]) -> None:
    """The first sign of a command that may take long; a terminal that cannot write over a line is told once."""
    if words and words[0] in SLOW and not {"-h", "--help", "--help-all"}.intersection(words):
        if watched():
            show("starting")
        elif sys.stderr is not None and sys.stderr.isatty():
            print("working", file=sys.stderr, flush=True)


def show(text: str) -> None:
    """In place of what the line said."""
    global _shown
    print(f"\r{text}\033[K", end="", file=sys.stderr, flush=True)
    _shown = bool(text)


def clear() -> None:
    """Leave the line empty, if something stands there."""
    if _shown:
        show("")
