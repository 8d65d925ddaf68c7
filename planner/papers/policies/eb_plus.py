"""EB+: switches between mixed and exclusive batching by which of the two is estimated to be faster."""

from __future__ import annotations

import math
from typing import Any

from planner.machine.derived import exclusive_parameters, interference_parameters
from planner.papers.policies.eb_star import AdaptiveExclusiveBatching
from planner.papers.policies.eb_star import defaults as exclusive_defaults
from planner.papers.policies.mixed import mixed
from planner.papers.policy import PolicyEntry, Situation, at_least, fraction
from planner.predict.engine import Node


class EbPlus:
    """Two schedulers over the same slots, memory and residents; the choice is renewed at every decision after the first update.

    Parameters
    ----------
    slots, alpha_p, alpha_d, beta_d and further keywords
        As :class:`AdaptiveExclusiveBatching`.
    beta_p, alpha_mb, c0, c1, c2
        Prefill slope [s/token], mixed constant [s] and the quadratic of the mixed slope [s/token].
    token_budget_mixed
        Token budget of the mixed mode [tokens].
    delta
        Margin by which exclusive batching must win [s/token].
    ema
        Weight of the newest iteration in the average number of residents, in (0, 1].
    """

    rest = AdaptiveExclusiveBatching

    def __init__(
        self,
        slots: float,
        alpha_p: float,
        alpha_d: float,
        beta_d: float,
        beta_p: float,
        alpha_mb: float,
        c0: float,
        c1: float = 0.0,
        c2: float = 0.0,
        token_budget_mixed: float = 512,
        delta: float = 0.0,
        ema: float = 0.05,
        **exclusive: float,
    ) -> None:
        self.exclusive = AdaptiveExclusiveBatching(slots, alpha_p, alpha_d, beta_d, **exclusive)  # type: ignore[arg-type]
        self.mixed = mixed(slots, at_least("token_budget_mixed", token_budget_mixed, 1))
        self.beta_p, self.alpha_mb, self.c0, self.c1, self.c2 = beta_p, alpha_mb, c0, c1, c2
        self.delta = delta
        self.ema = fraction("ema", ema)
        self.residents = math.nan
        self.mode = "mixed"
        self.mode_switches = 0
        self.iterations = {"mixed": 0, "exclusive": 0}

    def schedule(self, node: Node) -> None:
        """Learn, choose, and let the chosen scheduler build the iteration."""
        report = node.report
        if report is not None:
            first = math.isnan(self.residents)
            self.residents = (
                report.residents if first else (1.0 - self.ema) * self.residents + self.ema * report.residents
            )
            self.exclusive.learn(report, node.capacity)
        if self.exclusive.updates:
            mode = "exclusive" if self.exclusive_is_faster() else "mixed"
            self.mode_switches += mode != self.mode
            self.mode = mode
        # The controller has learnt already: call the rule of EB(k) itself.
        if self.mode == "mixed":
            self.mixed.schedule(node)
        else:
            super(AdaptiveExclusiveBatching, self.exclusive).schedule(node)
        if node.batch:
            self.iterations[self.mode] += 1

    def exclusive_is_faster(self) -> bool:
        """Whether the slope mixing adds outweighs the constants it saves."""
        last, eb = self.exclusive.updates[-1], self.exclusive.config
        mean_l, mean_o = last.mean_input, last.mean_output
        r = mean_o / (mean_l + mean_o)
        beta_mb = self.c0 + self.c1 * r + self.c2 * r * r
        beta_eb = (self.beta_p * mean_l + eb.beta_d * mean_o) / (mean_l + mean_o)
        constants_eb = (eb.alpha_p + eb.alpha_d * last.zeta * mean_o) / last.theta0 if last.theta0 > 0.0 else math.inf
        saved = (constants_eb - self.alpha_mb * (1.0 + mean_o)) / (self.residents * (mean_l + mean_o))
        return beta_mb - beta_eb > saved + self.delta


def defaults(situation: Situation) -> dict[str, Any]:
    """Those of EB(k*), and the slope of mixed iterations from the iteration-time model."""
    model, budget = situation.model, situation.token_budget
    share = interference_parameters(model, situation.mean_context, tokens=budget)
    constant = model.time(0, 0.0, 1, 0.0)
    # K(r) is the time of an iteration of `budget` tokens: the constant is taken out, the rest is per token
    return {
        **exclusive_defaults(situation),
        "beta_p": exclusive_parameters(model, situation.mean_context).values["beta_p"],
        "alpha_mb": constant,
        "c0": (share["c0"] - constant) / budget,
        "c1": share["c1"] / budget,
        "c2": share["c2"] / budget,
        "token_budget_mixed": budget,
    }


POLICY = PolicyEntry("EB+, switching between mixed and exclusive", EbPlus, defaults, ("eb+",))
