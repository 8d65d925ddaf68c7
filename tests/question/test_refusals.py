"""What the room refuses, each in its own words; and what it makes of files of services, value by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner as fo
from planner.errors import InputError
from planner.question.compiled import compile_question
from planner.question.files import load_question
from planner.question.options import OPTIONS, PlanInputs
from planner.question.services import read_services
from planner.question.values import parse_goodput

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"slo": 1, "token_budget": {"a": 1}}, "token_budget: {'a': 1} is not a number of tokens"),
    ({"slo": 1, "boundaries": {"a": 1}}, "boundaries: expected a list of numbers, got {'a': 1}"),
    ({"slo": 1, "pools": 2.5}, "pools: expected a whole number, got 2.5"),
    ({"slo": 1, "model": 3}, "model: expected text, got 3"),
    ({"slo": 1, "gpu": {"h100": 1}}, "gpu: expected a GPU name or a list of them, got {'h100': 1}"),
    ({"slo": 1, "tp": "two"}, "tp: 'two' is not a number"),
    (
        {"slo": 1, "price": "h100"},
        "price: expected GPU=number, or GPU: number pairs in a file; 'h100' is not GPU=NUMBER",
    ),
    ({"slo": 1, "law": "maybe"}, "law: expected true or false, got 'maybe'"),
    ({"slo": "quick"}, "slo: ttft: 'quick' is not a duration"),
    ({"promises": "ttft"}, "promises: expected a list of promises, got 'ttft'"),
    ({"goodput": 5}, "goodput: 5 is not a promise"),
    ({"goodput": "99%:ttft=1s,tfft=2s"}, "goodput: 'tfft' is no limit on ttft, tpot or e2e; did you mean 'ttft'?"),
    ({"goodput": "99%:ttft=,tpot=2ms"}, "goodput: 'ttft' is no limit on ttft, tpot or e2e"),
    ({"goodput": "99%:ttft=1s,ttft=2s"}, "goodput: ttft is limited twice"),
    ({"goodput": "99%:tpot=20ms"}, "goodput: '99%:tpot=20ms' limits only tpot"),
    ({"goodput": "0%:ttft=1s,tpot=20ms"}, "goodput: a share of 0% of the requests is not between 0 and 1"),
    ({"quantile": 0.9}, "no latency promise given"),
    (
        {"slo": 1, "method": "closed", "routing": "least"},
        "routing least: method closed knows random routing and Poisson arrivals alone",
    ),
    (
        {"slo": "mean=200ms", "method": "occupancy"},
        "method occupancy: knows quantiles alone; means are read off replays (method mixed)",
    ),
    (
        {"slo": 1, "users": 5, "think_time": "9s", "requests_per_hour": 4},
        "think_time, requests_per_hour: two ways to say how often a user asks; give one",
    ),
    ({"slo": 1, "think_time": "9s"}, "think_time: of how many users? Give --users 500"),
    ({"slo": 1, "requests_per_hour": 9}, "requests_per_hour: of how many users? Give --users 500"),
    (
        {"slo": 1, "users": 5, "think_time": "9s", "rate": 3},
        "users: not together with rate: how often users are answered says how often they ask",
    ),
    (
        {"slo": 1, "users": 5, "think_time": "9s", "shape": "disaggregated"},
        "users: not together with shape disaggregated: how often users are answered says how often they ask",
    ),
    (
        {"slo": 1, "users": 5, "think_time": "9s", "concurrency": 7},
        "users: not together with concurrency: how often users are answered says how often they ask",
    ),
    ({"slo": 1, "isl": 9, "osl": 3, "cdf": "azure"}, "isl: beside cdf, which has lengths of its own"),
    ({"slo": 1, "isl": 9}, "isl: without osl"),
    ({"slo": 1, "osl": 9}, "osl: without isl"),
    (
        {"slo": 1, "gpu": "h100", "inventory": {"l40s": 3}},
        "inventory: 'l40s' is none of the GPUs searched (h100); write --gpu l40s",
    ),
]


@pytest.mark.parametrize(("given", "line"), REFUSED, ids=[line for _, line in REFUSED])
def test_options_that_cannot_be(given: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as refused:
        PlanInputs.from_dict(given)
    assert str(refused.value).splitlines()[0].startswith(line)


def compiled(workload: fo.Workload, **options: Any) -> Any:
    return compile_question(PlanInputs.from_dict({"slo": 1.0, **options}), workload)


@pytest.fixture(scope="module")
def lengths() -> fo.Workload:
    return fo.Workload.from_arrays(np.array([100.0, 1000.0]), np.array([10.0, 20.0]), name="lengths")


@pytest.fixture(scope="module")
def chats() -> fo.Workload:
    return fo.Workload.from_file("turns=4,first=400,growth=90,osl=25,gap=40s")


def test_questions_that_their_traffic_does_not_answer(lengths: fo.Workload, chats: fo.Workload) -> None:
    asked: list[tuple[fo.Workload, dict[str, Any], str]] = [
        (lengths, {}, "lengths states no arrival rate of its own"),
        (
            lengths,
            {"rate": 3, "rate_is": "mean"},
            "rate_is mean: lengths holds no day, so that its busiest hour is not known",
        ),
        (
            lengths,
            {"rate": 3, "prefix_cache": "off", "shared_prefix": 64},
            "shared_prefix: prefix_cache is off, so that every prompt is computed whole",
        ),
        (
            chats,
            {"rate": 3, "shared_prefix": 64},
            f"shared_prefix: {chats.name} has sessions, which say what prompts share",
        ),
        (
            lengths,
            {"rate": 3, "shared_prefix": 15},
            "shared_prefix: 15 tokens are no whole block of 16 that a prompt begins with; the longest prompt has 1,000",
        ),
        (
            lengths,
            {"rate": 3, "shared_prefix": 1008},
            "shared_prefix: 1,008 tokens are no whole block of 16 that a prompt begins with; the longest prompt has 1,000",
        ),
        (lengths, {"users": 9}, "users: how often does each ask?"),
        (
            chats,
            {"rate": 3, "in_flight": 9},
            "burst, surge, in_flight: not together with prefix caches that sessions fill",
        ),
        (chats, {"rate": 3, "method": "closed"}, "method closed: knows no sessions that fill prefix caches"),
        (lengths, {"rate": 3, "cached_share": {"code": 0.5}}, "cached_share: lengths has no category code"),
    ]
    for workload, options, line in asked:
        with pytest.raises(InputError) as refused:
            compiled(workload, **options)
        assert refused.value.message == line


def test_a_prefix_is_shared_in_whole_blocks_by_what_is_longer(lengths: fo.Workload) -> None:
    found = compiled(lengths, rate=3, shared_prefix=127).traffic
    assert found.shared_prefix == 112.0
    assert compiled(lengths, rate=3, shared_prefix=64).traffic.shared_prefix == 64.0


def test_a_trace_bears_the_quantiles_that_ten_of_its_requests_are_beyond(tmp_path: Path) -> None:
    def trace(rows: int) -> fo.Workload:
        lines = [f"{0.5 * k},{100 + k % 7},{20 + k % 5}" for k in range(rows)]
        (tmp_path / "trace.csv").write_text("\n".join(["time_s,input_tokens,output_tokens", *lines]))
        return fo.load_workload(tmp_path / "trace.csv")

    short = trace(999)
    with pytest.raises(InputError) as refused:
        compiled(short)
    assert (
        "999 requests are too few for P99 TTFT: it takes 1,000; its requests bear P98 at most" in refused.value.message
    )
    assert compiled(trace(1000)) and compiled(short, quantile=0.98) and compiled(short, law=True)


def test_goodput_as_text_and_as_a_mapping() -> None:
    text, mapping = parse_goodput("95%:ttft=1s,tpot=50ms"), parse_goodput({"share": 0.95, "ttft": 1, "tpot": "50ms"})
    assert text == mapping and text.quantile == 0.95 and text.limits == {"ttft_s": 1.0, "tpot_s": 0.05}
    assert (
        parse_goodput("ttft=1s,e2e=20s").quantile == 0.99 and parse_goodput("ttft=1s,e2el=20s").limits["e2e_s"] == 20.0
    )


BOUGHT = {
    "confidence", "gpu", "tp", "tp_options", "pp", "dp", "ep", "pools", "boundaries", "gammas", "scheduler", "cpu_price",
    "token_budget", "max_num_seqs", "min_replicas", "redundancy", "availability_target", "failures_per_hour", "repair_hours",
    "inventory", "max_kw", "price", "spot_price", "spot_share", "max_evaluations", "shape",
}  # fmt: skip
"""What a fleet that stands has fixed: its GPUs and how they are grouped, their number, and what they cost."""


def test_what_a_standing_fleet_has_fixed() -> None:
    assert {name for name, option in OPTIONS.items() if option.bought} == BOUGHT


FILES = [
    ("services: {chat: {cdf: azure}}\n", "has services, which are planned together"),
    ("- slo\n", "expected options as `name: value` lines, got list"),
    ("slo: 1\nscenarios: [1]\n", "scenarios: expected `name: options`, got list"),
    ("slo: 1\nclasses:\n  paid: 3\n", "classes.paid: expected options, got int"),
    ("slo: 1\nscenarios:\n  big: {rat: 3}\n", "scenarios.big.rat: unknown option; did you mean 'rate'?"),
    ("kind: fleetopt-plan\nschema_version: 7\n", "schema_version 7; this version of fleetopt reads 1 and 2"),
    ("kind: fleetopt-plan\nschema_version: 2\ninputs: 3\npools: []\n", "2 problems"),
]


@pytest.mark.parametrize(("text", "told"), FILES, ids=[told for _, told in FILES])
def test_files_that_are_no_question(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "asked.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        load_question(file)
    assert str(refused.value).startswith(f"{file}: {told}")


def test_a_file_of_traffic_is_told_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"traffic, not a plan or a configuration; it is given as --cdf"):
        load_question(tmp_path / "trace.csv")


def test_scenarios_are_found_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "asked.yaml").write_text("slo: 2\nrate: 20\nscenarios:\n  big: {rate: 40}\n")
    asked = load_question(tmp_path / "asked.yaml")
    assert (asked.inputs().rate, asked.inputs("big").rate, asked.inputs("big", {"rate": 7}).rate) == (20.0, 40.0, 7.0)
    with pytest.raises(InputError, match="no scenario 'bik'; did you mean 'big'"):
        asked.inputs("bik")


# --- services


def services(folder: Path, text: str, **changes: Any) -> Any:
    file = folder / "services.yaml"
    file.write_text(text)
    return read_services(file, changes)


TWO = """
slo: 2
budget: $1.5k
inventory: {h100: 8, l40s: 4}
hours: servegen-m-small
services:
  chat: {cdf: azure, rate: 20, priority: 2, slo: 0.5}
  mail: {isl: 500, osl: 100, rate: 3, hours: servegen-m-mid}
"""


def test_services_have_the_stock_the_budget_and_what_all_ask(tmp_path: Path) -> None:
    found = services(tmp_path, TWO.replace("$1.5k", "1500"))
    assert found.stock == {"h100-80gb": 8, "l40s-48gb": 4} and found.budget_usd_per_hour == 1500.0
    assert found.folder == tmp_path and found.source == str(tmp_path / "services.yaml")
    chat, mail = found.services
    assert (chat.name, chat.priority, chat.hours) == ("chat", 2, "servegen-m-small")
    assert (mail.name, mail.priority, mail.hours) == ("mail", 1, "servegen-m-mid")
    assert [p.limit_s for s in (chat, mail) for p in s.inputs.promises] == [0.5, 2.0]
    assert [s.inputs.gpu for s in (chat, mail)] == [("h100-80gb", "l40s-48gb")] * 2
    assert not chat.inputs.inventory and (chat.inputs.rate, mail.inputs.rate) == (20.0, 3.0)


def test_what_is_given_beside_the_file_overrides_it_for_all(tmp_path: Path) -> None:
    found = services(tmp_path, TWO.replace("budget: $1.5k\n", ""), rate=9, inventory={"a100": 2}, slo=None)
    assert found.budget_usd_per_hour is None and found.stock == {"a100-80gb": 2}
    assert [s.inputs.rate for s in found.services] == [9.0, 9.0] and found.services[0].inputs.gpu == ("a100-80gb",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("slo: 1\n", "services: expected `name: options` for each service, at least one"),
        ("slo: 1\nservices: {}\n", "services: expected `name: options` for each service, at least one"),
        ("slo: 1\nservices: {chat: azure}\n", "services.chat: expected options, got str"),
        (
            "slo: 1\nservices: {chat: {cdf: azure, inventory: {h100: 3}}}\n",
            "services.chat.inventory: is all services' together; it stands beside `services:`",
        ),
        (
            "slo: 1\nservices: {chat: {cdf: azure, price: {h100: 3}}}\n",
            "services.chat.price: is all services' together; it stands beside `services:`",
        ),
        (
            "slo: 1\nservices: {chat: {cdf: azure, spot_share: 0.3}}\n",
            "services.chat: spot_share: services share GPUs that are bought; plan a service on spot by itself",
        ),
        (
            "slo: 1\nspot_price: {h100: 1}\nservices: {chat: {cdf: azure}}\n",
            "services.chat: spot_price: services share GPUs that are bought; plan a service on spot by itself",
        ),
        (
            "slo: 1\nservices: {chat: {cdf: azure, scheduler: sarathi}}\n",
            "services.chat: scheduler: services run the engines' own; plan a service with another by itself",
        ),
        (
            "slo: 1\nservices: {chat: {rate: 3}}\n",
            "services.chat: has no traffic; cdf names a file or a shipped workload",
        ),
        (
            "slo: 1\nservices: {chat: {cdf: azure, priority: -1}}\n",
            "services.chat.priority: must be a whole number, 0 or more (the lowest is served first), got -1",
        ),
        (
            "slo: 1\nservices: {chat: {cdf: azure, priority: true}}\n",
            "services.chat.priority: must be a whole number, 0 or more (the lowest is served first), got True",
        ),
        (
            "slo: 1\nservices: {chat: {cdf: azure, hours: 3}}\n",
            "services.chat.hours: expected a file or a shipped service, got 3",
        ),
        ("slo: 1\nbudget: 0\nservices: {chat: {cdf: azure}}\n", "budget: must be more than 0 USD/hour, got 0"),
        ("slo: 1\nbudget: -2\nservices: {chat: {cdf: azure}}\n", "budget: must be more than 0 USD/hour, got -2"),
        ("slo: 1\nbudget: much\nservices: {chat: {cdf: azure}}\n", "budget: 'much' is not a number"),
        ("services: {chat: {cdf: azure}}\n", "services.chat: no latency promise given"),
    ],
)
def test_services_that_cannot_be(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        services(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path / 'services.yaml'}: {told}")


def test_a_priority_of_nothing_is_the_first(tmp_path: Path) -> None:
    (only,) = services(tmp_path, "slo: 1\nservices: {chat: {cdf: azure, priority: 0}}\n").services
    assert only.priority == 0
