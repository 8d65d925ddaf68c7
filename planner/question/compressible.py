"""The table of ``fleetopt compress measure`` as a plan reads it: share of each category that can be compressed, and the time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from planner.errors import InputError, refuse
from planner.shared.documents import parse_json, printable, read_text
from planner.shared.paths import at_home

SWITCHED = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def as_switch(value: Any) -> bool | None:
    """True or false, also as a word; ``None`` where it is neither."""
    return value if isinstance(value, bool) else SWITCHED.get(str(value).lower())


def read_measured(value: Any, name: str) -> bool | dict[str, Any]:
    """``true``, ``false``, a file of ``compress measure``, or what was kept of one.

    Returns
    -------
    bool or dict
        Of a file: ``boundary``, ``gamma``, ``source``, ``latency_s`` (quantiles and ``mean`` over all borderline prompts) and
        ``categories``: name -> ``borderline``, ``p_c``, ``p_c_low``, ``p_c_high``; all of them together are ``all``.
    """
    if (switched := as_switch(value)) is not None:
        return switched
    if isinstance(value, Mapping):
        return _kept(value, name)
    text = str(value)
    hint = "Make it: fleetopt compress measure --prompts FILE --boundary B --gamma G --format json -o measured.json"
    try:
        found = parse_json(read_text(path := at_home(text)), printable(text))
    except InputError as error:
        raise InputError(f"{error.message}; expected true, false or such a file", hint) from None
    if not isinstance(found, dict) or found.get("kind") != "fleetopt-compression":
        raise InputError(f"{text}: not a table of fleetopt compress measure", hint)
    try:
        total, rows = found["total"], found["categories"]
        table = {
            "boundary": found["boundary"],
            "gamma": found["gamma"],
            "source": path.name,
            "latency_s": total["latency_s"],
            "categories": {
                k: {"borderline": row["requests"], **{key: row[key] for key in ("p_c", "p_c_low", "p_c_high")}}
                for k, row in {**rows, "all": total}.items()
                if row["requests"]
            },
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{text}: incomplete ({error} is missing)", hint) from None
    if not table["categories"]:
        low, high = found["boundary"], found["gamma"] * found["boundary"]
        raise InputError(
            f"{text}: none of its prompts lies between {low:,} and {high:,.0f} tokens", "Measure where the boundary is."
        )
    return _kept(table, text)


def _kept(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The table, every share and time of it checked."""
    categories = table.get("categories")
    if not isinstance(categories, Mapping) or "all" not in categories:
        raise InputError(f"{name}: expected true, false, a file of compress measure, or its categories with `all`")
    problems = [
        f"{name}: {k} must be a positive number" for k in ("boundary", "gamma") if not _number(table.get(k), above=0.0)
    ]
    for category, row in categories.items():
        shares = [row.get(k) if isinstance(row, Mapping) else None for k in ("p_c_low", "p_c", "p_c_high")]
        if not all(_number(v, least=0.0, most=1.0) for v in shares) or shares != sorted(shares, key=float):  # type: ignore[arg-type]
            problems.append(f"{name}: categories.{category}: p_c and its interval must lie in [0, 1], in order")
    times = table.get("latency_s") or {}
    problems += [
        f"{name}: latency_s.{k} must be a time in s, got {v!r}" for k, v in times.items() if not _number(v, least=0.0)
    ]
    refuse(problems)
    return {k: table[k] for k in ("boundary", "gamma", "source", "latency_s", "categories") if k in table}


def _number(value: Any, above: float = -math.inf, least: float = -math.inf, most: float = math.inf) -> bool:
    """Whether it is a finite number in these limits."""
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return usable and value > above and least <= value <= most


def category_shares(measured: Mapping[str, Any], categories: Sequence[str], level: str = "point") -> dict[str, float]:
    """Probability that a prompt of each category can be compressed.

    Parameters
    ----------
    measured
        As :func:`read_measured` gives it.
    categories
        Of the workload.
    level
        ``point``, or ``low`` or ``high`` end of the 95% interval.

    Returns
    -------
    dict
        Category -> share [1]; a category that was not measured has that of all prompts.
    """
    key = {"point": "p_c", "low": "p_c_low", "high": "p_c_high"}[level]
    table = measured["categories"]
    return {name: float(table.get(name, table["all"])[key]) for name in categories}


def span_of(measured: Mapping[str, Any]) -> tuple[float, float, float]:
    """Low end, share and high end of all borderline prompts [1]."""
    row = measured["categories"]["all"]
    return row["p_c_low"], row["p_c"], row["p_c_high"]
