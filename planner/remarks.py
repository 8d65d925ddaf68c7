"""What a plan has to say, as a code with values; the sentences are made here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["SENTENCES", "Remark"]


@dataclass(frozen=True, slots=True)
class Remark:
    """One finding.

    Parameters
    ----------
    code
        What it is, for programs.
    values
        The numbers and names in it, JSON-ready.
    """

    code: str
    values: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return SENTENCES[self.code].format(**self.values)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {"code": self.code, "values": dict(self.values)}


SENTENCES: Mapping[str, str] = {
    # why a pool has the replicas it has
    "promise": "{promise} (one replica fewer breaks it)",
    "fleet_promise": "{promise} of the fleet, shared out between its pools",
    "only_pool_promise": "{promise}",
    "minimum": "the minimum of {replicas} replicas",
    "one_replica": "one replica is the least there is",
    "utilization_cap": "utilization cap {cap:.0%} of the maximum throughput",
    "hardware_floor": "what the arithmetic alone takes at the GPU's peak",
    "nobody_decodes": "nobody decodes",
    "stands": "the plan, whose fleet stands",
}
"""Code -> the sentence, a format string over the remark's values."""
