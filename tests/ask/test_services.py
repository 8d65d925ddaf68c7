"""Services over one purchase: the split against enumeration, what sharing saves, who is not served, mistakes in the file."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import planner as fo
from planner.ask.split import Need, split
from planner.cli.main import run
from planner.errors import InfeasibleError, InputError

pytestmark = pytest.mark.usefixtures("few_replayed")

QUICK: dict[str, Any] = {
    "method": "occupancy",
    "pools": 1,
    "tp": 1,
    "token_budget": 2048,
    "confidence": 0.5,
    "burst": "poisson",
}
DAY, NIGHT = [1.0] * 11 + [0.2] * 13, [0.2] * 12 + [1.0] * 11 + [0.2]
"""Opposite peaks, an hour between them."""


def written(folder: Path, services: Mapping[str, Any], **common: Any) -> Path:
    path = folder / "services.yaml"
    path.write_text(yaml.safe_dump({**QUICK, **common, "services": dict(services)}, sort_keys=False), encoding="utf-8")
    return path


def service(**options: Any) -> dict[str, Any]:
    return {"cdf": "azure", "rate": 40, "slo": 1, **options}


def cost_of(chosen: Sequence[Need], price: Mapping[str, float]) -> tuple[float, dict[str, int]]:
    """Cost and GPUs of needs that share, from the definition: for every type the fullest hour, and the largest spares."""
    count = {}
    for gpu in price:
        hours = [0] * max([len(h) for need in chosen for h in need.gpus.values()], default=1)
        for need in chosen:
            hours = [a + b for a, b in zip(hours, need.gpus.get(gpu, [0] * len(hours)), strict=True)]
        count[gpu] = max(hours) + max([need.spares.get(gpu, 0) for need in chosen], default=0)
    return sum(price[g] * n for g, n in count.items()), count


def enumerated(
    choices: Sequence[Sequence[Need]],
    priorities: Sequence[int],
    price: Mapping[str, float],
    stock: Mapping[str, int],
    budget: float | None,
) -> tuple[list[int], float]:
    """Services served by priority, and the least cost with them, of every way there is."""
    best: tuple[list[int], float] | None = None
    for way in itertools.product(*[[None, *range(len(own))] for own in choices]):
        chosen = [own[k] for own, k in zip(choices, way, strict=True) if k is not None]
        cost, count = cost_of(chosen, price)
        if any(count[g] > n for g, n in stock.items()) or (budget is not None and cost > budget + 1e-9):
            continue
        missed = [
            sum(1 for p, k in zip(priorities, way, strict=True) if p == level and k is None)
            for level in sorted({*priorities})
        ]
        if best is None or (missed, cost) < best:
            best = missed, cost
    assert best is not None
    return best


@pytest.mark.parametrize("seed", range(60))
def test_the_split_is_the_best_of_all(seed: int) -> None:
    rng = random.Random(seed)
    price = {"h100": 2.69, "a100": 1.39, "l40s": 0.79}
    hours = rng.choice([1, 1, 4])
    choices = []
    for _ in range(rng.randint(1, 4)):
        own = []
        for _ in range(rng.randint(0, 3)):
            types = rng.sample([*price], rng.randint(1, 2))
            spares = {g: rng.choice([0, 0, 1, 2, 4]) for g in types}
            own.append(Need({g: tuple(rng.randint(1, 9) for _ in range(hours)) for g in types}, spares, spares))
        choices.append(own)
    priorities = [rng.randint(0, 2) for _ in choices]
    stock = {g: rng.randint(0, 16) for g in price if rng.random() < 0.8}
    budget = rng.choice([None, None, rng.uniform(5.0, 60.0)])
    found = split(choices, priorities, price, stock, budget)
    chosen = [own[k] for own, k in zip(choices, found, strict=True) if k is not None]
    cost, count = cost_of(chosen, price)
    assert all(count[g] <= n for g, n in stock.items())
    missed = [
        sum(1 for p, k in zip(priorities, found, strict=True) if p == level and k is None)
        for level in sorted({*priorities})
    ]
    want, least = enumerated(choices, priorities, price, stock, budget)
    assert missed == want
    assert cost == pytest.approx(least, rel=1e-9)


def test_whole_plans_are_the_best_of_all_over_random_inventories(tmp_path: Path) -> None:
    """Every fleet from a plan of its own, every way to choose among them enumerated."""
    types = ("h100", "l40s")
    asked = {"chat": service(rate=30), "code": service(rate=60, slo=2, priority=2), "bulk": service(rate=20, slo=4)}
    choices, price = [], {}
    for options in asked.values():
        own = []
        for gpu in types:
            options = {k: v for k, v in options.items() if k != "priority"}
            plan = fo.plan(options["cdf"], **{k: v for k, v in options.items() if k != "cdf"}, **QUICK, gpu=gpu)
            (pool,) = plan.pools
            price[pool.gpu] = pool.cost_usd_per_hour / pool.gpus
            own.append(Need({pool.gpu: (pool.gpus,)}, {}, {}))
        choices.append(own)
    names, rng = [*price], random.Random(7)
    served = set()
    for _ in range(6):
        stock = {"h100-80gb": rng.randint(0, 5), "l40s-48gb": rng.randint(0, 14)}
        found = fo.plan_services(written(tmp_path, asked, gpu=[*types], inventory=stock))
        want, least = enumerated(choices, [1, 2, 1], price, stock, None)
        assert [sum(s.plan is None for s in found.services if s.priority == level) for level in (1, 2)] == want, stock
        assert found.cost_usd_per_hour == pytest.approx(least, rel=1e-9), stock
        assert all(s.gpus <= stock[s.gpu] for s in found.shared)
        served.add(len(found.unserved))
    assert {*names} == {"h100-80gb", "l40s-48gb"} and len(served) > 1


def by_hour(folder: Path, name: str, rates: Sequence[float]) -> str:
    (folder / name).write_text("\n".join(map(str, rates)) + "\n", encoding="utf-8")
    return name


def apart(asked: Mapping[str, Any], **common: Any) -> float:
    """What the services cost as plans of their own for their busiest hours."""
    kept = [{k: v for k, v in one.items() if k not in ("hours", "rate_is", "priority")} for one in asked.values()]
    return sum(fo.plan(**{"workload": one.pop("cdf"), **one}, **QUICK, **common).cost_usd_per_hour for one in kept)


def test_opposite_peaks_cost_less_together(tmp_path: Path) -> None:
    hours = {"day": by_hour(tmp_path, "day.csv", DAY), "night": by_hour(tmp_path, "night.csv", NIGHT)}
    asked = {name: service(rate=200, rate_is="peak", hours=file) for name, file in hours.items()}
    found = fo.plan_services(written(tmp_path, asked))
    alone = apart(asked)
    assert found.apart_usd_per_hour == pytest.approx(alone)
    assert found.cost_usd_per_hour < 0.85 * alone
    (shared,) = found.shared
    day, night = (s.gpus_by_hour[shared.gpu] for s in found.services)
    assert shared.by_hour == tuple(a + b for a, b in zip(day, night, strict=True))
    assert shared.gpus == max(shared.by_hour) < max(day) + max(night) == shared.apart
    # what starts for an hour is there through the hour before
    assert day[10] == max(day) > day[11] and night[10] < night[11] == max(night)
    assert sum(s.cost_usd_per_hour for s in found.services) == pytest.approx(found.cost_usd_per_hour)


def test_any_type_and_hours_without_traffic(tmp_path: Path) -> None:
    hours = by_hour(tmp_path, "off.csv", [0.0] * 12 + [2.0] * 12)
    asked = {"off": service(rate=20, hours=hours), "any": service(rate=20, hours=hours, gpu="any")}
    found = fo.plan_services(written(tmp_path, asked))
    off, either = found.services
    assert off.plan is not None and off.plan.arrival_rate_per_s == pytest.approx(40.0)
    assert off.gpus_by_hour["h100-80gb"][0] == 1 < max(off.gpus_by_hour["h100-80gb"])
    assert either.plan is not None and either.alone_usd_per_hour <= off.alone_usd_per_hour
    assert all(sum(map(max, s.gpus_by_hour.values())) == s.plan.gpus for s in found.services if s.plan)


def test_a_week_beside_a_day(tmp_path: Path) -> None:
    hours = {"day": by_hour(tmp_path, "day.csv", DAY), "week": by_hour(tmp_path, "week.csv", (NIGHT * 5 + DAY * 2))}
    asked = {name: service(rate=100, rate_is="peak", hours=file) for name, file in hours.items()}
    found = fo.plan_services(written(tmp_path, asked))
    assert {len(s.by_hour) for s in found.shared} == {168}
    # on two days both are busy at once
    assert found.cost_usd_per_hour == pytest.approx(apart(asked))


@pytest.mark.parametrize("seed", range(6))
def test_together_is_never_dearer_than_apart(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    asked = {}
    for k in range(rng.randint(1, 3)):
        asked[f"s{k}"] = service(rate=rng.choice([5, 30, 90]), slo=rng.choice([0.5, 1, 3]))
        if rng.random() < 0.6:
            rates = [rng.uniform(0.2, 1.0) for _ in range(24)]
            asked[f"s{k}"] |= {"rate_is": "peak", "hours": by_hour(tmp_path, f"{k}.csv", rates)}
        asked[f"s{k}"] |= {"redundancy": rng.choice([0, 1, 2]), "gpu": rng.choice([["h100"], ["h100", "l40s"]])}
    found = fo.plan_services(written(tmp_path, asked))
    assert not found.unserved
    assert found.cost_usd_per_hour <= apart(asked) * (1.0 + 1e-9)


def test_spares_of_one_type_are_shared(tmp_path: Path) -> None:
    asked = {"a": service(redundancy=2), "b": service(redundancy=1, model="llama-3.1-70b", tp=4)}
    found = fo.plan_services(written(tmp_path, asked))
    (shared,) = found.shared
    # one of four GPUs holds two of one
    assert shared.spares == 4 and shared.apart == max(shared.by_hour) + 2 + 4
    assert all(p.spares == 0 for s in found.services if s.plan for p in s.plan.pools)
    assert found.gpus == sum(s.plan.gpus for s in found.services if s.plan) + 4
    kept = fo.plan_services(written(tmp_path, asked, availability_target=0.001))
    assert all(p.spares > 0 for s in kept.services if s.plan for p in s.plan.pools)


def test_priority_decides_who_is_served(tmp_path: Path) -> None:
    asked = {"first": service(rate=60, priority=0), "second": service(rate=60), "small": service(rate=2, priority=2)}
    whole = fo.plan_services(written(tmp_path, asked))
    needs = {s.name: s.plan.gpus for s in whole.services if s.plan}
    have = needs["first"] + needs["second"] - 1
    found = fo.plan_services(written(tmp_path, asked, inventory={"h100": have}))
    assert found.unserved == ("second",)
    second = found.services[1]
    assert second.short_gpus == {"h100-80gb": 1 + needs["small"]}
    assert second.reason == f"{1 + needs['small']} h100-80gb short of the stock of {have}"
    usd = found.shared[0].usd_per_gpu_hour
    tight = fo.plan_services(written(tmp_path, asked, budget=usd * needs["first"]))
    assert tight.unserved == ("second", "small") and tight.cost_usd_per_hour == pytest.approx(usd * needs["first"])
    assert tight.services[2].short_usd_per_hour == pytest.approx(usd * needs["small"])
    assert "/hour short of the budget of" in str(tight.services[2].reason)


def test_what_others_leave_of_several_types_is_taken_together(tmp_path: Path) -> None:
    asked = {"one": service(rate=30, gpu=["h100"], priority=0), "two": service(rate=60, pools=2, gpu=["h100", "l40s"])}
    whole = fo.plan_services(written(tmp_path, {"one": asked["one"], "two": {**asked["two"], "gpu": ["l40s"]}}))
    one, two = (s.plan.gpus for s in whole.services if s.plan)
    stock = {"h100": one + 1, "l40s": two - 1}
    found = fo.plan_services(written(tmp_path, asked, inventory=stock))
    assert not found.unserved
    assert found.services[1].plan is not None
    assert {p.gpu for p in found.services[1].plan.pools} == {"h100-80gb", "l40s-48gb"}


def test_a_promise_that_nothing_keeps_leaves_the_others(tmp_path: Path) -> None:
    asked = {"good": service(), "bad": service(slo="1ms")}
    found = fo.plan_services(written(tmp_path, asked))
    assert found.unserved == ("bad",) and "TTFT" in str(found.services[1].reason)


def test_the_command_writes_what_it_found_and_says_who_is_not_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, {"chat": service(priority=0), "code": service(rate=400)}, inventory={"h100": 4})
    with pytest.raises(SystemExit) as left:
        run(["plan", "--services", str(path), "--format", "json"])
    out, err = capsys.readouterr()
    assert left.value.code == InfeasibleError.exit_code
    data = json.loads(out)
    assert data["kind"] == "fleetopt-services" and data["unserved"] == ["code"]
    assert "not served: code" in err
    with pytest.raises(SystemExit):
        run(["plan", "--services", str(path), "--format", "markdown", "--inventory", "h100=64"])
    page = capsys.readouterr().out
    assert "not served" not in page.lower() and "| chat" in page
    for more in (["--verify"], ["--format", "vllm"], ["--config", "fleet.yaml"]):
        with pytest.raises(SystemExit) as refused:
            run(["plan", "--services", str(path), *more])
        assert refused.value.code == InputError.exit_code


MISTAKES = [
    ("{}", "services.yaml: services: expected `name: options` for each service, at least one"),
    ("services: {}", "services.yaml: services: expected `name: options` for each service, at least one"),
    ("services: {a: {cdf: azure, slo: 1}, a: {}}", "services.yaml:1: not YAML: 'a' is given twice"),
    ("services: {a: 3}", "services.yaml: services.a: expected options, got int"),
    (
        "services: {a: {cdf: azure, rat: 3, slo: 1}}",
        "services.yaml: services.a.rat: unknown option; did you mean 'rate'?",
    ),
    ("slo: 1\nservices: {a: {rate: 3}}", "services.yaml: services.a: has no traffic; cdf names a file"),
    ("services: {a: {cdf: azure, slo: 1, priority: -1}}", "services.yaml: services.a.priority: must be a whole number"),
    (
        "services: {a: {cdf: azure, slo: 1, priority: true}}",
        "services.yaml: services.a.priority: must be a whole number",
    ),
    ("services: {a: {cdf: azure, slo: 1, model: llama-9}}", "services.yaml: services.a: "),
    ("services: {a: {cdf: mine.csv, slo: 1}}", "services.yaml: services.a: "),
    ("services: {a: {cdf: azure, slo: 1, hours: mine.csv}}", "services.yaml: services.a: --hours: mine.csv: no such"),
    (
        "services: {a: {cdf: azure, slo: 1, users: 9, think_time: 9s, hours: servegen-m-mid, method: mixed}}",
        "services.yaml: services.a: hours: users ask at no rate of their own",
    ),
    ("services: {a: {cdf: azure, slo: 1, hours: 3}}", "services.yaml: services.a.hours: expected a file"),
    (
        "services: {a: {cdf: azure, slo: 1, inventory: {h100: 3}}}",
        "services.yaml: services.a.inventory: is all services' together; it stands beside `services:`",
    ),
    ("services: {a: {cdf: azure, slo: 1, spot_share: 0.5}}", "services.yaml: services.a: spot_share: services share"),
    ("budget: -3\nservices: {a: {cdf: azure, slo: 1}}", "services.yaml: budget: must be more than 0 USD/hour, got -3"),
    ("budget: lots\nservices: {a: {cdf: azure, slo: 1}}", "services.yaml: budget: "),
    ("inventory: {h10: 3}\nservices: {a: {cdf: azure, slo: 1}}", "services.yaml: inventory: unknown GPU"),
    ("inventory: 3\nservices: {a: {cdf: azure, slo: 1}}", "services.yaml: inventory: "),
    ("services: {a: {cdf: azure}}", "services.yaml: services.a: no latency promise given"),
]


@pytest.mark.parametrize(("text", "line"), MISTAKES)
def test_mistakes_are_one_line_with_their_place(
    text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("services.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as left:
        run(["plan", "--services", "services.yaml", "-o", "out.yaml"])
    err = capsys.readouterr().err.removeprefix("error: ").removeprefix("--services ")
    assert left.value.code == InputError.exit_code
    assert err.startswith(line) and len(err.splitlines()) <= 2, err
    # A promise beside a file of services is one for all that state none; other mistakes are in the file, not in the call.
    told = ["try: fleetopt plan --services services.yaml -o out.yaml --slo 0.5"] * line.endswith("promise given")
    assert [told_line for told_line in err.splitlines() if told_line.startswith("try:")] == told
    assert not Path("out.yaml").exists()


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    asked = {"a": service(rat=3), "b": service(priority=-1), "c": service(rate=-3)}
    with pytest.raises(InputError) as refused:
        fo.plan_services(written(tmp_path, asked, budget=0))
    assert len(refused.value.problems) == 4
    with pytest.raises(InputError, match="has services, which are planned together"):
        fo.plan(config=tmp_path / "services.yaml")
