"""A table of ``compress measure`` in a plan: read, refused, kept in files, swept with, and what it says of cost and time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import planner as fo
from planner.cli.main import app
from planner.compress.measure import CategoryResult, CompressionMeasurement
from planner.errors import InputError
from planner.question.options import PlanInputs
from planner.question.values import category_shares, read_measured
from planner.workload.pools import FleetMoments, State, chances
from planner.workload.workload import Workload

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances", "without_words")

TIMES = {"mean": 0.0036, "p50": 0.0034, "p95": 0.006, "p99": 0.0078}
# the paper counts its constants as known: no margin for them
FLEET = {"slo": 2.0, "rate": 1000, "method": "mgc", "profile": "fleetopt-paper", "confidence": 0.5}


def table(conv: int = 142) -> dict[str, object]:
    """What `compress measure` writes of 150 conversations and 50 pieces of code."""
    parts = {"conv": CategoryResult(150, conv, latency_s=TIMES), "code": CategoryResult(50, 0, latency_s=TIMES)}
    total = CategoryResult(200, conv, latency_s=TIMES)
    return CompressionMeasurement(4096, 1.5, 1000, total, parts, "3 bytes per token").to_dict()


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(table()))
    return path


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> fo.Plan:
    path = tmp_path_factory.mktemp("measured") / "measured.json"
    path.write_text(json.dumps(table()))
    return fo.plan("azure", compress=str(path), boundaries=[2048, 4096], **FLEET)  # type: ignore[arg-type]


def test_shares_by_category(measured: Path) -> None:
    kept = read_measured(str(measured), "compress")
    assert isinstance(kept, dict)
    assert category_shares(kept, ("conv", "code", "agents")) == {"conv": 142 / 150, "code": 0.0, "agents": 0.71}
    # Wilson 1927: 95% of 0 of 50 reaches z^2/(50 + z^2)
    z2 = 1.959963984540054**2
    assert category_shares(kept, ("code",), "high")["code"] == pytest.approx(z2 / (50 + z2))
    azure = Workload.from_file("azure")
    shares = category_shares(kept, azure.categories)
    assert chances(azure, shares).tolist() == [shares[c] for c in azure.categories]
    # the band gives away the measured share of each category, computed from its rows
    band = azure.band_fractions(4096, 1.5)
    law = FleetMoments(azure, shares).law(State(0.0), State(4096.0, 1.5))
    assert law is not None
    assert law.compressed_share == pytest.approx(sum(band[c] * shares[c] for c in band), rel=1e-6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file; expected true, false or such a file"),
        ("{", "not JSON"),
        ("[]", "not a table"),
        (json.dumps({"kind": "fleetopt-compression"}), "incomplete"),
        (json.dumps({**table(), "gamma": -1}), "gamma must be a positive number"),
        (json.dumps(CompressionMeasurement(8, 1.5, 3, CategoryResult(0, 0), {}, "").to_dict()), "none of its prompts"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "m.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        PlanInputs.from_dict({"slo": 1.0, "compress": str(path)})


def test_shares_out_of_order_are_refused(measured: Path) -> None:
    kept = read_measured(str(measured), "compress")
    assert isinstance(kept, dict)
    kept["categories"]["all"]["p_c"] = 0.99
    with pytest.raises(InputError, match=r"categories\.all: p_c and its interval"):
        PlanInputs.from_dict({"slo": 1.0, "compress": kept})


def test_the_flag_stands_alone_or_with_a_file(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def keep(*_: object, **given: Any) -> None:
        asked.append(given["compress"])
        raise InputError("asked")

    monkeypatch.setattr("planner.ask.plan.plan", keep)
    for words in (
        ["--compress", "--slo", "1"],
        ["--slo", "1", "--compress"],
        ["--compress", str(measured), "--slo", "1"],
    ):
        CliRunner().invoke(app, ["plan", "--cdf", "azure", *words])
    assert asked == ["true", "true", str(measured)]


def test_a_configuration_names_a_file_beside_it(measured: Path) -> None:
    config = measured.parent / "fleet.yaml"
    config.write_text("slo: 1.0\ncompress: measured.json\n")
    from planner.question.files import load_question

    found = load_question(config).inputs().compress
    assert isinstance(found, Mapping) and found["source"] == "measured.json"
    assert PlanInputs.from_dict(json.loads(json.dumps(load_question(config).inputs().to_dict()))).compress == found


def test_the_plan_sweeps_with_it_and_says_what_it_takes(plan: fo.Plan) -> None:
    found: Any = plan.compression
    short = plan.pools[0]
    assert short.gamma == found["gamma"] > 1.0
    # every request of the band is tried, the core busy for the mean time of each
    azure = Workload.from_file("azure")
    low, high = azure.cdf(np.array([short.high_tokens, short.gamma * short.high_tokens]))
    assert found["cores_busy"] == pytest.approx(1000 * (high - low) * TIMES["mean"])
    assert found["cores"] >= found["cores_busy"] / 0.7 and found["cpu_usd_per_hour"] == pytest.approx(
        found["cores"] * 0.0446
    )
    borne = found["promises"][0]
    assert borne["with_compression_s"] == pytest.approx(short.quantile("ttft_s", 0.99) + TIMES["p99"])
    assert any("CPU cores busy" in note for note in plan.notes)
    assert any("compression was measured at 4,096" in warning for warning in plan.warnings)


def test_how_the_cost_moves(plan: fo.Plan) -> None:
    found: Any = plan.compression
    by_p_c = [r for r in found["sensitivity"] if r["varies"] == "p_c"]
    assert [r["p_c"] for r in by_p_c] == [0.0, *found["p_c"].values(), 1.0]
    assert by_p_c[2]["cost_usd_per_hour"] == plan.cost_usd_per_hour
    # nothing compressed at this boundary costs what two pools without a band cost
    plain = fo.plan("azure", compress=True, boundaries=[plan.pools[0].high_tokens], gammas=[1.0], **FLEET)  # type: ignore[arg-type]
    assert by_p_c[0]["cost_usd_per_hour"] == pytest.approx(plain.cost_usd_per_hour)
    assert by_p_c[0]["cost_usd_per_hour"] > plan.cost_usd_per_hour
    assert "compression" in plan.to_dict()


def test_nothing_to_compress_saves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_text(json.dumps(table(conv=0)))
    plan = fo.plan("azure", compress=str(path), boundaries=[2048, 4096], **FLEET)  # type: ignore[arg-type]
    assert all(p.compressed_share == 0.0 for p in plan.pools)
    assert any("does not pay here" in note for note in plan.notes)
