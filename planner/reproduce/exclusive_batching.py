"""Threshold-based exclusive batching: what its formulas give at the points it prints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from planner.catalog import gpu, model
from planner.catalog.kv import kv_capacity_tokens
from planner.catalog.profiles import profile
from planner.documents import load_document
from planner.fluid.crossover import TP_MB, kappa
from planner.fluid.exclusive import (
    TP_EB_opt,
    dtheta_first_order,
    hazard_fit,
    slots_to_refill,
    theta0,
    theta0_of_costs,
    theta_age_aware,
    theta_fluid_reset,
)
from planner.fluid.exclusive_memory import N_bounds, fluid_peak_per_slot, vbar
from planner.iteration.derived import exclusive_parameters, mixed_parameters
from planner.iteration.roofline import roofline
from planner.reproduce.result import DIFFERS, NEEDS_A_GPU, SAME, SAME_UNDER, Row, compare, numbers

PRINTED = load_document(Path(__file__).with_name("exclusive_batching.yaml"))
WORKLOADS = ("ShareGPT", "LongBench", "WildChat", "NuminaMath")
FIRST_ROW = fmean(PRINTED["table10"][64][0])
TABLE11_SLOTS, TABLE11_OUTPUT = 128, 64
FIGURE1_TOKENS, FIGURE1_CONTEXT = 4096, 16
NUMINA_TPOT_S = 0.08175  # section 4.3.3, v1 on the RTX PRO 6000
CFR_OPTIMUM, IFR_OPTIMUM = 0.16, 0.36  # appendix E.3, Gamma of shape 1 and 2 at one mean
E3_MEAN = 256


def _ratio(theta: float) -> float:
    """p0 alpha_p/alpha_d of which eq. 3 makes this threshold [1]."""
    return theta / (1.0 - theta) + math.log1p(-theta)


def _gamma2_survival(mean: float, n: int) -> NDArray[np.float64]:
    """P(O > t) of a Gamma of shape 2, t = 0..n-1."""
    x = 2.0 * np.arange(n) / mean
    survival: NDArray[np.float64] = np.exp(-x) * (1.0 + x)
    return survival


QUOTIENT = "rounding: the printed values were divided before they were rounded"
STUDENT_3 = 3.182  # 97.5% point of Student's law with three degrees of freedom: a mean of four values


def _hardware() -> Iterator[Row]:
    """Table 1 beside the data sheets of the catalog."""
    for name, (bandwidth, tflops, intensity) in PRINTED["table1"].items():
        spec = gpu(name)
        of = f"table 1, {spec.name}"
        ours = spec.bandwidth_bytes_per_s / 1e12
        yield numbers(
            f"{of}: bandwidth", "data sheet", bandwidth, ours, 3, "the usable part that the vendor states", " TB/s"
        )
        dense = spec.flops_per_s["fp16"] / 1e12
        # what the printed rate is, if it is any of the rates that a data sheet knows
        multiple = min((1.0, 2.0, 0.5), key=lambda m: abs(m * dense / tflops - 1.0))
        why = {
            1.0: "dense tensor-core rate",
            2.0: "structured sparsity counted, which no scheduler here uses",
            0.5: "half of the dense rate",
        }
        rate = round(multiple * dense)
        digits = -1 if tflops >= 1000 else 0  # vendors double a rounded rate
        yield numbers(f"{of}: FP16 TFLOPS", why[multiple], tflops, rate, digits, why[multiple], assumed=multiple != 1.0)
        # the printed bandwidth, so that this cell is judged by its rate alone
        reading = f"{why[multiple]}, printed bandwidth"
        yield numbers(
            f"{of}: FLOP/byte", reading, intensity, rate / bandwidth, 0, why[multiple], assumed=multiple != 1.0
        )
        if multiple != 1.0:
            true = spec.flops_per_s["fp16"] / spec.bandwidth_bytes_per_s
            yield numbers(f"{of}: FLOP/byte", "dense rate of the data sheet", intensity, true, 0, why[multiple])


def _gains() -> Iterator[Row]:
    """Gains and quotients in tables and text, from the measurements printed beside them."""
    reading = "from the printed measurements"
    for of, (mixed, exclusive, gains, average) in PRINTED["throughput"].items():
        found = [100.0 * (e / m - 1.0) for m, e in zip(mixed, exclusive, strict=True)]
        for workload, printed, ours in zip(WORKLOADS, gains, found, strict=True):
            yield numbers(f"{of}, {workload}: gain", reading, printed, ours, 1, QUOTIENT, "%")
        yield numbers(f"{of}: average gain", reading, average, fmean(found), 1, QUOTIENT, "%")
    for name, (mixed_rate, exclusive_rate, printed) in PRINTED["table6"].items():
        ours = 100.0 * (exclusive_rate / mixed_rate - 1.0)
        yield numbers(f"table 6, {name}: gain", reading, printed, ours, 1, QUOTIENT, "%")
    for quantity, printed, over, under, decimals in PRINTED["gains"]:
        yield numbers(quantity, reading, printed, 100.0 * (over / under - 1.0), decimals, QUOTIENT, "%")
    for quantity, printed, over, under in PRINTED["times"]:
        yield numbers(quantity, reading, printed, over / under, 1, QUOTIENT, " times")
    slower = [t / own for own, others in PRINTED["table20_ttft"] for t in others]
    reason = "the TTFTs of table 20 span more"
    for what, printed, extreme in (("least", 3, min(slower)), ("most", 18, max(slower))):
        quantity = f"appendix F.4: TTFT of disaggregation over EB+ on RTX PRO 6000, {what}"
        yield numbers(quantity, reading, printed, extreme, 0, reason, " times")


def _plateaus() -> Iterator[Row]:
    """Tables 11 and 13: where the throughput is best, and how flat it is."""
    ks = [8 * (i + 1) for i in range(16)]
    for prompt, (rates, best, threshold) in PRINTED["table11"].items():
        k = max(zip(rates, ks, strict=True))[1]
        of = f"table 11, mean prompt {prompt}"
        yield numbers(f"{of}: best k", "largest printed throughput", best, k, 0, "of 16 values of k")
        yield numbers(
            f"{of}: best threshold", "k/N", threshold, k / TABLE11_SLOTS, 3, "rounded half to even", assumed=False
        )
    rate = float(theta0(64.0 * _ratio(FIRST_ROW) / TABLE11_OUTPUT).theta0)
    quantity = "appendix E.2.2: range of the best threshold over mean prompts of 1 to 128 (P2)"
    verdict = SAME_UNDER if 0.438 <= rate <= 0.625 else DIFFERS
    reason = "eq. 3, alpha_p/alpha_d set by the first row of table 10; it does not depend on the prompt"
    yield (quantity, "eq. 3", "0.438 to 0.625", f"{rate:.3f}", verdict, reason)
    for name, (tried, shares) in PRINTED["table13"].items():
        thresholds = [f"threshold {i / 10:g}" for i in range(1, 10)] + ["adaptive"]
        for held, throughput, share in zip(thresholds, tried, shares, strict=True):
            ours = 100.0 * throughput / max(tried)
            yield numbers(
                f"table 13, {name}, {held}: share of the peak",
                "from the printed throughputs",
                share,
                ours,
                0,
                QUOTIENT,
                "%",
            )


def _statements() -> Iterator[Row]:
    """Numbers of the appendices that a line of arithmetic gives."""
    network = model("qwen3-4b")
    share = 100.0 * 4096 / (6.0 * network.hidden_size)
    turns, iterations = "3,000 conversations of 9.3 turns", "128 x 1,024/8,192"
    wide, long = "4,096 tokens, width 2,560", "a prompt of 128K at 8,192 tokens"
    shift, errors = "shift of the best threshold", "relative errors of p0, Gamma over ShareGPT"
    for quantity, reading, printed, ours, digits, reason, unit in (
        (f"A.1: attention in prefill at {wide}", "L/(6 d)", 27, share, 0, "eq. of the text", "%"),
        (f"A.1: iterations of {long}", iterations, 16, 128 * 1024 / 8192, 0, "chunked prefill", ""),
        ("E.1, WildChat: requests", turns, 27_900, 3000 * 9.3, -2, "mean turns", ""),
        (f"E.3: {shift}", "from the printed optima", 0.20, IFR_OPTIMUM - CFR_OPTIMUM, 2, "0.36 - 0.16", ""),
        (f"E.5: {errors}", "15%/0.5%", 30, 15 / 0.5, 0, "from the text", " times"),
    ):
        yield numbers(f"appendix {quantity}", reading, printed, ours, digits, reason, unit)
    for name, values in PRINTED["table12"].items():
        for test, p in zip(("Mann-Kendall", "regression"), values, strict=True):
            below = p < 1e-5
            quantity = f"table 12, {name}, {test}: rejected below 1e-5"
            reason = "as the caption says" if below else "the caption says that all are; the table has 1.9e-5"
            yield (quantity, "from the printed p-value", "p < 1e-5", f"p = {p:.1e}", SAME if below else DIFFERS, reason)


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
        reason = (
            "whole-iteration times of the estimate; the paper's are kernels of an engine build that is not published"
        )
        yield (f"appendix A.3, {gpu(name).name}: kappa, Qwen3-4B, 4,096 tokens", "estimate of the GPU", f"{printed:g}",
               f"{float(kappa(c0, c1, c2)):.2f}", NEEDS_A_GPU, reason)  # fmt: skip
        ours = f"{100 * above.min():.0f}%" if above.size else "none"
        yield (f"figure 1, {gpu(name).name}: share of decodes where mixed costs more", "estimate of the GPU",
               f"{crossover}%", ours, NEEDS_A_GPU, reason)  # fmt: skip


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
            slots = min(1024.0, kv_capacity_tokens(network, card, max_num_seqs=1024, token_budget=8192) / held)
            ratio = output / (prompt + output)
            line = mixed_parameters(iteration, ratio, held, prompt).values
            lines = exclusive_parameters(iteration, held).values
            tp_mb = TP_MB(slots, line["alpha_MB"], line["beta_MB"], prompt, output)
            tp_eb = TP_EB_opt(
                slots, lines["alpha_p"], lines["alpha_d"], lines["beta_p"], lines["beta_d"], prompt, output
            )
            reason = f"formula with {slots:,.0f} slots, the mean lengths of table 9 and kernels added up"
            if workload == "NuminaMath" and name == "rtx-pro-6000":
                running = mixed[i] * output * NUMINA_TPOT_S
                reason += f"; by Little's law the printed rate and TPOT leave {running:.0f} requests running of 256"
            for scheduler, printed, ours in (("v1", mixed[i], tp_mb), ("EB", exclusive[i], tp_eb)):
                yield (f"{of}, Qwen3-8B, {workload}: requests/s of {scheduler}", "shipped profile", f"{printed:g}",
                       f"{float(ours):.2f}", NEEDS_A_GPU, reason)  # fmt: skip


def _table10() -> Iterator[Row]:
    """Best thresholds over the mean output: eq. 3 beside the measurements, and their own summaries."""
    ratio = 64.0 * _ratio(FIRST_ROW)
    for output, (measured, mean, deviation) in PRINTED["table10"].items():
        ours = float(theta0(ratio / output).theta0)
        of = f"table 10, mean output {output}"
        yield numbers(f"{of}: mean threshold", "mean of the four", mean, fmean(measured), 2, "rounded")
        inside = abs(ours - fmean(measured)) <= STUDENT_3 * stdev(measured) / 2.0
        reason = (
            f"alpha_p/alpha_d = {ratio:.1f} iterations, from the first row alone; inside the 95% interval of the four"
        )
        yield (
            f"{of}: mean threshold",
            "eq. 3",
            f"{mean:.2f}",
            f"{ours:.2f}",
            SAME_UNDER if inside else DIFFERS,
            reason,
        )
        yield numbers(
            f"{of}: standard deviation", "of the four", deviation, stdev(measured), 2, "divided by n - 1", assumed=True
        )
        for slots, value in zip((64, 128, 256, 512), measured, strict=True):
            reason = "one measured optimum on a flat top; eq. 3 says that N does not matter (P1)"
            yield (f"{of}, N = {slots}: best threshold", "eq. 3", f"{value:.2f}", f"{ours:.2f}", NEEDS_A_GPU, reason)


def _thresholds() -> Iterator[Row]:
    """Table 10 by eq. 3, and what discrete iterations and small thresholds change."""
    yield from _table10()
    ratio = 64.0 * _ratio(FIRST_ROW)
    change = max(
        abs(
            theta0_of_costs(ratio, 1.0, p0=p, geometric=True).theta0 / theta0_of_costs(ratio, 1.0, p0=p).theta0 - 1.0
        )
        for p in (0.003, 0.01)
    )  # fmt: skip
    yield (
        "appendix B.3: effect of discrete iterations on the threshold, p0 in [0.003, 0.01]",
        "eq. 3 with -ln(1 - p0)",
        "below 1%",
        f"{100 * change:.1f}% at most",
        SAME if change < 0.01 else DIFFERS,
        "the substitution is exact for geometric outputs",
    )
    share = float(theta0_of_costs(0.01, 1.0, p0=1e-3).theta0)
    yield (
        "section 3.2.1: k0 = floor(theta0 N) at p0 alpha_p/alpha_d = 1e-5, N = 64",
        "eq. 3-4",
        "0",
        f"{slots_to_refill(share, 64)}",
        DIFFERS,
        f"theta0 N = {64 * share:.2f}; eq. 4 and 7 divide by k0, so it is at least 1",
    )


def _increasing_hazard() -> Iterator[Row]:
    """Sections 3.4 and 4.1: hazards of the paper's own synthetic lengths."""
    uniform = hazard_fit(range(256, 769))
    yield (
        "section 4.1, uniform outputs 256..768: fitted hazard at age 0",
        "weighted least squares, section 3.4",
        "p0 > 0 (assumed)",
        f"{uniform.p0:.2e}",
        DIFFERS,
        "the line through the hazard of the paper's own synthetic workload starts below zero: eq. 3, 5, 6 are undefined",
    )
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    ages = np.arange(0, 12 * E3_MEAN)
    lengths = np.interp(quantiles, 1.0 - _gamma2_survival(E3_MEAN, ages.size), ages)
    fit = hazard_fit([int(v) for v in np.maximum(np.ceil(lengths), 1.0)])
    implied = 2.8e-4 / 0.15
    yield (
        "appendix E.5, Gamma(2) of mean 256: fitted hazard at age 0",
        "number at risk as weight",
        f"{implied:.2e} (2.8e-4 is 15%)",
        f"{fit.p0:.2e}",
        compare(implied, fit.p0, 5),
        "the weights are not printed; these reproduce the figure",
    )
    ratio = E3_MEAN * _ratio(CFR_OPTIMUM)
    base = float(theta0_of_costs(ratio, 1.0, p0=fit.p0).theta0)
    first_order = base + float(dtheta_first_order(fit.p0, fit.eta, base, 0.0))
    survival = _gamma2_survival(E3_MEAN, 12 * E3_MEAN)
    aware = theta_age_aware(survival=survival, alpha_ratio=ratio)
    phases = np.arange(1, 3 * E3_MEAN)
    started = np.array([survival[::t].sum() for t in phases])
    at_printed = float(np.interp(IFR_OPTIMUM, 1.0 / started, (ratio + phases) * started)) / float(aware.cost) - 1.0
    for reading, ours, reason in (
        ("eq. 5 without its last term", first_order, "expands in eta/p0^2, which is 3 here"),
        (
            "fluid model with ages reset at each phase, exact",
            float(theta_fluid_reset(fit.p0, fit.eta, ratio, 0.0)),
            "what eq. 5 expands; requests that outlive a phase do not grow young again",
        ),
        (
            "fluid model with true ages",
            float(aware.theta),
            f"the optimum hardly moves, and is flat: 0.36 costs {100 * at_printed:.0f}% of the fixed part",
        ),
    ):
        yield (f"appendix E.3: best threshold for Gamma(2) where Gamma(1) has {CFR_OPTIMUM}", reading,
               f"{IFR_OPTIMUM:.2f} (measured)", f"{ours:.2f}", compare(IFR_OPTIMUM, ours, 2), reason)  # fmt: skip
    base = float(theta0_of_costs(20.0, 1.0, p0=1.0 / 256).theta0)
    beyond = base + float(dtheta_first_order(1.0 / 256, 2.0 / 256**2, base, 5.0))
    yield (
        "theorem 3.2 at eta/p0^2 = 2, beta_d N/alpha_d = 5, alpha_p/alpha_d = 20, mean 256",
        "eq. 5",
        "a share in [0, 1]",
        f"{beyond:.2f}",
        DIFFERS,
        "the term in beta_d N/alpha_d is an artefact: every request decodes all its tokens, so beta_d cannot move the optimum",
    )


def _memory() -> Iterator[Row]:
    capacity, prompt, mean, theta = 100_000, 2, 128, 0.9
    size = N_bounds(capacity, 0.01, prompt, 1.0 / mean, theta)
    peak = int(size.N_star) * float(fluid_peak_per_slot(prompt, 1.0 / mean, theta))
    yield (
        f"proposition 3.3 at C = {capacity:,}, mean prompt {prompt}, mean output {mean}, theta {theta}",
        "eq. 6, then the mean peak",
        "P(peak > C) <= 1%",
        f"mean peak {peak / capacity:.2f} C",
        DIFFERS,
        "for short prompts memory grows inside a phase; the drift of appendix D releases more than a completion holds",
    )
    for y in (0.01, 1.0, 8.0):
        v = vbar(1.0 / 256, y * 256)
        yield (
            f"appendix D: v_n / (2n/p0) at p0 mu_L = {y:g}, fixed prompts",
            "exact variance of a step",
            "1",
            f"{float(v.exact_vn) / float(v.approx):.2f}",
            compare(1.0, float(v.exact_vn) / float(v.approx), 2),
            "the approximation needs p0 mu_L well below 1",
        )


SECTIONS = (_hardware, _gains, _throughput, _figure1, _thresholds, _plateaus, _increasing_hazard, _memory, _statements)
"""The printed numbers that formulas or the measurements beside them suffice to recompute, and the statements they contradict."""
