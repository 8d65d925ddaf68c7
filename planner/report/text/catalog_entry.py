"""One GPU or one model, number by number, each with where it is from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from planner.record import Record
from planner.report.blocks import Block, Table, Text
from planner.units import format_bytes, format_count

if TYPE_CHECKING:
    from planner.catalog.prices import Offer
    from planner.hardware import GpuSpec, ModelSpec

COUNTED = "arithmetic of the shape, or as published with it"
DERIVED = "computed from the numbers above"


class Fact(TypedDict):
    """A number and where it is from."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class CatalogEntry(Record):
    """An entry of the catalog as rows.

    Parameters
    ----------
    kind, name
        ``gpu`` or ``model``, and its canonical name.
    facts
        (field, value in SI units, as people read it, source) per number.
    aliases
        Other names that mean it.
    """

    kind: str
    name: str
    facts: Sequence[tuple[str, object, str, str]]
    aliases: Sequence[str]

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("kind", "name", "aliases", "facts=numbers")

    @property
    def numbers(self) -> dict[str, Fact]:
        """Field -> value and source."""
        return {name: {"value": value, "source": source} for name, value, _, source in self.facts}

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per number."""
        return [{"field": name, **fact} for name, fact in self.numbers.items()]


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
    return CatalogEntry("gpu", spec.name, facts, spec.aliases)


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
    return CatalogEntry("model", spec.name, facts, spec.aliases)


def blocks(entry: CatalogEntry) -> list[Block]:
    """The name, the numbers with their sources, and the other names."""
    rows = [[name, shown, source] for name, _, shown, source in entry.facts]
    others = [f"also: {', '.join(entry.aliases)}"] if entry.aliases else []
    return [
        Text([entry.name], "heading"),
        Table(("field", "value", "source"), rows, {"field", "source"}),
        Text(others),
    ]
