"""Erlang B and C to 25 digits, by routes the package does not take. Run to rewrite ``erlang.json``.

Whole c: 1/B = sum_j c!/((c - j)! a^j), every term positive, in mpmath; where the sum is too long (a far below c) 1/B is
Gamma(c + 1) e^a a^-c, the rest being below 1e-40. Fractional c: 1/B = a int_0^inf e^(-a t) (1 + t)^c dt by quadrature.
The offered load is the double nearest c (1 - slack), taken as exact.
"""

from __future__ import annotations

import json
from pathlib import Path

from mpmath import mp, mpf, quad

mp.dps = 40
SERVERS = [1, 2, 3, 5, 10, 15, 16, 17, 30, 100, 199, 201, 1000, 10_000, 100_000, 1_000_000, 2_800_000, 10_000_000]
SLACKS = [0.9, 0.5, 0.31, 0.29, 0.1, 0.03, 1e-2, 2.8e-3, 2.5e-3, 1.3e-3, 1e-3, 3e-4, 1e-4, 1e-6, 1e-9]
FRACTIONS = [1.25, 3.7, 15.99, 16.01, 100.25, 12_345.678]


def inverse_sum(c: int, a):
    total, term, j = mpf(1), mpf(1), 0
    while j < c:
        term *= (c - j) / a
        total += term
        j += 1
        if c - j < a and term < total * mpf(10) ** -36:
            break
    return total


def main() -> None:
    rows = []
    for c in [*SERVERS, *FRACTIONS]:
        for slack in SLACKS:
            load = c * (1.0 - slack)
            a = mpf(load)
            if c in FRACTIONS:
                peak = max(c / a - 1, mpf(0))
                width = mp.sqrt(c) / a
                inner = [max(peak + k * width, 0) for k in (-12, -6, -3, 0, 3, 6, 12, 30)]
                edges = sorted({mpf(0), *inner, peak + 100 * width + 50 / a})
                scale = -a * peak + c * mp.log(1 + peak)
                value = quad(lambda t, a=a, c=c, s=scale: mp.exp(-a * t + c * mp.log(1 + t) - s), [*edges, mp.inf])
                log_inverse = mp.log(a) + mp.log(value) + scale
            elif slack * c**0.5 > 45:
                log_inverse = mp.loggamma(c + 1) + a - c * mp.log(a)
            else:
                log_inverse = mp.log(inverse_sum(c, a))
            inverse = mp.exp(log_inverse)
            log_c = mp.log(c) - mp.log(a + (c - a) * inverse)
            rows.append([c, load, mp.nstr(-log_inverse, 25), mp.nstr(log_c, 25)])
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    head = '{"columns": ["servers", "offered_load", "log_erlang_b", "log_erlang_c"],\n"rows": '
    Path(__file__).with_name("erlang.json").write_text(head + text + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
