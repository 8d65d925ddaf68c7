"""Plan files read back: nothing is lost, and what was changed by hand is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import planner as fo
from planner.question.files import load_question, recorded_plan

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances")

KINDS: dict[str, dict[str, Any]] = {
    "one pool": {"slo": 2.0, "routing": "random"},
    "goodput": {"goodput": "99%:ttft=2s,tpot=100ms", "routing": "random"},
    "cut": {"slo": 2.0, "pools": 2, "boundaries": [4096], "gammas": 1.0, "rate": 300, "kv": "reserved", "gpu": "a100"},
    "shapes": {"slo": 2.0, "tpot": 0.1, "shape": "both", "method": "mixed", "confidence": 0.5},
    "choices": {"slo": 2.0, "routing": "random", "choices": 60.0},
}


def written(path: Path, **options: Any) -> fo.Plan:
    plan = fo.plan(
        **{"workload": "azure", "rate": 20, "pools": 1, "tp": 1, "method": "occupancy", "burst": "poisson"} | options
    )
    path.write_text(yaml.safe_dump(plan.to_dict()))
    return plan


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    plan = written(file, **KINDS[kind])
    again = recorded_plan(file, load_question(file).inputs().promises)
    assert again is not None
    assert again.to_dict() == plan.to_dict()
    assert again.slo == plan.slo
    assert again.pools == plan.pools
    assert (again.choices is None) == (plan.choices is None)
    if plan.choices is not None and again.choices is not None:
        assert again.choices.curve == plan.choices.curve


def test_a_report_shows_the_plan_it_is_given_or_says_that_it_was_changed(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    written(file, **KINDS["one pool"])
    data = yaml.safe_load(file.read_text())
    data["explanation"] = ["as it was written"]
    file.write_text(yaml.safe_dump(data))
    assert fo.overview(file, choices=0).plan.explanation == ("as it was written",)
    data["pools"][0]["replicas"] += 1
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(fo.InputError, match="changed by hand"):
        fo.overview(file, choices=0)


def test_a_file_without_a_whole_record_is_planned_anew(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    plan = written(file, **KINDS["one pool"])
    data = yaml.safe_load(file.read_text())
    promises = load_question(file).inputs().promises
    for change in ({"search": None}, {"warnings": 3}, {"pools": [{**data["pools"][0], "load": "much"}]}):
        file.write_text(yaml.safe_dump({**data, **change}))
        assert recorded_plan(file, promises) is None
    file.write_text(yaml.safe_dump({k: v for k, v in data.items() if k != "search"}))
    anew = fo.overview(file, choices=0).plan
    assert [(p.gpu, p.replicas, p.cost_usd_per_hour) for p in anew.pools] == [
        (p.gpu, p.replicas, p.cost_usd_per_hour) for p in plan.pools
    ]
