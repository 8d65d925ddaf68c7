"""Results in notebooks, data frames in and out, and the alias ``fleetopt``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

import planner as fo
from planner.errors import InputError
from planner.report.output import summary_of
from tools import notebooks

QUICK: dict[str, Any] = {"slo": 2.0, "rate": 30, "method": "occupancy", "pools": 1, "burst": "poisson"}


@pytest.fixture(scope="module")
def results() -> list[Any]:
    plan = fo.plan("azure", **QUICK)
    hours = fo.schedule(plan, hours="servegen-m-small")
    return [plan, fo.evaluate(plan, [10, 30]), fo.what_if(plan, rate=[10, 30]), hours]


class Cells(HTMLParser):
    """Cells of a table, and whether every element is closed in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows = 0
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.rows += tag == "tr"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_every_result_shows_itself(results: list[Any]) -> None:
    for result in results:
        seen = Cells()
        seen.feed(result._repr_html_())
        assert not seen.open
        assert seen.rows == 1 + min(48, len(result.to_rows()))
        assert ("\n".join(summary_of(result)) or repr(result).strip("<>")) in seen.text
    assert "cost_usd_per_hour" in results[0]._repr_html_()
    assert "src=" not in results[0]._repr_html_()


def test_text_from_outside_is_escaped(results: list[Any]) -> None:
    import dataclasses

    plan = results[0]
    pool = dataclasses.replace(plan.pools[0], name="<script>")
    assert "<script>" not in dataclasses.replace(plan, pools=(pool,))._repr_html_()


def test_a_frame_is_the_rows_of_the_result(results: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows: ("frame", rows)))
    for result in results:
        assert result.to_frame() == ("frame", result.to_rows())


def test_without_pandas_the_error_says_so(results: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pandas is not installed"):
        results[0].to_frame()


class Frame:
    """As much of a pandas data frame as is used."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = [*columns]
        self.values = columns

    def itertuples(self, index: bool = True) -> Iterator[tuple[Any, ...]]:
        assert not index
        return zip(*self.values.values(), strict=True)


def requests(**others: list[Any]) -> Frame:
    return Frame(**{"prompt_tokens": [100, 200.0, 300] * 400, "completion_tokens": [10, 20, 30] * 400, **others})


def test_a_frame_of_requests_is_a_workload() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = [start + timedelta(seconds=k / 4) for k in range(1200)]
    frame = requests(timestamp=times, category=["chat"] * 1200)
    loaded = fo.load_workload(frame)
    assert (loaded.mean_input, loaded.mean_output) == (pytest.approx(200.0), pytest.approx(20.0))
    assert loaded.categories == ("chat",)
    assert loaded.arrivals.rate_per_s == pytest.approx(4.0, rel=0.02)
    # the plan carries the rows and answers again without the frame
    plan = fo.plan(frame, **{**QUICK, "rate": None})
    assert fo.evaluate(plan).to_rows()[0]["rate_per_s"] == pytest.approx(plan.arrival_rate_per_s)
    assert fo.evaluate(plan, 5, workload=requests()).holds
    assert fo.stability(requests(), rate=5).verdict == "stable"


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        (Frame(tokens=[1, 2]), "DataFrame: no column 'input_tokens or prompt_tokens"),
        (Frame(input_tokens=[], output_tokens=[]), "DataFrame: no usable request"),
        (Frame(input_tokens=[1, float("nan")], output_tokens=[1, 2]), "DataFrame:2: input tokens nan is not a count"),
        (Frame(input_tokens=[1, 2], isl=[1, 2], output_tokens=[1, -2]), "DataFrame:2: output tokens -2 is not a count"),
    ],
)
def test_frames_that_cannot_be_read(frame: Frame, line: str) -> None:
    with pytest.raises(InputError) as refused:
        fo.plan(frame, **QUICK)
    assert line in str(refused.value)


def test_fleetopt_is_planner_by_another_name() -> None:
    import fleetopt

    assert fleetopt.plan is fo.plan
    assert fleetopt.__all__ == fo.__all__
    assert fleetopt.__version__ == fo.__version__
    with pytest.raises(AttributeError, match="alias of 'planner', which has no attribute 'plans_of'"):
        fleetopt.plans_of  # noqa: B018


def test_a_script_is_a_notebook_of_its_paragraphs() -> None:
    found = notebooks.cells((notebooks.EXAMPLES / "growth.py").read_text(encoding="utf-8"))
    assert [cell.splitlines()[0].partition("(")[0] for cell in found] == [
        "import planner as fo", "base = fo.plan", "ahead = fo.growth", "print",
    ]  # fmt: skip
    assert [cell.splitlines()[-1] for cell in found[1:3]] == ["base", "ahead"]


def test_a_script_runs_as_a_notebook_and_its_plan_shows_as_the_page() -> None:
    pytest.importorskip("nbclient")
    made = notebooks.notebook(notebooks.EXAMPLES / "growth.py", run=True)
    plan = made.cells[2].outputs[0].data["text/html"]
    assert "BUY" in plan and "BEFORE YOU SIGN" in plan and plan in notebooks.page(made)
