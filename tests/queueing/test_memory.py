"""The slot law against counting, its tail against exact convolution, the promises against paged simulations."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.queueing.memory import (
    SlotLaw,
    overflow_probability,
    preemption,
    running_sequences,
    safe_slots,
    slot_law,
)

# --- the law of one slot ------------------------------------------------------------------------------------------


def counted(
    inputs: list[int], outputs: list[int], weights: list[float], budget: int, block: int = 16
) -> dict[int, float]:
    """Walk through every iteration of every request, as the engine does."""
    held: dict[int, float] = {}
    for i, o, w in zip(inputs, outputs, weights, strict=True):
        states = [math.ceil(k * budget / block) for k in range(1, math.ceil(i / budget))]
        states += [math.ceil((i + step) / block) for step in range(o)]
        for blocks in states:
            held[blocks] = held.get(blocks, 0.0) + w
    total = sum(held.values())
    return {k: v / total for k, v in sorted(held.items())}


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 700), st.integers(1, 300), st.floats(0.01, 5.0)), min_size=1, max_size=12
    ),
    budget=st.integers(16, 900),
)
def test_law_counts_every_iteration(requests: list[tuple[int, int, float]], budget: int) -> None:
    inputs, outputs, weights = (list(column) for column in zip(*requests, strict=True))
    expected = counted(inputs, outputs, weights, budget)
    law = slot_law(inputs, outputs, weights, token_budget=budget)
    assert law.blocks.tolist() == list(expected)
    np.testing.assert_allclose(law.probability, list(expected.values()), rtol=1e-9, atol=1e-12)
    mean = sum(k * p for k, p in expected.items())
    assert law.mean == pytest.approx(mean, rel=1e-12)
    assert law.variance == pytest.approx(sum((k - mean) ** 2 * p for k, p in expected.items()), rel=1e-9, abs=1e-9)
    share = np.array(weights) / sum(weights)
    chunks = np.ceil(np.array(inputs) / budget) - 1
    assert law.iterations == pytest.approx(share @ (np.array(outputs) + chunks))


def test_law_printed_moments() -> None:
    """F_p of the printed formula, p = 1, 2, with q and r."""

    def f(p: int, n: int, b: int = 16) -> int:
        q, r = divmod(n, b)
        return {1: b * q * (q + 1) // 2 + r * (q + 1), 2: b * q * (q + 1) * (2 * q + 1) // 6 + r * (q + 1) ** 2}[p]

    law = slot_law([777.0], [123.0])
    m1, m2 = ((f(p, 777 + 123 - 1) - f(p, 776)) / 123 for p in (1, 2))
    assert law.mean == pytest.approx(m1, rel=1e-13)
    assert law.variance == pytest.approx(m2 - m1 * m1, rel=1e-10)


def test_law_of_fractional_lengths_interpolates() -> None:
    whole = [slot_law([200.0], [o]).mean * slot_law([200.0], [o]).iterations for o in (40.0, 41.0)]
    half = slot_law([200.0], [40.5])
    assert half.mean * half.iterations == pytest.approx(0.5 * sum(whole), rel=1e-12)


# --- the tail -----------------------------------------------------------------------------------------------------


def convolved(law: SlotLaw, slots: int) -> np.ndarray:
    """pmf of the sum of `slots` independent slots, by repeated convolution."""
    one = np.zeros(int(law.blocks[-1]) + 1)
    one[law.blocks.astype(int)] = law.probability
    total = np.array([1.0])
    for _ in range(slots):
        total = np.convolve(total, one)
    return total


def mixed_law(budget: int = 8192) -> SlotLaw:
    rng = np.random.default_rng(1)
    inputs = np.concatenate([rng.lognormal(5.0, 0.9, 300), rng.lognormal(6.5, 0.4, 60)]).round().clip(1, 2500)
    outputs = np.concatenate([rng.geometric(1 / 180, 300), rng.geometric(1 / 25, 60)]).clip(1, 1200)
    return slot_law(inputs, outputs, token_budget=budget)


def crossing(pmf: np.ndarray, target: float) -> tuple[int, float]:
    beyond = pmf[::-1].cumsum()[::-1]  # beyond[c] = P(K >= c)
    below = np.flatnonzero(beyond <= target)
    capacity = int(below[0]) - 1 if below.size else beyond.size - 2
    return capacity, float(beyond[capacity + 1])


@pytest.mark.parametrize("slots", [1, 2, 5, 9, 15])
@pytest.mark.parametrize("target", [0.3, 1e-2, 1e-4, 1e-9])
def test_few_slots_are_exact(slots: int, target: float) -> None:
    law = mixed_law()
    capacity, truth = crossing(convolved(law, slots), target)
    assert overflow_probability(law, slots, capacity) == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize(("slots", "error"), [(16, 0.10), (40, 0.06), (150, 0.03)])
@pytest.mark.parametrize("target", [0.6, 0.1, 1e-2, 1e-3, 1e-6])
def test_saddlepoint_against_convolution(slots: int, error: float, target: float) -> None:
    law = mixed_law()
    capacity, truth = crossing(convolved(law, slots), target)
    assert overflow_probability(law, slots, capacity) == pytest.approx(truth, rel=error)
    assert overflow_probability(law, slots, capacity, method="exact") == pytest.approx(truth, rel=1e-5)


def test_tail_is_smooth_through_the_mean() -> None:
    law = mixed_law()
    slots = 64
    centre = int(slots * law.mean)
    capacities = np.arange(centre - 40, centre + 41)
    tail = np.array([overflow_probability(law, slots, c) for c in capacities])
    exact = np.array([overflow_probability(law, slots, c, method="exact") for c in capacities])
    assert np.all(np.diff(tail) < 0.0)
    np.testing.assert_allclose(tail, exact, rtol=0.01)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 900)), min_size=1, max_size=8),
    st.integers(1, 300),
    st.integers(0, 30000),
)
def test_tail_is_a_probability_and_monotone(requests: list[tuple[int, int]], slots: int, capacity: int) -> None:
    inputs, outputs = zip(*requests, strict=True)
    law = slot_law(inputs, outputs)
    p = overflow_probability(law, slots, capacity)
    assert 0.0 <= p <= 1.0
    assert overflow_probability(law, slots, capacity + 400) <= p + 1e-12
    # the switch from the exact tail to the approximation may step down by its error
    assert overflow_probability(law, slots + 20, capacity) >= p * 0.5 - 1e-12
    overflow, preempted = preemption(law, slots, capacity)
    assert overflow == p and 0.0 <= preempted * law.input_mean <= law.output_mean
    assert 0.0 <= running_sequences(law, slots, capacity) <= slots + 1e-9


@pytest.mark.parametrize("method", ["auto", "exact", "saddlepoint"])
@pytest.mark.parametrize("slots", [3, 20])
def test_limits_of_the_tail(method: str, slots: int) -> None:
    """Nothing overflows what all of the longest fit into; all of the shortest overflow what they do not fit into."""
    law = mixed_law()
    assert overflow_probability(law, slots, slots * law.longest_blocks, method=method) == 0.0
    assert overflow_probability(law, slots, slots * float(law.blocks[0]) - 1.0, method=method) == 1.0
    constant = slot_law([16.0], [1.0])
    assert overflow_probability(constant, 2 * slots, 2 * slots, method=method) == 0.0
    assert overflow_probability(constant, 2 * slots, 2 * slots - 1, method=method) == 1.0


def played_out(
    rng: np.random.Generator, inputs: np.ndarray, outputs: np.ndarray, budget: int, slots: int, iterations: int
) -> np.ndarray:
    """Blocks wanted in each iteration by slots that take one request after the other, unconstrained; shape (iterations,)."""
    inputs, outputs = inputs.astype(np.int64), outputs.astype(np.int64)
    chunks = -(-inputs // budget) - 1
    lives = chunks + outputs
    demand = np.zeros(iterations)
    warm = int(4 * lives.max())
    for _ in range(slots):
        pick = rng.integers(0, inputs.size, int(1.3 * (iterations + warm) / lives.mean()) + 50)
        life = lives[pick]
        age = np.arange(life.sum()) - np.repeat(life.cumsum() - life, life)
        prefill = age < np.repeat(chunks[pick], life)
        tokens = np.where(prefill, (age + 1) * budget, np.repeat(inputs[pick] - chunks[pick], life) + age)
        start = rng.integers(0, max(1, tokens.size - iterations))
        lived = -(-tokens // 16)
        demand += np.resize(lived[start:], iterations)
    return demand


def test_against_slots_played_out() -> None:
    """Forty slots: share of iterations above C, and events."""
    law = mixed_law(budget=400)
    rng = np.random.default_rng(1)
    inputs = np.concatenate([rng.lognormal(5.0, 0.9, 300), rng.lognormal(6.5, 0.4, 60)]).round().clip(1, 2500)
    outputs = np.concatenate([rng.geometric(1 / 180, 300), rng.geometric(1 / 25, 60)]).clip(1, 1200)
    demand = played_out(rng, inputs, outputs, 400, 40, 400_000)
    assert demand.mean() == pytest.approx(40 * law.mean, rel=0.02)
    capacity = float(np.quantile(demand, 0.99))
    measured = float((demand > capacity).mean())
    assert overflow_probability(law, 40, capacity, method="saddlepoint") == pytest.approx(measured, rel=0.25)


def lognormal(rng: np.random.Generator, mean: float, cv: float, size: int = 2000) -> np.ndarray:
    spread = math.log1p(cv * cv)
    return np.maximum(1, rng.lognormal(math.log(mean) - spread / 2, math.sqrt(spread), size).round())


SHAPES: dict[str, Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]] = {
    "chat": lambda rng: (lognormal(rng, 800, 1.0), lognormal(rng, 220, 0.8)),
    "code": lambda rng: (lognormal(rng, 2000, 0.9).clip(1, 8000), lognormal(rng, 30, 1.3)),
    "short prompts, long outputs": lambda rng: (lognormal(rng, 100, 1.0), lognormal(rng, 700, 1.0).clip(1, 5000)),
    "reasoning": lambda rng: (lognormal(rng, 300, 0.8), lognormal(rng, 1200, 0.7).clip(1, 6000)),
    "uniform": lambda rng: (rng.integers(50, 200, 2000).astype(float), rng.integers(200, 900, 2000).astype(float)),
    "geometric": lambda rng: (rng.geometric(1 / 64, 2000).astype(float), rng.geometric(1 / 300, 2000).astype(float)),
    "fixed input": lambda rng: (np.full(2000, 500.0), rng.geometric(1 / 200, 2000).astype(float)),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("room", [2.2, 5.0, 20.0])
def test_promise_holds_when_played_out(shape: str, room: float) -> None:
    """With N_safe busy slots the share of iterations above C is at most the promise, within the noise of the run."""
    rng = np.random.default_rng(7)
    inputs, outputs = SHAPES[shape](rng)
    law = slot_law(inputs, outputs)
    capacity = room * law.longest_blocks
    best = safe_slots(law, capacity, overflow_limit=0.01, preemption_limit=1.0)
    slots = best.slots
    assert slots >= capacity // law.longest_blocks > 0
    iterations = min(200_000, 5_000_000 // slots)
    above = played_out(rng, inputs, outputs, 8192, slots, iterations) > math.floor(capacity)
    batches = above[: iterations // 20 * 20].reshape(20, -1).mean(axis=1)
    half_width = 2.1 * float(batches.std(ddof=1)) / math.sqrt(20)
    assert batches.mean() - half_width <= 1.2 * 0.01
    # nor is it far below, apart from the guards: a sixth more slots break it
    if not best.guards and slots >= 24:
        more = played_out(rng, inputs, outputs, 8192, math.ceil(slots * 7 / 6), iterations) > math.floor(capacity)
        assert more.mean() > 0.01


# --- the largest safe N -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [900, 2500, 9000])
@pytest.mark.parametrize("promise", [0.05, 0.01, 0.001])
def test_safe_slots_is_the_largest(capacity: int, promise: float) -> None:
    law = mixed_law()
    best = safe_slots(law, capacity, overflow_limit=promise, preemption_limit=0.004)

    def kept(n: int) -> bool:
        overflow, preempted = preemption(law, n, capacity)
        return overflow <= best.overflow_limit and preempted <= 0.004

    assert kept(best.slots)
    assert not kept(best.slots + 1)
    assert not any(kept(n) for n in range(best.slots + 1, best.slots + 40))
    assert capacity // law.longest_blocks <= best.slots <= capacity / law.mean


def test_capacity_that_shrinks_with_slots() -> None:
    law = mixed_law()

    def capacity(n: int) -> float:
        return 4000.0 - 9.0 * n

    best = safe_slots(law, capacity)
    assert best.capacity_blocks == capacity(best.slots)
    assert preemption(law, best.slots, capacity(best.slots))[0] <= best.overflow_limit
    assert preemption(law, best.slots + 1, capacity(best.slots + 1))[0] > best.overflow_limit


def test_guards() -> None:
    fixed = slot_law([1000.0, 200.0], [300.0, 300.0])
    worst = safe_slots(fixed, 5000)
    assert (worst.slots, worst.limit, worst.guards) == (5000 // math.ceil(1300 / 16), "fixed output", ("fixed output",))
    assert worst.overflow == worst.preemptions == 0.0

    law = mixed_law()
    assert safe_slots(law, law.longest_blocks - 1).slots == 0
    assert safe_slots(law, law.longest_blocks - 1).limit == "no room"
    tight = safe_slots(law, 2.5 * law.longest_blocks)
    assert "long requests" in tight.guards
    assert tight.overflow_limit == pytest.approx(0.0025)
    assert safe_slots(law, 8.0 * law.longest_blocks).overflow_limit == pytest.approx(0.01)

    rng = np.random.default_rng(2)
    prompts = slot_law(np.full(200, 500.0), rng.geometric(1 / 200, 200).clip(1))
    assert "fixed input" in safe_slots(prompts, 3000).guards

    short = slot_law([4000.0, 4200.0, 100.0], [5.0, 30.0, 60.0], token_budget=512)
    roomy = safe_slots(short, 1e5, max_slots=256)
    assert (roomy.slots, roomy.limit) == (256, "max_slots")
    assert "token budget" in roomy.guards


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6000), st.integers(1, 900)), min_size=1, max_size=6),
    st.integers(1, 20000),
    st.integers(8, 16384),
)
def test_safe_slots_on_anything(requests: list[tuple[int, int]], capacity: int, budget: int) -> None:
    inputs, outputs = zip(*requests, strict=True)
    law = slot_law(inputs, outputs, token_budget=budget)
    best = safe_slots(law, capacity, max_slots=300)
    assert 0 <= best.slots <= 300
    if best.slots:
        assert best.overflow <= best.overflow_limit <= 0.01
        assert best.preemptions <= 0.01


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda law: slot_law([], []), "input_tokens"),
        (lambda law: slot_law([1.0, -1.0], [1.0, 1.0]), "input_tokens"),
        (lambda law: slot_law([1.0], [math.nan]), "output_tokens"),
        (lambda law: slot_law([1.0], [1.0, 2.0]), "shapes"),
        (lambda law: slot_law([1.0], [1.0], [0.0]), "weight"),
        (lambda law: slot_law([1.0], [1.0], token_budget=0), "token_budget"),
        (lambda law: slot_law([1.0], [1.0], block=0), "block"),
        (lambda law: overflow_probability(law, 0, 10), "slots"),
        (lambda law: overflow_probability(law, 5, -1), "capacity_blocks"),
        (lambda law: overflow_probability(law, 5, 10, method="clt"), "method"),
        (lambda law: safe_slots(law, 100, overflow_limit=0.0), "overflow_limit"),
        (lambda law: safe_slots(law, 100, preemption_limit=0.0), "preemption_limit"),
        (lambda law: safe_slots(law, 100, max_slots=0), "max_slots"),
        (lambda law: safe_slots(law, math.nan), "capacity_blocks"),
    ],
)
def test_nonsense_is_named(call: Callable[[SlotLaw], Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call(mixed_law())


# --- against paged simulations ------------------------------------------------------------------------------------


def lengths(raw: Path, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    if name.startswith("input 1000"):
        return np.array([1000.0]), np.array([300.0])
    if " + " in name:
        parts = [lengths(raw, f) for f in ("azure_conv_2023.csv", "azure_code_2023.csv")]
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))  # type: ignore[arg-type, return-value]
    if not (raw / name).is_file():
        return None
    if name.endswith(".jsonl"):
        rows = [json.loads(line) for line in (raw / name).read_text().splitlines()]
        pairs = [(r["input_length"], r["output_length"]) for r in rows]
    else:
        with (raw / name).open(newline="") as file:
            rows = list(csv.DictReader(file))
        keys = ("ContextTokens", "GeneratedTokens") if "ContextTokens" in rows[0] else ("input_tokens", "output_tokens")
        pairs = [(float(r[keys[0]]), float(r[keys[1]])) for r in rows]
    table = np.array(pairs, dtype=float)
    return table[:, 0], table[:, 1]


@pytest.fixture(scope="module")
def simulated(shared_data: Path) -> list[tuple[dict[str, Any], SlotLaw]]:
    cases = json.loads((shared_data / "memory" / "truth.json").read_text())
    laws: dict[tuple[str, int], SlotLaw | None] = {}
    for case in cases:
        key = (case["workload"], case["B"])
        if key not in laws:
            pair = lengths(shared_data / "workloads" / "raw", key[0])
            laws[key] = None if pair is None else slot_law(*pair, token_budget=key[1])
    found = [(case, laws[case["workload"], case["B"]]) for case in cases]
    return [(case, law) for case, law in found if law is not None]


def saturated(simulated: list[tuple[dict[str, Any], SlotLaw]], kind: str) -> list[tuple[dict[str, Any], SlotLaw]]:
    return [(c, law) for c, law in simulated if c["id"].startswith("sat-") and kind in c["id"]]


def test_running(simulated: list[tuple[dict[str, Any], SlotLaw]]) -> None:
    for case, law in saturated(simulated, ""):
        sim = case["sim"]
        n = running_sequences(law, case["N"], case["C_blocks"])
        allowed = 0.12 if "mooncake" in case["id"] else 0.03
        assert n == pytest.approx(sim["running"][0], rel=allowed), case["id"]


def test_memory_bound_share_and_preemptions(simulated: list[tuple[dict[str, Any], SlotLaw]]) -> None:
    shares, ratios = [], []
    for case, law in saturated(simulated, "azure"):
        overflow, preempted = preemption(law, case["N"], case["C_blocks"])
        shares.append(overflow / case["sim"]["memory_bound_fraction"][0])
        ratios.append(preempted / case["sim"]["preemptions_per_request"][0])
    assert np.median(shares) == pytest.approx(0.98, abs=0.06)
    assert min(shares) > 0.65
    assert max(shares) < 2.4
    assert np.median(ratios) == pytest.approx(0.96, abs=0.06)
    assert min(ratios) > 0.65
    assert max(ratios) < 2.2


def test_unconstrained_demand(simulated: list[tuple[dict[str, Any], SlotLaw]]) -> None:
    ratios = []
    for case, law in simulated:
        if (
            not case["id"].startswith("tail-") or case["id"] == "tail-mooncake-48-B8192"
        ):  # there the budget lowers demand
            continue
        for capacity, truth, ci in zip(
            case["C_blocks"], case["sim"]["overflow"], case["sim"]["overflow_95"], strict=True
        ):
            predicted = overflow_probability(law, case["N"], capacity, method="exact")
            if truth > 5e-4:
                ratios.append(predicted / truth)
                assert predicted == pytest.approx(truth, abs=3.0 * ci + 0.18 * truth), case["id"]
    assert np.median(ratios) == pytest.approx(1.0, abs=0.03)


def test_promise_is_kept_in_simulation(simulated: list[tuple[dict[str, Any], SlotLaw]]) -> None:
    """Where a simulation was run at (or above) the N chosen here, its share and its preemptions are within the promise."""
    held = 0
    by_setting: dict[tuple[str, int], list[tuple[dict[str, Any], SlotLaw]]] = {}
    for case, law in saturated(simulated, ""):
        by_setting.setdefault((case["workload"], case["C_blocks"]), []).append((case, law))
    for (_, capacity), runs in by_setting.items():
        best = safe_slots(runs[0][1], capacity, max_slots=4096)
        assert best.slots >= capacity // runs[0][1].longest_blocks
        for case, _ in runs:
            if case["N"] >= best.slots:
                continue
            # runs below the chosen N keep the promise with room
            share, half = case["sim"]["memory_bound_fraction"]
            assert share - half <= 0.012, case["id"]
            held += 1
        closest = min(runs, key=lambda run: abs(run[0]["N"] - best.slots))[0]
        if closest["N"] == best.slots:
            share, half = closest["sim"]["memory_bound_fraction"]
            assert share - half <= 0.012, closest["id"]
            assert closest["sim"]["preemptions_per_request"][0] <= 0.012, closest["id"]
            held += 1
    assert held >= 6
