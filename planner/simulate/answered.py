"""A pool simulated with its clients: sessions that come back to prefix caches, closed doors, lost patience, second attempts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from planner.errors import InputError
from planner.iteration.model import IterationModel
from planner.methods.sessions import PrefixCache
from planner.simulate.clients import ON_GPU, Calls, ClientRules, ClientRun, run_clients, session_calls
from planner.simulate.measure import Run, result_of
from planner.simulate.presets import PoolEngines
from planner.simulate.result import SimulationResult
from planner.simulate.seeds import seeds_of
from planner.simulate.traffic import Traffic
from planner.workload.sessions import Sessions

WARM_UP = 0.3
"""Share of a run that is not counted, while caches and queues fill [1]."""


def simulate_clients(
    traffic: Traffic,
    engines: PoolEngines,
    rules: ClientRules,
    sessions: Sessions | None,
    rate_per_s: float,
    *,
    requests: int,
    cache: PrefixCache | None = None,
    seeds: int | Sequence[int] = 1,
    quantiles: Sequence[float] = (0.5, 0.9, 0.99),
    progress: Callable[[float], None] | None = None,
) -> SimulationResult:
    """Simulate a pool whose clients come back, give up and try again.

    Parameters
    ----------
    traffic, rate_per_s
        The pool's requests, and their rate [1/s].
    engines
        Its replicas and its gateway, of preset ``mixed``.
    rules
        What clients and doors do.
    sessions
        The same requests session by session, with prefix caches in the memory that running requests leave; ``None`` = none.
    cache
        Where sessions find their prefixes beside the KV memory, and for how long; default nowhere else, for ever.
    requests, seeds, quantiles, progress
        As for :func:`planner.simulate.pool.simulate`.

    Returns
    -------
    SimulationResult
        Latencies of the attempts that were answered; `clients` says what became of all.
    """
    if engines.rules.block != 1 or engines.rules.rule_exact or not isinstance(engines.iteration, IterationModel):
        raise InputError("preset: sessions, limits and patience of clients are simulated with preset mixed only")
    numbers = seeds_of(seeds)
    runs, counted = [], []
    for position, seed in enumerate(numbers):
        if sessions is None:
            calls, span = client_calls(traffic, requests, seed)
        else:
            calls, span = session_calls(sessions, rate_per_s, requests, seed)

        def tell(share: float, position: int = position) -> None:
            if progress is not None:
                progress((position + share) / len(numbers))

        found = run_clients(
            calls,
            rules,
            engines.iteration,
            replicas=engines.replicas,
            slots=engines.slots,
            token_budget=engines.token_budget,
            kv_tokens=engines.kv_tokens,
            shared_prefix=engines.shared_prefix,
            routing=engines.routing,
            cache=None if sessions is None else cache or ON_GPU,
            seed=seed,
            until_s=span,
            progress=tell,
        )
        runs.append(_run(found, calls, span))
        counted.append(account(found, calls, span))
    result = result_of(runs, engines, numbers, traffic, quantiles)
    means = {key: float(np.mean([c[key] for c in counted])) for key in counted[0]}
    return replace(result, requests=requests, clients=means)


def client_calls(traffic: Traffic, requests: int, seed: int) -> tuple[Calls, float]:
    """Calls without sessions, as the traffic sends them; and when the last is sent [s]."""
    times: list[float] = []
    columns: list[list[int]] = [[], [], []]
    for batch in traffic.batches(np.random.Generator(np.random.PCG64(seed))):
        times += batch.times_s.tolist()
        for column, values in zip(columns, (batch.input_tokens, batch.output_tokens, batch.cached_tokens), strict=True):
            column += values.tolist()
        if len(times) >= requests:
            break
    inputs, outputs, supplied = columns
    nothing, count = [-1] * len(times), len(times)
    first = list(zip(times, range(count), strict=True))
    return Calls(first, inputs, outputs, nothing, [0] * count, nothing, [0.0] * count, supplied), max(times)


def _run(found: ClientRun, calls: Calls, span: float) -> Run:
    """The attempts that were neither turned away nor given up, as the measurement of a run takes them."""
    columns = found.columns()
    lost = np.zeros(columns["call"].size, dtype=bool)
    lost[found.rejected] = lost[found.given_up] = True
    kept = ~lost
    outputs = np.array(calls.output_tokens, dtype=np.int32)[columns["call"].astype(np.int64)]
    count = int(kept.sum())
    return Run(
        times=columns["sent_s"][kept],
        first=columns["first_s"][kept],
        done=columns["done_s"][kept],
        outputs=outputs[kept],
        counted=np.ones(count, dtype=np.bool_),
        marks=[(0.0, 0.0, 0.0), (span, found.busy_s, found.resident_s)],
        preemptions=found.preemptions,
        rejected=int(lost.sum()),
    )


def account(found: ClientRun, calls: Calls, span: float) -> Mapping[str, float]:
    """Rates and shares after the warm-up; of prompt tokens, what was found on the GPU and what came from host memory."""
    columns = found.columns()
    start = WARM_UP * span
    sent = columns["sent_s"] >= start
    first = sent & (columns["tried"] == 0)
    answered = (columns["done_s"] >= start) & (columns["done_s"] <= span)
    marked = np.zeros((2, sent.size), dtype=bool)
    marked[0, found.rejected] = marked[1, found.given_up] = True
    attempts, wanted, lasted = float(sent.sum()), float(first.sum()), span - start
    prompts = np.array(calls.input_tokens, dtype=np.float64)[columns["call"].astype(np.int64)]
    through = sent & ~np.isnan(columns["first_s"])
    asked = max(float(prompts[through].sum()), 1.0)
    return {
        "demand_per_s": wanted / lasted,
        "goodput_per_s": float(answered.sum()) / lasted,
        "rejected_share": float((marked[0] & sent).sum()) / max(attempts, 1.0),
        "given_up_share": float((marked[1] & sent).sum()) / max(attempts, 1.0),
        "amplification": attempts / max(wanted, 1.0),
        "unanswered_per_s": sum(t >= start for t, _ in found.failed) / lasted,
        "cached_share": float((columns["found"] - columns["host"])[through].sum()) / asked,
        "host_share": float(columns["host"][through].sum()) / asked,
        "end_s": span if math.isfinite(span) else 0.0,
    }
