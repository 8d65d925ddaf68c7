"""``fleetopt deploy``, ``autoscale`` and ``check``: a plan becomes a fleet, and stays one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import planner as fo
from planner.cli import options as opt
from planner.cli.output import emit, emit_files, progress_bar, say
from planner.errors import CheckFailedError, InputError

OF_JOB = ("name", "namespace", "image", "api_key_secret")
"""What the Job takes of the fleet's own options."""

OF_JOB_ALONE = {"fleetopt": "program", "url": "url", "replay_requests": "requests", "replay_for": "seconds"}
"""What it alone takes, and what ``fo.acceptance_job`` calls it."""

FILES: opt.Table = {
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


@opt.has(FILES)
def deploy(
    plan: opt.PlanFile,
    to: str,
    acceptance: str | None,
    output: Annotated[
        Path | None, opt.told("File, or folder where there are several.", "-o", "--output", panel=opt.OUTPUT)
    ] = None,
    **given: Any,
) -> None:
    """Files that start a plan: replicas with resources and probes, the routing the plan relies on, disruption budgets.

    Example: fleetopt deploy plan.yaml --to k8s -o fleet.yaml
    """
    job = {to: given.pop(name) for name, to in OF_JOB_ALONE.items()}
    if acceptance is None:
        found = fo.deploy(plan, to, **given)
    elif job["program"] is None:
        raise InputError(
            "--acceptance: what it judges with is missing", "Give --fleetopt IMAGE:TAG, or the address of a wheel."
        )
    else:
        own = {name: given[name] for name in OF_JOB}
        found = fo.acceptance_job(plan, to, generator=acceptance, **job, **own)
    if acceptance is None and len(found.files) > 1 and output is not None:
        emit_files(found.files, output)
    else:
        emit(found.text, output)
    say(f"note: {line}" for line in found.notes)


SCALERS: opt.Table = {
    "": {
        "to -t": "hpa, keda or wva (llm-d's variant autoscaler, deprecated there). Default: a table of thresholds and outcomes.",
        "hours": "File with 24 or 168 rates, or a shipped service (servegen-m-small, ...). Default: the workload's own hours.",
        "rate_is": ("peak", "peak: the plan's rate is the busiest hour's; mean: the mean over the hours."),
        "startup": "From starting a replica until it serves: 110s. Default: estimated from the weights.",
        "policy": (list[Path], "HorizontalPodAutoscaler or ScaledObject of yours, judged beside the derived rule. Repeat."),
        "clock": (False, "Every hour also holds what its mean rate needs, started ahead: KEDA's cron triggers."),
        "deployed": ("k8s", "What `deploy --to` the fleet was written with: k8s, llm-d, kserve or dynamo."),
        "windows": "Promises hold in 95% of windows of this length: 5min. Default: as the plan takes them.",
        "scale_to_zero": "Without requests for so long (5min) no replica is kept; --to keda with --deployed llm-d or kserve.",
        "name": ("fleetopt", "Objects are called NAME-POOL, as `deploy` names them."),
        "namespace": "Kubernetes namespace. Default: not written.",
        "prometheus": "Address of Prometheus, for KEDA.",
    },
}  # fmt: skip


@opt.verb(table=SCALERS, plot=True)
def autoscale(
    plan: opt.PlanFile,
    to: str | None,
    namespace: str | None,
    prometheus: str | None,
    output_format: str | None,
    **given: Any,
) -> Iterator[Any]:
    """The load at which a replica breaks its promise, a rule that stays below it, and how both would have done over the hours.

    Example: fleetopt autoscale plan.yaml --hours servegen-m-small --startup 110s --to keda -o keda.yaml
    """
    from planner.operate.autoscale import objects
    from planner.operate.monitor.names import find_deployed

    deployed = given["deployed"]
    if to is not None and output_format is not None:
        raise InputError("--to and --format", "Objects are YAML; give one of them.")
    if to is not None:
        objects.find_kind(to, find_deployed(deployed), given["scale_to_zero"] is not None)
    if given["clock"] and to not in (None, "keda"):
        raise InputError(f"--clock: {to} has no triggers by the clock", "--to keda has.")
    with progress_bar("trying scalers"):
        found = fo.autoscale(plan, **given)
    place = objects.Place(deployed, prometheus or objects.SERVER, namespace)
    yield found if to is None else objects.render(found, to, place)
    say(line for pool in found.pools for line in pool.lines())
    say(f"note: {line}" for line in found.notes)


OF_REPLAY = {
    "rate": "rate",
    "replay_requests": "requests",
    "replay_for": "seconds",
    "served_model_name": "served_model",
}
"""Options of --replay, and what ``fo.accept`` calls them."""

CHECKED: opt.Table = {
    "": {
        "prometheus -p": "Address of a Prometheus server, or a file of its answers to range queries (JSON).",
        "window": ("1h", "How far back to look, 1min to 14 days."),
        "selector": ("", "Label matchers of the fleet's series: 'namespace=\"serving\"'."),
        "name": ("fleetopt", "Objects of the fleet are called NAME-POOL, as `deploy` names them."),
        "api_key_env": "Environment variable with a bearer token for the server.",
        "save": (Path, "Keep the server's answers in this file, to look again."),
        "emit_rules": (Path, "Write Prometheus rules and a Grafana dashboard of the plan into this folder."),
        "to -t": (
            "files",
            "With --emit-rules: files, or kubernetes (PodMonitor, PrometheusRule, the dashboard's ConfigMap, and Google's).",
        ),
        "deployed": "What `deploy --to` the fleet was written with: k8s, llm-d, kserve or dynamo.",
        "namespace": "Kubernetes namespace of the fleet, for --emit-rules.",
        "policy": (
            list[Path], "The scaler of the fleet (what `autoscale --to` wrote, or yours): it says how many replicas to expect."
        ),
        "replay": "Send the planned traffic to this address and judge the promises by the answers; or judge a file of a load "
        "generator (vllm bench serve --save-detailed, GuideLLM).",
        "replay_requests": (2000, "Requests sent at most."),
        "replay_for": ("5min", "How long they are sent at most."),
        "rate": (float, "Requests sent a second. Default: the plan's rate."),
        "served_model_name": "Name the server knows the model by. Default: the repository of its weights.",
    },
}  # fmt: skip


@opt.verb(table=CHECKED)
def check(
    plan: opt.PlanFile,
    prometheus: str | None,
    window: str,
    selector: str,
    api_key_env: str | None,
    save: Path | None,
    emit_rules: Path | None,
    replay: str | None,
    **given: Any,
) -> Iterator[Any]:
    """Metrics of a running fleet against its plan at the traffic measured: what moved, which promises hold, what it would be now.

    With --replay it accepts a fleet before its users come. Exit code 6 when a promise is broken or about to be, or was not shown
    to be kept. Example: fleetopt check plan.yaml --prometheus http://localhost:9090
    """
    sent = {to: given.pop(name) for name, to in OF_REPLAY.items()}
    if emit_rules is not None:
        emit_files(fo.monitoring_rules(plan, selector=selector, **given), emit_rules)
        if prometheus is None:
            return
    key = None
    if api_key_env is not None and (key := os.environ.get(api_key_env)) is None:
        raise InputError(f"--api-key-env: {api_key_env} is not set")
    if replay is not None:
        yield (accepted := fo.accept(plan, replay, api_key=key, **sent))
        say(accepted.lines())
        if accepted.state != "kept":
            raise CheckFailedError(f"the promises are {accepted.state}")
        return
    if prometheus is None:
        raise InputError(
            "no metrics to look at", "Give --prometheus URL or FILE, --replay URL, or --emit-rules FOLDER."
        )
    series = fo.metrics(prometheus, window=window, selector=selector, api_key=key)
    if save is not None:
        from planner.operate.monitor.measured import to_file

        emit(to_file(series), save)
    yield (found := fo.check(plan, series, name=given["name"], policy=given["policy"]))
    say(found.lines())
    if found.state != "kept":
        raise CheckFailedError(f"a promise is {found.state}")
