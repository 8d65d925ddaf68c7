"""Metrics by the names that servers give them (``dialects.yaml``): vLLM, SGLang, TensorRT-LLM and Dynamo.

A metric may carry a prefix of the platform (``kserve_``), and ``:`` may have become ``_``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.documents import load_document
from planner.engines import DEFAULT_ENGINE, engines


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one server names its metrics.

    Parameters
    ----------
    name
        Of the server.
    gauges, counters, histograms
        Quantity -> names, newest first; of histograms without ``_bucket``, ``_sum``, ``_count``.
    """

    name: str
    gauges: Mapping[str, tuple[str, ...]]
    counters: Mapping[str, tuple[str, ...]]
    histograms: Mapping[str, tuple[str, ...]]


DIALECTS = tuple(
    Dialect(
        found["name"],
        *({q: tuple(names) for q, names in found[kind].items()} for kind in ("gauges", "counters", "histograms")),
    )
    for found in load_document(Path(__file__).with_name("dialects.yaml"))
)
"""The dialects, tried in this order: engines before what stands in front of them."""


def dialect_of_engine(engine: str | None) -> Dialect:
    """How an engine names its metrics; ``None`` or one that is not known = the default engine."""
    known = engines()
    host = (engine or "").lower()
    title = known[host if host in known else DEFAULT_ENGINE].title
    return next(d for d in DIALECTS if d.name == title)
