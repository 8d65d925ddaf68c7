"""Measurements people already have: result files of load generators, raw points, and CSVs of iterations or server points."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.calibrate.closed_loop import ServerPoint
from planner.calibrate.load_generators import Assumed, is_mlperf, mlperf_point, recognised
from planner.calibrate.points import Points
from planner.calibrate.raw import UNKNOWN_GPU, parse_points
from planner.calibrate.tables import GROUP_COLUMNS, is_server_csv, read_iterations_csv, read_servers_csv
from planner.errors import InputError
from planner.shared.documents import counted, read_text


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


def _json_documents(text: str, where: str) -> list[Mapping[str, Any]]:
    """One document, a list of them, or one a line."""
    try:
        data = json.loads(text, parse_int=counted)
        found = data if isinstance(data, list) else [data]
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None
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


def _read_results(text: str, where: str, assumed: Assumed) -> tuple[list[ServerPoint], str]:
    """Points and format of a load generator's result, or of an MLPerf summary."""
    if is_mlperf(text):
        return [mlperf_point(text, where, assumed)], "MLPerf summary"
    points: list[ServerPoint] = []
    name = ""
    try:
        for document in _json_documents(text, where):
            name, found = recognised(document, where, assumed)
            points += found
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None
    return points, name


def _engine_settings(text: str, where: str) -> Mapping[str, Any]:
    """Settings of the engine that the records of a sweep name; they must be of one engine, as one fit is of one.

    Raises
    ------
    InputError
        When the records are of several.
    """
    found: list[Mapping[str, Any]] = []
    documents = _json_documents(text, where)
    # the file that llm-optimizer writes at the end gathers them in one document
    gathered = [d["test_results"] for d in documents if isinstance(d.get("test_results"), list)]
    for document in (*documents, *(entry for entries in gathered for entry in entries)):
        config = document.get("config") if isinstance(document, Mapping) else None
        told = config.get("server_args") if isinstance(config, Mapping) else None
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
    assumed = assumed or Assumed()
    iterations: dict[tuple[str, str, int], Points] = {}
    servers: dict[tuple[str, ...], list[ServerPoint]] = {}
    formats = []

    def add(key: tuple[str, str, int], points: Points) -> None:
        iterations[key] = _joined(iterations[key], points) if key in iterations else points

    for entry in paths:
        path = Path(entry)
        text = read_text(path)
        if not text.strip():
            raise InputError(f"{path}: is empty")
        raw = parse_points(text, path.name)
        if raw is not None:
            named = tuple(
                str(raw.header.get(k) or "") for k in ("model", "gpu", "engine", "engine_version", "weight_dtype")
            )
            if named[1] == UNKNOWN_GPU:
                named = (named[0], "", *named[2:])
            if raw.kind == "server":
                servers.setdefault((*named, str(raw.header.get("tp") or "")), []).extend(raw.server_points())
            else:
                add((named[1], named[0], raw.tp), raw.iterations())
            formats.append("raw points")
        elif text.lstrip()[0] in "{[" or is_mlperf(text):
            points, name = _read_results(text, path.name, assumed)
            settings = {} if is_mlperf(text) else _engine_settings(text, path.name)
            tp = settings.get("tensor_parallel_size") or settings.get("tp_size") or ""
            servers.setdefault((*("",) * (len(GROUP_COLUMNS) - 1), str(tp)), []).extend(points)
            formats.append(name)
        elif is_server_csv(text):
            for group, found in read_servers_csv(path, text=text, assumed=assumed).items():
                servers.setdefault(group, []).extend(found)
            formats.append("server points")
        else:
            for key, points_of in read_iterations_csv(path, where=where, text=text).items():
                add(key, points_of)
            formats.append("iterations")
    return Measurements(iterations, servers, tuple(formats))


def _joined(first: Points, second: Points) -> Points:
    """Two runs of one machine; they have no common clock."""
    return Points(
        first.batches + second.batches,
        np.concatenate([first.time_s, second.time_s]),
        None,
        first.source,
        first.composed or second.composed,
    )
