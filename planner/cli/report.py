"""``fleetopt report``: a page about a plan."""

from __future__ import annotations

from typing import Annotated

from planner.cli import options as opt
from planner.cli.output import emit, progress_bar
from planner.errors import InputError

PAGES, WORDS = (".html", ".htm"), (".md", ".markdown")
"""What a report can be, by the file's name."""


def report(
    plan: opt.Base,
    output: opt.OutputFile = None,
    no_choices: Annotated[bool, opt.told("Without what other choices would cost.", "--no-options")] = False,
) -> None:
    """One self-contained page (HTML, or Markdown by the file's name) about a plan: answer, choices, pictures, assumptions.

    Example: fleetopt report plan.yaml -o report.html
    """
    from planner import api
    from planner.report.page import as_html, as_markdown

    kind = "" if output is None else output.suffix.lower()
    if kind and kind not in (*PAGES, *WORDS):
        raise InputError(f"{output}: a report is a page (.html) or Markdown (.md)", "A browser prints the page as PDF.")
    with progress_bar("looking at other choices") as progress:
        found = api.overview(plan, choices=not no_choices, progress=progress)
    emit(as_markdown(found) if kind in WORDS else as_html(found), output)
