"""The page about a plan: self-contained, whole, its pictures with their tables, its numbers those of the plan."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

import planner as fo
from planner.cli.main import app
from planner.report.charts import Line, Lines
from planner.report.page import as_html, as_markdown
from planner.report.svg import drawing
from planner.studies.overview import Overview

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
    assert f"{plan.gpus} GPUs" in page
    rows = seen.rates.to_rows()
    assert [row["rate_per_s"] for row in rows][4] == pytest.approx(plan.arrival_rate_per_s)
    assert rows[4]["ttft_p99_s"] == pytest.approx(plan.pools[0].quantile("ttft_s", 0.99), rel=1e-9)
    traffic = next(d for d in seen.doubts if d.name.startswith("traffic"))
    again = fo.what_if(plan, rate=[1.2 * plan.arrival_rate_per_s]).points[0].plan
    assert again is not None
    assert traffic.high_usd_per_hour == pytest.approx(again.cost_usd_per_hour)
    assert "## To repeat it" in as_markdown(seen)


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
        "2",
        "--method",
        "occupancy",
        "--pools",
        "1",
        "--burst",
        "poisson",
        "-o",
        str(plan),
    ]
    assert CliRunner().invoke(app, asked).exit_code == 0
    for name, start in (("page.html", "<!doctype html>"), ("page.md", "## azure")):
        found = CliRunner().invoke(app, ["report", str(plan), "-o", str(tmp_path / name), "--options-seconds", "0"])
        assert found.exit_code == 0, found.output
        assert (tmp_path / name).read_text().startswith(start)
