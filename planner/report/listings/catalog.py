"""The catalog: GPUs, models and offers one line each; one GPU or one model number by number, each with where it is from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from planner.report.blocks import Block, Table, Text
from planner.report.listing import Listing
from planner.units import format_bytes, format_count

if TYPE_CHECKING:
    from planner.catalog.prices import Offer
    from planner.machine.hardware import GpuSpec, ModelSpec

COUNTED = "arithmetic of the shape, or as published with it"
DERIVED = "computed from the numbers above"


class GpuList(Listing):
    """GPUs as rows."""

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("gpus=to_rows",)


def gpu_list(gpus: Sequence[GpuSpec]) -> GpuList:
    """GPUs as rows, and where to see more."""

    def rate(spec: GpuSpec, dtype: str) -> str:
        found = spec.flops_per_s.get(dtype)
        return "-" if found is None else f"{found / 1e12:,.0f} TFLOPS"

    rows = [
        {
            "gpu": g.name,
            "memory_bytes": g.memory_bytes,
            "bandwidth_bytes_per_s": g.bandwidth_bytes_per_s,
            "bf16_flops_per_s": g.flops_per_s.get("bf16"),
            "fp8_flops_per_s": g.flops_per_s.get("fp8"),
            "link_bytes_per_s": g.link_bytes_per_s,
            "gpus_per_node": g.gpus_per_node,
            "price_usd_per_hour": g.price_usd_per_hour,
            "price_source": g.sources.get("price_usd_per_hour"),
            "aliases": " ".join(a.replace(" ", "-") for a in g.aliases),
        }
        for g in gpus
    ]
    shown = [
        [
            g.name,
            format_bytes(g.memory_bytes),
            f"{format_bytes(g.bandwidth_bytes_per_s)}/s",
            rate(g, "bf16"),
            rate(g, "fp8"),
            "-" if g.price_usd_per_hour is None else f"{g.price_usd_per_hour:.4g}",
            g.sources.get("price_usd_per_hour", "no offer known: --price"),
        ]
        for g in gpus
    ]
    columns = ("gpu", "memory", "bandwidth", "BF16", "FP8", "USD/GPU/hour", "price of")
    more = Text(["sources and other names: fleetopt gpu show NAME"])
    return GpuList(rows, [Table(columns, shown, {"gpu", "price of"}), more])


class ModelList(Listing):
    """Models as rows."""

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("models=to_rows",)


def model_list(models: Sequence[ModelSpec]) -> ModelList:
    """Models as rows, and where to see more."""
    rows = [
        {
            "model": m.name,
            "parameters_total": m.parameters_total,
            "parameters_active": m.parameters_active,
            "max_context": m.max_context,
            "weight_dtype": m.weight_dtype,
            "kv_dtype": m.kv_dtype,
            "experts": m.experts,
            "source": m.source,
            "aliases": " ".join(m.aliases),
        }
        for m in models
    ]
    shown = [
        [
            m.name,
            f"{m.parameters_total / 1e9:,.4g} B",
            f"{m.parameters_active / 1e9:,.3g} B",
            f"{m.max_context:,}",
            m.weight_dtype,
            m.kv_dtype,
            _attention(m),
        ]
        for m in models
    ]
    columns = ("model", "parameters", "active", "context", "weights", "KV", "attention")
    more = "shape, source and other names: fleetopt model show NAME; any other: --model path/to/config.json"
    return ModelList(rows, [Table(columns, shown, {"model", "weights", "KV", "attention"}), Text([more])])


def _attention(m: ModelSpec) -> str:
    """What of a context a token looks back at."""
    kinds = ["latent" if m.kv_lora_rank else f"{m.q_heads} heads on {m.kv_heads}"]
    if m.sliding_window:
        kinds.append(f"window {m.sliding_window:,} in {m.sliding_layers} of {m.layers} layers")
    if m.state_layers:
        kinds.append(f"state in {m.state_layers} of {m.layers} layers")
    if m.index_topk:
        kinds.append(f"sparse, {m.index_topk:,} tokens")
    return ", ".join(kinds)


class OfferList(Listing):
    """Offers as rows."""

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("offers=to_rows",)


def offer_list(offers: Sequence[Offer], used: Collection[Offer] = ()) -> OfferList:
    """Offers as rows; ``*`` marks those of `used`, which a plan takes without a price, ``stale`` one too old to rely on."""
    rows = [{**offer.to_dict(), "used": offer in used} for offer in offers]
    shown = [
        [
            offer.gpu,
            f"{offer.usd_per_gpu_hour:.4g}" + (" *" if offer in used else ""),
            offer.term,
            offer.vendor,
            offer.region or "-",
            offer.date,
            f"{offer.age_days()}" + (" stale" if offer.is_stale() else ""),
            "yours" if offer.own else "shipped",
        ]
        for offer in offers
    ]
    columns = ("gpu", "USD/GPU/hour", "term", "vendor", "region", "seen", "age, days", "list")
    left = set(columns) - {"USD/GPU/hour", "age, days"}
    return OfferList(rows, [Table(columns, shown, left), Text(["* what a plan takes without --price"])])


class Fact(TypedDict):
    """A number and where it is from."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class CatalogEntry(Listing):
    """An entry of the catalog as rows.

    Parameters
    ----------
    kind, name
        ``gpu`` or ``model``, and its canonical name.
    aliases
        Other names that mean it.
    facts
        Field -> value in SI units and source.
    """

    kind: str
    name: str
    aliases: Sequence[str]
    facts: Mapping[str, Fact]

    versioned: ClassVar[bool] = True


def gpu_entry(spec: GpuSpec, offer: Offer | None) -> CatalogEntry:
    """A GPU with the source of every number and the offer a plan takes."""
    sheet = spec.sources.get("flops_per_s", "")

    def fact(name: str, shown: str, source: str | None = None) -> tuple[str, object, str, str]:
        return name, getattr(spec, name), shown, spec.sources.get(name, "") if source is None else source

    rates = [
        (f"{dtype}_flops_per_s", value, f"{value / 1e12:,.4g} TFLOPS dense", sheet)
        for dtype, value in spec.flops_per_s.items()
    ]
    link, across, pair = spec.link_bytes_per_s, spec.node_link_bytes_per_s, spec.pair_bytes_per_s
    network = ("50 GB/s", "assumed: 400 Gbit/s per GPU") if across is None else (f"{format_bytes(across)}/s", sheet)
    power = f"{spec.power_w:,.0f} W" if spec.power_w else "-"
    price = "-" if spec.price_usd_per_hour is None else f"${spec.price_usd_per_hour:.4g} per GPU and hour"
    bought = "no offer known: give --price" if offer is None else f"{offer.describe()}; {offer.source}"
    facts = [
        fact("memory_bytes", format_bytes(spec.memory_bytes)),
        fact("bandwidth_bytes_per_s", f"{format_bytes(spec.bandwidth_bytes_per_s)}/s"),
        *rates,
        fact("link_bytes_per_s", "-" if link is None else f"{format_bytes(link)}/s each way"),
        fact("node_link_bytes_per_s", *network),
        fact("pair_bytes_per_s", f"{format_bytes(pair)}/s" if pair else "-", "catalog: bridge between two GPUs"),
        fact("power_w", power, "catalog: power limit of the board"),
        fact("gpus_per_node", f"{spec.gpus_per_node}", "catalog: largest tensor-parallel group of one node"),
        fact("sm_count", format_count(spec.sm_count) if spec.sm_count else "-", sheet),
        fact("gpu_class", spec.gpu_class, "by form factor, memory and link"),
        fact("attention_kernel", spec.attention_kernel or "-", "by compute capability"),
        fact("price_usd_per_hour", price, bought),
    ]
    return _entry("gpu", spec, facts)


def model_entry(spec: ModelSpec, kv_bytes_per_token: float) -> CatalogEntry:
    """A model's shape with its source; what a model does not have is left out."""
    source = spec.source or "the config.json given"
    facts: list[tuple[str, object, str, str]] = []
    for f in fields(spec):
        value = getattr(spec, f.name)
        if f.name in ("name", "aliases", "source") or (not value and f.name not in ("experts", "tied_embeddings")):
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        billions = f.name.startswith("parameters_")
        shown = f"{value / 1e9:,.4g} B" if billions else format_count(value) if number else str(value)
        facts.append((f.name, value, shown, COUNTED if billions else source))
    facts.append(("kv_bytes_per_token", kv_bytes_per_token, format_bytes(kv_bytes_per_token), DERIVED))
    return _entry("model", spec, facts)


def _entry(kind: str, spec: GpuSpec | ModelSpec, facts: Sequence[tuple[str, object, str, str]]) -> CatalogEntry:
    """The name, the facts (field, value in SI units, as people read it, source), and the other names."""
    rows = [{"field": name, "value": value, "source": source} for name, value, _, source in facts]
    numbers: dict[str, Fact] = {name: {"value": value, "source": source} for name, value, _, source in facts}
    page: list[Block] = [
        Text([spec.name], "heading"),
        Table(("field", "value", "source"), [[f, shown, source] for f, _, shown, source in facts], {"field", "source"}),
        Text([f"also: {', '.join(spec.aliases)}"] if spec.aliases else []),
    ]
    return CatalogEntry(rows, page, kind, spec.name, spec.aliases, numbers)
