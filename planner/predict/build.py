"""The kernel's library from its source: by the C compiler that there is, under a name that says what it was made from.

The build hook (``hatch_build.py``) loads this file by its path, where nothing of the package is installed: the standard library
only. :mod:`planner.predict.library` finds the library again and opens it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).with_name("kernel.c")

INTERFACE = 6
"""Of the calls between Python and the kernel, counted up when they change: ``fleetopt_interface()`` answers the same."""

FLAGS = ("-std=c11", "-O2", "-fno-fast-math", "-ffp-contract=off", "-fno-math-errno", "-g0")
"""No multiplication is joined with an addition and no sum reordered, so that compilers give the same bits; without errno a square
root is one instruction and no library of mathematics is needed. Notes for debuggers would name the folder of the build."""

MSVC_FLAGS = ("/std:c11", "/O2", "/fp:precise")
"""The same for Microsoft's ``cl``."""

SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")


class BuildError(Exception):
    """No library could be made: which compilers were tried and what they said, in one line."""


def stem(source: Path = SOURCE) -> str:
    """How the names of libraries of `source` begin: with a hash of it, of the interface and of the flags.

    Raises
    ------
    OSError
        `source` cannot be read.
    """
    rest = repr((INTERFACE, FLAGS, MSVC_FLAGS)).encode()
    return f"_kernel-{hashlib.sha256(source.read_bytes() + rest).hexdigest()[:12]}"


def library_name(source: Path, binary: bytes, suffix: str = SUFFIX) -> str:
    """Name of the library `binary` of `source`. It ends with a digest of `binary`, so that one file tells whether it is whole."""
    return f"{stem(source)}-{hashlib.sha256(binary).hexdigest()[:16]}{suffix}"


def is_whole(library: Path) -> bool:
    """Whether a library can be read and its bytes are those it was named for: opening one that was cut off can kill the process."""
    try:
        return hashlib.sha256(library.read_bytes()).hexdigest()[:16] == library.stem.rpartition("-")[2]
    except OSError:
        return False


def compilers() -> Iterator[list[str]]:
    """Commands of C compilers to try: that of ``CC`` alone, else those on the path, then zig's where its package is installed."""
    if named := shlex.split(os.environ.get("CC", ""), posix=os.name != "nt"):
        yield named
        return
    for name in (["cl"] if os.name == "nt" else []) + ["cc", "gcc", "clang"]:
        if found := shutil.which(name):
            yield [found]
    if importlib.util.find_spec("ziglang"):
        # zig alone compiles for the very machine it runs on unless it is told not to
        yield [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]


def compiled(source: Path = SOURCE) -> bytes:
    """The library of `source`, by the first compiler that makes one.

    Raises
    ------
    BuildError
        None does, or there is none.
    """
    problems = []
    for command in compilers():
        with tempfile.TemporaryDirectory() as folder:
            try:
                return _run(command, source.resolve(), Path(folder))
            except BuildError as error:
                problems.append(str(error))
    raise BuildError("; ".join(problems) or "no C compiler was found (cc, gcc, clang, cl, or the package ziglang)")


def _run(command: list[str], source: Path, folder: Path) -> bytes:
    """The library that one compiler makes in an empty folder, where it may leave what else it makes."""
    made = folder / f"library{SUFFIX}"
    if Path(command[0]).stem.lower() in ("cl", "clang-cl"):
        words = [*MSVC_FLAGS, "/nologo", "/LD", str(source), f"/Fe:{made}"]
    else:
        # Windows knows no other code than that which can be moved, and clang refuses the word there
        words = [*FLAGS, "-shared", *([] if os.name == "nt" else ["-fPIC"]), str(source), "-o", str(made)]
        if sys.platform == "darwin":
            # how builds for the other kind of Macs say so
            words += shlex.split(os.environ.get("ARCHFLAGS", ""))
    caches = {"ZIG_GLOBAL_CACHE_DIR": f"{folder}/zig", "ZIG_LOCAL_CACHE_DIR": f"{folder}/zig"}
    name = "ziglang" if "ziglang" in command else command[0]
    try:
        done = subprocess.run(
            [*command, *words],
            cwd=folder,
            env=caches | os.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode == 0:
            return made.read_bytes()
    except OSError as error:
        raise BuildError(f"{name}: {error.strerror or error}") from None
    said = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    told = next((line for line in said if "error" in line.lower()), said[-1] if said else "says nothing")
    raise BuildError(f"{name} fails ({done.returncode}): {told}")


def keep(binary: bytes, source: Path, folder: Path) -> Path:
    """Write the library `binary` of `source` into `folder`: it appears whole or not at all, whoever else does the same at once.

    Beside the source, those of earlier sources and damaged ones are removed.

    Raises
    ------
    OSError
        The folder cannot be written.
    """
    target = folder / library_name(source, binary)
    if not is_whole(target):
        partial = folder / f".kernel-{uuid.uuid4().hex}.partial"
        try:
            partial.write_bytes(binary)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    if folder == source.parent:
        for other in folder.glob(f"_kernel-*{SUFFIX}"):
            if not other.name.startswith(stem(source)) or not is_whole(other):
                # Windows keeps what some process has open
                with contextlib.suppress(PermissionError):
                    other.unlink(missing_ok=True)
    return target
