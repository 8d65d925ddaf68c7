"""Which iterations to measure, in which order: the corners of the batch space first, sentinels in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.calibrate.fit import log_slopes, times
from planner.calibrate.points import Batch, Points
from planner.errors import CalibrationError
from planner.iteration.model import IterationModel
from planner.iteration.roofline import shard_shape
from planner.machine.hardware import ModelSpec
from planner.shared.documents import load_document

POINT_SD = 0.02
"""What one measured iteration is off by [1]."""

SENTINEL = Batch(decodes=32, context=1024)
"""The batch repeated through a run: its times show whether the machine drifts."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement of a plan: its batch, and whether it is a sentinel."""

    batch: Batch
    sentinel: bool = False


def designed_batches(
    model: ModelSpec,
    *,
    tp: int = 1,
    kv_bytes: float,
    points: int = 24,
    max_context: int | None = None,
    max_tokens: int = 8192,
) -> tuple[Batch, ...]:
    """The batches to measure on a device with room for `kv_bytes` of KV cache, most informative first.

    Parameters
    ----------
    model
        The model.
    tp
        Size of the group one GPU stands for [GPUs].
    kv_bytes
        Room for KV cache of all the model's layers [bytes]; larger batches are scaled down to fit.
    points
        How many [1].
    max_context
        Longest context; the model's own when ``None`` [tokens].
    max_tokens
        Most tokens of one iteration [tokens].

    Returns
    -------
    tuple of Batch
        Different from each other.

    Raises
    ------
    CalibrationError
        If fewer than 6 different batches fit.

    Examples
    --------
    >>> m = ModelSpec("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256, 131072, full_attention_layers=32)
    >>> batches = designed_batches(m, kv_bytes=50e9)
    >>> len(batches), str(batches[0])
    (24, '1 decodes at 128')
    """
    longest = min(max_context or model.max_context, model.max_context)
    per_token = max(1.0, shard_shape(model, tp).kv_bytes_per_token)
    room = int(kv_bytes / per_token)
    found: dict[Batch, None] = {}
    for wish in load_document(Path(__file__).with_suffix(".yaml")):
        fitted = _fitted(Batch(**wish), room, longest, max_tokens)
        if fitted is not None:
            found.setdefault(fitted, None)
    if len(found) < 6:
        raise CalibrationError(
            f"only {len(found)} different batches fit beside {model.name}: {room:,} KV tokens of room",
            "Use a GPU with more memory, or a larger tensor-parallel group.",
        )
    return tuple(found)[:points]


def _fitted(wish: Batch, room: int, longest: int, max_tokens: int) -> Batch | None:
    """The wish within room and lengths, at its place in the design; ``None`` where nothing of it is left."""
    context = min(wish.context, longest)
    decodes = wish.decodes
    prefills, new, past = wish.prefills, min(wish.new_tokens, longest), wish.past_tokens
    while prefills > 1 and prefills * new > max_tokens:
        prefills -= 1
    new = min(new, max_tokens)
    past = min(past, longest - new) if past else 0
    if wish.past_tokens and past < new:
        return None
    while decodes * context + prefills * (new + past) > room:
        # give up contexts first, then sequences: the batch keeps its place in the design
        if context > 256:
            context //= 2
        elif decodes > 4:
            decodes //= 2
        elif past > new:
            past //= 2
        elif new > 64:
            new //= 2
        else:
            return None
    return Batch(decodes, context if decodes else 0, prefills, new if prefills else 0, past if prefills else 0)


def measuring_order(batches: Sequence[Batch], *, sentinels: int = 4, seed: int = 0) -> tuple[Run, ...]:
    """Random order, a sentinel at the start, at the end and evenly between.

    Parameters
    ----------
    batches
        What to measure.
    sentinels
        How often the sentinel is repeated [1].
    seed
        Of the order.

    Returns
    -------
    tuple of Run

    Examples
    --------
    >>> plan = measuring_order([Batch(1, 64), Batch(2, 64), Batch(4, 64)], sentinels=2)
    >>> [run.sentinel for run in plan]
    [True, False, False, False, True]
    """
    shuffled = [batches[i] for i in np.random.default_rng(seed).permutation(len(batches))]
    sentinel = SENTINEL if SENTINEL in batches else min(batches, key=lambda b: (b.kind != "decode", abs(b.tokens - 32)))
    plan: list[Run] = []
    step = len(shuffled) / max(1, sentinels - 1)
    for i in range(max(2, sentinels) - 1):
        plan.append(Run(sentinel, True))
        plan += [Run(b) for b in shuffled[round(i * step) : round((i + 1) * step)]]
    plan.append(Run(sentinel, True))
    return tuple(plan)


def most_telling(points: Points, prior: IterationModel, count: int) -> list[int]:
    """Places of the points that determine the parameters best, found greedily (D-optimal: largest determinant).

    Parameters
    ----------
    points
        What there is.
    prior
        Estimate of the same GPU and model; its uncertainty is what the points have to lower.
    count
        How many to take; all when there are fewer [1].

    Returns
    -------
    list of int
        In their own order.

    References
    ----------
    Fedorov, "Theory of Optimal Experiments", 1972, section 3.1.
    """
    if count >= len(points):
        return list(range(len(points)))
    slope, sd = log_slopes(points, prior)
    covariance = np.diag(sd**2)
    chosen: list[int] = []
    for _ in range(count):
        reached = slope @ covariance
        gain = np.einsum("pi,pi->p", reached, slope)
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        covariance -= np.outer(reached[best], reached[best]) / (POINT_SD**2 + gain[best])
    return sorted(chosen)


def expected_duration(model: IterationModel, batches: Sequence[Batch], repeats: int) -> float:
    """Rough time to measure the batches, from the prior [s]."""
    return repeats * float(times(model, Points(tuple(batches), np.ones(len(batches)))).sum())
