"""Does a fleet that stands keep what its plan promises? The planned traffic, as it was answered, against the plan."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from planner.ask.asked import document_of, standing_of, within
from planner.ask.verify import CANNOT_TELL, FAILS, HOLDS, judge
from planner.calibrate.http import HttpError, parse_json
from planner.calibrate.live import Server
from planner.errors import InputError, refuse_unknown
from planner.operate.deploy import Rendered, find_target
from planner.operate.deploy import kubernetes as k
from planner.operate.deploy.kubernetes import NOBODY, confined, secret
from planner.operate.deploy.replay import AFTER_S, Outcome, Requests, planned_requests, send
from planner.operate.deploy.serving import (
    COMPONENT,
    NAME,
    PART_OF,
    VALUES,
    DeployOptions,
    Serving,
    filler,
    is_pinned,
    refusal,
    serving_of,
)
from planner.papers.measure import WARM_UP
from planner.papers.statistics import Estimate, mean_of_batches
from planner.plans import Plan
from planner.promise import MEAN, Promise
from planner.question.compiled import CompiledQuestion, compile_question
from planner.shared.arguments import told_types
from planner.shared.documents import read_text
from planner.shared.notebook import InNotebooks
from planner.shared.record import Record
from planner.size.shapes import find_shape
from planner.units import DAY_S, format_count, format_duration, format_percent

LATE_S = 0.05
"""A client that sends one request in twenty later than this measured itself too [s]."""

SAME_RATE = 0.25
"""Rates that differ by less bring much the same latencies: bursts of the same traffic do [1]."""

EXPECTED = 10.0
"""Requests that a promise allows to be late: with fewer of them a share that is large enough shows nothing."""

MOST_ERRORS = 5
"""Kinds of errors that are told, the most frequent ones."""

LEAST = 50
"""Requests below which nothing is judged."""

LARGEST_RESULT = 256 << 20
"""Largest file of results that is read [bytes]."""


@dataclass(frozen=True, slots=True)
class Judged(Record):
    """One promise in one pool.

    Parameters
    ----------
    pool
        The pool; ``fleet`` where all requests together keep it.
    promise
        The promise.
    requests
        How many count.
    within
        Share of them within the limit, those that failed being beyond it [1]; of a mean, the mean [s].
    measured_s, predicted_s
        The latency promised, as measured and as planned [s]; ``None`` where the plan says none, or the rate is another one.
    verdict, reason
        ``holds``, ``fails`` or ``cannot tell``, and why.
    """

    pool: str
    promise: Promise
    requests: int
    within: Estimate
    measured_s: float
    predicted_s: float | None
    verdict: str
    reason: str

    @property
    def kept(self) -> bool:
        """Whether it holds, or is kept by what was measured though not beyond doubt."""
        mean, value = self.promise.quantile == MEAN, self.within.value
        fits = value <= self.promise.limit_s if mean else value >= self.promise.quantile
        return self.verdict == HOLDS or (self.verdict == CANNOT_TELL and self.within.enough and fits)

    @property
    def told(self) -> str:
        """In words."""
        found = f"{self.promise.told}: {self.verdict}: {self.promise.tell(self.measured_s)}"
        if self.predicted_s is not None:
            found += f", planned {self.promise.tell(self.predicted_s)}"
        if self.promise.quantile != MEAN:
            found += f"; {format_percent(self.within.value)} of {self.requests:,} within it"
        return f"{found} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Acceptance(InNotebooks):
    """The planned traffic, as it was answered.

    Parameters
    ----------
    server
        Who answered.
    planned_rate_per_s, rate_per_s
        Rate of the plan, and that of what was sent [1/s].
    seconds
        How long it was sent [s].
    sent, failed
        Requests.
    errors
        Why they failed, each once with how often.
    late_s
        How much later than planned one request in twenty was sent, at least [s].
    judged
        The promises.
    rows
        Measured beside planned, one row per pool and quantity.
    """

    server: str
    planned_rate_per_s: float
    rate_per_s: float
    seconds: float
    sent: int
    failed: int
    errors: Mapping[str, int]
    late_s: float
    judged: tuple[Judged, ...]
    rows: tuple[Mapping[str, object], ...]

    document: ClassVar[str] = "fleetopt-acceptance"
    written: ClassVar[tuple[str, ...]] = (
        *("server", "state", "planned_rate_per_s", "rate_per_s", "seconds", "sent", "failed", "errors", "late_s"),
        *("promises=judged", "rows", "findings=lines"),
    )

    def __repr__(self) -> str:
        return f"<Acceptance: {self.state}, {self.sent} requests, {self.failed} failed>"

    @property
    def state(self) -> str:
        """``kept``, ``broken`` where a promise fails, else ``not shown``."""
        if all(j.kept for j in self.judged):
            return "kept"
        return "broken" if any(j.verdict == FAILS for j in self.judged) else "not shown"

    def lines(self) -> Iterator[str]:
        """The findings in words."""
        yield (
            f"{self.sent:,} requests at {format_count(self.rate_per_s)}/s for {format_duration(self.seconds)} to {self.server}, "
            f"planned {format_count(self.planned_rate_per_s)}/s; {self.failed:,} failed"
        )
        for error, count in self.errors.items():
            yield f"{count:,} x {error}"
        pools = len({j.pool for j in self.judged}) > 1
        yield from (f"{j.pool}: {j.told}" if pools else j.told for j in self.judged)

    def to_rows(self) -> list[dict[str, object]]:
        """One row per pool and quantity."""
        return [dict(row) for row in self.rows]


@told_types
def accept(
    fleet: Plan | str | Path,
    server: str | Path,
    *,
    rate: float | None = None,
    requests: int = 2000,
    seconds: float | str = "5min",
    served_model: str | None = None,
    api_key: str | None = None,
) -> Acceptance:
    """The planned traffic sent to a fleet, and its promises judged by the answers.

    Parameters
    ----------
    fleet
        A plan or a plan file.
    server
        Address of an OpenAI-compatible server; or a file that `vllm bench serve --save-detailed` or GuideLLM wrote.
    rate
        Requests sent a second [1/s]. Default: the plan's rate.
    requests
        Requests sent at most.
    seconds
        How long they are sent at most [s].
    served_model
        Name the server knows the model by. Default: the repository of its weights.
    api_key
        Bearer token.

    Returns
    -------
    Acceptance
        Every promise with its verdict, and what was measured beside what was planned.
    """
    content, question, planned = _planned(fleet, rate, requests, seconds)
    if str(server).startswith(("http://", "https://")):
        # the name is asked for only where none is given: not every model has weights whose place is known
        serving = None if served_model else serving_of(content, standing_of(fleet).pools, DeployOptions())
        place = Server(str(server), served_model or (serving.repository if serving else ""), api_key)
        longest = max(float(v["value_s"]) for p in content["pools"] for v in p["latency"])
        outcomes = send(place, planned, 3.0 * longest)
        sent_s, whom = float(planned.times_s[-1]), str(place.endpoint)
    else:
        outcomes, sent_s, whom = read_results(Path(server))
    return judge_answers(content, question.promises.latency, outcomes, sent_s, whom, question.traffic.sees_output)


def _planned(
    fleet: Plan | str | Path, rate: float | None, requests: int, seconds: float | str
) -> tuple[Mapping[str, Any], CompiledQuestion, Requests]:
    """The plan file's content, its question, and the requests it plans with."""
    if not 1 <= requests <= 1_000_000:
        raise InputError(f"--replay-requests: must lie in [1, 1,000,000], got {requests!r}")
    most_s = within(seconds, "--replay-for", 1.0, DAY_S, "1 s and a day")
    saved = standing_of(fleet)
    inputs = saved.inputs()
    question = compile_question(inputs, saved.traffic(inputs.cdf), rate)
    return document_of(fleet), question, planned_requests(question.traffic, requests, most_s)


def judge_answers(
    plan: Mapping[str, Any],
    promises: Sequence[Promise],
    outcomes: Sequence[Outcome],
    seconds: float,
    server: str,
    sees_output: bool,
) -> Acceptance:
    """Judge a plan by its traffic as it was answered.

    Parameters
    ----------
    plan
        Content of the plan file.
    promises
        What it promises.
    outcomes
        Of the requests, in order of sending.
    seconds
        How long they were sent [s].
    server
        Who answered.
    sees_output
        Whether the plan cuts requests by input + output.

    Raises
    ------
    InputError
        Too few requests.
    """
    # the fleet is empty when it begins
    counted = outcomes[round(WARM_UP * len(outcomes)) :]
    if len(counted) < LEAST:
        raise InputError(
            f"{len(outcomes)} requests are too few to judge, {LEAST} count at least",
            "More: --replay-requests, --replay-for.",
        )
    columns = ("input_tokens", "output_tokens", *_TIMES)
    table = {name: np.array([getattr(o, name) for o in counted], dtype=np.float64) for name in columns}
    lengths = table["input_tokens"] + table["output_tokens"] * sees_output
    divided = "shape" in plan and find_shape(plan["shape"]).divides_roles
    # every request passes both pools of a pair, and each says a part of what is predicted
    pools = plan["pools"][-1:] if divided else plan["pools"]
    told = [plan["pools"] if divided else [pool] for pool in pools]
    place = np.minimum(np.searchsorted([float(p["high_tokens"]) for p in pools[:-1]], lengths), len(pools) - 1)
    parts = [{name: column[place == k] for name, column in table.items()} for k in range(len(pools))]
    rate, planned = len(outcomes) / seconds, float(plan["arrival_rate_per_s"])
    alike = abs(rate - planned) <= SAME_RATE * planned
    late = float(np.quantile([o.late_s for o in outcomes], 0.95))
    judged = []
    for promise in promises:
        expected = [_predicted(entries, promise) if alike else None for entries in told]
        if promise.scope == "fleet":
            judged.append(_judged("fleet", promise, table, expected[0] if len(pools) == 1 else None, late))
        else:
            each = zip(pools, parts, expected, strict=True)
            judged += [_judged(p["name"], promise, part, e, late) for p, part, e in each if part["ttft_s"].size]
    errors = Counter(o.error for o in outcomes if o.error)
    rows = [row for k, p in enumerate(pools) for row in _rows(told[k] if alike else [], p, parts[k])]
    return Acceptance(
        server,
        planned,
        rate,
        seconds,
        len(outcomes),
        errors.total(),
        dict(errors.most_common(MOST_ERRORS)),
        late,
        tuple(judged),
        tuple(rows),
    )


_TIMES = ("ttft_s", "tpot_s", "e2e_s")
_Columns = dict[str, NDArray[np.float64]]
"""Outcomes by column; NaN where a request failed."""


def _predicted(entries: Sequence[Mapping[str, Any]], promise: Promise) -> float | None:
    """What the plan says of a latency [s]."""
    told = {
        (v["metric"], v["quantile"]): float(v["value_s"]) for e in reversed(entries) for v in e.get("latency") or ()
    }
    return told.get((promise.metric, promise.quantile))


def _judged(pool: str, promise: Promise, table: _Columns, predicted_s: float | None, late_s: float) -> Judged:
    """One promise."""
    limits = promise.limits
    first = next(iter(limits.values()))
    # a request that failed is as late as any
    each = [np.nan_to_num(table[name], nan=math.inf) * (first / limit) for name, limit in limits.items()]
    worst = np.max(each, axis=0)
    number = worst.size
    if promise.quantile == MEAN:
        whole = worst[np.isfinite(worst)]
        within = mean_of_batches(whole) if whole.size else Estimate(math.inf, 0.0)
        verdict, reason = judge(within, promise.limit_s)
        measured = within.value
    else:
        kept = (worst <= promise.limit_s).astype(np.float64)
        within = _share(kept, number * (1.0 - promise.quantile) >= EXPECTED)
        # the interval is exact for any number of requests
        verdict, reason = judge(replace(within, enough=True), promise.quantile, share=True)
        measured = float(np.quantile(worst, promise.quantile, method="higher"))
    if late_s > LATE_S:
        # the bursts that were planned did not come
        within, verdict = replace(within, enough=False), CANNOT_TELL
        reason = f"this client sent requests up to {format_duration(late_s)} late: send fewer a second (--rate)"
    return Judged(pool, promise, number, within, measured, predicted_s, verdict, reason)


def _share(kept: NDArray[np.float64], enough: bool) -> Estimate:
    """A share with its 95% interval: Clopper and Pearson's, or that of batches where neighbours are alike and it is wider."""
    from scipy.special import betaincinv

    n, hits = kept.size, float(kept.sum())
    low = float(betaincinv(hits, n - hits + 1.0, 0.025)) if hits > 0.0 else 0.0
    high = float(betaincinv(hits + 1.0, n - hits, 0.975)) if hits < n else 1.0
    share = hits / n
    return Estimate(share, max(share - low, high - share, mean_of_batches(kept).half_width), enough)


def _rows(
    entries: Sequence[Mapping[str, Any]], pool: Mapping[str, Any], table: _Columns
) -> Iterator[Mapping[str, object]]:
    """Measured beside planned, one row per quantity; none where no request came."""
    if not table["ttft_s"].size:
        return
    where = {"pool": pool["name"]}
    for name in ("input_tokens", "output_tokens"):
        column = table[name]
        found = {"planned": pool.get(f"mean_{name}"), "measured": float(column.mean()), "ci95": _half(column)}
        yield where | {"quantity": f"mean {name.replace('_', ' ')}", **found}
    for metric in _TIMES:
        column = table[metric][np.isfinite(table[metric])]
        for quantile in (0.5, 0.9, 0.99) if column.size else ():
            promise = Promise(metric, 1.0, quantile)
            # ranks between which the quantile lies with 95%
            reach = 1.96 * math.sqrt(quantile * (1.0 - quantile) / column.size)
            low, value, high = np.quantile(column, np.clip((quantile - reach, quantile, quantile + reach), 0.0, 1.0))
            found = {"planned": _predicted(entries, promise), "measured": float(value), "ci95": float(high - low) / 2.0}
            yield where | {"quantity": f"{promise.label} [s]", **found}


def _half(column: NDArray[np.float64]) -> float:
    return 1.96 * float(column.std(ddof=1)) / math.sqrt(column.size) if column.size > 1 else math.inf


def read_results(path: Path) -> tuple[list[Outcome], float, str]:
    """What a load generator wrote of every request: `vllm bench serve --save-detailed`, or GuideLLM's JSON.

    Returns
    -------
    tuple
        Outcomes in order of sending, how long they were sent [s], and whose file it is.

    Raises
    ------
    InputError
        No such file, or none of theirs with a record per request.
    """
    try:
        data = parse_json(read_text(path, LARGEST_RESULT, "An address begins with http://."), str(path))
    except (HttpError, InputError) as error:
        raise InputError(f"--replay: {getattr(error, 'message', error)}", getattr(error, "hint", None)) from None
    for reader, whose in ((_of_vllm, "vllm bench serve"), (_of_guidellm, "GuideLLM")):
        if isinstance(data, Mapping) and (found := reader(data)) is not None:
            started, outcomes = zip(*sorted(found, key=lambda pair: pair[0]), strict=True) if found else ((), ())
            if len(outcomes) > 1 and started[-1] > started[0]:
                return list(outcomes), (started[-1] - started[0]) * len(outcomes) / (len(outcomes) - 1), whose
    raise InputError(
        f"--replay: {path}: no records of single requests with the times they were sent",
        "Save them: vllm bench serve --save-result --save-detailed, or GuideLLM's JSON.",
    )


def _of_vllm(data: Mapping[str, Any]) -> list[tuple[float, Outcome]] | None:
    """Records of `vllm bench serve`: columns of equal length."""
    names = ("start_times", "input_lens", "output_lens", "ttfts", "itls")
    columns = [data.get(name) for name in names]
    if not all(isinstance(c, list) and len(c) == len(columns[0] or ()) for c in columns):
        return None
    errors = data.get("errors") or [""] * len(columns[0] or ())
    found = []
    for start, inputs, outputs, ttft, gaps, error in zip(*columns, errors, strict=True):  # type: ignore[arg-type]
        bad = str(error) if error else "" if outputs else "no answer"
        decode = math.fsum(map(_number, gaps))
        first = math.nan if bad else _number(ttft)
        times = (first, decode / max(_number(outputs) - 1.0, 1.0), first + decode)
        found.append(_sent(start, (inputs, outputs), times, bad))
    return found


def _sent(start: Any, lengths: tuple[Any, Any], times: tuple[float, float, float], bad: str) -> tuple[float, Outcome]:
    """When a request was sent, and what became of it."""
    inputs, outputs = map(_number, lengths)
    return _number(start), Outcome(inputs, outputs, *((math.nan,) * 3 if bad else times), error=bad)


def _of_guidellm(data: Mapping[str, Any]) -> list[tuple[float, Outcome]] | None:
    """Records of GuideLLM's one benchmark: those that ended well, and those that did not."""
    benchmarks = data.get("benchmarks")
    one = benchmarks[0] if isinstance(benchmarks, list) and len(benchmarks) == 1 else None
    kinds = one.get("requests") if isinstance(one, Mapping) else None
    if not isinstance(kinds, Mapping):
        return None
    found = []
    for kind in ("successful", "errored", "incomplete"):
        for record in kinds.get(kind) or ():
            if not isinstance(record, Mapping) or record.get("request_start_time") is None:
                continue
            bad = "" if kind == "successful" else f"{kind} request"
            names = ("time_to_first_token_ms", "inter_token_latency_ms", "request_latency")
            ttft, tpot, e2e = (math.nan if bad else _number(record.get(name)) for name in names)
            lengths = (record.get("prompt_tokens") or 0, record.get("output_tokens") or 0)
            found.append(_sent(record["request_start_time"], lengths, (1e-3 * ttft, 1e-3 * tpot, e2e), bad))
    return found


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"--replay: expected a number, got {json.dumps(value)[:40]}")
    return float(value)


GENERATORS = ("guidellm", "vllm")

_filled: Callable[..., k.Object] = filler(__file__)

BLOCK = 512
"""Tokens that a block of a trace's prompts stands for, in Mooncake's format."""


@told_types
def acceptance_job(
    fleet: Plan | str | Path,
    to: str = "k8s",
    *,
    generator: str = "vllm",
    program: str,
    url: str | None = None,
    requests: int = 2000,
    seconds: float | str = "5min",
    name: str = "fleetopt",
    namespace: str | None = None,
    image: str | None = None,
    api_key_secret: str | None = None,
) -> Rendered:
    """A Job that sends a fleet its planned traffic, and judges it.

    Parameters
    ----------
    fleet
        A plan or a plan file.
    to
        How it was deployed: ``k8s``, ``kserve``, ``llm-d``, ``production-stack`` or ``dynamo``.
    generator
        What sends the requests: ``vllm`` (`vllm bench serve` of the engine's image) or ``guidellm``.
    program
        What the Job judges with: an image with fleetopt in it, or the address of its wheel.
    url
        Where the Job sends requests. Default: the service of the target.
    requests
        Requests of the Job at most.
    seconds
        How long the Job sends at most [s].
    name, namespace, image, api_key_secret
        As for :func:`deploy`.

    Returns
    -------
    Rendered
        The Job, and what it reads.

    Raises
    ------
    InputError
        An unknown generator, a program that is neither, a target without a cluster, or more than a ConfigMap holds.
    """
    content, _, planned = _planned(fleet, None, requests, seconds)
    options = DeployOptions(name, namespace, image=image, api_key_secret=api_key_secret)
    serving = serving_of(content, standing_of(fleet).pools, options)
    target = find_target(to)
    if not (address := url or (target.address(serving) if hasattr(target, "address") else "")):
        raise InputError(
            f"--acceptance: --to {to} starts replicas on hosts, where there are no Jobs",
            "Run it there: fleetopt check plan.yaml --replay http://localhost:8080.",
        )
    refuse_unknown("--acceptance:", generator, GENERATORS)
    if serving.model.pooling:
        raise refusal("pooling", model=serving.model)
    wheel = re.fullmatch(r"https?://\S+\.whl", program) is not None
    if not wheel and not is_pinned(program):
        raise refusal("program", program=repr(program))
    job = f"{serving.options.name}-acceptance"
    files = {"plan.yaml": k.to_yaml(content), "requests.jsonl": _trace(planned)}
    if generator == "guidellm":
        files["scenario.yaml"] = k.to_yaml(_filled("scenario", url=address, serving=serving))
    if (size := sum(len(text.encode()) for text in files.values())) > 0.95 * VALUES.limits["object_bytes"]:
        raise refusal("large", size=f"{size:,}")
    lasts_s = float(planned.times_s[-1]) + max(AFTER_S, max(p.drain_s for p in serving.pools))
    load = _load(serving, generator, address, planned.times_s.size)
    found = [
        k.made("config_map", serving=serving, name=job, data=files),
        _job(serving, job, load, program, wheel, lasts_s),
    ]
    notes = [
        f"{planned.times_s.size:,} requests in {planned.times_s[-1]:.0f} s, sent by {generator} to {address}",
        f"kubectl wait --for=condition=complete job/{job} says that the promises are kept; kubectl logs job/{job} how",
    ]
    return Rendered({"acceptance.yaml": k.dump(found, notes)}, tuple(notes))


def _trace(planned: Requests) -> str:
    """Requests as lines of Mooncake's format: both generators read it. Blocks of one number are the same text."""
    lines, fresh = [], 0
    common = -(-int(planned.shared_tokens.max()) // BLOCK)
    for record, shared in zip(planned.records(), planned.shared_tokens.tolist(), strict=True):
        blocks = -(-int(record["input_length"]) // BLOCK)
        known = min(round(shared / BLOCK), blocks - 1)
        own = range(common + fresh, common + fresh + blocks - known)
        fresh += blocks - known
        lines.append(json.dumps({**record, "hash_ids": [*range(known), *own]}, separators=(",", ":")))
    return "\n".join(lines) + "\n"


def _load(serving: Serving, generator: str, url: str, requests: int) -> k.Object:
    """The container that sends the requests."""
    known, key = secret("HF_TOKEN", "hf-token", "token", optional=True), serving.options.api_key_secret
    # the names by which each of them reads the key
    names = ("OPENAI_API_KEY", "GUIDELLM__SPEC__BACKEND__API_KEY") if key else ()
    env = [*NOBODY, {"name": "HF_HOME", "value": "/tmp"}, known, *(secret(n, str(key), "api-key") for n in names)]
    image = VALUES.images["guidellm"] if generator == "guidellm" else serving.image
    arguments = _filled(generator, url=url, serving=serving, requests=str(requests), block=str(BLOCK))
    return _filled("container", name="load", image=image, command=[generator], args=arguments, env=env)


def _job(serving: Serving, name: str, load: k.Object, program: str, wheel: bool, seconds: float) -> k.Object:
    """One try: the load generator first, then the judge, whose exit code is the Job's."""
    check, env = ["check", "/plan/plan.yaml", "--replay", "/results/load.json"], [*NOBODY]
    first, image, command = [load], program, ["fleetopt"]
    if wheel:
        image, command = VALUES.images["python"], ["python", "-m", "planner.cli.main"]
        install = ["pip", "install", "--no-cache-dir", "--target", "/results/python", program]
        first.insert(0, _filled("container", name="install", image=image, command=install, args=None, env=env))
        env = [*env, {"name": "PYTHONPATH", "value": "/results/python"}]
    judge = _filled("container", name="judge", image=image, command=command, args=check, env=env)
    return _filled(
        "job",
        metadata=k.made("tagged", serving=serving, name=name),
        seconds=round(seconds) + VALUES.times["loads"],
        labels={PART_OF: serving.options.name, COMPONENT: "acceptance", NAME: name},
        pod=confined(_filled("pod", name=name, first=first, judge=judge)),
    )
