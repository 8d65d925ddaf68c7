"""Worker processes and the one that started them."""

import contextlib
import os
import subprocess
import sys
import time

import pytest

PARENT = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from planner.shared.cores import end_with_parent

if __name__ == "__main__":
    with ProcessPoolExecutor(2, initializer=end_with_parent) as pool:
        found = {pool.submit(os.getpid).result()}
        found |= set(pool._processes)
        print(*found, flush=True)
        time.sleep(600)
"""


def _alive(pid: int) -> bool:
    """Whether a process runs: one that has ended and was not waited for does not."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked at in /proc")
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=paths) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert workers and all(map(_alive, workers))
        parent.kill()
    end = time.monotonic() + 60.0  # only a hang takes so long
    while any(map(_alive, workers)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(_alive, workers))
