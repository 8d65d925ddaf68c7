"""The plan that a plan file records, read back as it was written: what a page about it needs without planning anew."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from planner.errors import InputError
from planner.plans import Plan
from planner.promise import GOODPUT, Promise, Slo
from planner.shared.documents import load_document
from planner.units import RATE_RULE, is_rate

_FINITE = (
    "low_tokens", "high_tokens", "share", "arrival_rate_per_s", "mean_input_tokens", "mean_output_tokens", "kv_tokens",
    "capacity_per_s", "load", "slot_occupancy", "cost_usd_per_hour",
)  # fmt: skip
"""Of a pool: only latencies may be infinite, which JSON writes as null."""


class _Unlike(Exception):
    """A value is not what its place takes."""


def recorded_plan(path: Any, promises: Sequence[Promise]) -> Plan | None:
    """The plan of a plan file; ``None`` where the file holds no whole record: a configuration, or a plan of another version.

    Parameters
    ----------
    path
        A file that :func:`planner.question.files.load_question` took.
    promises
        Of its question.

    Raises
    ------
    InputError
        The pools do not add up to what the file says of the fleet: someone changed them by hand.
    """
    data = load_document(path)
    if not isinstance(data, Mapping) or data.get("kind") != "fleetopt-plan":
        return None
    choices = data.get("choices")
    try:
        fleet = {"cost_usd_per_hour": data["cost_usd_per_hour"], "gpus": data["gpus"]}
        told = {**data, "slo": Slo(promises=tuple(promises)), "choices": {**choices, **fleet} if choices else None}
        plan: Plan = _read(Plan, told)
    except (_Unlike, KeyError, TypeError):
        return None
    if missing := [
        f"{path}: pools[{k}].{name}: is no number"
        for k, pool in enumerate(plan.pools)
        for name in _FINITE
        if not math.isfinite(getattr(pool, name))
    ] + [f"{path}: arrival_rate_per_s: {RATE_RULE}"] * (not is_rate(plan.arrival_rate_per_s)):
        raise InputError.from_problems(missing)
    sums = (plan.replicas, plan.gpus, plan.cost_usd_per_hour)
    stated = (data.get("replicas"), data["gpus"], data["cost_usd_per_hour"])
    if sums[:2] != stated[:2] or not math.isclose(sums[2], stated[2], rel_tol=1e-9):
        raise InputError(
            f"{path}: its pools have {sums[0]} replicas and {sums[1]} GPUs for ${sums[2]:,.2f}/hour, its totals say "
            f"{stated[0]}, {stated[1]} and ${stated[2]:,.2f}: changed by hand",
            "Judge such a fleet with fleetopt evaluate or what-if, or plan again.",
        )
    return plan


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(kind: Any, value: Any) -> Any:
    """A value as its annotation wants it; JSON has no infinity, so ``None`` is one where a number must stand."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and type(None) in parts:
            return None
        return _read(next(p for p in parts if p is not type(None)), value)
    if kind is Promise:
        return _promise(value)
    if is_dataclass(kind) and isinstance(kind, type):
        return value if isinstance(value, kind) else _record(kind, value)
    if origin is tuple and isinstance(value, (list, tuple)):
        inner = [parts[0]] * len(value) if parts[1:] == (...,) else [*parts]
        return tuple(_read(p, v) for p, v in zip(inner, value, strict=True))
    if kind is float:
        if value is None:
            return math.inf
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    elif origin is not None and isinstance(value, Mapping):
        return {k: _read(parts[1], v) for k, v in value.items()}
    elif kind in (object, Any) or (isinstance(kind, type) and isinstance(value, kind)):
        return value
    raise _Unlike(kind)


def _record(kind: type, value: Any) -> Any:
    """A record by its fields; one that has a default may be missing."""
    if not isinstance(value, Mapping):
        raise _Unlike(kind)
    found = {}
    for f in fields(kind):
        if f.name in value:
            found[f.name] = _read(_hints(kind)[f.name], value[f.name])
        elif f.default is MISSING and f.default_factory is MISSING:
            raise _Unlike(f.name)
    return kind(**found)


def _promise(value: Any) -> Promise:
    """A promise as its own :meth:`~planner.promise.Promise.to_dict` writes it."""
    if not isinstance(value, Mapping):
        raise _Unlike(Promise)
    if value.get("metric") == GOODPUT:
        return Promise.joint(value["limits_s"], value["quantile"], value["scope"])
    return Promise(**value)
