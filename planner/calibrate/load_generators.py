"""Results of load generators: what each calls the lengths, the load and the times, and what it gets wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.calibrate.closed_loop import DEFAULT_BUDGET, ServerPoint
from planner.errors import InputError
from planner.units import is_measurable


@dataclass(frozen=True, slots=True)
class Assumed:
    """What the user adds where a result does not say it.

    Parameters
    ----------
    input_tokens, output_tokens
        Mean lengths [tokens].
    concurrency
        Requests in flight, or sequences a full server runs at once [requests].
    """

    input_tokens: float | None = None
    output_tokens: float | None = None
    concurrency: float | None = None


def _dig(data: Any, *paths: str) -> Any:
    """First value found at one of the dotted paths, else ``None``."""
    for path in paths:
        here = data
        for key in path.split("."):
            here = here.get(key) if isinstance(here, Mapping) else None
        if here is not None:
            return here
    return None


def _search(data: Any, key: str) -> Any:
    """First value of `key` anywhere in nested mappings."""
    if isinstance(data, Mapping):
        if data.get(key) is not None:
            return data[key]
        for value in data.values():
            found = _search(value, key)
            if found is not None:
                return found
    return None


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if is_measurable(number) else None


def _ms(value: Any) -> float | None:
    number = _float(value)
    return None if number is None else number * 1e-3


def point(
    where: str,
    assumed: Assumed,
    *,
    isl: Any,
    osl: Any,
    concurrency: Any,
    tpot_s: float | None,
    ttft_s: float | None = None,
    rate: Any = None,
    tokens_per_s: Any = None,
) -> ServerPoint:
    """Build a point from what a result says, the user's word filling the gaps.

    Concurrency by Little's law (requests/s x time in the server) where none was set; without any TPOT, the time per
    iteration from the throughput of a full server.

    Parameters
    ----------
    where
        For messages.
    assumed
        The user's word.
    isl, osl, concurrency
        As found [tokens, tokens, requests].
    tpot_s, ttft_s
        Means [s].
    rate, tokens_per_s
        Requests and output tokens per second.

    Raises
    ------
    InputError
        Naming what is missing, or what cannot be.
    """
    given = _float(isl) or assumed.input_tokens, _float(osl) or assumed.output_tokens
    level, per_second = _float(concurrency), _float(rate)
    if level is None and None not in (per_second, ttft_s, tpot_s, given[1]):
        level = max(1.0, per_second * (ttft_s + tpot_s * max(given[1] - 1.0, 0.0)))  # type: ignore[operator]
    level = assumed.concurrency if level is None else level
    throughput = _float(tokens_per_s)
    missing = [n for n, v in zip(("input length", "output length"), given, strict=True) if v is None]
    missing += ["TPOT"] if tpot_s is None and throughput is None else []
    missing += ["concurrency"] if level is None and "TPOT" not in missing else []
    if missing:
        raise InputError(
            f"{where}: no {', '.join(missing)} in it",
            "Was it saved with streaming metrics switched on? Lengths and load can be given: --isl, --osl, --concurrency.",
        )
    assert given[0] is not None and given[1] is not None and level is not None
    if tpot_s is None:
        assert throughput is not None
        if throughput <= 0.0 or given[1] <= 1.0:
            raise InputError(
                f"{where}: no time per token can be had from {throughput:g} tokens/s of {given[1]:g} tokens each"
            )
        found = ServerPoint.from_throughput(given[0], given[1], level, throughput, DEFAULT_BUDGET)
    else:
        found = ServerPoint(given[0], given[1], level, tpot_s, ttft_s)
    problems = found.problems()
    if problems:
        raise InputError.from_problems([f"{where}: {p}" for p in problems])
    return found


def _bench(data: Mapping[str, Any], where: str, assumed: Assumed) -> Iterator[ServerPoint]:
    """vLLM's `bench serve` and SGLang's `bench_serving`, which share their names.

    With a request rate `max_concurrency` is a cap, and Little's law tells how many were in flight.
    """
    completed = _float(data.get("completed"))
    if not completed:
        raise InputError(f"{where}: no request was completed in it")
    sent, got = _float(data.get("total_input_tokens")), _float(data.get("total_output_tokens"))
    rate = _dig(data, "request_throughput")
    duration = _float(data.get("duration"))
    yield point(
        where,
        assumed,
        isl=None if sent is None else sent / completed,
        osl=None if got is None else got / completed,
        concurrency=None if _float(data.get("request_rate")) else data.get("max_concurrency"),
        tpot_s=_ms(data.get("mean_tpot_ms")),
        ttft_s=_ms(data.get("mean_ttft_ms")),
        rate=rate or (completed / duration if duration else None),
        tokens_per_s=data.get("output_throughput") if assumed.concurrency else None,
    )


_CLOSED_LOOPS = {"concurrent": "streams", "throughput": "max_concurrency"}
"""Kinds of GuideLLM's runs whose load is a number of requests in flight, and what they call it."""


def _guidellm(data: Mapping[str, Any], where: str, assumed: Assumed) -> Iterator[ServerPoint]:
    """The runs of GuideLLM's JSON, one load each."""
    for number, run in enumerate(data["benchmarks"], 1):
        here = f"{where}: benchmark {number}"
        metrics = run.get("metrics") if isinstance(run, Mapping) else None
        if not isinstance(metrics, Mapping):
            raise InputError(f"{here}: no metrics in it", "Save the full JSON output of GuideLLM.")

        def mean(name: str, metrics: Mapping[str, Any] = metrics) -> Any:
            return _dig(metrics, f"{name}.successful.mean", f"{name}.mean")

        strategy = _search({k: v for k, v in run.items() if k not in ("metrics", "requests")}, "strategy") or {}
        kind = str(strategy.get("type_")) if isinstance(strategy, Mapping) else ""
        # of a run with a rate `max_concurrency` is a cap that it need not have met
        streams = _dig(strategy, _CLOSED_LOOPS[kind]) if kind in _CLOSED_LOOPS else None
        yield point(
            here,
            assumed,
            isl=mean("prompt_token_count"),
            osl=mean("output_token_count"),
            concurrency=1 if kind == "synchronous" else (streams or mean("request_concurrency")),
            # its time_per_output_token has the first token in it
            tpot_s=_ms(mean("inter_token_latency_ms")),
            ttft_s=_ms(mean("time_to_first_token_ms")),
            rate=mean("requests_per_second"),
        )


def _load_of(config: Any) -> Mapping[str, Any]:
    """The settings inside that name the load; those of the measured phase where a run has several."""
    if isinstance(config, list):
        return next((found for found in map(_load_of, config) if found), {})
    if not isinstance(config, Mapping) or config.get("name") == "warmup":
        return {}
    if any(_float(config.get(key)) is not None for key in ("concurrency", "request_rate")):
        return config
    return _load_of([value for key, value in config.items() if key != "warmup"])


_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}


def _records(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where the times of aiperf's results are."""
    found = data.get("records")
    return found if isinstance(found, Mapping) else data


def _aiperf(data: Mapping[str, Any], where: str, assumed: Assumed) -> Iterator[ServerPoint]:
    """aiperf and its forerunner genai-perf."""
    records = _records(data)

    def seconds(name: str) -> float | None:
        number = _float(_dig(records, f"{name}.avg"))
        unit = _dig(records, f"{name}.unit")
        return None if number is None else number * _UNITS.get(unit if isinstance(unit, str) else "ms", 1e-3)

    load = _load_of(data.get("input_config") or data.get("config"))
    yield point(
        where,
        assumed,
        isl=_dig(records, "input_sequence_length.avg"),
        osl=_dig(records, "output_sequence_length.avg", "output_token_count.avg"),
        # with a request rate it is a cap, and Little's law tells how many were in flight
        concurrency=None if _float(load.get("request_rate")) else load.get("concurrency"),
        tpot_s=seconds("inter_token_latency"),
        ttft_s=seconds("time_to_first_token"),
        rate=_dig(records, "request_throughput.avg"),
    )


def _inference_perf(data: Mapping[str, Any], where: str, assumed: Assumed) -> Iterator[ServerPoint]:
    """Its time_per_output_token counted the events of the stream, two per token: derived from E2E and TTFT instead.

    Later versions call the lengths `prompt_tokens` and, as the server counts them, `output_tokens`.
    """
    good = data["successes"]
    osl = _float(_dig(good, "output_tokens.mean", "output_len.mean")) or assumed.output_tokens
    ttft = _float(_dig(good, "latency.time_to_first_token.mean"))
    e2e = _float(_dig(good, "latency.request_latency.mean"))
    if e2e is None and osl is not None:
        normalized = _float(_dig(good, "latency.normalized_time_per_output_token.mean"))
        e2e = None if normalized is None else normalized * osl
    if e2e is None or ttft is None or osl is None or osl <= 1.0 or e2e <= ttft:
        raise InputError(
            f"{where}: no request_latency, time_to_first_token and output length to derive TPOT from",
            "Its own time_per_output_token counts events of the stream, not tokens, and is not used. Run it with streaming.",
        )
    yield point(
        where,
        assumed,
        isl=_dig(good, "prompt_tokens.mean", "prompt_len.mean"),
        osl=osl,
        concurrency=_dig(data, "load_summary.concurrency", "load_summary.concurrency_level"),
        tpot_s=(e2e - ttft) / (osl - 1.0),
        ttft_s=ttft,
        rate=_dig(good, "throughput.requests_per_sec") or _dig(data, "load_summary.achieved_rate"),
    )


def _benches(data: Any, config: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Results of a bench anywhere inside, each with the settings that stand nearest above it."""
    if isinstance(data, list):
        for entry in data:
            yield from _benches(entry, config)
    elif isinstance(data, Mapping):
        nearest = data.get("config") or data.get("client_args") or config
        if "mean_tpot_ms" in data and "completed" in data:
            yield data, nearest if isinstance(nearest, Mapping) else config
            return
        for value in data.values():
            yield from _benches(value, nearest if isinstance(nearest, Mapping) else config)


def _wrapped(data: Mapping[str, Any], where: str, assumed: Assumed) -> Iterator[ServerPoint]:
    """llm-optimizer and others that put results of a bench into a list of their own."""
    for number, (bench, config) in enumerate(_benches(data, {}), 1):
        level = bench.get("max_concurrency") or _search(config, "max_concurrency") or _search(config, "concurrency")
        yield from _bench({**bench, "max_concurrency": level}, f"{where}: result {number}", assumed)


@dataclass(frozen=True, slots=True)
class ResultFormat:
    """How one load generator's JSON is recognised and read."""

    name: str
    recognise: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any], str, Assumed], Iterator[ServerPoint]]


def _is_bench(data: Mapping[str, Any]) -> bool:
    return "completed" in data and "total_input_tokens" in data


def _is_sglang(data: Mapping[str, Any]) -> bool:
    return _is_bench(data) and ("server_info" in data or str(data.get("backend", "")).startswith("sglang"))


def _is_genai_perf(data: Mapping[str, Any]) -> bool:
    return "time_to_first_token" in data and _dig(data, "input_config.perf_analyzer") is not None


FORMATS: tuple[ResultFormat, ...] = (
    ResultFormat("SGLang bench_serving", _is_sglang, _bench),
    ResultFormat("vLLM bench serve", _is_bench, _bench),
    ResultFormat("GuideLLM", lambda d: isinstance(d.get("benchmarks"), list), _guidellm),
    ResultFormat("genai-perf", _is_genai_perf, _aiperf),
    ResultFormat("aiperf", lambda d: "time_to_first_token" in _records(d), _aiperf),
    ResultFormat("inference-perf", lambda d: isinstance(d.get("successes"), Mapping), _inference_perf),
    ResultFormat("llm-optimizer", lambda d: next(_benches(d, {}), None) is not None, _wrapped),
)
"""Formats of load generators, in the order they are tried."""


def recognised(document: Mapping[str, Any], where: str, assumed: Assumed) -> tuple[str, list[ServerPoint]]:
    """Name of the format and the points of a result.

    Raises
    ------
    InputError
        When no format is recognised, or one is and lacks something.
    """
    for candidate in FORMATS:
        if candidate.recognise(document):
            return candidate.name, list(candidate.read(document, where, assumed))
    raise InputError(
        f"{where}: no result format recognised",
        f"Known: {', '.join(f.name for f in FORMATS)}, MLPerf's summary; or raw points, a CSV of iterations or of server points.",
    )


_MLPERF = {
    "scenario": r"^Scenario\s*:\s*(\w+)",
    "tokens": r"^(?:Completed t|T)okens per second(?: \(inferred\))?\s*:\s*([0-9.eE+-]+)",
    "samples": r"^(?:Completed s|S)amples per second\s*:\s*([0-9.eE+-]+)",
    "result": r"^Result is\s*:\s*(\w+)",
}


def is_mlperf(text: str) -> bool:
    """Whether a text is the summary log of an MLPerf run."""
    return "MLPerf Results Summary" in text[:4000]


def mlperf_point(text: str, where: str, assumed: Assumed) -> ServerPoint:
    """The Offline throughput of an MLPerf run: one number, of a server that was kept full.

    Parameters
    ----------
    text
        ``mlperf_log_summary.txt``.
    where
        For messages.
    assumed
        Prompt length and sequences at once, which the log does not say. The answers' length is in it.

    Raises
    ------
    InputError
        Another scenario, an invalid run, nothing said about the load.
    """
    found = {}
    for key, pattern in _MLPERF.items():
        match = re.search(pattern, text, re.MULTILINE)
        if match is None:
            raise InputError(
                f"{where}: no {key} in this summary of MLPerf", "Give mlperf_log_summary.txt of a token benchmark."
            )
        found[key] = match[1]
    if found["scenario"] != "Offline":
        raise InputError(
            f"{where}: scenario {found['scenario']}: its rate was set by the run, it says nothing about the largest",
            "Give the summary of the Offline scenario.",
        )
    if found["result"] != "VALID":
        raise InputError(f"{where}: the run is {found['result']}")
    tokens, samples = _float(found["tokens"]), _float(found["samples"])
    if tokens is None or samples is None or not (tokens > 0.0 and samples > 0.0):
        raise InputError(f"{where}: {found['tokens']} tokens and {found['samples']} samples per second")
    return point(
        where, assumed, isl=None, osl=tokens / samples, concurrency=None, tpot_s=None, tokens_per_s=tokens
    )  # fmt: skip
