"""The kernel compiled by zig for other machines than this one: ``python benchmarks/kernel_targets.py [SOURCE]``.

Prints markdown: bytes of each library, and seconds to make it. Needs the package ziglang.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from planner.predict.build import SOURCE, compiled

ELF, MACH_O, PE = b"\x7fELF", b"\xcf\xfa\xed\xfe", b"MZ"
TARGETS = {
    "x86_64-linux-gnu.2.17": ELF,
    "aarch64-linux-gnu.2.17": ELF,
    "x86_64-linux-musl": ELF,
    "aarch64-linux-musl": ELF,
    "x86_64-macos.11.0": MACH_O,
    "aarch64-macos.11.0": MACH_O,
    "x86_64-windows-gnu": PE,
    "aarch64-windows-gnu": PE,
}
"""Target of zig -> how its libraries begin."""


def main(source: Path) -> None:
    """Compile for every target."""
    print("| target | bytes | s |\n|---|---:|---:|")
    for target, magic in TARGETS.items():
        os.environ["CC"] = f"{sys.executable} -m ziglang cc -target {target}"
        begun = time.perf_counter()
        made = compiled(source)
        assert made.startswith(magic), f"{target}: not a library of that system"
        print(f"| {target} | {len(made):,} | {time.perf_counter() - begun:.1f} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else SOURCE)
