"""Scheduling policies as records: one file each in ``policies/``, found there by name; or ``module:Class`` for the user's own."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from planner.errors import InputError, did_you_mean, refuse, refuse_unknown
from planner.papers import policies
from planner.predict.engine import Request, by_arrival, by_prompt

if TYPE_CHECKING:
    from planner.machine.iteration import IterationModel
    from planner.predict.engine import Policy


@dataclass(frozen=True, slots=True)
class Situation:
    """What a policy's default parameters are chosen for.

    Parameters
    ----------
    slots, token_budget
        Sequences and tokens per iteration of the engine.
    model
        Its iteration-time model.
    mean_input, mean_output
        Mean lengths [tokens].
    rate_per_s
        Arrivals at a replica [1/s].
    strict_share
        Share of requests in the stricter of two classes.
    """

    slots: int
    token_budget: int
    model: IterationModel
    mean_input: float
    mean_output: float
    rate_per_s: float
    strict_share: float = 0.0

    @property
    def mean_context(self) -> float:
        """Mean context of a decode [tokens]."""
        return self.mean_input + 0.5 * self.mean_output


Defaults = Callable[[Situation], dict[str, Any]]
"""A policy's default parameters."""


def as_engine(**parameters: str | float) -> Defaults:
    """Default parameters that are fields of the situation, by their names, or numbers."""
    return lambda situation: {
        name: getattr(situation, value) if isinstance(value, str) else value for name, value in parameters.items()
    }


NONE = as_engine()


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One scheduling policy; the attribute ``POLICY`` of its file.

    Parameters
    ----------
    summary
        What it is, in a few words.
    factory
        Builds it from its parameters: a class with a method ``schedule(node)``.
    defaults
        Parameters that suit a situation; what the user gives replaces them.
    aliases
        Other names people use.
    bounded_memory
        Whether the memory limit can reject a request (not where peak memory is a result).
    """

    summary: str
    factory: Callable[..., Policy]
    defaults: Defaults = NONE
    aliases: tuple[str, ...] = ()
    bounded_memory: bool = True


PARAMETER_ALIASES: Mapping[str, str] = {"priority": "class_priority", "max_num_seqs": "slots", "b": "batch"}
"""Other names of parameters, used where the class has the second and not the first."""


def policy_names() -> tuple[str, ...]:
    """Names of the policies that ship: those of the files in ``policies/``."""
    return tuple(sorted(m.name for m in iter_modules(policies.__path__)))


def _shipped(name: str) -> PolicyEntry:
    """The record of a file in ``policies/``."""
    entry: PolicyEntry = importlib.import_module(f"{policies.__name__}.{name}").POLICY
    return entry


@cache
def _aliases() -> Mapping[str, str]:
    """Other name -> name."""
    return {alias: name for name in policy_names() for alias in _shipped(name).aliases}


def find_policy(name: str) -> PolicyEntry:
    """The policy called `name`, or one made of ``module:Class``.

    >>> find_policy("sarathi").summary
    'mixed batching with a token budget (vLLM v1, Sarathi-Serve)'
    """
    key, names = name.lower().replace("-", "_"), policy_names()
    if key in names or key in _aliases():
        return _shipped(key if key in names else _aliases()[key])
    if ":" in name:
        return PolicyEntry(name, _own_class(name))
    raise InputError(
        f"policy {name!r} is not known{did_you_mean(name, [*names, *_aliases()])}",
        f"Known: {', '.join(names)}; or module:Class for your own.",
    )


def _own_class(target: str) -> Callable[..., Policy]:
    """The class named by ``module:Class``."""
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
        A name of :func:`policy_names`, an alias, or ``module:Class``.
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
    factory = find_policy(name).factory
    accepted = _parameters(factory)
    arguments = {
        PARAMETER_ALIASES[k] if k not in accepted and PARAMETER_ALIASES.get(k) in accepted else k: value
        for k, value in parameters.items()
    }
    for key in accepted:
        if key not in arguments and hasattr(iteration, key):
            arguments[key] = getattr(iteration, key)
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values()):
        wrong = [f"{name}: {k!r} is not a parameter{did_you_mean(k, accepted)}" for k in arguments if k not in accepted]
        refuse(wrong, hint=f"Parameters of {name}: {', '.join(accepted) or 'none'}.")
    try:
        inspect.signature(factory).bind(**arguments)
        return factory(**arguments)
    except TypeError as error:
        raise InputError(f"{name}: {error}", f"Parameters of {name}: {', '.join(accepted)}.") from error


def _parameters(factory: Any) -> dict[str, inspect.Parameter]:
    """Parameters of a class, and of its ``rest``, which is given the further ones."""
    own = dict(inspect.signature(factory).parameters)
    if not hasattr(factory, "rest"):
        return own
    return {k: p for k, p in own.items() if p.kind is not p.VAR_KEYWORD} | _parameters(factory.rest)


def queue_order(order: str, class_priority: bool = False) -> Callable[[Request], tuple[float, ...]]:
    """Key of the waiting queue: ``"fcfs"`` or ``"spf"`` (shortest prompt first), smaller class first with `class_priority`."""
    orders = {"fcfs": by_arrival, "spf": by_prompt}
    refuse_unknown("order:", str(order), orders)
    key = orders[order]
    return (lambda r: (r.category, *key(r))) if class_priority else key


def at_least(name: str, value: float, low: float, whole: bool = True) -> float:
    """`value` if it is a number >= `low` (whole unless told; infinite allowed), otherwise an InputError naming it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) or value < low:
        raise InputError(f"{name} must be a number >= {low:g}, got {value!r}")
    if whole and math.isfinite(value):
        if value != int(value):
            raise InputError(f"{name} must be a whole number, got {value!r}")
        return int(value)
    return float(value)


def fraction(name: str, value: float) -> float:
    """`value` if it lies in [0, 1], otherwise an InputError naming it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise InputError(f"{name} must lie in [0, 1], got {value!r}")
    return float(value)
