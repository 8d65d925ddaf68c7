"""Pictures as SVG text, and as PNG or PDF with matplotlib: lines over a number, bars beside each other, steps of a day.

Colours of SVG come from the page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.shared.extras import installing
from planner.shared.writing import write_bytes

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


WIDTH, HEIGHT = 640, 280
LEFT, MARGIN, BOTTOM = 64, 16, 44
ROW = 34

LETTER = 7.0
"""Width of a letter, about."""

MOST_POINTS = 60
"""Points of a line that are marked each, with their numbers."""

LIGHT = "--ink:#1b1f24;--paper:#fff;--soft:#5a6472;--rule:#d8dde3;--a:#0b62b8;--b:#1a7f4b;--c:#b5470b;--bad:#a4161a"
DARK = "--ink:#e6e9ed;--paper:#14171b;--soft:#9aa4b1;--rule:#333a43;--a:#6db3f8;--b:#5fd08f;--c:#f2a36b;--bad:#ff8a8a"

COLOURS = f":root{{{LIGHT}}}@media (prefers-color-scheme:dark){{:root{{{DARK}}}}}@media print{{:root{{{LIGHT}}}}}"

STROKES = """
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}
.axis{stroke:var(--soft);fill:none}.grid{stroke:var(--rule)}.mark{stroke:var(--ink);stroke-dasharray:3 3}
.line{fill:none;stroke-width:2}
path.a,line.a{stroke:var(--a)}path.b,line.b{stroke:var(--b)}path.c,line.c{stroke:var(--c)}
path.limit,line.limit{stroke:var(--bad);stroke-dasharray:6 4;stroke-width:1.5}
circle.a,rect.a{fill:var(--a)}circle.b,rect.b{fill:var(--b)}circle.c,rect.c{fill:var(--c)}
circle:hover{r:6px}rect.a:hover,rect.b:hover,rect.c:hover{opacity:.75}
"""


@dataclass(frozen=True, slots=True)
class _Axis:
    """Values to places on the page, linear or logarithmic."""

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

    def ticks(self, whole: bool = False) -> list[float]:
        """Round values along it."""
        return ticks(self.low, self.high, self.log, whole)


def figure(chart: Chart) -> str:
    """A chart for a page, whose style sheet colours it, and its legend below."""
    legend = chart.legend if isinstance(chart, Lines) else ()
    names = "".join(f'<span class="key {line.style}">{escape(line.name)}</span>' for line in legend)
    return drawing(chart) + (f'<p class="legend">{names}</p>' if names else "")


def document(charts: Sequence[Chart]) -> str:
    """Charts below each other as a file of its own, with their titles, legends and colours."""
    parts, top = [], 0
    for chart in charts:
        height = height_of(chart)
        legend = chart.legend if isinstance(chart, Lines) and len(chart.legend) > 1 else ()
        parts.append(_text(LEFT, top + 22, chart.title, "start", "title"))
        at = LEFT
        for line in legend:
            if at > LEFT and at + 23 + LETTER * len(line.name) > WIDTH:
                at, top = LEFT, top + 16
            parts.append(f'<line class="line {line.style}" x1="{at}" x2="{at + 18}" y1="{top + 36}" y2="{top + 36}"/>')
            parts.append(_text(at + 23, top + 40, line.name, "start"))
            at += 44 + round(LETTER * len(line.name))
        top += 46
        parts.append(drawing(chart, f' x="0" y="{top}" width="{WIDTH}" height="{height}"'))
        top += height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}">'
        f"<style>{COLOURS.replace(':root', 'svg')}{STROKES}.title{{font-weight:600;fill:var(--ink)}}</style>"
        f'<rect width="{WIDTH}" height="{top}" fill="var(--paper)"/>{"".join(parts)}</svg>\n'
    )


def drawing(chart: Chart, place: str = "") -> str:
    """A chart without its legend."""
    parts = _lines(chart) if isinstance(chart, Lines) else _bars(chart)
    title = escape(chart.title, quote=True)
    return (
        f'<svg{place} viewBox="0 0 {WIDTH} {height_of(chart)}" role="img" aria-label="{title}">'
        f"<title>{escape(chart.title)}</title>{''.join(parts)}</svg>"
    )


def height_of(chart: Chart) -> int:
    """Of a picture; many names beside points need room."""
    if isinstance(chart, Lines):
        return HEIGHT * (2 if len(chart.drawn) - len(chart.legend) > 8 else 1)
    return MARGIN + ROW * len(chart.rows) + BOTTOM


def _lines(chart: Lines) -> list[str]:
    """Lines over their frame."""
    tall = height_of(chart)
    drawn, log_x, log_y = chart.drawn, chart.log_x, chart.log_y
    x_text, y_text = chart.x_text, chart.y_text
    shown = [[(x, y) for x, y in line.points if math.isfinite(y) and (y > 0.0 or not log_y)] for line in drawn]
    xs = [x for points in shown for x, _ in points] + [x for x, _ in chart.marks]
    ys = [y for points in shown for _, y in points]
    low, high = (min(ys), max(ys)) if ys else (0.5, 1.0)
    along = _Axis(min(xs, default=0.0), max(xs, default=1.0), LEFT, WIDTH - MARGIN, log_x)
    up = _Axis(
        low / 1.2 if log_y else min(0.0, low), high * (1.2 if log_y else 1.08) or 1.0, tall - BOTTOM, MARGIN, log_y
    )
    parts = [_frame(along, up, chart)]
    for k, (x, name) in enumerate(chart.marks):
        at = along.at(x)
        anchor = "end" if at > WIDTH - MARGIN - 10 - LETTER * len(name) else "start"
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{MARGIN}" y2="{tall - BOTTOM}"/>')
        # names of marks close to each other stand below each other
        parts.append(_text(at + (-5 if anchor == "end" else 5), MARGIN - 6 + 16 * k, name, anchor))
    # no name covers a point
    spots = [(along.at(x), up.at(y)) for points in shown for x, y in points]
    taken = [(px - 4.0, px + 4.0, py + 4.0) for px, py in spots]
    for number, (line, points) in enumerate(zip(drawn, shown, strict=True)):
        places = [(along.at(x), up.at(y)) for x, y in points]
        if line.named and places:
            parts.append(_beside(*places[0], line.name, tall, taken))
        if not line.dots:
            path = "".join(
                (f"M{px:.1f},{py:.1f}" if k == 0 else f"H{px:.1f}V{py:.1f}" if line.steps else f"L{px:.1f},{py:.1f}")
                for k, (px, py) in enumerate(places)
            )
            wide = "" if (width := chart.width(number)) == THIN else f' style="stroke-width:{width:g}"'
            parts.append(f'<path class="line {line.style}" d="{path}"{wide}/>')
        if line.style != "limit" and (line.dots or len(places) <= MOST_POINTS):
            for (px, py), (x, y) in zip(places, points, strict=True):
                told = f"{line.name}: {y_text(y)} at {x_text(x)}"
                parts.append(
                    f'<circle class="{line.style}" cx="{px:.1f}" cy="{py:.1f}" r="3.5"><title>{escape(told)}</title></circle>'
                )
    return parts


def _beside(x: float, y: float, name: str, tall: int, taken: list[tuple[float, float, float]]) -> str:
    """A point's name where none stands yet, (left, right, height) of those `taken`: right of it, left, or farther up and down."""
    wide = LETTER * len(name)
    places = [
        (side, y + 4.0 + 12.0 * step)
        for step in (0, -1, 1, -2, 2, -3, 3, -4, 4, -5, 5)
        for side in (x + 7.0, x - 7.0 - wide, x - wide / 2.0)
        if step or side > x or side + wide < x
    ]

    def free(left: float, at: float) -> bool:
        fits = left >= LEFT and left + wide <= WIDTH - 2.0 and MARGIN + 8.0 <= at <= tall - BOTTOM
        return fits and all(left > r or left + wide < l or abs(at - h) >= 12.0 for l, r, h in taken)

    if (found := next((place for place in places if free(*place)), None)) is None:
        # pointing at the point tells it, and the table beside the picture
        return ""
    left, at = found
    taken.append((left, left + wide, at))
    return _text(left, at, name, "start")


def _bars(chart: Bars) -> list[str]:
    """Both ends of every row from the middle."""
    rows, middle, text = chart.rows, chart.middle, chart.text
    values = [v for _, low, high in rows for v in (low, high) if v is not None] + [middle]
    low_end = min(values)
    # the longest name fits, as far as that leaves room for the bars
    left = min(max(250.0, 16.0 + LETTER * max((len(name) for name, _, _ in rows), default=0)), 0.6 * WIDTH)
    across = _Axis(low_end * 0.98 if low_end > 0.0 else low_end, max(values) * 1.02, left, WIDTH - MARGIN - 10.0, False)
    height, total = ROW, height_of(chart)
    at = across.at(middle)
    parts = []
    for k, (name, low, high) in enumerate(rows):
        top = MARGIN + k * height
        parts.append(_text(left - 6, top + 18, name, "end"))
        for value, style in ((low, "b"), (high, "c")):
            if value is None:
                continue
            x, width = min(at, across.at(value)), abs(across.at(value) - at)
            told = f"{name}: {text(value)}"
            place = f'x="{x:.1f}" y="{top + 5}" width="{max(width, 1.5):.1f}" height="20"'
            parts.append(f'<rect class="{style}" {place}><title>{escape(told)}</title></rect>')
    parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{MARGIN}" y2="{total - BOTTOM}"/>')
    places = across.ticks()
    # numbers that would run into each other are left out, every second or third stays
    room = (across.end - across.start) / max(len(places), 1)
    every = math.ceil(max((LETTER * len(text(v)) + 12.0 for v in places), default=0.0) / room)
    for v in places[::every]:
        half = 0.5 * LETTER * len(text(v))
        parts.append(_text(min(across.at(v), WIDTH - half - 2.0), total - BOTTOM + 18, text(v), "middle"))
    return parts


def _frame(along: _Axis, up: _Axis, chart: Lines) -> str:
    """Axes with their numbers and names."""
    tall = height_of(chart)
    parts = [f'<path class="axis" d="M{LEFT},{MARGIN}V{tall - BOTTOM}H{WIDTH - MARGIN}"/>']
    for value in along.ticks():
        half = 0.5 * LETTER * len(chart.x_text(value))
        parts.append(_text(min(along.at(value), WIDTH - half), tall - BOTTOM + 16, chart.x_text(value), "middle"))
    for value in up.ticks(chart.whole):
        y = up.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - MARGIN}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 6, y + 4, chart.y_text(value), "end"))
    parts.append(_text((LEFT + WIDTH - MARGIN) / 2, tall - 8, chart.x_name, "middle"))
    parts.append(_text(LEFT, MARGIN - 6, chart.y_name, "start"))
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


DOTS_PER_INCH = 150
"""Of pictures that are no drawings: sharp on a page that is printed."""


def rastered(charts: Sequence[Chart], path: Path) -> Path:
    """Write charts below each other, as :func:`document` lays them out, drawn by matplotlib.

    Raises
    ------
    InputError
        matplotlib is not installed; a file that cannot be written.
    """
    from xml.etree import ElementTree

    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            f"{path}: {path.suffix[1:].upper()} needs matplotlib", f"{installing('plot')}, or name the file .svg."
        ) from error
    page = ElementTree.fromstring(document(charts))
    wide, tall = (float(page.get(side, "")) for side in ("width", "height"))
    figure: Any = Figure(figsize=(wide / 72.0, tall / 72.0))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0.0, wide), ylim=(tall, 0.0))
    axes.axis("off")
    _draw(page, axes)
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, dpi=DOTS_PER_INCH, format=path.suffix[1:].lower())
    except ValueError as error:
        raise InputError(f"{path}: the picture cannot be drawn: {error}") from error
    return write_bytes(path, drawn.getvalue())


_COLOURS = dict(part.split(":") for part in LIGHT.replace("--", "").split(";"))
_INKS = {"title": "ink", **dict(re.findall(r"\.(\w+)\{(?:stroke|fill):var\(--(\w+)\)", STROKES))}
"""Class of what is drawn -> its colour as :data:`STROKES` has it, of others the soft one."""

_DASHES = {
    name: (0, (int(on), int(off))) for name, on, off in re.findall(r"\.(\w+)\{[^}]*dasharray:(\d) (\d)", STROKES)
}
"""Of lines that are not drawn through, as :data:`STROKES` has them."""

_SIDES = {"start": "left", "middle": "center", "end": "right"}


def _draw(part: Any, axes: Any, down: float = 0.0) -> None:
    """What stands in a part of a page, so far down on it."""
    for one in part:
        kind, style = one.tag.rpartition("}")[2], one.get("class", "").rpartition(" ")[2]
        at = {name: float(value) for name, value in one.items() if re.fullmatch(r"[\d.]+", value)}
        ink = _COLOURS[_INKS.get(style, "soft")]
        if kind == "svg":
            _draw(one, axes, at["y"])
        elif kind == "text":
            side, weight = _SIDES[one.get("text-anchor")], "bold" if style == "title" else "normal"
            words = {"ha": side, "color": ink, "weight": weight, "fontsize": 12, "parse_math": False}
            axes.text(at["x"], down + at["y"], one.text, **words)
        elif kind == "circle":
            axes.plot(at["cx"], down + at["cy"], "o", color=ink, markersize=2.0 * at["r"])
        elif kind == "rect" and style:
            axes.bar(at["x"], at["height"], at["width"], down + at["y"], align="edge", color=ink)
        elif kind in ("line", "path"):
            points = _corners(one.get("d") if kind == "path" else "M{x1},{y1}L{x2},{y2}".format(**at))
            told = re.search(r"stroke-width:([\d.]+)", one.get("style", ""))
            width = float(told[1]) if told else THIN if "line" in one.get("class", "") else 1.0
            x, y = ([down * k + point[k] for point in points] for k in (0, 1))
            axes.plot(x, y, color=ink, linewidth=width, linestyle=_DASHES.get(style, "-"))


def _corners(path: str) -> list[tuple[float, float]]:
    """Where a line of :func:`_lines` turns.

    >>> _corners("M1.0,2.0H5.0V3.0")
    [(1.0, 2.0), (5.0, 2.0), (5.0, 3.0)]
    """
    found: list[tuple[float, float]] = []
    for step, to, *more in re.findall(r"([MLHV])([\d.]+),?([\d.]*)", path):
        x, y = (to, *more) if step in "ML" else (to, found[-1][1]) if step == "H" else (found[-1][0], to)
        found.append((float(x), float(y)))
    return found
