"""Where everything of a chart stands, worked out anew from its numbers: as SVG, and in what matplotlib is told to draw."""

from __future__ import annotations

import math
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planner.errors import InputError
from planner.report import svg
from planner.report.svg import DARK, LIGHT, Bars, Chart, Line, Lines, document, drawing, figure, ticks

SVG = "{http://www.w3.org/2000/svg}"
X0, X1, Y0, Y1 = 64.0, 624.0, 236.0, 16.0
"""Ends of the axes on the page."""


def text(value: float) -> str:
    return f"v{value:g}"


STEPS = Lines(
    "a & b",
    [
        Line("up <1>", [(0.0, 2.0), (5.0, 4.0), (10.0, math.inf)]),
        Line("dots", [(1.0, 1.0), (9.0, 3.0)], "b", dots=True),
        Line("kept", [(0.0, 3.0), (10.0, 5.0)], "c", steps=True),
        Line("most", [(0.0, 4.5), (10.0, 4.5)], "limit"),
    ],
    "along",
    "height",
    text,
    text,
    marks=[(2.0, "here"), (9.9, "a longer name")],
)
LOGS = Lines(
    "logs",
    [Line("l", [(1.0, 0.01), (10.0, 0.1), (100.0, 10.0), (50.0, 0.0)])],
    "x",
    "y",
    text,
    text,
    log_x=True,
    log_y=True,
)
BARS = Bars(
    "what",
    [("one", 8.0, 14.0), ("two, longer than the other by far indeed", None, 20.0), ("three", 10.0, None)],
    10.0,
    text,
)


def parsed(chart: Chart) -> ET.Element:
    """The drawing with its name space."""
    return ET.fromstring(drawing(chart).replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1))


def numbers(path: str) -> list[tuple[str, list[float]]]:
    """Letters of a path with their numbers."""
    return [(m[0][0], [float(v) for v in m[0][1:].split(",")]) for m in re.finditer(r"[A-Z][-\d.,]+", path)]


def placed(root: ET.Element) -> dict[str, tuple[float, float, str]]:
    """Every text with its place and its anchor."""
    return {
        t.text or "": (float(t.attrib["x"]), float(t.attrib["y"]), t.attrib["text-anchor"])
        for t in root.iter(f"{SVG}text")
    }


def place(value: float, low: float, high: float, start: float, end: float, log: bool = False) -> float:
    """Where a value stands."""
    f = math.log if log else float
    return start + (f(value) - f(low)) / (f(high) - f(low)) * (end - start)


def test_lines_stand_where_their_numbers_say() -> None:
    root = parsed(STEPS)
    top = 1.08 * 5.0

    def at(x: float, y: float) -> list[float]:
        return [place(x, 0.0, 10.0, X0, X1), place(y, 0.0, top, Y0, Y1)]

    paths = {p.attrib["class"]: numbers(p.attrib["d"]) for p in root.iter(f"{SVG}path")}
    near = lambda found: pytest.approx(found, abs=0.051)  # noqa: E731
    assert set(paths) == {"axis", "line a", "line c", "line limit"}
    assert paths["axis"] == [("M", [X0, Y1]), ("V", [Y0]), ("H", [X1])]
    assert [k for k, _ in paths["line a"]] == ["M", "L"]
    assert [v for _, v in paths["line a"]] == [near(at(0.0, 2.0)), near(at(5.0, 4.0))]
    assert [k for k, _ in paths["line c"]] == ["M", "H", "V"]
    (x, y), (x1, y1) = at(0.0, 3.0), at(10.0, 5.0)
    assert [v for _, v in paths["line c"]] == [near([x, y]), near([x1]), near([y1])]
    assert [v for _, v in paths["line limit"]] == [near(at(0.0, 4.5)), near(at(10.0, 4.5))]
    dots = [
        (c.attrib["class"], [float(c.attrib["cx"]), float(c.attrib["cy"])], c[0].text)
        for c in root.iter(f"{SVG}circle")
    ]
    told = [
        ("a", 0.0, 2.0, "up <1>"),
        ("a", 5.0, 4.0, "up <1>"),
        ("b", 1.0, 1.0, "dots"),
        ("b", 9.0, 3.0, "dots"),
        ("c", 0.0, 3.0, "kept"),
        ("c", 10.0, 5.0, "kept"),
    ]
    assert dots == [(style, near(at(x, y)), f"{name}: v{y:g} at v{x:g}") for style, x, y, name in told]
    assert all(c.attrib["r"] == "3.5" for c in root.iter(f"{SVG}circle"))
    grid = [line.attrib for line in root.iter(f"{SVG}line") if line.attrib["class"] == "grid"]
    assert [(float(g["x1"]), float(g["x2"])) for g in grid] == [(X0, X1)] * 6
    heights = [at(0.0, float(v))[1] for v in range(6)]
    assert [float(g["y1"]) for g in grid] == near(heights) == [float(g["y2"]) for g in grid]
    words = placed(root)
    assert [(words[f"v{v}"][1], words[f"v{v}"][2]) for v in (1, 3, 5)] == [
        (near(heights[v] + 4), "end") for v in (1, 3, 5)
    ]
    assert words["v1"][0] == X0 - 6
    assert words["v6"] == (near(place(6.0, 0.0, 10.0, X0, X1)), Y0 + 16, "middle")
    assert words["along"] == (344.0, 272.0, "middle")
    assert words["height"] == (X0, Y1 - 6, "start")
    marks = [line.attrib for line in root.iter(f"{SVG}line") if line.attrib["class"] == "mark"]
    spots = [at(2.0, 0.0)[0], at(9.9, 0.0)[0]]
    assert [float(m[k]) for k in ("x1", "x2") for m in marks] == near([*spots, *spots])
    assert {(m["y1"], m["y2"]) for m in marks} == {("16", "236")}
    assert words["here"] == (near(spots[0] + 5), Y1 - 6, "start")
    assert words["a longer name"] == (near(spots[1] - 5), Y1 + 10, "end")
    assert (root.attrib["aria-label"], root.attrib["viewBox"], root[0].text) == ("a & b", "0 0 640 280", "a & b")


def test_logarithmic_axes_stand_where_their_numbers_say() -> None:
    root = parsed(LOGS)
    (path,) = [p for p in root.iter(f"{SVG}path") if p.attrib["class"] == "line a"]
    low, high = 0.01 / 1.2, 10.0 * 1.2
    # what is not above nothing is left out
    points = [(1.0, 0.01), (10.0, 0.1), (100.0, 10.0)]
    wanted = [[place(x, 1.0, 100.0, X0, X1, True), place(y, low, high, Y0, Y1, True)] for x, y in points]
    assert [v for _, v in numbers(path.attrib["d"])] == [pytest.approx(w, abs=0.051) for w in wanted]
    words = placed(root)
    assert words["v20"][0] == pytest.approx(place(20.0, 1.0, 100.0, X0, X1, True), abs=0.051)
    assert words["v0.1"][1] == pytest.approx(place(0.1, low, high, Y0, Y1, True) + 4, abs=0.051)


def test_a_mark_outside_and_lines_without_points_stay_in_the_frame() -> None:
    empty = parsed(Lines("t", [Line("l", [(1.0, math.inf)])], "x", "y", text, text))
    assert [p.attrib["class"] for p in empty.iter(f"{SVG}path")] == ["axis", "line a"]
    assert list(placed(empty))[:3] == ["v0", "v0.2", "v0.4"]
    below = parsed(Lines("t", [Line("l", [(0.0, -2.0), (1.0, 0.0)])], "x", "y", text, text))
    cy = [float(c.attrib["cy"]) for c in below.iter(f"{SVG}circle")]
    assert cy == pytest.approx([Y0, place(0.0, -2.0, 1.0, Y0, Y1)], abs=0.051)
    many = [(float(k), 1.0) for k in range(61)]
    assert list(parsed(Lines("t", [Line("l", many)], "x", "y", text, text)).iter(f"{SVG}circle")) == []
    assert len(list(parsed(Lines("t", [Line("l", many[:60])], "x", "y", text, text)).iter(f"{SVG}circle"))) == 60
    assert len(list(parsed(Lines("t", [Line("l", many, dots=True)], "x", "y", text, text)).iter(f"{SVG}circle"))) == 61


def test_bars_reach_from_the_middle_to_their_ends() -> None:
    root = parsed(BARS)
    left = 16.0 + 7.0 * len(BARS.rows[1][0])
    assert 250.0 < left < 384.0
    low, high = 0.98 * 8.0, 1.02 * 20.0

    def at(v: float) -> float:
        return place(v, low, high, left, 614.0)

    rects = [
        (r.attrib["class"], *(float(r.attrib[k]) for k in ("x", "y", "width", "height")), r[0].text)
        for r in root.iter(f"{SVG}rect")
    ]
    near = lambda v: pytest.approx(v, abs=0.051)  # noqa: E731
    name = BARS.rows[1][0]
    assert rects == [
        ("b", near(at(8.0)), 21.0, near(at(10.0) - at(8.0)), 20.0, "one: v8"),
        ("c", near(at(10.0)), 21.0, near(at(14.0) - at(10.0)), 20.0, "one: v14"),
        ("c", near(at(10.0)), 55.0, near(at(20.0) - at(10.0)), 20.0, f"{name}: v20"),
        ("b", near(at(10.0)), 89.0, 1.5, 20.0, "three: v10"),
    ]
    words = placed(root)
    assert [words[n] for n in ("one", name, "three")] == [(near(left - 6), 34.0 + 34 * k, "end") for k in range(3)]
    (mark,) = root.iter(f"{SVG}line")
    assert [float(mark.attrib[k]) for k in ("x1", "x2", "y1", "y2")] == [near(at(10.0)), near(at(10.0)), 16.0, 118.0]
    assert root.attrib["viewBox"] == "0 0 640 162"
    assert [(k, words[k]) for k in words if k.startswith("v")] == [
        (f"v{v}", (near(min(at(v), 640 - 3.5 * len(f"v{v}") - 2)), 136.0, "middle")) for v in (10, 12.5, 15, 17.5, 20)
    ]


def test_numbers_that_would_run_into_each_other_are_left_out() -> None:
    def long(value: float) -> str:
        return f"{value:014.1f}"

    words = [w for w in placed(parsed(Bars("t", [("n", None, 5.0)], 0.0, long))) if w[0] == "0"]
    room = (614.0 - 250.0) / len(ticks(0.0, 5.1))
    every = math.ceil((7.0 * 14 + 12.0) / room)
    assert words == [long(v) for v in ticks(0.0, 5.1)][::every]
    assert every == 2
    negative = placed(parsed(Bars("t", [("n", -4.0, 5.0)], 0.0, text)))
    assert negative["v0"][0] == pytest.approx(place(0.0, -4.0, 5.1, 250.0, 614.0), abs=0.051)


def test_a_document_lays_charts_below_each_other_with_their_legends() -> None:
    root = ET.fromstring(document([STEPS, BARS]))
    height = 46 + 280 + 46 + 162
    assert (root.attrib["viewBox"], root.attrib["height"], root.attrib["width"]) == (
        f"0 0 640 {height}",
        str(height),
        "640",
    )
    inner = [s.attrib for s in root.findall(f"{SVG}svg")]
    assert [(s["x"], s["y"], s["width"], s["height"]) for s in inner] == [
        ("0", "46", "640", "280"),
        ("0", "372", "640", "162"),
    ]
    titles = [
        (t.text, t.attrib["x"], t.attrib["y"]) for t in root.findall(f"{SVG}text") if t.attrib.get("class") == "title"
    ]
    assert titles == [("a & b", "64.0", "22.0"), ("what", "64.0", "348.0")]
    at, keys = 64, []
    for line in STEPS.drawn:
        keys.append((f"line {line.style}", str(at), str(at + 18), "36", line.name, f"{at + 23:.1f}", "40.0"))
        at += 44 + round(7.0 * len(line.name))
    lines, names = root.findall(f"{SVG}line"), [t for t in root.findall(f"{SVG}text") if "class" not in t.attrib]
    assert [
        (k.attrib["class"], k.attrib["x1"], k.attrib["x2"], k.attrib["y1"], n.text, n.attrib["x"], n.attrib["y"])
        for k, n in zip(lines, names, strict=True)
    ] == keys
    assert all(k.attrib["y1"] == k.attrib["y2"] for k in lines)
    (style,) = root.iter(f"{SVG}style")
    assert LIGHT in (style.text or "") and DARK in (style.text or "") and ":root" not in (style.text or "")
    (paper,) = root.findall(f"{SVG}rect")
    assert (paper.attrib["width"], paper.attrib["height"]) == ("640", str(height))
    one = ET.fromstring(document([LOGS]))
    assert one.findall(f"{SVG}line") == [] and one.attrib["height"] == "326"
    page = figure(STEPS)
    assert re.findall(r'<span class="key (\w+)">([^<]*)<', page) == [
        ("a", "up &lt;1&gt;"),
        ("b", "dots"),
        ("c", "kept"),
        ("limit", "most"),
    ]
    assert page.startswith(drawing(STEPS)) and figure(BARS) == drawing(BARS)


def test_round_values_of_axes() -> None:
    assert ticks(1.0, 1.0) == [1.0]
    assert ticks(0.0, 6.0) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert ticks(0.0, 7.0) == [0.0, 2.0, 4.0, 6.0] and ticks(0.0, 1.3) == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25]
    assert ticks(0.0, 13.0) == [0.0, 2.5, 5.0, 7.5, 10.0, 12.5] and ticks(0.0, 13.0, whole=True) == [
        0.0,
        3.0,
        6.0,
        9.0,
        12.0,
    ]
    assert ticks(2.0, 8.0, log=True) == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert ticks(1.0, 11.0, log=True) == [1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0]
    assert ticks(1.0, 12.0, log=True) == [1.0, 2.0, 5.0, 10.0] and ticks(1.0, 200.0, log=True) == [1.0, 10.0, 100.0]
    assert ticks(1.0, 4.1, log=True) == [1.0, 1.5, 2.0, 3.0] and ticks(1.0, 4.0, log=True) == [
        1.0,
        1.5,
        2.0,
        2.5,
        3.0,
        3.5,
        4.0,
    ]


class Told:
    """Stands for what matplotlib draws with: keeps every call."""

    def __init__(self, **named: Any) -> None:
        self.named, self.calls, self.axes = named, [], []  # type: ignore[var-annotated]

    def add_axes(self, place: tuple[float, ...], **named: Any) -> Told:
        self.axes.append(Told(place=place, **named))
        return self.axes[-1]

    def savefig(self, to: Any, **named: Any) -> None:
        if named["format"] == "odd":
            raise ValueError("no such format")
        self.calls.append(("savefig", (), named))
        to.write(b"picture")

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: self.calls.append((name, args, named))

    def of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Calls of one name."""
        return [(args, named) for called, args, named in self.calls if called == name]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Told]:
    """Figures that are made, of something in matplotlib's place."""
    found: list[Told] = []

    def figure_of(**named: Any) -> Told:
        found.append(Told(**named))
        return found[-1]

    fake = ModuleType("matplotlib.figure")
    fake.Figure = figure_of  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "matplotlib", ModuleType("matplotlib"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", fake)
    return found


def test_matplotlib_draws_what_stands_on_the_page(made: list[Told], tmp_path: Path) -> None:
    """Two charts below each other, as the drawing has them: lines with their corners, points, bars and words."""
    path = svg.rastered([STEPS, BARS], tmp_path / "x.PNG")
    assert path == tmp_path / "x.PNG" and path.read_bytes() == b"picture"
    (figure,) = made
    (axes,) = figure.axes
    # 46 above each; 280 of the lines, 60 and 34 a row of the bars
    tall = 46 + 280 + 46 + 60 + 3 * 34
    assert figure.named == {"figsize": (640 / 72.0, tall / 72.0)} and figure.of("savefig") == [
        ((), {"dpi": 150, "format": "png"})
    ]
    assert axes.named == {"place": (0.0, 0.0, 1.0, 1.0), "xlim": (0.0, 640.0), "ylim": (float(tall), 0.0)}
    ink = dict(re.findall(r"--(\w+):(#\w+)", LIGHT))
    lines = [(args[0], args[1], named) for args, named in axes.of("plot") if "linewidth" in named]
    told = {"color": ink["c"], "linewidth": 2.0, "linestyle": "-"}
    # the first chart begins at 46, and its frame at 46 + 16 goes to 46 + 236; 10 along is its end
    (kept,) = [(x, y, named) for x, y, named in lines if named["color"] == ink["c"] and len(x) > 2]
    assert kept[0] == [X0, X1, X1] and kept[1][0] == kept[1][1] == pytest.approx(46 + Y0 - 220 * 3 / 5.4, abs=0.06)
    assert kept[2] == told
    (most,) = [named for x, y, named in lines if named["color"] == ink["bad"] and x == [X0, X1]]
    assert most == {"color": ink["bad"], "linewidth": 2.0, "linestyle": (0, (6, 4))}
    marks = [(x, y) for x, y, named in lines if named["color"] == ink["ink"]]
    assert [x for x, _ in marks[:2]] == [[176.0, 176.0], [618.4, 618.4]] and marks[0][1] == [46 + Y1, 46 + Y0]
    points = [(args[2], named["color"]) for args, named in axes.of("plot") if "markersize" in named]
    assert points == [("o", ink[style]) for style in "aabbcc"]
    bars = [(args[1], args[3], named["color"]) for args, named in axes.of("bar")]
    assert bars == [
        (20.0, 46 + 280 + 46 + 16 + 34 * row + 5, ink[style]) for row, style in ((0, "b"), (0, "c"), (1, "c"), (2, "b"))
    ]
    words = {args[2]: (args[:2], named["ha"], named["weight"]) for args, named in axes.of("text")}
    assert words["a & b"] == ((X0, 22.0), "left", "bold") and words["along"] == (
        (344.0, 46 + 272.0),
        "center",
        "normal",
    )
    assert words["three"][1] == "right" and all(named["parse_math"] is False for _, named in axes.of("text"))


def test_a_line_without_points_draws_nothing(made: list[Told], tmp_path: Path) -> None:
    svg.rastered([Lines("t", [Line("l", [(1.0, math.inf)])], "x", "y", text, text)], tmp_path / "x.png")
    assert ([], []) in [args for args, _ in made[0].axes[0].of("plot")]


def test_pictures_that_cannot_be_made_say_so(made: list[Told], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="cannot be drawn: no such format"):
        svg.rastered([BARS], tmp_path / "x.odd")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match="PDF needs matplotlib") as failed:
        svg.rastered([BARS], tmp_path / "x.pdf")
    assert "plot" in (failed.value.hint or "") and ".svg" in (failed.value.hint or "")
