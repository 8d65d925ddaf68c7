"""Server histograms: mass of every bucket, exact mean, differences of scrapes, range queries."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.workload.formats.prometheus import reshape
from planner.workload.importing import read_workload
from planner.workload.source import Source

BOUNDS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]


def scrape(prompts: list[int], outputs: list[int], family: str = "vllm:request") -> str:
    text = ["# TYPE vllm:request_prompt_tokens histogram"]
    for side, values in (("prompt", prompts), ("generation", outputs)):
        name = f"{family}_{side}_tokens"
        for bound in [*BOUNDS, float("inf")]:
            label = "+Inf" if bound == float("inf") else f"{float(bound)}"
            text.append(f'{name}_bucket{{engine="0",le="{label}"}} {sum(v <= bound for v in values)}.0')
        text += [f'{name}_count{{engine="0"}} {len(values)}.0', f'{name}_sum{{engine="0"}} {sum(values)}.0']
    return "\n".join(text) + "\n# EOF\n"


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=80))
@settings(max_examples=80, deadline=None)
def test_reshaping_keeps_mass_and_mean(values: list[int]) -> None:
    edges = np.array([0, *BOUNDS], dtype=float)
    mass, _ = np.histogram(np.array(values) - 0.5, bins=edges)
    mass = mass / mass.sum()
    points, weight = reshape(edges, mass, float(np.mean(values)))
    assert float(weight @ points) == pytest.approx(np.mean(values), rel=1e-9)
    assert np.all(points > 0.0)
    found = [float(weight[(points > a + 0.9) & (points <= b + 1e-6)].sum()) for a, b in pairwise(edges)]
    np.testing.assert_allclose(found, mass, atol=1e-6)


def test_an_impossible_mean_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        reshape(np.array([0.0, 10.0, 100.0]), np.array([0.5, 0.5]), 90.0)


def test_difference_of_two_scrapes(tmp_path: Path) -> None:
    before, after = tmp_path / "t0.txt", tmp_path / "t1.txt"
    before.write_text(scrape([10, 4000], [5, 5]))
    after.write_text(scrape([10, 4000, 300, 700, 900], [5, 5, 40, 60, 80]))
    workload, report = read_workload(after, baseline=Source(before), interval_s=30.0)
    assert workload.provenance.requests == 3
    assert workload.mean_input == pytest.approx(1900 / 3, rel=1e-9)
    assert workload.mean_output == pytest.approx(60.0, rel=1e-9)
    assert workload.arrivals.rate_per_s == pytest.approx(0.1)
    assert any("independent" in note for note in report.notes)
    assert workload.correlation == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(InputError, match="restarted"):
        read_workload(before, baseline=Source(after))


def test_replicas_add_up_and_exemplars_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    one = scrape([10, 20], [5, 5])
    two = (
        scrape([30, 40], [5, 5])
        .replace('engine="0"', 'engine="1"')
        .replace("} 2.0\n", '} 2.0 # {trace_id="x"} 1.0 1.7e9\n')
    )
    path.write_text(one.replace("# EOF\n", "") + two)
    workload, _ = read_workload(path)
    assert workload.provenance.requests == 4
    assert workload.mean_input == pytest.approx(25.0)


def test_lengths_beyond_the_last_bound_are_said(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text(scrape([10, 60_000], [5, 5]))
    workload, report = read_workload(path)
    assert workload.mean_input == pytest.approx(30_005.0)
    assert any("above the last bound" in note for note in report.notes)


def test_a_range_query_has_a_rate_and_survives_restarts(tmp_path: Path) -> None:
    def series(name: str, values: list[float], **labels: str) -> dict[str, object]:
        points = [[1_700_000_000 + 60 * k, str(v)] for k, v in enumerate(values)]
        return {"metric": {"__name__": name, **labels}, "values": points}

    steps = [0.0, 60.0, 120.0, 0.0, 60.0, 120.0]  # a restart after the third minute: 120 + 120 requests in 5 minutes
    result = []
    for side, length in (("prompt", 100), ("generation", 10)):
        name = f"vllm:request_{side}_tokens"
        result.append(series(f"{name}_count", steps))
        result.append(series(f"{name}_sum", [length * s for s in steps]))
        for bound in (5, 10, 100, 1000):
            result.append(series(f"{name}_bucket", [s if length <= bound else 0.0 for s in steps], le=str(bound)))
        result.append(series(f"{name}_bucket", steps, le="+Inf"))
    path = tmp_path / "range.json"
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
    workload, report = read_workload(path)
    assert report.format == "prometheus"
    assert workload.provenance.requests == 240
    assert workload.mean_input == pytest.approx(100.0)
    assert workload.mean_output == pytest.approx(10.0)
    assert workload.arrivals.rate_per_s == pytest.approx(240 / 300)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# TYPE x histogram\nvllm:garbage\n", r"m.txt:2: .* not a Prometheus sample"),
        ("# TYPE x counter\nup 1\n", "no histogram of input"),
        (scrape([], []), "has counted no request"),
        (scrape([10], [5]).replace('le="5.0"} 0.0', 'le="5.0"} 7.0', 1), "cumulative"),
        (scrape([10], [5]).replace('_bucket{engine="0",le="5.0"}', '_bucket{engine="0"}', 1), "no upper bound"),
        (scrape([10], [5]).replace("_sum", "_summ"), "does not fit"),
    ],
)
def test_broken_scrapes(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "m.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_workload(path)


def test_series_without_names_say_what_to_query(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(
        json.dumps(
            {"data": {"resultType": "matrix", "result": [{"metric": {"le": "5"}, "values": [[0, "1"], [1, "2"]]}]}}
        )
    )
    with pytest.raises(InputError, match=r"without rate\(\)"):
        read_workload(path)
