"""Time and memory of importing a million requests, by format.

python benchmarks/import_speed.py [ROWS]
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

Record = Callable[[float, int, int], str]

READ = """
import resource, sys, time
from planner.workload.importing import read_workload
start = time.perf_counter()
_, report = read_workload(sys.argv[1])
print(report.format, report.requests, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def span(t: float, i: int, o: int) -> str:
    """One OpenTelemetry span."""
    values = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": i, "gen_ai.usage.output_tokens": o}
    attributes = [
        {"key": k, "value": {"intValue" if isinstance(v, int) else "stringValue": str(v)}} for k, v in values.items()
    ]
    return json.dumps({"name": "chat", "startTimeUnixNano": str(round((1.7e9 + t) * 1e9)), "attributes": attributes})


FORMATS: dict[str, tuple[str, Record]] = {
    "generic.jsonl": (
        "",
        lambda t, i, o: json.dumps({"timestamp": round(t, 3), "prompt_tokens": i, "generated_tokens": o}),
    ),
    "mooncake.jsonl": (
        "",
        lambda t, i, o: json.dumps(
            {"timestamp": round(1000 * t), "input_length": i, "output_length": o, "hash_ids": list(range(i // 512 + 1))}
        ),
    ),
    "otel.jsonl": ("", span),
    "azure.csv": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        lambda t, i, o: (
            f"2024-05-{10 + int(t // 86400):02d} {int(t // 3600 % 24):02d}:{int(t // 60 % 60):02d}:{t % 60:09.6f}+00:00,{i},{o}"
        ),
    ),
}


def main(rows: int) -> None:
    """Write, read and report every format; each is read in a process of its own."""
    print(f"{rows:,} rows")
    for name, (header, record) in FORMATS.items():
        rng = random.Random(1)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            with path.open("w", encoding="utf-8") as file:
                file.write(header)
                t = 0.0
                for _ in range(rows):
                    t += rng.expovariate(10.0)
                    file.write(
                        record(t, int(rng.lognormvariate(6.5, 1.2)) + 1, int(rng.lognormvariate(5.0, 1.0)) + 1) + "\n"
                    )
            size = path.stat().st_size / 1e6
            done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
            kind, count, seconds, memory = done.stdout.split()
            print(
                f"{kind}: {int(count):,} requests, {size:.0f} MB file, {float(seconds):.1f} s, {float(memory):.0f} MB"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
