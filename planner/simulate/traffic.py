"""What a simulated pool is sent: requests with their times and lengths, batch after batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from planner.errors import InputError
from planner.simulate.arrivals import Arrival, arrival_batches

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True, eq=False)
class RequestBatch:
    """Requests in order of arrival: times [s], whole lengths [tokens] and whether they count, all of shape (requests,)."""

    times_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    cached_tokens: NDArray[np.int64]
    counted: NDArray[np.bool_] | None = None  # all

    def select(self, keep: NDArray[np.bool_]) -> RequestBatch:
        """The requests marked in `keep`."""
        counted = None if self.counted is None else self.counted[keep]
        lengths = (self.input_tokens[keep], self.output_tokens[keep], self.cached_tokens[keep])
        return RequestBatch(self.times_s[keep], *lengths, counted)


class Traffic(Protocol):
    """A source of requests."""

    @property
    def requests(self) -> int:
        """Requests of the first batch: those of a run that need not be longer."""

    @property
    def saturated(self) -> bool:
        """Whether everything waits at time 0."""

    @property
    def whole(self) -> bool:
        """Whether a run is all there is: every request of it counts, and only the gateway's draws differ between runs."""

    @property
    def smallest_tokens(self) -> int:
        """KV tokens that the smallest request holds at its end."""

    def batches(self, rng: np.random.Generator) -> Iterator[RequestBatch]:
        """Requests of one run, in order of time from one batch to the next."""


class SampledTraffic:
    """Lengths drawn with replacement from a joint law, times from an arrival process, for ever.

    Draws of a batch: its rows (:func:`sample_rows`), then its times (:func:`planner.simulate.arrivals.arrival_batches`).

    Parameters
    ----------
    input_tokens, output_tokens, weight
        Joint lengths by row and the weight of each row (``None`` = equal), shape (rows,). Fractional lengths are rounded to
        whole tokens >= 1 [tokens].
    arrival
        Arrival process, or a rate of Poisson arrivals [1/s].
    requests
        Requests of a batch, >= 1.
    cached_share
        Share of a prompt whose KV a prefix cache supplies, in [0, 1): one for all, or one per row, shape (rows,).
    """

    whole = False

    def __init__(
        self,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        weight: ArrayLike | None,
        arrival: Arrival | float,
        requests: int = 50_000,
        cached_share: ArrayLike = 0.0,
    ) -> None:
        self.arrival = arrival if isinstance(arrival, Arrival) else Arrival(rate_per_s=arrival)
        if not (isinstance(requests, int) and requests >= 1):
            raise InputError(f"requests must be a whole number >= 1, got {requests!r}")
        self.requests = requests
        self.weight = weight
        self.inputs = whole_tokens(input_tokens, "input_tokens")
        self.outputs = whole_tokens(output_tokens, "output_tokens")
        if self.inputs.shape != self.outputs.shape or self.inputs.ndim != 1:
            raise InputError("input_tokens and output_tokens must be two lists of the same length")
        self.cached = cached_tokens(self.inputs, cached_share)

    @property
    def saturated(self) -> bool:
        """Whether everything waits at time 0."""
        return self.arrival.process == "saturated"

    @property
    def smallest_tokens(self) -> int:
        """KV tokens that the smallest request holds at its end."""
        return int((self.inputs + self.outputs).min()) - 1

    def batches(self, rng: np.random.Generator) -> Iterator[RequestBatch]:
        """One batch of `requests` after the other."""
        times = arrival_batches(self.arrival, self.requests, rng)
        while True:
            rows = sample_rows(self.weight, self.inputs.size, self.requests, rng)
            yield RequestBatch(next(times), self.inputs[rows], self.outputs[rows], self.cached[rows])


def cached_tokens(inputs: NDArray[np.int64], cached_share: ArrayLike) -> NDArray[np.int64]:
    """Whole tokens of every prompt that the cache supplies; at least one of each is processed."""
    shares = np.asarray(cached_share, dtype=np.float64)
    if shares.shape not in ((), inputs.shape):
        raise InputError(f"cached_share must be one number or one per row ({inputs.size}), got {shares.size}")
    if not (np.all(shares >= 0.0) and np.all(shares < 1.0)):
        raise InputError("cached_share must lie in [0, 1)")
    # a share made of whole tokens gives them back
    return np.minimum(np.floor(shares * inputs + 1e-6), inputs - 1).astype(np.int64)


def sample_rows(weight: ArrayLike | None, rows: int, requests: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Row numbers of `requests` requests drawn with replacement.

    Draws: ``rng.integers(rows, size=requests)`` when all weights are equal, otherwise ``rng.random(requests)`` through
    the inverse of the cumulated weights.
    """
    if weight is None:
        return rng.integers(rows, size=requests)
    w = np.asarray(weight, dtype=float)
    if w.shape != (rows,) or not np.all(np.isfinite(w)) or np.any(w < 0.0) or not w.sum() > 0.0:
        raise InputError(f"weight: expected {rows} weights, none negative and not all zero")
    if np.all(w == w[0]):
        return rng.integers(rows, size=requests)
    cumulated = np.cumsum(w)
    return np.asarray(np.searchsorted(cumulated, rng.random(requests) * cumulated[-1], side="right").clip(0, rows - 1))


def whole_tokens(tokens: ArrayLike | Sequence[float], name: str) -> NDArray[np.int64]:
    """Lengths as whole tokens >= 1: rows of compact files may be fractional, engines are not."""
    values = np.asarray(tokens, dtype=float)
    if values.size == 0 or not np.all(np.isfinite(values)) or np.any(values < 0.0):
        raise InputError(f"{name}: lengths must be finite and not negative, at least one")
    return np.maximum(np.floor(values + 0.5), 1.0).astype(np.int64)
