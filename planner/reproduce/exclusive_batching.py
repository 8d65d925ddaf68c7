"""Threshold-based exclusive batching: what its formulas give at the points it prints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from planner.catalog import gpu, model
from planner.catalog.kv import kv_capacity_tokens
from planner.catalog.profiles import profile
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

# Table 1: bandwidth [TB/s], FP16 TFLOPS, FLOP/byte
TABLE1 = {
    "b300": (8.0, 4500.0, 562),
    "h200": (4.8, 1979.0, 412),
    "rtx-pro-6000": (1.792, 252.0, 141),
    "l40s": (0.864, 362.5, 419),
}
WORKLOADS = ("ShareGPT", "LongBench", "WildChat", "NuminaMath")
# Tables 2 and 17: throughput [requests/s] of mixed (v1) and exclusive batching, gain [%], average gain [%]
THROUGHPUT = {
    "table 2, RTX PRO 6000, Qwen3-8B": (
        (17.07, 8.35, 12.75, 0.73),
        (19.68, 8.66, 14.19, 0.74),
        (15.3, 3.7, 11.3, 1.4),
        7.9,
    ),
    "table 2, RTX PRO 6000, Qwen3-30B-A3B": (
        (15.98, 11.13, 9.39, 0.52),
        (15.48, 11.67, 10.48, 0.48),
        (-3.1, 4.8, 11.6, -7.7),
        1.4,
    ),
    "table 2, H200, Qwen3-8B": ((41.93, 15.77, 20.87, 1.95), (42.88, 15.81, 21.50, 1.96), (2.3, 0.3, 3.0, 0.5), 1.5),
    "table 2, H200, Qwen3-30B-A3B": (
        (48.96, 24.43, 26.46, 1.83),
        (47.72, 24.03, 26.66, 1.68),
        (-2.5, -1.6, 0.8, -8.2),
        -2.9,
    ),
    "table 17, RTX PRO 6000, Gemma-3-1B": (
        (48.94, 55.08, 53.36, 8.36),
        (50.84, 55.31, 56.26, 8.87),
        (3.9, 0.4, 5.4, 6.1),
        3.9,
    ),
    "table 17, H200, Gemma-3-1B": (
        (52.73, 92.84, 75.17, 12.49),
        (58.33, 96.93, 74.05, 12.80),
        (10.6, 4.4, -1.5, 2.5),
        4.0,
    ),
}
# Table 6: tokens/s of mixed and exclusive batching at 128K, gain [%]
TABLE6 = {
    "Llama-3.2-1B": (26664, 27265, 2.3), "Qwen3-30B-A3B": (4826, 5021, 4.0), "Qwen3-4B": (6134, 6314, 2.9),
    "Qwen3-8B": (5621, 5764, 2.5), "Llama-3.1-8B": (6331, 6482, 2.4), "Qwen3-14B": (3830, 3883, 1.4),
    "Mistral-Nemo-12B": (4774, 4877, 2.2),
}  # fmt: skip
# Table 9: mean prompt and output [tokens] of the workloads whose requests are single
TABLE9 = {"ShareGPT": (105, 280), "LongBench": (2492, 11), "NuminaMath": (122, 1039)}
# Table 10: mean output -> best threshold at N = 64, 128, 256, 512, mean, standard deviation
TABLE10 = {
    64: ((0.53, 0.46, 0.40, 0.46), 0.46, 0.05), 128: ((0.53, 0.33, 0.33, 0.40), 0.40, 0.09),
    192: ((0.39, 0.20, 0.13, 0.60), 0.33, 0.21), 256: ((0.39, 0.27, 0.27, 0.40), 0.33, 0.07),
    320: ((0.33, 0.27, 0.33, 0.13), 0.26, 0.09), 384: ((0.33, 0.20, 0.13, 0.27), 0.23, 0.08),
}  # fmt: skip
FIRST_ROW = fmean(TABLE10[64][0])
# Table 11: mean prompt -> tokens/s at k = 8, 16, .., 128; best k, best threshold
TABLE11 = {
    1: ((3036, 4223, 5091, 5266, 6094, 5943, 6627, 6368, 5830, 5986, 6337, 6330, 6150, 5874, 5543, 5626), 56, 0.438),
    32: ((3366, 4276, 4949, 5413, 5652, 5801, 5735, 5990, 6059, 6103, 6001, 5892, 5751, 5461, 5184, 5313), 80, 0.625),
    64: ((3331, 4273, 4554, 4776, 5356, 5494, 5460, 5522, 5553, 5342, 5488, 5338, 5242, 4998, 4906, 4995), 72, 0.562),
    128: ((3047, 3867, 4278, 4421, 4427, 4578, 4701, 4580, 4825, 4701, 4637, 4563, 4460, 4241, 4300, 4315), 72, 0.562),
}
TABLE11_SLOTS, TABLE11_OUTPUT = 128, 64
# Table 12: p-values of Mann-Kendall and of the regression
TABLE12 = {"ShareGPT": (6.6e-10, 2.4e-13), "NuminaMath": (1.0e-8, 5.2e-10), "WildChat": (1.9e-5, 3.7e-7)}
# Table 13: tokens/s at thresholds 0.1, .., 0.9 and with the controller; percent of the best
TABLE13 = {
    "Gamma(2)": (
        (3303, 3351, 3399, 3435, 3472, 3585, 4129, 3991, 3877, 4056),
        (80, 81, 82, 83, 84, 87, 100, 97, 94, 98),
    ),
    "ShareGPT": (
        (6133, 6347, 6620, 6676, 7023, 7180, 6988, 6853, 6544, 7048),
        (85, 88, 92, 93, 98, 100, 97, 95, 91, 98),
    ),
}
# Table 20, 4 x RTX PRO 6000: TTFT [ms] of EB+ and of the splits 1P+3D, 2P+2D, 3P+1D that ran
TABLE20_TTFT = (
    (171, (4385, 476, 482)), (116, (316, 229, 272)), (62, (223, 166, 220)), (381, (10283, 3369)),
    (229, (844, 505, 664)), (119, (719, 404, 592)), (1205, (21412, 9245)), (697, (4013, 1676)), (284, (1842, 1074, 2295)),
)  # fmt: skip
# Statements of the text: what it says, and the two measurements of it
GAINS = (
    ("section 4.4, c = 512, RTX PRO 6000: throughput of EB+ over v1", 62, 13_510, 8_330, 0),
    ("section 4.4, c = 2048, RTX PRO 6000: throughput of EB+ over v1", 50, 13_214, 8_830, 0),
    ("section 4.4, distribution shift, RTX PRO 6000: throughput of EB+ over v1", 36.4, 9_582, 7_025, 1),
    ("section 4.4, distribution shift, H200: throughput of EB+ over v1", 3.9, 21_182, 20_396, 1),
    ("section 4.4, concurrency shift, RTX PRO 6000: throughput of EB+ over v1", 22.6, 10_250, 8_364, 1),
    ("section 4.4, concurrency shift, H200: throughput of EB+ over v1", 0.6, 24_397, 24_251, 1),
    ("section 4.5.1, L40S: throughput of EB over v1", 41.9, 14.70, 10.36, 1),
    ("section 4.3.3, ShareGPT: TPOT of EB against v1", -65, 93.68, 268.97, 0),
    ("section 4.3.3, WildChat: TPOT of EB against v1", -35, 113.22, 173.33, 0),
    ("section 4.3.3, NuminaMath: TPOT of EB against v1", -20, 65.22, 81.75, 0),
    ("appendix F.4, 2 x RTX PRO 6000, c = 512: EB+ over disaggregation", 31.8, 21_710, 16_467, 1),
    ("appendix F.4, 2 x RTX PRO 6000, c = 2048: EB+ over v1", 22.8, 19_926, 16_228, 1),
    ("appendix F.4, 2 x H200, c = 64: EB+ over disaggregation", 17.7, 26_857, 22_825, 1),
    ("appendix F.4, 2 x H200, c = 512: EB+ over disaggregation", 14.8, 45_539, 39_649, 1),
    ("appendix F.4, 2 x H200, c = 2048: EB+ over v1", 4.3, 48_015, 46_042, 1),
    ("appendix F.4, prefill-heavy, c = 128: 2P+2D over EB+", 63, 42_577, 26_207, 0),
    ("appendix F.4, balanced, c = 128: 1P+3D over EB+", 14, 12_629, 11_063, 0),
)
TIMES = (
    ("section 4.4, c = 32, RTX PRO 6000: TTFT of EB over v1", 1.5, 0.090, 0.061),
    ("section 4.4, c = 512, RTX PRO 6000: TPOT of v1 over EB+", 1.8, 164.2, 90.4),
    ("appendix F.4, 2 x RTX PRO 6000, c = 512: TTFT of disaggregation over EB+", 3.3, 6.219, 1.900),
)
# Figure 1: share of decodes beyond which a mixed batch costs more than a pure decode; appendix A.3: kappa at 4,096 tokens
FIGURE1 = {"rtx-pro-6000": (20, -11.6), "h200": (80, -0.69)}
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
    for name, (bandwidth, tflops, intensity) in TABLE1.items():
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
    for of, (mixed, exclusive, gains, average) in THROUGHPUT.items():
        found = [100.0 * (e / m - 1.0) for m, e in zip(mixed, exclusive, strict=True)]
        for workload, printed, ours in zip(WORKLOADS, gains, found, strict=True):
            yield numbers(f"{of}, {workload}: gain", reading, printed, ours, 1, QUOTIENT, "%")
        yield numbers(f"{of}: average gain", reading, average, fmean(found), 1, QUOTIENT, "%")
    for name, (mixed_rate, exclusive_rate, printed) in TABLE6.items():
        ours = 100.0 * (exclusive_rate / mixed_rate - 1.0)
        yield numbers(f"table 6, {name}: gain", reading, printed, ours, 1, QUOTIENT, "%")
    for quantity, printed, over, under, decimals in GAINS:
        yield numbers(quantity, reading, printed, 100.0 * (over / under - 1.0), decimals, QUOTIENT, "%")
    for quantity, printed, over, under in TIMES:
        yield numbers(quantity, reading, printed, over / under, 1, QUOTIENT, " times")
    slower = [t / own for own, others in TABLE20_TTFT for t in others]
    reason = "the TTFTs of table 20 span more"
    for what, printed, extreme in (("least", 3, min(slower)), ("most", 18, max(slower))):
        quantity = f"appendix F.4: TTFT of disaggregation over EB+ on RTX PRO 6000, {what}"
        yield numbers(quantity, reading, printed, extreme, 0, reason, " times")


def _plateaus() -> Iterator[Row]:
    """Tables 11 and 13: where the throughput is best, and how flat it is."""
    ks = [8 * (i + 1) for i in range(16)]
    for prompt, (rates, best, threshold) in TABLE11.items():
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
    for name, (tried, shares) in TABLE13.items():
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
    yield numbers(
        "appendix A.1: attention in prefill at 4,096 tokens, width 2,560",
        "L/(6 d)",
        27,
        share,
        0,
        "eq. of the text",
        "%",
    )
    yield numbers(
        "appendix A.1: iterations of a prompt of 128K at 8,192 tokens",
        "128 x 1,024/8,192",
        16,
        128 * 1024 / 8192,
        0,
        "chunked prefill",
    )
    yield numbers(
        "appendix E.1, WildChat: requests", "3,000 conversations of 9.3 turns", 27_900, 3000 * 9.3, -2, "mean turns"
    )
    yield numbers(
        "appendix E.3: shift of the best threshold",
        "from the printed optima",
        0.20,
        IFR_OPTIMUM - CFR_OPTIMUM,
        2,
        "0.36 - 0.16",
    )
    yield numbers(
        "appendix E.5: relative errors of p0, Gamma over ShareGPT",
        "15%/0.5%",
        30,
        15 / 0.5,
        0,
        "from the text",
        " times",
    )
    for name, values in TABLE12.items():
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
    for name, (crossover, printed) in FIGURE1.items():
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
        mixed, exclusive, _, _ = THROUGHPUT[f"{of}, Qwen3-8B"]
        for workload, (prompt, output) in TABLE9.items():
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
    for output, (measured, mean, deviation) in TABLE10.items():
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
