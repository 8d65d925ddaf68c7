"""Stability: a verdict with its certificate, every limit, and what a burst does."""

from __future__ import annotations

from typing import Any

from planner.advice.stability import Stability
from planner.report.blocks import Block, Table, Text
from planner.units import format_count, format_duration, format_percent


def number(value: Any) -> str:
    """A count, or a dash."""
    return "-" if value is None else format_count(float(value))


def about(facts: dict[str, Any], replicas: int | None = None) -> str:
    """Traffic and engine in one line."""
    fleet = f"{replicas} x " if replicas else ""
    return (
        f"{facts['workload']}, {facts['arrival_rate_per_s']:,.4g} requests/s, on {fleet}{facts['gpu']} x "
        f"TP{facts['tensor_parallel_size']}, {facts['model']} ({facts['profile_trust']})"
    )


def time(value: Any) -> str:
    """A duration, or a dash."""
    return "-" if value is None else format_duration(float(value))


def blocks(result: Stability) -> list[Block]:
    """Verdict, certificate, bounds, burst."""
    columns = ["limit", "one replica", "fleet", "load", "what it rests on"]
    rows = [
        [
            b.name,
            f"{number(b.replica_per_s)}/s",
            f"{number(b.fleet_per_s)}/s",
            "overload" if b.load == float("inf") else format_percent(b.load),
            f"{_KINDS[b.kind]}: {b.because}",
        ]
        for b in result.bounds
    ]
    head = [
        about(result.about, result.replicas),
        f"{result.verdict.upper()}: {result.certificate}"
        + ("" if result.stable_within_band else " (not certain, given the profile)"),
    ]
    lines = [f"now: {result.busy_sequences:.3g} of {result.about['max_num_seqs']:,} sequences busy in each replica"]
    if result.time_to_overload_s == float("inf"):
        lines.append(f"burst of {result.burst:g} times the rate: sustained")
    elif result.time_to_overload_s > 0.0:
        lines.append(
            f"burst of {result.burst:g} times the rate: all sequences taken after {time(result.time_to_overload_s)}, then "
            f"the queue grows by {result.growth_per_s:.3g} requests/s and takes {result.recovery_s_per_s:.3g} s per second to clear"
        )
    else:
        lines.append(
            f"burst of {result.burst:g} times the rate: overloaded already; +{result.growth_per_s:.3g} requests/s"
        )
    return [Text(head), Table(columns, rows, {"limit", "what it rests on"}), Text(lines)]


_KINDS = {"engine": "engine", "achieved": "reached by", "limit": "no scheduler"}
