"""How the pages about a fleet that stands begin and end."""

from __future__ import annotations

from planner.plans import HOURS_PER_YEAR
from planner.report.text.plan import unmeasured, usd
from planner.studies.evaluation import Served
from planner.units import format_count


def question(served: Served) -> str:
    """Model, traffic and promises."""
    lengths = " / ".join(
        f"{format_count(round(mean))} {side}"
        for mean, side in ((served.mean_input_tokens, "in"), (served.mean_output_tokens, "out"))
    )
    return f"{served.model}   {served.workload}: {lengths}   {', '.join(served.promises)}"


def fleet(served: Served) -> str:
    """What it is and costs."""
    gpus = " + ".join(f"{n:,} x {gpu}" for gpu, n in served.gpus.items())
    return f"{gpus}   {usd(HOURS_PER_YEAR * served.cost_usd_per_hour)} a year"


def promised(served: Served) -> str:
    """What is kept or broken."""
    return "the promise" if len(served.promises) == 1 else "every promise"


def before_signing(served: Served) -> list[str]:
    """What the answer rests on that a person can check."""
    return [unmeasured(gpu, trust) for gpu, trust in served.trust.items() if "measured" not in trust]
