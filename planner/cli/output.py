"""Data to stdout or, after success and atomically, to a file; everything else to stderr."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from planner.errors import InputError

__all__ = ["emit", "progress_bar", "say", "tell", "writer"]


def emit(text: str, output: Path | None) -> None:
    """Print `text`, or write it to a file that appears complete or not at all."""
    if output is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    folder = output.expanduser().resolve().parent
    if not folder.is_dir():
        raise InputError(f"{output}: folder {folder} does not exist")
    if output.expanduser().is_dir():
        raise InputError(f"{output}: is a folder", "Name a file in it.")
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


def writer(output_format: str, output: Path | None, of: str = "") -> Callable[[Any], None]:
    """What writes the result of a command, made first: a format that does not exist is told before anything is computed.

    Parameters
    ----------
    output_format, output
        As the user gave them.
    of
        ``plan`` or ``schedule``, which have formats of their own.
    """
    from planner.report import formatter

    render = formatter(output_format, of)
    return lambda result: emit(render(result), output)


def tell(result: Any) -> None:
    """What was assumed, and what to know before believing it."""
    say(f"assumed: {line}" for line in result.assumptions)
    say(f"warning: {line}" for line in result.warnings)


def say(lines: Iterable[str]) -> None:
    """Lines for the reader, on stderr."""
    for line in lines:
        print(line, file=sys.stderr)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr while a terminal watches; silent otherwise. Call it with (done, all)."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
