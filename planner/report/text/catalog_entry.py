"""One GPU or one model, number by number, each with where it is from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from planner.report.blocks import Block, Table, Text
from planner.units import format_bytes, format_count

if TYPE_CHECKING:
    from planner.catalog.prices import Offer
    from planner.hardware import GpuSpec, ModelSpec

COUNTED = "arithmetic of the shape, or as published with it"
DERIVED = "computed from the numbers above"


class CatalogEntry:
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

    def __init__(
        self, kind: str, name: str, facts: Sequence[tuple[str, object, str, str]], aliases: Sequence[str]
    ) -> None:
        self.kind = kind
        self.name = name
        self.facts = facts
        self.aliases = aliases

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        found = {name: {"value": value, "source": source} for name, value, _, source in self.facts}
        return {"schema_version": 1, "kind": self.kind, "name": self.name, "aliases": [*self.aliases], "facts": found}

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per number."""
        return [{"field": name, "value": value, "source": source} for name, value, _, source in self.facts]


def gpu_entry(spec: GpuSpec, offer: Offer | None) -> CatalogEntry:
    """A GPU with the source of every number and the offer a plan takes."""
    stated = spec.sources
    sheet = stated.get("flops_per_s", "")
    rates = [
        (f"{dtype}_flops_per_s", value, f"{value / 1e12:,.4g} TFLOPS dense", sheet)
        for dtype, value in spec.flops_per_s.items()
    ]
    link, across = spec.link_bytes_per_s, spec.node_link_bytes_per_s
    price = spec.price_usd_per_hour
    return CatalogEntry(
        "gpu",
        spec.name,
        [
            ("memory_bytes", spec.memory_bytes, format_bytes(spec.memory_bytes), stated.get("memory_bytes", "")),
            (
                "bandwidth_bytes_per_s",
                spec.bandwidth_bytes_per_s,
                f"{format_bytes(spec.bandwidth_bytes_per_s)}/s",
                stated.get("bandwidth_bytes_per_s", ""),
            ),
            *rates,
            (
                "link_bytes_per_s",
                link,
                "-" if link is None else f"{format_bytes(link)}/s each way",
                stated.get("link_bytes_per_s", ""),
            ),
            (
                "node_link_bytes_per_s",
                across,
                "50 GB/s" if across is None else f"{format_bytes(across)}/s",
                "assumed: 400 Gbit/s per GPU" if across is None else sheet,
            ),
            (
                "pair_bytes_per_s",
                spec.pair_bytes_per_s,
                f"{format_bytes(spec.pair_bytes_per_s)}/s" if spec.pair_bytes_per_s else "-",
                "catalog: bridge between two GPUs",
            ),
            (
                "power_w",
                spec.power_w,
                f"{spec.power_w:,.0f} W" if spec.power_w else "-",
                "catalog: power limit of the board",
            ),
            (
                "gpus_per_node",
                spec.gpus_per_node,
                f"{spec.gpus_per_node}",
                "catalog: largest tensor-parallel group of one node",
            ),
            ("sm_count", spec.sm_count, format_count(spec.sm_count) if spec.sm_count else "-", sheet),
            ("gpu_class", spec.gpu_class, spec.gpu_class, "by form factor, memory and link"),
            ("attention_kernel", spec.attention_kernel, spec.attention_kernel or "-", "by compute capability"),
            (
                "price_usd_per_hour",
                price,
                "-" if price is None else f"${price:.4g} per GPU and hour",
                "no offer known: give --price" if offer is None else f"{offer.describe()}; {offer.source}",
            ),
        ],
        spec.aliases,
    )


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
