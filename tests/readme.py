"""Run the commands of README as printed, in their order, from an empty directory: ``python tests/readme.py``.

``fleetopt`` is the one on the path: a fresh environment's says what a new user meets (`.ci/long` does that), and the Python shown
runs in it too. Commands that need a GPU or a running fleet, or install something, are told and passed over.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
NOT_HERE = ("pip install", "calibrate", "URL")


def commands() -> Iterator[str]:
    """What is run first, lines of the shell blocks under Next, the commands of the table, each once, and the Python."""
    text = README.read_text(encoding="utf-8")
    first = re.search(r"\.venv/bin/(fleetopt .*)$", text[: text.index("<!-- end -->")], re.MULTILINE)
    assert first is not None
    yield first[1]
    following = text[text.index("## Next") :]
    shown = following[: following.index("The same from Python:")]
    for block in re.findall(r"```bash\n(.*?)```", shown, re.DOTALL):
        yield from (line.strip() for line in block.splitlines() if line.strip())
    for row in re.findall(r"^\|.*\|$", shown, re.MULTILINE):
        yield from re.findall(r"`(fleetopt [^`]*)`", row.rpartition("|")[0].rpartition("|")[2])
    (shown,) = re.findall(r"```python\n(.*?)```", following, re.DOTALL)
    yield f"$(dirname $(command -v fleetopt))/python - <<'END'\n{shown}END"


def main() -> None:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for line in commands():
            if any(word in line for word in NOT_HERE):
                print(f"   -       {line}")
                continue
            start = time.perf_counter()
            done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, check=False)
            print(f"{done.returncode:>4} {time.perf_counter() - start:5.1f} s {line}", flush=True)
            if done.returncode:
                failed += 1
                print(done.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    main()
