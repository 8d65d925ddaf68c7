"""Compares scheduling policies on one workload: throughput, latency, attainment and goodput over rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from planner.catalog.kv import kv_capacity
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import model as find_model
from planner.catalog.profiles import profile as find_profile
from planner.errors import InputError, refuse
from planner.machine.iteration import IterationModel
from planner.papers.policy import Situation, find_policy
from planner.papers.run import as_requests, run_policy
from planner.papers.statistics import mean_of_batches, summarize
from planner.papers.traffic import arrival_times, sample_rows, seeds_of, whole_tokens
from planner.predict.engine import Canonical
from planner.shared.arguments import told_types
from planner.shared.record import Record
from planner.units import RATE_RULE, is_rate, parse_duration, parse_fraction
from planner.workload.importing import load_workload
from planner.workload.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

COLUMNS = (
    "throughput_per_s",
    "ttft_mean_s",
    "ttft_p50_s",
    "ttft_p90_s",
    "ttft_p99_s",
    "tpot_mean_s",
    "tpot_p50_s",
    "tpot_p99_s",
    "tbt_p50_s",
    "tbt_p99_s",
    "e2e_mean_s",
    "evictions_per_1000",
    "peak_kv_tokens",
    "attainment",
    "goodput_per_s",
)
"""Statistics of a row, means over seeds; each also has a ``..._ci95``, the half-width over seeds."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The engine and the deadlines every policy runs under.

    Parameters
    ----------
    slots, token_budget
        Sequences and tokens per iteration.
    kv_tokens
        KV memory [tokens]; inf = unlimited.
    ttft_s, tbt_s
        A request attains its objective when its TTFT is at most `ttft_s` and its longest token gap at most its deadline
        between tokens [s]: `tbt_strict_s` for a random share `strict_share` of the requests, `tbt_s` for the others.
    tbt_strict_s, strict_share
        See `tbt_s`.
    """

    slots: int = 128
    token_budget: int = 2048
    kv_tokens: float = math.inf
    ttft_s: float = math.inf
    tbt_s: float = 0.5
    tbt_strict_s: float = 0.1
    strict_share: float = 0.0

    def __post_init__(self) -> None:
        positive = ("slots", "token_budget", "kv_tokens", "ttft_s", "tbt_s", "tbt_strict_s")
        problems = [f"{n} must be positive, got {getattr(self, n)!r}" for n in positive if not getattr(self, n) > 0.0]
        if not 0.0 <= self.strict_share <= 1.0:
            problems.append(f"strict_share must lie in [0, 1], got {self.strict_share!r}")
        refuse(problems)


@dataclass(slots=True)
class Comparison(Record):
    """Rows of (policy, rate) with the statistics of :data:`COLUMNS`.

    Parameters
    ----------
    rows
        One per policy and rate, in the order asked.
    requests, seeds
        Requests per run; the runs of every row.
    complete
        False when the comparison was interrupted.
    parameters
        Policy -> the parameters it ran with at the first rate.
    about
        The replica, in words.
    """

    rows: list[dict[str, object]]
    requests: int
    seeds: tuple[int, ...]
    complete: bool = True
    parameters: dict[str, dict[str, object]] = field(default_factory=dict)
    about: str = ""

    document: ClassVar[str] = "fleetopt-policy-comparison"
    written: ClassVar[tuple[str, ...]] = ("requests", "seeds", "complete", "parameters", "rows")

    def __repr__(self) -> str:
        return f"<Comparison: {len(self.rows)} rows, {self.requests} requests each>"

    def to_rows(self) -> list[dict[str, object]]:
        """The rows."""
        return self.rows


def _check_asked(
    policies: Sequence[str], rates_per_s: Sequence[float], requests: int, parameters: Mapping[str, object]
) -> None:
    """Known policies at rates that can be, with runs that tell something; parameters of those alone."""
    for name in policies:
        find_policy(name)
    if not policies or not rates_per_s:
        raise InputError("policies and rates: at least one of each is needed")
    if bad := [r for r in rates_per_s if not is_rate(r)]:
        raise InputError(f"rates: {RATE_RULE}, got {bad[0]!r}")
    if requests < 10:
        raise InputError(f"requests: a run takes at least 10, got {requests}")
    if unknown := [k for k in parameters if k not in policies]:
        raise InputError(f"parameters: {unknown[0]!r} is none of the policies compared ({', '.join(policies)})")


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
    gpu
        GPU type.
    model
        Model name, or a config.json.
    tp
        GPUs per replica.
    slots
        max_num_seqs.
    token_budget
        Tokens per iteration.
    ttft
        Objective: TTFT at most this [s].
    tbt
        Objective: every gap between tokens at most this [s].
    tbt_strict
        The same for strict users [s].
    strict_share
        Share of strict users: 0.05 or 5%.
    parameters
        Policy -> parameters in place of its defaults.
    requests, seeds
        Requests per run; independent runs.
    replicas
        Replicas under one policy.
    routing
        How requests are spread over them: random, p2c, jsq, ...
    progress
        Told (runs done, all).

    Returns
    -------
    Comparison
    """
    limits = (parse_duration(ttft, "ttft"), parse_duration(tbt, "tbt"), parse_duration(tbt_strict, "tbt_strict"))
    share = parse_fraction(strict_share, "strict_share")
    traffic = load_workload(workload)
    found_gpu, found_model = find_gpu(gpu), find_model(model)
    profile = find_profile(gpu=found_gpu, model=found_model, tp=tp)
    memory = profile.kv_tokens
    if not memory:
        memory = kv_capacity(found_model, found_gpu, tp, max_num_seqs=slots, token_budget=token_budget).tokens
    if memory <= 0:
        raise InputError(
            f"{found_model.name} leaves no KV cache on {found_gpu.name} x TP{tp} with {slots} slots",
            "Take more GPUs per replica (--tp), a larger GPU, or fewer --slots.",
        )
    lengths = traffic.input_tokens, traffic.output_tokens, traffic.weight
    setting = Setting(slots, token_budget, memory, *limits, share)
    found = compared(
        policies,
        rates,
        *lengths,
        profile.iteration,
        setting,
        parameters=parameters,
        requests=requests,
        seeds=seeds,
        replicas=replicas,
        routing=routing,
        progress=progress,
    )
    found.about = f"{found_gpu.name} x TP{tp}, {found_model.name}, {profile.trust}, {memory:,} tokens of KV cache"
    return found


def compared(
    policies: Sequence[str],
    rates_per_s: Sequence[float],
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    weight: ArrayLike | None,
    iteration: IterationModel,
    setting: Setting | None = None,
    *,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    requests: int = 4000,
    seeds: int | Sequence[int] = 3,
    replicas: int = 1,
    routing: str = "random",
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Simulate every policy at every rate on the same requests.

    Parameters
    ----------
    policies
        Names of :func:`planner.papers.policy.policy_names`, aliases, or ``module:Class``.
    rates_per_s
        Rates of arrival at the pool [1/s].
    input_tokens, output_tokens, weight
        Joint lengths by row and their weights (``None`` = equal), shape (rows,) [tokens].
    iteration
        Canonical iteration-time model.
    setting
        Engine limits and deadlines.
    parameters
        Policy -> parameters that replace the defaults of its record.
    requests, seeds
        Requests per run; number of runs, or their seeds.
    replicas, routing
        Pool of replicas under the same policy.
    progress
        Called with (runs done, runs in all).

    Returns
    -------
    Comparison
        Interrupted by Ctrl-C it holds the rows finished so far and ``complete`` is False.
    """
    setting, given = setting or Setting(), dict(parameters or {})
    _check_asked(policies, rates_per_s, requests, given)
    inputs, outputs = whole_tokens(input_tokens, "input_tokens"), whole_tokens(output_tokens, "output_tokens")
    seed_list = seeds_of(seeds)
    w = np.ones(inputs.size) if weight is None else np.asarray(weight, dtype=float)
    mean_input, mean_output = float(np.average(inputs, weights=w)), float(np.average(outputs, weights=w))
    comparison = Comparison([], requests, seed_list)
    total, done = len(policies) * len(rates_per_s) * len(seed_list), 0
    try:
        for rate in rates_per_s:
            for name in policies:
                situation = Situation(
                    setting.slots, setting.token_budget, iteration, mean_input, mean_output, rate, setting.strict_share
                )
                chosen = find_policy(name).defaults(situation) | dict(given.get(name, {}))
                comparison.parameters.setdefault(name, chosen)
                runs = []
                for seed in seed_list:
                    rng = np.random.Generator(np.random.PCG64(seed))
                    rows = sample_rows(weight, inputs.size, requests, rng)
                    times = arrival_times(rate, requests, rng)
                    strict = rng.random(requests) < setting.strict_share
                    # the smaller class is the one with the tighter deadline; without strict users everybody is class 0
                    category = np.where(strict | (setting.strict_share == 0.0), 0, 1)
                    deadline = np.where(strict, setting.tbt_strict_s, setting.tbt_s)
                    run = run_policy(
                        as_requests(times, inputs[rows], outputs[rows], category, deadline),
                        name,
                        Canonical(iteration),
                        chosen,
                        capacity=setting.kv_tokens,
                        replicas=replicas,
                        routing=routing,
                        rng=np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1]))),
                    )
                    runs.append(summarize(run, ttft_s=setting.ttft_s))
                    done += 1
                    if progress is not None:
                        progress(done, total)
                comparison.rows.append(_row(name, rate, runs))
    except KeyboardInterrupt:
        comparison.complete = False
    return comparison


def _row(name: str, rate: float, runs: Sequence[Mapping[str, float]]) -> dict[str, object]:
    row: dict[str, object] = {
        "policy": name,
        "rate_per_s": rate,
        "stable": sum(r["keeps_up"] for r in runs) * 2 > len(runs),
        "unfinished": sum(r["unfinished"] for r in runs),
        "rejected": sum(r["rejected"] for r in runs),
    }
    for column in COLUMNS:
        values = np.array([r.get(column, math.nan) for r in runs])
        estimate = mean_of_batches(values)
        row[column] = estimate.value if math.isfinite(estimate.value) else None
        row[f"{column}_ci95"] = estimate.half_width if math.isfinite(estimate.half_width) else None
    return row
