"""Which profile a plan uses, and what it is worth under an engine.

A profile is looked for, in this order: the path that was given; the user's directory (``FLEETOPT_PROFILES``, else
``~/.config/fleetopt/profiles``); the ones shipped with the package; and when none fits the hardware, the roofline prior,
marked "estimated".
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from types import NoneType
from typing import Any

from planner.catalog.load import FOLDER, normalized
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import model as find_model
from planner.catalog.load import user_directory as user_directory
from planner.errors import MOST_TOLD, InputError, did_you_mean
from planner.machine.engines import DEFAULT_ENGINE, Engine, engines
from planner.machine.engines import engine as find_engine
from planner.machine.hardware import DTYPE_BYTES, GpuSpec, ModelSpec, Parallelism
from planner.machine.iteration import PARAMETER_UNITS, IterationModel
from planner.shared.documents import parse_yaml, printable, read_text, yaml_loader
from planner.shared.kept import once
from planner.shared.paths import READ, outside
from planner.shared.record import Record, plain
from planner.shared.writing import write_text
from planner.units import MOST

SCHEMA = "fleetopt-profile/1"
"""Version of the file format."""

HOLDS: Mapping[str, float] = {"measured": 0.9, "fitted": 0.9, "estimated": 0.8}
"""Share of the cases that a profile's band holds, by its provenance: nine in ten where :mod:`planner.calibrate` made it, and
what :data:`planner.machine.roofline.BANDS` hold of systems nobody has fitted [1]."""

_ITERATION_DEFAULTS = {f.name: f.default for f in fields(IterationModel)}


@dataclass(frozen=True, slots=True)
class ReservedSlots(Record):
    """Slots of a replica whose every slot reserves a pool's longest context.

    .. math:: n(B) = \\lfloor n_{calib} C_{calib} / B \\rfloor

    Parameters
    ----------
    slots
        n_calib, slots at the calibrated context [1].
    context_tokens
        C_calib [tokens].
    """

    slots: float
    context_tokens: float

    def at(self, context_tokens: float) -> int:
        """Slots at another context length, at least 0.

        >>> [ReservedSlots(16, 65536).at(b) for b in (65536, 8192, 4096, 1536)]
        [16, 128, 256, 682]
        """
        return math.floor(self.slots * self.context_tokens / context_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """GPU x model x parallelism x engine settings -> iteration time, with provenance; fields as a file has them.

    Parameters
    ----------
    name
        How to ask for it.
    gpu, model
        Canonical names of the catalog, or any name when the file came from hardware the catalog does not know.
    tp, pp, dp, ep
        How the model is spread, see :class:`~planner.machine.hardware.Parallelism` [1].
    iteration
        The iteration-time model, of one copy's batch.
    provenance
        ``"measured"`` (kernels or iterations timed on this hardware), ``"fitted"`` (to a server's own figures) or ``"estimated"``.
    band
        Relative half-width of what the iteration time may be off by, 0.30 = +-30% [1]; how much it :attr:`holds` says
        the provenance.
    band_prefill
        The same of the time of prompts alone, which promises of TTFT hang on too; ``None`` = as `band` [1].
    weight_dtype, kv_dtype
        What it was measured in.
    date, engine, engine_version, command
        When, with what, and how to repeat it.
    points
        Measured points behind the fit [1].
    error_mean, error_p95
        Relative error on points held out of the fit [1].
    covered
        Range of each quantity the measurements spanned: ``decodes`` [sequences], ``context_tokens``, ``context_sum``,
        ``prefill_tokens``, ``batch_tokens`` [tokens]. Outside it the numbers are extrapolated.
    kv_tokens
        KV cache of one copy as its engine reported it; ``None`` = computed from the model and the GPU [tokens].
    api_overhead_s
        Time outside the engine's iterations that a request's first token waits for [s].
    request_s
        Time of the host that each request takes from the iterations [s].
    wake_s
        What a first token waits longer for where its server got no request for a tenth of a second before [s].
    reserved
        Slots rule of the ``reserved`` KV policy; ``None`` = KV capacity / longest context.
    replica_usd_per_hour
        Price of a whole replica where the source states one; ``None`` = GPUs x the GPU's price [USD/hour].
    settings
        Engine settings it was measured with.
    automatic
        Whether it may be chosen by its hardware alone; if not, only by name.
    source, notes
        Where it comes from and what the reader must know.
    untested
        What its measurements say nothing about.
    measurements
        The raw points in a shared profile (the first says of what), to be fitted again; empty otherwise.
    """

    name: str
    gpu: str
    model: str
    tp: int
    pp: int = 1
    dp: int = 1
    ep: int = 1
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    provenance: str
    automatic: bool = True
    iteration: IterationModel
    band: float
    band_prefill: float | None = None
    date: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    command: str | None = None
    points: int | None = None
    error_mean: float | None = None
    error_p95: float | None = None
    covered: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    kv_tokens: int | None = None
    api_overhead_s: float = 0.0
    request_s: float = 0.0
    wake_s: float = 0.0
    reserved: ReservedSlots | None = None
    replica_usd_per_hour: float | None = None
    settings: Mapping[str, str | float | bool] = field(default_factory=dict)
    source: str = ""
    notes: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()
    measurements: tuple[Mapping[str, Any], ...] = ()

    @property
    def parallel(self) -> Parallelism:
        """How the model is spread."""
        return Parallelism(self.tp, self.pp, self.dp, self.ep)

    @property
    def gpus(self) -> int:
        """GPUs of one replica, tp x pp x dp [1]."""
        return self.tp * self.pp * self.dp

    @property
    def holds(self) -> float:
        """Probability that what the iteration time is off by lies within the band [1]."""
        return HOLDS[self.provenance]

    @property
    def trust(self) -> str:
        """How far to trust it, as people read it, e.g. ``"estimated, ±30%"``."""
        return f"{self.provenance}, ±{100 * self.band:.0f}%"

    def outside(self, **quantities: float) -> tuple[str, ...]:
        """One line per quantity that lies outside the covered range (nothing when its range is not known).

        Examples
        --------
        >>> from planner.catalog import profile
        >>> profile("fleetopt-paper").outside(decodes=1000, context_tokens=4096)
        ('decodes = 1000 is outside the measured range 1..682',)
        """
        lines = []
        for name, value in quantities.items():
            low, high = self.covered.get(name, (-math.inf, math.inf))
            if not low <= value <= high:
                lines.append(f"{name} = {value:g} is outside the measured range {low:g}..{high:g}")
        return tuple(lines)

    def to_dict(self) -> dict[str, Any]:
        """The file's content: keys at their default are left out, the schema comes first.

        Examples
        --------
        >>> from planner.catalog import profile
        >>> list(profile("fleetopt-paper").to_dict())[:4]
        ['schema', 'name', 'gpu', 'model']
        """
        data: dict[str, Any] = {"schema": SCHEMA}
        for spec in fields(self):
            key, value = spec.name, getattr(self, spec.name)
            if value == (spec.default_factory() if spec.default_factory is not MISSING else spec.default):
                continue
            data[key] = plain(value)
        data["iteration"] = {k: v for k, v in data["iteration"].items() if v != _ITERATION_DEFAULTS[k]}
        return data


COVERED_QUANTITIES = ("decodes", "context_tokens", "context_sum", "prefill_tokens", "batch_tokens")

LARGEST_PARAMETER = 1e6
"""Of an iteration's time, in the units of each: no iteration takes twelve days."""

Reader = Callable[[Any], Any]
"""From a value as a file has it to that of a field; raises :class:`_Wrong`."""


class _Wrong(Exception):
    """All that is wrong with a value, each as the key path below it and what."""

    def __init__(self, *told: str | tuple[str, str]) -> None:
        self.told = [("", one) if isinstance(one, str) else one for one in told]


def _mapping(readers: Mapping[str, Reader], required: Iterable[str] = ()) -> Callable[[Any], dict[str, Any]]:
    """A reader of mappings with these keys only, each with a reader of its own."""

    def read(value: Any) -> dict[str, Any]:
        """What the readers make of a mapping, or all that is wrong with it."""
        if not isinstance(value, dict):
            raise _Wrong(f"expected a mapping, got {value!r}")
        found: dict[str, Any] = {}
        told: list[tuple[str, str]] = []
        for key, entry in value.items():
            try:
                if key not in readers:
                    # a guess takes a millisecond: none for what nobody is shown
                    guess = did_you_mean(str(key), readers) if len(told) < MOST_TOLD else ""
                    raise _Wrong(f"unknown key{guess}")
                found[key] = readers[key](entry)
            except _Wrong as wrong:
                told += [(f"{key}.{below}" if below else str(key), what) for below, what in wrong.told]
        told += [(key, "missing") for key in required if key not in value]
        if told:
            raise _Wrong(*told)
        return found

    return read


def _if(holds: Callable[[Any], bool], told: str, made: Reader = lambda value: value) -> Reader:
    """A reader of what holds; `told` says what was expected."""

    def read(value: Any) -> Any:
        if not holds(value):
            raise _Wrong(told.format(repr(value)))
        return made(value)

    return read


def _number(value: Any, low: float = 0.0) -> float:
    """A number within bounds."""
    number = value
    if isinstance(value, str):  # YAML 1.1 reads 8e-3 as text
        with suppress(ValueError):
            number = float(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
        raise _Wrong(f"expected a number, got {value!r}")
    if not low <= number <= MOST:
        bounds = f"be >= {low:g}" if number < low else f"lie in [{low:g}, {MOST:g}]"
        raise _Wrong(f"must {bounds}, got {number!r}")
    return float(number)


def _whole(value: Any, low: float = 0.0) -> int:
    number = _number(value, low)
    if number != int(number):
        raise _Wrong(f"expected a whole number, got {value!r}")
    return int(number)


def _iteration(value: Any) -> IterationModel:
    """The parameters of an iteration's time."""
    numbers = _mapping(dict.fromkeys(PARAMETER_UNITS, _number), ("t0",))(value)
    if too_large := [name for name, number in numbers.items() if number > LARGEST_PARAMETER]:
        raise _Wrong((too_large[0], f"must be at most {LARGEST_PARAMETER:g}"))
    try:
        return IterationModel.from_dict(numbers)
    except InputError as error:
        raise _Wrong("; ".join(error.problems or (error.message,))) from None


def _range(pair: Any) -> tuple[float, float]:
    """What was measured of a quantity, from its lowest to its highest."""
    if not isinstance(pair, list) or len(pair) != 2:
        raise _Wrong(f"expected [lowest, highest], got {pair!r}")
    low, high = map(_number, pair)
    if low > high:
        raise _Wrong(f"lowest above highest: {pair!r}")
    return low, high


def _list(of: type, told: str) -> Reader:
    """A reader of lists of that; of texts one alone is a list too."""
    alone = _if(lambda entries: isinstance(entries, list) and all(isinstance(one, of) for one in entries), told, tuple)
    return lambda value: alone([value] if of is str and isinstance(value, str) else value)


def _choice(known: Mapping[str, Any]) -> Reader:
    return _if(lambda value: isinstance(value, str) and value in known, f"{{}} is none of {', '.join(known)}")


# YAML turns 2026-11-21 into a date and 0.11 into a number: both were meant as text
_text = _if(
    lambda v: not isinstance(v, (NoneType, bool, list, dict)) and bool(str(v).strip()), "expected text, got {}", str
)
_flag = _if(lambda v: isinstance(v, bool), "expected true or false, got {}")
_setting = _if(lambda v: isinstance(v, (str, int, float, bool)), "expected text, a number or true/false, got {}")


def _reserved(value: Any) -> ReservedSlots:
    """Slots of an engine that reserves whole contexts."""
    names = [f.name for f in fields(ReservedSlots)]
    return ReservedSlots(**_mapping(dict.fromkeys(names, partial(_number, low=1.0)), names)(value))


_OWN: Mapping[str, Reader] = {
    **dict.fromkeys(("weight_dtype", "kv_dtype"), _choice(DTYPE_BYTES)),
    "provenance": _choice(HOLDS),
    "covered": _mapping(dict.fromkeys(COVERED_QUANTITIES, _range)),
    "settings": lambda value: _mapping(dict.fromkeys(value if isinstance(value, dict) else (), _setting))(value),
    "measurements": _list(dict, "expected a list of mappings, as `profile share` prints it"),
}
"""Readers of keys whose type does not say all."""

_OF_TYPE: Mapping[str, Reader] = {
    **dict.fromkeys(("str", "str | None"), _text),
    "int": partial(_whole, low=1.0),
    "int | None": _whole,
    **dict.fromkeys(("float", "float | None"), _number),
    "bool": _flag,
    "IterationModel": _iteration,
    "ReservedSlots | None": _reserved,
    "tuple[str, ...]": _list(str, "expected a list of lines of text"),
}

REQUIRED = tuple(f.name for f in fields(Profile) if f.default is MISSING and f.default_factory is MISSING)

READERS = {f.name: _OWN.get(f.name) or _OF_TYPE[str(f.type)] for f in fields(Profile)}
"""Every key of a profile file besides ``schema``: how its value is checked and read."""


def parse_profile(data: Any, where: str = "profile", lines: Mapping[str, int] | None = None) -> Profile:
    """Check a whole profile and build it.

    Parameters
    ----------
    data
        The parsed file.
    where
        Its name, for messages.
    lines
        Line of each key path, for messages; see :func:`load_profile`.

    Returns
    -------
    Profile

    Raises
    ------
    InputError
        All unknown, missing and ill-typed keys at once, each with its place.

    Examples
    --------
    >>> parse_profile({"schema": SCHEMA, "name": "x", "gpu": "h100", "tp": 0, "itteration": {}}, "x.yaml")
    Traceback (most recent call last):
    planner.errors.InputError: x.yaml: not a usable profile
      x.yaml: tp: must be >= 1, got 0
      x.yaml: itteration: unknown key; did you mean 'iteration'?
      x.yaml: model: missing
      x.yaml: provenance: missing
      x.yaml: iteration: missing
      x.yaml: band: missing
    """
    if not isinstance(data, dict):
        told = [("", f"expected a mapping with the keys {', '.join(READERS)}")]
    else:
        schema = data.get("schema")
        told = [] if schema == SCHEMA else [("schema", f"expected {SCHEMA!r}, got {schema!r}")]
        # a key that may be left out may also be blank
        stated = {
            k: v for k, v in data.items() if k != "schema" and (v is not None or k not in READERS or k in REQUIRED)
        }
        try:
            values = _mapping(READERS, REQUIRED)(stated)
        except _Wrong as wrong:
            told += wrong.told
    if told:
        problems = [f"{where}{_line(path, lines)}: {path + ': ' if path else ''}{what}" for path, what in told]
        raise InputError.from_problems(problems, heading=f"{where}: not a usable profile")
    kept = values.get("settings", {}).get("request_s")
    if "request_s" not in values and isinstance(kept, float):
        values["request_s"] = kept  # files of before it was a key of its own
    found = Profile(**values)
    try:
        found.parallel  # noqa: B018 - it is the check
    except InputError as error:
        raise InputError.from_problems([f"{where}: {error.message}"], None, f"{where}: not a usable profile") from None
    return found


def read_fields(said: Mapping[str, Any], names: Iterable[str], where: str) -> dict[str, Any]:
    """Those of these fields of a profile that are said, checked as in its file.

    Raises
    ------
    InputError
        All that are ill-typed.

    Examples
    --------
    >>> read_fields({"gpu": "h100", "tp": 2, "engine": None, "clock": 1}, ("gpu", "tp", "engine"), "points.jsonl:1")
    {'gpu': 'h100', 'tp': 2}
    """
    try:
        return _mapping(READERS)({name: said[name] for name in names if said.get(name) is not None})
    except _Wrong as wrong:
        raise InputError.from_problems([f"{where}: {path}: {what}" for path, what in wrong.told]) from None


def _line(path: str, lines: Mapping[str, int] | None) -> str:
    """Where a key stands; a missing one is told of at its parent."""
    while path and path not in (lines or ()):
        path = path.rpartition(".")[0]
    return f":{lines[path]}" if path and lines else ""


def _lines_of(text: str) -> dict[str, int]:
    """Line of every key path of a YAML text."""
    import yaml

    found: dict[str, int] = {}

    def walk(node: yaml.Node | None, prefix: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                path = f"{prefix}{key.value}"
                found[path] = key.start_mark.line + 1
                walk(value, path + ".")

    walk(yaml.compose(text, Loader=yaml_loader()), "")
    return found


def load_profile(path: str | Path) -> Profile:
    """Read a profile file.

    Parameters
    ----------
    path
        YAML file.

    Returns
    -------
    Profile

    Raises
    ------
    InputError
        Not readable, not YAML, or not a profile; every problem with file, line and key path.
    """
    file = Path(path)
    text = read_text(file)
    data = parse_yaml(text, str(file))
    try:
        return parse_profile(data, str(file))
    except InputError:
        # only now is it worth finding the lines
        return parse_profile(data, str(file), _lines_of(text))


def save_profile(profile: Profile, path: str | Path) -> Path:
    """Write a profile file, whole or not at all.

    Parameters
    ----------
    profile
        What to write.
    path
        File, or an existing directory (the file is then named after the profile).

    Returns
    -------
    Path
        The file written.
    """
    import yaml

    target = Path(path)
    if target.is_dir():
        target = target / f"{profile.name}.yaml"
    text = yaml.safe_dump(profile.to_dict(), sort_keys=False, allow_unicode=True, width=120)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, text)
    return target


APART = (
    "name",
    "aliases",
    "source",
    "max_context",
    "parameters_total",
    "parameters_active",
    "weight_dtype",
    "kv_dtype",
)
"""What two models may differ in that cost the same per iteration."""


def _files() -> Iterator[tuple[str, Path]]:
    """(name, file) of every profile there is, the user's before the shipped, each name once."""
    seen = set()
    for folder in (user_directory(), FOLDER / "profiles"):
        for file in sorted(folder.glob("*.yaml")) if folder.is_dir() else ():
            if file.stem not in seen:
                seen.add(file.stem)
                yield file.stem, file


def _dated() -> tuple[tuple[Path, int], ...]:
    """Every profile's file and when it was last written [ns]."""
    return tuple((file, file.stat().st_mtime_ns) for _, file in _files())


def profile_names() -> tuple[str, ...]:
    """Names of all profiles there are, the user's first."""
    return tuple(name for name, _ in _files())


def measured_profiles(model: ModelSpec) -> Iterator[Profile]:
    """Profiles of a model, or of one of its shape, that rest on measurements; the user's first.

    Examples
    --------
    >>> from planner.catalog import model
    >>> sorted({found.engine for found in measured_profiles(model("llama-3.1-8b")) if found.gpu == "h100-80gb"})
    ['trtllm', 'vllm']
    """
    for file, modified in once(("profiles", user_directory()), _dated):
        found = _unchanged(str(file), modified)
        name = _canonical(found)[1]
        if found.provenance != "estimated" and (name == model.name or _same_shape(name, model)):
            yield found


def estimated_profile(
    gpu: GpuSpec, model: ModelSpec, tp: int | Parallelism = 1, engine: str = DEFAULT_ENGINE
) -> Profile:
    """The roofline estimate as a profile, for hardware nobody has measured.

    Parameters
    ----------
    gpu, model
        What runs on what.
    tp
        GPUs of the tensor-parallel group [1], or the whole :class:`~planner.machine.hardware.Parallelism`.
    engine
        Engine that serves it: its host's time is in the iteration and before the first token.

    Returns
    -------
    Profile
        Provenance ``"estimated"``; the band is that of :func:`planner.machine.roofline.prior_band`.

    Examples
    --------
    >>> from planner.catalog import gpu, model
    >>> found = estimated_profile(gpu("h100"), model("llama-3.1-8b"))
    >>> found.provenance, found.engine, found.api_overhead_s
    ('estimated', 'vllm', 0.014)
    """
    from planner.machine.roofline import prefill_band, prior_band, roofline

    host = find_engine(engine)
    spread = Parallelism.of(tp)
    return Profile(
        name=f"{model.name}-{gpu.name}-{str(spread).lower().replace(' ', '-')}-estimated",
        gpu=gpu.name,
        model=model.name,
        **asdict(spread),
        weight_dtype=model.weight_dtype,
        kv_dtype=model.kv_dtype,
        iteration=roofline(gpu, model, spread, engine=engine),
        provenance="estimated",
        band=prior_band(gpu, model, host.name),
        band_prefill=prefill_band(gpu, model),
        engine=host.name,
        engine_version=host.version or None,
        api_overhead_s=host.api_overhead_s,
        request_s=host.request_s,
        wake_s=host.wake_s,
        source=f"roofline estimate: data-sheet peaks times the shares of them that kernels reach, and {host.age}",
    )


def engine_of(inputs: Mapping[str, Any]) -> Engine:
    """The engine that a plan with these options is for: the one asked for, else that of its profile, else the default.

    >>> engine_of({"profile": "llama-3.1-8b-h100-80gb-tp1-trtllm"}).title
    'TensorRT-LLM'
    """
    named = inputs.get("profile")
    asked = inputs.get("engine") or (profile(named).engine if named else None)
    name = (asked or "").lower()
    return find_engine(name if name.partition("@")[0] in engines() else DEFAULT_ENGINE)


def served_by(found: Profile, engine: str = DEFAULT_ENGINE) -> Profile:
    """A profile with the host time of an engine: kernels alone gain that of `engine`, a server keeps what it has.

    Where a server's own time before the first token was not measured, its engine's default stands in.

    Examples
    --------
    >>> kernels = profile("llama-3-8b-a100-80gb-tp1")
    >>> served = served_by(kernels, "vllm")
    >>> served.engine, served.iteration.t0 > kernels.iteration.t0, served.api_overhead_s
    ('vllm', True, 0.014)
    """
    own = (found.engine or "").lower()
    if own not in engines() and found.provenance == "fitted":
        return found  # a server of another engine: its host is in it
    if own in engines():
        known = find_engine(own)
        request_s = found.request_s if "request_s" in found.settings else found.request_s or known.request_s
        overhead, wake_s = found.api_overhead_s or known.api_overhead_s, found.wake_s
        if not found.api_overhead_s:
            wake_s = wake_s or known.wake_s
        elif isinstance(idle_s := found.settings.get("api_overhead_idle_s"), float):
            wake_s = max(idle_s - overhead, 0.0)
        # how it runs prompts was found with the rest, where it was
        scheduling = found.settings.get("scheduling")
        apart = known.apart if scheduling is None else scheduling == "exclusive"
        iteration = replace(found.iteration.additive, apart=1.0) if apart else found.iteration
        return replace(found, iteration=iteration, api_overhead_s=overhead, request_s=request_s, wake_s=wake_s)
    from planner.machine.roofline import CONSTANTS

    host = find_engine(engine)
    kernels = found.iteration.additive if host.apart else found.iteration
    own_times = dict(CONSTANTS) | dict(host.measured.constants if host.measured else {})
    t0, h = kernels.t0 + own_times[f"{host.name}_iteration_s"], kernels.h + own_times[f"{host.name}_sequence_s"]
    iteration = replace(kernels, t0=t0, h=h, apart=float(host.apart))
    times = {name: getattr(found, name) or getattr(host, name) for name in ("api_overhead_s", "request_s", "wake_s")}
    notes = (*found.notes, f"Host time of {host.title} added to measured kernels.")
    version = host.version or found.engine_version
    return replace(found, iteration=iteration, engine=host.name, engine_version=version, notes=notes, **times)


def profile(
    name: str | Path | None = None,
    *,
    gpu: GpuSpec | str | None = None,
    model: ModelSpec | str | None = None,
    tp: int | Parallelism = 1,
    engine: str | None = None,
) -> Profile:
    """Find a profile by path or name, or the best one for a model on a replica.

    Parameters
    ----------
    name
        A file, or the name of a profile; ``None`` = whatever fits the hardware.
    gpu, model
        Catalog entries or names; used when `name` is ``None``.
    tp
        GPUs of the tensor-parallel group [1], or the whole :class:`~planner.machine.hardware.Parallelism`; used when `name` is
        ``None``.
    engine
        Engine that serves; those measured with another are passed over, kernels gain its host time. ``None`` = whatever was
        measured, else vLLM.

    Returns
    -------
    Profile
        By `name`: exactly that one. By hardware, with the engine's host time (:func:`served_by`): the first of the
        user's and the shipped profiles with this GPU, model, dtypes and TP (those marked ``automatic: false``
        excepted), else one of a model of the same shape (Llama 3 and 3.1), else the roofline estimate.

    Raises
    ------
    InputError
        No such profile (did you mean), a file that is not a profile, an unknown GPU or model.

    Examples
    --------
    >>> profile("fleetopt-paper").iteration.t0
    0.008
    """
    if name is not None:
        file = profile_file(name)
        named = _unchanged(str(file), file.stat().st_mtime_ns) if file.is_file() else load_profile(file)
        trusted = file.parent in (FOLDER / "profiles", user_directory())
        if not trusted and any(outside(f, file.parent) for f in (named.model, f"{named.model}/config.json")):
            raise InputError(
                f"{file}: model: {printable(named.model)} is outside its folder, and not read unless told: "
                f"{READ}={Path(named.model).resolve().parent} in the environment"
            )
        return named
    if gpu is None or model is None:
        raise InputError("a profile needs a name, or a GPU and a model")
    device = find_gpu(gpu) if isinstance(gpu, str) else gpu
    network = find_model(model) if isinstance(model, str) else model
    spread = Parallelism.of(tp)
    wanted = (spread, network.weight_dtype, network.kv_dtype)
    same_shape = None
    for file, modified in once(("profiles", user_directory()), _dated):
        if _gpu_of(str(file), modified) != device.name:
            continue
        found = _unchanged(str(file), modified)
        if not found.automatic or (found.parallel, found.weight_dtype, found.kv_dtype) != wanted:
            continue
        gpu_name, model_name = _canonical(found)
        if gpu_name != device.name:
            continue
        own = (found.engine or "").lower()
        of_another = engine is not None and own != engine.partition("@")[0]
        if of_another and (own in engines() or found.provenance == "fitted"):
            continue
        if model_name == network.name:
            return served_by(found, engine or DEFAULT_ENGINE)
        if same_shape is None and _same_shape(model_name, network):
            same_shape = found
    host = engine or DEFAULT_ENGINE
    return served_by(same_shape, host) if same_shape else estimated_profile(device, network, spread, host)


@lru_cache(maxsize=256)
def _gpu_of(file: str, _modified_ns: int) -> str:
    """Canonical GPU of a profile file, from its one line: most files are for other hardware and need no parsing."""
    for line in Path(file).read_text(encoding="utf-8", errors="replace").splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == "gpu":
            name = value.partition("#")[0].strip().strip("'\"")
            try:
                return find_gpu(name).name
            except InputError:
                return name
    # not on a line of its own: the parser will know
    return _canonical(_unchanged(file, _modified_ns))[0]


def _same_shape(name: str, model: ModelSpec) -> bool:
    """Whether two models cost the same per iteration: releases that differ in context length and training only."""
    try:
        other = find_model(name)
    except InputError:
        return False
    return other == replace(model, **{name: getattr(other, name) for name in APART})


@lru_cache(maxsize=256)
def _unchanged(file: str, _modified_ns: int) -> Profile:
    """A profile file, parsed once as long as it is not written again: a search asks for many replicas."""
    return load_profile(file)


def _canonical(found: Profile) -> tuple[str, str]:
    """Catalog names of a profile's GPU and model; names the catalog does not know stay as they are."""
    names = []
    for find, name in ((find_gpu, found.gpu), (find_model, found.model)):
        with suppress(InputError):
            name = find(name).name
        names.append(name)
    return names[0], names[1]


def profile_file(name: str | Path) -> Path:
    """File of a profile given by path or name.

    Parameters
    ----------
    name
        A file, or the name of a profile.

    Raises
    ------
    InputError
        No such profile (did you mean).
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or os.path.isfile(path):
        return path
    files = dict(_files())
    by_key = {normalized(stem): file for stem, file in files.items()}
    key = normalized(str(name))
    if key not in by_key:
        raise InputError(
            f"unknown profile {str(name)!r}{did_you_mean(key, files)}",
            f"Known: {', '.join(files) or 'none'}. Or give the path of a profile file; yours belong in {user_directory()}.",
        )
    return by_key[key]
