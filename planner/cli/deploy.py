"""``fleetopt deploy``: a plan as files that start it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as opt


def deploy(
    plan: Annotated[Path, typer.Argument(help="Plan file written by `fleetopt plan --format yaml -o FILE`.")],
    to: Annotated[
        str, opt.told("Where to: k8s, kserve, llm-d, compose, systemd, production-stack, dynamo.", "--to", "-t")
    ] = "k8s",
    name: Annotated[str, opt.told("Objects are called NAME-POOL.")] = "fleetopt",
    namespace: Annotated[str | None, opt.told("Kubernetes namespace. Default: not written.")] = None,
    engine: Annotated[str | None, opt.told("vllm, sglang or trtllm. Default: that of the plan's profile.")] = None,
    image: Annotated[str | None, opt.told("Container image of the engine. Default: the engine's own.")] = None,
    model_id: Annotated[
        str | None, opt.told("Hugging Face repository or folder of the weights. Default: the catalog's.")
    ] = None,
    startup: Annotated[
        str | None, opt.told("From starting a replica until it serves: 110s. Default: estimated from the weights.")
    ] = None,
    cache: Annotated[
        str | None, opt.told("Volume claim (or folder of the host) that keeps the weights. Default: downloaded.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File, or folder where there are several.", rich_help_panel=opt.OUTPUT),
    ] = None,
) -> None:
    """Files that start a plan: replicas with resources and probes, the routing the plan relies on, disruption budgets.

    Example: fleetopt deploy plan.yaml --to k8s -o fleet.yaml
    """
    from planner import api
    from planner.cli.output import emit, emit_files, say

    found = api.deploy(
        plan,
        to,
        name=name,
        namespace=namespace,
        engine=engine,
        image=image,
        model_id=model_id,
        startup=startup,
        cache=cache,
    )
    if len(found.files) > 1 and output is not None:
        emit_files(found.files, output)
    else:
        emit(found.text, output)
    say(f"note: {line}" for line in found.notes)
