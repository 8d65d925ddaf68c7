"""Runs a policy over a list of requests, on one node or on replicas behind a router."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from planner.errors import FleetOptError, InputError
from planner.predict.engine import Batch, IterationTime, Node, Policy, Request, check_requests
from planner.simulate.drive import drive
from planner.simulate.policies.distserve import DecodeNode, PrefillNode
from planner.simulate.policy import find_policy, make_policy
from planner.simulate.tables import RequestTable

if TYPE_CHECKING:
    import numpy as np


Log = Callable[[str, float, float, Batch, float], None]
"""Told of every iteration: node, start [s], duration [s], batch, memory held [tokens]."""


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


def run_policy(
    requests: Sequence[Request],
    policy: str | Callable[[], Policy],
    iteration: IterationTime,
    parameters: Mapping[str, Any] | None = None,
    capacity: float = math.inf,
    replicas: int = 1,
    routing: str = "random",
    rng: np.random.Generator | None = None,
    log: Log | None = None,
) -> Run:
    """Simulate `policy` until no work is left.

    Parameters
    ----------
    requests
        With arrival times [s], in any order; indices are unique.
    policy
        Name, ``module:Class``, or a function that builds a policy (one per replica).
    iteration
        Iteration-time model.
    parameters
        Parameters of the policy when it is given by name.
    capacity
        KV memory of each replica [tokens].
    replicas
        Number of replicas, >= 1.
    routing
        A name of :data:`planner.routing.ROUTINGS`; with one queue for all the policy's ``slots`` say when a replica is full.
    rng
        Generator for random routing and random ties.
    log
        Told of every iteration.

    Examples
    --------
    >>> from planner.iteration.model import IterationModel
    >>> from planner.predict.durations import Canonical
    >>> half = Canonical(IterationModel(t0=0.5))
    >>> run = run_policy([Request(0, 0.0, 4, 3)], "mixed", half, {"slots": 1, "token_budget": 2})
    >>> run.requests[0].first_token_s, run.requests[0].done_s
    (1.0, 2.0)
    """
    check_requests(requests)
    if not 1 <= replicas <= _MOST_REPLICAS:
        raise InputError(f"replicas must lie in 1..{_MOST_REPLICAS:,} to be simulated one by one, got {replicas!r}")
    if not capacity > 0:
        raise InputError(f"capacity must be positive, got {capacity!r}")
    if len({r.index for r in requests}) != len(requests):
        raise InputError("requests: indices must be unique")
    ordered = sorted(requests, key=lambda r: (r.arrival, r.index))
    disaggregated, bounded = False, True
    if isinstance(policy, str):
        entry, name = find_policy(policy), policy
        disaggregated, bounded = entry.disaggregated, entry.bounded_memory

    def told(label: str) -> Callable[[float, float, Batch, float], None] | None:
        return None if log is None else partial(log, label)

    if disaggregated:
        if replicas != 1:
            raise InputError("distserve is one prefill and one decode node; replicas must be 1")
        return _run_disaggregated(ordered, iteration, dict(parameters or {}), capacity, told)

    def build() -> Policy:
        return make_policy(name, parameters or {}, iteration) if isinstance(policy, str) else policy()

    def can_finish(r: Request) -> bool:
        return not bounded or r.input_tokens + r.output_tokens - 1 <= capacity

    accepted = [r for r in ordered if can_finish(r)]
    memory = capacity if bounded else math.inf
    nodes = [Node(build(), iteration, memory, told(str(i))) for i in range(replicas)]
    slots = getattr(nodes[0].policy, "slots", math.inf)
    drive([NodeReplica(n, accepted) for n in nodes], [r.arrival for r in accepted], routing, rng, slots)
    return _collect(ordered, nodes, nodes, len(accepted))


class NodeReplica:
    """A node as the driver sees it.

    Parameters
    ----------
    node
        The node.
    requests
        Requests by their number for the driver.
    """

    def __init__(self, node: Node, requests: Sequence[Request]) -> None:
        self.node, self._requests = node, requests

    @property
    def now(self) -> float:
        """End of the running iteration, or the decision that is due [s]."""
        return self.node.boundary

    @property
    def asleep(self) -> bool:
        """Whether it does nothing until something arrives."""
        return self.node.asleep

    @property
    def in_system(self) -> int:
        """Requests resident or waiting here."""
        return self.node.in_system

    def held_at(self, time: float) -> float:
        """Tokens held."""
        return self.node.held

    def request(self, number: int, time: float) -> Request:
        """The request of that number."""
        return self._requests[number]

    def enqueue(self, request: int, time: float) -> None:
        """A request arrives; a node must not see it before its time."""
        self.node.run_until(time)
        self.node.enqueue(self.request(request, time), time)

    def run(self, until: float) -> None:
        """Run until `until`."""
        self.node.run_until(until)


class TableReplica(NodeReplica):
    """A node that serves the requests of a table, and keeps the totals of a fast engine."""

    def __init__(self, node: Node, table: RequestTable) -> None:
        super().__init__(node, ())
        self.table = table
        self.completed = 0
        self.memory_bound = 0  # not counted here

    busy_s = property(lambda self: self.node.busy_s)
    resident_s = property(lambda self: self.node.resident_s)
    iterations = property(lambda self: self.node.iterations)
    preemptions = property(lambda self: self.node.evictions)
    waiting = property(lambda self: len(self.node.waiting))

    def request(self, number: int, time: float) -> Request:
        """A new request with the lengths of the table."""
        return Request(number, time, self.table.input_tokens[number], self.table.output_tokens[number])

    def run(self, until: float) -> None:
        """Run until `until`, and write down who is complete."""
        self.node.run_until(until)
        for request in self.node.completed:
            self.table.first[request.index], self.table.done[request.index] = request.first_token_s, request.done_s
        self.completed += len(self.node.completed)
        self.node.completed.clear()


def _run_disaggregated(
    requests: list[Request],
    iteration: IterationTime,
    parameters: dict[str, Any],
    capacity: float,
    told: Callable[[str], Callable[[float, float, Batch, float], None] | None],
) -> Run:
    """Prefill nodes first, then decode nodes with what they hand over."""
    base = float(parameters.pop("transfer_base", 0.0))
    per_token = float(parameters.pop("transfer_per_token", 0.0))
    if not (base >= 0.0 and per_token >= 0.0):
        raise InputError("transfer_base and transfer_per_token must not be negative")
    policy = make_policy("distserve", parameters)
    assert isinstance(policy, DecodeNode)
    accepted = [r for r in requests if r.output_tokens == 1 or r.input_tokens + r.output_tokens - 1 <= capacity]
    first = Node(PrefillNode(), iteration, math.inf, told("prefill"))
    for request in accepted:
        first.run_until(request.arrival)
        first.enqueue(request, request.arrival)
    first.run_until(math.inf)
    moving = [r for r in accepted if r.output_tokens > 1]
    for request in moving:
        request.node_arrival = request.first_token_s + (base + per_token * request.input_tokens)
        request.resident, request.held = False, 0
    moving.sort(key=lambda r: (r.node_arrival, r.arrival, r.index))
    second = Node(policy, iteration, capacity, told("decode"))
    for request in moving:
        second.run_until(request.node_arrival)
        second.enqueue(request, request.node_arrival)
    second.run_until(math.inf)
    run = _collect(requests, [second], [first, second], len(accepted))
    run.policies = [policy]
    return run


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
