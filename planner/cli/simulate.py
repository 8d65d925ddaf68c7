"""``fleetopt simulate``: a plan's promises against a simulation, or scheduling policies side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import planner as fo
from planner.cli import options as opt
from planner.cli.output import progress_bar, say
from planner.errors import CheckFailedError, InputError, refuse, refuse_below_1
from planner.papers.policy import policy_names
from planner.routing import ROUTINGS
from planner.shared.documents import parse_yaml
from planner.units import parse_number

OF_PLAN = ("preset", "arrivals", "replay", "growth", "surge", "verify_with")
"""Options of a run that only a plan's simulation has."""

COMPARING = "Comparing policies"
Policies = Annotated[
    str | None,
    opt.told(f"Schedulers to compare, by comma: {', '.join(policy_names())}, or module:Class.", panel=COMPARING),
]
Routing = Annotated[str, opt.told(f"How requests are spread over replicas: {', '.join(ROUTINGS)}.", panel=COMPARING)]
RUN = opt.Verb("simulate", panels={"preset": "Run"}, without=("max_requests", "seeds"))
POLICIES = opt.Verb(
    "compare_policies", panels={"gpu": COMPARING}, flags={"gpu": "-g", "model": "-m"}, without=("rates", "parameters")
)


@opt.verb(RUN, POLICIES)
def simulate(
    plan: opt.AnyPlan = None,
    *,
    rate: str | None,
    requests: int | None,
    seeds: int | None,
    in_flight: int | None,
    workload: str | None,
    policies: Policies = None,
    routing: Routing = "random",
    change: list[str] | None,
    **given: Any,
) -> Iterator[Any]:
    """Does the plan hold? Simulates a plan's pools promise by promise (exit 6 when one fails; cannot tell is 0).

    With --policies: throughput, latency, attainment and goodput of schedulers on one replica.

    Examples: fleetopt simulate plan.yaml

    fleetopt simulate --policies sarathi,eb,slai,wait --cdf azure --rates 6,10,14 --format csv

    Parameters
    ----------
    rate, --rate, --rates
        Rates, requests/s: 500 or 5,10,15. Default: the plan's.
    workload, --cdf, --workload, -w
        Traffic: other than the plan's; for policies the default is azure.

    Run
    ---
    requests
        Requests of a run that are drawn. Default 50000 for a plan, 4000 for policies.
    seeds
        Runs, each another draw of the traffic. Default 6 for a plan, 2 for policies.
    in_flight
        Requests of all clients under way at most (closed loop).

    Comparing policies
    ------------------
    change, --set
        A policy's parameter: eb.k=20, slai.order=spf.
    """
    refuse_below_1({"--requests": requests, "--in-flight": in_flight})
    rates = [parse_number(v, "--rates") for v in rate.split(",")] if rate else None
    of_plan = {name: given.pop(name) for name in OF_PLAN}
    if policies is None:
        if plan is None:
            raise InputError("nothing to simulate", "Give a plan file, or --policies with --rates.")
        if rates is not None and len(rates) > 1:
            raise InputError("--rate: one rate for a plan")
        of_plan |= {"requests": requests or 50_000, "seeds": 6 if seeds is None else seeds, "in_flight": in_flight}
        of_plan |= {"rate": rates[0] if rates else None, "workload": workload}
        return _verify(plan, of_plan)
    if plan is not None:
        raise InputError("give either a plan file or --policies, not both")
    if rates is None:
        raise InputError("--rates is needed with --policies", "For example --rates 6,10,14.")
    given |= {"requests": requests or 4000, "seeds": 2 if seeds is None else seeds}
    given |= {"workload": workload or "azure", "parameters": _policy_settings(change or []), "routing": routing}
    names = [n.strip() for n in policies.split(",") if n.strip()]
    return _compare({"policies": names, "rates": rates, **given})


def require(result: Any, hint: str | None = None) -> None:
    """Exit code 6 when a promise fails in the simulation."""
    failed = next((c for c in result.checks if c.verdict == "fails"), None)
    if failed is not None:
        told = f"{failed.promise.label} of pool {failed.where} does not hold in the simulation: {failed.reason}"
        raise CheckFailedError(told, hint)


def _verify(plan: Path, given: dict[str, Any]) -> Iterator[Any]:
    """Simulate a plan, and end with the exit code of its verdict."""
    with progress_bar("simulating") as bar:
        result = fo.simulate(plan, progress=lambda _, share: bar(int(100 * share), 100), **given)
    yield result
    say(f"warning: {line}" for line in result.warnings)
    counts = [
        f"{n} {word}"
        for word in ("holds", "fails", "cannot tell")
        if (n := sum(c.verdict == word for c in result.checks))
    ]
    say([f"{len(result.checks)} promise{'s' if len(result.checks) != 1 else ''}: {', '.join(counts)}"])
    require(result)


def _compare(asked: dict[str, Any]) -> Iterator[Any]:
    """Simulate several schedulers; on Ctrl-C what is done goes to a file beside the one asked for."""
    with progress_bar("simulating") as bar:
        result = fo.compare_policies(progress=bar, **asked)
    if result.rows or result.complete:
        yield result
    if not result.complete:
        say([f"interrupted: {len(result.rows)} of {len(asked['policies']) * len(asked['rates'])} rows"])
        raise typer.Exit(130)
    say([result.about])


def _policy_settings(changes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """``["eb.k=20"]`` as ``{"eb": {"k": 20}}``; values are YAML."""
    found: dict[str, dict[str, Any]] = {}
    problems = []
    for item in changes:
        name, equals, text = item.partition("=")
        policy, dot, parameter = name.rpartition(".")
        if not (equals and dot and policy and parameter):
            problems.append(f"--set: {item!r} is not POLICY.PARAMETER=VALUE")
            continue
        try:
            found.setdefault(policy, {})[parameter] = parse_yaml(text, f"--set {name}")
        except InputError as error:
            problems.append(error.message)
    refuse(problems)
    return found
