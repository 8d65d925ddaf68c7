"""What questions answered one after another about the same traffic share: made once, kept while they are answered."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

MOST = 512
"""Things kept at once, enough for all pools that a search sets up; what was asked for longest ago goes first."""

T = TypeVar("T")

_kept: ContextVar[dict[Hashable, Any] | None] = ContextVar("kept", default=None)


@contextmanager
def keeping() -> Iterator[None]:
    """Keep what is made inside until the outermost such block ends."""
    token = _kept.set({}) if _kept.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _kept.reset(token)


def once(key: Hashable, make: Callable[[], T]) -> T:
    """What `make` gives, made anew unless it is kept.

    Parameters
    ----------
    key
        Says all that the answer depends on. Where an ``id`` stands for an object, the answer must hold that object, so that no
        other one can take its place while the answer is kept.
    make
        Makes it.
    """
    kept = _kept.get()
    if kept is None:
        return make()
    if key in kept:
        found: T = kept.pop(key)
    else:
        found = make()
        while len(kept) >= MOST:
            del kept[next(iter(kept))]
    kept[key] = found
    return found


def branched(without: tuple[str, ...] = ()) -> Context:
    """A context in which what is kept is kept on by itself, but what keys that begin with a name `without` stand for.

    Threads that answer questions beside each other each run in one.
    """
    context, kept = copy_context(), _kept.get()
    own = {k: v for k, v in (kept or {}).items() if not (isinstance(k, tuple) and k[:1] and k[0] in without)}
    context.run(_kept.set, own)
    return context
