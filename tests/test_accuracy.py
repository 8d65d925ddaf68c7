"""Comparisons with measured systems do not slip unsaid: medians against those committed in docs/accuracy/figures.json.

`documented` needs no data. The others need the shared data, most of the time for MLPerf's servers; fits to servers, which take as
long as all others, are judged by `python -m benchmarks.accuracy` alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.accuracy.__main__ import FIGURES, GATED, judged, slipped  # noqa: E402
from benchmarks.accuracy.engines import documented  # noqa: E402
from benchmarks.accuracy.mixtures import Workers  # noqa: E402
from benchmarks.accuracy.mlperf_data import published_lengths  # noqa: E402
from benchmarks.accuracy.rows import Pair, rows_of  # noqa: E402
from benchmarks.accuracy.serving import each  # noqa: E402


def _committed() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(FIGURES.read_text(encoding="utf-8"))["rows"]
    return rows


def test_documented_throughput_has_not_slipped() -> None:
    assert slipped([row.to_dict() for row in rows_of(documented())], _committed()) == {}


SLOW = ("mlperf_server", "mlperf_interactive")


@pytest.mark.parametrize(
    "families",
    [
        tuple(f for f in GATED if f not in SLOW),
        SLOW,
    ],
    ids=["quick", "MLPerf's servers"],
)
def test_measured_systems_have_not_slipped(shared_data: Path, families: tuple[str, ...]) -> None:
    found = [row.to_dict() for row in rows_of(judged(shared_data, families))]
    assert {row["family"] for row in found} == set(families)
    assert slipped(found, _committed()) == {}


def test_an_empty_folder_is_judged(tmp_path: Path) -> None:
    """Nothing there: an empty list, not an error; what it says of a folder that is not there is one line."""
    target = tmp_path / "rows.json"
    command = [sys.executable, "-m", "benchmarks.accuracy"]
    subprocess.run([*command, str(tmp_path), "--json", str(target)], cwd=ROOT, check=True, capture_output=True)
    assert json.loads(target.read_text(encoding="utf-8")) == []
    failed = subprocess.run([*command, str(tmp_path / "none")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert failed.returncode == 2 and "no such folder" in failed.stderr


def test_what_is_broken_costs_its_own_row(tmp_path: Path) -> None:
    """Rows that are cut, of unknown models or without numbers, and files that are no text are named and left out; the others
    count. Of p = .84 and d = .95 a step yields 1.84 tokens with one draft and 1 + .84 + .84 x .798 with two."""
    lines = {
        "real/spec_decode/acceptance_length.csv": ["model,method,variant,mode,draft_tokens,acceptance_length", "a,mtp,,,1,2.3",
                                                   "a,mtp,,,2", "b,mtp,,,one,1.8", "c,mtp,,,2,nan", "d,mtp,,,2,2.51032"],
        "real/pd/rate45.csv": ["run,rate,requests", "x,45,words"],
        "real/offload/ladders.csv": ["model,gpu,replicas,tp,arm,target_qps", "nobody's,h100,8,2,hbm,5"],
        "real/mlperf/offline.csv": ["entry,disaggregated,gpu", "one,0"],
        "memory/kv_capacity.json": ["null"],
    }  # fmt: skip
    for name, text in lines.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n".join(text))
    (tmp_path / "real" / "pd" / "ladder.csv").write_bytes(b"\xff\xfe\x00")
    target = tmp_path / "rows.json"
    command = [sys.executable, "-m", "benchmarks.accuracy", str(tmp_path), "--json", str(target)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found = {row["metric"]: row for row in json.loads(target.read_text(encoding="utf-8"))}
    assert {metric: (row["n"], row["median"]) for metric, row in found.items()} == {
        "default_k1": (1, pytest.approx(0.2)), "default_k2": (1, pytest.approx(0.0, abs=1e-4))
    }  # fmt: skip
    named = ("acceptance_length.csv", "rate45.csv", "ladder.csv", "hbm", "offline.csv", "kv_capacity")
    assert [name for name in named if f"{name}" not in done.stderr] == [] and "Traceback" not in done.stderr


@pytest.mark.parametrize("points, share, told", [(0.021, 0.11, True), (0.019, 0.09, False)])
def test_the_gate_tells_a_figure_that_is_worse(points: float, share: float, told: bool) -> None:
    """Every committed median, made worse by hand by more than two points and more than a tenth of itself, or by less of each."""
    committed = _committed()
    worse = [{**row, "median": row["median"] + max(points, share * row["median"])} for row in committed]
    assert len(slipped(worse, committed)) == (len(committed) if told else 0)


def test_rows_count_cells_once_and_bands_as_shares_of_the_prediction() -> None:
    """Two entries of a cell count as their median; a band of 20% around 1.25 holds 1.0, one around 0.8 does not."""
    pairs = [Pair("f", "m", "a", 1.25, 1.0, 0.2, "cell"), Pair("f", "m", "b", 1.15, 1.0, 0.2, "cell")]
    pairs.append(Pair("f", "m", "c", 0.8, 1.0, 0.2))
    row = rows_of(pairs)[0]
    assert (row.n, row.covered) == (2, pytest.approx(2 / 3))
    assert (row.median, row.worst) == (pytest.approx(0.2), pytest.approx(0.2))


def test_columns_are_read_by_name_and_systems_told_apart_by_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("note,output_length,input_length\nx,20,100\ny,40,300\n")
    prompt, output = published_lengths(path)
    assert (prompt.tolist(), output.tolist()) == ([100.0, 300.0], [20.0, 40.0])
    rows = [{"arm": "a", "tp": "1"}, {"arm": "b", "tp": "1"}, {"arm": "a", "tp": "2"}, {"arm": "b", "tp": "1"}]
    assert {name: len(own) for name, own in each(rows, "arm", "tp").items()} == {"a 1": 1, "b": 2, "a 2": 1}


@pytest.mark.parametrize("mean", [600.0, 1024.0, 1500.0])
def test_answers_have_their_mean_and_the_longest_that_is_allowed(mean: float) -> None:
    """An exponential cut at 2,048 and of mean 1,024 is even; a running answer of an even law is met at a third of the longest."""
    run = Workers(1, 1, 1, 8, 4000, 100.0, mean, 2048.0, mean, {})
    assert run.answers.mean() == pytest.approx(mean, rel=1e-3)  # whole tokens, at least one
    assert (run.answers >= 1.0).all() and (run.answers <= 2048.0).all()
    if mean == 1024.0:
        assert run.context == pytest.approx(100.0 + 2048.0 / 3.0, rel=1e-3)
