"""Every option of every command and every number and text of every file, with each of the values that break programs.

``python tests/fuzz/every.py`` tries them all, ``--part 3/8`` every eighth of them, ``--only 1234`` repeats one. Where
the fuzzer draws, this goes down the tables, so that an option or a key without bounds is found the day it is added. What a run
must keep is the fuzzer's.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzzer import COMMANDS, QUICK, SESSIONS, SLOW, Case, Maker, fault_apart, in_folder, invoke, options_of
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
    found, seen, at = [], set(), 0
    for line in text.splitlines(keepends=True):
        for k, place in enumerate(NUMBER.finditer(line)):
            alike = (re.sub(r"\d+", "#", line)[:60], k)
            if alike not in seen:
                seen.add(alike)
                found.append((at + place.start(), at + place.end()))
        at += len(line)
    return found


TEXT = re.compile(r"[A-Za-z_][\w.-]*")


def option_cases(sound: dict[str, bytes]) -> Iterator[Case]:
    """Every option of every command."""
    tried: set[tuple[str, str]] = set()
    for command, arguments in [*BASES, *((c, a) for c, a, _ in COMMANDS if c != "plan")]:
        for flag in options_of(command):
            # what a schedule asks of a plan, the plan's own base asks
            if flag in SLOW or flag == "--no-options" or (command == "schedule" and ("plan", flag) in tried):
                continue
            for words in values(flag, (command, flag) not in tried):
                yield Case([*arguments, *words], sound)
            tried.add((command, flag))


def file_cases(sound: dict[str, bytes]) -> Iterator[Case]:
    """Every number of every file, and its words."""
    for turn, (_, arguments, targets) in enumerate(COMMANDS):
        for file in targets[:1]:
            text = sound[file].decode()
            for k, (start, end) in enumerate(places(text)):
                for j, bad in enumerate(IN_FILES):
                    # of a plan's thousands, each command takes its share
                    if file != "plan.yaml" or (k + j + turn) % 4 == 0:
                        yield Case(arguments, {**sound, file: (text[:start] + bad + text[end:]).encode()})
            seen = set()
            for place in TEXT.finditer(text):
                if place.group() in seen:
                    continue
                seen.add(place.group())
                for bad in WORDS[1:4] if len(seen) % 3 else WORDS:
                    made = text[: place.start()] + bad + text[place.end() :]
                    yield Case(arguments, {**sound, file: made.encode("utf-8", "surrogatepass")})


def cases(what: str = "all") -> Iterator[Case]:
    """All of them, or of ``options`` or ``files`` alone, always in the same order."""
    sound = {name: text.encode() for name, text in Maker().sound.items()}
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
    # what the commands import is not imported again by every copy
    sound = Maker().sound
    for _, arguments in [*BASES, *((c, a) for c, a, _ in COMMANDS)]:
        with in_folder(sound):
            invoke(arguments)
    tried = failed = 0
    for number, case in enumerate(cases(given.what)):
        if (number % step != first - 1 and given.only is None) or not re.search(given.match, " ".join(case.arguments)):
            continue
        if given.only not in (None, number):
            continue
        tried += 1
        if given.count:
            continue
        if given.only is not None:
            sys.stdout.write(f"{case.arguments}\n")
            with in_folder(case.files):
                sys.stdout.write(f"{invoke(case.arguments)}\n")
        begun = time.monotonic()
        why = fault_apart(case)
        took = time.monotonic() - begun
        if why is not None:
            failed += 1
            changed = [
                f"{name} {content[max(k - 40, 0) : k + 40]!r}"
                for name, content in case.files.items()
                for old in [sound[name].encode()]
                if content != old and name in case.arguments
                for k in [next((i for i, (a, b) in enumerate(zip(content, old, strict=False)) if a != b), 0)]
            ]
            shown = [a if len(a) < 120 else a[:60] + "..." for a in case.arguments]
            sys.stdout.write(f"{number}: {shown} {changed}: {why} ({took:.1f} s)\n")
            sys.stdout.flush()
    sys.stdout.write(f"{tried:,} cases, {failed} failures\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
