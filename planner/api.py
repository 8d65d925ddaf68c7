"""The verbs that do not yet stand beside their answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.ask.asked import document_of, standing_of
from planner.catalog.kv import kv_capacity
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import model as find_model
from planner.catalog.load import repository
from planner.catalog.profiles import profile as find_profile
from planner.errors import InputError
from planner.plans import Plan
from planner.question.compiled import (
    CompiledQuestion,
    compile_question,
)
from planner.shared.arguments import told_types
from planner.size.shapes import standing_fleet
from planner.units import DAY_S, WEEK_S, parse_duration, parse_fraction
from planner.workload.given import load_workload
from planner.workload.workload import Workload

# A plan pays for the start of what a plan needs; every other verb loads its own when it is called.
if TYPE_CHECKING:
    from planner.calibrate.launch import Launch
    from planner.calibrate.result import CalibrationSet
    from planner.operate.autoscale.derive import Autoscaling
    from planner.operate.deploy import Rendered
    from planner.operate.deploy.acceptance import Acceptance
    from planner.operate.deploy.replay import Requests
    from planner.operate.monitor.check import FleetCheck
    from planner.operate.monitor.measured import Series
    from planner.operate.monitor.policy import Policy
    from planner.papers.compare import Comparison
    from planner.papers.printed import Reproduction

    # end of options


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
