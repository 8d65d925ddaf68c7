"""Questions about prompts with images: what they add to the prompts, and what cannot be asked beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np

from planner.catalog.images import image_work, parse_size
from planner.catalog.load import model as find_model
from planner.catalog.profiles import profile as find_profile
from planner.errors import InputError
from planner.question.options import PlanInputs
from planner.shared.kept import once
from planner.shared.remarks import Remark
from planner.workload.images import images_in
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
    if problems := _problems(inputs, workload):
        raise InputError.from_problems(problems)
    model = find_model(find_profile(inputs.profile).model if inputs.profile else inputs.model, like=inputs.like)
    size = inputs.image_size or USUAL_SIZE
    tokens = image_work(model, *parse_size(size)).tokens
    each = tuple(images.get(name, 0) * tokens for name in workload.categories)
    longer = once(("images", id(workload), each), lambda: (workload, _longer(workload, each)))[1]
    mean = float(workload.weight @ np.array([images.get(name, 0) for name in workload.categories])[workload.category])
    told = Remark("images", {"mean": mean, "size": size, "tokens": tokens, "model": model.name})
    # nobody has published how long other pictures take
    return longer, (told, *(() if inputs.api_overhead is not None else (Remark("image_host", {}),)))


def _problems(inputs: PlanInputs, workload: Workload) -> list[str]:
    """What of a question is not known together with images, a line each."""
    usual = {f.name: f.default for f in fields(PlanInputs)}
    found = {
        f"{name} {getattr(inputs, name)}: not together with images, whose encoder it does not know": (
            getattr(inputs, name) != usual[name]
        )
        for name in ("method", "shape", "scheduler")
    }
    found["compress: prompts with images are not rewritten"] = bool(inputs.compress)
    found[f"{workload.name} has sessions, whose images would be found again; give --set prefix_cache=off"] = (
        workload.sessions is not None and inputs.prefix_cache == "on"
    )
    return [line for line, wrong in found.items() if wrong]


def _longer(workload: Workload, each: tuple[int, ...]) -> Workload:
    """The same requests, so many tokens longer by category."""
    more = np.array(each, dtype=np.float64)
    rows, own = more[workload.category], workload.recorded
    columns = workload.columns()
    for name in ("input_tokens", "total_tokens", "lower_tokens"):
        columns[name] = columns[name] + rows
    traced = None if own is None else replace(own, input_tokens=own.input_tokens + more[own.category])
    return workload.rebuilt(columns, "tokens of images added", recorded=traced, intervals=workload.intervals)
