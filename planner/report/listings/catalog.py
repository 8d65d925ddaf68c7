"""The catalog: GPUs, models and offers one line each; one GPU or one model number by number, each with where it is from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from planner.report.pages import Listing, pages, rows_of, told_beside, written
from planner.units import format_bytes, format_count

if TYPE_CHECKING:
    from planner.catalog.prices import Offer
    from planner.machine.hardware import GpuSpec, ModelSpec

_page = pages(__file__)

COUNTED = "arithmetic of the shape, or as published with it"
DERIVED = "computed from the numbers above"


class GpuList(Listing):
    """GPUs as rows."""

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("gpus=to_rows",)


class ModelList(Listing):
    """Models as rows."""

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("models=to_rows",)


class OfferList(Listing):
    """Offers as rows."""

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("offers=to_rows",)


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


def gpu_list(gpus: Sequence[GpuSpec]) -> GpuList:
    """GPUs as rows, and where to see more."""
    rows = rows_of(
        told_beside(__file__)["gpu_row"], gpus, aliases=lambda g: " ".join(a.replace(" ", "-") for a in g.aliases)
    )
    offered = {g.name: g.sources.get("price_usd_per_hour", "no offer known: --price") for g in gpus}
    return GpuList(rows, _page("gpus", None, gpus=gpus, price_of=lambda g: offered[g.name]))


def model_list(models: Sequence[ModelSpec]) -> ModelList:
    """Models as rows, and where to see more."""
    rows = rows_of(told_beside(__file__)["model_row"], models, aliases=lambda m: " ".join(m.aliases))
    return ModelList(rows, _page("models", None, models=models, attention=_attention))


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


def offer_list(offers: Sequence[Offer], used: Collection[Offer] = ()) -> OfferList:
    """Offers as rows; ``*`` marks those of `used`, which a plan takes without a price, ``stale`` one too old to rely on."""
    rows = [{**offer.to_dict(), "used": offer in used} for offer in offers]
    return OfferList(rows, _page("offers", None, offers=offers, used=lambda offer: offer in used))


def gpu_entry(spec: GpuSpec, offer: Offer | None) -> CatalogEntry:
    """A GPU with the source of every number and the offer a plan takes."""
    sheet = spec.sources.get("flops_per_s", "")
    bought = "no offer known: give --price" if offer is None else f"{offer.describe()}; {offer.source}"
    facts = [
        _fact(
            name,
            getattr(spec, name),
            written(told, spec, {}),
            source.format(sheet=sheet, bought=bought) or spec.sources.get(name, ""),
        )
        for name, told, source in told_beside(__file__)["gpu_facts"]
    ]
    if spec.node_link_bytes_per_s is None:
        facts[3] |= {"shown": "50 GB/s", "source": "assumed: 400 Gbit/s per GPU"}
    rates = spec.flops_per_s.items()
    facts[2:2] = [_fact(f"{of}_flops_per_s", v, f"{v / 1e12:,.4g} TFLOPS dense", sheet) for of, v in rates]
    return _entry("gpu", spec, facts)


def model_entry(spec: ModelSpec, kv_bytes_per_token: float) -> CatalogEntry:
    """A model's shape with its source; what a model does not have is left out."""
    facts = []
    for f in fields(spec):
        value = getattr(spec, f.name)
        if f.name in ("name", "aliases", "source") or (not value and f.name not in ("experts", "tied_embeddings")):
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        billions = f.name.startswith("parameters_")
        shown = f"{value / 1e9:,.4g} B" if billions else format_count(value) if number else str(value)
        facts.append(_fact(f.name, value, shown, COUNTED if billions else spec.source or "the config.json given"))
    facts.append(_fact("kv_bytes_per_token", kv_bytes_per_token, format_bytes(kv_bytes_per_token), DERIVED))
    return _entry("model", spec, facts)


def _fact(name: str, value: object, shown: str | None, source: str) -> dict[str, Any]:
    """A number in SI units and as people read it, and where it is from."""
    return {"field": name, "value": value, "shown": shown, "source": source}


def _entry(kind: str, spec: GpuSpec | ModelSpec, facts: Sequence[dict[str, Any]]) -> CatalogEntry:
    """The name, the facts, and the other names."""
    page = _page("entry", spec, facts=facts, also=", ".join(spec.aliases))
    numbers: dict[str, Fact] = {f["field"]: {"value": f["value"], "source": f["source"]} for f in facts}
    return CatalogEntry(rows_of(("field", "value", "source"), facts), page, kind, spec.name, spec.aliases, numbers)
