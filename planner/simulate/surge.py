"""Flash crowds in a run: a source of requests whose rate is multiplied for a while, again and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.simulate.traffic import RequestBatch, Traffic
from planner.workload.sending import Surge


class SurgingTraffic:
    """Requests of another source, in crowds; only those of the crowds count.

    Parameters
    ----------
    traffic
        The source; its rate is the ordinary one.
    surge
        The crowd.
    """

    def __init__(self, traffic: Traffic, surge: Surge) -> None:
        self.traffic, self.surge = traffic, surge
        self.requests, self.saturated = traffic.requests, traffic.saturated
        self.whole, self.smallest_tokens = traffic.whole, traffic.smallest_tokens

    def batches(self, rng: np.random.Generator) -> Iterator[RequestBatch]:
        """The batches of the source at their warped times."""
        for batch in self.traffic.batches(rng):
            times = self.surge.warp(batch.times_s)
            yield replace(batch, times_s=times, counted=self.surge.counts(times))
