"""What if: a plan per combination of changed options, an infeasible point being a row with its reason."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from planner.ask.asked import saved_of
from planner.ask.points import Journal, RowFile, key_of
from planner.errors import InfeasibleError, InputError, refuse, refuse_below_1
from planner.plans import Plan, SavedPool
from planner.promise import GOODPUT, Promise
from planner.question.compiled import Words, compile_question
from planner.question.files import Question, engines_of
from planner.question.options import OPTIONS, PlanInputs, canonical
from planner.shared.arguments import told_types
from planner.shared.kept import keeping
from planner.shared.notebook import InNotebooks
from planner.shared.record import Record
from planner.size.assemble import fleet_of, make_plan
from planner.size.shapes import standing_fleet
from planner.workload.importing import Frame, load_workload
from planner.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One combination.

    Parameters
    ----------
    changes
        What differs from the base, in the options' own names.
    plan
        The answer; ``None`` where there is none, of a sweep that was asked for rows alone, or of an earlier run that was resumed.
    error
        Why there is none.
    row
        The changes, then the answer, flat.
    written
        The plan as an earlier run wrote it.
    """

    changes: Mapping[str, Any]
    plan: Plan | None
    error: str | None
    row: Mapping[str, object]
    written: Mapping[str, Any] | None = None

    def to_row(self) -> dict[str, object]:
        """One flat row: the changes, then the answer."""
        return dict(self.row)

    def document(self) -> Any:
        """The plan, JSON-ready; ``None`` where there is none."""
        return self.written if self.plan is None else self.plan.to_dict()


@dataclass(frozen=True, slots=True)
class Sweep(InNotebooks):
    """All points of a what-if.

    Parameters
    ----------
    base
        The question the points differ from.
    points
        In the order asked for.
    base_usd_per_hour
        What the base costs [USD/hour], which savings are against; ``None`` where there is no fleet for it.
    """

    base: PlanInputs
    points: tuple[SweepPoint, ...]
    base_usd_per_hour: float | None = None

    document: ClassVar[str] = "fleetopt-what-if"
    written: ClassVar[tuple[str, ...]] = ("base", "base_usd_per_hour")

    def __repr__(self) -> str:
        return f"<Sweep: {len(self.points)} points, {sum(bool(p.to_row()['feasible']) for p in self.points)} feasible>"

    def feasible(self) -> list[Plan]:
        """The plans of the feasible points; of a resumed sweep those of this run, of one asked for rows alone none."""
        return [p.plan for p in self.points if p.plan is not None]

    def to_rows(self) -> list[dict[str, object]]:
        """One row per point; every option that some point changes is a column, in front."""
        changed = dict.fromkeys(name for p in self.points for name in p.changes)
        return [{**changed, **p.to_row()} for p in self.points]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: base, and for each point its changes and plan or reason."""
        points = [
            {"changes": {k: _plain(v) for k, v in p.changes.items()}, "plan": p.document(), "reason": p.error}
            for p in self.points
        ]
        return {**Record.to_dict(self), "points": points}


def _plain(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def parse_settings(items: Sequence[str]) -> dict[str, list[str]]:
    """``["rate=500,1000", "gpu=h100"]`` -> option -> values, all mistakes at once.

    A value that is itself a list is written with ``+``: ``gpu=h100,h100+l40s``.

    >>> parse_settings(["rate=500,1000", "gpu=h100"])
    {'rate': ['500', '1000'], 'gpu': ['h100']}
    >>> parse_settings(["goodput=99%:ttft=300ms,tpot=25ms,95%:ttft=1s,tpot=50ms"])
    {'goodput': ['99%:ttft=300ms,tpot=25ms', '95%:ttft=1s,tpot=50ms']}
    """
    result: dict[str, list[str]] = {}
    problems = []
    for item in items:
        name, equals, values = item.partition("=")
        name = name.strip()
        # limits of one goodput have commas between them; the next one begins with a share
        parts = [v.strip() for v in re.split(r",(?=[^,=]*:)" if name == "goodput" else ",", values)]
        if not (name and equals and all(parts)):
            problems.append(f"--set: {item!r} is not OPTION=VALUE[,VALUE...]")
        elif name in result:
            problems.append(f"--set: {name} is given twice")
        else:
            result[name] = parts
    refuse(problems)
    return result


def combinations(values: Mapping[str, Sequence[Any]], zipped: bool = False) -> list[dict[str, Any]]:
    """Every combination of the values, or one per position when zipped.

    >>> combinations({"rate": [1, 2], "gpu": ["a", "b"]}, zipped=True)
    [{'rate': 1, 'gpu': 'a'}, {'rate': 2, 'gpu': 'b'}]
    """
    if zipped:
        lengths = {name: len(v) for name, v in values.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{k} has {n}" for k, n in lengths.items())
            raise InputError(f"--zip needs equally many values of every option: {told}")
        return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return [dict(zip(values, row, strict=True)) for row in itertools.product(*values.values())]


PINNED = {
    "pools": "the base's pools, engines and boundaries; the numbers of replicas alone are open",
    "engines": "the base's engines and boundaries, but for what is changed",
}
"""What is kept of the base -> in words."""


@told_types
@keeping()
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
        Threads that plan the points where no executor does, at least 1; 0 of the command line: one for each core.
    resume
        File of finished points (JSON lines), made when missing: an interrupted sweep goes on where it stopped. Rows without a plan
        do where none is asked for.
    stream
        CSV or Parquet file that gets every row as its point is done, in the order they are.
    keep
        Keep the plan's pools, engines and boundaries but for what is changed; every row says what is pinned.
    plans
        Whether every point has its plan. Without them there are rows alone (``to_rows()``), in about half the time.
    **values
        Option -> value or list of values, e.g. ``rate=[500, 1000], gpu=["h100", "h200"]``.

    Returns
    -------
    Sweep
        Infeasible points are rows with their reason.

    Raises
    ------
    InputError
        A change that cannot be: every one of them is reported before the first point is planned.
    """
    saved = None if isinstance(base, PlanInputs) else saved_of(base)
    told = [*values] if workload is None else [*values, "cdf"]
    question = base if isinstance(base, PlanInputs) else cast("Question", saved).inputs(told=told)
    lists = {canonical(k): [*v] if isinstance(v, (list, tuple)) else [v] for k, v in values.items()}
    changes = combinations(lists, zipped)
    origins: list[dict[str, Any]] = [{}] * len(changes)
    if scenarios and saved is not None:
        for name in scenarios:
            saved.inputs(name, told=told)
        origins = [{"scenario": name} for name in scenarios for _ in changes]
        changes = [{**saved.scenarios[name], **change} for name in scenarios for change in changes]
    pools = () if saved is None else saved.pools
    if keep and not pools:
        raise InputError("keep: the base has no pools", "Give a plan: fleetopt plan ... -o plan.yaml")
    refuse_below_1({"jobs": jobs})
    with ExitStack() as opened:
        if executor is None and min(jobs, len(changes)) > 1:
            executor = opened.enter_context(ThreadPoolExecutor(min(jobs, len(changes))))
        journal = None if resume is None else opened.enter_context(Journal(Path(resume)))
        questions = _questions(question, changes, pools if keep else ())
        traffic = _traffic(question, saved, workload, [q.cdf for q, _ in questions])
        cost = _cost_of(question, traffic[question.cdf], pools)
        in_memory = workload is not None or (saved is not None and "rows" in saved.workload)
        asked = [
            Asked(
                {**origin, **change}, q, traffic[q.cdf], in_memory and q.cdf == question.cdf,
                pools if pinned == "pools" else (), plans, cost, pinned,
            )
            for origin, change, (q, pinned) in zip(origins, changes, questions, strict=True)
        ]  # fmt: skip
        rows = None if stream is None else opened.enter_context(_row_file(Path(stream), asked))
        return Sweep(question, _points_of(asked, journal, rows, executor, progress), cost)


def _traffic(base: PlanInputs, saved: Question | None, workload: Any, others: Sequence[str]) -> dict[str, Workload]:
    """The traffic of the base and of every point by its name, each read once."""
    loaded = None if workload is None else load_workload(workload)

    def load(name: str) -> Workload:
        if loaded is not None and name == base.cdf:
            return loaded
        return load_workload(name) if saved is None else saved.traffic(name)

    return {name: load(name) for name in dict.fromkeys([base.cdf, *others])}


def _points_of(
    asked: Sequence[Asked],
    journal: Journal | None,
    rows: RowFile | None,
    executor: Executor | None,
    progress: Callable[[int, int], None] | None,
) -> tuple[SweepPoint, ...]:
    """The points in their order: those of the journal, the others as they are done."""
    keys = [point.key() for point in asked] if journal is not None else [""] * len(asked)
    points: dict[int, SweepPoint] = {}
    for k, key in enumerate(keys):
        found = None if journal is None else journal.points.get(key)
        # a row without its plan is as good as none where plans are asked for
        if found is not None and not (asked[k].whole and found["row"]["feasible"] and found["plan"] is None):
            points[k] = SweepPoint(asked[k].changes, None, found["reason"], found["row"], found["plan"])
    open_points = [k for k in range(len(asked)) if k not in points]
    tell = progress or (lambda done, total: None)
    # a bar that counts by itself until then ends here: a process with threads cannot be copied
    tell(len(points), len(asked))
    if rows is not None:
        for point in points.values():
            rows.add(point.to_row())
    for k, point in _answers(asked, open_points, executor):
        points[k] = point
        if journal is not None:
            journal.add(keys[k], point.to_row(), point.document(), point.error)
        if rows is not None:
            rows.add(point.to_row())
        tell(len(points), len(asked))
    return tuple(points[k] for k in range(len(asked)))


def _questions(
    base: PlanInputs, changes: Sequence[Mapping[str, Any]], standing: Sequence[SavedPool]
) -> list[tuple[PlanInputs, str | None]]:
    """The question of every point, and what is pinned of it where the pools that stand are kept; all mistakes at once."""
    questions: list[tuple[PlanInputs, str | None]] = []
    problems: list[str] = []
    for change in changes:
        try:
            read = {k: _split(k, v) for k, v in change.items()}
            if not standing:
                questions.append((base.override(read), None))
                continue
            names = {canonical(k) for k in read}
            if any(OPTIONS[name].bought for name in names if name in OPTIONS):
                questions.append((_pinned(base, standing, read), "engines"))
            else:
                questions.append((base.override(read), "pools"))
        except InputError as error:
            problems.extend(error.problems or (error.message,))
    refuse(list(dict.fromkeys(problems)))
    return questions


def _cost_of(base: PlanInputs, workload: Workload, standing: Sequence[SavedPool]) -> float | None:
    """What the base costs [USD/hour]: its pools as they stand, or the cheapest; ``None`` where nothing keeps its promises."""
    try:
        question = compile_question(base, workload)
        if standing:
            return standing_fleet(question, standing).cost_usd_per_hour
        return fleet_of(replace(question, explained=False)).cost_usd_per_hour
    except (InfeasibleError, InputError):
        # the points may be possible where the base is not
        return None


@dataclass(frozen=True, slots=True)
class Asked:
    """A point to plan; it can be sent to another process.

    Parameters
    ----------
    changes, question, workload
        What differs from the base, the question that makes, and its traffic.
    in_memory
        Whether that is in no file.
    standing
        Pools that are kept as they are.
    whole
        Whether its plan is wanted, or its row alone.
    base_usd_per_hour
        What the base costs [USD/hour]; ``None`` where there is no fleet for it.
    pinned
        What is the base's whatever would be cheaper, a key of :data:`PINNED`; ``None`` = everything is searched.
    """

    changes: Mapping[str, Any]
    question: PlanInputs
    workload: Workload
    in_memory: bool
    standing: tuple[SavedPool, ...]
    whole: bool
    base_usd_per_hour: float | None
    pinned: str | None

    def key(self) -> str:
        """What the point is known by in a journal."""
        pools = [asdict(pool) for pool in self.standing]
        against = self.base_usd_per_hour, self.pinned
        return key_of(self.changes, self.question.to_dict(), self.workload.digest, pools, against)

    def answered(self, p: Plan | None, error: str | None = None) -> SweepPoint:
        """The point with its plan, or why there is none."""
        row: dict[str, object] = {k: _plain(v) for k, v in self.changes.items()}
        row |= {"feasible": p is not None} | ({} if self.pinned is None else {"pinned": self.pinned})
        if p is None:
            return SweepPoint(self.changes, None, error, row | {"reason": (error or "").splitlines()[0]})
        row |= {name: told(p) for name, told in ANSWER.items()}
        row["saving"] = 1.0 - p.cost_usd_per_hour / self.base_usd_per_hour if self.base_usd_per_hour else None
        for promise in p.slo.promises:
            shares = [v.share for q in p.pools for v in q.latency if v.metric == promise.metric and v.share is not None]
            values = [v for q in p.pools if (v := q.quantile(promise.metric, promise.quantile)) is not None]
            row |= {promise.column: min(shares)} if shares else {_column(promise): max(values)}
        return SweepPoint(self.changes, p if self.whole else None, None, row | {"reason": None})


def _row_file(path: Path, asked: Sequence[Asked]) -> RowFile:
    """A table with every column that the points will have, in the order of :meth:`Sweep.to_rows`."""
    changed = list(dict.fromkeys(name for one in asked for name in one.changes))
    values = [{k: _plain(v) for k, v in one.changes.items()} for one in asked]
    words = [name for name in changed if any(not _is_number(v.get(name, 0.0)) for v in values)]
    promised = dict.fromkeys(_column(p) for one in asked for p in one.question.promises)
    pinned = [] if all(one.pinned is None for one in asked) else ["pinned"]
    columns = [*changed, "feasible", *pinned, *ANSWER, "saving", *promised, "reason"]
    return RowFile(path, columns, [*words, *pinned, "fleet", "reason"])


def _is_number(value: object) -> bool:
    """Whether a change is a number, as it is or as the command line writes one."""
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


ANSWER: Mapping[str, Callable[[Plan], object]] = {
    "pools": lambda p: len(p.pools),
    "gpus": lambda p: p.gpus,
    "replicas": lambda p: p.replicas,
    "fleet": lambda p: " + ".join(f"{q.replicas} x {q.parallel} {q.gpu}" for q in p.pools),
    "boundary_tokens": lambda p: p.pools[0].high_tokens if len(p.pools) > 1 else None,
    "gamma": lambda p: p.pools[0].gamma,
    "load": lambda p: max(q.load for q in p.pools),
    "cost_usd_per_hour": lambda p: p.cost_usd_per_hour,
    "cost_usd_per_million_tokens": lambda p: p.cost_usd_per_million_tokens,
}
"""Columns of a row that its plan fills."""


def _column(promise: Promise) -> str:
    """What a promise's value is called in a row."""
    return promise.column if promise.kind == GOODPUT else f"{promise.label.lower().replace(' ', '_')}_s"


AT_ONCE = 50
"""Points of a task at most: those of a task that is cut off are planned again when a sweep is resumed."""


def _answers(
    asked: Sequence[Asked], wanted: Sequence[int], executor: Executor | None
) -> Iterator[tuple[int, SweepPoint]]:
    """Points with their places as they are done."""
    # points of one traffic and rate share what is laid out of it
    wanted = sorted(wanted, key=lambda k: (asked[k].question.cdf, asked[k].question.rate or 0.0))
    if executor is None:
        for k in wanted:
            yield k, _point(asked[k])
        return
    # neighbours go together: they share their traffic, which is sent once, and what is known of it
    size = min(max(1, len(wanted) // (2 * getattr(executor, "_max_workers", 4))), AT_ONCE)
    futures = {
        executor.submit(_points, [asked[k] for k in wanted[at : at + size]]): wanted[at : at + size]
        for at in range(0, len(wanted), size)
    }
    try:
        for future in as_completed(futures):
            yield from zip(futures[future], future.result(), strict=True)
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _pinned(base: PlanInputs, standing: Sequence[SavedPool], change: Mapping[str, Any]) -> PlanInputs:
    """The question of a point that keeps the engines of a plan: only what is changed of them is open."""
    own = {k: v for k, v in engines_of(standing).items() if k not in {canonical(c) for c in change}}
    if "tp" in change:
        own.pop("tp_options", None)
    return replace(base, tp=None).override({**own, **change})


@keeping()
def _points(asked: Sequence[Asked]) -> list[SweepPoint]:
    """Several points, in another process."""
    return [_point(one) for one in asked]


def _point(asked: Asked) -> SweepPoint:
    """One point."""
    try:
        words: Words = "brief" if asked.whole else "none"
        plan = make_plan(asked.question, asked.workload, asked.in_memory, asked.standing, words)
    except (InfeasibleError, InputError) as error:
        # a model that does not fit one of the GPUs asked about is a row like an infeasible promise
        return asked.answered(None, str(error))
    return asked.answered(plan)


def _split(name: str, value: Any) -> Any:
    """``a+b`` as a list where the option holds several."""
    option = OPTIONS.get(canonical(name))
    return value.split("+") if option is not None and option.kind.many and isinstance(value, str) else value
