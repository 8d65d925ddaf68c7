"""One self-contained page: the recommendation first, then what surrounds it; no request leaves it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from planner.ask.overview import Overview
from planner.plans import Plan
from planner.report import pictures
from planner.report.blocks import Block, Table, Text, to_markdown
from planner.report.svg import COLOURS, DARK, LIGHT, STROKES, figure
from planner.report.text.choices import of_choices
from planner.report.text.money import of_costs
from planner.report.text.plan import answer, of_plan
from planner.report.text.why import why

STYLE = (
    COLOURS
    # the other colours than the screen asks for, without a script
    + f":root:has(#other:checked){{{DARK}}}"
    + f"@media (prefers-color-scheme:dark){{:root:has(#other:checked){{{LIGHT}}}}}"
    + STROKES
    + "\n"
    + Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
)


def as_markdown(overview: Overview) -> str:
    """The same in words and tables, for a design document."""
    parts = [to_markdown(of_plan(overview.plan)), "## Why\n\n" + to_markdown(why(overview.plan))]
    for picture, table in pictures.of_overview(overview):
        parts.append(f"## {picture.title}\n\n" + to_markdown([table]))
    parts.append("## What it costs, and how to pay for it\n\n" + to_markdown(of_costs(overview.costs)))
    parts.append(f"## To repeat it\n\n    {overview.command}\n")
    return "\n\n".join(parts)


def as_html(overview: Overview) -> str:
    """The page."""
    plan = overview.plan
    question, *page = of_plan(plan)
    assert isinstance(question, Text)
    head = [
        '<label class="other"><input type="checkbox" id="other"> other colours</label>',
        f"<h1>{_words(question.lines[0])}</h1>",
        *map(_block, page),
    ]
    if plan.choices is not None:
        head += map(_block, of_choices(plan.choices))
    body = [
        f"<h2>{_words(picture.title)}</h2><figure>{figure(picture)}"
        f"<details><summary>as a table</summary>{_table(table)}</details></figure>"
        for picture, table in pictures.of_overview(overview)
    ]
    body.append("<h2>What it costs, and how to pay for it</h2>")
    body += [_block(block) for block in of_costs(overview.costs)]
    tail = [
        "<h2>Pools</h2>",
        *map(_block, why(plan)),
        _block(Text(_provenance(plan), "bullets", title="Where the numbers come from")),
        f"<h2>To repeat it</h2><pre>{escape(overview.command)}</pre>",
        f"<footer>fleetopt {escape(plan.version)}, method {escape(plan.method)}</footer>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_words(answer(plan)[0])}</title><style>{STYLE}</style></head><body><main>"
        + "\n".join([*head, *body, *tail])
        + "</main></body></html>\n"
    )


def _provenance(plan: Plan) -> list[str]:
    """Profile and price of every kind of replica."""
    told = (f"{p.parallel} of {p.gpu}: iteration times {p.provenance}, profile {p.profile}" for p in plan.pools)
    return [*dict.fromkeys(told)]


def _words(text: str) -> str:
    """Text with `code` in it; what the terminal sets apart by spaces has its sign here."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    for found, put in (
        (r"^(RUN)  (.*)", r"<b>\1</b> <code>\2</code>"), (r"^([A-Z]{3,})  ", r"<b>\1</b> "), (r"^([A-Z ]{9,})$", r"<b>\1</b>"),
        (r"(?<=:)  ((?:--|fleetopt ).*)", r" <code>\1</code>"), ("   ", " · "),
    ):  # fmt: skip
        marked = re.sub(found, put, marked)
    return marked


def _table(table: Table) -> str:
    """A table; columns of words align left."""

    def row(cells: Sequence[str], tag: str) -> str:
        parts = []
        for name, cell in zip(table.columns, cells, strict=True):
            side = ' class="l"' if name in table.left else ""
            parts.append(f"<{tag}{side}>{_words(cell)}</{tag}>")
        return f"<tr>{''.join(parts)}</tr>"

    return f"<table><thead>{row(table.columns, 'th')}</thead><tbody>{''.join(row(r, 'td') for r in table.rows)}</tbody></table>"


def _block(block: Block) -> str:
    """A block of the terminal's page."""
    if isinstance(block, Table):
        return _table(block)
    if block.only == "terminal" or not block.lines:
        return ""
    title = f"<h2>{_words(block.title)}</h2>" if block.title else ""
    if block.style == "bullets":
        kind = ' class="warning"' if block.label.strip() in ("!", "warning:") else ""
        return title + "<ul>" + "".join(f"<li{kind}>{_words(line)}</li>" for line in block.lines) + "</ul>"
    if block.style == "command":
        return title + "".join(f"<pre>{escape(line)}</pre>" for line in block.lines)
    kind = ' class="answer"' if block.style == "bold" else ""
    return title + "".join(f"<p{kind}>{_words(line)}</p>" for line in block.lines)
