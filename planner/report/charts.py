"""Charts as records, whoever draws them: lines over a number, bars from a middle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FEW_DECADES = 4.0
"""Logarithmic axes that reach no further than this factor are numbered evenly [1]."""

THIN, THICKER = 2.0, 2.5
"""Width of a line, and how much wider one is that another covers in part [points]."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart.

    Parameters
    ----------
    name
        For the legend and the labels of its points.
    points
        (x, y), x ascending; an infinite y ends a line.
    style
        ``a``, ``b``, ``c`` a colour each, ``limit`` dashed.
    steps
        Whether it keeps its height until the next point.
    dots
        Points alone, not joined.
    named
        Its name stands at its first point, and in no legend.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: str = "a"
    steps: bool = False
    dots: bool = False
    named: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over a common x.

    Parameters
    ----------
    title
        What it shows; its alternative text.
    drawn
        The lines.
    x_name, y_name, x_text, y_text
        Names of the axes, and how their numbers are written.
    marks
        Places to mark with an upright, and their names.
    log_x, log_y
        Logarithmic axes; values must be positive.
    whole
        The y are whole numbers.
    """

    title: str
    drawn: Sequence[Line]
    x_name: str
    y_name: str
    x_text: Callable[[float], str]
    y_text: Callable[[float], str]
    marks: Sequence[tuple[float, str]] = ()
    log_x: bool = False
    log_y: bool = False
    whole: bool = False

    @property
    def legend(self) -> list[Line]:
        """The lines whose names stand below."""
        return [line for line in self.drawn if not line.named]

    def width(self, k: int) -> float:
        """Of the k-th line, so that it is seen below later ones that share its points [points]."""
        mine = set(self.drawn[k].points)
        return THIN + THICKER * sum(len(mine & set(later.points)) > 1 for later in self.drawn[k + 1 :])


@dataclass(frozen=True, slots=True)
class Bars:
    """A tornado: for every row how far both ends lie from the middle.

    Parameters
    ----------
    title
        What it shows; its alternative text.
    rows
        (name, one end, the other); an end that is ``None`` has no bar.
    middle, text
        Where the bars begin, and how numbers are written.
    """

    title: str
    rows: Sequence[tuple[str, float | None, float | None]]
    middle: float
    text: Callable[[float], str]


Chart = Lines | Bars
"""Either."""


def ticks(low: float, high: float, log: bool = False, whole: bool = False) -> list[float]:
    """Round values from low to high; on a logarithmic axis both positive.

    >>> ticks(0.0, 3.2), ticks(0.0, 2.2, whole=True), ticks(0.35, 0.66, log=True)
    ([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0], [0.4, 0.5, 0.6])
    >>> ticks(0.02, 1.5, log=True)
    [0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
    """
    if log and high / low > FEW_DECADES:
        return [
            m * 10.0**e
            for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for m in ((1, 1.5, 2, 3, 5, 7) if high / low < 12 else (1, 2, 5) if high / low < 200 else (1,))
            if low <= m * 10.0**e <= high
        ]
    step = 10.0 ** math.floor(math.log10((high - low) or 1.0))
    step *= next(m for m in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0) if (high - low) / (m * step) <= 6.0)
    if whole:
        step = max(1.0, math.ceil(step))
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]
