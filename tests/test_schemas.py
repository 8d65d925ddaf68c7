"""The JSON Schemas in the package: current, fit for what is written, of one mind with the readers; older files are read yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

import planner as fo
from planner.catalog.load import FOLDER as CATALOG
from planner.catalog.profiles import READERS, REQUIRED, parse_profile
from planner.cli.commands import Built
from planner.cli.init import FOLDER
from planner.cli.main import app
from planner.errors import InputError
from planner.question.files import load_question
from planner.question.options import OPTIONS, PlanInputs
from planner.question.services import read_services
from planner.shared.documents import shipped
from tests.test_docs import _script

pytestmark = pytest.mark.usefixtures("fewer_replayed", "few_paths")

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


@cache
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
    return fo.plan("azure", slo=0.5, rate=20, burst="poisson", pools=1, tp=1, token_budget=2048)


def test_they_are_current() -> None:
    made = _script("schemas").documents()
    assert {p.name: p.read_text(encoding="utf-8") for p in FOLDER.iterdir()} == made, "run python tools/schemas.py"
    checked: dict[str, Any] = {}
    for text in made.values():
        document = json.loads(text)
        # what several of them define alike is looked at once
        new = {k: v for k, v in document.get("$defs", {}).items() if checked.get(k) != v}
        checked |= new
        Draft202012Validator.check_schema({**document, "$defs": new})


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


VERBS = {
    "plan": (
        ("plan --cdf azure --slo 0.5 --rate 20 --burst poisson --pools 1", "plan"),
        ("plan --cdf azure --slo 1ms --rate 20 --burst poisson --pools 1", "infeasible"),
        (f"plan --services {Path(__file__).parents[1] / 'examples' / 'services.yaml'}", "services"),
    ),
    "explain": (
        ("explain plan.yaml", "explanation"),
        ("explain --slo 0.5 --rate 20 --burst poisson --pools 1", "explanation"),
    ),
    "options": (
        (
            "options --isl 500 --osl 100 --rate 5 --slo 0.5 --gpu h100 --tp 1 --token-budget 2048 --burst poisson",
            "choices",
        ),
    ),
    "evaluate": (("evaluate plan.yaml --rate 10,2000", "evaluation"),),
    "what-if": (("what-if plan.yaml --set rate=10,20", "what-if"),),
    "capacity": (("capacity plan.yaml", "capacity"),),
    "batch": (("batch plan.yaml --tokens 1M --from 05:00", "batch"),),
    "diff": (("diff plan.yaml plan.yaml", "difference"),),
    "schedule": (
        ("schedule plan.yaml --hours servegen-m-small", "schedule"),
        ("schedule plan.yaml --monthly-growth 8% --months 3", "growth"),
    ),
    "cost": (("cost plan.yaml", "costs"),),
    "autoscale": (("autoscale plan.yaml --hours servegen-m-small --startup 110s", "autoscaling"),),
    "simulate": (
        ("simulate plan.yaml --requests 300 --seeds 2", "verification"),
        ("simulate --policies sarathi --rates 2 --requests 200", "policy-comparison"),
    ),
    "stability": (("stability --cdf azure --gpu h100 --rate 5", "stability"),),
    "batching": (("batching --rate 5", "batching"),),
    "wait": (("wait --rate 5", "wait-settings"),),
    "reproduce": (("reproduce wait", "reproduction"),),
    "compress measure": (("compress measure --prompts prompts.jsonl --boundary 500", "compression"),),
    "profile list": (("profile list", "profile-list"),),
    "profile show": (("profile show fleetopt-paper", "profile"),),
    "profile compare": (("profile compare fleetopt-paper llama-3-8b-a100-80gb-tp1", "profile-comparison"),),
    "gpu list": (("gpu list", "gpu-list"),),
    "gpu show": (("gpu show h100", "catalog-entry"),),
    "model list": (("model list", "model-list"),),
    "model show": (("model show llama-3.1-8b", "catalog-entry"),),
    "prices show": (("prices show --gpu h100", "offer-list"),),
    "workload list": (("workload list", "workload-list"),),
    "workload show": (("workload show azure", "workload"),),
    "workload compare": (("workload compare azure lmsys", "drift"),),
    "doctor": (("doctor", "checkup"),),
}
"""Command -> lines, each with the kind that its JSON is."""

ELSEWHERE = {"check", "calibrate", "profile refit"}
"""Want a fleet or measurements: tests/operate/monitor/test_check.py and tests/calibrate/test_calibrate_command.py hold them."""


def test_every_command_that_writes_json_is_held_to_a_schema() -> None:
    commands = {n if k == n else f"{n} {k}": c for n in Built() for k, c in leaves(n).items()}
    with_json = {name for name, command in commands.items() if any(p.name == "output_format" for p in command.params)}
    assert with_json == {*VERBS, *ELSEWHERE}


def leaves(name: str) -> dict[str, Any]:
    """The commands of a group, or the command itself."""
    return getattr(Built()[name], "commands", {name: Built()[name]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with its choices, and prompts."""
    made = tmp_path_factory.mktemp("schemas")
    line = f"plan --cdf azure --slo 0.5 --rate 20 --burst poisson --pools 1 --gpu h100 -o {made}/plan.yaml"
    assert CliRunner().invoke(app, line.split()).exit_code == 0
    sentences = " ".join(f"Sentence {n} of a document says that rack {n} has {n % 7} servers." for n in range(30))
    (made / "prompts.jsonl").write_text(json.dumps({"prompt": sentences}), encoding="utf-8")
    return made


@pytest.mark.parametrize(("line", "kind"), [pair for lines in VERBS.values() for pair in lines])
def test_what_commands_print_is_as_its_schema_says(
    line: str, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    printed = CliRunner().invoke(app, [*line.split(), "--format", "json"])
    assert printed.stdout, printed.exception
    assert not wrong(kind, json.loads(printed.stdout))


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
    found = [
        f"{name}: {line}"
        for name, entry in shipped(CATALOG / "gpus.yaml")["gpus"].items()
        for line in wrong("gpu", entry)
    ]
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


def test_files_of_services_are_refused_by_their_schema_and_their_reader(tmp_path: Path) -> None:
    example = Path(__file__).parents[1] / "examples" / "services.yaml"
    good = yaml.safe_load(example.read_text(encoding="utf-8"))
    assert not wrong("services-file", good) and read_services(example, {}).services
    assert not wrong("services-file", {**good, "budget": 200, "hours": "servegen-m-mid"})
    chat = good["services"]["chat"]
    bad: dict[str, Any] = {
        "no services": {k: v for k, v in good.items() if k != "services"},
        "an option that is none": {**good, "services": {"chat": {**chat, "rat": 3}}},
        "a stock of one service": {**good, "services": {"chat": {**chat, "inventory": {"h100": 4}}}},
        "a share of spot": {**good, "services": {"chat": {**chat, "spot_share": 0.3}}},
        "half a priority": {**good, "services": {"chat": {**chat, "priority": 0.5}}},
        "a budget of nothing": {**good, "budget": 0},
        "a service without options": {**good, "services": {"chat": "azure"}},
    }
    for what, data in bad.items():
        file = tmp_path / "services.yaml"
        file.write_text(yaml.safe_dump(data), encoding="utf-8")
        assert wrong("services-file", data), what
        with pytest.raises(InputError):
            read_services(file, {})


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
