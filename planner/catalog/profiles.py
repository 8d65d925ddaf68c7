"""Which profile a plan uses, and what it is worth under an engine.

A profile is looked for, in this order: the path that was given; the user's directory (``FLEETOPT_PROFILES``, else
``~/.config/fleetopt/profiles``); the ones shipped with the package; and when none fits the hardware, the roofline prior,
marked "estimated".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from planner.catalog.load import FOLDER, normalized
from planner.catalog.load import gpu as find_gpu
from planner.catalog.load import model as find_model
from planner.catalog.load import user_directory as user_directory
from planner.catalog.profile_files import Profile as Profile
from planner.catalog.profile_files import load_profile as load_profile
from planner.catalog.profile_files import parse_profile as parse_profile
from planner.catalog.profile_files import save_profile as save_profile
from planner.engines import DEFAULT_ENGINE, Engine, engines
from planner.engines import engine as find_engine
from planner.errors import InputError, did_you_mean
from planner.machine.hardware import GpuSpec, ModelSpec, Parallelism
from planner.shared.documents import printable
from planner.shared.kept import once
from planner.shared.paths import READ, outside

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
        Provenance ``"estimated"``; the band is that of :func:`planner.iteration.roofline.prior_band`.

    Examples
    --------
    >>> from planner.catalog import gpu, model
    >>> found = estimated_profile(gpu("h100"), model("llama-3.1-8b"))
    >>> found.provenance, found.engine, found.api_overhead_s
    ('estimated', 'vllm', 0.014)
    """
    from planner.iteration.roofline import prefill_band, prior_band, roofline

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
        notes=(host.age,) if host.version else (),
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
    from planner.iteration.constants import CONSTANTS

    host = find_engine(engine)
    kernels = found.iteration.additive if host.apart else found.iteration
    t0, h = kernels.t0 + CONSTANTS[f"{host.name}_iteration_s"], kernels.h + CONSTANTS[f"{host.name}_sequence_s"]
    iteration = replace(kernels, t0=t0, h=h, apart=float(host.apart))
    times = {name: getattr(found, name) or getattr(host, name) for name in ("api_overhead_s", "request_s", "wake_s")}
    notes = (*found.notes, f"Host time of {host.title} added to measured kernels.")
    return replace(found, iteration=iteration, engine=host.name, notes=notes, **times)


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
        named = load_profile(file)
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
