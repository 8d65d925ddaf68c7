"""The scheduler commands' results for people: a verdict, a table, what follows."""

from __future__ import annotations

from typing import Any

from planner.advice.batching import Batching
from planner.advice.stability import Stability
from planner.advice.wait import WaitSettings
from planner.report.table import rows_to_table
from planner.units import format_count, format_duration, format_percent

__all__ = ["advice_text", "batching_text", "stability_text", "wait_text"]


def advice_text(result: Any, markdown: bool) -> str | None:
    """The words of a scheduler command's result; ``None`` for any other result."""
    if isinstance(result, Stability):
        return stability_text(result, markdown)
    if isinstance(result, Batching):
        return batching_text(result, markdown)
    return wait_text(result, markdown) if isinstance(result, WaitSettings) else None


def _table(columns: list[str], rows: list[list[str]], right: set[str], markdown: bool) -> str:
    if not markdown:
        return rows_to_table(columns, rows, right=right)
    rule = ["---:" if c in right else "---" for c in columns]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (columns, rule, *rows))


def _number(value: Any) -> str:
    return "-" if value is None else format_count(float(value))


def _time(value: Any) -> str:
    return "-" if value is None else format_duration(float(value))


def _about(about: dict[str, Any], replicas: int | None = None) -> str:
    fleet = f"{replicas} x " if replicas else ""
    return (
        f"{about['workload']}, {about['arrival_rate_per_s']:,.4g} requests/s, on {fleet}{about['gpu']} x "
        f"TP{about['tensor_parallel_size']}, {about['model']} ({about['profile_trust']})"
    )


def stability_text(result: Stability, markdown: bool = False) -> str:
    """Verdict, certificate, bounds, burst."""
    columns = ["limit", "one replica", "fleet", "load", "what it rests on"]
    rows = [
        [
            b.name,
            f"{_number(b.replica_per_s)}/s",
            f"{_number(b.fleet_per_s)}/s",
            "overload" if b.load == float("inf") else format_percent(b.load),
            f"{_KINDS[b.kind]}: {b.because}",
        ]
        for b in result.bounds
    ]
    lines = [
        _about(result.about, result.replicas),
        f"{result.verdict.upper()}: {result.certificate}"
        + ("" if result.stable_within_band else " (not certain, given the profile)"),
        "",
        _table(columns, rows, {"one replica", "fleet", "load"}, markdown),
        "",
        f"now: {result.busy_sequences:.3g} of {result.about['max_num_seqs']:,} sequences busy in each replica",
    ]
    if result.time_to_overload_s == float("inf"):
        lines.append(f"burst of {result.burst:g} times the rate: sustained")
    elif result.time_to_overload_s > 0.0:
        lines.append(
            f"burst of {result.burst:g} times the rate: all sequences taken after {_time(result.time_to_overload_s)}, then "
            f"the queue grows by {result.growth_per_s:.3g} requests/s and takes {result.recovery_s_per_s:.3g} s per second to clear"
        )
    else:
        lines.append(
            f"burst of {result.burst:g} times the rate: overloaded already; +{result.growth_per_s:.3g} requests/s"
        )
    return "\n".join(lines)


_KINDS = {"engine": "engine", "achieved": "reached by", "limit": "no scheduler"}


def batching_text(result: Batching, markdown: bool = False) -> str:
    """Verdict, settings of both, crossover."""
    e, m, c = result.exclusive, result.mixed, result.crossover
    columns = ["batching", "sequences N", "refill at k", "theta", "requests/s at saturation"]
    rows = [
        ["exclusive", _number(e["N"]), _number(e["k"]), f"{e['theta']:.3f}", _number(e["throughput_per_s"])],
        [
            "mixed",
            _number(m["N"]),
            "-",
            "-",
            "not measured" if m["throughput_per_s"] is None else _number(m["throughput_per_s"]),
        ],
    ]
    lines = [
        _about(result.about),
        f"{result.verdict.upper()} ({result.certainty}): {result.reason}"
        if result.to_run is None
        else f"exclusive or mixed: NOT MEASURED: {result.reason}",
    ]
    if result.to_run is not None:
        lines.append(f"run: {result.to_run}")
    lines += ["", _table(columns, rows, set(columns[1:]), markdown), ""]
    lines.append(
        f"exclusive: refill when {e['k']} of {e['N']} sequences are idle (a phase of {e['phase_iterations']} decode "
        f"iterations); memory exceeded in {format_percent(e['overflow_share'])} of them; constant hazard would say "
        f"theta {e['theta0_constant_hazard']:.3f}"
    )
    mixed_cost = "not measured" if m["beta_MB_s_per_token"] is None else f"{1e6 * m['beta_MB_s_per_token']:.3g} us"
    kappa = "not measured" if m["kappa"] is None else f"{m['kappa']:.3g}"
    lines.append(
        f"cost per token: exclusive {1e6 * c['beta_EB_s_per_token']:.3g} us, mixed {mixed_cost}, break-even "
        f"{1e6 * c['break_even_beta_MB_s_per_token']:.3g} us; kappa {kappa}"
    )
    if c["N_crossover"] is not None:
        lines.append(f"crossover at N = {c['N_crossover']:.4g} sequences")
    return "\n".join(lines)


def wait_text(result: WaitSettings, markdown: bool = False) -> str:
    """Verdict, thresholds by class, nested segments."""
    columns = ["output class", "mean input", "rate", "threshold", "queue <=", "TTFT <=", "latency <="]
    rows = [
        [
            f"~{t['output_tokens']:,.0f} tokens",
            f"{t['input_tokens']:,.0f}",
            f"{t['rate_per_s']:.3g}/s",
            _number(t["threshold"]),
            _number(t["queue_mean_at_most"]),
            _time(t["ttft_mean_at_most_s"]),
            _time(t["latency_mean_at_most_s"]),
        ]
        for t in result.types
    ]
    eq = result.equilibrium
    lines = [
        _about(result.about, result.replicas),
        f"{result.verdict.upper()}: {result.reason}",
        "",
        _table(columns, rows, set(columns[1:]), markdown),
        "",
        f"iteration {_time(result.d0_s)} + {1e9 * result.d1_s_per_token:.3g} ns per KV token; fluid memory "
        f"{_number(eq['memory_tokens'])} tokens, iteration {_time(eq['iteration_s'])}, slack {eq['slack']:.3g}",
    ]
    if result.memory_tokens is not None:
        lines.append(
            f"WAIT holds at most {_number(result.memory_tokens)} KV tokens of {result.about['kv_tokens']:,.0f}"
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
            f"  {_number(n['memory_tokens'])} KV tokens suffice for {_time(n['horizon_s'])} with probability "
            f"{1 - n['delta']:.4g}" + ("" if n["fits"] else ": does not fit")
        )
    elif result.verdict != "overload":
        lines.append("Nested WAIT: overloaded at this rate, since it rounds outputs up to the end of their segment")
    return "\n".join(lines)
