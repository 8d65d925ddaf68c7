"""``fleetopt plan``: the cheapest fleet for a workload."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from planner.cli import options as opt

if TYPE_CHECKING:
    from planner.plans import Plan

Config = Annotated[
    Path | None,
    opt.told("Configuration or plan file (YAML, JSON) whose options are the base.", panel=opt.OUTPUT)]  # fmt: skip
Scenario = Annotated[str | None, opt.told("Scenario of the configuration file.", panel=opt.OUTPUT)]

WITH_CHOICES = ("table", "markdown", "json", "yaml")
"""Formats that hold what other choices would cost."""

FOR_PROGRAMS = ("json", "yaml")
"""Formats in which a question without an answer is a document too."""


@opt.asks()
def plan(
    config: Config = None,
    scenario: Scenario = None,
    current: Annotated[
        Path | None,
        opt.told("Plan file of the fleet there is: what to keep, restart, add and retire.", "--from", panel=opt.OUTPUT),
    ] = None,
    verify: Annotated[
        bool,
        opt.told(
            "Replay other draws of the traffic and judge every promise (exit 6 when one fails).",
            "--verify",
            panel=opt.OUTPUT,
        ),
    ] = False,
    verify_with: Annotated[
        str,
        opt.told("What --verify replays with: kernel, or python, its reference.", "--verify-with", panel=opt.OUTPUT),
    ] = "kernel",
    choices: Annotated[
        str,
        opt.told(
            "Time for what other choices would cost, sized and priced beside the plan.",
            "--options-seconds",
            panel=opt.OUTPUT,
            envvar="FLEETOPT_OPTIONS_SECONDS",
        ),
    ] = "1.4",
    no_choices: Annotated[
        bool, opt.told("Without what other choices would cost.", "--no-options", panel=opt.OUTPUT)
    ] = False,
    output_format: opt.PlanFormat = None,
    output: opt.OutputFile = None,
    plot: opt.Plot = None,
    **given: Any,
) -> None:
    """The cheapest fleet that keeps the promises: pools, replicas, engine settings, cost, and how sure.

    Below it what other choices would cost: routing, precision, GPU, engine, more traffic, a node's failure, other limits.

    Example: fleetopt plan --cdf azure.csv --slo 0.5
    """
    from planner import api
    from planner.cli.output import draw, format_of, progress_bar, say, tell, writer
    from planner.errors import InfeasibleError, InputError
    from planner.question.files import load_question
    from planner.units import parse_duration

    write = writer(output_format, output, of="plan")
    # a file to deploy has no room for what was not chosen
    seconds = parse_duration(choices, "--options-seconds")
    if seconds < 0.0:
        raise InputError(f"--options-seconds: must not be negative, got {choices}", "0 sizes no other choice.")
    if no_choices or (output_format or format_of(output)) not in WITH_CHOICES:
        seconds = 0.0
    if config is not None and load_question(config).classes:
        if verify or scenario is not None or current is not None:
            option = "--verify" if verify else "--scenario" if scenario is not None else "--from"
            raise InputError(f"{option}: not for a file with classes", "Plan each class by itself to use it.")
        tiers = api.plan_tiers(config, **{k: v for k, v in given.items() if v is not None})
        write(tiers)
        say(
            f"{g.label}: "
            + (f"${g.cost_usd_per_hour:,.2f}/hour" if g.cost_usd_per_hour is not None else f"infeasible: {g.reason}")
            for g in tiers.groupings
        )
        say(f"assumed: {line}" for line in tiers.assumptions)
        return
    asked = {"config": config, "scenario": scenario, "current": current, "choices": seconds, **given}
    try:
        with progress_bar("planning") as progress:
            result = api.plan(asked.pop("cdf"), progress=progress, **asked)
    except InfeasibleError as error:
        # a file is written after success alone
        if output is None and (error.choices is not None or output_format in FOR_PROGRAMS):
            write(error)
        raise
    write(result)
    draw(result, plot)
    tell(result)
    if verify:
        _verify(result, verify_with)


def _verify(plan: Plan, program: str) -> None:
    """Simulate the fleet just planned; the verdicts go to stderr, so that stdout stays the plan."""
    from planner import api
    from planner.cli.output import page_width, progress_bar, say
    from planner.cli.simulate import require
    from planner.report.table import render as page

    with progress_bar("simulating") as bar:
        result = api.simulate(plan, verify_with=program, progress=lambda _, share: bar(int(100 * share), 100))
    say(["", "other draws of the same traffic, on the same iteration times:"])
    say([page(result, page_width(sys.stderr)), *(f"warning: {line}" for line in result.warnings)])
    require(result, "Plan with a margin: a stricter promise, or a lower --utilization-cap.")
