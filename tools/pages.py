"""Write docs/page.md, the pages as terminals of 80 to 120 columns show them: ``python tools/pages.py``.

Takes a minute: the choices below a plan are given time until all are sized.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import Any

from planner.cli.main import run
from planner.report import output

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "page.md"

HEAD = """# The page

Written by `python tools/pages.py`, which runs the commands shown; prices and their age are those of that day.

A page fits its terminal (`COLUMNS`, where that is set). Where a table is too wide, columns go in an order stated per table, the
least wanted first, and the page says which; then words fold (in the table of choices only when the least wanted are gone). Numbers
are never cut. `--wide` shows everything, as does a page that goes into a file or a pipe. Times are in milliseconds below a second.
Data goes to stdout, what was assumed to stderr.

The page of a plan has the answer first: what to buy, for how much a year, with what confidence; even odds, one chance in ten
and nine in ten beside it ([confidence](confidence.md)). Warnings that make it unfit to buy by stand above: a few requests for the
quantile asked, say, or speeds estimated to no better than 30%, as of mixtures of experts, with the command that measures them. Then
at most five rows that keep the same promise for less, the cheapest first; what a tighter and a looser limit, more traffic and a
node's failure take, a cliff (a limit half as long again saves over a fifth) always; what to check before signing, each with the
command that checks it; and the line that starts an engine. `fleetopt explain` says why, `fleetopt options` lists every row; a saved
plan carries both, and its `summary`. `-q` prints one line.

`--no-options` leaves other choices out. Each row is the price that `plan` with the flags in its last column gives, sized by the
same [search](search.md). `--gpu any` searches the eight types with a price that look cheapest and names the cheapest
others below it. `fleetopt options` lists every type that can, each with its own best settings; `--plot` and `fleetopt report` show
what they cost against their P99 TTFT.
"""

PAGES = (
    ((80, 120), "plan --slo 0.5"),
    ((100,), "plan --slo 50ms --pools 1"),
    (
        (100,),
        "schedule --slo 0.5 --rate 100 --pools 1 --monthly-growth 8% --lead-time 90d --months 6 --from 2027-01-01",
    ),
    ((80,), "simulate --policies sarathi,eb --rates 4 --requests 2000"),
)


def pages(widths: tuple[int, ...], command: str) -> list[str]:
    """What a command prints at the first width, stdout before stderr; the same result laid out at the others."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    laid_out, shown = output.table, []

    def render(result: Any, width: int | None = None) -> str:
        shown.append(result)
        return laid_out(result, width)

    output.table = render
    os.environ["COLUMNS"] = str(widths[0])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run(command.split())
        except SystemExit as end:
            code = int(end.code or 0)
    output.table = laid_out
    told = f" (exit {code})" if code else ""
    printed = [out.getvalue() + err.getvalue(), *(laid_out(shown[0], width) + "\n" for width in widths[1:])]
    return [
        f"## {width} columns{told}\n\n```text\n$ fleetopt {command}\n{text}```"
        for width, text in zip(widths, printed, strict=True)
    ]


def main() -> None:
    done = [text for widths, command in PAGES for text in pages(widths, command)]
    DOCUMENT.write_text("\n\n".join([HEAD.rstrip(), *done]) + "\n", encoding="utf-8")
    print(f"wrote {DOCUMENT}")


if __name__ == "__main__":
    main()
