"""GPUs of the catalog, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from planner.record import Record
from planner.report.blocks import Block, Table, Text
from planner.units import format_bytes

if TYPE_CHECKING:
    from planner.hardware import GpuSpec

COLUMNS = ("gpu", "memory", "bandwidth", "BF16", "FP8", "USD/GPU/hour", "price of")


@dataclass(frozen=True, slots=True)
class GpuList(Record):
    """GPUs as rows.

    Parameters
    ----------
    gpus
        What to list, in order.
    """

    gpus: Sequence[GpuSpec]

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("gpus=to_rows",)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per GPU."""
        return [
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
            for g in self.gpus
        ]


def blocks(listed: GpuList) -> list[Block]:
    """The GPUs, and where to see more."""

    def rate(spec: GpuSpec, dtype: str) -> str:
        found = spec.flops_per_s.get(dtype)
        return "-" if found is None else f"{found / 1e12:,.0f} TFLOPS"

    rows = [
        [
            g.name,
            format_bytes(g.memory_bytes),
            f"{format_bytes(g.bandwidth_bytes_per_s)}/s",
            rate(g, "bf16"),
            rate(g, "fp8"),
            "-" if g.price_usd_per_hour is None else f"{g.price_usd_per_hour:.4g}",
            g.sources.get("price_usd_per_hour", "no offer known: --price"),
        ]
        for g in listed.gpus
    ]
    return [Table(COLUMNS, rows, {"gpu", "price of"}), Text(["sources and other names: fleetopt gpu show NAME"])]
