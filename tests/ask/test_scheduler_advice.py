"""Stability, batching and WAIT advice against simulation of the same iteration times, and their edges."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.ask.replica import SchedulerReplica, scheduler_replica
from planner.errors import InfeasibleError, InputError
from planner.report import formatter
from planner.workload.workload import Workload
from tests.ask.of_replica import batching, stability, wait

MEASURED = """\
schema: fleetopt-profile/1
name: bench-l40s
gpu: l40s
model: llama-3.1-8b
tp: 1
provenance: measured
automatic: false
iteration: {t0: 0.003, w: 0.018, b: 0.000075, c: 0.00001, g: 0.0000002, h: 0.000001, a: 0.000000002, x: %s}
band: 0.03
source: made up for tests
%s"""


def workload(seed: int = 0) -> Workload:
    rng = np.random.default_rng(seed)
    inputs = np.maximum(1, rng.lognormal(6.0, 0.8, 400).round())
    outputs = np.maximum(1, rng.lognormal(4.5, 0.8, 400).round())
    return Workload.from_arrays(inputs, outputs, name="made-up", arrival_rate_per_s=20.0)


def replica(**options: Any) -> SchedulerReplica:
    return scheduler_replica(workload(), {"gpu": "h100", "rate": 20.0, **options})


@pytest.fixture
def profile(tmp_path: Path) -> Any:
    def write(x: float, extra: str = "") -> str:
        path = tmp_path / f"profile{x}.yaml"
        path.write_text(MEASURED % (x, extra))
        return str(path)

    return write


def exclusive_throughput(r: SchedulerReplica, slots: int, k: int, requests: int = 12_000) -> float:
    """EB(k) with a backlog, iteration by iteration: pure prefill iterations of at most B tokens, pure decodes."""
    rng = np.random.default_rng(5)
    w, time, budget = r.workload, r.profile.iteration.time, r.token_budget
    pick = rng.choice(w.weight.size, requests, p=w.weight)
    L, O = w.input_tokens[pick], w.output_tokens[pick]
    left, context = np.zeros(0), np.zeros(0)
    at, now, done, start = 0, 0.0, 0, None
    while at < requests:
        if slots - left.size >= k:
            new = slice(at, min(requests, at + slots - left.size))
            at = new.stop
            prompts, first = list(L[new]), 0.0
            while prompts:
                room, pairs = budget, 0.0
                while prompts and room > 0:
                    c = min(prompts[0] - first, room)
                    pairs += c * (first + 0.5 * (c + 1))
                    room -= c
                    first += c
                    if first >= prompts[0]:
                        prompts.pop(0)
                        first = 0.0
                now += time(0.0, 0.0, float(budget - room), pairs)
            more = O[new] > 1
            done += int((~more).sum())
            left, context = np.r_[left, O[new][more] - 1], np.r_[context, L[new][more]]
        else:
            context += 1
            now += time(float(left.size), float(context.sum()), context_max=float(context.max()))
            left -= 1
            over = left <= 0
            done += int(over.sum())
            left, context = left[~over], context[~over]
        if start is None and at > 0.3 * requests:
            start = (now, done)
    assert start is not None
    return (done - start[1]) / (now - start[0])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"gpu": "l40s", "max_num_seqs": 64}])
def test_exclusive_throughput_and_threshold_against_simulation(options: dict[str, Any]) -> None:
    r = replica(**options)
    found = batching(r).exclusive
    N, k = found["N"], found["k"]
    # other thresholds are only to be no better: sixty times what the slots hold is enough of them
    others = {max(1, k // 4), min(N, 4 * k), N // 2} - {k}
    simulated = {j: exclusive_throughput(r, N, j, min(12_000, 60 * N)) for j in others} | {
        k: exclusive_throughput(r, N, k)
    }
    assert found["throughput_per_s"] == pytest.approx(simulated[k], rel=0.01)
    assert simulated[k] > 0.985 * max(simulated.values())


def test_mixed_cost_never_measured_is_said_and_not_guessed() -> None:
    found = batching(replica())
    assert (found.verdict, found.certainty) == ("not measured", "unknown")
    assert found.mixed["throughput_per_s"] is found.mixed["kappa"] is found.crossover["N_crossover"] is None
    assert found.to_run is not None
    assert found.to_run.startswith("fleetopt calibrate --gpu h100-80gb --model llama-3.1-8b --tp 1")
    text = formatter("table")(found)
    assert "NOT MEASURED" in text
    assert "fleetopt calibrate" in text
    assert "not measured" in formatter("markdown")(found)


def test_measured_interference_decides(profile: Any) -> None:
    cheap = batching(replica(profile=profile(1e-7)))
    dear = batching(replica(profile=profile(2e-3)))
    assert (cheap.verdict, dear.verdict) == ("mixed", "exclusive")
    assert dear.certainty == "beyond the profile's error"
    assert dear.crossover["gap_s_per_token"] > cheap.crossover["gap_s_per_token"]
    assert dear.mixed["kappa"] < cheap.mixed["kappa"] <= 0.0
    # the break-even cost is where the two closed forms meet
    m, c = dear.mixed, dear.crossover
    assert m["beta_MB_s_per_token"] > c["break_even_beta_MB_s_per_token"]
    known = batching(replica(profile=profile(0.0, "settings: {mixed_measured: true}\n")))
    assert known.verdict in ("mixed", "exclusive")
    assert known.to_run is None
    assert "crossover" in formatter("table")(dear)


def test_stability_verdicts_and_certificates() -> None:
    r = replica()
    fleet = stability(r)
    engine, *_, hard = fleet.bounds
    assert fleet.verdict == "stable"
    assert fleet.replicas == math.ceil(20.0 / (0.85 * engine.replica_per_s))
    assert engine.kind == "engine"
    assert hard.kind == "limit"
    achieved = [b for b in fleet.bounds if b.kind != "limit"]
    assert all(b.replica_per_s <= hard.replica_per_s for b in achieved)
    assert fleet.slack == pytest.approx(1 - engine.load)
    X, H = engine.replica_per_s, hard.replica_per_s
    assert 0.9 < X / H < 1.0
    between = stability(replica(rate=0.5 * (X + H)), replicas=1)
    assert between.verdict == "unstable"
    assert between.time_to_overload_s == 0.0
    over = stability(replica(rate=1.6 * H), replicas=1)
    assert over.verdict == "impossible"
    assert over.stable_within_band
    assert over.bounds[0].kind == "limit"
    assert over.recovery_s_per_s == math.inf
    for result in (fleet, between, over):
        assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["verdict"] == result.verdict
        assert result.verdict.upper() in formatter("table")(result)
    assert "|" in formatter("markdown")(fleet)


def test_burst_arithmetic() -> None:
    r = replica()
    X = stability(r).bounds[0].replica_per_s
    calm = stability(r, replicas=4, burst=1.0)
    assert calm.time_to_overload_s == math.inf
    assert "sustained" in formatter("table")(calm)
    hard = stability(r, replicas=4, burst=100.0)
    growth = 100.0 * 20.0 - 4 * X
    assert hard.growth_per_s == pytest.approx(growth)
    assert hard.time_to_overload_s == pytest.approx(4 * (r.slots - hard.busy_sequences) / growth)
    assert hard.recovery_s_per_s == pytest.approx(growth / (4 * X - 20.0))
    assert 0 < hard.busy_sequences < r.slots


def test_wait_settings_fit_and_scale() -> None:
    r = replica()
    found = wait(r)
    assert found.verdict == "stable"
    assert found.fits
    assert found.memory_tokens is not None
    assert found.memory_tokens <= r.kv_tokens
    work = float(r.workload.weight @ ((r.decodes + 1) * (r.workload.input_tokens + r.decodes / 2)))
    rate = 20.0 / found.replicas
    assert found.equilibrium["slack"] == pytest.approx(1 - found.d1_s_per_token * rate * work, rel=1e-6)
    # the classes keep the whole load
    table = found.types
    assert sum(t["rate_per_s"] for t in table) == pytest.approx(rate, rel=1e-6)
    load = sum(
        t["rate_per_s"] * t["output_tokens"] * (t["input_tokens"] + 0.5 * (t["output_tokens"] - 1)) for t in table
    )
    assert load == pytest.approx(rate * work, rel=1e-6)
    assert "threshold" in formatter("table")(found)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["fits"] is True
    assert len(found.to_rows()) == len(table)


def test_wait_overload_and_small_memory(tmp_path: Path) -> None:
    r = replica(rate=10_000.0)
    over = wait(r, replicas=1)
    assert over.verdict == "overload"
    assert over.nested is None
    assert over.memory_tokens is None
    assert "OVERLOAD" in formatter("table")(over)
    near = wait(replica(), replicas=60, types=60)
    assert near.verdict == "memory too small"
    assert "does not fit" in formatter("table")(near)
    fixed = wait(replica(), replicas=20, types=1, segments=3, horizon=60.0, delta=0.1)
    assert fixed.nested is not None
    assert fixed.nested["segments"] == 3
    assert len(fixed.nested["thresholds"]) == 3


def test_fixed_lengths_and_single_tokens() -> None:
    plain = scheduler_replica(
        Workload.from_arrays(np.array([300.0]), np.array([1.0]), name="classify"), {"rate": 5.0, "gpu": "h100"}
    )
    assert stability(plain).verdict == "stable"
    assert batching(plain).exclusive["throughput_per_s"] > 0
    assert wait(plain).verdict == "stable"
    fixed = scheduler_replica(
        Workload.from_arrays(np.array([300.0]), np.array([200.0]), name="fixed"), {"rate": 5.0, "gpu": "h100"}
    )
    found = batching(fixed)
    assert any("stay in step" in w for w in found.warnings)


def test_questions_that_cannot_be() -> None:
    with pytest.raises(InputError, match="one kind of replica"):
        scheduler_replica(workload(), {"gpu": ["h100", "l4"], "rate": 1.0})
    with pytest.raises(InputError, match="rate"):
        scheduler_replica(Workload.from_arrays([1.0], [1.0], name="silent"), {"gpu": "h100"})
    with pytest.raises((InputError, InfeasibleError)):
        scheduler_replica(
            Workload.from_arrays([90_000.0], [30_000.0], name="long"), {"gpu": "l4", "tp": 1, "rate": 1.0}
        )
    r = replica()
    for call, what in [
        (lambda: stability(r, burst=0.5), "burst"),
        (lambda: stability(r, replicas=0), "replicas"),
        (lambda: wait(r, types=0), "types"),
        (lambda: wait(r, delta=0.0), "delta"),
        (lambda: wait(r, horizon=0.0), "horizon"),
    ]:
        with pytest.raises(InputError, match=what):
            call()


def test_bins_and_assumed_outputs_are_not_taken_for_requests_of_one_length() -> None:
    """A row of a compact file stands for many requests; 54 rows with one assumed output would all stay in step."""
    r = scheduler_replica(Workload.from_file("lmsys"), {"gpu": "h100", "rate": 10.0})
    found = batching(r)
    assert found.exclusive["N"] > 100
    assert any("geometrically" in line for line in found.assumptions)
    assert not any("stay in step" in line for line in found.warnings)
