"""``fleetopt deploy``: a plan as files that start it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as opt
from planner.cli.output import emit, emit_files, say
from planner.errors import InputError

OWN: opt.Table = {
    "": {
        "to -t": ("k8s", "Where to: k8s, kserve, llm-d, compose, systemd, production-stack, dynamo."),
        "name": ("fleetopt", "Objects are called NAME-POOL."),
        "namespace": "Kubernetes namespace. Default: not written.",
        "engine": "vllm, sglang or trtllm. Default: that of the plan's profile.",
        "image": "Container image of the engine. Default: the engine's own.",
        "model_id": "Hugging Face repository or folder of the weights. Default: the catalog's.",
        "startup": "From starting a replica until it serves: 110s. Default: estimated from the weights.",
        "cache": "Volume claim (or folder of the host) that keeps the weights. Default: downloaded.",
        "revision": "Commit or tag of the weights' repository. Default: its newest.",
        "api_key_secret": "Secret whose `api-key` requests must bear. Default: they need none.",
        "router_image": "Image of what stands before the replicas, by tag or digest. Default: the target's own.",
        "platform": ("generic", "Whose node labels name the GPUs: generic, gke, eks, aks."),
        "replicas_by": ("plan", "Who says how many replicas there are: plan, or scaler, which leaves `replicas` out."),
        "layout": ("file", "file, or kustomize: a base and an overlay, in a folder."),
        "prometheus_namespace": ("monitoring", "Namespace that network policies let read metrics."),
        "acceptance": "A Job that sends the fleet its planned traffic and judges it, instead of the fleet: by vllm or guidellm.",
        "fleetopt": "What the Job judges with: an image with fleetopt in it, or the address of its wheel.",
        "url": "Where the Job sends requests. Default: the service of the target.",
        "replay_requests": (2000, "Requests of the Job at most."),
        "replay_for": ("5min", "How long the Job sends at most."),
    }
}

OF_JOB = ("name", "namespace", "image", "api_key_secret")
"""What the Job takes of the fleet's own options."""

OF_JOB_ALONE = {"fleetopt": "program", "url": "url", "replay_requests": "requests", "replay_for": "seconds"}
"""What it alone takes, and what :func:`planner.api.acceptance_job` calls it."""


@opt.has(OWN)
def deploy(
    plan: opt.PlanFile,
    to: str,
    acceptance: str | None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File, or folder where there are several.", rich_help_panel=opt.OUTPUT),
    ] = None,
    **given: Any,
) -> None:
    """Files that start a plan: replicas with resources and probes, the routing the plan relies on, disruption budgets.

    Example: fleetopt deploy plan.yaml --to k8s -o fleet.yaml
    """
    from planner import api

    job = {to: given.pop(name) for name, to in OF_JOB_ALONE.items()}
    if acceptance is None:
        found = api.deploy(plan, to, **given)
    elif job["program"] is None:
        raise InputError(
            "--acceptance: what it judges with is missing", "Give --fleetopt IMAGE:TAG, or the address of a wheel."
        )
    else:
        own = {name: given[name] for name in OF_JOB}
        found = api.acceptance_job(plan, to, generator=acceptance, **job, **own)
    if acceptance is None and len(found.files) > 1 and output is not None:
        emit_files(found.files, output)
    else:
        emit(found.text, output)
    say(f"note: {line}" for line in found.notes)
