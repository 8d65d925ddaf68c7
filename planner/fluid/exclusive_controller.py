"""The online controller of exclusive batching as a pure step: completions in, number of slots and threshold out.

Algorithm 1 of the paper, with what it leaves open decided: weights of the hazard fit (number at risk), a fitted
p0 <= 0 (replaced by the mean), k >= 1, and N within [1, slots]. A simulator or an engine feeds it the completions of each
iteration in completion order and uses the new values from the next decision on.

References
----------
"Threshold-Based Exclusive Batching for LLM Inference", sections 3.4 and 3.5, appendix D.7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from planner.fluid.exclusive import HazardFit, dtheta_first_order, hazard_fit, theta0

__all__ = [
    "ControllerConfig",
    "ControllerState",
    "controller_start",
    "exclusive_controller_step",
    "exclusive_kv_gate",
    "exclusive_prefill_starts",
]


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
    capacity
        KV capacity C [tokens]; inf = no limit.
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
    """

    alpha_p: float
    alpha_d: float
    beta_d: float
    slots: int
    capacity: float = math.inf
    theta_default: float = 0.5
    slots_default: int | None = None
    window: int = 1000
    window_min: int = 100
    update_every: int = 50
    theta_min: float = 0.01
    theta_max: float = 0.99
    eps: float = 0.01
    variant: str = "paper"

    def __post_init__(self) -> None:
        for name in ("alpha_p", "alpha_d", "beta_d"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)!r}")
        if self.alpha_p == 0.0 and self.alpha_d == 0.0:
            raise ValueError("alpha_p and alpha_d must not both be 0")
        for name in ("slots", "window", "window_min", "update_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)!r}")
        if not 0.0 <= self.theta_min <= self.theta_max <= 1.0:
            raise ValueError(
                f"theta_min, theta_max must satisfy 0 <= min <= max <= 1, got {self.theta_min}, {self.theta_max}"
            )
        if not 0.0 < self.eps < 1.0:
            raise ValueError(f"eps must lie in (0, 1), got {self.eps!r}")
        if not self.capacity > 0.0:
            raise ValueError(f"capacity must be > 0, got {self.capacity!r}")
        if self.variant not in ("paper", "mean"):
            raise ValueError(f"variant must be 'paper' or 'mean', got {self.variant!r}")


@dataclass(frozen=True, slots=True)
class ControllerState:
    """Settings in force and what they were computed from.

    Parameters
    ----------
    slots
        N in force [1].
    k
        Idle slots at which to refill [1].
    inputs, outputs
        Lengths of the last completions [tokens], oldest first.
    since_update
        Completions since the last update [1].
    updates
        Updates made [1].
    theta, theta0, zeta
        Threshold in force, and that without the hazard's slope [1].
    p0, eta
        Hazard [1/iteration] and slope [1/iteration^2] used.
    mu_L, mu_O
        Window means [tokens]; 0 before the first update.
    """

    slots: int
    k: int
    inputs: tuple[float, ...] = ()
    outputs: tuple[int, ...] = ()
    since_update: int = 0
    updates: int = 0
    theta: float = 0.0
    theta0: float = 0.0
    zeta: float = 0.0
    p0: float = 0.0
    eta: float = 0.0
    mu_L: float = 0.0
    mu_O: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the windows."""
        record = asdict(self)
        del record["inputs"], record["outputs"]
        return record


def controller_start(config: ControllerConfig) -> ControllerState:
    """State before any completion: the default N, and k = max(1, floor(theta_default N)).

    Parameters
    ----------
    config
        What the controller is told.

    Returns
    -------
    ControllerState
        [1].

    Examples
    --------
    >>> s = controller_start(ControllerConfig(0.02, 0.01, 4e-5, slots=64))
    >>> s.slots, s.k
    (64, 32)
    """
    slots = config.slots if config.slots_default is None else max(1, min(config.slots, config.slots_default))
    return ControllerState(slots, max(1, math.floor(config.theta_default * slots)), theta=config.theta_default)


def exclusive_controller_step(
    state: ControllerState, completions: Sequence[tuple[float, int]], config: ControllerConfig
) -> ControllerState:
    r"""Take note of completions and, when due, set N and k anew (Algorithm 1).

    For each completion: append its lengths to windows of the last `window` completions and count it; once the count
    reaches `update_every` and the window holds `window_min`, update and reset the count. An update:

    1. mu_O, mu_L = window means; p0, eta by the variant (p0 <= 0 -> 1/mu_O, eta = 0).
    2. theta0 from eq. 3 with g = p0 alpha_p/alpha_d; theta = theta0 + eq. 5 with rho = beta_d N/alpha_d at the N in
       force, clipped to [theta_min, theta_max].
    3. If C is finite N = floor((C - ln(1/eps)/(p0^2 mu_L))/(mu_L + (1-theta) zeta/(theta p0))), within [1, slots].
    4. k = max(1, floor(theta N)).

    Parameters
    ----------
    state
        State before.
    completions
        (input length [tokens], output length [tokens]) in completion order.
    config
        What the controller is told.

    Returns
    -------
    ControllerState
        State after; the settings hold from the next decision on.

    Examples
    --------
    >>> config = ControllerConfig(0.1, 0.005, 4e-5, slots=64, window_min=2, update_every=2, variant="mean")
    >>> state = exclusive_controller_step(controller_start(config), [(512, 200), (512, 312)], config)
    >>> state.slots, state.k, round(state.theta, 6), state.updates
    (64, 19, 0.309867, 1)
    """
    inputs, outputs = list(state.inputs), list(state.outputs)
    for length, output in completions:
        inputs.append(length)
        outputs.append(output)
        count = state.since_update + 1
        if count >= config.update_every and min(len(outputs), config.window) >= config.window_min:
            state = _update(state, inputs[-config.window :], outputs[-config.window :], config)
            count = 0
        state = replace(state, since_update=count)
    return replace(state, inputs=tuple(inputs[-config.window :]), outputs=tuple(outputs[-config.window :]))


def _update(
    state: ControllerState, inputs: Sequence[float], outputs: Sequence[int], config: ControllerConfig
) -> ControllerState:
    mu_O, mu_L = sum(outputs) / len(outputs), sum(inputs) / len(inputs)
    fit = hazard_fit(outputs) if config.variant == "paper" else HazardFit(0.0, 0.0)
    p0, eta = (fit.p0, fit.eta) if fit.p0 > 0.0 else (1.0 / mu_O, 0.0)
    best = theta0(p0 * config.alpha_p / config.alpha_d if config.alpha_d > 0.0 else math.inf)
    theta = best.theta0
    if eta != 0.0 and 0.0 < theta < 1.0:
        rho = config.beta_d * state.slots / config.alpha_d
        theta += math.copysign(1.0, eta) * dtheta_first_order(p0, abs(eta), theta, rho)
    theta = min(config.theta_max, max(config.theta_min, theta))
    slots = config.slots
    if math.isfinite(config.capacity):
        zeta = -math.log1p(-theta) if theta < 1.0 else math.inf
        age = zeta / math.expm1(zeta) if 0.0 < zeta < 700.0 else (1.0 if zeta == 0.0 else 0.0)
        room = config.capacity - math.log(1.0 / config.eps) / (p0 * p0 * mu_L)
        slots = max(1, min(config.slots, math.floor(room / (mu_L + age / p0))))
    return replace(
        state,
        slots=slots,
        k=max(1, math.floor(theta * slots)),
        updates=state.updates + 1,
        theta=theta,
        theta0=best.theta0,
        zeta=best.zeta,
        p0=p0,
        eta=eta,
        mu_L=mu_L,
        mu_O=mu_O,
    )


def exclusive_prefill_starts(waiting: int, resident: int, slots: int, k: int) -> bool:
    """Whether EB(k) starts a prefill phase: f > 0 and f (N - k) >= n k, f = min(waiting, N - n).

    With a backlog: at least k idle slots. With few waiting, f/n is compared with k/(N - k), so that light traffic is not
    held up.

    Parameters
    ----------
    waiting, resident
        Requests waiting, and holding a slot (n) [1].
    slots, k
        N and idle slots at which to refill [1]. N may be below n after it was lowered.

    Returns
    -------
    bool
        Start prefilling.

    Examples
    --------
    >>> [exclusive_prefill_starts(99, n, 8, 3) for n in (4, 5, 6, 8, 9)]
    [True, True, False, False, False]
    """
    fill = min(waiting, max(0, slots - resident))
    return fill > 0 and fill * (slots - k) >= resident * k


def exclusive_kv_gate(
    held: float, capacity: float, slots: int, mu_O: float, s_kv: float = 0.5, f0: float = 0.0
) -> bool:
    """Whether enough memory is free to start a prefill phase, eq. 23 in tokens.

    Parameters
    ----------
    held
        Tokens held now [tokens].
    capacity
        C [tokens].
    slots
        N in force [1].
    mu_O
        Mean output length [tokens].
    s_kv, f0
        Safety factor and offset [1].

    Returns
    -------
    bool
        C - held >= F C with F = min(0.6, max(0.05, s_kv N mu_O/C + f0)).

    Examples
    --------
    >>> exclusive_kv_gate(900, 1000, 1, 10), exclusive_kv_gate(960, 1000, 1, 10)
    (True, False)
    """
    return capacity - held >= min(0.6, max(0.05, s_kv * slots * mu_O / capacity + f0)) * capacity
