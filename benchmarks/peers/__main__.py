"""Plans and what-ifs as whole processes beside `vllm-sr-sim`'s, and a what-if by two processes beside one.

``python -m benchmarks.peers [PATH_OF_VLLM_SR_SIM ITS_CDF_JSON]``. Processor time, so that a busy machine changes little; medians
of three (what-ifs: once). The peer is given its boundary and one GPU type, and simulates the best three fleets.
"""

from __future__ import annotations

import compileall
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.speed.__main__ import cpu_s

OURS = [sys.executable, "-m", "planner.cli.main"]
PLAN = [*OURS, "plan", "--cdf", "azure", "--slo", "0.5", "--no-options"]
POINTS = ",".join(str(50 + 10 * k) for k in range(100))


def told(what: str, ours: list[str], theirs: list[str] | None, times: int = 3) -> None:
    """A row of the table."""
    seconds = [statistics.median(cpu_s(command) for _ in range(times)) for command in (ours, theirs) if command]
    beside = f"{seconds[1]:.2f} | {seconds[0] / seconds[1]:.2f}" if len(seconds) > 1 else "- | -"
    print(f"| {what} | {seconds[0]:.2f} | {beside} |", flush=True)


def main() -> None:
    """Print a markdown table."""
    compileall.compile_dir(Path(__file__).parents[2] / "planner", quiet=1)
    given = ["--slo", "500", "--gpu-short", "h100", "--gpu-long", "h100", "--b-short", "4096"]
    program = [*sys.argv[1:2], "{}", "--cdf", *sys.argv[2:3], *given] if len(sys.argv) > 2 else []

    def peer(command: str, *more: str) -> list[str] | None:
        return [word.format(command) for word in program] + [*more] if program else None

    print("| question | ours [CPU s] | theirs [CPU s] | ours over theirs |\n|---|---|---|---|")
    for rate in ("100", "1000"):
        for method in ("mgc", "mixed"):
            told(
                f"plan, {rate} requests/s, {method}",
                [*PLAN, "--rate", rate, "--method", method],
                peer("optimize", "--lam", rate),
            )
    with tempfile.TemporaryDirectory() as name:
        for method in ("mgc", "mixed"):
            plan = f"{name}/{method}.yaml"
            cpu_s([*PLAN, "--rate", "100", "--method", method, "-o", plan])
            ask = [*OURS, "what-if", plan, "--set", f"rate={POINTS}", "--format", "csv"]
            told(
                f"what-if of 100 rates, {method}",
                [*ask, "--jobs", "1"],
                peer("whatif", "--lam-range", *POINTS.split(",")),
                1,
            )
        told("the last by two processes", [*ask, "--jobs", "2"], [*ask, "--jobs", "1"], 1)


if __name__ == "__main__":
    main()
