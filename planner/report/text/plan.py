"""A plan on a page: what to buy, how sure that is, what would be cheaper, what else it could be, what to check, how to start it.

The same blocks in a terminal, in Markdown, in the report, in a notebook and as ``summary`` in JSON; the reasons are
:mod:`planner.report.explained`'s.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence

from planner.catalog.load import full_w, power_curve, price_offers, repository
from planner.catalog.profiles import engine_of
from planner.choices import AT_OTHER, WORTH_TELLING, Choice
from planner.plans import HOURS_PER_YEAR, Plan, Sized, Sureness
from planner.report.blocks import Block, Text
from planner.report.pages import pages, usd
from planner.report.text.choices import TOO_DEAR, change, interrupted
from planner.shared.remarks import Remark
from planner.size.unknowns import ANY
from planner.units import format_chance, format_count, format_duration, format_gpus, format_share
from planner.workload.resolve import shipped_names

_page = pages(__file__)

MOST_CHEAPER, MOST_OTHER = 5, 4
"""Rows of what is cheaper, and of each other part."""

CLIFF_LOOSER, CLIFF_SAVES = 1.5, 0.2
"""A promise whose limit is a cliff: this many times as long, it saves this share."""

UNFIT = ("few_requests", "no_promise", "below_hardware", "profile_band", "wide_band")
"""Warnings that make an answer unfit to buy by: they stand above it."""


def of_plan(plan: Plan) -> list[Block]:
    """The page."""
    base = plan.cost_usd_per_hour
    return beginning(plan) + _page(
        "rest",
        plan,
        cheaper=cheaper(plan),
        quality=lambda choice: " (check quality)" if choice.kind == "precision" else "",
        year=lambda choice: usd(HOURS_PER_YEAR * choice.cost_usd_per_hour),
        change=lambda choice: change(choice.cost_usd_per_hour / base - 1.0),
        otherwise="   ".join(otherwise(plan)),
        types="   ".join(types(plan)),
        checks=checked(before_signing(plan)),
        run=start_line(plan),
        rows="" if (c := plan.choices) is None else f" ({', '.join([f'{len(c.rows)} rows', *interrupted(c)])})",
    )


def beginning(plan: Plan) -> list[Block]:
    """How the page begins, which does not hang on what other choices would cost."""
    buy, *more = answer(plan)
    return _page("answer", plan, question=question(plan), unfit=unfit(plan), buy=buy, more=more)


def summary(plan: Plan) -> list[str]:
    """The page as lines of 100 characters."""
    from planner.report.blocks import to_terminal

    return to_terminal(of_plan(plan), 100).split("\n")


def one_line(plan: Plan) -> str:
    """The answer alone."""
    return f"{question(plan)}: {answer(plan)[0]}"


def question(plan: Plan) -> str:
    """Model, traffic and promises."""
    # a prefill pool works on prompts, a decode pool on answers
    prompts, answers = (plan.pools, plan.pools) if plan.shape == "colocated" else (plan.pools[:1], plan.pools[1:])
    means = (
        math.fsum(p.share * getattr(p, f"mean_{side}_tokens") for p in pools) / math.fsum(p.share for p in pools)
        for side, pools in (("input", prompts), ("output", answers))
    )
    promises = ", ".join(p.told for p in plan.slo.promises)
    model, name = plan.inputs.get("model", ""), plan.workload.get("name", "workload")
    users = next((f" ({r.values['population']})" for r in _remarks(plan, "assumptions") if r.code == "users"), "")
    return (
        f"{model}   {name}: {lengths(means)}   {format_count(plan.arrival_rate_per_s)} requests/s{users}   {promises}"
    )


def lengths(means: Iterable[float]) -> str:
    """Mean prompt and output."""
    return " / ".join(f"{format_count(round(mean))} {side}" for mean, side in zip(means, ("in", "out"), strict=True))


def checked(checks: Sequence[str]) -> list[Block]:
    """What an answer rests on that a person can check, below it."""
    return [Text(["BEFORE YOU SIGN"] if checks else []), Text(checks, "bullets", label="  ! ", near=True)]


ODDS = {0.1: "one chance in ten", 0.5: "even odds", 0.9: "nine in ten"}
"""Of keeping the promises, with the sizes that a plan names."""

NEARLY = 0.05
"""How far a chance may lie from odds that are told in words [1]: a size that has much more than was looked for is told its own."""


def answer(plan: Plan) -> list[str]:
    """What to buy and what it costs; how that hangs on what is not known; how it is built."""
    sure = plan.sureness
    promise = "the promise" if len(plan.slo.promises) == 1 else "the promises"
    keeps = "" if sure is None else f"   keeps {promise} with {format_chance(sure.chance)} confidence"
    if sure is not None and sure.chance < sure.confidence - 0.005:
        enough = [s.gpus for s in (*sure.steps, sure.high) if s.gpus and s.chance >= sure.confidence]
        does = (
            f"{format_gpus(min(enough))} {'does' if min(enough) == 1 else 'do'}" if enough else "no number of GPUs does"
        )
        keeps += f", not {100.0 * sure.confidence:.6g}%: {does}"
    lines = [f"{_gpus(plan)}   {usd(plan.cost_usd_per_year)} a year{keeps}"]
    if sure is not None and (sure.median.gpus, sure.high.gpus) != (plan.gpus, plan.gpus):
        # a size is told once, with the best odds it has
        odds = {s.gpus: (asked, s) for asked, s in zip(ODDS, (sure.low, sure.median, sure.high), strict=True)}
        lines.append(", ".join(f"{_odds(plan, sure, asked, s)} with {_sized(s)}" for asked, s in odds.values()))
    lines.append(f"{_build(plan)}; {_measures(plan)}")
    return lines


def _gpus(plan: Plan) -> str:
    """``"63 x h100-80gb + 8 x a100-80gb"``."""
    counts: dict[str, int] = {}
    for pool in plan.pools:
        counts[pool.gpu] = counts.get(pool.gpu, 0) + pool.gpus
    return " + ".join(f"{n:,} x {gpu}" for gpu, n in counts.items())


def _odds(plan: Plan, sure: Sureness, asked: float, sized: Sized) -> str:
    """The odds of a size in words where it has about those that were asked for, else the chance it has.

    Of fewer GPUs than are bought no more is told than the confidence they did not suffice for: by how much is the luck of a draw.
    """
    if sized.gpus is None or abs(sized.chance - asked) < NEARLY:
        return ODDS[asked]
    if sized.gpus < plan.gpus and sized.chance > sure.confidence - 0.005:
        return f"about {format_chance(sure.confidence)}"
    return format_chance(sized.chance)


def _sized(sized: Sized) -> str:
    """``"63 ($1.48M)"``."""
    if sized.gpus is None or sized.cost_usd_per_hour is None:
        return "no number"
    return f"{sized.gpus:,} ({usd(HOURS_PER_YEAR * sized.cost_usd_per_hour)})"


def _build(plan: Plan) -> str:
    """Pools, what a replica is, the gateway, spares."""

    pools = f"one pool, {plan.pools[0].parallel}"
    if len(plan.pools) > 1:
        each = (f"{pool.name} {pool.replicas:,} x {pool.parallel}" for pool in plan.pools)
        pools = f"{len(plan.pools)} pools: {', '.join(each)}"
    spares = sum(p.spares for p in plan.pools)
    return f"{pools}, {plan.inputs.get('routing')}; {f'{spares} spare' if spares else 'no spare'}"


def _measures(plan: Plan) -> str:
    """The latencies promised and P99 TTFT and TPOT, the worst of the pools; the highest load."""
    wanted = {(p.metric, p.quantile): p.label for p in plan.slo.promises if p.metric in ("ttft_s", "tpot_s", "e2e_s")}
    wanted |= {("ttft_s", 0.99): "P99 TTFT", ("tpot_s", 0.99): "P99 TPOT"}
    found = []
    for (metric, level), label in wanted.items():
        values = [v for pool in plan.pools if (v := pool.quantile(metric, level)) is not None]
        if values:
            found.append(f"{label} {format_duration(max(values))}")
    shares = [v.share for pool in plan.pools for v in pool.latency if v.share is not None]
    found += [f"{format_share(min(shares))} within all limits"] if shares else []
    return ", ".join(found) + f"; load {max(p.load for p in plan.pools):.2f}{_power(plan)}"


def _power(plan: Plan) -> str:
    """What all GPUs draw with every batch full, where that is bounded, and what those that serve draw at this rate."""
    if (most := plan.inputs.get("max_kw")) is None:
        return ""
    full = math.fsum(p.gpus * full_w(p.gpu) for p in plan.pools)
    curves = [(p, power_curve(p.gpu)) for p in plan.pools]
    here = math.fsum(p.gpus * curve.watts(p.slot_occupancy * p.slots) for p, curve in curves if curve is not None)
    return f"; GPUs draw {full / 1e3:.3g} of {most:g} kW with every batch full, {here / 1e3:.3g} kW at this rate"


def _remarks(plan: Plan, kind: str) -> Sequence[Remark]:
    return plan.remarks.get(kind, ())


def unfit(plan: Plan) -> list[str]:
    """Why the answer is not to be bought by, where it is not."""
    return list(dict.fromkeys(str(r) for r in _remarks(plan, "warnings") if r.code in UNFIT))[:2]


def cheaper(plan: Plan) -> list[Choice]:
    """What keeps the same promise for less, the cheapest first."""
    priced = [(c.cost_usd_per_hour, c) for c in plan.choices.rows if c.kind not in AT_OTHER] if plan.choices else []
    found = [(cost, c) for cost, c in priced if cost is not None and cost < WORTH_TELLING * plan.cost_usd_per_hour]
    return [choice for _, choice in sorted(found, key=lambda pair: pair[0])[:MOST_CHEAPER]]


def otherwise(plan: Plan) -> list[str]:
    """The other shape asked about, other limits, more traffic, a node's failure, and cliffs always: what they would take."""
    base = plan.cost_usd_per_hour
    shapes = [
        f"{a.shape}: no fleet"
        if a.cost_usd_per_hour is None
        else f"{a.shape}: {format_gpus(sum(p.gpus for p in a.pools))} ({change(a.cost_usd_per_hour / base - 1.0)})"
        for a in plan.alternatives
    ]
    if plan.choices is None or plan.choices.promise is None:
        return shapes
    promise = plan.choices.promise
    limits = sorted((c for c in plan.choices.rows if c.kind == "promise" and c.limit_s), key=lambda c: c.limit_s or 0.0)
    tighter = [c for c in limits if (c.limit_s or 0.0) < promise.limit_s][-1:]
    looser = [c for c in limits if (c.limit_s or 0.0) > promise.limit_s]
    cliff = [c for c in looser if _is_cliff(c, promise.limit_s, base)][:1]
    others = [c for c in plan.choices.rows if c.kind in ("traffic", "redundancy")]
    shown = [*tighter, *(cliff or looser[:1]), *others][:MOST_OTHER]
    return shapes + [told for c in shown if (told := _other(c, base, c in cliff))]


def types(plan: Plan) -> list[str]:
    """Where any GPU would do, the cheapest others, each with its own best settings: size, cost and P99 TTFT."""
    asked = plan.inputs.get("gpu")
    if not isinstance(asked, (list, tuple)) or ANY not in asked or plan.choices is None:
        return []
    rows = [(c.cost_usd_per_hour, c) for c in plan.choices.rows if c.kind == "gpu" and c.cost_usd_per_hour is not None]
    return [
        f"{c.name.removesuffix(' alone')}: {format_gpus(c.gpus or 0)} ({change(cost / plan.cost_usd_per_hour - 1.0)}"
        + (f", {format_duration(c.ttft_p99_s)})" if c.ttft_p99_s else ")")
        for cost, c in sorted(rows, key=lambda row: row[0])[:MOST_CHEAPER]
    ]


def _is_cliff(choice: Choice, limit_s: float, base: float) -> bool:
    cost, near = choice.cost_usd_per_hour, (choice.limit_s or 0.0) <= CLIFF_LOOSER * limit_s * (1.0 + 1e-9)
    return near and cost is not None and cost < (1.0 - CLIFF_SAVES) * base


def _other(choice: Choice, base: float, cliff: bool) -> str:
    cost = choice.cost_usd_per_hour
    if cost is None:
        return f"{choice.name}: no fleet" if choice.reason else ""
    told = f"over {TOO_DEAR:g} times as dear" if cost > TOO_DEAR * base else change(cost / base - 1.0)
    return f"{choice.name}: {format_gpus(choice.gpus or 0)} ({told}{', a cliff' if cliff else ''})"


def before_signing(plan: Plan) -> list[str]:
    """What the answer rests on that a person can check, each with the way to."""
    found = []
    gpu = plan.pools[0].gpu
    warned = {r.values["gpu"] for r in _remarks(plan, "warnings") if r.code == "wide_band"}
    times = [r for r in _remarks(plan, "assumptions") if r.code == "iteration_times"]
    estimated = {str(r.values["gpu"]): r for r in times if "measured" not in str(r.values["trust"])}
    narrowing = () if plan.sureness is None else plan.sureness.narrowing
    saves = next((n.gpus for n in narrowing if n.by == "calibration" and n.gpus > 0), 0)
    # what is saved takes every type that is not measured
    what = "measured" if len(estimated) == 1 else "all measured"
    told = f"; {what}, about {saves:,} GPU{'s' if saves != 1 else ''} less" if saves else ""
    found += [unmeasured(gpu, f"{r.values['trust']}{told}") for gpu, r in estimated.items() if gpu not in warned]
    found += [str(r) for r in _remarks(plan, "assumptions") if r.code in ("pooling_host", "image_host")]
    if plan.workload.get("name") in shipped_names() and plan.workload.get("licence"):
        found.append(f"{plan.workload.get('name')} is a public trace, not your traffic:  --cdf your.csv")
    elif any(r.code == "short_trace" for r in _remarks(plan, "assumptions")):
        found.append("the trace is shorter than a day, its busiest hour unknown:  --rate, --headroom 30%")
    found += _price_checks(plan, gpu)
    others = [str(r) for r in _remarks(plan, "warnings") if r.code not in UNFIT]
    others += [str(Remark("speculation_slows", r.values)) for r in _remarks(plan, "notes") if _slows(r)]
    shortened = [line if len(line) <= 160 else line[:157].rsplit(" ", 1)[0] + " ..." for line in others[:2]]
    # groups of one GPU type are measured together
    return list(dict.fromkeys([*shortened, *found]))[:MOST_OTHER]


def _slows(remark: Remark) -> bool:
    """Whether it says of a pool that speculating slows it at its load."""
    values = remark.values
    return remark.code == "speculation_crosses" and float(str(values["load"])) >= float(str(values["crossing"]))


def unmeasured(gpu: str, trust: str) -> str:
    """Iteration times that were not measured, and how to measure them."""
    return f"speeds of {gpu} are {trust}:  fleetopt calibrate --gpu {gpu}"


def _price_checks(plan: Plan, gpu: str) -> list[str]:
    """Whose price it is, and what others ask."""
    for remark in _remarks(plan, "assumptions"):
        if remark.code == "gpu_price" and remark.values["source"]:
            asked = sorted({o.usd_per_gpu_hour for o in price_offers() if o.gpu == gpu and o.term == "on-demand"})
            price = float(str(remark.values["price"]))
            others = [a for a in asked if a > price]
            more = f", the cheapest of {len(asked)} offers (others up to ${others[-1]:g})" if others else ""
            return [f"${price:g} per {gpu} and hour{more}:  --price {gpu}=YOURS"]
    return []


def start_line(plan: Plan) -> str:
    """How an engine of the largest pool is started, which where there are several a comment of the shell names."""
    pool = max(plan.pools, key=lambda p: p.gpus)
    engine = engine_of(plan.inputs)
    model = repository(str(plan.inputs.get("model"))) or str(plan.inputs.get("model"))
    started = [word.format(model=model) for word in engine.launch]
    line = shlex.join([*started, *engine.arguments(pool.settings.to_dict())])
    return line if len(plan.pools) == 1 else f"{line}  # pool {pool.name}; of every pool: --format vllm"
