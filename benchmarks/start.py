"""Cold start of the main job against importing what it stands on, in one run: medians and their ratio.

Run by hand, with an installed wheel: ``python benchmarks/start.py``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

BASELINE = [sys.executable, "-c", "import numpy, typer, rich.table"]


def median_s(command: list[str], repeats: int = 11) -> float:
    """Median wall time of a command [s]."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Print a markdown table."""
    installed = Path(sys.executable).with_name("fleetopt")
    fleetopt = [str(installed)] if installed.exists() else [sys.executable, "-m", "planner.cli.main"]
    base = median_s(BASELINE)
    print("| command | median [s] | times the imports |\n|---|---|---|")
    print(f"| `import numpy, typer, rich.table` | {base:.2f} | 1 |")
    for arguments in (
        ["--help"],
        ["plan", "--cdf", "azure.csv", "--slo", "0.5", "--no-options"],
        ["plan", "--cdf", "azure.csv", "--slo", "0.5"],
        ["plan", "--slo", "0.5", "--method", "mgc"],
    ):
        seconds = median_s([*fleetopt, *arguments])
        print(f"| `fleetopt {' '.join(arguments)}` | {seconds:.2f} | {seconds / base:.1f} |")


if __name__ == "__main__":
    main()
