"""Traces replayed with the lengths they came with: at their own rate as they are, at others as more users or as more use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.errors import InputError
from planner.iteration.model import IterationModel
from planner.simulate.pool import simulate
from planner.simulate.presets import PoolEngines
from planner.simulate.replay import ReplayedTraffic
from planner.simulate.traffic import RequestBatch
from planner.workload.workload import Workload

PERIOD = 1000.0


def bursty(n: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, prompts and outputs of a trace whose prompts are long while its rate is high."""
    rng = np.random.default_rng(seed)
    minute = rng.integers(0, 20, n)
    minute = np.where(rng.random(n) < 0.5, 3, minute)  # half of all requests come in one stretch of 50 s
    times = (minute + rng.random(n)) * PERIOD / 20
    inputs = np.where(minute == 3, 900, 100) + rng.integers(0, 50, n)
    order = np.argsort(times)
    return times[order], inputs[order].astype(float), rng.integers(1, 80, n)[order].astype(float)


def all_of(traffic: ReplayedTraffic, seed: int = 1) -> RequestBatch:
    batches = []
    for batch in traffic.batches(np.random.default_rng(seed)):
        if batch.times_s.size and batch.times_s[-1] >= traffic.period_s:  # the second pass
            break
        batches.append(batch)
    columns = zip(*((b.times_s, b.input_tokens, b.output_tokens, b.cached_tokens) for b in batches), strict=True)
    return RequestBatch(*(np.concatenate(c) for c in columns))


def test_at_its_own_rate_a_trace_is_sent_as_it_is() -> None:
    times, inputs, outputs = bursty()
    sent = all_of(ReplayedTraffic(times, inputs, outputs, PERIOD, cached_share=0.5))
    assert np.array_equal(sent.times_s, times)
    assert np.array_equal(sent.input_tokens, inputs) and np.array_equal(sent.output_tokens, outputs)
    assert np.array_equal(sent.cached_tokens, inputs // 2)


def test_more_use_makes_the_same_path_higher() -> None:
    times, inputs, outputs = bursty()
    sent = all_of(ReplayedTraffic(times, inputs, outputs, PERIOD, 3.0, growth="use"))
    assert sent.times_s.size == 3 * times.size and np.all(np.diff(sent.times_s) >= 0.0)
    own, grown = (np.bincount((t // 10.0).astype(int), minlength=int(PERIOD // 10)) for t in (times, sent.times_s))
    # ten seconds lose and gain what comes within half a second of their ends
    assert np.abs(grown - 3 * own).max() <= 0.2 * 3 * own.max() + 12
    with pytest.raises(InputError, match="growth"):
        ReplayedTraffic(times, inputs, outputs, PERIOD, 2.0, growth="more")


@pytest.mark.parametrize("scale", [0.4, 3.0, 7.3, 40.0])
def test_more_users_are_copies_with_their_own_lengths(scale: float) -> None:
    times, inputs, outputs = bursty()
    sent = all_of(ReplayedTraffic(times, inputs, outputs, PERIOD, scale))
    assert np.all(np.diff(sent.times_s) >= 0.0) and sent.times_s[0] >= 0.0 and sent.times_s[-1] < PERIOD
    # a fraction of a copy is a random part of it: four standard errors of a binomial
    expected = scale * times.size
    assert abs(sent.times_s.size - expected) <= 4.0 * np.sqrt(0.25 * times.size) * (scale % 1.0 > 0.0)
    pairs = set(zip(inputs.tolist(), outputs.tolist(), strict=True))
    assert set(zip(sent.input_tokens.tolist(), sent.output_tokens.tolist(), strict=True)) <= pairs
    if scale == int(scale):
        assert sent.input_tokens.sum() == scale * inputs.sum()


def test_copies_go_on_in_another_arrangement() -> None:
    times, inputs, outputs = bursty()
    traffic = ReplayedTraffic(times, inputs, outputs, PERIOD, 3.0, requests=10)
    batches = traffic.batches(np.random.default_rng(1))
    first, second = next(batches), next(batches)
    assert first.times_s.size == second.times_s.size == 3 * times.size
    assert second.times_s[0] >= PERIOD > first.times_s[-1]
    assert not np.array_equal(first.times_s, second.times_s - PERIOD)
    assert traffic.requests == 10 and not traffic.whole


def test_the_index_of_dispersion_of_counts_and_tokens_is_kept_by_copies(shared_data: Path) -> None:
    """Independent streams add variances and means alike, so their index is that of one: here of counts and of prompt tokens in
    windows of 5 s of a measured trace. Twelve copies of an hour know their index to about a tenth."""
    workload = Workload.from_file(shared_data / "workloads" / "raw" / "azure_code_2023.csv")
    trace = workload.trace()
    assert trace is not None
    period = float(trace.times_s[-1]) * (1.0 + 1.0 / trace.requests)

    def indices(times: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        bins = (times // 5.0).astype(int)
        found = []
        for weight in (np.ones(times.size), tokens):
            per_window = np.bincount(bins, weight, int(period // 5.0) + 1)[: int(period // 5.0)]
            found.append(per_window.var() / per_window.mean())
        return np.array(found)

    own = indices(trace.times_s, trace.input_tokens)
    copies = [
        all_of(ReplayedTraffic(trace.times_s, trace.input_tokens, trace.output_tokens, period, 12.0), seed)
        for seed in range(4)
    ]
    ours = np.mean([indices(c.times_s, c.input_tokens) for c in copies], axis=0)
    assert ours == pytest.approx(own, rel=0.2)


def single_server(times: np.ndarray, service: np.ndarray) -> np.ndarray:
    """Waits of a queue served one after the other, by Lindley's recursion."""
    waits, wait = [], 0.0
    for gap, s in zip(np.diff(times, prepend=times[0]), np.concatenate([[0.0], service[:-1]]), strict=True):
        wait = max(0.0, wait + s - gap)
        waits.append(wait)
    return np.array(waits)


def test_a_replayed_pool_against_lindley() -> None:
    """One slot: a request takes one iteration per token, so waits follow from the stamps and lengths alone."""
    times, inputs, outputs = bursty(3000)
    step = 0.001
    engines = PoolEngines(1, IterationModel(t0=step), slots=1, token_budget=10_000)
    result = simulate(ReplayedTraffic(times, inputs, outputs, PERIOD), engines, seeds=1)
    expected = single_server(times, outputs * step) + step
    (sample,) = result.samples
    assert result.whole and sample.ttft_s == pytest.approx(expected, abs=1e-9)


def test_lengths_that_come_with_their_bursts_need_more() -> None:
    times, inputs, outputs = bursty(8_000)
    engines = PoolEngines(1, IterationModel(t0=2e-3, b=2.4e-5), slots=256, token_budget=2048)
    shuffled = np.random.default_rng(2).permutation(inputs)
    own, mixed = (
        simulate(ReplayedTraffic(times, x, outputs, PERIOD), engines, seeds=1).quantile("ttft_s", 0.99).value
        for x in (inputs, shuffled)
    )
    assert own > 1.2 * mixed


def test_days_are_replayed_whole_in_bounded_memory() -> None:
    """Eight hours with a busy one, at three times its rate: copies keep their hour, and only requests under way are held."""
    rng = np.random.default_rng(4)
    hours = np.repeat(np.arange(8), [500, 500, 500, 4000, 500, 500, 500, 500])
    times = np.sort((hours + rng.random(hours.size)) * 3600.0)
    traffic = ReplayedTraffic(times, np.full(times.size, 50.0), np.full(times.size, 20.0), 8 * 3600.0, 3.0, requests=10)
    assert traffic.whole and traffic.requests == 3 * times.size
    sent = all_of(traffic)
    share = np.bincount((sent.times_s // 3600.0).astype(int), minlength=8) / sent.times_s.size
    assert share[3:5].sum() == pytest.approx(4500 / 7500, abs=0.01)  # up to half an hour later
    result = simulate(traffic, PoolEngines(2, IterationModel(t0=0.01), slots=8, token_budget=512), seeds=1)
    assert result.completed == 3 * times.size and result.stable


@pytest.mark.parametrize(
    "change,words",
    [
        ({"times_s": [3.0, 1.0]}, "in order"),
        ({"times_s": [1.0, 11.0]}, "in order"),
        ({"scale": 0.0}, "must be positive"),
        ({"cached_share": 1.0}, "cached_share"),
    ],
)
def test_bad_traces_are_refused(change: dict, words: str) -> None:
    given = {"times_s": [1.0, 2.0], "input_tokens": [5, 5], "output_tokens": [5, 5], "period_s": 10.0, **change}
    with pytest.raises(InputError, match=words):
        ReplayedTraffic(**given)
