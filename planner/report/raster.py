"""Charts by matplotlib (extra ``plot``): PNG and PDF."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.report.svg import LIGHT, ROW, WIDTH, Bars, Chart, Lines, height_of, ticks
from planner.shared.extras import installing
from planner.shared.writing import write_bytes

DOTS_PER_INCH = 150


def draw(charts: Sequence[Chart], path: Path) -> Path:
    """Write charts below each other.

    Raises
    ------
    InputError
        matplotlib is not installed; a file that cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            f"{path}: {path.suffix[1:].upper()} needs matplotlib", f"{installing('plot')}, or name the file .svg."
        ) from error
    heights = [height_of(c) if isinstance(c, Lines) else 90 + ROW * len(c.rows) for c in charts]
    figure: Any = Figure(figsize=(WIDTH / 72.0, sum(heights) / 72.0), layout="constrained")
    panels = figure.subplots(len(charts), 1, squeeze=False, height_ratios=heights)[:, 0]
    colours = dict(part.split(":") for part in LIGHT.replace("--", "").split(";"))
    for chart, panel in zip(charts, panels, strict=True):
        if isinstance(chart, Lines):
            _lines(chart, panel, colours)
        else:
            _bars(chart, panel, colours)
        panel.set_title(chart.title, loc="left", fontsize=10)
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, dpi=DOTS_PER_INCH, format=path.suffix[1:].lower())
    except ValueError as error:
        raise InputError(f"{path}: the picture cannot be drawn: {error}") from error
    return write_bytes(path, drawn.getvalue())


def _lines(chart: Lines, panel: Any, colours: dict[str, str]) -> None:
    """Lines with their axes, numbers written as in the other pictures."""
    for k, line in enumerate(chart.drawn):
        points = [(x, y) for x, y in line.points if math.isfinite(y)]
        x, y = ([p[k] for p in points] for k in (0, 1))
        colour = colours["bad" if line.style == "limit" else line.style]
        dashes = "--" if line.style == "limit" else "none" if line.dots else "-"
        panel.plot(
            x, y, color=colour, linestyle=dashes, marker="o" if line.dots else None, markersize=3,
            label=None if line.named else line.name, linewidth=0.75 * chart.width(k),
            drawstyle="steps-post" if line.steps else "default",
        )  # fmt: skip
        if line.named and points:
            panel.annotate(line.name, points[0], xytext=(5, 3), textcoords="offset points", fontsize=8)
    for k, (place, name) in enumerate(chart.marks):
        panel.axvline(place, color=colours["ink"], linestyle=":")
        panel.annotate(name, (place, 1.0 - 0.08 * k), xycoords=("data", "axes fraction"), va="top", fontsize=8)
    panel.set(xlabel=chart.x_name, ylabel=chart.y_name)
    if chart.log_x:
        panel.set_xscale("log")
    if chart.log_y:
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=min(0.0, panel.get_ylim()[0]))
    for axis, (low, high), log, text in (
        (panel.xaxis, panel.get_xlim(), chart.log_x, chart.x_text),
        (panel.yaxis, panel.get_ylim(), chart.log_y, chart.y_text),
    ):
        places = ticks(low, high, log, chart.whole and axis is panel.yaxis)
        axis.set_ticks(places, [text(v) for v in places])
        axis.set_ticks([], minor=True)
    panel.grid(True, alpha=0.3)
    if len(chart.legend) > 1:
        panel.legend(fontsize=8)


def _bars(chart: Bars, panel: Any, colours: dict[str, str]) -> None:
    """Rows from above, both ends from the middle."""
    for k, (_, low, high) in enumerate(chart.rows):
        for value, style in ((low, "b"), (high, "c")):
            if value is not None:
                panel.barh(-k, value - chart.middle, left=chart.middle, height=0.6, color=colours[style])
    panel.set_yticks([-k for k in range(len(chart.rows))], [name for name, _, _ in chart.rows])
    panel.axvline(chart.middle, color=colours["ink"], linestyle=":")
    panel.xaxis.set_major_formatter(lambda value, _: chart.text(value))
