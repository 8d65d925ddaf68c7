"""fleet-sim CDF JSON: ``[[tokens, cdf], ...]`` alone or under ``cdf``; totals only, so the split must be given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.errors import InputError
from planner.workload.formats.base import JSON, MAX_PROBLEMS, MAX_TOKENS, Format, ImportReport, ReadOptions
from planner.workload.formats.totals import parse_cdf
from planner.workload.workload import Workload

if TYPE_CHECKING:
    from planner.workload.source import Head, Source


def _recognise(head: Head) -> bool:
    if head.kind == "array":
        return isinstance(head.record, list) and len(head.record) == 2 and not head.keys
    return head.kind == "json" and "cdf" in head.keys


def _read(source: Source, options: ReadOptions) -> tuple[Workload, ImportReport]:
    """The pairs of total length and CDF, all problems at once."""
    document = source.read_json()
    pairs = document.get("cdf") if isinstance(document, dict) else document
    if not isinstance(pairs, list) or not pairs:
        raise InputError(f"{source.name}: no list of [tokens, cdf] pairs")
    tokens, cdf, problems = [], [], []
    for number, pair in enumerate(pairs, 1):
        good = (
            isinstance(pair, list)
            and len(pair) == 2
            and all(type(x) in (int, float) and 0 <= x <= MAX_TOKENS for x in pair)
        )
        if not good:
            problems.append(f"{source.name}: entry {number}: {pair!r} is not a [tokens, cdf] pair")
            continue
        tokens.append(float(pair[0]))
        cdf.append(float(pair[1]))
    if problems:
        raise InputError.from_problems(problems[:MAX_PROBLEMS], heading=f"{source.name}: {len(problems)} problems")
    facts = document if isinstance(document, dict) else {}
    return parse_cdf(
        source.name,
        tokens,
        cdf,
        options,
        name=source.path.name.split(".")[0],
        source=str(facts.get("provenance") or facts.get("source") or "fleet-sim CDF"),
        format_name=FORMAT.name,
    )


FORMAT = Format("fleetsim-cdf", "fleet-sim CDF JSON (totals only)", JSON, _recognise, _read)
