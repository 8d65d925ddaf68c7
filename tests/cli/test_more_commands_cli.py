"""``evaluate``, ``what-if``, ``schedule``, tiers and ``--verify`` as a user meets them, and options that must say something."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import subprocess
from pathlib import Path

import pytest

from planner.cli.main import run

pytestmark = pytest.mark.usefixtures("fewer_replayed", "short_traces")

FAST = ("plan", "--slo", "0.5", "--method", "occupancy", "--burst", "poisson", "--rate", "50", "--pools", "1")
CALM = ("plan", "--slo", "0.5", "--rate", "20", "--burst", "poisson", "--pools", "1")


def fleetopt(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command as the shell runs it, without the price of a new interpreter."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run(list(arguments))
        except SystemExit as end:
            code = end.code
    return subprocess.CompletedProcess(
        arguments, int(code or 0) if not isinstance(code, str) else 1, out.getvalue(), err.getvalue()
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan file and a configuration with scenarios, shared by the tests: none of them writes there."""
    path = tmp_path_factory.mktemp("commands")
    assert fleetopt(*FAST, "--format", "yaml", "-o", "plan.yaml", cwd=path).returncode == 0
    (path / "base.yaml").write_text(
        "cdf: azure\nrate: 50\nslo: 0.5\nmethod: occupancy\nburst: poisson\npools: 1\n"
        "scenarios:\n  double: {rate: 100}\n  hopeless: {slo: 10ms}\n"
    )
    (path / "twice.yaml").write_text("slo: 0.5\nslo: 0.6\n")
    (path / "classes.yaml").write_text("slo: 0.5\nclasses:\n  paying: {rate: 20}\n")
    (path / "hours.txt").write_text("\n".join(str(1 + h // 5) for h in range(24)))
    return path


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_evaluate_a_standing_fleet_at_other_rates(folder: Path) -> None:
    done = fleetopt("evaluate", "plan.yaml", "--rate", "25,50,500", "--format", "csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = rows(done.stdout)
    assert [float(r["rate_per_s"]) for r in found] == [25.0, 50.0, 500.0]
    assert [r["holds"] for r in found] == ["True", "True", "False"]
    assert float(found[0]["ttft_p99_s"]) <= float(found[1]["ttft_p99_s"])
    for r in found[:2]:
        assert float(r["ttft_p50_s"]) <= float(r["ttft_p90_s"]) <= float(r["ttft_p99_s"]) <= float(r["e2e_p99_s"])
    assert "some promises do not hold" in done.stderr


def test_evaluate_agrees_with_the_plan(folder: Path) -> None:
    data = json.loads(fleetopt(*FAST, "--format", "json", cwd=folder).stdout)
    told = {(v["metric"], v["quantile"]): v["value_s"] for v in data["pools"][0]["latency"]}
    found = rows(fleetopt("evaluate", "plan.yaml", "--format", "csv", cwd=folder).stdout)[0]
    assert float(found["ttft_p99_s"]) == pytest.approx(told["ttft_s", 0.99], rel=1e-9)
    assert data["cost_usd_per_hour"] == pytest.approx(sum(p["cost_usd_per_hour"] for p in data["pools"]))


def test_evaluate_with_a_changed_option(folder: Path) -> None:
    before, after = (
        rows(fleetopt("evaluate", "plan.yaml", *more, "--format", "csv", cwd=folder).stdout)[0]
        for more in ((), ("--set", "cached_share=0.6"))
    )
    assert float(after["load"]) < float(before["load"])


def test_what_if_crosses_and_zips(folder: Path) -> None:
    changes = ("--set", "rate=50,100", "--set", "gpu=h100,h200", "--format", "csv")
    crossed = rows(fleetopt("what-if", "base.yaml", *changes, cwd=folder).stdout)
    assert [(r["rate"], r["gpu"]) for r in crossed] == [
        ("50", "h100"), ("50", "h200"), ("100", "h100"), ("100", "h200"),
    ]  # fmt: skip
    cost = {(r["rate"], r["gpu"]): float(r["cost_usd_per_hour"]) for r in crossed}
    assert cost["50", "h100"] <= cost["100", "h100"]
    zipped = rows(fleetopt("what-if", "base.yaml", *changes, "--zip", cwd=folder).stdout)
    assert [(r["rate"], r["gpu"]) for r in zipped] == [("50", "h100"), ("100", "h200")]


def test_what_if_scenarios_and_an_infeasible_row(folder: Path) -> None:
    done = fleetopt("what-if", "base.yaml", "--scenario", "all", "--format", "csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    double, hopeless = rows(done.stdout)
    assert (double["scenario"], hopeless["scenario"]) == ("double", "hopeless")
    assert (double["feasible"], double["reason"]) == ("True", "")
    assert hopeless["feasible"] == "False"
    assert "cannot be kept by any number of replicas" in hopeless["reason"]


def test_schedule_follows_the_hours(folder: Path) -> None:
    done = fleetopt("schedule", "plan.yaml", "--hours", "hours.txt", "--format", "csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    replicas = [int(r["replicas"]) for r in rows(done.stdout)]
    perfect = [int(r["perfect_replicas"]) for r in rows(done.stdout)]
    assert len(replicas) == 24
    assert perfect == sorted(perfect)
    assert all(scaled >= least for scaled, least in zip(replicas, perfect, strict=True))
    cron = fleetopt("schedule", "plan.yaml", "--hours", "hours.txt", "--format", "cron", cwd=folder)
    assert f"--replicas={max(replicas)}" in cron.stdout


def test_tiers_of_users(folder: Path) -> None:
    (folder / "tiers.yaml").write_text(
        "cdf: azure\nmethod: occupancy\nburst: poisson\npools: 1\nslo: 0.5\n"
        "classes:\n  paying: {rate: 20, slo: 0.4}\n  free: {rate: 40, slo: 3}\n"
    )
    done = fleetopt("plan", "--config", "tiers.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "paying" in done.stdout
    assert "free" in done.stdout
    done = fleetopt("plan", "--config", "tiers.yaml", "--format", "vllm", cwd=folder)
    assert done.returncode == 3
    assert "--format: 'vllm' is none of table, markdown, json, yaml, csv" in done.stderr
    (folder / "tiers.yaml").unlink()


def test_verify_judges_the_plan_and_keeps_stdout_the_plan(folder: Path) -> None:
    done = fleetopt(*CALM, "--verify", "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kind"] == "fleetopt-plan"
    assert "holds" in done.stderr


BAD = [
    (("evaluate", "plan.yaml", "--rate", "0"), "rate: must be a positive number"),
    (("evaluate", "plan.yaml", "--rate", "1e-12"), "at least 1e-09 requests/s"),
    (("what-if", "base.yaml", "--set", "rate=4.9e-324"), "beyond anything that is counted or measured"),
    (("simulate", "plan.yaml", "--rate", "1e-300"), "beyond anything that is counted or measured"),
    (("evaluate", "plan.yaml", "--set", "foo=1"), "--set foo=1: unknown option"),
    (("evaluate", "plan.yaml", "--format", "vllm"), "none of table"),
    (("workload", "show", "azure", "--boundary", "0"), "--boundary must be positive"),
    (("workload", "show", "azure", "--gamma", "0.5"), "--gamma at least 1"),
    (("what-if", "base.yaml", "--scenario", "nope"), "no scenario"),
    (("plan", "--config", "base.yaml", "--scenario", "nope"), "no scenario"),
    (("schedule", "plan.yaml", "--hours", "hours.txt", "--rate-is", "max"), "--rate-is"),
    (("simulate", "--policies", "sarathi", "--rates", "5", "--model", "llama-3.1-70b"), "leaves no KV cache"),
    (("plan", "--config", "classes.yaml", "--verify"), "--verify: not for a file with classes"),
]


@pytest.mark.parametrize(("arguments", "expected"), BAD)
def test_a_mistake_is_one_clear_message(folder: Path, arguments: tuple[str, ...], expected: str) -> None:
    before = sorted(p.name for p in folder.iterdir())
    done = fleetopt(*arguments, cwd=folder)
    assert done.returncode == 3, (done.returncode, done.stdout, done.stderr)
    assert expected in done.stderr
    assert done.stdout == ""
    assert sorted(p.name for p in folder.iterdir()) == before


def test_options_without_effect_say_so(tmp_path: Path) -> None:
    done = fleetopt(*FAST, "--spot-share", "50%", "--price", "l40s=1", cwd=tmp_path)
    assert done.returncode == 0
    assert "--spot-share changes nothing" in done.stdout
    assert "--price of l40s changes nothing" in done.stdout
    spot = fleetopt("explain", *FAST[1:], "--spot-share", "50%", "--spot-price", "h100=1", cwd=tmp_path)
    assert "2 of the 4 replicas on spot" in spot.stdout
    assert "changes nothing" not in spot.stdout


def test_availability_says_what_failure_rate_it_assumes(tmp_path: Path) -> None:
    assert "a replica fails" in fleetopt("explain", *FAST[1:], "--redundancy", "99.9%", cwd=tmp_path).stdout


def test_little_traffic_needs_one_replica(tmp_path: Path) -> None:
    """Bursts of a trace a hundred times as busy are neither taken over whole nor a burden on memory."""
    done = fleetopt("plan", "--slo", "0.5", "--rate", "0.01", "--pools", "1", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [p["replicas"] for p in json.loads(done.stdout)["pools"]] == [1]


def test_an_inventory_that_is_too_small_is_named(tmp_path: Path) -> None:
    few = fleetopt(*FAST, "--inventory", "h100=1", "--gpu", "h100", cwd=tmp_path)
    assert few.returncode == 4
    assert "within the inventory (h100-80gb: 1)" in few.stderr


def test_the_relaxed_promise_can_be_kept(tmp_path: Path) -> None:
    """What the message of an infeasible plan recommends is feasible."""
    asked = ("--burst", "poisson", "--rate", "5", "--pools", "1")
    done = fleetopt("plan", "--slo", "10ms", *asked, cwd=tmp_path)
    assert done.returncode == 4
    relaxed = done.stderr.split("relax P99 TTFT to ")[1].split(" or more")[0].replace(" ", "")
    again = fleetopt("plan", "--slo", relaxed, *asked, cwd=tmp_path)
    assert again.returncode == 0, again.stderr


def test_fewer_pools_win_ties_with_the_paper_s_method(tmp_path: Path) -> None:
    done = fleetopt(
        "plan",
        "--slo",
        "0.5",
        "--rate",
        "200",
        "--method",
        "mgc",
        "--confidence",
        "50%",
        "--format",
        "json",
        cwd=tmp_path,
    )
    data = json.loads(done.stdout)
    assert len(data["pools"]) == 1
    assert data["search"]["gap_usd_per_hour"] == 0.0


def test_a_profile_by_name_is_of_its_own_model_and_gpu(tmp_path: Path) -> None:
    paper = ("--profile", "fleetopt-paper", "--method", "mgc", "--kv", "reserved", "--rate", "1000", "--slo", "0.5")
    done = fleetopt("plan", *paper, "--gpu", "l4", cwd=tmp_path)
    assert "--gpu changes nothing: profile fleetopt-paper is of llama-3.1-70b on a100-80gb" in done.stdout
    told = fleetopt("explain", *paper, cwd=tmp_path).stdout
    assert "of profile fleetopt-paper; --price overrides" in told
    assert "changes nothing" not in told


def test_what_if_takes_prices_as_the_flag_does(folder: Path) -> None:
    """The same fleet at 2 and 3 USD per GPU and hour costs 3/2 as much."""
    result = fleetopt("what-if", "base.yaml", "--set", "price=h100-80gb=2,h100-80gb=3", "--format", "csv", cwd=folder)
    assert result.returncode == 0, result.stderr
    low, high = (float(row["cost_usd_per_hour"]) for row in csv.DictReader(io.StringIO(result.stdout)))
    assert high == pytest.approx(1.5 * low)
    bad = fleetopt("what-if", "base.yaml", "--set", "price=2", cwd=folder)
    assert bad.returncode == 3
    assert "--set price=2: expected GPU=number" in bad.stderr
