"""Files that hold a question: a configuration with scenarios, or a plan written earlier. YAML or JSON, checked whole."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from planner.errors import InputError, refuse, unknown
from planner.plans import Plan, SavedPool
from planner.promise import Promise, Slo
from planner.question.compiled import shaped
from planner.question.options import OPTIONS, WRITTEN_LIMITS, PlanInputs, canonical
from planner.question.values import PROMISES
from planner.shared.documents import load_document, printable
from planner.shared.kept import once
from planner.shared.paths import READ, at_home, outside
from planner.units import RATE_RULE, is_rate
from planner.workload.resolve import is_address, shown
from planner.workload.workload import Workload


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
        own = name == self.options.get("cdf")
        if "rows" in self.workload and own:
            from planner.workload.writer import carried_workload

            return carried_workload(self.workload, f"{self.source}: workload")
        beside = self.folder / name if self.folder is not None else None
        path = str(beside if beside is not None and beside.is_file() else name)
        if own and self.pools and self.folder is not None and outside(path, self.folder):
            return self._from_elsewhere(path)
        return _read(path)

    def _from_elsewhere(self, path: str) -> Workload:
        """The traffic of a plan, which may be of anybody's making, where it names a place outside its folder.

        No address is asked because a file names it; a file is read as what the plan was made of, or not a word is told of it.
        """
        hint = f"Other traffic is given with --cdf, where a command takes it, or put in the plan's folder or one of {READ}."
        if is_address(path):
            raise InputError(
                f"{self.source}: does not carry its traffic, and {shown(path)} is not asked unless told", hint
            )
        try:
            found = _read(path)
            same = shaped(self.inputs(), found)[0].digest == self.workload.get("digest")
        except InputError:
            same = False
        if not same:
            told = f"{self.source}: {printable(path)}, outside its folder, is not the traffic it was made of"
            raise InputError(told, hint)
        return found

    def refuse_untold(self, options: Mapping[str, Any], told: Collection[str]) -> None:
        """Refuse what a plan would have read outside its folder, of its traffic :meth:`traffic` is the judge; and a configuration,
        the question of whoever asks, where :data:`planner.shared.paths.READ` says what is read."""
        if self.folder is not None and (self.pools or READ in os.environ):
            known = {canonical(name) for name in told} | ({"cdf"} if self.pools else set())
            refuse_untold(options, f"{self.source}: ", self.folder, known)

    def inputs(
        self,
        scenario: str | None = None,
        changes: Mapping[str, Any] | None = None,
        told: Collection[str] = (),
    ) -> PlanInputs:
        """Defaults < file < scenario < `changes`, checked together; `told` are options that will be changed besides."""
        if self.classes:
            raise InputError(
                f"{self.source}: has classes of requests, which are planned together",
                "Plan them: fleetopt plan --config FILE, in Python plan_tiers.",
            )
        layers = [(self.options, f"{self.source}: ")]
        if scenario is not None:
            if scenario not in self.scenarios:
                raise unknown(f"{self.source}: no scenario {scenario!r}", scenario, self.scenarios, "Scenarios")
            layers.append((self.scenarios[scenario], f"{self.source}: scenarios.{scenario}."))
        given = {canonical(name) for name in (*(changes or ()), *told)}
        self.refuse_untold(dict(item for layer, _ in layers for item in layer.items()), given)
        # a table is read with the options: not one that another takes the place of
        gone = {"compress"} & given | {k for name in given for k in INSTEAD.get(name, ())} - given
        layers = [({k: v for k, v in layer.items() if k not in gone}, at) for layer, at in layers]
        return PlanInputs.layered([*layers, (changes or {}, "")])


_BY_RATE, _BY_USERS = ("rate", "throughput", "rate_is"), ("users", "think_time", "requests_per_hour")
INSTEAD: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_BY_RATE[:2], (*_BY_USERS, "concurrency")),
    "users": (*_BY_RATE, "concurrency"),
    "think_time": (*_BY_RATE, "concurrency", "requests_per_hour"),
    "requests_per_hour": (*_BY_RATE, "concurrency", "think_time"),
    "concurrency": (*_BY_RATE, *_BY_USERS),
}
"""What says how often requests come -> what a file says of that, whose place it takes."""


def _read(path: str) -> Workload:
    """The workload of a file, read once for questions that belong together."""
    return once(("workload", path), lambda: Workload.from_file(path))


def refuse_untold(options: Mapping[str, Any], where: str, folder: Path, told: Collection[str] = ()) -> None:
    """Refuse what options in a file of anybody's making, that lies in `folder`, would have read elsewhere.

    Parameters
    ----------
    options
        Under their own names.
    where
        Prefix of their key paths.
    folder
        Of the file.
    told
        Options that whoever asks has given otherwise.

    Raises
    ------
    InputError
        It says how it is told.
    """
    for key in PATHS:
        value = options.get(key)
        if key in told or not isinstance(value, str):
            continue
        far = next((file for file in _read_of(key, value, folder) if outside(file, folder)), None)
        if far is not None:
            at = shown(value) if is_address(value) else value
            place = at.rpartition("/")[0] if is_address(value) else Path(far).resolve().parent
            flag = f", or {OPTIONS[key].spellings[0]} where the command takes it" if key in OPTIONS else ""
            raise InputError(
                f"{where}{key}: {printable(at)} is outside the folder of the file that names it, and not read unless told: "
                f"{READ}={place} in the environment{flag}"
            )


PATHS = ("cdf", "model", "profile", "compress", "speculate", "hours")
"""Options that may name files."""


def _read_of(key: str, value: str, folder: Path) -> Iterator[str | Path]:
    """Every file that an option may have read: beside the file that gives it, or where one is."""
    if key == "speculate":
        from planner.machine.speculation import Speculation

        try:
            key, value = "model", Speculation.parse(value).draft_model
        except InputError:
            return
    if is_address(value):
        yield value
        return
    for file in (at_home(value), folder / value):
        yield file
        if key == "model" and os.path.exists(file):
            yield from (at / name for at in (file, file.parent) for name in ("config.json", "hf_quant_config.json"))


def saved_pools(plan: Plan) -> tuple[SavedPool, ...]:
    """The pools of a plan as its file would state them."""
    return tuple(SavedPool(**{f.name: getattr(p, f.name) for f in fields(SavedPool)}) for p in plan.pools)


def engines_of(pools: Sequence[SavedPool]) -> dict[str, Any]:
    """Options that leave a search nothing but the engines and boundaries of these pools."""
    named: dict[str, Any] = {
        "gpu": list(dict.fromkeys(p.gpu for p in pools)),
        "tp_options": sorted({p.tp for p in pools}),
        "token_budget": sorted({p.token_budget for p in pools}),
        "pools": len(pools),
    }
    spread = {(p.pp, p.dp, p.ep) for p in pools}
    if len(spread) == 1 and spread != {(1, 1, 1)}:
        named |= dict(zip(("pp", "dp", "ep"), spread.pop(), strict=True))
    if len(pools) > 1 and pools[0].high_tokens < pools[-1].high_tokens:
        # pools by length; prefill and decode pools serve the same requests
        named |= {
            "boundaries": sorted({p.high_tokens for p in pools})[:-1],
            "gammas": sorted({p.gamma for p in pools[:-1]}),
        }
    return named


def question_of(plan: Plan) -> Question:
    """A plan in memory as its file would be read."""
    return Question(dict(plan.inputs), {}, {}, saved_pools(plan), "plan", None, plan.workload)


TRAFFIC = (".csv", ".jsonl", ".parquet", ".gz", ".tsv")
"""What files of requests are called, and no settings are."""


def load_question(path: str | Path) -> Question:
    """Read a configuration or a plan.

    Raises
    ------
    InputError
        Missing, not YAML or JSON, another schema version, unknown keys anywhere: all problems with their key path.
    """
    file = at_home(path)
    if file.suffix.lower() in TRAFFIC:
        raise InputError(
            f"{path}: traffic, not a plan or a configuration; it is given as --cdf {path}",
            f"A plan for it: fleetopt plan --cdf {path} --slo 0.5 -o plan.yaml",
        )
    data = load_document(
        path,
        f"A plan or a configuration is read from there. A plan: fleetopt plan --cdf azure --slo 0.5 -o {shlex.quote(file.name)}; "
        "a configuration: options as `name: value` lines.",
    )
    if not isinstance(data, Mapping):
        raise InputError(f"{path}: expected options as `name: value` lines, got {type(data).__name__}")
    if data.get("kind") == "fleetopt-plan":
        return _plan(data, str(path), file.parent)
    return _configuration(data, str(path), file.parent)


def _configuration(data: Mapping[Any, Any], source: str, folder: Path) -> Question:
    """Options, scenarios and classes of a configuration file, all problems at once."""
    if "services" in data:
        raise InputError(
            f"{source}: has services, which are planned together", "Plan them: fleetopt plan --services FILE."
        )
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
            problems += _check(overrides, f"{source}: {section}.{name}.", folder)
            named[section][str(name)] = {canonical(str(k)): v for k, v in overrides.items()}
    written = {k: v for k, v in data.items() if k not in named}
    for options in (written, *named["scenarios"].values(), *named["classes"].values()):
        measured = options.get("compress")
        if isinstance(measured, str) and (folder / measured).is_file():
            options["compress"] = str(folder / measured)
    problems += _check(written, f"{source}: ", folder)
    options = {canonical(str(k)): v for k, v in written.items()}
    refuse(problems, of=source)
    return Question(options, named["scenarios"], named["classes"], (), source, folder)


def _check(options: Mapping[Any, Any], where: str, folder: Path, complete: bool = False) -> list[str]:
    """What is wrong with options; those of a scenario or a class need no promise of their own."""
    measured = options.get("compress")
    if isinstance(measured, str) and outside(measured, folder):
        # which is read when the question is put, if it is told
        options = {name: value for name, value in options.items() if name != "compress"}
    promised = complete or any(k in options for k in WRITTEN_LIMITS)
    try:
        PlanInputs.from_dict({**({} if promised else {"slo": 1.0}), **options}, where)
    except InputError as error:
        return list(error.problems or (error.message,))
    return []


def _plan(data: Mapping[Any, Any], source: str, folder: Path) -> Question:
    """The question a plan file answers, with the pools that stand."""
    version = data.get("schema_version")
    if version not in (1, Plan.schema_version):
        raise InputError(
            f"{source}: schema_version {version!r}; this version of fleetopt reads 1 and {Plan.schema_version}",
            "Plan again with this version.",
        )
    problems: list[str] = []
    options = data.get("inputs")
    if isinstance(options, Mapping):
        # what a plan was sized with is written in it; what it does not name was so in the first version
        options = {**_FIRST_VERSION, **options}
        problems += _check(options, f"{source}: inputs.", folder, complete=True)
    else:
        problems.append(f"{source}: inputs: expected options")
    entries = data.get("pools")
    if not isinstance(entries, list) or not entries:
        problems.append(f"{source}: pools: expected a list of pools")
        entries = []
    pools = [_saved_pool(entry, f"{source}: pools[{index}]", problems) for index, entry in enumerate(entries)]
    refuse(problems, of=source)
    workload = data.get("workload")
    carried = workload if isinstance(workload, Mapping) else {}
    named = {canonical(str(k)): v for k, v in cast("Mapping[Any, Any]", options).items()}
    return Question(named, {}, {}, tuple(p for p in pools if p), source, folder, carried)


_FIRST_VERSION: Mapping[str, Any] = {"routing": "random", "route_on": "total", "kv": "paged", "confidence": 0.5}
"""Choices of the first version that are others by now."""

_NAME = re.compile("[A-Za-z0-9][-A-Za-z0-9 ]{0,39}")
_WORDS = {"str": "text", "float": "a number", "int": "a whole number"}


def _saved_pool(entry: Any, place: str, problems: list[str]) -> SavedPool | None:
    """A pool of a plan file; what is wrong with it goes to `problems`."""
    if not isinstance(entry, Mapping):
        problems.append(f"{place}: expected a pool")
        return None
    settings = entry.get("settings")
    budget = settings.get("max_num_batched_tokens") if isinstance(settings, Mapping) else None
    found = len(problems)
    values: dict[str, Any] = {}
    for f in fields(SavedPool):
        key, value = f.name, entry.get(f.name, None if f.default is MISSING else f.default)
        if key == "token_budget":
            key, value = "settings.max_num_batched_tokens", budget
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        whole = number and f.type == "int" and value == int(value or 0)
        if not (isinstance(value, str) if f.type == "str" else whole or (number and f.type == "float")):
            problems.append(f"{place}.{key}: expected {_WORDS[str(f.type)]}, got {value!r}")
        elif f.name == "name" and not _NAME.fullmatch(str(value)):
            # it becomes the name of files, and a word of commands
            told = f"{printable(str(value))!r} is no name of a pool: letters, digits, blanks and -, at most 40"
            problems.append(f"{place}.name: {told}")
        elif whole and f.name != "spares" and value < 1:
            problems.append(f"{place}.{key}: must be at least 1, got {value}")
        else:
            values[f.name] = int(value) if whole else value
    return SavedPool(**values) if len(problems) == found else None


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
        plan: Plan = _as(Plan, told)
    except (_Unlike, KeyError, TypeError, InputError):
        return None
    missing = [
        f"{path}: pools[{k}].{name}: is no number"
        for k, pool in enumerate(plan.pools)
        for name in _FINITE
        if not math.isfinite(getattr(pool, name))
    ] + [f"{path}: arrival_rate_per_s: {RATE_RULE}"] * (not is_rate(plan.arrival_rate_per_s))
    refuse(missing)
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


def _as(kind: Any, value: Any) -> Any:
    """A value as its annotation wants it; JSON has no infinity, so ``None`` is one where a number must stand."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and type(None) in parts:
            return None
        return _as(next(p for p in parts if p is not type(None)), value)
    if kind is Promise:
        return PROMISES.read([value], "promise")[0]
    if is_dataclass(kind) and isinstance(kind, type):
        return value if isinstance(value, kind) else _record(kind, value)
    if origin is tuple and isinstance(value, (list, tuple)):
        inner = [parts[0]] * len(value) if parts[1:] == (...,) else [*parts]
        return tuple(_as(p, v) for p, v in zip(inner, value, strict=True))
    if kind is float:
        if value is None:
            return math.inf
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    elif origin is not None and isinstance(value, Mapping):
        return {k: _as(parts[1], v) for k, v in value.items()}
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
            found[f.name] = _as(_hints(kind)[f.name], value[f.name])
        elif f.default is MISSING and f.default_factory is MISSING:
            raise _Unlike(f.name)
    return kind(**found)
