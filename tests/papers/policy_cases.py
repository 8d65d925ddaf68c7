"""Statistical cases of every scheduling policy against another program: ``python tests/papers/policy_cases.py FILE``.

FILE is a list of cases (policy, parameters, arrival process, length distributions) with the mean and the standard
deviation between runs of each statistic. Two sets of runs agree when the difference of their means is at most
4 sqrt(sd1^2/n1 + sd2^2/n2), or 1e-3 of the value for quantiles that hardly vary. A statistic that could not be computed
is a failure.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np

from planner.papers.run import Run, run_policy
from planner.papers.statistics import summarize
from planner.predict.engine import Request
from tests.papers.machines import iteration_time


def lengths(spec: dict, n: int, rng: np.random.Generator) -> np.ndarray:
    """Lengths [tokens] of one distribution of the file."""
    kind = spec["dist"]
    if kind == "uniform_int":
        return rng.integers(spec["low"], spec["high"] + 1, n)
    if kind == "geometric":
        return rng.geometric(1.0 / spec["mean"], n)
    if kind == "gamma2":
        return np.maximum(np.ceil(rng.gamma(2.0, spec["mean"] / 2.0, n)).astype(int), 1)
    if kind == "uniform_multiple":
        step = spec["multiple"]
        return step * rng.integers(spec["low"] // step, spec["high"] // step + 1, n)
    raise SystemExit(f"distribution {kind!r} is not known")


def make_requests(case: dict, n: int, rng: np.random.Generator) -> list[Request]:
    """The random requests of one run."""
    category, deadline = np.zeros(n, dtype=int), np.full(n, math.inf)
    if "types" in case:
        types = case["types"]
        rates = np.array([t["rate"] for t in types])
        times = np.cumsum(rng.exponential(1.0 / rates.sum(), n))
        category = rng.choice(len(types), n, p=rates / rates.sum())
        inputs = np.array([t["input"] for t in types])[category]
        outputs = np.array([t["output"] for t in types])[category]
    else:
        inputs, outputs = lengths(case["input"], n, rng), lengths(case["output"], n, rng)
        if case["arrivals"]["process"] == "all_at_zero":
            times = np.zeros(n)
        else:
            times = np.cumsum(rng.exponential(1.0 / case["arrivals"]["rate"], n))
    if "classes" in case:
        shares = np.array([c["share"] for c in case["classes"]])
        category = rng.choice(len(shares), n, p=shares / shares.sum())
        deadline = np.array([c["tbt"] for c in case["classes"]])[category]
    rows = zip(times.tolist(), inputs.tolist(), outputs.tolist(), category.tolist(), deadline.tolist(), strict=True)
    return [Request(i, *row) for i, row in enumerate(rows)]


def run_case(case: dict, runs: int, requests: int | None = None, first_seed: int = 1) -> list[dict[str, float]]:
    """Statistics of `runs` runs."""
    model = iteration_time(case["iteration_time"], case["iteration_params"])
    out = []
    for seed in range(first_seed, first_seed + runs):
        rng = np.random.default_rng(seed)
        sample = make_requests(case, requests or case["requests_per_run"], rng)
        run = run_policy(sample, case["policy"], model, case["params"], capacity=case["kv_capacity"] or math.inf)
        out.append(summarize(run, tuple(case["measured"])) | special(run, case))
    return out


def special(run: Run, case: dict) -> dict[str, float]:
    """Statistics of some policies only: settings of a controller, modes of EB+, gaps between tokens by class."""
    out: dict[str, float] = {}
    policy = run.policies[0]
    updates = getattr(getattr(policy, "exclusive", policy), "updates", ())
    if updates:
        out["mean_k"] = float(np.mean([u.k for u in updates]))
        out["mean_slots"] = float(np.mean([u.slots for u in updates]))
    if hasattr(policy, "mode_switches"):
        out["mixed_share_of_iterations"] = policy.iterations["mixed"] / sum(policy.iterations.values())
        out["mode_switches"] = float(policy.mode_switches)
    low, high = (math.floor(share * len(run.requests)) for share in case["measured"])
    window = sorted(run.requests, key=lambda r: (r.arrival, r.index))[low:high]
    for category in range(len(case.get("classes", ()))):
        gaps = [gap for r in window if r.category == category and r.done_s == r.done_s for gap in r.gaps]
        out[f"tbt_p99_class{category}_s"] = float(np.percentile(gaps, 99)) if gaps else math.nan
    return out


def compare(case: dict, ours: list[dict[str, float]]) -> list[tuple[str, float, float, float]]:
    """(statistic, theirs, ours, difference in units of the tolerance) for every statistic of the case."""
    rows = []
    for name, theirs in case["expected"].items():
        values = np.array([run.get(name, math.nan) for run in ours])
        difference = abs(float(values.mean()) - theirs["mean"])
        variance = theirs["sd_between_runs"] ** 2 / case["runs"]
        # one run scatters as theirs do
        own = float(values.var(ddof=1)) if len(ours) > 1 else theirs["sd_between_runs"] ** 2
        variance += own / len(ours)
        tolerance = 4.0 * math.sqrt(variance)
        if theirs["sd_between_runs"] < 1e-3 * abs(theirs["mean"]):
            tolerance = max(tolerance, 1e-3 * abs(theirs["mean"]))
        if math.isnan(difference):
            ratio = math.inf
        elif tolerance:
            ratio = difference / tolerance
        else:
            ratio = 0.0 if difference <= 1e-12 else math.inf
        rows.append((name, theirs["mean"], float(values.mean()), ratio))
    return rows


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    cases = json.loads(arguments.file.read_text())["cases"]
    failures = compared = 0
    for case in cases:
        if not case["id"].startswith(arguments.only):
            continue
        start = time.perf_counter()
        rows = compare(case, run_case(case, arguments.runs))
        worst = max(rows, key=lambda row: row[3])
        bad = [row for row in rows if row[3] > 1.0]
        failures, compared = failures + len(bad), compared + len(rows)
        print(
            f"{case['id']:24s} worst {worst[0]:20s} {worst[3]:.2f} of the tolerance, {time.perf_counter() - start:.1f} s"
        )
        for name, theirs, mine, ratio in bad:
            print(f"    outside: {name} {theirs:.6g} against {mine:.6g} ({ratio:.2f})")
        sys.stdout.flush()
    print(f"{compared - failures} of {compared} statistics agree")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
