"""``fleetopt simulate``: a plan's promises against a simulation, or scheduling policies side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as opt
from planner.routing import ROUTINGS
from planner.simulate.policy import policy_names

__all__ = ["simulate"]

POLICY_PANEL = "Comparing policies"
POLICIES_HELP = f"Schedulers to compare, by comma: {', '.join(policy_names())}, or module:Class."
ROUTING_HELP = f"{', '.join(ROUTINGS)}."
RUN_PANEL = "Run"


def simulate(
    plan: Annotated[
        Path | None, typer.Argument(help="Plan file written by `fleetopt plan --format yaml -o FILE`.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", "--rates", help="Rates, requests/s: 500 or 5,10,15. Default: the plan's.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            "--cdf", "--workload", "-w", help="Traffic: other than the plan's; for policies the default is azure."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Engine rules: mixed, paged, slots, policies. Default: those of the plan's method.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(help="Requests per run. Default 50000 for a plan, 4000 for policies.", rich_help_panel=RUN_PANEL),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Independent runs.", rich_help_panel=RUN_PANEL)] = 2,
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="poisson, or auto for the burstiness the workload measured. Default: as the plan assumed.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(
            help="Trace whose time stamps are replayed, stretched to the fleet's rate.", rich_help_panel=RUN_PANEL
        ),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(help=POLICIES_HELP, rich_help_panel=POLICY_PANEL),
    ] = None,
    gpu: Annotated[str, typer.Option("--gpu", "-g", help="GPU type.", rich_help_panel=POLICY_PANEL)] = "h100",
    model: Annotated[
        str, typer.Option("--model", "-m", help="Model name, or a config.json.", rich_help_panel=POLICY_PANEL)
    ] = "llama-3.1-8b",
    tp: Annotated[int, typer.Option("--tp", help="GPUs per replica.", rich_help_panel=POLICY_PANEL)] = 1,
    slots: Annotated[int, typer.Option(help="max_num_seqs.", rich_help_panel=POLICY_PANEL)] = 128,
    token_budget: Annotated[int, typer.Option(help="Tokens per iteration.", rich_help_panel=POLICY_PANEL)] = 2048,
    replicas: Annotated[int, typer.Option(help="Replicas under one policy.", rich_help_panel=POLICY_PANEL)] = 1,
    routing: Annotated[str, typer.Option(help=ROUTING_HELP, rich_help_panel=POLICY_PANEL)] = "random",
    ttft: Annotated[str, typer.Option(help="Objective: TTFT at most this.", rich_help_panel=POLICY_PANEL)] = "1s",
    tbt: Annotated[
        str, typer.Option(help="Objective: every gap between tokens at most this.", rich_help_panel=POLICY_PANEL)
    ] = "500ms",
    tbt_strict: Annotated[str, typer.Option(help="The same for strict users.", rich_help_panel=POLICY_PANEL)] = "100ms",
    strict_share: Annotated[
        str, typer.Option(help="Share of strict users: 0.05 or 5%.", rich_help_panel=POLICY_PANEL)
    ] = "0",
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A policy's parameter: eb.k=20, slai.order=spf. Repeat.", rich_help_panel=POLICY_PANEL
        ),
    ] = None,
    output_format: opt.OutputFormat = "table",
    output: opt.OutputFile = None,
) -> None:
    """Does the closed form hold? Simulates a plan's pools promise by promise (exit 6 when one fails).

    With --policies: throughput, latency, attainment and goodput of schedulers on one replica.

    Examples: fleetopt simulate plan.yaml

    fleetopt simulate --policies sarathi,eb,slai,wait --cdf azure --rates 6,10,14 --format csv
    """
    from planner.errors import InputError
    from planner.units import parse_duration, parse_fraction, parse_number

    if requests is not None and requests < 1:
        raise InputError(f"--requests: must be at least 1, got {requests}")
    rates = [parse_number(v, "--rates") for v in rate.split(",")] if rate else None
    if policies is not None:
        if plan is not None:
            raise InputError("give either a plan file or --policies, not both")
        if rates is None:
            raise InputError("--rates is needed with --policies", "For example --rates 6,10,14.")
        limits = {
            "ttft_s": parse_duration(ttft, "--ttft"),
            "tbt_s": parse_duration(tbt, "--tbt"),
            "tbt_strict_s": parse_duration(tbt_strict, "--tbt-strict"),
            "strict_share": parse_fraction(strict_share, "--strict-share"),
        }
        names = [n.strip() for n in policies.split(",") if n.strip()]
        settings = {"slots": slots, "token_budget": token_budget, **limits}
        hardware = {"gpu": gpu, "model": model, "tp": tp}
        run = {"requests": requests or 4000, "seeds": seeds, "replicas": replicas, "routing": routing}
        _compare(names, rates, workload or "azure", hardware, settings, change or [], run, output_format, output)
        return
    if plan is None:
        raise InputError("nothing to simulate", "Give a plan file, or --policies with --rates.")
    if rates is not None and len(rates) > 1:
        raise InputError("--rate: one rate for a plan")
    given = {
        "rate": rates[0] if rates else None,
        "workload": workload,
        "preset": preset,
        "arrivals": arrivals,
        "replay": replay,
    }
    _verify(plan, given, requests or 50_000, seeds, output_format, output)


def _verify(
    plan: Path, given: dict[str, Any], requests: int, seeds: int, output_format: str, output: Path | None
) -> None:
    from planner.cli.output import emit, progress_bar, say
    from planner.errors import CheckFailedError, InputError
    from planner.report import formatter
    from planner.simulate.plan import verify_plan

    render = formatter(output_format)
    if given["arrivals"] not in (None, "poisson", "auto"):
        raise InputError(f"--arrivals: {given['arrivals']!r} is neither poisson nor auto")
    with progress_bar("simulating") as bar:
        result = verify_plan(
            plan, requests=requests, seeds=seeds, progress=lambda _, share: bar(int(100 * share), 100), **given
        )
    emit(render(result), output)
    say(f"warning: {line}" for line in result.warnings)
    counts = [
        f"{n} {word}"
        for word in ("holds", "fails", "cannot tell")
        if (n := sum(c.verdict == word for c in result.checks))
    ]
    say([f"{len(result.checks)} promise{'s' if len(result.checks) != 1 else ''}: {', '.join(counts)}"])
    if result.verdict == "fails":
        failed = next(c for c in result.checks if c.verdict == "fails")
        raise CheckFailedError(
            f"{failed.promise.label} of pool {failed.where} does not hold in the simulation: {failed.reason}"
        )


def _compare(
    names: Sequence[str],
    rates: Sequence[float],
    workload: str,
    hardware: dict[str, Any],
    settings: dict[str, Any],
    changes: Sequence[str],
    run: dict[str, Any],
    output_format: str,
    output: Path | None,
) -> None:
    from planner.catalog.kv import kv_capacity_tokens
    from planner.catalog.load import gpu as find_gpu
    from planner.catalog.load import model as find_model
    from planner.catalog.profiles import profile as find_profile
    from planner.cli.output import emit, progress_bar, say
    from planner.errors import InputError
    from planner.report import formatter
    from planner.simulate.compare import Setting, compare_policies
    from planner.workload.workload import Workload

    render = formatter(output_format)
    parameters = _policy_settings(changes)
    traffic = Workload.from_file(workload)
    gpu, model, tp = find_gpu(hardware["gpu"]), find_model(hardware["model"]), hardware["tp"]
    profile = find_profile(gpu=gpu, model=model, tp=tp)
    memory = profile.kv_tokens or kv_capacity_tokens(
        model, gpu, tp, max_num_seqs=settings["slots"], token_budget=settings["token_budget"]
    )
    if memory <= 0:
        raise InputError(
            f"{model.name} leaves no KV cache on {gpu.name} x TP{tp} with {settings['slots']} slots",
            "Take more GPUs per replica (--tp), a larger GPU, or fewer --slots.",
        )
    with progress_bar("simulating") as bar:
        result = compare_policies(
            names,
            rates,
            traffic.input_tokens,
            traffic.output_tokens,
            traffic.weight,
            profile.iteration,
            Setting(kv_tokens=memory, **settings),
            parameters=parameters,
            progress=bar,
            **run,
        )
    if not result.complete:
        if result.rows:
            emit(render(result), output.with_name(output.name + ".partial") if output else None)
        say([f"interrupted: {len(result.rows)} of {len(names) * len(rates)} rows"])
        raise typer.Exit(130)
    emit(render(result), output)
    say([f"{gpu.name} x TP{tp}, {model.name}, {profile.trust}, {memory:,} tokens of KV cache"])


def _policy_settings(changes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """``["eb.k=20"]`` as ``{"eb": {"k": 20}}``; values are YAML."""
    import yaml

    from planner.errors import InputError

    found: dict[str, dict[str, Any]] = {}
    problems = []
    for item in changes:
        name, equals, text = item.partition("=")
        policy, dot, parameter = name.rpartition(".")
        if not (equals and dot and policy and parameter):
            problems.append(f"--set: {item!r} is not POLICY.PARAMETER=VALUE")
            continue
        try:
            found.setdefault(policy, {})[parameter] = yaml.safe_load(text)
        except yaml.YAMLError:
            problems.append(f"--set {name}: {text!r} is no value")
    if problems:
        raise InputError.from_problems(problems)
    return found
