"""Write planner/schemas/*.json, JSON Schemas of files and results, from the records themselves: ``python tools/schemas.py``.

One function makes them of a type: what a field may hold is its annotation, what it means is what the record's docstring says. A
record that writes itself in a way of its own is told by its fields, none of which it must have.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from planner.catalog.profiles import (
    COVERED_QUANTITIES,
    HOLDS,
    LARGEST_PARAMETER,
    READERS,
    SCHEMA,
    Profile,
    ReservedSlots,
)
from planner.choices import Choices
from planner.errors import InfeasibleError
from planner.machine.hardware import DTYPE_BYTES
from planner.machine.iteration import PARAMETER_UNITS
from planner.promise import Promise, Slo
from planner.question.options import OPTIONS, Option, PlanInputs, canonical
from planner.question.services import REFUSED, SHARED, ServiceAsked, ServicesAsked
from planner.shared.record import Record, spelled
from planner.units import MOST
from planner.workload.arrivals import Arrivals
from planner.workload.workload import Workload

ROOM = Path(__file__).resolve().parents[1] / "planner"
FOLDER = ROOM / "schemas"


class Described(typing.TypedDict):
    """What results and plans say of a workload."""

    schema_version: int
    name: str
    digest: str
    rows: int
    mean_input_tokens: float
    mean_output_tokens: float
    mean_total_tokens: float
    categories: Sequence[Mapping[str, str | float | None]]
    arrivals: Mapping[str, object]
    provenance: Mapping[str, object]
    sessions: typing.NotRequired[Mapping[str, object]]
    distribution: typing.NotRequired[Mapping[str, Sequence[float]]]


Schema = dict[str, Any]
PLAIN = {str: "string", bool: "boolean", int: "integer", type(None): "null"}
WORDS = {"Mapping": Mapping, "Sequence": Sequence, "Any": Any, "ClassVar": typing.ClassVar, "Promise": Promise}
WORDS |= {"Floats": Any}
"""What annotations name that no module has when it runs."""


class Fact(TypedDict):
    """A number and where it is from."""

    value: Any
    source: str


LISTINGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gpu-list": ("GPUs as rows.", {"gpus": Sequence[Mapping[str, Any]]}),
    "model-list": ("Models as rows.", {"models": Sequence[Mapping[str, Any]]}),
    "offer-list": ("Offers as rows.", {"offers": Sequence[Mapping[str, Any]]}),
    "catalog-entry": (
        "An entry of the catalog as rows.",
        {"kind": str, "name": str, "aliases": Sequence[str], "facts": Mapping[str, Fact]},
    ),
    "profile-list": ("Profiles as rows.", {"profiles": Sequence[Profile]}),
    "profile-comparison": ("Profiles to compare, the first being the base.", {"profiles": Sequence[Profile]}),
    "workload-list": (
        "Shipped workloads as rows.",
        {"workloads": Sequence[Workload], "profiles": Mapping[str, Arrivals]},
    ),
}
"""What the listings of planner/report/listings.py write: name of the schema -> what it is, and its keys."""


class GpuEntry(TypedDict):
    """A GPU of gpus.yaml, in the units its head states."""

    memory_gib: float
    bandwidth_gb_per_s: float
    tflops: Mapping[str, float]
    link_gb_per_s: float
    aliases: Sequence[str]
    sources: Sequence[str]
    gpus_per_node: NotRequired[int]
    gpu_class: NotRequired[str]
    sm_count: NotRequired[int]
    attention_kernel: NotRequired[str]
    node_link_gb_per_s: NotRequired[float]
    pair_gb_per_s: NotRequired[float]


class ModelEntry(TypedDict):
    """A file of models/: the config.json as published, where and when it was read, and other names."""

    source: str
    aliases: Sequence[str]
    config: Mapping[str, Any]
    parameters_billion: NotRequired[tuple[float, float]]
    repositories: NotRequired[Mapping[str, str]]


class Schemas:
    """Schemas of types, those of records kept apart by name.

    Parameters
    ----------
    infinite
        Whether a number may be ``null``, as results write what is infinite.
    """

    def __init__(self, infinite: bool) -> None:
        self.number: Schema = {"type": ["number", "null"] if infinite else "number"}
        self.definitions: dict[str, Schema] = {}
        self.known: dict[str, type] = {}

    def of(self, hint: Any) -> Schema:
        """Of any annotation."""
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if hint in PLAIN:
            return {"type": PLAIN[hint]}
        if hint is float:
            return self.number
        if origin in (typing.Union, types.UnionType):
            return any_of([self.of(one) for one in inner])
        if origin is typing.NotRequired:
            return self.of(inner[0])
        if origin is typing.Literal:
            return {"enum": list(inner)}
        if origin is tuple and inner[-1:] != (...,):
            return {
                "type": "array",
                "prefixItems": [self.of(one) for one in inner],
                "minItems": len(inner),
                "maxItems": len(inner),
            }
        if origin in (tuple, list, Sequence, Iterator):
            return {"type": "array", "items": self.of(inner[0])}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(inner[1])}
        if hint is Slo:
            return {"type": "array", "items": self.of(Promise)}
        if hint is PlanInputs:
            return options(self)
        if hint is Profile:
            return profile(self)
        if hint is Workload:
            return self.named(Described)
        if typing.is_typeddict(hint) or is_dataclass(hint):
            return self.named(hint)
        return {}

    def named(self, cls: type) -> Schema:
        """Of a record, by reference."""
        if self.known.setdefault(cls.__name__, cls) is not cls:
            raise TypeError(f"two records are called {cls.__name__}")
        if cls.__name__ not in self.definitions:
            self.definitions[cls.__name__] = {}  # one that holds itself ends here
            self.definitions[cls.__name__] = self.entry(cls) if typing.is_typeddict(cls) else self.record(cls)
        return {"$ref": f"#/$defs/{cls.__name__}"}

    def entry(self, cls: Any) -> Schema:
        """Of a mapping whose keys are all known."""
        hints = hints_of(cls)
        properties = {name: self.of(hint) for name, hint in hints.items()}
        return closed(
            properties, [name for name, hint in hints.items() if typing.get_origin(hint) is not typing.NotRequired]
        )

    def record(self, cls: Any) -> Schema:
        """Of a record that is written field by field; of another its fields, where it has them."""
        if cls is Promise:
            limits = {"limit_s": {"type": "number"}, "limits_s": self.of(Mapping[str, float])}
            told = {k: self.of(hint) for k, hint in hints_of(cls).items() if k in ("metric", "quantile", "scope")}
            return closed(told | limits, ["metric", "quantile"])
        hints, told = hints_of(cls), described(cls)
        own = getattr(cls, "to_dict", None)
        names = (getattr(cls, "written", ()) or [f.name for f in fields(cls) if f.repr]) if own else hints
        properties: dict[str, Schema] = {}
        for key, name in map(spelled, names):
            known = options(self) if name == "inputs" else self.of(hint_at(cls, name))
            properties[key] = known | ({"description": told[name]} if name in told and "$ref" not in known else {})
        regular = own is Record.to_dict
        if own and not issubclass(cls, Record):
            return {"type": "object"}
        return {"type": "object", "properties": properties} | ({"required": list(properties)} if regular else {})


def kinds(known: Schema) -> Sequence[str]:
    """The plain types a schema names."""
    named = known.get("type", ())
    return [named] if isinstance(named, str) else named


def any_of(found: list[Schema]) -> Schema:
    """Any of some schemas, in the shortest way."""
    found = [one for n, one in enumerate(found) if one not in found[:n]]
    if {} in found:
        return {}
    if all(set(one) == {"type"} for one in found):
        named = [*dict.fromkeys(kind for one in found for kind in kinds(one))]
        return {"type": named if len(named) > 1 else named[0]}
    return found[0] if len(found) == 1 else {"anyOf": found}


def closed(properties: Mapping[str, Schema], required: Sequence[str] = ()) -> Schema:
    """An object with these keys alone."""
    must = {"required": [*required]} if required else {}
    return {"type": "object", "properties": dict(properties), **must, "additionalProperties": False}


def modules() -> list[Any]:
    """The package's modules, without the command line and what wants an extra."""
    paths = [p.relative_to(ROOM.parent).with_suffix("").parts for p in sorted(ROOM.rglob("*.py"))]
    wanted = [
        parts
        for parts in paths
        if (parts[1] != "cli" or parts[2:] == ("doctor",)) and parts[1:] != ("compress", "gateway")
    ]
    return [import_module(".".join(parts).removesuffix(".__init__")) for parts in wanted]


CLASSES = {c for module in modules() for c in vars(module).values() if isinstance(c, type)}
TIMES = Counter(c.__name__ for c in CLASSES)
NAMES = {c.__name__: c for c in CLASSES if TIMES[c.__name__] == 1}
"""What annotations name that is imported for type checking only, where the name says which."""


def annotations(of: Any, module: str) -> dict[str, Any]:
    """Annotations of a record or a function, looked up in its module and then anywhere."""
    return typing.get_type_hints(of, NAMES | vars(import_module(module)) | WORDS, include_extras=True)


def hints_of(cls: Any) -> dict[str, Any]:
    """Annotations of the fields."""
    found = annotations(cls, cls.__module__)
    return {k: v for k, v in found.items() if typing.get_origin(v) is not typing.ClassVar}


def returned(cls: type, name: str) -> Any:
    """What a property or a method returns, or what a constant of the class is."""
    found = inspect.getattr_static(cls, name)
    if not isinstance(found, property) and not inspect.isfunction(found):
        return typing.get_args(annotations(cls, cls.__module__)[name])[0]
    return annotations(found.fget if isinstance(found, property) else found, cls.__module__)["return"]


def hint_at(cls: type, place: str) -> Any:
    """What lies at a place below a class; what may be nothing on the way may be nothing there."""
    first, _, rest = place.partition(".")
    hints = hints_of(cls)
    hint = hints[first] if first in hints else returned(cls, first)
    if not rest:
        return hint
    inner = typing.get_args(hint) or (hint,)
    return typing.Union[tuple(one if one is type(None) else hint_at(one, rest) for one in inner)]  # noqa: UP007


def described(cls: type) -> dict[str, str]:
    """What the docstring says of each field."""
    told: dict[str, str] = {}
    section = (inspect.getdoc(cls) or "").partition("Parameters\n----------\n")[2].split("\n\n")[0]
    for names, text in re.findall(r"^(\w[\w, ]*)\n((?:    .*(?:\n|$))+)", section, re.MULTILINE):
        told |= dict.fromkeys(re.split(r",\s*", names), " ".join(text.split()))
    return told


def option(made: Schemas, found: Option) -> Schema:
    """The value of an option as people write it, alone or in a list, as text, or nothing."""
    if found.choices:
        known: Schema = {"enum": [*found.choices, None]}
    else:
        # a promise that stands alone is a number or a text
        hint = eval(found.kind.python, WORDS | {"Promise": Promise | float | str})
        one = made.of(typing.get_args(hint)[0] if typing.get_origin(hint) is Sequence else hint)
        several = found.kind.many or found.kind.flag is list or typing.get_origin(hint) is Sequence
        known = any_of([one, *([{"type": "array", "items": one}] if several else []), {"type": ["string", "null"]}])
    return known | {"description": f"{found.told} [{found.kind.unit}]"}


def options(made: Schemas) -> Schema:
    """All options by their names, by reference."""
    if "Options" not in made.definitions:
        made.definitions["Options"] = {}
        known = {name: option(made, o) for o in OPTIONS.values() for name in (o.name, *o.aliases)}
        made.definitions["Options"] = closed(known)
    return {"$ref": "#/$defs/Options"}


def configuration(made: Schemas) -> Schema:
    """Options, and scenarios and classes of them."""
    each = {"type": ["object", "null"], "additionalProperties": options(made)}
    named = made.definitions.pop("Options")["properties"]
    made.definitions["Options"] = closed(named)
    return closed(named | {"scenarios": each, "classes": each})


def services_file(made: Schemas) -> Schema:
    """Services by name, and options of all of them, without those that its reader refuses there."""
    options(made)
    named = {k: v for k, v in made.definitions.pop("Options")["properties"].items() if canonical(k) not in REFUSED}
    asked, told = hints_of(ServiceAsked), described(ServiceAsked)
    hours = {"hours": made.of(asked["hours"]) | {"description": told["hours"]}}
    priority = {"priority": made.of(asked["priority"]) | {"minimum": 0, "description": told["priority"]}}
    own = {k: v for k, v in named.items() if canonical(k) not in SHARED}
    made.definitions["Service"] = closed(own | hours | priority)
    budget = {"type": ["number", "string", "null"], "exclusiveMinimum": 0}
    budget["description"] = described(ServicesAsked)["budget_usd_per_hour"]
    each = {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#/$defs/Service"}}
    return closed(named | hours | {"budget": budget, "services": each}, ["services"])


def profile(made: Schemas) -> Schema:
    """A profile's file: what its record holds, within the bounds its reader has."""
    hints, told = hints_of(Profile), described(Profile)
    must = [f.name for f in fields(Profile) if f.default is MISSING and f.default_factory is MISSING]
    low = dict.fromkeys(("tp", "pp", "dp", "ep"), 1)
    special = {
        "iteration": closed(
            {name: {"type": "number", "minimum": 0, "maximum": LARGEST_PARAMETER} for name in PARAMETER_UNITS}, ["t0"]
        ),
        "provenance": {"enum": [*HOLDS]},
        "covered": closed({name: made.of(tuple[float, float]) for name in COVERED_QUANTITIES}),
        "reserved": closed(
            {name: {"type": "number", "minimum": 1} for name in hints_of(ReservedSlots)}, [*hints_of(ReservedSlots)]
        ),
        **{name: {"enum": [*DTYPE_BYTES]} for name in ("weight_dtype", "kv_dtype")},
        **{name: {"type": ["string", "array"], "items": {"type": "string"}} for name in ("notes", "untested")},
    }
    properties: dict[str, Schema] = {"schema": {"const": SCHEMA}}
    for name, hint in hints.items():
        known = special.get(name) or made.of(hint)
        if READERS[name] is READERS["name"]:
            # YAML makes numbers of versions
            known = {"type": ["string", "number"], "pattern": r"\S"}
        elif {"integer", "number"} & {*kinds(known)}:
            known = known | {"minimum": low.get(name, 0), "maximum": MOST}
        known = known if name in must else any_of([known, {"type": "null"}])
        properties[name] = known | ({"description": told[name]} if name in told else {})
    return closed(properties, ["schema", *must])


def infeasible(made: Schemas) -> Schema:
    """What a plan says where no fleet keeps its promises: an exception, and so no record."""
    maybe = {
        name: any_of([made.of(cls), {"type": "null"}]) for name, cls in (("promise", Promise), ("choices", Choices))
    }
    head = {"schema_version": {"const": 1}, "kind": {"const": "fleetopt-infeasible"}, "message": {"type": "string"}}
    return closed(head | {"relaxations": made.of(list[str]), "best_s": made.number} | maybe, [*head, *maybe])


def results() -> Iterator[tuple[str, type[Record]]]:
    """Every record that is a document or a result of its own, by the name of its kind."""
    for cls in sorted({c for c in CLASSES if issubclass(c, Record)}, key=lambda c: c.__name__):
        if cls.document:
            yield cls.document.removeprefix("fleetopt-"), cls
        elif cls.versioned:
            yield re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower(), cls


def documents() -> dict[str, str]:
    """Name of each file -> its text."""
    found: dict[str, Schema] = {}
    for name, cls in results():
        made = Schemas(infinite=True)
        whole = made.record(cls)
        head: dict[str, Schema] = {"schema_version": {"const": cls.schema_version}}
        head |= {"kind": {"const": cls.document}, "version": {"type": "string"}} if cls.document else {}
        whole["properties"] = head | whole["properties"]
        whole["required"] = [*head, *whole.get("required", ())]
        found[f"{name}-{cls.schema_version}"] = complete(name, cls.schema_version, whole, made, first_line(cls))
    for name, (told, keys) in LISTINGS.items():
        made = Schemas(infinite=True)
        properties = {"schema_version": {"const": 1}} | {key: made.of(hint) for key, hint in keys.items()}
        whole = {"type": "object", "properties": properties, "required": list(properties)}
        found[f"{name}-1"] = complete(name, 1, whole, made, told)
    files = {
        "configuration-1": (configuration, "Options, scenarios and classes of a configuration file."),
        "services-file-1": (services_file, first_line(ServicesAsked)),
        "profile-1": (profile, first_line(Profile)),
        "workload-1": (lambda made: made.entry(Described) | {"additionalProperties": True}, first_line(Workload)),
        "infeasible-1": (infeasible, first_line(InfeasibleError)),
        "gpu-1": (lambda made: made.entry(GpuEntry), first_line(GpuEntry)),
        "model-1": (lambda made: made.entry(ModelEntry), first_line(ModelEntry)),
    }
    for key, (make, told) in files.items():
        made = Schemas(infinite=key.startswith(("workload", "infeasible")))
        name, _, version = key.rpartition("-")
        found[key] = complete(name, int(version), make(made), made, told)
    return {
        f"{key}.json": json.dumps(schema, indent=1, ensure_ascii=False) + "\n" for key, schema in sorted(found.items())
    }


def first_line(cls: type) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(cls) or "").partition("\n")[0]


def complete(name: str, version: int, schema: Schema, made: Schemas, told: str) -> Schema:
    """A schema with its head and what it refers to."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:fleetopt:{name}:{version}"}
    rest = {"$defs": dict(sorted(made.definitions.items()))} if made.definitions else {}
    return head | {"title": f"fleetopt {name}, version {version}", "description": told} | schema | rest


def main() -> None:
    """Write what differs, and say how large it is."""
    FOLDER.mkdir(exist_ok=True)
    made = documents()
    for path in FOLDER.glob("*.json"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"wrote {len(made)} schemas, {sum(map(len, made.values())):,} characters, to {FOLDER}")


if __name__ == "__main__":
    main()
