"""``fleetopt plan``: the cheapest fleet for a workload."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import planner as fo
from planner.cli import options as opt
from planner.cli.output import draw, emit, format_of, page_width, progress_bar, renderer, say, tell, writer
from planner.errors import InfeasibleError, InputError
from planner.shared.writing import is_stream

WITH_CHOICES = ("table", "markdown", "json", "yaml")
"""Formats that hold what other choices would cost."""

FOR_PROGRAMS = ("json", "yaml")
"""Formats in which a question without an answer is a document too."""

NoChoices = Annotated[
    bool,
    opt.told(
        "Without what other choices would cost.",
        "--no-options",
        panel=opt.OUTPUT,
        envvar="FLEETOPT_NO_OPTIONS",
    ),
]


@opt.asks(names=None)
def plan(
    services: Path | None,
    current: Path | None,
    verify: str | None,
    no_choices: NoChoices = False,
    quiet: bool = False,
    output_format: opt.PlanFormat = None,
    output: opt.OutputFile = None,
    plot: opt.Plot = None,
    **given: Any,
) -> None:
    """The cheapest fleet that keeps the promises: what to buy, what it costs, how sure that is, and what would be cheaper.

    Example: fleetopt plan --cdf azure --slo 500ms

    fleetopt plan --isl 2000 --osl 300 --rate 40 --tpot 50ms --model llama-3.1-70b --gpu h200 -o plan.yaml

    Output
    ------
    services
        File of several services, planned together over one stock or budget (docs/services.md).
    current, --from
        Plan file of the fleet there is: what to keep, restart, add and retire.
    verify
        Replay other draws of the traffic and judge every promise (exit 6 when one fails); with kernel (the default) or python,
        its reference.
    quiet, -q
        The answer in one line.
    """
    from planner.question.files import load_question
    from planner.report.text.plan import one_line

    given = opt.settings({**given, "current": current})
    config, own = given["config"], {"scenario": given["scenario"], "current": current, "verify": verify}
    # several fleets have no start line of one
    tiered = services is None and config is not None and load_question(config).classes
    write = writer(output_format, output, of="" if tiered or services is not None else "plan")
    if services is not None:
        _refuse({"config": config, **own, "plot": plot, "quiet": quiet or None}, "with --services", "a service")
        _services(services, write, {name: value for name, value in given.items() if name not in ("config", *own)})
        return
    if tiered:
        _refuse({"verify": verify, **own}, "for a file with classes", "each class")
        _classes(write, {name: value for name, value in given.items() if value is not None})
        return
    # a file to deploy has no room for what was not chosen
    choices = not (no_choices or quiet) and (output_format or format_of(output)) in WITH_CHOICES
    shown = quiet or output is not None or (output_format or "table") == "table"
    page = shown and not (output is not None and is_stream(output))
    alone = page and output is None and plot is None
    first = _Answer() if page and output is None else None
    try:
        with progress_bar("planning") as progress:
            result = fo.plan(given.pop("cdf"), choices=choices, page=alone, answered=first, progress=progress, **given)
    except InfeasibleError as error:
        # a file is written after success alone
        if output is None and (error.choices is not None or output_format in FOR_PROGRAMS):
            write(error)
        raise
    if output is not None or not shown:
        write(result)
    if page:
        text = one_line(result) if quiet else renderer("table", None)(result)
        emit(text if first is None else text.removeprefix(first.text), None)
    elif not shown:
        tell(result)
    draw(result, plot)
    if verify is not None:
        _verify(result, verify)


class _Answer:
    """Prints how the page of a plan begins as soon as that is known; the rest of the page follows when it is."""

    text = ""

    def __call__(self, plan: Any) -> None:
        from planner.report.blocks import to_terminal
        from planner.report.text.plan import beginning

        self.text = to_terminal(beginning(plan), page_width()) + "\n"
        emit(self.text, None)


def _refuse(given: Mapping[str, Any], where: str, what: str) -> None:
    """Refuse options of one fleet where several are planned."""
    taken = next((name for name, value in given.items() if value is not None), None)
    if taken is not None:
        flag = {"current": "--from", "quiet": "-q"}.get(taken, f"--{taken}")
        raise InputError(f"{flag}: not {where}", f"Plan {what} by itself to use it.")


def _classes(write: Callable[[Any], None], given: dict[str, Any]) -> None:
    """Plan classes of requests together."""

    tiers = fo.plan_tiers(**given)
    write(tiers)
    for g in tiers.groupings:
        cost = f"infeasible: {g.reason}" if g.cost_usd_per_hour is None else f"${g.cost_usd_per_hour:,.2f}/hour"
        say([f"{g.label}: {cost}"])
    say(f"assumed: {line}" for line in tiers.assumptions)


def _services(file: Path, write: Callable[[Any], None], given: dict[str, Any]) -> None:
    """Plan services together; the answer is written before who is not served becomes the exit code."""
    with progress_bar("planning") as progress:
        result = fo.plan_services(file, progress=progress, **given)
    write(result)
    if result.unserved:
        raise InfeasibleError(f"not served: {', '.join(result.unserved)}")


def _verify(plan: Any, program: str) -> None:
    """Simulate the fleet just planned; the verdicts go to stderr, so that stdout stays the plan."""
    from planner.cli.simulate import require
    from planner.report.output import table

    with progress_bar("simulating") as bar:
        result = fo.simulate(plan, verify_with=program, progress=lambda _, share: bar(int(100 * share), 100))
    say(["", "other draws of the same traffic, on the same iteration times:"])
    say([table(result, page_width(sys.stderr)), *(f"warning: {line}" for line in result.warnings)])
    require(result, "Plan with a margin: a stricter promise, or a lower --utilization-cap.")
