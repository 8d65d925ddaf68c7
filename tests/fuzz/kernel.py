"""Random questions to the kernel, compiled so that it stops at what C forbids (-fsanitize=address,undefined).

``python tests/fuzz/kernel.py --cases 100000 --seed 7``; ``--only 12`` repeats one. Of each replay: nothing is read or written where
it must not be, no arithmetic is undefined, every block of memory is given back, every request is answered, turned away or given up
(but for those that wait for a replica that stays down), and one in four is refused memory somewhere: it must then say so.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from planner.errors import FleetOptError, InputError
from planner.predict import kernel
from planner.predict.build import SOURCE
from planner.predict.checks import check
from tests.fuzz.kernel_cases import question

FLAGS = "-std=c11 -O1 -g -fno-math-errno -ffp-contract=off -shared -fPIC -Wall -Wextra -Wconversion -Werror"
FLAGS += " -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"

MEMORY = r"""
#include <stdlib.h>
int64_t fuzz_blocks = 0, fuzz_left = -1; /* blocks in use; allocations that succeed before one is refused, -1 = all do */
static void *fuzz_resize(void *at, size_t bytes) {
  if (fuzz_left == 0) { fuzz_left = -1; return NULL; }
  if (fuzz_left > 0) fuzz_left--;
  fuzz_blocks += !at;
  /* moved every time: what kept an old address is found out */
  void *new = malloc(bytes);
  if (at) { size_t old = malloc_usable_size(at); memcpy(new, at, old < bytes ? old : bytes); free(at); }
  return new;
}
static void fuzz_free(void *at) { fuzz_blocks -= at != NULL; free(at); }
#define RESIZE fuzz_resize
#define free fuzz_free
"""


def compiled(folder: Path) -> Path:
    """The kernel with sanitizers and an allocator that can be told to refuse."""
    source, library = folder / "kernel.c", folder / "kernel.so"
    text = SOURCE.read_text(encoding="utf-8")
    head = "#include <malloc.h>\n#include <stdint.h>\n#include <string.h>\n" + MEMORY
    source.write_text(head + text, encoding="utf-8")
    plain = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}  # the compiler need not be watched
    subprocess.run(["gcc", *FLAGS.split(), "-o", library, source], check=True, env=plain)
    return library


def faults(number: int, library: ctypes.CDLL) -> str:
    """What is wrong with a replay, '' = nothing."""
    asked = question(number)
    try:
        check(**{k: v for k, v in asked.items() if k != "gaps"})
    except InputError as error:
        return f"a question that is refused: {error}"
    blocks = ctypes.c_int64.in_dll(library, "fuzz_blocks")
    refused = ctypes.c_int64.in_dll(library, "fuzz_left")
    refused.value = ((number * 7919) % 60 or -1) if number % 4 == 3 else -1
    try:
        run = kernel.replay(**asked)
    except FleetOptError:
        return "" if number % 4 == 3 and blocks.value == 0 else f"no memory, {blocks.value} blocks are left"
    refused.value = -1
    if blocks.value:
        return f"{blocks.value} blocks are left"
    never = np.isnan(run.done_s) & (run.rejected + run.given_up == 0)
    down = any(outage.end_s == math.inf for outage in asked.get("outages", ()))
    if never.any() and run.ended_early < 0 and not down:
        return f"rows {np.flatnonzero(never)[:5]} were never answered"
    # of a replay that a limit has ended nothing is told of any row
    if run.ended_early < 0 and (np.any(run.first_s < run.sent_s) or np.any(run.done_s < run.first_s)):
        return "an answer before its question"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--only", type=int, help="repeat one")
    given = parser.parse_args()
    asan = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if asan not in os.environ.get("LD_PRELOAD", ""):  # it must be there before Python is
        options = "detect_leaks=0:abort_on_error=0:allocator_may_return_null=1"
        changed = {"LD_PRELOAD": asan, "ASAN_OPTIONS": options, "UBSAN_OPTIONS": "print_stacktrace=1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | changed)
    with tempfile.TemporaryDirectory() as folder:
        library = ctypes.CDLL(str(compiled(Path(folder))))
    kernel.load = lambda: library
    begun, asked, wrong = time.monotonic(), 0, 0
    for number in (
        range(given.seed * 10_000_000, given.seed * 10_000_000 + given.cases) if given.only is None else (given.only,)
    ):
        if time.monotonic() - begun > given.seconds:
            break
        asked += 1
        if bad := faults(number, library):
            wrong += 1
            sys.stdout.write(f"{number}: {bad}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{asked:,} replays, {wrong} with faults\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
