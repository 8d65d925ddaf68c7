"""How many planted faults the tests notice: a seeded sample of small changes to a room, each tried against the tests that reach it.

``python tests/mutate.py deploy monitor --sample 40 --seed 1`` prints the changes that no test noticed and writes the rooms' scores
with their intervals to ``tests/golden/mutation.csv``. Each change is made in a copy of the tree, in a temporary folder, never here.
Changes that alter nothing a user could see stand in ``tests/mutation_survivors.yaml`` with the reason, and do not count.
"""

from __future__ import annotations

import argparse
import csv
import functools
import gc
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

# what every run of tests imports, once: each is tried in a copy of this process, which has not seen the planner
import hypothesis
import numpy  # noqa: F401
import pytest
import rich.console  # noqa: F401
import scipy.optimize  # noqa: F401
import typer  # noqa: F401
import yaml
from mutations import Mutant, mutants_of
from scipy.special import betaincinv

if TYPE_CHECKING:
    import coverage  # .ci/long has it; this file is collected where it is not

ROOT = Path(__file__).resolve().parents[1]
SCORES, SURVIVORS = ROOT / "tests/golden/mutation.csv", ROOT / "tests/mutation_survivors.yaml"

ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "chance": (
        ["planner/size/sure.py"],
        ["tests/size/test_chance.py", "tests/size/test_sure.py", "tests/report/test_plan_page.py"],
    ),
    "kernel": (["planner/predict/kernel.c"], ["tests/predict/test_kernel.py"]),
    "report": (["planner/report"], ["tests/report", "tests/cli/test_pages.py"]),
    "question": (["planner/question"], ["tests/question", "tests/cli/test_mistakes_people_make.py"]),
}  # fmt: skip
"""Sources and tests of what is not simply a folder of both."""

QUICK_S = 12.0
"""Tests that take longer on their own are left out, as those marked long are."""

MOST_S = 40.0
"""Of tests tried against one change, the quickest first; and of those that run the fewest lines."""


@dataclass
class Reached:
    """What the tests of a room do where nothing is changed.

    Parameters
    ----------
    seconds
        Test -> seconds it takes; the quick ones that pass.
    lines
        File -> line -> tests that run it; those whose fixtures run it stand for all tests of their file.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)

    def of(self, mutant: Mutant) -> list[str]:
        """Tests to try, the quickest first: those that run the line, of a line of the module those that run its file."""
        by_line = self.lines.get(mutant.file, {})
        tests = {t for line in range(mutant.line, mutant.end + 1) for t in by_line.get(line, ())}
        if not tests:  # run at import, in another process, or never
            tests = {t for found in by_line.values() for t in found} or set(self.seconds)
        quickest = sorted(tests & self.seconds.keys(), key=lambda t: (self.seconds[t], t))
        # a line that hundreds of tests run is judged by few of them: as a rule by those that run little else
        narrowest = sorted(quickest, key=lambda t: self.reach[t])
        chosen: dict[str, None] = {}
        for order in (quickest, narrowest):
            left = MOST_S
            for test in order:
                if test not in chosen and (left > self.seconds[test] or not chosen):
                    chosen[test] = None
                    left -= self.seconds[test]
        return [*chosen]

    @functools.cached_property
    def reach(self) -> Counter[str]:
        """Test -> lines it runs."""
        return Counter(t for by_line in self.lines.values() for tests in by_line.values() for t in tests)


class Watch:
    """A plugin of the test runner: which test runs which line, and for how long."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured, self.seconds, self.failed = measured, defaultdict[str, float](float), set[str]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterable[None]:
        # what a test before it has kept would not be computed again, and its lines be thought idle
        for cached in gc.get_objects():
            if isinstance(cached, functools._lru_cache_wrapper) and cached.__module__.startswith("planner."):
                cached.cache_clear()
        self.measured.switch_context(item.nodeid + "|fixtures")
        begun = spent_s()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] += spent_s() - begun

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterable[None]:
        self.measured.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.failed.add(report.nodeid)


def spent_s() -> float:
    """Time of this process and of what it waited for on processors [s]: the clock tells what else the machine does."""
    return sum(os.times()[:4])


def apart(copy: Path, run: Callable[[], int], limit_s: float) -> int | None:
    """The exit code of `run` in a copy of this process that lies in the copied tree; ``None`` where it takes longer on a processor,
    or ten times as long by the clock."""
    child = os.fork()
    if not child:
        code = 70
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit_s), math.ceil(limit_s)))
            os.chdir(copy)
            sys.path.insert(0, str(copy))
            os.environ["PYTHONPATH"] = str(copy)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1):
                os.dup2(null, stream)
            code = run()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    until = time.monotonic() + 10.0 * limit_s
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


class Unshrunk:
    """A plugin of the test runner: what fails is not made smaller, which takes longer than to find it."""

    def pytest_sessionstart(self) -> None:
        phases = [p for p in hypothesis.Phase if p not in (hypothesis.Phase.shrink, hypothesis.Phase.explain)]
        hypothesis.settings.register_profile("unshrunk", parent=hypothesis.settings(), phases=phases)
        hypothesis.settings.load_profile("unshrunk")


def pytest_in(arguments: list[str], plugins: list[object] | None = None) -> int:
    """The test runner on the copied tree."""
    return int(
        pytest.main(
            [
                *arguments,
                "-q",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                "--tb=no",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
            ],
            [Unshrunk(), *(plugins or ())],
        )
    )


def watched(copy: Path, sources: list[str], tests: list[str]) -> Reached:
    """Run the tests once as the tree is."""
    import coverage

    data, told = copy / "reached", copy / "seconds.yaml"

    def run() -> int:
        measured = coverage.Coverage(data_file=data, source=[str(copy / "planner")])
        watch = Watch(measured)
        measured.start()
        code = pytest_in(tests, [watch])
        measured.stop()
        measured.save()
        quick = {t: s for t, s in watch.seconds.items() if t not in watch.failed and s <= QUICK_S}
        told.write_text(yaml.safe_dump({"failed": code not in (0, 1), "seconds": quick}))
        return 0

    if apart(copy, run, 3600.0) != 0 or (known := yaml.safe_load(told.read_text()))["failed"]:
        raise SystemExit(f"the tests of {', '.join(tests)} do not run in {copy}")
    reached = Reached(known["seconds"])
    found = coverage.CoverageData(str(data))
    found.read()
    files: dict[str, list[str]] = defaultdict(list)
    for test in reached.seconds:
        files[test.partition("::")[0]].append(test)
    for path in found.measured_files():
        by_line: dict[int, set[str]] = {}
        for line, contexts in found.contexts_by_lineno(path).items():
            tests_of = {c for c in contexts if c and not c.endswith("|fixtures")}
            for context in contexts:
                if context.endswith("|fixtures"):
                    tests_of.update(files[context.partition("::")[0]])
            # what is run at import tells on everything, whoever else imports it anew
            by_line[line] = tests_of if "" not in contexts else set()
        reached.lines[os.path.relpath(path, copy)] = by_line
    return reached


def noticed(copy: Path, mutant: Mutant, reached: Reached) -> bool:
    """Whether a test fails, or never ends, where the change is made."""
    path = copy / mutant.file
    sound = path.read_bytes()
    tests = reached.of(mutant)
    path.write_bytes(mutant.applied(sound))
    try:
        code = apart(copy, lambda: pytest_in([*tests, "-x"]), 30.0 + 4.0 * sum(reached.seconds[t] for t in tests))
    finally:
        path.write_bytes(sound)
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise SystemExit(f"{mutant}: the test runner found no tests")
    # a change may also end the runner itself
    return code != 0


def interval(killed: int, mutants: int) -> tuple[float, float]:
    """Ends of the interval of Clopper and Pearson that holds a share in 95 of 100."""
    low = float(betaincinv(killed, mutants - killed + 1, 0.025)) if killed else 0.0
    return low, float(betaincinv(killed + 1, mutants - killed, 0.975)) if killed < mutants else 1.0


def copied() -> Path:
    """A copy of the tree, whose compiled files are told from their sources by what these hold, not by when they were written."""
    copy = Path(tempfile.mkdtemp(prefix="mutate-"))
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", copy / "planner"], check=True
    )
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="+", help=f"folders of planner/, or {', '.join(ROOMS)}")
    parser.add_argument("--sample", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--match", default="", help="only changes whose file, line and words match this; no score is written"
    )
    given = parser.parse_args()
    shared = os.environ.get("FLEETOPT_SHARED_DATA") or str(ROOT.parent / "shared" / "data")
    if Path(shared).is_dir():
        os.environ["FLEETOPT_SHARED_DATA"] = str(Path(shared).resolve())
    excused = {(e["file"], e["line"], e["becomes"]) for e in yaml.safe_load(SURVIVORS.read_text()) or ()}
    copy = copied()
    try:
        for room in given.rooms:
            sources, tests = ROOMS.get(room) or ([f"planner/{room}"], [f"tests/{room}", f"planner/{room}"])
            paths = sorted(
                p for s in sources for p in ([ROOT / s] if (ROOT / s).is_file() else (ROOT / s).rglob("*.py"))
            )
            every = [m for p in paths for m in mutants_of(p.relative_to(ROOT).as_posix(), p.read_bytes())]
            random.Random(f"{room} {given.seed}").shuffle(every)
            one_a_line = {(m.file, m.line): m for m in reversed(every)}.values()
            chosen = [m for m in reversed(one_a_line) if re.search(given.match, str(m))]
            chosen = [m for m in chosen if m.key not in excused][: given.sample]
            reached, begun, killed = watched(copy, sources, tests), time.monotonic(), 0
            for mutant in chosen:
                if noticed(copy, mutant, reached):
                    killed += 1
                else:
                    sys.stdout.write(f"{mutant}\n")
                    sys.stdout.flush()
            low, high = interval(killed, len(chosen))
            sys.stdout.write(
                f"{room}: {killed} of {len(chosen)} noticed, {killed / max(len(chosen), 1):.0%} ({low:.0%} to {high:.0%}); "
                f"{len(reached.seconds)} tests, {time.monotonic() - begun:.0f} s\n"
            )
            if not given.match:
                write_score(
                    [room, given.seed, len(chosen), killed, *(f"{x:.3f}" for x in (killed / len(chosen), low, high))]
                )
    finally:
        shutil.rmtree(copy)


def write_score(row: list[object]) -> None:
    """The row of a room in the table of scores, in place of its last."""
    rows = {r[0]: r for r in csv.reader(SCORES.read_text().splitlines()[1:])} if SCORES.exists() else {}
    rows[str(row[0])] = [str(x) for x in row]
    with SCORES.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerows(
            [["room", "seed", "mutants", "noticed", "share", "low", "high"], *(rows[k] for k in sorted(rows))]
        )


if __name__ == "__main__":
    main()
