"""Plans held to a program that is not the kernel: their requests, whole, through the reference in Python under other draws.

Every case is a plan of one pool for a shipped trace at its own rate. The reference (planner/predict/reference.py) steps every
iteration of every replica; the gateway draws anew, so that what is compared is what another day of the same requests would show.

    python benchmarks/accuracy_replay.py [--draws 2] [-o docs/accuracy/replay.md]
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import numpy as np

import planner as fo
from planner.fleet.shapes import find_shape
from planner.methods.replayed import ReplayPool, weighted_quantiles
from planner.predict.records import keys_of
from planner.predict.reference import replay
from planner.predict.traffic import WHOLE
from planner.question.compiled import compile_question
from planner.question.options import PlanInputs

TRACES = ("azure", "azure-conv", "azure-code")
ENGINES: tuple[dict[str, Any], ...] = (
    {"ttft": 0.5},
    {"ttft": 0.35},
    {"ttft": 0.25, "gpu": ["b200"]},
    {"ttft": 1.0, "tpot": 0.05, "gpu": ["l40s"]},
)


def case(trace: str, options: dict[str, Any], draws: int) -> tuple[int, dict[str, tuple[float, list[float]]]]:
    """Replicas of a plan, and by metric its P99 and those of the reference under other draws of the gateway [s]."""
    from dataclasses import replace

    question = compile_question(PlanInputs.from_dict({"cdf": trace, "pools": 1, **options}), fo.load_workload(trace))
    pool = find_shape("colocated").solve(question).fleet.pools[0]
    model, n = pool.model, pool.size.replicas
    assert isinstance(model, ReplayPool)
    requests = model.traffic.requests(model.traffic.lay(pool.arrival_rate_per_s, n, model.engine.routing, most=WHOLE))
    found: dict[str, tuple[float, list[float]]] = {
        metric: (pool.size.prediction.value(metric, 0.99), []) for metric in ("ttft_s", "tpot_s")
    }
    for draw in range(draws):
        key = keys_of(np.arange(requests.size), np.zeros(requests.size, dtype=np.int64), 9000 + draw)
        run = replay(replace(requests, key=key), replace(model.engine, count=n))
        several = requests.output_tokens > 1.0
        tpot = (run.done_s - run.first_s)[several] / (requests.output_tokens[several] - 1.0)
        one = np.ones(requests.size)
        found["ttft_s"][1].append(weighted_quantiles(run.ttft_s, one, (0.99,))[0] + model.overhead_s)
        found["tpot_s"][1].append(weighted_quantiles(tpot, one[several], (0.99,))[0])
    return n, found


def main() -> None:
    """Print, or write, the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    lines, errors = [], {"ttft_s": [], "tpot_s": []}  # type: dict[str, list[float]]
    for trace in TRACES:
        for options in ENGINES:
            n, found = case(trace, options, asked.draws)
            told = ", ".join(f"{k} {v[0] if isinstance(v, list) else v}" for k, v in options.items())
            row = f"| {trace} | {told} | {n} "
            for metric, (value, others) in found.items():
                error = value / statistics.fmean(others) - 1.0
                errors[metric].append(abs(error))
                row += f"| {1e3 * value:.1f} | {' '.join(f'{1e3 * x:.1f}' for x in others)} | {error:+.1%} "
            lines.append(row + "|")
            print(lines[-1], flush=True)
    text = [
        "# Plans against another program",
        "",
        "P99 of plans of one pool at the trace's own rate [ms], and of the reference in Python under other draws of the gateway,",
        f"on the same requests (`python benchmarks/accuracy_replay.py --draws {asked.draws}`). H100 unless a GPU is named.",
        "",
        "| trace | promises [s] | replicas | TTFT | others | error | TPOT | others | error |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
        *lines,
        "",
    ]
    for metric, values in errors.items():
        ordered = sorted(values)
        ninth = ordered[min(int(0.9 * len(ordered)), len(ordered) - 1)]
        text.append(
            f"{metric.removesuffix('_s').upper()}: median error {statistics.median(ordered):.1%}, nine in ten within {ninth:.1%}, "
            f"the worst {ordered[-1]:.1%}. With one replica nothing is drawn: both programs then agree to rounding."
        )
        text.append("")
    if asked.output:
        asked.output.write_text("\n".join(text).rstrip() + "\n", encoding="utf-8")
    else:
        print("\n".join(text))


if __name__ == "__main__":
    main()
