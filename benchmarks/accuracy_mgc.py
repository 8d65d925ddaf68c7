"""Errors of the M/G/c methods against exact and simulated waiting times, as a table for docs/accuracy/mgc.md.

Run ``python benchmarks/accuracy_mgc.py [--data FOLDER] [-o docs/accuracy/mgc.md]``. The cases are ``queueing/truth.json`` of
the shared data (exact M/H2/c; simulated M/G/c with confidence intervals) and ``tests/golden/mph_c.json`` and
``tests/golden/mgc_simulated.json`` (exact M/PH/c and simulations made for the tests). An error is predicted/true - 1 of
one quantile of the wait; negative is optimistic.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "tests" / "golden"))

import make_mph_c
import service_laws
from service_laws import QUANTILES

from planner.queueing.mgc import wait_quantile
from planner.queueing.service import ServiceLaw

GOLDEN = ROOT / "tests" / "golden"
SHOWN = list(QUANTILES)


def law_of_truth(service: dict[str, Any]) -> ServiceLaw:
    """The service law of a simulated case."""
    name, values = service["name"], service.get("sampler")
    if name == "lognormal":
        return service_laws.lognormal(service["cv2"])
    if name == "bimodal":
        return ServiceLaw.from_samples([values[1], values[2]], [values[0], 1.0 - values[0]])
    if name == "det":
        return ServiceLaw.deterministic()
    if name == "gamma":
        return ServiceLaw.gamma(service["cv2"])
    if name == "tpareto":
        return service_laws.pareto(service["alpha"], service["ratio"])
    raise ValueError(f"unknown law {name!r}")


def law_of_phases(service: dict[str, Any]) -> ServiceLaw:
    """The service law of a golden M/PH/c case, of unit mean."""
    if service["kind"] in ("h2", "h3"):
        return ServiceLaw.hyperexponential(service["start"], 1.0 / np.asarray(service["rates"]))
    if service["kind"] == "erlang":
        return service_laws.erlang(service["phases"])
    (r1, r2), p = service["rates"], service["p"]
    a = 1.0 - p * r1 / (r1 - r2)  # a phase, then perhaps another: a difference of exponentials
    return service_laws.from_survival(lambda x: a * np.exp(-r1 * x) + (1.0 - a) * np.exp(-r2 * x), 1.0)


def cases(data: Path) -> Iterator[tuple[str, str, ServiceLaw, float, int, float, float, float]]:
    """(kind, law's name, law, offered load, servers, quantile, true wait, half width of its 95 % interval)."""
    file = data / "queueing" / "truth.json"
    if file.is_file():
        truth = json.loads(file.read_text(encoding="utf-8"))
        for x in truth["exact_mh2c"]:
            s = x["service"]
            law = ServiceLaw.hyperexponential([s["p"], 1.0 - s["p"]], [s["mean1"], s["mean2"]])
            yield "exact", "H2", law, x["rho"] * x["c"], x["c"], x["percentile"], x["value"] / law.mean, 0.0
        for x in truth["mgc"]:
            if x["arrival"]["name"] == "poisson":
                law = law_of_truth(x["service"])
                half = 0.5 * (x["ci_high"] - x["ci_low"])
                yield "simulated", x["service"]["name"], law, x["lambda"], x["c"], x["percentile"], x["value"], half
    for x in json.loads((GOLDEN / "mph_c.json").read_text(encoding="utf-8")):
        law = law_of_phases(x["service"])
        for q, value in x["quantiles"].items():
            # next to P(wait) = 1 - q the quantile is 0 or nearly so, and a relative error says nothing
            if x["p_wait"] > 1.16 * (1.0 - float(q)):
                name = {"h2": "H2", "h3": "H3", "erlang": f"E{x['service'].get('phases')}", "coxian": "Coxian"}[
                    x["service"]["kind"]
                ]
                yield (
                    "exact",
                    name,
                    law,
                    x["utilization"] * x["servers"],
                    x["servers"],
                    float(q),
                    value / x["mean"],
                    0.0,
                )
    simulated = GOLDEN / "mgc_simulated.json"
    if simulated.is_file():
        for x in json.loads(simulated.read_text(encoding="utf-8")):
            if "values" in x:
                law = ServiceLaw.from_samples(x["values"], x["weights"])
            else:
                source = service_laws if hasattr(service_laws, x["law"]) else ServiceLaw
                law = getattr(source, x["law"])(*x["arguments"])
            for q, (value, half) in x["quantiles"].items():
                if x["p_wait"] > 1.16 * (1.0 - float(q)):
                    yield (
                        "simulated",
                        x["name"],
                        law,
                        x["utilization"] * x["servers"],
                        x["servers"],
                        float(q),
                        value,
                        half,
                    )


def drawn_laws(rng: np.random.Generator) -> tuple[str, list[float], list[float], int]:
    """A two-length law, a mixture of three exponentials, or one of two Erlang laws: name, weights, means and stages."""
    kind = ("two lengths", "two lengths", "three exponentials", "two Erlangs")[rng.integers(4)]
    if kind == "two lengths":
        share, ratio = (
            float(rng.choice([0.005, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5])),
            float(rng.choice([2, 3, 5, 10, 20, 50])),
        )
        return kind, [1.0 - share, share], [1.0, ratio], 0
    if kind == "three exponentials":
        return kind, rng.dirichlet([1.0, 1.0, 1.0]).tolist(), np.sort(np.exp(rng.normal(0.0, 1.5, 3))).tolist(), 1
    share = float(rng.uniform(0.02, 0.6))
    return kind, [1.0 - share, share], np.sort(np.exp(rng.normal(0.0, 1.3, 2))).tolist(), int(rng.choice([2, 3, 5]))


LEVELS = np.array([0.5, 0.9, 0.99, 0.999])
LAST_SEEDS = (4711, 8128)
# A simulated quantile that comes out further below, or above, is simulated again, as many times as long and apart from the first.
SUSPECT, LONGER = (-0.02, 0.6), 8
# States of a phase-type queue up to which it is solved exactly; beyond, and for constants, it is simulated.
EXACT_STATES = 600


def drawn_queue(rng: np.random.Generator) -> dict[str, Any]:
    """A drawn law with its servers and load."""
    name, weights, means, stages = drawn_laws(rng)
    servers = int(rng.choice([2, 3, 4, 6, 8, 12, 16, 24, 32]))
    load = float(rng.choice([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]))
    return {"name": name, "weights": weights, "means": means, "stages": stages, "servers": servers, "load": load}


def true_waits(queue: dict[str, Any], seed: int, times: int = 1) -> dict[str, Any]:
    """P(wait), quantiles of the wait and half widths of their 95 % intervals, in mean service times; of ``times`` simulations."""
    weights, means, stages, servers = queue["weights"], queue["means"], queue["stages"], queue["servers"]
    phases = max(stages, 1) * len(means)
    if stages and math.comb(servers + phases - 1, phases - 1) <= EXACT_STATES:
        p = np.array(weights) / sum(weights)
        m = np.array(means) / float(p @ means)
        start, rates = np.zeros(phases), np.repeat(stages / m, stages)
        start[::stages] = p
        routes = (
            np.kron(np.eye(len(means)), np.diag(np.ones(stages - 1), 1)) if stages > 1 else np.zeros((phases, phases))
        )
        vector, matrix = make_mph_c.solve(servers, queue["load"] * servers, start, rates, routes)
        values = [make_mph_c.quantile(vector, matrix, q) for q in LEVELS.tolist()]
        return {"p_wait": float(vector.sum()), "values": values, "halves": [0.0] * LEVELS.size}
    runs = [
        service_laws.simulated_waits(servers, queue["load"], weights, means, stages, seed=seed + 100_000 * k)
        for k in range(times)
    ]
    waits = np.concatenate(runs, axis=1)
    apart = np.quantile(waits.reshape(16, -1), LEVELS, axis=1)
    return {
        "p_wait": float((waits > 0.0).mean()),
        "values": np.quantile(waits, LEVELS).tolist(),
        "halves": (2.13 * apart.std(axis=1, ddof=1) / 4.0).tolist(),
    }


def drawn_rows(
    count: int, seed: int, known: Path | None
) -> Iterator[tuple[str, int, dict[str, Any], float, float, float]]:
    """(name, number of the law, queue, quantile, predicted/true - 1, half width over truth); truths found are kept in a file."""
    rng = np.random.default_rng(seed)
    truths: dict[str, dict[str, Any]] = {}
    if known is not None and known.is_file():
        lines = known.read_text(encoding="utf-8").splitlines()
        truths = {f"{row['seed']}-{row['number']}": row for row in map(json.loads, lines)}

    def truth_of(queue: dict[str, Any], number: int, times: int) -> dict[str, Any]:
        name = f"{number}" if times == 1 else f"{number} again"
        if f"{seed}-{name}" not in truths:
            found = {
                "seed": seed,
                "number": name,
                **true_waits(queue, number if times == 1 else number + 50_000, times),
            }
            truths[f"{seed}-{name}"] = found
            if known is not None:
                with known.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(found) + "\n")
        return truths[f"{seed}-{name}"]

    for number in range(count):
        queue = drawn_queue(rng)
        truth = truth_of(queue, number, 1)
        usable = truth["p_wait"] > 1.16 * (1.0 - LEVELS)
        if not usable.any():
            continue
        law = service_laws.of_classes(queue["weights"], queue["means"], queue["stages"])
        load, servers = queue["load"] * queue["servers"], queue["servers"]
        got = np.atleast_1d(wait_quantile(load, 1.0, servers, quantile=LEVELS[usable], law=law))
        for times in (1, LONGER):
            if times > 1:
                truth = truth_of(queue, number, times)
            true, half = np.array(truth["values"])[usable], np.array(truth["halves"])[usable]
            error = got / true - 1.0
            suspect = (error + half / true < SUSPECT[0]) | (error > SUSPECT[1])
            if not (half > 0.0).any() or not suspect.any():
                break
        for q, e, h in zip(LEVELS[usable].tolist(), error, half / true, strict=True):
            yield queue["name"], number, queue, q, float(e), float(h)


def drawn_queues(count: int, seed: int, known: Path | None) -> str:
    """Table of the errors on ``count`` drawn laws against exact and simulated waits."""
    found: dict[str, list[tuple[float, float, int]]] = {}
    for name, number, _, _, error, half in drawn_rows(count, seed, known):
        found.setdefault(name, []).append((error, half, number))
    lines = [
        "| laws | quantiles | median | p90 | beyond 2 % below the interval | worst beyond | worst pessimistic | above +60 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in (*sorted(found.items()), ("all", [r for v in found.values() for r in v])):
        e, h = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
        lines.append(
            f"| {name} ({len({r[2] for r in rows})}) | {e.size} | {np.median(abs(e)):.1%} | {np.quantile(abs(e), 0.9):.0%} "
            f"| {int((e + h < -0.02).sum())} | {min((e + h).min(), 0.0):+.1%} | {e.max():+.0%} | {(e > 0.6).mean():.1%} |"
        )
    return "\n".join(lines) + "\n"


REGIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "all": lambda r: True,
    "exact, all": lambda r: r["kind"] == "exact",
    "exact, scv > 1": lambda r: r["kind"] == "exact" and r["scv"] > 1.0,
    "exact, scv < 1": lambda r: r["kind"] == "exact" and r["scv"] < 1.0,
    "exact, 0.99": lambda r: r["kind"] == "exact" and r["q"] == 0.99,
    "exact, 1 server": lambda r: r["kind"] == "exact" and r["c"] == 1,
    "exact, 2-8 servers": lambda r: r["kind"] == "exact" and 2 <= r["c"] <= 8,
    "exact, 10-64 servers": lambda r: r["kind"] == "exact" and 10 <= r["c"] <= 64,
    "exact, > 64 servers": lambda r: r["kind"] == "exact" and r["c"] > 64,
    "simulated, all": lambda r: r["kind"] == "simulated",
    "simulated, scv >= 1": lambda r: r["kind"] == "simulated" and r["scv"] >= 1.0,
    "simulated, scv < 1": lambda r: r["kind"] == "simulated" and r["scv"] < 1.0,
    "simulated, 0.99": lambda r: r["kind"] == "simulated" and r["q"] == 0.99,
}


def evaluate(data: Path) -> list[dict[str, Any]]:
    """One row per case, with the error of each method; `general` is the same with the exact routes closed."""
    rows = []
    for kind, name, law, load, c, q, value, half in cases(data):
        sampled = ServiceLaw("hidden", 1.0, law.scv, law.third, law.partial_moments)
        row = {
            "kind": kind,
            "law": name,
            "scv": round(law.scv, 9),
            "load": load,
            "c": c,
            "q": q,
            "value": value,
            "half": half,
        }
        for method in SHOWN:
            row[method] = float(QUANTILES[method](load, 1.0, c, quantile=q, law=law)) / value - 1.0
        row["general"] = float(wait_quantile(load, 1.0, c, quantile=q, law=sampled)) / value - 1.0
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The markdown table: median, 90th percentile of |error|, worst optimistic, worst pessimistic, per region and method."""
    lines = [
        "| region | cases | method | median | p90 | worst optimistic | worst pessimistic |",
        "|---|---|---|---|---|---|---|",
    ]
    for region, inside in REGIONS.items():
        chosen = [r for r in rows if inside(r)]
        if not chosen:
            continue
        for method in ["conservative", "general", *SHOWN[1:]]:
            e = np.array([r[method] for r in chosen])
            low, high = min(e.min(), 0.0), max(e.max(), 0.0)
            lines.append(
                f"| {region} | {e.size} | {method} | {np.median(abs(e)):.2%} | {np.quantile(abs(e), 0.9):.1%} "
                f"| {low:+.1%} | {high:+.0%} |"
            )
    return "\n".join(lines) + "\n"


def document(rows: list[dict[str, Any]], drawn: str, count: int, seconds: float) -> str:
    """The page for docs/accuracy."""
    exact, simulated = (sum(r["kind"] == k for r in rows) for k in ("exact", "simulated"))
    noisy = [r for r in rows if r["kind"] == "simulated"]
    beyond = [r for r in noisy if r["general"] < 0 and (1 + r["general"]) * r["value"] < r["value"] - r["half"]]
    worst = min((r["general"] + r["half"] / r["value"] for r in beyond), default=0.0)
    return f"""# Accuracy of the M/G/c waiting times

Made by `python benchmarks/accuracy_mgc.py` from {exact} exact quantiles (M/H2/c, M/H3/c, M/E_k/c, M/Coxian/c by matrix methods)
and {simulated} simulated ones (lognormal, two-point, constant, gamma, truncated Pareto, uniform, Weibull; 95 % intervals of
2-5 %, which is the floor of those errors). Quantiles 0.5, 0.9, 0.99, 0.999; servers 1-256; load 0.4-0.99. A quantile is
left out where P(wait) is within 16 % of 1 - q: there it is nearly 0 and a relative error says nothing.

Errors are predicted/true - 1 of one quantile; negative is optimistic. `conservative` is the default of
`planner.queueing.mgc.wait_quantile`: exact where the law has an exact solution, else the nearest mixture or the maximum.
`general` is the same for a law that does not say that it is one of phases or a constant: what a measured law gets.

## Everywhere

{table(rows)}
Below its simulated value by more than the interval: {len(beyond)} of {len(noisy)} cases, at worst {worst:+.1%} beyond it.

## Drawn laws

{count} laws drawn at random (`--laws`), 2 to 32 servers, loads of 0.3 to 0.9. Phase-type queues of up to {EXACT_STATES} states
are solved exactly (`tests/golden/make_mph_c.py`), the others simulated: 2 million waits each, 512 streams side by side; the
interval is that of 16 groups of streams.

A law without an exact solution is taken for the nearest mixture of two or three Erlang laws, whose queue is exact: of the law
of what is left of a length under way (before one server nothing else counts) it keeps the density at zero and the mean, and is
the nearest otherwise. Up to 16 servers there are as many stages as the states allow (six at most); beyond, two phases, and what
the third changes is told by 16 servers with as much slack over their root; beyond 64, those too. Waits are longer by three
times the distance of the two laws (root mean square) and thirty times its square, P(wait) by half of it. A quantile that comes
of lengths whose tail the mixture lacks (Pareto's, where one long request leaves the other servers overloaded) is not taken from
it. Where the distance is above 0.012 the answer is the shorter of that wait and of what needs no mixture. That is the maximum
or, where lengths part into two classes, as many Erlang stages for each as its spread and the states allow (up to 16 servers),
and what the missing stages add is extrapolated; beyond 16 servers the long ones are exponential, a bound, and Erlang of order
two, scaled from fewer servers with as much slack over their root. Shares kept of what is extrapolated were chosen on these
tables; the distance's weights on other laws (lognormal, Pareto, gamma, Coxian, points, traces).

{drawn}
A simulated law with a quantile that came out more than 2 % below its interval, or more than 60 % above it, is simulated again,
{LONGER} times as long. The worst that is left are two constant lengths, whose mixture is far.

Not covered: arrivals that are not Poisson (see the burst corrections), loads above 0.99, infinite variance, more than 256
servers (checked for limits only), number of servers that is not whole. Where only two moments are known the maximum is the answer:
pessimistic, up to several times, where P(wait) is small or the quantile is the median, and the wait a few per cent of a service
time: with many servers and a heavy tail the exponential forms see every arrival behind the average, not behind what is usual.

{len(rows)} cases in {seconds:.0f} s on one core.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    default = os.environ.get("FLEETOPT_SHARED_DATA", str(ROOT.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default), help="folder with queueing/truth.json")
    parser.add_argument("-o", "--output", type=Path, help="write the page here")
    parser.add_argument("--laws", type=int, default=600, help="laws drawn; 600 take some ten minutes")
    parser.add_argument(
        "--truths", type=Path, help="keep the true waits of drawn laws in this file, and read them from it"
    )
    parser.add_argument(
        "--others", type=int, default=150, help="laws drawn with the next seed, and with each of two more"
    )
    parser.add_argument("--seed", type=int, default=12, help="of the drawn laws")
    parser.add_argument("--rows", type=Path, help="write every case as JSON here")
    options = parser.parse_args()
    begin = time.perf_counter()
    rows = evaluate(options.data)
    seconds = time.perf_counter() - begin
    drawn = drawn_queues(options.laws, options.seed, options.truths)
    for seed in (options.seed + 1, *LAST_SEEDS):
        drawn += "\n" + drawn_queues(options.others, seed, options.truths)
    text = document(rows, drawn, options.laws, seconds)
    if options.rows:
        options.rows.write_text(json.dumps(rows), encoding="utf-8")
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
