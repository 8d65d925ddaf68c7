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
    revision: Annotated[str | None, opt.told("Commit or tag of the weights' repository. Default: its newest.")] = None,
    api_key_secret: Annotated[
        str | None, opt.told("Secret whose `api-key` requests must bear. Default: they need none.")
    ] = None,
    router_image: Annotated[
        str | None, opt.told("Image of what stands before the replicas, by tag or digest. Default: the target's own.")
    ] = None,
    platform: Annotated[str, opt.told("Whose node labels name the GPUs: generic, gke, eks, aks.")] = "generic",
    replicas_by: Annotated[
        str, opt.told("Who says how many replicas there are: plan, or scaler, which leaves `replicas` out.")
    ] = "plan",
    layout: Annotated[str, opt.told("file, or kustomize: a base and an overlay, in a folder.")] = "file",
    prometheus_namespace: Annotated[str, opt.told("Namespace that network policies let read metrics.")] = "monitoring",
    acceptance: Annotated[
        str | None,
        opt.told(
            "A Job that sends the fleet its planned traffic and judges it, instead of the fleet: by vllm or guidellm."
        ),
    ] = None,
    fleetopt: Annotated[
        str | None, opt.told("What the Job judges with: an image with fleetopt in it, or the address of its wheel.")
    ] = None,
    url: Annotated[str | None, opt.told("Where the Job sends requests. Default: the service of the target.")] = None,
    replay_requests: Annotated[int, opt.told("Requests of the Job at most.")] = 2000,
    replay_for: Annotated[str, opt.told("How long the Job sends at most.")] = "5min",
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
    from planner.errors import InputError

    if acceptance is not None:
        if fleetopt is None:
            raise InputError(
                "--acceptance: what it judges with is missing", "Give --fleetopt IMAGE:TAG, or the address of a wheel."
            )
        job = api.acceptance_job(
            plan,
            to,
            generator=acceptance,
            program=fleetopt,
            url=url,
            requests=replay_requests,
            seconds=replay_for,
            name=name,
            namespace=namespace,
            image=image,
            api_key_secret=api_key_secret,
        )
        emit(job.text, output)
        say(f"note: {line}" for line in job.notes)
        return
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
        revision=revision,
        api_key_secret=api_key_secret,
        router_image=router_image,
        platform=platform,
        replicas_by=replicas_by,
        layout=layout,
        prometheus_namespace=prometheus_namespace,
    )
    if len(found.files) > 1 and output is not None:
        emit_files(found.files, output)
    else:
        emit(found.text, output)
    say(f"note: {line}" for line in found.notes)
