"""Pictures as SVG text: lines over a number, bars beside each other, steps of a day. Colours come from the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Line", "bars", "lines"]

WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 44


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a picture.

    Parameters
    ----------
    name
        For the legend and the labels of its points.
    points
        (x, y), x ascending.
    style
        Class of the page's style sheet: ``a``, ``b``, ``c`` a colour each, ``limit`` dashed.
    steps
        Whether it keeps its height until the next point.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: str = "a"
    steps: bool = False


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        """Place of a value on the page."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        part = ((math.log(value) if self.log else value) - low) / ((high - low) or 1.0)
        return self.start + min(max(part, 0.0), 1.0) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values along it."""
        if self.log:
            return [
                m * 10.0**e
                for e in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
                for m in ((1, 2, 5) if self.high / self.low < 200 else (1,))
                if self.low <= m * 10.0**e <= self.high
            ]
        step = 10.0 ** math.floor(math.log10((self.high - self.low) or 1.0))
        step *= next(m for m in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0) if (self.high - self.low) / (m * step) <= 6.0)
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def lines(
    title: str,
    drawn: Sequence[Line],
    x_name: str,
    y_name: str,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
    *,
    mark_x: tuple[float, str] | None = None,
    log_y: bool = False,
    log_x: bool = False,
) -> str:
    """Lines over a common x.

    Parameters
    ----------
    title
        What the picture shows; its alternative text.
    drawn
        The lines; an infinite y ends a line.
    x_name, y_name, x_text, y_text
        Names of the axes, and how their numbers are written.
    mark_x
        A place to mark with an upright, and its name.
    log_x, log_y
        Logarithmic axes; values must be positive.
    """
    shown = [[(x, y) for x, y in line.points if math.isfinite(y) and (y > 0.0 or not log_y)] for line in drawn]
    xs = [x for points in shown for x, _ in points] + ([mark_x[0]] if mark_x else [])
    ys = [y for points in shown for _, y in points]
    low, high = (min(ys), max(ys)) if ys else (0.5, 1.0)
    along = _Axis(min(xs, default=0.0), max(xs, default=1.0), LEFT, WIDTH - RIGHT, log_x)
    up = _Axis(
        low / 1.2 if log_y else min(0.0, low), high * (1.2 if log_y else 1.08) or 1.0, HEIGHT - BOTTOM, TOP, log_y
    )
    parts = [_frame(along, up, x_name, y_name, x_text, y_text)]
    if mark_x is not None:
        at = along.at(mark_x[0])
        anchor = "end" if at > WIDTH / 2 else "start"
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(_text(at + (-5 if anchor == "end" else 5), TOP + 10, mark_x[1], anchor))
    for line, points in zip(drawn, shown, strict=True):
        places = [(along.at(x), up.at(y)) for x, y in points]
        path = "".join(
            (f"M{px:.1f},{py:.1f}" if k == 0 else f"H{px:.1f}V{py:.1f}" if line.steps else f"L{px:.1f},{py:.1f}")
            for k, (px, py) in enumerate(places)
        )
        parts.append(f'<path class="line {line.style}" d="{path}"/>')
        if line.style != "limit":
            for (px, py), (x, y) in zip(places, points, strict=True):
                told = f"{line.name}: {y_text(y)} at {x_text(x)}"
                parts.append(
                    f'<circle class="{line.style}" cx="{px:.1f}" cy="{py:.1f}" r="3.5"><title>{escape(told)}</title></circle>'
                )
    return _picture(title, parts, [(line.name, line.style) for line in drawn])


def bars(
    title: str, rows: Sequence[tuple[str, float | None, float | None]], middle: float, text: Callable[[float], str]
) -> str:
    """A tornado: for every row how far both ends lie from the middle; an end that is ``None`` has no fleet.

    >>> "<svg" in bars("what matters", [("traffic", 8.0, 12.0)], 10.0, str)
    True
    """
    values = [v for _, low, high in rows for v in (low, high) if v is not None] + [middle]
    across = _Axis(min(values) * 0.98, max(values) * 1.02, 250.0, WIDTH - RIGHT - 10.0, False)
    height = 34
    total = TOP + height * len(rows) + BOTTOM
    at = across.at(middle)
    parts = []
    for k, (name, low, high) in enumerate(rows):
        top = TOP + k * height
        parts.append(_text(244, top + 18, name, "end"))
        for value, style in ((low, "b"), (high, "c")):
            if value is None:
                continue
            x, width = min(at, across.at(value)), abs(across.at(value) - at)
            told = f"{name}: {text(value)}"
            place = f'x="{x:.1f}" y="{top + 5}" width="{max(width, 1.5):.1f}" height="20"'
            parts.append(f'<rect class="{style}" {place}><title>{escape(told)}</title></rect>')
    parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{total - BOTTOM}"/>')
    parts += [_text(across.at(v), total - BOTTOM + 18, text(v), "middle") for v in across.ticks()]
    return _picture(title, parts, [], total)


def _frame(
    along: _Axis, up: _Axis, x_name: str, y_name: str, x_text: Callable[[float], str], y_text: Callable[[float], str]
) -> str:
    """Axes with their numbers and names."""
    parts = [f'<path class="axis" d="M{LEFT},{TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>']
    for value in along.ticks():
        parts.append(_text(along.at(value), HEIGHT - BOTTOM + 16, x_text(value), "middle"))
    for value in up.ticks():
        y = up.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 6, y + 4, y_text(value), "end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_name, "middle"))
    parts.append(_text(LEFT + 6, TOP + 10, y_name, "start"))
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _picture(title: str, parts: Sequence[str], legend: Sequence[tuple[str, str]], height: int = HEIGHT) -> str:
    """The drawing with its name for those who cannot see it, and its legend."""
    names = "".join(f'<span class="key {style}">{escape(name)}</span>' for name, style in legend)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>" + (f'<p class="legend">{names}</p>' if names else "")
    )
