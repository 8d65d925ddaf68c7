"""Whether the GPUs there are hold any fleet that bears a rate: pools by length, each of one GPU type, without sizes.

Of the fleet that may take least, by the bounds of its pools, one pool after the other is asked whether it does with the GPUs that
the others leave it at most. Where none of its engines does its bound rises; once all do together, all requests have the last word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.size.problem import FleetProblem
from planner.size.search import Edge, FloatArray, cheapest_within, edges_of
from planner.size.shapes.colocated import Colocated, pool_names

Refused = dict[tuple[float, Edge], float]
"""Rate [1/s] and pool of an engine (lower state, upper state, engine) -> GPUs that it takes at least."""


@dataclass(slots=True)
class Fitting:
    """See the module.

    Parameters
    ----------
    problem
        The question at the rate, with engines of the types alone.
    have
        GPU type -> how many there are.
    refused
        What was refused at other rates, of which the lower ones hold here: more traffic takes no fewer GPUs. Added to.
    """

    problem: FleetProblem
    have: Mapping[str, int]
    refused: Refused
    _held: dict[Edge, tuple[float, int]] = field(default_factory=dict)

    def fleet(self) -> Colocated | None:
        """A fleet of all GPUs that its engines can use; ``None`` where there is none."""
        problem, kinds, there = self.problem, tuple(self.have), tuple(self.have.values())
        prices = [option.price for option in problem.options]
        each = np.array([p.least_usd_per_replica_hour for p in prices])[:, None, None]
        size = np.array([float(p.gpus_per_replica) for p in prices])[:, None, None]
        taken: FloatArray = np.ceil(problem.option_bounds / each * (1.0 - 1e-6)) * size
        rows = [[k for k, o in enumerate(problem.options) if o.gpu.name == kind] for kind in kinds]
        while not problem.stops():
            for (rate, (i, j, k)), gpus in self.refused.items():
                taken[k, i, j] = max(taken[k, i, j], gpus if rate <= problem.rate else 0.0)
            low = np.stack([np.min(taken[own], axis=0) for own in rows])
            found = cheapest_within(low, low, kinds, self.have, problem.inputs.pools)
            if found is None:
                break
            edges = [(i, j, t) for i, j, t in edges_of(found[1]) if not problem.is_empty(i, j)]
            asked = [self._next([e for e in edges if e[2] == t], low[t], n) for t, n in enumerate(there)]
            if not any(asked):
                if fleet := self._confirmed(edges):
                    return fleet
                continue
            (i, j, t), gpus = next(filter(None, asked))
            last = {k for _, k in self._held.values()}
            for k in sorted(rows[t], key=lambda k: (k not in last, taken[k, i, j], k)):
                if taken[k, i, j] <= gpus and (enough := self._suffice((i, j, k), gpus)):
                    self._held[i, j, t] = enough, k
                    break
        return None

    def _next(self, pools: Sequence[Edge], low: FloatArray, there: int) -> tuple[Edge, float] | None:
        """Of the pools of a type the one to ask, and with how many GPUs; ``None`` where there are enough for all."""
        least = {edge: float(low[edge[:2]]) for edge in pools}
        if new := [edge for edge in pools if edge not in self._held]:
            # of equals that of the longest requests, whose bound is the loosest
            edge = max(reversed(new), key=least.__getitem__)
            return edge, there - math.fsum(least.values()) + least[edge]
        over = math.fsum(self._held[edge][0] for edge in pools) - there
        if over <= 0.0:
            return None
        edge = max(pools, key=lambda edge: self._held[edge][0] - least[edge])
        held = self._held[edge][0]
        return edge, held - over if held - over >= least[edge] else (held + least[edge]) // 2

    def _suffice(self, edge: Edge, gpus: float, sure: bool = False) -> float:
        """GPUs of so many that a pool of an engine keeps its promises with; 0 where it does not."""
        price = self.problem.options[edge[2]].price
        replicas = price.most_within(int(gpus))
        if replicas and self.problem.keeps(edge, replicas, sure):
            return float(price.bought(replicas) * price.gpus_per_replica)
        self.refused[self.problem.rate, edge] = gpus + 1.0
        return 0.0

    def _confirmed(self, edges: Sequence[Edge]) -> Colocated | None:
        """The fleet of pools that hold, where all requests say so too; what they leave of a type its first one gets."""
        left, made = [float(n) for n in self.have.values()], []
        for edge in edges:
            left[edge[2]] -= self._held[edge][0]
        for edge, name in zip(edges, pool_names(len(edges)), strict=True):
            (i, j, t), (gpus, k) = edge, self._held[edge]
            option, built = self.problem.options[k], self.problem.build(i, j, k)
            assert built is not None
            gpus, left[t] = gpus + left[t], 0.0
            if not self._suffice((i, j, k), gpus, sure=True):
                del self._held[edge]
                return None
            pool = built.sized(option.price.most_within(int(gpus)))
            made.append(self.problem.alike((i, j, k), replace(pool, name=name)))
        return Colocated(self.problem.question, made)
