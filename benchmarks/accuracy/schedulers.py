"""What the schedulers' closed forms get right and wrong.

The truths are the exact death chain and the event simulations of ``tests/fluid`` and ``tests/ask``, longer than the tests run
them: about two minutes.
"""

from __future__ import annotations

import sys

import numpy as np

import planner as fo
from tools.tables import ROOT, Page, markdown

sys.path[:0] = [str(ROOT / "tests" / "fluid"), str(ROOT / "tests" / "ask")]

import test_exclusive
import test_exclusive_memory as memory_tests
import test_fluid_golden as golden
import test_nested_wait
import test_scheduler_advice as advice_tests
import test_wait

from planner.ask.replica import scheduler_replica
from planner.errors import FleetOptError
from planner.fluid import exclusive as eb
from planner.fluid import nested_wait as nested
from planner.fluid import wait
from planner.fluid.exclusive_memory import N_bounds, N_corr, exclusive_slots
from planner.workload.resolve import shipped_names
from planner.workload.workload import Workload


def rounding() -> str:
    """Formulas against values of 30 digits."""
    exact = doubles = 0.0
    for case in golden.CASES:
        if case["expected"] is None:
            continue
        exact = max(exact, golden.worst(golden.evaluate(case, case["inputs"]), case["expected"]))
        if case["quantity"] not in golden.FROM_DOUBLE:
            got = golden.evaluate(case, golden.doubled(case["inputs"]))
            doubles = max(doubles, golden.worst(got, case["expected"]))
    return (
        f"{len(golden.CASES)} values of 30 digits: largest relative error {exact:.1e} from exact inputs (text, fractions), "
        f"{doubles:.1e} from doubles."
    )


def thresholds() -> str:
    """Cost (alpha_p/alpha_d + E[M])/E[K] of the chosen refill threshold against the best k of the exact death chain."""
    found = []
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
        found.append((slots, len(rows), f"{worst[0]:.2%}", f"{worst[1]:.2%}", f"{worst[2]:.3f}"))
    head = ("slots", "settings", "largest extra cost, theta0", "age-aware", "largest \\|k*/N - theta0\\|")
    return markdown(head, found, left=0)


WAYS = ("`exclusive_slots`, from the joint law", "`N_corr`, closed form for constant hazard", "N*, eq. 6 as printed")
"""How many slots the memory promise allows."""

KEPT = 0.012
"""Lower end of the share's interval up to which the promise of 1% counts as kept [1]."""


def slots() -> tuple[str, tuple[int, int]]:
    """Share of decode iterations with more than C tokens under EB(theta N) with a backlog; in how many settings the first way kept
    its promise, and of how many."""
    shares: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number, (prompts, outputs, theta, C) in enumerate(memory_tests.SETTINGS):
        rng = np.random.default_rng(1000 + number)
        L, O = prompts(rng), outputs(rng)
        p0 = 1 / O.mean()
        sizes = (
            exclusive_slots(C, 0.01, L, O, theta).N,
            N_corr(C, 0.01, L.mean(), L.var(), p0, theta).N,
            N_bounds(C, 0.01, L.mean(), p0, theta).N_star,
        )
        for way, N in zip(WAYS, sizes, strict=True):
            if N >= 1:
                shares[way].append(memory_tests.simulate(N, max(1, int(theta * N)), C, L, O, 4000, rng, 48))
    settings, kept = len(memory_tests.SETTINGS), {way: sum(low <= KEPT for _, low in of) for way, of in shares.items()}
    rows = [(way, settings - len(of), f"{kept[way]} of {len(of)}", f"{max(of)[0]:.2%}") for way, of in shares.items()]
    text = markdown(("slots N", "settings with none", "kept", "largest share"), rows)
    return f"{text}\n\n`exclusive_slots` kept it in {kept[WAYS[0]]} of {settings} settings.", (kept[WAYS[0]], settings)


def throughput() -> tuple[str, list[float]]:
    """`fleetopt batching` on the shipped workloads against an iteration-level simulation of the same engine; its errors."""
    rows, errors = [], []
    for name in shipped_names():
        for gpu, model in (("h100", "llama-3.1-8b"), ("a100", "llama-3.1-70b"), ("h100", "mixtral-8x7b")):
            try:
                r = scheduler_replica(Workload.from_file(name), {"gpu": gpu, "model": model, "rate": 10.0})
                found = fo.batching(name, gpu=gpu, model=model, rate=10.0).exclusive
            except FleetOptError:
                continue
            truth = advice_tests.exclusive_throughput(r, found["N"], found["k"])
            errors.append(found["throughput_per_s"] / truth - 1)
            linear = found["throughput_linear_form_per_s"] / truth - 1
            rows.append((name, gpu, model, found["N"], found["k"], f"{errors[-1]:+.1%}", f"{linear:+.1%}"))
    head = ("workload", "GPU", "model", "N", "k", "predicted/simulated - 1", "linear form")
    return markdown(head, rows, left=3), errors


def wait_policy() -> str:
    """WAIT's memory and queues."""
    rows = []
    for types, d0, d1 in test_wait.INSTANCES:
        found = wait.wait_min_thresholds(types, d0, d1)
        peak, queues, _, _ = test_wait.run(types, found.n, d0, d1, 20_000, 3)
        bounds = wait.wait_bounds(found.n, types, d0, d1)
        pairs = ", ".join(f"{q:.1f}/{b.queue:.1f}" for q, b in zip(queues, bounds, strict=True))
        rows.append((len(types), ", ".join(map(str, found.n)), f"{found.M_pi:,.0f}", f"{peak:,.0f}", pairs))
    return markdown(("WAIT: types", "thresholds", "M^pi", "simulated peak", "mean queue / bound"), rows, left=0)


def nested_wait() -> str:
    """Runs of Nested WAIT in which memory stayed within the bound."""
    rows = []
    for number, (n, l, ends, rates, d0, d1) in enumerate(test_nested_wait.SETTINGS):
        need = nested.nested_M_req(n, l, ends, rates, 1500, 0.1)
        peaks = np.array(
            [test_nested_wait.peak_memory(n, l, ends, rates, d0, d1, 1500, 10_000 * number + s) for s in range(200)]
        )
        printed = nested.nested_M_pi(n, l, ends).printed_eq13 + need.det + need.sto
        shares = (np.mean(peaks <= need.total), peaks.mean() / need.total, np.mean(peaks <= printed))
        rows.append((", ".join(map(str, n)), f"{need.total:,.0f}", *(f"{share:.0%}" for share in shares)))
    return markdown(("thresholds", "bound", "covered", "mean peak/bound", "with eq. 13 as printed"), rows)


def page() -> Page:
    """The page."""
    promise, (kept, settings) = slots()
    rates, errors = throughput()
    middle = sorted(map(abs, errors))[len(errors) // 2]
    blocks = {
        "rounding": rounding(), "thresholds": thresholds(), "slots": promise, "throughput": rates, "wait": wait_policy(),
        "nested": nested_wait(),
    }  # fmt: skip
    return Page(
        blocks,
        [
            ("exclusive batching, throughput", "simulation of the engine", str(len(errors)), f"median {middle:.1%}",
             f"{max(errors):+.1%}", "rate over-stated"),
            ("exclusive batching, memory promise", "simulation", str(settings), f"kept in {kept}", "-", "-"),
        ],
    )  # fmt: skip
