"""Measurements people already have: result files of load generators, raw points, and CSVs of iterations or server points."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from planner.calibrate.closed_loop import ServerPoint
from planner.calibrate.load_generators import TIMES, Assumed, is_mlperf, mlperf_point, point, recognised
from planner.calibrate.points import Batch, Points, batch_problems
from planner.calibrate.raw import UNKNOWN_GPU, parse_points
from planner.errors import InputError, did_you_mean
from planner.shared.documents import counted, read_text, rows_by_column
from planner.units import is_measurable

Key = TypeVar("Key")
Made = TypeVar("Made")
Row = Mapping[str, str]

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
GROUP_COLUMNS = ("model_path", "system", "backend", "backend_version", "precision", "tp_size")


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
    try:
        found = [recognised(document, where, assumed) for document in _json_documents(text, where)]
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None
    return [point for _, points in found for point in points], found[-1][0]


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
    for entry in paths:
        path = Path(entry)
        text = read_text(path)
        if not text.strip():
            raise InputError(f"{path}: is empty")
        raw = parse_points(text, path.name)
        if raw is not None:
            said = {key: str(value or "") for key, value in raw.header.items()}
            of = said.get("model", ""), "" if said.get("gpu") == UNKNOWN_GPU else said.get("gpu", "")
            if raw.kind == "server":
                rest = (said.get(key, "") for key in ("engine", "engine_version", "weight_dtype", "tp"))
                servers.setdefault((*of, *rest), []).extend(raw.server_points())
            else:
                _add(iterations, {(of[1], of[0], raw.tp): raw.iterations()})
            formats.append("raw points")
        elif text.lstrip()[0] in "{[" or is_mlperf(text):
            points, name = _read_results(text, path.name, assumed)
            settings = {} if is_mlperf(text) else _engine_settings(text, path.name)
            tp = settings.get("tensor_parallel_size") or settings.get("tp_size") or ""
            servers.setdefault((*("",) * (len(GROUP_COLUMNS) - 1), str(tp)), []).extend(points)
            formats.append(name)
        elif _is_server_csv(text):
            for group, found in read_servers_csv(path, text=text, assumed=assumed).items():
                servers.setdefault(group, []).extend(found)
            formats.append("server points")
        else:
            _add(iterations, read_iterations_csv(path, where=where, text=text))
            formats.append("iterations")
    return Measurements(iterations, servers, tuple(formats))


def _add(known: dict[tuple[str, str, int], Points], found: Mapping[tuple[str, str, int], Points]) -> None:
    """Groups of another file, with those that are known; two runs of one machine have no common clock."""
    for key, new in found.items():
        if key in known:
            old = known[key]
            times, composed = np.concatenate([old.time_s, new.time_s]), old.composed or new.composed
            new = Points(old.batches + new.batches, times, None, old.source, composed)
        known[key] = new


def _is_server_csv(text: str) -> bool:
    """Whether a table is one of server points."""
    header = {c.strip() for c in text.splitlines()[0].split(",")}
    return "measured_ms" not in header and bool({"isl", "osl", "input_tokens", "output_tokens"} & header)


def read_iterations_csv(
    path: Path, *, where: Mapping[str, str] | None = None, text: str | None = None
) -> dict[tuple[str, str, int], Points]:
    """Read a CSV of iterations: one row per iteration, columns :data:`COLUMNS`, grouped by (gpu, model, tp).

    Parameters
    ----------
    path
        The file.
    where
        Keep only rows whose column equals the value (compared case-insensitively).
    text
        Its content, when already read.

    Returns
    -------
    dict
        Points by (gpu, model, tp); empty strings and 1 where the file has no such columns. Rows come in the order of
        `design_rank` where the file has it; an `order` column is the order of measuring, otherwise it is not known.

    Raises
    ------
    InputError
        With every problem of the file: missing columns, rows that are not numbers, times that are not positive.
    """
    reader, header = _opened(path, text)
    missing = [c for c in COLUMNS if c not in header]
    _refuse_missing(path.name, missing, header, f"A CSV of iterations has the columns {', '.join(COLUMNS)}.")
    wanted = {key: value.lower() for key, value in (where or {}).items()}
    absent = [key for key in wanted if key not in header]
    if absent:
        raise InputError(f"{path.name}: there is no column {absent[0]!r} to select by")

    def made(row: Row, line: int) -> tuple[tuple[str, str, int], tuple[float, bool, tuple[Batch, float, float]]] | None:
        """Group of a row, its rank, whether it was added up from kernels, and the iteration."""
        if any((row.get(key) or "").strip().lower() != value for key, value in wanted.items()):
            return None
        batch = Batch(*(_integer(row[c]) for c in COLUMNS[:-1]))
        time_s = float(row["measured_ms"]) * 1e-3
        rank = float(row.get("design_rank") or line)
        order = float(row["order"]) if row.get("order") else math.nan
        key = ((row.get("gpu") or "").strip(), (row.get("model") or "").strip(), _integer(row.get("tp") or "1"))
        positive = is_measurable(time_s) and time_s > 0.0
        problems = [] if positive else [f"measured_ms must be positive, got {row['measured_ms']}"]
        if problems := [*problems, *batch_problems(batch)]:
            raise InputError.from_problems([f"{path.name}:{line}: {p}" for p in problems])
        return key, (
            rank,
            batch.decodes * batch.prefills > 0 and bool((row.get("composed") or "").strip()),
            (batch, time_s, order),
        )

    groups = _grouped(reader, path.name, made)
    if not groups:
        chosen = ", ".join(f"{k}={v}" for k, v in wanted.items())
        raise InputError(f"{path.name}: no iterations in it" + (f" with {chosen}" if chosen else ""))
    ranked = {key: sorted(rows, key=lambda row: row[0]) for key, rows in groups.items()}
    return {
        key: Points.of([row[2] for row in rows], path.name, any(row[1] for row in rows)) for key, rows in ranked.items()
    }


def read_servers_csv(
    path: Path, *, text: str | None = None, assumed: Assumed | None = None
) -> dict[tuple[str, ...], list[ServerPoint]]:
    """Read a CSV of server points: ``isl, osl, concurrency, tpot_ms`` and, if measured, ``ttft_ms``.

    Parameters
    ----------
    path
        The file. Instead of ``tpot_ms`` it may have ``output_tokens_per_s`` of a server that is kept full.
    text
        Its content, when already read.
    assumed
        Lengths and load of files without such columns.

    Returns
    -------
    dict
        Points by (model_path, system, backend, backend_version, precision, tp_size), empty where there is no such column.

    Raises
    ------
    InputError
        With every problem of the file.
    """
    assumed = assumed or Assumed()
    reader, header = _opened(path, text)
    found = {key: next((n for n in names if n in header), None) for key, names in _ALIASES.items()}
    spare = {"ttft_s", "tokens_per_s"} | ({"tpot_s"} if found["tokens_per_s"] else set())
    spare |= {key for key, value in assumed.known.items() if value is not None}
    missing = [names[0] for key, names in _ALIASES.items() if found[key] is None and key not in spare]
    _refuse_missing(
        path.name, missing, header, "A CSV of server points has isl, osl, concurrency, tpot_ms and ttft_ms."
    )

    def made(row: Row, line: int) -> tuple[tuple[str, ...], ServerPoint]:
        values = {
            key: float(row[name]) * (1e-3 if key in TIMES else 1.0) if name and row.get(name) else None
            for key, name in found.items()
        }
        group = tuple((row.get(c) or "").strip() for c in GROUP_COLUMNS)
        return group, point(f"{path.name}:{line}", assumed, values)

    groups = _grouped(reader, path.name, made)
    if not groups:
        raise InputError(f"{path.name}: no server points in it")
    return groups


def _opened(path: Path, text: str | None) -> tuple[csv.DictReader[str], list[str]]:
    """Rows of a CSV, of its content where that is already read, and the names of its columns without blanks around them."""
    reader = rows_by_column(read_text(path) if text is None else text, path.name)
    reader.fieldnames = header = [name.strip() for name in reader.fieldnames or ()]
    return reader, header


def _refuse_missing(name: str, missing: Sequence[str], header: Sequence[str], hint: str) -> None:
    if missing:
        told = [f"{name}: column {m!r} is missing{did_you_mean(m, header)}" for m in missing]
        raise InputError.from_problems(told, hint)


def _grouped(
    reader: csv.DictReader[str], name: str, made: Callable[[Row, int], tuple[Key, Made] | None]
) -> dict[Key, list[Made]]:
    """What is made of the rows, by group; all that is wrong with them as one error, the first twenty told."""
    groups: dict[Key, list[Made]] = {}
    problems: list[str] = []
    for line, row in enumerate(reader, 2):
        try:
            found = made(row, line)
        except InputError as error:
            problems += error.problems or (error.message,)
        except (TypeError, ValueError, OverflowError):
            problems.append(f"{name}:{line}: not numbers: {dict(row)!r}"[:200])
        else:
            if found is not None:
                groups.setdefault(found[0], []).append(found[1])
    if problems:
        more = [f"... and {len(problems) - 20} more"] if len(problems) > 20 else []
        raise InputError.from_problems([*problems[:20], *more], heading=f"{name}: {len(problems)} problems")
    return groups


def _integer(text: str) -> int:
    value = float(text)
    if not value.is_integer() or not is_measurable(value):
        raise ValueError
    return int(value)
