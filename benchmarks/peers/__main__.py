"""Plans and what-ifs as whole processes beside `vllm-sr-sim`'s: ``python -m benchmarks.peers PATH_OF_VLLM_SR_SIM ITS_CDF_JSON``.

Processor time, so that a busy machine changes little; medians of three (what-ifs: once). The peer is given its boundary and one GPU
type, and simulates the best three fleets.
"""

from __future__ import annotations

import compileall
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.speed.__main__ import cpu_s

OURS = [sys.executable, "-m", "planner.cli.main"]
PLAN = [*OURS, "plan", "--cdf", "azure", "--slo", "0.5", "--no-options", "--method", "mgc"]
POINTS = [str(50 + 10 * k) for k in range(100)]


def told(what: str, ours: list[str], theirs: list[str], times: int = 3) -> None:
    """A row of the table."""
    own, others = (statistics.median(cpu_s(command) for _ in range(times)) for command in (ours, theirs))
    print(f"| {what}, mgc | {own:.2f} | {others:.2f} | {own / others:.2f} |", flush=True)


def main(program: str, lengths: str) -> None:
    """Print a markdown table."""
    compileall.compile_dir(Path(__file__).parents[2] / "planner", quiet=1)
    given = ["--cdf", lengths, "--slo", "500", "--gpu-short", "h100", "--gpu-long", "h100", "--b-short", "4096"]
    print("| question | ours [CPU s] | theirs [CPU s] | ours over theirs |\n|---|---|---|---|")
    for rate in ("100", "1000"):
        told(f"plan, {rate} requests/s", [*PLAN, "--rate", rate], [program, "optimize", *given, "--lam", rate])
    with tempfile.TemporaryDirectory() as name:
        plan = f"{name}/plan.yaml"
        cpu_s([*PLAN, "--rate", "100", "-o", plan])
        ours = [*OURS, "what-if", plan, "--set", f"rate={','.join(POINTS)}", "--format", "csv", "--jobs", "1"]
        told("what-if of 100 rates", ours, [program, "whatif", *given, "--lam-range", *POINTS], 1)


if __name__ == "__main__":
    main(*sys.argv[1:3])
