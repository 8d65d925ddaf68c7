"""Scheduling policies by name, and how to build one: a name of the table, or ``module:Class`` for the user's own."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import InputError, did_you_mean
from planner.simulate.engine import Policy

__all__ = ["ALIASES", "POLICIES", "PolicyEntry", "make_policy", "policy_entry"]


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One line of the table: where the class is, what it is, and whether the memory limit can reject a request."""

    target: str
    summary: str
    bounded_memory: bool = True


_HERE = "planner.simulate.policies."

POLICIES: Mapping[str, PolicyEntry] = {
    "request_level": PolicyEntry(_HERE + "request_level:RequestLevel", "request-level batching"),
    "prefill_first": PolicyEntry(_HERE + "prefill_first:PrefillFirst", "prefill first (vLLM v0)"),
    "mixed": PolicyEntry(_HERE + "mixed:Mixed", "mixed batching with a token budget (vLLM v1, Sarathi-Serve)"),
    "eb": PolicyEntry(_HERE + "eb:ExclusiveBatching", "exclusive batching EB(k)"),
    "eb_star": PolicyEntry(_HERE + "eb_star:AdaptiveExclusiveBatching", "exclusive batching with a controller, EB(k*)"),
    "eb_plus": PolicyEntry(_HERE + "eb_plus:EbPlus", "EB+, switching between mixed and exclusive"),
    "rad": PolicyEntry(_HERE + "rad:Rad", "resource-aware dynamic scheduling"),
    "cycle_prefill_all": PolicyEntry(_HERE + "cycle:CyclePrefillAll", "cycles with all prefills first"),
    "slai": PolicyEntry(_HERE + "slai:Slai", "SLO-aware inference, last schedulable times"),
    "wait": PolicyEntry(_HERE + "wait:Wait", "WAIT", bounded_memory=False),
    "nested_wait": PolicyEntry(_HERE + "nested_wait:NestedWait", "Nested WAIT", bounded_memory=False),
    "fcfs_restart": PolicyEntry(_HERE + "fcfs_restart:FcfsRestart", "greedy first come first served with restart"),
    "distserve": PolicyEntry(_HERE + "distserve:DecodeNode", "disaggregated prefill and decode nodes"),
}
"""The policies that ship."""

ALIASES: Mapping[str, str] = {
    "batch": "request_level",
    "vllm_v0": "prefill_first",
    "sarathi": "mixed",
    "vllm": "mixed",
    "vllm_v1": "mixed",
    "eb*": "eb_star",
    "eb+": "eb_plus",
    "cycle": "cycle_prefill_all",
    "disaggregated": "distserve",
}
"""Other names people use."""


PARAMETER_ALIASES: Mapping[str, str] = {"priority": "class_priority", "max_num_seqs": "slots", "b": "batch"}
"""Other names of parameters, used where the class has the second and not the first."""


def policy_entry(name: str) -> PolicyEntry:
    """The table's line for `name`, or one made for ``module:Class``."""
    key = ALIASES.get(name.lower().replace("-", "_"), name.lower().replace("-", "_"))
    if key in POLICIES:
        return POLICIES[key]
    if ":" in name:
        return PolicyEntry(name, name)
    raise InputError(
        f"policy {name!r} is not known{did_you_mean(name, [*POLICIES, *ALIASES])}",
        f"Known: {', '.join(POLICIES)}; or module:Class for your own.",
    )


def _load(target: str) -> Callable[..., Policy]:
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"policy {target!r}: cannot import {module_name}: {error}") from error
    found = getattr(module, attribute, None)
    if found is None:
        names = [n for n in vars(module) if not n.startswith("_")]
        raise InputError(f"policy {target!r}: {module_name} has no {attribute}{did_you_mean(attribute, names)}")
    if not callable(getattr(found, "schedule", None)):
        raise InputError(f"policy {target!r}: {attribute} has no method schedule(node)")
    factory: Callable[..., Policy] = found
    return factory


def make_policy(name: str, parameters: Mapping[str, Any], iteration: object = None) -> Policy:
    """Build the policy `name` from its parameters.

    Parameters
    ----------
    name
        A name of :data:`POLICIES`, an alias, or ``module:Class``.
    parameters
        Keyword arguments of the class.
    iteration
        Iteration-time model: a parameter of the class that is not given and has the name of one of its fields
        (``alpha_p``, ``beta_d``, ...) is taken from there.

    Examples
    --------
    >>> make_policy("sarathi", {"slots": 64, "token_budget": 512}).slots
    64
    """
    factory = _load(policy_entry(name).target)
    accepted = inspect.signature(factory).parameters
    free = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    arguments = {
        PARAMETER_ALIASES[k] if k not in accepted and PARAMETER_ALIASES.get(k) in accepted else k: value
        for k, value in parameters.items()
    }
    if iteration is not None:
        for key in accepted:
            if key not in arguments and key not in ("iteration",) and hasattr(iteration, key):
                arguments[key] = getattr(iteration, key)
    if not free:
        known = list(accepted)
        wrong = [f"{name}: {k!r} is not a parameter{did_you_mean(k, known)}" for k in arguments if k not in accepted]
        if wrong:
            raise InputError.from_problems(wrong, hint=f"Parameters of {name}: {', '.join(known) or 'none'}.")
    missing = [
        k
        for k, p in accepted.items()
        if p.default is inspect.Parameter.empty
        and p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        and k not in arguments
    ]
    if missing:
        raise InputError(f"{name}: needs {', '.join(missing)}")
    try:
        return factory(**arguments)
    except TypeError as error:
        raise InputError(f"{name}: {error}") from error
