"""Measurements people already have: result files of load generators, and plain CSVs of iterations or of server points."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.calibrate.points import Points, read_iterations_csv
from planner.calibrate.servers import GROUP_COLUMNS, ServerPoint, read_servers_csv
from planner.errors import InputError

__all__ = ["FORMATS", "Measurements", "read_measurements"]


@dataclass(frozen=True, slots=True, eq=False)
class Measurements:
    """What files contain: iterations or server points, by group.

    Parameters
    ----------
    iterations
        Points by (gpu, model, tp).
    servers
        Server points by (model, system, backend, version, precision, tp).
    formats
        What was recognised, one name per file.
    """

    iterations: Mapping[tuple[str, str, int], Points]
    servers: Mapping[tuple[str, ...], Sequence[ServerPoint]]
    formats: tuple[str, ...]


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
    return number if math.isfinite(number) else None


def _point(
    where: str,
    isl: Any,
    osl: Any,
    concurrency: Any,
    tpot_s: float | None,
    ttft_s: float | None,
    rate: Any = None,
) -> ServerPoint:
    """Build a point; concurrency by Little's law (requests/s x time in the server) where none was set."""
    lengths = _float(isl), _float(osl)
    missing = [n for n, v in zip(("input length", "output length"), lengths, strict=True) if v is None]
    if tpot_s is None:
        missing.append("TPOT")
    level, per_second = _float(concurrency), _float(rate)
    if (
        level is None
        and per_second is not None
        and ttft_s is not None
        and tpot_s is not None
        and lengths[1] is not None
    ):
        level = per_second * (ttft_s + tpot_s * max(lengths[1] - 1.0, 0.0))
    if level is None and "TPOT" not in missing:
        missing.append("concurrency")
    if missing:
        raise InputError(f"{where}: no {', '.join(missing)} in it", "Was it saved with streaming metrics switched on?")
    assert lengths[0] is not None and lengths[1] is not None and level is not None and tpot_s is not None
    point = ServerPoint(lengths[0], lengths[1], level, tpot_s, ttft_s)
    problems = point.problems()
    if problems:
        raise InputError.from_problems([f"{where}: {p}" for p in problems])
    return point


def _ms(value: Any) -> float | None:
    number = _float(value)
    return None if number is None else number * 1e-3


def _vllm(data: Mapping[str, Any], where: str) -> Iterator[ServerPoint]:
    completed = _float(data.get("completed"))
    if not completed:
        raise InputError(f"{where}: no request was completed in it")
    sent, got = _float(data.get("total_input_tokens")), _float(data.get("total_output_tokens"))
    yield _point(
        where,
        None if sent is None else sent / completed,
        None if got is None else got / completed,
        data.get("max_concurrency"),
        _ms(data.get("mean_tpot_ms")),
        _ms(data.get("mean_ttft_ms")),
        _dig(data, "request_throughput") or (completed / data["duration"] if data.get("duration") else None),
    )


def _guidellm(data: Mapping[str, Any], where: str) -> Iterator[ServerPoint]:
    for number, run in enumerate(data["benchmarks"], 1):
        here = f"{where}: benchmark {number}"
        metrics = run.get("metrics") if isinstance(run, Mapping) else None
        if not isinstance(metrics, Mapping):
            raise InputError(f"{here}: no metrics in it", "Save the full JSON output of GuideLLM.")

        def mean(name: str, metrics: Mapping[str, Any] = metrics) -> Any:
            return _dig(metrics, f"{name}.successful.mean", f"{name}.mean")

        strategy = _search({k: v for k, v in run.items() if k not in ("metrics", "requests")}, "strategy") or {}
        kind = strategy.get("type_") if isinstance(strategy, Mapping) else None
        streams = _dig(strategy, "streams", "max_concurrency")
        yield _point(
            here,
            mean("prompt_token_count"),
            mean("output_token_count"),
            1 if kind == "synchronous" else (streams or mean("request_concurrency")),
            _ms(mean("inter_token_latency_ms")),
            _ms(mean("time_to_first_token_ms")),
            mean("requests_per_second"),
        )


def _aiperf(data: Mapping[str, Any], where: str) -> Iterator[ServerPoint]:
    records = data.get("records") if isinstance(data.get("records"), Mapping) else data

    def seconds(name: str) -> float | None:
        unit = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}.get(
            _dig(records, f"{name}.unit") or "ms", 1e-3
        )
        number = _float(_dig(records, f"{name}.avg"))
        return None if number is None else number * unit

    yield _point(
        where,
        _dig(records, "input_sequence_length.avg"),
        _dig(records, "output_sequence_length.avg"),
        _dig(data, "input_config.loadgen.concurrency", "config.loadgen.concurrency")
        or _search(data.get("input_config"), "concurrency"),
        seconds("inter_token_latency"),
        seconds("time_to_first_token"),
        _dig(records, "request_throughput.avg"),
    )


def _inference_perf(data: Mapping[str, Any], where: str) -> Iterator[ServerPoint]:
    good = data["successes"]
    yield _point(
        where,
        _dig(good, "prompt_len.mean"),
        _dig(good, "output_len.mean"),
        _dig(data, "load_summary.concurrency", "load_summary.concurrency_level"),
        _float(_dig(good, "latency.time_per_output_token.mean", "latency.inter_token_latency.mean")),
        _float(_dig(good, "latency.time_to_first_token.mean")),
        _dig(good, "throughput.requests_per_sec") or _dig(data, "load_summary.achieved_rate"),
    )


@dataclass(frozen=True, slots=True)
class ResultFormat:
    """How one load generator's JSON is recognised and read."""

    name: str
    recognise: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any], str], Iterator[ServerPoint]]


FORMATS: tuple[ResultFormat, ...] = (
    ResultFormat("vLLM bench serve", lambda d: "completed" in d and "total_input_tokens" in d, _vllm),
    ResultFormat("GuideLLM", lambda d: isinstance(d.get("benchmarks"), list), _guidellm),
    ResultFormat("aiperf", lambda d: "time_to_first_token" in (d.get("records") or d), _aiperf),
    ResultFormat("inference-perf", lambda d: isinstance(d.get("successes"), Mapping), _inference_perf),
)
"""Formats of load generators, in the order they are tried."""


def _json_documents(text: str, where: str) -> list[Mapping[str, Any]]:
    try:
        data = json.loads(text)
        found = data if isinstance(data, list) else [data]
    except json.JSONDecodeError:
        try:  # `--append-result` writes one document per line
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError as error:
            raise InputError(f"{where}:{error.lineno}: not JSON ({error.msg})") from None
    if not found or not all(isinstance(d, Mapping) for d in found):
        raise InputError(f"{where}: expected a result (a JSON mapping), got something else")
    return found


def _read_json(text: str, where: str) -> tuple[list[ServerPoint], str]:
    points: list[ServerPoint] = []
    name = ""
    for document in _json_documents(text, where):
        for candidate in FORMATS:
            if candidate.recognise(document):
                points += candidate.read(document, where)
                name = candidate.name
                break
        else:
            raise InputError(
                f"{where}: no result format recognised",
                f"Known: {', '.join(f.name for f in FORMATS)}; or a CSV of iterations or of server points.",
            )
    return points, name


def read_measurements(paths: Sequence[str | Path], *, where: Mapping[str, str] | None = None) -> Measurements:
    """Read measurement files of any known format.

    Parameters
    ----------
    paths
        Files; several results of one server belong together. CSVs with a ``measured_ms`` column are iterations, CSVs with
        ``isl`` and ``osl`` server points, JSON a load generator's result.
    where
        Keep only CSV rows of iterations whose column equals the value.

    Returns
    -------
    Measurements

    Raises
    ------
    InputError
        For a file that is missing, empty, of no known format, or with rows that cannot be.
    """
    iterations: dict[tuple[str, str, int], Points] = {}
    servers: dict[tuple[str, ...], list[ServerPoint]] = {}
    formats = []
    for entry in paths:
        path = Path(entry)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            raise InputError(f"{path}: no such file") from None
        except IsADirectoryError:
            raise InputError(f"{path}: is a directory", "Name the files in it.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read ({error})") from None
        if not text.strip():
            raise InputError(f"{path}: is empty")
        if text.lstrip()[0] in "{[":
            points, name = _read_json(text, path.name)
            servers.setdefault(("",) * len(GROUP_COLUMNS), []).extend(points)
            formats.append(name)
            continue
        header = {c.strip() for c in text.splitlines()[0].split(",")}
        if "measured_ms" not in header and {"isl", "osl", "input_tokens", "output_tokens"} & header:
            for group, found in read_servers_csv(path, text=text).items():
                servers.setdefault(group, []).extend(found)
            formats.append("server points")
        else:
            for key, points_of in read_iterations_csv(path, where=where, text=text).items():
                iterations[key] = _joined(iterations[key], points_of) if key in iterations else points_of
            formats.append("iterations")
    return Measurements(iterations, servers, tuple(formats))


def _joined(first: Points, second: Points) -> Points:
    import numpy as np

    order = None  # two runs have no common clock
    return Points(
        first.batches + second.batches,
        np.concatenate([first.time_s, second.time_s]),
        order,
        first.source,
        first.composed or second.composed,
    )
