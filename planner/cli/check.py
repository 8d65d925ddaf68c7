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
    to: Annotated[
        str,
        opt.told(
            "With --emit-rules: files, or kubernetes (PodMonitor, PrometheusRule, the dashboard's ConfigMap, and Google's).",
            "--to",
            "-t",
        ),
    ] = "files",
    deployed: Annotated[
        str | None, opt.told("What `deploy --to` the fleet was written with: k8s, llm-d, kserve or dynamo.")
    ] = None,
    namespace: Annotated[str | None, opt.told("Kubernetes namespace of the fleet, for --emit-rules.")] = None,
    policy: Annotated[
        list[Path] | None,
        opt.told(
            "The scaler of the fleet (what `autoscale --to` wrote, or yours): it says how many replicas to expect."
        ),
    ] = None,
    replay: Annotated[
        str | None,
        opt.told(
            "Send the planned traffic to this address and judge the promises by the answers; or judge a file of a load generator "
            "(vllm bench serve --save-detailed, GuideLLM)."
        ),
    ] = None,
    replay_requests: Annotated[int, opt.told("Requests sent at most.")] = 2000,
    replay_for: Annotated[str, opt.told("How long they are sent at most.")] = "5min",
    rate: Annotated[float | None, opt.told("Requests sent a second. Default: the plan's rate.")] = None,
    served_model_name: Annotated[
        str | None, opt.told("Name the server knows the model by. Default: the repository of its weights.")
    ] = None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
) -> None:
    """Metrics of a running fleet against its plan at the traffic measured: what moved, which promises hold, what it would be now.

    With --replay it accepts a fleet before its users come. Exit code 6 when a promise is broken or about to be, or was not shown
    to be kept. Example: fleetopt check plan.yaml --prometheus http://localhost:9090
    """
    import os

    from planner import api
    from planner.cli.output import emit, emit_files, say, writer
    from planner.errors import CheckFailedError, InputError

    write = writer(output_format, output)
    if emit_rules is not None:
        files = api.monitoring_rules(
            plan,
            name=name,
            selector=selector,
            to=to,
            deployed=deployed,
            namespace=namespace,
            policy=policy or (),
        )
        emit_files(files, emit_rules)
        if prometheus is None:
            return
    key = None
    if api_key_env is not None and (key := os.environ.get(api_key_env)) is None:
        raise InputError(f"--api-key-env: {api_key_env} is not set")
    if replay is not None:
        accepted = api.accept(
            plan,
            replay,
            rate=rate,
            requests=replay_requests,
            seconds=replay_for,
            served_model=served_model_name,
            api_key=key,
        )
        write(accepted)
        say(accepted.lines())
        if accepted.state != "kept":
            raise CheckFailedError(f"the promises are {accepted.state}")
        return
    if prometheus is None:
        raise InputError(
            "no metrics to look at", "Give --prometheus URL or FILE, --replay URL, or --emit-rules FOLDER."
        )
    series = api.metrics(prometheus, window=window, selector=selector, api_key=key)
    if save is not None:
        from planner.monitor.prometheus import to_file

        emit(to_file(series), save)
    found = api.check(plan, series, name=name, policy=policy or ())
    write(found)
    say(found.lines())
    if found.state != "kept":
        raise CheckFailedError(f"a promise is {found.state}")
