"""Pictures of results: well-formed files with every number they show, by command and in notebooks."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import planner as fo
from planner.cli.main import run as main
from planner.errors import InputError
from planner.report.pictures import charts_of, save
from planner.report.svg import Bars, Line, Lines, document, ticks
from planner.report.text.plan import summary
from planner.units import format_count, format_usd

pytestmark = pytest.mark.usefixtures("few_replayed")

SVG = "{http://www.w3.org/2000/svg}"
CHEAP = {"slo": 4.0, "method": "mgc", "kv": "reserved", "pools": 1, "tp": 1}


@pytest.fixture(scope="module")
def plan() -> fo.Plan:
    return fo.plan("azure", rate=100.0, **CHEAP)  # type: ignore[arg-type]


def titles(text: str) -> list[str]:
    """Every label that pointing at something shows."""
    return [t.text or "" for t in ET.fromstring(text).iter(f"{SVG}title")]


def test_every_kind_of_result_is_drawn(plan: fo.Plan, tmp_path: Path) -> None:
    day = fo.schedule(plan, hours="servegen-m-small", rate_is="peak")
    found = fo.evaluate(plan, [50.0, 100.0, 150.0])
    sweep = fo.what_if(plan, rate=[50.0, 100.0], slo=[2.0, 4.0])
    by_name = fo.what_if(plan, gpu=["h100", "a100"])
    for result, said in (
        (plan, "time to first token"),
        (day, "replicas: "),
        (found, "P99 TTFT of this fleet by rate"),
        (sweep, "slo 2.0: $"),
        (by_name, "h100: $"),
        (fo.stability("azure", rate=100.0), "Limits of the fleet"),
        (fo.batching("azure"), "exclusive"),
        (fo.cost(plan, hours="servegen-m-small"), "on demand, by the hour: $"),
    ):
        path = save(result, tmp_path / "x.svg")
        shown = titles(path.read_text(encoding="utf-8"))
        assert any(said in t for t in shown), (said, shown[:6])
        assert "nan" not in path.read_text() and "inf" not in path.read_text()


def test_what_pointing_shows_are_the_numbers(plan: fo.Plan) -> None:
    rows = fo.what_if(plan, rate=[50.0, 100.0, 200.0]).to_rows()
    shown = titles(fo.what_if(plan, rate=[50.0, 100.0, 200.0]).plot()._repr_svg_())
    for row in rows:
        month = format_usd(round(8760.0 / 12.0 * float(str(row["cost_usd_per_hour"]))))
        assert f"cost: {month} at {format_count(float(str(row['rate'])))}" in shown


def test_places_of_points() -> None:
    """A line from (0, 0) to (10, 2): its ends at the frame's corner and right edge, the middle of it halfway."""
    text = document([Lines("t", [Line("l", [(0.0, 0.0), (5.0, 1.0), (10.0, 2.0)])], "x", "y", str, str)])
    circles = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in ET.fromstring(text).iter(f"{SVG}circle")]
    (x0, y0), (x1, y1), (x2, y2) = circles
    assert (x0, x2) == (64.0, 624.0) and x1 == pytest.approx((x0 + x2) / 2)
    assert y0 == 236.0 and y0 > y1 > y2 and y1 == pytest.approx((y0 + y2) / 2, abs=0.06)
    bars = document([Bars("t", [("a", 5.0, 20.0), ("b", None, 15.0)], 10.0, str)])
    widths = [float(r.attrib["width"]) for r in ET.fromstring(bars).iter(f"{SVG}rect") if "class" in r.attrib]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.2) and widths[2] == pytest.approx(widths[0], abs=0.2)


def test_names_cannot_become_tags(tmp_path: Path) -> None:
    text = document([Lines("<script>", [Line("<b>&", [(1.0, 1.0)]), Line("z", [(1.0, 1.0)])], "x", "y", str, str)])
    assert "<script>" not in text and "<b>" not in text
    ET.fromstring(text)


def test_pictures_by_command(plan: fo.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["workload", "show", "azure", "--plot", "w.svg"])
    assert ended.value.code == 0 and "azure: share of requests up to a length" in titles(Path("w.svg").read_text())
    with pytest.raises(SystemExit) as ended:
        main(["workload", "show", "azure", "--plot", "w.gif"])
    assert ended.value.code == 3 and not Path("w.gif").exists()


def test_png_by_matplotlib_or_a_clear_word(plan: fo.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        pass
    else:
        assert save(plan, tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"plot|svg"):
        save(plan, tmp_path / "q.png")
    assert not (tmp_path / "q.png").exists()
    with pytest.raises(InputError, match="nothing of this result"):
        charts_of(object())


def test_lines_that_share_points_are_all_seen() -> None:
    points = [(1.0, 2.0), (2.0, 3.0), (3.0, 5.0)]
    over = [Line("below", points), Line("apart", [(1.0, 9.0), (2.0, 9.5)], "b"), Line("above", points, "c")]
    chart = Lines("t", over, "x", "y", format_count, format_count)
    assert chart.width(0) > chart.width(1) == chart.width(2)
    assert document([chart]).count("stroke-width:4.5") == 1


def test_long_names_of_bars_fit() -> None:
    name = "engine, mixed batching, 2,048 tokens per iteration"
    drawn = ET.fromstring(document([Bars("t", [(name, None, 2.0)], 0.0, format_count)]))
    (place,) = [float(t.attrib["x"]) for t in drawn.iter(f"{SVG}text") if t.text == name]
    assert place > 6.0 * len(name)


@pytest.mark.parametrize(("low", "high"), [(0.35, 0.66), (0.012, 0.05), (0.02, 1.5), (0.001, 900.0)])
def test_logarithmic_axes_have_three_numbers_at_least(low: float, high: float) -> None:
    found = ticks(low, high, log=True)
    assert len(found) >= 3 and low <= found[0] and found[-1] <= high
    assert found == sorted(set(found))


def test_replicas_are_whole() -> None:
    assert ticks(0.0, 2.16, whole=True) == [0.0, 1.0, 2.0]
    assert all(v == round(v) for v in ticks(0.0, 130.0, whole=True))


def test_gpu_types_stand_where_their_rows_have_them_and_each_row_is_what_planning_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("planner.ask.choices.SHAPES", {})
    asked = {"slo": 4.0, "rate": 200.0, "method": "mgc", "kv": "reserved", "pools": 1, "tp": 1, "token_budget": 2048}
    found = fo.plan("azure", gpu="any", choices=True, **asked)  # type: ignore[arg-type]
    assert found.choices is not None
    rows = {c.changes["gpu"][0]: c for c in found.choices.rows if c.kind == "gpu" and c.gpus}  # type: ignore[index]
    for name in [*rows][::5]:
        plan = fo.plan("azure", gpu=name, **asked)  # type: ignore[arg-type]
        told = (plan.cost_usd_per_hour, plan.gpus, plan.pools[0].quantile("ttft_s", 0.99))
        assert (rows[name].cost_usd_per_hour, rows[name].gpus, rows[name].ttft_p99_s) == told
    chart = next(c for c in charts_of(found) if "GPU types" in c.title)
    assert isinstance(chart, Lines)
    points = {line.name: line.points[0] for line in chart.drawn}
    own = found.pools[0]
    of_plan = (own.quantile("ttft_s", 0.99), 730.0 * found.cost_usd_per_hour)
    of_rows = {name: (c.ttft_p99_s, 730.0 * (c.cost_usd_per_hour or 0.0)) for name, c in rows.items()}
    assert points == {f"{own.gpu} (this plan)": of_plan, **of_rows}
    # every priced type that the model fits on and that can keep the promise, whatever it costs
    assert len(points) >= 15
    line = next(line for line in summary(found) if line.startswith("GPU TYPES"))
    cheapest = min(rows.values(), key=lambda c: c.cost_usd_per_hour or 0.0)
    assert f"{cheapest.flags.split()[-1]}: {cheapest.gpus} GPUs" in line
    drawn = document([chart])
    names = [t for t in ET.fromstring(drawn).iter(f"{SVG}text") if t.text in points]
    assert names[0].text == f"{own.gpu} (this plan)"
    boxes = [(float(t.attrib["x"]), float(t.attrib["y"]), 7.0 * len(t.text or "")) for t in names]
    assert all(x >= 0.0 and x + wide <= 640.0 for x, _, wide in boxes)
    apart = [
        abs(y - v) >= 12.0 or x + w <= u or u + z <= x for k, (x, y, w) in enumerate(boxes) for u, v, z in boxes[:k]
    ]
    assert all(apart) and len(names) >= 0.8 * len(points)
    assert {line.name for line in chart.drawn if any(line.name in t for t in titles(drawn))} == set(points)
