"""Moments of every pool a fleet search can form, from sums taken once.

A pool serves the requests with ``low < total <= high``, gives away the part of its lower band that is compressed into
the pool below, and receives the compressed part of the band above. All moments are sums over requests, so those of a
pool are ``cum(high) - cum(low) - given(low, gamma_low) + received(high, gamma_high)``: a few additions per candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from planner.machine.iteration import IterationModel
from planner.shared.kept import once
from planner.workload.sessions import Sessions
from planner.workload.trace import Bools, Floats, Trace
from planner.workload.workload import Workload

FEATURES = ("share", "input", "new_input", "decode", "output", "kv", "pairs", "iterations", "iterations2", "new_input2")
"""Columns of a feature row, each summed over requests with their weights:
1, L, (1-s)L, D = max(O-1, 0), O, D(L + (D+1)/2), prefill pairs, ceil((1-s)L/chunk) + O and its square, ((1-s)L)^2."""

MOST_ROWS_KEPT = 50_000
"""Rows of a workload beyond which the laws of its pools are not kept for a next question."""

FEWEST_REQUESTS = 200
"""Requests of a pool below which its own path says too little."""

NOBODY: Floats = np.zeros(0)
"""Parts of rows where a boundary cuts none."""

SHARE, INPUT, NEW_INPUT, DECODE, OUTPUT, KV, PAIRS, ITERATIONS, ITERATIONS2, NEW_INPUT2 = range(len(FEATURES))


@dataclass(frozen=True, slots=True)
class State:
    """A boundary and the compression in force at it.

    Parameters
    ----------
    boundary
        Requests with total <= boundary stay below [tokens].
    gamma
        Requests up to ``gamma * boundary`` may be compressed across it; >= 1.
    """

    boundary: float
    gamma: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Joint law of the lengths of requests, a row each.

    Parameters
    ----------
    input_tokens, output_tokens
        Lengths; may be fractional [tokens], shape (rows,).
    weight
        Relative weights, with a positive sum, shape (rows,).
    cached_share
        Share of each prompt that the prefix cache supplies, in [0, 1) [1], shape (rows,) or (1,).
    images
        Images of each prompt, shape (rows,); ``None`` = none.
    """

    input_tokens: Floats
    output_tokens: Floats
    weight: Floats
    cached_share: Floats
    images: Floats | None = None

    @property
    def new_tokens(self) -> Floats:
        """Prompt tokens to compute [tokens], shape (rows,)."""
        return (1.0 - self.cached_share) * self.input_tokens

    @property
    def decodes(self) -> Floats:
        """Decode steps, one fewer than output tokens, shape (rows,)."""
        return np.maximum(self.output_tokens - 1.0, 0.0)

    @property
    def pairs(self) -> Floats:
        """Query-key pairs of the prefill, the cached part as its past; however it is cut in chunks; shape (rows,)."""
        new = self.new_tokens
        return self.cached_share * self.input_tokens * new + 0.5 * new * (new + 1.0)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PoolLaw(Lengths):
    """The requests one pool really gets: their lengths, weights summing to 1, and who they are.

    Parameters
    ----------
    lower, upper
        Boundary and compression below and above; requests with ``lower.boundary < total <= upper.boundary`` live here.
    share, compressed_share
        Fraction of all requests served here, and of all requests compressed into here.
    moments
        Its feature sums (not divided by the share), shape (len(FEATURES),).
    requests
        Gives those requests one by one in the order they came, or ``None`` where that is not known.
    sessions
        Gives them session by session where a prefix cache is to be computed from them; `cached_share` is then what a cache
        without end supplies.
    """

    lower: State
    upper: State
    share: float
    compressed_share: float
    moments: Floats
    requests: Callable[[], Trace | None] = lambda: None
    sessions: Callable[[], Sessions | None] = lambda: None

    @property
    def longest_tokens(self) -> float:
        """Longest request that occurs, input + output [tokens]."""
        return float(np.max(self.input_tokens + self.output_tokens))

    def mean(self, feature: int) -> float:
        """Mean of one feature per request."""
        return float(self.moments[feature] / self.moments[SHARE])


def own_tokens(prompt_tokens: Floats, shared_prefix: float) -> Floats:
    """What requests keep of their prompts for themselves where every longer prompt begins with `shared_prefix` tokens, which
    memory keeps once; same shape as `prompt_tokens` [tokens].

    Examples
    --------
    >>> own_tokens(np.array([900.0, 100.0]), 256.0).tolist()
    [644.0, 100.0]
    """
    if shared_prefix <= 0.0:
        return prompt_tokens
    return np.where(prompt_tokens > shared_prefix, prompt_tokens - shared_prefix, prompt_tokens)


def found_share(prompt_tokens: Floats, share: Floats, shared_prefix: float) -> Floats:
    """Share of prompts that a cache supplies where `share` of each repeats and the longer ones begin with `shared_prefix`
    tokens that all have: the larger of the two; all of one shape [1].

    Examples
    --------
    >>> found_share(np.array([1000.0, 1000.0, 100.0]), np.array([0.1, 0.5, 0.1]), 256.0).tolist()
    [0.256, 0.5, 0.1]
    """
    own = own_tokens(prompt_tokens, shared_prefix)
    return share if own is prompt_tokens else np.maximum(share, 1.0 - own / np.maximum(prompt_tokens, 1.0))


def features(inputs: Floats, outputs: Floats, cached: Floats, chunk: float) -> Floats:
    """Feature rows of requests, the columns of :data:`FEATURES`; `cached` is the cached share of each prompt [1]."""
    new = (1.0 - cached) * inputs
    decode = np.maximum(outputs - 1.0, 0.0)
    iterations = np.ceil(new / chunk) + outputs
    columns = [
        np.ones_like(inputs),
        inputs,
        new,
        decode,
        outputs,
        decode * (inputs + 0.5 * (decode + 1.0)),
        new * (inputs - new + 0.5 * (new + 1.0)),
        iterations,
        iterations * iterations,
        new * new,
    ]
    return np.stack(columns, axis=-1)


def chances(workload: Workload, p_c: float | Mapping[str, float] | None) -> Floats:
    """Probability that a prompt can be compressed, by category of the workload, shape (categories,) [1].

    `p_c`: one number, or by category; ``None`` = as the workload marks its categories, unknown ones 0.
    """
    if p_c is None:
        return np.array([0.0 if p is None else float(p) for p in workload.compressible])
    return _by_category(workload, p_c)


def _by_category(workload: Workload, given: float | Mapping[str, float]) -> Floats:
    """One number, or by category (others 0), shape (categories,)."""
    values = [given.get(name, 0.0) if isinstance(given, Mapping) else given for name in workload.categories]
    return np.array(values, dtype=np.float64)


class FleetMoments:
    """Feature sums of a workload at boundaries and compression bands.

    Parameters
    ----------
    workload
        The traffic.
    p_c
        Probability that compressing a request of the band succeeds: one number, or by category; ``None`` = as the workload
        marks its categories (unknown ones count as 0).
    chunk
        Prefill chunk of the per-slot prefill models [tokens].
    cached_share
        Share of a prompt served from the prefix cache, in [0, 1): one number, or by category (others 0).
    route_on
        ``"total"``: boundaries cut input + output, which a router does not know; ``"input"``: they cut the prompt, and
        nothing is compressed.
    sessions
        The calls session by session, where prefix caches are computed from them in place of `cached_share`.
    shared_prefix
        Tokens that begin every longer prompt, found in every cache [tokens].
    images
        Images of each request by its category, others 0; with them nothing is compressed.
    """

    def __init__(
        self,
        workload: Workload,
        p_c: float | Mapping[str, float] | None = None,
        chunk: int = 512,
        cached_share: float | Mapping[str, float] = 0.0,
        route_on: str = "total",
        sessions: Sessions | None = None,
        shared_prefix: float = 0.0,
        images: Mapping[str, int] | None = None,
    ) -> None:
        self.chunk = chunk
        self._images = _by_category(workload, images or {})
        self._seen = self._images.any()
        self._prefix = shared_prefix
        self._sessions = sessions
        self._workload, self._route_on = workload, route_on
        order = slice(None) if route_on == "total" else np.argsort(workload.input_tokens, kind="stable")
        self.input = workload.input_tokens[order]
        self.output = workload.output_tokens[order]
        self.weight = workload.weight[order]
        self._cached_by_category = _by_category(workload, cached_share)
        self._share = self._cached_by_category[workload.category[order]]
        if sessions is not None:
            self._share = _endless(sessions, self.input)
        self.cached = self._found(self.input, self._share)
        self.total = workload.total_tokens if route_on == "total" else self.input
        self.lower = workload.lower_tokens if route_on == "total" else self.input
        self.images = self._images[workload.category[order]]
        # a search asks for the same few cuts and bands again and again
        self._below, self.band_weights = cache(self._cut), cache(self._band)
        # what every later row begins above: no boundary below it cuts a row
        self._later = np.append(np.minimum.accumulate(self.lower[::-1])[::-1], np.inf)
        by_category = chances(workload, p_c)
        if route_on != "total":
            by_category[:] = 0.0
        self._p_c_by_category = by_category
        self.p_c = by_category[workload.category[order]]
        self.features = features(self.input, self.output, self.cached, chunk)
        sums = np.cumsum(self.features * self.weight[:, None], axis=0)
        # one leading zero: nothing lies below the first row
        self._cumulative = np.vstack([np.zeros(sums.shape[1]), sums])

    def _found(self, inputs: Floats, share: Floats) -> Floats:
        """Share of prompts of these lengths that the cache supplies where `share` of them repeats [1]."""
        return found_share(inputs, share, self._prefix)

    @property
    def top(self) -> float:
        """Upper end of what the router sees [tokens]."""
        return float(self.total[-1])

    @property
    def compressible(self) -> bool:
        """Whether any request can be compressed at all."""
        return bool(np.any(self.p_c > 0.0))

    def _cut(self, boundary: float) -> tuple[int, Floats]:
        """Rows wholly at or below a boundary, and the part of each later row that is (bins of a compact file: linear)."""
        whole = int(self.total.searchsorted(boundary, side="right"))
        if self._later[whole] >= boundary:
            return whole, NOBODY
        low, high = self.lower[whole:], self.total[whole:]
        span = int(np.flatnonzero(low < boundary)[-1]) + 1
        low, high = low[:span], high[:span]
        return whole, np.clip((boundary - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0) * (high > low)

    def cumulative(self, boundary: float) -> Floats:
        """Sums over requests with total <= boundary, shape (features,)."""
        whole, parts = self._below(boundary)
        sums: Floats = self._cumulative[whole]
        if parts.size:
            rows = slice(whole, whole + parts.size)
            sums = sums + (parts * self.weight[rows]) @ self.features[rows]
        return sums

    def _between(self, low: float, high: float) -> tuple[slice, Floats]:
        """Rows that reach into ``(low, high]`` and the weight each has there."""
        whole_low, parts_low = self._below(low)
        whole_high, parts_high = self._below(high)
        if not (parts_low.size or parts_high.size):
            rows = slice(whole_low, max(whole_high, whole_low))
            return rows, self.weight[rows].copy()
        rows = slice(whole_low, max(whole_high + parts_high.size, whole_low + parts_low.size))
        part = np.zeros(rows.stop - rows.start)
        part[: whole_high - whole_low] = 1.0
        part[whole_high - whole_low : whole_high - whole_low + parts_high.size] = parts_high
        part[: parts_low.size] -= parts_low
        return rows, part * self.weight[rows]

    def _band(self, boundary: float, gamma: float) -> tuple[slice, Floats]:
        """Rows of ``(boundary, gamma boundary]`` and the weight of each that is compressed across the boundary."""
        rows, weight = self._between(boundary, gamma * boundary)
        weight = weight * self.p_c[rows]
        # the unchanged output must leave room for a prompt
        weight[self.output[rows] >= boundary] = 0.0
        return rows, weight

    def _moved(self, boundary: float, gammas: Sequence[float]) -> tuple[Floats, Floats]:
        """Sums that bands above one boundary give away, and what is received below it, each of shape (gammas, features)."""
        bands = [self.band_weights(boundary, gamma) for gamma in gammas]
        # all begin with the same row, and prompts cut to one boundary are as long whichever band they are of
        rows = slice(bands[0][0].start, max(band.stop for band, _ in bands))
        weight = np.zeros((len(bands), rows.stop - rows.start))
        for k, (_, own) in enumerate(bands):
            weight[k, : own.size] = own
        outputs = self.output[rows]
        left = np.maximum(boundary - outputs, 0.0)
        received = features(left, outputs, self._found(left, self._share[rows]), self.chunk)
        return weight @ self.features[rows], weight @ received

    def law(self, lower: State, upper: State) -> PoolLaw | None:
        """The law of the pool between two states, or ``None`` when nobody is served there.

        Rows of a compact file that a boundary or a band cuts keep their lengths and lose weight in proportion.
        """
        if self.total.size > MOST_ROWS_KEPT:
            return self._law(lower, upper)
        return once(("law", id(self), lower, upper), lambda: (self, self._law(lower, upper)))[1]

    def _law(self, lower: State, upper: State) -> PoolLaw | None:
        """The same, made."""
        natural, weight = self._between(lower.boundary, upper.boundary)
        if lower.gamma > 1.0:
            rows, given = self.band_weights(lower.boundary, lower.gamma)
            count = min(given.size, weight.size)
            weight[:count] -= given[:count]
        inputs, outputs, cached = self.input[natural], self.output[natural], self.cached[natural]
        compressed = 0.0
        if upper.gamma > 1.0:
            rows, received = self.band_weights(upper.boundary, upper.gamma)
            kept = received > 0.0
            if np.any(kept):
                out = self.output[rows][kept]
                compressed = float(np.sum(received))
                left = np.maximum(upper.boundary - out, 0.0)
                inputs = np.concatenate([inputs, left])
                outputs = np.concatenate([outputs, out])
                cached = np.concatenate([cached, self._found(left, self._share[rows][kept])])
                weight = np.concatenate([weight, received[kept]])
        positive = weight > 1e-15
        share = float(np.sum(weight[positive]))
        if share <= 1e-12:
            return None
        inputs, outputs, cached, weight = inputs[positive], outputs[positive], cached[positive], weight[positive]
        images = self.images[natural][positive] if self._seen else None
        moments = weight @ features(inputs, outputs, cached, self.chunk)
        return PoolLaw(
            inputs,
            outputs,
            weight / share,
            cached,
            images,
            lower=lower,
            upper=upper,
            share=share,
            compressed_share=compressed,
            moments=moments,
            requests=cache(lambda: self.requests(lower, upper)),
            sessions=lambda: self.sessions(lower, upper),
        )

    def sessions(self, lower: State, upper: State) -> Sessions | None:
        """The calls of the pool between two states session by session; ``None`` where no cache is computed from them."""
        calls = self._sessions
        if calls is None:
            return None
        seen = calls.input_tokens + calls.output_tokens if self._route_on == "total" else calls.input_tokens
        keep = (seen > lower.boundary) & ((seen <= upper.boundary) | (upper.boundary >= self.top))
        return calls if keep.all() else calls.select(keep)

    def requests(self, lower: State, upper: State) -> Trace | None:
        """The requests of the pool between two states one by one; ``None`` where their order is not known.

        Which of a band's prompts are compressed is drawn once for all pools, by their place in the trace.
        """
        trace = self._workload.trace()
        if trace is None:
            return None
        inputs, outputs = trace.input_tokens, trace.output_tokens
        seen = inputs + outputs if self._route_on == "total" else inputs
        drawn = (np.arange(trace.requests) * 0.6180339887498949) % 1.0 < self._p_c_by_category[trace.category]

        def squeezed(state: State) -> Bools:
            band = (seen > state.boundary) & (seen <= state.gamma * state.boundary)
            return band & drawn & (outputs < state.boundary)

        received = squeezed(upper)
        keep = ((seen > lower.boundary) & (seen <= upper.boundary) & ~squeezed(lower)) | received
        if np.count_nonzero(keep) < FEWEST_REQUESTS:
            return None
        lengths = np.where(received, np.maximum(upper.boundary - outputs, 0.0), inputs) if received.any() else inputs
        own = Trace(trace.times_s, lengths, outputs, trace.category).select(keep)
        share = self._found(own.input_tokens, self._cached_by_category[own.category])
        return replace(own, cached_share=share, images=self._images[own.category] if self._seen else None)

    def states(self, states: list[State]) -> tuple[Floats, Floats]:
        """Upper edges and lower edges of pools: ``pool = upper[j] - lower[i]``, each of shape (states, features)."""
        below = {b: self.cumulative(b) for b in {s.boundary for s in states}}
        upper = np.array([below[s.boundary] for s in states])
        lower = upper.copy()
        bands: dict[float, list[int]] = {}
        for k, s in enumerate(states):
            if s.gamma > 1.0:
                bands.setdefault(s.boundary, []).append(k)
        for boundary, places in bands.items():
            given, received = self._moved(boundary, [states[k].gamma for k in places])
            lower[places] += given
            upper[places] += received
        return upper, lower

    def prompt_counts(self, states: list[State], bins: Floats) -> tuple[Floats, Floats]:
        """As :meth:`states`, for the weight of prompts of at most ``bins[k]`` new tokens, shape (states, len(bins))."""
        place = np.searchsorted(bins, (1.0 - self.cached) * self.input)
        below: dict[float, Floats] = {}
        upper = np.empty((len(states), len(bins)))
        lower = np.empty_like(upper)
        for k, s in enumerate(states):
            if s.boundary not in below:
                rows, weight = self._between(0.0, s.boundary)
                below[s.boundary] = _counts(place[rows], weight, len(bins))
            upper[k] = lower[k] = below[s.boundary]
            if s.gamma > 1.0:
                rows, weight = self.band_weights(s.boundary, s.gamma)
                left = np.maximum(s.boundary - self.output[rows], 0.0)
                left = (1.0 - self._found(left, self._share[rows])) * left
                upper[k] += _counts(np.searchsorted(bins, left), weight, len(bins))
                lower[k] += _counts(place[rows], weight, len(bins))
        return np.cumsum(upper, axis=1), np.cumsum(lower, axis=1)

    @property
    def longest_prompt(self) -> float:
        """Longest prompt, cached part left out [tokens]."""
        return max(float(np.max(self.input * (1.0 - self.cached))), 2.0)


def _endless(sessions: Sessions, inputs: Floats) -> Floats:
    """Share of prompts of these lengths that a cache without end supplies [1]: the mean of the calls about as long."""
    found = np.maximum(sessions.cached_tokens, sessions.shared_tokens)
    order = np.argsort(sessions.input_tokens, kind="stable")
    parts = np.array_split(order, min(64, order.size))
    middle = np.array([sessions.input_tokens[part].mean() for part in parts])
    share = np.array([found[part].sum() / max(float(sessions.input_tokens[part].sum()), 1.0) for part in parts])
    most: Floats = np.minimum(np.interp(inputs, middle, share), 1.0 - 1.0 / np.maximum(inputs, 2.0))
    return most


def _counts(bins: NDArray[np.intp], weight: Floats, count: int) -> Floats:
    return np.bincount(bins, weight, count + 1)[:count].astype(np.float64)


def capacity_upper_bound(
    moments: Floats,
    iteration: IterationModel,
    token_budget: float,
    max_num_seqs: Floats | float,
    kv_tokens: float,
) -> Floats:
    r"""A rate that no scheduler of this engine exceeds on one replica, for each pool law.

    With m requests completed per iteration, the token budget, the slots and the memory each bound m, and the mean
    iteration takes at least :math:`t_0 + \max(w, b m E[T]) + m (c E[T] + h E[D] + g E[KV] + a E[A])` (Jensen's
    inequality on the maximum; no prefill bursts, no recomputation); m over that time grows with m.

    Parameters
    ----------
    moments
        Feature sums, shape (..., len(FEATURES)); the share may be 0.
    iteration
        Iteration-time model.
    token_budget
        Tokens per iteration, inf = none [tokens].
    max_num_seqs
        Slots, broadcast against the pools.
    kv_tokens
        KV capacity of a replica [tokens].

    Returns
    -------
    ndarray
        Requests per second of one replica, inf where nothing takes time, shape (...).
    """
    share = moments[..., SHARE]
    safe = np.where(share > 0.0, share, 1.0)
    mean = moments / safe[..., None]
    tokens = mean[..., NEW_INPUT] + iteration.rows * mean[..., DECODE]
    m = np.asarray(max_num_seqs, dtype=np.float64) / (mean[..., DECODE] + 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        m = np.minimum(m, np.where(tokens > 0.0, token_budget / tokens, np.inf))
        m = np.minimum(m, np.where(mean[..., KV] > 0.0, kv_tokens / mean[..., KV], np.inf))
        # the fewest experts an iteration can touch: those of one token
        floor = iteration.at_batch(1.0).w
        h, g = iteration.h, iteration.g
        if iteration.m > 0.0:  # beside a prompt a decode may cost less than alone
            h, g = min(h, iteration.h_m), min(g, iteration.a * iteration.m)
        work = iteration.c * tokens + h * mean[..., DECODE] + g * mean[..., KV] + iteration.a * mean[..., PAIRS]
        # 1/X = (t0 + max(w, b m T))/m + work, written so that unlimited m is a limit and not inf/inf
        per_request = np.maximum((iteration.t0 + floor) / m, iteration.t0 / m + iteration.b * tokens) + work
        return np.where(share > 0.0, 1.0 / per_request, np.inf)
