"""Paths as people write them: ``~`` and patterns."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from planner.errors import InputError


def at_home(path: str | Path) -> Path:
    """A path with ``~`` and ``~user`` as their folders; that of a user nobody knows stays as written, as shells leave it.

    >>> at_home("~nobody-of-that-name/x.csv").parts[0]
    '~nobody-of-that-name'
    """
    try:
        return Path(os.path.expanduser(path))
    except ValueError:
        # a zero byte in the name: what opens it says so
        return Path(path)


def modules_in(folder: Path) -> tuple[str, ...]:
    """Names of what has a file each in a folder, as they are written: dashes for underscores."""
    return tuple(sorted(path.stem.replace("_", "-") for path in folder.glob("[!_]*.py")))


FED = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""Where pipes lie that somebody has opened already: what a shell makes of ``<(zcat x.csv.gz)``."""


def is_pipe(file: Path) -> bool:
    """Whether this is a pipe, which can be read once; what is not there is none."""
    try:
        return stat.S_ISFIFO(file.stat().st_mode)
    except (OSError, ValueError):
        return False


def is_unfed_pipe(file: Path) -> bool:
    """Whether this is a pipe with a name of its own, which may wait for its writer for ever."""
    return is_pipe(file) and not str(file).startswith(FED)


READ = "FLEETOPT_READ"
"""Names the folders, and what addresses begin with, that files of anybody's making may have read."""


def outside(path: str | Path, folder: Path) -> bool:
    """Whether what a file in `folder` names is there, but not in it, nor in the folder one is in, nor where `READ` allows it.

    Links are followed; what a pattern matches is all looked at; an address is outside unless it is allowed.

    >>> outside("day.csv", Path("plans")), outside("s3://logs/day.csv", Path("plans"))
    (False, True)
    """
    text, file = str(path), at_home(path)
    told = [place for place in re.split(rf"{os.pathsep}(?!//)", os.environ.get(READ, "")) if place]
    if "://" in text:
        return ".." in text or not any(text.startswith(place.rstrip("/") + "/") for place in told if "://" in place)
    there = os.path.exists(file)
    if not there and not any(mark in text for mark in "*?["):
        return False
    try:
        # all is below the root, where servers often run
        places = [place.resolve() for place in (folder, Path.cwd()) if place.resolve().name]
        places += [at_home(place).resolve() for place in told]

        def near(named: Path) -> bool:
            return any(named.resolve().is_relative_to(place) for place in places)

        # a pattern of elsewhere is not followed: it may be of the whole disk
        return not (near(file) and (there or all(near(Path(name)) for name in matching(text))))
    except (OSError, ValueError, RuntimeError):
        return True


def refuse_homeless(folder: Path, variable: str) -> None:
    """Refuse to make a folder called ``~``: nothing says where this user's home is.

    Raises
    ------
    InputError
        It says that the environment variable `variable` names another folder.
    """
    if folder.parts[:1] == ("~",):
        raise InputError(
            f"{folder}: this user has no home folder (HOME is not set)", f"{variable} names another folder."
        )


def matching(pattern: str) -> list[str]:
    """The files that a pattern stands for, each once, in order of their names.

    ``**`` is any number of folders. As in shells, those whose names begin with a dot are left out, and links to folders below
    it are not followed: one that leads upwards would be its own content again and again.

    >>> matching("no/such/folder/**/*.csv")
    []
    """
    return sorted({name for name in _found(str(at_home(pattern))) if Path(name).is_file()})


def _found(pattern: str) -> Iterator[str]:
    """What matches, folders and repetitions included."""
    parts = pattern.replace(os.sep, "/").split("/")
    if "**" not in parts:
        yield from glob.glob(pattern)
        return
    at = parts.index("**")
    rest = parts[at:]
    while rest and rest[0] == "**":
        rest = rest[1:]
    before = "/".join(parts[:at])
    for top in glob.glob(before + "/") if at else [""]:
        for folder, below, _ in os.walk(top or "."):
            below[:] = [name for name in below if not name.startswith(".")]
            inside = os.path.normpath(folder) if top or folder != "." else ""
            yield from _found(os.path.join(glob.escape(inside), *(rest or ["*"])))
