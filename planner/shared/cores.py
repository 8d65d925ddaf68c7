"""How many cores there are to work on, processes that answer, and what worker processes owe the one that started them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from planner.errors import CalibrationError


def cores() -> int:
    """Cores this process may use, at least one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent() -> None:
    """Leave when the process that started this one is gone, however it ended: the initializer of pools of workers.

    A pool tells its workers to end; one that is killed cannot, and they would wait for work for ever.
    """
    import threading
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="ends with its parent").start()


def answers_of(module: str, jobs: Sequence[Any], longest_s: float, what: str, hint: str | None = None) -> list[Any]:
    """What processes that run a module of ours answer, each given one job, both as JSON; all are gone afterwards.

    Parameters
    ----------
    module
        Reads its job from standard input, and prints the answer.
    jobs
        One a process.
    longest_s
        Bound of it all [s].
    what, hint
        What they do, and what to do where they do not, for messages.

    Raises
    ------
    CalibrationError
        When a process fails, ends or does not answer in time.
    """
    import contextlib
    import json
    import subprocess
    import sys
    from concurrent.futures import ThreadPoolExecutor

    from planner.shared.documents import printable

    command, pipe = [sys.executable, "-m", module], subprocess.PIPE
    with contextlib.ExitStack() as ended, ThreadPoolExecutor(len(jobs)) as speakers:
        started = (subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in jobs)
        running = [ended.enter_context(process) for process in started]
        try:
            told = [
                speakers.submit(process.communicate, json.dumps(job), longest_s)
                for process, job in zip(running, jobs, strict=True)
            ]
            answers = [one.result() for one in told]
        except subprocess.TimeoutExpired:
            raise CalibrationError(f"{what} took more than {longest_s:g} s", hint) from None
        finally:
            for process in running:
                process.kill()
    for process, (_, words) in zip(running, answers, strict=True):
        if process.returncode != 0:
            why = words.strip().splitlines()[-1:] or ["without a word"]
            raise CalibrationError(f"{what}: a process ended by itself ({printable(why[0])})", hint)
    return [json.loads(answer) for answer, _ in answers]
