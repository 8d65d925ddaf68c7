"""Which charts a result is shown by, each with its numbers as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.ask.overview import Overview
from planner.ask.schedule import Schedule
from planner.errors import InputError
from planner.plans import HOURS_PER_MONTH, Plan
from planner.promise import GOODPUT
from planner.report import PICTURES
from planner.report.blocks import Table, label, rows_table
from planner.report.svg import WIDTH, Bars, Chart, Line, Lines, document, rastered
from planner.shared.writing import write_text
from planner.units import as_number, format_count, format_duration, format_percent, format_share, format_usd

Figure = tuple[Chart, Table]
"""A chart, and the same as a table."""


def of_overview(overview: Overview) -> list[Figure]:
    """Pictures and the same as tables."""
    found = [*_latency_by_rate(overview), _spread(overview.plan), _tornado(overview)]
    found[:0] = _surroundings(overview.plan)
    if overview.cuts:
        found.append(_boundary(overview))
    if overview.schedule is not None:
        found.append(_day(overview.schedule))
    return found


def _boundary(overview: Overview) -> Figure:
    """Cost by where requests are cut, a line for every gamma."""
    priced = [(c, HOURS_PER_MONTH * c.cost_usd_per_hour) for c in overview.cuts if c.cost_usd_per_hour is not None]
    alone = len({cut.gamma for cut, _ in priced}) < 2
    drawn = _each(("cost" if alone else f"gamma {cut.gamma:g}", cut.boundary_tokens, cost) for cut, cost in priced)
    title = f"Where requests are cut: cost a month by boundary{'' if alone else ' and gamma'}"
    picture = Lines(
        title, drawn, "boundary, tokens", "$/month", format_count, _money,
        marks=[(overview.plan.pools[0].high_tokens, "as planned")], log_x=True, log_y=True,
    )  # fmt: skip
    places = sorted({cut.boundary_tokens for cut in overview.cuts})
    told = {(c.boundary_tokens, c.gamma): c.cost_usd_per_hour for c in overview.cuts}
    gammas = sorted({c.gamma for c in overview.cuts})
    cells = [[format_count(b), *(_month(told.get((b, g))) for g in gammas)] for b in places]
    return picture, Table(["boundary", *(f"$/month, gamma {g:g}" for g in gammas)], cells)


def _month(usd_per_hour: float | None) -> str:
    return "no fleet" if usd_per_hour is None else _money(HOURS_PER_MONTH * usd_per_hour)


def _promise(plan: Plan) -> Figure | None:
    """Cost against the limit of the promise."""
    choices = plan.choices
    if choices is None or choices.promise is None or len(choices.curve) < 2:
        return None
    points = [(limit, HOURS_PER_MONTH * cost) for limit, cost in choices.curve]
    knee = "" if choices.knee_s is None else f"; its knee is at {format_duration(choices.knee_s)}"
    title = f"What the promise costs: {choices.promise.label}{knee}"
    picture = Lines(
        title, [Line("cost", points)], "limit", "$/month", format_duration, _money,
        marks=[(choices.promise.limit_s, "as planned")], log_x=True,
    )  # fmt: skip
    return picture, Table(["limit", "$/month"], [[format_duration(x), _money(y)] for x, y in points])


def _types(plan: Plan) -> Figure | None:
    """Every GPU type by itself, as its row has it, and the plan: what they cost against how soon the first token comes."""
    rows = [c for c in plan.choices.rows if c.ttft_p99_s and c.cost_usd_per_hour] if plan.choices is not None else []
    waits = [v for pool in plan.pools if (v := pool.quantile("ttft_s", 0.99)) is not None]
    if not rows or not waits:
        return None
    named = " + ".join(dict.fromkeys(p.gpu for p in plan.pools))
    told = {f"{named} (this plan)": (max(waits), plan.cost_usd_per_hour, plan.gpus)}
    told |= {c.flags.split()[-1]: (c.ttft_p99_s or 0.0, c.cost_usd_per_hour or 0.0, c.gpus or 0) for c in rows}
    points = {name: (wait, HOURS_PER_MONTH * cost) for name, (wait, cost, _) in told.items()}
    limit = next((p for p in plan.slo.promises if (p.metric, p.quantile) == ("ttft_s", 0.99)), None)
    title = "GPU types, each by itself: cost a month against P99 TTFT"
    drawn = [
        Line(name, [at], "c" if k == 0 else "a", dots=True, named=True) for k, (name, at) in enumerate(points.items())
    ]
    marks = [] if limit is None else [(limit.limit_s, "promised")]
    picture = Lines(title, drawn, "P99 TTFT", "$/month", format_duration, _money, marks=marks, log_x=True, log_y=True)
    cells = [
        [name, format_count(told[name][2]), _money(points[name][1]), format_duration(points[name][0])]
        for name in sorted(points, key=lambda name: points[name][1])
    ]
    return picture, Table(["GPU", "GPUs", "$/month", "P99 TTFT"], cells, {"GPU"})


def _surroundings(plan: Plan) -> list[Figure]:
    """What its choices show: the promise's cost by its limit, and the GPU types."""
    return [found for found in (_promise(plan), _types(plan)) if found is not None]


def _latency_by_rate(overview: Overview) -> list[Figure]:
    """Every promised quantile of the fleet as it stands, over the rate."""
    plan = overview.plan
    rows: list[dict[str, Any]] = overview.rates.to_rows()
    found: list[Figure] = []
    for promise in plan.slo.promises:
        joint = promise.kind == GOODPUT
        column, told = promise.column, format_share if joint else format_duration
        at_rates = [row for row in rows if isinstance(row["rate_per_s"], float)]
        pools = {str(row["pool"]) for row in at_rates if isinstance(row.get(column), float) or joint}
        if not pools:
            continue
        beyond = 0.0 if joint else math.inf
        by_pool = _each(
            (pool, row["rate_per_s"], value if isinstance(value := row.get(column), float) else beyond)
            for row in at_rates
            if (pool := str(row["pool"])) in pools
        )
        limit = promise.quantile if joint else promise.limit_s
        told_of = f"Requests within all limits ({promise.told})" if joint else promise.label
        drawn = [replace(l, name=promise.label if len(by_pool) == 1 else f"pool {l.name}") for l in by_pool]
        rates = [x for line in drawn for x, _ in line.points]
        drawn.append(Line(f"promise {told(limit)}", [(min(rates), limit), (max(rates), limit)], "limit"))
        picture = Lines(
            f"{told_of} of this fleet at other rates", drawn, "requests/s", promise.label, format_count, told,
            marks=_rates_marked(overview), log_y=not joint,
        )  # fmt: skip
        cells = [
            [format_count(points[0][0]), *(told(y) if math.isfinite(y) else "unstable" for _, y in points)]
            for points in zip(*(line.points for line in by_pool), strict=True)
        ]
        found.append((picture, Table(["requests/s", *(f"{promise.label}, {l.name}" for l in by_pool)], cells)))
    return found


def _rates_marked(overview: Overview) -> list[tuple[float, str]]:
    """The planned rate, and the capacity where it is in sight."""
    marks, capacity = [(overview.plan.arrival_rate_per_s, "planned")], overview.rates.capacity_per_s
    if capacity <= max(overview.rates.rates_per_s):
        marks.append((capacity, "capacity"))
    return marks


def _spread(plan: Plan) -> Figure:
    """Quantiles of first token, token and answer, with the band of the busiest pool's iteration times."""
    names = {"ttft_s": "time to first token", "tpot_s": "time per output token", "e2e_s": "whole answer"}
    cells, drawn = [], []
    for metric, style in zip(names, "abc", strict=True):
        worst: dict[float, float] = {}
        for pool in plan.pools:
            for v in pool.latency:
                if v.metric == metric:
                    worst[v.quantile] = max(worst.get(v.quantile, 0.0), v.value_s)
                    limit = "" if v.limit_s is None else format_duration(v.limit_s)
                    times = map(format_duration, (v.value_s, v.low_s, v.high_s))
                    cells.append([pool.name, names[metric], format_percent(v.quantile), *times, limit])
        if worst:
            drawn.append(Line(names[metric], [(100.0 * q, s) for q, s in sorted(worst.items())], style))
    ends = [x for line in drawn for x, _ in line.points]
    limits = {
        (metric, limit) for p in plan.slo.promises for metric, limit in p.limits.items() if ends and metric in names
    }
    for metric, bound in sorted(limits):
        told = f"promise {names[metric]} {format_duration(bound)}"
        drawn.append(Line(told, [(min(ends), bound), (max(ends), bound)], "limit"))
    title, percent = "How long requests take, by percentile", lambda x: f"{x:g}%"
    picture = Lines(title, drawn, "percentile", "time", percent, format_duration, log_y=True)
    columns = ["pool", "what", "percentile", "predicted", "at least", "at most", "promise"]
    return picture, Table(columns, cells, {"pool", "what"})


def _tornado(overview: Overview) -> Figure:
    """Cost a month with one thing otherwise."""
    ends = [(d.name, (d.low_usd_per_hour, d.high_usd_per_hour)) for d in overview.doubts]
    rows = [(name, low and HOURS_PER_MONTH * low, high and HOURS_PER_MONTH * high) for name, (low, high) in ends]
    title = "What matters: cost a month of such a fleet if one thing is otherwise"
    picture = Bars(title, rows, HOURS_PER_MONTH * overview.plan.cost_usd_per_hour, _money)
    cells = [[name, *map(_month, costs)] for name, costs in ends]
    return picture, Table(["what", "one way", "the other"], cells, {"what"})


def _day(schedule: Schedule) -> Figure:
    """Replicas over the hours, with the traffic."""
    hours = range(schedule.hours)
    replicas = [sum(p.replicas[h] for p in schedule.pools) for h in hours]
    drawn = [Line("replicas", [*((float(h), float(n)) for h, n in zip(hours, replicas, strict=True))], "a", steps=True)]
    most = float(max(replicas))
    drawn.append(Line("fleet that never changes", [(0.0, most), (float(schedule.hours - 1), most)], "limit"))
    title = "Replicas by hour, if the fleet follows the traffic"
    picture = Lines(title, drawn, "hour", "replicas", lambda x: f"{x:g}", format_count, whole=True)
    costs = [sum(p.cost_usd[h] for p in schedule.pools) for h in hours]
    rows = [
        {"hour": h, "requests/s": schedule.rates_per_s[h], "replicas": replicas[h], "cost": format_usd(costs[h])}
        for h in hours
    ]
    return picture, rows_table(rows, ["hour"])


def charts_of(result: Any) -> list[Chart]:
    """The charts of any result.

    Raises
    ------
    InputError
        A result that no chart shows.
    """
    found = KINDS.get(type(result).__name__)
    charts = found(result) if found is not None else []
    if not charts:
        raise InputError(f"--plot: nothing of this result can be drawn ({type(result).__name__})")
    return charts


def save(result: Any, path: str | Path) -> Path:
    """Write the charts of a result: SVG here, PNG and PDF by matplotlib.

    Raises
    ------
    InputError
        Another suffix; matplotlib not installed; a file that cannot be written.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in PICTURES:
        raise InputError(f"{target}: a picture is one of {', '.join(PICTURES)}", "Name the file so.")
    charts = charts_of(result)
    if suffix == ".svg":
        return write_text(target, document(charts))
    return rastered(charts, target)


def _each(points: Iterable[tuple[str, float, float]]) -> list[Line]:
    """A line for every name among (name, x, y), in three styles by turns."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, x, y in points:
        found.setdefault(name, []).append((x, y))
    return [Line(name, sorted(of_one), "abc"[k % 3]) for k, (name, of_one) in enumerate(found.items())]


def _of_evaluation(result: Any) -> list[Chart]:
    """Every latency at its highest level, and the load, over the rate; a line for each pool."""
    rows = result.to_rows()
    latencies = [c for c in rows[0] if c.endswith("_s") and any(c.startswith(m) for m in ("ttft_", "tpot_", "e2e_"))]
    last = {c.partition("_p")[0]: c for c in latencies}
    found: list[Chart] = []
    for column in [*last.values(), "load"]:
        kept = [r for r in rows if isinstance(r.get(column), (int, float)) and math.isfinite(r[column])]
        if kept:
            time = column.endswith("_s") and not column.endswith("_per_s")
            text = format_duration if time else format_count
            name = label(column)
            title = f"{name[:1].upper()}{name[1:]} of this fleet by rate"
            drawn = _each((str(r["pool"]), float(r["rate_per_s"]), float(r[column])) for r in kept)
            found.append(Lines(title, drawn, label("rate_per_s"), name, format_count, text, log_y=time))
    return found


def _of_sweep(result: Any) -> list[Chart]:
    """Cost over the first option that varies in numbers, a line for each combination of the others; else a bar per point."""
    rows = result.to_rows()
    changed = list(dict.fromkeys(name for p in result.points for name in p.changes))
    values = {name: {str(r.get(name)) for r in rows} for name in changed}
    number = next(
        (n for n in changed if len(values[n]) > 1 and all(math.isfinite(as_number(v)) for v in values[n])), None
    )
    if number is None:
        named = [(", ".join(str(r.get(n)) for n in changed), r.get("cost_usd_per_hour")) for r in rows]
        return _bars("Cost a month of every point", [(n, c and HOURS_PER_MONTH * c) for n, c in named], _money)
    others = [n for n in changed if n != number]
    drawn = _each(
        (", ".join(f"{n} {r.get(n)}" for n in others) or "cost", float(str(r[number])), HOURS_PER_MONTH * float(cost))
        for r in rows
        if (cost := r.get("cost_usd_per_hour")) is not None
    )
    along = "requests/s" if number == "rate" else label(number)
    return [Lines(f"Cost by {along}", drawn, along, "$/month", format_count, _money)] if drawn else []


def _bars(
    title: str, values: Iterable[tuple[str, Any]], text: Callable[[float], str], middle: float = 0.0
) -> list[Chart]:
    """A bar for every value that is a number, if any is."""
    rows = [(name, None, float(value)) for name, value in values if value is not None and math.isfinite(value)]
    return [Bars(title, rows, middle, text)] if rows else []


def _of_stability(result: Any) -> list[Chart]:
    """Every limit of the fleet, from the rate asked about."""
    rate = float(result.about["arrival_rate_per_s"])
    title = f"Limits of the fleet from its {format_count(rate)} requests/s"
    return _bars(title, [(b.name, b.fleet_per_s) for b in result.bounds], format_count, rate)


def _of_batching(result: Any) -> list[Chart]:
    """Throughput of both, where it is known."""
    found = [(name, getattr(result, name)["throughput_per_s"]) for name in ("exclusive", "mixed")]
    return _bars("Requests/s of one replica at saturation", found, format_count)


def _of_calibrations(result: Any) -> list[Chart]:
    """How far every point is from the fit: iterations by their time, servers by the shape left out."""
    charts: list[Chart] = []
    for c in result.calibrations:
        if c.fit is not None and c.raw is not None:
            times = [float(row["time_s"]) for row in c.raw.rows]
            if len(times) == len(c.fit.residuals):
                points = sorted(zip(times, (float(r) for r in c.fit.residuals), strict=True))
                what = "measured over fitted, less 1"
                title = f"{c.profile.name}: how far iterations are from the fit"
                drawn = [Line(what, points, dots=True)]
                charts.append(Lines(title, drawn, "iteration", what, format_duration, _percent, log_x=True))
        elif c.server_fit is not None and c.server_fit.tpot_error_by_shape:
            errors = c.server_fit.tpot_error_by_shape.items()
            rows = [(f"{format_count(i)} in, {format_count(o)} out", e) for (i, o), e in errors]
            charts += _bars(f"{c.profile.name}: error of TPOT, shape left out", rows, _percent)
    return charts


def _of_workload(result: Any) -> list[Chart]:
    """Distribution functions of the lengths, and the rate by hour where it is known."""
    workload = result.workload
    drawn = []
    # no more steps than a drawing is wide
    for of, style in (("input", "a"), ("output", "b"), ("total", "c")):
        values, cumulative = workload.sorted_column(of)
        places = sorted({round(k * (len(values) - 1) / WIDTH) for k in range(WIDTH + 1)})
        drawn.append(Line(of, [(max(float(values[k]), 1.0), float(cumulative[k])) for k in places], style, steps=True))
    title = f"{workload.name}: share of requests up to a length"
    charts: list[Chart] = [Lines(title, drawn, "tokens", "share", format_count, _percent, log_x=True)]
    if hours := workload.arrivals.hourly_profile:
        points = [(float(h), float(r)) for h, r in enumerate(hours)]
        drawn, named = [Line("rate over its mean", points, steps=True)], ("hour", "rate over its mean")
        charts.append(Lines("Arrivals by hour", drawn, *named, format_count, format_count))
    return charts


def _of_costs(result: Any) -> list[Chart]:
    """Ways to pay beside each other."""
    rows = [(w.name, HOURS_PER_MONTH * w.cost_usd_per_hour) for w in result.ways]
    return _bars("Cost a month by the way to pay", rows, _money)


def _of_autoscaling(result: Any) -> list[Chart]:
    """Windows within the promise, by scaler."""
    outcomes = [(f"{p.pool}, {o.name}", o) for p in result.pools for o in p.outcomes]
    kept = _bars("Five-minute windows within the promise", [(name, o.attained) for name, o in outcomes], _percent)
    return [*kept, *_bars("Replica-hours paid", [(name, o.replica_hours) for name, o in outcomes], format_count)]


KINDS: Mapping[str, Callable[[Any], list[Chart]]] = {
    "Autoscaling": _of_autoscaling,
    "Batching": _of_batching,
    "CalibrationSet": _of_calibrations,
    "Costs": _of_costs,
    "Evaluation": _of_evaluation,
    "Overview": lambda result: [chart for chart, _ in of_overview(result)],
    "Plan": lambda plan: [*(chart for chart, _ in _surroundings(plan)), _spread(plan)[0]],
    "Schedule": lambda result: [_day(result)[0]],
    "Stability": _of_stability,
    "Sweep": _of_sweep,
    "WorkloadSummary": _of_workload,
}
"""Results by the name of their class."""


def _money(usd: float) -> str:
    return f"${round(usd):,}"


def _percent(share: float) -> str:
    return format_percent(share) if share else "0%"
