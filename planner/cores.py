"""How many cores there are to work on, and what worker processes owe the one that started them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def cores() -> int:
    """Cores this process may use, at least one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def beside(threads: int) -> Iterator[Callable[..., Callable[[], Any]]]:
    """Gives a way to call a function and take its result later: meanwhile in one of so many threads, at once with none.

    Arrays of millions are worth it: NumPy lets other threads work while it sorts or adds them up.

    >>> with beside(0) as call:
    ...     call(max, 1, 2)()
    2
    """
    if not threads:

        def now(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
            result = function(*arguments)
            return lambda: result

        yield now
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as workers:
        yield lambda function, *arguments: workers.submit(function, *arguments).result


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
