"""The ``fleetopt`` command: mounts the commands and turns errors into a message and an exit code."""

from __future__ import annotations

import errno
import gc
import os
import sys
from typing import Annotated

import typer

from planner.cli.commands import USAGE, Commands
from planner.cli.output import forget_no_width, open_streams, say, stdout_failed
from planner.errors import FleetOptError, InputError
from planner.shared.documents import is_text, printable
from planner.shared.version import __version__

app = typer.Typer(
    name="fleetopt",
    cls=Commands,
    help="Analytical capacity planner for LLM inference fleets: the cheapest fleet that keeps its latency promises.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from planner.catalog.load import newest_day
        from planner.predict.library import in_use

        library, told = in_use()
        typer.echo(f"fleetopt {__version__}\nkernel: {'compiled' if library is not None else 'Python'}, {told}")
        typer.echo(f"catalog: {newest_day()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version, the kernel and the day of the catalog.",
        ),
    ] = False,
) -> None:
    pass


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF}
"""A standard stream that takes nothing more."""


def run(arguments: list[str] | None = None) -> None:
    """Entry point: exit codes as in :mod:`planner.errors`; an unexpected exception keeps its traceback (exit 1)."""
    # a short life makes little garbage; looking for it is a tenth of the start
    gc.set_threshold(500_000, 20, 50)
    # the framework checks options with pydantic, whose search for plugins nobody here has costs 10 ms
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    # the solves are small: threads of the linear algebra would only wait for each other
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    open_streams()
    forget_no_width()
    words = sys.argv[1:] if arguments is None else arguments
    try:
        # bytes that are no text name a file, or nothing
        for word in words:
            if not is_text(word) and not os.path.exists(word):
                raise InputError(f"{printable(word)}: is neither text (UTF-8) nor the name of a file")
        # the framework itself exits with 130 when interrupted
        sys.exit(app(args=arguments, standalone_mode=False) or 0)
    except FleetOptError as error:
        from planner.cli.mistakes import explained

        say(explained(error, words))
        sys.exit(error.exit_code)
    except USAGE as error:
        from planner.cli.mistakes import misused

        # a group without its command shows its help
        context = getattr(error, "ctx", None)
        said = context.get_help() if context is not None and type(error).__name__ == "NoArgsIsHelpError" else None
        say(misused(error, words) if said is None else [said])
        sys.exit(2)
    except typer.Abort:
        say(["aborted"])
        sys.exit(130)
    except BrokenPipeError:
        # the reader of the pipe has gone: nothing to report, and nothing left to flush
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        # a path that no file can have (too long), a disk that fails: about the machine, not about the program
        if error.filename is None:
            if error.errno not in _FULL:
                raise
            # what the framework prints by itself: help, the version, wrong usage
            say([f"error: {stdout_failed(error)}"])
            sys.exit(InputError.exit_code)
        say([f"error: {printable(str(error.filename))}: {error.strerror}"])
        sys.exit(InputError.exit_code)


if __name__ == "__main__":
    run()
