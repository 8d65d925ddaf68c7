"""The verbs that do not yet stand beside their answers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from planner.ask.asked import beside, document_of, saved_of, standing_of
from planner.ask.options import OwnOptions, ReplicaOptions
from planner.catalog.kv import kv_capacity
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import model as find_model
from planner.catalog.load import normalized, repository
from planner.catalog.profiles import profile as find_profile
from planner.errors import InfeasibleError, InputError, refuse_below_1
from planner.plans import Plan
from planner.question.compiled import (
    CompiledQuestion,
    compile_question,
    rate_of_hours,
)
from planner.question.files import Question, engines_of, load_question, question_of
from planner.question.options import PlanInputs, canonical
from planner.shared.arguments import spelled_out, told_types
from planner.shared.kept import keeping
from planner.size.shapes import standing_fleet
from planner.units import DAY_S, WEEK_S, parse_duration, parse_fraction, parse_number
from planner.workload.given import load_workload
from planner.workload.sending import Surge
from planner.workload.workload import Workload

# A plan pays for the start of what a plan needs; every other verb loads its own when it is called.
if TYPE_CHECKING:
    from concurrent.futures import Executor

    from planner.ask.batching import Batching
    from planner.ask.classes import TieredPlan
    from planner.ask.costs import Costs
    from planner.ask.overview import Overview
    from planner.ask.replica import SchedulerReplica
    from planner.ask.schedule import Schedule
    from planner.ask.services import ServicesPlan
    from planner.ask.simulate import Verification
    from planner.ask.stability import Stability
    from planner.ask.wait import WaitSettings
    from planner.ask.what_if import Sweep
    from planner.calibrate.launch import Launch
    from planner.calibrate.result import CalibrationSet
    from planner.catalog.price_files import ApiPrice
    from planner.operate.autoscale.derive import Autoscaling
    from planner.operate.deploy import Rendered
    from planner.operate.deploy.acceptance import Acceptance
    from planner.operate.deploy.replay import Requests
    from planner.operate.monitor.check import FleetCheck
    from planner.operate.monitor.measured import Series
    from planner.operate.monitor.policy import Policy
    from planner.papers.compare import Comparison
    from planner.papers.printed import Reproduction
    from planner.workload.given import Frame

    # end of options


@told_types
def plan_tiers(config: str | Path, **options: Unpack[OwnOptions]) -> TieredPlan:
    """Classes of requests with promises of their own, on shared or separate pools, whichever is cheapest.

    Parameters
    ----------
    config
        A configuration file with ``classes:`` (name -> workload, rate, promises, prefix-cache share).
    **options
        Options that override the file's for every class.

    Returns
    -------
    TieredPlan
    """
    from planner.ask.classes import plan_classes

    saved = load_question(config)
    if not saved.classes:
        raise InputError(f"{config}: has no classes", "Add `classes:` with a name and options for each.")
    base = {**saved.options, **options}
    saved.refuse_untold(saved.options, options)
    for named in saved.classes.values():
        saved.refuse_untold(named, ())
    return plan_classes(base, saved.classes, lambda name: beside(name, saved.folder), f"{saved.source}: ")


@told_types
@keeping()
def plan_services(
    config: str | Path, *, progress: Callable[[int, int], None] | None = None, **options: Unpack[OwnOptions]
) -> ServicesPlan:
    """Several services planned together over one stock of GPUs or one budget: what to buy, and what each costs.

    Parameters
    ----------
    config
        A file with ``services:`` (name -> model, traffic, promises, ``priority``, ``hours``, any other option of a plan); beside
        it ``inventory``, ``price``, ``budget`` [USD/hour] and options of all of them.
    progress
        Told (done, all) after every search.
    **options
        Options that override the file's for every service.

    Returns
    -------
    ServicesPlan
        Where stock or budget do not suffice, services are served by priority, the lowest number first.

    Raises
    ------
    InputError
        Something in the file cannot be; all problems at once.
    """
    from planner.ask.services import plan_services_of
    from planner.question.services import read_services

    return plan_services_of(read_services(config, options), progress)


@told_types
def simulate(
    fleet: Plan | str | Path,
    *,
    workload: Workload | Frame | str | Path | None = None,
    rate: float | None = None,
    requests: int = 50_000,
    seeds: int | Sequence[int] = 6,
    max_requests: int | None = None,
    preset: str | None = None,
    arrivals: str | None = None,
    replay: Workload | str | Path | None = None,
    growth: Literal["users", "use"] | None = None,
    surge: str | None = None,
    in_flight: int | None = None,
    verify_with: str = "kernel",
    progress: Callable[[str, float], None] | None = None,
) -> Verification:
    """Simulate a fleet and judge every promise: holds, fails, or cannot tell.

    Parameters
    ----------
    fleet
        A plan, or a file that holds one.
    workload, rate
        Other traffic, another rate [1/s].
    requests, seeds, max_requests
        Requests of a run that are drawn; runs per pool, each another draw of the traffic; requests of a pool at most: of a trace
        in each run, of those drawn in all, of which there are more runs while a verdict is open. Default 4 million.
    preset
        Engine rules: ``mixed``, ``paged``, ``slots`` or ``policies``; default those of the plan's method.
    arrivals
        ``auto`` (the workload's own requests where it knows them one by one, else drawn at random), ``dispersion`` (drawn with
        the bursts it measured), ``poisson``, or ``paced:N`` (N clients at constant gaps); default as the plan assumed.
    replay
        A trace that is replayed instead, its time stamps with their lengths.
    growth
        A trace reaches more than its own rate by more users (copies of it, shifted in time) or by more use of the same users
        (the same requests, faster); default as the plan.
    surge
        Flash crowds, whose requests alone are measured: ``3x/60s``, or ``3x/60s/30s`` with a ramp of 30 s.
    in_flight
        Requests of all clients under way at most (closed loop).
    verify_with
        ``kernel``, or ``python``, its reference: some 20,000 requests in two runs.
    progress
        Told (pool, share of its current run done).

    Returns
    -------
    Verification
    """
    from planner.ask.simulate import Load, verify_fleet
    from planner.ask.verify import MAX_REQUESTS

    crowd, trace = None if surge is None else Surge.parse(surge), None if replay is None else load_workload(replay)
    load = Load(arrivals, trace, growth, crowd, in_flight or math.inf)
    saved = standing_of(fleet)
    inputs = saved.inputs()
    loaded = saved.traffic(inputs.cdf) if workload is None else load_workload(workload)
    question = compile_question(inputs, loaded, rate)
    return verify_fleet(
        standing_fleet(question, saved.pools),
        question.traffic.workload,
        question.traffic.rate_per_s,
        requests=requests,
        seeds=seeds,
        max_requests=max_requests or MAX_REQUESTS,
        preset=preset,
        load=load,
        program=verify_with,
        progress=progress,
    )


@told_types
def compare_policies(
    policies: Sequence[str],
    rates: Sequence[float],
    workload: Workload | str | Path = "azure",
    *,
    gpu: str = "h100",
    model: str = "llama-3.1-8b",
    tp: int = 1,
    slots: int = 128,
    token_budget: int = 2048,
    ttft: float | str = 1.0,
    tbt: float | str = 0.5,
    tbt_strict: float | str = 0.1,
    strict_share: float | str = 0.0,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    requests: int = 4000,
    seeds: int | Sequence[int] = 2,
    replicas: int = 1,
    routing: str = "random",
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Simulate scheduling policies side by side on the same requests.

    Parameters
    ----------
    policies
        Names of schedulers (``sarathi``, ``eb``, ``slai``, ``wait``, ...), or ``module:Class``.
    rates
        Rates to try [1/s].
    workload
        The traffic.
    gpu, model, tp
        The replica.
    slots, token_budget
        Sequences and tokens per iteration.
    ttft, tbt, tbt_strict, strict_share
        Objectives [s]: of the first token, of every gap between tokens, of the gaps of the strict users, whose share it is.
    parameters
        Policy -> parameters in place of its defaults.
    requests, seeds
        Requests per run; independent runs.
    replicas, routing
        Replicas under one policy, and how requests are spread over them.
    progress
        Told (runs done, all).

    Returns
    -------
    Comparison
    """
    from planner.papers import compare

    limits = (parse_duration(ttft, "ttft"), parse_duration(tbt, "tbt"), parse_duration(tbt_strict, "tbt_strict"))
    share = parse_fraction(strict_share, "strict_share")
    traffic = load_workload(workload)
    found_gpu, found_model = find_gpu(gpu), find_model(model)
    profile = find_profile(gpu=found_gpu, model=found_model, tp=tp)
    room = partial(kv_capacity, found_model, found_gpu, tp, max_num_seqs=slots, token_budget=token_budget)
    memory = profile.kv_tokens or room().tokens
    if memory <= 0:
        raise InputError(
            f"{found_model.name} leaves no KV cache on {found_gpu.name} x TP{tp} with {slots} slots",
            "Take more GPUs per replica (--tp), a larger GPU, or fewer --slots.",
        )
    lengths = traffic.input_tokens, traffic.output_tokens, traffic.weight
    setting = compare.Setting(slots, token_budget, memory, *limits, share)
    how: dict[str, Any] = {"parameters": parameters, "requests": requests, "seeds": seeds, "replicas": replicas}
    result = compare.compare_policies(
        policies, rates, *lengths, profile.iteration, setting, **how, routing=routing, progress=progress
    )
    result.about = f"{found_gpu.name} x TP{tp}, {found_model.name}, {profile.trust}, {memory:,} tokens of KV cache"
    return result


@told_types
def what_if(
    base: Plan | str | Path | PlanInputs,
    *,
    zipped: bool = False,
    scenarios: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    workload: Workload | Frame | str | Path | None = None,
    executor: Executor | None = None,
    jobs: int = 1,
    resume: str | Path | None = None,
    stream: str | Path | None = None,
    keep: bool = False,
    plans: bool = True,
    **values: Any,
) -> Sweep:
    """A plan for every combination of changed options: each is searched as :func:`plan` would with them.

    Parameters
    ----------
    base
        A plan, a plan or configuration file, or a question. Savings are against what it costs.
    zipped
        One point per position instead of all combinations.
    scenarios
        Names of scenarios of the file, each a point of its own (combined with `values`).
    progress
        Told (done, all) before the first point and after every one.
    workload
        The traffic, when it is not in a file.
    executor
        Plans the points elsewhere: any :class:`concurrent.futures.Executor`, also Dask's or Ray's. Their order is kept.
    jobs
        Threads that plan the points, > 0, where no executor is given.
    resume
        File of finished points (JSON lines): those of this sweep that are in it are taken from there, the others added as
        they are done, so that an interrupted sweep goes on. Rows without a plan do where none is asked for.
    stream
        CSV or Parquet file that gets every row as its point is done, in the order they are.
    keep
        Of a plan: keep its pools, engines and boundaries but for what is changed; every row says what is pinned.
    plans
        Whether every point has its plan. Without them there are rows alone (``to_rows()``), in about half the time.
    **values
        Option -> value or list of values, e.g. ``rate=[500, 1000], gpu=["h100", "h200"]``.

    Returns
    -------
    Sweep
        Infeasible points are rows with their reason.
    """
    from contextlib import ExitStack

    from planner.ask.points import Journal
    from planner.ask.what_if import combinations, sweep

    saved = None if isinstance(base, PlanInputs) else saved_of(base)
    told = [*values] if workload is None else [*values, "cdf"]
    question = base if isinstance(base, PlanInputs) else cast("Question", saved).inputs(told=told)
    lists = {canonical(k): [*v] if isinstance(v, (list, tuple)) else [v] for k, v in values.items()}
    changes = combinations(lists, zipped)
    origin: list[str] | None = None
    if scenarios and saved is not None:
        for name in scenarios:
            saved.inputs(name, told=told)
        origin = [name for name in scenarios for _ in changes]
        changes = [{**saved.scenarios[name], **change} for name in scenarios for change in changes]
    loaded = None if workload is None else load_workload(workload)

    def load(name: str) -> Workload:
        if loaded is not None and name == question.cdf:
            return loaded
        return load_workload(name) if saved is None else saved.traffic(name)

    in_memory = workload is not None or (saved is not None and "rows" in saved.workload)
    standing = () if saved is None else saved.pools
    if keep and not standing:
        raise InputError("keep: the base has no pools", "Give a plan: fleetopt plan ... -o plan.yaml")
    refuse_below_1({"jobs": jobs})
    with ExitStack() as opened:
        if executor is None and min(jobs, len(changes)) > 1:
            from concurrent.futures import ThreadPoolExecutor

            executor = opened.enter_context(ThreadPoolExecutor(min(jobs, len(changes))))
        journal = None if resume is None else opened.enter_context(Journal(Path(resume)))
        rows = None if stream is None else Path(stream)
        how = (progress, origin, executor, in_memory, standing, keep, journal, rows, plans)
        return sweep(question, changes, load, *how)


@told_types
@keeping()
def overview(
    fleet: Plan | str | Path, *, choices: bool = True, progress: Callable[[int, int], None] | None = None
) -> Overview:
    """A plan with what surrounds it: other choices, the fleet at other rates, what each doubt is worth, its day.

    Parameters
    ----------
    fleet
        A plan, or a plan or configuration file.
    choices
        Whether what other choices would cost is shown.
    progress
        Told (done, all) after every choice.

    Returns
    -------
    Overview
        What ``fleetopt report`` makes a page of.
    """
    from planner.ask import overview as about
    from planner.ask.choices import answers as answered
    from planner.ask.choices import choices_after, cost_with
    from planner.ask.evaluation import evaluation_of
    from planner.question.files import recorded_plan

    saved = saved_of(fleet)
    inputs = saved.inputs()
    traffic = saved.traffic(inputs.cdf)
    kept = fleet if isinstance(fleet, Plan) else recorded_plan(fleet, inputs.promises)
    found = kept or _planned(fleet, inputs.method)
    standing = standing_fleet(compile_question(inputs, traffic), question_of(found).pools)
    rates = about.rates_of(found, standing.capacity_per_s)
    arrivals = standing.question.traffic.arrivals
    bursts = arrivals is not None and bool(arrivals.dispersion)
    doubts, cuts = about.doubts_of(found, inputs, bursts), about.cuts_of(found, inputs)
    otherwise = [changes for _, *ways in doubts for changes in ways]
    otherwise += [{"boundaries": [b], "gammas": [g]} for b, g in cuts]
    # the same engines, and boundaries where these are not the question
    alike, own = replace(inputs, tp=None), engines_of(question_of(found).pools)
    tasks: list[Callable[[], Any]] = [
        partial(evaluation_of, standing, rates[::2]),
        partial(evaluation_of, standing, rates[1::2]),
        partial(cost, found),
        partial(_day_of, found, rate_of_hours(inputs, traffic)),
        *(partial(cost_with, {**own, **changes}, alike, traffic) for changes in otherwise if changes is not None),
    ]
    if choices and found.choices is None:
        answers, table = choices_after(tasks, found, inputs, traffic, progress)
        found = replace(found, choices=table)
    else:
        answers = answered(tasks, progress)
    even, odd, paid, day, *known = answers
    costs = iter(known)
    priced = [None if changes is None else next(costs) for changes in otherwise]
    return about.Overview(
        found,
        even.beside(odd),
        about.sensitivities(found, doubts, priced[: 2 * len(doubts)]),
        day,
        paid,
        f"fleetopt report {fleet if not isinstance(fleet, Plan) else 'plan.yaml'}",
        tuple(about.Cut(b, g, price) for (b, g), price in zip(cuts, priced[2 * len(doubts) :], strict=True)),
    )


def _day_of(fleet: Plan, rate_is: Literal["mean", "peak"]) -> Schedule | None:
    """Its day; ``None`` where the traffic has no times, or fewer than a day's."""
    from planner.ask.schedule import schedule

    try:
        return schedule(fleet, rate_is=rate_is)
    except (InputError, InfeasibleError):
        return None


def _planned(fleet: Any, method: str) -> Plan:
    """The plan of a file."""
    point = what_if(fleet, method=method).points[0]
    if point.plan is None:
        raise InfeasibleError(point.error or "no fleet")
    return point.plan


@told_types
def cost(
    fleet: Plan | str | Path,
    *,
    hours: str | Path | None = None,
    startup: float | str = "4min",
    dwell: float | str = 0.0,
    reserved: Sequence[str] | None = None,
    spot_share: float | str = 0.0,
    preemptions_per_hour: float = 0.05,
    shortfall: float | str = 0.01,
    api_prices: str | Path | None = None,
    api_models: Sequence[str] | None = None,
    rent_peak: bool = False,
    pue: float = 1.0,
    kwh_price: float | None = None,
    co2: float | None = None,
    **options: Any,
) -> Costs:
    """What a fleet costs as finance sees it: how to pay for its hours, tokens in and out, an API's price, energy.

    Parameters
    ----------
    fleet
        A plan, or a plan or configuration file.
    hours, startup, dwell
        As for :func:`schedule`; without hours of any kind every hour is the plan's.
    reserved
        Offers, ``"h100=1.79@1y"``; for types without one the price lists are asked.
    spot_share
        Largest share of every hour's GPUs on spot capacity.
    preemptions_per_hour, shortfall
        Of one spot replica [1/h]; probability allowed that fewer are up than needed, which makes the reserve.
    api_prices, api_models
        A file in genai-prices' format, and which of its models (``model`` or ``provider/model``); default those it names as
        the plan's model.
    rent_peak
        Also how many GPUs to own where others by the hour, or each of the APIs, take what is above them.
    pue, kwh_price, co2
        Power at the meter over the GPUs'; price [USD/kWh] and carbon intensity [g/kWh] of electricity.
    **options
        Options of :func:`plan`. ``rate_is`` (the plan's rate is the ``mean`` of the hours or their ``peak``) is by default as it
        was planned.

    Returns
    -------
    Costs

    Examples
    --------
    >>> import planner as fo
    >>> p = fo.plan("azure", slo=2.0, rate=100, method="occupancy", burst="poisson", pools=1)
    >>> found = fo.cost(p, hours="servegen-m-small", reserved=["h100=1.0@1y"])
    >>> found.cheapest.cost_usd_per_hour < p.cost_usd_per_hour
    True
    """
    from planner.ask.costs import Spot, costs_of, months_of, with_peaks
    from planner.ask.hourly import Elasticity, Hourly
    from planner.ask.schedule import make_schedule
    from planner.catalog.price_files import read_api_prices
    from planner.workload.hours import hourly_rates

    offers: dict[str, list[tuple[str, float]]] = {}
    for offer in reserved or ():
        name, _, rest = str(offer).partition("=")
        price, at, term = rest.partition("@")
        if not (name and price and at):
            raise InputError(f"reserved: {offer!r} is not GPU=USD@TERM", "Write it as h100=1.79@1y.")
        usd = parse_number(price, f"reserved {offer}")
        if not usd > 0.0 or not months_of(term):
            raise InputError(f"reserved: {offer!r}: the price must be positive")
        offers.setdefault(find_gpu(name).name, []).append((term, usd))
    spot = Spot(parse_fraction(spot_share, "spot_share"), preemptions_per_hour, parse_fraction(shortfall, "shortfall"))
    saved = saved_of(fleet)
    inputs = saved.inputs()
    apis = [] if api_prices is None else read_api_prices(api_prices, api_models or ())
    if apis and not api_models:
        apis = _apis_of(inputs.model, apis, str(api_prices))
    notes, traffic = [], saved.traffic(inputs.cdf)
    over = options.pop("rate_is", None) or rate_of_hours(inputs, traffic)
    times = parse_duration(startup, "startup"), parse_duration(dwell, "dwell")
    if hours is None and not traffic.arrivals.hourly_profile:
        notes.append("no rates by hour: every hour is the plan's (--hours gives them)")
        hourly = Hourly(fleet, None, None, options)
        day, rate, elasticity = (
            hourly_rates(None, flat="the same every hour"),
            hourly.peak,
            Elasticity(*times, 0.0, over),
        )
    else:
        hourly = Hourly(fleet, None, None, {**options, "rate_is": over}, hours, times)
        day, rate, elasticity = hourly.rates, hourly.rate, hourly.elasticity
    found = hourly.fleet(hourly.peak)
    schedule = make_schedule(found, day, rate, elasticity)
    costs = costs_of(found, schedule, offers, spot, apis, pue, kwh_price, co2, notes)
    return with_peaks(costs, found, schedule, apis) if rent_peak else costs


def _apis_of(model: str, apis: Sequence[ApiPrice], source: str) -> list[ApiPrice]:
    """The prices of what is the plan's model by its name."""

    def words(name: str) -> set[str]:
        return {w for w in normalized(name).split("-") if w not in ("instruct", "turbo", "meta", "chat", "it", "hf")}

    found = [a for a in apis if words(model) <= words(a.model)]
    if not found:
        raise InputError(f"{source}: no model named as {model}", "Name some: --api-model PROVIDER/MODEL.")
    return found


@told_types
def deploy(
    fleet: Plan | str | Path,
    to: str = "k8s",
    *,
    name: str = "fleetopt",
    namespace: str | None = None,
    engine: str | None = None,
    image: str | None = None,
    model_id: str | None = None,
    startup: float | str | None = None,
    cache: str | None = None,
    revision: str | None = None,
    api_key_secret: str | None = None,
    router_image: str | None = None,
    platform: str = "generic",
    replicas_by: str = "plan",
    layout: str = "file",
    prometheus_namespace: str = "monitoring",
) -> Rendered:
    """A plan as files that start it.

    Parameters
    ----------
    fleet
        A plan or a plan file.
    to
        ``k8s``, ``kserve``, ``llm-d``, ``compose``, ``systemd``, ``production-stack`` or ``dynamo``.
    name, namespace
        Objects are called ``name-pool``; Kubernetes namespace.
    engine, image, model_id
        Instead of the plan's engine, the engine's image, the catalog's repository of the model.
    startup
        From starting a replica until it serves [s]; estimated from the weights when ``None``.
    cache
        Volume claim (or folder of the host) that keeps the weights; downloaded at every start when ``None``.
    revision
        Commit or tag of the weights' repository; its newest when ``None``.
    api_key_secret
        Secret whose ``api-key`` requests must bear; none when ``None``.
    router_image
        Image of what stands in front of the replicas, instead of the target's own.
    platform
        Whose node labels name the GPUs: ``generic``, ``gke``, ``eks`` or ``aks``.
    replicas_by
        Whether the ``plan`` or a ``scaler`` says how many replicas there are.
    layout
        ``file``, or ``kustomize``: a base and an overlay.
    prometheus_namespace
        Namespace that network policies let read metrics.

    Returns
    -------
    Rendered
        Files by name, and what the reader must know.
    """
    from planner.operate.deploy import find_target
    from planner.operate.deploy.serving import DeployOptions, serving_of

    target, saved = find_target(to), standing_of(fleet)
    seconds = None if startup is None else parse_duration(startup, "--startup")
    options = DeployOptions(
        name, namespace, engine, image, model_id, seconds, cache, revision, api_key_secret, router_image, platform, replicas_by,
        layout, prometheus_namespace,
    )  # fmt: skip
    found: Rendered = target.render(serving_of(document_of(fleet), saved.pools, options))
    return found


def _scalers(paths: Sequence[str | Path] | None, name: str, pools: Sequence[str]) -> dict[str, Policy]:
    """Rules of files by pool, whatever wrote the objects they scale."""
    from planner.operate.monitor.names import names_of
    from planner.operate.monitor.policy import policies_of

    if not paths:
        return {}
    roles = {p: p if set(pools) == {"prefill", "decode"} else "both" for p in pools}
    return policies_of([Path(p) for p in paths], [(p, names_of(name, p, roles[p])) for p in pools])


def _planned_requests(
    fleet: Plan | str | Path, rate: float | None, requests: int, seconds: float | str
) -> tuple[Mapping[str, Any], CompiledQuestion, Requests]:
    """The plan file's content, its question, and the requests it plans with."""
    from planner.operate.deploy.replay import planned_requests

    if not 1 <= requests <= 1_000_000:
        raise InputError(f"--replay-requests: must lie in [1, 1,000,000], got {requests!r}")
    most_s = _within(seconds, "--replay-for", 1.0, DAY_S, "1 s and a day")
    saved = standing_of(fleet)
    inputs = saved.inputs()
    question = compile_question(inputs, saved.traffic(inputs.cdf), rate)
    return document_of(fleet), question, planned_requests(question.traffic, requests, most_s)


@told_types
def accept(
    fleet: Plan | str | Path,
    server: str | Path,
    *,
    rate: float | None = None,
    requests: int = 2000,
    seconds: float | str = "5min",
    served_model: str | None = None,
    api_key: str | None = None,
) -> Acceptance:
    """The planned traffic sent to a fleet, and its promises judged by the answers.

    Parameters
    ----------
    fleet
        A plan or a plan file.
    server
        Address of an OpenAI-compatible server; or a file that `vllm bench serve --save-detailed` or GuideLLM wrote.
    rate
        Requests a second [1/s]; the plan's when ``None``.
    requests, seconds
        How many are sent at most, and for how long [s].
    served_model
        Name the server knows the model by; the repository of its weights when ``None``.
    api_key
        Bearer token.

    Returns
    -------
    Acceptance
        Every promise with its verdict, and what was measured beside what was planned.
    """
    from planner.calibrate.live import Server
    from planner.operate.deploy.acceptance import accept as judged
    from planner.operate.deploy.acceptance import read_results
    from planner.operate.deploy.replay import send
    from planner.operate.deploy.serving import DeployOptions, serving_of

    content, question, planned = _planned_requests(fleet, rate, requests, seconds)
    if str(server).startswith(("http://", "https://")):
        # the name is asked for only where none is given: not every model has weights whose place is known
        serving = None if served_model else serving_of(content, standing_of(fleet).pools, DeployOptions())
        place = Server(str(server), served_model or (serving.repository if serving else ""), api_key)
        longest = max(float(v["value_s"]) for p in content["pools"] for v in p["latency"])
        outcomes = send(place, planned, 3.0 * longest)
        sent_s, whom = float(planned.times_s[-1]), str(place.endpoint)
    else:
        outcomes, sent_s, whom = read_results(Path(server))
    return judged(content, question.promises.latency, outcomes, sent_s, whom, question.traffic.sees_output)


@told_types
def acceptance_job(
    fleet: Plan | str | Path,
    to: str = "k8s",
    *,
    generator: str = "vllm",
    program: str,
    url: str | None = None,
    requests: int = 2000,
    seconds: float | str = "5min",
    name: str = "fleetopt",
    namespace: str | None = None,
    image: str | None = None,
    api_key_secret: str | None = None,
) -> Rendered:
    """A Job that sends a fleet its planned traffic, and judges it.

    Parameters
    ----------
    fleet
        A plan or a plan file.
    to
        How it was deployed: ``k8s``, ``kserve``, ``llm-d``, ``production-stack`` or ``dynamo``.
    generator
        What sends the requests: ``vllm`` (`vllm bench serve` of the engine's image) or ``guidellm``.
    program
        An image with fleetopt in it, or the address of a wheel of it.
    url
        Where requests go; the service that the target makes when ``None``.
    requests, seconds
        How many are sent at most, and for how long [s].
    name, namespace, image, api_key_secret
        As for :func:`deploy`.

    Returns
    -------
    Rendered
        The Job, and what it reads.
    """
    from planner.operate.deploy import find_target
    from planner.operate.deploy.acceptance import acceptance as job
    from planner.operate.deploy.kubernetes import to_yaml
    from planner.operate.deploy.serving import DeployOptions, serving_of

    content, _, planned = _planned_requests(fleet, None, requests, seconds)
    options = DeployOptions(name, namespace, image=image, api_key_secret=api_key_secret)
    serving = serving_of(content, standing_of(fleet).pools, options)
    target = find_target(to)
    if not (address := url or (target.address(serving) if hasattr(target, "address") else "")):
        raise InputError(
            f"--acceptance: --to {to} starts replicas on hosts, where there are no Jobs",
            "Run it there: fleetopt check plan.yaml --replay http://localhost:8080.",
        )
    return job(serving, planned, to_yaml(content), generator=generator, program=program, url=address)


@told_types
def autoscale(
    fleet: Plan | str | Path,
    *,
    hours: str | Path | None = None,
    rate_is: str = "peak",
    startup: float | str | None = None,
    policy: Sequence[str | Path] | None = None,
    name: str = "fleetopt",
    clock: bool = False,
    deployed: str = "k8s",
    windows: float | str | None = None,
    scale_to_zero: float | str | None = None,
) -> Autoscaling:
    """Scalers of a plan's pools: thresholds, a derived rule, and a backtest.

    Parameters
    ----------
    fleet
        A plan or a plan file.
    hours
        File with 24 or 168 rates, or a shipped service; default the workload's own hours, or a constant rate.
    rate_is
        Whether the plan's rate is the ``peak`` of the hours or their ``mean``.
    startup
        From starting a replica until it serves [s]; estimated from the weights when ``None``.
    policy
        Files with a HorizontalPodAutoscaler or ScaledObject to be judged beside; one for several pools names its target.
    name
        Objects of the fleet are called ``name-pool``.
    clock
        Whether every hour also holds what its mean rate needs, started ahead, whatever the metrics say (KEDA's cron triggers).
    deployed
        The target of ``fleetopt deploy`` that wrote the fleet: ``k8s``, ``llm-d``, ``kserve`` or ``dynamo``.
    windows
        Windows that the promises are about instead of the plan's own period [s].
    scale_to_zero
        Without requests for so long no replica is kept [s]; ``None`` = the fewest always are.

    Returns
    -------
    Autoscaling
    """
    from planner.operate.autoscale.derive import Asked, autoscaling
    from planner.operate.autoscale.objects import guards_of
    from planner.operate.deploy.serving import Startup, estimated_startup
    from planner.operate.monitor.names import find_deployed
    from planner.workload.hours import hourly_rates

    saved = standing_of(fleet)
    inputs = saved.inputs()
    if windows is not None:
        inputs = inputs.override({"windows": windows})
    loaded = saved.traffic(inputs.cdf)
    built = standing_fleet(compile_question(inputs, loaded), saved.pools)
    by_hour = hourly_rates(hours, loaded, saved.folder, flat="a constant rate")
    rates = by_hour.rates_per_s(by_hour.mean_rate_per_s or built.rate, "mean" if by_hour.mean_rate_per_s else rate_is)
    seconds = None if startup is None else _within(startup, "--startup", 0.0, DAY_S, "0 and a day")
    week = 1.0, WEEK_S, "a second and a week"
    idle = None if scale_to_zero is None else _within(scale_to_zero, "--scale-to-zero", *week)
    asked = Asked(
        repository(inputs.model) or inputs.model,
        name,
        _scalers(policy, name, [p.name for p in built.pools]),
        clock,
        guards_of(find_deployed(deployed), len(built.pools)),
        idle,
    )
    return autoscaling(
        built,
        rates,
        by_hour.source,
        lambda pool: estimated_startup(pool.option.model, cached=False) if seconds is None else Startup(seconds, {}),
        asked,
    )


def _within(given: float | str, option: str, low: float, high: float, told: str) -> float:
    """A time that has limits [s]."""
    seconds = parse_duration(given, option)
    if not low <= seconds <= high:
        raise InputError(f"{option}: must lie between {told}, got {seconds:g} s")
    return seconds


@told_types
def metrics(
    prometheus: str | Path, *, window: float | str = "1h", selector: str = "", api_key: str | None = None
) -> dict[str, list[Series]]:
    """The series of a fleet, for :func:`check`.

    Parameters
    ----------
    prometheus
        Address of a Prometheus server, or a file of its answers to range queries.
    window
        How far back to look [s], 10 minutes to 14 days.
    selector
        Label matchers of the fleet's series, without braces.
    api_key
        Bearer token for the server.

    Returns
    -------
    dict
        Metric -> series.
    """
    from planner.operate.monitor.measured import queries, read_answers, read_server

    place = str(prometheus)
    if not place.startswith(("http://", "https://")):
        if re.fullmatch(r"[\w.-]+:\d+(/.*)?", place) and not Path(place).exists():
            raise InputError(f"{place}: no such file", f"An address begins with its scheme: http://{place}.")
        return read_answers(place)
    return read_server(place, queries(), parse_duration(window, "--window"), selector, api_key)


@told_types
def check(
    fleet: Plan | str | Path,
    prometheus: str | Path | Mapping[str, Sequence[Series]],
    *,
    name: str = "fleetopt",
    policy: Sequence[str | Path] | None = None,
    **options: Any,
) -> FleetCheck:
    """Metrics of a running fleet against its plan at the traffic measured.

    Parameters
    ----------
    fleet
        A plan or a plan file.
    prometheus
        As for :func:`metrics`, or what it returned.
    name
        Objects of the fleet are called ``name-pool``.
    policy
        Files of the scalers that set its replicas: then as many are expected as these want for the traffic measured.
    options
        As for :func:`metrics`.

    Returns
    -------
    FleetCheck
        What moved, how the promises stand, what the plan would be now.
    """
    from planner.operate.monitor.check import check_fleet

    series = prometheus if isinstance(prometheus, Mapping) else metrics(prometheus, **options)
    saved = standing_of(fleet)
    inputs = saved.inputs()
    scalers = _scalers(policy, name, [p.name for p in saved.pools])
    return check_fleet(inputs, saved.traffic(inputs.cdf), saved.pools, series, name, scalers)


@told_types
def monitoring_rules(
    fleet: Plan | str | Path,
    *,
    name: str = "fleetopt",
    selector: str = "",
    to: str = "files",
    deployed: str | None = None,
    namespace: str | None = None,
    policy: Sequence[str | Path] | None = None,
) -> dict[str, str]:
    """Prometheus rules and a Grafana dashboard of a plan.

    Parameters
    ----------
    fleet
        A plan or a plan file.
    name
        Objects of the fleet are called ``name-pool``.
    selector
        Label matchers of the fleet's series, without braces.
    to
        ``files``, or ``kubernetes``: a PodMonitor, a PrometheusRule, the dashboard's ConfigMap, and the same for Google's.
    deployed
        The target of ``fleetopt deploy`` that wrote the fleet; for ``kubernetes`` ``k8s`` unless stated.
    namespace
        Kubernetes namespace of the fleet.
    policy
        Files of the scalers that set its replicas: then these are missing where fewer are there than a scaler wants.

    Returns
    -------
    dict of str to str
        File -> text.
    """
    from planner.operate.monitor.names import find_deployed
    from planner.operate.monitor.rules import Watched, monitoring_files

    saved = standing_of(fleet)
    inputs = saved.inputs()
    built = standing_fleet(compile_question(inputs, saved.traffic(inputs.cdf)), saved.pools)
    known = find_deployed(deployed or "k8s") if deployed or to == "kubernetes" else ""
    model = (repository(inputs.model) or inputs.model) if known else ""
    scalers = _scalers(policy, name, [p.name for p in built.pools])
    return monitoring_files(built, Watched(name, selector, known, model, namespace, scalers), to)


@told_types
def reproduce(paper: str = "all", progress: Callable[[int, int], None] | None = None) -> Reproduction:
    """The printed numbers of a paper beside ours, and why they differ.

    Parameters
    ----------
    paper
        ``fleetopt``, ``rad-slai``, ``exclusive-batching``, ``wait`` or ``all``.
    progress
        Called with the parts done and all parts.

    Returns
    -------
    Reproduction
    """
    from planner.papers.printed import reproduce as findings_of

    return findings_of(paper, progress)


@spelled_out
@told_types
def stability(
    workload: Workload | Frame | str | Path | None = None,
    *,
    replicas: int | None = None,
    burst: float = 2.0,
    **options: Unpack[ReplicaOptions],
) -> Stability:
    """What a replica and a fleet sustain: which bound says so, slack, time to overload.

    Parameters
    ----------
    workload, rate, gpu, model, tp, profile, token_budget, max_num_seqs
        As for :func:`plan`; one kind of replica.
    replicas
        Replicas of the fleet; default enough for a load of 0.85.
    burst
        Burst asked about, as a factor on the rate.

    Returns
    -------
    Stability
    """
    from planner.ask.stability import stability as stability_of

    return stability_of(_replica(workload, options), replicas, burst)


@spelled_out
@told_types
def batching(
    workload: Workload | Frame | str | Path | None = None,
    **options: Unpack[ReplicaOptions],
) -> Batching:
    """Exclusive or mixed batching, with the settings of each, and how certain that is.

    Parameters
    ----------
    workload, rate, gpu, model, tp, profile, token_budget, max_num_seqs
        As for :func:`plan`; one kind of replica.

    Returns
    -------
    Batching
    """
    from planner.ask.batching import batching as batching_of

    return batching_of(_replica(workload, options))


@spelled_out
@told_types
def wait(
    workload: Workload | Frame | str | Path | None = None,
    *,
    replicas: int | None = None,
    types: int | None = None,
    segments: int | None = None,
    horizon: float | str = "1h",
    delta: float | str = 0.01,
    **options: Unpack[ReplicaOptions],
) -> WaitSettings:
    """Thresholds of WAIT and Nested WAIT: how many requests to wait for, the memory they need, what they promise.

    Parameters
    ----------
    workload, rate, gpu, model, tp, profile, token_budget, max_num_seqs
        As for :func:`plan`; one kind of replica.
    replicas
        Replicas that share the rate; default enough for 0.85 of capacity.
    types, segments
        Output classes of WAIT; segments of Nested WAIT. Default those with the least memory.
    horizon, delta
        Time the memory promise covers [s], and the probability that memory is exceeded in that time.

    Returns
    -------
    WaitSettings
    """
    from planner.ask.wait import wait_settings

    covered, risk = parse_duration(horizon, "--horizon"), parse_fraction(delta, "--delta")
    return wait_settings(_replica(workload, options), replicas, types, segments, covered, risk)


@told_types
def calibrate(
    gpu: str | None = None,
    model: str | None = None,
    *,
    files: str | Path | Sequence[str | Path] | None = None,
    server: str | None = None,
    launch: Launch | None = None,
    tp: int | None = None,
    device: str = "cuda",
    points: int | None = None,
    max_seconds: float | str | None = None,
    select: Mapping[str, str] | None = None,
    isl: float | None = None,
    osl: float | None = None,
    concurrency: float | None = None,
    source: str = "",
    scheduling: str | None = None,
    token_budget: int | None = None,
    served_model_name: str | None = None,
    for_plan: str | Path | None = None,
    max_requests: int = 1000,
    max_concurrency: int = 32,
    max_input: int = 4096,
    max_output: int = 256,
    api_key: str | None = None,
    timeout: float | str = 60.0,
    start_wait: float | str = 30.0,
    force: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> CalibrationSet:
    """Iteration-time profiles from measurements in files, from a running server, or of the GPU of this machine.

    Parameters
    ----------
    gpu, model, tp
        What is measured.
    files
        Results of load generators, or CSVs of iterations or server points: read instead of measuring.
    server
        Address of an OpenAI-compatible server to measure.
    launch
        Engine to start here, to measure and to stop (:class:`planner.calibrate.launch.Launch`).
    device, points
        ``cuda``, or ``cpu`` to try the path; batches to measure, or to use of each group of a file.
    max_seconds
        Bound of the measuring [s]; default 60 here, 300 for a server.
    select, source
        Rows of files with column = value; where the files come from.
    isl, osl, concurrency
        Mean lengths [tokens] and load [requests] where a file does not say them.
    scheduling, token_budget
        Of the server: ``mixed`` or ``exclusive``; tokens per iteration. What it says, or fits best, when ``None``.
    served_model_name
        The server's name for the model, where `model` is another; the one it serves when both are ``None``.
    for_plan
        Plan file: measure where that plan will run, instead of the bounds below.
    max_requests, max_concurrency, max_input, max_output, api_key, timeout, start_wait
        What may be sent to the server, its key, and how long to wait for it [s].
    force
        Return a profile that fails its checks; measure a GPU that was not named.
    progress
        Told (done, all, what) before every point.

    Returns
    -------
    CalibrationSet
        Profiles, fits, raw points and notes; nothing is written until ``.only.save(path)``.
    """
    from planner.calibrate import run
    from planner.calibrate.files import Assumed

    seconds = None if max_seconds is None else parse_duration(max_seconds, "max_seconds")
    paths = () if files is None else [files] if isinstance(files, (str, Path)) else files
    target = reach = None
    if server is not None or launch is not None:
        from planner.calibrate.live import Server
        from planner.calibrate.loads import OperatingRange

        patience = parse_duration(timeout, "timeout"), parse_duration(start_wait, "start_wait")
        if server is not None:
            target = Server(server, served_model_name or model or "", api_key, *patience)
        reach = OperatingRange(max_input, max_output, max_concurrency, max_requests)
        if for_plan is not None:
            reach = OperatingRange.for_plan(for_plan, max_requests)
    return run.calibrate(
        server=target, launch=launch, files=paths, gpu=gpu,
        model=model if served_model_name or target is None else None, tp=tp,
        device=device, reach=reach, scheduling=scheduling, token_budget=token_budget, where=select, points=points,
        assumed=Assumed(isl, osl, concurrency),
        max_seconds=seconds, force=force, source=source, progress=progress,
    )  # fmt: skip


def _replica(workload: Workload | Frame | str | Path | None, options: Mapping[str, Any]) -> SchedulerReplica:
    """The replica and traffic a scheduler command is about."""
    from planner.ask.replica import scheduler_replica

    return scheduler_replica(load_workload("azure" if workload is None else workload), options)
