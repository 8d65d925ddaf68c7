"""How records become dictionaries: field by field, in one way for all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, ClassVar

from planner.shared.version import __version__


class Record:
    """A dataclass that writes itself."""

    __slots__ = ()

    schema_version: ClassVar[int] = 1
    """Version of the JSON and YAML form of results."""

    document: ClassVar[str] = ""
    """What a file of it is called in ``kind``; empty = it has no head, being part of another record for the most part."""

    written: ClassVar[tuple[str, ...]] = ()
    """Fields, properties and methods whose values are written, in this order; empty = every field that ``repr`` shows.

    One that is written under another name, or lies deeper, is ``"name=place"``: ``"startup_s=elasticity.startup_s"``.
    """

    versioned: ClassVar[bool] = False
    """Whether ``schema_version`` is written before its fields: a result of its own without a head."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        head = {"schema_version": self.schema_version, "kind": self.document, "version": __version__}
        names = self.written or [f.name for f in fields(self) if f.repr]  # type: ignore[arg-type]
        head = head if self.document else {"schema_version": self.schema_version} if self.versioned else {}
        return head | taken(self, names)


def taken(found: Any, names: Iterable[str]) -> dict[str, Any]:
    """What lies at places of something, JSON-ready; `names` as of :attr:`Record.written`."""
    return {key: plain(placed(found, place)) for key, place in map(spelled, names)}


def spelled(name: str) -> tuple[str, str]:
    """The key and the place of something written.

    >>> spelled("rows=to_rows"), spelled("holds")
    (('rows', 'to_rows'), ('holds', 'holds'))
    """
    key, _, place = name.partition("=")
    return key, place or key


def placed(found: Any, place: str) -> Any:
    """What lies at a place below something, attributes and keys alike; of nothing, nothing."""
    for name in place.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None if found is None else getattr(found, name)
    return found() if callable(found) else found


def plain(value: Any) -> Any:
    """A value as JSON has it: records and mappings as dictionaries, tuples as lists, ``None`` for numbers it has not."""
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else f"{key:.10g}": plain(one) for key, one in value.items()}
    if isinstance(value, (tuple, list, Iterator)):
        return [plain(one) for one in value]
    return value.to_dict() if hasattr(value, "to_dict") else value


def json_number(value: float) -> float | None:
    """`value`, or ``None`` where JSON has no number for it (inf, nan).

    >>> json_number(1.5), json_number(float("inf"))
    (1.5, None)
    """
    return value if math.isfinite(value) else None
