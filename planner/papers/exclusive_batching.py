"""Threshold-based exclusive batching: what its formulas give at the points it prints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from planner.catalog import gpu, model
from planner.catalog.kv import kv_capacity
from planner.catalog.profiles import profile
from planner.fluid import exclusive as eb
from planner.fluid.crossover import TP_MB, kappa
from planner.fluid.exclusive_memory import N_bounds, fluid_peak_per_slot, vbar
from planner.machine.derived import exclusive_parameters, mixed_parameters
from planner.machine.roofline import roofline
from planner.papers.printed import DIFFERS, SAME, SAME_UNDER, Row, compare, printed_by
from planner.papers.statistics import student_t

PRINTED, _row = printed_by(__file__)
WORKLOADS = ("ShareGPT", "LongBench", "WildChat", "NuminaMath")
FIRST_ROW = fmean(PRINTED["table10"][64][0])
TABLE11_SLOTS, TABLE11_OUTPUT = PRINTED["table11_setting"]
FIGURE1_TOKENS, FIGURE1_CONTEXT = PRINTED["figure1_setting"]
CFR_OPTIMUM, IFR_OPTIMUM = PRINTED["optima"]


def _ratio(theta: float) -> float:
    """p0 alpha_p/alpha_d of which eq. 3 makes this threshold [1]."""
    return theta / (1.0 - theta) + math.log1p(-theta)


def _gamma2_survival(mean: float, n: int) -> NDArray[np.float64]:
    """P(O > t) of a Gamma of shape 2, t = 0..n-1."""
    x = 2.0 * np.arange(n) / mean
    return np.asarray(np.exp(-x) * (1.0 + x))


def _hardware() -> Iterator[Row]:
    """Table 1 beside the data sheets of the catalog."""
    for name, (bandwidth, tflops, intensity) in PRINTED["table1"].items():
        spec = gpu(name)
        of = f"table 1, {spec.name}"
        ours = spec.bandwidth_bytes_per_s / 1e12
        yield _row("bandwidth", ours, gpu=spec.name, printed=bandwidth)
        dense = spec.flops_per_s["fp16"] / 1e12
        # what the printed rate is, if it is any of the rates that a data sheet knows
        multiple = min((1.0, 2.0, 0.5), key=lambda m: abs(m * dense / tflops - 1.0))
        why = PRINTED["rates"]
        rate = round(multiple * dense)
        digits = -1 if tflops >= 1000 else 0  # vendors double a rounded rate
        known = {"of": of, "why": why[multiple], "assumed": multiple != 1.0}
        yield _row("rate", rate, printed=tflops, decimals=digits, **known)
        # the printed bandwidth, so that this cell is judged by its rate alone
        yield _row("intensity", rate / bandwidth, printed=intensity, **known)
        if multiple != 1.0:
            true = spec.flops_per_s["fp16"] / spec.bandwidth_bytes_per_s
            yield _row("dense", true, gpu=spec.name, printed=intensity, why=why[multiple])


def _gains() -> Iterator[Row]:
    """Gains and quotients in tables and text, from the measurements printed beside them."""
    for of, (mixed, exclusive, gains, average) in PRINTED["throughput"].items():
        found = [100.0 * (e / m - 1.0) for m, e in zip(mixed, exclusive, strict=True)]
        for workload, printed, ours in zip(WORKLOADS, gains, found, strict=True):
            yield _row("gain", ours, of=f"{of}, {workload}", printed=printed)
        yield _row("average", fmean(found), of=of, printed=average)
    for name, (mixed_rate, exclusive_rate, printed) in PRINTED["table6"].items():
        ours = 100.0 * (exclusive_rate / mixed_rate - 1.0)
        yield _row("gain", ours, of=f"table 6, {name}", printed=printed)
    for quantity, printed, over, under, decimals in PRINTED["gains"]:
        yield _row(
            "quotient", 100.0 * (over / under - 1.0), quantity=quantity, printed=printed, decimals=decimals, unit="%"
        )
    for quantity, printed, over, under in PRINTED["times"]:
        yield _row("quotient", over / under, quantity=quantity, printed=printed)
    slower = [t / own for own, others in PRINTED["table20_ttft"] for t in others]
    for what, printed, extreme in (("least", 3, min(slower)), ("most", 18, max(slower))):
        yield _row("slower", extreme, what=what, printed=printed)


def _plateaus() -> Iterator[Row]:
    """Tables 11 and 13: where the throughput is best, and how flat it is."""
    ks = [8 * (i + 1) for i in range(16)]
    for prompt, (rates, best, threshold) in PRINTED["table11"].items():
        k = max(zip(rates, ks, strict=True))[1]
        yield _row("best k", k, prompt=prompt, printed=best)
        yield _row("best threshold", k / TABLE11_SLOTS, prompt=prompt, printed=threshold)
    rate = float(eb.theta0(64.0 * _ratio(FIRST_ROW) / TABLE11_OUTPUT).theta0)
    yield _row("P2", f"{rate:.3f}", SAME_UNDER if 0.438 <= rate <= 0.625 else DIFFERS)
    for name, (tried, shares) in PRINTED["table13"].items():
        thresholds = [f"threshold {i / 10:g}" for i in range(1, 10)] + ["adaptive"]
        for held, throughput, share in zip(thresholds, tried, shares, strict=True):
            yield _row("share", 100.0 * throughput / max(tried), name=name, held=held, printed=share)


def _statements() -> Iterator[Row]:
    """Numbers of the appendices that a line of arithmetic gives."""
    network = model("qwen3-4b")
    yield _row("attention", 100.0 * 4096 / (6.0 * network.hidden_size))
    yield _row("iterations", 128 * 1024 / 8192)
    yield _row("requests", 3000 * 9.3)
    yield _row("shift", IFR_OPTIMUM - CFR_OPTIMUM)
    yield _row("errors", 15 / 0.5)
    for name, values in PRINTED["table12"].items():
        for test, p in zip(("Mann-Kendall", "regression"), values, strict=True):
            below = p < 1e-5
            why = "as the caption says" if below else "the caption says that all are; the table has 1.9e-5"
            yield _row("p-value", f"p = {p:.1e}", SAME if below else DIFFERS, name=name, test=test, why=why)


def _figure1() -> Iterator[Row]:
    """Interference: the curvature of a mixed batch's time over its share of decodes, from the estimate of the GPU."""
    share = np.linspace(0.0, 1.0, 21)
    decodes = np.round(share * FIGURE1_TOKENS)
    new = FIGURE1_TOKENS - decodes
    for name, (crossover, printed) in PRINTED["figure1"].items():
        prior = roofline(gpu(name), model("qwen3-4b"), 1)
        pairs = 0.5 * new * (new + 1.0)
        times = np.asarray(
            prior.time(decodes, decodes * FIGURE1_CONTEXT, new, pairs, FIGURE1_CONTEXT * (decodes > 0), new)
        )
        c2, c1, c0 = np.polyfit(share, times, 2)
        above = share[times > times[-1] * (1.0 + 1e-9)]
        yield _row("kappa", f"{float(kappa(c0, c1, c2)):.2f}", gpu=gpu(name).name, printed=printed)
        ours = f"{100 * above.min():.0f}%" if above.size else "none"
        yield _row("costs more", ours, gpu=gpu(name).name, printed=crossover)


def _throughput() -> Iterator[Row]:
    """Table 2's throughput of Qwen3-8B by eq. 4 and by the mixed batch's line, on shipped measurements of its kernels."""
    network = model("qwen3-8b")
    for name in ("rtx-pro-6000", "h200"):
        card = gpu(name)
        iteration = profile(gpu=card, model=network).iteration
        of = "table 2, " + ("RTX PRO 6000" if name == "rtx-pro-6000" else "H200")
        mixed, exclusive, _, _ = PRINTED["throughput"][f"{of}, Qwen3-8B"]
        for workload, (prompt, output) in PRINTED["table9"].items():
            i = WORKLOADS.index(workload)
            held = prompt + 0.5 * output
            slots = min(1024.0, kv_capacity(network, card, max_num_seqs=1024, token_budget=8192).tokens / held)
            ratio = output / (prompt + output)
            line = mixed_parameters(iteration, ratio, held, prompt).values
            lines = exclusive_parameters(iteration, held).values
            tp_mb = TP_MB(slots, line["alpha_MB"], line["beta_MB"], prompt, output)
            tp_eb = eb.TP_EB_opt(
                slots, lines["alpha_p"], lines["alpha_d"], lines["beta_p"], lines["beta_d"], prompt, output
            )
            reason = f"formula with {slots:,.0f} slots, the mean lengths of table 9 and kernels added up"
            if workload == "NuminaMath" and name == "rtx-pro-6000":
                running = mixed[i] * output * PRINTED["numina_tpot_s"]
                reason += f"; by Little's law the printed rate and TPOT leave {running:.0f} requests running of 256"
            for scheduler, printed, ours in (("v1", mixed[i], tp_mb), ("EB", exclusive[i], tp_eb)):
                words = {"of": of, "workload": workload, "scheduler": scheduler, "printed": printed, "why": reason}
                yield _row("throughput", f"{float(ours):.2f}", **words)


def _table10() -> Iterator[Row]:
    """Best thresholds over the mean output: eq. 3 beside the measurements, and their own summaries."""
    ratio = 64.0 * _ratio(FIRST_ROW)
    for output, (measured, mean, deviation) in PRINTED["table10"].items():
        ours = float(eb.theta0(ratio / output).theta0)
        yield _row("mean of four", fmean(measured), output=output, printed=mean)
        inside = abs(ours - fmean(measured)) <= student_t(len(measured) - 1) * stdev(measured) / 2.0
        verdict = SAME_UNDER if inside else DIFFERS
        yield _row("mean", f"{ours:.2f}", verdict, output=output, printed=mean, ratio=ratio)
        yield _row("deviation", stdev(measured), output=output, printed=deviation)
        for slots, value in zip((64, 128, 256, 512), measured, strict=True):
            yield _row("one", f"{ours:.2f}", output=output, slots=slots, printed=value)


def _thresholds() -> Iterator[Row]:
    """Table 10 by eq. 3, and what discrete iterations and small thresholds change."""
    yield from _table10()
    ratio = 64.0 * _ratio(FIRST_ROW)
    change = max(
        abs(
            eb.theta0_of_costs(ratio, 1.0, p0=p, geometric=True).theta0 / eb.theta0_of_costs(ratio, 1.0, p0=p).theta0 - 1.0
        )
        for p in (0.003, 0.01)
    )  # fmt: skip
    yield _row("discrete", f"{100 * change:.1f}% at most", SAME if change < 0.01 else DIFFERS)
    share = float(eb.theta0_of_costs(0.01, 1.0, p0=1e-3).theta0)
    yield _row("k0", eb.slots_to_refill(share, 64), share=64 * share)


def _increasing_hazard() -> Iterator[Row]:
    """Sections 3.4 and 4.1: hazards of the paper's own synthetic lengths."""
    uniform = eb.hazard_fit(range(256, 769))
    yield _row("uniform", f"{uniform.p0:.2e}")
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    ages = np.arange(0, 12 * PRINTED["optima_mean"])
    lengths = np.interp(quantiles, 1.0 - _gamma2_survival(PRINTED["optima_mean"], ages.size), ages)
    fit = eb.hazard_fit([int(v) for v in np.maximum(np.ceil(lengths), 1.0)])
    implied = 2.8e-4 / 0.15
    yield _row("gamma", f"{fit.p0:.2e}", compare(implied, fit.p0, 5), printed=implied)
    ratio = PRINTED["optima_mean"] * _ratio(CFR_OPTIMUM)
    base = float(eb.theta0_of_costs(ratio, 1.0, p0=fit.p0).theta0)
    first_order = base + float(eb.dtheta_first_order(fit.p0, fit.eta, base, 0.0))
    survival = _gamma2_survival(PRINTED["optima_mean"], 12 * PRINTED["optima_mean"])
    aware = eb.theta_age_aware(survival=survival, alpha_ratio=ratio)
    phases = np.arange(1, 3 * PRINTED["optima_mean"])
    started = np.array([survival[::t].sum() for t in phases])
    at_printed = float(np.interp(IFR_OPTIMUM, 1.0 / started, (ratio + phases) * started)) / float(aware.cost) - 1.0
    reset = float(eb.theta_fluid_reset(fit.p0, fit.eta, ratio, 0.0))
    for key, ours in (("first order", first_order), ("reset", reset), ("true ages", float(aware.theta))):
        words = {"base": CFR_OPTIMUM, "printed": IFR_OPTIMUM, "costs": 100 * at_printed}
        yield _row(key, f"{ours:.2f}", compare(IFR_OPTIMUM, ours, 2), **words)
    base = float(eb.theta0_of_costs(20.0, 1.0, p0=1.0 / 256).theta0)
    beyond = base + float(eb.dtheta_first_order(1.0 / 256, 2.0 / 256**2, base, 5.0))
    yield _row("theorem 3.2", f"{beyond:.2f}")


def _memory() -> Iterator[Row]:
    capacity, prompt, mean, theta = 100_000, 2, 128, 0.9
    size = N_bounds(capacity, 0.01, prompt, 1.0 / mean, theta)
    peak = int(size.N_star) * float(fluid_peak_per_slot(prompt, 1.0 / mean, theta))
    yield _row("peak", f"mean peak {peak / capacity:.2f} C", capacity=capacity, prompt=prompt, mean=mean, theta=theta)
    for y in (0.01, 1.0, 8.0):
        v = vbar(1.0 / 256, y * 256)
        ours = float(v.exact_vn) / float(v.approx)
        yield _row("variance", f"{ours:.2f}", compare(1.0, ours, 2), y=y)


SECTIONS = (_hardware, _gains, _throughput, _figure1, _thresholds, _plateaus, _increasing_hazard, _memory, _statements)
"""The printed numbers that formulas or the measurements beside them suffice to recompute, and the statements they contradict."""
