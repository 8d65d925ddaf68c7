"""Calibration of a running server against one on loopback with known timing and faults to order."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from pace import at_its_pace
from virtual_server import VirtualServer, closed_loop_tpot

from planner.calibrate.closed_loop import Rules, ServerPoint
from planner.calibrate.launch import cached_share, read_counters, read_facts
from planner.calibrate.live import LiveServer, Load, LoadResult, Server
from planner.calibrate.loads import OperatingRange, describe_range, measure_range
from planner.calibrate.run import calibrate
from planner.calibrate.servers import fit_server
from planner.errors import CalibrationError, InputError
from planner.machine.iteration import IterationModel

TRUTH = IterationModel(t0=6e-3, c=6e-6, h=0.25e-3, g=0.4e-6)
SMALL = OperatingRange(max_input=512, max_output=16, max_concurrency=4, max_requests=600)
SOON_S = 45.0
"""A run ended by its own bound of a second or two is over by now on any machine; what it waits for here would take longer."""


def server(engine: FakeEngine, **options: float) -> Server:
    patience = {"timeout_s": 60.0, "start_wait_s": 2.0 * engine.pace, **options}
    return Server(engine.url, "fake", **patience)


def measured(engine: FakeEngine, load: Load, seconds: float = 60.0, **options: float) -> LoadResult:
    return LiveServer(server(engine, **options), time.monotonic() + seconds * engine.pace).run(load)


def test_a_server_over_a_network_is_recovered() -> None:
    """The whole path over a socket; wide, as a shared machine wakes sleeping threads late."""

    def check(pace: float) -> None:
        with FakeEngine(TRUTH, pace=pace) as engine:
            live = LiveServer(server(engine), time.monotonic() + 1.7 * pace)
            results = measure_range(live, SMALL, None, Rules())
            prompts = [tuple(b["prompt"]) for b in engine.bodies]
        assert not any("temperature" in b for b in engine.bodies)  # greedy tokens come cheaper than those users get
        assert len(set(prompts)) == len(prompts)  # no prefix cache can help
        points = [r.point for r in results if r.point is not None]
        assert len({p.shape for p in points}) >= 6
        assert {p.concurrency for p in points} >= {1.0, 4.0}
        fit = fit_server(points, scheduling="mixed", token_budget=8192, steady=True, resamples=2)
        for level in (1, 4):
            got = fit.predict(ServerPoint(128, 16, level, 1.0))[0]
            assert got == pytest.approx(pace * closed_loop_tpot(TRUTH, 128, 16, level), rel=0.25), level
        assert fit.api_overhead_idle_s is not None and fit.api_overhead_idle_s < 0.03 * pace

    at_its_pace(check)


GPU_LIKE = IterationModel(t0=2e-3, w=5.1e-3, b=19e-6, c=4.4e-6, g=47e-9, h=18e-6, a=0.6e-9)
CPU_LIKE = IterationModel(t0=30e-3, w=10e-3, b=300e-6, c=80e-6, g=0.4e-6, h=1e-3, a=5e-9)


@pytest.mark.parametrize(
    ("truth", "seconds", "most"),
    [
        (GPU_LIKE, 60.0, 250),
        pytest.param(
            CPU_LIKE, 300.0, 4000, marks=pytest.mark.long("iterations of a CPU, five times the seconds; a GPU's in CI")
        ),
    ],
    ids=["fast", "slow"],
)
def test_known_times_are_recovered(truth: IterationModel, seconds: float, most: int) -> None:
    """In virtual time, against a simulation that knows nothing of the formula: 3% at the batches measured, 6% at four times
    the largest, within the time, whether an iteration takes 7 ms or 40."""
    virtual = VirtualServer(truth, seconds)
    reach = OperatingRange(max_input=2048, max_output=128, max_concurrency=32, max_requests=most)
    results = measure_range(virtual, reach, None, Rules())  # type: ignore[arg-type]
    assert sum(r.seconds for r in results) <= seconds
    points = [r.point for r in results if r.point is not None]
    assert len({p.shape for p in points}) >= 6
    largest = max(p.concurrency for p in points)
    assert largest == 32 or truth is CPU_LIKE
    fit = fit_server(points, scheduling="mixed", token_budget=8192, steady=True, resamples=2)
    batches = {(p.running, p.input_tokens + 0.5 * p.output_tokens): 0.03 for p in points}
    batches[(4.0 * largest, 600.0)] = 0.06
    for (n, context), allowed in batches.items():
        got = fit.iteration.time(n, n * context)
        assert got == pytest.approx(truth.time(n, n * context), rel=allowed), (n, context)


def test_known_times_are_recovered_through_a_small_budget_and_few_slots() -> None:
    virtual = VirtualServer(GPU_LIKE, 300.0, budget=1024, slots=16)
    reach = OperatingRange(max_input=2048, max_output=128, max_concurrency=64, max_requests=300)
    results = measure_range(virtual, reach, None, Rules("mixed", 1024.0))  # type: ignore[arg-type]
    points = [r.point for r in results if r.point is not None]
    fit = fit_server(points, scheduling="mixed", token_budget=1024, steady=True, resamples=2)
    got = GPU_LIKE.time(16, 16 * 600)
    assert fit.iteration.time(16, 16 * 600) == pytest.approx(got, rel=0.05)


def test_cold_start_and_dropped_connections_are_survived() -> None:
    load = Load(64, 12, 4, 12)

    def check(pace: float) -> None:
        with FakeEngine(TRUTH, "cold", pace=pace) as engine:
            result = measured(engine, load, start_wait_s=1.5 * pace)
        assert result.point is not None
        slow_start = pace * TRUTH.time(4, 4 * 72)
        assert slow_start * 0.9 < result.point.tpot_s < slow_start * 1.6
        with FakeEngine(TRUTH, "drop", pace=pace) as engine:
            result = measured(engine, load)
        assert result.failed >= 1 and "dropped" in result.reason
        assert result.point is not None or result.failed > 0.2 * (result.failed + result.measured)

    at_its_pace(check)


def test_a_server_without_the_extras_is_asked_plainly() -> None:
    def check(pace: float) -> None:
        with FakeEngine(TRUTH, "400-extras", pace=pace) as engine:
            result = measured(engine, Load(32, 8, 1, 2))
            assert "ignore_eos" not in engine.bodies[-1]
        assert result.point is not None
        assert result.point.output_tokens == 8

    at_its_pace(check)


def test_events_of_several_tokens_are_counted_by_their_tokens() -> None:
    def check(pace: float) -> None:
        with FakeEngine(IterationModel(t0=3e-3), burst=4, pace=pace) as engine:
            result = measured(engine, Load(32, 32, 1, 3))
        assert result.point is not None and result.tokens_per_event == pytest.approx(4.0)
        assert result.point.tpot_s == pytest.approx(3e-3 * pace, rel=0.3)  # not 12 ms
        assert 0.0 < result.client_s_per_token < 3e-3 * pace

    at_its_pace(check)


@pytest.mark.parametrize(
    ("fault", "told", "patience_s"),
    [
        ("500", "HTTP 500", 60.0),
        ("hang", "no answer in time|no complete answer", 0.2),
        ("garbage", "not OpenAI's", 60.0),
    ],
)
def test_a_server_that_fails_is_a_clear_error(fault: str, told: str, patience_s: float) -> None:
    with FakeEngine(TRUTH, fault) as engine:
        started = time.monotonic()
        with pytest.raises(CalibrationError, match=told):
            given = server(engine, timeout_s=patience_s, start_wait_s=0.2)
            calibrate(server=given, reach=SMALL, max_seconds=60.0)
        assert time.monotonic() - started < SOON_S


def test_nobody_listens() -> None:
    with pytest.raises(CalibrationError, match="refused"):
        calibrate(server=Server("http://127.0.0.1:9", "m", start_wait_s=0.1), max_seconds=60.0)


def test_time_bound_is_kept_and_too_little_is_said() -> None:
    def check(pace: float) -> None:
        with FakeEngine(IterationModel(t0=0.02), pace=pace) as engine:
            started = time.monotonic()
            # nothing else than what is told for too little
            with pytest.raises(CalibrationError) as caught:
                calibrate(server=server(engine), reach=SMALL, max_seconds=0.4 * pace)
            assert time.monotonic() - started < 4.0 * pace
        assert "no prior to rescale" in str(caught.value)

    at_its_pace(check)


def test_a_server_that_falls_silent_does_not_hold_the_run() -> None:
    """Its run ends with its time, long before the patience with a request."""

    def check(pace: float) -> None:
        with FakeEngine(TRUTH, "silent", pace=pace) as engine:
            started = time.monotonic()
            result = measured(engine, Load(32, 8, 2, 4), seconds=0.5)
            assert time.monotonic() - started < SOON_S
        assert result.point is None

    at_its_pace(check)


def test_a_known_machine_needs_few_loads() -> None:
    """With an estimate to rescale, a second and a half gives a profile that says how wide it is."""
    truth = IterationModel(t0=8e-3, c=20e-6, h=60e-6, g=0.3e-6)

    def check(pace: float) -> None:
        with FakeEngine(truth, pace=pace) as engine:
            one = calibrate(
                server=server(engine), reach=SMALL, gpu="l40s", model="llama-3.1-8b", max_seconds=1.5 * pace, force=True
            ).only
        assert one.server_fit is not None and one.server_fit.points >= 2
        assert one.profile.name.endswith("-server") and one.profile.automatic is (not one.problems)
        assert one.raw is not None and one.raw.header["clock"] and len(one.raw.rows) == one.server_fit.points

    at_its_pace(check)


VLLM_METRICS = """# HELP vllm:num_requests_running x
vllm:num_requests_running{model_name="m"} 2.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:kv_cache_usage_perc{model_name="m"} 0.25
vllm:prefix_cache_queries_total{model_name="m"} 1000.0
vllm:prefix_cache_hits_total{model_name="m"} 10.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",num_gpu_blocks="573"} 1.0
nonsense
"""


def test_what_vllm_says_of_itself_is_read() -> None:
    pages = {
        "/metrics": VLLM_METRICS,
        "/version": '{"version": "0.11.0"}',
        "/v1/models": '{"data": [{"id": "m", "max_model_len": 2048, "owned_by": "vllm"}]}',
    }
    with FakeEngine(TRUTH, pages=pages) as engine:
        facts = read_facts(server(engine).endpoint, 60.0)
        assert (facts.engine, facts.version, facts.models) == ("vllm", "0.11.0", ("m",))
        assert (facts.kv_tokens, facts.prefix_caching, facts.max_context) == (573 * 16, True, 2048)
        assert facts.counters == {"running": 2.0, "prefix_hits": 10.0, "prefix_queries": 1000.0}
        assert cached_share(read_counters(server(engine).endpoint, 60.0), facts.counters) == 0.0


def test_what_sglang_says_of_itself_is_read_and_its_keys_are_not() -> None:
    info = (
        '{"version": "0.5.1", "chunked_prefill_size": 4096, "max_running_requests": 48, "max_total_num_tokens": 70000, \
"api_key": "secret", "disable_radix_cache": true, "internal_states": []}'
    )
    pages = {
        "/metrics": 'sglang:num_running_reqs{model_name="m"} 0.0\nsglang:token_usage{model_name="m"} 0.1\n',
        "/server_info": info,
        "/v1/models": '{"data": [{"id": "m", "owned_by": "sglang"}]}',
    }
    with FakeEngine(TRUTH, pages=pages) as engine:
        facts = read_facts(server(engine).endpoint, 60.0)
    assert (facts.engine, facts.slots, facts.token_budget, facts.kv_tokens) == ("sglang", 48, 4096, 70000)
    assert facts.prefix_caching is False and "secret" not in repr(facts)


def test_a_prefix_cache_that_answers_is_refused() -> None:
    """Hits grow although no prompt is sent twice."""
    pages = {"/metrics": VLLM_METRICS, "/v1/models": '{"data": [{"id": "m", "owned_by": "vllm"}]}'}
    grown = VLLM_METRICS.replace("1000.0", "9000.0").replace('"m"} 10.0', '"m"} 7000.0')

    def check(pace: float) -> None:
        with FakeEngine(IterationModel(t0=3e-3, h=60e-6), pages={**pages}, pace=pace) as engine:
            with pytest.raises(CalibrationError) as caught:
                calibrate(
                    server=server(engine), reach=SMALL, gpu="l40s", model="llama-3.1-8b", max_seconds=1.0 * pace,
                    progress=lambda done, total, what: engine.pages.update({"/metrics": grown}),
                )  # fmt: skip
            assert "prefix cache" in str(caught.value)

    at_its_pace(check)


def test_the_range_is_bounded_and_described() -> None:
    reach = OperatingRange(max_input=4096, max_output=256, max_concurrency=32)
    assert len({(i, o) for i in reach.inputs for o in reach.outputs}) >= 6
    assert reach.levels[0] == 1 and reach.levels[-1] == 32
    assert describe_range(reach, 60.0)[-1].startswith("at most")
    with pytest.raises(InputError, match="too few"):
        OperatingRange(max_requests=10)
    with pytest.raises(InputError, match="at least 2"):
        OperatingRange(max_concurrency=1)
    with pytest.raises(InputError, match="not http"):
        Server("localhost:8000", "m")


def test_the_range_of_a_plan(tmp_path: Path) -> None:
    """Twice the mean lengths; 320 slots x 0.00867 at load 0.1036 are 22.8 running at 85% of capacity."""
    path = tmp_path / "plan.yaml"
    pool = {
        "mean_input_tokens": 1434.2,
        "mean_output_tokens": 153.8,
        "slots": 320,
        "load": 0.1036,
        "slot_occupancy": 0.00867,
    }
    path.write_text(json.dumps({"kind": "fleetopt-plan", "pools": [pool]}))
    reach = OperatingRange.for_plan(path)
    assert (reach.max_input, reach.max_output, reach.max_concurrency) == (2868, 308, 23)
    assert {round(p.concurrency) for p in reach.reference()} == {6, 23}
    path.write_text(json.dumps({"kind": "fleetopt-plan", "pools": [{"slots": 3}]}))
    with pytest.raises(InputError, match="does not say what runs"):
        OperatingRange.for_plan(path)
    path.write_text("gpu: h100\n")
    with pytest.raises(InputError, match="holds no plan"):
        OperatingRange.for_plan(path)


def test_several_processes_measure_as_one_does() -> None:
    """The same load from one process and from two, on a machine that may have other work."""
    load = Load(64, 16, 4, 12)

    def check(pace: float) -> None:
        with FakeEngine(TRUTH, pace=pace) as engine:
            live = LiveServer(server(engine), time.monotonic() + 60.0 * pace)
            one = live.run(load)
            live.processes = 2
            two = live.run(load)
            prompts = [tuple(b["prompt"]) for b in engine.bodies]
        assert len(set(prompts)) == len(prompts)
        assert one.point is not None and two.point is not None, two.reason
        assert two.measured >= 8 and two.client_s_per_token > 0.0
        assert two.point.tpot_s == pytest.approx(pace * closed_loop_tpot(TRUTH, 64, 16, 4), rel=0.35)
        assert two.point.tpot_s == pytest.approx(one.point.tpot_s, rel=0.35)

    at_its_pace(check)


def test_a_client_at_its_limit_takes_more_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def run(live: LiveServer, load: Load, most_seconds: float, window_s: float) -> tuple[LoadResult, float]:
        asked.append(live.processes)
        point = ServerPoint(64, 24, 8, 0.01) if live.processes > 1 else None
        return LoadResult(load, point, 10, 0, seconds=0.1), 0.95 if point is None else 0.3

    monkeypatch.setattr(LiveServer, "_run", run)
    monkeypatch.setattr(sys.modules["planner.calibrate.live"], "cores", lambda: 16)
    with FakeEngine(TRUTH) as engine:
        live = LiveServer(server(engine), time.monotonic() + 60.0)
        assert live.run(Load(64, 24, 8, 16)).point is not None
    assert asked == [1, 2]


def test_a_process_that_ends_by_itself_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with FakeEngine(TRUTH) as engine:
        live = LiveServer(server(engine), time.monotonic() + 60.0)
        live.processes = 2
        with pytest.raises(CalibrationError, match="ended by itself"):
            live.run(Load(64, 24, 4, 8))
