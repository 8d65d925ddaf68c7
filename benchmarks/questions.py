"""CPU seconds of processes that answer one question each, over importing what they stand on: ``python benchmarks/questions.py``.

Processor time, so that a busy machine changes little; one run, every question once, the imports the median of five.
``--against COMMIT`` asks this and an older version the same questions of ``planner.plan`` by turns, warmed up, and prints ratios.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
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


SAME = (
    {"slo": 0.5},
    {"slo": 0.5, "rate": 1000.0},
    {"slo": 0.5, "rate": 100.0, "burst": "poisson"},
    {"slo": 0.5, "rate": 1000.0, "burst": "poisson"},
    {"slo": 0.5, "rate": 100.0, "burst": "poisson", "method": "occupancy"},
    {"slo": 0.5, "rate": 100.0, "burst": "poisson", "method": "mgc"},
)
ASKED = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
from planner import plan
for question in json.loads(sys.argv[1]):
    spent = []
    for _ in range(3):
        begun = time.process_time()
        plan("azure", **question)
        spent.append(time.process_time() - begun)
    print(min(spent))
"""


def against(commit: str, rounds: int = 3) -> None:
    """Print processor time of both versions, the least of their rounds, and the ratio."""
    here = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(old), commit], cwd=here, check=True)
        try:
            least = {place: [float("inf")] * len(SAME) for place in (old, here)}
            for place in (old, here) * rounds:
                done = subprocess.run(
                    [sys.executable, "-c", ASKED, json.dumps(SAME)], cwd=place, env=os.environ | {"PYTHONPATH": str(place)},
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
                least[place] = [min(pair) for pair in zip(least[place], map(float, done.stdout.split()), strict=True)]
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(old)], cwd=here, check=True)
    print("| question | older version, CPU [s] | now [s] | ratio |\n|---|--:|--:|--:|")
    for question, before, now in zip(SAME, least[old], least[here], strict=True):
        told = ", ".join(f"{name}={value}" for name, value in question.items())
        print(f"| `plan('azure', {told})` | {before:.2f} | {now:.2f} | {now / before:.2f} |")


def cpu_s(command: list[str]) -> float:
    """Processor time of a command [s]."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a markdown table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--against", metavar="COMMIT", help="an older version to compare with")
    if older := options.parse_args().against:
        against(older)
        return
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
