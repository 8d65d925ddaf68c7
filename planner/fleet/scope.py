"""Promises that all requests of the fleet keep together: the share of a pool's requests beyond a limit."""

from __future__ import annotations

import bisect
import math

from planner.methods.base import Prediction
from planner.promise import GOODPUT, Promise

TAIL_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.993, 0.996, 0.998, 0.999, 0.9995)
"""Levels a pool is predicted at when the fleet's tail is mixed from the pools'."""


def tail_at(prediction: Prediction, promise: Promise) -> float:
    """Share beyond the limit of a promise, read off a prediction's quantiles: log-survival linear in the latency between levels.

    >>> p = Prediction((0.5, 0.9, 0.99), (1.0, 2.0, 3.0), (0, 0, 0), (0, 0, 0), 0, 0, 0, 0)
    >>> [round(tail_at(p, Promise("ttft_s", limit)), 3) for limit in (2.0, 0.5, 9.0)]
    [0.1, 1.0, 0.01]
    """
    if promise.kind == GOODPUT:
        return 1.0 - prediction.share(promise)
    metric, limit_s = promise.metric, promise.limit_s
    values = [prediction.value(metric, q) for q in prediction.quantiles]
    if math.isinf(values[-1]):
        return 1.0
    survival = [1.0 - q for q in prediction.quantiles]
    if limit_s >= values[-1]:
        # nothing is claimed beyond the highest level predicted
        return survival[-1]
    if limit_s < values[0]:
        return 1.0
    k = bisect.bisect_right(values, limit_s)
    part = (limit_s - values[k - 1]) / (values[k] - values[k - 1])
    return float(math.exp((1.0 - part) * math.log(survival[k - 1]) + part * math.log(survival[k])))
