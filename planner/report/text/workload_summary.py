"""A workload: lengths, burstiness, the split at a boundary, and what was assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.report.blocks import Block, Table, Text
from planner.units import format_count, format_duration, format_percent

if TYPE_CHECKING:
    from planner.workload.summary import WorkloadSummary
    from planner.workload.workload import Workload


def count(value: float | None) -> str:
    """Tokens or requests, or a dash."""
    return "-" if value is None else format_count(round(value)) if value >= 100 else format_count(value)


def blocks(described: WorkloadSummary) -> list[Block]:
    """Lengths, burstiness, the split at a boundary, and what was assumed."""
    w = described.workload
    facts = described.to_dict()
    lengths: dict[str, dict[str, float]] = facts["lengths"]
    columns = ["tokens", *next(iter(lengths.values()))]
    rows = [[of, *(count(v) for v in values.values())] for of, values in lengths.items()]
    known = w.provenance
    head = [f"{w.name}: {count(known.requests)} requests" + (f", {w.rows:,} rows" if w.rows != known.requests else "")]
    if known.source:
        head.append(f"source: {known.source}" + (f" ({known.licence})" if known.licence else ""))
    split, steps = facts["split"], facts["iterations"]
    lines = [
        f"input/output correlation {facts['input_output_correlation']:+.3f}; iterations at chunk {steps['chunk_tokens']}: "
        f"mean {steps['mean']:.4g}, scv {steps['scv']:.3g}",
        *_arrival_lines(w),
        f"at {count(split['boundary_tokens'])} tokens: {format_percent(split['share_below'])} below, "
        f"{format_percent(split['band_share'])} in the band up to x{split['gamma']:g}{_band(split)}; "
        f"archetype {split['archetype']}",
    ]
    if any(w.categories):
        shares = ", ".join(
            f"{c['name'] or '(none)'} {format_percent(c['share'])}"
            + ("" if c["compressible"] is None else f" (compressible {c['compressible']:g})")
            for c in facts["categories"]
        )
        lines.append(f"categories: {shares}")
    if w.sessions is not None:
        lines.append(_sessions(w.sessions.to_dict()))
    if known.length_split:
        lines.append(f"lengths: {known.length_split}")
    lines += [f"note: {note}" for note in known.notes]
    return [Text(head), Table(columns, rows, {"tokens"}, near=True), Text(lines, "bullets", near=True)]


def _sessions(facts: dict[str, Any]) -> str:
    """What sessions do, in a line."""
    turns, gaps = facts["calls_per_session"], facts["gap_s"]
    line = f"sessions: {count(facts['sessions'])}, {turns['mean']:.3g} calls each (most {turns['max']:,})"
    if gaps:
        line += f", gaps {format_duration(gaps['p50'])} median, {format_duration(gaps['p90'])} p90"
    line += f"; {format_percent(facts['repeated_share'])} of prompt tokens repeat, {count(facts['new_tokens'])} new per call"
    if facts["shared_prefixes"]:
        line += f"; {count(facts['shared_prefixes'])} shared prefixes"
    return line


def _band(split: dict[str, Any]) -> str:
    parts = {name: share for name, share in split["band_share_by_category"].items() if name}
    if not parts or not split["band_share"]:
        return ""
    return " (" + ", ".join(f"{name} {format_percent(share)}" for name, share in parts.items()) + ")"


def _arrival_lines(w: Workload) -> list[str]:
    """How requests come, in words."""
    arrivals = w.arrivals
    parts = ["rate not known" if arrivals.rate_per_s is None else f"rate {arrivals.rate_per_s:.4g} requests/s"]
    if arrivals.scv is not None:
        window = "" if arrivals.scv_window_s is None else f" within {arrivals.scv_window_s:g} s"
        parts.append(f"interarrival scv {arrivals.scv:.3g}{window}")
    if arrivals.peak_over_mean is not None:
        parts.append(f"busiest minute {arrivals.peak_over_mean:.2f} x mean")
    if arrivals.assumed:
        parts.append(arrivals.assumed)
    lines = ["arrivals: " + ", ".join(parts)]
    if arrivals.dispersion:
        lines.append(
            "index of dispersion of counts: " + ", ".join(f"{v:.3g} at {s:g} s" for s, v in arrivals.dispersion)
        )
    if arrivals.hourly_profile:
        peak = max(arrivals.hourly_profile)
        kind = "hour of day" if len(arrivals.hourly_profile) == 24 else "hour of week"
        lines.append(f"profile by {kind}: busiest {peak:.2f} x mean (hour {arrivals.hourly_profile.index(peak)})")
    return lines
