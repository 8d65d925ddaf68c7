"""Data to stdout or, after success and atomically, to a file; everything else to stderr."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from planner.cli import sign
from planner.errors import InputError
from planner.shared.documents import printable
from planner.shared.writing import refuse_unwritable, write_text


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
    """To stdout, flushed here so that a full disk or a closed stdout is an error of this command.

    What moves a terminal's cursor, colours or turns its text is shown as what it is: names come from files of anybody's.
    """
    sign.clear()
    try:
        own = _BOLD if sys.stdout.isatty() else ()
        text = _CONTROL.sub(lambda found: found[0] if found[0] in own else printable(found[0]), text)
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:
            # a page of other letters than ours: lines of dashes, and escapes, which tell what is meant
            plain = text.translate(_PLAIN).encode(sys.stdout.encoding, "backslashreplace")
            sys.stdout.write(plain.decode(sys.stdout.encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        raise stdout_failed(error) from None


_BOLD = ("\033[1m", "\033[0m")
"""What our own tables send to a terminal."""

_CONTROL = re.compile(r"\033\[[01]m|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters and those that turn the direction of writing."""

_PLAIN = str.maketrans({"\u2500": "-", "\u00b1": "+-", "\u00b5": "u"})
"""What stands for the letters of our pages that ASCII has not."""


def stdout_failed(error: OSError | ValueError) -> InputError:
    """What to say when standard output takes nothing more; what is left in its buffer would fail once more at the end."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    return InputError(f"standard output cannot be written ({getattr(error, 'strerror', None) or error})")


def _files_named() -> Iterator[str]:
    """What the command line names beside its output: any of it may be a file that was read."""
    arguments = iter(sys.argv[1:])
    for argument in arguments:
        if argument in ("-o", "--output"):
            next(arguments, None)
        elif not argument.startswith("--output="):
            yield argument.partition("=")[2] or argument


def refuse_named_twice(output: Path) -> None:
    """Refuse to stream rows over what the command line also names to be read or written.

    Raises
    ------
    InputError
        It does.
    """
    place = os.path.realpath(output)
    if sum(os.path.realpath(name) == place for name in _files_named() if "\0" not in name) > 1:
        raise InputError(f"{output}: is named for something else as well; it would be lost", "Name another file.")


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


def forget_no_width() -> None:
    """Leave out a ``COLUMNS`` that is no width of a page: the framework would fail on it, or make lines as long."""
    named = os.environ.get("COLUMNS", "0")
    if not (named.isascii() and named.isdigit() and len(named) <= 4):
        del os.environ["COLUMNS"]


_wide = ContextVar("wide", default=False)


def whole_tables(wide: bool) -> None:
    """Take ``--wide`` of the command that runs."""
    _wide.set(wide)


def page_width(stream: Any = None) -> int | None:
    """Characters of a line on stdout, or on `stream`: as ``COLUMNS`` says, else the terminal's; ``None`` = any number."""
    from planner.report.blocks import NARROWEST

    if _wide.get():
        return None
    named = os.environ.get("COLUMNS", "")
    if named.isdecimal() and int(named) > 0:
        return max(int(named), NARROWEST)
    try:
        target = sys.stdout if stream is None else stream
        # a terminal that was given no size has none
        columns = os.get_terminal_size(target.fileno()).columns if target.isatty() else 0
        return max(columns, NARROWEST) if columns else None
    except (OSError, ValueError):
        return None


def renderer(output_format: str | None, output: Path | None, of: str = "") -> Callable[[Any], str]:
    """What makes text of a result: as :func:`writer`, without writing it. A table fits the page; one in a file is whole."""
    from planner.report import formatter
    from planner.report.output import table

    name = output_format or format_of(output)
    return partial(table, width=page_width() if output is None else None) if name == "table" else formatter(name, of)


def writer(output_format: str | None, output: Path | None, of: str = "") -> Callable[[Any], None]:
    """What writes the result of a command, made first: a format that does not exist is told before anything is computed.

    One that is not complete goes to a file beside the one asked for.

    Parameters
    ----------
    output_format, output
        As the user gave them; without a format the name of the file says it.
    of
        ``plan`` or ``schedule``, which have formats of their own.
    """
    render = renderer(output_format, output, of)
    if output is not None:
        refuse_unwritable(output)

    def write(result: Any) -> None:
        place = output
        if place is not None and not getattr(result, "complete", True):
            place = place.with_name(place.name + ".partial")
        emit(render(result), place)

    return write


def draw(result: Any, plot: Path | None) -> None:
    """Write the picture of a result where one was asked for."""
    if plot is not None:
        from planner.report.pictures import save

        save(result, plot)
        say([f"wrote {plot}"])


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
    """Lines for the reader, on stderr, folded at the width of its page."""
    from planner.report.blocks import folded

    sign.clear()
    width = page_width(sys.stderr)
    for line in lines:
        # names of files, and what files hold, may hold anything
        for part in line.split("\n"):
            try:
                print(folded(part if part.isprintable() else printable(part, len(part)), width), file=sys.stderr)
            except OSError:
                # nobody can be told; the result and its exit code stand
                sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


PATIENCE_S = 0.3
"""What takes longer shows that it is under way."""


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[..., None]]:
    """What is under way, on stderr while a terminal watches, from the third tenth of a second on; silent otherwise.

    Call it with (done, all) where that is known, and with what is done now; until then it counts the seconds.
    """
    if not (title and sign.watched()):
        yield lambda done, total, what="": None
        return
    start, known = time.monotonic(), threading.Event()

    def count() -> None:
        # what loading took counts
        pause = max(PATIENCE_S - time.process_time(), 0.05)
        while not known.wait(pause):
            sign.show(f"{title}: {time.monotonic() - start:.1f} s")
            pause = PATIENCE_S

    def tell(done: int, total: int, what: str = title) -> None:
        if not known.is_set():
            # ended, not left to itself: a process with threads cannot be copied
            known.set()
            counter.join()
        sign.show(f"{what}: {done:,} of {total:,}")

    counter = threading.Thread(target=count, daemon=True)
    counter.start()
    try:
        yield tell
    finally:
        known.set()
        counter.join()
        sign.clear()
