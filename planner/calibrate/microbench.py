"""Measure iterations on this machine's GPU with torch: real shapes, random weights, a few layers stand for all.

No model is downloaded. The layers of one GPU's share are built with random weights; attention runs over KV buffers that
are different for every repeat (a KV cache of gigabytes never sits in the L2 cache either); the time of a few layers is
multiplied to the model's depth and the head with its argmax added. The host's share (scheduler, detokenizer, HTTP) is not
in it: an engine adds it to every iteration, which `--server` measures. The layers are in :mod:`planner.calibrate.layers`, their
kernels in :mod:`planner.calibrate.kernels`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.calibrate.device import (
    ALL_REDUCE,
    GATHERS,
    Device,
    DeviceFull,
    collective_seconds,
    device_full,
    load_torch,
)
from planner.calibrate.fit import log_slopes, times
from planner.calibrate.layers import Layers, refuse_unsupported
from planner.calibrate.points import Batch, Points
from planner.calibrate.solver import POINT_SD
from planner.catalog.kv import DEFAULT_TOKEN_BUDGET
from planner.errors import CalibrationError, InputError
from planner.machine.hardware import GpuSpec, ModelSpec, Parallelism
from planner.machine.iteration import IterationModel
from planner.machine.roofline import ASSUMED, CONSTANTS, shard_shape
from planner.shared.documents import load_document
from planner.shared.remarks import Remark, those_that_hold

SENTINELS, SENTINEL = 4, Batch(decodes=32, context=1024)
"""How often one batch is repeated through a run, to show by its times whether the machine drifts; and as large as which it is."""


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
    points: int | None = None,
    max_context: int | None = None,
    max_tokens: int = DEFAULT_TOKEN_BUDGET,
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
        How many; all of the design when ``None`` [1].
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


def measuring_order(batches: Sequence[Batch], seed: int = 0) -> tuple[Run, ...]:
    """Random order, a sentinel at the start, at the end and evenly between.

    Parameters
    ----------
    batches
        What to measure.
    seed
        Of the order.

    Returns
    -------
    tuple of Run

    Examples
    --------
    >>> plan = measuring_order([Batch(1, 64), Batch(2, 64), Batch(4, 64)])
    >>> [run.sentinel for run in plan]
    [True, False, True, False, True, False, True]
    """
    order, parts = np.random.default_rng(seed).permutation(len(batches)), SENTINELS - 1
    sentinel = Run(min(batches, key=lambda b: (b.kind != "decode", abs(b.tokens - SENTINEL.tokens))), True)
    plan: list[Run] = []
    for part in range(parts):
        begin, end = (round(k * len(batches) / parts) for k in (part, part + 1))
        plan += [sentinel, *(Run(batches[i]) for i in order[begin:end])]
    return (*plan, sentinel)


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


_TRIAL = load_document(Path(__file__).with_name("trial.yaml"))
TINY_MODEL, CPU = ModelSpec(**_TRIAL["model"]), GpuSpec(**_TRIAL["gpu"])
"""Model and processor of a trial run; not a GPU anybody plans with."""

DEVICE_SECONDS = 60.0
"""Bound of measuring a device where none is given; a batch takes a hundredth of it at most [s]."""

Progress = Callable[[int, int, str], None]
"""Called with (points done, points in all, what is measured)."""


@dataclass(frozen=True, slots=True)
class Collective:
    """What the GPUs of a group do together in an iteration.

    Parameters
    ----------
    what, gpus
        See :func:`planner.calibrate.device.collective_seconds`.
    calls, trips
        How often in an iteration, and how often each crosses the group [1].
    bytes_per_token
        Over a GPU's link in all of them, per token of the batch [bytes].
    tokens
        Tokens of a GPU, per token of the batch [1].
    """

    what: str
    gpus: int
    calls: int
    trips: int
    bytes_per_token: float
    tokens: float = 1.0

    def times(self, device: Device, gpu: GpuSpec, model: ModelSpec) -> tuple[Callable[[int], float], str]:
        """Time of an iteration's by tokens [s], measured where the GPUs are there, else estimated; and what is said of it."""
        why, told = "", {"what": self.what.removeprefix("an "), "gpus": self.gpus}
        if device.cuda and device.torch.cuda.device_count() >= self.gpus:
            try:
                times = collective_seconds(self.what, self.gpus, model.hidden_size)
                log_sizes, log_times = np.log(list(times)), np.log(list(times.values()))

                def measured(tokens: int) -> float:
                    own = math.log(max(1.0, self.tokens * tokens))
                    return self.calls * math.exp(float(np.interp(own, log_sizes, log_times)))

                return measured, str(Remark("collective_measured", told))
            except CalibrationError as error:
                why = f" ({error.message})"
        link = CONSTANTS["link"] * (gpu.link_bytes_per_s or ASSUMED["pcie_bytes_per_s"])
        latency = self.calls * self.trips * CONSTANTS["allreduce_s"]
        estimated = Remark("collective_estimated", {**told, "why": why})
        return (lambda tokens: latency + self.bytes_per_token / link * tokens), str(estimated)


def collectives(model: ModelSpec, spread: Parallelism) -> list[Collective]:
    """All that the GPUs of a replica do together: sums within a tensor-parallel group, ways to the experts and back between copies.

    >>> m = TINY_MODEL
    >>> [(c.what, c.gpus, c.calls) for c in collectives(m, Parallelism(2))], collectives(m, Parallelism(1))
    ([('an all-reduce', 2, 8)], [])
    """
    shape, found = shard_shape(model, spread.tp, spread.stage_gpus), []
    apart = model.expert_layers if spread.dp > 1 else 0
    if spread.tp > 1:
        calls = 2 * model.layers - apart
        found.append(Collective(ALL_REDUCE, spread.tp, calls, 1, shape.allreduce_bytes_per_token))
    if apart:
        of_each = 1.0 / spread.tp
        found.append(Collective(GATHERS, spread.stage_gpus, apart, 2, shape.dispatch_bytes_per_token, of_each))
    return found


def _design(layers: Layers, points: int | None) -> tuple[Batch, ...]:
    """The batches to measure, in half of the memory that is left."""
    machine, model, tp = layers.machine, layers.model, layers.spread.tp
    built = sum(len(kept) for kept in layers.weights.values())
    room = int(0.5 * machine.free_bytes() / (layers.kv_values * layers.head.element_size() * built))
    limits: dict[str, int] = {} if machine.cuda else _TRIAL["batches"]
    kv_bytes = min(room, limits.get("room", room)) * shard_shape(model, tp).kv_bytes_per_token
    longest, tokens = limits.get("context"), limits.get("tokens", DEFAULT_TOKEN_BUDGET)
    return designed_batches(model, tp=tp, kv_bytes=kv_bytes, points=points, max_context=longest, max_tokens=tokens)


def _warm(layers: Layers, batch: Batch) -> None:
    """Clocks rise and caches fill before anything counts."""
    works, head, _ = layers.prepare(batch)
    machine = layers.machine
    for _ in range(3):
        for body, *_ in works:
            machine.seconds(body, 1, 0.1 if machine.cuda else 0.01)
        machine.seconds(head, 1, 0.01)


def _timed(layers: Layers, batch: Batch, budget: float) -> float:
    """Time of all layers and the head for a batch [s], measured for about `budget` seconds."""
    works, head, copies = layers.prepare(batch)
    machine = layers.machine
    layers_s = sum(
        machine.seconds(body, copies, budget / len(works)) * stand_for / built for body, built, stand_for in works
    )
    return layers_s + machine.seconds(head, 1, 0.2 * budget)


def _notes(layers: Layers, together: Sequence[str], skipped: int, too_large: int) -> tuple[str, ...]:
    """What was built, what was left out, and what the times do not hold."""
    machine, fused = layers.machine, layers.between.fused
    before = those_that_hold([(True, "layers_built", {"built": layers.built})])
    after = those_that_hold([
        (skipped, "time_up", {"skipped": skipped}),
        (too_large, "no_memory", {"points": too_large}),
        (True, "no_host_time", {}),
    ])  # fmt: skip
    kernels = those_that_hold([
        (machine.cuda and fused, "between_fused", {}),
        (machine.cuda and not fused, "between_apart", {}),
        (machine.launched, "not_captured", {"timings": machine.launched}),
    ])  # fmt: skip
    attention = [layers.attention_note] if machine.cuda else []
    return (*before, *layers.notes, *together, *after, *attention, *kernels)


def measure(
    gpu: GpuSpec,
    model: ModelSpec,
    prior: IterationModel,
    *,
    tp: int | Parallelism = 1,
    device: str = "cuda",
    points: int | None = None,
    max_seconds: float = DEVICE_SECONDS,
    progress: Progress | None = None,
) -> tuple[Points, dict[str, Any]]:
    """Measure the designed batches on this machine.

    Parameters
    ----------
    gpu
        What the machine is said to be; its link bandwidth stands in where all-reduce cannot be measured.
    model
        The model whose layers are built.
    prior
        Roofline estimate, to skip batches that would take the whole time.
    tp
        GPUs of the group, or how a replica spreads the model, without stages; one GPU measures its share of it, and the batches are
        those of one copy [GPUs].
    device
        ``cuda`` or ``cpu``.
    points
        Different batches; all of the design when ``None`` [1].
    max_seconds
        Stop measuring after this time [s].
    progress
        Called before each point.

    Returns
    -------
    tuple
        The times with the order of measuring, sentinels repeated; and what a profile says of it: ``engine_version`` (of torch and
        CUDA), ``source`` and ``notes``.

    Raises
    ------
    CalibrationError
        Without torch, GPU or enough memory, or for a model without kernels here.
    """
    if device not in ("cuda", "cpu"):
        raise InputError(f"device {device!r} is neither cuda nor cpu")
    refuse_unsupported(model)
    torch = load_torch()
    machine = Device(torch, device)
    try:
        layers = Layers(machine, model, tp)
    except torch.cuda.OutOfMemoryError as error:
        raise CalibrationError(f"a few layers of {model.name} do not fit on {machine.name}: {error}") from None
    batches = _design(layers, points)
    plan = measuring_order(batches)
    layers.reserve(
        max(2 * max(b.decodes * b.context + b.prefills * (b.past_tokens + b.new_tokens) for b in batches), 4096)
    )
    together = [one.times(machine, gpu, model) for one in collectives(model, layers.spread)]
    budget = min(DEVICE_SECONDS / 100.0, 0.6 * max_seconds / len(plan))
    _warm(layers, plan[0].batch)
    begun = time.monotonic()
    measured: list[Batch] = []
    took: list[float] = []
    skipped = too_large = 0
    for number, batch in enumerate(run.batch for run in plan):
        if progress is not None:
            progress(number, len(plan), str(batch))
        left = max_seconds - (time.monotonic() - begun)
        expected_s = 3.0 * float(times(prior, Points((batch,), np.ones(1)))[0])
        if left < expected_s or left <= 0.0:
            skipped += 1
            continue
        try:
            total = _timed(layers, batch, budget) + math.fsum(times(batch.tokens) for times, _ in together)
        except (RuntimeError, DeviceFull) as error:
            if not device_full(torch, error):
                raise
            too_large += 1
            torch.cuda.empty_cache()
            continue
        measured.append(batch)
        took.append(total)
    if progress is not None:
        progress(len(plan), len(plan), "done")
    cuda = f", CUDA {torch.version.cuda}" if machine.cuda else ""
    told = {
        "notes": _notes(layers, [note for _, note in together], skipped, too_large),
        "engine_version": f"torch {torch.__version__}{cuda}",
        "source": f"measured on {machine.name} in {time.monotonic() - begun:.0f} s",
    }
    apart = layers.joined is None
    del layers
    if machine.cuda:
        torch.cuda.empty_cache()
    return Points(tuple(measured), np.array(took), np.arange(len(took), dtype=float), machine.name, apart), told
