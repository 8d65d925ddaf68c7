"""The device that is measured: what torch computes in there, how much memory is left, how long something takes; and what state a
GPU is in meanwhile: clocks, power, temperature, who else uses it, asked of the driver's own tool.

Run as a program it is one process of a group that sums hidden states as engines do: torch.distributed, in a CUDA graph.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from planner.calibrate.http import ASKING_S
from planner.calibrate.solver import SLIGHT
from planner.catalog import gpu as find_gpu
from planner.errors import CalibrationError, InputError
from planner.shared.cores import answers_of
from planner.shared.documents import printable
from planner.shared.extras import installing
from planner.shared.remarks import those_that_hold
from planner.units import number_of

_SLICE = re.compile(r"\bmig\b|\b\d+g\.\d+gb\b")
_MEMORY = re.compile(r"\b(\d+) ?gb\b")


class DeviceFull(CalibrationError):
    """The device had no memory left to try a kernel: that says nothing of the kernel."""


NOT_THERE = (ImportError, RuntimeError, TypeError, NotImplementedError, AttributeError, ValueError, AssertionError)
"""What a kernel that this torch or this device does not have raises."""


def device_full(torch: Any, error: BaseException) -> bool:
    """Whether an error is one of memory; what cuBLAS and Triton allocate fails with messages of their own."""
    told = str(error).lower()
    of_memory = isinstance(error, (DeviceFull, torch.cuda.OutOfMemoryError))
    return of_memory or "out of memory" in told or "alloc_failed" in told


def why_not(error: BaseException) -> str:
    """The first line of an error, in brackets after a blank; nothing where it says nothing."""
    told = str(error).strip().partition("\n")[0]
    return f" ({printable(told)})" if told else ""


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
                "torch sees no GPU on this machine",
                "Run it where the GPU is, measure a running server (--server URL), or try the path with --device cpu.",
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
        least: int = 3,
    ) -> float:
        """Typical time of one call of `body`, given the number of the copy to work on, measured for about `budget_s` and at `least`
        so often [s]."""

        def all_copies() -> None:
            for copy in range(copies):
                body(copy)

        once = self._cuda_timer(all_copies) if self.cuda else partial(timeit.timeit, all_copies, number=1)
        first = once()
        repeats = int(min(30, max(least, budget_s / max(first, 1e-6))))
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


def same_device(named: str, seen: str) -> bool:
    """Whether the device torch sees is the GPU that was named: SXM, PCIe and NVL are others, a slice of one is none.

    >>> same_device("h100", "NVIDIA H100 80GB HBM3"), same_device("a100", "NVIDIA H100 80GB HBM3")
    (True, False)
    >>> same_device("h100", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"), same_device("a100", "NVIDIA A100-PCIE-40GB")
    (False, False)
    """
    wanted, told = find_gpu(named).name, seen.lower()
    if _SLICE.search(told):
        return False
    try:
        return find_gpu(seen).name == wanted
    except InputError:
        # a name the catalog does not list: family, memory and form must be those of the one that was named
        memory = _MEMORY.search(told)
        if memory is not None and f"-{memory[1]}gb" not in wanted:
            return False
        if any((form in told) != (form in wanted) for form in ("pcie", "nvl")):
            return False
        family = wanted.split("-")[0] if not wanted.startswith("rtx") else wanted.rsplit("-", 1)[0]
        return family.replace("-", "") in told.replace(" ", "").replace("-", "")


def _told(name: str) -> Any:
    """A field that the tool calls so."""
    return field(default=None, metadata={"query": name})


@dataclass(frozen=True, slots=True)
class GpuState:
    """One reading; ``None`` where the tool or the GPU does not say.

    Parameters
    ----------
    name, driver
        As the driver has them.
    mig
        ``Enabled`` where the GPU is cut into slices.
    sm_mhz, sm_max_mhz, memory_mhz
        Clocks [MHz].
    power_w, power_limit_w
        [W].
    temperature_c
        [degrees Celsius].
    pcie_generation
        Of its link to the host.
    processes
        That compute on it, ours included.
    """

    name: str | None = _told("name")
    driver: str | None = _told("driver_version")
    mig: str | None = _told("mig.mode.current")
    sm_mhz: float | None = _told("clocks.sm")
    sm_max_mhz: float | None = _told("clocks.max.sm")
    memory_mhz: float | None = _told("clocks.mem")
    power_w: float | None = _told("power.draw")
    power_limit_w: float | None = _told("power.limit")
    temperature_c: float | None = _told("temperature.gpu")
    pcie_generation: float | None = _told("pcie.link.gen.current")
    processes: int | None = None

    @property
    def sliced(self) -> bool:
        """Whether it is cut into slices, of which a program gets one."""
        return (self.mig or "").lower() == "enabled"

    def doubts(self) -> tuple[str, ...]:
        """What about it makes measurements say less, one sentence each."""
        # power and temperature, which are told with it, say what held it
        slowed = self.sm_mhz and self.sm_max_mhz and self.sm_mhz < (1.0 - SLIGHT) * self.sm_max_mhz
        others = (self.processes or 1) - 1
        return those_that_hold([
            (slowed, "gpu_slowed", {"mhz": self.sm_mhz, "most": self.sm_max_mhz}),
            (others, "gpu_shared", {"others": others}),
        ])  # fmt: skip

    def note(self) -> str | None:
        """One line for a profile; ``None`` where nothing is known."""
        parts = [
            f"SM clock {self.sm_mhz:g} of {self.sm_max_mhz:g} MHz" if self.sm_mhz and self.sm_max_mhz else "",
            f"memory {self.memory_mhz:g} MHz" if self.memory_mhz else "",
            f"{self.power_w:.0f} of {self.power_limit_w:.0f} W" if self.power_w and self.power_limit_w else "",
            f"{self.temperature_c:g} C" if self.temperature_c is not None else "",
            f"driver {self.driver}" if self.driver else "",
        ]
        told = ", ".join(p for p in parts if p)
        return f"just after: {told}" if told else None

    def to_dict(self) -> dict[str, Any]:
        """What is known, JSON-ready."""
        return {k: v for k, v in asdict(self).items() if v is not None}


def read_gpu_state() -> GpuState:
    """Ask ``nvidia-smi`` for the first GPU; everything ``None`` where there is none or it does not answer."""
    asked = {f.name: f for f in fields(GpuState) if f.metadata}
    values = _asked(f"--query-gpu={','.join(f.metadata['query'] for f in asked.values())}")
    cells = [c.strip() for c in values[0].split(",")] if values else []
    if len(cells) != len(asked):
        return GpuState()
    told: dict[str, Any] = {
        name: (number_of if "float" in str(f.type) else _word)(cell)
        for (name, f), cell in zip(asked.items(), cells, strict=True)
    }
    running = _asked("--query-compute-apps=pid")
    return GpuState(**told, processes=None if running is None else sum(line.strip().isdigit() for line in running))


def _asked(query: str) -> list[str] | None:
    """Lines of an answer; ``None`` where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--id=0", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASKING_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None


def _word(cell: str) -> str | None:
    return None if not cell or cell.startswith("[") else printable(cell)


ALL_REDUCE, GATHERS = "an all-reduce", "gathers"
"""What GPUs of a group do together: sum their hidden states, or get those of all and give each its own sums back."""

SIZES = (1, 16, 128, 1024, 8192)
"""Tokens whose hidden states are summed."""

CALLS = 10
"""Calls in a row that are timed together, and how often that is done; the fastest is what the links allow."""

WAIT_S = 120.0
"""Starting the processes included."""


def collective_seconds(
    what: str, gpus: int, hidden: int, *, device: str = "cuda", sizes: tuple[int, ...] = SIZES, wait_s: float = WAIT_S
) -> dict[int, float]:
    """Time of one collective operation on the hidden states of so many tokens of each GPU, in the dtype engines sum them in.

    Parameters
    ----------
    what
        :data:`ALL_REDUCE`, or :data:`GATHERS`: to all copies of the attention and, summed, back.
    gpus
        GPUs of the group [GPUs].
    hidden
        Width of a hidden state [values].
    device
        ``cuda`` (NCCL) or ``cpu`` (Gloo, to try the path).
    sizes
        Tokens.
    wait_s
        Bound of it all [s].

    Returns
    -------
    dict
        Tokens -> [s].

    Raises
    ------
    CalibrationError
        When a process fails, ends or does not answer in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = {
            "what": what,
            "world": gpus,
            "hidden": hidden,
            "device": device,
            "store": str(Path(folder) / "store"),
            "sizes": sizes,
        }
        jobs = [{**job, "rank": rank} for rank in range(gpus)]
        parts = answers_of("planner.calibrate.device", jobs, wait_s, f"{what} over {gpus} processes")
    # the group is as fast as its slowest member
    return {size: max(part[str(size)] for part in parts) for size in sizes}


def main() -> None:
    """One process of the group; prints its times as JSON."""
    import torch
    import torch.distributed as distributed

    given = json.load(sys.stdin)
    torch.set_num_threads(1)
    world, rank, machine = given["world"], given["rank"], Device(torch, given["device"])
    if machine.cuda:
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl" if machine.cuda else "gloo", init_method=f"file://{given['store']}", rank=rank, world_size=world
    )
    place = f"cuda:{rank}" if machine.cuda else "cpu"
    found = {}
    for tokens in given["sizes"]:
        part = torch.ones(tokens, given["hidden"], device=place, dtype=torch.bfloat16)
        whole = torch.empty(world * tokens, given["hidden"], device=place, dtype=torch.bfloat16)

        def call(_: int, part: Any = part, whole: Any = whole) -> None:
            if given["what"] == ALL_REDUCE:
                distributed.all_reduce(part)
            else:
                distributed.all_gather_into_tensor(whole, part)
                distributed.reduce_scatter_tensor(part, whole)

        call(0)
        if not bool((part == world).all()):
            raise SystemExit("the sum of ones is not the number of processes")
        part.zero_()

        # all take part in every call: as many from each, whatever they take
        found[tokens] = machine.seconds(call, CALLS, 0.0, min, CALLS)
        distributed.barrier()
    print(json.dumps(found), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
