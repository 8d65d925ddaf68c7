"""Simulated waiting times of M/G/c for laws without an exact solution. Run to rewrite ``mgc_simulated.json`` (minutes).

Nothing of the package is imported. The Kiefer-Wolfowitz recursion runs for many independent copies of the queue at once
(rows of an array), each started empty and warmed up for several relaxation times; half widths of the 95 % intervals come
from groups of copies.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

QUANTILES = (0.5, 0.9, 0.99, 0.999)


def sampler(case):
    name, args = case["law"], case["arguments"]
    if name == "lognormal":
        sigma = np.sqrt(np.log1p(args[0]))
        return lambda rng, n: np.exp(sigma * rng.standard_normal(n) - 0.5 * sigma**2)
    if name == "gamma":
        return lambda rng, n: rng.standard_gamma(1 / args[0], n) * args[0]
    if name == "pareto":  # truncated, by inversion
        alpha, ratio = args
        norm = 1 - ratio**-alpha
        mean = alpha / norm * (ratio ** (1 - alpha) - 1) / (1 - alpha)
        return lambda rng, n: (1 - norm * rng.random(n)) ** (-1 / alpha) / mean
    if name == "from_samples":
        values, weights = np.asarray(args[0]), np.asarray(args[1])
        weights = weights / weights.sum()
        values = values / (weights @ values)
        edges = np.cumsum(weights)[:-1]
        return lambda rng, n: values[np.searchsorted(edges, rng.random(n), side="right")]
    if name == "deterministic":
        return lambda rng, n: np.ones(n)
    raise ValueError(name)


def simulate(case, customers, seed):
    rng = np.random.default_rng(seed)
    draw, c, rho = sampler(case), case["servers"], case["utilization"]
    scv = case["scv"]
    relax = (1 + scv) / (2 * c * (1 - rho) ** 2) + 2 * (1 + scv)  # mean service times
    warm = int(6 * relax * c * rho) + 50
    steps = max(2 * warm, 2000)
    copies = int(min(max(customers // steps, 400), 8000))
    work = np.zeros((copies, c), dtype=np.float32)
    kept = []
    for i in range(warm + steps):
        wait = work[:, 0].copy()
        if i >= warm:
            kept.append(wait)
        work[:, 0] += draw(rng, copies)
        work -= (rng.standard_exponential(copies) / (rho * c)).astype(np.float32)[:, None]
        np.maximum(work, 0, out=work)
        work.sort(axis=1)
    waits = np.array(kept).T  # copies x customers
    groups = np.array_split(waits, 20)
    out = {}
    for q in QUANTILES:
        each = np.array([np.quantile(g, q) for g in groups])
        out[str(q)] = [float(np.quantile(waits, q)), float(2.093 * each.std(ddof=1) / np.sqrt(20))]
    return {
        **case, "quantiles": out, "p_wait": float((waits > 0).mean()), "mean_wait": float(waits.mean()),
        "mean_wait_half": float(2.093 * np.std([g.mean() for g in groups], ddof=1) / np.sqrt(20)),
        "customers": int(waits.size), "seed": seed,
    }  # fmt: skip


def laws():
    yield "lognormal", "lognormal", [0.5]
    yield "lognormal", "lognormal", [2.0]
    yield "lognormal", "lognormal", [8.0]
    yield "gamma", "gamma", [0.25]
    yield "gamma", "gamma", [3.0]
    yield "pareto", "pareto", [1.5, 100.0]
    yield "pareto", "pareto", [2.5, 1000.0]
    yield "two points", "from_samples", [[0.1, 4.0], [0.8, 0.2]]
    yield "two points", "from_samples", [[0.5, 10.0], [0.98, 0.02]]
    yield "two points", "from_samples", [[0.2, 1.2], [0.2, 0.8]]
    yield "uniform", "from_samples", [list(np.linspace(0.005, 1.995, 200).round(6)), [1.0] * 200]
    yield "Weibull", "from_samples", [list(((-np.log1p(-(np.arange(400) + 0.5) / 400)) ** 2).round(9)), [1.0] * 400]
    yield "deterministic", "deterministic", []


def moments(case):
    rng = np.random.default_rng(1)
    x = sampler(case)(rng, 400_000)
    return float(x.var() / x.mean() ** 2)


def main() -> None:
    rows, begin = [], time.time()
    budget = float(sys.argv[1]) if len(sys.argv) > 1 else 1e9
    for n, (name, law, arguments) in enumerate(laws()):
        for m, (c, rho) in enumerate(((2, 0.6), (3, 0.9), (6, 0.8), (12, 0.9), (40, 0.95))):
            case = {"name": name, "law": law, "arguments": arguments, "servers": c, "utilization": rho}
            case["scv"] = moments(case)
            rows.append(simulate(case, 12_000_000, 1000 * n + m))
            print(name, arguments if law != "from_samples" else "", c, rho, f"{time.time() - begin:.0f} s", flush=True)
        if time.time() - begin > budget:
            break
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    Path(__file__).with_name("mgc_simulated.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
