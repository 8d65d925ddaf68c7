"""What a plan tells beside its numbers: each remark where it is due, with values reckoned by hand, and nowhere else."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import planner as fo
from planner.plans import Narrowing, Sized, Sureness
from planner.question.compiled import CompiledQuestion
from planner.report.text.plan import before_signing
from planner.shared.remarks import Remark
from planner.size import notes
from planner.size.alone import speculation_remark
from planner.size.assemble import pool_plans, sure_remark
from planner.size.fleet import Fleet
from planner.size.notes import hours_told, options_without_effect, warnings_of
from planner.size.shapes.colocated import SHAPE, Colocated
from planner.workload.sending import Sending, Surge
from planner.workload.trace import Intervals
from tests.size import four_requests
from tests.size.four_requests import FOUR, INPUTS, OUTPUTS

pytestmark = pytest.mark.usefixtures("few_replayed", "without_chances")

ASKED = {**four_requests.ASKED, "rate": 8.0}


def asked(workload: fo.Workload = FOUR, **options: Any) -> CompiledQuestion:
    return four_requests.asked(workload, **{"rate": 8.0, **options})


def fleet(workload: fo.Workload = FOUR, **options: Any) -> Colocated:
    return four_requests.fleet(workload, **{"rate": 8.0, **options})


def told(kind: str, code: str, **options: Any) -> list[Any]:
    """Values of the remarks of a plan by their code."""
    plan = fo.plan(FOUR, **{k: v for k, v in {**ASKED, **options}.items() if k != "cdf"})
    return [dict(r.values) for r in plan.remarks[kind] if r.code == code]


def test_engines_and_prices() -> None:
    (times,) = told("assumptions", "iteration_times")
    assert {k: times[k] for k in ("model", "dtype", "gpu", "parallel", "likeness", "profile")} == {
        "model": "llama-3.1-8b", "dtype": "bf16", "gpu": "h100-80gb", "parallel": "TP1", "likeness": "", "profile": ""
    }  # fmt: skip
    assert times["trust"].startswith("estimated, ±")
    (own,), (given,) = told("assumptions", "gpu_price"), told("assumptions", "gpu_price", price={"h100": 1.25})
    assert own["gpu"] == "h100-80gb" and own["price"] > 0.0 and own["source"].endswith("; --price overrides)")
    assert given == {"gpu": "h100-80gb", "price": 1.25, "source": ""}
    paper = {
        "profile": "fleetopt-paper",
        "method": "mgc",
        "kv": "reserved",
        "route_on": "total",
        "ttft": 30.0,
        "tp": None,
    }
    own_times = fleet()
    (pool,) = own_times.pools
    measured = replace(pool.option, profile=replace(pool.option.profile, provenance="measured", name="mine"))
    own_times.pools[0] = replace(pool, option=measured)
    assert next(notes.assumptions_of(own_times, True)).values["profile"] == " (profile mine)"
    (price,) = told("assumptions", "gpu_price", **paper)
    assert price["source"] == " (of profile fleetopt-paper; --price overrides)"
    # of two pools of one engine it is said once
    assert len(told("assumptions", "iteration_times", pools=2, boundaries=[300], rate=400.0)) == 1


def test_adapters_take_their_room() -> None:
    (lora,) = told("assumptions", "lora", lora=4, lora_rank=8)
    # 32 layers: queries and outputs 4,096 x 4,096, keys and values 4,096 x 1,024, three of 4,096 x 14,336; 16 bits
    numbers = 32 * 8 * (2 * 8192 + 2 * 5120 + 3 * 18432)
    assert lora["gib"] == pytest.approx(4 * 2 * numbers / 2**30)
    assert (lora["adapters"], lora["rank"], lora["gpu"], lora["parallel"]) == (4, 8, "h100-80gb", "TP1")
    assert told("assumptions", "lora") == []


def test_how_requests_are_taken_to_arrive() -> None:
    def codes(**options: Any) -> list[str]:
        found = SHAPE.solve(asked(**options)).fleet
        return [r.code for r in notes.assumptions_of(found, True)]

    assert "poisson" in codes() and "poisson" in codes(burst="auto")
    assert [r.values for r in notes.assumptions_of(fleet(burst="paced:4"), True) if r.code == "paced"] == [
        {"clients": 4}
    ]
    surge = told("assumptions", "surge", surge="3x/60s")
    assert surge == [{"factor": 3.0, "length_s": 60.0, "ramp": "", "rate": 8.0}]
    (ramped,) = notes._sending_assumed(replace(asked().traffic, sending=Sending(surge=Surge(2.0, 60.0, 30.0))))
    assert ramped.values == {"factor": 2.0, "length_s": 60.0, "ramp": " after a ramp of 30 s", "rate": 8.0}
    assert told("assumptions", "in_flight", in_flight=400) == [{"limit": 400}]
    assert told("assumptions", "in_flight") == told("assumptions", "surge") == []
    assert told("assumptions", "failures", availability_target=0.001) == [
        {"failures_per_hour": 0.001, "repair_hours": 0.5}
    ]
    assert told("assumptions", "failures") == []


def test_bursts_of_a_trace_and_what_is_made_of_them() -> None:
    """Of three windows; at another rate than the trace's own, what is made of the difference."""
    arrivals = replace(
        FOUR.arrivals, rate_per_s=8.0, assumed=None, dispersion=((1.0, 2.5), (5.0, 3.0), (10.0, 4.0), (60.0, 1234.0))
    )
    traffic = replace(asked().traffic, bursts=True, workload=SimpleNamespace(arrivals=arrivals), own_rate=False)

    def bursts(rate: float, **changes: Any) -> Remark:
        question = replace(asked(), traffic=replace(traffic, rate_per_s=rate, **changes))
        return notes._arrivals_assumed(SimpleNamespace(question=question), True)  # type: ignore[arg-type]

    assert bursts(8.0, own_rate=True).values == {"windows": "2.5 over 1 s, 4 over 10 s, 1,234 over 60 s", "scaled": ""}
    assert bursts(4.0).values["scaled"] == ("; the trace has 8 requests/s, 4 are taken as a random part of them")
    assert bursts(16.0).values["scaled"].endswith("16 are taken as more independent users")  # type: ignore[attr-defined]
    assert "more use by the same users" in str(bursts(16.0, growth="use").values["scaled"])
    assert bursts(16.0, bursts=False).code == "poisson"
    question = replace(asked(), traffic=replace(traffic, rate_per_s=8.0))
    assert notes._arrivals_assumed(SimpleNamespace(question=question), False).code == "poisson"  # type: ignore[arg-type]
    known = SimpleNamespace(arrivals=replace(arrivals, dispersion=(), assumed="as in the paper"))
    assert bursts(8.0, workload=known) == Remark("arrivals", {"assumed": "as in the paper"})


def test_lengths_room_and_gateway() -> None:
    assert told("assumptions", "room") == [{"output": 400}] and told("assumptions", "room", max_output=64) == [
        {"output": 64}
    ]
    (gateway,) = told("assumptions", "gateway", rate=60.0, routing="random")
    assert gateway["routing"] == "random" and gateway["summary"] and gateway["gateway"]
    # one replica is no choice
    assert told("assumptions", "gateway", rate=1.0) == []
    assert told("assumptions", "oracle", route_on="total") == [{"because": ""}]
    assert told("assumptions", "room", route_on="total") == told("assumptions", "oracle") == []
    assert told("assumptions", "no_compression", pools=2, boundaries=[300]) == [{}]
    assert (
        told("assumptions", "no_compression")
        == told("assumptions", "no_compression", pools=2, boundaries=[300], p_c=0.5)
        == []
    )
    some = fo.Workload.from_arrays(
        INPUTS, OUTPUTS, name="some", category=[0, 0, 1, 1], categories=["chat", "code"], compressible=[1.0, 0.0]
    )
    assert not [r for r in fleet(some, pools=2, boundaries=[300]).assumptions() if r.code == "no_compression"]


def test_small_fleets_spot_and_spares() -> None:
    assert told("notes", "small_fleet", rate=None) == [{"rate": 8.0}]
    assert told("notes", "small_fleet") == []
    dear = fo.Workload.from_arrays(INPUTS, OUTPUTS, name="dear", arrival_rate_per_s=100.0)
    assert [r.code for r in fo.plan(dear, **{**ASKED, "cdf": None, "rate": None}).remarks["notes"]].count(
        "small_fleet"
    ) == 0
    (spot,) = told("notes", "spot", rate=60.0, spot_price={"h100": 1.0}, spot_share=0.5)
    whole = fo.plan(FOUR, **{**ASKED, "cdf": None, "rate": 60.0})
    assert spot == {"pool": "all", "spot": whole.replicas // 2, "replicas": whole.replicas, "price": 1.0}
    assert told("notes", "spot", rate=60.0) == []


def test_options_that_change_nothing() -> None:
    def codes(**options: Any) -> list[tuple[str, dict[str, Any]]]:
        question = asked(**options)
        return [(r.code, dict(r.values)) for r in options_without_effect(question, SHAPE.solve(question).fleet)]

    assert codes() == []
    assert codes(offload=16, session_ttl="60s") == [
        ("no_sessions", {"option": "session_ttl"}), ("no_sessions", {"option": "offload"})
    ]  # fmt: skip
    assert codes(price={"h100": 2.0, "l40s": 1.0}) == [("not_searched", {"option": "--price", "names": "l40s"})]
    assert codes(price={"l40s": 1.0}, gpu=["h100", "l40s"]) == []
    assert codes(spot_share=0.5) == [("spot_without_price", {})]
    assert codes(spot_price={"h100": 1.0}) == [("spot_without_share", {})]
    assert codes(spot_price={"l40s": 1.0}, spot_share=0.5) == [
        ("not_searched", {"option": "--spot-price", "names": "l40s"})
    ]
    paper = {
        "profile": "fleetopt-paper",
        "method": "mgc",
        "kv": "reserved",
        "route_on": "total",
        "ttft": 30.0,
        "tp": None,
    }
    assert codes(**paper) == []
    own = {"profile": "fleetopt-paper", "gpu": codes_gpu(paper)}
    other = codes(**paper, gpu="l40s")
    assert [(code, v["option"], v["profile"], v["gpu"]) for code, v in other] == [
        ("other_profile", "gpu", "fleetopt-paper", own["gpu"])
    ]
    assert [v["option"] for _, v in codes(**paper, model="qwen3-8b")] == ["model"]


def codes_gpu(paper: dict[str, Any]) -> str:
    return SHAPE.solve(asked(**paper)).fleet.pools[0].option.gpu.name


def test_speeds_nobody_measured_are_not_fit_to_buy_on() -> None:
    """A band of 30% is as wide as is fit; a split of prefill and decode has been seen to miss by 36%, and prompts
    from host memory by 40%: one fleet of each was measured."""
    own = fleet(confidence=0.8, rate=60.0)

    def wide(band: float, provenance: str = "estimated", linked: bool = False, offload: float = 0.0) -> list[Any]:
        (pool,) = own.pools
        profile = replace(pool.option.profile, band=band, band_prefill=None, provenance=provenance)
        other = replace(pool, option=replace(pool.option, profile=profile))
        inputs = SimpleNamespace(offload=0.0, offload_disk=offload)
        question = SimpleNamespace(inputs=inputs, traffic=SimpleNamespace(sessions=object()))
        one = SimpleNamespace(linked=linked, promises=own.promises, question=question)
        return [dict(r.values) for r in notes._wide_band(one, other)]  # type: ignore[arg-type]

    assert (
        wide(0.3)
        == wide(0.6, "measured")
        == wide(0.6, "fitted")
        == wide(0.29, linked=True, provenance="measured")
        == []
    )
    assert wide(0.31) == [{"gpu": "h100-80gb", "band": 0.31, "what": "models of this kind"}]
    split = {"gpu": "h100-80gb", "what": "prefill and decode apart (one fleet measured)"}
    assert wide(0.2, linked=True) == wide(0.35, linked=True) == [{**split, "band": 0.36}]
    assert wide(0.5, linked=True) == [{**split, "band": 0.5}]
    kept = {"gpu": "h100-80gb", "what": "prompts kept in host memory (one fleet measured)"}
    assert wide(0.2, offload=100.0) == [{**kept, "band": 0.4}] and wide(0.2, "measured", offload=100.0) == []


@pytest.mark.parametrize(
    "engine, how, host",
    [
        ("vllm", "", "vLLM 0.9 (2025-11), the most measured; the newest: --engine vllm@0.27"),
        ("vllm@0.11", "", "vLLM 0.9 (2025-11)"),
        ("vllm@0.27.1", "", "vLLM 0.27 (2026-11)"),
        ("vllm@0.99", "newer", "vLLM 0.27 (2026-11)"),
        ("vllm@0.5", "older", "vLLM 0.9 (2025-11)"),
    ],
)
def test_engines_versions_and_their_age_are_told(engine: str, how: str, host: str) -> None:
    """Whose host times an estimate has; a version beyond those that were measured is a warning."""
    plan = fo.plan(FOUR, **{k: v for k, v in {**ASKED, "engine": engine}.items() if k != "cdf"})
    (times,) = (r for r in plan.remarks["assumptions"] if r.code == "iteration_times")
    assert str(times).endswith(f", host times of {host}")
    warned = [str(r) for r in plan.remarks["warnings"] if r.code == "engine_version"]
    assert [f"version {engine[5:]} is {how}" in line and host in line for line in warned] == [True] * bool(how)


def test_a_pool_that_admits_less_than_its_longest() -> None:
    (less,) = told("warnings", "admits_less", max_output=100)
    # a prompt of 4,000 and an output of 400 is one request in four, of which 4,100 are admitted in blocks of 16
    assert less == {"pool": "all", "admitted": 4112, "room": 4400, "cut": pytest.approx(0.25)}
    assert told("warnings", "admits_less") == told("warnings", "admits_less", route_on="total") == []


def test_fewer_gpus_than_the_arithmetic_takes() -> None:
    """A profile that charges nothing for prefill: 2 x 70.6e9 operations a token at the 312 TFLOP/s of an A100."""
    paper = {
        "profile": "fleetopt-paper",
        "method": "mgc",
        "kv": "reserved",
        "route_on": "total",
        "ttft": 30.0,
        "tp": None,
    }
    (pool,) = fleet(rate=500.0, **paper).pools
    one = replace(pool, replicas=1)
    (found,) = notes._impossible(one)
    least = 500.0 * (1350.0 + 165.0) * 2.0 * 70.6e9 / 312e12
    assert found.values["gpus"] == pool.option.profile.gpus and found.values["profile"] == "fleetopt-paper"
    assert found.values["least"] == pytest.approx(least, rel=0.01) and found.values["gpu"] == pool.option.gpu.name
    assert list(notes._impossible(replace(pool, replicas=10_000))) == []


def test_warnings_of_pools() -> None:
    own = fleet(rate=60.0, confidence=0.8)
    (plan,), (pool,) = pool_plans(own), own.pools
    known = [*pool.setup.warnings, *pool.prediction.warnings]
    assert [r.values["warning"] for r in warnings_of(own, (plan,)) if r.code == "pool"] == known
    # a thousand sequences at least and contexts of a hundred tokens at most were measured
    ranges = {"decodes": (1000.0, 2000.0), "context_tokens": (1.0, 100.0)}
    narrow = replace(pool.option, profile=replace(pool.option.profile, covered=ranges))
    own.pools[0] = replace(pool, option=narrow)
    told = [str(r.values["warning"]) for r in warnings_of(own, (plan,)) if r.code == "pool"]
    context = float(np.sum(OUTPUTS * (INPUTS + 0.5 * OUTPUTS)) / np.sum(OUTPUTS))
    assert told[:-1] == known and len(told) == len(known) + 1
    first, second = told[-1].split("; ")
    assert first == f"decodes = {pool.prediction.mean_running:g} is outside the measured range 1000..2000"
    assert float(second.removeprefix("context_tokens = ").split(" ")[0]) == pytest.approx(context, rel=0.01)
    own.pools[0] = pool
    unsure = replace(plan, replicas_high=None)
    (band,) = [r for r in warnings_of(own, (unsure,)) if r.code == "profile_band"]
    assert band.values == {"pool": "all", "band": pool.option.profile.band, "provenance": "estimated"}
    doubtful = replace(pool.prediction, reliable=False, warnings=("watch out",))
    own.pools[0] = replace(pool, prediction=doubtful)
    found = [(r.code, r.values) for r in warnings_of(own, (plan,))]
    assert ("no_promise", {"pool": "all"}) in found and ("pool", {"pool": "all", "warning": "watch out"}) in found
    few = Remark("few_requests", {"requests": 5, "promise": "P99 TTFT", "wanted": 1000})
    own.question = replace(
        own.question, traffic=replace(own.question.traffic, changes=(few, Remark("own_rate", {"rate": 1.0})))
    )
    assert next(iter(warnings_of(own, (plan,)))) == few
    assert few not in list(notes.assumptions_of(own, True))
    assert Remark("own_rate", {"rate": 1.0}) in list(notes.assumptions_of(own, True))


def test_replays_in_python_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "kernel_in_use", lambda: "no compiler")
    assert told("warnings", "kernel_in_python") == [{"why": "no compiler"}]
    assert told("warnings", "kernel_in_python", method="occupancy") == []


def test_how_sure_is_told_with_what_would_narrow_it() -> None:
    def sure(least: int | None, most: int | None, *narrowing: Narrowing, low: float = 0.1) -> Remark:
        ends = [Sized(chance, None if n is None else (n,), n) for chance, n in ((low, least), (0.9, most))]
        return sure_remark(
            Sureness(0.8, 0.83, 0.2, 8, 0.9, Sized(0.5, (5,), 5, 9.0), *ends, steps=(), most=1.0, narrowing=narrowing)
        )

    several = "4 GPUs hold them with a chance of 10%, 1,200 with 90%"
    assert sure(4, 1200).values == {"share": 0.83, "sizes": several, "narrow": "", "draws": 8}
    assert sure(1, None).values["sizes"] == "1 GPU holds them with a chance of 10%, no number with 90%"
    assert sure(None, None).values["sizes"] == "no number of GPUs holds them with a chance of 10%"
    # a size that keeps more than it was looked for has the chance it has, and of smaller ones nothing is known
    assert sure(1, 1, low=0.93).values["sizes"] == "1 GPU holds them with a chance of 93%"
    assert sure(40, 44, low=0.31).values["sizes"] == "40 GPUs hold them with a chance of 31%, 44 with 90%"
    trace, times = Narrowing("trace", 0.1, 0, 0.0), Narrowing("calibration", 0.05, 3, 9.0)
    assert sure(4, 8, trace, times).values["narrow"] == (
        "; iteration times measured on this GPU (fleetopt calibrate) would take 3 GPUs less"
    )
    assert sure(4, 8, trace).values["narrow"] == ""
    assert (
        sure(4, 8, Narrowing("trace", 0.1, 2000, 0.0)).values["narrow"]
        == "; a trace of more hours would take 2,000 GPUs less"
    )


def hourly(weeks: float, busy: dict[int, int]) -> Any:
    counts = np.full(round(weeks * 168), 100)
    for hour, count in busy.items():
        counts[hour] = count
    return counts


class Linear(Fleet):
    """Takes a replica of two GPUs for every 10/s."""

    def __init__(self, counts: Any, width_s: float = 3600.0, **changes: Any) -> None:
        known = Intervals.__new__(Intervals)
        object.__setattr__(known, "width_s", width_s)
        object.__setattr__(known, "counts", counts)
        workload = SimpleNamespace(intervals=known, recorded=None)
        self.question = SimpleNamespace(  # type: ignore[assignment]
            traffic=SimpleNamespace(**{"workload": workload, "own_rate": True, "rate_per_s": 1000.0, **changes})
        )
        self.pools = [SimpleNamespace(gpus=202)]  # type: ignore[list-item]

    def size(self, rate_per_s: float, near: Any = None) -> Any:
        return [SimpleNamespace(gpus=2 * (math.ceil(rate_per_s / 10.0 - 1e-9) + 1))]


def test_the_busiest_hour_of_several_weeks() -> None:
    """Three weeks of 100 an hour with a peak of 400, 1,000 and 200: 1,000/s stand for 1,000 an hour."""
    counts = hourly(3.0, {30: 400, 200: 1000, 400: 200})
    found = hours_told(Linear(counts))
    assert found is not None and found.code == "hours"
    # hour 200 is the ninth of the ninth day; of the peaks of the weeks 400 is the middle one
    assert found.values == {
        "day": 9, "hour": 9, "of": 504, "rate": 1000.0, "share": 0.95, "week_rate": 400.0, "hours_rate": 100.0,
        "week_gpus": 2 * 41, "hours_gpus": 2 * 11, "gpus": 202,
    }  # fmt: skip
    quarters = np.repeat(counts // 4, 4)
    assert hours_told(Linear(quarters, 900.0)) == found
    # part of an hour at the end is none
    assert hours_told(Linear(np.append(quarters, [5000, 5000]), 900.0)) == found
    assert hours_told(Linear(counts[:335])) is None and hours_told(Linear(counts[:336])) is not None
    assert hours_told(Linear(counts, 7200.0)) is None and hours_told(Linear(counts, 7.0)) is None
    assert hours_told(Linear(counts, own_rate=False)) is None
    assert hours_told(Linear(counts, workload=SimpleNamespace(intervals=None, recorded=None))) is None


def test_hours_of_recorded_times() -> None:
    rng = np.random.default_rng(2)
    times = np.sort(
        np.concatenate([3600.0 * h + rng.uniform(0.0, 3600.0, n) for h, n in enumerate(hourly(2.01, {50: 300}))])
    )
    trace = SimpleNamespace(times_s=times, stretches=None)
    found = hours_told(Linear(None, workload=SimpleNamespace(intervals=None, recorded=trace)))
    assert found is not None and found.values["day"] == found.values["hour"] == 3 and found.values["of"] == 338
    # the middle of weeks whose busiest hours are 300 and 100
    assert found.values["week_rate"] == pytest.approx(1000.0 * 200.0 / 300.0)
    cut = SimpleNamespace(times_s=times, stretches=())
    assert hours_told(Linear(None, workload=SimpleNamespace(intervals=None, recorded=cut))) is None


@pytest.mark.parametrize(("acceptance", "crosses"), [(0.9, None), (0.05, 0.0)])
def test_what_speculation_gains_is_told_against_the_plain_replica(acceptance: float, crosses: float | None) -> None:
    options = {"model": "llama-3.1-70b", "tp": 4, "token_budget": 1024, "ttft": 2.0, "rate": 12.0}
    own = fleet(speculate=f"eagle3:k=3,accept={acceptance}", **options)
    (pool,) = own.pools
    found = speculation_remark(own.question, pool)
    assert found is not None
    values: dict[str, Any] = dict(found.values)
    # 1 + a + a^2 + a^3 tokens a step, a little less where drafts of later places are accepted less often
    assert values["tokens"] == pytest.approx(sum(acceptance**k for k in range(4)), rel=0.05)
    assert values["load"] == pytest.approx(12.0 / pool.replicas / values["capacity"])
    (plain,) = fleet(**options).pools
    assert values["plain_capacity"] == pytest.approx(plain.model.capacity_per_s, rel=0.02)
    per_replica = 12.0 / pool.replicas
    slower = plain.model.look(per_replica, 1, (0.5,)).value("tpot_s", 0.5)
    assert values["plain_s"] == pytest.approx(slower, rel=0.05) or math.isinf(values["plain_s"])
    quicker = pool.model.look(per_replica, 1, (0.5,)).value("tpot_s", 0.5)
    assert values["tpot_s"] == pytest.approx(quicker, rel=0.05)
    assert found.code == ("speculation_gains" if crosses is None else "speculation_crosses") or acceptance == 0.9
    if crosses is not None:
        assert values["crossing"] <= 0.1 and values["assumed"] == ""
    # the page says so where it slows
    plan = fo.plan(
        FOUR,
        **{k: v for k, v in {**ASKED, **options, "speculate": f"eagle3:k=3,accept={acceptance}"}.items() if k != "cdf"},
    )
    assert any("speculation slows them" in line for line in before_signing(plan)) == (crosses is not None)
    assert speculation_remark(own.question, plain) is None
