"""What a simulated pool is sent: the requests of one run, drawn from a law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from planner.errors import InputError
from planner.predict.records import Floats, Requests, keys_of
from planner.simulate.arrivals import Dispersion, arrival_times
from planner.workload.sending import Surge

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

DRAWN = 41
"""Kind of draw that gateways' choices about drawn requests hang on."""


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """The requests of one run.

    Parameters
    ----------
    requests
        In whole tokens; a weight says how much each counts, 0 = not measured; without weights the run has a warm-up.
    span_s
        Time during which they come [s].
    replicas
        Replicas they are for, where those stand for more; 0 = for all.
    apart
        Whether they are stretches of time with nothing between them.
    """

    requests: Requests
    span_s: float
    replicas: int = 0
    apart: bool = False


class Traffic(Protocol):
    """A source of requests."""

    @property
    def whole(self) -> bool:
        """Whether a run is all there is: every request of it counts, and runs are other draws of the same traffic."""

    def sent(self, seed: int) -> Sent:
        """The requests of one run."""


class SampledTraffic:
    """Lengths drawn with replacement from a joint law, times from an arrival process.

    Draws of a run: its rows (:func:`sample_rows`), then its times (:func:`planner.simulate.arrivals.arrival_times`).

    Parameters
    ----------
    input_tokens, output_tokens, weight
        Joint lengths by row and the weight of each row (``None`` = equal), shape (rows,). Fractional lengths are rounded to
        whole tokens >= 1 [tokens].
    rate_per_s
        Rate [1/s].
    requests
        Requests of a run, >= 1.
    cached_share
        Share of a prompt whose KV a prefix cache supplies, in [0, 1): one for all, or one per row, shape (rows,).
    dispersion, paced
        Bursts, or clients at constant gaps, as in :func:`planner.simulate.arrivals.arrival_times`.
    surge
        Flash crowds, whose requests alone count.
    """

    whole = False

    def __init__(
        self,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        weight: ArrayLike | None,
        rate_per_s: float,
        requests: int = 50_000,
        cached_share: ArrayLike = 0.0,
        dispersion: Dispersion = (),
        paced: int | None = None,
        surge: Surge | None = None,
    ) -> None:
        if not (isinstance(requests, int) and requests >= 1):
            raise InputError(f"requests must be a whole number >= 1, got {requests!r}")
        self.requests, self.rate_per_s, self.weight = requests, rate_per_s, weight
        self.dispersion, self.paced, self.surge = dispersion, paced, surge
        self.inputs = whole_tokens(input_tokens, "input_tokens")
        self.outputs = whole_tokens(output_tokens, "output_tokens")
        if self.inputs.shape != self.outputs.shape or self.inputs.ndim != 1:
            raise InputError("input_tokens and output_tokens must be two lists of the same length")
        self.cached = cached_tokens(self.inputs, cached_share)

    def sent(self, seed: int) -> Sent:
        """See :class:`Traffic`."""
        rng = np.random.Generator(np.random.PCG64(seed))
        rows = sample_rows(self.weight, self.inputs.size, self.requests, rng)
        times = arrival_times(self.rate_per_s, self.requests, rng, self.dispersion, self.paced)
        weight = None
        if self.surge is not None:
            times = self.surge.warp(times)
            weight = self.surge.counts(times).astype(np.float64)
        number = np.arange(self.requests)
        key = keys_of(number, np.full_like(number, seed), DRAWN)
        requests = requests_of(times, (self.inputs, self.outputs, self.cached), rows, key, weight)
        return Sent(requests, float(times[-1]))


def requests_of(
    times_s: Floats,
    lengths: Sequence[NDArray[np.int64]],
    row: NDArray[np.int64],
    key: NDArray[np.uint64],
    weight: Floats | None = None,
) -> Requests:
    """Requests at given times [s]: whole input, output and cached tokens by row, and each one's row, key and weight."""
    inputs, outputs, cached = (column[row].astype(np.float64) for column in lengths)
    return Requests(times_s, inputs, outputs, cached, key, weight=weight)


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
