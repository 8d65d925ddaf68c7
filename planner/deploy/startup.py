"""How long a replica takes from being started until it serves, estimated from its weights where nobody has measured it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.catalog.kv import weight_bytes
from planner.machine.hardware import ModelSpec
from planner.units import format_duration

PROCESS_S = 16.0
"""From starting the container until the engine reads weights (vllm issue 44881, one RTX 5090) [s]."""

DISK_BYTES_PER_S = 1.3e9
"""Weights from a local disk into GPU memory (21.8 GiB in 18 s, vllm issue 44881) [bytes/s]."""

DOWNLOAD_BYTES_PER_S = 0.25e9
"""Weights from a model hub, assumed [bytes/s]."""

ENGINE_S, ENGINE_S_PER_LAYER = 10.0, 1.5
"""Compiling, warming up and capturing graphs: 39 s for 32 layers (vllm pull request 11005), 145 s for 80 (issue 19824) [s]."""


@dataclass(frozen=True, slots=True)
class Startup:
    """Time from starting a replica until it serves.

    Parameters
    ----------
    seconds
        The time [s].
    parts
        What it is made of [s]; empty where it was given.
    """

    seconds: float
    parts: Mapping[str, float]

    @property
    def told(self) -> str:
        """In words."""
        if not self.parts:
            return f"start-up {format_duration(self.seconds)}, as given"
        parts = ", ".join(f"{name} {format_duration(s)}" for name, s in self.parts.items())
        told = (
            f"start-up estimated at {format_duration(self.seconds)} ({parts}); a node without the image or a new node"
        )
        return f"{told} takes minutes more: measure it and give --startup"


def estimated_startup(model: ModelSpec, cached: bool) -> Startup:
    """The time of an image that is on the node already.

    Parameters
    ----------
    model
        What is loaded.
    cached
        Whether the weights lie on a disk of the node; else they are downloaded first.

    Examples
    --------
    >>> from planner.catalog.load import model
    >>> round(estimated_startup(model("llama-3.1-8b"), cached=True).seconds)
    86
    """
    stored = weight_bytes(model)
    parts = {"container": PROCESS_S}
    if not cached:
        parts["download"] = stored / DOWNLOAD_BYTES_PER_S
    parts["weights"] = stored / DISK_BYTES_PER_S
    parts["engine"] = ENGINE_S + ENGINE_S_PER_LAYER * model.layers
    return Startup(sum(parts.values()), parts)
