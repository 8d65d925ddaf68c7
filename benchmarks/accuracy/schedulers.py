"""What the schedulers' closed forms get right and wrong.

The truths are the exact death chain and the event simulations of ``tests/fluid`` and ``tests/advice``, longer than the tests run
them: about two minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.accuracy.rows import ROOT

sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "fluid"), str(ROOT / "tests" / "advice")]

import test_exclusive
import test_exclusive_memory as memory_tests
import test_fluid_golden as golden
import test_nested_wait
import test_scheduler_advice as advice_tests
import test_wait

from planner.advice.batching import batching
from planner.advice.replica import scheduler_replica
from planner.errors import FleetOptError
from planner.fluid import exclusive as eb
from planner.fluid import nested_wait as nested
from planner.fluid import wait
from planner.fluid.exclusive_memory import N_bounds, N_corr, exclusive_slots
from planner.workload.resolve import shipped_names
from planner.workload.workload import Workload


def rounding() -> Iterator[str]:
    yield "## Rounding"
    yield ""
    exact = doubles = 0.0
    for case in golden.CASES:
        if case["expected"] is None:
            continue
        exact = max(exact, golden.worst(golden.evaluate(case, case["inputs"]), case["expected"]))
        if case["quantity"] not in golden.FROM_DOUBLE:
            got = golden.evaluate(case, golden.doubled(case["inputs"]))
            doubles = max(doubles, golden.worst(got, case["expected"]))
    yield (
        f"{len(golden.CASES)} values of 30 digits: largest relative error {exact:.1e} from exact inputs (text, fractions), "
        f"{doubles:.1e} from doubles."
    )
    yield ""


def thresholds() -> Iterator[str]:
    yield "## Refill threshold of exclusive batching"
    yield ""
    yield "Cost (alpha_p/alpha_d + E[M])/E[K] of the chosen k against the best k of the exact death chain, geometric outputs."
    yield ""
    yield "| slots | settings | largest extra cost, theta0 | age-aware | largest \\|k*/N - theta0\\| |"
    yield "|--:|--:|--:|--:|--:|"
    for slots in (8, 32, 128, 512, 1024):
        rows = []
        for mu_O in (64, 256, 1024):
            phase, ended = test_exclusive.death_chain(slots, 1 / mu_O)
            for ratio in (1, 5, 20, 100):
                cost = (ratio + phase) / ended
                theta = eb.theta0_of_costs(ratio, 1, mu_O=mu_O, geometric=True).theta0
                aware = eb.theta_age_aware((1 - 1 / mu_O) ** np.arange(30 * mu_O), ratio)
                best = int(np.argmin(cost))
                rows.append(
                    (
                        cost[eb.slots_to_refill(theta, slots) - 1] / cost[best] - 1,
                        cost[aware.k(slots) - 1] / cost[best] - 1,
                        abs((best + 1) / slots - theta),
                    )
                )
        worst = np.max(rows, axis=0)
        yield f"| {slots} | {len(rows)} | {worst[0]:.2%} | {worst[1]:.2%} | {worst[2]:.3f} |"
    yield ""


def slots() -> Iterator[str]:
    yield "## Slots whose memory promise holds"
    yield ""
    settings = len(memory_tests.SETTINGS)
    yield (
        f"Share of decode iterations with more than C tokens under EB(theta N) with a backlog, {settings} settings of "
        "`tests/fluid/test_exclusive_memory.py`; the promise is 1%, kept where the lower end of the 95% interval is at most 1.2%."
    )
    yield ""
    yield "| slots N | settings with none | kept | largest share |"
    yield "|:--|--:|--:|--:|"
    ways = (
        "`exclusive_slots`, from the joint law",
        "`N_corr`, closed form for constant hazard",
        "N*, eq. 6 as printed",
    )
    shares: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for number, (prompts, outputs, theta, C) in enumerate(memory_tests.SETTINGS):
        rng = np.random.default_rng(1000 + number)
        L, O = prompts(rng), outputs(rng)
        p0 = 1 / O.mean()
        sizes = (
            exclusive_slots(C, 0.01, L, O, theta).N,
            N_corr(C, 0.01, L.mean(), L.var(), p0, theta).N,
            N_bounds(C, 0.01, L.mean(), p0, theta).N_star,
        )
        for way, N in zip(ways, sizes, strict=True):
            if N >= 1:
                shares[way].append(memory_tests.simulate(N, max(1, int(theta * N)), C, L, O, 4000, rng, 48))
    kept = {way: sum(low <= 0.012 for _, low in found) for way, found in shares.items()}
    for way, found in shares.items():
        yield f"| {way} | {settings - len(found)} | {kept[way]} of {len(found)} | {max(found)[0]:.2%} |"
    yield ""
    yield f"`exclusive_slots` kept it in {kept[ways[0]]} of {settings} settings."
    yield ""


def throughput() -> Iterator[str]:
    yield "## Throughput of exclusive batching"
    yield ""
    yield "`fleetopt batching` on the shipped workloads against an iteration-level simulation of the same engine."
    yield ""
    yield "| workload | GPU | model | N | k | predicted/simulated - 1 | linear form |"
    yield "|:--|:--|:--|--:|--:|--:|--:|"
    for name in shipped_names():
        for gpu, model in (("h100", "llama-3.1-8b"), ("a100", "llama-3.1-70b"), ("h100", "mixtral-8x7b")):
            try:
                r = scheduler_replica(Workload.from_file(name), {"gpu": gpu, "model": model, "rate": 10.0})
                found = batching(r).exclusive
            except FleetOptError:
                continue
            truth = advice_tests.exclusive_throughput(r, found["N"], found["k"])
            yield (
                f"| {name} | {gpu} | {model} | {found['N']} | {found['k']} | {found['throughput_per_s'] / truth - 1:+.1%} | "
                f"{found['throughput_linear_form_per_s'] / truth - 1:+.1%} |"
            )
    yield ""


def wait_policies() -> Iterator[str]:
    yield "## WAIT and Nested WAIT"
    yield ""
    yield "| WAIT: types | thresholds | M^pi | simulated peak | mean queue / bound |"
    yield "|--:|:--|--:|--:|:--|"
    for types, d0, d1 in test_wait.INSTANCES:
        found = wait.wait_min_thresholds(types, d0, d1)
        peak, queues, _, _ = test_wait.run(types, found.n, d0, d1, 20_000, 3)
        bounds = wait.wait_bounds(found.n, types, d0, d1)
        pairs = ", ".join(f"{q:.1f}/{b.queue:.1f}" for q, b in zip(queues, bounds, strict=True))
        yield f"| {len(types)} | {', '.join(map(str, found.n))} | {found.M_pi:,.0f} | {peak:,.0f} | {pairs} |"
    yield ""
    yield "Nested WAIT, 200 runs of 1,500 iterations, delta = 0.1: runs in which memory stayed within the bound."
    yield ""
    yield "| thresholds | bound | covered | mean peak/bound | with eq. 13 as printed |"
    yield "|:--|--:|--:|--:|--:|"
    for number, (n, l, ends, rates, d0, d1) in enumerate(test_nested_wait.SETTINGS):
        need = nested.nested_M_req(n, l, ends, rates, 1500, 0.1)
        peaks = np.array(
            [test_nested_wait.peak_memory(n, l, ends, rates, d0, d1, 1500, 10_000 * number + s) for s in range(200)]
        )
        printed = nested.nested_M_pi(n, l, ends).printed_eq13 + need.det + need.sto
        yield (
            f"| {', '.join(map(str, n))} | {need.total:,.0f} | {np.mean(peaks <= need.total):.0%} | "
            f"{peaks.mean() / need.total:.0%} | {np.mean(peaks <= printed):.0%} |"
        )
    yield ""


def page() -> str:
    """The page."""
    parts = (rounding, thresholds, slots, throughput, wait_policies)
    lines = [
        "# Accuracy of the schedulers' closed forms",
        "",
        "Made by `python -m benchmarks.accuracy schedulers`.",
        "",
        *(line for part in parts for line in part()),
    ]
    return "\n".join(lines).rstrip()
