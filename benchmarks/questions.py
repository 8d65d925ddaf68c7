"""CPU seconds of processes that answer one question each, over importing what they stand on: ``python benchmarks/questions.py``.

Processor time, so that a busy machine changes little; one run, every question once, the imports the median of five.
"""

from __future__ import annotations

import compileall
import resource
import statistics
import subprocess
import sys
from pathlib import Path

IMPORTS = [sys.executable, "-c", "import numpy, typer, rich.table"]

QUESTIONS = (
    "--slo 0.5",
    "--slo 0.5 --rate 100",
    "--slo 0.5 --rate 1000",
    "--slo 0.5 --rate 1000000",
    "--slo 0.5 --rate 1000 --pools 4",
    "--slo 0.5 --rate 200 --gpu h100,h200,a100,l40s",
    "--slo 0.5 --rate 200 --gpu h100,a100 --inventory h100=10",
    "--slo 0.5 --rate 1000 --burst poisson",
    "--slo 0.5 --rate 100 --method occupancy",
    "--slo 0.5 --rate 1000 --method occupancy",
    "--slo 0.5 --tpot 40ms --rate 100 --shape disaggregated",
    "--slo 0.5 --rate 1000 --method mgc",
)

OTHERS = ("plan --cdf azure.csv --slo 0.5 --options-seconds 600",)
"""With every other choice below the plan sized."""


def cpu_s(command: list[str]) -> float:
    """Processor time of a command [s]."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a markdown table."""
    # as an installation has it: where nothing may write bytecode, every start would compile the package again
    compileall.compile_dir(Path(__file__).parents[1] / "planner", quiet=1)
    base = statistics.median(cpu_s(IMPORTS) for _ in range(5))
    print("| question | CPU [s] | times the imports |\n|---|---|---|")
    print(f"| `import numpy, typer, rich.table` | {base:.2f} | 1 |")
    for question in QUESTIONS:
        arguments = ["plan", "--cdf", "azure.csv", "--no-options", *question.split()]
        seconds = cpu_s([sys.executable, "-m", "planner.cli.main", *arguments])
        print(f"| `plan --no-options {question}` | {seconds:.2f} | {seconds / base:.1f} |", flush=True)
    for words in OTHERS:
        seconds = cpu_s([sys.executable, "-m", "planner.cli.main", *words.split()])
        print(f"| `{words}` | {seconds:.2f} | {seconds / base:.1f} |", flush=True)


if __name__ == "__main__":
    main()
