"""``fleetopt plan``: the cheapest fleet for a workload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import options as opt

if TYPE_CHECKING:
    from planner.plans import Plan

__all__ = ["plan", "question"]

Promised = Annotated[
    list[str] | None,
    typer.Option(
        "--slo",
        "--ttft",
        help="P99 TTFT promise: 0.5, 500ms, p95=300ms or tpot:p95=40ms; repeat for more.",
        rich_help_panel=opt.PROMISES,
    ),
]


def plan(
    cdf: opt.Cdf = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Configuration or plan file (YAML, JSON) whose options are the base.", rich_help_panel=opt.OUTPUT
        ),
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(help="Scenario of the configuration file.", rich_help_panel=opt.OUTPUT)
    ] = None,
    slo: Promised = None,
    tpot: Annotated[
        list[str] | None, typer.Option(help="TPOT promise, e.g. 50ms or p95=40ms.", rich_help_panel=opt.PROMISES)
    ] = None,
    e2e: Annotated[
        list[str] | None, typer.Option(help="End-to-end promise, e.g. 20s.", rich_help_panel=opt.PROMISES)
    ] = None,
    quantile: Annotated[
        str | None,
        typer.Option(help="Quantile of promises that name none. Default 0.99.", rich_help_panel=opt.PROMISES),
    ] = None,
    scope: Annotated[
        str,
        typer.Option(
            help="pool: every pool keeps the promises; fleet: all requests together do.", rich_help_panel=opt.PROMISES
        ),
    ] = "pool",
    rate: opt.Rate = None,
    cached_share: opt.CachedShare = None,
    burst: Annotated[
        str | None,
        typer.Option(
            help="auto: bursts as the trace shows them; poisson: none. Default auto.", rich_help_panel=opt.WORKLOAD
        ),
    ] = None,
    gpu: opt.Gpu = None,
    model: opt.Model = None,
    tp: opt.TpChoice = None,
    profile: opt.ProfileName = None,
    price: Annotated[
        list[str] | None, typer.Option(help="Price of a GPU, USD/hour: h100=2.5. Repeat.", rich_help_panel=opt.HARDWARE)
    ] = None,
    spot_price: Annotated[
        list[str] | None,
        typer.Option(help="Spot price of a GPU, USD/hour: h100=1.2. Repeat.", rich_help_panel=opt.HARDWARE),
    ] = None,
    spot_share: Annotated[
        str | None, typer.Option(help="Largest share of a pool's replicas on spot.", rich_help_panel=opt.HARDWARE)
    ] = None,
    inventory: Annotated[
        list[str] | None, typer.Option(help="GPUs available of a type: h100=64. Repeat.", rich_help_panel=opt.HARDWARE)
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="mixed (vLLM V1, SGLang), occupancy (exclusive engines), mgc (the FleetOpt paper). Default mixed.",
            rich_help_panel=opt.SEARCH,
        ),
    ] = None,
    kv: Annotated[
        str | None,
        typer.Option(
            help="paged (vLLM), reserved (FleetOpt) or both (every pool the cheaper). Default paged.",
            rich_help_panel=opt.SEARCH,
        ),
    ] = None,
    routing: Annotated[
        str | None, typer.Option(help="random, jsq or rr inside a pool. Default random.", rich_help_panel=opt.SEARCH)
    ] = None,
    utilization_cap: Annotated[
        str | None,
        typer.Option(help="Largest share of the maximum throughput in use. Default 0.85.", rich_help_panel=opt.SEARCH),
    ] = None,
    pools: Annotated[
        int | None, typer.Option(help="Largest number of pools, 1 to 4. Default 2.", rich_help_panel=opt.SEARCH)
    ] = None,
    boundaries: Annotated[
        str | None,
        typer.Option(
            help="Boundaries to search, tokens: 2048,4096. Default: the workload's breakpoints.",
            rich_help_panel=opt.SEARCH,
        ),
    ] = None,
    gammas: Annotated[
        str | None,
        typer.Option(help="Compression bands to search: 1,1.5,2. Default 1.0,1.1,...,2.0.", rich_help_panel=opt.SEARCH),
    ] = None,
    p_c: Annotated[
        str | None,
        typer.Option(
            "--p-c", help="Share of the band that can be compressed. Default: by category.", rich_help_panel=opt.SEARCH
        ),
    ] = None,
    route_on: Annotated[
        str | None,
        typer.Option(help="total (an oracle for the output) or input. Default total.", rich_help_panel=opt.SEARCH),
    ] = None,
    token_budget: Annotated[
        int | None, typer.Option(help="Tokens per iteration (max_num_batched_tokens).", rich_help_panel=opt.SEARCH)
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Slots per replica. Default: the memory-safe number.", rich_help_panel=opt.SEARCH)
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="Longest request admitted, tokens. Default: the workload's longest.", rich_help_panel=opt.SEARCH
        ),
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(
            help="Prefill chunk of methods occupancy and mgc, tokens. Default 512.", rich_help_panel=opt.SEARCH
        ),
    ] = None,
    min_replicas: Annotated[
        int | None, typer.Option(help="Least replicas of a pool.", rich_help_panel=opt.SEARCH)
    ] = None,
    redundancy: Annotated[
        int | None, typer.Option(help="Spare replicas per pool (N + k).", rich_help_panel=opt.SEARCH)
    ] = None,
    availability_target: Annotated[
        str | None,
        typer.Option(help="Largest probability that fewer replicas than needed are up.", rich_help_panel=opt.SEARCH),
    ] = None,
    max_evaluations: Annotated[
        int | None,
        typer.Option(
            help="Pools evaluated before the search stops with a gap; 0 = until proven.", rich_help_panel=opt.SEARCH
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Simulate the fleet and judge every promise (seconds; exit 6 when one fails).",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = False,
    shape: Annotated[
        str | None,
        typer.Option(
            help="colocated, disaggregated (prefill and decode pools of their own) or both (the cheaper, compared). "
            "Default colocated.",
            rich_help_panel=opt.SEARCH,
        ),
    ] = None,
    kv_transfer_gbps: Annotated[
        str | None,
        typer.Option(
            help="Link per GPU between prefill and decode nodes, Gbit/s. Default 100.", rich_help_panel=opt.HARDWARE
        ),
    ] = None,
    kv_transfer_base: Annotated[
        str | None,
        typer.Option(help="Time of a KV transfer beyond its bytes. Default 2ms.", rich_help_panel=opt.HARDWARE),
    ] = None,
    output_format: opt.OutputFormat = "table",
    output: opt.OutputFile = None,
) -> None:
    """The cheapest fleet that keeps the promises: pools, replicas, engine settings, cost, and how sure.

    Example: fleetopt plan --cdf azure.csv --slo 0.5
    """
    given: dict[str, Any] = {k: v for k, v in locals().items() if k not in ("output_format", "output", "verify")}
    from planner import api
    from planner.cli.output import emit, say
    from planner.errors import InputError
    from planner.report import formatter

    render = formatter(output_format, ("table", "markdown", "vllm"))
    data = question(given)
    if config is not None and _has_classes(config):
        if verify or scenario is not None:
            option = "--verify" if verify else "--scenario"
            raise InputError(f"{option}: not for a file with classes", "Plan each class by itself to use it.")
        tiers = api.plan_tiers(config, **{k: v for k, v in data.items() if k not in ("config", "scenario")})
        emit(formatter(output_format)(tiers), output)
        say(
            f"{g.label}: "
            + (f"${g.cost_usd_per_hour:,.2f}/hour" if g.cost_usd_per_hour is not None else f"infeasible: {g.reason}")
            for g in tiers.groupings
        )
        say(f"assumed: {line}" for line in tiers.assumptions)
        return
    result = api.plan(**data)
    emit(render(result), output)
    say(f"assumed: {line}" for line in result.assumptions)
    say(f"warning: {line}" for line in result.warnings)
    if verify:
        _verify(result)


def _verify(plan: Plan) -> None:
    """Simulate the fleet just planned; the verdicts go to stderr, so that stdout stays the plan."""
    from planner import api
    from planner.cli.output import progress_bar, say
    from planner.errors import CheckFailedError
    from planner.report import formatter

    with progress_bar("simulating") as bar:
        result = api.verify(plan, progress=lambda _, share: bar(int(100 * share), 100))
    say(
        [
            "",
            "simulation, by an engine that shares only the workload and the iteration times:",
            formatter("table")(result),
        ]
    )
    say(f"warning: {line}" for line in result.warnings)
    failed = [c for c in result.checks if c.verdict == "fails"]
    if failed:
        raise CheckFailedError(
            f"{failed[0].promise.label} of pool {failed[0].where} does not hold in the simulation: {failed[0].reason}",
            "Plan with a margin: a stricter promise, or a lower --utilization-cap.",
        )


def _has_classes(config: Path) -> bool:
    from planner.question.files import load_question

    return bool(load_question(config).classes)


def question(given: dict[str, Any]) -> dict[str, Any]:
    """The options as a configuration mapping: what was not given is left out, pairs become mappings."""
    from planner.errors import InputError
    from planner.question.inputs import parse_promise
    from planner.units import parse_fraction

    data = {k: v for k, v in given.items() if v is not None}
    scope = data.pop("scope", "pool")
    quantile = parse_fraction(data.pop("quantile", 0.99), "--quantile")
    promises = [
        parse_promise(text, "ttft" if key == "slo" else key, quantile, scope)
        for key in ("slo", "tpot", "e2e")
        for text in data.pop(key, None) or ()
    ]
    if promises:
        data["promises"] = promises
    elif "config" not in data:
        raise InputError(
            "no latency promise given", "Give at least one: --slo 0.5 (P99 TTFT <= 0.5 s), --tpot 50ms or --e2e 20s."
        )
    for key in ("price", "spot_price", "inventory"):
        if key in data:
            data[key] = _pairs(data[key], key)
    return data


def _pairs(items: list[str], key: str) -> dict[str, str]:
    from planner.errors import InputError

    pairs = {}
    problems = []
    for item in items:
        name, equals, value = item.partition("=")
        if not (name and equals and value):
            problems.append(f"--{key.replace('_', '-')}: {item!r} is not GPU=NUMBER")
        pairs[name] = value
    if problems:
        raise InputError.from_problems(problems)
    return pairs
