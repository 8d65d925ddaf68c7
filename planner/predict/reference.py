"""The replay in plain Python: the same rules as `kernel.c`, one iteration and one event after the other.

It shares nothing with the kernel but the records and the iteration-time model, and is what the kernel is held to. Its replicas
are the engine of the policies of ``simulate`` with the rules of mixed batching.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any

import numpy as np

from planner.catalog.kv import BLOCK_TOKENS
from planner.machine.iteration import IterationModel
from planner.predict import records
from planner.predict.checks import check
from planner.predict.engine import Clock, Gateway, Node
from planner.predict.records import Decoders, Limit, Outage, PrefixCache, Replicas, Requests, Run, uniform
from planner.predict.reference_cache import PrefixMemory
from planner.predict.reference_replica import Replica, Sending
from planner.workload.sending import Clients


def replay(
    requests: Requests,
    replicas: Replicas,
    clients: Clients | None = None,
    cache: PrefixCache | None = None,
    decoders: Decoders | None = None,
    outages: Sequence[Outage] = (),
    limits: Sequence[Limit] = (),
    gaps: bool = False,
) -> Run:
    """Requests taken one by one through replicas: what became of each.

    Parameters
    ----------
    requests, replicas, clients, cache, decoders, outages, limits
        See :mod:`planner.predict.records`; no limit ends this replay early, but it says whether one was broken.
    gaps
        Whether the gaps between tokens are counted.

    Raises
    ------
    InputError
        The question makes no sense, see :func:`planner.predict.checks.check`.

    Examples
    --------
    >>> one, two = np.ones(2), np.full(2, 2.0)
    >>> keys = np.arange(2, dtype=np.uint64)
    >>> half = Replicas(1, IterationModel(t0=0.5), slots=1)
    >>> replay(Requests(np.zeros(2), one, two, 0 * one, keys), half).done_s.tolist()
    [1.0, 2.0]
    """
    check(requests, replicas, clients, cache, decoders, outages, limits)
    return _Replay(requests, replicas, clients or Clients(), cache, decoders, outages, gaps).run(limits)


@dataclass(slots=True)
class _Call:
    """What the client of a row waits for.

    `tried` and `sent` count its own sendings after the first, and all sendings but the first; it is `open` from a sending until
    it is answered, turned away or given up, and `started` once it has had a token since its client sent it; `sending` is what
    a replica has of it.
    """

    tried: int = 0
    sent: int = -1
    open: bool = False
    started: bool = False
    sending: Sending | None = None


class _Replay(Clock):
    """A replay in progress; the rules are those of the module's documentation."""

    def __init__(
        self,
        requests: Requests,
        replicas: Replicas,
        clients: Clients,
        cache: PrefixCache | None,
        decoders: Decoders | None,
        outages: Sequence[Outage],
        gaps: bool,
    ) -> None:
        n = requests.size
        self.requests, self.clients, self.cached, self.decoders = requests, clients, cache is not None, decoders
        self.inputs, self.outputs = requests.input_tokens.tolist(), requests.output_tokens.astype(int).tolist()
        self.prompt_only = replicas.engine == "prefill"
        self.given = replicas
        ranks = None if requests.priority is None else np.unique(requests.priority, return_inverse=True)[1]
        ranked = ranks is not None and int(ranks.max()) > 0
        self.rank = ranks.tolist() if ranks is not None else [0] * n
        whole = not np.any(requests.input_tokens % 1.0)
        self.keys = requests.key.tolist()
        self.gateways: list[Gateway[Replica]] = []
        for given in (replicas, decoders.replicas) if decoders else (replicas,):
            floored = whole and isinstance(given.iteration, IterationModel) and given.iteration.rows != 1.0
            everyone = [
                Replica(
                    given,
                    floored,
                    ranked,
                    decodes_only=bool(self.gateways),
                    cache=PrefixMemory(cache, requests) if cache and not self.gateways else None,
                    token=self.token,
                    lost=self.lost,
                )
                for _ in range(given.count)
            ]
            slots = 1 if given.engine == "prefill" else given.slots
            self.gateways.append(Gateway(everyone, given.routing, slots))
        self.everyone = [r for gateway in self.gateways for r in gateway.nodes]
        super().__init__(self.everyone)
        self.front = self.gateways[0]
        self.calls = [_Call() for _ in range(n)]
        for row in np.flatnonzero(np.isfinite(requests.arrival_s)).tolist():
            self.schedule(float(requests.arrival_s[row]), self.first_sending, row)
        self.outages = sorted(
            [(o.end_s, 0, k, o.replica) for k, o in enumerate(outages) if o.end_s < math.inf]
            + [(o.start_s, 1, k, o.replica) for k, o in enumerate(outages)]
        )[::-1]
        self.sendings = self.under_way = 0
        self.held_back: list[tuple[float, int]] = []  # heap of (arrival, row): clients that have too many under way
        self.stranded: dict[int, None] = {}  # rows that wait until a replica is up
        self.homes: dict[int, Replica] = {}
        self.sent: dict[int, Replica] = {}  # where prompts that end with a piece were sent last
        self.out: dict[str, Any] = {
            **{k: np.full(n, math.nan) for k in ("sent_s", "admitted_s", "first_s", "done_s", "moved_s")},
            **{k: np.zeros(n, dtype=np.int32) for k in ("preempted", "attempts", "rejected", "given_up")},
            **{k: np.full(n, -1, dtype=np.int32) for k in ("replica", "decode_replica")},
            **{k: np.zeros(n) for k in ("found_tokens", "host_tokens")},
        }
        self.gaps = np.zeros(records.GAP_BINS) if gaps else None

    def run(self, limits: Sequence[Limit]) -> Run:
        """Until nothing is left to happen."""
        self.go()
        totals: dict[str, Any] = {
            "iterations": np.array([r.iterations for r in self.everyone], dtype=np.float64),
            **{k: np.array([getattr(r, k) for r in self.everyone]) for k in ("busy_s", "resident_s", "decode_s")},
            "recomputed_tokens": float(sum(r.recomputed for r in self.everyone)),
        }
        run = Run(**self.out, **totals, gaps=self.gaps)
        broken = any(self.late(run, limit) > limit.late for limit in limits)
        return replace(run, ended_early=self.requests.size) if broken else run

    def soonest(self) -> float:
        """See :class:`Clock`: or a replica dies or comes back."""
        return min(super().soonest(), self.outages[-1][0]) if self.outages else super().soonest()

    def late(self, run: Run, limit: Limit) -> float:
        """Weight of the requests beyond a limit."""
        r = self.requests
        # what is never answered is beyond every limit
        beyond = np.isnan(run.done_s) | (run.taken_s(limit.metric, r.output_tokens - 1.0) > limit.limit_s)
        return float(np.sum((np.ones(r.size) if r.weight is None else r.weight)[beyond]))

    # --- what replicas do ------------------------------------------------------------------------------------------

    def ended(self, node: Node) -> None:
        """Those who are complete leave; then those whose clients are gone."""
        assert isinstance(node, Replica)
        for request in node.completed:
            assert isinstance(request, Sending)
            self.complete(node, request)
        node.completed.clear()
        for request in [r for r in node.residents.values() if isinstance(r, Sending) and r.doomed]:
            node.drop(request)

    def token(self, sending: Sending, now: float) -> None:
        """A client sees a token."""
        if sending.doomed:
            return
        row = sending.row
        if math.isnan(sending.last_emission_s):
            self.out["first_s"][row] = now
            self.calls[row].started = True
        elif self.gaps is not None:
            self.gaps[gap_bin(now - sending.last_emission_s)] += self.weight(row)
        sending.last_emission_s = now

    def lost(self, sending: Sending) -> None:
        """A request lost its memory."""
        self.out["preempted"][sending.row] += 1

    def weight(self, row: int) -> float:
        """What a row counts."""
        return 1.0 if self.requests.weight is None else float(self.requests.weight[row])

    def complete(self, replica: Replica, sending: Sending) -> None:
        """A replica is through with a request: its answer is complete, or its KV cache is moved."""
        replica.unpin(sending)
        self.count(sending)
        if sending.doomed:
            return
        row = sending.row
        if replica.cache is not None and replica.cache.knows(row):
            replica.cache.keep(row, sending.output_tokens, sending.found, replica.capacity - replica.held, self.now)
        if self.decoders is not None and not replica.decodes_only and self.outputs[row] > 1:
            self.schedule(self.now + float(self.decoders.transfer_s[row]), self.moved, sending)
            return
        self.out["done_s"][row] = self.now
        self.calls[row].open = False
        self.over(row)

    def count(self, sending: Sending) -> None:
        """What a sending tells of its stay, if it is its request's last."""
        row, out = sending.row, self.out
        if self.calls[row].sending is sending:
            out["admitted_s"][row] = sending.admitted_s
            out["found_tokens"][row], out["host_tokens"][row] = sending.found, sending.from_host

    def moved(self, prefilled: Sending) -> None:
        """A KV cache is there: a decode replica takes it."""
        row = prefilled.row
        self.out["moved_s"][row] = self.now
        decoding = self.new(row, self.inputs[row] + 1, self.outputs[row] - 1)
        decoding.prefilled, decoding.last_emission_s = -1, prefilled.last_emission_s
        self.to_decode(decoding)

    def to_decode(self, sending: Sending) -> None:
        """A decode replica takes a request, or it waits for one."""
        if not self.gateways[1].room():
            self.gateways[1].queue(sending, sending.rank)
        else:
            self.decode(sending)

    def decode(self, sending: Sending) -> None:
        """A decode replica takes a request."""
        row = sending.row
        replica = self.chosen(1, row)
        self.out["decode_replica"][row] = self.gateways[1].nodes.index(replica)
        replica.take(sending, self.now, self.now)

    def outages_change(self) -> None:
        """Replicas that are back, then those that die: what they held is sent again."""
        while self.outages and self.outages[-1][0] <= self.now:
            _, starts, _, number = self.outages.pop()
            replica = self.front.nodes[number]
            replica.dead = bool(starts)
            if starts:
                lost = [*replica.residents.values(), *replica.waiting, *replica.coming, *replica.loading.values()]
                replica.empty()
                for row in sorted(r.row for r in lost if isinstance(r, Sending) and not r.doomed):
                    self.send(row)
            elif not (self.outages and self.outages[-1][0] <= self.now and not self.outages[-1][1]):
                stranded, self.stranded = self.stranded, {}
                for row in stranded:
                    self.place(row)

    # --- what clients do -------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Replicas die or come back; what clients and common queues hold is sent as long as there is room."""
        self.outages_change()
        while self.held_back and self.under_way < self.clients.in_flight:
            self.begin(heappop(self.held_back)[1])
        for pool in self.gateways:
            while pool.waiting and pool.room():
                sending = heappop(pool.waiting)[2]
                assert isinstance(sending, Sending)
                if pool is self.front:
                    self.deliver(self.chosen(0, sending.row), sending)
                else:
                    self.decode(sending)

    def first_sending(self, row: int) -> None:
        """A client wants to send a request."""
        beyond = self.under_way >= self.clients.in_flight
        if beyond and self.clients.leave:
            self.under_way += 1
            self.out["sent_s"][row] = self.now
            self.out["attempts"][row] += 1
            self.reject(row)
        elif beyond:
            heappush(self.held_back, (self.now, row))
        else:
            self.begin(row)

    def begin(self, row: int) -> None:
        """A request is under way."""
        self.under_way += 1
        self.by_client(row)

    def send_again(self, row: int) -> None:
        """A client tries once more."""
        self.calls[row].tried += 1
        self.by_client(row)

    def by_client(self, row: int) -> None:
        """A client sends a request, and waits."""
        call = self.calls[row]
        self.out["sent_s"][row] = self.now
        call.started, call.open = False, True
        if self.clients.timeout_s < math.inf:
            self.schedule(self.now + self.clients.timeout_s, self.time_out, (row, call.tried))
        self.send(row)

    def send(self, row: int) -> None:
        """A request is sent, by its client or because its replica died: nothing of earlier sendings is left."""
        call = self.calls[row]
        call.sent += 1
        call.sending = None
        self.out["attempts"][row] += 1
        self.out["admitted_s"][row] = self.out["first_s"][row] = math.nan
        self.out["found_tokens"][row] = self.out["host_tokens"][row] = 0.0
        self.out["replica"][row] = self.out["decode_replica"][row] = -1
        self.place(row)

    def place(self, row: int) -> None:
        """A request is at the gateway: it goes to a replica, waits for one, or is turned away."""
        prompt = self.inputs[row]
        output = 1 if self.prompt_only else self.outputs[row]
        if self.helps(row):
            self.calls[row].sending = sending = self.new(row, prompt, self.outputs[row])
            self.to_decode(sending)
            return
        if self.front.rule.one_queue:
            if not self.can_hold(row):
                self.reject(row)
                return
            sending = self.new(row, prompt, output)
            if self.front.room():
                self.deliver(self.chosen(0, row), sending)
            else:
                self.front.queue(sending, sending.rank)
            return
        if not self.front.alive():
            self.stranded[row] = None
            return
        replica, rules = self.choose(row), self.clients
        full = replica.new >= rules.max_queue or replica.new_tokens + prompt > rules.max_queued_tokens
        if (full and replica.in_system > 0) or not self.can_hold(row):
            self.reject(row)
        else:
            self.deliver(replica, self.new(row, prompt, output))

    def helps(self, row: int) -> bool:
        """Whether a decode replica computes the prompt of a row too."""
        if self.decoders is None or self.outputs[row] == 1:
            return False
        waiting = len(self.front.waiting) + sum(r.new for r in self.front.nodes)
        late = waiting >= self.decoders.helps_at or not self.front.alive()
        return (
            late
            and self.decoders.helps_at < math.inf
            and self.everyone[-1].can_hold(self.inputs[row], self.outputs[row])
        )

    def can_hold(self, row: int) -> bool:
        """Whether a request can ever be complete here."""
        prompt, output = self.inputs[row], self.outputs[row]
        here = self.everyone[0].can_hold(prompt, 1 if self.prompt_only else output)
        return here and (self.decoders is None or output == 1 or self.everyone[-1].can_hold(prompt + 1, output - 1))

    def new(self, row: int, prompt: float, output: int) -> Sending:
        """A request as a replica knows it; slots of their own take a prompt in so many iterations."""
        self.sendings += 1
        cached, tokens = float(self.requests.cached_tokens[row]), prompt + output
        if self.given.engine == "slots":
            prompt, cached = 1.0 - (cached - prompt) // self.given.token_budget, 0.0
        where: dict[str, Any] = {"row": row, "rank": self.rank[row], "cached": cached, "kv_tokens": tokens}
        if self.requests.images is not None:
            where["images"] = float(self.requests.images[row])
        return Sending(self.sendings, self.now, prompt, output, **where)

    def deliver(self, replica: Replica, sending: Sending) -> None:
        """A replica takes a request."""
        row = sending.row
        self.calls[row].sending = sending
        self.out["replica"][row] = self.front.nodes.index(replica)
        ready = self.now
        if replica.cache is not None:
            sending.from_host, ready = replica.cache.loaded(row, replica.capacity - replica.held, self.now)
        if ready > self.now:
            self.schedule(ready, self.prefix_loaded, (replica, sending))
        replica.take(sending, self.now, ready)

    def prefix_loaded(self, what: tuple[Replica, Sending]) -> None:
        """A prefix is back on the GPU: its request joins the queue, unless it is gone."""
        replica, sending = what
        if replica.loading.pop(sending.index, None) is not None:
            replica.join(sending, self.now)

    def choose(self, row: int) -> Replica:
        """The replica of a request: where its session was, where most of its prompt is, or as the gateway does without."""
        r, affinity = self.requests, self.front.rule.affinity
        session = -1 if r.session is None else int(r.session[row])
        if session >= 0 and affinity == "session":
            if session not in self.homes or self.homes[session].dead:
                self.homes[session] = self.chosen(0, row)
            return self.homes[session]
        if session >= 0 and affinity == "prefix":
            here = self.by_prefix(row) or self.chosen(0, row)
            if pieces := self.pieces(row):
                self.sent[pieces[-1]] = here
            return here
        return self.chosen(0, row)

    def chosen(self, pool: int, row: int) -> Replica:
        """The replica of a pool that its gateway chooses for a row; of the four draws of a sending each gateway has two."""
        first = 4 * self.calls[row].sent + 2 * pool
        return self.gateways[pool].choose(lambda number, below: int(uniform(self.keys[row], first + number) * below))

    def pieces(self, row: int) -> list[int]:
        """Names of what a row's prompt shares with others."""
        r = self.requests
        if self.front.nodes[0].cache is None or r.shared_offset is None or r.shared_name is None:
            return []
        return [int(name) for name in r.shared_name[int(r.shared_offset[row]) : int(r.shared_offset[row + 1])]]

    def by_prefix(self, row: int) -> Replica | None:
        """The replica that holds most of a prompt, or else to which its last piece was sent, unless it is crowded."""
        alive = self.front.alive()
        found = [sum(k.cache.found(row, self.now).values()) if k.cache else 0.0 for k in alive]
        near = [k for k, tokens in zip(alive, found, strict=True) if tokens > max(found) - BLOCK_TOKENS]
        here = min(near, key=lambda k: k.in_system) if max(found) >= BLOCK_TOKENS else None
        if here is None and (pieces := self.pieces(row)):
            sent = self.sent.get(pieces[-1])
            here = sent if sent and not sent.dead else None
        least = min(alive, key=lambda k: k.in_system)
        crowd = max(least.in_system + records.CROWD, records.CROWDED * least.in_system)
        return least if here and here.in_system > crowd else here

    def reject(self, row: int) -> None:
        """A request is turned away."""
        self.out["rejected"][row] += 1
        self.again(row)

    def time_out(self, what: tuple[int, int]) -> None:
        """A client that has had no token gives up; the engine drops the request as soon as it can."""
        row, tried = what
        call = self.calls[row]
        if not call.open or call.started or call.tried != tried:
            return
        self.out["given_up"][row] += 1
        self.stranded.pop(row, None)
        if call.sending is not None:
            sending, pool, number = call.sending, self.front, int(self.out["replica"][row])
            if number < 0:
                pool, number = self.gateways[1], int(self.out["decode_replica"][row])
            sending.doomed = True
            self.count(sending)
            if number < 0:
                pool.drop(sending)
            elif not sending.resident or pool.nodes[number].end == math.inf:
                pool.nodes[number].drop(sending)
        self.again(row)

    def again(self, row: int) -> None:
        """A request was turned away or given up: once more, or never answered."""
        call = self.calls[row]
        call.open = False
        if call.tried < self.clients.retries:
            self.schedule(self.now + self.clients.retry_after_s, self.send_again, row)
        else:
            self.over(row)

    def over(self, row: int) -> None:
        """A request was answered or has failed for good: the session's next call follows after its gap."""
        self.under_way -= 1
        following = self.requests.following
        if following is not None and following[row] >= 0:
            assert self.requests.gap_s is not None
            after = int(following[row])
            self.schedule(self.now + float(self.requests.gap_s[after]), self.first_sending, after)


def gap_bin(gap_s: float) -> int:
    """The bin of a gap between tokens, see :data:`planner.predict.records.GAP_BINS`.

    >>> gap_bin(2.0**-20), gap_bin(2.0**-19), gap_bin(0.0), gap_bin(1e9)
    (0, 32, 0, 1023)
    """
    if gap_s <= records.GAP_LEAST_S:
        return 0
    half, octave = math.frexp(gap_s / records.GAP_LEAST_S)  # half in [0.5, 1)
    place = (octave - 1) * records.GAP_PER_OCTAVE + int((2.0 * half - 1.0) * records.GAP_PER_OCTAVE)
    return min(place, records.GAP_BINS - 1)
