"""Files of anybody's making: what they name elsewhere is not opened unless whoever asks says so."""

from __future__ import annotations

import json
import os
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import planner as fo
from planner.ask.difference import difference_of
from planner.catalog.load import FOLDER
from planner.cli.main import app, run
from planner.question.files import PATHS
from planner.question.options import OPTIONS
from planner.shared.paths import READ, outside
from tests.question.test_anybodys_plans import ESC, refused

QUICK: dict[str, Any] = {
    "slo": 1.0,
    "method": "occupancy",
    "pools": 1,
    "rate": 8,
    "token_budget": 2048,
    "confidence": 0.5,
}
pytestmark = pytest.mark.usefixtures("few_replayed", "short_traces", "without_chances", "without_words")
UNTOLD = "not read unless told"
FILES = {
    "cdf": "day.csv",
    "model": "net/config.json",
    "profile": "p.yaml",
    "compress": "measured.json",
    "hours": "hours.csv",
}
"""What each option may name."""

OPENED: list[str] = []
"""Every file that was opened, by whatever means, since the test began."""


def _opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and not isinstance(arguments[0], int):
        OPENED.append(str(Path(os.fsdecode(arguments[0])).resolve()))


@pytest.fixture(scope="module", autouse=True)
def watching() -> None:
    sys.addaudithook(_opened)  # for good: Python has no way to take one away


@cache
def made() -> str:
    return json.dumps(fo.plan("azure", **QUICK).to_dict())


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Where their file lies, and where ours do; whoever asks is somewhere else, and has said what else is read."""
    monkeypatch.setenv(READ, "/nowhere")
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours / "net", tmp_path / "here"):
        folder.mkdir(parents=True)
    model = json.loads((FOLDER / "models/llama-3.1-8b.json").read_text())["config"]
    (ours / "net/config.json").write_text(json.dumps(model))
    shutil.copy(FOLDER / "profiles/llama-3-8b-a100-80gb-tp1.yaml", ours / "p.yaml")
    (ours / "day.csv").write_text("timestamp,input_tokens,output_tokens\n" + "".join(f"{k},200,9\n" for k in range(50)))
    (ours / "hours.csv").write_text("relative_rate\n" + "1\n" * 24)
    row = {"requests": 100, "p_c": 0.8, "p_c_low": 0.7, "p_c_high": 0.9}
    latency = {"mean": 0.01, "p50": 0.01, "p90": 0.02, "p99": 0.03}
    measured = {"kind": "fleetopt-compression", "boundary": 2048, "gamma": 1.5, "categories": {}}
    (ours / "measured.json").write_text(json.dumps({**measured, "total": {**row, "latency_s": latency}}))
    monkeypatch.chdir(tmp_path / "here")
    OPENED.clear()  # of what has just been written
    return theirs, ours


def asked(theirs: Path, kind: str, key: str, value: str, *words: str) -> str:
    """What a command says of their file, with an option in it."""
    file, option = theirs / "file.yaml", {key: value}
    base = {**QUICK, "cdf": "azure"}
    command = ["plan", "--config", str(file), "--no-options", *words]
    if kind == "plan":
        document = json.loads(made())
        document["inputs"] |= option
        command = ["evaluate", str(file), *words]
    elif kind == "services":
        document = {"services": {"chat": {**base, **option}}}
        command = ["plan", "--services", str(file)]
    elif kind == "scenario":
        document = {**base, "scenarios": {"a": option}}
        command += ["--scenario", "a"]
    elif kind == "class":
        document = {**base, "classes": {"a": option, "b": {}}}
    else:
        document = {**base, **option}
    file.write_text(yaml.safe_dump(document))
    run = CliRunner().invoke(app, command)
    assert run.exception is None or isinstance(run.exception, (SystemExit, fo.InputError)), run.exception
    return run.output + str(run.exception or "")


KINDS = {"plan": ("model", "profile", "compress"), "options": ("cdf", "model", "profile", "compress"),
         "scenario": ("cdf", "profile"), "class": ("cdf", "model"), "services": ("cdf", "profile", "hours")}  # fmt: skip


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, keys in KINDS.items() for key in keys])
def test_nothing_elsewhere_is_opened_unless_told(
    kind: str, key: str, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = places
    if kind == "plan":
        monkeypatch.delenv(READ)  # without a word
    file = ours / FILES[key]
    (theirs / file.name).symlink_to(file)
    for value in (str(file), f"{theirs}/../ours/{FILES[key]}", str(theirs / file.name)):
        said = asked(theirs, kind, key, value)
        assert UNTOLD in said and f"{key}: " in said and f"{READ}={file.parent}" in said, (value, said)
    assert str(file) not in OPENED
    monkeypatch.setenv(READ, f"/nowhere:{file.parent}")
    assert UNTOLD not in asked(theirs, kind, key, str(file)) and str(file) in OPENED
    # in their own folder it needs no word of ours
    monkeypatch.setenv(READ, "")
    (theirs / file.name).unlink()
    shutil.copy(file, theirs / file.name)
    assert UNTOLD not in asked(theirs, kind, key, str(theirs / file.name)) and str(theirs / file.name) in OPENED


def test_a_configuration_asks_as_whoever_wrote_it_does(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = places
    monkeypatch.delenv(READ)
    for kind in ("options", "services"):
        OPENED.clear()
        assert UNTOLD not in asked(theirs, kind, "cdf", str(ours / "day.csv")) and str(ours / "day.csv") in OPENED


def test_every_option_that_names_files_is_tried() -> None:
    assert {*FILES} == {*PATHS} - {"speculate"} == {key for keys in KINDS.values() for key in keys}


def test_no_other_option_opens_what_it_names(places: tuple[Path, Path]) -> None:
    theirs, ours = places
    for key in {*OPTIONS} - {*FILES}:
        asked(theirs, "options", key, str(ours / "day.csv"))
        assert str(ours / "day.csv") not in OPENED, key


@pytest.mark.parametrize("key", ["cdf", "model", "profile", "compress"])
def test_what_whoever_asks_gives_is_told(key: str, places: tuple[Path, Path]) -> None:
    """By flag or in Python, in place of what the file says: its own is not looked at."""
    theirs, ours = places
    mine = str(ours / FILES[key])
    assert UNTOLD not in asked(theirs, "options", key, "/etc/hostname", "--set", f"{key}={mine}")
    assert mine in OPENED and "/etc/hostname" not in OPENED
    if key != "cdf":
        assert UNTOLD not in asked(theirs, "plan", key, "/etc/hostname", "--set", f"{key}={mine}")
        assert "/etc/hostname" not in OPENED


def test_neither_models_that_draft_nor_those_of_profiles_lead_elsewhere(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = places
    net = str(ours / "net/config.json")
    (theirs / "net").mkdir()
    (theirs / "net/config.json").symlink_to(net)
    profile = (ours / "p.yaml").read_text()
    (theirs / "p.yaml").write_text(profile.replace("model: llama-3-8b", f"model: {ours}/net", 1))
    assert "ours/net" in (theirs / "p.yaml").read_text()
    tried = [
        ("speculate", f"draft:model={net},k=2"),
        ("model", str(theirs / "net")),
        ("profile", str(theirs / "p.yaml")),
    ]
    for key, value in tried:
        assert UNTOLD in asked(theirs, "options", key, value), key
    assert net not in OPENED
    monkeypatch.setenv(READ, str(ours))
    for key, value in tried:
        OPENED.clear()
        # only this method knows speculation
        words = ["--set", "method=mixed"] if key == "speculate" else []
        assert UNTOLD not in asked(theirs, "options", key, value, *words), key
        assert net in OPENED, key


def test_how_a_number_format_stands_beside_a_model_is_not_read_elsewhere_either(places: tuple[Path, Path]) -> None:
    theirs, ours = places
    shutil.copytree(ours / "net", theirs / "net")
    (ours / "quant.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    (theirs / "net/hf_quant_config.json").symlink_to(ours / "quant.json")
    OPENED.clear()
    for value in (theirs / "net", theirs / "net/config.json"):
        assert UNTOLD in asked(theirs, "options", "model", str(value))
    assert str(ours / "quant.json") not in OPENED


def test_no_pattern_leads_elsewhere(places: tuple[Path, Path]) -> None:
    theirs, ours = places
    (theirs / "days").symlink_to(ours)
    (theirs / "one.csv").symlink_to(ours / "day.csv")
    for pattern in (f"{ours}/*.csv", f"{theirs}/days/d*.csv", f"{theirs}/*.csv", "/**/*.csv"):
        assert UNTOLD in asked(theirs, "options", "cdf", pattern), pattern
    assert str(ours / "day.csv") not in OPENED


def test_a_plan_names_its_traffic_by_either_name(places: tuple[Path, Path]) -> None:
    theirs, ours = places
    document = json.loads(made())
    del document["inputs"]["cdf"]
    (theirs / "plan.json").write_text(
        json.dumps(document | {"inputs": document["inputs"] | {"workload": str(ours / "p.yaml")}})
    )
    with pytest.raises(fo.InputError, match="outside its folder, is not the traffic it was made of"):
        fo.evaluate(theirs / "plan.json")


def test_what_differs_is_not_read_elsewhere_because_the_other_plan_names_it(places: tuple[Path, Path]) -> None:
    theirs, ours = places
    document = json.loads(made())
    (theirs / "a.json").write_text(made())
    (theirs / "b.json").write_text(
        json.dumps(document | {"inputs": document["inputs"] | {"cdf": str(ours / "day.csv")}})
    )
    (changed,) = difference_of(theirs / "a.json", theirs / "b.json").changed
    assert changed.gpus is None and "is not the traffic it was made of" in (changed.reason or "")


@pytest.mark.parametrize("kind", ["options", "scenario", "class", "services"])
def test_no_address_is_asked_because_a_file_names_it(
    kind: str, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = places
    fetched: list[str] = []
    monkeypatch.setattr("planner.workload.resolve.fetched", lambda address: fetched.append(address) or ours / "day.csv")
    monkeypatch.setenv(READ, "s3://logs/may:s3://log:http:")
    for address in (
        "http://me:secret@127.0.0.1:9/day.csv",
        "s3://logs/day.csv",
        "s3://logs/may/../day.csv",
        "file:///etc/passwd",
    ):
        said = asked(theirs, kind, "cdf", address)
        assert UNTOLD in said and "secret" not in said and not fetched, address
    assert UNTOLD not in asked(theirs, kind, "cdf", "s3://logs/may/day.csv")
    assert {*fetched} == {"s3://logs/may/day.csv"}


def test_where_one_is_counts_but_not_where_that_is_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/day.csv").write_text("")
    monkeypatch.chdir(tmp_path / "a")
    assert not outside("day.csv", tmp_path / "a/b") and not outside("b/../day.csv", tmp_path / "a/b")
    monkeypatch.chdir("/")
    assert outside(tmp_path / "a/day.csv", tmp_path / "a/b") and outside(
        str(tmp_path / "a/day.csv")[1:], tmp_path / "a/b"
    )
    # what is not there is read nowhere: a name of the catalog
    assert not outside("azure", tmp_path / "a/b") and not outside("meta-llama/Llama-3.1-8B", tmp_path / "a/b")
    monkeypatch.setenv(READ, "/")
    assert not outside(tmp_path / "a/day.csv", tmp_path / "a/b")


def test_what_is_refused_and_what_services_are_called_moves_no_cursor(
    places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, ours = places
    (ours / ESC).mkdir()
    (ours / ESC / "p.yaml").write_text("")
    (theirs / "plan.yaml").write_text(yaml.safe_dump({**QUICK, "profile": str(ours / ESC / "p.yaml")}))
    (theirs / "all.yaml").write_text(yaml.safe_dump({"services": {f"chat{ESC}": {**QUICK, "cdf": "azure"}}}))
    for words, code, said in ((["--config", "plan.yaml"], 3, UNTOLD), (["--services", "all.yaml"], 0, "chat")):
        with pytest.raises(SystemExit) as ended:
            run(["plan", words[0], str(theirs / words[1])])
        told = capsys.readouterr()
        assert ended.value.code == code and said in told.out + told.err and not refused(told.out + told.err)
