"""``fleetopt cost``: a plan as finance sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as opt

TIME, PAYING, APIS, ENERGY = "Time", "Paying", "An API beside it", "Energy"


def cost(
    plan: Annotated[Path, typer.Argument(help="Plan or configuration file (YAML or JSON).")],
    hours: Annotated[
        str | None,
        opt.told(
            "File with 24 or 168 rates, or a shipped service. Default: the workload's own, else flat.", panel=TIME
        ),
    ] = None,
    rate_is: Annotated[
        str | None,
        opt.told(
            "The plan's rate is the busiest hour's (peak) or the mean of the hours. Default: as it was planned.",
            panel=TIME,
        ),
    ] = None,
    startup: Annotated[str, opt.told("From starting a replica until it serves.", panel=TIME)] = "4min",
    dwell: Annotated[str, opt.told("Least time a pool keeps its number of replicas.", panel=TIME)] = "1h",
    reserved: Annotated[
        list[str] | None,
        opt.told("Offer of reserved GPUs, GPU=USD@TERM: h100=1.79@1y. Repeat. Default: the price lists.", panel=PAYING),
    ] = None,
    spot_share: Annotated[
        str, opt.told("Largest share of every hour's GPUs on spot capacity: 30%.", panel=PAYING)
    ] = "0",
    preemptions: Annotated[float, opt.told("Times an hour that a spot replica is taken away.", panel=PAYING)] = 0.05,
    shortfall: Annotated[
        str,
        opt.told("Chance allowed that fewer spot replicas are up than needed; spares are bought for it.", panel=PAYING),
    ] = "1%",
    api_prices: Annotated[
        Path | None, opt.told("Prices of model APIs, a file in genai-prices' format (YAML or JSON).", panel=APIS)
    ] = None,
    api_model: Annotated[
        list[str] | None,
        opt.told("Which of them, MODEL or PROVIDER/MODEL; repeat. Default: named as the plan's.", panel=APIS),
    ] = None,
    rent_peak: Annotated[
        bool, opt.told("How many GPUs to own where others, or each API, take the rest.", "--rent-peak", panel=PAYING)
    ] = False,
    pue: Annotated[float, opt.told("Power at the meter over that of the GPUs: servers, cooling.", panel=ENERGY)] = 1.0,
    kwh_price: Annotated[float | None, opt.told("Price of electricity, USD/kWh.", panel=ENERGY)] = None,
    co2: Annotated[float | None, opt.told("Carbon intensity of electricity, g/kWh.", panel=ENERGY)] = None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
    plot: opt.Plot = None,
) -> None:
    """What a plan costs as finance sees it: reserved, on-demand and spot over its hours, tokens in and out, an API, energy.

    Example: fleetopt cost plan.yaml --hours servegen-m-small --reserved h100=1.79@1y --spot-share 30% --co2 350
    """
    from planner import api
    from planner.cli.output import draw, progress_bar, writer

    write = writer(output_format, output)
    with progress_bar("pricing"):
        result = api.cost(
                plan, hours=hours, startup=startup, dwell=dwell, reserved=reserved or (), spot_share=spot_share,
                preemptions_per_hour=preemptions, shortfall=shortfall, api_prices=api_prices, api_models=api_model or (),
                rent_peak=rent_peak, pue=pue, kwh_price=kwh_price, co2=co2, rate_is=rate_is,
        )  # fmt: skip
    write(result)
    draw(result, plot)
