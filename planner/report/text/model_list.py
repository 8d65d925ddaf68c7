"""Models of the catalog, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from planner.record import Record
from planner.report.blocks import Block, Table, Text

if TYPE_CHECKING:
    from planner.hardware import ModelSpec

COLUMNS = ("model", "parameters", "active", "context", "weights", "KV", "attention")


@dataclass(frozen=True, slots=True)
class ModelList(Record):
    """Models as rows.

    Parameters
    ----------
    models
        What to list, in order.
    """

    models: Sequence[ModelSpec]

    versioned: ClassVar[bool] = True
    written: ClassVar[tuple[str, ...]] = ("models=to_rows",)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per model."""
        return [
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
            for m in self.models
        ]


def blocks(listed: ModelList) -> list[Block]:
    """The models, and where to see more."""
    rows = [
        [
            m.name,
            f"{m.parameters_total / 1e9:,.4g} B",
            f"{m.parameters_active / 1e9:,.3g} B",
            f"{m.max_context:,}",
            m.weight_dtype,
            m.kv_dtype,
            _attention(m),
        ]
        for m in listed.models
    ]
    more = "shape, source and other names: fleetopt model show NAME; any other: --model path/to/config.json"
    return [Table(COLUMNS, rows, {"model", "weights", "KV", "attention"}), Text([more])]


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
