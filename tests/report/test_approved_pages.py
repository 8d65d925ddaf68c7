"""Every kind of result says what was approved (tests/golden/make_pages.py), on both sides of the branches of its page."""

from __future__ import annotations

import datetime
from functools import cache
from typing import Any

import pytest

from planner.report.text import blocks_of
from tests.golden.make_pages import KINDS, PAGES, rendered
from tests.report.cases import offers


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
    old, new = listed.offers
    today = datetime.date.today()
    ages = [(today - datetime.date.fromisoformat(o.date)).days for o in (old, new)]
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
