"""What each choice is worth: the options of a plan taken otherwise, one at a time, each sized and priced as a plan is."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from planner.ask.asked import MORE
from planner.ask.compression import GAMMAS
from planner.ask.replica import capacity, pooled_replicas
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import gpus
from planner.catalog.load import model as find_model
from planner.catalog.profiles import Profile, measured_profiles
from planner.choices import AT_OTHER, WORTH_TELLING, Choice, Choices
from planner.errors import InfeasibleError, InputError
from planner.machine.engines import DEFAULT_ENGINE, engines
from planner.machine.engines import engine as find_engine
from planner.plans import Plan, PoolPlan
from planner.predict.methods import find_method
from planner.promise import GOODPUT, Promise
from planner.question.compiled import CompiledQuestion, compile_question
from planner.question.files import engines_of, question_of, saved_pools
from planner.question.options import PlanInputs, written
from planner.routing import ROUTINGS, find_routing
from planner.shared.cores import cores
from planner.shared.kept import branched
from planner.size.assemble import fleet_of, may_cost_less
from planner.size.explain import relaxed
from planner.size.pool import gpus_by_type
from planner.size.shapes import find_shape, standing_fleet
from planner.size.unknowns import ANY, MOST_TYPES, cheapest_types, least_cost
from planner.units import format_count, format_duration, round_up
from planner.workload.workload import Workload

MOST_WORKERS = 8
"""Threads at once: beyond it the Python between the replays is what they wait for."""

NOT_SHARED = ("fleet traffic", "models")
"""What every thread makes for itself: requests that were laid out last, and what was replayed."""

T = TypeVar("T")


def answers(
    tasks: Sequence[Callable[[], T]],
    progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
    partly: bool = False,
) -> list[T | None]:
    """Answers of the tasks in their order, whatever the number of threads.

    Parameters
    ----------
    tasks
        What to do.
    progress
        Told (done, all) after every task.
    workers
        Threads; ``None`` = one a core, at most :data:`MOST_WORKERS`.
    partly
        Whether Ctrl-C leaves what is answered, and ``None`` in place of the rest; otherwise it is raised.
    """
    tell = progress or (lambda done, total: None)
    tell(0, len(tasks))
    count = min(workers or min(cores(), MOST_WORKERS), max(len(tasks), 1))
    own = threading.local()
    # what the caller keeps is read once, before any thread changes it
    contexts = deque(branched(NOT_SHARED) for _ in range(count))

    def begin() -> None:
        own.context = contexts.popleft()

    pool = ThreadPoolExecutor(count, "row", begin)
    waiting: list[Future[T]] = []
    found: list[T | None] = [None] * len(tasks)
    try:
        waiting = [pool.submit(lambda task=task: own.context.run(task)) for task in tasks]  # type: ignore[misc]
        for k, future in enumerate(waiting):
            found[k] = future.result()
            tell(k + 1, len(tasks))
    except KeyboardInterrupt:
        if not partly:
            raise
        for k, future in enumerate(waiting):
            if future.done() and not future.cancelled() and future.exception() is None:
                found[k] = future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return found


LIMITS = (0.5, 0.7, 1.4, 2.0, 3.0)
"""Limits of the promise tried around the plan's own, as factors."""

LIMITS_BEYOND = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
"""The same around the least that can be had, where the plan's own cannot."""

NEAR_KNEE = 3.0
"""Limits that cost more than this many times the knee's are not proposed."""

PRECISIONS = {"weights": "FP8 weights (quantized)", "kv_dtype": "FP8 KV cache"}
"""Options of precision and what they buy; a model or a GPU that has it already, or cannot, says so in its row."""

POOLS = ("one", "two", "three", "four")

SHAPES = {"colocated": "prefill and decode together", "disaggregated": "prefill and decode apart"}

SCHEDULER_ERROR = 0.1
"""Share of the throughput that the theory of a scheduler may have too much and it still pays."""

QUANTILES_CUT = (0.5, 0.7, 0.85, 0.95, 0.99)
"""Quantiles of lengths at which rows about other cuts cut."""

Progress = Callable[[int, int], None] | None


def with_formula(plan: Plan, inputs: PlanInputs, workload: Workload) -> Plan:
    """The plan with what a closed form would buy, where there is one for it."""
    found = standing_fleet(compile_question(inputs, workload), question_of(plan).pools).in_closed_form()
    return plan if found is None else plan.saying(notes=[found])


def choices_of(
    plan: Plan, inputs: PlanInputs, workload: Workload, progress: Progress = None, shown: bool = False
) -> Choices:
    """The table of choices of a plan, as :func:`choices_after` makes it of nothing else."""
    return choices_after([], plan, inputs, workload, progress, shown)[1]


def choices_after(
    first: Sequence[Callable[[], Any]],
    plan: Plan,
    inputs: PlanInputs,
    workload: Workload,
    progress: Progress = None,
    shown: bool = False,
) -> tuple[list[Any], Choices]:
    """Answers of some tasks, and the table of choices of a plan, on every core and in a fixed order.

    Parameters
    ----------
    first
        Tasks that are answered before.
    plan
        The plan.
    inputs, workload
        The question it answers.
    progress
        Told (done, all) after every choice.
    shown
        Whether only the rows are sized that the page of a plan shows: what may cost less, and the questions beside it.
    """
    promise = _binding(plan, inputs)
    several = len(inputs.gpu) > 1 or ANY in inputs.gpu
    types = [*_types(inputs, workload, plan)]
    asked = [*(types if several else ()), *_settings(inputs, workload, plan), *_risks(inputs, plan)]
    asked += _limits(inputs, promise, [f * promise.limit_s for f in LIMITS])
    asked += _schedulers(plan, inputs, workload)
    asked += () if several else types
    size = partial(_shown, promise, several) if shown else _size
    tasks: list[Callable[[], Any]] = [partial(size, choice, inputs, workload, plan) for choice in asked]
    found: list[Any] = answers([*first, *tasks], progress, partly=not first)
    rows = tuple(row for row in found[len(first) :] if row is not None)
    return found[: len(first)], Choices(
        rows, plan.cost_usd_per_hour, plan.gpus, promise, waiting=len(asked) - len(rows)
    )


def cost_with(changes: Mapping[str, Any], inputs: PlanInputs, workload: Workload) -> float | None:
    """Cost of the fleet a plan would take with other options [USD/hour]; ``None`` where there is none."""
    return _size(Choice("", "", changes, ""), inputs, workload, None).cost_usd_per_hour


def ways_out(error: InfeasibleError, inputs: PlanInputs, workload: Workload, progress: Progress = None) -> Choices:
    """What would make possible what is not, and at what price; parameters as of :func:`choices_of`.

    Limits that cost more than :data:`NEAR_KNEE` times what the knee of their curve costs are left out, and the error proposes
    the limit at the knee.
    """
    asked: list[Choice] = []
    promise = None
    if error.promise is not None and error.best_s is not None and math.isfinite(error.best_s):
        promise = error.promise.scaled(error.best_s / error.promise.limit_s)
        asked += _limits(inputs, promise, [f * error.best_s for f in LIMITS_BEYOND])
    if inputs.confidence > 0.5 and error.promise is not None:
        asked.append(_choice("confidence", "the median, sure by half", confidence=0.5))
    asked += [*_settings(inputs, workload, None), *_types(inputs, workload, None)]
    found = answers([partial(_size, choice, inputs, workload, None) for choice in asked], progress, partly=True)
    rows = [row for row in found if row is not None]
    table = Choices(tuple(rows), None, None, promise, waiting=len(asked) - len(rows))
    costs = dict(table.curve)
    if costs:
        most = NEAR_KNEE * costs[table.knee_s or max(costs)]
        # the hint says what the table does: the knee, or the tightest limit where looser ones cost no less
        proposed = table.knee_s or (min(costs) if min(costs.values()) == max(costs.values()) else None)
        if promise is not None and proposed is not None:
            error.relaxations = (relaxed(error.promise, proposed), *error.relaxations[1:])
        rows = [c for c in rows if c.limit_s is None or c.cost_usd_per_hour is None or c.cost_usd_per_hour <= most]
    # a setting that does not help is no way out
    return replace(table, rows=tuple(row for row in rows if row.cost_usd_per_hour is not None))


def _shown(
    promise: Promise, several: bool, choice: Choice, inputs: PlanInputs, workload: Workload, plan: Plan
) -> Choice:
    """:func:`_size` of a choice that the page shows; another one as it is."""
    if choice.limit_s is not None:
        # the page tells of the next limit to either side
        tighter, looser = ([f for f in LIMITS if (f < 1.0) is below] for below in (True, False))
        near = [round_up(f * promise.limit_s) for f in (max(tighter), min(looser))]
        return _size(choice, inputs, workload, plan) if choice.limit_s in near else choice
    if choice.kind in (*AT_OTHER, "scheduler") or (choice.kind == "gpu" and several):
        return _size(choice, inputs, workload, plan)
    try:
        question = _asked(choice, inputs, workload, plan)
        if not may_cost_less(question, WORTH_TELLING * plan.cost_usd_per_hour):
            return choice
    except (InfeasibleError, InputError):
        return choice
    return _size(choice, inputs, workload, plan)


def _asked(choice: Choice, inputs: PlanInputs, workload: Workload, plan: Plan | None) -> CompiledQuestion:
    """The question that a choice makes of the plan's."""
    sure = None if plan is None else plan.sureness
    question = compile_question(inputs.override({**_cuts(choice, inputs, workload, plan), **choice.changes}), workload)
    near = 0.0 if plan is None else math.fsum(p.arrival_rate_per_s / p.load for p in plan.pools if p.load > 0.0)
    deviations = None if sure is None else sure.deviations
    likely = ""
    if plan is not None:
        most = max(plan.pools, key=lambda p: p.replicas)
        likely = f"{most.gpu} x {most.parallel}, budget {most.settings.max_num_batched_tokens}"
    beside = replace(question, deviations=deviations, near_per_s=near, likely=likely)
    return replace(beside, explained=False, quick=True, open_routing=False)


def _size(choice: Choice, inputs: PlanInputs, workload: Workload, plan: Plan | None) -> Choice:
    """One choice with the fleet a plan would take with it, cut where the plan is and decided by a sample of the requests."""
    if choice.kind == "scheduler":
        return replace(choice, reason="sized by simulating it: plan with it for its price")
    try:
        fleet = fleet_of(_asked(choice, inputs, workload, plan))
    except (InfeasibleError, InputError) as error:
        return replace(choice, reason=error.message)
    pools = fleet.pools
    told = " + ".join(f"{p.bought:,} x {p.option.parallel} {p.option.gpu.name}" for p in pools)
    gpus = sum(gpus_by_type(pools).values())
    first = None
    if choice.kind == "gpu":
        waits = [p.value("ttft_s", 0.99) for p in fleet.look(fleet.rate)]
        first = max((w for w in waits if not math.isnan(w)), default=None)
    return replace(choice, cost_usd_per_hour=fleet.cost_usd_per_hour, gpus=gpus, fleet=told, ttft_p99_s=first)


def _cuts(choice: Choice, inputs: PlanInputs, workload: Workload, plan: Plan | None) -> dict[str, Any]:
    """Options that cut the requests where a plan does, or at a few lengths where the choice is about that."""
    if choice.kind == "" or inputs.boundaries is not None or not find_method(inputs.method).replays:
        # what is asked for, or costs no replay
        return {}
    if choice.kind in ("pools", "compression", "shape"):
        of = "input" if choice.kind == "pools" else "total"
        few = sorted({float(round(workload.quantile(q, of))) for q in QUANTILES_CUT})
        return {"boundaries": few, "gammas": GAMMAS}
    if plan is None or len(plan.pools) == 1 or find_shape(plan.shape).divides_roles:
        return {"pools": 1}
    named = engines_of(saved_pools(plan))
    return {name: named[name] for name in ("pools", "boundaries", "gammas") if name in named}


# --- which choices there are, in the order of the table ---------------------------------------------------------------


def _choice(kind: str, name: str, **changes: Any) -> Choice:
    """A choice with its spelling on the command line."""
    return Choice(kind, name, changes, " ".join(_flag(option, value) for option, value in changes.items()))


def _flag(option: str, value: Any) -> str:
    """``--gpu h200``; a list repeats the flag, nothing at all takes it away."""
    spelling = written(option, "").removesuffix("=").strip()
    if value is True:
        return spelling
    if value is False or value in ({}, None):
        return f"without {spelling}"
    return " ".join(written(option, item) for item in (value if isinstance(value, (list, tuple)) else [value]))


def _settings(inputs: PlanInputs, workload: Workload, plan: Plan | None) -> Iterator[Choice]:
    """Settings of the gateway and the engines."""
    if plan is not None:
        own = find_routing(str(plan.inputs["routing"])).name
        for routing in reversed([*ROUTINGS.values()]):
            # what comes back to its replica matters where something does
            idle = bool(routing.affinity) and plan.caches is None
            if routing.law is not None and routing.name != own and not idle:
                yield _choice("routing", f"routing {routing.name}", routing=routing.name)
        if len(plan.pools) > 1 and plan.baseline is not None:
            yield _choice("pools", "one pool", pools=1)
        if 1 < len(plan.pools) == inputs.pools < len(POOLS):
            yield _choice("pools", f"{POOLS[inputs.pools]} pools", pools=inputs.pools + 1)
    if inputs.pools == 1:
        yield _choice("pools", "two pools", pools=2)
    taken = inputs.shape if plan is None else plan.shape
    if taken in SHAPES:
        yield from (_choice("shape", told, shape=shape) for shape, told in SHAPES.items() if shape != taken)
    if inputs.tp is not None and inputs.profile is None:
        yield _choice("tp", "tensor parallelism searched", tp="all")
    if inputs.inventory and plan is None:
        yield _choice("inventory", "no limit on GPUs", inventory={})
    if plan is not None and inputs.compress:
        yield _choice("compression", "prompts left alone", compress=False)
    elif inputs.pools > 1:
        yield _choice("compression", "compressed, outputs known", compress=True)
    for option, what in PRECISIONS.items():
        if getattr(inputs, option) is None and inputs.profile is None:
            yield _choice("precision", what, **{option: "fp8"})
    if inputs.profile is None:
        yield from _engines(inputs, workload, plan)


def _schedulers(plan: Plan, inputs: PlanInputs, workload: Workload) -> Iterator[Choice]:
    """Exclusive batching where its theory completes so much more than the engine's own scheduler that it would pay."""
    if (
        inputs.scheduler != "engine"
        or find_shape(plan.shape).divides_roles
        or plan.caches
        or inputs.speculate is not None
    ):
        return
    fleet = standing_fleet(compile_question(inputs, workload), question_of(plan).pools)
    ratios = [max(r.mixed_per_s / capacity(r, "eb")[0], 1e-9) / (1.0 - SCHEDULER_ERROR) for r in pooled_replicas(fleet)]
    if any(math.ceil(p.replicas * ratio) < p.replicas for p, ratio in zip(plan.pools, ratios, strict=True)):
        yield _choice("scheduler", "prefills and decodes in batches of their own (exclusive batching)", scheduler="eb")


def _engines(inputs: PlanInputs, workload: Workload, plan: Plan | None) -> Iterator[Choice]:
    """Measured iteration times that the plan does not rest on, the asked engine's first, and other engines.

    Of the times measured with one engine and one dtype, those of the group whose load alone costs least, and of groups that may
    cost less than the plan.
    """
    served, _, version = (inputs.engine or DEFAULT_ENGINE).partition("@")
    try:
        model = find_model(inputs.model, like=inputs.like).served_as(inputs.weights, inputs.kv_dtype)
    except InputError:
        return
    devices = [p.gpu for p in plan.pools] if plan else [find_gpu(name).name for name in inputs.gpu if name != ANY]
    used = {p.profile for p in plan.pools} if plan else set()
    alike: dict[tuple[bool, str, str, str], list[Profile]] = {}
    for found in measured_profiles(model):
        if find_gpu(found.gpu).name in devices and found.name not in used:
            own = (found.engine or "").lower()
            alike.setdefault((own not in (served, ""), own, found.weight_dtype, found.kv_dtype), []).append(found)
    for (_, own, weights, kv), profiles in sorted(alike.items()):
        other = {weights: weights != model.weight_dtype, f"{kv} cache": kv != model.kv_dtype}
        dtypes = "".join(f"{what.upper()}, " for what, differs in other.items() if differs)
        for near in _near(profiles, inputs, workload, plan):
            group = f" TP{near.tp}" if len(profiles) > 1 else ""
            yield _choice("profile", f"measured ({dtypes}{own or 'kernels'}{group}, {near.trust})", profile=near.name)
    newest = find_engine(served).versions[-1:]
    if not version and newest and newest[0].constants:
        name = f"{served}@{newest[0].since}"
        yield _choice("engine", f"engine {served} from {newest[0].since} on", engine=name)
    yield from (_choice("engine", f"engine {name}", engine=name) for name in engines() if name != served)


def _near(profiles: Sequence[Profile], inputs: PlanInputs, workload: Workload, plan: Plan | None) -> list[Profile]:
    """The profile whose load alone costs least, and those that it does not make dearer than the plan."""
    if len(profiles) == 1:
        return [*profiles]
    bounds = []
    for found in profiles:
        try:
            bounds.append(least_cost(compile_question(inputs.override({"profile": found.name}), workload)))
        except (InfeasibleError, InputError):
            bounds.append(math.inf)
    cheapest = min(range(len(profiles)), key=lambda k: bounds[k])
    below = 0.0 if plan is None else plan.cost_usd_per_hour
    return [p for k, p in enumerate(profiles) if k == cheapest or bounds[k] < below]


def _types(inputs: PlanInputs, workload: Workload, plan: Plan | None) -> Iterator[Choice]:
    """Other GPU types: each one asked for by itself, of ``any`` all that can, else the cheapest by their bounds."""
    if inputs.profile is not None or (plan is None and ANY in inputs.gpu):
        # with no plan none of them keeps the promises
        return
    asked = [find_gpu(name).name for name in inputs.gpu if name != ANY]
    several = plan is not None and (len(asked) > 1 or ANY in inputs.gpu)
    names: Sequence[str] = asked
    if not several or ANY in inputs.gpu:
        most = len(gpus()) if several else MOST_TYPES + len(asked)
        names = cheapest_types(compile_question(inputs, workload), most)
    alone = {p.gpu for p in plan.pools} if plan is not None else set()
    names = [n for n in names if {n} != alone] if several else [n for n in names if n not in asked][:MOST_TYPES]
    word = " alone" if plan is not None and len(asked) > 1 else ""
    yield from (_choice("gpu", f"{name}{word}", gpu=[name]) for name in names)


def _risks(inputs: PlanInputs, plan: Plan) -> Iterator[Choice]:
    """More traffic, and the loss of a node."""
    asking = {name: many for name in ("users", "concurrency") if (many := getattr(inputs, name))}
    if asking:
        # how often they ask hangs on the fleet
        more = {name: math.ceil((1.0 + MORE) * many) for name, many in asking.items()}
        yield _choice("traffic", "20% more users, " + ", ".join(f"{many:,}" for many in more.values()), **more)
    else:
        rate = float(f"{(1.0 + MORE) * plan.arrival_rate_per_s / (1.0 + inputs.headroom):.4g}")
        # the busiest hour's, where the rate so far is a mean
        peak = {} if inputs.rate_is is None else {"rate_is": "peak"}
        yield _choice("traffic", f"20% more traffic, {format_count(rate)}/s", rate=rate, **peak)
    spares = max(_on_a_node(pool) for pool in plan.pools)
    if spares > inputs.redundancy:
        yield _choice("redundancy", f"a node may fail, {spares} spare", redundancy=spares)


def _on_a_node(pool: PoolPlan) -> int:
    """Replicas of a pool that one node can take down: all it can hold, or all there are."""
    held = max(find_gpu(pool.gpu).gpus_per_node // pool.parallel.gpus, 1)
    return min(held, pool.replicas - pool.spares)


def _binding(plan: Plan, inputs: PlanInputs) -> Promise:
    """The promise that fixes the largest pool, else the first."""
    reasons = [p.reason for p in sorted(plan.pools, key=lambda pool: -pool.cost_usd_per_hour) if p.reason is not None]
    fixing = (p for reason in reasons for p in inputs.promises if reason.values.get("promise") == p.label)
    return next(fixing, inputs.promises[0])


def _limits(inputs: PlanInputs, promise: Promise, limits: Sequence[float]) -> Iterator[Choice]:
    """The promise with other limits; others of its metric keep their ratio to it, all others stay."""
    alike = [p for p in inputs.promises if p.kind == promise.kind]
    if not alike:
        # what a promise about several latencies implies about one
        return
    base = next((p for p in alike if p.quantile == promise.quantile), promise).limit_s
    for limit in dict.fromkeys(map(round_up, limits)):
        if limit == promise.limit_s:
            continue
        written = [p.scaled(limit / base).spelled for p in alike]
        changes = {promise.kind.removesuffix("_s"): written, **({"scope": "fleet"} if promise.scope == "fleet" else {})}
        joint = promise.kind == GOODPUT
        told = promise.scaled(limit / promise.limit_s).told if joint else f"{promise.label} {format_duration(limit)}"
        yield replace(_choice("promise", told, **changes), limit_s=limit)
