"""Look up a GPU or a model by any name people use, or read a Hugging Face ``config.json``."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from planner.catalog.prices import Offer, offers, reference_offer
from planner.errors import InputError, did_you_mean, unknown
from planner.machine.hardware import DTYPE_BYTES, GpuSpec, ModelSpec
from planner.shared.documents import shipped
from planner.shared.paths import at_home
from planner.shared.templates import refusals
from planner.units import GIB

FOLDER = Path(__file__).parent
"""Where the package's YAML files lie (importlib.resources would find the same and take 10 ms to import)."""


def user_directory() -> Path:
    """Where a user's own profiles live: ``FLEETOPT_PROFILES``, else ``~/.config/fleetopt/profiles``."""
    named = os.environ.get("FLEETOPT_PROFILES")
    return at_home(named or "~/.config/fleetopt/profiles")


def newest_day() -> str:
    """The day on which the newest entry, price or profile that is shipped was read."""
    texts = (
        path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.*") if path.suffix in (".yaml", ".json", ".csv")
    )
    return max(found[0] for text in texts for found in re.finditer(r"\b20\d\d-\d\d-\d\d\b", text))


_refusal = refusals(__file__)


def normalized(name: str) -> str:
    """Fold a name as people write it: case, ``_`` and blanks do not matter, nor does the organisation before a slash.

    >>> normalized("H100_SXM"), normalized("meta-llama/Llama-3.1-8B-Instruct"), normalized("RTX 6000 Ada")
    ('h100-sxm', 'llama-3.1-8b-instruct', 'rtx-6000-ada')
    """
    return "-".join(name.strip().rstrip("/").rpartition("/")[2].lower().replace("_", " ").replace(":", " ").split())


# what the source keys of an entry speak of, in their order
_SOURCED = ("memory_bytes", "bandwidth_bytes_per_s", "flops_per_s", "link_bytes_per_s")


_UNITS = (("_gib", "_bytes", GIB), ("_gb_per_s", "_bytes_per_s", 1e9))
"""Endings of an entry's keys, those of a GpuSpec's, and one in the other."""


@cache
def gpus() -> Mapping[str, GpuSpec]:
    """All GPUs of the catalog by canonical name.

    Returns
    -------
    dict of str to GpuSpec
        In the order of the file; every number of an entry has its source in ``sources``. The price is that of
        :func:`planner.catalog.prices.reference_offer`; ``None`` where no list has one.

    Examples
    --------
    >>> gpus()["l4-24gb"].bandwidth_bytes_per_s
    300000000000.0
    """
    data, limits = shipped(FOLDER / "gpus.yaml"), shipped(FOLDER / "power.yaml")["gpus"]
    texts = data["sources"]
    found = offers(tuple(data["gpus"]))
    specs = {}
    for name, e in data["gpus"].items():
        sources = {field: texts[key] for field, key in zip(_SOURCED, e["sources"], strict=True)}
        offer = reference_offer(found, name)
        if offer is not None:
            sources["price_usd_per_hour"] = offer.describe()
        told: dict[str, Any] = {}
        for key, value in e.items():
            ending, own, factor = next((unit for unit in _UNITS if key.endswith(unit[0])), ("", "", None))
            told[key.removesuffix(ending) + own] = value if factor is None else float(value) * factor
        told |= {
            "name": name,
            "flops_per_s": {dtype: value * 1e12 for dtype, value in told.pop("tflops").items()},
            "price_usd_per_hour": None if offer is None else offer.usd_per_gpu_hour,
            "aliases": tuple(e["aliases"]),
            "power_w": float(limits[name]["tdp"]) if name in limits else 0.0,
            "sources": sources,
        }
        specs[name] = GpuSpec(**told)
    return specs


def price_offers() -> tuple[Offer, ...]:
    """Every price offer, shipped and the user's."""
    return offers(tuple(shipped(FOLDER / "gpus.yaml")["gpus"]))


@cache
def _gpu_index() -> Mapping[str, str]:
    """Every accepted spelling -> canonical name."""
    return {normalized(spelling): e.name for e in gpus().values() for spelling in (e.name, *e.aliases)}


def gpu(name: str) -> GpuSpec:
    """The GPU of that name; a name that leaves the variant open means the SXM / largest one.

    Parameters
    ----------
    name
        Canonical name or alias; case, ``_``, ``-`` and blanks are the same.

    Returns
    -------
    GpuSpec
        Its `name` is the canonical one: print it, so that the reader sees which variant was meant.

    Raises
    ------
    InputError
        Unknown name, with the closest known one.

    Examples
    --------
    >>> gpu("A100").name, gpu("h100_sxm").name, gpu("NVIDIA H100 80GB HBM3").name
    ('a100-80gb', 'h100-80gb', 'h100-80gb')
    """
    index = _gpu_index()
    key = normalized(name)
    if key not in index:
        key = _without_makers(key)
    if key not in index:
        count = re.fullmatch(r"(\d+)[-x*]+(.+)|(.+?)[-x*:]+(\d+)", key)
        of, number = (None, None) if count is None else (count[2] or count[3], count[1] or count[4])
        if of is not None and _without_makers(of) in index:
            raise _refusal("counted", name=repr(name), meant=repr(of), of=of, number=number)
        raise InputError(f"unknown GPU {name!r}{did_you_mean(key, [*gpus(), *index])}", f"Known: {', '.join(gpus())}.")
    return gpus()[index[key]]


_MAKERS = re.compile(r"nvidia|amd|instinct|geforce|tesla|gpus?|sxm\d?|hbm\d?e?|accelerator|tensor|core")
"""Words around the name of a GPU that tell nothing of which one it is."""


def _without_makers(key: str) -> str:
    """A spelling of the catalog for a name with words of its maker, or the name.

    >>> _without_makers("nvidia-h100"), _without_makers("nvidia-tesla-a100"), _without_makers("h100-80-gb-hbm3")
    ('h100', 'a100', 'h100-80gb')
    """
    squashed = {spelling.replace("-", ""): spelling for spelling in reversed([*_gpu_index()])}
    bare = "".join(word for word in key.split("-") if not _MAKERS.fullmatch(word))
    return squashed.get(bare, key)


@cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    """Every file of ``models/``, by the model's canonical name."""
    return {path.stem: _entry(path.stem) for path in sorted(FOLDER.glob("models/*.json"))}


@cache
def _entry(name: str) -> Mapping[str, Any]:
    import json

    return dict(json.loads((FOLDER / "models" / f"{name}.json").read_bytes()))


@cache
def _model(name: str) -> ModelSpec:
    """The model of one file, by its canonical name."""
    from planner.catalog.hf import model_from_mapping

    entry = _entry(name)
    spec = model_from_mapping(entry["config"], f"{name}.json", name)
    total, active = (1e9 * p for p in entry.get("parameters_billion", (0, 0)))
    return replace(
        spec,
        parameters_total=total or spec.parameters_total,
        parameters_active=active or spec.parameters_active,
        aliases=tuple(entry["aliases"]),
        source=entry["source"],
    )


@cache
def models() -> Mapping[str, ModelSpec]:
    """All models of the catalog by canonical name, one per file of ``models/``.

    Examples
    --------
    >>> models()["deepseek-v3"].kv_lora_rank, models()["qwen3-next-80b-a3b"].state_layers
    (512, 36)
    """
    return {name: _model(name) for name in _entries()}


@cache
def _model_index() -> Mapping[str, str]:
    """Every accepted spelling -> canonical name."""
    return {normalized(s): name for name, entry in _entries().items() for s in (name, *entry["aliases"])}


def model(
    name: str | Path, *, weight_dtype: str | None = None, kv_dtype: str | None = None, like: str | None = None
) -> ModelSpec:
    """The model of that name, or of that Hugging Face ``config.json``.

    Parameters
    ----------
    name
        Canonical name, alias, Hugging Face repository id, or the path of a ``config.json`` (or of its folder).
    weight_dtype, kv_dtype
        Serve it in another dtype than the entry says; keys of :data:`planner.machine.hardware.DTYPE_BYTES`.
    like
        Family (a ``model_type``) whose arithmetic to take for a ``config.json`` of an unknown architecture.

    Returns
    -------
    ModelSpec

    Raises
    ------
    InputError
        Unknown name (with the closest known one), unreadable or incomplete ``config.json`` (all missing keys at once).

    Examples
    --------
    >>> model("meta-llama/Llama-3.1-8B-Instruct").name
    'llama-3.1-8b'
    >>> model("qwen3-32b", weight_dtype="fp8").weight_dtype, model("RedHatAI/Qwen3-32B-FP8-dynamic").name
    ('fp8', 'qwen3-32b-fp8')
    """
    spec = _named_model(name, like)
    for option, dtype in (("weight dtype", weight_dtype), ("KV dtype", kv_dtype)):
        if dtype is not None and dtype not in DTYPE_BYTES:
            raise unknown(f"unknown {option} {dtype!r}", dtype, DTYPE_BYTES)
    if weight_dtype is not None:
        spec = replace(spec, weight_dtype=weight_dtype, dense_dtype="")
    return replace(spec, kv_dtype=kv_dtype or spec.kv_dtype)


def _named_model(name: str | Path, like: str | None = None) -> ModelSpec:
    """A file or folder first, then a name of the catalog with or without its maker's prefix."""
    key = normalized(str(name))
    path = Path(name)
    # a file on disk is what the user means even if its folder is called like a model
    # what is too long for a file is none
    if path.suffix == ".json" or os.path.isfile(path) or os.path.isfile(path / "config.json"):
        from planner.catalog.hf import model_from_config

        return model_from_config(path / "config.json" if path.is_dir() else path, like)
    # every file is read only for a name that is no file's own
    index = {key: key} if os.path.isfile(FOLDER / "models" / f"{key}.json") else _model_index()
    key = key if key in index else key.removeprefix("meta-")
    if key in index:
        return _model(index[key])
    # how quantized repositories are named after their base, and what stands for models that nobody can host
    spelled = shipped(FOLDER / "load.yaml")
    for dtype, endings in spelled["quantized"].items():
        for base in (key.removesuffix(ending) for ending in endings if key.endswith(ending)):
            if base in index:
                return replace(_model(index[base]), name=f"{index[base]}-{dtype}", weight_dtype=dtype)
    makers = ((size, maker) for size, names in spelled["closed"].items() for maker in names)
    if (
        size := next((size for size, maker in makers if key.startswith(maker) and not os.path.exists(path)), None)
    ) is not None:
        closed = spelled["hosted"][size]
        raise _refusal("unhosted", name=repr(str(name)), like=repr(closed[0]), open=", ".join(closed))
    known = f"{', '.join(_entries())}. Or give the path of a Hugging Face config.json."
    raise _refusal("unknown", what=f"model {str(name)!r}{did_you_mean(key, index)}", known=known)


_REPOSITORY = re.compile(r"huggingface\.co/([\w.-]+/[\w.-]+)")


def repository(name: str) -> str | None:
    """The Hugging Face repository whose weights a model's name stands for, where the catalog knows it.

    Parameters
    ----------
    name
        As a user writes it. Something with an organisation before a slash is a repository already; a name that ends in a
        dtype the base model is not published in is no repository's.

    Examples
    --------
    >>> repository("llama-3.1-8b"), repository("deepseek-r1"), repository("llama-3.1-8b-fp8")
    ('meta-llama/Llama-3.1-8B-Instruct', 'deepseek-ai/DeepSeek-R1', None)
    """
    if name.count("/") == 1 and not name.startswith((".", "/", "~")) and not name.endswith(".json"):
        return name
    key = normalized(name)
    base = _model_index().get(key) or _model_index().get(key.removeprefix("meta-"))
    if base is None:
        return None
    entry = _entry(base)
    told = entry.get("repositories", {})
    found = _REPOSITORY.search(entry["source"])
    return told.get(key) or told.get(base) or (found[1] if found else None)


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """What one GPU draws.

    Parameters
    ----------
    idle_w
        With the model loaded and nothing running [W].
    one_w, full_w
        With one sequence decoding, and with a full batch [W].
    middle
        Logarithm to base 2 of the sequences half-way between.
    estimated
        What was not measured on this GPU and is a share of its TDP.
    source
        Where the numbers are from.
    """

    idle_w: float
    one_w: float
    full_w: float
    middle: float
    estimated: tuple[str, ...]
    source: str

    def watts(self, running: float) -> float:
        """Mean power with that many sequences running on average [W].

        Their number is taken as Poisson, so that nothing runs exp(-running) of the time; while something does, power follows
        Hassan et al. 2025, equation 2, at the mean number then.

        >>> curve = PowerCurve(100.0, 300.0, 600.0, 4.2, (), "")
        >>> curve.watts(0.0), round(curve.watts(2**4.2)), round(curve.watts(1e9))
        (100.0, 450, 600)
        """
        if not running > 0.0:
            return self.idle_w
        empty = math.exp(-running)
        busy = running / -math.expm1(-running)
        reached = 1.0 / (1.0 + math.exp(self.middle - math.log2(busy)))
        return empty * self.idle_w + (1.0 - empty) * (self.one_w + (self.full_w - self.one_w) * reached)


def full_w(gpu: str) -> float:
    """What a GPU draws with the batch full [W].

    Raises
    ------
    InputError
        The catalog does not know the power of this GPU.
    """
    curve = power_curve(gpu)
    if curve is None:
        raise InputError(f"max_kw: the catalog has no power of {gpu}", "Leave it out, or plan on a GPU it has.")
    return curve.full_w


@cache
def power_curve(gpu: str) -> PowerCurve | None:
    """The curve of a GPU by its canonical name; ``None`` where not even its TDP is known."""
    data = shipped(FOLDER / "power.yaml")
    entry, rest = data["gpus"].get(gpu), data["estimate"]
    if entry is None:
        return None
    names = ("idle", "one", "full")
    estimated = tuple(name for name in names if name not in entry)
    idle, one, full = (float(entry.get(name, rest[name] * entry["tdp"])) for name in names)
    shares = [rest[key] for name, key in (("idle", "idle_source"), ("one", "source")) if name in estimated]
    keys = dict.fromkeys([entry.get("source"), entry.get("sheet", "second-hand"), *shares])
    source = "; ".join(data["sources"][key] for key in keys if key is not None)
    return PowerCurve(idle, one, full, float(entry.get("middle", rest["middle"])), estimated, source)
