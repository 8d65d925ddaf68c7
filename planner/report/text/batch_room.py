"""Batch beside requests: how much is done by the deadline, what the rest takes, and the hours."""

from __future__ import annotations

from planner.report.blocks import Block, Text, rows_table
from planner.report.text import served as of_served
from planner.studies.batch import BatchRoom
from planner.units import format_usd

FIRST = ("time", "rate_per_s", "jobs_per_s", "tokens")


def blocks(room: BatchRoom) -> list[Block]:
    """The answer, how jobs are sent, a row per hour and pool."""
    served = room.served
    takes = f"TAKES  {_many(room.room_tokens)} batch tokens by {room.deadline}"
    if room.asked_jobs is None or room.asked_tokens is None:
        takes += f" ({room.room_jobs:,} jobs)"
    else:
        more = " and ".join(f"{n:,} {gpu}" for gpu, n in room.more.items())
        does = f"need {more} more ({format_usd(room.more_usd_per_hour)}/hour)" if more else "fit"
        takes += f"; the {_many(room.asked_tokens)} asked for ({room.asked_jobs:,} jobs) {does}"
    flags = " ".join(room.flags)
    lines = [
        f"{of_served.fleet(served)}, {of_served.promised(served)} kept",
        f"jobs of {room.mean_tokens:,.0f} tokens, from {room.start} to {room.deadline}",
        f'send no more than jobs_per_s, each with "priority": {room.priority}; '
        + (
            f"start the engines with {flags}"
            if flags
            else "their engine has no order of priorities: send them from a gateway that has"
        ),
    ]
    rows = [
        row if len({r.pool for r in room.rows}) > 1 else {k: v for k, v in row.items() if k != "pool"}
        for row in room.to_rows()
    ]
    checks = of_served.before_signing(served)
    return [
        Text([of_served.question(served)], "heading"),
        Text([takes], "bold"),
        Text(lines, label="     ", near=True),
        rows_table(rows, FIRST),
        Text(["BEFORE YOU SIGN"] if checks else []),
        Text(checks, "bullets", label="  ! ", near=True),
    ]


def _many(tokens: float) -> str:
    """Tokens by the million or thousand, three digits of them: ``"41.2M"``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if tokens >= size:
            return f"{tokens / size:.3g}{letter}"
    return f"{tokens:,.0f}"
