"""Prompts with images, and models that write nothing: what becomes of the requests, and what cannot be asked beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

import numpy as np

from planner.catalog.images import image_work, parse_size
from planner.catalog.load import model as find_model
from planner.catalog.profiles import profile as find_profile
from planner.errors import InputError, refuse
from planner.machine.engines import DEFAULT_ENGINE
from planner.machine.engines import engine as find_engine
from planner.machine.hardware import ModelSpec
from planner.question.options import PlanInputs
from planner.shared.kept import once
from planner.shared.remarks import Remark
from planner.workload.calls import images_in
from planner.workload.workload import Workload

USUAL_SIZE = "1024x1024"
"""Size of images where none is stated."""


def images_by_category(inputs: PlanInputs, workload: Workload) -> Mapping[str, int]:
    """Images of each request by its category: the workload's own, else as many as the option says.

    Raises
    ------
    InputError
        Both say something.
    """
    own = images_in(workload.categories)
    if own and inputs.images is not None:
        raise InputError(
            f"images: {workload.name} says itself how many images a request has",
            f"Leave it out. Categories with images: {', '.join(own)}.",
        )
    return own or (dict.fromkeys(workload.categories, inputs.images) if inputs.images else {})


def with_images(inputs: PlanInputs, workload: Workload) -> tuple[Workload, tuple[Remark, ...]]:
    """The requests with the tokens of their images in the prompts.

    Parameters
    ----------
    inputs
        The options: model, images and their size.
    workload
        The requests, images not counted in their prompts.

    Returns
    -------
    tuple
        The requests, and what is taken for true of their images.

    Raises
    ------
    InputError
        What is asked is not known of images: all of it at once.
    """
    images = images_by_category(inputs, workload)
    if not images:
        if inputs.image_size is not None:
            raise InputError("image_size: no prompt has images", "Say how many: --images 2.")
        return workload, ()
    refuse([*_beside_images(inputs, workload)])
    model = _model(inputs)
    size = inputs.image_size or USUAL_SIZE
    tokens = image_work(model, *parse_size(size)).tokens
    each = tuple(images.get(name, 0) * tokens for name in workload.categories)
    longer = once(("images", id(workload), each), lambda: (workload, _longer(workload, each)))[1]
    mean = float(workload.weight @ np.array([images.get(name, 0) for name in workload.categories])[workload.category])
    told = Remark("images", {"mean": mean, "size": size, "tokens": tokens, "model": model.name})
    # nobody has published how long other pictures take
    return longer, (told, *(() if inputs.api_overhead is not None else (Remark("image_host", {}),)))


def _beside_images(inputs: PlanInputs, workload: Workload) -> Iterator[str]:
    """What of a question is not known together with images, a line each."""
    for name in _unusual(inputs, "method", "shape", "scheduler"):
        yield f"{name} {getattr(inputs, name)}: not together with images, whose encoder it does not know"
    if inputs.compress:
        yield "compress: prompts with images are not rewritten"
    if _finds_again(inputs, workload):
        yield f"{workload.name} has sessions, whose images would be found again; give --set prefix_cache=off"


def _model(inputs: PlanInputs) -> ModelSpec:
    """The model asked about."""
    return find_model(find_profile(inputs.profile).model if inputs.profile else inputs.model, like=inputs.like)


def _unusual(inputs: PlanInputs, *names: str) -> list[str]:
    """Those of some options that are not as they are where nothing is said."""
    return [f.name for f in fields(PlanInputs) if f.name in names and getattr(inputs, f.name) != f.default]


def _finds_again(inputs: PlanInputs, workload: Workload) -> bool:
    """Whether sessions find their prompts in caches."""
    return workload.sessions is not None and inputs.prefix_cache == "on"


def _longer(workload: Workload, each: tuple[int, ...]) -> Workload:
    """The same requests, so many tokens longer by category."""
    more = np.array(each, dtype=np.float64)
    rows, own = more[workload.category], workload.recorded
    columns = workload.columns()
    for name in ("input_tokens", "total_tokens", "lower_tokens"):
        columns[name] = columns[name] + rows
    traced = None if own is None else replace(own, input_tokens=own.input_tokens + more[own.category])
    return workload.rebuilt(columns, "tokens of images added", recorded=traced, intervals=workload.intervals)


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
    model = _model(inputs)
    if not model.pooling:
        return workload, ()
    refuse([*_without_decode(inputs, workload, model)])
    host = () if inputs.request_time is not None else (Remark("pooling_host", {"request_s": FRONT_END_S}),)
    longest = workload.quantile(1.0, "output")
    if longest <= 1.0:
        return workload, host
    shorter = once(("read only", id(workload)), lambda: (workload, _without_outputs(workload)))[1]
    return shorter, (Remark("read_only", {"model": model.name, "longest": longest}), *host)


def _without_decode(inputs: PlanInputs, workload: Workload, model: ModelSpec) -> Iterator[str]:
    """What of a question a model that writes nothing cannot answer, a line each."""
    alone = f"{model.name} writes no tokens (a pooling model)"
    engine = find_engine(inputs.engine or DEFAULT_ENGINE)
    if any("tpot_s" in p.metric for p in inputs.promises):
        yield f"tpot: {alone}; promise --e2e, which is its TTFT"
    if inputs.throughput is not None:
        yield f"throughput: {alone}; give --rate"
    for name in _unusual(inputs, "speculate", "shape", "method", "scheduler"):
        yield f"{name} {getattr(inputs, name)}: {alone}, there is no decode that it could change"
    if model.pooling == "encoder" and (inputs.cached_share or inputs.shared_prefix):
        yield f"cached_share, shared_prefix: {model.name} reads both ways and keeps no cache"
    if _finds_again(inputs, workload):
        yield f"{workload.name} has sessions, and {alone} to come back to; give --set prefix_cache=off"
    if "runner" not in engine.flags:
        yield f"engine {engine.name}: how it starts pooling models is not known here; take --engine vllm"


def _without_outputs(workload: Workload) -> Workload:
    """The same prompts with one output token each."""
    before, alone = workload.input_tokens + workload.output_tokens, workload.input_tokens + 1.0
    exact = workload.lower_tokens == workload.total_tokens
    totals = np.where(exact, alone, workload.total_tokens * alone / before)
    lower = np.where(exact, totals, workload.lower_tokens * alone / before)
    changed = {"output_tokens": np.ones_like(alone), "total_tokens": totals, "lower_tokens": lower}
    own = workload.recorded
    return workload.rebuilt(
        workload.columns() | changed,
        "outputs left out",
        recorded=None if own is None else replace(own, output_tokens=np.ones_like(own.output_tokens)),
        intervals=workload.intervals,
    )
