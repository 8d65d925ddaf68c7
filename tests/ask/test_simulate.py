"""A plan's promises against the simulation of its fleet, in Python and on the command line."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import planner as fo
from planner.ask.simulate import FleetSource, pool_engines
from planner.cli.main import run
from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.papers.traffic import SampledTraffic, Sent, Traffic
from planner.question.compiled import compile_question
from planner.question.files import saved_pools
from planner.question.options import PlanInputs
from planner.size.shapes import standing_fleet
from planner.workload.workload import Workload

pytestmark = pytest.mark.usefixtures("few_replayed")

SHORT = {"requests": 4000, "seeds": 1, "max_requests": 16_000}


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    with pytest.raises(SystemExit) as stop:
        run(
            [
                "plan",
                "--slo",
                "2",
                "--rate",
                "40",
                "--burst",
                "poisson",
                "--pools",
                "1",
                "--format",
                "yaml",
                "-o",
                str(path),
            ]
        )
    assert stop.value.code in (0, None)
    return path


def test_a_generous_promise_holds_and_ten_times_the_load_fails(plan_file: Path) -> None:
    result = fo.simulate(plan_file, **SHORT)
    assert result.verdict == "holds" and result.arrival_rate_per_s == 40.0
    row = result.to_rows()[0]
    assert row["low_s"] <= row["simulated_s"] <= row["high_s"] <= row["limit_s"]
    assert row["predicted_s"] == pytest.approx(row["simulated_s"], rel=0.5)
    assert fo.simulate(plan_file, preset="mixed", **SHORT).results["all"].preset == "mixed"
    overloaded = fo.simulate(plan_file, rate=400.0, **SHORT)
    assert overloaded.verdict == "fails" and any("unstable" in w for w in overloaded.warnings)
    assert json.loads(json.dumps(overloaded.to_dict()))["verdict"] == "fails"


@pytest.mark.parametrize("method", ["mgc", "occupancy"])
def test_slot_methods_are_checked_with_slots(method: str) -> None:
    fleet = fo.plan("azure", slo=5.0, rate=40, method=method, pools=1, burst="poisson")
    result = fo.simulate(fleet, **SHORT)
    assert result.results["all"].preset == "slots"
    assert result.results["all"].stable


@pytest.mark.usefixtures("as_many_replayed")
def test_bursts_of_the_workload_reach_the_simulation() -> None:
    """The dispersion it measured, thinned to the pool's share; paced clients; and what is known one by one as it came."""
    azure = Workload.from_file("azure")
    plan = fo.plan(azure, slo=2.0, rate=8, pools=2, burst="auto", tp=1, token_budget=2048)
    inputs = PlanInputs.from_dict(dict(plan.inputs))
    fleet = standing_fleet(compile_question(inputs, azure, 8.0), saved_pools(plan))

    def first_pool(arrivals: str | None) -> tuple[Traffic, Sent]:
        source = FleetSource(fleet, arrivals, requests=20_000, most=10**7)
        traffic = source.of(0, pool_engines(fleet, fleet.pools[0]), [1])
        return traffic, traffic(1)

    burst, _ = first_pool("dispersion")
    assert isinstance(burst, SampledTraffic)
    share, full = burst.rate_per_s / 8.0, dict(azure.arrivals.dispersion)
    assert all(i == pytest.approx(max(1.0, 1.0 + share * (full[w] - 1.0))) for w, i in burst.dispersion)
    # two per cent of the rate at index I take I/0.02^2 requests
    assert burst.requests >= max(i for _, i in burst.dispersion) / 4e-4
    spread = {}
    for arrivals in (None, "poisson", "paced:9"):
        _, sent = first_pool(arrivals)
        assert sent.whole == (arrivals is None)
        times = sent.requests.arrival_s
        counts = np.bincount((times // 60.0).astype(int))[1:-1]
        spread[arrivals] = counts.var() / counts.mean()
    assert spread[None] > 3.0 and 0.6 < spread["poisson"] < 1.5 and spread["paced:9"] < 0.1


def trace_file(folder: Path, rows: list[tuple[float, int, int]]) -> Path:
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:{int(t) // 60:02d}:{t % 60:09.6f}0,{i},{o}" for t, i, o in rows]
    path = folder / "trace.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_every_request_of_a_trace_goes_to_its_pool_with_its_own_lengths(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lengths = [(int(i), int(o)) for i, o in zip(rng.integers(10, 9000, 2000), rng.integers(1, 300, 2000), strict=True)]
    path = trace_file(tmp_path, [(0.5 * k, i, o) for k, (i, o) in enumerate(lengths)])
    workload = Workload.from_file(path)
    plan = fo.plan(workload, slo=5.0, rate=20, pools=1, route_on="total")
    (whole,) = saved_pools(plan)
    cut = [replace(whole, name="short", high_tokens=4096.0), replace(whole, name="long", low_tokens=4096.0)]
    fleet = standing_fleet(
        compile_question(PlanInputs.from_dict(dict(plan.inputs)), workload, workload.arrivals.rate_per_s), cut
    )
    source = FleetSource(fleet, "auto", requests=10, most=10**6)
    sent = [source.of(k, pool_engines(fleet, fleet.pools[k]), [1])(1).requests for k in range(2)]
    for found, belongs in zip(sent, (lambda n: n <= 4096, lambda n: n > 4096), strict=True):
        pairs = zip(found.input_tokens.tolist(), found.output_tokens.tolist(), strict=True)
        assert list(pairs) == [(i, o) for i, o in lengths if belongs(i + o)]


def test_time_stamps_of_a_trace_are_replayed(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = trace_file(tmp_path, [(k / 3, 500, 50) for k in range(1800)])
    for flag in ([], ["--growth", "use"], ["--surge", "2x/30s"], ["--in-flight", "200"]):
        assert command(str(plan_file), "--replay", str(trace), "--format", "json", *flag) in (0, 6)
        found = json.loads(capsys.readouterr().out)["pools"]["all"]
        assert found["arrival_rate_per_s"] == pytest.approx(40.0, rel=0.05)
        assert found["whole"] and len(found["seeds"]) == 6
    bare = tmp_path / "bare.csv"
    bare.write_text("input_tokens,output_tokens\n" + "100,10\n" * 50)
    assert command(str(plan_file), "--replay", str(bare)) == 3
    assert "no time stamps" in capsys.readouterr().err


def test_a_prefill_and_a_decode_pool_are_simulated_together() -> None:
    plan = fo.plan("azure", slo=2.0, tpot=0.1, rate=8, shape="disaggregated", burst="poisson")
    result = fo.simulate(plan, requests=12_000, seeds=1, max_requests=12_000)
    assert [(c.where, c.promise.metric) for c in result.checks] == [("prefill", "ttft_s"), ("decode", "tpot_s")]
    for check in result.checks:  # one run of 12,000 requests
        assert check.predicted == pytest.approx(check.simulated.value, rel=0.15)
    with pytest.raises(InputError, match="rules of their own"):
        fo.simulate(plan, in_flight=50, requests=1000)
    with pytest.raises(InputError, match="in_flight"):
        fo.simulate(plan, in_flight=-1, requests=1000)


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        run(["simulate", *arguments])
    return int(stop.value.code or 0)


def test_command_on_a_plan(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(str(plan_file), "--requests", "12000", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "holds"
    assert command(str(plan_file), "--rate", "400", "--requests", "12000") == 6
    assert "does not hold in the simulation" in capsys.readouterr().err


def test_command_on_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--policies",
        "sarathi,slai",
        "--rates",
        "4,6",
        "--requests",
        "150",
        "--strict-share",
        "5%",
        "-f",
        "csv",
    ]
    assert command(*arguments, "--set", "slai.order=spf") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(r["policy"], float(r["rate_per_s"])) for r in rows] == [
        ("sarathi", 4.0), ("slai", 4.0), ("sarathi", 6.0), ("slai", 6.0)
    ]  # fmt: skip
    out = tmp_path / "rows.csv"
    assert command(*arguments, "-o", str(out)) == 0 and out.is_file()


def test_interrupt_leaves_a_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.papers import compare

    calls = []
    original = compare.run_policy

    def interrupted(*arguments, **keywords):
        calls.append(1)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return original(*arguments, **keywords)

    monkeypatch.setattr(compare, "run_policy", interrupted)
    out = tmp_path / "rows.csv"
    code = command(
        "--policies", "sarathi,slai", "--rates", "4", "--requests", "100", "--seeds", "2", "-f", "csv", "-o", str(out)
    )
    assert code == 130 and not out.exists()
    partial = out.with_name("rows.csv.partial")
    assert len(partial.read_text().splitlines()) == 2  # header and the finished row


@pytest.mark.parametrize(
    "arguments,words",
    [
        ([], "nothing to simulate"),
        (["--policies", "sarathy", "--rates", "5"], "did you mean 'sarathi'"),
        (["--policies", "eb"], "--rates is needed"),
        (["--policies", "eb", "--rates", "5", "--set", "k=3"], "POLICY.PARAMETER=VALUE"),
        (["--policies", "eb", "--rates", "-5", "--requests", "50"], "must be a positive number"),
        (["no-such-plan.yaml"], "no such file"),
    ],
)
def test_bad_input_is_one_clear_error(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(*arguments) == 3
    assert words in capsys.readouterr().err


def test_a_replica_too_small_for_any_request_is_refused() -> None:
    from tests.papers.asked import simulate_pool

    with pytest.raises(InputError, match="no request fits"):
        simulate_pool([5000.0], [100.0], None, 1.0, count=1, iteration=IterationModel(t0=0.01), kv_tokens=1000)
