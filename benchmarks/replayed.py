"""Replays of requests given as arrays, for benchmarks that hold closed forms to them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from planner.iteration.model import IterationModel
from planner.predict.records import Replicas, Requests, keys_of
from planner.predict.run import replay


def simulate(
    cost: Mapping[str, float],
    prompts: np.ndarray,
    outputs: np.ndarray,
    arrivals: np.ndarray,
    *,
    budget: int,
    slots: int,
    kv_tokens: float,
    replicas: int = 1,
    routing: str = "random",
    seed: int = 0,
) -> dict[str, np.ndarray | float]:
    """TTFT and end of every request [s], mean decodes per replica, mean iteration [s], preemptions per request.

    `cost` holds terms of :class:`planner.iteration.model.IterationModel`.
    """
    number = np.arange(len(arrivals))
    columns = (np.maximum(np.rint(np.asarray(x, dtype=float)), 1.0) for x in (prompts, outputs))
    requests = Requests(
        np.asarray(arrivals, dtype=float), *columns, np.zeros(number.size), keys_of(number, np.full_like(number, seed), 7)
    )  # fmt: skip
    name = "least" if routing == "jsq" else routing
    run = replay(requests, Replicas(replicas, IterationModel(**cost), slots, budget, kv_tokens, name))
    lasted = replicas * (float(np.nanmax(run.done_s)) - float(requests.arrival_s[0]))
    return {
        "ttft_s": run.ttft_s,
        "end_s": run.done_s,
        "decodes": float(run.decode_s.sum()) / lasted,
        "iteration_s": float(run.busy_s.sum()) / float(run.iterations.sum()),
        "preemptions": float(run.preempted.mean()),
    }
