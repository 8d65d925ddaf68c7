"""Where a workload lives: an existing path first, then the shipped ones by name (in a wheel and in a checkout alike)."""

from __future__ import annotations

import shutil
import sys
from functools import cache
from pathlib import Path
from typing import IO

from planner.errors import InputError, did_you_mean
from planner.shared.documents import printable, refuse_unfed
from planner.shared.paths import at_home, is_pipe
from planner.workload.remote import copied, fetched, is_address

STANDARD_INPUT = "standard input"
"""How messages and plans name what was read from it, or from another pipe."""


def shipped_folder() -> Path:
    """The folder of shipped workloads: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "_workloads"
    return inside if inside.is_dir() else package.parent / "workloads"


def shipped_names() -> tuple[str, ...]:
    """Names of the shipped workloads, sorted.

    >>> "azure" in shipped_names()
    True
    """
    return tuple(sorted(path.stem for path in shipped_folder().glob("*.csv")))


def shipped_path(name: str) -> Path | None:
    """Path of a shipped workload by its name with or without ``.csv``; ``None`` when there is none."""
    stem = name.removesuffix(".csv")
    return shipped_folder() / f"{stem}.csv" if stem in shipped_names() else None


def is_passing(name: str) -> bool:
    """Whether nothing of that name can be read again later: standard input and pipes; nor an address, as nothing is fetched because
    a file names it."""
    return name == "-" or is_address(name) or is_pipe(at_home(name))


def resolve_workload(path: str | Path) -> Path:
    """The file that a user means.

    Parameters
    ----------
    path
        An existing path, the name of a shipped workload, the address of an object, or ``-``: standard input, kept in a
        file until the end.

    Returns
    -------
    Path
        An existing file.

    Raises
    ------
    InputError
        Neither; the message lists the shipped names.

    >>> resolve_workload("azure").name
    'azure.csv'
    """
    if str(path) == "-":
        return standard_input()
    if is_address(path):
        return fetched(str(path))
    try:
        given = at_home(path)
        if given.is_dir():
            raise InputError(f"{path}: is a folder, not a file")
        refuse_unfed(given, printable(str(path)))
        if is_pipe(given):
            return _piped(given, given.stat().st_ino)
        if given.exists():
            return given
    except (OSError, ValueError) as error:  # too long, with a zero byte
        raise InputError(
            f"{printable(str(path))}: cannot be a file ({getattr(error, 'strerror', None) or error})"
        ) from None
    if given.name == str(path):
        shipped = shipped_path(given.name)
        if shipped is not None:
            return shipped
    names = shipped_names()
    hint = f"Give the path of an existing file or one of the shipped workloads: {', '.join(names)}."
    raise InputError(f"{path}: no such file or shipped workload{did_you_mean(given.stem, names)}", hint)


@cache
def standard_input() -> Path:
    """What came on standard input, in a file: readers look at the beginning before they read."""
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError(
            "-: nothing comes on standard input", "Pipe a workload into it: ... | fleetopt plan --cdf - ..."
        )
    return _copied(sys.stdin.buffer)


@cache
def _piped(pipe: Path, inode: int) -> Path:
    """The same of a pipe that a shell has opened, which can be read once; the next under its name is another one."""
    with pipe.open("rb") as stream:
        return _copied(stream)


def _copied(stream: IO[bytes]) -> Path:
    """A stream in a file that is kept until the program ends."""

    def fill(copy: Path) -> None:
        with copy.open("wb") as file:
            shutil.copyfileobj(stream, file)

    return copied(STANDARD_INPUT, STANDARD_INPUT, fill)
