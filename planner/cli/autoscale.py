"""``fleetopt autoscale``: scalers derived from a plan, and their backtest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.cli import options as opt
from planner.cli.output import draw, emit, progress_bar, say, writer
from planner.errors import InputError

OWN: opt.Table = {
    "": {
        "to -t": "hpa, keda or wva (llm-d's variant autoscaler, deprecated there). Default: a table of thresholds and outcomes.",
        "hours": "File with 24 or 168 rates, or a shipped service (servegen-m-small, ...). Default: the workload's own hours.",
        "rate_is": ("peak", "peak: the plan's rate is the busiest hour's; mean: the mean over the hours."),
        "startup": "From starting a replica until it serves: 110s. Default: estimated from the weights.",
        "policy": (
            list[Path],
            "HorizontalPodAutoscaler or ScaledObject of yours, judged beside the derived rule. Repeat.",
        ),
        "clock": (False, "Every hour also holds what its mean rate needs, started ahead: KEDA's cron triggers."),
        "deployed": ("k8s", "What `deploy --to` the fleet was written with: k8s, llm-d, kserve or dynamo."),
        "windows": "Promises hold in 95% of windows of this length: 5min. Default: as the plan takes them.",
        "scale_to_zero": "Without requests for so long (5min) no replica is kept; --to keda with --deployed llm-d or kserve.",
        "name": ("fleetopt", "Objects are called NAME-POOL, as `deploy` names them."),
        "namespace": "Kubernetes namespace. Default: not written.",
        "prometheus": "Address of Prometheus, for KEDA.",
    }
}


@opt.has(OWN)
def autoscale(
    plan: opt.PlanFile,
    to: str | None,
    namespace: str | None,
    prometheus: str | None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
    plot: opt.Plot = None,
    **given: Any,
) -> None:
    """The load at which a replica breaks its promise, a rule that stays below it, and how both would have done over the hours.

    Example: fleetopt autoscale plan.yaml --hours servegen-m-small --startup 110s --to keda -o keda.yaml
    """
    from planner import api
    from planner.autoscale import objects
    from planner.monitor.names import find_deployed

    deployed = given["deployed"]
    if to is not None and output_format is not None:
        raise InputError("--to and --format", "Objects are YAML; give one of them.")
    if to is not None:
        objects.find_kind(to, find_deployed(deployed), given["scale_to_zero"] is not None)
    if given["clock"] and to not in (None, "keda"):
        raise InputError(f"--clock: {to} has no triggers by the clock", "--to keda has.")
    write = writer(output_format, output)
    with progress_bar("trying scalers"):
        found = api.autoscale(plan, **given)
    if to is None:
        write(found)
        draw(found, plot)
    else:
        emit(objects.render(found, to, objects.Place(deployed, prometheus or objects.SERVER, namespace)), output)
    say(line for pool in found.pools for line in pool.lines())
    say(f"note: {line}" for line in found.notes)
