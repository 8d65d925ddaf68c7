"""A profile: iteration-time parameters of one model on one kind of replica, and how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from planner.iteration.model import IterationModel
from planner.machine.hardware import Parallelism
from planner.shared.record import Record, plain

SCHEMA = "fleetopt-profile/1"
"""Version of the file format."""

HOLDS: Mapping[str, float] = {"measured": 0.9, "fitted": 0.9, "estimated": 0.8}
"""Share of the cases that a profile's band holds, by its provenance: nine in ten where :mod:`planner.calibrate` made it, and
what :data:`planner.iteration.constants.BANDS` hold of systems nobody has fitted [1]."""

_ITERATION_DEFAULTS = {f.name: f.default for f in fields(IterationModel)}


@dataclass(frozen=True, slots=True)
class ReservedSlots(Record):
    """Slots of a replica whose every slot reserves a pool's longest context.

    .. math:: n(B) = \\lfloor n_{calib} C_{calib} / B \\rfloor

    Parameters
    ----------
    slots
        n_calib, slots at the calibrated context [1].
    context_tokens
        C_calib [tokens].
    """

    slots: float
    context_tokens: float

    def at(self, context_tokens: float) -> int:
        """Slots at another context length, at least 0.

        >>> [ReservedSlots(16, 65536).at(b) for b in (65536, 8192, 4096, 1536)]
        [16, 128, 256, 682]
        """
        return math.floor(self.slots * self.context_tokens / context_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """GPU x model x parallelism x engine settings -> iteration time, with provenance; fields as a file has them.

    Parameters
    ----------
    name
        How to ask for it.
    gpu, model
        Canonical names of the catalog, or any name when the file came from hardware the catalog does not know.
    tp, pp, dp, ep
        How the model is spread, see :class:`~planner.machine.hardware.Parallelism` [1].
    iteration
        The iteration-time model, of one copy's batch.
    provenance
        ``"measured"`` (kernels or iterations timed on this hardware), ``"fitted"`` (to a server's own figures) or ``"estimated"``.
    band
        Relative half-width of what the iteration time may be off by, 0.30 = +-30% [1]; how much it :attr:`holds` says
        the provenance.
    band_prefill
        The same of the time of prompts alone, which promises of TTFT hang on too; ``None`` = as `band` [1].
    weight_dtype, kv_dtype
        What it was measured in.
    date, engine, engine_version, command
        When, with what, and how to repeat it.
    points
        Measured points behind the fit [1].
    error_mean, error_p95
        Relative error on points held out of the fit [1].
    covered
        Range of each quantity the measurements spanned: ``decodes`` [sequences], ``context_tokens``, ``context_sum``,
        ``prefill_tokens``, ``batch_tokens`` [tokens]. Outside it the numbers are extrapolated.
    kv_tokens
        KV cache of one copy as its engine reported it; ``None`` = computed from the model and the GPU [tokens].
    api_overhead_s
        Time outside the engine's iterations that a request's first token waits for [s].
    request_s
        Time of the host that each request takes from the iterations [s].
    wake_s
        What a first token waits longer for where its server got no request for a tenth of a second before [s].
    reserved
        Slots rule of the ``reserved`` KV policy; ``None`` = KV capacity / longest context.
    replica_usd_per_hour
        Price of a whole replica where the source states one; ``None`` = GPUs x the GPU's price [USD/hour].
    settings
        Engine settings it was measured with.
    automatic
        Whether it may be chosen by its hardware alone; if not, only by name.
    source, notes
        Where it comes from and what the reader must know.
    untested
        What its measurements say nothing about.
    measurements
        The raw points in a shared profile (the first says of what), to be fitted again; empty otherwise.
    """

    name: str
    gpu: str
    model: str
    tp: int
    pp: int = 1
    dp: int = 1
    ep: int = 1
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    provenance: str
    automatic: bool = True
    iteration: IterationModel
    band: float
    band_prefill: float | None = None
    date: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    command: str | None = None
    points: int | None = None
    error_mean: float | None = None
    error_p95: float | None = None
    covered: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    kv_tokens: int | None = None
    api_overhead_s: float = 0.0
    request_s: float = 0.0
    wake_s: float = 0.0
    reserved: ReservedSlots | None = None
    replica_usd_per_hour: float | None = None
    settings: Mapping[str, str | float | bool] = field(default_factory=dict)
    source: str = ""
    notes: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()
    measurements: tuple[Mapping[str, Any], ...] = ()

    @property
    def parallel(self) -> Parallelism:
        """How the model is spread."""
        return Parallelism(self.tp, self.pp, self.dp, self.ep)

    @property
    def gpus(self) -> int:
        """GPUs of one replica, tp x pp x dp [1]."""
        return self.tp * self.pp * self.dp

    @property
    def holds(self) -> float:
        """Probability that what the iteration time is off by lies within the band [1]."""
        return HOLDS[self.provenance]

    @property
    def trust(self) -> str:
        """How far to trust it, as people read it, e.g. ``"estimated, ±30%"``."""
        return f"{self.provenance}, ±{100 * self.band:.0f}%"

    def outside(self, **quantities: float) -> tuple[str, ...]:
        """One line per quantity that lies outside the covered range (nothing when its range is not known).

        Examples
        --------
        >>> from planner.catalog import profile
        >>> profile("fleetopt-paper").outside(decodes=1000, context_tokens=4096)
        ('decodes = 1000 is outside the measured range 1..682',)
        """
        lines = []
        for name, value in quantities.items():
            low, high = self.covered.get(name, (-math.inf, math.inf))
            if not low <= value <= high:
                lines.append(f"{name} = {value:g} is outside the measured range {low:g}..{high:g}")
        return tuple(lines)

    def to_dict(self) -> dict[str, Any]:
        """The file's content: keys at their default are left out, the schema comes first.

        Examples
        --------
        >>> from planner.catalog import profile
        >>> list(profile("fleetopt-paper").to_dict())[:4]
        ['schema', 'name', 'gpu', 'model']
        """
        data: dict[str, Any] = {"schema": SCHEMA}
        for spec in fields(self):
            key, value = spec.name, getattr(self, spec.name)
            if value == (spec.default_factory() if spec.default_factory is not MISSING else spec.default):
                continue
            data[key] = plain(value)
        data["iteration"] = {k: v for k, v in data["iteration"].items() if v != _ITERATION_DEFAULTS[k]}
        return data
