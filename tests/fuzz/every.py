"""Every option of every command and every number and text of every file, with each of the values that break programs.

``python tests/fuzz/every.py`` tries them all, ``--part 3/8`` every eighth of them, ``--only 1234`` repeats one. Where
the fuzzer draws, this goes down the tables, so that an option or a key without bounds is found the day it is added. What a run
must keep is the fuzzer's.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzzer import EACH, SLOW, Case, Maker, faults_apart, found, in_folder, invoke, options_of, served, stopping, warm
from inputs import COMMANDS, QUICK, SESSIONS
from question.test_options import LENGTHS, WRITTEN, flags

NUMBERS = (
    "-1", "0", "4.9e-324", "1e-15", "1e-9", "0.5", "1e6", "1e9", "1e12", "1e15", "99999999999999999999", "1.7976931348623157e308",
    "9" * 400, "nan",
)  # fmt: skip
"""What may stand where a number does; some of them are valid somewhere."""

WORDS = ("", "\ud800", "a\nb", "\x1b[2J", "=", ",", ":", "0", "nan", "..", "/dev/null", "x" * 5000, "\u0661\u0662")
"""What may stand where a text does."""

IN_FILES = (*NUMBERS, "null", "[1]", "{a: 1}", "2024-01-01", ".inf")
"""What may stand where a file has a number."""

MIXED = ["--slo", "20", "--tpot", "1s", "--no-options", "--rate", "2"]
BASES: tuple[tuple[str, list[str]], ...] = (
    ("plan", ["plan", "--cdf", "mine.csv", *QUICK, "--no-options"]),
    ("plan", ["plan", "--cdf", "mine.csv", *MIXED]),
    ("plan", ["plan", "--cdf", SESSIONS, "--method", "occupancy", *MIXED]),
    ("plan", ["plan", "--cdf", "trace.csv", "--shape", "disaggregated", *MIXED]),
)
"""Beside the fuzzer's commands: the ways through the planner that options take."""

OTHERS = {
    "--rates": "2", "--set": "rate=10,20", "--zip": "rate=10,20", "--hours": "hours.csv", "--startup": "60s", "--dwell": "10min",
    "--policy": "policy.yaml", "--months": "3", "--lead-time": "7d", "--monthly-growth": "10%", "--buffer": "10%",
    "--interval": "60s", "--window": "30min", "--reserved": "2", "--preemptions": "0.1", "--shortfall": "1", "--clock": "15s",
    "--types": "100:20=1,900:100=2", "--segments": "100,1000", "--select": "isl=128,tp=1", "--points": "20", "--isl": "2k",
    "--boundary": "2048", "--gamma": "1.5", "--map": "input=input_tokens", "--compressible": "conv=1,code=0", "--scale-input": "2",
    "--scale-output": "2", "--profile": "fleetopt-paper", "--for": "2h", "--content": "log", "--co2": "400", "--pue": "1.2",
}  # fmt: skip
"""Values that work for options that are not a plan's; all others get one number."""

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?=$|[^\w.]|[a-zA-Z%]{1,5}\b)")


def values(flag: str, words: bool = True) -> Iterator[list[str]]:
    """An option with each number of a value that works in turn replaced by those that may not; `words` as well."""
    name = flag.removeprefix("--").replace("-", "_")
    given = {**WRITTEN, **LENGTHS}.get(name)
    sound = flags(name, given)[:2] if given is not None and given is not True else [flag, OTHERS.get(flag, "1")]
    told = sound[-1]
    for place in NUMBER.finditer(told):
        for bad in NUMBERS:
            yield [sound[0], told[: place.start()] + bad + told[place.end() :]]
    for bad in WORDS if words else ():
        yield [sound[0], bad]


def places(text: str) -> list[tuple[int, int]]:
    """Where a file has numbers; of rows that look alike, those of the first."""
    numbers, seen, at = [], set(), 0
    for line in text.splitlines(keepends=True):
        for k, place in enumerate(NUMBER.finditer(line)):
            alike = (re.sub(r"\d+", "#", line)[:60], k)
            if alike not in seen:
                seen.add(alike)
                numbers.append((at + place.start(), at + place.end()))
        at += len(line)
    return numbers


TEXT = re.compile(r"[A-Za-z_][\w.-]*")


def option_cases(sound: dict[str, str]) -> Iterator[Case]:
    """Every option of every command."""
    tried: set[tuple[str, str]] = set()
    files = found(sound, ())
    # a command's options mean the same whichever of its files it reads
    first = {c: a for c, a, _ in reversed(COMMANDS) if c != "plan"}
    for command, arguments in [*BASES, *first.items()]:
        for flag in options_of(command):
            # what a schedule asks of a plan, the plan's own base asks
            if flag in SLOW or flag == "--no-options" or (command == "schedule" and ("plan", flag) in tried):
                continue
            for words in values(flag, (command, flag) not in tried):
                yield Case([*arguments, *words], files)
            tried.add((command, flag))


SHARES = {"plan.yaml": 7, "points.jsonl": 10, "profile.yaml": 2, "../own/mine.yaml": 2}
"""Of files with hundreds of places that many commands read, each command takes one value in so many, others in turn."""


def file_cases(sound: dict[str, str]) -> Iterator[Case]:
    """Every number of every file, and its words."""
    for turn, (_, arguments, targets) in enumerate(COMMANDS):
        for file in targets[:1]:
            text, files, share = sound[file], found(sound, targets), SHARES.get(file, 1)
            for k, (start, end) in enumerate(places(text)):
                for j, bad in enumerate(IN_FILES):
                    if (k + j + turn) % share == 0:
                        yield Case(arguments, {**files, file: (text[:start] + bad + text[end:]).encode()})
            seen = set()
            for place in TEXT.finditer(text):
                if place.group() in seen:
                    continue
                seen.add(place.group())
                for j, bad in enumerate(WORDS[1:4] if len(seen) % 3 else WORDS):
                    if (len(seen) + j + turn) % share == 0:
                        made = text[: place.start()] + bad + text[place.end() :]
                        yield Case(arguments, {**files, file: made.encode("utf-8", "surrogatepass")})


def cases(what: str = "all", sound: dict[str, str] | None = None) -> Iterator[Case]:
    """All of them, or of ``options`` or ``files`` alone, always in the same order; of the files in `sound`, where they are made."""
    sound = sound or Maker().sound
    if what != "files":
        yield from option_cases(sound)
    if what != "options":
        yield from file_cases(sound)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="1/1", help="K/N: every Nth, from the Kth")
    parser.add_argument("--what", choices=("all", "options", "files"), default="all")
    parser.add_argument("--match", default="", help="only cases whose arguments match this regular expression")
    parser.add_argument("--only", type=int, help="repeat one and show what it does")
    parser.add_argument("--count", action="store_true", help="say how many there are")
    given = parser.parse_args()
    first, step = map(int, given.part.split("/"))
    sound = Maker().sound

    def chosen() -> Iterator[tuple[int, Case]]:
        for number, case in enumerate(cases(given.what, sound)):
            mine = number % step == first - 1 if given.only is None else number == given.only
            if mine and re.search(given.match, " ".join(case.arguments)):
                yield number, case

    if given.count:
        sys.stdout.write(f"{sum(1 for _ in chosen()):,} cases\n")
        return
    if given.only is not None:
        for _, case in chosen():
            with in_folder(case.files), served(case) as arguments:
                sys.stdout.write(f"{arguments}\n{invoke(arguments, case.files['stdin'])}\n")
    warm((arguments for _, arguments in [*BASES, *((c, a) for c, a, _ in COMMANDS)]), sound)
    begun, tried, failed = time.monotonic(), 0, 0
    made: list[tuple[int, Case]] = []
    signal.signal(signal.SIGTERM, stopping(lambda: tried))

    def counted() -> Iterator[Case]:
        for number, case in chosen():
            made.append((number, case))
            yield case

    for why in faults_apart(counted()):
        number, case = made.pop(0)
        tried += 1
        if tried % EACH == 0:
            sys.stderr.write(f"{tried:,} cases, to number {number:,}, after {time.monotonic() - begun:.0f} s\n")
        if why is not None:
            failed += 1
            sys.stdout.write(f"{number}: {shown(case, sound)}: {why}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{tried:,} cases, {failed} failures\n")
    sys.exit(bool(failed))


def shown(case: Case, sound: dict[str, str]) -> str:
    """The arguments of a case, and where its files differ from the sound ones."""
    changed = [
        f"{name} {content[max(k - 40, 0) : k + 40]!r}"
        for name, content in case.files.items()
        for old in [sound[name].encode()]
        if content != old
        for k in [next((i for i, (a, b) in enumerate(zip(content, old, strict=False)) if a != b), 0)]
    ]
    return f"{[a if len(a) < 120 else a[:60] + '...' for a in case.arguments]} {changed}"


if __name__ == "__main__":
    main()
