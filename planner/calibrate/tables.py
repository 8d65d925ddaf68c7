"""CSVs of server points."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from planner.calibrate.closed_loop import ServerPoint
from planner.errors import InputError, did_you_mean

__all__ = ["GROUP_COLUMNS", "read_servers_csv"]

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "input_tokens": ("isl", "input_tokens", "input_len", "prompt_tokens"),
    "output_tokens": ("osl", "output_tokens", "output_len"),
    "concurrency": ("concurrency", "max_concurrency"),
    "tpot": ("silicon_tpot_ms", "tpot_ms", "mean_tpot_ms"),
    "ttft": ("silicon_ttft_ms", "ttft_ms", "mean_ttft_ms"),
}
GROUP_COLUMNS = ("model_path", "system", "backend", "backend_version", "precision", "tp_size")


def read_servers_csv(path: Path, *, text: str | None = None) -> dict[tuple[str, ...], list[ServerPoint]]:
    """Read a CSV of server points: ``isl, osl, concurrency, tpot_ms`` and, if measured, ``ttft_ms``.

    Parameters
    ----------
    path
        The file.
    text
        Its content, when already read.

    Returns
    -------
    dict
        Points by (model_path, system, backend, backend_version, precision, tp_size), empty where there is no such column.

    Raises
    ------
    InputError
        With every problem of the file.
    """
    if text is None:
        text = path.read_text(encoding="utf-8-sig")
    reader = csv.DictReader(text.splitlines())
    header = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = header
    found = {key: next((n for n in names if n in header), None) for key, names in _ALIASES.items()}
    missing = [names[0] for key, names in _ALIASES.items() if found[key] is None and key != "ttft"]
    if missing:
        told = [f"{path.name}: column {m!r} is missing{did_you_mean(m, header)}" for m in missing]
        raise InputError.from_problems(told, "A CSV of server points has isl, osl, concurrency, tpot_ms and ttft_ms.")
    groups: dict[tuple[str, ...], list[ServerPoint]] = {}
    problems = []
    for line, row in enumerate(reader, 2):
        try:
            point = ServerPoint(
                float(row[found["input_tokens"] or ""]),
                float(row[found["output_tokens"] or ""]),
                float(row[found["concurrency"] or ""]),
                float(row[found["tpot"] or ""]) * 1e-3,
                float(row[found["ttft"]]) * 1e-3 if found["ttft"] and row.get(found["ttft"]) else None,
            )
        except (TypeError, ValueError):
            problems.append(f"{path.name}:{line}: not numbers: {dict(row)!r}"[:200])
            continue
        problems += [f"{path.name}:{line}: {p}" for p in point.problems()]
        groups.setdefault(tuple((row.get(c) or "").strip() for c in GROUP_COLUMNS), []).append(point)
    if problems:
        shown = problems[:20] + ([f"... and {len(problems) - 20} more"] if len(problems) > 20 else [])
        raise InputError.from_problems(shown, heading=f"{path.name}: {len(problems)} problems")
    if not groups:
        raise InputError(f"{path.name}: no server points in it")
    return groups
