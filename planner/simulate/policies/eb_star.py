"""EB(k*): exclusive batching whose k and N follow the traffic through a controller."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import InputError
from planner.simulate.engine import Node, Report
from planner.simulate.policies.checks import at_least, fraction
from planner.simulate.policies.eb import ExclusiveBatching

__all__ = ["AdaptiveExclusiveBatching", "Update", "hazard_line", "refill_threshold", "zeta_of"]


@dataclass(frozen=True, slots=True)
class Update:
    """One update of the controller: when [s], the hazard line, the thresholds and what follows from them."""

    time_s: float
    p0: float
    eta: float
    zeta: float
    theta0: float
    theta: float
    slots: int
    k: int
    mean_input: float
    mean_output: float


def zeta_of(ratio: float) -> float:
    """The positive root of expm1(z) - z = `ratio` (p0 alpha_p / alpha_d), by Newton's method; 0 for 0.

    >>> round(zeta_of(0.718281828459045), 12)
    1.0
    """
    if ratio <= 0.0:
        return 0.0
    z = min(math.sqrt(2.0 * ratio), math.log1p(ratio) + 1.0)  # small and large ratio
    for _ in range(100):
        step = (math.expm1(z) - z - ratio) / math.expm1(z)
        z -= step
        if abs(step) <= 1e-15 * z:
            break
    return z


def hazard_line(outputs: list[int]) -> tuple[float, float]:
    """Intercept and slope of the hazard h(t) = #(O = t)/#(O >= t) over t = 1..t95, weights #(O >= t); falls back to 1/mean.

    >>> hazard_line([1, 1, 1, 1])
    (1.0, 0.0)
    """
    n = len(outputs)
    mean = sum(outputs) / n
    counts: dict[int, int] = {}
    for o in outputs:
        counts[o] = counts.get(o, 0) + 1
    s_w = s_t = s_tt = s_h = s_th = 0.0
    alive, t = n, 0
    while True:
        t += 1
        ended = counts.get(t, 0)
        # weight times hazard is the number ended
        s_w += alive
        s_t += alive * t
        s_tt += alive * t * t
        s_h += ended
        s_th += ended * t
        alive -= ended
        if n - alive >= 0.95 * n - 1e-9:
            break
    if t == 1:
        p0, eta = s_h / s_w, 0.0
    else:
        determinant = s_w * s_tt - s_t * s_t
        eta = (s_w * s_th - s_t * s_h) / determinant
        p0 = (s_h - eta * s_t) / s_w
    return (p0, eta) if p0 > 0.0 else (1.0 / mean, 0.0)


def refill_threshold(p0: float, eta: float, zeta: float, rho: float) -> tuple[float, float]:
    """theta_0 = 1 - exp(-zeta) and theta with the first-order correction for a hazard that is not constant."""
    theta0 = -math.expm1(-zeta)
    if theta0 <= 0.0 or eta == 0.0:
        return theta0, theta0
    bracket = zeta * (theta0 / (1.0 - theta0) - zeta / 2.0) + rho * (zeta - theta0)
    return theta0, theta0 + eta * (1.0 - theta0) ** 2 / (p0 * p0 * theta0) * bracket


class AdaptiveExclusiveBatching(ExclusiveBatching):
    """EB(k) whose k and N are set from the last completions.

    Parameters
    ----------
    slots
        N, >= 1.
    alpha_p, alpha_d, beta_d
        Constants of a prefill and a decode iteration [s] and the cost per decode [s].
    theta_default, slots_default
        Start: N^ = slots_default (default N), k^ = max(1, floor(theta_default N^)).
    window, window_min, update_every
        Completions remembered, needed before the first update, and between updates.
    theta_min, theta_max
        Limits of theta.
    eps
        Overflow probability the memory rule aims at (finite memory only).
    variant
        ``"paper"`` fits a line to the hazard of the output length, ``"mean"`` uses 1/mean.
    kv_gate, s_kv, f0
        With finite memory, start a prefill phase only if the free share of memory is at least
        min(0.6, max(0.05, s_kv N^ mean output / C + f0)). `kv_gate` may hold the two numbers itself.
    token_budget
        Most prompt tokens per iteration of a prefill phase [tokens].
    """

    def __init__(
        self,
        slots: float,
        alpha_p: float,
        alpha_d: float,
        beta_d: float,
        theta_default: float = 0.2,
        slots_default: float | None = None,
        window: float = 500,
        window_min: float = 100,
        update_every: float = 50,
        theta_min: float = 0.05,
        theta_max: float = 0.95,
        eps: float = 0.05,
        variant: str = "paper",
        kv_gate: bool | Mapping[str, float] = False,
        s_kv: float = 0.5,
        f0: float = 0.0,
        token_budget: float = math.inf,
    ) -> None:
        super().__init__(slots, 1, token_budget)
        if variant not in ("paper", "mean"):
            raise InputError(f"variant must be paper or mean, got {variant!r}")
        if alpha_d <= 0.0 or alpha_p < 0.0 or beta_d < 0.0:
            raise InputError("alpha_d must be positive, alpha_p and beta_d not negative")
        self.most_slots = self.slots
        self.alpha_p, self.alpha_d, self.beta_d = alpha_p, alpha_d, beta_d
        if slots_default is not None:
            self.slots = min(at_least("slots_default", slots_default, 1), self.most_slots)
        self.k = max(1, math.floor(fraction("theta_default", theta_default) * self.slots))
        self.window = int(at_least("window", window, 1))
        self.window_min = at_least("window_min", window_min, 1)
        self.update_every = at_least("update_every", update_every, 1)
        self.theta_min, self.theta_max = fraction("theta_min", theta_min), fraction("theta_max", theta_max)
        if self.theta_min > self.theta_max:
            raise InputError("theta_min must not exceed theta_max")
        if not 0.0 < eps < 1.0:
            raise InputError(f"eps must lie in (0, 1), got {eps!r}")
        self.eps, self.variant = eps, variant
        if isinstance(kv_gate, Mapping):
            s_kv, f0 = kv_gate.get("s_kv", s_kv), kv_gate.get("f0", f0)
        self.kv_gate, self.s_kv, self.f0 = bool(kv_gate), s_kv, f0
        self.outputs: deque[int] = deque(maxlen=self.window)
        self.inputs: deque[int] = deque(maxlen=self.window)
        self.since_update = 0
        self.updates: list[Update] = []

    def schedule(self, node: Node) -> None:
        """Learn from the completions of the last iteration, then EB(k)."""
        if node.report is not None:
            self.learn(node.report, node.capacity)
        super().schedule(node)

    def learn(self, report: Report, capacity: float) -> None:
        """Count completions in their order; update where due."""
        for request in report.completed:
            self.outputs.append(request.output_tokens)
            self.inputs.append(request.input_tokens)
            self.since_update += 1
            if self.since_update >= self.update_every and len(self.outputs) >= self.window_min:
                self.update(report.start + report.duration, capacity)
                self.since_update = 0

    def update(self, time_s: float, capacity: float) -> None:
        """New k^ and N^ from the window."""
        mean_output = sum(self.outputs) / len(self.outputs)
        mean_input = sum(self.inputs) / len(self.inputs)
        p0, eta = hazard_line(list(self.outputs)) if self.variant == "paper" else (1.0 / mean_output, 0.0)
        zeta = zeta_of(p0 * self.alpha_p / self.alpha_d)
        theta0, theta = refill_threshold(p0, eta, zeta, self.beta_d * self.slots / self.alpha_d)
        theta = min(max(theta, self.theta_min), self.theta_max)
        if math.isfinite(capacity):
            if theta <= 0.0:
                growth = 1.0 / p0  # limit of (1 - theta) z / (theta p0)
            elif theta >= 1.0:
                growth = 0.0
            else:
                growth = (1.0 - theta) * -math.log1p(-theta) / (theta * p0)
            room = capacity - math.log(1.0 / self.eps) / (p0 * p0 * mean_input)
            self.slots = min(max(math.floor(room / (mean_input + growth)), 1), self.most_slots)
        else:
            self.slots = self.most_slots
        self.k = max(1, math.floor(theta * self.slots))
        self.updates.append(
            Update(time_s, p0, eta, zeta, theta0, theta, int(self.slots), int(self.k), mean_input, mean_output)
        )

    def may_start_phase(self, node: Node) -> bool:
        """The memory gate."""
        if not (self.kv_gate and self.updates and node.residents and math.isfinite(node.capacity)):
            return True
        share = min(0.6, max(0.05, self.s_kv * self.slots * self.updates[-1].mean_output / node.capacity + self.f0))
        return node.capacity - node.held >= share * node.capacity
