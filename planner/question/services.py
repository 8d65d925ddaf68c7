"""A file of services: several models and their traffic, over one stock of GPUs and one budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from planner.catalog.load import gpu
from planner.errors import InputError, refuse
from planner.question.files import refuse_untold
from planner.question.options import OPTIONS, PlanInputs, canonical
from planner.shared.documents import load_document
from planner.shared.paths import READ, at_home
from planner.units import parse_number

SHARED = ("inventory", "price")
"""Options that are all services' together."""

REFUSED = {
    "spot_price": "services share GPUs that are bought; plan a service on spot by itself",
    "spot_share": "services share GPUs that are bought; plan a service on spot by itself",
    "scheduler": "services run the engines' own; plan a service with another by itself",
}
"""Options that no service has -> why."""

EXAMPLE = "For example: services: {chat: {cdf: azure, rate: 20, slo: 0.5, priority: 1}}; see docs/services.md."

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class ServiceAsked:
    """One service as it was asked for.

    Parameters
    ----------
    name
        E.g. ``"chat"``.
    priority
        Whole number; the lowest is served first where not all can be.
    inputs
        Its question as if it were alone, whatever stock there is.
    hours
        File or shipped service with its rates by hour; ``None`` = the workload's own, where it has them.
    """

    name: str
    priority: int
    inputs: PlanInputs
    hours: str | None


@dataclass(frozen=True, slots=True)
class ServicesAsked:
    """A file of services.

    Parameters
    ----------
    source, folder
        Its name, and where it lies.
    services
        In its order.
    stock
        GPU -> how many there are; of others as many as wanted.
    budget_usd_per_hour
        The most that all may cost [USD/hour]; ``None`` = no limit.
    """

    source: str
    folder: Path
    services: tuple[ServiceAsked, ...]
    stock: Mapping[str, int]
    budget_usd_per_hour: float | None


def read_services(path: str | Path, changes: Mapping[str, Any]) -> ServicesAsked:
    """Read a file of services; `changes` are options that override it for all of them.

    Raises
    ------
    InputError
        Missing, not YAML or JSON, no services, unknown keys, a service without traffic: all problems with their key path.
    """
    source = str(path)
    data = load_document(path, "A file of services is read from there. " + EXAMPLE)
    entries = data.get("services") if isinstance(data, Mapping) else None
    if not isinstance(entries, Mapping) or not entries:
        raise InputError(f"{source}: services: expected `name: options` for each service, at least one", EXAMPLE)
    common = {canonical(str(k)): v for k, v in data.items() if k not in ("services", "budget")}
    given = {canonical(k): v for k, v in changes.items() if v is not None}
    problems: list[str] = []
    there = [given.pop("inventory", None), common.pop("inventory", None)]
    stock = _read("inventory", lambda: _stock(there[0] or there[1]), f"{source}: ", problems) or {}
    budget = _read("budget", lambda: _budget(data.get("budget")), f"{source}: ", problems)
    base = {"gpu": [*stock]} if stock else {}
    services: list[ServiceAsked] = []
    for name, own in entries.items():
        place = f"{source}: services.{name}"
        if not isinstance(own, Mapping):
            problems.append(f"{place}: expected options, got {type(own).__name__}")
            continue
        layers = [({**base, **common}, f"{source}: "), (own, f"{place}."), (given, "")]
        named = {canonical(str(k)): v for layer, _ in layers[:2] for k, v in layer.items()}
        if READ in os.environ:
            refuse_untold(named, f"{place}.", at_home(path).parent, given)
        services += _service(str(name), layers, place, problems)
    refuse([*dict.fromkeys(problems)], of=source)
    return ServicesAsked(source, at_home(path).parent, tuple(services), stock, budget)


def _service(
    name: str, layers: list[tuple[Mapping[str, Any], str]], place: str, problems: list[str]
) -> Iterator[ServiceAsked]:
    """The question of a service from the layers of its options; what is wrong goes to `problems`."""
    found = len(problems)
    own, merged = layers[1][0], {canonical(str(k)): v for layer, _ in layers for k, v in layer.items()}
    problems += [
        f"{place}.{key}: is all services' together; it stands beside `services:`"
        for key in own
        if canonical(str(key)) in SHARED
    ]
    problems += [f"{place}: {key}: {why}" for key, why in REFUSED.items() if merged.get(key)]
    if not {"cdf", "isl"} & {key for key, value in merged.items() if value is not None}:
        problems.append(
            f"{place}: has no traffic; cdf names a file or a shipped workload, isl and osl lengths; beside it a rate"
        )
    priority, hours = own.get("priority", 1), merged.get("hours")
    if not isinstance(priority, int) or isinstance(priority, bool) or priority < 0:
        problems.append(
            f"{place}.priority: must be a whole number, 0 or more (the lowest is served first), got {priority!r}"
        )
    if hours is not None and not isinstance(hours, str):
        problems.append(f"{place}.hours: expected a file or a shipped service, got {hours!r}")
    kept = [
        ({k: v for k, v in layer.items() if k != "hours" and (k != "priority" or layer is not own)}, where)
        for layer, where in layers
    ]
    try:
        inputs = PlanInputs.layered([({}, f"{place}: "), *kept])
    except InputError as error:
        problems += error.problems or (error.message,)
    else:
        if len(problems) == found:
            yield ServiceAsked(name, priority, inputs, hours)


def _read(what: str, read: Callable[[], Read], place: str, problems: list[str]) -> Read | None:
    """What a reader makes of a value; what is wrong with it goes to `problems`."""
    try:
        return read()
    except InputError as error:
        problems += [f"{place}{what}: {line.removeprefix(f'{what}: ')}" for line in error.problems or (error.message,)]
        return None


def _stock(given: Any) -> dict[str, int]:
    """GPUs there are, by their own names."""
    return {gpu(name).name: int(n) for name, n in OPTIONS["inventory"].kind.read(given or {}, "inventory").items()}


def _budget(given: Any) -> float | None:
    """The budget [USD/hour]."""
    usd = None if given is None else parse_number(given, "budget")
    if usd is not None and not usd > 0.0:
        raise InputError(f"budget: must be more than 0 USD/hour, got {given!r}")
    return usd
