"""The way of one question from options to plan: how many files, kinds of record and lines somebody meets who follows it."""

from __future__ import annotations

import re
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import planner as fo
from tools.code_lines import code_lines

HOUSE = Path(fo.__file__).parent
ROOT = f"{HOUSE}/"
WORKLOAD = HOUSE.parent / "workloads" / "azure.csv"

CEILINGS = {
    "files": 71,
    "functions": 680,
    "kinds of record": 53,
    "jumps between files": 490,
    "code lines": 13300,
    "names of a rate": 1,
}
"""What the way has today, jumps to tens and lines to hundreds; only ever to be lowered.

Aimed at are 20 kinds of record, 10,000 lines and one name of a rate.
"""

RATE = re.compile(r"(\w+_)?rate(_per_s)?")

USERS = re.compile(r"(PlanInputs|Plan|PoolPlan|Workload\.from_\w+)")
"""Whose words are those of people and of their files, and stay as they are: options, plans, how a workload is made of arrays."""


class Way:
    """What is entered while a profile function is set: code of planner/, who calls whom, and the records that are made."""

    def __init__(self) -> None:
        self.calls: set[tuple[CodeType | None, CodeType]] = set()
        self.records: set[type] = set()

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event != "call":
            return
        # what a comprehension does, its function does
        if code.co_filename.startswith(ROOT) and code.co_name[0] != "<":
            self.calls.add((self.caller(frame), code))
        # what dataclasses and named tuples generate lies in no file, but for one that has an __init__ of its own
        if code.co_name in ("__init__", "__new__", "<lambda>"):
            made = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
            kind: Any = made if isinstance(made, type) else type(made)
            if kind.__module__.startswith("planner.") and (is_dataclass(kind) or hasattr(kind, "_fields")):
                self.records.add(kind)

    def caller(self, frame: FrameType) -> CodeType | None:
        """The code of planner/ that a call comes from, through libraries where it passes them."""
        back = frame.f_back
        while back is not None and not back.f_code.co_filename.startswith(ROOT):
            back = back.f_back
        return None if back is None else back.f_code

    def counted(self) -> dict[str, int]:
        codes = {code for _, code in self.calls}
        files = {code.co_filename for code in codes}
        own = [code for code in codes if not USERS.fullmatch(code.co_qualname)]
        names = {n for code in own for n in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}
        inner = [kind for kind in self.records if is_dataclass(kind) and not USERS.fullmatch(kind.__name__)]
        names |= {f.name for kind in inner for f in fields(kind) if f.type != "bool"}
        jumps = {
            (one.co_filename, other.co_filename, other.co_qualname)
            for one, other in self.calls
            if one is not None and one.co_filename != other.co_filename
        }
        return {
            "files": len(files),
            "functions": len(codes),
            "kinds of record": len(self.records),
            "jumps between files": len(jumps),
            "code lines": sum(code_lines(Path(name).read_text(encoding="utf-8")) for name in files),
            "names of a rate": len({name for name in names if RATE.fullmatch(name)}),
        }


def test_the_way_of_a_question_does_not_grow(tmp_path: Path) -> None:
    """A plan of a few thousand requests at 3 requests/s: asked once before, so that what is loaded once is not on the way."""
    trace = tmp_path / "trace.csv"
    with WORKLOAD.open(encoding="utf-8") as lines:
        trace.write_text("".join(line for line, _ in zip(lines, range(5000), strict=False)), encoding="utf-8")

    def ask() -> None:
        fo.plan(str(trace), slo=0.5, rate=3, choices=False)

    ask()
    way, before = Way(), sys.getprofile()
    sys.setprofile(way)
    try:
        ask()
    finally:
        sys.setprofile(before)
    found = way.counted()
    assert {name: count for name, count in found.items() if count > CEILINGS[name]} == {}, found
