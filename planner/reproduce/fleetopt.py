"""FleetOpt (arXiv:2603.16514v1): tables 1, 2, 3, 5 and 6, the latencies and the claims that can be recomputed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from planner.catalog import gpu, model
from planner.catalog.kv import kv_bytes_per_token
from planner.documents import load_document
from planner.reproduce.fleetopt_sizing import (
    CHUNK,
    GAMMAS,
    LONG_SLOTS,
    LONG_TOKENS,
    POINTS,
    SETTINGS,
    TTFT_S,
    Fleet,
    H,
    Pool,
    Reading,
    W,
    at,
    fleet,
    homogeneous,
    lone_prefill_s,
    mean_busy_from_empty,
    prefill_s,
    table,
)
from planner.reproduce.result import DIFFERS, NEEDS_DATA, SAME, Row, compare, numbers
from planner.workload.pools import KV, PAIRS, FleetMoments, State
from planner.workload.workload import Workload

CODED = Reading("published program", sampled=True)
EXACT = Reading("published program, exact sums")
LITERAL = Reading("eq. 3 as printed", scaled=False)
ARRIVING = Reading("what each pool really gets", arriving=True)
PAIRS_READING = Reading("the trace's own lengths", pairs=True)
PAIRS_LITERAL = Reading("the trace's own lengths, eq. 3", pairs=True, scaled=False)

WHY = {
    CODED: "four choices: H scaled by the request's length, 80/20 split, W99 <= 0.5 s alone, 3,000 draws of seed 42",
    EXACT: "the same choices with exact sums instead of 3,000 draws: the rest is sampling noise",
    LITERAL: "H constant as in eq. 3; eq. 8 would refuse the pools listed under eq. 7-8",
    ARRIVING: "compressed prompts enter at total B with their output unchanged; what was not compressed stays long",
    PAIRS_READING: "input and output of each request as recorded, flows as they really arrive",
    PAIRS_LITERAL: "the same with H constant as in eq. 3: compression saves 3 of 130",
}

RATE = 1000.0
USD_PER_HOUR, HOURS = 2.21, 8760.0
PROMPTS = "the 300 prompts are of LMSYS-Chat-1M and of Azure, whose texts are not published with the paper: see docs/compression.md"

PRINTED = load_document(Path(__file__).with_name("fleetopt.yaml"))
TABLE3 = PRINTED["table3"]
TABLE2 = PRINTED["table2"]
TABLE1_BOUNDARY = 8192
DES_REQUESTS = 30_000


def _fleet(name: str, gamma: float, reading: Reading, rate: float = RATE) -> Fleet:
    s = SETTINGS[name]
    return fleet(s.workload, s.boundary, s.slots, s.p_c, gamma, rate, reading)


def _best(name: str, reading: Reading, rate: float = RATE) -> Fleet:
    """Algorithm 1's sweep of gamma; the smallest gamma of the cheapest fleets."""
    return min((_fleet(name, g, reading, rate) for g in GAMMAS), key=lambda f: f.replicas)


def _count(pool: Pool | None) -> int:
    return 0 if pool is None else pool.replicas


def _table1() -> Iterator[Row]:
    """The cost cliff: slots by memory, and what a request uses of one."""
    per_token = kv_bytes_per_token(model("llama-3.1-70b"))
    unit = "a KB of 1,024 bytes and a GB of 1,024^3"
    for total, (slots, used, gigabytes, ratio) in PRINTED["table1"].items():
        window = TABLE1_BOUNDARY if total <= TABLE1_BOUNDARY else LONG_TOKENS
        ours = LONG_SLOTS * LONG_TOKENS // window
        label = f"table 1, {total:,} tokens"
        yield numbers(f"{label}: slots a GPU", "16 x 65,536/window", slots, ours, 0, "KV memory shared by equal slots")
        yield numbers(
            f"{label}: KV used of a slot", "tokens/window", used, 100.0 * total / window, 1, "section 2.2", "%"
        )
        size = window * per_token / 2**30
        yield numbers(
            f"{label}: slot", "KV bytes of 80 layers, 8 heads of 128", gigabytes, size, 1, unit, " GB", assumed=True
        )
        cost = LONG_SLOTS * LONG_TOKENS // TABLE1_BOUNDARY / ours
        yield numbers(f"{label}: cost ratio", "slots at B over slots here", ratio, cost, 1, "section 2.2")
    yield numbers(
        "section 2.2: KV of a token", "80 layers, 8 heads of 128", 320, per_token / 1024, 0, unit, " KB", assumed=True
    )
    reason = "a KB of 1,000 bytes, not the 1,024 of table 1"
    size = 64_000 * round(per_token / 1024) * 1e3 / 1e9
    yield numbers("section 2.2: 64,000 tokens", "64,000 x 320 KB", 20.5, size, 1, reason, " GB", assumed=True)


def _table2() -> Iterator[Row]:
    """Shares of the traffic, the cliff, and the band's part of what lies above B."""
    for name, printed in TABLE2.items():
        s = SETTINGS[name]
        alpha = at(s.workload, s.boundary)
        beta = at(s.workload, 1.5 * s.boundary) - alpha
        of = f"table 2, {name}"
        yield numbers(f"{of}: alpha", "printed", printed[0], alpha, 3, "F(B) of the shipped workload")
        yield numbers(
            f"{of}: beta at gamma 1.5", "printed", printed[1], beta, 3, "F(1.5 B) - F(B), straight lines between points"
        )
        slots = LONG_SLOTS * LONG_TOKENS // s.boundary
        reason = f"floor(16 x 65,536/{s.boundary:,}) = {slots} slots over 16, rounded down"
        yield numbers(
            f"{of}: cliff ratio", "n_max of B over n_max of 64K", PRINTED["cliff"][name], slots // LONG_SLOTS, 0, reason
        )
        yield numbers(f"section 7.1, {name}: slots of a short GPU", "16 x 65,536/B", s.slots, slots, 0, "rounded down")
        share = 100.0 * beta / (1.0 - alpha)
        rounded = 100.0 * round(beta, 3) / (1.0 - round(alpha, 3))
        label = f"sections 2.4 and 4.2, {name}: share of the traffic above B that is in the band"
        exact = numbers(
            label,
            "beta/(1 - alpha)",
            PRINTED["band"][name],
            share,
            0,
            "rounding of alpha and beta before they are divided",
            "%",
        )
        yield exact
        if exact[4] != SAME:
            yield numbers(
                label,
                "beta/(1 - alpha) of the printed digits",
                PRINTED["band"][name],
                rounded,
                0,
                "divided as printed in table 2",
                "%",
                assumed=True,
            )


def _savings_formulas() -> Iterator[Row]:
    """The savings formulas of sections 2.2 and 5.1 against the paper's own table 3."""
    for name in TABLE3:
        s = SETTINGS[name]
        alpha = at(s.workload, s.boundary)
        beta = at(s.workload, 1.5 * s.boundary) - alpha
        ratio = s.slots / LONG_SLOTS
        routed, retrofit, _ = PRINTED["savings"][name]
        yield numbers(
            f"table 3, {name}, pool routing: saving",
            "alpha (1 - 1/rho), section 2.2",
            routed,
            100 * alpha * (1 - 1 / ratio),
            1,
            "the formula takes every request to hold a slot for equally long; long requests hold theirs longer",
            "%",
        )
        yield numbers(
            f"table 3, {name}, compress-and-route: saving beyond pool routing, percentage points",
            "beta p_c (1 - 1/rho), section 5.1",
            retrofit - routed,
            100 * beta * s.p_c * (1 - 1 / ratio),
            1,
            "the formula that section 7.2 repeats is not what its table shows",
        )


def _table3() -> Iterator[Row]:
    """Fleets, costs and savings, in every reading."""
    for name in TABLE3:
        readings = [CODED, EXACT, LITERAL, ARRIVING] + ([PAIRS_READING, PAIRS_LITERAL] if name == "Azure" else [])
        for reading in readings:
            yield from _fleets(name, reading)
    for gamma in (1.5, 2.0):
        azure = Workload.from_file("azure")
        band = azure.band_fractions(SETTINGS["Azure"].boundary, gamma)
        possible = 1.0 - band["code"] / sum(band.values())
        yield numbers(
            "table 3, Azure: p_c",
            f"the trace's band at gamma {gamma:g}",
            1.0,
            possible,
            3,
            "the rest of the band is code, which section 5.2 excludes from compression",
        )


def _fleets(name: str, reading: Reading) -> Iterator[Row]:
    """The rows of one workload in one reading, cell by cell."""
    alone, routed, retrofit, designed = TABLE3[name]
    assumed, why = reading is CODED, WHY[reading]
    base = homogeneous(SETTINGS[name].workload, RATE, reading).replicas

    def cell(method: str, what: str, printed: float, ours: float, decimals: int = 0, unit: str = "") -> Row:
        quantity = f"table 3, {name}, {method}: {what}"
        return numbers(quantity, reading.name, printed, ours, decimals, why, unit, assumed=assumed)

    if reading is not ARRIVING:  # without compression every request arrives as it is
        yield cell("homogeneous", "GPUs", alone, base)
        yield cell("homogeneous", "thousand USD a year", PRINTED["costs"][name][0], _thousand_usd(base))
    methods = (
        ("pool routing", routed, _fleet(name, 1.0, reading)),
        ("compress-and-route", retrofit, _fleet(name, 1.5, reading)),
        ("FleetOpt", designed[:2], _best(name, reading)),
    )
    saved = {}
    for (method, pools, found), saving, cost in zip(
        methods, PRINTED["savings"][name], PRINTED["costs"][name][1:], strict=True
    ):
        saved[method] = 100.0 * (1.0 - found.replicas / base)
        if reading is ARRIVING and method == "pool routing":
            continue
        yield cell(method, "short GPUs", pools[0], _count(found.short))
        yield cell(method, "long GPUs", pools[1], _count(found.long))
        yield cell(method, "GPUs", sum(pools), found.replicas)
        yield cell(method, "thousand USD a year", cost, _thousand_usd(found.replicas))
        yield cell(method, "saving", saving, saved[method], 1, "%")
        if method == "FleetOpt":
            yield cell(method, "gamma", designed[2], found.gamma, 1)
    quantity = f"table 3, {name}, FleetOpt: saving beyond pool routing, percentage points"
    gain = saved["FleetOpt"] - saved["pool routing"]
    yield numbers(quantity, reading.name, PRINTED["gains"][name], gain, 1, why, assumed=assumed)
    if assumed:
        digits = round(saved["FleetOpt"], 1) - round(saved["pool routing"], 1)
        reason = "the same, and the difference of savings that are rounded first"
        yield numbers(quantity, f"{reading.name}, as rounded", PRINTED["gains"][name], digits, 1, reason, assumed=True)
    if name == "Azure":
        more = saved["compress-and-route"] - saved["pool routing"]
        yield cell("compress-and-route", "percentage points beyond pool routing (section 7.2)", 29, more)


def _thousand_usd(gpus: int) -> float:
    """A year of nodes, each priced as one GPU [1,000 USD]."""
    return gpus * USD_PER_HOUR * HOURS / 1000.0


def _compressor() -> Iterator[Row]:
    """Tables 4 and 7: latency and fidelity on prompts that are not public."""
    for name, (*latencies, overhead) in PRINTED["table4"].items():
        for q, ms in zip((50, 95, 99), latencies, strict=True):
            quantity = f"table 4, {name}: compressor latency, p{q}"
            yield (quantity, "one core of another machine", f"{ms} ms", "-", NEEDS_DATA, PROMPTS)
        ours = TABLE2[name][1] * latencies[0]
        bound = float(overhead.lstrip("< "))
        verdict = SAME if overhead.startswith("<") and ours < bound else compare(bound, ours, 2)
        reason = (
            "beta and p50 as printed; the mean latency, which is not printed, would be "
            + f"{bound / TABLE2[name][1]:.2f} ms"
        )
        quantity = f"table 4, {name}: overhead of a request"
        yield (quantity, "beta times p50", f"{overhead} ms", f"{ours:.2f} ms", verdict, reason)
    for metric, values in PRINTED["table7"].items():
        for level, value in zip(("mean", "p10", "p50", "p90"), values, strict=False):
            yield (f"table 7: {metric}, {level}", "the paper's prompts", value, "-", NEEDS_DATA, PROMPTS)


def _table5() -> Iterator[Row]:
    """Utilizations, by formula and by simulation."""
    for name, pools in PRINTED["table5"].items():
        s = SETTINGS[name]
        for reading in (CODED, EXACT):
            found = _fleet(name, 1.0, reading)
            for label, pool, (n, analytical, simulated, error) in zip(
                ("short", "long"), (found.short, found.long), pools, strict=True
            ):
                assert pool is not None
                ours = Pool(n, pool.rate_per_s, pool.service_s, pool.scv, pool.slots).utilization
                reason = f"lambda E[S]/slots at the printed GPUs; {WHY[reading]}"
                of, assumed = f"table 5, {name}", reading is CODED
                yield numbers(
                    f"{of}: analytical utilization, {label}", reading.name, analytical, ours, 3, reason, assumed=assumed
                )
                if reading is EXACT:
                    low, high = (0, s.boundary) if label == "short" else (s.boundary, LONG_TOKENS)
                    busy = mean_busy_from_empty(s.workload, low, high, pool.rate_per_s, DES_REQUESTS, pool.slots)
                    yield numbers(
                        f"{of}: simulated utilization, {label}",
                        "30,000 requests into empty slots",
                        simulated,
                        busy / (n * pool.slots),
                        3,
                        f"arrivals last {DES_REQUESTS / pool.rate_per_s:,.0f} s, a request {pool.service_s:.0f} s: slots are "
                        f"still filling. lambda E[S]/slots is {ours:.3f}, which is what the printed figure looks like",
                    )
                    gap = 100.0 * (analytical / simulated - 1.0)
                    reason = "the quotient of digits that were rounded before"
                    yield numbers(f"{of}: error, {label}", "of the printed utilizations", error, gap, 1, reason, "%")
    slots = [
        pool.replicas * pool.slots
        for name in TABLE3
        for found in (_fleet(name, 1.0, CODED),)
        for pool in (found.short, found.long)
        if pool is not None
    ]
    reason = "112 = 7 x 16: the GPUs of one LMSYS pool times the slots of the other"
    yield numbers("section 7.4: fewest slots of a pool", CODED.name, 112, min(slots), 0, reason)
    yield numbers("section 7.4: most slots of a pool", CODED.name, 32_592, max(slots), 0, WHY[CODED], assumed=True)


def _table6() -> Iterator[Row]:
    """Fleets over arrival rates, cell by cell."""
    for rate, *printed in PRINTED["table6"]:
        for reading in (CODED, EXACT):
            base = homogeneous("agent-heavy", float(rate), reading).replicas
            two = _fleet("Agent-heavy", 1.0, reading, float(rate)).replicas
            found = _best("Agent-heavy", reading, float(rate))
            ours = (
                base,
                two,
                found.replicas,
                found.gamma,
                100.0 * (1.0 - two / base),
                100.0 * (1.0 - found.replicas / base),
            )
            labels = (
                "homogeneous",
                "pool routing",
                "FleetOpt",
                "gamma",
                "saving of pool routing",
                "saving of FleetOpt",
            )
            for what, p, o, decimals, unit in zip(
                labels, printed, ours, (0, 0, 0, 1, 1, 1), ("", "", "", "", "%", "%"), strict=True
            ):
                quantity = f"table 6, {rate:,} requests/s: {what}"
                yield numbers(quantity, reading.name, p, o, decimals, WHY[reading], unit, assumed=reading is CODED)


def _latency() -> Iterator[Row]:
    """The latencies of section 7.4, as they were made and as eq. 7-8 define them."""
    for name, printed in PRINTED["p99_ttft_ms"].items():
        s = SETTINGS[name]
        bounds = ((0, s.boundary, s.slots), (s.boundary, LONG_TOKENS, LONG_SLOTS))
        for label, ms, (low, high, slots) in zip(("short", "long"), printed, bounds, strict=True):
            quantity = f"section 7.4, {name}: P99 TTFT, {label}"
            alone = 1e3 * lone_prefill_s(s.workload, low, high)
            reason = "it is a mean, and of an iteration with one slot busy (8.65 ms)"
            yield numbers(quantity, "mean prefill of a batch of one", ms, alone, 0, reason, " ms", assumed=True)
            step = W + H * slots
            prefill = prefill_s(s.workload, low, high, slots, 0.99)
            yield (
                quantity,
                "eq. 7-8 as printed, without waiting",
                f"{ms} ms",
                f"{1e3 * prefill:,.0f} + {1e3 * step:,.0f} = {1e3 * (prefill + step):,.0f} ms",
                DIFFERS,
                "P99 of ceil(L_in/512) iterations with all slots busy, and one decode step: "
                + ("no number of GPUs meets 500 ms" if prefill + step > TTFT_S else "500 ms leaves room to wait"),
            )


def _claims() -> Iterator[Row]:
    """Statistics of the workloads, and statements of the text."""
    azure = Workload.from_file("azure")
    of = "section 7.1, Azure"
    for what, printed, file in (
        ("requests", 28_185, "azure"),
        ("coding requests", 8_819, "azure-code"),
        ("conversations", 19_366, "azure-conv"),
    ):
        yield numbers(f"{of}: {what}", "counted", printed, _requests(file), 0, "the public trace")
    yield numbers(f"{of}: mean of the total, tokens", "exact", 1588, azure.mean_total, 0, "the public trace")
    for q, printed in ((0.9, 4242), (0.99, 7445)):
        reason = "4,242 is the p95 of the trace" if q == 0.9 else "exact in the shipped file"
        yield numbers(f"{of}: p{100 * q:g} of the total, tokens", "exact", printed, azure.quantile(q), 0, reason)
    below = 100.0 * float(azure.cdf(np.array([2048.0]))[0])
    yield numbers(
        "section 1, Azure: requests below 2K tokens", "F(2,048)", 80, below, 0, "the text rounds to tens", "%"
    )
    agent = table("agent-heavy")
    of = "section 7.1, Agent-heavy"
    mean = Workload.from_file("agent-heavy").mean_total
    yield numbers(f"{of}: mean of the total, tokens", "shipped workload", 6511, mean, 0, "middles of the bins")
    bins = np.append(0, POINTS)
    for q, printed in ((0.5, 4096), (0.9, 16384), (0.99, 32768)):
        quantity = f"{of}: p{100 * q:g} of the total, tokens"
        ours = float(np.interp(q, np.append(0.0, agent), bins))
        yield numbers(
            quantity, "straight lines between points", printed, ours, 0, "it is the upper end of the bin that holds it"
        )
        end = float(POINTS[np.searchsorted(agent, q - 1e-12)])
        yield numbers(
            quantity, "upper end of the bin", printed, end, 0, "the bin that holds the percentile", assumed=True
        )
    s = SETTINGS["Agent-heavy"]
    above = 100.0 * (1.0 - at("agent-heavy", 1.5 * s.boundary))
    quantity = "section 7.2, Agent-heavy: traffic above gamma B"
    yield (quantity, "1 - F(1.5 B)", "26%", f"{above:.1f}%", DIFFERS, "26% is 1 - alpha, the traffic above B")
    found = min(
        (
            fleet("lmsys", int(b), LONG_SLOTS * LONG_TOKENS // int(b), 1.0, g, RATE, CODED)
            for b in POINTS[2:12]
            for g in GAMMAS
        ),
        key=lambda f: f.replicas,
    )
    slots = found.short.slots if found.short else 0
    yield (
        "table 3, LMSYS, FleetOpt: GPUs",
        "Algorithm 1 over B and gamma",
        "59",
        f"{found.replicas}",
        DIFFERS,
        f"the table keeps B = 1,536; Algorithm 1 also sweeps B and finds {slots} slots a GPU",
    )
    yield _arithmetic(azure)


def _requests(file: str) -> int:
    """Requests behind a shipped workload."""
    counted = Workload.from_file(file).provenance.requests
    assert counted is not None
    return counted


def _arithmetic(azure: Workload) -> Row:
    """GPUs that the floating-point operations of Azure's traffic alone need."""
    llama, a100 = model("llama-3.1-70b"), gpu("a100-80gb")
    law = FleetMoments(azure, chunk=CHUNK).law(State(0.0), State(float("inf")))
    assert law is not None
    linear = 2.0 * llama.parameters_active * azure.mean_total
    attention = 4.0 * llama.q_heads * llama.head_dim * llama.layers * (law.mean(PAIRS) + law.mean(KV))
    flops = RATE * (linear + attention)
    gpus = flops / a100.flops_per_s["bf16"]
    return (
        "table 3, Azure, FleetOpt: GPUs",
        "arithmetic at 100% of peak, nodes of eight A100s",
        "50",
        f"{gpus / 8.0:.0f} at least",
        DIFFERS,
        f"{flops / 1e15:.0f} PFLOP/s for a 70B model are {gpus:.0f} A100s; prefill costs no compute in eq. 3-4",
    )


SECTIONS = (_table1, _table2, _table3, _savings_formulas, _compressor, _table5, _table6, _latency, _claims)
"""Every printed number of FleetOpt that the shipped workloads suffice to recompute, and why the others cannot be."""
