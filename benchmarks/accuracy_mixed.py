"""Accuracy and speed of mixed batching: predictions beside simulations, by region.

    python benchmarks/accuracy_mixed.py                    # about ten minutes; writes docs/accuracy/mixed.md
    python benchmarks/accuracy_mixed.py --requests 20000   # a quick look, noisier
    python benchmarks/accuracy_mixed.py --truths FILE      # keeps what was simulated in FILE, and goes on from there

Two sets: `development`, the simulated cases of ../shared/data/mixed/truth.json (set FLEETOPT_SHARED_DATA if the data is
elsewhere), and `hold-out`, other GPUs, workloads and budgets replayed here by `replayed.py`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from planner.queueing.mixed.accuracy import REGIONS
from planner.queueing.mixed.replica import MixedReplica
from replayed import simulate

from planner.catalog.load import gpu, model
from planner.iteration.roofline import roofline

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("FLEETOPT_SHARED_DATA") or ROOT.parent / "shared" / "data")
LEVELS = (0.5, 0.9, 0.99)
# Requests of a run at saturation.
SATURATED = 300_000
# GPU, model, tensor parallelism, workload, token budget, slots, KV tokens
HOLD_OUT = (
    ("l40s", "llama-3.1-8b", 1, "sharegpt4", 1024, 128, 160_000),
    ("l40s", "llama-3.1-8b", 1, "azure_mix", 4096, 256, 160_000),
    ("l40s", "llama-3.1-8b", 1, "azure_conv", 1024, 256, 60_000),
    ("l40s", "llama-3.1-8b", 1, "sharegpt4", 4096, 64, 160_000),
    ("rtx-pro-6000", "qwen2.5-14b", 1, "azure_mix", 1024, 256, 280_000),
    ("rtx-pro-6000", "qwen2.5-14b", 1, "azure_code", 4096, 256, 280_000),
    ("rtx-pro-6000", "qwen2.5-14b", 1, "sharegpt4", 4096, 256, 100_000),
    ("h200", "llama-3.1-70b", 4, "azure_code", 1024, 256, 1_200_000),
    ("h200", "llama-3.1-70b", 4, "azure_conv", 4096, 256, 1_200_000),
    ("h200", "llama-3.1-70b", 4, "mooncake", 8192, 64, 1_200_000),
    ("a100", "llama-3.1-8b", 1, "azure_mix", 2048, 64, 400_000),
    ("a100", "llama-3.1-8b", 1, "aibrix", 2048, 256, 400_000),
    ("a100", "llama-3.1-8b", 1, "azure_conv", 512, 32, 400_000),
    ("b200", "llama-3.1-8b", 1, "sharegpt4", 8192, 256, 1_000_000),
    ("b200", "llama-3.1-8b", 1, "azure_code", 2048, 256, 1_000_000),
    ("b200", "llama-3.1-8b", 1, "azure_mix", 512, 128, 1_000_000),
)
RUNS = (
    (1, "random", (0.3, 0.5, 0.7, 0.8, 0.85, 0.92)),
    (4, "jsq", (0.5, 0.8)),
    (16, "jsq", (0.6, 0.85, 0.92)),
    (4, "rr", (0.5, 0.8)),
    (16, "rr", (0.85,)),
)
FILES = {
    "azure_conv": "azure_conv_2023.csv",
    "azure_code": "azure_code_2023.csv",
    "sharegpt4": "sharegpt4_8k_lengths.csv",
    "aibrix": "aibrix_8min_lengths.csv",
}


@cache
def lengths(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Input and output tokens of a raw trace; rows with a zero dropped."""
    raw = SHARED / "workloads" / "raw"
    if name == "azure_mix":
        both = [lengths("azure_conv"), lengths("azure_code")]
        return np.concatenate([b[0] for b in both]), np.concatenate([b[1] for b in both])
    if name == "mooncake":
        lines = (raw / "mooncake_synthetic.jsonl").read_text().splitlines()
        rows = [(r["input_length"], r["output_length"]) for r in map(json.loads, lines)]
    else:
        with (raw / FILES[name]).open(newline="") as file:
            table = list(csv.DictReader(file))
        i, o = (
            ("ContextTokens", "GeneratedTokens") if "ContextTokens" in table[0] else ("input_tokens", "output_tokens")
        )
        rows = [(float(r[i]), float(r[o])) for r in table]
    a = np.array([r for r in rows if min(r) > 0], dtype=float)
    return a[:, 0], a[:, 1]


@cache
def engine(params: tuple, name: str, budget: float, slots: float, kv: float) -> MixedReplica:
    prompts, outputs = lengths(name)
    return MixedReplica(
        **dict(params),
        input_tokens=prompts,
        output_tokens=outputs,
        token_budget=budget,
        max_num_seqs=slots,
        kv_tokens=kv,
    )


def sample(name: str, count: int, rate: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    prompts, outputs = lengths(name)
    rows = rng.integers(len(prompts), size=count)
    arrivals = np.cumsum(rng.exponential(1 / rate, count)) if np.isfinite(rate) else np.arange(count) * 1e-12
    return prompts[rows], outputs[rows], arrivals


def measured(run: dict, outputs: np.ndarray, arrivals: np.ndarray) -> dict[str, float]:
    """The simulated values of METRICS, the first tenth and the last fiftieth left out."""
    inside = slice(len(arrivals) // 10, len(arrivals) - len(arrivals) // 50)
    ttft, e2e, steps = run["ttft_s"][inside], (run["end_s"] - arrivals)[inside], outputs[inside] - 1
    out = {}
    for name, values in (("ttft", ttft), ("tpot", ((e2e - ttft) / np.maximum(steps, 1))[steps > 0]), ("e2e", e2e)):
        for level in LEVELS:
            out[f"{name}_p{round(100 * level)}"] = float(np.quantile(values, level))
    out["decodes"] = float(run["decodes"])
    return out


def predicted(out) -> dict[str, float]:
    values = {"decodes": out.running_mean}
    for name, row in (("ttft", out.ttft_s), ("tpot", out.tpot_s), ("e2e", out.e2e_s)):
        for level, value in zip(LEVELS, row, strict=True):
            values[f"{name}_p{round(100 * level)}"] = float(value)
    return values


def development() -> list[dict]:
    cases = []
    for c in json.loads((SHARED / "mixed" / "truth.json").read_text())["latency"]:
        name = c["workload"]["raw_files"].removesuffix("_2023.csv")
        r = engine(tuple(c["params"].items()), name, c["token_budget"], c["max_num_seqs"], c["kv_tokens"])
        out = r.predict(c["rate_total_per_s"], c["replicas"], c["routing"])
        truth = {"decodes": c["sim"]["mean_decodes"]}
        for metric in ("ttft", "tpot"):
            for key, level in ((".5", 50), (".9", 90), (".99", 99)):
                truth[f"{metric}_p{level}"] = c["sim"][f"{metric}_s"][key]["v"]
        cases.append(
            {
                "set": "development",
                "what": f"{c['gpu']} {name} B{c['token_budget']} S{c['max_num_seqs']} {c['routing']} {c['replicas']}",
                "load": c["load_of_saturated_throughput"],
                "routing": c["routing"],
                "out": out,
                "error": {k: predicted(out)[k] / v - 1 for k, v in truth.items()},
            }
        )
    return cases


class Truths:
    """What has been simulated, kept in a file if there is one."""

    def __init__(self, kept: Path | None) -> None:
        self.kept, self.known = kept, {}
        if kept is not None and kept.is_file():
            self.known = dict(json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines())

    def __call__(self, key: str, work: Callable[[], dict[str, float]]) -> dict[str, float]:
        if key not in self.known:
            self.known[key] = work()
            if self.kept is not None:
                with self.kept.open("a", encoding="utf-8") as out:
                    out.write(json.dumps([key, self.known[key]]) + "\n")
        return self.known[key]


def bound_by_memory(truth: Truths) -> list[str]:
    """Errors of the maximum throughput of engines drawn at random, memory made short."""
    from accuracy_routing import OTHERS, law

    lines = ["| engines | within 1.5% | median | lowest | highest |", "|---|--:|--:|--:|--:|"]
    for seeds, told in (((78, 79), "seen before"), ((90, 91), "new")):
        errors = []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            for k in range(36):
                settings = [s for s in (*HOLD_OUT, *OTHERS) if s[3] != "mooncake"]
                chip, name, tp, work, _, _, kv = settings[rng.integers(len(settings))]
                budget, slots = int(rng.choice([512, 1024, 2048, 4096, 8192])), int(rng.choice([64, 128, 256, 512]))
                prompts, outputs = law(work)
                kv = max(kv * float(rng.choice([0.15, 0.3, 0.5, 0.8])), 1.3 * float((prompts + outputs).max()))
                prior = roofline(gpu(chip), model(name), tp)
                params = {t: float(getattr(prior, t)) for t in ("t0", "w", "b", "c", "h", "g", "a")}
                sizes = {"token_budget": budget, "max_num_seqs": slots, "kv_tokens": kv}
                limit = MixedReplica(**params, input_tokens=prompts, output_tokens=outputs, **sizes).max_throughput()
                if limit.binding != "kv":
                    continue

                def saturated(
                    params: dict = params, prompts: np.ndarray = prompts, outputs: np.ndarray = outputs, kv: float = kv,
                    budget: int = budget, slots: int = slots, seed: int = seed, k: int = k,
                ) -> dict[str, float]:  # fmt: skip
                    rates, count = [], 100_000
                    for run in range(3):
                        rows = np.random.default_rng([seed, k, run]).integers(len(prompts), size=count)
                        ends = simulate(
                            params, prompts[rows], outputs[rows], np.arange(count) * 1e-12, budget=budget, slots=slots,
                            kv_tokens=kv,
                        )["end_s"]  # fmt: skip
                        low, high = np.sort(ends)[[count // 10, 9 * count // 10]]
                        rates.append(0.8 * count / (high - low))
                    return {"per_s": float(np.mean(rates))}

                errors.append(limit.per_s / truth(f"memory {seed} {k}", saturated)["per_s"] - 1)
        e = np.array(errors)
        within = f"{np.count_nonzero(abs(e) <= 0.015)} of {e.size}"
        lines.append(f"| {told} | {within} | {np.median(abs(e)):.1%} | {e.min():+.1%} | {e.max():+.1%} |")
    return lines


def hold_out(requests: int, truth: Truths) -> tuple[list[dict], list[tuple[str, str, float]]]:
    """Cases of HOLD_OUT and RUNS, and the errors of maximum throughput."""
    cases, throughputs = [], []
    for n, (chip, name, tp, work, budget, slots, kv) in enumerate(HOLD_OUT):
        prior = roofline(gpu(chip), model(name), tp)
        params = {k: float(getattr(prior, k)) for k in ("t0", "w", "b", "c", "h", "g", "a")}
        settings = {"budget": budget, "slots": slots, "kv_tokens": kv}
        r = engine(tuple(params.items()), work, budget, slots, kv)
        count = requests if work != "mooncake" else 3 * requests // 8

        def saturated(params: dict = params, work: str = work, settings: dict = settings) -> dict[str, float]:
            ends = np.sort(simulate(params, *sample(work, SATURATED, np.inf, 5), **settings)["end_s"])
            low, high = SATURATED // 10, 9 * SATURATED // 10
            return {"per_s": float((high - low) / (ends[high] - ends[low]))}

        x = truth(f"{requests} {n}", saturated)["per_s"]
        limit = r.max_throughput()
        throughputs.append((f"{chip} {work} B{budget} S{slots} KV{kv}", limit.binding, limit.per_s / x - 1))
        for g, routing, loads in RUNS:
            for load in loads:

                def pool(
                    params: dict = params, work: str = work, settings: dict = settings, g: int = g, load: float = load,
                    rate: float = load * x * g, count: int = count, routing: str = routing,
                ) -> dict[str, float]:  # fmt: skip
                    found = []
                    for seed in range(1000, 1000 + (1 if g > 1 else 4 if load < 0.8 else 8)):
                        drawn = sample(work, count // 4 if g > 1 else count, rate, seed)
                        run = simulate(params, *drawn, replicas=g, routing=routing, seed=seed, **settings)
                        found.append(measured(run, drawn[1], drawn[2]))
                    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}

                found = truth(f"{requests} {n} {routing} {g} {load}", pool)
                out = r.predict(load * x * g, g, routing)
                if not out.stable:
                    continue
                cases.append(
                    {
                        "set": "hold-out",
                        "what": f"{chip} {work} B{budget} S{slots} {routing} {g}",
                        "load": load,
                        "routing": routing,
                        "out": out,
                        "error": {k: predicted(out)[k] / v - 1 for k, v in found.items()},
                    }
                )
        print(f"  {chip} {work} B{budget}: X {limit.per_s / x - 1:+.1%} ({limit.binding})", flush=True)
    return cases, throughputs


COLUMNS = ("decodes", "ttft_p50", "ttft_p90", "ttft_p99", "tpot_p50", "tpot_p90", "tpot_p99", "e2e_p99")


def row(name: str, cases: list[dict]) -> str:
    cells = [name, str(len(cases))]
    for column in COLUMNS:
        e = np.array([c["error"][column] for c in cases if column in c["error"]]) * 100
        if not e.size:
            cells.append("-")
            continue
        a = abs(e)
        cells.append(f"{np.median(a):.1f} / {np.quantile(a, 0.9):.1f} / {e.min():+.0f} / {e.max():+.0f}")
    return "| " + " | ".join(cells) + " |"


def table(groups: list[tuple[str, list[dict]]]) -> list[str]:
    head = "| cases | n | decodes | TTFT p50 | p90 | p99 | TPOT p50 | p90 | p99 | E2E p99 |"
    return [head, "|" + "---|" * 10, *(row(name, cases) for name, cases in groups if cases)]


# Most a median may be off, in percent, up to a load: TTFT p99, and TPOT p99 at every load.
TTFT_BARS, TPOT_BAR, TURN_BAR = ((0.7, 3.0), (0.87, 5.0), (1.0, 12.0)), 3.0, 10.0


def bars(cases: list[dict], throughputs: list[tuple[str, str, float]]) -> list[str]:
    """Medians beside what they may be, of both sets, flagged predictions too."""
    lines = [
        "| routing | load | cases | TTFT p99 | may be | TPOT p99 | may be | |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for routing in ("random", "jsq", "rr"):
        low = 0.0
        for high, bar in TTFT_BARS:
            inside = [c["error"] for c in cases if c["routing"] == routing and low < c["load"] <= high]
            below, low = low, high
            if not inside:
                continue
            ttft, tpot = (100 * float(np.median([abs(e[m]) for e in inside])) for m in ("ttft_p99", "tpot_p99"))
            most = (TURN_BAR, TURN_BAR) if routing == "rr" else (bar, TPOT_BAR)
            missed = " and ".join(
                n for n, v, b in (("TTFT", ttft, most[0]), ("TPOT", tpot, most[1])) if round(v, 1) > b
            )
            lines.append(
                f"| {routing} | {below:g} to {high:g} | {len(inside)} | {ttft:.1f} | {most[0]:g} | {tpot:.1f} | {most[1]:g} "
                f"| {missed and 'missed: ' + missed} |"
            )
    of_memory = [error for _, binding, error in throughputs if binding == "kv"]
    within = [sum(abs(e) <= 0.015 for e in part) for part in ([e for _, _, e in throughputs], of_memory)]
    found = f"{within[0]} of {len(throughputs)}, of those bound by memory {within[1]} of {len(of_memory)}"
    return [*lines, "", f"Maximum throughput within 1.5%: {found}."]


def speed() -> list[str]:
    prompts, outputs = lengths("azure_conv")
    params = {"t0": 0.0019, "w": 0.0051, "b": 23.5e-6, "c": 4.7e-6, "h": 1e-6, "g": 5e-8, "a": 7e-10}

    def build() -> MixedReplica:
        return MixedReplica(
            **params, input_tokens=prompts, output_tokens=outputs, token_budget=2048, max_num_seqs=256, kv_tokens=4e5
        )

    def best(action, repeats: int = 9) -> float:
        times = []
        for _ in range(repeats):
            start = time.process_time()
            action()
            times.append(time.process_time() - start)
        return 1e3 * float(np.median(times))

    r = build()
    r.predict(5.0)
    lines = [f"| build from {len(prompts):,} rows | {best(build):.1f} |"]

    def fresh() -> None:
        build().max_throughput()

    lines.append(f"| build and maximum throughput | {best(fresh):.1f} |")
    lines += [
        f"| prediction, {routing} x {g} | {best(lambda g=g, routing=routing: r.predict(12.0 * g, g, routing)):.1f} |"
        for routing, g in (("random", 1), ("jsq", 16), ("rr", 4))
    ]
    return ["| what | ms of CPU |", "|---|---|", *lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400_000, help="requests of a simulation")
    parser.add_argument("--truths", type=Path, help="file of what has been simulated, one line a run; grows")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "accuracy" / "mixed.md")
    options = parser.parse_args()
    dev = development()
    truths = Truths(options.truths)
    held, throughputs = hold_out(options.requests, truths)
    text = ["# Accuracy of mixed batching", "", "Written by `benchmarks/accuracy_mixed.py`; do not edit.", ""]
    text += [
        "Errors are predicted/simulated - 1 in percent: median and 90th percentile of the absolute error / worst",
        "optimistic / worst pessimistic. `decodes` is the mean number of sequences in decode. Development: 110 simulated",
        "cases the constants were set with (H100 8B, A100x8 70B; Azure conversation and code). Hold-out: "
        f"{len(held)} cases on other GPUs,",
        f"workloads and budgets, {options.requests:,} requests (a quarter for pools, fewer for Mooncake), of one replica four, "
        "eight runs from load 0.8, by",
        "`benchmarks/replayed.py`. Load is the share of the simulated saturated throughput. Simulation noise of",
        "TTFT p99 of one replica is below 1% up to load 0.7, 1-2% to 0.85 and 3% at 0.92 (5-10% where requests wait for memory).",
        "Truth and prediction have the iteration times of the estimate of the day a case was simulated.",
        "",
    ]
    for name, cases in (("Hold-out", held), ("Development", dev)):
        text += [f"## {name}", ""]
        random = [c for c in cases if c["routing"] == "random"]
        text += table(
            [
                ("random, load <= 0.7", [c for c in random if c["load"] <= 0.7]),
                ("random, load <= 0.85", [c for c in random if c["load"] <= 0.85]),
                ("random, all (<= 0.92)", random),
                ("join shortest queue", [c for c in cases if c["routing"] == "jsq"]),
                ("round robin", [c for c in cases if c["routing"] == "rr"]),
            ]
        )
        text.append("")
    text += ["## Bars", "", *bars(dev + held, throughputs), ""]
    text += ["## By region (both sets)", "", "The regions of `planner/queueing/mixed/accuracy.py`.", ""]
    groups = defaultdict(list)
    for c in dev + held:
        groups[c["out"].region].append(c)
    text += table([(name, groups[name]) for name in REGIONS if name in groups])
    text += ["", "## Maximum throughput (hold-out)", "", "| engine | bound by | error |", "|---|---|---|"]
    text += [f"| {what} | {binding} | {error:+.1%} |" for what, binding, error in throughputs]
    text += ["", "Engines of these and of `accuracy_routing.py`, memory cut to as little as 15%, that it binds:", ""]
    text += bound_by_memory(truths)
    text += ["", "## Worst optimistic TTFT p99", "", "| case | load | region | error |", "|---|---|---|---|"]
    worst = sorted(dev + held, key=lambda c: c["error"]["ttft_p99"])[:12]
    text += [f"| {c['what']} | {c['load']} | {c['out'].region} | {c['error']['ttft_p99']:+.0%} |" for c in worst]
    text += ["", "## Speed", "", *speed(), ""]
    text += [
        "## What is not covered",
        "",
        "KV blocks (memory is counted in tokens), speculative decoding, priorities, preemption with prefix-cache reuse,",
        "overlap of scheduling and execution, and the e term. Constants that were fitted: share of arrivals join-shortest-queue",
        "sends after a departure (0.33, development set). Everything else is derived.",
        "",
    ]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join(text))
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
