"""A result on disk: whole or not at all, where the user pointed, with the rights the file had."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from planner.errors import InputError
from planner.shared.paths import at_home

_PREFIX, _SUFFIX = ".fleetopt-", ".partial"
_ABANDONED_S = 60.0
"""A partial file of a process that is gone is removed when it is older than this [s]."""

_IN_PLACE = {errno.EACCES, errno.EPERM, errno.EBUSY, errno.EXDEV, errno.EROFS}
"""No second file can be made or moved there: a file mounted by itself, a folder that may not be changed."""

_STREAM = re.compile(r"/dev/(stdin|stdout|stderr)|/(?:dev|proc/self)/fd/(\d{1,6})")
_NAMED = ("stdin", "stdout", "stderr")
"""Streams, in order of their file descriptors."""


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
    return write_bytes(path, (text if text.endswith("\n") else text + "\n").encode("utf-8", "backslashreplace"), inputs)


def write_bytes(path: str | Path, data: bytes, inputs: Iterable[str | Path] = ()) -> Path:
    """The same of bytes, written as they are. See :func:`write_text`."""
    given = Path(path)
    try:
        if (stream := _own_stream(given)) is not None:
            _stream(os.dup(stream), data)
            return given
        target = Path(os.path.realpath(at_home(given)))
        _refuse(given, target, inputs)
        if target.exists() and not target.is_file():
            _stream(target, data)
        else:
            _replace(target, data)
    except InputError:
        raise
    # a name with a zero byte is a ValueError
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{given}: cannot be written ({reason})") from None
    return given


def refuse_unwritable(path: str | Path) -> None:
    """Refuse a file that cannot be written before anything is computed for it; nothing is made.

    Raises
    ------
    InputError
        A folder, a missing folder, no permission: as :func:`write_text` would say it.
    """
    given = Path(path)
    try:
        if _own_stream(given) is not None:
            return
        target = Path(os.path.realpath(at_home(given)))
        _refuse(given, target, ())
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise InputError(f"{given}: cannot be written ({os.strerror(errno.EACCES)})")
        if len(target.name.encode()) > NAME_MAX:
            raise InputError(f"{given}: cannot be written ({os.strerror(errno.ENAMETOOLONG)})")
    except ValueError as error:
        raise InputError(f"{given}: cannot be written ({error})") from None


NAME_MAX = 255
"""Bytes of the longest name that a file has on the systems people use."""


def _refuse(given: Path, target: Path, inputs: Iterable[str | Path]) -> None:
    """What is not written to, and why."""
    if target.is_dir():
        raise InputError(f"{given}: is a folder", "Name a file in it.")
    if not target.parent.is_dir():
        raise InputError(f"{given}: folder {target.parent} does not exist")
    if target.is_symlink():
        raise InputError(f"{given}: is a link that leads to itself")
    if target.exists():
        mode = target.stat().st_mode
        if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
            raise InputError(f"{given}: is a {'disk' if stat.S_ISBLK(mode) else 'socket'}, not a file")
        for source in inputs:
            with contextlib.suppress(OSError, ValueError):
                if stat.S_ISREG(mode) and os.path.samefile(source, target):
                    raise InputError(f"{given}: is what was read; it would be lost", "Name another file.")


def _own_stream(given: Path) -> int | None:
    """Number of the stream of this process that a path such as ``/dev/stdout`` means.

    The file a shell sent it to is not replaced: it may hold more, which others append to.
    """
    found = _STREAM.fullmatch(str(given))
    if found is None:
        return None
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return _NAMED.index(found[1]) if found[1] else int(found[2])


def is_stream(path: str | Path) -> bool:
    """Whether it is written to as a stream: a FIFO, a device, or what ``/dev/stdout`` stands for."""
    given = Path(path)
    return _STREAM.fullmatch(str(given)) is not None or (given.exists() and not given.is_file() and not given.is_dir())


def keep_copy(path: str | Path) -> Path | None:
    """Keep what a file holds under another name before it is written anew.

    Parameters
    ----------
    path
        The file; it need not be there, and of a device or FIFO there is nothing to keep.

    Returns
    -------
    Path or None
        Where its content is as well: its name with ``.old-1``, ``.old-2``, ... after it.

    Raises
    ------
    InputError
        A copy cannot be made.
    """
    try:
        target = Path(os.path.realpath(path))
        if is_stream(path) or not target.is_file():
            return None
    except (OSError, ValueError):
        # no name of a file: writing to it says so
        return None
    number = next(n for n in itertools.count(1) if not target.with_name(f"{target.name}.old-{n}").exists())
    kept = target.with_name(f"{target.name}.old-{number}")
    try:
        shutil.copy2(target, kept)
    except OSError as error:
        kept.unlink(missing_ok=True)
        raise InputError(f"{kept}: cannot be written ({error.strerror or error})") from None
    return kept


def _stream(target: Path | int, data: bytes) -> None:
    """To a FIFO, a character device or an open stream."""
    with open(target, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) or 0 :]


def _replace(target: Path, data: bytes) -> None:
    """Write beside the target, then take its place."""
    partial = partial_of(target)
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            partial.chmod(stat.S_IMODE(target.stat().st_mode))
        partial.replace(target)
    except OSError as error:
        if error.errno not in _IN_PLACE or not target.is_file():
            raise
        _in_place(target, data)
    finally:
        partial.unlink(missing_ok=True)


def partial_of(target: Path) -> Path:
    """Name of a file beside the target that is to take its place; those of killed runs are removed."""
    _sweep(target.parent)
    return target.with_name(f"{_PREFIX}{os.getpid()}-{time.monotonic_ns():x}{_SUFFIX}")


def _in_place(target: Path, data: bytes) -> None:
    """Over the old content, put back if it cannot be finished."""
    with target.open("r+b") as file:
        before = file.read()

        def put(content: bytes) -> None:
            file.seek(0)
            file.write(content)
            file.truncate()

        try:
            put(data)
            file.flush()
        except OSError:
            put(before)
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
