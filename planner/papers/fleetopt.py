"""FleetOpt (arXiv:2603.16514v1): tables 1, 2, 3, 5 and 6, the latencies and the claims that can be recomputed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from planner.catalog import gpu, model
from planner.catalog.kv import kv_bytes_per_token
from planner.papers import fleetopt_sizing as sizing
from planner.papers.printed import SAME, Row, compare, printed_by
from planner.plans import HOURS_PER_YEAR
from planner.workload.pools import KV, PAIRS, FleetMoments, State
from planner.workload.workload import Workload

CODED = sizing.Reading("published program", sampled=True)
EXACT = sizing.Reading("published program, exact sums")
LITERAL = sizing.Reading("eq. 3 as printed", scaled=False)
ARRIVING = sizing.Reading("what each pool really gets", arriving=True)
PAIRS_READING = sizing.Reading("the trace's own lengths", pairs=True)
PAIRS_LITERAL = sizing.Reading("the trace's own lengths, eq. 3", pairs=True, scaled=False)

PRINTED, _row = printed_by(__file__)
TABLE3 = PRINTED["table3"]
TABLE2 = PRINTED["table2"]
RATE, USD_PER_HOUR = float(PRINTED["rate_per_s"]), float(PRINTED["usd_per_hour"])
TABLE1_BOUNDARY, DES_REQUESTS = PRINTED["table1_boundary"], PRINTED["simulated_requests"]


WHY = PRINTED["why"]


def _fleet(name: str, gamma: float, reading: sizing.Reading, rate: float = RATE) -> sizing.Fleet:
    s = sizing.SETTINGS[name]
    return sizing.fleet(s.workload, s.boundary, s.slots, s.p_c, gamma, rate, reading)


def _best(name: str, reading: sizing.Reading, rate: float = RATE) -> sizing.Fleet:
    """Algorithm 1's sweep of gamma; the smallest gamma of the cheapest fleets."""
    return min((_fleet(name, g, reading, rate) for g in sizing.GAMMAS), key=lambda f: f.replicas)


def _count(pool: sizing.Pool | None) -> int:
    return 0 if pool is None else pool.replicas


def _table1() -> Iterator[Row]:
    """The cost cliff: slots by memory, and what a request uses of one."""
    per_token = kv_bytes_per_token(model("llama-3.1-70b"))
    for total, (slots, used, gigabytes, ratio) in PRINTED["table1"].items():
        window = TABLE1_BOUNDARY if total <= TABLE1_BOUNDARY else sizing.LONG_TOKENS
        ours = sizing.LONG_SLOTS * sizing.LONG_TOKENS // window
        yield _row("slots", ours, total=total, printed=slots)
        yield _row("used", 100.0 * total / window, total=total, printed=used)
        yield _row("slot", window * per_token / 2**30, total=total, printed=gigabytes)
        yield _row(
            "ratio", sizing.LONG_SLOTS * sizing.LONG_TOKENS // TABLE1_BOUNDARY / ours, total=total, printed=ratio
        )
    yield _row("token", per_token / 1024)
    yield _row("64,000", 64_000 * round(per_token / 1024) * 1e3 / 1e9)


def _table2() -> Iterator[Row]:
    """Shares of the traffic, the cliff, and the band's part of what lies above B."""
    for name, printed in TABLE2.items():
        s = sizing.SETTINGS[name]
        alpha = sizing.at(s.workload, s.boundary)
        beta = sizing.at(s.workload, 1.5 * s.boundary) - alpha
        yield _row("alpha", alpha, name=name, printed=printed[0])
        yield _row("beta", beta, name=name, printed=printed[1])
        slots = sizing.LONG_SLOTS * sizing.LONG_TOKENS // s.boundary
        cliff = {"boundary": s.boundary, "slots": slots, "printed": PRINTED["cliff"][name]}
        yield _row("cliff", slots // sizing.LONG_SLOTS, name=name, **cliff)
        yield _row("short slots", slots, name=name, printed=s.slots)
        band = PRINTED["band"][name]
        yield (exact := _row("band", 100.0 * beta / (1.0 - alpha), name=name, printed=band))
        if exact[4] != SAME:
            yield _row("band of digits", 100.0 * round(beta, 3) / (1.0 - round(alpha, 3)), name=name, printed=band)


def _savings_formulas() -> Iterator[Row]:
    """The savings formulas of sections 2.2 and 5.1 against the paper's own table 3."""
    for name in TABLE3:
        s = sizing.SETTINGS[name]
        alpha = sizing.at(s.workload, s.boundary)
        beta = sizing.at(s.workload, 1.5 * s.boundary) - alpha
        ratio = s.slots / sizing.LONG_SLOTS
        routed, retrofit, _ = PRINTED["savings"][name]
        yield _row("routing", 100 * alpha * (1 - 1 / ratio), name=name, printed=routed)
        yield _row("compressing", 100 * beta * s.p_c * (1 - 1 / ratio), name=name, printed=retrofit - routed)


def _table3() -> Iterator[Row]:
    """Fleets, costs and savings, in every reading."""
    for name in TABLE3:
        readings = [CODED, EXACT, LITERAL, ARRIVING] + ([PAIRS_READING, PAIRS_LITERAL] if name == "Azure" else [])
        for reading in readings:
            yield from _fleets(name, reading)
    for gamma in (1.5, 2.0):
        azure = Workload.from_file("azure")
        band = azure.band_fractions(sizing.SETTINGS["Azure"].boundary, gamma)
        yield _row("p_c", 1.0 - band["code"] / sum(band.values()), gamma=gamma)


def _fleets(name: str, reading: sizing.Reading) -> Iterator[Row]:
    """The rows of one workload in one reading, cell by cell."""
    alone, routed, retrofit, designed = TABLE3[name]
    assumed = reading is CODED
    known: dict[str, Any] = {"reading": reading.name, "reason": WHY[reading.name], "assumed": assumed}
    base = sizing.homogeneous(sizing.SETTINGS[name].workload, RATE, reading).replicas

    def cell(method: str, what: str, printed: float, ours: float, decimals: int = 0, unit: str = "") -> Row:
        quantity = f"table 3, {name}, {method}: {what}"
        return _row("cell", ours, quantity=quantity, printed=printed, decimals=decimals, unit=unit, **known)

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
    gain = saved["FleetOpt"] - saved["pool routing"]
    yield _row("beyond", gain, name=name, printed=PRINTED["gains"][name], **known)
    if assumed:
        digits = round(saved["FleetOpt"], 1) - round(saved["pool routing"], 1)
        yield _row("beyond, rounded", digits, name=name, of=reading.name, printed=PRINTED["gains"][name])
    if name == "Azure":
        more = saved["compress-and-route"] - saved["pool routing"]
        yield cell("compress-and-route", "percentage points beyond pool routing (section 7.2)", 29, more)


def _thousand_usd(gpus: int) -> float:
    """A year of nodes, each priced as one GPU [1,000 USD]."""
    return float(gpus * USD_PER_HOUR * HOURS_PER_YEAR / 1000.0)


def _compressor() -> Iterator[Row]:
    """Tables 4 and 7: latency and fidelity on prompts that are not public."""
    for name, (*latencies, overhead) in PRINTED["table4"].items():
        for q, ms in zip((50, 95, 99), latencies, strict=True):
            yield _row("latency", "-", name=name, q=q, printed=ms, why=PRINTED["prompts"])
        ours = TABLE2[name][1] * latencies[0]
        bound = float(overhead.lstrip("< "))
        verdict = SAME if overhead.startswith("<") and ours < bound else compare(bound, ours, 2)
        yield _row("overhead", f"{ours:.2f} ms", verdict, name=name, printed=overhead, mean=bound / TABLE2[name][1])
    for metric, values in PRINTED["table7"].items():
        for level, value in zip(("mean", "p10", "p50", "p90"), values, strict=False):
            yield _row("fidelity", "-", metric=metric, level=level, printed=value, why=PRINTED["prompts"])


def _table5() -> Iterator[Row]:
    """Utilizations, by formula and by simulation."""
    for name, pools in PRINTED["table5"].items():
        s = sizing.SETTINGS[name]
        for reading in (CODED, EXACT):
            found = _fleet(name, 1.0, reading)
            for label, pool, (n, analytical, simulated, error) in zip(
                ("short", "long"), (found.short, found.long), pools, strict=True
            ):
                assert pool is not None
                ours = sizing.Pool(n, pool.rate_per_s, pool.service_s, pool.scv, pool.slots).utilization
                words: dict[str, Any] = {
                    "name": name,
                    "label": label,
                    "reading": reading.name,
                    "why": WHY[reading.name],
                }
                yield _row("analytical", ours, printed=analytical, assumed=reading is CODED, **words)
                if reading is EXACT:
                    low, high = (0, s.boundary) if label == "short" else (s.boundary, sizing.LONG_TOKENS)
                    busy = sizing.mean_busy_from_empty(s.workload, low, high, pool.rate_per_s, DES_REQUESTS, pool.slots)
                    words |= {"last": DES_REQUESTS / pool.rate_per_s, "service": pool.service_s, "formula": ours}
                    yield _row("simulated", busy / (n * pool.slots), printed=simulated, **words)
                    yield _row("error", 100.0 * (analytical / simulated - 1.0), printed=error, **words)
    slots = [
        pool.replicas * pool.slots
        for name in TABLE3
        for found in (_fleet(name, 1.0, CODED),)
        for pool in (found.short, found.long)
        if pool is not None
    ]
    yield _row("fewest slots", min(slots), reading=CODED.name)
    yield _row("most slots", max(slots), reading=CODED.name, why=WHY[CODED.name])


def _table6() -> Iterator[Row]:
    """Fleets over arrival rates, cell by cell."""
    for rate, *printed in PRINTED["table6"]:
        for reading in (CODED, EXACT):
            base = sizing.homogeneous("agent-heavy", float(rate), reading).replicas
            two = _fleet("Agent-heavy", 1.0, reading, float(rate)).replicas
            found = _best("Agent-heavy", reading, float(rate))
            saved, best = (100.0 * (1.0 - n / base) for n in (two, found.replicas))
            cells = (base, two, found.replicas, found.gamma, saved, best)
            known = {"rate": rate, "reading": reading.name, "reason": WHY[reading.name], "assumed": reading is CODED}
            for p, ours, (what, decimals, unit) in zip(printed, cells, PRINTED["table6_columns"], strict=True):
                yield _row("table 6", ours, what=what, printed=p, decimals=decimals, unit=unit, **known)


def _latency() -> Iterator[Row]:
    """The latencies of section 7.4, as they were made and as eq. 7-8 define them."""
    for name, printed in PRINTED["p99_ttft_ms"].items():
        s = sizing.SETTINGS[name]
        bounds = ((0, s.boundary, s.slots), (s.boundary, sizing.LONG_TOKENS, sizing.LONG_SLOTS))
        for label, ms, (low, high, slots) in zip(("short", "long"), printed, bounds, strict=True):
            yield _row(
                "prefill", 1e3 * sizing.lone_prefill_s(s.workload, low, high), name=name, label=label, printed=ms
            )
            step, prefill = sizing.W + sizing.H * slots, sizing.prefill_s(s.workload, low, high, slots, 0.99)
            ours = f"{1e3 * prefill:,.0f} + {1e3 * step:,.0f} = {1e3 * (prefill + step):,.0f} ms"
            why = "no number of GPUs meets 500 ms" if prefill + step > sizing.TTFT_S else "500 ms leaves room to wait"
            yield _row("eq. 7-8", ours, name=name, label=label, printed=ms, why=why)


def _claims() -> Iterator[Row]:
    """Statistics of the workloads, and statements of the text."""
    azure = Workload.from_file("azure")
    for what, (printed, file) in PRINTED["requests"].items():
        yield _row("requests", Workload.from_file(file).provenance.requests, what=what, printed=printed)
    yield _row("azure mean", azure.mean_total)
    for q, (printed, why) in PRINTED["azure_levels"].items():
        yield _row("azure level", azure.quantile(q), level=100 * q, printed=printed, why=why)
    yield _row("below 2K", 100.0 * float(azure.cdf(np.array([2048.0]))[0]))
    agent, bins = sizing.table("agent-heavy"), np.append(0, sizing.POINTS)
    yield _row("agent mean", Workload.from_file("agent-heavy").mean_total)
    for q, printed in PRINTED["agent_levels"].items():
        ours = float(np.interp(q, np.append(0.0, agent), bins))
        yield _row("agent level", ours, level=100 * q, printed=printed)
        end = float(sizing.POINTS[np.searchsorted(agent, q - 1e-12)])
        yield _row("agent bin", end, level=100 * q, printed=printed)
    yield _row(
        "above", f"{100.0 * (1.0 - sizing.at('agent-heavy', 1.5 * sizing.SETTINGS['Agent-heavy'].boundary)):.1f}%"
    )
    found = min(
        (
            sizing.fleet("lmsys", int(b), sizing.LONG_SLOTS * sizing.LONG_TOKENS // int(b), 1.0, g, RATE, CODED)
            for b in sizing.POINTS[2:12]
            for g in sizing.GAMMAS
        ),
        key=lambda f: f.replicas,
    )
    yield _row("swept", f"{found.replicas}", slots=found.short.slots if found.short else 0)
    yield _arithmetic(azure)


def _arithmetic(azure: Workload) -> Row:
    """GPUs that the floating-point operations of Azure's traffic alone need."""
    llama, a100 = model("llama-3.1-70b"), gpu("a100-80gb")
    law = FleetMoments(azure, chunk=sizing.CHUNK).law(State(0.0), State(float("inf")))
    assert law is not None
    linear = 2.0 * llama.parameters_active * azure.mean_total
    attention = 4.0 * llama.q_heads * llama.head_dim * llama.layers * (law.mean(PAIRS) + law.mean(KV))
    flops = RATE * (linear + attention)
    gpus = flops / a100.flops_per_s["bf16"]
    return _row("arithmetic", f"{gpus / 8.0:.0f} at least", peta=flops / 1e15, gpus=gpus)


SECTIONS = (_table1, _table2, _table3, _savings_formulas, _compressor, _table5, _table6, _latency, _claims)
"""Every printed number of FleetOpt that the shipped workloads suffice to recompute, and why the others cannot be."""
