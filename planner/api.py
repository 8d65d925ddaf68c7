"""The verbs: what the command line calls, and what a script imports as ``fo.plan(...)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.fleet.assemble import arrival_rate_of, make_plan
from planner.plans import Plan
from planner.promise import Slo
from planner.question.inputs import PlanInputs
from planner.workload.workload import Workload

# A plan pays for the start of what a plan needs; every other verb loads its own when it is called.
if TYPE_CHECKING:
    from planner.question.files import SavedPool
    from planner.reproduce.result import Reproduction
    from planner.simulate.plan import Verification
    from planner.studies.classes import TieredPlan
    from planner.studies.evaluation import Evaluation
    from planner.studies.schedule import Schedule
    from planner.studies.what_if import Sweep

__all__ = ["evaluate", "plan", "plan_tiers", "reproduce", "schedule", "verify", "what_if"]

_BOUGHT = {
    "gpu",
    "gpus",
    "tp",
    "pools",
    "max_pools",
    "boundaries",
    "boundary",
    "gammas",
    "gamma",
    "max_num_seqs",
    "token_budget",
    "min_replicas",
    "redundancy",
    "availability_target",
    "failures_per_hour",
    "repair_hours",
    "inventory",
    "price",
    "spot_price",
    "spot_share",
    "max_evaluations",
    "shape",
}
"""Options that say what to buy or how to search for it: they change nothing of a fleet that stands."""

_ALIASES = {"arrival_rate_per_s": "rate", "max_pools": "pools"}


def plan(
    workload: Workload | str | Path | None = None,
    *,
    slo: Slo | float | str | None = None,
    config: str | Path | None = None,
    scenario: str | None = None,
    **options: Any,
) -> Plan:
    """The cheapest fleet that keeps the promises.

    Parameters
    ----------
    workload
        A :class:`Workload`, a file, or a shipped name; default ``azure``.
    slo
        Promises; a bare number is a P99 TTFT [s].
    config, scenario
        A configuration or plan file whose options are the base, and one of its scenarios.
    **options
        Any option of ``fleetopt plan`` under its own name (:class:`planner.question.inputs.PlanInputs`), e.g.
        ``gpu="h100"``, ``model="llama-3.1-8b"``, ``rate=1000``, ``method="mgc"``, ``tpot=0.05``.

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        Something in the question cannot be; all problems at once.
    InfeasibleError
        No fleet keeps the promises: what binds, the best achievable, what would help.

    Examples
    --------
    >>> import planner as fo
    >>> p = fo.plan("azure", slo=fo.Slo(ttft_s=2.0), rate=100, method="mgc", kv="reserved", profile="fleetopt-paper")
    >>> p.pools[0].binding
    'utilization cap 85% of the maximum throughput'
    """
    data: dict[str, Any] = dict(options)
    if isinstance(slo, Slo):
        data["promises"] = list(slo.promises)
    elif slo is not None:
        data["slo"] = slo
    if isinstance(workload, Workload):
        data["cdf"] = workload.name
    elif workload is not None:
        data["cdf"] = str(workload)
    if config is None:
        if scenario is not None:
            raise InputError(f"scenario {scenario!r} of which file?", "Give it: --config FILE.")
        question, folder = PlanInputs.from_dict(data), None
    else:
        from planner.question.files import load_question

        saved = load_question(config)
        question, folder = saved.inputs(scenario, data), saved.folder
    loaded = workload if isinstance(workload, Workload) else load_workload(question.cdf, folder)
    return make_plan(question, loaded)


def plan_tiers(config: str | Path, **options: Any) -> TieredPlan:
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
    from planner.question.files import load_question
    from planner.studies.classes import plan_classes

    saved = load_question(config)
    if not saved.classes:
        raise InputError(f"{config}: has no classes", "Add `classes:` with a name and options for each.")
    base = {**saved.options, **options}
    return plan_classes(base, saved.classes, lambda name: load_workload(name, saved.folder), f"{saved.source}: ")


def evaluate(
    fleet: Plan | str | Path,
    arrival_rate_per_s: float | Sequence[float] | None = None,
    *,
    workload: Workload | str | Path | None = None,
    **changes: Any,
) -> Evaluation:
    """A fixed fleet under another load: latencies, and which promises still hold.

    Parameters
    ----------
    fleet
        A plan, or a file that holds one.
    arrival_rate_per_s
        Rates to try [1/s]; default the plan's own.
    workload
        Other traffic than the plan's.
    **changes
        Options to change, e.g. ``cached_share=0.6``, ``burst="poisson"``, ``ttft=1.0``.

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> import planner as fo
    >>> p = fo.plan("azure", slo=2.0, rate=100, method="occupancy", pools=1)
    >>> [row["holds"] for row in fo.evaluate(p, [50, 10_000]).to_rows()]
    [True, False]
    """
    from planner.studies.evaluation import evaluation_of
    from planner.studies.standing_disaggregated import standing_fleet

    question, pools, folder = _standing(fleet)
    if bought := [k for k in changes if k.replace("-", "_") in _BOUGHT]:
        raise InputError(
            f"{', '.join(bought)}: fixed by the plan, whose fleet stands",
            "Plan again with it: fleetopt what-if, or plan --config.",
        )
    inputs = question.override(changes) if changes else question
    if isinstance(workload, Workload):
        loaded = workload
    elif workload is not None:
        loaded = load_workload(str(workload))
    else:
        loaded = load_workload(inputs.cdf, folder)
    if arrival_rate_per_s is None:
        rates = [arrival_rate_of(inputs, loaded)]
    else:
        rates = (
            [float(arrival_rate_per_s)]
            if isinstance(arrival_rate_per_s, (int, float))
            else [*map(float, arrival_rate_per_s)]
        )
    if bad := [r for r in rates if not r > 0.0]:
        raise InputError(f"rate: must be positive, got {bad[0]!r}")
    return evaluation_of(standing_fleet(inputs, loaded, pools), rates)


def verify(
    fleet: Plan | str | Path,
    *,
    workload: Workload | str | Path | None = None,
    rate: float | None = None,
    **keywords: Any,
) -> Verification:
    """Simulate a fleet and judge every promise: holds, fails, or cannot tell.

    Parameters
    ----------
    fleet
        A plan, or a file that holds one.
    workload, rate
        Other traffic, another rate [1/s].
    **keywords
        Options of :func:`planner.simulate.plan.verify_fleet`: requests, seeds, preset, arrivals, progress.

    Returns
    -------
    Verification
    """
    from planner.simulate.plan import verify_fleet
    from planner.studies.standing import FixedFleet

    inputs, pools, folder = _standing(fleet)
    if isinstance(workload, Workload):
        loaded = workload
    else:
        loaded = load_workload(str(workload or inputs.cdf), folder)
    return verify_fleet(FixedFleet(inputs, loaded, pools), loaded, rate or arrival_rate_of(inputs, loaded), **keywords)


def what_if(
    base: Plan | str | Path | PlanInputs,
    *,
    zipped: bool = False,
    scenarios: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    workload: Workload | None = None,
    **values: Any,
) -> Sweep:
    """A plan for every combination of changed options.

    Parameters
    ----------
    base
        A plan, a plan or configuration file, or a question.
    zipped
        One point per position instead of all combinations.
    scenarios
        Names of scenarios of the file, each a point of its own (combined with `values`).
    progress
        Told (done, all) after every point.
    workload
        The traffic, when it is not in a file.
    **values
        Option -> value or list of values, e.g. ``rate=[500, 1000], gpu=["h100", "h200"]``.

    Returns
    -------
    Sweep
        Infeasible points are rows with their reason.
    """
    from planner.question.files import load_question
    from planner.studies.what_if import combinations, sweep

    folder = None
    named: Mapping[str, Mapping[str, Any]] = {}
    if isinstance(base, PlanInputs):
        question = base
    elif isinstance(base, Plan):
        question = PlanInputs.from_dict(dict(base.inputs))
    else:
        saved = load_question(base)
        question, folder, named = saved.inputs(), saved.folder, saved.scenarios
        for name in scenarios or ():
            saved.inputs(name)
    lists = {_ALIASES.get(k, k): [*v] if isinstance(v, (list, tuple)) else [v] for k, v in values.items()}
    changes = combinations(lists, zipped)
    origin: list[str] | None = None
    if scenarios:
        origin = [name for name in scenarios for _ in changes]
        changes = [{**named[name], **change} for name in scenarios for change in changes]

    def load(name: str) -> Workload:
        return workload if workload is not None and name == question.cdf else load_workload(name, folder)

    return sweep(question, changes, load, progress, origin)


def schedule(
    fleet: Plan | Workload | str | Path | None = None,
    *,
    hours: str | Path | None = None,
    startup: float | str = "4min",
    dwell: float | str = 0.0,
    buffer: float | str = 0.0,
    rate_is: str = "mean",
    workload: Workload | str | Path | None = None,
    slo: Slo | float | str | None = None,
    scenario: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Schedule:
    """Replicas per hour and pool over a day or a week, and what scaling saves.

    Parameters
    ----------
    fleet
        A plan or a plan file: its pools, boundaries and engines, scaled by the hour. A configuration file or ``None``:
        the pools are planned for the busiest hour first.
    hours
        File with 24 or 168 rates, or a shipped service; default the workload's own hours.
    startup
        From starting a replica until it serves [s]; it is started, and paid, that much ahead.
    dwell
        Least time a pool keeps its number of replicas, in whole hours [s].
    buffer
        Added to every hour's traffic, e.g. 0.1 or ``"10%"``.
    rate_is
        Whether the rate is the ``mean`` over the hours or the ``peak``.
    workload
        The traffic, when it is not the plan's.
    slo, scenario, **options
        As for :func:`plan`.
    progress
        Told (done, all) after every pool.

    Returns
    -------
    Schedule

    Examples
    --------
    >>> import planner as fo
    >>> s = fo.schedule(workload="azure", slo=2.0, rate=100, method="occupancy", hours="servegen-m-small")
    >>> s.perfect_cost_usd <= s.cost_usd <= s.static_cost_usd
    True
    """
    from planner.question.files import load_question
    from planner.studies.schedule import Elasticity, make_schedule, planned_demands, standing_demands
    from planner.units import parse_duration, parse_fraction
    from planner.workload.hours import hourly_rates

    elasticity = Elasticity(
        parse_duration(startup, "startup"), parse_duration(dwell, "dwell"), parse_fraction(buffer, "buffer"), rate_is
    )
    if isinstance(fleet, Workload):
        fleet, workload = None, fleet
    data: dict[str, Any] = dict(options)
    if isinstance(slo, Slo):
        data["promises"] = list(slo.promises)
    elif slo is not None:
        data["slo"] = slo
    if workload is not None:
        data["cdf"] = workload.name if isinstance(workload, Workload) else str(workload)
    pools: tuple[SavedPool, ...] = ()
    folder: Path | None = None
    if fleet is None:
        question = PlanInputs.from_dict(data)
    elif isinstance(fleet, Plan):
        question, pools, folder = _standing(fleet)
        question = question.override(data) if data else question
    else:
        saved = load_question(fleet)
        question, pools, folder = saved.inputs(scenario, data), saved.pools, saved.folder
    loaded = workload if isinstance(workload, Workload) else load_workload(question.cdf, folder)
    by_hour = hourly_rates(hours, loaded, folder)
    if by_hour.mean_rate_per_s is not None and question.rate is None:
        # rates in the file are the fleet's own
        rate, elasticity = by_hour.mean_rate_per_s, replace(elasticity, rate_is="mean")
    else:
        rate = arrival_rate_of(question, loaded)
    peak = max(by_hour.rates_per_s(rate, elasticity.rate_is)) * (1.0 + elasticity.buffer)
    demands = standing_demands(question, loaded, pools) if pools else planned_demands(question, loaded, peak)
    return make_schedule(question, demands, by_hour, rate, elasticity, progress)


def reproduce(paper: str = "all") -> Reproduction:
    """The printed numbers of a paper beside ours, and why they differ.

    Parameters
    ----------
    paper
        ``fleetopt``, ``rad-slai``, ``exclusive-batching``, ``wait`` or ``all``.

    Returns
    -------
    Reproduction
    """
    from planner.reproduce.papers import reproduce as findings_of

    return findings_of(paper)


def load_workload(name: str, folder: Path | None = None) -> Workload:
    """A workload named in a file: beside that file first, then as the user would name it."""
    beside = folder / name if folder is not None else None
    return Workload.from_file(beside if beside is not None and beside.is_file() else name)


def _standing(fleet: Plan | str | Path) -> tuple[PlanInputs, tuple[SavedPool, ...], Path | None]:
    from planner.question.files import load_question, saved_pools

    if isinstance(fleet, Plan):
        return PlanInputs.from_dict(dict(fleet.inputs)), saved_pools(fleet), None
    saved = load_question(fleet)
    if not saved.pools:
        raise InputError(f"{fleet}: holds no fleet", "Write one first: fleetopt plan ... --format yaml -o plan.yaml")
    return saved.inputs(), saved.pools, saved.folder
