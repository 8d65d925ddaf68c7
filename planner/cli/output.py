"""Data to stdout or, after success and atomically, to a file; everything else to stderr."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.writing import write_text

__all__ = ["ClosedStream", "emit", "emit_files", "format_of", "open_streams", "progress_bar", "say", "tell", "writer"]


def emit(text: str, output: Path | None) -> None:
    """Print `text`, or write it to a file that appears complete or not at all."""
    if output is None:
        _print(text if text.endswith("\n") else text + "\n")
        return
    write_text(output, text, inputs=_files_named())
    say([f"wrote {output}"])


def emit_files(files: Mapping[str, str], folder: Path) -> None:
    """Write several files into a folder, which is made where it is missing."""
    inputs = [*_files_named()]
    try:
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be made ({error.strerror})", "Several files are written: name a folder."
        ) from None
    for name, text in files.items():
        write_text(folder / name, text, inputs=inputs)
    say([f"wrote {len(files)} files to {folder}"])


def _print(text: str) -> None:
    """To stdout, flushed here so that a full disk or a closed stdout is an error of this command."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        # what is left in the buffer would fail once more at the end
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        raise InputError(f"standard output cannot be written ({getattr(error, 'strerror', None) or error})") from None


def _files_named() -> Iterator[str]:
    """What the command line names beside its output: any of it may be a file that was read."""
    arguments = iter(sys.argv[1:])
    for argument in arguments:
        if argument in ("-o", "--output"):
            next(arguments, None)
        elif not argument.startswith("--output="):
            yield argument.partition("=")[2] or argument


class ClosedStream(io.TextIOBase):
    """Stands in for a standard stream that was closed before the start, which Python leaves as ``None``."""

    def write(self, text: str) -> int:
        """Nothing can be written."""
        raise OSError(errno.EBADF, "it is closed")


def open_streams() -> None:
    """Make stdout and stderr objects again where they were closed: the first complains when used, the second is silent."""
    if sys.stdout is None:
        sys.stdout = ClosedStream()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def writer(output_format: str | None, output: Path | None, of: str = "") -> Callable[[Any], None]:
    """What writes the result of a command, made first: a format that does not exist is told before anything is computed.

    Parameters
    ----------
    output_format, output
        As the user gave them; without a format the name of the file says it.
    of
        ``plan`` or ``schedule``, which have formats of their own.
    """
    from planner.report import formatter

    render = formatter(output_format or format_of(output), of)
    return lambda result: emit(render(result), output)


_BY_SUFFIX = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".csv": "csv", ".md": "markdown"}


def format_of(output: Path | None) -> str:
    """The format that a file's name asks for; a table where it says nothing.

    >>> format_of(Path("plan.yaml")), format_of(None)
    ('yaml', 'table')
    """
    return "table" if output is None else _BY_SUFFIX.get(output.suffix.lower(), "table")


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
