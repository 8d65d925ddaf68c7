"""The JSON Schemas in the package: current, fit for what is written, of one mind with the readers; older files are read yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

import planner as fo
from planner.catalog.folders import FOLDER as CATALOG
from planner.catalog.load import shipped
from planner.catalog.profile_files import READERS, REQUIRED, parse_profile
from planner.cli.main import app
from planner.cli.schema import FOLDER
from planner.doctor import Checkup, Finding
from planner.errors import InputError
from planner.question.files import load_question
from planner.question.options import OPTIONS, PlanInputs
from tests.test_docs import _script

GOLDEN = Path(__file__).parent / "golden"
PROFILES = sorted((CATALOG / "profiles").glob("*.yaml"))
ODD: tuple[Any, ...] = (
    "text",
    -1,
    0,
    1,
    0.5,
    1e300,
    True,
    None,
    [],
    ["a"],
    [1],
    {},
    {"a": 1},
    {"slots": 2, "context_tokens": 9},
)


def schema(name: str) -> Any:
    """The validator of a kind."""
    (path,) = FOLDER.glob(f"{name}-[0-9]*.json")
    return Draft202012Validator(json.loads(path.read_text(encoding="utf-8")))


def wrong(name: str, data: Any) -> list[str]:
    """What a schema finds, by the place."""
    return [f"{error.json_path}: {error.message[:200]}" for error in schema(name).iter_errors(data)]


def as_json(result: Any) -> Any:
    """A result as its file would be read."""
    return json.loads(json.dumps(result.to_dict()))


@pytest.fixture(scope="module")
def plan() -> fo.Plan:
    return fo.plan("azure", slo=0.5, rate=20, burst="poisson", pools=1)


def test_they_are_current() -> None:
    made = _script("schemas").documents()
    assert {p.name: p.read_text(encoding="utf-8") for p in FOLDER.iterdir()} == made, "run python benchmarks/schemas.py"
    for text in made.values():
        Draft202012Validator.check_schema(json.loads(text))


def test_a_plan_is_as_its_schema_says_and_what_is_damaged_is_refused_by_both(tmp_path: Path, plan: fo.Plan) -> None:
    good = as_json(plan)
    assert not wrong("plan", good)
    damages: tuple[tuple[tuple[str | int, ...], Any], ...] = (
        (("schema_version",), 3), (("pools",), "none"), (("pools", 0, "replicas"), "two"), (("pools", 0, "slots"), 1.5),
        (("inputs", "rat"), 3), (("inputs", "pools"), [1, "a"]), (("inputs", "routing"), "nearest"), (("inputs", "slo"), {"a": 1}),
        (("pools", 0, "gpu"), 8), (("inputs",), []),
    )  # fmt: skip
    for path, value in ((("version",), good["version"]), *damages):
        damaged = json.loads(json.dumps(good))
        at = damaged
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        (tmp_path / "plan.json").write_text(json.dumps(damaged), encoding="utf-8")
        if path == ("version",):
            assert load_question(tmp_path / "plan.json").pools and not wrong("plan", damaged)
            continue
        assert wrong("plan", damaged), path
        with pytest.raises(InputError):
            load_question(tmp_path / "plan.json")


def test_results_are_as_their_schemas_say(plan: fo.Plan) -> None:
    results = {
        "evaluation": fo.evaluate(plan, [10.0, 2000.0]),
        "what-if": fo.what_if(plan, rate=[10, 20]),
        "costs": fo.cost(plan, hours="servegen-m-small"),
        "services": fo.plan_services(Path(__file__).parents[1] / "examples" / "services.yaml"),
        "stability": fo.stability("azure", gpu="h100", rate=5),
        "checkup": Checkup((Finding("python", "good", "3.11"),)),
        "workload": fo.load_workload("azure"),
    }
    assert not [f"{name}: {line}" for name, result in results.items() for line in wrong(name, as_json(result))]


@pytest.mark.parametrize("path", PROFILES, ids=lambda p: p.stem)
def test_shipped_profiles_are_as_their_schema_says(path: Path) -> None:
    assert not wrong("profile", yaml.safe_load(path.read_text(encoding="utf-8")))


def changed_profiles() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """A profile with every key set to every odd value, and with each that it must have left out."""
    base = yaml.safe_load(PROFILES[0].read_text(encoding="utf-8"))
    for key in (*READERS, "schema", "nonsense"):
        for value in ODD:
            yield key, value, {**base, key: value}
    for key in ("schema", *REQUIRED):
        yield key, "left out", {k: v for k, v in base.items() if k != key}


def test_the_reader_of_profiles_and_their_schema_are_of_one_mind() -> None:
    apart = []
    for key, value, data in changed_profiles():
        try:
            parse_profile(data)
            read = True
        except InputError:
            read = False
        if read == bool(wrong("profile", data)):
            apart.append(f"{key}: {value!r} is {'read' if read else 'refused'}")
    assert not apart


def test_the_catalog_is_as_its_schemas_say() -> None:
    found = [f"{name}: {line}" for name, entry in shipped("gpus.yaml")["gpus"].items() for line in wrong("gpu", entry)]
    for path in sorted((CATALOG / "models").glob("*.json")):
        found += [f"{path.name}: {line}" for line in wrong("model", json.loads(path.read_text(encoding="utf-8")))]
    assert not found


def test_what_configurations_may_hold_their_schema_takes() -> None:
    example = Path(__file__).parents[1] / "examples" / "fleet.yaml"
    assert not wrong("configuration", yaml.safe_load(example.read_text(encoding="utf-8")))
    refused = []
    for name, option in OPTIONS.items():
        for value in (option.kind.example, *option.choices, *ODD):
            try:
                PlanInputs.from_dict({"slo": 1, name: value})
            except InputError:
                continue
            refused += wrong("configuration", {name: value})
    assert not refused
    assert wrong("configuration", {"rat": 3}) and wrong("configuration", {"routing": "nearest"})


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("plan-*.yaml")), ids=lambda p: p.stem)
def test_older_files_are_read(path: Path) -> None:
    found = load_question(path)
    assert found.pools and found.inputs().rate == 100.0


def test_the_command_prints_them() -> None:
    names = CliRunner().invoke(app, ["schema"]).stdout.split()
    assert len(names) == len(list(FOLDER.iterdir())) and {"plan", "profile", "workload", "gpu", "evaluation"} <= {
        *names
    }
    assert CliRunner().invoke(app, ["schema", "plan"]).stdout == (FOLDER / "plan-2.json").read_text(encoding="utf-8")
    assert isinstance(CliRunner().invoke(app, ["schema", "pln"]).exception, InputError)
