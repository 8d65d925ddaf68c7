"""Questions about models that write nothing (embeddings, rerankers): a request is its prompt, read in one pass."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from planner.catalog.load import model as find_model
from planner.catalog.profiles import profile as find_profile
from planner.engines import DEFAULT_ENGINE
from planner.engines import engine as find_engine
from planner.errors import InputError
from planner.machine.hardware import ModelSpec
from planner.question.options import PlanInputs
from planner.shared.kept import once
from planner.shared.remarks import Remark
from planner.workload.workload import Workload

FRONT_END_S = 0.0024
"""Of a request for an embedding in the only public measurement of a server of vLLM: 414.91 requests/s of 512 tokens of a model of
109M parameters, and 2.4 times as many texts with 16 of them in a request (pull request 23000, 2025-08, GPU not stated) [s]."""


def read_only(inputs: PlanInputs, workload: Workload) -> tuple[Workload, tuple[Remark, ...]]:
    """The prompts of a pooling model, each with one output token, which is the pass itself; those of other models as they are.

    Parameters
    ----------
    inputs
        The options: their model says whether it writes.
    workload
        The requests.

    Returns
    -------
    tuple
        The requests, and that outputs were left out where there were any.

    Raises
    ------
    InputError
        What is asked needs a model that writes: all of it at once.
    """
    model = find_model(find_profile(inputs.profile).model if inputs.profile else inputs.model, like=inputs.like)
    if not model.pooling:
        return workload, ()
    if problems := _problems(inputs, workload, model):
        raise InputError.from_problems(problems)
    host = () if inputs.request_time is not None else (Remark("pooling_host", {"request_s": FRONT_END_S}),)
    longest = workload.quantile(1.0, "output")
    if longest <= 1.0:
        return workload, host
    shorter = once(("read only", id(workload)), lambda: (workload, _without_outputs(workload)))[1]
    return shorter, (Remark("read_only", {"model": model.name, "longest": longest}), *host)


def _problems(inputs: PlanInputs, workload: Workload, model: ModelSpec) -> list[str]:
    """What of a question a model that writes nothing cannot answer, a line each."""
    alone = f"{model.name} writes no tokens (a pooling model)"
    encoder = model.pooling == "encoder"
    engine = find_engine(inputs.engine or DEFAULT_ENGINE)
    shared = bool(inputs.cached_share or inputs.shared_prefix)
    usual = {f.name: f.default for f in fields(PlanInputs)}
    found = {
        f"tpot: {alone}; promise --e2e, which is its TTFT": any("tpot_s" in p.metric for p in inputs.promises),
        f"throughput: {alone}; give --rate": inputs.throughput is not None,
        **{
            f"{name} {getattr(inputs, name)}: {alone}, there is no decode that it could change": (
                getattr(inputs, name) != usual[name]
            )
            for name in ("speculate", "shape", "method", "scheduler")
        },
        f"cached_share, shared_prefix: {model.name} reads both ways and keeps no cache": encoder and shared,
        f"{workload.name} has sessions, and {alone} to come back to; give --set prefix_cache=off": (
            workload.sessions is not None and inputs.prefix_cache == "on"
        ),
        f"engine {engine.name}: how it starts pooling models is not known here; take --engine vllm": (
            "runner" not in engine.flags
        ),
    }
    return [line for line, wrong in found.items() if wrong]


def _without_outputs(workload: Workload) -> Workload:
    """The same prompts with one output token each."""
    before = workload.input_tokens + workload.output_tokens
    outputs = np.ones_like(before)
    exact = workload.lower_tokens == workload.total_tokens
    totals = np.where(
        exact, workload.input_tokens + 1.0, workload.total_tokens * (workload.input_tokens + 1.0) / before
    )
    lower = np.where(exact, totals, workload.lower_tokens * (workload.input_tokens + 1.0) / before)
    own = workload.recorded
    return workload.rebuilt(
        workload.columns() | {"output_tokens": outputs, "total_tokens": totals, "lower_tokens": lower},
        "outputs left out",
        recorded=None if own is None else replace(own, output_tokens=np.ones_like(own.output_tokens)),
        intervals=workload.intervals,
    )
