"""How long the memory policy takes: the law of one slot, the safe slots, and a whole search's worth of pools at once.

    python benchmarks/memory_speed.py

Prints milliseconds, the best of five.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from planner.catalog import gpu, model
from planner.catalog.slots import BlockCapacity, memory_safe_slots
from planner.queueing.memory import safe_slots, slot_law
from planner.queueing.memory_batch import SlotGrid, SlotLaws, safe_slots_batch


def best_of(call: Callable[[], object], repeats: int = 5) -> float:
    """Milliseconds of the fastest of `repeats` calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    for rows in (300, 28_000):
        inputs = rng.lognormal(6.5, 1.1, rows).round().clip(1, 14_000)
        outputs = rng.lognormal(4.8, 1.0, rows).round().clip(1, 1_500)
        law = slot_law(inputs, outputs)
        capacity = BlockCapacity(model("llama-3.1-8b"), gpu("h100"))
        print(f"{rows:6d} rows: law {best_of(lambda i=inputs, o=outputs: slot_law(i, o)):7.2f} ms", end="")
        print(f"   safe slots, C = 8,000 blocks {best_of(lambda law=law: safe_slots(law, 8000.0)):6.2f} ms", end="")
        print(f"   with KV(N) of an H100 {best_of(lambda law=law, c=capacity: memory_safe_slots(law, c)):6.2f} ms")

    inputs, outputs = (column[:300] for column in (inputs, outputs))
    order = np.argsort(inputs + outputs)
    inputs, outputs = inputs[order], outputs[order]
    grid = SlotGrid.up_to(float((inputs + outputs).max()))
    features = grid.features(inputs, outputs)
    running = features.cumsum(axis=0)
    cuts = np.linspace(30, 290, 110).astype(int)
    sums = np.vstack([running[cuts - 1], running[-1] - running[cuts - 1]])
    longest = np.concatenate([(inputs + outputs)[cuts - 1], np.full(cuts.size, (inputs + outputs)[-1])])
    laws = SlotLaws.from_sums(grid, sums, longest)
    print(f"{len(longest):6d} pools: features {best_of(lambda: grid.features(inputs, outputs)):.2f} ms", end="")
    print(f"   safe slots of all {best_of(lambda: safe_slots_batch(laws, lambda n: 28_300.0 - 2.3 * n)):.2f} ms")


if __name__ == "__main__":
    main()
