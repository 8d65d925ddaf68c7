"""The table of options: everything that can be asked of a plan, each thing once.

The fields of :class:`PlanInputs` are the table and its docstring says what they are, :data:`OPTIONS` is the same by name. It makes
the command line, the check of files and of ``--set``, the signature and docstring of :func:`planner.plan`
(``python tools/signatures.py``) and docs/cli.md (``python tools/cli_docs.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from planner.errors import MOST_TOLD, InputError, did_you_mean, refuse
from planner.machine.engines import LORA_RANKS, engine_names
from planner.machine.engines import engine as find_engine
from planner.promise import GOODPUT, MEAN, PROMISE_METRICS, Promise, Slo
from planner.question import values as of
from planner.question.values import Check, Kind, each, parse_goodput, parse_promise, rule
from planner.routing import DEFAULT_ROUTING, ROUTINGS
from planner.shared.arguments import told_sections
from planner.shared.paths import modules_in
from planner.units import DAY_S, RATE_RULE, is_rate, parse_fraction

_HOUSE = Path(__file__).parents[1]

GROWTH = ("users", "use")
"""More users, each like those there are, or the same users asking more often."""

ROUTABLE = tuple(name for r in ROUTINGS.values() if r.law is not None for name in (r.name, *r.aliases))
"""Routings that closed forms know, under all their names."""

AT_RANDOM: Mapping[str, Mapping[str, tuple[str | None, ...]]] = {
    "closed": {
        "shape": ("colocated",),
        "routing": ("auto", "random"),
        "burst": ("auto", "poisson"),
        **dict.fromkeys(("surge", "in_flight", "max_queue", "max_queued_tokens", "client_timeout"), (None,)),
    }
}
"""Methods for one replica alone, whose requests come to it at random, and what their options may be."""

METHODS = tuple(sorted(modules_in(_HOUSE / "predict" / "methods"), key=lambda name: (name != "mixed", name)))
"""Latency methods, a file each, that of today's engines first."""

SHAPES = modules_in(_HOUSE / "size" / "shapes")
"""How requests may pass through pools, a file each."""

DEFAULT_GAMMAS = tuple(round(1.0 + 0.1 * k, 1) for k in range(11))
"""Compression bands searched: FleetOpt Algorithm 1, gamma in {1.0, 1.1, ..., 2.0}."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Parameters
    ----------
    kind
        Type and unit of its value.
    flags
        Spellings on the command line; empty = ``--set NAME=VALUE``, as few people ask for it.
    filed
        Whether plan files alone write it.
    aliases
        Other names in files and ``--set``.
    choices
        The only values, where there are few.
    check
        What else a value must satisfy.
    bought
        Whether it says what to buy or how to search for it: it changes nothing of a fleet that stands.
    name
        Its name in files, in ``--set`` and in Python.
    panel
        Where help shows it.
    help, default
        What it does, and what it is where nothing is said, in words; empty where there is nothing to say of that.
    """

    kind: Kind
    flags: tuple[str, ...] | None = None
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    check: Check | None = None
    bought: bool = False
    filed: bool = False
    name: str = ""
    panel: str = ""
    help: str = ""
    default: str = ""

    @property
    def spellings(self) -> tuple[str, ...]:
        """Its flags: unless stated otherwise ``--`` and its name."""
        return ("--" + self.name.replace("_", "-"),) if self.flags is None else self.flags

    @property
    def example(self) -> str:
        """A value as people write it."""
        return self.choices[0] if self.choices else self.kind.example

    @property
    def told(self) -> str:
        """Help with the default."""
        return self.help + (f" Default: {self.default}." if self.default else "")

    def problems(self, value: Any) -> Iterator[str]:
        """What is wrong with a value that was read; nothing about ``None``."""
        if value is None:
            return
        found = [] if self.check is None else [*self.check(self.name, value)]
        yield from found
        if self.choices and value not in self.choices and not found:
            yield f"{self.name}: {value!r} is none of {', '.join(self.choices)}{did_you_mean(str(value), self.choices)}"


def _option(value: Any, kind: Kind, **facts: Any) -> Any:
    """A field of the question with its facts."""
    about = {"option": Option(kind, **facts)}
    return field(default_factory=dict, metadata=about) if value == {} else field(default=value, metadata=about)


_AT_LEAST_1 = rule("must be at least 1", lambda v: v >= 1)
_EACH_AT_LEAST_1 = each("must be at least 1", lambda v: v >= 1)
_NOT_NEGATIVE = rule("must not be negative", lambda v: v >= 0)
_SHARE = rule("must lie in [0, 1]", lambda v: 0.0 <= v <= 1.0)
_POSITIVE = rule("must be positive", lambda v: 0.0 < v < math.inf)
_PROPER = rule("must lie between 0 and 1", lambda v: 0.0 < v < 1.0)
_PRICED = each("must be positive", lambda v: v > 0.0)
_FACTOR = rule("must be a positive factor", lambda v: math.isfinite(v) and v > 0.0)
_MINUTES = rule("must lie between a minute and an hour", lambda v: 60.0 <= v <= 3600.0)
_CHANCE = rule("must lie in [0.05, 0.99]", lambda v: 0.05 <= v <= 0.99)
_CUTS = each("each must be positive", lambda v: v > 0.0)
_BANDS = each("each must be at least 1", lambda v: v >= 1.0)


def _too_few_up(name: str, value: float) -> Iterator[str]:
    """A probability that too few replicas are up; what looks like one that enough are is told apart."""
    yield from _PROPER(name, value)
    if 0.5 < value < 1.0:
        yield (
            f"{name}: got {value:.10g}, but it is the probability that too few replicas are up: "
            f"write {1.0 - value:.10g} for enough of them {100.0 * value:.10g}% of the time"
        )


def _parses(place: str, *before: Any, named: bool = False) -> Check:
    """A check by the reader of a value, ``module:Class.method``, which is loaded where there is a value: what it says of it."""

    def check(name: str, value: str) -> Iterator[str]:
        module, _, reader = place.partition(":")
        try:
            attrgetter(reader)(import_module(module))(*before, value)
        except InputError as error:
            yield f"{name}: {error.message}" if named else error.message

    return check


def _bursts(name: str, value: str) -> Iterator[str]:
    """What is wrong with a law of arrivals as written."""
    from planner.workload.sending import paced_clients

    if value not in ("auto", "poisson") and paced_clients(value) is None:
        yield f"{name}: {value!r} is none of auto, poisson, paced:N (N clients at constant gaps)"


def _engine(name: str, value: str) -> Iterator[str]:
    """What is wrong with an engine as written: its name, or its version after an @."""
    if value.lower().partition("@")[0] not in engine_names():
        yield f"{value!r} is none of {', '.join(engine_names())} (a version stands after an @: vllm@0.27)"
        return
    try:
        find_engine(value)
    except InputError as error:
        yield f"{error.message}: {error.hint}"


def _encoders(name: str, value: str) -> Iterator[str]:
    """That image encoders have no GPUs of their own, where that is asked for."""
    if value.lower() in ("encoder", "epd", "e+pd", "e+p+d"):
        yield f"{name}: {value}, an image encoder on GPUs of its own, is not modelled: its work is part of the prefill"


def _rank(name: str, value: int) -> Iterator[str]:
    """That engines make room for certain ranks alone."""
    if value not in LORA_RANKS:
        next_one = next((rank for rank in LORA_RANKS if rank > value), LORA_RANKS[-1])
        yield f"{name}: engines make room for ranks {', '.join(map(str, LORA_RANKS))}; write {next_one}"


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """A question: all options of a plan. ``None`` means "decide for me and say so".

    Workload
    --------
    cdf
        Workload: a file, a shipped name (`fleetopt workload list`), or - for standard input. Default: azure.
    rate
        Arrival rate of the fleet, requests/s. Default: the workload's own.
    users
        Users in place of a rate, each waiting for its answer before it asks again; with --think-time or
        --requests-per-hour. Default: none.
    think_time
        From an answer to the user's next request: 60s (exponential), 60s fixed, 60s lognormal 1.5.
    requests_per_hour
        Requests of each user where answers come at once: 20 is a think time of 3 min.
    concurrency
        Requests always under way, as benchmarks send them: so many users who do not think. Default: none.
    rate_is
        The rate is the mean of a day (its busiest hour is sized for) or the peak. Default: --rate as given; a trace of a
        day or more: its busiest hour.
    headroom
        Share of the rate to size for beyond it: 20%. Default: 0.
    isl
        Mean input, tokens: with --osl a workload without a trace, log-normal lengths assumed.
    osl
        Mean output, tokens, with --isl.
    isl_spread
        Standard deviation over mean of the input for --isl: 0.5 or 50%. Default: 1.
    osl_spread
        The same of the output, for --osl. Default: 1.
    drop_longer_than
        Leave out requests of more tokens, input and output together; the share dropped is told. Default: none.
    osl_scale
        Factor on every output length: 1.3 = outputs grow 30%. Default: 1.
    images
        Images of every prompt, whose tokens are added to it and whose encoder works before it. Default: the workload's own.
    image_size
        Width x height of each image, pixels: 1920x1080. Default: 1024x1024.
    cached_share
        Share of prompts served from the prefix cache: 60%, or by category: conv=0.6,code=0.2. Default: 0.
    shared_prefix
        Tokens that begin every prompt longer than they are (a system prompt): computed once, kept once in every cache.
        Default: 0.
    prefix_cache
        Whether engines keep prompts for sessions that come back; felt by workloads with sessions where --cached-share is 0.
        Default: on.
    session_ttl
        How long a cached prompt is kept at most after its last use. Default: as long as there is room.
    client_timeout
        Clients give up when they have no first token after so long. Default: never.
    retries
        Times clients send a request again that was turned away or given up. Default: 0.
    retry_after
        How long they wait before. Default: 1s.
    burst
        auto: bursts as the trace shows them; poisson: none; paced:N: N clients that send at constant gaps. Default: auto.
    surge
        Flash crowds, for whose requests alone the promises are kept: 3x/60s, or 3x/60s/30s with a ramp. Default: none.
    in_flight
        Requests of all clients under way at most (closed loop): one beyond waits with its client, where no latency counts.
        Default: no limit.
    law
        Take a trace's requests as the law of its lengths and draw others at random times: for one too short for its
        promises.
    growth
        More than the trace's own rate is more users (bursts even out) or more use by the same users (bursts grow). Default:
        users.

    Promises
    --------
    throughput
        Output tokens/s that the fleet carries: 2000 or 2k tok/s; in place of --rate, beside it the larger of both. Default:
        none.
    windows
        Promises hold in 95% of the windows of this length: 5min. Plan, schedule and autoscale all take it so. Default: over
        the whole period.
    slo
        P99 TTFT promise: 0.5, 500ms, p50=200ms,p99=1s or mean=300ms; or any other: tpot:p95=40ms; repeat for more.
    ttft
        TTFT promise, the same as slo.
    tpot
        TPOT promise: 50ms, p95=40ms, mean=8ms, or 30tok/s of a user.
    e2e
        End-to-end promise, e.g. 20s.
    goodput
        Share of the requests that keep several limits at once: 99%:ttft=500ms,tpot=50ms; repeat for more.
    quantile
        Quantile of promises that name none: 0.95, 95 or p95. Default: 0.99.
    scope
        pool: every pool keeps the promises; fleet: all requests together do. Default: pool.
    promises
        Promises as a plan file writes them, in place of all others.
    confidence
        Chance with which the fleet keeps its promises, the errors of iteration times and the traffic's other hours
        considered; 50% buys the median. Default: 80%.

    Hardware and model
    ------------------
    gpu
        GPU type; repeat to let the search mix types. Default: h100.
    model
        Model name, or a Hugging Face config.json. Default: llama-3.1-8b.
    like
        Family (model_type) whose arithmetic to take for a config.json of an unknown architecture. Default: refused.
    weights
        Dtype the weights are served in: of a quantized checkpoint of the model. Default: the model's.
    kv_dtype
        Dtype of the KV cache. Default: the model's.
    tp
        GPUs of a tensor-parallel group: 2, or a list to choose from: 1,2,4. Default: every pool the cheapest of a node's.
    tp_options
        The sizes that `tp` lists, as a plan file writes them.
    pp
        Pipeline stages, each a tensor-parallel group. Default: 1; more where no node holds the model.
    dp
        Copies of a mixture's attention in a replica, its experts spread over all of their GPUs (attention data
        parallelism). Default: 1, or a copy on every GPU of the smallest group or a node, the cheaper.
    ep
        GPUs over which whole experts are spread: tp x dp, or 1 = every expert is cut. Default: tp x dp where dp > 1, else
        1.
    speculate
        Speculative decoding: METHOD:k=3,accept=0.8,decay=0.95 or ...,accept=[.8,.7,.6], length=2.4, or vLLM's counts
        drafts=1000,accepted=800/560/336; METHOD is mtp, eagle3, eagle, draft or ngram. Default: none.
    engine
        Engine that serves ({engines}; of a version: vllm@0.27): its host's time and its measured profile. Default: that of
        --profile, else vllm.
    api_overhead
        Time of a request outside the engine that its first token waits for. Default: the profile's or the engine's.
    request_time
        Time of the host that each request takes from the iterations. Default: the profile's or the engine's.
    lora
        Adapters (LoRA, all linear layers) that every replica keeps in its memory. Default: 0.
    lora_rank
        Rank of the adapters. Default: 16.
    profile
        Iteration-time profile: name or file. Default: yours, a shipped one, or an estimate.
    offload
        Host memory of a replica for cached prompts that the GPU drops, GiB. Default: 0.
    offload_gbps
        Link between host memory and a GPU, Gbit/s. Default: 200.
    offload_disk
        Disk of a replica for what its host memory drops, GiB. Default: 0.
    offload_disk_gbps
        Speed at which that disk is read, Gbit/s. Default: 50.
    write_through
        Whether all prompts are copied to host memory and disk as they are computed, else what is dropped. Default: false.
    inventory
        GPUs available of a type: h100=64. Repeat.
    max_kw
        Power that all GPUs may draw together with every batch full, kW. Default: no limit.
    price
        Price of a GPU, USD/hour: h100=2.5. Repeat. Default: the catalog's.
    spot_price
        Spot price of a GPU, USD/hour: h100=1.2. Repeat.
    spot_share
        Largest share of a pool's replicas on spot. Default: 0.
    kv_transfer_gbps
        Link per GPU between prefill and decode nodes, Gbit/s. Default: 100.
    kv_transfer_base
        Time of a KV transfer beyond its bytes. Default: 2ms.
    kv_transfer_layerwise
        Whether layers travel while later ones are computed, else whole prompts when they are done. Default: false.
    prefill_queue
        Prompts waiting for prefill nodes from which on decode nodes compute new ones themselves, in chunks. Default: never.

    Search
    ------
    method
        mixed (vLLM, SGLang), closed (its closed form: Poisson, random routing), occupancy (exclusive engines), mgc (the
        FleetOpt paper). Default: mixed.
    kv
        paged (vLLM), reserved (FleetOpt) or both (every pool the cheaper). Default: paged.
    routing
        How a pool's gateway picks a replica: {routings}; auto: {usual}, for sessions the cheapest. Default: auto.
    utilization_cap
        Largest share of the maximum throughput in use. Default: 0.85.
    pools
        Largest number of pools, 1 to 4. Default: 2.
    boundaries
        Boundaries to search, tokens: 2048,4096. Default: the workload's breakpoints.
    gammas
        Compression bands to search: 1,1.5,2. Default: 1.0,1.1,...,2.0.
    p_c
        Share of the band that can be compressed. Default: by category.
    route_on
        What a gateway sends requests to pools by: their input, or total (an oracle for the output). Default: input.
    scheduler
        The engine's own scheduler, or one sized by its theory and by simulating it: sarathi, eb, slai, wait, rad. Default:
        engine.
    compress
        Take a gateway that rewrites prompts just above a boundary, and knows the outputs (--set route_on=total); with a
        FILE of `compress measure`: the shares and times measured.
    cpu_price
        Price of a CPU core that compresses, USD/hour. Default: 0.0446.
    token_budget
        Tokens per iteration (max_num_batched_tokens), or a list to choose from. Default: every pool the cheapest of 512 to
        8192.
    max_num_seqs
        Slots per replica, or a list to choose from. Default: the memory-safe number.
    max_model_len
        Longest request admitted, tokens. Default: the longest prompt and output of the workload, within the model's
        context.
    max_output
        Longest output a pool keeps room for, tokens. Default: the workload's longest.
    chunk
        Prefill chunk of methods occupancy and mgc, tokens. Default: 512.
    memory_utilization
        Share of GPU memory the engine may take. Default: 0.9.
    max_queue
        Requests that may wait at a replica before it turns more away. Default: no limit.
    max_queued_tokens
        Prompt tokens that may wait at a replica (vLLM --max-num-queued-tokens). Default: no limit.
    min_replicas
        Least replicas of a pool. Default: 1.
    redundancy
        Spare replicas per pool: 2, N+2, or as many as keep enough of them up 99.9%. Default: 0.
    availability_target
        Largest probability that fewer replicas than needed are up: 0.01 for 99% availability. Default: not asked for.
    failures_per_hour
        Failures of one replica per hour, for availability_target. Default: 0.001.
    repair_hours
        Hours until a failed replica serves again, for availability_target. Default: 0.5.
    max_evaluations
        Questions of a search, a replay each, before it stops with a gap; 0 = until proven. Default: 3000.
    shape
        colocated, disaggregated (prefill and decode pools of their own) or both (the cheaper, compared). Default:
        colocated.
    """

    cdf: str = _option("azure", of.TEXT, flags=("--cdf", "--workload", "-w"), aliases=("workload",))
    rate: float | None = _option(None, of.RATE, aliases=("arrival_rate_per_s",), check=rule(RATE_RULE, is_rate))
    throughput: float | None = _option(None, of.TOKEN_RATE, check=_POSITIVE)
    users: int | None = _option(None, of.COUNT, check=_AT_LEAST_1)
    think_time: str | None = _option(None, of.TEXT, check=_parses("planner.workload.sending:Population.parse", 1))
    requests_per_hour: float | None = _option(None, of.NUMBER, check=_POSITIVE)
    concurrency: int | None = _option(None, of.COUNT, check=_AT_LEAST_1)
    rate_is: str | None = _option(None, of.TEXT, choices=("mean", "peak"))
    headroom: float = _option(0.0, of.FRACTION, check=rule("must lie in [0, 5]", lambda v: 0.0 <= v <= 5.0))
    drop_longer_than: int | None = _option(None, of.TOKENS, check=_AT_LEAST_1)
    osl_scale: float = _option(1.0, of.NUMBER, check=_FACTOR, flags=())
    images: int | None = _option(None, of.COUNT, check=_NOT_NEGATIVE)
    image_size: str | None = _option(None, of.TEXT, check=_parses("planner.catalog.images:parse_size"))
    windows: float | None = _option(None, of.DURATION, check=_MINUTES)
    promises: tuple[Promise, ...] = _option((), of.PROMISES, flags=(), filed=True)
    confidence: float = _option(0.8, of.FRACTION, check=_CHANCE, bought=True)
    gpu: tuple[str, ...] = _option(("h100",), of.GPUS, flags=("--gpu", "-g"), aliases=("gpus",), bought=True)
    model: str = _option("llama-3.1-8b", of.TEXT, flags=("--model", "-m"))
    like: str | None = _option(None, of.TEXT, flags=())
    weights: str | None = _option(None, of.TEXT, choices=("bf16", "fp8", "fp4", "int4"))
    kv_dtype: str | None = _option(None, of.TEXT, choices=("bf16", "fp8"), flags=())
    tp: int | None = _option(None, of.TP, check=_EACH_AT_LEAST_1, bought=True)
    tp_options: tuple[int, ...] = _option((), of.TP_SIZES, flags=(), filed=True, check=_EACH_AT_LEAST_1, bought=True)
    pp: int | None = _option(None, of.COUNT, check=_AT_LEAST_1, bought=True)
    dp: int | None = _option(None, of.COUNT, check=_AT_LEAST_1, bought=True)
    ep: int | None = _option(None, of.COUNT, check=_AT_LEAST_1, bought=True, flags=())
    speculate: str | None = _option(
        None, of.SPECULATION, check=_parses("planner.machine.speculation:Speculation.parse", named=True)
    )
    engine: str | None = _option(None, of.TEXT, check=_engine)
    api_overhead: float | None = _option(None, of.DURATION, check=_NOT_NEGATIVE, flags=())
    request_time: float | None = _option(None, of.DURATION, check=_NOT_NEGATIVE, flags=())
    lora: int = _option(0, of.COUNT, check=_NOT_NEGATIVE)
    lora_rank: int = _option(16, of.COUNT, check=_rank)
    profile: str | None = _option(None, of.TEXT)
    method: str = _option("mixed", of.TEXT, choices=METHODS)
    kv: str = _option("paged", of.TEXT, choices=("paged", "reserved", "both"))
    routing: str = _option("auto", of.TEXT, choices=("auto", *ROUTABLE))
    utilization_cap: float = _option(0.85, of.FRACTION, check=_PROPER)
    pools: int = _option(2, of.COUNT, aliases=("max_pools",), check=rule("1 to 4", lambda v: 1 <= v <= 4), bought=True)
    boundaries: tuple[float, ...] | None = _option(
        None, of.TOKEN_LIST, aliases=("boundary",), check=_CUTS, bought=True, flags=()
    )
    gammas: tuple[float, ...] = _option(
        DEFAULT_GAMMAS, of.GAMMAS, aliases=("gamma",), check=_BANDS, bought=True, flags=()
    )
    p_c: float | None = _option(None, of.FRACTION, check=_SHARE, flags=())
    route_on: str = _option("input", of.TEXT, choices=("input", "total"), flags=())
    scheduler: str = _option(
        "engine", of.TEXT, choices=("engine", "sarathi", "eb", "slai", "wait", "rad"), bought=True, flags=()
    )
    compress: bool | Mapping[str, Any] = _option(False, of.COMPRESS)
    cpu_price: float = _option(0.0446, of.NUMBER, check=_NOT_NEGATIVE, bought=True, flags=())
    token_budget: tuple[int, ...] = _option((), of.BUDGETS, check=_EACH_AT_LEAST_1, bought=True)
    max_num_seqs: tuple[int, ...] = _option((), of.BUDGETS, check=_EACH_AT_LEAST_1, bought=True)
    max_model_len: int | None = _option(None, of.TOKENS, check=_AT_LEAST_1)
    max_output: int | None = _option(None, of.TOKENS, check=_AT_LEAST_1, flags=())
    chunk: int = _option(512, of.TOKENS, check=_AT_LEAST_1, flags=())
    memory_utilization: float = _option(0.9, of.FRACTION, check=rule("must lie in (0, 1]", lambda v: 0.0 < v <= 1.0))
    cached_share: float | Mapping[str, float] = _option(
        0.0, of.SHARES, aliases=("prefix_cached_share",), check=each("must lie in [0, 1)", lambda v: 0.0 <= v < 1.0)
    )
    shared_prefix: int = _option(0, of.TOKENS, check=_NOT_NEGATIVE, flags=())
    prefix_cache: str = _option("on", of.TEXT, choices=("on", "off"), flags=())
    session_ttl: float | None = _option(None, of.DURATION, check=_POSITIVE, flags=())
    offload: float = _option(0.0, of.NUMBER, check=_NOT_NEGATIVE, flags=())
    offload_gbps: float = _option(200.0, of.NUMBER, check=_POSITIVE, flags=())
    offload_disk: float = _option(0.0, of.NUMBER, check=_NOT_NEGATIVE, flags=())
    offload_disk_gbps: float = _option(50.0, of.NUMBER, check=_POSITIVE, flags=())
    write_through: bool = _option(False, of.SWITCH, flags=())
    max_queue: int | None = _option(None, of.COUNT, check=_NOT_NEGATIVE, flags=())
    max_queued_tokens: int | None = _option(None, of.TOKENS, check=_AT_LEAST_1, flags=())
    client_timeout: float | None = _option(None, of.DURATION, check=_POSITIVE)
    retries: int = _option(0, of.COUNT, check=_NOT_NEGATIVE, flags=())
    retry_after: float = _option(1.0, of.DURATION, check=_NOT_NEGATIVE, flags=())
    burst: str = _option("auto", of.TEXT, check=_bursts)
    surge: str | None = _option(None, of.TEXT, check=_parses("planner.workload.sending:Surge.parse"), flags=())
    in_flight: int | None = _option(None, of.COUNT, check=_AT_LEAST_1, flags=())
    law: bool = _option(False, of.SWITCH)
    growth: str = _option("users", of.TEXT, choices=GROWTH, flags=())
    min_replicas: int = _option(1, of.COUNT, check=_AT_LEAST_1, bought=True, flags=())
    redundancy: int = _option(0, of.COUNT, check=_NOT_NEGATIVE, bought=True)
    availability_target: float | None = _option(None, of.FRACTION, check=_too_few_up, bought=True, flags=())
    failures_per_hour: float = _option(0.001, of.NUMBER, check=_NOT_NEGATIVE, bought=True, flags=())
    repair_hours: float = _option(0.5, of.NUMBER, check=_NOT_NEGATIVE, bought=True, flags=())
    inventory: Mapping[str, int] = _option(
        {}, of.GPU_COUNTS, check=each("must not be negative", lambda v: v >= 0), bought=True
    )
    max_kw: float | None = _option(None, of.NUMBER, check=_POSITIVE, bought=True)
    price: Mapping[str, float] = _option({}, of.GPU_PRICES, check=_PRICED, bought=True)
    spot_price: Mapping[str, float] = _option({}, of.GPU_PRICES, check=_PRICED, bought=True)
    spot_share: float = _option(0.0, of.FRACTION, check=_SHARE, bought=True)
    max_evaluations: int = _option(3000, of.COUNT, check=_NOT_NEGATIVE, bought=True, flags=())
    shape: str = _option("colocated", of.TEXT, choices=(*SHAPES, "both"), check=_encoders, bought=True)
    kv_transfer_gbps: float = _option(100.0, of.NUMBER, check=_POSITIVE, flags=())
    kv_transfer_base: float = _option(0.002, of.DURATION, check=_NOT_NEGATIVE, flags=())
    kv_transfer_layerwise: bool = _option(False, of.SWITCH, flags=())
    prefill_queue: int | None = _option(None, of.COUNT, check=_NOT_NEGATIVE, flags=())

    def __post_init__(self) -> None:
        if self.throughput is not None and not self.promises:
            # work that nobody waits for is wanted within a day, as batch APIs promise it
            object.__setattr__(self, "promises", (Promise("e2e_s", DAY_S),))
        problems = [line for name, option in OPTIONS.items() for line in option.problems(getattr(self, name, None))]
        if not self.gpu:
            problems.append("gpu: name at least one")
        for name, known in AT_RANDOM.get(str(self.method), {}).items():
            if (value := getattr(self, name)) not in known:
                problems.append(f"{name} {value}: method {self.method} knows random routing and Poisson arrivals alone")
        hint = None
        if not self.promises:
            problems.append("no latency promise given")
            several = "--goodput 99%:ttft=500ms,tpot=50ms"
            hint = f"Give at least one: --slo 0.5 (P99 TTFT <= 0.5 s), --tpot 50ms, --e2e 20s or {several}."
        problems += self._users()
        if self.method != "mixed" and any(p.quantile == MEAN for p in self.promises):
            problems.append(f"method {self.method}: knows quantiles alone; means are read off replays (method mixed)")
        refuse(problems, hint)

    def _users(self) -> Iterator[str]:
        """What is wrong with the users, of whom a rate, arrivals and limits come out."""
        asked = {"users": self.users, "concurrency": self.concurrency}
        named = [name for name, value in asked.items() if value is not None]
        if self.think_time is not None and self.requests_per_hour is not None:
            yield "think_time, requests_per_hour: two ways to say how often a user asks; give one"
        if not named:
            alone = [n for n in ("think_time", "requests_per_hour") if getattr(self, n) is not None]
            yield from (f"{name}: of how many users? Give --users 500" for name in alone)
            return
        beside = {"rate": self.rate, "throughput": self.throughput, "in_flight": self.in_flight, "surge": self.surge}
        beside |= {"rate_is": self.rate_is, "speculate": self.speculate}
        wrong = [name for name, value in beside.items() if value is not None]
        wrong += [f"shape {self.shape}"] if self.shape == "disaggregated" else []
        wrong += [f"method {self.method}"] if self.method != "mixed" else []
        if len(named) == 2 or wrong:
            others = ", ".join([*named[1:], *wrong])
            yield f"{named[0]}: not together with {others}: how often users are answered says how often they ask"

    def to_dict(self) -> dict[str, object]:
        """JSON- and YAML-ready, in the options' own names; defaults included, so that a plan is self-contained."""
        result: dict[str, object] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "promises":
                value = [p.to_dict() for p in value]
            elif f.name in _OPEN_OR_ONE and len(value) < 2:
                # as files before lists had it
                value = value[0] if value else None
            elif isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, Mapping):
                value = dict(value)
            result[f.name] = value
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "") -> PlanInputs:
        """Build from a mapping of options; unknown and ill-typed keys are all reported, with their path."""
        return cls.layered([(data, where)])

    @classmethod
    def layered(cls, layers: Sequence[tuple[Mapping[str, Any], str]]) -> PlanInputs:
        """Build from several mappings of options, each with the prefix of its key paths; a later one overrides."""
        values: dict[str, Any] = {}
        stocked = -1
        for data, where in layers:
            changes = _changes(data, where, values.get("promises"), values.get("cdf"))
            stocked = 1 if "inventory" in changes else 0 if "gpu" in changes else stocked
            values |= changes
        try:
            if stocked == 1:
                _in_stock(values["inventory"], values.get("gpu", ("h100",)))
            return cls(**values)
        except InputError as error:
            lines = error.problems or (error.message,)
            raise InputError.from_problems([f"{layers[0][1]}{line}" for line in lines], error.hint) from None

    def override(self, changes: Mapping[str, Any], where: str = "") -> PlanInputs:
        """The same question with some options changed, each given as in a configuration file.

        Promises about one metric replace those about it; ``promises`` replaces all.
        """
        return replace(self, **_changes(changes, where, self.promises, self.cdf))


_OPEN_OR_ONE = ("token_budget", "max_num_seqs")
"""Lists that are mostly empty (the search chooses) or one value."""

_ALONE = tuple(metric.removesuffix("_s") for metric in PROMISE_METRICS)
"""Options that promise one latency."""

_WRITTEN_PROMISES = {
    "slo": Option(of.PROMISE, flags=("--slo", "--ttft")),
    **{name: Option(of.PROMISE, flags=() if name == "ttft" else None) for name in _ALONE},
    "goodput": Option(of.GOODPUTS),
    "quantile": Option(of.QUANTILE, check=_PROPER),
    "scope": Option(of.TEXT, choices=("pool", "fleet"), flags=()),
}
"""Promises as people write them: they become ``promises`` of the question."""

_WRITTEN_LENGTHS = {
    "isl": Option(of.TOKENS),
    "osl": Option(of.TOKENS),
    "isl_spread": Option(of.FRACTION, flags=()),
    "osl_spread": Option(of.FRACTION, flags=()),
}
"""Lengths as people write them: they become the name of a synthetic workload, ``cdf`` of the question."""


def _table() -> dict[str, Option]:
    """All options by name, those of promises where the question keeps its promises."""
    table: dict[str, Option] = {}
    for f in fields(PlanInputs):
        if f.name == "promises":
            table |= _WRITTEN_PROMISES
        if f.name == "drop_longer_than":
            table |= _WRITTEN_LENGTHS
        table[f.name] = f.metadata["option"]
    told = {
        name: (panel, *text.partition(" Default: ")[::2]) for panel, own in _TOLD.items() for name, text in own.items()
    }
    names = {"engines": ", ".join(engine_names()), "routings": ", ".join(ROUTABLE), "usual": DEFAULT_ROUTING}
    for name, option in table.items():
        # nothing is said under python -OO, which leaves docstrings out
        panel, help, default = told.get(name, ("", "", ""))
        words: dict[str, Any] = {"panel": panel, "help": help.format(**names), "default": default.rstrip(".")}
        table[name] = replace(option, name=name, **words)
    return table


_, _TOLD = told_sections(PlanInputs.__doc__ or "")
PANELS = tuple(_TOLD)
"""Where help shows options."""

OPTIONS: Mapping[str, Option] = _table()
"""Every option by its name."""

RENAMED: Mapping[str, str] = {
    "--" + name.replace("_", "-"): f"--set {name}="
    for name, o in OPTIONS.items()
    if not (o.spellings or o.filed or name == "ttft")
} | {"--buffer": "--headroom"}
"""What has no flag, or another one -> the words that say it."""

FLAGS = {flag: option for option in OPTIONS.values() for flag in option.spellings}
"""Every spelling of an option on the command line."""


def written(name: str, value: object) -> str:
    """An option and its value on the command line.

    >>> written("slo", "500ms"), written("ttft", "1s"), written("max_queue", 40)
    ('--slo 500ms', '--ttft 1s', '--set max_queue=40')
    """
    flag = "--" + name.replace("_", "-")
    told = f"{value:.10g}" if isinstance(value, float) else str(value)
    return f"{flag} {told}" if flag in FLAGS else f"--set {name}={told}"


_ALIASES = {alias: name for name, option in OPTIONS.items() for alias in option.aliases}
_LIMITS = ("slo", *_ALONE, "goodput")

WRITTEN_LIMITS = (*_LIMITS, "promises")
"""Options that promise something."""


def canonical(name: str) -> str:
    """The option's own name: dashes become underscores, aliases what they stand for.

    >>> canonical("max-pools")
    'pools'
    """
    name = name.replace("-", "_")
    return _ALIASES.get(name, name)


def unknown_option(name: str, guess: bool = True) -> str | None:
    """``unknown option; did you mean ...`` with a guess, or ``None`` when the name is an option's."""
    key = canonical(name)
    return None if key in OPTIONS else f"unknown option{did_you_mean(key, (*OPTIONS, *_ALIASES)) if guess else ''}"


def _changes(
    data: Mapping[str, Any], where: str, base: Sequence[Promise] | None, cdf: str | None = None
) -> dict[str, Any]:
    """Fields of the question that `data` sets, the promises and the lengths it leaves alone kept."""
    values = _read(data, where, cdf)
    if base is None:
        return values
    alone = [k for k in ("quantile", "scope") if data.get(k) is not None and "promises" not in values]
    if alone:
        raise InputError(
            f"{where}{alone[0]}: of which promise?", "Give the promise with it: slo, tpot, e2e or goodput."
        )
    replaced = data.get("promises") is not None or any(isinstance(v, Slo) for v in data.values())
    if "promises" in values and not replaced:
        changed = {p.kind for p in values["promises"]}
        every = (*values["promises"], *(p for p in base if p.kind not in changed))
        # in the order of the flags, whichever of them came from a file
        values["promises"] = tuple(sorted(every, key=lambda p: (*PROMISE_METRICS, GOODPUT).index(p.kind)))
    return values


def _read(data: Mapping[str, Any], where: str, cdf: str | None = None) -> dict[str, Any]:
    """Fields of the question from options under any of their names; raises one error with all problems.

    `cdf` is the workload so far, whose lengths may be changed.

    ``None`` is what was not given.
    """
    given: dict[str, tuple[str, Any]] = {}
    problems: list[tuple[str, str | None]] = []
    for spelled, value in data.items():
        key, place = canonical(str(spelled)), f"{where}{spelled}"
        if key == "redundancy" and isinstance(value, str) and value.strip().endswith("%"):
            # how often enough replicas are up, as people ask for it
            key, value = "availability_target", round(1.0 - parse_fraction(value, key), 12)
        # a guess takes a millisecond: none for what nobody is shown
        if wrong := unknown_option(str(spelled), guess=len(problems) < MOST_TOLD):
            problems.append((f"{place}: {wrong}", None))
        elif key in given:
            problems.append((f"{place}: given twice, also as {given[key][0].removeprefix(where)}", None))
        elif value is not None:
            given[key] = (place, value)
    values: dict[str, Any] = {}
    for key, (place, value) in given.items():
        try:
            values[key] = value if isinstance(value, Slo) else OPTIONS[key].kind.read(value, key)
            refuse([*OPTIONS[key].problems(values[key])])
        except InputError as error:
            values.pop(key, None)
            problems += _placed(error, place, key)
    written = {key: values.pop(key) for key in _WRITTEN_PROMISES if key in values}
    promises = [*values.get("promises", ()), *_promises(written, given, problems)]
    if promises:
        values["promises"] = tuple(promises)
    lengths = {key: values.pop(key) for key in _WRITTEN_LENGTHS if key in values}
    if lengths and len(lengths) == sum(key in _WRITTEN_LENGTHS for key in given):
        try:
            values["cdf"] = _synthetic(lengths, values.get("cdf"), cdf)
        except InputError as error:
            for line in error.problems or (error.message,):
                key = line.partition(":")[0]
                told = given[key][0] + line.removeprefix(key) if key in given else f"{where}{line}"
                problems.append((told, error.hint))
    if "tp" in values:
        # a size fixes it, a list leaves it to the pools
        sizes = values["tp"]
        one = len(sizes) == 1
        values["tp"] = sizes[0] if one else None
        values["tp_options"] = values.get("tp_options", ()) if one else sizes
    hints = {hint for _, hint in problems if hint}
    refuse([text for text, _ in problems], hints.pop() if len(hints) == 1 else None)
    return values


def _in_stock(inventory: Mapping[str, int], gpus: Sequence[str]) -> None:
    """Refuse GPUs that are there and that the search does not look at."""
    from planner.catalog.load import gpu

    def found(name: str, key: str) -> str:
        """The canonical name; one that is unknown is told with the option it was given to."""
        try:
            return gpu(name).name
        except InputError as error:
            raise InputError(f"{key}: {error.message}", error.hint) from None

    asked = [found(name, "gpu") for name in gpus if name != "any"]
    beside = [name for name in inventory if found(name, "inventory") not in asked and "any" not in gpus]
    if beside:
        every = " ".join(f"--gpu {name}" for name in (*gpus, *beside))
        only = " ".join(f"--gpu {name}" for name in inventory)
        raise InputError(
            f"inventory: {beside[0]!r} is none of the GPUs searched ({', '.join(gpus)}); write {only}",
            f"To search all of them: {every}.",
        )


def _promises(
    written: Mapping[str, Any], given: Mapping[str, tuple[str, Any]], problems: list[tuple[str, str | None]]
) -> Iterator[Promise]:
    """The promises of the options that write one; what is wrong with others is added to `problems`."""
    level, scope = written.get("quantile", 0.99), written.get("scope", "pool")
    for key in _LIMITS:
        limits = written.get(key, ())
        for limit in limits.promises if isinstance(limits, Slo) else limits:
            try:
                if isinstance(limit, Promise):
                    yield limit
                elif key == "goodput":
                    yield parse_goodput(limit, level, scope)
                else:
                    yield parse_promise(limit, "ttft" if key == "slo" else key, level, scope)
            except InputError as error:
                problems += _placed(error, given[key][0], key)


def _synthetic(lengths: Mapping[str, Any], beside: str | None, before: str | None) -> str:
    """The name of the synthetic workload of lengths as written, those not given as in the workload before."""
    from planner.workload.synthetic import SyntheticLengths

    if beside is not None:
        raise InputError(
            f"{next(iter(lengths))}: beside cdf, which has lengths of its own",
            "Give a workload or lengths; osl_scale changes the outputs of a workload.",
        )
    known = None if before is None else SyntheticLengths.parse(before)
    if known is not None:
        return replace(known, **lengths).name
    if missing := [name for name in ("isl", "osl") if name not in lengths]:
        raise InputError(
            f"{next(iter(lengths))}: without {' and '.join(missing)}", "Both means are needed: --isl 2000 --osl 300."
        )
    return SyntheticLengths(**lengths).name


def _placed(error: InputError, place: str, key: str) -> list[tuple[str, str | None]]:
    """(problem, hint) of an error about `key`, with its place in front."""
    lines = []
    for line in error.problems or (error.message,):
        own = line.startswith((f"{key}:", f"{key}."))
        lines.append((place + line.removeprefix(key) if own else f"{place}: {line}", error.hint))
    return lines
