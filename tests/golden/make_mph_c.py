"""Exact waiting times of M/PH/c by matrix-geometric methods: the independent goldens of the M/G/c approximations.

Run ``python tests/golden/make_mph_c.py`` to rewrite ``mph_c.json``. Nothing of the package is imported.

Method. A server is in one of k exponential phases; the state with n busy servers is how many are in each phase (a
composition of n into k parts). Levels n >= c repeat, so pi_{n+1} = pi_n R with R = lambda (-(A1 + lambda G))^-1 and G from
logarithmic reduction (Latouche and Ramaswami 1993); the levels below c are eliminated block by block. The queue that an
arrival sees is pi_c R^j 1 = sum_i w_i r_i^j over the eigenvalues of R, and by the distributional form of Little's law
(Poisson arrivals, first come first served: the number waiting is Poisson with the wait as its random mean)

    P(W > t) = sum_i w_i / (1 - r_i) exp(-lambda (1 - r_i) t / r_i) = pi_c (I - R)^-1 exp((A1 + lambda G + lambda I) t) 1.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
from scipy.linalg import expm


def compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    out = []
    for bars in itertools.combinations(range(total + parts - 1), parts - 1):
        last, row = -1, []
        for bar in (*bars, total + parts - 1):
            row.append(bar - last - 1)
            last = bar
        out.append(tuple(row))
    return out


def blocks(n, c, start, rates, routes):
    """Up, local (without diagonal) and down matrices of level n < = c as (up to n+1, local, down to n-1, total out-rate)."""
    k = len(start)
    here = compositions(n, k)
    index = {s: i for i, s in enumerate(here)}
    exits = rates * (1.0 - routes.sum(axis=1))
    local = np.zeros((len(here), len(here)))
    below = compositions(n - 1, k) if n else []
    below_index = {s: i for i, s in enumerate(below)}
    down = np.zeros((len(here), len(below)))
    down_same = np.zeros((len(here), len(here)))  # a departure from a level above c: the next in line starts
    for s, i in index.items():
        for p in range(k):
            if not s[p]:
                continue
            for to in range(k):
                if routes[p, to]:
                    t = list(s)
                    t[p] -= 1
                    t[to] += 1
                    local[i, index[tuple(t)]] += s[p] * rates[p] * routes[p, to]
            if exits[p]:
                t = list(s)
                t[p] -= 1
                down[i, below_index[tuple(t)]] += s[p] * exits[p]
                for to in range(k):
                    if start[to]:
                        u = list(t)
                        u[to] += 1
                        down_same[i, index[tuple(u)]] += s[p] * exits[p] * start[to]
    above = {s: i for i, s in enumerate(compositions(n + 1, k))} if n < c else {}
    up = np.zeros((len(here), len(above)))
    for s, i in index.items():
        for to in range(k):
            if above and start[to]:
                t = list(s)
                t[to] += 1
                up[i, above[tuple(t)]] += start[to]
    return up, local, down, down_same


def solve(c, arrival_rate, start, rates, routes):
    """The vector and matrix of P(W > t) = vector exp(matrix t) 1."""
    start, rates, routes = (np.asarray(x, dtype=float) for x in (start, rates, routes))
    lam = arrival_rate
    _, local, _, a2 = blocks(c, c, start, rates, routes)
    m = len(a2)
    a0 = lam * np.eye(m)
    a1 = local - np.diag(local.sum(1) + a2.sum(1) + lam)
    # logarithmic reduction for G
    inverse = np.linalg.inv(-a1)
    low, high = inverse @ a2, inverse @ a0
    g, t = low.copy(), high.copy()
    for _ in range(60):
        u = high @ low + low @ high
        inverse = np.linalg.inv(np.eye(m) - u)
        low, high = inverse @ low @ low, inverse @ high @ high
        g += t @ low
        t = t @ high
        if np.abs(t).max() < 1e-17:
            break
    r = lam * np.linalg.inv(-(a1 + a0 @ g))
    # levels below c: pi_{n+1} = pi_n ladder[n]
    ladder = []
    closing = local - np.diag(local.sum(1) + a2.sum(1) + lam) + r @ a2  # of level c
    _, _, down_next, _ = blocks(c, c, start, rates, routes)
    for n in range(c - 1, -1, -1):
        up, local_n, down, _ = blocks(n, c, start, rates, routes)
        step = lam * up @ np.linalg.inv(-closing)
        ladder.append(step)
        closing = local_n - np.diag(local_n.sum(1) + down.sum(1) + lam) + step @ down_next
        down_next = down
    pi = [np.ones(1)]
    for step in reversed(ladder):
        pi.append(pi[-1] @ step)
    top = pi[-1]
    total = sum(p.sum() for p in pi[:-1]) + top @ np.linalg.solve(np.eye(m) - r, np.ones(m))
    top = top / total
    return np.linalg.solve(np.eye(m) - r.T, top), a1 + lam * (g + np.eye(m))


def survival(start, generator, t):
    return float(start @ expm(generator * t) @ np.ones(len(start)))


def mean_wait(start, generator):
    return float(-start @ np.linalg.solve(generator, np.ones(len(start))))


def quantile(start, generator, q):
    """Newton's steps on ln P(W > t), which is nearly a straight line, inside a bracket."""
    target = 1 - q
    vector, one = start, np.ones(len(start))
    if vector @ one <= target:
        return 0.0
    low, high, t = 0.0, np.inf, 0.0
    for _ in range(100):
        vector = start @ expm(generator * t)
        tail = vector @ one
        low, high = (t, high) if tail > target else (low, t)
        step = np.log(tail / target) * tail / -(vector @ generator @ one)
        if abs(step) < 1e-12 * max(t, 1e-3):
            return t
        t = t + step if low < t + step < high else 0.5 * (low + min(high, 2 * low + 1))
    return t


def hyperexponential(scv, third):
    """Two phases with mean 1 and this scv: balanced means, or a lighter or heavier third moment."""
    if third == "balanced":
        p = 0.5 * (1 + np.sqrt((scv - 1) / (scv + 1)))
        return (p, 1 - p), (2 * p, 2 * (1 - p))
    # a slow phase of mean m2 = scale (1 + scv)/2 and what is left for the fast one
    scale = {"light": 1.25, "heavy": 4.0}[third]
    slow = scale * (1 + scv) / 2
    # p1 m1 + p2 m2 = 1, p1 m1^2 + p2 m2^2 = (1 + scv)/2
    half = (1 + scv) / 2
    # m1 from: (1 - p2) m1 = 1 - p2 m2 ; p2 = (half - m1)/(m2 (m2 - m1) + m1 (m1 - 1) ...) solved by bisection on p2
    low, high = 0.0, min(1.0, 1 / slow)
    for _ in range(200):
        p2 = 0.5 * (low + high)
        m1 = (1 - p2 * slow) / (1 - p2)
        if (1 - p2) * m1**2 + p2 * slow**2 < half:
            low = p2
        else:
            high = p2
    return (1 - p2, p2), (1 / m1, 1 / slow)


def phase_type(law):
    kind = law["kind"]
    if kind == "h2":
        start, rates = hyperexponential(law["scv"], law["third"])
        return start, rates, np.zeros((2, 2))
    if kind == "erlang":
        k = law["phases"]
        return [1.0] + [0.0] * (k - 1), [float(k)] * k, np.diag(np.ones(k - 1), 1)
    if kind == "coxian":  # phase 1, then with probability p phase 2
        return (1.0, 0.0), law["rates"], np.array([[0.0, law["p"]], [0.0, 0.0]])
    if kind == "h3":
        return law["weights"], law["rates"], np.zeros((3, 3))
    raise ValueError(kind)


def cases():
    for scv, third in ((1.5, "balanced"), (3.0, "light"), (3.0, "heavy"), (6.0, "balanced"), (15.0, "heavy")):
        for c in (1, 2, 3, 6, 12, 24, 48):
            for rho in (0.4, 0.6, 0.8, 0.9, 0.97):
                yield {"kind": "h2", "scv": scv, "third": third}, c, rho
    for phases, servers in ((2, (1, 2, 3, 6, 12, 24, 48)), (4, (1, 2, 3, 6, 10)), (10, (1, 2, 3)), (30, (2,))):
        for c in servers:
            for rho in (0.6, 0.8, 0.95):
                yield {"kind": "erlang", "phases": phases}, c, rho
    for c in (2, 5, 20, 40):  # a hypoexponential with scv 0.68 and a Coxian with scv 2.8, both of mean 1
        for rho in (0.6, 0.85, 0.95):
            yield {"kind": "coxian", "p": 1.0, "rates": [5.0, 1.25]}, c, rho
            yield {"kind": "coxian", "p": 0.2, "rates": [2.0, 0.4]}, c, rho
    for c in (2, 4, 8, 14):
        for rho in (0.6, 0.85, 0.95):
            yield {"kind": "h3", "weights": [0.7, 0.25, 0.05], "rates": [2.8, 0.625, 1 / 7]}, c, rho


def main() -> None:
    rows = []
    for law, c, rho in cases():
        start, rates, routes = phase_type(law)
        start, rates, routes = map(np.asarray, (start, rates, routes))
        occupancy = np.linalg.solve(np.eye(len(rates)) - routes.T, start) / rates
        mean = occupancy.sum()
        vector, matrix = solve(c, rho * c / mean, start, rates, routes)
        rows.append(
            {
                "service": {**law, "start": list(map(float, start)), "rates": list(map(float, rates)),
                            "routes": routes.tolist()},
                "mean": float(mean), "servers": c, "utilization": rho,
                "p_wait": survival(vector, matrix, 0.0),
                "mean_wait": mean_wait(vector, matrix),
                "quantiles": {str(q): quantile(vector, matrix, q) for q in (0.5, 0.9, 0.99, 0.999)},
            }
        )  # fmt: skip
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    Path(__file__).with_name("mph_c.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
