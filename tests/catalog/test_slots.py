"""Slots from memory: the fixed point of slots and capacity."""

from __future__ import annotations

import pytest

from planner.catalog import gpu, model
from planner.catalog.kv import kv_capacity
from planner.queueing.memory import preemption, safe_slots, slot_law

LAW = slot_law([200.0, 900.0, 3000.0, 7000.0], [400.0, 150.0, 300.0, 50.0], [5.0, 3.0, 1.5, 0.5])


@pytest.mark.parametrize(
    ("name", "device", "tp"), [("llama-3.1-8b", "l4", 1), ("llama-3.1-70b", "h100", 4), ("qwen3-32b", "h100", 2)]
)
def test_fixed_point(name: str, device: str, tp: int) -> None:
    """More slots leave less room for the cache: one more than the number found would not fit."""

    def blocks(slots: int) -> float:
        return kv_capacity(model(name), gpu(device), tp, max_num_seqs=slots).tokens // 16

    best = safe_slots(LAW, blocks, max_slots=2048)
    assert preemption(LAW, best.slots, blocks(best.slots))[0] <= best.overflow_limit
    more = preemption(LAW, best.slots + 1, blocks(best.slots + 1))
    assert more[0] > best.overflow_limit or more[1] > 0.01
