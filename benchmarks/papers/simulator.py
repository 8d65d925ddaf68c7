"""The scheduling papers' qualitative results on the simulator, longer than tests/papers/test_papers.py runs them."""

from __future__ import annotations

import sys

import numpy as np

from planner.catalog.kv import kv_capacity
from planner.catalog.load import gpu, model
from planner.catalog.profiles import profile
from planner.fluid.wait import wait_min_thresholds
from planner.papers.compare import Setting, compared
from planner.papers.machines import KvLinear
from planner.papers.run import run_policy
from planner.papers.statistics import summarize
from planner.workload.workload import Workload
from tests.papers.test_papers import EXAMPLE_2, NONE, RAD_BOUND, STRONG, poisson, rad_run, throughput


def interference(runs: int = 4, n: int = 4000) -> None:
    """Exclusive batching beats mixed batching under strong interference, and loses without."""
    print("\nEB against mixed, backlog, 64 slots, budget 512: requests/s")
    for name, lines in (("strong interference", STRONG), ("no interference", NONE)):
        row = []
        for policy, parameters in (
            ("mixed", {"slots": 64, "token_budget": 512}),
            ("eb", {"slots": 64, "k": 8}),
            ("eb_star", {"slots": 64, "variant": "mean"}),
            ("eb_plus", {"slots": 64, "variant": "mean"}),
        ):
            e = throughput(policy, lines, parameters, runs, n)
            row.append(f"{policy} {e.value:.2f} ± {e.half_width:.2f}")
        print(f"  {name:20s} {', '.join(row)}")


def slai(n: int = 2500, runs: int = 3) -> None:
    """SLAI's median TTFT against Sarathi-Serve's at high load with 5% strict users (the paper: 1.5 s to 0.7 s, -53%)."""
    card, weights = gpu("rtx-6000-ada"), model("mistral-7b")
    settings = {"slots": 128, "token_budget": 512}
    memory = kv_capacity(weights, card, max_num_seqs=128, token_budget=512).tokens
    traffic = Workload.from_file("sharegpt4")
    lengths = (traffic.input_tokens, traffic.output_tokens, traffic.weight)
    iteration = profile(gpu=card, model=weights).iteration
    saturated = compared(
        ["sarathi"], [1e6], *lengths, iteration, Setting(**settings, kv_tokens=memory), requests=n, seeds=1
    )
    capacity = float(str(saturated.rows[0]["throughput_per_s"]))
    print(f"\nSLAI against Sarathi-Serve: Mistral-7B, RTX 6000 Ada, ShareGPT4, 5% strict; capacity {capacity:.2f}/s")
    setting = Setting(**settings, kv_tokens=memory, strict_share=0.05, tbt_s=0.5, tbt_strict_s=0.1)
    dynamic = {"memory_threshold": 0.96, "below": 5, "above": 10}
    variants = {
        "sarathi fcfs": ("sarathi", {}),
        "sarathi spf": ("sarathi", {"order": "spf"}),
        "slai fcfs, 10": ("slai", {"delta": 10}),
        "slai spf, 10": ("slai", {"order": "spf", "delta": 10}),
        "slai spf, dynamic": ("slai", {"order": "spf", "delta": dynamic}),
    }
    for load in (0.8, 0.9, 0.95):
        for name, (policy, parameters) in variants.items():
            row = compared(
                [policy],
                [load * capacity],
                *lengths,
                iteration,
                setting,
                parameters={policy: parameters},
                requests=n,
                seeds=runs,
            ).rows[0]
            print(
                f"  load {load:.2f}  {name:18s} TTFT p50 {row['ttft_p50_s']:.3f} s ± {row['ttft_p50_s_ci95']:.3f}, "
                f"TBT p99 {row['tbt_p99_s']:.3f} s, attainment {row['attainment']:.3f}, evictions/1000 "
                f"{row['evictions_per_1000']:.1f}"
            )
            sys.stdout.flush()


def wait_example(n: int = 4000) -> None:
    """Example 2: greedy first come first served loses a quarter; WAIT keeps the rate within the same memory."""
    print("\nWAIT paper, example 2: C = 12, l = 1, l' = 1, iteration 0.4 + 0.05 KV")
    for rate in (2.0, 2.8, 3.2, 3.6, 4.0):
        greedy = run_policy(poisson(n, rate, (1, 2), 1), "fcfs_restart", EXAMPLE_2, capacity=12)
        g = summarize(greedy)
        w = run_policy(poisson(n, rate, (1, 2), 1), "wait", EXAMPLE_2, {"thresholds": {0: 4}})
        s = summarize(w)
        print(
            f"  rate {rate}: greedy {g['throughput_per_s']:.3f}/s, evictions/1000 {g['evictions_per_1000']:.0f}; "
            f"WAIT {s['throughput_per_s']:.3f}/s, peak memory {w.peak_held} (bound 12)"
        )
    thresholds = wait_min_thresholds([(1, 1, "3.6")], "0.4", "0.05")
    print(f"  smallest strict threshold at 3.6/s by the closed form: {thresholds.n}")


def rad(n: int = 3000) -> None:
    """RAD keeps up below its bound and does not above."""
    print(f"\nRAD: bound {RAD_BOUND:.2f} requests/s")
    rng = np.random.default_rng(1)
    for load in (0.9, 0.97, 1.03, 1.1):
        run = rad_run(load, n, rng)
        waits = np.array([r.first_token_s - r.arrival for r in run.requests])
        early, late = waits[n // 10 : n // 5].mean(), waits[-n // 10 :].mean()
        print(
            f"  load {load}: throughput {summarize(run)['throughput_per_s']:.2f}/s, TTFT {early:.2f} s early, {late:.2f} s late"
        )


def cascades(n: int = 3000) -> None:
    """Greedy admission with restart: evictions feed on themselves as the rate grows; a slot limit stops them."""
    lines = KvLinear(0.02, 1e-5)
    print("\nEviction cascades: C = 600, prompts of 10 tokens, outputs of 41")
    for rate in (8, 10, 11, 12, 14, 18):
        out = []
        for name, policy, parameters in (
            ("greedy restart", "fcfs_restart", {}),
            ("recompute", "mixed", {}),
            ("slots 12", "mixed", {"slots": 600 // 50}),
        ):
            s = summarize(run_policy(poisson(n, rate, (10, 41), 1), policy, lines, parameters, capacity=600))
            out.append(f"{name} {s['throughput_per_s']:.1f}/s ({s['evictions_per_1000']:.0f})")
        print(f"  rate {rate}: {', '.join(out)}   (evictions/1000)")


def main() -> None:
    """All of them, a table per claim as docs/simulator.md has them; about three minutes on one core."""
    wait_example()
    rad()
    cascades()
    interference()
    slai()
