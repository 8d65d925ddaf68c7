"""Many questions about one traffic answered on threads, in a fixed order: replays run beside each other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from planner.shared.cores import cores
from planner.shared.kept import branched

MOST_WORKERS = 8
"""Threads at once: beyond it the Python between the replays is what they wait for."""

NOT_SHARED = ("fleet traffic", "models")
"""What every thread makes for itself: requests that were laid out last, and what was replayed."""

T = TypeVar("T")


def answers(
    tasks: Sequence[Callable[[], T]],
    progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
    partly: bool = False,
) -> list[T | None]:
    """Answers of the tasks in their order, whatever the number of threads.

    Parameters
    ----------
    tasks
        What to do.
    progress
        Told (done, all) after every task.
    workers
        Threads; ``None`` = one a core, at most :data:`MOST_WORKERS`.
    partly
        Whether Ctrl-C leaves what is answered, and ``None`` in place of the rest; otherwise it is raised.
    """
    tell = progress or (lambda done, total: None)
    tell(0, len(tasks))
    count = min(workers or min(cores(), MOST_WORKERS), max(len(tasks), 1))
    own = threading.local()
    # what the caller keeps is read once, before any thread changes it
    contexts = deque(branched(NOT_SHARED) for _ in range(count))

    def begin() -> None:
        own.context = contexts.popleft()

    pool = ThreadPoolExecutor(count, "row", begin)
    waiting: list[Future[T]] = []
    found: list[T | None] = [None] * len(tasks)
    try:
        waiting = [pool.submit(lambda task=task: own.context.run(task)) for task in tasks]  # type: ignore[misc]
        for k, future in enumerate(waiting):
            found[k] = future.result()
            tell(k + 1, len(tasks))
    except KeyboardInterrupt:
        if not partly:
            raise
        for k, future in enumerate(waiting):
            if future.done() and not future.cancelled() and future.exception() is None:
                found[k] = future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return found
