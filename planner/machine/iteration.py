"""The canonical iteration-time function: every other form in this project is derived from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import did_you_mean, refuse

FloatArray = NDArray[np.float64]

_Rules: TypeAlias = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]
_OF_ARRAYS: _Rules = (np.maximum, np.ceil, np.where)
_OF_NUMBERS: _Rules = (max, math.ceil, lambda holds, one, other: one if holds else other)
"""What takes the larger, rounds up and chooses."""


def _in(unit: str, default: float = 0.0, beside: str = "") -> Any:
    """A parameter in its unit; one that counts `beside` another only, or where it is not the default, is written then only."""
    return field(default=default, metadata={"unit": unit, "beside": beside})


@dataclass(frozen=True, slots=True)
class IterationModel:
    r"""Time of one iteration from the composition of its batch.

    .. math:: t = t_0 + \max(w, b \tau \lceil T/\tau \rceil) + c T + h n + \max(g K, e\, l_{\max}) + a A + x n C/T

    with n decodes of contexts l_i, K = sum l_i, prefill chunks of c_j new tokens after p_j past ones, C = sum c_j,
    T = n + C and A = sum c_j (p_j + (c_j + 1)/2). No rounding up when T <= tau/2 or tau = 1. An empty batch takes no
    time.
    ``W + H n`` is the special case t0 = W, h = H.

    Where one attention kernel takes decodes and prompts together (FlashAttention 2 in vLLM), a batch with both replaces
    its attention terms by

    .. math:: \max(a (A + m K) + h_m n,\; e_m \max(l_{\max}, p + c),\; g K)

    and one with prompts alone by :math:`\max(a A, e_m (p + c))`: with a prompt in the batch a decode fills a whole
    query tile of m rows, and one thread block walks a whole context. m = 0, the default, adds the two kernels up.

    For a mixture of experts the weights read depend on how many experts the batch touches: w(T) = w + w_experts p,
    p = 1 - (1 - expert_share)^T, expert_share = experts per token / experts. Where whole experts lie on several GPUs the one
    with the most of them is waited for: p + uneven sqrt(p (1 - p)) in place of p, at most 1.

    An engine that was tuned for many sequences also spends grown n/(n + half) in an iteration.

    A server that speculates brings `rows` tokens of every decode into the batch: T = rows n + C.

    An engine that gives prompts iterations of their own (`apart`; SGLang without mixed chunks, vLLM V0) makes two of a batch
    with both: the time is that of its decodes alone and of its prompts alone.

    Parameters
    ----------
    t0
        Fixed cost: launch, sampler, all-reduce latency, weights of the head [s].
    w
        Floor of the linear layers: streaming the weights once [s].
    b
        Compute of the linear layers [s/token].
    c
        Activations, norms, all-reduce volume [s/token].
    tau
        Tile of the matrix product; 1 = no staircase [token].
    g
        Reading the KV cache in decode attention [s/KV token].
    h
        Per-sequence overhead of decode attention [s/sequence].
    e
        Longest sequence, where the kernel does not split a sequence over the GPU [s/token].
    a
        Causal attention of prefill [s/pair].
    x
        Interference of prefill with decode in mixed batches; 0 = not measured [s/token].
    w_experts
        Streaming all routed experts once; 0 for dense models [s].
    expert_share
        Share of the routed experts one token uses, in [0, 1] [1].
    uneven
        Standard deviations, of one expert's being touched, by which the share of the busiest GPU's experts is above the mean;
        0 = every expert is cut over the GPUs [1].
    grown
        Time that an iteration takes longer with very many decodes [s].
    half
        Decodes with which it is half of that [sequences]; only with grown > 0.
    m
        Query rows a decode occupies beside a prompt; 0 = decodes and prompts have kernels of their own [rows].
    h_m
        Per decode beside a prompt [s/sequence]; only with m > 0.
    e_m
        Longest context or prompt, walked by one thread block [s/token]; only with m > 0.
    rows
        Tokens a decode brings into the batch: 1, or 1 + draft tokens of a server that speculates; fitted to a server also what
        its token costs in prompt tokens, as it passes the head and products of few rows are slow ones [tokens].
    apart
        1 = prompts have iterations of their own, 0 = they share those of the decodes [1].

    Raises
    ------
    InputError
        If a parameter is negative or not finite, or `tau` is not an integer >= 1.

    Notes
    -----
    Model and measured errors: median 1.9%, p95 8%, max 12% over 4,585 iterations composed from measured kernels of
    19 configurations (GPU, model, tensor parallelism), when fitted to each.

    Examples
    --------
    >>> m = IterationModel(t0=2e-3, w=5e-3, b=23.5e-6, c=4.7e-6, tau=128, g=50e-9, h=1e-6, a=0.7e-9)
    >>> round(m.time(decodes=32, context_sum=32 * 1024), 6)          # a decode batch [s]
    0.008821
    >>> round(m.time(0, 0, 512, 512 * 513 / 2), 6)                   # a prompt of 512 tokens [s]
    0.01653
    >>> m.time([1, 64], [1024, 65536]).round(6).tolist()             # arrays broadcast
    [0.007057, 0.010642]
    >>> IterationModel(t0=8e-3, h=0.65e-3).time(16)                  # W + H n
    0.0184
    """

    t0: float = field(metadata={"unit": "s", "beside": ""})
    w: float = _in("s")
    b: float = _in("s/token")
    c: float = _in("s/token")
    tau: int = _in("token", 1)
    g: float = _in("s/KV token")
    h: float = _in("s/sequence")
    e: float = _in("s/token")
    a: float = _in("s/pair")
    x: float = _in("s/token")
    w_experts: float = _in("s", beside="w_experts")
    expert_share: float = _in("1", beside="w_experts")
    uneven: float = _in("1", beside="uneven")
    grown: float = _in("s", beside="grown")
    half: float = _in("sequence", beside="grown")
    m: float = _in("row", beside="m")
    h_m: float = _in("s/sequence", beside="m")
    e_m: float = _in("s/token", beside="m")
    rows: float = _in("token", 1.0, beside="rows")
    apart: float = _in("1", beside="apart")

    def __post_init__(self) -> None:
        problems = []
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
                problems.append(f"iteration parameter {name}: {value!r} is not a number")
            elif not math.isfinite(value) or value < 0.0:
                problems.append(f"iteration parameter {name} must be finite and >= 0, got {value!r}")
        if not problems and (self.tau < 1 or self.tau != int(self.tau)):
            problems.append(f"iteration parameter tau must be an integer >= 1, got {self.tau!r}")
        if not problems and self.expert_share > 1.0:
            problems.append(f"iteration parameter expert_share must lie in [0, 1], got {self.expert_share!r}")
        if not problems and self.grown > 0.0 and self.half <= 0.0:
            problems.append(f"iteration parameter half must be positive where grown is, got {self.half!r}")
        if not problems and self.apart not in (0.0, 1.0):
            problems.append(f"iteration parameter apart must be 0 or 1, got {self.apart!r}")
        refuse(problems)
        # numpy scalars would leak into YAML and JSON
        for name in self.__slots__:
            object.__setattr__(self, name, (int if name == "tau" else float)(getattr(self, name)))

    @overload
    def time(
        self,
        decodes: float,
        context_sum: float = 0.0,
        prefill_tokens: float = 0.0,
        prefill_pairs: float = 0.0,
        context_max: float = 0.0,
        prefill_end: float = 0.0,
    ) -> float: ...

    @overload
    def time(
        self,
        decodes: ArrayLike,
        context_sum: ArrayLike = 0.0,
        prefill_tokens: ArrayLike = 0.0,
        prefill_pairs: ArrayLike = 0.0,
        context_max: ArrayLike = 0.0,
        prefill_end: ArrayLike = 0.0,
    ) -> FloatArray: ...

    def time(
        self,
        decodes: ArrayLike,
        context_sum: ArrayLike = 0.0,
        prefill_tokens: ArrayLike = 0.0,
        prefill_pairs: ArrayLike = 0.0,
        context_max: ArrayLike = 0.0,
        prefill_end: ArrayLike = 0.0,
    ) -> float | FloatArray:
        """Time of an iteration; the arguments broadcast against each other.

        Parameters
        ----------
        decodes
            Sequences decoding, n >= 0 [sequences].
        context_sum
            Their contexts' sum, K >= 0 [tokens].
        prefill_tokens
            New prompt tokens, C >= 0 [tokens].
        prefill_pairs
            Pairs of prompt tokens in causal attention, A >= 0 [pairs].
        context_max
            Longest context of the decodes; `e` and `e_m` use it [tokens].
        prefill_end
            Largest p_j + c_j of the chunks; only `e_m` uses it [tokens].

        Returns
        -------
        float or ndarray
            Time [s]; 0 for an empty batch. A float when every argument is a scalar.
        """
        batch: tuple[Any, ...] = (decodes, context_sum, prefill_tokens, prefill_pairs, context_max, prefill_end)
        nothing: Any = np.zeros(())
        rules = _OF_ARRAYS
        if {*map(type, batch)} <= _NUMBERS:
            nothing, rules = 0.0, _OF_NUMBERS
        else:
            batch = tuple(np.asarray(x, dtype=np.float64) for x in batch)
        if not self.apart:
            return self._together(rules, *batch)
        n, kv, new, pairs, longest, end = batch
        alone = self._together(rules, n, kv, nothing, nothing, longest, nothing)
        return alone + self._together(rules, nothing, nothing, new, pairs, nothing, end)

    def _together(
        self, rules: _Rules, n: Any, kv: Any, new: Any, pairs: Any, longest: Any, end: Any
    ) -> float | FloatArray:
        """The formula for a batch run together, of numbers or of arrays; terms that are nothing are left out, as it is asked very
        often: a simulator calls it once per iteration."""
        largest, ceil, choose = rules
        tokens = self.rows * n + new if self.rows != 1.0 else n + new
        rounded = tokens
        if self.tau > 1:
            rounded = choose(tokens <= 0.5 * self.tau, tokens, self.tau * ceil(tokens / self.tau))
        weights = self.w + self.w_experts * self.touched(tokens) if self.w_experts > 0.0 else self.w
        attention = self.g * kv
        if self.e > 0.0:
            attention = largest(attention, self.e * longest)
        attention = self.h * n + attention + self.a * pairs
        if self.m > 0.0:
            # no kernel reads the cache faster than the one for decodes alone
            walked = largest(self.e_m * largest(longest, end), self.g * kv)
            together = largest(self.a * (pairs + self.m * kv) + self.h_m * n, walked)
            attention = choose(new > 0.0, together, attention)
        total = self.t0 + (largest(weights, self.b * rounded) + self.c * tokens) + attention
        if self.grown > 0.0:
            total = total + self.grown * n / (n + self.half)
        if self.x > 0.0:
            total = total + self.x * n * new / largest(tokens, 1e-300)
        found: float | FloatArray = choose(tokens > 0.0, total, 0.0)
        return found

    def weight_time(self, tokens: ArrayLike) -> FloatArray:
        """Time to stream the weights a batch of `tokens` touches [s].

        >>> IterationModel(t0=0.0, w=1.0, w_experts=2.0, expert_share=0.5).weight_time([0, 1, 1000]).tolist()
        [1.0, 2.0, 3.0]
        """
        if self.w_experts == 0.0:
            return np.full(np.shape(tokens), self.w)
        return self.w + self.w_experts * self.touched(np.asarray(tokens, dtype=np.float64))

    def touched(self, tokens: FloatArray) -> FloatArray:
        """Share of the routed experts that a batch of `tokens` reads on the GPU with the most of them [1].

        >>> IterationModel(t0=0.0, w_experts=2.0, expert_share=0.5, uneven=0.5).touched(np.array([1.0, 1000.0])).tolist()
        [0.75, 1.0]
        """
        share = 1.0 - (1.0 - self.expert_share) ** tokens
        if self.uneven > 0.0:
            share = np.minimum(share + self.uneven * np.sqrt(share * (1.0 - share)), 1.0)
        return share

    def at_batch(self, tokens: float = math.inf) -> IterationModel:
        """The same model with the experts' weight traffic frozen at a batch of `tokens` [tokens].

        For closed forms that take one constant `w`; dense models stay as they are. The default counts every expert, an
        upper bound that a batch of a few times experts/experts-per-token tokens reaches within 2%.

        >>> IterationModel(t0=0.0, w=1.0, w_experts=2.0, expert_share=0.5).at_batch().w
        3.0
        """
        if self.w_experts == 0.0:
            return self
        touched = 1.0 if math.isinf(tokens) else float(self.touched(np.asarray(tokens)))
        return replace(self, w=self.w + self.w_experts * touched, w_experts=0.0, expert_share=0.0, uneven=0.0)

    def slowed(self, factor: float) -> IterationModel:
        """The same engine, every time of which is `factor` times as long [1].

        >>> IterationModel(t0=1e-3, b=1e-6, tau=8).slowed(2.0).time(5, 2000, 300, 40000)
        0.002624
        """
        timed = (name for name, unit in PARAMETER_UNITS.items() if unit[:1] == "s")
        return replace(self, **{name: factor * getattr(self, name) for name in timed})

    def in_units(self, unit: float) -> IterationModel:
        """The same times with every number of tokens counted in units of `unit` tokens.

        >>> one = IterationModel(t0=1e-3, b=1e-6, g=1e-9, a=1e-10)
        >>> round(one.time(5, 2000, 300, 40000), 9), round(one.in_units(10.0).time(5, 200, 30, 400), 9)
        (0.001311, 0.001311)
        """
        u = unit
        return replace(
            self,
            b=self.b * u,
            c=self.c * u,
            # no shorter, lest a budget of so many whole tiles needs one more
            tau=max(1, math.ceil(self.tau / u)),
            g=self.g * u,
            e=self.e * u,
            a=self.a * u * u,
            m=self.m / u,
            e_m=self.e_m * u,
            expert_share=1.0 - (1.0 - self.expert_share) ** u,
            rows=self.rows / u,
        )

    def with_requests(self, request_s: float, decodes: float, new_tokens: float) -> IterationModel:
        """The same times where the host needs `request_s` for each request besides.

        A request of `decodes` decode steps is one in that many of the sequences of a batch, so that each carries as much
        less of it: right on average, however the requests come. One that decodes less than once carries it with its prompt.

        >>> IterationModel(t0=1e-3).with_requests(2e-3, decodes=100.0, new_tokens=500.0).time(50)
        0.002
        """
        if request_s <= 0.0:
            return self
        if decodes < 1.0:
            return replace(self, c=self.c + request_s / max(new_tokens, 1.0))
        each = request_s / decodes
        return replace(self, h=self.h + each, h_m=self.h_m + (each if self.m else 0.0))

    @property
    def additive(self) -> IterationModel:
        """The same model with decode and prefill attention as kernels of their own.

        >>> IterationModel(t0=0.0, a=1e-9, m=66.0).additive.m
        0.0
        """
        return replace(self, m=0.0, h_m=0.0, e_m=0.0) if self.m > 0.0 else self

    @property
    def knee_tokens(self) -> float:
        """Tokens per iteration at which compute overtakes weight streaming, T* = w/b; inf when b = 0 [tokens]."""
        full = self.w + self.w_experts
        return full / self.b if self.b > 0.0 else math.inf

    def to_dict(self) -> dict[str, float]:
        """Parameters by name, SI; those of experts and of common attention kernels only where they are used.

        >>> sorted(IterationModel(t0=1e-3).to_dict())
        ['a', 'b', 'c', 'e', 'g', 'h', 't0', 'tau', 'w', 'x']
        """
        default = {f.name: f.default for f in fields(self)}
        beside = {f.name: f.metadata["beside"] for f in fields(self)}
        used = (name for name, other in beside.items() if not other or getattr(self, other) != default[other])
        return {name: getattr(self, name) for name in used}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> IterationModel:
        """The inverse of :meth:`to_dict`; every unknown or unusable key is named.

        >>> IterationModel.from_dict({"t0": 0.008, "h": 0.00065}).h
        0.00065
        """
        problems = [
            f"iteration parameter {key!r} is not known{did_you_mean(str(key), PARAMETER_UNITS)}"
            for key in values
            if key not in PARAMETER_UNITS
        ]
        if "t0" not in values:
            problems.append("iteration parameter t0 is missing")
        refuse(problems)
        return cls(**{str(key): value for key, value in values.items()})  # type: ignore[arg-type]


_NUMBERS = {int, float, bool, np.float64}

PARAMETER_UNITS: Mapping[str, str] = {f.name: f.metadata["unit"] for f in fields(IterationModel)}
"""Unit of every parameter."""
