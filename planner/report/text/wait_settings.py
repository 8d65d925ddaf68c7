"""WAIT and Nested WAIT: a verdict, thresholds by class, segments."""

from __future__ import annotations

from planner.advice.wait import WaitSettings
from planner.report.blocks import Block, Table, Text
from planner.report.text.stability import about, number, time


def blocks(result: WaitSettings) -> list[Block]:
    """Verdict, thresholds by class, nested segments."""
    columns = ["output class", "mean input", "rate", "threshold", "queue <=", "TTFT <=", "latency <="]
    rows = [
        [
            f"~{t['output_tokens']:,.0f} tokens",
            f"{t['input_tokens']:,.0f}",
            f"{t['rate_per_s']:.3g}/s",
            number(t["threshold"]),
            number(t["queue_mean_at_most"]),
            time(t["ttft_mean_at_most_s"]),
            time(t["latency_mean_at_most_s"]),
        ]
        for t in result.types
    ]
    eq = result.equilibrium
    head = [about(result.about, result.replicas), f"{result.verdict.upper()}: {result.reason}"]
    lines = [
        f"iteration {time(result.d0_s)} + {1e9 * result.d1_s_per_token:.3g} ns per KV token; fluid memory "
        f"{number(eq['memory_tokens'])} tokens, iteration {time(eq['iteration_s'])}, slack {eq['slack']:.3g}",
    ]
    if result.memory_tokens is not None:
        lines.append(
            f"WAIT holds at most {number(result.memory_tokens)} KV tokens of {result.about['kv_tokens']:,.0f}"
            + ("" if result.fits else ": does not fit")
        )
    if result.nested is not None:
        n = result.nested
        ends = ", ".join(f"{v:,.0f}" for v in n["ends"])
        lines.append(
            f"Nested WAIT, outputs unknown: {n['segments']} segments ending at {ends} decode iterations, thresholds "
            f"{', '.join(map(str, n['thresholds']))}"
        )
        lines.append(
            f"  {number(n['memory_tokens'])} KV tokens suffice for {time(n['horizon_s'])} with probability "
            f"{1 - n['delta']:.4g}" + ("" if n["fits"] else ": does not fit")
        )
    elif result.verdict != "overload":
        lines.append("Nested WAIT: overloaded at this rate, since it rounds outputs up to the end of their segment")
    return [Text(head), Table(columns, rows, columns[:1]), Text(lines)]
