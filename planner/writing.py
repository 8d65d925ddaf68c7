"""A result on disk: whole or not at all, where the user pointed, with the rights the file had."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from planner.errors import InputError

_PREFIX, _SUFFIX = ".fleetopt-", ".partial"
_ABANDONED_S = 60.0
"""A partial file of a process that is gone is removed when it is older than this [s]."""

_IN_PLACE = {errno.EACCES, errno.EPERM, errno.EBUSY, errno.EXDEV, errno.EROFS}
"""No second file can be made or moved there: a file mounted by itself, a folder that may not be changed."""


def write_text(path: str | Path, text: str, inputs: Iterable[str | Path] = ()) -> Path:
    """Write `text` to a file that appears complete or not at all.

    A symbolic link is followed to its target; an existing file keeps its mode, a new one gets the usual (umask); a FIFO or
    a device is written to as a stream and never replaced. Where no second file can stand beside the target (a file mounted
    by itself), it is written in place. Partial files that a killed run left behind are removed by the next.

    Parameters
    ----------
    path
        Where to; ``~`` is understood.
    text
        What; written as UTF-8, ended by a newline.
    inputs
        Files that were read for this result: none of them is overwritten.

    Returns
    -------
    Path
        As given.

    Raises
    ------
    InputError
        A folder, a missing folder, an input, no permission, a full disk: one line, nothing half-written.
    """
    given = Path(path)
    data = (text if text.endswith("\n") else text + "\n").encode("utf-8", "backslashreplace")
    try:
        target = Path(os.path.realpath(given.expanduser()))
        _refuse(given, target, inputs)
        if target.exists() and not target.is_file():
            _stream(target, data)
        else:
            _replace(target, data)
    except InputError:
        raise
    # a name with a zero byte is a ValueError, a user ~ does not know a RuntimeError
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{given}: cannot be written ({reason})") from None
    return given


def _refuse(given: Path, target: Path, inputs: Iterable[str | Path]) -> None:
    """What is not written to, and why."""
    if target.is_dir():
        raise InputError(f"{given}: is a folder", "Name a file in it.")
    if not target.parent.is_dir():
        raise InputError(f"{given}: folder {target.parent} does not exist")
    if target.exists():
        mode = target.stat().st_mode
        if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
            raise InputError(f"{given}: is a {'disk' if stat.S_ISBLK(mode) else 'socket'}, not a file")
        for source in inputs:
            with contextlib.suppress(OSError, ValueError):
                if stat.S_ISREG(mode) and os.path.samefile(source, target):
                    raise InputError(f"{given}: is what was read; it would be lost", "Name another file.")


def _stream(target: Path, data: bytes) -> None:
    """To a FIFO or a character device."""
    with target.open("wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) or 0 :]


def _replace(target: Path, data: bytes) -> None:
    """Write beside the target, then take its place."""
    _sweep(target.parent)
    partial = target.with_name(f"{_PREFIX}{os.getpid()}-{time.monotonic_ns():x}{_SUFFIX}")
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        if error.errno in _IN_PLACE and target.is_file():
            _in_place(target, data)
            return
        raise
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            partial.chmod(stat.S_IMODE(target.stat().st_mode))
        try:
            partial.replace(target)
        except OSError as error:
            if error.errno not in _IN_PLACE or not target.is_file():
                raise
            _in_place(target, data)
    finally:
        partial.unlink(missing_ok=True)


def _in_place(target: Path, data: bytes) -> None:
    """Over the old content, put back if it cannot be finished."""
    with target.open("r+b") as file:
        before = file.read()
        try:
            file.seek(0)
            file.write(data)
            file.truncate()
            file.flush()
        except OSError:
            file.seek(0)
            file.write(before)
            file.truncate()
            raise


def _sweep(folder: Path) -> None:
    """Remove partial files whose process is gone."""
    for left in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if owner.isdigit() and time.time() - left.stat().st_mtime > _ABANDONED_S and not _alive(int(owner)):
                left.unlink()


def _alive(process: int) -> bool:
    """Whether a process of that number runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
