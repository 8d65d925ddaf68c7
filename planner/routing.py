"""What the gateway in front of a pool does with an arrival: one record per routing, the only place that knows their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from planner.errors import InputError, did_you_mean


@dataclass(frozen=True, slots=True)
class Routing:
    """A routing rule.

    Parameters
    ----------
    name, summary
        Name on the command line and in files, and what the gateway does.
    candidates
        Distinct replicas drawn at random for an arrival; ``None`` = all of them.
    least
        What the replica chosen among the candidates has least of, ties at random: ``"requests"`` in flight (resident or
        waiting there), ``"tokens"`` of KV memory held, or ``""`` where the gateway does not look at the replicas.
    in_turn
        Candidates are taken in turn, not drawn.
    one_queue
        Arrivals wait in one queue of the pool, not at a replica, until a slot is free.
    aliases
        Other names people use.
    law
        What the closed forms of :mod:`planner.queueing` call it; ``None`` = there is none for it.
    gateway
        How gateways are told to do it.
    affinity
        What comes back to the replica it was on before, for its prefix cache: ``"session"``, ``"prefix"`` (whatever prompts
        share), or ``""``. What is new goes where `candidates` and `least` say.
    """

    name: str
    summary: str
    candidates: int | None = None
    least: Literal["", "requests", "tokens"] = ""
    in_turn: bool = False
    one_queue: bool = False
    aliases: tuple[str, ...] = ()
    law: Literal["random", "p2c", "jsq", "rr"] | None = None
    gateway: str = ""
    affinity: Literal["", "session", "prefix"] = ""

    @property
    def pooled(self) -> bool:
        """Whether the replicas of a pool fill up together, as one server would."""
        return bool(self.least) and self.candidates is None

    @property
    def by_rate_per_replica(self) -> bool:
        """Whether a replica sees nothing but its share of the rate, however many others there are."""
        return self.candidates == 1 and not self.in_turn


ROUTINGS: Mapping[str, Routing] = {
    r.name: r
    for r in (
        Routing(
            "random",
            "any replica, each with the same probability",
            candidates=1,
            law="random",
            gateway="nginx `random`, Envoy RANDOM, HAProxy `random(1)`; a Kubernetes Service through iptables",
        ),
        Routing(
            "rr",
            "in turn",
            candidates=1,
            in_turn=True,
            aliases=("round-robin",),
            law="rr",
            gateway="nginx and HAProxy `roundrobin` as they start, Envoy ROUND_ROBIN",
        ),
        Routing(
            "p2c",
            "of two replicas drawn at random the one with fewer requests in flight (Envoy's LEAST_REQUEST)",
            candidates=2,
            least="requests",
            aliases=("envoy",),
            law="p2c",
            gateway="Envoy LEAST_REQUEST with choice_count 2, nginx `random two least_conn`",
        ),
        Routing(
            "least",
            "fewest requests in flight",
            least="requests",
            aliases=("jsq", "least-requests"),
            law="jsq",
            gateway="nginx `least_conn`, HAProxy `leastconn`, the queue scorer of llm-d",
        ),
        Routing("least-kv", "least KV memory held", least="tokens"),
        Routing(
            "sticky",
            "the replica a session was on before, any for a new one (a cookie, a hash of the session)",
            candidates=1,
            law="random",
            affinity="session",
            gateway="Envoy MAGLEV or nginx `hash` over a header of the session, HAProxy `balance hdr(...)`, a cookie",
        ),
        Routing(
            "prefix",
            "the replica whose cache holds most of the prompt, else where such went before, else any (llm-d, SGLang's router)",
            candidates=1,
            law="random",
            affinity="prefix",
            gateway="the prefix-cache scorer of llm-d, SGLang's router",
        ),
        Routing("central", "one queue for all replicas", least="requests", one_queue=True),
    )
}
"""The routings by name."""

DEFAULT_ROUTING = "p2c"
"""What a plan takes where nothing is said: what a gateway does that compares two replicas; the plan says how to set it."""


def find_routing(name: str) -> Routing:
    """The routing called `name` (or by one of its aliases), or an InputError.

    >>> find_routing("jsq").name
    'least'
    """
    name = name.replace("_", "-")
    for routing in ROUTINGS.values():
        if name == routing.name or name in routing.aliases:
            return routing
    known = [n for r in ROUTINGS.values() for n in (r.name, *r.aliases)]
    raise InputError(f"routing {name!r} is not known{did_you_mean(name, known)}", f"Known: {', '.join(ROUTINGS)}.")
