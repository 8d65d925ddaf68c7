"""Requests of a benchmark through replicas as the planner's replay takes them, and what their client would have seen."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import FleetOptError
from planner.predict.records import Decoders, PrefixCache, Replicas, Requests, Run, keys_of
from planner.predict.run import replay
from planner.workload.sending import Clients

FloatArray = NDArray[np.float64]


def table(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a CSV, or none where there is no such file or it is none."""
    rows: list[dict[str, str]] = []
    with skipping(path.name):
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.is_file() else []
    yield from rows


def each(rows: Sequence[dict[str, str]], *columns: str) -> dict[str, list[dict[str, str]]]:
    """Rows by what these columns say of their system, in order; it is named by the first, by all where two share that."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(name) or "" for name in columns), []).append(row)
    first = [key[0] for key in found]
    return {key[0] if first.count(key[0]) == 1 else " ".join(key).strip(): own for key, own in found.items()}


UNUSABLE = (FleetOptError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, OSError, csv.Error)
"""What unknown models and GPUs, and files that are broken, raise."""


@contextmanager
def skipping(what: str) -> Iterator[None]:
    """Measurements that cannot be judged, named on standard error: the others still count."""
    try:
        yield
    except UNUSABLE as error:
        print(f"{what}: left out: {type(error).__name__}: {str(error).partition(chr(10))[0]}", file=sys.stderr)


def random(seed: int) -> np.random.Generator:
    """Random numbers that are the same on every machine."""
    return np.random.Generator(np.random.PCG64(seed))


def poisson(rate_per_s: float, count: int, seed: int = 1) -> FloatArray:
    """Times of so many Poisson arrivals, shape (count,) [s]."""
    return np.cumsum(random(seed).exponential(1.0 / rate_per_s, count))


def paced(rate_per_s: float, span_s: float, seed: int = 1) -> FloatArray:
    """Arrivals of a generator whose workers keep their pace: by chance within a second, as many in every second, [s]."""
    second = np.arange(max(round(rate_per_s * span_s), 1)) // max(rate_per_s, 1.0)
    return np.sort(
        second * max(1.0, 1.0 / rate_per_s) + random(seed).uniform(0.0, max(1.0, 1.0 / rate_per_s), second.size)
    )


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Requests in order of arrival; lengths broadcast to shape (rows,).

    Parameters
    ----------
    arrival_s
        When each is sent [s].
    input_tokens, output_tokens, cached_tokens
        Lengths, and prompt tokens that are supplied whatever happens [tokens].
    group, shared_tokens
        Which prefix a prompt begins with and its length [tokens]; ``None`` = nothing is shared.
    """

    arrival_s: FloatArray
    input_tokens: ArrayLike
    output_tokens: ArrayLike
    cached_tokens: ArrayLike = 0.0
    group: NDArray[np.int64] | None = None
    shared_tokens: float = 0.0

    def requests(self) -> Requests:
        """As the replay takes them."""
        size = self.arrival_s.size
        columns = (np.array(np.broadcast_to(v, size), dtype=float) for v in (self.input_tokens, self.output_tokens))
        prompt, output = (np.maximum(np.rint(v), 1.0) for v in columns)
        cached = np.minimum(np.broadcast_to(self.cached_tokens, size), prompt - 1.0)
        rows = np.arange(size)
        shared = {}
        if self.group is not None:
            shared = {
                "session": rows,
                "repeated_tokens": np.zeros(size),
                "shared_offset": np.arange(size + 1),
                "shared_name": self.group.astype(np.int64),
                "shared_tokens": np.full(size, self.shared_tokens),
            }
        return Requests(self.arrival_s, prompt, output, cached, keys_of(rows, np.zeros_like(rows), 0), **shared)


def through(
    load: Load,
    replicas: Replicas,
    *,
    in_flight: float | None = None,
    cache: PrefixCache | None = None,
    decoders: Replicas | None = None,
    transfer_s: ArrayLike = 0.0,
) -> Run:
    """The load through replicas, and where `decoders` are given through those behind them."""
    clients = None if in_flight is None else Clients(in_flight=in_flight)
    requests = load.requests()
    second = None
    if decoders is not None:
        second = Decoders(decoders, np.array(np.broadcast_to(transfer_s, requests.size), dtype=float))
    return replay(requests, replicas, clients, cache, second)


def tpot_s(run: Run, output_tokens: ArrayLike) -> FloatArray:
    """Time per token after the first of every request that has one, shape (requests with two tokens,) [s]."""
    steps = np.broadcast_to(np.asarray(output_tokens, dtype=float) - 1.0, run.first_s.shape)
    kept = steps > 0.0
    return np.asarray((run.done_s - run.first_s)[kept] / steps[kept])


def completed_per_s(run: Run) -> float:
    """Requests over the time from the first that was sent to the last token [1/s]."""
    return float(np.isfinite(run.done_s).sum() / (np.nanmax(run.done_s) - np.nanmin(run.sent_s)))


def quantile(values: Sequence[float] | FloatArray, level: float) -> float:
    """A quantile, of what there is."""
    return float(np.nanquantile(np.asarray(values), level))
