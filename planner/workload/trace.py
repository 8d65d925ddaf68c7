"""The requests of a trace one by one: when each came and how long it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Trace"]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival, each with its own lengths: what a replay sends.

    Parameters
    ----------
    times_s
        Arrival times from the first request on [s], shape (requests,), not decreasing.
    input_tokens, output_tokens
        Lengths of the same requests [tokens], shape (requests,).
    category
        Index into the workload's categories, shape (requests,).
    """

    times_s: Floats
    input_tokens: Floats
    output_tokens: Floats
    category: NDArray[np.int64]

    @property
    def requests(self) -> int:
        """Number of requests."""
        return int(self.times_s.size)

    @property
    def rate_per_s(self) -> float:
        """Requests over the time from the first to the last [1/s]."""
        return self.requests / float(self.times_s[-1])

    def select(self, keep: NDArray[np.bool_]) -> Trace:
        """The requests marked in `keep`, shape (requests,), at their own times."""
        return Trace(self.times_s[keep], self.input_tokens[keep], self.output_tokens[keep], self.category[keep])
