r"""SLAI: when a decode has to run to meet its time between tokens, and how to set the scheduler's four knobs.

References
----------
Bari et al., "Optimal scheduling algorithms for LLM inference: theory and practice", section 6, eq. 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.fluid.exclusive import _need
from planner.fluid.numeric import exact, fifty_digits, out, reals

__all__ = [
    "SlaiSettings",
    "TbtClass",
    "slai_critical",
    "slai_gap_bound",
    "slai_last_time",
    "slai_offset",
    "slai_offset_min",
    "slai_settings",
]


@fifty_digits()
def slai_last_time(e: Any, tbt: Any, delta: Any, tb: Any) -> Any:
    r"""Last schedulable time of a decode, eq. 8.

    .. math:: C_i = e_{i-1} + TBT - \delta\,\bar t_{batch}

    Parameters
    ----------
    e
        End of the batch that emitted the previous token [s]; scalar or array.
    tbt
        Promised time between tokens [s]; scalar or array.
    delta
        Offset, in mean batch times [1], >= 0.
    tb
        Mean batch time so far [s], >= 0.

    Returns
    -------
    float or ndarray
        Time [s] from which the decode is critical.

    Examples
    --------
    >>> slai_last_time("12.5", "0.1", 2, "0.03")
    12.54
    """
    e, tbt, delta, tb = reals(infinite=("tbt",), e=e, tbt=tbt, delta=delta, tb=tb)
    _need(delta >= 0, "delta must be >= 0")
    _need(tb >= 0, "tb must be >= 0")
    return out(e + tbt - delta * tb)


def slai_critical(now: Any, last_time: Any) -> Any:
    """Whether a decode must be in the batch that starts now.

    Parameters
    ----------
    now
        Start of the batch [s].
    last_time
        :func:`slai_last_time` [s].

    Returns
    -------
    bool or ndarray of bool
        Critical from its last schedulable time on, that instant included.

    Examples
    --------
    >>> slai_critical(12.54, 12.54)
    True
    """
    return now >= last_time


def slai_offset(memory_used: float, threshold: float = 0.96, below: float = 5.0, above: float = 10.0) -> float:
    """Dynamic offset: small while memory is free (more prefill), large when it is full (clear decodes first).

    Parameters
    ----------
    memory_used
        Share of KV memory held [1].
    threshold
        Share from which `above` holds [1] (paper: 0.96).
    below, above
        Offsets [mean batch times] (paper: 5 and 10).

    Returns
    -------
    float
        delta [1].

    Examples
    --------
    >>> slai_offset(0.5), slai_offset(0.96)
    (5.0, 10.0)
    """
    return below if memory_used < threshold else above


def slai_gap_bound(tbt: float, delta: float, mean_batch: float, longest_batch: float) -> float:
    """Longest time between two tokens of a request, if every critical decode finds room in its batch.

    A decode turns critical at most one batch after its last schedulable time and is emitted one batch later:
    TBT - delta mean + 2 longest (and never more than 2 longest batches where it is critical at once).

    Parameters
    ----------
    tbt
        Promised time between tokens [s].
    delta
        Offset [mean batch times].
    mean_batch, longest_batch
        Mean and longest batch [s].

    Returns
    -------
    float
        Bound [s]; at most `tbt` iff delta >= :func:`slai_offset_min`.

    Examples
    --------
    >>> round(slai_gap_bound(0.1, 4, 0.02, 0.04), 12)
    0.1
    """
    return max(tbt - delta * mean_batch, 0.0) + 2.0 * longest_batch


def slai_offset_min(mean_batch: float, longest_batch: float) -> float:
    """Smallest offset that keeps the promise with certainty, 2 longest/mean.

    Parameters
    ----------
    mean_batch, longest_batch
        Mean (> 0) and longest batch [s].

    Returns
    -------
    float
        delta [mean batch times].

    Examples
    --------
    >>> slai_offset_min(0.02, 0.04)
    4.0
    """
    if not mean_batch > 0.0:
        raise ValueError(f"mean_batch must be > 0, got {mean_batch!r}")
    return 2.0 * longest_batch / mean_batch


@dataclass(frozen=True, slots=True)
class TbtClass:
    """Requests that share a promise about the time between tokens.

    Parameters
    ----------
    rate
        Arrival rate at the replica [requests/s], >= 0.
    mean_input, mean_decodes
        Mean prompt [tokens] and mean decode iterations [1] of a request.
    tbt
        Promised time between tokens [s], > 0.
    """

    rate: float
    mean_input: float
    mean_decodes: float
    tbt: float


@dataclass(frozen=True, slots=True)
class SlaiSettings:
    """What to set, and what follows.

    Parameters
    ----------
    token_budget
        Tokens per batch [tokens]: the largest whose full batch takes at most half the strictest TBT.
    max_decodes
        Decodes per batch [1].
    max_active
        Resident requests [1], from the memory limit given.
    delta
        Offset [mean batch times] that keeps the promise and the memory limit.
    batch_time
        Mean batch time at this load [s].
    longest_batch
        Time of a full batch [s].
    decodes_per_batch, prefill_per_batch
        Mean composition of a batch [tokens].
    resident
        Mean number of decoding requests [1].
    load
        Share of the sustainable rate in use under these settings [1].
    stable
        Whether load < 1 and residents fit.
    """

    token_budget: int
    max_decodes: int
    max_active: int
    delta: float
    batch_time: float
    longest_batch: float
    decodes_per_batch: float
    prefill_per_batch: float
    resident: float
    load: float
    stable: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def slai_settings(
    classes: Sequence[TbtClass],
    batch_time: Callable[[float, float], float],
    max_active: int,
    budget_limit: int = 16384,
) -> SlaiSettings:
    r"""Token budget, decode limit, active cap and offset of SLAI for given promises (numerical guide, not in the paper).

    1. A full batch must take at most half the strictest TBT: a decode that becomes critical just after a batch was
       formed waits for it and runs in the next. The budget is the largest with t(min(max_active, B), rest) <= TBT/2.
    2. delta = 2 longest/mean keeps every promise (:func:`slai_gap_bound`), never more than TBT/mean; it is raised where
       the decodes deferred under it would not fit into memory (the paper raises it when memory is 96% full).
    3. A decode of class j then runs every P_j = max(t, TBT_j - delta t + t/2), since it is deferred until critical; a
       batch holds lambda E[D] t decodes and lambda E[L] t prompt tokens whatever P is: rates are conserved. The batch
       time is the fixed point of t = t(lambda E[D] t, lambda E[L] t); residents are lambda_j E[D_j] P_j.

    Parameters
    ----------
    classes
        Traffic of the replica by promise.
    batch_time
        (decodes [tokens], prefill [tokens]) -> duration [s], not decreasing, at the mean context.
    max_active
        Residents memory can hold [1], >= 1.
    budget_limit
        Largest budget considered [tokens].

    Returns
    -------
    SlaiSettings
        ``stable`` is false, and ``load`` >= 1, where no setting sustains the traffic.

    Raises
    ------
    ValueError
        No class, a rate < 0 or TBT <= 0, or even a batch of one token takes longer than half the strictest TBT.

    Examples
    --------
    >>> s = slai_settings([TbtClass(0.5, 1700, 400, 0.1), TbtClass(9.5, 170, 40, 0.5)],
    ...                   lambda n, c: 0.008 + 5e-5 * n + 6e-5 * c, max_active=128)
    >>> s.token_budget, s.max_decodes, s.stable
    (700, 128, True)
    """
    if not classes:
        raise ValueError("classes must not be empty")
    for c in classes:
        if c.rate < 0.0 or c.mean_input < 0.0 or c.mean_decodes < 0.0 or not c.tbt > 0.0:
            raise ValueError(f"classes: rates and lengths must be >= 0 and tbt > 0, got {c}")
    active = int(exact(max_active, "max_active"))
    if active < 1:
        raise ValueError(f"max_active must be >= 1, got {max_active!r}")
    strictest = min(c.tbt for c in classes)

    def full(budget: int) -> float:
        decodes = min(active, budget)
        return max(batch_time(decodes, budget - decodes), batch_time(0, budget))

    if full(1) > 0.5 * strictest:
        raise ValueError(
            f"tbt {strictest:g} s cannot be kept: a batch of one token takes {full(1):.3g} s, more than half of it"
        )
    low, high = 1, max(1, int(budget_limit))
    if full(high) <= 0.5 * strictest:
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if full(middle) <= 0.5 * strictest else (low, middle)
    budget = low
    longest = full(budget)
    decode_rate = sum(c.rate * c.mean_decodes for c in classes)
    prefill_rate = sum(c.rate * c.mean_input for c in classes)
    tokens_rate = decode_rate + prefill_rate
    # sustainable when a full batch at this mix does more than arrives meanwhile
    if tokens_rate > 0.0:
        share = decode_rate / tokens_rate
        decodes = min(share * budget, float(min(active, budget)))
        tokens = decodes / share if share > 0.0 else float(budget)
        load = batch_time(decodes, tokens - decodes) * tokens_rate / tokens
    else:
        load = 0.0
    t = batch_time(0, 0)
    if load < 1.0:
        for _ in range(10_000):
            new = min(batch_time(decode_rate * t, prefill_rate * t), longest)
            if abs(new - t) <= 1e-13 * new:
                break
            t = new
    else:
        t = longest

    def held(delta: float) -> float:
        return sum(c.rate * c.mean_decodes * max(t, c.tbt - delta * t + 0.5 * t) for c in classes)

    delta = min(2.0 * longest / t, strictest / t) if t > 0.0 else 0.0
    if load < 1.0 and held(delta) > active:
        least, most = delta, max(c.tbt for c in classes) / t + 0.5
        for _ in range(60):
            delta = 0.5 * (least + most)
            least, most = (delta, most) if held(delta) > active else (least, delta)
        delta = most
    resident = held(delta)
    return SlaiSettings(
        budget, min(active, budget), active, delta, t, longest, decode_rate * t, prefill_rate * t,
        resident if load < 1.0 else math.inf, load, load < 1.0 and resident <= active,
    )  # fmt: skip
