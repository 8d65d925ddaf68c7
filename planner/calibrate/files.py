"""Measurements people already have: result files of load generators, raw points, and CSVs of iterations or server points."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, TypeVar

from planner.calibrate.closed_loop import DEFAULT_BUDGET, ServerPoint
from planner.calibrate.points import Batch, Points, RawPoints, batch_problems, parse_points
from planner.errors import InputError, did_you_mean, refuse
from planner.shared.documents import counted, printable, read_text, rows_by_column
from planner.units import SECONDS, TIME_UNITS, is_measurable, number_of
from planner.workload.formats.rows import dig


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


def _mappings(data: Any) -> Iterator[Mapping[str, Any]]:
    """All mappings inside, an outer one before those in it; none of a phase that warms up."""
    if isinstance(data, Mapping):
        if data.get("name") == "warmup":
            return
        yield data
        data = [value for key, value in data.items() if key != "warmup"]
    for value in data if isinstance(data, list) else ():
        yield from _mappings(value)


def _search(data: Any, key: str) -> Any:
    """First value of `key` anywhere inside."""
    return next((one[key] for one in _mappings(data) if one.get(key) is not None), None)


TIMES = ("tpot_s", "ttft_s", "e2e_s", "each_s")
_UNITS = {unit: SECONDS[unit] for unit in (*TIME_UNITS, "sec")}


def _means(data: Mapping[str, Any], usual: str, **places: str) -> dict[str, float | None]:
    """Numbers of a result, each at the first of its places (dotted, with bars between) that has one, or a mean of one.

    Times, see :data:`TIMES`, in seconds, from the unit that stands beside them or the `usual` one.
    """

    def first(key: str, names: str) -> float | None:
        for name in names.split("|"):
            for statistic in ("", ".successful.mean", ".mean", ".avg"):
                number = number_of(dig(data, name + statistic))
                if number is not None:
                    unit = str(dig(data, f"{name}.unit"))
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
        number_of(found.get(key)) for key in ("isl", "osl", "concurrency", "tpot_s", "ttft_s", "rate", "tokens_per_s")
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
    refuse([f"{where}: {p}" for p in made.problems()])
    return made


def _bench(data: Mapping[str, Any], where: str, assumed: Assumed) -> Iterator[ServerPoint]:
    """vLLM's `bench serve` and SGLang's `bench_serving`, which share their names.

    With a request rate `max_concurrency` is a cap, and Little's law tells how many were in flight.
    """
    completed = number_of(data.get("completed"))
    if not completed:
        raise InputError(f"{where}: no request was completed in it")
    sent, got, duration = (number_of(data.get(k)) for k in ("total_input_tokens", "total_output_tokens", "duration"))
    found = _means(data, "ms", tpot_s="mean_tpot_ms", ttft_s="mean_ttft_ms", rate="request_throughput")
    yield point(where, assumed, {
        **found,
        "isl": None if sent is None else sent / completed,
        "osl": None if got is None else got / completed,
        "concurrency": None if number_of(data.get("request_rate")) else data.get("max_concurrency"),
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
        streams = 1 if kind == "synchronous" else dig(strategy, _CLOSED_LOOPS.get(kind, ""))
        yield point(here, assumed, {**found, "concurrency": streams or found["concurrency"]})


def _records(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where the times of aiperf's results are."""
    found = data.get("records")
    return found if isinstance(found, Mapping) else data


def _aiperf(data: Mapping[str, Any], where: str, assumed: Assumed) -> Iterator[ServerPoint]:
    """aiperf and its forerunner genai-perf."""
    settings, of_load = _mappings(data.get("input_config") or data.get("config")), ("concurrency", "request_rate")
    load = next((one for one in settings if any(number_of(one.get(key)) is not None for key in of_load)), {})
    found = _means(
        _records(data), "ms", isl="input_sequence_length", osl="output_sequence_length|output_token_count",
        tpot_s="inter_token_latency", ttft_s="time_to_first_token", rate="request_throughput",
    )  # fmt: skip
    # with a request rate it is a cap, and Little's law tells how many were in flight
    level = None if number_of(load.get("request_rate")) else load.get("concurrency")
    yield point(where, assumed, {**found, "concurrency": level})


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


_BENCH = {"completed", "total_input_tokens"}

Format = tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any], str, Assumed], Iterator[ServerPoint]]]

FORMATS: Mapping[str, Format] = {
    "SGLang bench_serving": (
        lambda d: d.keys() >= _BENCH and ("server_info" in d or str(d.get("backend", "")).startswith("sglang")),
        _bench,
    ),
    "vLLM bench serve": (lambda d: d.keys() >= _BENCH, _bench),
    "GuideLLM": (lambda d: isinstance(d.get("benchmarks"), list), _guidellm),
    "genai-perf": (lambda d: "time_to_first_token" in d and dig(d, "input_config.perf_analyzer") is not None, _aiperf),
    "aiperf": (lambda d: "time_to_first_token" in _records(d), _aiperf),
    "inference-perf": (lambda d: isinstance(d.get("successes"), Mapping), _inference_perf),
    "llm-optimizer": (lambda d: next(_benches(d, {}), None) is not None, _wrapped),
}
"""Formats of load generators, in the order they are tried -> how each one's JSON is recognised, and read."""


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
    tokens, samples = number_of(found["tokens"]), number_of(found["samples"])
    if tokens is None or samples is None or not (tokens > 0.0 and samples > 0.0):
        raise InputError(f"{where}: {found['tokens']} tokens and {found['samples']} samples per second")
    return point(where, assumed, {"osl": tokens / samples, "tokens_per_s": tokens})


Key = TypeVar("Key")
Made = TypeVar("Made")
Row = Mapping[str, str]
Selected = Mapping[str, str] | None
"""Columns and the values that rows must have in them, compared case-insensitively."""

COLUMNS = (
    "n_decode", "decode_ctx", "prefill_seqs", "prefill_new_tokens_per_seq", "prefill_past_tokens", "measured_ms",
)  # fmt: skip
"""Columns a CSV of iterations needs; `gpu`, `model`, `tp`, `design_rank`, `order` and `composed`
(mixed batches added up from separate kernels) are used where present."""

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "isl": ("isl", "input_tokens", "input_len", "prompt_tokens"),
    "osl": ("osl", "output_tokens", "output_len"),
    "concurrency": ("concurrency", "max_concurrency"),
    "tpot_s": ("tpot_ms", "silicon_tpot_ms", "mean_tpot_ms"),
    "tokens_per_s": ("output_tokens_per_s", "tokens_per_s", "output_throughput"),
    "ttft_s": ("ttft_ms", "silicon_ttft_ms", "mean_ttft_ms"),
}
SYSTEM = {
    "model": "model_path", "gpu": "system", "engine": "backend", "engine_version": "backend_version", "weight_dtype": "precision",
    "tp": "tp_size",
}  # fmt: skip
"""What server points are of, by which they are grouped: fields of a profile -> columns of a CSV."""


@dataclass(frozen=True, slots=True, eq=False)
class Measurements:
    """What files contain: points of one system each."""

    groups: tuple[RawPoints, ...]

    @property
    def iterations(self) -> dict[tuple[str, str, int], Points]:
        """Iterations by (gpu, model, tp)."""
        return {
            (g.header.get("gpu", ""), g.header.get("model", ""), g.header.get("tp", 1)): g.iterations()
            for g in self.groups
            if g.kind == "iterations"
        }

    @property
    def servers(self) -> dict[tuple[str, ...], list[ServerPoint]]:
        """Server points by (model, gpu, engine, version, dtype, tp)."""
        servers = (g for g in self.groups if g.kind == "server")
        return {tuple(str(g.header.get(key, "")) for key in SYSTEM): g.server_points() for g in servers}


def _json_documents(text: str, where: str) -> list[Mapping[str, Any]]:
    """One document, a list of them, or one a line."""
    try:
        data = json.loads(text, parse_int=counted)
        found = data if isinstance(data, list) else [data]
    except ValueError as whole:
        found = []
        for number, line in enumerate(text.splitlines(), 1):  # `--append-result` writes one document per line
            try:
                found += [json.loads(line, parse_int=counted)] if line.strip() else []
            except (ValueError, RecursionError) as error:
                place, told = (number, error) if found else (getattr(whole, "lineno", number), whole)
                raise InputError(f"{where}:{place}: not JSON ({getattr(told, 'msg', told)})") from None
    if not found or not all(isinstance(d, Mapping) for d in found):
        raise InputError(f"{where}: expected a result (a JSON mapping), got something else")
    return found


def _read_results(text: str, where: str, assumed: Assumed) -> tuple[list[ServerPoint], Mapping[str, Any]]:
    """Points of a load generator's result, or of an MLPerf summary, and the settings of the engine it names.

    Raises
    ------
    InputError
        When no format is recognised, or one is and lacks something.
    """
    if is_mlperf(text):
        return [mlperf_point(text, where, assumed)], {}
    points: list[ServerPoint] = []
    try:
        documents = _json_documents(text, where)
        for document in documents:
            read = next((read for recognise, read in FORMATS.values() if recognise(document)), None)
            if read is None:
                known = f"Known: {', '.join(FORMATS)}, MLPerf's summary; or raw points, a CSV of iterations or of server points."
                raise InputError(f"{where}: no result format recognised", known)
            points += read(document, where, assumed)
        return points, _engine_settings(documents, where)
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None


def _engine_settings(documents: Sequence[Mapping[str, Any]], where: str) -> Mapping[str, Any]:
    """Settings of the engine that the records of a sweep name; they must be of one engine, as one fit is of one.

    Raises
    ------
    InputError
        When the records are of several.
    """
    found: list[Mapping[str, Any]] = []
    for record in _mappings([*documents]):
        told = dig(record, "config.server_args")
        if isinstance(told, Mapping) and told not in found:
            found.append(told)
    if len(found) > 1:
        raise InputError(
            f"{where}: its records are of {len(found)} engines: {'; '.join(json.dumps(dict(f)) for f in found[:4])}",
            "Keep those of one: every engine has a profile of its own.",
        )
    return found[0] if found else {}


def read_measurements(
    paths: Sequence[str | Path], *, where: Mapping[str, str] | None = None, assumed: Assumed | None = None
) -> Measurements:
    """Read measurement files of any known format.

    Parameters
    ----------
    paths
        Files; several results of one server belong together. CSVs with a ``measured_ms`` column are iterations, CSVs with
        ``isl`` and ``osl`` server points, JSON a load generator's result or raw points, text a summary of MLPerf.
    where
        Keep only CSV rows of iterations whose column equals the value.
    assumed
        What the user adds where a result does not say it.

    Returns
    -------
    Measurements

    Raises
    ------
    InputError
        For a file that is missing, empty, of no known format, or with rows that cannot be.
    """
    groups: dict[tuple[Any, ...], RawPoints] = {}
    for entry in paths:
        path = Path(entry)
        text = read_text(path)
        if not text.strip():
            raise InputError(f"{path}: is empty")
        for found in _groups_of(text, path.name, where, assumed or Assumed()):
            key = (found.kind, *(found.header.get(key) for key in SYSTEM))
            groups[key] = groups[key].and_those_of(found) if key in groups else found
    return Measurements(tuple(groups.values()))


def _groups_of(text: str, name: str, where: Selected, assumed: Assumed) -> Iterator[RawPoints]:
    """What one file contains."""
    raw, columns = parse_points(text, name), {c.strip() for c in text.splitlines()[0].split(",")}
    if raw is not None:
        yield raw
    elif text.lstrip()[0] in "{[" or is_mlperf(text):
        points, settings = _read_results(text, name, assumed)
        tp = settings.get("tensor_parallel_size") or settings.get("tp_size")
        yield RawPoints("server", {"tp": int(float(tp))} if tp else {}, [asdict(p) for p in points], name)
    elif "measured_ms" not in columns and {"isl", "osl", "input_tokens", "output_tokens"} & columns:
        yield from _servers_csv(text, name, where, assumed)
    else:
        yield from _iterations_csv(text, name, where)


def _iterations_csv(text: str, name: str, where: Selected) -> Iterator[RawPoints]:
    """A CSV of iterations, one a row, by GPU, model and tp where the file has such columns.

    Rows come in the order of `design_rank` where the file has it; an `order` column is the order of measuring, otherwise it is
    not known.
    """
    reader, header = _opened(text, name)
    _refuse_without(COLUMNS, header, name, f"A CSV of iterations has the columns {', '.join(COLUMNS)}.")

    def made(row: Row, line: int) -> tuple[tuple[str, str, int], tuple[float, bool, dict[str, Any]]]:
        """Group of a row, its rank, whether it was added up from kernels, and the iteration."""
        batch = Batch(*(_integer(row[c]) for c in COLUMNS[:-1]))
        time_s = float(row["measured_ms"]) * SECONDS["ms"]
        rank = float(row.get("design_rank") or line)
        order = {"order": float(row["order"])} if row.get("order") else {}
        key = ((row.get("gpu") or "").strip(), (row.get("model") or "").strip(), _integer(row.get("tp") or "0"))
        composed = batch.decodes * batch.prefills > 0 and bool((row.get("composed") or "").strip())
        positive = is_measurable(time_s) and time_s > 0.0
        problems = [] if positive else [f"measured_ms must be positive, got {row['measured_ms']}"]
        refuse([f"{name}:{line}: {p}" for p in (*problems, *batch_problems(batch))])
        return key, (rank, composed, {**asdict(batch), "time_s": time_s, **order})

    for key, rows in _grouped(reader, name, made, where, "iterations").items():
        _, composed, measured = zip(*sorted(rows, key=lambda row: row[0]), strict=True)
        of = {field: value for field, value in zip(("gpu", "model", "tp"), key, strict=True) if value}
        yield RawPoints("iterations", {**of, "composed": any(composed)}, measured, name)


def _servers_csv(text: str, name: str, where: Selected, assumed: Assumed) -> Iterator[RawPoints]:
    """A CSV of server points by :data:`SYSTEM`, as far as the file has such columns.

    Instead of ``tpot_ms`` it may have ``output_tokens_per_s`` of a server that is kept full.
    """
    reader, header = _opened(text, name)
    found = {key: next((n for n in names if n in header), None) for key, names in _ALIASES.items()}
    spare = {"ttft_s", "tokens_per_s"} | ({"tpot_s"} if found["tokens_per_s"] else set())
    spare |= {key for key, value in zip(_ALIASES, astuple(assumed), strict=False) if value is not None}
    missing = [names[0] for key, names in _ALIASES.items() if found[key] is None and key not in spare]
    _refuse_without(missing, header, name, "A CSV of server points has isl, osl, concurrency, tpot_ms and ttft_ms.")

    def made(row: Row, line: int) -> tuple[tuple[str, ...], dict[str, Any]]:
        values = {
            key: float(row[column]) * (SECONDS["ms"] if key in TIMES else 1.0) if column and row.get(column) else None
            for key, column in found.items()
        }
        group = tuple((row.get(c) or "").strip() for c in SYSTEM.values())
        return group, asdict(point(f"{name}:{line}", assumed, values))

    for key, rows in _grouped(reader, name, made, where, "server points").items():
        of: dict[str, Any] = {field: value for field, value in zip(SYSTEM, key, strict=True) if value}
        yield RawPoints("server", of | ({"tp": _integer(of["tp"])} if "tp" in of else {}), rows, name)


def _opened(text: str, name: str) -> tuple[csv.DictReader[str], list[str]]:
    """Rows of a CSV, and the names of its columns without blanks around them."""
    reader = rows_by_column(text.splitlines(), name)
    reader.fieldnames = header = [column.strip() for column in reader.fieldnames or ()]
    return reader, header


def _refuse_without(columns: Iterable[str], header: Sequence[str], name: str, hint: str) -> None:
    refuse([f"{name}: column {c!r} is missing{did_you_mean(c, header)}" for c in columns if c not in header], hint)


def _grouped(
    reader: csv.DictReader[str], name: str, made: Callable[[Row, int], tuple[Key, Made]], where: Selected, what: str
) -> dict[Key, list[Made]]:
    """What is made of the rows selected, by group; all that is wrong with them as one error."""
    wanted = {key: value.lower() for key, value in (where or {}).items()}
    if absent := [key for key in wanted if key not in (reader.fieldnames or ())]:
        raise InputError(f"{name}: there is no column {absent[0]!r} to select by")
    groups: dict[Key, list[Made]] = {}
    problems: list[str] = []
    for line, row in enumerate(reader, 2):
        if any((row.get(key) or "").strip().lower() != value for key, value in wanted.items()):
            continue
        try:
            group, one = made(row, line)
        except InputError as error:
            problems += error.problems or (error.message,)
        except (TypeError, ValueError, OverflowError):
            problems.append(f"{name}:{line}: not numbers: {printable(str(dict(row)))}")
        else:
            groups.setdefault(group, []).append(one)
    refuse(problems, of=name)
    if not groups:
        chosen = ", ".join(f"{k}={v}" for k, v in wanted.items())
        raise InputError(f"{name}: no {what} in it" + (f" with {chosen}" if chosen else ""))
    return groups


def _integer(text: str) -> int:
    value = float(text)
    if not value.is_integer() or not is_measurable(value):
        raise ValueError
    return int(value)
