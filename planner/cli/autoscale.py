"""``fleetopt autoscale``: scalers derived from a plan, and their backtest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as opt


def autoscale(
    plan: Annotated[Path, typer.Argument(help="Plan file written by `fleetopt plan --format yaml -o FILE`.")],
    to: Annotated[
        str | None,
        opt.told(
            "hpa, keda or wva (llm-d's variant autoscaler, deprecated there). Default: a table of thresholds and outcomes.",
            "--to",
            "-t",
        ),
    ] = None,
    hours: Annotated[
        str | None,
        opt.told(
            "File with 24 or 168 rates, or a shipped service (servegen-m-small, ...). Default: the workload's own hours."
        ),
    ] = None,
    rate_is: Annotated[
        str, opt.told("peak: the plan's rate is the busiest hour's; mean: the mean over the hours.")
    ] = "peak",
    startup: Annotated[
        str | None, opt.told("From starting a replica until it serves: 110s. Default: estimated from the weights.")
    ] = None,
    policy: Annotated[
        list[Path] | None,
        opt.told("HorizontalPodAutoscaler or ScaledObject of yours, judged beside the derived rule. Repeat."),
    ] = None,
    clock: Annotated[
        bool,
        opt.told("Every hour also holds what its mean rate needs, started ahead: KEDA's cron triggers.", "--clock"),
    ] = False,
    deployed: Annotated[
        str, opt.told("What `deploy --to` the fleet was written with: k8s, llm-d, kserve or dynamo.")
    ] = "k8s",
    windows: Annotated[
        str | None, opt.told("Promises hold in 95% of windows of this length: 5min. Default: as the plan takes them.")
    ] = None,
    scale_to_zero: Annotated[
        str | None,
        opt.told("Without requests for so long (5min) no replica is kept; --to keda with --deployed llm-d or kserve."),
    ] = None,
    name: Annotated[str, opt.told("Objects are called NAME-POOL, as `deploy` names them.")] = "fleetopt",
    namespace: Annotated[str | None, opt.told("Kubernetes namespace. Default: not written.")] = None,
    prometheus: Annotated[str | None, opt.told("Address of Prometheus, for KEDA.")] = None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
    plot: opt.Plot = None,
) -> None:
    """The load at which a replica breaks its promise, a rule that stays below it, and how both would have done over the hours.

    Example: fleetopt autoscale plan.yaml --hours servegen-m-small --startup 110s --to keda -o keda.yaml
    """
    from planner import api
    from planner.autoscale import objects
    from planner.cli.output import draw, emit, progress_bar, say, writer
    from planner.errors import InputError
    from planner.monitor.names import find_deployed

    if to is not None and output_format is not None:
        raise InputError("--to and --format", "Objects are YAML; give one of them.")
    if to is not None:
        objects.find_kind(to, find_deployed(deployed), scale_to_zero is not None)
    if clock and to not in (None, "keda"):
        raise InputError(f"--clock: {to} has no triggers by the clock", "--to keda has.")
    write = writer(output_format, output)
    with progress_bar("trying scalers"):
        found = api.autoscale(
            plan,
            hours=hours,
            rate_is=rate_is,
            startup=startup,
            policy=policy or (),
            name=name,
            clock=clock,
            deployed=deployed,
            windows=windows,
            scale_to_zero=scale_to_zero,
        )
    if to is None:
        write(found)
        draw(found, plot)
    else:
        emit(objects.render(found, to, objects.Place(deployed, prometheus or objects.SERVER, namespace)), output)
    say(line for pool in found.pools for line in pool.lines())
    say(f"note: {line}" for line in found.notes)
