"""Makes iteration_server.json: measured latencies of tests/golden/iteration_server.py over settings of every kind.

Run by hand (a few minutes): python tests/golden/make_iteration_server.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from iteration_server import draw, serve  # noqa: E402

POPULATION = 5_000
LEVELS = (0.5, 0.9, 0.99)
CHAT = (("lognormal", 1500, 3, 8192), ("lognormal", 220, 1.5, 2048))
LONG = (("lognormal", 5000, 2, 32768), ("lognormal", 100, 2, 1000))
SHORT = (("lognormal", 3000, 4, 16384), ("lognormal", 30, 2, 500))
EVEN = (("constant", 1000), ("constant", 100))
PLAIN = (("lognormal", 700, 1, 4096), ("geometric", 150))
TWO = (("two", 0.2, 300, 6000), ("two", 0.1, 80, 1500))

# W [s], H [s], slots, chunk, replicas, routing, load, laws, requests
CASES = [
    (0.008, 0.00065, 16, 512, 1, "random", 0.70, CHAT, 1_200_000),
    (0.020, 0.00010, 32, 512, 1, "random", 0.80, CHAT, 600_000),
    (0.015, 0.00030, 192, 1024, 1, "random", 0.70, CHAT, 100_000),
    (0.012, 0.00050, 24, 128, 2, "random", 0.75, LONG, 200_000),
    (0.005, 0.00020, 32, 256, 1, "random", 0.80, EVEN, 200_000),
    (0.005, 0.00020, 48, 2048, 1, "random", 0.75, SHORT, 200_000),
    (0.030, 0.00005, 24, 512, 1, "random", 0.60, TWO, 200_000),
    (0.010, 0.00100, 40, 512, 4, "jsq", 0.80, CHAT, 150_000),
    (0.020, 0.00020, 16, 256, 16, "jsq", 0.80, PLAIN, 150_000),
    (0.006, 0.00040, 64, 512, 2, "jsq", 0.60, TWO, 150_000),
    (0.010, 0.00080, 24, 1024, 6, "central", 0.80, CHAT, 150_000),
    (0.012, 0.00030, 96, 512, 4, "rr", 0.75, PLAIN, 150_000),
    (0.008, 0.00065, 48, 512, 1, "random", 0.25, PLAIN, 100_000),
]


def main() -> None:
    rows = []
    for index, (w, h, slots, chunk, replicas, routing, load, laws, count) in enumerate(CASES):
        rng = np.random.default_rng(1000 + index)
        inputs, outputs = (draw(law, POPULATION, rng) for law in laws)
        work = float(np.mean(np.ceil(inputs / chunk) + outputs)) * (w + h * slots) / slots
        rate = load * replicas / work
        pick = rng.integers(POPULATION, size=count)
        served = serve(
            np.cumsum(rng.exponential(1.0 / rate, count)), inputs[pick], outputs[pick],
            fixed_time=w, time_per_slot=h, slots=slots, chunk=chunk, replicas=replicas, routing=routing,
            seed=index,
        )  # fmt: skip
        row = {
            "fixed_time": w, "time_per_slot": h, "slots": slots, "chunk": chunk,
            "replicas": replicas, "routing": routing, "load": load, "arrival_rate": rate, "requests": count,
            "input_law": laws[0], "output_law": laws[1], "law_seed": 1000 + index, "population": POPULATION,
            "slot_occupancy": served.slot_occupancy,
            "ttft": np.quantile(served.ttft, LEVELS).tolist(),
            "tpot": np.quantile(served.tpot, LEVELS).tolist(),
            "e2e": np.quantile(served.e2e, LEVELS).tolist(),
        }  # fmt: skip
        rows.append(row)
        print(index, routing, load, round(served.slot_occupancy, 3), flush=True)
    text = json.dumps({"made_by": "tests/golden/make_iteration_server.py", "levels": LEVELS, "cases": rows}, indent=1)
    (HERE / "iteration_server.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
