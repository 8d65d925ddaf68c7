"""``fleetopt check``: does the plan still fit what its fleet does?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.cli import options as opt
from planner.cli.output import emit, emit_files, say
from planner.errors import CheckFailedError, InputError

OWN: opt.Table = {
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
            list[Path],
            "The scaler of the fleet (what `autoscale --to` wrote, or yours): it says how many replicas to expect.",
        ),
        "replay": "Send the planned traffic to this address and judge the promises by the answers; or judge a file of a "
        "load generator (vllm bench serve --save-detailed, GuideLLM).",
        "replay_requests": (2000, "Requests sent at most."),
        "replay_for": ("5min", "How long they are sent at most."),
        "rate": (float, "Requests sent a second. Default: the plan's rate."),
        "served_model_name": "Name the server knows the model by. Default: the repository of its weights.",
    }
}

OF_REPLAY = {
    "rate": "rate",
    "replay_requests": "requests",
    "replay_for": "seconds",
    "served_model_name": "served_model",
}
"""Options of --replay, and what :func:`planner.api.accept` calls them."""


@opt.verb(table=OWN)
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
    from planner import api

    sent = {to: given.pop(name) for name, to in OF_REPLAY.items()}
    if emit_rules is not None:
        emit_files(api.monitoring_rules(plan, selector=selector, **given), emit_rules)
        if prometheus is None:
            return
    key = None
    if api_key_env is not None and (key := os.environ.get(api_key_env)) is None:
        raise InputError(f"--api-key-env: {api_key_env} is not set")
    if replay is not None:
        yield (accepted := api.accept(plan, replay, api_key=key, **sent))
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
    yield (found := api.check(plan, series, name=given["name"], policy=given["policy"]))
    say(found.lines())
    if found.state != "kept":
        raise CheckFailedError(f"a promise is {found.state}")
