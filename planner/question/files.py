"""Files that hold a question: a configuration with scenarios, or a plan written earlier. YAML or JSON, checked whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.documents import load_document
from planner.errors import InputError, did_you_mean
from planner.plans import PLAN_SCHEMA_VERSION, Plan
from planner.question.options import PlanInputs, canonical
from planner.workload.workload import Workload

__all__ = ["Question", "SavedPool", "load_question", "question_of", "saved_pools"]


@dataclass(frozen=True, slots=True)
class SavedPool:
    """A pool as a plan file states it: what `evaluate`, `simulate` and `schedule` rebuild it from.

    Parameters
    ----------
    name
        As in the plan.
    low_tokens, high_tokens, gamma
        Requests served, compression into the pool.
    gpu, tp, profile
        Replica.
    replicas, spares
        Replicas bought, and how many of them are redundancy.
    slots, token_budget
        Engine settings.
    """

    name: str
    low_tokens: float
    high_tokens: float
    gamma: float
    gpu: str
    tp: int
    profile: str
    replicas: int
    spares: int
    slots: int
    token_budget: int


@dataclass(frozen=True, slots=True)
class Question:
    """The content of a configuration or plan file.

    Parameters
    ----------
    options
        Options under their own names.
    scenarios
        Name -> options that differ from the base.
    classes
        Name -> options of a class of requests; empty when there is one kind.
    pools
        The fleet, when the file is a plan; empty otherwise.
    source
        Name of the file.
    folder
        Where it lies: a workload named in it is looked for there first; ``None`` = not in a file.
    workload
        What a plan says of its traffic, with the rows themselves where they are in no file.
    """

    options: Mapping[str, Any]
    scenarios: Mapping[str, Mapping[str, Any]]
    classes: Mapping[str, Mapping[str, Any]]
    pools: tuple[SavedPool, ...]
    source: str
    folder: Path | None
    workload: Mapping[str, Any] = field(default_factory=dict)

    def traffic(self, name: str) -> Workload:
        """A workload by its name: the one the plan carries, else beside the file, else as the user would name it."""
        if "rows" in self.workload and name == self.options.get("cdf"):
            from planner.workload.carried import carried_workload

            return carried_workload(self.workload, f"{self.source}: workload")
        beside = self.folder / name if self.folder is not None else None
        return Workload.from_file(beside if beside is not None and beside.is_file() else name)

    def inputs(self, scenario: str | None = None, changes: Mapping[str, Any] | None = None) -> PlanInputs:
        """Defaults < file < scenario < `changes`, checked together."""
        layers = [(self.options, f"{self.source}: ")]
        if scenario is not None:
            if scenario not in self.scenarios:
                known = ", ".join(self.scenarios) or "none"
                raise InputError(
                    f"{self.source}: no scenario {scenario!r}{did_you_mean(scenario, self.scenarios)}",
                    f"Scenarios: {known}.",
                )
            layers.append((self.scenarios[scenario], f"{self.source}: scenarios.{scenario}."))
        return PlanInputs.layered([*layers, (changes or {}, "")])


def saved_pools(plan: Plan) -> tuple[SavedPool, ...]:
    """The pools of a plan as its file would state them."""
    return tuple(
        SavedPool(
            p.name,
            p.low_tokens,
            p.high_tokens,
            p.gamma,
            p.gpu,
            p.tp,
            p.profile,
            p.replicas,
            p.spares,
            p.slots,
            p.settings.max_num_batched_tokens,
        )
        for p in plan.pools
    )


def question_of(plan: Plan) -> Question:
    """A plan in memory as its file would be read."""
    return Question(dict(plan.inputs), {}, {}, saved_pools(plan), "plan", None, plan.workload)


def load_question(path: str | Path) -> Question:
    """Read a configuration or a plan.

    Raises
    ------
    InputError
        Missing, not YAML or JSON, another schema version, unknown keys anywhere: all problems with their key path.
    """
    file = Path(path).expanduser()
    data = load_document(path)
    if not isinstance(data, Mapping):
        raise InputError(f"{path}: expected options as `name: value` lines, got {type(data).__name__}")
    if data.get("kind") == "fleetopt-plan":
        return _plan(data, str(path), file.parent)
    return _configuration(data, str(path), file.parent)


def _configuration(data: Mapping[Any, Any], source: str, folder: Path) -> Question:
    problems: list[str] = []
    named: dict[str, dict[str, dict[str, Any]]] = {}
    for section in ("scenarios", "classes"):
        entries = data.get(section) or {}
        if not isinstance(entries, Mapping):
            problems.append(f"{source}: {section}: expected `name: options`, got {type(entries).__name__}")
            entries = {}
        named[section] = {}
        for name, overrides in entries.items():
            if not isinstance(overrides, Mapping):
                problems.append(f"{source}: {section}.{name}: expected options, got {type(overrides).__name__}")
                continue
            problems += _check(overrides, f"{source}: {section}.{name}.", complete=False)
            named[section][str(name)] = {canonical(str(k)): v for k, v in overrides.items()}
    written = {k: v for k, v in data.items() if k not in named}
    problems += _check(written, f"{source}: ", complete=False)
    options = {canonical(str(k)): v for k, v in written.items()}
    if problems:
        raise InputError.from_problems(
            problems, heading=None if len(problems) == 1 else f"{source}: {len(problems)} problems"
        )
    return Question(options, named["scenarios"], named["classes"], (), source, folder)


def _check(options: Mapping[Any, Any], where: str, complete: bool) -> list[str]:
    """What is wrong with options; those of a scenario or a class need no promise of their own."""
    filler = {} if complete or any(k in options for k in ("slo", "ttft", "tpot", "e2e", "promises")) else {"slo": 1.0}
    try:
        PlanInputs.from_dict({**filler, **options}, where)
    except InputError as error:
        return list(error.problems or (error.message,))
    return []


_POOL_FIELDS: Mapping[str, type] = {
    "name": str,
    "low_tokens": float,
    "high_tokens": float,
    "gamma": float,
    "gpu": str,
    "tp": int,
    "profile": str,
    "replicas": int,
    "spares": int,
    "slots": int,
}


def _plan(data: Mapping[Any, Any], source: str, folder: Path) -> Question:
    version = data.get("schema_version")
    if version != PLAN_SCHEMA_VERSION:
        raise InputError(
            f"{source}: schema_version {version!r}; this version of fleetopt reads {PLAN_SCHEMA_VERSION}",
            "Plan again with this version.",
        )
    problems: list[str] = []
    options = data.get("inputs")
    if not isinstance(options, Mapping):
        problems.append(f"{source}: inputs: expected options")
        options = {}
    else:
        problems += _check(dict(options), f"{source}: inputs.", complete=True)
    pools = []
    entries = data.get("pools")
    if not isinstance(entries, list) or not entries:
        problems.append(f"{source}: pools: expected a list of pools")
        entries = []
    for index, entry in enumerate(entries):
        place = f"{source}: pools[{index}]"
        if not isinstance(entry, Mapping):
            problems.append(f"{place}: expected a pool")
            continue
        values: dict[str, Any] = {}
        for key, kind in _POOL_FIELDS.items():
            value = entry.get(key)
            good = (
                isinstance(value, (int, float)) and not isinstance(value, bool)
                if kind is not str
                else isinstance(value, str)
            )
            if not good or value is None or (kind is int and value != int(value)):
                problems.append(f"{place}.{key}: expected {_WORDS[kind]}, got {value!r}")
            else:
                values[key] = kind(value)
        settings = entry.get("settings")
        budget = settings.get("max_num_batched_tokens") if isinstance(settings, Mapping) else None
        if not isinstance(budget, int) or budget < 1:
            problems.append(
                f"{place}.settings.max_num_batched_tokens: expected a positive whole number, got {budget!r}"
            )
            budget = 1
        for key in ("replicas", "slots", "tp"):
            if values.get(key, 1) < 1:
                problems.append(f"{place}.{key}: must be at least 1, got {values[key]}")
        if not problems:
            pools.append(SavedPool(**values, token_budget=budget))
    if problems:
        raise InputError.from_problems(
            problems, heading=None if len(problems) == 1 else f"{source}: {len(problems)} problems"
        )
    workload = data.get("workload")
    return Question(
        dict(options), {}, {}, tuple(pools), source, folder, workload if isinstance(workload, Mapping) else {}
    )


_WORDS = {str: "text", float: "a number", int: "a whole number"}
