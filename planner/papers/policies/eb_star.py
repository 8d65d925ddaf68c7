"""EB(k*): exclusive batching whose k and N follow the traffic through a controller."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from planner.errors import InputError
from planner.fluid.exclusive_controller import ControllerConfig, ControllerUpdate, controller_update
from planner.machine.derived import exclusive_parameters
from planner.papers.policies.eb import ExclusiveBatching
from planner.papers.policy import PolicyEntry, Situation
from planner.predict.engine import Node, Report


@dataclass(frozen=True, slots=True)
class Update(ControllerUpdate):
    """One update of the controller, and when [s]."""

    time_s: float = math.nan


class AdaptiveExclusiveBatching(ExclusiveBatching):
    """EB(k) whose k and N are set from the last completions.

    Parameters
    ----------
    slots
        N, >= 1.
    alpha_p, alpha_d, beta_d
        Constants of a prefill and a decode iteration [s] and the cost per decode [s].
    kv_gate, s_kv, f0
        With finite memory, start a prefill phase only if the free share of memory is at least
        min(0.6, max(0.05, s_kv N^ mean output / C + f0)). `kv_gate` may hold the two numbers itself.
    token_budget
        Most prompt tokens per iteration of a prefill phase [tokens].
    **controller
        Further fields of :class:`planner.fluid.exclusive_controller.ControllerConfig`.
    """

    rest = ControllerConfig

    def __init__(
        self,
        slots: float,
        alpha_p: float,
        alpha_d: float,
        beta_d: float,
        kv_gate: bool | Mapping[str, float] = False,
        s_kv: float = 0.5,
        f0: float = 0.0,
        token_budget: float = math.inf,
        **controller: Any,
    ) -> None:
        super().__init__(slots, 1, token_budget)
        if not alpha_d > 0.0:
            raise InputError(f"alpha_d must be positive, got {alpha_d!r}")
        try:
            self.config = ControllerConfig(alpha_p, alpha_d, beta_d, int(self.slots), **controller)
        except ValueError as error:
            raise InputError(str(error)) from None
        self.slots, self.k = self.config.start()
        if isinstance(kv_gate, Mapping):
            s_kv, f0 = kv_gate.get("s_kv", s_kv), kv_gate.get("f0", f0)
        self.kv_gate, self.s_kv, self.f0 = bool(kv_gate), s_kv, f0
        self.outputs: deque[int] = deque(maxlen=int(self.config.window))
        self.inputs: deque[int] = deque(maxlen=int(self.config.window))
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
            self.inputs.append(int(request.input_tokens))
            self.since_update += 1
            if self.since_update >= self.config.update_every and len(self.outputs) >= self.config.window_min:
                self.update(report.start + report.duration, capacity)
                self.since_update = 0

    def update(self, time_s: float, capacity: float) -> None:
        """New k^ and N^ from the window."""
        new = controller_update(self.inputs, self.outputs, int(self.slots), self.config, capacity)
        self.slots, self.k = new.slots, new.k
        self.updates.append(Update(**asdict(new), time_s=time_s))

    def may_start_phase(self, node: Node) -> bool:
        """The memory gate."""
        if not (self.kv_gate and self.updates and node.residents and math.isfinite(node.capacity)):
            return True
        share = min(0.6, max(0.05, self.s_kv * self.slots * self.updates[-1].mean_output / node.capacity + self.f0))
        return node.capacity - node.held >= share * node.capacity


def defaults(situation: Situation) -> dict[str, Any]:
    """The lines of the iteration-time model at the mean context."""
    lines = exclusive_parameters(situation.model, situation.mean_context).values
    return {"slots": situation.slots, **{k: lines[k] for k in ("alpha_p", "alpha_d", "beta_d")}}


POLICY = PolicyEntry("exclusive batching with a controller, EB(k*)", AdaptiveExclusiveBatching, defaults, ("eb*",))
