"""Fits of servers: synthetic closed loops, measured ones, refusals."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from virtual_server import closed_loop_tpot

import planner as fo
from planner.calibrate.closed_loop import Loads, Rules, ServerPoint, log_parameters, loop_times
from planner.calibrate.files import read_measurements
from planner.calibrate.result import profile_of_server
from planner.calibrate.servers import ENOUGH_SHAPES, fit_server, hardware_limit, server_limits
from planner.catalog import gpu, model
from planner.catalog.profiles import profile, save_profile, served_by
from planner.errors import CalibrationError, InputError
from planner.machine.iteration import IterationModel
from planner.machine.roofline import roofline

TRUTH = IterationModel(t0=2.5e-3, w=5e-3, b=18e-6, c=6e-6, g=55e-9, h=3e-6, a=0.6e-9)
SHAPES = ((256, 64), (256, 256), (1024, 64), (1024, 256), (4096, 64), (4096, 256), (2048, 128))


def points(
    truth: IterationModel = TRUTH, scheduling: str = "mixed", noise: float = 0.0, seed: int = 0
) -> list[ServerPoint]:
    rng = np.random.default_rng(seed)
    found = []
    for isl, osl in SHAPES:
        for level in (1, 8, 32):
            tpot = closed_loop_tpot(truth, isl, osl, level, rules=Rules(scheduling), overhead_s=4e-3)
            ttft = truth.time(0, 0, isl, isl * (isl + 1) / 2) + 4e-3 if level == 1 else None
            jitter = np.exp(noise * rng.standard_normal(2))
            found.append(ServerPoint(isl, osl, level, tpot * jitter[0], None if ttft is None else ttft * jitter[1]))
    return found


def test_a_request_alone_by_hand() -> None:
    # 5 ms + 10 us + 52.5 us for 1,050 tokens of context
    assert closed_loop_tpot(IterationModel(t0=5e-3, c=10e-6, g=50e-9), 1000, 101, 1) == pytest.approx(
        5.0625e-3, rel=1e-4
    )


@pytest.mark.parametrize("scheduling", ["mixed", "exclusive"])
def test_a_known_server_is_recovered(scheduling: str) -> None:
    prior = roofline(gpu("h100"), model("llama-3.1-8b"))
    fit = fit_server(points(scheduling=scheduling, noise=0.01), prior, scheduling=scheduling, resamples=20)
    assert fit.tpot_error is not None and fit.tpot_error < 0.03
    assert fit.ttft_error is not None and fit.ttft_error < 0.06
    low, high = fit.intervals["W"]
    assert 0.95 * low < 7.5e-3 < 1.05 * high
    assert fit.iteration.t0 + fit.iteration.w == pytest.approx(7.5e-3, rel=0.06)
    new = ServerPoint(3000, 200, 20, 1.0)
    truth = closed_loop_tpot(TRUTH, 3000, 200, 20, rules=Rules(scheduling), overhead_s=4e-3)
    got, low, high = fit.predict(new)
    assert got == pytest.approx(truth, rel=0.05) and low < got < high


def test_the_way_prompts_are_run_is_found_by_left_out_shapes() -> None:
    """A budget of 512 tokens and decodes stalled by prompts are told apart from the default without being named."""
    small = []
    for p in points():
        tpot = closed_loop_tpot(TRUTH, *p.shape, p.concurrency, rules=Rules("mixed", 2048.0), overhead_s=4e-3)
        small.append(ServerPoint(*p.shape, p.concurrency, tpot, p.ttft_s))
    prior = roofline(gpu("h100"), model("llama-3.1-8b"))
    assert fit_server(small, prior, resamples=2).rules == Rules("mixed", 2048.0)
    assert fit_server(points(scheduling="exclusive"), prior, resamples=2).rules.scheduling == "exclusive"


def test_decodes_that_cost_more_than_prompt_tokens_are_found() -> None:
    """A small model on slow compute: of its decodes' tokens each passes the head, of its prompts' hardly one does."""
    slow = IterationModel(t0=8e-3, w=2.4e-3, b=0.18e-3, c=0.04e-3, g=1.1e-6, h=0.1e-3, a=0.4e-9, rows=3.0)
    shapes = [(isl, osl) for isl in (32, 128, 512) for osl in (20, 57, 160)]
    rng = np.random.default_rng(0)

    def loads(truth: IterationModel) -> list[ServerPoint]:
        found = []
        for isl, osl in shapes:
            for level in (1, 4, 8, 16, 64):
                tpot = closed_loop_tpot(truth, isl, osl, level, overhead_s=4e-3) * np.exp(0.01 * rng.standard_normal())
                found.append(
                    ServerPoint(isl, osl, level, tpot, truth.time(0, 0, isl, isl**2 / 2) + 4e-3 if level == 1 else None)
                )
        return found

    fit = fit_server(loads(slow), resamples=2, scheduling="mixed", token_budget=8192.0)
    assert fit.iteration.rows == pytest.approx(3.0, rel=0.25)
    for n in (1, 5, 12, 64):
        assert fit.iteration.time(n, n * 200.0) == pytest.approx(slow.time(n, n * 200.0), rel=0.03)
    plain = fit_server(loads(replace(slow, rows=1.0, h=0.6e-3)), resamples=2, scheduling="mixed", token_budget=8192.0)
    assert plain.iteration.rows == 1.0


def test_a_front_end_that_answers_so_many_requests_and_no_more_is_told_from_the_gpu() -> None:
    """11 requests/s at most, however long: what the loads at this limit took is not the GPU's time."""
    found = []
    for p in points():
        life = p.concurrency / 11.0
        ttft = TRUTH.time(0, 0, p.input_tokens, p.input_tokens**2 / 2) + 4e-3
        tpot = max(p.tpot_s, (life - ttft) / (p.output_tokens - 1.0))
        found.append(replace(p, tpot_s=tpot, ttft_s=ttft))
    prior = roofline(gpu("h100"), model("llama-3.1-8b"))
    fit = fit_server(found, prior, scheduling="mixed", token_budget=8192.0, steady=True, resamples=2)
    assert fit.limits.requests_per_s == pytest.approx(11.0, rel=0.03)
    assert any("requests/s" in line for line in fit.warnings)
    for n in (1, 8, 32):
        assert fit.iteration.time(n, n * 1200.0) == pytest.approx(TRUTH.time(n, n * 1200.0), rel=0.05)
    assert server_limits(points()).requests_per_s is None


def test_exclusive_formula_by_hand() -> None:
    # of 128 iterations in a request's life 127 decode: it sees 7 x 127/128 others at 1,064 tokens, each of whom starts one
    # prompt of 1,000 in 128 iterations; nothing is lost to waiting
    decode = TRUTH.t0 + TRUTH.w + (1 + 7 * 127 / 128) * (TRUTH.c + TRUTH.h + TRUTH.g * 1064)
    prompt = TRUTH.t0 + 18e-6 * 1000 + 6e-6 * 1000 + 0.6e-9 * 500500
    point = ServerPoint(1000, 128, 8, decode, 1e-12)
    fit = fit_server([point], TRUTH, scheduling="exclusive", resamples=2)
    from planner.calibrate.closed_loop import Loads, log_parameters, loop_times

    theta = log_parameters(TRUTH, 0.0, 0.0)[None]
    assert loop_times(theta, Loads([point]), Rules("exclusive"))[0][0, 0] == pytest.approx(
        decode + 7 / 128 * prompt, rel=1e-3
    )
    assert fit.points == 1


def test_requests_that_wait_do_not_decode() -> None:
    """Sixteen slots, 64 in flight: Little's law gives the batch, and the fit the model behind it."""
    held = Rules("mixed", 8192.0, 16.0)
    found = []
    for isl, osl in SHAPES:
        for level in (4, 16, 64):
            tpot = closed_loop_tpot(TRUTH, isl, osl, level, rules=held, overhead_s=4e-3)
            alone = closed_loop_tpot(TRUTH, isl, osl, min(level, 16), rules=held, overhead_s=4e-3)
            waiting = max(0, level - 16) / 16 * osl * alone
            found.append(ServerPoint(isl, osl, level, tpot, TRUTH.time(0, 0, isl, isl * (isl + 1) / 2) + waiting))
    fit = fit_server(
        found, roofline(gpu("h100"), model("llama-3.1-8b")), scheduling="mixed", token_budget=8192, resamples=2
    )
    assert fit.iteration.time(16, 16 * 1024) == pytest.approx(TRUTH.time(16, 16 * 1024), rel=0.05)
    limits = server_limits([p for p in found if p.concurrency == 64] + [ServerPoint(256, 64, 32, 0.01, 0.63)])
    assert limits.slots == pytest.approx(16, abs=1)


def test_few_points_rescale_the_estimate_and_say_how_wide_they_are() -> None:
    prior = roofline(gpu("h100"), model("llama-3.1-8b"))
    slow = IterationModel.from_dict({k: v * (1.3 if k != "tau" else 1) for k, v in prior.to_dict().items()})
    two = [ServerPoint(1024, 128, c, closed_loop_tpot(slow, 1024, 128, c), None) for c in (4, 32)]
    fit = fit_server(two, prior)
    assert any("rescaled" in w for w in fit.warnings)
    for isl, osl, level in ((256, 64, 16), (2048, 256, 8), (1024, 128, 64)):
        truth = closed_loop_tpot(slow, isl, osl, level)
        got, low, high = fit.predict(ServerPoint(isl, osl, level, 1.0))
        assert low <= truth <= high and got == pytest.approx(truth, rel=0.15)
    many = fit_server(points(slow), prior, resamples=2)
    assert many.error_band < fit.error_band < 0.40


def test_one_throughput_number_rescales_too() -> None:
    prior = roofline(gpu("h100"), model("llama-3.1-8b"))
    full = 64 / closed_loop_tpot(prior, 512, 256, 64)  # tokens/s, prompts taken as free
    point = ServerPoint.from_throughput(512, 256, 64, full / 1.4, 8192)
    fit = fit_server([point], prior)
    assert fit.iteration.time(64, 64 * 640) == pytest.approx(1.4 * prior.time(64, 64 * 640), rel=0.12)


def test_too_little_is_refused() -> None:
    few = [p for p in points() if p.shape in SHAPES[:5]]
    with pytest.raises(CalibrationError, match=f"{ENOUGH_SHAPES} shapes"):
        fit_server(few)
    with pytest.raises(CalibrationError, match="no prior to rescale"):
        fit_server([], roofline(gpu("h100"), model("llama-3.1-8b")))


def test_what_is_not_known_is_said() -> None:
    busy = [
        ServerPoint(p.input_tokens, p.output_tokens, p.concurrency, p.tpot_s) for p in points() if p.concurrency == 8
    ]
    fit = fit_server(busy, resamples=2)
    told = " ".join(fit.warnings)
    assert "Only concurrency 8" in told and "TTFT at concurrency 1" in told and "no estimate held" in told
    assert fit.api_overhead_s is None and fit.api_overhead_idle_s is None and fit.ttft_error is None


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="tpot_s must be positive"):
        fit_server([ServerPoint(100, 10, 1, -1.0)])
    with pytest.raises(InputError, match="output_tokens must exceed 1"):
        fit_server([ServerPoint(100, 1, 1, 1.0)])
    with pytest.raises(InputError, match="input_tokens must lie in"):
        fit_server([ServerPoint(5e-324, 10, 1, 1.0)])
    with pytest.raises(InputError, match="ttft_s must lie in"):
        fit_server([ServerPoint(100, 10, 1, 1.0, 1e300)])
    # the contexts of all requests in flight together, each of which alone is possible
    with pytest.raises(InputError, match="tokens of all requests in flight"):
        fit_server([ServerPoint(9e14, 10, 2, 1.0)])
    with pytest.raises(InputError, match="scheduling"):
        fit_server(points(), scheduling="sometimes")


def test_the_floor_is_the_data_sheet() -> None:
    """Weights of the layers once over the bandwidth (6.98e9 x 2 B / 3.35 TB/s), 2 FLOP per weight and token over the peak."""
    floor = hardware_limit(gpu("h100"), model("llama-3.1-8b"))
    assert floor.w == pytest.approx(6979321856 * 2 / 3.35e12, rel=1e-3)
    assert floor.b <= 2 * 6979321856 / 989e12
    assert floor.time(1) < roofline(gpu("h100"), model("llama-3.1-8b")).time(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "every", [4, pytest.param(1, marks=pytest.mark.long("every measured server; a quarter of them in CI"))]
)
def test_measured_servers(shared_data: Path, every: int) -> None:
    """Left-out shapes of real servers; the bars are those of the project for servers nobody looked at."""
    found = []
    servers = read_measurements([shared_data / "calibration" / "servers.csv"]).servers.items()
    known = [(key, group) for key, group in servers if len({p.shape for p in group}) >= ENOUGH_SHAPES]
    assert len(known) == 12
    for key, group in known[::every]:
        spec = model(key[0], weight_dtype=key[4]) if key[4] else model(key[0])
        found.append(fit_server(group, roofline(gpu(key[1]), spec, int(float(key[5]))), resamples=2).tpot_error)
    assert np.median(found) <= 0.035
    assert max(found) <= 0.08


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "hold", "wide"),
    [
        ((1,), 0.8, 2.8),
        pytest.param((1, 2, 3, 4), 0.85, 2.5, marks=pytest.mark.long("four draws of the points left out; one in CI")),
    ],
    ids=["one draw", "four draws"],
)
def test_two_or_three_points_of_measured_servers(
    shared_data: Path, seeds: tuple[int, ...], hold: float, wide: float
) -> None:
    """Median error at most 8%, and intervals that hold the truth in 85 to 95% of the cases without being useless."""
    rngs = [np.random.default_rng(seed) for seed in seeds]
    errors, halves, inside = [], [], []
    for key, group in read_measurements([shared_data / "calibration" / "servers.csv"]).servers.items():
        if len(group) < 10:
            continue
        spec = model(key[0], weight_dtype=key[4]) if key[4] else model(key[0])
        prior = roofline(gpu(key[1]), spec, int(float(key[5])))
        for rng, count in itertools.product(rngs, (2, 3)):
            chosen = set(rng.choice(len(group), count, replace=False).tolist())
            fit = fit_server([group[i] for i in chosen], prior, resamples=2)
            for i, p in enumerate(group):
                if i not in chosen:
                    got, low, high = fit.predict(p, from_load=False)
                    errors.append(abs(got / p.tpot_s - 1.0))
                    halves.append((high - low) / 2.0 / got)
                    inside.append(low <= p.tpot_s <= high)
    assert np.median(errors) <= 0.08
    # twenty other draws: 86.0%, and 2.45 times; one draw alone 80 to 90%, and 2.1 to 2.7 times
    assert hold <= np.mean(inside) <= 0.95
    assert np.median(halves) <= wide * np.median(errors)


def test_the_time_a_request_takes_the_engine_counts_in_a_plan(tmp_path: Path) -> None:
    """Capacity with and without it differ by just that time per request, but for what slots and memory then hold longer."""
    base = profile("qwen3-32b-fp8-h100-80gb-tp8-trtllm")
    seconds_each = []
    for request_s in (0.0214, 0.0014):
        path = save_profile(replace(base, name="x", settings={}, request_s=request_s), tmp_path / "x.yaml")
        asked = {
            "ttft": 2.0,
            "profile": str(path),
            "pools": 1,
            "confidence": 0.5,
            "token_budget": 8192,
            "max_num_seqs": 256,
        }
        made = fo.plan(isl=1000, osl=100, rate=20, **asked)
        seconds_each.append(1.0 / made.pools[0].capacity_per_s)
    assert seconds_each[0] - seconds_each[1] == pytest.approx(0.02, rel=0.04)


@pytest.mark.parametrize("scheduling", ["mixed", "exclusive"])
def test_prompts_waited_for_are_not_met_again(scheduling: str) -> None:
    """64 in flight, prompts of 20 ms: who waited for 30 others meets about 30 fewer in its 200 decode iterations; who waited for
    none, or longer than all the others take together (a slot was missing), meets as many as in a loop that does not move so."""
    theta = log_parameters(IterationModel(t0=5e-3, c=15e-6), 1e-9, 1e-9)[None]
    prompt_s = 5e-3 + 1000 * 15e-6
    apart, together = (Rules(scheduling, 1064.0, bunched=bunched) for bunched in (False, True))

    def tpot(waited_s: float, rules: Rules) -> float:
        return float(loop_times(theta, Loads([ServerPoint(1000, 201, 64, 0.012, prompt_s + waited_s)]), rules)[0][0, 0])

    for waited_s in (0.0, 70 * prompt_s):
        assert tpot(waited_s, together) == pytest.approx(tpot(waited_s, apart), rel=0.01)
    beside = {"mixed": 1000 * 15e-6, "exclusive": prompt_s}[scheduling]
    fewer = 200 * (tpot(30 * prompt_s, apart) - tpot(30 * prompt_s, together)) / beside
    # of the 30 some are met in any loop while waiting: the share of its life that a request waits, of all 63
    expected = 30 - 63 * 31 * prompt_s / (31 * prompt_s + 200 * 0.012)
    assert fewer == pytest.approx(expected, rel=0.25)


def test_a_first_token_waits_once_for_the_host(tmp_path: Path) -> None:
    """A server alone: overhead, the host's work on the request, an iteration with its prompt; the plan's TTFT is their sum."""
    truth = {"overhead": 9e-3, "request": 6e-3}
    theta = log_parameters(TRUTH, truth["request"], truth["overhead"])[None]
    asked = [ServerPoint(i, o, level, 1.0) for i, o in SHAPES for level in (1, 8, 32)]
    tpot, ttft = loop_times(theta, Loads(asked, measured=False), Rules())
    measured = [replace(p, tpot_s=float(a), ttft_s=float(b)) for p, a, b in zip(asked, tpot[0], ttft[0], strict=True)]
    h100, llama = gpu("h100"), model("llama-3.1-8b")
    fit = fit_server(measured, roofline(h100, llama), scheduling="mixed", token_budget=8192, steady=True)
    made = served_by(profile_of_server(fit, h100.name, llama, 1, "vllm", source="made up"))
    assert made.api_overhead_s + made.request_s == pytest.approx(sum(truth.values()), rel=0.1)
    assert made.wake_s == pytest.approx(0.0, abs=1e-3)
    path = str(save_profile(made, tmp_path / "x.yaml"))
    plan = fo.plan(isl=1024, osl=64, rate=0.01, ttft=1.0, isl_spread=0, osl_spread=0, profile=path, pools=1)
    wanted = sum(truth.values()) + TRUTH.time(0, 0, 1024, 1024 * 1025 / 2)
    found = next(v for v in plan.pools[0].latency if (v.metric, v.quantile) == ("ttft_s", 0.99))
    assert found.value_s == pytest.approx(wanted, rel=0.05)
