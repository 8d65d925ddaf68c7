"""How long an iteration of the rule-exact engine lasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.iteration.model import IterationModel

if TYPE_CHECKING:
    from planner.predict.engine import Request


@dataclass(frozen=True, slots=True)
class Canonical:
    """The canonical iteration time, :meth:`planner.iteration.model.IterationModel.time`, of one batch.

    Parameters
    ----------
    model
        Its parameters.
    """

    model: IterationModel

    def duration(self, decodes: Sequence[Request], prefills: Sequence[tuple[Request, float]]) -> float:
        """Duration of an iteration [s]."""
        tokens = end = pairs = 0.0
        for request, chunk in prefills:
            tokens += chunk
            pairs += chunk * (request.prefilled + (chunk + 1) / 2)
            end = max(end, request.prefilled + chunk)
        contexts = [r.held for r in decodes]
        return self.model.time(len(contexts), sum(contexts), tokens, pairs, max(contexts, default=0), end)
