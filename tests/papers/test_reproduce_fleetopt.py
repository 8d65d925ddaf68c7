"""FleetOpt: the printed tables are the goldens, digit for digit; exact figures against sums over the raw trace."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from planner.papers import fleetopt_sizing
from planner.papers.fleetopt_sizing import SETTINGS, Reading, fleet, homogeneous
from planner.papers.printed import DIFFERS, NEEDS_DATA, SAME, SAME_UNDER, VERDICTS, Finding, Reproduction, reproduce

CODED = Reading("published program", sampled=True)
EXACT = Reading("exact")
LITERAL = Reading("eq. 3", scaled=False)
ARRIVING = Reading("arriving", arriving=True)
PAIRS = Reading("pairs", pairs=True)


@pytest.fixture(scope="module")
def findings() -> tuple[Finding, ...]:
    return reproduce("fleetopt").findings


def test_every_finding_is_complete(findings: tuple[Finding, ...]) -> None:
    assert {f.paper for f in findings} == {"fleetopt"}
    assert {f.verdict for f in findings} <= set(VERDICTS)
    assert all(f.quantity and f.reading and f.printed and f.ours and f.reason for f in findings)
    assert len({(f.quantity, f.reading) for f in findings}) == len(findings)


def test_the_published_program_gives_every_printed_cell(findings: tuple[Finding, ...]) -> None:
    """Table 3: 2, 5, 5 and 6 cells of three workloads; table 6: 6 of five rates; table 5: two pools of three workloads."""
    for table, cells in (("table 3", 54), ("table 6", 30), ("table 5", 6)):
        rows = [f for f in findings if f.quantity.startswith(table) and f.reading == "published program"]
        rows = [f for f in rows if "percentage points" not in f.quantity]
        assert len(rows) == cells and {f.verdict for f in rows} == {SAME_UNDER}


def test_the_cost_cliff_of_table_1(findings: tuple[Finding, ...]) -> None:
    rows = [f for f in findings if f.quantity.startswith("table 1")]
    assert len(rows) == 16 and {f.verdict for f in rows} == {SAME, SAME_UNDER}
    # 80 layers of 8 heads of 128, keys and values of two bytes: 320 KiB a token
    assert [f.ours for f in rows if f.quantity.endswith(": slot")] == ["2.5 GB", *["20.0 GB"] * 3]


def test_what_needs_the_papers_prompts_says_so(findings: tuple[Finding, ...]) -> None:
    missing = [f for f in findings if f.verdict == NEEDS_DATA]
    assert len(missing) == 9 + 17 and {f.ours for f in missing} == {"-"}


def test_most_numbers_agree(findings: tuple[Finding, ...]) -> None:
    counts = Reproduction(("fleetopt",), findings).counts()
    assert sum(counts.values()) >= 190 and counts[SAME] + counts[SAME_UNDER] >= 140


# arXiv:2603.16514v1, table 3: homogeneous; short and long at gamma 1, 1.5, and at the optimum
@pytest.mark.parametrize(
    ("name", "alone", "pools"),
    [
        ("Azure", 284, {1.0: (43, 131), 1.5: (47, 45), 2.0: (48, 2)}),
        ("LMSYS", 139, {1.0: (7, 74), 1.5: (7, 65), 2.0: (7, 52)}),
        ("Agent-heavy", 2397, {1.0: (229, 2037), 1.5: (255, 1981)}),
    ],
)
def test_table_3(name: str, alone: int, pools: dict[float, tuple[int, int]]) -> None:
    s = SETTINGS[name]
    assert homogeneous(s.workload, 1000.0, CODED).replicas == alone
    for gamma, (short, long) in pools.items():
        found = fleet(s.workload, s.boundary, s.slots, s.p_c, gamma, 1000.0, CODED)
        assert found.short is not None and found.long is not None
        assert (found.short.replicas, found.long.replicas) == (short, long)


@pytest.mark.parametrize(("name", "replicas"), [("azure", 445), ("lmsys", 188), ("agent-heavy", 1778)])
def test_homogeneous_fleets_of_eq_3_as_printed(name: str, replicas: int) -> None:
    """A sum over whole totals, each 80/20, with a constant 8 ms + 16 x 0.65 ms."""
    assert homogeneous(name, 1000.0, LITERAL).replicas == replicas
    density = np.diff(np.append(0.0, fleetopt_sizing.table(name))) / np.diff(np.append(0, fleetopt_sizing.POINTS))
    mean, tokens = 0.0, 0
    for level, end in zip(density, fleetopt_sizing.POINTS, strict=True):
        while tokens < end:
            tokens += 1
            prompt = max(1, int(tokens * 0.8))
            mean += level * (math.ceil(prompt / 512) + max(1, tokens - prompt))
    # the utilization cap binds: 16 slots x 0.85
    assert math.ceil(1000.0 * mean * 0.0184 / (16 * 0.85)) == replicas


def test_pools_sized_for_what_arrives() -> None:
    found = fleet("azure", 4096, 256, 1.0, 2.0, 1000.0, ARRIVING)
    assert found.replicas == 93
    assert homogeneous("azure", 1000.0, ARRIVING).replicas == homogeneous("azure", 1000.0, EXACT).replicas == 292
    # without compression there is nothing to correct
    assert fleet("azure", 4096, 256, 1.0, 1.0, 1000.0, ARRIVING) == fleet("azure", 4096, 256, 1.0, 1.0, 1000.0, EXACT)


def test_more_is_compressed_when_more_can_be() -> None:
    longs = [fleet("azure", 4096, 256, p, 1.5, 1000.0, ARRIVING).long for p in (0.0, 0.5, 1.0)]
    counts = [p.replicas for p in longs if p is not None]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]


def test_fleets_of_the_real_pairs_against_the_raw_trace(shared_data: Path) -> None:
    pairs = []
    for name in ("conv", "code"):
        with (shared_data / "workloads" / "raw" / f"azure_{name}_2023.csv").open(newline="") as file:
            pairs += [(float(r["ContextTokens"]), float(r["GeneratedTokens"])) for r in csv.DictReader(file)]
    lengths = np.array(pairs)
    prompt, output = lengths.T
    total = prompt + output

    def gpus(inputs: np.ndarray, outputs: np.ndarray, slots: int, scaled: bool = True) -> float:
        step = 0.008 + 0.00065 * slots * ((inputs + outputs) / 8192 if scaled else 1.0)
        service = (np.ceil(inputs / 512) + outputs) * step
        return 1000.0 * service.sum() / total.size / (slots * 0.85)

    assert homogeneous("azure", 1000.0, PAIRS).replicas == math.ceil(gpus(prompt, output, 16)) == 114
    short, long = total <= 4096, total > 4096
    two = math.ceil(gpus(prompt[short], output[short], 256)) + math.ceil(gpus(prompt[long], output[long], 16))
    assert fleet("azure", 4096, 256, 1.0, 1.0, 1000.0, PAIRS).replicas == two == 32
    band = (total > 4096) & (total <= 8192) & (output < 4096)
    short_in = np.concatenate([prompt[short], 4096 - output[band]])
    short_out = np.concatenate([output[short], output[band]])
    rest = long & ~band
    compressed = math.ceil(gpus(short_in, short_out, 256)) + math.ceil(gpus(prompt[rest], output[rest], 16))
    assert fleet("azure", 4096, 256, 1.0, 2.0, 1000.0, PAIRS).replicas == compressed == 28
    constant = Reading("pairs, eq. 3", pairs=True, scaled=False)
    two = math.ceil(gpus(prompt[short], output[short], 256, False)) + math.ceil(
        gpus(prompt[long], output[long], 16, False)
    )
    assert fleet("azure", 4096, 256, 1.0, 1.0, 1000.0, constant).replicas == two == 130
    compressed = math.ceil(gpus(short_in, short_out, 256, False)) + math.ceil(
        gpus(prompt[rest], output[rest], 16, False)
    )
    assert fleet("azure", 4096, 256, 1.0, 2.0, 1000.0, constant).replicas == compressed == 127


def test_false_statements_are_called_false(findings: tuple[Finding, ...]) -> None:
    false = {(f.quantity, f.reading): f.ours for f in findings if f.verdict == DIFFERS}
    assert (
        false["section 7.4, Azure: P99 TTFT, short", "eq. 7-8 as printed, without waiting"] == "1,046 + 174 = 1,221 ms"
    )
    assert false["section 7.1, Azure: p90 of the total, tokens", "exact"] == "4,106"
    assert false["section 7.2, Agent-heavy: traffic above gamma B", "1 - F(1.5 B)"] == "14.8%"
    assert false["table 3, Azure: p_c", "the trace's band at gamma 1.5"] == "0.727"
    assert false["table 3, Azure, FleetOpt: GPUs", "arithmetic at 100% of peak, nodes of eight A100s"] == "92 at least"


def test_the_optimum_over_boundaries_is_not_the_printed_one(findings: tuple[Finding, ...]) -> None:
    found = [f.ours for f in findings if f.reading == "Algorithm 1 over B and gamma"]
    assert found == ["47"]


def test_simulated_utilizations_are_out_of_reach(findings: tuple[Finding, ...]) -> None:
    """Infinite servers filling from empty, by a sum over a sample of its own."""
    rows = {f.quantity: float(f.ours) for f in findings if f.reading.startswith("30,000")}
    assert rows["table 5, Agent-heavy: simulated utilization, short"] < 0.4
    rng = np.random.default_rng(7)
    density = np.diff(np.append(0.0, fleetopt_sizing.table("agent-heavy")[:12]))
    edges = np.append(0, fleetopt_sizing.POINTS[:12])
    k = rng.choice(12, 200_000, p=density / density.sum())
    totals = np.floor(rng.uniform(edges[k], edges[k + 1])) + 1
    prompt = np.floor(0.8 * totals)
    times = (np.ceil(prompt / 512) + totals - prompt) * (0.008 + 0.00065 * 128 * totals / 8192)
    rate = 740.42
    horizon = 30_000 / rate
    arrived = rng.uniform(0.0, horizon, times.size)
    busy = rate * np.mean(np.minimum(times, horizon - arrived))
    assert rows["table 5, Agent-heavy: simulated utilization, short"] == pytest.approx(busy / (229 * 128), abs=0.005)


def test_the_savings_formulas_contradict_the_tables(findings: tuple[Finding, ...]) -> None:
    rows = {f.quantity: f for f in findings if f.reading.startswith("alpha (1 - 1/rho)")}
    # 0.898 (1 - 1/16), 0.909 (1 - 16/682), 0.740 (1 - 1/8) with the printed alpha
    for name, expected in (("Azure", 0.898 * 15 / 16), ("LMSYS", 0.909 * 666 / 682), ("Agent-heavy", 0.740 * 7 / 8)):
        found = rows[f"table 3, {name}, pool routing: saving"]
        assert float(found.ours.rstrip("%")) == pytest.approx(100 * expected, abs=0.15)
        assert found.verdict == DIFFERS
    assert len(rows) == 3
