"""Metrics by the names that servers give them (``dialects.yaml``): vLLM, SGLang, TensorRT-LLM and Dynamo.

A metric may carry a prefix of the platform (``kserve_``), and ``:`` may have become ``_``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.engines import DEFAULT_ENGINE, engines
from planner.shared.documents import load_document


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one server names its metrics.

    Parameters
    ----------
    name
        Of the server.
    gauges, counters, histograms
        Quantity -> names, newest first; of histograms without ``_bucket``, ``_sum``, ``_count``.
    model_label
        Label with the name under which a model is served.
    bounds
        Quantity -> upper bounds of its histogram [s]; empty where they are the operator's to choose.
    """

    name: str
    gauges: Mapping[str, tuple[str, ...]]
    counters: Mapping[str, tuple[str, ...]]
    histograms: Mapping[str, tuple[str, ...]]
    model_label: str
    bounds: Mapping[str, tuple[float, ...]]


def _dialect(found: Mapping[str, Any]) -> Dialect:
    """One entry of the file."""
    kinds = [{q: tuple(names) for q, names in found[kind].items()} for kind in ("gauges", "counters", "histograms")]
    bounds = {q: tuple(map(float, of_one)) for q, of_one in found.get("bounds", {}).items()}
    return Dialect(found["name"], kinds[0], kinds[1], kinds[2], found["model_label"], bounds)


DIALECTS = tuple(map(_dialect, load_document(Path(__file__).with_name("dialects.yaml"))))
"""The dialects, tried in this order: engines before what stands in front of them."""


def dialect_of_engine(engine: str | None) -> Dialect:
    """How an engine names its metrics; ``None`` or one that is not known = the default engine."""
    known = engines()
    host = (engine or "").lower()
    title = known[host if host in known else DEFAULT_ENGINE].title
    return next(d for d in DIALECTS if d.name == title)
