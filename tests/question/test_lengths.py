"""Traffic without a trace, changed traffic, one outlier, standard input: the same answer wherever it is asked."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest

import planner as fo
from planner.errors import InputError
from planner.question.files import load_question
from planner.question.options import PlanInputs
from planner.workload import resolve
from planner.workload.combine import without_longer
from planner.workload.synthetic import SyntheticLengths
from planner.workload.workload import Workload

pytestmark = pytest.mark.usefixtures("fewer_replayed", "without_chances", "without_words")

QUICK = {"method": "occupancy", "pools": 1}


@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0])
def test_the_bins_are_those_of_a_log_normal_law(spread: float) -> None:
    """Against draws of numpy's generator, cut at the same quantile; 400,000 of them are within 1% of these moments."""
    made = SyntheticLengths(2000, 300, spread, 0.0).workload()
    sigma = math.sqrt(math.log1p(spread**2))
    draws = np.sort(np.random.default_rng(7).lognormal(0.0, sigma, 400_000))[: int(0.999 * 400_000)]
    draws *= 2000 / draws.mean()
    assert made.mean_input == pytest.approx(2000, rel=1e-12)
    assert made.mean_output == pytest.approx(300, rel=1e-12)
    assert made.std("output") == 0.0
    # bins take off what varies inside them
    assert made.std("input") == pytest.approx(draws.std(), rel=0.03)
    assert made.std("input") <= draws.std() * 1.01
    for level in (0.25, 0.5, 0.95):
        share = made.weight[made.input_tokens <= np.quantile(draws, level)].sum()
        assert share == pytest.approx(level, abs=0.06)


def test_lengths_are_a_workload_by_their_name() -> None:
    question = PlanInputs.from_dict({"isl": "2k", "osl": 300, "isl_spread": "50%", "slo": 1, "rate": 5})
    assert question.cdf == "isl=2000,osl=300,isl-spread=0.5,osl-spread=1"
    assert Workload.from_file(question.cdf).name == question.cdf
    changed = question.override({"isl": 4000})
    assert changed.cdf == "isl=4000,osl=300,isl-spread=0.5,osl-spread=1"


@pytest.mark.usefixtures("with_words")
def test_a_plan_of_lengths_says_what_it_assumes_and_can_be_asked_again(tmp_path: Path) -> None:
    plan = fo.plan(isl=1000, osl=100, rate=20, slo=2.0, **QUICK)
    assert any("independent log-normal lengths assumed" in line for line in plan.assumptions)
    assert not any("workload" in line for line in plan.assumptions if line.startswith("chosen"))
    assert fo.evaluate(plan).to_rows()[0]["holds"]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"isl": 2000}, "isl: without osl"),
        ({"osl_spread": 0.5}, "osl_spread: without isl and osl"),
        ({"isl": 2000, "osl": 300, "cdf": "azure"}, "isl: beside cdf"),
        ({"isl": 0, "osl": 300}, "isl: must be at least 1 token"),
        ({"isl": 2000, "osl": 300, "isl_spread": -1}, "isl_spread: must lie in"),
        ({"isl": "many", "osl": 300}, "isl: 'many' is not a number of tokens"),
        ({"osl_scale": 0}, "osl_scale: must be a positive factor"),
        ({"drop_longer_than": 0}, "drop_longer_than: must be at least 1"),
    ],
)
def test_lengths_that_cannot_be(given: dict[str, object], line: str) -> None:
    with pytest.raises(InputError) as refused:
        PlanInputs.from_dict({"slo": 1, **given})
    assert str(refused.value).startswith(line)


def test_a_name_with_one_mean_is_told() -> None:
    with pytest.raises(InputError, match="no osl"):
        Workload.from_file("isl=2000")


def outlier() -> Workload:
    return Workload.from_arrays([1000.0] * 999 + [500_000.0], [100.0] * 1000, arrival_rate_per_s=10.0, name="mine")


@pytest.mark.usefixtures("with_words")
def test_one_outlier_does_not_refuse_a_plan() -> None:
    with pytest.raises(InputError, match="drop-longer-than 131072"):
        fo.plan(outlier(), slo=2.0, **QUICK)
    plan = fo.plan(outlier(), slo=2.0, drop_longer_than="128Ki", **QUICK)
    assert any(line.startswith("0.100% of requests are longer than 131,072 tokens") for line in plan.assumptions)
    assert plan.arrival_rate_per_s == pytest.approx(9.99)
    assert plan.workload["longest_tokens"] == 1100
    # the plan carries what it was made for, and answers for it
    assert fo.evaluate(plan).to_rows()[0]["rate_per_s"] == pytest.approx(9.99)


def test_nothing_left_is_an_error_and_nothing_dropped_is_nothing_changed() -> None:
    with pytest.raises(InputError, match="the shortest has 1,100"):
        without_longer(outlier(), 10)
    kept, share = without_longer(outlier(), 1e9)
    assert share == 0.0
    assert kept == outlier()


def test_longer_outputs_are_those_of_the_scaled_workload(tmp_path: Path) -> None:
    from planner.workload.combine import scaled

    asked = fo.plan("azure", slo=2.0, rate=30, osl_scale=1.3, **QUICK)
    scaled_first = fo.plan(scaled(Workload.from_file("azure"), output_factor=1.3), slo=2.0, rate=30, **QUICK)
    assert asked.cost_usd_per_hour == scaled_first.cost_usd_per_hour
    assert asked.pools[0].latency == scaled_first.pools[0].latency


class Pipe:
    """Standard input as a pipe."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)

    def isatty(self) -> bool:
        return False


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    resolve.standard_input.cache_clear()
    yield lambda data: monkeypatch.setattr("sys.stdin", Pipe(data))
    resolve.standard_input.cache_clear()


def test_standard_input_is_read_and_carried(piped, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    piped(b"input_tokens,output_tokens\n100,20\n200,30\n300,x\n")
    with pytest.raises(InputError, match=r"standard input:4: output tokens 'x' is not a count"):
        fo.plan("-", slo=2.0, rate=5, **QUICK)
    resolve.standard_input.cache_clear()
    piped(b"input_tokens,output_tokens\n100,20\n200,30\n")
    plan = fo.plan("-", slo=2.0, rate=5, **QUICK)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan.to_dict()), encoding="utf-8")
    assert load_question(file).traffic("-").mean_input == 150.0


def test_standard_input_of_nothing_or_a_terminal(piped, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    piped(b"")
    with pytest.raises(InputError, match="standard input: the file is empty"):
        Workload.from_file("-")
    resolve.standard_input.cache_clear()
    monkeypatch.setattr(Pipe, "isatty", lambda self: True)
    with pytest.raises(InputError, match="nothing comes on standard input"):
        Workload.from_file("-")


def test_a_compact_file_on_standard_input_is_carried_whole(piped, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    shipped = Workload.from_file("azure")
    piped(resolve.resolve_workload("azure").read_bytes())
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(fo.plan("-", slo=2.0, **QUICK).to_dict()), encoding="utf-8")
    assert load_question(file).traffic("-") == shipped
    assert fo.evaluate(file).holds
