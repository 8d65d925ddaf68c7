"""``fleetopt batch``: batch jobs in the slack of a fleet, by a deadline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import planner as fo
from planner.cli import options as opt
from planner.cli.output import progress_bar
from planner.errors import InfeasibleError

OWN: opt.Table = {
    "Jobs": {
        "jobs": "Their lengths: a file as --cdf takes it, or a shipped workload. Default: the requests' own.",
        "tokens": "How much: prompt and output tokens of all jobs, 60M. Default: the file's jobs.",
        "by": ("06:00", "When the last must be done: 06:00, or 2027-01-31T06:00."),
        "start --from": "When the first may be sent. Default: a day before; with a day, now.",
        "priority": (1, "Which jobs are sent with; requests have 0, the lowest comes first."),
        "hours": "Traffic by the hour, as of `schedule`. Default: the workload's own hours, else the same rate in all.",
    },
}


@opt.verb(table=OWN, about="Plan file, whose fleet stands. Default: plan first.")
def batch(plan: Path | None, config: Path | None, **given: Any) -> Iterator[Any]:
    """How many batch jobs a fleet takes beside its requests, hour by hour, and the GPUs that the rest needs; options of plan.

    Jobs run where nobody waits (vLLM --scheduling-policy priority), as many as leave every promise kept. Exit code 4: not all fit.

    Example: fleetopt batch plan.yaml --jobs jobs.csv --from 22:00 --by 06:00 --hours servegen-m-large

    fleetopt batch --slo 0.5 --tokens 60M
    """
    with progress_bar("searching"):
        found = fo.batch(plan or config, **given)
    yield found
    if not found.fits:
        raise InfeasibleError("not all jobs are done by then")
