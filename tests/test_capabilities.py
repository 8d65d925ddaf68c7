"""Nothing that was ever offered is gone: commands, options, formats, policies, targets, the catalog, numbers of papers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

GOLDEN = Path(__file__).with_name("golden")


@pytest.fixture(scope="module")
def listed() -> dict[str, Any]:
    """What was there, and the successors of what went."""
    found: dict[str, Any] = yaml.safe_load((GOLDEN / "capabilities.yaml").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script that makes the list."""
    spec = importlib.util.spec_from_file_location("make_capabilities", GOLDEN / "make_capabilities.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_everything_is_still_there(listed: dict[str, Any], script: ModuleType) -> None:
    known = {kind: found for kind, found in listed.items() if kind not in ("successors", script.PRINTED)}
    today = script.registered()
    gone = set(script.missing(known, today))
    assert sorted(gone - set(listed["successors"])) == [], (
        "name what does its work under successors in capabilities.yaml"
    )
    needless = {one for one in listed["successors"] if not one.startswith(script.PRINTED)} - gone
    assert sorted(needless) == [], "has a successor, and is there"


@pytest.mark.long("every number of the papers is computed")
@pytest.mark.parametrize("paper", ("fleetopt", "rad-slai", "exclusive-batching", "wait"))
def test_numbers_of_papers(paper: str, listed: dict[str, Any], script: ModuleType) -> None:
    gone = {*script.missing(listed[script.PRINTED][paper], script.printed(paper), f"{script.PRINTED}: {paper}")}
    assert sorted(gone - set(listed["successors"])) == []
