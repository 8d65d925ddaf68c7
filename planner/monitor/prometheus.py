"""Series from a Prometheus server or a file of its answers; every query, wait and size is bounded."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from planner.calibrate.http import Connection, Endpoint, HttpError, parse_json
from planner.errors import InputError
from planner.shared.documents import parse_json as parse_file
from planner.shared.documents import printable, read_text
from planner.units import MOST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

COUNTER_STEPS, GAUGE_STEPS = 24, 240
"""Points of a counter's and of a gauge's series over the window."""

SHORTEST_S, LONGEST_S = 60.0, 14 * 86_400.0
"""Windows that are looked at [s]."""

MOST_SERIES = 40_000
"""Series of one metric; a fleet beyond is looked at pool by pool with a selector."""

QUERY_S = 60.0
"""Longest wait for an answer [s]."""

_SELECTOR = re.compile(r"[^{}]*")
_SAMPLES = re.compile(r"\s*(# (HELP|TYPE) \w|[A-Za-z_:][\w:]*(\{[^\n]*\})? [-+.\dNI])")


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One series: labels without its name, moments [s] and values, ascending in time."""

    labels: Mapping[str, str]
    times: Floats
    values: Floats


def add_answer(found: dict[str, list[Series]], answer: Any, where: str) -> None:
    """Take the result of a range query into series by the name of their metric."""
    data = answer.get("data", answer) if isinstance(answer, dict) else None
    result = data.get("result") if isinstance(data, dict) else None
    if not isinstance(result, list):
        told = answer.get("error") if isinstance(answer, dict) else None
        said = f": the server said {printable(str(told)[:200])!r}" if told else ""
        raise InputError(f"{where}: not the answer of a Prometheus query{said}")
    if len(result) > MOST_SERIES:
        raise InputError(f"{where}: {len(result):,} series, at most {MOST_SERIES:,} are read", "Narrow it: --selector.")
    for number, one in enumerate(result, 1):
        metric, points = (one.get(key) if isinstance(one, dict) else None for key in ("metric", "values"))
        if not isinstance(metric, dict) or not isinstance(points, list):
            raise InputError(f"{where}: series {number} has no metric or no values; a range query is needed")
        labels = {str(k): str(v) for k, v in metric.items()}
        if not (name := labels.pop("__name__", "")):
            raise InputError(f"{where}: series {number} has no name", "Query the metrics themselves, without rate().")
        try:
            table = np.array([(float(t), float(v)) for t, v in points], dtype=np.float64).reshape(-1, 2)
        except (TypeError, ValueError):
            raise InputError(f"{where}: series {number} ({printable(name)}): a value is not a number") from None
        table = table[(np.abs(table) <= MOST).all(axis=1)]
        if table.size:
            found.setdefault(name, []).append(Series(labels, table[:, 0], table[:, 1]))


def read_answers(path: str) -> dict[str, list[Series]]:
    """Series of a file: the JSON of one range query, or a list of several.

    Raises
    ------
    InputError
        Not such a file.
    """
    text = read_text(path)
    if _SAMPLES.match(text):
        raise InputError(
            f"{printable(path)}: counters of one moment, as a server shows them at /metrics; a fleet is checked over time",
            "Give a Prometheus server that scrapes it, or its answers to range queries (--save keeps them). "
            "Lengths alone: fleetopt workload import reads this page.",
        )
    document = parse_file(text if text.lstrip().startswith("{") else f'{{"answers": {text}}}', printable(path))
    found: dict[str, list[Series]] = {}
    inner = document.get("answers", document) if isinstance(document, dict) else document
    for number, answer in enumerate(inner if isinstance(inner, list) else [inner], 1):
        add_answer(found, answer, f"{printable(path)}: answer {number}")
    return found


def read_server(
    url: str, metrics: Iterable[tuple[Sequence[str], bool]], window_s: float, selector: str = "", key: str | None = None
) -> dict[str, list[Series]]:
    """Series of a Prometheus server over the last `window_s`.

    Parameters
    ----------
    url
        ``http(s)://[user:password@]host[:port][/path]``.
    metrics
        Names of one quantity, any of which may exist, and whether it is a gauge.
    window_s
        How far back [s].
    selector
        Label matchers every query gets: ``namespace="serving"``.
    key
        Bearer token.

    Raises
    ------
    InputError
        No such server, an answer that is none, too large a one.
    """
    if not SHORTEST_S <= window_s <= LONGEST_S:
        raise InputError(f"--window: must lie between a minute and 14 days, got {window_s:g} s")
    if not _SELECTOR.fullmatch(selector) or len(selector) > 500:
        raise InputError("--selector: label matchers without braces are expected", 'For example: namespace="serving".')
    endpoint = Endpoint.parse(url, key)
    connection = Connection(endpoint, QUERY_S)
    end = math.floor(time.time())
    found: dict[str, list[Series]] = {}
    try:
        for names, gauge in metrics:
            step = max(1, math.ceil(window_s / (GAUGE_STEPS if gauge else COUNTER_STEPS)))
            pattern = "|".join(re.escape(n).replace("\\", "\\\\") for n in names)
            query = quote(f'{{__name__=~"{pattern}"{"," + selector if selector else ""}}}', safe="")
            path = f"/api/v1/query_range?query={query}&start={end - window_s:.0f}&end={end}&step={step}"
            _, body = connection.get(path, QUERY_S)
            answer = parse_json(body, "the answer")
            if not isinstance(answer, dict) or answer.get("status") != "success":
                told = answer.get("error", "no reason given") if isinstance(answer, dict) else "no mapping"
                raise InputError(f"{endpoint}: the query failed: {endpoint.safe(str(told))}")
            add_answer(found, answer, str(endpoint))
    except HttpError as error:
        hint = "It must answer GET /api/v1/query_range; check the address and the key."
        if "larger than" in str(error):
            hint = "Narrow it: --selector, or a shorter --window."
        raise InputError(f"{endpoint}: {endpoint.safe(str(error))}", hint) from None
    finally:
        connection.close()
    return found


def to_file(series: Mapping[str, Sequence[Series]]) -> str:
    """Series as a file that :func:`read_answers` reads."""
    result = [
        {
            "metric": {"__name__": name} | dict(one.labels),
            "values": [[t, repr(v)] for t, v in zip(one.times.tolist(), one.values.tolist(), strict=True)],
        }
        for name, of_name in series.items()
        for one in of_name
    ]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})
