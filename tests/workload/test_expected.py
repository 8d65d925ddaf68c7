"""Raw traces, and the shipped files made of them, give the published statistics exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.workload.arrivals import gap_spread
from planner.workload.formats.base import ReadOptions, TraceBuilder
from planner.workload.importing import import_files, read_trace, read_workload
from planner.workload.pools import FleetMoments, State
from planner.workload.workload import Workload

TRACES = {
    "azure_conv": "azure_conv_2023.csv",
    "azure_code": "azure_code_2023.csv",
    "sharegpt4_8k": "sharegpt4_8k_lengths.csv",
    "mooncake_synthetic": "mooncake_synthetic.jsonl",
    "aibrix_8min": "aibrix_8min_lengths.csv",
}


@pytest.fixture(scope="module")
def expected(shared_data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared_data / "workloads" / "expected.json").read_text())
    return found


def load(shared_data: Path, name: str) -> Workload:
    raw = shared_data / "workloads" / "raw"
    if name == "azure_mix":
        return import_files(
            [("conv", raw / TRACES["azure_conv"]), ("code", raw / TRACES["azure_code"])], ReadOptions()
        )[0]
    return read_workload(raw / TRACES[name])[0]


def p99_chunks(w: Workload) -> float:
    chunks = np.ceil(w.input_tokens / 512)
    order = np.argsort(chunks)
    return float(chunks[order][np.searchsorted(np.cumsum(w.weight[order]), 0.99 - 1e-12)])


def check(w: Workload, truth: dict[str, Any], tolerance: float) -> None:
    def same(label: str, value: float, known: float) -> None:
        assert value == pytest.approx(known, rel=tolerance, abs=1e-9), label

    assert w.provenance.requests == truth["n"]
    for of in ("input", "output", "total"):
        facts = truth[of]
        same(f"{of} mean", w.moment(of), facts["mean"])
        same(f"{of} std", w.std(of), facts["std"])
        for key, q in (("min", 0.0), ("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)):
            same(f"{of} {key}", w.quantile(q, of), facts[key])
    assert w.correlation == pytest.approx(truth["pearson_in_out"], abs=max(1e-9, 0.2 * tolerance))
    same("input share", w.mean_input / w.mean_total, truth["token_weighted_input_share"])
    steps = truth["service_iterations_chunk512"]
    same("iterations", w.iterations(512)[0], steps["mean"])
    same("scv", w.iterations(512)[1], steps["cs2"])
    same("p99 chunks", p99_chunks(w), steps["p99_prefill_chunks"])
    for text, facts in truth["boundaries"].items():
        boundary = float(text)
        same(f"F({text})", w.cdf(boundary), facts["F"])
        for gamma in (1.5, 2.0):
            if w.provenance.exact or facts[f"beta_{gamma}"] > 0.01:
                band = sum(w.band_fractions(boundary, gamma).values())
                assert band == pytest.approx(facts[f"beta_{gamma}"], rel=2 * tolerance, abs=1e-9)
        for side, ends in (("short", (0.0, boundary)), ("long", (boundary, np.inf))):
            law = FleetMoments(w).law(*map(State, ends))
            assert law is not None
            part = Workload.from_arrays(law.input_tokens, law.output_tokens, weight=law.weight)
            same(f"{side} {text} iterations", part.iterations(512)[0], facts[side]["mean"])
            same(f"{side} {text} scv", part.iterations(512)[1], facts[side]["cs2"])
            same(f"{side} {text} p99 chunks", p99_chunks(part), facts[side]["p99_prefill_chunks"])


@pytest.mark.parametrize("name", [*TRACES, "azure_mix"])
def test_raw_traces_exactly(shared_data: Path, expected: dict[str, Any], name: str) -> None:
    check(load(shared_data, name), expected[name], 1e-9)


@pytest.mark.parametrize(
    ("name", "trace"),
    [("azure", "azure_mix"), ("azure-conv", "azure_conv"), ("azure-code", "azure_code"), ("sharegpt4", "sharegpt4_8k"),
     ("long-context", "mooncake_synthetic")],
)  # fmt: skip
def test_shipped_files_exactly(expected: dict[str, Any], name: str, trace: str) -> None:
    check(Workload.from_file(name), expected[trace], 1e-9)


@pytest.mark.parametrize("name", ["azure_conv", "azure_code", "mooncake_synthetic", "aibrix_8min"])
def test_arrivals_exactly(shared_data: Path, expected: dict[str, Any], name: str) -> None:
    found = read_trace(shared_data / "workloads" / "raw" / TRACES[name], None, ReadOptions())
    assert isinstance(found, TraceBuilder)
    times = np.sort(np.frombuffer(found.times))
    known = expected[name]["arrivals"]
    assert times[-1] - times[0] == pytest.approx(known["span_s"], rel=1e-9)
    assert _usual(times, np.inf) == pytest.approx(known["ca2_whole"], rel=1e-6)
    assert _usual(times, 60.0) == pytest.approx(known["ca2_60s_windows"], rel=1e-6)
    assert _usual(times, 300.0) == pytest.approx(known["ca2_300s_windows"], rel=1e-6)


def test_superposed_arrivals(shared_data: Path, expected: dict[str, Any]) -> None:
    arrivals = load(shared_data, "azure_mix").arrivals
    known = expected["azure_mix"]["arrivals"]
    assert arrivals.rate_per_s == pytest.approx(known["rate_per_s"], rel=1e-9)
    # the reference divides by the windows' own means, which is a part in (gaps per window) too small
    assert arrivals.scv == pytest.approx(known["ca2_60s_windows"], rel=0.05)
    assert arrivals.scv > known["ca2_60s_windows"]


def test_joint_files_made_elsewhere(shared_data: Path, expected: dict[str, Any]) -> None:
    for name in ("azure_conv", "azure_code", "azure_mix", "sharegpt4_8k", "mooncake_synthetic"):
        w = Workload.from_file(shared_data / "workloads" / "joint" / f"{name}.csv")
        assert w.iterations(512) == pytest.approx(
            (
                expected[name]["service_iterations_chunk512"]["mean"],
                expected[name]["service_iterations_chunk512"]["cs2"],
            ),
            rel=0.002,
        )
    by_category = Workload.from_file(shared_data / "workloads" / "joint" / "azure_mix_by_category.csv")
    assert by_category.compressible == (0.0, 1.0)


def _usual(times: np.ndarray, window_s: float) -> float:
    """The reference's scv: about the window's own mean, weighted by the gaps."""
    found = gap_spread(times, window_s)
    assert found is not None
    return float(found[0].sum() / found[1].sum())
