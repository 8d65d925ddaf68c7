"""Many pools at once: the same slots as one by one."""

from __future__ import annotations

import numpy as np
import pytest

from planner.queueing.memory import safe_slots, slot_law
from planner.queueing.memory_batch import SlotGrid, SlotLaws, safe_slots_batch

BUDGET = 8192


def workload() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    inputs = rng.lognormal(6.2, 1.1, 300).round().clip(1, 30000)
    outputs = rng.geometric(1 / 220, 300)
    order = np.argsort(inputs + outputs)
    return inputs[order], outputs[order].astype(float)


def pools() -> list[slice]:
    return [slice(0, cut) for cut in range(30, 301, 15)] + [slice(cut, 300) for cut in range(15, 270, 15)]


def laws(budget: int = BUDGET) -> tuple[SlotLaws, list[slice]]:
    inputs, outputs = workload()
    grid = SlotGrid.up_to(float((inputs + outputs).max()), token_budget=budget)
    features = grid.features(inputs, outputs)
    parts = pools()
    sums = np.array([features[part].sum(axis=0) for part in parts])
    longest = [float((inputs + outputs)[part].max()) for part in parts]
    return SlotLaws.from_sums(grid, sums, longest), parts


def test_grid_keeps_the_law() -> None:
    inputs, outputs = workload()
    for budget in (512, 8192):
        many, parts = laws(budget)
        single = [slot_law(inputs[p], outputs[p], token_budget=budget) for p in parts]
        np.testing.assert_allclose(many.means, [law.mean for law in single], rtol=2e-3)
        variance = many.probability @ many.grid.nodes**2 - many.means**2
        np.testing.assert_allclose(variance, [law.variance for law in single], rtol=0.02)


@pytest.mark.parametrize("capacity", [6000.0, 12000.0, 40000.0])
@pytest.mark.parametrize("slope", [0.0, 2.3])
def test_agrees_with_one_by_one(capacity: float, slope: float) -> None:
    inputs, outputs = workload()
    many, parts = laws()

    def blocks(slots: np.ndarray | float) -> np.ndarray | float:
        return capacity - slope * slots

    found = safe_slots_batch(many, blocks, max_slots=1000)
    for k, part in enumerate(parts):
        law = slot_law(inputs[part], outputs[part], token_budget=BUDGET)
        single = safe_slots(law, lambda n: float(blocks(n)), max_slots=1000)
        assert found.slots[k] <= single.slots + 1
        if single.slots <= single.budget_slots:
            assert found.slots[k] >= single.slots - max(2, 0.01 * single.slots), (k, single)
        else:
            assert found.slots[k] >= np.floor(single.budget_slots)
        assert found.capacity_blocks[k] == blocks(max(1, found.slots[k]))


def test_guards_hold_for_each_pool() -> None:
    rng = np.random.default_rng(4)
    grid = SlotGrid.up_to(8192)
    fixed = grid.features(rng.integers(100, 900, 50), np.full(50, 256.0)).sum(axis=0)
    ordinary = grid.features(rng.integers(100, 900, 50), rng.geometric(1 / 256, 50)).sum(axis=0)
    long = grid.features([7000.0, 100.0], [100.0, 300.0]).sum(axis=0)
    many = SlotLaws.from_sums(grid, [fixed, ordinary, long], [1156.0, 2500.0, 7100.0])
    found = safe_slots_batch(many, 440.0)
    assert found.slots.tolist()[0] == 440 // 73
    assert found.slots[1] >= 1
    assert found.slots[2] == 0
    assert found.overflow[2] == 0.0
    assert np.all(found.overflow <= 0.01)
    assert np.all(found.preemptions_per_request <= 0.01)


def test_long_prompts_spend_chunks() -> None:
    grid = SlotGrid.up_to(4096, token_budget=512)
    spent = grid.features([1500.0], [10.0])[0, : grid.edges.size - 1]
    assert spent.sum() == pytest.approx(10 + 2)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: SlotGrid.up_to(0), "longest_tokens"),
        (lambda: SlotGrid.up_to(100, token_budget=0), "token_budget"),
        (lambda: SlotGrid.up_to(100).features([4000.0], [1.0]), "within the grid"),
        (lambda: SlotLaws.from_sums(SlotGrid.up_to(100), [[1.0, 2.0]], 50.0), "columns"),
        (lambda: safe_slots_batch(laws()[0], 1000.0, max_slots=0), "max_slots"),
        (lambda: safe_slots_batch(laws()[0], 1000.0, overflow_limit=0.9), "overflow_limit"),
        (lambda: safe_slots_batch(laws()[0], 1000.0, preemption_limit=0.0), "preemption_limit"),
    ],
)
def test_nonsense_is_named(call: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call()  # type: ignore[operator]
