"""``fleetopt cost``: a plan as finance sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.cli import options as opt
from planner.cli.output import progress_bar

OWN: opt.Table = {
    "Time": {
        "hours": "File with 24 or 168 rates, or a shipped service. Default: the workload's own, else flat.",
        "rate_is": "The plan's rate is the busiest hour's (peak) or the mean of the hours. Default: as it was planned.",
        "startup": ("4min", "From starting a replica until it serves."),
        "dwell": ("1h", "Least time a pool keeps its number of replicas."),
    },
    "Paying": {
        "reserved": (
            list[str],
            "Offer of reserved GPUs, GPU=USD@TERM: h100=1.79@1y. Repeat. Default: the price lists.",
        ),
        "spot_share": ("0", "Largest share of every hour's GPUs on spot capacity: 30%."),
        "preemptions_per_hour --preemptions": (0.05, "Times an hour that a spot replica is taken away."),
        "shortfall": ("1%", "Chance allowed that fewer spot replicas are up than needed; spares are bought for it."),
        "rent_peak": (False, "How many GPUs to own where others, or each API, take the rest."),
    },
    "An API beside it": {
        "api_prices": (Path, "Prices of model APIs, a file in genai-prices' format (YAML or JSON)."),
        "api_models --api-model": (
            list[str],
            "Which of them, MODEL or PROVIDER/MODEL; repeat. Default: named as the plan's.",
        ),
    },
    "Energy": {
        "pue": (1.0, "Power at the meter over that of the GPUs: servers, cooling."),
        "kwh_price": (float, "Price of electricity, USD/kWh."),
        "co2": (float, "Carbon intensity of electricity, g/kWh."),
    },
}


@opt.verb(table=OWN, plot=True)
def cost(plan: opt.Base, **given: Any) -> Any:
    """What a plan costs as finance sees it: reserved, on-demand and spot over its hours, tokens in and out, an API, energy.

    Example: fleetopt cost plan.yaml --hours servegen-m-small --reserved h100=1.79@1y --spot-share 30% --co2 350
    """
    from planner import api

    with progress_bar("pricing"):
        return api.cost(plan, **given)
