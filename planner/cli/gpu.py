"""``fleetopt gpu``: the GPUs of the catalog, every number with its source, the price with its day."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import options as opt

app = typer.Typer(
    name="gpu", help="GPUs: list the catalog, show one with the source of every number.", no_args_is_help=True
)


@app.command("list")
def list_gpus(output_format: opt.Format = None, output: opt.OutputFile = None) -> None:
    """The GPUs a plan can be asked for, with memory, speed and the price a plan takes."""
    from planner.catalog.load import gpus
    from planner.cli.output import writer
    from planner.report.listings.catalog import gpu_list

    write = writer(output_format, output)
    write(gpu_list(tuple(gpus().values())))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name, or any alias: h100, H200 SXM, l40s.")],
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
) -> None:
    """Every number of a GPU with its source; the price with vendor, term and day.

    Example: fleetopt gpu show h100
    """
    from planner.catalog.load import gpu, price_offers
    from planner.catalog.prices import reference_offer
    from planner.cli.output import writer
    from planner.report.listings.catalog import gpu_entry

    write = writer(output_format, output)
    spec = gpu(name)
    write(gpu_entry(spec, reference_offer(price_offers(), spec.name)))
