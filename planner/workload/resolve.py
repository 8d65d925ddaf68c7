"""Where a workload lives: an existing path, the shipped ones by name, standard input, or an object store
(``s3://bucket/logs/*.parquet``)."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, Any

from planner.errors import InputError, did_you_mean
from planner.shared.documents import printable, refuse_unfed
from planner.shared.extras import installing
from planner.shared.paths import at_home, is_pipe, matching
from planner.units import GIB

STANDARD_INPUT = "standard input"
"""How messages and plans name what was read from it, or from another pipe."""
_ADDRESS = re.compile(r"^[a-z][a-z0-9+]*://", re.IGNORECASE)
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed when the program ends
_CALLED: dict[Path, str] = {}


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
    names, stem = shipped_names(), str(path).removesuffix(".csv")
    if stem in names:
        return shipped_folder() / f"{stem}.csv"
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


def is_address(path: str | Path) -> bool:
    """Whether this is an address and not a path of this machine.

    >>> is_address("s3://logs/day.parquet"), is_address("C:/logs/day.csv"), is_address("day.csv")
    (True, False, False)
    """
    return bool(_ADDRESS.match(str(path)))


def shown(address: str) -> str:
    """An address as messages and plans may show it: without a user's name, password, signature or key.

    >>> shown("https://me:secret@logs.example/day.csv?X-Signature=abc")
    'https://logs.example/day.csv'
    """
    scheme, _, rest = address.partition("://")
    place = rest.split("?", 1)[0].split("#", 1)[0]
    host, slash, path = place.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def came_from(path: Path) -> str:
    """What messages call a file: the address that it is a copy of, standard input, else its path."""
    return _CALLED.get(path) or str(path)


def copied(called: str, name: str, fill: Callable[[Path], object]) -> Path:
    """A file that is kept until the program ends, for `fill` to write, and what messages call it."""
    folder = tempfile.TemporaryDirectory(prefix="fleetopt-")
    copy = Path(folder.name) / name
    try:
        fill(copy)
    except BaseException:
        folder.cleanup()
        raise
    _FOLDERS.append(folder)
    _CALLED[copy] = called
    return copy


def expand(path: str | Path) -> list[str]:
    """The files that a pattern stands for, in order of their names; a path without one stands for itself.

    Raises
    ------
    InputError
        Nothing matches; an object store that cannot be listed.
    """
    text = str(path)
    # after a question mark an address of the web has its signature
    place, marks = (shown(text), "*") if re.match("https?://", text, re.IGNORECASE) else (text, "*?[")
    if not any(mark in place for mark in marks) or (not is_address(text) and Path(text).exists()):
        return [text]
    if is_address(text):
        system, inner = _system(text)
        try:
            found = [str(system.unstrip_protocol(name)) for name in system.glob(inner)]
        except Exception as error:
            raise _refused(text, error) from error
    else:
        found = matching(text)
    if not found:
        raise InputError(f"{shown(text) if is_address(text) else text}: no file matches this pattern")
    return sorted(found)


@cache
def fetched(address: str) -> Path:
    """A copy of what lies at an address, kept until the program ends.

    Raises
    ------
    InputError
        Without fsspec or the driver of that store, nothing there, no access, no room on the disk.
    """
    system, inner = _system(address)

    def get(copy: Path) -> None:
        try:
            size = system.info(inner).get("size") or 0
            # a gibibyte of the disk that copies are made on is left free
            if size + GIB > shutil.disk_usage(copy.parent).free:
                raise InputError(
                    f"{shown(address)}: {size:,} bytes do not fit on the disk of temporary files",
                    "Aggregate it where it lies: fleetopt workload sql.",
                )
            system.get_file(inner, str(copy))
        except InputError:
            raise
        except Exception as error:
            raise _refused(address, error) from error

    return copied(shown(address), Path(shown(address)).name or "download", get)


def _system(address: str) -> tuple[Any, str]:
    """The store of an address, and the place in it."""
    if not re.search(r"[^/?#]", address.partition("://")[2]):
        raise InputError(f"{shown(address)}: an address without a place", "Write it as s3://bucket/file.csv.")
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise InputError(f"{shown(address)}: reading addresses needs fsspec", installing("remote")) from error
    try:
        system, inner = url_to_fs(address)
    except Exception as error:
        raise _refused(address, error) from error
    return system, str(inner)


def _refused(address: str, error: Exception) -> InputError:
    """What to say of a store that does not give: the kind of error, for its text may hold the address with its key."""
    reasons: dict[type[Exception], str] = {
        FileNotFoundError: "nothing is there",
        PermissionError: "no access",
        ImportError: f"its driver is not installed ({getattr(error, 'name', None) or 'see fsspec'})",
        Exception: f"cannot be read ({type(error).__name__})",
    }
    why = next(words for kind, words in reasons.items() if isinstance(error, kind))
    return InputError(f"{shown(address)}: {why}", "Credentials are read where the store's own tools read them.")
