"""RAD and SLAI: the bound of theorem 1 against the paper's own tiles, and the percentages of section 7."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

import numpy as np

from planner.catalog import gpu, model
from planner.catalog.kv import kv_capacity
from planner.catalog.profiles import profile
from planner.fluid import rad
from planner.papers.compare import Setting, compared
from planner.papers.machines import Staircase, late_over_early
from planner.papers.printed import DIFFERS, SAME, SAME_UNDER, Row, printed_by
from planner.papers.run import as_requests, run_policy
from planner.papers.statistics import mean_of_batches
from planner.workload.workload import Workload

PRINTED, _row = printed_by(__file__)
RUNS, MACHINE = PRINTED["simulated"]["runs"], PRINTED["machine"]
HIGH_LOAD, A100_TILE, EQUAL_TILE = PRINTED["high_load"], PRINTED["tile"], PRINTED["equal_tile"]


def _machine(tile: tuple[int, int, int]) -> rad.RadParameters:
    return rad.RadParameters.of({**MACHINE, "trow": tile[0], "tcol": tile[1], "tred": tile[2]})


def _attention(p: rad.RadParameters, prompt: int, chunk: int | None) -> float:
    """Prefill attention alone [s]."""
    linear = float(p.inv_mu_lin * prompt / p.tcol + p.inv_mu_nlin * prompt)
    return float(rad.Tbar_R([(prompt, 0, 1)], p, chunk)) - linear


def _theory() -> Iterator[Row]:
    """Theorem 1, eq. 5 and eq. 8 at points of the paper's own tiles."""
    a100 = _machine(A100_TILE)
    for prompt in (256, 1024, 2048):
        saved = _attention(a100, prompt, a100.tcol) / _attention(a100, prompt, None) - 1.0
        total = rad.Tbar_R_tight([(prompt, 0, 1)], a100) / rad.Tbar_R([(prompt, 0, 1)], a100) - 1.0
        yield _row("tile", f"{100 * saved:.1f}%", prompt=prompt, total=100 * total)
    equal = _machine(EQUAL_TILE)
    saved = _attention(equal, 1024, equal.tcol) / _attention(equal, 1024, None) - 1.0
    yield _row("equal tile", f"{100 * saved:.1f}%")
    shared = (512, a100.d, a100.vrow, a100.vcol)
    faster = rad.T_D_SA(*shared, 1, a100.mu_gemv) / rad.T_D_SA(*shared, a100.s, a100.mu_gemv)
    yield _row("eq. 5", f"{faster:.0f} times")
    lengths = [(1024, 128, 1)]
    work, longest = rad.Tbar_R(lengths, a100), rad.T_max(1024, 128, a100)
    rate = 1.1 * rad.rad_lambda_max(1, lengths, a100)
    yield _row("queue", f"{rad.rad_alpha(rate, 1, work, longest):.3g}", printed=rad.rad_alpha(rate, 1, work, 1))
    yield _row("last time", float(rad.slai_last_time(10.0, 0.5, 10.0, 0.02)))


def _stability() -> Iterator[Row]:
    """Theorems 1 and 2 by simulation: RAD just below and above the bound, waits late against early in the run."""
    requests, m = PRINTED["simulated"]["stability_requests"], PRINTED["small_machine"]
    tiles = m["trow"], m["tcol"], m["tred"], m["vrow"], m["vcol"]
    lines = Staircase(m["inv_mu_lin"], m["inv_mu_nlin"], m["N"], m["d"], 1 / m["mu"], 1 / m["mu_gemv"], *tiles)
    dist = [(p, d, 1 / (8 * 48)) for p in range(32, 257, 32) for d in range(1, 49)]
    bound = rad.rad_lambda_max(1, dist, m)
    for load, printed in ((0.95, "stable"), (1.05, "unstable")):
        runs = []
        for seed in range(RUNS):
            rng = np.random.default_rng(seed)
            times = np.cumsum(rng.exponential(1 / (load * bound), requests))
            prompts = 32 * rng.integers(1, 9, requests)
            sample = as_requests(times, prompts, rng.integers(2, 50, requests))
            run = run_policy(sample, "rad", lines, {"t_col": m["tcol"], "chunk": m["trow"], "n": 10_000})
            waits = np.array([r.first_token_s - r.arrival for r in run.requests])
            runs.append((float(times[-1]), waits))
        expected = max(0.0, load - 1.0)  # a queue that serves at 1 what comes at `load`
        ours, verdict = late_over_early(runs, expected)
        theorem = 1 if load > 1 else 2
        yield _row(
            "stable", ours, verdict, theorem=theorem, load=load, requests=requests, printed=printed, expected=expected
        )


def _figure7() -> Iterator[Row]:
    """SLAI against Sarathi-Serve and vLLM on an estimate of the paper's GPU, at the load where the paper compares them."""
    card, network = gpu("rtx-6000-ada"), model("mistral-7b")
    memory = kv_capacity(network, card, max_num_seqs=128, token_budget=512).tokens
    traffic = Workload.from_file("sharegpt4")
    lengths = (traffic.input_tokens, traffic.output_tokens, traffic.weight)
    iteration = profile(gpu=card, model=network).iteration
    setting = Setting(slots=128, token_budget=512, kv_tokens=memory, strict_share=0.05, tbt_s=0.5, tbt_strict_s=0.1)

    def rows_of(
        policy: str, parameters: Mapping[str, Any], rate: float, requests: int = PRINTED["simulated"]["slai_requests"]
    ) -> list[dict[str, Any]]:
        """One row of statistics per seed, the same requests for every policy."""
        more: dict[str, Any] = {"parameters": {policy: parameters}, "requests": requests}
        runs = (
            compared([policy], [rate], *lengths, iteration, setting, seeds=[seed], **more)
            for seed in range(1, RUNS + 1)
        )
        return [dict(run.rows[0]) for run in runs]

    saturated = fmean(float(r["throughput_per_s"]) for r in rows_of("sarathi", {}, 1e6, 600))
    rate = HIGH_LOAD * saturated
    dynamic = {"order": "spf", "delta": {"memory_threshold": 0.96, "below": 5, "above": 10}}
    found = {
        "Sarathi-Serve": rows_of("sarathi", {}, rate),
        _SHORTEST: rows_of("sarathi", {"order": "spf"}, rate),
        "SLAI": rows_of("slai", dynamic, rate),
        "vLLM": rows_of("prefill_first", {}, rate),
    }
    why = f"simulated at {HIGH_LOAD:.0%} of {saturated:.2f} requests/s, the capacity of an estimated RTX 6000 Ada, {RUNS} runs"
    yield from _medians(found, why)
    light = {n: rows_of(p, {}, 0.5 * saturated) for n, p in (("vLLM", "prefill_first"), ("Sarathi-Serve", "sarathi"))}
    yield from _statements(found, light, why)


_Runs = Mapping[str, list[dict[str, Any]]]
"""Scheduler -> a row of statistics per run."""

_SHORTEST = "Sarathi-Serve, shortest prompt first"


def _medians(found: _Runs, why: str) -> Iterator[Row]:
    """Median TTFT at high load, and what SLAI takes off it."""

    def mean(name: str) -> Any:
        return mean_of_batches(np.array([float(r["ttft_p50_s"]) for r in found[name]]))

    for name, printed in PRINTED["medians"].items():
        e = mean(name)
        yield _row("median", f"{e.value:.2f} +- {e.half_width:.2f} s", name=name, printed=printed, why=why)
    base, slai = found["Sarathi-Serve"], found["SLAI"]
    gains = [100.0 * (1.0 - float(s["ttft_p50_s"]) / float(b["ttft_p50_s"])) for s, b in zip(slai, base, strict=True)]
    e = mean_of_batches(np.array(gains))
    order = mean(_SHORTEST).value
    verdict = SAME_UNDER if abs(53.0 - e.value) <= e.half_width else DIFFERS
    yield _row("taken off", f"{e.value:.0f} +- {e.half_width:.0f}%", verdict, why=why, order=order)


def _statements(found: _Runs, light: _Runs, why: str) -> Iterator[Row]:
    """What figure 7 shows to be smaller than what: in how many runs it is so here, at high and at low load."""
    base, slai, spf = found["Sarathi-Serve"], found["SLAI"], found[_SHORTEST]
    at_half = why.replace(f"{HIGH_LOAD:.0%}", "50%")
    for statement, smaller, larger, key, reason in (
        ("SLAI's median TTFT is below Sarathi-Serve's", slai, base, "ttft_p50_s", why),
        ("shortest prompt first lowers Sarathi-Serve's median TTFT", spf, base, "ttft_p50_s", why),
        ("vLLM's P99 TBT is above Sarathi-Serve's", base, found["vLLM"], "tbt_p99_s", why),
        ("vLLM's median TTFT is the lowest at low load", light["vLLM"], light["Sarathi-Serve"], "ttft_p50_s", at_half),
    ):
        pairs = [(float(s[key]), float(b[key])) for s, b in zip(smaller, larger, strict=True)]
        times = sum(s < b for s, b in pairs)
        means = " against ".join(f"{fmean(values):.3f}" for values in zip(*pairs, strict=True))
        ours, verdict = f"{means} s, in {times} of {RUNS} runs", SAME if times == RUNS else DIFFERS
        yield _row("smaller", ours, verdict, statement=statement, why=reason)


def _percentages() -> Iterator[Row]:
    """Percentages of section 7 from the values printed beside them."""
    for of, was, now, printed in PRINTED["percentages"]:
        yield _row("percentage", 100.0 * abs(now / was - 1.0), of=of, printed=printed)


def _lengths() -> Iterator[Row]:
    """Table 1 from the shipped lengths of the same data set."""
    shipped = Workload.from_file("sharegpt4")
    for kind, of, q, printed in PRINTED["lengths"]:
        level = "median" if q == 0.5 else "p90"
        yield _row("length", shipped.quantile(q, of=of), kind=kind, level=level, printed=printed)
    yield _row("decode deviation", shipped.std("output"))
    yield _row("prompt deviation", shipped.std("input"))


SECTIONS = (_theory, _stability, _figure7, _percentages, _lengths)
"""Statements that formulas or simulations check, and the statistics of the paper's lengths."""
