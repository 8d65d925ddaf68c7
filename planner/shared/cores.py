"""How many cores there are to work on, and what worker processes owe the one that started them."""

from __future__ import annotations

import os


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
