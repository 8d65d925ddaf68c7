"""``fleetopt deploy``, ``autoscale`` and ``check``: a plan becomes a fleet, and stays one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import planner as fo
from planner.cli import options as opt
from planner.cli.output import emit, emit_files, progress_bar, say
from planner.errors import CheckFailedError, InputError

OF_JOB = ("name", "namespace", "image", "api_key_secret")
"""What the Job takes of the fleet's own options."""

JOB = opt.Verb(
    "acceptance_job",
    flags={"program": "--fleetopt", "requests": "--replay-requests", "seconds": "--replay-for"},
    defaults={"program": None},
    without=("generator",),
)


@opt.asks(opt.Verb("deploy", flags={"to": "-t"}), JOB)
def deploy(plan: opt.PlanFile, to: str, acceptance: str | None, output: Path | None, **given: Any) -> None:
    """Files that start a plan: replicas with resources and probes, the routing the plan relies on, disruption budgets.

    Example: fleetopt deploy plan.yaml --to k8s -o fleet.yaml

    Parameters
    ----------
    acceptance
        A Job that sends the fleet its planned traffic and judges it, instead of the fleet: by vllm or guidellm.

    Output
    ------
    output, -o, --output
        File, or folder where there are several.
    """
    job = {name: given.pop(name) for name in ("program", "url", "requests", "seconds")}
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


@opt.verb(opt.Verb("autoscale"), plot=True)
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

    Parameters
    ----------
    to, -t
        hpa, keda or wva (llm-d's variant autoscaler, deprecated there). Default: a table of thresholds and outcomes.
    namespace
        Kubernetes namespace. Default: not written.
    prometheus
        Address of Prometheus, for KEDA.
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


@opt.verb(
    opt.Verb("metrics", flags={"prometheus": "-p"}, without=("api_key",)),
    opt.Verb("monitoring_rules", flags={"to": "-t"}),
    opt.Verb(
        "accept",
        flags={"requests": "--replay-requests", "seconds": "--replay-for", "served_model": "--served-model-name"},
        without=("server", "api_key"),
    ),
)
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

    Parameters
    ----------
    api_key_env
        Environment variable with a bearer token for the server.
    save
        Keep the server's answers in this file, to look again.
    emit_rules
        Write Prometheus rules and a Grafana dashboard of the plan into this folder.
    replay
        Send the planned traffic to this address and judge the promises by the answers; or judge a file of a load generator
        (vllm bench serve --save-detailed, GuideLLM).
    """
    sent = {name: given.pop(name) for name in ("rate", "requests", "seconds", "served_model")}
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
