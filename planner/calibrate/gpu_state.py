"""What state a GPU is in while it is measured: clocks, power, temperature, who else uses it. Asked of the driver's own tool."""

from __future__ import annotations

import math
import shutil
import subprocess
from dataclasses import asdict, dataclass, field, fields
from typing import Any

ASKING_S = 5.0
SLOWED = 0.92
"""A clock below this share of its largest is not what the data sheet speaks of [1]."""
POWER_FULL = 0.97
"""Share of its power limit from which a GPU is taken to be held by it [1]."""
HOT_C = 85.0
"""Temperature from which a slowed GPU is taken to be held by it [degrees Celsius]."""


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

    def doubts(self) -> list[str]:
        """What about it makes measurements say less, one sentence each."""
        found = []
        if self.sm_mhz and self.sm_max_mhz and self.sm_mhz < SLOWED * self.sm_max_mhz:
            full = self.power_w and self.power_limit_w and self.power_w > POWER_FULL * self.power_limit_w
            hot = self.temperature_c is not None and self.temperature_c >= HOT_C
            why = ", held by its power limit" if full else ", held by its temperature" if hot else ""
            found.append(f"the GPU ran at {self.sm_mhz:g} of {self.sm_max_mhz:g} MHz{why}")
        if self.processes is not None and self.processes > 1:
            found.append(f"{self.processes - 1} other processes were computing on the GPU")
        return found

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
    told = {
        name: (_number if "float" in str(f.type) else _word)(cell)
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
    return None if not cell or cell.startswith("[") else cell[:80]


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
