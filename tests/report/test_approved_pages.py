"""Every kind of result says what was approved (tests/golden/make_pages.py), on both sides of the branches of its page."""

from __future__ import annotations

import datetime
import json
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from planner.errors import InputError
from planner.report import formatter
from planner.report.blocks import Table, to_markdown, to_terminal
from planner.report.exports.plan import vllm
from planner.report.output import blocks_of, rows_to_csv, summary_of
from tests.golden.make_pages import KINDS, PAGES, rendered
from tests.report.report_cases import offers


@cache
def made(kind: str) -> dict[str, Any]:
    """The cases of one maker."""
    return KINDS[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_pages_are_as_approved(kind: str) -> None:
    for name, result in made(kind).items():
        assert rendered(result) == (PAGES / f"{name}.txt").read_text(encoding="utf-8"), name


def test_every_approved_page_has_its_case() -> None:
    assert {p.stem for p in PAGES.glob("*.txt")} == {name for kind in KINDS for name in made(kind)}


def test_offers_are_told_with_their_age() -> None:
    listed = offers()
    today = datetime.date.today()
    ages = [(today - datetime.date.fromisoformat(o["date"])).days for o in listed.to_rows()]
    table, text = blocks_of(listed)
    assert table.columns == ("gpu", "USD/GPU/hour", "term", "vendor", "region", "seen", "age, days", "list")
    assert table.rows == [
        ["h100-80gb", "2.5 *", "on-demand", "acme", "us", "2020-01-01", f"{ages[0]} stale", "shipped"],
        ["l4", "0.3", "spot", "bulk", "-", "2999-01-01", f"{ages[1]}", "yours"],
    ]
    assert set(table.left) == {"gpu", "term", "vendor", "region", "seen", "list"}
    assert text.lines == ["* what a plan takes without --price"]
    assert [row["used"] for row in listed.to_rows()] == [True, False]
    assert [offer["used"] for offer in listed.to_dict()["offers"]] == [True, False]


def test_every_format_has_what_the_result_has(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, wait = made("plans")["plan"], made("advice")["wait"]
    lines = to_terminal(blocks_of(whole), 100).split("\n")
    for result, told in ((whole, {**whole.to_dict(), "summary": lines}), (wait, wait.to_dict())):
        plain = json.loads(json.dumps(told))
        assert json.loads(formatter("json")(result)) == plain == yaml.safe_load(formatter("yaml")(result))
        assert formatter("csv")(result) == rows_to_csv(result.to_rows())
        assert formatter("table")(result) == to_terminal(blocks_of(result))
        assert formatter("markdown")(result) == to_markdown(blocks_of(result))
    assert formatter("json")(wait).splitlines()[1].startswith('  "')
    assert summary_of(wait) == []
    with pytest.raises(InputError, match=r"--format: 'jsn' is none of table, markdown, json, yaml, csv.*json"):
        formatter("jsn")
    assert formatter("vllm", "plan")(whole) == vllm.render(whole)
    # a result without words of its own is told by its rows
    rows = SimpleNamespace(to_rows=lambda: [{"rate_per_s": 2.5, "stable": True}])
    assert to_terminal(blocks_of(rows)) == "rate/s  stable\n──────────────\n   2.5     yes"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Table(["a"], [["1"]]).to_text() == "\033[1ma\033[0m\n─\n1"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Table(["a"], [["1"]]).to_text() == "a\n─\n1"
