"""The workload file is the trace: written and read again, shared small, and files of before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.errors import InputError
from planner.workload.formats.base import ReadOptions
from planner.workload.importing import import_files, read_workload
from planner.workload.resolve import shipped_folder
from planner.workload.trace import Intervals
from planner.workload.workload import Workload
from planner.workload.writer import csv_text


def write(folder: Path, text: str, name: str = "w.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def day(folder: Path, seed: int = 1, hours: float = 30.0, requests: int = 12_000) -> Path:
    """A log of some hours with busy evenings, two kinds of requests, times in ISO format."""
    rng = np.random.default_rng(seed)
    seconds = np.arange(int(hours * 3600))
    level = 1.0 + 0.9 * np.sin(2.0 * np.pi * seconds / 86400.0) + 3.0 * ((seconds // 600) % 17 == 3)
    second = np.sort(rng.choice(seconds, requests, p=level / level.sum()))
    moments = np.datetime64("2026-03-02T00:00:00.000") + (1000 * second + rng.integers(0, 1000, requests)).astype(
        "m8[ms]"
    )
    rows = [
        f"{str(at).replace('T', ' ')},{i},{o},{'chat' if k % 3 else 'code'}"
        for k, (at, i, o) in enumerate(
            zip(moments, rng.integers(1, 4000, requests), rng.integers(1, 500, requests), strict=True)
        )
    ]
    return write(folder, "\n".join(["timestamp,input_tokens,output_tokens,category", *rows]) + "\n", "log.csv")


def same_requests(one: Workload, two: Workload) -> None:
    a, b = one.trace(), two.trace()
    assert a is not None and b is not None
    np.testing.assert_allclose(b.times_s, a.times_s, atol=5.1e-4)
    # requests of one millisecond may change places
    order = [np.lexsort((t.output_tokens, t.input_tokens, np.rint(1e3 * t.whole_times_s))) for t in (a, b)]
    for name in ("input_tokens", "output_tokens"):
        assert np.array_equal(getattr(a, name)[order[0]], getattr(b, name)[order[1]])
    kinds = [np.array(w.categories)[t.category] for w, t in ((one, a), (two, b))]
    assert np.array_equal(kinds[0][order[0]], kinds[1][order[1]])


def test_what_is_imported_and_read_again_are_the_same_requests(tmp_path: Path) -> None:
    first, _ = import_files([(None, day(tmp_path))], ReadOptions(), most=250_000)
    first = first.with_compressible({"chat": 1.0, "code": 0.0})
    text = csv_text(first)
    assert text.splitlines()[0] == "# fleetopt-workload: 2"
    again, report = read_workload(write(tmp_path, text, "mine.csv"))
    same_requests(first, again)
    assert report.format == "fleetopt" and again.provenance.exact and again.compressible == first.compressible
    # times in the file are relative, the profile by hour of day is stated
    assert again.arrivals.hourly_profile == first.arrivals.hourly_profile != ()
    assert again.arrivals.rate_per_s == pytest.approx(first.arrivals.rate_per_s, rel=1e-6)
    assert dict(again.arrivals.dispersion) == pytest.approx(dict(first.arrivals.dispersion), rel=1e-3)
    assert csv_text(again) == text


def test_shares_of_lengths_are_written_too(tmp_path: Path) -> None:
    first = Workload.from_file(day(tmp_path))
    from planner.workload.combine import scaled

    again = Workload.from_file(write(tmp_path, csv_text(scaled(first, 1.0, 1.3)), "longer.csv"))
    assert again.mean_output == pytest.approx(1.3 * first.mean_output, rel=1e-9)
    assert again.mean_input == pytest.approx(first.mean_input, rel=1e-12)


@pytest.mark.parametrize("rows", [300, 1500, 6000])
def test_a_few_stretches_stand_for_all(tmp_path: Path, rows: int) -> None:
    log = day(tmp_path)
    whole = Workload.from_file(log)
    small, _ = import_files([(None, log)], ReadOptions(), most=rows)
    again = Workload.from_file(write(tmp_path, csv_text(small), "small.csv"))
    same_requests(small, again)
    trace, all_of_it = again.trace(), whole.trace()
    assert trace is not None and trace.stretches is not None and all_of_it is not None
    parts = trace.stretches
    assert 0.5 * rows < trace.requests <= rows
    # the weights of the seconds sum to the whole duration, to the second it ends in
    assert float(parts.weight @ parts.seconds) == pytest.approx(all_of_it.times_s[-1], abs=1.01)
    # stretches are whole: every request of theirs is there
    inside = parts.holding(all_of_it.times_s) >= 0
    assert np.count_nonzero(inside) == trace.requests
    np.testing.assert_allclose(trace.whole_times_s, all_of_it.times_s[inside], atol=1e-3)
    assert float(trace.weight.sum()) == pytest.approx(all_of_it.requests, rel=0.15)
    # the busiest stretch of its length is in, for itself alone
    alone = int(np.argmin(parts.weight))
    assert parts.weight[alone] == 1.0
    length = float(parts.seconds[alone])
    busiest = max(
        np.searchsorted(all_of_it.times_s, at + length) - np.searchsorted(all_of_it.times_s, at)
        for at in np.arange(0.0, all_of_it.times_s[-1] - length, min(length, 60.0))
    )
    own = np.count_nonzero(
        (all_of_it.times_s >= parts.start_s[alone]) & (all_of_it.times_s < parts.start_s[alone] + length)
    )
    assert own >= busiest
    # the rates of the whole trace, its quantiles and how it arrived are kept beside them
    assert again.intervals is not None and again.intervals.requests == all_of_it.requests
    assert again.provenance.requests == all_of_it.requests
    assert again.quantile(0.99) == pytest.approx(whole.quantile(0.99), abs=1e-3)
    assert again.arrivals.rate_per_s == pytest.approx(whole.arrivals.rate_per_s, rel=1e-9)
    assert dict(again.arrivals.dispersion) == pytest.approx(dict(small.arrivals.dispersion), rel=1e-5)
    assert again.mean_input == pytest.approx(whole.mean_input, rel=0.05)


def test_the_same_stretches_every_time_and_none_where_it_fits() -> None:
    counts = np.random.default_rng(3).poisson(2.0, 40_000).astype(float)
    one, two = (Intervals(counts).stretches(9000) for _ in range(2))
    assert one is not None and two is not None and np.array_equal(one.start_s, two.start_s)
    assert Intervals(counts).stretches(100_000) is None
    with pytest.raises(InputError, match="too few to hold a second"):
        Intervals(1000.0 * counts).stretches(100)


def test_sessions_are_kept_under_hashes(tmp_path: Path) -> None:
    rows = ["timestamp,session_id,input_tokens,output_tokens,cached_prefix_tokens,duration_s"]
    rows += [f"{7 * k + 30 * c},user-{k},{100 + 50 * c},20,{100 * c},{2 + c}" for k in range(40) for c in range(3)]
    first, _ = import_files([(None, write(tmp_path, "\n".join(rows) + "\n"))], ReadOptions(), most=1000)
    text = csv_text(first)
    assert "user-" not in text and "user-7," in csv_text(first, keep_ids=True)
    again = Workload.from_file(write(tmp_path, text, "hashed.csv")).sessions
    before = first.sessions
    assert again is not None and before is not None and again.count == 40
    for name, column in before.columns().items():
        np.testing.assert_allclose(again.columns()[name], column, atol=5.1e-4, err_msg=name)
    np.testing.assert_allclose(again.start_s, before.start_s, atol=5.1e-4)  # type: ignore[arg-type]
    part, _ = import_files([(None, write(tmp_path, "\n".join(rows) + "\n"))], ReadOptions(), most=60)
    kept = part.sessions
    assert kept is not None and part.recorded is not None and kept.calls == part.recorded.requests <= 60


@pytest.mark.parametrize("key", ["path", "sessions"])
def test_encoded_lines_are_refused_not_passed_over(key: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"# {key}: QUJD\ntokens,cdf,input_tokens,output_tokens\n10,1,5,5\n")
    with pytest.raises(InputError, match=rf"w\.csv:1: {key}: is encoded"):
        read_workload(path)


def test_the_shipped_hour_is_what_the_importer_makes_of_the_raw_one(shared_data: Path) -> None:
    raw = shared_data / "workloads" / "raw"
    files = [("conv", raw / "azure_conv_2023.csv"), ("code", raw / "azure_code_2023.csv")]
    made, _ = import_files(files, ReadOptions())
    shipped = Workload.from_file("azure")
    trace = shipped.trace()
    assert trace is not None and trace.requests == 28_185
    same_requests(made, shipped)
    rows = [line for line in (shipped_folder() / "azure.csv").read_text().splitlines() if line[0] != "#"]
    assert len(rows) == 28_186


PLAIN = "t_s,input_tokens,output_tokens\n"
META = "# fleetopt-workload: 2\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (PLAIN + "0,10,5\n1,-3,5\n", r"w\.csv:3: input tokens '-3' is not a count"),
        (PLAIN + "0,10,5\n1,nan,5\n", r"w\.csv:3: input tokens 'nan' is not a count"),
        (PLAIN + "0,10,5\nsoon,10,5\n", r"w\.csv:3: time 'soon' is not a time"),
        (PLAIN + "0,10,5\n1,10\n2,10,5,7\n", r"w\.csv: 2 problems"),
        (PLAIN + "0,10,5\n1,1e99,5\n", r"w\.csv:3: input tokens '1e99' is not a count"),
        (PLAIN, "no rows after the header"),
        (META + "# compressible: chat=1\n" + "t_s,input_tokens,output_tokens,category\n0,1,1,conv\n", "no row has category 'chat'"),
        (META + "# stretch: 0 10\n" + PLAIN + "0,10,5\n1,10,5\n", r"w\.csv:2: stretch: each line holds"),
        (META + "# stretch: 5 10 2\n# stretch: 0 9 1\n" + PLAIN + "0,10,5\n", r"w\.csv:2: stretch: they must not overlap"),
        (META + "# stretch: 5 10 2\n" + PLAIN + "1,10,5\n7,10,5\n", "outside of the stretches"),
        (META + "# counts: 1 2 x\n# counts_interval_s: 60\n" + PLAIN + "0,10,5\n1,1,1\n", r"w\.csv:2: counts: not numbers"),
        (META + "# counts: 1 2 3\n" + PLAIN + "0,10,5\n1,1,1\n", r"w\.csv:2: counts: not numbers"),
        (META + "# arrival_rate_per_s: -1\n" + PLAIN + "0,10,5\n1,1,1\n", r"w\.csv:2: arrival_rate_per_s"),
        (META + "input_tokens,output_tokens,weight\n10,5,0.5\n10,5,x\n", r"w\.csv:4: weight 'x' is not a number >= 0"),
        (META + "input_tokens,output_tokens,weight\n10,5,0.5\n10,5\n", r"w\.csv:4: 2 columns instead of 3"),
        (META + "input_tokens,output_tokens,weight\n10,5,0\n", "the weights sum to zero"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_workload(write(tmp_path, text))


def test_files_written_by_hand(tmp_path: Path) -> None:
    """Dates, quotes, other columns, requests in any order: what is no plain table is read as any CSV is."""
    lines = '# name: mine\n# license: CC0\nt_s,input_tokens,output_tokens,category,model\n4,20,5,"a, b",x\n1,10,3,c,y\n'
    w = Workload.from_file(write(tmp_path, META + lines))
    assert (w.name, w.provenance.licence, w.categories) == ("mine", "CC0", ("a, b", "c"))
    trace = w.trace()
    assert trace is not None and trace.input_tokens.tolist() == [10.0, 20.0]
    assert "a  b" in csv_text(w)
    dated = write(tmp_path, PLAIN + "2026-01-01 00:00:00.5,10,5\n2026-01-01 00:00:02.5,11,5\n")
    assert Workload.from_file(dated).trace().times_s.tolist() == [0.0, 2.0]  # type: ignore[union-attr]
    windows = write(tmp_path, "\ufeff" + META + PLAIN.replace("\n", "\r\n") + "0,10,5\r\n2,11,5\r\n")
    assert Workload.from_file(windows).trace().times_s.tolist() == [0.0, 2.0]  # type: ignore[union-attr]
    where, report = import_files([(None, write(tmp_path, META + lines))], ReadOptions(where={"model": "x"}))
    assert where.rows == 1 and report[0].dropped == {"not model=x": 1}


def test_requests_without_times_and_laws_with_weights(tmp_path: Path) -> None:
    lengths = Workload.from_arrays([10, 20, 20], [5, 6, 6])
    again = Workload.from_file(write(tmp_path, csv_text(lengths)))
    assert again.provenance.exact and again.provenance.requests == 3 and again.trace() is None
    law = Workload.from_arrays([10, 20], [5, 6], weight=[1, 3], category=["a", "b"], arrival_rate_per_s=2.0)
    text = csv_text(law)
    assert "input_tokens,output_tokens,category,weight\n" in text
    again = Workload.from_file(write(tmp_path, text))
    assert again.weight.tolist() == [0.25, 0.75] and again.arrivals.rate_per_s == 2.0 and again.categories == ("a", "b")


def test_millions_of_requests_summed_up_are_drawn_in_stretches() -> None:
    """A day of 20 million requests: what a query gives."""
    rng = np.random.default_rng(2)
    counts = Intervals(rng.poisson(230.0, 86_400).astype(float))
    w = Workload.from_arrays([100, 900], [10, 90], intervals=counts)
    trace = w.trace()
    assert trace is not None and trace.stretches is not None and 200_000 < trace.requests <= 250_000
    assert trace.rate_per_s == pytest.approx(230.0, rel=0.01)
    assert trace.input_tokens.mean() == pytest.approx(500.0, rel=1e-4)
    # within an interval requests come as independent ones do
    gaps = np.diff(trace.times_s)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.02)
