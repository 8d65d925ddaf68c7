"""As many of a list of tasks as fit in a time, on every core."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from planner.cores import cores

MOST_WORKERS = 8

T = TypeVar("T")


def within(
    seconds: float,
    tasks: Sequence[Callable[[], T]],
    progress: Callable[[int, int], None] | None = None,
    surely: int = 0,
) -> list[T | None]:
    """Answers of the tasks in their order; ``None`` for those that the time did not reach.

    Tasks start in order, on as many processes as there are cores; what runs when the time is over is ended, unless nothing is
    answered yet: then the first answer is waited for, at most as long again. Where the
    process cannot be copied (no ``fork``, other threads, one core) they run here one after the other, and none is begun
    that would take longer than is left, going by the mean so far.

    Parameters
    ----------
    seconds
        Time allowed [s].
    tasks
        What to do; answers must be picklable.
    progress
        Told (done, all) after every task.
    surely
        So many of the first tasks are answered however long they take.
    """
    tell = progress or (lambda done, total: None)
    tell(0, len(tasks))
    if seconds <= 0.0 and surely == 0:
        return [None] * len(tasks)
    workers = min(cores(), len(tasks), MOST_WORKERS)
    # a copy of a process with threads may hold their locks for ever; macOS libraries do not survive a copy
    if workers < 2 or threading.active_count() > 1 or sys.platform != "linux":
        return _here(seconds, tasks, tell, surely)
    return _copied(seconds, tasks, workers, tell, surely)


def _here(
    seconds: float, tasks: Sequence[Callable[[], T]], tell: Callable[[int, int], None], surely: int
) -> list[T | None]:
    """One after the other, in this process."""
    start = time.monotonic()
    answers: list[T | None] = []
    for task in tasks:
        spent = time.monotonic() - start
        if len(answers) >= surely and spent + spent / max(len(answers), 1) > seconds:
            break
        answers.append(task())
        tell(len(answers), len(tasks))
    return answers + [None] * (len(tasks) - len(answers))


def _copied(
    seconds: float, tasks: Sequence[Callable[[], T]], workers: int, tell: Callable[[int, int], None], surely: int
) -> list[T | None]:
    """On copies of this process, each given the next task when it has answered."""
    from multiprocessing import get_context
    from multiprocessing.connection import Connection, wait

    end = time.monotonic() + seconds
    context = get_context("fork")
    answers: list[T | None] = [None] * len(tasks)
    waiting, owed = iter(range(len(tasks))), set(range(surely))
    busy: dict[Any, Any] = {}

    def give(pipe: Connection) -> None:
        """The next task; a worker without one is told to end."""
        task = next(waiting, None) if owed or time.monotonic() < end else None
        pipe.send(task)
        if task is None:
            busy.pop(pipe).join()

    try:
        for _ in range(workers):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(theirs, [*busy, ours], tasks), daemon=True)
            worker.start()
            theirs.close()
            busy[ours] = worker
            give(ours)
        done = 0
        # a busy machine may answer nothing in time: one answer is better than none
        while busy:
            left = end + (0.0 if done else seconds) - time.monotonic()
            if left <= 0.0 and not owed:
                break
            for ready in wait([*busy], None if owed else left):
                assert isinstance(ready, Connection)
                task, answer, failure = ready.recv()
                if failure is not None:
                    raise failure
                answers[task] = answer
                owed.discard(task)
                done += 1
                tell(done, len(tasks))
                give(ready)
    finally:
        for worker in busy.values():
            worker.terminate()
        for worker in busy.values():
            worker.join()
    return answers


def _work(pipe: Any, of_parent: Sequence[Any], tasks: Sequence[Callable[[], Any]]) -> None:
    """Answer tasks by number until told to end, or until the parent is gone."""
    # Ctrl-C reaches the whole group: the parent ends its workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # copied with the rest; open here, they would hide that the parent has closed its own
    for end in of_parent:
        end.close()
    try:
        while (task := pipe.recv()) is not None:
            answer, failure = None, None
            try:
                answer = tasks[task]()
            except Exception as error:
                failure = error
            pipe.send((task, answer, failure))
    except (EOFError, BrokenPipeError):
        return
