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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.calibrate.allreduce import allreduce_seconds
from planner.calibrate.design import designed_batches, expected_duration, measuring_order
from planner.calibrate.device import Device, DeviceFull, device_full, load_torch
from planner.calibrate.layers import Layers, refuse_unsupported
from planner.calibrate.points import Batch, Points
from planner.errors import CalibrationError, InputError
from planner.iteration.model import IterationModel
from planner.iteration.roofline import PCIE_BYTES_PER_S, shard_shape
from planner.machine.hardware import GpuSpec, ModelSpec
from planner.shared.documents import load_document
from planner.shared.remarks import Remark, those_that_hold

_TRIAL = load_document(Path(__file__).with_name("trial.yaml"))
TINY_MODEL, CPU = ModelSpec(**_TRIAL["model"]), GpuSpec(**_TRIAL["gpu"])
"""Model and processor of a trial run; not a GPU anybody plans with."""

CPU_TOKENS, CPU_CONTEXT, CPU_ROOM = 256, 512, 16_384
"""A trial run on a processor keeps to batches that take milliseconds [tokens]."""

POINT_SECONDS = 0.6
ALLREDUCE_LATENCY_S = {True: 12e-6, False: 30e-6}
"""Of one all-reduce over NVLink or PCIe, where one GPU stands for the group: what custom kernels reach [s]."""

Progress = Callable[[int, int, str], None]
"""Called with (points done, points in all, what is measured)."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What a run gave.

    Parameters
    ----------
    points
        Times with the order of measuring; sentinels repeat.
    device
        As torch names it.
    versions
        Of torch and CUDA.
    seconds
        Time spent measuring [s].
    notes
        What the reader must know.
    """

    points: Points
    device: str
    versions: str
    seconds: float
    notes: tuple[str, ...]


def _allreduce(device: Device, gpu: GpuSpec, model: ModelSpec, tp: int) -> tuple[Callable[[int], float], str]:
    """Time of one iteration's all-reduces by tokens [s], measured where the GPUs are there, else estimated."""
    if tp == 1:
        return (lambda tokens: 0.0), ""
    calls = 2 * model.layers
    why = ""
    if device.cuda and device.torch.cuda.device_count() >= tp:
        try:
            times = allreduce_seconds(tp, model.hidden_size)
            log_sizes, log_times = np.log(list(times)), np.log(list(times.values()))
            return (
                lambda tokens: calls * math.exp(float(np.interp(math.log(max(1, tokens)), log_sizes, log_times))),
                str(Remark("all_reduce_measured", {"tp": tp})),
            )
        except CalibrationError as error:
            why = f" ({error.message})"
    link = gpu.link_bytes_per_s or PCIE_BYTES_PER_S
    per_token = shard_shape(model, tp).allreduce_bytes_per_token / link
    latency = calls * ALLREDUCE_LATENCY_S[(gpu.link_bytes_per_s or 0.0) > 1e11]
    return (
        lambda tokens: latency + per_token * tokens,
        str(Remark("all_reduce_estimated", {"tp": tp, "why": why})),
    )


def _design(layers: Layers, tp: int, points: int) -> tuple[Batch, ...]:
    """The batches to measure, in half of the memory that is left."""
    machine, model = layers.machine, layers.model
    built = sum(len(kept) for kept in layers.weights.values())
    room = int(0.5 * machine.free_bytes() / (layers.kv_values * layers.head.element_size() * built))
    room = min(room, 2_000_000 if machine.cuda else CPU_ROOM)
    return designed_batches(
        model,
        tp=tp,
        kv_bytes=room * shard_shape(model, tp).kv_bytes_per_token,
        points=points,
        max_context=None if machine.cuda else CPU_CONTEXT,
        max_tokens=8192 if machine.cuda else CPU_TOKENS,
    )


def _warm(layers: Layers, batch: Batch) -> None:
    """Clocks rise and caches fill before anything counts."""
    works, head, _ = layers.prepare(batch)
    machine = layers.machine
    for _ in range(3):
        for work in works:
            machine.seconds(work.body, 1, 0.1 if machine.cuda else 0.01)
        machine.seconds(head, 1, 0.01)


def _timed(layers: Layers, batch: Batch, budget: float) -> float:
    """Time of all layers and the head for a batch [s], measured for about `budget` seconds."""
    works, head, copies = layers.prepare(batch)
    machine = layers.machine
    layers_s = sum(
        machine.seconds(work.body, copies, budget / len(works)) * work.stand_for / work.built for work in works
    )
    return layers_s + machine.seconds(head, 1, 0.2 * budget)


def _notes(layers: Layers, reduce_note: str, skipped: int, too_large: int) -> tuple[str, ...]:
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
    return (*before, *layers.notes, *filter(None, [reduce_note]), *after, *attention, *kernels)


def measure(
    gpu: GpuSpec,
    model: ModelSpec,
    prior: IterationModel,
    *,
    tp: int = 1,
    device: str = "cuda",
    points: int = 24,
    sentinels: int = 4,
    max_seconds: float = 60.0,
    progress: Progress | None = None,
) -> Measured:
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
        GPUs of the group; on fewer, one GPU measures its share of the model [GPUs].
    device
        ``cuda`` or ``cpu``.
    points
        Different batches [1].
    sentinels
        Repeats of the sentinel batch [1].
    max_seconds
        Stop measuring after this time [s].
    progress
        Called before each point.

    Returns
    -------
    Measured

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
    batches = _design(layers, tp, points)
    plan = measuring_order(batches, sentinels=sentinels)
    layers.reserve(
        max(2 * max(b.decodes * b.context + b.prefills * (b.past_tokens + b.new_tokens) for b in batches), 4096)
    )
    reduce_time, reduce_note = _allreduce(machine, gpu, model, tp)
    budget = min(POINT_SECONDS, 0.6 * max_seconds / len(plan))
    _warm(layers, plan[0].batch)
    begun = time.monotonic()
    measured: list[Batch] = []
    times: list[float] = []
    skipped = too_large = 0
    for number, run in enumerate(plan):
        if progress is not None:
            progress(number, len(plan), str(run.batch))
        left = max_seconds - (time.monotonic() - begun)
        if left < expected_duration(prior, [run.batch], 3) or left <= 0.0:
            skipped += 1
            continue
        try:
            total = _timed(layers, run.batch, budget) + reduce_time(run.batch.tokens)
        except (RuntimeError, DeviceFull) as error:
            if not device_full(torch, error):
                raise
            too_large += 1
            torch.cuda.empty_cache()
            continue
        measured.append(run.batch)
        times.append(total)
    if progress is not None:
        progress(len(plan), len(plan), "done")
    seconds = time.monotonic() - begun
    notes = _notes(layers, reduce_note, skipped, too_large)
    cuda = f", CUDA {torch.version.cuda}" if machine.cuda else ""
    apart = layers.joined is None
    del layers
    if machine.cuda:
        torch.cuda.empty_cache()
    return Measured(
        points=Points(tuple(measured), np.array(times), np.arange(len(times), dtype=float), machine.name, apart),
        device=machine.name,
        versions=f"torch {torch.__version__}{cuda}",
        seconds=seconds,
        notes=notes,
    )
