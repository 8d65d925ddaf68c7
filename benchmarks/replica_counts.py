"""Replicas planned along the path against those found by replaying the raw traces through the simulator.

Run by hand, in pieces: ``python benchmarks/replica_counts.py RAW_FOLDER RESULTS.json [SEED [FIRST [LAST]]]`` replays with a seed
the questions from FIRST to LAST whose replays the file does not hold yet; without a seed nothing is replayed. Then the table of
docs/accuracy/bursts.md is written from all of it. A replay is one pass of the whole trace with its own lengths, copies shifted
by a seed of its own: a part of the hour has another P99, several hours laid one after another too. A question keeps the
iteration times of its first replay, whatever the estimate becomes.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from bursts import KV_TOKENS, SLOTS, Law, traces
from planner.simulate.replay import ReplayedTraffic

from planner.catalog import gpu, model, profile
from planner.fleet.pool import Shortfall, smallest_pool
from planner.iteration.model import IterationModel
from planner.methods.mixed import PATH_TTFT_MARGIN, MixedPool
from planner.promise import Promise
from planner.question.compiled import Promises
from planner.simulate.pool import simulate
from planner.simulate.presets import PoolEngines

BUDGET, CAP, MARGINS = 2048, 0.85, (1.0, PATH_TTFT_MARGIN, 1.1)
QUESTIONS = [
    # prompts alone take longer than half a second on an L40S
    (name, gpu_name, routing, copies, limit_s if gpu_name == "h100" else max(limit_s, 1.0))
    for copies, limit_s in ((1, 0.5), (2, 1.0), (4, 0.5), (6, 2.0), (10, 1.0))
    for name in ("both", "conversation", "code")
    for gpu_name in ("h100", "l40s")
    for routing in ("random", "jsq")
]
PAGE, START, END = Path("docs/accuracy/bursts.md"), "<!-- counts -->\n", "<!-- end of counts -->"


class Question:
    """One question: its pool, the replicas planned for it and those that a replay needs."""

    def __init__(
        self, law: Law, case: dict[str, Any], gpu_name: str, routing: str, copies: int, limit_s: float
    ) -> None:
        case.setdefault("iteration", profile(gpu=gpu(gpu_name), model=model("llama-3.1-8b")).iteration.to_dict())
        self.law, self.case, self.routing, self.copies, self.limit_s = law, case, routing, copies, limit_s
        self.iteration = IterationModel(**case["iteration"])
        self.pool: MixedPool = law.pool(gpu_name, BUDGET, routing, self.iteration)
        self.rate = copies * law.recorded.rate_per_s

    def planned(self) -> list[int] | None:
        """Fewest replicas whose P99 TTFT times each margin is within the limit; ``None`` where no number is."""
        size = smallest_pool(self.pool, self.rate, Promises((Promise("ttft_s", self.limit_s, 0.99),)))
        if isinstance(size, Shortfall):
            return None
        found = []
        for margin in MARGINS:
            n = size.replicas
            while not self.keeps(n, margin):
                n += 1
            while n > 1 and self.keeps(n - 1, margin):
                n -= 1
            found.append(n)
        return found

    def keeps(self, replicas: int, margin: float) -> bool:
        """Whether the prediction says that so many keep the promise."""
        within = replicas * self.pool.capacity_per_s * CAP > self.rate
        return within and self.pool.predict(self.rate, replicas, (0.99,)).ttft_s[0] * margin <= self.limit_s

    def replay(self, seed: str) -> None:
        """Replay with a seed around the number that keeps the promise there."""
        seen = self.case.setdefault("replayed", {}).setdefault(seed, {})

        def keeps(replicas: int) -> bool:
            if not replicas * self.pool.capacity_per_s * CAP > self.rate:
                return False
            if str(replicas) not in seen:
                r = self.law.recorded
                traffic = ReplayedTraffic(
                    r.times_s,
                    r.input_tokens,
                    r.output_tokens,
                    float(r.times_s[-1]),
                    float(self.copies),
                    requests=self.copies * r.requests,
                )
                engines = PoolEngines(replicas, self.iteration, SLOTS, BUDGET, KV_TOKENS, self.routing)
                run = simulate(traffic, engines, seeds=(int(seed),), quantiles=(0.99,))
                seen[str(replicas)] = run.quantile("ttft_s", 0.99).value
            return bool(seen[str(replicas)] <= self.limit_s)

        planned = self.planned()
        if planned is None:
            return
        others = [n for s in self.case["replayed"] if (n := self.needed(s)) is not None]
        n = round(float(np.median(others))) if others else planned[1]
        while not keeps(n):
            n += 1
        while n > 1 and keeps(n - 1):
            n -= 1

    def needed(self, seed: str) -> int | None:
        """The number found by its replays; ``None`` where there are none."""
        kept = [int(n) for n, p99 in self.case.get("replayed", {}).get(seed, {}).items() if p99 <= self.limit_s]
        return min(kept, default=None)


def told(rows: list[tuple[list[int] | None, dict[str, int]]]) -> str:
    """The counts in words: planned against the median of what the seeds need, and against the span of it."""
    known = [(planned, sorted(needed.values())) for planned, needed in rows if planned is not None and needed]
    lines = [
        f"{len(rows)} questions (three traces, two GPU types, two routings, 1 to 10 copies, P99 TTFT of 0.5 to 2 s), of which "
        f"{sum(planned is None for planned, _ in rows)} cannot be kept at any size; each replayed with up to "
        f"{max(len(needed) for _, needed in known)} seeds. Replicas planned less the median of those that the replays need, by the "
        "margin on the prediction:",
        "",
        "| margin | less and more, with how often | equal to the median | inside the span of the seeds | short of all seeds |",
        "|---|---|---|---|---|",
    ]
    for k, margin in enumerate(MARGINS):
        off = Counter(planned[k] - math.ceil(np.median(needed)) for planned, needed in known)
        inside = sum(needed[0] <= planned[k] <= needed[-1] for planned, needed in known)
        short = sum(planned[k] < needed[0] for planned, needed in known)
        counted = ", ".join(f"{d:+d}: {off[d]}" for d in sorted(off))
        lines.append(
            f"| {margin:g}{' (the plan)' if k == 1 else ''} | {counted} | {off[0] / len(known):.0%} "
            f"| {inside / len(known):.0%} | {short / len(known):.0%} |"
        )
    # the count that one seed needs, held against the median of all others: no prediction can do better
    luck = [
        needed[k] == math.ceil(np.median(needed[:k] + needed[k + 1 :]))
        for _, needed in known
        if len(needed) > 2
        for k in range(len(needed))
    ]
    differ = sum(needed[0] != needed[-1] for _, needed in known)
    lines += [
        "",
        f"In {differ} of {len(known)} questions the seeds need different numbers; one seed's number equals the median of the "
        f"other seeds' in {np.mean(luck):.0%}.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Replay what is asked for, write the table of what is known."""
    raw, results = Path(sys.argv[1]), Path(sys.argv[2])
    seed = sys.argv[3] if len(sys.argv) > 3 else None
    first, last = (int(x) for x in (*sys.argv[4:6], "0", str(len(QUESTIONS)))[:2]) if len(sys.argv) > 5 else (0, 60)
    known: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    laws = {name: Law(w) for name, w in traces(raw).items()}
    rows = []
    for number, (name, *rest) in enumerate(QUESTIONS):
        key = " ".join(str(x) for x in (name, *rest))
        question = Question(laws[name], known.setdefault(key, {}), *rest)  # type: ignore[arg-type]
        if seed is not None and first <= number < last and question.needed(seed) is None:
            question.replay(seed)
            results.write_text(json.dumps(known, indent=1))
        needed = {s: n for s in question.case.get("replayed", {}) if (n := question.needed(s)) is not None}
        rows.append((question.planned(), needed))
        print(key, *rows[-1], flush=True)
    text = told(rows)
    print(text)
    page = PAGE.read_text(encoding="utf-8")
    held = re.compile(re.escape(START) + ".*?" + re.escape(END), re.DOTALL)
    PAGE.write_text(held.sub(lambda _: f"{START}{text}\n{END}", page), encoding="utf-8")


if __name__ == "__main__":
    main()
