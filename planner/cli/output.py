"""Data to stdout or, after success and atomically, to a file; everything else to stderr."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from planner.errors import InputError

__all__ = ["emit", "say"]


def emit(text: str, output: Path | None) -> None:
    """Print `text`, or write it to a file that appears complete or not at all."""
    if output is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    folder = output.expanduser().resolve().parent
    if not folder.is_dir():
        raise InputError(f"{output}: folder {folder} does not exist")
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{output.name}.")
    except OSError as error:
        raise InputError(f"{output}: cannot write there ({error.strerror})") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else text + "\n")
        Path(name).chmod(0o644)
        os.replace(name, output.expanduser())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    say([f"wrote {output}"])


def say(lines: Iterable[str]) -> None:
    """Lines for the reader, on stderr."""
    for line in lines:
        print(line, file=sys.stderr)
