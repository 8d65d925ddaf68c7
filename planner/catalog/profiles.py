"""A profile: iteration-time parameters of one model on one kind of replica, and how far to trust them.

One YAML format: what a calibration writes is what ships is what is accepted. A profile is looked for, in this order:
the path that was given; the user's directory (``FLEETOPT_PROFILES``, else ``~/.config/fleetopt/profiles``); the ones
shipped with the package; and when none fits the hardware, the roofline prior, marked "estimated".
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from planner.catalog.load import FOLDER, normalized
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import model as find_model
from planner.documents import parse_yaml, read_text
from planner.engines import DEFAULT_ENGINE, Engine, engines
from planner.engines import engine as find_engine
from planner.errors import InputError, did_you_mean
from planner.hardware import DTYPE_BYTES, GpuSpec, ModelSpec, Parallelism
from planner.iteration.model import PARAMETER_UNITS, IterationModel
from planner.kept import once
from planner.writing import write_text

__all__ = [
    "SCHEMA",
    "Profile",
    "ReservedSlots",
    "engine_of",
    "estimated_profile",
    "load_profile",
    "measured_profiles",
    "parse_profile",
    "profile",
    "profile_file",
    "profile_names",
    "save_profile",
    "served_by",
    "set_aside",
    "user_directory",
]

SCHEMA = "fleetopt-profile/1"
"""Version of the file format."""

PROVENANCES = ("measured", "fitted", "estimated")

COVERED_QUANTITIES = ("decodes", "context_tokens", "context_sum", "prefill_tokens", "batch_tokens")


@dataclass(frozen=True, slots=True)
class ReservedSlots:
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


@dataclass(frozen=True, slots=True)
class Profile:
    """GPU x model x parallelism x engine settings -> iteration time, with provenance.

    Parameters
    ----------
    name
        How to ask for it.
    gpu, model
        Canonical names of the catalog, or any name when the file came from hardware the catalog does not know.
    tp, pp, dp, ep
        How the model is spread, see :class:`~planner.hardware.Parallelism` [1].
    iteration
        The iteration-time model, of one copy's batch.
    provenance
        ``"measured"`` (kernels or iterations timed on this hardware), ``"fitted"`` (to a server's own figures) or ``"estimated"``.
    band
        Relative half-width of what the iteration time may be off by, 0.30 = +-30% [1].
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
    iteration: IterationModel
    provenance: str
    band: float
    pp: int = 1
    dp: int = 1
    ep: int = 1
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
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
    reserved: ReservedSlots | None = None
    replica_usd_per_hour: float | None = None
    settings: Mapping[str, str | float | bool] = field(default_factory=dict)
    automatic: bool = True
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
    def trust(self) -> str:
        """How far to trust it, as people read it, e.g. ``"estimated, ±30%"``."""
        return f"{self.provenance}, ±{100 * self.band:.0f}%"

    def outside(self, **quantities: float) -> tuple[str, ...]:
        """One line per quantity that lies outside the covered range (nothing when its range is not known).

        Examples
        --------
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
        >>> parse_profile(profile("fleetopt-paper").to_dict()) == profile("fleetopt-paper")
        True
        """
        data: dict[str, Any] = {"schema": SCHEMA}
        for key, spec in FIELDS.items():
            value = getattr(self, key)
            if not spec.required and value == spec.default:
                continue
            if isinstance(value, IterationModel):
                value = {k: v for k, v in value.to_dict().items() if v != _ITERATION_DEFAULTS[k]}
            elif isinstance(value, ReservedSlots):
                value = {"slots": value.slots, "context_tokens": value.context_tokens}
            elif key == "covered":
                value = {k: list(v) for k, v in value.items()}
            elif isinstance(value, tuple):
                value = [dict(v) if isinstance(v, Mapping) else v for v in value]
            elif isinstance(value, Mapping):
                value = dict(value)
            data[key] = value
        return data


# --- reading ----------------------------------------------------------------------------------------------------

Report = Callable[[str, str], None]
"""Called with (key path, what is wrong)."""


def _text(value: Any, path: str, report: Report) -> str | None:
    if not isinstance(value, str) or not value.strip():
        # YAML turns 2026-11-21 into a date and 0.11 into a number: both were meant as text
        if value is not None and not isinstance(value, (bool, list, dict, str)):
            return str(value)
        report(path, f"expected text, got {value!r}")
    return str(value)


def _number(value: Any, path: str, report: Report, low: float = 0.0, high: float = math.inf) -> float | None:
    if isinstance(value, str):  # YAML 1.1 reads 8e-3 as text
        try:
            value = float(value)
        except ValueError:
            report(path, f"expected a number, got {value!r}")
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        report(path, f"expected a number, got {value!r}")
        return None
    if not low <= value <= high:
        report(
            path,
            f"must lie in [{low:g}, {high:g}], got {value!r}"
            if high < math.inf
            else f"must be >= {low:g}, got {value!r}",
        )
        return None
    return float(value)


def _whole(value: Any, path: str, report: Report, low: int = 0) -> int | None:
    number = _number(value, path, report, float(low))
    if number is not None and number != int(number):
        report(path, f"expected a whole number, got {value!r}")
        return None
    return None if number is None else int(number)


def _mapping(value: Any, path: str, report: Report, known: Mapping[str, Any] | tuple[str, ...]) -> dict[str, Any]:
    """A mapping with known keys only; unknown ones are reported and dropped."""
    if not isinstance(value, dict):
        report(path, f"expected a mapping, got {value!r}")
        return {}
    for key in value:
        if key not in known:
            report(f"{path}.{key}", f"unknown key{did_you_mean(str(key), known)}")
    return {k: v for k, v in value.items() if k in known}


def _iteration(value: Any, path: str, report: Report) -> IterationModel | None:
    entries = _mapping(value, path, report, PARAMETER_UNITS)
    if isinstance(value, dict) and "t0" not in value:
        report(f"{path}.t0", "missing")
        return None
    numbers = {k: _number(v, f"{path}.{k}", report) for k, v in entries.items()}
    if not numbers or None in numbers.values():
        return None
    try:
        return IterationModel.from_dict(numbers)
    except InputError as error:
        report(path, "; ".join(error.problems or (error.message,)))
        return None


def _covered(value: Any, path: str, report: Report) -> dict[str, tuple[float, float]]:
    ranges = {}
    for key, pair in _mapping(value, path, report, COVERED_QUANTITIES).items():
        here = f"{path}.{key}"
        if not isinstance(pair, list) or len(pair) != 2:
            report(here, f"expected [lowest, highest], got {pair!r}")
            continue
        low, high = (_number(v, here, report) for v in pair)
        if low is not None and high is not None:
            if low > high:
                report(here, f"lowest above highest: {pair!r}")
            ranges[key] = (low, high)
    return ranges


def _reserved(value: Any, path: str, report: Report) -> ReservedSlots | None:
    entries = _mapping(value, path, report, ("slots", "context_tokens"))
    numbers = {}
    for key in ("slots", "context_tokens"):
        if key not in entries:
            report(f"{path}.{key}", "missing")
        else:
            numbers[key] = _number(entries[key], f"{path}.{key}", report, 1.0)
    if len(numbers) < 2 or None in numbers.values():
        return None
    return ReservedSlots(**numbers)  # type: ignore[arg-type]


def _settings(value: Any, path: str, report: Report) -> dict[str, Any]:
    if not isinstance(value, dict):
        report(path, f"expected a mapping, got {value!r}")
        return {}
    for key, entry in value.items():
        if not isinstance(entry, (str, int, float, bool)):
            report(f"{path}.{key}", f"expected text, a number or true/false, got {entry!r}")
    return value


def _notes(value: Any, path: str, report: Report) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        report(path, "expected a list of lines of text")
        return ()
    return tuple(value)


def _measurements(value: Any, path: str, report: Report) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        report(path, "expected a list of mappings, as `profile share` prints it")
        return ()
    return tuple(value)


def _choice(known: tuple[str, ...] | Mapping[str, Any]) -> Callable[[Any, str, Report], Any]:
    def check(value: Any, path: str, report: Report) -> Any:
        if value not in known:
            report(path, f"{value!r} is none of {', '.join(known)}")
        return value

    return check


def _flag(value: Any, path: str, report: Report) -> bool:
    if not isinstance(value, bool):
        report(path, f"expected true or false, got {value!r}")
    return bool(value)


@dataclass(frozen=True, slots=True)
class Field:
    """How one key of the file is read."""

    read: Callable[[Any, str, Report], Any]
    required: bool = False
    default: Any = None


def _positive(value: Any, path: str, report: Report) -> int | None:
    return _whole(value, path, report, 1)


FIELDS: Mapping[str, Field] = {
    "name": Field(_text, required=True),
    "gpu": Field(_text, required=True),
    "model": Field(_text, required=True),
    "tp": Field(_positive, required=True),
    "pp": Field(_positive, default=1),
    "dp": Field(_positive, default=1),
    "ep": Field(_positive, default=1),
    "weight_dtype": Field(_choice(DTYPE_BYTES), default="bf16"),
    "kv_dtype": Field(_choice(DTYPE_BYTES), default="bf16"),
    "provenance": Field(_choice(PROVENANCES), required=True),
    "automatic": Field(_flag, default=True),
    "iteration": Field(_iteration, required=True),
    "band": Field(_number, required=True),
    "date": Field(_text),
    "engine": Field(_text),
    "engine_version": Field(_text),
    "command": Field(_text),
    "points": Field(_whole),
    "error_mean": Field(_number),
    "error_p95": Field(_number),
    "covered": Field(_covered, default={}),
    "kv_tokens": Field(_whole),
    "api_overhead_s": Field(_number, default=0.0),
    "request_s": Field(_number, default=0.0),
    "reserved": Field(_reserved),
    "replica_usd_per_hour": Field(_number),
    "settings": Field(_settings, default={}),
    "source": Field(_text, default=""),
    "notes": Field(_notes, default=()),
    "untested": Field(_notes, default=()),
    "measurements": Field(_measurements, default=()),
}
"""Every key of a profile file besides ``schema``."""

_ITERATION_DEFAULTS: Mapping[str, float | None] = {
    name: {"t0": None, "tau": 1}.get(name, 0.0) for name in PARAMETER_UNITS
}


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
    problems: list[tuple[str, str]] = []

    def report(path: str, message: str) -> None:
        problems.append((path, message))

    values: dict[str, Any] = {}
    if not isinstance(data, dict):
        report("", f"expected a mapping with the keys {', '.join(FIELDS)}")
    else:
        if data.get("schema") != SCHEMA:
            report("schema", f"expected {SCHEMA!r}, got {data.get('schema')!r}")
        for key, value in data.items():
            if key in FIELDS:
                if value is not None or FIELDS[key].required:
                    values[key] = FIELDS[key].read(value, key, report)
            elif key != "schema":
                report(str(key), f"unknown key{did_you_mean(str(key), FIELDS)}")
        for key, spec in FIELDS.items():
            if spec.required and key not in data:
                report(key, "missing")
    if problems:
        places = _line_index(lines)
        told = [f"{where}{places(path)}: {path + ': ' if path else ''}{message}" for path, message in problems]
        raise InputError.from_problems(told, heading=f"{where}: not a usable profile")
    kept = values.get("settings", {}).get("request_s")
    if "request_s" not in values and isinstance(kept, float):
        values["request_s"] = kept  # files of before it was a key of its own
    found = Profile(**values)
    try:
        found.parallel  # noqa: B018 - it is the check
    except InputError as error:
        raise InputError.from_problems(
            [f"{where}: {error.message}"], heading=f"{where}: not a usable profile"
        ) from None
    return found


def _line_index(lines: Mapping[str, int] | None) -> Callable[[str], str]:
    def place(path: str) -> str:
        if not lines:
            return ""
        while path and path not in lines:  # a missing key is reported at its parent
            path = path.rpartition(".")[0]
        return f":{lines[path]}" if path else ""

    return place


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

    walk(yaml.compose(text, Loader=yaml.SafeLoader), "")
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


def set_aside(path: Path) -> Path | None:
    """Move a file out of the way of a new one of its name.

    Parameters
    ----------
    path
        The file; it need not be there.

    Returns
    -------
    Path or None
        Where it is now: its name with ``.old-1``, ``.old-2``, ... after it.
    """
    if not path.exists():
        return None
    number = next(n for n in itertools.count(1) if not path.with_name(f"{path.name}.old-{n}").exists())
    aside = path.with_name(f"{path.name}.old-{number}")
    path.replace(aside)
    return aside


# --- finding ----------------------------------------------------------------------------------------------------


def user_directory() -> Path:
    """Where a user's own profiles live: ``FLEETOPT_PROFILES``, else ``~/.config/fleetopt/profiles``."""
    named = os.environ.get("FLEETOPT_PROFILES")
    return Path(named) if named else Path.home() / ".config" / "fleetopt" / "profiles"


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
        GPUs of the tensor-parallel group [1], or the whole :class:`~planner.hardware.Parallelism`.
    engine
        Engine that serves it: its host's time is in the iteration and before the first token.

    Returns
    -------
    Profile
        Provenance ``"estimated"``; the band is that of :func:`planner.iteration.roofline.prior_band`.

    Examples
    --------
    >>> from planner.catalog import gpu, model
    >>> found = estimated_profile(gpu("h100"), model("llama-3.1-8b"))
    >>> found.provenance, found.engine, found.api_overhead_s
    ('estimated', 'vllm', 0.014)
    """
    from planner.iteration.roofline import prior_band, roofline

    host = find_engine(engine)
    spread = tp if isinstance(tp, Parallelism) else Parallelism(tp)
    return Profile(
        name=f"{model.name}-{gpu.name}-{str(spread).lower().replace(' ', '-')}-estimated",
        gpu=gpu.name,
        model=model.name,
        tp=spread.tp,
        pp=spread.pp,
        dp=spread.dp,
        ep=spread.ep,
        weight_dtype=model.weight_dtype,
        kv_dtype=model.kv_dtype,
        iteration=roofline(gpu, model, spread, engine=host.name),
        provenance="estimated",
        band=prior_band(gpu, model, host.name),
        engine=host.name,
        api_overhead_s=host.api_overhead_s,
        request_s=host.request_s,
        source="roofline estimate: data-sheet peaks times the shares of them that kernels reach, and the engine's host time",
    )


def engine_of(inputs: Mapping[str, Any]) -> Engine:
    """The engine that a plan with these options is for: the one asked for, else that of its profile, else the default.

    >>> engine_of({"profile": "llama-3.1-8b-h100-80gb-tp1-trtllm"}).title
    'TensorRT-LLM'
    """
    named = inputs.get("profile")
    asked = inputs.get("engine") or (profile(named).engine if named else None)
    name = (asked or "").lower()
    return find_engine(name if name in engines() else DEFAULT_ENGINE)


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
        return replace(found, api_overhead_s=found.api_overhead_s or known.api_overhead_s, request_s=request_s)
    from planner.iteration.constants import CONSTANTS

    host = find_engine(engine)
    iteration = replace(
        found.iteration,
        t0=found.iteration.t0 + CONSTANTS[f"{host.name}_iteration_s"],
        h=found.iteration.h + CONSTANTS[f"{host.name}_sequence_s"],
    )
    overhead = found.api_overhead_s or host.api_overhead_s
    note = f"Host time of {host.title} added to measured kernels."
    return replace(
        found,
        iteration=iteration,
        api_overhead_s=overhead,
        request_s=found.request_s or host.request_s,
        engine=host.name,
        notes=(*found.notes, note),
    )


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
        GPUs of the tensor-parallel group [1], or the whole :class:`~planner.hardware.Parallelism`; used when `name` is
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
        return load_profile(profile_file(name))
    if gpu is None or model is None:
        raise InputError("a profile needs a name, or a GPU and a model")
    device = find_gpu(gpu) if isinstance(gpu, str) else gpu
    network = find_model(model) if isinstance(model, str) else model
    spread = tp if isinstance(tp, Parallelism) else Parallelism(tp)
    wanted = (device.name, spread, network.weight_dtype, network.kv_dtype)
    same_shape = None
    for file, modified in once(("profiles", user_directory()), _dated):
        if _gpu_of(str(file), modified) != device.name:
            continue
        found = _unchanged(str(file), modified)
        gpu_name, model_name = _canonical(found)
        if not found.automatic or (gpu_name, found.parallel, found.weight_dtype, found.kv_dtype) != wanted:
            continue
        own = (found.engine or "").lower()
        if engine is not None and own != engine and (own in engines() or found.provenance == "fitted"):
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
    ignored = {
        "name",
        "aliases",
        "source",
        "max_context",
        "parameters_total",
        "parameters_active",
        "weight_dtype",
        "kv_dtype",
    }
    return all(getattr(other, f.name) == getattr(model, f.name) for f in fields(ModelSpec) if f.name not in ignored)


@lru_cache(maxsize=256)
def _unchanged(file: str, _modified_ns: int) -> Profile:
    """A profile file, parsed once as long as it is not written again: a search asks for many replicas."""
    return load_profile(file)


def _canonical(found: Profile) -> tuple[str, str]:
    """Catalog names of a profile's GPU and model; names the catalog does not know stay as they are."""
    try:
        gpu_name = find_gpu(found.gpu).name
    except InputError:
        gpu_name = found.gpu
    try:
        model_name = find_model(found.model).name
    except InputError:
        model_name = found.model
    return gpu_name, model_name


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
    if path.suffix in (".yaml", ".yml") or path.is_file():
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
