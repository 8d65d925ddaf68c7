"""Workloads as tables, for a terminal or a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.units import format_count, format_percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from planner.workload.arrivals import Arrivals
    from planner.workload.combine import Drift
    from planner.workload.summary import WorkloadSummary
    from planner.workload.workload import Workload

__all__ = ["WorkloadList", "drift_text", "list_text", "summary_text"]

LIST_COLUMNS = (
    "name",
    "requests",
    "rate/s",
    "mean input",
    "mean output",
    "p50 total",
    "p99 total",
    "categories",
    "licence",
    "note",
)


class WorkloadList:
    """Shipped workloads as rows.

    Parameters
    ----------
    workloads, profiles
        What to list.
    """

    def __init__(self, workloads: list[Workload], profiles: Mapping[str, Arrivals]) -> None:
        self.workloads = workloads
        self.profiles = profiles

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "schema_version": 1,
            "workloads": [w.to_dict() for w in self.workloads],
            "profiles": {name: arrivals.to_dict() for name, arrivals in self.profiles.items()},
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per workload."""
        return [
            {
                "name": w.name,
                "requests": w.provenance.requests,
                "arrival_rate_per_s": w.arrivals.rate_per_s,
                "mean_input_tokens": w.mean_input,
                "mean_output_tokens": w.mean_output,
                "p50_total_tokens": w.quantile(0.5),
                "p99_total_tokens": w.quantile(0.99),
                "categories": " ".join(c for c in w.categories if c),
                "licence": w.provenance.licence,
                "source": w.provenance.source,
                "length_split": w.provenance.length_split,
            }
            for w in self.workloads
        ]


def _table(columns: list[str], rows: list[list[str]], markdown: bool, left: set[str]) -> str:
    if markdown:
        rule = [":--" if c in left else "--:" for c in columns]
        lines = [columns, rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)
    from planner.report.table import rows_to_table

    return rows_to_table(columns, rows, right=set(columns) - left)


def _count(value: float | None) -> str:
    return "-" if value is None else format_count(round(value)) if value >= 100 else format_count(value)


def list_text(listed: WorkloadList, markdown: bool = False) -> str:
    """One line per workload."""
    rows = []
    for w in listed.workloads:
        notes = [w.provenance.length_split.split(":")[0]] if w.provenance.length_split else []
        notes += ["hourly profile"] if w.arrivals.hourly_profile else []
        notes += [w.arrivals.assumed] if w.arrivals.assumed and w.arrivals.rate_per_s is not None else []
        values = (w.mean_input, w.mean_output, w.quantile(0.5), w.quantile(0.99))
        rate = w.arrivals.rate_per_s
        rows.append(
            [
                w.name,
                _count(w.provenance.requests),
                "-" if rate is None else f"{rate:.4g}",
                *(_count(v) for v in values),
                " ".join(c for c in w.categories if c) or "-",
                w.provenance.licence or "-",
                "; ".join(notes) or "-",
            ]
        )
    text = _table(list(LIST_COLUMNS), rows, markdown, {"name", "categories", "licence", "note"})
    if listed.profiles:
        columns = ["profile", "rate/s", "peak/mean", "busiest hour", "quietest hour"]
        rows = [
            [
                name,
                f"{arrivals.rate_per_s or 0.0:.4g}",
                f"{arrivals.peak_over_mean or 0.0:.2f}",
                *(
                    f"{at(arrivals.hourly_profile):.2f} at {arrivals.hourly_profile.index(at(arrivals.hourly_profile))}h"
                    for at in (max, min)
                ),
            ]
            for name, arrivals in listed.profiles.items()
        ]
        heading = (
            "\n\nHourly profiles of real services (`profiles/`, alibaba/ServeGen, Apache-2.0):\n\n"
            if markdown
            else "\n\n"
        )
        text += heading + _table(columns, rows, markdown, {"profile"})
    return text


def summary_text(described: WorkloadSummary, markdown: bool = False) -> str:
    """Lengths, burstiness, the split at a boundary, and what was assumed."""
    w = described.workload
    facts = described.to_dict()
    lengths: dict[str, dict[str, float]] = facts["lengths"]
    columns = ["tokens", *next(iter(lengths.values()))]
    rows = [[of, *(_count(v) for v in values.values())] for of, values in lengths.items()]
    known = w.provenance
    head = [f"{w.name}: {_count(known.requests)} requests" + (f", {w.rows:,} rows" if w.rows != known.requests else "")]
    if known.source:
        head.append(f"source: {known.source}" + (f" ({known.licence})" if known.licence else ""))
    split, steps = facts["split"], facts["iterations"]
    lines = [
        f"input/output correlation {facts['input_output_correlation']:+.3f}; iterations at chunk {steps['chunk_tokens']}: "
        f"mean {steps['mean']:.4g}, scv {steps['scv']:.3g}",
        *_arrival_lines(w),
        f"at {_count(split['boundary_tokens'])} tokens: {format_percent(split['share_below'])} below, "
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
    if known.length_split:
        lines.append(f"lengths: {known.length_split}")
    lines += [f"note: {note}" for note in known.notes]
    between = "\n\n" if markdown else "\n"
    if markdown:
        lines = [f"- {line}" for line in lines]
    return between.join(["\n".join(head), _table(columns, rows, markdown, {"tokens"}), "\n".join(lines)])


def _band(split: dict[str, Any]) -> str:
    parts = {name: share for name, share in split["band_share_by_category"].items() if name}
    if not parts or not split["band_share"]:
        return ""
    return " (" + ", ".join(f"{name} {format_percent(share)}" for name, share in parts.items()) + ")"


def _arrival_lines(w: Workload) -> list[str]:
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


def drift_text(found: Drift, names: tuple[str, str], markdown: bool = False) -> str:
    """What changed from the first to the second."""
    rows = [
        ["mean input", f"x {found.mean_input:.3f}", "ratio of the means"],
        ["mean output", f"x {found.mean_output:.3f}", "ratio of the means"],
        ["mean iterations", f"x {found.mean_iterations:.3f}", "at a chunk of 512 tokens"],
        ["rate", "-" if found.rate is None else f"x {found.rate:.3f}", "requests/s"],
        ["input law", f"{found.ks_input:.3f}", f"largest difference of F; typical factor {found.factor_input:.2f}"],
        ["output law", f"{found.ks_output:.3f}", f"largest difference of F; typical factor {found.factor_output:.2f}"],
        ["total law", f"{found.ks_total:.3f}", "largest difference of F"],
        ["joint law", f"{found.joint:.3f}", "total variation on octaves: 0 same, 1 nothing in common"],
    ]
    return _table(
        [f"{names[0]} -> {names[1]}", "value", "meaning"], rows, markdown, {f"{names[0]} -> {names[1]}", "meaning"}
    )
