"""``fleetopt model``: the models of the catalog, and what a ``config.json`` is understood as."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import options as opt

app = typer.Typer(
    name="model",
    help="Models: list those of the catalog, show one, or a config.json, with its source.",
    no_args_is_help=True,
)


@app.command("list")
def list_models(output_format: opt.Format = None, output: opt.OutputFile = None) -> None:
    """The models known by name, with size, context and the dtype they are served in."""
    from planner.catalog.load import models
    from planner.cli.output import writer
    from planner.report.listings.catalog import model_list

    write = writer(output_format, output)
    write(model_list(tuple(models().values())))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name, alias, Hugging Face id, or the path of a config.json.")],
    like: Annotated[
        str | None, opt.told("Family whose arithmetic to take for an unknown architecture.", "--like")
    ] = None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
) -> None:
    """What a model is understood as: its shape, where that is from, and the KV cache of a token.

    Example: fleetopt model show llama-3.1-8b
    """
    from planner.catalog.kv import kv_bytes_per_token
    from planner.catalog.load import model
    from planner.cli.output import writer
    from planner.report.listings.catalog import model_entry

    write = writer(output_format, output)
    spec = model(name, like=like)
    write(model_entry(spec, kv_bytes_per_token(spec)))
