"""The device that is measured: what torch computes in there, how much memory is left, how long something takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from planner.errors import CalibrationError
from planner.shared.extras import installing


class DeviceFull(CalibrationError):
    """The device had no memory left to try a kernel: that says nothing of the kernel."""


NOT_THERE = (ImportError, RuntimeError, TypeError, NotImplementedError, AttributeError, ValueError, AssertionError)
"""What a kernel that this torch or this device does not have raises."""


def device_full(torch: Any, error: BaseException) -> bool:
    """Whether an error is one of memory; what cuBLAS and Triton allocate fails with messages of their own."""
    told = str(error).lower()
    return (
        isinstance(error, (DeviceFull, torch.cuda.OutOfMemoryError))
        or "out of memory" in told
        or "alloc_failed" in told
    )


def refuse_full(torch: Any, error: BaseException, what: str) -> None:
    """Raise where a kernel was not tried because the device's memory is full.

    Raises
    ------
    DeviceFull
        When `error` says so.
    """
    if device_full(torch, error):
        raise DeviceFull(
            f"the device ran out of memory while {what} was tried, which says nothing of the kernel",
            "Free the device (nvidia-smi shows who uses it), or give a larger --tp.",
        ) from None


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
    """Timing and memory of the device measured on.

    Parameters
    ----------
    torch
        The module.
    kind
        ``cuda`` or ``cpu``.
    """

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

    def __str__(self) -> str:
        return self.name if self.cuda else "this processor"

    def free_bytes(self) -> float:
        """Memory that is left [bytes]."""
        return float(self.torch.cuda.mem_get_info()[0]) if self.cuda else 1e9

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
