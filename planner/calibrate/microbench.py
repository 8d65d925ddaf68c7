"""Measure iterations on this machine's GPU with torch: real shapes, random weights, a few layers stand for all.

No model is downloaded. The layers of one GPU's share are built with random weights; attention runs over KV buffers that
are different for every repeat (a KV cache of gigabytes never sits in the L2 cache either); the time of a few layers is
multiplied to the model's depth and the head with its argmax added. The host's share (scheduler, detokenizer, HTTP) is not
in it: an engine adds it to every iteration, which `--server` measures. The layers are in :mod:`planner.calibrate.layers`, their
kernels in :mod:`planner.calibrate.kernels`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from planner.calibrate.allreduce import allreduce_seconds
from planner.calibrate.design import designed_batches, expected_duration, measuring_order
from planner.calibrate.kernels import DeviceFull, device_full, refuse_full
from planner.calibrate.layers import Layers, refuse_unsupported
from planner.calibrate.points import Batch, Points
from planner.errors import CalibrationError, InputError
from planner.iteration.model import IterationModel
from planner.iteration.roofline import PCIE_BYTES_PER_S, shard_shape
from planner.machine.hardware import GpuSpec, ModelSpec
from planner.shared.extras import installing

TINY_MODEL = ModelSpec(
    name="tiny",
    layers=4,
    hidden_size=256,
    intermediate_size=704,
    q_heads=8,
    kv_heads=2,
    head_dim=32,
    vocab_size=4096,
    max_context=4096,
    full_attention_layers=4,
    source="made up, to try the whole path on a machine without a GPU",
)

CPU = GpuSpec(
    name="cpu",
    memory_bytes=8e9,
    bandwidth_bytes_per_s=20e9,
    flops_per_s={"bf16": 0.1e12, "fp32": 0.1e12},
    link_bytes_per_s=None,
    price_usd_per_hour=0.0,
    sources={"bandwidth_bytes_per_s": "order of magnitude of one or two cores"},
)
"""Stands for the processor in a trial run; not a GPU anybody plans with."""

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


def load_torch() -> Any:
    """Import torch, or say how to get it."""
    try:
        import torch
    except ImportError:
        raise CalibrationError(
            "measuring on this machine needs PyTorch, which is not installed",
            f"Install the extra: {installing('gpu')}. Or measure a running server: --server URL.",
        ) from None
    return torch


class Device:
    """Timing and memory of the device measured on."""

    def __init__(self, torch: Any, kind: str) -> None:
        self.torch = torch
        self.kind = kind
        self.cuda = kind == "cuda"
        if self.cuda and not torch.cuda.is_available():
            raise CalibrationError(
                "torch sees no GPU on this machine", "Check nvidia-smi and the torch build; or try --device cpu."
            )
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.name = torch.cuda.get_device_name(0) if self.cuda else "cpu"
        self.l2_bytes = 0
        self.launched = 0
        """Batches timed with their launches, because they could not be captured."""
        if self.cuda:
            properties = torch.cuda.get_device_properties(0)
            self.l2_bytes = int(getattr(properties, "L2_cache_size", 0) or 64 * 2**20)

    def free_bytes(self) -> float:
        if self.cuda:
            return float(self.torch.cuda.mem_get_info()[0])
        return 1e9

    def seconds(
        self,
        body: Callable[[int], object],
        copies: int,
        budget_s: float,
        typical: Callable[[Sequence[float]], float] = statistics.median,
    ) -> float:
        """Typical time of one call of `body`, given the number of the copy to work on, measured for about `budget_s` [s]."""

        def all_copies() -> None:
            for copy in range(copies):
                body(copy)

        once = self._cuda_timer(all_copies) if self.cuda else partial(_clocked, all_copies)
        first = once()
        repeats = int(min(30, max(3, budget_s / max(first, 1e-6))))
        return typical([once() for _ in range(repeats)]) / copies

    def _cuda_timer(self, work: Callable[[], None]) -> Callable[[], float]:
        """What times some work [s]: as a recorded graph, or by plain launches where it cannot be recorded."""
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # warm-up on a side stream, as capturing asks for
            work()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        replay = work
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
            replay = graph.replay
        except RuntimeError as error:
            refuse_full(torch, error, "the capture of a batch")
            # a kernel that cannot be captured is timed with its launches
            torch.cuda.synchronize()
            self.launched += 1

        def once() -> float:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            replay()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e-3

        return once


def _clocked(work: Callable[[], None]) -> float:
    """Time that some work takes on a processor [s]."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _layers(machine: Device, model: ModelSpec, tp: int) -> Layers:
    """The layers to time; fp8 with a scale a block where the model's family ships it and torch has the kernel."""
    torch, free = machine.torch, machine.free_bytes()

    def build(block_scales: bool) -> Layers:
        return Layers(
            torch, machine.kind, machine.dtype, model, tp, 0,
            free_bytes=free, l2_bytes=machine.l2_bytes, block_scales=block_scales,
        )  # fmt: skip

    try:
        if not (model.weight_dtype == "fp8" and (model.kv_lora_rank or "qwen3" in model.name.lower())):
            return build(False)
        try:
            return build(True)
        except DeviceFull:
            raise
        except CalibrationError as error:
            found = build(False)
            found.notes.append(
                f"{error.message}: what was timed has one scale a matrix where the model has one a block"
            )
            return found
    except torch.cuda.OutOfMemoryError as error:
        raise CalibrationError(f"a few layers of {model.name} do not fit on {machine.name}: {error}") from None


def _allreduce(
    torch: Any, device: Device, gpu: GpuSpec, model: ModelSpec, tp: int
) -> tuple[Callable[[int], float], str]:
    """Time of one iteration's all-reduces by tokens [s], measured where the GPUs are there, else estimated."""
    if tp == 1:
        return (lambda tokens: 0.0), ""
    calls = 2 * model.layers
    why = ""
    if device.cuda and torch.cuda.device_count() >= tp:
        try:
            times = allreduce_seconds(tp, model.hidden_size)
            log_sizes, log_times = np.log(list(times)), np.log(list(times.values()))
            return (
                lambda tokens: calls * math.exp(float(np.interp(math.log(max(1, tokens)), log_sizes, log_times))),
                f"all-reduce measured over {tp} GPUs with NCCL in a CUDA graph; engines have kernels of their own below some "
                "megabytes, which are faster for decodes",
            )
        except CalibrationError as error:
            why = f" ({error.message})"
    link = gpu.link_bytes_per_s or PCIE_BYTES_PER_S
    per_token = shard_shape(model, tp).allreduce_bytes_per_token / link
    latency = calls * ALLREDUCE_LATENCY_S[(gpu.link_bytes_per_s or 0.0) > 1e11]
    return (
        lambda tokens: latency + per_token * tokens,
        f"one GPU stands for a group of {tp}: all-reduce estimated from latency and link bandwidth, not measured{why}",
    )


def _design(machine: Device, layers: Layers, model: ModelSpec, tp: int, points: int) -> tuple[Batch, ...]:
    """The batches to measure, in half of the memory that is left."""
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


def _warm(machine: Device, layers: Layers, batch: Batch) -> None:
    """Clocks rise and caches fill before anything counts."""
    works, head, _ = layers.prepare(batch)
    for _ in range(3):
        for work in works:
            machine.seconds(work.body, 1, 0.1 if machine.cuda else 0.01)
        machine.seconds(head, 1, 0.01)


def _timed(machine: Device, layers: Layers, batch: Batch, budget: float) -> float:
    """Time of all layers and the head for a batch [s], measured for about `budget` seconds."""
    works, head, copies = layers.prepare(batch)
    layers_s = sum(
        machine.seconds(work.body, copies, budget / len(works)) * work.stand_for / work.built for work in works
    )
    return layers_s + machine.seconds(head, 1, 0.2 * budget)


def _notes(machine: Device, layers: Layers, reduce_note: str, skipped: int, too_large: int) -> tuple[str, ...]:
    """What was built, what was left out, and what the times do not hold."""
    notes = [f"{layers.built} were built and extrapolated, head and argmax added", *layers.notes]
    notes += [reduce_note] if reduce_note else []
    notes += [f"{skipped} points were not measured: time was up"] if skipped else []
    notes += [f"{too_large} points did not fit in memory"] if too_large else []
    notes.append("the engine's host time is not in it; measure a running server to see it")
    if machine.cuda:
        notes.append(layers.attention_note)
        notes.append(
            "norms, positions and activations: "
            + ("a kernel each" if layers.between.fused else "torch's, not fused: too slow")
        )
        if machine.launched:
            notes.append(f"{machine.launched} timings could not be captured as CUDA graphs: launches are in them")
    return tuple(notes)


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
    layers = _layers(machine, model, tp)
    batches = _design(machine, layers, model, tp, points)
    plan = measuring_order(batches, sentinels=sentinels)
    layers.reserve(
        max(2 * max(b.decodes * b.context + b.prefills * (b.past_tokens + b.new_tokens) for b in batches), 4096)
    )
    reduce_time, reduce_note = _allreduce(torch, machine, gpu, model, tp)
    budget = min(POINT_SECONDS, 0.6 * max_seconds / len(plan))
    _warm(machine, layers, plan[0].batch)
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
            total = _timed(machine, layers, run.batch, budget) + reduce_time(run.batch.tokens)
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
    notes = _notes(machine, layers, reduce_note, skipped, too_large)
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
