"""Kill commands that write at random moments (``kill -9``): a file holds what it held or what was to be written, whole.

``python tests/fuzz/killed.py --times 200``. Plans, imported workloads and price lists are written over others in turn; a sweep with
``--resume`` keeps every point it had. After the last kill one run of each must leave nothing of the others behind. Each
command runs in a copy of this process (fork), so that most of its time is its work and its writing, not its start.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

PLAN = ["plan", "--method", "mgc", "--slo", "20", "--no-options", "-o", "plan.yaml"]
SWEEP = ["what-if", "base.yaml", "--set", "rate=10,20,30,40,50,60", "--resume", "points.jsonl", "-o", "sweep.csv"]
PRICES = "gpu,vendor,region,term,usd_per_gpu_hour,date,source\n{gpu},acme,,on-demand,{usd},2026-10-01,mine\n"


@dataclass
class Target:
    """A file, the commands that write it in turn, and what it may hold."""

    file: str
    commands: Sequence[Sequence[str]]
    whole: list[bytes] = field(default_factory=list)
    seconds: float = 0.0


def started(arguments: Sequence[str], folder: Path) -> int:
    """Process number of a copy of this process that runs a command in a folder, silently."""
    child = os.fork()
    if child:
        return child
    try:
        os.chdir(folder)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        command(arguments)
    finally:
        os._exit(0)


def command(arguments: Sequence[str]) -> None:
    """Run a command here, where what it needs is imported."""
    from planner.cli.main import run

    with contextlib.suppress(SystemExit):
        run([*arguments])


def finished(arguments: Sequence[str], folder: Path) -> float:
    """Run to the end; how long it took [s]."""
    begun = time.monotonic()
    os.waitpid(started(arguments, folder), 0)
    return time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    dice = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["FLEETOPT_PRICES"] = str(folder / "prices")
        for k in (1, 2):
            rows = "".join(f"{j / 7:.3f},{100 + 13 * j % 900},{5 + k * j % 90}\n" for j in range(20_000))
            (folder / f"trace{k}.csv").write_text("timestamp,input_tokens,output_tokens\n" + rows)
            (folder / f"mine{k}").mkdir()
            (folder / f"mine{k}" / "mine.csv").write_text(PRICES.format(gpu="l4-24gb", usd=k))
        imports = [["workload", "import", f"trace{k}.csv", "-o", "mine.csv"] for k in (1, 2)]
        targets = [
            Target("plan.yaml", [[*PLAN, "--rate", str(rate)] for rate in (20, 400)]),
            Target("mine.csv", imports),
            Target("prices/acme.csv", [["prices", "import", f"mine{k}/mine.csv"] for k in (1, 2)]),
        ]
        os.chdir(folder)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            for target in targets:
                command(target.commands[0])
        for target in targets:
            for arguments in target.commands:
                target.seconds = finished(arguments, folder)
                target.whole.append((folder / target.file).read_bytes())
            assert len(set(target.whole)) == 2, f"{target.file}: both commands write the same"
        (folder / "base.yaml").write_bytes(targets[0].whole[0])
        sweep = finished(SWEEP, folder)
        result, kept = (folder / "sweep.csv").read_bytes(), 0
        (folder / "points.jsonl").unlink()
        killed = lost = 0
        for k in range(given.times):
            target = targets[k % 4] if k % 4 < 3 else None
            run = started(SWEEP if target is None else target.commands[k // 4 % 2], folder)
            time.sleep((sweep if target is None else target.seconds) * dice.uniform(0.0, 1.05))
            os.kill(run, signal.SIGKILL)
            _, status = os.waitpid(run, 0)
            killed += os.WIFSIGNALED(status)
            if target is not None:
                lost += (folder / target.file).read_bytes() not in target.whole
                continue
            points = folder / "points.jsonl"
            lines = points.read_bytes().count(b"\n") if points.exists() else 0
            lost += lines < kept or (folder / "sweep.csv").read_bytes() != result
            kept = lines
            if kept >= 5:
                points.unlink()
                kept = 0
        # what killed runs left is removed once it is a minute old
        for left in folder.rglob(".fleetopt-*"):
            os.utime(left, (1, 1))
        for target in targets:
            finished(target.commands[0], folder)
        finished(SWEEP, folder)
        lost += (folder / "sweep.csv").read_bytes() != result
        rest = [str(p.relative_to(folder)) for p in folder.rglob(".fleetopt-*")]
        sys.stdout.write(f"{given.times} runs, {killed} killed, {lost} files lost, left behind: {rest}\n")
        os.chdir("/")
        sys.exit(bool(lost or rest))


if __name__ == "__main__":
    main()
