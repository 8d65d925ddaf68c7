"""``fleetopt plan``: the cheapest fleet for a workload."""

from __future__ import annotations

import sys
from collections.abc import Callable
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
    services: Annotated[
        Path | None,
        opt.told(
            "File of several services, planned together over one stock or budget (docs/services.md).", panel=opt.OUTPUT
        ),
    ] = None,
    current: Annotated[
        Path | None,
        opt.told("Plan file of the fleet there is: what to keep, restart, add and retire.", "--from", panel=opt.OUTPUT),
    ] = None,
    verify: Annotated[
        str | None,
        opt.told(
            "Replay other draws of the traffic and judge every promise (exit 6 when one fails); with kernel (the default) or "
            "python, its reference.",
            "--verify",
            panel=opt.OUTPUT,
        ),
    ] = None,
    no_choices: Annotated[
        bool,
        opt.told(
            "Without what other choices would cost.", "--no-options", panel=opt.OUTPUT, envvar="FLEETOPT_NO_OPTIONS"
        ),
    ] = False,
    quiet: Annotated[bool, opt.told("The answer in one line.", "--quiet", "-q", panel=opt.OUTPUT)] = False,
    change: opt.Set = None,
    output_format: opt.PlanFormat = None,
    output: opt.OutputFile = None,
    plot: opt.Plot = None,
    **given: Any,
) -> None:
    """The cheapest fleet that keeps the promises: what to buy, what it costs, how sure that is, and what would be cheaper.

    Example: fleetopt plan --cdf azure --slo 500ms

    fleetopt plan --isl 2000 --osl 300 --rate 40 --tpot 50ms --model llama-3.1-70b --gpu h200 -o plan.yaml
    """
    from planner import api
    from planner.cli.output import draw, emit, format_of, progress_bar, renderer, say, tell, writer
    from planner.errors import InfeasibleError, InputError
    from planner.question.files import load_question
    from planner.report.text.plan import one_line
    from planner.shared.writing import is_stream

    given = opt.settings(given, change)
    # several fleets have no start line of one
    classes = config if services is None and config is not None and load_question(config).classes else None
    write = writer(output_format, output, of="" if classes is not None or services is not None else "plan")
    if services is not None:
        own = {
            "--config": config,
            "--scenario": scenario,
            "--from": current,
            "--verify": verify,
            "--plot": plot,
            "-q": quiet or None,
        }
        if taken := [flag for flag, value in own.items() if value is not None]:
            raise InputError(f"{taken[0]}: not with --services", "Plan a service by itself to use it.")
        _services(services, write, given)
        return
    # a file to deploy has no room for what was not chosen
    choices = not (no_choices or quiet) and (output_format or format_of(output)) in WITH_CHOICES
    if classes is not None:
        if verify is not None or scenario is not None or current is not None:
            option = "--verify" if verify is not None else "--scenario" if scenario is not None else "--from"
            raise InputError(f"{option}: not for a file with classes", "Plan each class by itself to use it.")
        tiers = api.plan_tiers(classes, **{k: v for k, v in given.items() if v is not None})
        write(tiers)
        say(
            f"{g.label}: "
            + (f"${g.cost_usd_per_hour:,.2f}/hour" if g.cost_usd_per_hour is not None else f"infeasible: {g.reason}")
            for g in tiers.groupings
        )
        say(f"assumed: {line}" for line in tiers.assumptions)
        return
    asked = {"config": config, "scenario": scenario, "current": current, "choices": choices, **given}
    try:
        with progress_bar("planning") as progress:
            result = api.plan(asked.pop("cdf"), progress=progress, **asked)
    except InfeasibleError as error:
        # a file is written after success alone
        if output is None and (error.choices is not None or output_format in FOR_PROGRAMS):
            write(error)
        raise
    shown = quiet or output is not None or (output_format or "table") == "table"
    if output is not None or not shown:
        write(result)
    if shown and not (output is not None and is_stream(output)):
        emit(one_line(result) if quiet else renderer("table", None)(result), None)
    elif not shown:
        tell(result)
    draw(result, plot)
    if verify is not None:
        _verify(result, verify)


def _services(file: Path, write: Callable[[Any], None], given: dict[str, Any]) -> None:
    """Plan services together; the answer is written before who is not served becomes the exit code."""
    from planner import api
    from planner.cli.output import progress_bar
    from planner.errors import InfeasibleError

    with progress_bar("planning") as progress:
        result = api.plan_services(file, progress=progress, **given)
    write(result)
    if result.unserved:
        raise InfeasibleError(f"not served: {', '.join(result.unserved)}")


def _verify(plan: Plan, program: str) -> None:
    """Simulate the fleet just planned; the verdicts go to stderr, so that stdout stays the plan."""
    from planner import api
    from planner.cli.output import page_width, progress_bar, say
    from planner.cli.simulate import require
    from planner.report.output import table

    with progress_bar("simulating") as bar:
        result = api.simulate(plan, verify_with=program, progress=lambda _, share: bar(int(100 * share), 100))
    say(["", "other draws of the same traffic, on the same iteration times:"])
    say([table(result, page_width(sys.stderr)), *(f"warning: {line}" for line in result.warnings)])
    require(result, "Plan with a margin: a stricter promise, or a lower --utilization-cap.")
