"""Runs a policy over a list of requests, on one node or on replicas behind a router."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError, refuse
from planner.papers.policies.distserve import DecodeNode, PrefillNode
from planner.papers.policy import find_policy, make_policy
from planner.predict.engine import Clock, Gateway, IterationTime, Node, Policy, Request, by_arrival


@dataclass(slots=True)
class Run:
    """What happened: the requests with their times, and the totals of the nodes.

    Parameters
    ----------
    requests
        In index order, rejected ones included.
    rejected, unfinished
        Indices of requests that can never fit, and of those still in the system when nothing more could happen.
    iterations, evictions
        Totals over the nodes (of a disaggregated pair: of the decode node).
    peak_held
        Largest memory held by one node in any iteration [tokens].
    end_s
        End of the last iteration [s].
    policies
        The policy objects, for what controllers have recorded.
    """

    requests: list[Request]
    rejected: list[int]
    unfinished: list[int]
    iterations: int
    evictions: int
    peak_held: float
    end_s: float
    policies: list[Policy]


def as_requests(*columns: NDArray[Any]) -> list[Request]:
    """Requests by columns: arrivals, inputs, outputs, and where they have them classes and deadlines between tokens."""
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [Request(i, *row) for i, row in enumerate(rows)]


_MOST_REPLICAS = 10_000
"""More are not stepped one by one in Python in a time that anybody waits."""


def run_policy(
    requests: Sequence[Request],
    policy: str,
    iteration: IterationTime,
    parameters: Mapping[str, Any] | None = None,
    capacity: float = math.inf,
    replicas: int = 1,
    routing: str = "random",
    rng: np.random.Generator | None = None,
) -> Run:
    """Simulate `policy` until no work is left.

    Parameters
    ----------
    requests
        With arrival times [s], in any order; indices are unique.
    policy
        Name, or ``module:Class``; one for each replica is built.
    iteration
        Iteration-time model.
    parameters
        Parameters of the policy.
    capacity
        KV memory of each replica [tokens].
    replicas
        Number of replicas, >= 1.
    routing
        A name of :data:`planner.routing.ROUTINGS`; with one queue for all the policy's ``slots`` say when a replica is full.
    rng
        Generator for random routing and random ties; ``None`` = one of a fixed seed.

    Examples
    --------
    >>> from planner.machine.iteration import IterationModel
    >>> from planner.predict.engine import Canonical
    >>> half = Canonical(IterationModel(t0=0.5))
    >>> run = run_policy([Request(0, 0.0, 4, 3)], "mixed", half, {"slots": 1, "token_budget": 2})
    >>> run.requests[0].first_token_s, run.requests[0].done_s
    (1.0, 2.0)
    """
    _check(requests)
    if not 1 <= replicas <= _MOST_REPLICAS:
        raise InputError(f"replicas must lie in 1..{_MOST_REPLICAS:,} to be simulated one by one, got {replicas!r}")
    if not capacity > 0:
        raise InputError(f"capacity must be positive, got {capacity!r}")
    memory = capacity if find_policy(policy).bounded_memory else math.inf
    nodes = [Node(make_policy(policy, parameters or {}, iteration), iteration, memory) for _ in range(replicas)]
    prefills = [Node(PrefillNode(), iteration)] if isinstance(nodes[0].policy, DecodeNode) else []
    if prefills and replicas != 1:
        raise InputError("distserve is one prefill and one decode node; replicas must be 1")
    own = [r for r in requests if r.input_tokens + r.output_tokens - 1 <= memory or (prefills and r.output_tokens == 1)]
    _Behind(nodes, prefills, own, routing, rng or np.random.default_rng(0)).go()
    accepted = {r.index for r in own}
    by_index = sorted(requests, key=lambda r: r.index)
    return Run(
        requests=by_index,
        rejected=[r.index for r in by_index if r.index not in accepted],
        unfinished=[r.index for r in by_index if r.index in accepted and math.isnan(r.done_s)],
        iterations=sum(n.iterations for n in nodes),
        evictions=sum(n.evictions for n in nodes),
        peak_held=max(n.peak_held for n in nodes),
        end_s=max((n.now for n in (*prefills, *nodes) if n.iterations), default=0.0),
        policies=[n.policy for n in nodes],
    )


def _check(requests: Sequence[Request]) -> None:
    """Refuse lengths that are no lengths, times that are no times, and an index given twice."""
    short = [r for r in requests if r.input_tokens < 1 or r.output_tokens < 1]
    timeless = [r for r in requests if not (math.isfinite(r.arrival) and r.arrival >= 0.0)]
    problems = [f"request {r.index}: input and output must be at least 1 token" for r in short]
    problems += [f"request {r.index}: arrival {r.arrival!r} is no time" for r in timeless]
    if len({r.index for r in requests}) != len(requests):
        problems.append("requests: indices must be unique")
    refuse(problems)


class _Behind(Clock):
    """Nodes behind a gateway; of a disaggregated pair the decode node behind its prefill node."""

    def __init__(
        self,
        nodes: Sequence[Node],
        prefills: Sequence[Node],
        requests: Sequence[Request],
        routing: str,
        rng: np.random.Generator,
    ) -> None:
        super().__init__([*prefills, *nodes])
        slots = getattr(nodes[0].policy, "slots", math.inf) if len(nodes) > 1 else math.inf
        self.gateway, self.decode, self.rng = Gateway(prefills or nodes, routing, slots), nodes[0], rng
        for request in sorted(requests, key=by_arrival):
            self.schedule(request.arrival, self.arrives, request)

    def arrives(self, request: Request) -> None:
        """A request comes to the gateway."""
        if self.gateway.room():
            self.send(request)
        else:
            self.gateway.queue(request)

    def send(self, request: Request) -> None:
        """A node takes a request."""
        self.gateway.choose(lambda _, below: int(self.rng.random() * below)).enqueue(request, self.now)

    def settle(self) -> None:
        """Those in the common queue go on where there is room."""
        while self.gateway.waiting and self.gateway.room():
            self.send(heappop(self.gateway.waiting)[2])

    def ended(self, node: Node) -> None:
        """See :class:`Clock`: what is prefilled moves."""
        if isinstance(self.decode.policy, DecodeNode) and node is not self.decode and node.report:
            for request in node.report.emitted:
                if request.output_tokens > 1:
                    request.node_arrival = request.first_token_s + self.decode.policy.moves_s(request)
                    self.schedule(request.node_arrival, self.moved, request)

    def moved(self, request: Request) -> None:
        """A KV cache is there."""
        self.decode.enqueue(request, request.node_arrival)
