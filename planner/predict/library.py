"""The kernel's library: found, checked and opened, built anew where it has to be; or why Python does its work."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from planner.errors import InputError, did_you_mean
from planner.predict.build import INTERFACE, SOURCE, SUFFIX, BuildError, compiled, is_whole, keep, stem
from planner.shared.paths import at_home

VARIABLE = "FLEETOPT_KERNEL"
"""Environment variable: ``python`` = replay in Python; ``c`` = fail where the library is not to be had."""


class KernelUnavailable(InputError):
    """There is no library that can be opened, and none can be built."""


def in_use() -> tuple[ctypes.CDLL | None, str]:
    """The library and its path; or ``None``, why replays are done in Python, and what would change that.

    Raises
    ------
    InputError
        The environment variable is neither ``c`` nor ``python``.
    KernelUnavailable
        It is ``c``, and there is no library.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "c", "python"):
        raise InputError(f"{VARIABLE}={asked}: expected c or python{did_you_mean(asked, ('c', 'python'))}")
    if asked == "python":
        return None, f"{VARIABLE}=python asks for it"
    try:
        library = load()
    except KernelUnavailable as error:
        if asked == "c":
            raise
        return None, f"{error.message}. {error.hint}"
    return library, library._name


def load() -> ctypes.CDLL:
    """The library, opened once per process.

    Raises
    ------
    KernelUnavailable
        None can be opened or built: which were tried, and what to do.
    """
    found = _found()
    if isinstance(found, KernelUnavailable):
        # a new one each time: a raised one holds on to the frames it went through
        raise KernelUnavailable(found.message, found.hint)
    return found


@cache
def _found() -> ctypes.CDLL | KernelUnavailable:
    """What :func:`find` says of the kernel, which a process asks once."""
    # where nobody knows the home the user's folder would be one of the working directory
    folders = (folder for folder in (SOURCE.parent, user_directory()) if folder.is_absolute())
    try:
        return find(SOURCE, tuple(folders))
    except KernelUnavailable as error:
        return error


def user_directory() -> Path:
    """Where libraries are built that cannot stand beside the source: ``$XDG_CACHE_HOME/fleetopt``, else ``~/.cache/fleetopt``."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else at_home("~/.cache")) / "fleetopt"


def find(source: Path, folders: Sequence[Path]) -> ctypes.CDLL:
    """The library of `source` in the first of the folders that holds one that can be opened; else built in the first possible.

    Raises
    ------
    KernelUnavailable
        There is none in any, and none can be built.
    """
    hint = f"Install fleetopt again, or a C compiler, or the package ziglang; {VARIABLE}=python does without (100 times slower)."
    try:
        begins = stem(source)
    except OSError as error:
        raise KernelUnavailable(f"{source}: cannot be read ({error.strerror})", hint) from None
    problems: list[str] = []
    for folder in folders:
        for path in sorted(folder.glob(f"{begins}-*{SUFFIX}")):
            if isinstance(opened := _opened(path), ctypes.CDLL):
                return opened
            problems.append(opened)
    try:
        binary = compiled(source)
    except BuildError as error:
        raise KernelUnavailable("; ".join([*problems, str(error)]), hint) from None
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = keep(binary, source, folder)
        except OSError as error:
            problems.append(f"{folder}: cannot be written ({error.strerror})")
            continue
        if isinstance(opened := _opened(path), ctypes.CDLL):
            return opened
        problems.append(opened)
    raise KernelUnavailable("; ".join(dict.fromkeys(problems)), hint)


def _opened(path: Path) -> ctypes.CDLL | str:
    """A library, or what is wrong with it."""
    if not is_whole(path):
        return f"{path}: damaged or unreadable, its bytes are not those it was built with"
    try:
        library = ctypes.CDLL(str(path))
        interface = library.fleetopt_interface()
    # what a library lacks is an AttributeError
    except (OSError, AttributeError) as error:
        said = str(error).removeprefix(f"{path}: ")
        return f"{path}: cannot be opened, it may be of another kind of machine ({said})"
    if interface != INTERFACE:
        return f"{path}: speaks interface {interface}, this fleetopt {INTERFACE}"
    return library
