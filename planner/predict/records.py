"""What a replay is asked and what it answers: the words shared by the kernel and the reference in Python.

A replay takes requests one by one (:class:`Requests`), the replicas that serve them (:class:`Replicas`), and where they are
stated what clients do (:mod:`planner.workload.sending`), where prompts are kept (:class:`PrefixCache`), the decode replicas behind
prefill replicas (:class:`Decoders`) and replicas that die (:class:`Outage`). It answers with one row per request (:class:`Run`).

Every random choice is a function of a request's `key` and of the ordinal of the choice, :func:`uniform`, so that the same request
makes the same choice on fleets of any size and engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner.machine.iteration import IterationModel
from planner.workload.sending import Amount, Count, Positive, Room, Size

Floats = NDArray[np.float64]

GOLDEN = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: the step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), as in kernel.c."""


def uniform(key: int, ordinal: int) -> float:
    """The draw number `ordinal` (>= 0) of the request `key` (64 bits), in [0, 1): splitmix64 of both [1].

    >>> round(uniform(1, 0), 6), round(uniform(1, 1), 6)
    (0.566562, 0.745782)
    """
    mask = (1 << 64) - 1
    z = (key + (ordinal + 1) * GOLDEN) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return float((z ^ (z >> 31)) >> 11) * 2.0**-53


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Requests:
    """Requests in order of arrival, a row each.

    Parameters
    ----------
    arrival_s
        When each is sent, not decreasing, finite, >= 0 [s], shape (rows,); of a row that another one's answer brings (see
        `following`) inf.
    input_tokens, output_tokens
        Lengths, >= 1 [tokens]; outputs are whole. Where speculation counts in what a step yields, prompts are fractional.
    cached_tokens
        Prompt tokens that are supplied whatever happens: held, not processed; in [0, input) [tokens].
    key
        Identity on which random choices hang, shape (rows,), uint64.
    priority
        Class, smaller first, shape (rows,); ``None`` = first come, first served.
    session
        Session, -1 = none, shape (rows,); ``None`` = nobody comes back. Rows of a session stand together, in order.
    following, gap_s
        Row of the session's next call, -1 = none; and how long after the answer before a row is sent [s].
    repeated_tokens
        Prefix that the session's call before left, beyond what sessions share [tokens].
    weight
        What each counts towards limits and the histogram of gaps; ``None`` = 1.
    images
        Images of each prompt, whose encoder runs in the iteration that admits it; ``None`` = none.
    shared_offset, shared_name, shared_tokens
        What a prompt shares with others from its beginning on, one piece after the other: row i has the pieces
        ``shared_offset[i] : shared_offset[i + 1]``, each a name (>= 0) and its tokens; ``None`` = nothing.
    """

    arrival_s: Floats
    input_tokens: Floats
    output_tokens: Floats
    cached_tokens: Floats
    key: NDArray[np.uint64]
    priority: NDArray[np.int32] | None = None
    session: NDArray[np.int64] | None = None
    following: NDArray[np.int64] | None = None
    gap_s: Floats | None = None
    repeated_tokens: Floats | None = None
    shared_offset: NDArray[np.int64] | None = None
    shared_name: NDArray[np.int64] | None = None
    shared_tokens: Floats | None = None
    weight: Floats | None = None
    images: Floats | None = None

    @property
    def size(self) -> int:
        """Rows."""
        return int(self.arrival_s.size)


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a pool and the gateway in front of them.

    Parameters
    ----------
    count
        Replicas, >= 1.
    iteration
        Iteration-time model; for ``slots`` also the durations of an iteration with 0..slots active slots [s].
    slots, token_budget
        Sequences at once and tokens per iteration, of each replica (for the slots engines the chunk); inf = unlimited.
    kv_tokens
        KV memory of each replica [tokens]; inf = unlimited.
    routing
        A name of :data:`planner.routing.ROUTINGS`.
    engine
        ``mixed`` (prefill and decode under a token budget), ``slots`` (a fixed number of slots, one chunk a slot and iteration),
        ``slots-shared`` (slots with one prefill chunk budget for all), ``prefill`` (one whole prompt an iteration, which ends with
        the first token: the prefill replicas of a disaggregated fleet).
    block
        Tokens of a KV block; 1 = memory is counted in tokens.
    reserve
        Whether a prompt holds its memory from admission on; otherwise block by block with its chunks (admission still asks that
        all of it fits).
    request_s
        Time of the host that each request takes from the iteration that admits it [s].
    wake_s
        What a request waits longer for where its replica got none for a tenth of a second [s].
    shared_prefix
        Tokens that begin every longer prompt, whole blocks of which memory keeps once for all [tokens].
    image_s
        Time of the image encoder for each image of a prompt, in the iteration that admits it [s].
    gather
        Waiting prompts begin only in every so many-th iteration while anything decodes (not the slots engines): an engine waits for
        the prompts of other copies of the attention, or plans several iterations at once.
    """

    count: Count
    iteration: IterationModel | tuple[float, ...]
    slots: Size = math.inf
    token_budget: Size = math.inf
    kv_tokens: Positive = math.inf
    routing: str = "random"
    engine: Literal["mixed", "slots", "slots-shared", "prefill"] = "mixed"
    block: Count = 1
    reserve: bool = True
    request_s: Amount = 0.0
    wake_s: Amount = 0.0
    shared_prefix: Amount = 0.0
    image_s: Amount = 0.0
    gather: Count = 1


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """Where the prompts of sessions are kept: the KV memory that running requests leave, host memory and its disk behind it.

    Parameters
    ----------
    host_tokens
        Host memory of a replica for what the GPU drops [tokens].
    host_tokens_per_s
        Speed at which it comes back, one prefix after the other [tokens/s].
    ttl_s
        What was not used for so long is dropped [s].
    windows
        Memory that the sliding-window layers of a computed token take among what is kept, over that of the layers that are found
        again: an engine with one pool of blocks frees blocks behind the window as any others, to be overwritten in their turn [1].
    disk_tokens, disk_tokens_per_s
        The same of a disk behind the host's memory, through which it is read [tokens, tokens/s].
    copies
        Whether all that is computed is copied to host memory and disk at once (write-through), so that each holds what stands
        before it too; else they have what the tier before them dropped.
    """

    host_tokens: Room = 0.0
    host_tokens_per_s: Positive = math.inf
    ttl_s: Room = math.inf
    windows: Room = 0.0
    disk_tokens: Room = 0.0
    disk_tokens_per_s: Positive = math.inf
    copies: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Decoders:
    """The decode replicas behind prefill replicas.

    Parameters
    ----------
    replicas
        Their engine (``mixed``; requests arrive with prompt and first token in memory) and gateway.
    transfer_s
        Time to move the KV cache of each request's prompt [s], shape (rows,); transfers do not delay each other.
    helps_at
        Prompts that wait for prefill replicas, all together, from which on, or while none of those is up, a decode replica computes
        a new prompt itself, in chunks beside its decodes, if more than one token follows; it keeps no prompts. inf = never.
    """

    replicas: Replicas
    transfer_s: Floats
    helps_at: float = math.inf


@dataclass(frozen=True, slots=True)
class Outage:
    """A replica that dies and comes back empty: what it held is sent again at once, to those that are left.

    Parameters
    ----------
    replica
        Which one, from 0 on.
    start_s, end_s
        When it is down [s].
    """

    replica: int
    start_s: float
    end_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Limit:
    """A promise that may end a replay early: requests with `metric` beyond `limit_s` weigh more than `late`.

    Parameters
    ----------
    metric
        ``ttft_s``, ``tpot_s`` or ``e2e_s``.
    limit_s
        The limit [s].
    late
        Weight of requests that may be beyond it; what is never answered is beyond every limit.
    """

    metric: Literal["ttft_s", "tpot_s", "e2e_s"]
    limit_s: float
    late: float


COLD_AFTER_S = 0.1
"""A replica that got no request for so long finds its server's front end cold: :attr:`Replicas.wake_s` more for the next [s].
One vLLM server: at 1 request/s nearly all did, at 18 to 43 none (kubernetes-sigs/inference-perf, kubecon-na-2025)."""

CROWD, CROWDED = 32, 1.5
"""A gateway that looks for prefixes takes the least busy replica where the other has so many requests, and that many times as
many, more (the balance thresholds of SGLang's router)."""

GAP_BINS, GAP_LEAST_S, GAP_PER_OCTAVE = 1024, 2.0**-20, 32
"""Histogram of the gaps between tokens: bins of 1/32 octave each (mantissa cut linearly in 32) from 2^-20 s on; bin 0 also holds
what is less, the last what is more."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What became of the requests of a replay, a row each, and of the replicas.

    Times are seconds on the clock of the arrivals; NaN = never. Of a request that was sent several times, its last attempt.

    Parameters
    ----------
    sent_s
        When it was sent: its arrival, when its client let it go, when the answer that brings it had come, or its last retry [s].
    admitted_s
        When its prefill was first admitted [s].
    first_s, done_s
        First and last token [s].
    replica
        Which one took it, -1 = none.
    preempted
        Times it lost its memory.
    attempts, rejected, given_up
        Times it was sent, was turned away at a door, and was given up by its client.
    found_tokens, host_tokens
        Prompt tokens found in a prefix cache, and those of them that came from host memory or disk [tokens].
    moved_s, decode_replica
        Disaggregated: when its KV cache had arrived [s], and where.
    iterations, busy_s, resident_s, decode_s
        Per replica (prefill replicas first, then decode replicas), shape (replicas,): iterations, time in them, and that time
        times requests resident and times sequences decoding.
    recomputed_tokens
        Prompt and output tokens computed again after preemptions, all replicas [tokens].
    gaps
        Gaps between tokens, weighted by the sequences that decode, in the bins of :data:`GAP_BINS`; ``None`` = not asked for.
    ended_early
        Row whose arrival was not sent any more, as a :class:`Limit` was broken, after which nothing is told of any row; -1 = the
        replay is whole.
    """

    sent_s: Floats
    admitted_s: Floats
    first_s: Floats
    done_s: Floats
    replica: NDArray[np.int32]
    preempted: NDArray[np.int32]
    attempts: NDArray[np.int32]
    rejected: NDArray[np.int32]
    given_up: NDArray[np.int32]
    found_tokens: Floats
    host_tokens: Floats
    moved_s: Floats
    decode_replica: NDArray[np.int32]
    iterations: Floats
    busy_s: Floats
    resident_s: Floats
    decode_s: Floats
    recomputed_tokens: float = 0.0
    gaps: Floats | None = None
    ended_early: int = -1

    @property
    def ttft_s(self) -> Floats:
        """Time to the first token, from when it was sent [s]."""
        return self.first_s - self.sent_s

    @property
    def e2e_s(self) -> Floats:
        """Time to the last token [s]."""
        return self.done_s - self.sent_s

    def taken_s(self, metric: str, decodes: Floats) -> Floats:
        """A latency of every request, TPOT over so many tokens after the first and 0 of none [s]; NaN = never."""
        if metric == "tpot_s":
            return np.where(decodes > 0.0, (self.done_s - self.first_s) / np.maximum(decodes, 1.0), 0.0)
        return self.ttft_s if metric == "ttft_s" else self.e2e_s


def supplied(inputs: Floats | NDArray[np.int64], share: Floats) -> Floats:
    """Whole tokens of prompts, in whole tokens, of which a cache supplies a share [1]; at least one of each is processed.

    >>> supplied(np.array([100.0, 7.0]), np.array([0.29, 1.0])).tolist()
    [29.0, 6.0]
    """
    # a share made of whole tokens gives them back
    return np.minimum(np.floor(share * inputs + 1e-6), inputs - 1.0)


def keys_of(rows: NDArray[np.int64], copies: NDArray[np.int64], kind: int) -> NDArray[np.uint64]:
    """Keys of requests by their row and copy, and by what is drawn; shape as `rows`."""
    with np.errstate(over="ignore"):
        mixed = rows.astype(np.uint64) * np.uint64(GOLDEN) + copies.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
        return _mixed(mixed + np.uint64(kind) * np.uint64(0x8CB92BA72F3D8DD7))


def uniforms(keys: NDArray[np.uint64], ordinal: int) -> Floats:
    """:func:`uniform` of many keys, shape as `keys`.

    >>> uniforms(np.array([1], dtype=np.uint64), 1).round(6).tolist()
    [0.745782]
    """
    with np.errstate(over="ignore"):
        mixed = _mixed(keys + np.uint64((ordinal + 1) * GOLDEN & (1 << 64) - 1))
    return np.asarray((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The bits of splitmix64's state, mixed."""
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
