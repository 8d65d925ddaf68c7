"""The cheapest fleet for a question: what every other question begins with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from planner.ask.asked import standing_of
from planner.ask.options import PlanOptions
from planner.errors import InfeasibleError, InputError
from planner.plans import Plan
from planner.promise import Slo
from planner.question.files import load_question
from planner.question.options import PlanInputs
from planner.shared.arguments import spelled_out, told_types
from planner.shared.kept import keeping
from planner.shared.remarks import Remark
from planner.size.assemble import make_plan
from planner.workload.importing import Frame, taken
from planner.workload.resolve import is_passing
from planner.workload.workload import Workload


@spelled_out
@told_types
@keeping()
def plan(
    workload: Workload | Frame | str | Path | None = None,
    *,
    slo: Slo | float | str | Sequence[float | str] | None = None,
    config: str | Path | None = None,
    scenario: str | None = None,
    current: Plan | str | Path | None = None,
    choices: bool = False,
    page: bool = False,
    answered: Callable[[Plan], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[PlanOptions],
) -> Plan:
    """The cheapest fleet that keeps the promises.

    Parameters
    ----------
    workload
        A :class:`Workload`, a pandas data frame of requests (columns named as in a CSV), a file, or a shipped name; default
        ``azure``.
    slo
        Promises; a bare number is a P99 TTFT [s].
    config, scenario
        A configuration or plan file whose options are the base, and one of its scenarios.
    current
        The fleet there is, a plan or its file: the notes say what to keep, restart, add and retire.
    choices
        Whether what other choices would cost is sized too (``plan.choices``, or ``error.choices`` of an InfeasibleError).
    page
        Whether only what the page of a plan shows is asked: of the choices those that may cost less, and no explanation.
    answered
        Told of the plan before other choices are sized.
    progress
        Told (done, all) after every choice sized.

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        Something in the question cannot be; all problems at once.
    InfeasibleError
        No fleet keeps the promises: what binds, the best achievable, what would help.

    Other Parameters
    ----------------
    .. options
    rate
        Arrival rate of the fleet, requests/s. Default: the workload's own. [number [1/s]: 100, 1k, 100rps or
        1000/min]
    throughput
        Output tokens/s that the fleet carries: 2000 or 2k tok/s; in place of --rate, beside it the larger of both.
        Default: none. [tokens/s: 2000, 2k tok/s]
    users
        Users in place of a rate, each waiting for its answer before it asks again; with --think-time or --requests-
        per-hour. Default: none. [whole number]
    think_time
        From an answer to the user's next request: 60s (exponential), 60s fixed, 60s lognormal 1.5. [text]
    requests_per_hour
        Requests of each user where answers come at once: 20 is a think time of 3 min. [number]
    concurrency
        Requests always under way, as benchmarks send them: so many users who do not think. Default: none. [whole
        number]
    rate_is
        The rate is the mean of a day (its busiest hour is sized for) or the peak. Default: --rate as given; a trace
        of a day or more: its busiest hour. [text]
    headroom
        Share of the rate to size for beyond it: 20%. Default: 0. [share: 0.3 or 30%]
    isl
        Mean input, tokens: with --osl a workload without a trace, log-normal lengths assumed. [tokens: 8192, 8k or
        8Ki]
    osl
        Mean output, tokens, with --isl. [tokens: 8192, 8k or 8Ki]
    isl_spread
        Standard deviation over mean of the input for --isl: 0.5 or 50%. Default: 1. [share: 0.3 or 30%]
    osl_spread
        The same of the output, for --osl. Default: 1. [share: 0.3 or 30%]
    drop_longer_than
        Leave out requests of more tokens, input and output together; the share dropped is told. Default: none.
        [tokens: 8192, 8k or 8Ki]
    osl_scale
        Factor on every output length: 1.3 = outputs grow 30%. Default: 1. [number]
    images
        Images of every prompt, whose tokens are added to it and whose encoder works before it. Default: the
        workload's own. [whole number]
    image_size
        Width x height of each image, pixels: 1920x1080. Default: 1024x1024. [text]
    windows
        Promises hold in 95% of the windows of this length: 5min. Plan, schedule and autoscale all take it so.
        Default: over the whole period. [time [s]: 0.5 or 500ms]
    ttft
        TTFT promise, the same as slo. [time [s], with its quantile or not: 0.5, 500ms, p95=300ms, mean=200ms]
    tpot
        TPOT promise: 50ms, p95=40ms, mean=8ms, or 30tok/s of a user. [time [s], with its quantile or not: 0.5,
        500ms, p95=300ms, mean=200ms]
    e2e
        End-to-end promise, e.g. 20s. [time [s], with its quantile or not: 0.5, 500ms, p95=300ms, mean=200ms]
    goodput
        Share of the requests that keep several limits at once: 99%:ttft=500ms,tpot=50ms; repeat for more. [share
        and limits: 99%:ttft=500ms,tpot=50ms]
    quantile
        Quantile of promises that name none: 0.95, 95 or p95. Default: 0.99. [quantile: 0.99, 99 or p99]
    scope
        pool: every pool keeps the promises; fleet: all requests together do. Default: pool. [text]
    confidence
        Chance with which the fleet keeps its promises, the errors of iteration times and the traffic's other hours
        considered; 50% buys the median. Default: 80%. [share: 0.3 or 30%]
    gpu
        GPU type; repeat to let the search mix types. Default: h100. [names]
    model
        Model name, or a Hugging Face config.json. Default: llama-3.1-8b. [text]
    like
        Family (model_type) whose arithmetic to take for a config.json of an unknown architecture. Default: refused.
        [text]
    weights
        Dtype the weights are served in: of a quantized checkpoint of the model. Default: the model's. [text]
    kv_dtype
        Dtype of the KV cache. Default: the model's. [text]
    tp
        GPUs of a tensor-parallel group: 2, or a list to choose from: 1,2,4. Default: every pool the cheapest of a
        node's. [whole number, a list of them, or all]
    pp
        Pipeline stages, each a tensor-parallel group. Default: 1; more where no node holds the model. [whole
        number]
    dp
        Copies of a mixture's attention in a replica, its experts spread over all of their GPUs (attention data
        parallelism). Default: 1, or a copy on every GPU of the smallest group or a node, the cheaper. [whole
        number]
    ep
        GPUs over which whole experts are spread: tp x dp, or 1 = every expert is cut. Default: tp x dp where dp >
        1, else 1. [whole number]
    speculate
        Speculative decoding: METHOD:k=3,accept=0.8,decay=0.95 or ...,accept=[.8,.7,.6], length=2.4, or vLLM's
        counts drafts=1000,accepted=800/560/336; METHOD is mtp, eagle3, eagle, draft or ngram. Default: none. [text,
        or its parts by name]
    engine
        Engine that serves (sglang, trtllm, vllm; of a version: vllm@0.27): its host's time and its measured
        profile. Default: that of --profile, else vllm. [text]
    api_overhead
        Time of a request outside the engine that its first token waits for. Default: the profile's or the engine's.
        [time [s]: 0.5 or 500ms]
    request_time
        Time of the host that each request takes from the iterations. Default: the profile's or the engine's. [time
        [s]: 0.5 or 500ms]
    lora
        Adapters (LoRA, all linear layers) that every replica keeps in its memory. Default: 0. [whole number]
    lora_rank
        Rank of the adapters. Default: 16. [whole number]
    profile
        Iteration-time profile: name or file. Default: yours, a shipped one, or an estimate. [text]
    method
        mixed (vLLM, SGLang), closed (its closed form: Poisson, random routing), occupancy (exclusive engines), mgc
        (the FleetOpt paper). Default: mixed. [text]
    kv
        paged (vLLM), reserved (FleetOpt) or both (every pool the cheaper). Default: paged. [text]
    routing
        How a pool's gateway picks a replica: random, rr, round-robin, p2c, envoy, least, jsq, least-requests,
        sticky, prefix; auto: p2c, for sessions the cheapest. Default: auto. [text]
    utilization_cap
        Largest share of the maximum throughput in use. Default: 0.85. [share: 0.3 or 30%]
    pools
        Largest number of pools, 1 to 4. Default: 2. [whole number]
    boundaries
        Boundaries to search, tokens: 2048,4096. Default: the workload's breakpoints. [tokens, a list]
    gammas
        Compression bands to search: 1,1.5,2. Default: 1.0,1.1,...,2.0. [numbers, a list]
    p_c
        Share of the band that can be compressed. Default: by category. [share: 0.3 or 30%]
    route_on
        What a gateway sends requests to pools by: their input, or total (an oracle for the output). Default: input.
        [text]
    scheduler
        The engine's own scheduler, or one sized by its theory and by simulating it: sarathi, eb, slai, wait, rad.
        Default: engine. [text]
    compress
        Take a gateway that rewrites prompts just above a boundary, and knows the outputs (--set route_on=total);
        with a FILE of `compress measure`: the shares and times measured. [true, false, or a file of `compress
        measure`]
    cpu_price
        Price of a CPU core that compresses, USD/hour. Default: 0.0446. [number]
    token_budget
        Tokens per iteration (max_num_batched_tokens), or a list to choose from. Default: every pool the cheapest of
        512 to 8192. [tokens, a list: 1024,2048]
    max_num_seqs
        Slots per replica, or a list to choose from. Default: the memory-safe number. [tokens, a list: 1024,2048]
    max_model_len
        Longest request admitted, tokens. Default: the longest prompt and output of the workload, within the model's
        context. [tokens: 8192, 8k or 8Ki]
    max_output
        Longest output a pool keeps room for, tokens. Default: the workload's longest. [tokens: 8192, 8k or 8Ki]
    chunk
        Prefill chunk of methods occupancy and mgc, tokens. Default: 512. [tokens: 8192, 8k or 8Ki]
    memory_utilization
        Share of GPU memory the engine may take. Default: 0.9. [share: 0.3 or 30%]
    cached_share
        Share of prompts served from the prefix cache: 60%, or by category: conv=0.6,code=0.2. Default: 0. [share,
        or category=share,...]
    shared_prefix
        Tokens that begin every prompt longer than they are (a system prompt): computed once, kept once in every
        cache. Default: 0. [tokens: 8192, 8k or 8Ki]
    prefix_cache
        Whether engines keep prompts for sessions that come back; felt by workloads with sessions where --cached-
        share is 0. Default: on. [text]
    session_ttl
        How long a cached prompt is kept at most after its last use. Default: as long as there is room. [time [s]:
        0.5 or 500ms]
    offload
        Host memory of a replica for cached prompts that the GPU drops, GiB. Default: 0. [number]
    offload_gbps
        Link between host memory and a GPU, Gbit/s. Default: 200. [number]
    offload_disk
        Disk of a replica for what its host memory drops, GiB. Default: 0. [number]
    offload_disk_gbps
        Speed at which that disk is read, Gbit/s. Default: 50. [number]
    write_through
        Whether all prompts are copied to host memory and disk as they are computed, else what is dropped. Default:
        false. [true or false]
    max_queue
        Requests that may wait at a replica before it turns more away. Default: no limit. [whole number]
    max_queued_tokens
        Prompt tokens that may wait at a replica (vLLM --max-num-queued-tokens). Default: no limit. [tokens: 8192,
        8k or 8Ki]
    client_timeout
        Clients give up when they have no first token after so long. Default: never. [time [s]: 0.5 or 500ms]
    retries
        Times clients send a request again that was turned away or given up. Default: 0. [whole number]
    retry_after
        How long they wait before. Default: 1s. [time [s]: 0.5 or 500ms]
    burst
        auto: bursts as the trace shows them; poisson: none; paced:N: N clients that send at constant gaps. Default:
        auto. [text]
    surge
        Flash crowds, for whose requests alone the promises are kept: 3x/60s, or 3x/60s/30s with a ramp. Default:
        none. [text]
    in_flight
        Requests of all clients under way at most (closed loop): one beyond waits with its client, where no latency
        counts. Default: no limit. [whole number]
    law
        Take a trace's requests as the law of its lengths and draw others at random times: for one too short for its
        promises. [true or false]
    growth
        More than the trace's own rate is more users (bursts even out) or more use by the same users (bursts grow).
        Default: users. [text]
    min_replicas
        Least replicas of a pool. Default: 1. [whole number]
    redundancy
        Spare replicas per pool: 2, N+2, or as many as keep enough of them up 99.9%. Default: 0. [whole number]
    availability_target
        Largest probability that fewer replicas than needed are up: 0.01 for 99% availability. Default: not asked
        for. [share: 0.3 or 30%]
    failures_per_hour
        Failures of one replica per hour, for availability_target. Default: 0.001. [number]
    repair_hours
        Hours until a failed replica serves again, for availability_target. Default: 0.5. [number]
    inventory
        GPUs available of a type: h100=64. Repeat. [GPU=number of GPUs]
    max_kw
        Power that all GPUs may draw together with every batch full, kW. Default: no limit. [number]
    price
        Price of a GPU, USD/hour: h100=2.5. Repeat. Default: the catalog's. [GPU=number [USD/hour]]
    spot_price
        Spot price of a GPU, USD/hour: h100=1.2. Repeat. [GPU=number [USD/hour]]
    spot_share
        Largest share of a pool's replicas on spot. Default: 0. [share: 0.3 or 30%]
    max_evaluations
        Questions of a search, a replay each, before it stops with a gap; 0 = until proven. Default: 3000. [whole
        number]
    shape
        colocated, disaggregated (prefill and decode pools of their own) or both (the cheaper, compared). Default:
        colocated. [text]
    kv_transfer_gbps
        Link per GPU between prefill and decode nodes, Gbit/s. Default: 100. [number]
    kv_transfer_base
        Time of a KV transfer beyond its bytes. Default: 2ms. [time [s]: 0.5 or 500ms]
    kv_transfer_layerwise
        Whether layers travel while later ones are computed, else whole prompts when they are done. Default: false.
        [true or false]
    prefill_queue
        Prompts waiting for prefill nodes from which on decode nodes compute new ones themselves, in chunks.
        Default: never. [whole number]
    .. end of options

    Examples
    --------
    >>> import planner as fo
    >>> paper = {"method": "mgc", "kv": "reserved", "profile": "fleetopt-paper", "confidence": 0.5}
    >>> p = fo.plan("azure", slo=fo.Slo(ttft_s=2.0), rate=100, **paper)
    >>> p.pools[0].binding
    'utilization cap 85% of the maximum throughput'
    """
    workload = taken(workload)
    data = options_of(workload, {**options, "slo": slo})
    told: set[str] = set(data)
    if config is None:
        if scenario is not None:
            raise InputError(f"scenario {scenario!r} of which file?", "Give it: --config FILE.")
        question, folder = PlanInputs.from_dict(data), None
    else:
        saved = load_question(config)
        question, folder = saved.inputs(scenario, data), saved.folder
        told |= {*saved.options, *saved.scenarios.get(scenario or "", {})}
    loaded = workload if isinstance(workload, Workload) else beside(question.cdf, folder)
    try:
        in_memory = isinstance(workload, Workload) or is_passing(question.cdf)
        found = make_plan(question, loaded, in_memory, words="page" if page else "all")
    except InfeasibleError as error:
        if choices:
            from planner.ask.choices import ways_out

            error.choices = ways_out(error, question, loaded, progress)
        raise
    if question.scheduler != "engine":
        from planner.ask.scheduled import with_scheduler

        found = with_scheduler(found, question, loaded, progress)
    if isinstance(question.compress, Mapping):
        from planner.ask.compression import with_compression

        found = with_compression(found, question, loaded, progress)
    if choices:
        from planner.ask.choices import choices_of, with_formula

        if answered is not None:
            answered(found)
        found = replace(found, choices=choices_of(found, question, loaded, progress, page))
        found = found if page else with_formula(found, question, loaded)
    steps: Iterable[Remark] = ()
    if current is not None:
        from planner.size.moves import moves

        steps = moves(standing_of(current).pools, found.pools)
    return found.saying(first=True, assumptions=_chosen(question, told), notes=steps)


def _chosen(question: PlanInputs, told: Collection[str]) -> list[Remark]:
    """What decides the answer and was not asked for, in one line with the options that say otherwise."""
    named = {
        "cdf": f"workload {question.cdf}",
        "model": f"model {question.model}",
        "gpu": f"GPU {', '.join(question.gpu)}",
    }
    if "isl" in told:
        named.pop("cdf")
    if "profile" in told:
        # a profile is of its own model and GPU
        named = {name: what for name, what in named.items() if name == "cdf"}
    chosen = [f"{what} (--{name})" for name, what in named.items() if name not in told]
    if not {"quantile", "promises"} & set(told):
        # every default level is the same; a promise with a level of its own says so
        levels = {p.quantile for p in question.promises}
        if 0.99 in levels:
            chosen.append("P99 where a promise names no quantile (--quantile)")
    return [Remark("chosen", {"what": ", ".join(chosen)})] if chosen else []


def options_of(workload: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, the workload by its name."""
    data = {k: v for k, v in options.items() if v is not None}
    if workload is not None:
        data["cdf"] = workload.name if isinstance(workload, Workload) else str(workload)
    return data


def beside(name: str, folder: Path | None) -> Workload:
    """A workload named in a file: beside that file first, then as the user would name it."""
    own = folder / name if folder is not None else None
    return Workload.from_file(own if own is not None and own.is_file() else name)
