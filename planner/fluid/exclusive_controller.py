"""The online controller of exclusive batching: from recent completions to the number of slots and the threshold.

Algorithm 1 of the paper, with what it leaves open decided: weights of the hazard fit (number at risk), a fitted
p0 <= 0 (replaced by the reciprocal of the mean), k >= 1, and N within [1, slots]. The simulator's policy ``eb_star``
keeps the windows and calls :func:`controller_update` when one is due.

References
----------
"Threshold-Based Exclusive Batching for LLM Inference", sections 3.4 and 3.5, appendix D.7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.fluid.exclusive import HazardFit, dtheta_first_order, hazard_fit, theta0
from planner.shared.mathematics import need


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """What the controller is told.

    Parameters
    ----------
    alpha_p, alpha_d
        Fixed time of a prefill, of a decode iteration [s], >= 0, not both 0.
    beta_d
        Time per decoding request [s/(request iteration)].
    slots
        Largest N [1].
    theta_default
        Threshold before the first update [1].
    slots_default
        N before the first update [1]; ``None`` = `slots`.
    window
        Completions kept [1].
    window_min
        Completions needed for an update [1].
    update_every
        Completions between updates [1].
    theta_min, theta_max
        Limits of the threshold [1].
    eps
        Risk in eq. 6 [1], in (0, 1).
    variant
        ``"paper"``: hazard p0 + eta t by weighted least squares; ``"mean"``: p0 = 1/mean, eta = 0, which costs less with
        real output lengths.

    Raises
    ------
    ValueError
        Naming the argument that cannot be.
    """

    alpha_p: float
    alpha_d: float
    beta_d: float
    slots: int
    theta_default: float = 0.2
    slots_default: int | None = None
    window: int = 500
    window_min: int = 100
    update_every: int = 50
    theta_min: float = 0.05
    theta_max: float = 0.95
    eps: float = 0.01
    variant: str = "paper"

    def __post_init__(self) -> None:
        for name in ("alpha_p", "alpha_d", "beta_d"):
            need(getattr(self, name) >= 0.0, f"{name} must be >= 0, got {getattr(self, name)!r}")
        need(self.alpha_p + self.alpha_d > 0.0, "alpha_p and alpha_d must not both be 0")
        for name in ("slots", "slots_default", "window", "window_min", "update_every"):
            value = getattr(self, name)
            known = value is None or (value >= 1 and value == int(value))
            need(known, f"{name} must be a whole number >= 1, got {value!r}")
        least, most = self.theta_min, self.theta_max
        need(0.0 <= self.theta_default <= 1.0, f"theta_default must lie in [0, 1], got {self.theta_default!r}")
        held = 0.0 <= least <= most <= 1.0
        need(held, f"theta_min, theta_max must satisfy 0 <= min <= max <= 1, got {least}, {most}")
        need(0.0 < self.eps < 1.0, f"eps must lie in (0, 1), got {self.eps!r}")
        need(self.variant in ("paper", "mean"), f"variant must be paper or mean, got {self.variant!r}")

    def start(self) -> tuple[int, int]:
        """N and k before any completion: the default N, and k = max(1, floor(theta_default N)).

        >>> ControllerConfig(0.02, 0.01, 4e-5, slots=64).start()
        (64, 12)
        """
        slots = self.slots if self.slots_default is None else min(self.slots, self.slots_default)
        return slots, max(1, math.floor(self.theta_default * slots))


@dataclass(frozen=True, slots=True)
class ControllerUpdate:
    """Settings from one window, and what they were computed from.

    Parameters
    ----------
    p0, eta
        Hazard [1/iteration] and slope [1/iteration^2] used.
    zeta, theta0
        Solution of eq. 3 [1].
    theta
        Threshold, corrected and clipped [1].
    slots
        N from the next decision on [1].
    k
        Idle slots at which to refill [1].
    mean_input, mean_output
        Window means [tokens].
    """

    p0: float
    eta: float
    zeta: float
    theta0: float
    theta: float
    slots: int
    k: int
    mean_input: float
    mean_output: float


def controller_update(
    inputs: Sequence[float], outputs: Sequence[int], slots: int, config: ControllerConfig, capacity: float = math.inf
) -> ControllerUpdate:
    r"""N and k anew from a window of completions (Algorithm 1).

    1. mu_O, mu_L = window means; p0, eta by the variant (p0 <= 0 -> 1/mu_O, eta = 0).
    2. theta0 from eq. 3 with g = p0 alpha_p/alpha_d; theta = theta0 + eq. 5 with rho = beta_d N/alpha_d at the N in
       force, clipped to [theta_min, theta_max].
    3. N = floor((C - ln(1/eps)/(p0^2 mu_L))/(mu_L + (1-theta) zeta/(theta p0))) within [1, slots]; the largest N where C
       is infinite.
    4. k = max(1, floor(theta N)).

    Parameters
    ----------
    inputs, outputs
        Lengths of the requests in the window [tokens], in any order; equally many, not empty.
    slots
        N in force [1].
    config
        What the controller is told.
    capacity
        KV capacity C [tokens]; inf = no limit.

    Returns
    -------
    ControllerUpdate
        The settings hold from the next decision on.

    Examples
    --------
    >>> config = ControllerConfig(0.1, 0.005, 4e-5, slots=64, variant="mean")
    >>> new = controller_update([512, 512], [200, 312], 64, config)
    >>> new.slots, new.k, round(new.theta, 6)
    (64, 19, 0.309867)
    """
    mu_O, mu_L = sum(outputs) / len(outputs), sum(inputs) / len(inputs)
    fit = hazard_fit(outputs) if config.variant == "paper" else HazardFit(0.0, 0.0)
    p0, eta = (fit.p0, fit.eta) if fit.p0 > 0.0 else (1.0 / mu_O, 0.0)
    best = theta0(p0 * config.alpha_p / config.alpha_d if config.alpha_d > 0.0 else math.inf)
    theta = best.theta0
    if eta != 0.0 and 0.0 < theta < 1.0:
        rho = config.beta_d * slots / config.alpha_d
        theta += math.copysign(1.0, eta) * dtheta_first_order(p0, abs(eta), theta, rho)
    theta = min(config.theta_max, max(config.theta_min, theta))
    allowed = config.slots
    if math.isfinite(capacity):
        zeta = -math.log1p(-theta) if theta < 1.0 else math.inf
        age = zeta / math.expm1(zeta) if 0.0 < zeta < 700.0 else (1.0 if zeta == 0.0 else 0.0)
        room = capacity - math.log(1.0 / config.eps) / (p0 * p0 * mu_L)
        allowed = max(1, min(config.slots, math.floor(room / (mu_L + age / p0))))
    k = max(1, math.floor(theta * allowed))
    return ControllerUpdate(p0, eta, best.zeta, best.theta0, theta, allowed, k, mu_L, mu_O)
