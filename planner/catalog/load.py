"""Look up a GPU or a model by any name people use, or read a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from planner.catalog.prices import Offer, offers, reference_offer
from planner.errors import InputError, did_you_mean
from planner.hardware import DTYPE_BYTES, GpuSpec, ModelSpec

__all__ = ["gpu", "gpus", "model", "models", "normalized", "price_offers"]

GIB = 2.0**30

FOLDER = Path(__file__).parent
"""Where the package's YAML files lie (importlib.resources would find the same and take 10 ms to import)."""


def normalized(name: str) -> str:
    """Fold a name as people write it: case, ``_`` and blanks do not matter, nor does the organisation before a slash.

    >>> normalized("H100_SXM"), normalized("meta-llama/Llama-3.1-8B-Instruct"), normalized("RTX 6000 Ada")
    ('h100-sxm', 'llama-3.1-8b-instruct', 'rtx-6000-ada')
    """
    return "-".join(name.strip().rstrip("/").rpartition("/")[2].lower().replace("_", " ").split())


def shipped(file: str) -> Any:
    """A YAML file of this package, parsed; a test reads them with the checks of :mod:`planner.documents`."""
    import yaml

    # safe: builds plain data only; libyaml is ten times faster where it is compiled in
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    return yaml.load(FOLDER.joinpath(file).read_bytes(), loader)


def _index(entries: Iterable[GpuSpec] | Iterable[ModelSpec]) -> dict[str, str]:
    """Every accepted spelling -> canonical name."""
    return {normalized(spelling): e.name for e in entries for spelling in (e.name, *e.aliases)}


# what the source keys of an entry speak of, in their order
_SOURCED = ("memory_bytes", "bandwidth_bytes_per_s", "flops_per_s", "link_bytes_per_s")


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
    data = shipped("gpus.yaml")
    texts = data["sources"]
    found = offers(tuple(data["gpus"]))
    specs = {}
    for name, e in data["gpus"].items():
        sources = {field: texts[key] for field, key in zip(_SOURCED, e["sources"], strict=True)}
        offer = reference_offer(found, name)
        if offer is not None:
            sources["price_usd_per_hour"] = offer.describe()
        specs[name] = GpuSpec(
            name=name,
            memory_bytes=e["memory_gib"] * GIB,
            bandwidth_bytes_per_s=e["bandwidth_gb_per_s"] * 1e9,
            flops_per_s={dtype: value * 1e12 for dtype, value in e["tflops"].items()},
            link_bytes_per_s=e["link_gb_per_s"] * 1e9,
            price_usd_per_hour=None if offer is None else offer.usd_per_gpu_hour,
            gpus_per_node=e.get("gpus_per_node", 8),
            aliases=tuple(e["aliases"]),
            gpu_class=e.get("gpu_class", ""),
            sm_count=e.get("sm_count", 0),
            attention_kernel=e.get("attention_kernel", ""),
            node_link_bytes_per_s=e["node_link_gb_per_s"] * 1e9 if "node_link_gb_per_s" in e else None,
            sources=sources,
        )
    return specs


def price_offers() -> tuple[Offer, ...]:
    """Every price offer, shipped and the user's."""
    return offers(tuple(shipped("gpus.yaml")["gpus"]))


@cache
def _gpu_index() -> dict[str, str]:
    return _index(gpus().values())


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
        raise InputError(
            f"unknown GPU {name!r}{did_you_mean(key, index)}",
            f"Known: {', '.join(gpus())}.",
        )
    return gpus()[index[key]]


def _model_from_entry(name: str, e: Mapping[str, Any]) -> ModelSpec:
    q_heads, kv_heads, head_dim = e["heads"]
    experts, per_token, moe_mlp, shared, dense = e.get("moe", (0, 0, 0, 0, 0))
    lora, rope, nope, value, q_lora = e.get("mla", (0, 0, 0, 0, 0))
    window, full = e.get("sliding", (0, e["layers"]))
    total, active = e["params"]
    return ModelSpec(
        name=name,
        layers=e["layers"],
        hidden_size=e["hidden"],
        intermediate_size=e["mlp"],
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=e["vocab"],
        max_context=e["context"],
        tied_embeddings=e.get("tied", False),
        weight_dtype=e.get("weights", "bf16"),
        parameters_total=total * 1e9,
        parameters_active=active * 1e9,
        experts=experts,
        experts_per_token=per_token,
        moe_intermediate_size=moe_mlp,
        shared_experts=shared,
        dense_layers=dense if experts else e["layers"],
        kv_lora_rank=lora,
        qk_rope_head_dim=rope,
        qk_nope_head_dim=nope,
        v_head_dim=value,
        q_lora_rank=q_lora,
        sliding_window=window,
        full_attention_layers=full,
        multimodal=e.get("multimodal", False),
        aliases=tuple(e.get("aliases", ())),
        source=f"https://huggingface.co/{e['source']}/blob/main/config.json",
    )


@cache
def _listed_models() -> Mapping[str, ModelSpec]:
    """The models of models.yaml."""
    return {name: _model_from_entry(name, entry) for name, entry in shipped("models.yaml").items()}


@cache
def models() -> Mapping[str, ModelSpec]:
    """All models of the catalog by canonical name: those of models.yaml, then one per file of ``models/``.

    Examples
    --------
    >>> models()["deepseek-v3"].kv_lora_rank, models()["qwen3-next-80b-a3b"].state_layers
    (512, 36)
    """
    import json

    from planner.catalog.hf import model_from_mapping

    found = dict(_listed_models())
    for path in sorted(FOLDER.glob("models/*.json")):
        entry = json.loads(path.read_text(encoding="utf-8"))
        spec = model_from_mapping(entry["config"], path.name, path.stem)
        found[path.stem] = replace(spec, aliases=tuple(entry["aliases"]), source=entry["source"])
    return found


@cache
def _listed_index() -> dict[str, str]:
    return _index(_listed_models().values())


@cache
def _model_index() -> dict[str, str]:
    return _index(models().values())


def model(
    name: str | Path, *, weight_dtype: str | None = None, kv_dtype: str | None = None, like: str | None = None
) -> ModelSpec:
    """The model of that name, or of that Hugging Face ``config.json``.

    Parameters
    ----------
    name
        Canonical name, alias, Hugging Face repository id, or the path of a ``config.json`` (or of its folder).
    weight_dtype, kv_dtype
        Serve it in another dtype than the entry says; keys of :data:`planner.hardware.DTYPE_BYTES`.
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
            raise InputError(
                f"unknown {option} {dtype!r}{did_you_mean(dtype, DTYPE_BYTES)}", f"Known: {', '.join(DTYPE_BYTES)}."
            )
    if weight_dtype is not None:
        spec = replace(spec, weight_dtype=weight_dtype, dense_dtype="")
    return replace(spec, kv_dtype=kv_dtype or spec.kv_dtype)


# how quantized repositories are named after their base: ("Llama-3.1-70B-Instruct-FP8-dynamic")
_QUANTIZED = {
    "fp8": ("-fp8", "-fp8-dynamic", "-fp8-block"),
    "int8": ("-int8", "-w8a8", "-quantized.w8a8", "-gptq-int8"),
    "int4": ("-int4", "-w4a16", "-quantized.w4a16", "-awq", "-gptq", "-gptq-int4"),
    "fp4": ("-fp4", "-nvfp4"),
}


def _quantized(key: str, index: Mapping[str, str]) -> tuple[str, str] | None:
    """(canonical name, dtype) of a name that is a known one with a quantization suffix."""
    for dtype, endings in _QUANTIZED.items():
        for ending in endings:
            base = key.removesuffix(ending)
            if base != key and base in index:
                return index[base], dtype
    return None


def _named_model(name: str | Path, like: str | None = None) -> ModelSpec:
    key = normalized(str(name))
    path = Path(name)
    # a file on disk is what the user means even if its folder is called like a model
    if path.suffix == ".json" or path.is_file() or (path / "config.json").is_file():
        from planner.catalog.hf import model_from_config

        return model_from_config(path / "config.json" if path.is_dir() else path, like)
    # the folder of single files is read only for a name that models.yaml does not have
    if (spec := _spelled(key, _listed_index(), _listed_models)) or (spec := _spelled(key, _model_index(), models)):
        return spec
    raise InputError(
        f"unknown model {str(name)!r}{did_you_mean(key, _model_index())}",
        f"Known: {', '.join(models())}. Or give the path of a Hugging Face config.json.",
    )


def _spelled(key: str, index: Mapping[str, str], known: Callable[[], Mapping[str, ModelSpec]]) -> ModelSpec | None:
    """The model of that spelling, or of that spelling with a quantization suffix."""
    key = key if key in index else key.removeprefix("meta-")
    if key in index:
        return known()[index[key]]
    quantized = _quantized(key, index)
    if quantized is None:
        return None
    spec = known()[quantized[0]]
    return replace(spec, name=f"{spec.name}-{quantized[1]}", weight_dtype=quantized[1])
