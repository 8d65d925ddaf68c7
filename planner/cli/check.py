"""``fleetopt check``: does the plan still fit what its fleet does?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as opt


def check(
    plan: Annotated[Path, typer.Argument(help="Plan file written by `fleetopt plan --format yaml -o FILE`.")],
    prometheus: Annotated[
        str | None,
        opt.told(
            "Address of a Prometheus server, or a file of its answers to range queries (JSON).", "--prometheus", "-p"
        ),
    ] = None,
    window: Annotated[str, opt.told("How far back to look, 1min to 14 days.")] = "1h",
    selector: Annotated[str, opt.told("Label matchers of the fleet's series: 'namespace=\"serving\"'.")] = "",
    name: Annotated[str, opt.told("Objects of the fleet are called NAME-POOL, as `deploy` names them.")] = "fleetopt",
    api_key_env: Annotated[str | None, opt.told("Environment variable with a bearer token for the server.")] = None,
    save: Annotated[Path | None, opt.told("Keep the server's answers in this file, to look again.")] = None,
    emit_rules: Annotated[
        Path | None, opt.told("Write Prometheus rules and a Grafana dashboard of the plan into this folder.")
    ] = None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
) -> None:
    """Metrics of a running fleet against its plan at the traffic measured: what moved, which promises hold, what it would be now.

    Exit code 6 when a promise is broken or about to be. Example: fleetopt check plan.yaml --prometheus http://localhost:9090
    """
    import os

    from planner import api
    from planner.cli.output import emit, emit_files, say, writer
    from planner.errors import CheckFailedError, InputError

    write = writer(output_format, output)
    if emit_rules is not None:
        emit_files(api.monitoring_rules(plan, name=name, selector=selector), emit_rules)
        if prometheus is None:
            return
    if prometheus is None:
        raise InputError("no metrics to look at", "Give --prometheus URL or FILE, or --emit-rules FOLDER.")
    key = None
    if api_key_env is not None and (key := os.environ.get(api_key_env)) is None:
        raise InputError(f"--api-key-env: {api_key_env} is not set")
    series = api.metrics(prometheus, window=window, selector=selector, api_key=key)
    if save is not None:
        from planner.monitor.prometheus import to_file

        emit(to_file(series), save)
    found = api.check(plan, series, name=name)
    write(found)
    say(found.lines())
    if found.state != "kept":
        raise CheckFailedError(f"a promise is {found.state}")
