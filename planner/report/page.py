"""One self-contained page: the recommendation first, then what surrounds it; no request leaves it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

from planner.plans import Plan
from planner.promise import GOODPUT
from planner.report.blocks import Block, Table, rows_table, to_markdown
from planner.report.svg import Line, bars, lines
from planner.report.text import costs as costs_text
from planner.report.text import plan as plan_text
from planner.report.text.choices import HOURS_PER_MONTH
from planner.studies.overview import Overview
from planner.studies.schedule import Schedule
from planner.units import format_count, format_duration, format_percent, format_share, format_usd

__all__ = ["as_html", "as_markdown"]

STYLE = """
:root{--ink:#1b1f24;--paper:#fff;--soft:#5a6472;--rule:#d8dde3;--a:#0b62b8;--b:#1a7f4b;--c:#b5470b;--bad:#a4161a}
@media (prefers-color-scheme:dark){:root{
--ink:#e6e9ed;--paper:#14171b;--soft:#9aa4b1;--rule:#333a43;--a:#6db3f8;--b:#5fd08f;--c:#f2a36b;--bad:#ff8a8a}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;line-height:1.25}
h2{font-size:1.15rem;margin-top:2.2rem;border-bottom:1px solid var(--rule)}
.answer{font-size:1.3rem;font-weight:600;margin:.4rem 0}
table{border-collapse:collapse;font-size:.9rem;display:block;overflow-x:auto}
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}
.l{text-align:left}
svg{width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}
.axis{stroke:var(--soft);fill:none}.grid{stroke:var(--rule)}.mark{stroke:var(--ink);stroke-dasharray:3 3}
.line{fill:none;stroke-width:2}
path.a{stroke:var(--a)}path.b{stroke:var(--b)}path.c{stroke:var(--c)}
path.limit{stroke:var(--bad);stroke-dasharray:6 4;stroke-width:1.5}
circle.a,rect.a{fill:var(--a)}circle.b,rect.b{fill:var(--b)}circle.c,rect.c{fill:var(--c)}
.legend{font-size:.85rem;color:var(--soft);margin:.2rem 0}
.key{margin-right:1.2rem}.key::before{content:"\\25A0 "}
.key.a::before{color:var(--a)}.key.b::before{color:var(--b)}.key.c::before{color:var(--c)}
.key.limit::before{content:"- - ";color:var(--bad)}
summary{cursor:pointer;color:var(--soft);font-size:.85rem}
code,pre{font:.85rem ui-monospace,monospace;white-space:pre-wrap}
.warning{border-left:4px solid var(--bad);padding-left:.7rem}
footer{color:var(--soft);font-size:.85rem;margin-top:3rem}
figure{margin:1rem 0}
@media print{body{margin:0;max-width:none}h2{break-after:avoid}figure{break-inside:avoid}}
"""


def as_markdown(overview: Overview) -> str:
    """The same in words and tables, for a design document."""
    parts = [to_markdown(plan_text.blocks(overview.plan))]
    for title, _, table in _figures(overview):
        parts.append(f"## {title}\n\n" + to_markdown([table]))
    parts.append("## What it costs, and how to pay for it\n\n" + to_markdown(costs_text.blocks(overview.costs)))
    parts.append(f"## To repeat it\n\n    {overview.command}\n")
    return "\n\n".join(parts)


def as_html(overview: Overview) -> str:
    """The page."""
    plan = overview.plan
    question, answer, cost = plan_text.headline(plan)
    columns, rows = plan_text.pool_table(plan)
    head = [
        f"<h1>{_words(question)}</h1>",
        f'<p class="answer">{_words(answer)}</p><p>{_words(cost)}</p>',
        *(f'<p class="warning">{_words(line)}</p>' for line in plan.warnings),
        _table(Table(columns, rows, {*columns[:2]})),
        _list("Why", plan.explanation),
    ]
    if plan.choices is not None:
        from planner.report.text import choices

        head.append("<h2>What other choices would cost</h2>")
        head += [_block(block) for block in choices.blocks(plan.choices)]
    body = [
        f"<h2>{_words(title)}</h2><figure>{picture}<details><summary>as a table</summary>{_table(table)}</details></figure>"
        for title, picture, table in _figures(overview)
    ]
    body.append("<h2>What it costs, and how to pay for it</h2>")
    body += [_block(block) for block in costs_text.blocks(overview.costs)]
    tail = [
        _list("Assumed", plan.assumptions),
        _list("Notes", plan.notes),
        _list("Where the numbers come from", _provenance(plan)),
        f"<h2>To repeat it</h2><pre>{escape(overview.command)}</pre>",
        f"<footer>fleetopt {escape(plan.version)}, method {escape(plan.method)}</footer>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_words(answer)}</title><style>{STYLE}</style></head><body><main>"
        + "\n".join([*head, *body, *tail])
        + "</main></body></html>\n"
    )


def _figures(overview: Overview) -> list[tuple[str, str, Table]]:
    """Title, picture and the same as a table."""
    found = [*_latency_by_rate(overview), _spread(overview.plan), _tornado(overview)]
    if (curve := _promise(overview.plan)) is not None:
        found.insert(0, curve)
    if overview.schedule is not None:
        found.append(_day(overview.schedule))
    return found


def _promise(plan: Plan) -> tuple[str, str, Table] | None:
    """Cost against the limit of the promise."""
    choices = plan.choices
    if choices is None or choices.promise is None or len(choices.curve) < 2:
        return None
    points = [(limit, HOURS_PER_MONTH * cost) for limit, cost in choices.curve]
    knee = "" if choices.knee_s is None else f"; its knee is at {format_duration(choices.knee_s)}"
    title = f"What the promise costs: {choices.promise.label}{knee}"
    picture = lines(
        title, [Line("cost", points)], "limit", "$/month", format_duration, _money,
        mark_x=(choices.promise.limit_s, "as planned"), log_x=True,
    )  # fmt: skip
    return title, picture, Table(["limit", "$/month"], [[format_duration(x), _money(y)] for x, y in points])


def _latency_by_rate(overview: Overview) -> list[tuple[str, str, Table]]:
    """Every promised quantile of the fleet as it stands, over the rate."""
    plan, rows = overview.plan, overview.rates.to_rows()
    found = []
    for promise in plan.slo.promises:
        joint = promise.kind == GOODPUT
        column, told = promise.column, format_share if joint else format_duration
        by_pool: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            value = row.get(column)
            rate = row["rate_per_s"]
            if isinstance(rate, float):
                beyond = 0.0 if joint else math.inf
                by_pool.setdefault(str(row["pool"]), []).append((rate, value if isinstance(value, float) else beyond))
        by_pool = {name: points for name, points in by_pool.items() if any(math.isfinite(y) for _, y in points)}
        if not by_pool:
            continue
        rates = [x for points in by_pool.values() for x, _ in points]
        limit = promise.quantile if joint else promise.limit_s
        title = (
            f"{f'Requests within all limits ({promise.told})' if joint else promise.label} of this fleet at other rates"
        )
        drawn = [
            Line(f"pool {name}" if len(by_pool) > 1 else promise.label, p, "abc"[k % 3])
            for k, (name, p) in enumerate(by_pool.items())
        ]
        drawn.append(
            Line(
                f"promise {told(limit)}",
                [(min(rates), limit), (max(rates), limit)],
                "limit",
            )
        )
        picture = lines(
            title, drawn, "requests/s", promise.label, format_count, told,
            mark_x=(plan.arrival_rate_per_s, "planned"), log_y=not joint,
        )  # fmt: skip
        cells = [
            [
                format_count(x),
                *(told(points[k][1]) if math.isfinite(points[k][1]) else "unstable" for points in by_pool.values()),
            ]
            for k, (x, _) in enumerate(next(iter(by_pool.values())))
        ]
        found.append((title, picture, Table(["requests/s", *(f"{promise.label}, {n}" for n in by_pool)], cells)))
    return found


def _spread(plan: Plan) -> tuple[str, str, Table]:
    """Quantiles of first token, token and answer, with the band of the busiest pool's iteration times."""
    names = {"ttft_s": "time to first token", "tpot_s": "time per output token", "e2e_s": "whole answer"}
    cells, drawn = [], []
    for metric, style in zip(names, "abc", strict=True):
        worst: dict[float, float] = {}
        for pool in plan.pools:
            for v in pool.latency:
                if v.metric == metric:
                    worst[v.quantile] = max(worst.get(v.quantile, 0.0), v.value_s)
                    limit = "" if v.limit_s is None else format_duration(v.limit_s)
                    cells.append(
                        [
                            pool.name,
                            names[metric],
                            format_percent(v.quantile),
                            format_duration(v.value_s),
                            format_duration(v.low_s),
                            format_duration(v.high_s),
                            limit,
                        ]
                    )
        if worst:
            drawn.append(Line(names[metric], [(100.0 * q, s) for q, s in sorted(worst.items())], style))
    title = "How long requests take, by percentile"
    picture = lines(title, drawn, "percentile", "time", lambda x: f"{x:g}%", format_duration, log_y=True)
    return (
        title,
        picture,
        Table(["pool", "what", "percentile", "predicted", "at least", "at most", "promise"], cells, {"pool", "what"}),
    )


def _tornado(overview: Overview) -> tuple[str, str, Table]:
    """Cost a month with one thing otherwise."""
    month = HOURS_PER_MONTH

    def at(cost: float | None) -> float | None:
        return None if cost is None else month * cost

    rows = [(d.name, at(d.low_usd_per_hour), at(d.high_usd_per_hour)) for d in overview.doubts]
    title = "What matters: cost a month if one thing is otherwise"
    picture = bars(title, rows, month * overview.plan.cost_usd_per_hour, _money)
    cells = [[name, *("no fleet" if v is None else _money(v) for v in (low, high))] for name, low, high in rows]
    return title, picture, Table(["what", "one way", "the other"], cells, {"what"})


def _day(schedule: Schedule) -> tuple[str, str, Table]:
    """Replicas over the hours, with the traffic."""
    hours = range(schedule.hours)
    replicas = [sum(p.replicas[h] for p in schedule.pools) for h in hours]
    drawn = [Line("replicas", [*((float(h), float(n)) for h, n in zip(hours, replicas, strict=True))], "a", steps=True)]
    drawn.append(
        Line(
            "fleet that never changes",
            [(0.0, float(max(replicas))), (float(schedule.hours - 1), float(max(replicas)))],
            "limit",
        )
    )
    title = "Replicas by hour, if the fleet follows the traffic"
    picture = lines(title, drawn, "hour", "replicas", lambda x: f"{x:g}", format_count)
    rows = [{"hour": h, "requests/s": schedule.rates_per_s[h], "replicas": replicas[h]} for h in hours]
    return title, picture, rows_table(rows, ["hour"])


def _provenance(plan: Plan) -> list[str]:
    """Profile and price of every kind of replica."""
    return list(
        dict.fromkeys(
            f"{p.parallel} of {p.gpu}: iteration times {p.provenance}, profile {p.profile}" for p in plan.pools
        )
    )


def _money(usd: float) -> str:
    return format_usd(round(usd))


def _words(text: str) -> str:
    """Text with `code` in it."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _list(title: str, items: Sequence[str]) -> str:
    return f"<h2>{title}</h2><ul>{''.join(f'<li>{_words(item)}</li>' for item in items)}</ul>" if items else ""


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
    return _table(block) if isinstance(block, Table) else "".join(f"<p>{_words(line)}</p>" for line in block.lines)
