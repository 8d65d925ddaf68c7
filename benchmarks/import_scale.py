"""Importing millions of rows against DuckDB's own aggregation of the same file: wall and processor time, and peak memory.

Every measurement runs in a process of its own, in turn, three times; the best of each counts.

Usage: python benchmarks/import_scale.py [--rows 5000000] [--folder /tmp]
"""

from __future__ import annotations

import argparse
import compileall
import subprocess
import sys
import tempfile
from pathlib import Path

AGGREGATE = """
import duckdb, sys
file, sent, got = sys.argv[1:4]
duckdb.connect().execute(f"SELECT {sent}, {got}, count(*) FROM '{file}' GROUP BY ALL").fetchnumpy()
"""

IMPORT = """
import sys
from planner.cli.main import run
sys.argv = ["fleetopt", "workload", "import", sys.argv[1], "-o", sys.argv[2]]
run()
"""

TIMED = """
import resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


def timed(code: str, *arguments: str) -> tuple[float, ...]:
    """Wall time and processor time [s], and peak memory [MiB] of a program."""
    out = subprocess.run([sys.executable, "-c", TIMED, code, *arguments], check=True, capture_output=True, text=True)
    return tuple(map(float, out.stdout.split()))


def make(folder: Path, rows: int) -> dict[str, Path]:
    """The same random requests, nearly all of different lengths, as CSV, JSON lines and Parquet."""
    import duckdb

    files = {kind: folder / f"rows.{kind}" for kind in ("csv", "jsonl", "parquet")}
    with duckdb.connect() as engine:
        engine.execute("SELECT setseed(0.5)")
        engine.execute(
            f"CREATE TABLE t AS SELECT 1.7e9 + 172800.0 * i / {rows} + random() * 0.01 AS timestamp, "
            "1 + floor(exp(6.5 + 1.3 * sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random())))::INT AS input_tokens, "
            "1 + floor(exp(5.0 + 1.1 * sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random())))::INT AS output_tokens, "
            "CASE WHEN random() < 0.4 THEN 'conv' ELSE 'code' END AS category "
            f"FROM range({rows}) r(i)"
        )
        for kind, form in (("csv", "header"), ("jsonl", "format json"), ("parquet", "format parquet")):
            engine.execute(f"COPY t TO '{files[kind]}' ({form})")
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    # as an installation has it: where nothing may write bytecode, every start would compile the package again
    compileall.compile_dir(Path(__file__).parents[1] / "planner", quiet=1)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        print(f"{given.rows:,} rows  DuckDB [s, CPU s]  import [s, CPU s]  ratios  import [MiB]  compact file [kB]")
        for kind, file in make(folder, given.rows).items():
            out = folder / "compact.csv"
            best = [
                min(found)
                for found in zip(
                    *(
                        (
                            *timed(AGGREGATE, str(file), "input_tokens", "output_tokens"),
                            *timed(IMPORT, str(file), str(out)),
                        )
                        for _ in range(3)
                    ),
                    strict=True,
                )
            ]
            wall, cpu, _, ours, own_cpu, memory = best
            print(
                f"{kind:<12}{wall:8.2f}{cpu:6.2f}{ours:12.2f}{own_cpu:6.2f}{ours / wall:10.2f}{own_cpu / cpu:6.2f}"
                f"{memory:14.0f}{out.stat().st_size / 1e3:16.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
