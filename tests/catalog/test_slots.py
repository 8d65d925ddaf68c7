"""Slots from memory: the fixed point of slots and capacity."""

from __future__ import annotations

import pytest

from planner.catalog import gpu, model, profile
from planner.catalog.kv import kv_capacity_tokens
from planner.catalog.slots import BlockCapacity, memory_safe_slots, reserved_slots
from planner.errors import InputError
from planner.queueing.memory import preemption, slot_law

LAW = slot_law([200.0, 900.0, 3000.0, 7000.0], [400.0, 150.0, 300.0, 50.0], [5.0, 3.0, 1.5, 0.5])


@pytest.mark.parametrize(
    ("name", "device", "tp"), [("llama-3.1-8b", "l4", 1), ("llama-3.1-70b", "h100", 4), ("qwen3-32b", "h100", 2)]
)
def test_fixed_point(name: str, device: str, tp: int) -> None:
    capacity = BlockCapacity(model(name), gpu(device), tp)
    best = memory_safe_slots(LAW, capacity, max_slots=2048)
    assert capacity(best.slots) == kv_capacity_tokens(model(name), gpu(device), tp, max_num_seqs=best.slots) // 16
    assert preemption(LAW, best.slots, capacity(best.slots)).overflow <= best.overflow_limit
    more = preemption(LAW, best.slots + 1, capacity(best.slots + 1))
    assert more.overflow > best.overflow_limit or more.per_request > 0.01


def test_a_reported_capacity_replaces_the_formula() -> None:
    capacity = BlockCapacity(model("llama-3.1-8b"), gpu("l4"), kv_tokens=100_000)
    assert capacity(1) == capacity(1024) == 6250


def test_no_room_at_all() -> None:
    best = memory_safe_slots(LAW, BlockCapacity(model("llama-3.1-70b"), gpu("l4")))
    assert (best.slots, best.limit) == (0, "no room")


def test_budgets_must_agree() -> None:
    with pytest.raises(InputError, match="token budget of 8192, the engine has 512"):
        memory_safe_slots(LAW, BlockCapacity(model("llama-3.1-8b"), gpu("l4"), token_budget=512))


def test_reserved() -> None:
    paper = profile("fleetopt-paper")
    assert [reserved_slots(b, 0.0, paper) for b in (65536, 8192, 4096, 1536)] == [16, 128, 256, 682]
    assert reserved_slots(8192, 30_000) == 3
    assert reserved_slots(8192, 3_000) == 0
    with pytest.raises(InputError, match="longest_tokens"):
        reserved_slots(0, 3_000)
