"""Runs a policy over a list of requests, on one node or on replicas behind a router."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.errors import FleetOptError, InputError, refuse
from planner.predict.engine import Clock, IterationTime, Node, Policy, Request
from planner.routing import find_routing
from planner.simulate.policies.distserve import PrefillNode
from planner.simulate.policy import find_policy, make_policy

if TYPE_CHECKING:
    import numpy as np


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
    busy_s
        Time spent in iterations, summed over the nodes [s].
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
    busy_s: float
    policies: list[Policy]


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
        Generator for random routing and random ties.

    Examples
    --------
    >>> from planner.iteration.model import IterationModel
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
    if len({r.index for r in requests}) != len(requests):
        raise InputError("requests: indices must be unique")
    ordered = sorted(requests, key=lambda r: (r.arrival, r.index))
    entry, given = find_policy(policy), dict(parameters or {})
    if entry.disaggregated:
        if replicas != 1:
            raise InputError("distserve is one prefill and one decode node; replicas must be 1")
        return _run_disaggregated(ordered, iteration, given, capacity)
    memory = capacity if entry.bounded_memory else math.inf
    accepted = [r for r in ordered if r.input_tokens + r.output_tokens - 1 <= memory]
    nodes = [Node(make_policy(policy, given, iteration), iteration, memory) for _ in range(replicas)]
    _Behind(nodes, accepted, routing, rng).go()
    return _collect(ordered, nodes, nodes, len(accepted))


def _check(requests: Sequence[Request]) -> None:
    """Refuse lengths that are no lengths and times that are no times."""
    problems = []
    for r in requests:
        if r.input_tokens < 1 or r.output_tokens < 1:
            problems.append(f"request {r.index}: input and output must be at least 1 token")
        if not (math.isfinite(r.arrival) and r.arrival >= 0.0):
            problems.append(f"request {r.index}: arrival {r.arrival!r} is no time")
        if len(problems) >= 10:
            break
    refuse(problems)


class _Behind(Clock):
    """Nodes behind a gateway that sends requests to them as a routing of :mod:`planner.routing` says."""

    def __init__(
        self, nodes: Sequence[Node], requests: Sequence[Request], routing: str, rng: np.random.Generator | None
    ) -> None:
        super().__init__(nodes)
        self.rule, self.rng, self.turn = find_routing(routing), rng, itertools.count()
        if rng is None and len(nodes) > 1 and not self.rule.in_turn:
            raise InputError(f"routing {self.rule.name!r} needs a random generator")
        one_queue = self.rule.one_queue and len(nodes) > 1
        self.slots = getattr(nodes[0].policy, "slots", math.inf) if one_queue else math.inf
        self.waiting: deque[Request] = deque()
        for request in requests:
            self.schedule(request.arrival, self.arrives, request)

    def arrives(self, request: Request) -> None:
        """A request comes to the gateway."""
        if self.waiting or min(node.in_system for node in self.nodes) >= self.slots:
            self.waiting.append(request)
        else:
            self.chosen().enqueue(request, self.now)

    def chosen(self) -> Node:
        """The node that takes a request."""
        nodes, rule = self.nodes, self.rule
        if self.rng is None or rule.in_turn:
            return nodes[next(self.turn) % len(nodes)]
        drawn = min(rule.candidates or len(nodes), len(nodes))
        seen = nodes
        if drawn < len(nodes):
            seen = [nodes[int(k)] for k in self.rng.choice(len(nodes), drawn, replace=False)]
        values = [node.held if rule.least == "tokens" else node.in_system for node in seen]
        best = [node for node, value in zip(seen, values, strict=True) if value == min(values)]
        return best[int(self.rng.random() * len(best))]

    def settle(self) -> None:
        """Those in the common queue go to the nodes that are about to decide and have slots left."""
        for node in self.nodes:
            while self.waiting and node.due <= self.now and node.in_system < self.slots:
                node.enqueue(self.waiting.popleft(), self.now)

    def soonest(self) -> float:
        """See :class:`Clock`: where all nodes sleep with full batches, one of them takes who is in the common queue."""
        if self.waiting and all(node.soonest == math.inf for node in self.nodes):
            first = min(self.nodes, key=lambda node: node.now)
            while self.waiting:
                first.enqueue(self.waiting.popleft(), self.now)
        return super().soonest()


class _Pair(Clock):
    """A prefill node, and a decode node that takes its requests so long after their first tokens [s]."""

    def __init__(self, nodes: Sequence[Node], moves_s: Callable[[Request], float]) -> None:
        super().__init__(nodes)
        self.moves_s = moves_s

    def ended(self, node: Node) -> None:
        """See :class:`Clock`: what is prefilled moves."""
        first, second = self.nodes
        for request in node.report.emitted if node is first and node.report else ():
            if request.output_tokens > 1:
                request.node_arrival = request.first_token_s + self.moves_s(request)
                self.schedule(request.node_arrival, lambda r: second.enqueue(r, r.node_arrival), request)


def _run_disaggregated(
    requests: list[Request], iteration: IterationTime, parameters: dict[str, Any], capacity: float
) -> Run:
    """A prefill node, and a decode node with what it hands over."""
    base = float(parameters.pop("transfer_base", 0.0))
    per_token = float(parameters.pop("transfer_per_token", 0.0))
    if not (base >= 0.0 and per_token >= 0.0):
        raise InputError("transfer_base and transfer_per_token must not be negative")
    policy = make_policy("distserve", parameters)
    accepted = [r for r in requests if r.output_tokens == 1 or r.input_tokens + r.output_tokens - 1 <= capacity]
    first, second = Node(PrefillNode(), iteration), Node(policy, iteration, capacity)
    pair = _Pair([first, second], lambda r: base + per_token * r.input_tokens)
    for request in accepted:
        pair.schedule(request.arrival, lambda r: first.enqueue(r, r.arrival), request)
    pair.go()
    return _collect(requests, [second], [first, second], len(accepted))


def _collect(requests: list[Request], nodes: list[Node], all_nodes: list[Node], accepted: int) -> Run:
    by_index = sorted(requests, key=lambda r: r.index)
    ended = {r.index for n in all_nodes for r in n.completed}
    left = {r.index for n in nodes for r in n.residents.values()} | {r.index for n in nodes for r in n.waiting}
    if len(ended) + len(left) != accepted or ended & left:
        raise FleetOptError(
            f"{accepted} requests went in, {len(ended)} came out and {len(left)} are inside: some were lost"
        )
    return Run(
        requests=by_index,
        rejected=[r.index for r in by_index if r.index not in ended and r.index not in left],
        unfinished=sorted(left),
        iterations=sum(n.iterations for n in nodes),
        evictions=sum(n.evictions for n in nodes),
        peak_held=max((n.peak_held for n in nodes), default=0),
        end_s=max((n.now for n in all_nodes if n.iterations), default=0.0),
        busy_s=sum(n.busy_s for n in all_nodes),
        policies=[n.policy for n in nodes],
    )
