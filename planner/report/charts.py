"""Charts as records, whoever draws them: lines over a number, bars from a middle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


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
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: str = "a"
    steps: bool = False
    dots: bool = False


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
