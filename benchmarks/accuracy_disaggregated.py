"""Disaggregated fleets: predictions against the policy engine, a case per row; writes docs/accuracy/disaggregated.md.

Run by hand: ``python benchmarks/accuracy_disaggregated.py`` (about three minutes).
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.fleet.shapes.disaggregated import Disaggregated, pool_options
from planner.predict.durations import Canonical
from planner.predict.engine import Node, Request
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs
from planner.simulate.policies.distserve import DecodeNode, PrefillNode
from planner.workload.workload import Workload

LEVELS = (0.5, 0.9, 0.99)
SEEDS, REQUESTS = 5, 5000

# workload, options, load of the prefill pool, prefill replicas, slots (0 = memory-safe), wanted load of the decode pool
CASES = [
    ("azure", {}, 0.3, 1, 0, 0.3),
    ("azure", {}, 0.5, 2, 0, 0.5),
    ("azure", {}, 0.7, 2, 24, 0.6),
    ("azure", {}, 0.7, 3, 32, 0.8),
    ("azure", {}, 0.6, 3, 32, 0.9),
    ("azure", {"kv_transfer_gbps": 5.0}, 0.6, 2, 0, 0.5),
    ("azure-code", {}, 0.6, 2, 0, 0.5),
    ("azure-code", {"kv_transfer_gbps": 10.0}, 0.5, 2, 8, 0.6),
    ("azure-conv", {"gpu": "a100"}, 0.6, 2, 48, 0.8),
    ("azure-conv", {"gpu": "h200"}, 0.6, 2, 64, 0.85),
    ("azure-conv", {"model": "llama-3.1-70b", "tp": 4}, 0.6, 2, 48, 0.7),
    ("sharegpt4", {}, 0.5, 1, 64, 0.7),
    ("sharegpt4", {"gpu": "l40s"}, 0.5, 1, 32, 0.85),
]


def rounded(name: str) -> Workload:
    """The shipped rows with whole lengths, as a simulator needs them."""
    w = Workload.from_file(name)
    return Workload.from_arrays(
        np.maximum(np.round(w.input_tokens), 1.0),
        np.maximum(np.round(w.output_tokens), 1.0),
        weight=w.weight,
        name=name,
    )


def run(nodes: list[Node], chosen: list[Node], requests: list[Request], times: list[float]) -> None:
    for node, request, time in zip(chosen, requests, times, strict=True):
        node.run_until(time)
        node.enqueue(request, time)
    for node in nodes:
        node.run_until(math.inf)


def simulate(model: Disaggregated, w: Workload, rate: float, prefills: int, decodes: int, seed: int) -> list[float]:
    """Quantiles of TTFT, TPOT and E2E."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(w.weight), size=REQUESTS, p=w.weight)
    arrivals = np.cumsum(rng.exponential(1.0 / rate, REQUESTS))
    requests = [
        Request(k, float(arrivals[k]), int(w.input_tokens[row]), int(w.output_tokens[row]))
        for k, row in enumerate(rows)
    ]
    iteration = Canonical(model.prefill_option.profile.iteration)
    first = [Node(PrefillNode(), iteration, math.inf, None) for _ in range(prefills)]
    run(first, [first[k] for k in rng.integers(0, prefills, REQUESTS)], requests, [r.arrival for r in requests])
    moving = [r for r in requests if r.output_tokens > 1]
    for r in moving:
        r.node_arrival = r.first_token_s + float(model.transfer_s(r.input_tokens))
        r.resident, r.held = False, 0
    moving.sort(key=lambda r: (r.node_arrival, r.index))
    kv_tokens = float(model.decode_option.kv_tokens(model.slots.count))
    second = [Node(DecodeNode(model.slots.count), iteration, kv_tokens, None) for _ in range(decodes)]
    run(second, [second[k] for k in rng.integers(0, decodes, len(moving))], moving, [r.node_arrival for r in moving])
    measured = [r for r in requests if 0.15 * REQUESTS <= r.index < 0.9 * REQUESTS]
    ttft = [r.first_token_s - r.arrival for r in measured]
    e2e = [r.done_s - r.arrival for r in measured]
    tpot = [(r.done_s - r.first_token_s) / (r.output_tokens - 1) for r in measured if r.output_tokens > 1]
    return [float(q) for values in (ttft, tpot, e2e) for q in np.quantile(values, LEVELS)]


def main() -> None:
    lines, errors, excess = [], [], []
    for case, (name, options, prefill_load, prefills, slots, decode_load) in enumerate(CASES):
        w = rounded(name)
        inputs = PlanInputs.from_dict({"slo": 1.0, "shape": "disaggregated", "burst": "poisson", **options})
        if slots:
            inputs = replace(inputs, max_num_seqs=slots)
        question = compile_question(inputs, w)
        option = pool_options(question)[0]
        model = Disaggregated(question, option, option)
        assert model.decode is not None
        rate = prefill_load * prefills * model.prefill.capacity_per_s
        wanted = rate * model.decode_share / (decode_load * model.decode.capacity_per_s)
        decodes = max(1, math.ceil(wanted))
        if wanted < 0.9:
            # one decode node is more than enough: fewer slots bring it to the load wanted
            while model.slots.count > 1 and rate * model.decode_share / model.decode.capacity_per_s < decode_load:
                fewer = replace(option, max_num_seqs=max(1, int(0.9 * model.slots.count)))
                model = Disaggregated(question, fewer, fewer)
                assert model.decode is not None
        first, second = model.pair(rate, prefills, decodes, LEVELS)
        assert second is not None
        value = np.array([*first.ttft_s, *second.tpot_s, *second.e2e_s])
        runs = np.array(
            [simulate(model, w, rate, prefills, decodes, seed) for seed in range(100 * case, 100 * case + SEEDS)]
        )
        mean, error = runs.mean(axis=0), runs.std(axis=0, ddof=1) / math.sqrt(SEEDS)
        relative = value / mean - 1.0
        errors.append(relative)
        excess.append(np.maximum(np.abs(relative) - 4.0 * error / mean, 0.0))
        setting = " ".join([name, *(f"{k}={v}" for k, v in options.items())])
        cells = " | ".join(f"{100 * e:+.1f} ± {100 * s / m:.1f}" for e, s, m in zip(relative, error, mean, strict=True))
        lines.append(
            f"| {setting} | {first.load:.2f} | {second.load:.2f} | {second.mean_running:.0f}/{model.slots.count} | "
            f"{second.wait_probability:.2g} | {cells} |"
        )
        print(lines[-1], flush=True)
    table = np.abs(np.array(errors))
    over = np.array(excess)
    summary = [
        f"| {metric} | {100 * np.median(table[:, k : k + 3]):.1f}% | {100 * np.quantile(table[:, k : k + 3], 0.9):.1f}% | "
        f"{100 * table[:, k : k + 3].max():.1f}% | {100 * over[:, k : k + 3].max():.1f}% |"
        for k, metric in ((0, "TTFT"), (3, "TPOT"), (6, "E2E"))
    ]
    print("\n".join(summary))
    text = f"""# Disaggregated fleets against simulation

`benchmarks/accuracy_disaggregated.py`: {len(CASES)} settings, {SEEDS} runs of {REQUESTS:,} requests each on the policy engine
(`planner/simulate`, prefill and decode nodes, requests split at random, Poisson arrivals, the middle 75% measured).
Errors are prediction over simulation minus one at P50, P90 and P99, in percent, with the simulation's standard error.

| metric | median | P90 | largest | largest beyond four standard errors |
|---|---|---|---|---|
{chr(10).join(summary)}

| setting | prefill load | decode load | running/slots | P(no slot) | TTFT 50 | 90 | 99 | TPOT 50 | 90 | 99 | E2E 50 | 90 | 99 |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
{chr(10).join(lines)}

TTFT is the exact law of an M/G/1 queue per prefill replica; what is left of its error is the simulation's own noise.
Bursts (a trace's dispersion of counts) scale the wait and spread the occupancy; these settings are Poisson.
"""
    Path(__file__).parent.parent.joinpath("docs/accuracy/disaggregated.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
