"""Bands of mixed-batching predictions: rows of planner/queueing/mixed/accuracy.py from drawn pools, and fresh ones held to them.

    python benchmarks/accuracy_bands.py --truths FILE        # fresh pools against the bands; writes docs/accuracy/bands.md
    python benchmarks/accuracy_bands.py --set --truths FILE  # prints the rows, from pools of SET and of accuracy_mixed.py
    python benchmarks/accuracy_bands.py --routing rr --seed 613 --pools 9   # any other draw, printed only

FILE keeps what was simulated, one line a pool, and is gone on from: each pool takes some seconds.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from accuracy_mixed import HOLD_OUT, LEVELS, development, hold_out, measured
from accuracy_mixed import Truths as Kept
from accuracy_routing import OTHERS, TERMS, law
from planner.queueing.mixed.accuracy import METRICS, REGIONS
from planner.queueing.mixed.replica import MixedReplica
from replayed import simulate

from planner.catalog.load import gpu, model
from planner.iteration.roofline import roofline

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy" / "bands.md"
ROUTINGS = ("random", "p2c", "jsq", "rr")
# Seeds and numbers of the pools the bands were set with, and those they are held to: nobody looked at the second before.
SET, FRESH_SEED, FRESH_POOLS = ((100, 90), (501, 30)), 901, 30
LOADS, REPLICAS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9), (2, 3, 4, 6, 8, 12, 16, 32, 64)
# Percentiles of a row, a little beyond the 5th and 95th that it stands for: few cases reach less far than many.
ENDS = (0.04, 0.96)
# A row of fewer cases is made no narrower than the named one of the same routing.
FEW_CASES, AT_LEAST = 20, "load <= 0.87"
# Requests of a pool; a replica alone, whose waits swing more slowly than a pool's, gets more: its P99 at load 0.85 is known to 3%.
REQUESTS, ALONE = 200_000, 1_000_000

Pool = tuple[str, str, int, str, int, int, float, int, float, int]
Found = tuple[str, float, bool, np.ndarray]


def draw(seed: int, routing: str, count: int) -> list[Pool]:
    """GPU, model, tensor parallelism, lengths, token budget, slots, KV tokens, replicas, load and seed of pools."""
    rng = np.random.default_rng([seed, ROUTINGS.index(routing)])
    pools = []
    for k in range(count):
        settings = HOLD_OUT if k % 2 else OTHERS
        chip, name, tp, work, _, _, kv = settings[rng.integers(len(settings))]
        budget, slots = int(rng.choice([512, 1024, 2048, 4096, 8192])), int(rng.choice([32, 64, 128, 256, 256]))
        memory = kv * float(rng.choice([0.4, 0.7, 1, 1]))
        replicas = 1 if routing == "random" else int(rng.choice(REPLICAS))
        load, start = float(rng.choice(LOADS)), int(rng.integers(1 << 30))
        pools.append((chip, name, tp, work, budget, slots, memory, replicas, load, start))
    return pools


@cache
def engine(pool: Pool) -> MixedReplica:
    chip, name, tp, work, budget, slots, kv = pool[:7]
    prior = roofline(gpu(chip), model(name), tp)
    prompts, outputs = law(work)
    return MixedReplica(
        **{k: float(getattr(prior, k)) for k in TERMS}, input_tokens=prompts, output_tokens=outputs, token_budget=budget,
        max_num_seqs=slots, kv_tokens=kv,
    )  # fmt: skip


class Truths:
    """Simulated rates and values of METRICS of pools, kept in a file."""

    def __init__(self, kept: Path | None) -> None:
        self.kept, self.known = kept, {}
        if kept is not None and kept.is_file():
            self.known = dict(json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines())

    def of(self, pool: Pool, routing: str) -> tuple[float, list[float]] | None:
        """The pool's rate [1/s] and what was simulated at it; None where its longest prompt does not fit."""
        key = json.dumps([routing, *pool])
        if key not in self.known:
            self.known[key] = self._simulated(pool, routing)
            if self.kept is not None:
                with self.kept.open("a", encoding="utf-8") as out:
                    out.write(json.dumps([key, self.known[key]]) + "\n")
        return self.known[key]

    @staticmethod
    def _simulated(pool: Pool, routing: str) -> tuple[float, list[float]] | None:
        chip, name, tp, work, budget, slots, kv, replicas, load, start = pool
        most = engine(pool).max_throughput().per_s
        if most <= 0.0:
            return None
        prior, rate = roofline(gpu(chip), model(name), tp), load * most * replicas
        requests = max(REQUESTS if replicas > 1 else ALONE, 4000 * replicas) * (2 if load > 0.82 else 1)
        requests //= 4 if work == "mooncake" else 1
        rng, (prompts, outputs) = np.random.default_rng(start), law(work)
        rows = rng.integers(prompts.size, size=requests)
        arrivals = np.cumsum(rng.exponential(1.0 / rate, requests))
        run = simulate(
            {k: float(getattr(prior, k)) for k in TERMS}, prompts[rows], outputs[rows], arrivals, budget=budget, slots=slots,
            kv_tokens=kv, replicas=replicas, routing=routing, seed=start,
        )  # fmt: skip
        found = measured(run, outputs[rows], arrivals)
        return rate, [found[m] for m in METRICS]


def held(truths: Truths, seed: int, routing: str, count: int, show: bool = False) -> list[Found]:
    """Region, load, whether it is relied on, and predicted/simulated - 1 of METRICS, of every pool of a draw that is stable."""
    found: list[Found] = []
    for pool in draw(seed, routing, count):
        truth = truths.of(pool, routing)
        if truth is None:
            continue
        at = engine(pool).predict(truth[0], pool[7], routing, LEVELS)
        if at.stable:
            errors = np.concatenate((at.ttft_s, at.tpot_s, at.e2e_s)) / np.array(truth[1]) - 1.0
            found.append((at.region, pool[8], at.reliable, errors))
            if show:
                print(*pool[:9], at.region, (100 * errors).round(1), flush=True)
    return found


def rows(cases: Sequence[Found]) -> str:
    """The rows of planner/queueing/mixed/accuracy.py: cases, ends of the band and first quartile of every metric."""
    by = defaultdict(list)
    for region, _, _, errors in cases:
        by[region].append(errors)
    bands = {name: _ends(np.array(errors)) for name, errors in by.items()}
    text = []
    for name in (n for n in REGIONS if n in by):
        band, quartile = bands[name], np.nanquantile(100 * np.array(by[name]), 0.25, axis=0).round(1)
        wider = bands.get(f"{name.split(',')[0]}, {AT_LEAST}")
        if len(by[name]) < FEW_CASES and wider is not None:
            band = np.stack((np.minimum(band[:, 0], wider[:, 0]), np.maximum(band[:, 1], wider[:, 1])), axis=1)
        pairs, quartiles = (", ".join(f"{x:g}" for x in v) for v in (band.ravel(), quartile))
        text.append(f'"{name}", {len(by[name])}, _band({pairs}), _lean({quartiles})')
    return "\n".join(text)


def _ends(errors: np.ndarray) -> np.ndarray:
    """ENDS of each metric in whole per cent, none nearer than one, shape (metrics, 2)."""
    low, high = np.nanquantile(100 * errors, ENDS, axis=0)
    return np.stack((np.floor(np.minimum(low, -1.0)), np.ceil(np.maximum(high, 1.0))), axis=1)


def coverage(looked: dict[str, list[Found]]) -> str:
    """How often the simulated value lies in the band that is shipped, and the bands' half widths."""
    lines = [
        "| routing | pools | inside | TTFT p50 | p90 | p99 | TPOT p50 | p90 | p99 | half width TTFT p99, load <= 0.7 | <= 0.87 "
        "| TPOT p99, load <= 0.7 | <= 0.87 |",
        "|---|--:|" + "--:|" * 11,
    ]
    everything = [case for cases in looked.values() for case in cases]
    for name, cases in (*looked.items(), ("all", everything)):
        bands = np.array([[REGIONS[region].band[m] for m in METRICS] for region, _, _, _ in cases])
        errors, load = np.array([e for _, _, _, e in cases]), np.array([at for _, at, _, _ in cases])
        inside = (errors >= bands[:, :, 0] - 0.005) & (errors <= bands[:, :, 1] + 0.005)
        half = (bands[:, :, 1] - bands[:, :, 0]) / 2.0
        widths = [
            f"{np.median(half[mask, m]):.0%}" if mask.any() else "-"
            for m in (2, 5)
            for mask in (load <= 0.7, (load > 0.7) & (load <= 0.87))
        ]
        shares = " | ".join(f"{x:.0%}" for x in inside[:, :6].mean(axis=0))
        lines.append(f"| {name} | {len(cases)} | {inside.mean():.0%} | {shares} | {' | '.join(widths)} |")
    return "\n".join(lines) + "\n"


def errors_of(looked: dict[str, list[Found]]) -> str:
    """Median absolute error, worst optimistic and worst pessimistic, by routing, load and whether it is relied on."""
    lines = [
        "| routing | load | pools | TTFT p50 | p90 | p99 | TPOT p50 | p90 | p99 |",
        "|---|---|--:|" + "--:|" * 6,
    ]
    for name, cases in looked.items():
        for low, high in ((0.0, 0.7), (0.7, 0.87), (0.87, 1.0)):
            for relied in (True, False):
                e = 100 * np.array([e for _, at, r, e in cases if low < at <= high and r is relied])
                if e.size:
                    cells = " | ".join(
                        f"{np.median(abs(c)):.1f} / {min(c.min(), 0):.0f} / +{max(c.max(), 0):.0f}" for c in e.T[:6]
                    )
                    band = f"{low:g} to {high:g}{'' if relied else ', flagged'}"
                    lines.append(f"| {name} | {band} | {len(e)} | {cells} |")
    return "\n".join(lines) + "\n"


HEAD = """# How well the bands hold

Made by `python benchmarks/accuracy_bands.py`: pools of 1 (random) or 2 to 64 mixed-batching replicas under Poisson arrivals at
loads of 0.3 to 0.9, of any token budget, slots and memory, long prompts and such as wait for slots or memory among them, against
exact replays (`benchmarks/replayed.py`): 200,000 requests and more, 1,000,000 of a replica alone,
twice as many beyond load 0.82 (TTFT p99 of a replica alone is then known to 2-4% at loads of 0.85 and more). None of these pools
was looked at before.

## How often the truth is inside

Share of the simulated values that lie in the band printed (to half a per cent), all metrics and quantiles, the flagged ones too;
and the median half width of the bands.

"""
MIDDLE = """
The bands are the 4th and 96th percentile of predicted/simulated - 1 of other pools drawn alike (`--set`: 120 a routing, and the 334
cases of [mixed.md](mixed.md)); where fewer than 20 cases are behind a row, it is no narrower than that of loads up to 0.87.
By hand: the lower ends of TTFT of join-shortest-queue where requests wait. The pools they stand on were simulated with the
iteration-time constants of an earlier estimate, which they were predicted with too; the pools here have today's.

## How far the predictions are off

Median absolute error / worst optimistic / worst pessimistic, in percent of the simulated value. "Flagged" are those whose plan says
that they are not to be relied on: requests that wait for slots or memory, and attention that takes much of prefill.

"""
TAIL = """
## Where it falls short

- Join-shortest-queue short of memory: waits are predicted up to twice as long as they are. Each replica has its own memory, whose
  room differs with the contexts it holds, while numbers are kept even; the closed form draws that room for itself.
- One replica of which one request in a hundred or fewer waits for memory, with contexts that vary widely: TTFT P99 stands at the
  edge of the wait and is up to two thirds too low. Requests that hold much for long take room from all others meanwhile; neither
  the variance of what requests hold, in full or as far as a queue meets it, nor the skewness of the room tells it.
- How well the truth is known: over 8,000,000 requests TTFT P99 of a replica beyond load 0.87 has a standard error of 1 to 4%, where
  slots are short and outputs vary much 9%; of the 2,000,000 here twice that.
- Join-shortest-queue with prompts and outputs of two kinds: TPOT P99 up to load 0.7 is 9 to 14% pessimistic.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--truths", type=Path, help="file of what has been simulated; grows")
    parser.add_argument("--mixed-truths", type=Path, help="with --set: the same of accuracy_mixed.py")
    parser.add_argument("--set", action="store_true", help="print the rows of planner/queueing/mixed/accuracy.py")
    parser.add_argument("--routing", choices=ROUTINGS, help="print the errors of one routing, and write nothing")
    parser.add_argument("--seed", type=int, default=FRESH_SEED)
    parser.add_argument("--pools", type=int, default=FRESH_POOLS, help="of every routing")
    options = parser.parse_args()
    truths = Truths(options.truths)
    if options.set:
        cases = [case for routing in ROUTINGS for drawn in SET for case in held(truths, drawn[0], routing, drawn[1])]
        for c in development() + hold_out(400_000, Kept(options.mixed_truths))[0]:
            errors = np.array([c["error"].get(m, np.nan) for m in METRICS])
            cases.append((c["out"].region, c["load"], c["out"].reliable, errors))
        print(rows(cases))
        return
    chosen = (options.routing,) if options.routing else ROUTINGS
    looked = {routing: held(truths, options.seed, routing, options.pools, show=True) for routing in chosen}
    if options.routing:
        print(coverage(looked), errors_of(looked), sep="\n")
    else:
        PAGE.write_text(HEAD + coverage(looked) + MIDDLE + errors_of(looked) + TAIL, encoding="utf-8")


if __name__ == "__main__":
    main()
