"""What a workload keeps of the order in which its requests came."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.errors import InputError
from planner.workload.arrivals import arrivals_from_times, interarrival_scv, spread_ticks
from planner.workload.compact import compact
from planner.workload.importing import read_workload
from planner.workload.path import Path as TrafficPath
from planner.workload.trace import Trace
from planner.workload.workload import Workload
from planner.workload.writer import csv_text


def _bursty(seconds: int = 900, seed: int = 3) -> Workload:
    """Quiet and busy minutes, with long prompts and short answers in the busy ones."""
    rng = np.random.default_rng(seed)
    busy = np.repeat(rng.random(seconds // 30) < 0.3, 30)
    counts = rng.poisson(np.where(busy, 12.0, 3.0))
    second = np.repeat(np.arange(seconds), counts)
    long = busy[second]
    inputs = np.ceil(rng.lognormal(np.where(long, 7.5, 6.0), 0.6))
    outputs = np.ceil(rng.lognormal(np.where(long, 3.0, 5.0), 0.5))
    times = np.sort(second + rng.random(second.size))
    trace = Trace(times - times[0], inputs, outputs, np.zeros(second.size, dtype=np.int64))
    return Workload.from_arrays(inputs, outputs, arrivals=arrivals_from_times(times), recorded=trace)


def _per_second(trace: Trace, tokens: np.ndarray, seconds: int) -> np.ndarray:
    return np.bincount(trace.times_s.astype(int), tokens, seconds)[:seconds]


def test_a_file_keeps_the_tokens_of_every_second(tmp_path: Path) -> None:
    w = _bursty()
    small = compact(w, 60)
    path = tmp_path / "small.csv"
    path.write_text(csv_text(small))
    again, _ = read_workload(path)
    assert again.path is not None and small.path is not None
    assert again.mean_output == pytest.approx(small.mean_output, rel=1e-5)
    before, after = TrafficPath.of(w.recorded), again.path  # type: ignore[arg-type]
    assert np.array_equal(before.counts, after.counts)
    recorded = w.trace()
    assert recorded is not None
    exact = _per_second(recorded, recorded.input_tokens, after.seconds)
    # a step of 2% rounds by 1%
    assert np.all(np.abs(after.input_tokens - exact) <= 0.0101 * exact + 1e-9)


def test_requests_dealt_to_a_path_have_its_bursts_and_the_law(tmp_path: Path) -> None:
    w = compact(_bursty(), 60)
    assert w.path is not None
    dealt = w.trace()
    assert dealt is not None and dealt.requests == w.path.requests and w.trace() is dealt
    assert dealt.input_tokens.mean() == pytest.approx(w.mean_input, rel=0.01)
    assert np.corrcoef(dealt.input_tokens, dealt.output_tokens)[0, 1] == pytest.approx(w.correlation, abs=0.03)
    ten = dealt.times_s.max() // 10
    for dealt_tokens, wanted in (
        (dealt.input_tokens, w.path.input_tokens),
        (dealt.output_tokens, w.path.output_tokens),
    ):
        a = np.bincount((dealt.times_s // 10).astype(int), dealt_tokens)[: int(ten)]
        b = np.bincount((np.arange(w.path.seconds) // 10).astype(int), wanted)[: int(ten)]
        assert np.corrcoef(a, b)[0, 1] > 0.95


@pytest.mark.parametrize("hours", [20, 60])
def test_a_day_is_kept_whole_and_of_more_the_hours_that_stand_for_it(hours: int) -> None:
    rng = np.random.default_rng(0)
    times = np.sort(rng.random(20_000) ** 0.7 * hours * 3600.0)
    tokens = np.ones(times.size)
    path = TrafficPath.of(Trace(times - times[0], 100.0 * tokens, 10.0 * tokens, np.zeros(times.size, dtype=np.int64)))
    assert path.seconds == (int(times[-1] - times[0]) + 1 if hours == 20 else 24 * 3600)
    assert path.requests / path.seconds == pytest.approx(times.size / times[-1], rel=0.03)
    assert sum(len(line) for line in path.to_lines()) < 24 * 14_000


def test_requests_added_up_a_part_at_a_time_make_the_same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    # in no order: parts overlap
    columns = rng.uniform(0.0, 900.0, 5000), rng.integers(1, 4000, 5000), rng.integers(1, 800, 5000)
    whole = TrafficPath.of_columns(*columns)
    monkeypatch.setattr("planner.workload.path._MANY_AT_ONCE", 700)
    parts = TrafficPath.of_columns(*columns)
    assert whole.requests == 5000
    for name in ("counts", "input_tokens", "output_tokens"):
        assert getattr(parts, name).tolist() == getattr(whole, name).tolist()


def test_of_a_very_busy_trace_fewer_hours_are_kept() -> None:
    seconds = np.arange(20.0 * 3600.0)
    path = TrafficPath.of_columns(
        seconds, 1e5 * (1.0 + seconds), 1e4 * np.ones(seconds.size), np.full(seconds.size, 100.0)
    )
    assert path.seconds == 5 * 3600 and path.requests == 100 * path.seconds
    # evenly by their tokens: the middles of fifths of hours that have ever more
    assert path.input_tokens[::3600] == pytest.approx(1e5 * (1.0 + 3600.0 * np.array([2, 6, 10, 14, 18])), rel=0.02)


@pytest.mark.parametrize(
    "lines", ["# path_seconds: 10\n# path: QUJD\n", "# path: !!!\n# path_seconds: 3\n", "# path: eJwDAAAAAAE=\n"]
)
def test_a_damaged_path_is_refused_with_its_line(lines: str, tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text(lines + "tokens,cdf,input_tokens,output_tokens\n10,1,5,5\n")
    with pytest.raises(InputError, match=r"w\.csv:[12]: path: "):
        read_workload(path)


def test_a_clock_that_ticks_every_three_seconds_makes_no_crowds(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    times = np.cumsum(rng.exponential(0.5, 4000))
    coarse = 3.0 * np.floor(times / 3.0)
    spread, tick = spread_ticks(coarse)
    assert tick == 3.0
    assert arrivals_from_times(spread).dispersion_at(1.0) == pytest.approx(1.0, abs=0.1)
    assert arrivals_from_times(coarse).dispersion_at(1.0) > 3.0
    assert spread_ticks(times)[1] is None
    path = tmp_path / "ticks.csv"
    path.write_text("timestamp,input_tokens,output_tokens\n" + "\n".join(f"{t:.0f},100,10" for t in coarse))
    w, report = read_workload(path)
    assert any("ticks every 3 s" in note for note in report.notes)
    assert w.arrivals.scv == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("shape", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("gaps", [4.0, 40.0])
def test_interarrival_scv_has_no_bias_with_few_gaps_per_window(shape: float, gaps: float) -> None:
    """Gamma gaps have the scv 1/shape, however few fit into a window."""
    rng = np.random.default_rng(11)
    times = np.cumsum(rng.gamma(shape, 1.0 / shape, 60_000))
    # a full window of few gaps leaves its longest ones out: what that takes is the rest of the tolerance
    assert interarrival_scv(times, gaps) == pytest.approx(1.0 / shape, rel=0.35 if gaps < 10 else 0.06)


def test_requests_are_dealt_alike_whatever_the_order_and_the_unit() -> None:
    """How a file lists its rows, and a factor on all outputs, change nothing of who comes when."""
    workload = Workload.from_file("azure")
    path = workload.path
    assert path is not None
    columns = [workload.input_tokens, workload.output_tokens, workload.weight, workload.category]
    dealt = path.requests_like(*columns)
    mixed = np.random.default_rng(4).permutation(workload.rows)
    shuffled = path.requests_like(*(x[mixed] for x in columns))
    longer = path.requests_like(columns[0], 2.0 * columns[1], *columns[2:])
    for other, factor in ((shuffled, 1.0), (longer, 2.0)):
        assert np.array_equal(other.times_s, dealt.times_s)
        assert np.array_equal(other.input_tokens, dealt.input_tokens)
        assert np.array_equal(other.output_tokens, factor * dealt.output_tokens)


def test_another_deal_gives_the_same_seconds_other_requests() -> None:
    """A check replays what a compact file knows, not the requests a prediction made of it."""
    workload = Workload.from_file("azure")
    own, other = workload.trace(), workload.trace(deal=1)
    assert own is not None and other is not None and own.requests == other.requests
    assert not np.array_equal(own.times_s, other.times_s)
    assert np.sort(own.input_tokens) == pytest.approx(np.sort(other.input_tokens))
    seconds = int(own.times_s[-1]) // 10 * 10
    sums = [np.bincount(t.times_s.astype(int) // 10, t.input_tokens)[: seconds // 10] for t in (own, other)]
    # each deal meets the tokens of a second nearly; ten of them, with a request at the edge on either side
    assert np.corrcoef(sums[0], sums[1])[0, 1] > 0.98


def test_requests_that_come_together_come_together_again(tmp_path: Path) -> None:
    """Clients that send several at one moment: the share of pairs within 10 ms is measured, kept in the file and dealt again."""
    rng = np.random.default_rng(6)
    second = np.repeat(np.arange(2000), rng.poisson(5.0, 2000))
    # ten moments a second: of the pairs of a second a tenth share one
    moments = rng.random((2000, 10)) * 0.99
    times = np.sort(second + moments[second, rng.integers(0, 10, second.size)] + 1e-3 * rng.random(second.size))
    tokens = np.ones(times.size)
    alone = np.sort(second + rng.random(second.size))
    coarse = np.sort(second + rng.integers(0, 10, second.size) / 10.0)
    category = np.zeros(times.size, dtype=np.int64)
    for at, share in ((times, 0.1), (alone, 0.0), (coarse, 0.0)):
        # the standard error of a tenth of the 25,000 pairs is 2e-3
        assert TrafficPath.of(Trace(at, tokens, tokens, category)).together == pytest.approx((share, share), abs=0.015)
    path = TrafficPath.of(Trace(times, tokens, tokens, category))
    again = path.requests_like(*np.ones((3, 1)), np.zeros(1, dtype=np.int64))
    assert TrafficPath.of(again).together == pytest.approx((0.1, 0.1), abs=0.02)
    # in a tenth of a second ten moments drawn anywhere have 1.9 times the pairs of chance: a tenth at one moment, 0.9 of the others
    # as chance has it; moments apart hold fewer of the others
    tenth = np.unique(np.floor(10.0 * again.times_s), return_counts=True)[1]
    of_second = np.unique(np.floor(again.times_s), return_counts=True)[1]
    pairs = [float(np.sum(n * (n - 1))) for n in (tenth, of_second)]
    assert 10.0 * pairs[0] / pairs[1] < 1.6
    workload = Workload.from_arrays(tokens, tokens, recorded=Trace(times, tokens, tokens, category))
    (tmp_path / "w.csv").write_text(csv_text(workload))
    kept = read_workload(tmp_path / "w.csv")[0].path
    assert kept is not None and kept.together == pytest.approx(path.together, rel=1e-3)


def test_those_who_come_together_in_busy_seconds_do_so_again(tmp_path: Path) -> None:
    """Quiet seconds of single requests, busy ones of crowds: one share for both would put crowds where there are none."""
    rng = np.random.default_rng(3)
    counts = np.where(np.arange(6000) % 20 == 0, 40, 6)
    second = np.repeat(np.arange(6000), counts)
    crowd = rng.random((6000, 10)) * 0.99
    own = np.where(counts[second] > 6, crowd[second, rng.integers(0, 10, second.size)], 0.99 * rng.random(second.size))
    times = np.sort(second + own + 1e-3 * rng.random(second.size))
    tokens = np.ones(times.size)
    path = TrafficPath.of(Trace(times - times[0], tokens, tokens, np.zeros(times.size, dtype=np.int64)))
    # 85,000 pairs in quiet seconds, 234,000 in busy ones: the former are the first of the first half
    assert path.together[1] == pytest.approx(0.1, abs=0.01)
    again = path.requests_like(*np.ones((3, 1)), np.zeros(1, dtype=np.int64))
    assert TrafficPath.of(again).together == pytest.approx(path.together, abs=0.02)
    old = TrafficPath.from_text("".join(path.to_lines()), path.seconds, (0.05,))
    assert old.together == (0.05, 0.05)
    with pytest.raises(ValueError, match="3 shares"):
        TrafficPath.from_text("".join(path.to_lines()), path.seconds, (0.05, 0.1, 0.2))
