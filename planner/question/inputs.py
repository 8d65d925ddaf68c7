"""The question a plan answers: every option of ``fleetopt plan`` under its own name, checked whole, all problems at once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from planner.errors import InputError, did_you_mean
from planner.promise import Promise
from planner.units import parse_duration, parse_fraction, parse_number, parse_tokens

__all__ = ["DEFAULT_GAMMAS", "KV_POLICIES", "METHODS", "ROUTINGS", "SHAPES", "PlanInputs", "parse_promise"]

METHODS = ("mixed", "occupancy", "mgc")
KV_POLICIES = ("paged", "reserved", "both")
ROUTINGS = ("random", "jsq", "rr")
SHAPES = ("colocated", "disaggregated", "both")
ALL_TP = (1, 2, 4, 8, 16, 32, 64)
"""Sizes of tensor-parallel groups tried by ``tp: all``, as far as the node and the model allow."""

DEFAULT_GAMMAS = tuple(round(1.0 + 0.1 * k, 1) for k in range(11))
"""Compression bands searched: FleetOpt Algorithm 1, gamma in {1.0, 1.1, ..., 2.0}."""

_PROMISE = re.compile(r"^\s*(?:(ttft|tpot|e2e)\s*:\s*)?(?:p(\d+(?:\.\d+)?)\s*(?:<=|=|<)\s*)?(.+?)\s*$", re.IGNORECASE)


def parse_promise(text: str | float, metric: str = "ttft", quantile: float = 0.99, scope: str = "pool") -> Promise:
    """A promise as people write it: ``0.5``, ``500ms``, ``p95=300ms``, ``tpot:p95=40ms``.

    >>> parse_promise("ttft:p95=300ms")
    Promise(metric='ttft_s', limit_s=0.3, quantile=0.95, scope='pool')
    >>> parse_promise(0.05, "tpot").label
    'P99 TPOT'
    """
    if not isinstance(text, str):
        return Promise(f"{metric}_s", parse_duration(text, metric), quantile, scope)
    match = _PROMISE.match(text)
    if match is None:
        raise InputError(f"{metric}: {text!r} is not a promise", "Write it as 500ms, p95=300ms or tpot:p95=40ms.")
    named, level, limit = match.groups()
    if level is not None:
        quantile = float(level) / 100.0
    name = (named or metric).lower()
    return Promise(f"{name}_s", parse_duration(limit, name), quantile, scope)


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """All options of a plan. The defaults are the command's; ``None`` means "decide for me and say so".

    Parameters
    ----------
    cdf
        Workload: path or shipped name.
    rate
        Arrival rate of the fleet [1/s]; ``None`` = the workload's own.
    promises
        Latency promises.
    gpu
        GPU types that may be used; every pool takes one.
    model
        Model name or path of a Hugging Face ``config.json``.
    tp, tp_options
        GPUs per replica; ``None`` = the smallest that fits, or the sizes of `tp_options` (written ``tp: 1,2,4`` or
        ``tp: all``), of which every pool takes the cheapest.
    profile
        Profile name or path; overrides the search by GPU and model.
    method
        ``mixed``, ``occupancy`` or ``mgc``.
    kv
        ``paged`` or ``reserved`` memory, or ``both``: every pool takes the cheaper.
    routing
        How a pool spreads requests over its replicas.
    utilization_cap
        Largest share of the maximum throughput in use.
    pools
        Largest number of pools.
    boundaries
        Boundaries to search [tokens]; ``None`` = breakpoints of the workload.
    gammas
        Compression bands to search, each >= 1.
    p_c
        Probability that a compression succeeds; ``None`` = by category.
    route_on
        ``total`` (an oracle for the output length) or ``input``.
    token_budget
        Tokens per iteration; ``None`` = chosen from the promises.
    max_num_seqs
        Slots per replica; ``None`` = the memory-safe number.
    max_model_len
        Longest request the largest pool admits [tokens]; ``None`` = the longest of the workload.
    chunk
        Prefill chunk of the methods ``occupancy`` and ``mgc`` [tokens].
    memory_utilization
        Share of GPU memory the engine may take.
    cached_share
        Share of a prompt served from the prefix cache: one number, or by category of the workload.
    burst
        ``auto``: use the workload's measured dispersion of counts; ``poisson``: ignore it.
    min_replicas, redundancy
        Least replicas of a pool; replicas beyond the need (N + k).
    availability_target, failures_per_hour, repair_hours
        Probability that fewer replicas than needed are up stays below the target; rate of failure of one replica
        [1/h] and time to repair [h].
    inventory
        GPU name -> GPUs available.
    price
        GPU name -> price [USD/hour], instead of the catalog's.
    spot_price, spot_share
        GPU name -> spot price [USD/hour]; largest share of a pool's replicas on spot.
    max_evaluations
        Pools evaluated with the reporting method before the search stops with a gap; 0 = until proven.
    shape
        ``colocated``; ``disaggregated``: prefill and decode on pools of their own; ``both``: the cheaper of the two.
    kv_transfer_gbps, kv_transfer_base
        Link of each GPU that moves KV caches from prefill to decode nodes [Gbit/s]; time of a transfer beyond its
        bytes [s].
    """

    cdf: str = "azure"
    rate: float | None = None
    promises: tuple[Promise, ...] = ()
    gpu: tuple[str, ...] = ("h100",)
    model: str = "llama-3.1-8b"
    tp: int | None = None
    tp_options: tuple[int, ...] = ()
    profile: str | None = None
    method: str = "mixed"
    kv: str = "paged"
    routing: str = "random"
    utilization_cap: float = 0.85
    pools: int = 2
    boundaries: tuple[float, ...] | None = None
    gammas: tuple[float, ...] = DEFAULT_GAMMAS
    p_c: float | None = None
    route_on: str = "total"
    token_budget: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    chunk: int = 512
    memory_utilization: float = 0.9
    cached_share: float | Mapping[str, float] = 0.0
    burst: str = "auto"
    min_replicas: int = 1
    redundancy: int = 0
    availability_target: float | None = None
    failures_per_hour: float = 0.001
    repair_hours: float = 0.5
    inventory: Mapping[str, int] = field(default_factory=dict)
    price: Mapping[str, float] = field(default_factory=dict)
    spot_price: Mapping[str, float] = field(default_factory=dict)
    spot_share: float = 0.0
    max_evaluations: int = 48
    shape: str = "colocated"
    kv_transfer_gbps: float = 100.0
    kv_transfer_base: float = 0.002

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise InputError.from_problems(problems)

    def to_dict(self) -> dict[str, object]:
        """JSON- and YAML-ready, in the options' own names; defaults included, so that a plan is self-contained."""
        result: dict[str, object] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "promises":
                value = [p.to_dict() for p in value]
            elif isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, Mapping):
                value = dict(value)
            result[f.name] = value
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "") -> PlanInputs:
        """Build from a mapping of options; unknown and ill-typed keys are all reported, with their path."""
        values, problems = _typed(data, where)
        if problems:
            raise InputError.from_problems(problems)
        try:
            return cls(**values)
        except InputError as error:
            lines = error.problems or (error.message,)
            raise InputError.from_problems([f"{where}{line}" for line in lines], error.hint) from None

    def override(self, changes: Mapping[str, Any], where: str = "") -> PlanInputs:
        """The same question with some options changed, each given as in a configuration file."""
        values, problems = _typed(changes, where)
        if problems:
            raise InputError.from_problems(problems)
        if "promises" in values:
            changed = {p.metric for p in values["promises"]}
            kept = () if "promises" in changes else tuple(p for p in self.promises if p.metric not in changed)
            values["promises"] = (*values["promises"], *kept)
        return replace(self, **values)


_ALIASES = {
    "arrival_rate_per_s": "rate",
    "workload": "cdf",
    "gpus": "gpu",
    "max_pools": "pools",
    "gamma": "gammas",
    "boundary": "boundaries",
    "prefix_cached_share": "cached_share",
}
"""Other names accepted in files and ``--set``."""

_PROMISE_KEYS = ("slo", "ttft", "tpot", "e2e")
"""Sugar for promises: ``slo: 0.5`` is ``ttft``."""


def _typed(data: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    known = {f.name for f in fields(PlanInputs)} - {"promises"}
    values: dict[str, Any] = {}
    promises: list[Promise] = []
    problems: list[str] = []
    quantile = 0.99
    if "quantile" in data:
        try:
            quantile = parse_fraction(data["quantile"], f"{where}quantile")
        except InputError as error:
            problems.append(error.message)
    for given, value in data.items():
        key = _ALIASES.get(str(given).replace("-", "_"), str(given).replace("-", "_"))
        place = f"{where}{given}"
        if key == "quantile" or (value is None and key in (*known, *_PROMISE_KEYS)):
            continue
        try:
            if key in _PROMISE_KEYS:
                metric = "ttft" if key == "slo" else key
                for item in value if isinstance(value, (list, tuple)) else [value]:
                    promises.append(parse_promise(item, metric, quantile))
            elif key == "promises":
                promises.extend(_promises(value, place))
            elif key not in known:
                names = (*known, *_PROMISE_KEYS, "promises", "quantile", *_ALIASES)
                problems.append(f"{place}: unknown option{did_you_mean(key, names)}")
            elif key == "tp" and (isinstance(value, (list, tuple)) or value == "all" or "," in str(value)):
                values["tp"], values["tp_options"] = None, _tp_options(value)
            else:
                values[key] = _convert(key, value, place)
        except InputError as error:
            for p in error.problems or (error.message,):
                problems.append(p if p.startswith(f"{place}: ") else f"{place}: {p}")
    if promises:
        values["promises"] = tuple(promises)
    return values, problems


def _tp_options(value: Any) -> tuple[int, ...]:
    """``"all"`` or ``"1,2,4"`` as sizes of tensor-parallel groups."""
    if value == "all":
        return ALL_TP
    items = value.split(",") if isinstance(value, str) else value
    return tuple(sorted({int(_convert("tp", item, "tp")) for item in items}))


def _promises(value: Any, place: str) -> list[Promise]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InputError(f"expected a list of promises, got {value!r}")
    result = []
    for item in value:
        if isinstance(item, Promise):
            result.append(item)
        elif isinstance(item, Mapping):
            unknown = set(item) - {"metric", "limit_s", "quantile", "scope"}
            if unknown or "metric" not in item or "limit_s" not in item:
                raise InputError(f"a promise has metric, limit_s, quantile and scope, got {dict(item)!r}")
            limit = parse_duration(item["limit_s"], "limit_s")
            level = parse_fraction(item.get("quantile", 0.99), "quantile")
            result.append(Promise(str(item["metric"]), limit, level, str(item.get("scope", "pool"))))
        else:
            result.append(parse_promise(item))
    return result


_INTEGERS = {"token_budget", "max_num_seqs", "max_model_len", "chunk"}
_COUNTS = {"min_replicas", "redundancy", "max_evaluations"}
_FRACTIONS = {"utilization_cap", "memory_utilization", "p_c", "availability_target", "spot_share"}
_NUMBERS = {"rate", "failures_per_hour", "repair_hours", "kv_transfer_gbps"}
_WORDS = {"cdf", "model", "profile", "method", "kv", "routing", "route_on", "burst", "shape"}


def _convert(key: str, value: Any, place: str) -> Any:
    if key in _WORDS:
        if not isinstance(value, str):
            raise InputError(f"expected text, got {value!r}")
        return value
    if key == "gpu":
        names = [v.strip() for v in value.split(",")] if isinstance(value, str) else value
        if not isinstance(names, (list, tuple)) or not all(isinstance(v, str) and v for v in names):
            raise InputError(f"expected a GPU name or a list of them, got {value!r}")
        return tuple(names)
    if key == "tp_options":
        return _tp_options(value)
    if key in ("boundaries", "gammas"):
        items = value.split(",") if isinstance(value, str) else value
        items = [items] if isinstance(items, (int, float)) else items
        if not isinstance(items, (list, tuple)) or not items:
            raise InputError(f"expected a list of numbers, got {value!r}")
        parse = parse_tokens if key == "boundaries" else parse_number
        return tuple(sorted({parse(v, key) for v in items}))
    if key in ("inventory", "price", "spot_price"):
        if isinstance(value, str) and value.count("=") == 1:
            value = dict([value.split("=")])  # as the flag takes it, for `what-if --set price=h100-80gb=2,h100-80gb=3`
        if not isinstance(value, Mapping):
            raise InputError(f"expected GPU=number, or GPU: number pairs in a file, got {value!r}")
        numbers = {str(k): parse_number(v, f"{key}.{k}") for k, v in value.items()}
        return {k: int(v) for k, v in numbers.items()} if key == "inventory" else numbers
    if key == "cached_share":
        if isinstance(value, str) and "=" in value:
            value = dict(item.split("=", 1) for item in value.split(",") if "=" in item)
        if isinstance(value, Mapping):
            return {str(k): parse_fraction(v, f"{key}.{k}") for k, v in value.items()}
        return parse_fraction(value, key)
    if key in _FRACTIONS:
        return parse_fraction(value, key)
    if key == "kv_transfer_base":
        return parse_duration(value, key)
    if key in _NUMBERS:
        return parse_number(value, key)
    number = parse_tokens(value, key) if key in _INTEGERS else parse_number(value, key)
    if number != int(number):
        raise InputError(f"expected a whole number, got {value!r}")
    return int(number)


def _problems(q: PlanInputs) -> list[str]:
    out = []

    def check(ok: bool, text: str) -> None:
        if not ok:
            out.append(text)

    def one_of(value: str, known: Sequence[str], name: str) -> None:
        check(value in known, f"{name}: {value!r} is none of {', '.join(known)}{did_you_mean(value, known)}")

    check(
        q.rate is None or (math.isfinite(q.rate) and q.rate > 0.0),
        f"rate: must be a positive number of requests per second, got {q.rate!r}",
    )
    check(bool(q.promises), "no latency promise: give slo (P99 TTFT), tpot or e2e")
    check(bool(q.gpu), "gpu: name at least one")
    one_of(q.method, METHODS, "method")
    one_of(q.kv, KV_POLICIES, "kv")
    one_of(q.routing, ROUTINGS, "routing")
    one_of(q.route_on, ("total", "input"), "route_on")
    one_of(q.burst, ("auto", "poisson"), "burst")
    one_of(q.shape, SHAPES, "shape")
    check(
        math.isfinite(q.kv_transfer_gbps) and q.kv_transfer_gbps > 0.0,
        f"kv_transfer_gbps: must be positive, got {q.kv_transfer_gbps}",
    )
    check(q.kv_transfer_base >= 0.0, f"kv_transfer_base: must not be negative, got {q.kv_transfer_base}")
    check(q.tp is None or q.tp >= 1, f"tp: must be at least 1, got {q.tp}")
    check(all(t >= 1 for t in q.tp_options), f"tp: each must be at least 1, got {list(q.tp_options)}")
    check(0.0 < q.utilization_cap < 1.0, f"utilization_cap: must lie between 0 and 1, got {q.utilization_cap}")
    check(1 <= q.pools <= 4, f"pools: 1 to 4, got {q.pools}")
    check(all(g >= 1.0 for g in q.gammas) and bool(q.gammas), f"gammas: each must be at least 1, got {list(q.gammas)}")
    check(
        q.boundaries is None or all(b > 0.0 for b in q.boundaries),
        f"boundaries: each must be positive, got {list(q.boundaries or ())}",
    )
    check(q.p_c is None or 0.0 <= q.p_c <= 1.0, f"p_c: must lie in [0, 1], got {q.p_c}")
    for name in ("token_budget", "max_num_seqs", "max_model_len", "chunk"):
        value = getattr(q, name)
        check(value is None or value >= 1, f"{name}: must be at least 1, got {value}")
    check(0.0 < q.memory_utilization <= 1.0, f"memory_utilization: must lie in (0, 1], got {q.memory_utilization}")
    shares = q.cached_share if isinstance(q.cached_share, Mapping) else {"": q.cached_share}
    for name, share in shares.items():
        label = f"cached_share.{name}" if name else "cached_share"
        check(0.0 <= share < 1.0, f"{label}: must lie in [0, 1), got {share}")
    check(q.min_replicas >= 1, f"min_replicas: must be at least 1, got {q.min_replicas}")
    check(q.redundancy >= 0, f"redundancy: must not be negative, got {q.redundancy}")
    check(q.max_evaluations >= 0, f"max_evaluations: must not be negative, got {q.max_evaluations}")
    check(
        q.availability_target is None or 0.0 < q.availability_target < 1.0,
        f"availability_target: must lie between 0 and 1, got {q.availability_target}",
    )
    check(q.failures_per_hour >= 0.0, f"failures_per_hour: must not be negative, got {q.failures_per_hour}")
    check(q.repair_hours >= 0.0, f"repair_hours: must not be negative, got {q.repair_hours}")
    check(0.0 <= q.spot_share <= 1.0, f"spot_share: must lie in [0, 1], got {q.spot_share}")
    check(all(v >= 0 for v in q.inventory.values()), "inventory: must not be negative")
    for name in ("price", "spot_price"):
        check(all(v > 0.0 for v in getattr(q, name).values()), f"{name}: must be positive")
    return out
