"""Who gets which requests: pools by total length, and prompts just above a boundary compressed to it.

Class by total length: pool k takes B_{k-1} < L <= B_k. A request of a compressible category with B < L <= gamma B and an output
that fits (L_out < B) is compressed to the total B with probability p_c: its input becomes B - L_out, its output stays. All others
stay where their length puts them, and every pool is described by exactly the requests that it gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.workload.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["PoolLaw", "compression_probability", "pool_flows"]


@dataclass(frozen=True, slots=True)
class PoolLaw:
    """The requests of one pool.

    Parameters
    ----------
    share
        Share of all requests [1]; 0 for a pool that gets none (then the arrays are empty).
    compressed_share
        Share of all requests that come here compressed [1].
    input_tokens, output_tokens, total_tokens, lower_tokens, weight, category
        Columns as in :class:`~planner.workload.workload.Workload`; weights sum to 1.
    low, high
        Native range of the total, low < L <= high [tokens].
    """

    share: float
    compressed_share: float
    input_tokens: Floats
    output_tokens: Floats
    total_tokens: Floats
    lower_tokens: Floats
    weight: Floats
    category: NDArray[np.int64]
    low: float
    high: float

    def workload(self, base: Workload, name: str | None = None) -> Workload:
        """The pool's requests as a workload, its arrivals those of `base` thinned by the share.

        Raises
        ------
        InputError
            The pool gets no request.
        """
        if self.share <= 0.0:
            raise InputError(f"{base.name}: no request goes to the pool {self.low:g}..{self.high:g} tokens")
        requests = base.provenance.requests
        title = name or base.name
        return Workload.from_arrays(
            self.input_tokens,
            self.output_tokens,
            weight=self.weight,
            total_tokens=self.total_tokens,
            lower_tokens=self.lower_tokens,
            category=self.category,
            categories=base.categories,
            compressible=base.compressible,
            arrivals=base.arrivals.thinned(self.share),
            name=title,
            provenance=replace(
                base.provenance,
                name=title,
                requests=None if requests is None else round(requests * self.share),
                exact=False,
            ),
        )


def compression_probability(workload: Workload, p_c: float | None) -> Floats:
    """Probability by row that its prompt can be compressed [1], shape (rows,).

    Parameters
    ----------
    workload
        The requests.
    p_c
        One probability for all [1]; ``None`` = by category, 0 where it is not known.
    """
    if p_c is None:
        by_category = np.array([0.0 if p is None else p for p in workload.compressible])
        return by_category[workload.category]
    if not 0.0 <= p_c <= 1.0:
        raise InputError(f"p_c must lie in 0..1, got {p_c!r}")
    return np.full(workload.rows, float(p_c))


def _check(boundaries: Sequence[float], gammas: Sequence[float]) -> None:
    problems = []
    if any(not b > 0.0 for b in boundaries) or any(b <= a for a, b in pairwise(boundaries)):
        problems.append(f"boundaries must be positive and increasing, got {tuple(boundaries)!r}")
    if len(gammas) != len(boundaries):
        problems.append(f"one gamma per boundary: {len(boundaries)} boundaries, {len(gammas)} gammas")
    if any(not g >= 1.0 for g in gammas):
        problems.append(f"gammas must be at least 1, got {tuple(gammas)!r}")
    if problems:
        raise InputError.from_problems(problems)


def pool_flows(
    workload: Workload, boundaries: Sequence[float], gammas: Sequence[float], p_c: float | None = None
) -> list[PoolLaw]:
    """Exact laws of the pools between boundaries, compression included.

    With several boundaries a request that lies in more than one band goes, if compressed, to the lowest pool that takes it;
    a compression that fails leaves it in its native pool.

    Parameters
    ----------
    workload
        All requests.
    boundaries
        K - 1 increasing totals [tokens]; none = one pool.
    gammas
        One per boundary, >= 1 [1]; 1 = no compression.
    p_c
        Probability that a compression succeeds [1]; ``None`` = the category's own (0 where unknown).

    Returns
    -------
    list of PoolLaw
        K pools, shares sum to 1.

    References
    ----------
    FleetOpt, eq. (1)-(2) and Algorithm 1, with the band that is not compressed kept in the long pool.

    >>> w = Workload.from_arrays([80, 140, 170, 400], [20, 10, 20, 50])
    >>> short, long = pool_flows(w, (100,), (1.5,), p_c=1.0)
    >>> short.share, short.input_tokens.tolist(), long.share
    (0.5, [80.0, 90.0], 0.5)
    """
    _check(boundaries, gammas)
    edges = [0.0, *(float(b) for b in boundaries), np.inf]
    below = [np.zeros(workload.rows), *(workload.fraction_below(b) for b in boundaries), np.ones(workload.rows)]
    probability = compression_probability(workload, p_c)
    # share of every row compressed to each boundary, lowest boundary first; a total is in the band of B from B up, so
    # what an earlier band took ends where that band ends
    taken = np.zeros(workload.rows)
    compressed: list[Floats] = []
    native_loss = [np.zeros(workload.rows) for _ in range(len(edges) - 1)]
    for k, (boundary, gamma) in enumerate(zip(boundaries, gammas, strict=True)):
        fits = workload.output_tokens < boundary
        top = workload.fraction_below(gamma * boundary)
        start = np.maximum(below[k + 1], taken)
        part = np.where(fits, np.maximum(top - start, 0.0), 0.0)
        taken = np.where(part > 0.0, np.maximum(taken, top), taken)
        compressed.append(part * probability)
        # the band may reach over several native pools: each loses what lies in it
        for j in range(k + 1, len(edges) - 1):
            piece = np.clip(np.minimum(top, below[j + 1]) - np.maximum(start, below[j]), 0.0, None)
            native_loss[j] += np.where(fits, piece, 0.0) * probability

    pools = []
    for k in range(len(edges) - 1):
        native = (below[k + 1] - below[k] - native_loss[k]) * workload.weight
        keep = native > 1e-15
        columns = [
            [workload.input_tokens[keep]],
            [workload.output_tokens[keep]],
            [np.minimum(workload.total_tokens[keep], edges[k + 1])],
            [_lower(workload, keep, edges[k])],
            [native[keep]],
        ]
        category = [workload.category[keep]]
        arrived = 0.0
        if k < len(boundaries):
            moved = compressed[k] * workload.weight
            arrived = float(moved.sum())
            use = moved > 0.0
            if arrived > 0.0:
                at = np.full(int(use.sum()), edges[k + 1])
                columns[0].append(edges[k + 1] - workload.output_tokens[use])
                columns[1].append(workload.output_tokens[use])
                columns[2].append(at)
                columns[3].append(at)
                columns[4].append(moved[use])
                category.append(workload.category[use])
        weight = np.concatenate(columns[4])
        share = float(weight.sum())
        pools.append(
            PoolLaw(
                share=share,
                compressed_share=arrived,
                input_tokens=np.concatenate(columns[0]),
                output_tokens=np.concatenate(columns[1]),
                total_tokens=np.concatenate(columns[2]),
                lower_tokens=np.concatenate(columns[3]),
                weight=weight / share if share > 0.0 else weight,
                category=np.concatenate(category),
                low=edges[k],
                high=edges[k + 1],
            )
        )
    return pools


def _lower(workload: Workload, keep: NDArray[np.bool_], edge: float) -> Floats:
    lower = workload.lower_tokens[keep]
    return np.where(lower < workload.total_tokens[keep], np.maximum(lower, edge), lower)
