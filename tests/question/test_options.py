"""The table of options against everything made from it: records, files, the command line, signatures."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

import planner as fo
from planner.ask import plan as of_plan
from planner.cli.main import app, run
from planner.errors import InputError
from planner.promise import Promise, Slo
from planner.question.files import load_question
from planner.question.options import OPTIONS, PANELS, PlanInputs, canonical

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances", "without_words")

# one value per option that is not its default, as a person would write it in a file
WRITTEN: dict[str, Any] = {
    "cdf": "lmsys", "rate": 12.5, "rate_is": "peak", "headroom": "20%", "osl_scale": 1.3, "drop_longer_than": "16Ki",
    "slo": ["500ms", "p95=300ms"], "ttft": 0.8, "tpot": "p90=40ms", "e2e": ["20s"],
    "goodput": ["99%:ttft=2s,tpot=60ms"], "windows": "5min", "confidence": "90%", "law": True,
    "throughput": 4000, "quantile": 0.95, "scope": "fleet", "gpu": ["h100", "h200"], "model": "llama-3.1-70b", "like": "llama",
    "tp": [2, 4], "pp": 2, "dp": 2, "ep": 4, "speculate": "mtp:k=1",
    "images": 2, "image_size": "640x480", "lora": 2, "lora_rank": 32,
    "engine": "sglang", "api_overhead": "20ms", "request_time": "2ms",
    "profile": "fleetopt-paper", "weights": "fp8", "kv_dtype": "fp8",
    "method": "occupancy", "kv": "both", "routing": "jsq", "utilization_cap": "80%", "pools": 3, "boundaries": "2048,4k",
    "gammas": [1, 1.5], "p_c": 0.5, "route_on": "total", "compress": True, "cpu_price": 0.05, "scheduler": "eb",
    "token_budget": ["4k"], "max_num_seqs": [64, 128], "max_model_len": "16Ki",
    "max_output": "1k",
    "chunk": 256, "memory_utilization": 0.8, "cached_share": {"conv": "60%", "code": 0.2}, "shared_prefix": "1k", "growth": "use",
    "surge": "3x/60s", "in_flight": 500,
    "burst": "poisson", "min_replicas": 2,
    "redundancy": 1, "availability_target": 0.001, "failures_per_hour": 0.01, "repair_hours": 2, "inventory": {"h100": 64},
    "max_kw": 40,
    "price": {"h100": 2.5}, "spot_price": {"h100": 1.2}, "spot_share": "50%", "max_evaluations": 0, "shape": "both",
    "kv_transfer_gbps": 200, "kv_transfer_base": "1ms", "kv_transfer_layerwise": True, "prefill_queue": 8,
    "prefix_cache": "off", "session_ttl": "10min", "offload": 64, "offload_gbps": 400,
    "offload_disk": 1000, "offload_disk_gbps": 100, "write_through": True,
    "max_queue": 100, "max_queued_tokens": "64k", "client_timeout": "30s", "retries": 2, "retry_after": "2s",
}  # fmt: skip
# they stand in place of a workload, so not beside all others
LENGTHS: dict[str, Any] = {"isl": "2k", "osl": 300, "isl_spread": "50%", "osl_spread": 0.4}
# a rate of users is in place of one that is given
USERS = {"users": 500, "think_time": "60s", "requests_per_hour": 20, "concurrency": 64}
NAMED = {name: option for name, option in OPTIONS.items() if not option.filed}
WITH_FLAG = {name: option for name, option in NAMED.items() if option.spellings}


def flags(name: str, value: Any) -> list[str]:
    """The same value on the command line."""
    if not OPTIONS[name].spellings and name != "ttft":
        items = value if isinstance(value, list) else [value]
        return ["--set", f"{name}={','.join(map(str, items))}"]
    flag = "--" + name.replace("_", "-")
    if value is True:
        return [flag]
    if isinstance(value, Mapping):
        pairs = [f"{k}={v}" for k, v in value.items()]
        items = [",".join(pairs)] if OPTIONS[name].kind.flag is not list else pairs
    elif isinstance(value, list) and OPTIONS[name].kind.flag is list:
        items = [*map(str, value)]
    else:
        items = [",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return [word for item in items for word in (flag, item)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[PlanInputs]:
    """Questions that reach the planner, which answers none of them."""
    found: list[PlanInputs] = []

    def keep(question: PlanInputs, *_: object, **__: object) -> None:
        found.append(question)
        raise InputError("asked")

    monkeypatch.setattr(of_plan, "make_plan", keep)
    return found


def test_the_table_is_complete() -> None:
    names = {f.name for f in fields(PlanInputs)}
    assert names < set(OPTIONS)
    assert {*WRITTEN, *LENGTHS, *USERS} == set(NAMED)
    for option in OPTIONS.values():
        assert option.panel in PANELS
        assert option.help.endswith(".")
        for alias in option.aliases:
            assert canonical(alias) == option.name
    spellings = [s for o in OPTIONS.values() for s in o.spellings]
    assert len(spellings) == len(set(spellings))


def test_defaults_are_valid_and_told() -> None:
    """What help says the default is, read as an option, is the default."""
    inputs = PlanInputs.from_dict({"slo": 1.0})
    for name, option in OPTIONS.items():
        value = getattr(inputs, name, None)
        if value in (None, ()) or not option.default or option.default in ("1.0,1.1,...,2.0", "the catalog's"):
            continue
        assert option.kind.read(option.default, name) == value, name


def test_a_file_with_every_option_comes_back(tmp_path: Path, asked: list[PlanInputs]) -> None:
    (tmp_path / "all.yaml").write_text(yaml.safe_dump(WRITTEN))
    question = load_question(tmp_path / "all.yaml").inputs()
    assert question.promises == (
        Promise("ttft_s", 0.5, 0.95, "fleet"),
        Promise("ttft_s", 0.3, 0.95, "fleet"),
        Promise("ttft_s", 0.8, 0.95, "fleet"),
        Promise("tpot_s", 0.04, 0.9, "fleet"),
        Promise("e2e_s", 20.0, 0.95, "fleet"),
        Promise.joint({"ttft_s": 2.0, "tpot_s": 0.06}, 0.99, "fleet"),
    )
    default = PlanInputs.from_dict({"slo": 1.0})
    same = [
        f.name
        for f in fields(PlanInputs)
        if getattr(question, f.name) == getattr(default, f.name) and f.name not in USERS
    ]
    assert same == ["tp"], "a list of sizes stands in tp_options"
    assert question.tp_options == (2, 4)
    (tmp_path / "again.json").write_text(json.dumps(question.to_dict()))
    assert load_question(tmp_path / "again.json").inputs() == question
    # the same on the command line and in Python
    words = [word for name, value in WRITTEN.items() for word in flags(name, value)]
    with pytest.raises(SystemExit):
        run(["plan", *words])
    given = {k: v for k, v in WRITTEN.items() if k != "cdf"}
    with pytest.raises(InputError, match="asked"):
        fo.plan(WRITTEN["cdf"], **given)
    assert asked == [question, question]


def test_python_takes_every_option_and_no_other() -> None:
    for verb in (fo.plan, fo.schedule):
        parameters = inspect.signature(verb).parameters
        assert set(NAMED) - {"cdf"} < set(parameters), verb.__name__
        assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        assert all(parameters[name].default is None for name in NAMED if name != "cdf")
    documented = inspect.getdoc(fo.plan) or ""
    for name, option in NAMED.items():
        assert name in ("cdf", "slo") or f"\n{name}\n    {option.help[:30]}" in documented


@pytest.mark.parametrize("command", ["plan", "schedule"])
def test_the_command_line_has_every_flag_and_no_other(command: str) -> None:
    tree: Any = get_command(app)
    found = {p.name: (*p.opts, *p.secondary_opts) for p in tree.commands[command].params}
    assert {name: found.get(name) for name in WITH_FLAG} == {name: o.spellings for name, o in WITH_FLAG.items()}
    assert not {"promises", "tp_options"} & set(found)


# a switch said twice says the same
SINGLE = [name for name, option in WITH_FLAG.items() if option.kind.flag not in (list, bool)]


@pytest.mark.parametrize("name", SINGLE)
def test_a_repeated_option_with_one_value_is_an_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    once = flags(name, {**WRITTEN, **LENGTHS, **USERS}[name])
    with pytest.raises(SystemExit) as stopped:
        run(["plan", "--slo", "1", *once, *once])
    assert stopped.value.code == 2
    assert "is given 2 times" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["workload", "list", "-f", "csv", "--format", "json"], ["calibrate", "--write", "--no-write"]]
)
def test_no_command_takes_the_last_silently(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(words)
    assert stopped.value.code == 2
    assert "is given 2 times" in capsys.readouterr().err


def test_all_problems_are_told_at_once() -> None:
    bad = {
        "raet": 1,
        "pools": "many",
        "method": "mg",
        "rate": -1,
        "gpu": 3,
        "cached_share": {"conv": 2},
        "tpot": "soon",
        "tp": "a",
    }
    with pytest.raises(InputError) as caught:
        PlanInputs.from_dict(bad, "mine.yaml: ")
    problems = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == len(bad)
    assert "mine.yaml: raet: unknown option; did you mean 'rate'?" in problems
    assert "did you mean 'mgc'" in problems
    assert "mine.yaml: cached_share.conv: must lie in [0, 1), got 2.0" in problems


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"slo": 1, "rate": 1, "arrival_rate_per_s": 2}, "arrival_rate_per_s: given twice, also as rate"),
        ({"slo": 1, "price": ["h100=1", "h100=2"]}, "price: h100 is given twice"),
        ({}, "no latency promise given"),
        ({"slo": 1, "gpu": []}, "gpu: name at least one"),
        ({"slo": 1, "pools": 2.5}, "expected a whole number"),
        ({"slo": 1, "pools": True}, "is not a whole number"),
        ({"slo": 1, "rate": float("nan")}, "is not finite"),
        ({"slo": 1, "rate": 1e13}, "at most 1e\\+12"),
        ({"slo": 1, "osl_scale": 1e-300}, "beyond anything that is counted or measured"),
        ({"slo": 1, "offload": 1e16}, "beyond anything that is counted or measured"),
        ({"slo": 1, "max_queue": 10**13}, "beyond anything that can be counted"),
        ({"promises": [{"metric": "ttft_s"}]}, "a promise has metric, limit_s"),
    ],
)
def test_a_wrong_value_is_told(data: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told.replace("(", r"\(")):
        PlanInputs.from_dict(data)


def test_layers_override_promise_by_promise() -> None:
    base = PlanInputs.from_dict({"slo": 0.5, "tpot": 0.05})
    assert [p.limit_s for p in base.override({"slo": 1.0}).promises] == [1.0, 0.05]
    assert [p.limit_s for p in base.override({"slo": Slo(e2e_s=9.0)}).promises] == [9.0]
    assert base.override({"promises": [{"metric": "e2e_s", "limit_s": 9}]}).promises == (Promise("e2e_s", 9.0),)
    assert base.override({"tp": "all"}).override({"tp": 2}).tp_options == ()
    with pytest.raises(InputError, match="quantile: of which promise"):
        base.override({"quantile": 0.9})


def test_a_promise_may_come_with_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("rate: 5\nscenarios:\n  strict: {slo: 100ms}\n")
    saved = load_question(tmp_path / "base.yaml")
    assert saved.inputs("strict").promises == (Promise("ttft_s", 0.1),)
    with pytest.raises(InputError, match="no latency promise given"):
        saved.inputs()


def test_what_is_bought_cannot_change_under_a_standing_fleet() -> None:
    plan = fo.plan("azure", slo=2.0, rate=20, method="occupancy", pools=1)
    for name in ("tp_options", "gamma", "max-pools"):
        with pytest.raises(InputError, match="fixed by the plan"):
            fo.evaluate(plan, **{name: 1})


def test_a_file_with_classes_is_not_planned_as_if_it_had_none(tmp_path: Path) -> None:
    (tmp_path / "tiers.yaml").write_text("slo: 1\nrate: 9\nclasses:\n  paying: {rate: 5}\n")
    with pytest.raises(InputError, match="has classes of requests"):
        fo.plan(config=tmp_path / "tiers.yaml")
    with pytest.raises(InputError, match="has classes of requests"):
        fo.what_if(tmp_path / "tiers.yaml", rate=[1, 2])


def test_an_unknown_gpu_is_told_with_its_place() -> None:
    for key, options in (("gpu", {"gpu": "h999"}), ("inventory", {"gpu": "h100"})):
        with pytest.raises(InputError) as failed:
            PlanInputs.from_dict({"slo": 1, "inventory": "h999=3", **options}, "plan.yaml: inputs.")
        assert failed.value.message.startswith(f"plan.yaml: inputs.{key}: unknown GPU 'h999'")


@pytest.mark.parametrize("given", ["h100,h200", ["h100, h200"], ["h100", "h200", "h100"]])
def test_lists_are_taken_apart_at_commas_wherever_they_stand(given: Any) -> None:
    asked = PlanInputs.from_dict({"slo": 1, "gpu": given, "price": ["h100=2,h200=3"], "inventory": "h100=8,h200=4"})
    assert asked.gpu == ("h100", "h200")
    assert asked.price == {"h100": 2.0, "h200": 3.0} and asked.inventory == {"h100": 8, "h200": 4}


def test_shares_by_category_can_be_one_value_of_set() -> None:
    assert PlanInputs.from_dict({"slo": 1, "cached_share": "conv=60%+code=0.2"}).cached_share == {
        "conv": 0.6,
        "code": 0.2,
    }


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("replicas", float("inf"), "pools[0].replicas: inf is not a number that can be used"),
        ("replicas", float("nan"), "pools[0].replicas: nan is not a number that can be used"),
        ("replicas", 0, "pools[0].replicas: must be at least 1, got 0"),
        ("replicas", True, "pools[0].replicas: expected a whole number, got True"),
        ("gpu", None, "pools[0].gpu: expected text, got None"),
        ("gamma", "wide", "pools[0].gamma: expected a number, got 'wide'"),
        ("settings", {}, "pools[0].settings.max_num_batched_tokens: expected a whole number, got None"),
    ],
)
def test_a_broken_plan_file_is_told_with_its_place(tmp_path: Path, key: str, value: Any, told: str) -> None:
    data = fo.plan("azure", slo=2.0, rate=20, method="occupancy", pools=1).to_dict()
    data["pools"][0][key] = value  # type: ignore[index]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(InputError) as caught:
        load_question(tmp_path / "plan.yaml")
    assert str(caught.value).endswith(f"plan.yaml: {told}")


@pytest.mark.parametrize(
    ("told", "given", "left"),
    [
        ("rate: 5\nrate_is: mean", {"users": 40, "think_time": "20s"}, {"rate": None, "rate_is": None, "users": 40}),
        ("throughput: 5k", {"concurrency": 4}, {"throughput": None, "concurrency": 4}),
        ("users: 40\nthink_time: 20s", {"rate": 5}, {"users": None, "think_time": None, "rate": 5.0}),
        ("users: 40\nthink_time: 20s", {"requests_per_hour": 9.0}, {"users": 40, "think_time": None}),
        ("users: 40\nthink_time: 20s", {"users": 50}, {"users": 50, "think_time": "20s"}),
        ("rate: 5\nrate_is: mean", {"rate": 7}, {"rate": 7.0, "rate_is": "mean"}),
    ],
)
def test_what_a_file_says_of_how_often_requests_come_gives_way_to_the_call(
    told: str, given: dict[str, object], left: dict[str, object], tmp_path: Path
) -> None:
    file = tmp_path / "asked.yaml"
    file.write_text(f"slo: 1\n{told}\n", encoding="utf-8")
    assert load_question(file).inputs(changes=given).to_dict().items() >= left.items()
