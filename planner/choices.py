"""What other choices would cost: options of a plan taken otherwise, each with the fleet and the price that choosing it gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from planner.errors import InputError, unknown
from planner.promise import Promise
from planner.shared.record import Record

WORTH_TELLING = 0.98
"""A choice that costs less than this share of the plan saves something."""

AT_OTHER = ("traffic", "redundancy", "promise")
"""Kinds of choices that ask another question; all others keep its promise."""


@dataclass(frozen=True, slots=True)
class Choice(Record):
    """One choice made otherwise.

    Parameters
    ----------
    kind
        What is chosen: ``routing``, ``pools``, ``gpu``, ..., ``promise``.
    name
        The choice in words.
    changes
        The options that make it, in their own names.
    flags
        The same as one writes it on the command line.
    cost_usd_per_hour, gpus, fleet
        The cheapest fleet with that choice; ``None`` and empty where there is none.
    reason
        Why there is none.
    limit_s
        Of a ``promise``: its limit [s].
    ttft_p99_s
        Of a ``gpu`` with a fleet: the P99 time to first token of its slowest pool [s].
    """

    kind: str
    name: str
    changes: Mapping[str, object]
    flags: str
    cost_usd_per_hour: float | None = None
    gpus: int | None = None
    fleet: str = ""
    reason: str | None = None
    limit_s: float | None = None
    ttft_p99_s: float | None = None


@dataclass(frozen=True, slots=True)
class Choices(Record):
    """What the choices that matter would cost, in a fixed order.

    Parameters
    ----------
    rows
        One per choice.
    cost_usd_per_hour, gpus
        The plan they differ from; ``None`` where no fleet keeps the promises.
    promise
        The promise whose limit is varied; ``None`` = none was.
    waiting
        Choices that were not sized, as Ctrl-C ended it.
    """

    rows: tuple[Choice, ...]
    cost_usd_per_hour: float | None
    gpus: int | None
    promise: Promise | None = None
    waiting: int = 0

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("promise", "knee_s", "rows", "waiting")

    @classmethod
    def of_file(cls, data: Mapping[str, Any], source: str) -> Choices:
        """The rows that a plan's file carries.

        Raises
        ------
        InputError
            It carries none.
        """
        kept = data.get("choices")
        if not kept:
            raise InputError(
                f"{source}: was saved without rows",
                f"Plan again with them: fleetopt plan --config {source} -o {source}",
            )
        rows = tuple(Choice(**{name: row[name] for name in Choice.__slots__ if name in row}) for row in kept["rows"])
        told = kept.get("promise")
        promise = None
        if told is not None and "limit_s" in told:
            promise = Promise(told["metric"], told["limit_s"], told["quantile"], told["scope"])
        return cls(rows, data["cost_usd_per_hour"], data["gpus"], promise)

    def ordered(self, by: str | None) -> Choices:
        """The same with rows by ``cost``, the cheapest first, by ``kind`` or by ``name``; as they are where nothing is asked."""
        if by is None:
            return self
        cost = [math.inf if c.cost_usd_per_hour is None else c.cost_usd_per_hour for c in self.rows]
        order = sorted(range(len(self.rows)), key=lambda k: (cost[k] if by == "cost" else getattr(self.rows[k], by), k))
        return replace(self, rows=tuple(self.rows[k] for k in order))

    def only(self, name: str) -> Choices:
        """The rows in whose name or flags a word stands.

        Raises
        ------
        InputError
            There are none.
        """
        word = name.lower()
        rows = tuple(c for c in self.rows if word in c.name.lower() or word in c.flags.lower())
        if not rows:
            raise unknown(f"--why: no row is called {name!r}", name, (c.name for c in self.rows), "Rows")
        return replace(self, rows=rows)

    def to_rows(self) -> list[dict[str, object]]:
        """One row per choice."""
        return [choice.to_dict() for choice in self.rows]

    @property
    def curve(self) -> tuple[tuple[float, float], ...]:
        """(limit [s], cost [USD/hour]) of the promise varied, tightest first, the plan's own included."""
        points = {c.limit_s: c.cost_usd_per_hour for c in self.rows if c.limit_s and c.cost_usd_per_hour is not None}
        if self.promise is not None and self.cost_usd_per_hour is not None:
            points[self.promise.limit_s] = self.cost_usd_per_hour
        return tuple(sorted(points.items()))

    @property
    def knee_s(self) -> float | None:
        """The limit at the knee of :attr:`curve` [s]; see :func:`knee`."""
        return knee(self.curve)


def knee(curve: Sequence[tuple[float, float]]) -> float | None:
    """The abscissa where a falling curve bends most: farthest below the chord of its ends, both axes logarithmic.

    Parameters
    ----------
    curve
        (x, y), both positive, x ascending.

    Returns
    -------
    float or None
        ``None`` where no point lies a tenth of the way below the chord: each step saves about as much as the last.

    References
    ----------
    Satopaa, Albrecht, Irwin, Raghavan, "Finding a Kneedle in a Haystack" (ICDCSW 2011), section III, for a decreasing
    convex curve, without smoothing.

    Examples
    --------
    >>> knee([(0.3, 460.0), (0.5, 223.0), (1.0, 161.0), (2.0, 145.0)])
    0.5
    >>> knee([(0.5, 100.0), (1.0, 50.0), (2.0, 25.0)]) is None
    True
    """
    if len(curve) < 3 or curve[0][1] <= curve[-1][1]:
        return None
    (x0, y0), (x1, y1) = curve[0], curve[-1]
    below = {
        x: 1.0 - math.log(x / x0) / math.log(x1 / x0) - math.log(y / y1) / math.log(y0 / y1) for x, y in curve[1:-1]
    }
    best = max(below, key=lambda x: below[x])
    return best if below[best] >= 0.1 else None
