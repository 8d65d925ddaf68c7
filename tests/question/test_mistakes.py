"""Mistakes people make with units and meanings, each one clear line; and what was chosen for them, told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import planner as fo
from planner.catalog.load import gpu, model
from planner.cli.main import run
from planner.cli.output import format_of
from planner.errors import InputError
from planner.question.options import PlanInputs
from planner.question.values import parse_promise

MILLISECONDS = [
    ({"slo": 500}, "slo: 500 s of TTFT? A bare number is seconds: write 500ms (500s if seconds are meant)"),
    ({"slo": "500"}, "slo: 500 s of TTFT? A bare number is seconds: write 500ms (500s if seconds are meant)"),
    ({"slo": "p95=300"}, "slo: 300 s of TTFT? A bare number is seconds: write 300ms (300s if seconds are meant)"),
    ({"tpot": 40}, "tpot: 40 s of TPOT? A bare number is seconds: write 40ms (40s if seconds are meant)"),
    ({"slo": "tpot:p95=1.5"}, "slo: 1.5 s of TPOT? A bare number is seconds: write 1.5ms (1.5s if seconds are meant)"),
    ({"e2e": 20000}, "e2e: 20,000 s of E2E? A bare number is seconds: write 20000ms (20000s if seconds are meant)"),
]


@pytest.mark.parametrize(("given", "line"), MILLISECONDS)
def test_milliseconds_without_their_unit_are_refused_with_their_spelling(given: dict[str, object], line: str) -> None:
    with pytest.raises(InputError) as refused:
        PlanInputs.from_dict(given)
    assert refused.value.message == line


@pytest.mark.parametrize(
    ("text", "metric", "limit_s"),
    [("500s", "ttft", 500.0), ("2min", "ttft", 120.0), (60, "ttft", 60.0), ("1.0", "tpot", 1.0), ("1e0", "tpot", 1.0)],
)
def test_long_promises_with_a_unit_and_those_at_the_limit_are_taken(text: str, metric: str, limit_s: float) -> None:
    assert parse_promise(text, metric).limit_s == limit_s


@pytest.mark.parametrize(
    ("written", "field", "value"),
    [
        ({"rate": "1k"}, "rate", 1000.0),
        ({"rate": "1200/min"}, "rate", 20.0),
        ({"rate": "100rps"}, "rate", 100.0),
        ({"rate": "100 req/s"}, "rate", 100.0),
        ({"rate": "7.2k per hour"}, "rate", 2.0),
        ({"price": "h100=$2.50/h"}, "price", {"h100": 2.5}),
        ({"inventory": "h100:64"}, "inventory", {"h100": 64}),
        ({"redundancy": "N+1"}, "redundancy", 1),
        ({"max_queue": "1k"}, "max_queue", 1000),
        ({"client_timeout": "2 minutes"}, "client_timeout", 120.0),
    ],
)
def test_units_that_people_write_are_read(written: dict[str, object], field: str, value: object) -> None:
    assert getattr(PlanInputs.from_dict({"slo": 1, **written}), field) == value


@pytest.mark.parametrize("level", [99, "99", "p99", "P99", "99%", 0.99])
def test_a_quantile_is_read_as_it_is_called(level: object) -> None:
    assert PlanInputs.from_dict({"slo": 1, "quantile": level}).promises[0].quantile == 0.99


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("nvidia-h100", "h100-80gb"),
        ("H100 SXM", "h100-80gb"),
        ("A100 80GB", "a100-80gb"),
        ("NVIDIA-H100-80GB-HBM3", "h100-80gb"),
        ("nvidia-tesla-a100", "a100-80gb"),
        ("h100-80gb-sxm5", "h100-80gb"),
        ("AMD Instinct MI300X", "mi300x-192gb"),
    ],
)
def test_gpus_are_found_by_the_names_people_write(written: str, name: str) -> None:
    assert gpu(written).name == name


@pytest.mark.parametrize("written", ["meta-llama/Llama-3.1-8B-Instruct", "llama3.1:8b", "Llama 3.1 8B"])
def test_models_are_found_by_the_names_people_write(written: str) -> None:
    assert model(written).name == "llama-3.1-8b"


def test_a_promise_read_back_from_a_plan_needs_no_unit() -> None:
    kept = PlanInputs.from_dict({"promises": [{"metric": "ttft_s", "limit_s": 90.0}]})
    assert kept.promises[0].limit_s == 90.0


def test_availability_is_not_its_target() -> None:
    with pytest.raises(InputError, match=r"write 0\.001 for enough of them 99\.9% of the time"):
        PlanInputs.from_dict({"slo": 1, "availability_target": "99.9%"})
    with pytest.raises(InputError, match=r"must lie between 0 and 1, got 1\.0"):
        PlanInputs.from_dict({"slo": 1, "availability_target": 1})
    assert PlanInputs.from_dict({"slo": 1, "availability_target": 0.5}).availability_target == 0.5


def test_what_was_not_given_is_told_as_chosen(tmp_path: Path) -> None:
    def told(**given: object) -> str:
        return fo.plan(**{"rate": 20, "method": "occupancy", "burst": "poisson", "pools": 1, **given}).assumptions[0]  # type: ignore[arg-type]

    assert told(slo=2.0) == (
        "chosen, as not given: workload azure (--cdf), model llama-3.1-8b (--model), GPU h100 (--gpu), "
        "P99 where a promise names no quantile (--quantile)"
    )
    assert (
        told(slo=2.0, workload="azure", gpu="h100", quantile=0.95)
        == "chosen, as not given: model llama-3.1-8b (--model)"
    )
    assert "chosen" not in told(slo=2.0, workload="azure", gpu="h100", model="llama-3.1-8b", quantile=0.99)
    asked = tmp_path / "asked.yaml"
    asked.write_text("slo: 2\nmodel: llama-3.1-8b\nscenarios:\n  small:\n    gpu: [l40s]\n", encoding="utf-8")
    assert "model" not in told(config=asked)
    assert "GPU" not in told(config=asked, scenario="small")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("plan.yaml", "yaml"),
        ("plan.YML", "yaml"),
        ("plan.json", "json"),
        ("p.csv", "csv"),
        ("p.md", "markdown"),
        ("p", "table"),
    ],
)
def test_the_name_of_a_file_says_its_format(name: str, found: str) -> None:
    assert format_of(Path(name)) == found


def test_a_format_given_is_the_format_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = ["plan", "--rate", "20", "--slo", "2", "--method", "occupancy", "--pools", "1"]
    plan, table = tmp_path / "plan.yaml", tmp_path / "table.json"
    for arguments in (
        [*question, "-o", str(plan)],
        [*question, "-o", str(table), "--format", "yaml"],
        ["evaluate", str(plan)],
    ):
        with pytest.raises(SystemExit) as end:
            run(arguments)
        assert end.value.code == 0
    assert "pools:" in plan.read_text(encoding="utf-8")
    assert table.read_text(encoding="utf-8").splitlines()[0].startswith(("schema_version:", "kind:"))


def test_a_hundred_thousand_unknown_options_are_told_in_a_moment() -> None:
    """A guess at what was meant is made for those that are shown; for each it took minutes."""
    begun = time.process_time()
    with pytest.raises(InputError) as refused:
        PlanInputs.from_dict({f"key_{k}_slots": 1 for k in range(100_000)})
    assert time.process_time() - begun < 10.0
    assert len(refused.value.problems) == 100_000
    told = str(refused.value).splitlines()
    assert len(told) == 27 and told[-1] == "  ... and 99,975 more"
    with pytest.raises(InputError, match="rat: unknown option; did you mean 'rate'"):
        PlanInputs.from_dict({"rat": 1})
