"""What `fleetopt compress measure` found, as a table for a terminal or a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.report.blocks import Block, Table, Text
from planner.units import format_duration, format_percent

if TYPE_CHECKING:
    from planner.compress.measure import CompressionMeasurement


def blocks(found: CompressionMeasurement) -> list[Block]:
    """Headline, one row per category, and what the numbers rest on."""

    def share(value: object) -> str:
        return "-" if value is None else format_percent(float(value))  # type: ignore[arg-type]

    def time(value: object) -> str:
        return "-" if value is None else format_duration(float(value))  # type: ignore[arg-type]

    columns = [
        "category",
        "borderline",
        "p_c",
        "95% of p_c",
        "reduction",
        "ROUGE-L recall",
        "cosine",
        "p50",
        "p95",
        "p99",
    ]
    rows = []
    for row in found.to_rows():
        rows.append(
            [
                str(row["category"]),
                f"{row['borderline']:,}",
                share(row["p_c"]),
                f"{share(row['p_c_low'])} to {share(row['p_c_high'])}",
                share(row["reduction_mean"]),
                share(row["rouge_l_recall_mean"]),
                share(row["tfidf_cosine_mean"]),
                *(time(row[f"latency_{p}_s"]) for p in ("p50", "p95", "p99")),
            ]
        )
    low, high = f"{found.boundary:,}", f"{found.gamma * found.boundary:,.0f}"
    head = (
        f"{found.total.requests:,} of {found.prompts:,} prompts lie between {low} and {high} tokens "
        f"({found.counted_by}); p_c is the share of them that compressed to {low}"
    )
    words = {"gate": "content that is not compressed", "kept": "what has to be kept does not fit"}
    why = ", ".join(f"{n:,} {words.get(k, k)}" for k, n in sorted(found.total.reasons.items()))
    return [Text([head]), Table(columns, rows, {"category"}), Text([f"left alone: {why}"] if why else [])]
