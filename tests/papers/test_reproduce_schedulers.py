"""RAD and SLAI, exclusive batching, WAIT: printed numbers and counterexamples, worked out by hand or stated in the papers."""

from __future__ import annotations

import math

import pytest

from planner.papers import exclusive_batching, rad_slai, wait
from planner.papers.printed import DIFFERS, NEEDS_A_GPU, SAME, SAME_UNDER, VERDICTS, Finding, Reproduction, reproduce


@pytest.fixture(scope="module")
def by_quantity() -> dict[tuple[str, str], Finding]:
    """Everything but figure 7, whose simulations take a minute."""
    modules = {"rad-slai": rad_slai, "exclusive-batching": exclusive_batching, "wait": wait}
    rows = [
        Finding(paper, *row)
        for paper, module in modules.items()
        for section in module.SECTIONS
        if section.__name__ != "_figure7"
        for row in section()
    ]
    return {(f.quantity, f.reading): f for f in rows}


def _one(rows: dict[tuple[str, str], Finding], start: str) -> Finding:
    found = [f for (quantity, _), f in rows.items() if quantity.startswith(start)]
    assert len(found) == 1, [f.quantity for f in found]
    return found[0]


def test_findings_are_complete(by_quantity: dict[tuple[str, str], Finding]) -> None:
    rows = by_quantity.values()
    assert {f.paper for f in rows} == {"rad-slai", "exclusive-batching", "wait"}
    assert {f.verdict for f in rows} <= set(VERDICTS)
    assert all(f.quantity and f.reading and f.printed and f.ours and f.reason for f in rows)


@pytest.mark.parametrize(("prompt", "saved"), [("256", "-12.5%"), ("1,024", "-5.0%"), ("2,048", "-2.8%")])
def test_smaller_chunks_beat_the_lower_bound(
    by_quantity: dict[tuple[str, str], Finding], prompt: str, saved: str
) -> None:
    found = _one(by_quantity, f"theorem 1, tile 256 x 128 x 32, prompt {prompt}:")
    # the ratio of eq. 6 summed over both chunkings, by hand
    length = int(prompt.replace(",", ""))

    def work(chunk: int) -> float:
        ends = range(chunk, length + 1, chunk)
        return sum(-(-e // 256) * (chunk // 128) / 32 + (chunk // 128) * -(-e // 32) / 256 for e in ends)

    assert f"{100 * (work(128) / work(256) - 1):.1f}%" == found.ours == saved
    assert found.verdict == DIFFERS


def test_rad_statements(by_quantity: dict[tuple[str, str], Finding]) -> None:
    assert _one(by_quantity, "theorem 1, tile 128 x 128 x 64").ours == "0.0%"
    assert _one(by_quantity, "eq. 5: time of a decode").ours == "108 times"
    assert (
        by_quantity["section 7: reduction of the median TTFT, 1.5 s to 0.7 s", "from the printed values"].ours == "53%"
    )
    assert _one(by_quantity, "section 7: gain").ours == "26%"
    # table 1 of the paper, from the authors' own published lengths
    for start, ours in (
        ("prompt length, median", "1,730"),
        ("prompt length, p90", "5,696"),
        ("decode length, median", "415"),
    ):
        assert _one(by_quantity, f"table 1: {start}").ours == ours


def test_thresholds_of_table_10(by_quantity: dict[tuple[str, str], Finding]) -> None:
    g = 0.4625 / 0.5375 + math.log(0.5375)
    for mean in (128, 192, 256, 320, 384):
        found = by_quantity[f"table 10, mean output {mean}: mean threshold", "eq. 3"]
        low, high = 0.0, 0.999
        while high - low > 1e-12:
            middle = 0.5 * (low + high)
            below = middle / (1 - middle) + math.log(1 - middle) < g * 64 / mean
            low, high = (middle, high) if below else (low, middle)
        assert found.ours == f"{low:.2f}"
        # the printed spread over N is 0.07 to 0.21
        assert abs(float(found.ours) - float(found.printed)) <= 0.07
        assert found.verdict == SAME_UNDER


def test_exclusive_batching_statements(by_quantity: dict[tuple[str, str], Finding]) -> None:
    assert _one(by_quantity, "section 4.1, uniform outputs").ours == "-1.71e-03"
    assert _one(by_quantity, "appendix B.3").verdict == SAME
    assert float(_one(by_quantity, "theorem 3.2 at").ours) > 1.0
    peak = _one(by_quantity, "proposition 3.3")
    assert float(peak.ours.split()[2]) > 1.0 and peak.verdict == DIFFERS
    # [(1 - p) + (1 - p)(1 + y)^2]/2 with fixed prompts, p = 1/256
    for y in (0.01, 1.0, 8.0):
        p = 1 / 256
        expected = ((1 - p) + (1 - p) * (1 + y) ** 2) / 2
        assert _one(by_quantity, f"appendix D: v_n / (2n/p0) at p0 mu_L = {y:g}").ours == f"{expected:.2f}"
    for name in ("RTX PRO 6000, Qwen3-8B", "H200, Qwen3-30B-A3B"):
        assert _one(by_quantity, f"table 2, {name}: average gain").verdict == SAME


def test_hardware_table_mixes_sparse_and_dense_rates(by_quantity: dict[tuple[str, str], Finding]) -> None:
    # NVIDIA data sheets: H200 989 TFLOPS dense and 4.8 TB/s, L40S 362 and 0.864
    dense = by_quantity["table 1, h200-141gb: FLOP/byte", "dense rate of the data sheet"]
    assert (dense.ours, dense.verdict) == (f"{989 / 4.8:.0f}", DIFFERS)
    assert _one(by_quantity, "table 1, h200-141gb: FP16 TFLOPS").verdict == SAME_UNDER
    lone = _one(by_quantity, "table 1, l40s-48gb: FLOP/byte")
    assert (lone.ours, lone.verdict) == (f"{362 / 0.864:.0f}", SAME)


def test_quotients_are_those_of_the_printed_measurements(by_quantity: dict[tuple[str, str], Finding]) -> None:
    assert _one(by_quantity, "section 4.5.1, L40S").ours == f"{100 * (14.70 / 10.36 - 1):.1f}%"
    assert _one(by_quantity, "table 12, WildChat, Mann-Kendall").verdict == DIFFERS  # 1.9e-5 is not below 1e-5
    widest = _one(by_quantity, "appendix F.4: TTFT of disaggregation over EB+ on RTX PRO 6000, most")
    assert widest.ours == f"{10283 / 381:.0f} times" and widest.verdict == DIFFERS


def test_simulations_stand_inside_their_intervals(by_quantity: dict[tuple[str, str], Finding]) -> None:
    for start in (
        "theorem 1: RAD at 1.05",
        "theorem 2: RAD at 0.95",
        "proposition 1: growth of the latency",
        "algorithm 1: evictions",
    ):
        found = [f for (quantity, _), f in by_quantity.items() if quantity.startswith(start)]
        assert found and {f.verdict for f in found} == {SAME}
    assert _one(by_quantity, "algorithm 1: largest memory").ours == "12"


def test_measurements_are_not_called_reproduced(by_quantity: dict[tuple[str, str], Finding]) -> None:
    for start in ("figure 1,", "appendix A.3"):
        assert {f.verdict for (q, _), f in by_quantity.items() if q.startswith(start)} == {NEEDS_A_GPU}


def test_thresholds_of_nested_wait_are_tails_of_the_rates(by_quantity: dict[tuple[str, str], Finding]) -> None:
    found = [f for (q, _), f in by_quantity.items() if q.startswith("section 6.2, ten types: threshold of segment")]
    assert [f.ours for f in found] == [
        "66",
        "43",
        "32",
        "24",
        "17",
        "11",
        "7",
        "4",
        "2",
        "1",
    ]  # sums of 23:11:8:7:6:4:3:2:1:1


def test_a_number_counts_once_by_its_best_reading() -> None:
    rows = [Finding("wait", "a", r, "1", "1", v, "w") for r, v in (("x", DIFFERS), ("y", SAME_UNDER))]
    rows.append(Finding("wait", "b", "x", "1", "2", DIFFERS, "w"))
    assert Reproduction(("wait",), tuple(rows)).counts() == {SAME_UNDER: 1, DIFFERS: 1}


@pytest.mark.long("every number of the papers")
def test_two_hundred_and_fifty_numbers() -> None:
    """At least 250 printed numbers, 150 of them the same, with or without an assumption; shown part by part."""
    shown: list[tuple[int, int]] = []
    result = reproduce("all", lambda done, total: shown.append((done, total)))
    counts = result.counts()
    assert sum(counts.values()) >= 250 and counts[SAME] + counts[SAME_UNDER] >= 150
    assert [done for done, _ in shown] == list(range(1, shown[-1][1] + 1))
    trends = [f for f in result.findings if f.quantity.startswith("figure 7")]
    assert len(trends) == 4 and {f.verdict for f in trends} == {SAME}


def test_wait_statements(by_quantity: dict[tuple[str, str], Finding]) -> None:
    assert _one(by_quantity, "example 2: memory").ours == "12"
    assert _one(by_quantity, "example 2: completions").ours == "4.00"
    assert (
        by_quantity["example 2: loss under first-come-first-served", "admission of all that fits before decoding"].ours
        == "25%"
    )
    assert _one(by_quantity, "example 3").ours == "33%"
    assert _one(by_quantity, "proposition 3: memory").ours == "9"
    assert _one(by_quantity, "eq. 13 with one segment").printed == "6"
    root = float(_one(by_quantity, "theorem 2: theta_k").ours)
    # eq. 20 at the root, and the printed bound above it
    assert abs(-root * 26 + 40 * math.log1p(0.5 * math.expm1(root))) < 2e-3
    assert root < 1.846
    overflow = float(_one(by_quantity, "proposition 3: probability").ours)
    e = math.exp(-2)
    first = 1 - 5 * e
    second = 2 * e * first + 2 * e * (1 - 7 * e) + e * (1 - sum(2**i / math.factorial(i) for i in range(7)) * e)
    assert overflow == pytest.approx(first + second, abs=5e-5)
    for name in ("four types", "ten types"):
        assert _one(by_quantity, f"section 6.2, {name}: thresholds").ours == "0 at most, theta 0"
