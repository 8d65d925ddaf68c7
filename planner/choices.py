"""What other choices would cost: options of a plan taken otherwise, each with the fleet and the price that choosing it gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from planner.promise import Promise
from planner.record import Record


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
    reached
        Whether it was sized within the time allowed.
    promising
        Of one that was not: whether the guess that orders the sizing has it cheaper than the plan.
    limit_s
        Of a ``promise``: its limit [s].
    """

    kind: str
    name: str
    changes: Mapping[str, object]
    flags: str
    cost_usd_per_hour: float | None = None
    gpus: int | None = None
    fleet: str = ""
    reason: str | None = None
    reached: bool = True
    promising: bool = False
    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Choices(Record):
    """What the choices that matter would cost, in a fixed order.

    Parameters
    ----------
    rows
        One per choice, those not reached included.
    cost_usd_per_hour, gpus
        The plan they differ from; ``None`` where no fleet keeps the promises.
    seconds
        Time that was allowed [s].
    promise
        The promise whose limit is varied; ``None`` = none was.
    """

    rows: tuple[Choice, ...]
    cost_usd_per_hour: float | None
    gpus: int | None
    seconds: float
    promise: Promise | None = None

    written: ClassVar[tuple[str, ...]] = ("seconds", "promise", "knee_s", "rows")

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
