from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli.main import run

pytestmark = pytest.mark.usefixtures("few_replayed")

QUESTION = ["--slo", "2", "--rate", "200", "--method", "occupancy", "--pools", "1", "--burst", "poisson"]


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        run(["schedule", *arguments])
    return int(stopped.value.code or 0)


def test_plan_file_and_options_give_the_same_day(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    with pytest.raises(SystemExit):
        run(["plan", *QUESTION, "--format", "yaml", "-o", str(plan)])
    # the page, beside the file
    assert "BUY" in capsys.readouterr().out
    time = ["--hours", "servegen-m-large", "--startup", "10min", "--dwell", "2h", "-f", "json"]
    assert command(str(plan), *time) == 0
    by_file = json.loads(capsys.readouterr().out)
    assert command(*QUESTION, *time) == 0
    printed = capsys.readouterr()
    by_options = json.loads(printed.out)
    assert by_file["schedule"] == by_options["schedule"]
    assert by_options["startup_s"] == 600.0
    assert "is the mean over 24 hours" in printed.err


@pytest.mark.long("a day of disaggregated plans")
def test_a_disaggregated_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    shape = ["--shape", "disaggregated", "--set", "kv_transfer_gbps=200", "--set", "kv_transfer_base=1ms"]
    with pytest.raises(SystemExit):
        run(["plan", *QUESTION, *shape, "--format", "yaml", "-o", str(plan)])
    assert "BUY" in capsys.readouterr().out
    assert "KV cache over 200 Gbit/s per GPU plus 1 ms" in plan.read_text(encoding="utf-8")
    assert command(str(plan), "--hours", "servegen-m-small", "--rate-is", "peak", "-f", "json") == 0
    pools = json.loads(capsys.readouterr().out)["pools"]
    assert [p["name"] for p in pools] == ["prefill", "decode"]


@pytest.mark.parametrize(
    "output_format",
    [
        "table",
        "keda",
        *(
            pytest.param(name, marks=pytest.mark.long("more formats; two in CI"))
            for name in ("csv", "yaml", "markdown", "cron")
        ),
    ],
)
def test_formats(output_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(*QUESTION, "--hours", "servegen-m-small", "-f", output_format) == 0
    assert capsys.readouterr().out


def test_configuration_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("slo: 2\nrate: 200\nmethod: occupancy\nburst: poisson\npools: 1\nscenarios:\n  more: {rate: 400}\n")
    assert command(str(base), "--scenario", "more", "--hours", "servegen-m-small", "-f", "json") == 0
    assert json.loads(capsys.readouterr().out)["mean_rate_per_s"] == pytest.approx(400.0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((*QUESTION,), "no rates by hour"),
        (("--hours", "servegen-m-small", "--rate", "9"), "no latency promise given"),
        ((*QUESTION, "--hours", "servegen-m-small", "-f", "vllm"), "none of table, markdown, cron, keda"),
        ((*QUESTION, "--hours", "servegen-m-small", "--startup", "soon"), "'soon' is not a duration"),
    ],
)
def test_mistakes_exit_3(arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(*arguments) == 3
    assert told in capsys.readouterr().err


def test_a_scaler_is_judged_on_the_hours_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the rate is the mean or the busiest hour's: both say the same."""
    plan = tmp_path / "plan.yaml"
    with pytest.raises(SystemExit):
        run(["plan", *QUESTION, "--format", "yaml", "-o", str(plan)])
    asked: list[str] = []

    class Judged:
        pools = ()

    def autoscale(fleet: object, *, rate_is: str, **options: object) -> Judged:
        asked.append(rate_is)
        return Judged()

    monkeypatch.setattr("planner.operate.autoscale.derive.autoscale", autoscale)
    hours = [str(plan), "--hours", "servegen-m-large", "--policy", "hpa.yaml"]
    assert command(*hours) == 0
    assert command(*hours, "--rate-is", "peak") == 0
    assert asked == ["mean", "peak"]
