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

    @property
    def known(self) -> dict[str, float | None]:
        """By the names of :func:`point`."""
        return {"isl": self.input_tokens, "osl": self.output_tokens, "concurrency": self.concurrency}


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


TIMES = ("tpot_s", "ttft_s", "e2e_s", "each_s")
_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}


def _means(data: Mapping[str, Any], usual: str, **places: str) -> dict[str, float | None]:
    """Numbers of a result, each at the first of its places (dotted, with bars between) that has one, or a mean of one.

    Times, see :data:`TIMES`, in seconds, from the unit that stands beside them or the `usual` one.
    """

    def first(key: str, names: str) -> float | None:
        for name in names.split("|"):
            for statistic in ("", ".successful.mean", ".mean", ".avg"):
                number = _float(_dig(data, name + statistic))
                if number is not None:
                    unit = str(_dig(data, f"{name}.unit"))
                    return number * _UNITS.get(unit, _UNITS[usual]) if key in TIMES else number
        return None

    return {key: first(key, names) for key, names in places.items()}


def point(where: str, assumed: Assumed, found: Mapping[str, Any]) -> ServerPoint:
    """Build a point from what a result says, the user's word filling the gaps.

    Concurrency by Little's law (requests/s x time in the server) where none was set; without any TPOT, the time per
    iteration from the throughput of a full server.

    Parameters
    ----------
    where
        For messages.
    assumed
        The user's word.
    found
        What the result says of ``isl``, ``osl`` [tokens], ``concurrency`` [requests], ``tpot_s``, ``ttft_s`` (means) [s], ``rate``
        [requests/s] and ``tokens_per_s`` (of output).

    Raises
    ------
    InputError
        Naming what is missing, or what cannot be.
    """
    isl, osl, level, tpot_s, ttft_s, rate, throughput = (
        _float(found.get(key)) for key in ("isl", "osl", "concurrency", "tpot_s", "ttft_s", "rate", "tokens_per_s")
    )
    isl, osl = isl or assumed.input_tokens, osl or assumed.output_tokens
    if level is None and rate is not None and tpot_s is not None and ttft_s is not None and osl is not None:
        level = max(1.0, rate * (ttft_s + tpot_s * max(osl - 1.0, 0.0)))
    level = assumed.concurrency if level is None else level
    missing = [n for n, v in (("input length", isl), ("output length", osl)) if v is None]
    missing += ["TPOT"] if tpot_s is None and throughput is None else []
    missing += ["concurrency"] if level is None and "TPOT" not in missing else []
    if missing:
        raise InputError(
            f"{where}: no {', '.join(missing)} in it",
            "Was it saved with streaming metrics switched on? Lengths and load can be given: --isl, --osl, --concurrency.",
        )
    assert isl is not None and osl is not None and level is not None
    if tpot_s is None:
        assert throughput is not None
        if throughput <= 0.0 or osl <= 1.0:
            raise InputError(
                f"{where}: no time per token can be had from {throughput:g} tokens/s of {osl:g} tokens each"
            )
        made = ServerPoint.from_throughput(isl, osl, level, throughput, DEFAULT_BUDGET)
    else:
        made = ServerPoint(isl, osl, level, tpot_s, ttft_s)
    if problems := made.problems():
        raise InputError.from_problems([f"{where}: {p}" for p in problems])
    return made


def _bench(data: Mapping[str, Any], where: str, assumed: Assumed) -> Iterator[ServerPoint]:
    """vLLM's `bench serve` and SGLang's `bench_serving`, which share their names.

    With a request rate `max_concurrency` is a cap, and Little's law tells how many were in flight.
    """
    completed = _float(data.get("completed"))
    if not completed:
        raise InputError(f"{where}: no request was completed in it")
    sent, got, duration = (_float(data.get(k)) for k in ("total_input_tokens", "total_output_tokens", "duration"))
    found = _means(data, "ms", tpot_s="mean_tpot_ms", ttft_s="mean_ttft_ms", rate="request_throughput")
    yield point(where, assumed, {
        **found,
        "isl": None if sent is None else sent / completed,
        "osl": None if got is None else got / completed,
        "concurrency": None if _float(data.get("request_rate")) else data.get("max_concurrency"),
        "rate": found["rate"] or (completed / duration if duration else None),
        "tokens_per_s": data.get("output_throughput") if assumed.concurrency else None,
    })  # fmt: skip


_CLOSED_LOOPS = {"concurrent": "streams", "throughput": "max_concurrency"}
"""Kinds of GuideLLM's runs whose load is a number of requests in flight, and what they call it."""


def _guidellm(data: Mapping[str, Any], where: str, assumed: Assumed) -> Iterator[ServerPoint]:
    """The runs of GuideLLM's JSON, one load each."""
    for number, run in enumerate(data["benchmarks"], 1):
        here = f"{where}: benchmark {number}"
        metrics = run.get("metrics") if isinstance(run, Mapping) else None
        if not isinstance(metrics, Mapping):
            raise InputError(f"{here}: no metrics in it", "Save the full JSON output of GuideLLM.")
        strategy = _search({k: v for k, v in run.items() if k not in ("metrics", "requests")}, "strategy") or {}
        kind = str(strategy.get("type_")) if isinstance(strategy, Mapping) else ""
        # its time_per_output_token has the first token in it
        found = _means(
            metrics, "ms", isl="prompt_token_count", osl="output_token_count", tpot_s="inter_token_latency_ms",
            ttft_s="time_to_first_token_ms", rate="requests_per_second", concurrency="request_concurrency",
        )  # fmt: skip
        # of a run with a rate `max_concurrency` is a cap that it need not have met
        streams = 1 if kind == "synchronous" else _dig(strategy, _CLOSED_LOOPS.get(kind, ""))
        yield point(here, assumed, {**found, "concurrency": streams or found["concurrency"]})


def _load_of(config: Any) -> Mapping[str, Any]:
    """The settings inside that name the load; those of the measured phase where a run has several."""
    if isinstance(config, list):
        return next((found for found in map(_load_of, config) if found), {})
    if not isinstance(config, Mapping) or config.get("name") == "warmup":
        return {}
    if any(_float(config.get(key)) is not None for key in ("concurrency", "request_rate")):
        return config
    return _load_of([value for key, value in config.items() if key != "warmup"])


def _records(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where the times of aiperf's results are."""
    found = data.get("records")
    return found if isinstance(found, Mapping) else data


def _aiperf(data: Mapping[str, Any], where: str, assumed: Assumed) -> Iterator[ServerPoint]:
    """aiperf and its forerunner genai-perf."""
    load = _load_of(data.get("input_config") or data.get("config"))
    found = _means(
        _records(data), "ms", isl="input_sequence_length", osl="output_sequence_length|output_token_count",
        tpot_s="inter_token_latency", ttft_s="time_to_first_token", rate="request_throughput",
    )  # fmt: skip
    # with a request rate it is a cap, and Little's law tells how many were in flight
    yield point(
        where, assumed, {**found, "concurrency": None if _float(load.get("request_rate")) else load.get("concurrency")}
    )


def _inference_perf(data: Mapping[str, Any], where: str, assumed: Assumed) -> Iterator[ServerPoint]:
    """Its time_per_output_token counted the events of the stream, two per token: derived from E2E and TTFT instead.

    Later versions call the lengths `prompt_tokens` and, as the server counts them, `output_tokens`.
    """
    found = _means(
        data["successes"], "s", isl="prompt_tokens|prompt_len", osl="output_tokens|output_len",
        ttft_s="latency.time_to_first_token", e2e_s="latency.request_latency",
        each_s="latency.normalized_time_per_output_token", rate="throughput.requests_per_sec",
    )  # fmt: skip
    osl, ttft, e2e, each = found["osl"] or assumed.output_tokens, found["ttft_s"], found["e2e_s"], found["each_s"]
    if e2e is None and osl is not None and each is not None:
        e2e = each * osl
    if e2e is None or ttft is None or osl is None or osl <= 1.0 or e2e <= ttft:
        raise InputError(
            f"{where}: no request_latency, time_to_first_token and output length to derive TPOT from",
            "Its own time_per_output_token counts events of the stream, not tokens, and is not used. Run it with streaming.",
        )
    load = _means(
        data, "s", level="load_summary.concurrency|load_summary.concurrency_level", rate="load_summary.achieved_rate"
    )
    tpot = (e2e - ttft) / (osl - 1.0)
    yield point(
        where, assumed, {**found, "concurrency": load["level"], "tpot_s": tpot, "rate": found["rate"] or load["rate"]}
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


def _is_bench(data: Mapping[str, Any]) -> bool:
    return "completed" in data and "total_input_tokens" in data


def _is_sglang(data: Mapping[str, Any]) -> bool:
    return _is_bench(data) and ("server_info" in data or str(data.get("backend", "")).startswith("sglang"))


def _is_genai_perf(data: Mapping[str, Any]) -> bool:
    return "time_to_first_token" in data and _dig(data, "input_config.perf_analyzer") is not None


FORMATS: Mapping[
    str, tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any], str, Assumed], Iterator[ServerPoint]]]
] = {
    "SGLang bench_serving": (_is_sglang, _bench),
    "vLLM bench serve": (_is_bench, _bench),
    "GuideLLM": (lambda d: isinstance(d.get("benchmarks"), list), _guidellm),
    "genai-perf": (_is_genai_perf, _aiperf),
    "aiperf": (lambda d: "time_to_first_token" in _records(d), _aiperf),
    "inference-perf": (lambda d: isinstance(d.get("successes"), Mapping), _inference_perf),
    "llm-optimizer": (lambda d: next(_benches(d, {}), None) is not None, _wrapped),
}
"""Formats of load generators, in the order they are tried -> how each one's JSON is recognised, and read."""


def recognised(document: Mapping[str, Any], where: str, assumed: Assumed) -> tuple[str, list[ServerPoint]]:
    """Name of the format and the points of a result.

    Raises
    ------
    InputError
        When no format is recognised, or one is and lacks something.
    """
    for name, (recognise, read) in FORMATS.items():
        if recognise(document):
            return name, list(read(document, where, assumed))
    raise InputError(
        f"{where}: no result format recognised",
        f"Known: {', '.join(FORMATS)}, MLPerf's summary; or raw points, a CSV of iterations or of server points.",
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
    return point(where, assumed, {"osl": tokens / samples, "tokens_per_s": tokens})
