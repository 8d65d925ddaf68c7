"""CSVs of server points: one load per row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planner.calibrate.closed_loop import ServerPoint
from planner.calibrate.load_generators import Assumed, point
from planner.calibrate.points import opened, refuse
from planner.errors import InputError, did_you_mean

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "input_tokens": ("isl", "input_tokens", "input_len", "prompt_tokens"),
    "output_tokens": ("osl", "output_tokens", "output_len"),
    "concurrency": ("concurrency", "max_concurrency"),
    "tpot": ("tpot_ms", "silicon_tpot_ms", "mean_tpot_ms"),
    "throughput": ("output_tokens_per_s", "tokens_per_s", "output_throughput"),
    "ttft": ("ttft_ms", "silicon_ttft_ms", "mean_ttft_ms"),
}
GROUP_COLUMNS = ("model_path", "system", "backend", "backend_version", "precision", "tp_size")


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
    reader, header = opened(path, text)
    found = {key: next((n for n in names if n in header), None) for key, names in _ALIASES.items()}
    spare = {"ttft", "throughput"} | ({"tpot"} if found["throughput"] else set())
    spare |= {k for k in ("input_tokens", "output_tokens", "concurrency") if getattr(assumed, k) is not None}
    missing = [names[0] for key, names in _ALIASES.items() if found[key] is None and key not in spare]
    if missing:
        told = [f"{path.name}: column {m!r} is missing{did_you_mean(m, header)}" for m in missing]
        raise InputError.from_problems(told, "A CSV of server points has isl, osl, concurrency, tpot_ms and ttft_ms.")
    groups: dict[tuple[str, ...], list[ServerPoint]] = {}
    problems: list[str] = []
    for line, row in enumerate(reader, 2):
        try:
            values = {k: float(row[n]) if n and row.get(n) else None for k, n in found.items()}
        except (TypeError, ValueError):
            problems.append(f"{path.name}:{line}: not numbers: {dict(row)!r}"[:200])
            continue
        tpot, ttft = values["tpot"], values["ttft"]
        try:
            made = point(
                f"{path.name}:{line}", assumed, isl=values["input_tokens"], osl=values["output_tokens"],
                concurrency=values["concurrency"], tpot_s=None if tpot is None else tpot * 1e-3,
                ttft_s=None if ttft is None else ttft * 1e-3, tokens_per_s=values["throughput"],
            )  # fmt: skip
        except InputError as error:
            problems += error.problems or (error.message,)
            continue
        groups.setdefault(tuple((row.get(c) or "").strip() for c in GROUP_COLUMNS), []).append(made)
    refuse(problems, path.name)
    if not groups:
        raise InputError(f"{path.name}: no server points in it")
    return groups
