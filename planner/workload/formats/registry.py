"""The known formats, most particular first; modules are imported when their kind of file turns up."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.workload.formats.base import Format

__all__ = ["format_names", "formats"]

_JSON = ("json", "jsonl", "array")

_MODULES: dict[str, tuple[str, ...]] = {
    "project_csv": ("csv",),
    "azure": ("csv",),
    "burstgpt": ("csv",),
    "splitwise": ("csv",),
    "litellm": ("csv", *_JSON),
    "langfuse": ("csv", *_JSON),
    "vllm_bench": _JSON,
    "guidellm": _JSON,
    "aiperf": _JSON,
    "inference_perf": _JSON,
    "prometheus": ("metrics", *_JSON),
    "otel": _JSON,
    "mooncake": _JSON,
    "sharegpt": _JSON,
    "fleetsim_cdf": _JSON,
    "openai_usage": _JSON,
    "generic": ("csv", *_JSON),
    "parquet": ("parquet",),
}


def formats(kind: str | None = None) -> Iterator[Format]:
    """Formats that a file of this kind can have, one after another; all of them for ``None``.

    >>> [f.name for f in formats("csv")][:2]
    ['fleetopt', 'azure']
    """
    for module, kinds in _MODULES.items():
        if kind is None or kind in kinds:
            chosen: Format = import_module(f"planner.workload.formats.{module}").FORMAT
            yield chosen


def format_names() -> tuple[str, ...]:
    """What ``--input-format`` takes."""
    return tuple(f.name for f in formats())
