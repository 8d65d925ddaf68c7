"""Makes the expected values of fluid_formulas.json with mpmath, from the papers' equations and other routes than planner.fluid.

python tests/golden/make_fluid_formulas.py           # compare with the file: nothing may differ beyond 28 digits
python tests/golden/make_fluid_formulas.py --write   # write the file anew, inputs as they are

Where the package iterates, sums or expands, this takes Lambert's W, sums token by token, a quadrature or bisection, at
60 digits or more.
"""

from __future__ import annotations

import argparse
import json
import math
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import mpmath as mp

FILE = Path(__file__).with_name("fluid_formulas.json")
mp.mp.dps = 60
F = Fraction


def num(value: Any) -> Any:
    """An input as an exact rational, lists and records of them likewise; other text as it is."""
    if isinstance(value, dict):
        return {k: num(v) for k, v in value.items()}
    if isinstance(value, list):
        return [num(v) for v in value]
    if isinstance(value, bool):
        return value
    try:
        return F(value)
    except (ValueError, TypeError):
        return value


def real(value: Any) -> Any:
    """A rational as an mpmath number."""
    return mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else mp.mpf(value)


def ceil(a: Any, b: Any) -> int:
    return -(-a // b)


# --- RAD and SLAI: tiles counted one by one


def inv_mu_lin(N, d, dx, dff, dout, trow, tred, s, mu):
    return (3 * N * dx * d + N * d * dff + N * dff * dx + dx * dout) / (s * mu * trow * tred)


def T_D_SA(i, d, trow, tcol, s, mu):
    return (d / tcol * ceil(i, trow) + ceil(i, tcol) * d / trow) / (s * mu)


def _theorem_1(dist, p, extra):
    """Theorem 1 with t_lcm replaced by `extra`."""
    total = F(0)
    for prompt, decodes, weight in dist:
        work = (prompt + decodes) * (p["inv_mu_lin"] / p["tcol"] + p["inv_mu_nlin"])
        for i in range(1, int(decodes) + 1):
            work += p["N"] * T_D_SA(prompt + i, p["d"], p["vrow"], p["vcol"], p["s"], p["mu_gemv"])
        work += p["N"] * p["d"] / (p["s"] * p["mu"] * p["trow"] * p["tcol"] * p["tred"]) * prompt * (prompt + extra)
        total += weight * work
    return total


def Tbar_R(dist, params):
    return _theorem_1(dist, params, math.lcm(*(int(params[t]) for t in ("trow", "tcol", "tred"))))


def Tbar_R_chunk_tcol_lower_bound_c1(dist, params):
    return _theorem_1(dist, params, 1)


def rad_lambda_max(r, dist, params):
    return r / Tbar_R(dist, params)


def T_max(lp_max, ld_max, params, inv_mu_lin_max=None, inv_mu_nlin_max=None):
    p, tokens = params, lp_max + ld_max
    lin = p["inv_mu_lin"] if inv_mu_lin_max is None else inv_mu_lin_max
    nlin = p["inv_mu_nlin"] if inv_mu_nlin_max is None else inv_mu_nlin_max
    attention = sum(T_D_SA(F(i), p["d"], p["vrow"], p["vcol"], p["s"], p["mu_gemv"]) for i in range(1, int(tokens) + 1))
    return tokens * (lin + nlin) + p["N"] * attention


def rad_alpha(lam, r, Tbar_R, T_max):
    return max(lam * Tbar_R / r - 1, F(0)) / T_max


def slai_last_time(e, tbt, delta, tb):
    return e + tbt - delta * tb


# --- exclusive batching: Lambert's W at many digits


def _zeta(g):
    """zeta of eq. 3: -W_{-1}(-exp(-1 - g)) = exp(zeta)."""
    g = real(g)
    if g == 0:
        return mp.mpf(0)
    if g > 100:  # the argument of W is too small to write: halve an interval instead
        low, high = mp.log(g), mp.log(g) + 1 + mp.log(g) / g * 10
        for _ in range(220):
            middle = (low + high) / 2
            low, high = (low, middle) if mp.expm1(middle) - middle > g else (middle, high)
        return high
    # the argument is near -1/e for small g: half the digits go
    with mp.workdps(120 + 2 * max(0, int(-mp.log10(g)))):
        return mp.log(-mp.lambertw(-mp.exp(-1 - g), -1).real)


def theta0(g):
    zeta = _zeta(g)
    return {"theta0": -mp.expm1(-zeta), "one_minus_theta0": mp.exp(-zeta), "zeta": zeta}


def TP_EB(k, N, alpha_p, alpha_d, beta_p, beta_d, mu_L, mu_O):
    if k == N:
        return F(0)
    drain = real(alpha_p) - real(alpha_d * mu_O) * mp.log(1 - real(k / N))
    return 1 / (drain / real(k) + real(beta_p * mu_L + beta_d * mu_O))


def _at_best(alpha_p, alpha_d, mu_O):
    """(alpha_p + alpha_d mu_O zeta)/theta0."""
    zeta = _zeta(alpha_p / alpha_d / mu_O)
    return (real(alpha_p) + real(alpha_d * mu_O) * zeta) / -mp.expm1(-zeta)


def TP_EB_opt(N, alpha_p, alpha_d, beta_p, beta_d, mu_L, mu_O):
    return 1 / (_at_best(alpha_p, alpha_d, mu_O) / real(N) + real(beta_p * mu_L + beta_d * mu_O))


def T_ifr(zeta, p0, eta):
    # positive root of p0 T + eta T^2/2 = zeta
    z, p, e = real(zeta), real(p0), real(eta)
    return z / p if e == 0 else (mp.sqrt(p * p + 2 * e * z) - p) / e


def I_ifr_over_N(zeta, p0, eta):
    z, p, e = real(zeta), real(p0), real(eta)
    if e == 0:
        return (1 - mp.exp(-z)) / p
    with mp.workdps(120):  # two scaled error functions that nearly cancel
        a = p / mp.sqrt(2 * e)
        b = mp.sqrt(a * a + z)
        scaled = [mp.exp(x * x) * mp.erfc(x) for x in (a, b)]
        return mp.sqrt(mp.pi / (2 * e)) * (scaled[0] - mp.exp(-z) * scaled[1])


def theta_fluid_reset(p0, eta, alpha_ratio, rho=0):
    if alpha_ratio == 0 and p0**2 >= eta * (1 + rho):
        return F(0)

    def excess(z):
        h = mp.sqrt(real(p0) ** 2 + 2 * real(eta) * z)
        inner = real(rho) * (-mp.expm1(-z) / h - I_ifr_over_N(z, p0, eta)) if rho else 0
        return mp.expm1(z) / h - T_ifr(z, p0, eta) + inner - real(alpha_ratio)

    low, high = mp.mpf("1e-8"), mp.mpf(1)
    while excess(high) < 0:
        high *= 2
    while excess(low) >= 0:
        low /= 4
    for _ in range(220):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) >= 0 else (middle, high)
    return -mp.expm1(-high)


def dtheta_first_order(p0, eta, theta0, rho=0):
    th = real(theta0)
    if th in (0, 1):
        return F(0)
    z = -mp.log(1 - th)
    bracket = z * (th / (1 - th) - z / 2) + real(rho) * (z - th)
    return real(eta) * (1 - th) ** 2 / (real(p0) ** 2 * th) * bracket


def _age(theta):
    """(1 - theta) zeta/theta."""
    th = real(theta)
    return mp.mpf(1) if th == 0 else -(1 - th) * mp.log(1 - th) / th


def N_bounds(C, eps, mu_L, p0, theta):
    each = real(mu_L) + _age(theta) / real(p0)
    rate = 1 / real(p0 * p0 * mu_L)
    star = (real(C) + rate * mp.log(real(eps))) / each
    return {
        "N_static": int(mp.floor(real(C) / each)), "N_expected": int(mp.floor((real(C) - rate) / each)),
        "N_star": int(mp.floor(star)), "N_star_real": star, "infeasible": bool(mp.floor(star) < 1),
    }  # fmt: skip


def _mean_memory(mu_L, p0, theta, t):
    """Mean memory of a slot t iterations into a decode phase."""
    return mp.exp(-real(p0) * t) * (real(mu_L) + _age(theta) / real(p0) + t)


def _peak_time(mu_L, p0, theta):
    # the mean's derivative vanishes where p0 (mu_L + age + t) = 1
    return max(1 / real(p0) - real(mu_L) - _age(theta) / real(p0), mp.mpf(0))


def fluid_peak_per_slot(mu_L, p0, theta):
    return _mean_memory(mu_L, p0, theta, _peak_time(mu_L, p0, theta))


def vbar(p0, mu_L, var_L=0):
    exact = var_L + (1 - p0) / p0**2 + (1 - p0) * (mu_L + 1 / p0) ** 2
    return {"approx": 1 / (p0**2 * mu_L), "exact_vn": exact / (2 * mu_L)}


def N_corr(C, eps, mu_L, var_L, p0, theta):
    th, p = real(theta), real(p0)
    t = _peak_time(mu_L, p0, theta)
    m = _mean_memory(mu_L, p0, theta, t)
    alive = mp.exp(-p * t)
    length = -mp.log(1 - th) / p
    second = alive * (real(var_L) + length**2 * (1 - th) / th**2 + (m / alive) ** 2)
    s = mp.sqrt(second - m * m)
    z = mp.sqrt(2) * mp.erfinv(1 - 2 * real(eps))
    root = (-z * s + mp.sqrt(z * z * s * s + 4 * m * real(C))) / (2 * m)
    return {"N_real": root**2, "N": int(mp.floor(root**2)), "m": m, "s": s, "t_m": t}


def TP_MB(N, alpha_MB, beta_MB, mu_L, mu_O):
    return 1 / (alpha_MB * (1 + mu_O) / N + beta_MB * (mu_L + mu_O))


def crossover_rhs_closed(N, alpha_p, alpha_d, alpha_MB, mu_L, mu_O):
    return (_at_best(alpha_p, alpha_d, mu_O) - real(alpha_MB * (1 + mu_O))) / real(N * (mu_L + mu_O))


def N_crossover(alpha_p, alpha_d, alpha_MB, beta_MB, beta_p, beta_d, mu_L, mu_O):
    gap = beta_MB * (mu_L + mu_O) - beta_p * mu_L - beta_d * mu_O
    return (_at_best(alpha_p, alpha_d, mu_O) - real(alpha_MB * (1 + mu_O))) / real(gap)


def kappa(c0, c1, c2):
    return 2 * c2 / (c0 + c1 + c2)


def hazard_fit(outputs, weights, t_max):
    del weights, t_max  # number at risk; the 95th percentile
    n = len(outputs)
    last = int(sorted(outputs)[math.ceil(F(95, 100) * n) - 1])
    points = []
    for t in range(1, last + 1):
        risk = sum(o >= t for o in outputs)
        points.append((t, F(sum(o == t for o in outputs), risk), risk))
    weight = sum(w for *_, w in points)
    middle = sum(F(t * w) for t, _, w in points) / weight
    level = sum(h * w for _, h, w in points) / weight
    spread = sum((t - middle) ** 2 * w for t, _, w in points)
    slope = sum((t - middle) * (h - level) * w for t, h, w in points) / spread if spread else F(0)
    return {"p0": level - slope * middle, "eta": slope}


def theta_age_aware(law, alpha_ratio, p=None, n=None, outputs=None, p0=None, eta=None):
    if law == "geometric":
        survival = [(1 - real(p)) ** t for t in range(int(n))]
    elif law == "sample":
        lengths = list(range(32, 97)) if isinstance(outputs, str) else [int(o) for o in outputs]
        survival = [F(sum(o > t for o in lengths), len(lengths)) for t in range(max(lengths))]
    else:
        survival = [mp.mpf(1)]
        for t in range(1, int(n)):
            survival.append(survival[-1] * (1 - min(real(p0) + real(eta) * t, mp.mpf(1))))
    survival = [real(s) for s in survival]
    ratio = real(alpha_ratio)
    costs = {T: (ratio + T) * mp.fsum(survival[::T]) for T in range(1, len(survival) + 1)}
    least = min(costs.values())
    T = min(t for t, c in costs.items() if c <= least * (1 + mp.mpf(10) ** -50))
    return {"T": T, "theta": 1 / mp.fsum(survival[::T]), "cost": costs[T], "mu_O": mp.fsum(survival)}


# --- WAIT: token by token


def _work(l, o):
    """Token-iterations of a request of l prompt tokens and o decodes."""
    return sum((l + s for s in range(int(o) + 1)), F(0)) if o == int(o) else (o + 1) * (l + o / 2)


def load_scale_max(types, d0, d1, C):
    # c with M*(c) = C: fluid memory d0 c S/(1 - d1 c S)
    S = sum(rate * _work(l, o) for rate, l, o in types)
    return C / (d0 * S + d1 * S * C)


def fluid_equilibrium(types, d0, d1):
    S = sum(rate * _work(l, o) for rate, l, o in types)
    dT = d0 / (1 - d1 * S)
    return {
        "S": S, "dT": dT, "M": dT * S, "n": [rate * (o + 1) * dT for rate, _, o in types],
        "stage": [rate * dT for rate, *_ in types], "thr": sum(rate * o for rate, _, o in types),
    }  # fmt: skip


def wait_dT(n, types, d0, d1):
    memory = sum(k * _work(l, o) for k, (_, l, o) in zip(n, types, strict=True))
    return {"dT": d0 + d1 * memory, "M_pi": memory}


def wait_min_thresholds(types, d0, d1, strict=True):
    if d1 * sum(rate * _work(l, o) for rate, l, o in types) >= 1:
        return None
    n = [F(1)] * len(types)
    while True:  # each round from exact rationals
        dT = wait_dT(n, types, d0, d1)["dT"]
        new = [max(F(1), F(math.floor(r * dT) + 1) if strict else F(math.ceil(r * dT))) for r, *_ in types]
        if new == n:
            break
        n = new
    found = wait_dT(n, types, d0, d1)
    bounds = [
        2 * k + r * dT / (2 * (k - r * dT)) if k > r * dT else math.inf for k, (r, *_) in zip(n, types, strict=True)
    ]
    return {"n": [int(k) for k in n], "dT": found["dT"], "M_pi": found["M_pi"], "queue_bound": bounds}


def theta_k(n_k, n_km1, p):
    lower = 8 * (n_k - p * n_km1) / n_km1
    if n_k >= n_km1 or n_k <= p * n_km1:
        return {"theta": math.inf if n_k >= n_km1 else None, "lower_bound": lower}
    with mp.workdps(100):

        def f(t):
            return real(n_km1) * mp.log1p(real(p) * mp.expm1(t)) - real(n_k) * t

        low, high = real(lower) / 2, real(lower)
        while f(high) <= 0:
            high *= 2
        for _ in range(320):
            middle = (low + high) / 2
            low, high = (low, middle) if f(middle) > 0 else (middle, high)
        return {"theta": high, "lower_bound": lower}


def nested_M_pi(n, l, lps):
    corrected = n[0] * _work(l, lps[0])
    for k in range(1, len(n)):
        corrected += n[k] * sum((l + s for s in range(int(lps[k - 1]) + 1, int(lps[k]) + 1)), F(0))
    printed, before = F(0), F(0)
    for k, end in enumerate(lps):
        printed += n[k] * (l + sum(lps[: k + 1]) / 2) * (end - before)
        before = end
    return {"corrected": corrected, "printed_eq13": printed}


def nested_M_req(n, l, lps, lambdas, B, delta):
    base, m = nested_M_pi(n, l, lps)["corrected"], len(n)
    tails = [sum(lambdas[k:]) for k in range(m)]
    det, sto = F(0), mp.mpf(0)
    for k, (before, here) in enumerate(pairwise(tails), 1):
        held = l + lps[k - 1]
        det += held * n[k]
        theta = theta_k(n[k], n[k - 1], here / before)["theta"]
        if theta is None:
            return None
        if theta != math.inf:
            sto += real(held) / theta * mp.log(real((m - 1) * B / delta))
    return {"base": base, "det": det, "sto": sto, "total": real(base + det) + sto}


def differ(made: Any, kept: Any) -> bool:
    """Whether a value made differs from the one in the file beyond its last digits."""
    if isinstance(kept, dict):
        return made is None or any(differ(made[k], v) for k, v in kept.items())
    if isinstance(kept, list):
        return len(made) != len(kept) or any(map(differ, made, kept))
    if kept is None or isinstance(kept, bool):
        return made != kept
    if isinstance(kept, str) and "inf" in kept:
        return made != math.inf
    a, b = real(made), mp.mpf(kept)
    return abs(a - b) > abs(b) * mp.mpf("1e-28")


def text(made: Any, kept: Any) -> Any:
    """A value as the file writes it: 30 digits, whole numbers that were whole numbers as they are."""
    if isinstance(kept, dict):
        return {k: text(made[k], v) for k, v in kept.items()}
    if isinstance(kept, list):
        return [text(a, b) for a, b in zip(made, kept, strict=True)]
    if kept is None or isinstance(kept, (bool, int)):
        return made if kept is None or isinstance(kept, bool) else int(made)
    return "inf" if made == math.inf else mp.nstr(real(made), 30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="write the file anew")
    write = parser.parse_args().write
    cases = json.loads(FILE.read_text(encoding="utf-8"))
    wrong = 0
    for case in cases:
        made = globals()[case["quantity"]](**num(case["inputs"]))
        if case["expected"] is not None and differ(made, case["expected"]):
            wrong += 1
            print(case["quantity"], json.dumps(case["inputs"])[:150], made, json.dumps(case["expected"])[:200])
        elif case["expected"] is None and made is not None:
            wrong += 1
            print(case["quantity"], json.dumps(case["inputs"])[:150], made, None)
        if write:
            case["expected"] = text(made, case["expected"]) if made is not None else None
    if write:
        FILE.write_text(json.dumps(cases, indent=0) + "\n", encoding="utf-8")
    print(f"{len(cases)} values, {wrong} differ")
    return 1 if wrong and not write else 0


if __name__ == "__main__":
    raise SystemExit(main())
