"""A plan file of version 0.1.0 means what it meant: tests/golden/plan-0.1.0.yaml, written by that version with
``fleetopt plan --cdf azure --slo 0.5 --rate 100 --method occupancy -o plan-0.1.0.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import planner as fo
from planner.question.files import load_question

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances", "without_words")

OLD = Path(__file__).parents[1] / "golden" / "plan-0.1.0.yaml"


@pytest.fixture
def data() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(OLD.read_text(encoding="utf-8"))
    return found


def _written(folder: Path, data: dict[str, Any]) -> Path:
    (folder / "plan.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    return folder / "plan.yaml"


def test_it_is_evaluated_with_the_choices_it_was_sized_with(tmp_path: Path, data: dict[str, Any]) -> None:
    inputs = load_question(OLD).inputs()
    assert (inputs.routing, inputs.route_on, inputs.rate, inputs.kv) == ("random", "total", 100.0, "paged")
    found = fo.evaluate(OLD)
    assert found.rates_per_s == (100.0,)
    assert [row["pool"] for row in found.to_rows()] == [p["name"] for p in data["pools"]]
    # what a file does not name was so in that version
    for name in ("routing", "route_on", "kv"):
        del data["inputs"][name]
    assert fo.evaluate(_written(tmp_path, data)).to_rows() == found.to_rows()
    data["inputs"]["routing"] = "jsq"
    assert fo.evaluate(_written(tmp_path, data)).to_rows() != found.to_rows()


def test_a_configuration_with_the_same_options_gets_the_defaults_of_today(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("cdf: azure\nslo: 0.5\nrate: 100\n", encoding="utf-8")
    assert load_question(tmp_path / "c.yaml").inputs().route_on == "input"


def test_what_if_varies_only_what_is_set(data: dict[str, Any]) -> None:
    (pool,) = data["pools"]
    rows = fo.what_if(OLD, rate=[100.0, 300.0], keep=True)
    for point in rows.points:
        assert point.plan is not None
        (kept,) = point.plan.pools
        assert (kept.gpu, kept.tp, kept.slots) == (pool["gpu"], pool["tp"], pool["slots"])
    small, large = (point.plan.replicas for point in rows.points if point.plan is not None)
    assert small < large
    # another GPU: its own slots, nothing else
    (other,) = fo.what_if(OLD, gpu="h200", keep=True).feasible()
    assert {(p.gpu, p.tp) for p in other.pools} == {("h200-141gb", pool["tp"])}


def test_other_traffic_brings_its_rate() -> None:
    other = fo.load_workload("azure-conv")
    assert fo.evaluate(OLD, workload="azure-conv").rates_per_s == (other.arrivals.rate_per_s,)
    assert fo.evaluate(OLD, 20.0, workload="azure-conv").rates_per_s == (20.0,)
