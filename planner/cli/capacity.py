"""``fleetopt capacity``: the largest rate with all promises, of a plan's fleet or of the GPUs there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planner as fo
from planner.cli import options as opt
from planner.cli.output import progress_bar

OWN: opt.Table = {"": {"have": (list[str], "GPUs there are: h100=24. Repeat; traffic is cut by length and by share.")}}


@opt.verb(table=OWN, about="Plan file, whose fleet stands. Default: the GPUs of --have.")
def capacity(plan: Path | None, config: Path | None, **given: Any) -> Any:
    """The largest rate with all promises, the fleet that carries it and what binds: the inverse of plan, with its options.

    Example: fleetopt capacity --have h100=24 --have a100=40 --cdf azure --slo 0.5

    fleetopt capacity plan.yaml
    """
    with progress_bar("searching"):
        return fo.capacity(plan or config, **given)
