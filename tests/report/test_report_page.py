"""The page about a plan: self-contained, whole, its pictures with their tables, its numbers those of the plan."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

import planner as fo
from planner.ask.overview import Overview
from planner.cli.main import app
from planner.report.page import as_html, as_markdown
from planner.report.svg import Line, Lines, drawing

pytestmark = pytest.mark.usefixtures("few_replayed")

VOID = {"meta", "br", "input"}


class Whole(HTMLParser):
    """Every tag is closed in order; what is seen of attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def seen() -> Overview:
    plan = fo.plan("azure", slo=2.0, rate=100.0, method="occupancy", pools=1, routing="random", burst="poisson")
    return fo.overview(plan, choices=0)


def test_the_page_is_whole_and_alone(seen: Overview) -> None:
    page = as_html(seen)
    read = Whole()
    read.feed(page)
    assert read.open == []
    assert read.addresses == []
    assert "http" not in page
    assert "script" not in read.tags
    assert read.tags.count("svg") == read.tags.count("details") >= 3
    assert len(page) < 2_000_000
    assert not re.search(r"\b(nan|inf|None)\b", re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL))


def test_its_numbers_are_the_plans(seen: Overview) -> None:
    plan = seen.plan
    page = as_html(seen)
    assert f"{plan.gpus} x {plan.pools[0].gpu}" in page
    rows = seen.rates.to_rows()
    assert [row["rate_per_s"] for row in rows][4] == pytest.approx(plan.arrival_rate_per_s)
    assert rows[4]["ttft_p99_s"] == pytest.approx(plan.pools[0].quantile("ttft_s", 0.99), rel=1e-9)
    traffic = next(d for d in seen.doubts if d.name.startswith("traffic"))
    again = fo.what_if(plan, rate=[1.2 * plan.arrival_rate_per_s]).points[0].plan
    assert again is not None
    assert traffic.high_usd_per_hour == pytest.approx(again.cost_usd_per_hour)
    assert "## To repeat it" in as_markdown(seen)


def test_doubts_are_what_other_plans_cost(seen: Overview) -> None:
    """By plans of their own; the ends of the band by the plan's own range of replicas."""
    plan = seen.plan
    asked = {"workload": "azure", "slo": 2.0, "rate": 100.0, "method": "occupancy", "pools": 1, "routing": "random"}
    doubts = {d.name.split()[0]: d for d in seen.doubts}
    longer = fo.plan(**{**asked, "burst": "poisson", "osl_scale": 1.2})
    assert doubts["outputs"].high_usd_per_hour == pytest.approx(longer.cost_usd_per_hour)
    tighter = fo.plan(**{**asked, "burst": "poisson", "slo": 1.6})
    assert doubts["limits"].high_usd_per_hour == pytest.approx(tighter.cost_usd_per_hour)
    (pool,) = plan.pools
    each = plan.cost_usd_per_hour / pool.replicas
    assert doubts["iteration"].low_usd_per_hour == pytest.approx(each * pool.replicas_low)
    assert "no" not in doubts  # these arrivals have no bursts to be without
    assert [*seen.rates.rates_per_s] == sorted(seen.rates.rates_per_s)


def test_a_fleet_cut_by_length_shows_what_other_boundaries_cost() -> None:
    plan = fo.plan(
        "agent-heavy", slo=2.0, rate=300.0, method="occupancy", pools=2, routing="random", tp=1, token_budget=2048
    )
    assert len(plan.pools) == 2
    found = fo.overview(plan, choices=0)
    own = next(c for c in found.cuts if c.boundary_tokens == plan.pools[0].high_tokens)
    # of more than 250 replicas a number within one in 250 is taken
    assert own.cost_usd_per_hour == pytest.approx(plan.cost_usd_per_hour, rel=1.0 / 250.0)
    assert all(c.cost_usd_per_hour is None or c.cost_usd_per_hour >= 0.98 * plan.cost_usd_per_hour for c in found.cuts)
    assert "Where requests are cut" in as_html(found)


def test_what_a_file_says_cannot_become_a_tag(seen: Overview) -> None:
    from dataclasses import replace

    said = "<script>alert(1)</script>"
    page = as_html(replace(seen, plan=replace(seen.plan, notes=(said,), assumptions=(said,)), command=said))
    assert "<script" not in page


def test_pictures_survive_any_numbers() -> None:
    for points in (
        [],
        [(1.0, 5.0)],
        [(1.0, 0.0), (2.0, float("inf"))],
        [(1.0, 3.0), (2.0, 3.0)],
        [(0.0, 1e-9), (1e6, 1e9)],
    ):
        for log in (False, True):
            picture = drawing(Lines("t", [Line("a", points)], "x", "y", str, str, log_y=log))
            assert "nan" not in picture
            assert "inf" not in picture


def test_the_command_writes_a_page_or_a_document(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    asked = [
        "plan",
        "--cdf",
        "azure.csv",
        "--slo",
        "4",
        "--method",
        "mgc",
        "--kv",
        "reserved",
        "--pools",
        "1",
        "--tp",
        "1",
        "-o",
        str(plan),
    ]
    assert CliRunner().invoke(app, asked).exit_code == 0
    for name, start, more in (("page.html", "<!doctype", ["--no-options"]), ("page.md", "## llama-3.1-8b   azure", [])):
        found = CliRunner().invoke(app, ["report", str(plan), "-o", str(tmp_path / name), *more])
        assert found.exit_code == 0, found.output
        assert (tmp_path / name).read_text().startswith(start)
