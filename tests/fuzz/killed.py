"""Kill a plan that writes over another at random moments: the file holds the old plan or the new one, whole.

``python tests/fuzz/killed.py --times 200``; after the last kill one run must leave nothing of the others behind.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLAN = [sys.executable, "-m", "planner.cli.main", "plan", "--method", "mgc", "--slo", "20", "-o", "plan.yaml"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    dice = random.Random(given.seed)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def start(rate: int) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [*PLAN, "--rate", str(rate)],
                cwd=folder,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

        texts = {}
        for rate in (20, 400):
            start(rate).wait()
            texts[rate] = (folder / "plan.yaml").read_text()
        begun = time.monotonic()
        start(20).wait()
        whole = time.monotonic() - begun
        killed = lost = 0
        for k in range(given.times):
            run = start((20, 400)[k % 2])
            # most moments near the end, where the file is written
            time.sleep(whole * (dice.random() if k % 4 == 0 else dice.uniform(0.85, 1.05)))
            killed += run.poll() is None
            run.send_signal(signal.SIGKILL)
            run.wait()
            lost += (folder / "plan.yaml").read_text() not in texts.values()
        # what killed runs left is removed once it is a minute old
        for left in folder.glob(".fleetopt-*"):
            os.utime(left, (1, 1))
        start(20).wait()
        left = [p.name for p in folder.iterdir() if p.name != "plan.yaml"]
        sys.stdout.write(f"{given.times} runs, {killed} killed, {lost} plans lost, left behind: {left}\n")
        sys.exit(bool(lost or left))


if __name__ == "__main__":
    main()
