"""Growing traffic: what to order by when."""

from __future__ import annotations

from planner.report.blocks import Block, Table, Text
from planner.report.text.choices import HOURS_PER_MONTH
from planner.studies.growth import DAY_S, Growth
from planner.units import format_count, format_percent, format_usd

COLUMNS = ("month from", "rate/s at its end", "GPUs", "$/month", "order", "by", "replicas")


def blocks(growth: Growth) -> list[Block]:
    """Today, then a row per month."""
    have = ", ".join(f"{n:,} {gpu}" for gpu, n in growth.gpus.items())
    first = next((m for m in growth.months if m.new_gpus), None)
    days = growth.lead_time_s / DAY_S
    lines = [
        f"{format_count(growth.rate_per_s)} requests/s today, {format_percent(growth.monthly_growth)} more every month; "
        f"a GPU serves {days:g} days after it is ordered",
        f"{have} today; "
        + (
            "enough for all these months"
            if first is None
            else f"the first order is due {first.order_by}{_late(first.late)}"
        ),
    ]
    rows = [
        [
            m.starts,
            format_count(m.rate_per_s),
            format_count(sum(m.gpus.values())),
            format_usd(round(HOURS_PER_MONTH * m.cost_usd_per_hour)),
            ", ".join(f"{n:,} {gpu}" for gpu, n in m.new_gpus.items()) or "-",
            "-" if m.order_by is None else m.order_by + _late(m.late),
            " + ".join(f"{n:,}" for n in m.replicas),
        ]
        for m in growth.months
    ]
    return [
        Text([lines[0]], "heading"),
        Text([lines[1]], "bold", near=True),
        Table(COLUMNS, rows, {"month from", "order", "by", "replicas"}),
    ]


def _late(late: bool) -> str:
    """The word for an order whose day is past."""
    return " (late)" if late else ""
