"""Iteration times of the scheduling papers by name, for the reference cases of the policies and for the papers' claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.machine.iteration import IterationModel
from planner.papers.machines import KvLinear, Prefills, Staircase
from planner.predict.engine import Canonical, IterationTime, Request


@dataclass(frozen=True, slots=True)
class Exclusive:
    r"""Separate lines for pure decode, pure prefill and mixed iterations.

    .. math:: T = \alpha_d + \beta_d n, \quad \alpha_p + \beta_p P, \quad \alpha_{MB} + \beta_{MB}(r)(n + P)

    with :math:`r = n/(n+P)` and :math:`\beta_{MB}(r) = c_0 + c_1 r + c_2 r^2`.

    Parameters
    ----------
    alpha_p, beta_p
        Prefill: constant [s] and per token [s/token].
    alpha_d, beta_d
        Decode: constant [s] and per sequence [s/sequence].
    alpha_mb, c0, c1, c2
        Mixed: constant [s] and the quadratic of the decode share [s/token].
    """

    alpha_p: float
    beta_p: float
    alpha_d: float
    beta_d: float
    alpha_mb: float = 0.0
    c0: float = 0.0
    c1: float = 0.0
    c2: float = 0.0

    def beta_mb(self, r: float) -> float:
        """Slope of a mixed iteration whose decode share is `r` [s/token]."""
        return self.c0 + self.c1 * r + self.c2 * r * r

    def duration(self, decodes: Sequence[Request], prefills: Prefills) -> float:
        """Duration of an iteration [s]."""
        n = len(decodes)
        if not prefills:
            return self.alpha_d + self.beta_d * n
        tokens = sum([chunk for _, chunk in prefills])
        if n == 0:
            return self.alpha_p + self.beta_p * tokens
        return self.alpha_mb + self.beta_mb(n / (n + tokens)) * (n + tokens)


MODELS = {"exclusive": Exclusive, "kv": KvLinear, "staircase": Staircase}


def iteration_time(name: str, parameters: Mapping[str, float]) -> IterationTime:
    """The model `name` (``canonical``, ``exclusive``, ``kv``, ``staircase``) with its parameters."""
    return Canonical(IterationModel.from_dict(parameters)) if name == "canonical" else MODELS[name](**parameters)
