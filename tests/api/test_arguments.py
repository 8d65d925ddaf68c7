"""Wrong types given to the Python functions: one line that names the argument, and nothing looked at where all is well."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import planner as fo
from planner.errors import InputError
from planner.shared.arguments import told_types

pytestmark = pytest.mark.usefixtures("few_replayed")


@pytest.fixture(scope="module")
def one_pool_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan's file."""
    path = tmp_path_factory.mktemp("arguments") / "plan.yaml"
    path.write_text(
        json.dumps(fo.plan("azure", slo=0.5, pools=1, method="mgc", confidence=0.5).to_dict()), encoding="utf-8"
    )
    return path


class Unprintable:
    """An object whose text cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


@told_types
def broken(
    rate: float | Sequence[float] | None = None,
    *,
    count: int = 1,
    name: str | Path = "x",
    kind: Literal["mean", "peak"] = "mean",
    shares: Mapping[str, float] | None = None,
    progress: Callable[[int], None] | None = None,
    fleet: fo.Plan | None = None,
    **others: Any,
) -> None:
    """Fails for a reason of its own, whatever it is given."""
    raise ValueError("of its own")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"rate": "5"}, "rate"),
        ({"rate": [5.0, "6"]}, "rate"),
        ({"rate": [None]}, "rate"),
        ({"rate": 10**400}, "rate"),
        ({"rate": {1: 2.0}}, "rate"),
        ({"rate": np.ones((2, 2))}, "rate"),
        ({"count": 1.5}, "count"),
        ({"count": float("nan")}, "count"),
        ({"name": b"x"}, "name"),
        ({"name": "\ud800"}, "name"),
        ({"kind": "median"}, "kind"),
        ({"kind": []}, "kind"),
        ({"shares": {"a": "b"}}, "shares"),
        ({"shares": [1.0]}, "shares"),
        ({"progress": 3}, "progress"),
        ({"fleet": "plan.yaml"}, "fleet"),
        ({"fleet": Unprintable}, "fleet"),
        ({"count": Unprintable()}, "count"),
    ],
)
def test_the_argument_of_another_type_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(fo.InputError, match=f"^{named}: expected ") as told:
        broken(**given)
    # what went wrong stays at hand
    assert isinstance(told.value.__cause__, ValueError)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"rate": 5},
        {"rate": np.float32(5.0)},
        {"rate": np.array([1.0, 2.0])},
        {"rate": (1, 2.0)},
        {"count": np.int64(3)},
        {"name": Path("x")},
        {"kind": "peak"},
        {"shares": {"a": 1}},
        {"progress": print},
        {"anything": object()},
    ],
)
def test_an_error_of_its_own_stays_its_own(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="of its own"):
        broken(**given)


def test_an_argument_that_is_not_there_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="max_rate"):
        fo.reproduce(max_rate=3)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="max_rate: unknown option"):
        fo.stability(max_rate=3)  # type: ignore[call-arg]


WRONG: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "a rate in words": (fo.evaluate, {"fleet": "PLAN", "arrival_rate_per_s": "x"}),
    "no rate at all": (fo.evaluate, {"fleet": "PLAN", "arrival_rate_per_s": []}),
    "a rate of 400 digits": (fo.evaluate, {"fleet": "PLAN", "arrival_rate_per_s": 10**400}),
    "half a request": (fo.simulate, {"fleet": "PLAN", "requests": "many"}),
    "seeds in words": (fo.simulate, {"fleet": "PLAN", "requests": 300, "seeds": "x"}),
    "no seeds": (fo.simulate, {"fleet": "PLAN", "requests": 300, "seeds": []}),
    "a negative seed": (fo.simulate, {"fleet": "PLAN", "requests": 300, "seeds": [-1]}),
    "seeds without end": (fo.simulate, {"fleet": "PLAN", "requests": 300, "seeds": 10**9}),
    "a preset that is a list": (fo.simulate, {"fleet": "PLAN", "requests": 300, "preset": []}),
    "a configuration that is a list": (fo.plan, {"config": []}),
    "an array of sizes": (fo.plan, {"workload": "azure", "slo": 0.5, "tp": np.array([1.0, 2.0])}),
    "a fleet that is a number": (fo.cost, {"fleet": 3}),
    "an executor that is none": (fo.what_if, {"base": "PLAN", "executor": "", "rate": [5, 10]}),
    "a name of half a character": (fo.what_if, {"base": "PLAN", "resume": "\ud800", "rate": [5, 10]}),
    "segments that are not a number": (fo.wait, {"segments": float("nan")}),
}


@pytest.mark.parametrize("case", WRONG)
def test_python_functions_refuse_in_a_line(case: str, one_pool_plan: Path) -> None:
    function, given = WRONG[case]
    given = {
        name: str(one_pool_plan) if isinstance(value, str) and value == "PLAN" else value
        for name, value in given.items()
    }
    with pytest.raises(fo.InputError) as told:
        function(**given)
    assert "\n" not in told.value.message


def test_what_if_takes_a_workload_by_its_name(one_pool_plan: Path) -> None:
    named = fo.what_if(str(one_pool_plan), workload="azure", rate=[5, 10]).to_rows()
    assert named == fo.what_if(str(one_pool_plan), workload=fo.load_workload("azure"), rate=[5, 10]).to_rows()
